"""Frames: how requests, answers and pushed records travel over a byte stream. No socket in here.

    0        4      5       6          8             12       16
    +--------+------+-------+----------+-------------+--------+---------------+-----------------+
    | length | kind | flags | meta_len | correlation | crc32c | meta: msgpack | payload: records |
    +--------+------+-------+----------+-------------+--------+---------------+-----------------+

`length` counts the bytes after it. The checksum is CRC-32C of the frame without the checksum itself. With
`SELF_CHECKED` it stops before the payload, because records have checksums of their own: stored records travel as they
are on the disk, and the decoder of the records verifies them.

`FrameReader` hands out buffers to receive into, and takes frames out of them. Many small frames are received at a
time. A large frame gets a buffer of its own, which grows with the bytes that have arrived, so a length that is only
claimed costs no memory. A reader that trusts its peer allocates the full length at once, and copies nothing. Payloads
are views of the buffers; a buffer is not written again while a view of it exists. After that, buffers of large frames
are reused: the kernel needs longer to clear and map new memory than to receive into it.
"""

import struct
import sys
from collections.abc import Iterator
from enum import IntFlag
from typing import Final, NamedTuple

from goqueue.errors import GoQueueError
from goqueue.record.kernel import extend_crc32c

HEADER: Final = struct.Struct(">IBBHII")
_FRONT: Final = struct.Struct(">IBBHI")  # all but the checksum
HEADER_BYTES: Final = 16
LENGTH_BYTES: Final = 4
assert HEADER.size == HEADER_BYTES

FRAME_BYTES_MAX: Final = 33 * 1024 * 1024
"""The largest batch with its meta; both ends refuse longer frames."""
META_BYTES_MAX: Final = 65_535
_RECEIVE_BYTES_MIN: Final = 4 * 1024
_RECEIVE_BYTES_MAX: Final = 256 * 1024
_ROOM_BYTES_MIN: Final = 512
_LARGE_BYTES: Final = 512 * 1024
_SPARES_MAX: Final = 2
_REFERENCES_OF_MINE: Final = 2  # the local name, and the argument of getrefcount


class FrameFlags(IntFlag):
    """What a frame is, beside its verb."""

    RESPONSE = 0x01
    ERROR = 0x02
    SELF_CHECKED = 0x04  # the checksum does not cover the payload
    PUSH = 0x08  # one of many answers to a subscription; more follow


_SELF_CHECKED: Final = int(FrameFlags.SELF_CHECKED)


class BadFrame(GoQueueError):
    """The bytes are no frame. Nothing after them can be trusted, so the connection ends."""

    code = "INVALID_REQUEST"

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(text)
        self.reason = reason  # too_long, truncated, unknown_kind, checksum


class Frame(NamedTuple):
    """One frame, taken apart. `meta` and `payload` are views that keep their buffer from being reused."""

    kind: int
    flags: int
    correlation: int
    meta: memoryview
    payload: memoryview


def pack(kind: int, correlation: int, meta: bytes, payload_size: int = 0, *, flags: int = 0) -> bytes:
    """Header and meta of a frame. The checksum does not cover the payload, which the caller sends next."""
    front = _front(kind, correlation, meta, payload_size, flags)
    return b"".join((front, extend_crc32c(meta, extend_crc32c(front, 0)).to_bytes(4), meta))


def pack_checked(
    kind: int, correlation: int, meta: bytes, payload: bytes | bytearray | memoryview, *, flags: int = 0
) -> bytes:
    """Header and meta of a frame. The checksum covers the payload, which the caller sends next."""
    front = _front(kind, correlation, meta, len(payload), flags)
    crc = extend_crc32c(payload, extend_crc32c(meta, extend_crc32c(front, 0)))
    return b"".join((front, crc.to_bytes(4), meta))


def _front(kind: int, correlation: int, meta: bytes, payload_size: int, flags: int) -> bytes:
    if len(meta) > META_BYTES_MAX:
        raise BadFrame("too_long", f"meta of {len(meta)} bytes is over the limit of {META_BYTES_MAX}")
    length = HEADER_BYTES - LENGTH_BYTES + len(meta) + payload_size
    return _FRONT.pack(length, kind, flags, len(meta), correlation)


class FrameReader:
    """Takes frames out of a byte stream that the caller receives into its buffers."""

    def __init__(self, *, frame_bytes_max: int = FRAME_BYTES_MAX, trusts: bool = False) -> None:
        self.frame_bytes_max = frame_bytes_max
        self._trusts = trusts
        self._spares: list[bytearray] = []  # of large frames; views of them may still exist
        self._buffer = bytearray()
        self._start = 0  # of the bytes that are in no frame yet
        self._end = 0  # of the bytes that were received
        self._size = _RECEIVE_BYTES_MIN
        self._needed = HEADER_BYTES  # length of the frame at `start`, as far as known

    @property
    def pending_bytes(self) -> int:
        """How many bytes of an unfinished frame have arrived."""
        return self._end - self._start

    @property
    def buffered_bytes(self) -> int:
        """How many bytes of memory the buffers take."""
        return len(self._buffer) + sum(map(len, self._spares))

    def get_buffer(self) -> memoryview:
        """The buffer to receive into; never empty."""
        room = len(self._buffer) - self._end
        if self._trusts and self._needed >= _LARGE_BYTES and self._start + self._needed > len(self._buffer):
            self._renew_for(self._needed)
        elif not room or (room < _ROOM_BYTES_MIN and self._start + self._needed > len(self._buffer)):
            self._renew()
        return memoryview(self._buffer)[self._end :]

    def received(self, size: int) -> Iterator[Frame]:
        """Note that so many bytes were received; the frames that are complete now. Raises `BadFrame`."""
        self._end += size
        if self._end == len(self._buffer):
            self._size = min(2 * self._size, _RECEIVE_BYTES_MAX)
        view = memoryview(self._buffer)
        while self._end - self._start >= HEADER_BYTES:
            length, kind, flags, meta_size, correlation, crc = HEADER.unpack_from(self._buffer, self._start)
            end = self._start + LENGTH_BYTES + length
            if length + LENGTH_BYTES > self.frame_bytes_max:
                text = f"frame of {length} bytes is over the limit of {self.frame_bytes_max}"
                raise BadFrame("too_long", text)
            if length < HEADER_BYTES - LENGTH_BYTES + meta_size:
                raise BadFrame("truncated", f"frame of {length} bytes cannot hold its header and {meta_size} of meta")
            if end > self._end:
                self._needed = end - self._start
                return
            # Moved on before the frame is yielded: a caller that stops in between must not get it twice.
            start, self._start = self._start, end
            body = start + HEADER_BYTES
            payload_at = body + meta_size
            covered = payload_at if flags & _SELF_CHECKED else end
            if extend_crc32c(view[body:covered], extend_crc32c(view[start : start + 12], 0)) != crc:
                raise BadFrame("checksum", f"frame {correlation} fails its checksum")
            yield Frame(kind, flags, correlation, view[body:payload_at], view[payload_at:end])
        self._needed = HEADER_BYTES
        if self._start == self._end:  # an idle connection holds no buffer
            self._retire_buffer()
            self._buffer = bytearray()
            self._start = self._end = 0

    def _retire_buffer(self) -> None:
        """Keep the buffer of a large frame, as more may follow. A small frame ends the run, and frees the spares."""
        if self._trusts and len(self._buffer) >= _LARGE_BYTES:
            self._spares = [*self._spares[1 - _SPARES_MAX :], self._buffer]
        else:
            self._spares.clear()

    def _renew_for(self, size: int) -> None:
        """Move on to a buffer that holds the whole of a large frame."""
        left = memoryview(self._buffer)[self._start : self._end]
        buffer = self._spare(size)
        buffer[: len(left)] = left
        self._buffer = buffer
        self._start, self._end = 0, len(left)

    def _spare(self, size: int) -> bytearray:
        for _ in range(len(self._spares)):
            spare = self._spares.pop(0)
            if len(spare) >= size and sys.getrefcount(spare) == _REFERENCES_OF_MINE:
                return spare
            self._spares.append(spare)
        return bytearray(
            -(-size // _LARGE_BYTES) * _LARGE_BYTES
        )  # rounded up, so that a slightly longer frame can reuse it

    def _renew(self) -> None:
        """Move on to a new buffer, with the bytes of the unfinished frame.

        The room doubles with the bytes that have arrived, so that a peer cannot claim memory by a length alone.
        """
        if self._start == self._end:
            self._buffer = bytearray(self._size)
            self._start = self._end = 0
            return
        left = memoryview(self._buffer)[self._start : self._end]
        room = max(self._size, min(self._needed, 2 * len(left)))
        if self._needed > room >= self._needed // 2:
            room = self._needed  # the next step would be the last one: take the full length now, and copy only once
        buffer = bytearray(max(room, len(left) + 1))
        buffer[: len(left)] = left
        self._buffer = buffer
        self._start, self._end = 0, len(left)
