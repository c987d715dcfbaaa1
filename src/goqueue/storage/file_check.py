"""The check of every file of a log, without changing any: what `goqueue log verify` reports.

Records and small files have checksums. The sparse indexes have none: their entries are compared with the records that
they point at. The report says which damaged files are only hints; the broker detects those by itself and rebuilds them.
"""

from collections.abc import Iterator
from typing import NamedTuple

from goqueue.errors import GoQueueError
from goqueue.record.header import HEADER, HEADER_BYTES, MAGIC
from goqueue.storage import checkpoint, log_start, txn_index
from goqueue.storage.compaction import check_state
from goqueue.storage.epochs import load_entries, load_highest
from goqueue.storage.file import Disk, read_file
from goqueue.storage.inspection import SegmentReport, inspect
from goqueue.storage.layout import (
    CHECKPOINT,
    COMPACTION,
    DELAYED,
    GAPS,
    HIGHEST_EPOCH,
    LEADER_EPOCHS,
    LOG,
    LOG_START,
    OFFSET_INDEX,
    TIME_INDEX,
    TRANSACTIONS,
    TXN_INDEX,
    segment_path,
    sort_out,
)
from goqueue.storage.offset_index import OffsetIndex
from goqueue.storage.time_index import TimeIndex

HINT = "only a hint: delete it while no broker runs, and it is rebuilt"


class FileReport(NamedTuple):
    """The content and the damage of one file, or of a directory if that is what is wrong."""

    path: str
    content: str
    damage: tuple[str, ...] = ()

    @property
    def is_sound(self) -> bool:
        return not self.damage


def check_log(disk: Disk, directory: str) -> Iterator[FileReport]:
    """A report for every file of the log in the directory. Raises `ForeignFile` and `OSError`."""
    entries = disk.entries(directory)
    names = {entry.name for entry in entries}
    listing = sort_out(directory, entries)
    has_indexes = any(
        name.endswith((OFFSET_INDEX, TIME_INDEX)) for name in names
    )  # otherwise it is a copy of the records only
    if listing.log_sizes and has_indexes and CHECKPOINT not in names:
        yield FileReport(f"{directory}/{CHECKPOINT}", "", ("missing: a start cannot tell a torn tail from damage",))
    for report in inspect(disk, directory):
        yield _segment(directory, report)
        for suffix, check in ((OFFSET_INDEX, _offset_index), (TIME_INDEX, _time_index), (TXN_INDEX, _txn_index)):
            path = segment_path(directory, report.base_offset, suffix)
            if path.rpartition("/")[2] in names and (raw := _content(disk, path)) is not None:
                yield check(disk, directory, path, report, raw)
    marks = (
        (TRANSACTIONS, "there were transactions"),
        (DELAYED, "there were delayed messages"),
        (GAPS, "there were records of a compacted log"),
    )
    for name, text in marks:
        if name in names:  # they are empty: their existence is the fact
            yield FileReport(f"{directory}/{name}", text)
    small_files = (
        (CHECKPOINT, _checkpoint),
        (LEADER_EPOCHS, _epochs),
        (HIGHEST_EPOCH, _highest_epoch),
        (COMPACTION, _compaction),
        (LOG_START, _log_start),
    )
    for name, load in small_files:
        if name in names:
            yield load(disk, directory, f"{directory}/{name}")


def _segment(directory: str, report: SegmentReport) -> FileReport:
    offsets = f", offsets {report.first_offset} to {report.last_offset}" if report.record_count else ""
    text = f"{report.record_count} records{offsets}"
    return FileReport(
        segment_path(directory, report.base_offset, LOG), text, tuple(str(found) for found in report.damage)
    )


def _offset_index(disk: Disk, directory: str, path: str, report: SegmentReport, raw: bytes) -> FileReport:
    pairs = list(OffsetIndex.ENTRY.iter_unpack(raw[: len(raw) // 16 * 16]))
    wrong = sum(1 for offset, position in pairs if _offset_at(disk, directory, report, position) != offset)
    return _index(path, len(pairs), wrong)


def _time_index(disk: Disk, directory: str, path: str, report: SegmentReport, raw: bytes) -> FileReport:
    pairs = list(TimeIndex.ENTRY.iter_unpack(raw[: len(raw) // 16 * 16]))
    low, high = report.first_timestamp, report.last_timestamp
    wrong = sum(
        1
        for time_ns, offset in pairs
        if not (low <= time_ns <= high and report.first_offset <= offset <= report.last_offset)
    )
    return _index(path, len(pairs), wrong)


def _index(path: str, count: int, wrong: int) -> FileReport:
    damage = (f"{wrong} of {count} entries point at no such record ({HINT})",) if wrong else ()
    return FileReport(path, f"{count} entries", damage)


def _txn_index(_disk: Disk, _directory: str, path: str, report: SegmentReport, raw: bytes) -> FileReport:
    content = txn_index.decode(raw, report.base_offset)
    damage = ("an entry fails its checksum; the broker reads the log instead",) if content.is_damaged else ()
    return FileReport(path, f"{len(content.entries)} aborted ranges", damage)


def _checkpoint(disk: Disk, _directory: str, path: str) -> FileReport:
    raw = _content(disk, path) or b""
    try:
        found = checkpoint.CheckpointFile(disk, path).load(write=False)
    except GoQueueError as error:
        return FileReport(path, "", (str(error),))
    damage = [f"slot {index} fails its checksum" for index in checkpoint.damaged_slots(raw)]
    if found is None:
        damage.append("no slot is valid: a start cannot tell a torn tail from damage")
    return FileReport(path, "" if found is None else f"all below offset {found.next_offset} is durable", tuple(damage))


def _epochs(disk: Disk, directory: str, path: str) -> FileReport:
    try:
        return FileReport(path, f"{len(load_entries(disk, directory))} epochs")
    except GoQueueError as error:
        return FileReport(path, "", (str(error),))


def _highest_epoch(disk: Disk, directory: str, path: str) -> FileReport:
    try:
        return FileReport(path, f"epoch {load_highest(disk, directory)}")
    except GoQueueError as error:
        return FileReport(path, "", (str(error),))


def _compaction(disk: Disk, directory: str, path: str) -> FileReport:
    try:
        state = check_state(disk, directory)
    except GoQueueError as error:
        return FileReport(path, "", (str(error),))
    return FileReport(path, f"compacted below offset {state.cleaned_offset}")


def _log_start(disk: Disk, directory: str, path: str) -> FileReport:
    try:
        return FileReport(path, f"deleted below offset {log_start.load(disk, directory)}")
    except GoQueueError as error:
        return FileReport(path, "", (str(error),))


def _offset_at(disk: Disk, directory: str, report: SegmentReport, position: int) -> int | None:
    """The offset of the record at the position, if there is one."""
    if position + HEADER_BYTES > report.size:
        return None
    try:
        file = disk.open(segment_path(directory, report.base_offset, LOG), write=False)
    except FileNotFoundError:
        return None
    raw = file.pread(position, HEADER_BYTES)
    file.close()
    if len(raw) < HEADER_BYTES or raw[:2] != MAGIC:
        return None
    offset: int = HEADER.unpack(raw)[4]
    return offset


def _content(disk: Disk, path: str) -> bytes | None:
    """None if the file was removed meanwhile."""
    try:
        return read_file(disk, path)
    except FileNotFoundError:
        return None
