"""A proxy that stands between a client and a broker, and cuts connections when it is told to.

It knows frames, so it can let a request through and lose the answer. A test tells it how often and what to lose.
"""

import socket
import threading
from queue import Queue
from typing import Self

from goqueue.wire import frames, verbs
from goqueue.wire.frames import HEADER_BYTES, LENGTH_BYTES, FrameFlags
from goqueue.wire.verbs import ErrorMeta, Verb

KIND_AT = 4
CORRELATION_AT = 8
TIMEOUT_S = 20


class Proxy:
    """Listens on a port of its own and passes everything on, but for what it is told to lose."""

    def __init__(self, target: str) -> None:
        host, _, port = target.rpartition(":")
        self._target = host, int(port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._lock = threading.Lock()
        self._losses: dict[Verb, int] = {}
        self._replaced: dict[Verb, tuple[ErrorMeta, int]] = {}
        self._is_mute = False
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self.lost = 0
        self._muted: Queue[int] = Queue()
        self.connections = 0
        self._start(self._accept)

    @property
    def address(self) -> str:
        host, port = self._listener.getsockname()
        return f"{host}:{port}"

    def lose_answers(self, verb: Verb, times: int) -> None:
        """So often, an answer to such a request is not passed on; its connection is cut."""
        with self._lock:
            self._losses[verb] = times

    def replace_answers(self, verb: Verb, error: ErrorMeta, times: int) -> None:
        """So often, an answer to such a request is passed on as this error, though the broker has said otherwise."""
        with self._lock:
            self._replaced[verb] = error, times

    def say_to_all(self, error: ErrorMeta) -> None:
        """Say that something is wrong with the connection, and cut it."""
        frame = frames.pack(0, 0, verbs.encode(error), flags=FrameFlags.RESPONSE | FrameFlags.ERROR)
        with self._lock:
            clients = self._sockets[::2]
        for one in clients:
            one.sendall(frame)
        self.cut()

    def mute(self, is_mute: bool = True) -> None:
        """Pass no answer on, and cut nothing."""
        self._is_mute = is_mute

    def wait_for_muted_answer(self) -> None:
        """Return when an answer came that was not passed on."""
        self._muted.get(timeout=TIMEOUT_S)

    def cut(self) -> None:
        """Cut all connections."""
        with self._lock:
            sockets, self._sockets = self._sockets, []
        for one in sockets:
            _hang_up(one)

    def close(self) -> None:
        _hang_up(self._listener)
        self.cut()
        for thread in self._threads:
            thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start(self, function: object, *arguments: object) -> None:
        thread = threading.Thread(target=function, args=arguments, daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                broker = socket.create_connection(self._target)
            except OSError:
                client.close()
                continue
            with self._lock:
                self._sockets += (client, broker)
                self.connections += 1
            self._start(self._pass_requests, client, broker)
            self._start(self._pass_answers, broker, client)

    def _pass_requests(self, client: socket.socket, broker: socket.socket) -> None:
        try:
            while data := client.recv(64 * 1024):
                broker.sendall(data)
        except OSError:
            pass
        _hang_up(broker)

    def _pass_answers(self, broker: socket.socket, client: socket.socket) -> None:
        try:
            while frame := _frame(broker):
                if self._is_mute:
                    self._muted.put(frame[KIND_AT])
                    continue
                if self._is_to_be_lost(frame[KIND_AT]):
                    _hang_up(broker)
                    break
                client.sendall(self._replacement(frame) or frame)
        except OSError:
            pass
        _hang_up(client)

    def _replacement(self, frame: bytes) -> bytes | None:
        verb = Verb(frame[KIND_AT]) if frame[KIND_AT] else None
        with self._lock:
            if verb is None or verb not in self._replaced:
                return None
            error, left = self._replaced[verb]
            if not left:
                return None
            self._replaced[verb] = error, left - 1
        correlation = int.from_bytes(frame[CORRELATION_AT : CORRELATION_AT + 4])
        return frames.pack(verb, correlation, verbs.encode(error), flags=FrameFlags.RESPONSE | FrameFlags.ERROR)

    def _is_to_be_lost(self, kind: int) -> bool:
        with self._lock:
            verb = Verb(kind) if kind else None
            left = self._losses.get(verb, 0) if verb else 0
            if not left or not verb:
                return False
            self._losses[verb] = left - 1
            self.lost += 1
            return True


def _frame(source: socket.socket) -> bytes:
    head = _exactly(source, HEADER_BYTES)
    if not head:
        return b""
    length = int.from_bytes(head[:LENGTH_BYTES])
    return head + _exactly(source, length + LENGTH_BYTES - HEADER_BYTES)


def _exactly(source: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        part = source.recv(size - len(data))
        if not part:
            return b""
        data += part
    return bytes(data)


def _hang_up(one: socket.socket) -> None:
    try:
        one.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass
    one.close()
