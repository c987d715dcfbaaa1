"""Background settlements: noted by one thread, taken by another, those of one kind together."""

from goqueue.client.membership import TOGETHER_MAX, Background
from goqueue.client.received import Message
from goqueue.names import TopicPartition
from goqueue.record import kernel
from goqueue.record.message import decode_messages
from goqueue.wire.reports import Settlement


def some(count: int) -> list[Message]:
    records = kernel.encode([b"v"] * count)
    return list(decode_messages(records, TopicPartition("t", 0), flags=0, message_type=Message, verify=False))  # type: ignore[arg-type]


def test_only_the_first_note_has_to_start_a_flush() -> None:
    background = Background()

    assert background.note(some(1), Settlement("ack"))
    assert not background.note(some(1), Settlement("nack"))
    background.take()
    assert background.note(some(1), Settlement("ack"))


def test_settlements_of_one_kind_share_a_request() -> None:
    background = Background()
    background.note(some(2), Settlement("ack"))
    background.note(some(1), Settlement("nack", 5, "later"))
    background.note(some(3), Settlement("ack"))

    taken = [(settlement.action, settlement.delay_ns, len(together)) for settlement, together in background.take()]

    assert taken == [("ack", None, 5), ("nack", 5, 1)]
    assert len(background) == 0


def test_more_than_fit_a_request_are_split() -> None:
    background = Background()
    background.note(some(1) * (TOGETHER_MAX + 1), Settlement("ack"))

    assert [len(together) for _, together in background.take()] == [TOGETHER_MAX, 1]
