"""The client without an event loop: every method, every way to say a value, a time or a duration, and every error."""

import socket
import warnings
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from goqueue import (
    AsyncClient,
    BrokerUnavailable,
    Client,
    Conflict,
    GoQueueError,
    InvalidConfig,
    InvalidMessage,
    InvalidPartition,
    InvalidRequest,
    MessageTooLarge,
    PartitionNotFound,
    Priority,
    Published,
    RequestTooLarge,
    TopicNotFound,
)
from goqueue.testing import EmbeddedBroker
from tests.environments import environment


def only(gq: Client, topic: str = "t") -> Any:
    (message,) = gq.read(topic)
    return message


# --- topics -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "ask",
    [
        lambda gq: gq.describe_topic("nowhere"),
        lambda gq: gq.alter_topic("nowhere", retention="1h"),
        lambda gq: gq.offsets("nowhere"),
        lambda gq: gq.publish("nowhere", b"v"),
        lambda gq: gq.publish_many("nowhere", [b"v"]),
        lambda gq: list(gq.read("nowhere")),
        lambda gq: list(gq.follow("nowhere", limit=1)),
    ],
)
def test_a_topic_that_is_not_there_is_named_by_the_error(gq: Client, ask: Any) -> None:
    with pytest.raises(TopicNotFound) as caught:
        ask(gq)

    assert (caught.value.topic, caught.value.code) == ("nowhere", "TOPIC_NOT_FOUND")
    assert isinstance(caught.value, GoQueueError)


# --- publishing ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "stored"),
    [
        (b"raw \xff bytes", b"raw \xff bytes"),
        (b"", b""),
        ("text äöü", "text äöü".encode()),
        (bytearray(b"array"), b"array"),
        (memoryview(b"view"), b"view"),
        ({"id": 1}, b'{"id":1}'),
        ([1, 2.5, None, True], b"[1,2.5,null,true]"),
        (17, b"17"),
        (datetime(2024, 1, 1, tzinfo=UTC), b'"2024-01-01T00:00:00Z"'),
        (("one", "two", "three"), b'["one","two","three"]'),
    ],
)
def test_a_value_is_bytes_or_text_or_else_json(gq: Client, value: Any, stored: bytes) -> None:
    gq.create_topic("t", partitions=1)

    gq.publish("t", value)
    gq.publish_many("t", [value])
    with gq.producer() as producer:
        producer.send("t", value)

    assert [message.value for message in gq.read("t")] == [stored] * 3


def test_a_message_reads_as_text_and_json(gq: Client) -> None:
    gq.create_topic("t", partitions=1)

    gq.publish("t", {"text": "äöü"})

    assert only(gq).json() == {"text": "äöü"}
    assert only(gq).text() == '{"text":"äöü"}'


@pytest.mark.parametrize(("key", "stored"), [(b"k", b"k"), ("kä", "kä".encode()), (None, None), ("", b""), (b"", b"")])
def test_a_key_is_bytes_or_text(gq: Client, key: Any, stored: bytes | None) -> None:
    gq.create_topic("t", partitions=1)

    gq.publish("t", b"v", key=key)

    assert only(gq).key == stored


def test_the_answer_says_where_the_message_is(gq: Client) -> None:
    gq.create_topic("t", partitions=2)

    first, second = gq.publish("t", b"v", partition=1), gq.publish("t", b"v", partition=1)

    messages = list(gq.read("t", partition=1))
    assert first == Published("t", 1, 0, messages[0].timestamp)
    assert second.offset == 1
    assert abs(first.timestamp - datetime.now(UTC)) < timedelta(minutes=1)


@pytest.mark.parametrize(
    ("priority", "stored"),
    [
        ("high", Priority.HIGH),
        ("CRITICAL", Priority.CRITICAL),
        (4, Priority.BACKGROUND),
        (Priority.LOW, Priority.LOW),
        (None, Priority.NORMAL),
    ],
)
def test_a_priority_is_a_name_or_a_number(gq: Client, priority: Any, stored: Priority) -> None:
    gq.create_topic("t", partitions=1)

    gq.publish("t", b"v", priority=priority)

    assert only(gq).priority is stored


def test_headers_come_back_and_ours_are_not_shown(gq: Client) -> None:
    gq.create_topic("t", partitions=1)

    gq.publish("t", b"v", headers={"source": "web", "raw": b"\xff", "gq-origin": "elsewhere"})

    assert only(gq).headers == {"source": "web", "raw": "\udcff", "gq-origin": "elsewhere"}


def test_a_tombstone_has_a_key_and_no_value(gq: Client) -> None:
    gq.create_topic("t", partitions=1, cleanup="compact")

    gq.publish("t", None, key="k", tombstone=True)

    message = only(gq)
    assert (message.tombstone, message.value, message.key) == (True, b"", b"k")
    with pytest.raises(InvalidMessage):
        gq.publish("t", None, tombstone=True)


@pytest.mark.parametrize("ttl", ["1h", 3600, timedelta(hours=1)])
def test_a_time_to_live_is_kept_with_the_message(gq: Client, ttl: Any) -> None:
    gq.create_topic("t", partitions=1)

    gq.publish("t", b"v", ttl=ttl)

    message = only(gq)
    assert message.headers == {}
    assert message.expires_at is not None
    assert (message.expires_at - message.timestamp).total_seconds() == pytest.approx(3600, abs=10)


@pytest.mark.parametrize("delay", ["30m", 1800, timedelta(minutes=30)])
def test_what_is_delayed_is_not_read_before_its_time(gq: Client, delay: Any) -> None:
    gq.create_topic("t", partitions=1)

    gq.publish("t", b"later", delay=delay)
    gq.publish("t", b"at", deliver_at=datetime(2100, 1, 1, tzinfo=UTC))
    gq.publish("t", b"text", deliver_at="2100-01-01T00:00:00Z")
    gq.publish("t", b"epoch", deliver_at=4_102_444_800)
    gq.publish("t", b"past", deliver_at="1h ago")
    gq.publish("t", b"none", delay=0)

    assert [message.value for message in gq.read("t")] == [b"past", b"none"]


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"value": {1, object()}}, "JSON"),
        ({"value": "\ud800"}, "UTF-8"),
        ({"value": b"v", "key": 1}, "key"),
        ({"value": b"v", "key": "\ud800"}, "UTF-8"),
        ({"value": b"v", "priority": "urgent"}, "urgent"),
        ({"value": b"v", "priority": 5}, "5"),
        ({"value": b"v", "delay": "soon"}, "soon"),
        ({"value": b"v", "delay": "106000d"}, "2262"),
        ({"value": b"v", "deliver_at": "soon"}, "soon"),
        ({"value": b"v", "deliver_at": datetime(2024, 1, 1)}, "time zone"),
        ({"value": b"v", "ttl": "long"}, "long"),
        ({"value": b"v", "headers": {"gq-producer": "1:0:0:1"}}, "gq-producer"),
        ({"value": b"v", "headers": {"name": 1}}, "header"),
    ],
)
def test_a_message_that_cannot_be_is_refused_and_the_client_goes_on(
    gq: Client, wrong: dict[str, Any], text: str
) -> None:
    gq.create_topic("t", partitions=1)

    with pytest.raises(InvalidMessage, match=text):
        gq.publish("t", **wrong)

    assert gq.publish("t", b"good").offset == 0


@pytest.mark.parametrize(
    ("wrong", "field", "limit"),
    [
        ({"value": b"v" * 101}, "value", 100),
        ({"value": b"v", "key": b"k" * 65_536}, "key", 65_535),
        ({"value": b"v", "headers": {"name": "v" * 65_500}}, "headers", None),
    ],
)
def test_what_is_too_large_is_refused_by_name(gq: Client, wrong: dict[str, Any], field: str, limit: int | None) -> None:
    gq.create_topic("t", partitions=1, max_message_bytes=100)

    with pytest.raises(MessageTooLarge) as caught:
        gq.publish("t", **wrong)

    assert (caught.value.field, caught.value.code, caught.value.retryable) == (field, "MESSAGE_TOO_LARGE", False)
    assert limit is None or caught.value.limit == limit
    assert gq.publish("t", b"good").offset == 0


def test_a_partition_that_is_not_there_is_named_by_the_error(gq: Client) -> None:
    gq.create_topic("t", partitions=2)

    with pytest.raises(PartitionNotFound) as caught:
        gq.publish("t", b"v", partition=2)
    with pytest.raises(InvalidPartition):
        gq.publish("t", b"v", partition=-1)
    with pytest.raises(PartitionNotFound):
        list(gq.read("t", partition=2))
    with pytest.raises(InvalidPartition):
        list(gq.read("t", partition=-3))
    with pytest.raises(PartitionNotFound):
        list(gq.follow("t", partition=2, limit=1))
    with pytest.raises(InvalidPartition):
        list(gq.follow("t", partition=-1, limit=1))

    assert (caught.value.topic, caught.value.partition) == ("t", 2)


# --- many at once -------------------------------------------------------------------------------


def test_publishing_many_takes_turns_and_does_not_use_up_identities(gq: Client) -> None:
    gq.create_topic("turns", partitions=3)

    places = [gq.publish_many("turns", [b"a", b"b"])[0].partition for _ in range(6)]

    assert sorted(places) == [0, 0, 1, 1, 2, 2]
    raw = [message.encoded_headers for message in gq.read("turns") if message.encoded_headers]
    assert len({headers.partition(b"gq-producer")[2][2:].partition(b":")[0] for headers in raw}) == 1


def test_many_are_published_together_some_with_keys(gq: Client) -> None:
    gq.create_topic("t", partitions=3)

    places = gq.publish_many("t", [b"a", b"b", ("key", b"c"), ("key", {"d": 1}), (None, "e")])

    stored = {(message.partition, message.offset): message for message in gq.read("t")}
    found = [stored[place.partition, place.offset] for place in places]
    assert [message.value for message in found] == [b"a", b"b", b"c", b'{"d":1}', b"e"]
    assert [message.key for message in found] == [None, None, b"key", b"key", None]
    assert len(stored) == 5
    assert gq.publish_many("t", []) == []


def test_many_may_come_from_an_iterator_that_uses_the_same_client(gq: Client) -> None:
    gq.create_topic("source", partitions=1)
    gq.create_topic("target", partitions=1)
    gq.publish_many("source", [b"a", b"b"])

    gq.publish_many("target", (message.value.upper() for message in gq.read("source")))

    assert [message.value for message in gq.read("target")] == [b"A", b"B"]


@pytest.mark.parametrize("bad", [object(), ("key", b"v" * 101), (3, b"v")])
def test_nothing_of_many_is_stored_if_one_of_them_cannot_be(gq: Client, bad: Any) -> None:
    gq.create_topic("t", partitions=1, max_message_bytes=100)

    with pytest.raises((InvalidMessage, MessageTooLarge)):
        gq.publish_many("t", [b"a", b"b", bad])

    assert gq.publish_many("t", [b"c"])[0].offset == 0


def test_too_many_bytes_for_one_request_are_refused_and_the_client_goes_on(gq: Client) -> None:
    gq.create_topic("t", partitions=1)

    with pytest.raises(RequestTooLarge):
        gq.publish_many("t", [bytes(12 * 1024 * 1024)] * 3)

    assert gq.publish_many("t", [b"a"])[0].offset == 0


def test_ten_thousand_are_one_batch(gq: Client) -> None:
    gq.create_topic("t", partitions=1)

    places = gq.publish_many("t", (b"%d" % number for number in range(10_000)))

    assert [place.offset for place in places] == list(range(10_000))
    assert len({place.timestamp for place in places}) == 1


# --- addresses, and the end ---------------------------------------------------------------------


def test_the_environment_says_where_the_broker_is(gq: Client, address: str) -> None:
    gq.create_topic("t")
    with environment(GOQUEUE_SERVER=address, GOQUEUE_API_KEY="key"), Client() as client:
        assert client.topics() == ["t"]


@pytest.mark.parametrize("busy_poll", ["0s", "10ms", "250us"])
def test_the_environment_says_how_long_to_look_out_for_an_answer(gq: Client, address: str, busy_poll: str) -> None:
    gq.create_topic("t", partitions=1)
    with environment(GOQUEUE_BUSY_POLL=busy_poll), Client(address) as client:
        client.publish("t", b"x")
        with client.consumer("t", group="g") as consumer:
            (message,) = consumer.poll(1)
            consumer.ack(message)

    assert message.value == b"x"


@pytest.mark.parametrize(
    ("busy_poll", "reason"),
    [("long", "'long' is not a duration"), ("11ms", "must be 0s to 10ms"), ("-1ms", "must be 0s to 10ms")],
)
def test_a_look_out_that_cannot_be_is_refused_at_once(address: str, busy_poll: str, reason: str) -> None:
    with (
        environment(GOQUEUE_BUSY_POLL=busy_poll),
        pytest.raises(InvalidConfig, match="GOQUEUE_BUSY_POLL = '.*': " + reason),
    ):
        Client(address)


@pytest.mark.parametrize(
    "server", ["nonsense", "host:", ":7000", "host:port", "host:99999", "a:1,b", ",", "host:７０００"]
)
def test_an_address_that_cannot_be_is_refused_at_once(server: str) -> None:
    with pytest.raises(InvalidRequest):
        Client(server)
    with pytest.raises(InvalidRequest):
        AsyncClient(server)


def test_the_first_address_that_answers_is_used(gq: Client, address: str) -> None:
    gq.create_topic("t", partitions=1)

    with Client(f"127.0.0.1:1, {address}") as client:
        assert client.publish("t", b"v").offset == 0
        assert client.topics() == ["t"]


@pytest.mark.parametrize(
    "ask",
    [
        lambda gq: gq.topics(),
        lambda gq: gq.create_topic("t"),
        lambda gq: gq.publish("t", b"v"),
        lambda gq: gq.publish_many("t", [b"v"]),
        lambda gq: list(gq.read("t")),
        lambda gq: list(gq.follow("t")),
    ],
)
def test_a_broker_that_is_not_there_is_unavailable_within_the_timeout(ask: Any) -> None:
    with Client("127.0.0.1:1", timeout="300ms") as client:
        before = datetime.now(UTC)
        with pytest.raises(BrokerUnavailable, match="127.0.0.1:1") as caught:
            ask(client)

        assert datetime.now(UTC) - before < timedelta(seconds=2)
        assert (caught.value.code, caught.value.retryable) == ("BROKER_NOT_AVAILABLE", True)


@pytest.mark.parametrize(
    "ask",
    [
        lambda gq: gq.topics(),
        lambda gq: gq.publish("t", b"v"),
        lambda gq: gq.producer().send("t", b"v"),
        lambda gq: list(gq.read("t")),
        lambda gq: gq.consumer("t", group="g").poll(),
        lambda gq: list(gq.consume("t", group="g")),
        lambda gq: gq.transaction("tx").__enter__(),
    ],
)
def test_the_first_call_without_a_broker_fails_soon_and_says_how_to_start_one(ask: Any) -> None:
    with Client("127.0.0.1:1", connect_timeout="300ms") as client, warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        before = datetime.now(UTC)
        with pytest.raises(BrokerUnavailable, match="127.0.0.1:1: .*start a broker with `goqueue serve`"):
            ask(client)

        assert datetime.now(UTC) - before < timedelta(seconds=3)


@pytest.mark.parametrize("ask", [lambda gq: gq.topics(), lambda gq: gq.publish("t", b"v")])
def test_an_address_that_never_answers_is_given_up_in_time(ask: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        with Client(address, connect_timeout="300ms") as client:
            before = datetime.now(UTC)
            with pytest.raises(BrokerUnavailable, match=f"{address}: .*start a broker"):
                ask(client)

            assert datetime.now(UTC) - before < timedelta(seconds=3)


def test_a_later_outage_is_tried_for_as_long_as_the_timeout_says_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    with EmbeddedBroker(http=False) as broker, Client(broker.address, timeout="2s", connect_timeout="100ms") as client:
        client.create_topic("t", partitions=1)
        client.publish("t", b"v")
        broker.stop()
        before = datetime.now(UTC)
        with pytest.raises(BrokerUnavailable) as caught:
            client.topics()

    assert datetime.now(UTC) - before > timedelta(seconds=1)
    assert "goqueue serve" not in str(caught.value)
    (logged,) = [record for record in caplog.records if record.name == "goqueue.client"]
    assert (logged.levelname, "trying again" in logged.getMessage()) == ("WARNING", True)


def test_a_connect_timeout_is_a_duration_of_more_than_nothing() -> None:
    for wrong in ("0s", "-1s", "3"):
        with pytest.raises(InvalidRequest, match="connect_timeout"):
            Client("127.0.0.1:1", connect_timeout=wrong)


def test_a_closed_client_can_be_closed_again_and_does_nothing_more(gq: Client, address: str) -> None:
    gq.create_topic("t", partitions=1)
    client = Client(address)
    client.publish("t", b"v")
    messages = client.read("t")
    client.close()
    client.close()

    for use in (
        client.topics,
        lambda: client.publish("t", b"v"),
        lambda: client.publish_many("t", [b"v"]),
        client.producer,
        messages.next_batch,
    ):
        with pytest.raises(Conflict, match="after close"):
            use()
    messages.close()
    assert gq.offsets("t") == [1]


def test_messages_before_an_offset_are_deleted(gq: Client) -> None:
    gq.create_topic("orders", partitions=1)
    gq.publish_many("orders", [b"a", b"b", b"c"])

    assert gq.truncate_topic("orders", partition=0, before_offset=2) == 2

    assert [message.value for message in gq.read("orders")] == [b"c"]
    assert gq.truncate_topic("orders", partition=0, before_offset=-1) == 3
