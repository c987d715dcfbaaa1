"""The cursor: what one group has done with one partition, and what it is to get next.

Every offset is in one place at a time:

                     ┌────────── due ──────────┐
    frontier ──> delayed                       v
        └──────────────────────────────────> ready ──take──> taken ──lease──> leased ──ack──> acked ──> below the floor
                                               ^  ^                              │               ^
                                               │  └──────────── put back ────────┤               │
                                               ├── due ── waiting <── nack, late ┤               │
                                               │                                 ├──> dying ─────┤
                                               └──────────── abort ── held <─────┴───── commit ──┘

All below `floor` is done. `acked` holds what is done above it, so one message that hangs costs a bitmap and nothing
else. Offsets from `frontier` on were not looked at yet. A lease belongs to a delivery: all messages that went to one
member in one answer, under one deadline. `dying` messages are on their way to the dead letters; they are acked once
they are there. `held` messages were acknowledged inside a transaction and wait for its outcome, without a deadline.

A cursor owns no clock and no file. Times are monotonic; `snapshot` and `restore` translate them, so that leases and
retries survive a restart. What changes is told to the ledger by whoever calls; `ledger.py` replays it.
"""

import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from pyroaring import BitMap64

from goqueue.delivery.first_deliveries import FirstDeliveries
from goqueue.delivery.lanes import LANE_COUNT, NORMAL, LaneConfig, Lanes, Run
from goqueue.delivery.offsets import between, first_gap, span
from goqueue.delivery.retry import RetryPolicy
from goqueue.record.header import OFFSET_MAX

Split = Callable[[BitMap64], Iterable[tuple[int, BitMap64]]]
"""Which of the offsets belong to which lane."""
Transaction = tuple[int, int]
"""Producer id and number."""
DEADLINES_MIN = 1_000
"""So many deadlines may be in the heap before it is looked for those that do not count any more."""


class Delivery:
    """What went to a member in one answer and is not settled; it is leased until the deadlines in `parts`."""

    __slots__ = ("id", "left", "member", "parts", "started_ns")

    def __init__(self, delivery_id: int, member: str, started_ns: int) -> None:
        self.id = delivery_id
        self.member = member
        self.started_ns = started_ns  # wall clock: people see it on dead letters
        self.parts: list[tuple[int, BitMap64]] = []  # deadlines and offsets; one, unless some were extended
        self.left = BitMap64()  # were in it, and came back: their receipts are told from those that were made up

    @property
    def offsets(self) -> BitMap64:
        """All that is still leased."""
        if len(self.parts) == 1:
            return self.parts[0][1]
        return BitMap64().union(*(offsets for _, offsets in self.parts))

    @property
    def deadline_ns(self) -> int:
        """When the first of its leases ends."""
        return min(deadline_ns for deadline_ns, _ in self.parts)

    def claim(self, wanted: BitMap64) -> BitMap64:
        """Take those that it has."""
        claimed = BitMap64()
        for _, offsets in self.parts:
            part = offsets & wanted
            if part:
                offsets.difference_update(part)
                claimed.update(part)
        self._tidy()
        return claimed

    def late(self, *, now_ns: int) -> BitMap64:
        """Those whose lease is over."""
        return BitMap64().union(*(offsets for deadline_ns, offsets in self.parts if deadline_ns <= now_ns))

    def lease(self, offsets: BitMap64, deadline_ns: int) -> None:
        """These are leased until then."""
        self.parts.append((deadline_ns, offsets))

    def _tidy(self) -> None:
        for _, offsets in self.parts:
            if not offsets:
                self.parts = [part for part in self.parts if part[1]]
                return


class Held(NamedTuple):
    """What a transaction has acknowledged of one delivery."""

    delivery_id: int
    member: str
    started_ns: int
    offsets: BitMap64


class Requeued(NamedTuple):
    """Offsets that are delivered again at a time; `next_count` is the number of that delivery."""

    offsets: BitMap64
    at_ns: int
    next_count: int


class Failed(NamedTuple):
    """What becomes of messages that were not processed."""

    requeued: list[Requeued]
    dead: BitMap64


class CursorState(NamedTuple):
    """All that a cursor has to remember."""

    floor: int
    acked: BitMap64
    counts: dict[int, BitMap64]  # finished deliveries -> the offsets that have had so many
    first: dict[int, BitMap64]  # time of the first delivery -> the offsets that failed since
    deliveries: list[Delivery]
    waiting: list[tuple[int, BitMap64]]
    given_back: BitMap64


class Cursor:
    """One group on one partition."""

    def __init__(self, *, floor: int, lanes: LaneConfig, split: Split, now_ns: int) -> None:
        self._split = split
        self.floor = floor
        self.frontier = floor
        self.acked = BitMap64()
        self.delayed = BitMap64()
        self.dying = BitMap64()
        self.lanes = Lanes(lanes, now_ns=now_ns)
        self.deliveries: dict[int, Delivery] = {}
        self.in_flight: dict[str, int] = {}
        self.held: dict[Transaction, list[Held]] = {}
        self._busy = BitMap64()  # leased, waiting, dying, held, taken: neither ready nor done
        self._waiting: list[tuple[int, int, BitMap64]] = []  # a heap
        self._waiting_number = 0
        self._deadlines: list[tuple[int, int]] = []  # a heap; may hold deliveries that are over or were extended
        self._deadlines_max = DEADLINES_MIN
        self.given_back = BitMap64()  # released as if they had not been delivered; until their next delivery
        self._settled_back: dict[int, BitMap64] = {}  # delivery -> what its member gave back; until the next delivery
        self._counts: dict[int, BitMap64] = {}  # finished deliveries -> the offsets that have had so many
        self._first = FirstDeliveries()  # of what has a count

    # --- what there is -------------------------------------------------------------------------

    @property
    def in_flight_count(self) -> int:
        """How many messages are leased."""
        return sum(self.in_flight.values())

    @property
    def waiting_count(self) -> int:
        """How many messages wait for their next delivery."""
        return sum(len(offsets) for _, _, offsets in self._waiting)

    @property
    def next_ns(self) -> int | None:
        """When time will change something."""
        times = [heap[0][0] for heap in (self._waiting, self._deadlines) if heap]
        return min(times, default=None)

    def is_done(self, offset: int) -> bool:
        """Whether the message needs no more attention, or is past it."""
        return offset < self.floor or offset in self.acked or offset in self.dying

    def deliveries_of(self, offset: int) -> int:
        """How many deliveries of the message are finished."""
        return next((count for count, offsets in self._counts.items() if offset in offsets), 0)

    def redelivered(self, offsets: BitMap64) -> dict[int, int]:
        """Those of the offsets that were delivered before, and how often."""
        return {
            offset: count
            for count, having in self._counts.items()
            if having.intersect(offsets)
            for offset in having & offsets
        }

    @property
    def returned(self) -> BitMap64:
        """What was delivered, came back, and is to be delivered again: waiting or ready."""
        returned = self.given_back.union(*self._counts.values())
        if returned:
            returned -= self.dying
            for delivery in self.deliveries.values():
                returned -= delivery.offsets
            for held in (one for holds in self.held.values() for one in holds):
                returned -= held.offsets
        return returned

    def first_delivery_ns(self, offset: int) -> int | None:
        """When a message that failed was first delivered."""
        return self._first.find(offset)

    # --- new messages --------------------------------------------------------------------------

    def admit(self, end: int, *, lanes: Sequence[BitMap64], hidden: BitMap64, delayed: BitMap64, now_ns: int) -> None:
        """Look at the offsets from the frontier to before `end`; the sets may hold others, too.

        What is in none of them is of normal priority. What is hidden counts as done.
        """
        start = self.frontier
        if end <= start:
            return
        self.frontier = end
        if not any(offsets and offsets.max() >= start for offsets in (hidden, delayed, *lanes, self._busy, self.acked)):
            self.lanes.put_range(NORMAL, start, end, now_ns=now_ns)
            return
        fresh = span(start, end)
        fresh -= self._busy
        fresh -= self.acked  # before what is hidden lets the floor pass
        gone = fresh & hidden
        if gone:
            self._done(gone)
            fresh -= gone
        later = fresh & delayed
        if later:
            self.delayed |= later
            fresh -= later
        for lane in range(LANE_COUNT):
            if lane != NORMAL and lanes[lane]:
                part = fresh & lanes[lane]
                if part:
                    self.lanes.put(lane, part, now_ns=now_ns)
                    fresh -= part
        if fresh:
            self.lanes.put(NORMAL, fresh, now_ns=now_ns)

    def ripen(self, offsets: BitMap64, *, now_ns: int) -> bool:
        """Delayed messages are due; whether any of them is for this group."""
        due = self.delayed & offsets
        self.delayed -= due
        self._make_ready(due, now_ns=now_ns)
        return bool(due)

    def hide(self, offsets: BitMap64) -> None:
        """Never deliver these: they were cancelled, or are gone from the log."""
        known = between(offsets, self.floor, self.frontier)
        self.delayed -= known
        self.lanes.discard(known)
        self._done(known - self._busy)

    # --- delivering ----------------------------------------------------------------------------

    def take(self, count: int, *, now_ns: int) -> list[Run]:
        """The next messages, in order. They are in nobody's hands until they are leased, or given back."""
        taken = self.lanes.take(count, now_ns=now_ns)
        for _, offsets in taken:
            self._busy |= offsets
        return taken

    def give_back(self, runs: Sequence[Run]) -> None:
        """These were taken just now and not delivered after all."""
        for _, offsets in runs:
            self._busy -= offsets
        self.lanes.put_back(runs)

    def put_back(self, offsets: BitMap64, *, now_ns: int) -> None:
        """These, which are taken and not leased, are ready again."""
        self._busy -= offsets
        self._make_ready(offsets, now_ns=now_ns)

    def lease(self, delivery_id: int, member: str, offsets: BitMap64, *, deadline_ns: int, wall_ns: int) -> None:
        """The taken offsets go to the member."""
        delivery = self.deliveries[delivery_id] = Delivery(delivery_id, member, wall_ns)
        delivery.lease(offsets, deadline_ns)
        if self.given_back:
            self.given_back -= offsets
        if self._settled_back:
            self._forget_settled_back(offsets)
        self._note_deadline(deadline_ns, delivery_id)
        self.in_flight[member] = self.in_flight.get(member, 0) + len(offsets)

    # --- settling ------------------------------------------------------------------------------

    def leased(self, delivery_id: int, offsets: BitMap64, *, now_ns: int) -> BitMap64:
        """Those of the offsets whose lease holds; nothing else may be settled by who has the delivery."""
        delivery = self.deliveries.get(delivery_id)
        held = BitMap64()
        for deadline_ns, part in delivery.parts if delivery else ():
            if deadline_ns > now_ns:
                held |= part & offsets
        return held

    def ack(self, delivery_id: int, offsets: BitMap64) -> None:
        """Those that the delivery has are done."""
        self.finish(self._claim(delivery_id, offsets))

    def judge(self, offsets: BitMap64, policy: RetryPolicy, *, now_ns: int, delay_ns: int | None = None) -> Failed:
        """What is to become of messages that were not processed: another delivery after the delay, or a backoff;
        for those that had their last one, the dead letters.
        """
        requeued: list[Requeued] = []
        dead = BitMap64()
        for count, part in self._by_count(offsets):
            if count + 1 >= policy.max_deliveries:
                dead |= part
            else:
                at_ns = now_ns + (policy.backoff_ns(count + 1) if delay_ns is None else delay_ns)
                requeued.append(Requeued(part, at_ns, count + 2))
        return Failed(requeued, dead)

    def fail(self, delivery_id: int, failed: Failed) -> None:
        """Let it be so for those that the delivery has."""
        self.requeue(delivery_id, [(part.at_ns, part.offsets) for part in failed.requeued])
        self.reject(delivery_id, failed.dead)

    def requeue(self, delivery_id: int, parts: Iterable[tuple[int, BitMap64]]) -> None:
        """Those that the delivery has are delivered again at the times given."""
        delivery = self.deliveries.get(delivery_id)
        for at_ns, offsets in parts if delivery else ():
            claimed = self._claim(delivery_id, offsets)
            if delivery and claimed:
                delivery.left |= claimed
                self._count(claimed, delivery.started_ns)
                self._wait(claimed, at_ns)

    def reject(self, delivery_id: int, offsets: BitMap64) -> None:
        """Those that the delivery has are dying."""
        delivery = self.deliveries.get(delivery_id)
        claimed = self._claim(delivery_id, offsets)
        if delivery and claimed:
            self._count(claimed, delivery.started_ns)
            self.dying |= claimed

    def extend(self, delivery_id: int, offsets: BitMap64, *, deadline_ns: int) -> None:
        """Those that the delivery has are leased until the new deadline."""
        delivery = self.deliveries.get(delivery_id)
        claimed = delivery.claim(offsets) if delivery else None
        if delivery and claimed:
            delivery.lease(claimed, deadline_ns)
            self._note_deadline(deadline_ns, delivery_id)

    def release(self, delivery_id: int, offsets: BitMap64, *, now_ns: int, counts: bool = True) -> None:
        """Those that the delivery has are ready at once. Without `counts` it is as if they had not been delivered."""
        delivery = self.deliveries.get(delivery_id)
        claimed = self._claim(delivery_id, offsets)
        if delivery:
            delivery.left |= claimed
        if counts and delivery:
            self._count(claimed, delivery.started_ns)
        else:
            self.given_back |= claimed
        self.put_back(claimed, now_ns=now_ns)

    def finish(self, offsets: BitMap64) -> None:
        """These are done, whatever they were."""
        if offsets:
            self._busy -= offsets
            self.dying -= offsets
            if self.given_back:
                self.given_back -= offsets
            if self._settled_back:
                self._forget_settled_back(offsets)
            self._forget_counts(offsets)
            if self.held:
                self._end_holds(offsets)
            self._done(offsets)

    def overdue(self, offsets: BitMap64) -> BitMap64:
        """Those of the offsets that nobody works on; they are dying. Their time is over."""
        found = BitMap64()
        for lane in self.lanes.ready:
            if lane.intersect(offsets):
                found |= lane & offsets
        self.lanes.discard(found)
        self._busy |= found
        self.dying |= found
        return found

    def doom(self, offsets: BitMap64) -> None:
        """These are dying, whatever they were."""
        self._end_leases(offsets)
        self._end_holds(offsets)
        self.lanes.discard(offsets)
        self.delayed -= offsets
        self._busy |= offsets
        self.dying |= offsets

    def revive(self, offsets: BitMap64, *, now_ns: int) -> None:
        """These are not dying after all."""
        self.dying -= offsets
        self.put_back(offsets, now_ns=now_ns)

    def note_settled_back(self, delivery_id: int, offsets: BitMap64) -> None:
        """The member itself gave these back: until they are delivered again, its receipts are settled, not expired."""
        self._settled_back.setdefault(delivery_id, BitMap64()).update(offsets)

    def is_settled_back(self, delivery_id: int, offset: int) -> bool:
        """Whether the member of that delivery gave the message back, and it was not delivered since."""
        return delivery_id in self._settled_back and offset in self._settled_back[delivery_id]

    # --- transactions --------------------------------------------------------------------------

    def hold(self, transaction: Transaction, delivery_id: int, offsets: BitMap64) -> None:
        """Those that the delivery has wait for the outcome of the transaction, whatever becomes of their member."""
        delivery = self.deliveries.get(delivery_id)
        claimed = self._claim(delivery_id, offsets)
        if delivery and claimed:
            held = Held(delivery_id, delivery.member, delivery.started_ns, claimed)
            self.held.setdefault(transaction, []).append(held)

    def held_by(self, transaction: Transaction) -> BitMap64:
        """What the transaction has acknowledged and nobody has put behind the group meanwhile."""
        return BitMap64().union(*(one.offsets for one in self.held.get(transaction, ())))

    def is_held(self, offset: int) -> bool:
        """Whether a transaction has acknowledged it that is still open."""
        return any(offset in one.offsets for holds in self.held.values() for one in holds)

    def let_go(self, transaction: Transaction, policy: RetryPolicy, *, now_ns: int) -> list[tuple[Held, Failed]]:
        """The transaction was aborted: its messages are due at once or, after their last delivery, dying."""
        outcomes = []
        for one in self.held.pop(transaction, ()):
            failed = self.judge(one.offsets, policy, now_ns=now_ns, delay_ns=0)
            self._count(one.offsets, one.started_ns)
            for part in failed.requeued:
                self._wait(part.offsets, part.at_ns)
            self.dying |= failed.dead
            if delivery := self.deliveries.get(one.delivery_id):
                delivery.left |= one.offsets
            outcomes.append((one, failed))
        return outcomes

    # --- time ----------------------------------------------------------------------------------

    def expire(self, policy: RetryPolicy, *, now_ns: int) -> Iterator[tuple[Delivery, Failed]]:
        """End the leases whose deadline is over, delivery by delivery."""
        while self._deadlines and self._deadlines[0][0] <= now_ns:
            _, delivery_id = heapq.heappop(self._deadlines)
            delivery = self.deliveries.get(delivery_id)
            late = delivery.late(now_ns=now_ns) if delivery else None
            if delivery and late:
                failed = self.judge(late, policy, now_ns=now_ns)
                self.fail(delivery_id, failed)
                yield delivery, failed

    def retry(self, *, now_ns: int) -> bool:
        """Make ready what has waited for long enough; whether there was any."""
        due = BitMap64()
        while self._waiting and self._waiting[0][0] <= now_ns:
            due |= heapq.heappop(self._waiting)[2]
        self._busy -= due
        self._make_ready(due, now_ns=now_ns)
        return bool(due)

    # --- positions -----------------------------------------------------------------------------

    def below(self, end: int) -> BitMap64:
        """Everything below the offset that a commit of that position finishes: all but what is not due or is dying."""
        return self.below_but(end, self.delayed)

    def below_but(self, end: int, pending: BitMap64) -> BitMap64:
        """The same for a reader that also reads what is not due, and has read all below but what is pending."""
        below = span(self.floor, end)
        below -= pending
        below -= self.dying
        return below

    def settle(self, offsets: BitMap64) -> None:
        """These are done, and nobody has them any more."""
        self._end_leases(offsets)
        self.lanes.discard(offsets)
        if self.delayed:
            self.delayed -= offsets
        self.finish(offsets)

    def drop_below(self, start: int) -> BitMap64:
        """The log begins at that offset now; what is gone with it."""
        gone = span(self.floor, start)
        self.settle(gone)
        return gone

    def cut(self, end: int) -> bool:
        """The log ends at that offset: what is known of later ones is about records that a power cut has taken.

        Others will get these offsets. Whether anything was forgotten.
        """
        over = between(self.acked | self._busy, end, OFFSET_MAX)
        self.given_back = between(self.given_back, 0, end)
        if not over and self.floor <= end:
            return False
        self._end_leases(over)
        self._end_holds(over)
        self._forget_counts(over)
        for offsets in (self.acked, self._busy, self.dying):
            offsets.difference_update(over)
        self.floor = min(self.floor, end)
        self.frontier = min(self.frontier, end)
        return True

    # --- remembering ---------------------------------------------------------------------------

    def state(self) -> CursorState:
        """All that has to be remembered, as it is now; nothing is copied.

        A restart aborts transactions, so what they hold is remembered as leases that are over.
        """
        waiting = [(at_ns, offsets) for at_ns, _, offsets in self._waiting]
        deliveries = dict(self.deliveries)
        for held in (one for holds in self.held.values() for one in holds):
            delivery = Delivery(held.delivery_id, held.member, held.started_ns)
            leased = deliveries.get(delivery.id)
            delivery.parts = [*(leased.parts if leased else ()), (0, held.offsets)]
            delivery.left = leased.left if leased else BitMap64()
            deliveries[delivery.id] = delivery
        return CursorState(
            self.floor, self.acked, self._counts, self._first.times, list(deliveries.values()), waiting, self.given_back
        )

    def restore(self, state: CursorState) -> None:
        """Be what the state says; for a cursor that was just made."""
        self.floor = self.frontier = state.floor
        self.acked = state.acked
        self._counts = state.counts
        self._first = FirstDeliveries(state.first)
        self.given_back = state.given_back
        for delivery in state.deliveries:
            self.resume(delivery)
        for at_ns, offsets in state.waiting:
            self._busy |= offsets
            self._wait(offsets, at_ns)

    def resume(self, delivery: Delivery) -> None:
        """This delivery is under way, and no other with these offsets."""
        offsets = delivery.offsets
        if offsets.intersect(self._busy):
            self._end_leases(offsets)
        self._busy |= offsets
        self.given_back -= offsets
        self.deliveries[delivery.id] = delivery
        self.in_flight[delivery.member] = self.in_flight.get(delivery.member, 0) + len(offsets)
        for deadline_ns, _ in delivery.parts:
            self._note_deadline(deadline_ns, delivery.id)

    # --- inside --------------------------------------------------------------------------------

    def _claim(self, delivery_id: int, offsets: BitMap64) -> BitMap64:
        delivery = self.deliveries.get(delivery_id)
        if delivery is None:
            return BitMap64()
        claimed = delivery.claim(offsets)
        self._unlease(delivery, claimed)
        return claimed

    def _unlease(self, delivery: Delivery, offsets: BitMap64) -> None:
        """The member does not have these any more."""
        left = self.in_flight[delivery.member] - len(offsets)
        if left:
            self.in_flight[delivery.member] = left
        else:
            del self.in_flight[delivery.member]
        if not delivery.parts:
            del self.deliveries[delivery.id]

    def _note_deadline(self, deadline_ns: int, delivery_id: int) -> None:
        heapq.heappush(self._deadlines, (deadline_ns, delivery_id))
        if len(self._deadlines) > self._deadlines_max:  # those of deliveries that are over must not pile up
            deadlines = [(until_ns, one.id) for one in self.deliveries.values() for until_ns, _ in one.parts]
            heapq.heapify(deadlines)
            self._deadlines = deadlines
            self._deadlines_max = max(DEADLINES_MIN, 4 * len(deadlines))

    def _wait(self, offsets: BitMap64, at_ns: int) -> None:
        self._waiting_number += 1
        heapq.heappush(self._waiting, (at_ns, self._waiting_number, offsets))

    def _by_count(self, offsets: BitMap64) -> Iterator[tuple[int, BitMap64]]:
        """The offsets by how many deliveries of them are finished, the highest number first."""
        left = offsets
        for count in sorted(self._counts, reverse=True):
            part = self._counts[count] & left
            if part:
                yield count, part
                left = left - part
        if left:
            yield 0, left

    def _count(self, offsets: BitMap64, started_ns: int) -> None:
        """One more delivery of these is finished."""
        for count, part in list(self._by_count(offsets)):
            if count:
                self._counts[count] -= part
                if not self._counts[count]:
                    del self._counts[count]
            else:
                self._first.note(part, started_ns)
            self._counts.setdefault(count + 1, BitMap64()).update(part)

    def _forget_counts(self, offsets: BitMap64) -> None:
        if not self._counts:
            return
        self._first.forget(offsets)
        for count in [count for count, having in self._counts.items() if having.intersect(offsets)]:
            self._counts[count] -= offsets
            if not self._counts[count]:
                del self._counts[count]

    def _forget_settled_back(self, offsets: BitMap64) -> None:
        for delivery_id in [one for one, given in self._settled_back.items() if given.intersect(offsets)]:
            self._settled_back[delivery_id] -= offsets
            if not self._settled_back[delivery_id]:
                del self._settled_back[delivery_id]

    def _make_ready(self, offsets: BitMap64, *, now_ns: int) -> None:
        """What lies behind the frontier becomes ready when it is admitted."""
        if offsets:
            seen = offsets if offsets.max() < self.frontier else between(offsets, 0, self.frontier)
            for lane, part in self._split(seen):
                self.lanes.put(lane, part, now_ns=now_ns)

    def _done(self, offsets: BitMap64) -> None:
        self.acked |= offsets
        if self.floor in self.acked:
            self.floor = first_gap(self.acked, self.floor)
            self.frontier = max(self.frontier, self.floor)
        if self.acked and self.acked.min() < self.floor:
            self.acked.remove_range(0, self.floor)

    def _end_holds(self, offsets: BitMap64) -> None:
        """No transaction has these any more."""
        for transaction, holds in list(self.held.items()):
            left = [one._replace(offsets=one.offsets - offsets) for one in holds]
            self.held[transaction] = [one for one in left if one.offsets]
            if not self.held[transaction]:
                del self.held[transaction]

    def _end_leases(self, offsets: BitMap64) -> None:
        for delivery in list(self.deliveries.values()):
            ended = BitMap64()
            for _, part in delivery.parts:
                ended |= part & offsets
                part.difference_update(offsets)
            if ended:
                delivery.left |= ended
                delivery.parts = [part for part in delivery.parts if part[1]]
                self._unlease(delivery, ended)
        kept = [(at_ns, number, part - offsets) for at_ns, number, part in self._waiting]
        self._waiting = [entry for entry in kept if entry[2]]
        heapq.heapify(self._waiting)
