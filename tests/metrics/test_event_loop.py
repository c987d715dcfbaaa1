"""The series about the event loop: every lag is counted, and the worst of a minute is shown."""

from goqueue.clock import MS, SECOND
from goqueue.metrics.registry import Metrics
from tests.metrics.test_registry import value


def test_every_lag_is_counted() -> None:
    metrics = Metrics()

    for lag_ns in (0, MS // 2, 3 * SECOND):
        metrics.event_loop.observe_lag(lag_ns, 0)

    assert value(metrics, "eventloop_lag_seconds_count") == 3
    assert value(metrics, 'eventloop_lag_seconds_bucket{le="0.001"}') == 2
    assert value(metrics, 'eventloop_lag_seconds_bucket{le="2.0"}') == 2
    assert value(metrics, 'eventloop_lag_seconds_bucket{le="5.0"}') == 3


def test_the_worst_lag_is_that_of_the_last_minute() -> None:
    metrics = Metrics()
    metrics.event_loop.watch(lambda: 7)
    assert value(metrics, "eventloop_lag_max_seconds") == 0

    worst = []
    for second, lag_ms in ((0, 5), (10, 300), (20, 40), (69, 1), (70, 1), (80, 1), (200, 2)):
        metrics.event_loop.observe_lag(lag_ms * MS, second * SECOND)
        worst.append(value(metrics, "eventloop_lag_max_seconds"))

    assert worst == [0.005, 0.3, 0.3, 0.3, 0.04, 0.001, 0.002]


def test_tasks_are_counted_when_they_are_scraped() -> None:
    metrics = Metrics()
    tasks = [1, 2, 3]
    metrics.event_loop.watch(lambda: len(tasks))
    assert value(metrics, "eventloop_tasks") == 3

    tasks.pop()

    assert value(metrics, "eventloop_tasks") == 2
