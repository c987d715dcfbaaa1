"""Commands, run as a user runs them: `goqueue` in a process of its own, the others, for speed, in this one."""

import io
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from goqueue import Client
from goqueue.cli.main import main


def goqueue(
    *arguments: str, stdin: bytes | None = None, env: dict[str, str] | None = None
) -> "subprocess.CompletedProcess[bytes]":
    clean = {name: value for name, value in os.environ.items() if not name.startswith("GOQUEUE_")}
    return subprocess.run(
        [sys.executable, "-m", "goqueue.cli", *arguments],
        capture_output=True,
        check=False,
        timeout=120,
        stdin=subprocess.DEVNULL if stdin is None else None,
        input=stdin,
        env=clean | {"COLUMNS": "120"} | (env or {}),
    )


@contextmanager
def tidied(client: Client) -> Iterator[Client]:
    """The client, and a broker that has no topics and no groups when it is done."""
    try:
        yield client
    finally:
        for group in client.groups():
            client.delete_group(group)
        for topic in client.topics():
            client.delete_topic(topic)


class Outcome(NamedTuple):
    """What a command left behind."""

    code: int
    output: bytes
    complaint: str


def run(*arguments: str, server: str | None = None, stdin: bytes = b"") -> Outcome:
    before = sys.argv, sys.stdin, sys.stdout, sys.stderr
    output, complaint = io.BytesIO(), io.BytesIO()
    sys.argv = ["goqueue", *arguments, *(("--server", server) if server else ())]
    sys.stdin = io.TextIOWrapper(io.BytesIO(stdin))
    sys.stdout = io.TextIOWrapper(output, write_through=True)
    sys.stderr = io.TextIOWrapper(complaint, write_through=True)
    try:
        main()
        code: object = 0
    except SystemExit as left:
        code = left.code or 0
    finally:
        sys.stdout.flush()
        result = output.getvalue(), complaint.getvalue().decode()
        sys.argv, sys.stdin, sys.stdout, sys.stderr = before
    assert isinstance(code, int)
    return Outcome(code, *result)


def succeed(*arguments: str, server: str | None = None, stdin: bytes = b"") -> str:
    """Standard output of a command that has nothing to complain about."""
    outcome = run(*arguments, server=server, stdin=stdin)
    assert (outcome.code, outcome.complaint) == (0, ""), outcome
    return outcome.output.decode()


def fail(*arguments: str, server: str | None = None, stdin: bytes = b"") -> tuple[int, str]:
    """Exit code and complaint of a command that does not succeed, without the frame that may be around it."""
    outcome = run(*arguments, server=server, stdin=stdin)
    assert outcome.code != 0
    assert "Traceback" not in outcome.complaint
    return outcome.code, " ".join(outcome.complaint.replace("│", " ").split())
