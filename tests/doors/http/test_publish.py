import base64
from pathlib import Path
from typing import Any

import pytest

from goqueue.doors.http.config import HttpConfig
from goqueue.testing import ManualClock
from goqueue.wire.partitioning import partition_of_key
from tests.doors.http.doors import OpenDoor

URL = "/topics/orders/messages"
NOW = "2024-01-01T00:00:00.000000000Z"


@pytest.fixture
def orders(tmp_path: Path, clock: ManualClock) -> Any:
    """A door in front of the topic `orders`, at a time that stands still."""
    with OpenDoor(tmp_path / "data", clock=clock) as door:
        door.post("/topics", {"name": "orders", "partitions": 3})
        yield door


def read(door: OpenDoor, query: str = "") -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = door.get(f"{URL}{query}").json["messages"]
    return messages


def test_one_message_needs_no_list_around_it(orders: OpenDoor) -> None:
    answer = orders.post(URL, {"value": "hello"})

    assert answer.status == 200
    stored = {"partition": 0, "offset": 0, "timestamp": NOW, "priority": "normal"}
    assert answer.json == {"results": [stored], "failed": 0}
    assert read(orders)[0]["value"] == "hello"


@pytest.mark.parametrize("url", [URL, f"{URL}/batch"])
def test_many_messages_have_a_result_each_in_their_order(orders: OpenDoor, url: str) -> None:
    messages = [{"value": f"{number}", "partition": number % 3} for number in range(7)]

    answer = orders.post(url, {"messages": messages}).json

    assert answer["failed"] == 0
    assert [result["partition"] for result in answer["results"]] == [0, 1, 2, 0, 1, 2, 0]
    assert [result["offset"] for result in answer["results"]] == [0, 0, 0, 1, 1, 1, 2]


def test_a_key_goes_where_murmur3_says_and_the_rest_take_turns(orders: OpenDoor) -> None:
    keyed = orders.post(URL, {"messages": [{"key": f"user-{number}", "value": ""} for number in range(20)]}).json
    others = orders.post(URL, {"messages": [{"value": "", "key": None}, {"value": ""}, {"value": ""}]}).json
    empty = orders.post(URL, {"messages": [{"value": "", "key": ""}, {"value": "", "key_base64": ""}]}).json

    wanted = [partition_of_key(f"user-{number}".encode(), 3) for number in range(20)]
    assert [result["partition"] for result in keyed["results"]] == wanted
    assert {result["partition"] for result in others["results"]} == {0, 1, 2}
    assert [result["partition"] for result in empty["results"]] == [partition_of_key(b"", 3)] * 2


def test_what_was_published_is_read_with_all_its_fields(orders: OpenDoor) -> None:
    raw = base64.b64encode(b"\xff\x00").decode()
    orders.post(
        URL,
        {
            "messages": [
                {"key": "k", "value": "päth", "headers": {"a": "b", "raw": {"base64": raw}}, "priority": "HIGH"},
                {"key_base64": raw, "value_base64": raw, "priority": 4},
                {"value": "", "headers": {"gq-origin": "elsewhere", "none": None}},
            ]
        },
    )

    by_priority = {message["priority"]: message for message in read(orders)}
    first, second, third = by_priority["high"], by_priority["background"], by_priority["normal"]
    assert (first["key"], first["value"]) == ("k", "päth")
    assert first["headers"] == {"a": "b", "raw": {"base64": raw}}
    assert (second["key"], second["key_base64"], second["value"], second["value_base64"]) == (None, raw, None, raw)
    assert (third["value"], third["headers"]) == ("", {"gq-origin": "elsewhere", "none": None})
    assert "key" not in third
    assert "created_at" not in third


def test_an_empty_key_and_the_time_of_the_producer_are_shown(orders: OpenDoor) -> None:
    orders.post(URL, {"key": "", "value": "a", "created_at": "2026-11-18T20:00:00.000000001Z"})
    orders.post(URL, {"tombstone": True, "key": ""})

    first, second = read(orders)

    assert (first["key"], first["created_at"], first["headers"]) == ("", "2026-11-18T20:00:00.000000001Z", {})
    assert (second["key"], second["tombstone"]) == ("", True)
    refused = orders.post(URL, {"value": "a", "created_at": "yesterday"})
    assert (refused.status, "invalid created_at" in refused.json["error"]) == (400, True)


@pytest.mark.parametrize(
    ("given", "shown"),
    [("critical", "critical"), ("High", "high"), ("LOW", "low"), (0, "critical"), (2, "normal"), (None, "normal")],
)
def test_a_priority_is_a_name_in_any_case_or_a_number(orders: OpenDoor, given: object, shown: str) -> None:
    assert orders.post(URL, {"value": "a", "priority": given}).json["results"][0]["priority"] == shown


@pytest.mark.parametrize(
    ("message", "words"),
    [
        ({}, "value is required"),
        ({"value": None}, "value is required"),
        ({"value": None, "tombstone": False}, "value is required"),
        ({"value": "a", "value_base64": "YQ=="}, "value and value_base64 are two names"),
        ({"value": "a", "key": "a", "key_base64": "YQ=="}, "key and key_base64 are two names"),
        ({"value_base64": "YQ"}, "invalid value_base64"),
        ({"value_base64": "caf\u00e9"}, "invalid value_base64"),
        ({"value": "a", "key_base64": "?"}, "invalid key_base64"),
        ({"value": "a", "tombstone": True, "key": "k"}, "a tombstone has no value"),
        ({"tombstone": True}, "a tombstone needs a key"),
        ({"tombstone": True, "key": None}, "a tombstone needs a key"),
        ({"value": "a", "priority": "urgent"}, "invalid priority"),
        ({"value": "a", "priority": 5}, "invalid priority"),
        ({"value": "a", "priority": -1}, "invalid priority"),
        ({"value": "a", "priority": 10**40}, "invalid priority"),
        ({"value": "a", "delay": "soon"}, "invalid delay format"),
        ({"value": "a", "delay": "30"}, "invalid delay format"),
        ({"value": "a", "deliverAt": "tomorrow"}, "invalid deliverAt format"),
        ({"value": "a", "deliver_at": "2024-01-01"}, "invalid deliverAt format"),
        ({"value": "a", "deliver_at": 1, "deliverAt": 1}, "deliver_at and deliverAt are two names"),
        ({"value": "a", "delay": "1h", "deliver_at": "2h ago"}, "delay and deliver_at exclude each other"),
        ({"value": "a", "delay": "1h", "deliverAt": "2h ago"}, "delay and deliverAt exclude each other"),
        ({"value": "a", "delay": "-5s"}, "invalid delay: -5s is negative"),
        ({"value": "a", "ttl": "0s"}, "invalid ttl: 0s is not positive"),
        ({"value": "a", "ttl": "-1s"}, "invalid ttl: -1s is not positive"),
        ({"value": "a", "ttl": "1"}, "invalid ttl format"),
        ({"value": "a", "expires_at": "x"}, "invalid expires_at format"),
        ({"value": "a", "ttl": "1s", "expires_at": 5}, "ttl and expires_at are two names"),
        ({"value": "a", "headers": {"gq-deliver-at": "1"}}, "invalid header"),
        ({"value": "a", "headers": {"gq-": "1"}}, "invalid header"),
        ({"value": "a", "headers": {"a": {"base64": "?"}}}, "invalid header"),
    ],
)
def test_a_message_that_makes_no_sense_is_refused_and_leaves_the_others(
    orders: OpenDoor, message: dict[str, Any], words: str
) -> None:
    alone = orders.post(URL, message)
    among_others = orders.post(URL, {"messages": [{"value": "first"}, message, {"value": "last"}]})

    assert (alone.status, alone.code) == (400, "INVALID_MESSAGE")
    assert alone.json["error"].startswith(words)
    assert alone.json["results"][0]["index"] == 0
    assert (among_others.status, among_others.json["failed"]) == (200, 1)
    refused = among_others.json["results"][1]
    assert refused["error"].startswith(words)
    assert (refused["code"], refused["status"], refused["retryable"]) == ("INVALID_MESSAGE", 400, False)
    assert (refused["index"], refused["details"]["index"]) == (1, 1)
    assert refused.keys().isdisjoint({"partition", "offset"})
    assert sorted(message["value"] for message in read(orders)) == ["first", "last"]


def test_a_partition_that_does_not_exist_is_refused_for_its_message_alone(orders: OpenDoor) -> None:
    messages = [{"value": "a", "partition": number} for number in (0, 3, -1, 10**30)]

    answer = orders.post(URL, {"messages": messages})

    assert (answer.status, answer.json["failed"]) == (200, 3)
    codes = [result.get("code") for result in answer.json["results"]]
    assert codes == [None, "PARTITION_NOT_FOUND", "INVALID_PARTITION", "PARTITION_NOT_FOUND"]
    assert orders.post(URL, {"value": "a", "partition": 3}).status == 404


def test_when_all_are_refused_the_answer_is_that_of_the_first_error(orders: OpenDoor) -> None:
    answer = orders.post(URL, {"messages": [{"value": "a", "partition": 9}, {"value": None}]})

    assert (answer.status, answer.code, answer.json["failed"]) == (404, "PARTITION_NOT_FOUND", 2)
    assert [result["index"] for result in answer.json["results"]] == [0, 1]
    assert answer.json["details"] == {"topic": "orders", "partition": 9}


def test_a_value_over_the_limit_of_its_topic_is_413_and_says_which(orders: OpenDoor) -> None:
    orders.request("PATCH", "/topics/orders/config", {"max_message_bytes": 10})
    large = {"value": "x" * 11}

    alone = orders.post(URL, large)
    among_others = orders.post(URL, {"messages": [{"value": None}, {"value": "fits"}, large]})

    assert (alone.status, alone.code) == (413, "MESSAGE_TOO_LARGE")
    assert alone.json["details"] == {"field": "value", "size": 11, "limit": 10, "index": 0}
    refused = among_others.json["results"][2]
    assert refused["error"] == "message 2: value of 11 bytes is over the limit of 10"
    assert (refused["index"], refused["details"]["index"]) == (2, 2)


def test_a_key_has_up_to_65_535_bytes(orders: OpenDoor) -> None:
    assert orders.post(URL, {"value": "a", "key": "x" * 65_535}).status == 200

    refused = orders.post(URL, {"value": "a", "key": "x" * 65_536})

    assert (refused.status, refused.code) == (413, "MESSAGE_TOO_LARGE")
    assert refused.json["details"] == {"field": "key", "size": 65_536, "limit": 65_535, "index": 0}


@pytest.mark.parametrize(
    "field", [{"key": "x" * 65_536}, {"headers": {"a": "x" * 65_536}}, {"headers": {"x" * 65_536: ""}}]
)
def test_a_key_or_headers_over_the_limit_are_413(orders: OpenDoor, field: dict[str, Any]) -> None:
    answer = orders.post(URL, {"messages": [{"value": "fits"}, {"value": "a", **field}]})

    assert answer.json["failed"] == 1
    assert (answer.json["results"][1]["status"], answer.json["results"][1]["index"]) == (413, 1)


def test_a_tombstone_has_a_key_and_no_value(orders: OpenDoor) -> None:
    assert orders.post(URL, {"key": "k", "tombstone": True}).status == 200

    message = read(orders)[0]
    assert (message["key"], message["value"], message["tombstone"]) == ("k", None, True)
    assert "value_base64" not in message


@pytest.mark.parametrize(
    "due",
    [
        {"delay": "1h"},
        {"deliver_at": "2024-01-01T01:00:00Z"},
        {"deliverAt": 1704070800},
        {"deliverAt": 1704070800.0},
    ],
)
def test_a_delayed_message_waits_for_its_time(orders: OpenDoor, clock: ManualClock, due: dict[str, Any]) -> None:
    result = orders.post(URL, {"value": "later", **due}).json["results"][0]

    assert result["delayed"] is True
    assert result["deliver_at"] == result["deliverAt"] == "2024-01-01T01:00:00.000000000Z"
    assert read(orders) == []
    clock.advance(3600)
    orders.let_time_work()
    assert read(orders)[0]["value"] == "later"


@pytest.mark.parametrize("due", [{"delay": "0s"}, {"deliver_at": 0}, {"deliverAt": "2h ago"}, {"deliver_at": "now"}])
def test_a_delay_that_is_over_means_now(orders: OpenDoor, due: dict[str, Any]) -> None:
    result = orders.post(URL, {"value": "now", **due}).json["results"][0]

    assert "delayed" not in result
    assert len(read(orders)) == 1


def test_a_delay_has_no_upper_limit(orders: OpenDoor) -> None:
    result = orders.post(URL, {"value": "much later", "delay": "106000d"}).json["results"][0]

    assert (result["delayed"], result["deliver_at"]) == (True, "2262-04-11T23:47:16.854775807Z")


@pytest.mark.parametrize("ttl", [{"ttl": "1h"}, {"expires_at": "2024-01-01T01:00:00Z"}, {"expires_at": 1704070800}])
def test_a_message_says_when_it_expires(orders: OpenDoor, ttl: dict[str, Any]) -> None:
    orders.post(URL, {"value": "a", "headers": {"source": "web"}, **ttl})

    (message,) = read(orders)
    assert message["expires_at"] == "2024-01-01T01:00:00.000000000Z"
    assert message["headers"] == {"source": "web"}


@pytest.mark.parametrize("due", [{"delay": "1h"}, {"deliver_at": "2024-01-01T01:00:00Z"}])
def test_the_time_to_live_begins_when_a_message_is_due(
    orders: OpenDoor, clock: ManualClock, due: dict[str, Any]
) -> None:
    orders.post(URL, {"value": "a", "ttl": "5m", **due})
    clock.advance(3600)
    orders.let_time_work()

    (message,) = read(orders)
    assert (message["expires_at"], message["headers"]) == ("2024-01-01T01:05:00.000000000Z", {})


@pytest.mark.parametrize("acks", ["leader", "all", None])
def test_acks_say_what_the_answer_waits_for(orders: OpenDoor, acks: str | None) -> None:
    assert orders.post(URL, {"value": "a", "acks": acks}).json["results"][0]["offset"] == 0


def test_without_acks_messages_are_accepted_and_no_more_is_said(orders: OpenDoor) -> None:
    answer = orders.post(URL, {"messages": [{"value": "a"}, {"value": None}, {"value": "b"}], "acks": "none"})

    assert (answer.status, answer.json["failed"]) == (202, 1)
    first, second, third = answer.json["results"]
    assert (first, second["code"], third) == ({"accepted": True}, "INVALID_MESSAGE", {"accepted": True})
    orders.until(lambda: orders.broker.topics.describe("orders").total_messages == 2)


def test_acks_of_another_kind_are_refused(orders: OpenDoor) -> None:
    answer = orders.post(URL, {"value": "a", "acks": "some"})

    assert (answer.status, answer.code, answer.json["details"]["path"]) == (400, "INVALID_REQUEST", "acks")


def test_a_batch_that_is_sent_again_is_recognised(orders: OpenDoor) -> None:
    batch = {
        "messages": [{"value": "a", "partition": 1}, {"value": "b", "partition": 1}],
        "producer_id": 77,
        "epoch": 0,
        "sequence": 0,
    }

    first, second = orders.post(URL, batch).json, orders.post(URL, batch).json

    assert [result["offset"] for result in first["results"]] == [0, 1]
    assert [(result["offset"], result["duplicate"]) for result in second["results"]] == [(0, True), (1, True)]
    assert all("duplicate" not in result for result in first["results"])
    assert len(read(orders)) == 2
    assert all(message["headers"] == {} for message in read(orders))


def test_a_message_can_have_a_sequence_of_its_own(orders: OpenDoor) -> None:
    def publish(sequence: int) -> Any:
        message = {"value": f"{sequence}", "partition": 0, "sequence": sequence, "producer_id": 5, "epoch": 0}
        return orders.post(URL, message).json["results"][0]

    assert [publish(0)["offset"], publish(1)["offset"]] == [0, 1]
    assert (publish(0)["offset"], publish(0)["duplicate"]) == (0, True)
    assert publish(9)["code"] == "OUT_OF_ORDER_SEQUENCE"


def test_a_duplicate_that_is_too_old_has_no_offset(orders: OpenDoor) -> None:
    for sequence in (*range(10), 0):
        message = {"value": "a", "partition": 0, "sequence": sequence, "producer_id": 5, "epoch": 0}
        result = orders.post(URL, message).json["results"][0]

    assert result == {"partition": 0, "priority": "normal", "duplicate": True}


@pytest.mark.parametrize(
    ("fields", "missing"),
    [
        ({"producer_id": 1}, "epoch"),
        ({"epoch": 0}, "producer_id"),
        ({"sequence": 0}, "producer_id"),
        ({"sequence": 0, "transaction_id": "t"}, "producer_id"),
    ],
)
def test_half_an_identity_is_refused(orders: OpenDoor, fields: dict[str, Any], missing: str) -> None:
    answer = orders.post(URL, {"value": "a", **fields})

    assert (answer.status, answer.code, answer.json["details"]["path"]) == (400, "INVALID_REQUEST", missing)
    assert read(orders) == []


def test_an_empty_list_is_refused(orders: OpenDoor) -> None:
    answer = orders.post(URL, {"messages": []})

    assert (answer.status, answer.code) == (400, "INVALID_REQUEST")
    assert answer.json["error"] == "at least one message required"


def test_an_unknown_topic_fails_the_request_even_if_all_messages_are_wrong(orders: OpenDoor) -> None:
    answer = orders.post("/topics/none/messages", {"value": None})

    assert (answer.status, answer.code) == (404, "TOPIC_NOT_FOUND")
    assert "results" not in answer.json


def test_ten_thousand_messages_are_taken_and_one_more_is_not(orders: OpenDoor) -> None:
    taken = orders.post(URL, {"messages": [{"value": "a"}] * 10_000})
    refused = orders.post(URL, {"messages": [{"value": "a"}] * 10_001})

    assert (taken.status, len(taken.json["results"])) == (200, 10_000)
    assert (refused.status, refused.code) == (413, "REQUEST_TOO_LARGE")
    assert refused.json["error"] == "request too large: 10001 messages are over the limit of 10000"


def test_base64_counts_as_what_it_stands_for(tmp_path: Path) -> None:
    config = HttpConfig(payload_bytes_max=10_000, payload_bytes_per_message=100, publish_bytes_max=20_000)
    with OpenDoor(tmp_path, config=config) as door:
        door.post("/topics", {"name": "orders"})

        as_text = door.post(URL, {"value": "x" * 10_200})
        as_base64 = door.post(URL, {"value_base64": base64.b64encode(b"x" * 9_900).decode()})
        too_large = door.post(URL, {"value_base64": base64.b64encode(b"x" * 10_200).decode()})

    assert (as_text.status, as_text.code) == (413, "REQUEST_TOO_LARGE")
    assert as_base64.status == 200
    assert (too_large.status, too_large.code) == (413, "REQUEST_TOO_LARGE")


def test_a_value_of_sixteen_mebibytes_is_stored(door: OpenDoor) -> None:
    door.post("/topics", {"name": "orders", "partitions": 1})
    value = base64.b64encode(b"\xab" * 16 * 2**20).decode()

    published = door.post(URL, {"value_base64": value})
    back = door.get("/topics/orders/partitions/0/messages?max_bytes=1")

    assert published.status == 200
    assert back.json["messages"][0]["value_base64"] == value


@pytest.mark.parametrize(("field", "value"), [("value", "x"), ("key", "k"), ("delay", "1h"), ("deliverAt", 1)])
def test_a_field_of_a_message_beside_the_list_is_refused(orders: OpenDoor, field: str, value: object) -> None:
    answer = orders.post("/topics/orders/messages", {"messages": [{"value": "a"}], field: value})

    assert (answer.status, answer.code, answer.json["details"]["path"]) == (400, "INVALID_REQUEST", field)
