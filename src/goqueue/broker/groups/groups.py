"""Consumer groups: who is in them, and what follows when that changes.

    join, heartbeat, leave ──> Coordinator ──> `__groups`          who may take from which partition
    poll ──> Polling        settle ──> Settlements        commit, reset ──> Positions        all of them ──> Places

`Groups` is what doors see of all that. Its own part is membership: it passes on what the coordinator decides, takes
back from members what they lost, and writes down who is in a group.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from secrets import token_hex

from goqueue import events
from goqueue.broker.delivery.counters import DeliveryCounters
from goqueue.broker.delivery.partition_delivery import PartitionDelivery
from goqueue.broker.delivery.reports import lane_report
from goqueue.broker.groups.places import Place, Places, look_ahead, up_to_date
from goqueue.broker.groups.polling import Polling, Waits
from goqueue.broker.groups.positions import Positions
from goqueue.broker.groups.settling import Settlements
from goqueue.broker.partition.journal import Journal
from goqueue.clock import MS, SECOND, Clock
from goqueue.errors import StorageError, TopicNotFound
from goqueue.groups.coordinator import Coordinator
from goqueue.groups.group import Group
from goqueue.groups.member import Join, Member, validate_name
from goqueue.metrics.delivery import GroupProgress
from goqueue.names import TopicPartition
from goqueue.service.pending import Pending, after, all_of, chained
from goqueue.wire import reports
from goqueue.wire.reports import PartitionName

GROUPS_TOPIC = "__groups"
AUTO_COMMIT_CHECK_NS = 5 * SECOND
"""How often to look for members whose positions are committed for them, while there are none."""
_GROUP = b"g"


class Groups:
    """The groups of one broker."""

    def __init__(
        self,
        coordinator: Coordinator,
        topics: Waits,
        happened: DeliveryCounters,
        *,
        clock: Clock,
        observe: events.Observer,
    ) -> None:
        self._coordinator = coordinator
        self._topics = topics
        self._clock = clock
        self._happened = happened
        self._observe = observe
        self._auto_commit_at_ns = 0
        self._touched_ns = clock.monotonic_ns()
        self._knows_all_places = False  # also those of groups that were not asked for since the start
        places = self._places = Places(topics)
        polling = self._polling = Polling(coordinator, topics, places, clock=clock, observe=observe)
        self.settlements = Settlements(coordinator, topics, places, polling, clock=clock)
        found_group = self._found_group
        positions = Positions(coordinator, topics, places, polling, found_group=found_group, clock=clock)
        self.poll = polling.poll
        self.wake = polling.wake
        self.run_woken = polling.run_woken
        self.give_up = polling.give_up
        self.settle = self.settlements.settle
        self.settle_batch = self.settlements.settle_batch
        self.apply_acks = self.settlements.apply_acks
        self.release_acks = self.settlements.release_acks
        self.positions = positions.positions
        self.done_above = positions.done_above
        self.commit = positions.commit
        self.prepare_commit = positions.prepare_commit
        self.apply_positions = positions.apply_positions
        self.reset = positions.reset

    def load(self, journal: Journal) -> None:
        """Take back the groups that were there before a restart."""
        now_ns, wall_ns = self._now()
        for key, raw in journal.load().items():
            try:
                if key[:1] != _GROUP:
                    raise ValueError("no such kind of fact")
                self._coordinator.restore(key[1:].decode(), raw, now_ns=now_ns, wall_ns=wall_ns)
            except Exception as error:  # bytes of any kind may be there, and no group stops the start of the others
                journal.pass_over(key, error)
        counts = self._topics.partition_counts()
        self._coordinator.topics_changed(counts, now_ns=now_ns)
        for group in self._coordinator:
            for member in group.members.values():  # they have leases, and may settle, leave or be lost before they poll
                for partition in self._places.partitions_of([topic for topic in member.topics if topic in counts]):
                    with suppress(StorageError):  # then its first poll tells why
                        self._places.at(group.name, partition, start=member.start)
        for topic, count in counts.items():
            for number in range(count):
                delivery = self._topics.leader(topic, number).delivery
                if isinstance(delivery, PartitionDelivery):  # some were opened before the groups were known
                    self.delivery_opened(delivery)
        self._tell()

    def delivery_opened(self, delivery: PartitionDelivery) -> None:
        """The cursors of a partition are known again after a restart: the keys of what they have delivered are held
        before anybody settles anything and before any lease runs out.
        """
        for one in delivery.cursors.values():
            group = self._coordinator.find(one.group)
            if group is not None and group.mode == "key-shared":
                delivery.keep_key_order(one)

    # --- membership ----------------------------------------------------------------------------

    def join(self, group: str, asked: Join) -> Pending[reports.Joined]:
        """A member of the group, new or again."""
        validate_name(group, "group")
        self._check_topics(asked)

        def go_on(journal: Journal) -> Pending[reports.Joined]:
            member = self._take_in(group, asked)
            told = self._joined(self._coordinator.get(group), member)
            stored = journal.put({_key(group): self._coordinator.get(group).snapshot()})
            return after(stored, lambda _: told)

        return chained(self._topics.journal(GROUPS_TOPIC), go_on)

    def _take_in(self, group: str, asked: Join) -> Member:
        now_ns, wall_ns = self._now()
        member = self._coordinator.join(
            group,
            asked,
            suffix=token_hex(6),
            partition_counts=self._topics.partition_counts(),
            now_ns=now_ns,
            wall_ns=wall_ns,
        )
        member.commit_at_ns = now_ns + member.auto_commit_interval_ms * MS
        self._auto_commit_at_ns = min(self._auto_commit_at_ns, member.commit_at_ns)
        for partition in self._places.partitions_of(member.topics):  # it stands everywhere from its first moment on
            self._places.at(group, partition, start=member.start)
        self._tell()
        return member

    def heartbeat(
        self, group: str, member_id: str, generation: int | None = None, *, is_cooperative: bool = False
    ) -> reports.Heartbeat:
        """The member lives."""
        now_ns, wall_ns = self._now()
        found = self._coordinator.get(group)
        if is_cooperative:
            beat = found.cooperative_heartbeat(member_id, generation, now_ns=now_ns, wall_ns=wall_ns)
            self._tell()
            return reports.Heartbeat(
                beat.generation,
                beat.rebalance_required,
                found.state,
                beat.protocol,
                beat.state,
                _names(beat.partitions_to_revoke),
                _names(beat.partitions_assigned),
                beat.revocation_deadline_ns,
            )
        member = found.heartbeat(member_id, generation, now_ns=now_ns, wall_ns=wall_ns)
        self._tell()
        return reports.Heartbeat(
            found.generation,
            found.rebalance_required(member_id),
            found.state,
            found.protocol,
            found.rebalance_state,
            _names(member.to_revoke),
            _names(member.assigned),
        )

    def revoke(
        self,
        group: str,
        member_id: str,
        generation: int | None = None,
        partitions: Sequence[PartitionName] | None = None,
    ) -> reports.RevocationAcknowledged:
        """The member has given back what it was asked for."""
        given = None if partitions is None else [TopicPartition(one.topic, one.partition) for one in partitions]
        found = self._coordinator.get(group)
        self._commit_handed(group, found.member(member_id), given)
        revoked = found.revoke(member_id, generation, given, now_ns=self._clock.monotonic_ns())
        self._tell()
        return reports.RevocationAcknowledged(revoked.pending_count, revoked.rebalance_state)

    def leave(self, group: str, member_id: str) -> Pending[None]:
        """The member is out; what it has leased is ready again at once."""
        found = self._coordinator.get(group)
        self._commit_handed(group, found.member(member_id), None, is_leaving=True)
        found.leave(member_id, now_ns=self._clock.monotonic_ns())
        self._tell()
        return self._store(group)

    def names(self) -> list[str]:
        """The names, sorted."""
        return [group.name for group in self._coordinator]

    def has_member(self, group: str, member_id: str) -> bool:
        """Whether there is such a member."""
        found = self._coordinator.find(group)
        return found is not None and member_id in found.members

    def describe(self, group: str) -> reports.GroupInfo:
        """The group as it is now."""
        found = self._coordinator.get(group)
        places = self._places.all_of(found)
        members = [
            reports.MemberInfo(
                member.id,
                member.client_id,
                list(member.topics),
                _names(member.assigned),
                self._places.in_flight(group, member.id),
                member.joined_at_ns,
                member.last_heartbeat_ns,
                sum(place.cursor.expired_by_member.get(member.id, 0) for place in places.values()),
            )
            for member in found.members.values()
        ]
        lag = sum(place.lag for place in up_to_date(places).values())
        return reports.GroupInfo(
            group,
            found.state,
            found.generation,
            found.mode,
            found.protocol,
            found.assignor,
            found.ack,
            found.leader_id or "",
            list(found.topics) or sorted({partition.topic for partition in places}),
            found.created_at_ns,
            lag,
            members,
            found.rebalance_state,
            sum(place.cursor.expired_leases for place in places.values()),
        )

    def delete(self, group: str) -> Pending[None]:
        """Put the members out and drop all positions."""
        found = self._coordinator.get(group)
        places = self._places.all_of(found)
        waits = [place.delivery.leader.ledger.when_stored(place.delivery.forget(group)) for place in places.values()]
        self._coordinator.delete(group, now_ns=self._clock.monotonic_ns())
        self._polling.forget(group)
        self._places.forget(group)
        self._tell()
        return all_of([*waits, self._journaled({_key(group): None})])

    def rebalance_stats(self, group: str | None = None) -> reports.RebalanceReport:
        """How the rebalances of a group, or of all, went."""
        stats = self._coordinator.stats if group is None else self._coordinator.get(group).stats
        return reports.RebalanceReport(
            stats.total_rebalances,
            stats.successful_rebalances,
            stats.failed_rebalances,
            stats.total_partitions_revoked,
            stats.total_partitions_assigned,
            stats.total_revocation_timeouts,
            stats.last_rebalance_duration_ms,
            stats.average_rebalance_duration_ms,
            stats.last_rebalance_at_ns,
            dict(stats.rebalances_by_reason),
        )

    def blocked(self, group: str) -> list[reports.BlockedKey]:
        """Which message holds back which key."""
        found = []
        for partition, (_, one) in self._places.all_of(self._coordinator.get(group)).items():
            for hold in one.keys.blocking() if one.keys is not None else ():
                offset = hold.first
                count = one.cursor.deliveries_of(offset) + (offset in hold.in_flight)
                member = hold.member if offset in hold.in_flight else ""
                found.append(
                    reports.BlockedKey(*partition, hold.key, offset, member, hold.since_ns, count, len(hold.parked))
                )
        return found

    def _found_group(self, group: str) -> Pending[None]:
        validate_name(group, "group")

        def go_on(journal: Journal) -> Pending[None]:
            now_ns, wall_ns = self._now()
            self._coordinator.found(group, now_ns=now_ns, wall_ns=wall_ns)
            self._tell()
            return journal.put({_key(group): self._coordinator.get(group).snapshot()})

        return chained(self._topics.journal(GROUPS_TOPIC), go_on)

    # --- in numbers ----------------------------------------------------------------------------

    def lanes(self, topic: str | None = None, group: str | None = None) -> list[reports.LaneReport]:
        """What is in which lane, partition by partition."""
        counts = self._topics.partition_counts()
        if topic is not None and not self._topics.has_topic(topic):
            raise TopicNotFound(topic)
        if group is not None:
            self._coordinator.get(group)
        now_ns, wall_ns = self._now()
        return [
            lane_report(self._topics.delivery(self._topics.leader(name, number)), group, now_ns=now_ns, wall_ns=wall_ns)
            for name in sorted(counts)
            if topic in (None, name)
            for number in range(counts[name])
        ]

    def _all_places(self) -> Iterator[tuple[str, TopicPartition, Place]]:
        """Every position of every group. The first call after a start reads the ledgers that were not read yet."""
        if not self._knows_all_places:
            self._knows_all_places = True
            self._places.find_all(group.name for group in self._coordinator)
        return iter(self._places)

    def standings(self) -> Iterator[GroupProgress]:
        """Where the groups stand."""
        for group, partition, place in self._all_places():
            look_ahead(place, 1)
            cursor = place.cursor.cursor
            ranges = len(cursor.acked) - cursor.acked.intersection_cardinality(cursor.acked.shift(1))
            yield GroupProgress(*partition, group, cursor.floor, place.lag, cursor.in_flight_count, ranges)

    def reliability(self) -> reports.ReliabilityReport:
        """What became of messages since the broker started."""
        happened = self._happened
        cursors = [place.cursor.cursor for _, _, place in self._all_places()]
        return reports.ReliabilityReport(
            happened.acked,
            happened.nacked,
            happened.rejected,
            happened.expired,
            happened.redelivered,
            happened.extended,
            sum(happened.dead_by_reason.values()),
            happened.delivered,
            sum(cursor.in_flight_count for cursor in cursors),
            sum(cursor.waiting_count for cursor in cursors),
            dict(happened.dead_by_reason),
            dict(happened.dead_by_topic),
            happened.create_errors,
            happened.publish_errors,
        )

    # --- time and other causes -----------------------------------------------------------------

    def tick(self) -> None:
        """Do what time brings."""
        now_ns, wall_ns = self._now()
        if now_ns - self._touched_ns >= SECOND:
            self._touched_ns = now_ns
            self._polling.touch(now_ns=now_ns, wall_ns=wall_ns)
        self._coordinator.tick(now_ns=now_ns)
        self._tell()
        if now_ns >= self._auto_commit_at_ns:
            self._auto_commit(now_ns)
        self._polling.run_woken()

    def topics_changed(self) -> None:
        """A topic came, went or grew."""
        counts = self._topics.partition_counts()
        self._places.drop(lambda one: one.partition >= counts.get(one.topic, 0))
        self._coordinator.topics_changed(counts, now_ns=self._clock.monotonic_ns())
        self._tell()

    def topic_deleted(self, topic: str) -> None:
        """Its cursors are gone with it."""
        self._places.drop(lambda one: one.topic == topic)
        self.topics_changed()

    # --- inside --------------------------------------------------------------------------------

    def _tell(self) -> None:
        """Pass on what happened in the groups, and do what follows from it."""
        for event in self._coordinator.take_events():
            self._observe(event)
            match event:
                case events.MemberLeft(group=name, member_id=member_id, reason=reason):
                    self._release(name, member_id, is_lost=reason == "timeout")
                    self._polling.answer(name, member_id)
                case events.RebalanceStarted(group=name):
                    self._ask_back(name)
                case events.PartitionsAssigned(group=name, member_id=member_id):
                    self._polling.answer(name, member_id)
                case events.PartitionsRevoked(group=name, member_id=member_id, partitions=partitions):
                    self._take_back(name, member_id, partitions)
                    self._polling.answer(name, member_id)
                case events.GroupChanged(group=name):
                    self._polling.wake(name)
                    if self._coordinator.find(name) is not None:
                        self._store(name)
                case _:
                    pass
        self._polling.run_woken()

    def _release(self, name: str, member_id: str, *, is_lost: bool) -> None:
        self._polling.forget_member(name, member_id)
        for delivery, one in self._places.of(name).values():
            with suppress(StorageError):
                delivery.release_member(one, member_id, is_lost=is_lost)

    def _take_back(self, name: str, member_id: str, partitions: Sequence[tuple[str, int]]) -> None:
        """Without leases, what a member has of a partition that it lost goes to the next one, from the position on."""
        places = self._places.of(name)
        for partition in partitions:
            place = places.get(TopicPartition(*partition))
            if place is not None:
                place.delivery.take_back(place.cursor, member_id)

    def _ask_back(self, name: str) -> None:
        """Members that are to give something back hear of it now, and not when their polls are over."""
        group = self._coordinator.find(name)
        for member in group.members.values() if group else ():
            if member.asked:
                self._polling.answer(name, member.id)

    def _commit_handed(
        self, name: str, member: Member, partitions: Sequence[TopicPartition] | None, *, is_leaving: bool = False
    ) -> None:
        """What was handed over without leases counts as done when its member gives it back by its own will."""
        if member.ack != "offsets" or not member.auto_commit:
            return
        for partition, (delivery, one) in self._places.of(name).items():
            if partitions is None or partition in partitions:
                with suppress(StorageError):
                    delivery.commit_handed(one, member.id, poll=member.poll_count, is_leaving=is_leaving)

    def _auto_commit(self, now_ns: int) -> None:
        """Commit for members whose interval is over; the next look is when that of the next one is."""
        next_ns = now_ns + AUTO_COMMIT_CHECK_NS
        for group in self._coordinator:
            if group.ack == "offsets":
                for member in group.members.values():
                    if now_ns >= member.commit_at_ns:
                        self._commit_handed(group.name, member, None)
                        member.commit_at_ns = now_ns + member.auto_commit_interval_ms * MS
                    next_ns = min(next_ns, member.commit_at_ns)
        self._auto_commit_at_ns = next_ns

    def _check_topics(self, asked: Join) -> None:
        for topic in asked.topics:
            if not self._topics.has_topic(topic):
                raise TopicNotFound(topic)

    def _joined(self, group: Group, member: Member) -> reports.Joined:
        return reports.Joined(
            member.id,
            group.generation,
            group.leader_id or "",
            sorted(group.members),
            _names(group.assigned(member.id)),
            group.rebalance_required(member.id),
            group.mode,
            group.protocol,
            member.session_timeout_ms,
            group.heartbeat_interval_ms(member),
        )

    def _store(self, name: str) -> Pending[None]:
        """Write down who is in the group."""
        return self._journaled({_key(name): self._coordinator.get(name).snapshot()})

    def _journaled(self, facts: Mapping[bytes, bytes | None]) -> Pending[None]:
        return chained(self._topics.journal(GROUPS_TOPIC), lambda journal: journal.put(facts))

    def _now(self) -> tuple[int, int]:
        return self._clock.monotonic_ns(), self._clock.wall_ns()


def _key(group: str) -> bytes:
    return _GROUP + group.encode()


def _names(partitions: Sequence[TopicPartition]) -> list[PartitionName]:
    return [PartitionName(*partition) for partition in partitions]
