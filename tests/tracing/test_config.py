"""The bounds of tracing."""

import pytest

from goqueue.errors import InvalidConfig
from goqueue.tracing.config import RING_MAX, TraceConfig


@pytest.mark.parametrize("name", ["ring", "ids_max", "export_interval_ms", "outbox_max"])
def test_nothing_of_it_can_be_nothing(name: str) -> None:
    with pytest.raises(InvalidConfig, match=name):
        TraceConfig(**{name: 0})


def test_the_ring_has_a_largest_size() -> None:
    assert TraceConfig(ring=RING_MAX).ring == RING_MAX
    with pytest.raises(InvalidConfig, match="ring"):
        TraceConfig(ring=RING_MAX + 1)
