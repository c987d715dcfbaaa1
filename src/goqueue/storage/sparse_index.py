"""A sparse index: rising (key, value) pairs of 8 bytes each in a file, one per 4 KiB of log.

An index is a hint. The kernel emits its entries while it stamps or scans records, so an index that is rebuilt from the
log is identical to the byte. It is not synced while its segment is written: a crash may truncate it, leave zeros in it,
or remove it. So every lookup is verified against the record that the entry points at, and the index is rebuilt if they
disagree.

A lookup reads the file (`pread`, one page or a few) instead of mapping it: if the disk fails, that is an error and not
a SIGBUS, and ten thousand segments need no descriptors. The newest entries of an active segment stay in memory until
there are enough of them for a write.
"""

import struct
from bisect import bisect_left
from contextlib import suppress
from functools import partial
from typing import ClassVar, NamedTuple

from goqueue.storage.file import Disk, File

ENTRY_BYTES = 16
TAIL_BYTES_MAX = 4096
"""How much stays in memory: 256 entries, for about 1 MiB of log."""
PAGE_ENTRIES = 256
"""How many entries a search reads at a time: one page of the file."""


class IndexEntry(NamedTuple):
    """One pair; the subclass defines key and value."""

    key: int
    value: int


class SparseIndex:
    """The index of one segment. Not thread-safe."""

    ENTRY: ClassVar[struct.Struct]

    def __init__(self, disk: Disk, path: str, *, entry_count: int | None = None) -> None:
        self._disk = disk
        self._path = path
        self._file: File | None = None
        self._tail = bytearray()
        self._stored_count = self._count_stored() if entry_count is None else entry_count

    def __len__(self) -> int:
        return self._stored_count + len(self._tail) // ENTRY_BYTES

    @property
    def is_written(self) -> bool:
        """Whether all entries are in the file."""
        return not self._tail

    def append(self, entries: bytes) -> None:
        """Add entries as the kernel emits them, above the last one."""
        self._tail += entries
        if len(self._tail) >= TAIL_BYTES_MAX:
            self.write_out()

    def write_out(self) -> None:
        """Write the entries in memory to the file.

        If that fails they stay in memory: a hint is not worth an error.
        """
        if self._tail:
            with suppress(OSError):
                self._open(create=True).pwrite(self._stored_count * ENTRY_BYTES, self._tail)
                self._stored_count = len(self)
                self._tail = bytearray()

    def entry(self, index: int) -> IndexEntry:
        return IndexEntry(*self.ENTRY.unpack(self._read(index, 1)))

    def entries(self) -> list[IndexEntry]:
        return [IndexEntry(*pair) for pair in self.ENTRY.iter_unpack(self._read(0, len(self)))]

    def count_below(self, key: int, *, guess: float = 0.5) -> int:
        """How many entries have a key below `key`; `guess` is the estimated share of them.

        The search reads pages of the file, so that a good guess costs one read.
        """
        low, high = 0, -(-len(self) // PAGE_ENTRIES)
        page = min(max(0, int(guess * high)), high - 1)
        while low < high:
            start = page * PAGE_ENTRIES
            block = self._read(start, min(PAGE_ENTRIES, len(self) - start))
            if self._key(block, 0) >= key:
                high = page
            elif self._key(block, len(block) // ENTRY_BYTES - 1) < key:
                low = page + 1
            else:
                found = bisect_left(range(len(block) // ENTRY_BYTES), key, key=partial(self._key, block))
                return start + found
            page = (low + high) // 2
        return min(low * PAGE_ENTRIES, len(self))

    def keep(self, count: int) -> None:
        """Cut off all entries after the first `count`."""
        if count >= len(self):
            return
        if count >= self._stored_count:
            del self._tail[(count - self._stored_count) * ENTRY_BYTES :]
            return
        self._tail = bytearray()
        self._stored_count = count
        self._open(create=True).truncate(count * ENTRY_BYTES)

    def sound_prefix(self) -> int:
        """How many entries, from the first on, rise: the part that a crash has left intact."""
        data = self._read(0, len(self))
        pairs = list(self.ENTRY.iter_unpack(data))
        for index in range(1, len(pairs)):
            if pairs[index][0] < pairs[index - 1][0] or pairs[index][1] <= pairs[index - 1][1]:
                return index
        return len(pairs)

    def file_to_sync(self) -> File | None:
        """Write the entries in memory, and return the file to sync; None if it cannot be opened."""
        self.write_out()
        try:
            return self._open(create=True)
        except OSError:
            return None

    def release(self) -> None:
        """Close the descriptor; the next use opens it again."""
        self._file = None

    def _count_stored(self) -> int:
        try:
            return self._open().size() // ENTRY_BYTES
        except FileNotFoundError:
            return 0

    def _open(self, *, create: bool = False) -> File:
        if self._file is None:
            self._file = self._disk.open(self._path, create=create)
        return self._file

    def _read(self, index: int, count: int) -> bytes:
        stored = min(count, max(0, self._stored_count - index))
        data = self._open().pread(index * ENTRY_BYTES, stored * ENTRY_BYTES) if stored else b""
        if len(data) != stored * ENTRY_BYTES:
            data = data.ljust(stored * ENTRY_BYTES, b"\0")
        if stored < count:
            start = max(0, index - self._stored_count) * ENTRY_BYTES
            data += self._tail[start : start + (count - stored) * ENTRY_BYTES]
        return data

    def _key(self, data: bytes, index: int) -> int:
        key: int = self.ENTRY.unpack_from(data, index * ENTRY_BYTES)[0]
        return key
