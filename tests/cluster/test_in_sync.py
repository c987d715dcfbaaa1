"""Who is in sync: what the leader asks for, and what counts until that is decided."""

from typing import Any

import msgspec

from goqueue.broker.partition.commit_gate import InSync
from goqueue.clock import MS, SECOND
from goqueue.cluster.fetch_messages import ReplicaKey
from goqueue.cluster.in_sync import ASK_AGAIN_NS, LAG_NS, InSyncReplicas
from goqueue.cluster.messages import IsrChange, IsrMember, IsrRefusal, IsrResult
from goqueue.cluster.records import BrokerChanged, BrokerStatus, PartitionChanged
from goqueue.testing import ManualClock
from tests.broker.partition.replicated import Member
from tests.cluster.history import with_topic

KEY: ReplicaKey = ("t1", 0)
TICK = 250 * MS
START = 1000 * SECOND


class Led:
    """Node 1 leads the only partition of `t1`, on nodes 1, 2 and 3; the test is the controller."""

    def __init__(self, isr: tuple[int, ...] = (1, 2, 3)) -> None:
        self.history = with_topic()
        if isr != (1, 2, 3):
            self.apply(isr=isr, partition_epoch=1)
        self.now = START
        clock = ManualClock()
        self.members = {node: Member(node, clock) for node in (1, 2, 3)}
        self.leader = self.members[1]
        self.in_sync = InSyncReplicas(1, self.history.metadata)
        self.asked_for: list[IsrChange] = []
        self.lead()

    @property
    def partition(self) -> PartitionChanged:
        partition = self.history.metadata.partition(*KEY)
        assert isinstance(partition, PartitionChanged)
        return partition

    @property
    def high_watermark(self) -> int:
        return self.leader.replica.high_watermark

    def apply(self, **changes: Any) -> None:
        """The controller has changed the partition, and that is applied here; the reconciler is not told yet."""
        assert self.history.append(msgspec.structs.replace(self.partition, **changes))

    def lead(self) -> list[ReplicaKey]:
        """All nodes take their roles in the current epoch."""
        partition = self.partition
        self.leader.lead(partition.leader_epoch, InSync(frozenset(partition.isr), at_least=2))
        for node in (2, 3):
            self.members[node].follow(partition.leader_epoch)
        return self.in_sync.lead({KEY: self.leader.replica}, self.now)

    def broker_epoch(self, node: int) -> int:
        broker = self.history.metadata.broker(node)
        assert broker is not None
        return int(broker.broker_epoch)

    # --- what the followers do -----------------------------------------------------------------

    def send(self, *values: bytes) -> None:
        self.leader.send(None, *values or (b"x",), early=True)
        self.leader.settle()

    def hear(self, *nodes: int) -> None:
        """They ask for something, and have not moved."""
        for node in nodes:
            self.in_sync.heard(node, self.now)

    def report(self, *nodes: int, broker_epoch: int | None = None) -> None:
        """They say where they are."""
        for node in nodes:
            fetch = self.members[node].fetch
            assert fetch is not None
            self.hear(node)
            epoch = self.broker_epoch(node) if broker_epoch is None else broker_epoch
            self.in_sync.reported(KEY, node, epoch, fetch, self.now)
            self.leader.answer(node, fetch)

    def copy(self, *nodes: int) -> None:
        """They fetch everything, and say so."""
        for node in nodes:
            self.members[node].copy_from(self.leader)
        self.report(*nodes)

    # --- what the leader asks for --------------------------------------------------------------

    def changes(self) -> list[IsrChange]:
        return self.in_sync.changes(self.now)

    def run(self, duration: int, *heard: int) -> list[tuple[int, ...]]:
        """Let time pass while these nodes ask for more; returns the ISRs that the leader has asked for."""
        wanted: list[tuple[int, ...]] = []
        end = self.now + duration
        while self.now < end:
            self.now = min(self.now + TICK, end)
            self.hear(*heard)
            wanted += [nodes_of(change) for change in self.changes()]
        return wanted

    def ask(self) -> IsrChange:
        """The only change that there is to ask for."""
        [change] = self.changes()
        return change

    def refuse(self, change: IsrChange, why: IsrRefusal = IsrRefusal.INELIGIBLE_REPLICA) -> None:
        self.in_sync.answered(change, IsrResult(self.partition.partition_epoch, why))

    def decide(self, change: IsrChange) -> IsrResult:
        """The answer of a controller that has made the change, which is not applied here yet."""
        return IsrResult(change.partition_epoch + 1)

    def apply_change(self, change: IsrChange) -> None:
        """The change that the controller has made is applied here, and the reconciler tells the leader."""
        self.apply(isr=nodes_of(change), partition_epoch=change.partition_epoch + 1)
        followers = self.leader.replica.followers
        assert followers is not None
        followers.change(InSync(frozenset(nodes_of(change)), at_least=2))


def nodes_of(change: IsrChange) -> tuple[int, ...]:
    return tuple(member.node for member in change.isr)


# Leaving


def test_a_follower_that_is_not_heard_leaves() -> None:
    led = Led()
    led.report(2, 3)

    assert led.run(LAG_NS, 2) == []
    assert led.run(TICK, 2) == [(1, 2)]


def test_a_follower_that_this_leader_never_heard_leaves_as_late_as_one_that_it_did() -> None:
    led = Led()
    led.report(2)

    assert led.run(LAG_NS, 2) == []
    assert led.run(TICK, 2) == [(1, 2)]


def test_a_follower_that_is_heard_and_does_not_keep_up_leaves() -> None:
    led = Led()
    led.copy(2, 3)
    led.send()
    led.copy(2)

    assert led.run(LAG_NS, 2, 3) == []
    assert led.run(2 * TICK, 2, 3) == [(1, 2)]


def test_a_follower_that_asks_for_other_partitions_only_leaves() -> None:
    led = Led()
    led.report(2)

    assert led.run(LAG_NS, 2, 3) == []
    assert led.run(TICK, 2, 3) == [(1, 2)]


def test_a_follower_that_lags_by_the_ledger_alone_leaves() -> None:
    led = Led()
    led.copy(2, 3)
    led.leader.replica.leading.ledger.write([(b"n", b"fact")])
    led.leader.settle()
    led.copy(2)

    assert led.run(LAG_NS + 2 * TICK, 2, 3) == [(1, 2)]


def test_a_follower_that_moves_and_falls_further_and_further_behind_leaves() -> None:
    led = Led()
    led.copy(2, 3)
    led.send(*[b"x"] * 100)
    wanted: list[tuple[int, ...]] = []
    for number in range(20):
        led.send(*[b"x"] * 10)
        led.copy(2)
        fetch = led.members[3].fetch
        assert fetch is not None
        position = fetch.log._replace(offset=number, durable_offset=number, last_epoch=1)
        led.in_sync.reported(KEY, 3, led.broker_epoch(3), fetch._replace(log=position), led.now)
        wanted += led.run(100 * MS, 2, 3)

    assert wanted == [(1, 2)]


def test_a_follower_that_is_always_a_little_behind_stays() -> None:
    led = Led()
    led.copy(2, 3)
    for _ in range(40):
        led.send()
        led.members[3].copy_from(led.leader)
        led.send()  # each report covers what there was at the one before
        led.report(3)
        led.copy(2)

        assert led.run(100 * MS, 2) == []


def test_a_quiet_follower_that_has_everything_stays_for_as_long_as_its_node_is_heard() -> None:
    led = Led()
    led.send()
    led.copy(2, 3)

    assert led.run(60 * SECOND, 2, 3) == []
    assert led.run(LAG_NS + TICK, 2) == [(1, 2)]


def test_a_quiet_follower_that_had_everything_has_its_time_when_something_is_appended() -> None:
    led = Led()
    led.copy(2, 3)
    led.run(60 * SECOND, 2, 3)

    led.send()

    assert led.changes() == []
    assert led.run(LAG_NS, 2, 3) == []
    assert led.run(2 * TICK, 2, 3) == [(1,)]


def test_a_quiet_follower_that_reports_before_the_leader_looks_has_its_time_too() -> None:
    led = Led()
    led.copy(2, 3)
    led.now += 60 * SECOND  # in which nobody looked: the controller did not answer

    led.send()
    led.report(2, 3)

    assert led.changes() == []
    assert led.run(LAG_NS, 2, 3) == []


def test_the_leader_stays_in_sync_alone() -> None:
    led = Led()

    assert led.run(LAG_NS + TICK) == [(1,)]


# Joining


def test_a_follower_that_has_everything_that_is_committed_joins() -> None:
    led = Led((1, 2))
    led.send()
    led.copy(2)
    led.report(3)
    assert led.changes() == []

    led.copy(3)

    assert nodes_of(led.ask()) == (1, 2, 3)


def test_a_follower_that_lacks_what_is_committed_in_the_ledger_does_not_join() -> None:
    led = Led((1, 2))
    led.leader.replica.leading.ledger.write([(b"n", b"fact")])
    led.leader.settle()
    led.copy(2)
    led.copy(2)

    led.report(3)
    assert led.changes() == []
    led.copy(3)

    assert nodes_of(led.ask()) == (1, 2, 3)


def test_a_follower_that_was_asked_for_counts_for_the_high_watermark() -> None:
    led = Led((1, 2))
    led.send()
    led.copy(2, 3)
    assert led.high_watermark == 1
    led.ask()

    led.send()
    led.copy(2)
    assert led.high_watermark == 1
    led.copy(3)

    assert led.high_watermark == 2


def test_a_follower_of_another_process_than_the_metadata_know_does_not_join() -> None:
    led = Led((1, 2))
    led.copy(2)

    for epoch in (led.broker_epoch(3) - 1, led.broker_epoch(3) + 1):
        led.report(3, broker_epoch=epoch)
        assert led.changes() == []
    led.report(3)

    assert nodes_of(led.ask()) == (1, 2, 3)


def test_a_follower_that_is_not_online_does_not_join() -> None:
    led = Led((1, 2))
    led.copy(2, 3)

    for status in (BrokerStatus.FENCED, BrokerStatus.STOPPING):
        assert led.history.append(BrokerChanged(3, led.broker_epoch(3), status))
        assert led.changes() == []
    assert led.history.append(BrokerChanged(3, led.broker_epoch(3), BrokerStatus.ONLINE))

    assert nodes_of(led.ask()) == (1, 2, 3)


def test_a_follower_that_is_not_heard_any_more_does_not_join() -> None:
    led = Led((1, 2))
    led.copy(2, 3)

    led.now += LAG_NS + 1
    led.hear(2)

    assert led.changes() == []


def test_a_follower_that_has_only_asked_for_other_partitions_does_not_join() -> None:
    led = Led((1, 2))
    led.copy(2)

    led.hear(3)

    assert led.changes() == []


# Asking


def test_a_change_names_each_member_and_both_epochs() -> None:
    led = Led((1, 2))
    led.copy(2, 3)

    members = tuple(IsrMember(node, led.broker_epoch(node), f"disk-{node}") for node in (1, 2, 3))
    assert led.changes() == [IsrChange("t1", 0, led.partition.leader_epoch, led.partition.partition_epoch, members)]


def test_a_change_that_is_not_decided_is_not_asked_for_again_too_early() -> None:
    led = Led((1, 2))
    led.copy(2, 3)
    change = led.ask()

    assert led.run(ASK_AGAIN_NS - TICK, 2, 3) == []
    assert led.run(TICK, 2, 3) == [(1, 2, 3)]
    assert nodes_of(change) == (1, 2, 3)


def test_a_refused_change_is_forgotten_and_may_be_asked_for_at_once() -> None:
    led = Led((1, 2))
    led.copy(2, 3)
    change = led.ask()
    led.send()
    led.copy(2)
    assert led.high_watermark == 0

    led.refuse(change)
    assert led.high_watermark == 1
    assert led.changes() == []  # node 3 lacks what is committed now
    led.copy(3)

    assert led.ask() == change


def test_a_change_that_was_made_counts_until_it_is_applied_and_is_not_asked_for_again() -> None:
    led = Led((1, 2))
    led.copy(2, 3)
    change = led.ask()
    led.in_sync.answered(change, led.decide(change))
    led.send()
    led.copy(2)

    assert led.run(LAG_NS - TICK, 2, 3) == []
    assert led.high_watermark == 0
    led.apply_change(change)
    assert led.changes() == []
    assert led.high_watermark == 0
    led.copy(3)

    assert led.high_watermark == 1


def test_a_change_that_was_made_and_not_answered_counts_when_it_is_refused_the_second_time() -> None:
    led = Led((1, 2))
    led.copy(2, 3)
    change = led.ask()
    made = led.decide(change)
    assert led.run(ASK_AGAIN_NS, 2, 3) == [(1, 2, 3)]

    led.in_sync.answered(change, IsrResult(made.partition_epoch, IsrRefusal.STALE_PARTITION_EPOCH))
    led.send()
    led.copy(2)

    assert led.run(ASK_AGAIN_NS + TICK, 2, 3) == []  # until the decision is applied
    assert led.high_watermark == 0


def test_a_follower_that_was_asked_for_counts_until_the_controller_has_answered_though_it_is_gone() -> None:
    led = Led((1, 2))
    led.copy(2, 3)
    led.ask()
    led.now += ASK_AGAIN_NS
    led.hear(2)
    led.send()
    led.copy(2)

    again = led.ask()
    assert nodes_of(again) == (1, 2)
    assert led.high_watermark == 0
    led.in_sync.answered(again, IsrResult(again.partition_epoch))

    assert led.high_watermark == 1
    assert led.run(ASK_AGAIN_NS, 2) == []


def test_a_follower_that_was_asked_for_in_an_earlier_epoch_of_the_partition_does_not_count_any_more() -> None:
    led = Led((1, 2))
    led.copy(2, 3)
    led.ask()
    led.send()
    led.copy(2)

    led.apply(elr=(), adding=(3,), partition_epoch=led.partition.partition_epoch + 1)
    assert led.changes() == []

    assert led.high_watermark == 1


def test_a_change_that_was_applied_ends_the_wait_for_its_answer() -> None:
    led = Led()
    led.report(2, 3)
    assert led.run(LAG_NS + TICK, 2) == [(1, 2)]

    led.apply(isr=(1, 2), partition_epoch=led.partition.partition_epoch + 1)
    led.report(3)

    assert nodes_of(led.ask()) == (1, 2, 3)


# Leading


def test_another_leader_epoch_begins_anew() -> None:
    led = Led()
    led.report(2, 3)
    assert led.run(LAG_NS + TICK) == [(1,)]

    led.apply(leader_epoch=2, partition_epoch=1)
    assert led.changes() == []  # in the epoch before it may not ask any more
    assert led.lead() == [KEY]

    assert led.run(LAG_NS) == []
    assert led.run(TICK) == [(1,)]


def test_a_leader_that_goes_on_does_not_begin_anew() -> None:
    led = Led()
    led.report(2, 3)
    led.run(LAG_NS)

    assert led.in_sync.lead({KEY: led.leader.replica}, led.now) == []

    assert led.run(TICK) == [(1,)]


def test_an_answer_from_an_earlier_leader_epoch_changes_nothing() -> None:
    led = Led((1, 2))
    led.copy(2, 3)
    before = led.ask()
    led.apply(leader_epoch=2, partition_epoch=2)
    led.lead()
    led.copy(2, 3)
    led.ask()
    led.send()
    led.copy(2)

    led.refuse(before)

    assert led.changes() == []
    assert led.high_watermark == 0


def test_a_report_of_another_epoch_is_not_counted() -> None:
    led = Led((1, 2))
    led.copy(2)
    fetch = led.members[3].fetch
    assert fetch is not None

    led.hear(3)
    for epoch in (0, 2):
        led.in_sync.reported(KEY, 3, led.broker_epoch(3), fetch._replace(epoch=epoch), led.now)
    led.leader.answer(3, fetch)

    assert led.changes() == []


def test_a_node_that_leads_no_longer_asks_for_nothing() -> None:
    led = Led()
    led.in_sync.lead({}, led.now)

    assert led.run(2 * LAG_NS) == []


def test_a_partition_that_the_metadata_give_to_another_leader_is_left_alone() -> None:
    led = Led()
    led.apply(leader=2, leader_epoch=2, partition_epoch=1)

    assert led.run(2 * LAG_NS) == []
