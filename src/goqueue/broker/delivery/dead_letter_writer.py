"""Dead letters and redrives: messages are copied to another topic and finished in their cursor, in one step.

    1. the ledger notes which messages are copied, and where the target log ends now
    2. the copies are appended to the target
    3. the ledger notes that the messages are done

Each step waits until the one before it is durable. After a crash the ledger still says what was under way; copies that
were stored in the target are found there by their `gq-origin`, from the end noted in step 1 on, and only the others are
written. So no message is lost, and none is in the target twice.
"""

from collections.abc import Callable

from pyroaring import BitMap64

from goqueue import events
from goqueue.broker.delivery.group_delivery import Copies, GroupDelivery
from goqueue.broker.local_partitions import LocalPartitions
from goqueue.broker.partition.leader import PartitionLeader
from goqueue.broker.timers import Timers
from goqueue.clock import SECOND, Clock
from goqueue.delivery import ledger
from goqueue.delivery.dead_letter import (
    DLQ_SUFFIX,
    Death,
    addressee,
    dead_headers,
    dead_letter_topic,
    origin_of,
    redriven_headers,
)
from goqueue.delivery.ledger import DeadLettering
from goqueue.errors import GoQueueError, TopicNotFound
from goqueue.record import kernel
from goqueue.record.header import HEADERS_BYTES_MAX, Flags
from goqueue.record.message import Message
from goqueue.service.pending import Pending, after, chained
from goqueue.tracing.context import COPY_TRACE, context_in, derived_trace_id

MESSAGES_MAX = 500
BATCH_BYTES = 1024 * 1024
RETRY_NS = SECOND
ROOM_FOR_TRACE = 1_024  # in the headers, so that ours never displace those of the message
_KEPT_FLAGS = int(Flags.COMPRESSED)


class DeadLetterWriter:
    """Writes the dead letters of one broker, and redrives them."""

    def __init__(self, targets: LocalPartitions, *, clock: Clock, timers: Timers, observe: events.Observer) -> None:
        self._targets = targets
        self._clock = clock
        self._timers = timers
        self._observe = observe

    def write(self, group_delivery: GroupDelivery, change: DeadLettering) -> Pending[Copies]:
        """Write dead letters, or redrive them; returns where the copies are. A failure is answered, and tried again."""
        target = _target_topic(group_delivery, change)
        opened = self._targets.target(target, like=group_delivery.leader.origin.topic)
        opened.then(lambda done: self._tell_failure(done, target))
        copied = chained(opened, lambda leaders: self._begin(group_delivery, change, leaders))
        self._watch(copied, group_delivery, change)
        return copied

    def resume(self, group_delivery: GroupDelivery, change: DeadLettering) -> None:
        """Continue what was under way before a restart."""
        if change.target_offset < 0:
            self.write(group_delivery, change)
            return
        target = _target_topic(group_delivery, change)
        opened = self._targets.target(target, like=group_delivery.leader.origin.topic)

        def go_on(leaders: list[PartitionLeader]) -> Pending[Copies]:
            leader = _target_partition(leaders, group_delivery, change)
            return self._write(group_delivery, change, leader, self._stored_copies(group_delivery, change, leader))

        self._watch(chained(opened, go_on), group_delivery, change)

    def _begin(
        self, group_delivery: GroupDelivery, change: DeadLettering, leaders: list[PartitionLeader]
    ) -> Pending[Copies]:
        leader = _target_partition(leaders, group_delivery, change)
        noted, end = group_delivery.stored.note_target(change, leader.log.next_offset)
        return chained(
            group_delivery.leader.ledger.when_stored(end), lambda _: self._write(group_delivery, noted, leader, {})
        )

    def _write(
        self, group_delivery: GroupDelivery, change: DeadLettering, leader: PartitionLeader, stored: Copies
    ) -> Pending[Copies]:
        """Append the copies that are not in the target yet, then finish the messages."""
        copies = dict(stored)
        left = ledger.offsets_of(change.offsets) - BitMap64(list(stored))
        end_offset = leader.log.next_offset if stored else 0
        for messages in group_delivery.partition.fetcher.messages(left, count=MESSAGES_MAX, max_bytes=BATCH_BYTES):
            records = kernel.encode(
                [None if message.tombstone else message.value for message in messages],
                keys=[message.key for message in messages],
                headers=[self._headers(group_delivery, change, message) for message in messages],
                priorities=[message.priority_code for message in messages],
                flags=[message.flags & _KEPT_FLAGS for message in messages],
            )
            origin = events.CopyOrigin(
                *group_delivery.leader.origin, BitMap64([message.offset for message in messages])
            )
            appended = leader.append(records, copied_from=origin)
            end_offset = appended.last_offset + 1
            for place, message in enumerate(messages):
                copies[message.offset] = (leader.origin.partition, appended.first_offset + place)

        def done(_: None) -> Copies:
            group_delivery.finish(ledger.offsets_of(change.offsets))
            group_delivery.stored.forget_dead_lettering(change)
            self._tell(group_delivery, change, copies)
            return copies

        return after(leader.when_stored(end_offset, None), done)

    def _headers(
        self, group_delivery: GroupDelivery, change: DeadLettering, message: Message
    ) -> dict[str, str | bytes]:
        topic, partition = group_delivery.leader.origin
        place = origin_of(topic, partition, message.offset)
        headers = message.headers
        has_room = len(message.raw_headers or b"") <= HEADERS_BYTES_MAX - ROOM_FOR_TRACE
        if has_room and context_in(headers) is None:
            headers[COPY_TRACE] = derived_trace_id(topic, partition, message.offset, message.timestamp_ns)
        if change.target:
            group = addressee(headers, dlq_topic=topic) if change.to_group else ""
            return {**redriven_headers(headers, place, for_group=group)}
        death = Death(
            change.reason,
            change.error,
            group_delivery.group,
            change.member,
            group_delivery.cursor.deliveries_of(message.offset),
            place,
            group_delivery.cursor.first_delivery_ns(message.offset),
            change.dead_at_ns,
        )
        return {**dead_headers(headers, death)}

    def _stored_copies(self, group_delivery: GroupDelivery, change: DeadLettering, leader: PartitionLeader) -> Copies:
        """The copies that were stored in the target before a crash."""
        topic, partition = group_delivery.leader.origin
        wanted = {origin_of(topic, partition, offset): offset for offset in ledger.offsets_of(change.offsets)}
        found: Copies = {}
        reader = leader.log.reader(max(leader.log.start_offset, min(change.target_offset, leader.log.next_offset)))
        while (chunk := reader.read(max_bytes=BATCH_BYTES)).record_count:
            for message in kernel.decode(chunk.records, leader.origin, Message, verify=False):
                headers = message.headers
                offset = wanted.get(headers.get("gq-origin", ""))
                if offset is not None and (change.target or headers.get("gq-group") == group_delivery.group):
                    found[offset] = (leader.origin.partition, message.offset)
        return found

    def _tell(self, group_delivery: GroupDelivery, change: DeadLettering, copies: Copies) -> None:
        topic, partition = group_delivery.leader.origin
        if change.target:
            self._observe(events.DeadLettersRedriven(topic.removesuffix(DLQ_SUFFIX), len(copies)))
            return
        self._observe(
            events.DeadLettered(
                topic,
                group_delivery.group,
                change.reason,
                len(copies),
                partition,
                change.member,
                change.error,
                change.dead_at_ns,
                dead_letter_topic(topic),
                copies,
            )
        )

    def _watch(self, copied: Pending[Copies], group_delivery: GroupDelivery, change: DeadLettering) -> None:
        """Try a failure again, as long as the topic exists."""

        def look(done: Pending[Copies]) -> None:
            try:
                done.result()
            except TopicNotFound:
                if change.target and not group_delivery.leader.log.is_closed:  # the target of the redrive was deleted
                    group_delivery.cancel_dead_letter(change)
            except GoQueueError:
                self._observe(events.DeadLetteringFailed(group_delivery.leader.origin.topic, in_creation=False))
                self._later(lambda: self._again(group_delivery, change))

        copied.then(look)

    def _again(self, group_delivery: GroupDelivery, change: DeadLettering) -> None:
        if group_delivery.leader.log.is_closed or group_delivery.is_deleted:
            return
        current = next(
            (other for other in group_delivery.stored.dead_letterings if other.offsets == change.offsets), None
        )
        if current is not None:
            self.resume(group_delivery, current)

    def _later(self, callback: Callable[[], None]) -> None:
        self._timers.at(self._clock.monotonic_ns() + RETRY_NS, callback)

    def _tell_failure(self, opened: Pending[list[PartitionLeader]], target: str) -> None:
        try:
            opened.result()
        except GoQueueError:
            self._observe(events.DeadLetteringFailed(target, in_creation=True))


def _target_partition(
    leaders: list[PartitionLeader], group_delivery: GroupDelivery, change: DeadLettering
) -> PartitionLeader:
    number = group_delivery.leader.origin.partition if change.target_partition < 0 else change.target_partition
    return leaders[number % len(leaders)]


def _target_topic(group_delivery: GroupDelivery, change: DeadLettering) -> str:
    return change.target or dead_letter_topic(group_delivery.leader.origin.topic)
