"""What commands do only for someone who sits at a terminal: ask, and show how far they are."""

import os
import pty
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from goqueue import Client
from goqueue.testing import EmbeddedBroker
from tests.cli.command_line import goqueue


@pytest.fixture
def server() -> Iterator[str]:
    with EmbeddedBroker(http=False) as broker, Client(broker.address) as client:
        client.create_topic("orders", partitions=1)
        yield broker.address


@contextmanager
def terminal() -> Iterator[tuple[int, int]]:
    """Our end and theirs."""
    ours, theirs = pty.openpty()
    try:
        yield ours, theirs
    finally:
        os.close(ours)


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "goqueue.cli", *arguments]


@pytest.mark.parametrize(("answer", "code", "left"), [(b"n\n", 1, ["orders"]), (b"y\n", 0, [])])
def test_whoever_deletes_a_topic_is_asked(server: str, answer: bytes, code: int, left: list[str]) -> None:
    with terminal() as (ours, theirs):
        delete = command("topic", "delete", "orders", "--server", server)
        with subprocess.Popen(delete, stdin=theirs, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            os.close(theirs)
            os.write(ours, answer)
            _, errors = process.communicate(timeout=60)

    assert b"Delete topic orders and all messages in it? [y/N]" in errors
    assert process.returncode == code, errors
    with Client(server) as client:
        assert client.topics() == left


def test_whoever_publishes_a_file_sees_how_far_it_is(server: str, tmp_path: Path) -> None:
    lines = tmp_path / "lines"
    lines.write_bytes(b"x" * 99 + b"\n" + b"y\n" * 20_000)
    shown = b""

    with terminal() as (ours, theirs):
        produce = command("produce", "orders", "--file", str(lines), "--server", server)
        environment = os.environ | {"TERM": "xterm"}
        with subprocess.Popen(produce, stdout=subprocess.PIPE, stderr=theirs, env=environment) as process:
            os.close(theirs)
            while chunk := _read(ours):
                shown += chunk
            assert process.stdout
            output = process.stdout.read()

    assert process.returncode == 0
    assert output.startswith(b"20,001 messages")
    assert "━".encode() in shown


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # nobody is at the other end any more
        return b""


def test_there_is_nothing_to_publish_without_a_value_a_file_or_a_pipe(server: str) -> None:
    with terminal() as (_, theirs):
        produce = command("produce", "orders", "--server", server)
        result = subprocess.run(produce, stdin=theirs, capture_output=True, check=False, timeout=60)
        os.close(theirs)

    assert result.returncode == 2
    assert b"give a value, or --file, or pipe lines in" in result.stderr


def test_the_shell_completes_commands_and_options() -> None:
    def completed(words: str) -> list[str]:
        asked = {"_GOQUEUE_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
        return goqueue(env=asked).stdout.decode().split()

    assert completed("goqueue top") == ["topic"]
    assert completed("goqueue topic cr") == ["create"]
    assert completed("goqueue produce orders --pri") == ["--priority"]
    assert completed("goqueue produce orders --priority h") == ["high"]
