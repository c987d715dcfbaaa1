"""One node: the topics of a data directory, and the verbs on them.

The broker is synchronous and has one owner. It opens no sockets and starts no threads: jobs that block go to the
`Workers` it was given, and `tick` is called by an owner that has a running clock. So it can be embedded anywhere and
tested without an event loop.

This module only puts the parts together, and ticks, drains and closes them. Each part takes those that it needs; none
holds the broker.
"""

from collections.abc import Callable, Sequence

from goqueue import events
from goqueue.broker.authority import Authority, ClusterNoun
from goqueue.broker.cluster_of_one import ClusterOfOne
from goqueue.broker.config import BrokerConfig
from goqueue.broker.conversion import convert
from goqueue.broker.coordination import (
    GROUPS_TOPIC,
    SCHEDULES_TOPIC,
    SCHEMAS_TOPIC,
    TRANSACTIONS_TOPIC,
    Coordinators,
)
from goqueue.broker.delivery.counters import DeliveryCounters
from goqueue.broker.delivery.dead_letter_target import DeadLetterTargets, LocalTargets
from goqueue.broker.delivery.dead_letter_writer import DeadLetterWriter
from goqueue.broker.delivery.dead_letters import DeadLetterQueues
from goqueue.broker.delivery.delays import Delays
from goqueue.broker.delivery.partition_delivery import PartitionDelivery
from goqueue.broker.delivery.schedules import Schedules, TopicFacts
from goqueue.broker.groups.groups import Groups
from goqueue.broker.health import Health
from goqueue.broker.housekeeping import Housekeeping
from goqueue.broker.local_partitions import LocalPartitions
from goqueue.broker.messages import BrokerMessages
from goqueue.broker.partition.leader import PartitionLeader
from goqueue.broker.partition.log_jobs import Flushable, Workers
from goqueue.broker.scans import Scans
from goqueue.broker.schemas import Schemas
from goqueue.broker.stopping import Stopping
from goqueue.broker.timers import Timers
from goqueue.broker.topics import Topics
from goqueue.broker.traces import Traces
from goqueue.broker.transactions.transactions import Transactions
from goqueue.broker.waits import Waits
from goqueue.clock import MS, Clock
from goqueue.errors import StorageError
from goqueue.runtime.entropy import Entropy, SystemEntropy
from goqueue.service.node import Check
from goqueue.service.pending import Pending
from goqueue.storage.directory import DataDirectory
from goqueue.storage.file import Disk
from goqueue.topics.catalog import Catalog, Topic
from goqueue.topics.config import TopicConfig
from goqueue.tracing.config import TraceConfig
from goqueue.tracing.export import Sink
from goqueue.transactions.producer_ids import NUMBER_BITS, ProducerNumbers, producer_id

BOOT_BITS = 31  # the high bits of delivery numbers, which no other leader of the partition has used
SALT_BYTES = 16


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
        dead_letter_targets: Callable[[LocalPartitions], DeadLetterTargets],
        authority: Authority | None,
    ) -> None:
        self._data = data
        self._authority = authority
        self._clock = clock
        self._entropy = entropy
        self.wake_at: Callable[[int], None] = _wake_nobody  # called with the monotonic time of the next work
        self._stopping = Stopping()
        self._timers = Timers()
        self._producer_numbers = ProducerNumbers(self._take_producer_numbers)
        self._counters = DeliveryCounters()
        waits = self._waits = Waits(self._timers, clock=clock, waiting_max=config.waiting_max)
        default_rate = TopicConfig.parse(config.topic_defaults).trace_sample_rate
        self.traces = Traces(traces, clock=clock, sinks=trace_sinks, default_rate=default_rate)
        self.observe: events.Observer = events.Observers(self._counters.observe, observe, self.traces.observe)
        unflushed: set[Flushable] = set()
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
            authority=authority,
        )
        self.traces.topics = partitions
        self.coordinators = Coordinators(partitions)
        journals = self.coordinators.journals
        self._dead_letter_writer = DeadLetterWriter(
            dead_letter_targets(partitions), partitions, clock=clock, timers=self._timers, observe=self.observe
        )
        self.groups = Groups(
            partitions,
            journals(GROUPS_TOPIC),
            self._counters,
            waits,
            clock=clock,
            entropy=entropy,
            observe=self.observe,
        )
        self.delays = Delays(partitions, run_woken=self.groups.run_woken, clock=clock)
        self.dead_letters = DeadLetterQueues(partitions, clock=clock, timers=self._timers, entropy=entropy)
        self.schemas = Schemas(
            journals(SCHEMAS_TOPIC),
            validation_of=self._schema_validation,
            clock=clock,
            observe=self.observe,
        )
        self.transactions = Transactions(
            partitions,
            journals(TRANSACTIONS_TOPIC),
            self.groups,
            clock=clock,
            timers=self._timers,
            numbers=self._producer_numbers,
            observe=self.observe,
        )
        self.groups.settlements.open_transaction = self.transactions.open
        self.scans = Scans(partitions.readable_leader)
        self.topics = Topics(partitions, clock=clock, timers=self._timers, config=config, stopping=self._stopping)
        self.messages = BrokerMessages(
            partitions,
            self.schemas,
            self.transactions,
            clock=clock,
            timers=self._timers,
            waits=waits,
            stopping=self._stopping,
            new_producer_id=lambda: producer_id(self._producer_numbers.take()),
        )
        self.schedules = Schedules(
            journals(SCHEDULES_TOPIC),
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
            cluster=self._check_cluster,
            stopping=self._stopping,
            clock=clock,
        )
        self.alone = ClusterOfOne(partitions, self.node, node_id=config.node_id, stopping=self._stopping, clock=clock)
        self.cluster: ClusterNoun = self.alone  # a server that is a node of a cluster puts its own view here
        partitions.make_delivery = self._make_delivery
        partitions.delivery_opened = self._delivery_opened
        partitions.topics_changed = self.groups.topics_changed
        partitions.topic_deleted = self._topic_deleted
        partitions.leader_began = self._leader_began
        partitions.leader_ended = self._leader_ended
        journals(GROUPS_TOPIC).coordinator = self.groups
        journals(SCHEDULES_TOPIC).coordinator = self.schedules
        journals(SCHEMAS_TOPIC).coordinator = self.schemas
        journals(TRANSACTIONS_TOPIC).coordinator = self.transactions
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
        dead_letter_targets: Callable[[LocalPartitions], DeadLetterTargets] = LocalTargets,
        authority: Authority | None = None,
    ) -> "Broker":
        """Lock the directory, and recover all topics in it. Dead letters may go to partitions of other nodes.

        A broker that is alone leads all partitions. With an authority it leads nothing until it is told to.
        """
        config = config or BrokerConfig()
        TopicConfig.parse(config.topic_defaults)
        data = DataDirectory.open(disk, data_path)
        try:
            convert(data, disk, observe=observe)
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
                dead_letter_targets=dead_letter_targets,
                authority=authority,
            )
        except BaseException:
            data.close()
            raise

    def _begin(self) -> None:
        """Resume what was under way when the broker stopped. A topic whose files do not allow that is quarantined."""
        partitions = self.partitions
        first: StorageError | None = None
        for begin in (self._begin_topic, partitions.begin_deliveries):
            for name in partitions.catalog.names(internal=True):
                try:
                    begin(name)
                except StorageError as error:
                    first = first or error
                    partitions.quarantine(name, error)
        if first is not None and not any(True for _ in partitions.all_replicas()):
            raise first
        self.coordinators.begin()
        self.transactions.start()
        self.dead_letters.resume()

    def _begin_topic(self, name: str) -> None:
        if self._authority is None:
            self.partitions.lead(name)
        self.coordinators.read(name)

    # --- what the parts need of each other -----------------------------------------------------

    def _make_delivery(self, leader: PartitionLeader, topic: Topic) -> PartitionDelivery:
        return PartitionDelivery(
            leader,
            topic.config,
            clock=self._clock,
            boot=self._entropy.bits(BOOT_BITS),
            make_salt=lambda: self._entropy.bytes(SALT_BYTES),
            wake=self.groups.wake,
            dead_letter=self._dead_letter_writer.write,
            resume_dead_letters=self._dead_letter_writer.resume,
            wake_at=self._wake_at,
        )

    def _wake_at(self, time_ns: int) -> None:
        self.wake_at(time_ns)  # looked up at each call: the server sets it after the broker is open

    def _take_producer_numbers(self) -> range:
        if self._authority is not None:
            return self._authority.take_producer_numbers()
        number = self._entropy.bits(NUMBER_BITS)
        return range(number, number + 1)

    def _schema_validation(self, name: str) -> str | None:
        found = self.partitions.find(name)
        return found.topic.config.schema_validation if found else None

    def _topic_facts(self, name: str) -> TopicFacts:
        found = self.partitions.topic(name)
        config = found.topic.config
        return TopicFacts(found.topic.id, found.partition_count, config.max_message_bytes, config.partitioner)

    def _topic_configured(self, topic: Topic) -> None:
        self.traces.configured(topic.name, topic.config.trace_sample_rate)

    def _delivery_opened(self, delivery: PartitionDelivery) -> None:
        self.groups.delivery_opened(delivery)
        self.transactions.delivery_opened(delivery)

    def _leader_began(self, leader: PartitionLeader) -> None:
        self.coordinators.leader_began(leader)
        self.transactions.leader_began(leader)
        self.groups.leader_began(leader)
        self.dead_letters.leader_began(leader)

    def _leader_ended(self, leader: PartitionLeader) -> None:
        self.coordinators.leader_ended(leader)
        self.groups.leader_ended(leader)
        self.dead_letters.leader_ended(leader)

    def _check_cluster(self) -> Check:
        return self.cluster.check()

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
        self.coordinators.tick(self._clock.monotonic_ns())
        self.traces.tick()

    def drain(self) -> Pending[None]:
        """Refuse writes and end all waits; done when every accepted write is durable."""
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
    """The default of `wake_at`: the owner ticks at intervals."""
