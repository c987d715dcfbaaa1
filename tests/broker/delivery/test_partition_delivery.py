"""What all groups of a partition share: gaps, control records, and what retention removes."""

from goqueue.service.new_message import NewMessage
from goqueue.testing import ManualClock
from tests.broker.brokers import Node
from tests.broker.consumers import Consumer, floor, offsets, outcomes, restarted

UNKNOWN, EXPIRED, MALFORMED = "RECEIPT_HANDLE_UNKNOWN", "RECEIPT_HANDLE_EXPIRED", "RECEIPT_HANDLE_MALFORMED"


# --- what is not there -------------------------------------------------------------------------


def test_a_partition_without_messages_gives_nothing(node: Node) -> None:
    node.create(partitions=3)
    member = Consumer(node)

    assert member.poll() == []
    assert [(one.offset, one.lag) for one in node.broker.groups.positions("workers")] == [(0, 0)] * 3


def test_control_records_are_passed_over_and_done(node: Node) -> None:
    node.create()
    node.control()
    node.publish(b"a")
    node.control(2)
    node.publish(b"b")
    member = Consumer(node)

    messages = member.poll()
    member.ack(messages[1:])
    again = restarted(node)
    member.moved_to(again).ack(messages[:1])

    assert offsets(messages) == [1, 4]
    assert member.moved_to(again).poll() == []
    assert floor(again) == 5


def test_holes_of_a_compacted_topic_do_not_hold_up_the_floor(node: Node, clock: ManualClock) -> None:
    node.create(cleanup="compact", segment_bytes=1_024, dirty_ratio=0.01)
    for round_ in range(8):
        node.messages(*(NewMessage(b"%d" % round_ * 30, key=b"%d" % number) for number in range(10)))
    early = Consumer(node, "early")
    late = Consumer(node, "late", session_timeout_ms=300_000)
    early_messages = early.poll(5)
    for _ in range(8):
        node.pass_time(30, step=10)
    assert node.read().record_count < 80

    late_messages = late.poll()
    assert len({message.key for message in late_messages}) == 10
    late.ack(late_messages)
    early = Consumer(node, "early", session_timeout_ms=300_000)
    for _ in range(8):
        early.ack(early.poll())
        node.pass_time(31, step=10)

    assert len(early_messages) == 5
    assert floor(node, "late") == floor(node, "early") == 80
    assert [(one.offset, one.lag) for one in restarted(node).broker.groups.positions("early")] == [(80, 0)]


def test_retention_takes_what_was_not_acknowledged_and_the_group_goes_on(node: Node, clock: ManualClock) -> None:
    node.create(segment_bytes=1_024, retention="60s")
    for _ in range(6):
        node.publish(*[b"x" * 100] * 10)
        clock.advance(1)
    member = Consumer(node, session_timeout_ms=300_000)
    messages = member.poll(25)
    clock.advance(70)
    node.publish(*[b"y" * 100] * 15)
    node.pass_time(60, step=10)
    start = node.leader().log.start_offset
    assert start >= 50

    late = member.ack(messages)
    rest = member.poll()
    member.ack(rest)

    assert set(outcomes(late)) == {UNKNOWN}
    assert offsets(rest) == list(range(start, 75))
    assert floor(node) == 75
    assert node.broker.groups.positions("workers")[0].lag == 0


def test_positions_can_be_asked_for_after_a_restart_when_retention_was_faster(node: Node, clock: ManualClock) -> None:
    node.create(segment_bytes=1_024, retention="60s")
    Consumer(node, session_timeout_ms=300_000)
    for _ in range(6):
        node.publish(*[b"x" * 100] * 10)
    clock.advance(100)
    leader = node.leader()
    leader.delivery = None  # nobody tells the cursors
    node.pass_time(30, step=10)
    assert leader.log.start_offset > 0

    again = restarted(node)

    (position,) = again.broker.groups.positions("workers")
    assert position.offset == leader.log.start_offset
