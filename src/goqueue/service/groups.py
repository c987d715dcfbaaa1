"""What can be asked of a broker about groups, deliveries, delays, schedules and dead letters.

These are the second half of `Service`, one protocol for each noun. The rules are the same: calls return at once, what
has to wait is a `Pending`, whatever is wrong is raised or comes out of it as a `GoQueueError`.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol, TypeAlias

from goqueue.errors import GoQueueError
from goqueue.groups.member import Join
from goqueue.record.header import Buffer
from goqueue.service.new_message import NewMessage
from goqueue.service.pending import Pending
from goqueue.wire import reports

POLL_MESSAGES = 100
POLL_MESSAGES_MAX = 10_000
POLL_BYTES = 1024 * 1024
RECEIPTS_MAX = 1_000
EXTENSION_NS_MAX = 12 * 3600 * 10**9


DelayedMessages: TypeAlias = list[reports.DelayedMessage]
Schedules: TypeAlias = list[reports.ScheduleInfo]
DeadLetters: TypeAlias = list[reports.DeadLetter]


class PollResult(NamedTuple):
    """A poll: what is told of it, and the records of its batches, one buffer each."""

    polled: reports.PollAnswer
    records: Sequence[Buffer]


class GroupVerbs(Protocol):
    """Consumer groups."""

    def join(self, group: str, asked: Join) -> Pending[reports.JoinAnswer]: ...
    def heartbeat(
        self, group: str, member_id: str, generation: int | None = None, *, is_cooperative: bool = False
    ) -> reports.HeartbeatAnswer:
        """The member is alive. A cooperative one of an older generation is told the new one, not refused."""

    def revoke(
        self,
        group: str,
        member_id: str,
        generation: int | None = None,
        partitions: Sequence[reports.PartitionName] | None = None,
    ) -> reports.RevocationAcknowledged: ...

    def leave(self, group: str, member_id: str) -> Pending[None]: ...
    def names(self) -> list[str]: ...
    def describe(self, group: str) -> reports.GroupInfo: ...
    def delete(self, group: str) -> Pending[None]: ...
    def rebalance_stats(self, group: str | None = None) -> reports.RebalanceReport: ...
    def blocked(self, group: str) -> list[reports.BlockedKey]: ...

    def has_member(self, group: str, member_id: str) -> bool:
        """Whether there is such a member."""

    def positions(self, group: str, topic: str | None = None) -> list[reports.Position]:
        """Where the group stands; nothing for a group that is not there."""

    def done_above(self, group: str, topic: str | None = None) -> list[reports.DoneAbove]:
        """What the group has done above its positions, where there is something."""

    def commit(
        self,
        group: str,
        commits: Sequence[reports.PositionCommit],
        *,
        member_id: str | None = None,
        generation: int | None = None,
    ) -> Pending[list[reports.PositionCommit]]:
        """Commit positions, all or none; what is stored."""

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
        """Set positions: `earliest`, `latest`, `timestamp`, `offset`."""

    def poll(
        self,
        group: str,
        member_id: str,
        *,
        generation: int | None = None,
        max_messages: int = POLL_MESSAGES,
        max_bytes: int = POLL_BYTES,
        wait_ms: int = 0,
        visibility_timeout_ms: int | None = None,
    ) -> Pending[PollResult]: ...

    def settle(
        self, receipts: Sequence[str], settlement: reports.Settlement
    ) -> Pending[list[reports.SettledMessage | GoQueueError]]:
        """Settle messages by their receipts; each has its result, in order."""

    def settle_batch(
        self, topic: str, partition: int, nonce: str, offsets: Buffer, settlement: reports.Settlement
    ) -> Pending[reports.SettledBatch]:
        """Settle messages of one delivery; offsets are uint64, little-endian. None at all: all that are left."""

    def reliability(self) -> reports.ReliabilityReport: ...
    def lanes(self, topic: str | None = None, group: str | None = None) -> list[reports.LaneReport]: ...


class DelayVerbs(Protocol):
    """Delayed messages. Keys are compared as bytes."""

    def list(
        self,
        topic: str,
        *,
        partition: int | None = None,
        key: bytes | None = None,
        state: str = "pending",
        skip: int = 0,
        limit: int = 100,
    ) -> DelayedMessages:
        """By due time; an unknown topic has none."""

    def get(self, topic: str, offset: int, *, partition: int | None = None) -> reports.DelayedMessage: ...
    def cancel(
        self,
        topic: str,
        *,
        partition: int | None = None,
        offset: int | None = None,
        offsets: Sequence[int] | None = None,
        key: bytes | None = None,
    ) -> Pending[DelayedMessages]:
        """One by partition and offset (`MessageNotFound` unless it is pending), those that are pending of many
        offsets of a partition, or all pending ones of a key.
        """

    def reschedule(
        self,
        topic: str,
        deliver_at_ns: int,
        *,
        partition: int | None = None,
        offset: int | None = None,
        offsets: Sequence[int] | None = None,
        key: bytes | None = None,
    ) -> Pending[DelayedMessages]: ...
    def stats(self) -> reports.DelayReport: ...


class ScheduleVerbs(Protocol):
    """Recurring messages."""

    def create(
        self,
        topic: str,
        name: str,
        message: NewMessage,
        *,
        cron: str | None = None,
        every_ns: int | None = None,
        timezone: str = "UTC",
        catch_up: str = "skip",
        start_ns: int | None = None,
        end_ns: int | None = None,
        delay_ns: int | None = None,
        ttl_ns: int | None = None,
        paused: bool = False,
    ) -> Pending[reports.ScheduleInfo]: ...
    def list(self, topic: str) -> Schedules: ...
    def get(self, topic: str, name: str) -> reports.ScheduleInfo:
        """With its history."""

    def alter(self, topic: str, name: str, changes: Mapping[str, object]) -> Pending[reports.ScheduleInfo]:
        """Change any of the arguments of `create`, and `message`."""

    def delete(self, topic: str, name: str) -> Pending[None]: ...
    def pause(self, topic: str, name: str) -> Pending[reports.ScheduleInfo]: ...
    def resume(self, topic: str, name: str) -> Pending[reports.ScheduleInfo]: ...
    def run(self, topic: str, name: str) -> Pending[reports.ScheduleInfo]: ...


class DeadLetterVerbs(Protocol):
    """Dead letters; `topic` is the one they come from."""

    def queues(self) -> list[reports.DeadLetterQueue]: ...
    def describe(self, topic: str) -> reports.DeadLetterQueue: ...
    def list(self, topic: str, wanted: reports.DeadLetterFilter, *, skip: int = 0, limit: int = 100) -> DeadLetters: ...
    def plan(
        self,
        topic: str,
        wanted: reports.DeadLetterFilter,
        *,
        limit: int = 0,
        target_topic: str | None = None,
        max_redrives: int = 3,
        to: str | None = None,
    ) -> reports.RedrivePlan: ...
    def redrive(
        self,
        topic: str,
        wanted: reports.DeadLetterFilter,
        *,
        rate: float = 0,
        limit: int = 0,
        target_topic: str | None = None,
        max_redrives: int = 3,
        to: str | None = None,
    ) -> Pending[reports.RedriveInfo]: ...
    def redrive_info(self, topic: str, redrive_id: str) -> reports.RedriveInfo: ...
    def stop_redrive(self, topic: str, redrive_id: str) -> Pending[reports.RedriveInfo]: ...
