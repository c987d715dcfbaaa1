"""Moving and rebuilding a metadata log: what nodes find afterwards, whatever happens in between."""

import asyncio
import socket
from collections.abc import Callable, Coroutine
from dataclasses import replace
from functools import wraps

import pytest

from goqueue.cluster.local_copy import LocalCopy
from goqueue.cluster.log_history import check_history
from goqueue.cluster.log_moves import (
    FoundCopy,
    move_log,
    plan_recovery,
    read_state,
    recover_log,
    running_nodes,
)
from goqueue.cluster.metadata import Metadata
from goqueue.cluster.metadata_log import (
    EMPTY,
    EntryAppended,
    MetadataEntry,
    MetadataLog,
    MetadataPosition,
    MetadataSnapshot,
)
from goqueue.cluster.records import BrokerAddresses, ClusterCreated, ControllerElected, FeatureLevelSet
from goqueue.errors import ClusterError, MetadataUnavailable, MetadataWentBack
from goqueue.runtime.entropy import SeededEntropy
from goqueue.testing import MemoryDisk
from goqueue.testing.simulated_metadata_log import SimulatedEngine, SimulatedMetadataLog
from tests.cluster.history import CLUSTER_ID, History, registration, with_topic
from tests.cluster.metadata_log_contract import entry_after
from tests.cluster.nodes import Machine, until
from tests.testing.in_virtual_time import in_virtual_time

TO = "file:/new"
entropy = SeededEntropy(7)


def in_a_loop(test: Callable[[], Coroutine[None, None, None]]) -> Callable[[], None]:
    @wraps(test)
    def run() -> None:
        asyncio.run(test())

    return run


async def filled(history: History) -> tuple[SimulatedEngine, SimulatedMetadataLog]:
    """A log with this history."""
    engine = SimulatedEngine(SeededEntropy(1))
    log = engine.connect(0)
    for entry in history.entries:
        assert await log.append(entry) == EntryAppended(entry.position)
    return engine, log


def empty() -> SimulatedMetadataLog:
    return SimulatedEngine(SeededEntropy(2)).connect(0)


async def move(source: MetadataLog, target: MetadataLog, to: str = TO) -> bool:
    return (await move_log(source, target, moved_to=to, entropy=entropy)).was_done


def a_copy(history: History, upto: int | None = None, *, node: int = 1, cluster_id: str = CLUSTER_ID) -> FoundCopy:
    """The copy of a node that has applied so much."""
    disk = MemoryDisk()
    copy = LocalCopy.open(disk, f"/{node}", node=node, entropy=SeededEntropy(node))
    copy.join(cluster_id)
    copy.append(history.entries[:upto])
    copy.close()
    return FoundCopy(f"/{node}", LocalCopy.find(disk, f"/{node}"))


# Moving


@in_a_loop
async def test_a_log_goes_on_elsewhere_with_the_same_numbers() -> None:
    history = with_topic()
    _, source = await filled(history)
    target = empty()

    assert not await move(source, target)

    end = history.entries[-1].position
    assert await target.tail() == end
    found = await read_state(target)
    assert (found.metadata.encode(), found.sealed_to) == (history.metadata.encode(), None)
    for entry in history.entries:
        await check_history(target, entry.position, CLUSTER_ID, 0)
    history.elect(2)
    assert await target.append(history.entries[-1]) == EntryAppended(history.entries[-1].position)
    assert (await read_state(target)).metadata.encode() == history.metadata.encode()


@in_a_loop
async def test_the_old_log_says_where_it_goes_on_and_moves_no_more() -> None:
    history = with_topic()
    _, source = await filled(history)
    target = empty()
    await move(source, target)

    found = await read_state(source)
    assert (found.metadata.encode(), found.sealed_to) == (history.metadata.encode(), TO)
    assert await move(source, target)
    with pytest.raises(ClusterError, match="was moved to file:/new already"):
        await move(source, empty(), "file:/newer")
    with pytest.raises(ClusterError, match="nothing is there any more: rebuild it with `goqueue cluster recover`"):
        await move(source, empty())
    _, foreign = await filled(formed_as("f" * 32))
    with pytest.raises(ClusterError, match="choose a place that is empty"):
        await move(source, foreign)


@in_a_loop
async def test_a_move_that_was_interrupted_is_run_again() -> None:
    history = with_topic()
    _, source = await filled(history)
    target = empty()
    await target.replace(MetadataSnapshot(history.metadata.position, history.metadata.encode()))
    history.elect(2)  # the nodes were started with the old log once more
    await source.append(history.entries[-1])

    assert not await move(source, target)

    assert (await read_state(target)).metadata.encode() == history.metadata.encode()


@in_a_loop
async def test_a_controller_that_writes_meanwhile_wins() -> None:
    history = with_topic()
    _, source = await filled(history)

    class Interrupted(SimulatedMetadataLog):
        async def replace(self, snapshot: MetadataSnapshot) -> None:
            await super().replace(snapshot)
            history.elect(2)
            await source.append(history.entries[-1])

    target = Interrupted(SimulatedEngine(SeededEntropy(2)), 0, 2.0)
    with pytest.raises(ClusterError, match="a controller writes to the metadata log while it is moved"):
        await move(source, target)

    assert (await read_state(source)).sealed_to is None
    assert not await move(source, target._engine.connect(0))
    assert (await read_state(source)).sealed_to == TO


@in_virtual_time
async def test_a_seal_in_doubt_is_tried_again_and_then_left_to_the_next_run() -> None:
    history = with_topic()
    _, source = await filled(history)
    target = empty()
    source.fail_next("answer_lost")
    assert not await move(source, target)
    assert (await read_state(source)).sealed_to == TO

    _, source = await filled(history)
    source.faults.answer_lost = 1.0
    target = empty()
    with pytest.raises(MetadataUnavailable, match="run the command again"):
        await move(source, target)
    source.faults.answer_lost = 0.0
    assert await move(source, target)


@in_a_loop
async def test_only_a_place_that_is_empty_takes_a_log() -> None:
    history = with_topic()
    _, source = await filled(history)
    _, grown = await filled(history)
    elsewhere = with_topic()
    elsewhere.elect(3)
    left = empty()
    await left.replace(MetadataSnapshot(MetadataPosition(3, b"x" * 16), Metadata().encode()))
    with pytest.raises(ClusterError):
        await move(source, left)
    ahead = empty()
    await ahead.replace(MetadataSnapshot(elsewhere.metadata.position, elsewhere.metadata.encode()))
    other = formed_as("f" * 32)
    foreign = empty()
    await foreign.replace(MetadataSnapshot(other.metadata.position, other.metadata.encode()))
    for target in (grown, ahead, foreign):
        with pytest.raises(ClusterError, match="there is a metadata log at file:/new already"):
            await move(source, target)
    with pytest.raises(ClusterError, match="the metadata log to move is empty"):
        await move(empty(), empty())
    assert (await read_state(source)).sealed_to is None


@in_virtual_time
async def test_a_node_that_was_started_with_the_old_log_goes_on_with_the_new_one() -> None:
    engine = SimulatedEngine(SeededEntropy(1))
    machine = Machine(engine)
    node = await machine.online()
    await node.stop(controlled=True)
    before = node.metadata.position
    new = SimulatedEngine(SeededEntropy(2))
    assert not await move(engine.connect(9), new.connect(9))

    with pytest.raises(ClusterError, match="was moved to file:/new: start the node with --metadata file:/new"):
        await machine.start()
    assert LocalCopy.find(machine.disk, "/data/metadata").metadata.position == before
    machine.engine = new
    node = await machine.online()

    assert node.metadata.position.index > before.index
    machine.kill()


# Who runs


@in_a_loop
async def test_a_node_that_listens_is_running() -> None:
    history = with_topic()
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        history.append(registration(4, addresses=BrokerAddresses(client="", peer=address)))
        history.append(registration(5, addresses=BrokerAddresses(client="127.0.0.1:1", peer="nonsense")))
        found = await running_nodes(history.metadata)

    assert found == [(4, address)]


# Recovering


def formed_as(cluster_id: str) -> History:
    history = History()
    history.append(ClusterCreated(cluster_id, 1, 0), epoch=0, node=1)
    history.elect(1)
    return history


@pytest.mark.parametrize("kept", [0, 4], ids=["emptied", "restored"])
def test_a_log_is_rebuilt_from_the_most_advanced_copy(kept: int) -> None:
    async def run() -> None:
        history = with_topic()
        history.elect(2)
        engine, log = await filled(history)
        engine.go_back(kept)
        best, behind = a_copy(history, node=2), a_copy(history, -2, node=1)

        plan = await plan_recovery(log, [behind, best], entropy=entropy)
        await recover_log(log, plan)

        assert plan.best is best
        found = (await read_state(engine.connect(1))).metadata
        end = history.entries[-1].position
        assert (found.generation, found.recoveries) == (1, (end.index + 1,))
        assert found.epoch >= history.metadata.epoch
        partition, before = found.partition("t1", 0), history.metadata.partition("t1", 0)
        assert partition is not None
        assert before is not None
        assert (partition.leader, partition.isr) == (None, ())
        assert set(partition.elr) == {1, 2, 3}
        assert partition.leader_epoch > max(before.leader_epoch, plan.epoch_floor)
        for copy in (best.copy, behind.copy):
            await check_history(log, copy.floor, CLUSTER_ID, 0)

    asyncio.run(run())


@in_a_loop
async def test_a_node_that_had_applied_more_refuses_for_good() -> None:
    history = with_topic()
    _, log = await filled(history)
    log._engine.go_back(0)
    best = a_copy(history, node=2)
    await recover_log(log, await plan_recovery(log, [best], entropy=entropy))
    for _ in range(3):
        history.append(FeatureLevelSet(1))
    ahead = [entry.position for entry in history.entries[-3:]]

    for _ in range(2):  # before and after its entries are trimmed
        for position in ahead:
            with pytest.raises(MetadataWentBack):
                await check_history(log, position, CLUSTER_ID, 0)
        state = (await read_state(log)).metadata
        for _ in range(5):
            elected = entry_of(state, state.epoch + 1)
            assert await log.append(elected) == EntryAppended(elected.position)
            state.apply(elected)
        await log.store_snapshot(MetadataSnapshot(state.position, state.encode()))
        await log.trim(1_000)
    with pytest.raises(MetadataWentBack, match="start this node with an empty data directory"):
        await check_history(log, ahead[-1], CLUSTER_ID, 0)
    await check_history(log, best.copy.floor, CLUSTER_ID, 0)


def entry_of(state: Metadata, epoch: int) -> MetadataEntry:
    history = History()
    batch = history.entry(ControllerElected(epoch, 1, "1a")).batch
    return entry_after(state.position, batch, node=1, epoch=epoch)


@in_a_loop
async def test_nothing_is_recovered_that_is_not_lost() -> None:
    history = with_topic()
    _, log = await filled(history)
    tail = await log.tail()
    for copies in ([a_copy(history)], [a_copy(history, 3), a_copy(history, -1, node=2)]):
        with pytest.raises(ClusterError, match="nothing has to be recovered"):
            await plan_recovery(log, copies, entropy=entropy)
    other = with_topic()
    other.take(replace(other.entry(FeatureLevelSet(1)), id=b"another decision"))
    history.elect(2)
    await log.append(history.entries[-1])
    with pytest.raises(ClusterError, match="/3 went another way"):
        await plan_recovery(log, [a_copy(history), a_copy(other, node=3)], entropy=entropy)
    assert (await log.tail()).index == tail.index + 1


@in_a_loop
async def test_what_is_of_another_cluster_is_refused() -> None:
    history = with_topic()
    _, log = await filled(history)
    foreign = formed_as("f" * 32)
    _, other = await filled(foreign)
    with pytest.raises(ClusterError, match="are of different clusters"):
        await plan_recovery(log, [a_copy(history), a_copy(foreign, node=2, cluster_id="f" * 32)], entropy=entropy)
    with pytest.raises(ClusterError, match=f"this metadata log belongs to the cluster {'f' * 32}"):
        await plan_recovery(other, [a_copy(history)], entropy=entropy)
    await move(log, empty())
    with pytest.raises(ClusterError, match="was moved to file:/new: recover that one"):
        await plan_recovery(log, [a_copy(history)], entropy=entropy)


@in_a_loop
async def test_a_copy_of_before_a_recovery_does_not_undo_it() -> None:
    history = with_topic()
    engine, log = await filled(history)
    engine.go_back(0)
    await recover_log(log, await plan_recovery(log, [a_copy(history, -1)], entropy=entropy))

    with pytest.raises(ClusterError, match="was recovered already, at entry"):
        await plan_recovery(log, [a_copy(history, node=2)], entropy=entropy)


@in_a_loop
async def test_a_damaged_log_is_rebuilt() -> None:
    history = with_topic()
    engine, log = await filled(history)
    engine.flip_bit(4)

    plan = await plan_recovery(log, [a_copy(history)], entropy=entropy)
    await recover_log(log, plan)

    assert "cannot be read" in plan.log
    assert (await read_state(log)).metadata.generation == 1


@in_a_loop
async def test_a_damaged_copy_is_not_taken() -> None:
    history = with_topic()
    disk = MemoryDisk()
    copy = LocalCopy.open(disk, "/9", node=9, entropy=SeededEntropy(9))
    copy.join(CLUSTER_ID)
    copy.append(history.entries)
    copy.close()
    disk.flip_bit("/9/entries", 100)
    damaged = FoundCopy("/9", LocalCopy.find(disk, "/9"))
    log = empty()
    with pytest.raises(ClusterError, match="none of these copies of the metadata can be used: /9: "):
        await plan_recovery(log, [damaged], entropy=entropy)

    plan = await plan_recovery(log, [damaged, a_copy(history, -2)], entropy=entropy)

    assert plan.best.directory == "/1"
    assert await log.tail() == EMPTY


def test_a_directory_without_a_copy_is_named() -> None:
    disk = MemoryDisk()
    disk.make_directory("/none")
    with pytest.raises(ClusterError, match="/none has no copy of the metadata of a cluster"):
        LocalCopy.find(disk, "/none")
    assert [entry.name for entry in disk.entries("/none")] == []


@in_virtual_time
async def test_nodes_lead_again_after_a_recovery() -> None:
    engine = SimulatedEngine(SeededEntropy(1))
    machine = Machine(engine)
    node = await machine.online()
    await node.stop(controlled=True)
    epoch = node.metadata.epoch
    engine.go_back(0)
    with pytest.raises(MetadataWentBack):
        await machine.start()
    log = engine.connect(9)
    found = FoundCopy("/data", LocalCopy.find(machine.disk, "/data/metadata"))

    await recover_log(log, await plan_recovery(log, [found], entropy=entropy))

    node = await machine.online()
    await until(lambda: node.controller is not None)
    assert (node.metadata.generation, node.metadata.epoch > epoch) == (1, True)
    machine.kill()
