"""A cluster of real nodes agrees, whatever happens to machines, network, clocks and metadata log.

First many seeds, in which faults come by chance. Then faults by their names, with what each may cost: an election costs
about a second without decisions, so a fault that a cluster can bear must not cause one, and others only one.
"""

from collections.abc import Iterator

import pytest

from goqueue.cluster.messages import AlterPartitions, IsrChange, IsrMember, PartitionsAltered, RefusalReason, Refused
from goqueue.cluster.metadata import Metadata
from goqueue.cluster.records import PartitionChanged
from goqueue.testing import SimulatedCluster, SimulationFailed
from tests.simulation.clusters import three_nodes
from tests.simulation.run import nodes_of, run_seed

SEEDS = 200
CHUNK = 5
DETECTED_S = 2.5
"""After so long a node that is silent, or a controller, is replaced."""


@pytest.mark.parametrize("first", range(1, SEEDS + 1, CHUNK))
def test_nothing_that_chance_does_breaks_the_cluster(first: int) -> None:
    for seed in range(first, first + CHUNK):
        run_seed(seed)


def test_a_clock_that_rounds_a_wait_to_nothing_does_not_stop_the_time() -> None:
    """A node that waited for the next multiple of an interval, and woke up just before it, did nothing else."""
    run_seed(835)


def test_a_seed_is_one_run() -> None:
    assert run_seed(3) == run_seed(3)
    assert run_seed(3) != run_seed(4)


def test_a_run_that_fails_says_what_happened_and_how_to_repeat_it() -> None:
    with SimulatedCluster(seed=7, nodes=3) as cluster:
        cluster.run(steps=3)
        with pytest.raises(SimulationFailed) as failed:
            cluster.fail("M7: for the sake of this test")

    said = str(failed.value)
    assert said.startswith("seed 7, 3 nodes\nM7: for the sake of this test\n")
    assert "node 1 starts as 1.1" in said
    assert said.rstrip().endswith("again: make simulate SEEDS=7,")


@pytest.fixture
def cluster() -> Iterator[SimulatedCluster]:
    with three_nodes() as cluster:
        yield cluster


def controller_of(cluster: SimulatedCluster) -> int:
    controller = cluster.controller
    assert controller is not None
    return controller


def others_of(cluster: SimulatedCluster) -> tuple[int, int]:
    one, other = (number for number in cluster.machines if number != controller_of(cluster))
    return one, other


def is_online(cluster: SimulatedCluster, number: int) -> bool:
    broker = cluster.checks.state.broker(number)
    return broker is not None and broker.is_online


def leaders(cluster: SimulatedCluster) -> set[int | None]:
    return {partition.leader for partition in cluster.checks.state.partitions.values()}


def broker_epoch(cluster: SimulatedCluster, number: int) -> int:
    return cluster.checks.state.brokers[number].broker_epoch


def replaced_by_its_clone(cluster: SimulatedCluster, broker: int) -> int:
    """The node stands still, and another process has its disk and its id; returns the number of its machine."""
    cluster.may_halt = True
    epoch = broker_epoch(cluster, broker)
    cluster.stop(broker)
    cluster.until(lambda: not is_online(cluster, broker), DETECTED_S, "the node that stands still is fenced")
    clone = cluster.clone(broker)
    cluster.start(clone)
    cluster.until(lambda: broker_epoch(cluster, broker) > epoch, 5.0, "the clone is registered")
    return clone


def isr_change(state: Metadata, partition: PartitionChanged, isr: list[int]) -> IsrChange:
    """What the leader asks for, so that these are in sync."""
    brokers = [(node, state.brokers[node]) for node in isr]
    members = [IsrMember(node, broker.broker_epoch, broker.registration.directories[0]) for node, broker in brokers]
    return IsrChange(
        partition.topic_id, partition.partition, partition.leader_epoch, partition.partition_epoch, tuple(members)
    )


def registered(cluster: SimulatedCluster, number: int) -> str:
    """The process that is the node."""
    return cluster.checks.state.brokers[number].registration.incarnation


def catch_up(cluster: SimulatedCluster, broker: int) -> None:
    """The leaders take the node into the ISR of all partitions that it has."""
    state = cluster.checks.state
    cluster.until(lambda: is_online(cluster, broker), 5.0, "the node is online")
    for key in list(state.replicas_on(broker)):
        partition = state.partitions[key]
        leader = partition.leader
        assert leader is not None
        change = isr_change(state, partition, [*partition.isr, broker])
        request = AlterPartitions(state.epoch, leader, broker_epoch(cluster, leader), (change,))
        answer = cluster.ask_controller(cluster.machines[leader].caller, request)
        assert isinstance(answer, PartitionsAltered)
        assert [result.refusal for result in answer.results] == [None]


def test_three_nodes_form_one_cluster(cluster: SimulatedCluster) -> None:
    assert cluster.epoch == 1
    assert sorted(cluster.checks.state.brokers) == [1, 2, 3]
    assert leaders(cluster) <= {1, 2, 3}


def test_a_cluster_that_is_left_alone_writes_nothing(cluster: SimulatedCluster) -> None:
    before = len(cluster.checks.entries)

    cluster.advance(60)

    assert len(cluster.checks.entries) == before


@pytest.mark.parametrize("turn", range(5))
def test_a_controller_that_is_killed_is_replaced_in_a_second(cluster: SimulatedCluster, turn: int) -> None:
    for _ in range(turn):
        cluster.advance(0.1)
    killed = controller_of(cluster)

    cluster.kill(killed)

    took_s = cluster.until(lambda: cluster.controller not in (None, killed), 2.0, "another controller")
    assert took_s <= 1.0
    cluster.until(lambda: not is_online(cluster, killed), 1.0, "the dead node is fenced")
    assert killed not in leaders(cluster)
    cluster.recover()
    assert cluster.epoch == 2


def test_a_new_controller_fences_only_the_dead(cluster: SimulatedCluster) -> None:
    one, other = others_of(cluster)
    epochs = [broker_epoch(cluster, number) for number in (one, other)]
    cluster.log_faults.delay_s = (0.1, 0.3)  # so the others hear of it late

    cluster.kill(controller_of(cluster))
    for _ in range(30):
        cluster.advance(0.1)
        assert is_online(cluster, one)
        assert is_online(cluster, other)

    assert [broker_epoch(cluster, number) for number in (one, other)] == epochs


def test_a_broker_that_is_killed_is_fenced_at_once(cluster: SimulatedCluster) -> None:
    broker, _ = others_of(cluster)

    cluster.kill(broker)

    cluster.until(lambda: not is_online(cluster, broker), 0.5, "the dead node is fenced")
    assert broker not in leaders(cluster)
    cluster.recover()
    assert cluster.epoch == 1


def test_a_controller_whose_machine_has_lost_its_power_is_missed_by_its_silence(cluster: SimulatedCluster) -> None:
    lost = controller_of(cluster)

    cluster.power_off(lost)

    cluster.until(lambda: cluster.controller not in (None, lost), DETECTED_S, "another controller")
    cluster.until(lambda: not is_online(cluster, lost), DETECTED_S, "the lost node is fenced")
    cluster.recover()
    assert cluster.epoch == 2


def test_a_controlled_shutdown_costs_no_election_of_another_node(cluster: SimulatedCluster) -> None:
    broker, _ = others_of(cluster)

    cluster.shut_down(broker)

    cluster.until(lambda: broker not in cluster.running(), 3.0, "the node has ended")
    assert broker not in leaders(cluster)
    assert None not in leaders(cluster)
    cluster.recover()
    assert cluster.epoch == 1


@pytest.mark.parametrize("is_answer", [False, True], ids=["requests", "answers"])
def test_a_broker_that_is_cut_off_from_the_controller_in_one_direction(
    cluster: SimulatedCluster, is_answer: bool
) -> None:
    controller, (broker, _) = controller_of(cluster), others_of(cluster)

    cluster.cut(*((controller, broker) if is_answer else (broker, controller)))
    cluster.advance(30)

    assert cluster.epoch == 1  # its peers hear the controller, and say so
    cluster.recover()
    assert cluster.epoch == 1


def test_a_ring_in_which_one_broker_and_the_controller_do_not_hear_each_other(cluster: SimulatedCluster) -> None:
    controller, (broker, _) = controller_of(cluster), others_of(cluster)

    cluster.cut(controller, broker)
    cluster.cut(broker, controller)
    cluster.until(lambda: not is_online(cluster, broker), DETECTED_S, "the broker is fenced")
    entries = len(cluster.checks.entries)
    cluster.advance(30)

    assert cluster.epoch == 1
    assert len(cluster.checks.entries) == entries  # nothing flaps
    assert None not in leaders(cluster)
    cluster.recover()
    assert cluster.epoch == 1


def test_a_ring_in_which_two_brokers_do_not_hear_each_other(cluster: SimulatedCluster) -> None:
    one, other = others_of(cluster)
    entries = len(cluster.checks.entries)

    cluster.cut(one, other)
    cluster.cut(other, one)
    cluster.advance(30)

    assert len(cluster.checks.entries) == entries


@pytest.mark.parametrize("directions", ["to the brokers", "from the brokers", "both"])
def test_a_controller_that_is_cut_off_from_the_brokers_but_not_from_the_log(
    cluster: SimulatedCluster, directions: str
) -> None:
    deposed = controller_of(cluster)
    for broker in others_of(cluster):
        if directions != "from the brokers":
            cluster.cut(deposed, broker)
        if directions != "to the brokers":
            cluster.cut(broker, deposed)

    cluster.until(lambda: cluster.controller not in (None, deposed), 5.0, "another controller")
    assert deposed in cluster.running()
    cluster.advance(5)
    entries = len(cluster.checks.entries)
    cluster.advance(20)

    assert cluster.epoch == 2  # no duel
    assert len(cluster.checks.entries) == entries
    assert None not in leaders(cluster)
    cluster.recover()
    assert cluster.epoch == 2


def test_a_controller_that_hears_nobody_resigns_and_fences_nobody(cluster: SimulatedCluster) -> None:
    deaf, brokers = controller_of(cluster), others_of(cluster)
    for broker in brokers:  # they cannot elect another one
        cluster.cut(broker, deaf)
        cluster.cut_log(broker)

    cluster.until(lambda: cluster.node(deaf).controller is None, DETECTED_S, "it resigns")
    assert all(is_online(cluster, broker) for broker in brokers)
    cluster.recover()


def test_a_minority_that_is_cut_off_altogether(cluster: SimulatedCluster) -> None:
    deposed = controller_of(cluster)
    cluster.cut_log(deposed)
    for broker in others_of(cluster):
        cluster.cut(deposed, broker)
        cluster.cut(broker, deposed)

    cluster.until(lambda: cluster.controller not in (None, deposed), 5.0, "another controller")
    cluster.advance(10)

    assert cluster.epoch == 2
    cluster.recover()
    assert cluster.epoch == 2


def test_an_outage_of_the_metadata_log_for_a_minute(cluster: SimulatedCluster) -> None:
    cluster.cut_log()
    cluster.advance(60)
    assert cluster.controller is not None

    cluster.recover()

    assert cluster.epoch == 1  # the controller was heard all the time


def test_a_controller_that_is_killed_while_the_log_is_out_of_reach(cluster: SimulatedCluster) -> None:
    cluster.cut_log()
    cluster.advance(1)
    killed = controller_of(cluster)
    cluster.kill(killed)
    cluster.advance(60)

    cluster.mend_log()

    cluster.until(lambda: cluster.controller not in (None, killed), 5.0, "another controller")
    cluster.recover()


def test_an_election_that_takes_effect_when_its_author_has_given_it_up(cluster: SimulatedCluster) -> None:
    controller, brokers = controller_of(cluster), others_of(cluster)
    cluster.log_faults.append_late, cluster.log_faults.late_s = 1.0, (3.0, 3.0)
    for broker in brokers:
        cluster.cut(controller, broker)
    cluster.advance(1.6)
    for broker in brokers:
        cluster.mend(controller, broker)
    cluster.log_faults.append_late = 0.0
    cluster.advance(1)
    assert cluster.epoch == 1

    cluster.until(lambda: cluster.epoch == 2, 10.0, "the election takes effect")

    cluster.advance(1)
    assert controller_of(cluster) in brokers
    cluster.create_topic("decided")
    cluster.recover()
    assert cluster.epoch == 2


def test_the_loss_of_all_power(cluster: SimulatedCluster) -> None:
    topics = dict(cluster.checks.state.topics)
    cluster.power_off()
    for machine in cluster.machines.values():
        machine.unproven = {}  # the logs of the partitions were synced
    cluster.advance(10)

    cluster.recover()

    assert cluster.checks.state.topics == topics
    assert None not in leaders(cluster)


@pytest.mark.parametrize(("seconds", "elections"), [(0.5, 0), (2.0, 1), (30.0, 1)])
def test_a_controller_that_stands_still(cluster: SimulatedCluster, seconds: float, elections: int) -> None:
    stopped = controller_of(cluster)

    cluster.stop(stopped)
    cluster.advance(seconds)
    cluster.resume(stopped)
    cluster.advance(5)

    assert cluster.epoch == 1 + elections
    assert cluster.what_is_wrong() is None
    cluster.recover()


@pytest.mark.parametrize("seconds", [0.5, 2.0, 30.0])
def test_a_broker_that_stands_still(cluster: SimulatedCluster, seconds: float) -> None:
    stopped, _ = others_of(cluster)

    cluster.stop(stopped)
    cluster.advance(seconds)
    assert is_online(cluster, stopped) == (seconds < 1)
    cluster.resume(stopped)
    cluster.advance(5)

    assert cluster.epoch == 1
    assert cluster.what_is_wrong() is None


def test_event_loops_that_stall_for_three_seconds_one_after_the_other(cluster: SimulatedCluster) -> None:
    stalled = 0
    for _ in range(2):
        for number in cluster.machines:
            stalled += number == cluster.controller
            cluster.stop(number)
            cluster.advance(3)
            cluster.resume(number)
            cluster.advance(5)
            assert cluster.what_is_wrong() is None

    assert cluster.epoch == 1 + stalled


def test_event_loops_that_all_stall_at_once(cluster: SimulatedCluster) -> None:
    cluster.stop(*cluster.machines)
    cluster.advance(3)
    cluster.resume()
    cluster.advance(5)

    assert cluster.what_is_wrong() is None
    assert cluster.epoch <= 2


@pytest.mark.parametrize("seconds", [3600, -3600])
def test_wall_clocks_that_jump_by_an_hour(cluster: SimulatedCluster, seconds: int) -> None:
    entries = len(cluster.checks.entries)

    for number in cluster.machines:
        cluster.jump(number, seconds)
        cluster.advance(5)
    cluster.create_topic("after")
    cluster.advance(5)

    assert cluster.epoch == 1
    assert len(cluster.checks.entries) == entries + 1


@pytest.mark.parametrize("rates", [(0.8, 1.2, 1.0), (1.2, 0.8, 1.2)])
def test_clocks_that_run_wrong_by_a_fifth(cluster: SimulatedCluster, rates: tuple[float, ...]) -> None:
    entries = len(cluster.checks.entries)

    for number, rate in zip(cluster.machines, rates, strict=True):
        cluster.set_rate(number, rate)
    cluster.advance(60)

    assert cluster.epoch == 1
    assert len(cluster.checks.entries) == entries


def test_a_lossy_network_with_a_long_delay(cluster: SimulatedCluster) -> None:
    faults = cluster.network.faults
    faults.loss, faults.duplicate, faults.late = 0.1, 0.1, 0.1
    faults.delay_s = (0.05, 0.1)

    cluster.advance(60)

    assert cluster.epoch <= 3
    faults.delay_s = (0.000_2, 0.002)
    cluster.recover()


def test_a_log_that_takes_half_a_second(cluster: SimulatedCluster) -> None:
    cluster.log_faults.delay_s = (0.2, 0.5)

    cluster.create_topic("slow")
    cluster.kill(controller_of(cluster))
    cluster.advance(10)

    assert cluster.epoch == 2
    cluster.recover()


def test_a_log_that_leaves_every_second_append_in_doubt(cluster: SimulatedCluster) -> None:
    cluster.log_faults.answer_lost = 0.5

    for number in range(5):
        cluster.create_topic(f"doubtful-{number}")

    assert len(cluster.checks.state.topics) == 7
    assert cluster.epoch == 1
    cluster.recover()


def test_an_empty_disk_under_an_old_id_is_refused(cluster: SimulatedCluster) -> None:
    broker, _ = others_of(cluster)
    cluster.power_off(broker)
    cluster.wipe(broker)
    cluster.machines[broker].is_wiped = False  # nobody says that this is meant
    cluster.may_halt = True

    cluster.start(broker)
    cluster.advance(5)

    assert "on another data directory" in cluster.halts[broker]
    assert not is_online(cluster, broker)


def test_a_clone_of_a_node_that_lives_is_refused(cluster: SimulatedCluster) -> None:
    broker, _ = others_of(cluster)
    epoch = broker_epoch(cluster, broker)
    clone = cluster.clone(broker)
    cluster.may_halt = True

    cluster.start(clone)
    cluster.advance(20)

    assert clone in cluster.halts
    assert broker not in cluster.halts
    assert broker_epoch(cluster, broker) == epoch


def test_a_node_that_stood_still_and_was_replaced_by_its_clone_stops(cluster: SimulatedCluster) -> None:
    broker, _ = others_of(cluster)
    clone = replaced_by_its_clone(cluster, broker)

    cluster.resume(broker)
    cluster.advance(5)

    assert "another process" in cluster.halts[broker]
    assert clone not in cluster.halts
    assert cluster.checks.state.brokers[broker].registration.incarnation == cluster.machines[clone].incarnation


def test_a_process_that_was_replaced_changes_no_isr(cluster: SimulatedCluster) -> None:
    broker, _ = others_of(cluster)
    process = cluster.machines[broker].caller
    old_epoch = broker_epoch(cluster, broker)
    clone = replaced_by_its_clone(cluster, broker)
    catch_up(cluster, broker)
    cluster.until(lambda: bool(cluster.checks.state.leader_count(broker)), 5.0, "the clone leads something")
    state = cluster.checks.state
    key = next(iter(state.led_by(broker)))
    before = state.partitions[key]

    change = isr_change(state, before, [broker])
    answer = cluster.ask_controller(process, AlterPartitions(state.epoch, broker, old_epoch, (change,)))
    cluster.advance(1)

    assert isinstance(answer, Refused)
    assert answer.reason is RefusalReason.STALE_BROKER_EPOCH
    assert cluster.checks.state.partitions[key].partition_epoch == before.partition_epoch
    assert clone not in cluster.halts


def test_a_process_that_learns_late_of_the_registration_of_the_one_before_it(cluster: SimulatedCluster) -> None:
    controller, (broker, _) = controller_of(cluster), others_of(cluster)
    machine = cluster.machines[broker]
    cluster.kill(broker)
    cluster.advance(0.3)
    cluster.cut_log(controller)  # what it decides has to wait
    for _ in range(2):
        cluster.start(broker)
        cluster.until(lambda: machine.is_ready, 0.3, "the node has started")
        cluster.advance(0.1)  # it asks to be registered
        if machine.starts == 2:
            cluster.kill(broker)
    cluster.cut_log(broker)

    cluster.mend_log(controller)
    cluster.until(lambda: registered(cluster, broker) == machine.incarnation, 2.0, "both processes are registered")
    cluster.advance(0.2)
    cluster.mend_log(broker)

    cluster.recover()  # the newer one is the node, and did not halt
    assert registered(cluster, broker) == f"{broker}.3"


def test_a_node_with_an_empty_disk_is_another_incarnation(cluster: SimulatedCluster) -> None:
    broker, _ = others_of(cluster)
    cluster.power_off(broker)
    cluster.wipe(broker)
    cluster.advance(3)

    cluster.recover()

    assert is_online(cluster, broker)


def test_nodes_whose_log_went_back_refuse_to_go_on() -> None:
    with SimulatedCluster(seed=1, nodes=3) as cluster:
        cluster.start()
        cluster.until_whole()
        cluster.kill(*cluster.machines)
        cluster.engine.go_back(2)
        cluster.may_halt = True

        cluster.start()
        cluster.loop.run_until_complete(cluster.passed(5))  # the checks know the log as it was

        assert len(cluster.halts) == 3
        assert all("went back" in sentence for sentence in cluster.halts.values())


def test_clusters_of_all_sizes_are_tried() -> None:
    assert {nodes_of(seed) for seed in range(1, SEEDS + 1)} == {1, 2, 3, 4, 5}
