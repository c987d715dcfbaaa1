"""Consumer groups: their members, and the effects of their changes.

    join, heartbeat, leave ──> Coordinator ──> `__groups`          the assignment of partitions to members
    poll ──> Polling     settle ──> Settlements     commit, reset ──> GroupPositions     all of them ──> GroupDeliveries

`Groups` is the interface of all that for doors. Its own part is membership: it emits the decisions of the coordinator,
returns the messages of members that lost a partition, and writes the members of a group to the journal.

The groups here are those of the partitions of `__groups` that this node leads. When such a partition is attached, its
groups are as they were after their last change, and each session begins anew; when it is detached, they are forgotten.
What groups did with messages (leases, acks, positions) is in the ledgers of the data partitions, and stays.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress

from goqueue import events
from goqueue.broker.coordination import GROUPS_TOPIC, Journals, partition_of
from goqueue.broker.delivery.counters import DeliveryCounters
from goqueue.broker.delivery.group_delivery import GroupDelivery
from goqueue.broker.delivery.partition_delivery import PartitionDelivery
from goqueue.broker.delivery.reports import lane_report
from goqueue.broker.groups.group_deliveries import GroupDeliveries, look_ahead, up_to_date
from goqueue.broker.groups.polling import Polling
from goqueue.broker.groups.positions import GroupPositions
from goqueue.broker.groups.settling import Settlements
from goqueue.broker.local_partitions import LocalPartitions
from goqueue.broker.partition.journal import Journal
from goqueue.broker.partition.leader import PartitionLeader
from goqueue.broker.waits import Waits
from goqueue.clock import MS, SECOND, Clock
from goqueue.errors import GoQueueError, GroupNotFound, NotLeader, StorageError, TopicNotFound
from goqueue.groups.coordinator import GroupCoordinator
from goqueue.groups.group import Group
from goqueue.groups.member import Member, validate_name
from goqueue.metrics.delivery import GroupProgress
from goqueue.names import TopicPartition
from goqueue.runtime.entropy import Entropy
from goqueue.service.groups import Join
from goqueue.service.pending import Pending, after, all_of, chained
from goqueue.wire import reports
from goqueue.wire.reports import PartitionName

AUTO_COMMIT_CHECK_NS = 5 * SECOND
"""How often to look for members with automatic commits, while there are none."""
KEY_PREFIX = b"g"
"""Of the facts in `__groups`; the name of a group follows."""
SUFFIX_BYTES = 6  # of a member id that the broker makes


class Groups:
    """The verbs about groups, over the coordinators that are attached to this node."""

    def __init__(
        self,
        topics: LocalPartitions,
        journals: Journals,
        counters: DeliveryCounters,
        waits: Waits,
        *,
        clock: Clock,
        entropy: Entropy,
        observe: events.Observer,
    ) -> None:
        coordinator = self._coordinator = GroupCoordinator(refuse_foreign=journals.find)
        self._journals = journals
        self._topics = topics
        self._clock = clock
        self._counters = counters
        self._entropy = entropy
        self._observe = observe
        self._auto_commit_at_ns = 0
        self._touched_ns = clock.monotonic_ns()
        self._knows_all_deliveries = False  # also those of groups that were not used since the start
        deliveries = self._deliveries = GroupDeliveries(topics)
        polling = self._polling = Polling(coordinator, topics, deliveries, waits, clock=clock, observe=observe)
        self.settlements = Settlements(topics, deliveries, polling, is_gone=self._is_gone, clock=clock)
        positions = GroupPositions(
            coordinator,
            topics,
            deliveries,
            polling,
            create_group=self._create_group,
            is_gone=self._is_gone,
            clock=clock,
        )
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
        self.apply_position = positions.apply_position
        self.reset = positions.reset

    # --- coordination --------------------------------------------------------------------------

    def attach(self, journal: Journal) -> None:
        """Coordinate the groups of a partition: restore them from its journal."""
        now_ns = self._clock.monotonic_ns()
        counts = self._topics.partition_counts()
        restored: list[Group] = []
        for key, raw in journal.load().items():
            try:
                group = self._restored(key, raw, journal.partition)
            except Exception as error:  # a damaged disk holds bytes of any kind; one bad group must not stop the others
                journal.pass_over(key, error)
                continue
            group.topics_changed(counts, now_ns=now_ns)  # they may have changed while the group had no coordinator
            restored.append(group)
        for group in restored:
            for member in group.members.values():  # before it polls, a member may settle, leave or time out
                member.commit_at_ns = now_ns + member.auto_commit_interval_ms * MS
                self._auto_commit_at_ns = min(self._auto_commit_at_ns, member.commit_at_ns)
                for partition in self._deliveries.partitions_of([topic for topic in member.topics if topic in counts]):
                    with suppress(StorageError, NotLeader):  # its first poll will raise it
                        delivery = self._deliveries.at(group.name, partition, start=member.start)
                        member.poll_count = max(member.poll_count, delivery.handed.last_poll(member.id))
        if any(group.mode == "key-shared" for group in restored):
            for leader in self._topics.user_leaders():
                if isinstance(leader.delivery, PartitionDelivery):  # opened before the groups were known
                    self.delivery_opened(leader.delivery)
        self._knows_all_deliveries = False
        self._tell()

    def _restored(self, key: bytes, raw: bytes, partition: int) -> Group:
        if not key.startswith(KEY_PREFIX):
            raise ValueError("no such kind of fact")
        name = key.removeprefix(KEY_PREFIX).decode()
        if partition_of(name, GROUPS_TOPIC) != partition:
            raise ValueError("the group belongs to another partition")
        now_ns, wall_ns = self._now()
        return self._coordinator.restore(name, raw, now_ns=now_ns, wall_ns=wall_ns)

    def detach(self, partition: int, error: GoQueueError) -> None:
        """Forget the groups of a partition: another node coordinates them. Polls that wait fail with the error."""
        for group in list(self._coordinator):
            if partition_of(group.name, GROUPS_TOPIC) == partition:
                self._coordinator.forget(group.name)
                self._polling.forget(group.name, error)
                self._deliveries.forget(group.name)
                self._observe(events.GroupDetached(group=group.name))

    def delivery_opened(self, delivery: PartitionDelivery) -> None:
        """Hold the keys of messages that were delivered before a restart.

        This comes before any of them is settled and before any lease expires.
        """
        for group_delivery in delivery.groups.values():
            group = self._coordinator.find(group_delivery.group)
            if group is not None and group.mode == "key-shared":
                group_delivery.use_key_order(True)

    # --- membership ----------------------------------------------------------------------------

    def join(self, group: str, asked: Join) -> Pending[reports.JoinAnswer]:
        """Join the group, as a new member or again."""
        validate_name(group, "group")
        self._check_topics(asked)

        def go_on(journal: Journal) -> Pending[reports.JoinAnswer]:
            member = self._add_member(group, asked)
            told = self._joined(self._coordinator.get(group), member)
            stored = journal.put({_key(group): self._coordinator.get(group).snapshot()})
            return after(stored, lambda _: told)

        return chained(self._journals.open(group), go_on)

    def _add_member(self, group: str, asked: Join) -> Member:
        now_ns, wall_ns = self._now()
        member = self._coordinator.join(
            group,
            asked,
            suffix=self._entropy.bytes(SUFFIX_BYTES).hex(),
            partition_counts=self._topics.partition_counts(),
            now_ns=now_ns,
            wall_ns=wall_ns,
        )
        member.commit_at_ns = now_ns + member.auto_commit_interval_ms * MS
        self._auto_commit_at_ns = min(self._auto_commit_at_ns, member.commit_at_ns)
        for group_delivery in self._deliveries.of(group).values():  # a process that begins anew counts from 1 again
            group_delivery.forget_poll(member.id)
        for partition in self._deliveries.partitions_of(
            member.topics
        ):  # its positions begin when it joins, not when it first polls
            with suppress(NotLeader):  # they begin when the partition has a leader
                self._deliveries.at(group, partition, start=member.start)
        self._tell()
        return member

    def heartbeat(
        self, group: str, member_id: str, generation: int | None = None, *, is_cooperative: bool = False
    ) -> reports.HeartbeatAnswer:
        """Renew the session of the member."""
        now_ns, wall_ns = self._now()
        found = self._coordinator.get(group)
        if is_cooperative:
            beat = found.cooperative_heartbeat(member_id, generation, now_ns=now_ns, wall_ns=wall_ns)
            self._tell()
            return reports.HeartbeatAnswer(
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
        return reports.HeartbeatAnswer(
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
        """The member confirms that it no longer uses revoked partitions."""
        given = None if partitions is None else [TopicPartition(one.topic, one.partition) for one in partitions]
        found = self._coordinator.get(group)
        self._commit_handed(group, found.member(member_id), given)
        revoked = found.revoke(member_id, generation, given, now_ns=self._clock.monotonic_ns())
        self._tell()
        return reports.RevocationAcknowledged(revoked.pending_count, revoked.rebalance_state)

    def leave(self, group: str, member_id: str) -> Pending[None]:
        """Remove the member; its leased messages are ready again at once."""
        found = self._coordinator.get(group)
        self._commit_handed(group, found.member(member_id), None, is_leaving=True)
        found.leave(member_id, now_ns=self._clock.monotonic_ns())
        self._tell()
        return self._store(group)

    def names(self) -> list[str]:
        """The names, sorted."""
        return [group.name for group in self._coordinator]

    def describe(self, group: str) -> reports.GroupInfo:
        """The group as it is now."""
        found = self._coordinator.get(group)
        deliveries = self._deliveries.all_of(found)
        members = [
            reports.MemberInfo(
                member.id,
                member.client_id,
                list(member.topics),
                _names(member.assigned),
                self._deliveries.in_flight(group, member.id),
                member.joined_at_ns,
                member.last_heartbeat_ns,
                sum(one.expired_by_member.get(member.id, 0) for one in deliveries.values()),
            )
            for member in found.members.values()
        ]
        lag = sum(one.lag for one in up_to_date(deliveries).values())
        return reports.GroupInfo(
            group,
            found.state,
            found.generation,
            found.mode,
            found.protocol,
            found.assignor,
            found.ack,
            found.leader_id or "",
            list(found.topics) or sorted({partition.topic for partition in deliveries}),
            found.created_at_ns,
            lag,
            members,
            found.rebalance_state,
            sum(one.expired_leases for one in deliveries.values()),
        )

    def delete(self, group: str) -> Pending[None]:
        """Remove all members and all positions."""
        found = self._coordinator.get(group)
        deliveries = self._deliveries.all_of(found)
        waits = [one.leader.ledger.when_stored(one.partition.forget(group)) for one in deliveries.values()]
        self._coordinator.delete(group, now_ns=self._clock.monotonic_ns())
        self._polling.forget(group, GroupNotFound(group))
        self._deliveries.forget(group)
        self._tell()
        return all_of([*waits, self._journaled(group, None)])

    def rebalance_stats(self, group: str | None = None) -> reports.RebalanceReport:
        """Counts and times of the rebalances of one group, or of all."""
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
        """The blocked keys, each with the message that blocks it."""
        found = []
        for partition, group_delivery in self._deliveries.all_of(self._coordinator.get(group)).items():
            keys = group_delivery.keys
            for hold in keys.blocking() if keys is not None else ():
                offset = hold.first
                count = group_delivery.cursor.deliveries_of(offset) + (offset in hold.in_flight)
                member = hold.member if offset in hold.in_flight else ""
                found.append(
                    reports.BlockedKey(
                        topic=partition.topic,
                        partition=partition.partition,
                        key=hold.key,
                        offset=offset,
                        member_id=member,
                        since_ns=hold.since_ns,
                        delivery_count=count,
                        waiting=len(hold.parked),
                    )
                )
        return found

    def _create_group(self, group: str) -> Pending[None]:
        validate_name(group, "group")

        def go_on(journal: Journal) -> Pending[None]:
            now_ns, wall_ns = self._now()
            self._coordinator.create(group, now_ns=now_ns, wall_ns=wall_ns)
            self._tell()
            return journal.put({_key(group): self._coordinator.get(group).snapshot()})

        return chained(self._journals.open(group), go_on)

    def _is_gone(self, group: str) -> bool:
        """Whether a group is known to be deleted: a group that another node coordinates may be there."""
        try:
            return self._coordinator.look_up(group) is None
        except NotLeader:
            return False

    # --- statistics ----------------------------------------------------------------------------

    def lanes(self, topic: str | None = None, group: str | None = None) -> list[reports.LaneReport]:
        """The lanes of each partition."""
        if topic is not None and not self._topics.has_topic(topic):
            raise TopicNotFound(topic)
        if group is not None:
            self._coordinator.get(group)
        now_ns, wall_ns = self._now()
        leaders = sorted(self._topics.user_leaders(), key=lambda leader: leader.origin)
        return [
            lane_report(self._topics.delivery(leader), group, now_ns=now_ns, wall_ns=wall_ns)
            for leader in leaders
            if topic in (None, leader.origin.topic)
        ]

    def _all_deliveries(self) -> Iterator[tuple[TopicPartition, GroupDelivery]]:
        """The deliveries of all groups. The first call after a start replays the ledgers that were not replayed yet."""
        if not self._knows_all_deliveries:
            self._knows_all_deliveries = True
            self._deliveries.find_all(group.name for group in self._coordinator)
        return iter(self._deliveries)

    def standings(self) -> Iterator[GroupProgress]:
        """The position and lag of every group on every partition."""
        for partition, group_delivery in self._all_deliveries():
            look_ahead(group_delivery, 1)
            cursor, lag = group_delivery.cursor, group_delivery.lag
            ranges = len(cursor.acked) - cursor.acked.intersection_cardinality(cursor.acked.shift(1))
            yield GroupProgress(*partition, group_delivery.group, cursor.floor, lag, cursor.in_flight_count, ranges)

    def reliability(self) -> reports.ReliabilityReport:
        """Counts of what happened to messages since the broker started."""
        counters = self._counters
        cursors = [group_delivery.cursor for _, group_delivery in self._all_deliveries()]
        return reports.ReliabilityReport(
            counters.acked,
            counters.nacked,
            counters.rejected,
            counters.expired,
            counters.redelivered,
            counters.extended,
            sum(counters.dead_by_reason.values()),
            counters.delivered,
            sum(cursor.in_flight_count for cursor in cursors),
            sum(cursor.waiting_count for cursor in cursors),
            dict(counters.dead_by_reason),
            dict(counters.dead_by_topic),
            counters.create_errors,
            counters.publish_errors,
        )

    # --- time and other causes -----------------------------------------------------------------

    def tick(self) -> None:
        """Expire sessions, commit positions for members, and let woken polls run."""
        now_ns, wall_ns = self._now()
        if now_ns - self._touched_ns >= SECOND:
            self._touched_ns = now_ns
            self._polling.touch(now_ns=now_ns, wall_ns=wall_ns)
        self._coordinator.tick(now_ns=now_ns)
        self._tell()
        if now_ns >= self._auto_commit_at_ns:
            self._auto_commit(now_ns)
        self._polling.run_woken()

    def leader_began(self, leader: PartitionLeader) -> None:
        """A partition has a leader again: its groups find their cursors in the ledger, and waiting polls go on."""
        self._knows_all_deliveries = False
        for group in self._coordinator:
            for member in group.members.values():  # before it polls, a member may leave or time out
                if leader.origin in group.assigned(member.id):
                    with suppress(NotLeader, StorageError):  # its first poll will raise it
                        self._deliveries.at(group.name, leader.origin, start=member.start)
        self._polling.leader_began(leader.origin)

    def leader_ended(self, leader: PartitionLeader) -> None:
        """A partition has lost its leader, and the cursors in memory are void."""
        self._deliveries.drop(lambda partition: partition == leader.origin)

    def topics_changed(self) -> None:
        """A topic was created or deleted, or has more partitions."""
        counts = self._topics.partition_counts()
        self._deliveries.drop(lambda partition: partition.partition >= counts.get(partition.topic, 0))
        self._coordinator.topics_changed(counts, now_ns=self._clock.monotonic_ns())
        self._tell()

    def topic_deleted(self, topic: str) -> None:
        """The topic was deleted, and its cursors with it."""
        self._deliveries.drop(lambda partition: partition.topic == topic)
        self.topics_changed()

    # --- inside --------------------------------------------------------------------------------

    def _tell(self) -> None:
        """Emit what happened in the groups, and act on it."""
        for event in self._coordinator.take_events():
            self._observe(event)
            match event:
                case events.MemberLeft(group=name, member_id=member_id, reason=reason):
                    self._release(name, member_id, is_lost=reason == "timeout")
                    self._polling.answer(name, member_id)
                case events.RebalanceStarted(group=name):
                    self._answer_revoking(name)
                case events.PartitionsAssigned(group=name, member_id=member_id):
                    self._polling.answer(name, member_id)
                case events.PartitionsRevoked(group=name, member_id=member_id, partitions=partitions):
                    self._return_handed(name, member_id, partitions)
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
        for group_delivery in self._deliveries.of(name).values():
            with suppress(NotLeader, StorageError):
                group_delivery.release_member(member_id, is_lost=is_lost)

    def _return_handed(self, name: str, member_id: str, partitions: Sequence[tuple[str, int]]) -> None:
        """Without leases, the next owner of a partition gets the messages that this one has not committed."""
        deliveries = self._deliveries.of(name)
        for partition in partitions:
            group_delivery = deliveries.get(TopicPartition(*partition))
            if group_delivery is not None:
                group_delivery.return_handed(member_id)

    def _answer_revoking(self, name: str) -> None:
        """Answer the long polls of members that lose partitions, so that they learn of it now."""
        group = self._coordinator.find(name)
        for member in group.members.values() if group else ():
            if member.revoking:
                self._polling.answer(name, member.id)

    def _commit_handed(
        self, name: str, member: Member, partitions: Sequence[TopicPartition] | None, *, is_leaving: bool = False
    ) -> None:
        """Messages delivered without leases are done when their member leaves, polls again or confirms a revocation."""
        if member.ack != "offsets" or not member.auto_commit:
            return
        for partition, group_delivery in self._deliveries.of(name).items():
            if partitions is None or partition in partitions:
                with suppress(NotLeader, StorageError):
                    group_delivery.commit_handed(member.id, poll=member.poll_count, is_leaving=is_leaving)

    def _auto_commit(self, now_ns: int) -> None:
        """Commit for members whose interval is over, and note when the next interval ends."""
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

    def _joined(self, group: Group, member: Member) -> reports.JoinAnswer:
        return reports.JoinAnswer(
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
        """Write the members of the group to the journal."""
        return self._journaled(name, self._coordinator.get(name).snapshot())

    def _journaled(self, group: str, snapshot: bytes | None) -> Pending[None]:
        facts = {_key(group): snapshot}
        return chained(self._journals.open(group), lambda journal: journal.put(facts))

    def _now(self) -> tuple[int, int]:
        return self._clock.monotonic_ns(), self._clock.wall_ns()


def _key(group: str) -> bytes:
    return KEY_PREFIX + group.encode()


def _names(partitions: Sequence[TopicPartition]) -> list[PartitionName]:
    return [PartitionName(topic=partition.topic, partition=partition.partition) for partition in partitions]
