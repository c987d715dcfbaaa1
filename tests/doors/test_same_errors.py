"""One table of errors: what is wrong has the same code through the native protocol, over HTTP and in Python."""

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from goqueue import Client, GoQueueError, Published
from goqueue.testing import EmbeddedBroker
from goqueue.wire import codes

LIMIT = 1_000


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker() as broker, Client(broker.address) as client:
        client.create_topic("orders", partitions=3, max_message_bytes=LIMIT)
        client.publish_many("orders", [b"a", b"b", b"c"])
        yield broker


@pytest.fixture(scope="module")
def client(broker: EmbeddedBroker) -> Iterator[Client]:
    with Client(broker.address, timeout="5s") as client:
        yield client


def http(broker: EmbeddedBroker, method: str, path: str, body: object = None) -> tuple[int, Any]:
    data = None if body is None else json.dumps(body).encode()
    try:
        with urlopen(Request(f"{broker.http_address}{path}", data, method=method)) as answer:
            return answer.status, json.load(answer)
    except HTTPError as error:
        return error.code, json.load(error)


def _ack_twice(client: Client) -> None:
    with client.consumer("orders", group="twice") as consumer:
        (message,) = consumer.poll(1)
        message.ack()
        message.ack()


WRONG: dict[str, tuple[str, Callable[[Client], object], tuple[str, str, object]]] = {
    "publish to a missing topic": (
        "TOPIC_NOT_FOUND",
        lambda client: client.publish("missing", b"x"),
        ("POST", "/topics/missing/messages", {"value": "x"}),
    ),
    "read a missing topic": (
        "TOPIC_NOT_FOUND",
        lambda client: list(client.read("missing")),
        ("GET", "/topics/missing/partitions/0/messages", None),
    ),
    "a key over the limit": (
        "MESSAGE_TOO_LARGE",
        lambda client: client.publish("orders", b"x", key="k" * 70_000),
        ("POST", "/topics/orders/messages", {"value": "x", "key": "k" * 70_000}),
    ),
    "a value over the topic's limit": (
        "MESSAGE_TOO_LARGE",
        lambda client: client.publish("orders", b"x" * (LIMIT + 1)),
        ("POST", "/topics/orders/messages", {"value": "x" * (LIMIT + 1)}),
    ),
    "a priority that does not exist": (
        "INVALID_MESSAGE",
        lambda client: client.publish("orders", b"x", priority="urgent"),
        ("POST", "/topics/orders/messages", {"value": "x", "priority": "urgent"}),
    ),
    "a delay without a unit": (
        "INVALID_MESSAGE",
        lambda client: client.publish("orders", b"x", delay="5"),
        ("POST", "/topics/orders/messages", {"value": "x", "delay": "5"}),
    ),
    "a reserved header": (
        "INVALID_MESSAGE",
        lambda client: client.publish("orders", b"x", headers={"gq-producer": "1:0:0:1"}),
        ("POST", "/topics/orders/messages", {"value": "x", "headers": {"gq-producer": "1:0:0:1"}}),
    ),
    "a negative offset": (
        "INVALID_REQUEST",
        lambda client: list(client.read("orders", partition=0, offset=-1)),
        ("GET", "/topics/orders/partitions/0/messages?offset=-1", None),
    ),
    "an unknown partition to read": (
        "PARTITION_NOT_FOUND",
        lambda client: list(client.read("orders", partition=9)),
        ("GET", "/topics/orders/partitions/9/messages", None),
    ),
    "an unknown partition to publish to": (
        "PARTITION_NOT_FOUND",
        lambda client: client.publish("orders", b"x", partition=9),
        ("POST", "/topics/orders/messages", {"value": "x", "partition": 9}),
    ),
    "a negative partition": (
        "INVALID_PARTITION",
        lambda client: client.publish("orders", b"x", partition=-1),
        ("POST", "/topics/orders/messages", {"value": "x", "partition": -1}),
    ),
    "a time that is none": (
        "INVALID_REQUEST",
        lambda client: list(client.read("orders", from_time="yesterday")),
        ("GET", "/topics/orders/messages?from_time=yesterday", None),
    ),
    "a topic name that cannot be": (
        "INVALID_TOPIC",
        lambda client: client.create_topic("no spaces"),
        ("POST", "/topics", {"name": "no spaces"}),
    ),
    "a setting that does not exist": (
        "INVALID_TOPIC",
        lambda client: client.create_topic("fresh", retntion="7d"),
        ("POST", "/topics", {"name": "fresh", "config": {"retntion": "7d"}}),
    ),
    "a topic that exists": (
        "TOPIC_ALREADY_EXISTS",
        lambda client: client.create_topic("orders"),
        ("POST", "/topics", {"name": "orders"}),
    ),
    "a group that is not there": (
        "GROUP_NOT_FOUND",
        lambda client: client.describe_group("missing"),
        ("GET", "/groups/missing", None),
    ),
    "join for a missing topic": (
        "TOPIC_NOT_FOUND",
        lambda client: client.consumer("missing", group="g").join(),
        ("POST", "/groups/g/join", {"client_id": "c", "topics": ["missing"]}),
    ),
    "a mode that does not exist": (
        "INVALID_REQUEST",
        lambda client: client.consumer("orders", group="g", mode="x").join(),
        ("POST", "/groups/g/join", {"client_id": "c", "topics": ["orders"], "mode": "x"}),
    ),
    "a receipt twice": (
        "RECEIPT_HANDLE_UNKNOWN",
        lambda client: _ack_twice(client),
        ("POST", "/messages/ack", {"receipt_handle": "orders:0:0:1:" + "0" * 44}),
    ),
    "a delayed message that is not there": (
        "MESSAGE_NOT_FOUND",
        lambda client: client.cancel(Published("orders", 0, 0, datetime.now(UTC))),
        ("DELETE", "/topics/orders/delayed/0/0", None),
    ),
    "a schedule without a time": (
        "INVALID_REQUEST",
        lambda client: client.schedule("orders", b"v", name="n"),
        ("POST", "/topics/orders/schedules", {"name": "n", "value": "v"}),
    ),
    "a redrive at a rate below nothing": (
        "INVALID_REQUEST",
        lambda client: client.redrive("orders", rate=-1),
        ("POST", "/topics/orders/dlq/redrive", {"rate": -1}),
    ),
    "an internal topic to publish to that is not there": (
        "FORBIDDEN",
        lambda client: client.publish("__missing", b"x"),
        ("POST", "/topics/__missing/messages", {"value": "x"}),
    ),
    "an internal topic to read that is not there": (
        "FORBIDDEN",
        lambda client: list(client.read("__missing")),
        ("GET", "/topics/__missing/messages", None),
    ),
    "delete a missing topic": (
        "TOPIC_NOT_FOUND",
        lambda client: client.delete_topic("missing"),
        ("DELETE", "/topics/missing", None),
    ),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_is_wrong_has_one_code_at_every_door(what: str, broker: EmbeddedBroker, client: Client) -> None:
    code, call, request = WRONG[what]

    with pytest.raises(GoQueueError) as raised:
        call(client)
    status, body = http(broker, *request)

    row = codes.TABLE[code]
    assert raised.value.code == code
    assert isinstance(raised.value, row.exception)
    assert (status, body["code"], body["retryable"]) == (row.http, code, raised.value.retryable)


def test_an_offset_beyond_the_end_and_a_time_in_the_future_find_nothing_at_every_door(
    broker: EmbeddedBroker, client: Client
) -> None:
    assert list(client.read("orders", partition=0, offset=1_000)) == []
    assert list(client.read("orders", from_time="2100-01-01T00:00:00Z")) == []

    status, body = http(broker, "GET", "/topics/orders/partitions/0/messages?offset=1000")
    assert (status, body["messages"], body["next_offset"]) == (200, [], 1_000)
    end = client.offsets("orders")[0]
    status, body = http(broker, "GET", "/topics/orders/partitions/0/messages?from_time=2100-01-01T00:00:00Z")
    assert (status, body["messages"], body["next_offset"]) == (200, [], end)
