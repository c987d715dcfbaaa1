from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from goqueue.client.sync import Client
from goqueue.testing import EmbeddedBroker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


QUICK = {
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.codegen.wholeStage": "false",
}
"""A Java machine that is soon at its best, which is not as good as it could be, and no code compiled per query: for
jobs of a second."""


@pytest.fixture(scope="session")
def spark() -> "Iterator[SparkSession]":
    """The one session of all Spark tests."""
    from goqueue.spark.session import local_session

    session = local_session("goqueue-tests", master="local[2]", conf=QUICK)
    yield session
    session.stop()


def serving() -> EmbeddedBroker:
    """A broker that looks after its logs often."""
    return EmbeddedBroker(http=False, housekeeping_maintenance_interval="100ms")


@pytest.fixture
def broker() -> Iterator[EmbeddedBroker]:
    with serving() as running:
        yield running


@pytest.fixture
def client(broker: EmbeddedBroker) -> Iterator[Client]:
    with Client(broker.address) as connected:
        yield connected


@pytest.fixture(scope="module")
def shared_broker() -> Iterator[EmbeddedBroker]:
    """One broker for all tests of a module, which leave no topics behind."""
    with serving() as running:
        yield running


@pytest.fixture
def gq(shared_broker: EmbeddedBroker) -> Iterator[Client]:
    from goqueue.spark.link import Link

    with Client(shared_broker.address) as connected:
        yield connected
        for topic in connected.topics():
            connected.delete_topic(topic)
    Link(shared_broker.address, "").close()
