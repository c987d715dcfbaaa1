"""A broker that goes away in the middle of it: what was sent is stored by the one that comes back, or told."""

from pathlib import Path
from textwrap import dedent

from goqueue import Client
from goqueue.testing import EmbeddedBroker
from tests.careless.scripts import run

BROKER = """
from goqueue.testing import EmbeddedBroker
data = topic
broker = EmbeddedBroker(data=data, http=False).start()
address = broker.address
def again():
    return EmbeddedBroker(data=data, http=False, native=address).start()
"""


def stored(data: Path) -> list[int]:
    with EmbeddedBroker(data=data, http=False) as broker, Client(broker.address) as gq:
        return sorted(int(message.value) for message in gq.read("orders"))


def test_a_producer_outlives_its_broker(tmp_path: Path) -> None:
    source = """
        gq = Client(address)
        gq.create_topic("orders", partitions=1)
        p = gq.producer(linger="1ms")
        for number in range(1_000):
            p.send("orders", b"%d" % number)
            if number == 500:
                broker.stop()
        broker = again()
        p.close()
        gq.close()
        broker.stop()
    """
    ended = run(BROKER + "\n" + dedent(source), "unused", str(tmp_path / "data"))

    assert ended.code == 0, ended.err
    assert "not stored" not in ended.err
    assert stored(tmp_path / "data") == list(range(1_000))


def test_a_script_that_ends_while_the_broker_is_away_says_what_is_missing(tmp_path: Path) -> None:
    source = """
        from goqueue.client import exits
        exits.FLUSH_TIMEOUT_S = 0.5
        gq = Client(address)
        gq.create_topic("orders", partitions=1)
        p = gq.producer(linger="1h", batch_count=10_000)
        for number in range(100):
            p.send("orders", b"%d" % number)
        p.flush()
        broker.stop()
        for number in range(100, 200):
            p.send("orders", b"%d" % number)
    """
    ended = run(BROKER + "\n" + dedent(source), "unused", str(tmp_path / "data"))

    assert "100 messages were sent and not stored: 100 of orders" in ended.err
    assert "cannot connect" in ended.err
    assert stored(tmp_path / "data") == list(range(100))


def test_a_script_without_a_broker_is_told_how_to_start_one() -> None:
    ended = run('Client("127.0.0.1:1", connect_timeout="200ms").producer().send("orders", b"x")', "unused", "unused")

    assert ended.code == 1
    assert "cannot connect to 127.0.0.1:1: " in ended.err
    assert "start a broker with `goqueue serve`" in ended.err
