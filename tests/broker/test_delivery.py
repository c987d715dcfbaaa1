"""Leases, receipts, lanes, holes and time to live, as a member of a group sees them."""

from collections import Counter
from dataclasses import replace
from errno import EIO, ENOSPC
from itertools import product

import pytest

from goqueue.clock import SECOND
from goqueue.delivery.receipts import Receipt
from goqueue.errors import GoQueueError, ReceiptUnknown, StorageError, StorageFailed, StorageFull
from goqueue.record import kernel
from goqueue.record.header import Priority
from goqueue.service.new_message import NewMessage
from goqueue.testing import FaultyDisk, ManualClock, MemoryDisk
from goqueue.wire import reports
from tests.broker.brokers import Node
from tests.broker.consumers import Consumer, floor, got, offsets, outcomes, restarted
from tests.broker.transactional import Owner

LEDGER = "orders/0/ledger/00000000000000000000.log"
UNKNOWN, EXPIRED, MALFORMED = "RECEIPT_HANDLE_UNKNOWN", "RECEIPT_HANDLE_EXPIRED", "RECEIPT_HANDLE_MALFORMED"


@pytest.fixture
def faulty(disk: MemoryDisk) -> FaultyDisk:
    return FaultyDisk(disk, seed=1)


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

    assert isinstance(extended, reports.Settled)
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

    assert isinstance(never, reports.Settled)
    assert isinstance(later, reports.Settled)
    assert (later.at_ns - clock.wall_ns(), later.delivery_count) == (7 * SECOND, 2)
    assert offsets(member.poll()) == [0]
    node.pass_time(7)
    assert offsets(member.poll()) == [1]


def test_no_more_than_max_in_flight_is_out_and_the_poll_says_why(node: Node) -> None:
    node.create(max_in_flight=5)
    node.publish(*numbered(9))
    member = Consumer(node)
    messages = member.poll()

    full = member.polled()
    member.ack(messages[:2])

    assert len(messages) == 5
    assert (got(full), full.polled.reason, full.polled.in_flight) == ([], "max_in_flight", 5)
    assert offsets(member.poll()) == [5, 6]


def test_after_a_kill_a_member_has_no_more_than_max_in_flight(node: Node) -> None:
    node.create(max_in_flight=5)
    node.publish(*numbered(9))
    member = Consumer(node)
    member.poll()

    again = restarted(node)

    assert member.moved_to(again).polled().polled.reason == "max_in_flight"


def test_a_member_that_leaves_after_a_kill_gives_back_what_it_had(node: Node) -> None:
    node.create()
    node.publish(*numbered(3))
    member = Consumer(node)
    member.poll()

    again = restarted(node)
    member.moved_to(again).leave()

    assert offsets(Consumer(again).poll()) == [0, 1, 2]


def test_a_poll_that_waits_gets_what_is_nacked_acked_or_published_meanwhile(node: Node) -> None:
    node.create(max_in_flight=1)
    node.publish(b"a", b"b")
    member = Consumer(node)
    (first,) = member.poll()

    waiting = member.wait(wait_ms=30_000)
    assert not waiting.is_done
    member.ack([first])
    node.workers.run_all()

    assert offsets(got(waiting.result())) == [1]


# --- receipts ----------------------------------------------------------------------------------


def test_a_receipt_is_good_once(node: Node) -> None:
    node.create()
    node.publish(b"a", b"b")
    member = Consumer(node)
    first, second = member.poll()

    results = member.ack([first, first, second])

    assert outcomes(results) == ["ack", UNKNOWN, "ack"]
    assert isinstance(results[1], ReceiptUnknown)
    assert results[1].facts()["reason"] == "settled"


def test_the_receipt_of_an_earlier_delivery_does_not_touch_a_later_one(node: Node) -> None:
    node.create(visibility_timeout="5s")
    node.publish(b"a")
    member = Consumer(node)
    (old,) = member.poll()
    node.pass_time(7)
    (new,) = member.poll()

    for action in ("ack", "nack", "reject", "extend", "release"):
        assert outcomes(member.settle(action, [old], delay=5)) == [EXPIRED]

    assert outcomes(member.ack([new])) == ["ack"]


def test_a_receipt_that_was_tampered_with_is_unknown(node: Node) -> None:
    node.create(partitions=2)
    node.publish(*numbered(4))
    node.publish(*numbered(4), partition=1)
    member, other = Consumer(node), Consumer(node, "others")
    first, second = member.poll(2)
    foreign = other.poll(1)[0]
    receipt = Receipt.parse(first.receipt)
    forged = receipt.nonce[:-1] + ("0" if receipt.nonce[-1] != "0" else "1")
    elsewhere = Receipt.parse(foreign.receipt).nonce

    for wrong in (
        receipt._replace(offset=3),
        receipt._replace(offset=1_000),
        receipt._replace(delivery_count=2),
        receipt._replace(delivery_count=0),
        receipt._replace(partition=1 - receipt.partition),
        receipt._replace(partition=7),
        receipt._replace(topic="nowhere"),
        receipt._replace(nonce=forged),
        receipt._replace(nonce=receipt.nonce[:12] + elsewhere[12:]),
        receipt._replace(nonce="0" * 44),
    ):
        for action in ("ack", "nack", "reject", "extend", "release"):
            assert outcomes(node.done(member.begin(action, [str(wrong)], delay=5))) == [UNKNOWN], (action, wrong)

    assert outcomes(member.ack([first, second])) == ["ack", "ack"]
    assert outcomes(other.ack([foreign])) == ["ack"]


@pytest.mark.parametrize(
    "text",
    ["", ":", "orders:0:0:1", "orders:0:0:1:xyz", "orders:x:0:1:" + "0" * 44, "orders:-1:0:1:" + "0" * 44,
     "orders:0:99999999999999999999:1:" + "0" * 44, "orders:0:0:1:" + "0" * 44 + ":", "orders:٣:0:1:" + "0" * 44],
)  # fmt: skip
def test_what_is_no_receipt_is_malformed(node: Node, text: str) -> None:
    node.create()
    member = Consumer(node)

    (result,) = node.done(member.begin("ack", [text]))

    assert not isinstance(result, reports.Settled)
    assert result.code.startswith("RECEIPT_HANDLE")
    assert result.code != UNKNOWN


def test_receipts_stay_good_after_the_member_lost_the_partition(node: Node) -> None:
    node.create(partitions=2)
    node.publish(*numbered(2))
    node.publish(*numbered(2), partition=1)
    one = Consumer(node)
    messages = one.poll()
    Consumer(node)

    assert outcomes(one.ack(messages)) == ["ack"] * 4


FATES = ("ack", "nack", "release", "reject", "hold", "extend", "expire")


@pytest.mark.parametrize("fates", list(product(FATES, repeat=3)), ids="-".join)
def test_why_a_receipt_is_not_good_does_not_depend_on_the_others_of_its_delivery(
    node: Node, fates: tuple[str, ...]
) -> None:
    node.create(visibility_timeout="10s", backoff_initial="30s", max_deliveries=5)
    node.publish(*numbered(4))
    member = Consumer(node, session_timeout_ms=300_000)
    messages = member.poll(3)
    owner = Owner(node, "billing", timeout_ms=300_000)
    owner.begin()
    for fate, message in zip(fates, messages, strict=True):
        if fate == "hold":
            owner.ack([message])
        elif fate != "expire":
            member.settle(fate, [message], delay=60)
    if "release" in fates:
        assert UNKNOWN in outcomes(member.ack([messages[fates.index("release")]]))
    node.pass_time(11, step=1)

    (nonce,) = {Receipt.parse(message.receipt).nonce for message in messages}
    raw = _raw(*range(4))
    refused = node.done(node.broker.groups.settle_batch("orders", 0, nonce, raw, reports.Settlement("extend", SECOND)))
    why = {one.offset: (one.code, one.facts.get("reason")) for one in refused.refused}
    settled = {"ack", "nack", "release", "reject", "hold"}
    for fate, message in zip(fates, messages, strict=True):
        (result,) = member.settle("extend", [message], delay=60)
        if fate == "extend":
            assert message.offset not in why
            assert isinstance(result, reports.Settled)
            continue
        expected = (UNKNOWN, "settled") if fate in settled else (EXPIRED, None)
        assert why[message.offset] == expected, fate
        assert isinstance(result, GoQueueError)
        assert (result.code, result.facts().get("reason")) == expected, fate
    forged = Receipt.parse(messages[0].receipt)._replace(offset=3)
    is_under_way = "extend" in fates
    assert outcomes(node.done(member.begin("ack", [str(forged)]))) == [UNKNOWN if is_under_way else EXPIRED]


@pytest.mark.parametrize("is_whole", [False, True])
def test_why_a_receipt_is_not_good_is_known_after_a_restart(node: Node, is_whole: bool) -> None:
    node.create(visibility_timeout="10s", backoff_initial="30s")
    node.publish(*numbered(4))
    member = Consumer(node, session_timeout_ms=300_000)
    late, long, done = member.poll(3)
    member.settle("extend", [long], delay=100)
    member.ack([done])
    node.pass_time(11, step=1)
    if is_whole:
        delivery = node.broker.delivery(node.leader())
        delivery.groups["workers"].stored.write_whole()

    member = member.moved_to(restarted(node))

    forged = str(Receipt.parse(late.receipt)._replace(offset=3))
    results = member.node.done(member.begin("ack", [late.receipt, done.receipt, forged, long.receipt]))
    assert outcomes(results) == [EXPIRED, UNKNOWN, UNKNOWN, "ack"]


def test_a_message_that_was_given_back_and_delivered_again_has_an_expired_receipt(node: Node) -> None:
    node.create()
    node.publish(b"a", b"b")
    member = Consumer(node)
    first, second = member.poll()
    member.settle("nack", [first], delay=0)
    node.pass_time(1)
    (again,) = member.poll()

    assert outcomes(member.ack([first])) == [EXPIRED]
    assert outcomes(member.ack([again, second])) == ["ack", "ack"]


# --- batches at once ---------------------------------------------------------------------------


def test_a_batch_is_settled_by_its_nonce(node: Node) -> None:
    node.create()
    node.publish(*numbered(6))
    member = Consumer(node)
    polled = member.polled()
    (batch,) = polled.polled.batches
    groups = node.broker.groups

    some = node.done(groups.settle_batch("orders", 0, batch.nonce, _raw(0, 2, 9), reports.Settlement("ack")))
    rest = node.done(groups.settle_batch("orders", 0, batch.nonce, b"", reports.Settlement("ack")))

    assert (some.settled, [(one.offset, one.code) for one in some.refused]) == (2, [(9, UNKNOWN)])
    assert (rest.settled, rest.refused, rest.committed_offset, rest.in_flight_count) == (4, [], 6, 0)


def _raw(*numbers: int) -> bytes:
    return b"".join(number.to_bytes(8, "little") for number in numbers)


# --- lanes -------------------------------------------------------------------------------------


def in_all_lanes(node: Node, count: int, value: bytes = b"v") -> None:
    for priority in Priority:
        records = kernel.encode([value] * count, priorities=[priority] * count)
        node.done(node.broker.publish_records("orders", 0, records))


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


# --- disks -------------------------------------------------------------------------------------


@pytest.mark.parametrize("action", ["ack", "nack", "extend", "release"])
def test_what_a_full_disk_refuses_has_changed_nothing(faulty: FaultyDisk, clock: ManualClock, action: str) -> None:
    node = Node(faulty, clock)
    node.create()
    node.publish(b"a", b"b")
    member = Consumer(node)
    messages = member.poll()
    faulty.fail_next("pwrite", ENOSPC, path_suffix=LEDGER)

    (refused,) = member.settle(action, messages[:1], delay=5)

    assert isinstance(refused, StorageFull)
    assert outcomes(member.settle(action, messages[:1], delay=5)) != [refused.code]
    assert outcomes(member.ack(messages[1:])) == ["ack"]
    state = _state(node)
    assert _state(Node(_memory(faulty).crash(keep="everything"), clock)) == state


def test_a_poll_that_a_full_disk_refuses_takes_nothing(faulty: FaultyDisk, clock: ManualClock) -> None:
    node = Node(faulty, clock)
    node.create()
    node.publish(b"a", b"b")
    member = Consumer(node)
    faulty.fail_next("pwrite", ENOSPC, path_suffix=LEDGER)

    with pytest.raises(StorageFull):
        member.poll()

    assert offsets(member.poll()) == [0, 1]


def test_a_full_disk_for_one_partition_does_not_keep_back_another(faulty: FaultyDisk, clock: ManualClock) -> None:
    node = Node(faulty, clock)
    node.create(partitions=2)
    node.publish(b"a")
    node.publish(b"b", partition=1)
    member = Consumer(node)
    faulty.fail_next("pwrite", ENOSPC, path_suffix="orders/1/ledger/00000000000000000000.log")

    first = member.poll()
    second = member.poll()

    assert sorted(message.value for message in first + second) == [b"a", b"b"]


@pytest.mark.parametrize("skip", range(4))
def test_a_disk_that_cannot_be_read_for_a_moment_loses_nothing(
    faulty: FaultyDisk, clock: ManualClock, skip: int
) -> None:
    node = Node(faulty, clock)
    node.create()
    node.publish(*numbered(5))
    member = Consumer(node)
    faulty.fail_next("pread", EIO, path_suffix="orders/0/log/00000000000000000000.log", skip=skip)

    seen: list[int] = []
    for _ in range(3):
        try:
            seen += offsets(member.poll())
        except StorageError:
            continue

    assert seen == [0, 1, 2, 3, 4]


def test_leases_end_and_members_leave_on_a_full_disk(faulty: FaultyDisk, clock: ManualClock) -> None:
    faulty = FaultyDisk(faulty.inner, seed=1, only=lambda path: path.endswith(LEDGER))
    node = Node(faulty, clock)
    node.create(visibility_timeout="5s")
    node.publish(*numbered(4))
    first, second = Consumer(node, mode="key-shared"), Consumer(node, mode="key-shared", session_timeout_ms=300_000)
    first.poll(2)
    second.poll(2)
    faulty.rates["no_space"] = 1.0

    node.pass_time(7)
    faulty.heal()

    again = second.poll()
    assert [(message.offset, message.count) for message in again] == [(0, 2), (1, 2), (2, 2), (3, 2)]
    assert outcomes(second.ack(again)) == ["ack"] * 4
    state = _state(node)
    assert _state(Node(_memory(faulty).crash(keep="everything"), clock)) == state


def test_an_ack_whose_flush_fails_is_refused_and_nothing_more_is_taken(faulty: FaultyDisk, clock: ManualClock) -> None:
    node = Node(faulty, clock)
    node.create()
    node.publish(b"a", b"b")
    member = Consumer(node)
    first, second = member.poll()
    faulty.fail_next("sync", EIO, path_suffix=LEDGER)

    (failed,) = member.ack([first])
    (refused,) = member.ack([second])

    assert isinstance(failed, StorageFailed)
    assert isinstance(refused, StorageFailed)
    node.pass_time(60, step=5)
    again = Node(_memory(faulty).crash(keep="nothing"), clock)
    assert offsets(Consumer(again).poll()) in ([0, 1], [1])


def test_what_is_delivered_with_a_flush_by_interval_may_be_lost_with_the_log_and_harms_nobody(
    disk: MemoryDisk, clock: ManualClock
) -> None:
    node = Node(disk, clock)
    node.create(flush="interval", flush_interval="1h")
    member = Consumer(node)
    node.publish(*numbered(6))
    messages = member.poll()
    member.ack(messages[:5])
    member.settle("nack", messages[5:], delay=3_600)
    node.leader().ledger.log.flush()

    again = restarted(node, keep="nothing")
    same = member.moved_to(again)
    again.publish(b"new", b"newer")

    assert [message.value for message in same.poll()] == [b"new", b"newer"]


def _memory(faulty: FaultyDisk) -> MemoryDisk:
    assert isinstance(faulty.inner, MemoryDisk)
    return faulty.inner


def _state(node: Node) -> list[object]:
    """What the group has done with the partition."""
    node.broker.groups.positions("workers")
    group_delivery = node.broker.delivery(node.leader()).groups["workers"]
    group_delivery.pass_time()
    group_delivery.feed(1_000)
    state = group_delivery.cursor.state()
    return [
        state.floor,
        state.acked,
        state.counts,
        [(delivery.id, delivery.member, delivery.parts) for delivery in state.deliveries],
        sorted((at_ns, sorted(part)) for at_ns, part in state.waiting),
        [sorted(lane) for lane in group_delivery.cursor.lanes.ready],
    ]


# --- the ledger --------------------------------------------------------------------------------


def test_a_ledger_that_is_compacted_all_the_time_forgets_nothing(node: Node, clock: ManualClock) -> None:
    node.create(max_deliveries=5, visibility_timeout="60s")
    node.publish(*numbered(300))
    ledger = node.leader().ledger.log
    ledger.config = replace(ledger.config, segment_bytes=1_024, dirty_ratio=0.01)
    member = Consumer(node, session_timeout_ms=300_000)
    for round_ in range(30):
        messages = member.poll(10)
        member.ack(messages[round_ % 3 :: 2])
        member.settle("nack", messages[1 + round_ % 3 :: 2][:2], delay=round_)
        if round_ % 4 == 0:
            delivery = node.broker.delivery(node.leader())
            delivery.groups["workers"].stored.write_whole()
        node.pass_time(11, step=1)

    assert ledger.segment_count < 60
    assert ledger.start_offset or node.leader().ledger.log.size < 200_000
    state = _state(node)
    assert _state(restarted(node)) == state


def test_a_deleted_group_begins_anew(node: Node) -> None:
    node.create()
    node.publish(*numbered(3))
    member = Consumer(node)
    messages = member.poll()
    member.ack(messages[:2])

    node.done(node.broker.groups.delete("workers"))
    again = restarted(node)

    assert again.broker.groups.names() == []
    assert outcomes(node.done(member.begin("ack", [messages[2].receipt]))) == [UNKNOWN]
    assert offsets(Consumer(again).poll()) == [0, 1, 2]


def test_a_late_ack_of_a_message_that_was_given_up_is_expired_and_not_settled(node: Node) -> None:
    node.create(visibility_timeout="10s", max_deliveries=1)
    node.publish(b"slow", b"quick")
    member = Consumer(node, session_timeout_ms=300_000)
    slow, quick = member.poll()
    member.ack([quick])
    node.pass_time(11, step=1)

    assert outcomes(member.ack([slow])) == ["RECEIPT_HANDLE_EXPIRED"]
    assert outcomes(member.ack([quick])) == ["RECEIPT_HANDLE_UNKNOWN"]
