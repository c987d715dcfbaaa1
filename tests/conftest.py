"""Three things that tests share: a clock that is set by hand, a disk in memory, and hypothesis without a stopwatch."""

import pytest
from hypothesis import HealthCheck, settings

from goqueue.testing import ManualClock, MemoryDisk

settings.register_profile(
    "goqueue",
    max_examples=50,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
    database=None,
)
settings.load_profile("goqueue")


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def disk() -> MemoryDisk:
    return MemoryDisk()
