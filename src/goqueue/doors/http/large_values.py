"""Large values, encoded and decoded in slices.

To show a value of 16 MiB, its UTF-8 is checked and each byte is escaped as JSON needs it, or it becomes base64. As one
call each of these holds the interpreter for 20 to 200 ms, in whatever thread it runs, and no other request is served
meanwhile. So a value above `LARGE_BYTES` is left out when its answer is encoded: a mark is written instead, and the
answer is sent piece by piece, with the value at the place of the mark. Between two slices of it, others have their
turn. Base64 in requests is decoded in the same way.
"""

import asyncio
import codecs
import os
from base64 import b64encode
from binascii import a2b_base64
from typing import Any, Final

import msgspec

LARGE_BYTES: Final = 256 * 1024
SLICE_BYTES: Final = 96 * 1024  # a multiple of 3, so that slices of base64 join up; 1 ms of control characters
assert SLICE_BYTES % 3 == 0
BASE64_SLICE_CHARS: Final = SLICE_BYTES // 3 * 4

_encode_text = msgspec.json.Encoder().encode
_utf8_decoder = codecs.getincrementaldecoder("utf-8")


class LargeValue:
    """A value that stands in an answer in place of its text, until it is encoded."""

    __slots__ = ("_as_text", "_data")

    def __init__(self, data: bytes, *, as_text: bool) -> None:
        self._data = data
        self._as_text = as_text

    async def encoded(self) -> list[bytes]:
        """What follows after `"value":` in slices: the text, or null and base64 in the field that comes next."""
        slices = await self._text() if self._as_text else None
        return await self._base64() if slices is None else slices

    async def _text(self) -> list[bytes] | None:
        decoder = _utf8_decoder()
        slices = [b'"']
        for start in range(0, len(self._data), SLICE_BYTES):
            end = start + SLICE_BYTES
            try:
                text = decoder.decode(self._data[start:end], end >= len(self._data))
            except UnicodeDecodeError:
                return None
            slices.append(_encode_text(text)[1:-1])
            await asyncio.sleep(0)
        slices.append(b'"')
        return slices

    async def _base64(self) -> list[bytes]:
        slices = [b'null,"value_base64":"']
        for start in range(0, len(self._data), SLICE_BYTES):
            slices.append(b64encode(self._data[start : start + SLICE_BYTES]))
            await asyncio.sleep(0)
        slices.append(b'"')
        return slices


async def base64_decoded(text: str) -> bytes | None:
    """The bytes that a large text stands for; None if it is not base64."""
    slices = []
    for start in range(0, len(text), BASE64_SLICE_CHARS):
        end = start + BASE64_SLICE_CHARS
        part = text[start:end]
        if end < len(text) and "=" in part:  # padding, which only the last slice may have
            return None
        try:
            slices.append(a2b_base64(part, strict_mode=True))
        except ValueError:
            return None
        await asyncio.sleep(0)
    return b"".join(slices)


class Encoded:
    """JSON without the large values in it."""

    def __init__(self, content: object) -> None:
        self._values: list[LargeValue] = []
        self._mark = b""
        self._json = msgspec.json.encode(content, enc_hook=self._leave_out)

    @property
    def has_large_values(self) -> bool:
        """Whether the JSON is not whole yet."""
        return bool(self._values)

    @property
    def whole(self) -> bytes:
        """The JSON, if there are no large values."""
        assert not self._values
        return self._json

    async def pieces(self) -> list[bytes]:
        """The JSON in pieces, each of them small or at least without a large value."""
        if not self._values:
            return [self._json]
        pieces: list[bytes] = []
        for value, before in zip([*self._values, None], self._json.split(self._mark), strict=True):
            pieces.append(before)
            if value:
                pieces += await value.encoded()
        return pieces

    def _leave_out(self, value: Any) -> msgspec.Raw:
        if not isinstance(value, LargeValue):
            raise NotImplementedError(f"{type(value).__name__} has no JSON")
        if not self._values:
            self._mark = os.urandom(16).hex().encode()  # which no other value of the answer contains
        self._values.append(value)
        return msgspec.Raw(self._mark)
