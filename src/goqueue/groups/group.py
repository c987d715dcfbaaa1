"""One consumer group: its members, and which partitions are assigned to which member.

A change (a member joins, leaves or times out, a topic is created, deleted or grows) gives the group a new generation
and a target: what each member will have. Free partitions go to their new owner at once. A partition that another member
still has is taken from it at once or, if that member confirms revocations, revoked: the member keeps the partition
until it confirms, leaves, expires, or its session timeout has passed since the revocation. Nothing else is ever waited
for, so

    the group is Rebalancing exactly while it revokes partitions from some member,

and a change in the meantime starts from what members have by then. Within one generation a partition changes its owner
at most once.

*Cooperative*: only partitions that change owner are revoked; members that keep theirs are never paused. *Eager*: all
partitions are revoked from all members, and assigned when the last member has confirmed. In the modes `shared` and
`key-shared` every member has every partition of its topics, and nothing is ever revoked.

**Generations.** They start at 1 and rise with every change: members, their topics, partition counts, a member that
starts again, partitions taken for want of a confirmation. They do not rise when revoked partitions are assigned to the
owner they were meant for. A member may use any generation from `member.generation` on. For a member that does not
confirm revocations that bound rises with every rebalance; for one that confirms it does not, so a rebalance in which it
loses nothing does not interrupt it. For both it rises to the newest

    when it starts again    an older process of the same id is refused from then on; other members are not;
    when it was too slow    partitions were taken from it, and it must learn that: it is refused (`StaleGeneration`)
                            until it uses the generation that the refusal, or a new join, tells it.

A cooperative heartbeat is how a member learns of newer generations, so it is refused only in the second case
(`member.fenced_below`). A refused request does not renew the session: a fenced process cannot keep a member alive.

**Joining again** with a known id is the same member: it keeps its partitions, and nothing is rebalanced unless its
topics differ. No other member notices. It is a process that has just begun, so what was being revoked from it counts as
confirmed. A join that equals the last one of a member that did nothing since is the same join, whose answer was lost:
it changes nothing, the generation included.
"""

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from types import MappingProxyType
from typing import NamedTuple, Self

import msgspec

from goqueue.clock import MS
from goqueue.errors import (
    AlreadyExists,
    Conflict,
    GroupModeConflict,
    GroupNotFound,
    NotGroupMember,
    SessionExpired,
    StaleGeneration,
    TopicNotFound,
)
from goqueue.events import (
    GroupChanged,
    GroupEvent,
    GroupStateChanged,
    HeartbeatLate,
    HeartbeatReceived,
    MemberJoined,
    MemberLeft,
    PartitionsAssigned,
    PartitionsRevoked,
    RebalanceEnded,
    RebalanceStarted,
)
from goqueue.groups.config import GroupConfig
from goqueue.groups.member import Member, validate_join, validate_name
from goqueue.groups.rebalance import Rebalance, RebalanceStats, Trigger, targets
from goqueue.groups.snapshot import SavedGroup, decoded, restored_member, saved_member
from goqueue.names import TopicPartition
from goqueue.service.groups import Join


class GroupState(StrEnum):
    """What a group is doing."""

    EMPTY = "Empty"
    STABLE = "Stable"
    REBALANCING = "Rebalancing"
    DEAD = "Dead"


class GroupTransition(StrEnum):
    """What takes a group from one state to the next."""

    CHANGED = "changed"  # members, their topics or partition counts; there are members left
    SETTLED = "settled"  # nothing is being revoked
    EMPTIED = "emptied"  # the last member has left
    DELETED = "deleted"


TRANSITIONS: Mapping[GroupState, Mapping[GroupTransition, GroupState]] = {
    GroupState.EMPTY: {GroupTransition.CHANGED: GroupState.REBALANCING, GroupTransition.DELETED: GroupState.DEAD},
    GroupState.REBALANCING: {
        GroupTransition.CHANGED: GroupState.REBALANCING,
        GroupTransition.SETTLED: GroupState.STABLE,
        GroupTransition.EMPTIED: GroupState.EMPTY,
        GroupTransition.DELETED: GroupState.DEAD,
    },
    GroupState.STABLE: {
        GroupTransition.CHANGED: GroupState.REBALANCING,
        GroupTransition.EMPTIED: GroupState.EMPTY,
        GroupTransition.DELETED: GroupState.DEAD,
    },
    GroupState.DEAD: {},
}


class HeartbeatResult(NamedTuple):
    """The answer to a cooperative heartbeat."""

    rebalance_required: bool  # it has partitions to confirm or to wait for
    partitions_to_revoke: tuple[TopicPartition, ...]
    partitions_assigned: tuple[TopicPartition, ...]  # everything that it has and may keep
    generation: int
    protocol: str
    state: str  # none, pending_revoke, pending_assign; complete: nothing to do, but its generation was an older one
    revocation_deadline_ns: int | None  # the first one, wall clock


class RevocationConfirmed(NamedTuple):
    """The answer to a confirmation of revoked partitions."""

    pending_count: int
    rebalance_state: str


# More than 40 methods: a third are one-line queries. What changes members also changes owners, the generation and
# the rebalance under way, in one step; apart from each other these could disagree.
class Group:
    """Members and their partitions. Not thread-safe; knows deadlines, owns no timer."""

    def __init__(self, name: str, *, wall_ns: int, config: GroupConfig | None = None) -> None:
        validate_name(name, "group")
        self.name = name
        self.created_at_ns = wall_ns
        self.generation = 0
        self.version = 0
        """Rises whenever there is something new to save; heartbeats alone do not count."""
        self.state = GroupState.EMPTY
        self.mode = "partitioned"
        self.protocol = "cooperative"
        self.assignor = "sticky"
        self.ack = "messages"
        self.stats = RebalanceStats()
        self._config = config or GroupConfig()
        self._members: dict[str, Member] = {}  # in the order in which they joined
        self._owners: dict[TopicPartition, str] = {}  # in the mode `partitioned`
        self._partition_counts: dict[str, int] = {}  # of the members' topics
        self._expired: dict[str, None] = {}  # the oldest first
        self._rebalance: Rebalance | None = None
        self._events: list[GroupEvent] = []
        self._calendar_ns = 0  # the wall clock when the monotonic clock was 0
        self._wake_ns: int | None = None
        self._has_changed = False

    @property
    def members(self) -> Mapping[str, Member]:
        """The members by id, in the order in which they joined."""
        return MappingProxyType(self._members)

    @property
    def leader_id(self) -> str | None:
        """The member that joined first."""
        return next(iter(self._members), None)

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics of all members together."""
        return tuple(sorted(set[str]().union(*(member.topics for member in self._members.values()))))

    @property
    def rebalance_state(self) -> str:
        """`pending_revoke` while partitions are being revoked, else `none`."""
        return "pending_revoke" if self.state is GroupState.REBALANCING else "none"

    @property
    def next_deadline_ns(self) -> int | None:
        """When to tick next. Nothing is due before that time."""
        return self._wake_ns

    def assigned(self, member_id: str) -> Sequence[TopicPartition]:
        """The partitions that the member may take from now, sorted; with those that are being revoked from it."""
        return self.member(member_id).assigned

    def owner_of(self, partition: TopicPartition) -> str | None:
        """The one member that may take from the partition; None where partitions have no owners."""
        return self._owners.get(partition)

    def rebalance_required(self, member_id: str) -> bool:
        """Whether the member has partitions to confirm or to wait for."""
        return not self.member(member_id).is_settled

    def take_events(self) -> list[GroupEvent]:
        """Events since the last call."""
        events, self._events = self._events, []
        return events

    def member(self, member_id: str) -> Member:
        """The member of that id. Raises `SessionExpired` or `NotGroupMember`."""
        member = self._members.get(member_id)
        if member:
            return member
        self._check_alive()
        raise (SessionExpired if member_id in self._expired else NotGroupMember)(self.name, member_id)

    def check(self, member_id: str, generation: int | None) -> Member:
        """The member, if it may still use that generation; None is not checked. Raises `StaleGeneration`."""
        member = self.member(member_id)
        self._check_generation(member, generation, oldest=member.generation)
        member.unused_join = None
        return member

    def join(
        self, wanted: Join, *, suffix: str, partition_counts: Mapping[str, int], now_ns: int, wall_ns: int
    ) -> Member:
        """Add a new member, or one that is known under this id again. A refused join changes nothing.

        `partition_counts` has at least those of the wanted topics that exist.
        """
        self._check_alive()
        validate_join(wanted, self._config)
        for topic in wanted.topics:
            if topic not in partition_counts:
                raise TopicNotFound(topic)
        if self._members:
            for setting in ("mode", "protocol", "assignor", "ack"):
                if getattr(wanted, setting) != getattr(self, setting):
                    raise GroupModeConflict(self.name, setting, getattr(wanted, setting), getattr(self, setting))
        member_id = wanted.member_id if wanted.member_id is not None else f"{wanted.client_id}-{suffix}"
        known = self._members.get(member_id)
        if known and wanted.member_id is None:
            raise AlreadyExists("member", member_id)
        if not known and len(self._members) >= self._config.members_max:
            raise Conflict(f"group {self.name} has {len(self._members)} members, which is the limit")

        self._learn_calendar(now_ns, wall_ns)
        topics = known.topics if known else ()
        is_repeated = known is not None and known.unused_join == wanted and not known.revoking
        member = known or self._add_member(member_id, wanted, wall_ns=wall_ns)
        _update(member, wanted)
        member.heard(now_ns=now_ns, wall_ns=wall_ns)
        self._events.append(MemberJoined(group=self.name, member_id=member_id))
        if self._learn_counts(wanted.topics, partition_counts) or member.topics != topics:
            self._start(Trigger.JOIN, now_ns=now_ns, fresh=member)
            member.generation = self.generation
        elif not is_repeated:
            self._has_changed = True
            self.generation += 1  # fences its old process; the other members keep their generations
            self._unassign(member, member.revoking)
            if self._rebalance:
                self._assign_free(now_ns=now_ns)
            member.generation = self.generation
        self._wake_at(min(member.session_deadline_ns, now_ns + self._late_ns(member)))
        self._tell_change()
        return member

    def heartbeat(self, member_id: str, generation: int | None, *, now_ns: int, wall_ns: int) -> Member:
        """Renew the session of the member."""
        member = self.check(member_id, generation)
        self._heard_from(member, now_ns=now_ns, wall_ns=wall_ns)
        return member

    def cooperative_heartbeat(
        self, member_id: str, generation: int | None, *, now_ns: int, wall_ns: int
    ) -> HeartbeatResult:
        """Renew the session; the answer is always complete, because earlier answers may have been lost."""
        member = self.member(member_id)
        self._check_generation(member, generation, oldest=member.fenced_below)
        self._heard_from(member, now_ns=now_ns, wall_ns=wall_ns)
        is_behind = generation is not None and generation < self.generation
        deadline_ns = min(member.revoking.values(), default=None)
        return HeartbeatResult(
            rebalance_required=not member.is_settled,
            partitions_to_revoke=member.to_revoke,
            partitions_assigned=tuple(one for one in member.assigned if one not in member.revoking),
            generation=self.generation,
            protocol=self.protocol,
            state=_rebalance_state(member, settled="complete" if is_behind else "none"),
            revocation_deadline_ns=None if deadline_ns is None else deadline_ns - now_ns + wall_ns,
        )

    def touch(self, member_id: str, *, now_ns: int, wall_ns: int) -> None:
        """A poll renews the session of the member."""
        member = self.member(member_id)
        self._learn_calendar(now_ns, wall_ns)
        if member.is_late:
            self._wake_at(now_ns + self._late_ns(member))
        member.unused_join = None
        member.heard(now_ns=now_ns, wall_ns=wall_ns)

    def revoke(
        self, member_id: str, generation: int | None, partitions: Iterable[TopicPartition] | None, *, now_ns: int
    ) -> RevocationConfirmed:
        """The member confirms revocations: of these partitions, or all. It keeps what was not being revoked."""
        member = self.check(member_id, generation)
        given = member.revoking.keys() if partitions is None else member.revoking.keys() & set(partitions)
        if given:
            self._unassign(member, given)
            self._assign_free(now_ns=now_ns)
            self._tell_change()
        return RevocationConfirmed(len(member.revoking), _rebalance_state(member, settled="complete"))

    def leave(self, member_id: str, *, now_ns: int, reason: str = "graceful") -> Member:
        """Remove the member; its partitions are free. Returns it as it was."""
        member = self.member(member_id)
        self._remove_member(member, reason)
        self._rebalance_remaining(Trigger.LEAVE, now_ns=now_ns)
        self._tell_change()
        return member

    def topics_changed(self, partition_counts: Mapping[str, int], *, now_ns: int) -> None:
        """Topics were created or deleted, or have grown. `partition_counts` has every topic that exists."""
        wanted = self.topics
        before = {topic: self._partition_counts.get(topic, 0) for topic in wanted}
        after = {topic: partition_counts.get(topic, 0) for topic in wanted}
        changed = [topic for topic in wanted if before[topic] != after[topic]]
        if not changed:
            return
        self._partition_counts = after
        has_only_grown = all(0 < before[topic] < after[topic] for topic in changed)
        self._start(Trigger.PARTITION_ADDED if has_only_grown else Trigger.TOPIC_CHANGE, now_ns=now_ns)
        self._tell_change()

    def tick(self, *, now_ns: int) -> None:
        """Remove members whose session has timed out, and take partitions that were not confirmed in time."""
        if self._wake_ns is None or now_ns < self._wake_ns:
            return
        expired = [member for member in self._members.values() if member.session_deadline_ns <= now_ns]
        for member in expired:
            self._remove_member(member, "timeout")
            self._expired[member.id] = None
            if len(self._expired) > self._config.expired_max:
                del self._expired[next(iter(self._expired))]
        if expired:
            self._rebalance_remaining(Trigger.TIMEOUT, now_ns=now_ns)
        self._revoke_overdue(now_ns)
        for member in self._members.values():
            if not member.is_late and member.heard_ns + self._late_ns(member) <= now_ns:
                member.is_late = True
                self._events.append(HeartbeatLate(group=self.name, member_id=member.id))
        self._wake_ns = min((self._deadline_of(member) for member in self._members.values()), default=None)
        self._tell_change()

    def delete(self, *, now_ns: int) -> None:
        """Remove all members. From now on every call raises `GroupNotFound`."""
        self._check_alive()
        for member in list(self._members.values()):
            self._remove_member(member, "error")
        self._end(now_ns=now_ns, failed=True)
        self._begin_generation()
        self._partition_counts = {}
        self._wake_ns = None
        self._tell_change()
        self._go_to(GroupTransition.DELETED)  # last: observers forget the group with this event

    def snapshot(self) -> bytes:
        """Everything that survives a restart."""
        is_eager = self._rebalance is not None and self.protocol == "eager"
        return msgspec.msgpack.encode(
            SavedGroup(
                name=self.name,
                created_at_ns=self.created_at_ns,
                generation=self.generation,
                version=self.version,
                state=self.state,
                mode=self.mode,
                protocol=self.protocol,
                assignor=self.assignor,
                ack=self.ack,
                partition_counts=self._partition_counts,
                members=[saved_member(member, mode=self.mode) for member in self._members.values()],
                expired=list(self._expired),
                stats=self.stats,
                homes=sorted(self._rebalance.homes.items()) if self._rebalance and is_eager else [],
            )
        )

    @classmethod
    def restore(cls, raw: bytes, *, now_ns: int, wall_ns: int, config: GroupConfig | None = None) -> Self:
        """The group as it was; sessions and revocation deadlines start again."""
        saved = decoded(raw)
        group = cls(saved.name, wall_ns=saved.created_at_ns, config=config)
        group.generation = saved.generation
        group.state = GroupState(saved.state)
        group.mode = saved.mode
        group.protocol = saved.protocol
        group.assignor = saved.assignor
        group.ack = saved.ack
        group.stats = saved.stats
        group._partition_counts = saved.partition_counts
        group._expired = dict.fromkeys(saved.expired)
        group._learn_calendar(now_ns, wall_ns)
        group._members = {one.id: restored_member(one, now_ns=now_ns) for one in saved.members}
        if group.mode == "partitioned":
            for member in group._members.values():
                group._owners |= dict.fromkeys(member.assigned, member.id)
        else:
            group._share()
        if group.state is GroupState.REBALANCING:
            group._rebalance = Rebalance(now_ns, dict(saved.homes))
        group._wake_ns = min((group._deadline_of(member) for member in group._members.values()), default=None)
        group._events.append(GroupStateChanged(group=group.name, state=group.state))
        group._has_changed = True
        group._tell_change()
        group.version = saved.version
        return group

    def _add_member(self, member_id: str, wanted: Join, *, wall_ns: int) -> Member:
        if not self._members:
            self.mode, self.protocol, self.assignor, self.ack = (
                wanted.mode,
                wanted.protocol,
                wanted.assignor,
                wanted.ack,
            )
        self._expired.pop(member_id, None)
        member = Member(id=member_id, ack=wanted.ack, joined_at_ns=wall_ns)
        self._members[member_id] = member
        return member

    def _remove_member(self, member: Member, reason: str) -> None:
        del self._members[member.id]
        for partition in member.assigned:
            self._owners.pop(partition, None)
        self._events.append(MemberLeft(group=self.name, member_id=member.id, reason=reason))

    def _rebalance_remaining(self, trigger: Trigger, *, now_ns: int) -> None:
        """Rebalance over the members that are left."""
        if self._members:
            self._start(trigger, now_ns=now_ns)
            return
        self._end(now_ns=now_ns, failed=True)
        self._begin_generation()
        self._partition_counts = {}
        self._wake_ns = None
        self._go_to(GroupTransition.EMPTIED)

    def _start(self, trigger: Trigger, *, now_ns: int, fresh: Member | None = None) -> None:
        """Give the group a new target; `fresh` has just joined, so it has nothing to confirm."""
        is_eager = self.protocol == "eager" and self.mode == "partitioned"
        homes = self._rebalance.homes if self._rebalance and is_eager else dict(self._owners)
        self._end(now_ns=now_ns, failed=True)
        self._begin_generation()
        self._go_to(GroupTransition.CHANGED)
        self._rebalance = Rebalance(now_ns, homes)
        self.stats.started(trigger)
        self._events.append(RebalanceStarted(group=self.name, trigger=trigger))

        wanted = self.topics
        self._partition_counts = {topic: self._partition_counts[topic] for topic in wanted}
        aims = targets(self._members, self._partition_counts, homes, mode=self.mode, assignor=self.assignor)
        for member in self._members.values():
            member.target = aims[member.id]
            if member.held is member.target and not is_eager:
                continue
            moving = member.held if is_eager else member.held - member.target
            if member.confirms_revocations and member is not fresh:
                gone = [one for one in moving if one.partition >= self._partition_counts.get(one.topic, 0)]
                member.revoke(moving.difference(gone), now_ns=now_ns)
                self._unassign(member, gone)
            else:
                member.revoking = {}
                self._unassign(member, moving)
        self._assign_free(now_ns=now_ns)

    def _share(self) -> None:
        """Assign every member all partitions of its topics, as the modes `shared` and `key-shared` say."""
        aims = targets(self._members, self._partition_counts, {}, mode=self.mode, assignor=self.assignor)
        for member in self._members.values():
            member.target = aims[member.id]
            member.hold(member.target)

    def _assign_free(self, *, now_ns: int) -> None:
        """Assign free partitions to their target; an eager group waits until all are free."""
        is_waiting = any(member.revoking for member in self._members.values())
        if not (is_waiting and self.protocol == "eager"):
            for member in self._members.values():
                if member.held is not member.target:
                    self._assign(member, [one for one in member.target - member.held if one not in self._owners])
        if not is_waiting:
            assert all(member.is_settled for member in self._members.values())
            self._end(now_ns=now_ns, failed=False)
            self._go_to(GroupTransition.SETTLED)

    def _revoke_overdue(self, now_ns: int) -> None:
        members = self._members.values()
        slow = [member for member in members if min(member.revoking.values(), default=now_ns + 1) <= now_ns]
        if not slow:
            return
        self._begin_generation()
        for member in slow:
            member.generation = member.fenced_below = self.generation
            overdue = [partition for partition, deadline_ns in member.revoking.items() if deadline_ns <= now_ns]
            self._unassign(member, overdue, timed_out=True)
            self.stats.total_revocation_timeouts += 1
        self._assign_free(now_ns=now_ns)

    def _assign(self, member: Member, partitions: Sequence[TopicPartition]) -> None:
        if not partitions:
            return
        member.hold(member.held.union(partitions))
        if self.mode == "partitioned":
            self._owners |= dict.fromkeys(partitions, member.id)
        self.stats.total_partitions_assigned += len(partitions)
        given = tuple(sorted(partitions))
        self._events.append(PartitionsAssigned(group=self.name, member_id=member.id, partitions=given))

    def _unassign(self, member: Member, partitions: Iterable[TopicPartition], *, timed_out: bool = False) -> None:
        taken = tuple(sorted(partitions))
        if not taken:
            return
        self._has_changed = True
        member.hold(member.held.difference(taken))
        for partition in taken:
            member.revoking.pop(partition, None)
            self._owners.pop(partition, None)
        self.stats.total_partitions_revoked += len(taken)
        self._events.append(
            PartitionsRevoked(group=self.name, member_id=member.id, partitions=taken, timed_out=timed_out)
        )

    def _end(self, *, now_ns: int, failed: bool) -> None:
        """End the rebalance that is under way, if there is one, and count it."""
        if not self._rebalance:
            return
        duration_ns = now_ns - self._rebalance.started_ns
        self._rebalance = None
        if failed:
            self.stats.failed_rebalances += 1
        else:
            self.stats.succeeded(duration_ns, wall_ns=self._calendar_ns + now_ns)
        self._events.append(RebalanceEnded(group=self.name, kind=self.protocol, duration_ns=duration_ns, failed=failed))

    def heartbeat_interval_ms(self, member: Member) -> int:
        """How often the member should send heartbeats: two lost ones must not end its session."""
        return min(self._config.heartbeat_interval_ms, member.session_timeout_ms // 3)

    def _late_ns(self, member: Member) -> int:
        return 2 * self.heartbeat_interval_ms(member) * MS

    def _deadline_of(self, member: Member) -> int:
        deadline_ns = min((member.session_deadline_ns, *member.revoking.values()))
        return deadline_ns if member.is_late else min(deadline_ns, member.heard_ns + self._late_ns(member))

    def _wake_at(self, time_ns: int) -> None:
        """Tick by then. Revocations need no such call: their deadline is never before the session's."""
        if self._wake_ns is None or time_ns < self._wake_ns:
            self._wake_ns = time_ns

    def _check_generation(self, member: Member, generation: int | None, *, oldest: int) -> None:
        if generation is not None and not oldest <= generation <= self.generation:
            names = [f"{topic}-{partition}" for topic, partition in member.assigned]
            raise StaleGeneration(generation, self.generation, names)

    def _heard_from(self, member: Member, *, now_ns: int, wall_ns: int) -> None:
        self.touch(member.id, now_ns=now_ns, wall_ns=wall_ns)
        self._events.append(HeartbeatReceived(group=self.name, member_id=member.id))

    def _check_alive(self) -> None:
        if self.state is GroupState.DEAD:
            raise GroupNotFound(self.name)

    def _learn_calendar(self, now_ns: int, wall_ns: int) -> None:
        self._calendar_ns = wall_ns - now_ns

    def _learn_counts(self, topics: Iterable[str], partition_counts: Mapping[str, int]) -> bool:
        """Take over partition counts; returns whether any has changed."""
        news = {topic: partition_counts[topic] for topic in topics}
        is_new = any(self._partition_counts.get(topic) != count for topic, count in news.items())
        self._partition_counts |= news
        return is_new

    def _begin_generation(self) -> None:
        self._has_changed = True
        self.generation += 1
        for member in self._members.values():
            if not member.confirms_revocations:
                member.generation = self.generation

    def _go_to(self, turn: GroupTransition) -> None:
        following = TRANSITIONS[self.state][turn]
        if following is not self.state:
            self.state = following
            self._events.append(GroupStateChanged(group=self.name, state=following))

    def _tell_change(self) -> None:
        """Emit the change if there was one."""
        if not self._has_changed:
            return
        self._has_changed = False
        self.version += 1
        is_dealt_out = self.mode == "partitioned"
        assigned_partitions = len(self._owners) if is_dealt_out else sum(self._partition_counts.values())
        self._events.append(
            GroupChanged(
                group=self.name,
                generation=self.generation,
                members=len(self._members),
                assigned_partitions=assigned_partitions,
            )
        )


def _rebalance_state(member: Member, *, settled: str) -> str:
    if member.revoking:
        return "pending_revoke"
    return settled if member.is_settled else "pending_assign"


def _update(member: Member, wanted: Join) -> None:
    member.client_id = wanted.client_id
    member.topics = tuple(sorted(set(wanted.topics)))
    member.session_timeout_ms = wanted.session_timeout_ms
    member.start = wanted.start
    member.auto_commit = wanted.auto_commit
    member.visibility_timeout_ms = wanted.visibility_timeout_ms
    member.max_in_flight = wanted.max_in_flight
    member.auto_commit_interval_ms = wanted.auto_commit_interval_ms
    member.confirms_revocations = wanted.confirms_revocations
    # With its id: a client may repeat its first join, which had none, with the id of the answer.
    member.unused_join = wanted._replace(member_id=member.id)
