"""Compaction: of all records with one key, only the last one stays.

A run reads sealed segments only. It maps the keys of the *dirty* segments (those not compacted before) to their last
offsets. Then it copies every segment up to there, without records that a later one has replaced and without tombstones
that are old enough. Records without a key stay. Offsets do not change, and small copies are joined. Readers that hold
the old files are not disturbed.

Records of aborted transactions are left out, too, and never stand for their key. Records of undecided transactions are
not touched. Control records stay for as long as tombstones do, and as long as they are needed to find out which
transactions are open.

Each step survives a crash:

    1. copies are written as *.cleaned and synced               crash: the log opens without them
    2. the file `compaction` names the copies to swap in        crash: opening the log carries it out
    3. the copies are renamed into place, the rest removed      crash: the same, as often as it takes
    4. the file `compaction` says that no swap is under way

Steps 1, 2 and 4 block and are jobs for a thread; step 3 is a few renames by the owner of the log.
"""

import struct
from array import array
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from pyroaring import BitMap64

from goqueue.clock import MS
from goqueue.errors import CorruptRecord
from goqueue.record import kernel
from goqueue.record.header import TIMESTAMP_MIN, Flags
from goqueue.storage import small_file
from goqueue.storage.config import LogConfig
from goqueue.storage.file import Disk
from goqueue.storage.jobs import CancellableJob
from goqueue.storage.layout import CLEANED, COMPACTION, LOG, SEGMENT_SUFFIXES, SPARSE_INDEXES, TXN_INDEX, segment_path
from goqueue.storage.segment import offset_at_time
from goqueue.storage.walk import WINDOW_BYTES, Damage, RecordRun, walk

_KIND = b"GQCO"
_HEAD = struct.Struct(">QI")
_REPLACEMENT = struct.Struct(">QII")
_BASE = struct.Struct(">Q")
_COUNT = struct.Struct(">I")
_GAPS = struct.Struct(">QQQ")


class CompactionCancelled(Exception):
    """The owner of the log has called off the job."""


class Source(NamedTuple):
    """A sealed segment: offsets [base_offset, end_offset) in `size` bytes."""

    base_offset: int
    end_offset: int
    size: int
    control_missing: int = 0  # control records that earlier compactions have removed


class Gaps(NamedTuple):
    """How many offsets of a segment have no record any more, and how many of these had a control record."""

    missing: int
    control_missing: int


NO_GAPS = Gaps(0, 0)


class Replacement(NamedTuple):
    """A copy that replaces one or more segments; it has the base offset of the first."""

    sources: tuple[int, ...]
    size: int
    crc: int  # of the whole file: tells the copy from its source after a crash
    gaps: Gaps = NO_GAPS

    @property
    def base_offset(self) -> int:
        return self.sources[0]


class CompactionState(NamedTuple):
    """The content of the file `compaction`: the offset below which the log is compacted, the copies to swap in, and the
    gaps of segments after the swap, by base offset. Files of early versions have no gaps.
    """

    cleaned_offset: int
    swap: tuple[Replacement, ...] = ()
    gaps: Mapping[int, Gaps] = {}


def load_state(disk: Disk, directory: str) -> CompactionState:
    """The stored state. After damage to the file everything is compacted again, which is harmless."""
    try:
        return check_state(disk, directory)
    except (FileNotFoundError, CorruptRecord):
        return CompactionState(0)


def check_state(disk: Disk, directory: str) -> CompactionState:
    """The stored state. Raises `CorruptRecord` or `FileNotFoundError`."""
    payload = small_file.load(disk, directory, COMPACTION, _KIND)
    cleaned_offset, swap_count = _HEAD.unpack_from(payload)
    position = _HEAD.size
    swap = []
    for _ in range(swap_count):
        size, crc, count = _REPLACEMENT.unpack_from(payload, position)
        position += _REPLACEMENT.size
        end = position + count * _BASE.size
        sources = tuple(base for (base,) in _BASE.iter_unpack(payload[position:end]))
        swap.append(Replacement(sources, size, crc))
        position = end
    gaps: dict[int, Gaps] = {}
    if position < len(payload):
        (count,) = _COUNT.unpack_from(payload, position)
        position += _COUNT.size
        for base, *counts in _GAPS.iter_unpack(payload[position : position + count * _GAPS.size]):
            gaps[base] = Gaps(*counts)
    return CompactionState(cleaned_offset, tuple(swap), gaps)


def store_state(disk: Disk, directory: str, state: CompactionState) -> None:
    """Make the state durable."""
    payload = _HEAD.pack(state.cleaned_offset, len(state.swap))
    for sources, size, crc, _ in state.swap:
        payload += _REPLACEMENT.pack(size, crc, len(sources)) + b"".join(map(_BASE.pack, sources))
    payload += _COUNT.pack(len(state.gaps))
    payload += b"".join(_GAPS.pack(base, *gaps) for base, gaps in state.gaps.items())
    small_file.replace(disk, directory, COMPACTION, _KIND, payload)


def finish_swap(disk: Disk, directory: str, state: CompactionState, cleaned: Sequence[str]) -> None:
    """Carry out a swap that a crash interrupted; copies of a run that had not decided are removed.

    Sources are removed only if their copy is in place, by its size and checksum.
    """
    present = set(cleaned)
    for replacement in state.swap:
        path = segment_path(directory, replacement.base_offset, LOG)
        if not any(_is_copy(disk, name, replacement) for name in (path + CLEANED, path)):
            continue
        for suffix in SEGMENT_SUFFIXES:
            path = segment_path(directory, replacement.base_offset, suffix)
            if path + CLEANED in present:
                disk.rename(path + CLEANED, path)
                present.discard(path + CLEANED)
            for base_offset in replacement.sources[1:]:
                disk.remove(segment_path(directory, base_offset, suffix))
        disk.remove(segment_path(directory, replacement.base_offset, TXN_INDEX))
    for path in present:
        disk.remove(path)
    if state.swap:
        disk.sync_directory(directory)
        store_state(disk, directory, CompactionState(state.cleaned_offset, gaps=state.gaps))


def _is_copy(disk: Disk, path: str, replacement: Replacement) -> bool:
    try:
        file = disk.open(path)
    except FileNotFoundError:
        return False
    crc = position = 0
    while data := file.pread(position, WINDOW_BYTES):
        crc = kernel.crc32c(data, crc)
        position += len(data)
    file.close()
    return (position, crc) == (replacement.size, replacement.crc)


def dirty_ratio(sources: Sequence[Source], cleaned_offset: int) -> float:
    """The share of the sealed bytes that was written since the last compaction."""
    total = sum(source.size for source in sources)
    dirty = sum(source.size for source in sources if source.end_offset > cleaned_offset)
    return dirty / total if total else 0.0


class CompactJob(CancellableJob):
    """Step 1: write the copies. `replacements` and `cleaned_offset` are the result."""

    def __init__(
        self,
        disk: Disk,
        directory: str,
        sources: Sequence[Source],
        config: LogConfig,
        cleaned_offset: int,
        now_ns: int,
        *,
        aborted: BitMap64,
        markers_below: int,
    ) -> None:
        super().__init__()
        self._disk = disk
        self._directory = directory
        self._config = config
        self._dirty_from = cleaned_offset
        self._tombstones_before = max(TIMESTAMP_MIN, now_ns - config.tombstone_retention_ms * MS)
        self._aborted = aborted
        self._markers_below = markers_below
        self.sources = tuple(sources)
        self.replacements: list[Replacement] = []
        self.cleaned_offset = cleaned_offset
        self.damage: list[Damage] = []  # what stopped the job
        self._control_missing = 0  # in the copy that is being written

    @property
    def end_offset(self) -> int:
        """No record at or after it is read."""
        return self.sources[-1].end_offset

    def _work(self) -> None:
        latest = self._map_keys()
        output: _Copy | None = None
        for source in self.sources:
            if source.end_offset > self.cleaned_offset:
                break
            if output is not None and output.size + source.size > self._config.segment_bytes:
                self._finish(output)
                output = None
            if output is None:
                output = _Copy(self._disk, self._directory, source.base_offset)
                self._control_missing = 0
            output.sources.append(source)
            for run in self._runs(source):
                for records in self._kept(run, latest):
                    output.append(records)
        if output is not None:
            self._finish(output)
        self._disk.sync_directory(self._directory)

    def discard(self) -> None:
        """Remove the copies; the log keeps its segments."""
        for source in self.sources:
            for suffix in SEGMENT_SUFFIXES:
                self._disk.remove(segment_path(self._directory, source.base_offset, suffix) + CLEANED)

    def _map_keys(self) -> dict[bytes, int]:
        latest: dict[bytes, int] = {}
        for source in self.sources:
            if source.end_offset <= self._dirty_from:
                continue
            if len(latest) >= self._config.compaction_keys_max:
                break
            for run in self._runs(source):
                hidden = self._hidden(run)
                kernel.latest(kernel.filter(run.records, hidden=hidden) if hidden else run.records, latest)
            self.cleaned_offset = source.end_offset
        return latest

    def _kept(self, run: RecordRun, latest: dict[bytes, int]) -> Iterator[bytearray]:
        """The records of the run that stay. Times never go back in a log, so the markers that may go come first."""
        first, last = run.summary.first_offset, run.summary.last_offset
        markers_end = min(self._markers_below, self._old_end(run)) if run.summary.flags & Flags.CONTROL else first
        hidden = self._hidden(run)
        for start, end, hide_flags in ((first, markers_end, Flags.CONTROL), (max(first, markers_end), last + 1, 0)):
            if start < end:
                if hide_flags:
                    self._control_missing += _control_count(run, start, end)
                yield kernel.filter(
                    run.records,
                    from_offset=start,
                    to_offset=end,
                    hide_flags=hide_flags,
                    hidden=hidden,
                    latest=latest,
                    tombstones_before=self._tombstones_before,
                )

    def _old_end(self, run: RecordRun) -> int:
        """The end offset of the records of the run that are older than a tombstone may get."""
        if run.summary.last_timestamp < self._tombstones_before:
            return run.summary.last_offset + 1
        return offset_at_time(run.records, self._tombstones_before)

    def _hidden(self, run: RecordRun) -> bytes:
        """The aborted ranges in the run, as the kernel takes them: pairs of int64."""
        bounds = array("q")
        start, end = run.summary.first_offset, run.summary.last_offset + 1
        if self._aborted.range_cardinality(start, end):
            aborted = BitMap64()
            aborted.add_range(start, end)
            aborted &= self._aborted
            others = aborted.flip(start, end)
            others.add(end)
            last = aborted.max()
            while start <= last:
                first = aborted.next_set_bit(start)
                start = others.next_set_bit(first)
                bounds.extend((first, start))
        return bounds.tobytes()

    def _runs(self, source: Source) -> Iterator[RecordRun]:
        file = self._disk.open(segment_path(self._directory, source.base_offset, LOG))
        for found in walk(file, 0, source.size, min_offset=source.base_offset, end_offset=source.end_offset):
            if self._cancelled:
                raise CompactionCancelled(self._directory)
            if isinstance(found, Damage):
                self.damage.append(found)
                raise CorruptRecord(kernel.describe(found.fault), found.position, source=found.path)
            yield found
        file.close()

    def _finish(self, output: "_Copy") -> None:
        if len(output.sources) == 1 and output.size == output.sources[0].size:
            output.remove()
        else:
            output.finish()
            sources = tuple(source.base_offset for source in output.sources)
            offsets = sum(source.end_offset - source.base_offset for source in output.sources)
            control_missing = self._control_missing + sum(source.control_missing for source in output.sources)
            gaps = Gaps(offsets - output.record_count, control_missing)
            self.replacements.append(Replacement(sources, output.size, output.crc, gaps))


class SwapJob(CancellableJob):
    """Step 2: note the swap durably. From here on the copies replace their sources, crash or not."""

    def __init__(self, disk: Disk, directory: str, compacted: CompactJob, gaps: Mapping[int, Gaps]) -> None:
        super().__init__()
        self._disk = disk
        self._directory = directory
        self.compacted = compacted
        replaced = {base for replacement in compacted.replacements for base in replacement.sources}
        self.gaps = {base: one for base, one in gaps.items() if base not in replaced}
        self.gaps |= {replacement.base_offset: replacement.gaps for replacement in compacted.replacements}

    def _work(self) -> None:
        state = CompactionState(self.compacted.cleaned_offset, tuple(self.compacted.replacements), self.gaps)
        store_state(self._disk, self._directory, state)


class FinishJob(CancellableJob):
    """Step 4: the copies are in place; make their names durable and remove the old files."""

    def __init__(
        self, disk: Disk, directory: str, cleaned_offset: int, gaps: Mapping[int, Gaps], paths: list[str]
    ) -> None:
        super().__init__()
        self._disk = disk
        self._directory = directory
        self._cleaned_offset = cleaned_offset
        self._gaps = gaps
        self.paths = paths

    def _work(self) -> None:
        self._disk.sync_directory(self._directory)
        store_state(self._disk, self._directory, CompactionState(self._cleaned_offset, gaps=self._gaps))
        for path in self.paths:
            self._disk.remove(path)


class _Copy:
    """A copy that is being written, under names that recovery ignores."""

    def __init__(self, disk: Disk, directory: str, base_offset: int) -> None:
        self._disk = disk
        self._paths = [segment_path(directory, base_offset, suffix) + CLEANED for suffix in (LOG, *SPARSE_INDEXES)]
        self.remove()
        self._files = [disk.open(path, create=True) for path in self._paths]
        self._next_index_at = 0
        self.sources: list[Source] = []
        self.record_count = 0
        self.size = 0
        self.crc = 0

    def append(self, records: bytearray) -> None:
        if records:
            summary = kernel.scan(records, position=self.size, next_index_at=self._next_index_at)
            assert summary.end == len(records), kernel.describe(summary.fault)
            log, offset_index, time_index = self._files
            log.append(records)
            offset_index.append(summary.offset_entries)
            time_index.append(summary.time_entries)
            self._next_index_at = summary.next_index_at
            self.record_count += summary.record_count
            self.size += len(records)
            self.crc = kernel.crc32c(records, self.crc)

    def finish(self) -> None:
        for file in self._files:
            file.sync()
            file.close()

    def remove(self) -> None:
        for path in self._paths:
            self._disk.remove(path)


def _control_count(run: RecordRun, start: int, end: int) -> int:
    """The number of control records in [start, end) of the run."""
    everything = kernel.filter(run.records, from_offset=start, to_offset=end)
    others = kernel.filter(run.records, from_offset=start, to_offset=end, hide_flags=Flags.CONTROL)
    return kernel.scan(everything).record_count - kernel.scan(others).record_count
