"""Transactions from Python: messages, acks and positions count together or not at all, whatever comes in between."""

import asyncio
import random
import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from goqueue import (
    AsyncClient,
    AsyncHandle,
    AsyncTransaction,
    AvailabilityError,
    Client,
    Conflict,
    GoQueueError,
    GroupNotFound,
    InvalidRequest,
    InvalidTransactionState,
    MessageTooLarge,
    NotGroupMember,
    PartitionNotFound,
    ProducerFenced,
    SchemaRejected,
    TopicNotFound,
    Transaction,
    TransactionAborted,
    TransactionError,
    TransactionNotFound,
)
from goqueue.client.accumulator import IN_FLIGHT_MAX
from goqueue.client.client import TRANSACTIONAL_MAX
from goqueue.testing import EmbeddedBroker
from goqueue.wire.verbs import Verb
from tests.client.faulty_network import Proxy

TIMEOUT_S = 30


class Oops(Exception):
    """What goes wrong in an application."""


def values(gq: Client, *topics: str, isolation: str = "read_committed") -> list[bytes]:
    return sorted(message.value for topic in topics or ("t",) for message in gq.read(topic, isolation=isolation))


def until(fact: Callable[[], object]) -> None:
    """Ask again and again until it is so."""
    patience = threading.Event()
    for _ in range(TIMEOUT_S * 200):
        if fact():
            return
        patience.wait(0.005)
    raise AssertionError("it never was so")


def run(address: str, work: Callable[[AsyncClient], Awaitable[Any]], *, timeout: str = "10s") -> Any:
    async def main() -> Any:
        async with asyncio.timeout(TIMEOUT_S), AsyncClient(address, timeout=timeout) as gq:
            return await work(gq)

    return asyncio.run(main())


@contextmanager
def cut_off(address: str, *, timeout: str = "20s") -> Iterator[tuple[Proxy, Client]]:
    with Proxy(address) as proxy, Client(proxy.address, timeout=timeout) as client:
        yield proxy, client


def left_with(kind: type[BaseException], match: str | None = None) -> pytest.RaisesExc[Any]:
    """A block that is left with such an error, whichever of its statements it comes from."""
    return pytest.raises(kind, match=match)


@pytest.fixture
def t(gq: Client) -> str:
    """A topic with one partition."""
    gq.create_topic("t", partitions=1)
    return "t"


# --- all or nothing -----------------------------------------------------------------------------


def test_messages_are_seen_once_the_transaction_is_committed(gq: Client, t: str) -> None:
    gq.publish(t, b"before")
    with gq.transaction("a") as tx:
        assert tx.publish(t, b"inside").offset == 1
        gq.publish(t, b"behind")

        assert values(gq) == [b"before"]
        assert values(gq, isolation="read_uncommitted") == [b"before", b"behind", b"inside"]
        assert gq.describe_topic(t).partitions[0].last_stable_offset == 1

    assert values(gq) == [b"before", b"behind", b"inside"]
    assert gq.describe_topic(t).partitions[0].last_stable_offset >= 3


def test_what_is_aborted_is_never_seen_and_the_error_is_what_leaves_the_block(gq: Client, t: str) -> None:
    with left_with(Oops, match="mine"), gq.transaction("a") as tx:
        tx.publish(t, b"gone")
        raise Oops("mine")

    gq.publish(t, b"kept")
    assert values(gq) == [b"kept"]
    with gq.transaction("a") as tx:
        tx.publish(t, b"next")
    assert values(gq) == [b"kept", b"next"]


def test_ten_partitions_of_three_topics_count_together(gq: Client) -> None:
    topics = {"t3": 3, "t4": 4, "t2": 2, "t1": 1}
    for topic, partitions in topics.items():
        gq.create_topic(topic, partitions=partitions)
    for outcome in ("commit", "abort"):
        with gq.transaction("a") as tx:
            for topic, partitions in topics.items():
                for partition in range(partitions):
                    tx.send(topic, outcome.encode(), partition=partition)
            if outcome == "abort":
                tx.abort()

    assert values(gq, *topics) == [b"commit"] * 10


def test_what_a_message_can_have_it_has_in_a_transaction(gq: Client) -> None:
    gq.create_topic("t", partitions=3, compression="zstd")
    with gq.transaction("a") as tx:
        text = tx.publish("t", "text" * 1_000, key="k", headers={"a": "b"}, priority="high", ttl="1h")
        tx.publish("t", {"id": 1}, partition=2)
        tx.publish("t", None, key="k", tombstone=True)
        many = tx.publish_many("t", [b"1", ("k", b"2")])
        handle = tx.send("t", b"3", key="k")
        assert handle.result("20s").partition == many[1].partition == text.partition

    messages = list(gq.read("t"))
    (first,) = (one for one in messages if one.headers.get("a") == "b")
    assert (first.text(), first.key, first.priority.name) == ("text" * 1_000, b"k", "HIGH")
    assert [one.json() for one in messages if one.partition == 2 and b"id" in one.value] == [{"id": 1}]
    assert [one.offset for one in messages if one.tombstone] != []
    assert len(messages) == 6


def test_delayed_messages_are_due_in_their_time_after_a_commit_and_never_after_an_abort(gq: Client, t: str) -> None:
    with gq.consumer(t, group="delays") as consumer:
        consumer.join()
        for value, commit in ((b"kept", True), (b"gone", False)):
            with gq.transaction("a") as tx:
                tx.publish(t, value, delay="50ms")
                tx.publish(t, value + b" later", delay="1h")
                if not commit:
                    tx.abort()

        (message,) = consumer.poll(10, "20s")
        assert message.value == b"kept"
        consumer.ack(message)
        assert consumer.poll(10, "200ms") == []
    assert [one.offset for one in gq.delayed(t)] == [1]


def test_lanes_hold_in_a_transaction(gq: Client, t: str) -> None:
    with gq.transaction("a") as tx:
        tx.publish(t, b"slow", priority="background")
        tx.publish(t, b"quick", priority="critical")

    with gq.consumer(t, group="lanes") as consumer:
        polled = consumer.poll(10, "20s")
        assert [message.value for message in polled] == [b"quick", b"slow"]
        consumer.ack(polled)


def test_a_transaction_may_be_empty(gq: Client) -> None:
    for _ in range(3):
        with gq.transaction("a"):
            pass
        with gq.transaction("a") as tx:
            tx.abort()
    assert gq.transactions() == []


def test_one_that_is_over_can_do_nothing_more(gq: Client, t: str) -> None:
    for end in ("commit", "abort"):
        with gq.transaction("a") as tx:
            send = tx.send
            tx.publish(t, end)
            getattr(tx, end)()
            doings: list[Callable[[], object]] = [
                lambda tx=tx: tx.publish(t, b"late"),  # type: ignore[misc]
                lambda tx=tx: tx.send(t, b"late"),  # type: ignore[misc]
                lambda tx=tx: tx.publish_many(t, [b"late"]),  # type: ignore[misc]
                lambda tx=tx: tx.ack([]),  # type: ignore[misc]
                lambda tx=tx: tx.positions("g", {("t", 0): 1}),  # type: ignore[misc]
                tx.commit,
                tx.abort,
                lambda tx=tx: tx.id,  # type: ignore[misc]
            ]
            for late in doings:
                with pytest.raises(InvalidTransactionState, match="no transaction open"):
                    late()
            with pytest.raises(Conflict, match="over"):
                send(t, b"late")
    assert values(gq) == [b"commit"]


def test_one_that_was_not_entered_or_is_entered_twice_is_refused(gq: Client, t: str) -> None:
    tx = gq.transaction("a")
    with pytest.raises(InvalidTransactionState, match="no transaction open"):
        tx.publish(t, b"v")
    with tx, pytest.raises(InvalidTransactionState, match="already in progress"), tx:
        pass
    with pytest.raises(InvalidTransactionState, match="already in progress"), tx:
        pass


def test_a_transactional_id_has_one_transaction_at_a_time_and_others_do_not_mind(gq: Client, t: str) -> None:
    with gq.transaction("a") as tx:
        tx.publish(t, b"a")
        with left_with(InvalidTransactionState, match="already in progress"), gq.transaction("a"):
            pass
        with gq.transaction("b") as other:
            other.publish(t, b"b")
        assert values(gq) == []
        tx.publish(t, b"a again")
    assert values(gq) == [b"a", b"a again", b"b"]


def test_many_transactions_follow_one_another(gq: Client) -> None:
    gq.create_topic("t", partitions=3)
    for number in range(60):
        with gq.transaction("a") as tx:
            for part in range(number % 7):
                tx.send("t", b"%d-%d" % (number, part), key=b"%d" % part)
            if number % 3 == 2:
                tx.abort()

    wanted = [b"%d-%d" % (number, part) for number in range(60) if number % 3 != 2 for part in range(number % 7)]
    assert values(gq) == sorted(wanted)


def test_many_threads_have_transactions_of_their_own(gq: Client) -> None:
    gq.create_topic("t", partitions=2)

    def work(name: int) -> None:
        for number in range(10):
            with gq.transaction(f"worker-{name}") as tx:
                for part in range(20):
                    tx.send("t", b"%d-%d-%d" % (name, number, part))

    with ThreadPoolExecutor(5) as threads:
        list(threads.map(work, range(5)))
    wanted = [b"%d-%d-%d" % (name, n, part) for name in range(5) for n in range(10) for part in range(20)]
    assert values(gq) == sorted(wanted)


def test_a_large_transaction_is_whole(gq: Client) -> None:
    gq.create_topic("t", partitions=4, flush="none")
    with gq.transaction("a") as tx:
        for number in range(20_000):
            tx.send("t", b"%d" % number)
        assert values(gq) == []
    assert len({message.value for message in gq.read("t")}) == 20_000


def test_transactional_ids_that_were_not_used_lately_make_room(gq: Client, t: str) -> None:
    """And come back with a new epoch, which is nothing that anybody notices."""
    with gq.transaction("first") as tx:
        tx.publish(t, b"1")
        for number in range(TRANSACTIONAL_MAX + 10):
            gq.transaction(f"unused-{number}")
        assert len(gq._client._transactional) == TRANSACTIONAL_MAX
        tx.publish(t, b"2")
    with gq.transaction("unused-0") as tx:
        tx.publish(t, b"3")
    assert values(gq) == [b"1", b"2", b"3"]


# --- who looks at them --------------------------------------------------------------------------


def test_open_transactions_are_listed_the_oldest_first(gq: Client, t: str) -> None:
    with gq.transaction("z", timeout="40s") as older, gq.transaction("a") as younger:
        older.publish(t, b"v")
        listed = gq.transactions()
        assert [one.transactional_id for one in listed] == ["z", "a"]
        assert [one.transaction_id for one in listed] == [older.id, younger.id]
        found = gq.describe_transaction(older.id)
        assert (found.state, found.timeout_ms, found.groups) == ("Ongoing", 40_000, [])
        assert [(one.topic, one.partition) for one in found.partitions] == [(t, 0)]
        assert gq.transaction_stats().active_transactions == 2
        closed = older.id
    assert gq.transactions() == []
    with pytest.raises(TransactionNotFound):
        gq.describe_transaction(closed)


def test_each_transaction_has_the_timeout_that_was_asked_for(gq: Client) -> None:
    for timeout, wanted_ms in (("60s", 60_000), ("5s", 5_000), (90, 90_000), (timedelta(seconds=5), 5_000)):
        with gq.transaction("a", timeout=timeout) as tx:
            assert gq.describe_transaction(tx.id).timeout_ms == wanted_ms


@pytest.mark.parametrize("timeout", ["0s", "16m", "-1s"])
def test_a_timeout_that_cannot_be_is_refused(gq: Client, timeout: str) -> None:
    with left_with(InvalidRequest, match="timeout"), gq.transaction("a", timeout=timeout):
        pass
    with gq.transaction("a"):
        pass


@pytest.mark.parametrize("name", ["", "a\nb", "x" * 256])
def test_a_transactional_id_that_cannot_be_is_refused(gq: Client, name: str) -> None:
    with left_with(InvalidRequest, match="transactional_id"), gq.transaction(name):
        pass


@pytest.mark.parametrize("name", ["a/b", "grüße 😀", "%2F", "a:b:1", "x" * 255])
def test_a_transactional_id_may_be_called_almost_anything(gq: Client, t: str, name: str) -> None:
    with gq.transaction(name) as tx:
        tx.publish(t, b"v")
        assert gq.describe_transaction(tx.id).transactional_id == name
    assert values(gq) == [b"v"]


# --- ended by others ----------------------------------------------------------------------------


def test_what_an_operator_aborts_is_over_and_its_owner_is_told(gq: Client, t: str) -> None:
    with left_with(TransactionAborted) as told, gq.transaction("a") as tx:
        tx.publish(t, b"gone")
        assert gq.abort_transaction(tx.id).status == "aborted"
        assert gq.transactions() == []
        gq.publish(t, b"kept")
        assert values(gq) == [b"kept"]
        tx.publish(t, b"gone")

    assert (told.value.reason, told.value.code) == ("admin", "TRANSACTION_TIMEOUT")
    with left_with(TransactionAborted), gq.transaction("a") as tx:
        gq.abort_transaction(tx.id)
    with gq.transaction("a") as tx:
        tx.publish(t, b"next")
    assert values(gq) == [b"kept", b"next"]


def test_an_operator_can_only_abort_what_is_open(gq: Client, t: str) -> None:
    with gq.transaction("a") as tx:
        name = tx.id
    for unknown in (f"{name}1", "nobody:7", "", "a", "a:x"):
        with pytest.raises(TransactionNotFound):
            gq.abort_transaction(unknown)
    with pytest.raises(InvalidTransactionState):
        gq.abort_transaction(name)


def test_a_transaction_that_takes_too_long_is_aborted_and_its_owner_begins_again(gq: Client, t: str) -> None:
    with left_with(TransactionAborted) as told, gq.transaction("a", timeout="50ms") as tx:
        tx.publish(t, b"gone")
        until(lambda: not gq.transactions())
        assert values(gq, isolation="read_uncommitted") == [b"gone"]

    assert told.value.reason == "timeout"
    with gq.transaction("a") as tx:
        tx.publish(t, b"kept")
    assert values(gq) == [b"kept"]


def test_an_abort_of_what_is_over_already_is_no_error(gq: Client, t: str) -> None:
    with gq.transaction("a", timeout="20ms") as tx:
        until(lambda: not gq.transactions())
        tx.abort()
    with gq.transaction("a") as tx:
        gq.abort_transaction(tx.id)
        tx.abort()


def test_a_second_client_fences_the_first_in_the_middle(gq: Client, address: str, t: str) -> None:
    with Client(address) as second:
        with left_with(ProducerFenced) as told, gq.transaction("a") as tx:
            tx.publish(t, b"gone")
            with second.transaction("a") as taken:
                taken.publish(t, b"kept")
                with pytest.raises(ProducerFenced):
                    tx.publish(t, b"gone too")
        assert told.value.current_epoch > told.value.epoch
        for _ in range(2):
            with left_with(ProducerFenced), gq.transaction("a"):
                pass
        with second.transaction("a") as taken:
            taken.publish(t, b"kept too")

    assert values(gq) == [b"kept", b"kept too"]


def test_whoever_is_fenced_between_two_transactions_finds_out(gq: Client, address: str, t: str) -> None:
    with gq.transaction("a") as tx:
        tx.publish(t, b"first")
    with Client(address) as second, second.transaction("a") as taken:
        taken.publish(t, b"second")
    with left_with(ProducerFenced), gq.transaction("a") as tx:
        tx.send(t, b"gone")
    with left_with(ProducerFenced), gq.transaction("a"):
        pass
    assert values(gq) == [b"first", b"second"]


def test_a_fenced_producer_leaves_its_block_with_the_error_that_left_it(gq: Client, address: str, t: str) -> None:
    with left_with(Oops), gq.transaction("a"), Client(address) as second:
        with second.transaction("a"):
            pass
        raise Oops


# --- markers ------------------------------------------------------------------------------------


def test_what_has_a_marker_is_committed_once(gq: Client, t: str) -> None:
    did = []
    for _ in range(3):
        with gq.transaction("a", marker="query-1/7") as tx:
            if not tx.already_committed:
                tx.publish(t, b"once")
                did.append(True)
    with gq.transaction("b", marker="query-1/7") as tx:
        assert tx.already_committed
        with pytest.raises(InvalidTransactionState):
            tx.publish(t, b"twice")
    with gq.transaction("a", marker="query-1/8") as tx:
        assert not tx.already_committed
        tx.publish(t, b"next")

    assert did == [True]
    assert values(gq) == [b"next", b"once"]


def test_of_two_with_the_same_marker_the_second_to_commit_is_not_seen_and_no_failure(gq: Client, t: str) -> None:
    with gq.transaction("a", marker="m") as one, gq.transaction("b", marker="m") as two:
        one.publish(t, b"one")
        two.publish(t, b"two")
        two.commit()
    assert values(gq) == [b"two"]
    assert gq.transactions() == []


def test_a_marker_of_an_aborted_transaction_is_free(gq: Client, t: str) -> None:
    with left_with(Oops), gq.transaction("a", marker="free"):
        raise Oops
    with gq.transaction("a", marker="free") as tx:
        assert not tx.already_committed
        tx.publish(t, b"v")
    assert values(gq) == [b"v"]


def test_a_marker_that_cannot_be_leaves_nothing_open(gq: Client, t: str) -> None:
    with left_with(InvalidRequest, match="marker"), gq.transaction("a", marker="m" * 2_000):
        pass
    assert gq.transactions() == []


# --- acks and positions -------------------------------------------------------------------------


def test_acks_take_effect_with_the_commit(gq: Client, t: str) -> None:
    gq.create_topic("out", partitions=1)
    gq.publish_many(t, [b"%d" % number for number in range(10)])
    with gq.consumer(t, group="acks-commit") as consumer:
        polled = consumer.poll(10, "20s")
        with gq.transaction("a") as tx:
            tx.ack(polled[0])
            tx.ack(polled[1:])
            tx.publish_many("out", [message.value for message in polled])
            assert gq.describe_group("acks-commit").lag == 10
        assert gq.describe_group("acks-commit").lag == 0
        assert consumer.poll(10, "100ms") == []
    assert len(values(gq, "out")) == 10


def test_what_an_aborted_transaction_acknowledged_is_delivered_again_at_once(gq: Client, t: str) -> None:
    gq.publish_many(t, [b"a", b"b"])
    with gq.consumer(t, group="acks-abort") as consumer:
        polled = consumer.poll(10, "20s")
        with gq.transaction("a") as tx:
            tx.ack(polled)
            tx.abort()
        again = consumer.poll(10, "20s")
        assert [(message.value, message.delivery_count) for message in again] == [(b"a", 2), (b"b", 2)]
        with gq.transaction("a") as tx:
            tx.ack(again)
        assert consumer.poll(10, "100ms") == []
    assert gq.describe_group("acks-abort").lag == 0


def test_a_lease_is_held_beyond_the_visibility_timeout_and_the_end_of_its_member(gq: Client, t: str) -> None:
    gq.publish(t, b"v")
    with gq.transaction("a") as tx:
        with gq.consumer(t, group="held", visibility="20ms", auto_extend=False) as consumer:
            tx.ack(consumer.poll(1, "20s"))
            assert consumer.poll(1, "200ms") == []
        with gq.consumer(t, group="held") as other:
            assert other.poll(1, "100ms") == []
    assert gq.describe_group("held").lag == 0


def test_an_ack_whose_lease_is_over_fails_the_transaction(gq: Client, t: str) -> None:
    gq.create_topic("out", partitions=1)
    gq.publish(t, b"v")
    with gq.consumer(t, group="late", visibility="20ms", auto_extend=False) as consumer:
        (message,) = consumer.poll(1, "20s")
        (again,) = consumer.poll(1, "20s")
        with left_with(GoQueueError) as told, gq.transaction("a") as tx:
            tx.publish("out", b"of the late one")
            tx.ack(message)
        assert told.value.code in ("RECEIPT_HANDLE_EXPIRED", "RECEIPT_HANDLE_UNKNOWN")
        del again
    assert values(gq, "out") == []


def test_an_ack_may_be_the_first_thing_in_a_transaction(gq: Client, t: str) -> None:
    """It travels over another connection than the begin, and must not overtake it."""
    gq.publish_many(t, [b"%d" % number for number in range(60)])
    with gq.consumer(t, group="first") as consumer:
        for message in consumer.poll(60, "20s"):
            with gq.transaction("a") as tx:
                tx.ack(message)
    assert gq.describe_group("first").lag == 0


def test_an_ack_waits_until_the_broker_knows_of_the_transaction(gq: Client, address: str, t: str) -> None:
    gq.publish(t, b"v")
    with cut_off(address) as (proxy, client), client.consumer(t, group="waits") as consumer:
        polled = consumer.poll(1, "20s")
        with client.transaction("a"):
            pass
        proxy.mute()
        with ThreadPoolExecutor(1) as threads, left_with(AvailabilityError), client.transaction("a") as tx:
            acking = threads.submit(tx.ack, polled)
            proxy.wait_for_muted_answer()
            with pytest.raises(TimeoutError):
                acking.result(timeout=0.3)
            assert [one.groups for one in gq.transactions()] == [[]]
            proxy.mute(False)
            proxy.cut()
            acking.result(timeout=TIMEOUT_S)
        with client.transaction("a") as tx:
            tx.ack(polled)
    assert gq.describe_group("waits").lag == 0


def test_only_what_a_group_has_delivered_can_be_acknowledged(gq: Client, t: str) -> None:
    gq.publish(t, b"v")
    (message,) = gq.read(t)
    with left_with(InvalidRequest, match="delivered"), gq.transaction("a") as tx:
        tx.ack(message)  # type: ignore[arg-type]


def test_messages_of_several_consumers_are_acknowledged_together(gq: Client, t: str) -> None:
    gq.create_topic("u", partitions=2)
    gq.publish(t, b"v")
    gq.publish_many("u", [b"a", b"b", b"c"])
    with gq.consumer(t, group="several-t") as one, gq.consumer("u", group="several-u") as two:
        polled = one.poll(1, "20s")
        while len(polled) < 4:
            polled += two.poll(4, "20s")
        with gq.transaction("a") as tx:
            tx.ack(polled)
    assert [gq.describe_group(group).lag for group in ("several-t", "several-u")] == [0, 0]


def test_positions_take_effect_with_the_commit(gq: Client, t: str) -> None:
    gq.publish_many(t, [b"%d" % number for number in range(5)])
    for outcome, wanted in (("abort", 0), ("commit", 5)):
        with gq.consumer(t, group="positions-polled", ack="offsets") as consumer:
            assert len(consumer.poll(5, "20s")) == 5
            with gq.transaction("a") as tx:
                tx.positions(consumer)
                assert gq.describe_transaction(tx.id).groups == ["positions-polled"]
                assert [one.offset for one in gq.group_positions("positions-polled")] in ([], [0])
                getattr(tx, outcome)()
            assert sum(one.offset for one in gq.group_positions("positions-polled")) == wanted


def test_positions_of_a_group_without_members_are_set_by_its_name(gq: Client, t: str) -> None:
    gq.publish_many(t, [b"%d" % number for number in range(5)])
    with gq.consumer(t, group="positions-named", ack="offsets") as consumer:
        consumer.join()
        with left_with(NotGroupMember), gq.transaction("a") as tx:
            tx.positions("positions-named", {(t, 0): 3})
        with gq.transaction("a") as tx:
            tx.positions("positions-named", {(t, 0): 2}, member_id=consumer.member_id)
        with gq.transaction("a") as tx:
            tx.positions(consumer, {(t, 0): 3})
    with gq.transaction("a") as tx:
        tx.positions("positions-named", {(t, 0): 4})
        with pytest.raises(InvalidRequest, match="positions"):
            tx.positions("positions-named")
    assert [one.offset for one in gq.group_positions("positions-named")] == [4]


def test_positions_that_cannot_be_are_refused(gq: Client, t: str) -> None:
    with gq.transaction("a") as tx:
        for positions in ({("missing", 0): 1}, {(t, 9): 1}):
            with pytest.raises((TopicNotFound, PartitionNotFound, GroupNotFound)):
                tx.positions("refused", positions)


def test_every_input_has_one_output_though_the_worker_fails_again_and_again(gq: Client) -> None:
    gq.create_topic("in", partitions=2, max_deliveries=1_000)
    gq.create_topic("out", partitions=2)
    gq.publish_many("in", [b"%d" % number for number in range(50)])
    chance = random.Random(7)
    with gq.consumer("in", group="pipeline") as consumer:
        consumer.join()
        while gq.describe_group("pipeline").lag:
            polled = consumer.poll(7, "1s")
            try:
                with gq.transaction("pipeline-1") as tx:
                    for message in polled:
                        tx.send("out", b"out " + message.value)
                        if chance.random() < 0.07:
                            raise Oops
                    tx.ack(polled)
            except Oops:
                consumer.nack(polled, delay="0s")
    assert values(gq, "out") == sorted(b"out %d" % number for number in range(50))


# --- messages that cannot be stored -------------------------------------------------------------


def test_a_message_that_a_schema_refuses_fails_the_whole_transaction(gq: Client, t: str) -> None:
    gq.register_schema("t-value", {"type": "object", "required": ["id"]})
    try:
        with left_with(SchemaRejected), gq.transaction("a") as tx:
            tx.publish(t, {"id": 1})
            tx.publish(t, {})
        with left_with(SchemaRejected), gq.transaction("a") as tx:
            tx.publish(t, {"id": 1})
            with pytest.raises(SchemaRejected):
                tx.publish(t, {})
        with left_with(SchemaRejected), gq.transaction("a") as tx:
            tx.send(t, {"id": 1})
            tx.send(t, {})
        assert values(gq) == []
        with gq.transaction("a") as tx:
            tx.publish(t, {"id": 2})
        assert values(gq) == [b'{"id":2}']
    finally:
        gq.delete_schema("t-value")
        gq.delete_schema("t-value", permanent=True)


def test_an_abort_says_nothing_of_messages_that_could_not_be_stored(gq: Client, t: str) -> None:
    gq.register_schema("t-value", {"type": "object"})
    try:
        with gq.transaction("a") as tx:
            tx.send(t, b"no JSON")
            tx.abort()
        with gq.transaction("a") as tx:
            with pytest.raises(SchemaRejected):
                tx.publish(t, b"no JSON")
            tx.abort()
    finally:
        gq.delete_schema("t-value")
        gq.delete_schema("t-value", permanent=True)


def test_a_message_that_was_never_sent_leaves_the_others(gq: Client) -> None:
    gq.create_topic("t", partitions=1, max_message_bytes=1_000)
    with gq.transaction("a") as tx:
        tx.publish("t", b"good")
        with pytest.raises(MessageTooLarge):
            tx.publish("t", b"x" * 2_000)
        with pytest.raises(PartitionNotFound):
            tx.publish("t", b"v", partition=7)
        with pytest.raises(TopicNotFound):
            tx.publish("missing", b"v")
        tx.publish("t", b"good too")
    assert values(gq) == [b"good", b"good too"]


def test_a_topic_that_is_deleted_meanwhile_takes_its_part_along(gq: Client, t: str) -> None:
    gq.create_topic("u", partitions=1)
    with gq.transaction("a") as tx:
        tx.publish(t, b"stays")
        tx.publish("u", b"goes")
        gq.delete_topic("u")
    assert values(gq) == [b"stays"]


def test_a_topic_that_is_gone_fails_the_transaction_and_one_made_anew_does_not(gq: Client, t: str) -> None:
    gq.create_topic("u", partitions=1)
    with gq.transaction("a") as tx:
        tx.publish("u", b"known")
    gq.delete_topic("u")
    with left_with(TopicNotFound), gq.transaction("a") as tx:
        tx.publish(t, b"not seen")
        tx.publish("u", b"v")
    gq.create_topic("u", partitions=1)
    for number in range(3):
        with gq.transaction("a") as tx:
            tx.publish(t, b"%d" % number)
            tx.publish("u", b"%d" % number)
    assert values(gq) == values(gq, "u") == [b"0", b"1", b"2"]


def test_a_topic_that_was_made_anew_unnoticed_costs_one_transaction_at_most(gq: Client, address: str, t: str) -> None:
    with gq.transaction("a") as tx:
        tx.publish_many(t, [b"old"] * 3)
    with Client(address) as other:
        other.delete_topic(t)
        other.create_topic(t, partitions=1)
    failures = 0
    for number in range(3):
        try:
            with gq.transaction("a") as tx:
                tx.publish(t, b"%d" % number)
        except GoQueueError:
            failures += 1
    assert failures <= 1
    assert values(gq) == [b"0", b"1", b"2"][failures:]


# --- clients that end ---------------------------------------------------------------------------


def test_a_client_that_is_closed_aborts_what_it_has_open(gq: Client, address: str, t: str) -> None:
    gq.publish(t, b"v")
    client = Client(address)
    consumer = client.consumer(t, group="closed")
    tx = client.transaction("a").__enter__()
    tx.ack(consumer.poll(1, "20s"))
    tx.send(t, b"gone")
    tx.publish(t, b"gone too")
    other = client.transaction("b").__enter__()
    other.send(t, b"gone as well")
    assert len(gq.transactions()) == 2

    client.close()

    assert gq.transactions() == []
    assert values(gq) == [b"v"]
    assert gq.describe_group("closed").lag == 1
    for late in (lambda: tx.publish(t, b"late"), tx.commit, lambda: tx.ack([])):
        with pytest.raises(Conflict):
            late()


def test_leaving_the_block_of_a_closed_client_shows_the_error_that_was_on_its_way(address: str, t: str) -> None:
    client = Client(address)
    with left_with(Oops), client.transaction("a"):
        client.close()
        raise Oops
    client = Client(address)
    with left_with(Conflict, match="after close"), client.transaction("a"):
        client.close()


def test_close_waits_for_a_commit_that_is_under_way(gq: Client, address: str, t: str) -> None:
    async def work(client: AsyncClient) -> None:
        async with client.transaction("a") as tx:
            for number in range(2_000):
                await tx.send(t, b"%d" % number)
            committing = asyncio.ensure_future(tx.commit())
            await asyncio.get_running_loop().run_in_executor(None, lambda: None)
            await client.close()
            await committing

    run(address, work)
    assert len(values(gq)) == 2_000


def test_ctrl_c_in_a_block_aborts(gq: Client, t: str) -> None:
    with left_with(KeyboardInterrupt), gq.transaction("a") as tx:
        tx.publish(t, b"gone")
        raise KeyboardInterrupt
    assert gq.transactions() == []
    assert values(gq) == []


# --- networks that fail -------------------------------------------------------------------------


@pytest.mark.parametrize("verb", [Verb.PUBLISH, Verb.CALL])
@pytest.mark.parametrize("losses", [1, 3])
def test_answers_that_are_lost_make_nothing_twice_and_lose_no_outcome(
    gq: Client, address: str, t: str, verb: Verb, losses: int
) -> None:
    """Whoever is told that it is committed sees all of it, whoever is told that it is not sees nothing of it."""
    committed: list[bytes] = []
    unknown: list[bytes] = []
    with cut_off(address) as (proxy, client):
        for number in range(12):
            value = b"%02d" % number
            try:
                with client.transaction("a") as tx:
                    if number % 3 == 1:
                        tx.publish(t, value + b" first")
                    proxy.lose_answers(verb, losses if number % 2 else 0)
                    for part in range(3):
                        tx.send(t, value + b" %d" % part)
                committed.append(value)
            except AvailabilityError:
                unknown.append(value)
            except TransactionError:
                pass
            proxy.lose_answers(verb, 0)
        assert proxy.lost > 0

    until(lambda: not gq.transactions())
    seen = values(gq)
    assert len(set(seen)) == len(seen)
    by_transaction = {value[:2] for value in seen}
    assert set(committed) <= by_transaction <= {*committed, *unknown}
    for value in by_transaction:
        assert len([one for one in seen if one[:2] == value]) in (3, 4)
    assert len(committed) >= 6


def test_a_commit_whose_messages_were_not_answered_is_known_to_have_gone_through(
    gq: Client, address: str, t: str
) -> None:
    """The broker has it all, the commit too; the messages that are sent again are refused, because it is over."""
    with cut_off(address) as (proxy, client):
        with client.transaction("a") as tx:
            tx.publish(t, b"connects")
        for number in range(5):
            with client.transaction("a") as tx:
                proxy.lose_answers(Verb.PUBLISH, 1)
                tx.send(t, b"%d" % number)
        assert proxy.lost == 5

    assert values(gq) == [b"0", b"1", b"2", b"3", b"4", b"connects"]


@pytest.mark.parametrize("waits", [True, False])
def test_a_begin_whose_answer_is_lost_has_begun(gq: Client, address: str, t: str, waits: bool) -> None:
    with cut_off(address) as (proxy, client):
        with client.transaction("a") as tx:
            tx.publish(t, b"connects")
        for number in range(5):
            proxy.lose_answers(Verb.CALL, 1)
            with client.transaction("a") as tx:
                tx.send(t, b"%d" % number)
                if waits:
                    until(partial(lambda wanted: proxy.lost == wanted, number + 1))
        assert proxy.lost == 5
    assert values(gq) == [b"0", b"1", b"2", b"3", b"4", b"connects"]


def test_a_connection_that_is_cut_between_messages_does_no_harm(gq: Client, address: str, t: str) -> None:
    with cut_off(address) as (proxy, client):
        for number in range(5):
            with client.transaction("a") as tx:
                tx.publish(t, b"%d-0" % number)
                proxy.cut()
                tx.publish(t, b"%d-1" % number)
                proxy.cut()
    assert values(gq) == [b"%d-%d" % (number, part) for number in range(5) for part in range(2)]


def test_a_connection_that_is_cut_before_an_abort_does_no_harm(gq: Client, address: str, t: str) -> None:
    with cut_off(address) as (proxy, client):
        for _ in range(3):
            with client.transaction("a") as tx:
                tx.publish(t, b"gone")
                proxy.cut()
                tx.abort()
        with client.transaction("a") as tx:
            tx.publish(t, b"kept")
    assert values(gq) == [b"kept"]
    assert gq.transactions() == []


@pytest.mark.parametrize("losses", [1, 2])
def test_acks_whose_answers_are_lost_are_part_of_the_transaction_once(
    gq: Client, address: str, t: str, losses: int
) -> None:
    gq.publish_many(t, [b"%d" % number for number in range(6)])
    with cut_off(address) as (proxy, client), client.consumer(t, group=f"lost-{losses}") as consumer:
        for outcome in ("abort", "commit"):
            polled = consumer.poll(6, "20s")
            with client.transaction("a") as tx:
                proxy.lose_answers(Verb.SETTLE, losses)
                tx.ack(polled[:3])
                tx.ack(polled[3:])
                getattr(tx, outcome)()
            assert len(polled) == 6
        assert proxy.lost == 2 * losses
        assert consumer.poll(6, "100ms") == []
    assert gq.describe_group(f"lost-{losses}").lag == 0


def test_a_broker_that_does_not_answer_is_told_of_and_the_next_transaction_goes_through(
    gq: Client, address: str, t: str
) -> None:
    with cut_off(address, timeout="1500ms") as (proxy, client):
        with client.transaction("a") as tx:
            tx.publish(t, b"connects")
        with left_with(AvailabilityError), client.transaction("a") as tx:
            tx.send(t, b"who knows")
            proxy.lose_answers(Verb.PUBLISH, 1_000)
            proxy.lose_answers(Verb.CALL, 1_000)
        proxy.lose_answers(Verb.PUBLISH, 0)
        proxy.lose_answers(Verb.CALL, 0)
        with client.transaction("a") as tx:
            tx.publish(t, b"next")

    assert [value for value in values(gq) if value != b"who knows"] == [b"connects", b"next"]
    assert gq.transactions() == []


def test_a_broker_that_starts_again_has_aborted_what_was_open(tmp_path: Path) -> None:
    broker = EmbeddedBroker(http=False, data=tmp_path / "data").start()
    address = broker.address
    try:
        with Client(address) as client:
            client.create_topic("t", partitions=1)
            with client.transaction("a") as tx:
                tx.publish("t", b"kept")
            for number in range(2):
                with left_with(TransactionAborted) as told, client.transaction("a") as tx:
                    tx.publish("t", b"gone")
                    broker.stop()
                    broker = EmbeddedBroker(http=False, data=tmp_path / "data", native=address).start()
                    if number:
                        tx.publish("t", b"gone too")
                assert told.value.reason == "restart"
            with client.transaction("a") as tx:
                tx.publish("t", b"next")
            assert values(client) == [b"kept", b"next"]
    finally:
        broker.stop()


# --- with an event loop -------------------------------------------------------------------------


def test_everything_can_be_awaited(gq: Client, address: str, t: str) -> None:
    gq.create_topic("out", partitions=1)
    gq.publish_many(t, [b"a", b"b"])

    async def work(client: AsyncClient) -> None:
        async with client.consumer(t, group="async") as consumer:
            polled = await consumer.poll(2, "20s")
            async with client.transaction("a", timeout="30s") as tx:
                assert isinstance(tx, AsyncTransaction)
                await tx.ack(polled)
                handle = await tx.send("out", b"sent", key="k")
                assert (await tx.publish("out", {"id": 1}, deliver_at=datetime.now(UTC))).offset == 1
                assert len(await tx.publish_many("out", [b"v", ("k", b"w")])) == 2
                assert (await handle).offset == 0
                assert [one.transaction_id for one in await client.transactions()] == [tx.id]
                assert (await client.describe_transaction(tx.id)).groups == ["async"]
            assert (await client.transaction_stats()).committed_total > 0
            with left_with(Oops):
                async with client.transaction("a") as tx:
                    await tx.publish("out", b"gone")
                    raise Oops
            async with client.transaction("a") as tx:
                await tx.positions(consumer, {(t, 0): 1})
                await tx.publish("out", b"committed by hand")
                await tx.commit()
                with pytest.raises(InvalidTransactionState):
                    await tx.publish("out", b"late")
            with pytest.raises(TransactionAborted):
                async with client.transaction("a") as tx:
                    await client.abort_transaction(tx.id)

    run(address, work)
    assert values(gq, "out") == sorted([b"sent", b'{"id":1}', b"v", b"w", b"committed by hand"])
    assert gq.describe_group("async").lag == 0


def test_tasks_of_one_transactional_id_take_turns_or_are_refused(gq: Client, address: str, t: str) -> None:
    async def work(client: AsyncClient) -> None:
        async def one(number: int) -> bool:
            try:
                async with client.transaction("a") as tx:
                    await tx.publish(t, b"%d" % number)
            except InvalidTransactionState:
                return False
            return True

        assert sorted(await asyncio.gather(*map(one, range(5)))) == [False] * 4 + [True]

    run(address, work)
    assert len(values(gq)) == 1


def test_a_task_that_sends_while_another_commits_publishes_nothing_outside(gq: Client, address: str, t: str) -> None:
    async def work(client: AsyncClient) -> None:
        for number in range(20):
            async with client.transaction("a") as tx:
                await tx.publish(t, b"in %d" % number)
                late = asyncio.gather(*(tx.send(t, b"late %d" % number) for _ in range(5)), return_exceptions=True)
                await tx.commit()
                assert all(isinstance(one, GoQueueError | AsyncHandle) for one in await late)

    run(address, work)
    assert [value for value in values(gq, isolation="read_uncommitted") if value[:2] == b"in"] != []
    assert len([value for value in values(gq) if value[:2] == b"in"]) == 20


@pytest.mark.parametrize("when", range(1, 7))
def test_a_commit_that_is_cancelled_is_done_or_not_and_holds_nobody_up(
    gq: Client, address: str, t: str, when: int
) -> None:
    async def work(client: AsyncClient) -> None:
        async with client.transaction("a") as tx:
            await tx.publish(t, b"first")
        tx = client.transaction("a")
        await tx.__aenter__()
        for part in range(3):
            await tx.send(t, b"cancelled %d" % part)
        committing = asyncio.ensure_future(tx.commit())
        for _ in range(when):
            await asyncio.get_running_loop().run_in_executor(None, lambda: None)
        committing.cancel()
        await asyncio.gather(committing, return_exceptions=True)
        async with client.transaction("a") as tx:
            await tx.publish(t, b"next")

    run(address, work)
    seen = values(gq)
    assert [value for value in seen if value[:9] != b"cancelled"] == [b"first", b"next"]
    assert len(seen) in (2, 5)
    assert gq.transactions() == []


def test_a_commit_that_is_cancelled_while_the_broker_is_silent_holds_nobody_up(
    gq: Client, address: str, t: str
) -> None:
    with Proxy(address) as proxy:

        async def work(client: AsyncClient) -> None:
            async with client.transaction("a") as tx:
                await tx.publish(t, b"first")
            tx = client.transaction("a")
            await tx.__aenter__()
            await tx.publish(t, b"who knows")
            proxy.mute()
            committing = asyncio.ensure_future(tx.commit())
            await asyncio.get_running_loop().run_in_executor(None, proxy.wait_for_muted_answer)
            committing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await committing
            proxy.mute(False)
            async with client.transaction("a") as tx:
                await tx.publish(t, b"next")

        run(proxy.address, work)
    assert values(gq) == [b"first", b"next", b"who knows"]
    assert gq.transactions() == []


def test_a_commit_that_is_cancelled_before_it_was_asked_for_aborts(gq: Client, address: str, t: str) -> None:
    """Too much is under way for the commit to travel behind it, so the broker has not heard of it yet."""
    with Proxy(address) as proxy:

        async def work(client: AsyncClient) -> None:
            async with client.transaction("a") as tx:
                await tx.publish(t, b"first")
            tx = client.transaction("a")
            await tx.__aenter__()
            await tx.publish(t, b"gone")
            proxy.mute()
            for number in range(IN_FLIGHT_MAX + 2):
                await tx.send(t, b"gone %d" % number)
                client._transactional["a"].publisher.send_now()
            committing = asyncio.ensure_future(tx.commit())
            await asyncio.get_running_loop().run_in_executor(None, proxy.wait_for_muted_answer)
            assert not committing.done()
            committing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await committing
            await asyncio.get_running_loop().run_in_executor(None, until, lambda: not gq.transactions())
            proxy.mute(False)
            for number in range(3):
                async with client.transaction("a") as tx:
                    await tx.publish(t, b"next %d" % number)

        run(proxy.address, work)
    assert values(gq) == [b"first", b"next 0", b"next 1", b"next 2"]


def test_a_block_that_is_cancelled_aborts(gq: Client, address: str, t: str) -> None:
    async def work(client: AsyncClient) -> None:
        inside = asyncio.Event()

        async def worker() -> None:
            async with client.transaction("a") as tx:
                await tx.publish(t, b"gone")
                inside.set()
                await asyncio.Event().wait()

        task = asyncio.ensure_future(worker())
        await inside.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await client.transactions() == []
        async with client.transaction("a") as tx:
            await tx.publish(t, b"next")

    run(address, work)
    assert values(gq) == [b"next"]


def test_a_begin_that_is_cancelled_leaves_nothing_open(gq: Client, address: str, t: str) -> None:
    async def work(client: AsyncClient) -> None:
        for marker in (None, "cancelled"):
            for turns in range(4):
                entering = asyncio.ensure_future(client.transaction("a", marker=marker).__aenter__())
                for _ in range(turns):
                    await asyncio.get_running_loop().run_in_executor(None, lambda: None)
                entering.cancel()
                (left,) = await asyncio.gather(entering, return_exceptions=True)
                if isinstance(left, AsyncTransaction):
                    await left.abort()
                async with client.transaction("a") as tx:
                    await tx.publish(t, b"v")

    run(address, work)
    assert values(gq) == [b"v"] * 8
    assert gq.transactions() == []


def test_an_async_client_that_is_closed_aborts_what_it_has_open(gq: Client, address: str, t: str) -> None:
    async def work(client: AsyncClient) -> None:
        tx = await client.transaction("a").__aenter__()
        await tx.publish(t, b"gone")
        await client.close()
        with pytest.raises(Conflict):
            await tx.commit()

    run(address, work)
    assert gq.transactions() == []
    assert values(gq) == []


def test_the_names_are_there() -> None:
    assert {name for name in dir(Transaction) if name[0] != "_"} == {
        name for name in dir(AsyncTransaction) if name[0] != "_" and name != "blocking"
    }
