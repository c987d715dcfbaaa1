"""The ledger of a partition: facts in their order, through power cuts, and who waits for them."""

from errno import EIO

import pytest
from hypothesis import given
from hypothesis import strategies as st

from goqueue.errors import StorageFailed, TopicNotFound
from goqueue.testing import FaultyDisk, ManualClock, MemoryDisk
from tests.broker.brokers import Node

LEDGER = "orders/0/ledger/00000000000000000000.log"


def after_power_cut(disk: MemoryDisk, clock: ManualClock) -> Node:
    return Node(disk.crash(keep="nothing"), clock)


def test_facts_come_back_in_the_order_in_which_they_were_written(node: Node) -> None:
    node.create()
    ledger = node.leader().ledger

    assert ledger.write([(b"a", b"1"), (b"b", b"2")]) == 2
    assert ledger.write([(b"a", None), (b"b", b"")]) == 4

    assert list(ledger.facts()) == [(b"a", b"1"), (b"b", b"2"), (b"a", None), (b"b", b"")]


def test_a_fact_that_somebody_waits_for_is_on_the_medium_when_that_is_told(
    node: Node, disk: MemoryDisk, clock: ManualClock
) -> None:
    node.create()
    ledger = node.leader().ledger
    stored = ledger.when_stored(ledger.write([(b"told", b"v")]))
    assert (stored.is_done, ledger.is_clean) == (False, False)

    node.workers.run_all()

    assert (stored.is_done, ledger.is_clean) == (True, True)
    assert list(after_power_cut(disk, clock).leader().ledger.facts()) == [(b"told", b"v")]


def test_a_fact_that_nobody_waits_for_goes_with_the_next_flush(
    node: Node, disk: MemoryDisk, clock: ManualClock
) -> None:
    node.create()
    ledger = node.leader().ledger
    ledger.write([(b"lease", b"v")], flush=False)
    node.workers.run_all()
    assert (ledger.is_clean, ledger.log.durable_offset) == (False, 0)

    ledger.write([(b"told", b"v")])
    node.workers.run_all()

    assert ledger.is_clean
    assert [key for key, _ in after_power_cut(disk, clock).leader().ledger.facts()] == [b"lease", b"told"]


def test_what_is_written_during_a_flush_is_flushed_by_the_next(node: Node) -> None:
    node.create()
    ledger = node.leader().ledger
    waits = [ledger.when_stored(ledger.write([(b"%d" % number, b"v")])) for number in range(3)]

    node.workers.run_one()
    assert [wait.is_done for wait in waits] == [True, False, False]
    node.workers.run_all()

    assert all(wait.is_done for wait in waits)


def test_a_disk_that_fails_is_told_to_all_who_wait(disk: MemoryDisk, clock: ManualClock) -> None:
    faulty = FaultyDisk(disk, seed=1)
    node = Node(faulty, clock)
    node.create()
    ledger = node.leader().ledger
    faulty.fail_next("sync", EIO, path_suffix=LEDGER)
    waits = [ledger.when_stored(ledger.write([(b"%d" % number, b"v")])) for number in range(2)]

    node.workers.run_all()

    for wait in waits:
        with pytest.raises(StorageFailed):
            wait.result()
    with pytest.raises(StorageFailed):
        ledger.write([(b"more", b"v")])


def test_whoever_waits_is_told_that_the_topic_was_deleted(node: Node) -> None:
    node.create()
    ledger = node.leader().ledger
    stored = ledger.when_stored(ledger.write([(b"a", b"1")]))

    node.broker.topics.delete("orders")

    with pytest.raises(TopicNotFound):
        stored.result()


FACTS = st.lists(
    st.tuples(st.binary(min_size=1, max_size=8), st.none() | st.binary(max_size=20)), min_size=1, max_size=5
)


@given(writes=st.lists(st.tuples(FACTS, st.booleans()), max_size=10))
def test_a_power_cut_takes_no_fact_that_was_told_and_only_the_last_ones(
    writes: list[tuple[list[tuple[bytes, bytes | None]], bool]],
) -> None:
    disk, clock = MemoryDisk(), ManualClock()
    node = Node(disk, clock)
    node.create()
    ledger = node.leader().ledger
    written: list[tuple[bytes, bytes | None]] = []
    told = 0
    for facts, is_waited_for in writes:
        end = ledger.write(facts, flush=is_waited_for)
        written += facts
        if is_waited_for:
            node.done(ledger.when_stored(end))
            told = len(written)

    kept = list(after_power_cut(disk, clock).leader().ledger.facts())

    assert kept == written[: len(kept)]
    assert len(kept) >= told
