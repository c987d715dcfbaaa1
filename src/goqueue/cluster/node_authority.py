"""What the broker of a node asks of its cluster, answered by the node.

A decision goes to the controller, comes back through the metadata log, and is carried out here by the reconciler: only
then is it done for the broker, and a client that has created a topic can use it. Roles and addresses are looked up in
the applied state.

Numbers for producers are needed at once, and the controller may be away. So they are fetched ahead, in blocks: while
one half is left, the next block is on its way, and an outage of the metadata log stops no producer before that is used.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from typing import Final

from goqueue.broker.authority import PartitionRoles
from goqueue.clock import SECOND
from goqueue.cluster.messages import (
    AlterTopic,
    AnyAdminRequest,
    CreateTopic,
    DeleteTopic,
    ProducerIdBlock,
    TakeProducerIds,
    TopicDecided,
)
from goqueue.cluster.node import ClusterNode
from goqueue.cluster.node_time import NodeTime
from goqueue.cluster.waiting import settled
from goqueue.errors import BrokerUnavailable, GoQueueError, MetadataUnavailable
from goqueue.runtime.entropy import Entropy
from goqueue.service.pending import Pending
from goqueue.service.topics import NO_LEADER
from goqueue.topics.config import is_internal

NUMBERS_TAKEN: Final = 50
"""How many numbers the broker takes at a time."""
FETCH_RETRY_NS: Final = SECOND

_log = logging.getLogger(__name__)


class NodeAuthority:
    """The `Authority` of one node. `reconciled` is `Reconciler.settled`."""

    def __init__(
        self, node: ClusterNode, *, reconciled: Callable[[str], Pending[None]], time: NodeTime, entropy: Entropy
    ) -> None:
        self._node = node
        self._reconciled = reconciled
        self._time = time
        self._entropy = entropy
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._numbers = range(0)
        self._next_numbers = range(0)
        self._block_count = 0
        self._is_fetching = False

    def start(self) -> None:
        """Fetch the first numbers; the node has started."""
        self._fetch_ahead()

    def close(self) -> None:
        """Give up what is not decided yet."""
        for task in list(self._tasks):
            task.cancel()

    # --- topics ------------------------------------------------------------------------------------

    def create_topic(
        self, name: str, *, partitions: int, replication_factor: int | None, settings: Mapping[str, object]
    ) -> Pending[None]:
        """Done when this node has the topic."""
        return self._decide(
            CreateTopic(
                self._request_id(), name, partitions, replication_factor, dict(settings), is_internal=is_internal(name)
            )
        )

    def alter_topic(self, name: str, changes: Mapping[str, object | None]) -> Pending[None]:
        """Done when this node has the new settings."""
        return self._decide(AlterTopic(self._request_id(), name, dict(changes)))

    def delete_topic(self, name: str) -> Pending[None]:
        """Done when this node no longer serves the topic."""
        return self._decide(DeleteTopic(self._request_id(), name))

    def _decide(self, request: AnyAdminRequest) -> Pending[None]:
        done: Pending[None] = Pending()
        self._spawn(self._carry_out(request, done))
        return done

    async def _carry_out(self, request: AnyAdminRequest, done: Pending[None]) -> None:
        try:
            answer = await self._node.decide(request)
            assert isinstance(answer, TopicDecided)
            await settled(self._reconciled(answer.topic_id))
        except asyncio.CancelledError:
            done.fail(BrokerUnavailable("it stops"))
            raise
        except GoQueueError as error:
            done.fail(error)
        else:
            done.resolve(None)

    def _request_id(self) -> str:
        return self._entropy.bytes(16).hex()

    # --- the applied state -------------------------------------------------------------------------

    def roles(self, topic_id: str, partition: int) -> PartitionRoles | None:
        """Who has the partition; None if the metadata does not know it."""
        found = self._node.metadata.partition(topic_id, partition)
        if found is None:
            return None
        leader = NO_LEADER if found.leader is None else found.leader
        return PartitionRoles(leader, found.leader_epoch, found.partition_epoch, found.replicas, found.isr, found.elr)

    def address(self, node: int) -> str:
        """Where clients reach a node; empty if it is not known."""
        broker = self._node.metadata.broker(node)
        return "" if broker is None else broker.registration.addresses.client

    # --- numbers for producers ---------------------------------------------------------------------

    def take_producer_numbers(self) -> range:
        """Numbers for producers that no other node gives. Raises `MetadataUnavailable`."""
        if not self._numbers:
            self._numbers, self._next_numbers = self._next_numbers, range(0)
        taken, self._numbers = self._numbers[:NUMBERS_TAKEN], self._numbers[NUMBERS_TAKEN:]
        self._fetch_ahead()
        if not taken:
            raise MetadataUnavailable("no numbers for producers are left, and the controller gives none")
        return taken

    def _fetch_ahead(self) -> None:
        is_low = not self._next_numbers and 2 * len(self._numbers) <= self._block_count
        if is_low and not self._is_fetching:
            self._is_fetching = True
            self._spawn(self._fetch())

    async def _fetch(self) -> None:
        try:
            while True:
                try:
                    block = await self._node.decide(TakeProducerIds(self._node.identity.node))
                    break
                except GoQueueError as error:
                    if self._node.halted.done():
                        return
                    _log.warning("cannot fetch numbers for producers", extra={"reason": str(error)})
                    await self._time.sleep(FETCH_RETRY_NS)
        finally:
            self._is_fetching = False
        assert isinstance(block, ProducerIdBlock)
        self._next_numbers, self._block_count = range(block.first, block.first + block.count), block.count

    def _spawn(self, work: Coroutine[object, object, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks[task] = None
        task.add_done_callback(lambda done: self._tasks.pop(done, None))
