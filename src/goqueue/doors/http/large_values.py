"""Large values, encoded and decoded in slices.

To show a value of 16 MiB, its UTF-8 is validated and escaped as a JSON string, or it is encoded as base64. Each of
these, done in one call, holds the GIL for 20 to 200 ms, whichever thread it runs in, and no other request is served in
that time. So a value above `LARGE_BYTES` is left out when its answer is encoded: a marker is written instead, and the
answer is sent in pieces, with the value in place of the marker. The event loop serves other requests between two
slices. Base64 in requests is decoded in the same way.
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
    """A placeholder for the value in an answer. Its text is encoded later, in slices."""

    __slots__ = ("_as_text", "_data")

    def __init__(self, data: bytes, *, as_text: bool) -> None:
        self._data = data
        self._as_text = as_text

    async def encoded(self) -> list[bytes]:
        """The JSON after `"value":`, in slices: the text, or null followed by the field `value_base64`."""
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
    """Decode base64 in slices; None if the text is not base64."""
    slices = []
    for start in range(0, len(text), BASE64_SLICE_CHARS):
        end = start + BASE64_SLICE_CHARS
        part = text[start:end]
        if end < len(text) and "=" in part:  # padding is valid in the last slice only
            return None
        try:
            slices.append(a2b_base64(part, strict_mode=True))
        except ValueError:
            return None
        await asyncio.sleep(0)
    return b"".join(slices)


class Encoded:
    """Encoded JSON with a marker in place of each large value."""

    def __init__(self, content: object) -> None:
        self._values: list[LargeValue] = []
        self._mark = b""
        self._json = msgspec.json.encode(content, enc_hook=self._leave_out)

    @property
    def has_large_values(self) -> bool:
        """Whether there are markers, so that the JSON has to be sent in pieces."""
        return bool(self._values)

    @property
    def whole(self) -> bytes:
        """The complete JSON. Only if there are no large values."""
        assert not self._values
        return self._json

    async def pieces(self) -> list[bytes]:
        """The complete JSON in pieces; no piece is encoded from more than one slice of a large value."""
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
            # Random, so that a client cannot publish a value that contains the marker.
            self._mark = os.urandom(16).hex().encode()
        self._values.append(value)
        return msgspec.Raw(self._mark)
