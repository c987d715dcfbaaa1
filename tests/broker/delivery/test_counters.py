"""What happened to messages is counted since the start, and topics that are deleted are forgotten."""

from goqueue import events
from goqueue.broker.delivery.counters import DeliveryCounters
from tests.broker.brokers import Node
from tests.broker.consumers import Consumer


def test_settlements_deliveries_and_dead_letters_are_counted(node: Node) -> None:
    node.create(max_deliveries=2)
    node.publish(b"acked", b"nacked", b"rejected", b"extended")
    member = Consumer(node)
    acked, nacked, rejected, extended = member.poll()
    member.ack([acked])
    member.settle("nack", [nacked])
    member.settle("reject", [rejected])
    member.settle("extend", [extended], delay=60)
    node.pass_time(10)
    member.poll()

    told = node.broker.groups.reliability()

    assert (told.acks, told.nacks, told.rejects, told.extensions) == (1, 1, 1, 1)
    assert (told.leased, told.retries, told.in_flight) == (5, 1, 2)
    assert (told.dead_by_reason, told.dead_by_topic) == ({"REJECTED": 1}, {"orders": 1})


def test_the_dead_letters_of_a_deleted_topic_are_not_counted() -> None:
    counters = DeliveryCounters()
    for topic in ("orders", "bills"):
        counters.observe(events.DeadLettered(topic, "workers", "REJECTED", 2, 0, "", "", 0, f"{topic}.dlq", {}))

    counters.observe(events.TopicDeleted("orders", False))

    assert counters.dead_by_topic == {"bills": 2}
    assert counters.dead_by_reason == {"REJECTED": 4}
