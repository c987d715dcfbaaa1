"""What every pipeline runs in: a session, a client, a reporter of progress, and readable errors.

A job is given a session, or starts one and stops it at the end; its settings are its own, in a session within. It
reports its progress to a `Reporter`, such as a progress bar. An error of Spark or of the broker comes out as
one sentence: Spark wraps what went wrong on an executor in the stack of each process that it passed, and of those two
hundred lines the last of Python's is the cause.

A job that is killed is started again with the same arguments. None keeps state in memory that would be missed: what is
done stands in a manifest or in a transaction, and is shown as the position of the consumer group `group_of(...)`.
"""

import re
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from goqueue.client.environment import default_api_key
from goqueue.client.sync import Client
from goqueue.clock import SECOND, Clock, SystemClock
from goqueue.errors import GoQueueError
from goqueue.spark.session import DEFAULT_MASTER, EVERYWHERE, check_installed, local_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

REASON_CHARACTERS = 600
SETTINGS = EVERYWHERE | {
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",  # the default has no statistics to skip files by
    "spark.sql.maxConcurrentOutputFileWriters": "16",  # days are written side by side, instead of sorted
}
_ERROR_LINE = re.compile(r"^(?:[\w.]+\.)?([A-Z]\w*): (\S.*)$")
_PYTHON_ERROR_LINE = re.compile(r"^(?:[a-z_]\w*\.)*[A-Z]\w*(?:: \S.*)?$")
_CONDITION = re.compile(r"^\[[A-Z0-9_.]+\] ")
_SQLSTATE = re.compile(r"\s*SQLSTATE: \w+\s*$")


class PipelineFailed(GoQueueError):
    """A pipeline stopped before it was done; started again, it goes on where it stood."""

    code = "PIPELINE_FAILED"

    def __init__(self, pipeline: str, reason: str) -> None:
        super().__init__(f"{pipeline}: {reason}")
        self.pipeline = pipeline
        self.reason = reason


class JobProgress(NamedTuple):
    """How far a job is, in messages."""

    phase: str  # what it does, in a word or two
    done: int  # and not to be done again, whatever happens
    pending: int  # being worked on
    total: int  # as far as is known by now
    elapsed_ns: int  # since the first report

    @property
    def lag(self) -> int:
        """How many are not done yet."""
        return max(0, self.total - self.done)

    @property
    def rate(self) -> float:
        """Messages per second, all in all."""
        return self.done * SECOND / self.elapsed_ns if self.elapsed_ns else 0.0


Reporter = Callable[[JobProgress], None]


def _nobody(_: JobProgress) -> None:
    """The reporter of a job that is not watched."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobConfig:
    """Where a job runs, and whom it talks to."""

    server: str
    master: str = DEFAULT_MASTER
    conf: Mapping[str, str] = field(default_factory=dict)  # settings of Spark, over ours
    log_path: str | None = None  # where Spark's own words go; None leaves them on standard error


class PipelineJob:
    """A pipeline that runs. Made by `running`."""

    def __init__(
        self, name: str, config: JobConfig, spark: "SparkSession", client: Client, reporter: Reporter, clock: Clock
    ) -> None:
        self.name = name
        self.config = config
        self.spark = spark
        self.client = client
        self.clock = clock
        self._reporter = reporter
        self._began_ns: int | None = None
        self._is_over = threading.Event()

    def read(self, topic: str, **options: object) -> "DataFrame":
        """The rows of a topic; options as those of the source."""
        return self.topics(subscribe=topic, **options)

    def topics(self, **options: object) -> "DataFrame":
        """The rows of whatever the options of the source say."""
        reader = self.spark.read.format("goqueue")
        for name, value in {**self.connection(), **options}.items():
            reader = reader.option(name, _text(value))
        return reader.load()

    def connection(self) -> dict[str, str]:
        """The options by which source and sink find the broker, wherever they run."""
        key = default_api_key()
        return {"server": self.config.server} | ({"apiKey": key} if key else {})

    def report(self, phase: str, done: int, total: int, *, pending: int = 0) -> None:
        """Tell how far the job is."""
        now_ns = self.clock.monotonic_ns()
        if self._began_ns is None:
            self._began_ns = now_ns
        self._reporter(JobProgress(phase, done, pending, total, now_ns - self._began_ns))

    def tasks(self) -> tuple[int, int]:
        """How many tasks of what Spark works on now are done, and how many there are."""
        done = total = 0
        tracker = self.spark.sparkContext.statusTracker()
        for stage_id in tracker.getActiveStageIds():
            stage = tracker.getStageInfo(stage_id)
            if stage is not None:
                done += stage.numCompletedTasks
                total += stage.numTasks
        return done, total

    def rest(self, seconds: float) -> bool:
        """Wait that long for more to do; False if the job is to end instead."""
        return not self._is_over.wait(seconds)

    def end(self) -> None:
        """Let a job that would go on for ever come to its end."""
        self._is_over.set()


@contextmanager
def running(
    name: str,
    config: JobConfig,
    *,
    spark: "SparkSession | None" = None,
    reporter: Reporter = _nobody,
    clock: Clock | None = None,
) -> Iterator[PipelineJob]:
    """A job with its session and its client, both ended with it unless the session was given."""
    check_installed()
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    session = spark or SparkSession.getActiveSession()
    is_own = session is None
    if session is None:
        _hush()
        session = local_session(f"goqueue-{name}", master=config.master, conf=config.conf, log_path=config.log_path)
    inner = session.newSession()
    for setting, value in (SETTINGS | dict(config.conf)).items():
        if inner.conf.isModifiable(setting):
            inner.conf.set(setting, value)
    try:
        with Client(config.server, client_id=f"goqueue-pipeline-{name}") as client:
            yield PipelineJob(name, config, inner, client, reporter, clock or SystemClock())
    except (PySparkException, Py4JError) as error:
        raise PipelineFailed(name, reason_of(str(error))) from error
    except OSError as error:
        if error.filename is None:  # not an error about a file
            raise
        raise PipelineFailed(name, f"{error.filename}: {error.strerror}") from error
    finally:
        if is_own:
            session.stop()


def _hush() -> None:
    """Let PySpark not print an error as JSON that is about to be told in a sentence."""
    from pyspark.logger import PySparkLogger

    for name in ("DataFrameQueryContextLogger", "SQLQueryContextLogger"):
        PySparkLogger.getLogger(name).disabled = True


def group_of(pipeline: str, topic: str) -> str:
    """The consumer group that shows how far a pipeline is in a topic."""
    return f"pipeline-{pipeline}-{topic}"


def reason_of(text: str) -> str:
    """The one sentence of an error of Spark's that says what went wrong."""
    lines = [line.strip() for line in text.splitlines()]
    reason = _cause(lines) or next(filter(None, lines), "Spark says nothing")
    reason = _SQLSTATE.sub("", _CONDITION.sub("", reason))
    return reason if len(reason) <= REASON_CHARACTERS else f"{reason[: REASON_CHARACTERS - 1]}…"


def _cause(lines: list[str]) -> str | None:
    """What the last traceback of Python's ends with; without one, what the innermost exception of Java's says."""
    tracebacks = [number for number, line in enumerate(lines) if line.endswith("Traceback (most recent call last):")]
    if tracebacks:
        for line in lines[tracebacks[-1] + 1 :]:
            if line.startswith("at ") or not line:
                break
            if _PYTHON_ERROR_LINE.match(line):
                return line.partition(": ")[2] or line
    causes = [line.removeprefix("Caused by: ") for line in lines if line.startswith("Caused by: ")]
    if causes:
        said = _ERROR_LINE.match(causes[-1])
        return said[2] if said else causes[-1]
    return None


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
