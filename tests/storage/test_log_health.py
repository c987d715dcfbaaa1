"""The disk fails: what follows from it, what does not, and what is never pretended."""

import errno

import pytest

from goqueue import events
from goqueue.errors import StorageFailed, StorageFull
from goqueue.storage.config import LogConfig
from goqueue.storage.log import Log
from goqueue.testing import FaultyDisk, MemoryDisk
from tests.storage.faulty import SETTINGS, check_reopened, check_stopped, flush_group
from tests.storage.logs import DIRECTORY, FIRST, append, fill, open_log, values_of

# --- syncs ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", [".log", "checkpoint", DIRECTORY])
def test_a_failed_sync_stops_the_log_and_is_never_made_good(disk: MemoryDisk, faulty: FaultyDisk, suffix: str) -> None:
    log = open_log(faulty, **SETTINGS)
    values = fill(log, 5)
    flush_group(log)
    more = fill(log, 5)  # rolls, so that names, indexes and the checkpoint have to be synced too

    faulty.fail_next("sync_directory" if suffix == DIRECTORY else "sync", path_suffix=suffix)
    flush_group(log)

    check_stopped(log, "sync")
    assert log.durable_offset == log.ackable_offset == 5
    assert values_of(log) == [*values, *more]
    log.close()
    recovered = open_log(disk.crash(keep="nothing"), **SETTINGS)
    assert values_of(recovered)[:5] == values
    assert not recovered.damage


def test_nothing_is_synced_again_after_a_sync_failed(disk: MemoryDisk, faulty: FaultyDisk) -> None:
    log = open_log(faulty, **SETTINGS)
    values = fill(log, 5)
    log.flush()
    fill(log, 1)
    faulty.fail_next("sync")
    with pytest.raises(StorageFailed):
        log.flush()
    steps = disk.steps

    check_stopped(log, "sync")
    log.close()

    assert disk.steps == steps  # not one byte was written, and no sync was tried
    check_reopened(disk, values)


def test_a_sync_that_fails_while_a_log_is_closed_is_told(disk: MemoryDisk, faulty: FaultyDisk) -> None:
    log = open_log(faulty, **SETTINGS)
    values = fill(log, 5)
    log.flush()
    fill(log, 1)

    faulty.fail_next("sync")
    with pytest.raises(StorageFailed):
        log.close()

    log.close()
    check_reopened(disk, values)


def test_a_sync_that_fails_after_the_log_rolled_stops_it_too(disk: MemoryDisk, faulty: FaultyDisk) -> None:
    log = open_log(faulty, **SETTINGS)
    values = fill(log, 5)
    flush_group(log)
    fill(log, 1)
    job = log.begin_flush(monotonic_ns=0)
    assert job
    fill(log, 10)
    faulty.fail_next("sync", path_suffix=FIRST)
    with pytest.raises(OSError, match="Input/output error") as caught:
        job.run()

    log.complete(job, caught.value)

    check_stopped(log, "sync")
    assert log.durable_offset == 5
    check_reopened(disk, values)


def test_a_failed_sync_of_a_flush_that_was_taken_over_stops_the_log(disk: MemoryDisk, faulty: FaultyDisk) -> None:
    log = open_log(faulty, **SETTINGS)
    values = fill(log, 5)
    log.flush()
    fill(log, 1)
    job = log.begin_flush(monotonic_ns=0)
    assert job
    faulty.fail_next("sync")
    with pytest.raises(OSError, match="Input/output error") as caught:
        job.run()

    log.complete(job, caught.value)

    assert log.failure
    assert log.durable_offset == 5
    check_reopened(disk, values)


def test_the_failure_is_told_to_the_observer_once(faulty: FaultyDisk) -> None:
    seen: list[events.Event] = []
    log = Log.open(faulty, DIRECTORY, LogConfig(), observe=seen.append)
    fill(log, 1)
    faulty.fail_next("sync")

    with pytest.raises(StorageFailed):
        log.flush()
    check_stopped(log, "sync")

    assert seen == [events.LogFailed(log=DIRECTORY, operation="sync", reason="Input/output error")]


# --- writes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("written", [0, 1, 34, 134, 135, 300])
def test_a_failed_write_stops_the_log_and_leaves_nothing_of_the_batch(
    disk: MemoryDisk, faulty: FaultyDisk, written: int
) -> None:
    log = open_log(faulty, **SETTINGS)
    values = fill(log, 3)
    log.flush()

    faulty.fail_next("pwrite", path_suffix=".log", written=written)
    with pytest.raises(StorageFailed, match="write of"):
        append(log, [b"x" * 100] * 3)

    check_stopped(log, "write")
    assert values_of(log) == values
    log.close()
    assert values_of(open_log(disk, **SETTINGS)) == values
    check_reopened(disk, values)


def test_what_was_acked_survives_a_write_that_fails_and_cannot_be_taken_back(
    disk: MemoryDisk, faulty: FaultyDisk
) -> None:
    log = open_log(faulty, **SETTINGS)
    values = fill(log, 3)
    log.flush()

    faulty.fail_next("pwrite", path_suffix=".log", written=200)
    faulty.fail_next("truncate", path_suffix=".log")
    with pytest.raises(StorageFailed):
        append(log, [b"x" * 100] * 3)

    check_stopped(log, "write")
    assert values_of(log) == values
    whole = open_log(disk.crash(keep="everything"), **SETTINGS)
    assert values_of(whole)[:3] == values
    assert len(values_of(whole)) == 4  # the first record of the batch was whole; nobody was told that it is not there
    check_reopened(disk, values)


def test_a_segment_that_cannot_be_begun_stops_the_log(disk: MemoryDisk, faulty: FaultyDisk) -> None:
    log = open_log(faulty, **SETTINGS)
    values = fill(log, 7)
    log.flush()

    faulty.fail_next("open", path_suffix=".log")
    with pytest.raises(StorageFailed):
        append(log, [b"x" * 100] * 3)

    check_stopped(log, "write")
    assert values_of(log) == values
    check_reopened(disk, values)


@pytest.mark.parametrize("written", [0, 1, 134, 300])
def test_a_full_disk_refuses_a_batch_as_a_whole_and_takes_it_later(
    disk: MemoryDisk, faulty: FaultyDisk, written: int
) -> None:
    log = open_log(faulty, **SETTINGS)
    values = fill(log, 3)
    log.flush()
    faulty.fail_next("pwrite", errno.ENOSPC, path_suffix=".log", written=written)

    with pytest.raises(StorageFull) as caught:
        append(log, [b"x" * 100] * 3)

    assert caught.value.retryable
    assert log.failure is None
    assert values_of(log) == values
    assert values_of(open_log(disk.crash(keep="everything"), **SETTINGS)) == values


def test_after_the_disk_was_full_the_next_append_succeeds(disk: MemoryDisk, faulty: FaultyDisk) -> None:
    log = open_log(faulty, **SETTINGS)
    values = fill(log, 3)
    for operation in ("pwrite", "open"):
        faulty.fail_next(operation, errno.ENOSPC, path_suffix=".log", written=70)  # type: ignore[arg-type]
        with pytest.raises(StorageFull):
            fill(log, 9)
        values = values_of(log)

    values += fill(log, 9)
    log.flush()

    assert not faulty._injector.requests
    check_reopened(disk, values)


def test_a_full_disk_that_does_not_let_go_of_half_a_batch_stops_the_log(disk: MemoryDisk, faulty: FaultyDisk) -> None:
    log = open_log(faulty, **SETTINGS)
    values = fill(log, 3)
    log.flush()
    faulty.fail_next("pwrite", errno.ENOSPC, path_suffix=".log", written=200)
    faulty.fail_next("truncate", path_suffix=".log")

    with pytest.raises(StorageFailed):
        append(log, [b"x" * 100] * 3)

    check_stopped(log, "write")
    check_reopened(disk, values)
