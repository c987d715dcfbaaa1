"""The cursor: what one group has done with one partition, and what it gets next.

Every offset is in one state at a time. The arrows are the methods of `Cursor`:

    unseen ──admit──> ready, or delayed, or done (hidden from the group)

    delayed ──fire──> ready ──take──> taken ──lease──> leased ──ack──> done
                        ^               │               │ ^ │
                        ├─untake,       │               │ └─┘ extend, reissue
                        │ return_taken──┘               │
                        ├──────────release──────────────┤
                        │                               │
                        ├──retry── waiting <──requeue───┤      nack, expire_leases: `fail` is requeue and reject
                        │             ^                 │
                        │             └──abort── held <─┤hold  held ──finish──> done, when the transaction commits
                        │                          │    │
                        │                     abort│    │reject
                        │                          v    v
                        └─cancel_dead_letter─ dead_lettering ──finish──> done
                                                   ^
                        ready ──expire_ready───────┘           any state ──dead_letter──> dead_lettering
                                                               any state ──commit, drop_below──> done
                                                               ready, delayed ──hide──> done

Everything below `floor` is done. `acked` holds what is done above it, so one stuck message costs only a bitmap. Offsets
from `frontier` on are unseen. A lease belongs to a delivery: all messages that one member received in one answer, with
one deadline. Messages that are `dead_lettering` are being copied to the dead-letter topic; they are done once they are
stored there. `held` messages were acknowledged inside a transaction and wait for its outcome, without a deadline.

A cursor owns no clock and no file. Times are monotonic; `state` and `restore` carry leases and retries over a restart.
The caller writes each change to the ledger; `ledger.py` replays it.
"""

import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from pyroaring import BitMap64

from goqueue.delivery.first_deliveries import FirstDeliveries
from goqueue.delivery.lanes import LANE_COUNT, NORMAL, LaneConfig, LaneRun, Lanes
from goqueue.delivery.offsets import between, first_gap, span
from goqueue.delivery.retry import RetryPolicy
from goqueue.record.header import OFFSET_MAX

Split = Callable[[BitMap64], Iterable[tuple[int, BitMap64]]]
"""Which of the offsets belong to which lane."""
Transaction = tuple[int, int]
"""Producer id and number."""
DEADLINES_MIN = 1_000
"""How many deadlines the heap may hold before those of settled deliveries are removed from it."""


class OpenDelivery:
    """The unsettled messages of one answer to one member; they are leased until the deadlines in `parts`."""

    __slots__ = ("id", "left", "member", "parts", "poll", "started_ns")

    def __init__(self, delivery_id: int, member: str, started_ns: int, poll: int = 0) -> None:
        self.id = delivery_id
        self.member = member
        self.started_ns = started_ns  # wall clock: dead letters show it
        self.poll = poll  # the number that the member gave its poll; 0 without one
        self.parts: list[tuple[int, BitMap64]] = []  # deadlines and offsets; one, unless some were extended
        self.left = BitMap64()  # no longer leased by it: tells their receipts, which have expired, from forged ones

    @property
    def offsets(self) -> BitMap64:
        """Everything that is still leased."""
        if len(self.parts) == 1:
            return self.parts[0][1]
        return BitMap64().union(*(offsets for _, offsets in self.parts))

    @property
    def deadline_ns(self) -> int:
        """When the first of its leases ends."""
        return min(deadline_ns for deadline_ns, _ in self.parts)

    def claim(self, wanted: BitMap64) -> BitMap64:
        """Remove the wanted offsets from the delivery, and return those that it had."""
        claimed = BitMap64()
        for _, offsets in self.parts:
            part = offsets & wanted
            if part:
                offsets.difference_update(part)
                claimed.update(part)
        self._tidy()
        return claimed

    def late(self, *, now_ns: int) -> BitMap64:
        """Offsets whose lease has expired."""
        return BitMap64().union(*(offsets for deadline_ns, offsets in self.parts if deadline_ns <= now_ns))

    def lease(self, offsets: BitMap64, deadline_ns: int) -> None:
        """Lease the offsets until the deadline."""
        self.parts.append((deadline_ns, offsets))

    def _tidy(self) -> None:
        for _, offsets in self.parts:
            if not offsets:
                self.parts = [part for part in self.parts if part[1]]
                return


class Held(NamedTuple):
    """The messages of one delivery that a transaction has acknowledged."""

    transaction: Transaction
    delivery_id: int
    member: str
    started_ns: int
    offsets: BitMap64


class Requeued(NamedTuple):
    """Offsets that are delivered again at `at_ns`; `next_count` is the delivery count they have then."""

    offsets: BitMap64
    at_ns: int
    next_count: int


class Failed(NamedTuple):
    """The outcome for messages that were not processed: another delivery, or the dead-letter topic."""

    requeued: list[Requeued]
    dead: BitMap64


class CursorState(NamedTuple):
    """Everything about a cursor that survives a restart."""

    floor: int
    acked: BitMap64
    counts: dict[int, BitMap64]  # finished deliveries -> the offsets that have had so many
    first: dict[int, BitMap64]  # time of the first delivery -> the offsets that failed since
    deliveries: list[OpenDelivery]
    waiting: list[tuple[int, BitMap64]]
    released: BitMap64
    held: Sequence[Held] = ()


# More than 40 methods: each arrow of the diagram is one, and nearly every arrow changes `_busy`, the lanes and the
# counts together. Two classes would have to share all three, and an offset could be in two states at once.
class Cursor:
    """The state of every message of a partition for one group."""

    def __init__(self, *, floor: int, lanes: LaneConfig, split: Split, now_ns: int) -> None:
        self._split = split
        self.floor = floor
        self.frontier = floor
        self.acked = BitMap64()
        self.delayed = BitMap64()
        self.dead_lettering = BitMap64()
        self.lanes = Lanes(lanes, now_ns=now_ns)
        self.deliveries: dict[int, OpenDelivery] = {}
        self.in_flight: dict[str, int] = {}
        self._last_polled: dict[str, list[OpenDelivery]] = {}  # member -> what its last numbered poll brought, if open
        self.held: dict[Transaction, list[Held]] = {}
        self._busy = BitMap64()  # taken, leased, waiting, held, dead_lettering: neither ready nor done
        self._waiting: list[tuple[int, int, BitMap64]] = []  # a heap
        self._waiting_number = 0
        self._deadlines: list[tuple[int, int]] = []  # a heap; may hold deliveries that are settled or were extended
        self._deadlines_max = DEADLINES_MIN
        self.released = BitMap64()  # without a count, as if they had not been delivered; until their next delivery
        self._settled_back: dict[int, BitMap64] = {}  # delivery -> what its member returned; until the next delivery
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
        """When the next lease expires or the next retry is due."""
        times = [heap[0][0] for heap in (self._waiting, self._deadlines) if heap]
        return min(times, default=None)

    def is_done(self, offset: int) -> bool:
        """Whether the message is done, or is being dead-lettered."""
        return offset < self.floor or offset in self.acked or offset in self.dead_lettering

    def deliveries_of(self, offset: int) -> int:
        """How many deliveries of the message are finished."""
        return next((count for count, offsets in self._counts.items() if offset in offsets), 0)

    def redelivered(self, offsets: BitMap64) -> dict[int, int]:
        """How often each of the offsets was delivered before; without those that never were."""
        return {
            offset: count
            for count, having in self._counts.items()
            if having.intersect(offsets)
            for offset in having & offsets
        }

    @property
    def delivered_before(self) -> BitMap64:
        """Messages that were delivered at least once, and whose deliveries count."""
        return BitMap64().union(*self._counts.values())

    @property
    def delivery_count_max(self) -> int:
        """How often the most delivered of these was delivered."""
        return max(self._counts, default=0)

    @property
    def returned(self) -> BitMap64:
        """Messages that were delivered and will be delivered again: waiting or ready."""
        returned = self.released.union(*self._counts.values())
        if returned:
            returned -= self.dead_lettering
            for delivery in self.deliveries.values():
                returned -= delivery.offsets
            for held in (one for holds in self.held.values() for one in holds):
                returned -= held.offsets
        return returned

    def first_delivery_ns(self, offset: int) -> int | None:
        """When a message that has failed was first delivered."""
        return self._first.find(offset)

    # --- new messages --------------------------------------------------------------------------

    def admit(self, end: int, *, lanes: Sequence[BitMap64], hidden: BitMap64, delayed: BitMap64, now_ns: int) -> None:
        """Take in the offsets from the frontier to before `end`; the sets may hold other offsets, too.

        An offset in none of the sets has normal priority. Hidden offsets count as done.
        """
        start = self.frontier
        if end <= start:
            return
        self.frontier = end
        # The plain case, which is nearly every batch: one range goes to one lane, without building a set.
        if not any(offsets and offsets.max() >= start for offsets in (hidden, delayed, *lanes, self._busy, self.acked)):
            self.lanes.put_range(NORMAL, start, end, now_ns=now_ns)
            return
        fresh = span(start, end)
        fresh -= self._busy
        fresh -= self.acked  # first: `_done` below may move the floor over them
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

    def fire(self, offsets: BitMap64, *, now_ns: int) -> bool:
        """Make delayed messages ready that are due; returns whether any of them was for this group."""
        due = self.delayed & offsets
        self.delayed -= due
        self._make_ready(due, now_ns=now_ns)
        return bool(due)

    def hide(self, offsets: BitMap64) -> None:
        """Never deliver these: they were cancelled, or are no longer in the log."""
        known = between(offsets, self.floor, self.frontier)
        self.delayed -= known
        self.lanes.discard(known)
        self._done(known - self._busy)

    # --- delivering ----------------------------------------------------------------------------

    def take(self, count: int, *, now_ns: int) -> list[LaneRun]:
        """The next messages, in order. The caller leases them or returns them."""
        taken = self.lanes.take(count, now_ns=now_ns)
        for _, offsets in taken:
            self._busy |= offsets
        return taken

    def untake(self, runs: Sequence[LaneRun]) -> None:
        """Undo the last `take` for these: they keep their turn."""
        for _, offsets in runs:
            self._busy -= offsets
        self.lanes.untake(runs)

    def return_taken(self, offsets: BitMap64, *, now_ns: int) -> None:
        """Make taken messages ready again: they were parked, handed over without a lease, or could not be leased."""
        self._busy -= offsets
        self._make_ready(offsets, now_ns=now_ns)

    def lease(
        self, delivery_id: int, member: str, offsets: BitMap64, *, deadline_ns: int, wall_ns: int, poll: int = 0
    ) -> None:
        """Lease taken messages to the member."""
        delivery = self.deliveries[delivery_id] = OpenDelivery(delivery_id, member, wall_ns, poll)
        delivery.lease(offsets, deadline_ns)
        self._note_poll(delivery)
        if self.released:
            self.released -= offsets
        if self._settled_back:
            self._forget_settled_back(offsets)
        self._note_deadline(deadline_ns, delivery_id)
        self.in_flight[member] = self.in_flight.get(member, 0) + len(offsets)

    def polled(self, member: str, poll: int) -> Sequence[OpenDelivery]:
        """What the member's last numbered poll has brought, as far as it is open, if that was its number."""
        deliveries = self._last_polled.get(member)
        return tuple(deliveries) if deliveries and deliveries[0].poll == poll else ()

    def forget_poll(self, member: str) -> None:
        """The member counts its polls anew."""
        for delivery in self._last_polled.pop(member, ()):
            delivery.poll = 0

    def reissue(
        self, deliveries: Sequence[OpenDelivery], new_id: int, offsets: BitMap64, *, deadline_ns: int, wall_ns: int
    ) -> None:
        """Lease those that deliveries of one poll have to the same member, for the same poll, as one new delivery."""
        claimed = BitMap64()
        for delivery in deliveries:
            part = self._claim(delivery.id, offsets)
            delivery.left |= part
            claimed |= part
        member, poll = deliveries[0].member, deliveries[0].poll
        self.lease(new_id, member, claimed, deadline_ns=deadline_ns, wall_ns=wall_ns, poll=poll)

    # --- settling ------------------------------------------------------------------------------

    def leased(self, delivery_id: int, offsets: BitMap64, *, now_ns: int) -> BitMap64:
        """Those of the offsets whose lease holds: only they can be settled with a receipt of the delivery."""
        delivery = self.deliveries.get(delivery_id)
        held = BitMap64()
        for deadline_ns, part in delivery.parts if delivery else ():
            if deadline_ns > now_ns:
                held |= part & offsets
        return held

    def ack(self, delivery_id: int, offsets: BitMap64) -> None:
        """Those of the offsets that the delivery has are done."""
        self.finish(self._claim(delivery_id, offsets))

    def judge(self, offsets: BitMap64, policy: RetryPolicy, *, now_ns: int, delay_ns: int | None = None) -> Failed:
        """Decide what happens to messages that were not processed: another delivery after the delay, or a backoff;
        after the last delivery, the dead-letter topic. Changes nothing.
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
        """Carry out the decision of `judge` for those that the delivery has."""
        self.requeue(delivery_id, [(part.at_ns, part.offsets) for part in failed.requeued])
        self.reject(delivery_id, failed.dead)

    def requeue(self, delivery_id: int, parts: Iterable[tuple[int, BitMap64]]) -> None:
        """Deliver those that the delivery has again, at the times given."""
        delivery = self.deliveries.get(delivery_id)
        for at_ns, offsets in parts if delivery else ():
            claimed = self._claim(delivery_id, offsets)
            if delivery and claimed:
                delivery.left |= claimed
                self._count(claimed, delivery.started_ns)
                self._wait(claimed, at_ns)

    def reject(self, delivery_id: int, offsets: BitMap64) -> None:
        """Dead-letter those that the delivery has."""
        delivery = self.deliveries.get(delivery_id)
        claimed = self._claim(delivery_id, offsets)
        if delivery and claimed:
            self._count(claimed, delivery.started_ns)
            self.dead_lettering |= claimed

    def extend(self, delivery_id: int, offsets: BitMap64, *, deadline_ns: int) -> None:
        """Lease those that the delivery has until the new deadline."""
        delivery = self.deliveries.get(delivery_id)
        claimed = delivery.claim(offsets) if delivery else None
        if delivery and claimed:
            delivery.lease(claimed, deadline_ns)
            self._note_deadline(deadline_ns, delivery_id)

    def release(self, delivery_id: int, offsets: BitMap64, *, now_ns: int, counts: bool = True) -> None:
        """Make those that the delivery has ready at once. Without `counts` it is as if they had not been delivered."""
        delivery = self.deliveries.get(delivery_id)
        claimed = self._claim(delivery_id, offsets)
        if delivery:
            delivery.left |= claimed
        if counts and delivery:
            self._count(claimed, delivery.started_ns)
        else:
            self.released |= claimed
        self.return_taken(claimed, now_ns=now_ns)

    def finish(self, offsets: BitMap64) -> None:
        """These are done. A leased offset needs `ack` or `commit`, which end its lease."""
        if offsets:
            self._busy -= offsets
            self.dead_lettering -= offsets
            if self.released:
                self.released -= offsets
            if self._settled_back:
                self._forget_settled_back(offsets)
            self._forget_counts(offsets)
            if self.held:
                self._end_holds(offsets)
            self._done(offsets)

    def expire_ready(self, offsets: BitMap64) -> BitMap64:
        """Dead-letter those of the offsets that are ready: their time to live is over. Leased ones keep their lease."""
        found = BitMap64()
        for lane in self.lanes.ready:
            if lane.intersect(offsets):
                found |= lane & offsets
        self.lanes.discard(found)
        self._busy |= found
        self.dead_lettering |= found
        return found

    def dead_letter(self, offsets: BitMap64) -> None:
        """Dead-letter these, in whatever state they are."""
        self._end_leases(offsets)
        self._end_holds(offsets)
        self.lanes.discard(offsets)
        self.delayed -= offsets
        self._busy |= offsets
        self.dead_lettering |= offsets

    def cancel_dead_letter(self, offsets: BitMap64, *, now_ns: int) -> None:
        """Make these ready again: they cannot be dead-lettered."""
        self.dead_lettering -= offsets
        self.return_taken(offsets, now_ns=now_ns)

    def note_settled_back(self, delivery_id: int, offsets: BitMap64) -> None:
        """The member itself returned these: until their next delivery its receipts count as settled, not as expired."""
        self._settled_back.setdefault(delivery_id, BitMap64()).update(offsets)

    def is_settled_back(self, delivery_id: int, offset: int) -> bool:
        """Whether the member of that delivery returned the message, and it was not delivered since."""
        return delivery_id in self._settled_back and offset in self._settled_back[delivery_id]

    # --- transactions --------------------------------------------------------------------------

    def hold(self, transaction: Transaction, delivery_id: int, offsets: BitMap64) -> None:
        """Those that the delivery has wait for the outcome of the transaction, even if their member leaves."""
        delivery = self.deliveries.get(delivery_id)
        claimed = self._claim(delivery_id, offsets)
        if delivery and claimed:
            held = Held(transaction, delivery_id, delivery.member, delivery.started_ns, claimed)
            self.held.setdefault(transaction, []).append(held)

    def held_by(self, transaction: Transaction) -> BitMap64:
        """What the transaction has acknowledged, without what a commit of a position has finished meanwhile."""
        return BitMap64().union(*(one.offsets for one in self.held.get(transaction, ())))

    def not_done(self, offsets: BitMap64) -> BitMap64:
        """Those of the offsets that are neither done nor being dead-lettered."""
        return between(offsets, self.floor, OFFSET_MAX) - self.acked - self.dead_lettering

    def is_held(self, offset: int) -> bool:
        """Whether an open transaction has acknowledged it."""
        return any(offset in one.offsets for holds in self.held.values() for one in holds)

    def unhold(self, transaction: Transaction) -> list[Held]:
        """Give what the transaction holds back to its deliveries, as leases that have expired; returns what it held."""
        holds = self.held.pop(transaction, [])
        for one in holds:
            delivery = self.deliveries.get(one.delivery_id)
            if delivery is None:
                delivery = self.deliveries[one.delivery_id] = OpenDelivery(one.delivery_id, one.member, one.started_ns)
            delivery.lease(one.offsets, 0)
            self._note_deadline(0, one.delivery_id)
            self.in_flight[one.member] = self.in_flight.get(one.member, 0) + len(one.offsets)
        return holds

    def abort(self, transaction: Transaction, policy: RetryPolicy, *, now_ns: int) -> list[tuple[Held, Failed]]:
        """The transaction was aborted: its messages are due at once or, after their last delivery, dead-lettered."""
        outcomes = []
        for one in self.unhold(transaction):
            offsets = one.offsets.copy()  # the delivery's own set shrinks
            failed = self.judge(offsets, policy, now_ns=now_ns, delay_ns=0)
            self.fail(one.delivery_id, failed)
            outcomes.append((one._replace(offsets=offsets), failed))
        return outcomes

    # --- time ----------------------------------------------------------------------------------

    def expire_leases(self, policy: RetryPolicy, *, now_ns: int) -> Iterator[tuple[OpenDelivery, Failed]]:
        """End the leases whose deadline has passed, delivery by delivery."""
        while self._deadlines and self._deadlines[0][0] <= now_ns:
            _, delivery_id = heapq.heappop(self._deadlines)
            delivery = self.deliveries.get(delivery_id)
            late = delivery.late(now_ns=now_ns) if delivery else None
            if delivery and late:
                failed = self.judge(late, policy, now_ns=now_ns)
                self.fail(delivery_id, failed)
                yield delivery, failed

    def retry(self, *, now_ns: int) -> bool:
        """Make ready the retries that are due; returns whether there were any."""
        due = BitMap64()
        while self._waiting and self._waiting[0][0] <= now_ns:
            due |= heapq.heappop(self._waiting)[2]
        self._busy -= due
        self._make_ready(due, now_ns=now_ns)
        return bool(due)

    # --- positions -----------------------------------------------------------------------------

    def below(self, end: int) -> BitMap64:
        """What a commit of that position finishes: everything below, without what is delayed or dead_lettering."""
        return self.below_but(end, self.delayed)

    def below_but(self, end: int, pending: BitMap64) -> BitMap64:
        """The same for a reader that also reads delayed messages, and has processed all below but `pending`."""
        below = span(self.floor, end)
        below -= pending
        below -= self.dead_lettering
        return below

    def commit(self, offsets: BitMap64) -> None:
        """These are done, in whatever state they are; their leases end."""
        self._end_leases(offsets)
        self.lanes.discard(offsets)
        if self.delayed:
            self.delayed -= offsets
        self.finish(offsets)

    def drop_below(self, start: int) -> BitMap64:
        """The log begins at that offset now; returns what was removed with it."""
        gone = span(self.floor, start)
        self.commit(gone)
        return gone

    def cut(self, end: int) -> bool:
        """Forget everything at or after `end`, where the log ends; returns whether there was anything.

        It is about records that a power failure has lost. New records will get these offsets.
        """
        over = between(self.acked | self._busy, end, OFFSET_MAX)
        self.released = between(self.released, 0, end)
        if not over and self.floor <= end:
            return False
        self._end_leases(over)
        self._end_holds(over)
        self._forget_counts(over)
        for offsets in (self.acked, self._busy, self.dead_lettering):
            offsets.difference_update(over)
        self.floor = min(self.floor, end)
        self.frontier = min(self.frontier, end)
        return True

    # --- remembering ---------------------------------------------------------------------------

    def state(self) -> CursorState:
        """Everything that survives a restart, as it is now; nothing is copied."""
        return CursorState(
            self.floor,
            self.acked,
            self._counts,
            self._first.times,
            list(self.deliveries.values()),
            [(at_ns, offsets) for at_ns, _, offsets in self._waiting],
            self.released,
            [one for holds in self.held.values() for one in holds],
        )

    def restore(self, state: CursorState) -> None:
        """Take over the state; only for a new cursor."""
        self.floor = self.frontier = state.floor
        self.acked = state.acked
        self._counts = state.counts
        self._first = FirstDeliveries(state.first)
        self.released = state.released
        for delivery in state.deliveries:
            self.resume(delivery)
        for at_ns, offsets in state.waiting:
            self._busy |= offsets
            self._wait(offsets, at_ns)
        for held in state.held:
            self._busy |= held.offsets
            self.held.setdefault(held.transaction, []).append(held)

    def resume(self, delivery: OpenDelivery) -> None:
        """Replay a delivery: it is open, and no other delivery has its offsets."""
        offsets = delivery.offsets
        if offsets.intersect(self._busy):
            self._end_leases(offsets)
        self._busy |= offsets
        self.released -= offsets
        self.deliveries[delivery.id] = delivery
        self._note_poll(delivery)
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

    def _unlease(self, delivery: OpenDelivery, offsets: BitMap64) -> None:
        """The member no longer has these."""
        left = self.in_flight[delivery.member] - len(offsets)
        if left:
            self.in_flight[delivery.member] = left
        else:
            del self.in_flight[delivery.member]
        if not delivery.parts:
            del self.deliveries[delivery.id]
            polled = self._last_polled.get(delivery.member)
            if polled and delivery in polled:
                polled.remove(delivery)
                if not polled:
                    del self._last_polled[delivery.member]

    def _note_poll(self, delivery: OpenDelivery) -> None:
        if delivery.poll:
            polled = self._last_polled.setdefault(delivery.member, [])
            if polled and polled[0].poll != delivery.poll:
                polled.clear()
            polled.append(delivery)

    def _note_deadline(self, deadline_ns: int, delivery_id: int) -> None:
        heapq.heappush(self._deadlines, (deadline_ns, delivery_id))
        if len(self._deadlines) > self._deadlines_max:  # settled deliveries leave theirs in the heap
            deadlines = [(until_ns, one.id) for one in self.deliveries.values() for until_ns, _ in one.parts]
            heapq.heapify(deadlines)
            self._deadlines = deadlines
            self._deadlines_max = max(DEADLINES_MIN, 4 * len(deadlines))

    def _wait(self, offsets: BitMap64, at_ns: int) -> None:
        self._waiting_number += 1
        heapq.heappush(self._waiting, (at_ns, self._waiting_number, offsets))

    def _by_count(self, offsets: BitMap64) -> Iterator[tuple[int, BitMap64]]:
        """The offsets by how many of their deliveries are finished, the highest number first."""
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
        """Put offsets into their lanes. Those at or after the frontier wait for `admit`, which knows their lanes."""
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
        """No transaction holds these any longer."""
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
