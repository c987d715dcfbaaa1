"""What a log is after a crash, and after its disk lost what it had promised to keep."""

from goqueue import events
from goqueue.record import kernel
from goqueue.record.header import HEADER_BYTES
from goqueue.storage.checkpoint import SLOT_BYTES, SLOT_COUNT, SLOT_STRIDE_BYTES, Checkpoint, CheckpointFile
from goqueue.storage.config import LogConfig
from goqueue.storage.log import Log
from goqueue.testing import MemoryDisk
from tests.storage.logs import DIRECTORY, NOW_NS, append, fill, open_log, read_all, values_of

RECORD_BYTES = HEADER_BYTES + 100
FIRST = f"{DIRECTORY}/{0:020d}.log"
CHECKPOINT = f"{DIRECTORY}/checkpoint"


def flushed(disk: MemoryDisk, count: int, *, segment_records: int = 1000) -> tuple[Log, list[bytes]]:
    log = open_log(disk, segment_bytes=segment_records * RECORD_BYTES)
    values = fill(log, count)
    log.flush()
    return log, values


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


def test_the_first_flush_leaves_a_checkpoint_behind(disk: MemoryDisk) -> None:
    flushed(disk, 10)

    survived = disk.crash(keep="nothing")

    assert CheckpointFile(survived, CHECKPOINT).load() == Checkpoint(0, 10 * RECORD_BYTES, 10, NOW_NS + 9_000_000)


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
