"""What an operator does with a metadata log while no node runs: move it to another place, or rebuild it.

Moving. The state at the end of the old log becomes the only snapshot of the new one, at the same position; so entries
go on with the same numbers, and each node finds what it has applied covered by the snapshot (R11). Then the old log is
sealed, with an entry that names the new place. The order makes every crash harmless: until the log is sealed, nodes
that are started go on with the old one, and the command is run again. The seal is appended after the entry at which the
state was read, so it is lost if a controller wrote in between, and then nothing has happened. A node that is started
with the old log stops at the seal, and does not keep it.

Recovering. A log that lost entries is replaced by what the most advanced node has in its local copy, and `Recovered` on
top of it, in one step: a crash leaves the old log or the recovered one. `Recovered` takes the role of every leader, and
raises all epochs above any that was heard of, since decisions are lost that other nodes may have acted on. A node that
had applied more than was recovered refuses to start, for good: its state has the index of each recovery.
"""

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from goqueue.cluster.local_copy import LocalCopy
from goqueue.cluster.log_history import check_history, cluster_of, decode_snapshot
from goqueue.cluster.metadata import Metadata
from goqueue.cluster.metadata_log import (
    EMPTY,
    EntryAppended,
    EntryLost,
    MetadataEntry,
    MetadataLog,
    MetadataPosition,
    MetadataSnapshot,
)
from goqueue.cluster.records import ControllerElected, LogSealed, Recovered, encode_batch
from goqueue.errors import (
    ClusterError,
    MetadataContradiction,
    MetadataDamaged,
    MetadataTrimmed,
    MetadataUnavailable,
    MetadataWentBack,
)
from goqueue.runtime.entropy import Entropy

PAGE: Final = 1_000
ID_BYTES: Final = 16
CONNECT_S: Final = 1.0
SEAL_ATTEMPTS: Final = 5
_OPERATOR: Final = "operator"
"""The incarnation that seals a log: no process of a node."""


# --- both -------------------------------------------------------------------------------------------


class LogState(NamedTuple):
    """What a log says: the state at its end, before the seal if it has one."""

    metadata: Metadata
    sealed_to: str | None


class RunningNode(NamedTuple):
    """A node that something answers for."""

    node: int
    address: str


async def read_state(log: MetadataLog) -> LogState:
    """Apply the whole log. Raises `MetadataDamaged` and what else halts a node."""
    snapshot = await log.load_snapshot()
    metadata = Metadata() if snapshot is None else decode_snapshot(snapshot, "")
    while True:
        try:
            entries = await log.read(metadata.position.index + 1, PAGE)
        except MetadataTrimmed:
            raise MetadataDamaged("its entries are gone, and no snapshot covers them") from None
        for entry in entries:
            if entry.after != metadata.position:
                raise MetadataDamaged(f"entry {entry.index} does not follow the one before it")
            sealed_to = metadata.sealed_by(entry)
            if sealed_to is not None:
                return LogState(metadata, sealed_to)
            metadata.apply(entry)
        if not entries:
            break
    tail = await log.tail()
    if tail.index < metadata.position.index:
        raise MetadataDamaged(f"it ends at entry {tail.index}, before its snapshot at {metadata.position.index}")
    return LogState(metadata, None)


async def running_nodes(metadata: Metadata) -> list[RunningNode]:
    """The registered nodes at whose addresses something listens."""
    asked = [RunningNode(node, address) for node, address in _addresses(metadata)]
    listens = await asyncio.gather(*(_listens(each.address) for each in asked))
    return [each for each, is_there in zip(asked, listens, strict=True) if is_there]


def _addresses(metadata: Metadata) -> Iterator[tuple[int, str]]:
    for node, broker in sorted(metadata.brokers.items()):
        addresses = broker.registration.addresses
        for address in dict.fromkeys((addresses.peer, addresses.client)):
            if address:
                yield node, address


async def _listens(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        async with asyncio.timeout(CONNECT_S):
            _, writer = await asyncio.open_connection(host.strip("[]"), int(port))
    except (OSError, TimeoutError, ValueError):
        return False
    writer.transport.abort()
    return True


# --- moving -----------------------------------------------------------------------------------------


class LogMove(NamedTuple):
    """What became of a move."""

    metadata: Metadata
    was_done: bool  # before


async def move_log(source: MetadataLog, target: MetadataLog, *, moved_to: str, entropy: Entropy) -> LogMove:
    """Let the log go on in `target`, which others find as `moved_to`. May be repeated after any error or crash.

    Raises `ClusterError` if it cannot be moved, or if somebody writes to it meanwhile.
    """
    metadata, sealed_to = await read_state(source)
    if not metadata.is_formed:
        raise ClusterError(
            "the metadata log to move is empty: start the nodes with the new one, and they form it there"
        )
    if sealed_to is not None:
        await _check_moved(target, metadata, sealed_to, moved_to)
        return LogMove(metadata, was_done=True)
    await _check_may_be_replaced(source, target, metadata, moved_to)
    await target.replace(MetadataSnapshot(metadata.position, metadata.encode()))
    await _seal(source, metadata, moved_to, entropy)
    return LogMove(metadata, was_done=False)


async def _check_moved(target: MetadataLog, metadata: Metadata, sealed_to: str, moved_to: str) -> None:
    if sealed_to != moved_to:
        raise ClusterError(f"this metadata log was moved to {sealed_to} already: move it on from there")
    found = await cluster_of(target)
    if not found:
        raise ClusterError(
            f"this metadata log was moved to {moved_to} before, and nothing is there any more: rebuild it with "
            f"`goqueue cluster recover`"
        )
    if found != metadata.cluster_id:
        raise _not_empty(moved_to)


async def _check_may_be_replaced(source: MetadataLog, target: MetadataLog, metadata: Metadata, moved_to: str) -> None:
    """The target is empty, or has what a move left that was interrupted: a snapshot of the source, and nothing after
    it.
    """
    tail, snapshot = await target.tail(), await target.load_snapshot()
    if tail == EMPTY and snapshot is None:
        return
    if snapshot is None or snapshot.position != tail or tail.index > metadata.position.index:
        raise _not_empty(moved_to)
    if decode_snapshot(snapshot, "").cluster_id != metadata.cluster_id:
        raise _not_empty(moved_to)
    try:
        await check_history(source, tail, metadata.cluster_id)
    except MetadataWentBack:
        raise _not_empty(moved_to) from None


def _not_empty(moved_to: str) -> ClusterError:
    return ClusterError(f"there is a metadata log at {moved_to} already: choose a place that is empty")


async def _seal(source: MetadataLog, metadata: Metadata, moved_to: str, entropy: Entropy) -> None:
    epoch = metadata.epoch + 1
    node = _any_node(metadata)
    batch = encode_batch([ControllerElected(epoch, node, _OPERATOR), LogSealed(moved_to)])
    position = metadata.position
    entry = MetadataEntry(position.index + 1, entropy.bytes(ID_BYTES), position.id, epoch, node, batch)
    for _ in range(SEAL_ATTEMPTS):
        match await source.append(entry):
            case EntryAppended():
                return
            case EntryLost():
                raise ClusterError(
                    "a controller writes to the metadata log while it is moved; nothing has changed: stop all nodes, "
                    "and run the command again"
                )
    raise MetadataUnavailable("whether the old metadata log is sealed is not known: run the command again")


def _any_node(metadata: Metadata) -> int:
    return metadata.controller if metadata.controller is not None else min(metadata.brokers, default=0)


# --- recovering -------------------------------------------------------------------------------------


class FoundCopy(NamedTuple):
    """The local copy in a data directory."""

    directory: str
    copy: LocalCopy

    @property
    def progress(self) -> tuple[int, int, int]:
        """Which of two copies knows more: a later recovery, a later controller, or more of its decisions."""
        metadata = self.copy.metadata
        return metadata.generation, metadata.epoch, metadata.position.index


class Recovery(NamedTuple):
    """What a recovery does. `recover_log` does it."""

    best: FoundCopy
    copies: Sequence[FoundCopy]
    log: str
    """What the log is now, in words."""
    recovered: Metadata
    """The state that the log will have."""
    epoch_floor: int


async def plan_recovery(log: MetadataLog, copies: Sequence[FoundCopy], *, entropy: Entropy) -> Recovery:
    """What there is to recover, and from which copy. Raises `ClusterError` if there is nothing, or if it cannot be."""
    cluster_id = _one_cluster(copies)
    whole = [found for found in copies if not found.copy.damage and found.copy.metadata.is_formed]
    if not whole:
        damages = "; ".join(f"{found.directory}: {found.copy.damage or 'it has applied nothing'}" for found in copies)
        raise ClusterError(f"none of these copies of the metadata can be used: {damages}")
    best = max(whole, key=lambda found: found.progress)
    known, words = await _known_log(log, cluster_id)
    if known is not None:
        await _check_is_needed(log, copies, best, known)
    states = [found.copy.metadata for found in whole] + ([] if known is None else [known])
    epoch_floor = max(
        *(found.copy.leader_epoch for found in copies),
        *(state.epoch for state in states),
        *_leader_epochs(states),
    )
    return Recovery(best, copies, words, _recovered(best, epoch_floor, entropy), epoch_floor)


async def recover_log(log: MetadataLog, recovery: Recovery) -> None:
    """Replace the log by the recovered state."""
    state = recovery.recovered
    await log.replace(MetadataSnapshot(state.position, state.encode()))


def _one_cluster(copies: Sequence[FoundCopy]) -> str:
    by_cluster: dict[str, str] = {}
    for found in copies:
        by_cluster.setdefault(found.copy.cluster_id, found.directory)
    if len(by_cluster) > 1:
        of = ", ".join(f"{directory} of {cluster}" for cluster, directory in by_cluster.items())
        raise ClusterError(f"these data directories are of different clusters: {of}")
    (cluster_id,) = by_cluster
    return cluster_id


async def _known_log(log: MetadataLog, cluster_id: str) -> tuple[Metadata | None, str]:
    """The state of the log, and what to say of it; None if it is empty or damaged."""
    try:
        found = await cluster_of(log)
        if found and found != cluster_id:
            raise ClusterError(
                f"this metadata log belongs to the cluster {found}, the data directories to the cluster {cluster_id}: "
                f"check the address of the metadata log"
            )
        if not found:
            return None, "empty"
        state, sealed_to = await read_state(log)
    except (MetadataDamaged, MetadataContradiction) as error:
        return None, str(error)
    if sealed_to is not None:
        raise ClusterError(f"this metadata log was moved to {sealed_to}: recover that one")
    return state, f"ends at entry {state.position.index}, epoch {state.epoch}"


async def _check_is_needed(log: MetadataLog, copies: Sequence[FoundCopy], best: FoundCopy, known: Metadata) -> None:
    if known.generation > best.copy.metadata.generation:
        raise ClusterError(
            f"this metadata log was recovered already, at entry {known.recoveries[-1]}, and {best.directory} was not "
            f"there: start its node with an empty data directory"
        )
    missing = [found for found in copies if not await _has(log, found.copy.floor, known.cluster_id)]
    if best in missing:
        return
    if missing:
        others = " and ".join(found.directory for found in missing)
        raise ClusterError(
            f"the metadata log has everything that node {best.copy.node} has applied, the most advanced one; {others} "
            f"went another way: start its node with an empty data directory, or recover from it alone"
        )
    raise ClusterError(
        f"nothing has to be recovered: the metadata log, which ends at entry {known.position.index}, has everything "
        f"that these nodes have applied"
    )


async def _has(log: MetadataLog, position: MetadataPosition, cluster_id: str) -> bool:
    try:
        await check_history(log, position, cluster_id)
    except MetadataWentBack:
        return False
    return True


def _leader_epochs(states: Iterable[Metadata]) -> Iterator[int]:
    for state in states:
        for partition in state.partitions.values():
            yield partition.leader_epoch


def _recovered(best: FoundCopy, epoch_floor: int, entropy: Entropy) -> Metadata:
    state = best.copy.metadata.copy()
    position = state.position
    batch = encode_batch([Recovered(state.generation + 1, epoch_floor)])
    node = _any_node(state)
    entry = MetadataEntry(position.index + 1, entropy.bytes(ID_BYTES), position.id, state.epoch, node, batch)
    records = state.apply(entry)
    assert records, "an entry that recovers takes effect in every state"
    return state
