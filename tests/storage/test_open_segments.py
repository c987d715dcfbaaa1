"""Open files: few descriptors, and never one fewer than unsynced bytes need."""

from goqueue.testing import MemoryDisk
from tests.storage.logs import NOW_NS, fill, open_log, values_of


def test_few_files_are_open_however_many_segments_there_are(disk: MemoryDisk) -> None:
    log = open_log(disk, segment_bytes=200)
    fill(log, 1000)
    log.flush()

    assert len(values_of(log)) == 1000
    assert log.offset_at_time(NOW_NS + 500_000_000) == 500

    assert log.segment_count == 1000
    assert disk.open_files < 250


def test_a_segment_sealed_during_a_flush_keeps_its_descriptor_until_it_is_synced(disk: MemoryDisk) -> None:
    log = open_log(disk, segment_bytes=300)
    fill(log, 1)
    job = log.begin_flush(monotonic_ns=0)
    assert job is not None
    fill(log, 2)

    job.run()
    log.complete(job)

    assert [log._segments[index].segment.unsynced for index in range(2)] == [True, True]
    log.flush()
    assert [log._segments[index].segment.unsynced for index in range(2)] == [False, False]
