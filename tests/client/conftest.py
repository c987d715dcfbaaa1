"""A real broker for the tests of a module, and a client that talks to it."""

from collections.abc import Iterator

import pytest

from goqueue import Client
from goqueue.testing import EmbeddedBroker


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with EmbeddedBroker(http=False) as broker:
        yield broker.address


@pytest.fixture
def gq(address: str) -> Iterator[Client]:
    with Client(address, timeout="20s") as client:
        yield client
        for topic in client.topics():
            client.delete_topic(topic)
