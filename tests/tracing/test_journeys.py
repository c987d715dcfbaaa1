"""How a message stands is told by its last moments, group by group, and by the places it was not moved away from."""

import pytest

from goqueue.tracing.context import TraceContext
from goqueue.tracing.journeys import journey, parent_span_id, span_id
from goqueue.tracing.rows import EventType, MessageLocation, Moment

TRACE = "1" * 32
HERE = MessageLocation("orders", 0, 5)
LETTER = MessageLocation("orders.dlq", 0, 1)
BACK = MessageLocation("orders", 0, 9)


def moments(*what: str, place: MessageLocation = HERE, start: int = 0) -> list[Moment]:
    """From words like `consume.acked billing`."""
    made = []
    for number, words in enumerate(what, start):
        event_type, _, group = words.partition(" ")
        made.append(Moment(number, number, 0, event_type, place, group))
    return made


@pytest.mark.parametrize(
    ("what", "status"),
    [
        (["publish.received"], "in_progress"),
        (["publish.received", "consume.fetched a"], "in_progress"),
        (["publish.received", "consume.fetched a", "consume.acked a"], "completed"),
        (["publish.received", "consume.fetched a", "consume.fetched b", "consume.acked a"], "in_progress"),
        (
            ["publish.received", "consume.fetched a", "consume.acked a", "consume.fetched b", "consume.acked b"],
            "completed",
        ),
        (["publish.received", "consume.fetched a", "consume.nacked a"], "retrying"),
        (["publish.received", "consume.fetched a", "visibility.timeout a"], "retrying"),
        (["publish.received", "consume.fetched a", "consume.nacked a", "consume.fetched a"], "in_progress"),
        (["publish.received", "consume.fetched a", "visibility.extended a"], "in_progress"),
        (["publish.received", "consume.fetched a", "consume.rejected a"], "failed"),
        (["publish.received", "consume.fetched a", "consume.nacked a", "dlq.routed a"], "failed"),
        (["publish.received", "consume.acked a", "consume.rejected b"], "failed"),
        (["publish.received", "consume.nacked a", "consume.rejected b"], "failed"),
        (["publish.received", "delay.scheduled"], "delayed"),
        (["publish.received", "delay.scheduled", "delay.ready"], "in_progress"),
        (["publish.received", "delay.scheduled", "delay.cancelled"], "completed"),
        (["publish.received", "delay.scheduled", "delay.expired"], "expired"),
        (["publish.received", "delay.scheduled", "delay.ready", "consume.fetched a", "consume.acked a"], "completed"),
        (["publish.received", "delay.expired a"], "expired"),
        (["publish.received", "delay.expired a", "consume.fetched b", "consume.acked b"], "expired"),
        (["consume.acked a"], "completed"),
    ],
)
def test_the_status_of_a_message(what: list[str], status: str) -> None:
    assert journey(TRACE, moments(*what)).status == status


def dead() -> list[Moment]:
    where = {"dlq_topic": "orders.dlq", "dlq_partition": "0", "dlq_offset": "1"}
    routed = Moment(9, 9, 0, EventType.ROUTED, HERE, "a", attributes=where)
    letter = Moment(8, 8, 0, EventType.RECEIVED, LETTER, attributes={"copied_from": str(HERE)})
    return [*moments("publish.received", "consume.fetched a", "consume.rejected a"), letter, routed]


def test_a_letter_that_is_read_leaves_its_message_dead() -> None:
    assert journey(TRACE, dead()).status == "failed"
    assert journey(TRACE, [*dead(), *moments("consume.acked b", place=LETTER, start=20)]).status == "failed"


def test_a_letter_that_was_put_back_is_as_the_message_is_there() -> None:
    back = Moment(20, 20, 0, EventType.RECEIVED, BACK, attributes={"copied_from": str(LETTER)})

    assert journey(TRACE, [*dead(), back]).status == "in_progress"
    acked = moments("consume.fetched a", "consume.acked a", place=BACK, start=21)
    assert journey(TRACE, [*dead(), back, *acked]).status == "completed"


def test_a_letter_of_another_group_does_not_hold_up_what_was_put_back() -> None:
    where = {"dlq_topic": "orders.dlq", "dlq_partition": "0", "dlq_offset": "2"}
    other = Moment(10, 10, 0, EventType.ROUTED, HERE, "b", attributes=where)
    letter = Moment(
        9, 9, 1, EventType.RECEIVED, MessageLocation("orders.dlq", 0, 2), attributes={"copied_from": str(HERE)}
    )
    back = Moment(20, 20, 0, EventType.RECEIVED, BACK, attributes={"copied_from": str(LETTER)})
    acked = moments("consume.fetched a", "consume.acked a", place=BACK, start=21)

    assert journey(TRACE, [*dead(), letter, other, back, *acked]).status == "completed"


def test_origins_that_go_round_in_a_circle_end() -> None:
    one = Moment(1, 1, 0, EventType.RECEIVED, HERE, attributes={"copied_from": str(BACK)})
    other = Moment(2, 2, 0, EventType.RECEIVED, BACK, attributes={"copied_from": str(HERE)})

    assert journey(TRACE, [one, other]).status == "in_progress"


def test_moments_are_in_the_order_of_time_then_of_their_numbers() -> None:
    late, early = Moment(5, 2, 0, "b", HERE), Moment(5, 1, 2, "a2", HERE)
    first, second = Moment(5, 1, 0, "a0", HERE), Moment(1, 9, 0, "z", BACK)

    found = journey(TRACE, [late, early, first, second])

    assert [moment.event_type for moment in found.moments] == ["z", "a0", "a2", "b"]
    assert (found.start, found.start_ns, found.end_ns) == (BACK, 1, 5)


def test_spans_hang_below_the_publish_and_that_below_whoever_published() -> None:
    received, fetched = moments("publish.received", "consume.fetched a")
    copy = Moment(3, 3, 0, EventType.RECEIVED, BACK, attributes={"copied_from": str(HERE)})
    context = TraceContext(TRACE, "b" * 16, is_sampled=True)

    assert parent_span_id(TRACE, received, context) == "b" * 16
    assert parent_span_id(TRACE, received, None) == ""
    assert parent_span_id(TRACE, fetched, context) == span_id(TRACE, received)
    assert parent_span_id(TRACE, copy, context) == span_id(TRACE, received)
    assert len({span_id(TRACE, one) for one in (received, fetched, copy)}) == 3
