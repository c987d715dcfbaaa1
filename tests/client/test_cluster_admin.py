"""`gq.cluster`: what a broker says of its cluster, and what can be decided there."""

import asyncio
import inspect

import pytest

from goqueue import (
    AsyncClient,
    AsyncClusterAdmin,
    Client,
    ClusterAdmin,
    ClusterState,
    Conflict,
    InvalidRequest,
    NotFound,
    TopicNotFound,
)


def test_a_broker_that_is_alone_answers_with_itself(gq: Client, address: str) -> None:
    state = gq.cluster.state()

    assert isinstance(state, ClusterState)
    assert (state.controller_id, state.cluster_id, state.metadata.kind) == (0, "", "file")
    assert [(node.id, node.client_address, node.status) for node in gq.cluster.nodes()] == [(0, address, "online")]
    assert gq.cluster.health().status == "ok"
    assert gq.cluster.health().healthy == 1


def test_a_node_has_its_partitions_and_its_disk(gq: Client) -> None:
    gq.create_topic("orders", partitions=2)

    node = gq.cluster.node(0)

    assert {"orders-0", "orders-1"} <= set(node.leaders)
    assert node.disk_total_bytes
    assert node.uptime_ns
    assert gq.cluster.nodes()[0] == gq.cluster.state().nodes[0]
    with pytest.raises(NotFound, match="node 7"):
        gq.cluster.node(7)


def test_partitions_are_those_of_a_topic_or_of_all(gq: Client) -> None:
    gq.create_topic("orders", partitions=2)
    gq.create_topic("invoices", partitions=1)

    placed = gq.cluster.partitions("orders")

    assert [(one.topic, one.partition, one.leader, one.status) for one in placed] == [
        ("orders", 0, 0, "online"),
        ("orders", 1, 0, "online"),
    ]
    assert {one.topic for one in gq.cluster.partitions()} >= {"orders", "invoices"}
    with pytest.raises(TopicNotFound):
        gq.cluster.partitions("nothing")
    assert "topic invoices" in gq.cluster.metadata()


def test_an_election_takes_any_iterable_of_partitions(gq: Client) -> None:
    gq.create_topic("orders", partitions=3)

    results = gq.cluster.elect_leaders("orders", partitions=(number for number in (2, 0)))

    assert [(one.partition, one.leader, one.changed) for one in results] == [(2, 0, False), (0, 0, False)]
    assert gq.cluster.elect_leaders() == gq.cluster.elect_leaders("orders", unclean=True) == []
    with pytest.raises(InvalidRequest, match="topic"):
        gq.cluster.elect_leaders(partitions=[0])
    with pytest.raises(NotFound):
        gq.cluster.elect_leaders(unclean=True, replica=9)


def test_what_a_broker_alone_cannot_do_is_refused_in_a_sentence(gq: Client) -> None:
    with pytest.raises(Conflict, match="cannot be removed"):
        gq.cluster.remove_node(0)
    with pytest.raises(Conflict, match="no metadata log"):
        gq.cluster.set_feature_level(1)
    assert gq.cluster.feature_level().level_max == 0


def test_the_asynchronous_form_is_awaited(address: str) -> None:
    async def look() -> int:
        async with AsyncClient(address) as gq:
            return (await gq.cluster.health()).node_count

    assert asyncio.run(look()) == 1


def test_both_forms_have_the_same_verbs_with_the_same_arguments() -> None:
    def public(kind: type) -> dict[str, list[inspect.Parameter]]:
        methods = inspect.getmembers(kind, inspect.isfunction)
        return {name: list(inspect.signature(one).parameters.values()) for name, one in methods if name[0] != "_"}

    assert public(ClusterAdmin) == public(AsyncClusterAdmin)
