"""What schemas cost on the publish path: batches of orders of 300 bytes held against a schema, in each format.

Run as `python -m benchmarks.bench_schemas`. A batch is decoded, parsed and judged, as before every append.
Each number is the best of many rounds. And what registering costs, whose compatibility check is most of it.
"""

import gc
import io
import json
import time
from collections.abc import Callable

import fastavro

from benchmarks.harness import Result, main
from goqueue.broker.schemas import Schemas
from goqueue.names import TopicPartition
from goqueue.record import kernel
from goqueue.schemas.registry import Registry
from goqueue.testing import ManualClock, MemoryDisk
from goqueue.topics.config import SchemaValidation
from goqueue.wire.schema_reports import NewSchema
from tests.broker.brokers import Node

RECORDS = 500
ROUNDS = {"small": 3, "full": 300}
JSON_TARGET_US = 5
ORIGIN = TopicPartition("orders", 0)
ORDER = {
    "order_id": "ord-2024-000123",
    "customer": {"id": 12345, "name": "Ada Lovelace", "email": "ada@example.com"},
    "items": [{"sku": "AB-123", "quantity": 2, "price": 19.99}, {"sku": "CD-456", "quantity": 1, "price": 5.5}],
    "total": 45.48,
    "currency": "EUR",
    "status": "paid",
    "created_at": "2024-05-01T12:00:00Z",
}
TEXT = {"type": "string"}
JSON_SCHEMA = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    "type": "object",
    "required": ["order_id", "customer", "items", "total", "currency"],
    "additionalProperties": False,
    "properties": {
        "order_id": {"type": "string", "pattern": "^ord-[0-9-]+$"},
        "customer": {
            "type": "object",
            "required": ["id"],
            "properties": {"id": {"type": "integer", "minimum": 1}, "name": {"type": "string", "maxLength": 100}},
        },
        "items": {
            "type": "array",
            "minItems": 1,
            "items": {
                "type": "object",
                "required": ["sku", "quantity"],
                "properties": {"sku": TEXT, "quantity": {"type": "integer", "minimum": 1}, "price": {"type": "number"}},
            },
        },
        "total": {"type": "number", "minimum": 0},
        "currency": {"enum": ["EUR", "USD", "GBP"]},
        "status": {"enum": ["new", "paid", "shipped"]},
        "created_at": TEXT,
    },
}
AVRO_ITEM = {
    "type": "record",
    "name": "Item",
    "fields": [
        {"name": "sku", "type": "string"},
        {"name": "quantity", "type": "int"},
        {"name": "price", "type": "double"},
    ],
}
AVRO_CUSTOMER = {
    "type": "record",
    "name": "Customer",
    "fields": [{"name": "id", "type": "long"}, {"name": "name", "type": "string"}, {"name": "email", "type": "string"}],
}
AVRO_SCHEMA = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "order_id", "type": "string"},
        {"name": "customer", "type": AVRO_CUSTOMER},
        {"name": "items", "type": {"type": "array", "items": AVRO_ITEM}},
        {"name": "total", "type": "double"},
        {"name": "currency", "type": "string"},
        {"name": "status", "type": "string"},
        {"name": "created_at", "type": "string"},
    ],
}
PROTOBUF_SCHEMA = """
syntax = "proto3";
message Order {
  string order_id = 1; int64 customer = 2; double total = 3; string currency = 4; string status = 5;
}
"""


def run(size: str) -> list[Result]:
    rounds = ROUNDS[size]
    value = json.dumps(ORDER).encode()
    us = _checked("JSON", json.dumps(JSON_SCHEMA), value, rounds)
    is_met, note = us <= JSON_TARGET_US, f"{len(value)} bytes"
    results = [Result("hold a JSON order against its schema", us, "us", f"<= {JSON_TARGET_US}", is_met, note)]
    avro, protobuf = _avro_order(), b"\x0a\x0f" + b"ord-2024-000123" + b"\x10\xb9\x60\x22\x03EUR\x2a\x04paid"
    for name, text, payload in (("AVRO", json.dumps(AVRO_SCHEMA), avro), ("PROTOBUF", PROTOBUF_SCHEMA, protobuf)):
        us = _checked(name, text, payload, rounds)
        results.append(Result(f"the same, {name}", us, "us", "", None, f"{len(payload)} bytes"))
    results.append(Result("a batch of a topic without schemas", _unchecked(rounds), "us per batch", "", None))
    results.append(
        Result("register a version, compatibility and all", _registered(max(3, rounds // 10)), "us", "", None)
    )
    return results


def _checked(schema_type: str, text: str, value: bytes, rounds: int) -> float:
    """Microseconds per record."""
    schemas = _schemas()
    change = schemas._registry.register("orders-value", NewSchema(text, schema_type))
    schemas._registry.apply(change.facts)
    records = kernel.encode([value] * RECORDS)
    return _best(rounds, lambda: schemas.check_records(ORIGIN, SchemaValidation.AUTO, records)) / RECORDS


def _unchecked(rounds: int) -> float:
    schemas = _schemas()
    records = kernel.encode([b"x"] * RECORDS)
    return _best(rounds * 100, lambda: schemas.check_records(ORIGIN, SchemaValidation.AUTO, records))


def _registered(rounds: int) -> float:
    registry = Registry()
    registry.apply(registry.register("orders-value", NewSchema(json.dumps(JSON_SCHEMA), "JSON")).facts)
    described = {**JSON_SCHEMA, "description": "An order."}
    return _best(rounds, lambda: registry.register("orders-value", NewSchema(json.dumps(described), "JSON")))


def _schemas() -> Schemas:
    return Node(MemoryDisk(), ManualClock()).broker.schemas


def _avro_order() -> bytes:
    written = io.BytesIO()
    fastavro.schemaless_writer(written, AVRO_SCHEMA, ORDER)
    return written.getvalue()


def _best(rounds: int, action: Callable[[], object]) -> float:
    """Microseconds of the fastest round."""
    action()
    gc.disable()
    best = min(_timed(action) for _ in range(rounds))
    gc.enable()
    return best / 1_000


def _timed(action: Callable[[], object]) -> int:
    started_ns = time.perf_counter_ns()
    action()
    return time.perf_counter_ns() - started_ns


if __name__ == "__main__":
    main(run)
