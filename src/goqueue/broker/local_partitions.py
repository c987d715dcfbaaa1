"""The topics and partitions of this node: the one place where a name becomes a partition.

Every verb that takes the name of a topic looks it up here, so internal and quarantined topics are refused in one place
and a partition that another node leads will be found missing in one place. What belongs to a partition while the
broker runs (its leader object, the delivery to groups, the journal of an internal topic) is kept here, made on first
use, and forgotten with the topic.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TypeVar

from goqueue import events
from goqueue.broker.config import BrokerConfig
from goqueue.broker.delivery.partition_delivery import PartitionDelivery
from goqueue.broker.housekeeping import Housekeeping
from goqueue.broker.partition.journal import Journal
from goqueue.broker.partition.leader import PartitionLeader, Workers
from goqueue.broker.partition.publishing import MessagePublisher
from goqueue.clock import Clock
from goqueue.delivery.dead_letter import DLQ_SUFFIX
from goqueue.errors import (
    GoQueueError,
    InvalidPartition,
    PartitionNotFound,
    StorageError,
    TopicNotFound,
    TopicQuarantined,
)
from goqueue.runtime.entropy import Entropy
from goqueue.service.pending import Pending, after
from goqueue.topics.catalog import AlterTopicJob, Catalog, CreateTopicJob, DeleteTopicJob, Topic
from goqueue.topics.config import is_internal, refuse_internal

TRACES_TOPIC = "__traces"
JOURNAL_SETTINGS: Mapping[str, object] = {"cleanup": "compact", "flush": "group"}
TOPIC_ID_BYTES = 16

T = TypeVar("T")
TopicJob = CreateTopicJob | AlterTopicJob | DeleteTopicJob
MakeDelivery = Callable[[PartitionLeader, Topic], PartitionDelivery]


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


class LocalPartitions:
    """All topics of one data directory. Belongs to the owner of the broker.

    The four callables are set by the broker that puts the parts together, before the first use: the delivery of a
    partition needs the groups, which need the partitions.
    """

    make_delivery: MakeDelivery
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
        unflushed: set[PartitionLeader],
        observe: events.Observer,
        configured: Callable[[Topic], None],
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
        self._deliveries: dict[PartitionLeader, PartitionDelivery] = {}
        self._journals: dict[str, Journal] = {}
        self._opening: dict[str, Pending[LocalTopic]] = {}  # internal and dead-letter topics that are being created
        self._topics: dict[str, LocalTopic] = {}
        for topic in catalog:
            self._open(topic)

    # --- looking up ----------------------------------------------------------------------------

    def topic(self, name: str) -> LocalTopic:
        """The topic, for a user. Raises `Forbidden` for an internal one, `TopicNotFound`, `TopicQuarantined`."""
        refuse_internal(name)
        return self.any_topic(name)

    def readable(self, name: str) -> LocalTopic:
        """The topic, for a user who reads it. `__traces` is a table for users, who can read it and nothing else."""
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
        """One partition. Raises what `topic` raises, `InvalidPartition` or `PartitionNotFound`."""
        return leader_of(self.topic(topic), partition)

    def readable_leader(self, topic: str, partition: int) -> PartitionLeader:
        """One partition, for a user who reads it."""
        return leader_of(self.readable(topic), partition)

    def local_leader(self, topic: str, topic_id: str, partition: int) -> PartitionLeader | None:
        """One partition, if the topic is still the one of that id."""
        found = self._topics.get(topic) if not is_internal(topic) else None
        if found is None or found.topic.id != topic_id or partition >= len(found.partitions):
            return None
        return found.partitions[partition]

    def leaders(self, topic: str) -> Sequence[PartitionLeader]:
        """The partitions of a topic."""
        return self.topic(topic).partitions

    def all_leaders(self) -> Iterator[PartitionLeader]:
        """The partitions of all topics."""
        return (leader for topic in self._topics.values() for leader in topic.partitions)

    def partition_counts(self) -> Mapping[str, int]:
        """How many partitions each topic has; internal ones are left out."""
        return {name: len(topic.partitions) for name, topic in self._topics.items() if not is_internal(name)}

    def has_topic(self, topic: str) -> bool:
        """Whether there is such a topic; raises `Forbidden` for an internal one, and `TopicQuarantined`."""
        refuse_internal(topic)
        if topic in self.catalog.quarantined:
            raise self.catalog.quarantined[topic]
        return topic in self._topics

    def quarantined(self, topic: str) -> TopicQuarantined | None:
        """Why the topic is not served, if its files are there and cannot be used."""
        return self.catalog.quarantined.get(topic)

    def topic_id(self, topic: str, partition: int) -> str:
        """The id of a topic that has the partition."""
        found = self.topic(topic)
        leader_of(found, partition)
        return found.topic.id

    def created_at_ns(self, topic: str) -> int:
        """When the topic was created."""
        return self.topic(topic).topic.created_at_ns

    # --- what belongs to a partition -----------------------------------------------------------

    @property
    def deliveries(self) -> Sequence[PartitionDelivery]:
        """The deliveries that have begun."""
        return list(self._deliveries.values())

    def delivery(self, leader: PartitionLeader) -> PartitionDelivery:
        """Delivery from the partition to groups, which begins on first use."""
        found = self._deliveries.get(leader)
        if found is None:
            found = self.make_delivery(leader, self._topics[leader.origin.topic].topic)
            self._deliveries[leader] = leader.delivery = found
            self.delivery_opened(found)
            found.resume()
        return found

    @property
    def journals(self) -> Sequence[Journal]:
        """The journals that are open."""
        return list(self._journals.values())

    def journal(self, topic: str) -> Pending[Journal]:
        """The journal in an internal topic, which is created on first use."""
        opened = self._opened(topic, partitions=1, settings=JOURNAL_SETTINGS)
        return after(opened, lambda _: self.journal_of(topic))

    def journal_of(self, topic: str) -> Journal:
        """The journal in an internal topic that exists."""
        journal = self._journals.get(topic)
        if journal is None:
            journal = self._journals[topic] = Journal(self._topics[topic].partitions[0])
        return journal

    def target(self, topic: str, *, like: str) -> Pending[list[PartitionLeader]]:
        """The partitions of a topic to which messages are copied. A dead-letter topic that does not exist is created
        with as many partitions as the other topic has.
        """
        if topic not in self._topics and not topic.endswith(DLQ_SUFFIX):
            return Pending.failed(self.quarantined(topic) or TopicNotFound(topic))
        count = len(self._topics[like].partitions) if like in self._topics else self._config.default_partitions
        opened = self._opened(topic, partitions=count, settings=self._config.topic_defaults)
        return after(opened, lambda found: list(found.partitions))

    def stored_traces(self) -> PartitionLeader | None:
        """The partition of `__traces`, if there is one."""
        found = self._topics.get(TRACES_TOPIC)
        return None if found is None else found.partitions[0]

    def trace_log(self, settings: Mapping[str, object]) -> Pending[PartitionLeader]:
        """The partition of `__traces`, which is created on first use."""
        return after(self._opened(TRACES_TOPIC, partitions=1, settings=settings), lambda opened: opened.partitions[0])

    # --- topics come and go --------------------------------------------------------------------

    def create(
        self, topic: str, *, partitions: int, settings: Mapping[str, object], internal_ok: bool = False
    ) -> Pending[LocalTopic]:
        """A new topic, once it is durable. Raises what is wrong with it."""
        job = self.catalog.begin_create(
            topic,
            partitions=partitions,
            settings=settings,
            topic_id=self._entropy.bytes(TOPIC_ID_BYTES).hex(),
            now_ns=self._clock.wall_ns(),
            internal_ok=internal_ok,
        )
        return self._administer(job, self._created)

    def alter(self, job: AlterTopicJob) -> Pending[LocalTopic]:
        """Carry out a change of settings."""
        return self._administer(job, self._altered)

    def delete(self, name: str) -> Pending[None]:
        """Serve the topic no more, and delete its files. Raises `TopicNotFound` and the like."""
        job = self.catalog.begin_delete(name)
        topic = self._topics.pop(name)
        self.topic_deleted(name)
        for leader in topic.partitions:
            leader.gone()
        self._forget(topic)
        return self._administer(job, lambda _: None)

    def quarantine(self, name: str, error: StorageError) -> None:
        """Serve the topic no more: its files cannot be used."""
        topic = self._topics.pop(name)
        self._unflushed.difference_update(topic.partitions)
        self.catalog.quarantine(name, error)
        self._forget(topic)

    def _forget(self, topic: LocalTopic) -> None:
        name = topic.topic.name
        self._journals.pop(name, None)
        self._housekeeping.forget(topic.partitions)
        for leader in topic.partitions:
            self._deliveries.pop(leader, None)
        # Last: its series leave the metrics, and an event about the topic after this one would bring them back.
        self._observe(events.TopicDeleted(name, topic.topic.is_internal))

    def _opened(self, name: str, *, partitions: int, settings: Mapping[str, object]) -> Pending[LocalTopic]:
        """The topic, created if there is none; requests that come while it is being created get the same one."""
        if name in self._topics:
            return Pending.of(self._topics[name])
        if name not in self._opening:
            try:
                opening = self.create(name, partitions=partitions, settings=settings, internal_ok=True)
            except GoQueueError as error:
                return Pending.failed(error)
            self._opening[name] = opening
            opening.then(lambda _: self._forget_opening(name))
            return opening
        return self._opening[name]

    def _forget_opening(self, name: str) -> None:
        self._opening.pop(name, None)

    def _administer(self, job: TopicJob, finish: Callable[[Topic], T]) -> Pending[T]:
        """Run a job of the catalog in a worker, then let it take effect."""
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
        self.topics_changed()
        return opened

    def _altered(self, topic: Topic) -> LocalTopic:
        altered = self.topic(topic.name)
        altered.configured()
        self._configured(topic)
        for leader in altered.partitions:
            if leader in self._deliveries:
                self._deliveries[leader].configured(topic.config)
        return altered

    def _open(self, topic: Topic) -> LocalTopic:
        self._observe(events.TopicCreated(topic.name, len(topic.partitions), topic.is_internal))
        self._configured(topic)
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
        self._housekeeping.watch(leaders)
        opened = self._topics[topic.name] = LocalTopic(topic, leaders)
        return opened


def leader_of(topic: LocalTopic, partition: int) -> PartitionLeader:
    """One partition of the topic."""
    if partition < 0:
        raise InvalidPartition(partition)
    if partition >= len(topic.partitions):
        raise PartitionNotFound(topic.topic.name, partition)
    return topic.partitions[partition]
