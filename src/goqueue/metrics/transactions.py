"""The series about transactions, fed by the events of the coordinator."""

from collections.abc import Callable
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from goqueue import events
from goqueue.clock import SECOND
from goqueue.metrics.delivery import LATENCY

REASONS = ("client", "timeout", "fenced", "admin", "marker", "replaced", "restart", "lost")


class TransactionMetrics:
    """Fed by the events of the broker."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.started = Counter("goqueue_broker_transactions_started", "Transactions begun", registry=registry)
        self.committed = Counter("goqueue_broker_transactions_committed", "Transactions committed", registry=registry)
        self.aborted = Counter(
            "goqueue_broker_transactions_aborted", "Transactions aborted", ["reason"], registry=registry
        )
        self.open = Gauge("goqueue_broker_transactions_open", "Open transactions", registry=registry)
        self.latency = Histogram(
            "goqueue_broker_transaction_latency_seconds",
            "Time from begin to the end of the commit",
            buckets=LATENCY,
            registry=registry,
        )
        for reason in REASONS:
            self.aborted.labels(reason)
        self.handlers: dict[type[events.Event], Callable[[Any], None]] = dict.fromkeys(
            (events.TransactionStarted, events.CommitCompleted, events.AbortCompleted), self._note
        )

    def _note(self, event: events.TransactionEvent) -> None:
        self.open.set(event.open_count)
        match event:
            case events.TransactionStarted():
                self.started.inc()
            case events.CommitCompleted(duration_ns=duration_ns):
                self.committed.inc()
                self.latency.observe(duration_ns / SECOND)
            case events.AbortCompleted(reason=reason):
                self.aborted.labels(reason).inc()
            case _:
                pass
