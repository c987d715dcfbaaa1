"""Reading request bodies: within the size limit, and as JSON whatever the Content-Type is.

Content-Length is checked before anything is read, and the actual size while the body is received. So a request never
occupies more memory than its limit, and all large requests together never more than theirs.

Bodies are strict: an unknown field is refused. msgspec checks that while it decodes, at no extra cost. A lenient
request is decoded in the same way first. Only if that fails because of an unknown field, its body is decoded without a
type, stripped of unknown fields and decoded again.
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
    """The client has disconnected. A `BaseException`, like a cancellation, so that `except Exception` lets it pass."""


class Bodies:
    """Reads bodies, and limits the memory of those that are being received."""

    def __init__(self, *, arriving_bytes_max: int) -> None:
        self._arriving_bytes_max = arriving_bytes_max
        self._arriving_bytes = 0

    async def read(self, scope: Mapping[str, Any], receive: Receive, *, limit: int) -> bytes:
        """The complete body. Raises `RequestTooLarge`, or `ClientGone` if the client disconnects first."""
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
                    raise BrokerUnavailable("too many large requests are being received")
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
    """Refuse a large body with more than `limit` objects, before they are decoded."""
    if len(body) > MIB and body.count(b"{") > limit:
        raise too_many(body.count(b"{"), "objects", limit)


class BodyDecoder(Generic[T]):
    """Decodes bodies of one type."""

    def __init__(self, shape: Any) -> None:
        self._shape = shape
        self._decoder: msgspec.json.Decoder[T] = msgspec.json.Decoder(shape)

    def decode(self, body: bytes, headers: Iterable[tuple[bytes, bytes]]) -> T:
        """The decoded body. Raises `InvalidRequest` with the path of the first fault."""
        if not body.isascii():
            _check_utf8(body)  # msgspec does not check the parts that it skips
        try:
            return self._decoder.decode(body)
        except RecursionError:
            raise InvalidRequest("invalid JSON: nested too deeply") from None
        except msgspec.ValidationError as error:
            _check_json(body)  # a syntax error is reported first, even if it comes later in the body
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
        raise InvalidRequest(f"invalid JSON: not UTF-8 at byte {error.start}") from None
