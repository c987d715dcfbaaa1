"""A topic whose files cannot be used is out, with all it has; the others are served."""

import errno
from collections.abc import Callable

import pytest

from goqueue import events
from goqueue.broker.broker import Broker
from goqueue.clock import SECOND
from goqueue.errors import DamagedFile, DirectoryUnusable, GoQueueError, TopicQuarantined
from goqueue.service.groups import Join
from goqueue.service.messages import ProducerEpoch
from goqueue.service.new_message import NewMessage
from goqueue.testing import FaultyDisk, ManualClock, MemoryDisk
from tests.broker.brokers import ROOT, ManualWorkers, Node
from tests.broker.consumers import Consumer
from tests.broker.transactional import Owner, uncommitted

TOPICS = f"{ROOT}/topics"


def furnished(disk: MemoryDisk, clock: ManualClock) -> Node:
    """A broker with two topics, of which the first will be damaged."""
    node = Node(disk, clock)
    for topic in ("orders", "payments"):
        node.create(topic)
        node.publish(b"a", b"b", topic=topic)
        consumer = Consumer(node, f"of-{topic}", topics=(topic,))
        consumer.ack(consumer.poll(1))
        consumer.leave()
    return node


def restarted(disk: MemoryDisk | FaultyDisk, clock: ManualClock) -> Node:
    return Node(disk, clock)


def damage_description(disk: MemoryDisk, topic: str = "orders") -> None:
    path = f"{TOPICS}/{topic}/topic.json"
    disk.write(path, disk.read(path)[:-9] + b"x" * 9)


DAMAGES: dict[str, Callable[[MemoryDisk], None]] = {
    "a damaged description": damage_description,
    "an empty description": lambda disk: disk.write(f"{TOPICS}/orders/topic.json", b""),
    "a lost description": lambda disk: disk.remove(f"{TOPICS}/orders/topic.json"),
    "a description of a later format": lambda disk: disk.write(f"{TOPICS}/orders/topic.json", b'{"format":2}'),
    "a foreign file in a log": lambda disk: disk.write(f"{TOPICS}/orders/0/log/notes.txt", b"mine"),
    "a foreign file in a ledger": lambda disk: disk.write(f"{TOPICS}/orders/0/ledger/notes.txt", b"mine"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_one_topic_is_out_and_the_others_are_served(disk: MemoryDisk, clock: ManualClock, name: str) -> None:
    furnished(disk, clock).broker.close()
    DAMAGES[name](disk)
    before = {path: disk.read(path) for path in disk.paths() if "/orders/" in path}

    node = restarted(disk, clock)

    assert node.broker.topics.list() == ["payments"]
    assert node.values("payments") == [b"a", b"b"]
    node.publish(b"c", topic="payments")
    assert [got.value for got in Consumer(node, "of-payments", topics=("payments",)).poll()] == [b"b", b"c"]
    node.pass_time(60, step=5)
    node.broker.close()
    assert {path: disk.read(path) for path in disk.paths() if "/orders/" in path} == before


def test_requests_for_it_name_the_file_and_the_cure(disk: MemoryDisk, clock: ManualClock) -> None:
    furnished(disk, clock).broker.close()
    damage_description(disk)
    node = restarted(disk, clock)
    broker = node.broker

    calls: list[Callable[[], object]] = [
        lambda: node.publish(b"x"),
        lambda: node.messages(NewMessage(b"x")),
        lambda: node.read(),
        lambda: broker.topics.describe("orders"),
        lambda: node.create("orders"),
        lambda: node.done(broker.topics.delete("orders")),
        lambda: node.done(broker.topics.alter("orders", {"retention": "1h"})),
        lambda: node.done(broker.groups.join("of-orders", Join(client_id="c", topics=("orders",)))),
        lambda: broker.delays.list("orders"),
        lambda: broker.dead_letters.describe("orders"),
        lambda: node.done(broker.schedules.create("orders", "s", NewMessage(b"x"), every_ns=SECOND)),
    ]

    for call in calls:
        with pytest.raises(TopicQuarantined, match="topic orders is quarantined") as caught:
            call()
        assert f"{TOPICS}/orders/topic.json" in str(caught.value)
        assert "move /data/topics/orders out of the data directory" in str(caught.value)
        assert (caught.value.code, caught.value.facts()["topic"]) == ("STORAGE_FAILED", "orders")


def test_health_and_an_event_tell_of_it(disk: MemoryDisk, clock: ManualClock) -> None:
    furnished(disk, clock).broker.close()
    damage_description(disk)
    told: list[events.Event] = []

    broker = Broker.open(disk, ROOT, clock=clock, workers=ManualWorkers(), observe=told.append)

    check = broker.node.checks()["storage"]
    assert check.status == "warn"
    assert "not served: orders (/data/topics/orders/topic.json" in check.message
    assert list(broker.node.health().quarantined) == ["orders"]
    event = next(event for event in told if isinstance(event, events.QuarantineStarted))
    assert (event.topic, event.log) == ("orders", f"{TOPICS}/orders")


def test_once_repaired_it_is_as_it_was(disk: MemoryDisk, clock: ManualClock) -> None:
    furnished(disk, clock).broker.close()
    good = disk.read(f"{TOPICS}/orders/topic.json")
    damage_description(disk)
    restarted(disk, clock).broker.close()
    disk.write(f"{TOPICS}/orders/topic.json", good)

    node = restarted(disk, clock)

    assert node.values() == [b"a", b"b"]
    assert [one.offset for one in node.broker.groups.positions("of-orders")] == [1]


def test_a_broker_with_nothing_left_to_serve_does_not_start(disk: MemoryDisk, clock: ManualClock) -> None:
    node = Node(disk, clock)
    node.create()
    node.broker.close()
    damage_description(disk)

    with pytest.raises(DamagedFile, match="topic.json"):
        restarted(disk, clock)
    with pytest.raises(DamagedFile, match="topic.json"):  # the lock is free again
        restarted(disk, clock)


@pytest.mark.parametrize("path", ["orders/0/log", "orders/0/ledger"])
def test_files_that_cannot_be_read_put_their_topic_out(disk: MemoryDisk, clock: ManualClock, path: str) -> None:
    node = furnished(disk, clock)
    owner = Owner(node, "t")
    owner.begin()
    owner.publish(b"in")
    owner.abort()
    node.broker.close()
    faulty = FaultyDisk(disk, seed=0)
    for _ in range(3):
        faulty.fail_next("open", errno.EACCES, path_suffix=f"{path}/00000000000000000000.log")

    again = restarted(faulty, clock)

    assert again.values("payments") == [b"a", b"b"]
    with pytest.raises(GoQueueError, match="Permission denied"):
        again.done(again.broker.groups.join("of-orders", Join(client_id="c", topics=("orders",))))


@pytest.mark.parametrize("journal", ["__groups", "__schedules", "__schemas", "__transactions"])
def test_a_damaged_journal_closes_its_verbs_only(disk: MemoryDisk, clock: ManualClock, journal: str) -> None:
    node = furnished(disk, clock)
    node.done(node.broker.transactions.init("t"))
    node.journal(journal)
    node.broker.close()
    damage_description(disk, journal)
    before = {path: disk.read(path) for path in disk.paths() if f"/{journal}/" in path}

    again = restarted(disk, clock)

    assert again.values() == [b"a", b"b"]
    again.publish(b"c")
    session = again.done(again.broker.transactions.init())
    producer = ProducerEpoch(session.producer_id, session.epoch)
    again.done(again.broker.messages.publish("orders", [NewMessage(b"d")], producer=producer, sequence=0))
    again.pass_time(60, step=5)
    assert again.values() == [b"a", b"b", b"c", b"d"]
    verbs: dict[str, Callable[[], object]] = {
        "__groups": lambda: Consumer(again, "new"),
        "__schedules": lambda: again.done(
            again.broker.schedules.create("orders", "s", NewMessage(b"x"), every_ns=3600 * SECOND)
        ),
        "__schemas": lambda: None,
        "__transactions": lambda: Owner(again, "t"),
    }
    for name, verb in verbs.items():
        if name == journal and name != "__schemas":
            with pytest.raises(TopicQuarantined, match=journal):
                verb()
        else:
            verb()
    again.broker.close()
    assert {path: disk.read(path) for path in disk.paths() if f"/{journal}/" in path} == before


def test_what_was_decided_is_carried_out_when_the_topic_is_back(disk: MemoryDisk, clock: ManualClock) -> None:
    """The decision is durable, its markers are not: it must neither be forgotten nor half done."""
    node = Node(disk, clock)
    node.create("orders")
    node.create("payments")
    owner = Owner(node, "t")
    owner.begin()
    for topic in ("orders", "payments"):
        owner.publish(b"in", topic=topic)
    pending = owner.committing()
    while not pending.is_done:
        node.workers.run_one()
    crashed = disk.crash(keep="nothing")
    good = crashed.read(f"{TOPICS}/orders/topic.json")
    damage_description(crashed)

    without = restarted(crashed, clock)
    without.workers.run_all()
    assert without.values("payments") == [b"in"]
    without.pass_time(30, step=1)
    without.broker.close()
    crashed.write(f"{TOPICS}/orders/topic.json", good)

    assert restarted(crashed, clock).values("orders") == [b"in"]


def test_nothing_is_decided_without_the_journal(disk: MemoryDisk, clock: ManualClock) -> None:
    node = Node(disk, clock)
    node.create()
    owner = Owner(node, "t")
    owner.begin()
    owner.publish(b"in")
    pending = owner.committing()
    while not pending.is_done:
        node.workers.run_one()
    crashed = disk.crash(keep="nothing")
    good = crashed.read(f"{TOPICS}/__transactions/topic.json")
    damage_description(crashed, "__transactions")

    without = restarted(crashed, clock)
    assert without.values() in ([], [b"in"])
    assert uncommitted(without) == [b"in"]
    without.broker.close()
    crashed.write(f"{TOPICS}/__transactions/topic.json", good)

    assert restarted(crashed, clock).values() == [b"in"]


def test_a_disk_without_permission_says_so(disk: MemoryDisk, clock: ManualClock) -> None:
    node = Node(disk, clock)
    node.create()
    node.broker.close()
    faulty = FaultyDisk(disk, seed=0)
    faulty.fail_next("open", errno.EACCES, path_suffix="orders/topic.json")

    with pytest.raises(DirectoryUnusable, match="Permission denied"):
        restarted(faulty, clock)
