import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from goqueue.broker.broker import Broker
from goqueue.doors.http.door import HttpConfig, RequestAnswered
from goqueue.testing import ManualClock
from tests.client.damaged import flip
from tests.doors.http.doors import OpenDoor, receive_all

URL = "/topics/orders/stream"
MESSAGES = "/topics/orders/messages"
PARTITIONS = 3


class Event(NamedTuple):
    """One event of a stream."""

    name: str
    data: Any
    id: str


class Stream:
    """The events of a response as they come."""

    def __init__(self, response: Any) -> None:
        self._response = response
        self.comments = 0

    def __iter__(self) -> Iterator[Event]:
        fields: dict[str, str] = {}
        while line := self._response.readline():
            name, _, value = line.decode().rstrip("\n").partition(": ")
            if line == b"\n":
                if "event" in fields:
                    yield Event(fields["event"], json.loads(fields["data"]), fields.get("id", ""))
                fields = {}
            elif name:
                fields[name] = value
            else:
                self.comments += 1

    def take(self, count: int) -> list[Event]:
        events = iter(self)
        return [next(events) for _ in range(count)]

    def until_comment(self) -> None:
        """Return after the next comment."""
        while not self._response.readline().startswith(b":"):
            pass


@contextmanager
def follow(door: OpenDoor, query: str = "", **headers: str) -> Iterator[Stream]:
    """An open stream, from which the opening comment was read."""
    with door.connection() as connection:
        connection.request("GET", f"{URL}{query}", headers=headers)
        response = connection.getresponse()
        assert response.status == 200
        assert response.getheader("content-type") == "text/event-stream"
        assert response.getheader("cache-control") == "no-cache"
        stream = Stream(response)
        stream.until_comment()
        yield stream


@pytest.fixture
def orders(tmp_path: Path) -> Iterator[OpenDoor]:
    with OpenDoor(tmp_path / "data", config=HttpConfig(stream_comment_s=0.05)) as door:
        door.post("/topics", {"name": "orders", "partitions": PARTITIONS})
        yield door


def publish(door: OpenDoor, *values: str, partition: int = 0) -> None:
    messages = [{"value": value, "partition": partition} for value in values]
    assert door.post(MESSAGES, {"messages": messages}).status == 200


def values(events: list[Event]) -> list[str]:
    assert {event.name for event in events} <= {"message"}
    return [event.data["value"] for event in events]


def test_messages_come_as_they_are_published(orders: OpenDoor) -> None:
    publish(orders, "before")

    with follow(orders) as stream:
        publish(orders, "first", partition=2)
        first = stream.take(1)
        publish(orders, "second", "third", partition=0)
        rest = stream.take(2)

    assert first[0].data["partition"] == 2
    assert first[0].data.keys() == {"topic", "partition", "offset", "timestamp", "value", "priority", "headers"}
    assert values(first + rest) == ["first", "second", "third"]


def test_an_id_is_the_position_after_its_message_in_every_partition(orders: OpenDoor) -> None:
    publish(orders, "a", "b", partition=0)
    publish(orders, "c", partition=2)

    with follow(orders, "?start=earliest") as stream:
        assert [event.id for event in stream.take(3)] == ["0:1,1:0,2:0", "0:2,1:0,2:0", "0:2,1:0,2:1"]


def test_a_stream_is_resumed_where_it_broke_off(orders: OpenDoor) -> None:
    for partition in range(PARTITIONS):
        publish(orders, *(f"{partition}/{number}" for number in range(4)), partition=partition)
    with follow(orders, "?start=earliest") as stream:
        first = stream.take(5)

    with follow(orders, "?start=latest&offsets=0:0", **{"Last-Event-ID": first[-1].id}) as stream:
        rest = stream.take(7)

    assert sorted(values(first + rest)) == sorted(f"{p}/{n}" for p in range(PARTITIONS) for n in range(4))


def test_a_stream_begins_where_it_is_told_to(orders: OpenDoor) -> None:
    publish(orders, "a", "b", "c", partition=0)
    publish(orders, "d", "e", partition=1)

    with follow(orders, "?start=earliest&partitions=1") as stream:
        assert values(stream.take(2)) == ["d", "e"]
    with follow(orders, "?offsets=0:2") as stream:
        assert values(stream.take(1)) == ["c"]
    with follow(orders, "?start=earliest&offsets=0:3,1:1&partitions=0,1") as stream:
        (event,) = stream.take(1)
        assert (event.data["value"], event.id) == ("e", "0:3,1:2")


def test_a_stream_can_begin_and_end_at_a_time(tmp_path: Path, clock: ManualClock) -> None:
    with OpenDoor(tmp_path, clock=clock) as door:
        door.post("/topics", {"name": "orders", "partitions": PARTITIONS})
        for number in range(4):
            publish(door, f"{number}", partition=number % 2)
            clock.advance(60)

        with follow(door, "?from_time=2024-01-01T00:01:00Z&to_time=2024-01-01T00:03:00Z") as stream:
            events = list(stream)

    assert sorted(values(events[:-1])) == ["1", "2"]
    assert events[-1] == Event("end", {"reason": "to_time"}, "0:2,1:1,2:0")


def test_a_stream_ends_when_its_time_has_come(tmp_path: Path, clock: ManualClock) -> None:
    with OpenDoor(tmp_path, clock=clock) as door:
        door.post("/topics", {"name": "orders", "partitions": PARTITIONS})

        with follow(door, "?to_time=2024-01-01T00:01:00Z") as stream:
            publish(door, "in time")
            assert values(stream.take(1)) == ["in time"]
            clock.advance(60)
            publish(door, "too late")
            assert [event.name for event in stream] == ["end"]


def test_messages_before_a_time_to_come_are_not_sent(tmp_path: Path, clock: ManualClock) -> None:
    with OpenDoor(tmp_path, clock=clock) as door:
        door.post("/topics", {"name": "orders", "partitions": PARTITIONS})

        with follow(door, "?from_time=2024-01-01T00:01:00Z&limit=1") as stream:
            publish(door, "too early")
            clock.advance(60)
            publish(door, "in time")
            assert values(stream.take(1)) == ["in time"]


def test_a_stream_ends_after_its_limit(orders: OpenDoor) -> None:
    publish(orders, *"abcdef")

    with follow(orders, "?start=earliest&limit=4") as stream:
        events = list(stream)

    assert values(events[:-1]) == ["a", "b", "c", "d"]
    assert events[-1] == Event("end", {"reason": "limit"}, "0:4,1:0,2:0")


def test_bytes_can_be_asked_for_as_base64(orders: OpenDoor) -> None:
    publish(orders, "a")

    with follow(orders, "?start=earliest&encoding=base64") as stream:
        (event,) = stream.take(1)

    assert (event.data["value"], event.data["value_base64"]) == (None, "YQ==")


def test_a_comment_is_sent_when_nothing_else_is(orders: OpenDoor) -> None:
    with follow(orders) as stream:
        stream.until_comment()
        stream.until_comment()
        publish(orders, "a")
        assert values(stream.take(1)) == ["a"]


def test_a_delayed_message_behind_the_stream_does_not_hold_it_up(orders: OpenDoor) -> None:
    orders.post(MESSAGES, {"value": "later", "delay": "1h", "partition": 0})
    publish(orders, "now")

    with follow(orders, "?start=earliest") as stream:
        (event,) = stream.take(1)

    assert (event.data["value"], event.id) == ("now", "0:2,1:0,2:0")


def test_a_topic_that_is_deleted_ends_its_streams(orders: OpenDoor) -> None:
    with follow(orders) as stream:
        orders.request("DELETE", "/topics/orders")

        (event,) = list(stream)

    assert (event.name, event.data["code"], event.data["status"]) == ("error", "TOPIC_NOT_FOUND", 404)


@pytest.mark.parametrize(
    ("query", "status", "code"),
    [
        ("?partitions=3", 404, "PARTITION_NOT_FOUND"),
        ("?partitions=a", 400, "INVALID_PARTITION"),
        ("?partitions=", 400, "INVALID_PARTITION"),
        ("?partitions=0,-1", 400, "INVALID_PARTITION"),
        ("?offsets=7:0", 404, "PARTITION_NOT_FOUND"),
        ("?offsets=x", 400, "INVALID_REQUEST"),
        ("?start=middle", 400, "INVALID_REQUEST"),
        ("?limit=0", 400, "INVALID_REQUEST"),
        ("?from_time=x", 400, "INVALID_REQUEST"),
        ("?to_time=x", 400, "INVALID_REQUEST"),
        ("?isolation=x", 400, "INVALID_REQUEST"),
        ("?encoding=x", 400, "INVALID_REQUEST"),
    ],
)
def test_a_stream_that_makes_no_sense_is_refused_before_it_begins(
    orders: OpenDoor, query: str, status: int, code: str
) -> None:
    answer = orders.get(f"{URL}{query}")

    assert (answer.status, answer.code) == (status, code)
    assert orders.door.streams_open == 0


def test_a_last_event_id_that_makes_no_sense_is_refused(orders: OpenDoor) -> None:
    answer = orders.get(URL, **{"Last-Event-ID": "42"})

    assert (answer.status, answer.code) == (400, "INVALID_REQUEST")
    assert answer.json["error"].startswith("invalid Last-Event-ID")


def test_there_are_only_so_many_streams(tmp_path: Path) -> None:
    with OpenDoor(tmp_path, config=HttpConfig(streams_max=1)) as door:
        door.post("/topics", {"name": "orders", "partitions": PARTITIONS})

        with follow(door):
            refused = door.get(URL)
        door.until(lambda: not door.door.streams_open)
        with follow(door):
            pass

    assert (refused.status, refused.code, refused.headers["retry-after"]) == (503, "BROKER_NOT_AVAILABLE", "1")


def test_a_client_that_is_gone_leaves_nothing_behind(orders: OpenDoor) -> None:
    with follow(orders), follow(orders):
        orders.until(lambda: orders.door.streams_open == 2)

    orders.until(lambda: not orders.door.streams_open and not orders.door.requests_in_flight)


def test_a_client_that_is_gone_in_the_middle_of_a_long_past_leaves_nothing_behind(orders: OpenDoor) -> None:
    for _ in range(20):
        publish(orders, *["x" * 100_000] * 5)

    with follow(orders, "?start=earliest") as stream:
        stream.take(1)

    orders.until(lambda: not orders.door.streams_open and not orders.door.requests_in_flight)


class CountingBroker(Broker):
    """Knows how many records were read by its subscriptions."""

    records_read = 0

    def subscribe(self, *arguments: Any, **options: Any) -> Any:
        reading = super().subscribe(*arguments, **options)
        read = reading.read

        def counted(**limits: Any) -> Any:
            result = read(**limits)
            self.records_read += result.record_count
            return result

        reading.read = counted  # type: ignore[method-assign]
        return reading


def test_a_slow_reader_is_held_back_and_misses_nothing(tmp_path: Path) -> None:
    sent = [f"{number}-{'x' * 100_000}" for number in range(300)]
    with OpenDoor(tmp_path, broker=CountingBroker) as door:
        door.post("/topics", {"name": "orders", "partitions": PARTITIONS})
        for begin in range(0, 300, 10):
            publish(door, *sent[begin : begin + 10])

        with follow(door, "?start=earliest&limit=300") as stream:
            for _ in range(10):
                door.let_time_work()
            assert isinstance(door.broker, CountingBroker)
            assert door.broker.records_read < 200
            seen = values(stream.take(300))

    assert seen == sent


def test_others_are_answered_while_a_fast_reader_goes_through_a_long_past(orders: OpenDoor) -> None:
    for _ in range(10):
        publish(orders, *["x" * 1_000] * 1_000)

    with follow(orders, "?start=earliest&limit=10000") as stream:
        answers = 0
        for number, _ in enumerate(stream):
            if number % 1_000 == 0:
                answers += orders.get("/health").status == 200

    assert (number, answers) == (10_000, 11)


def test_the_time_that_a_stream_was_open_is_not_counted_as_work(tmp_path: Path, clock: ManualClock) -> None:
    seen: list[RequestAnswered] = []
    with OpenDoor(tmp_path, clock=clock, observe=seen.append) as door:
        door.post("/topics", {"name": "orders", "partitions": PARTITIONS})
        with follow(door, "?limit=1") as stream:
            clock.advance(60)
            publish(door, "a")
            assert [event.name for event in stream] == ["message", "end"]
        door.until(lambda: len(seen) == 3)

    assert seen[-1] == RequestAnswered("GET", "/topics/{topic}/stream", 200, 0)


def test_a_stream_can_be_followed_with_http_1_0(orders: OpenDoor) -> None:
    publish(orders, "a")

    with orders.raw(f"GET {URL}?start=earliest&limit=1 HTTP/1.0\r\n\r\n".encode()) as connection:
        answer = receive_all(connection)

    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"event: end" in answer


def test_damage_is_an_event_of_its_own(tmp_path: Path) -> None:
    with OpenDoor(tmp_path / "data") as door:
        door.post("/topics", {"name": "orders", "partitions": 1})
        door.post(MESSAGES, {"messages": [{"value": "a-value"}, {"value": "b-value"}, {"value": "c-value"}]})
        flip(door.data, "orders", b"b-value")

        with follow(door, "?start=earliest&limit=2") as stream:
            events = stream.take(4)

    assert [event.name for event in events] == ["message", "gaps", "message", "end"]
    gap = {"partition": 0, "first_offset": 1, "next_offset": 2, "reason": "checksum mismatch"}
    assert (events[1].data, events[1].id) == ({"gaps": [gap]}, "0:2")
