"""A partition that resigns and leads again after every step behaves as one that leads all the time.

The same steps run on two brokers: one whose partitions keep their leaders, and one whose partitions change them after
each step. Whatever members get, whatever they are answered, and the final state have to be equal.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from goqueue.clock import SECOND
from goqueue.runtime.entropy import SeededEntropy
from goqueue.service.new_message import NewMessage
from goqueue.testing import ManualClock, MemoryDisk
from tests.broker.brokers import Node
from tests.broker.consumers import Consumer, Got, outcomes
from tests.broker.transactional import Owner

PARTITIONS = 2
MODES = ("partitioned", "shared", "key-shared")


def change_leaders(node: Node) -> None:
    """Let every partition of every topic of users have another leader."""
    partitions = node.broker.partitions
    for topic, count in sorted(partitions.partition_counts().items()):
        for number in range(count):
            partitions.resign(topic, number)
            partitions.become_leader(topic, number)
    node.workers.run_all()
    node.tick()


class Step(NamedTuple):
    """Something that a user of the broker does, or that time does."""

    action: str
    count: int = 1
    which: int = 0


STEPS = st.one_of(
    st.builds(Step, st.just("publish"), st.integers(1, 4), st.integers(0, 5)),
    st.builds(Step, st.just("publish later"), st.sampled_from((2, 8, 40)), st.integers(0, 5)),
    st.builds(Step, st.sampled_from(("commit", "abort")), st.integers(1, 3), st.integers(0, 5)),
    st.builds(Step, st.just("poll"), st.sampled_from((1, 3, 10)), st.integers(0, 1)),
    st.builds(Step, st.sampled_from(("ack", "nack", "reject", "extend", "release")), st.integers(1, 4)),
    st.builds(Step, st.just("ack in a transaction"), st.integers(1, 4), st.integers(0, 1)),
    st.builds(Step, st.sampled_from(("cancel", "reschedule"))),
    st.builds(Step, st.just("pass"), st.sampled_from((1, 3, 11, 29))),
)


class Scenario:
    """A broker with one group of two members, which does one step after the other."""

    def __init__(self, mode: str, between: Callable[[Node], None], *, partitions: int = PARTITIONS) -> None:
        self.partitions = partitions
        self.node = Node(MemoryDisk(), ManualClock(), entropy=SeededEntropy(1))
        self.between = between
        self.node.create(partitions=partitions, visibility_timeout="10s", max_deliveries=2)
        limits = {"mode": mode, "session_timeout_ms": 300_000}
        self.members = [Consumer(self.node, **limits) for _ in range(2)]
        for member in self.members:  # what the second one gets has been revoked from the first one
            self.node.broker.groups.heartbeat("workers", member.id, is_cooperative=True)
        self.owner = Owner(self.node, timeout_ms=900_000)
        self.held: list[tuple[Consumer, Got]] = []
        self.published = 0
        self.told: list[object] = []

    def run(self, steps: Sequence[Step]) -> "Scenario":
        for step in steps:
            self.told.append((step, self.do(step)))
            self.between(self.node)
        return self

    def do(self, step: Step) -> object:
        node = self.node
        match step.action:
            case "publish":
                return node.messages(*(self.message(step.which + at) for at in range(step.count)))
            case "publish later":
                due_ns = node.clock.wall_ns() + step.count * SECOND
                return node.messages(self.message(step.which)._replace(deliver_at_ns=due_ns))
            case "commit" | "abort":
                self.owner.begin()
                self.owner.messages(*(self.message(step.which + at) for at in range(step.count)))
                self.between(node)
                return (self.owner.commit() if step.action == "commit" else self.owner.abort()).status
            case "poll":
                member = self.members[step.which]
                got = member.poll(step.count)
                self.held += [(member, one) for one in got]
                return [(one.partition, one.offset, one.value, one.count, one.deadline_ns) for one in got]
            case "ack in a transaction":
                return self.ack_in_a_transaction(step)
            case "cancel" | "reschedule":
                return self.change_delay(step)
            case "pass":
                node.pass_time(step.count, step=1)
                return None
            case action:
                chosen, self.held = self.held[: step.count], self.held[step.count :]
                return [
                    outcome for member, one in chosen for outcome in outcomes(member.settle(action, [one], delay=2))
                ]

    def message(self, number: int) -> NewMessage:
        self.published += 1
        return NewMessage(b"%d" % self.published, b"key %d" % (number % 3), partition=number % self.partitions)

    def ack_in_a_transaction(self, step: Step) -> object:
        chosen, self.held = self.held[: step.count], self.held[step.count :]
        self.owner.begin()
        told = outcomes(self.owner.ack([one for _, one in chosen]))
        return told, (self.owner.commit() if step.which else self.owner.abort()).status

    def change_delay(self, step: Step) -> object:
        delays = self.node.broker.delays
        found = delays.list("orders")
        if not found:
            return None
        name = {"partition": found[0].partition, "offset": found[0].offset}
        if step.action == "cancel":
            changed = self.node.done(delays.cancel("orders", **name))
        else:
            changed = self.node.done(delays.reschedule("orders", self.node.clock.wall_ns() + 5 * SECOND, **name))
        return [(one.partition, one.offset, one.state, one.deliver_at_ns) for one in changed]

    def state(self) -> dict[str, object]:
        """What users see in the end."""
        broker = self.node.broker
        found: dict[str, object] = {
            "rest": [(one.partition, one.value, one.count) for member in self.members for one in member.poll(1_000)],
            "lag": broker.groups.describe("workers").lag,
            "delayed": broker.delays.list("orders"),
        }
        for number in range(self.partitions):
            found[f"values {number}"] = self.node.values(partition=number)
            delivery = broker.partitions.delivery(self.node.leader(partition=number))
            cursor = delivery.groups["workers"].cursor
            found[f"cursor {number}"] = (cursor.in_flight_count, cursor.waiting_count)
        if broker.partitions.find("orders.dlq"):
            found["dead"] = sorted(
                value for number in range(self.partitions) for value in self.node.values("orders.dlq", number)
            )
        return found


@pytest.mark.parametrize("mode", MODES)
@given(steps=st.lists(STEPS, max_size=25))
def test_changes_of_leader_after_every_step_change_nothing(mode: str, steps: list[Step]) -> None:
    steady = Scenario(mode, lambda node: None).run(steps)
    changing = Scenario(mode, change_leaders).run(steps)

    assert changing.told == steady.told
    assert changing.state() == steady.state()
