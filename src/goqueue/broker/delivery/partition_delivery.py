"""Delivery from one partition: its index, its cursors, and the ledger that remembers what they did.

    publish ──> appended ──> index            poll ──> deliver ──> feed, take, read, lease ──> ledger ──> the records
    ack, nack, reject, extend ──> ledger ──> cursor ──> the floor moves

The index and the lanes follow the log; the cursors are replayed from the ledger when somebody first asks for them. What
a member asks for is written down before it counts, so what is refused has changed nothing. What time or a lost
member does to a cursor happens in any case; if the disk does not take it, the next thing that is written is the whole
cursor.
"""

from array import array
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import count as counter
from operator import sub
from typing import NamedTuple, TypeAlias

import msgspec
from pyroaring import BitMap64

from goqueue import events
from goqueue.broker.delivery import stored_delays
from goqueue.broker.delivery.group_cursors import NOTHING_HANDED, GroupCursor, GroupCursors, Handed
from goqueue.broker.delivery.stored_delays import StoredDelays
from goqueue.broker.partition.leader import PartitionLeader
from goqueue.broker.partition.record_fetcher import RecordFetcher
from goqueue.clock import MS, Clock
from goqueue.delivery import ledger, redrive_facts
from goqueue.delivery.cursor import Cursor, Delivery, Failed, Transaction
from goqueue.delivery.dead_letter import (
    ERROR_CHARACTERS_MAX,
    EXPIRED,
    MAX_DELIVERIES,
    REJECTED,
    TIMEOUT,
    dead_letter_topic,
)
from goqueue.delivery.due_lately import DueLately
from goqueue.delivery.index import PartitionIndex
from goqueue.delivery.key_order import KeyOrder
from goqueue.delivery.lanes import LaneConfig, Run
from goqueue.delivery.ledger import Burial, Change
from goqueue.delivery.offsets import between, span
from goqueue.delivery.receipts import make_nonce
from goqueue.delivery.retry import RetryPolicy
from goqueue.delivery.wall_anchor import TOLERANCE_NS, KnownBehind, WallAnchor, earliest_now
from goqueue.errors import (
    GoQueueError,
    OffsetOutOfRange,
    ReceiptExpired,
    ReceiptUnknown,
    StorageError,
)
from goqueue.record import kernel
from goqueue.record.header import OFFSET_MAX, Buffer, Flags, Priority, first_record
from goqueue.record.message import Message
from goqueue.service.pending import Pending, after, chained
from goqueue.storage.log import Appended
from goqueue.topics.config import TopicConfig
from goqueue.wire import reports

SCAN_BYTES = 4 * 1024 * 1024
"""How much of the log is looked at in one go when a cursor comes to a stretch that is not in the index."""
AHEAD_MAX = 200_000
"""How many messages may be ready before no more of the log is looked at than is needed."""
CANDIDATES_MAX = 20_000
"""How many messages one poll of a key-shared group may find parked before it gives up until the next."""
GAPS_MAX = 100
"""How much damage one answer tells of."""
TIMESTAMP_AT = 16  # in a record
_PLAIN_PRIORITIES = 1 << Priority.NORMAL
_SPECIAL = int(Flags.HAS_HEADERS | Flags.CONTROL)


Graves: TypeAlias = dict[int, tuple[int, int]]
"""Where dead letters are, by the offsets they had: partition and offset in the dead-letter topic."""


class Settling(NamedTuple):
    """What becomes of messages, and when it is certain."""

    stored: Pending[Graves]
    at_ns: int = 0  # wall clock: the next delivery, or the new deadline
    next_count: int = 0


class Delivered(NamedTuple):
    """Messages that were leased to a member, or handed over without a lease."""

    delivery_id: int
    offsets: BitMap64
    records: Sequence[Buffer]
    flags: int
    counts: dict[int, int]
    deadline_ns: int  # wall clock; 0 without a lease


class PartitionDelivery:
    """All that groups do with one partition. Belongs to the owner of the partition."""

    def __init__(
        self,
        leader: PartitionLeader,
        config: TopicConfig,
        *,
        clock: Clock,
        boot: int,
        make_salt: Callable[[], bytes],
        wake: Callable[[str], None],
        bury: "Callable[[PartitionDelivery, GroupCursor, Burial], Pending[Graves]]",
        resume: "Callable[[PartitionDelivery, GroupCursor, Burial], None]",
        wake_at: Callable[[int], None],
    ) -> None:
        self.leader = leader
        self.config = config
        self.index = PartitionIndex()
        self._written = GroupCursors(leader, clock=clock, make_cursor=self._new_cursor, make_salt=make_salt)
        self.cursors = self._written.by_group
        self.find = self._written.find
        self.forget = self._written.forget
        self._clock = clock
        self._ids = counter((boot << 32) + 1)
        self._wake = wake
        self._bury = bury
        self._resume = resume
        self._wake_at = wake_at
        self.fetcher = RecordFetcher(leader)
        self._retries = _policy(config)
        log, file = leader.log, leader.partition.delay_file
        unseen_from = log.start_offset if file.exists else leader.delays_from
        self.delays = StoredDelays(
            file,
            start_offset=log.next_offset if unseen_from is None else unseen_from,
            next_offset=log.next_offset,
            wall_ns=clock.wall_ns(),
            is_used=log.has_delays,
        )
        self._anchor = WallAnchor(now_ns=clock.monotonic_ns(), wall_ns=clock.wall_ns())
        self._known_behind: KnownBehind | None = None
        self._due_lately = DueLately()
        self._unchecked_from: int | None = None  # where to look for what compaction has removed
        self.redrive_facts: dict[bytes, bytes] = {}
        self.due_ns: int | None = None  # when `tick` has something to do, at the earliest
        self._wall_due_ns = OFFSET_MAX  # the same for what goes by the wall clock
        self._replay_ledger()
        self._scan_for_delays()
        if leader.aborted:  # which the delay file may not know
            self.delays.abort(leader.aborted & self.delays.table.waiting)
            self.delays.cancelled -= leader.aborted  # the file does not tell one from the other
        self._correct_delays()
        self.delays.mend()
        self._note_time(self.delays.table.next_ns, is_wall=True)

    # --- the log -------------------------------------------------------------------------------

    def appended(self, records: Buffer, appended: Appended) -> None:
        """A batch was stored."""
        first, end = appended.first_offset, appended.last_offset + 1
        is_normal = appended.priorities == _PLAIN_PRIORITIES
        if is_normal and not appended.flags & _SPECIAL:
            self.index.cover_plain(first, end)
            self.delays.schedule(b"", end_offset=end, wall_ns=0)
        elif is_normal and not appended.later_flags & _SPECIAL:  # the first has the headers of its producer
            self._tell_delayed(self._cover(first, first + 1, first_record(records)))
            self.index.cover_plain(first + 1, end)
            self.delays.schedule(b"", end_offset=end, wall_ns=0)
        else:
            self._tell_delayed(self._cover(first, end, records))

    def configured(self, config: TopicConfig) -> None:
        """The settings have changed."""
        self.config = config
        self._retries = _policy(config)
        for one in self.cursors.values():
            one.cursor.lanes.config = lane_config(config)

    def feed(self, one: GroupCursor, wanted: int, *, until: int = OFFSET_MAX) -> None:
        """Let the cursor look at the log until so many messages are ready, or there are no more below the offset.

        It looks ahead of that, one stretch at a time: what is urgent may be far behind what is not.
        """
        cursor, index = one.cursor, self.index
        start, limit = self.leader.log.start_offset, min(self.leader.last_stable_offset, until)
        has_looked_ahead = False
        if cursor.floor < start:
            self.drop_below(start)
        while cursor.frontier < limit:
            end = min(index.covered_until(cursor.frontier), limit)
            if end == cursor.frontier:
                is_enough = len(cursor.lanes) >= wanted
                if is_enough and (has_looked_ahead or len(cursor.lanes) >= AHEAD_MAX):
                    return
                has_looked_ahead = is_enough
                if not self._scan(cursor.frontier, limit):
                    return
                continue
            if self.fetcher.damage.offsets:
                one.lost |= between(self.fetcher.damage.offsets, cursor.frontier, end) - cursor.acked
            cursor.admit(
                end,
                lanes=index.lanes,
                hidden=self.hidden_from(one.group),
                delayed=self.delays.table.waiting,
                now_ns=self._clock.monotonic_ns(),
            )

    def hidden_from(self, group: str) -> BitMap64:
        """What the group never gets: what no group gets, and messages that are for another group only."""
        others = self.index.for_others(group)
        return self.never if others is None else self.never | others

    @property
    def never(self) -> BitMap64:
        """What no group gets: no message at all, damaged, cancelled or aborted."""
        never = self.index.hidden
        if self.fetcher.damage.offsets:
            never = never | self.fetcher.damage.offsets
        if self.delays.cancelled:
            never = never | self.delays.cancelled
        return never | self.leader.aborted if self.leader.aborted else never

    def aborted(self, offsets: BitMap64) -> None:
        """The transaction that wrote these was aborted: those of them that wait will never be due."""
        self.delays.abort(offsets)

    def drop_below(self, offset: int) -> None:
        """Retention has taken what lies below the offset."""
        self.index.drop_below(offset)
        if self.fetcher.damage.offsets:
            self.fetcher.damage.drop_below(offset)
        gone = self.delays.drop(offset)
        if facts := self.delays.forgotten(offset):
            with suppress(StorageError):  # they do no harm where they are
                self.leader.ledger.write(facts, flush=False)
                self.leader.wrote_ledger()
        if gone:
            topic, partition = self.leader.origin
            self.leader.observe(events.DelaysExpired(topic, len(gone), partition, gone))
        for one in self.cursors.values():
            if one.cursor.floor < offset:
                self._let_go(one, one.cursor.drop_below(offset))

    @property
    def keep_from(self) -> int | None:
        """Retention has to leave what waits for its time and, for as long as it keeps others, what has waited."""
        waiting = self.delays.table.waiting
        lately = self._due_lately.first(now_ns=self._clock.wall_ns())
        if not waiting:
            return lately
        return waiting.min() if lately is None else min(lately, waiting.min())

    @property
    def cancelled(self) -> BitMap64:
        """Delayed messages that will never be due."""
        return self.delays.cancelled

    @property
    def rescheduled(self) -> Mapping[int, int]:
        """When delayed messages are due, or were, that got another time, by offset."""
        return self.delays.rescheduled

    def hidden(self, start: int, end: int) -> BitMap64:
        """What a reader may not see in that range: it is not due yet, or never will be."""
        next_ns = self.delays.table.next_ns
        if next_ns is not None and next_ns <= self._wall_ns():
            self._fire()
        return self.delays.hidden(start, end)

    def _scan(self, start: int, limit: int) -> bool:
        try:
            chunk = self.fetcher.chunk(start, limit, SCAN_BYTES)
        except OffsetOutOfRange:
            return False
        if chunk.next_offset <= start:
            return False
        if self._cover(start, chunk.next_offset, chunk.records) and start < self.leader.delays_known_from:
            self.leader.find_delays()
        return True

    def compacted(self) -> None:
        """The log was compacted, up to its `cleaned_offset`: messages that the index knows may be gone."""
        self._unchecked_from = self.leader.log.start_offset

    def find_removed(self) -> bool:
        """Hide what compaction has removed from the next stretch that it went over; whether there was one.

        Deliveries need no such look: a record that is gone is passed over when it is fetched. Numbers do.
        """
        end = self.leader.log.cleaned_offset
        if self._unchecked_from is None or self._unchecked_from >= end:
            self._unchecked_from = None
            return False
        start = max(self._unchecked_from, self.leader.log.start_offset)
        chunk = self.fetcher.chunk(start, end, SCAN_BYTES)
        self.index.hide_missing(start, chunk.next_offset, kernel.outline(chunk.records))
        self._unchecked_from = chunk.next_offset if chunk.next_offset > start else None
        return self._unchecked_from is not None

    def cover_next(self, start: int, end: int) -> bool:
        """Look at the next stretch in that range that nobody has looked at; whether there was one."""
        at = self.index.covered_until(start)
        return at < end and self._scan(at, end)

    def _cover(self, start: int, end: int, records: Buffer) -> bytes:
        """Note what is special about records; the delayed ones are returned."""
        ttl_ns = None if self.config.ttl_ms is None else self.config.ttl_ms * MS
        outline = kernel.outline(records)
        self.index.cover(start, end, outline, ttl_ns=ttl_ns)
        if outline.delayed:
            stored_ns = int.from_bytes(memoryview(records)[TIMESTAMP_AT : TIMESTAMP_AT + 8])
            self.delays.schedule(outline.delayed, end_offset=end, wall_ns=self._wall_ns(), stored_ns=stored_ns)
            if not self.leader.log.has_delays:
                with suppress(StorageError):  # then with the next one
                    self.leader.log.mark_delayed()
        else:
            self.delays.schedule(b"", end_offset=end, wall_ns=0)
        self._note_time(self.delays.table.next_ns, is_wall=True)
        self._note_time(self.index.next_expiry_ns, is_wall=True)
        return outline.delayed

    def _tell_delayed(self, entries: bytes) -> None:
        """Tell of the messages that were stored just now and have to wait."""
        if not entries:
            return
        numbers = memoryview(entries).cast("q")
        offsets, dues_ns = numbers[0::3].tolist(), numbers[1::3].tolist()
        waiting = self.delays.table.waiting & BitMap64(offsets)
        if len(waiting) < len(offsets):
            dues_ns = [due_ns for offset, due_ns in zip(offsets, dues_ns, strict=True) if offset in waiting]
        if waiting:
            self._note_if_behind()
            self.leader.observe(events.DelaysScheduled(self.leader.origin.topic, len(waiting)))
            self.leader.observe(events.DelaysBegun(*self.leader.origin, waiting, array("q", dues_ns)))

    # --- cursors -------------------------------------------------------------------------------

    def cursor_of(self, group: str, *, start: str = "earliest") -> GroupCursor:
        """The group's cursor; a new one begins at the start or the end of the log, and is written down."""
        one = self.cursors.get(group)
        if one is None:
            floor = self.leader.log.start_offset if start == "earliest" else self.leader.last_stable_offset
            one = self._written.begin(group, floor)
        return one

    def keep_key_order(self, one: GroupCursor) -> None:
        """Hold the keys of what is delivered or was, and is not settled; after a restart they are looked up.

        That has to be before anything happens to these messages: one that fails is to hold its key.
        """
        if one.keys is None:
            one.keys = KeyOrder()
            now_ns = self._clock.wall_ns()
            for delivery in one.cursor.state().deliveries:
                for offset, key in self.fetcher.keys(delivery.offsets):
                    if key is not None:
                        one.keys.resume(offset, key, delivery.member, in_flight=True, now_ns=now_ns)
            for offset, key in self.fetcher.keys(one.cursor.returned):
                if key is not None:
                    one.keys.resume(offset, key, "", in_flight=False, now_ns=now_ns)

    def end_key_order(self, one: GroupCursor) -> None:
        """The group does not go by keys any more: nothing is held back."""
        if one.keys is not None:
            keys, one.keys = one.keys, None
            one.cursor.put_back(keys.parked, now_ns=self._clock.monotonic_ns())

    @property
    def dlq_topic(self) -> str:
        """Where dead letters go."""
        return dead_letter_topic(self.leader.origin.topic)

    def lowest_not_handed(self, one: GroupCursor) -> int:
        """The lowest offset that the group was not given."""
        cursor = one.cursor
        offsets = [lane.min() for lane in (*cursor.lanes.ready, cursor.delayed) if lane]
        if one.keys is not None and (parked := one.keys.lowest_parked()) is not None:
            offsets.append(parked)
        return min(offsets, default=cursor.frontier)

    def _new_cursor(self, floor: int) -> Cursor:
        return Cursor(
            floor=floor,
            lanes=lane_config(self.config),
            split=self.index.split,
            now_ns=self._clock.monotonic_ns(),
        )

    # --- delivering ----------------------------------------------------------------------------

    def deliver(
        self,
        one: GroupCursor,
        member: str,
        *,
        count: int,
        max_bytes: int,
        lease_ns: int | None,
        is_fed: bool = False,
        poll: int = 0,
    ) -> Delivered | None:
        """The next messages for the member; without a lease they are handed over, until the position is committed.

        `is_fed` says that the cursor has just been fed with at least that count; `poll` is which poll of the member
        this is.
        """
        now_ns = self._clock.monotonic_ns()
        cursor = one.cursor
        if cursor.next_ns is not None and cursor.next_ns <= now_ns:
            self.pass_time(one)
        for _ in range(CANDIDATES_MAX // count + 1):
            if not is_fed:
                self.feed(one, count)
            is_fed = False
            runs = self._take(one, count, now_ns)
            if not runs:
                return None
            delivered = self._lease(one, member, runs, max_bytes, lease_ns, now_ns, poll)
            if delivered:
                return delivered
        self._wake(one.group)
        return None

    def _take(self, one: GroupCursor, count: int, now_ns: int) -> list[Run]:
        """The next that have not expired."""
        while runs := one.cursor.take(count, now_ns=now_ns):
            expired = self._expired()
            if not expired or not any(offsets.intersect(expired) for _, offsets in runs):
                return runs
            good = []
            for lane, offsets in runs:
                over = offsets & expired
                one.cursor.give_back([Run(lane, over)])
                if len(over) < len(offsets):
                    good.append(Run(lane, offsets - over))
            self.expire_messages(one, expired)
            if good:
                return good
        return []

    def _lease(
        self,
        one: GroupCursor,
        member: str,
        runs: list[Run],
        max_bytes: int,
        lease_ns: int | None,
        now_ns: int,
        poll: int,
    ) -> Delivered | None:
        cursor = one.cursor
        try:
            records, flags, delivered, left = self._read(one, runs, max_bytes)
        except Exception:
            cursor.give_back(runs)
            raise
        cursor.give_back(left)
        if delivered and one.keys is not None:
            records, delivered = self._in_key_order(one.keys, member, records, delivered)
        if not delivered:
            return None
        counts = {offset: count + 1 for offset, count in cursor.redelivered(delivered).items()}
        wall_ns = self._clock.wall_ns()
        delivery_id = next(self._ids)
        if lease_ns is None:
            before, last, _ = one.handed.get(member, NOTHING_HANDED)
            one.handed[member] = Handed(before | last, delivered, poll)
        else:
            until_ns = self._written.ledger_time(wall_ns) + lease_ns
            change = ledger.Leased(delivery_id, member, wall_ns, until_ns, ledger.blob(delivered))
            try:
                self._written.note(one, change, flush=False)
            except StorageError:
                cursor.put_back(delivered, now_ns=now_ns)
                if one.keys is not None:
                    self._unpark(one, one.keys.returned(delivered))
                raise
            cursor.lease(delivery_id, member, delivered, deadline_ns=now_ns + lease_ns, wall_ns=wall_ns)
            self._note_time(now_ns + lease_ns)
        size = sum(map(len, records))
        self._count_delivered(one, records, BitMap64(counts), wall_ns)
        told = events.MessagesDelivered(
            *self.leader.origin, one.group, len(delivered), size, len(counts), member, delivered, counts
        )
        self.leader.observe(told)
        deadline_ns = 0 if lease_ns is None else wall_ns + lease_ns
        return Delivered(delivery_id, delivered.copy(), records, flags, counts, deadline_ns)

    def _count_delivered(
        self, one: GroupCursor, records: Sequence[Buffer], redelivered: BitMap64, wall_ns: int
    ) -> None:
        """Note which lanes were served, and how long messages have waited; those that go out again have not."""
        stats, boosted = one.lane_stats, one.cursor.lanes.boosted
        for part in records:
            counts, waited_us = kernel.waits(part, wall_ns)
            again: Sequence[int] = ()
            if redelivered:
                chosen = kernel.select(part, redelivered.to_array(), max_bytes=len(part))
                again, waited_again_us = kernel.waits(chosen.records, wall_ns)
                waited_us = tuple(map(sub, waited_us, waited_again_us))
            for lane, count in enumerate(counts):
                if count:
                    stats.served(lane, wall_ns)
                    stats.waited(lane, count - again[lane] if again else count, waited_us[lane])
        if boosted is not None:
            stats.boosts[boosted] += 1
            self.leader.observe(events.LaneBoosted(self.leader.origin.topic, boosted))

    def _count_done(self, one: GroupCursor, offsets: BitMap64) -> None:
        now_ns = self._clock.monotonic_ns()
        for lane, part in self.index.split(offsets):
            one.lane_stats.done(lane, len(part), now_ns=now_ns)

    def _in_key_order(
        self, keys: KeyOrder, member: str, records: Sequence[Buffer], offsets: BitMap64
    ) -> tuple[Sequence[Buffer], BitMap64]:
        allowed = BitMap64()
        kept: list[Buffer] = []
        for part in records:
            candidates = [(one.offset, one.key) for one in kernel.decode(part, None, Message, verify=False)]
            chosen = keys.choose(candidates, member, now_ns=self._clock.wall_ns())
            if chosen.allowed:
                allowed |= chosen.allowed
                kept.append(
                    kernel.select(part, chosen.allowed.to_array(), max_bytes=len(part)).records
                    if chosen.parked
                    else part
                )
        return kept, allowed

    def nonce(self, one: GroupCursor, delivery_id: int) -> str:
        """What the receipts of a delivery have in common."""
        return make_nonce(one.tag, delivery_id, one.salt)

    def _read(
        self, one: GroupCursor, runs: Sequence[Run], max_bytes: int
    ) -> tuple[Sequence[Buffer], int, BitMap64, list[Run]]:
        """The records of the runs, as far as they fit; what is delivered with them, and what is left.

        Where not all fit, each run gets its part of the room, so that lanes keep their shares.
        """
        records: list[Buffer] = []
        delivered, gone = BitMap64(), BitMap64()
        left: list[Run] = []
        size = flags = seen = 0
        total = sum(len(offsets) for _, offsets in runs)
        for lane, offsets in runs:
            seen += len(offsets)
            room = max_bytes * seen // total
            wanted = offsets
            while wanted and (size < room or not records):
                found = self.fetcher.some(wanted, room - size)
                if records and size + len(found.records) > room:
                    break
                if found.offsets:
                    records.append(found.records)
                    size += len(found.records)
                    flags |= found.flags
                    delivered |= found.offsets
                gone |= found.gone
                wanted = wanted - found.offsets - found.gone
            if wanted:
                left.append(Run(lane, wanted))
        if gone:
            one.lost |= gone & self.fetcher.damage.offsets
            one.cursor.finish(gone)
            self._let_go(one, gone)
            self._written.note_if_possible(one, ledger.Finished(ledger.blob(gone)))
        return records, flags, delivered, left

    def take_gaps(self, one: GroupCursor) -> list[reports.PartitionGap]:
        """The damage that the group came to since the last call, which its cursor is done with."""
        gaps = self.fetcher.damage.gaps(one.lost, most=GAPS_MAX)
        if len(gaps) == GAPS_MAX:
            one.lost.remove_range(0, gaps[-1].next_offset)
        else:
            one.lost = BitMap64()
        return [
            reports.PartitionGap(*self.leader.origin, gap.first_offset, gap.next_offset, gap.reason) for gap in gaps
        ]

    # --- settling ------------------------------------------------------------------------------

    def refusal(self, one: GroupCursor, delivery_id: int, offset: int) -> GoQueueError:
        """Why a receipt that was given out, or pretends to be, is not good."""
        topic, partition = self.leader.origin
        cursor = one.cursor
        if offset in one.given_up:  # by the broker, when its last lease was over; no consumer has settled it
            return ReceiptExpired(topic, partition, offset)
        if cursor.is_done(offset) or cursor.is_held(offset) or cursor.is_settled_back(delivery_id, offset):
            return ReceiptUnknown(topic, partition, offset, "settled")
        delivery = cursor.deliveries.get(delivery_id)
        was_given_out = offset < self.leader.last_stable_offset
        if delivery is not None:  # others of it are leased still, so all that it had are known
            was_given_out = offset in delivery.left or offset in delivery.late(now_ns=self._clock.monotonic_ns())
        return (ReceiptExpired if was_given_out else ReceiptUnknown)(topic, partition, offset)

    def settle(
        self, one: GroupCursor, delivery_id: int, offsets: BitMap64, settlement: reports.Settlement
    ) -> "Settling":
        """Do what is asked to messages that this delivery has leased."""
        match settlement.action:
            case "ack":
                return self._stored(self._ack(one, delivery_id, offsets))
            case "nack":
                return self._nack(one, delivery_id, offsets, settlement)
            case "reject":
                return Settling(self._reject(one, delivery_id, offsets, settlement.reason or "rejected by consumer"))
            case "extend":
                return self._extend(one, delivery_id, offsets, settlement.delay_ns or 0)
            case _:
                self._written.note(one, ledger.Released(delivery_id, False, ledger.blob(offsets)), flush=False)
                self._release(one, delivery_id, offsets, counts=False)
                one.cursor.note_settled_back(delivery_id, offsets)
                return Settling(Pending.of({}))

    def _stored(self, ledger_end: int, *, at_ns: int = 0, next_count: int = 0) -> "Settling":
        if ledger_end <= self.leader.ledger.log.ackable_offset:
            return Settling(Pending.of({}), at_ns, next_count)
        nobody: Graves = {}
        stored = self.leader.ledger.when_stored(ledger_end)
        return Settling(after(stored, lambda _: nobody), at_ns, next_count)

    def _ack(self, one: GroupCursor, delivery_id: int, offsets: BitMap64) -> int:
        delivery = one.cursor.deliveries[delivery_id]
        end = self._written.note(one, ledger.Acked([(delivery_id, ledger.blob(offsets))]))
        one.cursor.ack(delivery_id, offsets)
        if one.keys is not None:
            self._unpark(one, one.keys.settled(offsets))
        self._count_done(one, offsets)
        self._tell_settled(one, "ack", offsets, delivery)
        return end

    def _nack(
        self, one: GroupCursor, delivery_id: int, offsets: BitMap64, settlement: reports.Settlement
    ) -> "Settling":
        delivery = one.cursor.deliveries[delivery_id]
        now_ns = self._clock.monotonic_ns()
        failed = one.cursor.judge(offsets, self._retries, now_ns=now_ns, delay_ns=settlement.delay_ns)
        end = self._written.note(one, self._retried(delivery_id, failed)) if failed.requeued else 0
        one.cursor.fail(delivery_id, failed)
        for part in failed.requeued:
            one.cursor.note_settled_back(delivery_id, part.offsets)
        error = settlement.reason or "not acknowledged"
        self._tell_settled(one, "nack", offsets, delivery, error)
        graves = self._follow_failure(one, delivery_id, delivery.member, failed, MAX_DELIVERIES, error)
        if not failed.requeued:
            return Settling(graves)
        first = min(failed.requeued, key=lambda part: part.at_ns)
        waits = self._stored(end, at_ns=first.at_ns + self._clock.wall_ns() - now_ns, next_count=first.next_count)
        return waits if not failed.dead else waits._replace(stored=chained(waits.stored, lambda _: graves))

    def _reject(self, one: GroupCursor, delivery_id: int, offsets: BitMap64, reason: str) -> "Pending[Graves]":
        delivery = one.cursor.deliveries[delivery_id]
        one.cursor.reject(delivery_id, offsets)
        self._tell_settled(one, "reject", offsets, delivery, reason)
        return self._begin_burial(one, delivery_id, offsets, REJECTED, reason, delivery.member)

    def _extend(self, one: GroupCursor, delivery_id: int, offsets: BitMap64, by_ns: int) -> "Settling":
        now_ns, wall_ns = self._clock.monotonic_ns(), self._clock.wall_ns()
        until_ns = self._written.ledger_time(wall_ns) + by_ns
        self._written.note(one, ledger.Extended(delivery_id, until_ns, ledger.blob(offsets)), flush=False)
        one.cursor.extend(delivery_id, offsets, deadline_ns=now_ns + by_ns)
        self._note_time(now_ns + by_ns)
        self._tell_settled(one, "extend", offsets, one.cursor.deliveries[delivery_id])
        return Settling(Pending.of({}), wall_ns + by_ns)

    def _release(self, one: GroupCursor, delivery_id: int, offsets: BitMap64, *, counts: bool) -> None:
        one.cursor.release(delivery_id, offsets, now_ns=self._clock.monotonic_ns(), counts=counts)
        if one.keys is not None:
            self._unpark(one, one.keys.returned(offsets))
        self._wake(one.group)

    def take_back(self, one: GroupCursor, member: str) -> None:
        """The member lost the partition: what was handed over to it without a lease is ready again."""
        before, last, _ = one.handed.pop(member, NOTHING_HANDED)
        if before or last:
            one.cursor.put_back(before | last, now_ns=self._clock.monotonic_ns())
            if one.keys is not None:
                self._unpark(one, one.keys.returned(before | last))
            self._wake(one.group)

    def release_member(self, one: GroupCursor, member: str, *, is_lost: bool) -> None:
        """The member is gone: what it has is ready again or, if it was lost, has failed."""
        now_ns = self._clock.monotonic_ns()
        one.expired_by_member.pop(member, None)
        self.take_back(one, member)
        for delivery in [delivery for delivery in one.cursor.deliveries.values() if delivery.member == member]:
            offsets = delivery.offsets.copy()
            if is_lost:
                failed = one.cursor.judge(offsets, self._retries, now_ns=now_ns)
                one.cursor.fail(delivery.id, failed)
                self._tell_lost(one, member, offsets, "the consumer was lost")
                self._failed(one, delivery.id, member, failed, "the consumer was lost")
            else:
                self._release(one, delivery.id, offsets, counts=True)
                self._written.note_if_possible(one, ledger.Released(delivery.id, True, ledger.blob(offsets)))
        self._wake(one.group)

    def commit_handed(self, one: GroupCursor, member: str, *, poll: int, is_leaving: bool) -> int:
        """What the member got before its last poll, whose number is given, is done; when it leaves, all it got.

        A poll says that what came before is worked through, whichever partitions it brings something from.
        """
        before, last, last_poll = one.handed.get(member, NOTHING_HANDED)
        is_last_done = is_leaving or last_poll < poll
        done = before | last if is_last_done else before
        if not done:
            return 0
        floor = one.cursor.floor
        end = self.finish(one, done)
        self.leader.observe(events.MessagesPassedOver(*self.leader.origin, one.group, done))
        self.tell_position(one, floor)
        one.handed[member] = Handed(BitMap64(), BitMap64() if is_last_done else last, last_poll)
        return end

    def finish(self, one: GroupCursor, offsets: BitMap64) -> int:
        """These are done; the offset in the ledger behind which that is certain."""
        end = self._written.note(one, ledger.Finished(ledger.blob(offsets)))
        one.cursor.finish(offsets)
        if one.keys is not None:
            self._unpark(one, one.keys.settled(offsets))
        self._count_done(one, offsets)
        return end

    def commit(self, one: GroupCursor, offset: int, metadata: str, pending: BitMap64 | None = None) -> int:
        """Everything below the offset is done but what is not due; or, if it is said, but what is pending."""
        self.feed(one, OFFSET_MAX, until=offset)
        cursor = one.cursor
        done = cursor.below(offset) if pending is None else cursor.below_but(offset, pending)
        return self.settle_all(one, done, metadata)

    def reset(self, one: GroupCursor, offset: int) -> int:
        """Begin anew at the offset: all leases end, and all is forgotten but what is dying."""
        cursor = self._new_cursor(offset)
        cursor.doom(one.cursor.dying)
        end = self._written.write_whole(one, cursor)
        one.cursor = cursor
        one.given_up.clear()
        one.handed.clear()
        one.keys = None
        self._wake(one.group)
        return end

    def change_delays(self, offsets: BitMap64, due_ns: int | None) -> Pending[None]:
        """Cancel messages that wait, or give them another time; done when that is certain."""
        end = self.leader.ledger.write(self.delays.facts(offsets, due_ns))
        self.delays.change(offsets, due_ns, wall_ns=self._wall_ns())
        self.leader.wrote_ledger()
        if due_ns is None:
            for one in self.cursors.values():
                one.cursor.hide(offsets)
            topic, partition = self.leader.origin
            self.leader.observe(events.DelaysCancelled(topic, len(offsets), partition, offsets))
        else:
            self.leader.observe(
                events.DelaysBegun(*self.leader.origin, offsets.copy(), array("q", [due_ns]) * len(offsets))
            )
        self._note_time(self.delays.table.next_ns, is_wall=True)
        return self.leader.ledger.when_stored(end)

    # --- time ----------------------------------------------------------------------------------

    def tick(self) -> None:
        """Do what is due."""
        wall_ns = self._wall_ns()
        now_ns = self._clock.monotonic_ns()
        if (self.due_ns is None or now_ns < self.due_ns) and wall_ns < self._wall_due_ns:
            if self.due_ns is not None:
                self._wake_at(self.due_ns)
            return
        self.due_ns, self._wall_due_ns = None, OFFSET_MAX
        self._fire()
        expired = self.index.expire(wall_ns)
        for one in self.cursors.values():
            if expired:
                self.expire_messages(one, expired)
            if one.cursor.next_ns is not None and one.cursor.next_ns <= now_ns:
                self.pass_time(one)
            self._note_time(one.cursor.next_ns)
        self._note_time(self.delays.table.next_ns, is_wall=True)
        self._note_time(self.index.next_expiry_ns, is_wall=True)

    def _fire(self) -> None:
        """Let the delayed messages go that are due."""
        wall_ns = self._wall_ns()
        fired = self.delays.fire(wall_ns)
        if fired.offsets:
            lateness_ns = wall_ns - fired.oldest_due_ns
            retention_ns = self.config.retention_ms * MS
            self._due_lately.note(fired.offsets.min(), now_ns=wall_ns, retention_ns=retention_ns)
            topic, partition = self.leader.origin
            self.leader.observe(events.DelaysFired(topic, len(fired.offsets), lateness_ns, partition, fired.offsets))
            for one in self.cursors.values():
                if one.cursor.ripen(fired.offsets, now_ns=self._clock.monotonic_ns()):
                    self._wake(one.group)

    def _wall_ns(self) -> int:
        """The wall clock. If it was set, what waits is moved with it first, so that it passes as if it had not been."""
        now_ns, wall_ns = self._clock.monotonic_ns(), self._clock.wall_ns()
        jump_ns = self._anchor.jump_ns(now_ns=now_ns, wall_ns=wall_ns)
        if not jump_ns:
            return wall_ns
        if self._clock.monotonic_ns() - now_ns > TOLERANCE_NS:  # it was this process that stood still in between
            return wall_ns
        self._anchor.shift_ns += jump_ns
        self._move_delays(jump_ns, wall_ns)
        for one in self.cursors.values():
            if one.cursor.next_ns is not None:  # leases and backoffs stand in the ledger as the clock was before
                with suppress(StorageError):
                    self._written.write_whole(one, one.cursor, flush=False)
        self.due_ns = now_ns  # when messages expire by the wall clock has changed, too
        self._wake_at(now_ns)
        return wall_ns

    def _move_delays(self, by_ns: int, wall_ns: int) -> None:
        facts = self.delays.shift(by_ns, wall_ns=wall_ns)
        if facts:
            with suppress(StorageError):
                self.leader.ledger.write(facts, flush=False)
                self.leader.wrote_ledger()
        if by_ns < 0:
            self._known_behind = None
            self._note_if_behind()

    def _note_if_behind(self) -> None:
        """Note that the clock is behind the newest record, and delays are not: a restart is not to correct them."""
        wall_ns, newest_ns = self._clock.wall_ns(), self._newest_ns
        known = self._known_behind
        if newest_ns - wall_ns <= TOLERANCE_NS or not self.delays.table.waiting:
            return
        if known is None or known.newest_ns < newest_ns:
            self._known_behind = KnownBehind(newest_ns, wall_ns)
            with suppress(StorageError):
                self.leader.ledger.write([stored_delays.behind_fact(self._known_behind)], flush=False)
                self.leader.wrote_ledger()

    @property
    def _newest_ns(self) -> int:
        """The time of the newest record of the log and the ledger."""
        leader = self.leader
        ledger_ns = leader.ledger.log.last_timestamp if leader.partition.has_ledger else 0
        return max(leader.log.last_timestamp, ledger_ns)

    def _correct_delays(self) -> None:
        """After a restart: a clock that is behind what it has shown before does not make anything wait longer."""
        wall_ns = self._clock.wall_ns()
        behind_ns = earliest_now(self._newest_ns, self._known_behind) - wall_ns
        if behind_ns > TOLERANCE_NS and self.delays.table.waiting:
            self._move_delays(-behind_ns, wall_ns)

    def _note_time(self, at_ns: int | None, *, is_wall: bool = False) -> None:
        """There is something to do at that time; by the wall clock also if that is set meanwhile."""
        if at_ns is not None:
            if is_wall:
                self._wall_due_ns = min(self._wall_due_ns, at_ns)
            due_ns = at_ns - self._anchor.shift_ns if is_wall else at_ns
            if self.due_ns is None or due_ns < self.due_ns:
                self.due_ns = due_ns
                self._wake_at(due_ns)

    def pass_time(self, one: GroupCursor) -> None:
        """End leases, and bring back what has waited for long enough."""
        now_ns = self._clock.monotonic_ns()
        woken = False
        for delivery, failed in one.cursor.expire(self._retries, now_ns=now_ns):
            late = failed.dead.union(*(part.offsets for part in failed.requeued))
            one.expired_leases += len(late)
            if failed.dead:
                one.note_given_up(failed.dead)
            one.expired_by_member[delivery.member] = one.expired_by_member.get(delivery.member, 0) + len(late)
            self.leader.observe(events.LeasesExpired(*self.leader.origin, one.group, len(late), delivery.member, late))
            self._failed(one, delivery.id, delivery.member, failed, "the lease ran out")
            woken = True
        if one.cursor.retry(now_ns=now_ns) or woken:
            self._wake(one.group)

    def expire_messages(self, one: GroupCursor, expired: BitMap64) -> None:
        """The time of these messages is over: drop them or put them to the dead letters, as the topic says."""
        over = one.cursor.overdue(expired)
        if not over:
            return
        self.leader.observe(events.MessagesExpired(*self.leader.origin, one.group, len(over), over))
        if self.config.on_expire == "dead_letter":
            self._begin_burial(one, 0, over, EXPIRED, "its time to live was over", "")
        else:
            one.cursor.finish(over)
            self._count_done(one, over)
            self._let_go(one, over)
            self._written.note_if_possible(one, ledger.Finished(ledger.blob(over)))

    def _expired(self) -> BitMap64:
        """All that has expired and may still be somewhere."""
        self.index.expire(self._clock.wall_ns())
        if self.config.ttl_ms is None:
            return self.index.expired
        before = self.leader.log.offset_at_time(self._clock.wall_ns() - self.config.ttl_ms * MS + 1)
        old = span(self.leader.log.start_offset, before)
        old -= self.index.own_expiry
        return old | self.index.expired

    # --- dead letters --------------------------------------------------------------------------

    def buried(self, one: GroupCursor, burial: Burial) -> int:
        """The dead letters are stored: the messages are done."""
        end = self.finish(one, ledger.offsets_of(burial.offsets))
        one.burials = one.without_burial(burial)
        return end

    def _retried(self, delivery_id: int, failed: Failed) -> Change:
        shift_ns = self._written.ledger_shift_ns
        parts = [(part.at_ns + shift_ns, ledger.blob(part.offsets)) for part in failed.requeued]
        return ledger.Retried(delivery_id, parts)

    def _failed(self, one: GroupCursor, delivery_id: int, member: str, failed: Failed, error: str) -> None:
        """Write down what became of messages that nobody settled, and do what follows from it."""
        if failed.requeued:
            self._written.note_if_possible(one, self._retried(delivery_id, failed))
        self._follow_failure(one, delivery_id, member, failed, TIMEOUT, error)

    def _follow_failure(
        self, one: GroupCursor, delivery_id: int, member: str, failed: Failed, reason: str, error: str
    ) -> "Pending[Graves]":
        for part in failed.requeued:
            self._note_time(part.at_ns)
            if one.keys is not None:
                self._unpark(one, one.keys.returned(part.offsets))
        if not failed.dead:
            return Pending.of({})
        return self._begin_burial(one, delivery_id, failed.dead, reason, error, member)

    def _begin_burial(
        self, one: GroupCursor, delivery_id: int, offsets: BitMap64, reason: str, error: str, member: str
    ) -> "Pending[Graves]":
        raw, error, now_ns = ledger.blob(offsets), error[:ERROR_CHARACTERS_MAX], self._clock.wall_ns()
        burial = Burial(delivery_id, raw, reason, error, member, -1, now_ns)
        one.burials.append(burial)
        return self._bury(self, one, burial)

    def move_to(
        self, one: GroupCursor, offsets: BitMap64, target: str, partition: int, *, to_group: bool
    ) -> "Pending[Graves]":
        """Put messages, which are dead letters, to another topic, and be done with them.

        With `to_group` each copy is for the group that gave the message up.
        """
        one.cursor.lanes.discard(offsets)
        one.cursor.doom(offsets)
        raw, now_ns = ledger.blob(offsets), self._clock.wall_ns()
        burial = Burial(0, raw, "REDRIVEN", "", "", -1, now_ns, target, partition, to_group)
        one.burials.append(burial)
        return self._bury(self, one, burial)

    def abandon_burial(self, one: GroupCursor, burial: Burial) -> None:
        """The messages stay where they are: they cannot be moved."""
        one.burials = one.without_burial(burial)
        one.cursor.revive(ledger.offsets_of(burial.offsets), now_ns=self._clock.monotonic_ns())
        with suppress(StorageError):
            self._written.write_whole(one, one.cursor)

    def note_burial(self, one: GroupCursor, burial: Burial, target_offset: int) -> tuple[Burial, Pending[None]]:
        """Write down that dead letters are about to be written, from that offset on; done when that is certain."""
        noted = msgspec.structs.replace(burial, target_offset=target_offset)
        end = self._written.note(one, noted)
        one.burials = [*one.without_burial(burial), noted]
        return noted, self.leader.ledger.when_stored(end)

    # --- transactions --------------------------------------------------------------------------

    def hold(self, one: GroupCursor, transaction: Transaction, delivery_id: int, offsets: BitMap64) -> "Settling":
        """Messages that this delivery has leased are acknowledged, if the transaction is committed."""
        one.cursor.hold(transaction, delivery_id, offsets)
        return Settling(Pending.of({}))

    def finish_held(self, one: GroupCursor, transaction: Transaction) -> int:
        """The transaction was committed; the offset in the ledger behind which its acks are certain."""
        held = one.cursor.held_by(transaction)
        if not held:
            return 0
        floor = one.cursor.floor
        end = self.finish(one, held)
        self._tell_settled(one, "ack", held)
        self.tell_position(one, floor)
        self._wake(one.group)
        return end

    def settle_all(self, one: GroupCursor, offsets: BitMap64, metadata: str) -> int:
        """These are done, whoever has them; the offset in the ledger behind which that is certain."""
        end = self._written.note(one, ledger.Committed(ledger.blob(offsets), metadata))
        one.metadata = metadata
        one.cursor.settle(offsets)
        self._count_done(one, offsets)
        self._let_go(one, offsets)
        self.leader.observe(events.MessagesPassedOver(*self.leader.origin, one.group, offsets))
        return end

    def let_go(self, one: GroupCursor, transaction: Transaction) -> None:
        """The transaction was aborted: what it held is delivered again."""
        now_ns = self._clock.monotonic_ns()
        for held, failed in one.cursor.let_go(transaction, self._retries, now_ns=now_ns):
            given_back = failed.dead.union(*(part.offsets for part in failed.requeued))
            self._tell_lost(one, held.member, given_back, "the transaction was aborted")
            self._failed(one, held.delivery_id, held.member, failed, "the transaction was aborted")
        self._note_time(one.cursor.next_ns)
        if one.cursor.retry(now_ns=now_ns):
            self._wake(one.group)

    # --- the ledger ----------------------------------------------------------------------------

    def _replay_ledger(self) -> None:
        has_ledger = self.leader.partition.has_ledger
        shift_ns = self._written.ledger_shift_ns if has_ledger else 0
        for key, value in self.leader.ledger.facts() if has_ledger else ():
            if key[:1] == stored_delays.CHANGE_KEY:
                try:
                    self.delays.replay(key, value)
                except ValueError as error:
                    self.leader.unreadable.pass_over(key, error)
            elif key == stored_delays.BEHIND_KEY:
                self._known_behind = stored_delays.read_behind(value)
            elif redrive_facts.is_about_redrives(key):
                self._take_redrive_fact(key, value)
            else:
                self._written.replay(key, value, shift_ns=shift_ns)
        for one in self.cursors.values():
            if one.cursor.cut(self.leader.log.next_offset):
                one.is_dirty = True
            self._note_time(one.cursor.next_ns)
        self._forget_changes_of_lost_records()
        self.drop_below(self.leader.log.start_offset)

    def write_redrive_facts(self, facts: Sequence[tuple[bytes, bytes | None]], *, flush: bool) -> int:
        """Write down facts about redrives; the offset in the ledger after them. Raises `StorageError`."""
        end = self.leader.ledger.write(facts, flush=flush)
        for key, value in facts:
            self._take_redrive_fact(key, value)
        self.leader.wrote_ledger()
        return end

    def _take_redrive_fact(self, key: bytes, value: bytes | None) -> None:
        if value is None:
            self.redrive_facts.pop(key, None)
        else:
            self.redrive_facts[key] = value

    def _forget_changes_of_lost_records(self) -> None:
        """A power cut took records whose delays were changed; others get their offsets and must not be confused."""
        if self.delays.stale_keys:
            with suppress(StorageError):
                self.leader.ledger.write([(key, None) for key in self.delays.stale_keys])

    def resume(self) -> None:
        """Go on with what was under way before a restart."""
        for one in self.cursors.values():
            for burial in list(one.burials):
                self._resume(self, one, burial)

    def _scan_for_delays(self) -> None:
        """Look at what the delay file has not seen."""
        limit = self.leader.log.next_offset
        while self.delays.covered_offset < limit and self._scan(self.delays.covered_offset, limit):
            pass

    def find_delays(self) -> None:
        """Look at the whole log for delayed messages: no file tells of them."""
        self.delays.covered_offset = self.leader.log.start_offset
        self._scan_for_delays()
        if self.leader.aborted:
            self.delays.abort(self.leader.aborted & self.delays.table.waiting)

    # --- inside --------------------------------------------------------------------------------

    def tell_position(self, one: GroupCursor, before: int) -> None:
        """Tell of the group's position if it has advanced since it was there."""
        if one.cursor.floor > before:
            self.leader.observe(events.PositionCommitted(*self.leader.origin, one.group, one.cursor.floor))

    def _tell_settled(
        self, one: GroupCursor, kind: str, offsets: BitMap64, delivery: Delivery | None = None, reason: str = ""
    ) -> None:
        member, delivered_ns = ("", 0) if delivery is None else (delivery.member, delivery.started_ns)
        self.leader.observe(
            events.MessagesSettled(
                *self.leader.origin, one.group, kind, len(offsets), member, offsets, delivered_ns, reason
            )
        )

    def _tell_lost(self, one: GroupCursor, member: str, offsets: BitMap64, reason: str) -> None:
        self.leader.observe(events.LeasesLost(*self.leader.origin, one.group, member, offsets, reason))

    def _unpark(self, one: GroupCursor, offsets: BitMap64) -> None:
        if offsets:
            one.cursor.put_back(offsets, now_ns=self._clock.monotonic_ns())
            self._wake(one.group)

    def _let_go(self, one: GroupCursor, done: BitMap64) -> None:
        """These are done, whoever had them."""
        for member, (before, last, poll) in one.handed.items():
            one.handed[member] = Handed(before - done, last - done, poll)
        if one.keys is not None:
            self._unpark(one, one.keys.drop(done))


def lane_config(config: TopicConfig) -> LaneConfig:
    """How the lanes of the topic share."""
    return LaneConfig(
        weights=config.priority_weights,
        strict=config.priority_mode == "strict",
        boost_ns=config.priority_boost_ms * MS,
    )


def _policy(config: TopicConfig) -> RetryPolicy:
    return RetryPolicy(
        max_deliveries=config.max_deliveries,
        backoff_initial_ns=config.backoff_initial_ms * MS,
        backoff_max_ns=config.backoff_max_ms * MS,
    )
