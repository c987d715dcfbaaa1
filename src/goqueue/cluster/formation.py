"""How a node comes to belong to a cluster: it forms one, joins one, or goes on in its own.

    its copy      the shared log    the node
    no cluster    empty             forms a cluster: the first append creates the cluster id, so exactly one node wins
    no cluster    has a cluster     joins it; with topics of its own it refuses
    a cluster     empty             refuses: the log went back (R11)
    a cluster     has its history   goes on
    a cluster     anything else     refuses: it went back, or it is the log of another cluster

A node whose data directory has topics, but no cluster, was alone until now. It forms the cluster with its own topics in
the first entry, under their ids: so nothing of it is lost, and nothing is there twice.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from goqueue.cluster.local_copy import LocalCopy
from goqueue.cluster.log_history import check_history, cluster_of, of_another_cluster
from goqueue.cluster.metadata_log import BATCH_BYTES_MAX, EMPTY, EntryUnknown, MetadataEntry, MetadataLog
from goqueue.cluster.node_identity import NodeIdentity
from goqueue.cluster.records import (
    FEATURE_LEVEL,
    BrokerRegistered,
    ClusterCreated,
    PartitionChanged,
    Record,
    TopicAdded,
    decode_batch,
    encode_batch,
)
from goqueue.cluster.timing import Now
from goqueue.errors import ClusterError, MetadataUnavailable, MetadataWentBack
from goqueue.runtime.entropy import Entropy

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnTopic:
    """A topic of a node that was alone."""

    id: str
    name: str
    created_at_ns: int
    leader_epochs: Sequence[int]  # of its partitions: the highest that their logs have ever had
    settings: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnData:
    """What a node brings into the cluster that it forms."""

    topics: Sequence[OwnTopic] = ()


NOTHING: Final = OwnData()


async def enter(
    log: MetadataLog, copy: LocalCopy, identity: NodeIdentity, *, own: OwnData, entropy: Entropy, now: Now
) -> None:
    """Make the node part of the cluster that the log belongs to; then the copy knows its id.

    Raises `ClusterError` if it cannot be part of it, and `MetadataUnavailable`, after which the same call goes on.
    """
    found = await cluster_of(log)
    if copy.cluster_id:
        await _go_on(log, copy, found)
        return
    if not found:
        if copy.forming is None:
            copy.begin_process(_alone(identity))
            copy.begin_forming(_first_entry(copy, identity, own, entropy, now))
        assert copy.forming is not None
        if isinstance(await log.append(copy.forming), EntryUnknown):
            raise MetadataUnavailable("whether the cluster was formed is not known yet")
        found = await cluster_of(log)
    has_formed = copy.forming is not None and _cluster_in(copy.forming) == found
    if own.topics and not has_formed:
        raise ClusterError(
            f"the metadata log belongs to the cluster {found} already, and this data directory has "
            f"{len(own.topics)} topics of its own, which that cluster does not know: start the node with an empty data "
            f"directory and copy the messages, or give it a metadata log of its own"
        )
    copy.join(found, has_formed=has_formed)
    _log.info("formed a cluster" if has_formed else "joined a cluster", extra={"cluster": found})


async def _go_on(log: MetadataLog, copy: LocalCopy, found: str) -> None:
    if not found:
        raise MetadataWentBack(f"it is empty, and this node belongs to the cluster {copy.cluster_id}")
    is_known = copy.metadata.position == copy.floor
    await check_history(log, copy.floor, copy.cluster_id, copy.metadata.generation if is_known else None)
    if found != copy.cluster_id:  # its history says nothing if nothing was applied yet
        raise of_another_cluster(found, copy.cluster_id)
    if copy.damage:
        _log.warning("the local copy of the metadata is read again", extra={"reason": copy.damage})
        copy.begin_again()


def _alone(identity: NodeIdentity) -> str:
    """What stands for this process in the first entry of a cluster."""
    return f"{identity.incarnation}-alone"


def _cluster_in(entry: MetadataEntry) -> str:
    created = decode_batch(entry.batch)[0]
    assert isinstance(created, ClusterCreated)
    return created.cluster_id


def _first_entry(copy: LocalCopy, identity: NodeIdentity, own: OwnData, entropy: Entropy, now: Now) -> MetadataEntry:
    records: list[Record] = [ClusterCreated(entropy.bytes(16).hex(), FEATURE_LEVEL, now.wall_ns)]
    if own.topics:
        records += _adopted(copy, identity, own, now)
    batch = encode_batch(records)
    if len(batch) > BATCH_BYTES_MAX:
        raise ClusterError(
            f"this node has {sum(len(topic.leader_epochs) for topic in own.topics)} partitions, more than fit into the "
            f"first entry of a cluster: delete topics that are not needed any more"
        )
    return MetadataEntry(EMPTY.index + 1, entropy.bytes(16), EMPTY.id, 0, identity.node, batch)


def _adopted(copy: LocalCopy, identity: NodeIdentity, own: OwnData, now: Now) -> Iterator[Record]:
    """The node with all that it has. It is fenced until it registers; then it is chosen as the leader of everything,
    because it is the one eligible replica, under an epoch that its logs have never had.
    """
    node = identity.node
    yield BrokerRegistered(
        node=node,
        incarnation=_alone(identity),  # it registers by itself, once it listens for others
        directories=(copy.directory_id,),
        addresses=identity.addresses,
        version=identity.version,
        feature_level_max=FEATURE_LEVEL,
        registered_at_ns=now.wall_ns,
        rack=identity.rack,
    )
    for topic in own.topics:
        yield TopicAdded(topic.id, topic.name, topic.created_at_ns, len(topic.leader_epochs), dict(topic.settings))
        for number, leader_epoch in enumerate(topic.leader_epochs):
            yield PartitionChanged(
                topic_id=topic.id,
                partition=number,
                replicas=(node,),
                leader=None,
                leader_epoch=max(1, leader_epoch),
                partition_epoch=0,
                isr=(),
                elr=(node,),
            )
