"""A coordinator can be detached at any step: what is decided happens, and what is not is aborted."""

import pytest

from goqueue.broker.coordination import TRANSACTIONS_TOPIC, partition_of
from goqueue.errors import NotLeader, TransactionAborted
from goqueue.testing import ManualClock, MemoryDisk
from tests.broker.brokers import Node
from tests.broker.consumers import Consumer, floor
from tests.broker.flapping import flap
from tests.broker.transactional import Owner, position_of

NAME = "billing"
COORDINATOR = partition_of(NAME, TRANSACTIONS_TOPIC)
JOBS_MAX = 12


def opened(node: Node) -> Owner:
    """A transaction with all that one can have."""
    node.create(partitions=2)
    node.create("in")
    node.publish(b"in", topic="in")
    consumer = Consumer(node, topics=("in",))
    owner = Owner(node, NAME)
    owner.begin()
    owner.publish(b"a")
    owner.publish(b"b", partition=1)
    owner.ack(consumer.poll())
    owner.position(1, topic="in")
    return owner


def seen(node: Node) -> tuple[object, ...]:
    values = [node.values(partition=number) for number in range(2)]
    return *values, floor(node, topic="in"), position_of(node, topic="in")


ALL: tuple[object, ...] = ([b"a"], [b"b"], 1, 1)
NOTHING: tuple[object, ...] = ([], [], 0, 0)


def attach_again(node: Node) -> None:
    flap(node, TRANSACTIONS_TOPIC, COORDINATOR)
    node.workers.run_all()


@pytest.mark.parametrize("job_count", range(JOBS_MAX))
@pytest.mark.parametrize("with_data", [False, True])
def test_a_commit_whose_coordinator_is_detached_at_any_step_happens_or_does_not(
    node: Node, job_count: int, with_data: bool
) -> None:
    owner = opened(node)
    asked = owner.committing()
    for _ in range(min(job_count, len(node.workers.jobs))):
        node.workers.run_one()
    was_answered = asked.is_done

    attach_again(node)
    if with_data:
        for partition in range(2):
            flap(node, "orders", partition)
    node.pass_time(1)

    assert asked.is_done
    assert was_answered or isinstance(asked.error, NotLeader)
    assert seen(node) in (ALL, NOTHING)
    if seen(node) == ALL:
        assert owner.commit().already
    else:
        assert not was_answered
        with pytest.raises(TransactionAborted):
            owner.commit()
    for partition in range(2):
        leader = node.leader(partition=partition)
        assert leader.last_stable_offset == leader.high_watermark
    owner.begin()
    owner.publish(b"next")
    owner.commit()
    assert node.values()[-1] == b"next"


def test_a_coordinator_that_is_not_here_asks_to_be_called_elsewhere_and_aborts_nothing(node: Node) -> None:
    owner = opened(node)
    node.broker.partitions.resign(TRANSACTIONS_TOPIC, COORDINATOR)

    for asked in (owner.begin, owner.commit, owner.abort, lambda: owner.publish(b"c"), lambda: owner.position(1)):
        with pytest.raises(NotLeader):
            asked()
    with pytest.raises(NotLeader):
        node.done(node.broker.transactions.init(NAME))
    for partition in range(2):
        flap(node, "orders", partition)  # a new leader finds open transactions, and asks nobody who is not here
    node.pass_time(61, step=1)

    assert node.leader().last_stable_offset == 0
    assert seen(node) == NOTHING
    assert [info.transactional_id for info in node.broker.transactions.list()] == []

    node.broker.partitions.become_leader(TRANSACTIONS_TOPIC, COORDINATOR)
    node.pass_time(1)

    assert node.leader().last_stable_offset == node.leader().high_watermark
    with pytest.raises(TransactionAborted) as raised:
        owner.commit()
    assert raised.value.reason == "restart"
    assert seen(node) == NOTHING


def test_what_waits_for_a_decision_that_is_under_way_is_told_when_the_coordinator_is_detached(node: Node) -> None:
    owner = opened(node)
    committing = owner.committing()
    waiting = node.broker.transactions.init(NAME)

    node.broker.partitions.resign(TRANSACTIONS_TOPIC, COORDINATOR)

    for asked in (committing, waiting):
        assert isinstance(asked.error, NotLeader)


def test_a_decision_that_waits_for_a_leader_when_its_coordinator_is_detached_is_carried_out_by_the_next_attach(
    node: Node,
) -> None:
    owner = opened(node)
    asked = owner.committing()
    node.broker.partitions.resign("orders", 1)
    node.workers.run_all()
    attach_again(node)
    assert isinstance(asked.error, NotLeader)

    node.broker.partitions.become_leader("orders", 1)
    node.pass_time(1)

    assert seen(node) in (ALL, NOTHING)
    assert (seen(node) == ALL) == bool(_is_committed(owner))


def _is_committed(owner: Owner) -> bool:
    try:
        return owner.commit().already
    except TransactionAborted:
        return False


def test_the_first_attach_of_a_process_asks_for_what_the_disk_had_and_not_for_what_came_since() -> None:
    disk, clock = MemoryDisk(), ManualClock()
    node = Node(disk, clock)
    owner = opened(node)
    owner.send(b"lost", partition=1)
    owner.committing()
    for job, done in list(node.workers.jobs):
        if "__transactions" in getattr(job, "_directory", ""):
            job.run()
            done(None)
    again = Node(disk.crash(keep="nothing"), clock)

    assert seen(again) == NOTHING
    again.publish(b"x", b"y", partition=1)
    attach_again(again)
    assert seen(again)[1] == [b"x", b"y"]


def test_open_transactions_and_totals_are_those_of_all_coordinators(node: Node) -> None:
    node.create()
    owners = [Owner(node, f"owner-{number}") for number in range(8)]
    for owner in owners:
        owner.begin()
        owner.publish(b"x")
    stats = node.broker.transactions.stats()
    assert (stats.active_transactions, stats.by_state["Ongoing"], stats.producers) == (8, 8, 8)
    for owner in owners[:5]:
        owner.commit()

    node.pass_time(0.1)  # until nothing of them has to be carried out again
    flap(node, TRANSACTIONS_TOPIC)
    node.workers.run_all()

    stats = node.broker.transactions.stats()
    assert (stats.active_transactions, stats.committed_total, stats.aborted_total) == (0, 5, 3)
    assert stats.by_state["CompleteCommit"] == 5
