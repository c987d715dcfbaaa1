"""Compressed values. The flag COMPRESSED marks them, and their first four bytes name the algorithm.

Each value is compressed on its own, so a record can be copied, filtered and delivered alone. A value that compression
does not make smaller stays as it is, without the flag.
"""

from collections.abc import Sequence
from typing import Final

import lz4.frame
import zstandard

from goqueue.errors import CorruptRecord, InvalidConfig
from goqueue.record.header import Flags

NAMES: Final = ("none", "zstd", "lz4")
_ZSTD_MAGIC: Final = b"\x28\xb5\x2f\xfd"
_LZ4_MAGIC: Final = b"\x04\x22\x4d\x18"
DECOMPRESSED_BYTES_MAX: Final = 256 * 1024 * 1024
"""A few bytes can claim to be gigabytes; a reader never allocates more than this for a value."""


def compress(value: bytes, algorithm: str) -> bytes:
    """The value, compressed."""
    match algorithm:
        case "zstd":
            return zstandard.compress(value)
        case "lz4":
            packed: bytes = lz4.frame.compress(value)
            return packed
    raise InvalidConfig("compression", algorithm, f"must be one of {', '.join(NAMES)}")


def compress_all(values: Sequence[bytes | None], algorithm: str) -> tuple[list[bytes | None], list[int]]:
    """The values, compressed where that makes them smaller, and the flags of each."""
    packed: list[bytes | None] = []
    flags: list[int] = []
    for value in values:
        small = compress(value, algorithm) if value else value
        if value and small and len(small) < len(value):
            packed.append(small)
            flags.append(Flags.COMPRESSED)
        else:
            packed.append(value)
            flags.append(0)
    return packed, flags


class Decompressor:
    """Decompresses the values of one batch with one zstd context: making a context takes longer than most values.

    Not thread-safe.
    """

    __slots__ = ("_zstd",)

    def __init__(self) -> None:
        self._zstd: zstandard.ZstdDecompressor | None = None

    def decompress(self, value: bytes, *, max_bytes: int = DECOMPRESSED_BYTES_MAX) -> bytes:
        """The original value. Raises `CorruptRecord` if it cannot be decompressed to at most `max_bytes`."""
        try:
            if value.startswith(_ZSTD_MAGIC):
                size = zstandard.frame_content_size(value)
                # zstandard allocates the size that a frame claims, even above max_output_size: check it first.
                if size > max_bytes:
                    raise CorruptRecord(f"compressed value claims {size} bytes", 0)
                if self._zstd is None:
                    self._zstd = zstandard.ZstdDecompressor()
                return self._zstd.decompress(value, max_output_size=max_bytes)
            if value.startswith(_LZ4_MAGIC):
                reader = lz4.frame.LZ4FrameDecompressor()
                plain: bytes = reader.decompress(value, max_length=max_bytes)
                if not reader.eof:
                    raise CorruptRecord("compressed value is cut off or too large", 0)
                return plain
        except (zstandard.ZstdError, RuntimeError) as error:
            raise CorruptRecord(f"compressed value: {error}", 0) from error
        raise CorruptRecord("compressed by an unknown algorithm", 0)


def decompress(value: bytes) -> bytes:
    """The original of a single value. Raises `CorruptRecord` if it cannot be decompressed."""
    return Decompressor().decompress(value)
