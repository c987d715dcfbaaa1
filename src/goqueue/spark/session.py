"""A Spark session on this machine, with settings for one machine.

Spark's defaults are for a cluster: 200 shuffle partitions, a web UI for each session, a catalog in a database of its
own, the address of the machine looked up by name. With the settings here a session starts in 7 to 8 seconds instead of
10 to 13, and a small job has no hundreds of empty tasks. Times are in UTC, as everywhere in GoQueue, because a day of
an archive must not depend on its reader's machine. Settings in `conf` override these.
"""

import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from goqueue.errors import GoQueueError
from goqueue.spark.java import use_java
from goqueue.spark.python import SOCKETS, near_workers, worker_python

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DEFAULT_MASTER = "local[*]"
_LAUNCHER = "/bin/spark-class: line"  # a shell error of the launch script, never the cause
STREAMING = "org.apache.spark.sql.execution.streaming.checkpointing"

EVERYWHERE = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.pyspark.udf.hideTraceback.enabled": "true",  # the frames of PySpark hide the line of the user
    "spark.ui.showConsoleProgress": "false",
}
LOCALLY = {
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.catalogImplementation": "in-memory",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.log.level": "ERROR",
    # halves the time of a checkpoint: the default adds a layer that a local disk does not need
    "spark.sql.streaming.checkpointFileManagerClass": f"{STREAMING}.FileSystemBasedCheckpointFileManager",
}


class SparkNotInstalled(GoQueueError):
    """The extra `goqueue[spark]` is not installed."""

    code = "SPARK_NOT_INSTALLED"

    def __init__(self, missing: str) -> None:
        super().__init__(f"the Spark pipeline needs {missing}; install it with: pip install 'goqueue[spark]'")
        self.missing = missing


class SparkNotStarted(GoQueueError):
    """Spark is installed, but does not start."""

    code = "SPARK_NOT_STARTED"

    def __init__(self, master: str, reason: str) -> None:
        super().__init__(f"Spark does not start at {master}: {reason}")
        self.master = master
        self.reason = reason


def check_installed(*, plots: bool = False) -> None:
    """Raise `SparkNotInstalled` if Spark or, with `plots`, matplotlib is not installed."""
    try:
        import pyarrow  # noqa: F401
        import pyspark.sql  # noqa: F401

        if plots:
            import matplotlib.figure  # noqa: F401
    except ImportError as error:
        raise SparkNotInstalled((error.name or str(error)).partition(".")[0]) from None


def local_session(
    app_name: str = "goqueue",
    *,
    master: str = DEFAULT_MASTER,
    conf: Mapping[str, str] | None = None,
    log_path: str | None = None,
) -> "SparkSession":
    """The active session of this process, or a new one. A new one with a local `master` has the settings for one
    machine, any other only `EVERYWHERE`. The standard error of a new one goes to `log_path` if that is given.
    """
    check_installed()
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    active = SparkSession.getActiveSession()
    if active is not None:
        return active
    use_java()
    chosen = settings(master, conf)
    near: dict[str, str] = {}
    if is_local(master):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")  # or Spark looks the address up, and warns
        python = worker_python()
        # Unix sockets only with our script: the workers of another Python would print tracebacks (`daemon.py`)
        if os.environ.setdefault("PYSPARK_PYTHON", python) == python != sys.executable:
            near = near_workers(tempfile.gettempdir())
    builder = SparkSession.builder.appName(app_name).master(master)
    for name, value in (near | chosen).items():
        builder = builder.config(name, value)
    try:
        with _errors_written_to(log_path):
            session = builder.getOrCreate()
    except (PySparkException, OSError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise SparkNotStarted(master, f"{reason}{_last_words(log_path)}") from error
    if near:
        _remove_with_java(session, near[SOCKETS])
    return session


def settings(master: str = DEFAULT_MASTER, conf: Mapping[str, str] | None = None) -> dict[str, str]:
    """The settings of a session at that master; `conf` overrides ours."""
    return EVERYWHERE | (LOCALLY if is_local(master) else {}) | dict(conf or {})


def is_local(master: str) -> bool:
    """Whether all of Spark runs on this machine."""
    return master == "local" or master.startswith("local[")


def _remove_with_java(session: "SparkSession", directory: str) -> None:
    """Let Java remove the directory: Java ends after this process, even if this process is killed."""
    java = session.sparkContext._jvm
    assert java is not None
    java.org.apache.spark.util.ShutdownHookManager.registerShutdownDeleteDir(java.java.io.File(directory))


@contextmanager
def _errors_written_to(path: str | None) -> Iterator[None]:
    """Processes that are started in the block write their standard error to the file, also after the block."""
    if path is None:
        yield
        return
    sys.stderr.flush()
    before = os.dup(2)
    with open(path, "ab") as file:
        os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(before, 2)
        os.close(before)


def _last_words(path: str | None) -> str:
    if path is None:
        return ""
    with open(path, errors="replace") as file:
        lines = [line.strip() for line in file if line.strip() and _LAUNCHER not in line]
    return f" ({lines[-1]})" if lines else ""


def temporary_log() -> str:
    """A new temporary file for the log of Spark."""
    descriptor, path = tempfile.mkstemp(prefix="goqueue-spark-", suffix=".log")
    os.close(descriptor)
    return path
