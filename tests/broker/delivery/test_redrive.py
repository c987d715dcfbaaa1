"""A redrive in numbers: its rate, its end, and the redrives that are remembered."""

from collections.abc import Iterable, Mapping

import pytest

from goqueue.broker.delivery.dead_letters import HISTORY_MAX, RUNNING_MAX
from goqueue.delivery.dead_letter import Death, dead_headers
from goqueue.errors import (
    BrokerUnavailable,
    Conflict,
    NotFound,
)
from goqueue.names import TopicPartition
from goqueue.record import kernel
from goqueue.record.header import Priority
from goqueue.record.message import Message
from goqueue.service.pending import Pending
from goqueue.testing import ManualClock, MemoryDisk
from goqueue.wire.reports import DeadLetter, DeadLetterFilter, RedriveInfo
from tests.broker.brokers import Node
from tests.broker.consumers import Got

ALL = DeadLetterFilter()


@pytest.fixture
def node(disk: MemoryDisk, clock: ManualClock) -> Node:
    node = Node(disk, clock)
    create(node)
    return node


def create(node: Node, *, partitions: int = 2, **settings: object) -> None:
    for topic in ("orders", "orders.dlq"):
        node.create(topic, partitions=partitions, **settings)


def bury(
    node: Node,
    *values: bytes | None,
    partition: int = 0,
    key: bytes | None = None,
    headers: Mapping[str, str] | None = None,
    reason: str = "REJECTED",
    error: str = "bad",
    group: str = "billing",
    attempts: int = 3,
    origin: str | None = None,
    priority: int = Priority.NORMAL,
) -> None:
    """Write dead letters, as if they had died just now."""
    now_ns = node.clock.wall_ns()
    records = kernel.encode(
        values,
        keys=[key] * len(values),
        priorities=priority,
        headers=[
            {
                **dead_headers(
                    headers or {},
                    Death(reason, error, group, "m", attempts, origin or f"orders:{partition}:{n}", None, now_ns),
                )
            }
            for n in range(len(values))
        ],
    )
    node.done(node.broker.publish_records("orders.dlq", partition, records))


def numbered(count: int) -> list[bytes]:
    return [b"%d" % n for n in range(count)]


def listed(node: Node, wanted: DeadLetterFilter = ALL, **page: int) -> list[bytes]:
    return [message_of(letter).value for letter in node.broker.dead_letters.list("orders", wanted, **page)]


def message_of(letter: DeadLetter) -> Message:
    (message,) = kernel.decode(letter.record, TopicPartition("orders.dlq", letter.partition), Message)
    assert message.offset == letter.offset
    return message


def redriven(node: Node, wanted: DeadLetterFilter = ALL, **options: object) -> RedriveInfo:
    """A redrive, when it is over."""
    return ended(node, begun(node, wanted, **options).id)


def begun(node: Node, wanted: DeadLetterFilter = ALL, **options: object) -> RedriveInfo:
    """A redrive that has begun for certain; of what follows as little has happened as can be."""
    return answered(node, node.broker.dead_letters.redrive("orders", wanted, **options))  # type: ignore[arg-type]


def answered(node: Node, pending: Pending[RedriveInfo]) -> RedriveInfo:
    while not pending.is_done:
        node.workers.run_one()
    return pending.result()


def ended(node: Node, redrive_id: str) -> RedriveInfo:
    for _ in range(10_000):
        node.workers.run_all()
        info = node.broker.dead_letters.redrive_info("orders", redrive_id)
        if info.state != "running":
            return info
        node.tick(0.05)
    raise AssertionError("it does not end")


def numbers(info: RedriveInfo) -> tuple[str, int, int, int, int]:
    return info.state, info.matched, info.redriven, info.skipped_loop, info.failed


# --- rates, stops and memory -----------------------------------------------------------------------


@pytest.mark.parametrize("rate", [0.5, 1, 3, 10, 40, 300])
def test_a_rate_is_kept(node: Node, rate: float) -> None:
    bury(node, *numbered(2_000))
    node.broker.dead_letters.redrive("orders", ALL, rate=rate)
    node.workers.run_all()
    before = 1.0

    for second in range(1, 6):
        node.pass_time(1)
        count = len(node.values())
        assert count <= 1 + rate * second
        assert count - before >= rate * 0.9 - 1
        before = count
    assert len(node.values()) >= 5 * rate - 2


def test_a_rate_does_not_save_up_for_a_burst(node: Node) -> None:
    bury(node, *numbered(2_000))
    node.broker.dead_letters.redrive("orders", ALL, rate=100)

    node.tick(3600)
    node.workers.run_all()

    assert len(node.values()) <= 12


def test_a_redrive_stops_after_what_it_has_in_hand(node: Node) -> None:
    bury(node, *numbered(1_200))
    redrive = begun(node)

    stopping = node.broker.dead_letters.stop_redrive("orders", redrive.id)
    assert not stopping.is_done

    assert numbers(node.done(stopping)) == ("stopped", 500, 500, 0, 0)
    node.pass_time(1)
    assert node.values() == numbered(500)
    assert len(listed(node, limit=1_000)) == 700
    assert redriven(node).redriven == 700
    assert node.values() == numbered(1_200)


def test_a_redrive_that_waits_for_its_rate_stops_at_once(node: Node) -> None:
    bury(node, *numbered(5))
    redrive = begun(node, rate=0.001)
    node.workers.run_all()

    stopped = answered(node, node.broker.dead_letters.stop_redrive("orders", redrive.id))

    assert numbers(stopped) == ("stopped", 1, 1, 0, 0)
    assert stopped.finished_at_ns == node.clock.wall_ns()
    node.pass_time(3_000, step=500)
    assert node.values() == [b"0"]
    assert node.broker.dead_letters.redrive_info("orders", redrive.id) == stopped


def test_a_redrive_that_is_over_stays_what_it_is(node: Node) -> None:
    bury(node, b"a")
    info = redriven(node)

    assert node.broker.dead_letters.stop_redrive("orders", info.id).result() == info
    assert node.broker.dead_letters.describe("orders").redrives == [info]


def test_a_redrive_that_nobody_began_is_not_found(node: Node) -> None:
    for ask in (node.broker.dead_letters.redrive_info, node.broker.dead_letters.stop_redrive):
        with pytest.raises(NotFound):
            ask("orders", "nonsense")


def test_only_the_last_redrives_of_a_topic_are_remembered(node: Node) -> None:
    ids = [redriven(node).id for _ in range(HISTORY_MAX + 5)]

    assert [one.id for one in node.broker.dead_letters.describe("orders").redrives] == ids[5:]


def test_there_are_not_too_many_redrives_at_once(node: Node) -> None:
    bury(node, *numbered(100))
    for _ in range(RUNNING_MAX):
        node.broker.dead_letters.redrive("orders", ALL, rate=0.001)

    with pytest.raises(Conflict):
        node.broker.dead_letters.redrive("orders", ALL)


def test_a_broker_that_stops_begins_no_redrive_and_goes_on_with_those_it_has_after_the_restart(node: Node) -> None:
    bury(node, *numbered(1_200))
    redrive = begun(node)

    drained = node.broker.drain()
    with pytest.raises(BrokerUnavailable):
        node.broker.dead_letters.redrive("orders", ALL)
    node.pass_time(1)

    assert drained.is_done
    assert numbers(node.broker.dead_letters.redrive_info("orders", redrive.id)) == ("running", 500, 500, 0, 0)

    node.broker.close()
    again = Node(node.disk, node.clock)
    assert numbers(again.broker.dead_letters.redrive_info("orders", redrive.id)) == ("running", 500, 500, 0, 0)
    assert numbers(ended(again, redrive.id)) == ("done", 1_200, 1_200, 0, 0)
    assert again.values() == numbered(1_200)


# --- for whom --------------------------------------------------------------------------------------


def values(messages: Iterable[Got]) -> list[bytes]:
    return [message.value for message in messages]
