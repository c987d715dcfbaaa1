"""Confluent's own Python client and serializers, unchanged, on our registry: what they write is what we check."""

import asyncio
import base64
import http.client
import json
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any
from urllib.parse import urlsplit

import pytest
from confluent_kafka.schema_registry import (
    AsyncSchemaRegistryClient,
    RegisteredSchema,
    Schema,
    SchemaReference,
    SchemaRegistryClient,
    SchemaRegistryError,
    record_subject_name_strategy,
    topic_record_subject_name_strategy,
)
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.common.schema_registry_client import (
    ConfigCompatibilityLevel,
    Metadata,
    MetadataProperties,
    ServerConfig,
)
from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from goqueue import Client, SchemaRejected
from goqueue.testing import EmbeddedBroker

ORDER = {
    "title": "Order",
    "type": "object",
    "properties": {"id": {"type": "integer"}, "note": {"type": "string"}},
    "required": ["id"],
    "additionalProperties": False,
}
ORDER_TEXT = json.dumps(ORDER)
WIDER_TEXT = json.dumps(ORDER | {"properties": {**ORDER["properties"], "total": {"type": "number"}}})  # type: ignore[dict-item]
AVRO_TEXT = json.dumps(
    {
        "type": "record",
        "name": "Order",
        "namespace": "shop",
        "fields": [{"name": "id", "type": "long"}, {"name": "note", "type": ["null", "string"], "default": None}],
    }
)
NUMBERS = count(1)


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(topics_partitions=1) as broker:
        yield broker


@pytest.fixture
def gq(broker: EmbeddedBroker) -> Iterator[Client]:
    with Client(broker.address) as client:
        yield client


@pytest.fixture
def registry(broker: EmbeddedBroker) -> Iterator[SchemaRegistryClient]:
    with SchemaRegistryClient({"url": f"{broker.http_address}/schemas"}) as client:
        yield client


@pytest.fixture
def topic(gq: Client) -> str:
    """The name of a topic that no other test uses."""
    name = f"orders{next(NUMBERS)}"
    gq.create_topic(name)
    return name


def order_type() -> Any:
    """A Protobuf message type, made without a compiler."""
    file = descriptor_pb2.FileDescriptorProto(name=f"order{next(NUMBERS)}.proto", package="shop", syntax="proto3")
    for name in ("Ignored", "Order"):
        message = file.message_type.add(name=name)
        for number, (field, kind) in enumerate((("id", 3), ("note", 9)), 1):
            message.field.add(name=field, number=number, type=kind, label=1)  # type: ignore[arg-type]
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Order"))


def value_of(topic: str) -> SerializationContext:
    return SerializationContext(topic, MessageField.VALUE)


def post(broker: EmbeddedBroker, topic: str, value: bytes) -> tuple[int, Any]:
    """Publish over HTTP."""
    address = urlsplit(broker.http_address)
    connection = http.client.HTTPConnection(str(address.hostname), address.port, timeout=20)
    try:
        body = json.dumps({"value_base64": base64.b64encode(value).decode()})
        connection.request("POST", f"/topics/{topic}/messages", body)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


def refusal(call: Callable[[], object]) -> tuple[int, int]:
    with pytest.raises(SchemaRegistryError) as caught:
        call()
    assert caught.value.error_message
    return caught.value.http_status_code, caught.value.error_code


def test_json_is_written_checked_and_read(
    broker: EmbeddedBroker, registry: SchemaRegistryClient, gq: Client, topic: str
) -> None:
    serialize = JSONSerializer(ORDER_TEXT, registry)
    read = JSONDeserializer(ORDER_TEXT, schema_registry_client=registry)
    from_registry = JSONDeserializer(None, schema_registry_client=registry)
    data = serialize({"id": 7, "note": "größe"}, value_of(topic))

    gq.publish(topic, data)
    assert post(broker, topic, data)[0] == 200

    assert gq.subjects(topic) == [f"{topic}-value"]
    for message in gq.read(topic):
        assert read(message.value, value_of(topic)) == {"id": 7, "note": "größe"}
        assert from_registry(message.value, value_of(topic)) == {"id": 7, "note": "größe"}
    bad = data[:5] + b'{"id": "seven"}'
    with pytest.raises(SchemaRejected) as caught:
        gq.publish(topic, bad)
    assert (caught.value.subject, caught.value.path) == (f"{topic}-value", "/id")
    status, answer = post(broker, topic, bad)
    assert (status, answer["code"], answer["details"]["path"]) == (400, "SCHEMA_REJECTED", "/id")
    assert len(list(gq.read(topic))) == 2


def test_avro_is_written_checked_and_read(
    broker: EmbeddedBroker, registry: SchemaRegistryClient, gq: Client, topic: str
) -> None:
    serialize = AvroSerializer(registry, AVRO_TEXT)
    read = AvroDeserializer(registry)
    data = serialize({"id": 7, "note": "größe"}, value_of(topic))

    gq.publish(topic, data)
    assert post(broker, topic, data)[0] == 200

    for message in gq.read(topic):
        assert read(message.value, value_of(topic)) == {"id": 7, "note": "größe"}
    for bad in (data[:-2], data + b"x", data[:5]):
        with pytest.raises(SchemaRejected):
            gq.publish(topic, bad)
        assert post(broker, topic, bad)[1]["code"] == "SCHEMA_REJECTED"
    assert len(list(gq.read(topic))) == 2


def test_protobuf_is_written_checked_and_read(
    broker: EmbeddedBroker, registry: SchemaRegistryClient, gq: Client, topic: str
) -> None:
    order = order_type()
    serialize = ProtobufSerializer(order, registry, {"use.deprecated.format": False})
    read = ProtobufDeserializer(order, {"use.deprecated.format": False}, registry)
    data = serialize(order(id=7, note="größe"), value_of(topic))

    gq.publish(topic, data)
    assert post(broker, topic, data)[0] == 200

    for message in gq.read(topic):
        assert read(message.value, value_of(topic)) == order(id=7, note="größe")
    with pytest.raises(SchemaRejected):
        gq.publish(topic, data[:-1])
    assert post(broker, topic, data[:-1])[1]["code"] == "SCHEMA_REJECTED"


def test_protobuf_that_came_as_text_is_given_as_a_descriptor_to_who_asks_for_one(
    registry: SchemaRegistryClient, gq: Client, topic: str
) -> None:
    text = 'syntax = "proto3";\npackage shop;\nmessage Order {\n  int64 id = 1;\n  string note = 2;\n}\n'
    made = gq.register_schema(f"{topic}-value", text, type="PROTOBUF")

    descriptor = descriptor_pb2.FileDescriptorProto()
    found = registry.get_schema(made.id, fmt="serialized")
    descriptor.ParseFromString(base64.b64decode(str(found.schema_str)))

    assert [message.name for message in descriptor.message_type] == ["Order"]
    latest = registry.get_latest_version(f"{topic}-value", fmt="serialized")
    assert latest.schema.schema_str == found.schema_str
    registry.clear_caches()
    assert registry.get_schema(made.id).schema_str == text


def test_protobuf_is_written_with_the_latest_schema(registry: SchemaRegistryClient, gq: Client, topic: str) -> None:
    text = 'syntax = "proto3"; package shop; message Ignored {} message Order { int64 id = 1; string note = 2; }'
    gq.register_schema(f"{topic}-value", text, type="PROTOBUF")
    order = order_type()
    settings = {"use.deprecated.format": False, "auto.register.schemas": False, "use.latest.version": True}
    data = ProtobufSerializer(order, registry, settings)(order(id=7), value_of(topic))

    gq.publish(topic, data)

    (message,) = gq.read(topic)
    assert ProtobufDeserializer(order, {"use.deprecated.format": False}, registry)(
        message.value, value_of(topic)
    ) == order(id=7)


@pytest.mark.parametrize("strategy", [record_subject_name_strategy, topic_record_subject_name_strategy])
def test_subjects_may_be_named_after_the_record(
    registry: SchemaRegistryClient, gq: Client, topic: str, strategy: Any
) -> None:
    record = f"shop.Order{topic}"
    schema = json.dumps(json.loads(AVRO_TEXT) | {"name": record})
    data = AvroSerializer(registry, schema, conf={"subject.name.strategy": strategy})({"id": 7}, value_of(topic))
    gq.alter_topic(topic, schema_validation="required")

    gq.publish(topic, data)

    expected = record if strategy is record_subject_name_strategy else f"{topic}-{record}"
    assert expected in gq.subjects()
    (message,) = gq.read(topic)
    assert AvroDeserializer(registry)(message.value, value_of(topic)) == {"id": 7, "note": None}
    with pytest.raises(SchemaRejected):
        gq.publish(topic, data[:5])


def test_keys_have_a_subject_of_their_own(registry: SchemaRegistryClient, gq: Client, topic: str) -> None:
    key = AvroSerializer(registry, '"string"')("customer-7", SerializationContext(topic, MessageField.KEY))

    gq.publish(topic, b"anything", key=key)

    assert gq.subjects(topic) == [f"{topic}-key"]
    with pytest.raises(SchemaRejected) as caught:
        gq.publish(topic, b"anything", key=key[:-1])
    assert caught.value.subject == f"{topic}-key"


def test_a_schema_of_another_topic_is_refused(registry: SchemaRegistryClient, gq: Client, topic: str) -> None:
    JSONSerializer(ORDER_TEXT, registry)({"id": 7}, value_of(topic))
    other = JSONSerializer(WIDER_TEXT, registry)({"id": 7}, value_of(f"{topic}-other"))

    with pytest.raises(SchemaRejected):
        gq.publish(topic, other)


def test_the_client_does_all_that_it_can(registry: SchemaRegistryClient, topic: str) -> None:
    subject = f"{topic}/größe-value"
    order, wider, other = (Schema(text, "JSON") for text in (ORDER_TEXT, WIDER_TEXT, '{"type": "string"}'))

    first = registry.register_schema(subject, order)
    full = registry.register_schema_full_response(subject, wider, normalize_schemas=True)
    assert (full.version, full.schema_id != first, bool(full.guid)) == (2, True, True)
    registry.clear_caches()
    assert registry.get_schema(first).schema_str == ORDER_TEXT
    registry.clear_caches()
    assert registry.get_schema(first, subject_name=subject).schema_str == ORDER_TEXT
    assert json.loads(str(registry.get_schema_by_guid(str(full.guid)).schema_str)) == json.loads(WIDER_TEXT)
    assert registry.get_schema_types() == ["JSON", "PROTOBUF", "AVRO"]
    assert registry.get_subjects_by_schema_id(first, subject_name=subject) == [subject]
    (use,) = registry.get_schema_versions(first, subject_name=subject, deleted=True)
    assert (use.subject, use.version) == (subject, 1)
    found = registry.lookup_schema(subject, order)
    assert (found.subject, found.version, found.schema_id) == (subject, 1, first)
    assert subject in registry.get_subjects()
    assert registry.get_subjects(subject_prefix=subject, deleted=True, offset=0, limit=1) == [subject]
    assert registry.get_latest_version(subject).version == 2
    assert registry.get_version(subject, 1).schema.schema_str == ORDER_TEXT
    assert registry.get_version(subject).version == 2
    assert registry.get_versions(subject) == [1, 2]
    assert registry.get_referenced_by(subject, 1) == []
    assert registry.test_compatibility(subject, wider)
    assert not registry.test_compatibility(subject, other, version=1, verbose=True)
    assert registry.test_compatibility_all_versions(subject, wider, normalize=True)
    assert refusal(lambda: registry.register_schema(subject, other)) == (409, 409)
    assert registry.get_contexts() == ["."]


def test_levels_and_modes_are_the_client_s_to_set(registry: SchemaRegistryClient, topic: str) -> None:
    subject = f"{topic}-value"

    assert registry.get_compatibility() == "BACKWARD"
    assert refusal(lambda: registry.get_compatibility(subject)) == (404, 40408)
    registry.set_compatibility(subject, "full")
    assert registry.get_compatibility(subject) == "FULL"
    config = registry.get_config(subject)
    assert config.compatibility_level == ConfigCompatibilityLevel.FULL
    registry.set_config(subject, config)
    registry.set_config(subject, ServerConfig(compatibility=ConfigCompatibilityLevel.NONE))
    # This client has no name for the policy: what it does not send stays, and what it does not know it passes over.
    rest = registry._rest_client
    assert rest.put(f"config/{subject}", {"compatibilityPolicy": "lenient"})["compatibilityPolicy"] == "LENIENT"
    registry.set_config(subject, registry.get_config(subject))
    assert rest.get(f"config/{subject}")["compatibilityPolicy"] == "LENIENT"
    assert registry.delete_config(subject).compatibility_level == ConfigCompatibilityLevel.NONE
    assert refusal(lambda: registry.set_compatibility(subject, "sometimes")) == (422, 42203)

    assert registry.get_global_mode() == "READWRITE"
    assert refusal(lambda: registry.get_mode(subject)) == (404, 40409)
    assert registry.update_mode(subject, "READONLY") == "READONLY"
    assert refusal(lambda: registry.register_schema(subject, Schema(ORDER_TEXT, "JSON"))) == (422, 42205)
    assert registry.get_mode(subject) == "READONLY"
    assert registry.delete_mode(subject) == "READONLY"
    assert registry.update_global_mode("READWRITE") == "READWRITE"


def test_what_is_deleted_is_gone_in_two_steps(registry: SchemaRegistryClient, topic: str) -> None:
    subject = f"{topic}-value"
    registry.register_schema(subject, Schema(ORDER_TEXT, "JSON"))
    registry.register_schema(subject, Schema(WIDER_TEXT, "JSON"))

    assert refusal(lambda: registry.delete_version(subject, 1, permanent=True)) == (404, 40407)
    assert registry.delete_version(subject, 1) == 1
    assert registry.get_versions(subject) == [2]
    assert registry.get_version(subject, 1, deleted=True).version == 1
    assert registry.delete_version(subject, 1, permanent=True) == 1
    assert registry.delete_subject(subject) == [2]
    assert refusal(lambda: registry.get_versions(subject)) == (404, 40401)
    assert registry.get_subjects(subject_prefix=subject, deleted_only=True) == [subject]
    assert registry.delete_subject(subject, permanent=True) == [2]
    assert refusal(lambda: registry.get_latest_version(subject)) == (404, 40401)


def test_schemas_refer_to_each_other(registry: SchemaRegistryClient, gq: Client, topic: str) -> None:
    money = f"money-{topic}"
    registry.register_schema(money, Schema('{"type": "integer", "minimum": 0}', "JSON"))
    referring = Schema(
        json.dumps({"type": "object", "title": "Bill", "properties": {"total": {"$ref": "money.json"}}}),
        "JSON",
        [SchemaReference("money.json", money, 1)],
    )
    made = registry.register_schema(f"{topic}-value", referring)

    data = JSONSerializer(referring, registry)({"total": 7}, value_of(topic))
    gq.publish(topic, data)

    assert registry.get_referenced_by(money, 1) == [made]
    assert JSONDeserializer(None, schema_registry_client=registry)(data, value_of(topic)) == {"total": 7}
    assert refusal(lambda: registry.delete_version(money, 1)) == (422, 42206)
    with pytest.raises(SchemaRejected) as caught:
        gq.publish(topic, data[:5] + b'{"total": -1}')
    assert caught.value.path == "/total"


def test_metadata_finds_a_version(registry: SchemaRegistryClient, topic: str) -> None:
    subject = f"{topic}-value"
    metadata = Metadata(tags=None, properties=MetadataProperties({"team": "billing"}), sensitive=None)
    registry.register_schema(subject, Schema(ORDER_TEXT, "JSON", metadata=metadata))
    registry.register_schema(subject, Schema(WIDER_TEXT, "JSON"))

    found: RegisteredSchema = registry.get_latest_with_metadata(subject, {"team": "billing"})

    assert found.version == 1
    assert found.schema.metadata is not None
    assert found.schema.metadata.properties == metadata.properties


def test_the_asynchronous_client_works_as_well(broker: EmbeddedBroker, topic: str) -> None:
    async def use() -> list[int]:
        async with AsyncSchemaRegistryClient({"url": f"{broker.http_address}/v1/schemas"}) as client:
            await client.register_schema(f"{topic}-value", Schema(ORDER_TEXT, "JSON"))
            await client.register_schema(f"{topic}-value", Schema(WIDER_TEXT, "JSON"))
            assert (await client.get_latest_version(f"{topic}-value")).version == 2
            return await client.get_versions(f"{topic}-value")

    assert asyncio.run(use()) == [1, 2]
