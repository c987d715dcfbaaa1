"""How the ledger remembers a cursor.

    change ──> note ──> "d" record          a snapshot from time to time ──> write_whole ──> "c" record
    restart ──> CursorReplay ──> a StoredCursor for each group

A change is written before it takes effect, so a change that the disk refuses has not happened. A change that has taken
effect in any case (a lease expired) may be refused, too: then the cursor is dirty, and the next write is a snapshot of
the whole cursor. A snapshot also replaces changes when they have become larger than the cursor itself.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

from pyroaring import BitMap64

from goqueue.broker.partition.leader import PartitionLeader
from goqueue.broker.partition.ledger import Fact
from goqueue.clock import Clock
from goqueue.delivery import ledger
from goqueue.delivery.cursor import Cursor, Failed
from goqueue.delivery.ledger import Change, CopyBatch, DeadLettering
from goqueue.errors import StorageError

CHANGES_MAX = 100_000
CHANGE_BYTES_MIN = 256 * 1024
"""A snapshot is due when the changes are larger than this and than twice the last snapshot."""
CHANGE_OVERHEAD_BYTES = 50


class StoredCursor:
    """The cursor of one group on one partition, with its records in the ledger."""

    __slots__ = (
        "_clock",
        "_leader",
        "batches",
        "change_bytes",
        "change_keys",
        "changes",
        "cursor",
        "dead_letterings",
        "group",
        "is_dirty",
        "metadata",
        "salt",
        "snapshot_bytes",
    )

    def __init__(self, leader: PartitionLeader, group: str, cursor: Cursor, *, salt: bytes, clock: Clock) -> None:
        self._leader = leader
        self._clock = clock
        self.group = group
        self.cursor = cursor
        self.salt = salt
        self.dead_letterings: list[DeadLettering] = []  # under way
        self.batches: dict[tuple[str, int], CopyBatch] = {}  # the last one for each target, done or not
        self.metadata = ""
        self.changes = 0
        self.change_keys = 0  # how many change keys the ledger has; those from `changes` on are older than the snapshot
        self.change_bytes = 0
        self.snapshot_bytes = 0
        self.is_dirty = False  # memory is ahead of the ledger

    def note(self, change: Change, *, flush: bool = True) -> int:
        """Write a change of the cursor; returns the offset in the ledger after it. Raises `StorageError`."""
        return self._note((change,), flush=flush)

    def _note(self, changes: Sequence[Change], *, flush: bool) -> int:
        """Write changes, all or none; a crash may leave the first of them only."""
        is_much = self.change_bytes > CHANGE_BYTES_MIN and self.change_bytes > 2 * self.snapshot_bytes
        if is_much or self.is_dirty or self.changes >= CHANGES_MAX:
            self.write_whole(flush=False)
        number, size = self.changes, 0
        facts: list[Fact] = []
        for change in changes:  # nearly always one: each poll and each ack comes through here
            raw = ledger.encode(change)
            facts.append((ledger.change_key(self.group, number), raw))
            number += 1
            size += len(raw) + len(self.group) + CHANGE_OVERHEAD_BYTES
        try:
            end = self._leader.ledger.write(facts, flush=flush)
        except StorageError:
            self.is_dirty = True
            raise
        self.changes = number
        self.change_keys = max(self.change_keys, number)
        self.change_bytes += size
        self._leader.wrote_ledger()
        return end

    def note_if_possible(self, change: Change) -> None:
        """Write a change that has taken effect already. If the disk refuses it, a snapshot is written later."""
        with suppress(StorageError):
            self.note(change, flush=False)

    def write_whole(self, *, flush: bool = True) -> int:
        """Write a snapshot of the cursor; returns the offset in the ledger after it. Raises `StorageError`."""
        return self._write(self.cursor, self.metadata, flush=flush)

    def replace(self, cursor: Cursor, metadata: str | None = None) -> int:
        """Write another cursor in the place of this one, which stays if the disk refuses it."""
        metadata = self.metadata if metadata is None else metadata
        end = self._write(cursor, metadata, flush=True)
        self.cursor, self.metadata = cursor, metadata
        return end

    def _write(self, cursor: Cursor, metadata: str, *, flush: bool) -> int:
        shift_ns = ledger_shift_ns(self._leader, self._clock)
        saved = ledger.snapshot(
            cursor,
            salt=self.salt,
            dead_letterings=self.dead_letterings,
            metadata=metadata,
            shift_ns=shift_ns,
            batches=self.batches.values(),
        )
        raw = ledger.encode(saved)
        try:
            end = self._leader.ledger.write([(ledger.cursor_key(self.group), raw)], flush=flush)
        except StorageError:
            self.is_dirty = True
            raise
        self.changes = self.change_bytes = 0
        self.snapshot_bytes = len(raw)
        self.is_dirty = False
        self._leader.wrote_ledger()
        return end

    def delete(self) -> int:
        """Delete the records of the cursor; returns the offset in the ledger after that. Raises `StorageError`."""
        facts: list[Fact] = [(ledger.cursor_key(self.group), None)]
        facts += [(ledger.change_key(self.group, number), None) for number in range(self.change_keys)]
        end = self._leader.ledger.write(facts)
        self._leader.wrote_ledger()
        return end

    def retried(self, delivery_id: int, failed: Failed) -> Change:
        """The change for messages that are delivered again."""
        shift_ns = ledger_shift_ns(self._leader, self._clock)
        parts = [(part.at_ns + shift_ns, ledger.blob(part.offsets)) for part in failed.requeued]
        return ledger.Retried(delivery_id, parts)

    def end_dead_lettering(self, offsets: BitMap64) -> None:
        """The dead-lettering of these is no longer under way."""
        if not self.dead_letterings:
            return
        left = []
        for change in self.dead_letterings:
            before = ledger.offsets_of(change.offsets)
            after = before - offsets
            if after:
                left.append(change if len(after) == len(before) else change.of(after))
        self.dead_letterings = left

    def note_copies(self, changes: Sequence[DeadLettering]) -> int:
        """Write in which batches of their target messages are copied; returns the offset in the ledger after that."""
        end = self._note(changes, flush=True)
        self._remember_batches(change.batch for change in changes)
        self.end_dead_lettering(BitMap64().union(*(ledger.offsets_of(change.offsets) for change in changes)))
        self.dead_letterings += changes
        return end

    def _remember_batches(self, batches: Iterable[CopyBatch | None]) -> None:
        self.batches |= {(batch.topic, batch.partition): batch for batch in batches if batch is not None}

    def replay(self, change: Change, *, shift_ns: int) -> None:
        """Apply a change that the ledger holds."""
        ledger.replay(self.cursor, change, shift_ns=shift_ns, now_ns=self._clock.monotonic_ns())
        match change:
            case DeadLettering():
                self.end_dead_lettering(ledger.offsets_of(change.offsets))
                self.dead_letterings.append(change)
                self._remember_batches([change.batch])
            case ledger.Finished(raw) if self.dead_letterings:
                self.end_dead_lettering(ledger.offsets_of(raw))
            case ledger.Committed(_, metadata):
                self.metadata = metadata
            case _:
                pass


class CursorReplay:
    """The cursors of all groups of a partition, restored from its ledger. `make_cursor` makes one at an offset."""

    def __init__(self, leader: PartitionLeader, *, clock: Clock, make_cursor: Callable[[int], Cursor]) -> None:
        self.by_group: dict[str, StoredCursor] = {}
        self._leader = leader
        self._clock = clock
        self._make_cursor = make_cursor

    def replay(self, key: bytes, value: bytes | None, *, shift_ns: int) -> None:
        """Take in the next record of the ledger; records about something else are ignored.

        `shift_ns` is `ledger_shift_ns` when the replay began.
        """
        try:
            self._replay(key, value, shift_ns)
        except Exception as error:  # a damaged disk holds bytes of any kind; messages of a lost record are redelivered
            self._leader.unreadable.pass_over(key, error)

    def _replay(self, key: bytes, value: bytes | None, shift_ns: int) -> None:
        entry = ledger.decode(key, value)
        if entry is None:
            return
        stored = self.by_group.get(entry.group)
        if isinstance(entry.value, ledger.CursorSnapshot):
            self._restore(entry.group, entry.value, len(value or b""), shift_ns)
        elif stored is not None and entry.value is None:
            del self.by_group[entry.group]
        elif stored is not None and entry.value is not None:
            stored.replay(entry.value, shift_ns=shift_ns)
            stored.changes += 1
            stored.change_keys = max(stored.change_keys, ledger.change_number(key) + 1)
            stored.change_bytes += len(value or b"") + len(key)

    def _restore(self, group: str, saved: ledger.CursorSnapshot, size: int, shift_ns: int) -> None:
        stored = StoredCursor(self._leader, group, self._make_cursor(saved.floor), salt=saved.salt, clock=self._clock)
        before = self.by_group.get(group)
        stored.change_keys = before.change_keys if before is not None else 0
        stored.dead_letterings = list(saved.dead_letterings)
        stored._remember_batches(saved.batches)
        stored.metadata = saved.metadata
        stored.snapshot_bytes = size
        ledger.restore(stored.cursor, saved, shift_ns=shift_ns)
        self.by_group[group] = stored


def ledger_time(leader: PartitionLeader, wall_ns: int) -> int:
    """The wall clock as the ledger has it, whose records never go back in time.

    All times in the ledger are relative to that of the record they are in. So after a restart, with any wall clock,
    no lease and no backoff is longer than it was when it was written.
    """
    return max(wall_ns, leader.ledger.log.last_timestamp)


def ledger_shift_ns(leader: PartitionLeader, clock: Clock) -> int:
    """From the monotonic clock to that of the ledger."""
    return ledger_time(leader, clock.wall_ns()) - clock.monotonic_ns()
