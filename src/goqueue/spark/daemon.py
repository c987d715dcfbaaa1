"""The parent process of Spark's Python workers on this machine. Its workers end without a traceback.

Java and its workers use Unix sockets here. When a session ends, a worker of PySpark takes the closed socket for a
failed task and reports that over the same socket. Over TCP the report is dropped; over a Unix socket the write fails,
and each worker would print a traceback to the terminal.

Spark runs this as a program, with the kind of worker as its argument.
"""

import socket
from collections.abc import Callable

from pyspark import daemon

GONE = 1  # any exit code but 0 tells the daemon not to reuse this worker
Worker = Callable[[socket.socket, bool], int]


def quiet(work: Worker) -> Worker:
    """The worker, except that it ends without a traceback if its socket is closed."""

    def worker(sock: socket.socket, authenticated: bool) -> int:
        try:
            return work(sock, authenticated)
        except ConnectionError:
            return GONE

    return worker


if __name__ == "__main__":
    daemon.worker = quiet(daemon.worker)  # type: ignore[assignment]  # the same signature
    daemon.manager()
