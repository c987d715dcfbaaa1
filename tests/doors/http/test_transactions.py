"""Producers and transactions over HTTP: every field and status of the contract, and what readers see meanwhile."""

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from goqueue.doors.http.door import HttpConfig
from goqueue.testing import ManualClock
from tests.doors.http.consumers import join, poll, poll_path, publish, settle, take, values
from tests.doors.http.doors import Answer, OpenDoor
from tests.doors.http.test_stream import follow

MESSAGES = "/topics/orders/messages"
ODD_NAMES = ["a/b", "//", "grüße 😀", "100%", "%2F", "a:b", "a?b#c", "a b+c", "x" * 255]


@pytest.fixture
def orders(door: OpenDoor) -> OpenDoor:
    """A door with a topic of one partition behind it."""
    door.post("/topics", {"name": "orders", "partitions": 1})
    return door


class Producer:
    """A producer with a transactional id, and the few requests that it makes again and again."""

    def __init__(self, door: OpenDoor, name: str = "billing-1", **fields: Any) -> None:
        self.door = door
        answer = door.post("/producers/init", {"transactional_id": name, **fields})
        assert answer.status == 200, answer.body
        self.identity: dict[str, Any] = answer.json
        self.owner = {**self.identity, "transactional_id": name}
        self.transaction_id = ""

    def begin(self, **fields: Any) -> Answer:
        answer = self.door.post("/transactions/begin", {**self.owner, **fields})
        if answer.status == 200:
            self.transaction_id = answer.json.get("transaction_id", "")
        return answer

    def publish(self, value: str = "v", topic: str = "orders", **fields: Any) -> Answer:
        return self.door.post("/transactions/publish", {**self.identity, "topic": topic, "value": value, **fields})

    def publish_all(self, *messages: dict[str, Any], **fields: Any) -> Answer:
        return self.door.post("/transactions/publish", {**self.identity, "messages": list(messages), **fields})

    def acks(self, *messages: dict[str, Any]) -> Answer:
        receipts = [message["receipt_handle"] for message in messages]
        return self.door.post("/transactions/acks", {**self.identity, "receipt_handles": receipts})

    def offsets(self, offsets: Any, group: str = "billing", **fields: Any) -> Answer:
        return self.door.post("/transactions/offsets", {**self.identity, "group": group, "offsets": offsets, **fields})

    def commit(self, **fields: Any) -> Answer:
        return self.door.post("/transactions/commit", {**self.owner, **fields})

    def abort(self) -> Answer:
        return self.door.post("/transactions/abort", self.owner)

    @property
    def path(self) -> str:
        return f"/transactions/{quote(self.transaction_id, safe='')}"


def begun(door: OpenDoor, name: str = "billing-1", **fields: Any) -> Producer:
    producer = Producer(door, name, **fields)
    assert producer.begin().status == 200
    return producer


def read(door: OpenDoor, topic: str = "orders", **query: str) -> list[str]:
    asked = "&".join(f"{name}={value}" for name, value in query.items())
    return sorted(message["value"] for message in door.get(f"/topics/{topic}/messages?{asked}").json["messages"])


def stable_offset(door: OpenDoor, topic: str = "orders") -> int:
    stable: int = door.get(f"/topics/{topic}").json["partition_offsets"]["0"]["last_stable_offset"]
    return stable


@contextmanager
def asking(door: OpenDoor, path: str) -> Iterator["Future[Answer]"]:
    """A long poll that is being held."""
    with ThreadPoolExecutor(1) as threads:
        future = threads.submit(door.get, path)
        door.until(lambda: door.door.polls_held or future.done())
        yield future


# --- producers ----------------------------------------------------------------------------------


def test_a_producer_is_initiated_with_and_without_a_transactional_id(door: OpenDoor) -> None:
    plain = door.post("/producers/init", {})
    bare = door.request("POST", "/producers/init")
    first, second = Producer(door, "a"), Producer(door, "b")

    assert plain.status == bare.status == 200
    assert {*plain.json, *first.identity} == {"producer_id", "epoch"}
    identities = [plain.json, bare.json, first.identity, second.identity]
    assert len({one["producer_id"] for one in identities}) == 4
    assert all(one["producer_id"] >= 1 and one["epoch"] == 0 for one in identities)


def test_to_initiate_again_gives_the_same_id_the_next_epoch_and_aborts_what_is_open(orders: OpenDoor) -> None:
    old = begun(orders)
    old.publish("gone")

    new = Producer(orders)

    assert new.identity == {"producer_id": old.identity["producer_id"], "epoch": 1}
    assert orders.get("/transactions").json == {"transactions": [], "count": 0}
    for refused in (old.begin(), old.publish(), old.commit(), old.abort(), old.acks({"receipt_handle": "x"})):
        assert (refused.status, refused.code) == (409, "PRODUCER_FENCED")
        assert refused.json["error"].startswith("producer fenced")
        assert refused.json["details"] == {
            "producer_id": old.identity["producer_id"],
            "epoch": 0,
            "current_epoch": 1,
        }
    assert (new.begin().status, new.publish("kept").status, new.commit().status) == (200, 200, 200)
    assert read(orders) == ["kept"]


def test_what_a_producer_cannot_be_is_refused(door: OpenDoor) -> None:
    timeouts: list[dict[str, Any]] = [
        {"transactional_id": "a", "transaction_timeout_ms": n} for n in (0, -1, 900_001, 2**63, 2**70, "60s")
    ]
    names: list[dict[str, Any]] = [{"transactional_id": name} for name in ("", "a\nb", "x" * 256, 7, ["a"])]
    for body in (*timeouts, *names):
        answer = door.post("/producers/init", body)
        assert (answer.status, answer.code) == (400, "INVALID_REQUEST")
        assert answer.json["details"]["path"] == list(body)[-1]


def test_a_producer_says_that_it_is_still_there(door: OpenDoor) -> None:
    producer = Producer(door, "a")
    path = f"/producers/{producer.identity['producer_id']}/heartbeat"

    assert door.post(path, {"epoch": 0}).json == {"status": "ok", "success": True}
    assert door.post(f"/v1{path}/", {"epoch": 0, "transactional_id": "a"}).status == 200
    assert door.post(path, {"epoch": 1}).code == "PRODUCER_FENCED"
    assert door.post(path, {"epoch": 0, "transactional_id": "b"}).code == "PRODUCER_NOT_FOUND"
    assert door.post("/producers/7/heartbeat", {"epoch": 0}).status == 404
    assert door.post(f"/producers/{2**63}/heartbeat", {"epoch": 0}).status == 404
    for wrong in ("x", "-1", "1.5", "9" * 30, "٣"):
        answer = door.post(f"/producers/{quote(wrong)}/heartbeat", {"epoch": 0})
        assert (answer.status, answer.code) == (400, "INVALID_REQUEST")
        assert answer.json["error"].startswith("invalid producer ID")
    answer = door.post(path, {})
    assert (answer.status, answer.json["error"]) == (400, "epoch is required")


# --- begin, commit, abort -----------------------------------------------------------------------


def test_a_transaction_goes_from_begin_to_commit(orders: OpenDoor) -> None:
    producer = Producer(orders)

    answer = producer.begin()

    assert answer.json == {**producer.identity, "transaction_id": producer.transaction_id}
    assert producer.transaction_id.startswith("billing-1:")
    assert producer.publish("v", key="k", priority="high", headers={"a": "b"}).status == 200
    assert read(orders) == []
    assert producer.commit().json == {"status": "committed"}
    (message,) = orders.get(MESSAGES).json["messages"]
    assert (message["value"], message["key"], message["priority"], message["headers"]["a"]) == ("v", "k", "high", "b")


def test_repeating_the_last_outcome_answers_the_same_and_the_opposite_is_refused(orders: OpenDoor) -> None:
    producer = Producer(orders)
    producer.begin()
    assert [producer.commit().json for _ in range(3)] == [
        {"status": "committed"},
        {"status": "committed", "already": True},
        {"status": "committed", "already": True},
    ]
    opposite = producer.abort()
    assert (opposite.status, opposite.code) == (409, "INVALID_TXN_STATE")
    assert opposite.json["error"].startswith("no transaction open")

    producer.begin()
    assert [producer.abort().json for _ in range(2)] == [{"status": "aborted"}] * 2
    opposite = producer.commit()
    assert (opposite.status, opposite.code) == (409, "INVALID_TXN_STATE")


def test_a_producer_has_one_transaction_at_a_time(door: OpenDoor) -> None:
    producer = begun(door)
    second = producer.begin()
    assert (second.status, second.code) == (409, "INVALID_TXN_STATE")
    assert second.json["error"].startswith("transaction already in progress")
    assert second.json["details"] == {"transactional_id": "billing-1", "state": "Ongoing"}


def test_without_a_transaction_nothing_can_be_done_in_one(orders: OpenDoor) -> None:
    producer = Producer(orders)
    added = orders.post("/transactions/add-partition", {**producer.owner, "topic": "orders", "partition": 0})
    for refused in (
        producer.publish(),
        producer.offsets({"orders": {"0": 0}}),
        producer.acks({"receipt_handle": "x"}),
        added,
        producer.commit(),
        producer.abort(),
    ):
        assert (refused.status, refused.code) == (409, "INVALID_TXN_STATE")
        assert refused.json["error"].startswith("no transaction open")


def test_an_idempotent_producer_has_no_transactions(orders: OpenDoor) -> None:
    identity = orders.post("/producers/init", {}).json
    answer = orders.post("/transactions/begin", {**identity, "transactional_id": "a"})
    assert (answer.status, answer.code) == (404, "PRODUCER_NOT_FOUND")
    answer = orders.post("/transactions/publish", {**identity, "topic": "orders", "value": "v"})
    assert (answer.status, answer.code) == (409, "INVALID_TXN_STATE")


def test_a_producer_that_nobody_knows_is_not_found(orders: OpenDoor) -> None:
    nobody = {"producer_id": 7, "epoch": 0, "transactional_id": "nobody"}
    receipts, offsets = {"receipt_handles": ["x"]}, {"group": "g", "offsets": {"orders": {"0": 0}}}
    for path, more in (
        ("begin", {}),
        ("publish", {"topic": "orders", "value": "v"}),
        ("offsets", offsets),
        ("acks", receipts),
        ("add-partition", {"topic": "orders", "partition": 0}),
        ("commit", {}),
        ("abort", {}),
    ):
        answer = orders.post(f"/transactions/{path}", {**nobody, **more})
        assert (path, answer.status, answer.code) == (path, 404, "PRODUCER_NOT_FOUND")
    stranger = {**Producer(orders).owner, "transactional_id": "billing-2"}
    assert orders.post("/transactions/begin", stranger).code == "PRODUCER_NOT_FOUND"


REQUIRED = {
    "begin": ["producer_id", "epoch", "transactional_id"],
    "publish": ["producer_id", "epoch", "topic"],
    "offsets": ["producer_id", "epoch", "group", "offsets"],
    "acks": ["producer_id", "epoch", "receipt_handles"],
    "add-partition": ["producer_id", "epoch", "transactional_id", "topic", "partition"],
    "commit": ["producer_id", "epoch", "transactional_id"],
    "abort": ["producer_id", "epoch", "transactional_id"],
}


MORE = {"publish": ["value"], "acks": ["transactional_id"], "offsets": ["transactional_id"]}


def test_a_transactional_id_that_is_not_needed_is_checked(orders: OpenDoor) -> None:
    identity = {**begun(orders).identity, "topic": "orders", "value": "v"}

    stored = orders.post("/transactions/publish", {**identity, "transactional_id": "billing-1"})
    refused = orders.post("/transactions/publish", {**identity, "transactional_id": "other"})

    assert (stored.status, refused.code) == (200, "PRODUCER_NOT_FOUND")


def test_what_is_required_is_missed_by_its_name(orders: OpenDoor) -> None:
    whole = {
        **begun(orders).owner,
        "topic": "orders",
        "partition": 0,
        "value": "v",
        "group": "g",
        "offsets": {"orders": {"0": 0}},
        "receipt_handles": ["x"],
    }
    for route, name in ((route, name) for route, names in REQUIRED.items() for name in names):
        for without in ({key: value for key, value in whole.items() if key != name}, {**whole, name: None}):
            known = {key: value for key, value in without.items() if key in REQUIRED[route] + MORE.get(route, [])}
            answer = orders.post(f"/transactions/{route}", known)
            assert (route, name, answer.status, answer.code) == (route, name, 400, "INVALID_REQUEST")
            assert answer.json["error"] in (f"{name} is required", f"{name} are required")
            assert answer.json["details"]["path"] == name


def test_what_has_the_wrong_type_is_named(orders: OpenDoor) -> None:
    producer = begun(orders)
    for fields in ({"producer_id": "7"}, {"epoch": -1}, {"transactional_id": 7}, {"marker": 7}, {"producer_id": 0}):
        answer = producer.begin(**fields)
        assert (answer.status, answer.json["details"]["path"]) == (400, next(iter(fields)))
    assert producer.commit(transactions=[{"producer_id": 1}]).json["details"]["path"].startswith("transactions")
    assert orders.request("POST", "/transactions/begin", b"{").json["error"].startswith("invalid JSON")
    assert orders.request("POST", "/transactions/begin").code == "INVALID_REQUEST"
    assert orders.get("/transactions/begin").status == 405


def test_a_timeout_aborts_and_the_owner_is_told_until_it_begins_again(orders: OpenDoor) -> None:
    producer = begun(orders, transaction_timeout_ms=30)
    producer.publish("gone")
    orders.until(lambda: not orders.broker.transactions.list())

    for refused in (producer.publish(), producer.commit(), producer.acks({"receipt_handle": "x"})):
        assert (refused.status, refused.code) == (409, "TRANSACTION_TIMEOUT")
        assert refused.json["details"] == {"transaction_id": producer.transaction_id, "reason": "timeout"}
    published = orders.post(MESSAGES, {"value": "v", "transaction_id": producer.transaction_id})
    assert (published.status, published.code) == (409, "TRANSACTION_TIMEOUT")
    assert producer.abort().json == {"status": "aborted"}
    assert producer.begin().status == 200
    assert read(orders) == []


def test_a_transaction_lasts_as_long_as_its_timeout_and_no_longer(tmp_path: Path) -> None:
    clock = ManualClock()
    with OpenDoor(tmp_path / "data", clock=clock) as door:
        door.post("/topics", {"name": "orders", "partitions": 1})
        producer = begun(door)
        producer.publish("gone")
        door.inside(lambda: clock.advance(59))
        door.let_time_work()
        assert door.get(producer.path).status == 200
        door.inside(lambda: clock.advance(2))
        door.let_time_work()
        assert door.get(producer.path).status == 404
        assert producer.commit().json["details"]["reason"] == "timeout"


def test_several_transactions_are_committed_together_or_not_at_all(orders: OpenDoor) -> None:
    owners = [begun(orders, f"job/{number}") for number in range(3)]
    for number, owner in enumerate(owners):
        owner.publish(f"{number}")
    first, *others = owners

    fenced = [*(one.owner for one in others), {**others[0].owner, "epoch": 9}]
    refused = first.commit(transactions=fenced)
    assert (refused.status, refused.code) == (409, "PRODUCER_FENCED")
    idle = Producer(orders, "job/idle")
    refused = first.commit(transactions=[idle.owner, *(one.owner for one in others)])
    assert (refused.status, refused.code) == (409, "INVALID_TXN_STATE")
    assert read(orders) == []
    assert orders.get("/transactions").json["count"] == 3

    together = [first.owner, *(one.owner for one in others)]
    assert first.commit(transactions=together).json == {"status": "committed"}
    assert first.commit(transactions=together).json == {"status": "committed", "already": True}
    assert read(orders) == ["0", "1", "2"]
    assert orders.get("/transactions").json["count"] == 0


def test_a_marker_is_committed_once(orders: OpenDoor) -> None:
    producer, again = Producer(orders, "job/1"), Producer(orders, "job/again")
    assert "already_committed" not in producer.begin(marker="query/7").json
    assert again.begin(marker="query/7").status == 200
    producer.publish("once")
    again.publish("twice")
    assert producer.commit(marker="query/7").json == {"status": "committed"}

    assert again.commit(marker="query/7").json == {"status": "committed", "already": True}
    assert again.begin(marker="query/7").json == {"already_committed": True}
    assert producer.commit(marker="query/7").json == {"status": "committed", "already": True}
    assert orders.get("/transactions").json["count"] == 0
    assert read(orders) == ["once"]
    for marker in ("", "m" * 1_025):
        answer = producer.begin(marker=marker)
        assert (answer.status, answer.code) == (400, "INVALID_REQUEST")


# --- publish ------------------------------------------------------------------------------------


def test_a_single_message_is_answered_at_the_top_and_in_the_results(orders: OpenDoor) -> None:
    answer = begun(orders).publish("v", delay="1h", priority="low").json

    (result,) = answer.pop("results")
    assert answer == {
        "failed": 0,
        "partition": 0,
        "offset": 0,
        "timestamp": result["timestamp"],
        "duplicate": False,
    }
    assert (result["partition"], result["offset"], result["priority"], result["delayed"]) == (0, 0, "low", True)
    assert "duplicate" not in result


def test_messages_go_to_ten_partitions_of_three_topics_and_count_together(door: OpenDoor) -> None:
    topics = {"a": 5, "b": 3, "c": 2}
    for topic, partitions in topics.items():
        door.post("/topics", {"name": topic, "partitions": partitions})
    messages: list[dict[str, Any]] = [
        {"topic": topic, "value": f"{topic}{number}", "partition": number}
        for topic, partitions in topics.items()
        for number in range(partitions)
    ]
    producer = begun(door)

    answer = producer.publish_all(*messages[::2], *messages[1::2])

    assert (answer.status, answer.json["failed"]) == (200, 0)
    assert "offset" not in answer.json
    placed = [(one["partition"], one["offset"]) for one in answer.json["results"]]
    assert placed == [(one["partition"], 0) for one in (*messages[::2], *messages[1::2])]
    described = door.get(producer.path).json["partitions"]
    assert [(one["topic"], one["partition"]) for one in described] == [
        (topic, number) for topic, partitions in topics.items() for number in range(partitions)
    ]
    assert [read(door, topic) for topic in topics] == [[], [], []]
    producer.commit()
    assert sorted(value for topic in topics for value in read(door, topic)) == sorted(
        message["value"] for message in messages
    )


def test_messages_without_a_topic_of_their_own_go_to_the_common_one(orders: OpenDoor) -> None:
    orders.post("/topics", {"name": "other", "partitions": 1})
    producer = begun(orders)
    producer.publish_all({"value": "1"}, {"value": "2", "topic": "other"}, topic="orders")
    producer.commit()
    assert (read(orders), read(orders, "other")) == (["1"], ["2"])


def test_a_message_that_is_refused_leaves_the_others(orders: OpenDoor) -> None:
    producer = begun(orders)
    answer = producer.publish_all(
        {"topic": "orders", "value": "1"},
        {"topic": "missing", "value": "2"},
        {"topic": "orders"},
        {"topic": "orders", "value": "4", "partition": 7},
        {"topic": "orders", "value": "5", "priority": "urgent"},
        {"topic": "missing", "value": "6"},
        {"topic": "orders", "value": "7"},
    )
    assert (answer.status, answer.json["failed"]) == (200, 5)
    outcomes = [(one.get("offset"), one.get("code"), one.get("index")) for one in answer.json["results"]]
    assert outcomes == [
        (0, None, None),
        (None, "TOPIC_NOT_FOUND", 1),
        (None, "INVALID_MESSAGE", 2),
        (None, "PARTITION_NOT_FOUND", 3),
        (None, "INVALID_MESSAGE", 4),
        (None, "TOPIC_NOT_FOUND", 5),
        (1, None, None),
    ]
    assert producer.commit().status == 200
    assert read(orders) == ["1", "7"]


def test_when_all_messages_are_refused_the_answer_is_the_first_error(orders: OpenDoor) -> None:
    producer = begun(orders)
    single = producer.publish(topic="missing")
    assert (single.status, single.code, single.json["failed"]) == (404, "TOPIC_NOT_FOUND", 1)
    assert "offset" not in single.json
    many = producer.publish_all({"topic": "orders"}, {"topic": "missing", "value": "v"})
    assert (many.status, many.code, many.json["failed"]) == (400, "INVALID_MESSAGE", 2)
    none = producer.publish_all()
    assert (none.status, none.json["error"]) == (400, "at least one message required")
    unnamed = producer.publish_all({"topic": "orders", "value": "v"}, {"value": "v"})
    assert (unnamed.status, unnamed.json["details"]["path"]) == (400, "messages[1].topic")
    assert read(orders, isolation="read_uncommitted") == []


def test_a_message_that_breaks_its_schema_is_refused_with_the_place(orders: OpenDoor) -> None:
    schema = '{"type": "object", "properties": {"id": {"type": "integer"}}}'
    orders.post("/schemas/subjects/orders-value/versions", {"schema": schema, "schemaType": "JSON"})
    producer = begun(orders)
    answer = producer.publish_all(
        {"topic": "orders", "value": '{"id": 1}'}, {"topic": "orders", "value": '{"id": "x"}'}
    )
    assert (answer.status, answer.json["failed"]) == (200, 1)
    refused = answer.json["results"][1]
    assert (refused["code"], refused["details"]["path"], refused["index"]) == ("SCHEMA_REJECTED", "/id", 1)
    single = producer.publish("7")
    assert (single.status, single.code) == (400, "SCHEMA_REJECTED")
    producer.commit()
    assert read(orders) == ['{"id": 1}']


def test_sequences_tell_a_duplicate_from_a_gap(orders: OpenDoor) -> None:
    producer = begun(orders)
    first = producer.publish("0", sequence=0).json
    again = producer.publish("0", sequence=0).json
    assert (first["offset"], first["duplicate"]) == (0, False)
    assert (again["offset"], again["duplicate"], again["timestamp"]) == (0, True, first["timestamp"])
    assert again["results"][0]["duplicate"] is True
    gap = producer.publish("2", sequence=2)
    assert (gap.status, gap.code) == (400, "OUT_OF_ORDER_SEQUENCE")
    assert gap.json["error"].startswith("sequence 2 out of order, expected 1")
    batch = [{"topic": "orders", "value": f"{number}"} for number in (1, 2, 3)]
    assert [one["offset"] for one in producer.publish_all(*batch, sequence=1).json["results"]] == [1, 2, 3]
    assert {one["duplicate"] for one in producer.publish_all(*batch, sequence=1).json["results"]} == {True}
    producer.commit()
    producer.begin()
    assert producer.publish("4", sequence=4).json["offset"] == 5
    producer.commit()
    assert read(orders) == ["0", "1", "2", "3", "4"]
    producer.begin()
    other = begun(orders, "from-one")
    assert (other.publish("first", sequence=1).status, other.publish("below", sequence=0).status) == (200, 400)
    assert other.abort().status == 200
    two_topics = producer.publish_all(*batch, {"topic": "other", "value": "v"}, sequence=5)
    assert (two_topics.status, two_topics.json["details"]["path"]) == (400, "sequence")


def test_a_publish_may_be_as_large_as_any_other_and_no_larger(tmp_path: Path) -> None:
    config = HttpConfig(
        body_bytes_max=2_000,
        payload_bytes_max=4_000,
        publish_bytes_max=8_000,
        payload_bytes_per_message=1,
        messages_max=10,
    )
    with OpenDoor(tmp_path / "data", config=config) as door:
        door.post("/topics", {"name": "orders", "partitions": 1})
        producer = begun(door)
        assert producer.publish("x" * 3_000).status == 200
        too_large = producer.publish("x" * 5_000)
        assert (too_large.status, too_large.code) == (413, "REQUEST_TOO_LARGE")
        assert producer.publish("x" * 9_000).status == 413
        too_many = producer.publish_all(*[{"topic": "orders", "value": "v"}] * 11)
        assert (too_many.status, too_many.code) == (413, "REQUEST_TOO_LARGE")
        assert door.post("/transactions/commit", {**producer.owner, "marker": "x" * 3_000}).status == 413
        assert producer.commit().status == 200
        assert len(read(door)) == 1


def test_the_trace_of_a_request_goes_on_in_its_messages(orders: OpenDoor) -> None:
    producer = begun(orders)
    body = {**producer.identity, "topic": "orders", "value": "v"}
    orders.request("POST", "/transactions/publish", body, {"traceparent": "00-" + "a" * 32 + "-" + "b" * 16 + "-01"})
    producer.commit()
    (message,) = orders.get(MESSAGES).json["messages"]
    assert message["headers"]["traceparent"].startswith("00-" + "a" * 32)


def test_a_transaction_can_be_named_where_everybody_publishes(orders: OpenDoor) -> None:
    producer = begun(orders)
    name = {"transaction_id": producer.transaction_id}

    bare = orders.post(MESSAGES, {"value": "bare", **name})
    many = orders.post(f"{MESSAGES}/batch", {"messages": [{"value": "1"}, {}], **name})
    quiet = orders.post(MESSAGES, {"value": "quiet", "acks": "none", **name})
    numbered = orders.post(MESSAGES, {"value": "numbered", **producer.identity, "sequence": 3, **name})
    again = orders.post(MESSAGES, {"value": "numbered", **producer.identity, "sequence": 3, **name})
    gap = orders.post(MESSAGES, {"value": "gap", **producer.identity, "sequence": 9, **name})

    assert (bare.status, bare.json["results"][0]["offset"]) == (200, 0)
    assert (many.status, many.json["failed"]) == (200, 1)
    assert (quiet.status, quiet.json["results"]) == (202, [{"accepted": True}])
    assert numbered.json["results"][0]["offset"] == again.json["results"][0]["offset"] == 3
    assert again.json["results"][0]["duplicate"] is True
    assert (gap.status, gap.code) == (400, "OUT_OF_ORDER_SEQUENCE")
    assert read(orders) == []
    producer.commit()
    assert read(orders) == ["1", "bare", "numbered", "quiet"]


def test_a_transaction_that_is_not_open_takes_no_messages(orders: OpenDoor) -> None:
    producer = begun(orders)
    name = producer.transaction_id
    unnumbered = orders.post(MESSAGES, {"value": "v", "sequence": 0, "transaction_id": name})
    assert (unnumbered.status, unnumbered.json["details"]["path"]) == (400, "producer_id")
    older = {**producer.identity, "epoch": 7}
    assert orders.post(MESSAGES, {"value": "v", **older, "transaction_id": name}).code == "PRODUCER_FENCED"
    producer.commit()
    over = orders.post(MESSAGES, {"value": "v", "transaction_id": name})
    assert (over.status, over.code) == (409, "INVALID_TXN_STATE")
    for unknown in ("", "billing-1", "billing-1:7", "nobody:7", f"{name}:7", "billing-1:x", "x" * 10_000):
        answer = orders.post(MESSAGES, {"value": "v", "transaction_id": unknown})
        assert (answer.status, answer.code) == (404, "TRANSACTION_NOT_FOUND")
        assert answer.json["error"].startswith("transaction not found")
    assert orders.post(MESSAGES, {"value": "v", "transaction_id": 7}).status == 400
    assert read(orders, isolation="read_uncommitted") == []


def test_add_partition_is_there_for_those_who_want_it(orders: OpenDoor) -> None:
    producer = begun(orders)

    def add(**fields: Any) -> Answer:
        return orders.post(
            "/transactions/add-partition", {**producer.owner, "topic": "orders", "partition": 0, **fields}
        )

    assert add().json == add().json == {"status": "added"}
    assert orders.get(producer.path).json["partitions"] == [{"topic": "orders", "partition": 0}]
    assert (add(topic="missing").status, add(topic="missing").code) == (404, "TOPIC_NOT_FOUND")
    assert (add(partition=1).status, add(partition=1).code) == (404, "PARTITION_NOT_FOUND")
    assert (add(partition=-1).status, add(partition=-1).code) == (400, "INVALID_PARTITION")
    assert add(partition="0").status == 400
    assert producer.commit().status == 200
    assert read(orders, isolation="read_uncommitted") == []


# --- what readers see ---------------------------------------------------------------------------


def test_readers_stop_at_the_last_stable_offset_unless_they_want_to_see_all(orders: OpenDoor) -> None:
    publish(orders, "before")
    producer = begun(orders)
    producer.publish("inside")
    publish(orders, "behind")

    page = orders.get("/topics/orders/partitions/0/messages").json
    assert [message["value"] for message in page["messages"]] == ["before"]
    assert (page["next_offset"], page["last_stable_offset"], page["high_watermark"]) == (1, 1, 3)
    page = orders.get("/topics/orders/partitions/0/messages?isolation=read_uncommitted").json
    assert [message["value"] for message in page["messages"]] == ["before", "inside", "behind"]
    assert (page["next_offset"], page["last_stable_offset"]) == (3, 1)
    assert stable_offset(orders) == 1
    assert orders.get(f"{MESSAGES}?isolation=dirty").status == 400

    producer.commit()
    orders.until(lambda: orders.broker.topics.describe("orders").partitions[0].last_stable_offset == 4)
    page = orders.get("/topics/orders/partitions/0/messages").json
    assert [message["value"] for message in page["messages"]] == ["before", "inside", "behind"]
    assert (page["next_offset"], page["last_stable_offset"]) == (4, 4)


def test_what_is_aborted_is_passed_over_and_never_shown(orders: OpenDoor) -> None:
    producer = begun(orders)
    producer.publish("gone")
    publish(orders, "kept")
    assert producer.abort().json == {"status": "aborted"}

    page = orders.get("/topics/orders/partitions/0/messages").json
    assert ([message["value"] for message in page["messages"]], page["last_stable_offset"] >= 2) == (["kept"], True)
    assert read(orders, isolation="read_uncommitted") == ["gone", "kept"]


def test_all_of_a_busy_partition_is_read_uncommitted_though_others_are_empty(door: OpenDoor) -> None:
    door.post("/topics", {"name": "orders", "partitions": 2})
    producer = begun(door)
    producer.publish_all(*[{"topic": "orders", "value": f"{n}", "partition": 0} for n in range(60)])
    assert len(read(door, isolation="read_uncommitted", limit="100")) == 60


@pytest.mark.parametrize("path", [MESSAGES, "/topics/orders/partitions/0/messages"])
@pytest.mark.parametrize("outcome", ["commit", "abort"])
def test_a_long_poll_waits_for_the_outcome(orders: OpenDoor, path: str, outcome: str) -> None:
    producer = begun(orders)
    producer.publish("inside")
    publish(orders, "behind")
    with asking(orders, f"{path}?wait=20s") as future:
        assert not future.done()
        getattr(producer, outcome)()
        found = [message["value"] for message in future.result(20).json["messages"]]
    assert found == (["inside", "behind"] if outcome == "commit" else ["behind"])


def test_a_stream_waits_at_the_last_stable_offset_and_goes_on_after_the_commit(tmp_path: Path) -> None:
    with OpenDoor(tmp_path / "data", config=HttpConfig(stream_comment_s=0.05)) as door:
        door.post("/topics", {"name": "orders", "partitions": 1})
        publish(door, "before")
        outcomes = {"abort": ["behind abort"], "commit": ["inside commit", "behind commit"]}
        with (
            follow(door, "?start=earliest&limit=4") as stream,
            follow(door, "?isolation=read_uncommitted&limit=4") as all_of_it,
        ):
            assert [event.data["value"] for event in stream.take(1)] == ["before"]
            for outcome, wanted in outcomes.items():
                producer = begun(door)
                producer.publish(f"inside {outcome}")
                publish(door, f"behind {outcome}")
                seen = [event.data["value"] for event in all_of_it.take(2)]
                assert seen == [f"inside {outcome}", f"behind {outcome}"]
                stream.until_comment()
                getattr(producer, outcome)()
                events = stream.take(len(wanted))
                assert [event.data["value"] for event in events] == wanted
        assert events[-1].id == f"0:{events[-1].data['offset'] + 1}"


@pytest.mark.parametrize("outcome", ["commit", "abort"])
def test_a_group_gets_messages_after_the_commit_and_never_after_an_abort(orders: OpenDoor, outcome: str) -> None:
    member = join(orders)
    producer = begun(orders)
    producer.publish_all(
        {"topic": "orders", "value": "low", "priority": "low"},
        {"topic": "orders", "value": "critical", "priority": "critical"},
    )
    publish(orders, "behind", priority="background")
    assert poll(orders, member)["messages"] == []

    with asking(orders, poll_path(member, wait="20s")) as future:
        getattr(producer, outcome)()
        found = values(future.result(20).json)
    assert found == (["critical", "low", "behind"] if outcome == "commit" else ["behind"])


def test_a_delayed_message_is_pending_once_it_is_committed_and_never_if_it_is_aborted(orders: OpenDoor) -> None:
    producer = begun(orders)
    producer.publish("gone", delay="1h")
    producer.abort()
    producer.begin()
    producer.publish("kept", delay="1h")
    producer.commit()
    listed = orders.get("/topics/orders/delayed").json["messages"]
    assert [message["offset"] for message in listed] == [2]


def test_a_topic_that_is_deleted_meanwhile_takes_its_part_along(orders: OpenDoor) -> None:
    orders.post("/topics", {"name": "other", "partitions": 1})
    producer = begun(orders)
    producer.publish("stays")
    producer.publish("goes", topic="other")
    orders.request("DELETE", "/topics/other")
    orders.post("/topics", {"name": "other", "partitions": 1})
    assert producer.commit().json == {"status": "committed"}
    assert (read(orders), read(orders, "other")) == (["stays"], [])


# --- acks and positions -------------------------------------------------------------------------


def test_acks_take_effect_with_the_commit(orders: OpenDoor) -> None:
    publish(orders, "a", "b", "c")
    member = join(orders)
    one, two, three = take(orders, member)
    producer = begun(orders)

    answer = producer.acks(one, two)

    assert (answer.status, answer.json["status"], answer.json["failed"]) == (200, "added", 0)
    first = answer.json["results"][0]
    assert first == {
        "receipt_handle": one["receipt_handle"],
        "success": True,
        "acknowledged": True,
        "topic": "orders",
        "partition": 0,
        "offset": 0,
        "committed_offset": 0,
        "offset_advanced": False,
        "in_flight_count": first["in_flight_count"],
    }
    assert orders.get(producer.path).json["groups"] == ["billing"]
    assert settle(orders, "ack", three).json["committed_offset"] == 0
    assert orders.get("/groups/billing").json["lag"] == 2
    again = settle(orders, "ack", one)
    assert (again.status, again.json["details"]["reason"]) == (404, "settled")
    producer.commit()
    assert orders.get("/groups/billing").json["lag"] == 0
    assert take(orders, member) == []


def test_an_abort_makes_them_due_again_at_once(orders: OpenDoor) -> None:
    publish(orders, "a", "b")
    member = join(orders)
    producer = begun(orders)
    producer.acks(*take(orders, member))
    assert take(orders, member) == []
    producer.abort()
    assert [(one["value"], one["delivery_count"]) for one in take(orders, member)] == [("a", 2), ("b", 2)]


def test_leases_are_held_beyond_the_visibility_timeout_until_the_transaction_times_out(tmp_path: Path) -> None:
    clock = ManualClock()
    with OpenDoor(tmp_path / "data", clock=clock) as door:
        door.post("/topics", {"name": "orders", "partitions": 1})
        publish(door, "v")
        member = join(door, session_timeout="1h", visibility_timeout="5s")
        producer = begun(door)
        producer.acks(*take(door, member))
        door.inside(lambda: clock.advance(30))
        door.let_time_work()
        assert take(door, member) == []
        door.inside(lambda: clock.advance(31))
        door.let_time_work()
        assert [one["delivery_count"] for one in take(door, member)] == [2]


def test_each_receipt_has_its_result_and_all_of_them_bad_are_an_error(orders: OpenDoor) -> None:
    publish(orders, "a", "b")
    member = join(orders)
    good, done = take(orders, member)
    settle(orders, "ack", done)
    producer = begun(orders)

    mixed = producer.acks(good, done, {"receipt_handle": "x"}, good)
    assert (mixed.status, mixed.json["status"], mixed.json["failed"]) == (200, "added", 3)
    assert [one.get("code") for one in mixed.json["results"]] == [
        None,
        "RECEIPT_HANDLE_UNKNOWN",
        "RECEIPT_HANDLE_INVALID",
        "RECEIPT_HANDLE_UNKNOWN",
    ]
    bad = producer.acks({"receipt_handle": "x"}, done)
    assert (bad.status, bad.code, bad.json["failed"], len(bad.json["results"])) == (400, "RECEIPT_HANDLE_INVALID", 2, 2)
    none = producer.acks()
    assert (none.status, none.code) == (400, "INVALID_REQUEST")
    assert producer.acks(*[{"receipt_handle": "x"}] * 1_001).status == 413
    producer.commit()
    assert orders.get("/groups/billing").json["lag"] == 0


def test_an_ack_can_name_the_transaction_it_is_a_part_of(orders: OpenDoor) -> None:
    publish(orders, "a", "b", "c")
    member = join(orders)
    one, two, three = take(orders, member)
    producer = begun(orders)
    name = producer.transaction_id

    single = settle(orders, "ack", one, transaction_id=name)
    batch = orders.post(
        "/messages/ack/batch",
        {"receipt_handles": [two["receipt_handle"], three["receipt_handle"]], "transaction_id": name},
    )

    assert (single.status, single.json["acknowledged"], single.json["offset_advanced"]) == (200, True, False)
    assert (batch.status, batch.json["success"], batch.json["failed"]) == (200, True, 0)
    assert orders.get("/groups/billing").json["lag"] == 3
    producer.commit()
    assert orders.get("/groups/billing").json["lag"] == 0


def test_an_ack_in_a_transaction_that_is_not_open_settles_nothing(orders: OpenDoor) -> None:
    publish(orders, "a")
    (message,) = take(orders, join(orders))
    producer = begun(orders)
    name = producer.transaction_id
    producer.commit()
    over = settle(orders, "ack", message, transaction_id=name)
    assert (over.status, over.code) == (409, "INVALID_TXN_STATE")
    for unknown in ("", "nobody:7", "x"):
        answer = settle(orders, "ack", message, transaction_id=unknown)
        assert (answer.status, answer.code) == (404, "TRANSACTION_NOT_FOUND")
    producer.begin()
    for verb in ("nack", "reject", "visibility"):
        fields = {"timeout": "10s"} if verb == "visibility" else {}
        answer = settle(orders, verb, message, transaction_id=producer.transaction_id, **fields)
        assert (answer.status, answer.code, answer.json["details"]["path"]) == (
            400,
            "INVALID_REQUEST",
            "transaction_id",
        )
    assert settle(orders, "ack", message).status == 200


@pytest.mark.parametrize("offsets", [{"orders": {"0": 2}}, [{"topic": "orders", "partition": 0, "offset": 2}]])
def test_positions_take_effect_with_the_commit(orders: OpenDoor, offsets: object) -> None:
    publish(orders, "a", "b", "c")
    member = join(orders, ack="offsets", auto_commit=False)
    who = {"member_id": member["member_id"], "generation": member["generation"]}
    producer = begun(orders)

    assert producer.offsets(offsets, **who).json == {"status": "added", "offsets": {"orders": {"0": 2}}}
    assert orders.get("/groups/billing/offsets").json["offsets"] in ({}, {"orders": {"0": 0}})
    producer.abort()
    assert orders.get("/groups/billing/offsets").json["offsets"] in ({}, {"orders": {"0": 0}})
    producer.begin()
    producer.offsets(offsets, **who)
    producer.commit()
    assert orders.get("/groups/billing/offsets").json["offsets"] == {"orders": {"0": 2}}


def test_positions_that_cannot_be_are_refused_when_they_are_added(orders: OpenDoor) -> None:
    publish(orders, "a")
    member = join(orders, ack="offsets")
    who = {"member_id": member["member_id"], "generation": member["generation"]}
    producer = begun(orders)
    good = {"orders": {"0": 1}}
    for offsets, fields, status, code in (
        ({}, who, 400, "INVALID_REQUEST"),
        ([], who, 400, "INVALID_REQUEST"),
        ({"orders": {"0": -1}}, who, 400, "INVALID_REQUEST"),
        ({"orders": {"x": 1}}, who, 400, "INVALID_PARTITION"),
        ({"orders": {"7": 1}}, who, 403, "PARTITION_NOT_ASSIGNED"),
        (good, {"member_id": "stranger"}, 404, "NOT_GROUP_MEMBER"),
        (good, {**who, "generation": 99}, 409, "INVALID_GENERATION"),
    ):
        answer = producer.offsets(offsets, **fields)
        assert (offsets, answer.status, answer.code) == (offsets, status, code)
    producer.commit()
    assert orders.get("/groups/billing/offsets").json["offsets"] in ({}, {"orders": {"0": 0}})


# --- who looks at them --------------------------------------------------------------------------


def test_open_transactions_are_listed_the_oldest_first(orders: OpenDoor) -> None:
    assert orders.get("/transactions").json == {"transactions": [], "count": 0}
    older, younger = begun(orders, "z", transaction_timeout_ms=40_000), begun(orders, "a")
    older.publish()

    listed = orders.get("/v1/transactions/").json

    assert (listed["count"], [one["transactional_id"] for one in listed["transactions"]]) == (2, ["z", "a"])
    first = listed["transactions"][0]
    assert first == {
        "transaction_id": older.transaction_id,
        "transactional_id": "z",
        **older.identity,
        "state": "Ongoing",
        "start_time": first["started_at"],
        "started_at": first["started_at"],
        "timeout_ms": 40_000,
        "partitions": [{"topic": "orders", "partition": 0}],
        "groups": [],
    }
    assert first["started_at"].endswith("Z")
    assert orders.get(older.path).json == first
    older.commit()
    younger.abort()
    assert orders.get("/transactions").json["count"] == 0
    answer = orders.get(older.path)
    assert (answer.status, answer.code) == (404, "TRANSACTION_NOT_FOUND")


def test_an_id_in_a_path_is_percent_decoded(orders: OpenDoor) -> None:
    for name in ODD_NAMES:
        producer = begun(orders, name)
        assert producer.transaction_id.startswith(f"{name}:")
        assert orders.get(producer.path).json["transactional_id"] == name
        assert orders.get(f"/v1{producer.path}/").json["transactional_id"] == name
        assert orders.post(f"{producer.path}/abort", None).json == {"status": "aborted"}
        assert orders.get(producer.path).status == 404


def test_an_id_may_be_sent_as_it_is_where_a_path_can_hold_it(orders: OpenDoor) -> None:
    producer = begun(orders, "plain-1")
    assert orders.get(f"/transactions/{producer.transaction_id}").status == 200
    assert orders.get("/transactions/%ff").json["error"].startswith("invalid path")
    assert orders.get("/transactions/%2Fstats").status == 404
    assert orders.get("/transactions/a/b").code == "NOT_FOUND"


def test_an_operator_aborts_what_somebody_has_abandoned(orders: OpenDoor) -> None:
    publish(orders, "v")
    (message,) = take(orders, member := join(orders))
    producer = begun(orders)
    producer.publish("gone")
    producer.acks(message)
    publish(orders, "behind")

    assert orders.request("POST", f"{producer.path}/abort").json == {"status": "aborted"}

    assert read(orders) == ["behind", "v"]
    assert [one["delivery_count"] for one in take(orders, member) if one["value"] == "v"] == [2]
    told = producer.commit()
    assert (told.status, told.code, told.json["details"]["reason"]) == (409, "TRANSACTION_TIMEOUT", "admin")
    assert orders.post(f"{producer.path}/abort", {}).json == {"status": "aborted"}
    for unknown in ("nobody:7", "x", "billing-1:7"):
        assert orders.post(f"/transactions/{unknown}/abort", {}).code == "TRANSACTION_NOT_FOUND"
    producer.begin()
    producer.commit()
    assert orders.post(f"{producer.path}/abort", {}).code == "INVALID_TXN_STATE"


def test_transactions_are_counted(orders: OpenDoor) -> None:
    kept, gone, left = begun(orders, "kept"), begun(orders, "gone"), begun(orders, "open")
    kept.commit()
    gone.abort()
    orders.post("/producers/init", {})
    stats = orders.get("/transactions/stats").json
    assert stats.pop("avg_duration").endswith("s")
    assert stats == {
        "active_transactions": 1,
        "committed_total": 1,
        "aborted_total": 1,
        "by_state": {
            "Empty": 0,
            "Ongoing": 1,
            "PrepareCommit": 0,
            "PrepareAbort": 0,
            "CompleteCommit": 1,
            "CompleteAbort": 1,
            "Dead": 0,
        },
        "producers": 4,
    }
    left.commit()


def test_a_restart_aborts_what_was_open_and_keeps_what_was_committed(tmp_path: Path) -> None:
    with OpenDoor(tmp_path / "data") as door:
        door.post("/topics", {"name": "orders", "partitions": 1})
        producer = begun(door)
        producer.publish("kept")
        producer.commit(marker="m")
        producer.begin()
        producer.publish("gone")
    with OpenDoor(tmp_path / "data") as door:
        producer.door = door
        assert door.get("/transactions").json["count"] == 0
        told = producer.publish("late")
        assert (told.status, told.code, told.json["details"]["reason"]) == (409, "TRANSACTION_TIMEOUT", "restart")
        assert producer.begin(marker="m").json == {"already_committed": True}
        assert producer.begin().status == 200
        producer.publish("next")
        producer.commit()
        assert read(door) == ["kept", "next"]
