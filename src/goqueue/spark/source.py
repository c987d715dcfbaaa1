"""Topics as tables and streams: the readers that Spark calls, in the driver and in the tasks.

Both readers turn offsets into tasks with `plan.py` and read them in the same way; they differ in where the start and
the end come from. No constructor connects to a broker: Spark makes readers at any time, and pickles them.

The only state of a stream is its positions, in the checkpoint of its query. When Spark asks for the latest offset, all
offsets before the start that it passes are done; then they are committed to the group. So `goqueue group describe`
shows the lag of a query as of its last micro-batch.

With `delayed=due` a stream leaves out messages that are not due when a micro-batch is planned, and keeps their offsets
in its positions as pending. The first micro-batch that is planned after a message is due reads it.

In a stream one task reads all of a partition, in the order of the log, unless `minPartitions` or
`maxBytesPerPartition` requires more tasks.
"""

import gc
import logging
import os
from array import array
from collections.abc import Generator, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

from pyspark.sql.datasource import (
    DataSourceReader,
    DataSourceStreamReader,
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from goqueue.clock import SystemClock
from goqueue.errors import AvailabilityError, CorruptRecord, GoQueueError, InvalidConfig, OffsetOutOfRange, TopicError
from goqueue.names import TopicPartition
from goqueue.record import kernel
from goqueue.record.header import Buffer
from goqueue.record.message import Undecodable, decode_messages
from goqueue.runtime.memory import retain_freed_memory
from goqueue.spark.columns import BatchMaker, TypedValues, spark_schema
from goqueue.spark.files import DamagedSegment, read_files, sealed_end, why_not_here
from goqueue.spark.link import Link, readable_errors
from goqueue.spark.options import (
    DelayedMessages,
    Edge,
    HeadersFormat,
    Place,
    ReadFrom,
    SourceOptions,
    Timestamp,
    TopicOffsets,
)
from goqueue.spark.plan import (
    TASK_BYTES_MAX,
    Condition,
    DataLost,
    Loss,
    OffsetRange,
    Positions,
    Sized,
    World,
    advanced,
    at_least,
    backlog,
    between,
    clipped,
    committed,
    cut,
    damaged,
    ends,
    ends_early,
    estimated_bytes,
    from_json,
    latest_of,
    limit_bytes,
    limit_offsets,
    matured,
    narrowed,
    pack,
    passed,
    pending_before,
    piece_bytes,
    replaced,
    resolved,
    skipped,
    task_count,
    time_bounds,
    to_json,
    window,
)
from goqueue.spark.spans import Spans, union, within
from goqueue.wire.scan_reports import HiddenRange

logger = logging.getLogger(__name__)

_OPERATORS: dict[type[Filter], str] = {
    EqualTo: "=",
    EqualNullSafe: "=",
    In: "in",
    GreaterThan: ">",
    GreaterThanOrEqual: ">=",
    LessThan: "<",
    LessThanOrEqual: "<=",
}


@cache
def _settle_in() -> None:
    """Prepare this worker for many short tasks.

    Spark runs `gc.collect()` after every task, which walks all imported modules and takes longer than many a task.
    Frozen objects are not walked. Freed memory is kept, since the next batch needs as much.
    """
    gc.freeze()
    retain_freed_memory()


class PlannedRange(NamedTuple):
    """A range that a task reads, without `hidden`: offsets that were not due when it was planned, or are done."""

    range: OffsetRange
    topic_id: str
    hidden: tuple[tuple[int, int], ...] = ()


class Ranges(InputPartition):
    """The ranges that one task reads, and the parser of values, if there is one."""

    def __init__(self, ranges: Sequence[PlannedRange], parser: TypedValues | None) -> None:
        super().__init__(tuple(ranges))
        self.parser = parser


@cache
def _warn_of_directory(data_dir: str, reason: str) -> None:
    """Warn once per process: reading from the broker is correct, only slower."""
    logger.warning("dataDir=%s: %s; reading from the broker instead", data_dir, reason)


def link_of(options: SourceOptions) -> Link:
    """The link to the broker that the options name."""
    return Link(options.server, options.api_key)


def columns_of(options: SourceOptions) -> tuple[StructType, TypedValues | None]:
    """The columns that the options select, and the parser of values; only `registry` needs a request to the broker."""
    parser = parser_of(options)
    fields = None if parser is None else parser.fields
    schema = spark_schema(
        options.columns,
        include_headers=options.include_headers,
        has_header_map=options.headers_format is HeadersFormat.MAP,
        value_fields=fields,
    )
    return schema, parser


def parser_of(options: SourceOptions) -> TypedValues | None:
    """The parser of values; None without the option `valueSchema`."""
    if options.value_schema is None:
        return None
    from goqueue.spark.values import value_parser

    link = link_of(options)
    is_registered = options.value_schema.lower() == "registry"
    topics = sorted(link.world(options)) if is_registered else ()
    return value_parser(options.value_schema, client=link.reach() if is_registered else None, topics=topics)


class _Reading:
    """The common part of both readers: plan tasks, and read them."""

    def __init__(self, options: SourceOptions, schema: StructType, parser: TypedValues | None = None) -> None:
        self._options = options
        self._schema = schema
        self._parser = parser  # None until it is needed
        self._link = link_of(options)
        self._logged: set[Loss] = set()

    # --- in the driver -------------------------------------------------------------------------

    def _checked_parser(self) -> TypedValues | None:
        """The parser of values. Raises `InvalidConfig` if the schema has columns that the source does not have."""
        self._parser = parser = self._parser or parser_of(self._options)
        fields = None if parser is None else parser.fields
        is_map = self._options.headers_format is HeadersFormat.MAP
        every = spark_schema(include_headers=True, has_header_map=is_map, value_fields=fields)
        known = {field.name: field.dataType for field in every}
        for field in self._schema:
            if field.name not in known:
                raise InvalidConfig("schema", field.name, f"must be of {', '.join(known)}")
            if field.dataType != known[field.name]:
                reason = f"must be {known[field.name].simpleString()}"
                raise InvalidConfig("schema", f"{field.name} {field.dataType.simpleString()}", reason)
        return parser

    def _resolve(self, world: World, place: Place, option: str) -> Positions:
        at_time = None
        if isinstance(place, Timestamp):
            at_time = self._link.offsets_at(world, place.ns(now_ns=SystemClock().wall_ns()))
        return resolved(world, place, option=option, at_time=at_time)

    def _start(self, world: World, default: Edge) -> Positions:
        options = self._options
        if options.start is not None:
            return self._resolve(world, options.start, "startingOffsets")
        if options.group is not None:
            done = self._link.group_done(options.group)
            return committed(world, self._link.group_positions(options.group), default, done)
        return resolved(world, default, option="startingOffsets")

    def _tasks(
        self, ranges: Sequence[OffsetRange], world: World, *, may_cut: bool, skips: Mapping[TopicPartition, Spans]
    ) -> list[InputPartition]:
        parser = self._checked_parser()
        sized = [Sized(one, estimated_bytes(one, world[one.topic].partitions[one.partition])) for one in ranges]
        total = sum(size for _, size in sized)
        count = task_count(
            total,
            parallelism=len(os.sched_getaffinity(0)),
            max_bytes=self._options.max_bytes_per_partition or TASK_BYTES_MAX,
            min_count=self._options.min_partitions or 1,
        )
        if may_cut and count > 1:
            fine = piece_bytes(total, count)
            sized = [
                part
                for one, size in sized
                for part in (cut(one, self._link.pieces(one, fine)) if size > fine else [Sized(one, size)])
            ]
            sized = at_least(sized, self._options.min_partitions or 1)
        return [Ranges([self._planned(one, world, skips) for one in task], parser) for task in pack(sized, count)]

    def _planned(self, one: OffsetRange, world: World, skips: Mapping[TopicPartition, Spans]) -> PlannedRange:
        hidden = within(((one.start, one.end),), skips.get(TopicPartition(one.topic, one.partition), ()))
        return PlannedRange(one, world[one.topic].topic_id, union(hidden, self._not_due(one)))

    def _not_due(self, one: OffsetRange) -> Spans:
        """The offsets of the range that are left out because they are not due."""
        if self._options.delayed is DelayedMessages.INCLUDE:
            return ()
        found = self._link.hidden(one, self._options.isolation, DelayedMessages.DUE)
        return tuple((each.first_offset, each.end_offset) for each in found)

    def _lost(self, losses: Sequence[Loss]) -> None:
        """Raise `DataLost`, or with failOnDataLoss=false log each loss once."""
        if losses and self._options.fail_on_data_loss:
            raise DataLost(losses)
        for loss in losses:
            if loss not in self._logged:
                self._logged.add(loss)
                logger.warning("data lost: %s", loss.reason)

    # --- in the tasks --------------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """The records of the ranges, as Arrow batches."""
        _settle_in()
        with readable_errors():
            if isinstance(partition, Ranges):  # Spark passes one of its own if there is nothing to read
                for planned in partition.value:
                    yield from self._batches(planned, partition.parser)

    def _batches(self, planned: PlannedRange, parser: TypedValues | None) -> Iterator[Any]:
        wanted = to_arrow_schema(self._schema, timezone="UTC")
        topic, partition, _, _ = planned.range
        registry = None if parser is None else self._link.client
        is_map = self._options.headers_format is HeadersFormat.MAP
        names = self._schema.fieldNames()
        maker = BatchMaker(
            topic,
            partition,
            names,
            value=parser,
            registry=registry,
            has_header_map=is_map,
            rescheduled=lambda: self._link.rescheduled(planned.range),
        )
        is_same = maker.schema.equals(wanted)
        for records, flags in self._records(planned, maker.unused_parts):
            for batch in self._decoded(maker, TopicPartition(topic, partition), records, flags):
                yield batch if is_same else type(batch).from_arrays(batch.columns, schema=wanted)

    def _decoded(self, maker: BatchMaker, origin: TopicPartition, records: Buffer, flags: int) -> Iterator[Any]:
        """The batches of the records. With failOnDataLoss=false, records whose values cannot be decompressed are
        skipped; the check of every record runs only after one has failed.
        """
        row_count = 0
        try:
            for batch in maker.batches(records, flags):
                yield batch
                row_count += batch.num_rows
        except CorruptRecord:
            undecodable: list[Undecodable] = []
            decode_messages(records, origin, flags=flags, undecodable=undecodable)
            if not undecodable or self._options.fail_on_data_loss:
                raise
            self._lost([damaged(*origin, one.offset, one.offset + 1, one.reason) for one in undecodable])
            # the rows that were yielded before the failure must not come twice
            first = memoryview(kernel.scan(records, positions=True).positions).cast("I")[row_count]
            hidden = array("q", (offset for one in undecodable for offset in (one.offset, one.offset + 1))).tobytes()
            yield from maker.batches(kernel.filter(memoryview(records)[first:], hidden=hidden), flags)

    def _records(self, planned: PlannedRange, without: Sequence[str]) -> Iterator[tuple[Buffer, int]]:
        """Encoded records, some parts of which may be left out, and the union of their flags. Missing offsets are
        reported by `_lost`, never skipped silently.
        """
        place = planned.range.start
        if self._options.read_from is ReadFrom.FILES:
            place = yield from self._from_files(planned)
        yield from self._from_broker(planned, place, without)

    def _from_files(self, planned: PlannedRange) -> Generator[tuple[Buffer, int], None, int]:
        """The records in sealed segments; returns the first offset to read from the broker."""
        assert self._options.data_dir is not None
        (topic, partition, start, end), topic_id, _ = planned
        reason = why_not_here(self._options.data_dir, topic, topic_id)
        if reason:
            _warn_of_directory(self._options.data_dir, reason)
            return start
        sealed = min(end, sealed_end(self._options.data_dir, topic, partition, topic_id=topic_id))
        if sealed <= start:
            return start
        never = self._link.hidden(planned.range, self._options.isolation, DelayedMessages.INCLUDE)
        both = union(planned.hidden, ((each.first_offset, each.end_offset) for each in never))
        hidden = [HiddenRange(first_offset=first, end_offset=end) for first, end in both]
        try:
            yield from read_files(
                self._options.data_dir, topic, partition, start, sealed, hidden=hidden, topic_id=topic_id
            )
        except OffsetOutOfRange as error:  # retention removed the segment; the broker reports the loss
            return error.offset
        except DamagedSegment as error:  # the broker reports the lost offsets, and continues after them
            return error.offset
        return sealed

    def _from_broker(self, planned: PlannedRange, place: int, without: Sequence[str]) -> Iterator[tuple[Buffer, int]]:
        one = planned.range._replace(start=place)
        hidden = array("q", (offset for each in planned.hidden for offset in each)).tobytes()
        failure: TopicError | OffsetOutOfRange | None = None
        try:
            for part in self._link.scan(one, self._options.isolation, DelayedMessages.INCLUDE, without=without):
                if part.log_start_offset > part.start_offset:
                    self._lost([passed(one._replace(start=part.start_offset), part.log_start_offset)])
                if part.gaps:
                    self._lost(
                        [
                            damaged(one.topic, one.partition, gap.first_offset, gap.next_offset, gap.reason)
                            for gap in part.gaps
                        ]
                    )
                place = part.next_offset
                records = kernel.filter(part.records, hidden=hidden) if hidden else part.records
                if len(records):
                    yield records, part.flags
        except (TopicError, OffsetOutOfRange) as error:
            failure = error
        # after the read: a topic that was deleted and created again may have answered for the old one
        now = self._link.bounds(one.topic, self._options.isolation)
        if now is None or now.topic_id != planned.topic_id:
            self._lost([replaced(one.topic, now)])
        elif isinstance(failure, TopicError):
            raise failure
        elif place < one.end:
            self._lost([ends_early(one, place if failure is None else failure.end)])


class GoQueueReader(_Reading, DataSourceReader):
    """Reads fixed ranges of topics: a batch read."""

    def __init__(self, options: SourceOptions, schema: StructType, parser: TypedValues | None = None) -> None:
        super().__init__(options, schema, parser)
        options.check_batch()
        self._conditions: list[Condition] = []

    def partitions(self) -> list[InputPartition]:
        """The tasks, planned now: messages published later are not read."""
        _settle_in()
        with readable_errors():
            world = self._link.world(self._options)
            start, end = self._start(world, Edge.EARLIEST), self._end(world)
            start, end = pending_before(start, end), self._not_before(start, end)
            judged = between(start, end, world)
            self._lost(judged.losses)
            return self._tasks(self._narrowed(judged.ranges), world, may_cut=True, skips=skipped(start, end))

    def _end(self, world: World) -> Positions:
        return self._resolve(world, self._options.end or Edge.LATEST, "endingOffsets")

    def _not_before(self, start: Positions, end: Positions) -> Positions:
        """The end, but not before the start: a reader that has passed the end has nothing to read."""
        if isinstance(self._options.start, TopicOffsets):
            return end  # offsets that the user gave: `between` reports a start after the end
        return latest_of(start, end)

    def _narrowed(self, ranges: Sequence[OffsetRange]) -> list[OffsetRange]:
        found = narrowed(ranges, self._conditions)
        start_ns, end_ns = time_bounds(self._conditions)
        topics = {one.topic for one in found}
        return clipped(
            found,
            starts=None if start_ns is None else self._link.offsets_at(topics, start_ns),
            ends=None if end_ns is None else self._link.offsets_at(topics, end_ns),
        )


class PushdownReader(GoQueueReader):
    """A batch reader for a session in which Spark pushes filters to sources."""

    def pushFilters(self, filters: list[Filter]) -> list[Filter]:  # noqa: N802
        """Keep the filters that narrow the ranges. All are returned: Spark still has to apply them."""
        self._conditions = [
            Condition(found.attribute[0], _OPERATORS[type(found)], found.value)  # type: ignore[attr-defined]
            for found in filters
            if type(found) in _OPERATORS and len(found.attribute) == 1  # type: ignore[attr-defined]
        ]
        return filters


class GoQueueStreamReader(_Reading, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads topics for as long as the query runs."""

    def __init__(self, options: SourceOptions, schema: StructType, parser: TypedValues | None = None) -> None:
        super().__init__(options, schema, parser)
        self._target: Positions | None = None
        self._latest: Positions | None = None
        self._told: Positions | None = None
        self._turn = 0

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """The start of a query without a checkpoint."""
        with readable_errors():
            self._options.check_stream()
            return to_json(self._start(self._link.world(self._options), Edge.LATEST))

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """The end of the next micro-batch; equal to the start if there is nothing new."""
        with readable_errors():
            self._options.check_stream()
            positions = from_json(start)
            world = self._link.world(self._options, missing_ok=True)
            self._tell_group(positions, world)
            judged = backlog(positions, world, target=self._target)
            self._lost(judged.losses)
            self._latest = advanced(positions, judged.ranges, world)
            end = advanced(positions, self._admitted(judged.ranges, world, limit), world)
            return to_json(matured(positions, end, self._waiting(positions, end), limit=self._limit_of(limit)))

    def _waiting(self, start: Positions, end: Positions) -> dict[TopicPartition, Spans]:
        """The pending and new offsets that are not due; none with `delayed=include`."""
        found: dict[TopicPartition, Spans] = {}
        if self._options.delayed is DelayedMessages.INCLUDE:
            return found
        for topic, known in end.items():
            begin = start.get(topic)
            is_same = begin is not None and begin.topic_id == known.topic_id
            for partition, last in known.offsets.items():
                first = begin.offsets.get(partition, 0) if begin is not None and is_same else 0
                pending = known.pending.get(partition, ()) if is_same else ()
                if pending:
                    first = pending[0][0]
                if first < last:
                    one = OffsetRange(topic, partition, first, last)
                    found[TopicPartition(topic, partition)] = self._link.waiting(one, self._options.isolation)
        return found

    def _not_due(self, one: OffsetRange) -> Spans:
        return ()  # the positions have what is left out, so that a repeated micro-batch reads the same

    def _limit_of(self, limit: ReadLimit) -> int | None:
        """The most pending messages per micro-batch."""
        return None if isinstance(limit, ReadAllAvailable) else self._options.max_offsets_per_trigger

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """The limit of one micro-batch that the options set."""
        if self._options.max_offsets_per_trigger is not None:
            return ReadMaxRows(self._options.max_offsets_per_trigger)
        if self._options.max_bytes_per_trigger is not None:
            return ReadMaxBytes(self._options.max_bytes_per_trigger)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Fix the end of the query: messages published later are not read."""
        with readable_errors():
            self._target = ends(self._link.world(self._options, missing_ok=True))

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """The end of the topics at the last call of `latestOffset`."""
        return None if self._latest is None else to_json(self._latest)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """The tasks of one micro-batch."""
        with readable_errors():
            world = self._link.world(self._options, missing_ok=True)
            first, last = from_json(start), from_json(end)
            judged = between(first, last, world)
            self._lost(judged.losses)
            options = self._options
            may_cut = options.min_partitions is not None or options.max_bytes_per_partition is not None
            return self._tasks(judged.ranges, world, may_cut=may_cut, skips=skipped(first, last))

    def stop(self) -> None:
        """Close the connection of this process to the broker."""
        self._link.close()

    def _admitted(self, ahead: Sequence[OffsetRange], world: World, limit: ReadLimit) -> Sequence[OffsetRange]:
        """The part of the backlog that one micro-batch reads. Spark passes one limit, but both options hold."""
        if isinstance(limit, ReadAllAvailable) or not ahead:
            return ahead
        self._turn += 1
        max_offsets, max_bytes = self._options.max_offsets_per_trigger, self._options.max_bytes_per_trigger
        if isinstance(limit, ReadMaxRows):
            max_offsets = min(limit.max_rows, max_offsets or limit.max_rows)
        if isinstance(limit, ReadMaxBytes):
            max_bytes = min(limit.max_bytes, max_bytes or limit.max_bytes)
        if max_offsets is not None:
            ahead = limit_offsets(ahead, max_offsets, turn=self._turn)
        if max_bytes is not None:
            ahead = [
                window(one, world[one.topic].partitions[one.partition], max_bytes)
                for one in ahead
                if one.start < one.end
            ]
            fine = piece_bytes(max_bytes, len(ahead))
            pieces = [self._link.pieces(one, fine) for one in ahead]
            ahead = limit_bytes(ahead, pieces, max_bytes, turn=self._turn)
        return ahead

    def _tell_group(self, positions: Positions, world: World) -> None:
        """Commit progress to the group, unless it is committed; if the broker is unavailable, the next call does."""
        if self._options.group is None or positions == self._told:
            return
        try:
            self._link.commit(self._options.group, positions, world)
        except AvailabilityError as error:
            logger.warning("group=%s: the positions were not committed: %s", self._options.group, error)
        else:
            self._told = positions


class RefusedStream(DataSourceStreamReader):
    """Raises the error of a reader that cannot be made: Spark loses an error that is raised where it asks for one."""

    def __init__(self, error: GoQueueError) -> None:
        self._error = error

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Raise the reason."""
        with readable_errors():
            raise self._error

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Raise the reason."""
        return self.initialOffset()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Raise the reason."""
        with readable_errors():
            raise self._error

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Raise the reason."""
        with readable_errors():
            raise self._error
