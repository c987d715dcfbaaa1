"""Verbs of the broker that answer with a report: topics, groups, transactions, delays, dead letters, traces.

Each method checks and converts what the application gave, calls one verb and returns its report. There is no state in
here: `AsyncClient` inherits all of it, one class per noun. `sync_admin.py` is derived from this file, and from
`schema_admin.py` and `cluster_admin.py`, which have the verbs of the schema registry and of the cluster.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any, Literal, TypeVar, Unpack

import msgspec

from goqueue.client import messages
from goqueue.client.accumulator import OutgoingMessage
from goqueue.client.connections import Connections
from goqueue.client.handles import Published
from goqueue.client.options import (
    CatchUp,
    DelayedReads,
    DelayState,
    Duration,
    Isolation,
    Time,
    TopicSettings,
    shows,
)
from goqueue.client.received import Message
from goqueue.clock import Clock
from goqueue.errors import (
    AlreadyExists,
    InvalidRequest,
    InvalidTransactionState,
    NotFound,
    ProducerError,
    TopicExists,
    TopicNotFound,
)
from goqueue.names import nearest, suggestion
from goqueue.record.header import Priority
from goqueue.record.headers import Headers
from goqueue.times import format_duration, parse_duration
from goqueue.wire import verbs
from goqueue.wire.reports import (
    BlockedKey,
    DeadLetter,
    DeadLetterFilter,
    DeadLetterQueue,
    DelayedMessage,
    DelayReport,
    DoneAbove,
    GroupInfo,
    LaneReport,
    NodeHealth,
    Position,
    PositionCommit,
    PositionReset,
    RebalanceReport,
    RecurringMessage,
    RedriveInfo,
    RedrivePlan,
    ReliabilityReport,
    ScheduleInfo,
)
from goqueue.wire.scan_reports import DueTime, HiddenRange, Piece
from goqueue.wire.trace_reports import Trace, TraceQuery, TraceStats
from goqueue.wire.transaction_reports import TransactionInfo, TransactionOutcome, TransactionOwner, TransactionStats
from goqueue.wire.verbs import Stats, TopicState, Verb

M = TypeVar("M", bound=msgspec.Struct)
T = TypeVar("T")

_DURATION_SETTINGS = frozenset(
    (
        "retention",
        "flush_interval",
        "visibility_timeout",
        "backoff_initial",
        "backoff_max",
        "ttl",
        "tombstone_retention",
    )
)
_FILTER_FIELDS = (
    "reason",
    "group",
    "key",
    "key_prefix",
    "header",
    "error_contains",
    "from_time",
    "to_time",
    "partition",
    "offsets",
    "min_attempts",
)
_NOT_REPEATABLE = frozenset(
    (
        "topics.truncate",  # -1 would delete what came meanwhile
        "transactions.begin",
        "schedules.create",
        "schedules.run",
        "dead_letters.redrive",
        "schemas.delete_version",
        "schemas.delete_subject",
        "schemas.delete_level",
        "schemas.delete_mode",
    )
)
"""Verbs that would do or answer something else the second time; all others are sent again after a lost answer."""
_decode_names = msgspec.msgpack.Decoder(list[str]).decode


class AdminCalls:
    """Calls verbs: over any connection, and again after a failure if the verb is safe to repeat."""

    _connections: Connections
    _clock: Clock

    async def _call(self, verb: str, answer_type: type[T] | None, **arguments: object) -> T:
        """The answer to a verb that has no frame of its own."""
        payload = encode_arguments(verb, arguments)

        async def attempt() -> T:
            session = await self._connections.any()
            frame = await session.ask_frame(Verb.CALL, verbs.CallRequest(verb), payload)
            return msgspec.msgpack.decode(frame.payload, type=answer_type)

        return await self._connections.retrying(attempt, only_unsent=verb in _NOT_REPEATABLE)

    async def _ask(self, verb: Verb, meta: msgspec.Struct, answer_type: type[M], *, is_repeatable: bool = True) -> M:
        async def attempt() -> M:
            session = await self._connections.any()
            return await session.ask(verb, meta, answer_type)

        return await self._connections.retrying(attempt, only_unsent=not is_repeatable)

    def _time_ns(self, value: Time, name: str) -> int:
        found = messages.asked_time_ns(value, name, self._clock.wall_ns())
        assert found is not None
        return found

    def _maybe_time_ns(self, value: Time | None, name: str) -> int | None:
        return None if value is None else self._time_ns(value, name)


class AsyncTopicAdmin(AdminCalls):
    """Topics, the node that holds them, and what a scan of a range would find."""

    @shows(TopicSettings)
    async def create_topic(
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
        asked = verbs.CreateTopicRequest(name, partitions, _settings(settings), replication_factor)
        try:
            return await self._ask(Verb.CREATE_TOPIC, asked, TopicState, is_repeatable=exist_ok)
        except TopicExists:
            if not exist_ok:
                raise
            return await self.describe_topic(name)

    async def delete_topic(self, name: str, *, missing_ok: bool = False) -> None:
        """Delete a topic with all its messages."""
        try:
            await self._ask(Verb.DELETE_TOPIC, verbs.TopicRequest(name), verbs.Empty, is_repeatable=missing_ok)
        except TopicNotFound:
            if not missing_ok:
                raise
        finally:
            self._connections.forget_topic(name)

    @shows(TopicSettings)
    async def alter_topic(
        self,
        name: str,
        changes: TopicSettings | Mapping[str, object] | None = None,
        **settings: Unpack[TopicSettings],
    ) -> TopicState:
        """Change settings of a topic; None resets one to its default."""
        asked = verbs.AlterTopicRequest(name, _settings({**(changes or {}), **settings}))
        altered = await self._ask(Verb.ALTER_TOPIC, asked, TopicState)
        self._connections.forget_topic(name)
        return altered

    async def truncate_topic(self, topic: str, *, partition: int, before_offset: int) -> int:
        """Delete the records of a partition below an offset; -1 deletes all. Returns the new first offset.

        Consumers continue at that offset. Pending delayed messages below it are deleted, too.
        """
        return await self._call("topics.truncate", int, topic=topic, partition=partition, before_offset=before_offset)

    async def topics(self, *, internal: bool = False) -> list[str]:
        """The names of all topics, sorted."""

        async def attempt() -> list[str]:
            session = await self._connections.any()
            _, names = await session.ask_for_payload(Verb.LIST_TOPICS, verbs.ListTopicsRequest(internal), verbs.Empty)
            return _decode_names(names)

        return await self._connections.retrying(attempt)

    async def describe_topic(self, name: str) -> TopicState:
        """The settings of a topic, and the first and next offset of each partition."""
        return await self._ask(Verb.DESCRIBE_TOPIC, verbs.TopicRequest(name), TopicState)

    async def offsets(self, topic: str, *, time: Time = "latest") -> list[int]:
        """By partition, the first offset at or after a time, which may be `"earliest"` or `"latest"` (the end)."""
        if time in ("earliest", "latest"):
            asked = verbs.OffsetsRequest(topic, None, str(time))
        else:
            asked = verbs.OffsetsRequest(topic, self._time_ns(time, "time"))
        return (await self._ask(Verb.OFFSETS, asked, verbs.OffsetsAnswer)).offsets

    async def health(self) -> NodeHealth:
        """The health of the broker, check by check, and the free space of its disk."""
        return await self._call("node.health", NodeHealth)

    async def stats(self) -> Stats:
        """The resources that the broker uses: processor time, memory, bytes stored."""
        return await self._ask(Verb.STATS, verbs.Empty(), Stats)

    async def scan_pieces(
        self, topic: str, partition: int, start_offset: int, end_offset: int, *, piece_bytes: int
    ) -> list[Piece]:
        """The range split into adjacent pieces of about so many bytes."""
        return await self._call(
            "scans.pieces",
            list[Piece],
            topic=topic,
            partition=partition,
            start_offset=start_offset,
            end_offset=end_offset,
            piece_bytes=piece_bytes,
        )

    async def hidden_ranges(
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
        return await self._call(
            "scans.hidden",
            list[HiddenRange],
            topic=topic,
            partition=partition,
            start_offset=start_offset,
            end_offset=end_offset,
            isolation=isolation,
            delayed=delayed,
        )

    async def rescheduled_times(self, topic: str, partition: int, start_offset: int, end_offset: int) -> list[DueTime]:
        """The messages of the range that were rescheduled, by offset: their records keep the time of the publisher."""
        return await self._call(
            "scans.rescheduled",
            list[DueTime],
            topic=topic,
            partition=partition,
            start_offset=start_offset,
            end_offset=end_offset,
        )


class AsyncGroupAdmin(AdminCalls):
    """Groups: members, positions, rebalances and lanes."""

    async def groups(self) -> list[str]:
        """The names of all groups, sorted."""
        return await self._call("groups.names", list[str])

    async def describe_group(self, group: str) -> GroupInfo:
        """A group, its members, and the partitions that each has."""
        return await self._call("groups.describe", GroupInfo, group=group)

    async def group_positions(self, group: str, *, topic: str | None = None) -> list[Position]:
        """The position of a group in each partition, and its lag."""
        return await self._call("groups.positions", list[Position], group=group, topic=topic)

    async def group_done_above(self, group: str, *, topic: str | None = None) -> list[DoneAbove]:
        """The messages above its positions that a group has already done, as above a delayed message."""
        return await self._call("groups.done_above", list[DoneAbove], group=group, topic=topic)

    async def commit_group(
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
        commits = [
            PositionCommit(
                topic=topic,
                partition=partition,
                offset=offset,
                pending=None if pending is None else list(pending.get((topic, partition), ())),
            )
            for (topic, partition), offset in positions.items()
        ]
        await self._call(
            "groups.commit", list[PositionCommit], group=group, commits=commits, allow_backwards=allow_backwards
        )

    async def reset_group(
        self,
        group: str,
        to: str | int | datetime,
        *,
        topic: str | None = None,
        partition: int | None = None,
        dry_run: bool = False,
    ) -> list[PositionReset]:
        """Move positions to `"earliest"`, `"latest"`, an offset, or a time. Leases on the partitions end."""
        arguments: dict[str, object] = {"topic": topic, "partition": partition, "dry_run": dry_run}
        if to in ("earliest", "latest"):
            arguments["strategy"] = to
        elif isinstance(to, int):
            arguments.update(strategy="offset", offset=to)
        else:
            arguments.update(strategy="timestamp", time_ns=self._time_ns(to, "timestamp"))
        return await self._call("groups.reset", list[PositionReset], group=group, **arguments)

    async def delete_group(self, group: str) -> None:
        """Remove all members and delete the positions."""
        await self._call("groups.delete", None, group=group)

    async def blocked_keys(self, group: str) -> list[BlockedKey]:
        """The keys of a key-shared group that are held back, each with the message that holds it."""
        return await self._call("groups.blocked", list[BlockedKey], group=group)

    async def rebalances(self, group: str | None = None) -> RebalanceReport:
        """The rebalances of a group, or of all groups, in numbers."""
        return await self._call("groups.rebalance_stats", RebalanceReport, group=group)

    async def reliability(self) -> ReliabilityReport:
        """What became of messages of all groups since the broker started, in numbers."""
        return await self._call("groups.reliability", ReliabilityReport)

    async def lanes(self, *, topic: str | None = None, group: str | None = None) -> list[LaneReport]:
        """The messages in each priority lane, partition by partition."""
        return await self._call("groups.lanes", list[LaneReport], topic=topic, group=group)


class AsyncTransactionAdmin(AdminCalls):
    """Transactions of other clients, and what tasks have staged."""

    async def commit_staged(
        self, owners: Iterable[TransactionOwner], *, marker: str | None = None, replaces: str | None = None
    ) -> TransactionOutcome:
        """Commit what these owners have prepared, all at once, and once per marker. The broker forgets the marker that
        it `replaces`.
        """
        given = list(owners)
        if not given:
            raise InvalidRequest("owners is empty: there is nothing to commit", path="owners")
        arguments = {"owner": given[0], "together": given[1:], "marker": marker, "replaces": replaces}
        return await self._call("transactions.commit", TransactionOutcome, **arguments)

    async def abort_staged(self, owners: Iterable[TransactionOwner]) -> None:
        """Abort what these owners have prepared. What was committed or aborted before stays as it is."""
        for owner in owners:
            with suppress(InvalidTransactionState, ProducerError):
                await self._call("transactions.abort", TransactionOutcome, owner=owner)

    async def abort_staged_job(self, job: str, *, run: str | None = None) -> int:
        """Abort everything that a run of the job has staged, or all of its runs, prepared or not; the number of
        transactions. Tasks of such a run that start later are refused.
        """
        return await self._call("transactions.abort_job", int, job=job, run=run)

    async def transactions(self) -> list[TransactionInfo]:
        """The open transactions, the oldest first."""
        return await self._call("transactions.list", list[TransactionInfo])

    async def describe_transaction(self, transaction_id: str) -> TransactionInfo:
        """One open transaction."""
        return await self._call("transactions.describe", TransactionInfo, transaction_id=transaction_id)

    async def abort_transaction(self, transaction_id: str) -> TransactionOutcome:
        """Abort the transaction of another client."""
        return await self._call("transactions.abort_by_admin", TransactionOutcome, transaction_id=transaction_id)

    async def transaction_stats(self) -> TransactionStats:
        """Transactions in numbers."""
        return await self._call("transactions.stats", TransactionStats)


class AsyncDelayAdmin(AdminCalls):
    """Delayed messages and schedules."""

    async def delayed(
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
        return await self._call(
            "delays.list",
            list[DelayedMessage],
            topic=topic,
            partition=partition,
            key=messages.key_bytes(key),
            state=state,
            skip=skip,
            limit=limit,
        )

    async def cancel(
        self, message: Published | DelayedMessage | str, *, key: bytes | str | None = None
    ) -> list[DelayedMessage]:
        """Cancel a delayed message; with a topic and a key, all pending messages with that key."""
        return await self._call("delays.cancel", list[DelayedMessage], **_which(message, key))

    async def cancel_many(self, topic: str, partition: int, offsets: Iterable[int]) -> list[DelayedMessage]:
        """Cancel these messages of one partition, except those that are not pending any more."""
        return await self._call(
            "delays.cancel", list[DelayedMessage], topic=topic, partition=partition, offsets=list(offsets)
        )

    async def reschedule(
        self,
        message: Published | DelayedMessage | str,
        *,
        key: bytes | str | None = None,
        delay: Duration | None = None,
        deliver_at: Time | None = None,
    ) -> list[DelayedMessage]:
        """Deliver a delayed message at another time; with a topic and a key, all pending messages with that key."""
        due_ns = self._due_ns(delay, deliver_at)
        return await self._call("delays.reschedule", list[DelayedMessage], deliver_at_ns=due_ns, **_which(message, key))

    async def reschedule_many(
        self,
        topic: str,
        partition: int,
        offsets: Iterable[int],
        *,
        delay: Duration | None = None,
        deliver_at: Time | None = None,
    ) -> list[DelayedMessage]:
        """Deliver these messages of one partition at another time, except those that are not pending any more."""
        return await self._call(
            "delays.reschedule",
            list[DelayedMessage],
            topic=topic,
            deliver_at_ns=self._due_ns(delay, deliver_at),
            partition=partition,
            offsets=list(offsets),
        )

    async def delayed_message(self, topic: str, offset: int, *, partition: int | None = None) -> DelayedMessage:
        """One delayed message, whatever became of it. A topic with one partition needs no `partition`."""
        return await self._call("delays.get", DelayedMessage, topic=topic, offset=offset, partition=partition)

    async def delay_stats(self) -> DelayReport:
        """Delays in numbers."""
        return await self._call("delays.stats", DelayReport)

    async def schedule(
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
        now_ns = self._clock.wall_ns()
        made = messages.message(value, key, priority, headers, now_ns=now_ns)
        try:
            return await self._call(
                "schedules.create",
                ScheduleInfo,
                topic=topic,
                name=name,
                message=_recurring(made, partition),
                cron=cron,
                every_ns=None if every is None else messages.asked_duration_ns(every, "every"),
                timezone=timezone,
                catch_up=catch_up,
                start_ns=self._maybe_time_ns(start, "start"),
                end_ns=self._maybe_time_ns(end, "end"),
                ttl_ns=None if ttl is None else messages.ttl_ns(ttl),
                paused=paused,
            )
        except AlreadyExists:
            if not exist_ok:
                raise
            return await self.describe_schedule(topic, name)

    async def schedules(self, topic: str) -> list[ScheduleInfo]:
        """The schedules of a topic."""
        return await self._call("schedules.list", list[ScheduleInfo], topic=topic)

    async def describe_schedule(self, topic: str, name: str) -> ScheduleInfo:
        """A schedule, with its last runs."""
        return await self._call("schedules.get", ScheduleInfo, topic=topic, name=name)

    async def alter_schedule(
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
        changes = {
            "cron": cron,
            "every_ns": None if every is None else messages.asked_duration_ns(every, "every"),
            "timezone": timezone,
            "catch_up": catch_up,
            "start_ns": self._maybe_time_ns(start, "start"),
            "end_ns": self._maybe_time_ns(end, "end"),
        }
        given = {field: value for field, value in changes.items() if value is not None}
        return await self._call("schedules.alter", ScheduleInfo, topic=topic, name=name, changes=given)

    async def delete_schedule(self, topic: str, name: str) -> None:
        """Delete a schedule; messages that it has published stay."""
        await self._call("schedules.delete", None, topic=topic, name=name)

    async def pause_schedule(self, topic: str, name: str) -> ScheduleInfo:
        """Publish nothing until the schedule is resumed."""
        return await self._call("schedules.pause", ScheduleInfo, topic=topic, name=name)

    async def resume_schedule(self, topic: str, name: str) -> ScheduleInfo:
        """Publish again, from the next time of the schedule on."""
        return await self._call("schedules.resume", ScheduleInfo, topic=topic, name=name)

    async def run_schedule(self, topic: str, name: str) -> ScheduleInfo:
        """Publish the message of the schedule once, now."""
        return await self._call("schedules.run", ScheduleInfo, topic=topic, name=name)

    def _due_ns(self, delay: Duration | None, deliver_at: Time | None) -> int:
        now_ns = self._clock.wall_ns()
        if delay is not None and deliver_at is None:
            return now_ns + messages.asked_delay_ns(delay)
        if deliver_at is None or delay is not None:
            raise InvalidRequest("one of delay and deliver_at is required, and not both", path="delay")
        return messages.asked_time_ns(deliver_at, "deliver_at", now_ns) or 0


class AsyncDeadLetterAdmin(AdminCalls):
    """Dead letters and redrives."""

    async def dead_letter_queues(self) -> list[DeadLetterQueue]:
        """The topics that have dead letters, each in numbers."""
        return await self._call("dead_letters.queues", list[DeadLetterQueue])

    async def describe_dead_letters(self, topic: str) -> DeadLetterQueue:
        """The dead letters of a topic, in numbers."""
        return await self._call("dead_letters.describe", DeadLetterQueue, topic=topic)

    async def dead_letters(
        self, topic: str, *, where: Mapping[str, Any] | None = None, skip: int = 0, limit: int = 100
    ) -> list[DeadLetter]:
        """The dead letters of a topic; `where` as for `redrive`."""
        wanted = self._filter(where)
        return await self._call(
            "dead_letters.list", list[DeadLetter], topic=topic, wanted=wanted, skip=skip, limit=limit
        )

    async def redrive(
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
        return await self._call(
            "dead_letters.redrive",
            RedriveInfo,
            topic=topic,
            wanted=self._filter(where),
            rate=rate,
            limit=limit,
            target_topic=target_topic,
            max_redrives=max_redrives,
            to=to,
        )

    async def plan_redrive(
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
        return await self._call(
            "dead_letters.plan",
            RedrivePlan,
            topic=topic,
            wanted=self._filter(where),
            limit=limit,
            target_topic=target_topic,
            max_redrives=max_redrives,
            to=to,
        )

    async def describe_redrive(self, topic: str, redrive_id: str) -> RedriveInfo:
        """The progress of a redrive."""
        return await self._call("dead_letters.redrive_info", RedriveInfo, topic=topic, redrive_id=redrive_id)

    async def stop_redrive(self, topic: str, redrive_id: str) -> RedriveInfo:
        """Stop a redrive; what it has redriven stays redriven."""
        return await self._call("dead_letters.stop_redrive", RedriveInfo, topic=topic, redrive_id=redrive_id)

    def _filter(self, where: Mapping[str, Any] | None) -> DeadLetterFilter:
        """The filter in the form of the wire."""
        given = dict(where or {})
        for name in given:
            if name not in _FILTER_FIELDS:
                reason = f"unknown filter {name!r}: {suggestion(str(name), _FILTER_FIELDS)}"
                raise InvalidRequest(reason, path=f"where.{name}", nearest=nearest(str(name), _FILTER_FIELDS))
        for name in ("key", "key_prefix"):
            if name in given:
                given[name] = messages.key_bytes(given[name])
        for name in ("from_time", "to_time"):
            if name in given:
                given[f"{name}_ns"] = self._time_ns(given.pop(name), name)
        if "header" in given:
            given["headers"] = given.pop("header")
        return DeadLetterFilter(**given)


class AsyncTraceAdmin(AdminCalls):
    """Traces of messages."""

    async def trace(self, which: str | Message | Published | tuple[str, int, int]) -> Trace:
        """The trace of a message, which is given by its trace id, by itself, or by where it is."""
        if isinstance(which, Message):
            which = which.trace.trace_id
        if isinstance(which, str):
            return await self._call("traces.get", Trace, trace_id=which)
        topic, partition, offset = which[:3]
        found = await self.search_traces(topic=topic, partition=partition, offset=offset, limit=1)
        if not found:
            raise NotFound(f"trace of {topic}-{partition} @ {offset}")
        return await self._call("traces.get", Trace, trace_id=found[0].trace_id)

    async def traces(self, *, limit: int = 100) -> list[Trace]:
        """The traces that changed last, newest first, without their spans."""
        return await self._call("traces.recent", list[Trace], limit=limit)

    async def search_traces(
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
        query = TraceQuery(
            topic=topic,
            partition=partition,
            group=group,
            offset=offset,
            key=messages.key_bytes(key),
            start_ns=self._maybe_time_ns(since, "since"),
            end_ns=self._maybe_time_ns(until, "until"),
            status=status,
            slower_than_ns=None if slower_than is None else messages.asked_duration_ns(slower_than, "slower_than"),
            limit=limit,
        )
        return await self._call("traces.search", list[Trace], query=query)

    async def trace_stats(self) -> TraceStats:
        """Traces in numbers."""
        return await self._call("traces.stats", TraceStats)


def _settings(given: Mapping[str, object]) -> dict[str, object]:
    """The settings in the form of the wire: durations as text."""
    settings = dict(given)
    for name, value in given.items():
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if isinstance(value, timedelta) or (name in _DURATION_SETTINGS and is_number):
            settings[name] = format_duration(parse_duration(value))  # type: ignore[arg-type]
    return settings


def _recurring(message: OutgoingMessage, partition: int | None) -> RecurringMessage:
    headers = {
        name: value.encode("utf-8", "surrogateescape") if isinstance(value, str) else value
        for name, value in (message.headers or {}).items()
    }
    return RecurringMessage(message.value, message.key, headers, partition, int(message.priority))


def _which(message: Published | DelayedMessage | str, key: bytes | str | None) -> dict[str, object]:
    """The arguments that name the delayed messages."""
    if isinstance(message, str):
        if key is None:
            raise InvalidRequest("a topic alone names no message: give the key of the messages, too", path="key")
        return {"topic": message, "key": messages.key_bytes(key)}
    return {"topic": message.topic, "partition": message.partition, "offset": message.offset}


def encode_arguments(verb: str, arguments: Mapping[str, object]) -> bytes:
    try:
        return verbs.encode(arguments)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise InvalidRequest(f"{verb}: {error}") from None
