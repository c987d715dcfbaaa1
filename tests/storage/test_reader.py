"""Readers: records in order under a byte budget, whatever happens to the log and the disk."""

from random import Random

import pytest

from goqueue.errors import (
    Conflict,
    OffsetOutOfRange,
    ReadFailed,
)
from goqueue.record import kernel
from goqueue.record.message import StoredMessage
from goqueue.storage.log import Log
from goqueue.testing import FaultyDisk, MemoryDisk
from tests.storage.faulty import SETTINGS, check_reopened, chunks, lost_offsets
from tests.storage.logs import (
    DIRECTORY,
    FIRST,
    NOW_NS,
    ORIGIN,
    RECORD_BYTES,
    append,
    fill,
    open_log,
    read_all,
    values_of,
)


@pytest.mark.parametrize("max_bytes", [1, 134, 135, 500, 10_000])
def test_a_read_stays_in_its_budget_but_returns_at_least_one_record(disk: MemoryDisk, max_bytes: int) -> None:
    log = open_log(disk, segment_bytes=1000)
    fill(log, 20)

    for offset in range(20):
        chunk = log.read(offset, max_bytes=max_bytes)
        assert chunk.record_count >= 1
        assert chunk.record_count == 1 or len(chunk.records) <= max_bytes
        assert kernel.decode(chunk.records, ORIGIN, StoredMessage)[0].offset == offset


def test_a_record_larger_than_any_window_is_read_whole(disk: MemoryDisk) -> None:
    log = open_log(disk)
    large = bytes(range(256)) * 20_000
    append(log, [b"before", large, b"behind"])

    assert [message.value for message in read_all(log, max_bytes=100)[0]] == [b"before", large, b"behind"]
    assert kernel.decode(log.read(1, max_bytes=1).records, ORIGIN, StoredMessage)[0].value == large


def test_a_read_ends_before_to_offset(disk: MemoryDisk) -> None:
    log = open_log(disk, segment_bytes=1000)
    fill(log, 20)

    chunk = log.read(3, to_offset=5)

    assert (chunk.record_count, chunk.next_offset) == (2, 5)
    assert log.read(5, to_offset=5).record_count == 0


def test_a_reader_goes_on_where_it_stopped_and_sees_what_is_appended_meanwhile(disk: MemoryDisk) -> None:
    log = open_log(disk, segment_bytes=1000)
    fill(log, 10)
    reader = log.reader(8)
    assert reader.read(max_bytes=10_000).next_offset == 10
    assert reader.read(max_bytes=10_000).record_count == 0

    fill(log, 30)

    offsets = []
    while (chunk := reader.read(max_bytes=300)).record_count:
        offsets += [message.offset for message in kernel.decode(chunk.records, ORIGIN, StoredMessage)]
    assert offsets == list(range(10, 40))


def test_a_reader_behind_a_truncation_reads_what_is_written_there_next(disk: MemoryDisk) -> None:
    log = open_log(disk, segment_bytes=1000)
    fill(log, 50)
    reader = log.reader(20)
    reader.read(max_bytes=134)

    log.truncate(21)
    append(log, [b"new"])

    assert kernel.decode(reader.read(max_bytes=1000).records, ORIGIN, StoredMessage)[0].value == b"new"


def test_a_reader_whose_place_was_cut_away_and_written_over_finds_it_again(disk: MemoryDisk) -> None:
    log = open_log(disk)
    fill(log, 30)
    reader = log.reader(0)
    reader.read(max_bytes=25 * 134)

    log.truncate(20)
    fill(log, 10, size=77)

    chunk = reader.read(max_bytes=134)
    assert not chunk.gaps
    assert kernel.decode(chunk.records, ORIGIN, StoredMessage)[0].offset == 25


def test_a_reader_overtaken_by_retention_says_so(disk: MemoryDisk) -> None:
    log = open_log(disk, segment_bytes=1, retention_ms=1)
    fill(log, 5)
    log.flush()
    reader = log.reader(0)

    log.maintain(now_ns=NOW_NS + 10**12, monotonic_ns=0)

    assert log.start_offset == 4
    with pytest.raises(OffsetOutOfRange):
        reader.read(max_bytes=1000)


def test_a_reader_behind_the_end_of_a_log_that_was_cut_says_so(disk: MemoryDisk) -> None:
    log = open_log(disk)
    fill(log, 10)
    reader = log.reader(10)

    log.truncate(3)

    with pytest.raises(OffsetOutOfRange) as caught:
        reader.read(max_bytes=1000)
    assert (caught.value.offset, caught.value.end) == (10, 3)


def test_a_reader_of_a_closed_log_opens_nothing(disk: MemoryDisk) -> None:
    log = open_log(disk)
    fill(log, 3)
    reader = log.reader(0)
    log.close()

    with pytest.raises(Conflict, match="is closed"):
        reader.read(max_bytes=100)

    assert disk.open_files == 0


def test_a_read_that_begins_inside_damage_reports_only_what_it_was_asked_for(disk: MemoryDisk) -> None:
    log = open_log(disk)
    fill(log, 10)
    for offset in (3, 4, 5):
        disk.flip_bit(FIRST, offset * RECORD_BYTES + 50, 0)

    chunk = log.read(4)

    assert [(gap.first_offset, gap.next_offset) for gap in chunk.gaps] == [(4, 6)]
    assert chunk.next_offset == 10
    assert chunk.record_count == 4


@pytest.mark.parametrize("seed", range(20))
def test_a_bit_that_flips_on_its_way_from_the_disk_costs_no_record(disk: MemoryDisk, seed: int) -> None:
    values = fill(open_log(disk, segment_bytes=RECORD_BYTES * 40), 150)
    log = open_log(FaultyDisk(disk, seed=seed, bit_flip=0.05, only=lambda path: path.endswith(".log")))

    for _ in range(10):
        messages, gaps = read_all(log)
        assert [message.value for message in messages] == values
        assert not gaps


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
