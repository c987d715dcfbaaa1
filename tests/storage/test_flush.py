from concurrent.futures import ThreadPoolExecutor

import pytest

from goqueue.errors import StorageFailed
from goqueue.storage.config import Flush, LogConfig
from goqueue.storage.flush import is_due
from goqueue.testing import FaultyDisk, ManualClock, MemoryDisk
from tests.storage.logs import NOW_NS, append, fill, open_log, values_of

SECOND_NS = 1_000_000_000


def due(flush: Flush, *, unflushed_bytes: int = 1, must_note: bool = False, idle_ns: int = 0) -> bool:
    config = LogConfig(flush=flush, flush_interval_ms=1000)
    return is_due(config, unflushed_bytes=unflushed_bytes, must_note=must_note, idle_ns=idle_ns)


def test_a_group_flush_starts_as_soon_as_there_is_something() -> None:
    assert due(Flush.GROUP)
    assert not due(Flush.GROUP, unflushed_bytes=0)


def test_an_interval_flush_waits_for_its_interval() -> None:
    assert not due(Flush.INTERVAL, idle_ns=SECOND_NS - 1)
    assert due(Flush.INTERVAL, idle_ns=SECOND_NS)
    assert not due(Flush.INTERVAL, unflushed_bytes=0, idle_ns=SECOND_NS)


def test_without_flushing_only_sealed_segments_and_gaps_at_the_end_are_noted() -> None:
    assert not due(Flush.NONE, idle_ns=10**18)
    assert due(Flush.NONE, unflushed_bytes=0, must_note=True)


def test_what_may_be_acked_depends_on_the_mode() -> None:
    for mode, ackable in ((Flush.GROUP, 0), (Flush.INTERVAL, 3), (Flush.NONE, 3)):
        log = open_log(MemoryDisk(), flush=mode)
        fill(log, 3)
        assert (log.durable_offset, log.ackable_offset) == (0, ackable)

        log.flush()

        assert (log.durable_offset, log.ackable_offset) == (3, 3)


def test_appends_during_a_flush_form_the_next_group(disk: MemoryDisk) -> None:
    log = open_log(disk)
    fill(log, 2)
    job = log.begin_flush(monotonic_ns=0)
    assert job is not None

    fill(log, 3)
    assert log.begin_flush(monotonic_ns=0) is None
    job.run()
    log.complete(job)

    assert log.durable_offset == 2
    following = log.begin_flush(monotonic_ns=0)
    assert following is not None
    following.run()
    log.complete(following)
    assert log.durable_offset == 5
    assert log.begin_flush(monotonic_ns=0) is None


def test_many_appends_share_one_sync(disk: MemoryDisk) -> None:
    log = open_log(disk)
    fill(log, 1)
    log.flush()
    fill(log, 1000)
    written = disk.steps

    log.flush()

    syncs_and_checkpoint = disk.steps - written
    assert syncs_and_checkpoint < 60


def test_an_interval_is_measured_from_the_start_of_the_last_flush(disk: MemoryDisk, clock: ManualClock) -> None:
    log = open_log(disk, flush="interval", flush_interval_ms=1000)
    clock.advance(10)
    fill(log, 1)
    log.maintain(now_ns=clock.wall_ns(), monotonic_ns=clock.monotonic_ns())
    assert log.durable_offset == 1
    fill(log, 1)

    clock.advance(0.999)
    assert log.begin_flush(monotonic_ns=clock.monotonic_ns()) is None
    clock.advance(0.001)
    assert log.begin_flush(monotonic_ns=clock.monotonic_ns()) is not None


def test_a_wall_clock_that_jumps_back_does_not_stop_the_flushing(disk: MemoryDisk, clock: ManualClock) -> None:
    log = open_log(disk, flush="interval")
    clock.advance(100)
    fill(log, 1)
    clock.set_wall_ns(0)

    log.maintain(now_ns=clock.wall_ns(), monotonic_ns=clock.monotonic_ns())

    assert log.durable_offset == 1


def test_a_flush_in_a_thread_goes_on_while_the_log_rolls_and_is_flushed_again(disk: MemoryDisk) -> None:
    log = open_log(disk, segment_bytes=1000)
    with ThreadPoolExecutor(1) as threads:
        values = fill(log, 3)
        job = log.begin_flush(monotonic_ns=0)
        assert job is not None
        values += fill(log, 30)
        running = threads.submit(job.run)
        values += fill(log, 30)
        running.result()
        log.complete(job)
        log.flush()

    assert log.durable_offset == 63
    assert values_of(open_log(disk.crash(keep="nothing"), segment_bytes=1000)) == values


def test_a_flush_on_the_spot_takes_over_from_one_under_way(disk: MemoryDisk) -> None:
    log = open_log(disk, segment_bytes=1000)
    values = fill(log, 20)
    job = log.begin_flush(monotonic_ns=0)
    assert job is not None

    log.flush()

    assert log.durable_offset == 20
    assert values_of(open_log(disk.crash(keep="nothing"), segment_bytes=1000)) == values


def test_a_late_flush_does_not_vouch_for_records_that_were_cut_off(disk: MemoryDisk) -> None:
    log = open_log(disk)
    fill(log, 20)
    job = log.begin_flush(monotonic_ns=0)
    assert job is not None

    log.truncate(5)
    append(log, [b"new"], now_ns=NOW_NS)
    job.run()
    log.complete(job)

    assert log.durable_offset == 5
    log = open_log(disk.crash(keep="nothing"))
    assert (log.next_offset, log.damage) == (5, [])


def test_a_flush_on_the_spot_does_not_miss_the_failure_of_the_one_under_way(disk: MemoryDisk) -> None:
    faulty = FaultyDisk(disk, seed=0)
    log = open_log(faulty)
    fill(log, 3)
    job = log.begin_flush(monotonic_ns=0)
    assert job is not None
    faulty.fail_next("sync")
    with pytest.raises(OSError, match="Input/output error"):
        job.run()

    with pytest.raises(StorageFailed):
        log.flush()

    assert log.durable_offset == 0
    assert log.failure is not None


def test_a_sealed_log_has_nothing_left_to_write_when_it_is_closed(disk: MemoryDisk) -> None:
    log = open_log(disk)
    fill(log, 100)
    job = log.begin_seal()
    assert job is not None
    assert log.begin_seal() is None  # one is under way

    job.run()
    log.complete(job)

    assert log.is_sealed
    assert log.begin_seal() is None
    before = disk.crash(keep="nothing")
    log.close()
    assert {path: before.read(path) for path in before.paths()} == {path: disk.read(path) for path in disk.paths()}


def test_what_is_appended_while_a_log_is_sealed_is_sealed_next(disk: MemoryDisk) -> None:
    log = open_log(disk)
    fill(log, 100)
    job = log.begin_seal()
    assert job is not None
    fill(log, 1)
    job.run()
    log.complete(job)

    assert not log.is_sealed
    log.close()
    assert open_log(disk.crash(keep="nothing")).next_offset == 101
