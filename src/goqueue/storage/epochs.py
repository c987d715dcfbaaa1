"""Leader epochs: which leader wrote from which offset on.

Each leader of a partition has an epoch, higher than that of its predecessor. Before it writes anything it stores the
epoch with the first offset that it may write. Two replicas compare these lists to find the offset at which their logs
diverge. A truncation after a failover uses that offset, never the high watermark alone.

The list is durable before `assign` returns.
"""

import struct
from bisect import bisect_right
from typing import NamedTuple

from goqueue.errors import CorruptRecord
from goqueue.storage import small_file
from goqueue.storage.file import Disk
from goqueue.storage.layout import LEADER_EPOCHS

_KIND = b"GQEP"
_ENTRY = struct.Struct(">QQ")


class EpochStart(NamedTuple):
    """An epoch, and the first offset that its leader may write."""

    epoch: int
    start_offset: int


class LeaderEpochs:
    """The epochs of one log, oldest first, both columns rising."""

    def __init__(self, disk: Disk, directory: str, entries: list[EpochStart]) -> None:
        self._disk = disk
        self._directory = directory
        self._entries = entries

    @classmethod
    def load(cls, disk: Disk, directory: str) -> "LeaderEpochs":
        """The stored epochs; none for a new log. Raises `CorruptRecord` if the file is damaged."""
        try:
            payload = small_file.load(disk, directory, LEADER_EPOCHS, _KIND)
        except FileNotFoundError:
            payload = b""
        if len(payload) % _ENTRY.size:
            raise CorruptRecord("the file is cut off", len(payload), source=f"{directory}/{LEADER_EPOCHS}")
        return cls(disk, directory, [EpochStart(*fields) for fields in _ENTRY.iter_unpack(payload)])

    @property
    def entries(self) -> tuple[EpochStart, ...]:
        return tuple(self._entries)

    @property
    def latest(self) -> int:
        """The newest epoch, or -1 before the first."""
        return self._entries[-1].epoch if self._entries else -1

    def assign(self, epoch: int, start_offset: int) -> None:
        """Store that the leader of `epoch` writes from `start_offset` on. Repeating it changes nothing."""
        if self._entries and epoch <= self._entries[-1].epoch:
            if EpochStart(epoch, start_offset) in self._entries:
                return
            raise ValueError(f"epoch {epoch} does not follow epoch {self._entries[-1].epoch}")
        kept = [entry for entry in self._entries if entry.start_offset < start_offset]
        self._store([*kept, EpochStart(epoch, start_offset)])

    def epoch_of(self, offset: int) -> int:
        """The epoch whose leader wrote this offset, or -1 if it is older than all entries."""
        index = bisect_right(self._entries, offset, key=lambda entry: entry.start_offset)
        return self._entries[index - 1].epoch if index else -1

    def end_of(self, epoch: int, *, log_end: int) -> EpochStart:
        """The largest epoch not above `epoch`, with the offset at which it ended: the start of the next one."""
        index = bisect_right(self._entries, epoch, key=lambda entry: entry.epoch)
        end = self._entries[index].start_offset if index < len(self._entries) else log_end
        return EpochStart(self._entries[index - 1].epoch if index else -1, end)

    def truncate(self, end_offset: int) -> None:
        """Forget the epochs that start at or after `end_offset`: the log holds no record of them any more."""
        kept = [entry for entry in self._entries if entry.start_offset < end_offset]
        if len(kept) < len(self._entries):
            self._store(kept)

    def drop_before(self, start_offset: int) -> None:
        """Forget the epochs that ended at or before the start of the log."""
        index = bisect_right(self._entries, start_offset, key=lambda entry: entry.start_offset)
        if index > 1:
            self._store([EpochStart(self._entries[index - 1].epoch, start_offset), *self._entries[index:]])

    def _store(self, entries: list[EpochStart]) -> None:
        payload = b"".join(_ENTRY.pack(*entry) for entry in entries)
        small_file.replace(self._disk, self._directory, LEADER_EPOCHS, _KIND, payload)
        self._entries = entries
