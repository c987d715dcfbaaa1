"""A read-only inspection of the files of a log.

Unlike opening the log this repairs nothing, takes no lock and needs only read permission. Writes that a crash has torn
appear as damage at the end of the last segment, where the next start truncates the log.

It may run while a broker owns the log. Files are listed first and read one by one. A file that retention or compaction
removes in between is skipped.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from goqueue.record.header import OFFSET_MAX
from goqueue.storage.compaction import load_state
from goqueue.storage.file import Disk, File
from goqueue.storage.layout import GAPS, LOG, segment_path, sort_out
from goqueue.storage.walk import Damage, walk


class Hole(NamedTuple):
    """Offsets that no segment holds: the one before ends at `first_offset`, and `path` begins at `next_offset`."""

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
    listing = sort_out(directory, disk.entries(directory))
    bases = sorted(listing.log_sizes)
    is_dense = GAPS not in listing.small_files
    expected = bases[0] if bases else 0
    for base_offset, end_offset in pairwise([*bases, OFFSET_MAX]):
        path = segment_path(directory, base_offset, LOG)
        try:
            file = disk.open(path, write=False)
        except FileNotFoundError:
            expected = end_offset
            continue
        report = SegmentReport(base_offset, file.size())
        if is_dense and expected < base_offset and (hole := _hole(disk, directory, path, expected, base_offset)):
            report.damage.append(hole)
        expected = _read(file, report, end_offset)
        file.close()
        yield report


def _hole(disk: Disk, directory: str, path: str, first_offset: int, next_offset: int) -> Hole | None:
    """The offsets that should exist: compaction may have removed the last records of a segment."""
    first_offset = max(first_offset, load_state(disk, directory).cleaned_offset)
    return Hole(path, first_offset, next_offset) if first_offset < next_offset else None


def _read(file: File, report: SegmentReport, end_offset: int) -> int:
    """Fill the report from the file, and return the offset after its last record or damage."""
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
