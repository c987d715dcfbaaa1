import base64
import threading
from pathlib import Path
from typing import Any

import pytest

from goqueue.doors.http.config import HttpConfig
from goqueue.doors.http.door import RequestAnswered
from goqueue.record import kernel
from goqueue.record.header import Flags
from goqueue.testing import ManualClock
from tests.client.damaged import flip
from tests.doors.http.doors import Answer, OpenDoor

ALL = "/topics/orders/messages"
ONE = "/topics/orders/partitions/0/messages"


@pytest.fixture
def orders(tmp_path: Path, clock: ManualClock) -> Any:
    """A door in front of the topic `orders`, at a time that stands still."""
    with OpenDoor(tmp_path / "data", clock=clock) as door:
        door.post("/topics", {"name": "orders", "partitions": 3})
        yield door


def fill(door: OpenDoor, count: int, partition: int = 0) -> None:
    messages = [{"value": f"{partition}/{number}", "partition": partition} for number in range(count)]
    assert door.post(ALL, {"messages": messages}).status == 200


def values(answer: Answer) -> list[str]:
    return [message["value"] for message in answer.json["messages"]]


class Asking(threading.Thread):
    """A request that is under way."""

    def __init__(self, door: OpenDoor, path: str, **headers: str) -> None:
        super().__init__(daemon=True)
        self._door, self._path, self._headers = door, path, headers
        self._answer: Answer | None = None
        self.start()

    def run(self) -> None:
        self._answer = self._door.get(self._path, **self._headers)

    def answer(self) -> Answer:
        self.join(20)
        assert self._answer
        return self._answer


def waiting(door: OpenDoor) -> None:
    """Return once a long poll is being held."""
    door.until(lambda: door.door.polls_held)


def test_a_partition_is_read_from_its_start(orders: OpenDoor) -> None:
    fill(orders, 3)

    answer = orders.get(ONE)

    assert values(answer) == ["0/0", "0/1", "0/2"]
    assert {key: value for key, value in answer.json.items() if key != "messages"} == {
        "next_offset": 3,
        "high_watermark": 3,
        "last_stable_offset": 3,
        "log_start_offset": 0,
    }
    assert answer.json["messages"][1] == {
        "topic": "orders",
        "partition": 0,
        "offset": 1,
        "timestamp": "2024-01-01T00:00:00.000000000Z",
        "value": "0/1",
        "priority": "normal",
        "headers": {},
    }


def test_a_reader_goes_on_at_the_next_offset(orders: OpenDoor) -> None:
    fill(orders, 5)

    first = orders.get(f"{ONE}?limit=2")
    second = orders.get(f"{ONE}?limit=2&offset={first.json['next_offset']}")

    assert (values(first), values(second), second.json["next_offset"]) == (["0/0", "0/1"], ["0/2", "0/3"], 4)


def test_at_and_past_the_end_there_is_nothing_and_the_offset_stays(orders: OpenDoor) -> None:
    fill(orders, 2)

    for offset in (2, 3, 1000, 2**63 - 1):
        answer = orders.get(f"{ONE}?offset={offset}")
        assert (answer.status, answer.json["messages"], answer.json["next_offset"]) == (200, [], offset)


def test_below_the_start_means_the_start(orders: OpenDoor, clock: ManualClock) -> None:
    orders.request("PATCH", "/topics/orders/config", {"segment_bytes": 1024, "retention": "1h"})
    for _ in range(40):
        fill(orders, 1)
        clock.advance(120)
    clock.advance(2200)  # the first segment is old enough now, the second is not

    def start() -> int:
        return orders.broker.topics.describe("orders").partitions[0].start_offset

    orders.until(lambda: start() > 0)
    begin = orders.inside(start)

    one, everything = orders.get(f"{ONE}?offset=0&limit=1").json, orders.get(f"{ALL}?offsets=0:0&limit=1").json

    assert (one["messages"][0]["offset"], one["next_offset"], one["log_start_offset"]) == (begin, begin + 1, begin)
    assert everything["messages"][0]["offset"] == begin
    assert everything["log_start_offset"]["orders-0"] == begin


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("limit=0", "invalid limit"),
        ("limit=-1", "invalid limit"),
        ("limit=many", "invalid limit"),
        ("limit=1.5", "invalid limit"),
        ("max_bytes=0", "invalid max_bytes"),
        ("wait=5", "invalid timeout format"),
        ("timeout=soon", "invalid timeout format"),
        ("wait=1s&timeout=1s", "wait and timeout are two names"),
        ("from_time=yesterday", "invalid from_time"),
        ("to_time=2024-01-01", "invalid to_time"),
        ("isolation=none", "invalid isolation"),
        ("encoding=hex", "invalid encoding"),
    ],
)
@pytest.mark.parametrize("path", [ALL, ONE])
def test_a_query_that_makes_no_sense_is_refused(orders: OpenDoor, path: str, query: str, words: str) -> None:
    answer = orders.get(f"{path}?{query}")

    assert (answer.status, answer.code) == (400, "INVALID_REQUEST")
    assert answer.json["error"].startswith(words)


@pytest.mark.parametrize("offset", ["-1", "abc", "1.5", "9223372036854775808", "", "%20", "1_0"])
def test_an_offset_is_a_whole_number_from_0_on(orders: OpenDoor, offset: str) -> None:
    answer = orders.get(f"{ONE}?offset={offset}")

    assert (answer.status, answer.code) == (400, "INVALID_REQUEST")
    assert answer.json["error"].startswith("invalid offset")


@pytest.mark.parametrize("offsets", ["0", "0:", ":1", "0:-1", "a:1", "0:1,", "0:1;1:2", "0:9223372036854775808"])
def test_offsets_are_pairs_of_numbers(orders: OpenDoor, offsets: str) -> None:
    answer = orders.get(f"{ALL}?offsets={offsets}")

    assert (answer.status, answer.code) == (400, "INVALID_REQUEST")
    assert answer.json["error"].startswith("invalid offsets")


@pytest.mark.parametrize("partition", ["abc", "-1", "1.0", "%20", "0x1", "%D9%A3"])
def test_a_partition_that_is_no_number_is_refused(orders: OpenDoor, partition: str) -> None:
    answer = orders.get(f"/topics/orders/partitions/{partition}/messages")

    assert (answer.status, answer.code) == (400, "INVALID_PARTITION")
    assert answer.json["error"].startswith("invalid partition ID")


@pytest.mark.parametrize("partition", ["3", "2147483648", "1" * 5000])
def test_a_partition_that_does_not_exist_is_404(orders: OpenDoor, partition: str) -> None:
    answer = orders.get(f"/topics/orders/partitions/{partition}/messages")

    assert (answer.status, answer.code) == (404, "PARTITION_NOT_FOUND")
    assert orders.get(f"{ALL}?offsets={partition}:0").code == "PARTITION_NOT_FOUND"


def test_records_are_found_by_time(orders: OpenDoor, clock: ManualClock) -> None:
    for number in range(4):
        orders.post(ALL, {"value": f"{number}", "partition": 0})
        clock.advance(60)

    middle = "from_time=2024-01-01T00:01:00Z&to_time=2024-01-01T00:03:00Z"

    assert values(orders.get(f"{ONE}?{middle}")) == ["1", "2"]
    assert values(orders.get(f"{ALL}?{middle}")) == ["1", "2"]
    assert values(orders.get(f"{ONE}?from_time=2m%20ago")) == ["2", "3"]
    assert values(orders.get(f"{ONE}?from_time=2m%20ago&offset=3")) == ["3"], "the later of the two"
    assert values(orders.get(f"{ONE}?to_time=1m%20ago")) == ["0", "1", "2"]
    assert orders.get(f"{ONE}?{middle}").json["end_of_range"] is True
    assert orders.get(f"{ALL}?{middle}").json["end_of_range"] is True
    assert "end_of_range" not in orders.get(f"{ONE}?{middle}&limit=1").json


def test_a_time_in_the_future_finds_nothing_and_stands_at_the_end(orders: OpenDoor) -> None:
    fill(orders, 3)

    one = orders.get(f"{ONE}?from_time=2030-01-01T00:00:00Z").json
    everything = orders.get(f"{ALL}?from_time=2030-01-01T00:00:00Z").json

    assert (one["messages"], one["next_offset"]) == ([], 3)
    assert everything["messages"] == []
    assert everything["next_offset"] == {"orders-0": 3, "orders-1": 0, "orders-2": 0}


def test_a_first_record_comes_even_if_it_is_too_large(orders: OpenDoor) -> None:
    orders.post(ALL, {"messages": [{"value": "x" * 5000, "partition": 0}, {"value": "y", "partition": 0}]})

    answer = orders.get(f"{ONE}?max_bytes=10").json

    assert ([message["offset"] for message in answer["messages"]], answer["next_offset"]) == ([0], 1)


def test_a_limit_that_is_too_large_is_the_largest_there_is(tmp_path: Path) -> None:
    with OpenDoor(tmp_path, config=HttpConfig(read_limit_max=5)) as door:
        door.post("/topics", {"name": "orders", "partitions": 3})
        fill(door, 8)

        assert len(values(door.get(f"{ONE}?limit=1000000"))) == 5
        assert len(values(door.get(f"{ALL}?limit=10000000000000000000000"))) == 5
        assert len(values(door.get(f"{ONE}?max_bytes=10000000000000000000000"))) == 5


def test_bytes_that_are_no_text_come_as_base64_and_all_do_if_asked_for(orders: OpenDoor) -> None:
    raw = base64.b64encode(b"\xff").decode()
    text = base64.b64encode(b"text").decode()
    orders.post(ALL, {"value": "text", "key": "text", "headers": {"a": "text"}, "partition": 0})
    orders.post(ALL, {"value_base64": raw, "key_base64": raw, "headers": {"a": {"base64": raw}}, "partition": 0})

    as_text, as_base64 = orders.get(ONE).json["messages"], orders.get(f"{ONE}?encoding=base64").json["messages"]

    assert (as_text[0]["value"], as_text[0]["key"], as_text[0]["headers"]) == ("text", "text", {"a": "text"})
    assert "value_base64" not in as_text[0]
    for message, data in ((as_text[1], raw), (as_base64[0], text), (as_base64[1], raw)):
        assert (message["value"], message["value_base64"]) == (None, data)
        assert (message["key"], message["key_base64"]) == (None, data)
        assert message["headers"] == {"a": {"base64": data}}


def test_all_partitions_are_read_in_the_order_of_time(orders: OpenDoor, clock: ManualClock) -> None:
    for number, partition in enumerate((2, 0, 1, 2, 0)):
        orders.post(ALL, {"value": f"{number}", "partition": partition})
        clock.advance(1)

    answer = orders.get(ALL)

    assert values(answer) == ["0", "1", "2", "3", "4"]
    assert answer.json["next_offset"] == {"orders-0": 2, "orders-1": 1, "orders-2": 2}
    assert answer.json["high_watermark"] == {"orders-0": 2, "orders-1": 1, "orders-2": 2}
    assert answer.json["last_stable_offset"] == {"orders-0": 2, "orders-1": 1, "orders-2": 2}
    assert answer.json["log_start_offset"] == {"orders-0": 0, "orders-1": 0, "orders-2": 0}


def test_offsets_say_where_each_partition_begins(orders: OpenDoor) -> None:
    for partition in range(3):
        fill(orders, 3, partition)

    answer = orders.get(f"{ALL}?offsets=0:2,%201:3")

    assert sorted(values(answer)) == ["0/2", "2/0", "2/1", "2/2"]


def test_every_partition_has_its_share_of_a_limit_and_the_rest_goes_to_those_who_have_more(orders: OpenDoor) -> None:
    fill(orders, 100, 0)
    fill(orders, 2, 1)
    fill(orders, 100, 2)

    answer = orders.get(f"{ALL}?limit=30")

    counts = [sum(message["partition"] == partition for message in answer.json["messages"]) for partition in range(3)]
    assert sum(counts) == 30
    assert counts[1] == 2
    assert min(counts[0], counts[2]) >= 10
    assert answer.json["next_offset"] == {f"orders-{partition}": count for partition, count in enumerate(counts)}


def test_every_partition_has_its_turn_even_if_one_message_is_all_that_fits(orders: OpenDoor) -> None:
    for partition in range(3):
        fill(orders, 2, partition)
    offsets: dict[str, int] = {"orders-0": 0, "orders-1": 0, "orders-2": 0}
    seen = []

    for _ in range(6):
        pairs = ",".join(f"{name[-1]}:{offset}" for name, offset in offsets.items())
        answer = orders.get(f"{ALL}?limit=1&offsets={pairs}")
        offsets = answer.json["next_offset"]
        seen += values(answer)

    assert sorted(seen) == ["0/0", "0/1", "1/0", "1/1", "2/0", "2/1"]
    assert {value[0] for value in seen[:3]} == {"0", "1", "2"}


def test_paging_over_all_partitions_meets_every_message_once(orders: OpenDoor) -> None:
    for partition, count in enumerate((57, 3, 20)):
        fill(orders, count, partition)
    pairs, seen = "", []

    while page := orders.get(f"{ALL}?limit=7&max_bytes=300&offsets={pairs}").json:
        if not page["messages"]:
            break
        seen += [(message["partition"], message["offset"]) for message in page["messages"]]
        pairs = ",".join(f"{name[-1]}:{offset}" for name, offset in page["next_offset"].items())

    assert sorted(seen) == [(p, offset) for p, count in enumerate((57, 3, 20)) for offset in range(count)]


def test_what_is_not_due_is_passed_over_and_named(orders: OpenDoor, clock: ManualClock) -> None:
    messages = [{"value": "a"}, {"value": "b", "delay": "1m"}, {"value": "c", "delay": "1m"}, {"value": "d"}]
    orders.post(ALL, {"messages": [{**message, "partition": 0} for message in messages]})

    one, everything = orders.get(ONE), orders.get(ALL)

    assert (values(one), one.json["next_offset"], one.json["first_pending_offset"]) == (["a", "d"], 4, 1)
    assert everything.json["first_pending_offset"] == {"orders-0": 1}
    clock.advance(60)
    assert values(orders.get(ONE)) == ["a", "b", "c", "d"]


def test_compressed_values_are_shown_as_they_were(orders: OpenDoor) -> None:
    orders.post("/topics", {"name": "packed", "partitions": 1, "config": {"compression": "zstd"}})
    orders.post("/topics/packed/messages", {"value": "x" * 10_000})

    assert values(orders.get("/topics/packed/messages")) == ["x" * 10_000]


def test_a_value_that_cannot_be_decompressed_is_an_error_and_not_its_stored_bytes(orders: OpenDoor) -> None:
    records = kernel.encode([b"\xffnot compressed", b"fine"], flags=[Flags.COMPRESSED, 0])
    orders.inside(lambda: orders.broker.messages.publish_records("orders", 0, records))
    orders.until(lambda: orders.broker.topics.describe("orders").partitions[0].high_watermark == 2)

    first, second = orders.get(ONE).json["messages"]

    assert first["value"] is None
    assert "value_base64" not in first
    assert first["error"] == "the value cannot be decompressed: compressed by an unknown algorithm"
    assert first["code"] == "CORRUPT_RECORD"
    assert second["value"] == "fine"
    assert "error" not in second


@pytest.mark.parametrize("path", [ONE, ALL])
def test_damage_is_named_beside_what_could_be_read(orders: OpenDoor, path: str) -> None:
    fill(orders, 5)
    assert "gaps" not in orders.get(path).json
    flip(orders.data, "orders", b"0/3")

    pages = [orders.get(path).json, orders.get(f"{path}?{'offset=3' if path == ONE else 'offsets=0:3'}").json]

    gap = {"partition": 0, "first_offset": 3, "next_offset": 4, "reason": "checksum mismatch"}
    assert [page.get("gaps") for page in pages if "gaps" in page] == [[gap]] * (1 if path == ONE else 2)
    assert [message["value"] for message in pages[1]["messages"]] == ["0/4"]


def test_a_long_poll_that_finds_nothing_but_damage_does_not_wait(orders: OpenDoor) -> None:
    fill(orders, 1)
    flip(orders.data, "orders", b"0/0")

    for path in (ONE, ALL):
        page = orders.get(f"{path}?wait=60s").json
        assert page["messages"] == []
        assert [gap["next_offset"] for gap in page["gaps"]] == [1]


def test_values_that_grow_when_they_are_unpacked_do_not_burst_the_answer(orders: OpenDoor) -> None:
    orders.post("/topics", {"name": "packed", "partitions": 1, "config": {"compression": "zstd"}})
    orders.post("/topics/packed/messages", {"messages": [{"value": "x" * 400_000} for _ in range(10)]})

    seen, offset = [], 0
    url = "/topics/packed/partitions/0/messages?max_bytes=1000000"
    while page := orders.get(f"{url}&offset={offset}").json["messages"]:
        seen.append(len(page))
        offset = page[-1]["offset"] + 1

    assert seen == [2, 2, 2, 2, 2]


@pytest.mark.parametrize("name", ["wait", "timeout"])
@pytest.mark.parametrize("path", [ALL, ONE])
def test_a_long_poll_is_answered_by_the_next_message(orders: OpenDoor, path: str, name: str) -> None:
    asking = Asking(orders, f"{path}?{name}=20s")
    waiting(orders)

    fill(orders, 1)

    assert values(asking.answer()) == ["0/0"]
    assert asking.answer().json["high_watermark"] in (1, {"orders-0": 1, "orders-1": 0, "orders-2": 0})


@pytest.mark.parametrize("path", [ALL, ONE])
def test_a_long_poll_ends_empty_when_its_time_is_over(orders: OpenDoor, clock: ManualClock, path: str) -> None:
    asking = Asking(orders, f"{path}?wait=20s")
    waiting(orders)

    clock.advance(20)

    answer = asking.answer()
    assert (answer.status, answer.json["messages"]) == (200, [])


@pytest.mark.parametrize("path", [ALL, ONE])
@pytest.mark.parametrize(
    ("asked", "prefer", "held_s"),
    [
        ("30s", None, 25),
        ("10m", None, 25),
        ("10m", "wait=40", 40),
        ("10m", "respond-async, wait=40", 40),
        ("10m", "wait=600", 60),
        ("10m", "wait=10", 10),
        ("5s", "wait=40", 5),
    ],
)
def test_a_long_poll_is_held_for_as_long_as_the_client_can_wait(
    orders: OpenDoor, clock: ManualClock, path: str, asked: str, prefer: str | None, held_s: int
) -> None:
    asking = Asking(orders, f"{path}?wait={asked}", **({"Prefer": prefer} if prefer else {}))
    waiting(orders)

    clock.advance(held_s - 1)
    orders.let_time_work()
    assert orders.door.polls_held == 1
    clock.advance(1)

    assert asking.answer().json["messages"] == []


@pytest.mark.parametrize("path", [ALL, ONE])
def test_a_long_poll_does_not_wait_when_there_is_something(orders: OpenDoor, path: str) -> None:
    fill(orders, 1)

    assert values(orders.get(f"{path}?wait=20s")) == ["0/0"]


@pytest.mark.parametrize("path", [ALL, ONE])
def test_a_long_poll_does_not_wait_for_a_range_that_has_ended(orders: OpenDoor, path: str) -> None:
    answer = orders.get(f"{path}?wait=20s&to_time=now").json

    assert (answer["messages"], answer["end_of_range"]) == ([], True)


@pytest.mark.parametrize("path", [ALL, ONE])
def test_a_long_poll_is_answered_at_once_if_the_broker_does_not_wait_any_more(orders: OpenDoor, path: str) -> None:
    orders.inside(orders.broker.drain)

    answer = orders.get(f"{path}?wait=20s")

    assert (answer.status, answer.json["messages"]) == (200, [])


@pytest.mark.parametrize("path", [ALL, ONE])
def test_a_client_that_hangs_up_is_not_waited_for(orders: OpenDoor, path: str) -> None:
    with orders.raw(f"GET {path}?wait=20s HTTP/1.1\r\nHost: here\r\n\r\n".encode()):
        waiting(orders)

    orders.until(lambda: not orders.door.polls_held and not orders.door.requests_in_flight)


def test_the_time_that_was_waited_is_not_counted_as_work(tmp_path: Path, clock: ManualClock) -> None:
    seen: list[RequestAnswered] = []
    with OpenDoor(tmp_path, clock=clock, observe=seen.append) as door:
        door.post("/topics", {"name": "orders"})
        asking = Asking(door, f"{ONE}?wait=20s")
        waiting(door)
        clock.advance(20)
        asking.answer()
        door.until(lambda: len(seen) == 2)

    assert seen[1] == RequestAnswered("GET", "/topics/{topic}/partitions/{partition}/messages", 200, 0)


@pytest.mark.parametrize("path", [ALL, ONE])
def test_a_topic_that_is_deleted_ends_a_long_poll(orders: OpenDoor, path: str) -> None:
    asking = Asking(orders, f"{path}?wait=20s")
    waiting(orders)

    orders.request("DELETE", "/topics/orders")

    assert asking.answer().code == "TOPIC_NOT_FOUND"
