"""Compaction: of all records with one key, only the last stays.

A run looks at sealed segments only. It maps the keys of the *dirty* ones (those not compacted before) to
their last offsets, then copies every segment up to there, leaving out what a later record has replaced and
tombstones that have been there for long enough. Records without a key stay. Offsets do not change, small results are
joined, and nobody who reads the old files is disturbed.

Records of aborted transactions are left out, too, and have no say in what the last of their key is; nothing that is not
decided is looked at. Control records stay for as long as tombstones do, and until nobody needs them to find
out what is open.

Each step survives a crash:

    1. copies are written as *.cleaned and synced               crash: the log opens without them
    2. the file `compaction` says which copies replace what     crash: opening the log carries it out
    3. the copies are renamed into place, the rest removed      crash: the same, as often as it takes
    4. the file `compaction` says that nothing is under way

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
from goqueue.storage.walk import WINDOW_BYTES, Damage, Run, walk

_KIND = b"GQCO"
_HEAD = struct.Struct(">QI")
_REPLACEMENT = struct.Struct(">QII")
_BASE = struct.Struct(">Q")
_COUNT = struct.Struct(">I")
_GAPS = struct.Struct(">QQQ")


class Cancelled(Exception):
    """The owner of the log has called the job off."""


class Source(NamedTuple):
    """A sealed segment: offsets [base_offset, end_offset) in `size` bytes."""

    base_offset: int
    end_offset: int
    size: int
    control_missing: int = 0  # control records that an earlier compaction has taken out


class Gaps(NamedTuple):
    """How many offsets of a segment have no record any more, and how many of those had a control record."""

    missing: int
    control_missing: int


NO_GAPS = Gaps(0, 0)


class Replacement(NamedTuple):
    """A copy that stands for one or more segments; it bears the base offset of the first."""

    sources: tuple[int, ...]
    size: int
    crc: int  # of the whole file: by it a copy is known again
    gaps: Gaps = NO_GAPS

    @property
    def base_offset(self) -> int:
        return self.sources[0]


class State(NamedTuple):
    """What the file `compaction` says: up to where the log is compacted, what is to be swapped, and, by base offset,
    the gaps in segments, as they are after that. A file without gaps was written before they were counted.
    """

    cleaned_offset: int
    swap: tuple[Replacement, ...] = ()
    gaps: Mapping[int, Gaps] = {}


def load_state(disk: Disk, directory: str) -> State:
    """The state as stored. A damaged file means that all is to be compacted again, which harms nothing."""
    try:
        return check_state(disk, directory)
    except (FileNotFoundError, CorruptRecord):
        return State(0)


def check_state(disk: Disk, directory: str) -> State:
    """The state as stored. Raises `CorruptRecord` or `FileNotFoundError`."""
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
    return State(cleaned_offset, tuple(swap), gaps)


def store_state(disk: Disk, directory: str, state: State) -> None:
    """Make the state durable."""
    payload = _HEAD.pack(state.cleaned_offset, len(state.swap))
    for sources, size, crc, _ in state.swap:
        payload += _REPLACEMENT.pack(size, crc, len(sources)) + b"".join(map(_BASE.pack, sources))
    payload += _COUNT.pack(len(state.gaps))
    payload += b"".join(_GAPS.pack(base, *gaps) for base, gaps in state.gaps.items())
    small_file.replace(disk, directory, COMPACTION, _KIND, payload)


def finish_swap(disk: Disk, directory: str, state: State, cleaned: Sequence[str]) -> None:
    """Carry out a swap that a crash interrupted; copies of a run that never got so far are removed.

    Sources go only when their copy is known to be in place.
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
        store_state(disk, directory, State(state.cleaned_offset, gaps=state.gaps))


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
    """Which share of the sealed bytes has come since the last compaction."""
    total = sum(source.size for source in sources)
    dirty = sum(source.size for source in sources if source.end_offset > cleaned_offset)
    return dirty / total if total else 0.0


class CompactJob(CancellableJob):
    """Step 1: write the copies. `replacements` and `cleaned_offset` say what came of it."""

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
        self.damage: list[Damage] = []  # what kept the job from being done
        self._control_missing = 0  # in the copy that is being written

    @property
    def end_offset(self) -> int:
        """No record at or behind it is looked at."""
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
        """Remove the copies; the log goes on with what it has."""
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

    def _kept(self, run: Run, latest: dict[bytes, int]) -> Iterator[bytearray]:
        """What stays of the run. Time never goes back in a log, so markers that may go come before all others."""
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

    def _old_end(self, run: Run) -> int:
        """The offset behind the records of the run that are older than a tombstone may get."""
        if run.summary.last_timestamp < self._tombstones_before:
            return run.summary.last_offset + 1
        return offset_at_time(run.records, self._tombstones_before)

    def _hidden(self, run: Run) -> bytes:
        """The aborted ranges in the run, as the kernel takes them."""
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

    def _runs(self, source: Source) -> Iterator[Run]:
        file = self._disk.open(segment_path(self._directory, source.base_offset, LOG))
        for found in walk(file, 0, source.size, min_offset=source.base_offset, end_offset=source.end_offset):
            if self._cancelled:
                raise Cancelled(self._directory)
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
    """Step 2: from here on the copies are going to replace their sources, crash or not."""

    def __init__(self, disk: Disk, directory: str, compacted: CompactJob, gaps: Mapping[int, Gaps]) -> None:
        super().__init__()
        self._disk = disk
        self._directory = directory
        self.compacted = compacted
        replaced = {base for replacement in compacted.replacements for base in replacement.sources}
        self.gaps = {base: one for base, one in gaps.items() if base not in replaced}
        self.gaps |= {replacement.base_offset: replacement.gaps for replacement in compacted.replacements}

    def _work(self) -> None:
        state = State(self.compacted.cleaned_offset, tuple(self.compacted.replacements), self.gaps)
        store_state(self._disk, self._directory, state)


class FinishJob(CancellableJob):
    """Step 4: the names are in place; make that durable and take the old files away."""

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
        store_state(self._disk, self._directory, State(self._cleaned_offset, gaps=self._gaps))
        for path in self.paths:
            self._disk.remove(path)


class _Copy:
    """A segment in the making, under names that do not count yet."""

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


def _control_count(run: Run, start: int, end: int) -> int:
    """How many control records there are in that part of the run."""
    everything = kernel.filter(run.records, from_offset=start, to_offset=end)
    others = kernel.filter(run.records, from_offset=start, to_offset=end, hide_flags=Flags.CONTROL)
    return kernel.scan(everything).record_count - kernel.scan(others).record_count
