"""A look at the files of a log that changes none of them.

Unlike opening the log this repairs nothing and needs no lock: what a crash has torn shows up as damage at
the end of the last segment, where the next start will cut it off.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from goqueue.record.header import OFFSET_MAX
from goqueue.storage.file import Disk
from goqueue.storage.layout import LOG, segment_path, sort_out
from goqueue.storage.walk import Damage, walk


@dataclass(slots=True)
class SegmentReport:
    """What one segment holds."""

    base_offset: int
    size: int
    record_count: int = 0
    first_offset: int = -1
    last_offset: int = -1
    first_timestamp: int = -1
    last_timestamp: int = -1
    damage: list[Damage] = field(default_factory=list)


def inspect(disk: Disk, directory: str) -> Iterator[SegmentReport]:
    """Read each segment to its end, oldest first."""
    log_sizes = sort_out(directory, disk.entries(directory)).log_sizes
    bases = sorted(log_sizes)
    for base_offset, end_offset in zip(bases, [*bases[1:], OFFSET_MAX], strict=True):
        report = SegmentReport(base_offset, log_sizes[base_offset])
        file = disk.open(segment_path(directory, base_offset, LOG))
        for found in walk(file, 0, report.size, min_offset=base_offset, end_offset=end_offset):
            if isinstance(found, Damage):
                report.damage.append(found)
                continue
            if not report.record_count:
                report.first_offset = found.summary.first_offset
                report.first_timestamp = found.summary.first_timestamp
            report.record_count += found.summary.record_count
            report.last_offset = found.summary.last_offset
            report.last_timestamp = found.summary.last_timestamp
        file.close()
        yield report
