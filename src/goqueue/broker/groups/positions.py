"""Positions of groups on partitions: read, commit and reset them.

A position is the floor of the group's cursor: everything below it is done. A commit of a lower position changes
nothing, because it is usually late: a member that lost the partition, or a repeated request. With `allow_backwards` it
is meant, and resets the group on that partition: messages from there on are delivered again, and leases on them end.
A transaction cannot move a position back: when it commits, what was meant to be delivered again may long be done.
"""

from collections.abc import Callable, Collection, Sequence

from pyroaring import BitMap64

from goqueue.broker.delivery.group_delivery import GroupDelivery
from goqueue.broker.groups.group_deliveries import GroupDeliveries, up_to_date
from goqueue.broker.groups.polling import Polling
from goqueue.broker.local_partitions import LocalPartitions
from goqueue.clock import SECOND, Clock
from goqueue.delivery.offsets import runs
from goqueue.errors import GroupNotFound, InvalidRequest, OffsetOutOfRange, PartitionNotAssigned
from goqueue.groups.coordinator import GroupCoordinator
from goqueue.names import TopicPartition
from goqueue.record.header import OFFSET_MAX
from goqueue.service.pending import Pending, after, all_of, chained
from goqueue.wire import reports


class GroupPositions:
    """The positions of all groups. `create_group` creates a group without members, `is_gone` tells of a deleted one."""

    def __init__(
        self,
        coordinator: GroupCoordinator,
        topics: LocalPartitions,
        deliveries: GroupDeliveries,
        polling: Polling,
        *,
        create_group: Callable[[str], Pending[None]],
        is_gone: Callable[[str], bool],
        clock: Clock,
    ) -> None:
        self._coordinator = coordinator
        self._topics = topics
        self._deliveries = deliveries
        self._polling = polling
        self._create_group = create_group
        self._is_gone = is_gone
        self._clock = clock

    def positions(self, group: str, topic: str | None = None) -> list[reports.Position]:
        """The position and the lag of the group on each partition."""
        if topic is not None:
            self._topics.has_topic(topic)  # an unknown topic has no positions; an internal one is refused
        found = self._coordinator.look_up(group)
        if found is None:
            return []
        return [
            reports.Position(
                topic=partition.topic,
                partition=partition.partition,
                offset=group_delivery.cursor.floor,
                end_offset=group_delivery.leader.high_watermark,
                lag=group_delivery.lag,
                lag_seconds=self._lag_seconds(group_delivery),
                metadata=group_delivery.stored.metadata,
            )
            for partition, group_delivery in sorted(up_to_date(self._deliveries.all_of(found)).items())
            if topic in (None, partition.topic)
        ]

    def done_above(self, group: str, topic: str | None = None) -> list[reports.DoneAbove]:
        """What the group has done above its positions, by partition; without partitions that have nothing."""
        found = self._coordinator.look_up(group)
        deliveries = {} if found is None else up_to_date(self._deliveries.all_of(found))
        return [
            reports.DoneAbove(
                topic=partition.topic, partition=partition.partition, ranges=runs(group_delivery.cursor.acked)
            )
            for partition, group_delivery in sorted(deliveries.items())
            if topic in (None, partition.topic) and group_delivery.cursor.acked
        ]

    def commit(
        self,
        group: str,
        commits: Sequence[reports.PositionCommit],
        *,
        member_id: str | None = None,
        generation: int | None = None,
        allow_backwards: bool = False,
    ) -> Pending[list[reports.PositionCommit]]:
        """Commit positions, all or none; returns what was stored."""
        if allow_backwards and any(commit.pending is not None for commit in commits):
            raise InvalidRequest("pending messages cannot be committed with allow_backwards", path="allow_backwards")
        ready = self.prepare_commit(group, commits, member_id=member_id, generation=generation)
        return chained(ready, lambda _: self._commit(group, commits, allow_backwards=allow_backwards))

    def prepare_commit(
        self,
        group: str,
        commits: Sequence[reports.PositionCommit],
        *,
        member_id: str | None = None,
        generation: int | None = None,
    ) -> Pending[None]:
        """Check that the positions may be committed, and create the group if this is its first commit."""
        found = self._coordinator.look_up(group)
        if found is None and member_id is not None:
            raise GroupNotFound(group)
        if found is not None and (member_id is not None or found.members):
            member = found.check(member_id or "", generation)
            mine = set(found.assigned(member.id))
            for commit in commits:
                if TopicPartition(commit.topic, commit.partition) not in mine:
                    raise PartitionNotAssigned(commit.topic, commit.partition, member.id)
        if not commits:
            raise InvalidRequest("offsets are required", path="offsets")
        for commit in commits:
            if not 0 <= commit.offset <= OFFSET_MAX:
                raise InvalidRequest(f"invalid offset {commit.offset}: must be 0 or more", path="offsets")
            for first, end in commit.pending or ():
                if not 0 <= first < end <= commit.offset:
                    rule = f"must be ranges of offsets below {commit.offset}"
                    raise InvalidRequest(f"invalid pending {first} to {end}: {rule}", path="offsets")
            self._topics.leader(commit.topic, commit.partition)
        return self._create_group(group) if found is None else Pending.of(None)

    def reset(
        self,
        group: str,
        strategy: str,
        *,
        topic: str | None = None,
        partition: int | None = None,
        time_ns: int | None = None,
        offset: int | None = None,
        dry_run: bool = False,
    ) -> Pending[list[reports.PositionReset]]:
        """Set positions; with `dry_run` only return the new ones."""
        found = self._coordinator.get(group)
        if strategy not in ("earliest", "latest", "timestamp", "offset"):
            choices = "must be earliest, latest, timestamp or offset"
            raise InvalidRequest(f"invalid strategy {strategy!r}: {choices}", path="strategy")
        if strategy == "timestamp" and time_ns is None:
            raise InvalidRequest("timestamp is required", path="timestamp")
        if strategy == "offset" and (offset is None or offset < 0):
            raise InvalidRequest("offset is required, and must be 0 or more", path="offset")
        deliveries = self._deliveries.all_of(found)
        names = set(deliveries)
        if topic is not None:
            names = set(self._deliveries.partitions_of([self._topics.leader(topic, partition or 0).origin.topic]))
        names = {name for name in names if topic in (None, name.topic) and partition in (None, name.partition)}
        if strategy == "offset" and offset is not None:
            self._check_offset(offset, names)
        resets, waits = [], []
        for name in sorted(names):
            leader = self._topics.leader(*name)
            log, end = leader.log, leader.last_stable_offset
            target = log.start_offset
            if strategy == "latest":
                target = end
            elif strategy == "timestamp" and time_ns is not None:
                target = log.offset_at_time(time_ns)
            elif strategy == "offset" and offset is not None:
                target = offset
            target = max(log.start_offset, min(target, end))
            old = deliveries[name].cursor.floor if name in deliveries else log.start_offset
            resets.append(
                reports.PositionReset(topic=name.topic, partition=name.partition, offset=target, old_offset=old)
            )
            if not dry_run:
                end = self._deliveries.at(group, name).reset(target)
                waits.append(leader.ledger.when_stored(end))
        self._polling.run_woken()
        return after(all_of(waits), lambda _: resets)

    def _check_offset(self, offset: int, names: Collection[TopicPartition]) -> None:
        """Raise `OffsetOutOfRange` unless some partition has the offset; the others get the nearest that they have."""
        bounds = [
            (leader.log.start_offset, leader.high_watermark)
            for leader in (self._topics.leader(*name) for name in names)
        ]
        if bounds and not any(start <= offset <= end for start, end in bounds):
            name = ", ".join(f"{topic}-{partition}" for topic, partition in sorted(names)[:3])
            raise OffsetOutOfRange(offset, min(start for start, _ in bounds), max(end for _, end in bounds), log=name)

    def apply_position(self, group: str, commit: reports.PositionCommit) -> Pending[None]:
        """A position of a committed transaction takes effect, unless the group was deleted."""
        if self._is_gone(group):
            return Pending.of(None)
        return after(self._commit(group, [commit]), lambda _: None)

    def _commit(
        self, group: str, commits: Sequence[reports.PositionCommit], *, allow_backwards: bool = False
    ) -> Pending[list[reports.PositionCommit]]:
        at = self._deliveries.at  # all of them before the first is changed: one may have lost its leader
        deliveries = [at(group, TopicPartition(commit.topic, commit.partition)) for commit in commits]
        stored, waits = [], []
        for commit, group_delivery in zip(commits, deliveries, strict=True):
            offset = min(commit.offset, group_delivery.leader.last_stable_offset)
            pending = None if commit.pending is None else BitMap64()
            for first, last in commit.pending or ():
                assert pending is not None
                pending.add_range(first, last)
            before = group_delivery.cursor.floor
            back_to = max(offset, group_delivery.leader.log.start_offset)
            if allow_backwards and back_to < before:
                end = group_delivery.reset(back_to, commit.metadata)
            else:
                end = group_delivery.commit(offset, commit.metadata, pending)
            waits.append(group_delivery.leader.ledger.when_stored(end))
            floor = group_delivery.cursor.floor
            stored.append(reports.PositionCommit(commit.topic, commit.partition, floor, commit.metadata))
            group_delivery.tell_position(before)
        self._polling.wake(group)
        self._polling.run_woken()
        return after(all_of(waits), lambda _: stored)

    def _lag_seconds(self, group_delivery: GroupDelivery) -> float:
        """The age of the oldest message that is not done."""
        if not group_delivery.lag:
            return 0.0
        stored_ns = group_delivery.partition.fetcher.timestamp_of(group_delivery.cursor.floor)
        return 0.0 if stored_ns is None else max(0, self._clock.wall_ns() - stored_ns) / SECOND
