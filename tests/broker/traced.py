"""A broker whose traces go where a test wants them, and what tests say about traces often."""

from collections.abc import Sequence

from goqueue.broker.broker import Broker
from goqueue.broker.config import BrokerConfig
from goqueue.storage.file import Disk
from goqueue.testing import ManualClock, MemoryDisk
from goqueue.testing.inode import Keep
from goqueue.tracing.config import TraceConfig
from goqueue.tracing.export import Export, Sink
from goqueue.wire.trace_reports import Trace, TraceQuery
from tests.broker.brokers import QUICK, ROOT, ManualWorkers, Node


class ListSink:
    """Keeps what it is given, unless it was told to refuse it."""

    def __init__(self, name: str = "list", *, needs_trace_ids: bool = False) -> None:
        self.name = name
        self.needs_trace_ids = needs_trace_ids
        self.exports: list[Export] = []
        self.is_full = False

    def put(self, exports: Sequence[Export]) -> bool:
        if not self.is_full:
            self.exports += exports
        return not self.is_full


class TracedNode(Node):
    """A node with settings of its traces."""

    def __init__(
        self,
        disk: Disk,
        clock: ManualClock,
        *,
        config: BrokerConfig = QUICK,
        sinks: Sequence[Sink] = (),
        enabled: bool = True,
        ring: int = 10_000,
        topic: bool = False,
        ids_max: int = 100_000,
        outbox_max: int = 10_000,
    ) -> None:
        self.disk = disk
        self.clock = clock
        self.workers = ManualWorkers()
        traces = TraceConfig(enabled=enabled, ring=ring, topic=topic, ids_max=ids_max, outbox_max=outbox_max)
        self.broker = Broker.open(
            disk, ROOT, clock=clock, workers=self.workers, config=config, traces=traces, trace_sinks=sinks
        )

    def written(self) -> None:
        """Let what was recorded go out."""
        for _ in range(3):
            self.tick(0.1)
            self.workers.run_all()

    def restarted(self, *, keep: Keep = "everything", topic: bool = True) -> "TracedNode":
        assert isinstance(self.disk, MemoryDisk)
        return TracedNode(self.disk.crash(keep=keep), self.clock, topic=topic)

    def trace(self, offset: int = 0, *, topic: str = "orders", partition: int = 0) -> Trace:
        """The trace of the message that is there, with its spans."""
        (found,) = self.find(topic=topic, partition=partition, offset=offset)
        return self.broker.traces.get(found.trace_id)

    def find(self, **query: object) -> list[Trace]:
        return self.broker.traces.search(TraceQuery(**query))  # type: ignore[arg-type]

    def events(self, offset: int = 0, *, topic: str = "orders", partition: int = 0) -> list[str]:
        return events_of(self.trace(offset, topic=topic, partition=partition))


def events_of(trace: Trace) -> list[str]:
    return [span.event_type for span in trace.spans]
