"""Jobs: cancelling one waits for its end, and never loses an error of the disk."""

import errno
from threading import Event, Thread

import pytest

from goqueue.storage.jobs import CancellableJob, DeleteJob, mark_deleted
from goqueue.storage.segment import Segment
from goqueue.testing import MemoryDisk


class Work(CancellableJob):
    """Waits for the test, then ends or fails."""

    def __init__(self, error: OSError | None = None) -> None:
        super().__init__()
        self.began = Event()
        self.may_end = Event()
        self.ended = False
        self._raises = error

    def _work(self) -> None:
        self.began.set()
        self.may_end.wait()
        self.ended = True
        if self._raises:
            raise self._raises


def test_a_job_that_was_cancelled_before_it_ran_does_nothing() -> None:
    job = Work()
    job.cancel()

    job.run()

    assert not job.began.is_set()


def test_cancelling_a_running_job_returns_when_it_has_ended() -> None:
    job = Work()
    thread = Thread(target=job.run)
    thread.start()
    job.began.wait()
    job.may_end.set()

    job.cancel()

    assert job.ended
    thread.join()


def test_an_error_of_a_job_is_raised_again_when_it_is_cancelled() -> None:
    job = Work(OSError(errno.EIO, "Input/output error"))
    job.may_end.set()
    with pytest.raises(OSError, match="Input/output error"):
        job.run()

    with pytest.raises(OSError, match="Input/output error"):
        job.cancel()


def test_a_deleted_segment_is_renamed_first_and_removed_by_the_job(disk: MemoryDisk) -> None:
    disk.make_directory("/log")
    segment = Segment.create(disk, "/log", 7, lambda event: None)

    paths = mark_deleted(disk, segment)
    names = [entry.name for entry in disk.entries("/log")]
    DeleteJob(disk, "/log", paths).run()

    assert names == ["00000000000000000007.log.deleted"]
    assert disk.entries("/log") == []
