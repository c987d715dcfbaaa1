"""The client with an event loop: the same methods, awaited; many tasks share it."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from goqueue import (
    AsyncClient,
    AsyncHandle,
    BrokerUnavailable,
    Client,
    Conflict,
    GoQueueWarning,
    InvalidMessage,
    RequestTimeout,
    TopicExists,
    TopicNotFound,
)
from tests.client.faulty_network import Proxy

TIMEOUT_S = 20


def run(address: str, work: Callable[[AsyncClient], Awaitable[Any]]) -> Any:
    async def main() -> Any:
        async with asyncio.timeout(TIMEOUT_S), AsyncClient(address, timeout="10s") as gq:
            return await work(gq)

    return asyncio.run(main())


def test_a_topic_is_made_published_to_read_and_deleted(gq: Client, address: str) -> None:
    async def work(client: AsyncClient) -> None:
        made = await client.create_topic("t", partitions=2, retention="7d")
        assert await client.describe_topic("t") == made
        assert await client.create_topic("t", exist_ok=True) == made
        with pytest.raises(TopicExists):
            await client.create_topic("t")
        assert (await client.alter_topic("t", retention="1h")).settings["retention"] == "1h"
        assert await client.topics() == ["t"]
        place = await client.publish("t", {"id": 1}, key="k", priority="high", headers={"a": "b"}, ttl="1h")
        many = await client.publish_many("t", [b"a", ("k", b"b")])
        assert len(many) == 2
        assert sum(await client.offsets("t")) == 3
        messages = [message async for message in client.read("t")]
        (first,) = (m for m in messages if (m.partition, m.offset) == (place.partition, place.offset))
        assert (first.json(), first.key, first.priority.name) == ({"id": 1}, b"k", "HIGH")
        assert first.headers["a"] == "b"
        assert (await client.stats()).topic_count >= 1
        await client.delete_topic("t")
        with pytest.raises(TopicNotFound):
            await client.publish("t", b"v")

    run(address, work)


def test_many_tasks_publish_at_once(gq: Client, address: str) -> None:
    gq.create_topic("t", partitions=3)

    async def work(client: AsyncClient) -> list[Any]:
        return await asyncio.gather(*(client.publish("t", b"%d" % number) for number in range(300)))

    places = run(address, work)

    stored = {(message.partition, message.offset): message.value for message in gq.read("t")}
    assert [stored[place.partition, place.offset] for place in places] == [b"%d" % number for number in range(300)]


def test_a_handle_can_be_awaited(gq: Client, address: str) -> None:
    gq.create_topic("t", partitions=1)
    called: list[AsyncHandle] = []

    async def work(client: AsyncClient) -> None:
        async with client.producer(linger="10ms") as producer:
            handle = await producer.send("t", b"v")
            handle.add_callback(called.append)
            assert (await handle).offset == 0
            assert handle.is_done
            assert await handle == await handle.result()
            handle.add_callback(called.append)
        assert called == [handle, handle]

    run(address, work)


def test_leaving_the_block_flushes_and_raises_what_nobody_saw(gq: Client, address: str) -> None:
    gq.create_topic("t", partitions=1)
    gq.create_topic("gone", partitions=1)

    async def work(client: AsyncClient) -> None:
        producer = client.producer(linger="1h")
        async with producer:
            good = await producer.send("t", b"v")
        assert (await good).offset == 0

        producer = client.producer(linger="1h")
        await producer.send("gone", b"known")
        await producer.flush()
        bad = await producer.send("gone", b"bad")
        await client.delete_topic("gone")
        with pytest.raises(TopicNotFound) as caught:
            await producer.close()
        assert caught.value.handle is bad  # type: ignore[attr-defined]
        with pytest.raises(Conflict):
            await producer.send("t", b"v")

    run(address, work)


def test_what_was_sent_is_flushed_when_an_exception_leaves_the_block(gq: Client, address: str) -> None:
    gq.create_topic("t", partitions=1)

    async def work(client: AsyncClient) -> None:
        producer = client.producer(linger="1h")
        handle = await producer.send("t", b"v")
        with pytest.raises(ZeroDivisionError):
            async with producer:
                raise ZeroDivisionError
        assert (await handle).offset == 0

    run(address, work)


def test_a_cancelled_task_flushes_what_it_has_sent(gq: Client, address: str) -> None:
    gq.create_topic("t", partitions=1)

    async def work(client: AsyncClient) -> None:
        has_sent = asyncio.Event()

        async def send() -> None:
            async with client.producer(linger="1h") as producer:
                await producer.send("t", b"v")
                has_sent.set()
                await asyncio.Event().wait()

        task = asyncio.create_task(send())
        await has_sent.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    run(address, work)
    assert [message.value for message in gq.read("t")] == [b"v"]


def test_a_second_cancellation_cuts_the_flush_short_with_a_warning(gq: Client, address: str) -> None:
    gq.create_topic("t", partitions=1)

    async def work(client: AsyncClient) -> None:
        has_sent, is_flushing = asyncio.Event(), asyncio.Event()

        async def send() -> None:
            producer = client.producer(linger="1h")
            async with producer:
                await producer.send("t", b"v")
                await producer.flush()
                proxy.mute()
                await producer.send("t", b"lost")
                has_sent.set()
                try:
                    await asyncio.Event().wait()
                finally:
                    is_flushing.set()

        task = asyncio.create_task(send())
        await has_sent.wait()
        task.cancel()
        await is_flushing.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    with Proxy(address) as proxy, pytest.warns(GoQueueWarning, match="1 message was sent and not stored: 1 of t"):
        run(proxy.address, work)


def test_whoever_does_not_want_to_wait_for_ever_gets_a_request_timeout(gq: Client, address: str) -> None:
    gq.create_topic("t", partitions=1)

    async def work(client: AsyncClient) -> None:
        async with client.producer(linger="1h") as producer:
            handle = await producer.send("t", b"v")
            with pytest.raises(RequestTimeout):
                await handle.result(timeout="10ms")

    run(address, work)


def test_whoever_sends_waits_while_too_much_is_on_its_way(gq: Client, address: str) -> None:
    gq.create_topic("t", partitions=1)

    async def work(client: AsyncClient) -> None:
        async with client.producer(linger=0, buffer_bytes=1_000) as producer:
            await (await producer.send("t", b"first"))
            proxy.mute()
            await producer.send("t", b"v" * 3_000)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(producer.send("t", b"v" * 3_000), 0.1)
            proxy.mute(False)
            proxy.cut()
            await producer.send("t", b"w" * 3_000)

    with Proxy(address) as proxy:
        run(proxy.address, work)
    assert [message.value[:1] for message in gq.read("t")] == [b"f", b"v", b"w"]


def test_a_task_that_is_cancelled_leaves_the_client_usable(gq: Client, address: str) -> None:
    gq.create_topic("t", partitions=1)

    async def work(client: AsyncClient) -> None:
        await client.publish("t", b"first")
        proxy.mute()
        for waiting in (client.publish("t", b"lost"), client.topics(), client.follow("t").next_batch()):
            task = asyncio.ensure_future(waiting)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(task, 0.05)
        proxy.mute(False)
        proxy.cut()
        assert await client.topics() == ["t"]
        assert (await client.publish("t", b"last")).offset >= 1

    with Proxy(address) as proxy:
        run(proxy.address, work)
    stored = [message.value for message in gq.read("t")]
    assert stored in ([b"first", b"lost", b"last"], [b"first", b"last"])


def test_a_broker_that_takes_connections_and_says_nothing_is_given_up_within_the_timeout(address: str) -> None:
    async def work() -> None:
        async with AsyncClient(proxy.address, timeout="1500ms") as client:
            for ask in (client.topics(), client.create_topic("t"), client.publish("t", b"v")):
                with pytest.raises((RequestTimeout, BrokerUnavailable)):
                    await asyncio.wait_for(ask, 5)

    with Proxy(address) as proxy:
        proxy.mute()
        asyncio.run(work())


def test_nothing_of_many_is_stored_if_one_of_them_cannot_be(gq: Client, address: str) -> None:
    gq.create_topic("t", partitions=1)

    async def work(client: AsyncClient) -> None:
        with pytest.raises(InvalidMessage):
            await client.publish_many("t", [b"a", object()])
        assert (await client.publish_many("t", [b"b"]))[0].offset == 0

    run(address, work)


def test_following_ends_when_the_client_is_closed(gq: Client, address: str) -> None:
    gq.create_topic("t", partitions=2)

    async def work() -> None:
        client = AsyncClient(address)
        messages = client.follow("t", start="earliest")
        gq.publish("t", b"v")
        assert len(await messages.next_batch()) == 1
        waiting = asyncio.ensure_future(messages.next_batch())
        await client.topics()
        await client.close()
        with pytest.raises(Conflict):
            await asyncio.wait_for(waiting, 5)

    asyncio.run(work())


def test_closing_a_follow_ends_it_for_whoever_waits(gq: Client, address: str) -> None:
    gq.create_topic("t", partitions=2)

    async def work(client: AsyncClient) -> None:
        async with client.follow("t") as messages:
            waiting = asyncio.ensure_future(messages.next_batch())
            await client.topics()
        assert await waiting == []
        assert await messages.next_batch() == []
        assert [message async for message in messages] == []

    run(address, work)
