"""Records below an offset are deleted on request: at once, durably, and never shown again."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from goqueue.errors import OffsetOutOfRange
from goqueue.storage.config import Flush
from goqueue.storage.file_check import check_log
from goqueue.storage.log import Log
from goqueue.testing import MemoryDisk
from tests.storage.logs import DIRECTORY, NOW_NS, append, open_log, read_all

SMALL = {"segment_bytes": 400}
LAZY = {"flush": Flush.NONE}


def delete_records(log: Log, before_offset: int) -> None:
    job = log.begin_delete_records(before_offset)
    if job:
        job.run()
        log.complete(job)


def filled(disk: MemoryDisk, count: int = 30) -> Log:
    log = open_log(disk, **SMALL)
    for number in range(count):
        append(log, [b"%d" % number * 20])
    log.flush()
    return log


def offsets(log: Log) -> list[int]:
    return [message.offset for message in read_all(log)[0]]


def test_records_below_the_offset_cannot_be_read(disk: MemoryDisk) -> None:
    log = filled(disk)

    delete_records(log, 17)

    assert (log.start_offset, log.next_offset, log.record_count) == (17, 30, 13)
    assert offsets(log) == list(range(17, 30))
    with pytest.raises(OffsetOutOfRange):
        log.read(16)


def test_a_search_by_time_finds_no_deleted_record(disk: MemoryDisk) -> None:
    log = filled(disk)

    delete_records(log, 17)

    assert log.offset_at_time(NOW_NS) == 17


def test_a_reader_that_stands_on_a_deleted_record_is_told(disk: MemoryDisk) -> None:
    log = filled(disk)
    reader = log.reader(3)

    delete_records(log, 17)

    with pytest.raises(OffsetOutOfRange):
        reader.read(max_bytes=1_000)


def test_the_start_survives_a_crash(disk: MemoryDisk) -> None:
    delete_records(filled(disk), 17)

    log = open_log(disk.crash(), **SMALL)

    assert (log.start_offset, offsets(log)) == (17, list(range(17, 30)))


def test_whole_segments_are_removed_by_the_next_expiry_whatever_the_retention_is(disk: MemoryDisk) -> None:
    log = filled(disk)
    before = log.segment_count
    delete_records(log, 17)

    log.maintain(now_ns=NOW_NS, monotonic_ns=0)

    assert log.segment_count < before
    assert (log.start_offset, offsets(log)) == (17, list(range(17, 30)))


def test_a_log_of_which_all_is_deleted_gives_its_space_back_and_keeps_its_next_offset(disk: MemoryDisk) -> None:
    log = filled(disk)
    delete_records(log, 30)

    for _ in range(2):  # the segment is sealed and synced first, and expires then
        log.maintain(now_ns=NOW_NS, monotonic_ns=0)
        log.flush()

    assert (log.size, log.start_offset, log.next_offset) == (0, 30, 30)
    again = open_log(disk.crash(), **SMALL)
    assert append(again, [b"next"]).first_offset == 30
    assert offsets(again) == [30]


def test_a_deletion_that_was_not_synced_leaves_all_or_nothing(disk: MemoryDisk) -> None:
    log = filled(disk)
    job = log.begin_delete_records(17)
    assert job
    job.run()  # it is not completed: the broker is killed

    assert open_log(disk.crash(), **SMALL).start_offset in (0, 17)


def test_a_lower_offset_than_the_start_changes_nothing(disk: MemoryDisk) -> None:
    log = filled(disk)
    delete_records(log, 17)

    assert log.begin_delete_records(17) is None
    assert log.begin_delete_records(3) is None


def test_an_offset_after_the_end_is_refused(disk: MemoryDisk) -> None:
    log = filled(disk)

    with pytest.raises(OffsetOutOfRange):
        log.begin_delete_records(31)


def test_records_that_get_lost_offsets_again_are_not_hidden(disk: MemoryDisk) -> None:
    log = open_log(disk, **LAZY)
    append(log, [b"kept"])
    log.flush()
    append(log, [b"lost"] * 9)
    delete_records(log, 10)

    disk = disk.crash()
    log = open_log(disk, **LAZY)
    assert (log.start_offset, log.next_offset) == (1, 1)
    append(log, [b"new"] * 5)
    log.close()

    assert offsets(open_log(disk, **LAZY)) == [1, 2, 3, 4, 5]


def test_a_damaged_file_is_reported_and_the_log_starts_at_its_first_segment(disk: MemoryDisk) -> None:
    delete_records(filled(disk), 17)
    disk = disk.crash()
    disk.flip_bit(f"{DIRECTORY}/log-start", 17, 1)

    log = open_log(disk, **SMALL)

    assert log.start_offset == 0
    assert [damage.path for damage in log.damage] == [f"{DIRECTORY}/log-start"]


def test_a_check_of_the_files_names_the_start(disk: MemoryDisk) -> None:
    delete_records(filled(disk), 17)

    reports = {report.path: report for report in check_log(disk, DIRECTORY)}

    assert reports[f"{DIRECTORY}/log-start"].content == "deleted below offset 17"
    assert all(report.is_sound for report in reports.values())


@given(steps=st.lists(st.tuples(st.sampled_from(("append", "delete", "maintain", "crash")), st.integers(0, 40))))
def test_a_log_shows_what_was_appended_and_not_deleted(steps: list[tuple[str, int]]) -> None:
    disk = MemoryDisk()
    log = open_log(disk, **SMALL)
    start = end = 0
    for step, number in steps:
        if step == "append":
            append(log, [b"x" * 40] * (number % 5 + 1))
            end += number % 5 + 1
        elif step == "delete":
            delete_records(log, min(number, end))
            start = max(start, min(number, end))
        elif step == "maintain":
            log.maintain(now_ns=NOW_NS, monotonic_ns=0)
        else:
            log.flush()
            disk = disk.crash()
            log = open_log(disk, **SMALL)

        assert offsets(log) == list(range(start, end))
        assert (log.start_offset, log.record_count) == (start, end - start)
