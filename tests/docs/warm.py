"""Processes that have imported what a page needs before its commands come.

Starting Python and importing goqueue takes half a second, starting Spark ten seconds, and pages have hundreds of
commands. So a command goes to a process that has done both:

    goqueue COMMAND, a program     `Forks`: a fork of a process with goqueue imported. It has the files, environment,
                                   directory and exit code of the command that the page shows, and ends as any program
                                   does, with its exit handlers.
    the same with Spark in it      `Sessions`: one process runs all of them, one after the other, each in a new Spark
                                   session, because a Java machine cannot be forked.

A `goqueue serve` that a page shows is a process of its own, and with `GOQUEUE_DOCS=all` everything is.
"""

import gc
import marshal
import os
import selectors
import signal
import socket
import subprocess
import sys
import traceback
import types
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

COMMAND = Path(__file__).with_name("warm_command.py")
REQUEST_BYTES_MAX = 128 * 1024
READY = "ready"


class Request(NamedTuple):
    """A command, where it runs, and its standard files."""

    words: list[str]
    directory: str
    environment: dict[str, str]
    files: list[int]


@contextmanager
def started(kind: str, path: Path, environment: Mapping[str, str]) -> Iterator[None]:
    """A process of that kind waits for commands at the path. Java stays in the directory that it was started in."""
    process = subprocess.Popen(
        [sys.executable, "-P", __file__, kind, str(path)],
        cwd=path.parent,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout
        assert process.stdout.readline().strip() == READY
        yield
    finally:
        process.terminate()
        process.communicate()


def clean_environment() -> dict[str, str]:
    """That of the tests without settings of GoQueue; it is good in any directory."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("GOQUEUE_")}
    if paths := clean.get("PYTHONPATH"):
        clean["PYTHONPATH"] = os.pathsep.join(map(os.path.abspath, paths.split(os.pathsep)))
    return clean | {"COLUMNS": "120", "NO_COLOR": "1"}


def command(path: Path) -> list[str]:
    """The words to put before a command that the process at the path is to run."""
    return [sys.executable, "-I", "-S", str(COMMAND), str(path)]


def execute(words: Sequence[str]) -> None:
    """Be the program that the words name; it ends as it would by itself."""
    what, *arguments = words
    if what == "goqueue":
        from goqueue.cli.main import main

        sys.argv = ["goqueue", *arguments]
        main()
        return
    (file,) = arguments
    sys.argv = [file]
    sys.path.insert(0, os.path.dirname(os.path.abspath(file)))
    module = types.ModuleType("__main__")
    module.__file__ = file
    sys.modules["__main__"] = module  # until the end of the process, as that of any program
    exec(compile(Path(file).read_text(), file, "exec"), module.__dict__)


def take_over(request: Request) -> None:
    """Have the files, directory and environment of the command."""
    for number, file in enumerate(request.files):
        os.dup2(file, number)
        os.close(file)
    os.chdir(request.directory)
    os.environ.clear()
    os.environ.update(request.environment)


def receive(connection: socket.socket) -> Request | None:
    data, files, _, _ = socket.recv_fds(connection, REQUEST_BYTES_MAX, 3)
    return Request(*marshal.loads(data), files) if data else None


class Forks:
    """Runs each command in a child of its own."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ, self._accept)
        self._program: Callable[[], None] | None = None

    def serve(self) -> Callable[[], None]:
        """Returns only in a child, with what it is to do."""
        while self._program is None:
            for key, _ in self._selector.select():
                key.data()
                if self._program:
                    break
        return self._program

    def _accept(self) -> None:
        connection, _ = self._listener.accept()
        request = receive(connection)
        if request is None:
            connection.close()
            return
        child = os.fork()
        if child == 0:
            self._selector.close()
            self._listener.close()
            connection.close()
            os.setsid()
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            self._program = lambda: self._be(request)
            return
        for file in request.files:
            os.close(file)
        ended = os.pidfd_open(child)
        self._selector.register(connection, selectors.EVENT_READ, lambda: self._signal(connection, child))
        self._selector.register(ended, selectors.EVENT_READ, lambda: self._answer(connection, child, ended))

    def _be(self, request: Request) -> None:
        take_over(request)
        if request.words[0] == "python":
            warnings.simplefilter("error")
        execute(request.words)

    def _signal(self, connection: socket.socket, child: int) -> None:
        """Pass a signal on; whoever sent the command is gone if there is none."""
        received = connection.recv(64)
        if received:
            os.kill(child, marshal.loads(received))
        else:
            self._selector.unregister(connection)
            os.killpg(child, signal.SIGKILL)

    def _answer(self, connection: socket.socket, child: int, ended: int) -> None:
        _, status = os.waitpid(child, 0)
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(child, signal.SIGKILL)  # what it has started
        code = os.waitstatus_to_exitcode(status)
        with suppress(OSError):
            connection.send(marshal.dumps(code if code >= 0 else 128 - code))
        with suppress(KeyError):
            self._selector.unregister(connection)
        self._selector.unregister(ended)
        connection.close()
        os.close(ended)


class Sessions:
    """Runs commands one after the other, in one process with one Java machine."""

    def __init__(self, listener: socket.socket, spark: Any) -> None:
        self._listener = listener
        self._spark = spark

    def serve(self) -> None:
        while True:
            connection, _ = self._listener.accept()
            with connection:
                request = receive(connection)
                if request:
                    connection.send(marshal.dumps(self._run(request)))

    def _run(self, request: Request) -> int:
        session = self._spark.newSession()  # with views and settings of its own
        self._spark.sparkContext._jvm.SparkSession.setActiveSession(session._jsparkSession)
        before = [os.dup(number) for number in range(3)]
        path = list(sys.path)
        try:
            take_over(request)
            execute(request.words)
        except SystemExit as left:
            return left.code if isinstance(left.code, int) else int(left.code is not None)
        except BaseException:
            traceback.print_exc()
            return 1
        else:
            return 0
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            sys.path[:] = path
            for number, file in enumerate(before):
                os.dup2(file, number)
                os.close(file)


def listen(path: str) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(path)
    listener.listen()
    return listener


def warm_up() -> None:
    """Import what commands and programs of pages use."""
    import typer

    import goqueue
    import goqueue.doors.http.door
    import goqueue.server.assemble
    from goqueue.cli.app import app

    command_line = typer.main.get_command(app)  # typer builds it at each call, and a fork makes only one
    typer.main.get_command = lambda _: command_line
    for name in goqueue.__all__:
        getattr(goqueue, name)
    gc.collect()
    gc.freeze()


def main(kind: str, path: str) -> None:
    warm_up()
    listener = listen(path)
    if kind == "sessions":
        from goqueue.spark import local_session

        spark = local_session("pages", master="local[2]")
        print(READY, flush=True)
        Sessions(listener, spark).serve()
    print(READY, flush=True)
    program = Forks(listener).serve()
    program()


if __name__ == "__main__":
    main(*sys.argv[1:])
