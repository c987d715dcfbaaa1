"""A redrive in numbers: its rate, its end, and the redrives that are remembered."""

import pytest

from goqueue.broker.delivery.dead_letters import HISTORY_MAX, RUNNING_MAX
from goqueue.errors import (
    BrokerUnavailable,
    Conflict,
    NotFound,
)
from goqueue.testing import ManualClock, MemoryDisk
from tests.broker.brokers import Node
from tests.broker.dead_lettered import (
    ALL,
    answered,
    begun,
    create,
    dead_letter,
    ended,
    listed,
    numbered,
    numbers,
    redriven,
)


@pytest.fixture
def node(disk: MemoryDisk, clock: ManualClock) -> Node:
    node = Node(disk, clock)
    create(node)
    return node


# --- rates, stops and memory -----------------------------------------------------------------------


@pytest.mark.parametrize("rate", [0.5, 1, 3, 10, 40, 300])
def test_a_rate_is_kept(node: Node, rate: float) -> None:
    dead_letter(node, *numbered(2_000))
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
    dead_letter(node, *numbered(2_000))
    node.broker.dead_letters.redrive("orders", ALL, rate=100)

    node.tick(3600)
    node.workers.run_all()

    assert len(node.values()) <= 12


def test_a_redrive_stops_after_what_it_has_in_hand(node: Node) -> None:
    dead_letter(node, *numbered(1_200))
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
    dead_letter(node, *numbered(5))
    redrive = begun(node, rate=0.001)
    node.workers.run_all()

    stopped = answered(node, node.broker.dead_letters.stop_redrive("orders", redrive.id))

    assert numbers(stopped) == ("stopped", 1, 1, 0, 0)
    assert stopped.finished_at_ns == node.clock.wall_ns()
    node.pass_time(3_000, step=500)
    assert node.values() == [b"0"]
    assert node.broker.dead_letters.redrive_info("orders", redrive.id) == stopped


def test_a_redrive_that_is_over_stays_what_it_is(node: Node) -> None:
    dead_letter(node, b"a")
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
    dead_letter(node, *numbered(100))
    for _ in range(RUNNING_MAX):
        node.broker.dead_letters.redrive("orders", ALL, rate=0.001)

    with pytest.raises(Conflict):
        node.broker.dead_letters.redrive("orders", ALL)


def test_a_broker_that_stops_begins_no_redrive_and_goes_on_with_those_it_has_after_the_restart(node: Node) -> None:
    dead_letter(node, *numbered(1_200))
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
