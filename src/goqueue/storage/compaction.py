"""Compaction: of all records with one key, only the last stays.

A run looks at sealed segments only. It maps the keys of the *dirty* ones (those not compacted before) to
their last offsets, then copies every segment up to there, leaving out what a later record has replaced and
tombstones that have been there for long enough. Records without a key and control records always stay.
Offsets do not change, small results are joined, and nobody who reads the old files is disturbed.

Each step survives a crash:

    1. copies are written as *.cleaned and synced               crash: the log opens without them
    2. the file `compaction` says which copies replace what     crash: opening the log carries it out
    3. the copies are renamed into place, the rest removed      crash: the same, as often as it takes
    4. the file `compaction` says that nothing is under way

Steps 1, 2 and 4 block and are jobs for a thread; step 3 is a few renames by the owner of the log.
"""

import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from goqueue.clock import MS
from goqueue.errors import CorruptRecord
from goqueue.record import kernel
from goqueue.storage import small_file
from goqueue.storage.config import LogConfig
from goqueue.storage.file import Disk
from goqueue.storage.layout import CLEANED, COMPACTION, LOG, SEGMENT_SUFFIXES, segment_path
from goqueue.storage.walk import Damage, walk

_KIND = b"GQCO"
_HEAD = struct.Struct(">QI")
_COUNT = struct.Struct(">I")
_BASE = struct.Struct(">Q")


class Source(NamedTuple):
    """A sealed segment: offsets [base_offset, end_offset) in `size` bytes."""

    base_offset: int
    end_offset: int
    size: int


class Replacement(NamedTuple):
    """A copy that stands for one or more segments; it bears the base offset of the first."""

    sources: tuple[int, ...]
    size: int

    @property
    def base_offset(self) -> int:
        return self.sources[0]


class State(NamedTuple):
    """What the file `compaction` says: up to where the log is compacted, and what is to be swapped."""

    cleaned_offset: int
    swap: tuple[tuple[int, ...], ...] = ()  # the sources of each replacement


def load_state(disk: Disk, directory: str) -> State:
    """The state as stored. A damaged file means that all is to be compacted again, which harms nothing."""
    try:
        payload = small_file.load(disk, directory, COMPACTION, _KIND)
    except (FileNotFoundError, CorruptRecord):
        return State(0)
    cleaned_offset, swap_count = _HEAD.unpack_from(payload)
    position = _HEAD.size
    swap = []
    for _ in range(swap_count):
        (count,) = _COUNT.unpack_from(payload, position)
        position += _COUNT.size
        end = position + count * _BASE.size
        swap.append(tuple(base for (base,) in _BASE.iter_unpack(payload[position:end])))
        position = end
    return State(cleaned_offset, tuple(swap))


def store_state(disk: Disk, directory: str, state: State) -> None:
    """Make the state durable."""
    payload = _HEAD.pack(state.cleaned_offset, len(state.swap))
    for sources in state.swap:
        payload += _COUNT.pack(len(sources)) + b"".join(map(_BASE.pack, sources))
    small_file.replace(disk, directory, COMPACTION, _KIND, payload)


def finish_swap(disk: Disk, directory: str, state: State, cleaned: Sequence[str]) -> None:
    """Carry out a swap that a crash interrupted; copies of a run that never got so far are removed."""
    present = set(cleaned)
    for sources in state.swap:
        for suffix in SEGMENT_SUFFIXES:
            path = segment_path(directory, sources[0], suffix)
            if path + CLEANED in present:
                disk.rename(path + CLEANED, path)
                present.discard(path + CLEANED)
            for base_offset in sources[1:]:
                disk.remove(segment_path(directory, base_offset, suffix))
    for path in present:
        disk.remove(path)
    if state.swap:
        disk.sync_directory(directory)
        store_state(disk, directory, State(state.cleaned_offset))


def dirty_ratio(sources: Sequence[Source], cleaned_offset: int) -> float:
    """Which share of the sealed bytes has come since the last compaction."""
    total = sum(source.size for source in sources)
    dirty = sum(source.size for source in sources if source.end_offset > cleaned_offset)
    return dirty / total if total else 0.0


class CompactJob:
    """Step 1: write the copies. `replacements` and `cleaned_offset` say what came of it."""

    def __init__(
        self, disk: Disk, directory: str, sources: Sequence[Source], config: LogConfig, cleaned_offset: int, now_ns: int
    ) -> None:
        self._disk = disk
        self._directory = directory
        self._config = config
        self._dirty_from = cleaned_offset
        self._tombstones_before = now_ns - config.tombstone_retention_ms * MS
        self.sources = tuple(sources)
        self.replacements: list[Replacement] = []
        self.cleaned_offset = cleaned_offset

    def run(self) -> None:
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
            output.sources.append(source)
            for records in self._records(source):
                output.append(kernel.filter(records, latest=latest, tombstones_before=self._tombstones_before))
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
            for records in self._records(source):
                kernel.latest(records, latest)
            self.cleaned_offset = source.end_offset
        return latest

    def _records(self, source: Source) -> Iterator[memoryview]:
        file = self._disk.open(segment_path(self._directory, source.base_offset, LOG))
        for found in walk(file, 0, source.size, min_offset=source.base_offset, end_offset=source.end_offset):
            if isinstance(found, Damage):
                raise CorruptRecord(kernel.describe(found.fault), found.position, source=found.path)
            yield found.records
        file.close()

    def _finish(self, output: "_Copy") -> None:
        if len(output.sources) == 1 and output.size == output.sources[0].size:
            output.remove()
        else:
            output.finish()
            self.replacements.append(Replacement(tuple(s.base_offset for s in output.sources), output.size))


class SwapJob:
    """Step 2: from here on the copies are going to replace their sources, crash or not."""

    def __init__(self, disk: Disk, directory: str, compacted: CompactJob) -> None:
        self._disk = disk
        self._directory = directory
        self.compacted = compacted

    def run(self) -> None:
        swap = tuple(replacement.sources for replacement in self.compacted.replacements)
        store_state(self._disk, self._directory, State(self.compacted.cleaned_offset, swap))


class FinishJob:
    """Step 4: the names are in place; make that durable and take the old files away."""

    def __init__(self, disk: Disk, directory: str, cleaned_offset: int, paths: list[str]) -> None:
        self._disk = disk
        self._directory = directory
        self._cleaned_offset = cleaned_offset
        self._paths = paths

    def run(self) -> None:
        self._disk.sync_directory(self._directory)
        store_state(self._disk, self._directory, State(self._cleaned_offset))
        for path in self._paths:
            self._disk.remove(path)


class _Copy:
    """A segment in the making, under names that do not count yet."""

    def __init__(self, disk: Disk, directory: str, base_offset: int) -> None:
        self._disk = disk
        self._paths = [segment_path(directory, base_offset, suffix) + CLEANED for suffix in SEGMENT_SUFFIXES]
        self.remove()
        self._files = [disk.open(path, create=True) for path in self._paths]
        self._next_index_at = 0
        self.sources: list[Source] = []
        self.size = 0

    def append(self, records: bytearray) -> None:
        if records:
            summary = kernel.scan(records, position=self.size, next_index_at=self._next_index_at)
            assert summary.end == len(records), kernel.describe(summary.fault)
            log, offset_index, time_index = self._files
            log.append(records)
            offset_index.append(summary.offset_entries)
            time_index.append(summary.time_entries)
            self._next_index_at = summary.next_index_at
            self.size += len(records)

    def finish(self) -> None:
        for file in self._files:
            file.sync()
            file.close()

    def remove(self) -> None:
        for path in self._paths:
            self._disk.remove(path)
