"""What a rebalance aims at, and what came of it.

A rebalance begins with a change (a member joined, left or timed out, a topic has grown or was deleted) and a *target*:
what each member will have. It ends when all members have that. A rebalance that is overtaken by the next change counts
as failed; the next one starts from what members have by then. So total = successful + failed + the one under way.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache

from goqueue.clock import MS
from goqueue.groups.assignors.choice import choose
from goqueue.groups.member import Member
from goqueue.names import TopicPartition


class Trigger(StrEnum):
    """Why a rebalance begins."""

    JOIN = "join"
    LEAVE = "leave"
    TIMEOUT = "timeout"
    PARTITION_ADDED = "partition_added"
    TOPIC_CHANGE = "topic_change"


@dataclass(slots=True)
class Rebalance:
    """One that is under way."""

    started_ns: int
    homes: Mapping[TopicPartition, str]
    """Who had what when it began. An eager one asks everything back and still moves as little as it can."""


@dataclass(slots=True)
class RebalanceStats:
    """What all rebalances came to."""

    total_rebalances: int = 0
    successful_rebalances: int = 0
    failed_rebalances: int = 0
    total_partitions_revoked: int = 0
    total_partitions_assigned: int = 0
    total_revocation_timeouts: int = 0  # members that did not confirm a revocation in time
    last_rebalance_duration_ns: int = 0  # of the last one that succeeded
    total_rebalance_duration_ns: int = 0  # of all that succeeded
    last_rebalance_at_ns: int | None = None  # when the last one succeeded, as the calendar shows it
    rebalances_by_reason: dict[str, int] = field(default_factory=dict)

    @property
    def last_rebalance_duration_ms(self) -> float:
        """How long the last one took."""
        return self.last_rebalance_duration_ns / MS

    @property
    def average_rebalance_duration_ms(self) -> float:
        """How long one takes; 0 before the first."""
        return self.total_rebalance_duration_ns / MS / max(1, self.successful_rebalances)

    def started(self, trigger: Trigger) -> None:
        """Count one that begins."""
        self.total_rebalances += 1
        self.rebalances_by_reason[trigger.value] = self.rebalances_by_reason.get(trigger, 0) + 1

    def succeeded(self, duration_ns: int, *, wall_ns: int) -> None:
        """Count one that reached its target."""
        self.successful_rebalances += 1
        self.last_rebalance_duration_ns = duration_ns
        self.total_rebalance_duration_ns += duration_ns
        self.last_rebalance_at_ns = wall_ns


def summed(stats: Iterable[RebalanceStats]) -> RebalanceStats:
    """Several groups as if they were one; the last rebalance is the last of them all."""
    total = RebalanceStats()
    for one in stats:
        total.total_rebalances += one.total_rebalances
        total.successful_rebalances += one.successful_rebalances
        total.failed_rebalances += one.failed_rebalances
        total.total_partitions_revoked += one.total_partitions_revoked
        total.total_partitions_assigned += one.total_partitions_assigned
        total.total_revocation_timeouts += one.total_revocation_timeouts
        total.total_rebalance_duration_ns += one.total_rebalance_duration_ns
        for reason, count in one.rebalances_by_reason.items():
            total.rebalances_by_reason[reason] = total.rebalances_by_reason.get(reason, 0) + count
        at_ns = one.last_rebalance_at_ns
        if at_ns is not None and (total.last_rebalance_at_ns is None or at_ns >= total.last_rebalance_at_ns):
            total.last_rebalance_at_ns = at_ns
            total.last_rebalance_duration_ns = one.last_rebalance_duration_ns
    return total


def targets(
    members: Mapping[str, Member],
    partition_counts: Mapping[str, int],
    homes: Mapping[TopicPartition, str],
    *,
    mode: str,
    assignor: str,
) -> Mapping[str, frozenset[TopicPartition]]:
    """What each member is to have: its share, or, where messages and not partitions are shared out, all it wants."""
    if mode == "partitioned":
        topics = {member.id: member.topics for member in members.values()}
        dealt = choose(assignor)(topics, partition_counts, homes)
        return {member_id: frozenset(partitions) for member_id, partitions in dealt.items()}
    return {
        member.id: _all_partitions(tuple((topic, partition_counts[topic]) for topic in member.topics))
        for member in members.values()
    }


@lru_cache(maxsize=64)
def _all_partitions(topics: tuple[tuple[str, int], ...]) -> frozenset[TopicPartition]:
    """Every partition of these topics; the same object while they stay the same, which is quick to compare."""
    return frozenset(TopicPartition(topic, partition) for topic, count in topics for partition in range(count))
