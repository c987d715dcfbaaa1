"""The verbs about consumer groups: membership, positions, polls and settlements."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from goqueue.errors import GoQueueError
from goqueue.record.header import Buffer
from goqueue.service.pending import Pending
from goqueue.service.verb import Action, Resource, Route, verb
from goqueue.wire import reports

POLL_MESSAGES = 100
POLL_MESSAGES_MAX = 10_000
POLL_BYTES = 1024 * 1024
RECEIPTS_MAX = 1_000
EXTENSION_NS_MAX = 12 * 3600 * 10**9


class Join(NamedTuple):
    """What a member asks for when it joins a group."""

    client_id: str
    topics: tuple[str, ...]
    member_id: str | None = None
    session_timeout_ms: int = 30_000
    mode: str = "partitioned"
    protocol: str = "cooperative"
    assignor: str = "sticky"
    start: str = "earliest"
    ack: str = "messages"
    auto_commit: bool = True
    visibility_timeout_ms: int | None = None
    max_in_flight: int | None = None
    auto_commit_interval_ms: int = 5_000
    confirms_revocations: bool = False  # partitions that move are revoked from it, and it confirms that it has stopped


class PollResult(NamedTuple):
    """The answer to a poll: what it says of its batches, and the records of each in a buffer."""

    polled: reports.PollAnswer
    records: Sequence[Buffer]


class GroupVerbs(Protocol):
    """Consumer groups."""

    @verb(Resource.GROUP, Action.READ, Route.COORDINATOR, frame="JOIN")
    def join(self, group: str, asked: Join) -> Pending[reports.JoinAnswer]: ...
    @verb(Resource.GROUP, Action.READ, Route.COORDINATOR, not_python="a part of the HEARTBEAT frame")
    def heartbeat(
        self, group: str, member_id: str, generation: int | None = None, *, is_cooperative: bool = False
    ) -> Pending[reports.HeartbeatAnswer]:
        """The member is alive. A cooperative one of an older generation is told the new one, not refused."""

    @verb(Resource.GROUP, Action.READ, Route.COORDINATOR, not_python="a part of the HEARTBEAT frame")
    def revoke(
        self,
        group: str,
        member_id: str,
        generation: int | None = None,
        partitions: Sequence[reports.PartitionName] | None = None,
    ) -> Pending[reports.RevocationAcknowledged]: ...

    @verb(Resource.GROUP, Action.READ, Route.COORDINATOR)
    def leave(self, group: str, member_id: str) -> Pending[None]: ...
    @verb(Resource.CLUSTER, Action.DESCRIBE, Route.ALL_NODES)
    def names(self) -> Pending[list[str]]: ...
    @verb(Resource.GROUP, Action.DESCRIBE, Route.COORDINATOR)
    def describe(self, group: str) -> Pending[reports.GroupInfo]: ...
    @verb(Resource.GROUP, Action.DELETE, Route.COORDINATOR)
    def delete(self, group: str) -> Pending[None]: ...
    @verb(Resource.GROUP, Action.DESCRIBE, Route.COORDINATOR)
    def rebalance_stats(self, group: str | None = None) -> Pending[reports.RebalanceReport]: ...
    @verb(Resource.GROUP, Action.DESCRIBE, Route.LEADER)
    def blocked(self, group: str) -> Pending[list[reports.BlockedKey]]: ...

    @verb(Resource.GROUP, Action.DESCRIBE, Route.LEADER)
    def positions(self, group: str, topic: str | None = None) -> Pending[list[reports.Position]]:
        """Where the group stands; nothing for a group that is not there."""

    @verb(Resource.GROUP, Action.DESCRIBE, Route.LEADER, not_http="for Spark, which resumes with it")
    def done_above(self, group: str, topic: str | None = None) -> Pending[list[reports.DoneAbove]]:
        """What the group has done above its positions, where there is something."""

    @verb(Resource.GROUP, Action.READ, Route.LEADER)
    def commit(
        self,
        group: str,
        commits: Sequence[reports.PositionCommit],
        *,
        member_id: str | None = None,
        generation: int | None = None,
        allow_backwards: bool = False,
    ) -> Pending[list[reports.PositionCommit]]:
        """Commit positions, all or none; what is stored. Without `allow_backwards` a lower position is ignored."""

    @verb(Resource.GROUP, Action.ALTER, Route.LEADER)
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

    @verb(Resource.GROUP, Action.READ, Route.LEADER, frame="POLL")
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
        number: int | None = None,
    ) -> Pending[PollResult]:
        """The next messages. A poll with the number of the member's last one repeats that, whose answer was lost."""

    @verb(
        Resource.TOPIC,
        Action.READ,
        Route.LEADER,
        argument="receipts",
        not_native="native clients settle deliveries: groups.settle_batch",
        not_python="the client settles deliveries: groups.settle_batch",
    )
    def settle(
        self, receipts: Sequence[str], settlement: reports.Settlement
    ) -> Pending[list[reports.SettledMessage | GoQueueError]]:
        """Settle messages by their receipts; each has its result, in order."""

    @verb(Resource.TOPIC, Action.READ, Route.LEADER, frame="SETTLE")
    def settle_batch(
        self, topic: str, partition: int, nonce: str, offsets: Buffer, settlement: reports.Settlement
    ) -> Pending[reports.SettledBatch]:
        """Settle messages of one delivery; offsets are uint64, little-endian. None at all: all that are left."""

    @verb(Resource.CLUSTER, Action.DESCRIBE, Route.ALL_NODES)
    def reliability(self) -> Pending[reports.ReliabilityReport]: ...
    @verb(Resource.TOPIC, Action.DESCRIBE, Route.LEADER)
    def lanes(self, topic: str | None = None, group: str | None = None) -> Pending[list[reports.LaneReport]]: ...
