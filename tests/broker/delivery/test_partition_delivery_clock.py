"""A wall clock that is set while the broker runs, or is behind after a restart: nothing waits longer than it should."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from goqueue.clock import MS, SECOND
from goqueue.service.new_message import NewMessage
from goqueue.testing import ManualClock, MemoryDisk
from tests.broker.brokers import Node
from tests.broker.consumers import Consumer, Got, offsets, outcomes, restarted

TICK_S = 0.05
HOUR_NS = 3600 * SECOND


@pytest.fixture
def node(disk: MemoryDisk, clock: ManualClock) -> Node:
    node = Node(disk, clock)
    node.create(visibility_timeout="3s", backoff_initial="4s", max_deliveries=100)
    return node


def jump(node: Node, seconds: float) -> None:
    node.clock.set_wall_ns(node.clock.wall_ns() + round(seconds * SECOND))


def delay(node: Node, seconds: float) -> None:
    node.messages(NewMessage(b"later", deliver_at_ns=node.clock.wall_ns() + round(seconds * SECOND)))


def seconds_until(member: Consumer, *, limit: float = 100) -> tuple[float, list[Got]]:
    """How long it takes until the member gets something, to the tick."""
    node, start_ns = member.node, member.node.clock.monotonic_ns()
    while not (messages := member.poll()):
        node.tick(TICK_S)
        node.workers.run_all()
        node.broker.groups.heartbeat(member.group, member.id)
        assert node.clock.monotonic_ns() - start_ns < limit * SECOND, "it does not come"
    return (node.clock.monotonic_ns() - start_ns) / SECOND, messages


# --- while it runs -----------------------------------------------------------------------------


@pytest.mark.parametrize("by", [-60, 60, -3600, 3600, -0.5, 0.5])
def test_a_delay_takes_as_long_as_it_was_whatever_the_clock_is_set_to(node: Node, by: float) -> None:
    member = Consumer(node)
    delay(node, 2)
    node.pass_time(0.5)

    jump(node, by)

    assert node.values() == []  # plain reads do not see it early, either
    assert seconds_until(member)[0] == pytest.approx(1.5, abs=2 * TICK_S)


@pytest.mark.parametrize("by", [-60, 60])
def test_a_delay_that_begins_after_a_jump_goes_by_the_new_time(node: Node, by: float) -> None:
    member = Consumer(node)
    node.publish(b"first")
    member.ack(member.poll())
    jump(node, by)

    delay(node, 2)

    assert seconds_until(member)[0] == pytest.approx(2, abs=2 * TICK_S)


@pytest.mark.parametrize("by", [-60, 60])
def test_leases_and_backoffs_do_not_notice_a_jump(node: Node, by: float) -> None:
    member = Consumer(node)
    node.publish(b"a", b"b")
    (first, second) = member.poll()
    member.settle("nack", [first], delay=2)

    jump(node, by)

    taken_s, messages = seconds_until(member)
    assert (taken_s, offsets(messages)) == (pytest.approx(2, abs=2 * TICK_S), [0])
    assert outcomes(member.ack([second])) == ["ack"]


def test_a_delayed_message_is_listed_with_the_time_that_the_clock_will_show_then(node: Node) -> None:
    delay(node, 100)
    jump(node, -60)
    node.tick()

    (listed,) = node.broker.delays.list("orders")

    assert listed.deliver_at_ns == node.clock.wall_ns() + 100 * SECOND


@pytest.mark.parametrize("by", [-60, 60])
def test_a_message_that_was_given_another_time_keeps_to_it(node: Node, by: float) -> None:
    member = Consumer(node)
    delay(node, 50)
    node.done(node.broker.delays.reschedule("orders", node.clock.wall_ns() + 5 * SECOND, partition=0, offset=0))
    jump(node, by)
    node.tick(1)

    again = restarted(node)

    assert seconds_until(member.moved_to(again))[0] == pytest.approx(4, abs=2 * TICK_S)


steps = st.one_of(
    st.tuples(st.just("jump"), st.sampled_from([-3600, -60, -5, -0.3, 0.3, 5, 60, 3600])),
    st.tuples(st.just("delay"), st.sampled_from([0.2, 1, 3, 8])),
    st.tuples(st.just("publish"), st.just(0)),
    st.tuples(st.just("wait"), st.sampled_from([0.1, 1, 4])),
    st.tuples(st.just("kill"), st.just(0)),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(steps, max_size=25))
def test_delays_pass_at_their_pace_over_any_jumps_and_kills(story: list[tuple[str, float]]) -> None:
    """Of the clock while the broker runs; while it does not, time stands still here."""
    node = Node(MemoryDisk(), ManualClock())
    node.create()
    due_ns: dict[int, int] = {}  # by the monotonic clock
    seen: dict[int, int] = {}
    end = 0

    def look() -> None:
        for message in node.broker.delays.list("orders", state="delivered", limit=1000):
            seen.setdefault(message.offset, node.clock.monotonic_ns())

    def wait(seconds: float) -> None:
        for _ in range(round(seconds / TICK_S)):
            node.tick(TICK_S)
            node.workers.run_all()
            look()

    for action, number in story:
        if action == "jump":
            jump(node, number)
            node.tick()
        elif action == "delay":
            due_ns[end] = node.clock.monotonic_ns() + round(number * SECOND)
            delay(node, number)
            end += 1
        elif action == "publish":
            node.publish(b"now")
            end += 1
        elif action == "wait":
            wait(number)
        else:
            node.workers.run_all()
            node = restarted(node)
            look()
    wait(9)

    assert seen.keys() == due_ns.keys()
    for offset, at_ns in seen.items():
        assert 0 <= at_ns - due_ns[offset] <= 2 * TICK_S * SECOND, offset


# --- over restarts -----------------------------------------------------------------------------


@pytest.mark.parametrize("is_whole", [False, True])
def test_a_lease_is_not_held_for_longer_since_the_clock_is_behind_after_a_restart(node: Node, is_whole: bool) -> None:
    member = Consumer(node)
    node.publish(b"a")
    member.poll()
    if is_whole:
        delivery = node.broker.partitions.delivery(node.leader())
        delivery.groups["workers"].stored.write_whole()
    jump(node, -3600)

    again = restarted(node)

    taken_s, (message,) = seconds_until(member.moved_to(again))
    assert taken_s <= 3 + 4 + 2 * TICK_S  # the lease and the backoff
    assert message.count == 2


def test_a_backoff_and_an_extension_are_not_longer_since_the_clock_is_behind_after_a_restart(node: Node) -> None:
    member = Consumer(node)
    node.publish(b"a", b"b")
    first, second = member.poll()
    member.settle("nack", [first], delay=5)
    member.settle("extend", [second], delay=8)
    node.pass_time(1)
    jump(node, -3600)

    member = member.moved_to(restarted(node))

    taken_s, messages = seconds_until(member)
    assert (offsets(messages), taken_s <= 5 + TICK_S) == ([0], True)
    member.ack(messages)
    later_s, messages = seconds_until(member)
    assert offsets(messages) == [1]
    assert taken_s + later_s <= 8 + 4 + 2 * TICK_S


def test_a_lease_that_was_given_after_the_clock_was_set_back_is_good_after_a_restart(node: Node) -> None:
    member = Consumer(node)
    node.publish(b"a", b"b")
    member.ack(member.poll(1))
    jump(node, -60)
    node.tick()
    messages = member.poll()

    again = restarted(node)
    again.pass_time(1)

    assert member.moved_to(again).poll() == []
    assert outcomes(member.moved_to(again).ack(messages)) == ["ack"]


@pytest.mark.parametrize("by", [60, -60])
def test_a_lease_that_was_given_before_the_clock_was_set_is_good_after_a_restart(node: Node, by: float) -> None:
    member = Consumer(node)
    node.publish(b"a")
    messages = member.poll()
    jump(node, by)
    node.tick(0.1)

    again = restarted(node)
    again.pass_time(1)

    assert outcomes(member.moved_to(again).ack(messages)) == ["ack"]


def test_a_delay_is_not_longer_since_the_clock_is_behind_after_restarts_nor_shorter(node: Node) -> None:
    member = Consumer(node)
    delay(node, 20)
    node.pass_time(5)
    node.publish(b"now")  # the clock has come as far as this
    member.ack(member.poll())
    jump(node, -3600)

    again = restarted(node)
    again.pass_time(3)
    again = restarted(again)
    again.pass_time(2)
    again = restarted(again)

    assert seconds_until(member.moved_to(again))[0] == pytest.approx(10, abs=2 * TICK_S)


def test_a_delay_that_nothing_was_stored_after_waits_once_more_at_most(node: Node) -> None:
    member = Consumer(node)
    delay(node, 20)
    node.pass_time(15)
    jump(node, -3600)

    again = restarted(node)

    assert seconds_until(member.moved_to(again))[0] <= 20 + 2 * TICK_S


def test_a_clock_that_stood_still_for_the_process_alone_moves_nothing(disk: MemoryDisk) -> None:
    """The process was paused between its looks at the two clocks."""

    class Paused(ManualClock):
        pause_ns = 0

        def monotonic_ns(self) -> int:
            now_ns = super().monotonic_ns()
            self.advance_ns(self.pause_ns)
            return now_ns

    clock = Paused()
    node = Node(disk, clock)
    node.create()
    delay(node, 100)
    (before,) = node.broker.delays.list("orders")
    clock.pause_ns = 50 * MS
    node.tick()
    clock.pause_ns = 0
    node.tick()

    assert node.broker.delays.list("orders") == [before]
