"""What administrators ask the controller to decide: each request becomes one entry, or an error.

    request ──> known by its id? ──yes──> the answer that it got
                      └──no──> checked against the state ──> records + RequestDone, in one entry ──> answer

A request is answered from the state when it comes again (R9), also while its entry is still on the way. A failure is
not kept: it changed nothing, and the same request may succeed later. Requests that concern many partitions have their
records in several entries, and `RequestDone` in the last: each record is right for itself, and a retry does the rest.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Final
from uuid import UUID

from goqueue.cluster.drafts import Drafts
from goqueue.cluster.elections import ranks, uncleanly, with_min_insync
from goqueue.cluster.leadership import drain, improve_leaders, leave
from goqueue.cluster.messages import (
    CHANGES_MAX,
    AlterTopic,
    AnyAdminAnswer,
    AnyAdminRequest,
    Carried,
    CreateTopic,
    DecisionFailed,
    DeleteTopic,
    Done,
    ElectLeaders,
    LeadersElected,
    NodeRemoval,
    ProducerIdBlock,
    PutDocument,
    RemoveNode,
    SetFeatureLevel,
    TakeProducerIds,
    TopicDecided,
    decode_answer,
    encode_answer,
)
from goqueue.cluster.metadata import min_insync
from goqueue.cluster.placement import ReplicaHost, place
from goqueue.cluster.records import (
    FEATURE_LEVEL,
    BrokerRemoved,
    DocumentPut,
    FeatureLevelSet,
    PartitionChanged,
    PartitionKey,
    ProducerIdsTaken,
    Record,
    RequestDone,
    TopicAdded,
    TopicAltered,
    TopicRemoved,
)
from goqueue.cluster.timing import Now
from goqueue.errors import (
    BrokerUnavailable,
    ClusterError,
    Conflict,
    GoQueueError,
    InvalidConfig,
    InvalidTopic,
    NotFound,
    PartitionNotFound,
    TopicExists,
    TopicNotFound,
)
from goqueue.runtime.entropy import Entropy
from goqueue.topics.config import (
    TopicConfig,
    merge,
    refuse_internal,
    validate_alteration,
    validate_dead_letter_topic,
    validate_partition_count,
    validate_topic_name,
)

PRODUCER_IDS: Final = 1_000
"""How many numbers for producers a node gets at a time."""
_TOPIC_ID_BYTES: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterDefaults:
    """What a new topic has if its creator does not say."""

    partitions: int = 3
    replication_factor: int = 1

    def __post_init__(self) -> None:
        for name in ("partitions", "replication_factor"):
            if getattr(self, name) < 1:
                raise InvalidConfig(name, getattr(self, name), "must be 1 or more")


class Administration:
    """Decides on requests, into the drafts of a controller."""

    def __init__(self, drafts: Drafts, *, defaults: ClusterDefaults, entropy: Entropy) -> None:
        self._drafts = drafts
        self._state = drafts.state
        self._defaults = defaults
        self._entropy = entropy

    def decide(self, request: AnyAdminRequest, now: Now) -> Done | DecisionFailed:
        """Decide on it; to be answered once all that is decided now is applied."""
        try:
            if isinstance(request, TakeProducerIds):
                return self._take_producer_ids(request)
            done = self._state.request(request.request_id)
            if done is not None:
                return Done(self._drafts.last_index, decode_answer(done.answer))
            return self._decide(request, now)
        except ClusterError:
            raise  # not an error of the request, but a bug
        except GoQueueError as error:
            return DecisionFailed(error.code, str(error), error.facts())

    def _decide(self, request: AnyAdminRequest, now: Now) -> Done:
        match request:
            case CreateTopic():
                return self._create_topic(request, now)
            case AlterTopic():
                return self._alter_topic(request, now)
            case DeleteTopic():
                return self._delete_topic(request, now)
            case RemoveNode():
                return self._remove_node(request, now)
            case ElectLeaders():
                return self._elect_leaders(request, now)
            case PutDocument(kind=kind, name=name, value=value):
                return self._carry_out([DocumentPut(kind, name, value)], Carried(), request.request_id, now)
            case SetFeatureLevel():
                return self._set_feature_level(request, now)
            case TakeProducerIds():
                return self._take_producer_ids(request)

    def _carry_out(self, records: Iterable[Record], answer: AnyAdminAnswer, request_id: str, now: Now) -> Done:
        done = RequestDone(request_id, encode_answer(answer), now.wall_ns)
        return Done(self._drafts.add([*records, done]), answer)

    # Topics

    def _create_topic(self, asked: CreateTopic, now: Now) -> Done:
        name, state = asked.name, self._state
        count = self._defaults.partitions if asked.partitions is None else asked.partitions
        validate_topic_name(name, internal_ok=asked.is_internal)
        validate_partition_count(name, count)
        explicit = merge({}, asked.settings, topic=name)
        self._check_settings(name, explicit)
        if state.topic_named(name) is not None:
            raise TopicExists(name)
        replicas = place(self._hosts(), partitions=count, replication_factor=self._replication_factor(asked))
        topic_id = str(UUID(bytes=self._entropy.bytes(_TOPIC_ID_BYTES), version=4))
        records: list[Record] = [TopicAdded(topic_id, name, now.wall_ns, count, explicit)]
        for number, nodes in enumerate(replicas):
            records.append(
                PartitionChanged(topic_id, number, nodes, leader=nodes[0], leader_epoch=1, partition_epoch=0, isr=nodes)
            )
        return self._carry_out(records, TopicDecided(topic_id), asked.request_id, now)

    def _replication_factor(self, asked: CreateTopic) -> int:
        factor = self._defaults.replication_factor if asked.replication_factor is None else asked.replication_factor
        most = len(self._hosts())
        if not most:
            raise BrokerUnavailable("no broker of the cluster is online yet")
        if type(factor) is not int or factor < 1:
            raise InvalidTopic(asked.name, f"must be 1 or more, not {factor!r}", setting="replication_factor")
        if factor > most:
            brokers = f"{most} brokers are" if most > 1 else "1 broker is"
            reason = (
                f"{factor} replicas need as many brokers, and {brokers} online: start more nodes, or ask for {most}"
            )
            raise InvalidTopic(asked.name, reason, setting="replication_factor")
        return factor

    def _hosts(self) -> list[ReplicaHost]:
        """Where new replicas can be."""
        state = self._state
        return [
            ReplicaHost(node, broker.registration.rack, state.preferred_count(node), state.replica_count(node))
            for node, broker in sorted(state.brokers.items())
            if broker.is_online and not broker.is_leaving
        ]

    def _alter_topic(self, asked: AlterTopic, now: Now) -> Done:
        refuse_internal(asked.name)
        topic = self._topic(asked.name)
        explicit = merge(topic.settings, asked.changes, topic=topic.name)
        config = self._check_settings(topic.name, explicit)
        validate_alteration(topic.name, TopicConfig.parse(topic.settings, topic=topic.name), config)
        records: list[Record] = [TopicAltered(topic.id, explicit)]
        for partition in self._state.partitions_of(topic.id):
            after = with_min_insync(partition, min_insync(explicit, len(partition.replicas) - len(partition.adding)))
            if after is not None:
                records.append(after)
        return self._carry_out(records, TopicDecided(topic.id), asked.request_id, now)

    def _delete_topic(self, asked: DeleteTopic, now: Now) -> Done:
        if not asked.is_internal:
            refuse_internal(asked.name)
        topic = self._topic(asked.name)
        return self._carry_out([TopicRemoved(topic.id, now.wall_ns)], TopicDecided(topic.id), asked.request_id, now)

    def _topic(self, name: str) -> TopicAdded:
        topic = self._state.topic_named(name)
        if topic is None:
            raise TopicNotFound(name)
        return topic

    def _check_settings(self, name: str, explicit: dict[str, object]) -> TopicConfig:
        config = TopicConfig.parse(explicit, topic=name)
        validate_dead_letter_topic(name, config, self._config_of)
        return config

    def _config_of(self, name: str) -> TopicConfig | None:
        topic = self._state.topic_named(name)
        return None if topic is None else TopicConfig.parse(topic.settings, topic=name)

    # Nodes and leaders

    def _remove_node(self, asked: RemoveNode, now: Now) -> Done:
        """Move away what can be moved without copying data, and remove the node once nothing is left on it."""
        state, node = self._state, asked.node
        broker = state.broker(node)
        if broker is None:
            raise NotFound(f"node {node}")
        if len(state.brokers) == 1:
            raise Conflict(f"node {node} is the only one of the cluster: stop it instead")
        leave(self._drafts, broker)
        drain(self._drafts, node, limit=CHANGES_MAX)
        left = state.replica_count(node)
        records = [] if left else [BrokerRemoved(node, broker.broker_epoch)]
        return self._carry_out(records, NodeRemoval(left), asked.request_id, now)

    def _elect_leaders(self, asked: ElectLeaders, now: Now) -> Done:
        keys = self._chosen(asked)
        count = improve_leaders(self._drafts, keys, limit=CHANGES_MAX)
        if asked.is_unclean:
            ranked = ranks(self._state.brokers)
            partitions = (self._state.partitions[key] for key in keys)
            chosen = filter(None, (uncleanly(one, ranked, replica=asked.replica) for one in partitions))
            for after in islice(chosen, CHANGES_MAX):
                self._drafts.add((after,))
                count += 1
        return self._carry_out([], LeadersElected(count), asked.request_id, now)

    def _chosen(self, asked: ElectLeaders) -> list[PartitionKey]:
        state = self._state
        if asked.topic is None:
            return list(state.partitions)
        topic = self._topic(asked.topic)
        numbers = range(topic.partition_count) if asked.partitions is None else dict.fromkeys(asked.partitions)
        for number in numbers:
            if number >= topic.partition_count:
                raise PartitionNotFound(topic.name, number)
        return [(topic.id, number) for number in numbers]

    # The rest

    def _take_producer_ids(self, asked: TakeProducerIds) -> Done:
        first = self._state.next_producer_number
        index = self._drafts.add([ProducerIdsTaken(asked.node, first, PRODUCER_IDS)])
        return Done(index, ProducerIdBlock(first, PRODUCER_IDS))

    def _set_feature_level(self, asked: SetFeatureLevel, now: Now) -> Done:
        level, current = asked.level, self._state.feature_level
        if level < current:
            raise Conflict(f"the cluster uses feature level {current}, and cannot go back to {level}")
        behind = [
            node
            for node, broker in sorted(self._state.brokers.items())
            if broker.registration.feature_level_max < level
        ]
        if behind:
            nodes = ", ".join(map(str, behind))
            raise Conflict(f"feature level {level} is not known by nodes {nodes}: update them, or remove them")
        if level > FEATURE_LEVEL:
            raise Conflict(
                f"feature level {level} is not known by this version, which knows {FEATURE_LEVEL}: update it"
            )
        records = [FeatureLevelSet(level)] if level > current else []
        return self._carry_out(records, Carried(), asked.request_id, now)
