"""A log has no files until something is written to it, whatever that is, and whatever fails meanwhile."""

from collections.abc import Callable
from errno import EIO, ENOSPC

import pytest

from goqueue.errors import StorageFailed, StorageFull
from goqueue.record import kernel
from goqueue.record.header import Flags
from goqueue.storage.log import Log
from goqueue.testing import FaultyDisk, MemoryDisk
from goqueue.testing.faulty_disk import Operation
from goqueue.testing.memory_disk import PowerLoss
from tests.storage.logs import DIRECTORY, NOW_NS, append, fill, open_log, read_all, values_of


def test_an_open_log_that_was_never_written_to_leaves_the_disk_as_it_is(disk: MemoryDisk) -> None:
    log = open_log(disk)

    assert (log.start_offset, log.next_offset, log.durable_offset, log.highest_epoch) == (0, 0, 0, -1)
    assert read_all(log) == ([], [])
    assert (log.offset_at_time(NOW_NS), log.size, log.record_count) == (0, 0, 0)
    log.truncate(0)
    log.restart(0)
    log.flush()
    log.maintain(now_ns=NOW_NS, monotonic_ns=0)
    log.look_for_room()
    assert log.begin_seal() is None
    assert log.begin_flush(monotonic_ns=0) is None
    log.close()

    assert disk.steps == 0
    assert not log.has_files


def _append_stored(log: Log) -> None:
    records = kernel.encode([b"a"])
    kernel.stamp(records, first_offset=0, timestamp=NOW_NS)
    log.append_stored(records)


def _append_transactional(log: Log) -> None:
    log.append(kernel.encode([b"a"], flags=Flags.TRANSACTIONAL), now_ns=NOW_NS, flags_allowed=Flags.TRANSACTIONAL)


@pytest.mark.parametrize(
    ("write", "is_so"),
    [
        (lambda log: append(log, [b"a"]), lambda log: values_of(log) == [b"a"]),
        (_append_stored, lambda log: values_of(log) == [b"a"]),
        (_append_transactional, lambda log: log.transactions.has_any and log.next_offset == 1),
        (lambda log: log.append_stored(b"", end_offset=7), lambda log: log.has_gaps and log.next_offset == 7),
        (lambda log: log.note_epoch(3), lambda log: log.highest_epoch == 3),
        (lambda log: log.assign_epoch(3, 0), lambda log: log.epochs.entries == ((3, 0),)),
        (lambda log: log.copy_epoch(3, 0), lambda log: log.epochs.entries == ((3, 0),)),
        (lambda log: log.mark_delayed(), lambda log: log.has_delays),
        (lambda log: log.restart(7), lambda log: log.start_offset == log.next_offset == 7),
    ],
    ids=[
        "append",
        "append_stored",
        "transaction",
        "gap",
        "note_epoch",
        "assign_epoch",
        "copy_epoch",
        "delays",
        "restart",
    ],
)
def test_each_first_write_makes_the_files_and_is_durable_after_a_flush(
    disk: MemoryDisk, write: Callable[[Log], object], is_so: Callable[[Log], bool]
) -> None:
    log = open_log(disk)

    write(log)
    log.flush()

    assert log.has_files
    found = open_log(disk.crash(keep="nothing"))
    assert is_so(found)
    assert not found.damage


@pytest.mark.parametrize("keep", ["nothing", "everything", "some"])
def test_a_power_cut_at_any_step_of_the_first_write_leaves_a_sound_log(keep: str) -> None:
    for steps in range(60):
        disk = MemoryDisk()
        disk.power_off_after = steps
        log, acked = open_log(disk), 0
        try:
            fill(log, 3)
            log.flush()
            acked = 3
            log.note_epoch(4)
            fill(log, 2)
        except PowerLoss:
            pass
        after = disk.crash(seed=steps) if keep == "some" else disk.crash(keep=keep)  # type: ignore[arg-type]

        found = open_log(after)

        assert not found.damage
        assert acked <= len(values_of(found)) <= 5
        fill(found, 1)
        found.close()
        assert len(values_of(open_log(after.crash()))) == found.next_offset


def test_what_is_noted_of_an_epoch_survives_though_there_was_no_record_and_no_flush(disk: MemoryDisk) -> None:
    open_log(disk).note_epoch(9)

    assert open_log(disk.crash(keep="nothing")).highest_epoch == 9


def test_the_owner_may_know_of_an_epoch_that_no_file_has(disk: MemoryDisk) -> None:
    log = Log.open(disk, DIRECTORY, noted_epoch=5)
    steps = disk.steps
    log.note_epoch(5)
    assert (log.highest_epoch, disk.steps) == (5, steps)
    log.note_epoch(6)

    assert Log.open(disk.crash(), DIRECTORY, noted_epoch=5).highest_epoch == 6
    assert Log.open(disk.crash(), DIRECTORY, noted_epoch=7).highest_epoch == 7


FIRST_STEPS: list[tuple[Operation, str]] = [
    ("make_directory", "/log"),
    ("open", "/checkpoint"),
    ("pwrite", "/checkpoint"),
    ("sync_directory", "/log"),
    ("sync_directory", "/data"),
    ("open", ".log"),
    ("sync", "/checkpoint"),
]


@pytest.mark.parametrize(("operation", "suffix"), FIRST_STEPS, ids=[f"{name}{path}" for name, path in FIRST_STEPS])
def test_a_full_disk_refuses_the_first_write_and_the_next_one_completes_what_was_begun(
    disk: MemoryDisk, operation: Operation, suffix: str
) -> None:
    faulty = FaultyDisk(disk, seed=0)
    log = open_log(faulty)
    faulty.fail_next(operation, ENOSPC, path_suffix=suffix)

    with pytest.raises(StorageFull):
        append(log, [b"a"])

    assert log.refusal is not None
    assert open_log(disk).next_offset == 0
    append(log, [b"b"])
    log.flush()
    assert values_of(open_log(disk.crash(keep="nothing"))) == [b"b"]


@pytest.mark.parametrize(("operation", "suffix"), FIRST_STEPS, ids=[f"{name}{path}" for name, path in FIRST_STEPS])
def test_any_other_error_stops_the_log_and_the_next_process_begins_anew(
    disk: MemoryDisk, operation: Operation, suffix: str
) -> None:
    faulty = FaultyDisk(disk, seed=0)
    log = open_log(faulty)
    faulty.fail_next(operation, EIO, path_suffix=suffix)

    for _ in range(2):
        with pytest.raises(StorageFailed):
            append(log, [b"a"])
    log.close()

    again = open_log(faulty)
    assert (again.next_offset, again.damage) == (0, [])
    append(again, [b"b"])
    again.flush()
    assert values_of(open_log(disk.crash(keep="nothing"))) == [b"b"]


def test_what_a_full_disk_has_left_of_a_first_write_opens_on_a_disk_that_is_still_full(disk: MemoryDisk) -> None:
    disk.capacity_bytes = disk.used_bytes + 5_000  # not enough for a checkpoint
    with pytest.raises(StorageFull):
        append(open_log(disk), [b"a"])

    log = open_log(disk)
    steps = disk.steps

    with pytest.raises(StorageFull):
        append(log, [b"a"])
    assert disk.steps > steps
    disk.capacity_bytes = None
    append(log, [b"a"])
    log.close()
    assert values_of(open_log(disk.crash())) == [b"a"]
