"""`goqueue cluster start-local`: a cluster of processes, for trying it and for machines with many cores."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from goqueue import Client
from goqueue.cli.local_cluster import ports_of

ENDS_S = 60


@contextmanager
def started(count: int, directory: Path, *more: str) -> Iterator["subprocess.Popen[str]"]:
    """The command, with the system choosing all ports."""
    command = [sys.executable, "-m", "goqueue.cli", "cluster", "start-local", str(count), "--data", str(directory)]
    command += ["--native", "0", "--http", "0", "--peer", "0", *more]
    environment = {**os.environ, "COLUMNS": "120", "PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, start_new_session=True
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        process.communicate(timeout=ENDS_S)


def lines_until(process: "subprocess.Popen[str]", end: str) -> list[str]:
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line.rstrip())
        if end in line:
            return lines
    raise AssertionError(f"{end!r} never came: {lines}")


def pids_in(lines: list[str]) -> dict[int, int]:
    """The pid of each node, from the table."""
    cells = [line.split() for line in lines]
    return {int(row[0]): int(row[1]) for row in cells if len(row) == 5 and row[0].isdigit()}


def is_alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def test_it_prints_its_nodes_and_how_to_reach_them_until_ctrl_c(tmp_path: Path) -> None:
    with started(2, tmp_path / "a cluster") as process:
        lines = lines_until(process, "Ctrl-C stops all nodes")
        pids = pids_in(lines)
        (export,) = [line for line in lines if line.startswith("export ")]

        with Client(export.removeprefix("export GOQUEUE_SERVER="), timeout="30s") as gq:
            gq.create_topic("orders", partitions=2)
            assert sorted(node.id for node in gq.cluster.nodes()) == sorted(pids) == [1, 2]
        os.kill(pids[2], signal.SIGKILL)
        lines_until(process, "node 2 has ended with exit code -9")
        process.send_signal(signal.SIGINT)
        process.wait(ENDS_S)

        assert process.returncode == 0
        assert not any(is_alive(pid) for pid in pids.values())


def test_a_node_that_cannot_start_is_named_with_its_log(tmp_path: Path) -> None:
    (tmp_path / "node-2").mkdir()
    (tmp_path / "node-2" / "letter.txt").write_text("not a file of a queue")

    with started(2, tmp_path) as process:
        _, error = process.communicate(timeout=ENDS_S)

        assert process.returncode == 1
        assert "node 2 did not start" in error
        assert "letter.txt" in error.replace("\n", "")
        assert "node-2.log" in error.replace("\n", "")


def test_ports_count_up_from_the_first_node() -> None:
    assert ports_of(3, native=7000, http=8080, peer=7100) == (7002, 8082, 7102)
    assert ports_of(3, native=0, http=8080, peer=0) == (0, 8082, 0)
