"""`goqueue consume --group`: a member of a group that acknowledges what it has printed, and nothing else."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

from goqueue import Client
from goqueue.testing import EmbeddedBroker
from tests.cli.command_line import fail, run, succeed, tidied


@pytest.fixture
def client(broker: EmbeddedBroker) -> Iterator[Client]:
    """A client of a broker with an empty topic `orders` of one partition, and no groups."""
    with Client(broker.address) as client, tidied(client):
        client.create_topic("orders", partitions=1)
        yield client


@pytest.fixture
def server(broker: EmbeddedBroker, client: Client) -> str:
    client.publish_many("orders", [f"value {number}" for number in range(10)])
    return broker.address


def consumed(server: str, *arguments: str, format: str = "raw") -> list[str]:
    command = ("consume", "orders", "--group", "billing", "--format", format)
    return succeed(*command, *arguments, server=server).splitlines()


def position(client: Client, group: str = "billing") -> int:
    (found,) = client.group_positions(group)
    return found.offset


def test_what_is_printed_is_acknowledged_and_comes_once(server: str, client: Client) -> None:
    assert consumed(server) == [f"value {number}" for number in range(10)]
    assert consumed(server) == []
    assert position(client) == 10
    assert client.describe_group("billing").members == []


def test_a_limit_takes_no_more_than_that(server: str, client: Client) -> None:
    assert consumed(server, "-n", "4") == ["value 0", "value 1", "value 2", "value 3"]
    assert position(client) == 4
    assert consumed(server, "-n", "1") == ["value 4"]


def test_stop_empty_is_what_it_does_anyway(server: str) -> None:
    assert len(consumed(server, "--stop", "empty")) == 10


def test_a_look_changes_nothing_however_often(server: str, client: Client) -> None:
    for _ in range(5):  # more often than a message is delivered before it is a dead letter
        assert consumed(server, "--ack", "none", "-n", "2", format="{value} {delivery_count}") == [
            "value 0 1",
            "value 1 1",
        ]

    assert position(client) == 0
    assert client.topics() == ["orders"]


def test_auto_commits_the_position_behind_what_is_printed(server: str, client: Client) -> None:
    assert len(consumed(server, "--ack", "auto", "-n", "3")) == 3
    assert position(client) == 3
    assert len(consumed(server, "--ack", "auto")) == 7
    assert position(client) == 10


def test_a_new_group_may_start_at_the_end(server: str, client: Client) -> None:
    assert consumed(server, "--start", "latest") == []

    client.publish("orders", "new")

    assert consumed(server, "--start", "latest") == ["new"]


@pytest.mark.parametrize("mode", ["partitioned", "shared", "key-shared"])
def test_each_mode_delivers_everything(server: str, client: Client, mode: str) -> None:
    assert len(consumed(server, "--mode", mode, "--visibility", "10s", "--max-in-flight", "3")) == 10
    assert client.describe_group("billing").mode == mode


def test_several_topics_are_taken_from_and_named(server: str, client: Client) -> None:
    client.create_topic("payments", partitions=1)
    client.publish("payments", "paid", key="k")

    lines = succeed("consume", "orders", "payments", "-g", "billing", server=server).splitlines()

    assert len(lines) == 11
    assert sum(" payments-0:0 key=k paid" in line for line in lines) == 1
    assert sum(" orders-0:3 value 3" in line for line in lines) == 1


def test_formats_say_which_delivery_it_is(server: str, client: Client) -> None:
    with client.consumer("orders", group="billing") as consumer:
        consumer.nack(consumer.poll(1), delay="0s")

    lines = consumed(server, "--ack", "none", format="json")
    counts = {message["offset"]: message["delivery_count"] for message in map(json.loads, lines)}
    text = consumed(server, "--ack", "none", format="text")
    documents = yaml.safe_load_all("\n".join(consumed(server, format="yaml")))

    assert counts == {0: 2, **dict.fromkeys(range(1, 10), 1)}
    assert [line for line in text if "delivery=2 value 0" in line]
    assert not [line for line in text if "delivery=1" in line]
    assert {message["offset"]: message["delivery_count"] for message in documents} == counts


def test_without_a_group_it_stays_what_it_is(server: str, client: Client) -> None:
    consumed(server)

    assert len(succeed("consume", "orders", "-o", "raw", server=server).splitlines()) == 10
    assert "delivery_count" not in succeed("consume", "orders", "-o", "json", server=server)
    assert client.groups() == ["billing"]


@pytest.mark.parametrize(
    ("arguments", "code", "complaint"),
    [
        (("nothing", "-g", "g"), 1, "error topic not found: nothing"),
        (("orders", "-g", "a/b"), 1, "error "),
        (("orders", "payments"), 2, "several topics at once need a --group"),
        (("orders", "--mode", "shared"), 2, "--mode: needs a --group"),
        (("orders", "--max-in-flight", "5"), 2, "--max-in-flight: needs a --group"),
        (("orders", "--ack", "none"), 2, "--ack: needs a --group"),
        (("orders", "-g", "g", "--offset", "0"), 2, "--offset: is not for members of a group"),
        (("orders", "-g", "g", "--from", "1h ago"), 2, "--from: is not for members of a group"),
        (("orders", "-g", "g", "--mode", "greedy"), 2, "'greedy' is not one of"),
        (("orders", "-g", "g", "--visibility", "long"), 2, "'long' is not a duration"),
        (("orders", "-g", "g", "--max-in-flight", "0"), 2, "'--max-in-flight'"),
        (("orders", "-g", "g", "-f", "--stop", "empty"), 2, "--follow does not end when the group"),
        ((), 2, "Missing argument 'TOPIC'"),
    ],
)
def test_what_goes_wrong_is_said_in_one_line(
    server: str, arguments: tuple[str, ...], code: int, complaint: str
) -> None:
    found_code, found = fail("consume", *arguments, server=server)

    assert found_code == code
    assert complaint in found if code == 2 else found.startswith(complaint)


def test_a_mode_that_the_group_does_not_have_is_refused(server: str, client: Client) -> None:
    with client.consumer("orders", group="billing") as other:
        other.join()

        code, complaint = fail("consume", "orders", "-g", "billing", "--mode", "shared", server=server)

    assert (code, complaint) == (1, "error group billing has mode partitioned, not shared")


@contextmanager
def consuming(server: str, *arguments: str, stdout: int = subprocess.PIPE) -> "Iterator[subprocess.Popen[bytes]]":
    """`goqueue consume orders --group billing`, which is gone at the end of the block whatever happens."""
    command = [sys.executable, "-m", "goqueue.cli", "consume", "orders", "-g", "billing", "-o", "raw", *arguments]
    with subprocess.Popen([*command, "--server", server], stdout=stdout, stderr=subprocess.PIPE) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 0), (signal.SIGTERM, 143)])
def test_a_signal_leaves_the_group_and_what_was_printed_stays_done(
    server: str, client: Client, number: signal.Signals, code: int
) -> None:
    with consuming(server, "--follow") as follower:
        assert follower.stdout
        printed = [follower.stdout.readline() for _ in range(10)]
        client.publish("orders", "later")
        printed.append(follower.stdout.readline())
        assert len(client.describe_group("billing").members) == 1

        follower.send_signal(number)
        output, errors = follower.communicate(timeout=60)

    assert printed == [*(f"value {value}\n".encode() for value in range(10)), b"later\n"]
    assert (follower.returncode, output, errors) == (code, b"", b"")
    assert client.describe_group("billing").members == []
    assert consumed(server) == []


@pytest.mark.parametrize("ack", ["each", "auto"])
def test_what_cannot_be_printed_is_not_acknowledged(server: str, client: Client, ack: str) -> None:
    """A full disk, say."""
    with Path("/dev/full").open("wb") as full, consuming(server, "--ack", ack, stdout=full.fileno()) as process:
        assert process.stderr
        complaint = process.stderr.read()
        code = process.wait(timeout=60)

    assert (code, complaint) == (1, b"error cannot write to standard output: No space left on device\n")
    assert position(client) == 0
    assert client.describe_group("billing").members == []
    assert consumed(server, "--ack", ack, "-n", "1", format="{value} {delivery_count}") == ["value 0 1"]


def test_a_reader_that_has_enough_ends_it_quietly(server: str, client: Client) -> None:
    client.publish_many("orders", ["x" * 10_000] * 1_000)

    with consuming(server) as process:
        assert process.stdout
        assert process.stderr
        process.stdout.readline()
        process.stdout.close()
        errors = process.stderr.read()
        code = process.wait(timeout=60)

    assert (code, errors) == (0, b"")
    done = position(client)
    assert done < 1_010
    assert client.describe_group("billing").members == []
    assert len(consumed(server)) == 1_010 - done


def test_bytes_that_are_no_text_go_through(server: str, client: Client) -> None:
    client.publish("orders", b"\xff\xfe", key=b"\xff")

    assert run("consume", "orders", "-g", "billing", "-o", "raw", server=server).output.endswith(b"\xff\xfe\n")


def test_a_broker_that_is_not_there_is_named() -> None:
    with EmbeddedBroker(http=False) as broker:
        nobody = broker.address

    code, complaint = fail("consume", "orders", "-g", "billing", server=nobody)

    assert code == 1
    assert complaint == f"error cannot reach broker at {nobody} (Connection refused); start one with `goqueue serve`"


def test_messages_given_back_by_a_reset_are_printed_again(server: str, client: Client) -> None:
    consumed(server)
    client.reset_group("billing", 8)

    assert consumed(server) == ["value 8", "value 9"]
