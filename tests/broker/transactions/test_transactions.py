"""Transactions count as a whole or not at all, at every reader, whatever becomes of their owners and of the disk."""

from errno import EIO, ENOSPC

import pytest

from goqueue.broker.coordination import GROUPS_TOPIC, TRANSACTIONS_TOPIC, partition_of
from goqueue.clock import SECOND
from goqueue.delivery.dead_letter import ORIGIN
from goqueue.errors import (
    BrokerUnavailable,
    GoQueueError,
    InvalidRequest,
    InvalidTransactionState,
    ProducerFenced,
    StorageFailed,
    StorageFull,
    TransactionAborted,
    TransactionError,
    TransactionNotFound,
)
from goqueue.record.header import Priority
from goqueue.record.headers import PRODUCER
from goqueue.service.groups import Join
from goqueue.service.messages import ProducerEpoch
from goqueue.service.new_message import NewMessage
from goqueue.storage.flush import FlushJob
from goqueue.testing import FaultyDisk, ManualClock, MemoryDisk
from goqueue.wire import reports
from tests.broker.brokers import Node, decoded, offsets_of
from tests.broker.consumers import Consumer, floor, got, offsets, outcomes, restarted
from tests.broker.transactional import Owner, now_and_later, position_of, uncommitted

JOURNAL_LOG = f"__transactions/{partition_of('billing', TRANSACTIONS_TOPIC)}/log"
GROUPS_LOG = f"__groups/{partition_of('workers', GROUPS_TOPIC)}/log"
JOURNAL = f"{JOURNAL_LOG}/{0:020}.log"


def log_of(topic: str, partition: int = 0, segment: int = 0) -> str:
    return f"{topic}/{partition}/log/{segment:020}.log"


def stable(node: Node, topic: str = "orders", partition: int = 0) -> int:
    """Where readers of what is committed have to stop, when markers are on the medium, too."""
    node.pass_time(0.1)
    return node.broker.topics.describe(topic).partitions[partition].last_stable_offset


def end(node: Node, topic: str = "orders", partition: int = 0) -> int:
    return node.broker.topics.describe(topic).partitions[partition].end_offset


@pytest.fixture
def faulty(disk: MemoryDisk) -> FaultyDisk:
    return FaultyDisk(disk, seed=1)


# --- what readers see ----------------------------------------------------------------------------


def test_nothing_of_an_open_transaction_is_seen_and_all_of_it_once_it_is_committed(node: Node) -> None:
    node.create(partitions=2)
    node.create("bills")
    node.publish(b"before")
    owner = Owner(node)
    owner.begin()
    owner.publish(b"a", b"b")
    owner.publish(b"c", partition=1)
    owner.publish(b"d", topic="bills")
    node.publish(b"after")

    assert node.values() == [b"before"]
    assert node.values(partition=1) == node.values("bills") == []
    assert uncommitted(node) == [b"before", b"a", b"b", b"after"]

    assert owner.commit().status == "committed"

    assert node.values() == [b"before", b"a", b"b", b"after"]
    assert node.values(partition=1) == [b"c"]
    assert node.values("bills") == [b"d"]


def test_nothing_of_an_aborted_transaction_is_ever_seen(node: Node) -> None:
    node.create()
    owner = Owner(node)
    owner.begin()
    owner.publish(b"a", b"b")
    node.publish(b"after")

    assert owner.abort().status == "aborted"

    assert node.values() == [b"after"]
    assert uncommitted(node) == [b"a", b"b", b"after"]
    assert [got.value for got in Consumer(node).poll()] == [b"after"]
    assert restarted(node, keep="nothing").values() == [b"after"]


def test_a_reader_who_waits_is_woken_by_the_commit_and_by_the_abort(node: Node) -> None:
    node.create()
    owner = Owner(node)
    owner.begin()
    owner.publish(b"a")
    node.publish(b"plain")
    waiting = node.broker.messages.read("orders", 0, wait_ms=60_000)
    polling = Consumer(node).wait(wait_ms=60_000)
    assert not waiting.is_done
    assert not polling.is_done

    owner.abort()

    assert offsets_of(waiting.result()) == [1]
    assert polling.is_done


def test_no_reader_who_is_woken_by_a_commit_sees_less_than_all_of_it(node: Node) -> None:
    node.create(partitions=3)
    owner = Owner(node)
    owner.begin()
    for partition in range(3):
        owner.publish(b"x", partition=partition)
    seen: list[list[list[bytes]]] = []
    for partition in range(3):
        waiting = node.broker.messages.read("orders", partition, wait_ms=60_000)
        waiting.then(lambda _: seen.append([node.values(partition=number) for number in range(3)]))

    owner.commit()

    assert seen == [[[b"x"]] * 3] * 3


def test_transactions_that_overlap_in_a_partition_are_decided_each_for_itself(node: Node) -> None:
    node.create()
    anna, ben = Owner(node, "anna"), Owner(node, "ben")
    anna.begin()
    ben.begin()
    anna.publish(b"a1")
    ben.publish(b"b1")
    anna.publish(b"a2")
    ben.publish(b"b2")

    ben.commit()
    assert node.values() == []
    assert stable(node) == 0

    anna.abort()
    assert node.values() == [b"b1", b"b2"]
    assert stable(node) == end(node)
    again = restarted(node, keep="nothing")
    assert again.values() == [b"b1", b"b2"]
    assert [got.value for got in Consumer(again).poll()] == [b"b1", b"b2"]


def test_the_stable_offset_and_the_lag_end_where_the_first_open_transaction_begins(node: Node) -> None:
    node.create()
    node.publish(b"a", b"b")
    consumer = Consumer(node)
    owner = Owner(node)
    owner.begin()
    owner.publish(b"c", b"d", b"e")
    node.publish(b"f")

    (position,) = node.broker.groups.positions("workers")
    assert (stable(node), position.lag) == (2, 2)
    assert node.read().last_stable_offset == 2
    assert offsets(consumer.poll()) == [0, 1]

    owner.abort()
    consumer.poll()
    (position,) = node.broker.groups.positions("workers")
    assert stable(node) == end(node) == 7
    assert position.lag == 3


def test_control_records_are_no_messages(node: Node) -> None:
    node.create(partitions=2)
    owner = Owner(node)
    for number in range(3):
        owner.begin()
        owner.publish(b"x", b"y")
        owner.publish(b"z", partition=1)
        owner.commit() if number else owner.abort()

    for one in now_and_later(node):
        assert one.broker.topics.describe("orders").total_messages == 9


# --- who may ask for what ------------------------------------------------------------------------


def test_a_second_instance_fences_the_first_and_aborts_what_it_left_open(node: Node) -> None:
    node.create()
    first = Owner(node)
    first.begin()
    first.publish(b"half")
    second = Owner(node)

    for refused in (first.begin, first.commit, first.abort, lambda: first.publish(b"more"), lambda: first.ack([])):
        with pytest.raises(ProducerFenced):
            refused()
    with pytest.raises(TransactionError):
        first.messages(NewMessage(b"more"))

    assert node.values() == []
    assert stable(node) == end(node)
    second.begin()
    second.publish(b"whole")
    second.commit()
    assert node.values() == [b"whole"]


@pytest.mark.parametrize("step", ["begun", "published", "acked", "committing", "committed", "aborted"])
def test_fencing_at_every_step_leaves_all_or_nothing(node: Node, step: str) -> None:
    node.create(partitions=2)
    node.publish(b"in")
    consumer = Consumer(node)
    (message,) = consumer.poll()
    first = Owner(node)
    first.begin()
    if step != "begun":
        first.publish(b"out", partition=1)
    if step in ("acked", "committing", "committed"):
        first.ack([message])
    if step == "committed":
        first.commit()
    if step == "aborted":
        first.abort()
    asked = first.committing() if step == "committing" else None

    second = Owner(node)

    is_committed = step in ("committing", "committed")
    assert asked is None or asked.result().status == "committed"
    assert node.values(partition=1) == ([b"out"] if is_committed else [])
    assert floor(node) == is_committed
    assert stable(node, partition=1) == end(node, partition=1)
    with pytest.raises(ProducerFenced):
        first.commit()
    second.begin()
    second.publish(b"next", partition=1)
    second.commit()
    assert node.values(partition=1)[-1:] == [b"next"]


def test_a_commit_can_be_repeated_and_never_hits_the_next_transaction(node: Node) -> None:
    node.create()
    owner = Owner(node)
    owner.begin()
    owner.publish(b"a")
    owner.commit()
    assert owner.commit() == owner.commit()
    assert owner.commit().already
    with pytest.raises(InvalidTransactionState):
        owner.abort()
    late = owner.moved_to(node)
    owner.begin()
    owner.publish(b"b")

    with pytest.raises(TransactionError):
        late.commit()
    with pytest.raises(TransactionError):
        late.abort()

    assert node.values() == [b"a"]
    owner.commit()
    assert node.values() == [b"a", b"b"]


def test_an_admin_aborts_what_somebody_else_has_open(node: Node) -> None:
    node.create()
    owner = Owner(node)
    owner.begin()
    owner.publish(b"a")
    (open_one,) = node.broker.transactions.list()

    outcome = node.done(node.broker.transactions.abort_by_admin(open_one.transaction_id))

    assert outcome.status == "aborted"
    assert node.values() == []
    assert stable(node) == end(node)
    for refused in (owner.commit, lambda: owner.publish(b"b"), lambda: owner.messages(NewMessage(b"b"))):
        with pytest.raises(TransactionAborted) as raised:
            refused()
        assert raised.value.reason == "admin"
    with pytest.raises(TransactionNotFound):
        node.broker.transactions.describe(open_one.transaction_id)
    owner.begin()
    owner.publish(b"c")
    owner.commit()
    assert node.values() == [b"c"]


def test_a_batch_that_is_sent_again_inside_of_a_transaction_is_stored_once(node: Node) -> None:
    node.create()
    owner = Owner(node)
    owner.begin()
    first = owner.publish(b"a", b"b")
    again = owner.publish(b"a", b"b", again=True)
    assert (again.first_offset, again.duplicate) == (first.first_offset, True)
    owner.publish(b"c")

    owner.commit()
    assert node.values() == [b"a", b"b", b"c"]

    with pytest.raises(TransactionError):  # what comes late belongs to nothing any more
        owner.publish(b"c", again=True)
    owner.begin()
    owner.publish(b"d")
    owner.abort()
    assert node.values() == [b"a", b"b", b"c"]


def test_the_number_of_records_that_a_commit_names_has_to_be_stored(node: Node) -> None:
    node.create()
    owner = Owner(node)
    owner.begin()
    owner.publish(b"a", b"b")
    counted = owner.owner
    for count in (0, 1, 3):
        counted.record_count = count
        with pytest.raises(InvalidTransactionState):
            node.broker.transactions.commit(counted)
    assert node.values() == []

    owner.publish(b"a", b"b", again=True)
    counted.record_count = 2
    assert node.done(node.broker.transactions.commit(counted)).status == "committed"
    assert node.values() == [b"a", b"b"]


def test_an_outcome_that_comes_late_touches_nothing(node: Node) -> None:
    node.create()
    owner = Owner(node)
    owner.begin()
    owner.publish(b"a")
    first = owner.key
    owner.commit()
    owner.begin()
    owner.publish(b"b")

    for commit in (False, True):
        assert node.leader().end_transaction(*first, commit=commit).is_done
        assert node.leader().end_transaction(first[0], first[1] + 10**6, commit=commit).is_done

    assert (node.values(), end(node)) == ([b"a"], 3)
    owner.commit()
    assert node.values() == [b"a", b"b"]


# --- time ----------------------------------------------------------------------------------------


def test_an_abandoned_transaction_holds_up_readers_no_longer_than_its_timeout(node: Node) -> None:
    node.create()
    owner = Owner(node, timeout_ms=5_000)
    owner.begin()
    owner.publish(b"abandoned")
    node.publish(b"plain")
    consumer = Consumer(node)

    node.pass_time(4.9)
    assert node.values() == []
    assert consumer.poll() == []

    node.pass_time(0.2)
    assert node.values() == [b"plain"]
    assert [got.value for got in consumer.poll()] == [b"plain"]
    with pytest.raises(TransactionAborted) as raised:
        owner.commit()
    assert raised.value.reason == "timeout"
    owner.begin()
    owner.publish(b"next")
    owner.commit()
    assert node.values() == [b"plain", b"next"]


def test_a_commit_that_is_under_way_is_not_timed_out(node: Node) -> None:
    node.create()
    owner = Owner(node, timeout_ms=1_000)
    owner.begin()
    owner.publish(b"a")
    asked = owner.committing()

    node.tick(10)
    node.workers.run_all()

    assert asked.result().status == "committed"
    assert node.values() == [b"a"]


# --- acks and positions --------------------------------------------------------------------------


def test_acks_and_positions_take_effect_with_the_commit(node: Node) -> None:
    node.create()
    node.publish(b"a", b"b", b"c")
    consumer = Consumer(node)
    got = consumer.poll(2)
    owner = Owner(node)
    owner.begin()
    assert outcomes(owner.ack(got)) == ["held", "held"]
    owner.position(2)
    assert floor(node) == position_of(node) == 0
    assert offsets(consumer.poll()) == [2]

    owner.commit()

    assert (floor(node), position_of(node)) == (2, 2)
    again = restarted(node, keep="nothing")
    assert (floor(again), position_of(again)) == (2, 2)


def test_what_an_aborted_transaction_acknowledged_comes_again_and_its_positions_do_not_count(node: Node) -> None:
    node.create()
    node.publish(b"a", b"b", b"c")
    consumer = Consumer(node)
    got = consumer.poll()
    owner = Owner(node)
    owner.begin()
    owner.ack(got[:2])
    owner.position(2)

    owner.abort()

    assert (floor(node), position_of(node)) == (0, 0)
    assert [(one.offset, one.count) for one in consumer.poll()] == [(0, 2), (1, 2)]
    assert outcomes(consumer.ack(got[:1])) == ["RECEIPT_HANDLE_EXPIRED"]  # it was delivered again
    assert outcomes(consumer.ack(got[2:])) == ["ack"]


def test_what_a_transaction_holds_is_not_delivered_again_however_long_it_takes(node: Node) -> None:
    node.create(visibility_timeout="5s")
    node.publish(b"a", b"b")
    consumer, other = (Consumer(node, mode="shared", session_timeout_ms=300_000) for _ in range(2))
    owner = Owner(node)
    owner.begin()
    got = consumer.poll()
    owner.ack(got[:1])
    consumer.leave()

    node.pass_time(30, step=1)
    assert offsets(other.poll()) == [1]
    owner.commit()
    node.pass_time(30, step=1)
    assert offsets(other.poll()) == [1]
    assert floor(node) == 1


def test_a_message_whose_acks_were_all_aborted_goes_to_the_dead_letters_in_the_end(node: Node) -> None:
    node.create(max_deliveries=3)
    node.publish(b"poison")
    consumer = Consumer(node)
    owner = Owner(node)
    for count in (1, 2, 3):
        (got,) = consumer.poll()
        assert got.count == count
        owner.begin()
        owner.ack([got])
        owner.abort()
        node.workers.run_all()

    assert consumer.poll() == []
    assert floor(node) == 1
    (letter,) = decoded(node.read("orders.dlq"))
    assert letter.value == b"poison"
    assert letter.headers["gq-attempts"] == "3"


def test_a_message_of_a_transaction_can_become_a_dead_letter_which_belongs_to_none(node: Node) -> None:
    node.create()
    owner = Owner(node)
    owner.begin()
    owner.publish(b"a", b"b")
    owner.commit()
    consumer = Consumer(node)
    consumer.settle("reject", consumer.poll())

    for one in now_and_later(node):
        letters = decoded(one.read("orders.dlq"))
        assert [letter.value for letter in letters] == [b"a", b"b"]
        assert all(PRODUCER not in letter.headers and ORIGIN in letter.headers for letter in letters)
        assert stable(one, "orders.dlq") == end(one, "orders.dlq") == 2
        assert len(one.leader("orders.dlq").producers.sequences) == 1  # that of the copies


def test_an_ack_that_came_through_another_way_leaves_the_commit_as_it_is(node: Node) -> None:
    node.create()
    node.publish(b"a", b"b", b"c")
    consumer = Consumer(node)
    got = consumer.poll()
    owner = Owner(node)
    owner.begin()
    owner.ack(got[:2])
    assert outcomes(consumer.ack(got[:1])) == ["RECEIPT_HANDLE_UNKNOWN"]
    commit = [node.broker.groups.commit("workers", [_position(1)], member_id=consumer.id, generation=1)]
    node.workers.run_all()
    assert commit[0].is_done

    owner.commit()

    assert floor(node) == 2
    assert outcomes(consumer.ack(got[2:])) == ["ack"]
    assert floor(node) == 3


def _position(offset: int, topic: str = "orders") -> reports.PositionCommit:
    return reports.PositionCommit(topic, 0, offset)


def _join(topic: str) -> Join:
    return Join(client_id="c", topics=(topic,), member_id=None)


def test_a_group_that_begins_anew_gets_what_a_transaction_held(node: Node) -> None:
    node.create()
    node.publish(b"a", b"b")
    consumer = Consumer(node)
    owner = Owner(node)
    owner.begin()
    owner.ack(consumer.poll())
    consumer.leave()
    node.done(node.broker.groups.reset("workers", "earliest", topic="orders"))

    owner.commit()

    assert offsets(Consumer(node).poll()) == [0, 1]


def test_a_group_that_is_deleted_meanwhile_has_no_say_in_the_commit(node: Node) -> None:
    node.create()
    node.publish(b"a")
    consumer = Consumer(node)
    owner = Owner(node)
    owner.begin()
    owner.ack(consumer.poll())
    owner.position(1)
    owner.publish(b"out")
    consumer.leave()
    for group in ("workers", "readers"):
        node.done(node.broker.groups.delete(group))

    assert owner.commit().status == "committed"

    for one in now_and_later(node):
        assert one.values() == [b"a", b"out"]
        assert one.broker.groups.names() == []


def test_a_key_is_held_back_until_the_transaction_ends(node: Node) -> None:
    node.create()
    keyed = [NewMessage(value, key=b"k") for value in (b"1", b"2")]
    node.messages(*keyed, NewMessage(b"other", key=b"o"))
    consumers = [Consumer(node, mode="key-shared") for _ in range(2)]
    first = consumers[0].poll(1)
    assert offsets(first) == [0]
    owner = Owner(node)
    owner.begin()
    owner.ack(first)
    assert offsets(consumers[1].poll()) == [2]

    owner.abort()
    (again,) = consumers[1].poll(1)
    assert (again.offset, again.count) == (0, 2)
    owner.begin()
    owner.ack([again])
    assert consumers[0].poll() == consumers[1].poll() == []

    owner.commit()
    assert offsets(consumers[0].poll()) == [1]


def test_aborted_messages_are_in_no_lane(node: Node) -> None:
    node.create()
    owner = Owner(node)
    owner.begin()
    owner.publish(b"a", b"b")
    owner.abort()
    node.publish(b"after")

    report = next(one for one in node.broker.groups.lanes("orders") if one.partition == 0)

    assert sum(report.total) == sum(report.pending) == 1


def test_a_message_for_the_transaction_of_another_producer_is_refused_by_name(node: Node) -> None:
    node.create()
    owner = Owner(node)
    owner.begin()
    stranger = ProducerEpoch(owner.session.producer_id + 1, 0)

    with pytest.raises(InvalidRequest, match="belongs to producer"):
        node.broker.messages.publish("orders", [NewMessage(b"x")], producer=stranger, transaction_id=owner.id)


def test_lanes_take_committed_messages_by_their_priority(node: Node) -> None:
    node.create()
    owner = Owner(node)
    owner.begin()
    owner.messages(NewMessage(b"low", priority=Priority.LOW), NewMessage(b"critical", priority=Priority.CRITICAL))
    consumer = Consumer(node)
    assert consumer.poll() == []
    owner.commit()
    owner.begin()
    owner.messages(NewMessage(b"never", priority=Priority.CRITICAL))
    owner.abort()
    node.messages(NewMessage(b"plain"))

    assert [got.value for got in consumer.poll(1)] == [b"critical"]
    assert {got.value for got in consumer.poll()} == {b"low", b"plain"}


def test_the_time_to_live_runs_while_a_transaction_is_open(node: Node) -> None:
    node.create(ttl="10s")
    owner = Owner(node)
    owner.begin()
    owner.publish(b"old")
    consumer = Consumer(node)
    node.pass_time(11, step=1)
    owner.publish(b"young")

    owner.commit()

    assert [got.value for got in consumer.poll()] == [b"young"]


# --- delays --------------------------------------------------------------------------------------


def delayed(node: Node, value: bytes, seconds: float) -> NewMessage:
    return NewMessage(value, deliver_at_ns=node.clock.wall_ns() + round(seconds * SECOND))


def pending_values(node: Node) -> list[int]:
    return [one.offset for one in node.broker.delays.list("orders", state="pending")]


def test_a_delayed_message_that_is_committed_comes_at_its_time(node: Node) -> None:
    node.create()
    owner = Owner(node)
    owner.begin()
    owner.messages(delayed(node, b"later", 10))
    consumer = Consumer(node)
    owner.commit()
    assert consumer.poll() == node.values() == []

    node.pass_time(9.9)
    assert consumer.poll() == node.values() == []
    node.pass_time(0.2)
    assert [got.value for got in consumer.poll()] == node.values() == [b"later"]


def test_a_commit_after_the_time_of_a_delayed_message_delivers_it_at_once(node: Node) -> None:
    node.create()
    owner = Owner(node)
    owner.begin()
    owner.messages(delayed(node, b"later", 5))
    consumer = Consumer(node)
    node.pass_time(10)
    assert consumer.poll() == node.values() == []

    owner.commit()

    assert [got.value for got in consumer.poll()] == node.values() == [b"later"]


@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_delayed_message_that_was_aborted_never_comes_and_does_not_wait(node: Node, is_restarted: bool) -> None:
    node.create()
    owner = Owner(node)
    owner.begin()
    owner.messages(delayed(node, b"never", 5), delayed(node, b"never either", 3_600))
    owner.abort()
    node.messages(delayed(node, b"later", 5))
    if is_restarted:
        node = restarted(node)
    assert pending_values(node) == [3]
    assert node.broker.delays.stats().pending == 1

    node.pass_time(6)
    assert node.values() == [got.value for got in Consumer(node).poll()] == [b"later"]
    assert pending_values(node) == []


def test_a_power_cut_that_takes_the_delay_file_brings_no_aborted_message_back(node: Node, disk: MemoryDisk) -> None:
    node.create()
    owner = Owner(node)
    owner.begin()
    owner.messages(delayed(node, b"never", 5))
    owner.abort()
    node.messages(delayed(node, b"later", 5))

    again = restarted(node, keep="nothing")

    assert pending_values(again) == [2]
    again.pass_time(6)
    assert again.values() == [b"later"]


def test_a_delayed_message_whose_transaction_a_crash_aborted_never_comes(node: Node) -> None:
    node.create()
    owner = Owner(node)
    owner.begin()
    owner.messages(delayed(node, b"never", 5))

    again = restarted(node)

    assert pending_values(again) == []
    again.pass_time(6)
    assert again.values() == []
    assert Consumer(again).poll() == []


# --- topics that come and go ---------------------------------------------------------------------


def test_a_topic_that_is_deleted_meanwhile_does_not_keep_a_transaction_from_its_end(node: Node) -> None:
    node.create()
    node.create("bills")
    consumer_topics = ("bills",)
    node.publish(b"in", topic="bills")
    consumer = Consumer(node, topics=consumer_topics)
    owner = Owner(node)
    owner.begin()
    owner.ack(consumer.poll())
    owner.publish(b"a")
    owner.publish(b"b", topic="bills")
    node.done(node.broker.topics.delete("bills"))

    assert owner.commit().status == "committed"

    assert node.values() == [b"a"]
    assert restarted(node, keep="nothing").values() == [b"a"]


def test_a_topic_that_is_deleted_while_a_commit_waits_for_its_disk_does_not_break_the_commit(node: Node) -> None:
    node.create()
    node.create("bills")
    owner = Owner(node)
    owner.begin()
    sends = [owner.send(b"a"), owner.send(b"b", topic="bills")]
    asked = owner.committing()
    deleted = node.broker.topics.delete("bills")
    node.workers.run_all()

    assert deleted.is_done
    assert sends[0].result().first_offset == 0
    assert asked.result().status == "committed"
    assert node.values() == [b"a"]


@pytest.mark.parametrize("ends", ["commit", "abort"])
def test_a_topic_that_is_made_anew_within_a_transaction_is_a_part_of_it(node: Node, ends: str) -> None:
    node.create()
    owner = Owner(node)
    owner.begin()
    owner.publish(b"gone")
    node.done(node.broker.topics.delete("orders"))
    node.create()
    owner.sequences.clear()
    owner.publish(b"there")

    owner.commit() if ends == "commit" else owner.abort()

    assert stable(node) == end(node) == 2
    assert node.values() == ([b"there"] if ends == "commit" else [])


# --- disks that are full, or fail ----------------------------------------------------------------


def three_partitions(node: Node) -> Owner:
    """An owner with a transaction over three partitions of two topics, and an ack in it."""
    node.create(partitions=2)
    node.create("bills")
    node.create("in")
    node.publish(b"in", b"in too", topic="in")
    consumer = Consumer(node, topics=("in",))
    owner = Owner(node)
    owner.begin()
    owner.publish(b"a")
    owner.publish(b"b", partition=1)
    owner.publish(b"c", topic="bills")
    owner.ack(consumer.poll(1))
    owner.position(1, topic="in")
    return owner


def everything(node: Node) -> list[list[bytes]]:
    return [node.values(), node.values(partition=1), node.values("bills")]


WHOLE, NOTHING = [[b"a"], [b"b"], [b"c"]], [[], [], []]
LOGS = [log_of("orders"), log_of("orders", 1), log_of("bills")]


@pytest.mark.parametrize("path", LOGS)
def test_a_marker_that_finds_no_room_lets_nobody_see_half_and_is_written_later(
    clock: ManualClock, disk: MemoryDisk, faulty: FaultyDisk, path: str
) -> None:
    node = Node(faulty, clock)
    owner = three_partitions(node)
    waiting = [node.broker.messages.read("orders", number, wait_ms=60_000) for number in range(2)]
    for _ in range(3):
        faulty.fail_next("pwrite", ENOSPC, path_suffix=path)

    asked = owner.committing()
    node.workers.run_all()

    assert everything(node) == WHOLE
    assert [read.result().record_count for read in waiting] == [1, 1]
    assert not asked.is_done
    node.pass_time(0.6)
    assert not asked.is_done
    node.pass_time(0.5)
    assert asked.result().status == "committed"
    assert everything(node) == WHOLE
    assert all(stable(node, *place) == end(node, *place) == 2 for place in (("orders", 0), ("orders", 1), ("bills", 0)))
    assert (floor(node, topic="in"), position_of(node, topic="in")) == (1, 1)
    again = Node(disk.crash(keep="nothing"), clock)
    assert everything(again) == WHOLE


@pytest.mark.parametrize("keep", ["nothing", "everything"])
@pytest.mark.parametrize("path", LOGS)
def test_a_crash_before_the_marker_found_room_loses_nothing_of_the_commit(
    clock: ManualClock, disk: MemoryDisk, faulty: FaultyDisk, path: str, keep: str
) -> None:
    node = Node(faulty, clock)
    owner = three_partitions(node)
    node.pass_time(11, step=1)
    for _ in range(1_000):
        faulty.fail_next("pwrite", ENOSPC, path_suffix=path)
    asked = owner.committing()
    node.pass_time(12, step=1)  # long enough for snapshots, which must not tell what the log does not know
    assert not asked.is_done

    again = Node(disk.crash(keep=keep), clock)  # type: ignore[arg-type]

    assert everything(again) == WHOLE
    assert again.broker.transactions.list() == []
    assert owner.moved_to(again).commit().status == "committed"
    lost = again.disk
    assert isinstance(lost, MemoryDisk)
    again.workers.run_all()
    later = Node(lost.crash(keep="nothing"), clock)
    assert everything(later) == WHOLE
    assert (floor(later, topic="in"), position_of(later, topic="in")) == (1, 1)


@pytest.mark.parametrize("operation", ["pwrite", "sync"])
@pytest.mark.parametrize("path", LOGS)
def test_a_disk_that_fails_on_a_marker_lets_nobody_see_half_and_nobody_wait(
    clock: ManualClock, disk: MemoryDisk, faulty: FaultyDisk, path: str, operation: str
) -> None:
    node = Node(faulty, clock)
    owner = three_partitions(node)
    faulty.fail_next(operation, EIO, path_suffix=path)  # type: ignore[arg-type]

    assert owner.commit().status == "committed"
    node.pass_time(0.1)
    assert len(faulty.injected) == 1
    assert everything(node) == WHOLE

    owner.begin()
    untouched = next(other for other in ("orders", "bills") if other not in path)
    owner.publish(b"next", topic=untouched)
    owner.commit()
    again = Node(disk.crash(keep="nothing"), clock)
    everywhere = [value for values in everything(again) for value in values]
    assert sorted(everywhere) == [b"a", b"b", b"c", b"next"]
    assert (floor(again, topic="in"), position_of(again, topic="in")) == (1, 1)


@pytest.mark.parametrize("operation", ["pwrite", "sync"])
@pytest.mark.parametrize("path", LOGS)
def test_a_disk_that_fails_on_the_marker_of_an_abort_brings_nothing_back(
    clock: ManualClock, disk: MemoryDisk, faulty: FaultyDisk, path: str, operation: str
) -> None:
    node = Node(faulty, clock)
    owner = three_partitions(node)
    faulty.fail_next(operation, EIO, path_suffix=path)  # type: ignore[arg-type]

    assert owner.abort().status == "aborted"
    assert everything(node) == NOTHING
    owner.begin()

    again = Node(disk.crash(keep="nothing"), clock)
    assert everything(again) == NOTHING
    assert all(stable(again, topic) == again.leader(topic).high_watermark for topic in ("orders", "bills"))


def test_a_message_that_a_disk_lost_is_not_committed(clock: ManualClock, faulty: FaultyDisk) -> None:
    node = Node(faulty, clock)
    owner = three_partitions(node)
    owner.send(b"lost")
    faulty.fail_next("sync", EIO, path_suffix=log_of("orders"))

    with pytest.raises(StorageFailed):
        owner.commit()

    assert everything(node) == NOTHING
    owner.abort()
    assert everything(node) == NOTHING
    assert floor(node, topic="in") == 0


def run_only(node: Node, directory: str) -> None:
    """Let the disk sync one log, and no other."""
    for job, done in list(node.workers.jobs):
        if isinstance(job, FlushJob) and directory in job._directory:
            node.workers.jobs.remove((job, done))
            job.run()
            done(None)


def test_a_decision_that_is_on_the_medium_without_all_of_its_data_is_none(clock: ManualClock, disk: MemoryDisk) -> None:
    node = Node(disk, clock)
    owner = three_partitions(node)
    owner.send(b"lost", topic="bills")
    asked = owner.committing()
    run_only(node, "__transactions")
    assert not asked.is_done
    assert everything(node) == NOTHING

    again = Node(disk.crash(keep="nothing"), clock)

    assert everything(again) == NOTHING
    assert (floor(again, topic="in"), position_of(again, topic="in")) == (0, 0)
    with pytest.raises(TransactionAborted):
        owner.moved_to(again).commit()


def test_a_decision_that_was_none_stays_so_when_its_partition_has_grown(clock: ManualClock, disk: MemoryDisk) -> None:
    node = Node(disk, clock)
    owner = three_partitions(node)
    owner.send(b"lost", topic="bills")
    owner.committing(marker="once")
    run_only(node, "__transactions")
    once = disk.crash(keep="nothing")
    again = Node(once, clock)
    again.publish(b"new", b"newer", b"newest", topic="bills")

    later = Node(once.crash(keep="nothing"), clock)

    assert everything(later) == [[], [], [b"new", b"newer", b"newest"]]
    assert floor(later, topic="in") == 0
    other = Owner(later)
    assert not other.begin(marker="once").already_committed


def test_data_that_is_on_the_medium_before_its_decision_is_not_committed(clock: ManualClock, disk: MemoryDisk) -> None:
    node = Node(disk, clock)
    owner = three_partitions(node)
    owner.send(b"more", topic="bills")
    asked = owner.committing()
    run_only(node, "bills")
    assert not asked.is_done

    assert everything(Node(disk.crash(keep="nothing"), clock)) == NOTHING


def test_the_next_transaction_does_not_wait_for_the_markers_of_the_last_one(node: Node) -> None:
    node.create()
    owner = Owner(node)
    owner.begin(number=1)
    owner.publish(b"a")
    asked = owner.committing()
    run_only(node, "__transactions")

    assert asked.is_done
    assert not node.workers.jobs
    assert not node.leader().is_clean


def test_a_decision_that_finds_no_room_is_withdrawn_and_can_be_asked_for_again(
    clock: ManualClock, faulty: FaultyDisk
) -> None:
    node = Node(faulty, clock)
    owner = three_partitions(node)
    faulty.fail_next("pwrite", ENOSPC, path_suffix=JOURNAL)

    with pytest.raises(StorageFull):
        owner.commit()
    assert everything(node) == NOTHING
    assert [one.state for one in node.broker.transactions.list()] == ["Ongoing"]

    assert owner.commit().status == "committed"
    assert everything(node) == WHOLE


def test_a_decision_that_was_withdrawn_is_still_timed_out(clock: ManualClock, faulty: FaultyDisk) -> None:
    node = Node(faulty, clock)
    owner = three_partitions(node)
    faulty.fail_next("pwrite", ENOSPC, path_suffix=JOURNAL)
    with pytest.raises(StorageFull):
        owner.commit()

    node.pass_time(61, step=1)

    assert everything(node) == NOTHING
    assert node.broker.transactions.list() == []
    with pytest.raises(TransactionAborted):
        owner.commit()


@pytest.mark.parametrize("keep", ["nothing", "everything"])
def test_a_decision_whose_sync_failed_is_in_doubt_until_the_next_start_and_then_is_not(
    clock: ManualClock, disk: MemoryDisk, faulty: FaultyDisk, keep: str
) -> None:
    node = Node(faulty, clock)
    owner = three_partitions(node)
    faulty.fail_next("sync", EIO, path_suffix=JOURNAL)

    with pytest.raises(StorageFailed):
        owner.commit()
    assert everything(node) == NOTHING
    for asked in (owner.commit, owner.abort, lambda: Owner(node)):
        with pytest.raises(BrokerUnavailable, match="is not known until"):
            asked()
    node.pass_time(120, step=10)
    assert everything(node) == NOTHING

    again = Node(disk.crash(keep=keep), clock)  # type: ignore[arg-type]
    assert everything(again) in (WHOLE, NOTHING)
    is_committed = everything(again) == WHOLE
    assert (floor(again, topic="in") == 1) == is_committed
    if is_committed:
        assert owner.moved_to(again).commit().status == "committed"
    else:
        with pytest.raises(TransactionAborted):
            owner.moved_to(again).commit()
    following = Owner(again)
    following.begin()
    following.publish(b"next")
    following.commit()
    assert again.values()[-1] == b"next"


@pytest.mark.parametrize("room", range(0, 1_300, 100))
def test_a_full_disk_at_any_moment_leaves_all_or_nothing(clock: ManualClock, disk: MemoryDisk, room: int) -> None:
    node = Node(disk, clock)
    node.create(partitions=2)
    node.create("bills")
    node.create("in")
    node.publish(b"in", topic="in")
    consumer = Consumer(node, topics=("in",))
    owner = Owner(node)
    got = consumer.poll(1)
    disk.capacity_bytes = disk.used_bytes + room
    told = ""
    try:
        owner.begin()
        owner.publish(b"a")
        owner.publish(b"b", partition=1)
        owner.publish(b"c", topic="bills")
        assert outcomes(owner.ack(got)) == ["held"]
        asked = owner.committing()
        node.workers.run_all()
        told = asked.result().status if asked.is_done else "in question"
    except GoQueueError as error:
        assert isinstance(error, StorageFull | TransactionError)
    seen = everything(node)
    assert seen == (WHOLE if told else NOTHING)

    disk.capacity_bytes = None
    node.pass_time(2)
    assert everything(node) == seen
    assert floor(node, topic="in") == bool(told)
    again = Node(disk.crash(keep="nothing"), clock)
    assert everything(again) == seen
    assert floor(again, topic="in") == bool(told)
    later = Owner(again)
    later.begin()
    later.publish(b"next")
    later.commit()
    assert again.values()[-1] == b"next"


# --- what a power cut takes ----------------------------------------------------------------------


def run_flushes(node: Node, *, of: tuple[str, ...]) -> None:
    """Let only the flushes of these logs happen: the disk has not come to the others yet."""
    left = []
    while node.workers.jobs:
        job, done = node.workers.jobs.popleft()
        if isinstance(job, FlushJob) and not any(job._directory.endswith(name) for name in of):
            left.append((job, done))
            continue
        job.run()
        done(None)
    node.workers.jobs.extend(left)


def test_acks_of_a_commit_count_though_a_power_cut_took_the_cursor_of_their_group(node: Node) -> None:
    node.create("in")
    node.create("out")
    node.publish(b"1", b"2", topic="in")
    owner = Owner(node)
    owner.begin()
    joining = node.broker.groups.join("workers", _join("in"))
    run_flushes(node, of=(GROUPS_LOG,))
    polling = node.broker.groups.poll("workers", joining.result().member_id, max_messages=1)
    run_flushes(node, of=(GROUPS_LOG,))
    receipts = [message.receipt for message in got(polling.result())]
    adding = node.broker.transactions.add_acks(owner.session.producer_id, owner.session.epoch, receipts)
    leaving = node.broker.groups.leave("workers", joining.result().member_id)
    run_flushes(node, of=(GROUPS_LOG,))
    assert leaving.is_done
    sending = owner.send(b"out", topic="out")
    committing = owner.committing()
    run_flushes(node, of=("out/0/log", JOURNAL_LOG))
    assert adding.is_done
    assert sending.is_done
    assert committing.result().status == "committed"

    again = restarted(node, keep="nothing")

    assert again.values("out") == [b"out"]
    again.pass_time(31, step=1)
    assert [message.value for message in Consumer(again, topics=("in",)).poll()] == [b"2"]


def test_acks_of_messages_that_a_power_cut_took_do_not_hit_those_that_get_their_offsets(node: Node) -> None:
    node.create("in", flush="none")
    node.create("out")
    consumer = Consumer(node, topics=("in",))
    node.send([b"lost"], "in")
    (lost,) = consumer.poll()
    owner = Owner(node)
    owner.begin()
    owner.ack([lost])
    owner.publish(b"out", topic="out")
    asked = owner.committing()
    while not asked.is_done:  # and not so long that the decision is forgotten
        node.workers.run_one()

    again = restarted(node, keep="nothing")
    again.publish(b"other", topic="in")

    assert again.values("out") == [b"out"]
    assert [message.value for message in consumer.moved_to(again).poll()] == [b"other"]


def test_a_decision_is_kept_until_every_marker_is_on_the_medium_though_some_came_later(
    clock: ManualClock, disk: MemoryDisk, faulty: FaultyDisk
) -> None:
    node = Node(faulty, clock)
    owner = three_partitions(node)
    faulty.fail_next("pwrite", ENOSPC, path_suffix=log_of("bills"))
    asked = owner.committing()
    done = ("bills/0/log", JOURNAL_LOG, "in/0/ledger")
    run_flushes(node, of=done)
    node.tick(0.3)
    run_flushes(node, of=done)
    assert asked.result().status == "committed"

    assert everything(Node(disk.crash(keep="nothing"), clock)) == WHOLE


def test_a_decision_that_cannot_be_forgotten_now_is_forgotten_later(clock: ManualClock, faulty: FaultyDisk) -> None:
    node = Node(faulty, clock)
    owner = three_partitions(node)
    for _ in range(3):
        faulty.fail_next("pwrite", ENOSPC, path_suffix=JOURNAL, skip=1)
    owner.commit()
    journal = node.journal("__transactions", "billing")
    assert [key for key in journal.load() if key.startswith(b"d:")]

    node.pass_time(2)

    assert not [key for key in journal.load() if key.startswith(b"d:")]
    assert everything(node) == WHOLE


def test_a_start_on_a_full_disk_shows_all_that_was_committed_and_catches_up_later(
    clock: ManualClock, disk: MemoryDisk
) -> None:
    node = Node(disk, clock)
    owner = three_partitions(node)
    asked = owner.committing()
    while not asked.is_done:
        node.workers.run_one()
    faulty = FaultyDisk(disk.crash(keep="nothing"), seed=1)
    for path in LOGS[:2]:
        for _ in range(3):
            faulty.fail_next("pwrite", ENOSPC, path_suffix=path)

    again = Node(faulty, clock)
    assert everything(again) == WHOLE
    assert (floor(again, topic="in"), position_of(again, topic="in")) == (1, 1)
    again.pass_time(3)

    assert everything(again) == WHOLE
    assert end(again) == end(again, partition=1) == 2
    assert again.broker.transactions.list() == []


def test_a_key_that_a_transaction_holds_is_held_back_though_the_group_goes_by_keys_only_since_then(node: Node) -> None:
    node.create()
    node.messages(*[NewMessage(value, key=b"k") for value in (b"1", b"2")])
    first = Consumer(node, mode="shared")
    owner = Owner(node)
    owner.begin()
    owner.ack(first.poll(1))
    first.leave()
    second = Consumer(node, mode="key-shared")
    assert second.poll() == []

    owner.commit()

    assert offsets(second.poll()) == [1]
