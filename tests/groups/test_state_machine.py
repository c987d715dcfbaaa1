"""Whatever happens to a group, in whatever order: one owner for each partition, and nobody is disturbed for nothing."""

from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from goqueue.clock import MS
from goqueue.errors import GoQueueError, StaleGeneration
from goqueue.events import (
    GroupChanged,
    GroupStateChanged,
    MemberJoined,
    MemberLeft,
    PartitionsAssigned,
    PartitionsRevoked,
    RebalanceEnded,
    RebalanceStarted,
)
from goqueue.groups.assignors import sticky
from goqueue.groups.group import Group, GroupState
from goqueue.names import TopicPartition
from goqueue.service.groups import Join

WALL_NS = 1_700_000_000 * 10**9
MEMBERS = tuple(f"m{number}" for number in range(6))
TOPICS = ("t", "u", "v")
SESSION_MS = 10_000

Held = dict[str, frozenset[TopicPartition]]

members = st.sampled_from(MEMBERS)
topic_sets = st.lists(st.sampled_from(TOPICS), min_size=1, max_size=3, unique=True).map(tuple)


class Membership(RuleBasedStateMachine):
    """Members that come, go, hang and restart; topics that come, grow and go; a coordinator that restarts."""

    @initialize(
        protocol=st.sampled_from(("cooperative", "eager")),
        mode=st.sampled_from(("partitioned", "partitioned", "partitioned", "shared")),
        assignor=st.sampled_from(("sticky", "sticky", "range", "roundrobin")),
        counts=st.tuples(*[st.integers(1, 5)] * 3),
    )
    def begin(self, protocol: str, mode: str, assignor: str, counts: tuple[int, ...]) -> None:
        self.group = Group("g", wall_ns=WALL_NS)
        self.settings = {"protocol": protocol, "mode": mode, "assignor": assignor}
        self.topics = dict(zip(TOPICS, counts, strict=True))
        self.now_ns = 0
        self.last_heard: dict[str, int] = {}
        self.hands: dict[tuple[int, TopicPartition], list[str]] = {}  # who had it in that generation, in order
        self.seen: Held = {}
        self.generation = 0
        self.rebalanced = 0  # the generation of the last rebalance
        self.state = "Empty"

    def join_as(self, asked: Join) -> None:
        if asked.member_id in self.group.members:  # used, so that a join is not a retry of the last one
            self.group.touch(asked.member_id, now_ns=self.now_ns, wall_ns=WALL_NS + self.now_ns)
            self.last_heard[asked.member_id] = self.now_ns
        before = self.group.generation
        try:
            member = self.group.join(
                asked, suffix="x", partition_counts=self.topics, now_ns=self.now_ns, wall_ns=WALL_NS + self.now_ns
            )
        except GoQueueError:
            assert not set(asked.topics) <= self.topics.keys()
            assert self.group.generation == before
            return
        assert self.group.generation == before + 1
        assert member.generation == before + 1
        self.last_heard[member.id] = self.now_ns

    @rule(member_id=members, topics=topic_sets, confirms=st.booleans())
    def join(self, member_id: str, topics: tuple[str, ...], confirms: bool) -> None:
        asked = Join("app", topics, member_id, SESSION_MS, confirms_revocations=confirms)
        self.join_as(asked._replace(**self.settings))

    @precondition(lambda self: self.group.members)
    @rule(data=st.data())
    def join_again(self, data: st.DataObject) -> None:
        member = self.group.members[data.draw(st.sampled_from(sorted(self.group.members)))]
        if not set(member.topics) <= self.topics.keys():
            return
        old, kept = member.generation, member.held.difference(member.revoking)
        asked = Join("app", member.topics, member.id, SESSION_MS, confirms_revocations=member.confirms_revocations)
        self.join_as(asked._replace(**self.settings))

        assert member.held >= kept or self.settings["protocol"] == "eager"
        with pytest.raises(StaleGeneration):
            self.group.check(member.id, old)

        before = self.group.generation, self.group.version, member.held
        asked = asked._replace(**self.settings)
        self.group.join(
            asked, suffix="x", partition_counts=self.topics, now_ns=self.now_ns, wall_ns=WALL_NS + self.now_ns
        )
        assert (self.group.generation, self.group.version, member.held) == before, "a retry changes nothing"

    @precondition(lambda self: self.group.members)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        before = self.group.generation
        self.group.leave(data.draw(st.sampled_from(sorted(self.group.members))), now_ns=self.now_ns)
        assert self.group.generation == before + 1

    @precondition(lambda self: any(member.revoking for member in self.group.members.values()))
    @rule(data=st.data(), everything=st.booleans())
    def revoke(self, data: st.DataObject, everything: bool) -> None:
        asked = {member.id: member.to_revoke for member in self.group.members.values() if member.revoking}
        member_id = data.draw(st.sampled_from(sorted(asked)))
        given = None if everything else data.draw(st.lists(st.sampled_from(asked[member_id]), unique=True))
        generation = self.group.members[member_id].generation

        answer = self.group.revoke(member_id, generation, given, now_ns=self.now_ns)

        assert answer.pending_count == (0 if given is None else len(asked[member_id]) - len(given))

    @rule(duration_ms=st.integers(1, 12_000), alive=st.sets(members))
    def wait(self, duration_ms: int, alive: set[str]) -> None:
        end_ns = self.now_ns + duration_ms * MS
        while True:
            deadline_ns = self.group.next_deadline_ns
            self.now_ns = min(end_ns, max(self.now_ns, end_ns if deadline_ns is None else deadline_ns))
            for member_id in sorted(alive & self.group.members.keys()):
                self.group.touch(member_id, now_ns=self.now_ns, wall_ns=WALL_NS + self.now_ns)
                self.last_heard[member_id] = self.now_ns
            self.group.tick(now_ns=self.now_ns)
            assert self.group.next_deadline_ns is None or self.group.next_deadline_ns > self.now_ns
            if self.now_ns == end_ns:
                break
        for member in self.group.members.values():
            assert self.now_ns - self.last_heard[member.id] < SESSION_MS * MS

    @rule(topic=st.sampled_from(TOPICS), count=st.integers(0, 6))
    def change_topic(self, topic: str, count: int) -> None:
        before, generation = dict(self.topics), self.group.generation
        self.topics = {name: size for name, size in {**self.topics, topic: count}.items() if size}
        self.group.topics_changed(self.topics, now_ns=self.now_ns)
        is_affected = topic in self.group.topics and before.get(topic, 0) != count
        assert self.group.generation == generation + is_affected

    @rule()
    def restart(self) -> None:
        raw = self.group.snapshot()
        kept = {member.id: (member.held, member.target, member.to_revoke) for member in self.group.members.values()}
        self.note_events()
        self.group = Group.restore(raw, now_ns=self.now_ns, wall_ns=WALL_NS + self.now_ns)
        assert self.group.snapshot() == raw
        for member in self.group.members.values():
            assert (member.held, member.target, member.to_revoke) == kept[member.id]
            self.last_heard[member.id] = self.now_ns
        assert {type(event) for event in self.group.take_events()} == {GroupStateChanged, GroupChanged}

    @invariant()
    def every_partition_has_one_owner_who_wants_it(self) -> None:
        owners = Counter(one for member in self.group.members.values() for one in member.assigned)
        for member in self.group.members.values():
            assert member.assigned == tuple(sorted(member.held))
            assert set(member.revoking) <= member.held
            assert member.confirms_revocations or not member.revoking
            for one in member.held:
                assert one.topic in member.topics
                assert one.partition < self.topics.get(one.topic, 0)
                if self.settings["mode"] == "partitioned":
                    assert self.group.owner_of(one) == member.id
        if self.settings["mode"] == "partitioned":
            assert not owners or max(owners.values()) == 1

    @invariant()
    def at_rest_everything_is_dealt_out(self) -> None:
        waits = any(member.revoking for member in self.group.members.values())
        assert (self.group.state is GroupState.REBALANCING) == waits
        assert (self.group.state is GroupState.EMPTY) == (not self.group.members)
        if self.group.state is not GroupState.STABLE:
            return
        wanted = {
            TopicPartition(topic, number) for topic in self.group.topics for number in range(self.topics.get(topic, 0))
        }
        assert wanted == {one for member in self.group.members.values() for one in member.held}
        if self.settings["mode"] == "shared":
            for member in self.group.members.values():
                assert {one for one in wanted if one.topic in member.topics} == member.held
        elif self.settings["assignor"] == "sticky":
            topics = {member.id: member.topics for member in self.group.members.values()}
            owners = {one: member.id for member in self.group.members.values() for one in member.held}
            best = sticky.assign(topics, self.topics, owners)
            assert {member_id: set(own) for member_id, own in best.items()} == {
                member.id: set(member.held) for member in self.group.members.values()
            }

    @invariant()
    def generations_only_rise_and_bound_what_members_may_use(self) -> None:
        assert self.group.generation >= self.generation
        if self.group.generation == self.generation:
            assert self.group.members.keys() == self.seen.keys()
        for member in self.group.members.values():
            assert member.generation <= self.group.generation
            assert member.confirms_revocations or member.generation >= self.rebalanced
            assert self.group.check(member.id, member.generation) is member
            for stale in (member.generation - 1, self.group.generation + 1):
                with pytest.raises(StaleGeneration):
                    self.group.check(member.id, stale)
        self.generation = self.group.generation
        self.seen = {member.id: member.held for member in self.group.members.values()}

    @invariant()
    def note_events(self) -> None:
        """The events, added up, are the group; within a generation a partition changes hands at most once."""
        events = self.group.take_events()
        started = sum(isinstance(event, RebalanceStarted) for event in events)
        self.rebalanced = self.group.generation if started else self.rebalanced
        changes = [event for event in events if isinstance(event, GroupChanged)]
        for event in events:
            match event:
                case GroupStateChanged(state=state):
                    assert state != self.state
                    self.state = state
                case PartitionsRevoked(partitions=partitions, timed_out=False):
                    assert partitions
                case PartitionsAssigned(member_id=member_id, partitions=partitions):
                    for one in partitions:
                        taken = self.hands.setdefault((self.group.generation, TopicPartition(*one)), [])
                        taken.append(member_id)
                        assert len(taken) == 1 or self.settings["mode"] == "shared" or started > 1
        if any(isinstance(event, MemberJoined | MemberLeft | RebalanceEnded) for event in events):
            assert changes
        if changes:
            assert (changes[-1].generation, changes[-1].members) == (self.group.generation, len(self.group.members))
        assert self.state == self.group.state
        stats = self.group.stats
        under_way = self.group.state is GroupState.REBALANCING
        assert stats.total_rebalances == stats.successful_rebalances + stats.failed_rebalances + under_way
        assert stats.total_rebalances == sum(stats.rebalances_by_reason.values())


Membership.TestCase.settings = settings(max_examples=40, stateful_step_count=40)
TestMembership = Membership.TestCase


class Undisturbed(RuleBasedStateMachine):
    """Cooperative: a member that confirms loses a partition only by its own word, its silence, or the topic's end."""

    @initialize()
    def begin(self) -> None:
        self.group = Group("g", wall_ns=WALL_NS)
        self.now_ns = 0
        self.topics = {"t": 7, "u": 4}

    def held(self) -> Held:
        return {member.id: member.held for member in self.group.members.values()}

    def expect_nothing_lost(self, before: Held, *, but: str = "") -> None:
        for member_id, own in self.held().items():
            assert member_id == but or own >= before.get(member_id, frozenset())

    @rule(member_id=members, topics=st.sampled_from((("t",), ("u",), ("t", "u"))))
    def join(self, member_id: str, topics: tuple[str, ...]) -> None:
        before = self.held()
        asked = Join("app", topics, member_id, confirms_revocations=True)
        self.group.join(asked, suffix="", partition_counts=self.topics, now_ns=self.now_ns, wall_ns=WALL_NS)
        self.expect_nothing_lost(before, but=member_id)

    @precondition(lambda self: self.group.members)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        before = self.held()
        self.group.leave(data.draw(st.sampled_from(sorted(self.group.members))), now_ns=self.now_ns)
        self.expect_nothing_lost(before)

    @rule(topic=st.sampled_from(("t", "u")))
    def grow(self, topic: str) -> None:
        before = self.held()
        self.topics[topic] += 1
        self.group.topics_changed(self.topics, now_ns=self.now_ns)
        self.expect_nothing_lost(before)

    @precondition(lambda self: any(member.revoking for member in self.group.members.values()))
    @rule(data=st.data())
    def revoke(self, data: st.DataObject) -> None:
        before = self.held()
        asked = sorted(member.id for member in self.group.members.values() if member.revoking)
        member_id = data.draw(st.sampled_from(asked))
        to_revoke = set(self.group.members[member_id].revoking)
        self.group.revoke(member_id, None, None, now_ns=self.now_ns)
        self.expect_nothing_lost(before, but=member_id)
        assert self.held()[member_id] == before[member_id] - to_revoke | (self.held()[member_id] - before[member_id])

    @rule(duration_ms=st.integers(1, 20_000))
    def wait(self, duration_ms: int) -> None:
        before = self.held()
        asked = {member.id: set(member.revoking) for member in self.group.members.values()}
        self.now_ns += duration_ms * MS
        for member_id in self.group.members:
            self.group.touch(member_id, now_ns=self.now_ns, wall_ns=WALL_NS)
        self.group.tick(now_ns=self.now_ns)
        for member_id, own in self.held().items():
            assert own >= before[member_id] - asked[member_id]


Undisturbed.TestCase.settings = settings(max_examples=40, stateful_step_count=30)
TestUndisturbed = Undisturbed.TestCase
