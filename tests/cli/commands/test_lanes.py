"""`goqueue lanes`, end to end."""

import json
from collections.abc import Iterator

import pytest
import yaml

from goqueue import Client
from goqueue.testing import EmbeddedBroker
from tests.cli.command_line import fail, goqueue, succeed, tidied

COUNTS = {"critical": 1, "high": 0, "normal": 3, "low": 0, "background": 2}


@pytest.fixture
def client(broker: EmbeddedBroker) -> Iterator[Client]:
    """A client of a broker with messages in three lanes of `orders`."""
    with Client(broker.address) as client, tidied(client):
        client.create_topic("orders", partitions=1)
        for priority, count in COUNTS.items():
            for _ in range(count):
                client.publish("orders", "v", priority=priority)
        yield client


def found(server: str, *arguments: str) -> list[dict[str, object]]:
    lanes: list[dict[str, object]] = json.loads(succeed("lanes", *arguments, "-o", "json", server=server))
    return lanes


def rows(server: str, *arguments: str) -> list[list[str]]:
    return [line.split() for line in succeed("lanes", *arguments, server=server).splitlines()]


def test_every_lane_is_there_and_only_those_with_messages_are_in_the_table(server: str) -> None:
    lanes = found(server, "orders")
    shown = [row[:5] for row in rows(server, "orders") if row[:1] == ["orders-0"]]

    assert {lane["priority"]: lane["total"] for lane in lanes} == COUNTS
    assert {lane["priority"]: lane["ready"] for lane in lanes} == COUNTS
    assert shown == [
        ["orders-0", "critical", "1", "1", "1"],
        ["orders-0", "normal", "3", "3", "3"],
        ["orders-0", "background", "2", "2", "2"],
    ]
    as_yaml = yaml.safe_load(succeed("lanes", "orders", "-o", "yaml", server=server))
    assert [lane.keys() for lane in as_yaml] == [lane.keys() for lane in lanes]


def test_a_group_has_its_own_view(server: str, client: Client) -> None:
    with client.consumer("orders", group="billing") as consumer:
        taken = consumer.poll(6)
        consumer.ack(taken[:1])
        of_group = {lane["priority"]: lane for lane in found(server, "orders", "--group", "billing")}

    assert taken[0].priority.name == "CRITICAL"
    assert (of_group["critical"]["pending"], of_group["critical"]["consumed"]) == (0, 1)
    assert (of_group["normal"]["in_flight"], of_group["normal"]["ready"]) == (3, 0)
    assert of_group["critical"]["oldest_pending"] is None
    assert str(of_group["normal"]["oldest_pending"]).endswith("Z")


def test_all_topics_are_shown_without_one(server: str, client: Client) -> None:
    client.create_topic("payments", partitions=2)
    client.publish("payments", "v", partition=1)

    assert {(lane["topic"], lane["partition"]) for lane in found(server)} == {
        ("orders", 0),
        ("payments", 0),
        ("payments", 1),
    }
    assert [row[:3] for row in rows(server) if row[:1] == ["payments-1"]] == [["payments-1", "normal", "1"]]


def test_empty_lanes_are_said_to_be_empty(server: str, client: Client) -> None:
    client.create_topic("payments", partitions=1)

    assert succeed("lanes", "payments", server=server) == "all lanes are empty\n"


def test_no_number_is_cut_in_80_columns(server: str) -> None:
    output = goqueue("lanes", "orders", "--server", server, env={"COLUMNS": "80"}).stdout.decode()

    assert 0 < max(map(len, output.splitlines())) <= 80
    assert "…" not in output


def test_a_topic_or_a_group_that_is_not_there_is_named(server: str) -> None:
    assert fail("lanes", "nothing", server=server) == (1, "error topic not found: nothing")
    assert fail("lanes", "orders", "-g", "nothing", server=server) == (1, "error group not found: nothing")
