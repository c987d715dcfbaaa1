"""A real `goqueue serve`, and someone who speaks to it frame by frame."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

from goqueue.names import TopicPartition
from goqueue.record import kernel
from goqueue.record.message import StoredMessage
from goqueue.wire import frames, verbs
from goqueue.wire.frames import Frame, FrameFlags, FrameReader
from goqueue.wire.verbs import Verb

TIMEOUT_S = 60


class Served:
    """The process, and what it said of itself."""

    def __init__(self, *arguments: str, env: dict[str, str] | None = None) -> None:
        command = [sys.executable, "-m", "goqueue.cli", "serve", *arguments]
        clean = {name: value for name, value in os.environ.items() if not name.startswith("GOQUEUE_")}
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=clean | (env or {})
        )
        assert self.process.stdout
        assert self.process.stderr
        self.line = self.process.stdout.readline()

    @property
    def facts(self) -> dict[str, str]:
        """What stands in the line that says that it is ready."""
        assert self.line.startswith("goqueue ready "), self.finish()
        return dict(fact.split("=", 1) for fact in self.line.split()[2:])

    @property
    def address(self) -> tuple[str, int]:
        host, _, port = self.facts["native"].rpartition(":")
        return host, int(port)

    def wait_for_log(self, message: str) -> dict[str, object]:
        """The next line of the log that says this."""
        assert self.process.stderr
        for line in self.process.stderr:
            entry: dict[str, object] = json.loads(line)
            if entry["message"] == message:
                return entry
        raise AssertionError(f"{message!r} was not logged")

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def finish(self) -> tuple[int, str, str]:
        """Exit code, the rest of standard output, and the rest of standard error."""
        output, errors = self.process.communicate(timeout=TIMEOUT_S)
        return self.process.returncode, output, errors

    def stop(self) -> tuple[int, str, str]:
        self.signal(signal.SIGTERM)
        return self.finish()


@contextmanager
def serving(data: Path, *arguments: str, env: dict[str, str] | None = None) -> Iterator[Served]:
    """A server on any free port, which is gone at the end of the block whatever happens."""
    served = Served("--data", str(data), "--native", "127.0.0.1:0", "--http", "off", *arguments, env=env)
    try:
        yield served
    finally:
        if served.process.poll() is None:
            served.process.kill()
        served.process.communicate()


def refused(*arguments: str, env: dict[str, str] | None = None) -> tuple[int, str]:
    """Exit code and standard error of a server that does not start."""
    served = Served(*arguments, env=env)
    code, output, errors = served.finish()
    assert (served.line, output) == ("", "")
    return code, errors


class Peer:
    """A connection of the native protocol that sends and receives when it is told."""

    def __init__(self, address: tuple[str, int]) -> None:
        self._socket = socket.create_connection(address, timeout=TIMEOUT_S)
        self._reader = FrameReader()
        self._arrived: list[Frame] = []
        self._correlation = 0
        self.ask(Verb.HELLO, verbs.HelloRequest())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()

    def send(self, verb: Verb, meta: object, payload: bytes | bytearray = b"") -> None:
        self._correlation += 1
        head = frames.pack_checked(verb, self._correlation, verbs.encode(meta), payload)
        self._socket.sendall(head + payload)

    def receive(self) -> Frame | None:
        """The next frame, or None when the broker has hung up."""
        while not self._arrived:
            buffer = self._reader.get_buffer()
            try:
                size = self._socket.recv_into(buffer)
            except ConnectionResetError:
                return None
            if not size:
                return None
            self._arrived += self._reader.received(size)
        return self._arrived.pop(0)

    def ask(self, verb: Verb, meta: object, payload: bytes | bytearray = b"") -> Frame:
        self.send(verb, meta, payload)
        frame = self.receive()
        assert frame
        assert not frame.flags & FrameFlags.ERROR, bytes(frame.meta)
        return frame

    def create_topic(self, name: str, **settings: object) -> None:
        self.ask(Verb.CREATE_TOPIC, verbs.CreateTopicRequest(name, 1, settings))

    def send_batch(self, topic: str, values: list[bytes]) -> None:
        self.send(Verb.PUBLISH, verbs.PublishRequest(topic, 0), kernel.encode(values))

    def values(self, topic: str) -> list[bytes]:
        """What is stored."""
        frame = self.ask(Verb.READ, verbs.ReadRequest(topic, 0, max_bytes=16 * 1024 * 1024))
        return [message.value for message in kernel.decode(frame.payload, TopicPartition(topic, 0), StoredMessage)]
