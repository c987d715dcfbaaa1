"""A node starts on the right log or says why not, follows it, becomes the controller, and asks it."""

from collections.abc import Awaitable, Iterator

import msgspec
import pytest

from goqueue import events
from goqueue.clock import SECOND
from goqueue.cluster.formation import OwnData, OwnTopic
from goqueue.cluster.link import CallingNode
from goqueue.cluster.local_copy import SnapshotPolicy
from goqueue.cluster.messages import (
    CreateTopic,
    DeleteTopic,
    Heartbeat,
    HeartbeatReply,
    PreVote,
    PreVoteReply,
    ProducerIdBlock,
    RefusalReason,
    Refused,
    RemoveNode,
    TakeProducerIds,
    TopicDecided,
    decode_message,
    encode_message,
)
from goqueue.cluster.metadata import Metadata
from goqueue.cluster.node import Node
from goqueue.cluster.records import (
    BrokerRemoved,
    BrokerStatus,
    ClusterCreated,
    LogSealed,
    PartitionChanged,
    RequestDone,
    TopicAdded,
)
from goqueue.errors import (
    ClusterError,
    GoQueueError,
    InvalidRequest,
    MetadataTooNew,
    MetadataUnavailable,
    MetadataWentBack,
    TopicExists,
)
from goqueue.runtime.entropy import SeededEntropy
from goqueue.testing.simulated_cluster import SimulatedCluster
from goqueue.testing.simulated_metadata_log import SimulatedEngine
from tests.cluster.nodes import PATH, Machine, passed, until, write
from tests.testing.in_virtual_time import in_virtual_time


def new_engine(seed: int = 1) -> SimulatedEngine:
    return SimulatedEngine(SeededEntropy(seed))


def records_of(engine: SimulatedEngine, kind: type[object]) -> list[object]:
    """All records of a kind that are in the log."""
    state, found = Metadata(), []
    for entry in engine.history:
        found += [record for record in state.apply(entry) if isinstance(record, kind)]
    return found


async def topic(node: Node, name: str = "orders", request_id: str = "r1") -> TopicDecided:
    answer = await node.decide(CreateTopic(request_id, name, 2, 1))
    assert isinstance(answer, TopicDecided)
    return answer


async def refusal(work: Awaitable[object]) -> GoQueueError:
    """What it raises."""
    try:
        await work
    except GoQueueError as error:
        return error
    raise AssertionError("it was not refused")


# --- one node ----------------------------------------------------------------------------------------


@in_virtual_time
async def test_a_node_that_is_alone_forms_a_cluster_and_is_its_controller() -> None:
    engine = new_engine()
    machine = Machine(engine)

    node = await machine.start()
    took_s = await until(lambda: machine.is_online)

    assert took_s <= 0.05
    assert node.controller is not None
    assert node.hears_controller
    assert node.broker_epoch == 3
    assert machine.copy.cluster_id == node.metadata.cluster_id != ""
    assert events.ControllerChanged(1, 1, True) in machine.events
    assert events.BrokerStatusChanged(1, "online") in machine.events
    assert events.MetadataApplied(4) in machine.events
    assert sum(isinstance(event, events.MetadataAppended) for event in machine.events) == 3
    machine.kill()


@in_virtual_time
async def test_what_was_decided_is_applied_when_it_is_answered() -> None:
    machine = Machine(new_engine())
    node = await machine.online()

    answer = await topic(node)
    block = await node.decide(TakeProducerIds(1))

    assert node.metadata.topic_named("orders") == node.metadata.topic(answer.topic_id)
    assert any(isinstance(record, TopicAdded) for record in machine.applied)
    assert isinstance(block, ProducerIdBlock)
    assert isinstance(await refusal(topic(node, request_id="r2")), TopicExists)
    machine.kill()


@in_virtual_time
async def test_a_restart_goes_on_at_once_as_another_process() -> None:
    machine = Machine(new_engine())
    node = await machine.online()
    await topic(node)
    machine.kill()
    machine.applied.clear()

    node = machine.make()
    assert node.metadata.topic_named("orders") is not None, "from its own copy, without the log"
    await node.start()
    took_s = await until(lambda: machine.is_online)

    assert took_s <= 0.05
    assert node.metadata.epoch == 2
    assert {found.leader for found in node.metadata.partitions.values()} == {1}
    assert not any(isinstance(record, TopicAdded) for record in machine.applied)
    machine.kill()


@in_virtual_time
async def test_a_node_that_loses_its_state_and_not_its_identity_reads_it_again() -> None:
    machine = Machine(new_engine())
    await topic(await machine.online())
    machine.kill()
    raw = bytearray(machine.disk.read(f"{PATH}/entries"))
    raw[70] ^= 1
    machine.disk.write(f"{PATH}/entries", bytes(raw))

    node = await machine.online()

    assert node.metadata.topic_named("orders") is not None
    machine.kill()


@in_virtual_time
async def test_a_clean_stop_is_told_to_the_controller_at_the_next_start() -> None:
    engine = new_engine()
    machine = Machine(engine)
    node = await machine.online()
    await topic(node)
    assert await node.hand_over()
    epoch = node.broker_epoch
    assert node.metadata.brokers[1].status is BrokerStatus.FENCED
    await node.stop(controlled=True)

    node = await machine.online()

    assert machine.copy.clean_epoch == epoch
    machine.kill()


@in_virtual_time
async def test_a_topic_of_a_node_that_was_alone_is_led_by_it_in_its_own_cluster() -> None:
    machine = Machine(new_engine())
    own = OwnData(topics=[OwnTopic(id="t", name="orders", created_at_ns=5, leader_epochs=(0, 7), settings={})])

    node = await machine.online(own=own)
    await until(lambda: all(found.leader == 1 for found in node.metadata.partitions.values()))

    assert node.metadata.topic_named("orders") == TopicAdded("t", "orders", 5, 2)
    assert [found.leader_epoch for found in node.metadata.partitions_of("t")] == [2, 8]
    assert len(records_of(machine.engine, ClusterCreated)) == 1
    machine.kill()


@in_virtual_time
async def test_forming_a_cluster_is_tried_again_with_the_same_entry() -> None:
    engine = new_engine()
    machine = Machine(engine)
    node = machine.make(own=OwnData(topics=[OwnTopic(id="t", name="orders", created_at_ns=5, leader_epochs=(1,))]))
    machine.log.cut()
    assert isinstance(await refusal(node.start(within_ns=5 * SECOND)), MetadataUnavailable)
    node = machine.make(own=OwnData(topics=[OwnTopic(id="t", name="orders", created_at_ns=5, leader_epochs=(1,))]))
    machine.log.fail_next("answer_lost")

    await node.start()

    assert len(records_of(engine, ClusterCreated)) == 1
    assert node.metadata.topic_named("orders") is not None
    machine.kill()
    await machine.online(own=OwnData(topics=[OwnTopic(id="t", name="orders", created_at_ns=5, leader_epochs=(1,))]))
    machine.kill()


# --- refused at the start ----------------------------------------------------------------------------


@in_virtual_time
async def test_without_its_log_a_node_waits_or_gives_up() -> None:
    machine = Machine(new_engine())
    node = machine.make()
    machine.log.cut()

    error = await refusal(node.start(within_ns=5 * SECOND))

    assert isinstance(error, MetadataUnavailable)
    assert "the metadata log did not answer within 5 s" in str(error)


@in_virtual_time
async def test_an_empty_log_is_refused_by_a_node_of_a_cluster() -> None:
    machine = Machine(new_engine())
    await machine.online()
    machine.kill()
    machine.engine = new_engine(2)

    error = await refusal(machine.start())

    assert isinstance(error, MetadataWentBack)
    assert "the metadata log went back (restored or re-created): it is empty" in str(error)
    assert "goqueue cluster recover" in str(error)


@in_virtual_time
async def test_a_log_that_went_back_is_refused() -> None:
    machine = Machine(new_engine())
    await machine.online()
    machine.kill()
    machine.engine.go_back(2)

    error = await refusal(machine.start())

    assert isinstance(error, MetadataWentBack)
    assert "it ends before entry 4" in str(error)


@in_virtual_time
async def test_a_log_that_went_back_and_grew_again_is_refused() -> None:
    machine = Machine(new_engine())
    await machine.online()
    machine.kill()
    machine.engine.go_back(2)
    for _ in range(5):
        write(machine.engine, [BrokerRemoved(9, 9)], epoch=0)

    error = await refusal(machine.start())

    assert isinstance(error, MetadataWentBack)
    assert "it has another entry 4 than this node has applied" in str(error)


@in_virtual_time
async def test_the_log_of_another_cluster_is_refused() -> None:
    machine, stranger = Machine(new_engine()), Machine(new_engine(2), 7)
    await machine.online()
    machine.kill()
    await stranger.online()
    stranger.kill()
    machine.engine = stranger.engine

    error = await refusal(machine.start())

    assert f"belongs to the cluster {stranger.copy.cluster_id}, this node to the cluster" in str(error)
    assert "check the address of the metadata log" in str(error)


@in_virtual_time
async def test_topics_of_its_own_do_not_fit_into_a_cluster_that_exists() -> None:
    machine, late = Machine(new_engine()), Machine(new_engine(), 2)
    await machine.online()
    late.engine = machine.engine
    own = OwnData(topics=[OwnTopic(id="t", name="orders", created_at_ns=5, leader_epochs=(1,))])

    error = await refusal(late.start(own=own))

    assert "has 1 topics of its own, which that cluster does not know" in str(error)
    machine.kill()


@in_virtual_time
async def test_a_newer_feature_level_is_refused() -> None:
    machine = Machine(new_engine())
    write(machine.engine, [ClusterCreated("c" * 32, 99, 0)])

    error = await refusal(machine.start())

    assert isinstance(error, MetadataTooNew)
    assert "feature level 99" in str(error)
    assert "update this node" in str(error)


@in_virtual_time
async def test_something_else_than_a_metadata_log_is_refused() -> None:
    machine = Machine(new_engine())
    write(machine.engine, [LogSealed("x")])

    assert "does not begin with the creation of a cluster" in str(await refusal(machine.start()))


@in_virtual_time
async def test_a_sealed_log_says_where_it_goes_on() -> None:
    machine = Machine(new_engine())
    node = await machine.online()
    write(machine.engine, [LogSealed("etcd://host:2379/prefix")], epoch=1)

    error = await node.halted

    sentence = "was moved to etcd://host:2379/prefix: start the node with --metadata etcd://host:2379/prefix"
    assert sentence in str(error)
    assert sentence in str(await refusal(machine.start()))


@in_virtual_time
async def test_a_damaged_log_is_refused() -> None:
    machine = Machine(new_engine())
    await machine.online()
    machine.kill()
    machine.engine.flip_bit(3)
    machine.number = 2
    machine.disk = type(machine.disk)()

    assert "checksum of entry 3 is wrong" in str(await refusal(machine.start()))


# --- while it runs -----------------------------------------------------------------------------------


@in_virtual_time
async def test_a_log_that_goes_back_under_a_node_halts_it() -> None:
    machine = Machine(new_engine())
    node = await machine.online()
    machine.engine.go_back(2)

    assert isinstance(await refusal(topic(node)), MetadataWentBack)

    assert isinstance(await node.halted, MetadataWentBack)
    assert node.controller is None


@in_virtual_time
async def test_without_the_log_nothing_is_decided_and_the_same_request_is_carried_out_once() -> None:
    machine = Machine(new_engine())
    node = await machine.online()
    machine.log.cut()

    error = await refusal(node.decide(CreateTopic("r1", "orders", 1, 1), within_ns=3 * SECOND))
    assert isinstance(error, MetadataUnavailable)
    assert not node.hears_controller, "another node may do better"
    machine.log.heal()
    answer = await topic(node)

    assert node.hears_controller
    assert isinstance(answer, TopicDecided)
    assert len(records_of(machine.engine, TopicAdded)) == len(records_of(machine.engine, RequestDone)) == 1
    machine.kill()


@pytest.mark.parametrize("fault", ["answer_lost", "append_late"])
def test_an_append_in_doubt_that_appears_later_is_carried_out_once(fault: str) -> None:
    @in_virtual_time
    async def run() -> None:
        machine = Machine(new_engine())
        node = await machine.online()
        machine.log.fail_next(fault)  # type: ignore[arg-type]

        await topic(node)

        await passed(10)
        assert len(records_of(machine.engine, TopicAdded)) == 1
        outcomes = {event.outcome for event in machine.events if isinstance(event, events.MetadataAppended)}
        # What the log has not answered, its watch may tell.
        assert outcomes == ({"appended"} if fault == "answer_lost" else {"appended", "unknown"})
        machine.kill()

    run()


@in_virtual_time
async def test_an_election_in_doubt_that_appears_later_makes_the_node_the_controller() -> None:
    machine = Machine(new_engine())
    await machine.online()
    machine.kill()
    node = machine.make()
    machine.log.fail_next("append_late")

    await node.start()
    await until(lambda: node.controller is not None)

    assert node.metadata.epoch == 2
    assert len(machine.engine.history) == node.metadata.position.index
    machine.kill()


@in_virtual_time
async def test_a_lost_entry_ends_a_reign_and_begins_another() -> None:
    machine = Machine(new_engine())
    node = await machine.online()
    deciding = topic(node)
    write(machine.engine, [BrokerRemoved(9, 9)], epoch=0, node=9)  # of a stranger; nobody heeds it

    await deciding
    await until(lambda: node.controller is not None)

    assert node.metadata.epoch in (1, 2)
    assert len(records_of(machine.engine, TopicAdded)) == 1
    machine.kill()


@in_virtual_time
async def test_snapshots_keep_the_log_short_and_a_new_node_begins_with_one() -> None:
    engine = new_engine()
    machine = Machine(engine, policy=SnapshotPolicy(entries=10, entries_kept=5))
    node = await machine.online()
    for number in range(40):
        await topic(node, f"topic-{number}", f"r{number}")
    await passed(1)
    with pytest.raises(ClusterError):
        engine.read(1, 1)
    assert len(engine.read(node.metadata.position.index - 5, 100)) == 6

    late = Machine(engine, 2)
    newcomer = await late.start()

    assert newcomer.metadata.encode() == node.metadata.encode()
    assert sum(isinstance(record, TopicAdded) for record in late.applied) == 40
    assert late.peers.addresses == {1: "host-1:7001"}
    late.kill()
    again = late.make()
    assert len(again.metadata.topics) == 40
    machine.kill()


@in_virtual_time
async def test_a_node_that_was_away_while_the_log_was_trimmed_is_told_what_it_has_missed() -> None:
    engine = new_engine()
    late, machine = Machine(engine, 2), Machine(engine, policy=SnapshotPolicy(entries=10, entries_kept=0))
    node = await machine.online()
    await topic(node, "gone", "gone")
    await late.start()
    late.kill()
    late.applied.clear()
    await node.decide(DeleteTopic("deleted", "gone"))
    for number in range(30):
        await topic(node, f"topic-{number}", f"r{number}")
    await passed(1)

    newcomer = await late.start()

    assert newcomer.metadata.encode() == node.metadata.encode()
    assert [type(record).__name__ for record in late.applied].count("TopicRemoved") == 1
    assert len(newcomer.metadata.topics) == 30
    late.kill()
    machine.kill()


@in_virtual_time
async def test_a_node_that_is_removed_halts_and_stays_away() -> None:
    engine = new_engine()
    machine, other = Machine(engine), Machine(engine, 2)
    node = await machine.online()
    leaving = await other.start()
    register = other.node._link._registration()  # the machines of this test have no network
    await node.answer(CallingNode(2, register.incarnation), encode_message(register))
    await until(lambda: leaving.broker_epoch is not None)

    await node.decide(RemoveNode("r", 2))

    assert "node 2 was removed from the cluster" in str(await leaving.halted)
    other.copy.close()
    with pytest.raises(ClusterError, match="node 2 was removed from the cluster"):
        other.make()
    machine.kill()


@in_virtual_time
async def test_another_process_of_the_node_stops_this_one() -> None:
    engine = new_engine()
    machine, second = Machine(engine), Machine(engine)
    node = await machine.online()
    second.starts, second.disk = 10, machine.disk

    await second.online()

    assert "another process is node 1 now" in str(await node.halted)
    second.kill()


@in_virtual_time
async def test_a_full_disk_holds_the_node_until_there_is_room() -> None:
    machine = Machine(new_engine())
    node = await machine.online()
    machine.disk.capacity_bytes = machine.disk.used_bytes

    assert isinstance(await refusal(node.decide(CreateTopic("r", "t", 1, 1), within_ns=SECOND)), MetadataUnavailable)
    assert node.metadata.topic_named("t") is None, "nothing is applied that is not kept"
    machine.disk.capacity_bytes = None
    await until(lambda: node.metadata.topic_named("t") is not None)

    assert not node.halted.done()
    machine.kill()


@in_virtual_time
async def test_a_barrier_waits_for_what_was_there() -> None:
    machine = Machine(new_engine())
    node = await machine.online()
    entry = write(machine.engine, [BrokerRemoved(9, 9)], epoch=0, node=9)

    await node.barrier()

    assert node.metadata.position.index >= entry.index
    machine.log.cut()
    assert isinstance(await refusal(node.barrier()), MetadataUnavailable)
    machine.kill()


# --- what it answers ---------------------------------------------------------------------------------


@in_virtual_time
async def test_a_node_answers_for_the_controller_only_while_it_is_that() -> None:
    machine = Machine(new_engine())
    node = machine.make()
    caller = CallingNode(1, "1.1")
    heartbeat = encode_message(Heartbeat(0, 1, 3, 4))

    refused = decode_message(await node.answer(caller, heartbeat))
    assert isinstance(refused, Refused)
    assert refused.reason is RefusalReason.NOT_CONTROLLER
    await node.start()
    await until(lambda: machine.is_online)
    assert isinstance(decode_message(await node.answer(caller, heartbeat)), HeartbeatReply)

    later = decode_message(await node.answer(caller, encode_message(Heartbeat(2, 1, 3, 4))))
    assert isinstance(later, Refused), "the caller knows a later epoch"
    machine.kill()


@in_virtual_time
async def test_a_controller_that_cannot_write_does_not_hold_its_office() -> None:
    machine = Machine(new_engine())
    node = await machine.online()
    caller, question = CallingNode(2, "2.1"), encode_message(PreVote(2, 1))
    assert decode_message(await node.answer(caller, question)) == PreVoteReply(1, 1, True)
    machine.log.cut()
    assert isinstance(
        await refusal(node.decide(CreateTopic("r", "t", 1, 1), within_ns=3 * SECOND)), MetadataUnavailable
    )

    heartbeat = decode_message(await node.answer(CallingNode(1, "1.1"), encode_message(Heartbeat(1, 1, 3, 4))))

    assert decode_message(await node.answer(caller, question)) == PreVoteReply(1, 1, False)
    assert isinstance(heartbeat, Refused)
    machine.kill()


@in_virtual_time
async def test_a_node_speaks_for_itself_only() -> None:
    machine = Machine(new_engine())
    node = await machine.online()

    for message in (Heartbeat(1, 1, 3, 4), HeartbeatReply(1, 1, BrokerStatus.ONLINE)):
        assert isinstance(await refusal(node.answer(CallingNode(2, "2.1"), encode_message(message))), InvalidRequest)
    assert isinstance(await refusal(node.answer(CallingNode(2, "2.1"), msgspec.msgpack.encode("?"))), InvalidRequest)
    machine.kill()


# --- several nodes -----------------------------------------------------------------------------------


@pytest.fixture
def cluster() -> Iterator[SimulatedCluster]:
    with SimulatedCluster(seed=5, nodes=3) as cluster:
        cluster.start()
        cluster.until_whole()
        cluster.create_topic("orders")
        cluster.advance(1)
        yield cluster


def fenced(cluster: SimulatedCluster) -> list[int]:
    return [node for node, broker in cluster.checks.state.brokers.items() if broker.is_fenced]


def test_three_nodes_that_start_together_form_one_cluster(cluster: SimulatedCluster) -> None:
    assert len({cluster.node(number).metadata.cluster_id for number in (1, 2, 3)}) == 1
    assert cluster.epoch == 1
    assert fenced(cluster) == []


@pytest.mark.parametrize(("fault", "most_s"), [("kill", 0.6), ("power_off", 2.0), ("stop", 2.0)])
def test_a_controller_that_is_gone_is_replaced(cluster: SimulatedCluster, fault: str, most_s: float) -> None:
    old = cluster.controller
    assert old is not None

    getattr(cluster, fault)(old)
    took_s = cluster.until(lambda: cluster.epoch == 2, 5.0, "another controller")

    assert took_s <= most_s
    cluster.until(lambda: fenced(cluster) == [old], 5.0, "the old controller is fenced")
    assert cluster.controller not in (None, old)


def test_while_the_metadata_log_is_away_nobody_is_fenced(cluster: SimulatedCluster) -> None:
    before = cluster.checks.state.position.index

    cluster.cut_log()
    cluster.advance(60)
    cluster.mend_log()
    cluster.until_whole()
    cluster.advance(5)

    written = cluster.checks.entries[before:]
    assert not [
        record for entry in written for record in cluster.records(entry) if isinstance(record, PartitionChanged)
    ]
    assert fenced(cluster) == []
    cluster.create_topic("afterwards")


def test_a_controller_that_alone_cannot_reach_the_log_is_replaced_once_it_has_to_write(
    cluster: SimulatedCluster,
) -> None:
    old = cluster.controller
    assert old is not None
    other = next(number for number in cluster.machines if number != old)
    cluster.cut_log(old)
    cluster.advance(5)
    assert cluster.epoch == 1, "nothing is to be decided"

    asked = cluster.decide(CreateTopic("r", "more", 1, 3), through=[other], within_s=10)
    cluster.until(asked.done, 10, "it is decided")

    assert isinstance(asked.result(), TopicDecided)
    assert cluster.epoch >= 2
    assert cluster.controller != old


def test_a_clone_of_a_disk_is_refused(cluster: SimulatedCluster) -> None:
    number = next(number for number in cluster.machines if number != cluster.controller)
    clone = cluster.clone(number)

    cluster.may_halt = True
    cluster.start(clone)
    cluster.until(lambda: clone in cluster.halts, 30.0, "the clone halts")

    assert f"node {number} is another process at host-{number}:7001" in cluster.halts[clone]
    assert cluster.epoch == 1
    assert list(cluster.halts) == [clone]


def test_an_older_copy_of_a_disk_is_refused_until_somebody_says_that_the_disk_is_lost(
    cluster: SimulatedCluster,
) -> None:
    number = next(number for number in cluster.machines if number != cluster.controller)
    backup = cluster.clone(number)
    cluster.kill(number)
    cluster.start(number)
    cluster.until_whole()
    cluster.power_off(number)

    cluster.may_halt = True
    cluster.start(backup)
    cluster.until(lambda: backup in cluster.halts, 30.0, "the node halts")
    assert f"an older copy of the one that node {number} has used since" in cluster.halts[backup]

    cluster.machines[backup].is_wiped = True  # what `--disk-replaced` says
    cluster.start(backup)
    cluster.until(lambda: cluster.checks.state.brokers[number].is_online, 30.0, "the node is online")
    eligible = [one for one in cluster.checks.state.partitions.values() if number in one.elr]
    assert eligible == []
    cluster.power_off(backup)
    cluster.machines[backup].is_wiped = False
    del cluster.halts[backup]
    cluster.start(backup)  # from now on this is the disk of the node
    cluster.until_whole()


def test_a_process_that_died_before_it_was_registered_leaves_no_doubt_about_the_disk(cluster: SimulatedCluster) -> None:
    number = next(number for number in cluster.machines if number != cluster.controller)
    cluster.cut_log(number)
    for _ in range(3):
        cluster.kill(number)
        cluster.start(number)
        cluster.advance(0.3)
    cluster.mend_log(number)

    cluster.until_whole()
    cluster.kill(number)
    cluster.start(number)
    cluster.until_whole()


def test_an_empty_disk_under_an_old_id_is_refused(cluster: SimulatedCluster) -> None:
    number = next(number for number in cluster.machines if number != cluster.controller)
    cluster.power_off(number)
    cluster.wipe(number)
    cluster.machines[number].is_wiped = False  # nobody says that the disk was replaced

    cluster.may_halt = True
    cluster.start(number)
    cluster.until(lambda: number in cluster.halts, 30.0, "the node halts")

    assert "partitions on another data directory: start it with that one" in cluster.halts[number]
