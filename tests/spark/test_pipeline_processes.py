"""A pipeline as a process of its own: ended by Ctrl-C on the Java of pip, and killed while it archives."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from pyarrow.dataset import dataset

from goqueue.client.sync import Client
from goqueue.testing import EmbeddedBroker
from tests.cli.command_line import run
from tests.spark.conftest import QUICK

Process = subprocess.Popen[bytes]


@pytest.fixture
def server(broker: EmbeddedBroker, client: Client) -> str:
    client.create_topic("orders", partitions=2)
    client.publish_many("orders", [(f"key-{number % 5}", f"value {number}") for number in range(40)])
    return broker.address


@contextmanager
def archiving(server: str, directory: Path, environment: dict[str, str] | None = None) -> Iterator[Process]:
    """`goqueue pipeline archive --continuous`; nothing of it is left behind."""
    arguments = ["pipeline", "archive", "orders", str(directory), "--continuous", "--every", "100ms"]
    arguments += [word for name, value in QUICK.items() for word in ("--conf", f"{name}={value}")]
    command = [sys.executable, "-m", "goqueue.cli", *arguments, "--server", server, "--master", "local[1]"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment, start_new_session=True
    ) as process:
        try:
            yield process
        finally:
            if process.returncode is None:
                os.killpg(process.pid, signal.SIGKILL)


def without_java(tmp_path: Path) -> dict[str, str]:
    """An environment in which the only Java is the one of pip."""
    tools = tmp_path / "bin"
    tools.mkdir()
    for folder in reversed(os.environ["PATH"].split(os.pathsep)):
        if os.path.isdir(folder):
            for name in os.listdir(folder):
                link = tools / name
                if not name.startswith("java") and not link.is_symlink():
                    link.symlink_to(os.path.join(folder, name))
    clean = {name: value for name, value in os.environ.items() if name not in ("JAVA_HOME", "PYSPARK_PYTHON")}
    return clean | {"PATH": str(tools), "XDG_CACHE_HOME": str(tmp_path / "cache")}


def wait_for(client: Client, count: int, process: Process) -> None:
    """Until the group of the job stands there, for all to see."""
    group = "pipeline-archive-orders"
    while group not in client.groups() or sum(one.offset for one in client.group_positions(group)) < count:
        with suppress(subprocess.TimeoutExpired):
            process.wait(0.1)
            pytest.fail(f"it has ended: {process.communicate()}")


@pytest.mark.spark
def test_ctrl_c_ends_a_continuous_job_that_runs_on_the_java_of_pip(server: str, client: Client, tmp_path: Path) -> None:
    environment = without_java(tmp_path)
    assert shutil.which("java", path=environment["PATH"]) is None

    with (
        TemporaryDirectory(prefix="gq-") as temporary,  # whose name is short enough for sockets
        archiving(server, tmp_path / "archive", environment | {"TMPDIR": temporary}) as process,
    ):
        wait_for(client, 40, process)
        client.publish("orders", "more")
        wait_for(client, 41, process)
        sockets = list(Path(temporary).glob("goqueue-spark-*/.*.sock"))
        process.send_signal(signal.SIGINT)
        output, complaint = process.communicate(timeout=60)
        left = [name for name in os.listdir(temporary) if name.startswith("goqueue-")]

    assert (process.returncode, output) == (130, b"")
    lines = complaint.decode().splitlines()
    assert lines[-1] == "archive was interrupted; start it again to continue"
    assert all(line.startswith("archive: archives ") for line in lines[:-1])
    assert dataset(str(tmp_path / "archive"), format="parquet").count_rows() == 41
    assert sockets
    assert left == []


@pytest.mark.usefixtures("spark")
def test_a_job_that_is_killed_while_it_archives_is_gone_on_with(server: str, client: Client, tmp_path: Path) -> None:
    directory = tmp_path / "archive"

    with archiving(server, directory) as process:
        wait_for(client, 40, process)
        for number in range(3):  # the last of them while it is being archived
            client.publish_many("orders", [(f"key-{place}", b"x" * 1_000) for place in range(2_000)])
            wait_for(client, 40 + 2_000 * number, process)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    after = run("pipeline", "archive", "orders", str(directory), server=server)
    verified = run("pipeline", "archive", "orders", str(directory), "--verify", server=server)

    assert (after.code, verified.code) == (0, 0), verified.complaint
    assert "archive and topic are identical" in verified.output.decode()
    assert client.describe_group("pipeline-archive-orders").lag == 0
