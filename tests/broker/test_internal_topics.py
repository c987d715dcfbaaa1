"""Internal topics belong to the broker: no verb of a user reaches them, and what is in them stays readable to it."""

from collections.abc import Callable

import pytest

from goqueue.broker.traces import TRACES_SETTINGS
from goqueue.errors import Forbidden, GoQueueError, TopicNotFound
from goqueue.record import kernel
from goqueue.service.groups import Join
from goqueue.service.new_message import NewMessage
from goqueue.wire.reports import DeadLetterFilter, PositionCommit
from tests.broker.brokers import Node
from tests.broker.consumers import Consumer, restarted
from tests.broker.transactional import Owner

INTERNAL = ["__transactions", "__groups", "__nothing", "__traces"]


def user_calls(node: Node, topic: str) -> dict[str, Callable[[], object]]:
    """Every verb that takes the name of a topic, but for those that may look at an internal one."""
    broker, message = node.broker, NewMessage(b"x", key=b"evil")
    owner = Owner(node, "owner")
    owner.begin()
    session = owner.session
    node.done(broker.groups.join("group", Join(client_id="c", topics=("orders",))))
    transactions, delays, schedules, letters = broker.transactions, broker.delays, broker.schedules, broker.dead_letters
    commits = [PositionCommit(topic, 0, 0)]
    return {
        "create": lambda: broker.topics.create(topic),
        "delete": lambda: broker.topics.delete(topic),
        "alter": lambda: broker.topics.alter(topic, {"retention": "1s"}),
        "publish_records": lambda: broker.messages.publish_records(topic, 0, kernel.encode([b"x"])),
        "publish_messages": lambda: broker.messages.publish(topic, [message]),
        "publish in a transaction": lambda: broker.messages.publish(topic, [message], transaction_id=owner.id),
        "add_partition": lambda: transactions.add_partition("owner", session.producer_id, session.epoch, topic, 0),
        "add_offsets": lambda: transactions.add_offsets(session.producer_id, session.epoch, "new", commits),
        "join": lambda: broker.groups.join("group", Join(client_id="c", topics=("orders", topic))),
        "commit": lambda: broker.groups.commit("new", commits),
        "reset": lambda: broker.groups.reset("group", "earliest", topic=topic),
        "positions": lambda: broker.groups.positions("group", topic),
        "lanes": lambda: broker.groups.lanes(topic),
        "delayed list": lambda: delays.list(topic),
        "delayed get": lambda: delays.get(topic, 0),
        "cancel": lambda: delays.cancel(topic, partition=0, offset=0),
        "reschedule": lambda: delays.reschedule(topic, 1, key=b"k"),
        "schedule": lambda: schedules.create(topic, "s", message, every_ns=10**9),
        "schedules": lambda: schedules.list(topic),
        "dead letters": lambda: letters.describe(topic),
        "dead letter list": lambda: letters.list(topic, DeadLetterFilter()),
        "redrive": lambda: letters.redrive(topic, DeadLetterFilter()),
        "redrive to": lambda: letters.redrive("orders", DeadLetterFilter(), target_topic=topic),
    }


READS = ("read", "offsets", "wait_for_records", "subscribe", "scans.pieces", "scans.hidden")


def reads(node: Node, topic: str) -> dict[str, Callable[[], object]]:
    broker = node.broker
    return {
        "read": lambda: broker.messages.read(topic, 0),
        "offsets": lambda: broker.topics.offsets(topic),
        "wait_for_records": lambda: broker.messages.wait(topic, {0: 0}, wait_ms=0),
        "subscribe": lambda: broker.messages.subscribe(topic, 0, offset=0),
        "scans.pieces": lambda: broker.scans.pieces(topic, 0, start_offset=0, end_offset=9, piece_bytes=9),
        "scans.hidden": lambda: broker.scans.hidden(topic, 0, start_offset=0, end_offset=9),
    }


def outcome(node: Node, call: Callable[[], object]) -> str:
    """The code of the refusal, raised at once or told later."""
    try:
        answer = call()
        node.workers.run_all()
        result = getattr(answer, "result", None)
        if callable(result):
            result()
    except GoQueueError as error:
        return error.code
    return "taken"


@pytest.mark.parametrize("topic", INTERNAL)
def test_every_verb_of_a_user_is_refused(node: Node, topic: str) -> None:
    node.create()
    node.done(node.broker.transactions.init("t"))

    outcomes = {name: outcome(node, call) for name, call in user_calls(node, topic).items()}

    assert outcomes == dict.fromkeys(outcomes, "FORBIDDEN")


@pytest.mark.parametrize("topic", INTERNAL[:3])
def test_nothing_but_traces_can_be_read(node: Node, topic: str) -> None:
    node.done(node.broker.transactions.init("t"))

    assert {name: outcome(node, call) for name, call in reads(node, topic).items()} == dict.fromkeys(READS, "FORBIDDEN")


def test_traces_can_be_read(node: Node) -> None:
    node.done(node.broker.partitions.trace_log(TRACES_SETTINGS))

    assert {name: outcome(node, call) for name, call in reads(node, "__traces").items()} == dict.fromkeys(
        READS, "taken"
    )


def test_an_internal_topic_can_be_looked_at(node: Node) -> None:
    node.done(node.broker.transactions.init("t"))

    assert node.broker.topics.describe("__transactions").name == "__transactions"
    assert "__transactions" in node.broker.topics.list(internal=True)
    with pytest.raises(TopicNotFound):
        node.broker.topics.describe("__nothing")


def test_the_refusal_names_the_topic(node: Node) -> None:
    with pytest.raises(Forbidden, match="__groups is an internal topic") as caught:
        node.broker.messages.publish_records("__groups", 0, kernel.encode([b"x"]))

    assert caught.value.facts()["topic"] == "__groups"


def test_a_broker_that_was_asked_for_it_starts_again(node: Node) -> None:
    node.create()
    Consumer(node)
    node.done(node.broker.transactions.init("t"))
    for topic in ("__transactions", "__groups"):
        with pytest.raises(Forbidden):
            node.broker.messages.publish(topic, [NewMessage(b"x", key=b"evil")])

    again = restarted(node)

    assert again.broker.groups.names() == ["workers"]


def test_a_group_has_no_positions_on_internal_topics(node: Node) -> None:
    node.create()
    consumer = Consumer(node)
    node.publish(b"a")
    consumer.settle("ack", consumer.poll())

    assert {one.topic for one in node.broker.groups.positions("workers")} == {"orders"}
    assert node.broker.partitions.partition_counts() == {"orders": 1}
