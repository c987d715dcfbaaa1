"""Leader epochs: which leader wrote from which offset on.

Each leader of a partition has an epoch, higher than that of its predecessor. Before it writes anything it stores the
epoch with the first offset that it may write. Two replicas compare these lists to find the offset at which their logs
diverge. A truncation after a failover uses that offset, never the high watermark alone.

A follower copies the list along with the records, so an entry may be much older than the newest epoch that the replica
has heard of. That one is stored apart, in `highest-epoch`, because it never falls: a truncation forgets entries, but a
replica that has heard of an epoch follows no older leader any more.

Both are durable before the call that changes them returns.
"""

import struct
from bisect import bisect_right
from typing import NamedTuple

from goqueue.errors import CorruptRecord
from goqueue.storage import small_file
from goqueue.storage.file import Disk
from goqueue.storage.layout import HIGHEST_EPOCH, LEADER_EPOCHS

_KIND = b"GQEP"
_ENTRY = struct.Struct(">QQ")
_HIGHEST_KIND = b"GQHE"
_HIGHEST = struct.Struct(">Q")


class EpochStart(NamedTuple):
    """An epoch, and the first offset that its leader may write."""

    epoch: int
    start_offset: int


class LeaderEpochs:
    """The epochs of one log, oldest first, both columns rising."""

    def __init__(self, disk: Disk, directory: str, entries: list[EpochStart], *, noted: int = -1) -> None:
        self._disk = disk
        self._directory = directory
        self._entries = entries
        self._noted = noted
        self.highest = max(noted, self.latest)  # that was noted or assigned, ever; -1 before the first

    @classmethod
    def load(cls, disk: Disk, directory: str) -> "LeaderEpochs":
        """The stored epochs; none for a new log. Raises `CorruptRecord` if a file is damaged."""
        return cls(disk, directory, load_entries(disk, directory), noted=load_highest(disk, directory))

    @property
    def entries(self) -> tuple[EpochStart, ...]:
        return tuple(self._entries)

    @property
    def latest(self) -> int:
        """The newest epoch, or -1 before the first."""
        return self._entries[-1].epoch if self._entries else -1

    def note(self, epoch: int) -> None:
        """Store that there is a leader of `epoch`. An epoch that is not higher than the noted one changes nothing."""
        if epoch > self._noted:
            small_file.replace(self._disk, self._directory, HIGHEST_EPOCH, _HIGHEST_KIND, _HIGHEST.pack(epoch))
            self._noted = epoch
            self.highest = max(epoch, self.highest)

    def assign(self, epoch: int, start_offset: int) -> None:
        """Store that the leader of `epoch` writes from `start_offset` on. Repeating it changes nothing."""
        if self._entries and epoch <= self._entries[-1].epoch:
            if EpochStart(epoch, start_offset) in self._entries:
                return
            raise ValueError(f"epoch {epoch} does not follow epoch {self._entries[-1].epoch}")
        self.note(epoch)
        self._store([*before(self._entries, start_offset), EpochStart(epoch, start_offset)])

    def epoch_of(self, offset: int) -> int:
        """The epoch whose leader wrote this offset, or -1 if it is older than all entries."""
        index = bisect_right(self._entries, offset, key=lambda entry: entry.start_offset)
        return self._entries[index - 1].epoch if index else -1

    def end_of(self, epoch: int, *, log_end: int) -> EpochStart:
        """The largest epoch not above `epoch`, with the offset at which it ended: the start of the next one."""
        index = bisect_right(self._entries, epoch, key=lambda entry: entry.epoch)
        end = self._entries[index].start_offset if index < len(self._entries) else log_end
        return EpochStart(self._entries[index - 1].epoch if index else -1, end)

    def begins_after(self, offset: int) -> bool:
        """Whether an epoch starts at or after the offset."""
        return bool(self._entries) and self._entries[-1].start_offset >= offset

    def cut(self, end_offset: int) -> None:
        """Forget the epochs that start at or after `end_offset`. Only in memory: the caller stores what is left."""
        self._entries = before(self._entries, end_offset)

    def truncate(self, end_offset: int) -> None:
        """Forget the epochs that start at or after `end_offset`, durably."""
        if self.begins_after(end_offset):
            self.note(self.highest)
            self._store(before(self._entries, end_offset))

    def drop_before(self, start_offset: int) -> None:
        """Forget the epochs that ended at or before the start of the log."""
        index = bisect_right(self._entries, start_offset, key=lambda entry: entry.start_offset)
        if index > 1:
            self._store([EpochStart(self._entries[index - 1].epoch, start_offset), *self._entries[index:]])

    def _store(self, entries: list[EpochStart]) -> None:
        store_entries(self._disk, self._directory, entries)
        self._entries = entries


def load_entries(disk: Disk, directory: str) -> list[EpochStart]:
    """The stored list; empty if there is none. Raises `CorruptRecord` if the file is damaged."""
    try:
        payload = small_file.load(disk, directory, LEADER_EPOCHS, _KIND)
    except FileNotFoundError:
        return []
    if len(payload) % _ENTRY.size:
        raise CorruptRecord("the file is cut off", len(payload), source=f"{directory}/{LEADER_EPOCHS}")
    return [EpochStart(*fields) for fields in _ENTRY.iter_unpack(payload)]


def store_entries(disk: Disk, directory: str, entries: list[EpochStart]) -> None:
    """Store the list; durable when this returns."""
    payload = b"".join(_ENTRY.pack(*entry) for entry in entries)
    small_file.replace(disk, directory, LEADER_EPOCHS, _KIND, payload)


def load_highest(disk: Disk, directory: str) -> int:
    """The highest epoch that was noted; -1 if there is none. Raises `CorruptRecord` if the file is damaged."""
    try:
        payload = small_file.load(disk, directory, HIGHEST_EPOCH, _HIGHEST_KIND)
    except FileNotFoundError:
        return -1
    if len(payload) != _HIGHEST.size:
        raise CorruptRecord("the file is cut off", len(payload), source=f"{directory}/{HIGHEST_EPOCH}")
    highest: int = _HIGHEST.unpack(payload)[0]
    return highest


def before(entries: list[EpochStart], end_offset: int) -> list[EpochStart]:
    """The entries of epochs that start before `end_offset`."""
    return [entry for entry in entries if entry.start_offset < end_offset]
