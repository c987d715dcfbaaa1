"""The ring: the latest rows, and how many events they stand for."""

from goqueue.names import TopicPartition
from goqueue.tracing.ring import Ring
from goqueue.tracing.rows import PUBLISH, EventRow, EventType


def row(sequence: int, topic: str = "orders", *, kind: str = EventType.ACKED, count: int = 1) -> EventRow:
    return EventRow(sequence, kind, sequence, TopicPartition(topic, 0), 0, count, None, count)


def test_a_new_row_pushes_out_the_oldest_and_says_how_many_events_that_were() -> None:
    ring = Ring(2)

    dropped = [ring.add(row(1, kind=PUBLISH, count=10)), ring.add(row(2)), ring.add(row(3, count=5))]

    assert dropped == [0, 0, 30]  # a publish stands for three events per message
    assert [one.sequence for one in ring] == [2, 3]
    assert [one.sequence for one in reversed(ring)] == [3, 2]
    assert (len(ring), ring.event_count, ring.first_sequence) == (2, 6, 2)


def test_the_rows_of_a_deleted_topic_are_forgotten() -> None:
    ring = Ring(10)
    ring.add(row(1, "orders"))
    ring.add(row(2, "payments"))

    ring.forget("orders")

    assert [one.source.topic for one in ring] == ["payments"]
    assert ring.event_count == 1


def test_an_empty_ring_has_no_first_row() -> None:
    assert Ring(1).first_sequence is None
