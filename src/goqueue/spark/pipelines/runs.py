"""What a run of a pipeline that publishes has to remember: what it is to do, and which part of that is done.

A sink's transaction cannot stay open for long, so much work is done in parts, each in one transaction with a marker
of its own. For a part to be the same when it is done again, what the run is to do is settled once, before the first
part, and written down: where "latest" was, what "two hours ago" meant. Then each part that is done is noted, after its
transaction; what happened in between a broker recognizes by the marker.

    <directory>/<run>/plan.json         what is to be done; written once
    <directory>/<run>/parts/000007      that part is done

A run has a name. Unless it is given one, that is made of what it reads, what it writes and how: so the same command,
started again, is the same run and goes on, and once it is done does nothing. A topic counts by its id there and an
archive by its real path and the id of its topic: a target that was deleted and made again is another one, and so is
`./archive` in another directory.
"""

import hashlib
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

import msgspec

from goqueue.errors import Conflict, InvalidConfig
from goqueue.spark.pipelines.manifest import looked_at
from goqueue.spark.pipelines.store import ArchiveBusy, LocalStore

PLAN = "plan.json"
LOCK = "lock"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}")

PlanType = TypeVar("PlanType", bound=msgspec.Struct)


class RunChanged(Conflict):
    """A run of that name was begun with other arguments."""

    code = "RUN_CHANGED"

    def __init__(self, run: str) -> None:
        super().__init__(f"run {run} was begun with other arguments; give this one another name")
        self.run = run


class RunBusy(Conflict):
    """A run of that name is going on."""

    code = "RUN_BUSY"
    retryable = True

    def __init__(self, run: str) -> None:
        super().__init__(f"run {run} is going on already")
        self.run = run


class PipelineRun(Generic[PlanType]):
    """A run that goes on. Made by `resumed`."""

    def __init__(self, name: str, store: LocalStore, kind: type[PlanType]) -> None:
        self.name = name
        self._store = store
        self._kind = kind

    def plan(self) -> PlanType | None:
        """What is to be done, if that is settled."""
        try:
            return msgspec.json.decode(self._store.read(PLAN), type=self._kind)
        except FileNotFoundError:
            return None
        except msgspec.DecodeError as error:
            raise InvalidConfig("run", self.name, f"its plan cannot be read: {error}") from None

    def settle(self, plan: PlanType) -> PlanType:
        """Settle what is to be done, for as often as the run is started."""
        self._store.publish(PLAN, msgspec.json.encode(plan))
        return plan

    def done(self) -> dict[int, int]:
        """The parts that are, with the number of their messages."""
        return {int(path.rpartition("/")[2]): int(self._store.read(path)) for path in self._store.files("parts")}

    def note(self, part: int, message_count: int) -> None:
        """That part is done, and its transaction is committed."""
        self._store.publish(f"parts/{part:06d}", str(message_count).encode())


@contextmanager
def resumed(directory: str, name: str, kind: type[PlanType]) -> Iterator[PipelineRun[PlanType]]:
    """The run of that name, new or continued, locked against other processes."""
    if not _NAME.fullmatch(name):
        raise InvalidConfig("run", name, "must be up to 80 letters, digits, dots, dashes and underscores")
    store = LocalStore(os.path.join(directory, name))
    try:
        with store.locked(LOCK):
            yield PipelineRun(name, store, kind)
    except ArchiveBusy as error:
        if error.directory != store.directory:
            raise
        raise RunBusy(name) from None


def run_name(pipeline: str, *arguments: object) -> str:
    """The name of the run with those arguments."""
    return f"{pipeline}-{hashlib.sha256(repr(arguments).encode()).hexdigest()[:12]}"


def archive_identity(directory: str) -> tuple[str, str]:
    """Which archive that is, wherever the command is started: its real path, and the id of its topic."""
    store = LocalStore(directory)
    return os.path.realpath(store.directory), looked_at(store).manifest.topic_id


def runs_directory(pipeline: str) -> str:
    """Where the runs of a user are noted."""
    base = os.environ.get("XDG_STATE_HOME") or os.path.join(os.path.expanduser("~"), ".local", "state")
    return os.path.join(base, "goqueue", pipeline)
