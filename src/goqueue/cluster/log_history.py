"""Whether a metadata log is the one that a node knows (R11): it has the entry that the node has applied last, or a
snapshot that covers it.

Anything else halts the node. Members of an engine that were restored from a backup, or re-created with empty disks,
form a log that looks healthy; a node that went on with it would take roles that were given to others meanwhile.
"""

from typing import Final

from goqueue.cluster.metadata import Metadata
from goqueue.cluster.metadata_log import EMPTY, MetadataLog, MetadataPosition, MetadataSnapshot
from goqueue.cluster.records import ClusterCreated, decode_batch
from goqueue.errors import ClusterError, MetadataDamaged, MetadataTrimmed, MetadataWentBack

ATTEMPTS: Final = 10
"""How often a snapshot may be trimmed away, between two calls."""


async def check_history(
    log: MetadataLog, applied: MetadataPosition, cluster_id: str, generation: int | None = None
) -> None:
    """Raise `MetadataWentBack` unless the log has this position in its history, and `ClusterError` if it is the log of
    another cluster. `generation` is that of the state at the position, if it is known.
    """
    if applied == EMPTY:
        return
    try:
        entries = await log.read(applied.index, 1)
    except MetadataTrimmed:
        await _check_snapshot(log, applied, cluster_id, generation)
        return
    if entries and entries[0].id == applied.id:
        return
    found = await cluster_of(log)
    if cluster_id and found and found != cluster_id:
        raise of_another_cluster(found, cluster_id)
    raise MetadataWentBack(
        f"it has another entry {applied.index} than this node has applied"
        if entries
        else f"it ends before entry {applied.index}, which this node has applied"
    )


async def _check_snapshot(log: MetadataLog, applied: MetadataPosition, cluster_id: str, generation: int | None) -> None:
    snapshot = await log.load_snapshot()
    if snapshot is None or snapshot.position.index < applied.index:
        raise MetadataWentBack(f"neither its entries nor its snapshot have entry {applied.index}")
    if snapshot.position.index == applied.index and snapshot.position.id != applied.id:
        raise MetadataWentBack(f"its snapshot has another entry {applied.index} than this node has applied")
    state = decode_snapshot(snapshot, cluster_id)
    since = () if generation is None else state.recoveries[generation:]
    if since and applied.index >= since[0]:
        raise MetadataWentBack(
            f"it was recovered at entry {since[0]}, from a node that had applied less than this one, which is at entry "
            f"{applied.index}: start this node with an empty data directory"
        )


def decode_snapshot(snapshot: MetadataSnapshot, cluster_id: str) -> Metadata:
    """The state. Raises `ClusterError` if it is of another cluster, unless `cluster_id` is empty."""
    state = Metadata.decode(snapshot.state)
    if state.position != snapshot.position:
        raise MetadataDamaged(f"the snapshot at {snapshot.position.index} has the state of {state.position.index}")
    if cluster_id and state.cluster_id != cluster_id:
        raise of_another_cluster(state.cluster_id, cluster_id)
    return state


async def cluster_of(log: MetadataLog) -> str:
    """The id of the cluster that the log belongs to; empty if the log is empty."""
    for _ in range(ATTEMPTS):
        try:
            entries = await log.read(1, 1)
        except MetadataTrimmed:
            snapshot = await log.load_snapshot()
            if snapshot is not None:
                return Metadata.decode(snapshot.state).cluster_id
            continue
        if not entries:
            return ""
        first = decode_batch(entries[0].batch)[:1]
        if first and isinstance(first[0], ClusterCreated):
            return first[0].cluster_id
        break
    raise MetadataDamaged("it does not begin with the creation of a cluster")


def moved(to: str) -> ClusterError:
    """The error of a node that finds the log sealed."""
    return ClusterError(f"this metadata log was moved to {to}: start the node with --metadata {to}")


def of_another_cluster(found: str, own: str) -> ClusterError:
    """The error of a node that finds the log of another cluster."""
    return ClusterError(
        f"the metadata log belongs to the cluster {found}, this node to the cluster {own}: check the address of the "
        f"metadata log, or start the node with an empty data directory"
    )
