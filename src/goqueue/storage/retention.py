"""Retention: which sealed segments have outlived their time or their room.

The decision is a pure function over what is known of the segments; deleting them is the log's work.
"""

from collections.abc import Iterable
from typing import NamedTuple

from goqueue.clock import MS
from goqueue.storage.config import LogConfig


class SegmentInfo(NamedTuple):
    """What retention has to know of a sealed segment."""

    base_offset: int
    size: int
    last_timestamp: int | None  # None: it holds no record


def expired(
    sealed: Iterable[SegmentInfo], total_bytes: int, config: LogConfig, *, now_ns: int, is_full: bool = False
) -> list[SegmentInfo]:
    """The oldest segments that may go, in order; `sealed` comes oldest first and is asked no further than needed.

    Age is that of a segment's newest record. By size, a segment goes if the log without it still fills its room: the
    newest messages stay, even if they are more than that. Only on a disk that is full a segment goes that takes more
    than the whole room by itself, because nothing could be published otherwise.
    """
    found: list[SegmentInfo] = []
    if not config.deletes:
        return found
    horizon_ns = now_ns - config.retention_ms * MS
    for segment in sealed:
        too_old = config.retention_ms > 0 and (segment.last_timestamp is None or segment.last_timestamp < horizon_ns)
        too_much = 0 < config.retention_bytes <= total_bytes - segment.size
        too_much = too_much or (is_full and is_oversized(segment.size, config))
        if not too_old and not too_much:
            break
        found.append(segment)
        total_bytes -= segment.size
    return found


def is_oversized(size: int, config: LogConfig) -> bool:
    """Whether a segment of that size takes more room than the whole log may have."""
    return config.deletes and 0 < config.retention_bytes < size
