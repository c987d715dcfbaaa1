"""The order of a key in a key-shared group, whatever its members do and however often the broker is killed."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from goqueue.record.header import Priority
from goqueue.service.new_message import NewMessage
from goqueue.testing import ManualClock, MemoryDisk
from tests.broker.brokers import Node
from tests.broker.consumers import Consumer, Got, offsets, outcomes, restarted
from tests.broker.transactional import Owner

LEASE_S = 10
KILL = st.sampled_from([False, False, False, True])


@pytest.fixture
def node(disk: MemoryDisk, clock: ManualClock) -> Node:
    return Node(disk, clock)


def two_of_one_key(node: Node, **settings: object) -> tuple[Consumer, list[Got]]:
    node.create("orders", partitions=1, max_deliveries=100, **settings)
    node.messages(NewMessage(b"a", key=b"k"), NewMessage(b"b", key=b"k"))
    member = Consumer(node, mode="key-shared", session_timeout_ms=300_000)
    return member, member.poll()


@pytest.mark.parametrize("action", ["nack", "release"])
@pytest.mark.parametrize("is_before", [False, True])
def test_messages_that_come_back_around_a_restart_come_in_order(node: Node, action: str, is_before: bool) -> None:
    member, (first, second) = two_of_one_key(node)
    if is_before:
        member.settle(action, [first], delay=0)

    again = restarted(node)
    member = member.moved_to(again)
    if not is_before:
        member.settle(action, [first], delay=0)
    again.pass_time(1)
    assert member.poll() == []  # the first has to wait for the second
    assert outcomes(member.settle("nack", [second], delay=0)) == ["requeued"]

    again.pass_time(1)
    both_in_turn(member)


def test_a_message_that_was_given_back_before_two_restarts_is_known_from_a_snapshot(node: Node) -> None:
    member, (first, second) = two_of_one_key(node)
    member.settle("release", [first])
    delivery = node.broker.partitions.delivery(node.leader())
    delivery.groups["workers"].stored.write_whole()

    again = restarted(restarted(node))
    member = member.moved_to(again)
    assert member.poll() == []
    member.settle("nack", [second], delay=0)
    again.pass_time(1)

    both_in_turn(member)


def both_in_turn(member: Consumer) -> None:
    found: list[int] = []
    for _ in range(2):
        messages = member.poll()
        member.ack(messages)
        found += offsets(messages)
    assert found == [0, 1]


def test_leases_that_run_out_after_a_restart_and_before_a_poll_come_back_in_order(node: Node) -> None:
    member, (first, _) = two_of_one_key(node, visibility_timeout="10s", backoff_initial="5s")
    member.settle("extend", [first], delay=12)

    again = restarted(node)
    again.pass_time(10.1)  # that of the second
    again.pass_time(5.1)  # the second is due again, and the first is not
    member = member.moved_to(again)

    assert member.poll() == []
    again.pass_time(5.1)
    both_in_turn(member)


def test_what_an_aborted_transaction_held_over_a_restart_comes_back_in_order(node: Node) -> None:
    member, (first, second) = two_of_one_key(node, visibility_timeout="30s", backoff_initial="5s")
    owner = Owner(node, "billing")
    owner.begin()
    owner.ack([first])

    again = restarted(node)
    member = member.moved_to(again)
    member.settle("nack", [second], delay=0)
    again.pass_time(1)

    messages = member.poll()
    if not messages:  # the lease of the first still holds
        again.pass_time(40)
        messages = member.poll()
    assert offsets(messages)[0] == first.offset


def test_a_message_that_failed_before_a_restart_goes_before_a_more_urgent_one_of_its_key(node: Node) -> None:
    node.create(max_deliveries=100)
    node.messages(NewMessage(b"a", key=b"k", priority=Priority.LOW))
    member = Consumer(node, mode="key-shared", session_timeout_ms=300_000)
    member.settle("nack", member.poll(), delay=0)
    node.messages(NewMessage(b"b", key=b"k", priority=Priority.CRITICAL))
    node.pass_time(1)

    again = restarted(node)
    again.pass_time(1)

    assert offsets(member.moved_to(again).poll(1)) == [0]


def test_a_key_that_was_handed_over_without_leases_is_free_when_its_member_is_gone(node: Node) -> None:
    node.create()
    node.messages(NewMessage(b"a", key=b"k"), NewMessage(b"b", key=b"k"))
    one, other = (Consumer(node, mode="key-shared", ack="offsets", auto_commit=False) for _ in range(2))
    assert offsets(one.poll()) == [0, 1]
    assert other.poll() == []
    one.leave()

    assert offsets(other.poll()) == [0, 1]


class Machine(RuleBasedStateMachine):
    """Two members and a broker that is killed now and then; the model knows who has what."""

    @initialize()
    def start(self) -> None:
        self.node = Node(MemoryDisk(), ManualClock())
        self.node.create(max_deliveries=1_000, visibility_timeout=f"{LEASE_S}s", backoff_initial="2s", backoff_max="4s")
        self.got: dict[int, Got] = {}
        self.members = [Consumer(self.node, mode="key-shared", session_timeout_ms=300_000) for _ in range(2)]
        self.keys = [b"x", b"x", b"y", b"x", b"y", b"y"] * 2
        self.open = set(range(len(self.keys)))
        self.node.messages(*(NewMessage(b"v", key=key) for key in self.keys))

    @rule(who=st.integers(0, 1), count=st.integers(2, 12), kill=KILL)
    def poll(self, who: int, count: int, kill: bool) -> None:
        self.maybe_kill(kill)
        now_ns = self.node.clock.wall_ns()
        held = {self.keys[offset] for offset, one in self.got.items() if one.deadline_ns > now_ns}
        messages = self.members[who].poll(count)
        answer: set[int] = set()
        for message in messages:
            key = self.keys[message.offset]
            before = {offset for offset in self.open if offset < message.offset and self.keys[offset] == key}
            assert key not in held, "somebody has the key"
            assert before <= answer, f"{message.offset} came before {before - answer}"
            answer.add(message.offset)
            self.got[message.offset] = message

    @rule(
        action=st.sampled_from(["ack", "nack", "nack at once", "release", "extend"]),
        data=st.data(),
        kill=KILL,
    )
    def settle(self, action: str, data: st.DataObject, kill: bool) -> None:
        self.maybe_kill(kill)
        if not self.got:
            return
        offset = data.draw(st.sampled_from(sorted(self.got)))
        message = self.got[offset] if action == "extend" else self.got.pop(offset)
        delay = {"nack at once": 0.0, "extend": float(LEASE_S)}.get(action)
        (outcome,) = outcomes(self.members[0].settle(action.split(maxsplit=1)[0], [message], delay=delay))
        if action == "ack" and outcome == "ack":
            self.open.discard(offset)
        elif action == "extend":
            deadline_ns = self.node.clock.wall_ns() + LEASE_S * 10**9
            if outcome == "extended":
                self.got[offset] = message._replace(deadline_ns=deadline_ns)

    @rule(action=st.sampled_from(["nack", "release"]), kill=KILL)
    def give_the_first_back(self, action: str, kill: bool) -> None:
        self.maybe_kill(kill)
        if self.got:
            self.members[0].settle(action, [self.got.pop(min(self.got))], delay=0)

    @rule(seconds=st.sampled_from([0.5, 2.5, 2.5, 11.0]))
    def wait(self, seconds: float) -> None:
        self.node.pass_time(seconds, step=0.5)
        for member in self.members:
            self.node.broker.groups.heartbeat(member.group, member.id)

    def maybe_kill(self, kill: bool) -> None:
        """Between any two steps."""
        if kill:
            self.node = restarted(self.node)
            self.members = [member.moved_to(self.node) for member in self.members]
        self.node.pass_time(0.1)


Machine.TestCase.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
TestRestarts = Machine.TestCase
