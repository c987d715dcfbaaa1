"""The OpenAPI document, and whether the routes are what it says: thousands of requests are made up from it and sent."""

import json
import re
from typing import Any

import hypothesis
import pytest
import schemathesis
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from schemathesis import Case, GenerationMode
from schemathesis.checks import content_type_conformance, not_a_server_error, response_schema_conformance
from schemathesis.specs.openapi.checks import status_code_conformance

from goqueue.doors.http.app import ROUTES
from goqueue.doors.http.openapi import describe
from tests.doors.http.consumers import join, settle, take
from tests.doors.http.doors import OpenDoor

DOCUMENT = describe(ROUTES, version="test")
OPERATIONS = {
    operation["operationId"]: (method, path)
    for path, methods in DOCUMENT["paths"].items()
    for method, operation in methods.items()
}
EXAMPLES = 4
ROUTES_OF_THE_CONTRACT = [
    "DELETE /groups/{group}",
    "DELETE /schemas/config",
    "DELETE /schemas/config/{subject}",
    "DELETE /schemas/mode",
    "DELETE /schemas/mode/{subject}",
    "DELETE /schemas/subjects/{subject}",
    "DELETE /schemas/subjects/{subject}/versions/{version}",
    "DELETE /topics/{topic}",
    "DELETE /topics/{topic}/delayed",
    "DELETE /topics/{topic}/delayed/{partition}/{offset}",
    "DELETE /topics/{topic}/dlq/redrive/{redrive_id}",
    "DELETE /topics/{topic}/schedules/{name}",
    "GET /cluster/health",
    "GET /cluster/nodes",
    "GET /cluster/nodes/{node_id}",
    "GET /cluster/state",
    "GET /delay/stats",
    "GET /dlq",
    "GET /groups",
    "GET /groups/{group}",
    "GET /groups/{group}/assignment",
    "GET /groups/{group}/blocked",
    "GET /groups/{group}/cooperative",
    "GET /groups/{group}/offsets",
    "GET /groups/{group}/poll",
    "GET /groups/{group}/rebalance/stats",
    "GET /health",
    "GET /healthz",
    "GET /livez",
    "GET /metrics",
    "GET /priority/stats",
    "GET /readyz",
    "GET /rebalance/stats",
    "GET /reliability/stats",
    "GET /schemas",
    "GET /schemas/config",
    "GET /schemas/config/{subject}",
    "GET /schemas/contexts",
    "GET /schemas/guids/{guid}",
    "GET /schemas/ids/{schema_id}",
    "GET /schemas/ids/{schema_id}/schema",
    "GET /schemas/ids/{schema_id}/subjects",
    "GET /schemas/ids/{schema_id}/versions",
    "GET /schemas/mode",
    "GET /schemas/mode/{subject}",
    "GET /schemas/schemas",
    "GET /schemas/schemas/guids/{guid}",
    "GET /schemas/schemas/ids/{schema_id}",
    "GET /schemas/schemas/ids/{schema_id}/schema",
    "GET /schemas/schemas/ids/{schema_id}/subjects",
    "GET /schemas/schemas/ids/{schema_id}/versions",
    "GET /schemas/schemas/types",
    "GET /schemas/stats",
    "GET /schemas/subjects",
    "GET /schemas/subjects/{subject}/metadata",
    "GET /schemas/subjects/{subject}/versions",
    "GET /schemas/subjects/{subject}/versions/{version}",
    "GET /schemas/subjects/{subject}/versions/{version}/referencedby",
    "GET /schemas/subjects/{subject}/versions/{version}/schema",
    "GET /schemas/types",
    "GET /stats",
    "GET /topics",
    "GET /topics/{topic}",
    "GET /topics/{topic}/config",
    "GET /topics/{topic}/delayed",
    "GET /topics/{topic}/delayed/{offset}",
    "GET /topics/{topic}/delayed/{partition}/{offset}",
    "GET /topics/{topic}/dlq",
    "GET /topics/{topic}/dlq/messages",
    "GET /topics/{topic}/dlq/redrive/{redrive_id}",
    "GET /topics/{topic}/messages",
    "GET /topics/{topic}/offsets",
    "GET /topics/{topic}/partitions",
    "GET /topics/{topic}/partitions/{partition}/messages",
    "GET /topics/{topic}/schedules",
    "GET /topics/{topic}/schedules/{name}",
    "GET /topics/{topic}/stream",
    "GET /traces",
    "GET /traces/search",
    "GET /traces/stats",
    "GET /traces/{trace_id}",
    "GET /transactions",
    "GET /transactions/stats",
    "GET /transactions/{transaction_id}",
    "GET /version",
    "PATCH /topics/{topic}/config",
    "PATCH /topics/{topic}/delayed",
    "PATCH /topics/{topic}/delayed/{partition}/{offset}",
    "PATCH /topics/{topic}/schedules/{name}",
    "POST /admin/elections",
    "POST /groups/{group}/heartbeat",
    "POST /groups/{group}/heartbeat/cooperative",
    "POST /groups/{group}/join",
    "POST /groups/{group}/join/cooperative",
    "POST /groups/{group}/leave",
    "POST /groups/{group}/leave/cooperative",
    "POST /groups/{group}/offsets",
    "POST /groups/{group}/offsets/reset",
    "POST /groups/{group}/revoke",
    "POST /messages/ack",
    "POST /messages/ack/batch",
    "POST /messages/nack",
    "POST /messages/nack/batch",
    "POST /messages/reject",
    "POST /messages/reject/batch",
    "POST /messages/visibility",
    "POST /messages/visibility/batch",
    "POST /producers/init",
    "POST /producers/{producer_id}/heartbeat",
    "POST /schemas/compatibility/subjects/{subject}/versions",
    "POST /schemas/compatibility/subjects/{subject}/versions/{version}",
    "POST /schemas/subjects/{subject}",
    "POST /schemas/subjects/{subject}/versions",
    "POST /topics",
    "POST /topics/{topic}/dlq/redrive",
    "POST /topics/{topic}/messages",
    "POST /topics/{topic}/messages/batch",
    "POST /topics/{topic}/partitions/{partition}/truncate",
    "POST /topics/{topic}/schedules",
    "POST /topics/{topic}/schedules/{name}/pause",
    "POST /topics/{topic}/schedules/{name}/resume",
    "POST /topics/{topic}/schedules/{name}/run",
    "POST /transactions/abort",
    "POST /transactions/acks",
    "POST /transactions/add-partition",
    "POST /transactions/begin",
    "POST /transactions/commit",
    "POST /transactions/offsets",
    "POST /transactions/publish",
    "POST /transactions/{transaction_id}/abort",
    "PUT /schemas/config",
    "PUT /schemas/config/{subject}",
    "PUT /schemas/mode",
    "PUT /schemas/mode/{subject}",
]
CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]


def furnish(door: OpenDoor) -> dict[str, Any]:
    """Make sure that there is one of everything, and say how it is called."""
    door.post("/topics", {"name": "orders", "partitions": 1})
    door.post("/topics/orders/messages", {"messages": [{"value": "a", "key": "b", "headers": {"c": "d"}}] * 5})
    delayed = door.post("/topics/orders/messages", {"value": "later", "key": "b", "delay": "1h"}).json["results"][0]
    door.post("/topics/orders/schedules", {"name": "daily", "cron": "@daily", "value": "a", "paused": True})
    member = join(door, member_id="worker-1")
    messages = take(door, member, limit=2)
    if messages:
        settle(door, "reject", messages[0])
    schema = door.post("/schemas/subjects/customers-value/versions", {"schema": '{"type": "object"}'}).json
    producer = door.post("/producers/init", {"transactional_id": "importer"}).json
    begun = door.post("/transactions/begin", {**producer, "transactional_id": "importer"}).json
    redrive = door.post("/topics/orders/dlq/redrive", {"rate": 0.001, "filter": {"group": "nobody"}}).json
    return {
        "topic": "orders",
        "partition": "0",
        "offset": str(delayed["offset"]),
        "group": "billing",
        "name": "daily",
        "redrive_id": redrive["id"],
        "trace_id": door.get("/traces/search?topic=orders&offset=0").json["traces"][0]["trace_id"],
        "subject": "customers-value",
        "version": str(schema["version"]),
        "schema_id": str(schema["id"]),
        "guid": schema["guid"],
        **begun,
        "transactional_id": "importer",
        "member_id": member["member_id"],
        "receipt_handle": messages[-1]["receipt_handle"] if messages else "",
        "receipt_handles": [message["receipt_handle"] for message in messages],
    }


@pytest.mark.parametrize("name", OPERATIONS)
def test_a_route_is_what_the_document_says(door: OpenDoor, name: str) -> None:
    method, path = OPERATIONS[name]
    operation = schemathesis.openapi.from_dict(DOCUMENT)[path][method]
    cases = st.one_of(*(operation.as_strategy(generation_mode=mode) for mode in GenerationMode))
    existing = furnish(door)

    @hypothesis.settings(max_examples=EXAMPLES, suppress_health_check=list(HealthCheck))
    @given(case=cases, of_what_exists=st.booleans())
    def send(case: Case, of_what_exists: bool) -> None:
        if of_what_exists:
            for place in (case.path_parameters, case.query, case.body):
                if isinstance(place, dict):
                    place.update({key: value for key, value in existing.items() if key in place})
        if name == "follow":
            case.query = {**(case.query or {}), "to_time": "now"}  # or there would be no end
        if name == "poll":
            case.query = {**(case.query or {}), "wait": "1ms"}  # or it would take half a minute
        response = case.call(base_url=f"http://{door.address[0]}:{door.address[1]}", timeout=10)
        case.validate_response(response, checks=CHECKS)
        if method == "delete":
            existing.update(furnish(door))

    send()


def test_the_document_is_served_as_it_is(door: OpenDoor) -> None:
    served = door.get("/openapi.json").json

    assert served == json.loads(json.dumps(describe(ROUTES, version="unknown")))
    assert served["openapi"].startswith("3.1")
    assert served == door.get("/v1/openapi.json").json


def test_the_document_names_exactly_the_routes_there_are() -> None:
    assert sorted(f"{method.upper()} {path}" for method, path in OPERATIONS.values()) == ROUTES_OF_THE_CONTRACT


def test_every_operation_says_what_it_does_and_how_it_fails() -> None:
    for path, methods in DOCUMENT["paths"].items():
        for operation in methods.values():
            assert operation["summary"], path
            assert operation["description"], path
            assert {"4XX", "5XX"} <= operation["responses"].keys(), path


def test_every_reference_leads_somewhere() -> None:
    def references(node: Any) -> set[str]:
        if isinstance(node, dict):
            own = {node["$ref"]} if "$ref" in node else set()
            return own.union(*(references(value) for value in node.values()))
        return set().union(*(references(value) for value in node)) if isinstance(node, list) else set()

    for reference in references(DOCUMENT):
        target = DOCUMENT
        for key in reference.removeprefix("#/").split("/"):
            target = target[key]


def test_the_page_to_read_and_try_it_needs_nothing_from_elsewhere(door: OpenDoor) -> None:
    for path in ("/docs", "/v1/docs/"):
        page = door.get(path)
        assert (page.status, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
        assert page.headers["content-security-policy"] == "default-src 'self' 'unsafe-inline'"
        assert b"openapi.json" in page.body
        assert not re.search(rb"https?://|//cdn|<link|<script src|@import|url\(", page.body)
