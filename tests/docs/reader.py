"""A new user who goes through a page: a directory and a home of their own, a broker, a terminal, an editor.

What the pages call localhost:7000 and localhost:8080 are other ports here, because tests run beside each other; the
same for files under /tmp. Nothing else of a page is changed. Commands and programs run in processes that are warm
(`warm.py`) if there are any, else each starts from nothing.
"""

import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import threading
from contextlib import ExitStack, suppress
from pathlib import Path
from queue import Empty, Queue
from types import TracebackType
from typing import Self

from tests.docs import rules, warm
from tests.docs.markdown import Block, commands, is_transcript, transcript

TIMEOUT_S = 60
SPARK_TIMEOUT_S = 600
LINES_MAX = 40
_END = "the-terminal-is-done-with-that"


class PageFailed(AssertionError):
    """A block does not do what its page says."""

    def __init__(self, block: Block, run: int, command: str, what: str, output: str) -> None:
        lines = output.splitlines()
        left_out = [f"(the last of {len(lines):,} lines)"] if len(lines) > LINES_MAX else []
        shown = "\n".join((*left_out, *lines[-LINES_MAX:]))
        super().__init__(f"{block}, run {run}: {what}\n--- command\n{command}\n--- output\n{shown}\n---")


class Terminal:
    """One shell for all commands of a page: aliases, variables and the directory stay."""

    def __init__(self, directory: Path, env: dict[str, str]) -> None:
        self._script = directory / ".command"
        self._process = subprocess.Popen(
            ["bash", "--norc", "--noprofile"],
            cwd=directory,
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self._lines: Queue[str] = Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self._say("shopt -s expand_aliases; set -o pipefail")

    def run(self, command: str, timeout_s: float) -> tuple[int, str]:
        """The exit code of the command and everything that it printed."""
        self._script.write_text(f"{command}\n")
        self._say(f"source {self._script} </dev/null; printf '\\n%s %d\\n' {_END} $?")
        output: list[str] = []
        while True:
            try:
                line = self._lines.get(timeout=timeout_s)
            except Empty:
                return -1, "".join(output) + f"\n(nothing came for {timeout_s} s)"
            if line.startswith(_END):
                return int(line.split()[1]), "".join(output).strip()
            output.append(line)

    def close(self) -> None:
        """End the shell and what it has started."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._reader.join()
        for stream in (self._process.stdin, self._process.stdout):
            assert stream
            stream.close()

    def _say(self, line: str) -> None:
        assert self._process.stdin
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()

    def _read(self) -> None:
        assert self._process.stdout
        for line in self._process.stdout:
            self._lines.put(line)


class Reader:
    """Runs the blocks of one page, as often as it is told to."""

    def __init__(
        self, directory: Path, *, has_broker: bool, forks: Path | None = None, with_spark: bool = False
    ) -> None:
        self._directory = directory
        self._timeout_s = TIMEOUT_S
        self._forks = forks
        self._ended_with_it = ExitStack()
        home = directory / "home"
        home.mkdir()
        programs = directory / ".venv" / "bin"
        programs.mkdir(parents=True)
        (programs / "python").symlink_to(sys.executable)
        native, http = _free_ports()
        self._rewritten = {
            "localhost:7000": f"localhost:{native}",
            "localhost:8080": f"localhost:{http}",
            "/tmp/": f"{directory}/",
        }
        self._env = warm.clean_environment() | {
            "HOME": str(home),
            "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
            "GOQUEUE_SERVER": f"localhost:{native}",
        }
        self._broker_env = {"GOQUEUE_NATIVE": f"127.0.0.1:{native}", "GOQUEUE_HTTP": f"127.0.0.1:{http}"}
        self._broker: subprocess.Popen[str] | None = None
        self._codes: dict[tuple[Block, int], int] = {}  # of the commands of the first run
        self._sessions = self._started_sessions() if with_spark and forks else None
        (programs / "goqueue").write_text(self._command_script())
        (programs / "goqueue").chmod(0o755)
        self._terminal = Terminal(directory, self._env)
        if has_broker:  # the page takes it for granted, so how it starts is not what is tested
            starter = shlex.join(warm.command(forks)) if forks else ""
            self._serve(f"{starter} goqueue serve --data ./goqueue-data")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._terminal.close()
        self._ended_with_it.close()
        if self._broker:
            self._broker.terminate()
            self._broker.communicate(timeout=TIMEOUT_S)
            assert error or self._broker.returncode == 0

    def go_through(self, block: Block, run: int) -> None:
        """Do what the block says; raises `PageFailed`."""
        self._timeout_s = SPARK_TIMEOUT_S if rules.SPARK.search(block.text) else TIMEOUT_S
        if block.language == "python":
            self._run_program(block, run)
        elif is_transcript(block.text):
            self._run_transcript(block, run)
        else:
            self._run_commands(block, run)

    def _run_program(self, block: Block, run: int) -> None:
        file = self._directory / f"line_{block.line}.py"
        file.write_text(self._rewrite(block.text))
        command = self._program_command(file.name, needs_spark=rules.SPARK.search(block.text) is not None)
        code, output = self._run_alone(command, self._directory / f"line_{block.line}.log")
        if code is None:
            raise PageFailed(block, run, block.text, f"not done after {self._timeout_s} s", output)
        if code:
            raise PageFailed(block, run, block.text, f"exit code {code}", output)
        for shown in printed(block.text) if run == 1 else ():
            if not any(rules.is_as_shown(line, shown) for line in output.splitlines()):
                raise PageFailed(block, run, block.text, f"it does not print {shown!r}", output)

    def _program_command(self, file: str, *, needs_spark: bool) -> list[str]:
        ready = self._sessions if needs_spark else self._forks
        if ready:
            return [*warm.command(ready), "python", file]
        warnings = [] if needs_spark else ["-W", "error"]
        return [sys.executable, *warnings, file]

    def _command_script(self) -> str:
        """What the shell finds as `goqueue`. A kernel is chosen at import, so that needs a process of its own."""
        cold = shlex.join([sys.executable, "-m", "goqueue.cli"])
        if self._forks is None:
            return f'#!/bin/sh\nexec {cold} "$@"\n'
        forked = shlex.join([*warm.command(self._forks), "goqueue"])
        on_spark = shlex.join([*warm.command(self._sessions), "goqueue"]) if self._sessions else cold
        return (
            "#!/bin/sh\n"
            'case "${GOQUEUE_KERNEL:-$1}" in\n'
            f'    pipeline) exec {on_spark} "$@" ;;\n'
            f'    serve | auto | c | python) exec {cold} "$@" ;;\n'
            f'    *) exec {forked} "$@" ;;\n'
            "esac\n"
        )

    def _started_sessions(self) -> Path:
        """Spark takes its time to start, and its workers have the environment that it was started with."""
        path = self._directory / "sessions"
        self._ended_with_it.enter_context(warm.started("sessions", path, self._env))
        return path

    def _run_alone(self, command: list[str], log: Path) -> tuple[int | None, str]:
        """Exit code, None if it did not end in time, and output: a file, which what it started may go on to hold."""
        with log.open("w") as output:
            process = subprocess.Popen(
                command,
                cwd=self._directory,
                env=self._env,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            return process.wait(self._timeout_s), log.read_text()
        except subprocess.TimeoutExpired:
            return None, log.read_text()
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def _run_transcript(self, block: Block, run: int) -> None:
        for index, command in enumerate(transcript(block.text)):
            code, output = self._terminal.run(self._rewrite(command.text), self._timeout_s)
            if run == 1 and not rules.is_as_shown(output, command.output):
                what = f"exit code {code}, and the page shows\n{command.output}\n--- which is not the output"
                raise PageFailed(block, run, command.text, what, output)
            before = self._codes.setdefault((block, index), code)
            if before != code:
                raise PageFailed(block, run, command.text, f"exit code {code}, but {before} the first time", output)

    def _run_commands(self, block: Block, run: int) -> None:
        for command in commands(block.text):
            text = self._rewrite(command)
            if any(rule.command.search(command) for rule in rules.NOT_RUN):
                continue
            if rules.SERVE.search(command):
                if self._broker is None:
                    self._serve(text)
            elif rules.ENDLESS.search(command):
                self._run_for_a_while(block, run, text)
            else:
                code, output = self._terminal.run(text, self._timeout_s)
                if code:
                    raise PageFailed(block, run, command, f"exit code {code}", output)

    def _run_for_a_while(self, block: Block, run: int, command: str) -> None:
        process = subprocess.Popen(
            ["bash", "-c", f"exec {command}"],
            cwd=self._directory,
            env=self._env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        watch = threading.Timer(self._timeout_s, process.kill)
        watch.start()
        try:
            assert process.stdout
            first = process.stdout.readline()
            process.send_signal(signal.SIGINT)
            rest, _ = process.communicate()
        finally:
            watch.cancel()
        if not first or process.returncode not in (0, 130):
            raise PageFailed(block, run, command, f"exit code {process.returncode} after SIGINT", first + rest)

    def _serve(self, command: str) -> None:
        log = self._directory / "broker.log"
        with log.open("w") as errors:
            self._broker = subprocess.Popen(
                ["bash", "-c", f"exec {command}"],
                cwd=self._directory,
                env=self._env | self._broker_env,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        assert self._broker.stdout
        line = self._broker.stdout.readline()
        assert line.startswith("goqueue ready "), f"{command}: {log.read_text()}"

    def _rewrite(self, text: str) -> str:
        for shown, here in self._rewritten.items():
            text = text.replace(shown, here)
        return text


def printed(program: str) -> list[str]:
    """What a program of a page is said to print: the comments on the lines that do."""
    return re.findall(r"^ *print\(.*\)  # (.*)$", program, re.MULTILINE)


def _free_ports() -> tuple[int, int]:
    with socket.create_server(("127.0.0.1", 0)) as first, socket.create_server(("127.0.0.1", 0)) as second:
        return first.getsockname()[1], second.getsockname()[1]
