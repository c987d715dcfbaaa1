"""Typos, wrong types, values that are too large, and clients that are closed: refused, and nothing is stored."""

import pytest

from goqueue import Client
from tests.careless.scripts import run

REFUSED = [
    'gq.publish(topic, b"x", prioritty="high")',
    'gq.publish(topic, b"x", priority="hihg")',
    'gq.publish(topic, b"x", priority=2.5)',
    "gq.publish(topic, object())",
    'gq.publish(topic, float("nan"))',
    "gq.publish(topic, None)",
    'gq.publish(topic, b"x", key=42)',
    'gq.publish(topic, b"x", headers={"a": 1})',
    'gq.publish(topic, b"x", headers=[1])',
    'gq.publish(topic, b"x", partition="0")',
    'gq.publish(topic, b"x", partition=-1)',
    'gq.publish(topic, b"x", partition=99)',
    'gq.publish(topic, b"x", delay="1")',
    'gq.publish(topic, b"x", delay=-1)',
    'gq.publish(topic, b"x", delay=1, deliver_at=1)',
    'gq.publish(topic, b"x", deliver_at=True)',
    'gq.publish(topic, b"x", ttl=0)',
    "gq.publish(topic, bytes(17_000_000))",
    'gq.publish(topic, b"x", key="k" * 70_000)',
    'gq.publish(topic, b"x", headers={"a": "x" * 70_000})',
    'gq.publish(topic, b"x", headers={"gq-own": "x"})',
    'gq.publish(42, b"x")',
    'gq.publish("no/topic", b"x")',
    'gq.publish_many(topic, "letters")',
    'gq.publish_many(topic, b"bytes")',
    'gq.publish_many(topic, {"a": "dict"})',
    "gq.publish_many(topic, 5)",
    'gq.publish_many(topic, [b"good", object()])',
    'p.send(topic, b"x", dely="1s")',
    "p.send(topic, None)",
    'p.send(topic, b"x", key=42)',
    "p.send(topic, bytes(17_000_000))",
    'p.send("missing", b"x")',
    'gq.producer(ack="all")',
    'gq.producer(acks="al")',
    "gq.producer(acks=1)",
    'gq.producer(linger="x")',
    'gq.producer(batch_count="x")',
    "gq.producer(compression=5)",
    'gq.create_topic("u", retenton="7d")',
    'gq.create_topic("u", partitons=3)',
    'gq.create_topic("u", partitions="3")',
    'gq.create_topic("u", partitions=0)',
    'gq.alter_topic(topic, retenton="1h")',
    'gq.consumer(topic, group="g", mod="shared")',
    'gq.consumer(topic, group="g", mode="sharde").join()',
    'gq.consumer(topic, group="g", ack="atuo")',
    "gq.consume(topic, group=5)",
    'gq.consumer(topic, group="g").poll("5")',
    'gq.read(topic, offset="5")',
    'gq.redrive(topic, where={"reasn": "x"})',
    "Client(5)",
    'Client("nohost")',
    "Client(address, tiemout=3)",
    "Client(address, connect_timeout=0)",
]


def test_what_cannot_be_meant_is_refused_and_nothing_is_stored(address: str, topic: str, gq: Client) -> None:
    ended = run(
        f"""
        with Client(address) as gq, gq.producer() as p:
            for text in {REFUSED!r}:
                try:
                    eval(text)
                except (GoQueueError, TypeError) as error:
                    assert str(error)
                else:
                    say("taken:", text)
        """,
        address,
        topic,
    )

    assert (ended.code, ended.out, ended.err) == (0, "", "")
    assert list(gq.read(topic)) == []
    assert "u" not in gq.topics()


@pytest.mark.parametrize("how", ["closed", "left"])
def test_what_is_closed_says_so_and_takes_nothing(how: str, address: str, topic: str, gq: Client) -> None:
    ended = run(
        f"""
        gq = Client(address)
        p = gq.producer(linger="1h")
        consumer = gq.consumer(topic, group=topic)
        consumer.join()
        p.send(topic, b"sent")
        if {how!r} == "closed":
            gq.close()
        else:
            with gq:
                pass
        uses = [
            lambda: p.send(topic, b"late"),
            lambda: gq.publish(topic, b"late"),
            lambda: gq.publish_many(topic, [b"late"]),
            lambda: gq.producer(),
            lambda: consumer.poll(),
            lambda: gq.topics(),
        ]
        for number, use in enumerate(uses):
            try:
                use()
            except Conflict as error:
                assert "clos" in str(error), error
            else:
                say("taken:", number)
        gq.close()
        p.close()
        consumer.close()
        """,
        address,
        topic,
    )

    assert (ended.code, ended.out, ended.err) == (0, "", "")
    assert [message.value for message in gq.read(topic)] == [b"sent"]


@pytest.mark.parametrize(
    ("arguments", "nearest"),
    [
        (["produce", "orders", "x", "--prioritty", "high"], "--priority"),
        (["consume", "orders", "--grop", "g"], "--group"),
        (["prodcue", "orders", "x"], "produce"),
    ],
)
def test_a_typo_on_the_command_line_is_refused_with_the_nearest_name(
    address: str, arguments: list[str], nearest: str
) -> None:
    ended = run(f"from goqueue.cli.main import main\nsys.argv = ['goqueue', *{arguments!r}]\nmain()", address, "unused")

    assert ended.code == 2
    assert nearest in ended.err
