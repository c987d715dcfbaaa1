"""Every entry of the log is kept and applied, in order and once, whatever its watch does."""

import asyncio
from collections.abc import AsyncIterator, Sequence

import pytest

from goqueue.cluster.local_copy import SnapshotPolicy
from goqueue.cluster.log_follower import LAG_NS, LogFollower
from goqueue.cluster.metadata_log import MetadataEntry, MetadataSnapshot
from goqueue.cluster.records import Record, TopicRemoved
from goqueue.errors import ClusterError, MetadataDamaged, MetadataWentBack
from goqueue.runtime.entropy import SeededEntropy
from goqueue.testing import MemoryDisk
from goqueue.testing.simulated_metadata_log import SimulatedEngine, SimulatedMetadataLog
from tests.cluster.history import CLUSTER_ID, History, with_topic
from tests.cluster.nodes import Machine, passed, until
from tests.cluster.test_local_copy import copy_of, long_history
from tests.testing.in_virtual_time import in_virtual_time


class Reader:
    """A follower of a log that has the entries of a history."""

    def __init__(self, history: History, *, own: int = 0, policy: SnapshotPolicy | None = None) -> None:
        """Of which its copy has as many as `own`."""
        self.history = history
        self.machine = Machine(SimulatedEngine(SeededEntropy(1)), policy=policy or SnapshotPolicy())
        self.disk: MemoryDisk = self.machine.disk
        self.machine.make()
        copy = self.machine.copy
        copy.join(CLUSTER_ID)
        if own:
            copy.append(history.entries[:own]).result()
            self.machine.make()
        for entry in history.entries:
            self.machine.engine.append(entry)
        self.follow(self.machine.log)

    def follow(self, log: SimulatedMetadataLog) -> None:
        copy = self.machine.copy
        self.metadata = copy.metadata
        self.entries: list[MetadataEntry | None] = []
        self.records: list[Record] = []
        self.follower = LogFollower(log, self.metadata, copy, time=self.machine.time, applied=self.applied)
        self.reading = asyncio.ensure_future(self.follower.read())
        self.applying = asyncio.ensure_future(self.follower.apply())

    def applied(self, entry: MetadataEntry | None, records: Sequence[Record]) -> None:
        self.entries.append(entry)
        self.records += records

    async def reads_all(self) -> None:
        await until(lambda: self.metadata.position == self.history.metadata.position)
        assert self.metadata.encode() == self.history.metadata.encode()
        self.end()

    def end(self) -> None:
        self.reading.cancel()
        self.applying.cancel()

    async def error(self) -> BaseException | None:
        """Why reading or applying ended."""
        await asyncio.wait((self.reading, self.applying), return_when=asyncio.FIRST_COMPLETED)
        ended = self.reading if self.reading.done() else self.applying
        error = ended.exception()
        self.end()
        return error


class SilentWatch(SimulatedMetadataLog):
    """A log whose watch never says anything, as one without `hasleader` in a lost quorum."""

    def __init__(self, log: SimulatedMetadataLog) -> None:
        super().__init__(log._engine, log.node, 2.0)

    async def watch(self, first: int) -> AsyncIterator[MetadataEntry]:
        await asyncio.get_running_loop().create_future()
        yield self._engine.read(first, 1)[0]


@in_virtual_time
async def test_a_follower_begins_after_its_copy_and_applies_each_entry_once() -> None:
    reader = Reader(long_history(), own=5)
    added = reader.history.append(TopicRemoved("t1", 1))
    reader.machine.engine.append(reader.history.entries[-1])

    await reader.reads_all()

    assert reader.entries == reader.history.entries[5:]
    assert reader.records[-1:] == added
    assert copy_of(reader.history, 5).encode() != reader.metadata.encode()


@in_virtual_time
async def test_what_is_offered_need_not_come_through_the_watch() -> None:
    reader = Reader(long_history())
    await until(lambda: reader.metadata.position == reader.history.metadata.position)
    reader.machine.log.cut()
    reader.history.append(TopicRemoved("t1", 1))
    entry = reader.history.entries[-1]
    reader.machine.engine.append(entry)

    reader.follower.offer(entry)
    reader.follower.offer(entry)
    await reader.follower.wait_applied(entry.index)
    reader.machine.log.heal()
    await passed(1)

    assert reader.entries.count(entry) == 1
    await reader.reads_all()


@in_virtual_time
async def test_a_watch_that_lags_is_left_for_reading_by_index() -> None:
    reader = Reader(long_history(), own=3)
    reader.end()
    reader.follow(SilentWatch(reader.machine.log))
    await until(lambda: reader.metadata.position == reader.history.metadata.position)
    reader.history.append(TopicRemoved("t1", 1))
    reader.machine.engine.append(reader.history.entries[-1])
    await passed(10)
    assert reader.metadata.position != reader.history.metadata.position, "nobody has told"

    reader.follower.heard_of(reader.history.metadata.position.index)
    took_s = await until(lambda: reader.metadata.position == reader.history.metadata.position)

    assert took_s <= 2.1 * LAG_NS / 1e9
    await reader.reads_all()


@in_virtual_time
async def test_behind_a_trim_the_snapshot_stands_for_what_is_gone() -> None:
    reader = Reader(long_history(), own=3)
    reader.end()
    engine, history = reader.machine.engine, reader.history
    position = history.entries[14].position
    engine.store_snapshot(MetadataSnapshot(position, copy_of(history, 15).encode()))
    engine.trim(14)
    reader.follow(reader.machine.log)

    await reader.reads_all()

    assert reader.entries == [None, *history.entries[15:]]
    assert reader.machine.copy.leader_epoch == 21
    reader.machine.make()
    assert reader.machine.copy.metadata.encode() == history.metadata.encode()


@in_virtual_time
async def test_entries_that_come_during_a_sync_are_kept_together() -> None:
    history = long_history(200)
    reader = Reader(history)
    before = reader.disk.steps

    await reader.reads_all()

    written = len(reader.disk.read("/data/metadata/entries"))
    assert reader.disk.steps - before - written < 20, "each byte is a step, and so is each sync"


@in_virtual_time
async def test_the_copy_becomes_a_snapshot_that_is_passed_on() -> None:
    reader = Reader(long_history(), policy=SnapshotPolicy(entries=10))
    stored: list[tuple[int, bytes]] = []
    reader.follower.stored = lambda position, state: stored.append((position.index, state))

    await reader.reads_all()

    ((index, state),) = stored
    assert state == copy_of(reader.history, index).encode()


@pytest.mark.parametrize("grown", [False, True])
def test_a_log_that_went_back_halts_its_reader(grown: bool) -> None:
    @in_virtual_time
    async def run() -> None:
        reader = Reader(long_history())
        await until(lambda: reader.metadata.position == reader.history.metadata.position)
        other = with_topic()
        reader.machine.engine.go_back(7)
        for _ in range(30 if grown else 0):
            other.append(TopicRemoved("t1", 1)) if other.metadata.topics else other.elect(1)
        for entry in other.entries[7:]:
            reader.machine.engine.append(
                MetadataEntry(
                    entry.index,
                    b"x" + entry.id[1:],
                    reader.machine.engine.tail().id,
                    entry.epoch,
                    entry.node,
                    entry.batch,
                )
            )

        if not grown:
            with pytest.raises(MetadataWentBack):
                await reader.follower.verify()
            reader.end()
        else:
            assert isinstance(await reader.error(), MetadataWentBack)

    run()


@in_virtual_time
async def test_a_snapshot_of_another_cluster_halts_its_reader() -> None:
    reader = Reader(long_history(), own=3)
    reader.end()
    engine, history = reader.machine.engine, reader.history
    state = copy_of(history, 15)
    state.cluster_id = "d" * 32
    engine.store_snapshot(MetadataSnapshot(state.position, state.encode()))
    engine.trim(14)
    reader.follow(reader.machine.log)

    error = await reader.error()

    assert isinstance(error, ClusterError)
    assert "belongs to the cluster ddd" in str(error)


@in_virtual_time
async def test_damage_halts_its_reader() -> None:
    reader = Reader(long_history(), own=3)
    reader.machine.engine.flip_bit(9)

    assert isinstance(await reader.error(), MetadataDamaged)
    assert reader.metadata.position.index == 8
