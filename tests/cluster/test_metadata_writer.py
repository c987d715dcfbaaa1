"""One append in flight, and none forgotten."""

import asyncio

import pytest

from goqueue import events
from goqueue.cluster.log_follower import LogFollower
from goqueue.cluster.metadata_log import EMPTY, MetadataEntry, MetadataPosition
from goqueue.cluster.metadata_writer import MetadataWriter
from goqueue.cluster.records import ClusterCreated, encode_batch
from goqueue.runtime.entropy import SeededEntropy
from goqueue.testing.simulated_metadata_log import SimulatedEngine
from tests.cluster.nodes import Machine, passed, until
from tests.testing.in_virtual_time import in_virtual_time

ids = SeededEntropy(9)


def entry_after(position: MetadataPosition, node: int = 1) -> MetadataEntry:
    batch = encode_batch([ClusterCreated("c", 1, 0)])
    return MetadataEntry(position.index + 1, ids.bytes(16), position.id, 0, node, batch)


class Author:
    """A writer and its follower, which reads the log if it is told to."""

    def __init__(self, *, follows: bool = False) -> None:
        machine = self.machine = Machine(SimulatedEngine(SeededEntropy(1)))
        machine.make()
        self.log, self.engine = machine.log, machine.engine
        self.follower = LogFollower(
            self.log, machine.copy.metadata, machine.copy, time=machine.time, applied=lambda entry, records: None
        )
        self.events: list[events.Event] = []
        self.writer = MetadataWriter(self.log, self.follower, time=machine.time, observe=self.events.append)
        self.tasks = [asyncio.ensure_future(self.follower.apply())]
        if follows:
            self.tasks.append(asyncio.ensure_future(self.follower.read()))

    @property
    def outcomes(self) -> list[str]:
        return [event.outcome for event in self.events if isinstance(event, events.MetadataAppended)]

    @property
    def applied(self) -> int:
        return self.machine.copy.metadata.position.index

    def end(self) -> None:
        for task in self.tasks:
            task.cancel()


@in_virtual_time
async def test_what_is_appended_is_applied_without_the_watch() -> None:
    author = Author()

    assert await author.writer.write(entry_after(EMPTY))
    await author.follower.wait_applied(1)

    assert author.outcomes == ["appended"]
    assert not author.writer.is_open
    author.end()


@in_virtual_time
async def test_what_is_lost_is_not_written_and_what_took_its_place_is_applied_first() -> None:
    author = Author(follows=True)
    author.engine.append(entry_after(EMPTY, node=2))

    assert not await author.writer.write(entry_after(EMPTY))

    assert author.outcomes == ["lost"]
    assert author.applied == 1
    assert [entry.node for entry in author.engine.history] == [2]
    author.end()


@pytest.mark.parametrize("follows", [False, True])
def test_an_answer_that_is_lost_is_found_out(follows: bool) -> None:
    @in_virtual_time
    async def run() -> None:
        author = Author(follows=follows)
        author.log.fail_next("answer_lost")
        entry = entry_after(EMPTY)

        assert await author.writer.write(entry)

        assert author.engine.history == [entry]
        assert author.outcomes == (["appended"] if follows else ["unknown", "appended"])
        author.end()

    run()


@in_virtual_time
async def test_an_append_in_doubt_whose_index_another_entry_takes_is_lost() -> None:
    author = Author(follows=True)
    author.log.cut()
    writing = asyncio.ensure_future(author.writer.write(entry_after(EMPTY)))
    await until(lambda: author.outcomes == ["unknown"])
    assert author.writer.waits_ns() >= 2_000_000_000
    author.engine.append(entry_after(EMPTY, node=2))

    author.log.heal()

    assert not await writing
    assert [entry.node for entry in author.engine.history] == [2]
    author.end()


@in_virtual_time
async def test_a_writer_that_was_cancelled_settles_before_it_goes_on() -> None:
    author = Author()
    author.log.fail_next("append_late")
    first = entry_after(EMPTY)
    writing = asyncio.ensure_future(author.writer.write(first))
    await passed(0.1)
    writing.cancel()
    await passed(0.1)
    assert author.writer.is_open

    await author.writer.settle()

    assert author.engine.history == [first]
    await author.follower.wait_applied(1)
    assert await author.writer.write(entry_after(first.position))
    author.end()


@in_virtual_time
async def test_what_was_settled_by_others_meanwhile_is_not_appended_again() -> None:
    author = Author(follows=True)
    author.log.fail_next("answer_lost")
    writing = asyncio.ensure_future(author.writer.write(entry_after(EMPTY)))
    await until(lambda: author.applied == 1)
    writing.cancel()
    author.log.cut()

    await author.writer.settle()

    assert not author.writer.is_open
    author.end()
