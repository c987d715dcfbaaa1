"""Polls: the next messages for a member, now or as soon as there are any.

    poll ──> partitions assigned to the member ──> GroupDelivery ──> records and a nonce

A poll that finds nothing waits. It tries again when something was stored, fell due, was released or acknowledged, and
is answered at once when its member's partitions change. A call that wakes polls first ends its own work; the polls run
after it, never in the middle of it.
"""

import math
from collections.abc import Sequence
from contextlib import suppress
from functools import partial

from goqueue import events
from goqueue.broker.delivery.group_delivery import DeliveredMessages, GroupDelivery
from goqueue.broker.groups.group_deliveries import GroupDeliveries
from goqueue.broker.local_partitions import LocalPartitions
from goqueue.broker.waits import Waits
from goqueue.clock import MS, Clock
from goqueue.errors import GoQueueError, GroupNotFound, InvalidRequest, StorageError
from goqueue.groups.coordinator import GroupCoordinator
from goqueue.groups.group import Group
from goqueue.groups.member import Member
from goqueue.names import TopicPartition
from goqueue.record.header import Buffer
from goqueue.service.groups import EXTENSION_NS_MAX, POLL_BYTES, POLL_MESSAGES, POLL_MESSAGES_MAX, PollResult
from goqueue.service.pending import Pending
from goqueue.wire import reports

WAIT_MS_MAX = 60_000
BATCHES_MAX = 96
"""In one answer. So many fit into its meta with the longest topic names and 1,000 redelivered messages."""


class WaitingPoll:
    """A poll that waits, or may have to."""

    __slots__ = ("count", "lease_ms", "max_bytes", "member", "pending")

    def __init__(self, member: Member, count: int, max_bytes: int, lease_ms: int | None) -> None:
        self.member = member
        self.count = count
        self.max_bytes = max_bytes
        self.lease_ms = lease_ms
        self.pending: Pending[PollResult] | None = None


class GroupPolls:
    """The waiting polls of one group, and which partition each member is served from first."""

    __slots__ = ("polls", "turns")

    def __init__(self) -> None:
        self.polls: dict[WaitingPoll, None] = {}
        self.turns: dict[str, int] = {}  # member -> which of its partitions is served first


class Polling:
    """The polls of all groups."""

    def __init__(
        self,
        coordinator: GroupCoordinator,
        topics: LocalPartitions,
        deliveries: GroupDeliveries,
        waits: Waits,
        *,
        clock: Clock,
        observe: events.Observer,
    ) -> None:
        self._coordinator = coordinator
        self._topics = topics
        self._waits = waits
        self._deliveries = deliveries
        self._clock = clock
        self._observe = observe
        self._waiting: dict[str, GroupPolls] = {}
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
        """The next messages for the member; waits up to `wait_ms` if there are none."""
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
        poll = WaitingPoll(member, max_messages, max(1, max_bytes), visibility_timeout_ms)
        try:
            result = self._attempt(found, poll)
        finally:
            self.run_woken()
        if result.records or result.polled.gaps or member.revoking or not self._waits.may_wait(wait_ms):
            self._observe(events.PollAnswered(group=group, count=_count(result), waited_ns=0))
            return Pending.of(result)
        return self._wait(found, poll, min(wait_ms, WAIT_MS_MAX))

    def _wait(self, group: Group, poll: WaitingPoll, wait_ms: int) -> Pending[PollResult]:
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
        # A poll of a key-shared group gives up after so many parked messages; there may be more to look at.
        if any(group_delivery.cursor.lanes for group_delivery in self._deliveries.of(group.name).values()):
            self.wake(group.name)
            self.run_woken()
        self._waits.limit(pending, wait_ms, lambda: pending.resolve(self._empty(group, poll)))
        return pending

    def _attempt(self, group: Group, poll: WaitingPoll) -> PollResult:
        """What the member can get now."""
        member = poll.member
        partitions = group.assigned(member.id)
        if not partitions:
            return self._empty(group, poll)
        # First of all: this creates cursors that do not exist yet, where the member wants to start.
        in_turn = self._in_turn(group.name, member, partitions)
        allowance, in_flight = poll.count, 0
        if member.ack == "messages":
            in_flight = self._deliveries.in_flight(group.name, member.id)
            allowance = min(allowance, self._in_flight_max(group.name, member, partitions[0]) - in_flight)
            if allowance <= 0:
                return self._empty(group, poll)
        batches, records = self._collect(group, poll, in_turn, allowance)
        gaps = [gap for group_delivery in in_turn if group_delivery.lost for gap in group_delivery.take_gaps()]
        if not batches:
            empty = self._empty(group, poll)
            empty.polled.gaps = gaps
            return empty
        if member.ack == "messages":
            for batch in batches:
                in_flight += batch.count
        polled = reports.PollAnswer(
            batches, group.generation, group.rebalance_required(member.id), in_flight, gaps=gaps
        )
        return PollResult(polled, records)

    def _collect(
        self, group: Group, poll: WaitingPoll, in_turn: Sequence[GroupDelivery], allowance: int
    ) -> tuple[list[reports.DeliveredBatch], list[Buffer]]:
        """Take messages from one partition after the other, until the answer is full."""
        member, is_key_shared, has_leases = poll.member, group.mode == "key-shared", poll.member.ack == "messages"
        batches: list[reports.DeliveredBatch] = []
        records: list[Buffer] = []
        size = 0
        refused: StorageError | None = None
        is_fed = allowance > 1 and len(in_turn) > 1
        is_shared = is_fed and self._is_mixed(in_turn, allowance)
        for left, group_delivery in zip(range(len(in_turn), 0, -1), in_turn, strict=True):
            group_delivery.use_key_order(is_key_shared)
            lease_ns = self._lease_ns(group_delivery, poll) if has_leases else None
            try:
                delivered = group_delivery.deliver(
                    member.id,
                    count=math.ceil(allowance / left) if is_shared else allowance,
                    max_bytes=poll.max_bytes - size,
                    lease_ns=lease_ns,
                    is_fed=is_fed,
                    poll=member.poll_count,
                )
            except StorageError as error:  # messages of the other partitions are leased by now, and have to go out
                refused = error
                continue
            if delivered is None:
                continue
            raw = delivered.records[0] if len(delivered.records) == 1 else b"".join(delivered.records)
            batches.append(_batch(group_delivery, delivered, len(raw), lease_ns or 0))
            records.append(raw)
            size += len(raw)
            allowance -= len(delivered.offsets)
            if allowance <= 0 or size >= poll.max_bytes or len(batches) >= BATCHES_MAX:
                break
        if not batches and refused is not None:
            raise refused
        return batches, records

    def _empty(self, group: Group, poll: WaitingPoll) -> PollResult:
        member = poll.member
        partitions = group.assigned(member.id) if member.id in group.members else ()
        in_flight = self._deliveries.in_flight(group.name, member.id)
        required = member.id in group.members and group.rebalance_required(member.id)
        reason = ""
        if not partitions:
            reason = "rebalancing" if required else "no_partitions"
        elif member.ack == "messages" and in_flight >= self._in_flight_max(group.name, member, partitions[0]):
            reason = "max_in_flight"
        return PollResult(reports.PollAnswer([], group.generation, required, in_flight, reason), [])

    def _in_turn(self, group: str, member: Member, partitions: Sequence[TopicPartition]) -> list[GroupDelivery]:
        """The member's partitions, another one first each time."""
        turns = self._of(group).turns
        turn = turns.get(member.id, 0) % len(partitions)
        turns[member.id] = turn + 1
        at, start = self._deliveries.at, member.start
        return [at(group, partition, start=start) for partition in (*partitions[turn:], *partitions[:turn])]

    def _is_mixed(self, in_turn: Sequence[GroupDelivery], count: int) -> bool:
        """Feed the cursors; returns whether lanes of different priority have messages then.

        If so, no partition may fill the whole answer: urgent messages of the others have to get in.
        """
        filled = 0
        for group_delivery in in_turn:
            group_delivery.feed(count)
            filled |= group_delivery.cursor.lanes.filled
        return filled & (filled - 1) != 0

    def _lease_ns(self, group_delivery: GroupDelivery, poll: WaitingPoll) -> int:
        asked_ms = poll.lease_ms or poll.member.visibility_timeout_ms
        return (asked_ms or group_delivery.partition.config.visibility_timeout_ms) * MS

    def _in_flight_max(self, group: str, member: Member, partition: TopicPartition) -> int:
        if member.max_in_flight is not None:
            return member.max_in_flight
        return self._deliveries.at(group, partition).partition.config.max_in_flight

    # --- waking --------------------------------------------------------------------------------

    def wake(self, group: str) -> None:
        """Something may be ready for the group."""
        if group in self._waiting and self._waiting[group].polls:
            self._woken[group] = None

    def run_woken(self) -> None:
        """Let the polls that were woken try again."""
        if self._is_waking:
            return
        self._is_waking = True
        try:
            while self._woken:
                name = next(iter(self._woken))
                del self._woken[name]
                self._try_again(name)
        finally:
            self._is_waking = False

    def _try_again(self, name: str) -> None:
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
        """Try again when something is stored."""
        waiting, deliveries = self._of(group.name), self._deliveries.of(group.name)
        watched = {partition for poll in waiting.polls for partition in group.assigned(poll.member.id)}
        for partition in watched:
            group_delivery = deliveries.get(partition)
            if group_delivery is not None:
                group_delivery.leader.watch(waiting, partial(self._stored, group.name))

    def _unwatch(self, group: str, waiting: GroupPolls) -> None:
        for group_delivery in self._deliveries.of(group).values():
            group_delivery.leader.unwatch(waiting)

    def _stored(self, name: str) -> None:
        self.wake(name)
        self.run_woken()

    def answer(self, name: str, member_id: str) -> None:
        """The partitions of the member have changed: its poll ends now."""
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
        """The member has left."""
        if group in self._waiting:
            self._waiting[group].turns.pop(member_id, None)

    def forget(self, group: str) -> None:
        """The group was deleted."""
        waiting = self._waiting.pop(group, None)
        for poll in list(waiting.polls) if waiting else ():
            if poll.pending:
                poll.pending.fail(GroupNotFound(group))

    def give_up(self) -> None:
        """Answer all waiting polls: the broker stops."""
        for name, waiting in list(self._waiting.items()):
            group = self._coordinator.find(name)
            for poll in list(waiting.polls):
                if group and poll.pending:
                    poll.pending.resolve(self._empty(group, poll))

    def _of(self, group: str) -> GroupPolls:
        waiting = self._waiting.get(group)
        if waiting is None:
            waiting = self._waiting[group] = GroupPolls()
        return waiting


def _count(result: PollResult) -> int:
    return sum(batch.count for batch in result.polled.batches)


def _batch(
    group_delivery: GroupDelivery, delivered: DeliveredMessages, size: int, lease_ns: int
) -> reports.DeliveredBatch:
    return reports.DeliveredBatch(
        topic=group_delivery.leader.origin.topic,
        partition=group_delivery.leader.origin.partition,
        nonce=group_delivery.nonce(delivered.delivery_id),
        count=len(delivered.offsets),
        bytes=size,
        flags=delivered.flags,
        deadline_ns=delivered.deadline_ns,
        next_offset=group_delivery.lowest_not_handed(),
        counts=delivered.counts,
        lease_ns=lease_ns,
    )
