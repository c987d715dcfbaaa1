"""The disk fails: what follows from it, what does not, and what is never pretended."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from random import Random
from typing import NamedTuple

import pytest

from goqueue import events
from goqueue.errors import DirectoryUnusable, GoQueueError, ReadFailed, StorageFailed, StorageFull
from goqueue.record import kernel
from goqueue.record.message import Message
from goqueue.storage.config import Cleanup, LogConfig
from goqueue.storage.log import Log
from goqueue.storage.reader import Chunk
from goqueue.testing import FaultyDisk, MemoryDisk
from goqueue.testing.inode import Keep
from tests.storage.logs import DIRECTORY, NOW_NS, ORIGIN, append, fill, open_log, read_all, values_of

FIRST = f"{DIRECTORY}/{0:020d}.log"
SETTINGS = {"segment_bytes": 1_000}


@pytest.fixture
def faulty(disk: MemoryDisk) -> FaultyDisk:
    return FaultyDisk(disk, seed=0)


def flush_group(log: Log) -> None:
    """What an owner with threads does: the job runs somewhere else, and what it raised is brought back."""
    job = log.begin_flush(monotonic_ns=0)
    assert job
    error = None
    try:
        job.run()
    except OSError as raised:
        error = raised
    log.complete(job, error)


def check_stopped(log: Log, operation: str) -> None:
    """The log says why it takes no more writes, and says the same to everyone who tries."""
    failure = log.failure
    assert failure
    assert (failure.operation, failure.retryable) == (operation, True)
    assert failure.path.startswith(DIRECTORY)
    durable = log.durable_offset
    end = log.next_offset
    for attempt in (lambda: append(log, [b"more"]), log.flush, lambda: log.truncate(0)):
        with pytest.raises(StorageFailed) as caught:
            attempt()
        assert caught.value is failure
    log.maintain(now_ns=NOW_NS, monotonic_ns=10**12)
    log.roll_if_old(now_ns=NOW_NS * 2)
    assert log.begin_flush(monotonic_ns=10**12) is None
    assert log.begin_compaction(now_ns=NOW_NS) is None
    assert log.expire(now_ns=NOW_NS * 2) is None
    assert log.failure is failure
    assert (log.durable_offset, log.next_offset) == (durable, end)


def check_reopened(disk: MemoryDisk, values: list[bytes]) -> None:
    """The machine crashed and kept nothing that was not synced; these values are there, and the log takes more."""
    log = open_log(disk.crash(keep="nothing"), **SETTINGS)
    assert values_of(log) == values
    assert not log.damage
    assert append(log, [b"next"]).first_offset == len(values)


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


@pytest.mark.parametrize("operation", ["open", "pwrite", "sync"])
@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_an_index_that_cannot_be_written_costs_no_record(
    disk: MemoryDisk, faulty: FaultyDisk, operation: str, suffix: str
) -> None:
    log = open_log(faulty, **SETTINGS)
    values = fill(log, 30)
    faulty.fail_next(operation, path_suffix=suffix, written=5)  # type: ignore[arg-type]

    try:
        log.flush()
    except StorageFailed:
        assert operation == "sync"
        assert values_of(log) == values
        return

    assert log.durable_offset == 30
    check_reopened(disk, values)


# --- reads ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("operation", ["pread", "open"])
def test_a_failed_read_is_told_and_nothing_follows_from_it(disk: MemoryDisk, operation: str) -> None:
    log = open_log(disk, **SETTINGS)
    values = fill(log, 30)
    log.close()
    faulty = FaultyDisk(disk, seed=0)
    log = open_log(faulty, **SETTINGS)

    for attempt in (
        lambda: log.read(8),
        lambda: log.offset_at_time(NOW_NS + 16_000_000),
        lambda: log.reader(27).read(max_bytes=1),
    ):
        faulty.fail_next(operation)  # type: ignore[arg-type]
        with pytest.raises(ReadFailed, match=DIRECTORY) as caught:
            attempt()
        assert caught.value.retryable
        assert log.failure is None
        assert not log.damage
        attempt()

    values += fill(log, 10)
    log.flush()
    assert values_of(log) == values
    check_reopened(disk, values)


def test_a_reader_goes_on_where_its_read_failed(disk: MemoryDisk, faulty: FaultyDisk) -> None:
    log = open_log(faulty, **SETTINGS)
    values = fill(log, 30)
    reader = log.reader(0)
    found = []
    while reader.offset < 30:
        faulty.fail_next("pread", path_suffix=".log")
        with pytest.raises(ReadFailed):
            reader.read(max_bytes=300)
        chunk = reader.read(max_bytes=300)
        assert not chunk.gaps
        found += kernel.columns(chunk.records, "value").value_data

    assert bytes(found) == b"".join(values)


@pytest.mark.parametrize("operation", ["append", "roll_if_old", "expire", "truncate"])
def test_a_read_that_fails_inside_another_call_is_told_as_what_it_is(disk: MemoryDisk, operation: str) -> None:
    log = open_log(disk, **SETTINGS)
    values = fill(log, 30)
    log.close()
    faulty = FaultyDisk(disk, seed=0)
    log = open_log(faulty, **SETTINGS)
    faulty.fail_next("pread")
    attempts = {
        "append": lambda: append(log, [b"more"]),
        "roll_if_old": lambda: log.roll_if_old(now_ns=NOW_NS),
        "expire": lambda: log.expire(now_ns=NOW_NS),
        "truncate": lambda: log.truncate(25),
    }

    with pytest.raises(ReadFailed):
        attempts[operation]()

    assert log.failure is None
    assert values_of(log) == values
    attempts[operation]()


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


# --- wrong bytes ---------------------------------------------------------------------------------------------------


def chunks(log: Log, offset: int, *, max_bytes: int) -> Iterator[tuple[int, Chunk]]:
    """Everything from the offset on, each chunk with the offset at which it was asked for."""
    reader = log.reader(offset)
    while reader.offset < log.next_offset:
        first = reader.offset
        yield first, reader.read(max_bytes=max_bytes)


def lost_offsets(chunk: Chunk) -> list[int]:
    return [offset for gap in chunk.gaps for offset in range(gap.first_offset, gap.next_offset)]


def check_read(log: Log, values: list[bytes], offset: int, *, max_bytes: int) -> None:
    """What is read from the offset on is what was appended, and what is missing is told."""
    for first, chunk in chunks(log, offset, max_bytes=max_bytes):
        columns = kernel.columns(chunk.records, "offset", "value")
        found = memoryview(columns.offsets).cast("q").tolist()
        assert sorted(found + lost_offsets(chunk)) == list(range(first, chunk.next_offset))
        assert columns.value_data == b"".join(values[number] for number in found)


@pytest.mark.parametrize("rate", [0.01, 0.1, 0.5])
def test_a_flipped_bit_on_its_way_from_the_disk_is_never_taken_for_data(rate: float) -> None:
    disk = MemoryDisk()
    log = open_log(disk, segment_bytes=20_000)
    values = fill(log, 400)
    log.close()
    for seed in range(30):
        rng = Random(seed)
        faulty = FaultyDisk(disk, seed=seed)
        log = open_log(faulty, segment_bytes=20_000)
        faulty.rates["bit_flip"] = rate

        for _ in range(10):
            check_read(log, values, rng.randrange(400), max_bytes=rng.choice([1, 500, 5_000, 1 << 20]))
            log.offset_at_time(NOW_NS + rng.randrange(400) * 1_000_000)

        faulty.heal()
        assert values_of(log) == values
        for offset in range(0, 400, 20):
            assert log.read(offset, max_bytes=1).next_offset == offset + 1
            assert log.offset_at_time(NOW_NS + offset * 1_000_000) == offset
        log.close()


def test_a_time_that_was_looked_up_on_a_bad_day_of_the_disk_is_not_remembered() -> None:
    disk = MemoryDisk()
    log = open_log(disk, segment_bytes=20_000)
    fill(log, 400)
    log.close()
    for seed in range(20):
        faulty = FaultyDisk(disk, seed=seed)
        log = open_log(faulty, segment_bytes=20_000)
        faulty.rates["bit_flip"] = 0.9

        for offset in range(0, 400, 20):
            log.offset_at_time(NOW_NS + offset * 1_000_000)
        faulty.heal()

        found = [log.offset_at_time(NOW_NS + offset * 1_000_000) for offset in range(0, 400, 20)]
        assert found == list(range(0, 400, 20))
        log.close()


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


# --- compaction ----------------------------------------------------------------------------------------------------

COMPACTED = {"segment_bytes": 1_000, "cleanup": "compact"}


def fill_keys(log: Log, count: int) -> dict[bytes, bytes]:
    """Append values under a few keys, over and over; what each key has in the end."""
    latest = {}
    for number in range(count):
        key, value = b"%d" % (number % 7), b"%d" % number
        append(log, [value], keys=[key], now_ns=NOW_NS + number)
        latest[key] = value
    return latest


def latest_of(log: Log) -> dict[bytes, bytes]:
    messages, gaps = read_all(log)
    assert not gaps
    return {message.key: message.value for message in messages if message.key is not None}


@pytest.mark.parametrize("operation", ["open", "pread", "append", "sync", "sync_directory", "rename", "remove"])
def test_a_compaction_that_fails_anywhere_costs_no_record(operation: str) -> None:
    faults = 0
    for skip in range(100):
        disk = MemoryDisk()
        faulty = FaultyDisk(disk, seed=0)
        log = open_log(faulty, **COMPACTED)
        latest = fill_keys(log, 100)
        log.flush()
        faulty.fail_next(operation, skip=skip)  # type: ignore[arg-type]

        log.maintain(now_ns=NOW_NS, monotonic_ns=0)

        if not faulty.injected:
            break
        faults += 1
        faulty.heal()
        assert latest_of(log) == latest, skip
        for keep in ("nothing", "everything"):
            recovered = open_log(disk.crash(keep=keep), **COMPACTED)
            assert latest_of(recovered) == latest, (skip, keep)
            assert recovered.next_offset == recovered.durable_offset == 100
            assert not recovered.damage
    else:
        raise AssertionError("the compaction never came to its end")
    assert faults


def test_a_disk_that_fails_while_copies_are_put_in_place_stops_the_log(disk: MemoryDisk, faulty: FaultyDisk) -> None:
    log = open_log(faulty, **COMPACTED)
    latest = fill_keys(log, 100)
    log.flush()
    faulty.fail_next("rename", path_suffix=".index")

    log.maintain(now_ns=NOW_NS, monotonic_ns=0)

    check_stopped(log, "clean-up")
    assert latest_of(log) == latest
    assert latest_of(open_log(disk.crash(keep="nothing"), **COMPACTED)) == latest


# --- what the checkpoint speaks of stays where it is ---------------------------------------------------------------


@pytest.mark.parametrize("flush", ["group", "interval", "none"])
def test_retention_ahead_of_the_checkpoint_costs_no_record(disk: MemoryDisk, flush: str) -> None:
    log = open_log(disk, **SETTINGS, retention_bytes=1_500, flush=flush)
    values = fill(log, 5)
    log.flush()
    values += fill(log, 30)

    job = log.expire(now_ns=NOW_NS)

    assert job is None
    recovered = open_log(disk.crash(keep="everything"), **SETTINGS)
    assert values_of(recovered) == values
    assert not recovered.damage
    log = open_log(disk.crash(keep="nothing"), **SETTINGS)
    assert values_of(log) == values[:5]


def test_compaction_ahead_of_the_checkpoint_costs_no_record(disk: MemoryDisk) -> None:
    log = open_log(disk, **COMPACTED)
    number = 0
    while log.segment_count < 4:  # the checkpoint stands at the very end of a segment that is sealed by now
        log.flush()
        append(log, [b"%d" % number] * 2, keys=[b"a", b"b"], now_ns=NOW_NS + number)
        number += 1
    durable = log.durable_offset

    log._run(log.begin_compaction(now_ns=NOW_NS))

    for keep, end in (("nothing", durable), ("everything", log.next_offset)):
        recovered = open_log(disk.crash(keep=keep), **COMPACTED)
        assert recovered.next_offset == end
        assert latest_of(recovered) == {b"a": b"%d" % (end // 2 - 1), b"b": b"%d" % (end // 2 - 1)}
        assert not recovered.damage


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


def test_a_compacted_log_survives_the_loss_of_its_checkpoint(disk: MemoryDisk) -> None:
    log = open_log(disk, **COMPACTED)
    latest = fill_keys(log, 100)
    log.maintain(now_ns=NOW_NS, monotonic_ns=0)
    log.close()
    disk.remove(f"{DIRECTORY}/checkpoint")

    log = open_log(disk, **COMPACTED)

    assert latest_of(log) == latest
    assert (log.next_offset, log.damage) == (100, [])


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


def test_retention_makes_room_on_a_disk_too_full_for_the_leader_epochs(disk: MemoryDisk) -> None:
    log = open_log(disk, **SETTINGS, retention_bytes=1_500)
    log.epochs.assign(1, 0)
    values = fill(log, 10)
    log.epochs.assign(2, 10)
    values += fill(log, 30)
    log.flush()
    disk.capacity_bytes = disk.used_bytes

    log.maintain(now_ns=NOW_NS, monotonic_ns=0)

    assert log.failure is None
    assert log.start_offset > 10
    assert values_of(log) == values[log.start_offset :]
    assert append(log, [b"fits again"]).first_offset == 40


def test_a_segment_that_is_all_damage_does_not_expire_before_its_time(disk: MemoryDisk) -> None:
    log = open_log(disk, segment_bytes=100)
    values = fill(log, 5)
    log.close()
    disk.flip_bit(FIRST, 50)

    log = open_log(disk, segment_bytes=100)
    log.maintain(now_ns=NOW_NS, monotonic_ns=0)

    messages, gaps = read_all(log)
    assert [message.value for message in messages] == values[1:]
    assert [(gap.first_offset, gap.next_offset) for gap in gaps] == [(0, 1)]


def test_a_checkpoint_that_was_written_but_not_synced_is_not_trusted_by_the_next_process(disk: MemoryDisk) -> None:
    faulty = FaultyDisk(disk, seed=0)
    faulty.fail_next("sync", path_suffix="checkpoint")
    with pytest.raises(DirectoryUnusable):
        open_log(faulty, **SETTINGS)

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


# --- everything at once --------------------------------------------------------------------------------------------

KINDS = ("short_write", "write_error", "no_space", "sync_error", "read_error", "bit_flip", "name_error")
STEPS = {"append": 12, "flush": 3, "flush_group": 4, "read": 6, "seek": 2, "truncate": 1, "maintain": 2, "restart": 1}


class Entry(NamedTuple):
    """A record, as far as the soup is concerned."""

    key: bytes
    value: bytes


class Soup:
    """A workload on a disk that fails in every way, and what was promised to it.

    `entries` is what was appended, `attempted` all that was ever handed to the log under an offset: a batch whose
    append failed may still be there after a restart, but nothing else may. Below `acked` all must be as it was.
    """

    def __init__(self, seed: int) -> None:
        self._rng = Random(seed)
        self._rates = {kind: self._rng.choice((0.0, 0.002, 0.02)) for kind in KINDS}
        self._config = LogConfig(
            segment_bytes=1_500,
            cleanup=self._rng.choice((Cleanup.DELETE, Cleanup.COMPACT)),
            retention_bytes=self._rng.choice((0, 20_000)),
        )
        self._disk = MemoryDisk()
        self._faulty = FaultyDisk(self._disk, seed=seed)
        self._now_ns = NOW_NS
        self.attempted: dict[int, set[Entry]] = {}
        self.entries: list[Entry] = []
        self.acked = 0
        self._log = self._open()

    def run(self, steps: int) -> None:
        for step in self._rng.choices(list(STEPS), list(STEPS.values()), k=steps):
            self._now_ns += 1_000_000
            try:
                getattr(self, f"_{step}")()
            except (StorageFull, ReadFailed):
                pass  # nothing happened
            except StorageFailed as failure:
                assert failure is self._log.failure
            if self._log.failure:
                with self._without(*KINDS):
                    self._check_read(self._log.start_offset)
                self._restart()
        self._rates = dict.fromkeys(KINDS, 0.0)
        self._cut_power(keep="nothing")
        self._check_recovered()

    def _append(self) -> None:
        batch = [
            Entry(b"%d" % self._rng.randrange(20), self._rng.randbytes(self._rng.randrange(200)))
            for _ in range(self._rng.randrange(1, 6))
        ]
        for offset, entry in enumerate(batch, start=self._log.next_offset):
            self.attempted.setdefault(offset, set()).add(entry)
        keys, values = zip(*batch, strict=True)
        append(self._log, values, keys=list(keys), now_ns=self._now_ns)
        self.entries += batch

    def _flush(self) -> None:
        self._log.flush()
        self.acked = self._log.durable_offset
        assert self.acked == self._log.next_offset

    def _flush_group(self) -> None:
        job = self._log.begin_flush(monotonic_ns=self._now_ns)
        try:
            self._append()
        finally:
            if job:
                error = None
                try:
                    job.run()
                except OSError as raised:
                    error = raised
                self._log.complete(job, error)
                self.acked = self._log.durable_offset

    def _read(self) -> None:
        self._check_read(self._rng.randint(self._log.start_offset, self._log.next_offset))

    def _seek(self) -> None:
        offset = self._log.offset_at_time(self._now_ns - self._rng.randrange(100) * 1_000_000)
        assert self._log.start_offset <= offset <= self._log.next_offset

    def _truncate(self) -> None:
        if self._config.compacts:
            return  # whoever compacts no further than he truncates, as a replica does, loses no key by it
        end = self._rng.randint(max(self._log.start_offset, self._log.next_offset - 20), self._log.next_offset)
        self.acked = min(self.acked, end)
        self._log.truncate(end)
        del self.entries[end:]
        self.acked = self._log.durable_offset

    def _maintain(self) -> None:
        try:
            self._log.maintain(now_ns=self._now_ns, monotonic_ns=self._now_ns)
        finally:
            self.acked = self._log.durable_offset

    def _restart(self) -> None:
        """End the process, decently or not, or the machine; then start again, with a disk as bad as before."""
        match self._rng.choice(("close", "kill", "power cut")):
            case "close":
                with suppress(StorageFailed):
                    self._log.close()
            case "power cut":
                self._cut_power(keep="random")
        self._check_recovered()

    def _cut_power(self, *, keep: Keep) -> None:
        self._disk = self._disk.crash(keep=keep, seed=self._rng.getrandbits(32))
        self._faulty = FaultyDisk(self._disk, seed=self._rng.getrandbits(32))

    def _open(self) -> Log:
        """Try with the disk as it is, but not for ever."""
        self._faulty.rates.update(self._rates)
        for _ in range(5):
            with suppress(GoQueueError):
                return Log.open(self._faulty, DIRECTORY, self._config)
        with self._without(*KINDS):
            return Log.open(self._faulty, DIRECTORY, self._config)

    def _check_recovered(self) -> None:
        """All that was acked is there, all that is there was handed to the log, and nothing is called damaged."""
        faults_before = len(self._faulty.injected)
        self._log = self._open()
        flipped = {fault.path for fault in self._faulty.injected[faults_before:] if fault.kind == "bit_flip"}
        with self._without(*KINDS):
            messages, gaps = read_all(self._log)
        found = {message.offset: Entry(message.key or b"", message.value) for message in messages}
        # A log that could not read how far it was compacted takes the holes for losses; nothing else is called one.
        assert not gaps or f"{DIRECTORY}/compaction" in flipped
        assert not self._log.damage or flipped
        assert self._log.next_offset >= self.acked
        for offset, entry in found.items():
            assert entry in self.attempted[offset]
            assert offset >= self.acked or entry == self.entries[offset]
        for offset in range(self._log.start_offset, self._log.next_offset):
            assert offset in found or self._was_replaced(offset, found), offset
            if offset >= self.acked and offset in found:
                self.entries[offset:] = [found[offset]]
        del self.entries[self._log.next_offset :]
        self.acked = self._log.durable_offset

    def _was_replaced(self, offset: int, found: dict[int, Entry]) -> bool:
        """Whether compaction could take the record away, because a later one bears its key."""
        key = self.entries[offset].key
        return self._config.compacts and any(later > offset and entry.key == key for later, entry in found.items())

    def _check_read(self, offset: int) -> None:
        """What is read from the offset on is what was appended; what is missing is told, or was compacted away."""
        max_bytes = self._rng.choice((1, 300, 5_000))
        for first, chunk in chunks(self._log, offset, max_bytes=max_bytes):
            messages = kernel.decode(chunk.records, ORIGIN, Message)
            found = [message.offset for message in messages]
            if not self._config.compacts:
                assert sorted(found + lost_offsets(chunk)) == list(range(first, chunk.next_offset))
            for message in messages:
                assert (message.key, message.value) == self.entries[message.offset]

    @contextmanager
    def _without(self, *kinds: str) -> Iterator[None]:
        """No faults of these kinds; all others as often as the seed has it."""
        self._faulty.rates.update(self._rates | dict.fromkeys(kinds, 0.0))
        try:
            yield
        finally:
            self._faulty.rates.update(self._rates)


@pytest.mark.parametrize("seeds", [range(first, first + 25) for first in range(0, 100, 25)], ids=str)
def test_whatever_fails_no_byte_is_wrong_and_nothing_acked_is_lost(seeds: range) -> None:
    for seed in seeds:
        try:
            Soup(seed).run(120)
        except Exception as error:
            raise AssertionError(f"seed {seed}") from error
