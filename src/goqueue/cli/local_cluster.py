"""A cluster on this machine: one process per node, over a metadata log in files.

The nodes are processes of `goqueue serve`, as on several machines. They share the directory of the metadata log, and
each has a data directory of its own:

    DIR/metadata    the metadata log
    DIR/node-1 ...  the data of the nodes; DIR/node-1.log has what node 1 logs

A node that ends by itself is not started again: the others go on without it, which is what one may want to see.
"""

import os
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from goqueue.clock import SECOND, SystemClock
from goqueue.errors import GoQueueError

STOP_S = 30.0
_LOOK_S = 0.2


class NodeFailed(GoQueueError):
    """A node of the local cluster could not be started."""

    code = "NODE_FAILED"

    def __init__(self, node: int, reason: str, log: Path) -> None:
        super().__init__(f"node {node} did not start: {reason}; its log is {log}")
        self.node = node
        self.log = str(log)


class LocalNode(NamedTuple):
    """A node that runs."""

    node: int
    process: "subprocess.Popen[str]"
    native: str
    http: str
    peer: str


class NodePorts(NamedTuple):
    """The ports of one node; 0 lets the system choose."""

    native: int
    http: int
    peer: int


def ports_of(node: int, *, native: int, http: int, peer: int) -> NodePorts:
    """The ports of a node, counted from those of the first one; what is 0 stays so."""
    return NodePorts(*(port + node - 1 if port else 0 for port in (native, http, peer)))


@contextmanager
def local_cluster(
    directory: Path, count: int, *, native: int, http: int, peer: int, log_level: str
) -> Iterator[list[LocalNode]]:
    """A running cluster of so many nodes, which stops at the end of the block."""
    directory.mkdir(parents=True, exist_ok=True)
    started: list[tuple[int, subprocess.Popen[str]]] = []
    try:
        for node in range(1, count + 1):
            ports = ports_of(node, native=native, http=http, peer=peer)
            started.append((node, _start(directory, node, ports, log_level)))
        yield [_ready(directory, node, process) for node, process in started]
    finally:
        _stop([process for _, process in started])


def wait_for_end(nodes: list[LocalNode]) -> Iterator[LocalNode]:
    """The nodes that end by themselves, as they do, until none is left."""
    running = list(nodes)
    while running:
        for node in list(running):
            if node.process.poll() is not None:
                running.remove(node)
                yield node
        threading.Event().wait(_LOOK_S)


def _start(directory: Path, node: int, ports: NodePorts, log_level: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "goqueue.cli", "serve", "--data", str(directory / f"node-{node}")]
    command += ["--node-id", str(node), "--metadata", f"file:{directory / 'metadata'}"]
    command += ["--native", f"127.0.0.1:{ports.native}", "--http", f"127.0.0.1:{ports.http}"]
    command += ["--peer", f"127.0.0.1:{ports.peer}", "--log-level", log_level]
    with _log(directory, node).open("a") as log:
        # A session of its own: Ctrl-C in the terminal goes to this process alone, which then stops the nodes in order.
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True)


def _ready(directory: Path, node: int, process: "subprocess.Popen[str]") -> LocalNode:
    """Wait for the line of a node that is ready."""
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line.startswith("goqueue ready"):
        code = process.wait()
        raise NodeFailed(node, _last_words(_log(directory, node)) or f"exit code {code}", _log(directory, node))
    facts = dict(fact.split("=", 1) for fact in shlex.split(line)[2:])
    return LocalNode(node, process, facts["native"], facts["http"], facts["peer"])


def _stop(processes: "list[subprocess.Popen[str]]") -> None:
    """Ask all to stop, and end those that do not. A second Ctrl-C ends all at once."""
    with suppress(KeyboardInterrupt):
        for process in processes:
            process.send_signal(signal.SIGTERM)
        clock = SystemClock()
        deadline_ns = clock.monotonic_ns() + int(STOP_S * SECOND)
        for process in processes:
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, (deadline_ns - clock.monotonic_ns()) / SECOND))
    for process in processes:
        if process.poll() is None:
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
        if process.stdout is not None:
            process.stdout.close()


def _log(directory: Path, node: int) -> Path:
    return directory / f"node-{node}.log"


def _last_words(log: Path) -> str:
    lines = log.read_text(errors="replace").splitlines()
    return lines[-1] if lines else ""
