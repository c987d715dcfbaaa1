"""The topics and partitions of this node: the one place where a name becomes a partition.

Every verb that takes the name of a topic looks it up here, so internal and quarantined topics are refused in one place,
and `NotLeader` is raised in one place for a partition that this node does not lead. What belongs to a leader while it
leads, the delivery to groups, is kept here, made on first use, and forgotten when the leader ends. Coordinators, whose
state is in the partitions of internal topics, are told of leaders through `leader_began` and `leader_ended`
(`coordination.py`).

`become_leader` and `resign` change the role of a partition at any moment. A leader that begins finds the state of its
groups in the ledger, as after a restart; what waited on the one before has failed with `NotLeader`: clients retry that.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TypeVar
from uuid import UUID

from goqueue import events
from goqueue.broker.authority import Authority, PartitionRoles
from goqueue.broker.config import BrokerConfig
from goqueue.broker.delivery.partition_delivery import PartitionDelivery
from goqueue.broker.housekeeping import Housekeeping
from goqueue.broker.partition.commit_gate import InSync
from goqueue.broker.partition.leader import PartitionLeader
from goqueue.broker.partition.log_jobs import Flushable, Workers
from goqueue.broker.partition.publishing import MessagePublisher
from goqueue.broker.partition.replica import Replica, Replicas
from goqueue.clock import Clock
from goqueue.errors import (
    GoQueueError,
    InvalidPartition,
    InvalidTopic,
    PartitionNotFound,
    StorageError,
    TopicExists,
    TopicNotFound,
    TopicQuarantined,
)
from goqueue.runtime.entropy import Entropy
from goqueue.service.pending import Pending, after
from goqueue.service.topics import NO_LEADER
from goqueue.topics.catalog import AlterTopicJob, Catalog, Topic, TopicJob
from goqueue.topics.config import TRACES_TOPIC, default_dead_letter_topic, is_internal, refuse_internal
from goqueue.topics.partition import Partition

TOPIC_ID_BYTES = 16

T = TypeVar("T")
MakeDelivery = Callable[[PartitionLeader, Topic], PartitionDelivery]


class LocalTopic:
    """A topic while the broker runs, and those of its partitions of which this node has a replica."""

    __slots__ = ("partition_count", "publisher", "replicas", "topic")

    def __init__(self, topic: Topic, replicas: Replicas) -> None:
        self.topic = topic
        self.partition_count = topic.partition_count
        self.replicas = replicas
        self.publisher = MessagePublisher(
            replicas, topic=topic.name, partition_count=topic.partition_count, config=topic.config
        )

    @property
    def leaders(self) -> list[PartitionLeader]:
        """The partitions that this node leads."""
        return [replica.leader for replica in self.replicas.values() if replica.leader is not None]

    def configured(self) -> None:
        """Apply changed settings."""
        self.publisher.config = self.topic.config
        for leader in self.leaders:
            leader.configured()


class LocalPartitions:
    """All topics of one data directory. Belongs to the owner of the broker.

    The callables are set by the broker that puts the parts together, before the first use: the delivery of a partition
    needs the groups, which need the partitions.
    """

    # More than 40 methods: half look up a topic, a partition or its leader, in a few lines each, for the different
    # callers (users, readers, the broker itself). Roles, creation and deletion change what these find in one step.

    make_delivery: MakeDelivery
    leader_began: Callable[[PartitionLeader], None]
    leader_ended: Callable[[PartitionLeader], None]
    delivery_opened: Callable[[PartitionDelivery], None]
    topics_changed: Callable[[], None]
    topic_deleted: Callable[[str], None]

    def __init__(
        self,
        catalog: Catalog,
        *,
        clock: Clock,
        workers: Workers,
        config: BrokerConfig,
        entropy: Entropy,
        housekeeping: Housekeeping,
        unflushed: set[Flushable],
        observe: events.Observer,
        configured: Callable[[Topic], None],
        authority: Authority | None = None,
    ) -> None:
        self.catalog = catalog
        self._clock = clock
        self._workers = workers
        self._config = config
        self._entropy = entropy
        self._housekeeping = housekeeping
        self._unflushed = unflushed
        self._observe = observe
        self._configured = configured
        self.authority = authority  # who decides, in a cluster
        self._deliveries: dict[PartitionLeader, PartitionDelivery] = {}
        self._awaited: dict[str, list[Pending[LocalTopic]]] = {}  # topics that another node has created
        self._opening: dict[str, Pending[LocalTopic]] = {}  # internal and dead-letter topics that are being created
        self._topics: dict[str, LocalTopic] = {}
        for topic in catalog:
            self._open(topic)
        # They lead from `lead` on, when all parts of the broker are there.

    # --- looking up ----------------------------------------------------------------------------

    def topic(self, name: str) -> LocalTopic:
        """The topic, for a user. Raises `Forbidden` for an internal one, `TopicNotFound`, `TopicQuarantined`."""
        refuse_internal(name)
        return self.any_topic(name)

    def readable(self, name: str) -> LocalTopic:
        """The topic, for a read of a user. `__traces` is the only internal topic that users can read."""
        return self.any_topic(name) if name == TRACES_TOPIC else self.topic(name)

    def any_topic(self, name: str) -> LocalTopic:
        """The topic, for the broker itself."""
        try:
            return self._topics[name]
        except KeyError:
            raise self.catalog.quarantined.get(name) or TopicNotFound(name) from None

    def find(self, name: str) -> LocalTopic | None:
        """The topic of that name, internal or not, if it is served."""
        return self._topics.get(name)

    def leader(self, topic: str, partition: int) -> PartitionLeader:
        """One partition. Raises what `topic` raises, `InvalidPartition`, `PartitionNotFound` or `NotLeader`."""
        found = self._topics.get(topic)
        if found is not None and not is_internal(topic):  # each publish and each ack comes through here
            replica = found.replicas.get(partition)
            if replica is not None:
                return replica.leading
        return leader_of(self.topic(topic), partition)

    def readable_leader(self, topic: str, partition: int) -> PartitionLeader:
        """One partition, for a read of a user. Raises as `readable`."""
        return leader_of(self.readable(topic), partition)

    def local_leader(self, topic: str, topic_id: str, partition: int) -> PartitionLeader | None:
        """One partition; None if the topic is not the one of that id any more. Raises `NotLeader`."""
        found = self._topics.get(topic) if not is_internal(topic) else None
        if found is None or found.topic.id != topic_id or partition >= found.partition_count:
            return None
        return found.replicas[partition].leading

    def leaders(self, topic: str) -> list[PartitionLeader]:
        """All partitions of a topic. Raises as `leader`."""
        found = self.topic(topic)
        return [found.replicas[number].leading for number in range(found.partition_count)]

    def all_leaders(self) -> Iterator[PartitionLeader]:
        """The partitions of all topics that this node leads."""
        return (leader for topic in self._topics.values() for leader in topic.leaders)

    def all_replicas(self) -> Iterator[Replica]:
        """The partitions of all topics, whatever their role."""
        return (replica for topic in self._topics.values() for replica in topic.replicas.values())

    def user_leaders(self) -> Iterator[PartitionLeader]:
        """The partitions that this node leads, without those of internal topics."""
        topics = ((name, topic) for name, topic in self._topics.items() if not is_internal(name))
        return (leader for _, topic in topics for leader in topic.leaders)

    def partition_counts(self) -> Mapping[str, int]:
        """The number of partitions by topic, without internal topics."""
        return {name: topic.partition_count for name, topic in self._topics.items() if not is_internal(name)}

    def has_topic(self, topic: str) -> bool:
        """Whether there is such a topic; raises `Forbidden` for an internal one, and `TopicQuarantined`."""
        refuse_internal(topic)
        if topic in self.catalog.quarantined:
            raise self.catalog.quarantined[topic]
        return topic in self._topics

    def quarantined(self, topic: str) -> TopicQuarantined | None:
        """Why the topic is not served, if its files exist and cannot be used."""
        return self.catalog.quarantined.get(topic)

    def topic_id(self, topic: str, partition: int) -> str:
        """The id of a topic that has the partition."""
        found = self.topic(topic)
        replica_of(found, partition)
        return found.topic.id

    def roles(self, topic: LocalTopic, partition: int) -> PartitionRoles:
        """Which nodes have the partition. Without a cluster it is this one alone."""
        if self.authority is not None:
            roles = self.authority.roles(topic.topic.id, partition)
            return PartitionRoles(NO_LEADER, 0, 0, (), (), ()) if roles is None else roles
        replica, node = topic.replicas[partition], (self._config.node_id,)
        leader = NO_LEADER if replica.leader is None else self._config.node_id
        return PartitionRoles(leader, replica.epoch, replica.epoch, node, node, ())

    def created_at_ns(self, topic: str) -> int:
        """When the topic was created."""
        return self.topic(topic).topic.created_at_ns

    # --- what belongs to a partition -----------------------------------------------------------

    @property
    def deliveries(self) -> Sequence[PartitionDelivery]:
        """The deliveries in use."""
        return list(self._deliveries.values())

    def delivery(self, leader: PartitionLeader) -> PartitionDelivery:
        """Delivery from the partition to groups, made on first use."""
        found = self._deliveries.get(leader)
        if found is None:
            found = self.make_delivery(leader, self._topics[leader.origin.topic].topic)
            self._deliveries[leader] = leader.delivery = found
            self.delivery_opened(found)
            found.resume()
        return found

    def target(self, topic: str, *, like: str | None) -> Pending[LocalTopic]:
        """A topic to which messages are copied. If it does not exist, it is created with as many partitions as the
        topic `like` has; without `like` it is not found.
        """
        if topic not in self._topics and like is None:
            return Pending.failed(self.quarantined(topic) or TopicNotFound(topic))
        count = self._topics[like].partition_count if like in self._topics else self._config.default_partitions
        return self.ensure(topic, partitions=count, settings=self._config.settings_for(topic))

    def dead_letter_topic(self, topic: str) -> str:
        """Where dead letters of a topic go; a topic that does not exist has the default settings."""
        found = self._topics.get(topic)
        return found.topic.config.dead_letter_topic_of(topic) if found else default_dead_letter_topic(topic)

    def dead_letter_topics(self) -> Mapping[str, str]:
        """Where dead letters go, by topic, without internal topics."""
        return {
            name: found.topic.config.dead_letter_topic_of(name)
            for name, found in self._topics.items()
            if not is_internal(name)
        }

    def chosen_dead_letter_topics(self) -> Mapping[str, set[str]]:
        """The topics that are set as a dead-letter topic, each with the topics that set it."""
        chosen: dict[str, set[str]] = {}
        for name, found in self._topics.items():
            if dlq_topic := found.topic.config.dead_letter_topic:
                chosen.setdefault(dlq_topic, set()).add(name)
        return chosen

    def stored_traces(self) -> PartitionLeader | None:
        """The partition of `__traces`, if there is one."""
        found = self._topics.get(TRACES_TOPIC)
        replica = None if found is None else found.replicas.get(0)
        return None if replica is None else replica.leader

    def trace_log(self, settings: Mapping[str, object]) -> Pending[PartitionLeader]:
        """The partition of `__traces`, which is created on first use."""
        opened = self.ensure(TRACES_TOPIC, partitions=1, settings=settings)
        return after(opened, lambda found: found.replicas[0].leading)

    # --- roles ---------------------------------------------------------------------------------

    def lead(self, name: str) -> None:
        """Lead all partitions of a topic that was opened. Raises `StorageError` if its files cannot be used."""
        for replica in self._topics[name].replicas.values():
            self._lead(replica, replica.epoch)

    def begin_deliveries(self, name: str) -> None:
        """Fire the delays of a topic, and finish what was under way. All topics have leaders: messages move between
        them. Raises `StorageError`.
        """
        for leader in self._topics[name].leaders:
            if leader.search.has_delays:
                self.delivery(leader)

    def become_leader(
        self, topic: str, partition: int, epoch: int | None = None, *, in_sync: InSync | None = None
    ) -> None:
        """Lead a partition, in the next epoch if none is given; nothing changes if this node leads it already. With
        `in_sync` there are followers.

        Raises as `any_topic`, and `StorageError` if its files cannot be used.
        """
        replica = replica_of(self.any_topic(topic), partition)
        if replica.leader is not None:
            return
        leader = self._lead(replica, replica.epoch + 1 if epoch is None else epoch, in_sync)
        if leader.search.has_delays or (leader.partition.has_ledger and not is_internal(topic)):
            self.delivery(leader)
        self.leader_began(leader)

    def resign(self, topic: str, partition: int) -> None:
        """Lead or follow a partition no longer; nothing changes if this node does neither."""
        replica = replica_of(self.any_topic(topic), partition)
        leader = replica.leader
        if leader is None:
            replica.resign()
            return
        delivery = self._deliveries.pop(leader, None)
        if delivery is not None:
            delivery.delays.save()
        replica.resign()
        self.leader_ended(leader)

    def become_follower(self, topic: str, partition: int, epoch: int) -> None:
        """Follow the leader of that epoch. Raises as `become_leader`."""
        replica_of(self.any_topic(topic), partition).become_follower(epoch)

    def _lead(self, replica: Replica, epoch: int, in_sync: InSync | None = None) -> PartitionLeader:
        leader = replica.become_leader(epoch, replica=self._config.node_id, in_sync=in_sync)
        leader.begin_delivery = partial(self.delivery, leader)
        return leader

    # --- creation and deletion ------------------------------------------------------------------

    def create(
        self,
        topic: str,
        *,
        partitions: int,
        settings: Mapping[str, object],
        replication_factor: int | None = None,
        internal_ok: bool = False,
    ) -> Pending[LocalTopic]:
        """Create a topic; done when it is durable. Raises if its name or settings are invalid."""
        if self.authority is not None:
            explicit = self.catalog.check(topic, partitions=partitions, settings=settings, internal_ok=internal_ok)
            created = self.authority.create_topic(
                topic, partitions=partitions, replication_factor=replication_factor, settings=explicit
            )
            return after(created, lambda _: self.any_topic(topic))
        if replication_factor not in (None, 1):
            reason = f"must be 1 on a single node, not {replication_factor}"
            raise InvalidTopic(topic, reason, setting="replication_factor")
        job = self.catalog.begin_create(
            topic,
            partitions=partitions,
            settings=settings,
            topic_id=str(UUID(bytes=self._entropy.bytes(TOPIC_ID_BYTES), version=4)),
            now_ns=self._clock.wall_ns(),
            internal_ok=internal_ok,
        )
        return self._administer(job, self._created)

    def alter(self, job: AlterTopicJob) -> Pending[LocalTopic]:
        """Store a change of settings, and apply it."""
        return self._administer(job, self._altered)

    def alter_by_authority(self, name: str, changes: Mapping[str, object | None]) -> Pending[LocalTopic]:
        """Have the cluster change settings. Raises if they are invalid."""
        assert self.authority is not None
        self.catalog.check_alter(name, changes)
        return after(self.authority.alter_topic(name, changes), lambda _: self.topic(name))

    def delete(self, name: str) -> Pending[None]:
        """Stop serving the topic, and delete its files. Raises as `topic`."""
        if self.authority is not None:
            self.topic(name)
            return self.authority.delete_topic(name)
        return self.drop(name)

    # --- decisions of the cluster ---------------------------------------------------------------

    def place(
        self,
        name: str,
        *,
        topic_id: str,
        created_at_ns: int,
        partitions: int,
        replicas: Sequence[int],
        settings: Mapping[str, object],
        epochs: Mapping[int, int] | None = None,
    ) -> Pending[LocalTopic]:
        """Have a topic that was created elsewhere, with these replicas. They have no role yet, but have heard of these
        leader epochs.
        """
        job = self.catalog.begin_create(
            name,
            partitions=partitions,
            settings=settings,
            topic_id=topic_id,
            now_ns=created_at_ns,
            replicas=replicas,
            epochs=epochs,
            internal_ok=True,
        )
        return self._administer(job, self._placed)

    def host(self, name: str, numbers: Sequence[int], *, epochs: Mapping[int, int]) -> Pending[LocalTopic]:
        """Have replicas of these partitions, too, which have heard of these leader epochs."""
        job = self.catalog.begin_host(name, numbers, epochs=epochs)
        return self._administer(job, partial(self._hosts, numbers))

    def drop(self, name: str, *, internal_ok: bool = False) -> Pending[None]:
        """Stop serving the topic, and delete its files."""
        job = self.catalog.begin_delete(name, internal_ok=internal_ok)
        topic = self._topics.pop(name)
        self.topic_deleted(name)
        for replica in topic.replicas.values():
            replica.end(TopicNotFound(name))
        self._forget(topic)
        return self._administer(job, lambda _: None)

    def set_aside(self, name: str) -> str:
        """Stop serving a topic that the cluster does not know, and move its files away; where they are."""
        topic = self._topics.pop(name)
        for replica in topic.replicas.values():
            replica.end(TopicNotFound(name))
        path = self.catalog.set_aside(name)
        self._forget(topic)
        return path

    def quarantine(self, name: str, error: StorageError) -> None:
        """Stop serving the topic: its files cannot be used."""
        topic = self._topics.pop(name)
        self.catalog.quarantine(name, error)
        for replica in topic.replicas.values():
            replica.end(self.catalog.quarantined[name])
        self._forget(topic)

    def _forget(self, topic: LocalTopic) -> None:
        name = topic.topic.name
        self._housekeeping.forget(list(topic.replicas.values()))
        for delivery in [one for one in self._deliveries.values() if one.leader.origin.topic == name]:
            del self._deliveries[delivery.leader]
        # Last: its series leave the metrics, and an event about the topic after this one would bring them back.
        self._observe(events.TopicDeleted(name, topic.topic.is_internal))

    def ensure(self, name: str, *, partitions: int, settings: Mapping[str, object]) -> Pending[LocalTopic]:
        """The topic, created if there is none: internal and dead-letter topics are made on first use.

        Requests that come while it is being created get the same one.
        """
        if name in self._topics:
            return Pending.of(self._topics[name])
        if name not in self._opening:
            try:
                opening = self._create_once(name, partitions=partitions, settings=settings)
            except GoQueueError as error:
                return Pending.failed(error)
            self._opening[name] = opening
            opening.then(lambda _: self._forget_opening(name))
            return opening
        return self._opening[name]

    def _create_once(self, name: str, *, partitions: int, settings: Mapping[str, object]) -> Pending[LocalTopic]:
        """Create the topic, unless another node does so at the same time."""
        created = self.create(name, partitions=partitions, settings=settings, internal_ok=True)
        if self.authority is None:
            return created
        there: Pending[LocalTopic] = Pending()

        def look(done: Pending[LocalTopic]) -> None:
            if isinstance(done.error, TopicExists):
                self.when_placed(name).then(lambda placed: there.resolve(placed.result()))
            elif done.error is not None:
                there.fail(done.error)
            else:
                there.resolve(done.result())

        created.then(look)
        return there

    def when_placed(self, name: str) -> Pending[LocalTopic]:
        """The topic, once this node has it."""
        if name in self._topics:
            return Pending.of(self._topics[name])
        placed: Pending[LocalTopic] = Pending()
        self._awaited.setdefault(name, []).append(placed)
        return placed

    def _forget_opening(self, name: str) -> None:
        self._opening.pop(name, None)

    def _administer(self, job: TopicJob, finish: Callable[[Topic], T]) -> Pending[T]:
        """Run a job of the catalog in a worker, then apply its result."""
        pending: Pending[T] = Pending()

        def complete(error: Exception | None) -> None:
            try:
                pending.resolve(finish(self.catalog.complete(job, error)))
            except Exception as raised:
                pending.fail(raised)

        self._workers.submit(job, complete)
        return pending

    def _created(self, topic: Topic) -> LocalTopic:
        opened = self._open(topic)
        self.lead(topic.name)
        self.topics_changed()
        for leader in opened.leaders if topic.is_internal else ():
            self.leader_began(leader)
        return opened

    def _placed(self, topic: Topic) -> LocalTopic:
        opened = self._open(topic)
        for replica in opened.replicas.values():
            replica.was_made()
        self.topics_changed()
        for waiting in self._awaited.pop(topic.name, ()):
            waiting.resolve(opened)
        return opened

    def _hosts(self, numbers: Sequence[int], topic: Topic) -> LocalTopic:
        found = self.any_topic(topic.name)
        opened = [self._replica(partition) for partition in topic.partitions if partition.number in numbers]
        for replica in opened:
            replica.was_made()
        found.replicas.update((replica.origin.partition, replica) for replica in opened)
        self._housekeeping.watch(opened)
        return found

    def _altered(self, topic: Topic) -> LocalTopic:
        altered = self.any_topic(topic.name)
        altered.configured()
        self._configured(topic)
        for leader in altered.leaders:
            if leader in self._deliveries:
                self._deliveries[leader].configured(topic.config)
        return altered

    def _open(self, topic: Topic) -> LocalTopic:
        self._observe(events.TopicCreated(topic.name, topic.partition_count, topic.is_internal))
        self._configured(topic)
        replicas = [self._replica(partition) for partition in topic.partitions]
        self._housekeeping.watch(replicas)
        numbered = Replicas(topic.name, {replica.origin.partition: replica for replica in replicas})
        opened = self._topics[topic.name] = LocalTopic(topic, numbered)
        return opened

    def _replica(self, partition: Partition) -> Replica:
        return Replica(
            partition, clock=self._clock, workers=self._workers, unflushed=self._unflushed, observe=self._observe
        )


def leader_of(topic: LocalTopic, partition: int) -> PartitionLeader:
    """One partition of the topic. Raises `NotLeader`."""
    return replica_of(topic, partition).leading


def replica_of(topic: LocalTopic, partition: int) -> Replica:
    """One partition of the topic, whatever its role. Raises `NotLeader` if this node has no replica of it."""
    if partition < 0:
        raise InvalidPartition(partition)
    if partition >= topic.partition_count:
        raise PartitionNotFound(topic.topic.name, partition)
    return topic.replicas[partition]
