"""Delivery from one partition: what all groups share, and the groups themselves.

    publish ──> appended ──> index, delays            tick ──> fire delays, expire messages and leases
    poll, settle ──> GroupDelivery (`group_delivery.py`), one for each group

The index and the delays follow the log. The ledger is replayed when the partition is first delivered from: it restores
the cursor of each group, changes of delays, and facts about redrives.

Delays and times to live go by the wall clock, which may be set; leases and retries go by the monotonic clock. When the
wall clock jumps, delays are moved with it, so that they take as long as they would have taken without the jump.
"""

from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import count as counter

from pyroaring import BitMap64

from goqueue import events
from goqueue.broker.delivery import stored_delays
from goqueue.broker.delivery.group_delivery import Copies, GroupDelivery
from goqueue.broker.delivery.stored_cursor import CursorReplay, StoredCursor, ledger_shift_ns
from goqueue.broker.delivery.stored_delays import StoredDelays
from goqueue.broker.partition.leader import PartitionLeader
from goqueue.broker.partition.record_fetcher import RecordFetcher
from goqueue.clock import MS, Clock
from goqueue.delivery import redrive_facts
from goqueue.delivery.cursor import Cursor
from goqueue.delivery.due_lately import DueLately
from goqueue.delivery.index import PartitionIndex
from goqueue.delivery.lanes import LaneConfig
from goqueue.delivery.ledger import DeadLettering
from goqueue.delivery.offsets import span
from goqueue.delivery.retry import RetryPolicy
from goqueue.delivery.wall_anchor import TOLERANCE_NS, KnownBehind, WallAnchor, earliest_now
from goqueue.errors import OffsetOutOfRange, StorageError
from goqueue.record import kernel
from goqueue.record.header import OFFSET_MAX, Buffer, Flags, Priority, first_record
from goqueue.service.pending import Pending
from goqueue.storage.log import Appended
from goqueue.topics.config import TopicConfig

SCAN_BYTES = 4 * 1024 * 1024
"""How much of the log is read at once when a cursor comes to a stretch that is not in the index."""
TIMESTAMP_AT = 16  # in a record
_PLAIN_PRIORITIES = 1 << Priority.NORMAL
_SPECIAL = int(Flags.HAS_HEADERS | Flags.CONTROL)


class PartitionDelivery:
    """All groups on one partition. Belongs to the owner of the partition.

    `dead_letter` copies messages of a group to the dead-letter topic, or redrives them; `resume_dead_letters` continues
    what was under way before a restart. `wake` says that a group may have something to poll; `wake_at` when `tick` has
    to be called.
    """

    def __init__(
        self,
        leader: PartitionLeader,
        config: TopicConfig,
        *,
        clock: Clock,
        boot: int,
        make_salt: Callable[[], bytes],
        wake: Callable[[str], None],
        dead_letter: Callable[[GroupDelivery, DeadLettering], Pending[Copies]],
        resume_dead_letters: Callable[[GroupDelivery, Sequence[DeadLettering]], None],
        wake_at: Callable[[int], None],
    ) -> None:
        self.leader = leader
        self.config = config
        self.clock = clock
        self.wake = wake
        self.dead_letter = dead_letter
        self._resume_dead_letters = resume_dead_letters
        self._make_salt = make_salt
        self._wake_at = wake_at
        self.delivery_ids: Iterator[int] = counter((boot << 32) + 1)  # unique over restarts: receipts name them
        self.retries = _policy(config)
        self.index = PartitionIndex()
        self.fetcher = RecordFetcher(leader)
        self.groups: dict[str, GroupDelivery] = {}
        self._by_tag: dict[bytes, GroupDelivery] = {}
        log, file = leader.log, leader.partition.delay_file
        unseen_from = log.start_offset if file.exists else leader.search.unfiled_from
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
        self._unchecked_from: int | None = None  # where to look for records that compaction has removed
        self.redrive_facts: dict[bytes, bytes] = {}
        self.due_ns: int | None = None  # when `tick` has something to do, at the earliest
        self._wall_due_ns = OFFSET_MAX  # the same for what goes by the wall clock
        # The order matters: the ledger knows changes of delays that the file may not know; the scan reads what neither
        # has seen; only then is it known which delays belong to aborted transactions, and which the clock has to move.
        self._replay_ledger()
        self._scan_for_delays()
        if leader.aborted:
            self.delays.abort(leader.aborted & self.delays.table.waiting)
            self.delays.cancelled -= leader.aborted  # the file does not tell cancelled from aborted messages
        self._correct_delays()
        self.delays.mend()
        self._note_wall_time(self.delays.table.next_ns)

    # --- the log ----------------------------------------------------------------------------------

    def appended(self, records: Buffer, appended: Appended) -> None:
        """A batch was appended to the log."""
        first, end = appended.first_offset, appended.last_offset + 1
        is_normal = appended.priorities == _PLAIN_PRIORITIES
        if is_normal and not appended.flags & _SPECIAL:
            self.index.cover_plain(first, end)
            self.delays.schedule(b"", end_offset=end, wall_ns=0)
        elif is_normal and not appended.later_flags & _SPECIAL:  # only the first has headers, its producer's
            self._tell_delayed(self._cover(first, first + 1, first_record(records)))
            self.index.cover_plain(first + 1, end)
            self.delays.schedule(b"", end_offset=end, wall_ns=0)
        else:
            self._tell_delayed(self._cover(first, end, records))

    @property
    def dead_letter_topic(self) -> str:
        """Where dead letters go from now on."""
        return self.config.dead_letter_topic_of(self.leader.origin.topic)

    def configured(self, config: TopicConfig) -> None:
        """The settings of the topic have changed."""
        self.config = config
        self.retries = _policy(config)
        for group_delivery in self.groups.values():
            group_delivery.cursor.lanes.config = lane_config(config)

    def compacted(self) -> None:
        """The log was compacted, up to its `cleaned_offset`: messages in the index may be gone."""
        self._unchecked_from = self.leader.log.start_offset

    def find_removed(self) -> bool:
        """Hide what compaction has removed from the next stretch of the log; returns whether there was a stretch.

        Only counts need this. A delivery notices a removed record when it fetches it.
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
        """Index the next stretch in that range that is not indexed; returns whether there was one."""
        at = self.index.covered_until(start)
        return at < end and self.scan(at, end)

    def scan(self, start: int, limit: int) -> bool:
        """Index a stretch of the log that begins at `start`; returns whether there was anything."""
        try:
            chunk = self.fetcher.chunk(start, limit, SCAN_BYTES)
        except OffsetOutOfRange:
            return False
        if chunk.next_offset <= start:
            return False
        if self._cover(start, chunk.next_offset, chunk.records) and start < self.leader.search.known_from:
            self.leader.find_delays()
        return True

    def _cover(self, start: int, end: int, records: Buffer) -> bytes:
        """Index records; returns the entries of the delayed ones."""
        ttl_ns = None if self.config.ttl_ms is None else self.config.ttl_ms * MS
        outline = kernel.outline(records)
        self.index.cover(start, end, outline, ttl_ns=ttl_ns)
        if outline.delayed:
            stored_ns = int.from_bytes(memoryview(records)[TIMESTAMP_AT : TIMESTAMP_AT + 8])
            self.delays.schedule(outline.delayed, end_offset=end, wall_ns=self._wall_ns(), stored_ns=stored_ns)
            if not self.leader.log.has_delays:
                with suppress(StorageError):  # the next delayed message tries again
                    self.leader.log.mark_delayed()
        else:
            self.delays.schedule(b"", end_offset=end, wall_ns=0)
        self._note_wall_time(self.delays.table.next_ns)
        self._note_wall_time(self.index.next_expiry_ns)
        return outline.delayed

    def _tell_delayed(self, entries: bytes) -> None:
        """Emit the delays of messages that were stored just now."""
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

    def drop_below(self, offset: int) -> None:
        """The log begins at the offset now."""
        self.index.drop_below(offset)
        if self.fetcher.damage.offsets:
            self.fetcher.damage.drop_below(offset)
        gone = self.delays.drop(offset)
        if facts := self.delays.forgotten(offset):
            with suppress(StorageError):  # records about removed messages only take space
                self.leader.ledger.write(facts, flush=False)
                self.leader.wrote_ledger()
        if gone:
            topic, partition = self.leader.origin
            self.leader.observe(events.DelaysExpired(topic, len(gone), partition, gone))
        for group_delivery in self.groups.values():
            group_delivery.drop_below(offset)

    @property
    def keep_from(self) -> int | None:
        """The first offset that retention has to keep.

        It keeps delayed messages until they are due, and then for as long as it keeps others.
        """
        waiting = self.delays.table.waiting
        lately = self._due_lately.first(now_ns=self.clock.wall_ns())
        if not waiting:
            return lately
        return waiting.min() if lately is None else min(lately, waiting.min())

    # --- what groups and readers may see ----------------------------------------------------------

    def hidden_from(self, group: str) -> BitMap64:
        """What the group never gets: what no group gets, and messages that were redriven to other groups."""
        others = self.index.for_others(group)
        return self.never if others is None else self.never | others

    @property
    def never(self) -> BitMap64:
        """What no group gets: control records and gaps, damaged, cancelled and aborted messages."""
        never = self.index.hidden
        if self.fetcher.damage.offsets:
            never = never | self.fetcher.damage.offsets
        if self.delays.cancelled:
            never = never | self.delays.cancelled
        return never | self.leader.aborted if self.leader.aborted else never

    def hidden(self, start: int, end: int) -> BitMap64:
        """What a reader may not see in that range: messages that are not due yet, or were cancelled."""
        next_ns = self.delays.table.next_ns
        if next_ns is not None and next_ns <= self._wall_ns():
            self._fire()
        return self.delays.hidden(start, end)

    def expired(self) -> BitMap64:
        """Everything whose time to live is over, by its own header or the topic's setting."""
        self.index.expire(self.clock.wall_ns())
        if self.config.ttl_ms is None:
            return self.index.expired
        before = self.leader.log.offset_at_time(self.clock.wall_ns() - self.config.ttl_ms * MS + 1)
        old = span(self.leader.log.start_offset, before)
        old -= self.index.own_expiry
        return old | self.index.expired

    @property
    def cancelled(self) -> BitMap64:
        """Delayed messages that will never be due."""
        return self.delays.cancelled

    @property
    def rescheduled(self) -> Mapping[int, int]:
        """The due times of messages that were rescheduled, by offset."""
        return self.delays.rescheduled

    def aborted(self, offsets: BitMap64) -> None:
        """The transaction that wrote these was aborted: delayed messages among them are never due."""
        self.delays.abort(offsets)

    # --- groups -----------------------------------------------------------------------------------

    def group(self, name: str, *, start: str = "earliest") -> GroupDelivery:
        """The group; a new one starts at the beginning or the end of the log, and is written to the ledger."""
        found = self.groups.get(name)
        if found is None:
            floor = self.leader.log.start_offset if start == "earliest" else self.leader.last_stable_offset
            salt = self._make_salt()
            stored = StoredCursor(self.leader, name, self.new_cursor(floor), salt=salt, clock=self.clock)
            found = self._add(stored)
            stored.write_whole()
        return found

    def find(self, tag: bytes) -> GroupDelivery | None:
        """The group whose receipts have that tag."""
        return self._by_tag.get(tag)

    def forget(self, name: str) -> int:
        """The group is deleted; returns the offset in the ledger after which that is certain."""
        found = self.groups.get(name)
        if found is None:
            return 0
        end = found.stored.delete()
        found.is_deleted = True
        del self.groups[name], self._by_tag[found.tag]
        return end

    def new_cursor(self, floor: int) -> Cursor:
        """A cursor that starts at the offset."""
        return Cursor(
            floor=floor,
            lanes=lane_config(self.config),
            split=self.index.split,
            now_ns=self.clock.monotonic_ns(),
        )

    def _add(self, stored: StoredCursor) -> GroupDelivery:
        added = GroupDelivery(self, stored)
        self.groups[added.group] = self._by_tag[added.tag] = added
        return added

    def resume(self) -> None:
        """Continue what was under way before a restart."""
        for group_delivery in self.groups.values():
            if group_delivery.stored.dead_letterings:
                self._resume_dead_letters(group_delivery, list(group_delivery.stored.dead_letterings))

    # --- delays -----------------------------------------------------------------------------------

    def change_delays(self, offsets: BitMap64, due_ns: int | None) -> Pending[None]:
        """Cancel delayed messages, or give them another due time; done when that is durable."""
        end = self.leader.ledger.write(self.delays.facts(offsets, due_ns))
        self.delays.change(offsets, due_ns, wall_ns=self._wall_ns())
        self.leader.wrote_ledger()
        if due_ns is None:
            for group_delivery in self.groups.values():
                group_delivery.cursor.hide(offsets)
            topic, partition = self.leader.origin
            self.leader.observe(events.DelaysCancelled(topic, len(offsets), partition, offsets))
        else:
            self.leader.observe(
                events.DelaysBegun(*self.leader.origin, offsets.copy(), array("q", [due_ns]) * len(offsets))
            )
        self._note_wall_time(self.delays.table.next_ns)
        return self.leader.ledger.when_stored(end)

    def _fire(self) -> None:
        """Make delayed messages ready that are due."""
        wall_ns = self._wall_ns()
        fired = self.delays.fire(wall_ns)
        if fired.offsets:
            lateness_ns = wall_ns - fired.oldest_due_ns
            retention_ns = self.config.retention_ms * MS
            self._due_lately.note(fired.offsets.min(), now_ns=wall_ns, retention_ns=retention_ns)
            topic, partition = self.leader.origin
            self.leader.observe(events.DelaysFired(topic, len(fired.offsets), lateness_ns, partition, fired.offsets))
            for group_delivery in self.groups.values():
                if group_delivery.cursor.fire(fired.offsets, now_ns=self.clock.monotonic_ns()):
                    self.wake(group_delivery.group)

    def find_delays(self) -> None:
        """Scan the whole log for delayed messages: there is no delay file."""
        self.delays.covered_offset = self.leader.log.start_offset
        self._scan_for_delays()
        if self.leader.aborted:
            self.delays.abort(self.leader.aborted & self.delays.table.waiting)

    def _scan_for_delays(self) -> None:
        """Scan what the delay file does not cover."""
        limit = self.leader.log.next_offset
        while self.delays.covered_offset < limit and self.scan(self.delays.covered_offset, limit):
            pass

    # --- time -------------------------------------------------------------------------------------

    def tick(self) -> None:
        """Fire delays, expire messages and leases, and make retries ready, if any is due."""
        wall_ns = self._wall_ns()
        now_ns = self.clock.monotonic_ns()
        if (self.due_ns is None or now_ns < self.due_ns) and wall_ns < self._wall_due_ns:
            if self.due_ns is not None:
                self._wake_at(self.due_ns)
            return
        self.due_ns, self._wall_due_ns = None, OFFSET_MAX
        self._fire()
        expired = self.index.expire(wall_ns)
        for group_delivery in self.groups.values():
            if expired:
                group_delivery.expire_messages(expired)
            next_ns = group_delivery.cursor.next_ns
            if next_ns is not None and next_ns <= now_ns:
                group_delivery.pass_time()
            self.note_time(group_delivery.cursor.next_ns)
        self._note_wall_time(self.delays.table.next_ns)
        self._note_wall_time(self.index.next_expiry_ns)

    def note_time(self, at_ns: int | None) -> None:
        """A cursor has something to do at that time, by the monotonic clock."""
        if at_ns is not None and (self.due_ns is None or at_ns < self.due_ns):
            self.due_ns = at_ns
            self._wake_at(at_ns)

    def _note_wall_time(self, at_ns: int | None) -> None:
        """The partition has something to do at that time, by the wall clock, even if that is set meanwhile."""
        if at_ns is not None:
            self._wall_due_ns = min(self._wall_due_ns, at_ns)
            self.note_time(at_ns - self._anchor.shift_ns)

    def _wall_ns(self) -> int:
        """The wall clock. If it was set, delays are first moved with it."""
        now_ns, wall_ns = self.clock.monotonic_ns(), self.clock.wall_ns()
        jump_ns = self._anchor.jump_ns(now_ns=now_ns, wall_ns=wall_ns)
        if not jump_ns:
            return wall_ns
        if self.clock.monotonic_ns() - now_ns > TOLERANCE_NS:  # the process was suspended between the two readings
            return wall_ns
        self._anchor.shift_ns += jump_ns
        self._move_delays(jump_ns, wall_ns)
        for group_delivery in self.groups.values():
            if group_delivery.cursor.next_ns is not None:  # the ledger has leases and backoffs by the clock as it was
                with suppress(StorageError):
                    group_delivery.stored.write_whole(flush=False)
        self.due_ns = now_ns  # times to live have moved, too
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
        """Store that the clock is earlier than the newest record and delays are correct, for the next restart."""
        wall_ns, newest_ns = self.clock.wall_ns(), self._newest_ns
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
        """After a restart with an earlier wall clock: delays do not become longer by that."""
        wall_ns = self.clock.wall_ns()
        behind_ns = earliest_now(self._newest_ns, self._known_behind) - wall_ns
        if behind_ns > TOLERANCE_NS and self.delays.table.waiting:
            self._move_delays(-behind_ns, wall_ns)

    # --- the ledger -------------------------------------------------------------------------------

    def _replay_ledger(self) -> None:
        has_ledger = self.leader.partition.has_ledger
        shift_ns = ledger_shift_ns(self.leader, self.clock) if has_ledger else 0
        cursors = CursorReplay(self.leader, clock=self.clock, make_cursor=self.new_cursor)
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
                cursors.replay(key, value, shift_ns=shift_ns)
        for stored in cursors.by_group.values():
            if stored.cursor.cut(self.leader.log.next_offset):
                stored.is_dirty = True
            self.note_time(stored.cursor.next_ns)
            self._add(stored)
        if self.delays.stale_keys:  # of records that a power failure has lost: new records get their offsets
            with suppress(StorageError):
                self.leader.ledger.write([(key, None) for key in self.delays.stale_keys])
        self.drop_below(self.leader.log.start_offset)

    def write_redrive_facts(self, facts: Sequence[tuple[bytes, bytes | None]], *, flush: bool) -> int:
        """Write facts about redrives; returns the offset in the ledger after them. Raises `StorageError`."""
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


def lane_config(config: TopicConfig) -> LaneConfig:
    """How the lanes of the topic share deliveries."""
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
