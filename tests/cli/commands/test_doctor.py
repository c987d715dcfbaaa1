"""`goqueue doctor` and `goqueue log verify` on a whole data directory."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from goqueue import Client
from goqueue.testing import EmbeddedBroker
from tests.cli.command_line import fail, run, succeed


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(http=False, data=tmp_path / "data") as broker:
        with Client(broker.address) as client:
            client.create_topic("orders", partitions=1)
            client.publish("orders", b"a")
        yield broker


def test_a_broker_that_is_well(broker: EmbeddedBroker) -> None:
    lines = [line.split() for line in succeed("doctor", server=broker.address).splitlines()]

    assert ["storage", "pass", "-"] in lines
    assert [line[:2] for line in lines if line and line[0] in ("broker", "disk")] == [
        ["broker", "pass"],
        ["disk", "pass"],
    ]


def test_a_broker_and_its_disk(broker: EmbeddedBroker) -> None:
    findings = json.loads(succeed("doctor", broker.data, "-o", "json", server=broker.address))

    assert [(one["check"], one["status"]) for one in findings] == [
        ("broker", "pass"),
        ("storage", "pass"),
        ("cluster", "pass"),
        ("disk", "pass"),
        ("files", "pass"),
    ]


def test_a_broker_that_is_not_there() -> None:
    outcome = run("doctor", server="127.0.0.1:1")

    assert outcome.code == 1
    assert b"cannot reach broker" in outcome.output


def test_files_that_are_damaged(broker: EmbeddedBroker, tmp_path: Path) -> None:
    broker.stop()
    (tmp_path / "data/topics/orders/topic.json").write_text("{}")

    outcome = run("doctor", str(tmp_path / "data"), "-o", "json")

    assert outcome.code == 3
    findings = json.loads(outcome.output)
    assert findings[0] == {"check": "broker", "status": "warn", "message": "no broker has this directory open"}
    assert f"{tmp_path}/data/topics/orders/topic.json" in findings[1]["message"]


def test_verify_of_a_whole_data_directory(broker: EmbeddedBroker, tmp_path: Path) -> None:
    while_running = run("log", "verify", broker.data)
    assert "a broker has" in while_running.complaint
    broker.stop()

    for place in ("data", "data/topics/orders", "data/topics/orders/0"):
        output = succeed("log", "verify", str(tmp_path / place))
        assert "0 damaged places" in output
        assert "sound" in output

    (tmp_path / "data/topics/orders/topic.json").write_text("{}")
    outcome = run("log", "verify", str(tmp_path / "data"))
    assert outcome.code == 3
    assert b"DAMAGED" in outcome.output
    assert f"damaged {tmp_path}/data/topics/orders/topic.json".encode() in outcome.output


def test_a_directory_that_is_none_of_ours(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")

    code, complaint = fail("log", "verify", str(tmp_path))

    assert code == 1
    assert "not a file of GoQueue" in complaint


def test_a_topic_that_is_not_served(broker: EmbeddedBroker, tmp_path: Path) -> None:
    with Client(broker.address) as client:
        client.create_topic("payments", partitions=1)
    broker.stop()
    (tmp_path / "data/topics/orders/topic.json").write_text("{}")

    with EmbeddedBroker(http=False, data=tmp_path / "data") as again:
        checked = run("doctor", "-o", "json", server=again.address)
        listed = run("topic", "list", server=again.address)

    assert checked.code == 1
    (finding,) = [one for one in json.loads(checked.output) if one["status"] == "fail"]
    assert finding["check"] == "topic orders"
    assert "not served" in finding["message"]
    assert listed.code == 0
    assert listed.output.split() == [b"payments"]
    assert listed.complaint.startswith("not served: orders (")
