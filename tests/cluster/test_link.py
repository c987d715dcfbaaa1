"""Connections between nodes, over real sockets."""

import asyncio
import ssl
import struct
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from goqueue.cluster import link
from goqueue.cluster.link import CallingNode, Greeting, PeerLinks, PeerRefused, PeerServer, PeerUnreachable
from goqueue.errors import GoQueueError, InvalidRequest, RequestTimeout
from tests.cluster.certificates import Certificates

ONE = Greeting(cluster="c1", node=1, incarnation="first")
TWO = Greeting(cluster="c1", node=2, incarnation="second")


async def echo(peer: CallingNode, request: bytes) -> bytes:
    if request == b"refuse":
        raise InvalidRequest("no", path="x")
    if request == b"hang":
        await asyncio.Event().wait()
    return b"%d:%b" % (peer.node, request)


@asynccontextmanager
async def serving(
    answer: link.Answerer = echo,
    greeting: Greeting = TWO,
    tls: ssl.SSLContext | None = None,
    greeting_s: float = link.GREETING_S,
) -> AsyncIterator[tuple[PeerServer, int]]:
    server = PeerServer(lambda: greeting, answer, greeting_s=greeting_s)
    _, port = await server.start("127.0.0.1", 0, tls=tls)
    try:
        yield server, port
    finally:
        await server.stop()


@asynccontextmanager
async def linked(
    port: int,
    greeting: Greeting = ONE,
    tls: ssl.SSLContext | None = None,
    lost: Callable[[int, bool], None] = lambda node, was_refused: None,
) -> AsyncIterator[PeerLinks]:
    links = PeerLinks(lambda: greeting, tls=tls, lost=lost)
    links.set_address(2, "127.0.0.1", port)
    try:
        yield links
    finally:
        await links.close()


def run(test: Callable[[], Coroutine[object, object, None]]) -> Callable[[], None]:
    async def bounded() -> None:
        async with asyncio.timeout(20):
            await test()

    def wrapper() -> None:
        asyncio.run(bounded())

    wrapper.__name__ = test.__name__
    return wrapper


async def until(is_true: Callable[[], bool]) -> None:
    """Wait for a fact that another connection brings about."""
    loop = asyncio.get_running_loop()
    while not is_true():
        turn = asyncio.Event()
        loop.call_later(0.001, turn.set)
        await turn.wait()


@run
async def test_a_call_is_answered_and_names_who_calls() -> None:
    async with serving() as (_, port), linked(port) as links:
        assert await links.call(2, b"hello", timeout_s=5) == b"1:hello"


@run
async def test_calls_overtake_each_other() -> None:
    released = asyncio.Event()

    async def answer(peer: CallingNode, request: bytes) -> bytes:
        if request == b"slow":
            await released.wait()
        return request

    async with serving(answer) as (_, port), linked(port) as links:
        slow = asyncio.ensure_future(links.call(2, b"slow", timeout_s=5))
        assert await links.call(2, b"fast", timeout_s=5) == b"fast"
        assert not slow.done()
        released.set()
        assert await slow == b"slow"


@run
async def test_large_calls_pass_after_the_greeting() -> None:
    request = bytes(range(256)) * 20_000

    async with serving() as (_, port), linked(port) as links:
        assert await links.call(2, request, timeout_s=5) == b"1:" + request


@run
async def test_an_error_of_the_other_node_is_told_with_its_text() -> None:
    async with serving() as (_, port), linked(port) as links:
        with pytest.raises(PeerRefused, match="node 2: no"):
            await links.call(2, b"refuse", timeout_s=5)
        assert await links.call(2, b"go on", timeout_s=5) == b"1:go on"


@run
async def test_an_answer_that_does_not_come_ends_in_a_timeout_and_harms_nobody() -> None:
    async with serving() as (_, port), linked(port) as links:
        with pytest.raises(RequestTimeout, match="a request to node 2"):
            await links.call(2, b"hang", timeout_s=0.05)
        assert await links.call(2, b"go on", timeout_s=5) == b"1:go on"


@run
async def test_a_node_without_an_address_cannot_be_reached() -> None:
    async with serving() as (_, port), linked(port) as links:
        with pytest.raises(PeerUnreachable, match="node 3 cannot be reached: its address is not known"):
            await links.call(3, b"hello", timeout_s=5)
        links.forget(2)
        with pytest.raises(PeerUnreachable, match="its address is not known"):
            await links.call(2, b"hello", timeout_s=5)


@run
async def test_nothing_that_listens_is_a_refusal() -> None:
    async with serving() as (_, port):
        pass
    async with linked(port) as links:
        with pytest.raises(PeerUnreachable, match="nothing listens at 127.0.0.1") as caught:
            await links.call(2, b"hello", timeout_s=5)
    assert caught.value.was_refused


@run
async def test_the_death_of_a_process_is_told_at_once() -> None:
    losses: list[tuple[int, bool]] = []

    async with serving() as (server, port), linked(port, lost=lambda *loss: losses.append(loss)) as links:
        assert await links.call(2, b"hello", timeout_s=5)
        pending = asyncio.ensure_future(links.call(2, b"hang", timeout_s=5))
        await until(lambda: len(server.tasks) == 1)
        await server.stop()
        with pytest.raises(PeerUnreachable, match="the connection broke"):
            await pending
        await until(lambda: bool(losses))
    assert losses == [(2, True)]


@run
async def test_a_connection_that_breaks_alone_is_made_again() -> None:
    losses: list[tuple[int, bool]] = []

    async with serving() as (server, port), linked(port, lost=lambda *loss: losses.append(loss)) as links:
        assert await links.call(2, b"hello", timeout_s=5)
        (connection,) = server.connections
        connection.abort()
        await until(lambda: connection not in server.connections and len(server.connections) == 1)
        assert await links.call(2, b"again", timeout_s=5) == b"1:again"
    assert losses == []


@run
async def test_a_node_that_moved_is_found_at_its_new_address() -> None:
    async with serving() as (_, old), serving() as (_, new), linked(old) as links:
        assert await links.call(2, b"a", timeout_s=5)
        links.set_address(2, "127.0.0.1", new)
        assert await links.call(2, b"b", timeout_s=5) == b"1:b"


@pytest.mark.parametrize(
    ("greeting", "reason"),
    [
        (Greeting(cluster="c9", node=1, incarnation="x"), "this is a node of the cluster c1, not of c9"),
        (Greeting(protocol=9, cluster="c1", node=1, incarnation="x"), "protocol 9 is not spoken here, only 1"),
    ],
)
def test_a_stranger_is_told_why_it_is_refused(greeting: Greeting, reason: str) -> None:
    async def refused() -> None:
        async with serving() as (server, port), linked(port, greeting) as links:
            with pytest.raises(PeerRefused, match=reason):
                await links.call(2, b"hello", timeout_s=5)
            await until(lambda: not server.connections)

    run(refused)()


@run
async def test_another_node_at_the_address_is_not_taken_for_the_wanted_one() -> None:
    async with serving(greeting=Greeting(cluster="c1", node=3, incarnation="x")) as (_, port), linked(port) as links:
        with pytest.raises(PeerRefused, match="this is node 3, not 2: one of two addresses is wrong"):
            await links.call(2, b"hello", timeout_s=5)


@pytest.mark.parametrize(
    "sent",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x00" * 64,
        b"\xff" * 64,
        struct.pack(">I", 1 << 30) + b"\x01" * 60,  # claims a gigabyte before it has greeted
        struct.pack(">IBBHII", 12, 2, 0, 0, 1, 0),
    ],
)
def test_bytes_of_a_stranger_end_its_connection_and_nothing_else(sent: bytes) -> None:
    async def strange() -> None:
        async with serving() as (server, port), linked(port) as links:
            assert await links.call(2, b"a", timeout_s=5)
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(sent)
            writer.write_eof()
            await reader.read(65_536)
            writer.close()
            await until(lambda: len(server.connections) == 1)
            assert await links.call(2, b"b", timeout_s=5) == b"1:b"

    run(strange)()


@run
async def test_a_stranger_that_says_nothing_is_cut_off() -> None:
    async with serving(greeting_s=0.05) as (server, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        assert await reader.read() == b""
        writer.close()
        await until(lambda: not server.connections)


@run
async def test_a_call_before_the_greeting_is_refused() -> None:
    async with serving() as (_, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        payload = b"hello"
        writer.write(link.frames.pack_checked(2, 1, b"", payload) + payload)
        assert b"the first frame has to be a greeting" in await reader.read()
        writer.close()


def test_with_mutual_tls_only_holders_of_a_certificate_are_heard(tmp_path: Path) -> None:
    certificates = Certificates(tmp_path)

    async def secured() -> None:
        async with (
            serving(tls=certificates.server("node2")) as (_, port),
            linked(port, tls=certificates.client("node1")) as links,
        ):
            assert await links.call(2, b"hello", timeout_s=5) == b"1:hello"
            for stranger in (certificates.anonymous(), certificates.foreign()):
                async with linked(port, tls=stranger) as others:
                    with pytest.raises(PeerUnreachable):
                        await others.call(2, b"hello", timeout_s=5)
            async with linked(port) as plain:
                with pytest.raises(PeerUnreachable):
                    await plain.call(2, b"hello", timeout_s=5)
            assert await links.call(2, b"again", timeout_s=5) == b"1:again"

    run(secured)()


def test_errors_of_links_say_whether_a_retry_may_help() -> None:
    unreachable: GoQueueError = PeerUnreachable(2, "x")
    assert unreachable.retryable
    assert not PeerRefused(2, "x").retryable
