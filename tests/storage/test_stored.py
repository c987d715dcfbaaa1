"""The append of a follower: the bytes of the leader, or an error and nothing."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from goqueue.errors import Conflict, InvalidBatch, StorageFull
from goqueue.record import kernel
from goqueue.record.header import FLAGS_KNOWN, Flags
from goqueue.storage.config import Flush
from goqueue.storage.file_check import check_log
from goqueue.storage.inspection import inspect
from goqueue.storage.log import Log
from goqueue.testing import FaultyDisk, MemoryDisk
from goqueue.transactions.markers import MARKER_FLAGS, TRANSACTIONAL_FLAGS, marker
from tests.storage.logs import DIRECTORY, NOW_NS, append, fill, open_log, read_all, values_of

SMALL = {"segment_bytes": 1_000}


def leader(count: int = 30, *, disk: MemoryDisk | None = None) -> Log:
    log = open_log(disk or MemoryDisk())
    fill(log, count, batch=3)
    return log


def stored(log: Log, first: int, end: int) -> bytes:
    """The bytes of the records in [first, end)."""
    reader = log.reader(first)
    found = b""
    while reader.offset < end:
        found += reader.read(max_bytes=1_000, to_offset=end).records
    return found


def without(records: bytes, *offsets: int) -> bytearray:
    """The records as compaction would leave them."""
    left = bytearray()
    first = kernel.scan(records).first_offset
    for start in (first, *(offset + 1 for offset in offsets)):
        end = min((offset for offset in offsets if offset >= start), default=2**62)
        left += kernel.filter(records, from_offset=start, to_offset=end)
    return left


def files(disk: MemoryDisk) -> dict[str, bytes]:
    return {path: disk.read(path) for path in disk.paths()}


def test_a_follower_has_the_bytes_and_the_indexes_of_its_leader(disk: MemoryDisk) -> None:
    theirs = MemoryDisk()
    source = leader(200, disk=theirs)
    follower = open_log(disk)

    for first, end in ((0, 70), (70, 71), (71, 200)):
        appended = follower.append_stored(stored(source, first, end))
        assert (appended.first_offset, appended.last_offset, appended.record_count) == (first, end - 1, end - first)

    source.close()
    follower.close()
    assert files(disk) == files(theirs)
    assert follower.last_timestamp == source.last_timestamp


def test_a_follower_rolls_its_own_segments(disk: MemoryDisk) -> None:
    source = leader(50)
    follower = open_log(disk, **SMALL)

    for first in range(0, 50, 5):
        follower.append_stored(stored(source, first, first + 5))

    assert (source.segment_count, follower.segment_count) == (1, 10)
    assert values_of(follower) == values_of(source)
    assert follower.offset_at_time(NOW_NS + 30_000_000) == 30


def test_what_is_appended_is_durable_after_a_flush_and_recovered_without_one(disk: MemoryDisk) -> None:
    source = leader()
    follower = open_log(disk, **SMALL)
    follower.append_stored(stored(source, 0, 20))
    follower.flush()
    follower.append_stored(stored(source, 20, 30))

    assert open_log(disk.crash(keep="nothing"), **SMALL).next_offset == 20
    assert values_of(open_log(disk.crash(keep="everything"), **SMALL)) == values_of(source)


def test_a_leader_goes_on_where_it_followed(disk: MemoryDisk) -> None:
    follower = open_log(disk)
    follower.append_stored(stored(leader(), 0, 30))

    appended = append(follower, [b"mine"], now_ns=1)

    assert (appended.first_offset, appended.timestamp) == (30, NOW_NS + 27_000_000)


def test_markers_and_transactional_records_are_taken_and_noted(disk: MemoryDisk) -> None:
    source = open_log(MemoryDisk())
    source.append(kernel.encode([b"x"], flags=Flags.TRANSACTIONAL), now_ns=NOW_NS, flags_allowed=TRANSACTIONAL_FLAGS)
    source.append(marker(7, 1, commit=False), now_ns=NOW_NS, flags_allowed=MARKER_FLAGS)
    follower = open_log(disk)

    appended = follower.append_stored(stored(source, 0, 2))

    assert appended.flags & ~FLAGS_KNOWN == 0
    assert appended.flags & Flags.CONTROL
    assert open_log(disk.crash(keep="nothing")).transactions.has_any


def flipped(records: bytes) -> bytes:
    return records[:100] + bytes([records[100] ^ 1]) + records[101:]


def at(now_ns: int, first: int, count: int = 2) -> bytes:
    """Records from an offset on, stamped at a time."""
    batch = kernel.encode([b"x" * 100] * count)
    kernel.stamp(batch, first_offset=first, timestamp=now_ns)
    return bytes(batch)


@pytest.mark.parametrize(
    ("records", "end_offset", "reason"),
    [
        (flipped(at(NOW_NS * 2, 10)), None, "checksum mismatch"),
        (at(NOW_NS * 2, 10)[:-1], None, "the record is cut off"),
        (at(NOW_NS * 2, 9), None, "offset out of order"),
        (at(NOW_NS * 2, 11), None, "offset out of order"),
        (at(NOW_NS * 2, 9), 20, "offset out of order"),
        (at(NOW_NS * 2, 10) + at(NOW_NS * 2, 13), None, "offset out of order"),
        (at(NOW_NS - 1, 10), None, "times of the records fall"),
        (at(NOW_NS * 2, 10) + at(NOW_NS, 12), None, "times of the records fall"),
        (at(NOW_NS * 2, 10, 50) + at(NOW_NS, 60, 50) + at(NOW_NS * 2, 110), None, "times of the records fall"),
        (b"", None, "no records"),
        (b"", 10, "end before offset 11"),
        (at(NOW_NS * 2, 10), 11, "end before offset 12"),
        (b"junk" * 20, None, "wrong magic"),
    ],
)
def test_what_does_not_continue_the_log_is_refused_and_changes_nothing(
    disk: MemoryDisk, records: bytes, end_offset: int | None, reason: str
) -> None:
    log = open_log(disk, segment_bytes=1_400)  # so that the log would have to roll
    fill(log, 10)
    log.flush()
    before = files(disk)

    with pytest.raises(InvalidBatch, match=reason):
        log.append_stored(records, end_offset=end_offset)

    assert files(disk) == before
    assert (log.next_offset, log.segment_count, log.has_gaps) == (10, 1, False)


def test_no_room_for_the_records_costs_nothing_and_passes(disk: MemoryDisk) -> None:
    faulty = FaultyDisk(disk, seed=1)
    log = open_log(faulty)
    records = stored(leader(), 0, 30)
    faulty.fail_next("pwrite", 28, path_suffix=".log", written=200)

    with pytest.raises(StorageFull):
        log.append_stored(records)

    assert log.append_stored(records).last_offset == 29
    log.flush()
    assert len(values_of(open_log(disk.crash(keep="nothing")))) == 30


def test_a_closed_log_takes_nothing(disk: MemoryDisk) -> None:
    log = open_log(disk)
    log.close()

    with pytest.raises(Conflict, match="is closed"):
        log.append_stored(stored(leader(), 0, 1))


# --- gaps ----------------------------------------------------------------------------------------------------------


def gapped(disk: MemoryDisk, **settings: object) -> Log:
    """Offsets 0, 1, 4, 5, 9, and an end at 12."""
    source = leader(12)
    log = open_log(disk, **settings)
    log.append_stored(without(stored(source, 0, 6), 2, 3), end_offset=6)
    log.append_stored(without(stored(source, 6, 12), 6, 7, 8, 10, 11), end_offset=12)
    return log


def offsets(log: Log) -> list[int]:
    messages, gaps = read_all(log)
    assert not gaps
    return [message.offset for message in messages]


def test_gaps_are_kept_and_are_no_damage(disk: MemoryDisk) -> None:
    log = gapped(disk)

    assert (log.next_offset, log.record_count, log.has_gaps) == (12, 5, True)
    assert offsets(log) == [0, 1, 4, 5, 9]
    assert not log.damage
    log.close()
    log = open_log(disk)
    assert (log.next_offset, offsets(log), log.damage) == (12, [0, 1, 4, 5, 9], [])
    assert all(report.is_sound for report in check_log(disk, DIRECTORY))


@pytest.mark.parametrize("flush", list(Flush))
def test_the_end_of_a_gap_is_durable_once_the_log_says_so(disk: MemoryDisk, flush: Flush) -> None:
    log = gapped(disk, flush=flush)
    assert log.durable_offset == 0

    job = log.begin_flush(monotonic_ns=0)
    assert job is not None
    job.run()
    log.complete(job)

    assert log.durable_offset == 12
    recovered = open_log(disk.crash(keep="nothing"))
    assert (recovered.next_offset, offsets(recovered)) == (12, [0, 1, 4, 5, 9])


def test_a_gap_without_records_moves_the_end(disk: MemoryDisk) -> None:
    log = open_log(disk)

    appended = log.append_stored(b"", end_offset=40)

    assert (appended.first_offset, appended.last_offset, appended.record_count, log.next_offset) == (0, 39, 0, 40)
    log.flush()
    log = open_log(disk.crash(keep="nothing"))
    assert append(log, [b"x"]).first_offset == 40
    assert offsets(log) == [40]


def test_a_crash_of_the_process_costs_no_record_next_to_a_gap(disk: MemoryDisk) -> None:
    log = gapped(disk, segment_bytes=300, flush=Flush.NONE)
    for first in range(12, 30):
        log.append_stored(stored(leader(30), first, first + 1))

    log = open_log(disk.crash(keep="everything"), segment_bytes=300)

    assert offsets(log) == [0, 1, 4, 5, 9, *range(12, 30)]
    assert log.next_offset == 30


def test_a_segment_begins_where_the_records_before_a_gap_end(disk: MemoryDisk) -> None:
    log = gapped(disk, segment_bytes=800)  # five records fill a segment
    log.flush()
    log.append_stored(stored(leader(30), 12, 18))

    assert log.segment_count == 2
    disk = disk.crash(keep="everything")
    assert offsets(open_log(disk)) == [0, 1, 4, 5, 9, *range(12, 18)]
    assert [report.damage for report in inspect(disk, DIRECTORY)] == [[], []]


@given(st.data())
def test_whatever_is_missing_what_was_durable_survives(data: st.DataObject) -> None:
    source = leader(60)
    disk = MemoryDisk()
    log = open_log(disk, segment_bytes=data.draw(st.sampled_from((300, 1_000, 100_000))))
    expected: list[int] = []
    while log.next_offset < 60:
        first = log.next_offset
        end = data.draw(st.integers(first + 1, 60))
        left = sorted(data.draw(st.sets(st.sampled_from(range(first, end)))))
        missing = [offset for offset in range(first, end) if offset not in left]
        log.append_stored(without(stored(source, first, end), *missing) if left else b"", end_offset=end)
        expected += left
        if data.draw(st.booleans()):
            log.flush()
        if data.draw(st.booleans()):
            durable = log.durable_offset
            disk = disk.crash(seed=data.draw(st.integers(0, 1_000)))
            log = open_log(disk, segment_bytes=log.config.segment_bytes)
            assert durable <= log.next_offset <= end
            expected = [offset for offset in expected if offset < log.next_offset]
        assert offsets(log) == expected
        assert not log.damage
