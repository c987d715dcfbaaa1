"""Jobs: transactions that many tasks stage and one driver commits together.

A job has a name that outlives its process, such as the id of a streaming query; each attempt at it is a run. Every
transaction that a task begins names both, so that the broker can act on all of them, including those that the driver
never learned of:

    keep         restarts the timeout of all open transactions of a run: a task that still works keeps alive what
                 earlier tasks have staged. A begin does the same
    begin        aborts the open transactions of other runs of the job, however many tasks they had
    abort        ends a run, or all runs of a job

A run that was aborted or replaced has ended: a late task of it is refused. Only open transactions are indexed, and a
bounded number of ended runs is remembered. None of it is stored: a restart aborts all open transactions.
"""

from collections import OrderedDict

from goqueue.errors import InvalidRequest
from goqueue.transactions.transaction import JobRun, StagedTransaction

ENDED_MAX = 10_000
"""How many ended runs are remembered. A task that arrives after so many later runs is not refused."""
NAME_CHARACTERS_MAX = 255


class Jobs:
    """The runs that have open transactions, by job, and which runs have ended."""

    def __init__(self, *, ended_max: int = ENDED_MAX) -> None:
        self._ended_max = ended_max
        self._runs: dict[str, dict[str, JobRun]] = {}
        self._ended: OrderedDict[tuple[str, str], None] = OrderedDict()

    def open(self, job: str, run: str) -> JobRun:
        """The run, created if it has no open transaction yet."""
        return self._runs.setdefault(job, {}).setdefault(run, JobRun(job, run))

    def find(self, job: str, run: str) -> JobRun | None:
        """The run, if it has open transactions."""
        return self._runs.get(job, {}).get(run)

    def remove(self, transaction: StagedTransaction) -> None:
        """The transaction has ended."""
        run = transaction.run
        if run is None:
            return
        run.transactions.discard(transaction)
        known = self._runs.get(run.job, {})
        if not run.transactions and known.get(run.name) is run:
            del known[run.name]
            if not known:
                del self._runs[run.job]

    def end(self, job: str, run: str) -> list[StagedTransaction]:
        """End the run, so that no transaction is begun in it; returns those that are open."""
        self._ended[job, run] = None
        self._ended.move_to_end((job, run))
        if len(self._ended) > self._ended_max:
            self._ended.popitem(last=False)
        found = self.find(job, run)
        return [] if found is None else list(found.transactions)

    def end_all(self, job: str, *, but: str | None = None) -> list[StagedTransaction]:
        """End all runs of the job that have open transactions, or all but one."""
        return [one for run in list(self._runs.get(job, ())) if run != but for one in self.end(job, run)]

    def has_ended(self, job: str, run: str) -> bool:
        """Whether the run was aborted or replaced."""
        return (job, run) in self._ended


def validate_job(job: str | None, run: str) -> None:
    """Raise `InvalidRequest` if these cannot be the names of a job and its run."""
    for name, text in (("job", job), ("run", run)):
        if text is not None and (len(text) > NAME_CHARACTERS_MAX or not text.isprintable()):
            raise InvalidRequest(f"{name} must be at most {NAME_CHARACTERS_MAX} printable characters", path=name)
    if job == "" or (job is None and run):
        raise InvalidRequest("job is required", path="job")
