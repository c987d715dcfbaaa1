"""From rows to messages and back."""

from pyroaring import BitMap64

from goqueue.names import TopicPartition
from goqueue.tracing.lookup import STEP, Stamps, candidates, grouped, rows_of
from goqueue.tracing.rows import PUBLISH, EventRow, EventType, MessageLocation

HERE = TopicPartition("orders", 0)
THERE = TopicPartition("orders", 1)


def row(
    first: int, end: int, *, source: TopicPartition = HERE, kind: str = EventType.ACKED, group: str = ""
) -> EventRow:
    return EventRow(first, kind, 5, source, first, end, None, end - first, group)


def found(rows: list[EventRow], **wanted: object) -> list[MessageLocation]:
    asked = {"topic": None, "partition": None, "group": None, "offset": None, "among": None, **wanted}
    return list(candidates(rows, **asked))  # type: ignore[arg-type]


def test_each_message_comes_once_those_of_the_latest_rows_first() -> None:
    rows = [row(0, 3), row(1, 2, source=THERE), row(2, 5), row(0, 1)]

    assert [(place.partition, place.offset) for place in found(rows)] == [
        (0, 0),
        (0, 4),
        (0, 3),
        (0, 2),
        (1, 1),
        (0, 1),
    ]


def test_a_large_row_gives_all_of_its_messages() -> None:
    assert [place.offset for place in found([row(0, 3 * STEP + 7)])] == list(reversed(range(3 * STEP + 7)))


def test_only_what_is_asked_for_comes() -> None:
    rows = [row(0, 3, group="a"), row(0, 3, source=THERE, group="b"), EventRow(9, EventType.ASSIGNED, 5, HERE)]

    assert {place.partition for place in found(rows, partition=1)} == {1}
    assert {place.partition for place in found(rows, group="a")} == {0}
    assert found(rows, topic="other") == []
    assert [place.partition for place in found(rows, offset=2)] == [1, 0]
    assert found(rows, offset=3) == []
    assert found(rows, among=lambda source, offsets: offsets & BitMap64([1]) if source == HERE else BitMap64()) == [
        MessageLocation("orders", 0, 1)
    ]


def test_a_message_has_the_rows_that_speak_of_it_in_their_order() -> None:
    scattered = EventRow(7, EventType.NACKED, 5, HERE, 0, 10, BitMap64([0, 9]), 2)
    rows = [row(0, 5), row(5, 10), row(0, 10, source=THERE), scattered]

    of = rows_of(
        grouped(rows),
        [
            MessageLocation("orders", 0, 0),
            MessageLocation("orders", 0, 5),
            MessageLocation("orders", 0, 9),
            MessageLocation("x", 0, 0),
        ],
    )

    assert of == {
        MessageLocation("orders", 0, 0): [rows[0], scattered],
        MessageLocation("orders", 0, 5): [rows[1]],
        MessageLocation("orders", 0, 9): [rows[1], scattered],
    }


def test_times_are_known_where_a_publish_is() -> None:
    publishes = [
        row(10, 20, kind=PUBLISH),
        row(20, 30, kind=PUBLISH),
        row(40, 50, kind=PUBLISH),
        row(50, 60, kind=PUBLISH),
    ]
    for number, one in enumerate(publishes):
        one.timestamp_ns = number
    publishes[3].is_explicit = True
    stamps = Stamps([*publishes, row(0, 100)])

    times = [stamps.of(HERE, offset) for offset in (9, 10, 19, 20, 30, 49, 50)]
    assert times == [None, 0, 0, 1, None, 2, None]
    assert stamps.of(THERE, 15) is None
