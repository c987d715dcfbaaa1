"""Keyed facts: the last one counts, over restarts, compaction, crashes and damage."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from goqueue.broker.partition.journal import SNAPSHOT_INTERVAL_NS, SNAPSHOT_RECORDS, Journal
from goqueue.errors import StorageFull
from goqueue.record import kernel
from goqueue.record.message import StoredMessage
from goqueue.testing import FaultyDisk, ManualClock, MemoryDisk, PowerLoss
from goqueue.testing.memory_disk import MemoryFile
from tests.broker.brokers import ROOT, Node


@pytest.fixture
def node(disk: MemoryDisk, clock: ManualClock) -> Node:
    node = Node(disk, clock)
    node.create("facts", cleanup="compact")
    return node


def journal(node: Node, **settings: int) -> Journal:
    return Journal(node.leader("facts"), **settings)


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
    assert node.leader("facts").log.next_offset == 0


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
    size = node.leader("facts").log.size

    node.pass_time(30, step=1.0)

    assert node.leader("facts").log.size < size / 2
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
    records = node.leader("facts").log.read(0, max_bytes=1 << 30).records
    assert kernel.scan(records).first_timestamp == kernel.scan(records).last_timestamp


# --- snapshots -----------------------------------------------------------------------------------------------------


class CountingDisk(MemoryDisk):
    """A disk that knows how much was read of it."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes_read = 0

    def open(self, path: str, *, create: bool = False, write: bool = True) -> MemoryFile:
        file = super().open(path, create=create, write=write)
        pread = file.pread

        def counted(position: int, size: int) -> bytes:
            data = pread(position, size)
            self.bytes_read += len(data)
            return data

        file.pread = counted  # type: ignore[method-assign]
        return file


def snapshots(node: Node) -> list[tuple[int, int]]:
    """Number and offset of each snapshot that was ever written, by the first of its pieces."""
    return [
        (int.from_bytes(value[1:9]), int.from_bytes(value[9:17]))
        for key, value in node.leader("facts").ledger.facts()
        if key.startswith(b"journal") and key.endswith(bytes(4)) and value
    ]


def take(node: Node, kept: Journal) -> None:
    """Let the journal write a snapshot of all that was put."""
    kept.snapshot_if_due(node.clock.monotonic_ns())
    node.workers.run_all()
    node.clock.advance(SNAPSHOT_INTERVAL_NS / 1e9)
    kept.snapshot_if_due(node.clock.monotonic_ns())
    node.workers.run_all()


def test_a_start_after_a_million_puts_reads_a_short_tail_and_not_the_history(clock: ManualClock) -> None:
    disk = CountingDisk()
    node = Node(disk, clock)
    node.create("facts", cleanup="compact", segment_bytes=1 << 30)  # so large that nothing of it is compacted
    kept = journal(node)
    kept.load()
    facts: dict[bytes, bytes | None] = {}
    for n in range(10_000):
        facts = {b"key-%d" % key: b"value %d of %d" % (n, key) for key in range(100)}
        node.done(kept.put(facts))
        kept.snapshot_if_due(clock.monotonic_ns())
    node.workers.run_all()
    log_bytes = node.leader("facts").log.size
    assert node.leader("facts").log.next_offset == 1_000_000
    assert log_bytes > 50_000_000

    node = reopened(node)
    node.leader("facts")
    disk.bytes_read = 0
    found = journal(node).load()

    assert found == facts
    assert disk.bytes_read < SNAPSHOT_RECORDS * log_bytes // 1_000_000 + 1_000_000
    assert disk.bytes_read < log_bytes / 30


def test_a_snapshot_is_due_after_so_many_records(node: Node) -> None:
    kept = journal(node)
    kept.load()
    for n in range(SNAPSHOT_RECORDS // 100):
        assert snapshots(node) == []
        node.done(kept.put({b"%d" % key: b"%d" % n for key in range(100)}))
        kept.snapshot_if_due(node.clock.monotonic_ns())
        node.workers.run_all()

    assert snapshots(node) == [(1, SNAPSHOT_RECORDS)]


def test_a_snapshot_is_due_after_five_minutes_if_there_is_anything_new(node: Node) -> None:
    kept = journal(node)
    kept.snapshot_if_due(node.clock.monotonic_ns())
    node.clock.advance(299)
    node.done(kept.put({b"a": b"1"}))
    kept.snapshot_if_due(node.clock.monotonic_ns())
    assert snapshots(node) == []

    node.clock.advance(1)
    kept.snapshot_if_due(node.clock.monotonic_ns())
    assert snapshots(node) == [(1, 1)]

    node.clock.advance(1_000)
    kept.snapshot_if_due(node.clock.monotonic_ns())
    assert snapshots(node) == [(1, 1)]


def test_of_many_facts_a_snapshot_is_taken_less_often(node: Node) -> None:
    kept = journal(node)
    kept.load()
    node.done(kept.put({b"%d" % key: b"" for key in range(25_000)}))
    kept.snapshot_if_due(node.clock.monotonic_ns())
    node.done(kept.put({b"%d" % key: b"" for key in range(24_999)}))
    kept.snapshot_if_due(node.clock.monotonic_ns())
    assert snapshots(node) == [(1, 25_000)]

    node.done(kept.put({b"0": b""}))
    kept.snapshot_if_due(node.clock.monotonic_ns())

    assert snapshots(node) == [(1, 25_000), (2, 50_000)]


def test_a_snapshot_waits_until_all_that_it_tells_is_on_the_medium(node: Node) -> None:
    kept = journal(node)
    kept.snapshot_if_due(0)
    node.done(kept.put({b"a": b"1"}))
    kept.put({b"b": b"2"})  # and nothing runs
    node.clock.advance(300)

    kept.snapshot_if_due(node.clock.monotonic_ns())
    kept.put({b"c": b"3"})
    kept.snapshot_if_due(node.clock.monotonic_ns())
    assert snapshots(node) == []

    node.workers.run_all()
    kept.snapshot_if_due(node.clock.monotonic_ns())

    assert snapshots(node) == [(1, 2)]
    assert journal(reopened(node)).load() == {b"a": b"1", b"b": b"2", b"c": b"3"}


def test_what_is_loaded_is_the_snapshot_and_what_came_since_in_the_order_of_the_changes(node: Node) -> None:
    kept = journal(node)
    node.done(kept.put({b"a": b"1", b"b": b"2", b"c": b"3", b"d": b"4"}))
    node.done(kept.put({b"a": b"5"}))
    take(node, kept)
    assert snapshots(node) == [(1, 5)]
    node.done(kept.put({b"c": None, b"b": b"6", b"e": b"7"}))

    node = reopened(node)

    assert list(journal(node).load().items()) == [(b"d", b"4"), (b"a", b"5"), (b"b", b"6"), (b"e", b"7")]


def test_journals_of_the_same_partition_take_in_what_the_others_wrote(node: Node) -> None:
    kept, other = journal(node), journal(node)
    kept.load()
    node.done(other.put({b"a": b"1", b"c": b"1"}))
    node.done(kept.put({b"b": b"2"}))
    node.done(other.put({b"a": None}))

    take(node, kept)

    assert snapshots(node) == [(1, 4)]
    assert kept.load() == other.load() == journal(reopened(node)).load() == {b"c": b"1", b"b": b"2"}


def three_snapshots(node: Node) -> dict[bytes, bytes]:
    """Three snapshots and a tail behind them."""
    kept = journal(node)
    for n in range(4):
        if n:
            take(node, kept)
        node.done(kept.put({b"a": b"%d" % n, b"only-%d" % n: b"x", b"only-%d" % (n - 1): None}))
    assert [number for number, _ in snapshots(node)] == [1, 2, 3]
    node.broker.close()
    return {b"a": b"3", b"only-3": b"x"}


def damage_snapshot(disk: MemoryDisk, number: int) -> None:
    path = f"{ROOT}/topics/facts/0/ledger/{0:020d}.log"
    raw = disk.open(path).pread(0, 1 << 20)
    disk.flip_bit(path, raw.index(b"journal" + bytes([number % 3])), 1)


@pytest.mark.parametrize("numbers", [[], [3], [3, 2], [3, 2, 1], [1], [2]])
def test_a_damaged_snapshot_is_passed_over_for_an_older_one_and_at_last_for_the_log(
    disk: MemoryDisk, node: Node, numbers: list[int]
) -> None:
    expected = three_snapshots(node)
    for number in numbers:
        damage_snapshot(disk, number)

    again = Node(disk, node.clock)
    kept = journal(again)

    assert kept.load() == expected
    take(again, kept)  # and it goes on with a number that was not used
    assert snapshots(again)[-1][0] == max({1, 2, 3} - set(numbers), default=0) + 1
    assert journal(reopened(again)).load() == expected


def test_only_the_last_three_are_kept(disk: MemoryDisk, clock: ManualClock) -> None:
    node = Node(disk, clock)
    node.create("facts", cleanup="compact")
    kept = journal(node)
    for n in range(8):
        node.done(kept.put({b"a": b"%d" % n}))
        take(node, kept)

    keys = {
        message.key
        for message in kernel.decode(node.leader("facts").partition.ledger.read(0).records, None, StoredMessage)
    }

    assert len([key for key in keys if key and key.startswith(b"journal")]) == 3


def test_a_snapshot_that_speaks_of_more_than_the_log_has_is_not_believed(disk: MemoryDisk, node: Node) -> None:
    kept = journal(node)
    node.done(kept.put({b"a": b"1"}))
    take(node, kept)
    node.done(kept.put({b"a": b"2", b"b": b"2"}))
    take(node, kept)
    node.leader("facts").log.truncate(1)

    again = reopened(node)

    assert snapshots(again) == [(1, 1), (2, 3)]
    assert journal(again).load() == {b"a": b"1"}


def test_what_a_tombstone_took_away_does_not_come_back_when_the_tombstone_is_compacted(
    disk: MemoryDisk, clock: ManualClock
) -> None:
    node = Node(disk, clock)
    node.create("facts", cleanup="compact", segment_bytes=1024, tombstone_retention="1ms")
    kept = journal(node)
    node.done(kept.put({b"gone": b"1", b"a": b"1"}))
    take(node, kept)
    node.done(kept.put({b"gone": None}))
    for n in range(100):
        node.done(kept.put({b"a": b"%d" % n}))
    node.pass_time(60, step=1.0)
    log = node.leader("facts").log
    assert log.cleaned_offset > 3
    records = kernel.decode(log.read(0, max_bytes=1 << 20).records, None, StoredMessage)
    assert b"gone" not in {message.key for message in records}

    assert journal(reopened(node)).load() == {b"a": b"99"}


def test_a_snapshot_larger_than_a_record_may_be_is_in_pieces(disk: MemoryDisk, clock: ManualClock) -> None:
    node = Node(disk, clock)
    node.create("facts", cleanup="compact")
    kept = journal(node, piece_bytes_max=1_000)
    facts: dict[bytes, bytes | None] = {b"%d" % key: b"v" * 100 for key in range(100)}
    node.done(kept.put(facts))
    take(node, kept)
    ledger = kernel.decode(node.leader("facts").partition.ledger.read(0).records, None, StoredMessage)
    assert len(ledger) == 11
    assert max(len(message.value) for message in ledger) < 1_100

    assert journal(reopened(node)).load() == facts


def test_pieces_of_a_larger_snapshot_before_do_not_stay(disk: MemoryDisk, clock: ManualClock) -> None:
    node = Node(disk, clock)
    node.create("facts", cleanup="compact")
    kept = journal(node, piece_bytes_max=1_000)
    node.done(kept.put({b"large": b"v" * 10_000}))
    take(node, kept)
    node.done(kept.put({b"large": None, b"small": b""}))
    for n in range(3):
        take(node, kept)
        node = reopened(node)
        kept = journal(node, piece_bytes_max=1_000)
        node.done(kept.put({b"n": b"%d" % n}))
    take(node, kept)

    pieces = dict(node.leader("facts").ledger.facts())

    assert len([key for key, value in pieces.items() if value]) == 3
    assert journal(reopened(node)).load() == {b"small": b"", b"n": b"2"}


@pytest.mark.parametrize("lost", range(11))
def test_a_snapshot_that_lacks_a_piece_does_not_count(disk: MemoryDisk, clock: ManualClock, lost: int) -> None:
    node = Node(disk, clock)
    node.create("facts", cleanup="compact")
    kept = journal(node, piece_bytes_max=1_000)
    facts: dict[bytes, bytes | None] = {b"%d" % key: b"v" * 100 for key in range(100)}
    node.done(kept.put(facts))
    take(node, kept)
    node.broker.close()
    path = f"{ROOT}/topics/facts/0/ledger/{0:020d}.log"
    disk.flip_bit(path, disk.open(path).pread(0, 1 << 20).index(b"journal\1" + lost.to_bytes(4)), 1)

    again = Node(disk, clock)

    assert journal(again).load() == facts
    assert snapshots(again) == ([(1, 100)] if lost else [])


def test_a_snapshot_that_comes_after_a_damaged_one_counts(disk: MemoryDisk, clock: ManualClock) -> None:
    node = Node(disk, clock)
    node.create("facts", cleanup="compact")
    kept = journal(node, piece_bytes_max=1_000)
    node.done(kept.put({b"large": b"v" * 5_000, b"a": b"1"}))
    take(node, kept)
    node.broker.close()
    path = f"{ROOT}/topics/facts/0/ledger/{0:020d}.log"
    disk.flip_bit(path, disk.open(path).pread(0, 1 << 20).index(b"journal\1" + (3).to_bytes(4)), 1)
    node = Node(disk, clock)
    kept = journal(node, piece_bytes_max=1_000)
    kept._live.append(kernel.encode([None], keys=[b"large"]))
    node.workers.run_all()
    take(node, kept)

    again = journal(reopened(node))

    assert again.load() == {b"a": b"1"}
    assert again._snapshot_offset == 3


@pytest.mark.parametrize("room", [0, 20])
def test_a_snapshot_without_room_is_no_failure_and_is_tried_again_later(
    disk: MemoryDisk, node: Node, room: int
) -> None:
    kept = journal(node)
    node.done(kept.put({b"a": b"1"}))
    take(node, kept)
    node.done(kept.put({b"a": b"2"}))
    node.clock.advance(300)
    disk.capacity_bytes = disk.used_bytes + room

    kept.snapshot_if_due(node.clock.monotonic_ns())
    disk.capacity_bytes = None
    node.clock.advance(9)
    kept.snapshot_if_due(node.clock.monotonic_ns())
    node.workers.run_all()
    assert snapshots(node) == [(1, 1)]

    node.clock.advance(1)
    kept.snapshot_if_due(node.clock.monotonic_ns())
    node.workers.run_all()

    assert [offset for _, offset in snapshots(node)] == [1, 2]
    assert journal(reopened(node)).load() == {b"a": b"2"}


def test_nothing_is_written_to_a_log_that_failed_or_is_closed(disk: MemoryDisk, clock: ManualClock) -> None:
    faulty = FaultyDisk(disk, seed=1)
    node = Node(faulty, clock)
    node.create("facts", cleanup="compact")
    kept = journal(node)
    kept.snapshot_if_due(0)
    kept.put({b"a": b"1"})
    faulty.fail_next("sync", path_suffix=".log")
    node.workers.run_all()
    assert node.leader("facts").log.failure
    clock.advance(300)

    kept.snapshot_if_due(clock.monotonic_ns())
    assert snapshots(node) == []
    node.broker.close()
    kept.snapshot_if_due(clock.monotonic_ns())


steps = st.lists(
    st.one_of(
        FACTS,
        st.sampled_from(["snapshot", "reopen", "other", "compact"]),
    ),
    max_size=30,
)


@given(steps)
@settings(max_examples=60)
def test_with_snapshots_a_journal_is_a_dict_that_lasts(steps: list[dict[bytes, bytes | None] | str]) -> None:
    node = Node(MemoryDisk(), ManualClock())
    node.create("facts", cleanup="compact", segment_bytes=1024, tombstone_retention="1ms")
    kept, expected = journal(node, piece_bytes_max=20), dict[bytes, bytes]()
    for step in steps:
        match step:
            case "snapshot":
                take(node, kept)
            case "reopen":
                node = reopened(node)
                kept = journal(node, piece_bytes_max=20)
            case "other":
                kept = journal(node, piece_bytes_max=20)
            case "compact":
                node.pass_time(20, step=2.0)
            case dict(facts):
                facts = {key: value and value * 100 for key, value in facts.items()}
                node.done(kept.put(facts))
                for key, value in facts.items():
                    expected.pop(key, None)
                    if value is not None:
                        expected[key] = value

    assert list(kept.load().items()) == list(expected.items())
    assert list(journal(reopened(node)).load().items()) == list(expected.items())


@pytest.mark.parametrize("keep", ["nothing", "everything", "random"])
def test_wherever_the_power_fails_what_was_answered_is_there(keep: str) -> None:
    def work(disk: MemoryDisk, answered: list[int]) -> None:
        node = Node(disk, ManualClock())
        node.create("facts", cleanup="compact", segment_bytes=1024)
        kept = journal(node, piece_bytes_max=50)
        for n in range(6):
            node.done(kept.put({b"a": b"%d" % n, b"b%d" % n: b"x" * 300, b"b%d" % (n - 2): None}))
            answered.append(n)
            take(node, kept)

    whole = MemoryDisk()
    work(whole, [])
    for step in range(0, whole.steps, 101):
        disk, answered = MemoryDisk(power_off_after=step), list[int]()
        try:
            work(disk, answered)
        except PowerLoss:
            pass
        if not answered:
            continue
        n = answered[-1]

        found = journal(Node(disk.crash(seed=step, keep=keep), ManualClock())).load()  # type: ignore[arg-type]

        written = int(found[b"a"])
        assert written in (n, n + 1), f"power off after {step}"
        if written == n:
            assert found == {b"a": b"%d" % n} | {b"b%d" % one: b"x" * 300 for one in (n - 1, n) if one >= 0}
