"""A command of a page, handed to a process that has imported goqueue already: see `warm.py`.

    python -I -S warm_command.py SOCKET goqueue ARGUMENTS...
    python -I -S warm_command.py SOCKET python FILE

It passes its files, environment and directory on, forwards signals, and exits with the code that comes back. It
imports next to nothing, because it is started for every command.
"""

import marshal
import os
import signal
import socket
import sys


def run(path: str, words: list[str]) -> int:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.connect(path)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda received, _: connection.send(marshal.dumps(received)))
        request = marshal.dumps((words, os.getcwd(), dict(os.environ)))
        socket.send_fds(connection, [request], [0, 1, 2])
        answer = connection.recv(64)
    return int(marshal.loads(answer)) if answer else 1


if __name__ == "__main__":
    sys.exit(run(sys.argv[1], sys.argv[2:]))
