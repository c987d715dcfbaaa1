"""A broker that outlives the scripts, and a topic for each test."""

from collections.abc import Iterator
from itertools import count

import pytest

from goqueue import Client
from goqueue.testing import EmbeddedBroker

_numbers = count()


@pytest.fixture(scope="session")
def address() -> Iterator[str]:
    with EmbeddedBroker(http=False) as broker:
        yield broker.address


@pytest.fixture(scope="session")
def gq(address: str) -> Iterator[Client]:
    with Client(address, timeout="20s") as client:
        yield client


@pytest.fixture
def topic(gq: Client) -> str:
    return gq.create_topic(f"careless-{next(_numbers)}", partitions=1).name
