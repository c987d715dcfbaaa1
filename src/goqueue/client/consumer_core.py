"""What a consumer asks and what the answers mean, without a socket: requests come out, answers go in.

Each operation of a consumer is a generator. It yields `ConsumerRequest`s, is sent the frames that answer them, and
returns what the application gets. A driver with an event loop and one without drive the same generators.

**Membership.** A consumer joins with its first poll, under an id that it has chosen: a join whose answer was lost is
repeated and adds no second member. From then on heartbeats, which the background thread sends, report rebalances, and
the consumer gives up revoked partitions at once. A member that was removed from the group joins again with the next
poll. Only a member whose id the application chose, and another process has taken over, is fenced for good
(`StaleGeneration`).

**Leases.** As long as the application holds unsettled messages of a delivery, the lease of the delivery is extended.
The broker alone knows which messages are left, and says how many with each extension. When the application holds no
message of a delivery any more, the lease is forgotten here and expires at the broker.

**Lost answers.** A poll has a number. A poll whose answer is lost is repeated under the same number, and the broker
delivers again what that answer held. A settlement that is repeated may find its messages `settled`. A settlement of
several deliveries may be refused for some of them for a moment; then those are sent again, without the others.

**Damage.** Messages that cannot be read are skipped with a `DataLossWarning` (`goqueue.client.damage`). The broker
settles what is damaged on its disk. A record whose value cannot be decompressed is rejected, alone: it becomes a dead
letter, and the messages beside it are delivered.

Two threads work with one core: that of the application, and one that sends heartbeats, extensions and settlements in
the background. `positions` belong to the first. Everything else is replaced as a whole, or is at worst too high until
the next answer corrects it.
"""

import sys
from array import array
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import repeat
from operator import attrgetter, is_
from typing import Any, NamedTuple, TypeVar
from weakref import WeakValueDictionary

import msgspec

from goqueue.client.damage import VALUE, polled_gaps, undecodable, warn
from goqueue.client.session import decode, restored
from goqueue.clock import MS, SECOND, Clock
from goqueue.errors import (
    Conflict,
    GoQueueError,
    GroupNotFound,
    InvalidRequest,
    NotGroupMember,
    PartitionNotAssigned,
    ReceiptError,
    ReceiptUnknown,
    StaleGeneration,
)
from goqueue.names import TopicPartition
from goqueue.record.message import StoredMessage, Undecodable, decode_messages
from goqueue.wire import codes, verbs
from goqueue.wire.frames import Frame
from goqueue.wire.reports import (
    DeliveredBatch,
    HeartbeatAnswer,
    JoinAnswer,
    PartitionName,
    PollAnswer,
    PositionCommit,
    SettledBatch,
    Settlement,
)
from goqueue.wire.verbs import Verb

PREFETCH_LEASE_NS_MIN = 5 * SECOND
"""Nothing is prefetched where leases are shorter."""
HEARTBEAT_NS_MAX = 3 * SECOND
WAIT_MS_MAX = 20_000
"""How long one request waits at the broker; a longer poll asks again."""
EXTENDED_NS_MAX = 12 * 3_600 * SECOND
"""After that, a lease is not extended any more: the application has forgotten the message."""
REFUSALS_MAX = 5
"""How often in a row a poll starts over; after more refusals, the last one is raised."""
ACKS = {"each": ("messages", True), "offsets": ("offsets", False), "auto": ("offsets", True)}

T = TypeVar("T")
_decode_settled = msgspec.msgpack.Decoder(list[tuple[SettledBatch | None, verbs.ErrorMeta | None]]).decode
_Places = list[tuple[str, int, int]]
_priority = attrgetter("priority_code")
_offset = attrgetter("offset")
_origin = attrgetter("origin")


@dataclass(slots=True)
class ConsumerRequest:
    """A frame to send. The broker may wait for `wait_ms` before it answers."""

    verb: Verb
    meta: msgspec.Struct
    payload: bytes | None = None
    wait_ms: int = 0
    was_lost: bool = False  # it may have arrived before; the driver sets this

    def take(self, frame: Frame) -> None:
        """The request was answered. Raises a retryable error if a part of it has to be sent again."""


class SettleParts(ConsumerRequest):
    """A SETTLE of several deliveries, each of which is answered. It asks again only for what was refused for now."""

    def __init__(self, settlement: Settlement, parts: Sequence[verbs.SettlePart], offsets: Sequence[bytes]) -> None:
        super().__init__(Verb.SETTLE, verbs.SettleRequest(settlement, list(parts)), b"".join(offsets))
        self.answers: list[tuple[SettledBatch | None, verbs.ErrorMeta | None]] = [(None, None)] * len(parts)
        self._settlement = settlement
        self._parts = parts
        self._offsets = offsets
        self._left: Sequence[int] = range(len(parts))

    def take(self, frame: Frame) -> None:
        """Some parts are settled or refused for good. Raises why the others are not."""
        left: list[int] = []
        for index, (answer, told) in zip(self._left, _decode_settled(frame.payload), strict=True):
            self.answers[index] = answer, told
            if told is not None and told.retryable:
                left.append(index)
        self._left = left
        if left:
            self.meta = verbs.SettleRequest(self._settlement, [self._parts[index] for index in left])
            self.payload = b"".join([self._offsets[index] for index in left])
            told = self.answers[left[0]][1]
            assert told is not None
            self.was_lost = True  # a leader that ends while the answer waits may have carried it out
            raise restored(told)


Steps = Generator[ConsumerRequest, Frame, T]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerConfig:
    """What a consumer was asked to be."""

    topics: tuple[str, ...]
    group: str
    client_id: str
    member_id: str
    is_static: bool = False  # the application chose the id: a later member with the same id takes over
    mode: str = "partitioned"
    protocol: str = "cooperative"
    assignor: str = "sticky"
    start: str = "earliest"
    ack: str = "each"
    auto_extend: bool = True
    visibility_ms: int | None = None
    max_in_flight: int | None = None
    session_timeout_ms: int = 30_000
    auto_commit_interval_ms: int = 5_000
    telemetry: bool = True  # the context of a message is current in its block

    def __post_init__(self) -> None:
        for name in ("group", "member_id", "mode", "protocol", "assignor", "start"):
            value: object = getattr(self, name)
            if not isinstance(value, str) or not value:
                raise InvalidRequest(f"invalid {name} {value!r}: must be a name", path=name)
        topics: tuple[object, ...] = self.topics
        if not topics or not all(isinstance(topic, str) and topic for topic in topics):
            raise InvalidRequest(f"invalid topics {self.topics!r}: must be one name or more", path="topics")
        if self.ack not in ACKS:
            raise InvalidRequest(f"invalid ack {self.ack!r}: must be one of {' '.join(ACKS)}", path="ack")
        limit: object = self.max_in_flight
        if limit is not None and (not isinstance(limit, int) or limit < 1):
            raise InvalidRequest(f"invalid max_in_flight {limit!r}: must be 1 or more", path="max_in_flight")


class Lease:
    """The lease of one delivery. It lives as long as the application holds messages of it."""

    __slots__ = ("__weakref__", "began_ns", "extend_at_ns", "left", "length_ns", "part")

    def __init__(self, batch: DeliveredBatch, now_ns: int) -> None:
        self.part = verbs.SettlePart(batch.topic, batch.partition, batch.nonce, 0)
        self.left = batch.count  # not settled, as far as this consumer knows
        self.length_ns = batch.lease_ns
        self.began_ns = now_ns  # monotonic
        self.extend_at_ns = now_ns + batch.lease_ns // 2


class DeliveryOrigin(TopicPartition):
    """The partition and the delivery that messages came with: what their receipts have in common."""

    batch: DeliveredBatch
    connection: "Settles"
    lease: Lease

    @classmethod
    def of(cls, batch: DeliveredBatch, connection: "Settles", lease: Lease) -> "DeliveryOrigin":
        """The delivery of that batch."""
        made = cls(batch.topic, batch.partition)
        made.batch = batch
        made.connection = connection
        made.lease = lease
        return made


class PolledBatch(NamedTuple):
    """What one poll has brought."""

    messages: list[Any]
    deliveries: Sequence[DeliveryOrigin] = ()

    def is_whole(self, messages: object) -> bool:
        """Whether these are the messages of the batch, all of them."""
        mine = self.messages
        return isinstance(messages, list) and bool(mine and messages) and messages[0] is mine[0] and messages == mine


class Settles:
    """A connection that settles messages."""

    def prefetch_after_poll(self, batches: Sequence[DeliveredBatch], max_messages: int) -> None:
        """A poll for so many messages has brought these batches, which are about to be decoded."""


class ConsumerCore:
    """The state of one member of a group, without a socket."""

    def __init__(self, config: ConsumerConfig, clock: Clock) -> None:
        self.config = config
        self.generation: int | None = None
        self.is_member = False
        self.partitions: list[PartitionName] = []
        self._known: frozenset[tuple[str, int]] = frozenset()  # the same
        self.positions: dict[TopicPartition, int] = {}
        self.must_beat = False  # something has changed: the next heartbeat should not wait
        self.heartbeat_ns = min(HEARTBEAT_NS_MAX, config.session_timeout_ms * MS // 3)  # until the broker says another
        self.extend_at_ns: int | None = None  # when the leases of the last poll have to be extended
        self.reason = ""  # why the last poll brought nothing
        self._clock = clock
        self._has_leases = ACKS[config.ack][0] == "messages"
        self._leases: WeakValueDictionary[str, Lease] = WeakValueDictionary()
        self._may_be_member = False  # a join was sent
        self._fenced: StaleGeneration | None = None
        self._poll_number = 1
        self._is_poll_open = False  # a poll was sent, and its answer has not come

    # --- membership ----------------------------------------------------------------------------

    def join(self, *, auto_commit: bool | None = None) -> Steps[None]:
        """Become a member, or the same one again."""
        if self._fenced:
            raise self._fenced
        config = self.config
        ack, commits = ACKS[config.ack]
        asked = verbs.JoinRequest(
            group=config.group,
            client_id=config.client_id,
            topics=config.topics,
            member_id=config.member_id,
            session_timeout_ms=config.session_timeout_ms,
            mode=config.mode,
            protocol=config.protocol,
            assignor=config.assignor,
            start=config.start,
            ack=ack,
            auto_commit=commits if auto_commit is None else auto_commit,
            visibility_timeout_ms=config.visibility_ms,
            max_in_flight=config.max_in_flight,
            auto_commit_interval_ms=config.auto_commit_interval_ms,
        )
        self._may_be_member = True
        frame = yield ConsumerRequest(Verb.JOIN, asked)
        joined = decode(frame.payload, JoinAnswer)
        self.generation = joined.generation
        self.heartbeat_ns = max(1, joined.heartbeat_interval_ms) * MS
        self._has(joined.partitions)
        self.must_beat = joined.rebalance_required
        self.positions.clear()
        self.is_member = True

    def heartbeat(self, *, is_idle: bool = False) -> Steps[None]:
        """Send a heartbeat, and give up revoked partitions; `is_idle` if all that was polled is done."""
        config = self.config
        revoked: list[PartitionName] | None = None
        for _ in range(REFUSALS_MAX):
            if not self.is_member:
                return
            self.must_beat = False
            asked = verbs.HeartbeatRequest(config.group, config.member_id, self.generation)
            try:
                frame = yield ConsumerRequest(Verb.HEARTBEAT, asked, verbs.encode(revoked) if revoked else None)
            except StaleGeneration as error:
                self._was_refused(error)
                revoked = None
                continue
            except (NotGroupMember, GroupNotFound):
                self.is_member = False
                return
            beat = decode(frame.payload, HeartbeatAnswer)
            self.generation = max(self.generation or 0, beat.generation)
            self._has(beat.partitions_assigned)
            if not beat.partitions_to_revoke:
                self.must_beat = self.must_beat or beat.rebalance_required
                return
            revoked = beat.partitions_to_revoke
            if is_idle and self._commits_positions:
                yield from self._commit_all({TopicPartition(one.topic, one.partition) for one in revoked})

    def leave(self) -> Steps[None]:
        """Leave the group, if this consumer may be in it; unsettled messages are delivered to others at once."""
        if self._may_be_member:
            arguments: dict[str, object] = {"group": self.config.group, "member_id": self.config.member_id}
            with suppress(NotGroupMember, GroupNotFound):
                yield ConsumerRequest(Verb.CALL, verbs.CallRequest("groups.leave"), verbs.encode(arguments))
        self.is_member = self._may_be_member = False
        self._leases.clear()

    def close(self, done: dict[TopicPartition, int] | None) -> Steps[None]:
        """Leave; with `done`, no more than that is committed."""
        if done is None and self._is_poll_open:  # leaving would commit what an answer held that never came
            done = dict(self.positions)
        yield from self.leave() if done is None else self.abandon(done)

    def abandon(self, done: dict[TopicPartition, int]) -> Steps[None]:
        """Leave with no more committed than what is done; everything else that was polled goes to others."""
        if self.is_member and self.config.ack == "auto":
            self.positions = done
            if self._commits_positions:
                with suppress(NotGroupMember, StaleGeneration):
                    yield from self._commit_all(set(done))
            with suppress(StaleGeneration):
                yield from self.join(auto_commit=False)  # leaving commits everything otherwise
        yield from self.leave()

    @property
    def _commits_positions(self) -> bool:
        """Whether positions are committed automatically, and stand for the work of this member alone."""
        return self.config.ack == "auto" and self.config.mode == "partitioned"

    def _has(self, partitions: list[PartitionName]) -> None:
        self._known = frozenset((one.topic, one.partition) for one in partitions)
        self.partitions = partitions

    def _was_refused(self, error: StaleGeneration) -> None:
        """The generation is stale: this member missed a rebalance, or another one has taken over its id."""
        if self.config.is_static:
            self._fenced = error
            self.is_member = self._may_be_member = False
            raise error
        self.generation = error.generation

    # --- polling -------------------------------------------------------------------------------

    def poll(
        self, max_messages: int, timeout_ms: int, connection: Settles, message_type: type[StoredMessage]
    ) -> Steps[PolledBatch]:
        """The next messages; none if the time is over."""
        until_ns = self._clock.monotonic_ns() + timeout_ms * MS
        refusals = 0
        while True:
            if not self.is_member:
                yield from self.join()
            elif self.must_beat:
                yield from self.heartbeat(is_idle=True)
            asked_ns = self._clock.monotonic_ns()
            wait_ms = min(max(0, (until_ns - asked_ns) // MS), WAIT_MS_MAX)
            self._is_poll_open = True
            try:
                frame = yield ConsumerRequest(Verb.POLL, self._poll(max_messages, wait_ms), None, wait_ms)
            except (StaleGeneration, NotGroupMember, GroupNotFound) as error:
                refusals += 1
                if refusals > REFUSALS_MAX:
                    raise
                if isinstance(error, StaleGeneration):
                    self._was_refused(error)
                    yield from self.heartbeat(is_idle=True)
                else:
                    self.is_member = False
                continue
            self._poll_number += 1
            self._is_poll_open = False
            polled = decode(frame.meta, PollAnswer)
            self.reason = polled.reason
            self.must_beat = self.must_beat or polled.rebalance_required or polled.generation != self.generation
            if polled.batches:
                connection.prefetch_after_poll(polled.batches, max_messages)
                lost = polled_gaps(polled.gaps) if polled.gaps else []
                batch, broken = self._messages(polled, frame.payload, connection, message_type)
                for delivery, records in broken:
                    lost += undecodable(delivery, records)
                    yield from self._reject_undecodable(delivery, records)
                if lost:
                    warn(lost)
                if batch.messages:
                    return batch
                continue
            if polled.gaps:
                warn(polled_gaps(polled.gaps))
            now_ns = self._clock.monotonic_ns()
            if (
                self.must_beat or now_ns < asked_ns + wait_ms * MS
            ):  # it came early: a rebalance has changed the partitions
                yield from self.heartbeat(is_idle=True)
            if now_ns >= until_ns:
                return PolledBatch([])

    def _poll(self, max_messages: int, wait_ms: int) -> verbs.PollRequest:
        group, member_id, number = self.config.group, self.config.member_id, self._poll_number
        return verbs.PollRequest(group, member_id, self.generation, max_messages, wait_ms=wait_ms, number=number)

    def next_poll(self, batches: Sequence[DeliveredBatch], max_messages: int) -> verbs.PollRequest | None:
        """The poll that is likely to come after one that has brought these, if it may be sent before it comes.

        It does not wait, and has the number of the next poll: sent again, it brings the same messages.
        """
        is_full = sum(one.count for one in batches) == max_messages
        if not is_full or not self._has_leases or self.must_beat or not self.is_member:
            return None
        is_long = all(one.lease_ns >= PREFETCH_LEASE_NS_MIN for one in batches)
        return self._poll(max_messages, 0) if is_long else None

    def _messages(
        self, polled: PollAnswer, payload: memoryview, connection: Settles, message_type: type[StoredMessage]
    ) -> tuple[PolledBatch, list[tuple[DeliveryOrigin, list[Undecodable]]]]:
        """The messages, and the records of which none can be made."""
        broken: list[tuple[DeliveryOrigin, list[Undecodable]]] = []
        messages: list[StoredMessage] = []
        deliveries: list[DeliveryOrigin] = []
        at = 0
        now_ns = self._clock.monotonic_ns()
        has_extensions = self._has_leases and self.config.auto_extend
        for batch in polled.batches:
            lease = Lease(batch, now_ns)
            if has_extensions:
                self._leases[batch.nonce] = lease
                self.extend_at_ns = lease.extend_at_ns
            elif not self._has_leases:
                self.positions[TopicPartition(batch.topic, batch.partition)] = batch.next_offset
            if (batch.topic, batch.partition) not in self._known:
                self.must_beat = True
            delivery = DeliveryOrigin.of(batch, connection, lease)
            end = at + batch.bytes
            bad: list[Undecodable] = []
            messages += decode_messages(
                payload[at:end], delivery, flags=batch.flags, message_type=message_type, undecodable=bad
            )
            if bad:
                broken.append((delivery, bad))
            deliveries.append(delivery)
            at = end
        if len(deliveries) > 1:
            messages.sort(key=_priority)
        return PolledBatch(messages, deliveries), broken

    def _reject_undecodable(self, delivery: DeliveryOrigin, records: Sequence[Undecodable]) -> Steps[None]:
        """Dead-letter records that the application can never be given: no retry makes them readable.

        Without leases the position skips them. If this fails, their lease expires and they are delivered again.
        """
        if not self._has_leases:
            return
        offsets = array("Q", [one.offset for one in records])
        reason = f"{VALUE}: {records[0].reason}"
        with suppress(GoQueueError):
            yield from self._settle([(delivery, offsets)], Settlement("reject", reason=reason), False)

    def release(self, frame: Frame) -> Steps[None]:
        """Release the messages of an answer that came too late: they are delivered as if for the first time."""
        polled = decode(frame.meta, PollAnswer)
        parts = [verbs.SettlePart(one.topic, one.partition, one.nonce, 0) for one in polled.batches]
        if polled.gaps:
            warn(polled_gaps(polled.gaps))
        if parts and self._has_leases:
            yield ConsumerRequest(Verb.SETTLE, verbs.SettleRequest(Settlement("release"), parts), b"")

    # --- settling ------------------------------------------------------------------------------

    def ack_whole(self, batch: PolledBatch) -> Steps[None]:
        """The whole batch is done. Which messages those are, the broker knows."""
        is_touched = any(one.lease.left != one.batch.count for one in batch.deliveries)
        if not self._has_leases or is_touched or len(batch.deliveries) > verbs.PARTS_MAX:
            yield from self.settle(batch.messages, Settlement("ack"))
            return
        asked = verbs.SettleRequest(Settlement("ack"), [one.lease.part for one in batch.deliveries])
        frame = yield ConsumerRequest(Verb.SETTLE, asked, b"")
        in_doubt: set[int] = set()
        for delivery, (answer, _) in zip(batch.deliveries, _decode_settled(frame.payload), strict=True):
            if answer is not None and answer.settled == delivery.batch.count:
                self._settled(delivery, answer, asked.settlement)
            else:
                in_doubt.add(id(delivery))
        if in_doubt:
            those = [one for one in batch.messages if id(one.origin) in in_doubt]
            yield from self.settle(those, asked.settlement, is_repeated=True)

    def settle(
        self, messages: StoredMessage | Iterable[StoredMessage], settlement: Settlement, *, is_repeated: bool = False
    ) -> Steps[None]:
        """Settle one or many in one request; raises for the first that could not be."""
        if not self._has_leases:
            raise Conflict("this consumer commits positions; its messages are not settled one by one")
        failure: GoQueueError | None = None
        chosen = _by_delivery(messages)
        for start in range(0, len(chosen), verbs.PARTS_MAX):
            error = yield from self._settle(chosen[start : start + verbs.PARTS_MAX], settlement, is_repeated)
            failure = failure or error
        if failure:
            raise failure

    def _settle(
        self, chosen: "Sequence[tuple[DeliveryOrigin, array[int]]]", settlement: Settlement, is_repeated: bool
    ) -> Steps[GoQueueError | None]:
        parts = [
            verbs.SettlePart(topic=one.topic, partition=one.partition, nonce=one.batch.nonce, count=len(offsets))
            for one, offsets in chosen
        ]
        request = SettleParts(settlement, parts, [_raw(offsets) for _, offsets in chosen])
        refusal: GoQueueError | None = None
        try:
            yield request
        except GoQueueError as error:  # the time is over; some parts may be settled
            refusal = error
        is_repeated = is_repeated or request.was_lost
        failure: GoQueueError | None = None
        for (delivery, _), (answer, told) in zip(chosen, request.answers, strict=True):
            if answer is None:
                if told is not None and not told.retryable:
                    failure = failure or restored(told)
                continue
            self._settled(delivery, answer, settlement)
            for refused in answer.refused:
                why = codes.restore(refused.code, refused.text, refused.facts)
                if not (is_repeated and _is_as_asked(why, settlement.action)):
                    failure = failure or why
        if refusal is not None:
            raise refusal
        return failure

    def _settled(self, delivery: DeliveryOrigin, answer: SettledBatch, settlement: Settlement) -> None:
        lease = delivery.lease
        if settlement.action != "extend":
            lease.left -= answer.settled
            if lease.left <= 0:
                self._leases.pop(lease.part.nonce, None)
        elif answer.settled and settlement.delay_ns:  # no extension of ours may shorten that, or come after it
            lease.length_ns = max(lease.length_ns, settlement.delay_ns)
            soon_ns = self._clock.monotonic_ns() + settlement.delay_ns // 2
            self.extend_at_ns = lease.extend_at_ns = min(lease.extend_at_ns, soon_ns)

    def extend_leases(self) -> Steps[None]:
        """Extend the leases that are half over and have unsettled messages."""
        now_ns = self._clock.monotonic_ns()
        due: dict[int, list[Lease]] = {}
        for lease in self._extendable():
            if now_ns - lease.began_ns > EXTENDED_NS_MAX:
                self._leases.pop(lease.part.nonce, None)
            elif now_ns >= lease.extend_at_ns:
                due.setdefault(lease.length_ns, []).append(lease)
        for length_ns, together in _in_parts(due):
            asked = verbs.SettleRequest(Settlement("extend", length_ns), [lease.part for lease in together])
            frame = yield ConsumerRequest(Verb.SETTLE, asked, b"")
            for lease, (answer, told) in zip(together, _decode_settled(frame.payload), strict=True):
                is_refused_for_now = told is not None and told.retryable
                lease.extend_at_ns = now_ns + length_ns // (8 if is_refused_for_now else 2)
                if not is_refused_for_now and not (answer and answer.settled):
                    self._leases.pop(lease.part.nonce, None)

    def next_extension_ns(self) -> int | None:
        """When a lease has to be extended next."""
        return min((lease.extend_at_ns for lease in self._extendable()), default=None)

    @property
    def lease_count(self) -> int:
        """How many deliveries have unsettled messages, as far as this consumer knows."""
        return len(self._extendable())

    def _extendable(self) -> list[Lease]:
        leases = (found() for found in self._leases.valuerefs())
        return [lease for lease in leases if lease is not None and lease.left > 0]

    # --- positions -----------------------------------------------------------------------------

    def commit(
        self, positions: Mapping[tuple[str, int], int] | None = None, *, allow_backwards: bool = False
    ) -> Steps[None]:
        """Commit these positions; if none are given those after everything that was polled, except of partitions that
        were revoked since.
        """
        if self._has_leases:
            raise Conflict("this consumer settles messages one by one; it has no positions to commit")
        if positions is not None:
            yield from self._commit_chosen(_positions(positions), allow_backwards)
            return
        if allow_backwards:
            raise InvalidRequest("allow_backwards needs positions", path="allow_backwards")
        if self.positions and not self.is_member:
            self.positions.clear()
            raise NotGroupMember(self.config.group, self.config.member_id)
        yield from self._commit_all(set(self.positions))

    def _commit_chosen(self, commits: Sequence[PositionCommit], allow_backwards: bool) -> Steps[None]:
        if not self.is_member:
            raise NotGroupMember(self.config.group, self.config.member_id)
        refusal: StaleGeneration | None = None
        for _ in range(REFUSALS_MAX):
            try:
                yield self._commit_request(commits, allow_backwards)
            except StaleGeneration as error:
                self._was_refused(error)
                refusal = error
            except (NotGroupMember, GroupNotFound):
                self.is_member = False
                raise
            else:
                for one in commits:  # what was polled before is no longer what comes next
                    self.positions.pop(TopicPartition(one.topic, one.partition), None)
                return
        assert refusal is not None
        raise refusal

    def _commit_request(self, commits: Sequence[PositionCommit], allow_backwards: bool = False) -> ConsumerRequest:
        arguments: dict[str, object] = {
            "group": self.config.group,
            "commits": commits,
            "member_id": self.config.member_id,
            "generation": self.generation,
            "allow_backwards": allow_backwards,
        }
        return ConsumerRequest(Verb.CALL, verbs.CallRequest("groups.commit"), verbs.encode(arguments))

    def _commit_all(self, of: set[TopicPartition]) -> Steps[None]:
        for _ in range(REFUSALS_MAX + len(of)):
            commits = [
                PositionCommit(topic=name.topic, partition=name.partition, offset=offset)
                for name, offset in self.positions.items()
                if name in of
            ]
            if not commits:
                return
            try:
                yield self._commit_request(commits)
            except StaleGeneration as error:
                self._was_refused(error)
            except PartitionNotAssigned as error:
                self.positions.pop(TopicPartition(error.topic, error.partition), None)
            except (NotGroupMember, GroupNotFound):
                self.is_member = False
                self.positions.clear()
                raise
            else:
                for one in commits:
                    del self.positions[TopicPartition(one.topic, one.partition)]
                return


def _positions(given: Mapping[tuple[str, int], int]) -> list[PositionCommit]:
    try:
        commits = [PositionCommit(topic, partition, offset) for (topic, partition), offset in given.items()]
        named = msgspec.convert([(one.topic, one.partition, one.offset) for one in commits], _Places)
        fits = all(partition >= 0 and offset >= 0 for _, partition, offset in named)
    except (AttributeError, TypeError, ValueError):  # `msgspec.ValidationError` is one
        fits = False
    if not fits:
        text = f"invalid positions {given!r:.100}: must be a mapping of (topic, partition) to an offset"
        raise InvalidRequest(text, path="positions")
    return commits


def _in_parts(due: Mapping[int, Sequence[Lease]]) -> Iterator[tuple[int, Sequence[Lease]]]:
    for length_ns, leases in due.items():
        for start in range(0, len(leases), verbs.PARTS_MAX):
            yield length_ns, leases[start : start + verbs.PARTS_MAX]


def _is_as_asked(error: GoQueueError, action: str) -> bool:
    """Whether a settlement that was sent twice is refused because the first one was carried out."""
    if action in ("nack", "release"):
        return isinstance(error, ReceiptError)
    return isinstance(error, ReceiptUnknown) and error.reason == "settled"


def _by_delivery(messages: StoredMessage | Iterable[StoredMessage]) -> "list[tuple[DeliveryOrigin, array[int]]]":
    if isinstance(messages, StoredMessage):
        return [(_delivery(messages.origin), array("Q", (messages.offset,)))]
    try:
        many = messages if isinstance(messages, list) else list(messages)
        origins = list(map(_origin, many))
    except (TypeError, AttributeError):
        text = f"invalid messages {messages!r:.100}: must be a message or several"
        raise InvalidRequest(text, path="messages") from None
    if not origins:
        return []
    if all(map(is_, origins, repeat(origins[0]))):
        return [(_delivery(origins[0]), array("Q", list(map(_offset, many))))]
    found: dict[int, tuple[DeliveryOrigin, array[int]]] = {}
    for message in many:
        delivery = _delivery(message.origin)
        found.setdefault(id(delivery), (delivery, array("Q")))[1].append(message.offset)
    return list(found.values())


def _delivery(origin: object) -> DeliveryOrigin:
    if not isinstance(origin, DeliveryOrigin):
        raise Conflict("the message was read without a group; there is nothing to settle")
    return origin


def _raw(offsets: "array[int]") -> bytes:
    if sys.byteorder == "big":
        offsets.byteswap()
    return offsets.tobytes()
