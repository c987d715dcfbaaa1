"""Retention: which sealed segments are too old, or too much.

The decision is a pure function of facts about the segments; the log deletes them.
"""

from collections.abc import Iterable
from typing import NamedTuple

from goqueue.clock import MS
from goqueue.storage.config import LogConfig


class SegmentInfo(NamedTuple):
    """The facts about a sealed segment."""

    base_offset: int
    size: int
    last_timestamp: int | None  # None: it has no record


def expired(
    sealed: Iterable[SegmentInfo], total_bytes: int, config: LogConfig, *, now_ns: int, is_full: bool = False
) -> list[SegmentInfo]:
    """The oldest segments to delete, in order; `sealed` comes oldest first and is read no further than needed.

    The age of a segment is that of its newest record. By size, a segment is deleted if the rest of the log still has
    `retention_bytes`: the newest messages stay, even if they are more than that. Only if the disk is full, a segment
    that is larger than `retention_bytes` by itself is deleted, because nothing could be published otherwise.
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
    """Whether a segment of that size is larger than the whole log may be."""
    return config.deletes and 0 < config.retention_bytes < size
