"""A log and its transactions: what was aborted is known, whatever retention, jobs and restarts do."""

import pytest
from pyroaring import BitMap64

from goqueue.errors import StorageFull
from goqueue.storage.config import LogConfig
from goqueue.storage.log import Log
from goqueue.storage.txn_index import (
    Aborted,
    AbortedRange,
    decode,
)
from goqueue.testing import MemoryDisk, PowerLoss
from tests.storage.logs import DIRECTORY, fill
from tests.storage.transactional import CONFIG, check, owner, paths, some_aborts

FIRST = f"{DIRECTORY}/{0:020d}.txnindex"


def test_a_log_without_aborts_has_no_index(disk: MemoryDisk) -> None:
    log = Log.open(disk, DIRECTORY, CONFIG)
    fill(log, 20)
    log.close()

    log = Log.open(disk, DIRECTORY, CONFIG)

    assert log.transactions.aborted() == Aborted(BitMap64(), None)
    assert log.transactions.begin_sync() is None
    assert not log.transactions.has_any
    assert not paths(disk)


def test_what_was_aborted_is_known_after_a_restart(disk: MemoryDisk) -> None:
    one = owner(disk)
    some_aborts(one)
    expected = one.transactions.aborted
    assert one.log.segment_count > 3
    one.log.close()

    log = Log.open(disk, DIRECTORY, CONFIG)

    assert log.transactions.aborted() == Aborted(expected, None)
    assert log.transactions.has_any
    assert len(paths(disk)) > 2


def test_a_log_says_for_good_that_there_were_transactions_before_there_are(disk: MemoryDisk) -> None:
    one = owner(disk)
    before = disk.steps
    one.publish(7, 1, [b"a"])
    assert one.log.transactions.has_any

    for step in range(before, disk.steps):
        again = MemoryDisk(power_off_after=step)
        try:
            owner(again).publish(7, 1, [b"a"])
        except PowerLoss:
            pass
        log = Log.open(again.crash(seed=step, keep="random"), DIRECTORY, CONFIG)
        assert log.transactions.has_any or not log.next_offset
    one.log.close()
    assert Log.open(disk, DIRECTORY, CONFIG).transactions.has_any


def test_a_transaction_that_begins_on_a_full_disk_is_refused_and_harms_nothing(disk: MemoryDisk) -> None:
    one = owner(disk)
    fill(one.log, 1)
    disk.capacity_bytes = disk.used_bytes

    with pytest.raises(StorageFull):
        one.publish(7, 1, [b"a"])

    disk.capacity_bytes = None
    assert one.log.next_offset == 1
    assert one.log.failure is None
    one.publish(7, 1, [b"a"])


def test_a_range_over_several_segments_is_in_the_index_of_each(disk: MemoryDisk) -> None:
    one = owner(disk)
    for _ in range(5):
        one.publish(7, 1, [b"k" * 40] * 4)
    one.end(7, 1, commit=False)
    one.log.flush()

    one.log.transactions.sync()

    bases = [0, 4, 8, 12, 16]
    assert paths(disk) == [f"{DIRECTORY}/{base:020d}.txnindex" for base in bases]
    assert [
        decode(one.disk.open(path).pread(0, 10_000), base).entries
        for base, path in zip(bases, paths(disk), strict=True)
    ] == [[AbortedRange(base, base, base + 4, 20)] for base in bases]


def test_what_is_noted_twice_is_written_once(disk: MemoryDisk) -> None:
    one = owner(disk)
    some_aborts(one)
    one.log.flush()
    one.log.transactions.sync()
    sizes = [disk.open(path).size() for path in paths(disk)]

    for _ in range(3):
        one.log.close()
        one = owner(disk)  # there is no snapshot, so it reads all of the log

    assert [disk.open(path).size() for path in paths(disk)] == sizes
    check(one)


def test_an_index_never_tells_of_a_marker_that_is_not_on_the_medium(disk: MemoryDisk) -> None:
    one = owner(disk)
    one.publish(7, 1, [b"a"])
    one.log.flush()
    one.end(7, 1, commit=False)

    assert one.log.transactions.begin_sync() is None
    assert one.log.transactions.synced_offset == 1
    one.log.flush()
    job = one.log.transactions.begin_sync()

    assert job is not None
    assert one.log.transactions.begin_sync() is None  # one at a time
    assert one.log.transactions.synced_offset == 1
    job.run()
    one.log.complete(job)
    assert one.log.transactions.synced_offset == 2
    assert one.log.transactions.begin_sync() is None


def test_what_was_aborted_while_a_job_runs_is_left_for_the_next(disk: MemoryDisk) -> None:
    one = owner(disk)
    one.publish(7, 1, [b"a"])
    one.publish(8, 1, [b"a"])
    one.end(7, 1, commit=False)
    one.log.flush()
    job = one.log.transactions.begin_sync()
    assert job is not None
    one.end(8, 1, commit=False)
    one.log.flush()

    job.run()
    one.log.complete(job)

    assert one.log.transactions.synced_offset == 3
    assert decode(disk.open(FIRST).pread(0, 1_000), 0).entries == [AbortedRange(0, 0, 1, 2)]
    one.log.transactions.sync()
    assert one.log.transactions.synced_offset == 4
    assert Log.open(disk.crash(keep="nothing"), DIRECTORY, CONFIG).transactions.aborted() == Aborted(
        BitMap64([0, 1]), None
    )


@pytest.mark.parametrize("when", ["before it ran", "when it had run"])
def test_a_sync_in_place_takes_the_job_under_way_back(disk: MemoryDisk, when: str) -> None:
    one = owner(disk)
    some_aborts(one)
    one.log.flush()
    job = one.log.transactions.begin_sync()
    assert job is not None
    if when == "when it had run":
        job.run()

    one.log.transactions.sync()
    job.run()
    one.log.complete(job)

    found = Log.open(disk.crash(keep="nothing"), DIRECTORY, CONFIG).transactions.aborted()
    assert found == Aborted(one.transactions.aborted, None)


def test_what_retention_takes_is_forgotten_with_its_index(disk: MemoryDisk) -> None:
    config = LogConfig(segment_bytes=400, retention_bytes=800)
    one = owner(disk, config)
    some_aborts(one, 9)
    one.log.flush()
    one.log.transactions.sync()
    before = len(paths(disk))
    aborted = one.transactions.aborted.copy()

    one.expire()

    start = one.log.start_offset
    assert start > 0
    assert one.transactions.aborted == BitMap64([offset for offset in aborted if offset >= start])
    assert one.log.transactions.aborted() == Aborted(one.transactions.aborted, None)
    assert len(paths(disk)) < before
    one.log.close()
    assert Log.open(disk, DIRECTORY, config).transactions.aborted() == Aborted(one.transactions.aborted, None)


@pytest.mark.parametrize("ran", [False, True])
def test_retention_wins_over_a_job_that_writes_its_index(disk: MemoryDisk, ran: bool) -> None:
    config = LogConfig(segment_bytes=400, retention_bytes=800)
    one = owner(disk, config)
    some_aborts(one, 9)
    one.log.flush()
    job = one.log.transactions.begin_sync()
    assert job is not None
    if ran:
        job.run()

    one.expire()
    job.run()
    one.log.complete(job)

    assert one.log.failure is None
    one.log.close()
    log = Log.open(disk, DIRECTORY, config)
    assert log.transactions.aborted() == Aborted(one.transactions.aborted, None)
    assert len(paths(disk)) < log.segment_count + 1


def test_an_abort_of_what_retention_has_taken_is_noted_for_the_rest(disk: MemoryDisk) -> None:
    config = LogConfig(segment_bytes=400, retention_bytes=800)
    one = owner(disk, config)
    for _ in range(8):
        one.publish(7, 1, [b"k" * 40] * 3)
    one.expire()
    start = one.log.start_offset
    assert start > 0

    one.end(7, 1, commit=False)
    one.log.transactions.note_aborted(0, start, one.log.next_offset - 1)

    assert one.log.transactions.aborted().offsets == BitMap64(range(start, 24))
