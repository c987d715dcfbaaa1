"""The verbs about delayed messages: list, get, cancel, reschedule.

    publish ──> appended ──> PartitionDelays ──> the delay file (a hint, so that a restart does not read the whole log)
    cancel, reschedule ──> ledger ──> PartitionDelays, cursors
    tick ──> fire ──> ready for every group

A partition without a delay file never had a delayed message: the file is durable before the first one is acknowledged.
A cancelled message stays hidden for as long as its record exists.
"""

from collections.abc import Callable, Iterator, Sequence

from pyroaring import BitMap64

from goqueue.broker.delivery.partition_delivery import PartitionDelivery
from goqueue.broker.local_partitions import LocalPartitions
from goqueue.clock import Clock
from goqueue.delivery.delay_index import DelayState
from goqueue.errors import InvalidRequest, MessageNotFound
from goqueue.record.kernel import crc32c
from goqueue.service.delays import DelayedMessages
from goqueue.service.pending import Pending, after, all_of
from goqueue.wire import reports

LIST_MAX = 10_000
_STATES = tuple(str(state) for state in DelayState)


class Delays:
    """The verbs about delayed messages."""

    def __init__(self, topics: LocalPartitions, *, run_woken: Callable[[], None], clock: Clock) -> None:
        self._topics = topics
        self._run_woken = run_woken
        self._clock = clock

    def list(
        self,
        topic: str,
        *,
        partition: int | None = None,
        key: bytes | None = None,
        state: str = "pending",
        skip: int = 0,
        limit: int = 100,
    ) -> DelayedMessages:
        """Delayed messages by due time; none for an unknown topic."""
        if state not in _STATES:
            raise InvalidRequest(f"invalid state {state!r}: must be one of {' '.join(_STATES)}", path="state")
        if not 1 <= limit <= LIST_MAX:
            raise InvalidRequest(f"invalid limit {limit}: must be 1 to {LIST_MAX}", path="limit")
        if skip < 0:
            raise InvalidRequest(f"invalid skip {skip}: must be 0 or more", path="skip")
        if not self._topics.has_topic(topic):
            return []
        found: DelayedMessages = []
        for delivery in self._deliveries(topic, partition):
            if key is not None and state == "pending":
                found += self._described(delivery, self._of_key(delivery, key))
            else:
                page = delivery.delays.table.page(skip=0, limit=skip + limit, state=state)
                found += self._described(delivery, BitMap64([one.offset for one in page]))
        if key is not None:
            found = [one for one in found if one.key == key]
        return sorted(found, key=lambda one: (one.deliver_at_ns, one.partition, one.offset))[skip : skip + limit]

    def get(self, topic: str, offset: int, *, partition: int | None = None) -> reports.DelayedMessage:
        """The message of that offset, in the lowest partition that has one."""
        for delivery in self._deliveries(topic, partition):
            if delivery.delays.table.find(offset) is not None:
                described = self._described(delivery, BitMap64([offset]))
                if described:
                    return described[0]
        raise MessageNotFound(f"delayed message not found: {topic} @ {offset}")

    def cancel(
        self,
        topic: str,
        *,
        partition: int | None = None,
        offset: int | None = None,
        offsets: Sequence[int] | None = None,
        key: bytes | None = None,
    ) -> Pending[DelayedMessages]:
        """Never deliver one, some of a partition, or all of a key."""
        return self._change(topic, partition, offset, offsets, key, None)

    def reschedule(
        self,
        topic: str,
        deliver_at_ns: int,
        *,
        partition: int | None = None,
        offset: int | None = None,
        offsets: Sequence[int] | None = None,
        key: bytes | None = None,
    ) -> Pending[DelayedMessages]:
        """Deliver one, some of a partition, or all of a key at another time."""
        return self._change(topic, partition, offset, offsets, key, deliver_at_ns)

    def stats(self) -> reports.DelayReport:
        """Counts of delays since they were first known, and the average delay."""
        totals = [0] * 5
        by_topic: dict[str, int] = {}
        delay_ns = delay_count = tick = 0
        for leader in self._topics.all_leaders():
            if not isinstance(leader.delivery, PartitionDelivery):
                continue
            table = leader.delivery.delays.table
            counts = table.counts
            totals = [total + count for total, count in zip(totals, counts, strict=True)]
            if counts.scheduled:
                by_topic[leader.origin.topic] = by_topic.get(leader.origin.topic, 0) + counts.pending
            delay_ns += table.total_delay_ns
            delay_count += table.delay_count
            tick = max(tick, table.tick)
        scheduled, delivered, cancelled, expired, pending = totals
        average_ns = delay_ns // max(1, delay_count)
        return reports.DelayReport(
            scheduled, delivered, cancelled, expired, pending, average_ns, by_topic, pending, tick
        )

    def _change(
        self,
        topic: str,
        partition: int | None,
        offset: int | None,
        offsets: Sequence[int] | None,
        key: bytes | None,
        due_ns: int | None,
    ) -> Pending[DelayedMessages]:
        wanted = [offset] if offset is not None else offsets
        if (wanted is None) == (key is None) or (wanted is not None and partition is None):
            raise InvalidRequest("a partition and an offset are required, or a key", path="offset")
        changed: DelayedMessages = []
        waits = []
        for delivery in self._deliveries(topic, partition):
            waiting = delivery.delays.table.waiting
            chosen = waiting & BitMap64(wanted or ()) if key is None else self._of_key(delivery, key)
            if offset is not None and not chosen:
                text = "delayed message not found or already delivered"
                raise MessageNotFound(f"{text}: {topic}-{partition} @ {offset}")
            if chosen:
                waits.append(delivery.change_delays(chosen, due_ns))
                changed += self._described(delivery, chosen)
        self._run_woken()
        return after(all_of(waits), lambda _: changed)

    def _of_key(self, delivery: PartitionDelivery, key: bytes) -> BitMap64:
        candidates = delivery.delays.table.candidates(crc32c(key))
        found = BitMap64()
        for messages in delivery.fetcher.messages(candidates, count=1_000, max_bytes=4 * 1024 * 1024):
            found.update([message.offset for message in messages if message.key == key])
        return found

    def _described(self, delivery: PartitionDelivery, offsets: BitMap64) -> DelayedMessages:
        keys: dict[int, bytes | None] = {}
        for messages in delivery.fetcher.messages(offsets, count=1_000, max_bytes=4 * 1024 * 1024):
            keys.update((message.offset, message.key) for message in messages)
        described = []
        for offset in offsets:
            one = delivery.delays.table.find(offset)
            if one is not None:
                described.append(
                    reports.DelayedMessage(
                        topic=delivery.leader.origin.topic,
                        partition=delivery.leader.origin.partition,
                        offset=offset,
                        key=keys.get(offset),
                        deliver_at_ns=one.due_ns,
                        state=str(one.state),
                        priority=one.priority,
                    )
                )
        return described

    def _deliveries(self, topic: str, partition: int | None) -> Iterator[PartitionDelivery]:
        leaders = self._topics.leaders(topic) if partition is None else [self._topics.leader(topic, partition)]
        return (self._topics.delivery(leader) for leader in leaders)
