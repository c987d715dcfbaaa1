"""Schemas from the Python client: registered, looked at, held against messages."""

import asyncio
import json
from collections.abc import Iterator

import pytest

from goqueue import (
    AsyncClient,
    Client,
    InvalidRequest,
    InvalidSchema,
    InvalidSchemaRequest,
    SchemaIncompatible,
    SchemaNotFound,
    SchemaOperationRefused,
    SchemaRejected,
    SchemaVersionNotFound,
    SubjectNotFound,
)
from goqueue.testing import EmbeddedBroker
from goqueue.wire.schema_reports import SchemaReference

ORDER = {
    "type": "object",
    "properties": {"id": {"type": "integer"}},
    "required": ["id"],
    "additionalProperties": False,
}
WIDER = ORDER | {"properties": {"id": {"type": "integer"}, "total": {"type": "number"}}}
OTHER = {"type": "string"}


@pytest.fixture
def address() -> Iterator[str]:
    """A broker of the test's own: a number that was given out once is never given out again."""
    with EmbeddedBroker(http=False) as broker:
        yield broker.address


@pytest.fixture
def registry(address: str) -> Iterator[Client]:
    with Client(address, timeout="20s") as client:
        yield client


def test_a_schema_is_registered_as_text_or_as_a_mapping(registry: Client) -> None:
    first = registry.register_schema("orders-value", ORDER)
    again = registry.register_schema("orders-value", json.dumps(ORDER), type="JSON")
    second = registry.register_schema("orders-value", WIDER)

    assert (first.subject, first.version, first.schema_type) == ("orders-value", 1, "JSON")
    assert json.loads(first.schema) == ORDER
    assert (again.version, again.id, again.guid) == (1, first.id, first.guid)
    assert second.version == 2
    assert registry.subjects() == ["orders-value"]
    assert registry.subjects("x") == []
    assert registry.schema_versions("orders-value") == [1, 2]


def test_a_schema_is_found_by_id_by_version_and_by_itself(registry: Client) -> None:
    first = registry.register_schema("orders-value", ORDER)
    registry.register_schema("orders-value", WIDER)

    assert registry.schema(first.id).schema == first.schema
    registry.register_schema("a", ORDER)
    assert registry.schema(first.id).subject == "a"
    assert registry.schema(first.id, subject="orders-value").subject == "orders-value"
    assert registry.schema(subject="orders-value").version == 2
    for version in (1, "1"):
        assert registry.schema(subject="orders-value", version=version).id == first.id
    assert registry.lookup_schema("orders-value", WIDER).version == 2
    with pytest.raises(InvalidRequest):
        registry.schema()


def test_what_is_not_there_is_told(registry: Client) -> None:
    registry.register_schema("orders-value", ORDER)

    for use in (registry.schema_versions, registry.delete_schema):
        with pytest.raises(SubjectNotFound) as caught:
            use("none")
        assert caught.value.subject == "none"
    with pytest.raises(SubjectNotFound):
        registry.schema(subject="none")
    with pytest.raises(SchemaVersionNotFound):
        registry.schema(subject="orders-value", version=7)
    with pytest.raises(SchemaNotFound):
        registry.schema(4711)
    with pytest.raises(SchemaNotFound):
        registry.lookup_schema("orders-value", OTHER)
    with pytest.raises(InvalidSchemaRequest):
        registry.schema(subject="orders-value", version="newest")


def test_what_is_no_schema_is_refused(registry: Client) -> None:
    for schema, type in (("{", None), ("{}", "XML"), ({"type": "colour"}, "JSON"), ("{}", "AVRO"), ("", None)):
        with pytest.raises(InvalidSchema):
            registry.register_schema("a", schema, type=type)
    with pytest.raises(InvalidSchema) as caught:
        registry.register_schema("a", ORDER, references=[("money", "none", 1)])
    assert "none" in str(caught.value)
    with pytest.raises(InvalidRequest):
        registry.register_schema("a", {"title": object()})
    assert registry.subjects() == []


def test_a_schema_refers_to_others(registry: Client) -> None:
    registry.register_schema("money", {"type": "integer"})
    bill = {"type": "object", "properties": {"total": {"$ref": "money.json"}}}

    for given in (("money.json", "money", 1), SchemaReference("money.json", "money", 1)):
        made = registry.register_schema("bills-value", bill, references=[given])
        assert made.references == [SchemaReference("money.json", "money", 1)]
    with pytest.raises(SchemaOperationRefused):
        registry.delete_schema("money")


def test_compatibility_is_checked_and_told(registry: Client) -> None:
    registry.register_schema("orders-value", ORDER)

    assert registry.check_schema("orders-value", WIDER).is_compatible
    found = registry.check_schema("orders-value", OTHER, version=1)
    assert (found.is_compatible, bool(found.messages)) == (False, True)
    with pytest.raises(SchemaIncompatible) as caught:
        registry.register_schema("orders-value", OTHER)
    assert caught.value.messages == found.messages
    assert registry.schema_config("orders-value") == registry.schema_config() == "BACKWARD"
    assert registry.set_schema_config("orders-value", "none") == "NONE"
    assert registry.register_schema("orders-value", OTHER).version == 2
    assert registry.set_schema_config("orders-value", None) == "NONE"
    assert registry.schema_config("orders-value") == "BACKWARD"
    assert registry.set_schema_config(None, "FULL") == "FULL"
    assert registry.schema_config("orders-value") == "FULL"
    with pytest.raises(InvalidSchemaRequest):
        registry.set_schema_config(None, "SOMETIMES")


def test_a_policy_is_set_and_reset(registry: Client) -> None:
    few, more = ({"type": "object", "properties": {name: {} for name in names}} for names in ("a", "ab"))
    more["properties"]["b"] = {"type": "string"}  # type: ignore[index]
    registry.register_schema("orders-value", few)
    assert registry.schema_policy() == registry.schema_policy("orders-value") == "STRICT"

    registry.set_schema_policy("orders-value", "lenient")

    assert (registry.schema_policy(), registry.schema_policy("orders-value")) == ("STRICT", "LENIENT")
    assert registry.register_schema("orders-value", more).version == 2
    registry.set_schema_policy("orders-value", None)
    registry.set_schema_policy(None, "LENIENT")
    assert registry.schema_policy("orders-value") == "LENIENT"
    with pytest.raises(InvalidSchemaRequest):
        registry.set_schema_policy(None, "GENEROUS")


def test_a_mode_is_set_and_reset(registry: Client) -> None:
    assert registry.schema_mode() == registry.schema_mode("a") == "READWRITE"
    assert registry.set_schema_mode("a", "READONLY") == "READONLY"
    with pytest.raises(SchemaOperationRefused):
        registry.register_schema("a", ORDER)
    assert registry.set_schema_mode("a", None) == "READONLY"
    assert registry.schema_mode("a") == "READWRITE"


def test_a_schema_is_deleted_in_two_steps(registry: Client) -> None:
    registry.register_schema("a", ORDER)
    registry.register_schema("a", WIDER)

    with pytest.raises(SchemaVersionNotFound):
        registry.delete_schema("a", 1, permanent=True)
    assert registry.delete_schema("a", 1) == [1]
    assert registry.schema_versions("a") == [2]
    assert registry.schema_versions("a", deleted=True) == [1, 2]
    assert registry.schema(subject="a", version=1, deleted=True).deleted
    assert registry.delete_schema("a") == [2]
    assert registry.subjects() == []
    assert registry.subjects(deleted=True) == ["a"]
    assert registry.delete_schema("a", permanent=True) == [1, 2]
    assert registry.subjects(deleted=True) == []


def test_a_message_that_breaks_its_schema_is_refused_with_the_place(registry: Client) -> None:
    registry.create_topic("orders", partitions=1)
    made = registry.register_schema("orders-value", ORDER)

    registry.publish("orders", {"id": 1})
    with pytest.raises(SchemaRejected) as caught:
        registry.publish("orders", {"id": "one"})
    error = caught.value
    assert (error.subject, error.version, error.schema_id, error.path) == ("orders-value", 1, made.id, "/id")
    with pytest.raises(SchemaRejected) as caught:
        registry.publish_many("orders", [{"id": 2}, {"id": 3}, {}])
    assert caught.value.index == 2
    producer = registry.producer()
    for value in ({"id": 4}, {"total": 1}, {"id": 5}):
        producer.send("orders", value)
    with pytest.raises(SchemaRejected):
        producer.close()
    assert [message.json() for message in registry.read("orders")] == [{"id": 1}, {"id": 4}, {"id": 5}]


def test_values_are_checked_without_publishing_them(registry: Client) -> None:
    registry.create_topic("orders", partitions=1)
    registry.register_schema("orders-value", ORDER)

    good, bad, worse = registry.validate("orders", [{"id": 1}, {"id": "one"}, b"{"])

    assert good is None
    assert bad is not None
    assert "/id" in bad
    assert worse
    assert registry.validate("orders", []) == []
    assert list(registry.read("orders")) == []


def test_the_registry_is_told_in_numbers(registry: Client) -> None:
    registry.register_schema("orders-value", ORDER)
    registry.register_schema("orders-value", WIDER)

    stats = registry.schema_stats()

    assert (stats.subjects, stats.versions) == (1, 2)
    assert [one.subject for one in stats.details] == ["orders-value"]


def test_the_asynchronous_client_has_the_same_words(registry: Client, address: str) -> None:
    async def use() -> list[str]:
        async with AsyncClient(address) as gq:
            await gq.register_schema("orders-value", ORDER)
            with pytest.raises(SchemaIncompatible):
                await gq.register_schema("orders-value", OTHER)
            return await gq.subjects()

    assert asyncio.run(use()) == ["orders-value"]
