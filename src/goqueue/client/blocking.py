"""Sessions for a thread that waits for its answers, without an event loop.

To hand a request to another thread and its answer back costs more than the request itself. So a thread that publishes
one message, polls or scans talks to the broker itself, over a socket of its own. Only the waiting differs: the frames
are the same, and so is the search for brokers and leaders, whose coroutines run here over sessions that never suspend
them.
"""

import socket
from collections.abc import Callable, Coroutine
from contextlib import suppress
from threading import Event
from typing import Any, Self, TypeVar

import msgspec

from goqueue.client.connections import Connections
from goqueue.client.session import (
    ANSWER_TIMEOUT_S,
    CannotConnect,
    check_size,
    decode,
    hung_up,
    split_address,
    told_error,
)
from goqueue.client.spin_wait import SpinWait
from goqueue.clock import SECOND, Clock
from goqueue.errors import (
    AvailabilityError,
    BrokerUnavailable,
    GoQueueError,
    RequestTimeout,
)
from goqueue.wire import frames, verbs
from goqueue.wire.frames import BadFrame, Frame, FrameFlags, FrameReader
from goqueue.wire.verbs import Verb

M = TypeVar("M", bound=msgspec.Struct)
T = TypeVar("T")
_ERROR = int(FrameFlags.ERROR)


def run_now(work: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that has nothing to wait for."""
    try:
        work.send(None)
    except StopIteration as finished:
        result: T = finished.value
        return result
    work.close()
    raise AssertionError("the coroutine waits for something")


class BlockingSession:
    """A connection that has said HELLO, for one thread at a time. Its coroutines block instead of being suspended."""

    def __init__(self, address: str, connection: socket.socket, busy_poll_ns: int) -> None:
        self.address = address
        self.is_closed = False
        self._socket = connection
        self._reader = FrameReader(trusts=True)
        self._spin_wait = SpinWait(connection, busy_poll_ns)
        self.last_correlation = 0
        self._pending: dict[int, Frame | None] = {}  # by correlation, requests to be answered later; answers that came
        self._frame_bytes_max = frames.FRAME_BYTES_MAX

    @classmethod
    def connect(
        cls,
        address: str,
        *,
        client_id: str,
        api_key: str,
        timeout_s: float,
        busy_poll_ns: int,
        connect_timeout_s: float,
    ) -> Self:
        """Connect and say HELLO. No answer takes longer than the timeout."""
        host, port = split_address(address)
        try:
            connection = socket.create_connection((host, port), min(connect_timeout_s, timeout_s))
        except OSError as error:
            raise CannotConnect(address, error.strerror or str(error)) from error
        session = cls(address, connection, busy_poll_ns)
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            hello = verbs.HelloRequest(client_id=client_id, api_key=api_key)
            welcome = session.exchange(Verb.HELLO, hello, verbs.HelloAnswer)
            session._frame_bytes_max = welcome.frame_bytes_max
            connection.settimeout(min(ANSWER_TIMEOUT_S, timeout_s))
        except AvailabilityError as error:
            session.close()
            raise CannotConnect(address, str(error)) from error
        except BaseException:
            session.close()
            raise
        return session

    async def ask(self, verb: Verb, meta: msgspec.Struct, answer_type: type[M]) -> M:
        """The meta of the answer."""
        return self.exchange(verb, meta, answer_type)

    def exchange(self, verb: Verb, meta: msgspec.Struct, answer_type: type[M], payload: bytearray | None = None) -> M:
        """Send a request and wait for the meta of its answer."""
        return decode(self.exchange_frame(verb, meta, payload).meta, answer_type)

    def exchange_frame(
        self,
        verb: Verb,
        meta: msgspec.Struct,
        payload: bytes | bytearray | None = None,
        *,
        timeout_s: float | None = None,
        then: tuple[Verb, msgspec.Struct] | None = None,
    ) -> Frame:
        """Send a request and wait for its answer, for `timeout_s` if that is given.

        `then` is a request that is sent right after it; `receive_answer` gets its answer, by `last_correlation`.
        """
        if timeout_s is not None and timeout_s != self._socket.gettimeout():
            self._socket.settimeout(timeout_s)
        frames_out = self._pack(verb, meta, payload)
        correlation = self.last_correlation
        if then is not None:
            frames_out += self._pack(*then, None)
            self._pending[self.last_correlation] = None
        return self._answer(verb, correlation, frames_out, busy_polls=True)

    def send_request(self, verb: Verb, meta: msgspec.Struct) -> int:
        """Send a request and do not wait; `receive_answer` gets its answer, by the correlation that is returned."""
        frame = self._pack(verb, meta, None)
        try:
            self._socket.sendall(frame)
        except OSError as error:
            self.close()
            raise BrokerUnavailable(f"the connection to {self.address} was lost: {error}") from error
        self._pending[self.last_correlation] = None
        return self.last_correlation

    def receive_answer(self, verb: Verb, correlation: int) -> Frame:
        """Wait for the answer to a request that was sent before."""
        return self._answer(verb, correlation, b"")

    def forget_answer(self, correlation: int) -> None:
        """Drop the answer to a request that was sent before, whenever it comes."""
        self._pending.pop(correlation, None)

    def _pack(self, verb: Verb, meta: msgspec.Struct, payload: bytes | bytearray | None) -> bytes:
        """The next frame; raises `RequestTooLarge`, and nothing is sent."""
        raw = verbs.encode(meta)
        if payload is not None or len(raw) > frames.META_BYTES_MAX:
            check_size(raw, payload or b"", self._frame_bytes_max)
        self.last_correlation = self.last_correlation % 0xFFFF_FFFF + 1
        if payload is None:
            return frames.pack(verb, self.last_correlation, raw)
        return b"".join((frames.pack_checked(verb, self.last_correlation, raw, payload), payload))

    def _answer(self, verb: Verb, correlation: int, frames_out: bytes, *, busy_polls: bool = False) -> Frame:
        frame: Frame | None = None
        try:
            if frames_out:
                self._socket.sendall(frames_out)
            if busy_polls:
                self._spin_wait.watch()
            frame = self._receive(correlation)
        except TimeoutError as error:
            raise RequestTimeout(verb.name, self._socket.gettimeout() or 0) from error
        except (OSError, BadFrame) as error:
            raise BrokerUnavailable(f"the connection to {self.address} was lost: {error}") from error
        finally:
            if frame is None:  # an answer may still come, and would be taken for that of the next request
                self.close()
        if frame.flags & _ERROR:
            raise told_error(frame)
        return frame

    def close(self) -> None:
        """End the session."""
        self.is_closed = True
        self._socket.close()

    def interrupt(self) -> None:
        """Let another thread that waits for an answer wait no longer; it finds the connection lost."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def _receive(self, correlation: int) -> Frame:
        came = self._pending.pop(correlation, None)
        while came is None:
            size = self._socket.recv_into(self._reader.get_buffer())
            if not size:
                raise ConnectionResetError("the broker hung up")
            for frame in self._reader.received(size):
                if frame.correlation == correlation:
                    came = frame
                elif frame.correlation in self._pending:
                    self._pending[frame.correlation] = frame
                elif not frame.correlation:
                    raise hung_up(self.address, frame)
        return came


class BlockingConnections(Connections):
    """The same search for brokers and leaders, over sessions that block."""

    def __init__(self, like: Connections) -> None:
        super().__init__(
            like.addresses,
            client_id=like.client_id,
            api_key=like.api_key,
            timeout_s=like.timeout_s,
            busy_poll_ns=like.busy_poll_ns,
            entropy=like.entropy,
        )
        self.reach = like.reach
        self._open: dict[str, BlockingSession] = {}

    async def _to(self, address: str) -> Any:
        session = self._open.get(address)
        if session is None or session.is_closed:
            try:
                session = self._open[address] = BlockingSession.connect(
                    address,
                    client_id=self.client_id,
                    api_key=self.api_key,
                    timeout_s=self.timeout_s,
                    busy_poll_ns=self.busy_poll_ns,
                    connect_timeout_s=self.reach.attempt_s,
                )
            except CannotConnect as error:
                self.reach.failed(error)
                raise
            if not self.reach.is_up:
                self.reach.reached(address)
        return session

    def retrying_in_thread(
        self,
        attempt: Callable[[], T],
        *,
        clock: Clock,
        pause: Event,
        deadline_ns: int,
        may_repeat: Callable[[], bool],
    ) -> T:
        """The result of the first attempt that does not fail with a retryable error, before the deadline.

        Between attempts the thread waits for `pause`, which ends the wait early.
        """
        retries = self.retries(clock.monotonic_ns() / SECOND, deadline_ns / SECOND)
        while True:
            try:
                return attempt()
            except GoQueueError as error:
                self.forget_leader(error)
                now_s = clock.monotonic_ns() / SECOND
                pause.wait(retries.wait_s(error, now_s=now_s, may_repeat=may_repeat()))

    def interrupt(self) -> None:
        """Let another thread that waits for an answer wait no longer."""
        for session in list(self._open.values()):
            session.interrupt()

    def hang_up(self) -> None:
        """End all sessions."""
        for session in self._open.values():
            session.close()
