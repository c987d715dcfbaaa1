"""All groups of one coordinator, by name.

A group is created by the first join that it accepts, or by the first position that is stored for it. It stays when its
last member has left: its positions are kept until the group is deleted.

`tick` looks at every group, but seldom. No deadline is ever set nearer than the shortest session (or two
heartbeats), so after a look at all of them nothing new can be due before that time has passed.
"""

from collections.abc import Callable, Iterator, Mapping

from goqueue.clock import MS
from goqueue.errors import Conflict, GroupNotFound
from goqueue.events import GroupEvent
from goqueue.groups.config import GroupConfig
from goqueue.groups.group import Group
from goqueue.groups.member import Member
from goqueue.groups.rebalance import RebalanceStats, summed
from goqueue.service.groups import Join


class GroupCoordinator:
    """The set of groups. A `Group` of it may also be called directly.

    Each node coordinates a share of all groups. `refuse_foreign` raises for the name of a group that another node
    coordinates; it is asked only about groups that are not here.
    """

    def __init__(
        self, config: GroupConfig | None = None, *, refuse_foreign: Callable[[str], object] = lambda name: None
    ) -> None:
        self.config = config or GroupConfig()
        self._refuse_foreign = refuse_foreign
        self._groups: dict[str, Group] = {}
        self._gone = RebalanceStats()  # of the groups that were deleted
        self._gone_events: list[GroupEvent] = []
        self._wake_ns: int | None = None
        self._nearest_ns = min(self.config.session_timeout_ms_min * 2 // 3, 2 * self.config.heartbeat_interval_ms) * MS

    def __len__(self) -> int:
        return len(self._groups)

    def __contains__(self, name: object) -> bool:
        return name in self._groups

    def __iter__(self) -> Iterator[Group]:
        """Every group, by name."""
        return iter([self._groups[name] for name in sorted(self._groups)])

    def find(self, name: str) -> Group | None:
        """The group of that name, if it is here."""
        return self._groups.get(name)

    def look_up(self, name: str) -> Group | None:
        """The group of that name, if there is one. Raises for a group of another node."""
        group = self._groups.get(name)
        if not group:
            self._refuse_foreign(name)
        return group

    def get(self, name: str) -> Group:
        """The group of that name. Raises `GroupNotFound`, and for a group of another node."""
        group = self.look_up(name)
        if not group:
            raise GroupNotFound(name)
        return group

    def join(
        self, name: str, wanted: Join, *, suffix: str, partition_counts: Mapping[str, int], now_ns: int, wall_ns: int
    ) -> Member:
        """Take in a member; the first one makes the group. Refused, it changes nothing."""
        group = self._groups.get(name) or self._made(name, wall_ns=wall_ns)
        member = group.join(wanted, suffix=suffix, partition_counts=partition_counts, now_ns=now_ns, wall_ns=wall_ns)
        if name not in self._groups:
            self._add(group, now_ns=now_ns)
        return member

    def create(self, name: str, *, now_ns: int, wall_ns: int) -> Group:
        """The group of that name, made without members if there is none: positions may come before members."""
        group = self._groups.get(name) or self._made(name, wall_ns=wall_ns)
        if name not in self._groups:
            self._add(group, now_ns=now_ns)
        return group

    def delete(self, name: str, *, now_ns: int) -> Group:
        """Remove all members and forget the group; returns it, dead."""
        group = self.get(name)
        group.delete(now_ns=now_ns)
        del self._groups[name]
        self._gone = summed((self._gone, group.stats))
        self._gone_events += group.take_events()
        return group

    def topics_changed(self, partition_counts: Mapping[str, int], *, now_ns: int) -> None:
        """Tell all groups which topics there are, and with how many partitions."""
        for group in self._groups.values():
            group.topics_changed(partition_counts, now_ns=now_ns)

    @property
    def next_deadline_ns(self) -> int | None:
        """When to tick next. Nothing is due before."""
        return self._wake_ns

    def tick(self, *, now_ns: int) -> None:
        """Let the groups do what is due."""
        if self._wake_ns is None or now_ns < self._wake_ns:
            return
        if not self._groups:
            self._wake_ns = None
            return
        self._wake_ns = now_ns + self._nearest_ns
        for group in self._groups.values():
            group.tick(now_ns=now_ns)
            if group.next_deadline_ns is not None:
                self._wake_ns = min(self._wake_ns, group.next_deadline_ns)

    def take_events(self) -> list[GroupEvent]:
        """What happened in all groups since the last call; of one group in order."""
        events, self._gone_events = self._gone_events, []
        for group in self._groups.values():
            events += group.take_events()
        return events

    @property
    def stats(self) -> RebalanceStats:
        """All groups as if they were one, those that were deleted since the start included."""
        return summed((self._gone, *(group.stats for group in self._groups.values())))

    def snapshot(self) -> dict[str, bytes]:
        """Every group as bytes, by name."""
        return {name: group.snapshot() for name, group in self._groups.items()}

    def restore(self, name: str, raw: bytes, *, now_ns: int, wall_ns: int) -> Group:
        """Put a group back as its snapshot says, instead of one of that name that is there.

        Raises `ValueError` or `InvalidRequest` if it is no snapshot of that group, and changes nothing.
        """
        group = Group.restore(raw, now_ns=now_ns, wall_ns=wall_ns, config=self.config)
        if group.name != name:
            raise ValueError(f"the snapshot is that of the group {group.name!r}")
        self._add(group, now_ns=now_ns)
        return group

    def forget(self, name: str) -> None:
        """The group is no longer coordinated here; nothing of it ends, and no event is emitted."""
        self._groups.pop(name, None)

    def _made(self, name: str, *, wall_ns: int) -> Group:
        """A new group, not yet one of ours."""
        group = Group(name, wall_ns=wall_ns, config=self.config)
        if len(self._groups) >= self.config.groups_max:
            raise Conflict(f"there are {len(self._groups)} groups, which is the limit")
        return group

    def _add(self, group: Group, *, now_ns: int) -> None:
        self._groups[group.name] = group
        nearest_ns = now_ns + self._nearest_ns
        self._wake_ns = nearest_ns if self._wake_ns is None else min(self._wake_ns, nearest_ns)
