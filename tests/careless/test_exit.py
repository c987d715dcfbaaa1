"""A process that ends without closing what it opened: nothing that was sent is lost in silence."""

import signal
import socket
from textwrap import dedent

import pytest

from goqueue import Client
from tests.careless.scripts import Script, run

EXITS = {
    "the script ends": """
        p = Client(address).producer(linger="1h", batch_count=10_000)
        for number in range(1_000):
            p.send(topic, b"%d" % number)
    """,
    "the default linger": """
        gq = Client(address)
        p = gq.producer()
        for number in range(1_000):
            p.send(topic, b"%d" % number)
    """,
    "sys.exit": """
        gq = Client(address)
        p = gq.producer(linger="1h", batch_count=10_000)
        for number in range(1_000):
            p.send(topic, b"%d" % number)
        sys.exit(0)
    """,
    "several clients and producers": """
        gqs = [Client(address), Client(address)]
        ps = [gq.producer(linger="1h", batch_count=10_000) for gq in gqs for _ in range(2)]
        for number in range(1_000):
            ps[number % 4].send(topic, b"%d" % number)
    """,
    "the producer is dropped": """
        gq = Client(address)
        def work():
            p = gq.producer(linger="1h", batch_count=10_000)
            for number in range(1_000):
                p.send(topic, b"%d" % number)
        work()
    """,
    "the client and the producer are dropped": """
        def work():
            p = Client(address).producer(linger="1h", batch_count=10_000)
            for number in range(1_000):
                p.send(topic, b"%d" % number)
        work()
    """,
    "a thread outlives the script": """
        gq = Client(address)
        p = gq.producer(linger="1h", batch_count=10_000)
        def work():
            threading.Event().wait(0.3)
            for number in range(1_000):
                p.send(topic, b"%d" % number)
        threading.Thread(target=work).start()
    """,
    "an exit handler sends": """
        gq = Client(address)
        p = gq.producer(linger="1h", batch_count=10_000)
        @atexit.register
        def late():
            for number in range(1_000):
                p.send(topic, b"%d" % number)
    """,
    "asyncio without uvloop, and a name that is looked up only at the end": """
        sys.modules["uvloop"] = None
        port = address.rpartition(":")[2]
        gq = Client(f"localhost:{port}")
        p = gq.producer(linger="1h", batch_count=10_000)
        for number in range(1_000):
            p.send(topic, b"%d" % number)
        gq._loop.call(lambda: [task.result().close() for task in gq._client._connections._sessions.values()])
    """,
    "asyncio.run ends": """
        async def main():
            gq = AsyncClient(address)
            p = gq.producer(linger="1h", batch_count=10_000)
            for number in range(1_000):
                await p.send(topic, b"%d" % number)
        asyncio.run(main())
    """,
    "uvloop.run ends": """
        import uvloop
        async def main():
            p = AsyncClient(address).producer(linger="1h", batch_count=10_000)
            for number in range(1_000):
                await p.send(topic, b"%d" % number)
        uvloop.run(main())
    """,
    "an event loop is left as it is": """
        gq = AsyncClient(address)
        async def main():
            p = gq.producer(linger="1h", batch_count=10_000)
            for number in range(1_000):
                await p.send(topic, b"%d" % number)
        loop = asyncio.new_event_loop()
        loop.run_until_complete(main())
    """,
    "os.fork and both exit": """
        gq = Client(address)
        p = gq.producer(linger="1h", batch_count=10_000)
        for number in range(1_000):
            p.send(topic, b"%d" % number)
        if os.fork():
            os.wait()
    """,
    "a worker of multiprocessing": """
        import multiprocessing
        def work():
            p = Client(address).producer(linger="1h", batch_count=10_000)
            for number in range(1_000):
                p.send(topic, b"%d" % number)
        process = multiprocessing.get_context("fork").Process(target=work)
        process.start()
        process.join()
        sys.exit(process.exitcode)
    """,
}


@pytest.mark.parametrize("source", EXITS.values(), ids=EXITS.keys())
def test_what_was_sent_is_stored_when_the_process_ends(source: str, address: str, topic: str, gq: Client) -> None:
    ended = run(source, address, topic)

    assert (ended.code, ended.err) == (0, "")
    assert sorted(int(message.value) for message in gq.read(topic)) == list(range(1_000))


def test_an_unhandled_error_does_not_keep_what_was_sent_from_being_stored(address: str, topic: str, gq: Client) -> None:
    ended = run(
        """
        p = Client(address).producer(linger="1h")
        p.send(topic, b"sent")
        raise ValueError("unhandled")
        """,
        address,
        topic,
    )

    assert ended.code == 1
    assert "unhandled" in ended.err
    assert [message.value for message in gq.read(topic)] == [b"sent"]


@pytest.mark.parametrize("use", ["sync", "async"])
def test_an_unclosed_client_is_a_resource_warning(use: str, address: str, topic: str) -> None:
    source = {
        "sync": "Client(address).publish(topic, b'x')",
        "async": "asyncio.run(AsyncClient(address).publish(topic, b'x'))",
    }[use]

    ended = run(source, address, topic, "-W", "default")

    assert ended.code == 0
    assert "ResourceWarning: unclosed" in ended.err
    assert "Client(...) as gq:`, or call its close()" in ended.err


def test_an_unclosed_producer_is_a_resource_warning(address: str, topic: str, gq: Client) -> None:
    ended = run(
        """
        with Client(address) as gq:
            gq.producer(linger="1h").send(topic, b"sent")
        """,
        address,
        topic,
        "-W",
        "default",
    )

    assert "ResourceWarning: unclosed Producer" in ended.err
    assert [message.value for message in gq.read(topic)] == [b"sent"]


def test_closed_clients_say_nothing(address: str, topic: str) -> None:
    ended = run(
        """
        with Client(address) as gq, gq.producer() as p:
            p.send(topic, b"x")
        async def main():
            async with AsyncClient(address) as gq:
                async with gq.producer() as p:
                    await p.send(topic, b"x")
        asyncio.run(main())
        """,
        address,
        topic,
        "-W",
        "error",
        "-X",
        "dev",
    )

    assert (ended.code, ended.err) == (0, "")


@pytest.mark.parametrize("use", ["sync", "async", "stopped loop"])
def test_a_warning_tells_what_could_not_be_stored(use: str, topic: str) -> None:
    sources = {
        "sync": """
            broker = testing_broker()
            gq = Client(broker.address)
            gq.create_topic("orders", partitions=1)
            p = gq.producer(linger="1h")
            for number in range(42):
                p.send("orders", b"x")
            broker.stop()
        """,
        "async": """
            broker = testing_broker()
            async def main():
                gq = AsyncClient(broker.address)
                await gq.create_topic("orders", partitions=1)
                p = gq.producer(linger="1h")
                for number in range(42):
                    await p.send("orders", b"x")
                broker.stop()
            asyncio.run(main())
        """,
        "stopped loop": """
            broker = testing_broker()
            gq = AsyncClient(broker.address)
            async def main():
                await gq.create_topic("orders", partitions=1)
                p = gq.producer(linger="1h")
                for number in range(42):
                    await p.send("orders", b"x")
            loop = asyncio.new_event_loop()
            loop.run_until_complete(main())
            loop.close()
            broker.stop()
        """,
    }
    prelude = """
    from goqueue.testing import EmbeddedBroker
    from goqueue.client import exits
    exits.FLUSH_TIMEOUT_S = 0.5
    def testing_broker():
        return EmbeddedBroker(http=False).start()
    """
    ended = run(dedent(prelude) + dedent(sources[use]), "unused", topic)

    assert ended.code == 0
    assert "GoQueueWarning: 42 messages were sent and not stored: 42 of orders" in ended.err


def test_a_message_that_was_refused_is_told_at_exit(address: str, topic: str, gq: Client) -> None:
    ended = run(
        """
        gq = Client(address)
        p = gq.producer(linger="1h")
        p.send(topic, b"x")
        gq.delete_topic(topic)
        """,
        address,
        topic,
    )

    assert f"1 message was sent and not stored: 1 of {topic} (topic not found" in ended.err


def test_a_second_interrupt_ends_the_flush_at_exit(topic: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # accepts, and never answers
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        source = """
            from goqueue.testing import EmbeddedBroker
            broker = EmbeddedBroker(http=False).start()
            gq = Client(broker.address)
            gq.create_topic("orders", partitions=1)
            p = gq.producer(linger="1h")
            p.send("orders", b"x")
            broker.stop()
            gq._client._connections.addresses[:] = [address]
            gq._client._connections._nodes.clear()
            gq._client._connections._topics.clear()
            atexit.register(say, "exiting")
            say("sent")
        """
        with Script(source, address, topic) as script:
            script.wait_for("exiting")
            script.signal(signal.SIGINT)
            ended = script.end()

    assert "1 message was sent and not stored: 1 of orders" in ended.err
