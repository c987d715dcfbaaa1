"""Loops over the messages of a group: each message is settled as its block was left, and a loop ends cleanly."""

import asyncio
import gc
import logging
import signal
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from goqueue import AsyncClient, Client, Conflict, GoQueueWarning, ReceiptUnknown
from goqueue.wire.verbs import Verb
from tests.client.faulty_network import Proxy
from tests.client.test_consumer import eventually, floor, values

QUICK = {"backoff_initial": "10ms", "backoff_max": "10ms"}
TIMEOUT_S = 20


# --- blocks -------------------------------------------------------------------------------------


def test_leaving_the_block_acknowledges(one: Client) -> None:
    seen = []
    for message in one.consume("t", group="g", stop="empty"):
        with message as same:
            assert same is message
            seen.append(int(message.value))

    assert seen == list(range(10))
    assert floor(one) == 10
    assert one.describe_group("g").members == []


def test_an_exception_gives_the_message_back_with_its_text(one: Client) -> None:
    one.alter_topic("t", max_deliveries=1)

    def work() -> None:
        for message in one.consume("t", group="g", limit=1):
            with message:
                raise KeyError("no such customer")

    with pytest.raises(KeyError):
        work()

    eventually(lambda: one.dead_letters("t"))
    (letter,) = one.dead_letters("t")
    assert (letter.origin_offset, letter.error) == (0, "KeyError: 'no such customer'")
    one.delete_topic("t.dlq")


def test_an_exception_that_is_caught_outside_the_block_does_not_end_the_loop(one: Client) -> None:
    seen: list[tuple[int, int]] = []
    for message in one.consume("t", group="g", idle="500ms", batch=3):
        try:
            with message:
                seen.append((int(message.value), message.delivery_count))
                if message.delivery_count == 1 and message.offset % 2:
                    raise ValueError("odd")
        except ValueError:
            pass

    assert sorted(seen) == sorted([(n, 1) for n in range(10)] + [(n, 2) for n in range(1, 10, 2)])
    assert floor(one) == 10


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, GeneratorExit, asyncio.CancelledError])
def test_what_is_not_the_fault_of_the_message_is_not_counted(one: Client, error: type[BaseException]) -> None:
    def work() -> None:
        for message in one.consume("t", group="g"):
            with message:
                raise error

    for _ in range(5):
        with pytest.raises(error):
            work()
        assert one.describe_group("g").members == []

    with one.consumer("t", group="g") as consumer:
        batch = consumer.poll()
        assert values(batch) == list(range(10))
        assert {message.delivery_count for message in batch} == {1}


def test_a_loop_that_is_left_gives_back_what_nobody_saw(one: Client) -> None:
    for message in one.consume("t", group="g"):
        with message:
            if message.offset == 3:
                break

    assert floor(one) == 4
    with one.consumer("t", group="g") as consumer:
        batch = consumer.poll()
        assert values(batch) == [4, 5, 6, 7, 8, 9]
        assert {message.delivery_count for message in batch} == {1}


def test_what_was_seen_and_not_settled_has_been_delivered(one: Client) -> None:
    with pytest.warns(GoQueueWarning, match="not settled"):
        for _ in one.consume("t", group="g", limit=2):
            pass

    with one.consumer("t", group="g") as consumer:
        assert [(int(m.value), m.delivery_count) for m in consumer.poll(3)] == [(0, 2), (1, 2), (2, 1)]


@pytest.mark.parametrize("at", [0, 4, 9])
def test_a_loop_without_leases_commits_no_more_than_was_seen(one: Client, at: int) -> None:
    for message in one.consume("t", group="g", ack="auto"):
        if message.offset == at:
            break

    assert floor(one) == at  # whether the last one is done is not known
    assert [message.offset for message in one.consume("t", group="g", ack="auto", stop="empty")] == list(range(at, 10))
    assert floor(one) == 10


# --- messages that are left unsettled -----------------------------------------------------------


def test_a_message_that_is_left_unsettled_is_told_once_per_loop_with_the_fix(one: Client) -> None:
    for _ in range(2):
        with pytest.warns(GoQueueWarning) as caught:
            for _ in one.consume("t", group="g", limit=5):
                pass

        (warning,) = caught
        assert "t-0 @ 0 is not settled" in str(warning.message)
        assert "`with message:`" in str(warning.message)
        assert warning.filename == __file__
        one.delete_group("g")


def test_a_message_that_is_only_extended_is_unsettled(one: Client) -> None:
    loop = iter(one.consume("t", group="g", limit=2))
    next(loop).extend("1m")

    with pytest.warns(GoQueueWarning, match="0 @ 0 is not settled"):
        next(loop)


def test_a_task_is_told_of_a_message_that_is_left_unsettled(one: Client, address: str) -> None:
    async def work(client: AsyncClient) -> None:
        async for _ in client.consume("t", group="g", limit=5):
            pass

    with pytest.warns(GoQueueWarning, match="`async with message:`") as caught:
        run(address, work)
    assert [warning.filename for warning in caught] == [__file__]


@pytest.mark.parametrize("how", ["block", "ack", "nack", "reject", "transaction", "auto", "offsets"])
def test_a_message_that_is_settled_in_any_way_makes_no_sound(one: Client, how: str) -> None:
    ack = how if how in ("auto", "offsets") else "each"
    for message in one.consume("t", group="g", limit=3, ack=ack):
        if how == "block":
            with message:
                pass
        elif how == "transaction":
            with one.transaction("tx") as tx:
                tx.ack(message)
        elif ack == "each":
            getattr(message, how)()


# --- the background -----------------------------------------------------------------------------


def test_acks_in_the_background_are_sent_soon(one: Client) -> None:
    with one.consumer("t", group="g") as consumer:
        for message in consumer.poll():
            with message:
                pass
        began = monotonic()
        eventually(lambda: floor(one) == 10)
        assert monotonic() - began < 1


def test_acks_in_the_background_are_sent_before_the_next_poll(one: Client, address: str) -> None:
    with one.consumer("t", group="g", max_in_flight=1) as consumer:
        for number in range(10):
            (message,) = consumer.poll(timeout=0)
            assert int(message.value) == number
            with message:
                pass


def test_acks_in_the_background_travel_together(one: Client, address: str) -> None:
    with Proxy(address) as proxy, Client(proxy.address) as client, client.consumer("t", group="g") as consumer:
        batch = consumer.poll()
        proxy.mute()
        for message in batch[:5]:
            with message:
                pass
        consumer._connection.post(lambda: None)
        proxy.wait_for_muted_answer()
        proxy.mute(False)
        proxy.cut()
        consumer.ack(batch[5:])
        consumer.flush()
        assert floor(one) == 10


@pytest.mark.filterwarnings("ignore:the next message:goqueue.GoQueueWarning")
def test_acks_from_other_threads_are_none_lost(one: Client) -> None:
    one.publish_many("t", [b"%d" % number for number in range(10, 2_000)])

    def work(message: Any) -> None:
        with message:
            pass

    with ThreadPoolExecutor(4) as threads:
        working = []
        for message in one.consume("t", group="g", limit=2_000):
            working.append(threads.submit(work, message))
            if len(working) == 2_000:
                assert [done.result() for done in working] == [None] * 2_000

    assert floor(one) == 2_000


def test_an_ack_in_the_background_that_is_refused_is_told_in_the_log(
    one: Client, caplog: pytest.LogCaptureFixture
) -> None:
    with one.consumer("t", group="g") as consumer:
        (message,) = consumer.poll(1)
        message.ack()
        with caplog.at_level(logging.WARNING, "goqueue.consumer"):
            with message:
                pass
            consumer.flush()
        with pytest.raises(ReceiptUnknown):
            message.ack()

    assert "background ack failed messages=1" in caplog.text


def test_ctrl_c_while_acks_are_sent_loses_none(one: Client, address: str) -> None:
    with Proxy(address) as proxy, Client(proxy.address) as client:
        consumer = client.consumer("t", group="g")
        batch = consumer.poll()
        is_waiting = threading.Event()

        def interrupt() -> None:
            proxy.wait_for_muted_answer()
            assert is_waiting.wait(TIMEOUT_S)
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

        def work() -> None:
            for message in batch:
                with message:
                    pass
            is_waiting.set()
            consumer.flush()

        proxy.mute()
        with ThreadPoolExecutor(1) as threads:
            interrupting = threads.submit(interrupt)
            with pytest.raises(KeyboardInterrupt):
                work()
            interrupting.result()
        proxy.mute(False)
        proxy.cut()
        consumer.close()
    assert floor(one) == 10


# --- where a loop ends --------------------------------------------------------------------------


def test_a_loop_ends_after_a_number_of_messages(one: Client) -> None:
    for limit in (0, 1, 3):
        before = floor(one)
        seen = [message.ack() or int(message.value) for message in one.consume("t", group="g", limit=limit, batch=2)]
        assert seen == list(range(before, before + limit))
    assert floor(one) == 4


def test_a_loop_ends_when_nothing_came_for_a_while(one: Client) -> None:
    began = monotonic()
    assert len([message.ack() for message in one.consume("t", group="g", idle="100ms")]) == 10
    assert 0.1 <= monotonic() - began < 10
    assert list(one.consume("t", group="g", stop="empty")) == []


def test_a_loop_drains_what_another_member_has_to_give_back_first(gq: Client) -> None:
    gq.create_topic("t", partitions=2)
    with gq.consumer("t", group="g") as other:
        other.join()
        gq.publish_many("t", [(b"k%d" % number, b"%d" % number) for number in range(20)])
        batch = other.poll() + other.poll(timeout=0)  # and is busy with it from now on
        other.nack(batch, delay=0)
        count = sum(1 for message in gq.consume("t", group="g", stop="empty") if message.ack() is None)
    assert 0 < count < 20


def test_every_loop_over_it_is_one_of_its_own(one: Client) -> None:
    messages = one.consume("t", group="g", limit=2)
    assert [message.ack() or int(message.value) for message in messages] == [0, 1]
    with pytest.raises(Conflict, match="after close"):
        next(iter(messages))


@pytest.mark.parametrize("where", ["idle", "working", "batch"])
def test_ctrl_c_leaves_the_group_cleanly(one: Client, address: str, where: str) -> None:
    child = [sys.executable, str(Path(__file__).with_name("interrupted.py")), address, where]
    with subprocess.Popen(child, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        if where == "idle":
            eventually(lambda: "g" in one.groups() and one.describe_group("g").members)
        else:
            assert process.stdout.readline() == "has 0\n"
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=TIMEOUT_S)

    assert (process.returncode, out, err) == (0, "left\n", "")
    assert one.describe_group("g").members == []
    assert floor(one) == {"idle": 10, "working": 0, "batch": 1}[where]
    with one.consumer("t", group="g") as consumer:
        assert {message.delivery_count for message in consumer.poll(timeout="100ms")} <= {1}


# --- many at once -------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["shared", "partitioned", "key-shared"])
def test_eight_consumers_share_the_work_and_none_is_done_twice_or_lost(gq: Client, mode: str) -> None:
    gq.create_topic("t", partitions=4)
    gq.publish_many("t", [(b"k%d" % (number % 50), b"%d" % number) for number in range(2_000)])
    seen: list[int] = []

    def work(number: int) -> None:
        for message in gq.consume("t", group="many", mode=mode, idle="700ms", batch=20):
            with message:
                seen.append(int(message.value))

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(work, range(8)))

    assert sorted(seen) == list(range(2_000))
    assert floor(gq, "many") == 2_000
    assert gq.describe_group("many").members == []
    gq.delete_group("many")


def test_consumers_come_and_go_and_every_message_is_done(gq: Client) -> None:
    gq.create_topic("t", partitions=6, **QUICK)
    gq.publish_many("t", [(b"k%d" % number, b"%d" % number) for number in range(1_500)])
    done: set[int] = set()

    def work(number: int) -> None:
        while len(done) < 1_500:
            with gq.consumer("t", group="many") as consumer:
                for _ in range(3):
                    batch = consumer.poll(10 + number, timeout="100ms")
                    consumer.ack(batch)
                    done.update(values(batch))

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(work, range(4)))

    eventually(lambda: floor(gq, "many") == 1_500)
    gq.delete_group("many")


# --- with an event loop -------------------------------------------------------------------------


def run(address: str, work: Callable[[AsyncClient], Awaitable[Any]]) -> Any:
    async def main() -> Any:
        async with asyncio.timeout(TIMEOUT_S), AsyncClient(address, timeout="10s") as gq:
            return await work(gq)

    return asyncio.run(main())


def test_a_task_settles_as_a_thread_does(one: Client, address: str) -> None:
    async def work(gq: AsyncClient) -> None:
        async with gq.consumer("t", group="g") as consumer:
            batch = await consumer.poll()
            assert [int(message.value) for message in batch] == list(range(10))
            await consumer.ack(batch[:2])
            await batch[2].ack()
            await batch[3].nack(delay=0)
            await consumer.reject(batch[4], reason="bad")
            await batch[5].extend("1m")
            (again,) = await consumer.poll(timeout="10s")
            assert (again.offset, again.delivery_count) == (3, 2)
            async with again:
                pass
            with pytest.raises(ReceiptUnknown):
                await consumer.ack(batch)
            with pytest.raises(Conflict):
                await consumer.commit()
        with pytest.raises(Conflict, match="after close"):
            await consumer.poll()

    run(address, work)
    assert floor(one) == 10
    assert len(one.dead_letters("t")) == 1
    assert one.describe_group("g").members == []
    one.delete_topic("t.dlq")


def test_a_task_loops_and_its_client_says_goodbye(one: Client, address: str) -> None:
    async def work(gq: AsyncClient) -> None:
        async for message in gq.consume("t", group="g"):
            async with message:
                if message.offset == 3:
                    break

    run(address, work)
    gc.collect()
    assert floor(one) == 4
    assert one.describe_group("g").members == []


def test_a_loop_that_is_closed_gives_back_what_nobody_saw(one: Client, address: str) -> None:
    async def work(gq: AsyncClient) -> None:
        async with aclosing(aiter(gq.consume("t", group="g"))) as messages:  # type: ignore[type-var]
            async for message in messages:
                async with message:
                    if message.offset == 3:
                        break

    run(address, work)
    with one.consumer("t", group="g") as consumer:
        assert [(m.offset, m.delivery_count) for m in consumer.poll()] == [(n, 1) for n in range(4, 10)]


def test_only_one_task_polls_at_a_time_and_any_may_settle(one: Client, address: str) -> None:
    async def work(gq: AsyncClient) -> None:
        async with gq.consumer("t", group="g") as consumer:
            batch = await consumer.poll()
            waiting = asyncio.ensure_future(consumer.poll(timeout="10s"))
            while not consumer._is_polling:
                await gq.groups()
            with pytest.raises(Conflict, match="one task at a time"):
                await consumer.poll()
            await asyncio.gather(*(message.ack() for message in batch))
            await gq.publish("t", b"10")
            await consumer.ack(await waiting)

    run(address, work)
    assert floor(one) == 11


def test_a_consumer_that_is_closed_while_a_task_polls_does_not_come_back(one: Client, address: str) -> None:
    async def work(gq: AsyncClient) -> None:
        consumer = gq.consumer("t", group="g", start="latest")
        await consumer.join()
        waiting = asyncio.ensure_future(consumer.poll(timeout="20s"))
        while not consumer._is_polling:
            await gq.groups()
        await consumer.close()
        with pytest.raises(Conflict, match="after close"):
            await waiting
        assert (await gq.describe_group("g")).members == []

    run(address, work)


@pytest.mark.parametrize("ack", ["each", "offsets", "auto"])
def test_a_poll_that_is_cancelled_takes_no_message_with_it(one: Client, address: str, ack: str) -> None:
    async def work(gq: AsyncClient) -> list[int]:
        seen: list[int] = []
        async with gq.consumer("t", group="g", ack=ack) as consumer:
            await consumer.join()
            for number in range(20):
                polling = asyncio.ensure_future(consumer.poll(2, timeout="10s"))
                for _ in range(number):
                    await asyncio.wait([polling], timeout=0)
                polling.cancel()
                await asyncio.wait([polling])
                if not polling.cancelled():
                    seen += [message.offset for message in polling.result()]
            while set(seen) != set(range(10)):
                seen += [message.offset for message in await consumer.poll(timeout="10s")]
        return seen

    began = monotonic()
    run(address, work)
    assert monotonic() - began < 10


def test_a_poll_that_waits_and_is_cancelled_steals_nothing_from_others(one: Client, address: str) -> None:
    async def work(gq: AsyncClient) -> list[tuple[bytes, int]]:
        settings: dict[str, Any] = {"group": "g", "mode": "shared", "start": "latest"}
        async with gq.consumer("t", **settings) as consumer, gq.consumer("t", **settings) as other:
            await consumer.join()
            await other.join()
            waiting = asyncio.ensure_future(consumer.poll(timeout="20s"))
            while not consumer._is_polling:
                await gq.groups()
            waiting.cancel()
            await asyncio.wait([waiting])
            await gq.publish("t", b"10")
            return [(message.value, message.delivery_count) for message in await other.poll(timeout="10s")]

    assert run(address, work) == [(b"10", 1)]


def test_a_task_that_is_cancelled_in_a_block_releases_the_message(one: Client, address: str) -> None:
    async def work(gq: AsyncClient) -> None:
        began = asyncio.Event()

        async def consume() -> None:
            async for message in gq.consume("t", group="g"):
                async with message:
                    began.set()
                    await asyncio.Event().wait()

        working = asyncio.ensure_future(consume())
        await began.wait()
        working.cancel()
        await asyncio.wait([working])

    run(address, work)
    with one.consumer("t", group="g") as consumer:
        assert [(m.offset, m.delivery_count) for m in consumer.poll()] == [(n, 1) for n in range(10)]


def test_answers_that_are_lost_cost_a_task_no_message(one: Client, address: str) -> None:
    async def work(gq: AsyncClient) -> None:
        async with gq.consumer("t", group="g") as consumer:
            seen: list[Any] = []
            while len(seen) < 10:
                proxy.lose_answers(Verb.POLL, 1)
                seen += await consumer.poll(3)
            assert [(m.offset, m.delivery_count) for m in seen] == [(n, 1) for n in range(10)]
            proxy.lose_answers(Verb.SETTLE, 2)
            await consumer.ack(seen)

    with Proxy(address) as proxy:
        run(proxy.address, work)
    assert floor(one) == 10


def test_long_work_of_a_task_keeps_its_lease(one: Client, address: str) -> None:
    async def work(gq: AsyncClient) -> None:
        async with (
            gq.consumer("t", group="g", mode="shared", visibility="200ms") as consumer,
            gq.consumer("t", group="g", mode="shared") as other,
        ):
            batch = await consumer.poll()
            assert await other.poll(timeout="1s") == []
            await consumer.ack(batch)

    run(address, work)
    assert floor(one) == 10
