"""The durable checkpoint: a valid slot at any time, and never one that lies."""

import pytest

from goqueue.errors import StorageFailed
from goqueue.storage.checkpoint import SLOT_BYTES, SLOT_COUNT, SLOT_STRIDE_BYTES, Checkpoint, CheckpointFile
from goqueue.testing import FaultyDisk, MemoryDisk
from tests.storage.faulty import SETTINGS, check_reopened
from tests.storage.logs import DIRECTORY, NOW_NS, RECORD_BYTES, append, fill, flushed, open_log, read_all, values_of

CHECKPOINT = f"{DIRECTORY}/checkpoint"


def test_one_damaged_checkpoint_slot_costs_nothing(disk: MemoryDisk) -> None:
    log, values = flushed(disk, 10)
    append(log, [b"more"])
    log.close()
    whole = disk.read(CHECKPOINT)

    for position in range(SLOT_BYTES):
        disk.write(CHECKPOINT, whole)
        disk.flip_bit(CHECKPOINT, position + position % SLOT_COUNT * SLOT_STRIDE_BYTES, position % 8)
        log = open_log(disk)
        assert values_of(log) == [*values, b"more"]
        assert not log.damage


def test_the_newest_checkpoint_slot_counts(disk: MemoryDisk) -> None:
    disk.make_directory("/data")
    file = CheckpointFile(disk, "/data/checkpoint")
    points = [Checkpoint(0, number * 10, number, 7) for number in range(9)]

    for point in points:
        file.write(point, sync=point.next_offset % 3 == 0)
        assert CheckpointFile(disk, "/data/checkpoint").load() == point


def test_a_lower_checkpoint_that_was_synced_leaves_no_trace_of_the_higher_one(disk: MemoryDisk) -> None:
    disk.make_directory("/data")
    file = CheckpointFile(disk, "/data/checkpoint")
    file.write(Checkpoint(0, 100, 10, 0), sync=True)
    file.write(Checkpoint(0, 110, 11, 0), sync=False)

    file.write(Checkpoint(0, 50, 5, 0), sync=True)

    content = disk.read("/data/checkpoint")
    for slot in range(3):
        disk.flip_bit("/data/checkpoint", slot * SLOT_STRIDE_BYTES, 0)
        assert CheckpointFile(disk, "/data/checkpoint").load() == Checkpoint(0, 50, 5, 0)
        disk.write("/data/checkpoint", content)


def test_no_crash_leaves_a_checkpoint_file_without_a_valid_slot(disk: MemoryDisk) -> None:
    disk.make_directory("/data")
    file = CheckpointFile(disk, "/data/checkpoint")
    file.make_room()
    disk.sync_directory("/data")
    disk.sync_directory("/")
    file.write(Checkpoint(0, 0, 0, 0), sync=True)
    for number in range(40):
        file.write(Checkpoint(0, number, number, 7), sync=number % 5 == 0)
        for seed in range(20):
            found = CheckpointFile(disk.crash(seed=seed), "/data/checkpoint").load()
            assert found is not None
            assert number // 5 * 5 <= found.next_offset <= number
        disk = disk.crash(keep="everything")
        file = CheckpointFile(disk, "/data/checkpoint")
        file.load()


def test_a_lost_checkpoint_does_not_turn_damage_into_the_end_of_the_log(disk: MemoryDisk) -> None:
    _, values = flushed(disk, 95, segment_records=10)
    disk.remove(CHECKPOINT)
    for base in (0, 90):
        disk.flip_bit(f"{DIRECTORY}/{base:020d}.log", 2 * RECORD_BYTES + 60, 0)
    disk.write(f"{DIRECTORY}/{90:020d}.log", disk.read(f"{DIRECTORY}/{90:020d}.log") + b"torn")

    log = open_log(disk, segment_bytes=10 * RECORD_BYTES)
    messages, gaps = read_all(log)

    assert [message.value for message in messages] == values[:2] + values[3:92] + values[93:]
    assert [(gap.first_offset, gap.next_offset) for gap in gaps] == [(2, 3), (92, 93)]
    assert log.next_offset == 95


def test_the_first_flush_leaves_a_checkpoint_behind(disk: MemoryDisk) -> None:
    flushed(disk, 10)

    survived = disk.crash(keep="nothing")

    assert CheckpointFile(survived, CHECKPOINT).load() == Checkpoint(0, 10 * RECORD_BYTES, 10, NOW_NS + 9_000_000)


def test_one_damaged_checkpoint_slot_costs_nothing_after_retention(disk: MemoryDisk) -> None:
    log = open_log(disk, **SETTINGS, retention_bytes=1_500)
    values = fill(log, 6)
    log.flush()
    values += fill(log, 30)
    log.maintain(now_ns=NOW_NS, monotonic_ns=0)
    start = log.start_offset
    assert start > 6

    for position in (20, 4096 + 20):
        disk.flip_bit(f"{DIRECTORY}/checkpoint", position)
        log = open_log(disk, **SETTINGS)
        assert (log.start_offset, values_of(log)) == (start, values[start:])
        assert not log.damage
        disk.flip_bit(f"{DIRECTORY}/checkpoint", position)


def test_a_checkpoint_that_was_written_but_not_synced_is_not_trusted_by_the_next_process(disk: MemoryDisk) -> None:
    faulty = FaultyDisk(disk, seed=0)
    faulty.fail_next("sync", path_suffix="checkpoint")
    with pytest.raises(StorageFailed):
        fill(open_log(faulty, **SETTINGS), 10)

    log = open_log(faulty, **SETTINGS)
    fill(log, 10)

    check_reopened(disk, [])


@pytest.mark.parametrize("cut_off", ["pwrite", "sync"])
def test_two_checkpoints_that_are_cut_off_in_a_row_cost_no_record(disk: MemoryDisk, cut_off: str) -> None:
    faulty = FaultyDisk(disk, seed=0)
    log = open_log(faulty, **SETTINGS, retention_bytes=402)
    values = fill(log, 5)
    log.flush()
    values += fill(log, 5)
    faulty.fail_next(cut_off, path_suffix="checkpoint", skip=1)  # type: ignore[arg-type]
    with pytest.raises(StorageFailed):
        log.flush()

    log = open_log(faulty, **SETTINGS, retention_bytes=402)
    acked = log.durable_offset
    log.maintain(now_ns=NOW_NS, monotonic_ns=0)
    start = log.start_offset
    values += fill(log, 5)
    faulty.fail_next("pwrite", path_suffix="checkpoint", written=30)
    with pytest.raises(StorageFailed):
        log.flush()

    recovered = open_log(disk.crash(keep="everything"), **SETTINGS)
    assert (acked, start) == (10, 7)
    assert values_of(recovered) == values[7:]
    assert not recovered.damage
