"""Groups and dead letters from outside: looked at, reset, deleted, put back."""

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from goqueue import Client, GroupNotFound, InvalidRequest, Message, OffsetOutOfRange, TopicNotFound
from goqueue.testing import EmbeddedBroker
from goqueue.wire.reports import DeadLetter
from tests.client.test_consumer import eventually, floor


@pytest.fixture
def one(gq: Client) -> Iterator[Client]:
    """A topic of one partition, with ten messages."""
    gq.create_topic("t", partitions=1, backoff_initial="10ms", max_deliveries=1)
    gq.publish_many("t", [(b"k%d" % (number % 2), b"%d" % number) for number in range(10)])
    yield gq
    for group in gq.groups():
        gq.delete_group(group)


def test_a_group_is_described_with_its_members(one: Client) -> None:
    with one.consumer("t", group="g", mode="shared", ack="each") as consumer:
        consumer.poll(3)
        info = one.describe_group("g")
        assert one.groups() == ["g"]
        assert (info.group, info.state, info.mode, info.topics, info.lag) == ("g", "Stable", "shared", ["t"], 10)
        (member,) = info.members
        assert (member.member_id, member.in_flight) == (consumer.member_id, 3)
        assert [str(one) for one in member.partitions] == ["t-0"]
    assert one.describe_group("g").state == "Empty"


def test_what_is_not_there_is_told(one: Client) -> None:
    for use in (one.describe_group, one.delete_group, one.blocked_keys, one.rebalances):
        with pytest.raises(GroupNotFound):
            use("missing")
    with pytest.raises(GroupNotFound):
        one.reset_group("missing", "earliest")
    assert one.group_positions("missing") == []
    with pytest.raises(TopicNotFound):
        one.lanes(topic="missing")


def test_positions_are_reset_to_the_ends_an_offset_or_a_time(one: Client) -> None:
    middle = datetime.now(UTC)
    one.publish_many("t", [b"10", b"11"])
    with one.consumer("t", group="g") as consumer:
        consumer.ack(consumer.poll())
    assert floor(one) == 12

    for to, offset in (("earliest", 0), ("latest", 12), (7, 7), (0, 0), (12, 12), (middle, 10), ("1h ago", 0)):
        before = floor(one)
        (plan,) = one.reset_group("g", to, topic="t", partition=0, dry_run=True)
        assert (plan.offset, plan.old_offset, floor(one)) == (offset, before, before)
        one.reset_group("g", to)
        assert floor(one) == offset
    with pytest.raises(OffsetOutOfRange, match=r"offset 999 is outside \[0, 12\] of t-0"):
        one.reset_group("g", 999)
    with pytest.raises(InvalidRequest):
        one.reset_group("g", "yesterday")
    with pytest.raises(InvalidRequest):
        one.reset_group("g", -1)


def test_a_key_that_is_held_back_is_told(one: Client) -> None:
    with one.consumer("t", group="g", mode="key-shared") as consumer:
        batch = consumer.poll(1)
        consumer.poll(timeout=0)
        blocked = {one.key: one for one in one.blocked_keys("g")}
        assert blocked[b"k0"].offset == batch[0].offset
        assert blocked[b"k0"].member_id == consumer.member_id


def test_lanes_are_counted(one: Client) -> None:
    one.publish("t", b"now", priority="critical")
    with one.consumer("t", group="g") as consumer:
        consumer.poll(1)
        (report,) = one.lanes(topic="t", group="g")
        assert (report.topic, report.in_flight, sum(report.pending)) == ("t", [1, 0, 0, 0, 0], 11)


def reject(one: Client, reason: str, count: int) -> None:
    with one.consumer("t", group="g") as consumer:
        consumer.reject(consumer.poll(count), reason=reason)


def test_dead_letters_are_listed_counted_and_put_back(one: Client) -> None:
    reject(one, "bad", 4)
    reject(one, "worse", 2)

    queue = one.describe_dead_letters("t")
    assert (queue.messages, queue.by_reason, queue.by_group) == (6, {"REJECTED": 6}, {"g": 6})
    assert queue.by_error == {"bad": 4, "worse": 2}
    assert [one.topic for one in one.dead_letter_queues()] == ["t"]
    assert {letter.error for letter in one.dead_letters("t", where={"error_contains": "wor"})} == {"worse"}
    assert len(one.dead_letters("t", where={"key": "k0"})) == 3
    assert len(one.dead_letters("t", where={"key_prefix": b"k"}, skip=1, limit=2)) == 2
    assert one.dead_letters("t", where={"to_time": "1h ago"}) == []
    letter = one.dead_letters("t")[0]
    assert isinstance(letter, DeadLetter)
    assert (letter.origin_topic, letter.origin_partition) == ("t", 0)

    plan = one.plan_redrive("t", where={"error_contains": "bad"})
    assert (plan.matched, plan.skipped_loop) == (4, 0)
    started = one.redrive("t", where={"error_contains": "bad"})
    eventually(lambda: one.describe_redrive("t", started.id).state == "done")
    assert one.describe_redrive("t", started.id).redriven == 4
    assert one.describe_dead_letters("t").messages == 2
    with one.consumer("t", group="g") as consumer:
        again: list[Message] = []
        while len(again) < 8:
            again += consumer.poll(timeout="5s")
        assert sorted(int(message.value) for message in again) == [0, 1, 2, 3, 6, 7, 8, 9]
    one.delete_topic("t.dlq")


def test_a_redrive_is_for_the_group_that_gave_messages_up_or_for_all(one: Client) -> None:
    one.create_topic("u", partitions=1)
    one.publish("u", b"a")
    with one.consumer("u", group="billing") as billing, one.consumer("u", group="audit") as audit:
        audit.ack(audit.poll(timeout=5))
        billing.reject(billing.poll(timeout=5))

        assert one.plan_redrive("u", to="group").matched == 1
        assert one.redrive("u").to == "group"
        again = billing.poll(timeout=5)
        assert [(message.value, message.headers["gq-for-group"]) for message in again] == [(b"a", "billing")]
        assert audit.poll(timeout=0) == []

        billing.reject(again)
        assert one.redrive("u", to="all").to == "all"
        assert [message.value for message in billing.poll(timeout=5)] == [b"a"]
        assert [message.value for message in audit.poll(timeout=5)] == [b"a"]

    with pytest.raises(InvalidRequest):
        one.redrive("u", to="nobody")  # type: ignore[arg-type]


def test_a_redrive_that_is_slow_can_be_stopped(one: Client) -> None:
    reject(one, "bad", 10)
    started = one.redrive("t", rate=1)
    stopped = one.stop_redrive("t", started.id)
    assert stopped.state in ("stopped", "running")
    eventually(lambda: one.describe_redrive("t", started.id).state == "stopped")
    assert one.describe_redrive("t", started.id).redriven < 10
    one.delete_topic("t.dlq")


def test_a_filter_that_does_not_exist_is_named(one: Client) -> None:
    with pytest.raises(InvalidRequest, match="'colour'") as caught:
        one.redrive("t", where={"colour": "red"})
    assert caught.value.path == "where.colour"
    for verb in (one.redrive, one.plan_redrive, one.dead_letters):
        with pytest.raises(InvalidRequest, match="did you mean reason") as caught:
            verb("t", where={"reasn": "TIMEOUT"})
        assert caught.value.nearest == "reason"
    with pytest.raises(InvalidRequest, match="from_time"):
        one.dead_letters("t", where={"from_time": "soon"})
    with pytest.raises(InvalidRequest):
        one.dead_letters("t", where={"partition": "first"})
    with pytest.raises(InvalidRequest):
        one.redrive("t", rate=-1)


def test_a_position_leaves_out_what_is_pending_and_nothing_else(one: Client) -> None:
    later = one.publish("t", b"later", delay="1h")
    one.publish_many("t", [b"11", b"12"])
    one.commit_group("g", {("t", 0): 13})
    assert floor(one) == later.offset == 10
    assert [(done.topic, done.partition, done.ranges) for done in one.group_done_above("g")] == [("t", 0, [(11, 13)])]

    one.commit_group("h", {("t", 0): 13}, pending={("t", 0): [(2, 4), (7, 8)]})
    assert floor(one, "h") == 2
    assert [done.ranges for done in one.group_done_above("h", topic="t")] == [[(4, 7), (8, 13)]]
    one.reschedule(later, delay="1ms")  # it falls due, and is done for one of them only
    with one.consumer("t", group="g", ack="each") as consumer:
        assert [message.offset for message in consumer.poll(timeout="10s")] == [10]
    with one.consumer("t", group="h", ack="each") as consumer:
        assert [message.offset for message in consumer.poll()] == [2, 3, 7]
    assert one.group_done_above("nobody") == []


def test_a_position_goes_back_only_if_that_is_allowed(one: Client) -> None:
    one.commit_group("g", {("t", 0): 8})
    one.commit_group("g", {("t", 0): 3})
    assert floor(one) == 8

    one.commit_group("g", {("t", 0): 3}, allow_backwards=True)

    assert floor(one) == 3


@pytest.mark.parametrize("pending", [(3, 3), (-1, 2), (5, 12), (4, 3)])
def test_what_is_pending_lies_before_the_position(one: Client, pending: tuple[int, int]) -> None:
    with pytest.raises(InvalidRequest, match="must be ranges of offsets below 10"):
        one.commit_group("g", {("t", 0): 10}, pending={("t", 0): [pending]})
    assert one.groups() == []


def test_what_is_done_above_a_position_survives_a_restart(tmp_path: Path) -> None:
    with EmbeddedBroker(http=False, data=tmp_path) as broker, Client(broker.address) as gq:
        gq.create_topic("t", partitions=1)
        gq.publish_many("t", [b"0", b"1"])
        gq.publish("t", b"later", delay="1h")
        gq.publish("t", b"3")
        gq.commit_group("g", {("t", 0): 4}, pending={("t", 0): [(1, 2)]})
        broker.stop()
        broker.start()
        with Client(broker.address) as again:
            assert floor(again) == 1
            assert [done.ranges for done in again.group_done_above("g")] == [[(2, 4)]]


def test_what_became_of_messages_is_told_in_numbers(one: Client) -> None:
    before = one.reliability().acks
    with one.consumer("t", group="g") as consumer:
        consumer.ack(consumer.poll())

    assert one.reliability().acks == before + 10
