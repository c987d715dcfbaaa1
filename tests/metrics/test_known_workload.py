"""A workload whose outcome is known, against every number that is told of it, before and after a restart."""

import json
from collections.abc import Mapping
from urllib.request import Request, urlopen

import pytest

from goqueue import Client
from goqueue.broker.broker import Broker
from goqueue.clock import SECOND
from goqueue.metrics.registry import Metrics
from goqueue.record.identity import BatchIdentity
from goqueue.service.new_message import NewMessage
from goqueue.storage.file import Disk
from goqueue.testing import EmbeddedBroker, ManualClock, MemoryDisk
from goqueue.wire.reports import DeadLetterFilter, PositionCommit
from tests.broker.brokers import QUICK, ROOT, ManualWorkers, Node
from tests.broker.consumers import Consumer
from tests.broker.transactional import Owner

ORDERS = {"topic": "orders"}
DEAD = {"topic": "orders.dlq"}
GROUP = {"consumer_group": "workers"}
WORKERS = {**ORDERS, **GROUP}
INTERNAL_IN = ("storage_", "ledger_", "cluster_")


class MeasuredNode(Node):
    """A node with metrics."""

    def __init__(self, disk: Disk, clock: ManualClock) -> None:
        self.disk = disk
        self.clock = clock
        self.workers = ManualWorkers()
        self.metrics = Metrics()
        self.broker = Broker.open(
            disk, ROOT, clock=clock, workers=self.workers, config=QUICK, observe=self.metrics.observe
        )
        self.metrics.delivery.watch(self.broker.groups.standings, lambda: self.broker.delays.stats().by_topic)

    def series(self) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
        self.metrics.render(False)
        return {
            (sample.name.removeprefix("goqueue_"), frozenset(sample.labels.items())): sample.value
            for family in self.metrics._registry.collect()
            for sample in family.samples
        }

    def count(self, name: str, **labels: str) -> float | None:
        return self.series().get((name, frozenset(labels.items())))


@pytest.fixture
def node(disk: MemoryDisk, clock: ManualClock) -> MeasuredNode:
    return MeasuredNode(disk, clock)


def work(node: MeasuredNode) -> None:
    """26 messages: 10 plain, 4 in a transaction, 2 in an aborted one, 5 delayed, 2 that expire, 3 of a producer."""
    node.create(visibility_timeout="10s", max_deliveries=3, on_expire="drop")
    node.publish(*[b"plain"] * 10)  # 0..9
    owner = Owner(node)
    owner.begin()
    owner.publish(b"tx", b"tx", b"tx", b"tx")  # 10..13, marker 14
    owner.commit()
    owner.begin()
    owner.publish(b"never", b"never")  # 15, 16, marker 17
    owner.abort()
    now_ns = node.clock.wall_ns()
    for delay in (60, 60, 3_600, 3_600, 3_600):  # 18..22
        node.messages(NewMessage(b"later", deliver_at_ns=now_ns + delay * SECOND))
    node.messages(*[NewMessage(b"short", expires_at_ns=now_ns + 30 * SECOND)] * 2)  # 23, 24
    identity = BatchIdentity(7, 0, 0, 3)
    for _ in range(2):
        node.done(node.send_as(identity))  # 25..27, and a duplicate
    node.done(node.broker.delays.cancel("orders", partition=0, offset=22))


def consume(node: MeasuredNode) -> Consumer:
    """Acks, nacks, a reject, leases that run out, an extension, a dead letter that is put back."""
    consumer = Consumer(node, session_timeout_ms=3_600_000)
    got = consumer.poll(14)  # 0..13
    consumer.ack(got[:8])
    consumer.settle("nack", got[8:10], delay=1)
    consumer.settle("reject", got[10:11], reason="broken")
    consumer.settle("extend", got[11:12], delay=30)
    node.workers.run_all()
    node.tick(11)  # the leases on 12 and 13 run out
    node.workers.run_all()
    again = consumer.poll(2)
    assert [(one.offset, one.count) for one in again] == [(8, 2), (9, 2)]
    consumer.ack(again)
    node.done(node.broker.dead_letters.redrive("orders", DeadLetterFilter()))  # to 28
    node.tick(0.1)
    node.workers.run_all()
    node.tick(50)  # 18 and 19 are due, 23 and 24 expire, the lease on 11 runs out
    node.workers.run_all()
    return consumer


COUNTERS: list[tuple[str, Mapping[str, str], float]] = [
    ("broker_messages_published_total", ORDERS, 27),
    ("broker_messages_published_total", DEAD, 1),
    ("broker_duplicates_total", ORDERS, 1),
    ("broker_messages_consumed_total", WORKERS, 16),
    ("broker_messages_redelivered_total", WORKERS, 2),
    ("broker_messages_acked_total", WORKERS, 10),
    ("broker_messages_nacked_total", WORKERS, 2),
    ("broker_messages_rejected_total", WORKERS, 1),
    ("broker_messages_expired_total", WORKERS, 2),
    ("broker_visibility_timeouts_total", WORKERS, 3),
    ("broker_visibility_extensions_total", WORKERS, 1),
    ("broker_delayed_messages_scheduled_total", ORDERS, 5),
    ("broker_delayed_messages_fired_total", ORDERS, 2),
    ("broker_delayed_messages_cancelled_total", ORDERS, 1),
    ("broker_delayed_messages_expired_total", ORDERS, 0),
    ("broker_dlq_routed_total", {**ORDERS, "reason": "rejected"}, 1),
    ("broker_dlq_redriven_total", ORDERS, 1),
    ("broker_transactions_started_total", {}, 2),
    ("broker_transactions_committed_total", {}, 1),
    ("broker_transactions_aborted_total", {"reason": "client"}, 1),
    ("broker_transaction_latency_seconds_count", {}, 1),
    ("consumer_offset_commits_total", WORKERS, 2),  # two requests with acks
    ("consumer_polls_total", GROUP, 2),
    ("consumer_poll_batch_size_sum", GROUP, 16),
    ("consumer_group_joins_total", GROUP, 1),
]
STATES: list[tuple[str, Mapping[str, str], float]] = [
    ("broker_topic_count", {}, 2),
    ("broker_topic_partitions", ORDERS, 1),
    ("broker_delayed_messages_pending", ORDERS, 2),
    ("broker_in_flight", WORKERS, 0),
    ("broker_transactions_open", {}, 0),
    ("consumer_lag", {**WORKERS, "partition": "0"}, 9),  # 11 to 13, 18, 19, 25 to 28
    ("consumer_committed_offset", {**WORKERS, "partition": "0"}, 11),
    ("consumer_group_members", GROUP, 1),
    ("consumer_assigned_partitions", GROUP, 1),
]


def check_series(node: MeasuredNode, expected: list[tuple[str, Mapping[str, str], float]]) -> None:
    assert [(name, labels, node.count(name, **labels)) for name, labels, _ in expected] == expected


def check_states(node: MeasuredNode) -> None:
    """What is a state, and so must be the same after a restart."""
    broker = node.broker
    check_series(node, STATES)
    assert broker.topics.describe("orders").total_messages == 27
    assert broker.topics.describe("orders.dlq").total_messages == 1
    group = broker.groups.describe("workers")
    assert (group.lag, sum(one.in_flight for one in group.members)) == (9, 0)
    assert [(one.offset, one.lag) for one in broker.groups.positions("workers", "orders")] == [(11, 9)]
    delays = broker.delays.stats()
    assert (delays.pending, delays.by_topic, delays.average_delay_ns) == (2, {"orders": 2}, 2_184 * SECOND)
    assert (delays.scheduled, delays.delivered, delays.cancelled, delays.expired) == (5, 2, 1, 0)
    (lanes,) = broker.groups.lanes("orders", "workers")
    assert (sum(lanes.total), sum(lanes.pending), sum(lanes.in_flight), sum(lanes.consumed)) == (24, 11, 0, 13)
    reliability = broker.groups.reliability()
    assert reliability.in_flight == 0
    assert broker.transactions.stats().active_transactions == 0
    assert broker.node.stats().topic_count == 2
    assert broker.node.stats().size_bytes == sum(leader.log.size for leader in broker.partitions.all_leaders())


def test_every_number_is_the_one_that_follows_from_the_workload(node: MeasuredNode) -> None:
    work(node)
    consume(node)

    check_series(node, COUNTERS)
    check_states(node)
    told = node.broker.groups.reliability()
    assert (told.acks, told.nacks, told.rejects, told.expired, told.retries, told.extensions) == (10, 2, 1, 3, 2, 1)
    assert (told.dead_lettered, told.dead_by_reason, told.dead_by_topic) == (1, {"REJECTED": 1}, {"orders": 1})
    assert (told.leased, told.waiting) == (16, 1)
    transactions = node.broker.transactions.stats()
    assert (transactions.committed_total, transactions.aborted_total) == (1, 1)


@pytest.mark.parametrize("is_clean", [False, True])
def test_states_are_the_same_after_a_restart(node: MeasuredNode, is_clean: bool) -> None:
    work(node)
    consume(node)
    assert isinstance(node.disk, MemoryDisk)
    if is_clean:
        node.broker.close()
    again = MeasuredNode(node.disk.crash(keep="everything"), node.clock)
    again.workers.run_all()

    check_states(again)


def test_a_group_without_members_has_its_lag_after_a_restart_before_anybody_asks_for_it(node: MeasuredNode) -> None:
    node.create()
    node.publish(*[b"x"] * 10)
    consumer = Consumer(node)
    consumer.ack(consumer.poll(4))
    consumer.leave()
    assert isinstance(node.disk, MemoryDisk)
    node.broker.close()

    again = MeasuredNode(node.disk.crash(keep="everything"), node.clock)

    assert again.count("consumer_lag", **WORKERS, partition="0") == 6
    assert again.count("consumer_committed_offset", **WORKERS, partition="0") == 4


def test_internal_topics_are_in_series_of_storage_and_ledgers_only(node: MeasuredNode) -> None:
    work(node)
    consume(node)

    found = {name for name, labels in node.series() for key, value in labels if key == "topic" and value[:2] == "__"}

    assert found
    assert [name for name in found if not name.startswith(INTERNAL_IN)] == []
    assert node.count("broker_topic_count") == 2
    assert isinstance(node.disk, MemoryDisk)
    node.broker.close()
    assert MeasuredNode(node.disk.crash(keep="everything"), node.clock).count("broker_topic_count") == 2


def test_a_topic_that_is_deleted_leaves_nothing(node: MeasuredNode) -> None:
    before = set(node.series())
    work(node)
    consume(node).leave()
    node.done(node.broker.groups.delete("workers"))
    node.done(node.broker.topics.delete("orders"))
    node.done(node.broker.topics.delete("orders.dlq"))

    left = [(name, dict(labels)) for name, labels in set(node.series()) - before]

    assert [one for one in left if not str(one[1].get("topic", "")).startswith("__")] == []
    assert node.broker.groups.reliability().dead_by_topic == {}


def test_auto_commits_and_commits_are_counted_when_the_position_advances(node: MeasuredNode) -> None:
    node.create()
    node.publish(*[b"x"] * 10)
    consumer = Consumer(node, ack="offsets")
    consumer.poll(5)
    consumer.poll(2)
    node.pass_time(6, step=1)  # what came before the last poll
    assert node.count("consumer_offset_commits_total", **WORKERS) == 1
    for _ in range(2):  # the second one changes nothing
        node.done(node.broker.groups.commit("workers", [PositionCommit("orders", 0, 7)], member_id=consumer.id))

    assert node.count("consumer_offset_commits_total", **WORKERS) == 2
    assert node.count("consumer_lag", **WORKERS, partition="0") == 3


def test_all_doors_feed_the_same_series() -> None:
    with EmbeddedBroker() as broker, Client(broker.address) as client:
        client.create_topic("orders", partitions=1)
        client.publish("orders", b"1")
        client.publish_many("orders", [b"2", b"3"])
        with client.producer() as producer:
            for _ in range(4):
                producer.send("orders", b"4")
        with client.transaction("t") as transaction:
            transaction.send("orders", b"5")
        http(broker, "/topics/orders/messages", {"messages": [{"value": "6"}, {"value": "7"}]})
        client.schedule("orders", b"8", name="s", every="1h")
        client.run_schedule("orders", "s")
        assert sum(1 for _ in client.read("orders")) == 11
        found = json.loads(http(broker, "/topics/orders/partitions/0/messages?offset=0&limit=3"))
        assert len(found["messages"]) == 3
        with client.consumer("orders", group="workers") as consumer:
            got = consumer.poll(5)
            got[0].ack()
            got[1].nack()
            got[2].reject()
        assert len(got) == 5
        series = {
            line.rpartition(" ")[0].removeprefix("goqueue_"): float(line.rpartition(" ")[2])
            for line in http(broker, "/metrics").decode().splitlines()
            if line[:1] != "#"
        }

    workers = '{consumer_group="workers",topic="orders"}'
    assert {name: series.get(name) for name in series if name.startswith("broker_messages") and series[name]} == {
        'broker_messages_published_total{topic="orders"}': 11,
        'broker_messages_published_total{topic="orders.dlq"}': 1,
        'broker_messages_consumed_total{consumer_group="",topic="orders"}': 14,
        f"broker_messages_consumed_total{workers}": 5,
        f"broker_messages_acked_total{workers}": 1,
        f"broker_messages_nacked_total{workers}": 1,
        f"broker_messages_rejected_total{workers}": 1,
    }
    assert series['broker_dlq_routed_total{reason="rejected",topic="orders"}'] == 1
    assert series['consumer_lag{consumer_group="workers",partition="0",topic="orders"}'] == 9
    assert series["broker_topic_count"] == 2


def http(broker: EmbeddedBroker, path: str, body: object = None) -> bytes:
    data = None if body is None else json.dumps(body).encode()
    request = Request(broker.http_address + path, data=data, headers={"content-type": "application/json"})
    with urlopen(request) as answer:
        return bytes(answer.read())
