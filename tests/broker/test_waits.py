"""Waits are bounded in number and in time, and leave nothing behind."""

import pytest

from goqueue.broker.config import BrokerConfig
from goqueue.broker.timers import Timers
from goqueue.broker.waits import Waits
from goqueue.clock import SECOND
from goqueue.service.pending import Pending
from goqueue.testing import ManualClock, MemoryDisk
from tests.broker.brokers import Node, wait


@pytest.fixture
def timers() -> Timers:
    return Timers()


@pytest.fixture
def waits(timers: Timers, clock: ManualClock) -> Waits:
    return Waits(timers, clock=clock, waiting_max=3)


def test_an_answer_ends_the_wait_and_its_timer(waits: Waits, timers: Timers, clock: ManualClock) -> None:
    pending: Pending[str] = Pending()
    told: list[str] = []
    waits.limit(pending, 1_000, lambda: pending.resolve("nothing"), lambda: told.append("ended"))
    assert len(waits) == 1

    pending.resolve("answer")
    timers.tick(clock.monotonic_ns() + 2 * SECOND)

    assert (pending.result(), told, len(waits)) == ("answer", ["ended"], 0)


def test_an_answer_that_is_there_already_waits_for_nothing(waits: Waits, timers: Timers) -> None:
    told: list[str] = []

    waits.limit(Pending.of("answer"), 1_000, lambda: told.append("given up"), lambda: told.append("ended"))

    assert (told, len(waits), len(timers)) == (["ended"], 0, 0)


def test_the_end_of_the_broker_ends_all_waits_and_lets_none_begin(waits: Waits) -> None:
    pendings: list[Pending[int]] = [Pending() for _ in range(3)]
    assert not waits.may_wait(0)
    for number, pending in enumerate(pendings):
        assert waits.may_wait(1)
        waits.limit(pending, 1_000, lambda pending=pending, number=number: pending.resolve(number))  # type: ignore[misc]
    assert not waits.may_wait(1)

    waits.end()

    assert [pending.result() for pending in pendings] == [0, 1, 2]
    assert (len(waits), waits.may_wait(1)) == (0, False)


def test_nobody_waits_for_longer_than_the_limit(node: Node) -> None:
    node.create()
    pending = wait(node, wait_ms=10**9)

    node.tick(60)

    assert pending.is_done


def test_beyond_the_limit_of_waits_the_answer_comes_at_once(disk: MemoryDisk, clock: ManualClock) -> None:
    node = Node(disk, clock, config=BrokerConfig(waiting_max=2))
    node.create()

    waits = [wait(node) for _ in range(3)]
    assert [pending.is_done for pending in waits] == [False, False, True]
    node.publish(b"a")

    assert not wait(node, offset=1).is_done


def test_waits_that_have_ended_leave_nothing_behind(node: Node) -> None:
    node.create()
    for number in range(5_000):
        pending = wait(node, offset=number, wait_ms=60_000)
        node.publish(b"v")
        assert pending.is_done

    assert not node.leader()._watchers
    assert not node.broker._waits
    assert len(node.broker._timers) <= 1_100
