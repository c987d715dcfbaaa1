from goqueue import events
from goqueue.metrics.registry import Metrics


def rendered(metrics: Metrics) -> dict[str, float]:
    lines = metrics.render(False)[0].decode().splitlines()
    return {
        name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines if line.startswith("goqueue_sto"))
    }


def test_what_the_disk_refuses_is_counted_by_topic() -> None:
    metrics = Metrics()
    metrics.observe(events.TopicCreated("orders", 2, internal=False))
    metrics.storage.watch(lambda: (7, 10))

    before = rendered(metrics)
    metrics.observe(events.WriteRefused(log="/data/topics/orders/1/log", reason="No space left on device"))
    metrics.observe(events.LogFailed(log="/data/topics/orders/0/ledger", operation="sync", reason="I/O error"))
    after = rendered(metrics)

    failed = 'goqueue_storage_log_failed{partition="%d",topic="orders"}'
    assert [before[failed % number] for number in (0, 1)] == [0, 0]
    assert [after[failed % number] for number in (0, 1)] == [1, 0]
    assert before['goqueue_storage_write_errors_total{topic="orders"}'] == 0
    assert after['goqueue_storage_write_errors_total{topic="orders"}'] == 1
    assert after['goqueue_storage_fsync_errors_total{topic="orders"}'] == 1
    assert (after["goqueue_storage_disk_free_bytes"], after["goqueue_storage_disk_total_bytes"]) == (7, 10)


def test_the_series_of_a_topic_go_with_it() -> None:
    metrics = Metrics()
    metrics.observe(events.TopicCreated("orders", 2, internal=False))

    metrics.observe(events.TopicDeleted("orders", internal=False))

    assert not [name for name in rendered(metrics) if "orders" in name]
