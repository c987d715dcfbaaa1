"""A whole run of a broker follows from its seed, its clock and its requests: to the byte."""

from goqueue.clock import SECOND
from goqueue.runtime.entropy import SeededEntropy
from goqueue.service.new_message import NewMessage
from goqueue.testing import ManualClock, MemoryDisk
from goqueue.wire.reports import DeadLetterFilter
from goqueue.wire.schema_reports import NewSchema
from goqueue.wire.transaction_reports import TransactionOwner
from tests.broker.brokers import Node
from tests.broker.consumers import Consumer


def run(seed: int) -> dict[str, bytes]:
    """Everything on the disk after a run in which each part of a broker has something to write."""
    disk, clock = MemoryDisk(), ManualClock()
    node = Node(disk, clock, entropy=SeededEntropy(seed))
    broker = node.broker
    node.create("orders", partitions=2, max_deliveries=1)
    node.create("invoices")
    for number in range(20):
        node.publish(b"order %d" % number, partition=number % 2)
    node.messages(NewMessage(b"later", deliver_at_ns=clock.wall_ns() + 60 * SECOND))
    node.done(broker.schemas.register("invoices-value", NewSchema('{"type": "object"}', "JSON")))
    node.done(broker.schedules.create("orders", "hourly", NewMessage(b"tick"), every_ns=3_600 * SECOND))

    consumer = Consumer(node, mode="key-shared")
    messages = consumer.poll(10)
    consumer.settle("ack", messages[:6])
    consumer.settle("reject", messages[6:], reason="broken")
    node.done(broker.dead_letters.redrive("orders", DeadLetterFilter()))

    session = node.done(broker.transactions.init("billing"))
    node.done(broker.transactions.begin("billing", session.producer_id, session.epoch))
    transaction_id = broker.transactions.current(session.producer_id, session.epoch)
    node.done(broker.messages.publish("invoices", [NewMessage(b"{}")], transaction_id=transaction_id))
    owner = TransactionOwner(transactional_id="billing", producer_id=session.producer_id, epoch=session.epoch)
    node.done(broker.transactions.commit(owner))
    node.pass_time(120, step=10)
    broker.close()
    return {path: disk.read(path) for path in disk.paths()}


def test_the_same_seed_writes_the_same_bytes() -> None:
    first, second = run(7), run(7)

    assert first.keys() == second.keys()
    assert [path for path in first if first[path] != second[path]] == []


def test_another_seed_gives_other_ids() -> None:
    assert run(7) != run(8)
