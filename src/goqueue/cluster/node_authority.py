"""The cluster, as the broker of a node asks it: the controller decides; the answer comes when this node has done it.

What is decided reaches this node through the metadata log, like every other node, and its reconciler carries it out. So
a verb that creates, alters or deletes a topic has three waits: for the controller, for the log, for the disk.

Numbers for producers are taken in blocks, ahead of their use, because a producer that begins waits for nobody: there is
always a block in reserve. While the metadata log is away, that is what new producers live on.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, Protocol

from goqueue.broker.authority import PartitionRoles
from goqueue.cluster.messages import (
    AlterTopic,
    AnyAdminAnswer,
    AnyAdminRequest,
    CreateTopic,
    DeleteTopic,
    ProducerIdBlock,
    TakeProducerIds,
    TopicDecided,
)
from goqueue.cluster.metadata import Metadata
from goqueue.errors import BrokerUnavailable, GoQueueError, MetadataUnavailable
from goqueue.runtime.entropy import Entropy
from goqueue.service.pending import Pending, chained
from goqueue.service.topics import NO_LEADER
from goqueue.topics.config import is_internal

REQUEST_ID_BYTES: Final = 16
BLOCKS_IN_RESERVE: Final = 2


class DecidingNode(Protocol):
    """The node, as far as it is needed here."""

    @property
    def metadata(self) -> Metadata: ...

    async def decide(self, request: AnyAdminRequest) -> AnyAdminAnswer: ...


class NodeAuthority:
    """The `Authority` of the broker of one node. `attach` comes before the first use."""

    _metadata: Metadata
    _ask: Callable[[AnyAdminRequest], Awaitable[AnyAdminAnswer]]
    _when_done: Callable[[str], Pending[None]]

    def __init__(self, node: int, entropy: Entropy) -> None:
        self._node = node
        self._entropy = entropy
        self._blocks: deque[range] = deque()
        self._taking: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def attach(self, node: DecidingNode, when_done: Callable[[str], Pending[None]]) -> None:
        """The node decides; `when_done` says when a topic is here what it should be."""
        self._metadata = node.metadata
        self._ask = node.decide
        self._when_done = when_done

    # --- topics --------------------------------------------------------------------------------

    def create_topic(
        self, name: str, *, partitions: int, replication_factor: int | None, settings: Mapping[str, object]
    ) -> Pending[None]:
        """Done when this node has the topic."""
        request = CreateTopic(
            self._new_id(),
            name,
            partitions=partitions,
            replication_factor=replication_factor,
            settings=dict(settings),
            is_internal=is_internal(name),
        )
        return self._carried_out(request)

    def alter_topic(self, name: str, changes: Mapping[str, object | None]) -> Pending[None]:
        """Done when this node has the new settings."""
        return self._carried_out(AlterTopic(self._new_id(), name, dict(changes)))

    def delete_topic(self, name: str) -> Pending[None]:
        """Done when this node no longer serves the topic."""
        return self._carried_out(DeleteTopic(self._new_id(), name))

    def _carried_out(self, request: AnyAdminRequest) -> Pending[None]:
        def decided(answer: AnyAdminAnswer) -> Pending[None]:
            assert isinstance(answer, TopicDecided), answer
            return self._when_done(answer.topic_id)

        return chained(self.decide(request), decided)

    def decide(self, request: AnyAdminRequest) -> Pending[AnyAdminAnswer]:
        """Have the controller carry this out; done when this node has applied the decision."""
        answered: Pending[AnyAdminAnswer] = Pending()

        async def ask() -> None:
            try:
                answered.resolve(await self._ask(request))
            except GoQueueError as error:
                answered.fail(error)
            except asyncio.CancelledError:
                answered.fail(BrokerUnavailable("this node stops"))
                raise

        task = asyncio.get_running_loop().create_task(ask())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return answered

    def close(self) -> None:
        """The node stops: what waits fails."""
        for task in list(self._tasks):
            task.cancel()

    def _new_id(self) -> str:
        return self._entropy.bytes(REQUEST_ID_BYTES).hex()

    # --- what is known here ----------------------------------------------------------------------

    def roles(self, topic_id: str, partition: int) -> PartitionRoles | None:
        """Who has the partition, as far as this node has applied it."""
        found = self._metadata.partition(topic_id, partition)
        if found is None:
            return None
        leader = NO_LEADER if found.leader is None else found.leader
        return PartitionRoles(leader, found.leader_epoch, found.partition_epoch, found.replicas, found.isr, found.elr)

    def address(self, node: int) -> str:
        """Where clients reach a node."""
        broker = self._metadata.broker(node)
        return "" if broker is None else broker.registration.addresses.client

    # --- numbers for producers -------------------------------------------------------------------

    def take_producer_numbers(self) -> range:
        """A block in reserve. Raises `MetadataUnavailable` if none is left."""
        if not self._blocks:
            self.reserve()
            raise MetadataUnavailable("the controller has given no producer ids yet")
        block = self._blocks.popleft()
        self.reserve()
        return block

    def reserve(self) -> None:
        """Have blocks in reserve."""
        if self._taking is None and len(self._blocks) < BLOCKS_IN_RESERVE:
            self._taking = asyncio.get_running_loop().create_task(self._take())
            self._tasks.add(self._taking)
            self._taking.add_done_callback(self._taken)

    async def _take(self) -> None:
        while len(self._blocks) < BLOCKS_IN_RESERVE:
            try:
                block = await self._ask(TakeProducerIds(self._node))
            except MetadataUnavailable:
                return  # the next producer tries again
            assert isinstance(block, ProducerIdBlock), block
            self._blocks.append(range(block.first, block.first + block.count))

    def _taken(self, task: "asyncio.Task[None]") -> None:
        self._taking = None
        self._tasks.discard(task)
