"""One connection: each request ends with its own answer, or with the reason why there is none."""

import asyncio
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from goqueue import Client, InvalidRequest, RequestTimeout, RequestTooLarge, TopicNotFound
from goqueue.client.session import CannotConnect, Session, check_size, split_address, told_error
from goqueue.errors import BrokerUnavailable
from goqueue.wire import frames, verbs
from goqueue.wire.frames import Frame, FrameFlags
from goqueue.wire.verbs import Verb

TIMEOUT_S = 20


def talk(address: str, work: Callable[[Session], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(TIMEOUT_S):
            session = await Session.connect(address, client_id="tests")
            try:
                await work(session)
            finally:
                session.close()

    asyncio.run(main())


async def ping(session: Session) -> None:
    assert await session.ask(Verb.PING, verbs.Empty(), verbs.Empty) == verbs.Empty()


def waiting_read(session: Session, **options: Any) -> Awaitable[Frame]:
    """A request that is answered when there is a message in the topic `t`."""
    return session.ask_frame(Verb.READ, verbs.ReadRequest("t", 0, wait_ms=30_000), **options)


# --- requests ------------------------------------------------------------------------------------


def test_many_requests_travel_at_once_and_each_gets_its_own_answer(gq: Client, address: str) -> None:
    for partitions in (1, 2, 3):
        gq.create_topic(f"t{partitions}", partitions=partitions)

    async def work(session: Session) -> None:
        async def count(partitions: int) -> int:
            state = await session.ask(Verb.DESCRIBE_TOPIC, verbs.TopicRequest(f"t{partitions}"), verbs.TopicState)
            return len(state.partitions)

        asked = [1, 2, 3] * 20
        assert await asyncio.gather(*map(count, asked)) == asked

    talk(address, work)


def test_an_error_of_the_broker_fails_its_request_and_no_other(gq: Client, address: str) -> None:
    async def work(session: Session) -> None:
        with pytest.raises(TopicNotFound) as refused:
            await session.ask(Verb.DESCRIBE_TOPIC, verbs.TopicRequest("nowhere"), verbs.TopicState)
        assert refused.value.topic == "nowhere"
        await ping(session)

    talk(address, work)


def test_an_answer_that_waits_holds_up_no_other(gq: Client, address: str) -> None:
    gq.create_topic("t", partitions=1)

    async def work(session: Session) -> None:
        reading = asyncio.ensure_future(waiting_read(session))
        await ping(session)
        assert not reading.done()
        await asyncio.to_thread(gq.publish, "t", b"v")
        assert b"v" in bytes((await reading).payload)

    talk(address, work)


def test_an_answer_that_comes_too_late_is_handed_to_whoever_asked_for_it(gq: Client, address: str) -> None:
    gq.create_topic("t", partitions=1)

    async def work(session: Session) -> None:
        late: asyncio.Queue[Frame] = asyncio.Queue()
        with pytest.raises(RequestTimeout, match="READ"):
            await waiting_read(session, timeout_s=0.01, late=late.put_nowait)
        await asyncio.to_thread(gq.publish, "t", b"v")
        assert b"v" in bytes((await late.get()).payload)
        await ping(session)

    talk(address, work)


def test_a_request_that_is_too_large_is_not_sent(gq: Client, address: str) -> None:
    async def work(session: Session) -> None:
        for meta, payload in (
            (verbs.PublishRequest("t", 0), bytes(session.welcome.frame_bytes_max)),
            (verbs.TopicRequest("t" * frames.META_BYTES_MAX), None),
        ):
            with pytest.raises(RequestTooLarge):
                await session.ask_frame(Verb.PUBLISH, meta, payload)
        await ping(session)

    talk(address, work)


# --- the end -------------------------------------------------------------------------------------


def test_every_open_request_fails_when_the_session_ends(gq: Client, address: str) -> None:
    gq.create_topic("t", partitions=1)

    async def work(session: Session) -> None:
        told: list[str] = []
        session.on_close(lambda: told.append("closed"))
        reads = [asyncio.ensure_future(waiting_read(session)) for _ in range(3)]
        await ping(session)

        session.close()
        session.close()

        for read in reads:
            with pytest.raises(BrokerUnavailable) as lost:
                await read
            assert lost.value.retryable
        assert (told, session.is_closed) == (["closed"], True)
        session.on_close(lambda: told.append("closed already"))
        assert told == ["closed", "closed already"]
        with pytest.raises(BrokerUnavailable, match="is closed"):
            session.send(Verb.PING, verbs.Empty(), None, None)

    talk(address, work)


# --- no session ----------------------------------------------------------------------------------


async def refused(address: str, *, timeout_s: float = TIMEOUT_S) -> CannotConnect:
    with pytest.raises(CannotConnect, match=f"cannot connect to {address}") as caught:
        await Session.connect(address, timeout_s=timeout_s)
    return caught.value


def test_an_address_where_nobody_listens_is_named() -> None:
    assert asyncio.run(refused("127.0.0.1:1")).address == "127.0.0.1:1"


def test_a_peer_that_says_nothing_is_given_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        asyncio.run(refused(f"127.0.0.1:{silent.getsockname()[1]}", timeout_s=0.1))


def test_a_peer_that_speaks_another_protocol_is_told_apart() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await writer.drain()
        writer.close()
        await writer.wait_closed()

    async def main() -> CannotConnect:
        async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
            return await refused(f"127.0.0.1:{server.sockets[0].getsockname()[1]}")

    assert "does not speak this protocol" in asyncio.run(main()).why


# --- parts ---------------------------------------------------------------------------------------


@given(
    host=st.one_of(st.ip_addresses(v=4).map(str), st.from_regex(r"[a-z][a-z0-9.-]{0,20}", fullmatch=True)),
    port=st.integers(0, 65_535),
)
def test_an_address_is_a_host_and_a_port(host: str, port: int) -> None:
    assert split_address(f" {host}:{port} ") == (host, port)


@given(host=st.ip_addresses(v=6).map(str), port=st.integers(0, 65_535))
def test_an_ipv6_address_is_in_brackets(host: str, port: int) -> None:
    assert split_address(f"[{host}]:{port}") == (host, port)


@pytest.mark.parametrize("address", ["", "host", "host:", ":7000", "host:65536", "host:-1", "host:seven"])
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(InvalidRequest, match="host:port"):
        split_address(address)


def test_a_frame_may_be_as_large_as_the_broker_says() -> None:
    limit = 1_000
    fits = bytes(limit - frames.HEADER_BYTES - 10)

    check_size(bytes(10), fits, limit)
    with pytest.raises(RequestTooLarge):
        check_size(bytes(11), fits, limit)


@pytest.mark.parametrize("retryable", [False, True])
def test_the_broker_decides_whether_an_error_may_pass(retryable: bool) -> None:
    meta = verbs.encode(verbs.ErrorMeta("TOPIC_NOT_FOUND", "gone", retryable, {"topic": "t"}))
    frame = Frame(Verb.PING, FrameFlags.ERROR, 1, memoryview(meta), memoryview(b""))

    error = told_error(frame)

    assert isinstance(error, TopicNotFound)
    assert (error.topic, error.retryable) == ("t", retryable)
