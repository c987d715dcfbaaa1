"""`goqueue group`, end to end."""

import json
import os
import pty
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest
import yaml

from goqueue import Client
from goqueue.testing import EmbeddedBroker
from tests.cli.command_line import fail, run, succeed, tidied

RESET = ("group", "reset", "billing")


@pytest.fixture
def client(broker: EmbeddedBroker) -> Iterator[Client]:
    """A client of a broker with ten messages in `orders`, of which the group `billing` has done four."""
    with Client(broker.address) as client, tidied(client):
        client.create_topic("orders", partitions=1)
        client.publish_many("orders", [(f"key {number % 2}", f"value {number}") for number in range(10)])
        with client.consumer("orders", group="billing") as consumer:
            consumer.ack(consumer.poll(4))
        yield client


def position(client: Client) -> int:
    (found,) = client.group_positions("billing")
    return found.offset


def cells(output: str) -> list[list[str]]:
    return [line.split() for line in output.splitlines()]


def test_groups_are_listed_with_how_they_are(server: str) -> None:
    (row,) = (row for row in cells(succeed("group", "list", server=server)) if row[:1] == ["billing"])
    assert row == ["billing", "Empty", "0", "2", "partitioned", "orders", "6"]

    (found,) = json.loads(succeed("group", "list", "-o", "json", server=server))
    assert found == {
        "group_id": "billing",
        "state": "Empty",
        "members": 0,
        "generation": 2,
        "topics": ["orders"],
        "mode": "partitioned",
        "protocol": "cooperative",
        "lag": 6,
    }


def test_that_there_are_no_groups_is_said(server: str, client: Client) -> None:
    client.delete_group("billing")

    assert succeed("group", "list", server=server) == "there are no groups\n"
    assert succeed("group", "list", "-o", "json", server=server) == "[]\n"


def test_a_group_is_described_with_its_members(server: str, client: Client) -> None:
    assert "the group has no members" in succeed("group", "describe", "billing", server=server)

    with client.consumer("orders", group="billing") as consumer:
        consumer.poll(2)
        shown = succeed("group", "describe", "billing", server=server)
        described = yaml.safe_load(succeed("group", "describe", "billing", "-o", "yaml", server=server))

        assert consumer.member_id
        assert consumer.member_id in shown.replace("\n", "")
    assert ["state", "Stable"] in cells(shown)
    assert ["lag", "6"] in cells(shown)
    (member,) = described["members"]
    assert member["member_id"] == described["leader_id"] == consumer.member_id
    assert (member["assigned_partitions"], member["in_flight"]) == (["orders-0"], 2)
    assert (described["assignor"], described["ack"], described["state"]) == ("sticky", "messages", "Stable")
    assert described["created_at"].endswith("Z")


def test_a_group_that_never_acknowledges_is_described_with_a_hint(server: str, client: Client) -> None:
    hint = "messages are delivered and never acknowledged"
    assert hint not in run("group", "describe", "billing", server=server).complaint

    with client.consumer("orders", group="billing", visibility="10ms", auto_extend=False) as consumer:
        consumer.poll(2)
        while client.describe_group("billing").expired_leases < 2:
            client.topics()
        shown = run("group", "describe", "billing", server=server)
        described = yaml.safe_load(succeed("group", "describe", "billing", "-o", "yaml", server=server))

    assert ["expired", "leases", "2"] in cells(shown.output.decode())
    assert hint in " ".join(shown.complaint.split())
    assert (described["expired_leases"], described["members"][0]["expired_leases"]) == (2, 2)


def test_partitions_that_follow_each_other_stand_together(server: str, client: Client) -> None:
    client.create_topic("wide", partitions=5)
    with (
        client.consumer(["orders", "wide"], group="other", assignor="range") as consumer,
        client.consumer("orders", group="alone") as alone,
    ):
        consumer.join()
        alone.join()
        rows = cells(succeed("group", "describe", "other", server=server))
        of_alone = cells(succeed("group", "describe", "alone", server=server))

    assert any(row[1:3] == ["orders", "0"] for row in rows)
    assert ["wide", "0-4"] in rows
    assert any(row[1:3] == ["orders", "0"] for row in of_alone)


def test_lag_is_shown_by_partition_and_in_all(server: str, client: Client) -> None:
    shown = succeed("group", "lag", "billing", server=server)

    (row,) = (row for row in cells(shown) if row[:1] == ["orders"])
    assert row[:5] == ["orders", "0", "4", "10", "6"]
    assert shown.endswith("billing has a lag of 6 messages\n")
    (found,) = json.loads(succeed("group", "lag", "billing", "--topic", "orders", "-o", "json", server=server))
    assert (found["offset"], found["end_offset"], found["lag"]) == (4, 10, 6)
    assert found["lag_seconds"] > 0


def test_a_topic_of_which_the_group_knows_nothing_has_no_lag(server: str, client: Client) -> None:
    client.create_topic("payments")

    assert succeed("group", "lag", "billing", "--topic", "payments", server=server) == "billing has no position yet\n"
    assert fail("group", "lag", "billing", "--topic", "nothing", server=server) == (1, "error topic not found: nothing")


def test_a_dry_run_moves_nothing(server: str, client: Client) -> None:
    shown = succeed(*RESET, "--to", "earliest", "--dry-run", server=server)

    assert ["orders", "0", "4", "0", "-4"] in cells(shown)
    assert shown.endswith("1 position of billing would be set\n")
    assert position(client) == 4


def test_a_group_is_moved(server: str, client: Client) -> None:
    before = datetime.now(UTC).isoformat()
    for target, offset in (("earliest", 0), ("latest", 10), ("7", 7), ("1h ago", 0), (before, 10), ("10", 10)):
        shown = succeed(*RESET, "--to", target, "--yes", server=server)

        assert shown.endswith("1 position of billing is set\n")
        assert position(client) == offset


def test_only_one_partition_is_moved(server: str, client: Client) -> None:
    client.create_topic("wide", partitions=3)
    client.publish_many("wide", [(str(number), "v") for number in range(30)])
    with client.consumer("wide", group="billing") as consumer:
        consumer.join()

    reset = (*RESET, "--to", "latest", "--topic", "wide", "-p", "1", "-y", "-o", "json")
    (moved,) = json.loads(succeed(*reset, server=server))

    assert (moved["topic"], moved["partition"], moved["old_offset"], moved["dry_run"]) == ("wide", 1, 0, False)
    ends = client.offsets("wide")
    found = [(one.topic, one.partition, one.offset) for one in client.group_positions("billing")]
    assert found == [("orders", 0, 4), ("wide", 0, 0), ("wide", 1, ends[1]), ("wide", 2, 0)]


def test_nothing_is_lost_where_nobody_can_be_asked(server: str, client: Client) -> None:
    for command in ((*RESET, "--to", "latest"), ("group", "delete", "billing")):
        code, complaint = fail(*command, server=server)

        assert code == 2
        assert "--yes" in complaint
    assert position(client) == 4


@pytest.mark.parametrize(("answer", "code", "offset"), [(b"n\n", 1, 4), (b"y\n", 0, 10)])
def test_whoever_moves_a_group_sees_how_and_is_asked(
    server: str, client: Client, answer: bytes, code: int, offset: int
) -> None:
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "goqueue.cli", *RESET, "--to", "latest", "-o", "json", "--server", server]
    with subprocess.Popen(command, stdin=theirs, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        os.close(theirs)
        os.write(ours, answer)
        output, errors = process.communicate(timeout=60)
    os.close(ours)

    assert process.returncode == code, errors
    assert b"Set 1 position of billing? [y/N]" in errors
    assert ["orders", "0", "4", "10", "+6"] in cells(errors.decode())
    assert position(client) == offset
    if code == 0:
        assert json.loads(output)[0]["offset"] == 10


def test_a_group_is_deleted(server: str, client: Client) -> None:
    assert succeed("group", "delete", "billing", "-y", server=server) == "group billing is deleted\n"

    assert client.groups() == []
    assert fail("group", "delete", "billing", "-y", server=server) == (1, "error group not found: billing")


def test_what_holds_back_a_key_is_named(server: str, client: Client) -> None:
    with (
        client.consumer("orders", group="sharing", mode="key-shared") as consumer,
        client.consumer("orders", group="sharing", mode="key-shared") as other,
    ):
        (held,) = consumer.poll(1)
        other.poll(10)
        shown = succeed("group", "blocked", "sharing", server=server)
        (found,) = json.loads(succeed("group", "blocked", "sharing", "-o", "json", server=server))

    assert "key 0" in shown
    assert (found["topic"], found["partition"], found["offset"]) == ("orders", 0, held.offset)
    assert (found["key"], found["member_id"], found["delivery_count"]) == ("key 0", consumer.member_id, 1)
    assert found["waiting"] == 4
    assert succeed("group", "blocked", "billing", server=server) == "no key of billing is blocked\n"


def test_rebalances_of_one_group_and_of_all_are_counted(server: str, client: Client) -> None:
    with client.consumer("orders", group="other") as consumer:
        consumer.join()

    one = json.loads(succeed("group", "rebalances", "billing", "-o", "json", server=server))
    both = json.loads(succeed("group", "rebalances", "-o", "json", server=server))
    shown = cells(succeed("group", "rebalances", "billing", server=server))

    assert one["rebalances_by_reason"]["join"] == 1
    assert both["total_rebalances"] > one["total_rebalances"] >= 1
    assert one["last_rebalance_at"].endswith("Z")
    assert ["rebalances", str(one["total_rebalances"])] in shown


def test_json_and_yaml_hold_the_same(server: str) -> None:
    for command in (("list",), ("describe", "billing"), ("rebalances",)):
        as_json = json.loads(succeed("group", *command, "-o", "json", server=server))

        assert as_json == yaml.safe_load(succeed("group", *command, "-o", "yaml", server=server))


@pytest.mark.parametrize(
    ("arguments", "code", "complaint"),
    [
        (("describe", "nothing"), 1, "error group not found: nothing"),
        (("lag", "nothing"), 1, "error group not found: nothing"),
        (("blocked", "nothing"), 1, "error group not found: nothing"),
        (("rebalances", "nothing"), 1, "error group not found: nothing"),
        (("delete", "nothing", "-y"), 1, "error group not found: nothing"),
        (("reset", "nothing", "--to", "earliest", "-y"), 1, "error group not found: nothing"),
        (("reset", "billing", "--to", "earliest", "--topic", "nothing", "-y"), 1, "error topic not found: nothing"),
        (
            ("reset", "billing", "--to", "0", "--topic", "orders", "-p", "9", "-y"),
            1,
            "error partition not found: orders-9",
        ),
        (("reset", "billing", "--to", "999999", "-y"), 1, "error offset 999999 is outside [0, 10] of orders-0"),
        (("reset", "billing"), 2, "Missing option '--to'"),
        (("reset", "billing", "--to", "yesterday", "-y"), 2, "'yesterday' is none of earliest, latest, an offset"),
        (("reset", "billing", "--to=-1", "-y"), 2, "'-1' is none of earliest"),
        (("reset", "billing", "--to", "9" * 20, "-y"), 2, "is not an offset"),
        (("reset", "billing", "--to", "0", "-p", "-1", "-y"), 2, "'--partition'"),
    ],
)
def test_what_goes_wrong_is_said_in_one_line(
    server: str, arguments: tuple[str, ...], code: int, complaint: str
) -> None:
    found_code, found = fail("group", *arguments, server=server)

    assert found_code == code
    assert complaint in found if code == 2 else found.startswith(complaint)
