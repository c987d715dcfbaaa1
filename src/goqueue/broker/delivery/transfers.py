"""Moving messages from one topic to another, and out of a cursor, in one step: dead letters and redrives.

    1. the ledger notes which messages go, and where the target log ends now
    2. the copies are appended to the target
    3. the ledger notes that the messages are done

Each step waits for the one before it to be safe. After a crash the ledger still says what was under way; copies that
made it into the target are found there by their `gq-origin`, from the end noted in step 1 on, and only the others are
written. So no message is lost, and none is there twice.
"""

from collections.abc import Callable
from typing import Protocol

from pyroaring import BitMap64

from goqueue import events
from goqueue.broker.delivery.group_cursors import GroupCursor
from goqueue.broker.delivery.partition_delivery import Graves, PartitionDelivery
from goqueue.broker.partition.leader import PartitionLeader
from goqueue.broker.timers import Timers
from goqueue.clock import SECOND, Clock
from goqueue.delivery import ledger
from goqueue.delivery.dead_letter import DLQ_SUFFIX, Death, addressee, dead_headers, origin_of, redriven_headers
from goqueue.delivery.ledger import Burial
from goqueue.errors import GoQueueError, TopicNotFound
from goqueue.record import kernel
from goqueue.record.header import HEADERS_BYTES_MAX, Flags
from goqueue.record.message import Message
from goqueue.service.pending import Pending, after, chained
from goqueue.tracing.context import COPY_TRACE, context_in, derived_trace_id

MESSAGES_MAX = 500
BATCH_BYTES = 1024 * 1024
RETRY_NS = SECOND
ROOM_FOR_TRACE = 1_024  # in the headers, so that a message never loses any of its own to what we add
_KEPT_FLAGS = int(Flags.COMPRESSED)


class Targets(Protocol):
    """Where messages can go."""

    def target(self, topic: str, *, like: str) -> Pending[list[PartitionLeader]]:
        """The partitions of the topic, which is made, if it has to be, with as many partitions as the other has."""


class Transfers:
    """Moves messages for one broker."""

    def __init__(self, targets: Targets, *, clock: Clock, timers: Timers, observe: events.Observer) -> None:
        self._targets = targets
        self._clock = clock
        self._timers = timers
        self._observe = observe

    def move(self, delivery: PartitionDelivery, one: GroupCursor, burial: Burial) -> Pending[Graves]:
        """Bury messages, or put them back; where they are then. What fails is tried again, whatever is answered."""
        target = burial.target or delivery.dlq_topic
        opened = self._targets.target(target, like=delivery.leader.origin.topic)
        opened.then(lambda done: self._tell_failure(done, target))
        moved = chained(opened, lambda leaders: self._begin(delivery, one, burial, leaders))
        self._watch(moved, delivery, one, burial)
        return moved

    def resume(self, delivery: PartitionDelivery, one: GroupCursor, burial: Burial) -> None:
        """Go on with what was under way before a restart."""
        if burial.target_offset < 0:
            self.move(delivery, one, burial)
            return
        target = burial.target or delivery.dlq_topic
        opened = self._targets.target(target, like=delivery.leader.origin.topic)

        def go_on(leaders: list[PartitionLeader]) -> Pending[Graves]:
            leader = _partition(leaders, delivery, burial)
            return self._write(delivery, one, burial, leader, self._there_already(delivery, one, burial, leader))

        self._watch(chained(opened, go_on), delivery, one, burial)

    def _begin(
        self, delivery: PartitionDelivery, one: GroupCursor, burial: Burial, leaders: list[PartitionLeader]
    ) -> Pending[Graves]:
        leader = _partition(leaders, delivery, burial)
        noted, stored = delivery.note_burial(one, burial, leader.log.next_offset)
        return chained(stored, lambda _: self._write(delivery, one, noted, leader, {}))

    def _write(
        self, delivery: PartitionDelivery, one: GroupCursor, burial: Burial, leader: PartitionLeader, there: Graves
    ) -> Pending[Graves]:
        """Append the copies that are not there yet, then let the messages be done."""
        graves = dict(there)
        left = ledger.offsets_of(burial.offsets) - BitMap64(list(there))
        end_offset = leader.log.next_offset if there else 0
        for messages in delivery.fetcher.messages(left, count=MESSAGES_MAX, max_bytes=BATCH_BYTES):
            records = kernel.encode(
                [None if message.tombstone else message.value for message in messages],
                keys=[message.key for message in messages],
                headers=[self._headers(delivery, one, burial, message) for message in messages],
                priorities=[message.priority_code for message in messages],
                flags=[message.flags & _KEPT_FLAGS for message in messages],
            )
            origin = events.CopyOrigin(*delivery.leader.origin, BitMap64([message.offset for message in messages]))
            appended = leader.append(records, copied_from=origin)
            end_offset = appended.last_offset + 1
            for place, message in enumerate(messages):
                graves[message.offset] = (leader.origin.partition, appended.first_offset + place)

        def done(_: None) -> Graves:
            delivery.buried(one, burial)
            self._tell(delivery, one, burial, graves)
            return graves

        return after(leader.when_stored(end_offset, None), done)

    def _headers(
        self, delivery: PartitionDelivery, one: GroupCursor, burial: Burial, message: Message
    ) -> dict[str, str | bytes]:
        topic, partition = delivery.leader.origin
        place = origin_of(topic, partition, message.offset)
        headers = message.headers
        has_room = len(message.raw_headers or b"") <= HEADERS_BYTES_MAX - ROOM_FOR_TRACE
        if has_room and context_in(headers) is None:
            headers[COPY_TRACE] = derived_trace_id(topic, partition, message.offset, message.timestamp_ns)
        if burial.target:
            group = addressee(headers, dlq_topic=topic) if burial.to_group else ""
            return {**redriven_headers(headers, place, for_group=group)}
        death = Death(
            burial.reason,
            burial.error,
            one.group,
            burial.member,
            one.cursor.deliveries_of(message.offset),
            place,
            one.cursor.first_delivery_ns(message.offset),
            burial.dead_at_ns,
        )
        return {**dead_headers(headers, death)}

    def _there_already(
        self, delivery: PartitionDelivery, one: GroupCursor, burial: Burial, leader: PartitionLeader
    ) -> Graves:
        """Those of the messages that made it into the target."""
        topic, partition = delivery.leader.origin
        wanted = {origin_of(topic, partition, offset): offset for offset in ledger.offsets_of(burial.offsets)}
        found: Graves = {}
        reader = leader.log.reader(max(leader.log.start_offset, min(burial.target_offset, leader.log.next_offset)))
        while (chunk := reader.read(max_bytes=BATCH_BYTES)).record_count:
            for message in kernel.decode(chunk.records, leader.origin, Message, verify=False):
                headers = message.headers
                offset = wanted.get(headers.get("gq-origin", ""))
                if offset is not None and (burial.target or headers.get("gq-group") == one.group):
                    found[offset] = (leader.origin.partition, message.offset)
        return found

    def _tell(self, delivery: PartitionDelivery, one: GroupCursor, burial: Burial, graves: Graves) -> None:
        topic, partition = delivery.leader.origin
        if burial.target:
            self._observe(events.DeadLettersRedriven(topic.removesuffix(DLQ_SUFFIX), len(graves)))
            return
        self._observe(
            events.DeadLettered(
                topic,
                one.group,
                burial.reason,
                len(graves),
                partition,
                burial.member,
                burial.error,
                burial.dead_at_ns,
                delivery.dlq_topic,
                graves,
            )
        )

    def _watch(self, moved: Pending[Graves], delivery: PartitionDelivery, one: GroupCursor, burial: Burial) -> None:
        """Try again what has failed, as long as its topic is there."""

        def look(done: Pending[Graves]) -> None:
            try:
                done.result()
            except TopicNotFound:
                if burial.target and not delivery.leader.log.is_closed:  # there is nowhere to put it back to
                    delivery.abandon_burial(one, burial)
            except GoQueueError:
                self._observe(events.DeadLetteringFailed(delivery.leader.origin.topic, in_creation=False))
                self._later(lambda: self._again(delivery, one, burial))

        moved.then(look)

    def _again(self, delivery: PartitionDelivery, one: GroupCursor, burial: Burial) -> None:
        if delivery.leader.log.is_closed or delivery.cursors.get(one.group) is not one:
            return
        current = next((other for other in one.burials if other.offsets == burial.offsets), None)
        if current is not None:
            self.resume(delivery, one, current)

    def _later(self, callback: Callable[[], None]) -> None:
        self._timers.at(self._clock.monotonic_ns() + RETRY_NS, callback)

    def _tell_failure(self, opened: Pending[list[PartitionLeader]], target: str) -> None:
        try:
            opened.result()
        except GoQueueError:
            self._observe(events.DeadLetteringFailed(target, in_creation=True))


def _partition(leaders: list[PartitionLeader], delivery: PartitionDelivery, burial: Burial) -> PartitionLeader:
    number = delivery.leader.origin.partition if burial.target_partition < 0 else burial.target_partition
    return leaders[number % len(leaders)]
