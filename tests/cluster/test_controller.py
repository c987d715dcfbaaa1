"""The controller: who is in the cluster, who leads, and who is in sync."""

from typing import Any

import msgspec
import pytest

from goqueue.clock import MS, SECOND
from goqueue.cluster.drafts import ENTRY_BYTES
from goqueue.cluster.messages import (
    ControlledShutdown,
    CreateTopic,
    Decide,
    ElectLeaders,
    Heartbeat,
    IsrMember,
    IsrRefusal,
    IsrResult,
    RefusalReason,
    Refused,
    Registered,
    RemoveNode,
)
from goqueue.cluster.records import (
    BrokerChanged,
    BrokerStatus,
    PartitionChanged,
)
from goqueue.errors import Conflict, MetadataContradiction, NotFound
from tests.cluster.controlled import SESSION, TIMING, ControlledCluster
from tests.cluster.mutations import Modules

ONLINE, FENCED, STOPPING = BrokerStatus.ONLINE, BrokerStatus.FENCED, BrokerStatus.STOPPING


def reason(answer: Any) -> RefusalReason:
    assert isinstance(answer, Refused), answer
    assert answer.text
    return answer.reason


# Registration


def test_a_broker_is_fenced_until_it_has_applied_its_registration(modules: Modules) -> None:
    cluster = ControlledCluster(modules)

    answer = cluster.register(2)

    assert isinstance(answer, Registered)
    assert answer.broker_epoch == len(cluster.history.entries)
    assert cluster.beat(2, applied_index=answer.broker_epoch - 1).status is FENCED
    assert cluster.beat(2, applied_index=answer.broker_epoch).status is ONLINE
    assert cluster.metadata.online() == [2]


def test_a_registration_is_answered_once_it_is_applied() -> None:
    cluster = ControlledCluster()

    pending = cluster.controller.handle(cluster.registration(2), cluster.now)
    again = cluster.controller.handle(cluster.registration(2), cluster.now)

    assert not pending.is_done
    cluster.write()
    assert pending.result() == again.result()
    assert cluster.register(2) == pending.result()


def test_the_broker_epoch_is_known_while_other_entries_are_on_the_way() -> None:
    cluster = ControlledCluster()
    first = cluster.controller.handle(cluster.registration(2), cluster.now)
    in_flight = cluster.controller.next_entry(b"x" * 16)
    second = cluster.controller.handle(cluster.registration(3), cluster.now)

    assert cluster.controller.next_entry(b"y" * 16) is None
    assert cluster.history.take(in_flight)
    cluster.controller.applied(in_flight)
    assert first.result().broker_epoch == in_flight.index
    assert not second.is_done
    cluster.write()

    assert second.result().broker_epoch == in_flight.index + 1 == cluster.epoch_of(3)


def test_a_node_id_is_taken_while_its_process_may_live(modules: Modules) -> None:
    cluster = ControlledCluster(modules, nodes=2)

    assert reason(cluster.register(2, "b")) is RefusalReason.NODE_ID_TAKEN
    cluster.run(SESSION - 100 * MS, 2)
    assert reason(cluster.register(2, "b")) is RefusalReason.NODE_ID_TAKEN
    cluster.run(SESSION, 1)

    assert isinstance(cluster.register(2, "b"), Registered)


def test_the_node_of_the_controller_is_the_process_that_was_elected() -> None:
    cluster = ControlledCluster()

    assert reason(cluster.register(1, "b")) is RefusalReason.NODE_ID_TAKEN
    assert isinstance(cluster.register(1, "a"), Registered)
    assert reason(cluster.register(1, "b")) is RefusalReason.NODE_ID_TAKEN


def test_a_process_replaces_a_dead_one_on_its_disk_at_once() -> None:
    """The lock of the data directory says that the old process is dead, and the connection says it too."""
    cluster = ControlledCluster(nodes=2)

    cluster.lose(2, was_refused=False)

    assert reason(cluster.register(2, "b", directories=("disk-2b",))) is RefusalReason.NODE_ID_TAKEN
    assert isinstance(cluster.register(2, "b"), Registered)


def test_a_restart_is_accepted_by_a_controller_that_never_heard_the_old_process() -> None:
    cluster = ControlledCluster(nodes=2)
    cluster.elect(1)

    assert isinstance(cluster.register(2, "b"), Registered)


def test_the_old_process_is_fenced_in_the_entry_that_registers_the_new_one(modules: Modules) -> None:
    cluster = ControlledCluster(modules, nodes=3)
    topic = cluster.create(partitions=3)
    led = [number for number in range(3) if cluster.partition(topic, number).leader == 2]
    before = len(cluster.history.entries)
    cluster.lose(2, was_refused=False)

    answer = cluster.register(2, "b")

    assert answer == Registered(1, before + 1)
    assert len(cluster.history.entries) == before + 1
    for number in range(3):
        assert 2 not in cluster.partition(topic, number).isr
    assert [cluster.partition(topic, number).leader_epoch for number in led] == [2]


def test_a_data_directory_of_another_node_is_refused(modules: Modules) -> None:
    cluster = ControlledCluster(modules, nodes=2)

    answer = cluster.register(3, directories=("new", "disk-2"))

    assert reason(answer) is RefusalReason.DIRECTORY_TAKEN
    assert "disk-2" in answer.text
    assert "node 2" in answer.text


def test_a_node_without_its_disk_is_refused_while_it_has_replicas() -> None:
    cluster = ControlledCluster(nodes=3)
    cluster.lose(3)
    assert isinstance(cluster.register(3, "b", directories=("other",)), Registered)  # it has no replica yet
    cluster.beat(3)
    cluster.create(partitions=2)
    cluster.lose(3)

    answer = cluster.register(3, "c", directories=("empty",))

    assert reason(answer) is RefusalReason.DISK_MISSING
    assert "2 partitions" in answer.text
    assert isinstance(cluster.register(3, "c", directories=("other", "more")), Registered)


def test_a_replica_on_a_replaced_disk_is_not_eligible(modules: Modules) -> None:
    cluster = ControlledCluster(modules, nodes=2)
    topic, alone = cluster.create(replicas=2), cluster.create("alone", partitions=2, replicas=1)
    mine = next(number for number in range(2) if cluster.partition(alone, number).leader == 2)
    cluster.set_isr(topic, cluster.partition(topic).leader or 0)
    cluster.lose(2)
    cluster.register(2, "b", directories=("empty",), is_disk_replaced=True)
    cluster.beat(2)

    assert 2 not in cluster.partition(topic).elr
    assert cluster.partition(alone, mine).leader is None
    assert cluster.partition(alone, mine).elr == ()


@pytest.mark.parametrize(
    ("levels", "expected"), [((1, 0), RefusalReason.TOO_OLD), ((2, 3), RefusalReason.TOO_NEW), ((0, 9), None)]
)
def test_a_version_that_does_not_know_the_feature_level_is_refused(
    levels: tuple[int, int], expected: RefusalReason | None
) -> None:
    cluster = ControlledCluster()

    answer = cluster.register(2, feature_level_min=levels[0], feature_level_max=levels[1])

    assert (None if isinstance(answer, Registered) else answer.reason) is expected


# What a node may vouch for after a restart


OURS = 2


def leaderless(modules: Modules) -> tuple[ControlledCluster, str]:
    """Both brokers of a partition are dead: 2 died first, 3 is eligible as well, because two have to be in sync."""
    cluster = ControlledCluster(modules, nodes=3)
    topic = cluster.create(partitions=3, replicas=2, min_insync_replicas=2)
    assert [set(partition.replicas) for partition in cluster.metadata.partitions_of(topic)][OURS] == {2, 3}
    cluster.lose(2)
    cluster.lose(3)
    assert cluster.partition(topic, OURS).leader is None
    assert set(cluster.partition(topic, OURS).elr) == {2, 3}
    return cluster, topic


def test_a_replica_whose_log_is_proven_stays_eligible(modules: Modules) -> None:
    cluster, topic = leaderless(modules)

    cluster.join(2, "b")

    assert cluster.partition(topic, OURS).leader == 2
    assert cluster.partition(topic, OURS).isr == (2,)
    assert cluster.partition(topic, OURS).elr == (3,)


def test_a_replica_whose_log_is_not_known_is_not_eligible(modules: Modules) -> None:
    cluster, topic = leaderless(modules)

    cluster.join(2, "b", unproven=None)

    assert cluster.partition(topic, OURS).leader is None
    assert cluster.partition(topic, OURS).elr == (3,)


def test_a_replica_that_may_have_lost_records_is_not_eligible(modules: Modules) -> None:
    cluster, topic = leaderless(modules)

    cluster.join(2, "b", unproven={topic: (0, OURS)})

    assert cluster.partition(topic, OURS).leader is None
    assert cluster.partition(topic, OURS).elr == (3,)
    assert cluster.partition(topic, 0).leader == 1


def test_another_replica_that_may_have_lost_records_says_nothing_about_this_one(modules: Modules) -> None:
    cluster, topic = leaderless(modules)

    cluster.join(2, "b", unproven={topic: (0, 1), "unknown": (OURS,)})

    assert cluster.partition(topic, OURS).leader == 2


def test_a_clean_stop_proves_all_logs(modules: Modules) -> None:
    cluster, topic = leaderless(modules)

    cluster.join(2, "b", unproven=None, last_clean_epoch=cluster.epoch_of(2))

    assert cluster.partition(topic, OURS).leader == 2


def test_a_clean_stop_of_another_time_proves_nothing(modules: Modules) -> None:
    """The disk is a copy of an older one."""
    cluster, topic = leaderless(modules)

    cluster.join(2, "b", unproven=None, last_clean_epoch=cluster.epoch_of(2) - 1)

    assert cluster.partition(topic, OURS).leader is None


def test_the_only_replica_stays_eligible_whatever_it_lost(modules: Modules) -> None:
    cluster = ControlledCluster(modules, nodes=2)
    topic = cluster.create(partitions=2, replicas=1)
    number = next(n for n in range(2) if cluster.partition(topic, n).leader == 2)
    cluster.lose(2)

    cluster.join(2, "b", unproven=None)

    assert cluster.partition(topic, number).leader == 2


# Heartbeats


def test_a_heartbeat_says_how_far_the_log_goes() -> None:
    cluster = ControlledCluster(nodes=2)

    answer = cluster.beat(2)

    assert answer.committed_index == len(cluster.history.entries)
    assert answer.controller_epoch == 1
    assert cluster.controller.last_heard_ns(2) == cluster.now_ns
    assert cluster.controller.last_heard_ns(9) is None


def test_a_stale_broker_epoch_is_refused(modules: Modules) -> None:
    cluster = ControlledCluster(modules, nodes=2)
    old = cluster.epoch_of(2)
    cluster.lose(2)
    cluster.join(2, "b")

    assert reason(cluster.beat(2, broker_epoch=old)) is RefusalReason.STALE_BROKER_EPOCH
    assert reason(cluster.ask(ControlledShutdown(0, 2, old))) is RefusalReason.STALE_BROKER_EPOCH
    assert cluster.metadata.broker(2).status is ONLINE


def test_a_broker_that_nobody_knows_has_to_register() -> None:
    cluster = ControlledCluster(nodes=1)

    assert reason(cluster.beat(5, broker_epoch=1_000)) is RefusalReason.NOT_REGISTERED
    assert reason(cluster.beat(1, broker_epoch=1_000)) is RefusalReason.NOT_REGISTERED


def test_a_broker_that_was_fenced_has_to_apply_that_first() -> None:
    cluster = ControlledCluster(nodes=2)
    before = len(cluster.history.entries)
    cluster.lose(2)

    assert cluster.beat(2, applied_index=before).status is FENCED
    assert cluster.beat(2).status is ONLINE


def test_a_controller_that_a_broker_knows_to_be_deposed_says_so() -> None:
    cluster = ControlledCluster(nodes=2)
    assert not cluster.controller.should_resign(cluster.now)

    assert reason(cluster.beat(2, controller_epoch=2)) is RefusalReason.NOT_CONTROLLER
    assert reason(cluster.beat(1)) is RefusalReason.NOT_CONTROLLER
    assert cluster.controller.should_resign(cluster.now)


# Fencing


def test_a_silent_broker_is_fenced_and_others_lead(modules: Modules) -> None:
    cluster = ControlledCluster(modules, nodes=3)
    topic = cluster.create(partitions=3)

    assert cluster.run(SESSION - 100 * MS, 1, 3) == []
    cluster.run(200 * MS, 1, 3)

    assert cluster.metadata.broker(2).status is FENCED
    for number in range(3):
        partition = cluster.partition(topic, number)
        assert partition.leader in partition.isr
        assert set(partition.isr) == {1, 3}
        assert partition.elr == ()


def test_a_dead_process_is_fenced_at_once(modules: Modules) -> None:
    cluster = ControlledCluster(modules, nodes=3)
    topic = cluster.create()

    effect = cluster.lose(2)

    assert [type(record) for record in effect] == [PartitionChanged, BrokerChanged]
    assert 2 not in cluster.partition(topic).isr
    assert cluster.lose(2) == []
    assert cluster.lose(7) == []
    assert cluster.lose(1) == []  # the controller itself


def test_a_reset_connection_shortens_the_session() -> None:
    cluster = ControlledCluster(nodes=3)
    cluster.lose(2, was_refused=False)
    cluster.lose(3, was_refused=False)

    cluster.run(TIMING.reset_ns, 1, 3)

    assert cluster.metadata.online() == [1, 3]


def test_a_new_controller_gives_every_broker_a_full_session(modules: Modules) -> None:
    cluster = ControlledCluster(modules, nodes=3)
    cluster.now_ns += 10 * SECOND

    cluster.elect(3)
    assert cluster.run(SESSION - 100 * MS, 3) == []
    cluster.run(100 * MS, 3)

    assert cluster.metadata.online() == [3]


def test_a_controller_that_hears_too_few_resigns_and_fences_nobody(modules: Modules) -> None:
    cluster = ControlledCluster(modules, nodes=5)
    cluster.run(SECOND, *range(1, 6))

    assert cluster.run(SECOND - 100 * MS, 1, 2) == []
    assert not cluster.controller.should_resign(cluster.now)
    assert cluster.run(SECOND, 1, 2) == []

    assert cluster.controller.should_resign(cluster.now)
    assert cluster.metadata.online() == [1, 2, 3, 4, 5]


def test_a_controller_that_is_cut_off_does_not_fence_one_broker_after_another(modules: Modules) -> None:
    cluster = ControlledCluster(modules, nodes=3)
    cluster.beat(2)
    cluster.now_ns += 400 * MS
    cluster.beat(3)
    cluster.now_ns += SESSION - 400 * MS  # the session of 2 has ended, and that of 3 has not

    assert cluster.tick() == []
    assert not cluster.controller.should_resign(cluster.now)

    cluster.beat(3)
    cluster.tick()
    assert cluster.metadata.online() == [1, 3]


def test_half_of_the_brokers_are_enough() -> None:
    cluster = ControlledCluster(nodes=2)

    cluster.run(2 * SESSION, 1)

    assert not cluster.controller.should_resign(cluster.now)
    assert cluster.metadata.online() == [1]


def test_eligible_replicas_lead_when_nobody_is_in_sync(modules: Modules) -> None:
    cluster = ControlledCluster(modules, nodes=3)
    topic = cluster.create()
    first, second, third = cluster.partition(topic).replicas
    cluster.elect(first)  # the controller is never fenced by itself
    cluster.beat(1, 2, 3)
    cluster.set_isr(topic, first, second)
    cluster.set_isr(topic, first)
    assert cluster.partition(topic).elr == (second,)
    cluster.elect(second)
    cluster.beat(1, 2, 3)

    cluster.lose(first)

    partition = cluster.partition(topic)
    assert (partition.leader, partition.isr, partition.elr) == (second, (second,), (first,))
    assert third not in partition.elr


def test_a_partition_without_candidates_has_no_leader_until_one_comes_back(modules: Modules) -> None:
    cluster = ControlledCluster(modules, nodes=3)
    topic = cluster.create(partitions=3, replicas=1)
    number = next(n for n in range(3) if cluster.partition(topic, n).leader == 3)

    cluster.lose(3)
    partition = cluster.partition(topic, number)
    assert (partition.leader, partition.isr, partition.elr) == (None, (), (3,))
    cluster.beat(3)

    partition = cluster.partition(topic, number)
    assert (partition.leader, partition.isr, partition.elr) == (3, (3,), ())
    assert partition.leader_epoch == 3


def test_a_large_broker_is_fenced_in_entries_of_limited_size() -> None:
    cluster = ControlledCluster(nodes=3)
    for number in range(3):
        cluster.create(f"t{number}", partitions=1_000)
    before = len(cluster.history.entries)

    effect = cluster.lose(2)

    assert len(effect) == 3_001
    assert effect[-1] == BrokerChanged(2, cluster.epoch_of(2), FENCED)
    batches = [len(entry.batch) for entry in cluster.history.entries[before:]]
    assert len(batches) > 1
    assert max(batches) <= ENTRY_BYTES + 10
    assert abs(cluster.metadata.leader_count(1) - cluster.metadata.leader_count(3)) <= 2


# The ISR


def test_the_leader_changes_the_isr(modules: Modules) -> None:
    cluster = ControlledCluster(modules, nodes=3)
    topic = cluster.create()
    leader = cluster.partition(topic).replicas[0]
    before = cluster.partition(topic)

    (result,) = cluster.alter(leader, cluster.isr_change(topic, leader, before.replicas[2]))

    after = cluster.partition(topic)
    assert result == IsrResult(after.partition_epoch) == IsrResult(before.partition_epoch + 1)
    assert after.isr == (leader, before.replicas[2])
    assert after.elr == ()
    assert after.leader_epoch == before.leader_epoch


def test_an_isr_that_is_as_asked_makes_no_record() -> None:
    cluster = ControlledCluster(nodes=3)
    topic = cluster.create()
    entries = len(cluster.history.entries)

    assert cluster.alter(1, cluster.isr_change(topic, 3, 2, 1)) == [IsrResult(0)]
    assert len(cluster.history.entries) == entries


def test_an_isr_change_is_compared_with_the_partition(modules: Modules) -> None:
    cluster = ControlledCluster(modules, nodes=3)
    topic = cluster.create()
    leader, second, _ = cluster.partition(topic).replicas
    stale = cluster.isr_change(topic, leader)
    cluster.set_isr(topic, leader, second)
    change = cluster.isr_change(topic, leader)

    assert cluster.alter(leader, stale) == [IsrResult(1, IsrRefusal.STALE_PARTITION_EPOCH)]
    assert cluster.alter(leader, cluster.isr_change(topic, leader, leader_epoch=2)) == [
        IsrResult(1, IsrRefusal.STALE_LEADER_EPOCH)
    ]
    assert cluster.alter(second, change) == [IsrResult(1, IsrRefusal.NOT_LEADER)]
    unknown = msgspec.structs.replace(change, topic_id="t9")
    assert cluster.alter(leader, unknown, change) == [IsrResult(0, IsrRefusal.NOT_LEADER), IsrResult(2)]


def test_only_the_registered_process_on_its_disk_is_in_sync(modules: Modules) -> None:
    cluster = ControlledCluster(modules, nodes=4)
    topic = cluster.create()
    leader, second, third = cluster.partition(topic).replicas
    (outside,) = {1, 2, 3, 4} - {leader, second, third}
    cluster.set_isr(topic, leader, second)
    member = cluster.member(third)

    def asked(*isr: IsrMember) -> IsrRefusal | None:
        (result,) = cluster.alter(leader, cluster.isr_change(topic, isr=isr))
        return result.refusal

    me, ineligible = cluster.member(leader), IsrRefusal.INELIGIBLE_REPLICA
    assert asked(me, IsrMember(third, member.broker_epoch - 1, member.directory)) is ineligible
    assert asked(me, IsrMember(third, member.broker_epoch, "disk-x")) is ineligible
    assert asked(me, cluster.member(outside)) is ineligible
    assert asked(cluster.member(second)) is ineligible
    assert asked(me, IsrMember(99, 1, "disk-99")) is ineligible
    if third != 1:
        cluster.lose(third)
        assert asked(me, member) is ineligible
        cluster.beat(third)
    assert asked(me, member) is None


def test_replicas_that_leave_a_small_isr_stay_eligible_until_it_is_large_again(modules: Modules) -> None:
    cluster = ControlledCluster(modules, nodes=3)
    topic = cluster.create()
    leader, second, third = cluster.partition(topic).replicas

    cluster.set_isr(topic, leader, second)
    assert cluster.partition(topic).elr == ()  # two are enough, so records commit that the third lacks
    cluster.set_isr(topic, leader)
    assert cluster.partition(topic).elr == (second,)
    cluster.set_isr(topic, leader, third)
    assert cluster.partition(topic).elr == ()


# Stopping


def test_a_broker_that_stops_hands_over_what_it_leads_first(modules: Modules) -> None:
    cluster = ControlledCluster(modules, nodes=3)
    topic = cluster.create(partitions=3)

    progress = cluster.stop(2)

    assert (progress.leaders_left, progress.may_stop) == (1, False)
    assert cluster.metadata.broker(2).status is STOPPING
    assert cluster.metadata.leader_count(2) == 0
    assert 2 in cluster.partition(topic).isr
    progress = cluster.stop(2)
    assert (progress.leaders_left, progress.may_stop) == (0, True)
    assert cluster.metadata.broker(2).status is FENCED
    assert cluster.stop(2).may_stop
    assert cluster.beat(2).status is FENCED  # it is about to stop
    assert isinstance(cluster.register(2, "b"), Registered)


def test_the_last_broker_may_stop_as_well() -> None:
    cluster = ControlledCluster(nodes=1)
    topic = cluster.create(replicas=1)

    assert cluster.stop(1).may_stop

    assert cluster.partition(topic).elr == (1,)


def test_a_stopping_broker_leads_what_nobody_else_can() -> None:
    cluster = ControlledCluster(nodes=3)
    topic = cluster.create(partitions=3)
    leader, second, third = cluster.partition(topic).replicas
    assert leader == 1
    cluster.stop(second)
    cluster.elect(second)
    cluster.beat(1, 2, 3)
    cluster.set_isr(topic, leader, second)

    cluster.lose(leader)

    assert cluster.partition(topic).leader == second
    assert cluster.metadata.broker(second).status is STOPPING
    cluster.set_isr(topic, second, third)
    cluster.tick()
    assert cluster.partition(topic).leader == third


def test_a_stopping_broker_joins_no_isr() -> None:
    cluster = ControlledCluster(nodes=3)
    topic = cluster.create(partitions=3)
    leader, second, third = cluster.partition(topic).replicas
    cluster.set_isr(topic, leader, second)
    cluster.stop(third)

    assert cluster.metadata.broker(third).status is STOPPING
    (result,) = cluster.alter(leader, cluster.isr_change(topic, leader, third))

    assert result.refusal is IsrRefusal.INELIGIBLE_REPLICA


def test_a_broker_that_wants_to_stop_is_not_put_online() -> None:
    cluster = ControlledCluster()
    cluster.register(2)

    assert cluster.beat(2, wants_shutdown=True).status is FENCED


# Preferred leaders


def test_preferred_leaders_lead_again_once_they_are_in_sync(modules: Modules) -> None:
    cluster = ControlledCluster(modules, nodes=3)
    topic = cluster.create(partitions=3)
    cluster.lose(2)
    cluster.join(2, "b")
    assert cluster.tick() == []  # in sync with nothing yet

    for number in range(3):
        cluster.set_isr(topic, 1, 2, 3, number=number)
    cluster.tick()

    for number in range(3):
        assert cluster.partition(topic, number).leader == cluster.partition(topic, number).replicas[0]
    assert cluster.tick() == []


def test_leaders_move_in_steps() -> None:
    cluster = ControlledCluster(nodes=2)
    cluster.create("big", partitions=1_000, replicas=2)
    cluster.create("large", partitions=1_000, replicas=2)
    cluster.lose(2)
    cluster.beat(2)
    for topic in list(cluster.metadata.topics):
        changes = [cluster.isr_change(topic, 1, 2, number=number) for number in range(1_000)]
        assert all(result.refusal is None for result in cluster.alter(1, *changes))

    moved = [len(cluster.tick()) for _ in range(4)]

    assert moved == [500, 500, 0, 0]
    assert cluster.metadata.leader_count(1) == cluster.metadata.leader_count(2) == 1_000


# Leaving


def test_a_node_is_removed_when_nothing_is_left_on_it(modules: Modules) -> None:
    cluster = ControlledCluster(modules, nodes=4)
    topic = cluster.create(partitions=8)
    assert cluster.metadata.replica_count(4) > 0

    answer = cluster.decide(RemoveNode, node=4)

    assert answer.partitions_left == 0
    assert 4 not in cluster.metadata.brokers
    for number in range(8):
        partition = cluster.partition(topic, number)
        assert 4 not in partition.replicas
        assert partition.leader == partition.replicas[0]
    refused = cluster.ask(Heartbeat(0, 4, 5, 100))
    assert reason(refused) is RefusalReason.STALE_BROKER_EPOCH
    assert "removed" in refused.text
    with pytest.raises(NotFound):
        cluster.decide(RemoveNode, node=4)


def test_a_node_with_the_only_replica_of_a_partition_is_not_removed() -> None:
    cluster = ControlledCluster(nodes=2)
    cluster.create("alone", partitions=4, replicas=1)

    assert cluster.decide(RemoveNode, node=2).partitions_left == 2
    assert cluster.decide(RemoveNode, node=2).partitions_left == 2

    assert cluster.metadata.broker(2).is_leaving
    assert cluster.metadata.leader_count(2) == 2
    cluster.create("later", partitions=4, replicas=1)
    assert cluster.metadata.replica_count(2) == 2
    cluster.lose(2)
    cluster.join(2, "b")
    assert cluster.metadata.broker(2).is_leaving


def test_a_replica_that_commits_depend_on_stays_on_a_leaving_node(modules: Modules) -> None:
    cluster = ControlledCluster(modules, nodes=3)
    topic = cluster.create()
    leader, second, third = cluster.partition(topic).replicas
    cluster.set_isr(topic, leader, second)

    assert cluster.decide(RemoveNode, node=second).partitions_left == 1
    assert cluster.partition(topic).replicas == (leader, second, third)
    cluster.set_isr(topic, leader, second, third)
    cluster.tick()

    assert cluster.partition(topic).replicas == (leader, third)
    assert cluster.decide(RemoveNode, node=second).partitions_left == 0


def test_a_leaving_node_hands_over_what_others_can_lead() -> None:
    cluster = ControlledCluster(nodes=3)
    topic = cluster.create(min_insync_replicas=3)
    leader = cluster.partition(topic).leader
    assert leader is not None

    assert cluster.decide(RemoveNode, node=leader).partitions_left == 1

    assert cluster.partition(topic).leader != leader
    assert leader in cluster.partition(topic).isr
    assert cluster.tick() == []


def test_the_only_node_is_not_removed() -> None:
    cluster = ControlledCluster(nodes=1)

    with pytest.raises(Conflict, match="only one"):
        cluster.decide(RemoveNode, node=1)


# Elections by an operator


def test_only_an_operator_lets_a_replica_lead_that_may_lack_records(modules: Modules) -> None:
    cluster = ControlledCluster(modules, nodes=3)
    topic = cluster.create()
    first, second, third = cluster.partition(topic).replicas
    assert first == 1
    cluster.set_isr(topic, first, second)
    cluster.set_isr(topic, first)
    cluster.elect(third)
    cluster.beat(third)
    cluster.lose(second)
    cluster.lose(first)
    assert cluster.partition(topic).leader is None
    assert cluster.decide(ElectLeaders, topic="orders").count == 0

    assert cluster.decide(ElectLeaders, topic="orders", partitions=(0,), is_unclean=True).count == 1

    partition = cluster.partition(topic)
    assert (partition.leader, partition.isr, partition.elr, partition.is_unclean) == (third, (third,), (), True)
    assert cluster.decide(ElectLeaders, is_unclean=True).count == 0


# The end, and limits


def test_a_deposed_controller_refuses_what_waits() -> None:
    cluster = ControlledCluster(nodes=1)
    waiting = [
        cluster.controller.handle(cluster.registration(2), cluster.now),
        cluster.controller.handle(Decide(0, CreateTopic("q", "orders", 1, 1)), cluster.now),
    ]
    assert cluster.controller.next_entry(b"x" * 16) is not None
    waiting.append(cluster.controller.handle(Decide(0, CreateTopic("r", "later", 1, 1)), cluster.now))

    cluster.controller.deposed()

    assert [reason(pending.result()) for pending in waiting] == [RefusalReason.NOT_CONTROLLER] * 3
    assert cluster.controller.next_entry(b"y" * 16) is None
    assert reason(cluster.ask_only(cluster.registration(3))) is RefusalReason.NOT_CONTROLLER
    cluster.controller.connection_lost(1, True, cluster.now)
    cluster.controller.tick(cluster.now)
    assert cluster.controller.next_entry(b"y" * 16) is None


def test_requests_are_refused_while_the_log_does_not_keep_up() -> None:
    cluster = ControlledCluster(nodes=1)
    answers = []
    for number in range(40):
        request = Decide(0, CreateTopic(f"q{number}", f"t{number}", 1_000, 1))
        answers.append(cluster.controller.handle(request, cluster.now))

    refused = [pending.result() for pending in answers if pending.is_done]

    assert refused
    assert {answer.reason for answer in refused} == {RefusalReason.OVERLOADED}
    assert refused[0].reason.is_retryable
    assert cluster.ask_only(Heartbeat(0, 1, cluster.epoch_of(1), 1)).status is ONLINE
    cluster.write()
    assert all(pending.is_done for pending in answers)


def test_after_a_decision_that_contradicts_the_state_nothing_is_written() -> None:
    cluster = ControlledCluster(nodes=2)
    cluster.create(partitions=2, replicas=2)
    cluster.controller.state._replicas_on[2].clear()  # as a bug would: no partition is found to be moved

    with pytest.raises(MetadataContradiction, match="it leads partitions"):
        cluster.lose(2)

    assert cluster.controller.next_entry(b"x" * 16) is None
    assert cluster.controller.should_resign(cluster.now)
    assert reason(cluster.ask_only(cluster.registration(3))) is RefusalReason.NOT_CONTROLLER
