"""The series about transactions follow the events of the coordinator."""

from goqueue import events
from goqueue.metrics.registry import Metrics

PREFIX = "goqueue_broker_transaction"


def values(metrics: Metrics) -> dict[str, float]:
    lines = (line.rpartition(" ") for line in metrics.render(False)[0].decode().splitlines())
    found = {name.removeprefix(PREFIX): float(value) for name, _, value in lines if name.startswith(PREFIX)}
    return {name: value for name, value in found.items() if value and "bucket" not in name}


def test_nothing_has_happened_in_the_beginning() -> None:
    assert values(Metrics()) == {}


def test_begins_commits_and_aborts_are_counted_and_commits_are_timed() -> None:
    metrics = Metrics()

    metrics.observe(events.TransactionStarted(1))
    metrics.observe(events.TransactionStarted(2))
    metrics.observe(events.CommitCompleted(1, 2 * 10**9))
    metrics.observe(events.AbortCompleted(0, "timeout"))
    metrics.observe(events.TransactionStarted(1))

    assert values(metrics) == {
        "s_started_total": 3,
        "s_committed_total": 1,
        's_aborted_total{reason="timeout"}': 1,
        "s_open": 1,
        "_latency_seconds_count": 1,
        "_latency_seconds_sum": 2,
    }
