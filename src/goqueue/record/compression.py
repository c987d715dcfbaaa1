"""Compressed values: which algorithm was used is told by the first bytes of the value itself.

Each value is compressed for itself, so that a record stays whole wherever it is copied. A value that does not get
smaller stays as it is. The flag COMPRESSED says which is the case.
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
"""A few bytes can claim to be gigabytes; no reader is given more than this."""


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
    """The values with those compressed that get smaller by it, and the flags that say which these are."""
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
    """Decompresses the values of one batch; to make what zstd needs takes longer than most values. Not thread-safe."""

    __slots__ = ("_zstd",)

    def __init__(self) -> None:
        self._zstd: zstandard.ZstdDecompressor | None = None

    def decompress(self, value: bytes, *, max_bytes: int = DECOMPRESSED_BYTES_MAX) -> bytes:
        """The value as it was before. Raises `CorruptRecord` if it cannot be decompressed to at most `max_bytes`."""
        try:
            if value.startswith(_ZSTD_MAGIC):
                size = zstandard.frame_content_size(value)
                if size > max_bytes:  # the decompressor believes the claim of a frame, whatever its own limit
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
    """A single value as it was before. Raises `CorruptRecord` if it cannot be decompressed."""
    return Decompressor().decompress(value)
