"""The environment of a pipeline: a session, a client, a reporter of progress, and readable errors.

A job gets a session, or starts one and stops it at the end; its settings are in an inner session. It reports its
progress to a `Reporter`, such as a progress bar. An error of Spark or of the broker becomes one sentence: Spark wraps
an error on an executor in the stack of each process that it passes, and the last line of Python's traceback among
those 200 lines is the cause.

A job that is killed is started again with the same arguments. No job keeps its only state in memory: what is done is in
a manifest or in a transaction, and is shown as the position of the consumer group `group_of(...)`.
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
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",  # the default has no statistics for skipping
    "spark.sql.maxConcurrentOutputFileWriters": "16",  # several days are written at the same time, instead of sorted
}
_ERROR_LINE = re.compile(r"^(?:[\w.]+\.)?([A-Z]\w*): (\S.*)$")
_PYTHON_ERROR_LINE = re.compile(r"^(?:[a-z_]\w*\.)*[A-Z]\w*(?:: \S.*)?$")
_CONDITION = re.compile(r"^\[[A-Z0-9_.]+\] ")
_SQLSTATE = re.compile(r"\s*SQLSTATE: \w+\s*$")


class PipelineFailed(GoQueueError):
    """A pipeline failed before it was done; a restart continues it."""

    code = "PIPELINE_FAILED"

    def __init__(self, pipeline: str, reason: str) -> None:
        super().__init__(f"{pipeline}: {reason}")
        self.pipeline = pipeline
        self.reason = reason


class JobProgress(NamedTuple):
    """The progress of a job, in messages."""

    phase: str  # what the job does, in one or two words
    done: int  # durably: never done again
    pending: int  # in progress
    total: int  # as known now
    elapsed_ns: int  # since the first report

    @property
    def lag(self) -> int:
        """The messages that are not done yet."""
        return max(0, self.total - self.done)

    @property
    def rate(self) -> float:
        """Messages per second since the first report."""
        return self.done * SECOND / self.elapsed_ns if self.elapsed_ns else 0.0


Reporter = Callable[[JobProgress], None]


def _nobody(_: JobProgress) -> None:
    """The default reporter, which ignores progress."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobConfig:
    """The broker and the Spark master of a job, and its settings."""

    server: str
    master: str = DEFAULT_MASTER
    conf: Mapping[str, str] = field(default_factory=dict)  # Spark settings, which override ours
    log_path: str | None = None  # the file for the log of Spark; None: standard error


class PipelineJob:
    """A running pipeline. Made by `running`."""

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
        """The rows that the options of the source select."""
        reader = self.spark.read.format("goqueue")
        for name, value in {**self.connection(), **options}.items():
            reader = reader.option(name, _text(value))
        return reader.load()

    def connection(self) -> dict[str, str]:
        """The options of source and sink for the broker: executors do not have the environment of the driver."""
        key = default_api_key()
        return {"server": self.config.server} | ({"apiKey": key} if key else {})

    def report(self, phase: str, done: int, total: int, *, pending: int = 0) -> None:
        """Report the progress of the job to its reporter."""
        now_ns = self.clock.monotonic_ns()
        if self._began_ns is None:
            self._began_ns = now_ns
        self._reporter(JobProgress(phase, done, pending, total, now_ns - self._began_ns))

    def tasks(self) -> tuple[int, int]:
        """The number of finished tasks in Spark's active stages, and of all their tasks."""
        done = total = 0
        tracker = self.spark.sparkContext.statusTracker()
        for stage_id in tracker.getActiveStageIds():
            stage = tracker.getStageInfo(stage_id)
            if stage is not None:
                done += stage.numCompletedTasks
                total += stage.numTasks
        return done, total

    def rest(self, seconds: float) -> bool:
        """Wait; False if the job has to end."""
        return not self._is_over.wait(seconds)

    def end(self) -> None:
        """End a continuous job after its current step."""
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
    """A job with its client and its session; both are closed after the block, except a session that was passed in."""
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
    """Keep PySpark from printing errors as JSON: the job reports them as one sentence."""
    from pyspark.logger import PySparkLogger

    for name in ("DataFrameQueryContextLogger", "SQLQueryContextLogger"):
        PySparkLogger.getLogger(name).disabled = True


def group_of(pipeline: str, topic: str) -> str:
    """The consumer group whose positions show the progress of a pipeline in a topic."""
    return f"pipeline-{pipeline}-{topic}"


def reason_of(text: str) -> str:
    """The sentence of a Spark error that names the cause."""
    lines = [line.strip() for line in text.splitlines()]
    reason = _cause(lines) or next(filter(None, lines), "Spark says nothing")
    reason = _SQLSTATE.sub("", _CONDITION.sub("", reason))
    return reason if len(reason) <= REASON_CHARACTERS else f"{reason[: REASON_CHARACTERS - 1]}…"


def _cause(lines: list[str]) -> str | None:
    """The error at the end of the last Python traceback; without one, the message of the innermost Java exception."""
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
