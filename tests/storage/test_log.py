import pytest

from goqueue import events
from goqueue.errors import Conflict, InvalidBatch, OffsetOutOfRange
from goqueue.record import kernel
from goqueue.storage.config import LogConfig
from goqueue.storage.log import Log
from goqueue.testing import FaultyDisk, MemoryDisk
from tests.storage.logs import DIRECTORY, NOW_NS, append, fill, open_log, read_all, values_of


def test_a_new_log_is_empty(disk: MemoryDisk) -> None:
    log = open_log(disk)

    assert (log.start_offset, log.next_offset, log.durable_offset, log.size) == (0, 0, 0, 0)
    assert log.read(0).record_count == 0


def test_offsets_are_dense_from_zero_on(disk: MemoryDisk) -> None:
    log = open_log(disk)

    first = append(log, [b"a", b"b"])
    second = append(log, [b"c"])

    assert (first.first_offset, first.last_offset, second.first_offset) == (0, 1, 2)
    assert [message.offset for message in read_all(log)[0]] == [0, 1, 2]


def test_what_was_appended_is_read_back_with_all_its_fields(disk: MemoryDisk) -> None:
    log = open_log(disk)
    batch = kernel.encode(
        [b"value", None, b""],
        keys=[b"key", b"gone", None],
        headers=[{"source": "web"}, None, {"a": b"\xff"}],
        priorities=[0, 2, 4],
    )

    log.append(batch, now_ns=NOW_NS)

    messages, gaps = read_all(log)
    assert not gaps
    assert [(m.key, m.value, m.tombstone, m.headers, int(m.priority)) for m in messages] == [
        (b"key", b"value", False, {"source": "web"}, 0),
        (b"gone", b"", True, {}, 2),
        (None, b"", False, {"a": "\udcff"}, 4),
    ]
    assert {m.timestamp_ns for m in messages} == {NOW_NS}


def test_append_time_never_goes_back(disk: MemoryDisk) -> None:
    log = open_log(disk)

    stamps = [append(log, [b"x"], now_ns=now).timestamp for now in (100, 50, 200, 150)]

    assert stamps == [100, 100, 200, 200]


def test_append_time_does_not_go_back_over_a_restart(disk: MemoryDisk) -> None:
    log = open_log(disk)
    append(log, [b"x"], now_ns=NOW_NS)
    log.close()

    log = open_log(disk)

    assert append(log, [b"y"], now_ns=5).timestamp == NOW_NS


def test_a_log_rolls_when_a_segment_is_full(disk: MemoryDisk) -> None:
    log = open_log(disk, segment_bytes=1000)

    values = fill(log, 50)

    assert log.segment_count == 8  # seven records of 134 bytes fit
    assert values_of(log) == values


def test_a_batch_is_never_split_over_two_segments(disk: MemoryDisk) -> None:
    log = open_log(disk, segment_bytes=1000)
    fill(log, 3)

    append(log, [b"." * 100] * 20)

    assert log.segment_count == 2
    assert log.next_offset == 23


def test_a_log_rolls_when_a_segment_is_old(disk: MemoryDisk) -> None:
    log = open_log(disk, segment_age_ms=1000)
    append(log, [b"x"], now_ns=NOW_NS)
    append(log, [b"x"], now_ns=NOW_NS + 999_999_999)
    assert log.segment_count == 1

    append(log, [b"x"], now_ns=NOW_NS + 1_000_000_000)

    assert log.segment_count == 2


def test_a_quiet_log_rolls_by_age_too(disk: MemoryDisk) -> None:
    log = open_log(disk, segment_age_ms=1000)
    append(log, [b"x"], now_ns=NOW_NS)

    log.maintain(now_ns=NOW_NS + 2_000_000_000, monotonic_ns=0)
    log.maintain(now_ns=NOW_NS + 4_000_000_000, monotonic_ns=0)

    assert log.segment_count == 2


def test_an_offset_outside_the_log_is_refused_with_the_range(disk: MemoryDisk) -> None:
    log = open_log(disk)
    fill(log, 3)

    with pytest.raises(OffsetOutOfRange) as caught:
        log.read(4)

    assert (caught.value.offset, caught.value.start, caught.value.end) == (4, 0, 3)
    assert log.read(3).record_count == 0


def test_a_batch_that_breaks_the_format_is_refused_and_nothing_is_written(disk: MemoryDisk) -> None:
    log = open_log(disk)
    fill(log, 2)
    batch = kernel.encode([b"good", b"bad"])
    batch[38] = 0

    with pytest.raises(InvalidBatch, match="byte 38"):
        log.append(batch, now_ns=NOW_NS)

    assert log.next_offset == 2
    assert len(values_of(log)) == 2


def test_a_value_over_the_limit_of_the_log_is_refused(disk: MemoryDisk) -> None:
    log = open_log(disk, value_bytes_max=10)

    with pytest.raises(InvalidBatch, match="value over the limit"):
        append(log, [b"." * 11])

    assert append(log, [b"." * 10]).first_offset == 0


def test_producers_cannot_forge_control_records(disk: MemoryDisk) -> None:
    log = open_log(disk)

    with pytest.raises(InvalidBatch, match="flags"):
        log.append(kernel.encode([b""], flags=0x08), now_ns=NOW_NS)


def test_truncation_removes_the_records_and_gives_their_offsets_out_again(disk: MemoryDisk) -> None:
    log = open_log(disk, segment_bytes=1000)
    values = fill(log, 50)
    log.flush()

    log.truncate(20)

    assert (log.next_offset, log.durable_offset) == (20, 20)
    assert values_of(log) == values[:20]
    assert append(log, [b"new"]).first_offset == 20
    assert values_of(log) == [*values[:20], b"new"]


def test_truncation_is_durable(disk: MemoryDisk) -> None:
    log = open_log(disk, segment_bytes=1000)
    values = fill(log, 50)
    log.flush()

    log.truncate(20)

    log = open_log(disk.crash(keep="nothing"), segment_bytes=1000)
    assert values_of(log) == values[:20]
    assert not log.damage


def test_truncating_outside_the_log_is_refused(disk: MemoryDisk) -> None:
    log = open_log(disk)
    fill(log, 3)

    with pytest.raises(OffsetOutOfRange):
        log.truncate(4)


def test_a_log_is_the_same_after_it_was_closed_and_opened(disk: MemoryDisk) -> None:
    log = open_log(disk, segment_bytes=1000)
    values = fill(log, 50)
    log.close()

    log = open_log(disk.crash(keep="nothing"), segment_bytes=1000)

    assert values_of(log) == values
    assert log.durable_offset == log.next_offset == 50


def test_opening_a_log_that_was_closed_writes_nothing(disk: MemoryDisk) -> None:
    log = open_log(disk, segment_bytes=1000)
    fill(log, 50)
    log.close()
    steps = disk.steps

    open_log(disk, segment_bytes=1000)

    assert disk.steps == steps


def test_events_tell_what_happens(disk: MemoryDisk) -> None:
    seen: list[events.Event] = []
    log = Log.open(disk, DIRECTORY, LogConfig(segment_bytes=1000), observe=seen.append)

    fill(log, 8)
    log.flush()

    assert seen == [
        events.SegmentRolled(log=DIRECTORY, base_offset=7),
        events.Flushed(log=DIRECTORY, bytes=8 * 134, durable_offset=8),
    ]


def test_a_batch_of_wider_items_is_taken_by_its_bytes(disk: MemoryDisk) -> None:
    log = open_log(disk)
    batch = kernel.encode([b"a" * 98, b"b" * 98])

    appended = log.append(memoryview(batch).cast("I"), now_ns=NOW_NS)
    append(log, [b"second"])

    assert (appended.bytes, log.size) == (264, 264 + 40)
    assert values_of(log) == [b"a" * 98, b"b" * 98, b"second"]


def test_a_closed_log_does_nothing_more(disk: MemoryDisk) -> None:
    log = open_log(disk, segment_age_ms=1)
    fill(log, 3)
    log.close()
    steps = disk.steps

    for use in (
        lambda: append(log, [b"x"]),
        lambda: log.flush(),
        lambda: log.truncate(1),
        lambda: log.read(0),
        lambda: log.offset_at_time(0),
        lambda: log.maintain(now_ns=NOW_NS * 2, monotonic_ns=0),
    ):
        with pytest.raises(Conflict, match="is closed"):
            use()
    assert log.begin_flush(monotonic_ns=0) is None
    assert log.expire(now_ns=NOW_NS * 2) is None
    assert (disk.steps, disk.open_files) == (steps, 0)


def test_a_closed_log_does_not_roll(disk: MemoryDisk) -> None:
    log = open_log(disk, segment_age_ms=1)
    fill(log, 3)
    log.close()

    count = log.segment_count

    log.roll_if_old(now_ns=NOW_NS * 2)

    assert log.segment_count == count


def test_an_abandoned_log_makes_nothing_durable_and_does_nothing_more(disk: MemoryDisk) -> None:
    log = open_log(disk, segment_bytes=400, segment_age_ms=1)
    fill(log, 10)
    job = log.begin_flush(monotonic_ns=0)
    steps = disk.steps
    assert job

    log.abandon()
    log.abandon()
    log.close()
    job.run()

    assert log.complete(job) is None
    del job  # it has files in hand
    assert log.is_closed
    assert log.durable_offset == 0
    for use in (lambda: append(log, [b"x"]), lambda: log.flush(), lambda: log.read(0), lambda: log.truncate(1)):
        with pytest.raises(Conflict, match="is closed"):
            use()
    assert log.begin_flush(monotonic_ns=0) is None
    assert (disk.steps, disk.open_files) == (steps, 0)


def test_what_jobs_of_an_abandoned_log_fail_with_is_nobodys_concern(disk: MemoryDisk) -> None:
    faulty = FaultyDisk(disk, seed=0)
    seen: list[events.Event] = []
    log = Log.open(faulty, DIRECTORY, observe=seen.append)
    fill(log, 3)
    job = log.begin_flush(monotonic_ns=0)
    assert job
    faulty.fail_next("sync")
    with pytest.raises(OSError, match="Input/output error") as caught:
        job.run()

    log.abandon()

    assert log.complete(job, caught.value) is None
    assert log.failure is None
    assert seen == []


def test_a_log_may_take_the_place_of_one_that_was_abandoned(disk: MemoryDisk) -> None:
    old = open_log(disk)
    fill(old, 3)
    job = old.begin_flush(monotonic_ns=0)
    assert job
    old.abandon()
    disk.rename(DIRECTORY, DIRECTORY + ".deleted")

    new = open_log(disk)
    job.run()
    old.complete(job)
    append(new, [b"new"])
    new.close()

    assert values_of(open_log(disk)) == [b"new"]
