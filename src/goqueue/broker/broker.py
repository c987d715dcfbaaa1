"""One node: the topics of a data directory, and everything that can be asked of them.

The broker is synchronous and has one owner. It opens no sockets and starts no threads: jobs that block go to the
`Workers` it was given, and `tick` is called by an owner that has a running clock. So it can be embedded anywhere and
tested without an event loop.

This module only puts the parts together, and ticks, drains and closes them. Each part takes those that it needs; none
holds the broker.
"""

from collections.abc import Callable, Sequence
from functools import partial

from goqueue import events
from goqueue.broker.config import BrokerConfig
from goqueue.broker.delivery.counters import DeliveryCounters
from goqueue.broker.delivery.dead_letter_writer import DeadLetterWriter
from goqueue.broker.delivery.dead_letters import DeadLetterQueues
from goqueue.broker.delivery.delays import Delays
from goqueue.broker.delivery.partition_delivery import PartitionDelivery
from goqueue.broker.delivery.schedules import SCHEDULES_TOPIC, Schedules, TopicFacts
from goqueue.broker.groups.groups import GROUPS_TOPIC, Groups
from goqueue.broker.health import Health
from goqueue.broker.housekeeping import Housekeeping
from goqueue.broker.local_partitions import LocalPartitions
from goqueue.broker.messages import Messages
from goqueue.broker.partition.leader import PartitionLeader, Workers
from goqueue.broker.scans import Scans
from goqueue.broker.schemas import SCHEMAS_TOPIC, Schemas
from goqueue.broker.stopping import Stopping
from goqueue.broker.timers import Timers
from goqueue.broker.topics import Topics
from goqueue.broker.traces import Traces
from goqueue.broker.transactions import Transactions
from goqueue.broker.waits import Waits
from goqueue.clock import MS, Clock
from goqueue.errors import StorageError
from goqueue.groups.coordinator import GroupCoordinator
from goqueue.runtime.entropy import Entropy, SystemEntropy
from goqueue.service.pending import Pending
from goqueue.storage.directory import DataDirectory
from goqueue.storage.file import Disk
from goqueue.topics.catalog import Catalog, Topic
from goqueue.topics.config import TopicConfig
from goqueue.tracing.config import TraceConfig
from goqueue.tracing.export import Sink
from goqueue.transactions.facts import TOPIC as TRANSACTIONS_TOPIC

PRODUCER_ID_BITS = 52  # JSON numbers hold them
BOOT_BITS = 31  # begin the numbers of deliveries, which never come again
SALT_BYTES = 16
_JOURNALS = frozenset((GROUPS_TOPIC, SCHEDULES_TOPIC, SCHEMAS_TOPIC, TRANSACTIONS_TOPIC))


class Broker:
    """The verbs of one data directory, by noun; `LocalService` offers them to doors. Made by `Broker.open`."""

    def __init__(
        self,
        data: DataDirectory,
        catalog: Catalog,
        *,
        clock: Clock,
        workers: Workers,
        config: BrokerConfig,
        observe: events.Observer,
        entropy: Entropy,
        traces: TraceConfig,
        trace_sinks: Sequence[Sink],
    ) -> None:
        self._data = data
        self._clock = clock
        self._entropy = entropy
        self.wake_at: Callable[[int], None] = _wake_nobody  # told when there is something to do, by the monotonic clock
        self._stopping = Stopping()
        self._timers = Timers()
        self._boot = entropy.bits(BOOT_BITS)
        self._counters = DeliveryCounters()
        waits = self._waits = Waits(self._timers, clock=clock, waiting_max=config.waiting_max)
        default_rate = TopicConfig.parse(config.topic_defaults).trace_sample_rate
        self.traces = Traces(traces, clock=clock, sinks=trace_sinks, default_rate=default_rate)
        self.observe: events.Observer = events.Observers(self._counters.observe, observe, self.traces.observe)
        unflushed: set[PartitionLeader] = set()
        self._housekeeping = Housekeeping(config, self._timers, unflushed)
        partitions = self.partitions = LocalPartitions(
            catalog,
            clock=clock,
            workers=workers,
            config=config,
            entropy=entropy,
            housekeeping=self._housekeeping,
            unflushed=unflushed,
            observe=self.observe,
            configured=self._topic_configured,
        )
        self.traces.topics = partitions
        self._dead_letter_writer = DeadLetterWriter(partitions, clock=clock, timers=self._timers, observe=self.observe)
        self.groups = Groups(
            GroupCoordinator(), partitions, self._counters, waits, clock=clock, entropy=entropy, observe=self.observe
        )
        self.delays = Delays(partitions, run_woken=self.groups.run_woken, clock=clock)
        self.dead_letters = DeadLetterQueues(partitions, clock=clock, timers=self._timers, entropy=entropy)
        self.schemas = Schemas(
            partial(partitions.journal, SCHEMAS_TOPIC),
            validation_of=self._schema_validation,
            clock=clock,
            observe=self.observe,
        )
        self.transactions = Transactions(
            partitions,
            self.groups,
            clock=clock,
            timers=self._timers,
            new_id=self._new_producer_id,
            observe=self.observe,
        )
        self.groups.settlements.open_transaction = self.transactions.open
        self.scans = Scans(partitions.readable_leader)
        self.topics = Topics(partitions, clock=clock, timers=self._timers, config=config, stopping=self._stopping)
        self.messages = Messages(
            partitions,
            self.schemas,
            self.transactions,
            clock=clock,
            timers=self._timers,
            waits=waits,
            stopping=self._stopping,
            new_producer_id=self._new_producer_id,
        )
        self.schedules = Schedules(
            partial(partitions.journal, SCHEDULES_TOPIC),
            publish=self.messages.publish,
            topic_facts=self._topic_facts,
            init_producer=self.messages.init_producer,
            clock=clock,
            timers=self._timers,
        )
        self.node = Health(
            partitions,
            node_id=config.node_id,
            space=data.space,
            stopping=self._stopping,
            clock=clock,
        )
        partitions.make_delivery = self._make_delivery
        partitions.delivery_opened = self.groups.delivery_opened
        partitions.topics_changed = self.groups.topics_changed
        partitions.topic_deleted = self._topic_deleted
        self._begin()

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
        entropy: Entropy | None = None,
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
                entropy=entropy or SystemEntropy(),
                traces=traces or TraceConfig(),
                trace_sinks=trace_sinks,
            )
        except BaseException:
            data.close()
            raise

    def _begin(self) -> None:
        """Resume what was under way when the broker stopped. A topic whose files do not allow that is quarantined."""
        partitions = self.partitions
        first: StorageError | None = None
        for name in partitions.catalog.names(internal=True):
            try:
                self._begin_topic(name)
            except StorageError as error:
                first = first or error
                partitions.quarantine(name, error)
        if first is not None and not any(True for _ in partitions.all_leaders()):
            raise first
        for name, owner in (
            (GROUPS_TOPIC, self.groups),
            (SCHEDULES_TOPIC, self.schedules),
            (SCHEMAS_TOPIC, self.schemas),
        ):
            if partitions.find(name):
                owner.load(partitions.journal_of(name))
        journal = partitions.journal_of(TRANSACTIONS_TOPIC) if partitions.find(TRANSACTIONS_TOPIC) else None
        self.transactions.load(journal, is_lost=partitions.quarantined(TRANSACTIONS_TOPIC) is not None)
        self.dead_letters.resume()

    def _begin_topic(self, name: str) -> None:
        for leader in self.partitions.any_topic(name).partitions:
            leader.look_at_tail()
            if leader.has_delays:
                leader.begin_delivery()
        if name in _JOURNALS:
            self.partitions.journal_of(name).load()

    # --- what the parts need of each other -----------------------------------------------------

    def _make_delivery(self, leader: PartitionLeader, topic: Topic) -> PartitionDelivery:
        return PartitionDelivery(
            leader,
            topic.config,
            clock=self._clock,
            boot=self._boot,
            make_salt=lambda: self._entropy.bytes(SALT_BYTES),
            wake=self.groups.wake,
            dead_letter=self._dead_letter_writer.write,
            resume_dead_letter=self._dead_letter_writer.resume,
            wake_at=self._wake_at,
        )

    def _wake_at(self, time_ns: int) -> None:
        self.wake_at(time_ns)  # looked up at each call: the server sets it after the broker is open

    def _new_producer_id(self) -> int:
        return self._entropy.bits(PRODUCER_ID_BITS) + 1

    def _schema_validation(self, name: str) -> str | None:
        found = self.partitions.find(name)
        return found.topic.config.schema_validation if found else None

    def _topic_facts(self, name: str) -> TopicFacts:
        found = self.partitions.topic(name)
        return TopicFacts(found.topic.id, len(found.partitions), found.topic.config.max_message_bytes)

    def _topic_configured(self, topic: Topic) -> None:
        self.traces.configured(topic.name, topic.config.trace_sample_rate)

    def _topic_deleted(self, name: str) -> None:
        self.groups.topic_deleted(name)
        self.schedules.topic_deleted(name)

    # --- running -------------------------------------------------------------------------------

    @property
    def is_ready(self) -> bool:
        """Whether requests are served."""
        return not self._stopping.has_begun

    def tick(self) -> None:
        """Do what is due: end waits and leases, fire delays, flush by interval, expire, compact."""
        self._housekeeping.tick(now_ns=self._clock.monotonic_ns())
        for delivery in self.partitions.deliveries:
            delivery.tick()
        self.groups.tick()
        self.transactions.tick()
        for journal in self.partitions.journals:
            journal.snapshot_if_due(self._clock.monotonic_ns())
        self.traces.tick()

    def drain(self) -> Pending[None]:
        """Take no more writes and end all waits; done when every write that was taken is durable."""
        self._stopping.has_begun = True
        self.dead_letters.stop()
        self._waits.end()
        self.traces.flush()
        drained: Pending[None] = Pending()

        def look() -> None:
            unsealed = [leader for leader in self.partitions.all_leaders() if not leader.seal()]
            if unsealed:
                self._timers.at(self._clock.monotonic_ns() + MS, look)
            else:
                drained.resolve(None)

        look()
        return drained

    def close(self) -> None:
        """Make everything durable and unlock the data directory."""
        self._stopping.has_begun = True
        self.schedules.stop()
        try:
            for delivery in self.partitions.deliveries:
                delivery.delays.close(delivery.leader.log.next_offset)
            for leader in self.partitions.all_leaders():
                leader.write_down()
            self.traces.flush(is_last=True)
        finally:
            self._data.close()


def _wake_nobody(time_ns: int) -> None:
    """There is no ticker: the owner ticks at intervals."""
