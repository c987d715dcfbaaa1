"""What an application hands over has one meaning, however it is handed over."""

import asyncio
import math
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from goqueue import AsyncClient, Client, InvalidMessage, InvalidRequest, Message

Publish = Callable[..., object]


def _asked(address: str, work: Callable[[AsyncClient], Any]) -> object:
    async def main() -> object:
        async with AsyncClient(address, timeout="10s") as gq:
            return await work(gq)

    return asyncio.run(main())


def _in_transaction(gq: Client, verb: str, topic: str, *args: Any, **kwargs: Any) -> None:
    with gq.transaction("tx") as tx:
        getattr(tx, verb)(topic, *args, **kwargs)


def _sent(gq: Client, *args: Any, **kwargs: Any) -> None:
    with gq.producer(linger="1h") as producer:
        producer.send(*args, **kwargs)


async def _sent_by_task(gq: AsyncClient, *args: Any, **kwargs: Any) -> None:
    async with gq.producer(linger="1h") as producer:
        await producer.send(*args, **kwargs)


async def _transacted_by_task(gq: AsyncClient, *args: Any, **kwargs: Any) -> None:
    async with gq.transaction("tx") as tx:
        await tx.send(*args, **kwargs)


DOORS: dict[str, Callable[[Client, str], Publish]] = {
    "publish": lambda gq, address: gq.publish,
    "send": lambda gq, address: lambda *args, **kwargs: _sent(gq, *args, **kwargs),
    "transaction.send": lambda gq, address: lambda *args, **kwargs: _in_transaction(gq, "send", *args, **kwargs),
    "transaction.publish": lambda gq, address: lambda *args, **kwargs: _in_transaction(gq, "publish", *args, **kwargs),
    "async publish": lambda gq, address: (
        lambda *args, **kwargs: _asked(address, lambda client: client.publish(*args, **kwargs))
    ),
    "async send": lambda gq, address: (
        lambda *args, **kwargs: _asked(address, lambda client: _sent_by_task(client, *args, **kwargs))
    ),
    "async transaction.send": lambda gq, address: (
        lambda *args, **kwargs: _asked(address, lambda client: _transacted_by_task(client, *args, **kwargs))
    ),
}


@pytest.fixture(params=DOORS)
def publish(request: pytest.FixtureRequest, gq: Client, address: str) -> Publish:
    gq.create_topic("t", partitions=1)
    return DOORS[request.param](gq, address)


def stored(gq: Client) -> list[Message]:
    return list(gq.read("t"))


def test_none_with_a_key_is_a_tombstone(publish: Publish, gq: Client) -> None:
    publish("t", None, key="k")
    publish("t", None, key="k", headers={"a": "b"}, ttl="1h")

    assert [(message.key, message.tombstone) for message in stored(gq)] == [(b"k", True)] * 2


def test_an_empty_key_is_a_key_and_a_header_may_have_no_value(publish: Publish, gq: Client) -> None:
    publish("t", b"v", key="", headers={"null": None, "empty": "", "bytes": b"\xff"}, created_at="2026-11-18T20:00:00Z")
    publish("t", None, key=b"")
    publish("t", b"v")

    first, second, third = stored(gq)
    assert (first.key, second.key, third.key) == (b"", b"", None)
    assert first.raw_headers == [("null", None), ("empty", b""), ("bytes", b"\xff")]
    assert first.headers == {"null": "", "empty": "", "bytes": "\udcff"}
    assert (first.created_at, third.created_at) == (datetime(2026, 11, 18, 20, tzinfo=UTC), None)
    assert second.tombstone


def test_none_without_a_key_is_refused(publish: Publish, gq: Client) -> None:
    for options in ({}, {"key": None}, {"headers": {"a": "b"}}):
        with pytest.raises(InvalidMessage, match="value is required"):
            publish("t", None, **options)

    assert stored(gq) == []


@pytest.mark.parametrize("value", [math.nan, math.inf, {"a": [1, None, -math.inf]}, [(1.5, {"x": math.nan})]])
def test_numbers_that_json_does_not_have_are_refused(publish: Publish, gq: Client, value: object) -> None:
    with pytest.raises(InvalidMessage, match="NaN and infinities"):
        publish("t", value)

    assert stored(gq) == []


def test_null_inside_of_json_and_text_that_looks_like_it_are_what_they_are(publish: Publish, gq: Client) -> None:
    publish("t", {"a": None, "b": [1.5, "null"]})

    assert stored(gq)[0].json() == {"a": None, "b": [1.5, "null"]}


WRONG: dict[str, tuple[str, dict[str, object]]] = {
    "both": ("delay and deliver_at", {"delay": "1s", "deliver_at": "2030-01-01T00:00:00Z"}),
    "both, though neither would wait": ("delay and deliver_at", {"delay": 0, "deliver_at": 0}),
    "a negative delay": ("delay", {"delay": "-1s"}),
    "a negative number as delay": ("delay", {"delay": -0.5}),
    "a delay that is no number": ("delay", {"delay": math.nan}),
    "no time to live": ("ttl", {"ttl": 0}),
    "a negative time to live": ("ttl", {"ttl": "-1h"}),
    "no time at which it was made": ("created_at", {"created_at": "yesterday"}),
    "an infinite time to live": ("ttl", {"ttl": math.inf}),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_times_that_cannot_be_meant_are_refused_by_name(publish: Publish, gq: Client, wrong: str) -> None:
    name, options = WRONG[wrong]

    with pytest.raises(InvalidMessage, match=name):
        publish("t", b"v", **options)

    assert stored(gq) == []


@pytest.mark.parametrize("options", [{"delay": 0}, {"delay": "0s"}, {"deliver_at": datetime(2020, 1, 1, tzinfo=UTC)}])
def test_no_delay_and_a_time_that_is_past_mean_now(publish: Publish, gq: Client, options: dict[str, object]) -> None:
    publish("t", b"v", **options)

    assert [message.value for message in stored(gq)] == [b"v"]
    assert gq.delayed("t") == []


def test_many_follow_the_same_rules(gq: Client, address: str) -> None:
    gq.create_topic("t", partitions=1)

    gq.publish_many("t", [b"v", ("k", None)])
    for wrong in (None, (None, None), math.nan, ("k", math.inf)):
        with pytest.raises(InvalidMessage):
            gq.publish_many("t", [b"never", wrong])
        with pytest.raises(InvalidMessage):
            _asked(address, lambda client, wrong=wrong: client.publish_many("t", [b"never", wrong]))

    assert [(message.value, message.tombstone) for message in stored(gq)] == [(b"v", False), (b"", True)]


def test_a_tombstone_has_no_value(gq: Client) -> None:
    gq.create_topic("t", partitions=1)

    gq.publish("t", b"", key="k", tombstone=True)
    gq.publish("t", None, key="k", tombstone=True)
    with pytest.raises(InvalidMessage, match="a tombstone has no value"):
        gq.publish("t", b"v", key="k", tombstone=True)

    assert [message.tombstone for message in stored(gq)] == [True, True]


def test_a_schedule_follows_the_same_rules(gq: Client) -> None:
    gq.create_topic("t", partitions=1)

    for value, options in ((None, {}), (math.nan, {}), (b"v", {"ttl": 0}), (b"v", {"ttl": "-1s"})):
        with pytest.raises(InvalidMessage):
            gq.schedule("t", value, name="s", every="1h", **options)  # type: ignore[arg-type]
    gq.schedule("t", None, name="s", every="1h", key="k")
    gq.run_schedule("t", "s")

    assert [(message.key, message.tombstone) for message in stored(gq)] == [(b"k", True)]
    gq.delete_schedule("t", "s")


def test_a_message_is_rescheduled_by_one_time_that_can_be_meant(gq: Client) -> None:
    gq.create_topic("t", partitions=1)
    waiting = gq.publish("t", b"v", delay="1h")

    for options in ({}, {"delay": "1h", "deliver_at": "2030-01-01T00:00:00Z"}, {"delay": -1}):
        with pytest.raises(InvalidRequest, match="delay"):
            gq.reschedule(waiting, **options)  # type: ignore[arg-type]
