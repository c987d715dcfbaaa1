"""One connection to one broker: requests out, answers in, by correlation id.

A session is made by `connect` and ends when the connection does, or when an answer takes the broker too long. Then
every open request fails with `BrokerUnavailable`, which is retryable. A session that has ended is never reopened: its
users connect a new one.
"""

import asyncio
import socket
from collections.abc import Callable
from typing import TypeVar, cast

import msgspec

from goqueue.errors import (
    AvailabilityError,
    BrokerUnavailable,
    GoQueueError,
    InvalidRequest,
    RequestTimeout,
    RequestTooLarge,
)
from goqueue.wire import codes, frames, verbs
from goqueue.wire.frames import BadFrame, Frame, FrameFlags, FrameReader
from goqueue.wire.verbs import Verb

CONNECT_TIMEOUT_S = 3.0
ANSWER_TIMEOUT_S = 30.0
WRITE_BUFFER_BYTES = 4 * 1024 * 1024

M = TypeVar("M", bound=msgspec.Struct)
Answered = Callable[[Frame | None, GoQueueError | None], None]

_ERROR = int(FrameFlags.ERROR)
_PUSH = int(FrameFlags.PUSH)
_decode_error = msgspec.msgpack.Decoder(verbs.ErrorMeta).decode
_decoders: dict[type[msgspec.Struct], Callable[[memoryview], msgspec.Struct]] = {}


def decode(meta: memoryview, meta_type: type[M]) -> M:
    """The meta of an answer."""
    decoder = _decoders.get(meta_type)
    if decoder is None:
        decoder = _decoders[meta_type] = msgspec.msgpack.Decoder(meta_type).decode
    return cast("M", decoder(meta))


def told_error(frame: Frame) -> GoQueueError:
    """The error in a frame that has the flag ERROR."""
    return restored(_decode_error(frame.meta))


def restored(told: verbs.ErrorMeta) -> GoQueueError:
    """The error that a broker has told. The broker decides whether it is retryable."""
    error = codes.restore(told.code, told.text, told.facts)
    if error.retryable != told.retryable:
        error.__dict__["retryable"] = told.retryable
    return error


def hung_up(address: str, frame: Frame) -> BrokerUnavailable:
    """The error in a frame that concerns the connection: whatever was asked over it may be asked over another."""
    return BrokerUnavailable(f"{address} hung up: {told_error(frame)}")


class CannotConnect(BrokerUnavailable):
    """No connection came about, so nothing was sent."""

    def __init__(self, address: str, why: str, advice: str = "") -> None:
        super().__init__(f"cannot connect to {address}: {why}{advice}")
        self.address = address
        self.why = why
        self.advice = advice


class Session(asyncio.BufferedProtocol):
    """An open connection that has said HELLO."""

    def __init__(self, address: str, loop: asyncio.AbstractEventLoop) -> None:
        self.address = address
        self.welcome: verbs.HelloAnswer
        self.is_closed = False
        self._loop = loop
        self._reader = FrameReader(trusts=True)
        self._transport: asyncio.Transport
        self._next_correlation = 1
        self._open: dict[int, Answered] = {}
        self._since: dict[int, float] = {}  # when the requests that must be answered in time were sent
        self._sweeper: asyncio.TimerHandle | None = None
        self._on_close: list[Callable[[], None]] = []
        self._may_write = asyncio.Event()
        self._may_write.set()

    @classmethod
    async def connect(
        cls, address: str, *, client_id: str = "", api_key: str = "", timeout_s: float = CONNECT_TIMEOUT_S
    ) -> "Session":
        """Connect and say HELLO. Neither takes longer than the timeout."""
        host, port = split_address(address)
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(timeout_s):
                try:
                    _, session = await loop.create_connection(lambda: cls(address, loop), host, port)
                except RuntimeError:  # the interpreter is exiting: there are no threads left to look up the name in
                    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
                    _, session = await loop.create_connection(lambda: cls(address, loop), str(found[0][4][0]), port)
        except (OSError, TimeoutError) as error:
            reason = getattr(error, "strerror", None) or str(error) or "no answer in time"
            raise CannotConnect(address, reason) from error
        try:
            hello = verbs.HelloRequest(client_id=client_id, api_key=api_key)
            session.welcome = await session.ask(Verb.HELLO, hello, verbs.HelloAnswer, timeout_s=timeout_s)
        except AvailabilityError as error:
            session.close()
            raise CannotConnect(address, str(error)) from error
        except BaseException:
            session.close()
            raise
        session._sweep()
        return session

    # --- asking --------------------------------------------------------------------------------

    async def ask(
        self, verb: Verb, meta: msgspec.Struct, answer_type: type[M], *, timeout_s: float = ANSWER_TIMEOUT_S
    ) -> M:
        """The meta of the answer."""
        answer, _ = await self.ask_for_payload(verb, meta, answer_type, timeout_s=timeout_s)
        return answer

    async def ask_for_payload(
        self, verb: Verb, meta: msgspec.Struct, answer_type: type[M], *, timeout_s: float = ANSWER_TIMEOUT_S
    ) -> tuple[M, memoryview]:
        """The meta and the payload of the answer."""
        frame = await self.ask_frame(verb, meta, timeout_s=timeout_s)
        return decode(frame.meta, answer_type), frame.payload

    async def ask_frame(
        self,
        verb: Verb,
        meta: msgspec.Struct,
        payload: bytes | None = None,
        *,
        timeout_s: float = ANSWER_TIMEOUT_S,
        late: Callable[[Frame], None] | None = None,
    ) -> Frame:
        """The frame that answers; `late` gets one that comes after the timeout, or after the caller was cancelled."""
        future: asyncio.Future[Frame] = self._loop.create_future()

        def answered(frame: Frame | None, error: GoQueueError | None) -> None:
            if future.done():
                if frame is not None and late is not None:
                    late(frame)
                return
            if frame is None:
                future.set_exception(error or BrokerUnavailable("no answer"))
            else:
                future.set_result(frame)

        correlation = self.send(verb, meta, payload, answered)
        try:
            async with asyncio.timeout(timeout_s):
                return await future
        except TimeoutError:
            raise RequestTimeout(verb.name, timeout_s) from None
        finally:
            if late is None:
                self._open.pop(correlation, None)

    def send(
        self,
        verb: Verb,
        meta: msgspec.Struct,
        payload: bytes | bytearray | None,
        answered: Answered | None,
        *,
        in_time: bool = False,
    ) -> int:
        """Send a request; `answered` is called for each frame that answers it, or once with why there is none.

        With `in_time`, a broker that does not answer within half a minute is taken for dead.
        """
        if self.is_closed:
            raise BrokerUnavailable(f"the connection to {self.address} is closed")
        raw = verbs.encode(meta)
        if payload is not None or len(raw) > frames.META_BYTES_MAX:
            check_size(raw, payload or b"", self.welcome.frame_bytes_max)
        correlation = self._next_correlation
        self._next_correlation = correlation % 0xFFFF_FFFF + 1
        if payload is None:
            head = frames.pack(verb, correlation, raw)
            self._transport.write(head)
        else:
            head = frames.pack_checked(verb, correlation, raw, payload)
            self._transport.writelines((head, payload))
        if answered:
            self._open[correlation] = answered
            if in_time:
                self._since[correlation] = self._loop.time()
        return correlation

    def forget(self, correlation: int) -> None:
        """Ignore further frames that answer this request."""
        self._open.pop(correlation, None)
        self._since.pop(correlation, None)

    async def writable(self) -> None:
        """Wait until the broker takes what was sent."""
        await self._may_write.wait()

    def on_close(self, callback: Callable[[], None]) -> None:
        """Call when the session ends."""
        if self.is_closed:
            callback()
        else:
            self._on_close.append(callback)

    def close(self) -> None:
        """End the session."""
        self._end(BrokerUnavailable(f"the connection to {self.address} was closed"))

    # --- the transport -------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)
        raw = transport.get_extra_info("socket")
        if raw is not None:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)

    def connection_lost(self, exc: Exception | None) -> None:
        reason = f": {exc}" if exc else ""
        self._end(BrokerUnavailable(f"the connection to {self.address} was lost{reason}"))

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where to receive into."""
        return self._reader.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        """Bytes have come."""
        try:
            for frame in self._reader.received(nbytes):
                self._take(frame)
        except (BadFrame, msgspec.DecodeError) as error:
            self._end(BrokerUnavailable(f"{self.address} does not speak this protocol: {error}"))

    def eof_received(self) -> bool:
        """The broker hung up."""
        return False

    def pause_writing(self) -> None:
        """The broker does not read."""
        self._may_write.clear()

    def resume_writing(self) -> None:
        """It reads again."""
        self._may_write.set()

    def _take(self, frame: Frame) -> None:
        _, flags, correlation, _, _ = frame
        if flags & _ERROR:
            if not correlation:
                self._end(hung_up(self.address, frame))
                return
            answered = self._open.pop(correlation, None)
            self._since.pop(correlation, None)
            if answered:
                answered(None, told_error(frame))
            return
        if flags & _PUSH:
            pushed = self._open.get(correlation)
            if pushed:
                pushed(frame, None)
            return
        answered = self._open.pop(correlation, None)
        self._since.pop(correlation, None)
        if answered:
            answered(frame, None)

    def _sweep(self) -> None:
        now = self._loop.time()
        if self._since and now - next(iter(self._since.values())) > ANSWER_TIMEOUT_S:
            self._end(BrokerUnavailable(f"{self.address} did not answer within {ANSWER_TIMEOUT_S:g} s"))
            return
        self._sweeper = self._loop.call_later(1, self._sweep)

    def _end(self, error: GoQueueError) -> None:
        if self.is_closed:
            return
        self.is_closed = True
        self._may_write.set()
        if self._sweeper:
            self._sweeper.cancel()
        transport = getattr(self, "_transport", None)
        if transport and not transport.is_closing():
            transport.close()
        waiting, self._open = self._open, {}
        for answered in waiting.values():
            answered(None, error)
        callbacks, self._on_close = self._on_close, []
        for callback in callbacks:
            callback()


def check_size(meta: bytes, payload: bytes | bytearray, limit: int) -> None:
    """Raise `RequestTooLarge` for a frame that the broker would not read; it would hang up."""
    if len(meta) > frames.META_BYTES_MAX:
        raise RequestTooLarge(len(meta), frames.META_BYTES_MAX)
    size = frames.HEADER_BYTES + len(meta) + len(payload)
    if size > limit:
        raise RequestTooLarge(size, limit)


def split_address(address: str) -> tuple[str, int]:
    """Host and port of `host:port`; IPv6 in brackets."""
    host, separator, port = address.strip().rpartition(":")
    if not separator or not (port.isascii() and port.isdecimal() and int(port) < 65_536) or not host:
        raise InvalidRequest(f"invalid address {address!r}: must be host:port")
    return host.strip("[]"), int(port)
