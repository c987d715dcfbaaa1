"""Polls: the next messages for a member, now or as soon as there are any.

    poll ──> partitions that are the member's ──> PartitionDelivery ──> records and a nonce

A poll that finds nothing waits. It looks again when something was stored, fell due, was given back or acknowledged, and
is answered at once when its member's partitions change. Whatever is woken is looked at when the call that woke it is
over, never in the middle of it.
"""

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Protocol

from goqueue import events
from goqueue.broker.delivery.partition_delivery import PartitionDelivery
from goqueue.broker.groups.places import Place, Places, Topics
from goqueue.clock import MS, Clock
from goqueue.errors import GoQueueError, GroupNotFound, InvalidRequest, StorageError
from goqueue.groups.coordinator import Coordinator
from goqueue.groups.group import Group
from goqueue.groups.member import Member
from goqueue.names import TopicPartition
from goqueue.record.header import Buffer
from goqueue.service.groups import (
    EXTENSION_NS_MAX,
    POLL_BYTES,
    POLL_MESSAGES,
    POLL_MESSAGES_MAX,
    PollResult,
)
from goqueue.service.pending import Pending
from goqueue.wire import reports

WAIT_MS_MAX = 60_000
BATCHES_MAX = 128
"""In one answer, so that what is told of them fits the meta of a frame."""


class Waits(Topics, Protocol):
    """What polls need beside the topics."""

    def may_wait(self, wait_ms: int) -> bool: ...
    def limit_wait(self, pending: Pending[PollResult], wait_ms: int, give_up: Callable[[], None]) -> None: ...


class Poll:
    """A poll that waits, or is about to."""

    __slots__ = ("count", "lease_ms", "max_bytes", "member", "pending")

    def __init__(self, member: Member, count: int, max_bytes: int, lease_ms: int | None) -> None:
        self.member = member
        self.count = count
        self.max_bytes = max_bytes
        self.lease_ms = lease_ms
        self.pending: Pending[PollResult] | None = None


class Waiting:
    """The polls of one group that wait, and whose turn it is."""

    __slots__ = ("polls", "turns")

    def __init__(self) -> None:
        self.polls: dict[Poll, None] = {}
        self.turns: dict[str, int] = {}  # member -> which of its partitions is asked first


class Polling:
    """The polls of all groups."""

    def __init__(
        self,
        coordinator: Coordinator,
        topics: Waits,
        places: Places,
        *,
        clock: Clock,
        observe: events.Observer,
    ) -> None:
        self._coordinator = coordinator
        self._topics = topics
        self._places = places
        self._clock = clock
        self._observe = observe
        self._waiting: dict[str, Waiting] = {}
        self._woken: dict[str, None] = {}
        self._is_waking = False

    def poll(
        self,
        group: str,
        member_id: str,
        *,
        generation: int | None = None,
        max_messages: int = POLL_MESSAGES,
        max_bytes: int = POLL_BYTES,
        wait_ms: int = 0,
        visibility_timeout_ms: int | None = None,
    ) -> Pending[PollResult]:
        """The next messages for the member; waits for the first one if there is none."""
        if not 1 <= max_messages <= POLL_MESSAGES_MAX:
            text = f"invalid max_messages {max_messages}: must be 1 to {POLL_MESSAGES_MAX}"
            raise InvalidRequest(text, path="max_messages")
        if visibility_timeout_ms is not None and not 1 <= visibility_timeout_ms * MS <= EXTENSION_NS_MAX:
            raise InvalidRequest("invalid visibility_timeout: must be 1ms to 12h", path="visibility_timeout")
        found = self._coordinator.get(group)
        member = found.check(member_id, generation)
        now_ns, wall_ns = self._clock.monotonic_ns(), self._clock.wall_ns()
        found.touch(member_id, now_ns=now_ns, wall_ns=wall_ns)
        member.poll_count += 1
        poll = Poll(member, max_messages, max(1, max_bytes), visibility_timeout_ms)
        try:
            result = self._attempt(found, poll)
        finally:
            self.run_woken()
        if result.records or result.polled.gaps or member.asked or not self._topics.may_wait(wait_ms):
            self._observe(events.PollAnswered(group=group, count=_count(result), waited_ns=0))
            return Pending.of(result)
        return self._wait(found, poll, min(wait_ms, WAIT_MS_MAX))

    def _wait(self, group: Group, poll: Poll, wait_ms: int) -> Pending[PollResult]:
        pending: Pending[PollResult] = Pending()
        poll.pending = pending
        waiting = self._of(group.name)
        waiting.polls[poll] = None
        self._watch(group)
        began_ns = self._clock.monotonic_ns()

        def over(done: Pending[PollResult]) -> None:
            waiting.polls.pop(poll, None)
            if not waiting.polls:
                self._unwatch(group.name, waiting)
            with suppress(GoQueueError):
                waited_ns = self._clock.monotonic_ns() - began_ns
                self._observe(events.PollAnswered(group=group.name, count=_count(done.result()), waited_ns=waited_ns))

        pending.then(over)
        if any(
            one.cursor.lanes for _, one in self._places.of(group.name).values()
        ):  # one look may not have been enough
            self.wake(group.name)
            self.run_woken()
        self._topics.limit_wait(pending, wait_ms, lambda: pending.resolve(self._empty(group, poll)))
        return pending

    def _attempt(self, group: Group, poll: Poll) -> PollResult:
        """What the member can get now."""
        member, name = poll.member, group.name
        partitions = group.assigned(member.id)
        if not partitions:
            return self._empty(group, poll)
        has_leases = member.ack == "messages"
        places = self._in_turn(name, member, partitions)
        allowance = poll.count
        in_flight = 0
        if has_leases:
            in_flight = self._places.in_flight(name, member.id)
            allowance = min(allowance, self._in_flight_max(name, member, partitions[0]) - in_flight)
            if allowance <= 0:
                return self._empty(group, poll)
        batches: list[reports.DeliveredBatch] = []
        records: list[Buffer] = []
        size = 0
        refused: StorageError | None = None
        is_fed = allowance > 1 and len(places) > 1
        shares = is_fed and self._is_mixed(places, allowance)
        for left, (delivery, one) in zip(range(len(places), 0, -1), places, strict=True):
            if group.mode == "key-shared":
                delivery.keep_key_order(one)
            else:
                delivery.end_key_order(one)
            count = math.ceil(allowance / left) if shares else allowance
            lease_ns = self._lease_ns(delivery, member, poll) if has_leases else None
            delivered = None
            try:
                delivered = delivery.deliver(
                    one,
                    member.id,
                    count=count,
                    max_bytes=poll.max_bytes - size,
                    lease_ns=lease_ns,
                    is_fed=is_fed,
                    poll=member.poll_count,
                )
            except StorageError as error:  # what came from the others is leased, and has to go out
                refused = error
            if delivered is None:
                continue
            raw = delivered.records[0] if len(delivered.records) == 1 else b"".join(delivered.records)
            origin = delivery.leader.origin
            batches.append(
                reports.DeliveredBatch(
                    *origin,
                    delivery.nonce(one, delivered.delivery_id),
                    len(delivered.offsets),
                    len(raw),
                    delivered.flags,
                    delivered.deadline_ns,
                    delivery.lowest_not_handed(one),
                    delivered.counts,
                    lease_ns or 0,
                )
            )
            records.append(raw)
            size += len(raw)
            allowance -= len(delivered.offsets)
            if has_leases:
                in_flight += len(delivered.offsets)
            if allowance <= 0 or size >= poll.max_bytes or len(batches) >= BATCHES_MAX:
                break
        if not batches and refused is not None:
            raise refused
        gaps = [gap for delivery, one in places if one.lost for gap in delivery.take_gaps(one)]
        if not batches:
            empty = self._empty(group, poll)
            empty.polled.gaps = gaps
            return empty
        polled = reports.Polled(batches, group.generation, group.rebalance_required(member.id), in_flight, gaps=gaps)
        return PollResult(polled, records)

    def _empty(self, group: Group, poll: Poll) -> PollResult:
        member = poll.member
        partitions = group.assigned(member.id) if member.id in group.members else ()
        in_flight = self._places.in_flight(group.name, member.id)
        required = member.id in group.members and group.rebalance_required(member.id)
        reason = ""
        if not partitions:
            reason = "rebalancing" if required else "no_partitions"
        elif member.ack == "messages" and in_flight >= self._in_flight_max(group.name, member, partitions[0]):
            reason = "max_in_flight"
        return PollResult(reports.Polled([], group.generation, required, in_flight, reason), [])

    def _in_turn(self, group: str, member: Member, partitions: Sequence[TopicPartition]) -> list[Place]:
        """The places of the member's partitions, another one first each time."""
        turns = self._of(group).turns
        turn = turns.get(member.id, 0) % len(partitions)
        turns[member.id] = turn + 1
        return [self._places.at(group, one, start=member.start) for one in (*partitions[turn:], *partitions[:turn])]

    def _is_mixed(self, places: Sequence[Place], count: int) -> bool:
        """Feed the cursors; whether lanes of different priority have something then, so that no partition may use up
        the whole answer.
        """
        filled = 0
        for delivery, one in places:
            delivery.feed(one, count)
            filled |= one.cursor.lanes.filled
        return filled & (filled - 1) != 0

    def _lease_ns(self, delivery: PartitionDelivery, member: Member, poll: Poll) -> int:
        asked_ms = poll.lease_ms or member.visibility_timeout_ms
        return (asked_ms or delivery.config.visibility_timeout_ms) * MS

    def _in_flight_max(self, group: str, member: Member, partition: TopicPartition) -> int:
        if member.max_in_flight is not None:
            return member.max_in_flight
        return self._places.at(group, partition).delivery.config.max_in_flight

    # --- waking --------------------------------------------------------------------------------

    def wake(self, group: str) -> None:
        """Something may be ready for the group."""
        if group in self._waiting and self._waiting[group].polls:
            self._woken[group] = None

    def run_woken(self) -> None:
        """Let the polls that were woken look again."""
        if self._is_waking:
            return
        self._is_waking = True
        try:
            while self._woken:
                name = next(iter(self._woken))
                del self._woken[name]
                self._look_again(name)
        finally:
            self._is_waking = False

    def _look_again(self, name: str) -> None:
        group, waiting = self._coordinator.find(name), self._waiting.get(name)
        if group is None or waiting is None:
            return
        for poll in list(waiting.polls):
            if poll.pending is None or poll.pending.is_done or poll.member.id not in group.members:
                continue
            try:
                result = self._attempt(group, poll)
            except GoQueueError as error:
                poll.pending.fail(error)
                continue
            if result.records or result.polled.gaps:
                poll.pending.resolve(result)
        if waiting.polls:
            self._watch(group)

    def _watch(self, group: Group) -> None:
        """Look again when something is stored."""
        waiting, places = self._of(group.name), self._places.of(group.name)
        watched = {partition for poll in waiting.polls for partition in group.assigned(poll.member.id)}
        for partition in watched:
            place = places.get(partition)
            if place is not None:
                place.delivery.leader.watch(waiting, partial(self._stored, group.name))

    def _unwatch(self, group: str, waiting: Waiting) -> None:
        for place in self._places.of(group).values():
            place.delivery.leader.unwatch(waiting)

    def _stored(self, name: str) -> None:
        self.wake(name)
        self.run_woken()

    def answer(self, name: str, member_id: str) -> None:
        """The partitions of the member have changed: its poll does not wait any longer."""
        waiting, group = self._waiting.get(name), self._coordinator.find(name)
        if waiting is None:
            return
        for poll in list(waiting.polls):
            if poll.member.id == member_id and poll.pending:
                try:
                    if group is None or member_id not in group.members:
                        (group or self._coordinator.get(name)).check(member_id, None)
                    elif self._is_waking:
                        poll.pending.resolve(self._empty(group, poll))
                    else:
                        poll.pending.resolve(self._attempt(group, poll))
                except GoQueueError as error:
                    poll.pending.fail(error)

    def touch(self, *, now_ns: int, wall_ns: int) -> None:
        """A poll counts as a heartbeat, also while it waits."""
        for name, waiting in self._waiting.items():
            group = self._coordinator.find(name)
            for poll in waiting.polls if group else ():
                if group and poll.member.id in group.members:
                    group.touch(poll.member.id, now_ns=now_ns, wall_ns=wall_ns)

    def forget_member(self, group: str, member_id: str) -> None:
        """The member is gone."""
        if group in self._waiting:
            self._waiting[group].turns.pop(member_id, None)

    def forget(self, group: str) -> None:
        """The group is gone."""
        waiting = self._waiting.pop(group, None)
        for poll in list(waiting.polls) if waiting else ():
            if poll.pending:
                poll.pending.fail(GroupNotFound(group))

    def give_up(self) -> None:
        """Answer all polls that wait: the broker stops."""
        for name, waiting in list(self._waiting.items()):
            group = self._coordinator.find(name)
            for poll in list(waiting.polls):
                if group and poll.pending:
                    poll.pending.resolve(self._empty(group, poll))

    def _of(self, group: str) -> Waiting:
        waiting = self._waiting.get(group)
        if waiting is None:
            waiting = self._waiting[group] = Waiting()
        return waiting


def _count(result: PollResult) -> int:
    return sum(batch.count for batch in result.polled.batches)
