"""Waiting for what a broker writes to its topic of traces."""

import msgspec

from goqueue.client.sync import Client
from goqueue.clock import SECOND, SystemClock
from goqueue.tracing.table import TraceRow

TRACES = "__traces"
PATIENCE_NS = 30 * SECOND


def read_until_told(client: Client, event_type: str, count: int, *, topic: str) -> None:
    """Return when so many events of a topic are in the topic of traces, which the first of them makes."""
    clock = SystemClock()
    end_ns = clock.monotonic_ns() + PATIENCE_NS
    while TRACES not in client.topics(internal=True):
        assert clock.monotonic_ns() < end_ns
    seen = 0
    for message in client.follow(TRACES, start="earliest"):
        row = msgspec.json.decode(message.value, type=TraceRow)
        seen += row.count if (row.event_type, row.topic) == (event_type, topic) else 0
        if seen >= count:
            return
