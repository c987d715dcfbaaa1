"""`goqueue transaction`, and what `produce` and `consume` know of transactions, end to end."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from goqueue import Client, TransactionAborted
from goqueue.cli.commands import transaction as commands
from goqueue.testing import EmbeddedBroker
from goqueue.wire.reports import PartitionName
from goqueue.wire.transaction_reports import TransactionInfo
from tests.cli.command_line import fail, run, succeed, tidied

SECOND = 10**9


@pytest.fixture
def client(broker: EmbeddedBroker) -> Iterator[Client]:
    with Client(broker.address) as client, tidied(client):
        client.create_topic("orders", partitions=1)
        yield client


def values(client: Client) -> list[bytes]:
    return [message.value for message in client.read("orders")]


# --- transaction --------------------------------------------------------------------------------


def test_open_transactions_are_listed_the_oldest_first(client: Client, server: str) -> None:
    assert succeed("transaction", "list", server=server) == "no transaction is open\n"
    with client.transaction("z") as older, client.transaction("a/b ü") as younger:
        older.publish("orders", b"v")
        shown = succeed("transaction", "list", server=server)
        found = json.loads(succeed("transaction", "list", "-o", "json", server=server))
        same = yaml.safe_load(succeed("transaction", "list", "-o", "yaml", server=server))
        ids = [older.id, younger.id]

    rows = [line for line in shown.splitlines() if "Ongoing" in line]
    assert [row.split()[0] for row in rows] == [ids[0], "a/b"]
    assert rows[0].split()[-1] == "1"
    assert [one["transaction_id"] for one in found] == [one["transaction_id"] for one in same] == ids
    first = found[0]
    assert first["start_time"] == first["started_at"]
    assert {name: first[name] for name in ("transactional_id", "state", "timeout_ms", "partitions", "groups")} == {
        "transactional_id": "z",
        "state": "Ongoing",
        "timeout_ms": 60_000,
        "partitions": [{"topic": "orders", "partition": 0}],
        "groups": [],
    }
    assert first["age"].endswith("s")


def test_one_that_holds_up_readers_for_long_is_hinted_at() -> None:
    partitions = [PartitionName("orders", number) for number in range(7)]
    found = TransactionInfo("a:7", "a", 1, 0, "Ongoing", 0, 0, 60_000, partitions, [])
    hint = commands._hint(found, 42 * SECOND)
    assert hint == (
        "a:7 blocks readers of orders-0, orders-1, orders-2, orders-3, orders-4 and 2 more for 42s; "
        "it times out in 18s; abort it now with `goqueue transaction abort a:7`"
    )


def test_the_hint_is_given_where_people_look_and_nowhere_else(client: Client, server: str) -> None:
    before, commands.PATIENCE_NS = commands.PATIENCE_NS, 0
    try:
        with client.transaction("empty"):
            assert run("transaction", "list", server=server).complaint == ""
            with client.transaction("full") as tx:
                tx.publish("orders", b"v")
                outcome = run("transaction", "list", server=server)
                assert (outcome.code, f"warning {tx.id} blocks readers of orders-0" in outcome.complaint) == (0, True)
                assert run("transaction", "list", "-o", "json", server=server).complaint == ""
    finally:
        commands.PATIENCE_NS = before


def test_one_is_described_with_what_waits_behind_it(client: Client, server: str) -> None:
    client.publish("orders", b"done")
    with client.consumer("orders", group="billing") as consumer, client.transaction("a") as tx:
        tx.ack(consumer.poll(1, "20s"))
        tx.publish("orders", b"inside")
        client.publish("orders", b"behind")
        shown = succeed("transaction", "describe", tx.id, server=server)
        found = json.loads(succeed("transaction", "describe", tx.id, "-o", "json", server=server))
        name = tx.id

    for wanted in (name, "Ongoing", "epoch 0", "billing"):
        assert wanted in shown
    assert [line.split() for line in shown.splitlines() if line.strip()][-1] == ["orders", "0", "2"]
    assert found["held_up"] == [{"topic": "orders", "partition": 0, "records": 2}]
    assert found["groups"] == ["billing"]
    code, complaint = fail("transaction", "describe", name, server=server)
    assert (code, f"transaction not found: {name}" in complaint) == (1, True)


def test_a_topic_that_is_gone_holds_up_nobody(client: Client, server: str) -> None:
    client.create_topic("other", partitions=1)
    with client.transaction("a") as tx:
        tx.publish("other", b"v")
        client.delete_topic("other")
        found = json.loads(succeed("transaction", "describe", tx.id, "-o", "json", server=server))
    assert found["held_up"] == []


def test_an_abandoned_transaction_is_aborted(client: Client, server: str) -> None:
    with client.transaction("a") as tx:
        assert "pass --yes" in fail("transaction", "abort", tx.id, server=server)[1]
        assert len(client.transactions()) == 1
        assert succeed("transaction", "abort", tx.id, "--yes", server=server) == f"{tx.id} is aborted\n"
        again = succeed("transaction", "abort", tx.id, "-y", "-o", "json", server=server)
        assert json.loads(again) == {"transaction_id": tx.id, "status": "aborted"}
        with pytest.raises(TransactionAborted):
            tx.publish("orders", b"v")
        tx.abort()
    code, complaint = fail("transaction", "abort", "nobody:7", "--yes", server=server)
    assert (code, "transaction not found: nobody:7" in complaint) == (1, True)


def test_transactions_are_counted(client: Client, server: str) -> None:
    before = json.loads(succeed("transaction", "stats", "-o", "json", server=server))
    with client.transaction("counted") as tx:
        tx.publish("orders", b"v")
    after = json.loads(succeed("transaction", "stats", "-o", "json", server=server))
    assert after["committed_total"] == before["committed_total"] + 1
    assert after.keys() == {
        "active_transactions",
        "committed_total",
        "aborted_total",
        "avg_duration",
        "by_state",
        "producers",
    }
    shown = succeed("transaction", "stats", server=server)
    assert "committed" in shown
    assert "CompleteCommit" in shown


# --- produce ------------------------------------------------------------------------------------


def test_all_lines_are_stored_together(client: Client, server: str, tmp_path: Path) -> None:
    file = tmp_path / "lines"
    file.write_bytes(b"".join(b"%d\n" % number for number in range(2_500)))
    shown = succeed("produce", "orders", "--file", str(file), "--transactional-id", "import", server=server)
    assert shown.startswith("2,500 messages")
    assert len(set(values(client))) == 2_500
    assert client.transactions() == []

    succeed("produce", "orders", "--transactional-id", "import", server=server, stdin=b"a\nb\n")
    assert values(client)[-2:] == [b"a", b"b"]


def test_one_message_is_stored_in_a_transaction_of_its_own(client: Client, server: str) -> None:
    answer = succeed("produce", "orders", "v", "--transactional-id", "one", "--key", "k", "-o", "json", server=server)
    assert json.loads(answer)["offset"] == 0
    (message,) = client.read("orders")
    assert (message.value, message.key) == (b"v", b"k")


def test_what_goes_wrong_in_one_line_takes_all_of_them_back(client: Client, server: str) -> None:
    code, complaint = fail(
        "produce",
        "orders",
        "--key-separator",
        ":",
        "--transactional-id",
        "import",
        server=server,
        stdin=b"k:1\nk:2\nno key\n",
    )
    assert (code, "line 3 has no ':' between key and value; nothing is stored" in complaint) == (1, True)
    assert client.transactions() == []
    client.register_schema("orders-value", {"type": "object"})
    try:
        code, complaint = fail(
            "produce", "orders", "--transactional-id", "import", server=server, stdin=b"{}\n{}\nno JSON\n"
        )
    finally:
        client.delete_schema("orders-value")
        client.delete_schema("orders-value", permanent=True)
    assert code == 1
    assert values(client) == []
    assert client.transactions() == []


def test_what_has_a_marker_is_stored_once(client: Client, server: str) -> None:
    command = ("produce", "orders", "--transactional-id", "import", "--marker", "2026-01-31")
    assert succeed(*command, server=server, stdin=b"a\nb\n").startswith("2 messages")
    again = succeed(*command, server=server, stdin=b"a\nb\n")
    assert again == "a transaction with this marker is committed already; nothing is stored\n"
    assert json.loads(succeed(*command, "v", "-o", "json", server=server)) == {"already_committed": True}
    assert values(client) == [b"a", b"b"]


def test_a_transaction_may_take_longer(client: Client, server: str) -> None:
    command = ("produce", "orders", "v", "--transactional-id", "import", "--transaction-timeout")
    succeed(*command, "5m", server=server)
    assert "transaction_timeout_ms" in fail(*command, "5h", server=server)[1]
    assert fail(*command, "soon", server=server)[0] == 2


@pytest.mark.parametrize(
    ("options", "hint"),
    [
        (["--marker", "m"], "--marker"),
        (["--transaction-timeout", "5s"], "--transaction-timeout"),
        (["--transactional-id", "a", "--acks", "none"], "--acks"),
        (["--transactional-id", "a", "--compression", "zstd"], "--compression"),
    ],
)
def test_options_that_do_not_go_together_are_refused(server: str, options: list[str], hint: str) -> None:
    code, complaint = fail("produce", "orders", "v", *options, server=server)
    assert (code, hint in complaint) == (2, True)


# --- consume ------------------------------------------------------------------------------------


def test_what_is_not_committed_is_shown_to_those_who_ask(client: Client, server: str) -> None:
    client.publish("orders", b"before")
    with client.transaction("a") as tx:
        tx.publish("orders", b"inside")
        committed = succeed("consume", "orders", "-o", "raw", server=server)
        everything = succeed("consume", "orders", "-o", "raw", "--isolation", "read_uncommitted", server=server)
        followed = succeed(
            "consume",
            "orders",
            "-fn",
            "2",
            "--offset",
            "0",
            "-o",
            "raw",
            "--isolation",
            "read_uncommitted",
            server=server,
        )
        tx.abort()
    assert (committed, everything, followed) == ("before\n", "before\ninside\n", "before\ninside\n")
    assert succeed("consume", "orders", "-o", "raw", "--isolation", "read_committed", server=server) == "before\n"
    code, complaint = fail("consume", "orders", "--group", "g", "--isolation", "read_uncommitted", server=server)
    assert (code, "--isolation" in complaint) == (2, True)
    assert fail("consume", "orders", "--isolation", "dirty", server=server)[0] == 2
