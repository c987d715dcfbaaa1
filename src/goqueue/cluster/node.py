"""A node of a cluster: it follows the metadata log, lives by heartbeats, and may be the controller.

    metadata log ──> LogFollower ──> LocalCopy ──> Metadata ──> applied(records): the reconciler of the broker
         ▲                                            │
         │                                            ▼
    MetadataWriter <── Controller (here, while elected) <── requests of all nodes, through `Peers` or from this one
         ▲                                            ▲
         └── Takeover <── Candidate (silence)         └── ControllerLink: registration, heartbeats, `decide`

This module puts the parts together. What they decide is in pure classes (`controller.py`, `candidate.py`, ...); here is
only what has to wait: for the log, for a peer, for a time. Every wait is a call of `MetadataLog`, of `Peers` or of
`NodeTime`, so the simulator can hold a node still wherever it stands.

A node halts, with one sentence, when going on could do harm: its log went back, has a record that it does not know or
that contradicts the state, or another process is this node now. `halted` has the error; what serves clients has to stop
then.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from goqueue import events
from goqueue.cluster.formation import NOTHING, OwnData
from goqueue.cluster.link import CallingNode, Peers
from goqueue.cluster.local_copy import LocalCopy
from goqueue.cluster.messages import AnyAdminAnswer, AnyAdminRequest
from goqueue.cluster.metadata_log import MetadataLog
from goqueue.cluster.node_time import NodeTime
from goqueue.cluster.records import BrokerAddresses, Record
from goqueue.cluster.timing import ClusterTiming
from goqueue.errors import GoQueueError
from goqueue.runtime.entropy import Entropy


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeIdentity:
    """What a process says about itself when it becomes a node."""

    node: int
    incarnation: str  # of the process: a new one after every start
    addresses: BrokerAddresses
    version: str
    rack: str = ""


Applied = Callable[[list[Record]], None]


class Node:
    """One node. All calls in one event loop.

    Constructor, next commit:
        Node(identity, log: MetadataLog, peers: Peers, copy: LocalCopy, *, time: NodeTime, entropy: Entropy,
             timing: ClusterTiming, defaults: ClusterDefaults, applied: Applied = ignore, observe=events.ignore,
             own: OwnData = NOTHING, unproven: Callable[[], dict[str, tuple[int, ...]] | None] = none_known,
             snapshots: SnapshotPolicy = SnapshotPolicy())

    `copy` is `LocalCopy.open(disk, directory, node=..., entropy=...)`: without `workers` it writes synchronously, for a
    loop with virtual time. Every object may be used once: after a crash make a new log handle, copy and node, with a
    new incarnation. To crash a node, call `abandon()`: it cancels all tasks and says nothing to anybody.

    Attributes:
        metadata: Metadata               the applied state; the object stays the same one for ever
        controller: Controller | None    while this node is the controller
        halted: asyncio.Future[GoQueueError]   why the node must not go on
        broker_epoch: int | None         of this process, once its registration is applied
        hears_controller: bool
    """

    halted: "asyncio.Future[GoQueueError]"

    async def start(self, *, within_ns: int | None = None) -> None:
        """Check that this is the right log, form or join the cluster, read to the end, and begin to take part.

        Waits for a metadata log that does not answer, for ever unless `within_ns` says how long: then it raises
        `MetadataUnavailable`. Raises `ClusterError` (one sentence) for everything that halts a node.
        """
        raise NotImplementedError

    async def hand_over(self, *, within_ns: int) -> bool:
        """Let others lead what this node leads; whether the controller has said that it may stop."""
        raise NotImplementedError

    async def stop(self, *, controlled: bool) -> None:
        """Stop taking part. With `controlled`, hand over first (unless that was done), and mark the copy as cleanly
        stopped: the logs of the broker have to be closed by then.
        """
        raise NotImplementedError

    def abandon(self) -> None:
        """End everything at once, as a crash does. For simulations."""
        raise NotImplementedError

    async def answer(self, peer: CallingNode, request: bytes) -> bytes:
        """The answer to a request of another node: the `Answerer` of a `PeerServer`."""
        raise NotImplementedError

    def peer_lost(self, node: int, was_refused: bool) -> None:
        """The connection to a node broke, and could not be made again: the `lost` of `PeerLinks`."""
        raise NotImplementedError

    async def decide(self, request: AnyAdminRequest, *, within_ns: int | None = None) -> AnyAdminAnswer:
        """Have the controller carry this out; returns when its effect is applied here.

        Raises the error of the verb, or `MetadataUnavailable` if nobody could decide in time: the same request, with
        the same id, may be tried again.
        """
        raise NotImplementedError

    async def barrier(self) -> None:
        """Return when everything that was in the log at this call is applied here. Raises `MetadataUnavailable`."""
        raise NotImplementedError
