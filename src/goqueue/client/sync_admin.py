"""Verbs of the broker that answer with a report, in their synchronous form.

Derived from admin.py, schema_admin.py and cluster_admin.py by scripts/derive-client; do not edit it by hand.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Literal, Unpack

from goqueue.client.client import AsyncClient
from goqueue.client.cluster_admin import AsyncClusterAdmin
from goqueue.client.handles import Published
from goqueue.client.loop_thread import LoopThread
from goqueue.client.messages import several
from goqueue.client.options import (
    CatchUp,
    CompatibilityLevel,
    DelayedReads,
    DelayState,
    Duration,
    Isolation,
    SchemaMode,
    SchemaPolicy,
    SchemaType,
    Time,
    TopicSettings,
    shows,
)
from goqueue.client.received import Message
from goqueue.record.header import Priority
from goqueue.record.headers import Headers
from goqueue.wire.cluster_reports import (
    ClusterHealth,
    ClusterNode,
    ClusterState,
    ElectionResult,
    FeatureLevel,
    NodeDetails,
    PartitionPlacement,
    RemovalProgress,
)
from goqueue.wire.reports import (
    BlockedKey,
    DeadLetter,
    DeadLetterQueue,
    DelayedMessage,
    DelayReport,
    DoneAbove,
    GroupInfo,
    LaneReport,
    NodeHealth,
    Position,
    PositionReset,
    RebalanceReport,
    RedriveInfo,
    RedrivePlan,
    ReliabilityReport,
    ScheduleInfo,
)
from goqueue.wire.scan_reports import DueTime, HiddenRange, Piece
from goqueue.wire.schema_reports import Compatibility, SchemaInfo, SchemaReference, SchemaStats
from goqueue.wire.trace_reports import Trace, TraceStats
from goqueue.wire.transaction_reports import TransactionInfo, TransactionOutcome, TransactionOwner, TransactionStats
from goqueue.wire.verbs import Stats, TopicState


class SyncCalls:
    """Hands calls to the event loop of the client."""

    _loop: LoopThread
    _client: AsyncClient


class SyncClusterCalls:
    """Hands calls about the cluster to the event loop of the client."""

    def __init__(self, client: AsyncClusterAdmin, loop: LoopThread) -> None:
        self._client = client
        self._loop = loop


class TopicAdmin(SyncCalls):
    """Topics, the node that holds them, and what a scan of a range would find."""

    @shows(TopicSettings)
    def create_topic(
        self,
        name: str,
        *,
        partitions: int | None = None,
        replication_factor: int | None = None,
        exist_ok: bool = False,
        **settings: Unpack[TopicSettings],
    ) -> TopicState:
        """Create a topic. Settings are keywords: `retention="7d"`, `cleanup="compact"`, `flush="interval"`.

        With `exist_ok` a topic of that name stays as it is, and is returned.
        """
        return self._loop.run(
            self._client.create_topic(
                name, partitions=partitions, replication_factor=replication_factor, exist_ok=exist_ok, **settings
            )
        )

    def delete_topic(self, name: str, *, missing_ok: bool = False) -> None:
        """Delete a topic with all its messages."""
        self._loop.run(self._client.delete_topic(name, missing_ok=missing_ok))

    @shows(TopicSettings)
    def alter_topic(
        self, name: str, changes: TopicSettings | Mapping[str, object] | None = None, **settings: Unpack[TopicSettings]
    ) -> TopicState:
        """Change settings of a topic; None resets one to its default."""
        return self._loop.run(self._client.alter_topic(name, changes, **settings))

    def truncate_topic(self, topic: str, *, partition: int, before_offset: int) -> int:
        """Delete the records of a partition below an offset; -1 deletes all. Returns the new first offset.

        Consumers continue at that offset. Pending delayed messages below it are deleted, too.
        """
        return self._loop.run(self._client.truncate_topic(topic, partition=partition, before_offset=before_offset))

    def topics(self, *, internal: bool = False) -> list[str]:
        """The names of all topics, sorted."""
        return self._loop.run(self._client.topics(internal=internal))

    def describe_topic(self, name: str) -> TopicState:
        """The settings of a topic, and the first and next offset of each partition."""
        return self._loop.run(self._client.describe_topic(name))

    def offsets(self, topic: str, *, time: Time = "latest") -> list[int]:
        """By partition, the first offset at or after a time, which may be `"earliest"` or `"latest"` (the end)."""
        return self._loop.run(self._client.offsets(topic, time=time))

    def health(self) -> NodeHealth:
        """The health of the broker, check by check, and the free space of its disk."""
        return self._loop.run(self._client.health())

    def stats(self) -> Stats:
        """The resources that the broker uses: processor time, memory, bytes stored."""
        return self._loop.run(self._client.stats())

    def scan_pieces(
        self, topic: str, partition: int, start_offset: int, end_offset: int, *, piece_bytes: int
    ) -> list[Piece]:
        """The range split into adjacent pieces of about so many bytes."""
        return self._loop.run(
            self._client.scan_pieces(topic, partition, start_offset, end_offset, piece_bytes=piece_bytes)
        )

    def hidden_ranges(
        self,
        topic: str,
        partition: int,
        start_offset: int,
        end_offset: int,
        *,
        isolation: Isolation = "read_committed",
        delayed: DelayedReads = "due",
    ) -> list[HiddenRange]:
        """The offsets that a scan of the range skips, besides control records: for readers of the log's files."""
        return self._loop.run(
            self._client.hidden_ranges(topic, partition, start_offset, end_offset, isolation=isolation, delayed=delayed)
        )

    def rescheduled_times(self, topic: str, partition: int, start_offset: int, end_offset: int) -> list[DueTime]:
        """The messages of the range that were rescheduled, by offset: their records keep the time of the publisher."""
        return self._loop.run(self._client.rescheduled_times(topic, partition, start_offset, end_offset))


class GroupAdmin(SyncCalls):
    """Groups: members, positions, rebalances and lanes."""

    def groups(self) -> list[str]:
        """The names of all groups, sorted."""
        return self._loop.run(self._client.groups())

    def describe_group(self, group: str) -> GroupInfo:
        """A group, its members, and the partitions that each has."""
        return self._loop.run(self._client.describe_group(group))

    def group_positions(self, group: str, *, topic: str | None = None) -> list[Position]:
        """The position of a group in each partition, and its lag."""
        return self._loop.run(self._client.group_positions(group, topic=topic))

    def group_done_above(self, group: str, *, topic: str | None = None) -> list[DoneAbove]:
        """The messages above its positions that a group has already done, as above a delayed message."""
        return self._loop.run(self._client.group_done_above(group, topic=topic))

    def commit_group(
        self,
        group: str,
        positions: Mapping[tuple[str, int], int],
        *,
        pending: Mapping[tuple[str, int], Sequence[tuple[int, int]]] | None = None,
        allow_backwards: bool = False,
    ) -> None:
        """Set the positions of a group that reads without members, by topic and partition.

        Delayed messages below a position that are not due yet stay pending. With `pending`, exactly these ranges
        [first, end) do, and everything else below the position is done. A position below the present one is ignored;
        with `allow_backwards` the messages from there on are delivered again.
        """
        self._loop.run(self._client.commit_group(group, positions, pending=pending, allow_backwards=allow_backwards))

    def reset_group(
        self,
        group: str,
        to: str | int | datetime,
        *,
        topic: str | None = None,
        partition: int | None = None,
        dry_run: bool = False,
    ) -> list[PositionReset]:
        """Move positions to `"earliest"`, `"latest"`, an offset, or a time. Leases on the partitions end."""
        return self._loop.run(self._client.reset_group(group, to, topic=topic, partition=partition, dry_run=dry_run))

    def delete_group(self, group: str) -> None:
        """Remove all members and delete the positions."""
        self._loop.run(self._client.delete_group(group))

    def blocked_keys(self, group: str) -> list[BlockedKey]:
        """The keys of a key-shared group that are held back, each with the message that holds it."""
        return self._loop.run(self._client.blocked_keys(group))

    def rebalances(self, group: str | None = None) -> RebalanceReport:
        """The rebalances of a group, or of all groups, in numbers."""
        return self._loop.run(self._client.rebalances(group))

    def reliability(self) -> ReliabilityReport:
        """What became of messages of all groups since the broker started, in numbers."""
        return self._loop.run(self._client.reliability())

    def lanes(self, *, topic: str | None = None, group: str | None = None) -> list[LaneReport]:
        """The messages in each priority lane, partition by partition."""
        return self._loop.run(self._client.lanes(topic=topic, group=group))


class TransactionAdmin(SyncCalls):
    """Transactions of other clients, and what tasks have staged."""

    def commit_staged(
        self, owners: Iterable[TransactionOwner], *, marker: str | None = None, replaces: str | None = None
    ) -> TransactionOutcome:
        """Commit what these owners have prepared, all at once, and once per marker. The broker forgets the marker that
        it `replaces`.
        """
        return self._loop.run(self._client.commit_staged(several(owners), marker=marker, replaces=replaces))

    def abort_staged(self, owners: Iterable[TransactionOwner]) -> None:
        """Abort what these owners have prepared. What was committed or aborted before stays as it is."""
        self._loop.run(self._client.abort_staged(several(owners)))

    def abort_staged_job(self, job: str, *, run: str | None = None) -> int:
        """Abort everything that a run of the job has staged, or all of its runs, prepared or not; the number of
        transactions. Tasks of such a run that start later are refused.
        """
        return self._loop.run(self._client.abort_staged_job(job, run=run))

    def transactions(self) -> list[TransactionInfo]:
        """The open transactions, the oldest first."""
        return self._loop.run(self._client.transactions())

    def describe_transaction(self, transaction_id: str) -> TransactionInfo:
        """One open transaction."""
        return self._loop.run(self._client.describe_transaction(transaction_id))

    def abort_transaction(self, transaction_id: str) -> TransactionOutcome:
        """Abort the transaction of another client."""
        return self._loop.run(self._client.abort_transaction(transaction_id))

    def transaction_stats(self) -> TransactionStats:
        """Transactions in numbers."""
        return self._loop.run(self._client.transaction_stats())


class DelayAdmin(SyncCalls):
    """Delayed messages and schedules."""

    def delayed(
        self,
        topic: str,
        *,
        partition: int | None = None,
        key: bytes | str | None = None,
        state: DelayState = "pending",
        skip: int = 0,
        limit: int = 100,
    ) -> list[DelayedMessage]:
        """Delayed messages by due time: those that are pending, or in another `state`."""
        return self._loop.run(
            self._client.delayed(topic, partition=partition, key=key, state=state, skip=skip, limit=limit)
        )

    def cancel(
        self, message: Published | DelayedMessage | str, *, key: bytes | str | None = None
    ) -> list[DelayedMessage]:
        """Cancel a delayed message; with a topic and a key, all pending messages with that key."""
        return self._loop.run(self._client.cancel(message, key=key))

    def cancel_many(self, topic: str, partition: int, offsets: Iterable[int]) -> list[DelayedMessage]:
        """Cancel these messages of one partition, except those that are not pending any more."""
        return self._loop.run(self._client.cancel_many(topic, partition, several(offsets)))

    def reschedule(
        self,
        message: Published | DelayedMessage | str,
        *,
        key: bytes | str | None = None,
        delay: Duration | None = None,
        deliver_at: Time | None = None,
    ) -> list[DelayedMessage]:
        """Deliver a delayed message at another time; with a topic and a key, all pending messages with that key."""
        return self._loop.run(self._client.reschedule(message, key=key, delay=delay, deliver_at=deliver_at))

    def reschedule_many(
        self,
        topic: str,
        partition: int,
        offsets: Iterable[int],
        *,
        delay: Duration | None = None,
        deliver_at: Time | None = None,
    ) -> list[DelayedMessage]:
        """Deliver these messages of one partition at another time, except those that are not pending any more."""
        return self._loop.run(
            self._client.reschedule_many(topic, partition, several(offsets), delay=delay, deliver_at=deliver_at)
        )

    def delayed_message(self, topic: str, offset: int, *, partition: int | None = None) -> DelayedMessage:
        """One delayed message, whatever became of it. A topic with one partition needs no `partition`."""
        return self._loop.run(self._client.delayed_message(topic, offset, partition=partition))

    def delay_stats(self) -> DelayReport:
        """Delays in numbers."""
        return self._loop.run(self._client.delay_stats())

    def schedule(
        self,
        topic: str,
        value: Any,
        *,
        name: str,
        cron: str | None = None,
        every: Duration | None = None,
        timezone: str = "UTC",
        catch_up: CatchUp = "skip",
        start: Time | None = None,
        end: Time | None = None,
        paused: bool = False,
        key: bytes | str | None = None,
        partition: int | None = None,
        priority: Priority | int | str | None = None,
        headers: Headers | None = None,
        ttl: Duration | None = None,
        exist_ok: bool = False,
    ) -> ScheduleInfo:
        """Publish a message on a schedule: `cron="0 9 * * MON-FRI"`, or `every="15m"`.

        With `exist_ok` a schedule of that name stays as it is, and is returned.
        """
        return self._loop.run(
            self._client.schedule(
                topic,
                value,
                name=name,
                cron=cron,
                every=every,
                timezone=timezone,
                catch_up=catch_up,
                start=start,
                end=end,
                paused=paused,
                key=key,
                partition=partition,
                priority=priority,
                headers=headers,
                ttl=ttl,
                exist_ok=exist_ok,
            )
        )

    def schedules(self, topic: str) -> list[ScheduleInfo]:
        """The schedules of a topic."""
        return self._loop.run(self._client.schedules(topic))

    def describe_schedule(self, topic: str, name: str) -> ScheduleInfo:
        """A schedule, with its last runs."""
        return self._loop.run(self._client.describe_schedule(topic, name))

    def alter_schedule(
        self,
        topic: str,
        name: str,
        *,
        cron: str | None = None,
        every: Duration | None = None,
        timezone: str | None = None,
        catch_up: CatchUp | None = None,
        start: Time | None = None,
        end: Time | None = None,
    ) -> ScheduleInfo:
        """Change when a schedule publishes; what is None stays. New times count from now on."""
        return self._loop.run(
            self._client.alter_schedule(
                topic, name, cron=cron, every=every, timezone=timezone, catch_up=catch_up, start=start, end=end
            )
        )

    def delete_schedule(self, topic: str, name: str) -> None:
        """Delete a schedule; messages that it has published stay."""
        self._loop.run(self._client.delete_schedule(topic, name))

    def pause_schedule(self, topic: str, name: str) -> ScheduleInfo:
        """Publish nothing until the schedule is resumed."""
        return self._loop.run(self._client.pause_schedule(topic, name))

    def resume_schedule(self, topic: str, name: str) -> ScheduleInfo:
        """Publish again, from the next time of the schedule on."""
        return self._loop.run(self._client.resume_schedule(topic, name))

    def run_schedule(self, topic: str, name: str) -> ScheduleInfo:
        """Publish the message of the schedule once, now."""
        return self._loop.run(self._client.run_schedule(topic, name))


class DeadLetterAdmin(SyncCalls):
    """Dead letters and redrives."""

    def dead_letter_queues(self) -> list[DeadLetterQueue]:
        """The topics that have dead letters, each in numbers."""
        return self._loop.run(self._client.dead_letter_queues())

    def describe_dead_letters(self, topic: str) -> DeadLetterQueue:
        """The dead letters of a topic, in numbers."""
        return self._loop.run(self._client.describe_dead_letters(topic))

    def dead_letters(
        self, topic: str, *, where: Mapping[str, Any] | None = None, skip: int = 0, limit: int = 100
    ) -> list[DeadLetter]:
        """The dead letters of a topic; `where` as for `redrive`."""
        return self._loop.run(self._client.dead_letters(topic, where=where, skip=skip, limit=limit))

    def redrive(
        self,
        topic: str,
        *,
        where: Mapping[str, Any] | None = None,
        rate: float = 0,
        limit: int = 0,
        target_topic: str | None = None,
        max_redrives: int = 3,
        to: Literal["group", "all"] | None = None,
    ) -> RedriveInfo:
        """Redrive dead letters: `where={"reason": "TIMEOUT", "group": "billing", "key_prefix": "eu-"}`.

        Each is delivered only to the group that dead-lettered it; with `to="all"`, to all groups. That is the default
        if `target_topic` is another topic, whose groups have not seen the messages.
        """
        return self._loop.run(
            self._client.redrive(
                topic, where=where, rate=rate, limit=limit, target_topic=target_topic, max_redrives=max_redrives, to=to
            )
        )

    def plan_redrive(
        self,
        topic: str,
        *,
        where: Mapping[str, Any] | None = None,
        limit: int = 0,
        target_topic: str | None = None,
        max_redrives: int = 3,
        to: Literal["group", "all"] | None = None,
    ) -> RedrivePlan:
        """What `redrive` would do."""
        return self._loop.run(
            self._client.plan_redrive(
                topic, where=where, limit=limit, target_topic=target_topic, max_redrives=max_redrives, to=to
            )
        )

    def describe_redrive(self, topic: str, redrive_id: str) -> RedriveInfo:
        """The progress of a redrive."""
        return self._loop.run(self._client.describe_redrive(topic, redrive_id))

    def stop_redrive(self, topic: str, redrive_id: str) -> RedriveInfo:
        """Stop a redrive; what it has redriven stays redriven."""
        return self._loop.run(self._client.stop_redrive(topic, redrive_id))


class TraceAdmin(SyncCalls):
    """Traces of messages."""

    def trace(self, which: str | Message | Published | tuple[str, int, int]) -> Trace:
        """The trace of a message, which is given by its trace id, by itself, or by where it is."""
        return self._loop.run(self._client.trace(which))

    def traces(self, *, limit: int = 100) -> list[Trace]:
        """The traces that changed last, newest first, without their spans."""
        return self._loop.run(self._client.traces(limit=limit))

    def search_traces(
        self,
        *,
        topic: str | None = None,
        partition: int | None = None,
        group: str | None = None,
        offset: int | None = None,
        key: bytes | str | None = None,
        since: Time | None = None,
        until: Time | None = None,
        status: str | None = None,
        slower_than: Duration | None = None,
        limit: int = 100,
    ) -> list[Trace]:
        """The traces that match all that is given, newest first; `status` matches the status or the outcome."""
        return self._loop.run(
            self._client.search_traces(
                topic=topic,
                partition=partition,
                group=group,
                offset=offset,
                key=key,
                since=since,
                until=until,
                status=status,
                slower_than=slower_than,
                limit=limit,
            )
        )

    def trace_stats(self) -> TraceStats:
        """Traces in numbers."""
        return self._loop.run(self._client.trace_stats())


class SchemaAdmin(SyncCalls):
    """The schema registry."""

    def register_schema(
        self,
        subject: str,
        schema: str | Mapping[str, Any],
        *,
        type: SchemaType | None = None,
        references: Iterable[SchemaReference | tuple[str, str, int]] = (),
        normalize: bool = False,
    ) -> SchemaInfo:
        """Register the schema as the newest version of the subject; a schema that the subject has keeps its version.

        Without a `type`, a schema that parses as Avro is Avro, and any other is JSON Schema. A reference is
        (name, subject, version).
        """
        return self._loop.run(
            self._client.register_schema(
                subject, schema, type=type, references=several(references), normalize=normalize
            )
        )

    def schema(
        self, id: int | None = None, *, subject: str | None = None, version: int | str = "latest", deleted: bool = False
    ) -> SchemaInfo:
        """A schema by its id, or a version of a subject; with `deleted`, also one that was deleted."""
        return self._loop.run(self._client.schema(id, subject=subject, version=version, deleted=deleted))

    def lookup_schema(
        self,
        subject: str,
        schema: str | Mapping[str, Any],
        *,
        type: SchemaType | None = None,
        references: Iterable[SchemaReference | tuple[str, str, int]] = (),
        normalize: bool = False,
        deleted: bool = False,
    ) -> SchemaInfo:
        """The version of the subject that has this schema."""
        return self._loop.run(
            self._client.lookup_schema(
                subject, schema, type=type, references=several(references), normalize=normalize, deleted=deleted
            )
        )

    def subjects(self, prefix: str = "", *, deleted: bool = False) -> list[str]:
        """The names of the subjects, sorted; with `deleted`, also of those that were deleted."""
        return self._loop.run(self._client.subjects(prefix, deleted=deleted))

    def schema_versions(self, subject: str, *, deleted: bool = False) -> list[int]:
        """The versions of a subject; with `deleted`, also those that were deleted."""
        return self._loop.run(self._client.schema_versions(subject, deleted=deleted))

    def check_schema(
        self,
        subject: str,
        schema: str | Mapping[str, Any],
        *,
        type: SchemaType | None = None,
        references: Iterable[SchemaReference | tuple[str, str, int]] = (),
        version: int | str | None = None,
        normalize: bool = False,
    ) -> Compatibility:
        """Whether the schema is compatible, and each reason why not; with `version`, compared to that one alone."""
        return self._loop.run(
            self._client.check_schema(
                subject, schema, type=type, references=several(references), version=version, normalize=normalize
            )
        )

    def delete_schema(self, subject: str, version: int | str | None = None, *, permanent: bool = False) -> list[int]:
        """Delete a version, or all of them; with `permanent`, erase what was deleted before. Returns the versions."""
        return self._loop.run(self._client.delete_schema(subject, version, permanent=permanent))

    def schema_config(self, subject: str | None = None) -> str:
        """The compatibility level of a subject: its own, or else the global one."""
        return self._loop.run(self._client.schema_config(subject))

    def set_schema_config(self, subject: str | None, level: CompatibilityLevel | None) -> str:
        """Set the compatibility level of a subject, or the global one; None resets it and returns the old one."""
        return self._loop.run(self._client.set_schema_config(subject, level))

    def schema_policy(self, subject: str | None = None) -> str:
        """How strictly JSON Schemas of a subject are compared, STRICT or LENIENT: its own policy, or the global one."""
        return self._loop.run(self._client.schema_policy(subject))

    def set_schema_policy(self, subject: str | None, policy: SchemaPolicy | None) -> None:
        """Set the compatibility policy of a subject, or the global one; None resets it."""
        self._loop.run(self._client.set_schema_policy(subject, policy))

    def schema_mode(self, subject: str | None = None) -> str:
        """READWRITE, READONLY or IMPORT: the subject's own mode, or else the global one."""
        return self._loop.run(self._client.schema_mode(subject))

    def set_schema_mode(self, subject: str | None, mode: SchemaMode | None, *, force: bool = False) -> str:
        """Set the mode of a subject, or the global one; None resets it and returns the old one."""
        return self._loop.run(self._client.set_schema_mode(subject, mode, force=force))

    def validate(self, topic: str, values: Iterable[Any]) -> list[str | None]:
        """Why each value would be refused if it were published to the topic; None for a valid one."""
        return self._loop.run(self._client.validate(topic, several(values)))

    def schema_stats(self) -> SchemaStats:
        """The registry in numbers."""
        return self._loop.run(self._client.schema_stats())


class ClusterAdmin(SyncClusterCalls):
    """The cluster. Any node answers, as it has applied the metadata; a broker that is alone answers with itself."""

    def state(self) -> ClusterState:
        """The nodes, the controller and the metadata log."""
        return self._loop.run(self._client.state())

    def health(self) -> ClusterHealth:
        """Whether all nodes are online, and all partitions have a leader and all replicas in sync."""
        return self._loop.run(self._client.health())

    def nodes(self) -> list[ClusterNode]:
        """The registered nodes by id."""
        return self._loop.run(self._client.nodes())

    def node(self, id: int) -> NodeDetails:
        """One node, and its partitions. Only the node itself knows its disk, its uptime and what it has quarantined."""
        return self._loop.run(self._client.node(id))

    def partitions(self, topic: str | None = None) -> list[PartitionPlacement]:
        """The leader and the replicas of each partition of a topic, or of all topics, internal ones included."""
        return self._loop.run(self._client.partitions(topic))

    def metadata(self) -> str:
        """The metadata that the node has applied, as lines of text: nodes with equal positions have equal texts."""
        return self._loop.run(self._client.metadata())

    def elect_leaders(
        self,
        topic: str | None = None,
        *,
        partitions: Iterable[int] | None = None,
        unclean: bool = False,
        replica: int | None = None,
    ) -> list[ElectionResult]:
        """Let preferred replicas lead again, of some partitions, of a topic or of all topics.

        With `unclean` a replica that is not in sync leads where there is no leader: the `replica`, or any that is
        online. Records that only the others have are lost.
        """
        return self._loop.run(
            self._client.elect_leaders(
                topic, partitions=None if partitions is None else several(partitions), unclean=unclean, replica=replica
            )
        )

    def remove_node(self, id: int) -> RemovalProgress:
        """Move all replicas away from a node, then remove it. Repeat it until no partition is left."""
        return self._loop.run(self._client.remove_node(id))

    def feature_level(self) -> FeatureLevel:
        """The feature level of the metadata, and the highest that all nodes know."""
        return self._loop.run(self._client.feature_level())

    def set_feature_level(self, level: int) -> FeatureLevel:
        """Let the cluster use what this level brings. There is no way back."""
        return self._loop.run(self._client.set_feature_level(level))
