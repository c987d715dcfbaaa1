"""A look at the files of a log that changes none of them.

Unlike opening the log this repairs nothing, needs no lock, and asks for no more than the permission to read. What a
crash has torn shows up as damage at the end of the last segment, where the next start will cut it off.

It may run beside the broker that owns the log. Files are listed first and read one by one, so some may be gone by
then: retention has removed them or compaction has joined them to others. They are passed over.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from goqueue.record.header import OFFSET_MAX
from goqueue.storage.compaction import load_state
from goqueue.storage.file import Disk, File
from goqueue.storage.layout import LOG, segment_path, sort_out
from goqueue.storage.walk import Damage, walk


class Hole(NamedTuple):
    """Offsets that no segment holds, though the one before ends at `first_offset` and `path` begins behind them."""

    path: str
    first_offset: int
    next_offset: int

    def __str__(self) -> str:
        return f"{self.path}: offsets [{self.first_offset}, {self.next_offset}) are missing before this segment"


@dataclass(slots=True)
class SegmentReport:
    """What one segment holds, and what is missing before it."""

    base_offset: int
    size: int
    record_count: int = 0
    first_offset: int = -1
    last_offset: int = -1
    first_timestamp: int = -1
    last_timestamp: int = -1
    damage: list[Damage | Hole] = field(default_factory=list)


def inspect(disk: Disk, directory: str) -> Iterator[SegmentReport]:
    """Read each segment to its end, oldest first."""
    bases = sorted(sort_out(directory, disk.entries(directory)).log_sizes)
    expected = bases[0] if bases else 0
    for base_offset, end_offset in pairwise([*bases, OFFSET_MAX]):
        path = segment_path(directory, base_offset, LOG)
        try:
            file = disk.open(path, write=False)
        except FileNotFoundError:
            expected = end_offset
            continue
        report = SegmentReport(base_offset, file.size())
        if expected < base_offset and (hole := _hole(disk, directory, path, expected, base_offset)):
            report.damage.append(hole)
        expected = _read(file, report, end_offset)
        file.close()
        yield report


def _hole(disk: Disk, directory: str, path: str, first_offset: int, next_offset: int) -> Hole | None:
    """What of the offsets should be there: compaction may have taken the last records of a segment it has cleaned."""
    first_offset = max(first_offset, load_state(disk, directory).cleaned_offset)
    return Hole(path, first_offset, next_offset) if first_offset < next_offset else None


def _read(file: File, report: SegmentReport, end_offset: int) -> int:
    """Note all that the file holds, and return the offset behind its last record or damage."""
    expected = report.base_offset
    for found in walk(file, 0, report.size, min_offset=report.base_offset, end_offset=end_offset):
        if isinstance(found, Damage):
            report.damage.append(found)
            expected = found.next_offset
            continue
        if not report.record_count:
            report.first_offset = found.summary.first_offset
            report.first_timestamp = found.summary.first_timestamp
        report.record_count += found.summary.record_count
        report.last_offset = found.summary.last_offset
        report.last_timestamp = found.summary.last_timestamp
        expected = report.last_offset + 1
    return expected
