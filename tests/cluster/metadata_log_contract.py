"""What every metadata log must do, whatever it is made of.

A test module subclasses `MetadataLogContract` and overrides the fixture `new_log`, which makes logs: each call returns
an empty one, a `LogUnderTest`. `connect` gives another client of the same log, as another process would have; the tests
never close what they connect, the harness does that in `close`.

    class TestFileLog(MetadataLogContract):
        @pytest.fixture
        def new_log(self, tmp_path: Path) -> NewLog: ...

The logs are to trim exactly, though a real one may keep more: `read` below `first` then raises in every implementation.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from functools import wraps
from typing import ParamSpec, Protocol, TypeAlias

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from goqueue.cluster.metadata_log import (
    BATCH_BYTES_MAX,
    EMPTY,
    PAGE_BYTES_MAX,
    EntryAppended,
    EntryLost,
    EntryUnknown,
    MetadataEntry,
    MetadataLog,
    MetadataPosition,
    MetadataSnapshot,
)
from goqueue.errors import MetadataDamaged, MetadataTrimmed, MetadataUnavailable
from goqueue.runtime.entropy import SeededEntropy

P = ParamSpec("P")
PATIENCE_S = 60.0
EXAMPLES = settings(
    suppress_health_check=[
        HealthCheck.function_scoped_fixture,  # each example makes a log of its own
        HealthCheck.differing_executors,  # each subclass has its own logs
        HealthCheck.too_slow,
    ]
)


class LogUnderTest(Protocol):
    """One log that is empty at first. Whatever waits for the engine gives up after about a second."""

    async def connect(self) -> MetadataLog:
        """Another client of it."""

    async def damage(self, index: int) -> None:
        """Flip a bit in the batch of that entry, where it is stored."""

    def outage(self) -> AbstractAsyncContextManager[None]:
        """A time in which no client can append. Watches may go on or not, but go on afterwards."""

    async def close(self) -> None:
        """Close all clients."""


NewLog: TypeAlias = Callable[[], LogUnderTest]
LoopFactory: TypeAlias = Callable[[], asyncio.AbstractEventLoop] | None


def run_in(loop_factory: LoopFactory, test: Coroutine[None, None, None]) -> None:
    """Run the test on a new loop; None is the default one."""
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(asyncio.wait_for(test, PATIENCE_S))


def in_a_loop(test: Callable[P, Coroutine[None, None, None]]) -> Callable[P, None]:
    """A test of the suite as a coroutine, on the loop of the class."""

    @wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        (suite,) = args
        assert isinstance(suite, MetadataLogContract)
        run_in(suite.loop_factory, test(*args, **kwargs))

    return run


ids = SeededEntropy(1)


def entry_after(position: MetadataPosition, batch: bytes = b"batch", *, node: int = 1, epoch: int = 1) -> MetadataEntry:
    """A new entry with a new id."""
    return MetadataEntry(position.index + 1, ids.bytes(16), position.id, epoch, node, batch)


async def append(log: MetadataLog, *batches: bytes) -> list[MetadataEntry]:
    """Append an entry for each batch at the end of the log."""
    position = await log.tail()
    entries = []
    for batch in batches:
        entry = entry_after(position, batch)
        assert await log.append(entry) == EntryAppended(entry.position)
        entries.append(entry)
        position = entry.position
    return entries


async def numbered(log: MetadataLog, count: int) -> list[MetadataEntry]:
    return await append(log, *(b"%d" % number for number in range(1, count + 1)))


async def read_all(log: MetadataLog, first: int = 1) -> list[MetadataEntry]:
    """Everything from there to the end, page by page."""
    entries: list[MetadataEntry] = []
    while page := await log.read(first + len(entries), 100):
        entries += page
    return entries


async def take(watch: AsyncIterator[MetadataEntry], count: int) -> list[MetadataEntry]:
    """The next entries of a watch."""
    return [await anext(watch) for _ in range(count)]


def check_chain(entries: list[MetadataEntry], after: MetadataPosition = EMPTY) -> None:
    """M1: one entry at each index, no gap, each after the one before it."""
    for entry in entries:
        assert entry.after == after
        after = entry.position


class MetadataLogContract:
    """The suite."""

    loop_factory: LoopFactory = None
    """The loop to run on; None is the default one."""

    @pytest.fixture
    def new_log(self) -> NewLog:
        raise NotImplementedError

    # Appending

    @in_a_loop
    async def test_an_empty_log_ends_before_its_first_entry(self, new_log: NewLog) -> None:
        under_test = new_log()
        log = await under_test.connect()

        assert await log.tail() == EMPTY
        assert await log.read(1, 10) == []
        assert await log.load_snapshot() is None

        await under_test.close()

    @in_a_loop
    async def test_what_is_appended_is_read_as_it_was(self, new_log: NewLog) -> None:
        under_test = new_log()
        log = await under_test.connect()
        first = MetadataEntry(1, ids.bytes(16), bytes(16), 7, 3, b"\0\xff" * 40)
        second = MetadataEntry(2, ids.bytes(16), first.id, 2**64 - 1, 2**16 - 1, b"")

        outcomes = [await log.append(entry) for entry in (first, second)]

        assert outcomes == [EntryAppended(first.position), EntryAppended(second.position)]
        assert await log.tail() == second.position
        assert await log.read(1, 10) == [first, second]

        await under_test.close()

    @in_a_loop
    async def test_an_append_that_was_answered_is_seen_by_every_client_at_once(self, new_log: NewLog) -> None:
        under_test = new_log()
        one, other = await under_test.connect(), await under_test.connect()

        for number in range(1, 21):
            author, reader = (one, other) if number % 2 else (other, one)
            entry = entry_after(await author.tail(), b"%d" % number)
            assert await author.append(entry) == EntryAppended(entry.position)
            assert await reader.tail() == entry.position
            assert await reader.read(number, 10) == [entry]

        await under_test.close()

    @in_a_loop
    async def test_a_stale_author_loses(self, new_log: NewLog) -> None:
        under_test = new_log()
        one, other = await under_test.connect(), await under_test.connect()
        (winner,) = await append(one, b"winner")
        loser = entry_after(EMPTY, b"loser")

        outcomes = [await other.append(loser), await other.append(loser), await one.append(loser)]

        assert outcomes == [EntryLost()] * 3
        assert await read_all(other) == [winner]

        await under_test.close()

    @in_a_loop
    async def test_an_author_at_the_right_index_of_another_history_loses(self, new_log: NewLog) -> None:
        under_test = new_log()
        log = await under_test.connect()
        entries = await numbered(log, 2)
        stranger = entry_after(MetadataPosition(2, ids.bytes(16)))

        assert await log.append(stranger) == EntryLost()
        assert await read_all(log) == entries

        await under_test.close()

    @in_a_loop
    async def test_an_author_too_far_ahead_leaves_no_hole(self, new_log: NewLog) -> None:
        under_test = new_log()
        log = await under_test.connect()

        assert await log.append(entry_after(MetadataPosition(4, ids.bytes(16)))) == EntryLost()
        entries = await numbered(log, 2)
        assert await log.append(entry_after(MetadataPosition(3, ids.bytes(16)))) == EntryLost()

        assert await log.tail() == entries[-1].position
        assert await read_all(log) == entries

        await under_test.close()

    @in_a_loop
    async def test_an_append_that_is_repeated_is_there_once(self, new_log: NewLog) -> None:
        under_test = new_log()
        one, other = await under_test.connect(), await under_test.connect()
        (entry,) = await append(one, b"again")

        assert await one.append(entry) == EntryAppended(entry.position)
        assert await other.append(entry) == EntryAppended(entry.position)
        later = await numbered(other, 3)
        assert await one.append(entry) == EntryAppended(entry.position)

        assert await read_all(one) == [entry, *later]

        await under_test.close()

    @in_a_loop
    async def test_an_append_that_is_cancelled_can_be_repeated(self, new_log: NewLog) -> None:
        under_test = new_log()
        log = await under_test.connect()
        expected = []
        for number in range(20):
            entry = entry_after(await log.tail(), b"%d" % number)
            task = asyncio.create_task(log.append(entry))
            for _ in range(number // 4):
                await anext(turns())
            task.cancel()
            await asyncio.wait([task])

            assert await log.append(entry) == EntryAppended(entry.position)
            expected.append(entry)

        assert await read_all(log) == expected

        await under_test.close()

    @in_a_loop
    async def test_the_largest_batches_are_stored(self, new_log: NewLog) -> None:
        under_test = new_log()
        log, other = await under_test.connect(), await under_test.connect()
        batches = [ids.bytes(BATCH_BYTES_MAX - less) for less in (1, 0)]

        entries = await append(log, *batches, b"and a small one")

        assert await read_all(other) == entries

        await under_test.close()

    @in_a_loop
    async def test_a_batch_that_is_too_large_is_a_bug(self, new_log: NewLog) -> None:
        under_test = new_log()
        log = await under_test.connect()

        with pytest.raises(AssertionError):
            await log.append(entry_after(EMPTY, bytes(BATCH_BYTES_MAX + 1)))

        assert await log.tail() == EMPTY

        await under_test.close()

    # Reading

    @in_a_loop
    async def test_a_log_is_read_in_pages(self, new_log: NewLog) -> None:
        under_test = new_log()
        log, other = await under_test.connect(), await under_test.connect()
        entries = await numbered(log, 25)

        assert await other.read(1, 10) == entries[:10]
        assert await other.read(11, 10) == entries[10:20]
        assert await other.read(21, 10) == entries[20:]
        assert await other.read(1, 1) == entries[:1]
        assert await other.read(25, 1) == entries[24:]
        assert await other.read(7, 3) == entries[6:9]
        assert await other.read(26, 10) == []
        assert await other.read(1000, 10) == []

        await under_test.close()

    @in_a_loop
    async def test_one_page_is_bounded_in_bytes(self, new_log: NewLog) -> None:
        under_test = new_log()
        log, other = await under_test.connect(), await under_test.connect()
        await append(log, *(bytes([number]) * BATCH_BYTES_MAX for number in range(10)))

        first = 1
        while page := await other.read(first, 1000):
            assert sum(len(entry.batch) for entry in page) <= PAGE_BYTES_MAX
            for entry in page:
                assert entry.batch[0] == entry.index - 1
            first += len(page)

        assert first == 11

        await under_test.close()

    @in_a_loop
    async def test_a_damaged_entry_is_named(self, new_log: NewLog) -> None:
        under_test = new_log()
        log = await under_test.connect()
        entries = await numbered(log, 5)
        await under_test.damage(3)
        other = await under_test.connect()

        assert await other.read(1, 10) == entries[:2]
        with pytest.raises(MetadataDamaged, match=r"\b3\b"):
            await other.read(3, 10)
        watch = other.watch(1)
        assert await take(watch, 2) == entries[:2]
        with pytest.raises(MetadataDamaged, match=r"\b3\b"):
            await anext(watch)
        assert await other.read(4, 10) == entries[3:]

        await under_test.close()

    # Watching

    @in_a_loop
    async def test_a_watch_has_what_was_there_and_what_comes(self, new_log: NewLog) -> None:
        under_test = new_log()
        one, other = await under_test.connect(), await under_test.connect()
        old = await numbered(one, 3)
        whole, rest, new = other.watch(1), other.watch(3), other.watch(4)

        assert await take(whole, 3) == old
        assert await take(rest, 1) == old[2:]
        waiting = asyncio.create_task(take(new, 2))
        later = await append(one, b"later", b"latest")

        assert await take(whole, 2) == await take(rest, 2) == await waiting == later

        await under_test.close()

    @in_a_loop
    async def test_a_watch_of_an_empty_log_waits(self, new_log: NewLog) -> None:
        under_test = new_log()
        one, other = await under_test.connect(), await under_test.connect()
        waiting = asyncio.create_task(take(other.watch(1), 2))

        entries = await numbered(one, 2)

        assert await waiting == entries

        await under_test.close()

    @in_a_loop
    async def test_a_watch_has_no_gap_while_several_append(self, new_log: NewLog) -> None:
        under_test = new_log()
        authors = [await under_test.connect() for _ in range(3)]
        watcher = await under_test.connect()
        watching = [asyncio.create_task(take(log.watch(1), 60)) for log in (watcher, authors[0])]

        won = await asyncio.gather(*(race(log, node, 20) for node, log in enumerate(authors, start=1)))

        seen, seen_by_author = await asyncio.gather(*watching)
        check_chain(seen)
        assert seen == seen_by_author == await read_all(watcher)
        assert sorted(entry.id for entry in seen) == sorted(entry.id for entries in won for entry in entries)

        await under_test.close()

    @in_a_loop
    async def test_a_watch_goes_on_after_an_outage(self, new_log: NewLog) -> None:
        under_test = new_log()
        log, other = await under_test.connect(), await under_test.connect()
        entries = await numbered(log, 2)
        watch = other.watch(1)
        assert await take(watch, 1) == entries[:1]
        entry = entry_after(entries[-1].position, b"in doubt")

        async with under_test.outage():
            outcome = await log.append(entry)

        assert outcome == EntryUnknown(entry.position)
        assert await until_settled(log, entry) == EntryAppended(entry.position)
        later = await numbered(log, 3)
        assert await take(watch, 5) == [entries[1], entry, *later]
        assert await read_all(other) == [*entries, entry, *later]

        await under_test.close()

    @in_a_loop
    async def test_a_watch_ends_with_its_log(self, new_log: NewLog) -> None:
        under_test = new_log()
        log, other = await under_test.connect(), await under_test.connect()
        entries = await numbered(other, 2)
        reading = log.watch(1)
        assert await take(reading, 1) == entries[:1]
        waiting = asyncio.create_task(collect(log.watch(2)))
        await anext(turns())

        await log.close()

        assert await collect(reading) == []
        assert await waiting in ([], entries[1:])

        await under_test.close()

    @in_a_loop
    async def test_a_closed_log_refuses_every_call(self, new_log: NewLog) -> None:
        under_test = new_log()
        log, other = await under_test.connect(), await under_test.connect()
        await log.close()
        await log.close()

        for call in (
            log.append(entry_after(EMPTY)),
            log.tail(),
            log.read(1, 1),
            log.load_snapshot(),
            log.store_snapshot(MetadataSnapshot(EMPTY, b"")),
            log.trim(1),
            log.replace(MetadataSnapshot(MetadataPosition(1, ids.bytes(16)), b"")),
        ):
            with pytest.raises(MetadataUnavailable):
                await call

        assert await other.tail() == EMPTY

        await under_test.close()

    # Snapshots and trimming

    @in_a_loop
    async def test_a_snapshot_is_replaced_by_newer_ones_only(self, new_log: NewLog) -> None:
        under_test = new_log()
        log, other = await under_test.connect(), await under_test.connect()
        entries = await numbered(log, 3)
        older, newer, newest = (MetadataSnapshot(entry.position, b"state %d" % entry.index) for entry in entries)

        await log.store_snapshot(newer)
        assert await other.load_snapshot() == newer
        await other.store_snapshot(older)
        await other.store_snapshot(MetadataSnapshot(newer.position, b"the same position"))
        assert await log.load_snapshot() == newer
        await other.store_snapshot(newest)
        assert await log.load_snapshot() == await other.load_snapshot() == newest

        await under_test.close()

    @in_a_loop
    async def test_a_snapshot_may_be_larger_than_a_batch(self, new_log: NewLog) -> None:
        under_test = new_log()
        log, other = await under_test.connect(), await under_test.connect()
        (entry, later) = await numbered(log, 2)
        large = MetadataSnapshot(entry.position, ids.bytes(3 * BATCH_BYTES_MAX + 17))
        small = MetadataSnapshot(later.position, b"")

        await log.store_snapshot(large)
        assert await other.load_snapshot() == large
        await log.store_snapshot(small)
        assert await other.load_snapshot() == small

        await under_test.close()

    @in_a_loop
    async def test_snapshots_stored_at_once_leave_the_newest_whole(self, new_log: NewLog) -> None:
        under_test = new_log()
        logs = [await under_test.connect() for _ in range(3)]
        entries = await numbered(logs[0], 9)
        snapshots = [MetadataSnapshot(entry.position, bytes([entry.index]) * 100_000) for entry in entries]

        await asyncio.gather(*(log.store_snapshot(each) for log in logs for each in snapshots))

        assert await logs[0].load_snapshot() == snapshots[-1]

        await under_test.close()

    @in_a_loop
    async def test_what_is_trimmed_is_gone_and_the_rest_is_not(self, new_log: NewLog) -> None:
        under_test = new_log()
        log, other = await under_test.connect(), await under_test.connect()
        entries = await numbered(log, 10)
        assert await other.read(1, 10) == entries
        await log.store_snapshot(MetadataSnapshot(entries[6].position, b"state"))

        await log.trim(5)

        for client in (log, other):
            for gone in (1, 4):
                with pytest.raises(MetadataTrimmed) as caught:
                    await client.read(gone, 10)
                assert (caught.value.asked, caught.value.first) == (gone, 5)
            assert await client.read(5, 10) == entries[4:]
            assert await client.tail() == entries[-1].position
        assert await read_all(await under_test.connect(), 5) == entries[4:]
        later = await numbered(other, 2)
        assert await read_all(log, 5) == [*entries[4:], *later]

        await under_test.close()

    @in_a_loop
    async def test_nothing_is_trimmed_that_no_snapshot_covers(self, new_log: NewLog) -> None:
        under_test = new_log()
        log = await under_test.connect()
        entries = await numbered(log, 6)

        await log.trim(4)
        assert await read_all(log) == entries
        await log.store_snapshot(MetadataSnapshot(entries[2].position, b"state"))
        await log.trim(1000)
        assert await read_all(log, 4) == entries[3:]
        await log.trim(1)
        assert await read_all(log, 4) == entries[3:]

        await under_test.close()

    @in_a_loop
    async def test_the_last_entry_is_never_trimmed(self, new_log: NewLog) -> None:
        under_test = new_log()
        log, other = await under_test.connect(), await under_test.connect()
        await log.trim(10)
        entries = await numbered(log, 4)
        await log.store_snapshot(MetadataSnapshot(entries[-1].position, b"state"))

        await log.trim(1000)

        assert await other.tail() == entries[-1].position
        assert await other.read(4, 10) == entries[3:]
        assert not isinstance(await other.append(entry_after(EMPTY)), EntryAppended)
        (later,) = await append(other, b"later")
        assert await read_all(log, 4) == [entries[-1], later]

        await under_test.close()

    @in_a_loop
    async def test_an_index_that_was_trimmed_is_never_written_again(self, new_log: NewLog) -> None:
        under_test = new_log()
        log, other = await under_test.connect(), await under_test.connect()
        entries = await numbered(log, 6)
        await log.store_snapshot(MetadataSnapshot(entries[-1].position, b"state"))
        await log.trim(6)

        for client in (log, other):
            for stale in (entry_after(EMPTY), entry_after(entries[2].position)):
                assert not isinstance(await client.append(stale), EntryAppended)
            # That it was appended is not known any more, but it did not lose.
            assert await client.append(entries[1]) == EntryUnknown(entries[1].position)

        assert await read_all(log, 6) == entries[5:]
        with pytest.raises(MetadataTrimmed):
            await log.read(5, 10)

        await under_test.close()

    @in_a_loop
    async def test_a_watch_says_that_its_index_was_trimmed(self, new_log: NewLog) -> None:
        under_test = new_log()
        log, other = await under_test.connect(), await under_test.connect()
        entries = await numbered(log, 6)
        behind = other.watch(1)
        current = other.watch(5)
        assert await take(behind, 1) == entries[:1]
        assert await take(current, 2) == entries[4:]
        await log.store_snapshot(MetadataSnapshot(entries[4].position, b"state"))
        await log.trim(5)

        with pytest.raises(MetadataTrimmed):
            await anext(other.watch(2))
        assert await take(other.watch(5), 2) == entries[4:]
        waiting = asyncio.create_task(take(current, 1))
        later = await append(log, b"later")
        assert await waiting == later
        # What the watch had read before the trim, it may still hand out; then there is no gap, but an error.
        try:
            seen = await take(behind, 6)
        except MetadataTrimmed:
            seen = []
        assert seen in ([], [*entries[1:], *later])

        await under_test.close()

    # Replacing

    @in_a_loop
    async def test_a_log_that_is_replaced_has_the_snapshot_and_nothing_else(self, new_log: NewLog) -> None:
        under_test = new_log()
        old = await under_test.connect()
        entries = await numbered(old, 10)
        await old.store_snapshot(MetadataSnapshot(entries[3].position, b"older"))
        await old.trim(3)
        for snapshot in (
            MetadataSnapshot(entries[6].position, b"state of before"),
            MetadataSnapshot(MetadataPosition(20, ids.bytes(16)), b"state of an operator"),
            MetadataSnapshot(MetadataPosition(5, ids.bytes(16)), ids.bytes(2 * BATCH_BYTES_MAX)),
        ):
            await (await under_test.connect()).replace(snapshot)

            log, other = await under_test.connect(), await under_test.connect()
            index = snapshot.position.index
            assert await log.tail() == snapshot.position
            assert await log.load_snapshot() == snapshot
            assert await log.read(index + 1, 10) == []
            for gone in (1, index):
                with pytest.raises(MetadataTrimmed) as caught:
                    await log.read(gone, 10)
                assert (caught.value.asked, caught.value.first) == (gone, index + 1)
            with pytest.raises(MetadataTrimmed):
                await anext(log.watch(index))
            waiting = asyncio.create_task(take(other.watch(index + 1), 3))
            assert not isinstance(await log.append(entry_after(entries[-1].position)), EntryAppended)
            later = await numbered(log, 3)
            assert await waiting == later == await read_all(other, index + 1)
            assert later[0].after == snapshot.position

        await under_test.close()

    @in_a_loop
    async def test_an_empty_log_is_replaced_as_well(self, new_log: NewLog) -> None:
        under_test = new_log()
        snapshot = MetadataSnapshot(MetadataPosition(7, ids.bytes(16)), b"state")

        await (await under_test.connect()).replace(snapshot)

        log = await under_test.connect()
        assert (await log.tail(), await log.load_snapshot()) == (snapshot.position, snapshot)
        assert not isinstance(await log.append(entry_after(EMPTY)), EntryAppended)
        later = await numbered(log, 2)
        assert await read_all(await under_test.connect(), 8) == later
        await log.store_snapshot(MetadataSnapshot(later[-1].position, b"later"))
        await log.trim(9)
        with pytest.raises(MetadataTrimmed):
            await log.read(8, 1)
        assert await log.read(9, 10) == later[1:]

        await under_test.close()

    # Several authors

    @in_a_loop
    async def test_authors_that_race_write_one_history(self, new_log: NewLog) -> None:
        under_test = new_log()
        logs = [await under_test.connect() for _ in range(4)]

        won = await asyncio.gather(*(race(log, node, 15) for node, log in enumerate(logs, start=1)))

        history = await read_all(logs[0])
        check_chain(history)
        assert len(history) == 60
        for node, entries in enumerate(won, start=1):
            assert [entry for entry in history if entry.node == node] == entries

        await under_test.close()

    @given(data=st.data())
    @EXAMPLES
    def test_any_interleaving_of_authors_gives_one_history(self, new_log: NewLog, data: st.DataObject) -> None:
        """M1 and M5: authors that know the end or do not, that repeat what they wrote, and act at the same time."""
        rounds = data.draw(st.lists(st.lists(steps, min_size=1, max_size=4), min_size=1, max_size=8))

        async def run() -> None:
            under_test = new_log()
            authors = [Author(await under_test.connect(), node) for node in range(AUTHORS)]
            for acts in rounds:
                await asyncio.gather(*(authors[node].act(step) for node, step in dict(acts).items()))
            history = await read_all(await under_test.connect())
            check_chain(history)
            there = {entry.id for entry in history}
            for author in authors:
                assert {entry.id for entry in author.appended} <= there
                assert {entry.id for entry in author.lost}.isdisjoint(there)
            assert len(history) == sum(len(author.appended) for author in authors)
            await under_test.close()

        run_in(self.loop_factory, run())


AUTHORS = 3
steps = st.tuples(
    st.integers(0, AUTHORS - 1), st.sampled_from(("read the tail", "append", "append", "repeat", "stale"))
)


class Author:
    """One that writes after the position that it believes to be the last."""

    def __init__(self, log: MetadataLog, node: int) -> None:
        self.log = log
        self.node = node
        self.position = EMPTY
        self.appended: list[MetadataEntry] = []
        self.lost: list[MetadataEntry] = []

    async def act(self, step: str) -> None:
        match step:
            case "read the tail":
                self.position = await self.log.tail()
            case "append":
                await self._append(entry_after(self.position, node=self.node))
            case "repeat" if self.appended:
                assert await self.log.append(self.appended[-1]) == EntryAppended(self.appended[-1].position)
            case "repeat" if self.lost:
                assert await self.log.append(self.lost[-1]) == EntryLost()
            case "stale" if self.position != EMPTY:
                stale = entry_after(EMPTY, node=self.node)
                assert await self.log.append(stale) == EntryLost()
                self.lost.append(stale)

    async def _append(self, entry: MetadataEntry) -> None:
        outcome = await self.log.append(entry)
        if outcome == EntryAppended(entry.position):
            self.appended.append(entry)
            self.position = entry.position
        else:
            assert outcome == EntryLost()
            self.lost.append(entry)


async def race(log: MetadataLog, node: int, count: int) -> list[MetadataEntry]:
    """Append so many entries against the other authors, and return those that won."""
    won: list[MetadataEntry] = []
    while len(won) < count:
        entry = entry_after(await log.tail(), b"%d" % len(won), node=node)
        if await until_settled(log, entry) == EntryAppended(entry.position):
            won.append(entry)
    return won


async def until_settled(log: MetadataLog, entry: MetadataEntry) -> EntryAppended | EntryLost:
    """Repeat the append until its outcome is known."""
    while isinstance(outcome := await log.append(entry), EntryUnknown):
        pass
    return outcome


async def collect(watch: AsyncIterator[MetadataEntry]) -> list[MetadataEntry]:
    """What a watch still has until it ends."""
    return [entry async for entry in watch]


async def turns() -> AsyncIterator[None]:
    """Yields after other tasks have had their turn."""
    loop = asyncio.get_running_loop()
    while True:
        turn: asyncio.Future[None] = loop.create_future()
        loop.call_soon(turn.set_result, None)
        await turn
        yield
