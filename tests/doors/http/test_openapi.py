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
from tests.doors.http.doors import OpenDoor

DOCUMENT = describe(ROUTES, version="test")
OPERATIONS = {
    operation["operationId"]: (method, path)
    for path, methods in DOCUMENT["paths"].items()
    for method, operation in methods.items()
}
EXAMPLES = 40
CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]


@pytest.mark.parametrize("name", OPERATIONS)
def test_a_route_is_what_the_document_says(door: OpenDoor, name: str) -> None:
    method, path = OPERATIONS[name]
    operation = schemathesis.openapi.from_dict(DOCUMENT)[path][method]
    cases = st.one_of(*(operation.as_strategy(generation_mode=mode) for mode in GenerationMode))
    door.post("/topics", {"name": "orders"})
    door.post("/topics/orders/messages", {"messages": [{"value": "a", "key": "b", "headers": {"c": "d"}}] * 5})

    @hypothesis.settings(max_examples=EXAMPLES, suppress_health_check=list(HealthCheck))
    @given(case=cases, of_what_exists=st.booleans())
    def send(case: Case, of_what_exists: bool) -> None:
        if of_what_exists:
            case.path_parameters.update({"topic": "orders", "partition": "0"})
        if name == "follow":
            case.query = {**(case.query or {}), "to_time": "now"}  # or there would be no end
        response = case.call(base_url=f"http://{door.address[0]}:{door.address[1]}", timeout=10)
        case.validate_response(response, checks=CHECKS)
        if name == "delete_topic":
            door.post("/topics", {"name": "orders"})

    send()


def test_the_document_is_served_as_it_is(door: OpenDoor) -> None:
    served = door.get("/openapi.json").json

    assert served == json.loads(json.dumps(describe(ROUTES, version="unknown")))
    assert served["openapi"].startswith("3.1")
    assert served == door.get("/v1/openapi.json").json


def test_the_document_names_exactly_the_routes_there_are() -> None:
    assert sorted(f"{method.upper()} {path}" for method, path in OPERATIONS.values()) == [
        "DELETE /topics/{topic}",
        "GET /health",
        "GET /healthz",
        "GET /livez",
        "GET /metrics",
        "GET /readyz",
        "GET /stats",
        "GET /topics",
        "GET /topics/{topic}",
        "GET /topics/{topic}/config",
        "GET /topics/{topic}/messages",
        "GET /topics/{topic}/offsets",
        "GET /topics/{topic}/partitions",
        "GET /topics/{topic}/partitions/{partition}/messages",
        "GET /topics/{topic}/stream",
        "GET /version",
        "PATCH /topics/{topic}/config",
        "POST /topics",
        "POST /topics/{topic}/messages",
        "POST /topics/{topic}/messages/batch",
    ]


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
