"""Aborted records stay hidden: through restarts, crashes at every step, disks that fail, retention and truncation."""

from errno import EIO, ENOSPC
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyroaring import BitMap64

from goqueue.errors import DirectoryUnusable, GoQueueError, ReadFailed, StorageFailed, StorageFull
from goqueue.record import kernel
from goqueue.storage.config import LogConfig
from goqueue.storage.log import Log
from goqueue.storage.txn_index import (
    ENTRY_BYTES,
    HEAD_BYTES,
    Aborted,
    AbortedRange,
    TxnSyncJob,
    decode,
    encode,
    head,
)
from goqueue.testing import FaultyDisk, MemoryDisk, PowerLoss
from goqueue.testing.faulty_disk import Operation
from tests.storage.logs import DIRECTORY, NOW_NS, fill
from tests.storage.transactional import CONFIG, SNAPSHOTS, Owner, batches, check, owner, paths, some_aborts

FIRST = f"{DIRECTORY}/{0:020d}.txnindex"


# --- the file ------------------------------------------------------------------------------------------------------

ranges = st.builds(
    lambda base, first, size, behind: AbortedRange(
        base, base + first, base + first + size, base + first + size + behind
    ),
    st.just(500),
    st.integers(0, 1_000),
    st.integers(1, 100),
    st.integers(0, 10_000),
)


@given(st.lists(ranges, max_size=10))
def test_entries_are_read_as_they_were_written(entries: list[AbortedRange]) -> None:
    entries.sort(key=lambda entry: entry.marker_offset)

    assert decode(head(500) + encode(entries), 500) == (entries, False)


@given(st.lists(ranges, min_size=1, max_size=5), st.integers(0, 2**31), st.integers(0, 7))
def test_a_bit_that_flipped_anywhere_is_noticed_and_what_stands_before_it_counts(
    entries: list[AbortedRange], place: int, bit: int
) -> None:
    entries.sort(key=lambda entry: entry.marker_offset)
    raw = bytearray(head(500) + encode(entries))
    place %= len(raw)
    raw[place] ^= 1 << bit

    found = decode(bytes(raw), 500)

    assert found.is_damaged
    assert found.entries == (entries[: (place - HEAD_BYTES) // ENTRY_BYTES] if place >= HEAD_BYTES else [])


@pytest.mark.parametrize("size", range(HEAD_BYTES + 2 * ENTRY_BYTES))
def test_a_file_that_was_cut_off_is_damaged_unless_it_ends_behind_an_entry(size: int) -> None:
    entries = [AbortedRange(500, 500, 501, 502), AbortedRange(500, 503, 504, 505)]
    raw = (head(500) + encode(entries))[:size]

    count, rest = divmod(max(0, size - HEAD_BYTES), ENTRY_BYTES)
    assert decode(raw, 500) == (entries[:count], size < HEAD_BYTES or rest > 0)


@pytest.mark.parametrize(
    "wrong",
    [
        AbortedRange(500, 499, 501, 600),
        AbortedRange(500, 510, 510, 600),
        AbortedRange(500, 511, 510, 600),
        AbortedRange(500, 510, 601, 600),
        AbortedRange(500, 510, 520, 1_000),
        AbortedRange(500, 520, 530, 540),
    ],
    ids=["before the segment", "empty", "backwards", "behind its marker", "marker behind the log", "falling markers"],
)
def test_an_entry_that_cannot_be_is_damage(wrong: AbortedRange) -> None:
    good = AbortedRange(500, 501, 502, 550)

    assert decode(head(500) + encode([good, wrong]), 500, markers_below=1_000) == ([good], True)


@pytest.mark.parametrize("raw", [b"", head(501), b"GQTX\0\2\0\0" + head(500)[8:], b"GQXX" + head(500)[4:]])
def test_a_foreign_head_is_damage(raw: bytes) -> None:
    assert decode(raw + encode([AbortedRange(500, 500, 501, 502)]), 500) == ([], True)


# --- damage --------------------------------------------------------------------------------------------------------


def damaged(disk: MemoryDisk, how: str) -> Owner:
    """A closed log with a snapshot behind all, one of whose indexes is not what it was."""
    one = owner(disk)
    some_aborts(one, 9)
    one.snapshot()
    one.log.close()
    path = paths(disk)[len(paths(disk)) // 2]
    file = disk.open(path)
    match how:
        case "torn":
            file.truncate(file.size() - 5)
        case "empty":
            file.truncate(0)
        case "zeros":
            file.pwrite(file.size(), bytes(ENTRY_BYTES))
        case "head":
            disk.flip_bit(path, 1, 1)
        case "flipped":
            disk.flip_bit(path, HEAD_BYTES + 20, 1)
        case "foreign":
            other = paths(disk)[0]
            file.truncate(0)
            file.append(disk.open(other).pread(0, 10_000))
    file.sync()
    return one


@pytest.mark.parametrize("how", ["torn", "empty", "zeros", "head", "flipped", "foreign"])
def test_a_damaged_index_is_made_anew_from_the_log_from_its_segment_on(disk: MemoryDisk, how: str) -> None:
    before = damaged(disk, how)
    assert Log.open(disk, DIRECTORY, CONFIG).transactions.aborted().replay_from is not None

    one = owner(disk)

    assert one.replayed_from is not None
    assert one.replayed_from > 0
    assert one.transactions.aborted == before.transactions.aborted
    check(one)
    one.log.transactions.sync()
    found = Log.open(disk.crash(keep="nothing"), DIRECTORY, CONFIG).transactions.aborted()
    assert found == Aborted(before.transactions.aborted, None)


def test_a_damaged_index_is_left_as_it_is_until_it_is_mended(disk: MemoryDisk) -> None:
    damaged(disk, "torn")
    log = Log.open(disk, DIRECTORY, CONFIG)
    replay_from = log.transactions.aborted().replay_from
    assert replay_from is not None
    log.transactions.note_aborted(replay_from, log.next_offset - 1, log.next_offset - 1)

    log.transactions.sync()
    log.close()

    assert Log.open(disk, DIRECTORY, CONFIG).transactions.aborted().replay_from == replay_from


@pytest.mark.parametrize("is_mended", [True, False])
def test_what_is_left_of_a_damaged_index_does_not_come_back_on_a_log_that_was_cut(
    disk: MemoryDisk, is_mended: bool
) -> None:
    one = owner(disk)
    for number in range(1, 4):
        one.publish(7, number, [b"a"])
        one.end(7, number, commit=False)
    one.log.close()
    disk.open(FIRST).truncate(HEAD_BYTES + 3 * ENTRY_BYTES - 1)
    log = Log.open(disk, DIRECTORY, CONFIG)
    assert log.transactions.aborted() == Aborted(BitMap64([0, 2]), 0)
    if is_mended:
        log.transactions.mend()

    log.truncate(2)
    fill(log, 9)
    log.flush()

    found = Log.open(disk.crash(keep="nothing"), DIRECTORY, CONFIG).transactions.aborted()
    assert found == (Aborted(BitMap64([0]), None) if is_mended else Aborted(BitMap64(), 0))


def test_a_damaged_log_is_not_compacted(disk: MemoryDisk) -> None:
    damaged(disk, "torn")
    log = Log.open(disk, DIRECTORY, LogConfig(segment_bytes=400, cleanup="compact"))  # type: ignore[arg-type]

    assert log.begin_compaction(now_ns=NOW_NS, stable_offset=log.next_offset) is None
    log.transactions.mend()
    assert log.begin_compaction(now_ns=NOW_NS, stable_offset=log.next_offset) is not None


def test_an_index_that_the_disk_does_not_give_is_damaged(disk: MemoryDisk) -> None:
    one = owner(disk)
    some_aborts(one)
    one.log.close()
    faulty = FaultyDisk(disk, seed=1)
    log = Log.open(faulty, DIRECTORY, CONFIG)
    faulty.fail_next("pread", EIO, path_suffix=".txnindex")

    assert log.transactions.aborted().replay_from is not None


def test_one_that_cannot_be_opened_now_is_asked_for_again(disk: MemoryDisk) -> None:
    one = owner(disk)
    some_aborts(one)
    one.log.close()
    faulty = FaultyDisk(disk, seed=1)
    log = Log.open(faulty, DIRECTORY, CONFIG)
    faulty.fail_next("open", 24, path_suffix=".txnindex", skip=1)  # EMFILE

    with pytest.raises(ReadFailed):
        log.transactions.aborted()
    assert log.transactions.aborted() == Aborted(one.transactions.aborted, None)


# --- a disk that fails ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("operation", ["append", "pwrite", "sync", "open", "rename"])
@pytest.mark.parametrize("errno", [EIO, ENOSPC])
def test_an_index_that_cannot_be_written(disk: MemoryDisk, operation: Operation, errno: int) -> None:
    """For want of room it is written later; else the log stops, and the next start finds all in the log."""
    faulty = FaultyDisk(disk, seed=1)
    one = owner(faulty)
    one.publish(7, 1, [b"a"])
    one.publish(8, 1, [b"b"])
    one.end(7, 1, commit=False)
    one.log.flush()
    one.log.transactions.sync()
    one.snapshot()
    one.end(8, 1, commit=False)
    if operation in ("append", "rename"):  # a new file
        one.publish(9, 1, [b"k" * 400])
        one.end(9, 1, commit=False)
    one.log.flush()
    told = one.snapshot_offset
    suffix = ".new" if operation == "append" else ".txnindex"
    faulty.fail_next(operation, errno, path_suffix=suffix)

    if errno == ENOSPC:
        with pytest.raises(StorageFull):
            one.log.transactions.sync()
        assert one.log.transactions.synced_offset < one.log.next_offset
        assert one.log.failure is None
        one.log.transactions.sync()
        assert one.log.transactions.synced_offset == one.log.next_offset
    else:
        with pytest.raises(StorageFailed):
            one.log.transactions.sync()
        assert one.log.failure is not None
        assert one.log.transactions.synced_offset < one.log.next_offset
        with pytest.raises(StorageFailed):
            one.log.transactions.sync()
    assert one.snapshot_offset == told
    for seed in range(5):
        again = owner(disk.crash(seed=seed, keep="random"))
        check(again)
        assert again.transactions.aborted == one.transactions.aborted


def test_a_job_without_room_is_tried_again_and_one_that_failed_stops_the_log(disk: MemoryDisk) -> None:
    faulty = FaultyDisk(disk, seed=1)
    one = owner(faulty)
    some_aborts(one)
    one.log.flush()
    for errno in (ENOSPC, EIO):
        job = one.log.transactions.begin_sync()
        assert isinstance(job, TxnSyncJob)
        faulty.fail_next("sync", errno, path_suffix=".new")
        with pytest.raises(OSError, match="txnindex") as raised:
            job.run()
        one.log.complete(job, raised.value)

    assert one.log.failure is not None
    assert one.log.failure.operation == "sync"
    assert one.log.transactions.begin_sync() is None
    check(owner(disk.crash(keep="nothing")))


# --- crashes -------------------------------------------------------------------------------------------------------


def workload(disk: MemoryDisk, seed: int, *, steps: int = 40, truncates: bool = True) -> Owner:
    rng = Random(seed)
    one = owner(disk)
    number = 0
    for _ in range(steps):
        match rng.choice(
            ["begin", "go on", "go on", "commit", "abort", "abort", "plain", "flush", "sync", "snapshot", "cut"]
        ):
            case "begin":
                number += 1
                one.publish(rng.randrange(1, 3), number, [b"k"] * rng.randrange(1, 4))
            case "go on" if one.transactions.open:
                producer_id, current = rng.choice(list(one.transactions.open))
                one.publish(producer_id, current, [b"k" * rng.randrange(1, 60)] * rng.randrange(1, 4))
            case "commit" | "abort" as how if one.transactions.open:
                one.end(*rng.choice(list(one.transactions.open)), commit=how == "commit")
            case "plain":
                one.publish(9, 0, [b"k" * 50])
            case "flush":
                one.log.flush()
            case "sync":
                one.log.flush()
                one.log.transactions.sync()
            case "snapshot":
                one.snapshot()
            case "cut" if truncates and one.snapshot_offset < one.log.next_offset:
                starts = sorted({one.snapshot_offset, *(offset for offset, _ in batches(one.log))})
                one.log.truncate(rng.choice([offset for offset in starts if offset >= one.snapshot_offset]))
                one.log.close()
                one = Owner(disk, CONFIG)
    return one


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("keep", ["nothing", "everything", "random"])
def test_after_a_crash_at_any_step_what_was_aborted_is_what_the_log_tells(seed: int, keep: str) -> None:
    whole = MemoryDisk()
    workload(whole, seed)
    rng = Random(seed)

    for power_off_after in sorted(rng.sample(range(whole.steps), 120)):
        disk = MemoryDisk(power_off_after=power_off_after)
        try:
            workload(disk, seed)
        except PowerLoss:
            pass
        survived = disk.crash(seed=power_off_after, keep=keep)  # type: ignore[arg-type]
        try:
            one = owner(survived)
            check(one)
            one.publish(5, 99, [b"after"])
            one.end(5, 99, commit=False)
            one.snapshot()
            one.log.close()
            again = owner(survived.crash(keep="nothing"))
            check(again)
            assert again.replayed_from is None
        except (AssertionError, GoQueueError) as error:
            raise AssertionError(f"seed {seed}, power off after {power_off_after}: {error}") from error


@pytest.mark.parametrize("seed", range(3))
def test_after_a_crash_during_the_start_after_a_crash_too(seed: int) -> None:
    whole = MemoryDisk()
    workload(whole, seed)
    rng = Random(seed)
    for power_off_after in rng.sample(range(whole.steps), 40):
        disk = MemoryDisk(power_off_after=power_off_after)
        try:
            workload(disk, seed)
        except PowerLoss:
            pass
        for second in range(0, 80, 9):
            survived = disk.crash(seed=power_off_after, keep="random")
            survived.power_off_after = survived.steps + second
            try:
                one = owner(survived)
                one.log.flush()
                one.log.transactions.sync()
            except PowerLoss:
                check(owner(survived.crash(seed=second, keep="random")))


@given(st.integers(0, 10_000))
@settings(max_examples=60)
def test_on_a_disk_that_fails_at_random_nothing_aborted_is_ever_shown(seed: int) -> None:
    disk = MemoryDisk()
    disk.make_directory(SNAPSHOTS)
    faulty = FaultyDisk(
        disk,
        seed=seed,
        short_write=0.01,
        write_error=0.005,
        no_space=0.02,
        sync_error=0.01,
        name_error=0.005,
        only=lambda path: "txnindex" in path or path.endswith("transactions"),
    )
    try:
        workload(faulty, seed, truncates=seed % 2 == 0)  # type: ignore[arg-type]
    except (GoQueueError, OSError):
        pass

    check(owner(disk.crash(seed=seed, keep="random")))


# --- truncation and names ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("synced", [True, False])
def test_a_log_that_is_cut_before_a_marker_forgets_what_it_aborted(disk: MemoryDisk, synced: bool) -> None:
    one = owner(disk)
    for number in (1, 2):
        one.publish(7, number, [b"a", b"b"])
        one.end(7, number, commit=False)
    if synced:
        one.log.flush()
        one.log.transactions.sync()

    one.log.truncate(5)

    assert one.log.transactions.aborted() == Aborted(BitMap64([0, 1]), None)
    for _ in range(3):  # over the offsets that were aborted once
        one.publish(8, 0, [b"c"])
    one.log.close()
    log = Log.open(disk, DIRECTORY, CONFIG)
    assert log.transactions.aborted() == Aborted(BitMap64([0, 1]), None)


def test_a_log_that_is_cut_back_to_nothing_has_nothing_aborted(disk: MemoryDisk) -> None:
    one = owner(disk)
    some_aborts(one)
    one.log.flush()
    one.log.transactions.sync()

    one.log.truncate(0)

    assert one.log.transactions.aborted() == Aborted(BitMap64(), None)
    fill(one.log, 50)
    one.log.close()
    assert Log.open(disk, DIRECTORY, CONFIG).transactions.aborted() == Aborted(BitMap64(), None)


def test_a_truncation_that_fails_at_an_index_stops_the_log_and_hides_nothing_new(disk: MemoryDisk) -> None:
    faulty = FaultyDisk(disk, seed=1)
    one = owner(faulty)
    some_aborts(one)
    one.log.flush()
    one.log.transactions.sync()
    faulty.fail_next("rename", EIO, path_suffix=".txnindex")

    with pytest.raises(StorageFailed):
        one.log.truncate(5)

    check(owner(disk.crash(keep="nothing")))


def test_an_index_without_a_segment_and_a_half_written_one_are_taken_away(disk: MemoryDisk) -> None:
    one = owner(disk)
    some_aborts(one)
    one.log.close()
    for name in (f"{10**6:020d}.txnindex", f"{0:020d}.txnindex.new", f"{0:020d}.txnindex.deleted"):
        disk.open(f"{DIRECTORY}/{name}", create=True).append(b"x")

    log = Log.open(disk, DIRECTORY, CONFIG)

    assert log.transactions.aborted() == Aborted(one.transactions.aborted, None)
    assert not [path for path in paths(disk) if not path.endswith(".txnindex") or f"{10**6}" in path]


def test_an_abandoned_log_touches_no_index_any_more(disk: MemoryDisk) -> None:
    one = owner(disk)
    some_aborts(one)
    one.log.flush()
    job = one.log.transactions.begin_sync()
    assert job is not None

    one.log.abandon()
    job.run()

    assert one.log.complete(job) is None
    assert not paths(disk)


def test_a_log_on_a_disk_that_cannot_be_listed_says_so(disk: MemoryDisk) -> None:
    one = owner(disk)
    one.log.close()
    faulty = FaultyDisk(disk, seed=1)
    faulty.fail_next("entries", EIO)

    with pytest.raises(DirectoryUnusable):
        Log.open(faulty, DIRECTORY, CONFIG)


def test_a_hundred_thousand_aborts_are_one_write_and_a_small_set(disk: MemoryDisk) -> None:
    config = LogConfig(segment_bytes=64 * 1024 * 1024)
    one = owner(disk, config)
    records = kernel.encode([b"v"] * 300_000)
    one.log.append(records, now_ns=NOW_NS)
    for first in range(0, 200_000, 2):
        one.log.transactions.note_aborted(first, first + 1, 200_000 + first // 2)
    one.log.flush()
    one.log.transactions.sync()
    one.log.close()

    found = Log.open(disk, DIRECTORY, config).transactions.aborted()

    assert found.replay_from is None
    assert len(found.offsets) == 100_000
    assert disk.open(FIRST).size() == HEAD_BYTES + 100_000 * ENTRY_BYTES
