"""Signals at the worst moment: what was sent is stored, or a warning says that it is not."""

import signal

from goqueue import Client
from tests.careless.scripts import Script, run

SENDING = """
    with Client(address) as gq:
        with gq.producer(linger="1h", batch_count=10_000) as p:
            for number in range(500):
                p.send(topic, b"%d" % number)
            say("sent")
            wait_for_signal()
"""


def test_an_interrupt_in_the_block_of_a_producer_loses_nothing(address: str, topic: str, gq: Client) -> None:
    with Script(SENDING, address, topic) as script:
        script.wait_for("sent")
        script.signal(signal.SIGINT)
        ended = script.end()

    assert "KeyboardInterrupt" in ended.err
    assert "not stored" not in ended.err
    assert len(list(gq.read(topic))) == 500


def test_an_interrupt_of_asyncio_run_loses_nothing(address: str, topic: str, gq: Client) -> None:
    source = """
        async def main():
            gq = AsyncClient(address)
            p = gq.producer(linger="1h", batch_count=10_000)
            for number in range(500):
                await p.send(topic, b"%d" % number)
            say("sent")
            await asyncio.Event().wait()
        asyncio.run(main())
    """
    with Script(source, address, topic) as script:
        script.wait_for("sent")
        script.signal(signal.SIGINT)
        ended = script.end()

    assert "not stored" not in ended.err
    assert len(list(gq.read(topic))) == 500


def test_a_second_interrupt_cuts_the_flush_short_and_says_what_it_costs(topic: str) -> None:
    source = """
        from goqueue.testing import EmbeddedBroker
        broker = EmbeddedBroker(http=False).start()
        with Client(broker.address) as gq:
            gq.create_topic("orders", partitions=1)
            with gq.producer(linger="1h") as p:
                for _ in range(7):
                    p.send("orders", b"x")
                broker.stop()
                try:
                    say("sent")
                    wait_for_signal()
                finally:
                    say("flushing")
    """
    with Script(source, "unused", topic) as script:
        script.wait_for("sent")
        script.signal(signal.SIGINT)
        script.wait_for("flushing")
        script.signal(signal.SIGINT)
        ended = script.end()

    assert "GoQueueWarning: 7 messages were sent and not stored: 7 of orders" in ended.err


def test_a_handler_that_exits_on_sigterm_loses_nothing(address: str, topic: str, gq: Client) -> None:
    source = """
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        p = Client(address).producer(linger="1h")
        p.send(topic, b"x")
        say("sent")
        wait_for_signal()
    """
    with Script(source, address, topic) as script:
        script.wait_for("sent")
        script.signal(signal.SIGTERM)
        ended = script.end()

    assert (ended.code, ended.err) == (0, "")
    assert len(list(gq.read(topic))) == 1


def test_what_was_confirmed_survives_sigkill(address: str, topic: str, gq: Client) -> None:
    source = """
        p = Client(address).producer(linger="1ms")
        for number in range(100_000_000):
            if not number % 1_000:
                p.send(topic, b"%d" % number).result()
                say(number)
            else:
                p.send(topic, b"%d" % number)
    """
    with Script(source, address, topic) as script:
        script.wait_for("5000")
        script.signal(signal.SIGKILL)
        ended = script.end()

    confirmed = int(ended.out.splitlines()[-1]) if ended.out.strip() else 5_000
    stored = [int(message.value) for message in gq.read(topic)]
    assert ended.code == -signal.SIGKILL
    assert stored[: confirmed + 1] == list(range(confirmed + 1))


def test_an_interrupt_at_any_moment_loses_nothing_that_send_has_taken(address: str, topic: str, gq: Client) -> None:
    source = """
        signal.signal(signal.SIGALRM, signal.default_int_handler)
        number, taken = 0, []
        with Client(address) as gq:
            for round in range(200):
                try:
                    with gq.producer(linger="1ms", batch_count=3) as p:
                        p.send(topic, b"%d" % -round).result()
                        signal.setitimer(signal.ITIMER_REAL, 0.0002 + 0.00001 * round)
                        while True:
                            number += 1
                            p.send(topic, b"%d" % number, key=b"k" if number % 2 else None)
                            taken.append(number)
                except KeyboardInterrupt:
                    pass
        say(*taken)
    """
    ended = run(source, address, topic)

    assert (ended.code, ended.err) == (0, "")
    taken = {int(number) for number in ended.out.split()}
    stored = [int(message.value) for message in gq.read(topic)]
    assert len(taken) > 500
    assert len(stored) == len(set(stored))
    assert taken <= set(stored)
