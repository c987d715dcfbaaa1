"""`goqueue produce` and `goqueue consume`, end to end, as parts of a pipe."""

import json
import os
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
from tests.cli.command_line import fail, goqueue, run, succeed
from tests.client.damaged import flip

LINES = [b"line %d" % number for number in range(1_000)]


@pytest.fixture
def server(broker: EmbeddedBroker) -> Iterator[str]:
    """The address of a broker with an empty topic `orders` of one partition."""
    with Client(broker.address) as client:
        client.create_topic("orders", partitions=1)
        yield broker.address
        client.delete_topic("orders")


def consumed(server: str, *arguments: str, format: str = "raw") -> list[str]:
    return succeed("consume", "orders", "--format", format, *arguments, server=server).splitlines()


def test_one_message_is_published_and_said_to_be_stored(server: str) -> None:
    assert succeed("produce", "orders", "hello", server=server) == "stored in orders, partition 0, offset 0\n"

    stored = json.loads(succeed("produce", "orders", "again", "-o", "json", server=server))
    assert (stored["topic"], stored["partition"], stored["offset"]) == ("orders", 0, 1)
    assert stored["timestamp"].endswith("Z")
    assert yaml.safe_load(succeed("produce", "orders", "", "-o", "yaml", server=server))["offset"] == 2

    assert consumed(server) == ["hello", "again", ""]


def test_a_message_has_what_was_given_to_it(server: str) -> None:
    headers = ("-H", "source=web", "-H", "equation=a=b")
    succeed(
        *("produce", "orders", "x", "--key", "c-42", "--priority", "high", *headers, "--acks", "leader"),
        *("--created-at", "2026-11-18T20:00:00.5Z"),
        server=server,
    )

    (line,) = consumed(server, format="json")

    message = json.loads(line)
    assert message["key"] == "c-42"
    assert message["priority"] == "high"
    assert message["headers"] == {"source": "web", "equation": "a=b"}
    assert message["created_at"] == "2026-11-18T20:00:00.500000Z"


def test_an_empty_key_is_a_key(server: str) -> None:
    succeed("produce", "orders", "x", "--key", "", server=server)
    succeed("produce", "orders", "y", server=server)

    keyed, plain = map(json.loads, consumed(server, format="json"))

    assert keyed["key"] == ""
    assert "key" not in plain


def test_bytes_that_are_no_text_go_through(server: str) -> None:
    value = os.fsdecode(b"\xff\xfe")
    succeed("produce", "orders", value, "--key", value, server=server)

    assert run("consume", "orders", "-o", "raw", server=server).output == b"\xff\xfe\n"


def test_lines_that_are_piped_in_come_out_in_order(server: str) -> None:
    summary = succeed("produce", "orders", server=server, stdin=b"\n".join(LINES) + b"\n")

    assert summary.startswith("1,000 messages (7.7 KiB) stored in orders, ")
    assert consumed(server) == [line.decode() for line in LINES]


def test_lines_come_from_a_file_with_their_keys_and_are_counted(server: str, tmp_path: Path) -> None:
    (tmp_path / "lines").write_bytes(b"a:1\r\nb:2:3\n:4\nc:")

    counted = json.loads(
        succeed("produce", "orders", "--file", f"{tmp_path}/lines", "--key-separator", ":", "-o", "json", server=server)
    )

    assert (counted["topic"], counted["count"], counted["bytes"]) == ("orders", 4, 5)
    assert consumed(server, format="{offset} {key} {value}") == ["0 a 1", "1 b 2:3", "2  4", "3 c "]


def test_a_line_without_a_key_is_named_and_those_before_it_are_stored(server: str) -> None:
    code, complaint = fail(
        "produce", "orders", "--key-separator", ":", server=server, stdin=b"a:1\nb:2\nnothing\nd:4\n"
    )

    assert code == 1
    assert complaint == "error line 3 has no ':' between key and value; 2 lines before it are stored"
    assert consumed(server) == ["1", "2"]


def test_no_line_is_no_message(server: str) -> None:
    assert succeed("produce", "orders", server=server, stdin=b"").startswith("0 messages (0 B) stored in orders")


def test_a_part_of_the_topic_is_read(server: str) -> None:
    succeed("produce", "orders", server=server, stdin=b"\n".join(LINES[:10]))

    assert consumed(server, "--offset", "7") == ["line 7", "line 8", "line 9"]
    assert consumed(server, "--offset", "2", "-n", "2") == ["line 2", "line 3"]
    assert consumed(server, "--partition", "0", "-n", "1") == ["line 0"]
    assert consumed(server, "--from", "1h ago", "-n", "1") == ["line 0"]
    assert consumed(server, "--to", "1h ago") == []


def test_messages_of_all_partitions_are_read(server: str) -> None:
    succeed("topic", "create", "wide", "--partitions", "4", server=server)
    succeed("produce", "wide", "--key-separator", ":", server=server, stdin=b"".join(b"%d:v\n" % n for n in range(20)))

    found = succeed("consume", "wide", "-o", "{partition} {key}", server=server).splitlines()

    assert sorted(int(line.split()[1]) for line in found) == list(range(20))
    assert {line.split()[0] for line in found} == {"0", "1", "2", "3"}
    succeed("topic", "delete", "wide", "-y", server=server)


def test_text_and_yaml_are_formats_too(server: str) -> None:
    succeed("produce", "orders", "hello", "-k", "me", server=server)

    assert consumed(server, format="text")[0].endswith("Z 0:0 key=me hello")
    assert yaml.safe_load(succeed("consume", "orders", "-o", "yaml", server=server))["value"] == "hello"


@pytest.mark.parametrize(
    ("arguments", "code", "complaint"),
    [
        (("consume", "nothing"), 1, "error topic not found: nothing"),
        (("consume", "orders", "--partition", "9"), 1, "error partition not found: orders-9"),
        (("consume", "orders", "--format", "{colour}"), 2, "{colour} is not a field of a message"),
        (("consume", "orders", "--from", "yesterday"), 2, "'yesterday' is not a time"),
        (("consume", "orders", "--offset", "-1"), 2, "'--offset'"),
        (("consume", "orders", "-f", "--to", "now"), 2, "--follow never ends by itself; press Ctrl-C"),
        (("produce", "nothing", "x"), 1, "error topic not found: nothing"),
        (("produce", "orders", "x", "--partition", "9"), 1, "error partition not found: orders-9"),
        (("produce", "orders", "x", "--priority", "urgent"), 1, "error invalid priority"),
        (("produce", "orders", "x", "--delay", "soon"), 2, "'soon' is not a duration"),
        (("produce", "orders", "x", "--delay", "-5s"), 2, "a delay is 0 or more"),
        (("produce", "orders", "x", "--ttl", "0s"), 2, "a time to live is more than 0"),
        (("produce", "orders", "x", "-H", "source"), 2, "'source' is not NAME=VALUE"),
        (("produce", "orders", "x", "--file", "y"), 2, "give a value or a file, not both"),
        (("produce", "orders", "--file", "/no/such"), 2, "/no/such: No such file or directory"),
        (("produce", "orders", "--key", "a", "--key-separator", ":"), 2, "give either --key or --key-separator"),
    ],
)
def test_what_goes_wrong_is_said_in_one_line(
    server: str, arguments: tuple[str, ...], code: int, complaint: str
) -> None:
    found_code, found = fail(*arguments, server=server)

    assert found_code == code
    assert complaint in found if code == 2 else found.startswith(complaint)


@contextmanager
def consuming(server: str, *arguments: str) -> "Iterator[subprocess.Popen[bytes]]":
    """`goqueue consume orders`, which is gone at the end of the block whatever happens."""
    command = [sys.executable, "-m", "goqueue.cli", "consume", "orders", "--server", server, *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            yield process
        finally:
            process.kill()


def test_follow_prints_what_comes_at_once_and_ctrl_c_leaves_cleanly(server: str) -> None:
    with Client(server) as client, consuming(server, "-f", "--offset", "0", "-o", "raw") as follower:
        assert follower.stdout
        for value in ("first", "second"):
            client.publish("orders", value)
            assert follower.stdout.readline() == f"{value}\n".encode()

        follower.send_signal(signal.SIGINT)
        output, errors = follower.communicate(timeout=60)

    assert (follower.returncode, output, errors) == (0, b"", b"")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_lines_that_were_read_are_stored_when_a_signal_ends_it(server: str, number: signal.Signals, code: int) -> None:
    command = [sys.executable, "-m", "goqueue.cli", "produce", "orders", "--server", server, "--partition", "0"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with Client(server) as client, subprocess.Popen(command, **pipes) as process:
        try:
            assert process.stdin
            process.stdin.write(b"".join(b"%d\n" % line for line in range(100)))
            process.stdin.flush()
            next(iter(client.follow("orders", start="earliest")))
            process.stdin.write(b"last\n")
            process.stdin.flush()
            process.send_signal(number)
            _, errors = process.communicate(timeout=60)
        finally:
            process.kill()
        stored = [message.value for message in client.read("orders", partition=0)]

    assert process.returncode == code, errors
    assert b"interrupted after 10" in errors
    assert stored[:100] == [b"%d" % line for line in range(100)]
    assert len(stored) == int(errors.split()[-4])


def test_sigterm_ends_a_follower_cleanly(server: str) -> None:
    with Client(server) as client, consuming(server, "-f", "--offset", "0", "-o", "raw") as follower:
        assert follower.stdout
        client.publish("orders", "first")
        assert follower.stdout.readline() == b"first\n"
        follower.send_signal(signal.SIGTERM)
        output, errors = follower.communicate(timeout=60)

    assert (follower.returncode, output, errors) == (143, b"", b"")


def test_follow_ends_by_itself_at_its_limit(server: str) -> None:
    succeed("produce", "orders", server=server, stdin=b"1\n2\n3\n")

    assert consumed(server, "--follow", "--offset", "1", "--limit", "2") == ["2", "3"]


def test_a_pipe_that_is_closed_ends_it_quietly(server: str) -> None:
    succeed("produce", "orders", server=server, stdin=b"\n".join([b"x" * 1000] * 5_000))

    with consuming(server, "-o", "raw") as reader:
        assert reader.stdout
        assert reader.stderr
        reader.stdout.readline()
        reader.stdout.close()
        errors = reader.stderr.read()
        code = reader.wait(timeout=60)

    assert (code, errors) == (0, b"")


def test_what_one_topic_holds_can_be_piped_into_another(server: str) -> None:
    succeed("produce", "orders", server=server, stdin=b"\n".join(LINES))
    succeed("topic", "create", "copy", "-p", "1", server=server)

    lines = goqueue("consume", "orders", "-o", "raw", "--server", server).stdout
    goqueue("produce", "copy", "--server", server, stdin=lines)

    assert succeed("consume", "copy", "-o", "raw", server=server).splitlines() == [line.decode() for line in LINES]
    succeed("topic", "delete", "copy", "-y", server=server)


@pytest.mark.parametrize("how", [(), ("--group", "g")])
def test_damage_is_a_warning_on_standard_error_and_the_rest_is_printed(
    server: str, broker: EmbeddedBroker, how: tuple[str, ...]
) -> None:
    with Client(server) as client:
        client.publish_many("orders", [b"first-value", b"second-value", b"third-value"])
    flip(broker.data, "orders", b"second-value")

    done = run("consume", "orders", "--format", "raw", *how, server=server)

    assert (done.code, done.output) == (0, b"first-value\nthird-value\n")
    assert done.complaint.count("offset 1 of orders/0 cannot be read") == 1
    assert done.complaint.startswith("warning ")
