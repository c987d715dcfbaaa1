"""The delayed messages of one partition: which of them wait, until when, and the state of the others.

A delayed message is in the log from the start and is hidden while it waits. It stops waiting once, in one of three
ways: it is delivered (it is due: `fire`), cancelled, or expired (its record was removed before it was due). Delivery
uses only `waiting` and the result of `fire`.

After a restart the state comes from three sources, in any order: the delay index (`restore`), the log from the end of
the index on (`schedule`), and the ledger with cancellations and new due times (`apply`). A change in the ledger for a
message that was not scheduled yet is kept until it is. A message that is scheduled twice counts once.

`take_changes` returns the bytes to append to the delay index, `snapshot` the bytes of a new one.
"""

from array import array
from collections import OrderedDict
from typing import NamedTuple

from pyroaring import BitMap64

from goqueue.delivery import delay_index
from goqueue.delivery.delay_index import BLOCK_ENTRIES, ENTRY_BYTES, HEADER_BYTES, DelayState
from goqueue.delivery.delay_table import DUE_NS_MAX, DelayColumns, DelayTable
from goqueue.delivery.wheel import TICK_NS, Wheel
from goqueue.record.header import Buffer

SCHEDULED_BYTES = 24
"""An entry from the kernel, in machine order: offset u64, deliver at i64 (ns), CRC-32C of the key u32, priority u32."""
SETTLED_MAX = 10_000
"""The most messages per partition that no longer wait and are remembered."""
_BATCH_ENTRIES = 8_192


class DelayEntry(NamedTuple):
    """One delayed message."""

    offset: int
    due_ns: int
    state: DelayState
    priority: int


class Fired(NamedTuple):
    """Messages that are due."""

    offsets: BitMap64
    oldest_due_ns: int
    """The due time of the first of them; now if there is none."""


class Restored(NamedTuple):
    """The result of reading a delay index."""

    covered_offset: int
    """The offset from which on the log has to be read."""
    is_whole: bool
    """False: the index has to be rewritten before anything is appended to the log."""


class DelayCounts(NamedTuple):
    """The number of delayed messages, by their state."""

    scheduled: int
    delivered: int
    cancelled: int
    expired: int
    pending: int


class PartitionDelays:
    """The delayed messages of a partition. Each fires once, when it is due, unless it is cancelled before."""

    def __init__(self, *, now_ns: int) -> None:
        self.waiting = BitMap64()
        """All that wait. Always the same object; callers must not change it."""
        self.total_delay_ns = 0
        """The sum of the delays of `delay_count` messages: all that were scheduled, as far as they are remembered."""
        self.delay_count = 0
        self._table = DelayTable()
        self._wheel = Wheel(start_ns=now_ns, dues_of=self._table.dues_ns)
        self._settled: OrderedDict[int, DelayEntry] = OrderedDict()
        self._early_changes: dict[
            int, DelayState | int
        ] = {}  # changes in the ledger for messages that were not scheduled yet
        self._seen_end = 0  # the log was scanned up to here
        self._known_end = 0  # no message at or after it is known
        self._counts = dict.fromkeys(DelayState, 0)
        self._changed = {state: BitMap64() for state in DelayState}  # since changes were taken
        self.restored_cancelled = BitMap64()
        """All cancelled messages of the index, also those that are no longer remembered."""

    @property
    def next_ns(self) -> int | None:
        """The time of the next call of `fire`; None if no message waits."""
        return self._wheel.next_ns

    @property
    def tick(self) -> int:
        """The tick of the wheel up to which everything has fired."""
        return self._wheel.tick

    @property
    def average_delay_ns(self) -> int:
        return max(0, self.total_delay_ns) // max(1, self.delay_count)

    @property
    def counts(self) -> DelayCounts:
        """The number of messages by state, since this object was made."""
        pending_count = len(self.waiting)
        return DelayCounts(
            scheduled=pending_count + sum(self._counts.values()),
            delivered=self._counts[DelayState.DELIVERED],
            cancelled=self._counts[DelayState.CANCELLED],
            expired=self._counts[DelayState.EXPIRED],
            pending=pending_count,
        )

    def schedule(self, entries: Buffer, *, now_ns: int, stored_ns: int | None = None) -> BitMap64:
        """Let these messages wait until they are due; returns those that wait. The others are due already.

        The entries are those of the kernel, sorted by offset. One that is known already does not change. They were
        stored at `stored_ns`, by default now; after a crash the log is read again, and its records are older.
        """
        stored_ns = now_ns if stored_ns is None else stored_ns
        scheduled = BitMap64()
        view = memoryview(entries).cast("B")
        for start in range(0, len(view), _BATCH_ENTRIES * SCHEDULED_BYTES):
            batch = bytes(view[start : start + _BATCH_ENTRIES * SCHEDULED_BYTES])
            words, halves = array("Q", batch), array("I", batch)
            dues_ns = array("q", words[1::3].tobytes())
            scheduled |= self._schedule(
                DelayColumns(words[0::3], dues_ns, halves[4::6], halves[5::6]), now_ns, stored_ns
            )
        return scheduled

    def _schedule(self, columns: DelayColumns, now_ns: int, stored_ns: int) -> BitMap64:
        all_offsets = BitMap64(columns.offsets)
        if columns.offsets[0] < self._known_end:
            known = [offset in self.waiting or offset in self._settled for offset in columns.offsets]
            columns = columns.where([not is_known for is_known in known])
        self._seen_end = max(self._seen_end, all_offsets.max() + 1)
        self._known_end = max(self._known_end, self._seen_end)
        if self._early_changes:
            columns = self._with_early_changes(columns)
        if columns.offsets and min(columns.dues_ns) <= now_ns:
            columns = columns.where([due_ns > now_ns for due_ns in columns.dues_ns])
        if columns.offsets:
            self.total_delay_ns += sum(columns.dues_ns) - len(columns.offsets) * stored_ns
            self.delay_count += len(columns.offsets)
            self._wait_for(columns)
            self._changed[DelayState.PENDING] |= BitMap64(columns.offsets)
        return all_offsets & self.waiting

    def _wait_for(self, columns: DelayColumns) -> None:
        self._table.put_many(columns)
        self._wheel.add_many(columns.offsets, columns.dues_ns)
        self.waiting |= BitMap64(columns.offsets)

    def _with_early_changes(self, columns: DelayColumns) -> DelayColumns:
        """The messages with the due times of the ledger, without those that do not wait by the ledger."""
        wanted: list[bool] = []
        for place, offset in enumerate(columns.offsets):
            change = self._early_changes.pop(offset, None)
            wanted.append(not isinstance(change, DelayState))
            if isinstance(change, DelayState):
                self._note_settled(DelayEntry(offset, columns.dues_ns[place], change, columns.priorities[place]))
            elif change is not None:
                columns.dues_ns[place] = change
        return columns.where(wanted)

    def fire(self, now_ns: int) -> Fired:
        """The due messages: each once, never early, and less than a tick late if this is called at `next_ns`."""
        offsets = self._wheel.advance(now_ns)
        if not offsets:
            return Fired(offsets, now_ns)
        oldest_due_ns = min(self._table.dues_ns(offsets))
        self._settle(offsets, DelayState.DELIVERED)
        return Fired(offsets, oldest_due_ns)

    def cancel(self, offset: int) -> bool:
        """Cancel the message; returns whether it waited."""
        return self._settle_one(offset, DelayState.CANCELLED)

    def cancel_many(self, offsets: BitMap64) -> BitMap64:
        """Cancel messages; returns those that waited."""
        return self._take_out(offsets & self.waiting, DelayState.CANCELLED)

    def drop(self, below: int) -> BitMap64:
        """The records of these and all below the offset are gone; returns those of the messages that waited."""
        if self._early_changes:
            self._early_changes = {offset: change for offset, change in self._early_changes.items() if offset >= below}
        gone = BitMap64()
        if self.waiting and self.waiting.min() < below:
            gone.add_range(self.waiting.min(), below)
        return self._take_out(gone & self.waiting, DelayState.EXPIRED)

    def reschedule(self, offset: int, due_ns: int, *, now_ns: int) -> bool:
        """Change the due time, which may be past: then it fires next. Returns whether the message waited."""
        if offset not in self.waiting:
            return False
        if due_ns <= now_ns:
            due_ns = min(due_ns, now_ns - now_ns % TICK_NS)  # the current tick: the next one would be up to 10 ms late
        self._move(offset, due_ns)
        return True

    def shift(self, by_ns: int, *, now_ns: int) -> None:
        """The clock was set and shows `now_ns`: move all due times by that much, later or earlier."""
        self._early_changes = {
            offset: change if isinstance(change, DelayState) else _within_range(change + by_ns)
            for offset, change in self._early_changes.items()
        }
        self._wheel = Wheel(start_ns=now_ns, dues_of=self._table.dues_ns)
        if self.waiting:
            self._table.shift(by_ns)
            self._wheel.add_many(self.waiting.to_array(), self._table.dues_ns(self.waiting))

    def apply(self, offset: int, *, state: DelayState | None = None, due_ns: int | None = None) -> None:
        """Apply a change of the ledger: the message no longer waits, or has another due time.

        It may be applied repeatedly, before or after the message is scheduled; a settled message stays settled.
        """
        if offset in self.waiting:
            if state is not None:
                self._settle_one(offset, state)
            elif due_ns is not None:
                self._move(offset, due_ns)
        elif offset >= self._seen_end and offset not in self._settled:
            if state is not None:
                self._early_changes[offset] = state
            elif due_ns is not None and not isinstance(self._early_changes.get(offset), DelayState):
                self._early_changes[offset] = _within_range(due_ns)

    def due_ns(self, offset: int) -> int | None:
        """The due time of the message; None if it does not wait."""
        return self._table.due_ns(offset) if offset in self.waiting else None

    def find(self, offset: int) -> DelayEntry | None:
        """The message and its state; None if it was never delayed, or is no longer remembered."""
        if offset in self.waiting:
            due_ns, priority = self._table.due_and_priority(offset)
            return DelayEntry(offset, due_ns, DelayState.PENDING, priority)
        return self._settled.get(offset)

    def candidates(self, key_crc: int) -> BitMap64:
        """The waiting messages whose key has that checksum; the caller compares the keys in their records."""
        return self._table.with_key(key_crc) & self.waiting

    def page(self, *, skip: int, limit: int, state: str = DelayState.PENDING) -> list[DelayEntry]:
        """At most `limit` messages in that state, by due time and then offset, after the first `skip`."""
        if state != DelayState.PENDING:
            settled = (one for one in self._settled.values() if one.state == state)
            return sorted(settled, key=lambda one: (one.due_ns, one.offset))[skip : skip + limit]
        found: list[DelayEntry] = []
        for slot in self._wheel.in_order():
            if skip >= len(slot):
                skip -= len(slot)
                continue
            if len(found) >= limit:
                break
            soonest = self._table.soonest(slot, skip + limit - len(found))
            found += [DelayEntry(offset, due_ns, DelayState.PENDING, prio) for due_ns, offset, prio in soonest[skip:]]
            skip = 0
        return found

    def take_changes(self, covered_offset: int) -> bytes:
        """The bytes to append to the delay index since the last call; the log was scanned up to that offset."""
        pending = self._changed[DelayState.PENDING]
        parts = [(DelayState.PENDING, self._table.select(pending))] if pending else []
        for state, offsets in self._changed.items():
            if offsets and state is not DelayState.PENDING:
                parts.append((state, self._settled_columns(offsets)))
        if not parts:
            parts.append((DelayState.PENDING, DelayColumns.empty()))
        self._forget_changes()
        average_ns = self.average_delay_ns
        return b"".join(
            delay_index.encode(state, columns, covered_offset, average_delay_ns=average_ns) for state, columns in parts
        )

    def snapshot(self, covered_offset: int, *, cancelled: BitMap64 | None = None) -> bytes:
        """A whole delay index, with all messages that wait or are remembered; later changes are relative to it.

        `cancelled` are all cancelled messages, also those that are no longer remembered: they stay hidden.
        """
        chunks: list[Buffer] = []
        for state in DelayState:
            if state is not DelayState.PENDING:
                offsets = BitMap64([one.offset for one in self._settled.values() if one.state is state])
                if state is DelayState.CANCELLED and cancelled:
                    offsets |= cancelled
                if offsets:
                    chunks.append(delay_index.encode(state, self._settled_columns(offsets), 0))
        pending, average_ns = self._table.select(self.waiting), self.average_delay_ns
        chunks.append(delay_index.encode(DelayState.PENDING, pending, covered_offset, average_delay_ns=average_ns))
        self._forget_changes()
        first_offset = min(covered_offset, self.waiting.min()) if self.waiting else covered_offset
        return b"".join([delay_index.header(first_offset), *chunks])

    @property
    def snapshot_bytes(self) -> int:
        entries = len(self.waiting) + len(self._settled)
        return HEADER_BYTES + ENTRY_BYTES * (entries + entries // BLOCK_ENTRIES + len(DelayState))

    def restore(self, raw: bytes, *, next_offset: int) -> Restored:
        """Restore the state from a delay index; `next_offset` is the end of the log."""
        assert not self._known_end, "only a new instance can be restored"
        blocks, covered_offset, is_whole, average_ns = delay_index.decode(raw)
        for state, columns in blocks:
            present = columns
            if columns.offsets[-1] >= next_offset:
                is_whole = False
                present = columns.where([offset < next_offset for offset in columns.offsets])
            if present.offsets:
                self._restore_block(state, present)
        self._seen_end = min(covered_offset, next_offset)
        if self.waiting:
            columns = self._table.select(self.waiting)
            self._wheel.add_many(columns.offsets, columns.dues_ns)
        for settled in self._settled.values():
            self._counts[settled.state] += 1
        if average_ns:
            self.delay_count = self.counts.scheduled
            self.total_delay_ns = average_ns * self.delay_count
        return Restored(self._seen_end, is_whole and covered_offset <= next_offset)

    def _restore_block(self, state: DelayState, columns: DelayColumns) -> None:
        offsets = BitMap64(columns.offsets)
        self._known_end = max(self._known_end, offsets.max() + 1)
        if state is DelayState.PENDING:
            self.restored_cancelled -= offsets  # of an earlier record with that offset
            self._table.put_many(columns)
            self.waiting |= offsets
            for offset in self._settled.keys() & offsets if self._settled else ():
                del self._settled[offset]
            return
        if state is DelayState.CANCELLED:
            self.restored_cancelled |= offsets
        self.waiting -= offsets
        for offset, due_ns, _, priority in zip(*columns, strict=True):
            self._remember(DelayEntry(offset, due_ns, state, priority))

    def _move(self, offset: int, due_ns: int) -> None:
        due_ns = _within_range(due_ns)
        was_ns = self._table.move(offset, due_ns)
        self._wheel.remove(offset, was_ns)
        self._wheel.add(offset, due_ns)
        self.total_delay_ns += due_ns - was_ns
        self._changed[DelayState.PENDING].add(offset)

    def _settle_one(self, offset: int, state: DelayState) -> bool:
        if offset not in self.waiting:
            return False
        due_ns, priority = self._table.due_and_priority(offset)
        self._wheel.remove(offset, due_ns)
        self.waiting.discard(offset)
        self._note_settled(DelayEntry(offset, due_ns, state, priority))
        self._table.sweep(self.waiting, 1)
        return True

    def _note_settled(self, settled: DelayEntry) -> None:
        """Count and remember one message that no longer waits."""
        self._counts[settled.state] += 1
        self._changed[DelayState.PENDING].discard(settled.offset)
        self._changed[settled.state].add(settled.offset)
        self._remember(settled)

    def _take_out(self, offsets: BitMap64, state: DelayState) -> BitMap64:
        """Count and remember many messages, which wait until now."""
        if offsets:
            self._wheel.remove_many(offsets.to_array(), self._table.dues_ns(offsets))
            self._settle(offsets, state)
        return offsets

    def _settle(self, offsets: BitMap64, state: DelayState) -> None:
        """Count and remember many messages that are no longer in the wheel."""
        latest = offsets if len(offsets) <= SETTLED_MAX else offsets[-SETTLED_MAX:]
        for offset, due_ns, _, priority in zip(*self._table.select(latest), strict=True):
            self._remember(DelayEntry(offset, due_ns, state, priority))
        self._counts[state] += len(offsets)
        self.waiting -= offsets
        self._changed[DelayState.PENDING] -= offsets
        self._changed[state] |= offsets
        self._table.sweep(self.waiting, len(offsets))

    def _remember(self, settled: DelayEntry) -> None:
        self._settled[settled.offset] = settled
        if len(self._settled) > SETTLED_MAX:
            self._settled.popitem(last=False)

    def _settled_columns(self, offsets: BitMap64) -> DelayColumns:
        """The index entries of messages that no longer wait; a forgotten message has only its state."""
        numbers = offsets.to_array()
        dues_ns, priorities = array("q", bytes(8 * len(numbers))), array("I", bytes(4 * len(numbers)))
        remembered = self._settled
        for place, offset in enumerate(numbers):
            if settled := remembered.get(offset):
                dues_ns[place], priorities[place] = settled.due_ns, settled.priority
        return DelayColumns(numbers, dues_ns, array("I", bytes(4 * len(numbers))), priorities)

    def _forget_changes(self) -> None:
        for offsets in self._changed.values():
            offsets.clear()


def _within_range(due_ns: int) -> int:
    return due_ns if -DUE_NS_MAX <= due_ns <= DUE_NS_MAX else DUE_NS_MAX if due_ns > 0 else -DUE_NS_MAX
