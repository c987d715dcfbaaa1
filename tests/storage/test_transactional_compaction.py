"""Compaction of a log with transactions: nothing undecided is touched, nothing aborted stays or stands for its key."""

from random import Random
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyroaring import BitMap64

from goqueue.errors import GoQueueError
from goqueue.record.header import Flags
from goqueue.record.message import StoredMessage
from goqueue.storage.compaction import FinishJob
from goqueue.storage.config import LogConfig
from goqueue.storage.log import Log
from goqueue.storage.txn_index import Aborted
from goqueue.testing import MemoryDisk, PowerLoss
from tests.storage.logs import DIRECTORY, NOW_NS
from tests.storage.transactional import SNAPSHOTS, Owner, records_of

HOUR_NS = 3_600_000_000_000
CONFIG = LogConfig(segment_bytes=400, cleanup="compact", dirty_ratio=0.01)  # type: ignore[arg-type]


def owner(disk: MemoryDisk, config: LogConfig = CONFIG) -> Owner:
    disk.make_directory(SNAPSHOTS)
    return Owner(disk, config)


def table_of(messages: list[StoredMessage]) -> dict[bytes, bytes]:
    """What a reader who plays them back ends up with."""
    table: dict[bytes, bytes] = {}
    for message in messages:
        assert message.key
        table.pop(message.key, None)
        if not message.tombstone:
            table[message.key] = message.value
    return table


def roll(one: Owner, *, now_ns: int = NOW_NS) -> None:
    """Enough of another key that all before it is sealed."""
    for _ in range(3):
        one.publish(9, 0, [b"filler" + b"." * 300], now_ns=now_ns)


def test_an_aborted_value_goes_and_the_one_before_it_stays(disk: MemoryDisk) -> None:
    one = owner(disk)
    one.publish(7, 0, [b"k"])
    one.publish(7, 1, [b"k", b"other"])
    one.end(7, 1, commit=False)
    roll(one)

    one.compact()

    assert [message.offset for message in records_of(one.log) if message.key == b"k"] == [0]
    assert not [message for message in records_of(one.log) if message.key == b"other"]
    assert one.log.cleaned_offset > 3


def test_a_committed_value_replaces_the_one_before_it(disk: MemoryDisk) -> None:
    one = owner(disk)
    one.publish(7, 0, [b"k"])
    one.publish(7, 1, [b"k", b"other"])
    one.end(7, 1, commit=True)
    roll(one)

    one.compact()

    assert [message.offset for message in records_of(one.log) if message.key in (b"k", b"other")] == [1, 2]


def test_nothing_is_touched_from_the_first_open_transaction_on(disk: MemoryDisk) -> None:
    one = owner(disk)
    for _ in range(20):
        one.publish(7, 0, [b"k"])
    roll(one)
    first_open = one.log.next_offset
    one.publish(7, 1, [b"k"])
    for _ in range(20):
        one.publish(7, 0, [b"k"])
    roll(one)

    one.compact()

    kept = [message.offset for message in records_of(one.log)]
    assert 0 < one.log.cleaned_offset <= first_open
    assert kept[-(one.log.next_offset - first_open) :] == list(range(first_open, one.log.next_offset))
    assert len(kept) < one.log.next_offset
    assert sum(message.key == b"k" for message in records_of(one.log) if message.offset < one.log.cleaned_offset) == 1


def test_a_log_with_transactions_is_left_alone_by_those_who_do_not_say_what_is_stable(disk: MemoryDisk) -> None:
    one = owner(disk)
    one.publish(7, 1, [b"k"])
    roll(one)
    one.log.flush()

    one.log.maintain(now_ns=NOW_NS, monotonic_ns=0)

    assert one.log.begin_compaction(now_ns=NOW_NS) is None
    assert one.log.cleaned_offset == 0


def test_what_only_the_caller_knows_to_be_aborted_goes_too(disk: MemoryDisk) -> None:
    one = owner(disk)
    one.publish(7, 1, [b"k"])
    one.publish(7, 1, [b"k"])
    roll(one)
    one.log.flush()

    aborted = BitMap64([1])
    one.log._run(one.log.begin_compaction(now_ns=NOW_NS, aborted=aborted, stable_offset=one.log.next_offset))

    assert [message.offset for message in records_of(one.log) if message.key == b"k"] == [0]


def control_offsets(one: Owner) -> list[int]:
    return [message.offset for message in records_of(one.log) if message.flags & Flags.CONTROL]


@pytest.mark.parametrize(
    ("age_hours", "has_snapshot", "stay"),
    [(23, True, True), (25, True, False), (25, False, True), (23, False, True)],
)
def test_a_marker_goes_when_it_is_old_and_a_snapshot_tells_how_it_was(
    disk: MemoryDisk, age_hours: int, has_snapshot: bool, stay: bool
) -> None:
    one = owner(disk)
    for number, commit in ((1, True), (2, False)):
        one.publish(7, number, [b"k"])
        one.end(7, number, commit=commit)
    if has_snapshot:
        one.snapshot()
    roll(one)

    one.compact(now_ns=NOW_NS + age_hours * HOUR_NS)

    assert control_offsets(one) == ([1, 3] if stay else [])
    assert [message.offset for message in records_of(one.log) if message.key == b"k"] == [0]


def test_of_markers_in_one_run_the_old_ones_below_the_snapshot_go(disk: MemoryDisk) -> None:
    one = owner(disk, LogConfig(segment_bytes=2_000, cleanup="compact", dirty_ratio=0.01))  # type: ignore[arg-type]
    for number in range(1, 9):
        one.publish(7, number, [b"k%d" % number], now_ns=NOW_NS + number * HOUR_NS)
        one.end(7, number, commit=True, now_ns=NOW_NS + number * HOUR_NS)
        if number == 6:
            one.snapshot()
    for _ in range(9):
        roll(one, now_ns=NOW_NS + 9 * HOUR_NS)

    one.compact(now_ns=NOW_NS + 24 * HOUR_NS + 4 * HOUR_NS)  # those up to 3 are older than a day
    assert control_offsets(one) == [7, 9, 11, 13, 15]

    roll(one, now_ns=NOW_NS + 9 * HOUR_NS)
    one.compact(now_ns=NOW_NS + 100 * HOUR_NS)
    assert control_offsets(one) == [13, 15]
    assert len([message for message in records_of(one.log) if (message.key or b"").startswith(b"k")]) == 8


def test_without_its_markers_a_log_is_opened_as_before(disk: MemoryDisk) -> None:
    one = owner(disk)
    one.publish(7, 1, [b"k"])
    one.snapshot()
    older = disk.open(f"{SNAPSHOTS}/snapshot").pread(0, 10_000)
    one.end(7, 1, commit=True)
    one.publish(8, 1, [b"l"])
    one.end(8, 1, commit=False)
    one.snapshot()
    roll(one)
    one.compact(now_ns=NOW_NS + 48 * HOUR_NS)
    assert not control_offsets(one)
    before = [message.offset for message in one.visible()]
    one.log.close()

    for snapshot in ("as it was", "an older one", "none"):
        disk.remove(f"{SNAPSHOTS}/snapshot") if snapshot == "none" else None
        if snapshot == "an older one":
            disk.open(f"{SNAPSHOTS}/snapshot").truncate(0)
            disk.open(f"{SNAPSHOTS}/snapshot").append(older)
        again = owner(disk)
        assert dict(again.transactions.open) == {}
        assert [message.offset for message in again.visible()] == before
        again.log.close()


def test_the_index_of_what_was_compacted_goes_and_the_others_stay(disk: MemoryDisk) -> None:
    one = owner(disk)
    for number in range(1, 7):
        one.publish(7, number, [b"a" * 40] * 3)
        one.publish(9, 0, [b"filler" + b"." * 200])
        one.end(7, number, commit=False)
        if number == 4:
            open_from = one.log.next_offset
            one.publish(8, 1, [b"k"])
    one.log.flush()
    one.log.transactions.sync()
    indexes = [path for path in disk.paths() if path.endswith(".txnindex")]

    one.compact()

    assert 0 < one.log.cleaned_offset <= open_from
    left = [path for path in disk.paths() if path.endswith(".txnindex")]
    assert left == [path for path in indexes if path >= f"{DIRECTORY}/{one.log.cleaned_offset:020d}"]
    assert 0 < len(left) < len(indexes)
    expected = BitMap64([offset for offset in one.transactions.aborted if offset >= one.log.cleaned_offset])
    assert one.log.transactions.aborted() == Aborted(expected, None)
    one.log.close()
    assert Log.open(disk, DIRECTORY, CONFIG).transactions.aborted() == Aborted(expected, None)


def test_what_was_not_in_an_index_yet_need_not_get_there_once_it_is_compacted(disk: MemoryDisk) -> None:
    one = owner(disk)
    one.publish(7, 1, [b"k"])
    one.end(7, 1, commit=False)
    roll(one)
    one.log.flush()
    job = one.log.transactions.begin_sync()
    assert job is not None

    one.compact()
    job.run()
    one.log.complete(job)

    assert one.log.transactions.begin_sync() is None
    assert one.log.transactions.synced_offset == one.log.next_offset
    assert not [path for path in disk.paths() if path.endswith(".txnindex")]


def test_an_index_that_was_left_behind_where_all_is_compacted_does_not_count(disk: MemoryDisk) -> None:
    one = owner(disk)
    one.publish(7, 1, [b"k"])
    one.end(7, 1, commit=False)
    roll(one)
    one.compact()
    one.log.close()
    disk.open(f"{DIRECTORY}/{0:020d}.txnindex", create=True).append(b"torn")

    assert Log.open(disk, DIRECTORY, CONFIG).transactions.aborted() == Aborted(BitMap64(), None)


def test_an_abort_that_comes_again_for_what_was_compacted_is_passed_over(disk: MemoryDisk) -> None:
    one = owner(disk)
    one.publish(7, 1, [b"k"])
    one.end(7, 1, commit=False)
    roll(one)
    one.compact()

    one.log.transactions.note_aborted(0, 1, 1)

    assert one.log.transactions.aborted() == Aborted(BitMap64(), None)


class Written(NamedTuple):
    """A record, or the end of a transaction; without a transaction, one that counts at once."""

    transaction: tuple[int, int] | None
    key: bytes = b""
    is_deletion: bool = False
    commits: bool | None = None


def workload(disk: MemoryDisk, seed: int, written: list[Written]) -> Owner:
    """Transactions of a few keys over days, with compactions in between; all that was appended is in `written`."""
    rng = Random(seed)
    one = owner(disk)
    number, now_ns = 0, NOW_NS
    for _ in range(70):
        now_ns += HOUR_NS
        keys = [rng.choice([b"a", b"b", b"c"]), b"d" * rng.randrange(1, 40)][: rng.randrange(1, 3)]
        what = rng.choice(["begin", "go on", "go on", "commit", "abort", "plain", "plain", "snapshot", "compact"])
        if what in ("begin", "go on", "plain"):
            number += what == "begin"
            transaction = (1, number) if what == "begin" else None
            if what == "go on":
                if not one.transactions.open:
                    continue
                transaction = rng.choice(list(one.transactions.open))
            is_deletion = rng.random() < 0.2
            written += [Written(transaction, key, is_deletion) for key in keys]
            one.publish(*(transaction or (9, 0)), keys, now_ns=now_ns, delete=is_deletion)
        elif what in ("commit", "abort") and one.transactions.open:
            transaction = rng.choice(list(one.transactions.open))
            written.append(Written(transaction, commits=what == "commit"))
            one.end(*transaction, commit=what == "commit", now_ns=now_ns)
        elif what == "snapshot":
            one.snapshot()
        elif what == "compact":
            one.compact(now_ns=now_ns)
    one.compact(now_ns=now_ns)
    return one


def check(one: Owner, written: list[Written]) -> None:
    """A reader of what is committed ends up with what was committed, and sees nothing else on the way."""
    written = written[: one.log.next_offset]
    outcomes = {record.transaction: record.commits for record in written if record.commits is not None}
    undecided = [
        offset for offset, record in enumerate(written) if record.transaction and record.transaction not in outcomes
    ]
    stable = min(undecided, default=len(written))
    assert one.stable_offset == stable
    expected: dict[bytes, bytes] = {}
    visible: set[int] = set()
    for offset, record in enumerate(written[:stable]):
        if record.commits is None and outcomes.get(record.transaction, True):
            visible.add(offset)
            expected.pop(record.key, None)
            if not record.is_deletion:
                expected[record.key] = b"%d" % offset
    seen = one.visible()
    assert table_of(seen) == expected
    assert {message.offset for message in seen} <= visible
    kept = {message.offset for message in records_of(one.log)}
    assert kept >= set(range(one.log.cleaned_offset, len(written)))
    assert not [offset for offset in kept if offset < one.log.cleaned_offset and offset not in visible
                and written[offset].commits is None]  # fmt: skip


@given(st.integers(0, 10**6))
@settings(max_examples=60)
def test_a_reader_ends_up_with_what_was_committed_whatever_was_compacted_when(seed: int) -> None:
    disk, written = MemoryDisk(), list[Written]()
    one = workload(disk, seed, written)
    check(one, written)
    one.log.close()

    check(owner(disk), written)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("keep", ["nothing", "everything", "random"])
def test_after_a_crash_at_any_step_too(seed: int, keep: str) -> None:
    whole = MemoryDisk()
    workload(whole, seed, [])
    for power_off_after in Random(seed).sample(range(whole.steps), 60):
        disk, written = MemoryDisk(power_off_after=power_off_after), list[Written]()
        try:
            workload(disk, seed, written)
        except PowerLoss:
            pass
        try:
            one = owner(disk.crash(seed=power_off_after, keep=keep))  # type: ignore[arg-type]
            check(one, written)
            one.compact(now_ns=NOW_NS + 1_000 * HOUR_NS)
            check(one, written)
        except (AssertionError, GoQueueError) as error:
            raise AssertionError(f"seed {seed}, power off after {power_off_after}: {error}") from error


def test_the_copies_take_their_places_without_the_index_even_if_the_machine_dies_before_it_is_removed(
    disk: MemoryDisk,
) -> None:
    one = owner(disk)
    one.publish(7, 1, [b"k"])
    one.end(7, 1, commit=False)
    roll(one)
    one.log.flush()
    one.log.transactions.sync()
    job = one.log.begin_compaction(now_ns=NOW_NS, stable_offset=one.stable_offset)
    while job and not isinstance(job, FinishJob):
        job.run()
        job = one.log.complete(job)  # type: ignore[assignment]

    survived = disk.crash(keep="everything")
    log = Log.open(survived, DIRECTORY, CONFIG)

    assert log.cleaned_offset > 0
    assert log.transactions.aborted() == Aborted(BitMap64(), None)
    assert not [path for path in survived.paths() if path.endswith(".txnindex")]
