from collections.abc import Iterator

import pytest

from goqueue import Client
from goqueue.testing import EmbeddedBroker


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    """One broker for all tests of a module."""
    with EmbeddedBroker(http=False) as broker:
        yield broker


@pytest.fixture
def server(broker: EmbeddedBroker, client: Client) -> str:
    """The address of the broker, once the `client` of the module has filled it."""
    return broker.address
