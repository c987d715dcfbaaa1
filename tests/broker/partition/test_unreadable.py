"""Garbage in a journal or a ledger: the broker starts, says so, and keeps all that is not garbage."""

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from goqueue import events
from goqueue.broker.broker import Broker
from goqueue.broker.partition.unreadable import REMEMBERED_MAX, UnreadableFacts
from goqueue.clock import SECOND
from goqueue.delivery import redrive_facts
from goqueue.errors import GoQueueError
from goqueue.service.new_message import NewMessage
from goqueue.testing import ManualClock, MemoryDisk
from goqueue.transactions import facts
from goqueue.wire.reports import DeadLetterFilter
from goqueue.wire.schema_reports import NewSchema
from tests.broker.brokers import ROOT, ManualWorkers, Node
from tests.broker.consumers import Consumer
from tests.broker.transactional import Owner

JOURNALS = ("__groups", "__schedules", "__schemas", "__transactions")
LEDGERS = ("orders", *JOURNALS)
PREFIXES = (b"g", b"c", b"d", b"x", b"t:", b"p:", b"d:", b"m:", b"schema/", b"version/1/", b"highest/", b"journal", b"")


class Fact(NamedTuple):
    """Where a fact is stored, and what it says."""

    topic: str
    in_ledger: bool
    key: bytes
    value: bytes
    partition: int = 0


@cache
def furnished() -> tuple[MemoryDisk, int, tuple[Fact, ...]]:
    """A disk on which there is something of everything, the time of its broker, and its facts."""
    disk, clock = MemoryDisk(), ManualClock()
    node = Node(disk, clock)
    node.create(max_deliveries=1)
    node.publish(*(b"%d" % number for number in range(20)))
    delayed = [NewMessage(b"later", deliver_at_ns=clock.wall_ns() + 3600 * SECOND, key=b"k%d" % n) for n in range(3)]
    node.messages(*delayed)
    node.done(node.broker.delays.cancel("orders", partition=0, offset=21))
    node.done(node.broker.delays.reschedule("orders", clock.wall_ns() + 9 * SECOND, partition=0, offset=22))
    for group in ("workers", "others"):
        consumer = Consumer(node, group)
        messages = consumer.poll(10)
        consumer.ack(messages[:4])
        consumer.settle("reject", messages[4:5])
    for name in ("hourly", "daily"):
        node.done(node.broker.schedules.create("orders", name, NewMessage(b"tick"), every_ns=3600 * SECOND))
        node.done(node.broker.schedules.run("orders", name))
    for subject in ("a-value", "b-value"):
        node.done(node.broker.schemas.register(subject, NewSchema('{"type": "object"}', "JSON")))
    owner = Owner(node, "committed")
    owner.begin(marker="once")
    owner.publish(b"in")
    owner.commit(marker="once")
    open_owner = Owner(node, "open")
    open_owner.begin()
    open_owner.publish(b"never")
    node.pass_time(400, step=50)
    node.broker.close()
    node = Node(disk.crash(keep="everything"), clock)
    found = [
        Fact(topic, False, key, value, journal.partition)
        for topic in JOURNALS
        for journal in node.broker.coordinators.journals(topic)
        for key, value in journal.load().items()
    ]
    found += [
        Fact(topic, True, key, value, leader.origin.partition)
        for topic in LEDGERS
        for leader in node.broker.partitions.any_topic(topic).leaders
        for key, value in leader.ledger.facts()
        if value is not None
    ]
    return disk, clock.wall_ns(), tuple(found)


LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**64 - 1),
    st.sampled_from([0, -1, 2**31, 2**53, 2**62, 2**63 - 1, 2**64 - 1]),
    st.floats(),
    st.text(max_size=10),
    st.binary(max_size=20),
    st.lists(st.integers(-5, 5), max_size=3),
)


@st.composite
def mutated(draw: st.DrawFn, value: bytes) -> bytes:
    """The value with one of its leaves replaced, in the format that it has."""
    for decode, encode in (
        (msgspec.msgpack.decode, msgspec.msgpack.encode),
        (msgspec.json.decode, msgspec.json.encode),
    ):
        try:
            tree = decode(value)  # type: ignore[operator]
        except ValueError:
            continue
        paths = list(_paths(tree))
        path, leaf = draw(st.sampled_from(paths)), draw(LEAVES)
        try:
            return bytes(encode(_replaced(tree, path, leaf)))  # type: ignore[operator]
        except (TypeError, UnicodeEncodeError, OverflowError):
            return b""
    return value[: draw(st.integers(0, len(value)))]


def _paths(tree: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    children = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    return [path] + [one for name, child in children for one in _paths(child, (*path, name))]


def _replaced(tree: Any, path: tuple[Any, ...], leaf: Any) -> Any:
    if not path:
        return leaf
    copied = dict(tree) if isinstance(tree, dict) else list(tree)
    copied[path[0]] = _replaced(tree[path[0]], path[1:], leaf)
    return copied


@st.composite
def strays(draw: st.DrawFn) -> Fact:
    """A fact that nobody wrote, or one that somebody wrote and that says something else now."""
    like = draw(st.sampled_from(furnished()[2]))
    kind = draw(st.sampled_from(("bytes", "msgpack", "mutated", "mutated in place")))
    key = like.key if kind == "mutated in place" else draw(st.sampled_from(PREFIXES)) + draw(st.binary(max_size=12))
    if kind == "bytes":
        return like._replace(key=key, value=draw(st.binary(max_size=60)))
    if kind == "msgpack":
        return like._replace(key=key, value=msgspec.msgpack.encode(draw(LEAVES)))
    return like._replace(key=key, value=draw(mutated(like.value)))


def started_with(garbage: list[Fact]) -> tuple[Node, list[events.Event]]:
    """A broker that was started on the furnished disk with the facts added to it."""
    template, wall_ns, _ = furnished()
    disk, clock = template.crash(keep="everything"), ManualClock(wall_ns)
    node = Node(disk, clock)
    for topic, in_ledger, key, value, partition in garbage:
        if in_ledger:
            node.leader(topic, partition).ledger.write([(key, value)])
            node.leader(topic, partition).ledger.log.flush()
        else:
            node.write_directly(topic, value, keys=[key], partition=partition)
    told: list[events.Event] = []
    again = object.__new__(Node)
    again.disk, again.clock, again.workers = node.disk, clock, ManualWorkers()
    disk = disk.crash(keep="everything")
    again.disk = disk
    again.broker = Broker.open(disk, ROOT, clock=clock, workers=again.workers, observe=told.append)
    return again, told


def tolerated(call: Callable[[], object]) -> object:
    """What it returns, or the error that says why not; anything else is a bug."""
    try:
        return call()
    except GoQueueError as error:
        return error


def use_everything(node: Node) -> None:
    """Ask for all there is, and let time pass."""
    broker = node.broker
    for group in broker.groups.names():
        broker.groups.describe(group)
        broker.groups.positions(group)
        broker.groups.blocked(group)
    broker.groups.lanes()
    broker.groups.reliability()
    broker.groups.rebalance_stats()
    broker.schedules.list("orders")
    for subject in broker.schemas.subjects():
        tolerated(lambda: broker.schemas.get(subject))  # noqa: B023
    broker.schemas.stats()
    broker.transactions.list()
    broker.transactions.stats()
    broker.delays.list("orders")
    broker.delays.stats()
    broker.dead_letters.queues()
    broker.traces.stats()
    broker.node.checks()
    node.workers.run_all()
    node.pass_time(7200, step=300)
    node.publish(b"goes on")
    producer = broker.messages.init_producer()
    node.done(broker.messages.publish("orders", [NewMessage(b"and on")], producer=producer, sequence=0))
    consumer = Consumer(node, "newcomers")
    assert consumer.poll(1000)
    tolerated(lambda: Consumer(node, "workers").poll(1000))


@given(garbage=st.lists(strays(), min_size=1, max_size=4))
@example(garbage=[Fact("__transactions", False, b"evil", b"x"), Fact("__groups", False, b"evil", b"x")])
def test_a_broker_starts_whatever_its_journals_and_ledgers_hold(garbage: list[Fact]) -> None:
    node, _ = started_with(garbage)

    use_everything(node)

    touched = {fact.key for fact in garbage}
    assert {name for name in ("workers", "others") if b"g" + name.encode() not in touched} <= set(
        node.broker.groups.names()
    )
    if not any(fact.topic == "__schedules" for fact in garbage):
        assert [one.name for one in node.broker.schedules.list("orders")] == ["daily", "hourly"]
    if not any(fact.topic == "__schemas" for fact in garbage):
        assert node.broker.schemas.subjects() == ["a-value", "b-value"]
    values = node.values()
    assert values[:20] == [b"%d" % number for number in range(20)]
    assert b"never" not in values


GARBAGE = {
    "a group of random bytes": Fact("__groups", False, b"gevil", b"\xc1\xff"),
    "no group": Fact("__groups", False, b"evil", b"x"),
    "a group under the key of another": Fact("__groups", False, b"gevil", b"PLACEHOLDER"),
    "no schedule": Fact("__schedules", False, b"evil", b"x"),
    "a schema of no type": Fact("__schemas", False, b"schema/7", b'{"id":7}'),
    "a version that is no number": Fact("__schemas", False, b"version/x/a-value", b'{"id":1}'),
    "a level that is none": Fact("__schemas", False, b"level/a-value", b"SOMETIMES"),
    "no kind of a schema": Fact("__schemas", False, b"evil", b"x"),
    "a transaction of random bytes": Fact("__transactions", False, b"t:evil", b"x"),
    "no transaction": Fact("__transactions", False, b"evil", b"x"),
    "a producer of a negative epoch": Fact(
        "__transactions", False, b"p:9", facts.encode(facts.SavedProducer(facts.VERSION, -1, 0))
    ),
    "a cursor of random bytes": Fact("orders", True, b"cworkers", b"\xc1"),
    "a change of random bytes": Fact("orders", True, b"dworkers\0\0\0\0\0", b"\xc1"),
    "a change of a delay": Fact("orders", True, b"x\0\0\0\0\0\0\0\x16", b"\xc1"),
    "a change of no delay": Fact("orders", True, b"xx", b"x"),
    "a redrive of random bytes": Fact("orders.dlq", True, b"ro:evil", b"\xc1"),
    "a redrive under the id of another": Fact(
        "orders.dlq",
        True,
        b"ro:evil",
        redrive_facts.encode(redrive_facts.RedriveOrder("good", DeadLetterFilter(), 0, 0, None, 3, "group", 0, [1])),
    ),
    "the progress of a redrive without offsets": Fact(
        "orders.dlq", True, b"rp:evil", redrive_facts.encode(redrive_facts.RedriveProgress(0, b"", 0, 0, 0, 0))
    ),
    "sequences": Fact("orders", True, b"producers", b"\xc1"),
    "transactions": Fact("orders", True, b"transactions", b"\xc1"),
}


@pytest.mark.parametrize("name", GARBAGE)
def test_garbage_is_told_of_once_and_the_good_entries_survive(name: str) -> None:
    garbage = GARBAGE[name]
    if garbage.value == b"PLACEHOLDER":
        garbage = next(one for one in furnished()[2] if one.key == b"gworkers")._replace(key=b"gevil")
    node, told = started_with([garbage])

    use_everything(node)

    partition = f"{garbage.topic}-{garbage.partition}"
    reported = [event for event in told if isinstance(event, events.FactUnreadable)]
    assert [event.key for event in reported] == [repr(garbage.key)]
    assert f"/{garbage.topic}/{garbage.partition}/" in reported[0].log
    check = node.broker.node.checks()["storage"]
    assert check.status == "warn"
    assert f"1 stored facts of {partition} cannot be understood" in check.message
    assert {"workers", "others"} <= set(node.broker.groups.names())
    assert [one.name for one in node.broker.schedules.list("orders")] == ["daily", "hourly"]
    assert node.broker.schemas.subjects() == ["a-value", "b-value"]
    positions = {one.topic: one.offset for one in node.broker.groups.positions("others")}
    assert positions["orders"] >= 4


def test_what_is_unreadable_is_kept_for_a_version_that_understands_it() -> None:
    garbage = Fact("__groups", False, b"gevil", b"\xc1\xff")
    node, _ = started_with([garbage])
    Consumer(node, "new")

    assert node.facts("__groups")[garbage.key] == garbage.value


def test_the_same_fact_is_told_of_once() -> None:
    told: list[events.Event] = []
    unreadable = UnreadableFacts("/data", told.append)
    assert not unreadable

    for _ in range(3):
        unreadable.pass_over(b"key", ValueError("no"))

    assert unreadable.count == len(told) == 1
    assert told == [events.FactUnreadable(log="/data", key="b'key'", reason="ValueError: no")]


def test_so_many_are_told_apart_and_all_are_counted() -> None:
    unreadable = UnreadableFacts("/data")

    for number in range(REMEMBERED_MAX + 5):
        unreadable.pass_over(b"%d" % number, "no")

    assert unreadable.count == REMEMBERED_MAX + 5


def test_without_garbage_nothing_is_told_of() -> None:
    node, told = started_with([])

    use_everything(node)

    assert not [event for event in told if isinstance(event, events.FactUnreadable)]
    assert node.broker.node.checks()["storage"].status == "pass"
