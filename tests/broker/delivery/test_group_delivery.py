"""Deliveries to one group: leases, lanes, and times to live."""

from collections import Counter

import pytest

from goqueue.clock import SECOND
from goqueue.record import kernel
from goqueue.record.header import Priority
from goqueue.service.new_message import NewMessage
from goqueue.testing import ManualClock
from goqueue.wire import reports
from tests.broker.brokers import Node
from tests.broker.consumers import Consumer, floor, offsets, outcomes, restarted

UNKNOWN, EXPIRED, MALFORMED = "RECEIPT_HANDLE_UNKNOWN", "RECEIPT_HANDLE_EXPIRED", "RECEIPT_HANDLE_MALFORMED"


def numbered(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


# --- leases ------------------------------------------------------------------------------------


def test_messages_are_delivered_in_order_and_once(node: Node) -> None:
    node.create()
    node.publish(*numbered(10))
    member = Consumer(node)

    first, second, third = member.poll(4), member.poll(100), member.poll(100)

    assert [message.value for message in first + second] == numbered(10)
    assert third == []
    assert all(message.count == 1 for message in first + second)


def test_a_lease_that_runs_out_brings_the_message_back_after_the_backoff(node: Node, clock: ManualClock) -> None:
    node.create(visibility_timeout="5s", backoff_initial="2s")
    node.publish(b"a")
    member = Consumer(node)
    (message,) = member.poll()
    assert message.deadline_ns == clock.wall_ns() + 5 * SECOND

    node.pass_time(5)
    late = member.ack([message])
    node.pass_time(1.9)
    early = member.poll()
    node.pass_time(0.2)

    assert outcomes(late) == [EXPIRED]
    assert early == []
    assert [again.count for again in member.poll()] == [2]


def test_an_ack_at_the_very_deadline_is_too_late_even_if_nobody_noticed_yet(node: Node, clock: ManualClock) -> None:
    node.create(visibility_timeout="5s")
    node.publish(b"a")
    member = Consumer(node)
    (message,) = member.poll()

    clock.advance(5)

    assert outcomes(member.ack([message])) == [EXPIRED]
    assert floor(node) == 0


def test_a_poll_may_ask_for_a_lease_of_its_own_length(node: Node, clock: ManualClock) -> None:
    node.create()
    node.publish(b"a", b"b")
    member = Consumer(node, visibility_timeout_ms=7_000)

    own, asked = member.poll(1), member.poll(1, visibility_timeout_ms=3_000)

    assert own[0].deadline_ns - clock.wall_ns() == 7 * SECOND
    assert asked[0].deadline_ns - clock.wall_ns() == 3 * SECOND


def test_an_extension_counts_from_now_on_and_only_for_its_message(node: Node, clock: ManualClock) -> None:
    node.create(visibility_timeout="10s", backoff_initial="1ms")
    node.publish(b"a", b"b")
    member = Consumer(node, session_timeout_ms=300_000)
    kept, left = member.poll()
    clock.advance(8)

    (extended,) = member.settle("extend", [kept], delay=20)
    node.pass_time(19.9)

    assert isinstance(extended, reports.SettledMessage)
    assert extended.at_ns == kept.deadline_ns - 10 * SECOND + 28 * SECOND
    assert offsets(member.poll()) == [left.offset]
    assert outcomes(member.ack([kept])) == ["ack"]


def test_many_extended_leases_all_end_in_time(node: Node, clock: ManualClock) -> None:
    node.create(visibility_timeout="30s", backoff_initial="0s", max_in_flight=100_000)
    node.publish(*numbered(3_000))
    member = Consumer(node, session_timeout_ms=300_000)
    messages = [message for _ in range(1_500) for message in member.poll(2)]
    for index in range(0, 3_000, 2):
        member.settle("extend", [messages[index]], delay=60)
    member.ack([messages[index] for index in range(1, 3_000, 4)][:700])

    node.pass_time(61, step=1)
    again = [offset for _ in range(4) for offset in offsets(member.poll(1_000))]

    assert len(again) == 3_000 - 700


def test_a_released_message_is_ready_at_once_and_was_never_delivered(node: Node) -> None:
    node.create()
    node.publish(b"a")
    member = Consumer(node)

    assert outcomes(member.settle("release", member.poll())) == ["released"]

    assert [message.count for message in member.poll()] == [1]


def test_a_nack_with_a_delay_of_its_own_waits_that_long(node: Node, clock: ManualClock) -> None:
    node.create()
    node.publish(b"a", b"b")
    member = Consumer(node)
    first, second = member.poll()

    (never,) = member.settle("nack", [first], delay=0)
    (later,) = member.settle("nack", [second], delay=7)

    assert isinstance(never, reports.SettledMessage)
    assert isinstance(later, reports.SettledMessage)
    assert (later.at_ns - clock.wall_ns(), later.delivery_count) == (7 * SECOND, 2)
    assert offsets(member.poll()) == [0]
    node.pass_time(7)
    assert offsets(member.poll()) == [1]


def test_a_member_that_leaves_after_a_kill_gives_back_what_it_had(node: Node) -> None:
    node.create()
    node.publish(*numbered(3))
    member = Consumer(node)
    member.poll()

    again = restarted(node)
    member.moved_to(again).leave()

    assert offsets(Consumer(again).poll()) == [0, 1, 2]


# --- lanes -------------------------------------------------------------------------------------


def in_all_lanes(node: Node, count: int, value: bytes = b"v") -> None:
    for priority in Priority:
        records = kernel.encode([value] * count, priorities=[priority] * count)
        node.done(node.broker.messages.publish_records("orders", 0, records))


def shares(node: Node, member: Consumer, size: int, total: int, **limits: int) -> list[float]:
    """How many percent each lane got of so many deliveries."""
    counts: Counter[int] = Counter()
    while counts.total() < total:
        messages = member.poll(size, **limits)
        assert messages
        counts.update(message.offset // 4_000 for message in messages)
        member.ack(messages)
    return [100 * counts[lane] / counts.total() for lane in range(5)]


@pytest.mark.parametrize("size", [7, 100, 500])
def test_lanes_that_are_full_keep_their_shares(node: Node, size: int) -> None:
    node.create()
    in_all_lanes(node, 4_000)

    found = shares(node, Consumer(node), size, 6_000)

    assert found == pytest.approx([50, 25, 15, 7, 3], abs=2)


def test_lanes_keep_their_shares_where_only_some_messages_fit_into_an_answer(node: Node) -> None:
    node.create()
    in_all_lanes(node, 4_000, b"v" * 500)

    found = shares(node, Consumer(node), 500, 4_000, max_bytes=30_000)

    assert found == pytest.approx([50, 25, 15, 7, 3], abs=2)


# --- time to live ------------------------------------------------------------------------------


def test_messages_that_nobody_got_in_time_are_dropped(node: Node, clock: ManualClock) -> None:
    node.create(ttl="10s")
    node.publish(b"old")
    clock.advance(11)
    node.publish(b"new")
    member = Consumer(node)

    messages = member.poll()
    member.ack(messages)

    assert [message.value for message in messages] == [b"new"]
    assert floor(node) == 2
    assert [one.offset for one in restarted(node).broker.groups.positions("workers")] == [2]


def test_the_time_that_a_message_names_counts_and_not_that_of_its_topic(node: Node, clock: ManualClock) -> None:
    node.create(ttl="10s")
    now_ns = clock.wall_ns()
    node.messages(
        NewMessage(b"long", expires_at_ns=now_ns + 60 * SECOND), NewMessage(b"short", expires_at_ns=now_ns + 5 * SECOND)
    )

    clock.advance(6)
    first = Consumer(node, "early").poll()
    clock.advance(20)

    assert [message.value for message in first] == [b"long"]
    assert [message.value for message in Consumer(node, "late").poll()] == [b"long"]
    clock.advance(40)
    assert Consumer(node, "too late").poll() == []


def test_or_they_are_dead_letters_where_the_topic_says_so(node: Node, clock: ManualClock) -> None:
    node.create(on_expire="dead_letter")
    node.messages(NewMessage(b"short", expires_at_ns=clock.wall_ns() + 5 * SECOND), NewMessage(b"long"))
    member = Consumer(node)

    node.pass_time(6)
    messages = member.poll()
    node.workers.run_all()

    assert [message.value for message in messages] == [b"long"]
    assert node.values("orders.dlq") == [b"short"]
    member.ack(messages)
    assert floor(node) == 2


def test_a_message_that_is_being_worked_on_does_not_expire_but_its_retry_does(node: Node, clock: ManualClock) -> None:
    node.create(ttl="10s", visibility_timeout="60s")
    node.publish(b"a", b"b")
    member = Consumer(node, session_timeout_ms=300_000)
    first, second = member.poll()
    node.pass_time(11, step=1)

    assert outcomes(member.ack([first])) == ["ack"]
    assert outcomes(member.settle("nack", [second])) == ["requeued"]
    node.pass_time(2)
    assert member.poll() == []
    assert floor(node) == 2


def test_an_expired_retry_is_not_delivered_after_a_restart(node: Node, clock: ManualClock) -> None:
    node.create(ttl="10s")
    node.publish(b"a", b"b")
    member = Consumer(node, session_timeout_ms=300_000)
    member.settle("nack", member.poll(1), delay=5)
    node.pass_time(11, step=1)
    assert member.poll() == []

    again = restarted(node)

    assert Consumer(again).poll() == []
    assert floor(again) == 2
