"""`goqueue schema`, end to end."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from goqueue import Client
from goqueue.testing import EmbeddedBroker
from tests.cli.command_line import fail, run, succeed

ORDER = {
    "type": "object",
    "properties": {"id": {"type": "integer"}},
    "required": ["id"],
    "additionalProperties": False,
}
WIDER = ORDER | {"properties": {"id": {"type": "integer"}, "total": {"type": "number"}}}
OTHER = {"type": "string"}
MONEY = 'syntax = "proto3";\nmessage Money {\n  int64 cents = 1;\n}\n'
BILL = 'syntax = "proto3";\nimport "money.proto";\nmessage Bill {\n  Money total = 1;\n}\n'


@pytest.fixture
def server() -> Iterator[str]:
    """A broker of the test's own: a number that was given out once is never given out again."""
    with EmbeddedBroker(http=False) as broker:
        yield broker.address


@pytest.fixture
def client(server: str) -> Iterator[Client]:
    with Client(server) as client:
        yield client


@pytest.fixture
def order(tmp_path: Path) -> str:
    return written(tmp_path / "order.json", ORDER)


def written(path: Path, content: object) -> str:
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return str(path)


def test_a_schema_from_its_registration_to_its_end(server: str, order: str, tmp_path: Path) -> None:
    assert succeed("schema", "list", server=server) == "there are no subjects\n"
    registered = json.loads(succeed("schema", "register", "orders-value", order, "-o", "json", server=server))
    assert registered.keys() == {"subject", "version", "id", "guid"}
    wider = written(tmp_path / "wider.json", WIDER)
    said = succeed("schema", "register", "orders-value", wider, server=server)
    assert said == f"orders-value version 2 is schema {registered['id'] + 1}\n"

    assert succeed("schema", "list", server=server) == "orders-value\n"
    assert json.loads(succeed("schema", "list", "--prefix", "x", "-o", "json", server=server)) == []
    versions = yaml.safe_load(succeed("schema", "versions", "orders-value", "-o", "yaml", server=server))
    assert [(one["version"], one["schemaType"]) for one in versions] == [(1, "JSON"), (2, "JSON")]
    assert registered["guid"] in succeed("schema", "versions", "orders-value", server=server)
    found = succeed("schema", "lookup", "orders-value", order, server=server)
    assert found == f"orders-value version 1 is schema {registered['id']}\n"

    assert succeed("schema", "delete", "orders-value", "--version", "1", server=server) == (
        "1 version of orders-value deleted: 1\n"
    )
    assert "deleted" in succeed("schema", "versions", "orders-value", "--deleted", server=server)
    assert succeed("schema", "delete", "orders-value", server=server) == "1 version of orders-value deleted: 2\n"
    gone = succeed("schema", "delete", "orders-value", "--permanent", "--yes", server=server)
    assert gone == "2 versions of orders-value deleted permanently: 1, 2\n"
    assert succeed("schema", "list", "--deleted", server=server) == "there are no subjects\n"


def test_a_schema_is_shown_by_subject_version_or_id(server: str, client: Client, order: str) -> None:
    made = client.register_schema("orders-value", ORDER)
    client.register_schema("orders-value", WIDER)

    shown = json.loads(succeed("schema", "get", "orders-value", "--version", "1", "-o", "json", server=server))
    assert (shown["subject"], shown["version"], shown["id"], shown["guid"]) == (
        "orders-value",
        1,
        made.id,
        made.guid,
    )
    assert json.loads(shown["schema"]) == ORDER
    text = succeed("schema", "get", "--id", str(made.id), "--text", server=server)
    assert text == made.schema
    table = succeed("schema", "get", "orders-value", server=server)
    assert "orders-value version 2" in table
    assert '"total"' in table
    for wrong in (("schema", "get"), ("schema", "get", "orders-value", "--id", "1")):
        assert fail(*wrong, server=server) == (2, fail(*wrong, server=server)[1])
        assert "give either a subject or --id" in fail(*wrong, server=server)[1]


def test_a_schema_comes_from_standard_input_and_refers_to_others(server: str, tmp_path: Path) -> None:
    succeed("schema", "register", "money", "-", "--type", "protobuf", server=server, stdin=MONEY.encode())
    bill = written(tmp_path / "bill.proto", BILL)
    made = ("schema", "register", "bills-value", bill, "-t", "PROTOBUF", "--ref", "money.proto:money:1")

    succeed(*made, server=server)

    shown = json.loads(succeed("schema", "get", "bills-value", "-o", "json", server=server))
    assert shown["references"] == [{"name": "money.proto", "subject": "money", "version": 1}]
    assert "money.proto, which is money version 1" in succeed("schema", "get", "bills-value", server=server)
    for wrong in ("money.proto", "money.proto:money", "money.proto:money:x", ":money:1", "money.proto::1"):
        code, complaint = fail(*made[:-1], wrong, server=server)
        assert (code, "is not NAME:SUBJECT:VERSION" in complaint) == (2, True)


def test_a_schema_that_does_not_fit_is_told_why(server: str, client: Client, tmp_path: Path) -> None:
    client.register_schema("orders-value", ORDER)
    wider, other = written(tmp_path / "wider.json", WIDER), written(tmp_path / "other.json", OTHER)

    assert succeed("schema", "check", "orders-value", wider, server=server) == (
        "it fits orders-value, which is BACKWARD\n"
    )
    refused = run("schema", "check", "orders-value", other, server=server)
    assert refused.code == 1
    first, *reasons = refused.output.decode().splitlines()
    assert first == "it does not fit orders-value, which is BACKWARD"
    assert reasons
    data = json.loads(run("schema", "check", "orders-value", other, "-v", "1", "-o", "json", server=server).output)
    assert (data["is_compatible"], data["messages"]) == (False, reasons)
    code, complaint = fail("schema", "register", "orders-value", other, server=server)
    assert (code, "incompatible schema" in complaint) == (1, True)


def test_levels_and_modes(server: str, client: Client, order: str) -> None:
    assert succeed("schema", "config", "get", server=server) == "BACKWARD\n"
    assert succeed("schema", "config", "set", "full", "orders-value", server=server) == "orders-value: FULL\n"
    assert succeed("schema", "config", "get", "orders-value", server=server) == "FULL\n"
    assert succeed("schema", "config", "set", "default", "orders-value", server=server) == "orders-value: BACKWARD\n"
    assert succeed("schema", "config", "set", "NONE", server=server) == "subjects without their own: NONE\n"
    assert json.loads(succeed("schema", "config", "get", "-o", "json", server=server))["compatibilityLevel"] == "NONE"
    code, complaint = fail("schema", "config", "set", "sometimes", server=server)
    assert (code, "sometimes" in complaint.lower()) == (1, True)

    assert succeed("schema", "policy", "get", "orders-value", server=server) == "STRICT\n"
    assert succeed("schema", "policy", "set", "lenient", "orders-value", server=server) == "orders-value: LENIENT\n"
    shown = json.loads(succeed("schema", "config", "get", "orders-value", "-o", "json", server=server))
    assert shown["compatibilityPolicy"] == "LENIENT"
    assert succeed("schema", "policy", "set", "default", "orders-value", server=server) == "orders-value: STRICT\n"
    assert succeed("schema", "policy", "set", "LENIENT", server=server) == "subjects without their own: LENIENT\n"
    code, complaint = fail("schema", "policy", "set", "generous", server=server)
    assert (code, "must be one of STRICT, LENIENT" in complaint) == (1, True)

    assert succeed("schema", "mode", "get", server=server) == "READWRITE\n"
    assert succeed("schema", "mode", "set", "READONLY", "orders-value", server=server) == "orders-value: READONLY\n"
    code, complaint = fail("schema", "register", "orders-value", order, server=server)
    assert (code, "operation refused" in complaint) == (1, True)
    assert succeed("schema", "mode", "set", "default", "orders-value", server=server) == "orders-value: READWRITE\n"
    client.register_schema("orders-value", ORDER)
    assert fail("schema", "mode", "set", "IMPORT", server=server)[0] == 1
    assert "IMPORT" in succeed("schema", "mode", "set", "IMPORT", "--force", server=server)
    assert "READWRITE" in succeed("schema", "mode", "set", "default", server=server)


def test_messages_are_checked_before_they_are_published(server: str, client: Client, tmp_path: Path) -> None:
    client.create_topic("orders", partitions=1)
    client.register_schema("orders-value", ORDER)
    good = written(tmp_path / "good.json", {"id": 1})

    assert succeed("schema", "validate", "orders", good, server=server) == "1 of 1 message would be accepted\n"
    outcome = run("schema", "validate", "orders", "-", server=server, stdin=b'{"id": "one"}')
    assert (outcome.code, outcome.output) == (1, b"0 of 1 message would be accepted\n")
    assert "/id" in outcome.complaint
    lines = b'{"id": 1}\n{}\n{"id": 2}\n'
    outcome = run("schema", "validate", "orders", "-", "--lines", "-o", "json", server=server, stdin=lines)
    data = json.loads(outcome.output)
    assert (outcome.code, data["valid"], [one["line"] for one in data["refused"]]) == (1, 2, [2])
    assert "line 2: " in outcome.complaint
    assert list(client.read("orders")) == []
    code, complaint = fail("schema", "validate", "none", good, server=server)
    assert (code, "topic not found: none" in complaint) == (1, True)


def test_the_registry_in_numbers(server: str, client: Client) -> None:
    assert "BACKWARD" in succeed("schema", "stats", server=server)
    client.register_schema("orders-value", ORDER)

    stats = json.loads(succeed("schema", "stats", "-o", "json", server=server))

    assert (stats["subjects"], stats["versions"]) == (1, 1)
    assert stats["details"][0]["subject"] == "orders-value"
    assert "orders-value" in succeed("schema", "stats", server=server)


def test_complaints_are_for_people(server: str, client: Client, order: str, tmp_path: Path) -> None:
    client.register_schema("orders-value", ORDER)
    binary = tmp_path / "binary"
    binary.write_bytes(b"\xff")
    for arguments, code, said in (
        (("versions", "none"), 1, "subject not found: none"),
        (("get", "none"), 1, "subject not found: none"),
        (("get", "orders-value", "--version", "7"), 1, "version not found: 7"),
        (("get", "--id", "4711"), 1, "schema not found"),
        (("lookup", "none", order), 1, "subject not found: none"),
        (("register", "a", str(tmp_path / "missing")), 2, "No such file"),
        (("register", "a", str(binary)), 2, "is not UTF-8 text"),
        (("register", "a", order, "--type", "xml"), 2, "xml"),
        (("delete", "orders-value", "--permanent"), 2, "pass --yes when there is no terminal"),
        (("delete", "orders-value", "--permanent", "--yes"), 1, "subject not found: orders-value"),
    ):
        found, complaint = fail("schema", *arguments, server=server)
        assert (found, said in complaint) == (code, True), complaint
    code, complaint = fail("schema", "register", "a", "-", server=server, stdin=b"{")
    assert (code, "invalid schema" in complaint) == (1, True)
