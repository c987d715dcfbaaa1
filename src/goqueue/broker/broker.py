"""One node: the topics of a data directory, and everything that can be asked of them.

The broker is synchronous and has one owner. It opens no sockets and starts no threads: jobs that block go to the
`Workers` it was given, and `tick` is called by whoever has a clock that runs. So it can be embedded anywhere and tested
without an event loop.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from secrets import randbits, token_bytes, token_hex
from typing import TypeVar

from goqueue import events
from goqueue.broker.config import BrokerConfig
from goqueue.broker.delivery.counters import DeliveryCounters
from goqueue.broker.delivery.dead_letters import DeadLetters
from goqueue.broker.delivery.delays import Delays
from goqueue.broker.delivery.lazy_schedules import SCHEDULES_TOPIC, Recurring
from goqueue.broker.delivery.partition_delivery import PartitionDelivery
from goqueue.broker.delivery.schedules import Scheduling, TopicFacts
from goqueue.broker.delivery.transfers import Transfers
from goqueue.broker.groups.groups import GROUPS_TOPIC, Groups
from goqueue.broker.health import Health
from goqueue.broker.housekeeping import Housekeeping
from goqueue.broker.partition.journal import Journal
from goqueue.broker.partition.leader import PartitionLeader, Workers
from goqueue.broker.partition.publishing import MessagePublisher, chosen_acks, publish_batch, verify_compression
from goqueue.broker.partition.reading import Reading, check_delayed, check_isolation, check_without
from goqueue.broker.scans import Scans
from goqueue.broker.schemas import SCHEMAS_TOPIC, Schemas
from goqueue.broker.timers import Timers
from goqueue.broker.traces import TRACES_SETTINGS, TRACES_TOPIC, Traces
from goqueue.broker.transactions import Transactions
from goqueue.clock import MS, SECOND, Clock
from goqueue.delivery.dead_letter import DLQ_SUFFIX
from goqueue.errors import (
    BrokerUnavailable,
    GoQueueError,
    InvalidPartition,
    InvalidRequest,
    InvalidTopic,
    PartitionNotFound,
    StorageError,
    StorageFull,
    TopicNotFound,
    TopicQuarantined,
)
from goqueue.groups.coordinator import Coordinator
from goqueue.names import TopicPartition
from goqueue.record.header import OFFSET_MAX
from goqueue.record.identity import identity_of
from goqueue.service.new_message import NewMessage
from goqueue.service.pending import Pending, after
from goqueue.service.scans import Delayed
from goqueue.service.service import (
    READ_BYTES,
    READ_RECORDS_MAX,
    WAIT_MS_MAX,
    Check,
    Isolation,
    NodeStats,
    PartitionInfo,
    Producer,
    ReadResult,
    Stored,
    StoredBatch,
    TopicInfo,
)
from goqueue.storage.directory import DataDirectory
from goqueue.storage.file import Disk, Space
from goqueue.topics.catalog import AlterTopicJob, Catalog, CreateTopicJob, DeleteTopicJob, Topic
from goqueue.topics.config import TopicConfig, VerifyCompression, is_internal, refuse_internal
from goqueue.tracing.config import TraceConfig
from goqueue.tracing.export import Sink
from goqueue.transactions.facts import TOPIC as TRANSACTIONS_TOPIC
from goqueue.transactions.markers import check_batch

PRODUCER_ID_BITS = 52  # JSON numbers hold them
BOOT_BITS = 31  # begin the numbers of deliveries, which never come again
SALT_BYTES = 16
MAKE_ROOM_NS = 5 * SECOND
"""How long a change of retention on a full disk is tried again while segments are deleted."""
MAKE_ROOM_STEP_NS = 100 * MS
_JOURNALS = frozenset((GROUPS_TOPIC, SCHEDULES_TOPIC, SCHEMAS_TOPIC, TRANSACTIONS_TOPIC))

T = TypeVar("T")
TopicJob = CreateTopicJob | AlterTopicJob | DeleteTopicJob


class LocalTopic:
    """A topic and its partitions while the broker runs."""

    __slots__ = ("partitions", "publisher", "topic")

    def __init__(self, topic: Topic, partitions: Sequence[PartitionLeader]) -> None:
        self.topic = topic
        self.partitions = partitions
        self.publisher = MessagePublisher(partitions, topic=topic.name, config=topic.config)

    def configured(self) -> None:
        """The settings have changed."""
        self.publisher.config = self.topic.config
        for leader in self.partitions:
            leader.configured()


class Broker:
    """A `Service` on one data directory. Made by `Broker.open`."""

    def __init__(
        self,
        data: DataDirectory,
        catalog: Catalog,
        *,
        clock: Clock,
        workers: Workers,
        config: BrokerConfig,
        observe: events.Observer,
        traces: TraceConfig,
        trace_sinks: Sequence[Sink],
    ) -> None:
        self._data = data
        self._catalog = catalog
        self._clock = clock
        self._workers = workers
        self._config = config
        self.wake_at: Callable[[int], None] = _wake_nobody  # told when there is something to do, by the monotonic clock
        self._happened = DeliveryCounters()
        self._timers = Timers()
        self._unflushed: set[PartitionLeader] = set()
        self._boot = randbits(BOOT_BITS)
        self._deliveries: dict[PartitionLeader, PartitionDelivery] = {}
        self._journals: dict[str, Journal] = {}
        self._opening: dict[str, Pending[LocalTopic]] = {}  # topics that are being made because somebody needs them
        self._waiting: dict[object, Callable[[], None]] = {}  # how to end each wait
        self._stopping = False
        default_rate = TopicConfig.parse(config.topic_defaults).trace_sample_rate
        self.traces = Traces(self, traces, clock=clock, sinks=trace_sinks, default_rate=default_rate)
        self._observe = events.Observers(self._happened.observe, observe, self.traces.observe)
        self._topics = {topic.name: self._live(topic) for topic in catalog}
        self._transfers = Transfers(self, clock=clock, timers=self._timers, observe=self._observe)
        self.groups = Groups(Coordinator(), self, self._happened, clock=clock, observe=self._observe)
        self.delays = Delays(self, clock=clock)
        self.dead_letters = DeadLetters(self, clock=clock, timers=self._timers)
        self.schedules = Recurring(partial(self.journal, SCHEDULES_TOPIC), self._scheduling, self._topic_facts)
        self.schemas = Schemas(
            partial(self.journal, SCHEMAS_TOPIC),
            validation_of=self._schema_validation,
            clock=clock,
            observe=self._observe,
        )
        self.transactions = Transactions(
            self,
            self.groups,
            clock=clock,
            timers=self._timers,
            new_id=lambda: randbits(PRODUCER_ID_BITS) + 1,
            observe=self._observe,
        )
        self.groups.settlements.open_transaction = self.transactions.open
        self.scans = Scans(lambda topic, partition: self._partition(self._readable(topic), partition))
        self._housekeeping = Housekeeping(config, self._timers, self._unflushed)
        self._housekeeping.watch([leader for topic in self._topics.values() for leader in topic.partitions])
        self._started_ns = clock.monotonic_ns()
        self.node = Health(
            self._partitions,
            quarantined=catalog.quarantined,
            space=self.disk_space,
            stats=self.stats,
            is_stopping=lambda: self._stopping,
        )
        self._begin()

    def _begin(self) -> None:
        """Take up what was under way when the broker stopped. A topic whose files do not allow that is quarantined."""
        first: StorageError | None = None
        for name, topic in list(self._topics.items()):
            try:
                for leader in topic.partitions:
                    leader.look_at_tail()
                    if leader.has_delays:
                        leader.begin_delivery()
                if name in _JOURNALS:
                    self._journal_of(name).load()
            except StorageError as error:
                first = first or error
                self._quarantine(name, error)
        if first is not None and not self._topics:
            raise first
        for name, owner in (
            (GROUPS_TOPIC, self.groups),
            (SCHEDULES_TOPIC, self.schedules),
            (SCHEMAS_TOPIC, self.schemas),
        ):
            if name in self._topics:
                owner.load(self._journal_of(name))
        journal = self._journal_of(TRANSACTIONS_TOPIC) if TRANSACTIONS_TOPIC in self._topics else None
        self.transactions.load(journal, is_lost=TRANSACTIONS_TOPIC in self._catalog.quarantined)
        self.dead_letters.resume()

    def _quarantine(self, name: str, error: StorageError) -> None:
        """Serve the topic no more."""
        topic = self._topics.pop(name)
        self._journals.pop(name, None)
        self._housekeeping.forget(topic.partitions)
        self._unflushed.difference_update(topic.partitions)
        for leader in topic.partitions:
            self._deliveries.pop(leader, None)
        self._catalog.quarantine(name, error)
        self._observe(events.TopicDeleted(name, topic.topic.is_internal))  # its numbers are not to be seen

    def _scheduling(self, journal: Journal) -> Scheduling:
        return Scheduling(
            journal,
            publish=self.publish_messages,
            topic_facts=self._topic_facts,
            init_producer=self.init_producer,
            clock=self._clock,
            timers=self._timers,
        )

    def _schema_validation(self, name: str) -> str | None:
        return self._topics[name].topic.config.schema_validation if name in self._topics else None

    def _topic_facts(self, name: str) -> TopicFacts:
        topic = self._topic(name)
        return TopicFacts(topic.topic.id, len(topic.partitions), topic.topic.config.max_message_bytes)

    @classmethod
    def open(
        cls,
        disk: Disk,
        data_path: str,
        *,
        clock: Clock,
        workers: Workers,
        config: BrokerConfig | None = None,
        observe: events.Observer = events.ignore,
        traces: TraceConfig | None = None,
        trace_sinks: Sequence[Sink] = (),
    ) -> "Broker":
        """Take the directory and recover all that is in it."""
        config = config or BrokerConfig()
        TopicConfig.parse(config.topic_defaults)
        data = DataDirectory.open(disk, data_path)
        try:
            return cls(
                data,
                Catalog.open(data, disk, observe=observe),
                clock=clock,
                workers=workers,
                config=config,
                observe=observe,
                traces=traces or TraceConfig(),
                trace_sinks=trace_sinks,
            )
        except BaseException:
            data.close()
            raise

    # --- topics --------------------------------------------------------------------------------

    def create_topic(
        self,
        name: str,
        *,
        partitions: int | None = None,
        replication_factor: int | None = None,
        settings: Mapping[str, object] | None = None,
    ) -> Pending[TopicInfo]:
        """A new topic, once it is on the medium."""
        self._check_running()
        if replication_factor not in (None, 1):
            reason = f"must be 1 on a single node, not {replication_factor}"
            raise InvalidTopic(name, reason, setting="replication_factor")
        job = self._catalog.begin_create(
            name,
            partitions=self._config.default_partitions if partitions is None else partitions,
            settings={**self._config.topic_defaults, **(settings or {})},
            topic_id=token_hex(16),
            now_ns=self._clock.wall_ns(),
        )
        return self._administer(job, self._created)

    def delete_topic(self, name: str) -> Pending[None]:
        """Take the topic away, at once for everybody, and its files once nobody can miss them."""
        self._check_running()
        job = self._catalog.begin_delete(name)
        topic = self._topics.pop(name)
        self._journals.pop(name, None)
        self._housekeeping.forget(topic.partitions)
        self.groups.topic_deleted(name)
        for leader in topic.partitions:
            leader.gone()
            self._deliveries.pop(leader, None)
        self.schedules.topic_deleted(name)
        self._observe(events.TopicDeleted(name, topic.topic.is_internal))
        return self._administer(job, lambda _: None)

    def alter_topic(self, name: str, changes: Mapping[str, object]) -> Pending[TopicInfo]:
        """Change settings; None resets one.

        On a full disk there may be no room to write the new settings down. A shorter retention is carried out before
        that, because it makes the room.
        """
        self._check_running()
        altered: Pending[TopicInfo] = Pending()
        give_up_ns = self._clock.monotonic_ns() + MAKE_ROOM_NS

        def attempt() -> None:
            job = self._catalog.begin_alter(name, changes)
            self._administer(job, self._altered).then(partial(look, job))

        def again() -> None:
            try:
                attempt()
            except GoQueueError as error:
                altered.fail(error)

        def look(job: AlterTopicJob, done: Pending[TopicInfo]) -> None:
            try:
                altered.resolve(done.result())
            except StorageFull as error:
                if self._clock.monotonic_ns() >= give_up_ns or not self._make_room(name, job.config):
                    altered.fail(error)
                else:
                    self._timers.at(self._clock.monotonic_ns() + MAKE_ROOM_STEP_NS, again)
            except Exception as error:
                altered.fail(error)

        attempt()
        return altered

    def _make_room(self, name: str, wanted: TopicConfig) -> bool:
        """Delete what the wanted retention would not keep; whether it keeps less than the present one."""
        topic = self._topics.get(name)
        if topic is None or self._stopping:
            return False
        new, old = wanted.log_config(), topic.topic.config.log_config()
        if not _is_less(new.retention_ms, old.retention_ms) and not _is_less(new.retention_bytes, old.retention_bytes):
            return False
        for leader in topic.partitions:
            leader.log.config, leader.needs_room = new, True
            leader.configured()  # begins the jobs that delete; they look at nothing else of the settings
            leader.log.config, leader.needs_room = old, False
        return True

    def list_topics(self, *, internal: bool = False) -> list[str]:
        """The names, sorted."""
        return self._catalog.names(internal=internal)

    def describe_topic(self, name: str) -> TopicInfo:
        """The topic as it is now; internal ones may be looked at."""
        return self._info(self._any_topic(name))

    def offsets(self, topic: str, *, time_ns: int | None = None, at: str = "latest") -> list[int]:
        """By partition: the first offset at or after a time, or `earliest`, or `latest`."""
        partitions = self._readable(topic).partitions
        if time_ns is not None:
            return [min(leader.log.offset_at_time(time_ns), leader.high_watermark) for leader in partitions]
        if at not in ("earliest", "latest"):
            raise InvalidRequest(f"invalid time {at!r}: must be a time, earliest or latest", path="time")
        return [leader.log.start_offset if at == "earliest" else leader.high_watermark for leader in partitions]

    # --- publishing ----------------------------------------------------------------------------

    def init_producer(self) -> Producer:
        """An identity that no other producer has."""
        return Producer(randbits(PRODUCER_ID_BITS) + 1, 0)

    def publish_records(
        self, topic: str, partition: int, records: bytearray | memoryview, *, acks: str | None = None
    ) -> Pending[StoredBatch]:
        """Store encoded records, all or none; the buffer is stamped in place."""
        self._check_running()
        live_topic = self._topic(topic)
        leader = self._partition(live_topic, partition)
        identity = identity_of(records)
        check_batch(records, identity)
        transaction = None
        if identity:
            self.transactions.used(identity.producer_id)
            if identity.transaction:
                transaction = self.transactions.publishing(identity, topic, partition)
        config = live_topic.topic.config
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
        self.schemas.check_records(origin, config.schema_validation, records)

    def publish_messages(
        self,
        topic: str,
        messages: Sequence[NewMessage],
        *,
        acks: str | None = None,
        producer: Producer | None = None,
        sequence: int | None = None,
        transaction_id: str | None = None,
    ) -> Pending[list[Stored | GoQueueError]]:
        """Store messages; each has its result, in order."""
        self._check_running()
        leader = self._topic(topic)
        chosen = chosen_acks(acks, leader.topic.config.acks)
        transaction = None if transaction_id is None else self.transactions.open(transaction_id)
        if transaction and producer:
            transaction.transaction.check_owner(*producer)
        return leader.publisher.publish(
            messages,
            acks=chosen,
            producer=producer,
            sequence=sequence,
            transaction=transaction,
            refused=self.schemas.refused_messages(topic, leader.topic.config.schema_validation, messages),
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
        delayed: str = Delayed.DUE,
        without: Sequence[str] = (),
    ) -> Pending[ReadResult]:
        """Visible records from `offset` on, in order; waits for the first one if there is none."""
        if max_records < 1:
            raise InvalidRequest(f"invalid limit {max_records}: must be at least 1", path="limit")
        leader = self._partition(self._readable(topic), partition)
        reading = self._reading(
            leader,
            offset,
            to_time_ns,
            isolation,
            from_time_ns=from_time_ns,
            end_offset=end_offset,
            sees_delayed=check_delayed(delayed),
            without=check_without(without),
        )
        result = reading.read(max_bytes=max_bytes, max_records=max_records)
        if _is_answer(reading, result) or not self._may_wait(wait_ms):
            return Pending.of(result)
        read = partial(reading.read, max_bytes=max_bytes, max_records=max_records)
        return self._read_later(reading, result, wait_ms, read)

    def wait_for_records(
        self, topic: str, offsets: Mapping[int, int], *, wait_ms: int, isolation: str = Isolation.READ_COMMITTED
    ) -> Pending[None]:
        """Done once any of the partitions may have more at or behind its offset, or the time is over."""
        live_topic = self._readable(topic)
        readings = [
            self._reading(self._partition(live_topic, number), offset, None, isolation)
            for number, offset in offsets.items()
        ]
        pending: Pending[None] = Pending()
        if not self._may_wait(wait_ms):
            pending.resolve(None)
            return pending
        for reading in readings:
            reading.when_ready(lambda: pending.resolve(None))
            if pending.is_done:
                break
        self._limit_wait(pending, wait_ms, lambda: pending.resolve(None), readings)
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
        return self._reading(self._partition(self._readable(topic), partition), offset, to_time_ns, isolation)

    # --- about the node ------------------------------------------------------------------------

    def stats(self) -> NodeStats:
        """One node in numbers."""
        return NodeStats(
            self._config.node_id,
            self._clock.monotonic_ns() - self._started_ns,
            len(self._catalog.names()),
            sum(leader.log.size for leader in self._partitions()),
        )

    def health(self) -> Mapping[str, Check]:
        """Aspect by aspect."""
        return self.node.checks()

    def disk_space(self) -> Space | None:
        """The room on the disk of the data; None if the disk does not tell."""
        try:
            return self._data.space()
        except OSError:
            return None

    @property
    def is_ready(self) -> bool:
        """Whether requests are served."""
        return not self._stopping

    # --- running -------------------------------------------------------------------------------

    def tick(self) -> None:
        """Do what time brings: end waits and leases, fire delays, flush by interval, expire, compact."""
        self._housekeeping.tick(now_ns=self._clock.monotonic_ns())
        for delivery in list(self._deliveries.values()):
            delivery.tick()
        self.groups.tick()
        self.transactions.tick()
        for journal in self._journals.values():
            journal.snapshot_if_due(self._clock.monotonic_ns())
        self.traces.tick()

    def drain(self) -> Pending[None]:
        """Take no more writes and let nobody wait for one; done when every write that was taken is on the medium."""
        self._stopping = True
        self.dead_letters.stop()
        for give_up in list(self._waiting.values()):
            give_up()
        self.traces.flush()
        drained: Pending[None] = Pending()

        def look() -> None:
            unsealed = [leader for leader in self._partitions() if not leader.seal()]
            if unsealed:
                self._timers.at(self._clock.monotonic_ns() + MS, look)
            else:
                drained.resolve(None)

        look()
        return drained

    def close(self) -> None:
        """Make everything durable and let go of the data directory."""
        self._stopping = True
        self.schedules.stop()
        try:
            for delivery in self._deliveries.values():
                delivery.delays.close(delivery.leader.log.next_offset)
            for leader in self._partitions():
                leader.write_down()
            self.traces.flush(is_last=True)
        finally:
            self._data.close()

    # --- for groups, delays and transfers ------------------------------------------------------

    def partition_counts(self) -> Mapping[str, int]:
        """How many partitions each topic has; internal ones are left out."""
        return {name: len(topic.partitions) for name, topic in self._topics.items() if not is_internal(name)}

    def has_topic(self, topic: str) -> bool:
        """Whether there is such a topic; raises `Forbidden` for an internal one, and `TopicQuarantined`."""
        refuse_internal(topic)
        if topic in self._catalog.quarantined:
            raise self._catalog.quarantined[topic]
        return topic in self._topics

    def quarantined(self, topic: str) -> TopicQuarantined | None:
        """Why the topic is not served, if its files are there and cannot be used."""
        return self._catalog.quarantined.get(topic)

    def leaders(self, topic: str) -> Sequence[PartitionLeader]:
        """The partitions of a topic."""
        return self._topic(topic).partitions

    def all_leaders(self) -> Iterator[PartitionLeader]:
        """The partitions of all topics."""
        return self._partitions()

    def local_leader(self, topic: str, topic_id: str, partition: int) -> PartitionLeader | None:
        """One partition, if the topic is still the one of that id."""
        found = self._topics.get(topic) if not is_internal(topic) else None
        is_same = found is not None and found.topic.id == topic_id and partition < len(found.partitions)
        return found.partitions[partition] if found is not None and is_same else None

    def topic_id(self, topic: str, partition: int) -> str:
        """The id of a topic that has the partition."""
        found = self._topic(topic)
        self._partition(found, partition)
        return found.topic.id

    def leader(self, topic: str, partition: int) -> PartitionLeader:
        """One partition."""
        return self._partition(self._topic(topic), partition)

    def delivery(self, leader: PartitionLeader) -> PartitionDelivery:
        """Delivery from the partition, which begins when somebody first asks for it."""
        found = self._deliveries.get(leader)
        if found is None:
            found = self._deliveries[leader] = PartitionDelivery(
                leader,
                self._topics[leader.origin.topic].topic.config,
                clock=self._clock,
                boot=self._boot,
                make_salt=lambda: token_bytes(SALT_BYTES),
                wake=self.groups.wake,
                bury=self._transfers.move,
                resume=self._transfers.resume,
                wake_at=self._wake_at,
            )
            leader.delivery = found
            self.groups.delivery_opened(found)
            found.resume()
        return found

    def _wake_at(self, time_ns: int) -> None:
        self.wake_at(time_ns)

    def run_woken(self) -> None:
        """Let polls look again that were woken."""
        self.groups.run_woken()

    def journal(self, topic: str) -> Pending[Journal]:
        """The journal in an internal topic, which is made on first use."""
        settings = {"cleanup": "compact", "flush": "group"}
        return after(self._opened(topic, partitions=1, settings=settings), lambda _: self._journal_of(topic))

    def _journal_of(self, topic: str) -> Journal:
        journal = self._journals.get(topic)
        if journal is None:
            journal = self._journals[topic] = Journal(self._topics[topic].partitions[0])
        return journal

    def target(self, topic: str, *, like: str) -> Pending[list[PartitionLeader]]:
        """The partitions of a topic, which is made, if it has to be, like the other one."""
        if topic not in self._topics and not topic.endswith(DLQ_SUFFIX):
            return Pending.failed(self.quarantined(topic) or TopicNotFound(topic))
        count = len(self._topics[like].partitions) if like in self._topics else self._config.default_partitions
        opened = self._opened(topic, partitions=count, settings=self._config.topic_defaults)
        return after(opened, lambda found: list(found.partitions))

    def stored_traces(self) -> PartitionLeader | None:
        """The partition of `__traces`, if there is one."""
        found = self._topics.get(TRACES_TOPIC)
        return None if found is None else found.partitions[0]

    def created_at_ns(self, topic: str) -> int:
        """When the topic was made."""
        return self._topic(topic).topic.created_at_ns

    def trace_log(self) -> Pending[PartitionLeader]:
        """The partition of `__traces`, which is made on first use."""
        return after(
            self._opened(TRACES_TOPIC, partitions=1, settings=TRACES_SETTINGS), lambda opened: opened.partitions[0]
        )

    def may_wait(self, wait_ms: int) -> bool:
        """Whether a request may wait."""
        return self._may_wait(wait_ms)

    def limit_wait(self, pending: Pending[T], wait_ms: int, give_up: Callable[[], None]) -> None:
        """Give up when the time is over, or the broker stops."""
        self._limit_wait(pending, wait_ms, give_up, [])

    def _opened(self, name: str, *, partitions: int, settings: Mapping[str, object]) -> Pending[LocalTopic]:
        """The topic, made if there is none; who asks while it is being made gets the same one."""
        if name in self._topics:
            return Pending.of(self._topics[name])
        if name not in self._opening:
            try:
                job = self._catalog.begin_create(
                    name,
                    partitions=partitions,
                    settings=settings,
                    topic_id=token_hex(16),
                    now_ns=self._clock.wall_ns(),
                    internal_ok=True,
                )
            except GoQueueError as error:
                return Pending.failed(error)
            opening = self._opening[name] = self._administer(job, self._created_live)
            opening.then(lambda _: self._opened_or_not(name))
        return self._opening.get(name) or Pending.of(self._topics[name])

    def _opened_or_not(self, name: str) -> None:
        self._opening.pop(name, None)

    def _created_live(self, topic: Topic) -> LocalTopic:
        self._created(topic)
        return self._topics[topic.name]

    # --- inside --------------------------------------------------------------------------------

    def _partitions(self) -> Iterator[PartitionLeader]:
        return (leader for topic in self._topics.values() for leader in topic.partitions)

    def _topic(self, name: str) -> LocalTopic:
        """The topic, for a user: every verb that takes the name of a topic looks it up here, or in `_readable`."""
        refuse_internal(name)
        return self._any_topic(name)

    def _readable(self, name: str) -> LocalTopic:
        """The topic, for a user who reads it. `__traces` is a table for users, who can read it and nothing else."""
        return self._any_topic(name) if name == TRACES_TOPIC else self._topic(name)

    def _any_topic(self, name: str) -> LocalTopic:
        """The topic, for the broker itself."""
        try:
            return self._topics[name]
        except KeyError:
            raise self._catalog.quarantined.get(name) or TopicNotFound(name) from None

    def _partition(self, topic: LocalTopic, number: int) -> PartitionLeader:
        if number < 0:
            raise InvalidPartition(number)
        if number >= len(topic.partitions):
            raise PartitionNotFound(topic.topic.name, number)
        return topic.partitions[number]

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

    def _may_wait(self, wait_ms: int) -> bool:
        return wait_ms > 0 and len(self._waiting) < self._config.waiting_max and not self._stopping

    def _read_later(
        self, reading: Reading, empty: ReadResult, wait_ms: int, read: Callable[[], ReadResult]
    ) -> Pending[ReadResult]:
        """Read again whenever there is more, until a visible record is found or the time is over."""
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
            if last.first_pending_offset is not None:  # it was passed before the wait
                found = found._replace(first_pending_offset=last.first_pending_offset)
            last = found
            if _is_answer(reading, last):
                pending.resolve(last)
            else:
                reading.when_ready(again)

        reading.when_ready(again)
        self._limit_wait(pending, wait_ms, lambda: pending.resolve(last), [reading])
        return pending

    def _limit_wait(
        self, pending: Pending[T], wait_ms: int, give_up: Callable[[], None], readings: Sequence[Reading]
    ) -> None:
        if pending.is_done:
            for reading in readings:
                reading.close()
            return
        self._waiting[pending] = give_up
        deadline_ns = self._clock.monotonic_ns() + min(wait_ms, WAIT_MS_MAX) * MS
        timer = self._timers.at(deadline_ns, give_up)

        def ended(_: Pending[T]) -> None:
            del self._waiting[pending]
            timer.cancel()
            for reading in readings:
                reading.close()

        pending.then(ended)

    def _live(self, topic: Topic) -> LocalTopic:
        self._observe(events.TopicCreated(topic.name, len(topic.partitions), topic.is_internal))
        self.traces.configured(topic.name, topic.config.trace_sample_rate)
        leaders = [
            PartitionLeader(
                partition,
                clock=self._clock,
                workers=self._workers,
                unflushed=self._unflushed,
                observe=self._observe,
            )
            for partition in topic.partitions
        ]
        for leader in leaders:
            leader.begin_delivery = partial(self.delivery, leader)
        return LocalTopic(topic, leaders)

    def _administer(self, job: TopicJob, finish: Callable[[Topic], T]) -> Pending[T]:
        """Run a job of the catalog, then let it take effect."""
        pending: Pending[T] = Pending()

        def complete(error: Exception | None) -> None:
            try:
                pending.resolve(finish(self._catalog.complete(job, error)))
            except Exception as raised:
                pending.fail(raised)

        self._workers.submit(job, complete)
        return pending

    def _created(self, topic: Topic) -> TopicInfo:
        leader = self._topics[topic.name] = self._live(topic)
        self._housekeeping.watch(leader.partitions)
        self.groups.topics_changed()
        return self._info(leader)

    def _altered(self, topic: Topic) -> TopicInfo:
        leader = self._topic(topic.name)
        leader.configured()
        self.traces.configured(topic.name, topic.config.trace_sample_rate)
        for one in leader.partitions:
            if one in self._deliveries:
                self._deliveries[one].configured(topic.config)
        return self._info(leader)

    def _info(self, leader: LocalTopic) -> TopicInfo:
        topic = leader.topic
        settings = topic.config.settings()
        return TopicInfo(
            name=topic.name,
            topic_id=topic.id,
            replication_factor=1,
            created_at_ns=topic.created_at_ns,
            settings=settings,
            defaults=[name for name in settings if name not in topic.settings],
            partitions=[self._partition_info(number, one) for number, one in enumerate(leader.partitions)],
        )

    def _partition_info(self, number: int, leader: PartitionLeader) -> PartitionInfo:
        log = leader.log
        return PartitionInfo(
            number,
            log.start_offset,
            log.next_offset,
            leader.high_watermark,
            leader.last_stable_offset,
            log.size,
            self._config.node_id,
            0,
            leader.message_count,
        )

    def _check_running(self) -> None:
        if self._stopping:
            raise BrokerUnavailable("it is stopping")


def _wake_nobody(time_ns: int) -> None:
    """Nobody ticks but at intervals."""


def _is_less(new: int, old: int) -> bool:
    """Whether a retention keeps less; 0 is without end."""
    return bool(new) and (not old or new < old)


def _is_answer(reading: Reading, result: ReadResult) -> bool:
    """Whether the result says something: with more behind it that is not looked at yet, it says where to go on."""
    return bool(result.record_count or result.gaps) or result.end_of_range or reading.has_more
