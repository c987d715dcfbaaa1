"""The state of the cluster, as a fold of the metadata log: every node that applied the same entries has the same state.

    entry ──> apply ──> position and chain move on, always
                 └────> its records change the state, if its author may write (R2):

        it is the controller of the state's epoch
        or it begins an epoch:        `ControllerElected(epoch + 1)`, by the node that it names
        or it begins the cluster:     `ClusterCreated`, in an empty state
        or an operator rebuilt it:    `Recovered(generation + 1)`

All other entries are ignored, by all nodes alike: a late entry of a deposed controller, or one that was computed after
another entry than the one before it. So no lease and no clock decides who may write. Times are data in records.

A record that contradicts the state (an unknown topic, a `partition_epoch` that is not the next, a leader that was not
in sync) halts the node with `MetadataContradiction`. To skip the entry would keep the cluster available, but the check
would then be a part of the format: two versions that check differently would skip different entries, and their states
would part without a sign. A node that halts cannot diverge. It costs little, because such a record does not reach the
log: the controller applies its records with this code, to a copy of this state, before it appends them.

Values are frozen and are replaced, so a copy shares them. Sets of partitions are dicts without values: their order
does not depend on hashes, so that a run can be replayed.

The chain is a hash over the ids of all entries up to the position: two nodes with equal chains applied the same log.
"""

from collections.abc import Iterable, Iterator, Mapping
from hashlib import blake2b
from typing import Any, Final

import msgspec

from goqueue.clock import SECOND
from goqueue.cluster.metadata_log import EMPTY, ID_BYTES, MetadataEntry, MetadataPosition
from goqueue.cluster.records import (
    FEATURE_LEVEL,
    BrokerChanged,
    BrokerRegistered,
    BrokerRemoved,
    BrokerStatus,
    ClusterCreated,
    ControllerElected,
    DocumentKind,
    DocumentPut,
    FeatureLevelSet,
    LogSealed,
    PartitionChanged,
    PartitionKey,
    ProducerIdsTaken,
    Record,
    Recovered,
    RequestDone,
    TopicAdded,
    TopicAltered,
    TopicRemoved,
    decode_batch,
)
from goqueue.errors import MetadataContradiction, MetadataDamaged, MetadataTooNew

SNAPSHOT_FORMAT: Final = 1
REQUEST_KEPT_NS: Final = 3600 * SECOND
REQUESTS_KEPT_MIN: Final = 1_000
"""So many are kept whatever their age: a wall clock that jumps forgets none that a client still retries."""
REQUESTS_KEPT_MAX: Final = 100_000

_NONE: Final[Mapping[PartitionKey, None]] = {}
_SEAL: Final = LogSealed.__name__.encode()
_order = msgspec.msgpack.Encoder(order="deterministic")


def may_seal(entry: MetadataEntry) -> bool:
    """Whether the entry may have a `LogSealed`; cheap, and rarely wrong."""
    return _SEAL in entry.batch


class BrokerState(msgspec.Struct, frozen=True):
    """A registered broker."""

    registration: BrokerRegistered
    broker_epoch: int
    status: BrokerStatus = BrokerStatus.FENCED
    is_leaving: bool = False

    @property
    def node(self) -> int:
        return self.registration.node

    @property
    def is_online(self) -> bool:
        return self.status is BrokerStatus.ONLINE

    @property
    def is_fenced(self) -> bool:
        return self.status is BrokerStatus.FENCED


def min_insync(settings: Mapping[str, Any], replica_count: int) -> int:
    """How many replicas have to be in sync before a write is committed.

    What the topic sets, else 2 if there are more replicas than that, so that one may fail; at most all of them.
    """
    explicit = settings.get("min_insync_replicas")
    if explicit is None:
        return 2 if replica_count > 2 else 1
    return min(int(explicit), replica_count)


class _StoredPartition(msgspec.Struct, array_like=True, frozen=True, gc=False):
    replicas: tuple[int, ...]
    leader: int | None
    leader_epoch: int
    partition_epoch: int
    isr: tuple[int, ...]
    elr: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]
    is_unclean: bool


class _StoredTopic(msgspec.Struct, array_like=True, frozen=True):
    id: str
    name: str
    created_at_ns: int
    settings: dict[str, Any]
    partitions: list[_StoredPartition]


class _StoredState(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    index: int
    id: bytes
    chain: bytes
    cluster_id: str
    created_at_ns: int
    feature_level: int
    generation: int
    epoch: int
    controller: int | None
    controller_incarnation: str
    sealed_to: str | None
    next_producer_number: int
    brokers: list[BrokerState]
    topics: list[_StoredTopic]
    requests: list[RequestDone]
    request_time_ns: int
    documents: list[DocumentPut]
    recoveries: tuple[int, ...] = ()


_decode_state = msgspec.msgpack.Decoder(_StoredState).decode


class Metadata:
    """The state after the entry at `position`. After an error of `apply` it is of no use any more."""

    # 44 methods: one per record type, and the lookups of its many readers; state and lookups share their indices.

    def __init__(self) -> None:
        self.position: MetadataPosition = EMPTY
        self.chain = bytes(ID_BYTES)
        self.cluster_id = ""
        self.created_at_ns = 0
        self.feature_level = 0
        self.generation = 0
        self.recoveries: tuple[int, ...] = ()
        """The index of each `Recovered`: what a node applied from there on, without it, is no part of this history."""
        self.epoch = 0
        self.controller: int | None = None
        self.controller_incarnation = ""
        self.sealed_to: str | None = None
        self.next_producer_number = 0
        self._brokers: dict[int, BrokerState] = {}
        self._topics: dict[str, TopicAdded] = {}
        self._topic_ids: dict[str, str] = {}  # by name
        self._partitions: dict[PartitionKey, PartitionChanged] = {}
        self._requests: dict[str, RequestDone] = {}  # in the order of their entries
        self._request_time_ns = 0  # the highest of all; of records, not of a clock
        self._documents: dict[tuple[str, str], DocumentPut] = {}
        # Derived
        self._replicas_on: dict[int, dict[PartitionKey, None]] = {}
        self._led_by: dict[int, dict[PartitionKey, None]] = {}
        self._preferred_on: dict[int, int] = {}
        self._misplaced: dict[PartitionKey, None] = {}

    # The fold

    def apply(self, entry: MetadataEntry) -> list[Record]:
        """Apply the next entry; returns the records that took effect, none if the entry is ignored.

        Raises `MetadataTooNew`, `MetadataDamaged` and `MetadataContradiction`, after which the node halts.
        """
        if entry.index != self.position.index + 1:
            raise MetadataContradiction(f"the last one applied is {self.position.index}", entry.index)
        records = self._taking_effect(entry)
        for record in records:
            self.change(record, entry.index)
        self._check_topics_are_whole(records, entry.index)
        self.reach(entry)
        return records

    def reach(self, entry: MetadataEntry) -> None:
        """Move on to an entry whose records have taken effect: one by one, in a controller's copy of the state."""
        self.position = entry.position
        self.chain = blake2b(self.chain + entry.index.to_bytes(8, "big") + entry.id, digest_size=ID_BYTES).digest()

    def sealed_by(self, entry: MetadataEntry) -> str | None:
        """Where the log goes on, if the next entry is this one and says so.

        A node stops before it applies or keeps a seal: the log that goes on elsewhere does not have it.
        """
        if not may_seal(entry):
            return None
        sealed = self.copy()
        sealed.apply(entry)
        return sealed.sealed_to

    def _taking_effect(self, entry: MetadataEntry) -> list[Record]:
        if entry.previous_id != self.position.id or self.sealed_to is not None:
            return []
        if entry.epoch == self.epoch and entry.node == self.controller:
            return decode_batch(entry.batch)
        if entry.epoch < self.epoch:
            return []  # of a deposed controller: what it says does not matter, nor whether it can be read
        records = decode_batch(entry.batch)
        return records if records and self._begins(records[0], entry) else []

    def _begins(self, first: Record, entry: MetadataEntry) -> bool:
        """Whether an entry that begins with this record may be written by a node that is not the controller."""
        match first:
            case ControllerElected(epoch=epoch, node=node):
                return bool(self.cluster_id) and epoch == entry.epoch == self.epoch + 1 and node == entry.node
            case ClusterCreated():
                return not self.cluster_id and not entry.epoch
            case Recovered(generation=generation):
                return generation == self.generation + 1 and entry.epoch == self.epoch
            case _:
                return False

    def change(self, record: Record, index: int) -> None:
        """Let one record of the entry at `index` take effect. For `apply`, and for a controller's copy of the state.

        Raises `MetadataContradiction` if it does not fit, and `MetadataTooNew`.
        """
        reason = self._change(record, index)
        if reason:
            raise MetadataContradiction(f"{reason}: {record}", index)

    def _change(self, record: Record, index: int) -> str | None:
        """Returns what is wrong with the record."""
        match record:
            case PartitionChanged():  # first, because most are of this type
                return self._partition_changed(record)
            case BrokerRegistered():
                return self._broker_registered(record, index)
            case BrokerChanged():
                return self._broker_changed(record)
            case BrokerRemoved():
                return self._broker_removed(record)
            case TopicAdded():
                return self._topic_added(record)
            case TopicAltered():
                return self._topic_altered(record)
            case TopicRemoved():
                return self._topic_removed(record)
            case RequestDone():
                return self._request_done(record)
            case ProducerIdsTaken():
                return self._producer_ids_taken(record)
            case DocumentPut():
                return self._document_put(record)
            case ControllerElected():
                return self._controller_elected(record)
            case FeatureLevelSet():
                return self._feature_level_set(record)
            case ClusterCreated():
                return self._cluster_created(record)
            case Recovered():
                return self._recovered(record, index)
            case LogSealed():
                self.sealed_to = record.moved_to
                return None

    def _cluster_created(self, record: ClusterCreated) -> str | None:
        if self.cluster_id:
            return f"the cluster {self.cluster_id} exists"
        _check_feature_level(record.feature_level)
        self.cluster_id = record.cluster_id
        self.created_at_ns = record.created_at_ns
        self.feature_level = record.feature_level
        return None

    def _controller_elected(self, record: ControllerElected) -> str | None:
        if record.epoch != self.epoch + 1:
            return f"the epoch is {self.epoch}"
        self.epoch = record.epoch
        self.controller = record.node
        self.controller_incarnation = record.incarnation
        return None

    def _feature_level_set(self, record: FeatureLevelSet) -> str | None:
        if record.level < self.feature_level:
            return f"the level is {self.feature_level}"
        if any(broker.registration.feature_level_max < record.level for broker in self._brokers.values()):
            return "a broker does not know it"
        _check_feature_level(record.level)
        self.feature_level = record.level
        return None

    def _recovered(self, record: Recovered, index: int) -> str | None:
        if record.generation != self.generation + 1:
            return f"the generation is {self.generation}"
        self.generation = record.generation
        self.recoveries += (index,)
        self.epoch = max(self.epoch, record.epoch_floor)
        self.controller, self.controller_incarnation = None, ""
        for node, broker in self._brokers.items():
            self._brokers[node] = msgspec.structs.replace(broker, status=BrokerStatus.FENCED)
        for partition in list(self._partitions.values()):
            leaderless = msgspec.structs.replace(
                partition,
                leader=None,
                leader_epoch=max(partition.leader_epoch, record.epoch_floor) + 1,
                partition_epoch=partition.partition_epoch + 1,
                isr=(),
                elr=partition.isr + partition.elr,  # all brokers are fenced now
                is_unclean=False,
            )
            self._put_partition(partition, leaderless)
        return None

    def _broker_registered(self, record: BrokerRegistered, index: int) -> str | None:
        before = self._brokers.get(record.node)
        if before is not None and not before.is_fenced:
            return f"the node is {before.status} as incarnation {before.registration.incarnation}"
        if before is not None and before.broker_epoch >= index:
            return f"its broker epoch is {before.broker_epoch}"
        if record.feature_level_max < self.feature_level:
            return f"the level is {self.feature_level}"
        is_leaving = before is not None and before.is_leaving
        self._brokers[record.node] = BrokerState(record, index, is_leaving=is_leaving)
        return None

    def _broker_changed(self, record: BrokerChanged) -> str | None:
        broker = self._brokers.get(record.node)
        if broker is None or broker.broker_epoch != record.broker_epoch:
            return f"its broker epoch is {broker.broker_epoch if broker else None}"
        if record.status is BrokerStatus.FENCED:
            if self._led_by.get(record.node):
                return "it leads partitions"
            partitions = self._partitions
            if any(record.node in partitions[key].isr for key in self._replicas_on.get(record.node, _NONE)):
                return "it is in sync"
        self._brokers[record.node] = msgspec.structs.replace(broker, status=record.status, is_leaving=record.is_leaving)
        return None

    def _broker_removed(self, record: BrokerRemoved) -> str | None:
        broker = self._brokers.get(record.node)
        if broker is None or broker.broker_epoch != record.broker_epoch:
            return f"its broker epoch is {broker.broker_epoch if broker else None}"
        if self._replicas_on.get(record.node):
            return "it has replicas"
        del self._brokers[record.node]
        return None

    def _topic_added(self, record: TopicAdded) -> str | None:
        if record.id in self._topics or record.name in self._topic_ids:
            return "the topic exists"
        if record.partition_count < 1:
            return "it has no partitions"
        self._topics[record.id] = record
        self._topic_ids[record.name] = record.id
        return None

    def _topic_altered(self, record: TopicAltered) -> str | None:
        topic = self._topics.get(record.id)
        if topic is None:
            return "there is no such topic"
        self._topics[record.id] = msgspec.structs.replace(topic, settings=record.settings)
        return None

    def _topic_removed(self, record: TopicRemoved) -> str | None:
        topic = self._topics.pop(record.id, None)
        if topic is None:
            return "there is no such topic"
        del self._topic_ids[topic.name]
        for number in range(topic.partition_count):
            key = (record.id, number)
            partition = self._partitions.pop(key, None)
            if partition is not None:
                self._misplaced.pop(key, None)
                self._preferred_on[partition.replicas[0]] -= 1
                for node in partition.replicas:
                    del self._replicas_on[node][key]
                if partition.leader is not None:
                    del self._led_by[partition.leader][key]
        return None

    def _partition_changed(self, record: PartitionChanged) -> str | None:
        topic = self._topics.get(record.topic_id)
        if topic is None:
            return "there is no such topic"
        if not 0 <= record.partition < topic.partition_count:
            return f"the topic has {topic.partition_count} partitions"
        before = self._partitions.get(record.key)
        reason = _wrong_in_itself(record) or (_wrong_after(before, record) if before else _wrong_as_first(record))
        if reason:
            return reason
        for node in record.replicas:
            broker = self._brokers.get(node)
            if broker is None:
                return f"node {node} is not registered"
            if broker.status is BrokerStatus.FENCED and node in record.isr:
                return f"node {node} is fenced, and cannot be in sync"
        self._put_partition(before, record)
        return None

    def _put_partition(self, before: PartitionChanged | None, after: PartitionChanged) -> None:
        key = after.key
        self._partitions[key] = after
        if before is None or before.replicas != after.replicas:
            if before is not None:
                self._preferred_on[before.replicas[0]] -= 1
                for node in before.replicas:
                    del self._replicas_on[node][key]
            self._preferred_on[after.replicas[0]] = self.preferred_count(after.replicas[0]) + 1
            for node in after.replicas:
                self._replicas_on.setdefault(node, {})[key] = None
        if before is not None and before.leader is not None and before.leader != after.leader:
            del self._led_by[before.leader][key]
        if after.leader is not None:
            self._led_by.setdefault(after.leader, {})[key] = None
        if after.leader == after.replicas[0]:
            self._misplaced.pop(key, None)
        else:
            self._misplaced[key] = None

    def _check_topics_are_whole(self, records: Iterable[Record], index: int) -> None:
        """A topic and all of its partitions are created by one entry, so nobody ever sees a part of it."""
        for record in records:
            if isinstance(record, TopicAdded) and record.id in self._topics:
                for number in range(record.partition_count):
                    if (record.id, number) not in self._partitions:
                        raise MetadataContradiction(f"{record.name} has no partition {number}", index)

    def _request_done(self, record: RequestDone) -> str | None:
        if record.request_id in self._requests:
            return "it was done before"
        self._requests[record.request_id] = record
        self._request_time_ns = max(self._request_time_ns, record.at_ns)
        expired_ns = self._request_time_ns - REQUEST_KEPT_NS
        while len(self._requests) > REQUESTS_KEPT_MIN:
            oldest = next(iter(self._requests.values()))
            if oldest.at_ns >= expired_ns and len(self._requests) <= REQUESTS_KEPT_MAX:
                break
            del self._requests[oldest.request_id]
        return None

    def _producer_ids_taken(self, record: ProducerIdsTaken) -> str | None:
        if record.first != self.next_producer_number or record.count < 1:
            return f"the next number is {self.next_producer_number}"
        self.next_producer_number = record.first + record.count
        return None

    def _document_put(self, record: DocumentPut) -> str | None:
        key = (record.kind, record.name)
        if record.value is None:
            self._documents.pop(key, None)
        else:
            self._documents[key] = record
        return None

    # Lookups

    @property
    def is_formed(self) -> bool:
        """Whether there is a cluster."""
        return bool(self.cluster_id)

    @property
    def brokers(self) -> Mapping[int, BrokerState]:
        """All registered brokers by node."""
        return self._brokers

    @property
    def topics(self) -> Mapping[str, TopicAdded]:
        """All topics by id; the state of one is its `TopicAdded` with its current settings."""
        return self._topics

    @property
    def partitions(self) -> Mapping[PartitionKey, PartitionChanged]:
        """All partitions; the state of one is its last record."""
        return self._partitions

    def broker(self, node: int) -> BrokerState | None:
        return self._brokers.get(node)

    def online(self) -> list[int]:
        """The nodes that may lead, in order."""
        return sorted(node for node, broker in self._brokers.items() if broker.is_online)

    def topic(self, id: str) -> TopicAdded | None:
        return self._topics.get(id)

    def topic_named(self, name: str) -> TopicAdded | None:
        id = self._topic_ids.get(name)
        return None if id is None else self._topics[id]

    def partition(self, topic_id: str, partition: int) -> PartitionChanged | None:
        return self._partitions.get((topic_id, partition))

    def partitions_of(self, topic_id: str) -> Iterator[PartitionChanged]:
        """The partitions of a topic in order."""
        topic = self._topics.get(topic_id)
        for number in range(topic.partition_count if topic else 0):
            partition = self._partitions.get((topic_id, number))
            if partition is not None:
                yield partition

    def min_insync(self, partition: PartitionChanged) -> int:
        """How many replicas have to be in sync before a write to the partition is committed.

        Replicas that are being added do not count: they are of no use yet.
        """
        return min_insync(self._topics[partition.topic_id].settings, len(partition.replicas) - len(partition.adding))

    def replicas_on(self, node: int) -> Iterable[PartitionKey]:
        """The partitions that the node has a replica of; not to be iterated while partitions change."""
        return self._replicas_on.get(node, _NONE).keys()

    def replica_count(self, node: int) -> int:
        return len(self._replicas_on.get(node, _NONE))

    def led_by(self, node: int) -> Iterable[PartitionKey]:
        """The partitions that the node leads; not to be iterated while partitions change."""
        return self._led_by.get(node, _NONE).keys()

    def leader_count(self, node: int) -> int:
        return len(self._led_by.get(node, _NONE))

    def preferred_count(self, node: int) -> int:
        """How many partitions have the node as their preferred leader."""
        return self._preferred_on.get(node, 0)

    def misplaced(self) -> Iterable[PartitionKey]:
        """The partitions that their preferred leader does not lead; not to be iterated while partitions change."""
        return self._misplaced.keys()

    def request(self, request_id: str) -> RequestDone | None:
        """The answer to a request that was carried out lately."""
        return self._requests.get(request_id)

    def document(self, kind: DocumentKind, name: str) -> bytes | None:
        found = self._documents.get((kind, name))
        return None if found is None else found.value

    def documents(self, kind: DocumentKind) -> dict[str, bytes]:
        """All documents of a kind by name."""
        found = (document for document in self._documents.values() if document.kind == kind)
        return {document.name: document.value for document in found if document.value is not None}

    # Copies

    def copy(self) -> "Metadata":
        """A state of its own that shares the values."""
        twin = Metadata()
        for name, value in vars(self).items():
            setattr(twin, name, dict(value) if isinstance(value, dict) else value)
        twin._replicas_on = {node: dict(keys) for node, keys in self._replicas_on.items()}
        twin._led_by = {node: dict(keys) for node, keys in self._led_by.items()}
        return twin

    def become(self, other: "Metadata") -> None:
        """Take over the state of another one, which is of no use any more. Whoever has this object goes on with it."""
        vars(self).update(vars(other))

    def encode(self) -> bytes:
        """The snapshot of the state; equal states make equal bytes."""
        topics = [
            _StoredTopic(
                topic.id,
                topic.name,
                topic.created_at_ns,
                topic.settings,
                [
                    _StoredPartition(
                        found.replicas,
                        found.leader,
                        found.leader_epoch,
                        found.partition_epoch,
                        found.isr,
                        found.elr,
                        found.adding,
                        found.removing,
                        found.is_unclean,
                    )
                    for found in self.partitions_of(topic.id)
                ],
            )
            for _, topic in sorted(self._topics.items())
        ]
        stored = _StoredState(
            index=self.position.index,
            id=self.position.id,
            chain=self.chain,
            cluster_id=self.cluster_id,
            created_at_ns=self.created_at_ns,
            feature_level=self.feature_level,
            generation=self.generation,
            epoch=self.epoch,
            controller=self.controller,
            controller_incarnation=self.controller_incarnation,
            sealed_to=self.sealed_to,
            next_producer_number=self.next_producer_number,
            brokers=[broker for _, broker in sorted(self._brokers.items())],
            topics=topics,
            requests=list(self._requests.values()),
            request_time_ns=self._request_time_ns,
            documents=[document for _, document in sorted(self._documents.items())],
            recoveries=self.recoveries,
        )
        return bytes((SNAPSHOT_FORMAT,)) + _order.encode(stored)

    @classmethod
    def decode(cls, raw: bytes) -> "Metadata":
        """The state of a snapshot. Raises `MetadataDamaged` and `MetadataTooNew`."""
        if not raw or not raw[0]:
            raise MetadataDamaged("a snapshot does not begin with its format")
        if raw[0] != SNAPSHOT_FORMAT:
            raise MetadataTooNew(f"snapshot format {raw[0]}; this version reads {SNAPSHOT_FORMAT}")
        try:
            stored = _decode_state(memoryview(raw)[1:])
        except msgspec.ValidationError as error:
            raise MetadataTooNew(f"snapshot: {error}") from error
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise MetadataDamaged(f"a snapshot is malformed: {error}") from error
        _check_feature_level(stored.feature_level)
        state = cls()
        state.position = MetadataPosition(stored.index, stored.id)
        state.chain = stored.chain
        state.cluster_id, state.created_at_ns = stored.cluster_id, stored.created_at_ns
        state.feature_level, state.generation = stored.feature_level, stored.generation
        state.recoveries = stored.recoveries
        state.epoch, state.controller = stored.epoch, stored.controller
        state.controller_incarnation = stored.controller_incarnation
        state.sealed_to = stored.sealed_to
        state.next_producer_number = stored.next_producer_number
        state._brokers = {broker.node: broker for broker in stored.brokers}
        state._requests = {request.request_id: request for request in stored.requests}
        state._request_time_ns = stored.request_time_ns
        state._documents = {(document.kind, document.name): document for document in stored.documents}
        for topic in stored.topics:
            state._load_topic(topic)
        return state

    def _load_topic(self, stored: _StoredTopic) -> None:
        topic_id, count = stored.id, len(stored.partitions)
        self._topics[topic_id] = TopicAdded(topic_id, stored.name, stored.created_at_ns, count, stored.settings)
        self._topic_ids[stored.name] = topic_id
        for number, found in enumerate(stored.partitions):
            partition = PartitionChanged(
                topic_id,
                number,
                found.replicas,
                found.leader,
                found.leader_epoch,
                found.partition_epoch,
                found.isr,
                found.elr,
                found.adding,
                found.removing,
                found.is_unclean,
            )
            self._put_partition(None, partition)

    def dump(self) -> Iterator[str]:
        """The state as lines of text, for operators and for comparing two nodes."""
        yield f"cluster {self.cluster_id} generation {self.generation} feature level {self.feature_level}"
        yield f"position {self.position.index} {self.position.id.hex()} chain {self.chain.hex()}"
        yield f"controller {self.controller} epoch {self.epoch}"
        if self.sealed_to is not None:
            yield f"sealed; it goes on at {self.sealed_to}"
        for node, broker in sorted(self._brokers.items()):
            leaving = " leaving" if broker.is_leaving else ""
            yield (
                f"broker {node} {broker.status}{leaving} epoch {broker.broker_epoch}"
                f" incarnation {broker.registration.incarnation} at {broker.registration.addresses.peer}"
                f" rack {broker.registration.rack or '-'} version {broker.registration.version}"
            )
        for topic in sorted(self._topics.values(), key=lambda topic: topic.name):
            yield f"topic {topic.name} {topic.id} settings {dict(sorted(topic.settings.items()))}"
            for found in self.partitions_of(topic.id):
                more = "".join(
                    f" {name} {list(nodes)}"
                    for name, nodes in (("elr", found.elr), ("adding", found.adding), ("removing", found.removing))
                    if nodes
                )
                yield (
                    f"  {found.partition}: leader {found.leader} epoch {found.leader_epoch}.{found.partition_epoch}"
                    f" replicas {list(found.replicas)} isr {list(found.isr)}{more}"
                    f"{' unclean' if found.is_unclean else ''}"
                )
        yield f"producer numbers taken below {self.next_producer_number}"
        for _, document in sorted(self._documents.items()):
            yield f"document {document.kind} {document.name}: {len(document.value or b'')} bytes"


def _check_feature_level(level: int) -> None:
    if level > FEATURE_LEVEL:
        raise MetadataTooNew(f"feature level {level}; this version knows {FEATURE_LEVEL}")


def _wrong_in_itself(record: PartitionChanged) -> str | None:
    replicas, isr = record.replicas, record.isr
    if not replicas or len(set(replicas)) != len(replicas):
        return "its replicas are not a set of nodes"
    for group in (isr, record.elr, record.adding, record.removing):
        for node in group:
            if node not in replicas or group.count(node) != 1:
                return f"node {node} is not one of its replicas, or twice"
    if record.elr and not set(isr).isdisjoint(record.elr):
        return "a replica is in sync and eligible at once"
    if record.leader is None:
        return "nobody was chosen" if record.is_unclean else None
    if record.leader not in isr:
        return "its leader is not in sync"
    return None


def _wrong_as_first(record: PartitionChanged) -> str | None:
    if record.partition_epoch != 0 or record.leader_epoch < 1:
        return "a new partition has partition_epoch 0 and a leader_epoch of 1 or more"
    return None


def _wrong_after(before: PartitionChanged, after: PartitionChanged) -> str | None:
    if after.partition_epoch != before.partition_epoch + 1:
        return f"the partition_epoch is {before.partition_epoch}"
    if after.is_unclean and after.leader_epoch == before.leader_epoch:
        return "the choice of an operator begins a leader_epoch"
    if after.leader == before.leader:
        # A leader that an operator lets go on from less than was in sync is a new one.
        if after.leader_epoch not in (before.leader_epoch, before.leader_epoch + 1):
            return f"the leader_epoch is {before.leader_epoch}"
    elif after.leader_epoch != before.leader_epoch + 1:
        return f"the leader_epoch is {before.leader_epoch}, and the leader {before.leader}"
    elif (
        after.leader is not None
        and not after.is_unclean
        and after.leader not in before.isr
        and after.leader not in before.elr
    ):
        return "its leader was neither in sync nor eligible"
    if any(node not in before.isr and node not in before.elr for node in after.elr):
        return "a replica became eligible that was not in sync"
    return None
