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


@pytest.fixture
def one(gq: Client) -> Iterator[Client]:
    """A topic of one partition, with ten messages that are soon redelivered."""
    gq.create_topic("t", partitions=1, backoff_initial="10ms", backoff_max="10ms")
    gq.publish_many("t", [b"%d" % number for number in range(10)])
    yield gq
    for group in gq.groups():
        gq.delete_group(group)
