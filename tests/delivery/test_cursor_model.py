"""A cursor and its ledger against the simplest model there is: a dict of what each message is.

`Bench` does what a broker does with a cursor: it writes each change down and then makes it, as `group_delivery.py`
says. After every step every offset has to be in the one place where the model has it; a cursor that is replayed from
the records at any moment has to know all that the first one knows; and in the end everything can be delivered.
"""

from random import Random
from typing import Any, NamedTuple

import pytest
from pyroaring import BitMap64

from goqueue.clock import SECOND
from goqueue.delivery import ledger
from goqueue.delivery.cursor import Cursor, Failed
from goqueue.delivery.index import PartitionIndex
from goqueue.delivery.lanes import LANE_COUNT, NORMAL, LaneConfig, LaneRun
from goqueue.delivery.retry import RetryPolicy

END = 40
MEMBERS = ("anna", "ben", "carl")
TRANSACTIONS = (1, 2, 3)
POLICY = RetryPolicy(max_deliveries=3, backoff_initial_ns=SECOND, backoff_max_ns=60 * SECOND)
LEASE_NS = 10 * SECOND
SHIFT_NS = 1_700_000_000 * SECOND
SALT = b"s" * 16


class Leased(NamedTuple):
    """The model's word for a message that a member has."""

    delivery_id: int
    deadline_ns: int


class Held(NamedTuple):
    """The model's word for a message that a transaction has acknowledged; a restart makes it a lease again."""

    transaction: int
    delivery_id: int
    deadline_ns: int  # as the ledger has it


class Waiting(NamedTuple):
    """The model's word for a message that is delivered again at a time."""

    at_ns: int


UNSEEN, READY, TAKEN, DELAYED, DEAD_LETTERING, DONE = "unseen", "ready", "taken", "delayed", "dead_lettering", "done"


class Bench:
    """A cursor, its model and its ledger, and everything that can be done to them."""

    def __init__(self, lanes: list[int], hidden: BitMap64, delayed: BitMap64) -> None:
        self.now_ns = 100 * SECOND
        self.index = PartitionIndex()
        for offset, lane in enumerate(lanes):
            if lane != NORMAL:
                self.index.lanes[lane].add(offset)
        self.hidden = hidden
        self.delays = delayed - hidden
        self.start = self.reset_to = 0
        self.cursor = self._new_cursor(0)
        self.records: list[tuple[bytes, bytes | None]] = []
        self.changes = 0
        self.states: dict[int, object] = dict.fromkeys(range(END), UNSEEN)
        self.snapshot()
        self.counts = dict.fromkeys(range(END), 0)
        self.first: dict[int, int] = {}
        self.given: dict[int, tuple[str, int, BitMap64]] = {}  # all deliveries there ever were
        self.polled: dict[str, tuple[int, int]] = {}  # by member, its last poll: its number and its delivery
        self.has_crashed = False
        self.next_id = 1

    # --- what can be done ----------------------------------------------------------------------

    def admit(self, count: int) -> None:
        start, end = self.cursor.frontier, min(END, self.cursor.frontier + count)
        self.cursor.admit(end, lanes=self.index.lanes, hidden=self.hidden, delayed=self.delays, now_ns=self.now_ns)
        for offset in range(start, end):
            if self.states[offset] == UNSEEN:
                self.states[offset] = DONE if offset in self.hidden else DELAYED if offset in self.delays else READY

    def poll(self, member: str, count: int, fits: int) -> None:
        ready = {offset for offset, state in self.states.items() if state == READY}
        runs = self.cursor.take(count, now_ns=self.now_ns)
        taken = [offset for _, offsets in runs for offset in offsets]
        assert len(taken) == len(set(taken)) == min(count, len(ready))
        assert ready.issuperset(taken)
        for lane, offsets in runs:  # within a lane, nothing is passed over
            assert lane == self._lane(offsets.min())
            passed = {offset for offset in ready if self._lane(offset) == lane} - set(offsets)
            assert not passed or min(passed) > offsets.max()
        delivered = BitMap64(taken[:fits])
        self.cursor.untake([LaneRun(lane, left) for lane, offsets in runs if (left := offsets - delivered)])
        if not delivered:
            return
        assert self.cursor.redelivered(delivered) == {
            offset: self.counts[offset] for offset in delivered if self.counts[offset]
        }
        delivery_id, self.next_id = self.next_id, self.next_id + 1
        until_ns = self.now_ns + LEASE_NS
        number = delivery_id
        self._note_lease(delivery_id, member, delivered, until_ns, number)
        self.cursor.lease(delivery_id, member, delivered.copy(), deadline_ns=until_ns, wall_ns=self._wall, poll=number)
        self.polled[member] = number, delivery_id
        self.given[delivery_id] = member, self._wall, delivered
        for offset in delivered:
            self.states[offset] = Leased(delivery_id, until_ns)

    def repeat(self, member: str, fits: int) -> None:
        """The member repeats its last poll, and so many messages fit into the answer."""
        number, last_id = self.polled.get(member, (1, 0))
        assert not self.cursor.polled(member, number + 1)
        deliveries = self.cursor.polled(member, number)
        left = {one for one, state in self.states.items() if isinstance(state, Leased) and state.delivery_id == last_id}
        if not deliveries:  # a restart makes leases of what was held, whose answer cannot have been lost
            assert self.has_crashed or not left
            return
        (delivery,) = deliveries
        assert set(delivery.offsets) == left
        held = self._held(last_id, delivery.offsets.copy())
        again = BitMap64(held[:fits])
        if again:
            new_id, self.next_id = self.next_id, self.next_id + 1
            until_ns = self.now_ns + LEASE_NS
            self._note_lease(new_id, member, again, until_ns, number)
            self.cursor.reissue(deliveries, new_id, again, deadline_ns=until_ns, wall_ns=self._wall)
            self.polled[member] = number, new_id
            self.given[new_id] = member, self._wall, again
            for offset in again:
                self.states[offset] = Leased(new_id, until_ns)
        if len(again) < len(held):
            self._release(last_id, held - again, counts=False)

    def hand_over(self, count: int) -> None:
        """What is taken and not leased, as for groups that only commit positions."""
        for _, offsets in self.cursor.take(count, now_ns=self.now_ns):
            for offset in offsets:
                self.states[offset] = TAKEN

    def return_handed(self) -> None:
        taken = BitMap64([offset for offset, state in self.states.items() if state == TAKEN])
        self.cursor.return_taken(taken, now_ns=self.now_ns)
        for offset in taken:
            self.states[offset] = READY

    def finish_taken(self, count: int) -> None:
        self._finish(BitMap64([offset for offset, state in self.states.items() if state == TAKEN][:count]))

    def ack(self, delivery_id: int, offsets: BitMap64) -> None:
        held = self._held(delivery_id, offsets)
        if held:
            self._note(ledger.Acked([(delivery_id, ledger.blob(held))]))
            self.cursor.ack(delivery_id, held)
            self._done(held)

    def nack(self, delivery_id: int, offsets: BitMap64, delay_ns: int | None) -> None:
        held = self._held(delivery_id, offsets)
        if held:
            failed = self.cursor.judge(held, POLICY, now_ns=self.now_ns, delay_ns=delay_ns)
            self._note_retried(delivery_id, failed)
            self.cursor.fail(delivery_id, failed)
            self._fail(delivery_id, held, failed, delay_ns)

    def reject(self, delivery_id: int, offsets: BitMap64) -> None:
        held = self._held(delivery_id, offsets)
        if held:
            self.cursor.reject(delivery_id, held)
            self._note_dead_lettering(delivery_id, held)
            for offset in held:
                self._count(delivery_id, offset)
                self.states[offset] = DEAD_LETTERING

    def extend(self, delivery_id: int, offsets: BitMap64, by_ns: int) -> None:
        held = self._held(delivery_id, offsets)
        if held:
            until_ns = self.now_ns + by_ns
            self._note(ledger.Extended(delivery_id, until_ns + SHIFT_NS, ledger.blob(held)))
            self.cursor.extend(delivery_id, held, deadline_ns=until_ns)
            for offset in held:
                self.states[offset] = Leased(delivery_id, until_ns)

    def release(self, delivery_id: int, offsets: BitMap64, *, counts: bool) -> None:
        held = self._held(delivery_id, offsets)
        if held:
            self._release(delivery_id, held, counts=counts)

    def leave(self, member: str, *, is_lost: bool) -> None:
        for delivery in [one for one in self.cursor.deliveries.values() if one.member == member]:
            offsets = delivery.offsets.copy()
            if is_lost:
                failed = self.cursor.judge(offsets, POLICY, now_ns=self.now_ns)
                self.cursor.fail(delivery.id, failed)
                self._note_retried(delivery.id, failed)
                self._fail(delivery.id, offsets, failed, None)
            else:
                self._release(delivery.id, offsets, counts=True)
        assert member not in self.cursor.in_flight

    def pass_time(self, by_ns: int) -> None:
        self.now_ns += by_ns
        for delivery, failed in self.cursor.expire_leases(POLICY, now_ns=self.now_ns):
            late = BitMap64([offset for offset, state in self.states.items() if self._is_late(state, delivery.id)])
            self._note_retried(delivery.id, failed)
            self._fail(delivery.id, late, failed, None)
        assert not any(isinstance(state, Leased) and state.deadline_ns <= self.now_ns for state in self.states.values())
        self.cursor.retry(now_ns=self.now_ns)
        for offset, state in self.states.items():
            if isinstance(state, Waiting) and state.at_ns <= self.now_ns:
                self.states[offset] = READY if offset < self.cursor.frontier else UNSEEN
        assert self.cursor.next_ns is None or self.cursor.next_ns > self.now_ns

    def hold(self, transaction: int, delivery_id: int, offsets: BitMap64) -> None:
        held = self._held(delivery_id, offsets)
        if held:
            self._note(ledger.HeldBack(1, transaction, delivery_id, ledger.blob(held)))
        self.cursor.hold((1, transaction), delivery_id, offsets if held == offsets else held)
        for offset in held:
            lease = self.states[offset]
            assert isinstance(lease, Leased)
            self.states[offset] = Held(transaction, delivery_id, lease.deadline_ns)

    def end_held(self, transaction: int, *, commit: bool) -> None:
        held = BitMap64([offset for offset, state in self.states.items() if _is_held(state, transaction)])
        assert self.cursor.held_by((1, transaction)) == held
        if commit:
            self._finish(held)
            return
        returned = BitMap64()
        self._note(ledger.GivenBack(1, transaction))
        for one, failed in self.cursor.abort((1, transaction), POLICY, now_ns=self.now_ns):
            assert self.given[one.delivery_id][:2] == (one.member, one.started_ns)
            self._note_retried(one.delivery_id, failed)
            self._fail(one.delivery_id, one.offsets, failed, 0)
            returned |= one.offsets
        assert returned == held
        assert not self.cursor.held_by((1, transaction))
        self.pass_time(0)

    def finish_dead_letters(self, count: int) -> None:
        self._finish(BitMap64([offset for offset, state in self.states.items() if state == DEAD_LETTERING][:count]))

    def cancel_dead_letter(self, count: int) -> None:
        dead_lettering = BitMap64(
            [one for one, state in self.states.items() if state == DEAD_LETTERING and one >= self.cursor.floor][:count]
        )
        self.cursor.cancel_dead_letter(dead_lettering, now_ns=self.now_ns)
        self.snapshot()
        for offset in dead_lettering:
            self.states[offset] = READY if offset < self.cursor.frontier else UNSEEN

    def fire(self, count: int) -> None:
        due = self.delays[:count]
        self.delays -= due
        is_new = self.cursor.fire(due, now_ns=self.now_ns)
        assert is_new == any(self.states[offset] == DELAYED for offset in due)
        for offset in due:
            if self.states[offset] == DELAYED:
                self.states[offset] = READY

    def cancel(self, count: int) -> None:
        cancelled = self.delays[:count]
        self.delays -= cancelled
        self.hidden |= cancelled
        self.cursor.hide(cancelled)
        for offset in cancelled:
            if self.states[offset] == DELAYED:
                self.states[offset] = DONE

    def outlive(self, offsets: BitMap64) -> None:
        """The time to live of these is over."""
        over = self.cursor.expire_ready(offsets)
        assert over == BitMap64([offset for offset in offsets if self.states[offset] == READY])
        if over:
            self._note_dead_lettering(0, over)
        for offset in over:
            self.states[offset] = DEAD_LETTERING

    def commit(self, ahead: int) -> None:
        offset = min(END, self.cursor.floor + ahead)
        self.admit(offset - self.cursor.frontier)
        below = self.cursor.below(offset)
        self._note(ledger.Committed(ledger.blob(below), "so far"))
        self.cursor.commit(below)
        self._done(BitMap64([one for one in range(offset) if self.states[one] not in (DELAYED, DEAD_LETTERING)]))

    def reset(self, ahead: int) -> None:
        offset = min(END, max(self.cursor.floor + ahead, self.start))
        dead_lettering = self.cursor.dead_lettering
        self.reset_to = offset
        self.cursor = self._new_cursor(offset)
        self.cursor.dead_letter(dead_lettering)
        self.snapshot()
        for one, state in self.states.items():
            if state != DEAD_LETTERING:
                self.states[one] = DONE if one < offset else UNSEEN
            if state != DEAD_LETTERING:
                self._forget_counts(one)
        for one in dead_lettering:  # how often they were delivered is forgotten
            self._forget_counts(one)

    def drop(self, count: int) -> None:
        """Retention takes the beginning of the log."""
        self.start = min(END, self.start + count)
        self.delays -= BitMap64(range(self.start))
        if self.cursor.floor < self.start:
            gone = self.cursor.drop_below(self.start)
            assert gone.max() == self.start - 1
        passed = {offset for offset in self._in(DEAD_LETTERING) if offset < self.reset_to}
        self._done(BitMap64(range(self.start)) - BitMap64(passed & set(self.cursor.dead_lettering)))

    def snapshot(self) -> None:
        dead_lettering = self.cursor.dead_lettering
        dead_letterings = (
            [ledger.DeadLettering(0, ledger.blob(dead_lettering), "REJECTED", "", "", -1, 0)] if dead_lettering else []
        )
        saved = ledger.snapshot(self.cursor, salt=SALT, dead_letterings=dead_letterings, metadata="", shift_ns=SHIFT_NS)
        self.records.append((ledger.cursor_key("g"), ledger.encode(saved)))
        self.changes = 0
        for offset, state in self.states.items():
            if isinstance(state, Held):
                self.states[offset] = state._replace(deadline_ns=0)

    def compact(self) -> None:
        """Of each key the last record stays."""
        last = {key: place for place, (key, _) in enumerate(self.records)}
        self.records = [record for place, record in enumerate(self.records) if last[record[0]] == place]

    def crash(self) -> None:
        self.pass_time(0)
        self.cursor = self.replayed()
        self.has_crashed = True
        self.cursor.retry(now_ns=self.now_ns)
        if self.cursor.floor < self.start:
            self.cursor.drop_below(self.start)
        for offset, state in self.states.items():
            if state == DEAD_LETTERING:
                continue
            if offset < self.cursor.floor or state == DONE:
                self.states[offset] = DONE if offset < self.cursor.floor or offset not in self.hidden else UNSEEN
            elif state in (READY, TAKEN, DELAYED):
                self.states[offset] = UNSEEN
        for offset in self.cursor.acked:
            self.states[offset] = DONE

    # --- what has to hold ----------------------------------------------------------------------

    def check(self) -> None:
        cursor = self.cursor
        done = {offset for offset, state in self.states.items() if state == DONE}
        passed = {offset for offset in self._in(DEAD_LETTERING) if offset < self.reset_to}  # they are not forgotten
        assert cursor.floor == min(set(range(END)) - done - passed, default=END)
        assert set(cursor.acked) == {offset for offset in done if offset > cursor.floor}
        for lane in range(LANE_COUNT):
            expected = {one for one, state in self.states.items() if state == READY and self._lane(one) == lane}
            assert set(cursor.lanes.ready[lane]) == expected
        assert set(cursor.delayed) == self._in(DELAYED)
        assert set(cursor.dead_lettering) == self._in(DEAD_LETTERING)
        leased = {
            offset: Leased(delivery.id, deadline_ns)
            for delivery in cursor.deliveries.values()
            for deadline_ns, offsets in delivery.parts
            for offset in offsets
        }
        assert leased == {offset: state for offset, state in self.states.items() if isinstance(state, Leased)}
        waiting = {offset: Waiting(at_ns) for at_ns, offsets in cursor.state().waiting for offset in offsets}
        assert waiting == {offset: state for offset, state in self.states.items() if isinstance(state, Waiting)}
        held = {
            offset: (transaction[1], one.delivery_id)
            for transaction, holds in cursor.held.items()
            for one in holds
            for offset in one.offsets
        }
        assert held == {offset: state[:2] for offset, state in self.states.items() if isinstance(state, Held)}
        assert all(one.offsets for holds in cursor.held.values() for one in holds)
        known = done | self._in(DEAD_LETTERING) | set(leased) | set(waiting) | set(held)
        assert self._in(UNSEEN) == set(range(cursor.frontier, END)) - known
        assert {offset: cursor.deliveries_of(offset) for offset in range(END)} == self.counts
        for offset in range(END):
            assert cursor.first_delivery_ns(offset) == self.first.get(offset)
            assert cursor.is_done(offset) == (self.states[offset] in (DONE, DEAD_LETTERING))
        members = [delivery.member for delivery in cursor.deliveries.values() for _ in delivery.offsets]
        assert cursor.in_flight == {member: members.count(member) for member in set(members)}
        assert cursor.in_flight_count == len(leased)
        assert cursor.waiting_count == len(waiting)

    def check_replay(self) -> None:
        """A cursor from the ledger knows what this one knows."""
        self.pass_time(0)
        found, live = self.replayed(), self.cursor
        assert found.floor <= live.floor
        if found.floor < self.start:
            found.drop_below(self.start)
        found.admit(live.frontier, lanes=self.index.lanes, hidden=self.hidden, delayed=self.delays, now_ns=self.now_ns)
        found.retry(now_ns=self.now_ns)
        assert found.floor == live.floor
        assert found.acked == live.acked
        assert found.dead_lettering == live.dead_lettering
        assert found.delayed == live.delayed
        assert found.in_flight == live.in_flight
        assert _spelled_out(found) == _spelled_out(live)
        for member, (number, _) in self.polled.items():
            ids = [[one.id for one in cursor.polled(member, number)] for cursor in (live, found)]
            assert not ids[0] or ids[0] == ids[1]
        taken = BitMap64(list(self._in(TAKEN)))
        for lane, lane_taken in enumerate(self._split(taken)):
            assert found.lanes.ready[lane] == live.lanes.ready[lane] | lane_taken

    def replayed(self) -> Cursor:
        cursor = self._new_cursor(0)
        for key, value in self.records:
            entry = ledger.decode(key, value)
            assert entry is not None
            assert entry.value is not None
            if isinstance(entry.value, ledger.CursorSnapshot):
                assert entry.value.salt == SALT
                cursor = self._new_cursor(entry.value.floor)
                ledger.restore(cursor, entry.value, shift_ns=SHIFT_NS)
            else:
                ledger.replay(cursor, entry.value, shift_ns=SHIFT_NS, now_ns=self.now_ns)
        return cursor

    def drain(self) -> None:
        """Everything can be delivered and acknowledged in the end."""
        self.return_handed()
        for transaction in TRANSACTIONS:
            self.end_held(transaction, commit=transaction % 2 == 0)
        for _ in range(20):
            self.admit(END)
            self.fire(END)
            self.finish_dead_letters(END)
            self.poll("anna", END, END)
            for delivery_id in list(self.cursor.deliveries):
                self.ack(delivery_id, BitMap64(range(END)))
            self.pass_time(3600 * SECOND)
            self.check()
        assert self.cursor.floor == END
        assert not self.cursor.acked
        assert not self.cursor.held
        assert not self.cursor._busy
        assert not self.cursor._counts
        assert not self.cursor._first.times
        assert not self.cursor.released
        assert not self.cursor._settled_back
        assert self.cursor.next_ns is None

    # --- inside --------------------------------------------------------------------------------

    @property
    def _wall(self) -> int:
        return self.now_ns + SHIFT_NS

    def _new_cursor(self, floor: int) -> Cursor:
        return Cursor(floor=floor, lanes=LaneConfig(), split=self.index.split, now_ns=self.now_ns)

    def _note(self, change: ledger.Change) -> None:
        self.records.append((ledger.change_key("g", self.changes), ledger.encode(change)))
        self.changes += 1

    def _note_lease(self, delivery_id: int, member: str, offsets: BitMap64, until_ns: int, number: int) -> None:
        raw = ledger.blob(offsets)
        self._note(ledger.Leased(delivery_id, member, self._wall, until_ns + SHIFT_NS, raw, number))

    def _note_retried(self, delivery_id: int, failed: Failed) -> None:
        if failed.requeued:
            parts = [(part.at_ns + SHIFT_NS, ledger.blob(part.offsets)) for part in failed.requeued]
            self._note(ledger.Retried(delivery_id, parts))
        if failed.dead:
            self._note_dead_lettering(delivery_id, failed.dead)

    def _note_dead_lettering(self, delivery_id: int, offsets: BitMap64) -> None:
        self._note(ledger.DeadLettering(delivery_id, ledger.blob(offsets), "REJECTED", "", "", 7, self._wall))

    def _held(self, delivery_id: int, offsets: BitMap64) -> BitMap64:
        held = self.cursor.leased(delivery_id, offsets, now_ns=self.now_ns)
        assert held == BitMap64(
            [
                offset
                for offset in offsets
                if isinstance(state := self.states[offset], Leased)
                and state.delivery_id == delivery_id
                and state.deadline_ns > self.now_ns
            ]
        )
        return held

    def _is_late(self, state: object, delivery_id: int) -> bool:
        return isinstance(state, Leased) and state.delivery_id == delivery_id and state.deadline_ns <= self.now_ns

    def _fail(self, delivery_id: int, offsets: BitMap64, failed: Failed, delay_ns: int | None) -> None:
        assert BitMap64().union(failed.dead, *(part.offsets for part in failed.requeued)) == offsets
        for offset in offsets:
            self._count(delivery_id, offset)
            count = self.counts[offset]
            if count >= POLICY.max_deliveries:
                self.states[offset] = DEAD_LETTERING
                assert offset in failed.dead
            else:
                at_ns = self.now_ns + (SECOND * 2 ** (count - 1) if delay_ns is None else delay_ns)
                self.states[offset] = Waiting(at_ns)
        for part in failed.requeued:
            assert {part.next_count} == {self.counts[offset] + 1 for offset in part.offsets}
            assert {Waiting(part.at_ns)} == {self.states[offset] for offset in part.offsets}

    def _release(self, delivery_id: int, offsets: BitMap64, *, counts: bool) -> None:
        self._note(ledger.Released(delivery_id, counts, ledger.blob(offsets)))
        self.cursor.release(delivery_id, offsets, now_ns=self.now_ns, counts=counts)
        for offset in offsets:
            if counts:
                self._count(delivery_id, offset)
            self.states[offset] = READY if offset < self.cursor.frontier else UNSEEN

    def _count(self, delivery_id: int, offset: int) -> None:
        self.counts[offset] += 1
        self.first.setdefault(offset, self.given[delivery_id][1])

    def _forget_counts(self, offset: int) -> None:
        self.counts[offset] = 0
        self.first.pop(offset, None)

    def _finish(self, offsets: BitMap64) -> None:
        if offsets:
            self._note(ledger.Finished(ledger.blob(offsets)))
            self.cursor.finish(offsets)
            self._done(offsets)

    def _done(self, offsets: BitMap64) -> None:
        for offset in offsets:
            self.states[offset] = DONE
            self._forget_counts(offset)

    def _in(self, wanted: str) -> set[int]:
        return {offset for offset, state in self.states.items() if state == wanted}

    def _lane(self, offset: int) -> int:
        return next((lane for lane, offsets in enumerate(self.index.lanes) if offset in offsets), NORMAL)

    def _split(self, offsets: BitMap64) -> list[BitMap64]:
        parts = [BitMap64() for _ in range(LANE_COUNT)]
        for offset in offsets:
            parts[self._lane(offset)].add(offset)
        return parts


def _is_held(state: object, transaction: int) -> bool:
    return isinstance(state, Held) and state.transaction == transaction


def _spelled_out(cursor: Cursor) -> list[dict[Any, Any]]:
    """What a cursor remembers, message by message."""
    state = cursor.state()
    leases = {
        offset: (delivery.id, delivery.member, delivery.started_ns, deadline_ns)
        for delivery in state.deliveries
        for deadline_ns, offsets in delivery.parts
        for offset in offsets
    }
    waiting = {offset: at_ns for at_ns, offsets in state.waiting for offset in offsets}
    held = {offset: one[:4] for one in state.held for offset in one.offsets}
    return [leases, waiting, held, state.counts, state.first]


SPANS_NS = (0, SECOND // 2, SECOND, 4 * SECOND, 11 * SECOND, 100 * SECOND)
USUAL = ("admit", "poll", "poll", "ack", "nack", "pass_time")
RARE = (
    "hand_over", "return_handed", "finish_taken", "reject", "extend", "release", "leave", "finish_dead_letters",
    "cancel_dead_letter", "fire", "cancel", "outlive", "commit", "reset", "drop", "snapshot", "compact",
    "crash", "hold", "hold", "end_held", "repeat", "repeat",
)  # fmt: skip


def a_step(bench: Bench, rng: Random) -> None:
    """Do something, by chance."""
    few = rng.randrange(1, 8)
    name = rng.choice(USUAL if rng.random() < 0.75 else RARE)
    delivery_id = bench.next_id - 1 - min(rng.randrange(4), rng.randrange(4))
    given = bench.given.get(delivery_id, ("", 0, BitMap64()))[2]
    chosen = given if rng.random() < 0.3 else BitMap64(rng.choices(given or [0], k=rng.randrange(1, 5)))
    if rng.random() < 0.1:
        chosen = chosen | BitMap64([rng.randrange(END)])  # one that it may never have had
    match name:
        case "poll":
            bench.poll(rng.choice(MEMBERS), few, few if rng.random() < 0.8 else rng.randrange(few))
        case "repeat":
            bench.repeat(rng.choice(MEMBERS), rng.randrange(8))
        case "ack" | "reject":
            getattr(bench, name)(delivery_id, chosen)
        case "nack":
            bench.nack(delivery_id, chosen, rng.choice((None, None, rng.choice(SPANS_NS))))
        case "extend":
            bench.extend(delivery_id, chosen, rng.choice(SPANS_NS[1:]))
        case "release":
            bench.release(delivery_id, chosen, counts=rng.random() < 0.5)
        case "hold":
            bench.hold(rng.choice(TRANSACTIONS), delivery_id, chosen)
        case "end_held":
            bench.end_held(rng.choice(TRANSACTIONS), commit=rng.random() < 0.5)
        case "leave":
            bench.leave(rng.choice(MEMBERS), is_lost=rng.random() < 0.5)
        case "pass_time":
            bench.pass_time(rng.choice(SPANS_NS))
        case "outlive":
            bench.outlive(BitMap64(rng.sample(range(END), 10)))
        case "commit":
            bench.commit(rng.randrange(-2, 10))
        case "reset":
            bench.reset(rng.randrange(-20, 3))
        case "drop":
            bench.drop(rng.randrange(3))
        case "return_handed" | "snapshot" | "compact" | "crash":
            getattr(bench, name)()
        case _:
            getattr(bench, name)(few)


def run(seed: int) -> None:
    rng = Random(seed)
    lanes = [rng.choice((NORMAL, NORMAL, NORMAL, 0, 1, 3, 4)) for _ in range(END)]
    hidden = BitMap64(rng.sample(range(END), 4))
    delayed = BitMap64(rng.sample(range(END), 6))
    bench = Bench(lanes, hidden, delayed)
    for _ in range(120):
        a_step(bench, rng)
        bench.check()
        if rng.random() < 0.3:
            bench.check_replay()
    bench.check_replay()
    bench.drain()


@pytest.mark.parametrize("seed", range(40))
def test_every_message_is_where_the_model_has_it(seed: int) -> None:
    run(seed)
