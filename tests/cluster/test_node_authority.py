"""What a broker asks of its cluster, answered by the node."""

from typing import Any

import pytest

from goqueue.broker.authority import PartitionRoles
from goqueue.cluster.node_authority import BLOCKS_IN_RESERVE, NodeAuthority
from goqueue.cluster.records import ProducerIdsTaken
from goqueue.cluster.waiting import settled
from goqueue.errors import BrokerUnavailable, Forbidden, MetadataUnavailable, TopicExists, TopicNotFound
from goqueue.runtime.entropy import SeededEntropy
from goqueue.service.pending import Pending
from goqueue.testing.simulated_metadata_log import SimulatedEngine
from tests.cluster.nodes import Machine, passed, until
from tests.cluster.test_node import records_of
from tests.testing.in_virtual_time import in_virtual_time


class Broker:
    """A node with an authority; what the reconciler has carried out is up to the test."""

    def __init__(self) -> None:
        self.engine = SimulatedEngine(SeededEntropy(1))
        self.machine = Machine(self.engine)
        self.carried_out: dict[str, Pending[None]] = {}
        self.is_slow = False
        self.authority: NodeAuthority

    async def start(self) -> NodeAuthority:
        node = await self.machine.online()
        self.authority = NodeAuthority(1, SeededEntropy(2))
        self.authority.attach(node, self.reconciled)
        return self.authority

    def reconciled(self, topic_id: str) -> Pending[None]:
        self.carried_out[topic_id] = pending = Pending[None]()
        if not self.is_slow:
            pending.resolve(None)
        return pending

    def end(self) -> None:
        self.authority.close()
        self.machine.kill()

    async def create(self, name: str = "orders", **more: Any) -> None:
        await settled(self.authority.create_topic(name, partitions=2, replication_factor=1, settings=more))

    async def blocks(self, count: int) -> None:
        await until(lambda: len(records_of(self.engine, ProducerIdsTaken)) == count)
        await passed(0.1)


@in_virtual_time
async def test_topics_are_created_altered_and_deleted_by_the_cluster() -> None:
    broker = Broker()
    authority = await broker.start()
    metadata = broker.machine.node.metadata

    await broker.create(retention="1h")
    topic = metadata.topic_named("orders")
    assert topic is not None
    assert (topic.partition_count, topic.settings) == (2, {"retention": "1h"})
    assert authority.roles(topic.id, 1) == PartitionRoles(1, 1, 0, (1,), (1,), ())
    await settled(authority.alter_topic("orders", {"retention": None}))
    assert metadata.topics[topic.id].settings == {}
    await settled(authority.delete_topic("orders"))

    assert metadata.topic_named("orders") is None
    assert authority.roles(topic.id, 1) is None
    broker.end()


@in_virtual_time
async def test_a_decision_is_done_when_this_node_has_carried_it_out() -> None:
    broker = Broker()
    authority = await broker.start()
    broker.is_slow = True

    created = authority.create_topic("orders", partitions=1, replication_factor=None, settings={})
    await until(lambda: broker.carried_out)
    await passed(60)
    assert not created.is_done
    (carried_out,) = broker.carried_out.values()
    carried_out.resolve(None)
    await passed(0.1)

    created.result()
    broker.end()


@in_virtual_time
async def test_a_refusal_is_the_error_of_the_verb() -> None:
    broker = Broker()
    authority = await broker.start()
    await broker.create()
    await broker.create("__internal")

    with pytest.raises(TopicExists):
        await broker.create()
    with pytest.raises(TopicNotFound):
        await settled(authority.delete_topic("nothing"))
    with pytest.raises(Forbidden):
        await settled(authority.delete_topic("__internal"))

    broker.end()


@in_virtual_time
async def test_without_the_log_nothing_is_decided() -> None:
    broker = Broker()
    await broker.start()
    broker.machine.log.cut()

    with pytest.raises(MetadataUnavailable):
        await broker.create()

    broker.end()


@in_virtual_time
async def test_what_waits_is_failed_at_the_end() -> None:
    broker = Broker()
    authority = await broker.start()
    broker.machine.log.cut()
    created = authority.create_topic("orders", partitions=1, replication_factor=None, settings={})
    await passed(0.1)

    authority.close()
    await passed(0.1)

    assert isinstance(created.error, BrokerUnavailable)
    broker.end()


@in_virtual_time
async def test_addresses_come_from_the_registrations() -> None:
    broker = Broker()
    authority = await broker.start()

    assert authority.address(1) == "host-1:7000"
    assert authority.address(2) == ""
    broker.end()


def takes(authority: NodeAuthority, taken: list[range]) -> bool:
    """Whether there is a block to take; a producer that gets none asks again."""
    try:
        taken.append(authority.take_producer_numbers())
    except MetadataUnavailable:
        return False
    return True


@in_virtual_time
async def test_blocks_of_producer_numbers_are_in_reserve() -> None:
    broker = Broker()
    authority = await broker.start()
    with pytest.raises(MetadataUnavailable):
        authority.take_producer_numbers()

    await broker.blocks(BLOCKS_IN_RESERVE)
    taken = [authority.take_producer_numbers()]
    await broker.blocks(BLOCKS_IN_RESERVE + 1)
    broker.machine.log.cut()
    taken += [authority.take_producer_numbers() for _ in range(BLOCKS_IN_RESERVE)]
    with pytest.raises(MetadataUnavailable):
        authority.take_producer_numbers()
    await passed(60)
    broker.machine.log.heal()
    await until(lambda: takes(authority, taken))

    numbers = [number for part in taken for number in part]
    assert len(set(numbers)) == len(numbers) == sum(len(part) for part in taken) > 0
    broker.end()
