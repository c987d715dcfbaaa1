"""One peer of the native door: its transport, the frames that come in, and the answers that go out.

Requests are handled in the order in which they come and answered when their answers are there, so a client may have
many in flight. What requests mean is the business of `Requests`.
"""

import asyncio
import logging
import socket
from collections import deque
from collections.abc import Callable
from typing import Protocol, TypeVar, cast

import msgspec

from goqueue.clock import MS, Clock
from goqueue.doors.native.config import NativeConfig
from goqueue.doors.native.requests import Requests
from goqueue.errors import BrokerUnavailable, GoQueueError, InternalError, InvalidRequest
from goqueue.service.pending import Pending
from goqueue.service.service import Service
from goqueue.wire import frames, verbs
from goqueue.wire.frames import BadFrame, Frame, FrameFlags, FrameReader

logger = logging.getLogger("goqueue.native")

RESPONSE = int(FrameFlags.RESPONSE)
ERROR = int(FrameFlags.RESPONSE | FrameFlags.ERROR)
LARGE_BYTES = 64 * 1024
SMALL_BYTES = 2 * 1024
OUTBOX_BYTES_MAX = 16 * 1024
"""To send costs a system call and wakes the peer, so small answers wait for one another."""

T = TypeVar("T")


class SharedDoor(Protocol):
    """What all connections share."""

    service: Service
    clock: Clock
    config: NativeConfig
    node_id: int
    connections: "set[Connection]"
    congested: "set[Connection]"  # whose peers do not read their answers
    is_stopped: bool

    def account(self, connection: "Connection", size: int) -> None:
        """The connection now holds that much of an unfinished frame."""

    def forget(self, connection: "Connection") -> None:
        """The connection is gone."""

    def handle(self, frames_handler: Callable[[], None]) -> None:
        """Handle frames, then push and send what came of them."""

    def push_soon(self, push: Callable[[], None]) -> None:
        """Push when the frames at hand are handled."""

    def flush_soon(self, connection: "Connection") -> None:
        """Send what was written to the connection, likewise."""

    def busy_poll(self) -> None:
        """A small request was answered: look for the next one before the loop sleeps."""

    def read_bytes_max(self) -> int:
        """How much one answer may hold."""


class Connection(asyncio.BufferedProtocol):
    """One client: its frames in, its answers and pushes out, and what it may have unanswered."""

    def __init__(self, door: SharedDoor, loop: asyncio.AbstractEventLoop) -> None:
        self._door = door
        self._loop = loop
        self._reader = FrameReader(frame_bytes_max=door.config.frame_bytes_max)
        self._transport: asyncio.Transport
        self.peer = "?"
        self._frames: deque[Frame] = deque()
        self._outbox: list[bytes | bytearray | memoryview] = []
        self._outbox_bytes = 0
        self._open_requests = 0
        self.is_closed = False
        self.is_congested = False
        self._is_starved = False
        self._is_reading = True
        self._connected_ns = door.clock.monotonic_ns()
        self._frame_since_ns: int | None = None
        self._hung_up_ns: int | None = None
        self.held_bytes = 0
        self.requests = Requests(self, door.service, limits=door.config, node_id=door.node_id)

    # --- the transport -------------------------------------------------------------------------

    @property
    def is_busy(self) -> bool:
        """Whether answers are still owed."""
        return self._open_requests > 0 or bool(self._frames)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A peer came."""
        self._transport = cast("asyncio.Transport", transport)
        if self._door.is_stopped:  # it was accepted just before
            self.hang_up(now=True)
            return
        peer = transport.get_extra_info("peername")
        self.peer = f"{peer[0]}:{peer[1]}" if peer else "?"
        raw = transport.get_extra_info("socket")
        if raw is not None:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self._transport.set_write_buffer_limits(high=self._door.config.write_buffer_bytes)
        if len(self._door.connections) >= self._door.config.connections_max:
            self._refuse(BrokerUnavailable(f"{len(self._door.connections)} connections are open, which is the limit"))
            return
        self._door.connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """The peer is gone."""
        if self._reader.pending_bytes and not self.is_closed:
            logger.info("%s hung up in the middle of a frame", self.peer, extra={"peer": self.peer})
        self.is_closed = True
        self._frames.clear()
        self.requests.end()
        self._door.forget(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where to receive into."""
        return self._reader.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        """Bytes have come."""
        count = len(self._frames)
        try:
            self._frames.extend(self._reader.received(nbytes))
        except BadFrame as error:
            self._handle_frames()
            self._refuse(error)
            return
        held = self._reader.buffered_bytes
        if held > LARGE_BYTES or self.held_bytes:
            self._door.account(self, held if held > LARGE_BYTES and self._reader.pending_bytes else 0)
        if not self._reader.pending_bytes:
            self._frame_since_ns = None
        elif self._frame_since_ns is None or len(self._frames) > count:
            self._frame_since_ns = self._door.clock.monotonic_ns()
        self._door.handle(self._handle_frames)
        if nbytes <= SMALL_BYTES:
            self._door.busy_poll()

    def eof_received(self) -> bool:
        """The peer will send no more, and so wants no more."""
        return False

    def pause_writing(self) -> None:
        """The peer does not read."""
        self.is_congested = True
        self._door.congested.add(self)
        self._settle_reading()

    def resume_writing(self) -> None:
        """It reads again."""
        self.is_congested = False
        self._door.congested.discard(self)
        self._handle_frames()
        self.requests.pushes.schedule_all()

    def starve(self, starved: bool) -> None:
        """All connections together hold too much (or no longer do)."""
        self._is_starved = starved
        self._settle_reading()

    def hang_up(self, *, now: bool = False) -> None:
        """Close, with what was written still going out, unless it is to be now."""
        self.is_closed = True
        if now:
            self._transport.abort()
        elif not self._transport.is_closing():
            self._hung_up_ns = self._door.clock.monotonic_ns()
            self.flush()
            self._transport.close()

    def check_time(self, now_ns: int) -> None:
        """Hang up on a peer that lets us wait."""
        config = self._door.config
        if self._hung_up_ns is not None:
            if now_ns - self._hung_up_ns > config.frame_timeout_ms * MS:
                self._transport.abort()  # it does not even read why
        elif not self.requests.is_welcome and now_ns - self._connected_ns > config.hello_timeout_ms * MS:
            self._refuse(InvalidRequest("no HELLO came in time"))
        elif (
            self._is_reading
            and self._frame_since_ns is not None
            and now_ns - self._frame_since_ns > config.frame_timeout_ms * MS
        ):
            self._refuse(BadFrame("truncated", "a frame was begun and not finished in time"))

    @property
    def read_bytes_max(self) -> int:
        """How much one answer may hold."""
        return self._door.read_bytes_max()

    def push_soon(self, push: Callable[[], None]) -> None:
        """Push when the frames at hand are handled."""
        self._door.push_soon(push)

    def handle_again(self, frame: Frame) -> None:
        """Handle a request once more, after those that wait: when the peer reads again."""
        self._frames.append(frame)

    # --- frames --------------------------------------------------------------------------------

    def _handle_frames(self) -> None:
        limit = self._door.config.requests_max
        while self._frames and not self.is_congested and not self.is_closed and self._open_requests < limit:
            self._handle(self._frames.popleft())
        self._settle_reading()

    def _settle_reading(self) -> None:
        """Read from the socket only while what is read can be handled."""
        if self.is_closed:
            return
        wanted = not (self._frames or self.is_congested or self._is_starved)
        if wanted != self._is_reading:
            self._is_reading = wanted
            if wanted:
                if self._frame_since_ns is not None:  # while we did not read, the peer could not finish it
                    self._frame_since_ns = self._door.clock.monotonic_ns()
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()

    def _handle(self, frame: Frame) -> None:
        kind, _, correlation, meta, payload = frame
        try:
            self.requests.handle(kind, correlation, meta, payload)
        except GoQueueError as error:
            self.fail(kind, correlation, error)
            if not self.requests.is_welcome:
                self._refuse(error, told=True)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            self.fail(kind, correlation, InvalidRequest(f"malformed meta: {error}"))
        except Exception:
            self.fail(kind, correlation, self.bug(kind))

    def write(self, *parts: bytes | bytearray | memoryview) -> None:
        """Send soon, together with what else is for this peer; at once if it is much."""
        self._outbox += parts
        self._outbox_bytes += sum(map(len, parts))
        if self._outbox_bytes > OUTBOX_BYTES_MAX:
            self.flush()
        else:
            self._door.flush_soon(self)

    def flush(self) -> None:
        """Send what was written."""
        outbox, self._outbox, self._outbox_bytes = self._outbox, [], 0
        if outbox and not self._transport.is_closing():
            self._transport.writelines(outbox)

    def answer(self, kind: int, correlation: int, meta: msgspec.Struct) -> None:
        """Send an answer without a payload."""
        if not self.is_closed:
            self.write(frames.pack(kind, correlation, verbs.encode(meta), flags=RESPONSE))

    def fail(self, kind: int, correlation: int, error: GoQueueError) -> None:
        """Send a refusal."""
        if not self.is_closed:
            self.write(frames.pack(kind, correlation, verbs.encode(verbs.error_meta(error)), flags=ERROR))

    def later(self, kind: int, correlation: int, pending: Pending[T], answer: Callable[[T], None]) -> None:
        """Answer when the answer is there."""
        self._open_requests += 1

        def settle(done: "Pending[T]") -> None:
            self._open_requests -= 1
            try:
                answer(done.result())
            except GoQueueError as error:
                self.fail(kind, correlation, error)
            except Exception:
                self.fail(kind, correlation, self.bug(kind))
            if self._frames:
                self._loop.call_soon(self._handle_frames)

        pending.then(settle)

    def bug(self, kind: int) -> InternalError:
        """The refusal of a request that failed for a reason of ours, which the log has under its id."""
        request_id = f"{self.peer}/{self._door.clock.monotonic_ns():x}"
        logger.exception("verb %d failed (%s)", kind, request_id, extra={"peer": self.peer})
        return InternalError(request_id)

    def _refuse(self, error: GoQueueError, *, told: bool = False) -> None:
        """Say why, then hang up."""
        if self.is_closed:
            return
        reason = getattr(error, "reason", error.code)
        logger.warning("%s: %s", self.peer.rpartition(":")[0], error, extra={"peer": self.peer, "reason": reason})
        if not told:
            self.fail(0, 0, error)
        self.hang_up()
