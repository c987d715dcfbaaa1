"""`goqueue dlq`, end to end."""

import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest
import yaml

from goqueue import Client
from goqueue.testing import EmbeddedBroker
from tests.cli.command_line import fail, run, succeed, tidied

MESSAGES = ("dlq", "messages", "orders")
REDRIVE = ("dlq", "redrive", "orders")


@pytest.fixture
def client(broker: EmbeddedBroker) -> Iterator[Client]:
    """A client of a broker with six dead letters of `orders`: three of billing's, three of shipping's."""
    with Client(broker.address) as client, tidied(client):
        client.create_topic("orders", partitions=1)
        for number in range(3):
            client.publish("orders", f"value {number}", key=f"eu-{number}", headers={"n": str(number)})
        for group in ("billing", "shipping"):
            with client.consumer("orders", group=group) as consumer:
                for message in consumer.poll(3):
                    message.reject(reason=f"{group} failed on {message.text()}")
        yield client


def found(server: str, *arguments: str) -> list[str]:
    letters = json.loads(succeed(*MESSAGES, *arguments, "-o", "json", server=server))
    return [f"{letter['group']} {letter['value'][-1]}" for letter in letters]


def dead(client: Client) -> int:
    return client.describe_dead_letters("orders").messages


def follow(server: str, *arguments: str) -> dict[str, object]:
    ended: dict[str, object] = json.loads(succeed(*REDRIVE, "--follow", *arguments, "-o", "json", server=server))
    return ended


def test_topics_with_dead_letters_are_listed(server: str, client: Client) -> None:
    client.create_topic("clean")

    shown = succeed("dlq", "list", server=server)
    (queue,) = json.loads(succeed("dlq", "list", "-o", "json", server=server))

    assert "REJECTED 6" in shown
    assert (queue["topic"], queue["dlq_topic"], queue["messages"]) == ("orders", "orders.dlq", 6)
    assert queue["by_group"] == {"billing": 3, "shipping": 3}
    assert queue["oldest"] <= queue["newest"]


def test_dead_letters_are_found_in_the_topic_that_is_set(server: str, client: Client) -> None:
    succeed("topic", "create", "jobs", "--set", "dead_letter_topic=graveyard", server=server)
    client.publish("jobs", "lost")
    with client.consumer("jobs", group="billing") as consumer:
        consumer.reject(consumer.poll(1, timeout="2s"))

    (letter,) = json.loads(succeed("dlq", "messages", "jobs", "-o", "json", server=server))

    assert (letter["topic"], letter["value"]) == ("graveyard", "lost")
    assert "graveyard" in succeed("dlq", "describe", "jobs", server=server)
    assert json.loads(succeed("dlq", "redrive", "jobs", "--follow", "-o", "json", server=server))["redriven"] == 1


def test_that_nothing_is_dead_is_said(server: str, client: Client) -> None:
    client.delete_topic("orders.dlq")

    assert succeed("dlq", "list", server=server) == "no topic has dead letters\n"
    assert succeed(*MESSAGES, server=server) == "no dead letter of orders matches\n"
    assert succeed(*MESSAGES, "-o", "json", server=server) == "[]\n"


def test_a_queue_is_described_by_reason_group_and_error(server: str) -> None:
    shown = [line.split() for line in succeed("dlq", "describe", "orders", server=server).splitlines()]
    described = yaml.safe_load(succeed("dlq", "describe", "orders", "-o", "yaml", server=server))

    assert ["messages", "6"] in shown
    assert ["REJECTED", "6"] in shown
    assert ["billing", "3"] in shown
    assert described["by_error"]["billing failed on value 0"] == 1
    assert described["redrives"] == []


def test_letters_are_shown_with_why_and_what(server: str) -> None:
    lines = succeed(*MESSAGES, "-n", "1", server=server).splitlines()
    (letter,) = json.loads(succeed(*MESSAGES, "-n", "1", "-o", "json", server=server))

    assert lines[0].startswith("0:0 REJECTED at 2")
    assert lines[0].endswith(" in group billing at try 1, from orders-0:0")
    assert lines[1:] == ["  error=billing failed on value 0", "  key=eu-0 value 0"]
    assert (letter["topic"], letter["partition"], letter["offset"]) == ("orders.dlq", 0, 0)
    assert (letter["reason"], letter["group"], letter["attempts"]) == ("REJECTED", "billing", 1)
    assert letter["origin"] == {"topic": "orders", "partition": 0, "offset": 0}
    assert (letter["key"], letter["value"], letter["headers"]["n"]) == ("eu-0", "value 0", "0")
    assert [letter] == yaml.safe_load(succeed(*MESSAGES, "-n", "1", "-o", "yaml", server=server))


def test_letters_are_found_by_what_they_are(server: str) -> None:
    everything = [f"{group} {number}" for group in ("billing", "shipping") for number in range(3)]

    assert found(server) == everything
    assert found(server, "--reason", "rejected") == everything
    assert found(server, "--reason", "TIMEOUT") == []
    assert found(server, "--group", "shipping") == everything[3:]
    assert found(server, "--key", "eu-1") == ["billing 1", "shipping 1"]
    assert found(server, "--key-prefix", "eu-", "-g", "billing") == everything[:3]
    assert found(server, "--key-prefix", "us-") == []
    assert found(server, "--error-contains", "on value 2") == ["billing 2", "shipping 2"]
    assert found(server, "--header", "n=0") == ["billing 0", "shipping 0"]
    assert found(server, "--since", "1h ago") == everything
    assert found(server, "--until", "1h ago") == []
    assert found(server, "--min-attempts", "2") == []
    assert found(server, "--partition", "0", "--offset", "1", "--offset", "4") == ["billing 1", "shipping 1"]
    assert found(server, "-n", "2", "--skip", "3") == everything[3:5]


def test_a_dry_run_puts_nothing_back(server: str, client: Client) -> None:
    shown = succeed(*REDRIVE, "--group", "billing", "--dry-run", server=server).splitlines()
    plan = json.loads(succeed(*REDRIVE, "--key", "eu-1", "--dry-run", "-o", "json", server=server))

    assert shown[0] == "3 dead letters of orders match"
    assert shown[-1] == "  key=eu-2 value 2"
    assert (plan["dry_run"], plan["matched"], plan["skipped_loop"], len(plan["sample"])) == (True, 2, 0, 2)
    assert dead(client) == 6


def test_letters_are_put_back_where_they_come_from(server: str, client: Client) -> None:
    ended = follow(server, "--group", "billing", "--error-contains", "value 1")

    assert (ended["state"], ended["matched"], ended["redriven"], ended["failed"]) == ("done", 1, 1, 0)
    assert dead(client) == 5
    assert [message.value for message in client.read("orders", offset=3)] == [b"value 1"]
    shown = succeed("dlq", "describe", "orders", server=server)
    assert str(ended["id"]) in shown


def test_letters_are_put_back_for_their_group_or_for_all(server: str, client: Client) -> None:
    assert follow(server, "--offset", "0")["to"] == "group"
    assert follow(server, "--offset", "1", "--to", "ALL")["to"] == "all"

    groups = [message.headers.get("gq-for-group") for message in client.read("orders", offset=3)]
    assert groups == ["billing", None]
    assert "--to" in fail(*REDRIVE, "--to", "nobody", server=server)[1]


def test_letters_are_put_somewhere_else_and_only_so_many(server: str, client: Client) -> None:
    client.create_topic("elsewhere", partitions=1)

    ended = follow(server, "--target", "elsewhere", "--limit", "4", "--rate", "1000")

    assert ended["redriven"] == 4
    assert len(list(client.read("elsewhere"))) == 4
    assert dead(client) == 2


def test_what_was_put_back_too_often_is_passed_over_and_said(server: str, client: Client) -> None:
    shown = succeed(*REDRIVE, "--max-redrives", "0", "--follow", server=server)
    plan = succeed(*REDRIVE, "--max-redrives", "0", "--dry-run", server=server)

    assert shown.endswith("is done: 0 messages redriven, 6 skipped, redriven too often already\n")
    assert "6 of them redriven too often already" in plan
    assert dead(client) == 6


def test_a_redrive_that_nobody_follows_goes_on_until_it_is_stopped(server: str, client: Client) -> None:
    begun = json.loads(succeed(*REDRIVE, "--rate", "0.001", "-o", "json", server=server))
    assert begun["state"] == "running"

    stopped = succeed("dlq", "stop", "orders", begun["id"], server=server)

    assert stopped.startswith(f"redrive {begun['id']} of orders is stopped: ")
    assert "finished_at" in json.loads(succeed("dlq", "stop", "orders", begun["id"], "-o", "json", server=server))
    assert dead(client) >= 5


def test_whoever_follows_learns_that_it_was_stopped(server: str, client: Client) -> None:
    command = [sys.executable, "-m", "goqueue.cli", *REDRIVE, "--rate", "0.001", "--follow", "--server", server]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        client.stop_redrive("orders", _running(client))
        output, errors = process.communicate(timeout=60)

    assert (process.returncode, errors) == (1, b"")
    assert b"is stopped: " in output


def test_ctrl_c_ends_the_following_and_not_the_redrive(server: str, client: Client) -> None:
    """At a terminal, where one sees how far it is."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "goqueue.cli", *REDRIVE, "--rate", "0.001", "--follow", "--server", server]
    environment = os.environ | {"TERM": "xterm", "COLUMNS": "200"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=theirs, env=environment) as process:
        os.close(theirs)
        redrive_id = _running(client)
        shown = b""
        while f"redrive {redrive_id}: ".encode() not in shown:
            shown += os.read(ours, 65536)
        process.send_signal(signal.SIGINT)
        while chunk := _read(ours):
            shown += chunk
        output, _ = process.communicate(timeout=60)
    os.close(ours)

    assert (process.returncode, output) == (130, b"")
    assert f"redrive {redrive_id} continues; `goqueue dlq stop orders {redrive_id}` stops it".encode() in shown
    assert b"Traceback" not in shown
    assert client.describe_redrive("orders", redrive_id).state == "running"
    client.stop_redrive("orders", redrive_id)


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # nobody is at the other end any more
        return b""


def _running(client: Client) -> str:
    """The id of the redrive that runs, as soon as one does."""
    while True:
        for redrive in client.describe_dead_letters("orders").redrives:
            if redrive.state == "running":
                return redrive.id


def test_what_a_letter_holds_cannot_steer_the_terminal(server: str, client: Client) -> None:
    client.publish("orders", b"\x1b[31m\n\xff" + b"x" * 1_000, key=b"\x1b")
    with client.consumer("orders", group="billing") as consumer:
        consumer.reject(consumer.poll(1), reason="\x1b[31m\nred")

    output = run(*MESSAGES, "--skip", "6", server=server).output

    assert b"\x1b" not in output
    assert b"error=\\x1b[31m\\nred" in output
    assert b"key=\\x1b \\x1b[31m\\n\\xffxxx" in output
    assert output.endswith("…\n".encode())
    assert max(map(len, output.decode().splitlines())) <= 240


def test_a_compressed_letter_is_shown_as_it_was(server: str, client: Client) -> None:
    with client.producer(compression="zstd") as producer:
        producer.send("orders", "y" * 5_000).result()
    with client.consumer("orders", group="billing") as consumer:
        consumer.reject(consumer.poll(1))

    (letter,) = json.loads(succeed(*MESSAGES, "--skip", "6", "-o", "json", server=server))

    assert letter["value"] == "y" * 5_000


@pytest.mark.parametrize(
    ("arguments", "code", "complaint"),
    [
        (("describe", "nothing"), 1, "error topic not found: nothing"),
        (("messages", "nothing"), 1, "error topic not found: nothing"),
        (("redrive", "nothing"), 1, "error topic not found: nothing"),
        (("redrive", "nothing", "--dry-run"), 1, "error topic not found: nothing"),
        (("redrive", "orders", "--target", "nothing"), 1, "error topic not found: nothing"),
        (("stop", "orders", "nothing"), 1, "error not found: redrive nothing of orders"),
        (("messages", "orders", "--reason", "boredom"), 2, "'boredom' is not one of"),
        (("messages", "orders", "--since", "yesterday"), 2, "'yesterday' is not a time"),
        (("messages", "orders", "--header", "n"), 2, "'n' is not NAME=VALUE"),
        (("messages", "orders", "-n", "0"), 2, "'--limit'"),
        (("redrive", "orders", "--rate", "-1"), 2, "'--rate'"),
        (("redrive", "orders", "--dry-run", "--follow"), 2, "cannot be combined with --dry-run"),
        (("stop", "orders"), 2, "Missing argument 'ID'"),
    ],
)
def test_what_goes_wrong_is_said_in_one_line(
    server: str, arguments: tuple[str, ...], code: int, complaint: str
) -> None:
    found_code, said = fail("dlq", *arguments, server=server)

    assert found_code == code
    assert complaint in said if code == 2 else said.startswith(complaint)
