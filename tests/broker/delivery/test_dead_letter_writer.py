"""Dead letters: each once, whatever happens on the way."""

from contextlib import suppress
from errno import EIO, ENOSPC

import pytest

from goqueue.delivery.dead_letter import ATTEMPTS, DEAD_AT, ERROR, FIRST_DELIVERY, GROUP, MEMBER, ORIGIN, REASON
from goqueue.record.header import Priority
from goqueue.record.message import StoredMessage
from goqueue.service.new_message import NewMessage
from goqueue.testing import FaultyDisk, ManualClock, MemoryDisk
from goqueue.testing.memory_disk import PowerLoss
from goqueue.wire import reports
from tests.broker.brokers import Node, decoded
from tests.broker.consumers import Consumer, floor, offsets, outcomes, restarted

LEDGER = "orders/0/ledger/00000000000000000000.log"
DEAD_LOG = "orders.dlq/0/log/00000000000000000000.log"


@pytest.fixture
def faulty(disk: MemoryDisk) -> FaultyDisk:
    return FaultyDisk(disk, seed=1)


def dead_letters(node: Node, partition: int = 0) -> list[StoredMessage]:
    return decoded(node.read("orders.dlq", partition)) if node.broker.partitions.has_topic("orders.dlq") else []


def origins(node: Node) -> list[str]:
    return [letter.headers[ORIGIN] for letter in dead_letters(node)]


# --- what a dead letter is -------------------------------------------------------------------------


def test_a_rejected_message_is_a_dead_letter_with_its_story(node: Node, clock: ManualClock) -> None:
    node.create()
    node.messages(NewMessage(b"bad", key=b"k", headers={"mine": "yes"}, priority=Priority.HIGH))
    member = Consumer(node)
    clock.advance(7)
    messages = member.poll()
    clock.advance(2)

    (result,) = member.settle("reject", messages, reason="cannot be parsed")

    assert isinstance(result, reports.SettledMessage)
    assert (result.action, result.dlq_topic, result.dlq_partition, result.dlq_offset) == (
        "rejected",
        "orders.dlq",
        0,
        0,
    )
    assert result.committed_offset == 1
    (letter,) = dead_letters(node)
    assert (letter.value, letter.key, letter.priority_code) == (b"bad", b"k", Priority.HIGH)
    assert letter.headers["mine"] == "yes"
    assert letter.headers[REASON] == "REJECTED"
    assert letter.headers[ERROR] == "cannot be parsed"
    assert letter.headers[GROUP] == "workers"
    assert letter.headers[MEMBER] == member.id
    assert letter.headers[ATTEMPTS] == "1"
    assert letter.headers[ORIGIN] == "orders:0:0"
    assert letter.headers[FIRST_DELIVERY].startswith("2024-01-01T00:00:07")
    assert letter.headers[DEAD_AT].startswith("2024-01-01T00:00:09")


def test_a_message_that_fails_for_the_last_time_is_a_dead_letter(node: Node) -> None:
    node.create(max_deliveries=2)
    node.publish(b"a")
    member = Consumer(node)

    first = member.settle("nack", member.poll(), reason="once")
    node.pass_time(1.1)
    second = member.settle("nack", member.poll(), reason="twice")

    assert outcomes([*first, *second]) == ["requeued", "dlq"]
    (letter,) = dead_letters(node)
    assert [letter.headers[name] for name in (REASON, ERROR, ATTEMPTS)] == ["MAX_DELIVERIES", "twice", "2"]
    assert floor(node) == 1


def test_a_message_whose_leases_all_ran_out_is_a_dead_letter(node: Node) -> None:
    node.create(max_deliveries=2)
    node.publish(b"a")
    member = Consumer(node, session_timeout_ms=300_000)

    for _ in range(2):
        assert len(member.poll()) == 1
        node.pass_time(32, step=1)

    (letter,) = dead_letters(node)
    assert [letter.headers[name] for name in (REASON, ATTEMPTS)] == ["TIMEOUT", "2"]
    assert member.poll() == []


def test_messages_of_a_member_that_was_lost_fail_and_those_of_one_that_left_do_not_wait(node: Node) -> None:
    node.create(max_deliveries=2)
    node.publish(b"a", b"b")
    lost = Consumer(node, mode="shared", session_timeout_ms=6_000)
    stays = Consumer(node, mode="shared", session_timeout_ms=300_000)
    assert len(lost.poll(1)) == 1
    leaves = Consumer(node, mode="shared")
    assert offsets(leaves.poll(1)) == [1]

    leaves.leave()
    again = stays.poll()
    node.pass_time(6.1)
    none = stays.poll()
    node.pass_time(1.1)

    assert [(message.offset, message.count) for message in again] == [(1, 2)]
    assert none == []
    assert [(message.offset, message.count) for message in stays.poll()] == [(0, 2)]


def test_a_very_long_reason_is_cut(node: Node) -> None:
    node.create()
    node.publish(b"a")
    member = Consumer(node)

    assert outcomes(member.settle("reject", member.poll(), reason="x" * 500_000)) == ["rejected"]

    (letter,) = dead_letters(node)
    assert letter.headers[ERROR] == "x" * 2_000


def test_a_dead_letter_that_dies_goes_to_the_end_of_its_topic(node: Node) -> None:
    node.create()
    node.publish(b"a")
    member = Consumer(node)
    member.settle("reject", member.poll())
    reader = Consumer(node, "repair", topics=("orders.dlq",))

    assert outcomes(reader.settle("reject", reader.poll())) == ["rejected"]

    assert origins(node) == ["orders:0:0", "orders.dlq:0:0"]
    assert node.broker.topics.list() == ["orders", "orders.dlq"]
    assert floor(node, "repair", topic="orders.dlq") == 1


def test_two_groups_bury_a_message_each_for_itself(node: Node) -> None:
    node.create()
    node.publish(b"a")
    one, other = Consumer(node, "one"), Consumer(node, "other")

    one.settle("reject", one.poll())
    other.settle("reject", other.poll())

    assert [letter.headers[GROUP] for letter in dead_letters(node)] == ["one", "other"]


def test_the_first_delivery_is_told_to_the_nanosecond_also_after_a_restart(node: Node, clock: ManualClock) -> None:
    node.create(max_deliveries=2, backoff_initial="1s")
    node.publish(b"a")
    clock.advance_ns(7_123_456_789)
    member = Consumer(node, session_timeout_ms=300_000)
    member.settle("nack", member.poll())
    clock.advance(3)

    again = restarted(node)
    again.pass_time(1)
    member = member.moved_to(again)
    member.settle("nack", member.poll())

    (letter,) = dead_letters(again)
    assert letter.headers[FIRST_DELIVERY] == "2024-01-01T00:00:07.123456789Z"


# --- crashes ---------------------------------------------------------------------------------------


def reject_some(disk: MemoryDisk, answered: list[int]) -> None:
    node = Node(disk, ManualClock())
    node.create(max_deliveries=1)
    node.publish(*(b"%d" % number for number in range(6)))
    member = Consumer(node)
    messages = member.poll()
    for action, chosen in (("reject", messages[:2]), ("nack", messages[2:4])):
        member.settle(action, chosen)
        answered += offsets(chosen)


@pytest.mark.parametrize("keep", ["nothing", "everything", "prefix"])
def test_a_crash_at_any_step_of_a_dead_lettering_leaves_each_dead_letter_once(keep: str) -> None:
    whole = MemoryDisk()
    reject_some(whole, [])
    before = MemoryDisk()
    node = Node(before, ManualClock())
    node.create(max_deliveries=1)
    node.publish(*(b"%d" % number for number in range(6)))
    Consumer(node).poll()

    for steps in range(before.steps, whole.steps, 29):
        disk = MemoryDisk(power_off_after=steps)
        answered: list[int] = []
        with suppress(PowerLoss):
            reject_some(disk, answered)
        again = Node(disk.crash(steps if keep == "prefix" else None, keep=keep), ManualClock())  # type: ignore[arg-type]
        member = Consumer(again, session_timeout_ms=300_000)
        again.pass_time(40, step=5)  # leases of before are over
        delivered = member.poll()
        member.ack(delivered)
        again.pass_time(40, step=5)

        dead_lettered = [int(origin.rpartition(":")[2]) for origin in origins(again)]
        assert len(dead_lettered) == len(set(dead_lettered))
        assert set(answered) <= set(dead_lettered)
        assert not set(dead_lettered) & set(offsets(delivered))
        assert floor(again) == 6


def test_a_dead_lettering_that_a_snapshot_saw_begin_is_done_once(node: Node) -> None:
    node.create()
    node.publish(b"a")
    member = Consumer(node)
    (message,) = member.poll()
    member.begin("reject", [message.receipt])  # the dead-letter topic is not made yet
    stored = node.broker.partitions.delivery(node.leader()).groups["workers"].stored
    stored.write_whole()
    while stored.dead_letterings[0].batch is None:
        node.workers.run_one()

    again = restarted(node)
    again.workers.run_all()
    again.broker.groups.positions("workers")
    again.workers.run_all()

    assert origins(again) == ["orders:0:0"]
    assert floor(again) == 1


# --- disks that do not take it ---------------------------------------------------------------------


@pytest.mark.parametrize("errno", [ENOSPC])
@pytest.mark.parametrize("skip", range(4))
def test_a_disk_that_is_full_for_a_while_delays_a_dead_lettering(
    faulty: FaultyDisk, clock: ManualClock, errno: int, skip: int
) -> None:
    node = Node(faulty, clock)
    node.create()
    node.publish(b"a", b"b")
    member = Consumer(node, session_timeout_ms=300_000)
    messages = member.poll()
    faulty.fail_next("pwrite", errno, path_suffix=".log", skip=skip)

    results = member.settle("reject", messages)
    node.pass_time(3, step=0.5)

    assert len(results) == 2
    assert sorted(origins(node)) == ["orders:0:0", "orders:0:1"]
    assert floor(node) == 2
    again = Node(_inner(faulty).crash(keep="everything"), clock)
    assert Consumer(again).poll() == []
    assert sorted(origins(again)) == ["orders:0:0", "orders:0:1"]
    assert floor(again) == 2


def test_a_dead_letter_topic_that_cannot_be_made_at_first_is_made_later(faulty: FaultyDisk, clock: ManualClock) -> None:
    node = Node(faulty, clock)
    node.create()
    node.publish(b"a")
    member = Consumer(node)
    messages = member.poll()
    faulty.fail_next("make_directory", EIO)

    (result,) = member.settle("reject", messages)
    assert not isinstance(result, reports.SettledMessage)
    assert member.poll() == []
    node.pass_time(3, step=0.5)

    assert origins(node) == ["orders:0:0"]
    assert floor(node) == 1


def _inner(faulty: FaultyDisk) -> MemoryDisk:
    inner = faulty.inner
    assert isinstance(inner, MemoryDisk)
    return inner


def test_a_topic_that_is_deleted_takes_its_dead_letterings_with_it(node: Node) -> None:
    node.create()
    node.publish(b"a")
    member = Consumer(node)
    (message,) = member.poll()
    settling = member.begin("reject", [message.receipt])

    node.done(node.broker.topics.delete("orders"))
    node.pass_time(3, step=0.5)

    assert settling.is_done
    assert len(origins(node)) <= 1
