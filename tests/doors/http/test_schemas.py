"""The registry at the HTTP door, word by word as Confluent's REST API has it."""

import json
from concurrent.futures import ThreadPoolExecutor
from errno import ENOSPC
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from goqueue.doors.http.schema_answers import JSON, VENDOR_TYPES, media_type
from goqueue.testing import FaultyDisk, MemoryDisk
from tests.doors.http.doors import Answer, OpenDoor

V1, UNVERSIONED = VENDOR_TYPES
ORDER = {
    "type": "object",
    "properties": {"id": {"type": "integer"}, "note": {"type": "string"}},
    "required": ["id"],
    "additionalProperties": False,
}
WIDER = ORDER | {"properties": {**ORDER["properties"], "total": {"type": "number"}}}  # type: ignore[dict-item]
OTHER = {"type": "string"}
PROTO = 'syntax = "proto3";\nmessage Order {\n  int64 id = 1;\n}\n'
AVRO = {"type": "record", "name": "Order", "namespace": "shop", "fields": [{"name": "id", "type": "long"}]}


def body_of(schema: object, **more: object) -> dict[str, object]:
    return {"schema": schema if isinstance(schema, str) else json.dumps(schema), "schemaType": "JSON", **more}


def register(door: OpenDoor, subject: str, schema: object, **more: object) -> dict[str, Any]:
    answer = door.post(f"/schemas/subjects/{quote(subject, safe='')}/versions", body_of(schema, **more))
    assert answer.status == 200, answer.body
    registered: dict[str, Any] = answer.json
    return registered


def refused(answer: Answer) -> tuple[int, int]:
    """The status and the registry's number of a refusal that has both shapes."""
    body = answer.json
    assert {"error", "code", "status", "retryable", "error_code", "message"} <= body.keys()
    assert body["message"] == body["error"]
    assert body["status"] == answer.status
    assert "error_code" not in body.get("details", {})
    return answer.status, body["error_code"]


def test_a_schema_is_registered_once_however_often_it_is_sent(door: OpenDoor) -> None:
    first = register(door, "orders-value", ORDER)
    again = register(door, "orders-value", ORDER)
    elsewhere = register(door, "invoices-value", ORDER)
    second = register(door, "orders-value", WIDER)

    assert first.keys() == {"id", "version", "guid"}
    assert (first["id"], first["version"]) == (1, 1)
    assert again == first
    assert (elsewhere["id"], elsewhere["guid"], elsewhere["version"]) == (1, first["guid"], 1)
    assert (second["id"], second["version"]) == (2, 2)
    assert second["guid"] != first["guid"]


def test_a_version_is_shown_by_its_number_or_as_the_latest(door: OpenDoor) -> None:
    register(door, "orders-value", ORDER)
    second = register(door, "orders-value", WIDER)

    for version in ("2", "latest", "-1"):
        shown = door.get(f"/schemas/subjects/orders-value/versions/{version}").json
        assert shown == {
            "subject": "orders-value",
            "version": 2,
            "id": 2,
            "guid": second["guid"],
            "schema": json.dumps(WIDER),
            "schemaType": "JSON",
        }
    assert door.get("/schemas/subjects/orders-value/versions").json == [1, 2]


def test_the_bare_text_of_a_schema_can_be_had(door: OpenDoor) -> None:
    register(door, "orders-value", ORDER)
    register(door, "protos-value", PROTO, schemaType="PROTOBUF")

    for path in ("subjects/orders-value/versions/1/schema", "ids/1/schema", "schemas/ids/1/schema"):
        assert door.get(f"/schemas/{path}").json == ORDER
    for path in ("subjects/protos-value/versions/1/schema", "ids/2/schema"):
        answer = door.get(f"/schemas/{path}")
        assert (answer.headers["content-type"], answer.body.decode()) == ("text/plain; charset=utf-8", PROTO)


def test_a_schema_is_looked_up_in_its_subject(door: OpenDoor) -> None:
    register(door, "orders-value", ORDER)
    register(door, "orders-value", WIDER)

    found = door.post("/schemas/subjects/orders-value", body_of(ORDER)).json

    assert (found["subject"], found["version"], found["id"]) == ("orders-value", 1, 1)
    assert refused(door.post("/schemas/subjects/orders-value", body_of(OTHER))) == (404, 40403)
    assert refused(door.post("/schemas/subjects/none", body_of(ORDER))) == (404, 40401)
    assert refused(door.post("/schemas/subjects/orders-value", body_of("{"))) == (422, 42201)


def test_schemas_that_mean_the_same_are_one_if_asked_for(door: OpenDoor) -> None:
    register(door, "a", ORDER)
    turned = dict(reversed(ORDER.items()))
    path = "/schemas/subjects/a"

    for flag in ("", "?normalize=false"):
        assert refused(door.post(f"{path}{flag}", body_of(turned))) == (404, 40403)
    for flag in ("?normalize=true", "?normalize=True", "?normalize=1"):
        assert door.post(f"{path}{flag}", body_of(turned)).json["version"] == 1
        assert door.post(f"{path}/versions{flag}", body_of(turned)).json["version"] == 1
    assert register(door, "a", turned)["version"] == 2


def test_a_schema_is_found_by_its_id_and_its_guid_at_both_places(door: OpenDoor) -> None:
    registered = register(door, "orders-value", ORDER)
    register(door, "a-value", ORDER)

    for base in ("/schemas/schemas", "/schemas", "/v1/schemas", "/v1/schemas/schemas"):
        by_id = door.get(f"{base}/ids/1").json
        assert json.loads(by_id["schema"]) == ORDER
        assert (by_id["schemaType"], by_id["id"], by_id["guid"]) == ("JSON", 1, registered["guid"])
        assert by_id["subject"] in ("orders-value", "a-value")
        assert by_id["version"] == 1
        assert door.get(f"{base}/ids/1?subject=orders-value").json["subject"] == "orders-value"
        assert door.get(f"{base}/guids/{registered['guid']}").json["schema"] == by_id["schema"]
        assert door.get(f"{base}/ids/1/subjects").json == ["a-value", "orders-value"]
        assert door.get(f"{base}/ids/1/subjects?subject=a-value").json == ["a-value"]
        assert door.get(f"{base}/ids/1/subjects?offset=1&limit=5").json == ["orders-value"]
        assert sorted(door.get(f"{base}/ids/1/versions").json, key=str) == [
            {"subject": "a-value", "version": 1},
            {"subject": "orders-value", "version": 1},
        ]
        assert door.get(f"{base}/types").json == ["JSON", "PROTOBUF", "AVRO"]


@pytest.mark.parametrize(
    "path",
    ["ids/2", "ids/0", "ids/-1", "ids/x", "ids/١", f"ids/{'9' * 5000}", "guids/x", "ids/2/subjects", "ids/2/versions"],
)
def test_a_schema_that_is_not_there_is_40403(door: OpenDoor, path: str) -> None:
    register(door, "orders-value", ORDER)

    assert refused(door.get(f"/schemas/schemas/{quote(path)}")) == (404, 40403)


def test_lists_are_cut_as_asked_for(door: OpenDoor) -> None:
    for name in ("a", "b", "c"):
        register(door, name, ORDER)
    register(door, "c", WIDER)

    assert door.get("/schemas/subjects").json == ["a", "b", "c"]
    assert door.get("/schemas/subjects?offset=1&limit=1").json == ["b"]
    assert door.get("/schemas/subjects?offset=1&limit=-1").json == ["b", "c"]
    assert door.get("/schemas/subjects?offset=9").json == []
    assert door.get("/schemas/subjects?limit=0").json == []
    assert door.get("/schemas/subjects?subjectPrefix=b").json == ["b"]
    assert door.get("/schemas/subjects/c/versions?limit=1").json == [1]
    for base in ("/schemas/schemas", "/schemas", "/schemas/"):
        assert [(one["subject"], one["version"]) for one in door.get(base).json] == [
            ("a", 1),
            ("b", 1),
            ("c", 1),
            ("c", 2),
        ]
        assert [one["version"] for one in door.get(f"{base}?latestOnly=true&subjectPrefix=c").json] == [2]
    assert door.get("/schemas/contexts").json == ["."]
    for bad in ("offset=-1", "offset=x", "limit=x", "limit=1.5"):
        assert refused(door.get(f"/schemas/subjects?{bad}")) == (400, 400)


def test_a_subject_may_be_called_anything(door: OpenDoor) -> None:
    names = [
        "a/b",
        "a%2Fb",
        "größe-value",
        ":.staging:orders-value",
        "versions",
        "v1",
        "a b",
        "a+b",
        "a?b#c",
        "日本/値",
        "..",
    ]
    for number, name in enumerate(names):
        schema = ORDER | {"title": str(number)}
        register(door, name, schema)
        path = f"/schemas/subjects/{quote(name, safe='')}"
        assert door.get(f"{path}/versions/1").json["subject"] == name
        assert door.get(f"/v1{path}/versions/").json == [1]
        assert door.post(path, body_of(schema)).json["subject"] == name
        config = f"/schemas/config/{quote(name, safe='')}"
        assert door.request("PUT", config, {"compatibility": "full"}).json["compatibility"] == "FULL"
        assert door.get(config).json["compatibilityLevel"] == "FULL"

    assert door.get("/schemas/subjects").json == sorted(names)
    assert refused(door.get("/schemas/subjects/a/b/versions")) == (404, 404)
    assert refused(door.get("/schemas/subjects/%FF/versions")) == (400, 400)


def test_a_topic_may_be_called_v1(door: OpenDoor) -> None:
    door.post("/topics", {"name": "v1"})

    assert door.get("/topics/v1").json["name"] == "v1"
    assert door.get("/v1/topics/v1").json["name"] == "v1"


@pytest.mark.parametrize(
    ("accept", "answered"),
    [
        ("", JSON),
        ("*/*", JSON),
        ("application/json", JSON),
        (V1, V1),
        (f"{V1}, {UNVERSIONED}, application/json", V1),
        (UNVERSIONED, UNVERSIONED),
        (f"application/json, {V1};q=0.5", V1),
        (f"{V1};q=0, application/json", JSON),
        (f"{V1};q=0.0", JSON),
        (f"{V1};q=0.05", V1),
        (f"{V1.upper()}; charset=utf-8", V1),
        (",,;", JSON),
    ],
)
def test_answers_come_in_the_type_that_was_asked_for(door: OpenDoor, accept: str, answered: str) -> None:
    register(door, "orders-value", ORDER)

    for path in ("subjects", "ids/1", "ids/1/schema", "nope", "subjects/none/versions", "subjects?offset=x"):
        for method in ("GET", "POST"):
            answer = door.request(method, f"/schemas/{path}", None, {"Accept": accept})
            assert answer.headers["content-type"] == answered, (method, path)
            json.loads(answer.body)
            assert answer.body.endswith(b"\n")


@given(st.text(alphabet="apliction/jsv.dhemrgy+1;q=0, *", max_size=80))
@settings(max_examples=200)
def test_whatever_is_accepted_has_an_answer(accept: str) -> None:
    assert media_type(accept) in (JSON, V1, UNVERSIONED)


@pytest.mark.parametrize(
    "content_type",
    [V1, f"{V1}; charset=utf-8", f"{UNVERSIONED};charset=ISO-8859-1", "application/json; charset=UTF-16", "text/plain"],
)
def test_a_schema_may_be_sent_under_any_type(door: OpenDoor, content_type: str) -> None:
    answer = door.request(
        "POST", "/schemas/subjects/a/versions", body_of({"title": "größe"}), {"Content-Type": content_type}
    )

    assert answer.json["id"] == 1
    assert json.loads(door.get("/schemas/ids/1").json["schema"]) == {"title": "größe"}


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/schemas/nope"),
        ("GET", "/schemas/associations/resources/-/orders?resourceType=topic"),
        ("POST", "/schemas/associations"),
        ("GET", "/v1/schemas/subjects/a/versions/1/nope"),
        ("GET", "/schemas/schemas/schemas"),
        ("DELETE", "/schemas/ids"),
    ],
)
def test_any_other_path_is_404(door: OpenDoor, method: str, path: str) -> None:
    assert refused(door.request(method, path)) == (404, 404)


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("DELETE", "/schemas/subjects", "GET, HEAD, OPTIONS"),
        ("PUT", "/schemas/subjects/a/versions", "GET, HEAD, OPTIONS, POST"),
        ("GET", "/schemas/subjects/a", "DELETE, OPTIONS, POST"),
        ("PATCH", "/v1/schemas/config/", "DELETE, GET, HEAD, OPTIONS, PUT"),
        ("POST", "/schemas", "GET, HEAD, OPTIONS"),
    ],
)
def test_a_method_that_is_not_allowed_is_told_which_are(door: OpenDoor, method: str, path: str, allowed: str) -> None:
    answer = door.request(method, path, {})

    assert refused(answer) == (405, 405)
    assert answer.headers["allow"] == allowed


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b"", (400, 400)),
        (b"{", (400, 400)),
        (b"[]", (400, 400)),
        ({"schema": 5}, (400, 400)),
        ({"schema": "{}", "references": {}}, (400, 400)),
        ({"schema": "{}", "references": [{"name": "a"}]}, (400, 400)),
        ({}, (422, 42201)),
        ({"schema": None}, (422, 42201)),
        ({"schema": ""}, (422, 42201)),
        ({"schema": "{", "schemaType": "JSON"}, (422, 42201)),
        ({"schema": '{"type": "colour"}', "schemaType": "JSON"}, (422, 42201)),
        ({"schema": "{}", "schemaType": "XML"}, (422, 42201)),
        ({"schema": "{}", "schemaType": "AVRO"}, (422, 42201)),
        ({"schema": "message", "schemaType": "PROTOBUF"}, (422, 42201)),
        (body_of(ORDER, references=[{"name": "x", "subject": "none", "version": 1}]), (422, 42201)),
    ],
)
def test_what_is_no_schema_is_refused(door: OpenDoor, body: Any, expected: tuple[int, int]) -> None:
    for path in ("/schemas/subjects/a/versions", "/schemas/compatibility/subjects/a/versions"):
        assert refused(door.request("POST", path, body)) == expected
    assert door.get("/schemas/subjects").json == []


def test_a_missing_schema_is_called_so(door: OpenDoor) -> None:
    answer = door.post("/schemas/subjects/a/versions", {})

    assert answer.json["message"] == "schema is required"
    assert answer.json["code"] == "INVALID_SCHEMA"


def test_a_body_that_is_too_large_is_413(door: OpenDoor) -> None:
    answer = door.post("/schemas/subjects/a/versions", {"schema": "x" * 2**20})

    assert refused(answer) == (413, 413)


def test_an_incompatible_schema_is_refused_with_each_reason(door: OpenDoor) -> None:
    register(door, "orders-value", ORDER)

    answer = door.post("/schemas/subjects/orders-value/versions", body_of(OTHER))

    assert refused(answer) == (409, 409)
    assert answer.json["code"] == "SCHEMA_INCOMPATIBLE"
    assert answer.json["details"]["messages"]
    assert answer.json["error"].startswith("incompatible schema")


def test_compatibility_can_be_asked_for_without_registering(door: OpenDoor) -> None:
    register(door, "orders-value", ORDER)
    path = "/schemas/compatibility/subjects/orders-value/versions"

    for place in (path, f"{path}/latest", f"{path}/1", f"{path}/-1"):
        assert door.post(place, body_of(WIDER)).json == {"is_compatible": True}
        assert door.post(f"{place}?verbose=true", body_of(WIDER)).json == {"is_compatible": True, "messages": []}
        assert door.post(place, body_of(OTHER)).json == {"is_compatible": False}
        verbose = door.post(f"{place}?verbose=True", body_of(OTHER)).json
        assert verbose["is_compatible"] is False
        assert verbose["messages"]
    assert refused(door.post(f"{path}/7", body_of(WIDER))) == (404, 40402)
    assert refused(door.post(f"{path}/x", body_of(WIDER))) == (422, 42202)
    unknown = "/schemas/compatibility/subjects/none/versions"
    assert door.post(f"{unknown}/latest", body_of(WIDER)).json == {"is_compatible": True}
    assert door.post(unknown, body_of(WIDER)).json == {"is_compatible": True}
    assert door.get("/schemas/subjects/orders-value/versions").json == [1]


def test_levels_are_set_for_all_and_for_a_subject(door: OpenDoor) -> None:
    def level(answer: Answer) -> str:
        assert answer.json.keys() == {"compatibility", "compatibilityLevel"}
        assert answer.json["compatibility"] == answer.json["compatibilityLevel"]
        found: str = answer.json["compatibility"]
        return found

    assert level(door.get("/schemas/config")) == "BACKWARD"
    assert refused(door.get("/schemas/config/orders-value")) == (404, 40408)
    assert level(door.get("/schemas/config/orders-value?defaultToGlobal=true")) == "BACKWARD"
    assert level(door.request("PUT", "/schemas/config", {"compatibility": "full_transitive"})) == "FULL_TRANSITIVE"
    assert level(door.request("PUT", "/schemas/config/orders-value", {"compatibilityLevel": "None"})) == "NONE"
    both = {"compatibility": "FORWARD", "compatibilityLevel": "forward"}
    assert level(door.request("PUT", "/schemas/config/orders-value", both)) == "FORWARD"
    assert level(door.get("/schemas/config/orders-value")) == "FORWARD"
    assert level(door.request("DELETE", "/schemas/config/orders-value")) == "FORWARD"
    assert refused(door.request("DELETE", "/schemas/config/orders-value")) == (404, 40408)
    assert level(door.request("DELETE", "/schemas/config")) == "FULL_TRANSITIVE"
    assert level(door.get("/schemas/config")) == "BACKWARD"
    for bad in ({"compatibility": "SOMETIMES"}, {}, {"compatibility": "NONE", "compatibilityLevel": "FULL"}):
        for path in ("/schemas/config", "/schemas/config/a"):
            assert refused(door.request("PUT", path, bad)) == (422, 42203)


OPEN_ORDER = {"type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"]}
OPEN_ORDER_WITH_NOTE = {**OPEN_ORDER, "properties": {**OPEN_ORDER["properties"], "note": {"type": "string"}}}  # type: ignore[dict-item]


def test_an_optional_property_is_added_to_an_open_schema_under_the_policy_lenient(door: OpenDoor) -> None:
    register(door, "orders-value", OPEN_ORDER)
    asked = "/schemas/compatibility/subjects/orders-value/versions/latest"
    assert door.post(asked, body_of(OPEN_ORDER_WITH_NOTE)).json == {"is_compatible": False}

    answer = door.request("PUT", "/schemas/config/orders-value", {"compatibilityPolicy": "lenient"})

    lenient = {"compatibility": "BACKWARD", "compatibilityLevel": "BACKWARD", "compatibilityPolicy": "LENIENT"}
    assert (answer.status, answer.json) == (200, lenient)
    assert door.get("/schemas/config/orders-value").json == lenient
    assert door.post(asked, body_of(OPEN_ORDER_WITH_NOTE)).json == {"is_compatible": True}
    assert register(door, "orders-value", OPEN_ORDER_WITH_NOTE)["version"] == 2
    required = {**OPEN_ORDER_WITH_NOTE, "required": ["id", "note"]}
    assert refused(door.post("/schemas/subjects/orders-value/versions", body_of(required))) == (409, 409)


def test_a_policy_is_set_for_all_and_for_a_subject_with_or_without_a_level(door: OpenDoor) -> None:
    def put(path: str, **fields: str) -> dict[str, str]:
        answer = door.request("PUT", path, fields)
        assert answer.status == 200
        found: dict[str, str] = answer.json
        return found

    assert "compatibilityPolicy" not in door.get("/schemas/config").json
    assert (
        put("/schemas/config", compatibility="full", compatibilityPolicy="Lenient")["compatibilityPolicy"] == "LENIENT"
    )
    assert door.get("/schemas/config").json["compatibilityLevel"] == "FULL"
    assert refused(door.get("/schemas/config/orders-value")) == (404, 40408)
    inherited = door.get("/schemas/config/orders-value?defaultToGlobal=true").json
    assert inherited == {"compatibility": "FULL", "compatibilityLevel": "FULL", "compatibilityPolicy": "LENIENT"}
    assert put("/schemas/config/orders-value", compatibilityPolicy="strict")["compatibilityPolicy"] == "STRICT"
    kept = put("/schemas/config/orders-value", compatibility="NONE")
    assert kept == {"compatibility": "NONE", "compatibilityLevel": "NONE", "compatibilityPolicy": "STRICT"}
    assert door.request("DELETE", "/schemas/config/orders-value").json == kept
    assert refused(door.get("/schemas/config/orders-value")) == (404, 40408)
    assert door.request("DELETE", "/schemas/config").json["compatibilityPolicy"] == "LENIENT"
    assert "compatibilityPolicy" not in door.get("/schemas/config").json
    for path in ("/schemas/config", "/schemas/config/a"):
        assert refused(door.request("PUT", path, {"compatibilityPolicy": "GENEROUS"})) == (422, 42203)
        assert refused(door.request("PUT", path, {"compatibility": "FULL", "compatibilityPolicy": ""})) == (422, 42203)
    assert door.get("/schemas/config").json["compatibility"] == "BACKWARD"


def test_a_read_only_subject_takes_no_schema(door: OpenDoor) -> None:
    assert door.get("/schemas/mode").json == {"mode": "READWRITE"}
    assert refused(door.get("/schemas/mode/orders-value")) == (404, 40409)
    assert door.get("/schemas/mode/orders-value?defaultToGlobal=1").json == {"mode": "READWRITE"}

    assert door.request("PUT", "/schemas/mode/orders-value", {"mode": "READONLY"}).json == {"mode": "READONLY"}
    assert refused(door.post("/schemas/subjects/orders-value/versions", body_of(ORDER))) == (422, 42205)
    assert door.request("DELETE", "/schemas/mode/orders-value").json == {"mode": "READONLY"}
    assert register(door, "orders-value", ORDER)["id"] == 1

    assert door.request("PUT", "/schemas/mode", {"mode": "READONLY"}).json == {"mode": "READONLY"}
    assert refused(door.post("/schemas/subjects/a/versions", body_of(ORDER))) == (422, 42205)
    assert door.request("DELETE", "/schemas/mode").json == {"mode": "READONLY"}
    for bad in ({"mode": "SLEEPING"}, {}):
        assert refused(door.request("PUT", "/schemas/mode", bad)) == (422, 42204)
    assert refused(door.request("PUT", "/schemas/mode", {"mode": "IMPORT"})) == (422, 42205)
    assert door.request("PUT", "/schemas/mode?force=true", {"mode": "IMPORT"}).json == {"mode": "IMPORT"}


def test_a_version_is_deleted_softly_before_it_is_gone(door: OpenDoor) -> None:
    register(door, "a", ORDER)
    register(door, "a", WIDER)

    assert refused(door.request("DELETE", "/schemas/subjects/a/versions/1?permanent=true")) == (404, 40407)
    assert door.request("DELETE", "/schemas/subjects/a/versions/1").json == 1
    assert refused(door.request("DELETE", "/schemas/subjects/a/versions/1")) == (404, 40406)
    assert refused(door.get("/schemas/subjects/a/versions/1")) == (404, 40402)
    assert door.get("/schemas/subjects/a/versions/1?deleted=true").json["version"] == 1
    assert door.get("/schemas/subjects/a/versions").json == [2]
    assert door.get("/schemas/subjects/a/versions?deleted=true").json == [1, 2]
    assert door.get("/schemas/subjects/a/versions?deleted_only=true").json == [1]
    assert json.loads(door.get("/schemas/ids/1").json["schema"]) == ORDER
    assert door.request("DELETE", "/schemas/subjects/a/versions/1?permanent=true").json == 1
    assert refused(door.request("DELETE", "/schemas/subjects/a/versions/1?permanent=true")) == (404, 40402)
    assert refused(door.request("DELETE", "/schemas/subjects/a/versions/0")) == (422, 42202)
    assert refused(door.request("DELETE", "/schemas/subjects/none/versions/1")) == (404, 40401)


def test_a_subject_is_deleted_softly_before_it_is_gone(door: OpenDoor) -> None:
    register(door, "a", ORDER)
    register(door, "a", WIDER)

    assert refused(door.request("DELETE", "/schemas/subjects/a?permanent=true")) == (404, 40405)
    assert door.request("DELETE", "/schemas/subjects/a").json == [1, 2]
    assert refused(door.request("DELETE", "/schemas/subjects/a")) == (404, 40404)
    assert refused(door.get("/schemas/subjects/a/versions")) == (404, 40401)
    assert door.get("/schemas/subjects").json == []
    assert door.get("/schemas/subjects?deleted=true").json == ["a"]
    assert door.get("/schemas/subjects?deleted_only=true").json == ["a"]
    assert door.post("/schemas/subjects/a?deleted=true", body_of(ORDER)).json["version"] == 1
    assert door.request("DELETE", "/schemas/subjects/a?permanent=true").json == [1, 2]
    assert door.get("/schemas/subjects?deleted=true").json == []
    assert refused(door.request("DELETE", "/schemas/subjects/a")) == (404, 40401)
    assert refused(door.get("/schemas/subjects/a/versions/latest")) == (404, 40401)


def test_a_schema_that_others_refer_to_is_kept(door: OpenDoor) -> None:
    register(door, "money", {"type": "integer"})
    reference = {"name": "money.json", "subject": "money", "version": 1}
    referring = {"type": "object", "properties": {"total": {"$ref": "money.json"}}}
    made = register(door, "orders-value", referring, references=[reference])

    assert door.get("/schemas/subjects/orders-value/versions/1").json["references"] == [reference]
    assert door.get(f"/schemas/ids/{made['id']}").json["references"] == [reference]
    assert door.get("/schemas/subjects/money/versions/1/referencedby").json == [made["id"]]
    assert door.get("/schemas/subjects/orders-value/versions/latest/referencedby").json == []
    for path in ("money/versions/1", "money"):
        assert refused(door.request("DELETE", f"/schemas/subjects/{path}")) == (422, 42206)


def test_a_version_is_found_by_its_metadata(door: OpenDoor) -> None:
    team = {"properties": {"team": "billing", "áéí/x": "a b"}}
    register(door, "a", ORDER, metadata=team, ruleSet={"domainRules": []})
    register(door, "a", WIDER)

    found = door.get("/schemas/subjects/a/metadata?key=team&value=billing&key=%C3%A1%C3%A9%C3%AD/x&value=a%20b").json

    assert (found["version"], found["metadata"], found["ruleSet"]) == (1, team, {"domainRules": []})
    assert refused(door.get("/schemas/subjects/a/metadata?key=team&value=shipping")) == (404, 40402)
    assert refused(door.get("/schemas/subjects/a/metadata?key=team")) == (400, 400)
    assert refused(door.get("/schemas/subjects/none/metadata?key=team&value=billing")) == (404, 40401)


@pytest.mark.parametrize("version", ["0", "-2", "x", "1.5", "²", "99999999999999999999"])
def test_a_version_that_cannot_be_is_42202(door: OpenDoor, version: str) -> None:
    register(door, "a", ORDER)

    answer = door.get(f"/schemas/subjects/a/versions/{quote(version)}/schema")

    assert refused(answer) == (422, 42202)


def test_without_a_type_avro_is_told_from_json(door: OpenDoor) -> None:
    for subject, schema in (("avro", AVRO), ("json", ORDER)):
        door.post(f"/schemas/subjects/{subject}/versions", {"schema": json.dumps(schema)})
        found = door.get(f"/schemas/subjects/{subject}/versions/1").json
        assert found["schemaType"] == subject.upper()


def test_the_registry_is_told_in_numbers(door: OpenDoor) -> None:
    assert door.get("/schemas/stats").json["details"] == []
    door.post("/topics", {"name": "a"})
    register(door, "orders-value", ORDER)
    register(door, "orders-value", WIDER)
    register(door, "a-value", ORDER)
    door.request("PUT", "/schemas/config/a-value", {"compatibility": "FULL"})

    stats = door.get("/schemas/stats").json

    assert (stats["subjects"], stats["schemas"], stats["versions"]) == (2, 2, 3)
    assert (stats["subjectCount"], stats["totalSchemas"], stats["globalCompatibility"]) == (2, 2, "BACKWARD")
    assert stats["validationEnabled"] is True
    assert stats["cachedValidators"] >= 0
    by_subject = {one["subject"]: one for one in stats["details"]}
    assert by_subject["a-value"] == {
        "subject": "a-value",
        "versionCount": 1,
        "latestVersion": 1,
        "latestSchemaId": 1,
        "compatibility": "FULL",
        "validationEnabled": True,
    }
    orders = by_subject["orders-value"]
    assert (orders["latestSchemaId"], orders["validationEnabled"]) == (2, False)  # there is no such topic


def test_a_message_that_breaks_its_schema_is_refused_with_the_place(door: OpenDoor) -> None:
    door.post("/topics", {"name": "orders", "partitions": 1})
    register(door, "orders-value", ORDER)

    answer = door.post(
        "/topics/orders/messages",
        {"messages": [{"value": '{"id": 1}'}, {"value": '{"id": "one"}'}, {"value": "no JSON"}]},
    )

    stored, wrong, broken = answer.json["results"]
    assert (answer.status, answer.json["failed"], stored["offset"]) == (200, 2, 0)
    assert (wrong["code"], wrong["status"], wrong["index"]) == ("SCHEMA_REJECTED", 400, 1)
    assert {"subject", "version", "schema_id", "path", "reason"} <= wrong["details"].keys()
    assert (wrong["details"]["subject"], wrong["details"]["path"]) == ("orders-value", "/id")
    assert broken["details"]["path"] == ""
    alone = door.post("/topics/orders/messages", {"value": '{"id": "one"}'})
    assert (alone.status, alone.json["code"], alone.json["details"]["path"]) == (400, "SCHEMA_REJECTED", "/id")


@pytest.mark.parametrize(("setting", "status"), [("auto", 400), ("off", 200), ("required", 400)])
def test_a_topic_says_whether_messages_are_looked_at(door: OpenDoor, setting: str, status: int) -> None:
    door.post("/topics", {"name": "orders", "config": {"schema_validation": setting}})

    assert (door.post("/topics/orders/messages", {"value": "{}"}).status == 400) == (setting == "required")
    register(door, "orders-value", ORDER)
    assert door.post("/topics/orders/messages", {"value": "{}"}).status == status
    assert door.post("/topics/orders/messages", {"value": '{"id": 7}'}).status == 200


def test_schemas_outlive_the_broker(tmp_path: Path) -> None:
    with OpenDoor(tmp_path / "data") as door:
        registered = register(door, "orders/value", ORDER)
        register(door, "orders/value", WIDER)
        door.request("DELETE", "/schemas/subjects/orders%2Fvalue/versions/1")
        door.request("PUT", "/schemas/config", {"compatibility": "NONE"})
        before = [door.get(path).body for path in ("/schemas/stats", "/schemas/schemas?deleted=true", "/schemas/ids/1")]

    with OpenDoor(tmp_path / "data") as door:
        after = [door.get(path).body for path in ("/schemas/stats", "/schemas/schemas?deleted=true", "/schemas/ids/1")]

        assert [json.loads(one) for one in before][1:] == [json.loads(one) for one in after][1:]
        assert door.get("/schemas/config").json["compatibility"] == "NONE"
        assert door.get(f"/schemas/guids/{registered['guid']}").json["id"] == 1
        assert register(door, "another", OTHER)["id"] == 3


def test_head_and_options_work_below_any_name(door: OpenDoor) -> None:
    register(door, "a/b", ORDER)

    head = door.request("HEAD", "/schemas/subjects/a%2Fb/versions")
    options = door.request("OPTIONS", "/schemas/subjects/a%2Fb/versions")

    assert (head.status, head.body, head.headers["content-length"]) == (200, b"", "4")
    assert (options.status, options.headers["allow"]) == (204, "GET, HEAD, OPTIONS, POST")


def test_many_who_register_at_once_get_numbers_of_their_own(door: OpenDoor) -> None:
    schemas = [{"title": str(number % 4)} for number in range(12)]
    with ThreadPoolExecutor(12) as threads:
        made = list(threads.map(lambda schema: register(door, "a", schema), schemas))

    assert sorted(one["id"] for one in made) == sorted([1, 2, 3, 4] * 3)
    for number in range(4):
        assert made[number] == made[number + 4] == made[number + 8]
    assert door.get("/schemas/subjects/a/versions").json == [1, 2, 3, 4]


def test_a_full_disk_is_50001_and_leaves_nothing_behind() -> None:
    disk = FaultyDisk(MemoryDisk(), seed=1)
    with OpenDoor(Path("/data"), disk=disk) as door:
        register(door, "a", ORDER)
        disk.fail_next("pwrite", ENOSPC)

        answer = door.post("/schemas/subjects/a/versions", body_of(WIDER))

        assert refused(answer) == (507, 50001)
        assert (answer.headers["retry-after"], answer.json["retryable"]) == ("1", True)
        assert door.get("/schemas/subjects/a/versions").json == [1]
        assert register(door, "a", WIDER)["version"] == 2


class BuggySchemas:
    """Fail in a way that nobody has thought of."""

    def subjects(self, **_: object) -> list[str]:
        raise ZeroDivisionError("secret")


def test_a_bug_has_the_registry_s_shape_as_well(door: OpenDoor) -> None:
    door.inside(lambda: setattr(door.broker, "schemas", BuggySchemas()))

    answer = door.get("/schemas/subjects", Accept=V1)

    assert (answer.status, answer.headers["content-type"]) == (500, V1)
    body = json.loads(answer.body)
    assert (body["error_code"], body["code"]) == (500, "INTERNAL")
    assert b"secret" not in answer.body


def test_elsewhere_a_refusal_has_nothing_of_the_registry(door: OpenDoor) -> None:
    for path in ("/schemasx", "/topics/none", "/v1/schemas2/subjects", "/topics/schemas"):
        body = door.get(path, Accept=V1).json
        assert {"error_code", "message"} & body.keys() == set()
