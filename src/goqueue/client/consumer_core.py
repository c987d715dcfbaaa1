"""What a consumer says and hears, without a socket: requests come out, answers go in.

Each thing a consumer does is a generator of `Request`s that is sent the frames that answer them, and returns what the
application gets. A shell with an event loop and one without drive the same generators; nothing is written twice.

A consumer joins when it first polls. From then on heartbeats, which come from somewhere else, tell it what changed; it
gives back at once what it is asked for. Whoever was put out of the group joins again at the next poll.

Deliveries that are not settled are counted, so that their leases can be extended while somebody works on them. Which
messages of a delivery are left, only the broker knows.
"""

import sys
from array import array
from collections.abc import Generator, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import msgspec

from goqueue.client.session import decode
from goqueue.clock import MS, SECOND, Clock
from goqueue.errors import (
    Conflict,
    GoQueueError,
    InvalidRequest,
    NotGroupMember,
    ReceiptExpired,
    ReceiptUnknown,
    StaleGeneration,
)
from goqueue.names import TopicPartition
from goqueue.record.header import Priority
from goqueue.record.message import Message, decode_messages
from goqueue.wire import codes, verbs
from goqueue.wire.frames import Frame
from goqueue.wire.reports import (
    DeliveredBatch,
    Heartbeat,
    Joined,
    PartitionName,
    Polled,
    PositionCommit,
    SettledBatch,
    Settlement,
)
from goqueue.wire.verbs import Verb

HEARTBEAT_NS = 3 * SECOND
WAIT_MS_MAX = 20_000
"""How long one request waits at the broker; a longer poll asks again."""
EXTENDED_NS_MAX = 12 * 3_600 * SECOND
"""A message that nobody has settled by then is not extended any more: whoever has it, has forgotten it."""
JOINS_MAX = 5
ACKS = {"each": ("messages", True), "offsets": ("offsets", False), "auto": ("offsets", True)}

T = TypeVar("T")
_decode_settled = msgspec.msgpack.Decoder(list[tuple[SettledBatch | None, verbs.ErrorMeta | None]]).decode


class Request(NamedTuple):
    """A frame that is to be sent, and answered within a time."""

    verb: Verb
    meta: msgspec.Struct
    payload: bytes | None = None
    wait_ms: int = 0


Steps = Generator[Request, Frame, T]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerConfig:
    """What a consumer was asked to be."""

    topics: tuple[str, ...]
    group: str
    client_id: str
    member_id: str | None = None
    mode: str = "partitioned"
    protocol: str = "cooperative"
    assignor: str = "sticky"
    start: str = "earliest"
    ack: str = "each"
    auto_extend: bool = True
    visibility_ms: int | None = None
    max_in_flight: int | None = None
    session_timeout_ms: int = 30_000

    def __post_init__(self) -> None:
        if self.ack not in ACKS:
            raise InvalidRequest(f"invalid ack {self.ack!r}: must be one of {' '.join(ACKS)}", path="ack")


class Delivery(TopicPartition):
    """Where messages come from, and with which delivery: what their receipts have in common."""

    batch: DeliveredBatch
    consumer: "Settles"
    left: int  # not settled, as far as this consumer knows
    lease_ns: int
    began_ns: int  # monotonic
    extend_at_ns: int

    @classmethod
    def of(cls, batch: DeliveredBatch, consumer: "Settles") -> "Delivery":
        """The delivery of that batch."""
        made = cls(batch.topic, batch.partition)
        made.batch = batch
        made.consumer = consumer
        made.left = batch.count
        return made


class Settles:
    """Whoever can settle messages; the two shells of a consumer do."""


class ConsumerCore:
    """A member of a group, as far as it can be one without a socket."""

    def __init__(self, config: ConsumerConfig, clock: Clock) -> None:
        self.config = config
        self.member_id: str | None = config.member_id
        self.generation: int | None = None
        self.is_member = False
        self.partitions: list[PartitionName] = []
        self.must_ask = False  # something has changed: the next heartbeat should not wait
        self.deliveries: dict[str, Delivery] = {}
        self.positions: dict[TopicPartition, int] = {}
        self._clock = clock
        self._has_leases = ACKS[config.ack][0] == "messages"

    # --- membership ----------------------------------------------------------------------------

    def join(self) -> Steps[None]:
        """Become a member."""
        config = self.config
        ack, auto_commit = ACKS[config.ack]
        asked = verbs.Join(
            config.group,
            config.client_id,
            config.topics,
            self.member_id if self.member_id and (config.member_id or self.is_member) else config.member_id,
            config.session_timeout_ms,
            config.mode,
            config.protocol,
            config.assignor,
            config.start,
            ack,
            auto_commit,
            config.visibility_ms,
            config.max_in_flight,
        )
        frame = yield Request(Verb.JOIN, asked)
        joined = decode(frame.meta, Joined)
        self.member_id = joined.member_id
        self.generation = joined.generation
        self.partitions = joined.partitions
        self.is_member = True

    def heartbeat(self) -> Steps[None]:
        """Say that we live, and give back what we are asked for."""
        revoked: list[PartitionName] | None = None
        for _ in range(3):
            if not self.is_member or self.member_id is None:
                return
            self.must_ask = False
            asked = verbs.MemberHeartbeat(self.config.group, self.member_id, self.generation, revoked)
            try:
                frame = yield Request(Verb.HEARTBEAT, asked)
            except StaleGeneration as error:
                self.generation = error.generation
                continue
            except NotGroupMember:
                self.is_member = False
                return
            beat = decode(frame.meta, Heartbeat)
            self.generation = beat.generation
            self.partitions = beat.partitions_assigned
            if not beat.partitions_to_revoke:
                return
            revoked = beat.partitions_to_revoke
            yield from self._before_revocation(revoked)

    def leave(self) -> Steps[None]:
        """Leave the group; what is not settled goes to others at once."""
        if self.is_member and self.member_id is not None:
            self.is_member = False
            arguments: dict[str, object] = {"group": self.config.group, "member_id": self.member_id}
            with suppress(NotGroupMember):
                yield Request(Verb.CALL, verbs.Call("groups.leave", arguments))
        self.deliveries.clear()

    def _before_revocation(self, partitions: Sequence[PartitionName]) -> Steps[None]:
        """Positions that were not committed would be lost with the partitions; leases stay good."""
        if self.config.ack == "auto":
            yield from self.commit()
        for partition in partitions:
            self.positions.pop(TopicPartition(partition.topic, partition.partition), None)

    # --- polling -------------------------------------------------------------------------------

    def poll(
        self, max_messages: int, timeout_ms: int, consumer: Settles, message_type: type[Message]
    ) -> Steps[list[Message]]:
        """The next messages; none if the time is over."""
        until_ns = self._clock.monotonic_ns() + timeout_ms * MS
        joins = 0
        while True:
            if not self.is_member:
                joins += 1
                yield from self.join()
            left_ms = max(0, (until_ns - self._clock.monotonic_ns()) // MS)
            wait_ms = min(left_ms, WAIT_MS_MAX)
            assert self.member_id is not None
            asked = verbs.Poll(self.config.group, self.member_id, self.generation, max_messages, wait_ms=wait_ms)
            try:
                frame = yield Request(Verb.POLL, asked, None, wait_ms)
            except StaleGeneration as error:
                self.generation = error.generation
                yield from self.heartbeat()
                continue
            except NotGroupMember:
                self.is_member = False
                if joins >= JOINS_MAX:
                    raise
                continue
            polled = decode(frame.meta, Polled)
            self.must_ask = self.must_ask or polled.rebalance_required or polled.generation != self.generation
            if self.must_ask:
                yield from self.heartbeat()
            if polled.batches:
                return self._messages(polled, frame.payload, consumer, message_type)
            if self._clock.monotonic_ns() >= until_ns:
                return []

    def _messages(
        self, polled: Polled, payload: memoryview, consumer: Settles, message_type: type[Message]
    ) -> list[Message]:
        messages: list[Message] = []
        at = 0
        now_ns, wall_ns = self._clock.monotonic_ns(), self._clock.wall_ns()
        for batch in polled.batches:
            delivery = Delivery.of(batch, consumer)
            records = payload[at : at + batch.bytes]
            at += batch.bytes
            messages += decode_messages(records, delivery, flags=batch.flags, message_type=message_type)
            self.positions[TopicPartition(batch.topic, batch.partition)] = batch.next_offset
            if self._has_leases:
                delivery.began_ns = now_ns
                delivery.lease_ns = max(1, batch.deadline_ns - wall_ns)
                delivery.extend_at_ns = now_ns + delivery.lease_ns // 2
                self.deliveries[batch.nonce] = delivery
        if len(polled.batches) > 1 and any(one.priority_code != Priority.NORMAL for one in messages):
            messages.sort(key=lambda one: one.priority_code)
        return messages

    # --- settling ------------------------------------------------------------------------------

    def settle(self, messages: Message | Iterable[Message], settlement: Settlement) -> Steps[None]:
        """Settle one or many in one request; raises for the first that could not be."""
        if not self._has_leases:
            raise Conflict("this consumer commits positions; its messages are not settled one by one")
        chosen = self._by_delivery([messages] if isinstance(messages, Message) else messages)
        if not chosen:
            return
        parts = [verbs.SettlePart(one.topic, one.partition, one.batch.nonce, len(offsets)) for one, offsets in chosen]
        payload = b"".join(_raw(offsets) for _, offsets in chosen)
        frame = yield Request(Verb.SETTLE, verbs.Settle(settlement, parts), payload)
        failure: GoQueueError | None = None
        for (delivery, offsets), (answer, told) in zip(chosen, _decode_settled(frame.payload), strict=True):
            if answer is None:
                failure = failure or (codes.restore(told.code, told.text, told.facts) if told else None)
                self.deliveries.pop(delivery.batch.nonce, None)
                continue
            if settlement.action != "extend":
                self._settled(delivery, len(offsets))
            for refused in answer.refused:
                error = codes.restore(refused.code, refused.text, refused.facts)
                failure = failure or error
        if failure:
            raise failure

    def extend_leases(self) -> Steps[None]:
        """Extend what is being worked on and would run out."""
        if not self.config.auto_extend:
            return
        now_ns = self._clock.monotonic_ns()
        for nonce, delivery in list(self.deliveries.items()):
            if now_ns < delivery.extend_at_ns or delivery.left <= 0:
                continue
            if now_ns - delivery.began_ns > EXTENDED_NS_MAX:
                self.deliveries.pop(nonce, None)
                continue
            delivery.extend_at_ns = now_ns + delivery.lease_ns // 2
            part = verbs.SettlePart(delivery.topic, delivery.partition, nonce, 0)
            asked = verbs.Settle(Settlement("extend", delivery.lease_ns), [part])
            try:
                yield Request(Verb.SETTLE, asked, b"")
            except (ReceiptExpired, ReceiptUnknown):
                self.deliveries.pop(nonce, None)

    def next_extension_ns(self) -> int | None:
        """When a lease has to be extended next."""
        if not self.config.auto_extend:
            return None
        return min((one.extend_at_ns for one in list(self.deliveries.values()) if one.left > 0), default=None)

    def _settled(self, delivery: Delivery, count: int) -> None:
        delivery.left -= count
        if delivery.left <= 0:
            self.deliveries.pop(delivery.batch.nonce, None)

    def _by_delivery(self, messages: Iterable[Message]) -> list[tuple[Delivery, list[int]]]:
        many = messages if isinstance(messages, list) else list(messages)
        if not many:
            return []
        first = many[0].origin
        if all(one.origin is first for one in many):
            return [(_delivery(first), [one.offset for one in many])]
        found: dict[int, tuple[Delivery, list[int]]] = {}
        for one in many:
            delivery = _delivery(one.origin)
            found.setdefault(id(delivery), (delivery, []))[1].append(one.offset)
        return list(found.values())

    # --- positions -----------------------------------------------------------------------------

    def commit(self) -> Steps[None]:
        """Commit the positions behind everything that was polled."""
        if self._has_leases:
            raise Conflict("this consumer settles messages one by one; it has no positions to commit")
        positions, self.positions = self.positions, {}
        if not positions or not self.is_member:
            return
        arguments: dict[str, object] = {
            "group": self.config.group,
            "commits": [PositionCommit(*partition, offset) for partition, offset in positions.items()],
            "member_id": self.member_id,
            "generation": self.generation,
        }
        try:
            yield Request(Verb.CALL, verbs.Call("groups.commit", arguments))
        except BaseException:
            self.positions = {**positions, **self.positions}
            raise


def _delivery(origin: object) -> Delivery:
    if not isinstance(origin, Delivery):
        raise Conflict("the message was read without a group; there is nothing to settle")
    return origin


def _raw(offsets: list[int]) -> bytes:
    numbers = array("Q", offsets)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers.tobytes()
