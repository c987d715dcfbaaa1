"""Jobs: transactions that are staged by many tasks and committed together by one driver.

A job has a name that outlives its process, such as the id of a streaming query; each attempt at it is a run. Every
transaction that a task begins names both, so that the broker can act on all of them, also on those that the driver
never heard of:

    keep         the timeout of all open transactions of a run starts anew: a task that still works keeps what tasks
                 before it have staged. To begin one keeps the others, too
    begin        aborts what other runs of the job have open, however many tasks they had
    abort        ends a run, or all runs of a job

A run that was aborted or replaced has ended: a task of it that comes late is refused. Only open transactions are
indexed, and runs that ended are remembered up to a bound, so the index needs no place on the disk: a restart aborts
what is open.
"""

from collections import OrderedDict

from goqueue.errors import InvalidRequest
from goqueue.transactions.transaction import Run, Transaction

ENDED_MAX = 10_000
"""Runs that ended and are remembered; a task that is later than so many other runs is not expected."""
NAME_CHARACTERS_MAX = 255


class Jobs:
    """The runs that have open transactions, by job, and which runs have ended."""

    def __init__(self, *, ended_max: int = ENDED_MAX) -> None:
        self._ended_max = ended_max
        self._runs: dict[str, dict[str, Run]] = {}
        self._ended: OrderedDict[tuple[str, str], None] = OrderedDict()

    def open(self, job: str, run: str) -> Run:
        """The run, to begin a transaction in it."""
        return self._runs.setdefault(job, {}).setdefault(run, Run(job, run))

    def find(self, job: str, run: str) -> Run | None:
        """The run, if it has open transactions."""
        return self._runs.get(job, {}).get(run)

    def remove(self, transaction: Transaction) -> None:
        """The transaction is over."""
        run = transaction.run
        if run is None:
            return
        run.transactions.discard(transaction)
        known = self._runs.get(run.job, {})
        if not run.transactions and known.get(run.name) is run:
            del known[run.name]
            if not known:
                del self._runs[run.job]

    def end(self, job: str, run: str) -> list[Transaction]:
        """Nothing is begun in that run any more; returns what it has open."""
        self._ended[job, run] = None
        self._ended.move_to_end((job, run))
        if len(self._ended) > self._ended_max:
            self._ended.popitem(last=False)
        found = self.find(job, run)
        return [] if found is None else list(found.transactions)

    def end_all(self, job: str, *, but: str | None = None) -> list[Transaction]:
        """The same for all runs of the job that have something open, or all but one."""
        return [one for run in list(self._runs.get(job, ())) if run != but for one in self.end(job, run)]

    def has_ended(self, job: str, run: str) -> bool:
        """Whether the run was aborted or replaced."""
        return (job, run) in self._ended


def validate_job(job: str | None, run: str) -> None:
    """Raise `InvalidRequest` unless a job and its run may be called that."""
    for name, text in (("job", job), ("run", run)):
        if text is not None and (len(text) > NAME_CHARACTERS_MAX or not text.isprintable()):
            raise InvalidRequest(f"{name} must be at most {NAME_CHARACTERS_MAX} printable characters", path=name)
    if job == "" or (job is None and run):
        raise InvalidRequest("job is required", path="job")
