"""Jobs of a log outlive the leader that began them."""

from goqueue.broker.partition.log_jobs import LogJobs
from goqueue.storage.log import Log
from goqueue.testing import MemoryDisk
from tests.broker.brokers import ManualWorkers
from tests.storage.logs import append, open_log


class Watched:
    """Jobs of one log, and what was called when they ended."""

    def __init__(self, log: Log) -> None:
        self.log = log
        self.calls: list[str] = []
        self.workers = ManualWorkers()
        self.jobs = LogJobs(self.workers, lambda: self.calls.append("handed over"))

    def flush(self) -> None:
        job = self.log.begin_flush(monotonic_ns=0)
        assert job
        self.jobs.run(self.log, job, lambda: self.calls.append("done"))


def test_the_one_that_began_a_job_is_told_of_its_end(disk: MemoryDisk) -> None:
    watched = Watched(open_log(disk))
    append(watched.log, [b"a"])
    watched.flush()
    running = watched.jobs.running

    watched.workers.run_all()

    assert (running, watched.jobs.running) == (1, 0)
    assert watched.calls == ["done"]
    assert watched.log.durable_offset == 1


def test_the_next_leader_is_told_of_the_end_of_a_job_that_an_earlier_one_began(disk: MemoryDisk) -> None:
    watched = Watched(open_log(disk))
    append(watched.log, [b"a"])
    watched.flush()

    watched.jobs.role_changed()
    watched.workers.run_all()

    assert watched.calls == ["done", "handed over"]
    assert watched.log.durable_offset == 1
