"""The state of a run of a pipeline that publishes: its plan, and the parts of it that are done.

A transaction of the sink cannot stay open for long, so a run publishes in parts, each in one transaction with its own
marker. A part must be the same when it is repeated. So the plan is fixed and stored before the first part: which offset
"latest" was, which time "2h ago" was. Each part is recorded as done after its transaction. If a run dies between the
two, the broker recognizes the repeated part by its marker.

    <directory>/<run>/plan.json         the plan; written once
    <directory>/<run>/parts/000007      that part is done

A run has a name. The default name is a hash of source, target and options: the same command, started again, continues
the same run, and does nothing once it is done. The hash has the id of a topic, and the real path of an archive with the
id of its topic: a target that was deleted and created again is another run, and so is `./archive` in another directory.
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
    """A run of that name was started with other arguments."""

    code = "RUN_CHANGED"

    def __init__(self, run: str) -> None:
        super().__init__(f"run {run} was started with other arguments; pass another name with --run")
        self.run = run


class RunBusy(Conflict):
    """Another process executes the run of that name."""

    code = "RUN_BUSY"
    retryable = True

    def __init__(self, run: str) -> None:
        super().__init__(f"run {run} is already running in another process")
        self.run = run


class PipelineRun(Generic[PlanType]):
    """A new or continued run. Made by `resumed`."""

    def __init__(self, name: str, store: LocalStore, kind: type[PlanType]) -> None:
        self.name = name
        self._store = store
        self._kind = kind

    def plan(self) -> PlanType | None:
        """The plan; None if it is not fixed yet."""
        try:
            return msgspec.json.decode(self._store.read(PLAN), type=self._kind)
        except FileNotFoundError:
            return None
        except msgspec.DecodeError as error:
            raise InvalidConfig("run", self.name, f"its plan cannot be read: {error}") from None

    def settle(self, plan: PlanType) -> PlanType:
        """Store the plan, which never changes after that."""
        self._store.publish(PLAN, msgspec.json.encode(plan))
        return plan

    def done(self) -> dict[int, int]:
        """The parts that are done, with the number of their messages."""
        return {int(path.rpartition("/")[2]): int(self._store.read(path)) for path in self._store.files("parts")}

    def note(self, part: int, message_count: int) -> None:
        """Record that the transaction of the part is committed."""
        self._store.publish(f"parts/{part:06d}", str(message_count).encode())


@contextmanager
def resumed(directory: str, name: str, kind: type[PlanType]) -> Iterator[PipelineRun[PlanType]]:
    """The run of that name, new or continued, locked against other processes. Raises `RunBusy`."""
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
    """The default name of the run with those arguments."""
    return f"{pipeline}-{hashlib.sha256(repr(arguments).encode()).hexdigest()[:12]}"


def archive_identity(directory: str) -> tuple[str, str]:
    """The identity of an archive, independent of the working directory: its real path, and the id of its topic."""
    store = LocalStore(directory)
    return os.path.realpath(store.directory), looked_at(store).manifest.topic_id


def runs_directory(pipeline: str) -> str:
    """The directory of the runs of this user."""
    base = os.environ.get("XDG_STATE_HOME") or os.path.join(os.path.expanduser("~"), ".local", "state")
    return os.path.join(base, "goqueue", pipeline)
