"""Delays and schedules through the client: found, cancelled, put off, and delivered once when they are due."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from goqueue import AlreadyExists, Client, GoQueueError, InvalidRequest, MessageNotFound, TopicNotFound

FAR = "1h"


@pytest.fixture
def topic(gq: Client) -> Iterator[str]:
    gq.create_topic("t", partitions=2)
    yield "t"
    for group in gq.groups():
        gq.delete_group(group)


def test_delayed_messages_are_listed_by_due_time(gq: Client, topic: str) -> None:
    for minutes in (30, 10, 20):
        gq.publish(topic, b"%d" % minutes, key="a" if minutes == 20 else None, delay=f"{minutes}m")

    found = gq.delayed(topic)
    assert [one.deliver_at_ns for one in found] == sorted(one.deliver_at_ns for one in found)
    assert {one.state for one in found} == {"pending"}
    assert [one.key for one in gq.delayed(topic, key="a")] == [b"a"]
    assert gq.delayed(topic, skip=1, limit=1) == found[1:2]
    assert gq.delayed("missing") == []
    assert gq.delay_stats().by_topic[topic] == 3


def test_what_is_cancelled_is_never_delivered(gq: Client, topic: str) -> None:
    first, second = (gq.publish(topic, b"v", key="k", delay=FAR) for _ in range(2))
    gq.publish(topic, b"v", key="other", delay=FAR)

    assert [one.offset for one in gq.cancel(first)] == [first.offset]
    with pytest.raises(MessageNotFound):
        gq.cancel(first)
    assert [one.offset for one in gq.cancel(topic, key="k")] == [second.offset]
    assert gq.cancel(topic, key=b"k") == []
    (left,) = gq.delayed(topic)
    assert gq.cancel(left)[0].key == b"other"
    assert gq.delayed(topic) == []
    assert {one.state for one in gq.delayed(topic, state="cancelled")} == {"cancelled"}


def test_what_is_put_off_or_brought_forward_is_delivered_then(gq: Client, topic: str) -> None:
    soon = gq.publish(topic, b"soon", delay=FAR)
    gq.publish(topic, b"later", key="k", delay="200ms")
    at = datetime.now(UTC) + timedelta(hours=2)
    (put_off,) = gq.reschedule(topic, key="k", deliver_at=at)
    assert abs(put_off.deliver_at_ns / 1e9 - at.timestamp()) < 0.001
    gq.reschedule(soon, delay=0)

    with gq.consumer(topic, group="g") as consumer:
        assert [message.value for message in consumer.poll(timeout="10s")] == [b"soon"]
        assert consumer.poll(timeout="300ms") == []


def test_many_are_cancelled_and_put_off_in_one_request(gq: Client, topic: str) -> None:
    with gq.producer() as producer:
        handles = [producer.send(topic, b"v", partition=0, delay=FAR) for _ in range(20_000)]
    offsets = [handle.result().offset for handle in handles]

    assert len(gq.cancel_many(topic, 0, offsets[::2])) == 10_000
    assert gq.cancel_many(topic, 0, offsets[::2]) == []
    assert len(gq.reschedule_many(topic, 0, offsets, delay="2h")) == 10_000
    assert gq.delay_stats().by_topic[topic] == 10_000


WRONG: dict[str, tuple[type[GoQueueError], Any]] = {
    "cancel a topic without a key": (InvalidRequest, lambda gq: gq.cancel("t")),
    "no time": (InvalidRequest, lambda gq: gq.reschedule("t", key="k")),
    "two times": (InvalidRequest, lambda gq: gq.reschedule("t", key="k", delay=1, deliver_at="1h ago")),
    "a delay without a unit": (InvalidRequest, lambda gq: gq.reschedule("t", key="k", delay="5")),
    "a state that does not exist": (InvalidRequest, lambda gq: gq.delayed("t", state="lost")),
    "a limit that is text": (InvalidRequest, lambda gq: gq.delayed("t", limit="many")),
    "an offset past all numbers": (InvalidRequest, lambda gq: gq.cancel_many("t", 0, [2**80])),
    "a cron that is none": (InvalidRequest, lambda gq: gq.schedule("t", b"v", name="n", cron="at nine")),
    "neither cron nor every": (InvalidRequest, lambda gq: gq.schedule("t", b"v", name="n")),
    "a zone that does not exist": (
        InvalidRequest,
        lambda gq: gq.schedule("t", b"v", name="n", cron="@daily", timezone="Mars/Base"),
    ),
    "a schedule that is not there": (GoQueueError, lambda gq: gq.describe_schedule("t", "missing")),
    "a topic that is not there": (TopicNotFound, lambda gq: gq.schedule("missing", b"v", name="n", every="1h")),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_is_wrong_is_refused(gq: Client, topic: str, what: str) -> None:
    error, use = WRONG[what]
    with pytest.raises(error):
        use(gq)
    assert gq.schedules(topic) == []


def test_a_schedule_publishes_pauses_and_goes_on(gq: Client, topic: str) -> None:
    large = b"x" * 200_000
    made = gq.schedule(topic, large, name="n", every="1h", key="k", headers={"a": "b"}, priority="high", partition=1)
    assert (made.name, made.topic, made.every_ns, made.paused) == ("n", topic, 3_600 * 10**9, False)
    with pytest.raises(AlreadyExists):
        gq.schedule(topic, b"v", name="n", every="1h")
    assert gq.schedule(topic, b"v", name="n", every="2h", exist_ok=True).every_ns == made.every_ns

    assert gq.run_schedule(topic, "n").runs == 1
    (message,) = gq.read(topic)
    assert (message.value, message.key, message.partition) == (large, b"k", 1)
    assert (message.headers["a"], message.priority.name) == ("b", "HIGH")
    assert gq.pause_schedule(topic, "n").paused
    assert not gq.resume_schedule(topic, "n").paused
    assert [one.name for one in gq.schedules(topic)] == ["n"]
    (run,) = gq.describe_schedule(topic, "n").history
    assert (run.partition, run.offset, run.error) == (1, message.offset, "")
    gq.delete_schedule(topic, "n")
    assert gq.schedules(topic) == []


def test_a_schedule_publishes_by_itself(gq: Client, topic: str) -> None:
    gq.schedule(topic, "tick", name="n", every="1s", ttl="1m")
    with gq.consumer(topic, group="g") as consumer:
        (message,) = consumer.poll(1, timeout="10s")
        assert message.text() == "tick"
    gq.delete_schedule(topic, "n")


def test_one_delayed_message_is_looked_at(gq: Client, topic: str) -> None:
    done = gq.publish(topic, b"v", delay="1h")

    assert gq.delayed_message(topic, done.offset, partition=done.partition).state == "pending"
    gq.cancel(done)
    assert gq.delayed_message(topic, done.offset, partition=done.partition).state == "cancelled"


def test_a_schedule_gets_other_times(gq: Client, topic: str) -> None:
    gq.schedule(topic, b"v", name="nightly", every="1h")

    altered = gq.alter_schedule(topic, "nightly", cron="0 9 * * MON", timezone="Europe/Berlin")

    assert (altered.cron, altered.every_ns, altered.timezone) == ("0 9 * * MON", None, "Europe/Berlin")
    assert gq.alter_schedule(topic, "nightly", every="90s").every_ns == 90 * 10**9
