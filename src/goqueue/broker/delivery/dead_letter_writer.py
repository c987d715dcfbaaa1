"""Dead letters and redrives: which messages go where, and with which headers.

A dead letter goes to the dead-letter topic of its topic, which is created on first use, a redriven message to the topic
that the redrive chose. How they get there, each once, is in `copy_queue.py`: there is a queue for each group, partition
and target, for as long as it has anything to copy.
"""

from collections.abc import Callable, Sequence
from functools import partial

import msgspec
from pyroaring import BitMap64

from goqueue import events
from goqueue.broker.delivery.copy_queue import BATCH_BYTES, CopyHooks, CopyQueue, CopyRoute
from goqueue.broker.delivery.dead_letter_target import DeadLetterTarget, DeadLetterTargets
from goqueue.broker.delivery.group_delivery import Copies, GroupDelivery
from goqueue.broker.local_partitions import LocalPartitions
from goqueue.broker.timers import Timers
from goqueue.clock import SECOND, Clock
from goqueue.delivery import ledger
from goqueue.delivery.dead_letter import Death, addressee, as_stored, dead_headers, origin_of, redriven_headers
from goqueue.delivery.ledger import DeadLettering
from goqueue.errors import GoQueueError
from goqueue.record import kernel
from goqueue.record.header import HEADERS_BYTES_MAX
from goqueue.record.headers import HeaderPair
from goqueue.record.message import StoredMessage
from goqueue.service.pending import Pending
from goqueue.topics.config import DLQ_SUFFIX
from goqueue.tracing.context import COPY_TRACE, context_in, derived_trace_id

RETRY_NS = SECOND
ROOM_FOR_TRACE = 1_024  # in the headers, so that ours never displace those of the message


class DeadLetterWriter:
    """Writes the dead letters of one broker, and redrives them. `partitions` has the targets of an older version."""

    def __init__(
        self,
        targets: DeadLetterTargets,
        partitions: LocalPartitions,
        *,
        clock: Clock,
        timers: Timers,
        observe: events.Observer,
    ) -> None:
        self._targets = targets
        self._partitions = partitions
        self._clock = clock
        self._timers = timers
        self._observe = observe
        self._queues: dict[tuple[GroupDelivery, CopyRoute], CopyQueue] = {}

    def write(self, group_delivery: GroupDelivery, change: DeadLettering) -> Pending[Copies]:
        """Write dead letters, or redrive them; returns where the copies are. A failure is answered, and tried again."""
        group_delivery.stored.dead_letterings.append(change)
        queue = self._queue(group_delivery, change)
        copied = queue.add(change)
        queue.run()
        return copied

    def resume(self, group_delivery: GroupDelivery, changes: Sequence[DeadLettering]) -> None:
        """Continue all that was under way in a group before a restart."""
        queues: dict[CopyQueue, None] = {}
        for change in changes:
            if change.target_offset >= 0 and change.batch is None:
                self._resume_scan(group_delivery, change)
            else:
                queue = self._queue(group_delivery, change)
                queue.add(change)
                queues[queue] = None
        for queue in queues:  # only when a queue knows all noted batches, it may begin another one
            queue.run()

    def _queue(self, group_delivery: GroupDelivery, change: DeadLettering) -> CopyQueue:
        route = self._route(group_delivery, change)
        key = (group_delivery, route)
        queue = self._queues.get(key)
        if queue is None:
            hooks = CopyHooks(
                headers=_headers,
                copied=self._copied,
                failed=lambda topic, in_creation: self._observe(events.DeadLetteringFailed(topic, in_creation)),
                later=self._later,
                emptied=lambda: self._forget(key),
            )
            queue = self._queues[key] = CopyQueue(group_delivery, route, targets=self._targets, hooks=hooks)
        return queue

    def _forget(self, key: tuple[GroupDelivery, CopyRoute]) -> None:
        self._queues.pop(key, None)

    def _route(self, group_delivery: GroupDelivery, change: DeadLettering) -> CopyRoute:
        """Where the messages go. If their copies may be stored already, that is where they may be: the setting of the
        topic may have changed since, but a topic that was deleted has none of them.
        """
        number = group_delivery.leader.origin.partition if change.target_partition < 0 else change.target_partition
        topic = change.target or group_delivery.partition.dead_letter_topic
        batch = change.batch
        if batch is not None:
            found = self._partitions.find(batch.topic)
            if found is not None and found.topic.id == batch.topic_id:
                topic = batch.topic
        return CopyRoute(topic, number, bool(change.target))

    def _copied(
        self, group_delivery: GroupDelivery, change: DeadLettering, target: DeadLetterTarget, count: int, copies: Copies
    ) -> None:
        topic, partition = group_delivery.leader.origin
        if change.target:
            home = topic.removesuffix(DLQ_SUFFIX) if topic.endswith(DLQ_SUFFIX) else change.target
            self._observe(events.DeadLettersRedriven(home, count))
            return
        self._observe(
            events.DeadLettered(
                topic,
                group_delivery.group,
                change.reason,
                count,
                partition,
                change.member,
                change.error,
                change.dead_at_ns,
                target.topic,
                copies,
            )
        )

    def _later(self, callback: Callable[[], None]) -> None:
        self._timers.at(self._clock.monotonic_ns() + RETRY_NS, callback)

    # --- what an older version left ------------------------------------------------------------

    def _resume_scan(self, group_delivery: GroupDelivery, change: DeadLettering) -> None:
        """Continue what an older version had begun: it noted where the target ended, and copies have no sequences.

        Those that were stored are found by their `gq-origin`, from the noted end on. The target was on this node.
        """
        if group_delivery.ended:
            return
        try:
            stored = self._stored_copies(group_delivery, change)
            if stored:
                group_delivery.finish(stored, flush=True)
        except GoQueueError:
            self._later(partial(self._resume_scan, group_delivery, change))
            return
        left = ledger.offsets_of(change.offsets) - stored
        if left:
            self.resume(group_delivery, [msgspec.structs.replace(change.of(left), target_offset=-1)])

    def _stored_copies(self, group_delivery: GroupDelivery, change: DeadLettering) -> BitMap64:
        origin = group_delivery.leader.origin
        topic, number, _ = self._route(group_delivery, change)
        found = self._partitions.find(topic)
        if found is None:
            return BitMap64()
        leader = found.replicas[number % found.partition_count].leading
        wanted = {origin_of(*origin, offset): offset for offset in ledger.offsets_of(change.offsets)}
        stored = BitMap64()
        reader = leader.log.reader(max(leader.log.start_offset, min(change.target_offset, leader.log.next_offset)))
        while (chunk := reader.read(max_bytes=BATCH_BYTES)).record_count:
            for message in kernel.decode(chunk.records, leader.origin, StoredMessage, verify=False):
                headers = message.headers
                offset = wanted.get(headers.get("gq-origin", ""))
                if offset is not None and (change.target or headers.get("gq-group") == group_delivery.group):
                    stored.add(offset)
        return stored


def _headers(group_delivery: GroupDelivery, change: DeadLettering, message: StoredMessage) -> list[HeaderPair]:
    topic, partition = group_delivery.leader.origin
    place = origin_of(topic, partition, message.offset)
    headers = message.headers
    has_room = len(message.encoded_headers or b"") <= HEADERS_BYTES_MAX - ROOM_FOR_TRACE
    if has_room and context_in(headers) is None:
        headers[COPY_TRACE] = derived_trace_id(topic, partition, message.offset, message.timestamp_ns)
    if change.target:
        group = addressee(headers, dlq_topic=topic) if change.to_group else ""
        return as_stored(redriven_headers(headers, place, for_group=group), message.encoded_headers)
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
    return as_stored(dead_headers(headers, death), message.encoded_headers)
