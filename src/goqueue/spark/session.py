"""A Spark session on this machine, with the settings that fit one.

What Spark chooses by itself is for a cluster: 200 shuffle partitions, a web page for each session, a catalog in a
database of its own, the address of the machine looked up by name. Here a session starts in 7 to 8 seconds instead of
10 to 13 and does a small job without hundreds of empty tasks. Times are in UTC, as everywhere in GoQueue, because a day
of an archive must not depend on its reader's machine. What is set in `conf` wins.
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
_LAUNCHER = "/bin/spark-class: line"  # a script that trips over an end which it does not expect
STREAMING = "org.apache.spark.sql.execution.streaming.checkpointing"

EVERYWHERE = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.pyspark.udf.hideTraceback.enabled": "true",  # the user's own line is what helps
    "spark.ui.showConsoleProgress": "false",
}
LOCALLY = {
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.catalogImplementation": "in-memory",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.log.level": "ERROR",
    # half the time of a checkpoint; the default goes through a second layer that a local disk does not need
    "spark.sql.streaming.checkpointFileManagerClass": f"{STREAMING}.FileSystemBasedCheckpointFileManager",
}


class SparkNotInstalled(GoQueueError):
    """The extra `goqueue[spark]` is not installed."""

    code = "SPARK_NOT_INSTALLED"

    def __init__(self, missing: str) -> None:
        super().__init__(f"the Spark pipeline needs {missing}; install it with: pip install 'goqueue[spark]'")
        self.missing = missing


class SparkNotStarted(GoQueueError):
    """Spark is installed and does not start."""

    code = "SPARK_NOT_STARTED"

    def __init__(self, master: str, reason: str) -> None:
        super().__init__(f"Spark does not start at {master}: {reason}")
        self.master = master
        self.reason = reason


def check_installed(*, plots: bool = False) -> None:
    """Raise an error that says what to install, if Spark is not, or what draws plots."""
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
    """The session of this process, or a new one with settings for one machine; on another `master` only with those
    that hold everywhere. What a new one has to say to standard error goes to `log_path` if there is one.
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
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")  # or Spark warns of what it looked up
        python = worker_python()
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
    """What a session at that master is made with."""
    return EVERYWHERE | (LOCALLY if is_local(master) else {}) | dict(conf or {})


def is_local(master: str) -> bool:
    """Whether all of Spark runs on this machine."""
    return master == "local" or master.startswith("local[")


def _remove_with_java(session: "SparkSession", directory: str) -> None:
    """Java ends after this process, whatever ended it, and is the one to clear up where that was no end of its own."""
    java = session.sparkContext._jvm
    assert java is not None
    java.org.apache.spark.util.ShutdownHookManager.registerShutdownDeleteDir(java.java.io.File(directory))


@contextmanager
def _errors_written_to(path: str | None) -> Iterator[None]:
    """Standard error of the processes that are started meanwhile, for as long as they live, is that file."""
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
    """A new file for what Spark says while a pipeline runs."""
    descriptor, path = tempfile.mkstemp(prefix="goqueue-spark-", suffix=".log")
    os.close(descriptor)
    return path
