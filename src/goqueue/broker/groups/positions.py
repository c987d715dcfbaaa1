"""Positions: how far a group has come, committed by hand, read, and set anew."""

from collections.abc import Callable, Collection, Sequence

from pyroaring import BitMap64

from goqueue.broker.groups.places import Place, Places, Topics, up_to_date
from goqueue.broker.groups.polling import Polling
from goqueue.clock import SECOND, Clock
from goqueue.delivery.offsets import runs
from goqueue.errors import GroupNotFound, InvalidRequest, OffsetOutOfRange, PartitionNotAssigned
from goqueue.groups.coordinator import Coordinator
from goqueue.names import TopicPartition
from goqueue.record.header import OFFSET_MAX
from goqueue.service.pending import Pending, after, all_of, chained
from goqueue.wire import reports


class Positions:
    """The positions of all groups. `found_group` makes a group that nobody has joined yet."""

    def __init__(
        self,
        coordinator: Coordinator,
        topics: Topics,
        places: Places,
        polling: Polling,
        *,
        found_group: Callable[[str], Pending[None]],
        clock: Clock,
    ) -> None:
        self._coordinator = coordinator
        self._topics = topics
        self._places = places
        self._polling = polling
        self._found_group = found_group
        self._clock = clock

    def positions(self, group: str, topic: str | None = None) -> list[reports.Position]:
        """Where the group stands."""
        if topic is not None:
            self._topics.has_topic(topic)  # one that is unknown has no positions; an internal one is refused
        found = self._coordinator.find(group)
        if found is None:
            return []
        return [
            reports.Position(
                topic=partition.topic,
                partition=partition.partition,
                offset=place.cursor.cursor.floor,
                end_offset=place.delivery.leader.high_watermark,
                lag=place.lag,
                lag_seconds=self._lag_seconds(place),
                metadata=place.cursor.metadata,
            )
            for partition, place in sorted(up_to_date(self._places.all_of(found)).items())
            if topic in (None, partition.topic)
        ]

    def done_above(self, group: str, topic: str | None = None) -> list[reports.DoneAbove]:
        """What the group has done above its positions, where there is something."""
        found = self._coordinator.find(group)
        places = {} if found is None else up_to_date(self._places.all_of(found))
        return [
            reports.DoneAbove(
                topic=partition.topic, partition=partition.partition, ranges=runs(place.cursor.cursor.acked)
            )
            for partition, place in sorted(places.items())
            if topic in (None, partition.topic) and place.cursor.cursor.acked
        ]

    def commit(
        self,
        group: str,
        commits: Sequence[reports.PositionCommit],
        *,
        member_id: str | None = None,
        generation: int | None = None,
    ) -> Pending[list[reports.PositionCommit]]:
        """Commit positions, all or none; what is stored."""
        ready = self.prepare_commit(group, commits, member_id=member_id, generation=generation)
        return chained(ready, lambda _: self._commit(group, commits))

    def prepare_commit(
        self,
        group: str,
        commits: Sequence[reports.PositionCommit],
        *,
        member_id: str | None = None,
        generation: int | None = None,
    ) -> Pending[None]:
        """Whether the positions may be committed; a group that nobody has joined yet begins with its positions."""
        found = self._coordinator.find(group)
        if found is None and member_id is not None:
            raise GroupNotFound(group)
        if found is not None and (member_id is not None or found.members):
            member = found.check(member_id or "", generation)
            mine = set(found.assigned(member.id))
            for one in commits:
                if TopicPartition(one.topic, one.partition) not in mine:
                    raise PartitionNotAssigned(one.topic, one.partition, member.id)
        if not commits:
            raise InvalidRequest("offsets are required", path="offsets")
        for one in commits:
            if not 0 <= one.offset <= OFFSET_MAX:
                raise InvalidRequest(f"invalid offset {one.offset}: must be 0 or more", path="offsets")
            for first, end in one.pending or ():
                if not 0 <= first < end <= one.offset:
                    rule = f"must be ranges of offsets below {one.offset}"
                    raise InvalidRequest(f"invalid pending {first} to {end}: {rule}", path="offsets")
            self._topics.leader(one.topic, one.partition)
        return self._found_group(group) if found is None else Pending.of(None)

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
        """Set positions."""
        found = self._coordinator.get(group)
        if strategy not in ("earliest", "latest", "timestamp", "offset"):
            choices = "must be earliest, latest, timestamp or offset"
            raise InvalidRequest(f"invalid strategy {strategy!r}: {choices}", path="strategy")
        if strategy == "timestamp" and time_ns is None:
            raise InvalidRequest("timestamp is required", path="timestamp")
        if strategy == "offset" and (offset is None or offset < 0):
            raise InvalidRequest("offset is required, and must be 0 or more", path="offset")
        places = self._places.all_of(found)
        names = set(places)
        if topic is not None:
            names = set(self._places.partitions_of([self._topics.leader(topic, partition or 0).origin.topic]))
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
            old = places[name].cursor.cursor.floor if name in places else log.start_offset
            resets.append(
                reports.PositionReset(topic=name.topic, partition=name.partition, offset=target, old_offset=old)
            )
            if not dry_run:
                delivery, cursor = self._places.at(group, name)
                waits.append(leader.ledger.when_stored(delivery.reset(cursor, target)))
        self._polling.run_woken()
        return after(all_of(waits), lambda _: resets)

    def _check_offset(self, offset: int, names: Collection[TopicPartition]) -> None:
        """Raise `OffsetOutOfRange` if no partition has the offset. If some do, the others get the nearest they have."""
        bounds = [
            (leader.log.start_offset, leader.high_watermark)
            for leader in (self._topics.leader(*name) for name in names)
        ]
        if bounds and not any(start <= offset <= end for start, end in bounds):
            name = ", ".join(f"{topic}-{partition}" for topic, partition in sorted(names)[:3])
            raise OffsetOutOfRange(offset, min(start for start, _ in bounds), max(end for _, end in bounds), log=name)

    def apply_positions(self, group: str, commits: Sequence[reports.PositionCommit]) -> Pending[None]:
        """Positions of a committed transaction take effect, as far as their partitions are still there."""
        counts = self._topics.partition_counts()
        still_there = [one for one in commits if one.partition < counts.get(one.topic, 0)]
        if self._coordinator.find(group) is None:
            return Pending.of(None)
        return after(self._commit(group, still_there), lambda _: None)

    def _commit(self, group: str, commits: Sequence[reports.PositionCommit]) -> Pending[list[reports.PositionCommit]]:
        stored, waits = [], []
        for one in commits:
            place = self._places.at(group, TopicPartition(one.topic, one.partition))
            delivery, cursor = place
            offset = min(one.offset, delivery.leader.last_stable_offset)
            pending = None if one.pending is None else BitMap64()
            for first, last in one.pending or ():
                assert pending is not None
                pending.add_range(first, last)
            before = cursor.cursor.floor
            end = delivery.commit(cursor, offset, one.metadata, pending)
            waits.append(delivery.leader.ledger.when_stored(end))
            stored.append(reports.PositionCommit(one.topic, one.partition, cursor.cursor.floor, one.metadata))
            delivery.tell_position(cursor, before)
        self._polling.wake(group)
        self._polling.run_woken()
        return after(all_of(waits), lambda _: stored)

    def _lag_seconds(self, place: Place) -> float:
        """The age of the oldest message that is not done."""
        if not place.lag:
            return 0.0
        stored_ns = place.delivery.fetcher.timestamp_of(place.cursor.cursor.floor)
        return 0.0 if stored_ns is None else max(0, self._clock.wall_ns() - stored_ns) / SECOND
