import pytest

from goqueue.testing import FaultyDisk, MemoryDisk


@pytest.fixture
def faulty(disk: MemoryDisk) -> FaultyDisk:
    return FaultyDisk(disk, seed=0)
