"""The verbs that publish and read messages without a group."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from goqueue.broker.local_partitions import LocalPartitions, leader_of
from goqueue.broker.partition.leader import PartitionLeader
from goqueue.broker.partition.publishing import chosen_acks, publish_batch, verify_compression
from goqueue.broker.partition.reading import Reading, check_delayed, check_isolation, check_without
from goqueue.broker.schemas import Schemas
from goqueue.broker.stopping import Stopping
from goqueue.broker.timers import Timers
from goqueue.broker.transactions.transactions import Transactions
from goqueue.broker.waits import Waits
from goqueue.clock import Clock
from goqueue.errors import GoQueueError, InvalidRequest
from goqueue.names import TopicPartition
from goqueue.record.header import OFFSET_MAX
from goqueue.record.identity import identity_of, refuse_derived
from goqueue.service.messages import (
    READ_BYTES,
    READ_RECORDS_MAX,
    Isolation,
    ProducerEpoch,
    ReadResult,
    Stored,
    StoredBatch,
)
from goqueue.service.new_message import NewMessage
from goqueue.service.pending import Pending
from goqueue.service.scans import DelayedView
from goqueue.topics.config import TopicConfig, VerifyCompression
from goqueue.transactions.markers import check_batch


class BrokerMessages:
    """Publishes to the partitions of one broker and reads from them."""

    def __init__(
        self,
        partitions: LocalPartitions,
        schemas: Schemas,
        transactions: Transactions,
        *,
        clock: Clock,
        timers: Timers,
        waits: Waits,
        stopping: Stopping,
        new_producer_id: Callable[[], int],
    ) -> None:
        self._partitions = partitions
        self._schemas = schemas
        self._transactions = transactions
        self._clock = clock
        self._timers = timers
        self._waits = waits
        self._stopping = stopping
        self._new_producer_id = new_producer_id

    # --- publishing ----------------------------------------------------------------------------

    def init_producer(self) -> ProducerEpoch:
        """An identity that no other producer has."""
        return ProducerEpoch(self._new_producer_id(), 0)

    def publish_records(
        self, topic: str, partition: int, records: bytearray | memoryview, *, acks: str | None = None
    ) -> Pending[StoredBatch]:
        """Store encoded records, all or none; the buffer is stamped in place."""
        self._stopping.check()
        found = self._partitions.topic(topic)
        leader = leader_of(found, partition)
        identity = identity_of(records)
        check_batch(records, identity)
        transaction = None
        if identity:
            refuse_derived(identity.producer_id)
            self._transactions.used(identity.producer_id)
            if identity.transaction:
                transaction = self._transactions.publishing(identity, topic, partition)
        config = found.topic.config
        return publish_batch(
            leader,
            records,
            acks=chosen_acks(acks, config.acks),
            identity=identity,
            transaction=transaction,
            check=partial(self._check_records, leader.origin, config),
        )

    def _check_records(self, origin: TopicPartition, config: TopicConfig, records: bytearray | memoryview) -> None:
        if config.verify_compression == VerifyCompression.ON:
            verify_compression(records, value_bytes_max=config.max_message_bytes)
        self._schemas.check_records(origin, config.schema_validation, records)

    def publish(
        self,
        topic: str,
        messages: Sequence[NewMessage],
        *,
        acks: str | None = None,
        producer: ProducerEpoch | None = None,
        sequence: int | None = None,
        transaction_id: str | None = None,
    ) -> Pending[list[Stored | GoQueueError]]:
        """Store messages; returns a result for each, in order."""
        self._stopping.check()
        if producer:
            refuse_derived(producer.producer_id)
        found = self._partitions.topic(topic)
        chosen = chosen_acks(acks, found.topic.config.acks)
        transaction = None if transaction_id is None else self._transactions.open(transaction_id)
        if transaction and producer:
            transaction.transaction.check_owner(*producer)
        return found.publisher.publish(
            messages,
            acks=chosen,
            producer=producer,
            sequence=sequence,
            transaction=transaction,
            refused=self._schemas.refused_messages(topic, found.topic.config.schema_validation, messages),
        )

    # --- reading -------------------------------------------------------------------------------

    def read(
        self,
        topic: str,
        partition: int,
        *,
        offset: int = 0,
        max_records: int = READ_RECORDS_MAX,
        max_bytes: int = READ_BYTES,
        wait_ms: int = 0,
        from_time_ns: int | None = None,
        to_time_ns: int | None = None,
        end_offset: int | None = None,
        isolation: str = Isolation.READ_COMMITTED,
        delayed: str = DelayedView.DUE,
        without: Sequence[str] = (),
    ) -> Pending[ReadResult]:
        """Visible records from `offset` on, in order; waits for the first one if there is none."""
        if max_records < 1:
            raise InvalidRequest(f"invalid limit {max_records}: must be at least 1", path="limit")
        reading = self._reading(
            self._partitions.readable_leader(topic, partition),
            offset,
            to_time_ns,
            isolation,
            from_time_ns=from_time_ns,
            end_offset=end_offset,
            sees_delayed=check_delayed(delayed),
            without=check_without(without),
        )
        result = reading.read(max_bytes=max_bytes, max_records=max_records)
        if _is_answer(reading, result) or not self._waits.may_wait(wait_ms):
            return Pending.of(result)
        read = partial(reading.read, max_bytes=max_bytes, max_records=max_records)
        return self._read_later(reading, result, wait_ms, read)

    def wait(
        self, topic: str, offsets: Mapping[int, int], *, wait_ms: int, isolation: str = Isolation.READ_COMMITTED
    ) -> Pending[None]:
        """Done once any of the partitions may have more at or after its offset, or the time is over."""
        found = self._partitions.readable(topic)
        readings = [
            self._reading(leader_of(found, number), offset, None, isolation) for number, offset in offsets.items()
        ]
        pending: Pending[None] = Pending()
        if not self._waits.may_wait(wait_ms):
            pending.resolve(None)
            return pending
        for reading in readings:
            reading.when_ready(lambda: pending.resolve(None))
            if pending.is_done:
                break

        def close() -> None:
            for reading in readings:
                reading.close()

        self._waits.limit(pending, wait_ms, lambda: pending.resolve(None), close)
        return pending

    def subscribe(
        self,
        topic: str,
        partition: int,
        *,
        offset: int,
        to_time_ns: int | None = None,
        isolation: str = Isolation.READ_COMMITTED,
    ) -> Reading:
        """A reader that stays open."""
        return self._reading(self._partitions.readable_leader(topic, partition), offset, to_time_ns, isolation)

    def _reading(
        self,
        leader: PartitionLeader,
        offset: int,
        to_time_ns: int | None,
        isolation: str,
        *,
        from_time_ns: int | None = None,
        end_offset: int | None = None,
        sees_delayed: bool = False,
        without: Sequence[str] = (),
    ) -> Reading:
        if not 0 <= offset <= OFFSET_MAX:
            raise InvalidRequest(f"invalid offset {offset}: must be 0 to {OFFSET_MAX}", path="offset")
        return Reading(
            leader,
            offset=offset,
            from_time_ns=from_time_ns,
            to_time_ns=to_time_ns,
            end_offset=end_offset,
            is_committed=check_isolation(isolation),
            sees_delayed=sees_delayed,
            without=without,
            clock=self._clock,
            timers=self._timers,
        )

    def _read_later(
        self, reading: Reading, empty: ReadResult, wait_ms: int, read: Callable[[], ReadResult]
    ) -> Pending[ReadResult]:
        """Read again when records are stored, until a visible one is found or the time is over."""
        pending: Pending[ReadResult] = Pending()
        last = empty

        def again() -> None:
            nonlocal last
            if pending.is_done:
                return
            try:
                found = read()
            except GoQueueError as error:
                pending.fail(error)
                return
            if last.first_pending_offset is not None:  # it was skipped before the wait
                found = found._replace(first_pending_offset=last.first_pending_offset)
            last = found
            if _is_answer(reading, last):
                pending.resolve(last)
            else:
                reading.when_ready(again)

        reading.when_ready(again)
        self._waits.limit(pending, wait_ms, lambda: pending.resolve(last), reading.close)
        return pending


def _is_answer(reading: Reading, result: ReadResult) -> bool:
    """Whether the result is an answer: it has records, or an offset at which to continue."""
    return bool(result.record_count or result.gaps) or result.end_of_range or reading.has_more
