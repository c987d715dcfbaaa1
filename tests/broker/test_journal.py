"""Keyed facts: the last one counts, over restarts, compaction, crashes and damage."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from goqueue.broker.journal import Journal
from goqueue.errors import StorageFull
from goqueue.record import kernel
from goqueue.testing import ManualClock, MemoryDisk, PowerLoss
from tests.broker.brokers import ROOT, Node


@pytest.fixture
def node(disk: MemoryDisk, clock: ManualClock) -> Node:
    node = Node(disk, clock)
    node.create("facts", cleanup="compact")
    return node


def journal(node: Node) -> Journal:
    return Journal(node.live("facts"))


def reopened(node: Node) -> Node:
    node.broker.close()
    return Node(node.disk, node.clock)


def test_the_last_fact_of_each_key_counts(node: Node) -> None:
    node.done(journal(node).put({b"a": b"1", b"b": b"2"}))
    node.done(journal(node).put({b"a": b"3", b"c": b""}))

    assert journal(node).load() == {b"b": b"2", b"a": b"3", b"c": b""}
    assert journal(reopened(node)).load() == {b"b": b"2", b"a": b"3", b"c": b""}


def test_none_takes_a_key_away_until_it_is_put_again(node: Node) -> None:
    node.done(journal(node).put({b"a": b"1", b"b": b"2"}))
    node.done(journal(node).put({b"a": None, b"never": None}))
    assert journal(node).load() == {b"b": b"2"}

    node.done(journal(node).put({b"a": b"4"}))

    assert journal(node).load() == {b"b": b"2", b"a": b"4"}


def test_an_empty_journal_knows_nothing(node: Node) -> None:
    assert journal(node).load() == {}


def test_to_put_nothing_is_done_at_once(node: Node) -> None:
    assert journal(node).put({}).is_done
    assert node.live("facts").log.next_offset == 0


def test_a_fact_is_not_answered_before_it_is_on_the_medium(node: Node) -> None:
    pending = journal(node).put({b"a": b"1"})
    assert not pending.is_done

    node.workers.run_all()

    assert pending.is_done
    assert pending.result() is None


def test_what_was_answered_survives_a_crash_and_the_rest_is_a_beginning_of_it(clock: ManualClock) -> None:
    def work(disk: MemoryDisk, answered: list[int]) -> None:
        node = Node(disk, clock)
        node.create("facts", cleanup="compact")
        for round_number in range(3):
            node.done(journal(node).put({b"%d" % key: b"%d" % round_number for key in range(4)}))
            answered.append(round_number)

    whole = MemoryDisk()
    work(whole, [])
    for step in range(0, whole.steps, 7):
        disk, answered = MemoryDisk(power_off_after=step), list[int]()
        try:
            work(disk, answered)
        except PowerLoss:
            pass
        again = Node(disk.crash(seed=step, keep="random"), clock)
        if not answered:
            continue

        found = [int(journal(again).load()[b"%d" % key]) for key in range(4)]

        assert set(found) <= {answered[-1], answered[-1] + 1}
        assert found == sorted(found, reverse=True)


def test_a_full_disk_refuses_and_leaves_everything_as_it_was(clock: ManualClock) -> None:
    disk = MemoryDisk()
    node = Node(disk, clock)
    node.create("facts", cleanup="compact")
    node.done(journal(node).put({b"a": b"1"}))
    disk.capacity_bytes = disk.used_bytes

    with pytest.raises(StorageFull):
        journal(node).put({b"a": b"2"})
    disk.capacity_bytes = None

    assert journal(node).load() == {b"a": b"1"}
    node.done(journal(node).put({b"a": b"3"}))
    assert journal(node).load() == {b"a": b"3"}


def test_a_record_without_a_key_is_no_fact(node: Node) -> None:
    node.publish(b"stray", topic="facts")
    node.done(journal(node).put({b"a": b"1"}))

    assert journal(node).load() == {b"a": b"1"}


def test_damage_costs_a_fact_and_not_the_journal(node: Node) -> None:
    for n in range(3):
        node.done(journal(node).put({b"key-%d" % n: b"value-%d" % n}))
    node.broker.close()
    path = f"{ROOT}/topics/facts/0/log/{0:020d}.log"
    file = node.disk.open(path)
    position = file.pread(0, file.size()).index(b"value-1")
    file.pwrite(position, b"!")
    file.close()

    assert journal(Node(node.disk, node.clock)).load() == {b"key-0": b"value-0", b"key-2": b"value-2"}


def test_facts_outlive_compaction(disk: MemoryDisk, clock: ManualClock) -> None:
    node = Node(disk, clock)
    node.create("facts", cleanup="compact", segment_bytes=1024)
    for n in range(200):
        node.done(journal(node).put({b"%d" % (n % 5): b"%d" % n, b"gone": None}))
    size = node.live("facts").log.size

    node.pass_time(30, step=1.0)

    assert node.live("facts").log.size < size / 2
    assert journal(node).load() == {b"%d" % (n % 5): b"%d" % n for n in range(195, 200)}


FACTS = st.dictionaries(st.sampled_from([b"a", b"b", b"c"]), st.one_of(st.none(), st.binary(max_size=3)), max_size=3)


@given(puts=st.lists(FACTS, max_size=10), reopen_at=st.integers(0, 10))
@settings(max_examples=40)
def test_a_journal_is_a_dict_that_lasts(puts: list[dict[bytes, bytes | None]], reopen_at: int) -> None:
    node = Node(MemoryDisk(), ManualClock())
    node.create("facts", cleanup="compact")
    expected: dict[bytes, bytes | None] = {}
    for n, facts in enumerate(puts):
        if n == reopen_at:
            node = reopened(node)
        node.done(journal(node).put(facts))
        expected |= facts

    assert journal(node).load() == {key: value for key, value in expected.items() if value is not None}


def test_a_large_put_is_one_batch(node: Node) -> None:
    facts: dict[bytes, bytes | None] = {b"%06d" % n: b"v" * 100 for n in range(20_000)}
    node.done(journal(node).put(facts))

    assert len(journal(node).load()) == 20_000
    records = node.live("facts").log.read(0, max_bytes=1 << 30).records
    assert kernel.scan(records).first_timestamp == kernel.scan(records).last_timestamp
