"""`goqueue topic`, end to end."""

import json
from collections.abc import Iterator

import pytest
import yaml

from goqueue.testing import EmbeddedBroker
from tests.cli.command_line import fail, goqueue, succeed


@pytest.fixture
def server() -> Iterator[str]:
    with EmbeddedBroker(http=False) as broker:
        yield broker.address


def test_a_topic_from_its_creation_to_its_end(server: str) -> None:
    created = succeed("topic", "create", "orders", "--partitions", "2", "--retention", "7d", server=server)
    assert created == "topic orders has 2 partitions\n"

    assert succeed("topic", "list", server=server) == "orders\n"

    described = succeed("topic", "describe", "orders", server=server)
    assert ["retention", "168h"] in [line.split() for line in described.splitlines()]
    assert ["flush", "group", "default"] in [line.split() for line in described.splitlines()]
    assert ["1", "0", "0", "0", "0", "0", "B"] in [line.split() for line in described.splitlines()]

    altered = json.loads(
        succeed(
            "topic", "alter", "orders", "--set", "max_deliveries=5", "--reset", "retention", "-o", "json", server=server
        )
    )
    assert altered["config"]["max_deliveries"] == 5
    assert "max_deliveries" not in altered["defaults"]
    assert "retention" in altered["defaults"]

    assert succeed("topic", "delete", "orders", "--yes", server=server) == "topic orders is deleted\n"
    assert succeed("topic", "list", "-o", "json", server=server) == "[]\n"


def test_json_and_yaml_hold_the_same(server: str) -> None:
    settings = ("--set", "flush=interval", "--set", "dirty_ratio=0.25", "--set", "ttl=1h")
    created = json.loads(succeed("topic", "create", "orders", *settings, "-o", "json", server=server))

    described = yaml.safe_load(succeed("topic", "describe", "orders", "-o", "yaml", server=server))

    assert created == described
    assert [created["config"][name] for name in ("flush", "dirty_ratio", "ttl")] == ["interval", 0.25, "1h"]
    assert created["partitions"][0] == {
        "partition": 0,
        "leader": 0,
        "log_start_offset": 0,
        "log_end_offset": 0,
        "high_watermark": 0,
        "last_stable_offset": 0,
        "messages": 0,
        "size_bytes": 0,
    }
    assert yaml.safe_load(succeed("topic", "list", "-o", "yaml", server=server)) == ["orders"]


def test_a_topic_that_exists_is_fine_only_if_that_is_said(server: str) -> None:
    succeed("topic", "create", "orders", server=server)

    assert fail("topic", "create", "orders", server=server) == (1, "error topic already exists: orders")
    assert succeed("topic", "create", "orders", "--exist-ok", server=server) == "topic orders has 3 partitions\n"


@pytest.mark.parametrize(
    ("arguments", "code", "complaint"),
    [
        (("describe", "nothing"), 1, "error topic not found: nothing"),
        (("delete", "nothing", "--yes"), 1, "error topic not found: nothing"),
        (("create", "a/b"), 1, "error invalid topic name 'a/b': must be 1 to 249"),
        (("create", "x", "--set", "flush=often"), 1, "error invalid topic setting flush: must be one of group"),
        (("create", "x", "--set", "colour=red"), 1, "error invalid topic setting colour: there is no such setting"),
        (("create", "x", "--set", "flush"), 2, "'flush' is not NAME=VALUE"),
        (("create", "x", "--retention", "soon"), 2, "'soon' is not a duration"),
        (("create", "x", "--partitions", "0"), 2, "'--partitions'"),
        (("create", "x", "--set", "partitions=3"), 2, "partitions is not a setting of a topic"),
        (("alter", "x"), 2, "pass --set NAME=VALUE or --reset NAME"),
        (("list", "-o", "xml"), 2, "'xml' is not one of"),
    ],
)
def test_what_goes_wrong_is_said_in_one_line(
    server: str, arguments: tuple[str, ...], code: int, complaint: str
) -> None:
    found_code, found = fail("topic", *arguments, server=server)

    assert found_code == code
    assert complaint in found if code == 2 else found.startswith(complaint)


def test_nothing_is_deleted_where_nobody_can_be_asked(server: str) -> None:
    succeed("topic", "create", "orders", server=server)

    code, complaint = fail("topic", "delete", "orders", server=server)

    assert code == 2
    assert "--yes" in complaint
    assert succeed("topic", "list", server=server) == "orders\n"


def test_a_broker_that_is_not_there_is_named() -> None:
    with EmbeddedBroker(http=False) as broker:
        nobody = broker.address

    result = goqueue("topic", "list", "--server", nobody)

    assert result.returncode == 1
    assert result.stderr.decode() == (
        f"error cannot reach broker at {nobody} (Connection refused); start one with `goqueue serve`\n"
    )


def test_the_next_server_is_tried_if_one_is_not_there(server: str) -> None:
    with EmbeddedBroker(http=False) as broker:
        nobody = broker.address

    assert succeed("topic", "list", "--server", f"{nobody},{server}", "-o", "json") == "[]\n"


def test_messages_before_an_offset_are_deleted(server: str) -> None:
    succeed("topic", "create", "orders", "--partitions", "1", server=server)
    for value in "abc":
        succeed("produce", "orders", value, server=server)

    _, unconfirmed = fail("topic", "truncate", "orders", "--partition", "0", "--before", "2", server=server)
    assert "--yes" in unconfirmed
    _, bad = fail("topic", "truncate", "orders", "--partition", "0", "--before", "soon", "--yes", server=server)
    assert "neither an offset nor latest" in bad

    done = succeed("topic", "truncate", "orders", "--partition", "0", "--before", "2", "--yes", server=server)
    assert done == "orders-0 starts at offset 2\n"
    assert succeed("consume", "orders", server=server).split()[-1:] == ["c"]
    done = succeed("topic", "truncate", "orders", "--partition", "0", "--before", "latest", "-y", server=server)
    assert done == "orders-0 starts at offset 3\n"
