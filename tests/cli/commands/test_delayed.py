"""`goqueue delayed`, end to end."""

import json
from collections.abc import Iterator

import pytest
import yaml

from goqueue import Client
from goqueue.testing import EmbeddedBroker
from tests.cli.command_line import fail, run, succeed, tidied

FAR = "2200-01-01T00:00:00Z"


@pytest.fixture
def client(broker: EmbeddedBroker) -> Iterator[Client]:
    """A client of a broker where three messages of `orders` wait: offset 0 for two hours, 1 and 2 for one."""
    with Client(broker.address) as client, tidied(client):
        client.create_topic("orders", partitions=1)
        client.publish("orders", "late", key="k", delay="2h", priority="high")
        client.publish("orders", "soon", key="k", delay="1h")
        client.publish("orders", "other", key="o", delay="61m")
        yield client


def listed(server: str, *arguments: str) -> list[dict[str, object]]:
    found: list[dict[str, object]] = json.loads(
        succeed("delayed", "list", "orders", *arguments, "-o", "json", server=server)
    )
    return found


def offsets(server: str, *arguments: str) -> list[object]:
    return [one["offset"] for one in listed(server, *arguments)]


def test_what_is_due_first_comes_first(server: str) -> None:
    shown = [line.split() for line in succeed("delayed", "list", "orders", server=server).splitlines()]
    rows = [row for row in shown if row[:1] == ["0"]]

    assert [(row[1], row[-3:]) for row in rows] == [
        ("1", ["normal", "pending", "k"]),
        ("2", ["normal", "pending", "o"]),
        ("0", ["high", "pending", "k"]),
    ]
    assert [(row[2][-1], row[3][:3]) for row in rows] == [("Z", "59m"), ("Z", "1h"), ("Z", "1h5")]


def test_a_part_of_the_list_is_shown(server: str) -> None:
    assert offsets(server) == [1, 2, 0]
    assert offsets(server, "--key", "k") == [1, 0]
    assert offsets(server, "-n", "1", "--skip", "1") == [2]
    assert offsets(server, "--state", "cancelled") == []


def test_json_has_the_words_of_http_and_yaml_the_same(server: str) -> None:
    (first, *_) = listed(server)
    (same, *_) = yaml.safe_load(succeed("delayed", "list", "orders", "-o", "yaml", server=server))

    assert str(first.pop("time_remaining")).startswith("59m")
    same.pop("time_remaining")
    assert first == same
    assert str(first.pop("deliver_at")).endswith("Z")
    assert first == {
        "topic": "orders",
        "partition": 0,
        "offset": 1,
        "key": "k",
        "state": "pending",
        "priority": "normal",
    }


def test_one_message_is_cancelled(server: str) -> None:
    shown = succeed("delayed", "cancel", "orders", "0", "1", server=server)

    assert shown == "1 message of orders cancelled\n"
    assert offsets(server) == [2, 0]
    assert offsets(server, "--state", "cancelled") == [1]
    assert fail("delayed", "cancel", "orders", "0", "1", server=server) == (
        1,
        "error delayed message not found or already delivered: orders-0 @ 1",
    )


def test_all_messages_of_a_key_are_cancelled(server: str) -> None:
    cancelled = json.loads(succeed("delayed", "cancel", "orders", "--key", "k", "-o", "json", server=server))

    assert sorted(one["offset"] for one in cancelled) == [0, 1]
    assert {one["state"] for one in cancelled} == {"cancelled"}
    assert succeed("delayed", "cancel", "orders", "-k", "k", server=server) == (
        "no message of orders with the key k is waiting\n"
    )


def test_a_message_is_delivered_at_another_time(server: str, client: Client) -> None:
    (moved,) = json.loads(
        succeed("delayed", "reschedule", "orders", "0", "1", "--at", FAR, "-o", "json", server=server)
    )
    assert moved["deliver_at"] == "2200-01-01T00:00:00.000000000Z"
    assert offsets(server) == [2, 0, 1]

    (moved,) = json.loads(
        succeed("delayed", "reschedule", "orders", "-k", "o", "--at", FAR, "-o", "json", server=server)
    )
    assert (moved["offset"], moved["deliver_at"][:4]) == (2, "2200")
    assert "29m59" in succeed("delayed", "reschedule", "orders", "-k", "o", "--delay", "30m", server=server)

    succeed("delayed", "reschedule", "orders", "0", "0", "--delay", "0s", server=server)
    with client.consumer("orders", group="billing") as consumer:
        assert [message.text() for message in consumer.poll(1, "10s")] == ["late"]


def test_stats_count_what_waits(server: str) -> None:
    succeed("delayed", "cancel", "orders", "0", "1", server=server)

    shown = [line.split() for line in succeed("delayed", "stats", server=server).splitlines()]
    counted = json.loads(succeed("delayed", "stats", "-o", "json", server=server))

    assert ["waiting", "2"] in shown
    assert ["orders", "2"] in shown
    assert counted["total_pending"] == counted["by_topic"]["orders"] == 2
    assert counted["total_cancelled"] >= 1
    assert counted["avg_delay"].endswith("s")


def test_that_nothing_waits_is_said(server: str, client: Client) -> None:
    client.create_topic("payments")

    assert succeed("delayed", "list", "payments", server=server) == "no message of payments is pending\n"
    assert succeed("delayed", "list", "payments", "-o", "json", server=server) == "[]\n"


def test_a_key_cannot_steer_the_terminal(server: str, client: Client) -> None:
    client.publish("orders", "v", key=b"\x1b[31m\xff", delay="1m")

    output = run("delayed", "list", "orders", "-n", "1", server=server).output

    assert b"\\x1b[31m\\xff" in b"".join(output.split())
    assert b"\x1b" not in output
    assert listed(server, "-n", "1")[0]["key_base64"] == "G1szMW3/"


@pytest.mark.parametrize(
    ("arguments", "code", "complaint"),
    [
        (("list", "nothing"), 1, "error topic not found: nothing"),
        (("list", "orders", "--state", "lost"), 2, "'lost' is not one of"),
        (("list", "orders", "-n", "0"), 2, "'--limit'"),
        (("cancel", "nothing", "0", "0"), 1, "error topic not found: nothing"),
        (("cancel", "nothing", "--key", "k"), 1, "error topic not found: nothing"),
        (("cancel", "orders", "9", "0"), 1, "error partition not found: orders-9"),
        (("cancel", "orders", "0", "99"), 1, "error delayed message not found"),
        (("cancel", "orders"), 2, "give either PARTITION and OFFSET, or --key"),
        (("cancel", "orders", "0"), 2, "give either PARTITION and OFFSET, or --key"),
        (("cancel", "orders", "0", "1", "--key", "k"), 2, "give either PARTITION and OFFSET, or --key"),
        (("cancel", "orders", "zero", "1"), 2, "should be a valid integer"),
        (("reschedule", "orders", "0", "1"), 2, "give either --delay or --at"),
        (("reschedule", "orders", "0", "1", "--delay", "1h", "--at", FAR), 2, "give either --delay or --at"),
        (("reschedule", "orders", "0", "1", "--at", "tomorrow"), 2, "'tomorrow' is not a time"),
        (("reschedule", "orders", "0", "99", "--delay", "1h"), 1, "error delayed message not found"),
    ],
)
def test_what_goes_wrong_is_said_in_one_line(
    server: str, arguments: tuple[str, ...], code: int, complaint: str
) -> None:
    found_code, found = fail("delayed", *arguments, server=server)

    assert found_code == code
    assert complaint in found if code == 2 else found.startswith(complaint)
