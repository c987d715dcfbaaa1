"""The series of a node: each is fed by an event, there from the start of its topic on, and gone with it."""

from goqueue import events
from goqueue.metrics.registry import Metrics, topic_of
from goqueue.names import VERSION

LOG = "/data/topics/orders/0/log"


def created() -> Metrics:
    metrics = Metrics()
    metrics.observe(events.TopicCreated("orders", 3, internal=False))
    return metrics


def value(metrics: Metrics, series: str) -> float | None:
    text = metrics.render(False)[0].decode()
    found = [line.rpartition(" ")[2] for line in text.splitlines() if line.startswith(f"goqueue_{series} ")]
    return float(found[0]) if found else None


def test_a_topic_has_its_series_at_zero_from_its_creation_on() -> None:
    metrics = created()

    assert value(metrics, 'broker_messages_published_total{topic="orders"}') == 0
    assert value(metrics, 'broker_messages_consumed_total{consumer_group="",topic="orders"}') == 0
    assert value(metrics, 'broker_topic_partitions{topic="orders"}') == 3
    assert value(metrics, "broker_topic_count") == 1


def test_batches_are_counted_by_their_messages_and_bytes() -> None:
    metrics = created()

    metrics.observe(events.BatchPublished("orders", 0, 100, 13_400))
    metrics.observe(events.BatchPublished("orders", 1, 1, 134))
    metrics.observe(events.Consumed("orders", 0, "", 7, 900))
    metrics.observe(events.DuplicateFound("orders", 0))

    assert value(metrics, 'broker_messages_published_total{topic="orders"}') == 101
    assert value(metrics, 'broker_bytes_published_total{topic="orders"}') == 13_534
    assert value(metrics, 'broker_messages_consumed_total{consumer_group="",topic="orders"}') == 7
    assert value(metrics, 'broker_duplicates_total{topic="orders"}') == 1


def test_what_happens_to_a_log_is_counted_for_its_topic() -> None:
    metrics = created()

    metrics.observe(events.Flushed(log=LOG, bytes=2_000, durable_offset=10))
    metrics.observe(events.SegmentRolled(log=LOG, base_offset=10))
    metrics.observe(events.SegmentsDeleted(log=LOG, count=4, bytes=1))
    metrics.observe(
        events.DamageFound(log=LOG, path="x", position=0, bytes=1, first_offset=0, next_offset=1, reason="crc")
    )

    assert value(metrics, 'storage_fsync_total{topic="orders"}') == 1
    assert value(metrics, 'storage_fsync_batch_bytes_bucket{le="16384.0",topic="orders"}') == 1
    assert value(metrics, 'storage_segments_created_total{topic="orders"}') == 1
    assert value(metrics, 'storage_segments_deleted_total{topic="orders"}') == 4
    assert value(metrics, 'storage_corrupt_records_total{topic="orders"}') == 1


def test_the_series_of_a_topic_go_with_it() -> None:
    metrics = created()
    metrics.observe(events.BatchPublished("orders", 0, 100, 13_400))

    metrics.observe(events.TopicDeleted("orders", internal=False))

    assert b"orders" not in metrics.render(False)[0]
    assert value(metrics, "broker_topic_count") == 0


def test_an_internal_topic_does_not_count_as_a_topic() -> None:
    metrics = created()

    metrics.observe(events.TopicCreated("__groups", 3, internal=True))

    assert value(metrics, "broker_topic_count") == 1


def test_the_build_and_the_kernel_are_named() -> None:
    text = Metrics().render(False)[0].decode()

    assert f'version="{VERSION}"' in text
    assert "goqueue_kernel_info{implementation=" in text


def test_connections_are_asked_for_when_somebody_looks() -> None:
    metrics, open_now = Metrics(), [1, 2]
    metrics.watch_connections({"native": lambda: len(open_now)})
    assert value(metrics, 'broker_active_connections{door="native"}') == 2

    open_now.append(3)

    assert value(metrics, 'broker_active_connections{door="native"}') == 3


def test_openmetrics_is_rendered_if_asked_for() -> None:
    text, content_type = Metrics().render(True)

    assert content_type.startswith("application/openmetrics-text")
    assert text.endswith(b"# EOF\n")


def test_a_topic_is_known_by_the_directory_of_its_log() -> None:
    assert topic_of("/var/lib/goqueue/topics/my.topic/12/ledger") == "my.topic"
