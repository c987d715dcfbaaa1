"""What a log is after a crash, and after its disk lost what it had promised to keep."""

import errno

import pytest

from goqueue import events
from goqueue.errors import DirectoryUnusable, ReadFailed, StorageFull
from goqueue.record import kernel
from goqueue.storage.config import LogConfig
from goqueue.storage.log import Log
from goqueue.testing import FaultyDisk, MemoryDisk
from tests.storage.faulty import SETTINGS, check_reopened
from tests.storage.logs import (
    DIRECTORY,
    FIRST,
    NOW_NS,
    RECORD_BYTES,
    append,
    fill,
    flushed,
    open_log,
    read_all,
    values_of,
)

CHECKPOINT = f"{DIRECTORY}/checkpoint"


def test_a_torn_tail_is_cut_off_at_the_last_valid_record(disk: MemoryDisk) -> None:
    _, values = flushed(disk, 10)
    content = disk.read(FIRST)
    disk.write(FIRST, content + content[: RECORD_BYTES // 2])
    seen: list[events.Event] = []

    log = Log.open(disk, DIRECTORY, LogConfig(), observe=seen.append)

    assert values_of(log) == values
    assert disk.read(FIRST) == content
    assert events.TailTruncated(log=DIRECTORY, bytes=RECORD_BYTES // 2) in seen


def test_a_cut_tail_does_not_come_back_in_the_next_crash(disk: MemoryDisk) -> None:
    _, values = flushed(disk, 10)
    log = open_log(disk)
    append(log, [b"torn", b"whole but behind it"])
    disk = disk.crash(keep="everything")
    disk.flip_bit(FIRST, 10 * RECORD_BYTES + 36, 0)

    log = open_log(disk)
    append(log, [b"next"])
    log = open_log(disk.crash(keep="nothing"))

    assert values_of(log) == values


def test_what_was_written_but_not_synced_survives_the_end_of_the_process(disk: MemoryDisk) -> None:
    log, values = flushed(disk, 10)
    values += fill(log, 5)

    log = open_log(disk.crash(keep="everything"))

    assert values_of(log) == values
    assert log.durable_offset == 15


def test_unsynced_segments_that_do_not_join_up_are_removed(disk: MemoryDisk) -> None:
    log, values = flushed(disk, 5, segment_records=10)
    fill(log, 25)
    disk = disk.crash(keep="everything")
    disk.write(FIRST, disk.read(FIRST)[: RECORD_BYTES * 7])

    log = open_log(disk, segment_bytes=10 * RECORD_BYTES)

    assert len(values_of(log)) == 7
    assert log.segment_count == 1
    assert values_of(log)[:5] == values
    assert append(log, [b"next"]).first_offset == 7


def test_damage_before_the_checkpoint_is_never_cut_away(disk: MemoryDisk) -> None:
    log, values = flushed(disk, 10)
    content = disk.read(FIRST)
    disk.flip_bit(FIRST, 4 * RECORD_BYTES + 60, 0)

    log = open_log(disk)
    messages, gaps = read_all(log)

    assert len(disk.read(FIRST)) == len(content)
    assert [message.value for message in messages] == values[:4] + values[5:]
    assert [(gap.first_offset, gap.next_offset) for gap in gaps] == [(4, 5)]


def test_damage_in_the_active_segment_is_reported_when_the_log_is_opened(disk: MemoryDisk) -> None:
    flushed(disk, 100)
    disk.flip_bit(FIRST, 99 * RECORD_BYTES + 60, 0)

    log = open_log(disk)

    (damage,) = log.damage
    assert (damage.path, damage.first_offset, damage.next_offset) == (FIRST, 99, 100)
    assert log.next_offset == 100


def test_a_file_that_lost_durable_bytes_is_kept_and_offsets_are_not_given_out_again(disk: MemoryDisk) -> None:
    _, values = flushed(disk, 10)
    cut = disk.read(FIRST)[: 6 * RECORD_BYTES + 20]
    disk.write(FIRST, cut)

    log = open_log(disk)
    append(log, [b"next"])
    messages, gaps = read_all(log)

    assert disk.read(FIRST) == cut
    assert [(m.offset, m.value) for m in messages] == [*enumerate(values[:6]), (10, b"next")]
    assert [(gap.first_offset, gap.next_offset) for gap in gaps] == [(6, 10)]
    assert {damage.first_offset for damage in log.damage} == {6}


def test_a_log_whose_active_segment_vanished_goes_on_behind_it(disk: MemoryDisk) -> None:
    _, values = flushed(disk, 25, segment_records=10)
    disk.remove(f"{DIRECTORY}/{20:020d}.log")

    log = open_log(disk, segment_bytes=10 * RECORD_BYTES)
    append(log, [b"next"])
    messages, gaps = read_all(log)

    assert [message.value for message in messages] == [*values[:20], b"next"]
    assert messages[-1].offset == 25
    assert [(gap.first_offset, gap.next_offset) for gap in gaps] == [(20, 25)]


def test_a_log_that_lost_all_its_segments_says_so(disk: MemoryDisk) -> None:
    flushed(disk, 10)
    disk.remove(FIRST)

    log = open_log(disk)

    assert (log.start_offset, log.next_offset) == (10, 10)
    assert [(damage.first_offset, damage.next_offset) for damage in log.damage] == [(0, 10)]


def test_without_a_checkpoint_everything_is_looked_at_and_kept(disk: MemoryDisk) -> None:
    _, values = flushed(disk, 25, segment_records=10)
    disk.remove(CHECKPOINT)

    log = open_log(disk, segment_bytes=10 * RECORD_BYTES)

    assert values_of(log) == values
    assert not log.damage


def test_files_of_an_unfinished_deletion_are_cleared_away(disk: MemoryDisk) -> None:
    flushed(disk, 5)
    for name in (f"{0:020d}.log.deleted", f"{77:020d}.index", f"{3:020d}.log.cleaned", "leader-epochs.new"):
        disk.write(f"{DIRECTORY}/{name}", b"leftover")

    log = open_log(disk)

    assert len(values_of(log)) == 5
    assert sorted(path.rpartition("/")[2] for path in disk.paths()) == [f"{0:020d}.log", "checkpoint"]


def test_damaged_leader_epochs_are_reported_and_the_log_opens(disk: MemoryDisk) -> None:
    log, values = flushed(disk, 5)
    log.epochs.assign(3, 0)
    disk.flip_bit(f"{DIRECTORY}/leader-epochs", 17, 1)

    log = open_log(disk)

    assert values_of(log) == values
    assert [damage.path for damage in log.damage] == [f"{DIRECTORY}/leader-epochs"]


def test_a_cut_is_on_the_medium_before_the_log_is_used(disk: MemoryDisk) -> None:
    flushed(disk, 10)
    content = disk.read(FIRST)
    disk.write(FIRST, content + b"torn")

    open_log(disk)

    assert disk.crash(keep="nothing").read(FIRST) == content


def test_a_valid_record_whose_offset_does_not_follow_is_cut_off(disk: MemoryDisk) -> None:
    _, values = flushed(disk, 10)
    stray = kernel.encode([b"from elsewhere"])
    kernel.stamp(stray, first_offset=11, timestamp=NOW_NS * 2)
    disk.write(FIRST, disk.read(FIRST) + stray)

    log = open_log(disk)

    assert values_of(log) == values
    assert log.next_offset == 10


def test_a_segment_that_was_cut_off_does_not_come_back_behind_later_records() -> None:
    for seed in range(300):
        disk = MemoryDisk()
        log = open_log(disk, segment_bytes=80)
        append(log, [b"zero"])
        log.flush()
        append(log, [b"old1"])
        append(log, [b"old2"])
        disk = disk.crash(seed=seed)
        log = open_log(disk, segment_bytes=80)
        if log.next_offset == 1:
            append(log, [b"new1"])
            log.flush()
            assert values_of(open_log(disk.crash(seed=seed + 1), segment_bytes=80)) == [b"zero", b"new1"]


def test_a_log_that_cannot_be_read_is_not_opened(disk: MemoryDisk) -> None:
    log = open_log(disk, **SETTINGS)
    values = fill(log, 30)
    log.close()
    before = {path: disk.read(path) for path in disk.paths()}
    faulty = FaultyDisk(disk, seed=0)
    refused = 0
    for operation in ("entries", "pread", "open", "size"):
        for skip in range(10):
            faulty.fail_next(operation, skip=skip)  # type: ignore[arg-type]
            try:
                assert values_of(open_log(faulty, **SETTINGS)) == values
            except DirectoryUnusable as error:
                assert error.path.startswith(DIRECTORY)
                refused += 1
            except ReadFailed:
                pass
            faulty.heal()

    assert refused > 10
    assert {path: disk.read(path) for path in disk.paths()} == before


@pytest.mark.parametrize("rate", [0.02, 0.1])
def test_a_flipped_bit_while_a_log_is_opened_costs_no_record_before_the_checkpoint(rate: float) -> None:
    for seed in range(100):
        disk = MemoryDisk()
        log = open_log(disk, segment_bytes=30_000)
        values = fill(log, 300)
        log.close()

        faulty = FaultyDisk(disk, seed=seed, bit_flip=rate)
        log = open_log(faulty, segment_bytes=30_000)

        faulty.heal()
        assert values_of(log) == values, seed
        values += fill(log, 100)
        log.close()
        log = open_log(disk, segment_bytes=30_000)
        assert values_of(log) == values, seed
        for offset in range(0, 400, 20):
            assert log.offset_at_time(NOW_NS + offset * 1_000_000) == offset


def test_no_single_bit_of_an_index_keeps_a_log_from_being_opened(disk: MemoryDisk) -> None:
    log = open_log(disk)
    values = fill(log, 100)
    log.close()

    for suffix in (".index", ".timeindex"):
        path = FIRST.replace(".log", suffix)
        whole = disk.read(path)
        assert len(whole) == 4 * 16
        for position in range(len(whole)):
            for bit in (0, 7):
                disk.write(path, whole)
                disk.flip_bit(path, position, bit)
                log = open_log(disk)
                assert len(values_of(log)) == len(values)
                assert log.offset_at_time(NOW_NS + 90_000_000) == 90
                assert not log.damage
                log.close()
        disk.write(path, whole)


def test_a_segment_begun_just_before_the_end_of_a_process_is_durable_with_what_the_next_one_appends(
    disk: MemoryDisk, faulty: FaultyDisk
) -> None:
    log = open_log(faulty, **SETTINGS)
    values = fill(log, 7)
    log.flush()
    faulty.fail_next("pwrite", errno.ENOSPC, path_suffix=".log")
    with pytest.raises(StorageFull):
        fill(log, 1)
    assert log.segment_count == 2

    log = open_log(disk, **SETTINGS)
    values += fill(log, 3)
    log.flush()

    check_reopened(disk, values)
