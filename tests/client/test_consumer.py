"""Consumers against a real broker: what is polled is settled as it was asked, once, and by whom it belongs to."""

import gc
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from goqueue import (
    Client,
    Conflict,
    Consumer,
    GoQueueError,
    GroupModeConflict,
    InternalError,
    InvalidRequest,
    Message,
    ReceiptExpired,
    ReceiptUnknown,
    StaleGeneration,
    TopicNotFound,
)
from goqueue.client.prefetch import LARGE_BATCH
from goqueue.wire import verbs
from goqueue.wire.verbs import Verb
from tests.client.faulty_network import Proxy
from tests.client.test_connections import RestartingBroker

WAIT_S = 20
QUICK = {"backoff_initial": "10ms", "backoff_max": "10ms"}


def eventually(fact: Callable[[], object]) -> None:
    """Return when it is so; each look is a request, so this waits for the broker and not for a time."""
    deadline = monotonic() + WAIT_S
    while not fact():
        assert monotonic() < deadline, "it never came to be"


def values(messages: Iterable[Message]) -> list[int]:
    return [int(message.value) for message in messages]


def floor(gq: Client, group: str = "g") -> int:
    return sum(position.offset for position in gq.group_positions(group, topic="t"))


def lag(gq: Client, group: str = "g") -> int:
    return sum(position.lag for position in gq.group_positions(group, topic="t"))


def in_flight(gq: Client, group: str = "g") -> int:
    return sum(member.in_flight for member in gq.describe_group(group).members)


# --- polling and settling -----------------------------------------------------------------------


def test_messages_come_in_order_with_receipts_and_counts(one: Client) -> None:
    with one.consumer("t", group="g") as consumer:
        batch = consumer.poll()

    assert values(batch) == list(range(10))
    assert {message.delivery_count for message in batch} == {1}
    for message in batch:
        topic, partition, offset, count, _ = message.receipt.split(":")
        assert (topic, int(partition), int(offset), int(count)) == ("t", 0, message.offset, 1)
    assert len({message.receipt for message in batch}) == 10


def test_poll_brings_no_more_than_is_asked_for_and_nothing_when_there_is_nothing(one: Client) -> None:
    with one.consumer("t", group="g") as consumer:
        assert values(consumer.poll(3)) == [0, 1, 2]
        assert values(consumer.poll(max_messages=1000, timeout=1.5)) == list(range(3, 10))
        assert consumer.poll(timeout=0) == []
        assert consumer.poll(timeout=timedelta(milliseconds=1)) == []


def test_a_poll_that_waits_is_answered_by_what_is_published(one: Client) -> None:
    with ThreadPoolExecutor(1) as threads, one.consumer("t", group="g", start="latest") as consumer:
        consumer.join()
        waiting = threads.submit(consumer.poll, timeout="20s")
        one.publish("t", b"10")

        assert values(waiting.result(timeout=WAIT_S)) == [10]


WAYS: dict[str, Callable[[Consumer, list[Any]], object]] = {
    "one by one": lambda consumer, batch: [consumer.ack(message) for message in batch],
    "by themselves": lambda _, batch: [message.ack() for message in batch],
    "the whole batch": lambda consumer, batch: consumer.ack(batch),
    "a copy of it": lambda consumer, batch: consumer.ack(list(batch)),
    "in another order": lambda consumer, batch: consumer.ack(batch[::-1]),
    "in two parts": lambda consumer, batch: (consumer.ack(batch[1::2]), consumer.ack(batch[::2])),
    "a tuple": lambda consumer, batch: consumer.ack(tuple(batch)),
    "a generator": lambda consumer, batch: consumer.ack(message for message in batch),
    "one, and the rest": lambda consumer, batch: (batch[4].ack(), consumer.ack(batch[:4]), consumer.ack(batch[5:])),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("auto_extend", [True, False])
def test_what_is_acknowledged_is_done(one: Client, way: str, auto_extend: bool) -> None:
    with one.consumer("t", group="g", auto_extend=auto_extend) as consumer:
        WAYS[way](consumer, consumer.poll())

        assert floor(one) == 10
        assert in_flight(one) == 0
        assert consumer._connection.core.lease_count == 0
        consumer.ack([])


def test_messages_of_many_deliveries_and_partitions_are_settled_in_one_request(gq: Client, address: str) -> None:
    gq.create_topic("t", partitions=3)
    gq.publish_many("t", [(b"k%d" % number, b"%d" % number) for number in range(30)])

    with Proxy(address) as proxy, Client(proxy.address) as client, client.consumer("t", group="g") as consumer:
        batch: list[Any] = []
        while len(batch) < 30:
            batch += consumer.poll(4)
        assert {message.partition for message in batch} == {0, 1, 2}
        proxy.lose_answers(Verb.SETTLE, 0)
        consumer.ack(batch)

        assert sorted(values(batch)) == list(range(30))
        assert floor(gq) == 30
        assert consumer._connection.core.lease_count == 0


def test_messages_of_more_deliveries_than_fit_a_request_are_settled_all_the_same(gq: Client) -> None:
    name = "n" * 249
    gq.create_topic(name, partitions=1)
    gq.publish_many(name, [b"%d" % number for number in range(300)])
    with gq.consumer(name, group="g", visibility="2s") as consumer:
        batch: list[Any] = []
        while len(batch) < 300:
            batch += consumer.poll(1)
        assert consumer.poll(timeout="2200ms") == []
        batch[7].ack()
        with pytest.raises(ReceiptUnknown):
            consumer.ack(batch)

        assert consumer._connection.core.lease_count == 0
        assert gq.group_positions("g", topic=name)[0].offset == 300


def test_a_reason_is_cut_to_what_fits(one: Client) -> None:
    with one.consumer("t", group="g") as consumer:
        consumer.reject(consumer.poll(1), reason="x" * 100_000)
        (letter,) = one.dead_letters("t")
        assert letter.error == "x" * 1_000
    one.delete_topic("t.dlq")


def test_one_consumer_settles_what_another_has_polled(one: Client) -> None:
    with one.consumer("t", group="g") as consumer, one.consumer("t", group="g") as other:
        other.ack(consumer.poll())

        assert floor(one) == 10


def test_a_message_that_is_not_acknowledged_comes_again(one: Client) -> None:
    with one.consumer("t", group="g") as consumer:
        first, second, *rest = consumer.poll()
        consumer.ack(rest)
        first.nack(delay=0, reason="db down")
        consumer.nack([second], delay="1ms")

        again = [*consumer.poll(1, timeout=WAIT_S), *consumer.poll(1, timeout=WAIT_S)]
        assert values(again) == [0, 1]
        assert {message.delivery_count for message in again} == {2}
        assert {message.receipt.split(":")[3] for message in again} == {"2"}
        consumer.ack(again)
        assert floor(one) == 10


def test_what_is_rejected_or_fails_too_often_is_a_dead_letter(one: Client) -> None:
    with one.consumer("t", group="g") as consumer:
        first, second, *rest = consumer.poll()
        consumer.ack(rest)
        first.reject(reason="bad payload")
        for count in (1, 2, 3):
            assert second.delivery_count == count
            second.nack(delay=0, reason="again")
            if count < 3:
                (second,) = consumer.poll(timeout=WAIT_S)

        letters = {letter.origin_offset: letter for letter in one.dead_letters("t")}
        assert (letters[0].reason, letters[0].error) == ("REJECTED", "bad payload")
        assert (letters[1].reason, letters[1].error, letters[1].attempts) == ("MAX_DELIVERIES", "again", 3)
        assert letters[0].member == consumer.member_id
        eventually(lambda: floor(one) == 10)
    one.delete_topic("t.dlq")


def test_an_extension_keeps_a_message_longer_than_its_lease(one: Client) -> None:
    settings: dict[str, Any] = {"mode": "shared", "visibility": "300ms", "auto_extend": False}
    with one.consumer("t", group="g", **settings) as consumer, one.consumer("t", group="g", **settings) as other:
        batch = consumer.poll()
        consumer.extend(batch[:5], "1m")
        batch[5].extend("1m")

        expired = other.poll(4, timeout="5s")
        assert sorted(values(expired)) == [6, 7, 8, 9]
        other.ack(expired)
        assert other.poll(timeout="500ms") == []
        consumer.ack(batch[:6])
        with pytest.raises(ReceiptUnknown):
            consumer.ack(batch[6:])


# --- receipts that are no good ------------------------------------------------------------------


def test_what_is_settled_cannot_be_settled_again(one: Client) -> None:
    with one.consumer("t", group="g") as consumer:
        batch = consumer.poll()
        consumer.ack(batch)

        for use in (batch[0].ack, batch[0].reject, lambda: consumer.ack(batch), lambda: consumer.nack(batch[:2])):
            with pytest.raises(ReceiptUnknown) as caught:
                use()
            assert caught.value.reason == "settled"
        assert floor(one) == 10


def test_an_ack_of_many_of_which_one_is_settled_settles_the_others_and_says_so(one: Client) -> None:
    with one.consumer("t", group="g") as consumer:
        batch = consumer.poll()
        batch[3].ack()

        with pytest.raises(ReceiptUnknown) as caught:
            consumer.ack(batch)

        assert caught.value.offset == batch[3].offset
        assert floor(one) == 10


def test_the_same_message_twice_in_one_ack_is_settled_once(one: Client) -> None:
    with one.consumer("t", group="g") as consumer:
        batch = consumer.poll()
        consumer.ack([batch[0], batch[0], batch[0]])

        assert (floor(one), in_flight(one)) == (1, 9)
        assert consumer._connection.core.lease_count == 1


@pytest.mark.parametrize("way", ["whole", "one"])
def test_an_ack_after_the_lease_is_refused_and_the_message_is_there_again(one: Client, way: str) -> None:
    with one.consumer("t", group="g", visibility="50ms", auto_extend=False) as consumer:
        late = consumer.poll()
        again: list[Any] = []
        while len(again) < 10:
            again += consumer.poll(timeout=WAIT_S)

        if way == "whole":
            consumer._last = type(consumer._last)(late, [late[0].origin])
        with pytest.raises(ReceiptExpired):
            consumer.ack(late if way == "whole" else late[0])
        assert {message.delivery_count for message in again} == {2}


def test_a_reset_ends_the_leases(one: Client) -> None:
    with one.consumer("t", group="g") as consumer:
        batch = consumer.poll()
        one.reset_group("g", "earliest")

        with pytest.raises((ReceiptExpired, ReceiptUnknown)):
            consumer.ack(batch)
        assert values(consumer.poll(timeout=WAIT_S)) == list(range(10))


# --- leases that are extended -------------------------------------------------------------------


@pytest.mark.parametrize("visibility", ["500ms", "1s"])
def test_long_work_keeps_its_lease(one: Client, visibility: str) -> None:
    with (
        one.consumer("t", group="g", mode="shared", visibility=visibility) as consumer,
        one.consumer("t", group="g", mode="shared") as other,
    ):
        batch = consumer.poll()
        assert other.poll(timeout="2500ms") == []

        consumer.ack(batch)
        assert floor(one) == 10


def test_the_visibility_of_the_topic_is_extended_too(gq: Client) -> None:
    gq.create_topic("t", partitions=1, visibility_timeout="600ms")
    gq.publish("t", b"0")
    with gq.consumer("t", group="g", mode="shared") as consumer, gq.consumer("t", group="g", mode="shared") as other:
        other.join()
        (message,) = consumer.poll()
        assert other.poll(timeout="1800ms") == []
        message.ack()


def test_what_nobody_has_any_more_is_not_extended(one: Client) -> None:
    with one.consumer("t", group="g", visibility="2s") as consumer:
        kept = consumer.poll(1)
        while consumer.poll(2, timeout=0):
            pass
        gc.collect()
        assert consumer._connection.core.lease_count == 1

        again = consumer.poll(8, timeout=WAIT_S)
        assert again
        assert kept[0].offset not in values(again)
        consumer.ack(kept)


def test_what_is_settled_is_not_extended_and_forgotten(one: Client) -> None:
    with one.consumer("t", group="g", visibility="100ms") as consumer:
        batch = consumer.poll()
        consumer.ack(batch[:9])
        assert consumer._connection.core.lease_count == 1
        extended = one.describe_group("g").members[0].in_flight
        assert extended == 1
        batch[9].nack(delay="1h")

        assert consumer._connection.core.lease_count == 0
        assert consumer._connection.core.next_extension_ns() is None


def test_an_extension_by_hand_is_not_cut_short_by_one_that_is_not(one: Client) -> None:
    with (
        one.consumer("t", group="g", mode="shared", visibility="200ms") as consumer,
        one.consumer("t", group="g", mode="shared") as other,
    ):
        batch = consumer.poll()
        consumer.extend(batch, "1h")
        assert other.poll(timeout="500ms") == []
        del batch
        consumer._last = type(consumer._last)([])
        gc.collect()

        assert other.poll(timeout="500ms") == []


# --- positions ----------------------------------------------------------------------------------


def test_positions_are_committed_by_hand(one: Client) -> None:
    with one.consumer("t", group="g", ack="offsets") as consumer:
        assert values(consumer.poll(4)) == [0, 1, 2, 3]
        consumer.commit()
        assert floor(one) == 4
        assert values(consumer.poll(3)) == [4, 5, 6]
        with pytest.raises(Conflict, match="positions"):
            consumer.ack(consumer.poll(1))

    with one.consumer("t", group="g", ack="offsets") as consumer:
        assert values(consumer.poll()) == [4, 5, 6, 7, 8, 9]
        consumer.commit()
        consumer.commit()
    assert floor(one) == 10


def test_a_consumer_goes_back_and_polls_from_there(one: Client) -> None:
    with one.consumer("t", group="g", ack="offsets") as consumer:
        assert len(consumer.poll()) == 10
        consumer.commit()
        consumer.commit({("t", 0): 3})
        assert floor(one) == 10

        consumer.commit({("t", 0): 3}, allow_backwards=True)

        assert floor(one) == 3
        assert values(consumer.poll()) == [3, 4, 5, 6, 7, 8, 9]


def test_positions_are_committed_by_themselves_when_a_consumer_leaves(one: Client) -> None:
    with one.consumer("t", group="g", ack="auto") as consumer:
        assert values(consumer.poll(4)) == [0, 1, 2, 3]

    assert floor(one) == 4


def test_a_consumer_that_settles_has_no_positions_to_commit(one: Client) -> None:
    with one.consumer("t", group="g") as consumer:
        consumer.poll(1)
        with pytest.raises(Conflict, match="one by one"):
            consumer.commit()


def test_a_commit_leaves_out_what_was_taken_away(gq: Client) -> None:
    gq.create_topic("t", partitions=2)
    gq.publish_many("t", [(b"k%d" % number, b"%d" % number) for number in range(20)])
    with gq.consumer("t", group="g", ack="offsets") as consumer, gq.consumer("t", group="g", ack="offsets") as other:
        batch = consumer.poll()
        batch += consumer.poll(timeout=0)
        assert len(batch) == 20
        other.join()
        consumer.poll(timeout=0)
        assert len(consumer.partitions) == 1
        consumer.commit()

        mine = consumer.partitions[0].partition
        offsets = {position.partition: position.offset for position in gq.group_positions("g")}
        assert offsets[mine] == sum(message.partition == mine for message in batch)
        assert offsets[1 - mine] == 0
        assert len(other.poll(timeout=WAIT_S)) == 20 - offsets[mine]


def test_what_was_done_is_committed_before_a_partition_is_given_back(gq: Client) -> None:
    gq.create_topic("t", partitions=2)
    gq.publish_many("t", [(b"k%d" % number, b"%d" % number) for number in range(20)])
    with gq.consumer("t", group="g", ack="auto") as consumer, gq.consumer("t", group="g", ack="auto") as other:
        seen = values(consumer.poll()) + values(consumer.poll(timeout=0))
        other.join()
        consumer.poll(timeout=0)

        assert other.poll(timeout="200ms") == []
        assert sorted(seen) == list(range(20))


# --- rebalances ---------------------------------------------------------------------------------


def test_two_that_poll_share_the_partitions_at_once(gq: Client) -> None:
    gq.create_topic("t", partitions=4)
    over = threading.Event()

    def work(consumer: Consumer) -> None:
        while not over.is_set():
            consumer.poll(timeout="20s")

    first, second = gq.consumer("t", group="two"), gq.consumer("t", group="two")
    with ThreadPoolExecutor(2) as threads, second, first:
        first.join()
        working = [threads.submit(work, first)]
        second.join()
        began = monotonic()
        working.append(threads.submit(work, second))
        eventually(lambda: gq.describe_group("two").state == "Stable")
        eventually(lambda: gq.groups() and {len(first.partitions), len(second.partitions)} == {2})
        assert monotonic() - began < 10  # far less than the polls wait
        assert gq.rebalances("two").last_rebalance_duration_ms < 5_000
        assert gq.rebalances("two").total_partitions_revoked == 2

        over.set()
        first.close()
        eventually(lambda: gq.groups() and len(second.partitions) == 4)
    assert {type(one.exception(timeout=WAIT_S)) for one in working} == {Conflict}


def test_acks_of_a_partition_that_moved_are_good(gq: Client) -> None:
    gq.create_topic("t", partitions=2)
    gq.publish_many("t", [(b"k%d" % number, b"%d" % number) for number in range(20)])
    with gq.consumer("t", group="g") as first, gq.consumer("t", group="g") as second:
        batch = first.poll()
        batch += first.poll(timeout=0)
        second.join()
        first.poll(timeout=0)
        second.poll(timeout=0)
        assert len(first.partitions) == len(second.partitions) == 1

        first.ack(batch)
        assert lag(gq) == 0


def test_whoever_comes_later_under_the_same_id_takes_over(one: Client) -> None:
    first, second = (one.consumer("t", group="g", member_id="worker") for _ in range(2))
    with second:
        batch = first.poll(2)
        second.poll(2)
        for _ in range(2):
            with pytest.raises(StaleGeneration):
                first.poll()
        first.ack(batch)
        first.close()

        assert [member.member_id for member in one.describe_group("g").members] == ["worker"]
        assert values(second.poll()) == [4, 5, 6, 7, 8, 9]


def test_a_member_with_its_own_id_keeps_its_partitions_over_a_restart(gq: Client) -> None:
    gq.create_topic("t", partitions=4)
    with gq.consumer("t", group="g", member_id="a") as first, gq.consumer("t", group="g", member_id="b") as second:
        first.join()
        second.join()
        first.poll(timeout=0)
        second.poll(timeout=0)
        mine = second.partitions
        rebalances = gq.rebalances("g").total_rebalances

        with gq.consumer("t", group="g", member_id="b") as again:
            again.join()
            assert again.partitions == mine
            assert gq.rebalances("g").total_rebalances == rebalances


def test_a_deleted_group_is_joined_again(one: Client) -> None:
    with one.consumer("t", group="g") as consumer:
        consumer.ack(consumer.poll(4))
        one.delete_group("g")

        assert values(consumer.poll()) == list(range(10))


def test_a_consumer_that_is_put_out_comes_back(one: Client) -> None:
    with one.consumer("t", group="g") as consumer:
        batch = consumer.poll(4)
        one._loop.run(one._client._call("groups.leave", None, group="g", member_id=consumer.member_id))

        assert values(consumer.poll(timeout=WAIT_S))[:4] == [0, 1, 2, 3]
        with pytest.raises((ReceiptExpired, ReceiptUnknown)):
            consumer.ack(batch)


def test_a_member_that_wants_another_mode_is_told_which_one_the_group_has(one: Client) -> None:
    with one.consumer("t", group="g") as consumer:
        consumer.join()
        with one.consumer("t", group="g", mode="shared") as other, pytest.raises(GroupModeConflict) as caught:
            other.poll()
        assert (caught.value.setting, caught.value.asked, caught.value.current) == ("mode", "shared", "partitioned")


# --- misuse -------------------------------------------------------------------------------------


WRONG: dict[str, tuple[str, Callable[[Client, Consumer, Any], object]]] = {
    "no message": ("messages", lambda gq, consumer, message: consumer.ack(None)),
    "text": ("messages", lambda gq, consumer, message: consumer.ack("message")),
    "a number among messages": ("messages", lambda gq, consumer, message: consumer.nack([message, 7])),
    "max_messages of 0": ("max_messages", lambda gq, consumer, message: consumer.poll(0)),
    "max_messages of 10001": ("max_messages", lambda gq, consumer, message: consumer.poll(10_001)),
    "max_messages as text": ("max_messages", lambda gq, consumer, message: consumer.poll("10")),
    "a timeout without a unit": ("timeout", lambda gq, consumer, message: consumer.poll(timeout="5")),
    "an extension without a unit": ("by", lambda gq, consumer, message: message.extend("5")),
    "an extension of nothing": ("by", lambda gq, consumer, message: message.extend(0)),
    "an extension of 13 hours": ("by", lambda gq, consumer, message: message.extend("13h")),
    "a delay without a unit": ("delay", lambda gq, consumer, message: message.nack(delay="5")),
    "a reason that is no text": ("reason", lambda gq, consumer, message: message.nack(reason=ValueError("x"))),
    "no topic": ("topics", lambda gq, consumer, message: gq.consumer([], group="g")),
    "a topic that is no text": ("topics", lambda gq, consumer, message: gq.consumer([b"t"], group="g")),
    "no group": ("group", lambda gq, consumer, message: gq.consumer("t", group="")),
    "a group that is no text": ("group", lambda gq, consumer, message: gq.consumer("t", group=None)),
    "an ack that does not exist": ("ack", lambda gq, consumer, message: gq.consumer("t", group="g", ack="all")),
    "no member id": ("member_id", lambda gq, consumer, message: gq.consumer("t", group="g", member_id="")),
    "a visibility of nothing": (
        "visibility",
        lambda gq, consumer, message: gq.consumer("t", group="g", visibility=0),
    ),
    "a visibility without a unit": (
        "visibility",
        lambda gq, consumer, message: gq.consumer("t", group="g", visibility="5"),
    ),
    "a session that never lived": (
        "session_timeout",
        lambda gq, consumer, message: gq.consumer("t", group="g", session_timeout="-1s"),
    ),
    "an interval of 0": (
        "auto_commit_interval",
        lambda gq, consumer, message: gq.consumer("t", group="g", auto_commit_interval=0),
    ),
    "max_in_flight of 0": (
        "max_in_flight",
        lambda gq, consumer, message: gq.consumer("t", group="g", max_in_flight=0),
    ),
    "a mode that does not exist": ("mode", lambda gq, consumer, message: gq.consumer("t", group="h", mode="x").join()),
    "a start that does not exist": (
        "start",
        lambda gq, consumer, message: gq.consumer("t", group="h", start="middle").join(),
    ),
    "an assignor that does not exist": (
        "assignor",
        lambda gq, consumer, message: gq.consumer("t", group="h", assignor="fair").join(),
    ),
    "a mode that is no text": ("mode", lambda gq, consumer, message: gq.consumer("t", group="h", mode=3)),
    "a stop that does not exist": ("stop", lambda gq, consumer, message: gq.consume("t", group="g", stop="end")),
    "a limit below nothing": ("limit", lambda gq, consumer, message: gq.consume("t", group="g", limit=-1)),
    "a batch of 0": ("batch", lambda gq, consumer, message: gq.consume("t", group="g", batch=0)),
    "an idle without a unit": ("idle", lambda gq, consumer, message: gq.consume("t", group="g", idle="5")),
}


def test_what_is_wrong_is_named(one: Client) -> None:
    with one.consumer("t", group="g") as consumer:
        batch = consumer.poll()
        for what, (argument, use) in WRONG.items():
            with pytest.raises(InvalidRequest) as caught:
                use(one, consumer, batch[0])
            assert getattr(caught.value, "path", None) == argument, what
            assert argument in str(caught.value), what

        consumer.ack(batch)
        assert floor(one) == 10


def test_a_topic_that_is_not_there_is_told(one: Client) -> None:
    with one.consumer("missing", group="g") as consumer:
        for _ in range(2):
            with pytest.raises(TopicNotFound):
                consumer.poll()


# --- what a consumer shows ----------------------------------------------------------------------


def test_messages_come_with_the_more_urgent_ones_first(gq: Client) -> None:
    gq.create_topic("t", partitions=2)
    for number in range(20):
        gq.publish("t", b"%d" % number, partition=number % 2, priority="high" if number % 5 == 0 else None)

    with gq.consumer("t", group="g") as consumer:
        batch = consumer.poll()
        priorities = [message.priority_code for message in batch]
        assert priorities == sorted(priorities)
        assert consumer.partitions != []


def test_a_consumer_shows_what_it_is(one: Client) -> None:
    consumer = one.consumer("t", group="g", member_id="me")
    assert repr(consumer) == "<Consumer me of g, not joined>"
    consumer.join()
    assert repr(consumer) == "<Consumer me of g, joined>"
    consumer.close()
    assert repr(consumer) == "<Consumer me of g, closed>"


# --- outages ------------------------------------------------------------------------------------


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[RestartingBroker]:
    with RestartingBroker(tmp_path / "data") as broker:
        yield broker


def test_the_same_member_goes_on_after_a_restart_and_its_acks_are_good(broker: RestartingBroker) -> None:
    with Client(broker.address) as gq:
        gq.create_topic("t", partitions=2)
        gq.publish_many("t", [(b"k%d" % number, b"%d" % number) for number in range(20)])
        with gq.consumer("t", group="g") as consumer:
            batch = consumer.poll(20) + consumer.poll(20, timeout=0)
            assert len(batch) == 20
            broker.restart()
            consumer.ack(batch[:10])
            broker.restart()
            assert consumer.poll(timeout=0) == []
            assert [member.member_id for member in gq.describe_group("g").members] == [consumer.member_id]
            consumer.ack(batch[10:])

            assert lag(gq) == 0
            gq.publish("t", b"20")
            assert values(consumer.poll(timeout=WAIT_S)) == [20]


def test_a_poll_waits_through_an_outage(broker: RestartingBroker) -> None:
    with Client(broker.address) as gq, ThreadPoolExecutor(1) as threads:
        gq.create_topic("t", partitions=1)
        with gq.consumer("t", group="g") as consumer:
            consumer.join()
            waiting = threads.submit(consumer.poll, timeout="20s")
            eventually(lambda: gq.groups() and consumer._connection.is_busy)
            broker.restart()
            gq.publish("t", b"0")

            assert values(waiting.result(timeout=WAIT_S)) == [0]


def test_acks_in_the_background_wait_through_an_outage(broker: RestartingBroker) -> None:
    with Client(broker.address) as gq:
        gq.create_topic("t", partitions=1)
        gq.publish_many("t", [b"%d" % number for number in range(10)])
        with gq.consumer("t", group="g") as consumer:
            batch = consumer.poll()
            broker.stop()
            for message in batch:
                with message:
                    pass
            broker.start()
        assert floor(gq) == 10


def test_a_consumer_closes_in_time_though_the_broker_is_gone(broker: RestartingBroker) -> None:
    with Client(broker.address) as gq:
        gq.create_topic("t", partitions=1)
        consumer = gq.consumer("t", group="g")
        consumer.poll(timeout=0)
        broker.stop()
        began = monotonic()
        consumer.close()
        assert monotonic() - began < 10


@pytest.fixture
def proxied(one: Client, address: str) -> Iterator[tuple[Proxy, Client]]:
    with Proxy(address) as proxy, Client(proxy.address, timeout="20s") as client:
        yield proxy, client


@pytest.mark.parametrize("times", [1, 3])
def test_a_join_whose_answer_is_lost_leaves_no_stranger_behind(
    one: Client, proxied: tuple[Proxy, Client], times: int
) -> None:
    proxy, client = proxied
    proxy.lose_answers(Verb.JOIN, times)
    with client.consumer("t", group="g") as consumer:
        assert values(consumer.poll()) == list(range(10))
        assert [member.member_id for member in one.describe_group("g").members] == [consumer.member_id]
    assert proxy.lost == times
    assert one.describe_group("g").members == []


@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize("ack", ["each", "offsets", "auto"])
def test_messages_whose_answer_is_lost_come_again_at_once_and_none_is_missing(
    one: Client, proxied: tuple[Proxy, Client], ack: str, times: int
) -> None:
    proxy, client = proxied
    with client.consumer("t", group="g", ack=ack) as consumer:
        first = consumer.poll(2)
        proxy.lose_answers(Verb.POLL, times)
        rest = consumer.poll(4)
        while len(rest) < 8:
            rest += consumer.poll(4, timeout="5s")
        assert proxy.lost == times
        assert values(rest) == list(range(2, 10))
        if ack == "offsets":
            consumer.commit()
        if ack == "each":
            assert {message.delivery_count for message in rest} == {1}
            consumer.ack(first + rest)
    assert floor(one) == 10


@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize("how", ["ack", "whole", "nack", "reject", "extend", "background"])
def test_a_settlement_whose_answer_is_lost_counts_as_done(
    one: Client, proxied: tuple[Proxy, Client], how: str, times: int
) -> None:
    proxy, client = proxied
    with client.consumer("t", group="g") as consumer:
        batch = consumer.poll()
        proxy.lose_answers(Verb.SETTLE, times)
        match how:
            case "ack":
                consumer.ack(batch[:4])
            case "whole":
                consumer.ack(batch)
            case "nack":
                consumer.nack(batch[:4], delay="1h")
            case "reject":
                consumer.reject(batch[:4])
            case "extend":
                consumer.extend(batch[:4], "1m")
            case _:
                for message in batch[:4]:
                    with message:
                        pass
                consumer.flush()

        assert proxy.lost == times
        if how == "whole":
            assert floor(one) == 10
        elif how == "extend":
            consumer.ack(batch)
        else:
            consumer.ack(batch[4:])
            assert in_flight(one) == 0
            with pytest.raises((ReceiptUnknown, ReceiptExpired)):
                consumer.ack(batch[:4])
    if how == "reject":
        assert len(one.dead_letters("t")) == 4
        one.delete_topic("t.dlq")


@pytest.mark.parametrize(("count", "total"), [(7, 300), (LARGE_BATCH, 20 * LARGE_BATCH)])
def test_connections_that_are_cut_all_the_time_lose_nothing(
    one: Client, proxied: tuple[Proxy, Client], count: int, total: int
) -> None:
    proxy, client = proxied
    over = threading.Event()

    def cut() -> None:
        while not over.is_set():
            one.groups()
            over.wait(0.02)
            proxy.cut()

    one.publish_many("t", [b"%d" % number for number in range(10, total)])
    with ThreadPoolExecutor(1) as threads, client.consumer("t", group="g") as consumer:
        cutting = threads.submit(cut)
        seen: set[int] = set()
        try:
            while len(seen) < total:
                batch = consumer.poll(count, timeout="1s")
                seen.update(values(batch))
                consumer.ack(batch)
        finally:
            over.set()
            cutting.result()
    assert floor(one) == total


def test_errors_of_the_broker_reach_the_caller_and_leave_the_consumer_usable(
    one: Client, proxied: tuple[Proxy, Client]
) -> None:
    proxy, client = proxied
    bug = verbs.error_meta(InternalError("a bug"))
    with client.consumer("t", group="g") as consumer:
        for verb, use in ((Verb.JOIN, consumer.poll), (Verb.POLL, consumer.poll)):
            proxy.replace_answers(verb, bug, 1)
            with pytest.raises(GoQueueError, match="a bug"):
                use()
        batch = consumer.poll()
        assert values(batch) == list(range(10))
        proxy.replace_answers(Verb.SETTLE, bug, 1)
        with pytest.raises(InternalError):
            consumer.ack(batch[0])
        consumer.ack(batch[1:])


# --- what is polled before it is asked for ---------------------------------------------------------


def quick(consumer: Consumer, count: int = 1) -> list[int]:
    """Poll and acknowledge twice in a row, so that the consumer is taken for one who comes back for more."""
    seen = []
    for _ in range(2):
        batch = consumer.poll(count)
        seen += values(batch)
        consumer.ack(batch)
    return seen


def test_who_comes_back_quickly_gets_everything_once_and_in_order(one: Client) -> None:
    with one.consumer("t", group="g") as consumer:
        seen = []
        while batch := consumer.poll(1, timeout="100ms"):
            assert [message.delivery_count for message in batch] == [1]
            consumer.ack(batch)
            seen += values(batch)

    assert seen == list(range(10))
    assert lag(one) == 0


def test_what_was_polled_ahead_is_given_back_as_new_when_the_consumer_closes(one: Client) -> None:
    with one.consumer("t", group="g") as first:
        seen = quick(first)
        eventually(lambda: in_flight(one) == 1)

    with one.consumer("t", group="g") as second:
        batch = second.poll(100)
        assert values(batch) == [number for number in range(10) if number not in seen]
        assert {message.delivery_count for message in batch} == {1}


def test_what_was_polled_ahead_and_nobody_comes_for_is_given_back_in_time(one: Client) -> None:
    with one.consumer("t", group="g", mode="shared") as first, one.consumer("t", group="g", mode="shared") as second:
        seen = quick(first)
        eventually(lambda: in_flight(one) == 1)
        eventually(lambda: in_flight(one) == 0)

        batch = second.poll(100)
        assert values(batch) == [number for number in range(10) if number not in seen]
        assert {message.delivery_count for message in batch} == {1}
        second.ack(batch)
        assert first.poll(1, timeout="50ms") == []


def test_a_poll_of_another_size_takes_back_what_was_polled_ahead(one: Client) -> None:
    with one.consumer("t", group="g") as consumer:
        assert quick(consumer) == [0, 1]
        batch = consumer.poll(5)

        assert values(batch) == [2, 3, 4, 5, 6]
        assert {message.delivery_count for message in batch} == {1}
        consumer.ack(batch)
        assert values(consumer.poll(5)) == [7, 8, 9]


def test_nothing_is_polled_ahead_with_short_leases_or_without_any_or_when_not_all_is_done(one: Client) -> None:
    with one.consumer("t", group="g", visibility="2s") as consumer:
        quick(consumer)
        assert in_flight(one) == 0
    with one.consumer("t", group="h", ack="offsets") as consumer:
        assert values(consumer.poll(1)) == [0]
        assert values(consumer.poll(1)) == [1]
        consumer.commit()
    assert floor(one, "h") == 2
    with one.consumer("t", group="i") as consumer:
        quick(consumer, 2)
        consumer.ack(consumer.poll(2)[:1])
        assert in_flight(one, "i") == 1


def test_a_broker_that_restarts_loses_nothing_that_was_polled_ahead(broker: RestartingBroker) -> None:
    with Client(broker.address) as gq:
        gq.create_topic("t", partitions=1, **QUICK)
        gq.publish_many("t", [b"%d" % number for number in range(10)])
        with gq.consumer("t", group="g") as consumer:
            seen = quick(consumer)
            broker.restart()
            while len(seen) < 10:
                batch = consumer.poll(1, timeout="10s")
                assert {message.delivery_count for message in batch} == {1}
                consumer.ack(batch)
                seen += values(batch)

    assert sorted(seen) == list(range(10))


# --- many at a time: the next ones are asked for while these are made of what came ------------------


@pytest.fixture
def many(gq: Client) -> Client:
    gq.create_topic("t", partitions=1, **QUICK)
    gq.publish_many("t", [b"%d" % number for number in range(10 * LARGE_BATCH)])
    return gq


def worked_off(consumer: Consumer, count: int = LARGE_BATCH) -> list[int]:
    seen = []
    while batch := consumer.poll(count, timeout="100ms"):
        assert {message.delivery_count for message in batch} == {1}
        consumer.ack(batch)
        seen += values(batch)
    return seen


@pytest.mark.parametrize("mode", ["partitioned", "shared", "key-shared"])
@pytest.mark.parametrize("max_in_flight", [None, LARGE_BATCH, 3 * LARGE_BATCH // 2])
def test_many_at_a_time_come_once_and_in_order(many: Client, mode: str, max_in_flight: int | None) -> None:
    with many.consumer("t", group="g", mode=mode, max_in_flight=max_in_flight) as consumer:
        assert worked_off(consumer) == list(range(10 * LARGE_BATCH))

    assert lag(many) == 0


def test_the_next_ones_are_on_their_way_before_these_are_done(many: Client) -> None:
    with many.consumer("t", group="g") as consumer:
        quick(consumer, LARGE_BATCH)
        batch = consumer.poll(LARGE_BATCH)
        eventually(lambda: in_flight(many) == 2 * LARGE_BATCH)

        consumer.ack(batch)
        assert values(consumer.poll(LARGE_BATCH)) == list(range(3 * LARGE_BATCH, 4 * LARGE_BATCH))


def test_who_shares_leaves_the_next_ones_to_others_until_these_are_done(many: Client) -> None:
    with many.consumer("t", group="g", mode="shared") as first, many.consumer("t", group="g", mode="shared") as second:
        quick(first, LARGE_BATCH)
        first.poll(LARGE_BATCH)

        assert len(second.poll(1_000)) == 7 * LARGE_BATCH


def test_many_that_were_on_their_way_are_given_back_as_new_when_the_consumer_closes(many: Client) -> None:
    with many.consumer("t", group="g") as first:
        seen = quick(first, LARGE_BATCH)
        seen += values(batch := first.poll(LARGE_BATCH))
        eventually(lambda: in_flight(many) == 2 * LARGE_BATCH)
        first.ack(batch)

    with many.consumer("t", group="g") as second:
        assert seen + worked_off(second) == list(range(10 * LARGE_BATCH))


def test_some_of_many_can_fail_while_the_next_ones_are_on_their_way(many: Client) -> None:
    seen = []
    with many.consumer("t", group="g") as consumer:
        while batch := consumer.poll(LARGE_BATCH, timeout="500ms"):
            good = [message for message in batch if message.offset % 7 or message.delivery_count > 1]
            consumer.nack([message for message in batch if message not in good], delay="1ms")
            consumer.ack(good)
            seen += values(good)

    assert sorted(seen) == list(range(10 * LARGE_BATCH))
    assert lag(many) == 0


def test_a_broker_that_restarts_loses_none_of_many_that_were_on_their_way(broker: RestartingBroker) -> None:
    with Client(broker.address) as gq:
        gq.create_topic("t", partitions=1, **QUICK)
        gq.publish_many("t", [b"%d" % number for number in range(10 * LARGE_BATCH)])
        with gq.consumer("t", group="g") as consumer:
            seen = quick(consumer, LARGE_BATCH)
            batch = consumer.poll(LARGE_BATCH)
            eventually(lambda: in_flight(gq) == 2 * LARGE_BATCH)
            broker.restart()
            consumer.ack(batch)
            seen += values(batch)
            seen += worked_off(consumer)

    assert sorted(seen) == list(range(10 * LARGE_BATCH))


# --- intervals ----------------------------------------------------------------------------------


def test_a_member_with_a_short_session_that_works_for_longer_stays(gq: Client) -> None:
    gq.create_topic("t", partitions=1)
    with gq.consumer("t", group="short", session_timeout="1s") as consumer:
        consumer.join()
        with gq.consumer("t", group="other") as other:
            assert other.poll(timeout="2500ms") == []

        info = gq.describe_group("short")
        assert ([member.member_id for member in info.members], info.generation) == ([consumer.member_id], 1)
    gq.delete_group("short")
    gq.delete_group("other")


def test_auto_commit_comes_to_the_end_of_an_idle_partition_within_its_interval(gq: Client) -> None:
    gq.create_topic("t", partitions=1)
    gq.publish_many("t", [b"v"] * 5)
    with gq.consumer("t", group="auto", ack="auto", auto_commit_interval="100ms") as consumer:
        assert len(consumer.poll()) == 5
        assert consumer.poll(timeout="1s") == []

        assert floor(gq, "auto") == 5
    gq.delete_group("auto")


def test_a_loop_commits_what_it_has_worked_through_within_its_interval(gq: Client) -> None:
    gq.create_topic("t", partitions=1)
    gq.publish_many("t", [b"v"] * 5)

    with ThreadPoolExecutor(1) as threads, Client(gq._client._connections.addresses[0]) as client:
        loop = client.consume("t", group="auto", ack="auto", auto_commit_interval="100ms", limit=6)
        done = threads.submit(list, loop)
        eventually(lambda: floor(gq, "auto") == 5)
        gq.publish("t", b"last")
        assert len(done.result(timeout=10)) == 6
    gq.delete_group("auto")
