"""Consumer groups: who is in them, what their members get, and what becomes of it.

    join, heartbeat, leave ──> Coordinator ──> `__groups`          who may take from which partition
    poll ──> partitions that are the member's ──> PartitionDelivery ──> records and a nonce
    settle ──> the delivery that the nonce names ──> ledger ──> answered when the ledger vouches for it

A poll that finds nothing waits. It looks again when something was stored, fell due, was given back or acknowledged,
and is answered at once when its member's partitions change. Whatever is woken is looked at when the call that woke it
is over, never in the middle of it.
"""

import math
import sys
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from secrets import token_hex
from typing import Any, NamedTuple, Protocol

from pyroaring import BitMap64

from goqueue import events
from goqueue.broker.consumer_service import (
    EXTENSION_NS_MAX,
    POLL_BYTES,
    POLL_MESSAGES,
    POLL_MESSAGES_MAX,
    RECEIPTS_MAX,
    PollResult,
)
from goqueue.broker.delivery_reports import lane_report
from goqueue.broker.journal import Journal
from goqueue.broker.live_partition import LivePartition
from goqueue.broker.partition_delivery import Graves, GroupCursor, PartitionDelivery, Settling
from goqueue.broker.pending import Pending, after, all_of, chained
from goqueue.clock import MS, SECOND, Clock
from goqueue.delivery.offsets import between
from goqueue.delivery.receipts import Receipt, is_nonce
from goqueue.errors import (
    GoQueueError,
    GroupNotFound,
    InvalidRequest,
    PartitionNotAssigned,
    PartitionNotFound,
    ReceiptMalformed,
    ReceiptUnknown,
    RequestTooLarge,
    StorageError,
    TopicNotFound,
)
from goqueue.groups.coordinator import Coordinator
from goqueue.groups.group import Group
from goqueue.groups.member import Join, Member, validate_name
from goqueue.metrics.delivery import Standing
from goqueue.names import TopicPartition
from goqueue.record.header import OFFSET_MAX, Buffer
from goqueue.topics.config import is_internal
from goqueue.wire import reports
from goqueue.wire.reports import PartitionName

GROUPS_TOPIC = "__groups"
AUTO_COMMIT_NS = 5 * SECOND
WAIT_MS_MAX = 60_000
BATCHES_MAX = 128
"""In one answer, so that what is told of them fits the meta of a frame."""
ACTIONS = ("ack", "nack", "reject", "extend", "release")
_OUTCOMES = {"ack": "ack", "nack": "requeued", "reject": "rejected", "extend": "extended", "release": "released"}
_GROUP = b"g"


class Topics(Protocol):
    """What groups need to know of the topics of their broker."""

    def partition_counts(self) -> Mapping[str, int]: ...
    def live(self, topic: str, partition: int) -> LivePartition:
        """Raises `TopicNotFound` or `PartitionNotFound`."""

    def delivery(self, live: LivePartition) -> PartitionDelivery: ...
    def journal(self, topic: str) -> Pending[Journal]:
        """The internal topic, which is made on first use."""

    def may_wait(self, wait_ms: int) -> bool: ...
    def limit_wait(self, pending: Pending[PollResult], wait_ms: int, give_up: Callable[[], None]) -> None: ...


class OpenTransaction(Protocol):
    """A transaction that acks can be a part of."""

    @property
    def key(self) -> tuple[int, int]: ...
    def add_acks(self, group: str, topic: str, partition: int, offsets: BitMap64) -> None: ...


class Place(NamedTuple):
    """A group's cursor, and the partition it is on."""

    delivery: PartitionDelivery
    cursor: GroupCursor


class Poll:
    """A poll that waits, or is about to."""

    __slots__ = ("count", "lease_ms", "max_bytes", "member", "pending")

    def __init__(self, member: Member, count: int, max_bytes: int, lease_ms: int | None) -> None:
        self.member = member
        self.count = count
        self.max_bytes = max_bytes
        self.lease_ms = lease_ms
        self.pending: Pending[PollResult] | None = None


class Happened:
    """Counts of what happened to messages."""

    def __init__(self) -> None:
        self.acked = self.nacked = self.rejected = self.extended = 0
        self.delivered = self.redelivered = self.expired = 0
        self.create_errors = self.publish_errors = 0
        self.dead_by_reason: dict[str, int] = {}
        self.dead_by_topic: dict[str, int] = {}
        self.observe = events.Handlers(
            {
                events.Delivered: self._delivered,
                events.Settled: self._settled,
                events.LeasesExpired: self._lease_expired,
                events.DeadLettered: self._dead,
                events.TransferFailed: self._transfer_failed,
            }
        )

    def _delivered(self, event: Any) -> None:
        self.delivered += event.count
        self.redelivered += event.redelivered

    def _settled(self, event: Any) -> None:
        match event.kind:
            case "ack":
                self.acked += event.count
            case "nack":
                self.nacked += event.count
            case "reject":
                self.rejected += event.count
            case _:
                self.extended += event.count

    def _lease_expired(self, event: Any) -> None:
        self.expired += event.count

    def _dead(self, event: Any) -> None:
        self.dead_by_reason[event.reason] = self.dead_by_reason.get(event.reason, 0) + event.count
        self.dead_by_topic[event.topic] = self.dead_by_topic.get(event.topic, 0) + event.count

    def _transfer_failed(self, event: Any) -> None:
        if event.in_creation:
            self.create_errors += 1
        else:
            self.publish_errors += 1


class GroupPlaces:
    """One group while the broker runs: where its cursors are, and which polls wait."""

    __slots__ = ("places", "polls", "turns")

    def __init__(self) -> None:
        self.places: dict[TopicPartition, Place] = {}
        self.polls: dict[Poll, None] = {}
        self.turns: dict[str, int] = {}  # member -> which of its partitions is asked first


class Groups:
    """The groups of one broker."""

    def __init__(
        self,
        coordinator: Coordinator,
        topics: Topics,
        happened: Happened,
        *,
        clock: Clock,
        observe: events.Observer,
    ) -> None:
        self._coordinator = coordinator
        self._topics = topics
        self._clock = clock
        self._happened = happened
        self._observe = observe
        self._running: dict[str, GroupPlaces] = {}
        self._woken: dict[str, None] = {}
        self._is_waking = False
        self._auto_commit_ns = clock.monotonic_ns()
        self._touched_ns = clock.monotonic_ns()
        self.open_transaction: Callable[[str], OpenTransaction]  # given by the broker; raises what is wrong with the id

    def load(self, journal: Journal) -> None:
        """Take back the groups that were there before a restart."""
        now_ns, wall_ns = self._now()
        for key, raw in journal.load().items():
            if key[:1] == _GROUP:
                self._coordinator.restore(raw, now_ns=now_ns, wall_ns=wall_ns)
        counts = self._topics.partition_counts()
        self._coordinator.topics_changed(counts, now_ns=now_ns)
        for group in self._coordinator:
            for member in group.members.values():  # they have leases, and may settle, leave or be lost before they poll
                for partition in self._partitions_of([topic for topic in member.topics if topic in counts]):
                    self._place(group.name, partition, start=member.start)
        self._tell()

    # --- membership ----------------------------------------------------------------------------

    def join(self, group: str, asked: Join) -> Pending[reports.Joined]:
        """A member of the group, new or again."""
        validate_name(group, "group")
        self._check_topics(asked)

        def go_on(journal: Journal) -> Pending[reports.Joined]:
            member = self._take_in(group, asked)
            told = self._joined(self._coordinator.get(group), member)
            stored = journal.put({_key(group): self._coordinator.get(group).snapshot()})
            return after(stored, lambda _: told)

        return chained(self._topics.journal(GROUPS_TOPIC), go_on)

    def _take_in(self, group: str, asked: Join) -> Member:
        now_ns, wall_ns = self._now()
        member = self._coordinator.join(
            group,
            asked,
            suffix=token_hex(6),
            partition_counts=self._topics.partition_counts(),
            now_ns=now_ns,
            wall_ns=wall_ns,
        )
        places = self._places(group)
        for partition in self._partitions_of(member.topics):  # a group stands everywhere from its first moment on
            self._place(group, partition, start=member.start)
        places.turns.setdefault(member.id, 0)
        self._tell()
        return member

    def heartbeat(
        self, group: str, member_id: str, generation: int | None = None, *, is_cooperative: bool = False
    ) -> reports.Heartbeat:
        """The member lives."""
        now_ns, wall_ns = self._now()
        found = self._coordinator.get(group)
        if is_cooperative:
            beat = found.cooperative_heartbeat(member_id, generation, now_ns=now_ns, wall_ns=wall_ns)
            self._tell()
            return reports.Heartbeat(
                beat.generation,
                beat.rebalance_required,
                found.state,
                beat.protocol,
                beat.state,
                _names(beat.partitions_to_revoke),
                _names(beat.partitions_assigned),
                beat.revocation_deadline_ns,
            )
        member = found.heartbeat(member_id, generation, now_ns=now_ns, wall_ns=wall_ns)
        self._tell()
        return reports.Heartbeat(
            found.generation,
            found.rebalance_required(member_id),
            found.state,
            found.protocol,
            found.rebalance_state,
            _names(member.to_revoke),
            _names(member.assigned),
        )

    def revoke(
        self,
        group: str,
        member_id: str,
        generation: int | None = None,
        partitions: Sequence[PartitionName] | None = None,
    ) -> reports.RevocationAcknowledged:
        """The member has given back what it was asked for."""
        given = None if partitions is None else [TopicPartition(one.topic, one.partition) for one in partitions]
        found = self._coordinator.get(group)
        self._commit_handed(group, found.member(member_id), given)
        revoked = found.revoke(member_id, generation, given, now_ns=self._clock.monotonic_ns())
        self._tell()
        return reports.RevocationAcknowledged(revoked.pending_count, revoked.rebalance_state)

    def leave(self, group: str, member_id: str) -> Pending[None]:
        """The member is out; what it has leased is ready again at once."""
        found = self._coordinator.get(group)
        self._commit_handed(group, found.member(member_id), None, is_leaving=True)
        found.leave(member_id, now_ns=self._clock.monotonic_ns())
        self._tell()
        return self._store(group)

    def names(self) -> list[str]:
        """The names, sorted."""
        return [group.name for group in self._coordinator]

    def describe(self, group: str) -> reports.GroupInfo:
        """The group as it is now."""
        found = self._coordinator.get(group)
        places = self._all_places(found)
        members = [
            reports.MemberInfo(
                member.id,
                member.client_id,
                list(member.topics),
                _names(member.assigned),
                self._in_flight(group, member.id),
                member.joined_at_ns,
                member.last_heartbeat_ns,
            )
            for member in found.members.values()
        ]
        lag = sum(_lag(place) for place in self._up_to_date(places).values())
        return reports.GroupInfo(
            group,
            found.state,
            found.generation,
            found.mode,
            found.protocol,
            found.assignor,
            found.ack,
            found.leader_id or "",
            list(found.topics) or sorted({partition.topic for partition in places}),
            found.created_at_ns,
            lag,
            members,
            found.rebalance_state,
        )

    def delete(self, group: str) -> Pending[None]:
        """Put the members out and drop all positions."""
        found = self._coordinator.get(group)
        places = self._all_places(found)
        waits = [place.delivery.live.ledger.when_stored(place.delivery.forget(group)) for place in places.values()]
        self._coordinator.delete(group, now_ns=self._clock.monotonic_ns())
        running = self._running.pop(group, None)
        for poll in list(running.polls) if running else ():
            if poll.pending:
                poll.pending.fail(GroupNotFound(group))
        self._tell()
        return all_of([*waits, self._journaled({_key(group): None})])

    def rebalance_stats(self, group: str | None = None) -> reports.RebalanceReport:
        """How the rebalances of a group, or of all, went."""
        stats = self._coordinator.stats if group is None else self._coordinator.get(group).stats
        return reports.RebalanceReport(
            stats.total_rebalances,
            stats.successful_rebalances,
            stats.failed_rebalances,
            stats.total_partitions_revoked,
            stats.total_partitions_assigned,
            stats.total_revocation_timeouts,
            stats.last_rebalance_duration_ms,
            stats.average_rebalance_duration_ms,
            stats.last_rebalance_at_ns,
            dict(stats.rebalances_by_reason),
        )

    def blocked(self, group: str) -> list[reports.BlockedKey]:
        """Which message holds back which key."""
        found = []
        for partition, (_, one) in self._all_places(self._coordinator.get(group)).items():
            for hold in one.keys.blocking() if one.keys is not None else ():
                offset = hold.first
                count = one.cursor.deliveries_of(offset) + (offset in hold.in_flight)
                member = hold.member if offset in hold.in_flight else ""
                found.append(
                    reports.BlockedKey(*partition, hold.key, offset, member, hold.since_ns, count, len(hold.parked))
                )
        return found

    # --- positions -----------------------------------------------------------------------------

    def positions(self, group: str, topic: str | None = None) -> list[reports.Position]:
        """Where the group stands."""
        found = self._coordinator.find(group)
        if found is None:
            return []
        return [
            reports.Position(
                *partition,
                place.cursor.cursor.floor,
                place.delivery.live.high_watermark,
                _lag(place),
                self._lag_seconds(place),
                place.cursor.metadata,
            )
            for partition, place in sorted(self._up_to_date(self._all_places(found)).items())
            if topic in (None, partition.topic)
        ]

    def commit(
        self,
        group: str,
        commits: Sequence[reports.PositionCommit],
        *,
        member_id: str | None = None,
        generation: int | None = None,
    ) -> Pending[list[reports.PositionCommit]]:
        """Commit positions, all or none; what is stored."""
        ready = self.prepare_commit(group, commits, member_id=member_id, generation=generation)
        return chained(ready, lambda _: self._commit(group, commits))

    def prepare_commit(
        self,
        group: str,
        commits: Sequence[reports.PositionCommit],
        *,
        member_id: str | None = None,
        generation: int | None = None,
    ) -> Pending[None]:
        """Whether the positions may be committed; a group that nobody has joined yet begins with its positions."""
        found = self._coordinator.find(group)
        if found is None and member_id is not None:
            raise GroupNotFound(group)
        if found is not None and (member_id is not None or found.members):
            member = found.check(member_id or "", generation)
            mine = set(found.assigned(member.id))
            for one in commits:
                if TopicPartition(one.topic, one.partition) not in mine:
                    raise PartitionNotAssigned(one.topic, one.partition, member.id)
        if not commits:
            raise InvalidRequest("offsets are required", path="offsets")
        for one in commits:
            if not 0 <= one.offset <= OFFSET_MAX:
                raise InvalidRequest(f"invalid offset {one.offset}: must be 0 or more", path="offsets")
            self._topics.live(one.topic, one.partition)
        return self._found_group(group) if found is None else Pending.of(None)

    def _found_group(self, group: str) -> Pending[None]:
        validate_name(group, "group")

        def go_on(journal: Journal) -> Pending[None]:
            now_ns, wall_ns = self._now()
            self._coordinator.found(group, now_ns=now_ns, wall_ns=wall_ns)
            self._tell()
            return journal.put({_key(group): self._coordinator.get(group).snapshot()})

        return chained(self._topics.journal(GROUPS_TOPIC), go_on)

    def _commit(self, group: str, commits: Sequence[reports.PositionCommit]) -> Pending[list[reports.PositionCommit]]:
        stored, waits = [], []
        for one in commits:
            place = self._place(group, TopicPartition(one.topic, one.partition))
            delivery, cursor = place
            offset = min(one.offset, delivery.live.last_stable_offset)
            end = delivery.commit(cursor, offset, one.metadata)
            waits.append(delivery.live.ledger.when_stored(end))
            stored.append(reports.PositionCommit(one.topic, one.partition, cursor.cursor.floor, one.metadata))
            self._observe(events.PositionCommitted(one.topic, one.partition, group, cursor.cursor.floor))
        self._wake(group)
        self._run_woken()
        return after(all_of(waits), lambda _: stored)

    def reset(
        self,
        group: str,
        strategy: str,
        *,
        topic: str | None = None,
        partition: int | None = None,
        time_ns: int | None = None,
        offset: int | None = None,
        dry_run: bool = False,
    ) -> Pending[list[reports.PositionReset]]:
        """Set positions."""
        found = self._coordinator.get(group)
        if strategy not in ("earliest", "latest", "timestamp", "offset"):
            choices = "must be earliest, latest, timestamp or offset"
            raise InvalidRequest(f"invalid strategy {strategy!r}: {choices}", path="strategy")
        if strategy == "timestamp" and time_ns is None:
            raise InvalidRequest("timestamp is required", path="timestamp")
        if strategy == "offset" and (offset is None or offset < 0):
            raise InvalidRequest("offset is required, and must be 0 or more", path="offset")
        places = self._all_places(found)
        names = set(places)
        if topic is not None:
            names = set(self._partitions_of([self._topics.live(topic, partition or 0).origin.topic]))
        resets, waits = [], []
        for name in sorted(names):
            if topic not in (None, name.topic) or partition not in (None, name.partition):
                continue
            live = self._topics.live(*name)
            log, end = live.log, live.last_stable_offset
            target = log.start_offset
            if strategy == "latest":
                target = end
            elif strategy == "timestamp" and time_ns is not None:
                target = log.offset_at_time(time_ns)
            elif strategy == "offset" and offset is not None:
                target = offset
            target = max(log.start_offset, min(target, end))
            old = places[name].cursor.cursor.floor if name in places else log.start_offset
            resets.append(reports.PositionReset(*name, target, old))
            if not dry_run:
                delivery, cursor = self._place(group, name)
                waits.append(live.ledger.when_stored(delivery.reset(cursor, target)))
        self._run_woken()
        return after(all_of(waits), lambda _: resets)

    # --- polling -------------------------------------------------------------------------------

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
        now_ns, wall_ns = self._now()
        found.touch(member_id, now_ns=now_ns, wall_ns=wall_ns)
        poll = Poll(member, max_messages, max(1, max_bytes), visibility_timeout_ms)
        try:
            result = self._attempt(found, poll)
        finally:
            self._run_woken()
        if result.records or member.asked or not self._topics.may_wait(wait_ms):
            self._observe(events.Polled(group=group, count=_count(result), waited_ns=0))
            return Pending.of(result)
        return self._wait(found, poll, min(wait_ms, WAIT_MS_MAX), result)

    def _wait(self, group: Group, poll: Poll, wait_ms: int, empty: PollResult) -> Pending[PollResult]:
        pending: Pending[PollResult] = Pending()
        poll.pending = pending
        places = self._places(group.name)
        places.polls[poll] = None
        self._watch(group)
        began_ns = self._clock.monotonic_ns()

        def over(done: Pending[PollResult]) -> None:
            places.polls.pop(poll, None)
            if not places.polls:
                self._unwatch(places)
            with suppress(GoQueueError):
                waited_ns = self._clock.monotonic_ns() - began_ns
                self._observe(events.Polled(group=group.name, count=_count(done.result()), waited_ns=waited_ns))

        pending.then(over)
        if any(one.cursor.lanes for _, one in places.places.values()):  # one look may not have been enough
            self._wake(group.name)
            self._run_woken()
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
            in_flight = self._in_flight(name, member.id)
            allowance = min(allowance, self._in_flight_max(member, partitions[0]) - in_flight)
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
                )
            except StorageError as error:  # what came from the others is leased, and has to go out
                refused = error
            if delivered is None:
                continue
            raw = delivered.records[0] if len(delivered.records) == 1 else b"".join(delivered.records)
            origin = delivery.live.origin
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
        if not batches:
            if refused is not None:
                raise refused
            return self._empty(group, poll)
        polled = reports.Polled(batches, group.generation, group.rebalance_required(member.id), in_flight)
        return PollResult(polled, records)

    def _empty(self, group: Group, poll: Poll) -> PollResult:
        member = poll.member
        partitions = group.assigned(member.id) if member.id in group.members else ()
        in_flight = self._in_flight(group.name, member.id)
        required = member.id in group.members and group.rebalance_required(member.id)
        reason = ""
        if not partitions:
            reason = "rebalancing" if required else "no_partitions"
        elif member.ack == "messages" and in_flight >= self._in_flight_max(member, partitions[0]):
            reason = "max_in_flight"
        return PollResult(reports.Polled([], group.generation, required, in_flight, reason), [])

    def _in_turn(self, group: str, member: Member, partitions: Sequence[TopicPartition]) -> list[Place]:
        """The places of the member's partitions, another one first each time."""
        places = self._places(group)
        turn = places.turns.get(member.id, 0) % len(partitions)
        places.turns[member.id] = turn + 1
        return [self._place(group, one, start=member.start) for one in (*partitions[turn:], *partitions[:turn])]

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

    def _in_flight_max(self, member: Member, partition: TopicPartition) -> int:
        if member.max_in_flight is not None:
            return member.max_in_flight
        return self._topics.delivery(self._topics.live(*partition)).config.max_in_flight

    def _in_flight(self, group: str, member_id: str) -> int:
        running = self._running.get(group)
        in_flight = 0
        if running is not None:
            for _, one in running.places.values():
                in_flight += one.cursor.in_flight.get(member_id, 0)
        return in_flight

    # --- settling ------------------------------------------------------------------------------

    def settle(
        self, receipts: Sequence[str], settlement: reports.Settlement
    ) -> Pending[list[reports.Settled | GoQueueError]]:
        """Settle messages by their receipts, each for itself."""
        if len(receipts) > RECEIPTS_MAX:
            raise RequestTooLarge(len(receipts), RECEIPTS_MAX)
        self._check(settlement)
        results: list[reports.Settled | GoQueueError | None] = [None] * len(receipts)
        gathered: Pending[list[reports.Settled | GoQueueError]] = Pending()
        left = len(receipts)

        def settled(index: int, done: Pending[reports.Settled]) -> None:
            nonlocal left
            try:
                results[index] = done.result()
            except GoQueueError as error:
                results[index] = error
            left -= 1
            if not left:
                gathered.resolve([result for result in results if result is not None])

        if not receipts:
            gathered.resolve([])
        for index, text in enumerate(receipts):
            try:
                pending = self._settle_one(Receipt.parse(text), settlement)
            except GoQueueError as error:
                pending = Pending.failed(error)
            pending.then(partial(settled, index))
        self._run_woken()
        return gathered

    def _settle_one(self, receipt: Receipt, settlement: reports.Settlement) -> Pending[reports.Settled]:
        delivery, one = self._addressee(receipt.topic, receipt.partition, receipt.offset, receipt.nonce)
        offsets = BitMap64([receipt.offset])
        name = (receipt.topic, receipt.partition, receipt.offset)
        delivery_id = receipt.delivery_id
        if delivery.nonce(one, delivery_id) != receipt.nonce:
            raise ReceiptUnknown(*name)
        if not one.cursor.leased(delivery_id, offsets, now_ns=self._clock.monotonic_ns()):
            raise delivery.refusal(one, delivery_id, receipt.offset)
        if receipt.delivery_count != one.cursor.deliveries_of(receipt.offset) + 1:
            raise ReceiptUnknown(*name)
        member_id = one.cursor.deliveries[delivery_id].member
        settling = self._settle(delivery, one, delivery_id, offsets, settlement)
        in_flight = self._in_flight(one.group, member_id)
        outcome = "held" if settlement.transaction_id else _OUTCOMES[settlement.action]

        def answer(graves: Graves) -> reports.Settled:
            grave = graves.get(receipt.offset)
            return reports.Settled(
                *name,
                outcome if grave is None or settlement.action == "reject" else "dlq",
                one.cursor.floor - 1,
                in_flight,
                settling.next_count,
                settling.at_ns,
                *((delivery.dlq_topic, *grave) if grave else ("", -1, -1)),
                settlement.reason,
            )

        return after(settling.stored, answer)

    def _settle(
        self,
        delivery: PartitionDelivery,
        one: GroupCursor,
        delivery_id: int,
        offsets: BitMap64,
        settlement: reports.Settlement,
    ) -> Settling:
        if settlement.transaction_id:
            transaction = self.open_transaction(settlement.transaction_id)
            transaction.add_acks(one.group, *delivery.live.origin, offsets)
            settling = delivery.hold(one, transaction.key, delivery_id, offsets)
        else:
            settling = delivery.settle(one, delivery_id, offsets, settlement)
        self._wake(one.group)
        return settling

    def _check(self, settlement: reports.Settlement) -> None:
        """Whether it can be asked for at all."""
        _check(settlement)
        if settlement.transaction_id:
            if settlement.action != "ack":
                raise InvalidRequest("only an ack can be part of a transaction", path="transaction_id")
            self.open_transaction(settlement.transaction_id)

    def settle_batch(
        self, topic: str, partition: int, nonce: str, offsets: Buffer, settlement: reports.Settlement
    ) -> Pending[reports.SettledBatch]:
        """Settle messages of one delivery."""
        self._check(settlement)
        if not is_nonce(nonce):
            raise ReceiptMalformed(nonce)
        wanted = _offsets(offsets)
        first = wanted.min() if wanted else 0
        delivery, one = self._addressee(topic, partition, first, nonce)
        delivery_id = Receipt(topic, partition, first, 0, nonce).delivery_id
        if delivery.nonce(one, delivery_id) != nonce:
            raise ReceiptUnknown(topic, partition, first)
        lease = one.cursor.deliveries.get(delivery_id)
        if not wanted and lease is not None:
            wanted = lease.offsets.copy()
        member_id = lease.member if lease else ""
        held = one.cursor.leased(delivery_id, wanted, now_ns=self._clock.monotonic_ns())
        refused = []
        if len(held) < len(wanted):
            for offset in wanted - held:
                error = delivery.refusal(one, delivery_id, offset)
                refused.append(reports.Refusal(offset, error.code, str(error), error.facts()))
        if not held:
            in_flight = self._in_flight(one.group, member_id)
            return Pending.of(reports.SettledBatch(0, refused, one.cursor.floor - 1, in_flight))
        settling = self._settle(delivery, one, delivery_id, held, settlement)
        in_flight = self._in_flight(one.group, member_id)
        self._run_woken()

        def answer(graves: Graves) -> reports.SettledBatch:
            committed = one.cursor.floor - 1
            return reports.SettledBatch(len(held), refused, committed, in_flight, len(graves), settling.at_ns)

        return after(settling.stored, answer)

    def _addressee(self, topic: str, partition: int, offset: int, nonce: str) -> Place:
        """The delivery and the cursor that gave out the receipt."""
        try:
            delivery = self._topics.delivery(self._topics.live(topic, partition))
        except GoQueueError:
            raise ReceiptUnknown(topic, partition, offset) from None
        one = delivery.find(Receipt(topic, partition, offset, 0, nonce).group_tag)
        if one is None:
            raise ReceiptUnknown(topic, partition, offset)
        return Place(delivery, one)

    # --- transactions --------------------------------------------------------------------------

    def apply_positions(self, group: str, commits: Sequence[reports.PositionCommit]) -> Pending[None]:
        """Positions of a committed transaction take effect, as far as their partitions are still there."""
        counts = self._topics.partition_counts()
        still_there = [one for one in commits if one.partition < counts.get(one.topic, 0)]
        if self._coordinator.find(group) is None:
            return Pending.of(None)
        return after(self._commit(group, still_there), lambda _: None)

    def apply_acks(
        self, group: str, topic: str, partition: int, offsets: BitMap64, key: tuple[int, int], *, is_again: bool
    ) -> Pending[None]:
        """Acks of a committed transaction take effect; `is_again` after a restart, when nothing is held any more."""
        try:
            delivery = self._topics.delivery(self._topics.live(topic, partition))
        except (TopicNotFound, PartitionNotFound):
            return Pending.of(None)
        if is_again and self._coordinator.find(group) is not None:  # a power cut may have taken its cursor
            self._place(group, delivery.live.origin)
        one = delivery.cursors.get(group)
        if one is None:
            return Pending.of(None)
        if is_again:
            there = between(offsets, 0, delivery.live.log.next_offset)  # others get the offsets of what was lost
            end = delivery.settle_all(one, there, one.metadata)
        else:
            end = delivery.finish_held(one, key)
        return delivery.live.ledger.when_stored(end)

    def release_acks(self, group: str, topic: str, partition: int, key: tuple[int, int]) -> None:
        """What an aborted transaction has acknowledged is delivered again."""
        with suppress(TopicNotFound, PartitionNotFound):
            delivery = self._topics.delivery(self._topics.live(topic, partition))
            if group in delivery.cursors:
                delivery.let_go(delivery.cursors[group], key)

    # --- in numbers ----------------------------------------------------------------------------

    def lanes(self, topic: str | None = None, group: str | None = None) -> list[reports.LaneReport]:
        """What is in which lane, partition by partition."""
        counts = self._topics.partition_counts()
        if topic is not None and topic not in counts:
            raise TopicNotFound(topic)
        if group is not None:
            self._coordinator.get(group)
        now_ns = self._clock.monotonic_ns()
        return [
            lane_report(self._topics.delivery(self._topics.live(name, number)), group, now_ns=now_ns)
            for name in sorted(counts)
            if name == topic or (topic is None and not is_internal(name))
            for number in range(counts[name])
        ]

    def standings(self) -> Iterator[Standing]:
        """Where the groups stand, as far as somebody has asked for them since the start."""
        for name, running in self._running.items():
            for partition, place in running.places.items():
                cursor = place.cursor.cursor
                ranges = len(cursor.acked) - cursor.acked.intersection_cardinality(cursor.acked.shift(1))
                yield Standing(*partition, name, cursor.floor, _lag(place), cursor.in_flight_count, ranges)

    def reliability(self) -> reports.ReliabilityReport:
        """What became of messages since the broker started."""
        happened = self._happened
        places = [place for running in self._running.values() for place in running.places.values()]
        return reports.ReliabilityReport(
            happened.acked,
            happened.nacked,
            happened.rejected,
            happened.expired,
            happened.redelivered,
            happened.extended,
            sum(happened.dead_by_reason.values()),
            happened.delivered,
            sum(place.cursor.cursor.in_flight_count for place in places),
            sum(place.cursor.cursor.waiting_count for place in places),
            dict(happened.dead_by_reason),
            dict(happened.dead_by_topic),
            happened.create_errors,
            happened.publish_errors,
        )

    # --- time and other causes -----------------------------------------------------------------

    def tick(self) -> None:
        """Do what time brings."""
        now_ns, wall_ns = self._now()
        if now_ns - self._touched_ns >= SECOND:
            self._touched_ns = now_ns
            for name, running in self._running.items():
                group = self._coordinator.find(name)
                for poll in running.polls if group else ():
                    if group and poll.member.id in group.members:  # a poll counts as a heartbeat, also while it waits
                        group.touch(poll.member.id, now_ns=now_ns, wall_ns=wall_ns)
        self._coordinator.tick(now_ns=now_ns)
        self._tell()
        if now_ns - self._auto_commit_ns >= AUTO_COMMIT_NS:
            self._auto_commit_ns = now_ns
            self._auto_commit()
        self._run_woken()

    def topics_changed(self) -> None:
        """A topic came, went or grew."""
        counts = self._topics.partition_counts()
        for running in self._running.values():
            for partition in [one for one in running.places if one.partition >= counts.get(one.topic, 0)]:
                del running.places[partition]
        self._coordinator.topics_changed(counts, now_ns=self._clock.monotonic_ns())
        self._tell()

    def topic_deleted(self, topic: str) -> None:
        """Its cursors are gone with it."""
        for running in self._running.values():
            for partition in [one for one in running.places if one.topic == topic]:
                del running.places[partition]
        self.topics_changed()

    def wake(self, group: str) -> None:
        """Something may be ready for the group."""
        self._wake(group)

    def run_woken(self) -> None:
        """Let the polls that were woken look again."""
        self._run_woken()

    def give_up(self) -> None:
        """Answer all polls that wait: the broker stops."""
        for name, running in list(self._running.items()):
            group = self._coordinator.find(name)
            for poll in list(running.polls):
                if group and poll.pending:
                    poll.pending.resolve(self._empty(group, poll))

    # --- inside --------------------------------------------------------------------------------

    def _wake(self, group: str) -> None:
        if group in self._running and self._running[group].polls:
            self._woken[group] = None

    def _run_woken(self) -> None:
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
        group, running = self._coordinator.find(name), self._running.get(name)
        if group is None or running is None:
            return
        for poll in list(running.polls):
            if poll.pending is None or poll.pending.is_done or poll.member.id not in group.members:
                continue
            try:
                result = self._attempt(group, poll)
            except GoQueueError as error:
                poll.pending.fail(error)
                continue
            if result.records:
                poll.pending.resolve(result)
        if running.polls:
            self._watch(group)

    def _watch(self, group: Group) -> None:
        """Look again when something is stored."""
        running = self._places(group.name)
        watched = {partition for poll in running.polls for partition in group.assigned(poll.member.id)}
        for partition in watched:
            place = running.places.get(partition)
            if place is not None:
                place.delivery.live.watch(running, partial(self._stored, group.name))

    def _unwatch(self, running: GroupPlaces) -> None:
        for place in running.places.values():
            place.delivery.live.unwatch(running)

    def _stored(self, name: str) -> None:
        self._wake(name)
        self._run_woken()

    def _tell(self) -> None:
        """Pass on what happened in the groups, and do what follows from it."""
        for event in self._coordinator.take_events():
            self._observe(event)
            match event:
                case events.MemberLeft(group=name, member_id=member_id, reason=reason):
                    self._release(name, member_id, is_lost=reason == "timeout")
                    self._answer_polls(name, member_id)
                case events.RebalanceStarted(group=name):
                    self._ask_back(name)
                case events.PartitionsAssigned(group=name, member_id=member_id):
                    self._answer_polls(name, member_id)
                case events.PartitionsRevoked(group=name, member_id=member_id, partitions=partitions):
                    self._take_back(name, member_id, partitions)
                    self._answer_polls(name, member_id)
                case events.GroupChanged(group=name):
                    self._wake(name)
                    if self._coordinator.find(name) is not None:
                        self._store(name)
                case _:
                    pass
        self._run_woken()

    def _release(self, name: str, member_id: str, *, is_lost: bool) -> None:
        running = self._running.get(name)
        if running is None:
            return
        running.turns.pop(member_id, None)
        for delivery, one in running.places.values():
            with suppress(StorageError):
                delivery.release_member(one, member_id, is_lost=is_lost)

    def _take_back(self, name: str, member_id: str, partitions: Sequence[tuple[str, int]]) -> None:
        """Without leases, what a member has of a partition that it lost goes to the next one, from the position on."""
        running = self._running.get(name)
        for partition in partitions:
            place = running.places.get(TopicPartition(*partition)) if running else None
            if place is not None:
                place.delivery.take_back(place.cursor, member_id)

    def _ask_back(self, name: str) -> None:
        """Members that are to give something back hear of it now, and not when their polls are over."""
        group = self._coordinator.find(name)
        for member in group.members.values() if group else ():
            if member.asked:
                self._answer_polls(name, member.id)

    def _answer_polls(self, name: str, member_id: str) -> None:
        """The partitions of the member have changed: its poll does not wait any longer."""
        running, group = self._running.get(name), self._coordinator.find(name)
        if running is None:
            return
        for poll in list(running.polls):
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

    def _commit_handed(
        self, name: str, member: Member, partitions: Sequence[TopicPartition] | None, *, is_leaving: bool = False
    ) -> None:
        """What was handed over without leases counts as done when its member gives it back by its own will."""
        running = self._running.get(name)
        if member.ack != "offsets" or not member.auto_commit or running is None:
            return
        for partition, (delivery, one) in running.places.items():
            if partitions is None or partition in partitions:
                with suppress(StorageError):
                    delivery.commit_handed(one, member.id, is_leaving=is_leaving)

    def _auto_commit(self) -> None:
        for group in self._coordinator:
            if group.ack == "offsets":
                for member in group.members.values():
                    self._commit_handed(group.name, member, None)

    def _places(self, group: str) -> GroupPlaces:
        running = self._running.get(group)
        if running is None:
            running = self._running[group] = GroupPlaces()
        return running

    def _place(self, group: str, partition: TopicPartition, *, start: str = "earliest") -> Place:
        running = self._places(group)
        place = running.places.get(partition)
        if place is None:
            delivery = self._topics.delivery(self._topics.live(*partition))
            place = running.places[partition] = Place(delivery, delivery.cursor_of(group, start=start))
        return place

    def _all_places(self, group: Group) -> dict[TopicPartition, Place]:
        """Everywhere the group has a position, also on topics that none of its members has now."""
        found = dict(self._places(group.name).places)
        counts = self._topics.partition_counts()
        for topic, count in counts.items():
            for number in range(count):
                partition = TopicPartition(topic, number)
                if partition not in found:
                    live = self._topics.live(topic, number)
                    if topic in group.topics or live.delivery is not None or live.partition.has_ledger:
                        delivery = self._topics.delivery(live)
                        if group.name in delivery.cursors:
                            found[partition] = self._place(group.name, partition)
        return found

    def _up_to_date(self, places: dict[TopicPartition, Place]) -> dict[TopicPartition, Place]:
        """The same places; after a restart what is no message is passed over only when the log is looked at."""
        for delivery, one in places.values():
            delivery.feed(one, 1)
        return places

    def _partitions_of(self, topics: Sequence[str]) -> Iterator[TopicPartition]:
        counts = self._topics.partition_counts()
        return (TopicPartition(topic, number) for topic in topics for number in range(counts[topic]))

    def _check_topics(self, asked: Join) -> None:
        counts = self._topics.partition_counts()
        for topic in asked.topics:
            if topic not in counts:
                raise TopicNotFound(topic)

    def _joined(self, group: Group, member: Member) -> reports.Joined:
        return reports.Joined(
            member.id,
            group.generation,
            group.leader_id or "",
            sorted(group.members),
            _names(group.assigned(member.id)),
            group.rebalance_required(member.id),
            group.mode,
            group.protocol,
            member.session_timeout_ms,
            self._coordinator.config.heartbeat_interval_ms,
        )

    def _store(self, name: str) -> Pending[None]:
        """Write down who is in the group."""
        return self._journaled({_key(name): self._coordinator.get(name).snapshot()})

    def _journaled(self, facts: Mapping[bytes, bytes | None]) -> Pending[None]:
        return chained(self._topics.journal(GROUPS_TOPIC), lambda journal: journal.put(facts))

    def _lag_seconds(self, place: Place) -> float:
        """The age of the oldest message that is not done."""
        if not _lag(place):
            return 0.0
        stored_ns = place.delivery.fetcher.timestamp_of(place.cursor.cursor.floor)
        return 0.0 if stored_ns is None else max(0, self._clock.wall_ns() - stored_ns) / SECOND

    def _now(self) -> tuple[int, int]:
        return self._clock.monotonic_ns(), self._clock.wall_ns()


def _key(group: str) -> bytes:
    return _GROUP + group.encode()


def _names(partitions: Sequence[TopicPartition]) -> list[PartitionName]:
    return [PartitionName(*partition) for partition in partitions]


def _lag(place: Place) -> int:
    """Readable messages that are not done."""
    cursor = place.cursor.cursor
    start = max(cursor.floor, place.delivery.live.log.start_offset)
    return max(0, place.delivery.live.last_stable_offset - start - len(cursor.acked))


def _count(result: PollResult) -> int:
    return sum(batch.count for batch in result.polled.batches)


def _offsets(raw: Buffer) -> BitMap64:
    if not len(raw):
        return BitMap64()
    if len(raw) % 8:
        raise InvalidRequest("offsets must be whole numbers of 64 bits")
    numbers = array("Q")
    numbers.frombytes(raw)
    if sys.byteorder == "big":  # they come in little-endian
        numbers.byteswap()
    return BitMap64(numbers)


def _check(settlement: reports.Settlement) -> None:
    if settlement.action not in ACTIONS:
        raise InvalidRequest(f"invalid action {settlement.action!r}: must be one of {' '.join(ACTIONS)}", path="action")
    if settlement.action == "extend" and not 0 < (settlement.delay_ns or 0) <= EXTENSION_NS_MAX:
        raise InvalidRequest("invalid timeout: must be more than 0 and at most 12h", path="timeout")
    if settlement.delay_ns is not None and settlement.delay_ns < 0:
        raise InvalidRequest("invalid delay: must not be negative", path="delay")
