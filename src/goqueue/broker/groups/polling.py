"""Polls: the next messages for a member, now or as soon as there are any.

    poll ──> partitions assigned to the member ──> GroupDelivery ──> records and a nonce

A member may number its polls: one that has the number of the one before repeats it, because the answer was lost. It
brings what that answer held, and more if there is room; it may be repeated as often as it takes. If the one before
still waits, it ends: its answer could only be lost as well.

A partition that has no leader here, or whose disk fails, is left out, and the others are served. If no partition has a
leader, a poll waits as if there were no messages, and tries again when one has. If all of them fail, it fails.

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
from goqueue.errors import BrokerUnavailable, GoQueueError, InvalidRequest, NotLeader, StorageError
from goqueue.groups.coordinator import GroupCoordinator
from goqueue.groups.group import Group
from goqueue.groups.member import Member
from goqueue.names import TopicPartition
from goqueue.record.header import Buffer
from goqueue.service.groups import EXTENSION_NS_MAX, POLL_BYTES, POLL_MESSAGES, POLL_MESSAGES_MAX, PollResult
from goqueue.service.pending import Pending
from goqueue.wire import reports
from goqueue.wire.frames import META_BYTES_MAX

REFUSALS = (NotLeader, StorageError)
"""What keeps one partition from being served, and says nothing of the others."""
WAIT_MS_MAX = 60_000
POLL_NUMBER_MAX = 2**63 - 1
BATCHES_MAX = 96
"""The most in one answer: they fit into `ROOM_BYTES` with the longest topic names and some redelivered messages."""
BATCH_BYTES = 200
GAP_BYTES = 200
"""What a batch or a gap takes of the meta of an answer, without its topic and its delivery counts."""
GAPS_BYTES = 8 * 1024
"""For gaps, in one answer."""
ROOM_BYTES = META_BYTES_MAX - GAPS_BYTES - 1024
"""For batches; what is left in the meta of an answer is for its other fields."""


class WaitingPoll:
    """A poll that waits, or may have to."""

    __slots__ = ("count", "lease_ms", "max_bytes", "member", "number", "pending")

    def __init__(self, member: Member, number: int, count: int, max_bytes: int, lease_ms: int | None) -> None:
        self.member = member
        self.number = number  # 0: the member does not number its polls
        self.count = count
        self.max_bytes = max_bytes
        self.lease_ms = lease_ms
        self.pending: Pending[PollResult] | None = None


class Answer:
    """The answer to a poll, as it is being filled."""

    __slots__ = ("batches", "bytes_left", "is_full", "left", "records", "room")

    def __init__(self, poll: WaitingPoll) -> None:
        self.batches: list[reports.DeliveredBatch] = []
        self.records: list[Buffer] = []
        self.left = poll.count
        self.bytes_left = poll.max_bytes
        self.room = ROOM_BYTES  # in the meta of the answer
        self.is_full = False

    def add(self, group_delivery: GroupDelivery, delivered: DeliveredMessages, lease_ns: int) -> None:
        """Put in what was delivered."""
        topic, _ = group_delivery.leader.origin
        records = delivered.records
        raw = records[0] if len(records) == 1 else b"".join(records)
        self.batches.append(_batch(group_delivery, delivered, len(raw), lease_ns if delivered.deadline_ns else 0))
        self.records.append(raw)
        self.left -= len(delivered.offsets)
        self.bytes_left -= len(raw)
        self.room -= BATCH_BYTES + len(topic)
        if delivered.counts:
            self.room -= len(delivered.counts) * group_delivery.count_bytes
        self.is_full = self.left <= 0 or self.bytes_left <= 0 or len(self.batches) >= BATCHES_MAX


class GroupPolls:
    """The waiting polls of one group, and what is known of the last poll of each member."""

    __slots__ = ("numbers", "polls", "turns")

    def __init__(self) -> None:
        self.polls: dict[WaitingPoll, None] = {}
        self.turns: dict[str, int] = {}  # member -> which of its partitions is served first
        self.numbers: dict[str, int] = {}  # member -> the number of its last poll


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
        number: int | None = None,
    ) -> Pending[PollResult]:
        """The next messages for the member; waits up to `wait_ms` if there are none."""
        if not 1 <= max_messages <= POLL_MESSAGES_MAX:
            text = f"invalid max_messages {max_messages}: must be 1 to {POLL_MESSAGES_MAX}"
            raise InvalidRequest(text, path="max_messages")
        if visibility_timeout_ms is not None and not 1 <= visibility_timeout_ms * MS <= EXTENSION_NS_MAX:
            raise InvalidRequest("invalid visibility_timeout: must be 1ms to 12h", path="visibility_timeout")
        if number is not None and not 1 <= number <= POLL_NUMBER_MAX:
            raise InvalidRequest(f"invalid number {number}: must be 1 to {POLL_NUMBER_MAX}", path="number")
        found = self._coordinator.get(group)
        member = found.check(member_id, generation)
        now_ns, wall_ns = self._clock.monotonic_ns(), self._clock.wall_ns()
        found.touch(member_id, now_ns=now_ns, wall_ns=wall_ns)
        poll = WaitingPoll(member, number or 0, max_messages, max(1, max_bytes), visibility_timeout_ms)
        lost = self._lost(group, poll) if number else ()
        if not lost:  # one that is repeated says nothing of the messages before it that the first one did not say
            member.poll_count += 1
        try:
            result = self._attempt(found, poll, lost)
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

    def _lost(self, group: str, poll: WaitingPoll) -> Sequence[GroupDelivery]:
        """The deliveries that the answer to the same poll held anything of; if that poll still waits, it ends."""
        member_id, number = poll.member.id, poll.number
        waiting = self._of(group)
        last, waiting.numbers[member_id] = waiting.numbers.get(member_id), number
        if last is not None and last != number:  # it is new; only after a restart the cursors have to be asked
            return ()
        for other in list(waiting.polls):
            if other.pending is not None and other.member.id == member_id and other.number == number:
                other.pending.fail(BrokerUnavailable("another poll took its place"))
        return [one for one in self._deliveries.of(group).values() if one.has_answered(member_id, number)]

    def _repeat(self, group: Group, poll: WaitingPoll, answer: "Answer", lost: Sequence[GroupDelivery]) -> None:
        """Put into the answer what the lost one held, as far as the member still has it.

        Messages over the limits, and those of partitions that the member has lost since, are released.
        """
        member, assigned = poll.member, frozenset(group.assigned(poll.member.id))
        refused: StorageError | None = None
        for group_delivery in lost:
            is_wanted = group_delivery.leader.origin in assigned and not answer.is_full
            lease_ns = self._lease_ns(group_delivery, poll)
            try:
                delivered = group_delivery.deliver_again(
                    member.id,
                    poll.number,
                    count=answer.left if is_wanted else 0,
                    max_bytes=answer.bytes_left,
                    lease_ns=lease_ns,
                )
            except NotLeader:  # its next leader has the leases in the ledger
                continue
            except StorageError as error:  # its messages are released; those of the other partitions have to be sent
                refused = error
                continue
            if delivered is not None:
                answer.add(group_delivery, delivered, lease_ns)
                answer.is_full = answer.is_full or delivered.left > 0
        if refused is not None and not answer.batches:
            raise refused

    def _attempt(self, group: Group, poll: WaitingPoll, lost: Sequence[GroupDelivery] = ()) -> PollResult:
        """The messages that are ready for the member now, after those of a lost answer to the same poll."""
        member, answer = poll.member, Answer(poll)
        if lost:
            self._repeat(group, poll, answer, lost)
        partitions = group.assigned(member.id)
        if not partitions:
            return self._empty(group, poll)
        refusals: list[GoQueueError] = []
        # First of all: this creates cursors that do not exist yet, where the member wants to start.
        in_turn = self._in_turn(group.name, member, partitions, refusals)
        allowance = answer.left
        if member.ack == "messages":
            in_flight = self._deliveries.in_flight(group.name, member.id)
            allowance = min(allowance, self._in_flight_max(group.name, member, partitions) - in_flight)
            if allowance <= 0 and not answer.batches:
                return self._empty(group, poll)
        if allowance > 0 and not answer.is_full:
            self._collect(group, poll, answer, in_turn, allowance, refusals)
        if not answer.batches and len(refusals) == len(partitions):
            has_no_leader = any(isinstance(error, NotLeader) for error in refusals)
            if not has_no_leader:
                raise refusals[0]
        gaps = _take_gaps(in_turn, poll)
        if not answer.batches:
            empty = self._empty(group, poll)
            empty.polled.gaps = gaps
            return empty
        in_flight = self._deliveries.in_flight(group.name, member.id)
        required = group.rebalance_required(member.id)
        polled = reports.PollAnswer(answer.batches, group.generation, required, in_flight, gaps=gaps)
        return PollResult(polled, answer.records)

    def _collect(
        self,
        group: Group,
        poll: WaitingPoll,
        answer: "Answer",
        in_turn: Sequence[GroupDelivery],
        allowance: int,
        refusals: list[GoQueueError],
    ) -> None:
        """Take messages from one partition after the other, until the answer is full; note those that refuse."""
        member, is_key_shared, has_leases = poll.member, group.mode == "key-shared", poll.member.ack == "messages"
        is_fed = allowance > 1 and len(in_turn) > 1
        is_shared = False
        if is_fed:
            in_turn, is_shared = _fed(in_turn, allowance, refusals)
        for left, group_delivery in zip(range(len(in_turn), 0, -1), in_turn, strict=True):
            counts_room = answer.room - BATCH_BYTES - len(group_delivery.leader.origin.topic)
            count_bytes = group_delivery.count_bytes
            if counts_room < count_bytes:
                break
            lease_ns = self._lease_ns(group_delivery, poll) if has_leases else None
            try:
                if is_key_shared != (group_delivery.keys is not None):
                    group_delivery.use_key_order(is_key_shared)
                delivered = group_delivery.deliver(
                    member.id,
                    count=math.ceil(allowance / left) if is_shared else allowance,
                    redelivered_max=counts_room // count_bytes,
                    max_bytes=answer.bytes_left,
                    lease_ns=lease_ns,
                    is_fed=is_fed,
                    poll=member.poll_count,
                    number=poll.number,
                )
            except REFUSALS as error:  # messages of the other partitions are leased by now, and have to be sent
                refusals.append(error)
                continue
            if delivered is None:
                continue
            answer.add(group_delivery, delivered, lease_ns or 0)
            allowance -= len(delivered.offsets)
            if allowance <= 0 or answer.is_full:
                break

    def _empty(self, group: Group, poll: WaitingPoll) -> PollResult:
        member = poll.member
        partitions = group.assigned(member.id) if member.id in group.members else ()
        in_flight = self._deliveries.in_flight(group.name, member.id)
        required = member.id in group.members and group.rebalance_required(member.id)
        reason = ""
        if not partitions:
            reason = "rebalancing" if required else "no_partitions"
        elif member.ack == "messages" and in_flight >= self._in_flight_max(group.name, member, partitions):
            reason = "max_in_flight"
        return PollResult(reports.PollAnswer([], group.generation, required, in_flight, reason), [])

    def _in_turn(
        self, group: str, member: Member, partitions: Sequence[TopicPartition], refusals: list[GoQueueError]
    ) -> list[GroupDelivery]:
        """The member's partitions, another one first each time; those that refuse are left out."""
        turns = self._of(group).turns
        turn = turns.get(member.id, 0) % len(partitions)
        turns[member.id] = turn + 1
        found = []
        for partition in (*partitions[turn:], *partitions[:turn]):
            try:
                found.append(self._deliveries.at(group, partition, start=member.start))
            except REFUSALS as error:
                refusals.append(error)
        return found

    def _lease_ns(self, group_delivery: GroupDelivery, poll: WaitingPoll) -> int:
        asked_ms = poll.lease_ms or poll.member.visibility_timeout_ms
        return (asked_ms or group_delivery.partition.config.visibility_timeout_ms) * MS

    def _in_flight_max(self, group: str, member: Member, partitions: Sequence[TopicPartition]) -> int:
        if member.max_in_flight is not None:
            return member.max_in_flight
        known = self._deliveries.of(group)
        for partition in partitions:
            found = known.get(partition)
            if found is not None:
                return found.partition.config.max_in_flight
        return POLL_MESSAGES_MAX

    # --- waking --------------------------------------------------------------------------------

    def wake(self, group: str) -> None:
        """Something may be ready for the group."""
        if group in self._waiting and self._waiting[group].polls:
            self._woken[group] = None

    def leader_began(self, partition: TopicPartition) -> None:
        """This node leads the partition now: polls that waited for a leader try again."""
        for name, waiting in list(self._waiting.items()):
            group = self._coordinator.find(name)
            if group is not None and any(partition in group.assigned(poll.member.id) for poll in waiting.polls):
                self.wake(name)
        self.run_woken()

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
            self._waiting[group].numbers.pop(member_id, None)

    def forget(self, group: str, error: GoQueueError) -> None:
        """The group was deleted, or is coordinated elsewhere."""
        waiting = self._waiting.pop(group, None)
        for poll in list(waiting.polls) if waiting else ():
            if poll.pending:
                poll.pending.fail(error)

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


def _fed(
    in_turn: Sequence[GroupDelivery], count: int, refusals: list[GoQueueError]
) -> tuple[list[GroupDelivery], bool]:
    """Feed the cursors. The deliveries that could be fed; and whether lanes of different priority have messages then.

    If so, no partition may fill the whole answer: urgent messages of the others have to get in.
    """
    fed, filled = [], 0
    for group_delivery in in_turn:
        try:
            group_delivery.feed(count)
        except REFUSALS as error:
            refusals.append(error)
        else:
            fed.append(group_delivery)
            filled |= group_delivery.cursor.lanes.filled
    return fed, filled & (filled - 1) != 0


def _take_gaps(in_turn: Sequence[GroupDelivery], poll: WaitingPoll) -> list[reports.PartitionGap]:
    """The damage that the group has come to, as far as it fits; the rest comes with the next answers."""
    gaps: list[reports.PartitionGap] = []
    room = GAPS_BYTES
    for group_delivery in in_turn:
        if not group_delivery.gaps:
            continue
        gap_bytes = GAP_BYTES + len(group_delivery.leader.origin.topic)
        if room >= gap_bytes:
            taken = group_delivery.take_gaps(room // gap_bytes, member=poll.member.id, number=poll.number)
            room -= len(taken) * gap_bytes
            gaps += taken
    return gaps


def _batch(
    group_delivery: GroupDelivery, delivered: DeliveredMessages, size: int, lease_ns: int
) -> reports.DeliveredBatch:
    topic, partition = group_delivery.leader.origin
    return reports.DeliveredBatch(
        topic=topic,
        partition=partition,
        nonce=group_delivery.nonce(delivered.delivery_id),
        count=len(delivered.offsets),
        bytes=size,
        flags=delivered.flags,
        deadline_ns=delivered.deadline_ns,
        next_offset=group_delivery.lowest_not_handed(),
        counts=delivered.counts,
        lease_ns=lease_ns,
    )
