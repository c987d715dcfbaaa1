"""The delayed messages of one partition while the broker runs: the table, its file, and its facts in the ledger.

A cancellation is in the ledger and in the file. Each of the two may be damaged or lost, so one of them is enough: if
they disagree, the message stays hidden. If both are lost, the record itself has its due time.
"""

from contextlib import suppress

import msgspec
from pyroaring import BitMap64

from goqueue.broker.partition.ledger import Fact
from goqueue.delivery.delay_index import DelayState
from goqueue.delivery.delays import Fired, PartitionDelays
from goqueue.delivery.offsets import between
from goqueue.delivery.wall_anchor import KnownBehind
from goqueue.record.header import Buffer
from goqueue.storage.delay_file import DelayFile

CHANGE_KEY = b"x"
BEHIND_KEY = b"t"
"""The fact that the wall clock is earlier than the newest record: `delivery/wall_anchor.py`."""
COVERED_STEP = 100_000
"""How many offsets the log may be ahead of the file before the file is written: a crash costs a read of that many."""


class _DelayChange(msgspec.Struct, array_like=True, frozen=True):
    due_ns: int | None  # None: cancelled


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_DelayChange).decode


_decode_behind = msgspec.msgpack.Decoder(KnownBehind).decode


def behind_fact(known: KnownBehind) -> Fact:
    """The fact for a clock that is earlier than the newest record."""
    return BEHIND_KEY, _encode(known)


def read_behind(raw: bytes | None) -> KnownBehind | None:
    """The decoded fact; None if there is none, or it cannot be decoded."""
    try:
        return None if raw is None else _decode_behind(raw)
    except msgspec.DecodeError:
        return None


class StoredDelays:
    """The delayed messages of one partition."""

    def __init__(
        self, file: DelayFile, *, start_offset: int, next_offset: int, wall_ns: int, is_used: bool = False
    ) -> None:
        self.table = PartitionDelays(now_ns=wall_ns)
        self.cancelled = BitMap64()
        self.rescheduled: dict[int, int] = {}  # due times that replace those in the records, by offset
        self._dropped_below = start_offset
        self.stale_keys: list[bytes] = []  # ledger keys about records that the log has lost
        self._changed = BitMap64()  # the ledger has facts about these
        self._file = file
        self._next_offset = next_offset
        self._is_used = is_used or file.exists
        restored = self.table.restore(file.load(), next_offset=next_offset) if file.exists else None
        self.covered_offset = max(start_offset, restored.covered_offset if restored else 0)
        self._is_whole = restored is None or restored.is_whole
        self.cancelled |= self.table.restored_cancelled

    def replay(self, key: bytes, value: bytes | None) -> None:
        """Take in a change from the ledger. Raises `ValueError` if it cannot be decoded."""
        if value is None:
            return
        if len(key) != 9:
            raise ValueError("the key names no offset")
        offset, change = int.from_bytes(key[1:]), _decode(value)
        if offset >= self._next_offset:
            self.stale_keys.append(key)
            return
        self._changed.add(offset)
        if change.due_ns is None:
            self.cancelled.add(offset)
            self.rescheduled.pop(offset, None)
            self.table.apply(offset, state=DelayState.CANCELLED)
        else:
            self.rescheduled[offset] = change.due_ns
            self.table.apply(offset, due_ns=change.due_ns)

    def schedule(self, entries: Buffer, *, end_offset: int, wall_ns: int, stored_ns: int = 0) -> None:
        """The log holds these, the first of them since `stored_ns`; it was seen up to the end."""
        is_behind = end_offset - self.covered_offset >= COVERED_STEP
        self.covered_offset = max(self.covered_offset, end_offset)
        if len(entries):
            self.table.schedule(entries, now_ns=wall_ns, stored_ns=stored_ns)
            self._is_used = True
            self.save()
        elif is_behind:
            self.save()

    def fire(self, wall_ns: int) -> Fired:
        """Fire the messages that are due."""
        fired = self.table.fire(wall_ns)
        if fired.offsets:
            self.save()
        return fired

    def facts(self, offsets: BitMap64, due_ns: int | None) -> list[Fact]:
        """The facts for messages that are cancelled, or get another due time."""
        raw = _encode(_DelayChange(due_ns))
        return [(CHANGE_KEY + offset.to_bytes(8), raw) for offset in offsets]

    def change(self, offsets: BitMap64, due_ns: int | None, *, wall_ns: int) -> None:
        """Cancel them, or give them another due time."""
        self._changed |= offsets
        if due_ns is None:
            self.table.cancel_many(offsets)
            self.cancelled |= offsets
            for offset in offsets if self.rescheduled else ():
                self.rescheduled.pop(offset, None)
        else:
            for offset in offsets:
                self.rescheduled[offset] = due_ns
                self.table.reschedule(offset, due_ns, now_ns=wall_ns)
        self.save()

    def shift(self, by_ns: int, *, wall_ns: int) -> list[Fact]:
        """The wall clock was set by that much, and shows `wall_ns` now: delays move with it.

        Returns the facts for messages that were rescheduled before.
        """
        if not self._is_used:
            return []
        self.table.shift(by_ns, now_ns=wall_ns)
        self._is_whole = False
        self.save()
        waiting, due_ns_of = self.table.waiting, self.table.due_ns
        moved = {
            offset: due_ns_of(offset) or due_ns for offset, due_ns in self.rescheduled.items() if offset in waiting
        }
        self.rescheduled.update(moved)
        return [fact for offset, due_ns in moved.items() for fact in self.facts(BitMap64([offset]), due_ns)]

    def abort(self, offsets: BitMap64) -> None:
        """The transaction of these was aborted. The log itself says so, so the ledger does not have to."""
        if self.table.waiting.intersect(offsets):
            self.table.cancel_many(offsets)
            self.save()

    def drop(self, below: int) -> BitMap64:
        """Drop messages below the new start of the log; returns the delayed ones among them."""
        if self.cancelled and self.cancelled.min() < below:
            self.cancelled.remove_range(0, below)
        if self.rescheduled and below > self._dropped_below:
            self._dropped_below = below
            self.rescheduled = {offset: due_ns for offset, due_ns in self.rescheduled.items() if offset >= below}
        return self.table.drop(below)

    def forgotten(self, below: int) -> list[Fact]:
        """Tombstones for facts about records that the log no longer has: it begins at that offset."""
        gone = between(self._changed, 0, below)
        self._changed -= gone
        return [(CHANGE_KEY + offset.to_bytes(8), None) for offset in gone]

    def hidden(self, start: int, end: int) -> BitMap64:
        """What readers may not see in that range: delayed and cancelled messages."""
        found = between(self.table.waiting, start, end)
        if self.cancelled:
            found |= between(self.cancelled, start, end)
        return found

    def save(self) -> None:
        """Write changes to the file; what cannot be written now is written with the next change."""
        if not self._is_used:
            return
        if self._file.is_stale or not self._is_whole or self._file.is_wasteful(self.table.snapshot_bytes):
            with suppress(OSError):
                self._file.rewrite(self.table.snapshot(self.covered_offset, cancelled=self.cancelled))
                self._is_whole = True
        else:
            self._file.append(self.table.take_changes(self.covered_offset))

    def mend(self) -> None:
        """Replace a file that was lost or damaged, or that has entries about records that the log has lost: new records
        get their offsets.
        """
        if not self._is_whole or self._file.is_stale:
            self.save()

    def close(self, next_offset: int) -> None:
        """Leave a file that covers the whole log, so that the next start reads nothing."""
        if self._is_used:
            self.covered_offset = max(self.covered_offset, next_offset)
            self.save()
            self._file.sync()
            self._file.close()
