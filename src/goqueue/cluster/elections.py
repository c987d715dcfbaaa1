"""Who leads a partition, and who may: what becomes of leader, ISR and ELR when brokers come and go.

    leave the ISR                    while |ISR| < min.insync: eligible (ELR), because nothing commits without them
    |ISR| reaches min.insync         nobody is eligible any more: from now on records commit that those lack
    the leader is gone               the best of the ISR leads, else the best of the ELR, else nobody
    eligible broker comes back       leads what nobody leads
    lost its disk, or records on it  not eligible, and not in sync: never a leader, unless an operator says so

"The best" is by rank, then by the order of the replicas, whose first is the preferred leader. A broker that is leaving
the cluster, or about to stop, leads only what no other can. A fenced one has no rank.

These functions return the next record of a partition, and None where there is nothing to change. They change nothing.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from goqueue.cluster.metadata import BrokerState, Metadata
from goqueue.cluster.records import BrokerStatus, PartitionChanged, PartitionKey

_BEST: Final = 0
_LEAVING: Final = 1
_STOPPING: Final = 2

Ranks = Mapping[int, int]
"""Of the brokers that may lead, by node; a lower one leads rather."""


def ranks(brokers: Mapping[int, BrokerState]) -> Ranks:
    """How the brokers rank as leaders."""
    return {node: _rank(broker) for node, broker in brokers.items() if not broker.is_fenced}


def without_broker(state: Metadata, node: int) -> Iterator[PartitionChanged]:
    """All partitions that the node is in sync with, after it is gone."""
    ranked = {other: rank for other, rank in ranks(state.brokers).items() if other != node}
    for partition in _partitions(state, state.replicas_on(node)):
        if node in partition.isr:
            yield _departed(partition, node, ranked, state.min_insync(partition))


def revived(state: Metadata, node: int) -> Iterator[PartitionChanged]:
    """The partitions without a leader that the node, which is online now, can lead."""
    ranked = ranks(state.brokers)
    for partition in _partitions(state, state.replicas_on(node)):
        if partition.leader is None and (node in partition.elr or node in partition.isr):
            leader, isr = _choice(partition.replicas, partition.isr, partition.elr, ranked)
            if leader is not None:
                yield _next(partition, leader=leader, isr=isr, min_insync=state.min_insync(partition))


def with_better_leader(state: Metadata, partition: PartitionChanged, ranked: Ranks) -> PartitionChanged | None:
    """The partition led by its preferred leader, or away from a broker that should lead only what no other can."""
    if partition.leader is None:
        return None
    best = _best(partition.replicas, partition.isr, ranked)
    if best is None or best == partition.leader:
        return None
    if best != partition.replicas[0] and ranked[best] >= ranked[partition.leader]:
        return None
    return _next(partition, leader=best, isr=partition.isr, min_insync=state.min_insync(partition))


def with_isr(state: Metadata, partition: PartitionChanged, isr: Iterable[int]) -> PartitionChanged:
    """The partition with the ISR that its leader has asked for."""
    members = set(isr)
    assert partition.leader in members
    ordered = tuple(node for node in partition.replicas if node in members)
    return _next(partition, leader=partition.leader, isr=ordered, min_insync=state.min_insync(partition))


def without_eligible(partition: PartitionChanged, node: int) -> PartitionChanged:
    """The partition after the node has lost what made it eligible."""
    return _next(partition, leader=partition.leader, isr=partition.isr, elr=_less(partition.elr, node))


def with_min_insync(partition: PartitionChanged, min_insync: int) -> PartitionChanged | None:
    """The partition after its minimum of replicas in sync has changed.

    With a lower one, records may commit that the eligible replicas lack.
    """
    if not partition.elr or len(partition.isr) < min_insync:
        return None
    return _next(partition, leader=partition.leader, isr=partition.isr, elr=())


def without_replica(state: Metadata, partition: PartitionChanged, node: int, ranked: Ranks) -> PartitionChanged | None:
    """The partition without its replica on this node, if enough others are in sync that no commit depends on it."""
    isr = _less(partition.isr, node)
    min_insync = state.min_insync(partition)
    if len(partition.replicas) == 1 or not isr or len(isr) < min_insync:
        return None
    leader = partition.leader
    if leader is None or leader == node:
        leader = _best(partition.replicas, isr, ranked)
        if leader is None:
            return None
    return _next(
        partition, leader=leader, isr=isr, min_insync=min_insync, replicas=_less(partition.replicas, node), without=node
    )


def uncleanly(partition: PartitionChanged, ranked: Ranks, *, replica: int | None = None) -> PartitionChanged | None:
    """The partition led by that replica, or by any that is online, because an operator says so; the others follow it.

    None if it has a leader, or if no such replica is online.
    """
    if partition.leader is not None or (replica is not None and replica not in partition.replicas):
        return None
    leader = _best(partition.replicas, partition.replicas if replica is None else (replica,), ranked)
    if leader is None:
        return None
    return _next(partition, leader=leader, isr=(leader,), elr=(), is_unclean=True)


def _rank(broker: BrokerState) -> int:
    if broker.status is BrokerStatus.STOPPING:
        return _STOPPING
    return _LEAVING if broker.is_leaving else _BEST


def _partitions(state: Metadata, keys: Iterable[PartitionKey]) -> Iterator[PartitionChanged]:
    """The partitions, which may change meanwhile."""
    for key in list(keys):
        yield state.partitions[key]


def _best(replicas: Sequence[int], candidates: Sequence[int], ranked: Ranks) -> int | None:
    """Replicas are in the order of preference; `min` takes the first of equals."""
    able = [node for node in replicas if node in candidates and node in ranked]
    return min(able, key=ranked.__getitem__, default=None)


def _choice(
    replicas: Sequence[int], isr: tuple[int, ...], elr: tuple[int, ...], ranked: Ranks
) -> tuple[int | None, tuple[int, ...]]:
    """The new leader, and the ISR that it begins with."""
    leader = _best(replicas, isr, ranked)
    if leader is not None:
        return leader, isr
    leader = _best(replicas, elr, ranked)
    return (None, isr) if leader is None else (leader, (leader,))


def _departed(partition: PartitionChanged, node: int, ranked: Ranks, min_insync: int) -> PartitionChanged:
    leader, isr = partition.leader, _less(partition.isr, node)
    if leader == node:
        leader, isr = _choice(partition.replicas, isr, partition.elr, ranked)
    return _next(partition, leader=leader, isr=isr, min_insync=min_insync)


def _next(
    before: PartitionChanged,
    *,
    leader: int | None,
    isr: tuple[int, ...],
    min_insync: int = 0,
    elr: tuple[int, ...] | None = None,
    replicas: tuple[int, ...] | None = None,
    without: int | None = None,
    is_unclean: bool = False,
) -> PartitionChanged:
    """The record after `before`; who is eligible follows from `min_insync` if it is not said."""
    if replicas is None:
        replicas = before.replicas
    if elr is None:
        elr = ()
        if len(isr) < min_insync:
            elr = tuple(node for node in replicas if node not in isr and (node in before.isr or node in before.elr))
    return PartitionChanged(
        topic_id=before.topic_id,
        partition=before.partition,
        replicas=replicas,
        leader=leader,
        leader_epoch=before.leader_epoch + (leader != before.leader),
        partition_epoch=before.partition_epoch + 1,
        isr=isr,
        elr=elr,
        adding=before.adding if without is None else _less(before.adding, without),
        removing=before.removing if without is None else _less(before.removing, without),
        is_unclean=is_unclean,
    )


def _less(nodes: tuple[int, ...], node: int) -> tuple[int, ...]:
    return tuple(other for other in nodes if other != node)
