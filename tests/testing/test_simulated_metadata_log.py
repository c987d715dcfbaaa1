"""The metadata log of the simulator keeps the contract, and fails as it is told to."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from functools import wraps

import pytest

from goqueue.cluster.metadata_log import (
    EMPTY,
    EntryAppended,
    EntryLost,
    EntryUnknown,
    MetadataEntry,
    MetadataLog,
    MetadataSnapshot,
)
from goqueue.errors import MetadataUnavailable
from goqueue.runtime.entropy import SeededEntropy
from goqueue.testing import SimulatedEngine, SimulatedMetadataLog
from goqueue.testing.virtual_time import VirtualTimeLoop
from tests.cluster.metadata_log_contract import (
    MetadataLogContract,
    NewLog,
    append,
    check_chain,
    entry_after,
    numbered,
    race,
    read_all,
    run_in,
    take,
    until_settled,
)

DEADLINE_S = 0.05


def in_virtual_time(test: Callable[[], Coroutine[None, None, None]]) -> Callable[[], None]:
    """A test in which waiting takes no time."""

    @wraps(test)
    def run() -> None:
        run_in(VirtualTimeLoop, test())

    return run


class SimulatedLog:
    """A simulated log under test."""

    def __init__(self, delay_s: tuple[float, float] = (0.0, 0.0)) -> None:
        self.engine = SimulatedEngine(SeededEntropy(7))
        self.clients: list[SimulatedMetadataLog] = []
        self.delay_s = delay_s

    async def connect(self) -> MetadataLog:
        log = self.engine.connect(len(self.clients), deadline_s=1.0)
        log.faults.delay_s = self.delay_s
        self.clients.append(log)
        return log

    async def damage(self, index: int) -> None:
        self.engine.flip_bit(index)

    @asynccontextmanager
    async def outage(self) -> AsyncIterator[None]:
        for log in self.clients:
            log.cut()
        yield
        for log in self.clients:
            log.heal()

    async def close(self) -> None:
        for log in self.clients:
            await log.close()


class TestSimulatedLog(MetadataLogContract):
    loop_factory = VirtualTimeLoop

    @pytest.fixture
    def new_log(self) -> NewLog:
        return SimulatedLog


class TestSlowSimulatedLog(MetadataLogContract):
    loop_factory = VirtualTimeLoop

    @pytest.fixture
    def new_log(self) -> NewLog:
        return lambda: SimulatedLog(delay_s=(0.0, 0.001))


def connected(engine: SimulatedEngine, count: int = 2) -> list[SimulatedMetadataLog]:
    return [engine.connect(node, deadline_s=DEADLINE_S) for node in range(1, count + 1)]


@in_virtual_time
async def test_an_append_whose_answer_is_lost_has_happened() -> None:
    engine = SimulatedEngine(SeededEntropy(1))
    log, other = connected(engine)
    entry = entry_after(EMPTY)
    log.fail_next("answer_lost")

    assert await log.append(entry) == EntryUnknown(entry.position)

    assert await other.tail() == entry.position
    assert await log.append(entry) == EntryAppended(entry.position)
    assert engine.history == [entry]


@in_virtual_time
async def test_a_late_append_takes_effect_after_its_author_gave_up() -> None:
    engine = SimulatedEngine(SeededEntropy(1))
    log, other = connected(engine)
    log.faults.late_s = (0.01, 0.02)
    entry = entry_after(EMPTY)
    log.fail_next("append_late")

    assert await log.append(entry) == EntryUnknown(entry.position)

    assert await other.tail() == EMPTY
    assert await anext(other.watch(1)) == entry


@in_virtual_time
async def test_a_late_append_loses_if_another_entry_is_there_by_then() -> None:
    engine = SimulatedEngine(SeededEntropy(1))
    log, other = connected(engine)
    log.faults.late_s = (0.01, 0.01)
    entry = entry_after(EMPTY, b"late")
    log.fail_next("append_late")
    assert isinstance(await log.append(entry), EntryUnknown)

    (winner,) = await append(other, b"in time")

    assert await log.append(entry) == EntryLost()
    await asyncio.wait([asyncio.create_task(anext(other.watch(2)))], timeout=0.03)
    assert engine.history == [winner]


@in_virtual_time
async def test_a_slow_append_takes_effect_though_nobody_waits_any_more() -> None:
    engine = SimulatedEngine(SeededEntropy(1))
    log, other = connected(engine)
    log.faults.delay_s = (DEADLINE_S + 0.02, DEADLINE_S + 0.02)
    entry = entry_after(EMPTY)

    assert await log.append(entry) == EntryUnknown(entry.position)

    assert await anext(other.watch(1)) == entry
    with pytest.raises(MetadataUnavailable, match="did not answer"):
        await log.tail()


@in_virtual_time
async def test_a_node_that_is_cut_off_reaches_nothing_and_the_others_go_on() -> None:
    engine = SimulatedEngine(SeededEntropy(1))
    log, other = connected(engine)
    watch = log.watch(1)
    (first,) = await append(other, b"before")
    assert await anext(watch) == first
    log.cut()

    (second,) = await append(other, b"meanwhile")

    entry = entry_after(first.position)
    assert await log.append(entry) == EntryUnknown(entry.position)
    with pytest.raises(MetadataUnavailable):
        await log.tail()
    with pytest.raises(MetadataUnavailable):
        await log.store_snapshot(MetadataSnapshot(first.position, b""))
    waiting = asyncio.create_task(take(watch, 1))
    done, _ = await asyncio.wait([waiting], timeout=0.02)
    assert not done

    log.heal()

    assert await waiting == [second]
    assert await log.append(entry) == EntryLost()


@in_virtual_time
async def test_a_request_on_its_way_is_lost_with_the_connection() -> None:
    engine = SimulatedEngine(SeededEntropy(1))
    (log,) = connected(engine, 1)
    log.faults.delay_s = (0.02, 0.02)
    entry = entry_after(EMPTY)

    appending = asyncio.create_task(log.append(entry))
    await asyncio.wait([appending], timeout=0.005)
    log.cut()

    assert await appending == EntryUnknown(entry.position)
    log.heal()
    assert await log.tail() == EMPTY


@in_virtual_time
async def test_a_request_waits_for_the_end_of_a_short_cut() -> None:
    engine = SimulatedEngine(SeededEntropy(1))
    (log,) = connected(engine, 1)
    log.cut()
    asking = asyncio.create_task(log.tail())
    await asyncio.wait([asking], timeout=0.01)

    log.heal()

    assert await asking == EMPTY


@in_virtual_time
async def test_authors_in_doubt_write_one_history() -> None:
    engine = SimulatedEngine(SeededEntropy(3))
    logs = [engine.connect(node, deadline_s=0.01) for node in range(1, 4)]
    for log in logs:
        log.faults.delay_s = (0.0, 0.003)
        log.faults.answer_lost = 0.2
        log.faults.append_late = 0.2
        log.faults.late_s = (0.0, 0.02)
    watching = asyncio.create_task(take(logs[0].watch(1), 45))

    won = await asyncio.gather(*(race(log, node, 15) for node, log in enumerate(logs, start=1)))

    check_chain(engine.history)
    for node, entries in enumerate(won, start=1):
        assert [entry for entry in engine.history if entry.node == node] == entries
    assert await watching == engine.history


@in_virtual_time
async def test_history_keeps_what_was_trimmed() -> None:
    engine = SimulatedEngine(SeededEntropy(1))
    (log,) = connected(engine, 1)
    entries = await numbered(log, 5)
    await log.store_snapshot(MetadataSnapshot(entries[-1].position, b"state"))

    await log.trim(5)

    assert engine.history == entries


@in_virtual_time
async def test_a_log_that_goes_back_ends_earlier() -> None:
    engine = SimulatedEngine(SeededEntropy(1))
    (log,) = connected(engine, 1)
    entries = await numbered(log, 5)
    await log.store_snapshot(MetadataSnapshot(entries[3].position, b"state"))

    engine.go_back(2)

    assert await log.tail() == entries[1].position
    assert await log.load_snapshot() is None
    other = entry_after(entries[1].position)
    assert await until_settled(log, other) == EntryAppended(other.position)
    assert await read_all(log) == [*entries[:2], other]
    engine.go_back(0)
    assert await log.tail() == EMPTY


def run_of(seed: int) -> list[MetadataEntry]:
    """What three authors in doubt write, with ids from the same seed."""

    async def run() -> list[MetadataEntry]:
        engine = SimulatedEngine(SeededEntropy(seed))
        log = engine.connect(1, deadline_s=0.01)
        log.faults.answer_lost = log.faults.append_late = 0.3
        log.faults.late_s = (0.0, 0.0)
        outcomes = []
        position = EMPTY
        for number in range(30):
            entry = MetadataEntry(position.index + 1, bytes([number] * 16), position.id, 1, 1, b"")
            outcomes.append(entry)
            if isinstance(await log.append(entry), EntryUnknown):
                outcomes.append(entry)
            position = (await until_settled(log, entry)).position
        return outcomes

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(run())


def test_a_seed_repeats_its_faults() -> None:
    assert run_of(5) == run_of(5) != run_of(6)
