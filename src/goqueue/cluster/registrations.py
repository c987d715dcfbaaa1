"""Who may be a node, and for which replicas of the node the new process can vouch.

A node is one process at a time, on disks that know each other. So a process is refused while the last one may still
live, if its disk is known as another node's (a clone), or if it comes without the disk that the replicas of the node
are on. An operator may say that the old disk is gone: then the process is accepted, and no replica of the node is
eligible to lead any more (P9).

After a clean stop the replicas are what they were. After anything else, those that may have lost records are not
eligible any more (I5). But for a replica that is the only one of its partition: what it lost is lost, whoever leads.
"""

from collections.abc import Iterator

from goqueue.cluster.elections import without_eligible
from goqueue.cluster.messages import RefusalReason, Refused, Register
from goqueue.cluster.metadata import BrokerState, Metadata
from goqueue.cluster.records import BrokerRegistered, PartitionChanged


def refusal(state: Metadata, asked: Register, *, may_live: bool) -> Refused | None:
    """Why the process cannot be the node, if it cannot. `may_live`: so may the process that is the node now."""
    reason, text = _refusal(state, asked, may_live) or (None, "")
    return None if reason is None else Refused(reason, text, state.epoch)


def registration(asked: Register, *, at_ns: int) -> BrokerRegistered:
    """The record that makes the process the node."""
    return BrokerRegistered(
        node=asked.node,
        incarnation=asked.incarnation,
        directories=asked.directories,
        addresses=asked.addresses,
        version=asked.version,
        feature_level_max=asked.feature_level_max,
        registered_at_ns=at_ns,
        rack=asked.rack,
    )


def disqualified(state: Metadata, asked: Register) -> Iterator[PartitionChanged]:
    """The partitions that the node could lead before, and cannot any more. It is fenced, so it is in no ISR."""
    before = state.broker(asked.node)
    if before is None:
        return
    has_disk = _has_disk(before, asked)
    if has_disk and asked.last_clean_epoch == before.broker_epoch:
        return
    for topic_id, number in list(state.replicas_on(asked.node)):
        partition = state.partitions[topic_id, number]
        if asked.node in partition.elr:
            is_unproven = asked.unproven is None or number in asked.unproven.get(topic_id, ())
            if not has_disk or (is_unproven and len(partition.replicas) > 1):
                yield without_eligible(partition, asked.node)


def _has_disk(before: BrokerState, asked: Register) -> bool:
    """Whether the process has all data directories that the node had: which replica was on which one is not known."""
    return set(before.registration.directories) <= set(asked.directories)


def _refusal(state: Metadata, asked: Register, may_live: bool) -> tuple[RefusalReason, str] | None:
    level = state.feature_level
    if asked.feature_level_max < level:
        known = asked.feature_level_max
        text = f"the cluster uses feature level {level}, and this version knows {known}: update this node"
        return RefusalReason.TOO_OLD, text
    if asked.feature_level_min > level:
        text = (
            f"the cluster uses feature level {level}, and this version needs {asked.feature_level_min}: "
            "update the other nodes, then raise the feature level of the cluster"
        )
        return RefusalReason.TOO_NEW, text
    for other, broker in sorted(state.brokers.items()):
        shared = set(asked.directories) & set(broker.registration.directories)
        if other != asked.node and shared:
            text = (
                f"the data directory {min(shared)} belongs to node {other}: start it as node {other}; "
                "if it is a copy, give this node an empty data directory"
            )
            return RefusalReason.DIRECTORY_TAKEN, text
    before = state.broker(asked.node)
    if may_live:
        where = f" at {before.registration.addresses.peer}" if before else ""
        text = (
            f"node {asked.node} is another process{where}, which may still be alive: "
            "give this node an id of its own, or stop that process"
        )
        return RefusalReason.NODE_ID_TAKEN, text
    if before is not None and not _has_disk(before, asked) and not asked.is_disk_replaced:
        count = state.replica_count(asked.node)
        if count:
            text = (
                f"node {asked.node} has {count} partitions on another data directory: start it with that one; if it is "
                "lost, start it once with --disk-replaced, or give this node another id"
            )
            return RefusalReason.DISK_MISSING, text
    return None
