"""Polling: the next messages for a member."""

import asyncio
import base64
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from goqueue.clock import SystemClock
from goqueue.doors.http.bodies import ClientGone
from goqueue.doors.http.context import Build, Context
from goqueue.doors.http.door import HttpConfig, RequestAnswered
from goqueue.doors.http.routes import poll as routes_poll
from goqueue.record import kernel
from goqueue.record.header import Flags
from goqueue.service.groups import GroupVerbs, PollResult
from goqueue.service.pending import Pending
from goqueue.testing import ManualClock
from tests.client.damaged import flip
from tests.doors.http.consumers import join, poll, poll_path, publish, settle, take, values
from tests.doors.http.doors import OpenDoor
from tests.doors.http.test_read import Asking, waiting


@pytest.fixture
def orders(tmp_path: Path, clock: ManualClock) -> Any:
    """A door in front of the topic `orders` of one partition, at a time that stands still."""
    with OpenDoor(tmp_path / "data", clock=clock) as door:
        door.post("/topics", {"name": "orders", "partitions": 1})
        yield door


def test_a_message_comes_with_the_right_to_settle_it(orders: OpenDoor) -> None:
    publish(orders, "a", key="k", headers={"h": "v"})
    member = join(orders)

    polled = poll(orders, member)

    (message,) = polled["messages"]
    receipt = message.pop("receipt_handle").split(":")
    assert receipt[:4] == ["orders", "0", "0", "1"]
    assert len(receipt) == 5
    assert message == {
        "topic": "orders",
        "partition": 0,
        "offset": 0,
        "timestamp": "2024-01-01T00:00:00.000000000Z",
        "key": "k",
        "value": "a",
        "priority": "normal",
        "headers": {"h": "v"},
        "delivery_count": 1,
        "deadline": "2024-01-01T00:00:30.000000000Z",
    }
    assert {name: value for name, value in polled.items() if name != "messages"} == {
        "next_offset": {"orders-0": 1},
        "generation": 1,
        "rebalance_required": False,
        "in_flight": 1,
    }


def test_what_is_leased_does_not_come_twice(orders: OpenDoor) -> None:
    publish(orders, "a", "b")
    member = join(orders)

    assert [values(poll(orders, member)), values(poll(orders, member))] == [["a", "b"], []]


def test_what_was_not_settled_in_time_comes_again(orders: OpenDoor, clock: ManualClock) -> None:
    publish(orders, "a")
    member = join(orders, visibility_timeout="10s")
    assert take(orders, member)[0]["deadline"] == "2024-01-01T00:00:10.000000000Z"
    clock.advance(11)
    orders.let_time_work()
    clock.advance(1)
    orders.let_time_work()

    (again,) = take(orders, member, visibility_timeout="5m")

    assert (again["delivery_count"], again["deadline"]) == (2, "2024-01-01T00:05:12.000000000Z")
    assert again["receipt_handle"].split(":")[3] == "2"


def test_lanes_come_in_their_order_over_all_partitions(tmp_path: Path, clock: ManualClock) -> None:
    with OpenDoor(tmp_path / "data", clock=clock) as door:
        door.post("/topics", {"name": "orders", "partitions": 3})
        for partition in range(3):
            for priority in ("background", "normal", "critical", "low", "high"):
                publish(door, f"{partition}/{priority}", partition=partition, priority=priority)
        member = join(door)

        messages = take(door, member)

    assert [message["priority"] for message in messages] == [
        *["critical"] * 3,
        *["high"] * 3,
        *["normal"] * 3,
        *["low"] * 3,
        *["background"] * 3,
    ]


def test_within_a_lane_and_a_partition_offsets_rise(tmp_path: Path, clock: ManualClock) -> None:
    with OpenDoor(tmp_path / "data", clock=clock) as door:
        door.post("/topics", {"name": "orders", "partitions": 2})
        for number in range(60):
            publish(door, str(number), partition=number % 2, priority=number % 5)

        messages = take(door, join(door))

    assert len(messages) == 60
    lanes: dict[tuple[str, int], list[int]] = {}
    for message in messages:
        lanes.setdefault((message["priority"], message["partition"]), []).append(message["offset"])
    assert all(offsets == sorted(offsets) for offsets in lanes.values())


@pytest.mark.parametrize("name", ["max_messages", "limit"])
def test_an_answer_holds_no_more_messages_than_asked_for(tmp_path: Path, name: str) -> None:
    with OpenDoor(tmp_path / "data") as door:
        door.post("/topics", {"name": "orders", "partitions": 3})
        publish(door, *map(str, range(250)))
        member = join(door)

        counts = [len(take(door, member, **query)) for query in ({name: 7}, {}, {name: 1000})]

    assert counts == [7, 100, 143]


def test_an_answer_holds_no_more_bytes_than_asked_for_but_one_message(orders: OpenDoor) -> None:
    publish(orders, *["x" * 1000] * 10)
    member = join(orders)

    assert [len(take(orders, member, max_bytes=size)) for size in (1, 3500)] == [1, 3]


def test_values_that_grow_when_they_are_unpacked_do_not_burst_the_answer(orders: OpenDoor) -> None:
    orders.post("/topics", {"name": "packed", "partitions": 1, "config": {"compression": "zstd"}})
    publish(orders, *["x" * 400_000] * 5, topic="packed")
    member = join(orders, topics=["packed"])

    polled = [poll(orders, member, max_bytes=1_000_000) for _ in range(4)]

    assert [[message["offset"] for message in one["messages"]] for one in polled] == [[0, 1], [2, 3], [4], []]
    assert [one["next_offset"] for one in polled] == [{"packed-0": 2}, {"packed-0": 4}, {"packed-0": 5}, {}]
    assert [one["in_flight"] for one in polled] == [2, 4, 5, 5]
    assert {message["delivery_count"] for one in polled for message in one["messages"]} == {1}


def test_nothing_is_left_out_where_it_could_not_be_given_back(orders: OpenDoor) -> None:
    orders.post("/topics", {"name": "packed", "partitions": 1, "config": {"compression": "zstd"}})
    publish(orders, *["x" * 400_000] * 5, topic="packed")
    member = join(orders, topics=["packed"], ack="offsets")

    assert len(take(orders, member, max_bytes=1_000_000)) == 5


def test_a_member_that_has_enough_is_told_so(orders: OpenDoor) -> None:
    publish(orders, *"abc")
    member = join(orders, max_in_flight=2)

    first, second = poll(orders, member), poll(orders, member)

    assert (len(first["messages"]), first["in_flight"], "reason" in first) == (2, 2, False)
    assert second == {
        "messages": [],
        "next_offset": {},
        "generation": 1,
        "rebalance_required": False,
        "in_flight": 2,
        "reason": "max_in_flight",
    }


def test_a_member_without_partitions_is_told_so(orders: OpenDoor) -> None:
    members = [join(orders), join(orders, client_id="second")]

    reasons = {poll(orders, member).get("reason") for member in members}

    assert reasons == {None, "no_partitions"}


def test_nothing_to_deliver_needs_no_reason(orders: OpenDoor) -> None:
    assert "reason" not in poll(orders, join(orders))


def test_bytes_that_are_not_text_come_as_base64(orders: OpenDoor) -> None:
    raw = base64.b64encode(b"\xff\xfe").decode()
    orders.post("/topics/orders/messages", {"value_base64": raw, "key_base64": raw})
    publish(orders, "text")
    member = join(orders)

    first, second = take(orders, member, encoding="base64")

    assert (first["value"], first["value_base64"], first["key"], first["key_base64"]) == (None, raw, None, raw)
    assert (second["value"], second["value_base64"]) == (None, "dGV4dA==")


def test_a_poll_waits_for_a_message(orders: OpenDoor) -> None:
    asking = Asking(orders, poll_path(join(orders), wait="20s"))
    waiting(orders)

    publish(orders, "a")

    assert values(asking.answer().json) == ["a"]


def test_a_poll_waits_for_a_delayed_message(orders: OpenDoor, clock: ManualClock) -> None:
    publish(orders, "later", delay="5s")
    asking = Asking(orders, poll_path(join(orders), wait="20s"))
    waiting(orders)

    clock.advance(6)

    assert values(asking.answer().json) == ["later"]


def test_a_message_that_was_returned_wakes_a_poll(orders: OpenDoor) -> None:
    publish(orders, "a")
    first = join(orders, mode="shared")
    asking = Asking(orders, poll_path(join(orders, mode="shared", client_id="second"), wait="20s"))
    (message,) = asking.answer().json["messages"]
    asking = Asking(orders, poll_path(first, wait="20s"))
    waiting(orders)

    assert settle(orders, "nack", message, delay="0s").status == 200

    assert asking.answer().json["messages"][0]["delivery_count"] == 2


@pytest.mark.parametrize(
    ("query", "prefer", "held_s"),
    [
        ({}, None, 25),
        ({"wait": "60s"}, None, 25),
        ({"timeout": "3s"}, None, 3),
        ({"wait": "3s"}, "wait=50", 3),
        ({}, "wait=50", 30),
        ({"wait": "10m"}, "wait=50", 50),
        ({"wait": "10m"}, "wait=600", 60),
    ],
)
def test_a_poll_is_held_as_long_as_its_client_waits(
    orders: OpenDoor, clock: ManualClock, query: dict[str, str], prefer: str | None, held_s: int
) -> None:
    member = join(orders, session_timeout="10m")
    path = f"/groups/billing/poll?member_id={member['member_id']}" + "".join(f"&{k}={v}" for k, v in query.items())
    asking = Asking(orders, path, **({"Prefer": prefer} if prefer else {}))
    waiting(orders)

    clock.advance(held_s - 0.5)
    orders.let_time_work()
    assert asking.is_alive()
    clock.advance(1)

    assert asking.answer().json["messages"] == []


def test_a_poll_that_waits_keeps_its_member_alive(orders: OpenDoor, clock: ManualClock) -> None:
    member = join(orders, session_timeout="10s")
    asking = Asking(orders, poll_path(member, wait="25s"))
    waiting(orders)

    for _ in range(24):
        clock.advance(1)
        orders.let_time_work()
    publish(orders, "a")

    assert values(asking.answer().json) == ["a"]


def test_a_rebalance_ends_the_wait(orders: OpenDoor) -> None:
    orders.post("/topics", {"name": "refunds", "partitions": 1})
    asking = Asking(orders, poll_path(join(orders, topics=["orders", "refunds"]), wait="20s"))
    waiting(orders)

    join(orders, client_id="second", topics=["orders", "refunds"])

    answer = asking.answer()
    assert (answer.status, answer.json["messages"], answer.json["generation"]) == (200, [], 2)


def test_the_end_of_the_group_ends_the_wait(orders: OpenDoor) -> None:
    asking = Asking(orders, poll_path(join(orders), wait="20s"))
    waiting(orders)

    orders.request("DELETE", "/groups/billing")

    assert asking.answer().status == 404


def test_a_client_that_hangs_up_holds_nothing(orders: OpenDoor) -> None:
    member = join(orders)
    with orders.raw(f"GET {poll_path(member, wait='20s')} HTTP/1.1\r\nHost: a\r\n\r\n".encode()):
        waiting(orders)
    orders.until(lambda: not orders.door.polls_held)

    publish(orders, "a")

    (message,) = take(orders, member)
    assert message["delivery_count"] == 1


def test_what_comes_for_a_client_that_has_hung_up_at_once_is_given_back(orders: OpenDoor) -> None:
    publish(orders, "a")
    member = join(orders)
    with orders.raw(b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n") as connection:
        assert connection.recv(4096).startswith(b"HTTP/1.1 200")

        def ask_and_hang_up() -> None:
            connection.sendall(f"GET {poll_path(member)} HTTP/1.1\r\nHost: a\r\n\r\n".encode())
            connection.close()

        orders.inside(ask_and_hang_up)
    orders.until(lambda: orders.broker.groups.reliability().leased == 1)
    orders.until(lambda: orders.broker.groups.reliability().in_flight == 0)

    (message,) = take(orders, member)
    assert message["delivery_count"] == 1


class HangingUp:
    """A client that hangs up in the very moment in which there is something for it, and the groups it asks."""

    def __init__(self, groups: GroupVerbs) -> None:
        self._groups = groups
        self._answered = asyncio.Event()
        self.headers: dict[str, str] = {}
        self.scope: dict[str, Any] = {"state": {}}

    def poll(self, *args: Any, **kwargs: Any) -> Pending[PollResult]:
        pending = self._groups.poll(*args, **kwargs)
        pending.then(lambda _: self._answered.set())
        return pending

    def __getattr__(self, name: str) -> Any:
        return getattr(self._groups, name)

    async def receive(self) -> dict[str, str]:
        await self._answered.wait()
        return {"type": "http.disconnect"}


def test_what_comes_for_a_client_that_hangs_up_in_that_moment_is_given_back(orders: OpenDoor) -> None:
    member = join(orders)

    async def ask() -> None:
        client = HangingUp(orders.broker.groups)
        service: Any = SimpleNamespace(groups=client)
        context = Context(
            service,
            clock=SystemClock(),
            config=HttpConfig(),
            node_id=1,
            build=Build(),
            metrics=None,
            loop=asyncio.get_running_loop(),
        )
        with pytest.raises(ClientGone):
            await routes_poll.poll.fn(context, client, "billing", member["member_id"])

    asking = asyncio.run_coroutine_threadsafe(ask(), orders.loop)
    publish(orders, "a")
    asking.result(20)

    assert orders.get("/groups/billing").json["members"][0]["in_flight"] == 0
    (message,) = take(orders, member)
    assert message["delivery_count"] == 1


def test_head_would_lose_messages_and_is_not_allowed(orders: OpenDoor) -> None:
    publish(orders, "a")
    member = join(orders)

    answer = orders.request("HEAD", poll_path(member))

    assert (answer.status, answer.headers["allow"]) == (405, "GET, OPTIONS")
    assert len(take(orders, member)) == 1


def test_the_time_of_a_wait_does_not_count(tmp_path: Path, clock: ManualClock) -> None:
    seen: list[RequestAnswered] = []
    with OpenDoor(tmp_path / "data", clock=clock, observe=seen.append) as door:
        door.post("/topics", {"name": "orders", "partitions": 1})
        asking = Asking(door, poll_path(join(door), wait="20s"))
        waiting(door)
        clock.advance(21)
        asking.answer()
        door.until(lambda: seen[-1].route == "/groups/{group}/poll")

    assert seen[-1].duration_ns == 0


@pytest.mark.parametrize("member", ["", "member_id="])
def test_who_polls_is_required(orders: OpenDoor, member: str) -> None:
    answer = orders.get(f"/groups/billing/poll?{member}")

    assert (answer.status, answer.json["error"]) == (400, "member_id query param is required")


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ({"max_messages": "0"}, "invalid max_messages"),
        ({"max_messages": "10001"}, "invalid max_messages"),
        ({"limit": "0"}, "invalid limit"),
        ({"limit": "many"}, "invalid limit"),
        ({"limit": "1", "max_messages": "1"}, "max_messages and limit are two names"),
        ({"max_bytes": "0"}, "invalid max_bytes"),
        ({"wait": "5"}, "invalid timeout format"),
        ({"wait": "1s", "timeout": "1s"}, "timeout and wait are two names"),
        ({"generation": "first"}, "invalid generation"),
        ({"visibility_timeout": "5"}, "invalid visibility_timeout"),
        ({"visibility_timeout": "0s"}, "invalid visibility_timeout"),
        ({"visibility_timeout": "13h"}, "invalid visibility_timeout"),
        ({"encoding": "hex"}, "invalid encoding"),
    ],
)
def test_a_query_that_makes_no_sense_is_refused(orders: OpenDoor, query: dict[str, str], words: str) -> None:
    answer = orders.get(poll_path(join(orders), **query))

    assert (answer.status, answer.code) == (400, "INVALID_REQUEST")
    assert answer.json["error"].startswith(words)


def test_strangers_and_members_of_another_generation_get_nothing(orders: OpenDoor) -> None:
    member = join(orders)

    stranger, old = orders.get(poll_path("stranger")), orders.get(poll_path(member, generation=0))

    assert (stranger.status, stranger.code) == (404, "NOT_GROUP_MEMBER")
    assert (old.status, old.code) == (409, "INVALID_GENERATION")
    assert orders.get(poll_path(member, generation=1)).status == 200


def test_a_poll_with_the_number_of_the_last_one_brings_the_same_messages_with_new_receipts(orders: OpenDoor) -> None:
    publish(orders, "a", "b", "c")
    member = join(orders)
    (lost,) = take(orders, member, number=1, max_messages=1)

    (again,) = take(orders, member, number=1, max_messages=1)

    assert (again["value"], again["delivery_count"]) == ("a", 1)
    assert settle(orders, "ack", lost).code == "RECEIPT_HANDLE_EXPIRED"
    assert settle(orders, "ack", again).status == 200
    assert values(poll(orders, member, number=2)) == ["b", "c"]


@pytest.mark.parametrize("number", ["0", "-1", "x", str(2**63)])
def test_a_number_that_no_poll_can_have_is_refused(orders: OpenDoor, number: str) -> None:
    refused = orders.get(poll_path(join(orders), number=number))

    assert (refused.status, refused.code) == (400, "INVALID_REQUEST")


def test_a_group_that_commits_offsets_has_no_receipts(orders: OpenDoor) -> None:
    publish(orders, "a", "b")
    member = join(orders, ack="offsets", auto_commit=False)

    polled = poll(orders, member)

    assert [message.keys() & {"receipt_handle", "deadline"} for message in polled["messages"]] == [set(), set()]
    assert (polled["messages"][0]["delivery_count"], polled["in_flight"]) == (1, 0)
    assert polled["next_offset"] == {"orders-0": 2}
    assert values(poll(orders, member)) == []


def test_damage_is_named_once_and_the_group_is_done_with_it(orders: OpenDoor) -> None:
    publish(orders, "a-value", "b-value", "c-value")
    flip(orders.data, "orders", b"b-value")
    member = join(orders)

    polled = [poll(orders, member), poll(orders, member), poll(orders, member)]

    gap = {"topic": "orders", "partition": 0, "first_offset": 1, "next_offset": 2, "reason": "checksum mismatch"}
    assert [gap for one in polled for gap in one.get("gaps", [])] == [gap]
    messages = [message for one in polled for message in one["messages"]]
    assert [message["value"] for message in messages] == ["a-value", "c-value"]
    for message in messages:
        settled = settle(orders, "ack", message)
    assert settled.json["committed_offset"] == 3


def test_a_value_that_cannot_be_decompressed_is_an_error_that_can_be_settled(orders: OpenDoor) -> None:
    records = kernel.encode([b"not compressed", b"fine"], flags=[Flags.COMPRESSED, 0])
    orders.inside(lambda: orders.broker.messages.publish_records("orders", 0, records))
    orders.until(lambda: orders.broker.topics.describe("orders").partitions[0].high_watermark == 2)

    first, second = poll(orders, join(orders))["messages"]

    assert (first["value"], first["code"], second["value"]) == (None, "CORRUPT_RECORD", "fine")
    assert settle(orders, "reject", first).status == 200


def test_a_poll_takes_up_to_10_000_messages(door: OpenDoor) -> None:
    door.post("/topics", {"name": "orders", "partitions": 1})
    for _ in range(2):
        door.post("/topics/orders/messages", {"messages": [{"value": ""}] * 6_000})
    member = join(door, max_in_flight=20_000)

    assert len(poll(door, member, max_messages=10_000)["messages"]) == 10_000
