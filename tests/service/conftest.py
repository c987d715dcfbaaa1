import pytest

from goqueue.testing import ManualClock, MemoryDisk
from tests.broker.brokers import Node


@pytest.fixture
def node(disk: MemoryDisk, clock: ManualClock) -> Node:
    return Node(disk, clock)
