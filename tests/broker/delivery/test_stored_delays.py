"""What is known of delays after crashes, and with damaged or lost files."""

from collections.abc import Callable
from contextlib import suppress

import pytest

from goqueue import events
from goqueue.clock import SECOND
from goqueue.delivery.delays import SETTLED_MAX
from goqueue.service.new_message import NewMessage
from goqueue.testing import ManualClock, MemoryDisk
from goqueue.testing.inode import Keep
from goqueue.testing.memory_disk import PowerLoss
from goqueue.wire.reports import PositionCommit
from tests.broker.brokers import Node
from tests.broker.consumers import Consumer, restarted

KEEPS: tuple[Keep, ...] = ("nothing", "everything", "prefix")


def later(node: Node, *seconds: float, key: bytes | None = None, topic: str = "orders") -> None:
    """Publish a message for each of the times."""
    now_ns = node.clock.wall_ns()
    messages = [
        NewMessage(b"in %g" % after, key=key, deliver_at_ns=now_ns + round(after * SECOND)) for after in seconds
    ]
    node.messages(*messages, topic=topic)


def patient(node: Node, group: str = "workers") -> Consumer:
    return Consumer(node, group, session_timeout_ms=300_000)


@pytest.mark.parametrize("keep", KEEPS)
def test_what_waits_waits_on_after_a_crash(node: Node, keep: Keep) -> None:
    node.create()
    later(node, 10, 20)

    again = restarted(node, keep=keep, seed=1 if keep == "prefix" else None)

    assert again.values() == []
    again.pass_time(10.1)
    assert again.values() == [b"in 10"]
    assert [message.value for message in patient(again).poll()] == [b"in 10"]
    again.pass_time(10)
    assert again.values() == [b"in 10", b"in 20"]


@pytest.mark.parametrize("keep", KEEPS)
def test_the_first_delayed_message_of_a_partition_with_history_survives(node: Node, keep: Keep) -> None:
    node.create()
    node.publish(*[b"old"] * 100)
    later(node, 10)
    node.publish(b"new")

    again = restarted(node, keep=keep, seed=3 if keep == "prefix" else None)

    assert again.values() == [b"old"] * 100 + [b"new"]
    assert again.broker.delays.stats().pending == 1


@pytest.mark.parametrize("keep", KEEPS)
def test_what_fell_due_while_the_broker_was_down_is_delivered_once(node: Node, keep: Keep) -> None:
    node.create()
    later(node, 10, 3_600)
    member = patient(node)
    assert member.poll() == []
    node.clock.advance(60)

    again = restarted(node, keep=keep, seed=5 if keep == "prefix" else None)
    again.tick()
    same = member.moved_to(again) if again.broker.groups.names() else patient(again)
    messages = same.poll()
    same.ack(messages)
    third = restarted(again)
    third.tick()

    assert [message.value for message in messages] == [b"in 10"]
    assert member.moved_to(third).poll() == []


def test_a_crash_at_any_step_never_shows_a_message_early_and_loses_none(clock: ManualClock) -> None:
    def work(disk: MemoryDisk, told: list[int], clock: ManualClock) -> None:
        node = Node(disk, clock)
        node.create()
        for number in range(8):
            if number % 2:
                node.publish(b"plain")
            else:
                later(node, 50 + number)
                told.append(number)
        node.done(node.broker.delays.cancel("orders", partition=0, offset=2))
        told.remove(2)
        told.append(-2)
        node.done(node.broker.delays.reschedule("orders", clock.wall_ns() + 70 * SECOND, partition=0, offset=4))
        told.append(-4)

    whole = MemoryDisk()
    work(whole, [], ManualClock())

    for steps in range(0, whole.steps, 61):
        for keep in ("nothing", "everything"):
            disk, told, clock = MemoryDisk(power_off_after=steps), [], ManualClock()
            with suppress(PowerLoss):
                work(disk, told, clock)
            node = Node(disk.crash(keep=keep), clock)  # type: ignore[arg-type]
            if not node.broker.partitions.has_topic("orders"):
                continue
            assert set(node.values()) <= {b"plain"}
            node.pass_time(60.1, step=5)
            values = node.values()
            if -2 in told:
                assert b"in 52" not in values
            if -4 in told:
                assert b"in 54" not in values
            for number in told:
                if number in (0, 6):
                    assert b"in %d" % (50 + number) in values
            node.pass_time(20, step=5)
            if -4 in told:
                assert b"in 54" in node.values()


# --- what is damaged ---------------------------------------------------------------------------


def stopped(node: Node) -> MemoryDisk:
    node.workers.run_all()
    node.broker.close()
    assert isinstance(node.disk, MemoryDisk)
    return node.disk


def started(node: Node) -> Node:
    return Node(node.disk, node.clock)


def path_of(disk: MemoryDisk, ending: str, topic: str = "orders") -> str:
    (path,) = (path for path in disk.paths() if f"/{topic}/0/" in path and path.endswith(ending))
    return path


def ledger_of(disk: MemoryDisk) -> str:
    (path,) = (path for path in disk.paths() if "/orders/0/ledger/" in path and path.endswith(".log"))
    return path


def spoil_cancellation(disk: MemoryDisk, offset: int) -> None:
    """Flip a bit of the record of the ledger that says that the message was cancelled."""
    path = ledger_of(disk)
    disk.flip_bit(path, disk.read(path).index(b"x" + offset.to_bytes(8)))


def lose(disk: MemoryDisk, path: str) -> None:
    disk.remove(path)
    disk.sync_directory(path.rpartition("/")[0])


def damage(disk: MemoryDisk, path: str) -> None:
    for position in range(4, len(disk.read(path)), 8):
        disk.flip_bit(path, position)


def empty(disk: MemoryDisk, path: str) -> None:
    disk.write(path, b"")


def never_seen(node: Node, *values: bytes) -> None:
    """The values, and nothing else, is what readers and a new group are given, now and after an hour."""
    for _ in range(2):
        assert node.values() == list(values)
        assert [message.value for message in patient(node, f"at {node.clock.wall_ns()}").poll()] == list(values)
        node.clock.advance(7_200)
        node.tick()


def test_a_flipped_bit_in_the_ledger_does_not_show_a_cancelled_message(node: Node) -> None:
    node.create()
    later(node, 3_600)
    node.publish(b"now")
    node.done(node.broker.delays.cancel("orders", partition=0, offset=0))
    disk = stopped(node)
    spoil_cancellation(disk, 0)

    again = started(node)
    never_seen(again, b"now")
    stopped(again)
    never_seen(started(again), b"now")


def test_a_cancellation_is_known_however_many_came_after_it(node: Node) -> None:
    """The file remembers what became of 10,000 messages, and all that were cancelled."""
    node.create()
    later(node, *[3_600] * (SETTLED_MAX + 10))
    node.publish(b"now")
    node.done(node.broker.delays.cancel("orders", partition=0, offsets=list(range(SETTLED_MAX + 10))))
    disk = stopped(node)
    again = started(node)  # which makes the file anew
    again.leader().delivery.delays._is_whole = False  # type: ignore[union-attr]
    again.leader().delivery.delays.save()  # type: ignore[union-attr]
    stopped(again)
    lose(disk, ledger_of(disk))

    assert started(node).values() == [b"now"]


@pytest.mark.parametrize("harm", [lose, damage, empty])
def test_a_delay_file_that_is_harmed_shows_no_cancelled_message(
    node: Node, harm: Callable[[MemoryDisk, str], None]
) -> None:
    node.create()
    later(node, 3_600, 10)
    node.publish(b"now")
    node.done(node.broker.delays.cancel("orders", partition=0, offset=0))
    disk = stopped(node)
    harm(disk, path_of(disk, "/delays"))

    again = started(node)
    assert again.values() == [b"now"]
    assert again.broker.delays.stats().pending == 1
    again.clock.advance(20)
    again.tick()
    never_seen(again, b"in 10", b"now")


@pytest.mark.parametrize("harm", [lose, damage, empty])
def test_what_waits_is_hidden_from_the_first_read_on_without_its_file(
    node: Node, harm: Callable[[MemoryDisk, str], None]
) -> None:
    node.create()
    later(node, 10)
    node.publish(b"now")
    disk = stopped(node)
    harm(disk, path_of(disk, "/delays"))

    again = started(node)
    assert again.values() == [b"now"]
    assert again.read().first_pending_offset == 0
    again.clock.advance(20)
    again.tick()
    assert again.values() == [b"in 10", b"now"]


def test_without_any_file_the_record_itself_says_until_when_it_is_hidden(node: Node) -> None:
    node.create()
    node.publish(b"before")
    later(node, 10, 20)
    node.publish(b"now")
    node.done(node.broker.delays.cancel("orders", partition=0, offset=2))
    disk = stopped(node)
    for ending in ("/delays", "/delayed"):
        lose(disk, path_of(disk, ending))
    lose(disk, ledger_of(disk))

    again = started(node)
    assert again.values() == [b"before", b"now"]
    again.clock.advance(15)
    again.tick()
    assert again.values() == [b"before", b"in 10", b"now"]
    stopped(again)
    assert started(again).values() == [b"before", b"in 10", b"now"]


def test_a_group_that_begins_late_does_not_make_a_file_that_forgets_what_came_before(node: Node) -> None:
    node.create()
    later(node, 3_600)
    node.publish(b"now")
    later(node, 10)
    disk = stopped(node)
    for ending in ("/delays", "/delayed"):
        lose(disk, path_of(disk, ending))

    again = started(node)
    member = patient(again)
    again.done(again.broker.groups.commit("workers", [PositionCommit("orders", 0, 2)], member_id=member.id))
    assert member.poll() == []
    stopped(again)

    assert started(again).values() == [b"now"]


def test_what_the_file_says_of_records_that_a_power_cut_took_is_not_said_of_others(clock: ManualClock) -> None:
    disk = MemoryDisk()
    node = Node(disk, clock)
    node.create(flush="none")
    later(node, 3_600)
    stopped(node)
    again = Node(disk, clock)
    later(again, 3_600)
    again.done(again.broker.delays.cancel("orders", partition=0, offset=1))
    again.leader().delivery.delays._file.sync()  # type: ignore[union-attr]
    third = Node(disk.crash(keep="nothing"), clock)
    assert third.leader().log.next_offset == 1

    fourth = Node(third.disk.crash(keep="nothing"), clock)  # type: ignore[attr-defined]
    fourth.publish(b"another")

    assert fourth.values() == [b"another"]
    stopped(fourth)
    assert Node(fourth.disk, clock).values() == [b"another"]


# --- averages ----------------------------------------------------------------------------------


@pytest.mark.parametrize("keep", ["nothing", "everything"])
def test_how_long_messages_are_delayed_on_average_is_known_after_a_restart(node: Node, keep: Keep) -> None:
    node.create()
    later(node, 60, 120)
    later(node, 180)
    assert node.broker.delays.stats().average_delay_ns == 120 * SECOND
    node.tick(61)
    node.done(node.broker.delays.reschedule("orders", node.clock.wall_ns() + 239 * SECOND, partition=0, offset=2))
    before = node.broker.delays.stats()
    assert before.average_delay_ns == (60 + 120 + 300) * SECOND // 3

    again = restarted(node, keep=keep)
    again.tick()

    assert again.broker.delays.stats() == before


def test_a_message_is_scheduled_once_however_often_the_log_is_looked_at(disk: MemoryDisk, clock: ManualClock) -> None:
    told: list[events.Event] = []
    node = Node(disk, clock)
    node.create()
    node.leader().observe = events.Observers(node.leader().observe, told.append)
    later(node, 60, 120)
    later(node, 60)
    node.broker.groups.lanes("orders")

    assert [one.count for one in told if isinstance(one, events.DelaysScheduled)] == [2, 1]


def test_the_ledger_forgets_changes_of_messages_that_the_log_does_not_have_any_more(node: Node) -> None:
    node.create(segment_bytes=1_024, retention="60s")
    later(node, 30, 30, 30)
    node.done(node.broker.delays.cancel("orders", partition=0, offset=0))
    node.done(node.broker.delays.reschedule("orders", node.clock.wall_ns() + 40 * SECOND, partition=0, offset=1))
    for number in range(30):
        node.publish(b"%d" % number * 50)
    assert {key for key, value in node.leader().ledger.facts() if value is not None} != set()

    node.pass_time(300, step=10)

    assert node.leader().log.start_offset > 2
    assert {key for key, value in dict(node.leader().ledger.facts()).items() if value is not None} == set()
    assert node.values() == restarted(node).values()
