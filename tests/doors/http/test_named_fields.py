"""Every refusal of a field names the field as clients call it: a sweep over the OpenAPI document.

Each query parameter and each field of each body is given a value of a wrong type, and one that cannot be understood.
Whatever is refused because of that must say the public name of the field.
"""

import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote, urlencode

import pytest

from goqueue.doors.http.app import ROUTES
from goqueue.doors.http.openapi import describe
from tests.doors.http.doors import OpenDoor
from tests.doors.http.test_openapi import furnish

DOCUMENT = describe(ROUTES, version="test")
SCHEMAS = DOCUMENT["components"]["schemas"]
ODD = "\N{SNOWMAN} not good"
LENIENT = "/schemas"


def operations() -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, methods in DOCUMENT["paths"].items():
        for method, operation in methods.items():
            if not path.startswith(LENIENT):
                yield method.upper(), path, operation


def resolved(schema: dict[str, Any]) -> dict[str, Any]:
    while "$ref" in schema:
        schema = SCHEMAS[schema["$ref"].rpartition("/")[2]]
    return schema


def types(schema: dict[str, Any]) -> set[str]:
    """Which JSON types the schema takes; all of them if it does not say."""
    schema = resolved(schema)
    if "anyOf" in schema:
        return set().union(*(types(one) for one in schema["anyOf"]))
    if "enum" in schema:
        return {"string"}
    return {schema["type"]} if "type" in schema else {"string", "object", "array", "integer", "number", "boolean"}


def fields(schema: dict[str, Any], place: str = "") -> Iterator[tuple[str, dict[str, Any], list[str | int]]]:
    """Each field of a body, inner ones too: its public path, its schema, and how to get there."""
    yield from _fields(schema, place, [])


def _fields(
    schema: dict[str, Any], place: str, steps: list[str | int]
) -> Iterator[tuple[str, dict[str, Any], list[str | int]]]:
    schema = resolved(schema)
    for choice in schema.get("anyOf", ()):
        yield from _fields(choice, place, steps)
    if schema.get("type") == "array":
        yield from _fields(schema["items"], f"{place}[0]", [*steps, 0])
    for name, inner in schema.get("properties", {}).items():
        path = f"{place}.{name}" if place else name
        yield path, inner, [*steps, name]
        yield from _fields(inner, path, [*steps, name])


ITEM = {"topic": "orders", "partition": 0, "offset": 0}
"""What items of lists have unless they are messages."""


def put(body: Any, steps: list[str | int], value: Any) -> Any:
    """The body with the value at that place; what is on the way there is made."""
    step, *rest = steps
    if isinstance(step, int):
        return [put(ITEM, rest, value) if rest else value]
    inner = dict(body) if isinstance(body, dict) else {}
    inner[step] = put(inner.get(step), rest, value) if rest else value
    return inner


CONTRACTUAL = {
    "deliver_at": "invalid deliverAt format",
    "receipt_handle": "malformed receipt handle",
    "receipt_handles": "malformed receipt handle",
    "partitions": "invalid partition ID",
    "key_base64": "key is required",
}
"""Fields whose refusals begin with words that the contract sets."""
WRONG: dict[str, Any] = {"string": ODD, "integer": -7, "boolean": True, "array": [[]], "object": {ODD: ODD}}


def wrong_values(schema: dict[str, Any]) -> Iterator[tuple[Any, bool]]:
    """Values to try, and whether they are of a wrong type and so must be refused."""
    taken = types(schema)
    for kind, value in WRONG.items():
        yield value, kind not in taken and not (kind == "integer" and "number" in taken)


def names(answer: dict[str, Any], path: str) -> bool:
    """Whether the refusal names the field, or the one of its parents or inner fields that is wrong."""
    said = str(answer.get("details", {}).get("path", ""))
    last = re.sub(r"\[\d+\]$", "", path).rpartition(".")[2]
    texts = [answer["error"], *(result["error"] for result in answer.get("results", ()))]
    if any(text.startswith(CONTRACTUAL.get(last, "?")) for text in texts):
        return True
    return said.startswith(path) or any(re.search(rf"\b{re.escape(last)}\b", text) for text in texts)


BODIES = [(m, p, o) for m, p, o in operations() if "requestBody" in o]
QUERIES = [(m, p, o) for m, p, o in operations() if any(x["in"] == "query" for x in o.get("parameters", ()))]
BASES: dict[str, dict[str, Any]] = {
    "POST /topics": {"name": "fresh"},
    "POST /topics/{topic}/messages": {"value": "a"},
    "POST /topics/{topic}/messages/batch": {"value": "a"},
    "POST /topics/{topic}/schedules": {"name": "other", "cron": "@daily", "value": "a"},
    "PATCH /topics/{topic}/schedules/{name}": {"value": "b"},
    "PATCH /topics/{topic}/delayed": {"delay": "1h"},
    "PATCH /topics/{topic}/delayed/{partition}/{offset}": {"delay": "1h"},
    "POST /topics/{topic}/dlq/redrive": {"dry_run": True},
    "POST /groups/{group}/join": {"client_id": "c", "topics": ["orders"]},
    "POST /groups/{group}/join/cooperative": {"client_id": "c", "topics": ["orders"]},
    "POST /groups/{group}/offsets": {"offsets": {"orders": {"0": 0}}},
    "POST /groups/{group}/offsets/reset": {"strategy": "earliest", "dry_run": True},
}
WITH_RECEIPT = re.compile(r"/messages/(ack|nack|reject|visibility)")
EXCLUSIVE = {"messages": "value", "every": "cron", "receipt_handles": "receipt_handle", "deliver_at": "delay"}


def base(name: str, operation: dict[str, Any], existing: dict[str, Any]) -> dict[str, Any]:
    """A body that would be taken, but for what is about to be put into it."""
    body = dict(BASES.get(name, {}))
    if WITH_RECEIPT.search(name):
        body = {"receipt_handle": existing["receipt_handle"]}
        if "visibility" in name:
            body["timeout"] = "1s"
    schema = resolved(operation["requestBody"]["content"]["application/json"]["schema"])
    for choice in schema.get("anyOf", [schema]):
        for field in resolved(choice).get("required", ()):
            body.setdefault(field, existing.get(field, "a"))
    if name == "POST /transactions/add-partition":
        body["partition"] = 0
    if name == "POST /transactions/publish":
        body |= {"topic": "orders", "value": "a"}
    if name == "POST /transactions/offsets":
        body |= {"group": "billing", "offsets": {"orders": {"0": 0}}}
    return body


MESSAGE = {False: {"value": "a"}, True: {"value": "a", "topic": "orders"}}


def filled(path: str, existing: dict[str, Any]) -> str:
    return re.sub(r"\{(\w+)\}", lambda match: quote(str(existing.get(match[1], "a")), safe=""), path)


@pytest.mark.parametrize(("method", "path", "operation"), BODIES, ids=[f"{m} {p}" for m, p, _ in BODIES])
def test_a_field_of_a_body_is_named(door: OpenDoor, method: str, path: str, operation: dict[str, Any]) -> None:
    existing = furnish(door)
    where = filled(path, existing) + ("?key=b" if path.endswith("/delayed") else "")
    body = base(f"{method} {path}", operation, existing)
    unnamed = []
    for field, schema, steps in fields(operation["requestBody"]["content"]["application/json"]["schema"]):
        for value, must_fail in wrong_values(schema):
            asked = {name: kept for name, kept in body.items() if EXCLUSIVE.get(str(steps[0])) != name}
            sent = put(asked, steps, value)
            if "messages" in sent and len(steps) > 2:
                sent["messages"] = [put(MESSAGE[path.startswith("/transactions")], steps[2:], value)]
            if "transactions" in sent and len(steps) > 2:
                owner = {name: body[name] for name in ("producer_id", "epoch", "transactional_id")}
                sent["transactions"] = [put(owner, steps[2:], value)]
            answer = door.request(method, where, sent)
            assert answer.status < 500, (field, value, answer.body)
            if must_fail and answer.status != 400:
                unnamed.append((field, value, answer.status, answer.body))
            if answer.status == 400 and not names(answer.json, field):
                unnamed.append((field, value, answer.status, answer.body))
    assert not unnamed


@pytest.mark.parametrize(("method", "path", "operation"), QUERIES, ids=[f"{m} {p}" for m, p, _ in QUERIES])
def test_a_query_parameter_is_named(door: OpenDoor, method: str, path: str, operation: dict[str, Any]) -> None:
    existing = furnish(door)
    body = base(f"{method} {path}", operation, existing) if "requestBody" in operation else None
    unnamed = []
    for parameter in operation["parameters"]:
        if parameter["in"] != "query":
            continue
        name = parameter["name"]
        for value in (ODD, "-7", "99999999999999999999999", ""):
            asked = {"member_id": existing["member_id"]} if path.endswith("poll") else {}
            asked |= {"to_time": "now"} if path.endswith("stream") else {}
            asked |= {"key": "b"} if path.endswith("delayed") and name != "key_base64" else {}
            asked |= {"wait": "0s"} if path.endswith("poll") and name != "timeout" else {}
            asked |= {"limit": "1"} if path.endswith("stream") else {}
            answer = door.request(method, f"{filled(path, existing)}?{urlencode({**asked, name: value})}", body)
            assert answer.status < 500, (name, value, answer.body)
            if answer.status == 400 and not names(answer.json, name):
                unnamed.append((name, value, answer.body))
    assert not unnamed
