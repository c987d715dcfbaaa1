"""Truncation and restart: in memory at once, on the disk as a whole or not at all."""

from collections.abc import Callable
from errno import EIO, ENOSPC

import pytest

from goqueue import events
from goqueue.errors import Conflict, OffsetOutOfRange, StorageFailed, StorageFull
from goqueue.storage.config import LogConfig
from goqueue.storage.epochs import EpochStart
from goqueue.storage.jobs import Job
from goqueue.storage.log import Log
from goqueue.testing import FaultyDisk, MemoryDisk, PowerLoss
from goqueue.testing.inode import Keep
from tests.storage.logs import DIRECTORY, NOW_NS, append, fill, open_log, values_of
from tests.storage.transactional import CONFIG, owner

SMALL = {"segment_bytes": 1_000}
END = 20


def filled(disk: MemoryDisk | FaultyDisk, count: int = 50) -> tuple[Log, list[bytes]]:
    """A log of several segments and epochs, durable but for its last records."""
    log = open_log(disk, **SMALL)
    values = fill(log, count - 3)
    log.assign_epoch(1, 0)
    log.assign_epoch(2, 12)
    log.assign_epoch(3, 25)
    log.flush()
    return log, values + fill(log, 3)


def run(log: Log, job: Job | None) -> None:
    assert job is not None
    error = None
    try:
        job.run()
    except OSError as raised:
        error = raised
    assert log.complete(job, error) is None


# --- in memory -----------------------------------------------------------------------------------------------------


def test_records_cannot_be_read_any_more_once_a_truncation_has_begun(disk: MemoryDisk) -> None:
    log, values = filled(disk)
    reader = log.reader(30)

    job = log.begin_truncate(END)

    assert log.is_truncating
    assert (log.next_offset, log.durable_offset) == (END, END)
    assert values_of(log) == values[:END]
    for attempt in (lambda: log.read(END + 1), lambda: reader.read(max_bytes=1)):
        with pytest.raises(OffsetOutOfRange):
            attempt()
    run(log, job)
    assert not log.is_truncating
    assert values_of(log) == values[:END]


def test_nothing_is_appended_and_no_other_job_begins_before_a_truncation_is_carried_out(disk: MemoryDisk) -> None:
    log, _ = filled(disk)
    job = log.begin_truncate(END)

    for attempt in (
        lambda: append(log, [b"x"]),
        lambda: log.append_stored(b""),
        lambda: log.assign_epoch(9, END),
        lambda: log.begin_truncate(END),
        lambda: log.begin_truncate(5),
        lambda: log.begin_restart(END),
        log.flush,
    ):
        with pytest.raises(Conflict, match="is being truncated"):
            attempt()
    assert log.begin_flush(monotonic_ns=10**18) is None
    assert log.begin_seal() is None
    assert log.expire(now_ns=NOW_NS * 2) is None
    assert not log.roll_if_old(now_ns=NOW_NS * 2)

    run(log, job)
    assert append(log, [b"x"]).first_offset == END


def test_the_disk_is_left_to_the_job(disk: MemoryDisk) -> None:
    log, _ = filled(disk)
    steps = disk.steps

    log.begin_truncate(END)

    assert disk.steps == steps


def test_a_truncation_at_the_end_is_nothing_to_do_unless_an_epoch_begins_there(disk: MemoryDisk) -> None:
    log, _ = filled(disk)
    assert log.begin_truncate(50) is None
    log.assign_epoch(4, 50)

    run(log, log.begin_truncate(50))

    assert (log.epochs.latest, log.highest_epoch, log.next_offset) == (3, 4, 50)
    assert open_log(disk.crash(keep="nothing"), **SMALL).epochs.entries == log.epochs.entries


def test_the_clock_of_a_truncated_log_is_that_of_its_last_record(disk: MemoryDisk) -> None:
    log, _ = filled(disk)

    log.truncate(END)
    assert log.last_timestamp == NOW_NS + (END - 1) * 1_000_000
    log.truncate(14)  # the base of a segment
    assert log.last_timestamp == NOW_NS + 13 * 1_000_000
    log.truncate(0)

    assert log.last_timestamp == 0
    assert append(log, [b"x"], now_ns=5).timestamp == 5


def test_indexes_and_times_are_right_after_a_truncation(disk: MemoryDisk) -> None:
    log = open_log(disk)
    fill(log, 500)

    log.truncate(333)
    fill(log, 200)

    for offset in (0, 332, 333, 400, 532):
        assert log.offset_at_time(NOW_NS + offset * 1_000_000) == offset
    log.close()
    offsets = [entry.key for entry in log._segments.active.offsets.entries()]
    assert offsets == sorted(set(offsets))


def test_a_deletion_that_is_under_way_is_not_cut_off(disk: MemoryDisk) -> None:
    log, _ = filled(disk)
    log.flush()
    job = log.begin_delete_records(30)
    with pytest.raises(OffsetOutOfRange):
        log.begin_truncate(29)

    run(log, job)

    log.truncate(30)
    assert (log.start_offset, log.next_offset) == (30, 30)


def test_a_torn_batch_is_looked_for_no_further_than_the_log_goes(disk: MemoryDisk) -> None:
    filled(disk)
    log = open_log(disk, **SMALL)
    assert log.recovered_offset > END

    log.truncate(END)

    assert log.recovered_offset == END


def test_the_observer_is_told_of_removed_segments_once_they_are_gone(disk: MemoryDisk) -> None:
    seen: list[events.Event] = []
    log = Log.open(disk, DIRECTORY, LogConfig(**SMALL), observe=seen.append)
    fill(log, 50)
    job = log.begin_truncate(END)
    assert not any(isinstance(event, events.SegmentsDeleted) for event in seen)

    run(log, job)

    assert events.SegmentsDeleted(log=DIRECTORY, count=5, bytes=29 * 134) in seen


# --- crashes -------------------------------------------------------------------------------------------------------


def test_before_its_job_has_run_a_crash_leaves_the_log_as_it_was(disk: MemoryDisk) -> None:
    log, values = filled(disk)
    log.flush()
    log.begin_truncate(END)

    log = open_log(disk.crash(keep="nothing"), **SMALL)

    assert (values_of(log), log.epochs.latest) == (values, 3)


Begin = Callable[[Log], Job | None]


def crashes(
    begin: Begin, keep: Keep, check: Callable[[Log, list[bytes]], bool], *, first: int = 0, stride: int = 3
) -> set[bool]:
    """Cut the power at steps of the job, and then at a step of the recovery; the answers of `check`.

    A step is a byte that is written, or any other change.
    """
    whole = MemoryDisk()
    log, _ = filled(whole)
    before = whole.steps
    run(log, begin(log))
    answers = set()
    for step in (*range(before + first, whole.steps, stride), whole.steps):
        disk = MemoryDisk()
        log, values = filled(disk)
        assert disk.steps == before
        job = begin(log)
        assert job is not None
        disk.power_off_after = step
        try:
            job.run()
        except PowerLoss:
            pass
        disk = disk.crash(keep=keep, seed=step)
        disk.power_off_after = step % 17  # a second crash, while the first one is being dealt with
        try:
            open_log(disk, **SMALL)
        except PowerLoss:
            pass
        disk = disk.crash(keep=keep, seed=step)
        log = open_log(disk, **SMALL)
        assert not log.damage
        answers.add(check(log, values))
        assert log.highest_epoch == 3
        new = [b"new", b"newer"]
        first = log.next_offset
        append(log, new, now_ns=NOW_NS * 2)
        log.flush()
        log = open_log(disk.crash(keep="nothing"), **SMALL)
        assert [bytes(value) for value in values_of(log)][-2:] == new
        assert log.next_offset == first + 2
    return answers


@pytest.mark.parametrize("keep", ["nothing", "everything", "prefix", "pages"])
def test_a_crash_at_any_step_leaves_all_or_the_part_that_stays(keep: Keep) -> None:
    def check(log: Log, values: list[bytes]) -> bool:
        found = values_of(log)
        if len(found) <= END:
            assert found == values[:END]
            assert log.epochs.entries == (EpochStart(1, 0), EpochStart(2, 12))
            return True
        assert found == values[: len(found)]
        assert len(found) >= 47
        assert log.epochs.latest == 3
        return False

    assert crashes(lambda log: log.begin_truncate(END), keep, check) == {True, False}


@pytest.mark.parametrize("keep", ["nothing", "everything", "random"])
@pytest.mark.parametrize("start", [0, 7, 14, 47, 50, 70])
def test_a_crash_at_any_step_leaves_all_or_a_log_that_starts_anew(keep: Keep, start: int) -> None:
    def check(log: Log, values: list[bytes]) -> bool:
        found = values_of(log)
        if not found:
            assert (log.start_offset, log.next_offset) == (start, start)
            assert log.epochs.entries == ()
            return True
        assert found == values[: len(found)]
        assert len(found) >= 47
        return False

    assert crashes(lambda log: log.begin_restart(start), keep, check, first=start % 9, stride=9) == {True, False}


def test_a_checkpoint_never_vouches_for_records_that_were_cut_off(disk: MemoryDisk) -> None:
    log, values = filled(disk)
    flush = log.begin_flush(monotonic_ns=0)
    assert flush is not None
    job = log.begin_truncate(END)
    flush.run()  # in another thread, before the truncation has ended it
    log.complete(flush)

    run(log, job)
    append(log, [b"not durable"])

    log = open_log(disk.crash(keep="nothing"), **SMALL)
    assert (values_of(log), log.damage) == (values[:END], [])


def test_aborts_that_are_cut_off_do_not_come_true_for_other_records(disk: MemoryDisk) -> None:
    one = owner(disk)
    for number in range(1, 6):
        one.publish(7, number, [b"a"])
        one.end(7, number, commit=False)
    one.log.flush()
    one.log.transactions.sync()
    whole = disk.crash(keep="everything")
    for step in range(60):
        disk = whole.crash(keep="everything")
        log = Log.open(disk, DIRECTORY, CONFIG)
        job = log.begin_truncate(3)
        assert job is not None
        disk.power_off_after = disk.steps + step
        try:
            job.run()
        except PowerLoss:
            pass
        disk = disk.crash(seed=step)
        log = Log.open(disk, DIRECTORY, CONFIG)
        if log.next_offset == 3:
            fill(log, 20)
            log.close()
            known = Log.open(disk, DIRECTORY, CONFIG).transactions.aborted()
            assert (set(known.offsets), known.replay_from) == ({0}, None)


# --- other jobs ----------------------------------------------------------------------------------------------------


def test_a_failed_sync_of_a_flush_that_a_truncation_has_ended_stops_the_log(
    disk: MemoryDisk, faulty: FaultyDisk
) -> None:
    log, _ = filled(faulty)
    flush = log.begin_flush(monotonic_ns=0)
    assert flush is not None
    job = log.begin_truncate(END)
    faulty.fail_next("sync")
    with pytest.raises(OSError, match="Input/output error"):
        flush.run()

    run(log, job)

    assert log.failure is not None
    assert log.failure.operation == "truncation"


def test_an_index_of_aborts_that_is_being_written_is_cut_like_the_others(disk: MemoryDisk) -> None:
    one = owner(disk)
    for number in range(1, 6):
        one.publish(7, number, [b"a"])
        one.end(7, number, commit=False)
        one.log.flush()
        if number == 2:
            one.log.transactions.sync()
    sync = one.log.transactions.begin_sync()
    assert sync is not None
    job = one.log.begin_truncate(7)
    sync.run()
    one.log.complete(sync)

    run(one.log, job)

    assert set(one.log.transactions.aborted().offsets) == {0, 2, 4}
    fill(one.log, 9)
    one.log.close()
    known = Log.open(disk, DIRECTORY, CONFIG).transactions.aborted()
    assert (set(known.offsets), known.replay_from) == ({0, 2, 4}, None)


@pytest.mark.parametrize("has_run", [False, True])
def test_a_log_that_is_closed_during_a_truncation_opens_whole_or_cut(disk: MemoryDisk, has_run: bool) -> None:
    log, values = filled(disk)
    log.flush()
    job = log.begin_truncate(END)
    assert job is not None
    if has_run:
        job.run()

    log.close()
    job.run()

    assert log.complete(job) is None
    del job
    assert disk.open_files == 0
    assert values_of(open_log(disk.crash(keep="nothing"), **SMALL)) == (values[:END] if has_run else values)


def test_an_abandoned_log_carries_out_no_truncation(disk: MemoryDisk) -> None:
    log, _ = filled(disk)
    flush = log.begin_flush(monotonic_ns=0)
    assert flush is not None
    job = log.begin_truncate(END)
    assert job is not None
    log.abandon()
    steps = disk.steps

    flush.run()
    job.run()

    assert log.complete(job) is None
    assert disk.steps == steps


def test_a_restart_calls_off_a_deletion(disk: MemoryDisk) -> None:
    log, _ = filled(disk)
    log.flush()
    deletion = log.begin_delete_records(30)
    assert deletion is not None
    job = log.begin_restart(5)
    deletion.run()  # before the job has ended it

    run(log, job)
    log.complete(deletion)
    fill(log, 10)
    log.flush()

    log = open_log(disk.crash(keep="nothing"), **SMALL)
    assert (log.start_offset, log.next_offset) == (5, 15)


@pytest.mark.parametrize("jobs_run", [1, 2, 3])
def test_a_restart_calls_off_a_compaction_in_each_of_its_steps(disk: MemoryDisk, jobs_run: int) -> None:
    log = open_log(disk, segment_bytes=400, cleanup="compact")
    for number in range(40):
        append(log, [b"%d" % number * 40], keys=[b"k"])
    log.flush()
    step: Job | None = log.begin_compaction(now_ns=NOW_NS)
    for _ in range(jobs_run - 1):
        assert step is not None
        step.run()
        step = log.complete(step)
    assert step is not None
    job = log.begin_restart(100)
    step.run()

    run(log, job)
    while step:
        step = log.complete(step)

    assert log.cleaned_offset == 0
    append(log, [b"new"])
    log.close()
    log = open_log(disk, segment_bytes=400, cleanup="compact")
    assert (log.start_offset, values_of(log), log.cleaned_offset) == (100, [b"new"], 0)
    assert not [path for path in disk.paths() if path.endswith((".cleaned", ".deleted"))]


def test_a_restart_leaves_nothing_of_the_log_but_its_highest_epoch(disk: MemoryDisk) -> None:
    one = owner(disk)
    for number in range(1, 6):
        one.publish(7, number, [b"a"])
        one.end(7, number, commit=False)
    log = one.log
    log.assign_epoch(4, 0)
    log.note_epoch(6)
    log.flush()
    log.transactions.sync()

    log.restart(3)

    assert (log.start_offset, log.next_offset, log.durable_offset, log.record_count, log.size) == (3, 3, 3, 0, 0)
    assert (log.epochs.entries, log.highest_epoch, log.last_timestamp) == ((), 6, 0)
    assert not log.transactions.aborted().offsets
    fill(log, 30)
    log.close()
    log = Log.open(disk, DIRECTORY, CONFIG)
    assert (log.start_offset, log.next_offset, log.highest_epoch) == (3, 33, 6)
    assert not log.transactions.aborted().offsets
    assert log.offset_at_time(0) == 3


def test_an_empty_log_restarts_where_it_is_without_any_work(disk: MemoryDisk) -> None:
    log = open_log(disk)
    assert log.begin_restart(0) is None
    log.restart(70)

    assert log.begin_restart(70) is None


def test_a_restart_where_a_segment_began_uses_none_of_its_files(disk: MemoryDisk) -> None:
    log, values = filled(disk)
    reader = log.reader(0)
    chunk = reader.read(max_bytes=100)
    job = log.begin_restart(0)
    assert log.offset_at_time(0) == 0

    run(log, job)
    new = fill(log, 20)

    assert values_of(log) == new
    assert bytes(chunk.records).endswith(values[0])
    log.close()
    assert values_of(open_log(disk.crash(keep="nothing"), **SMALL)) == new


# --- a disk that fails ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("operation", ["sync", "sync_directory", "pwrite", "remove", "truncate"])
def test_a_truncation_that_fails_stops_the_log(disk: MemoryDisk, faulty: FaultyDisk, operation: str) -> None:
    log, values = filled(faulty)
    faulty.fail_next(operation, EIO)  # type: ignore[arg-type]

    with pytest.raises(StorageFailed) as caught:
        log.truncate(END)

    assert caught.value is log.failure
    assert log.failure is not None
    assert log.failure.operation == "truncation"
    log.close()
    found = values_of(open_log(disk.crash(keep="nothing"), **SMALL))
    assert found == values[:END] or (found == values[: len(found)] and len(found) >= 47)


@pytest.mark.parametrize("suffix", ["leader-epochs.new", "checkpoint"])
def test_a_truncation_that_finds_no_room_is_carried_out_later(
    disk: MemoryDisk, faulty: FaultyDisk, suffix: str
) -> None:
    log, values = filled(faulty)
    faulty.fail_next("open", ENOSPC, path_suffix=suffix)

    with pytest.raises(StorageFull):
        log.truncate(END)

    assert log.is_truncating
    assert log.failure is None
    with pytest.raises(Conflict):
        append(log, [b"x"])
    with pytest.raises(Conflict):
        log.truncate(END - 1)
    log.truncate(END)
    assert values_of(log) == values[:END]
    append(log, [b"new"])
    log.flush()
    assert values_of(open_log(disk.crash(keep="nothing"), **SMALL)) == [*values[:END], b"new"]


def test_a_log_without_room_for_a_truncation_can_be_closed(disk: MemoryDisk, faulty: FaultyDisk) -> None:
    log, values = filled(faulty)
    log.flush()
    faulty.fail_next("open", ENOSPC, path_suffix="checkpoint")
    with pytest.raises(StorageFull):
        log.truncate(END)

    log.close()

    assert values_of(open_log(disk.crash(keep="nothing"), **SMALL)) == values
