"""Owners, groups and readers do as they like, leaders change, and the broker is started again: a naive model agrees.

The model knows in which order records came into each partition, and which transactions are committed. What everybody
may see follows from that.
"""

from dataclasses import dataclass, field
from random import Random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from goqueue.broker.coordination import TRANSACTIONS_TOPIC, partition_of
from goqueue.errors import GoQueueError, NotLeader, ProducerFenced, TransactionError
from goqueue.testing import ManualClock, MemoryDisk
from goqueue.wire import reports
from tests.broker.brokers import Node, offsets_of
from tests.broker.consumers import Consumer, Got
from tests.broker.flapping import flap
from tests.broker.transactional import Owner, position_of, uncommitted

NAMES = ("team/anna", "team/ben")  # one coordinator: they commit together
PARTITIONS = (("out", 0), ("out", 1), ("in", 0))
GROUPS = ("workers", "others")
TIMEOUT_S = 20
LEASE_S = 30

STEPS = (
    "process", "process", "publish", "ack", "commit", "abort", "both", "plain", "time", "crash", "leader", "no leader",
    "attach",
)  # fmt: skip

WHO = st.sampled_from(NAMES)
Key = tuple[int, int] | None
"""Of a transaction; None is none."""


@dataclass
class Open:
    """A transaction that is not decided."""

    owner: Owner
    until_s: float
    position: int = 0
    acks: dict[str, set[bytes]] = field(default_factory=dict)


class Machine(RuleBasedStateMachine):
    """One broker, its disk, and the model of it."""

    @initialize()
    def start(self) -> None:
        self.clock = ManualClock()
        self.disk = MemoryDisk()
        self.node = Node(self.disk, self.clock)
        self.node.create("out", partitions=2, segment_bytes=1024)
        self.node.create("in", segment_bytes=1024, visibility_timeout=f"{LEASE_S}s", max_deliveries=1_000)
        self.now_s = 0.0
        self.number = 0
        self.log: dict[tuple[str, int], list[tuple[bytes, Key]]] = {place: [] for place in PARTITIONS}
        self.open: dict[str, Open] = {}  # by the name of the owner
        self.committed: set[Key] = {None}
        self.position = 0
        self.done: dict[str, set[bytes]] = {group: set() for group in GROUPS}
        self.got: dict[str, dict[bytes, Got]] = {group: {} for group in GROUPS}
        self.consumers: dict[str, Consumer] = {}
        self.owners = {name: Owner(self.node, name, timeout_ms=TIMEOUT_S * 1000) for name in NAMES}
        self.fenced: Owner | None = None

    # --- owners --------------------------------------------------------------------------------

    @rule(name=WHO)
    def init(self, name: str) -> None:
        fenced = self.fenced = self.owners[name]
        owner = self.owners[name] = Owner(self.node, name, timeout_ms=TIMEOUT_S * 1000)
        assert owner.session.epoch == fenced.session.epoch + 1
        self.open.pop(name, None)

    @rule(name=WHO)
    def begin(self, name: str) -> None:
        owner = self.owner(name)
        try:
            owner.begin()
        except TransactionError:
            assert owner.name in self.open
        else:
            assert owner.name not in self.open
            self.open[owner.name] = Open(owner, self.now_s + TIMEOUT_S)

    @rule()
    def a_fenced_owner_is_refused(self) -> None:
        owner = self.fenced
        if owner is None:
            return
        owner.node = self.node
        for asked in (owner.begin, owner.commit, owner.abort, lambda: owner.position(0, topic="out")):
            with pytest.raises(ProducerFenced):
                asked()
        if owner.number:
            with pytest.raises(ProducerFenced):
                owner.publish(b"zombie", topic="out")

    @rule(name=WHO, place=st.sampled_from(PARTITIONS), count=st.integers(1, 3))
    def publish(self, name: str, place: tuple[str, int], count: int) -> None:
        owner = self.owner(name)
        values = self.new_values(count)
        try:
            owner.publish(*values, topic=place[0], partition=place[1])
        except GoQueueError:
            assert not self.is_open(owner)
        else:
            assert self.is_open(owner)
            self.log[place] += [(value, owner.key) for value in values]

    @rule(place=st.sampled_from(PARTITIONS), count=st.integers(1, 3))
    def publish_plainly(self, place: tuple[str, int], count: int) -> None:
        values = self.new_values(count)
        self.node.publish(*values, topic=place[0], partition=place[1])
        self.log[place] += [(value, None) for value in values]

    @rule(name=WHO, group=st.sampled_from(GROUPS), share=st.integers(1, 3))
    def ack(self, name: str, group: str, share: int) -> None:
        owner = self.owner(name)
        messages = list(self.got[group].values())[::share]
        try:
            results = owner.ack(messages)
        except GoQueueError:
            assert not self.is_open(owner)
            return
        assert self.is_open(owner)
        acks = self.open[owner.name].acks.setdefault(group, set())
        for message, result in zip(messages, results, strict=True):
            del self.got[group][message.value]
            if isinstance(result, reports.SettledMessage):
                acks.add(message.value)

    @rule(name=WHO, group=st.sampled_from(GROUPS), place=st.sampled_from(PARTITIONS), ends=st.booleans())
    def process(self, name: str, group: str, place: tuple[str, int], ends: bool) -> None:
        """What transactions are for."""
        self.begin(name)
        self.publish_plainly(("in", 0), 2)
        self.poll(group, 3)
        self.ack(name, group, 1)
        self.publish(name, place, 1)
        self.set_position(name, 1)
        if ends:
            self.commit(name)

    @rule(name=WHO, back=st.integers(0, 3))
    def set_position(self, name: str, back: int) -> None:
        owner = self.owner(name)
        offset = max(0, self.node.leader("out").last_stable_offset - back)
        try:
            owner.position(offset, topic="out")
        except GoQueueError:
            assert not self.is_open(owner)
        else:
            self.open[owner.name].position = offset

    @rule(name=WHO)
    def commit(self, name: str) -> None:
        owner = self.owner(name)
        try:
            outcome = owner.commit()
        except GoQueueError:
            assert not self.is_open(owner)
        else:
            self.committed_now(owner, outcome.already)

    @rule()
    def commit_together(self) -> None:
        first, second = map(self.owner, NAMES)
        try:
            outcome = first.commit(second)
        except GoQueueError:
            assert not (self.is_open(first) and self.is_open(second))
        else:
            self.committed_now(first, outcome.already)
            self.committed_now(second, outcome.already)

    @rule(name=WHO)
    def abort(self, name: str) -> None:
        owner = self.owner(name)
        try:
            owner.abort()
        except GoQueueError:
            assert not self.is_open(owner)
        else:
            assert owner.key not in self.committed
            if self.is_open(owner):
                del self.open[owner.name]

    @rule()
    def abort_the_oldest(self) -> None:
        for info in self.node.broker.transactions.list()[:1]:
            self.node.done(self.node.broker.transactions.abort_by_admin(info.transaction_id))
            del self.open[info.transactional_id]

    # --- groups --------------------------------------------------------------------------------

    @rule(group=st.sampled_from(GROUPS), count=st.integers(1, 4))
    def poll(self, group: str, count: int) -> None:
        visible = self.visible("in", 0)
        held = [one.acks.get(group, set()) for one in self.open.values()]
        for message in self.consumer(group).poll(count):
            assert message.value in visible, "delivered, and not committed"
            assert message.value not in self.done[group], "delivered after its ack"
            assert not any(message.value in values for values in held), "delivered, and held"
            self.got[group][message.value] = message

    @rule(group=st.sampled_from(GROUPS), share=st.integers(1, 4))
    def ack_plainly(self, group: str, share: int) -> None:
        messages = list(self.got[group].values())[::share]
        results = self.consumer(group).ack(messages)
        for message, result in zip(messages, results, strict=True):
            del self.got[group][message.value]
            if isinstance(result, reports.SettledMessage):
                self.done[group].add(message.value)

    # --- time and accidents --------------------------------------------------------------------

    @rule(seconds=st.sampled_from((0.5, 5, 12, TIMEOUT_S + 1)))
    def pass_time(self, seconds: float) -> None:
        self.node.pass_time(seconds, step=0.5)
        self.now_s += seconds
        self.open = {name: one for name, one in self.open.items() if one.until_s > self.now_s}

    @rule(is_power_cut=st.booleans())
    def crash(self, is_power_cut: bool) -> None:
        self.start_again(self.disk.crash(keep="nothing" if is_power_cut else "everything"))

    @rule(place=st.sampled_from(PARTITIONS))
    def change_leader(self, place: tuple[str, int]) -> None:
        flap(self.node, *place)

    @rule(name=WHO, place=st.sampled_from(PARTITIONS), commits=st.booleans())
    def end_without_a_leader(self, name: str, place: tuple[str, int], commits: bool) -> None:
        """It is refused, and can be repeated, or takes effect when the partition has a leader again."""
        owner = self.owner(name)
        if not self.is_open(owner):
            return
        self.node.broker.partitions.resign(*place)
        try:
            asked = owner.committing() if commits else owner.aborting()
        except NotLeader:
            asked = None
        self.node.workers.run_all()
        self.node.broker.partitions.become_leader(*place)
        if asked is None:
            return
        status = self.node.done(asked).status
        assert status == ("committed" if commits else "aborted")
        if commits:
            self.committed_now(owner, already=False)
        else:
            del self.open[owner.name]

    @rule()
    def attach_again(self) -> None:
        """The coordinator forgets what is not decided."""
        partition = partition_of(NAMES[0], TRANSACTIONS_TOPIC)
        flap(self.node, TRANSACTIONS_TOPIC, partition)
        self.node.workers.run_all()
        self.open = {}

    @rule()
    def stop(self) -> None:
        self.node.broker.close()
        self.start_again(self.disk.crash(keep="nothing"))

    @rule(seed=st.integers(0, 2**32))
    def stroll(self, seed: int) -> None:
        """Many steps at once, so that a few rules lead far."""
        rng = Random(seed)
        for _ in range(8):
            self.a_step(rng)
            self.readers_see_what_is_committed()
            self.messages_are_counted()
            self.positions_are_where_they_were_committed()

    def a_step(self, rng: Random) -> None:
        name, group, place = rng.choice(NAMES), rng.choice(GROUPS), rng.choice(PARTITIONS)
        match rng.choice(STEPS):
            case "process":
                self.process(name, group, place, rng.random() < 0.5)
            case "publish":
                self.publish(name, place, 2)
            case "ack":
                self.ack(name, group, 2)
            case "commit":
                self.commit(name)
            case "abort":
                self.abort(name)
            case "both":
                self.commit_together()
            case "plain":
                self.ack_plainly(group, 2)
            case "time":
                self.pass_time(rng.choice((0.5, 12, TIMEOUT_S + 1)))
            case "crash":
                self.crash(rng.random() < 0.5)
            case "leader":
                self.change_leader(place)
            case "no leader":
                self.end_without_a_leader(name, place, rng.random() < 0.5)
            case "attach":
                self.attach_again()

    # --- what always holds ---------------------------------------------------------------------

    @invariant()
    def readers_see_what_is_committed(self) -> None:
        for topic, partition in PARTITIONS:
            assert self.node.values(topic, partition) == self.visible(topic, partition)
            assert uncommitted(self.node, topic, partition) == [value for value, _ in self.log[topic, partition]]

    @invariant()
    def transactions_are_listed_while_they_are_open(self) -> None:
        listed = self.node.broker.transactions.list()
        assert {info.transaction_id for info in listed} == {one.owner.id for one in self.open.values()}
        assert self.node.broker.transactions.stats().active_transactions == len(self.open)

    @invariant()
    def messages_are_counted(self) -> None:
        for topic in ("in", "out"):
            stored = sum(len(records) for place, records in self.log.items() if place[0] == topic)
            assert self.node.broker.topics.describe(topic).total_messages == stored

    @invariant()
    def positions_are_where_they_were_committed(self) -> None:
        position = position_of(self.node, topic="out")
        skipped = [one for one in offsets_of(self.node.read("out")) if self.position <= one < position]
        assert position >= self.position
        assert not skipped

    def teardown(self) -> None:
        """In the end all that was committed is delivered, and nothing is in anybody's way."""
        for name in NAMES:
            self.init(name)
        for group in GROUPS:
            for _ in range(3):
                self.pass_time(LEASE_S + 1)
                found = self.consumer(group).poll(1_000)
                assert not self.done[group].intersection(message.value for message in found)
                self.consumer(group).ack(found)
                self.done[group] |= {message.value for message in found}
            assert self.done[group] == set(self.visible("in", 0))
            assert [one.lag for one in self.node.broker.groups.positions(group, topic="in")] == [0]
            assert [member.in_flight for member in self.node.broker.groups.describe(group).members] == [0]
        for topic, partition in PARTITIONS:
            leader = self.node.leader(topic, partition)
            assert leader.last_stable_offset == leader.high_watermark

    # --- the model -----------------------------------------------------------------------------

    def new_values(self, count: int) -> list[bytes]:
        self.number += count
        return [b"%d" % (self.number - index) for index in range(count)]

    def visible(self, topic: str, partition: int) -> list[bytes]:
        undecided = {one.owner.key for one in self.open.values()}
        found = []
        for value, key in self.log[topic, partition]:
            if key in undecided:
                break
            if key in self.committed:
                found.append(value)
        return found

    def owner(self, name: str) -> Owner:
        owner = self.owners[name]
        owner.node = self.node
        return owner

    def is_open(self, owner: Owner) -> bool:
        return owner.name in self.open and self.open[owner.name].owner is owner

    def committed_now(self, owner: Owner, already: bool) -> None:
        assert already == (not self.is_open(owner))
        assert already == (owner.key in self.committed)
        if not already:
            one = self.open.pop(owner.name)
            self.committed.add(owner.key)
            self.position = max(self.position, one.position)
            for group, values in one.acks.items():
                self.done[group] |= values

    def consumer(self, group: str) -> Consumer:
        if group not in self.consumers:
            asked = {"topics": ("in",), "mode": "shared", "session_timeout_ms": 1_800_000}
            self.consumers[group] = Consumer(self.node, group, **asked)
        return self.consumers[group]

    def start_again(self, disk: MemoryDisk) -> None:
        self.disk = disk
        self.node = Node(disk, self.clock)
        self.node.workers.run_all()
        self.open = {}
        self.consumers = {group: one.moved_to(self.node) for group, one in self.consumers.items()}


TestTransactions = Machine.TestCase
TestTransactions.settings = settings(max_examples=40, stateful_step_count=20)
