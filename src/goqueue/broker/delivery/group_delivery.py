"""Delivery from one partition to one group: leases, settlements, retries, dead letters.

    poll ──> deliver ──> feed, take, read, lease ──> ledger ──> the records
    a repeated poll ──> deliver_again ──> read, reissue ──> ledger ──> the same records
    ack, nack, reject, extend, release ──> settle ──> ledger ──> cursor ──> the floor advances
    time, a lost member, an aborted transaction ──> cursor ──> retry or dead letter ──> ledger

A request of a member is written to the ledger before it takes effect, so a refused request has changed nothing. An
expired lease or a lost member takes effect in any case; if the disk refuses the write, the next write is the whole
cursor (`stored_cursor.py`).

A member may number its polls. A poll that has the number of the one before repeats it, because its answer was lost.
What the lost answer held is delivered again at once, as if for the first time, and the damage that it reported is
reported again. The numbers are kept with what they have brought: with the open delivery, which the ledger has, too, or
with the messages that were handed over. So it makes no difference over which connection or door the poll is repeated,
and a restart between the two forgets only which damage was reported.

`PartitionShare` has what all groups of a partition share: its index, its delays, its records.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple, Protocol, TypeAlias

import msgspec
from pyroaring import BitMap64

from goqueue import events
from goqueue.broker.delivery.gap_reports import GapReports
from goqueue.broker.delivery.run_reader import ReadRuns, cut_redelivered, first_of, in_key_order, read_runs
from goqueue.broker.delivery.stored_cursor import StoredCursor, ledger_time
from goqueue.broker.delivery.stored_delays import StoredDelays
from goqueue.broker.partition.leader import PartitionLeader
from goqueue.broker.partition.record_fetcher import RecordFetcher
from goqueue.clock import Clock
from goqueue.delivery import ledger
from goqueue.delivery.cursor import Cursor, Failed, OpenDelivery, Transaction
from goqueue.delivery.dead_letter import ERROR_CHARACTERS_MAX, EXPIRED, MAX_DELIVERIES, REDRIVEN, REJECTED, TIMEOUT
from goqueue.delivery.handed import HandedOver
from goqueue.delivery.index import PartitionIndex
from goqueue.delivery.key_order import KeyOrder
from goqueue.delivery.lane_stats import LaneStats
from goqueue.delivery.lanes import LaneRun
from goqueue.delivery.ledger import DeadLettering
from goqueue.delivery.offsets import between
from goqueue.delivery.receipts import group_tag, make_nonce
from goqueue.delivery.retry import RetryPolicy
from goqueue.errors import GoQueueError, GroupNotFound, ReceiptExpired, ReceiptUnknown, StorageError
from goqueue.record.header import OFFSET_MAX, Buffer
from goqueue.service.pending import Pending, after, chained
from goqueue.topics.config import TopicConfig
from goqueue.wire import reports

AHEAD_MAX = 200_000
"""How many messages may be ready before the log is read no further than needed."""
CANDIDATES_MAX = 20_000
"""How many messages one poll of a key-shared group may find parked before it gives up until the next."""
GIVEN_UP_MAX = 10_000
"""How many dead letters are remembered, to tell a late ack of one from a second ack."""

Copies: TypeAlias = dict[int, tuple[int, int]]
"""Where the copies of messages are, by the offsets of the messages: partition and offset in the target topic."""


class Settling(NamedTuple):
    """The outcome of a settlement, and when it is durable."""

    stored: Pending[Copies]  # the dead letters that it made
    at_ns: int = 0  # wall clock: the next delivery, or the new deadline
    next_count: int = 0


class DeliveredMessages(NamedTuple):
    """Messages that were leased to a member, or handed over without a lease."""

    delivery_id: int
    offsets: BitMap64
    records: Sequence[Buffer]
    flags: int
    counts: dict[int, int]
    deadline_ns: int  # wall clock; 0 without a lease
    left: int = 0  # how many messages of a repeated poll did not fit


class PartitionShare(Protocol):
    """What the groups on a partition share. Changes of `config` and `retries` count from the next use on."""

    leader: PartitionLeader
    config: TopicConfig
    retries: RetryPolicy
    index: PartitionIndex
    delays: StoredDelays
    fetcher: RecordFetcher
    clock: Clock
    delivery_ids: Iterator[int]
    wake: Callable[[str], None]
    dead_letter: "Callable[[GroupDelivery, DeadLettering], Pending[Copies]]"

    @property
    def dead_letter_topic(self) -> str: ...
    @property
    def never(self) -> BitMap64: ...
    def hidden_from(self, group: str) -> BitMap64: ...
    def expired(self) -> BitMap64: ...
    def scan(self, start: int, limit: int) -> bool: ...
    def cover_next(self, start: int, end: int) -> bool: ...
    def forget(self, name: str) -> int: ...
    def drop_below(self, offset: int) -> None: ...
    def new_cursor(self, floor: int) -> Cursor: ...
    def note_time(self, at_ns: int | None) -> None: ...


class GroupDelivery:
    """One group on one partition: each transition of a message goes to the ledger, and to the cursor."""

    # More than 40 methods: each transition of a message (deliver, settle, fail, expire, hold, dead-letter, redrive) is
    # a write to the ledger and then the same change of the cursor. All of them share the cursor, the order of keys and
    # what was handed over. What decides without writing has a class of its own: `Cursor`, `KeyOrder`, `GapReports`.

    __slots__ = (
        "_clock",
        "_lane_stats",
        "cursor",
        "expired_by_member",
        "expired_leases",
        "gaps",
        "given_up",
        "group",
        "handed",
        "is_deleted",
        "keys",
        "leader",
        "partition",
        "stored",
        "tag",
    )

    def __init__(self, partition: PartitionShare, stored: StoredCursor) -> None:
        self.partition = partition
        self.leader = partition.leader
        self.stored = stored
        self.cursor = stored.cursor
        self.group = stored.group
        self.tag = group_tag(stored.group)
        self._clock = partition.clock
        self.keys: KeyOrder | None = None  # of a key-shared group
        self.handed = HandedOver()  # in a group without leases
        self.is_deleted = False
        self.expired_leases = 0  # since the broker started
        self.expired_by_member: dict[str, int] = {}
        self.given_up = BitMap64()  # dead letters since the start whose last lease had expired; the newest of them
        self.gaps = GapReports()
        self._lane_stats: LaneStats | None = None  # a restart makes thousands of cursors, most of which stay idle

    @property
    def ended(self) -> GoQueueError | None:
        """Why nothing more may be done for the group here, if so: the partition has ended, or the group was deleted."""
        return self.leader.ended or (GroupNotFound(self.group) if self.is_deleted else None)

    @property
    def lane_stats(self) -> LaneStats:
        """How the lanes of the group have moved since the start."""
        if self._lane_stats is None:
            self._lane_stats = LaneStats()
        return self._lane_stats

    @property
    def lag(self) -> int:
        """Readable messages that are not done: without those that are delayed, and those that no group ever gets.

        What the index has not seen yet counts as messages, control records and gaps of compaction included.
        """
        cursor, partition = self.cursor, self.partition
        start, end = max(cursor.floor, self.leader.log.start_offset), self.leader.last_stable_offset
        if start >= end:
            return 0
        hidden = partition.delays.table.waiting.range_cardinality(start, end)
        if cursor.frontier < end:  # below the frontier the cursor counts hidden messages as done
            hidden += (partition.never - cursor.acked).range_cardinality(max(start, cursor.frontier), end)
        return max(0, end - start - len(cursor.acked) - hidden)

    # --- delivering ----------------------------------------------------------------------------

    def feed(self, wanted: int, *, until: int = OFFSET_MAX) -> None:
        """Admit messages from the log until so many are ready, or there are no more below the offset.

        It reads one stretch more than needed: an urgent message may be far after others.
        """
        partition, cursor = self.partition, self.cursor
        index = partition.index
        start, limit = self.leader.log.start_offset, min(self.leader.last_stable_offset, until)
        has_looked_ahead = False
        if cursor.floor < start:
            partition.drop_below(start)
        while cursor.frontier < limit:
            end = min(index.covered_until(cursor.frontier), limit)
            if end == cursor.frontier:
                is_enough = len(cursor.lanes) >= wanted
                if is_enough and (has_looked_ahead or len(cursor.lanes) >= AHEAD_MAX):
                    return
                has_looked_ahead = is_enough
                if not partition.scan(cursor.frontier, limit):
                    return
                continue
            damaged = partition.fetcher.damage.offsets
            if damaged:
                self.gaps.add(between(damaged, cursor.frontier, end) - cursor.acked)
            cursor.admit(
                end,
                lanes=index.lanes,
                hidden=partition.hidden_from(self.group),
                delayed=partition.delays.table.waiting,
                now_ns=self._clock.monotonic_ns(),
            )

    def deliver(
        self,
        member: str,
        *,
        count: int,
        redelivered_max: int,
        max_bytes: int,
        lease_ns: int | None,
        is_fed: bool = False,
        poll: int = 0,
        number: int = 0,
    ) -> DeliveredMessages | None:
        """The next messages for the member; without a lease they are handed over, until the position is committed.

        At most `count`, and at most `redelivered_max` of those that were delivered before, which is positive.
        `is_fed` says that the cursor has just been fed with at least that count; `poll` counts the polls of the member,
        and `number` is what the member calls this one.
        """
        now_ns = self._clock.monotonic_ns()
        next_ns = self.cursor.next_ns
        if next_ns is not None and next_ns <= now_ns:
            self.pass_time()
        # In a key-shared group everything that was taken may turn out to be parked: then it takes the next ones.
        for _ in range(CANDIDATES_MAX // count + 1):
            if not is_fed:
                self.feed(count)
            is_fed = False
            runs = self._take(count, now_ns)
            if not runs:
                return None
            cut: list[LaneRun] = []
            if count > redelivered_max:
                runs, cut = cut_redelivered(runs, self.cursor.delivered_before, redelivered_max)
            delivered = self._lease(member, runs, cut, max_bytes, lease_ns, now_ns, poll, number)
            if delivered:
                return delivered
        self.partition.wake(self.group)
        return None

    def _take(self, count: int, now_ns: int) -> list[LaneRun]:
        """The next messages that have not expired."""
        while runs := self.cursor.take(count, now_ns=now_ns):
            expired = self.partition.expired()
            if not expired or not any(offsets.intersect(expired) for _, offsets in runs):
                return runs
            good = []
            for lane, offsets in runs:
                over = offsets & expired
                self.cursor.untake([LaneRun(lane, over)])
                if len(over) < len(offsets):
                    good.append(LaneRun(lane, offsets - over))
            self.expire_messages(expired)
            if good:
                return good
        return []

    def _lease(
        self,
        member: str,
        runs: list[LaneRun],
        cut: list[LaneRun],
        max_bytes: int,
        lease_ns: int | None,
        now_ns: int,
        poll: int,
        number: int,
    ) -> DeliveredMessages | None:
        cursor = self.cursor
        try:
            records, flags, delivered, left, gone = read_runs(self.partition.fetcher, runs, max_bytes)
        except Exception:
            cursor.untake([*runs, *cut])
            raise
        self._pass_over(gone)
        if left or cut:
            cursor.untake([*left, *cut])
        if delivered and self.keys is not None:
            records, delivered = in_key_order(self.keys, member, records, now_ns=self._clock.wall_ns())
        if not delivered:
            return None
        wall_ns = self._clock.wall_ns()
        delivery_id = next(self.partition.delivery_ids)
        if lease_ns is None:
            self.handed.add(member, delivered, poll=poll, number=number)
        else:
            try:
                self._note_lease(delivery_id, member, delivered, lease_ns, wall_ns, number)
            except StorageError:
                cursor.return_taken(delivered, now_ns=now_ns)
                if self.keys is not None:
                    self._unpark(self.keys.returned(delivered))
                raise
            cursor.lease(delivery_id, member, delivered, deadline_ns=now_ns + lease_ns, wall_ns=wall_ns, poll=number)
            self.partition.note_time(now_ns + lease_ns)
        made = self._delivered(delivery_id, member, delivered, records, flags, lease_ns)
        self.lane_stats.note_delivered(records, made.counts, wall_ns=wall_ns)
        if cursor.lanes.boosted is not None:
            self.lane_stats.boosts[cursor.lanes.boosted] += 1
            self.leader.observe(events.LaneBoosted(self.leader.origin.topic, cursor.lanes.boosted))
        return made

    def _note_lease(
        self, delivery_id: int, member: str, offsets: BitMap64, lease_ns: int, wall_ns: int, number: int
    ) -> None:
        until_ns = ledger_time(self.leader, wall_ns) + lease_ns
        change = ledger.Leased(delivery_id, member, wall_ns, until_ns, ledger.blob(offsets), number)
        self.stored.note(change, flush=False)

    def _delivered(
        self,
        delivery_id: int,
        member: str,
        offsets: BitMap64,
        records: Sequence[Buffer],
        flags: int,
        lease_ns: int | None,
    ) -> DeliveredMessages:
        size = sum(map(len, records))
        counts = {offset: count + 1 for offset, count in self.cursor.redelivered(offsets).items()}
        self.leader.observe(
            events.MessagesDelivered(
                *self.leader.origin, self.group, len(offsets), size, len(counts), member, offsets, counts
            )
        )
        deadline_ns = 0 if lease_ns is None else self._clock.wall_ns() + lease_ns
        # A copy, because the delivery's own set shrinks when its messages are settled.
        return DeliveredMessages(delivery_id, offsets.copy(), records, flags, counts, deadline_ns)

    def _pass_over(self, gone: BitMap64) -> None:
        """The log no longer has these: they are done."""
        if gone:
            self.gaps.add(gone & self.partition.fetcher.damage.offsets)
            self.cursor.commit(gone)
            self._forget_done(gone)
            self.stored.note_if_possible(ledger.Finished(ledger.blob(gone)))

    # --- repeated polls ------------------------------------------------------------------------

    def has_answered(self, member: str, number: int) -> bool:
        """Whether the member's last poll has that number, and its answer held anything of this partition."""
        has_messages = bool(self.cursor.polled(member, number) or self.handed.polled(member, number))
        return has_messages or self.gaps.has_reported(member, number)

    def deliver_again(
        self, member: str, number: int, *, count: int, max_bytes: int, lease_ns: int
    ) -> DeliveredMessages | None:
        """What the lost answer to the member's poll of that number held. What is over the limits is released.

        The messages get new receipts: if the lost answer arrives after all, or the door that could not send it releases
        its messages, the old receipts settle nothing.
        """
        self.gaps.report_again(member, number)
        now_ns, wall_ns = self._clock.monotonic_ns(), self._clock.wall_ns()
        lost = self.cursor.polled(member, number)
        offsets = BitMap64() if lost else self.handed.polled(member, number)
        for one in lost:
            offsets |= self.cursor.leased(one.id, one.offsets, now_ns=now_ns)
        if not offsets:
            return None
        delivery_id = next(self.partition.delivery_ids)
        read = ReadRuns((), 0, BitMap64(), [], BitMap64())
        try:
            runs = first_of(self.partition.index.split(offsets), count)
            if runs:
                read = read_runs(self.partition.fetcher, runs, max_bytes)
            if lost and read.offsets:
                self._note_lease(delivery_id, member, read.offsets, lease_ns, wall_ns, number)
        except Exception:
            self._release_lost(lost, offsets)
            raise
        left = offsets - read.offsets - read.gone
        if lost and read.offsets:  # first: a write of what follows may be a snapshot of the whole cursor
            deadline_ns = now_ns + lease_ns
            self.cursor.reissue(lost, delivery_id, read.offsets, deadline_ns=deadline_ns, wall_ns=wall_ns)
            self.partition.note_time(deadline_ns)
        self._release_lost(lost, left)
        self._pass_over(read.gone)
        if not read.offsets:
            return None
        again = self._delivered(delivery_id, member, read.offsets, read.records, read.flags, lease_ns if lost else None)
        return again._replace(left=len(left))

    def _release_lost(self, lost: Sequence[OpenDelivery], offsets: BitMap64) -> None:
        """Make ready what a lost answer held, as if it had not been delivered; none: it was handed over."""
        if not lost and offsets:
            self.handed.discard(offsets)
            self._return_handed(offsets)
        for one in lost:
            part = one.offsets & offsets
            if part:
                self._release(one.id, part, counts=False)
                self.stored.note_if_possible(ledger.Released(one.id, False, ledger.blob(part)))

    def forget_poll(self, member: str) -> None:
        """The member counts its polls anew: a number that comes again repeats no poll of before."""
        self.cursor.forget_poll(member)
        self.handed.forget_poll(member)
        self.gaps.forget(member)

    def nonce(self, delivery_id: int) -> str:
        """The nonce that all receipts of a delivery share."""
        return make_nonce(self.tag, delivery_id, self.stored.salt)

    def lowest_not_handed(self) -> int:
        """The lowest offset that the group has not received."""
        cursor = self.cursor
        offsets = [lane.min() for lane in (*cursor.lanes.ready, cursor.delayed) if lane]
        if self.keys is not None and (parked := self.keys.lowest_parked()) is not None:
            offsets.append(parked)
        return min(offsets, default=cursor.frontier)

    @property
    def count_bytes(self) -> int:
        """The room that an answer needs for the delivery count of one message, at most."""
        most = self.cursor.delivery_count_max
        return len(msgspec.msgpack.encode((self.leader.log.next_offset, most + 1))) - 1 if most else 1

    def take_gaps(self, most: int, *, member: str, number: int = 0) -> list[reports.PartitionGap]:
        """The damaged ranges that the cursor has passed and no poll has reported, `most` of them at most."""
        return [
            reports.PartitionGap(
                topic=self.leader.origin.topic,
                partition=self.leader.origin.partition,
                first_offset=gap.first_offset,
                next_offset=gap.next_offset,
                reason=gap.reason,
            )
            for gap in self.gaps.take(self.partition.fetcher.damage, most, member=member, number=number)
        ]

    # --- the order of keys ---------------------------------------------------------------------

    def use_key_order(self, is_used: bool) -> None:
        """Let the group deliver in the order of keys, or no longer.

        After a restart the log tells the keys of messages that are delivered and not settled. They have to be held
        before anything else happens to these messages: one that fails keeps its key.
        """
        if is_used == (self.keys is not None):
            return
        if self.keys is not None:
            keys, self.keys = self.keys, None
            self.cursor.return_taken(keys.parked, now_ns=self._clock.monotonic_ns())
            return
        self.keys = KeyOrder()
        now_ns, fetcher = self._clock.wall_ns(), self.partition.fetcher
        state = self.cursor.state()
        unsettled = [(one.member, one.offsets) for one in state.deliveries]
        unsettled += [(one.member, one.offsets) for one in state.held]
        for member, offsets in unsettled:
            for offset, key in fetcher.keys(offsets):
                if key is not None:
                    self.keys.resume(offset, key, member, in_flight=True, now_ns=now_ns)
        for offset, key in fetcher.keys(self.cursor.returned):
            if key is not None:
                self.keys.resume(offset, key, "", in_flight=False, now_ns=now_ns)

    def _unpark(self, offsets: BitMap64) -> None:
        if offsets:
            self.cursor.return_taken(offsets, now_ns=self._clock.monotonic_ns())
            self.partition.wake(self.group)

    def _forget_done(self, done: BitMap64) -> None:
        """These are done, in any state."""
        self.handed.discard(done)
        if self.keys is not None:
            self._unpark(self.keys.drop(done))

    # --- settling ------------------------------------------------------------------------------

    def refusal(self, delivery_id: int, offset: int) -> GoQueueError:
        """Why a receipt that names no lease is refused."""
        topic, partition = self.leader.origin
        cursor = self.cursor
        if offset in self.given_up:  # dead-lettered when its last lease expired; no consumer has settled it
            return ReceiptExpired(topic, partition, offset)
        if cursor.is_done(offset) or cursor.is_held(offset) or cursor.is_settled_back(delivery_id, offset):
            return ReceiptUnknown(topic, partition, offset, "settled")
        delivery = cursor.deliveries.get(delivery_id)
        was_delivered = offset < self.leader.last_stable_offset
        if delivery is not None:  # it still leases other messages, so all that it ever had are known
            was_delivered = offset in delivery.left or offset in delivery.late(now_ns=self._clock.monotonic_ns())
        return (ReceiptExpired if was_delivered else ReceiptUnknown)(topic, partition, offset)

    def settle(self, delivery_id: int, offsets: BitMap64, settlement: reports.Settlement) -> Settling:
        """Settle messages that this delivery has leased."""
        match settlement.action:
            case "ack":
                return self._ack(delivery_id, offsets)
            case "nack":
                return self._nack(delivery_id, offsets, settlement)
            case "reject":
                delivery, reason = self.cursor.deliveries[delivery_id], settlement.reason or "rejected by consumer"
                self.cursor.reject(delivery_id, offsets)
                self._tell_settled("reject", offsets, delivery, reason)
                return Settling(self._dead_letter(delivery_id, offsets, REJECTED, reason, delivery.member))
            case "extend":
                return self._extend(delivery_id, offsets, settlement.delay_ns or 0)
            case _:
                self.stored.note(ledger.Released(delivery_id, False, ledger.blob(offsets)), flush=False)
                self._release(delivery_id, offsets, counts=False)
                self.cursor.note_settled_back(delivery_id, offsets)
                return Settling(Pending.of({}))

    def _ack(self, delivery_id: int, offsets: BitMap64) -> Settling:
        delivery = self.cursor.deliveries[delivery_id]
        end = self.stored.note(ledger.Acked([(delivery_id, ledger.blob(offsets))]))
        self.cursor.ack(delivery_id, offsets)
        if self.keys is not None:
            self._unpark(self.keys.settled(offsets))
        self._count_done(offsets)
        self._tell_settled("ack", offsets, delivery)
        return _when_stored(self.leader, end)

    def _nack(self, delivery_id: int, offsets: BitMap64, settlement: reports.Settlement) -> Settling:
        delivery = self.cursor.deliveries[delivery_id]
        now_ns = self._clock.monotonic_ns()
        failed = self.cursor.judge(offsets, self.partition.retries, now_ns=now_ns, delay_ns=settlement.delay_ns)
        end = self.stored.note(self.stored.retried(delivery_id, failed)) if failed.requeued else 0
        self.cursor.fail(delivery_id, failed)
        for part in failed.requeued:
            self.cursor.note_settled_back(delivery_id, part.offsets)
        error = settlement.reason or "not acknowledged"
        self._tell_settled("nack", offsets, delivery, error)
        dead_lettered = self._follow_failure(delivery_id, delivery.member, failed, MAX_DELIVERIES, error)
        if not failed.requeued:
            return Settling(dead_lettered)
        first = min(failed.requeued, key=lambda part: part.at_ns)
        at_ns = first.at_ns + self._clock.wall_ns() - now_ns
        settling = _when_stored(self.leader, end, at_ns=at_ns, next_count=first.next_count)
        if not failed.dead:
            return settling
        return settling._replace(stored=chained(settling.stored, lambda _: dead_lettered))

    def _extend(self, delivery_id: int, offsets: BitMap64, by_ns: int) -> Settling:
        now_ns, wall_ns = self._clock.monotonic_ns(), self._clock.wall_ns()
        until_ns = ledger_time(self.leader, wall_ns) + by_ns
        self.stored.note(ledger.Extended(delivery_id, until_ns, ledger.blob(offsets)), flush=False)
        self.cursor.extend(delivery_id, offsets, deadline_ns=now_ns + by_ns)
        self.partition.note_time(now_ns + by_ns)
        self._tell_settled("extend", offsets, self.cursor.deliveries[delivery_id])
        return Settling(Pending.of({}), wall_ns + by_ns)

    def _release(self, delivery_id: int, offsets: BitMap64, *, counts: bool) -> None:
        self.cursor.release(delivery_id, offsets, now_ns=self._clock.monotonic_ns(), counts=counts)
        if self.keys is not None:
            self._unpark(self.keys.returned(offsets))
        self.partition.wake(self.group)

    # --- members that leave or lose the partition ----------------------------------------------

    def return_handed(self, member: str) -> None:
        """The member lost the partition: what was handed over to it without a lease is ready again."""
        self._return_handed(self.handed.remove(member))

    def _return_handed(self, offsets: BitMap64) -> None:
        if offsets:
            self.cursor.return_taken(offsets, now_ns=self._clock.monotonic_ns())
            if self.keys is not None:
                self._unpark(self.keys.returned(offsets))
            self.partition.wake(self.group)

    def release_member(self, member: str, *, is_lost: bool) -> None:
        """The member is gone: its messages are ready again or, if its session timed out, have failed."""
        now_ns = self._clock.monotonic_ns()
        self.expired_by_member.pop(member, None)
        self.gaps.forget(member)
        self.return_handed(member)
        for delivery in [delivery for delivery in self.cursor.deliveries.values() if delivery.member == member]:
            offsets = delivery.offsets.copy()
            if is_lost:
                failed = self.cursor.judge(offsets, self.partition.retries, now_ns=now_ns)
                self.cursor.fail(delivery.id, failed)
                error = "the consumer was lost"
                self.leader.observe(events.LeasesLost(*self.leader.origin, self.group, member, offsets, error))
                self._failed(delivery.id, member, failed, error)
            else:
                self._release(delivery.id, offsets, counts=True)
                self.stored.note_if_possible(ledger.Released(delivery.id, True, ledger.blob(offsets)))
        self.partition.wake(self.group)

    # --- positions -----------------------------------------------------------------------------

    def commit_handed(self, member: str, *, poll: int, is_leaving: bool) -> int:
        """The messages that the member received before its poll of that number are done; when it leaves, all of them.

        Returns the offset in the ledger after which that is certain.
        """
        done = self.handed.processed(member, poll=poll, is_leaving=is_leaving)
        if not done:
            return 0
        floor = self.cursor.floor
        end = self.finish(done)
        self.leader.observe(events.MessagesPassedOver(*self.leader.origin, self.group, done))
        self.tell_position(floor)
        self.handed.discard(done)
        return end

    def finish(self, offsets: BitMap64, *, flush: bool = True) -> int:
        """These are done; returns the offset in the ledger after which that is certain."""
        end = self.stored.note(ledger.Finished(ledger.blob(offsets)), flush=flush)
        self.stored.end_dead_lettering(offsets)
        self.cursor.finish(offsets)
        if self.keys is not None:
            self._unpark(self.keys.settled(offsets))
        self._count_done(offsets)
        return end

    def commit(self, offset: int, metadata: str, pending: BitMap64 | None = None) -> int:
        """Everything below the offset is done, without what is delayed; or, if `pending` is given, without that."""
        self.feed(OFFSET_MAX, until=offset)
        cursor = self.cursor
        done = cursor.below(offset) if pending is None else cursor.below_but(offset, pending)
        return self.commit_offsets(done, metadata)

    def commit_offsets(self, offsets: BitMap64, metadata: str) -> int:
        """These are done, in any state; returns the offset in the ledger after which that is certain."""
        end = self.stored.note(ledger.Committed(ledger.blob(offsets), metadata))
        self.stored.metadata = metadata
        self.cursor.commit(offsets)
        self._count_done(offsets)
        self._forget_done(offsets)
        self.leader.observe(events.MessagesPassedOver(*self.leader.origin, self.group, offsets))
        return end

    def reset(self, offset: int, metadata: str | None = None) -> int:
        """Start again at the offset: all leases end, and nothing is kept but messages that are being dead-lettered.

        Returns the offset in the ledger after which that is certain.
        """
        cursor = self.partition.new_cursor(offset)
        cursor.dead_letter(self.cursor.dead_lettering)
        end = self.stored.replace(cursor, metadata)
        self.cursor = cursor
        self.given_up.clear()
        self.handed.clear()
        self.keys = None
        self.partition.wake(self.group)
        return end

    def drop_below(self, offset: int) -> None:
        """Drop messages below the new start of the log."""
        if self.cursor.floor < offset:
            self._forget_done(self.cursor.drop_below(offset))

    # --- time ----------------------------------------------------------------------------------

    def pass_time(self) -> None:
        """End leases that have expired, and make retries ready that are due."""
        now_ns = self._clock.monotonic_ns()
        has_expired = False
        for delivery, failed in self.cursor.expire_leases(self.partition.retries, now_ns=now_ns):
            member, late = delivery.member, _offsets_of(failed)
            self.expired_leases += len(late)
            self.expired_by_member[member] = self.expired_by_member.get(member, 0) + len(late)
            self.given_up |= failed.dead
            if len(self.given_up) > GIVEN_UP_MAX:
                self.given_up.remove_range(0, self.given_up[len(self.given_up) - GIVEN_UP_MAX])
            self.leader.observe(events.LeasesExpired(*self.leader.origin, self.group, len(late), member, late))
            self._failed(delivery.id, member, failed, "the lease ran out")
            has_expired = True
        if self.cursor.retry(now_ns=now_ns) or has_expired:
            self.partition.wake(self.group)

    def expire_messages(self, expired: BitMap64) -> None:
        """The time to live of these messages is over: drop or dead-letter them, as the topic's settings say."""
        over = self.cursor.expire_ready(expired)
        if not over:
            return
        self.leader.observe(events.MessagesExpired(*self.leader.origin, self.group, len(over), over))
        if self.partition.config.on_expire == "dead_letter":
            self._dead_letter(0, over, EXPIRED, "its time to live was over", "")
        else:
            self.cursor.finish(over)
            self._count_done(over)
            self._forget_done(over)
            self.stored.note_if_possible(ledger.Finished(ledger.blob(over)))

    # --- dead letters --------------------------------------------------------------------------

    def _failed(self, delivery_id: int, member: str, failed: Failed, error: str) -> None:
        """Write the failure of messages that were not settled, and follow it up."""
        if failed.requeued:
            self.stored.note_if_possible(self.stored.retried(delivery_id, failed))
        self._follow_failure(delivery_id, member, failed, TIMEOUT, error)

    def _follow_failure(
        self, delivery_id: int, member: str, failed: Failed, reason: str, error: str
    ) -> Pending[Copies]:
        for part in failed.requeued:
            self.partition.note_time(part.at_ns)
            if self.keys is not None:
                self._unpark(self.keys.returned(part.offsets))
        if not failed.dead:
            return Pending.of({})
        return self._dead_letter(delivery_id, failed.dead, reason, error, member)

    def _dead_letter(
        self, delivery_id: int, offsets: BitMap64, reason: str, error: str, member: str
    ) -> Pending[Copies]:
        raw, error, now_ns = ledger.blob(offsets), error[:ERROR_CHARACTERS_MAX], self._clock.wall_ns()
        return self.partition.dead_letter(self, DeadLettering(delivery_id, raw, reason, error, member, -1, now_ns))

    def redrive(self, offsets: BitMap64, target: str, partition: int, *, to_group: bool) -> Pending[Copies]:
        """Copy dead letters, which this partition holds, to the target, and be done with them.

        With `to_group` each copy is for the group that dead-lettered the message.
        """
        self.cursor.dead_letter(offsets)
        raw, now_ns = ledger.blob(offsets), self._clock.wall_ns()
        change = DeadLettering(0, raw, REDRIVEN, "", "", -1, now_ns, target, partition, to_group)
        return self.partition.dead_letter(self, change)

    def cancel_dead_letters(self, offsets: BitMap64) -> None:
        """The target is gone: the messages are ready again."""
        self.stored.end_dead_lettering(offsets)
        self.cursor.cancel_dead_letter(offsets, now_ns=self._clock.monotonic_ns())
        with suppress(StorageError):
            self.stored.write_whole()

    # --- transactions --------------------------------------------------------------------------

    def hold(self, transaction: Transaction, delivery_id: int, offsets: BitMap64) -> None:
        """The transaction has acknowledged messages of the delivery. The ledger knows, so a later leader holds them."""
        self.stored.note_if_possible(ledger.HeldBack(*transaction, delivery_id, ledger.blob(offsets)))
        self.cursor.hold(transaction, delivery_id, offsets)

    def finish_held(self, transaction: Transaction) -> int:
        """The transaction was committed; returns the offset in the ledger after which its acks are certain."""
        held = self.cursor.held_by(transaction)
        if not held:
            return 0
        floor = self.cursor.floor
        end = self.finish(held)
        self._tell_settled("ack", held)
        self.tell_position(floor)
        self.partition.wake(self.group)
        return end

    def abort(self, transaction: Transaction) -> None:
        """The transaction was aborted: what it held is delivered again."""
        now_ns = self._clock.monotonic_ns()
        if transaction in self.cursor.held:
            self.stored.note_if_possible(ledger.GivenBack(*transaction))
        for held, failed in self.cursor.abort(transaction, self.partition.retries, now_ns=now_ns):
            member, returned, error = held.member, _offsets_of(failed), "the transaction was aborted"
            self.leader.observe(events.LeasesLost(*self.leader.origin, self.group, member, returned, error))
            self._failed(held.delivery_id, member, failed, error)
        self.partition.note_time(self.cursor.next_ns)
        if self.cursor.retry(now_ns=now_ns):
            self.partition.wake(self.group)

    # --- events and counts ---------------------------------------------------------------------

    def tell_position(self, before: int) -> None:
        """Emit the group's position if it has advanced from `before`."""
        if self.cursor.floor > before:
            self.leader.observe(events.PositionCommitted(*self.leader.origin, self.group, self.cursor.floor))

    def _tell_settled(
        self, kind: str, offsets: BitMap64, delivery: OpenDelivery | None = None, reason: str = ""
    ) -> None:
        member, delivered_ns = ("", 0) if delivery is None else (delivery.member, delivery.started_ns)
        self.leader.observe(
            events.MessagesSettled(
                *self.leader.origin, self.group, kind, len(offsets), member, offsets, delivered_ns, reason
            )
        )

    def _count_done(self, offsets: BitMap64) -> None:
        self.lane_stats.note_done(self.partition.index.split(offsets), now_ns=self._clock.monotonic_ns())


def _when_stored(leader: PartitionLeader, ledger_end: int, *, at_ns: int = 0, next_count: int = 0) -> Settling:
    if ledger_end <= leader.ledger.gate.offset:
        return Settling(Pending.of({}), at_ns, next_count)
    none: Copies = {}
    return Settling(after(leader.ledger.when_stored(ledger_end), lambda _: none), at_ns, next_count)


def _offsets_of(failed: Failed) -> BitMap64:
    return failed.dead.union(*(part.offsets for part in failed.requeued))
