"""What tests share: a clock that is set by hand, a disk in memory, hypothesis without a stopwatch, and one Spark."""

import os
import signal

import pytest
from hypothesis import HealthCheck, settings

from goqueue.testing import ManualClock, MemoryDisk

settings.register_profile(
    "goqueue",
    max_examples=int(os.environ.get("GOQUEUE_EXAMPLES", "25")),  # more of them find more, and take longer
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
    database=None,
)
settings.load_profile("goqueue")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as what runs in the background inherits it
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that need Spark: they run in one process, and share its session."""
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker("spark")


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def disk() -> MemoryDisk:
    return MemoryDisk()
