"""Reading what a client sends: never more of it than is allowed, and as JSON whatever its Content-Type says.

A length that is announced is checked before anything is read, the rest while it comes in: so no request makes the
broker hold more than its limit, and a crowd of large ones together not more than theirs.

Bodies are strict: a field that the shape does not know is refused. msgspec checks that while it decodes, so it costs
nothing. A lenient request is decoded in the same way; only if that fails because of an unknown field, its body is
decoded without a shape, freed of unknown fields and decoded once more.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final, Generic, TypeVar

import msgspec
from litestar.types import Receive

from goqueue.doors.http.config import MIB
from goqueue.doors.http.refusals import malformed, too_many
from goqueue.doors.http.strictness import is_lenient
from goqueue.doors.unknown import unknown_field, without_unknown
from goqueue.errors import BrokerUnavailable, InvalidRequest, RequestTooLarge

T = TypeVar("T")


class ClientGone(BaseException):
    """Nobody is there to be answered. Like a cancellation, it is none of the business of those it passes."""


class Bodies:
    """The bodies that are arriving."""

    def __init__(self, *, arriving_bytes_max: int) -> None:
        self._arriving_bytes_max = arriving_bytes_max
        self._arriving_bytes = 0

    async def read(self, scope: Mapping[str, Any], receive: Receive, *, limit: int) -> bytes:
        """The whole body. Raises `RequestTooLarge`, or `ClientGone` if it ends too soon."""
        for name, value in scope["headers"]:
            if name == b"content-length" and int(value) > limit:
                raise RequestTooLarge(int(value), limit)
        event = await receive()
        if event["type"] != "http.request":
            raise ClientGone
        first = event["body"]
        if len(first) > limit:
            raise RequestTooLarge(len(first), limit)
        return await self._read_on(first, receive, limit) if event["more_body"] else first

    async def _read_on(self, first: bytes, receive: Receive, limit: int) -> bytes:
        chunks, size, more = [first], len(first), True
        self._arriving_bytes += size
        try:
            while more:
                if self._arriving_bytes > self._arriving_bytes_max:
                    raise BrokerUnavailable("too many large requests are arriving")
                event = await receive()
                if event["type"] != "http.request":
                    raise ClientGone
                chunk, more = event["body"], event["more_body"]
                size += len(chunk)
                self._arriving_bytes += len(chunk)
                if size > limit:
                    raise RequestTooLarge(size, limit)
                chunks.append(chunk)
        finally:
            self._arriving_bytes -= size
        return b"".join(chunks)


def check_braces(body: bytes, *, limit: int) -> None:
    """Refuse a large body that has more objects than that, before they are made."""
    if len(body) > MIB and body.count(b"{") > limit:
        raise too_many(body.count(b"{"), "objects", limit)


class BodyDecoder(Generic[T]):
    """Bodies of one shape."""

    def __init__(self, shape: Any) -> None:
        self._shape = shape
        self._decoder: msgspec.json.Decoder[T] = msgspec.json.Decoder(shape)

    def decode(self, body: bytes, headers: Iterable[tuple[bytes, bytes]]) -> T:
        """The body as what it is meant to be, or `InvalidRequest` with the place where it is not."""
        if not body.isascii():
            _check_utf8(body)  # the decoder passes over parts that it does not need; JSON is UTF-8 there, too
        try:
            return self._decoder.decode(body)
        except RecursionError:
            raise InvalidRequest("invalid JSON: nested too deeply") from None
        except msgspec.ValidationError as error:
            _check_json(body)  # which matters more, wherever it is in the body
            unknown = unknown_field(error, self._shape)
            if unknown is None:
                raise malformed(error) from None
            if not is_lenient(headers):
                raise unknown from None
        except msgspec.DecodeError as error:
            raise InvalidRequest(f"invalid JSON: {error}") from None
        return self._decode_known(body)

    def _decode_known(self, body: bytes) -> T:
        try:
            known = without_unknown(_ANYTHING.decode(body), self._shape)
            return self._decoder.decode(msgspec.json.encode(known))
        except RecursionError:
            raise InvalidRequest("invalid JSON: nested too deeply") from None
        except msgspec.ValidationError as error:
            raise malformed(error) from None
        except msgspec.DecodeError as error:
            raise InvalidRequest(f"invalid JSON: {error}") from None


_ANYTHING: Final = msgspec.json.Decoder()
_UNREAD: Final = msgspec.json.Decoder(msgspec.Raw)


def _check_json(body: bytes) -> None:
    try:
        _UNREAD.decode(body)
    except RecursionError:
        raise InvalidRequest("invalid JSON: nested too deeply") from None
    except msgspec.DecodeError as error:
        raise InvalidRequest(f"invalid JSON: {error}") from None


def _check_utf8(body: bytes) -> None:
    try:
        body.decode()
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"invalid JSON: no UTF-8 at byte {error.start}") from None
