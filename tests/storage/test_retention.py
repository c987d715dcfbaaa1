import pytest

from goqueue.storage.config import LogConfig
from goqueue.storage.log import Log
from goqueue.storage.retention import SegmentInfo, expired
from goqueue.testing import MemoryDisk
from tests.storage.faulty import SETTINGS
from tests.storage.logs import FIRST, NOW_NS, append, fill, open_log, read_all, values_of

MS = 1_000_000
SEGMENTS = [SegmentInfo(0, 100, 10 * MS), SegmentInfo(5, 100, 20 * MS), SegmentInfo(9, 100, 30 * MS)]


def bases(
    config: LogConfig, *, now_ms: int, segments: list[SegmentInfo] = SEGMENTS, active_bytes: int = 50
) -> list[int]:
    total = active_bytes + sum(segment.size for segment in segments)
    return [segment.base_offset for segment in expired(iter(segments), total, config, now_ns=now_ms * MS)]


def test_a_segment_expires_when_its_newest_record_is_too_old() -> None:
    config = LogConfig(retention_ms=100)

    assert bases(config, now_ms=110) == []
    assert bases(config, now_ms=111) == [0]
    assert bases(config, now_ms=125) == [0, 5]
    assert bases(config, now_ms=9999) == [0, 5, 9]


def test_by_size_a_segment_goes_if_the_rest_still_fills_the_room() -> None:
    assert bases(LogConfig(retention_ms=0, retention_bytes=250), now_ms=0) == [0]
    assert bases(LogConfig(retention_ms=0, retention_bytes=251), now_ms=0) == []
    assert bases(LogConfig(retention_ms=0, retention_bytes=1), now_ms=0) == [0, 5, 9]


def test_zero_means_for_ever_and_without_limit() -> None:
    assert bases(LogConfig(retention_ms=0, retention_bytes=0), now_ms=10**9) == []


def test_a_log_that_is_only_compacted_never_expires() -> None:
    assert bases(LogConfig(retention_ms=1, cleanup="compact"), now_ms=10**9) == []  # type: ignore[arg-type]
    assert bases(LogConfig(retention_ms=1, cleanup="compact,delete"), now_ms=10**9) == [0, 5, 9]  # type: ignore[arg-type]


def test_a_segment_without_records_goes_with_its_neighbours() -> None:
    assert bases(LogConfig(retention_ms=100), now_ms=111, segments=[SegmentInfo(0, 0, None), *SEGMENTS[1:]]) == [0]


def test_no_segment_is_asked_for_once_one_stays() -> None:
    asked: list[int] = []

    def segments():  # type: ignore[no-untyped-def]
        for segment in SEGMENTS:
            asked.append(segment.base_offset)
            yield segment

    expired(segments(), 350, LogConfig(retention_ms=100), now_ns=111 * MS)

    assert asked == [0, 5]


def test_expired_segments_leave_the_log_and_the_disk(disk: MemoryDisk) -> None:
    log = open_log(disk, segment_bytes=1000, retention_ms=10)
    values = fill(log, 50)
    log.flush()

    log.maintain(now_ns=NOW_NS + 40 * MS, monotonic_ns=0)

    assert log.start_offset == 28
    assert values_of(log) == values[28:]
    assert min(path for path in disk.paths() if path.endswith(".log")).endswith(f"{28:020d}.log")
    assert log.next_offset == 50


def test_what_expired_stays_gone(disk: MemoryDisk) -> None:
    log = open_log(disk, segment_bytes=1000, retention_bytes=2000, retention_ms=0)
    values = fill(log, 50)
    log.flush()
    log.maintain(now_ns=NOW_NS, monotonic_ns=0)
    start = log.start_offset

    log = open_log(disk.crash(keep="nothing"), segment_bytes=1000)

    assert log.start_offset == start > 20
    assert values_of(log) == values[start:]


def test_the_active_segment_never_expires(disk: MemoryDisk) -> None:
    log = open_log(disk, retention_ms=10)
    append(log, [b"x"])

    log.maintain(now_ns=NOW_NS + 10**12, monotonic_ns=0)

    assert len(read_all(log)[0]) == 1


def test_a_quiet_log_expires_completely_once_its_segment_is_old(disk: MemoryDisk) -> None:
    log = open_log(disk, retention_ms=10, segment_age_ms=1000)
    append(log, [b"x"])

    log.maintain(now_ns=NOW_NS + 2_000 * MS, monotonic_ns=0)

    assert (log.start_offset, log.next_offset, log.size) == (1, 1, 0)
    log.close()
    assert open_log(disk).next_offset == 1


def test_the_newest_messages_stay_even_if_they_are_more_than_the_room_unless_the_disk_is_full() -> None:
    config = LogConfig(retention_ms=0, retention_bytes=99)
    newest = SEGMENTS[:1]

    assert expired(iter(newest), 100, config, now_ns=0) == []
    assert expired(iter(newest), 100, config, now_ns=0, is_full=True) == newest
    assert expired(iter(newest), 100, LogConfig(retention_ms=0, retention_bytes=100), now_ns=0, is_full=True) == []


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


def test_retention_makes_room_on_a_disk_too_full_for_the_leader_epochs(disk: MemoryDisk) -> None:
    log = open_log(disk, **SETTINGS, retention_bytes=1_500)
    log.assign_epoch(1, 0)
    values = fill(log, 10)
    log.assign_epoch(2, 10)
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


# --- bounds --------------------------------------------------------------------------------------------------------


def segment_ends(log: Log) -> list[int]:
    return [end for _, end in log._segments.sealed()]


@pytest.mark.parametrize(
    "reason",
    [
        {"now_ns": NOW_NS + 10**15},
        {"now_ns": NOW_NS, "deleted_below": 48},
        {"now_ns": NOW_NS, "is_full": True},
        {"now_ns": NOW_NS + 10**15, "deleted_below": 48, "is_full": True, "keep_from": 47},
    ],
    ids=["age", "request", "full disk", "all"],
)
@pytest.mark.parametrize("to_offset", [0, 6, 7, 20, 21, 48, 50, 99])
def test_nothing_at_or_after_the_bound_is_deleted_for_any_reason(
    disk: MemoryDisk, reason: dict[str, int], to_offset: int
) -> None:
    log = open_log(disk, **SETTINGS, retention_bytes=101 if "is_full" in reason else 0, retention_ms=10)
    values = fill(log, 50)
    log.flush()
    wanted = 48 if "deleted_below" in reason else 50
    expected = max((end for end in segment_ends(log) if end <= min(to_offset, wanted)), default=0)

    log._run(log.expire(to_offset=to_offset, **reason))

    assert log.start_offset == expected
    assert values_of(log) == values[expected:]


def test_a_log_that_was_sealed_above_the_bound_keeps_its_records(disk: MemoryDisk) -> None:
    log = open_log(disk, retention_ms=10, segment_age_ms=1_000, retention_bytes=50)
    values = fill(log, 5)
    late_ns = NOW_NS + 2_000 * MS
    assert log.roll_if_old(now_ns=late_ns)
    log.flush()

    assert log.expire(now_ns=late_ns, to_offset=4, is_full=True) is None
    assert values_of(log) == values
    assert log.expire(now_ns=late_ns, to_offset=5) is not None
    assert (log.start_offset, log.next_offset) == (5, 5)


def test_a_request_deletes_what_retention_would_have_to_keep(disk: MemoryDisk) -> None:
    log = open_log(disk, **SETTINGS, retention_ms=10)
    fill(log, 50)
    log.flush()

    assert log.expire(now_ns=NOW_NS + 10**15, keep_from=6) is None
    log._run(log.expire(now_ns=NOW_NS + 10**15, keep_from=6, deleted_below=21))

    assert log.start_offset == 21
