"""The parent of Spark's Python workers on this machine, whose workers end quietly when their session has ended.

Java and its workers talk over Unix sockets here. When a session ends, PySpark's workers take the end of their socket
for a broken task and report it over that socket: the loopback swallows such a report, a Unix socket refuses it, and
each worker would end with a traceback on the user's screen.

Spark runs this as a program, with the kind of worker as its argument.
"""

import socket
from collections.abc import Callable

from pyspark import daemon

GONE = 1  # anything but 0 tells the daemon that this worker takes no further task
Worker = Callable[[socket.socket, bool], int]


def quiet(work: Worker) -> Worker:
    """That worker, which ends silently if its socket is closed."""

    def worker(sock: socket.socket, authenticated: bool) -> int:
        try:
            return work(sock, authenticated)
        except ConnectionError:
            return GONE

    return worker


if __name__ == "__main__":
    daemon.worker = quiet(daemon.worker)  # type: ignore[assignment]  # a function like that one
    daemon.manager()
