"""A partition leads, resigns and leads again: nothing is lost, doubled or stuck, and what waits learns of it."""

import pytest

from goqueue.broker.partition.commit_gate import InSync, LocalGate
from goqueue.broker.partition.leader import SNAPSHOT_INTERVAL_NS
from goqueue.clock import SECOND
from goqueue.errors import NotLeader, TopicNotFound
from goqueue.record import kernel
from goqueue.record.identity import BatchIdentity
from goqueue.service.new_message import NewMessage
from goqueue.service.topics import NO_LEADER
from goqueue.storage.log import Log
from goqueue.testing import ManualClock, MemoryDisk
from tests.broker.brokers import Node, values_of
from tests.broker.consumers import Consumer, restarted
from tests.broker.partition.replicated import Member, by_offset, records_of
from tests.broker.transactional import Owner

TWO = InSync(frozenset([1, 2]), at_least=2)


def resign(node: Node, topic: str = "orders", partition: int = 0) -> None:
    node.broker.partitions.resign(topic, partition)


def lead(node: Node, topic: str = "orders", partition: int = 0) -> None:
    node.broker.partitions.become_leader(topic, partition)


def flap(node: Node, topic: str = "orders", partition: int = 0) -> None:
    resign(node, topic, partition)
    lead(node, topic, partition)


# --- without a leader ----------------------------------------------------------------------------


def test_without_a_leader_every_request_about_the_partition_is_told_so(node: Node) -> None:
    node.create()
    node.publish(b"a")
    resign(node)

    for ask in (
        lambda: node.send([b"b"]),
        lambda: node.read(),
        lambda: node.broker.topics.offsets("orders"),
        lambda: node.broker.delays.list("orders"),
        lambda: node.broker.topics.truncate("orders", 0, 1),
        lambda: node.broker.scans.pieces("orders", 0, start_offset=0, end_offset=1, piece_bytes=1000),
    ):
        with pytest.raises(NotLeader) as raised:
            ask()
        assert (raised.value.topic, raised.value.partition, raised.value.retryable) == ("orders", 0, True)
    (refused,) = node.messages(NewMessage(b"b"))
    assert isinstance(refused, NotLeader)


def test_a_description_says_that_there_is_no_leader_and_in_which_epoch(node: Node) -> None:
    node.create()
    node.publish(b"a", b"b")
    resign(node)

    (info,) = node.broker.topics.describe("orders").partitions

    assert (info.leader, info.leader_epoch, info.high_watermark, info.message_count) == (NO_LEADER, 0, 2, 2)


def test_the_other_partitions_are_served(node: Node) -> None:
    node.create(partitions=2)
    resign(node)

    node.publish(b"a", partition=1)

    assert node.values(partition=1) == [b"a"]


def test_resigning_and_leading_twice_change_nothing(node: Node) -> None:
    node.create()
    lead(node)
    assert node.leader().epoch == 0
    resign(node)
    resign(node)
    lead(node)
    lead(node)

    assert node.leader().epoch == 1


# --- what waits ----------------------------------------------------------------------------------


def test_a_publish_that_waits_fails_and_is_recognized_when_it_is_sent_again(node: Node) -> None:
    node.create()
    waiting = node.send_as(BatchIdentity(7, 0, 0, 3))

    resign(node)
    lead(node)

    assert isinstance(waiting.error, NotLeader)
    again = node.done(node.send_as(BatchIdentity(7, 0, 0, 3)))
    assert (again.first_offset, again.duplicate) == (0, True)
    assert node.values() == [b"0:0", b"0:1", b"0:2"]


def test_a_read_that_waits_fails(node: Node) -> None:
    node.create()
    waiting = node.broker.messages.read("orders", 0, wait_ms=10_000)

    resign(node)

    assert isinstance(waiting.error, NotLeader)


def test_an_ack_that_waits_fails_and_counts(node: Node) -> None:
    node.create()
    node.publish(b"a", b"b")
    member = Consumer(node)
    first, second = member.poll()
    waiting = member.begin("ack", [first.receipt])

    flap(node)

    (refused,) = waiting.result()
    assert isinstance(refused, NotLeader)
    member.ack([second])
    assert node.broker.groups.describe("workers").lag == 0


def test_a_flush_that_one_leader_began_releases_the_acks_of_the_next(node: Node) -> None:
    node.create()
    node.send([b"a"])
    assert node.workers.jobs
    flap(node)
    waiting = node.send([b"b"])

    node.workers.run_all()

    assert waiting.result().first_offset == 1
    assert node.values() == [b"a", b"b"]


def test_what_the_last_leader_left_unflushed_becomes_visible(node: Node) -> None:
    node.create()
    node.send([b"a"])
    node.workers.jobs.clear()  # the flush is lost with its worker
    flap(node)

    node.pass_time(0.2)

    assert node.leader().log.next_offset == 1


def test_a_subscription_of_a_deleted_topic_is_told_that_the_topic_is_gone(node: Node) -> None:
    node.create()
    resign(node)
    replica = node.broker.partitions.any_topic("orders").replicas[0]

    node.done(node.broker.topics.delete("orders"))

    with pytest.raises(TopicNotFound):
        _ = replica.leading


# --- what is kept --------------------------------------------------------------------------------


def test_leases_and_receipts_outlive_a_change_of_leader(node: Node) -> None:
    node.create()
    node.publish(b"a", b"b", b"c")
    member = Consumer(node)
    first, second, third = member.poll()
    member.ack([first])

    flap(node)

    assert Consumer(node).poll() == []  # the leases hold
    assert not any(isinstance(one, Exception) for one in member.settle("extend", [second], delay=60))
    assert not any(isinstance(one, Exception) for one in member.ack([second, third]))
    assert node.broker.groups.describe("workers").lag == 0


def test_two_leaders_never_issue_the_same_receipt(node: Node) -> None:
    node.create()
    node.publish(b"a", b"b")
    member = Consumer(node)
    (first,) = member.poll(1)

    flap(node)
    (second,) = member.poll(1)

    assert first.receipt.rsplit(":", 1)[1] != second.receipt.rsplit(":", 1)[1]


def test_leases_expire_after_a_change_of_leader(node: Node) -> None:
    node.create(visibility_timeout="10s", backoff_initial="1s")
    node.publish(b"a")
    member = Consumer(node, session_timeout_ms=300_000)
    member.poll()
    node.tick(5)

    flap(node)
    node.tick(5.1)
    node.tick(1.1)

    assert [(one.value, one.count) for one in member.poll()] == [(b"a", 2)]


def test_delays_fire_once_and_in_time_whatever_leader_there_is(node: Node) -> None:
    node.create()
    later = node.clock.wall_ns() + 10 * SECOND
    node.messages(NewMessage(b"later", deliver_at_ns=later), NewMessage(b"now"))
    flap(node)
    member = Consumer(node)
    early = [one.value for one in member.poll()]
    node.tick(9)
    flap(node)
    still = [one.value for one in member.poll()]
    resign(node)
    node.tick(5)
    lead(node)
    node.tick(0.1)

    assert (early, still) == ([b"now"], [])
    assert [one.value for one in member.poll()] == [b"later"]
    flap(node)
    assert member.poll() == []


def test_cancelled_and_rescheduled_messages_stay_so(node: Node) -> None:
    node.create()
    later = node.clock.wall_ns() + 10 * SECOND
    node.messages(*(NewMessage(value, deliver_at_ns=later) for value in (b"a", b"b")))
    node.done(node.broker.delays.cancel("orders", partition=0, offset=0))
    node.done(node.broker.delays.reschedule("orders", later + 10 * SECOND, partition=0, offset=1))

    flap(node)
    node.tick(11)
    before = node.values()
    node.tick(10)

    assert (before, node.values()) == ([], [b"b"])


def test_a_waiting_poll_gets_what_the_next_leader_stores(node: Node) -> None:
    node.create(partitions=2)
    member = Consumer(node)
    waiting = member.wait(wait_ms=20_000)

    flap(node)
    node.publish(b"a")
    node.tick(0.1)

    assert [batch.partition for batch in waiting.result().polled.batches] == [0]


def test_a_member_that_leaves_after_a_change_of_leader_releases_what_it_had(node: Node) -> None:
    node.create()
    node.publish(b"a")
    member, other = Consumer(node), Consumer(node, group="others")
    member.poll()
    other.poll()

    flap(node)
    member.leave()

    assert [one.value for one in Consumer(node).poll()] == [b"a"]


# --- epochs --------------------------------------------------------------------------------------


def test_an_epoch_is_stored_before_the_first_append_of_its_leader_and_not_before(node: Node) -> None:
    node.create()
    node.publish(b"a")
    flap(node)
    flap(node)
    log = node.leader().log
    unused = log.epochs.entries

    node.publish(b"b")

    assert unused == ()
    assert [(one.epoch, one.start_offset) for one in log.epochs.entries] == [(2, 1)]


def test_the_ledger_has_its_own_epochs(node: Node) -> None:
    node.create()
    node.publish(b"a")
    member = Consumer(node)
    end = node.leader().ledger.log.next_offset
    flap(node)

    member.poll()

    ledger = node.leader().ledger.log
    assert [(one.epoch, one.start_offset) for one in ledger.epochs.entries] == [(1, end)]


def test_a_restart_is_no_change_of_leader(disk: MemoryDisk, clock: ManualClock) -> None:
    node = Node(disk, clock)
    node.create()
    flap(node)
    node.publish(b"a")

    again = restarted(node)
    again.publish(b"b")

    assert again.leader().epoch == 1
    assert [(one.epoch, one.start_offset) for one in again.leader().log.epochs.entries] == [(1, 0)]


# --- what is committed ---------------------------------------------------------------------------


class HeldGate(LocalGate):
    """A gate that the test moves, as followers would."""

    offset = 0


def hold(node: Node) -> HeldGate:
    """Let the test decide what is committed, from the next leader on."""
    replica = node.broker.partitions.any_topic("orders").replicas[0]
    replica._gate = gate = HeldGate(replica.log)
    flap(node)
    return gate


def test_nothing_is_acknowledged_or_shown_before_it_is_committed(node: Node) -> None:
    node.create()
    gate = hold(node)
    waiting = node.send([b"a", b"b"])
    node.workers.run_all()
    reading = node.broker.messages.read("orders", 0, wait_ms=1_000)
    durable = node.leader().log.durable_offset
    assert (durable, waiting.is_done, reading.is_done, node.values()) == (2, False, False, [])

    gate.offset = 2
    node.leader().committed()

    assert waiting.result().first_offset == 0
    assert values_of(reading.result()) == [b"a", b"b"]


def test_groups_get_nothing_before_it_is_committed(node: Node) -> None:
    node.create()
    gate = hold(node)
    node.send([b"a", b"b"])
    node.workers.run_all()
    member = Consumer(node)
    before = member.poll()

    gate.offset = 1
    node.leader().committed()

    assert (before, [one.value for one in member.poll()]) == ([], [b"a"])


def test_a_snapshot_of_producers_never_speaks_of_records_that_may_be_truncated(node: Node) -> None:
    """Otherwise the retry of a batch that was truncated away would be answered as a duplicate, and be lost."""
    node.create()
    gate = hold(node)
    node.clock.advance(SNAPSHOT_INTERVAL_NS / SECOND + 1)
    lost = BatchIdentity(7, 0, 0, 2)
    node.send_as(lost)
    node.workers.run_all()
    node.leader().write_down()
    log, replica = node.leader().log, node.broker.partitions.any_topic("orders").replicas[0]

    resign(node)
    log.truncate(0)  # the leader that came meanwhile never had the batch
    replica.producers.truncated(0)
    replica.search.truncated(0)
    lead(node)
    node.send_as(BatchIdentity(8, 0, 0, 4))  # others get its offsets
    node.workers.run_all()
    gate.offset = 4
    node.leader().committed()
    resign(node)
    replica.producers.truncated(4)  # read it all again, as after a restart
    lead(node)

    again = node.send_as(lost)
    node.workers.run_all()
    gate.offset = 6
    node.leader().committed()
    assert (again.result().first_offset, again.result().duplicate) == (4, False)


def test_a_snapshot_is_written_once_it_speaks_of_committed_records(node: Node) -> None:
    node.create()
    gate = hold(node)
    node.clock.advance(SNAPSHOT_INTERVAL_NS / SECOND + 1)
    node.send_as(BatchIdentity(7, 0, 0, 2))
    node.workers.run_all()
    before = [key for key, _ in node.leader().ledger.facts()]

    gate.offset = 2
    node.leader().committed()
    node.workers.run_all()

    assert (b"producers" in before, b"producers" in [key for key, _ in node.leader().ledger.facts()]) == (False, True)


def test_retention_keeps_what_is_not_committed(node: Node) -> None:
    node.create(segment_bytes=1024, retention="60s")
    gate = hold(node)
    for _ in range(40):
        node.send([b"v" * 50])
        node.workers.run_all()
    gate.offset = 20
    node.leader().committed()

    node.pass_time(200, step=5)

    assert 0 < node.leader().log.start_offset <= 20


@pytest.mark.parametrize("transactions", [False, True])
def test_compaction_keeps_what_is_not_committed(node: Node, transactions: bool) -> None:
    """A record that replaces another may be truncated: then both would be gone."""
    node.create(segment_bytes=1024, cleanup="compact", dirty_ratio=0.01)
    if transactions:
        owner = Owner(node)
        owner.begin()
        owner.publish(b"first")
        owner.commit()
    gate, start = hold(node), node.leader().log.next_offset
    for _ in range(40):
        node.broker.messages.publish_records("orders", 0, kernel.encode([b"v" * 50], keys=[b"key"]))
        node.workers.run_all()
    gate.offset = start + 20
    node.leader().committed()

    compact(node)
    held = offsets_of(node.leader().log)
    gate.offset = start + 40
    node.leader().committed()
    compact(node)

    assert held >= set(range(start + 20, start + 40))
    assert not held >= set(range(start, start + 20))
    assert not offsets_of(node.leader().log) >= set(range(start + 20, start + 40))


def test_compaction_of_a_ledger_keeps_what_is_not_committed(node: Node) -> None:
    node.create()
    replica = node.broker.partitions.any_topic("orders").replicas[0]
    replica._ledger_gate = gate = HeldGate(replica.partition.ledger)
    flap(node)
    for _ in range(8):
        node.leader().ledger.write([(b"key", b"v" * 600_000)])
        node.workers.run_all()
    ledger = node.leader().ledger.log
    before = offsets_of(ledger)
    gate.offset = min(before)

    compact(node)
    held = offsets_of(ledger)
    gate.offset = ledger.next_offset
    compact(node)

    assert held == before
    assert offsets_of(ledger) < before


def compact(node: Node) -> None:
    """Compact all that may be."""
    for _ in range(3):
        node.leader().maintain(may_compact=True, compacted=lambda: None)
        node.workers.run_all()


def offsets_of(log: Log) -> set[int]:
    return set(by_offset(records_of(log)))


# --- among several replicas -----------------------------------------------------------------------


@pytest.fixture
def member() -> Member:
    return Member(1, ManualClock())


def test_without_a_role_it_is_not_the_leader(member: Member) -> None:
    with pytest.raises(NotLeader):
        _ = member.replica.leading

    member.replica.become_leader(0)
    assert member.replica.leading is member.replica.leader
    member.replica.resign()

    with pytest.raises(NotLeader):
        _ = member.replica.leading


def test_the_epoch_of_a_follower_survives_a_power_cut(member: Member) -> None:
    member.follow(5)

    member.crash()

    assert member.replica.epoch == 5
    with pytest.raises(AssertionError):
        member.replica.become_follower(4)
    member.replica.become_follower(5)


def test_a_replica_leads_in_an_epoch_once(member: Member) -> None:
    """Followers may have fetched what the crash has taken from it; an epoch has one record for each offset."""
    member.lead(5, TWO)
    member.crash()

    with pytest.raises(AssertionError):
        member.replica.become_leader(5, replica=1, in_sync=TWO)
    member.replica.become_leader(6, replica=1, in_sync=TWO)


def test_an_epoch_without_records_leaves_nothing_in_the_history(member: Member) -> None:
    """It would give the records that another leader sends later the wrong epoch."""
    other = Member(2, member.clock)
    other.lead(1, InSync(frozenset([2])))
    other.done(other.send(None, b"one"))
    member.follow(1)
    member.copy_from(other)
    member.lead(2, InSync(frozenset([1])))
    member.log.assign_epoch(2, 1)  # and then it was deposed
    other.done(other.send(None, b"two"))
    other.lead(3, InSync(frozenset([2])))

    member.follow(3)
    member.copy_from(other)

    assert [entry.epoch for entry in member.log.epochs.entries] == [1]
    assert records_of(member.log) == records_of(other.log)


def test_the_high_watermark_is_kept_from_role_to_role(member: Member) -> None:
    other = Member(2, member.clock)
    member.lead(1, TWO)
    other.follow(1)
    member.send(BatchIdentity(7, 0, 0, 2))
    other.copy_from(member)
    assert member.replica.high_watermark == other.replica.high_watermark == 2

    other.lead(2, TWO)
    member.follow(2)

    assert member.replica.high_watermark == other.replica.high_watermark == 2


def test_a_role_is_not_changed_while_a_truncation_is_under_way(member: Member) -> None:
    other = Member(2, member.clock)
    member.lead(1, TWO)
    member.send(None, b"lost")
    member.settle()
    other.lead(2, TWO)
    other.send(None, b"kept", early=True)
    member.follow(2)
    fetch = member.fetch
    assert fetch is not None
    answer = other.answer(1, fetch)
    assert answer is not None
    member.take(answer)

    assert member.replica.follower is not None
    assert member.replica.follower.is_cutting
    with pytest.raises(AssertionError):
        member.replica.resign()
    member.settle()
    member.replica.resign()
