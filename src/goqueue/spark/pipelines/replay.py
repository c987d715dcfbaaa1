"""Replay: publish selected messages of an archive, a topic, or both again to a topic, each exactly once.

With both, the archive is read up to its end, and the topic from there on. Messages keep the order of their partition:
one task has all of a partition, so messages with one key keep their order. The priority is kept; the delivery time only
if it is in the future. Headers are kept, except those of GoQueue itself; `gq-origin` names the original place:
topic:partition:offset. A predicate sees the columns of the source, and the column `header`, which is the headers as a
map<string,string>.

First the selected messages are counted, in stretches of offsets. The counts give the total and the parts: each part is
published in one transaction, at the given rate. The plan is fixed before the first part (see `runs.py`), so a restart
continues with the same parts, and publishes none of them twice. Messages that arrive after that belong to another run.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import msgspec
from pyspark.sql import functions as F  # noqa: N812

from goqueue.clock import SECOND
from goqueue.errors import InvalidConfig, InvalidRequest, TopicNotFound
from goqueue.record.headers import CREATED
from goqueue.spark.pipelines.archive import rows_of, topic_rows, within
from goqueue.spark.pipelines.headers import texts, with_pairs
from goqueue.spark.pipelines.job import PipelineJob, group_of
from goqueue.spark.pipelines.manifest import Archive, OffsetsLost, PartitionSpan, looked_at
from goqueue.spark.pipelines.runs import PipelineRun, RunChanged, archive_identity, resumed, run_name
from goqueue.spark.pipelines.store import ForeignArchive, LocalStore
from goqueue.times import format_time

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

NAME = "replay"
PART_S = 300  # at the given rate: readers see a part only when all of it is published
PART_MESSAGES = 2_000_000
STRETCH_OFFSETS = 10_000
ORIGIN = "gq-origin"
RESERVED_PREFIX = "gq-"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayConfig:
    """The source, the selection and the target."""

    target: str
    topic: str | None = None  # one of these two, or both
    archive: str | None = None
    from_time_ns: int | None = None
    to_time_ns: int | None = None
    partition: int | None = None
    from_offset: int | None = None  # of each selected partition
    to_offset: int | None = None
    keys: tuple[bytes, ...] = ()
    where: str | None = None  # SQL over the columns of the source, and `header`
    rate: float | None = None
    keep_partitions: bool = False
    part_messages: int = PART_MESSAGES

    def __post_init__(self) -> None:
        if self.topic is None and self.archive is None:
            raise InvalidRequest("there is nothing to replay from: name a topic, an archive, or both")
        for name in ("rate", "part_messages"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise InvalidConfig(name, value, "must be positive")


class ReplayPart(NamedTuple):
    """The messages of one transaction: the selected ones in the spans."""

    spans: list[PartitionSpan]
    message_count: int


class ReplayPlan(msgspec.Struct, frozen=True):
    """What a run publishes, fixed at its first start."""

    arguments: str
    topic: str
    topic_id: str
    spans: list[PartitionSpan]  # all offsets that are read
    archived: list[PartitionSpan]  # the offsets that come from the archive
    parts: list[ReplayPart]
    settled_at_ns: int
    from_time_ns: int | None
    to_time_ns: int | None
    target_id: str = ""  # empty in plans of earlier versions

    @property
    def message_count(self) -> int:
        """The number of selected messages."""
        return sum(part.message_count for part in self.parts)

    @property
    def looked_at_count(self) -> int:
        """The number of offsets that are read to select them."""
        return sum(span.end - span.start for span in self.spans)


class ReplaySummary(NamedTuple):
    """The results of one start of a run."""

    run: str
    target: str
    messages: int  # of this start
    run_messages: int  # of the whole run
    parts: int
    looked_at: int
    elapsed_ns: int

    @property
    def rate(self) -> float:
        """Messages per second."""
        return self.messages * SECOND / self.elapsed_ns if self.elapsed_ns else 0.0


def selected(rows: "DataFrame", config: ReplayConfig) -> "DataFrame":
    """The rows that match the selection."""
    conditions: list[Column] = []
    if config.partition is not None:
        conditions.append(F.col("partition") == config.partition)
    if config.from_offset is not None:
        conditions.append(F.col("offset") >= config.from_offset)
    if config.to_offset is not None:
        conditions.append(F.col("offset") < config.to_offset)
    if config.from_time_ns is not None:
        conditions.append(F.col("timestamp") >= F.timestamp_micros(F.lit(config.from_time_ns // 1_000)))
    if config.to_time_ns is not None:
        conditions.append(F.col("timestamp") < F.timestamp_micros(F.lit(config.to_time_ns // 1_000)))
    if config.keys:
        conditions.append(F.col("key").isin(*(F.lit(bytearray(key)) for key in config.keys)))
    for condition in conditions:
        rows = rows.where(condition)
    if config.where:
        rows = rows.withColumn("header", texts(rows)).where(F.expr(config.where)).drop("header")
    return rows


def republished(rows: "DataFrame", config: ReplayConfig, *, now_ns: int) -> "DataFrame":
    """The rows as the sink takes them, in the order of their partitions, with the header `gq-origin`."""
    rows = with_pairs(rows)
    own = F.filter("headers", lambda pair: ~pair["key"].startswith(RESERVED_PREFIX))
    origin = F.concat_ws(":", F.col("topic"), F.col("partition"), F.col("offset"))
    note = F.struct(F.lit(ORIGIN).alias("key"), origin.cast("binary").alias("value"))
    due = F.timestamp_micros(F.lit(now_ns // 1_000))
    created = F.filter("headers", lambda pair: pair["key"] == CREATED)
    created_ns = F.get(created, F.size(created) - 1)["value"].cast("string").try_cast("decimal(19,0)")
    columns = [
        F.col("key"),
        F.col("value"),
        F.concat(own, F.array(note)).alias("headers"),
        F.col("priority"),
        F.when(F.col("deliver_at") > due, F.col("deliver_at")).alias("deliver_at"),
        F.timestamp_micros(F.floor(created_ns / 1_000).cast("long")).alias("created_at"),
    ]
    if config.keep_partitions:
        columns.append(F.col("partition"))
    # tasks cannot share a rate, so one task has all rows
    together = rows.repartition(1) if config.rate is not None else rows.repartition("topic", "partition")
    ordered = together.sortWithinPartitions("topic", "partition", "offset")
    return ordered.select(*columns)


def count(job: PipelineJob, config: ReplayConfig) -> ReplayPlan:
    """What a run would publish if it started now."""
    job.client.describe_topic(config.target)
    return _plan(job, config)


def default_name(job: PipelineJob, config: ReplayConfig, times: Sequence[str | None] = ()) -> str:
    """The default name of a run; `times` are those of the command as typed: `2h ago` must name the same run later."""
    described = job.client.describe_topic
    sources = (
        None if config.topic is None else described(config.topic).topic_id,
        None if config.archive is None else archive_identity(config.archive),
    )
    chosen = (config.partition, config.from_offset, config.to_offset, config.keys, config.where, config.keep_partitions)
    when = times or (config.from_time_ns, config.to_time_ns)
    return run_name(NAME, described(config.target).topic_id, *sources, *when, *chosen)


def run(job: PipelineJob, config: ReplayConfig, *, directory: str, name: str) -> ReplaySummary:
    """Publish the selected messages, or continue the run; a run that is done does nothing."""
    began_ns = job.clock.monotonic_ns()
    job.client.describe_topic(config.target)
    messages = 0
    with resumed(directory, name, ReplayPlan) as going:
        plan = _settled(job, config, going)
        config = replace(config, from_time_ns=plan.from_time_ns, to_time_ns=plan.to_time_ns)
        done = going.done()
        for number, part in enumerate(plan.parts):
            if number in done:
                continue
            published = sum(done.values())
            job.report("replays", published, plan.message_count, pending=part.message_count)
            rows = republished(_chosen(job, config, plan, part.spans), config, now_ns=plan.settled_at_ns)
            write_part(job, rows, config.target, run=name, part=number, rate=config.rate)
            _publish_positions(job, name, plan, part)
            going.note(number, part.message_count)
            done[number] = part.message_count
            messages += part.message_count
            job.report("replays", published + part.message_count, plan.message_count)
        elapsed_ns = job.clock.monotonic_ns() - began_ns
        return ReplaySummary(
            name, config.target, messages, plan.message_count, len(plan.parts), plan.looked_at_count, elapsed_ns
        )


def write_part(
    job: PipelineJob, rows: "DataFrame", target: str, *, run: str, part: int, rate: float | None = None
) -> None:
    """Publish the rows in one transaction, exactly once however often it is repeated."""
    writer = rows.write.format("goqueue").mode("append")
    for name, value in {**job.connection(), "topic": target, "transactionalId": run, "marker": str(part)}.items():
        writer = writer.option(name, value)
    if rate is not None:
        writer = writer.option("rate", str(rate))
    writer.save()


def parts_of(
    counts: Mapping[tuple[int, int], int], spans: Sequence[PartitionSpan], *, messages_max: int, stretch: int
) -> list[ReplayPart]:
    """Cut the spans where stretches of offsets end, so that no part has many more than `messages_max` messages.

    `counts` has the number of selected messages by partition and stretch. A part has stretches of all partitions, from
    the first on; a stretch without selected messages is in no part.
    """
    waiting = {span: sorted(number for partition, number in counts if partition == span.partition) for span in spans}
    parts: list[ReplayPart] = []
    taken: dict[int, list[int]] = {}
    total = 0
    for depth in range(max(map(len, waiting.values()), default=0)):
        for span, numbers in waiting.items():
            if depth >= len(numbers):
                continue
            size = counts[span.partition, numbers[depth]]
            if taken and total + size > messages_max:
                parts.append(_part(taken, spans, total, stretch))
                taken, total = {}, 0
            taken.setdefault(span.partition, []).append(numbers[depth])
            total += size
    if taken:
        parts.append(_part(taken, spans, total, stretch))
    return parts


def _part(taken: Mapping[int, Sequence[int]], spans: Sequence[PartitionSpan], total: int, stretch: int) -> ReplayPart:
    bounds = {span.partition: span for span in spans}
    cut = [
        PartitionSpan(
            partition,
            max(bounds[partition].start, numbers[0] * stretch),
            min(bounds[partition].end, (numbers[-1] + 1) * stretch),
        )
        for partition, numbers in sorted(taken.items())
    ]
    return ReplayPart(cut, total)


def _settled(job: PipelineJob, config: ReplayConfig, going: PipelineRun[ReplayPlan]) -> ReplayPlan:
    plan = going.plan()
    if plan is None:
        return going.settle(_plan(job, config))
    if plan.arguments != _arguments(config):
        raise RunChanged(going.name)
    if config.topic is not None and job.client.describe_topic(config.topic).topic_id != plan.topic_id:
        raise RunChanged(going.name)
    if plan.target_id not in ("", job.client.describe_topic(config.target).topic_id):
        raise RunChanged(going.name)
    return plan


def _arguments(config: ReplayConfig) -> str:
    """What must not change when a run is continued; times are left out, since the plan has fixed them."""
    chosen = (config.target, config.topic, config.archive, config.partition, config.from_offset, config.to_offset)
    return repr((*chosen, config.keys, config.where, config.keep_partitions))


def _plan(job: PipelineJob, config: ReplayConfig) -> ReplayPlan:
    topic, topic_id, spans, archived = _sources(job, config)
    times = (job.clock.wall_ns(), config.from_time_ns, config.to_time_ns)
    target_id = job.client.describe_topic(config.target).topic_id
    plan = ReplayPlan(_arguments(config), topic, topic_id, spans, archived, [], *times, target_id)
    looked_at_count = plan.looked_at_count
    job.report("counts", 0, looked_at_count, pending=looked_at_count)
    messages_max = config.part_messages
    if config.rate is not None:
        messages_max = max(1, min(messages_max, int(config.rate * PART_S)))
    stretch = min(STRETCH_OFFSETS, messages_max)
    number = F.expr(f"offset div {stretch}").alias("number")
    rows = _chosen(job, config, plan, spans).groupBy("partition", number).count().collect() if spans else []
    counts = {(row["partition"], row["number"]): row["count"] for row in rows}
    parts = parts_of(counts, spans, messages_max=messages_max, stretch=stretch)
    return msgspec.structs.replace(plan, parts=parts)


def _sources(job: PipelineJob, config: ReplayConfig) -> tuple[str, str, list[PartitionSpan], list[PartitionSpan]]:
    """The topic, its id, the offsets to read, and the offsets that come from the archive."""
    kept = looked_at(LocalStore(config.archive)).manifest if config.archive is not None else None
    archived = dict(kept.archived) if kept else {}
    if config.topic is None:
        assert kept is not None
        spans = list(archived.values())
        return kept.topic, kept.topic_id, _cut(spans, config), sorted(spans)
    state = job.client.describe_topic(config.topic)
    if kept is not None and (kept.topic, kept.topic_id) != (state.name, state.topic_id):
        reason = f"holds the archive of topic {kept.topic} ({kept.topic_id}), not of {state.name}"
        raise ForeignArchive(LocalStore(config.archive or "").directory, reason)
    spans, lost = [], []
    for one in state.partitions:
        mine = archived.get(one.partition)
        if mine is None:
            spans.append(PartitionSpan(one.partition, one.start_offset, one.last_stable_offset))
            continue
        if mine.end < one.start_offset:
            lost.append(PartitionSpan(one.partition, mine.end, one.start_offset))
        spans.append(PartitionSpan(one.partition, mine.start, max(mine.end, one.last_stable_offset)))
    lost = _cut(lost, config)
    if lost:
        raise OffsetsLost(config.topic, lost)
    spans = _cut(spans, config)
    if kept is None:
        spans = _between(job, config, spans)
    return state.name, state.topic_id, spans, sorted(archived.values())


def _cut(spans: Sequence[PartitionSpan], config: ReplayConfig) -> list[PartitionSpan]:
    """The parts of the spans within the selected offsets and partition."""
    found = []
    for span in sorted(spans):
        start = max(span.start, config.from_offset or 0)
        end = span.end if config.to_offset is None else min(span.end, config.to_offset)
        if start < end and config.partition in (None, span.partition):
            found.append(PartitionSpan(span.partition, start, end))
    return found


def _between(job: PipelineJob, config: ReplayConfig, spans: Sequence[PartitionSpan]) -> list[PartitionSpan]:
    """The parts of the spans between the selected times, by the time index of the broker."""
    assert config.topic is not None
    starts: dict[int, int] = {}
    ends: dict[int, int] = {}
    if config.from_time_ns is not None:
        starts = dict(enumerate(job.client.offsets(config.topic, time=format_time(config.from_time_ns))))
    if config.to_time_ns is not None:
        ends = dict(enumerate(job.client.offsets(config.topic, time=format_time(config.to_time_ns))))
    found = [
        PartitionSpan(
            span.partition,
            max(span.start, starts.get(span.partition, 0)),
            min(span.end, ends.get(span.partition, span.end)),
        )
        for span in spans
    ]
    return [span for span in found if span.start < span.end]


def _chosen(job: PipelineJob, config: ReplayConfig, plan: ReplayPlan, spans: Sequence[PartitionSpan]) -> "DataFrame":
    return selected(_rows(job, config, plan, spans), config)


def _rows(job: PipelineJob, config: ReplayConfig, plan: ReplayPlan, spans: Sequence[PartitionSpan]) -> "DataFrame":
    """The rows of the spans: from the archive up to its end in the plan, and from the topic after that."""
    ends = {span.partition: span.end for span in plan.archived}
    kept = [PartitionSpan(one.partition, one.start, min(one.end, ends.get(one.partition, 0))) for one in spans]
    kept = [span for span in kept if span.start < span.end]
    logged = [PartitionSpan(one.partition, max(one.start, ends.get(one.partition, 0)), one.end) for one in spans]
    logged = [span for span in logged if span.start < span.end]
    found: list[DataFrame] = []
    if kept:
        assert config.archive is not None
        found.append(rows_of(job.spark, _archive(config.archive, plan)).where(within(kept)))
    if logged:
        found.append(topic_rows(job, plan.topic, logged))
    rows, *more = found
    for one in more:
        rows = rows.unionByName(one)
    return rows


def _archive(directory: str, plan: ReplayPlan) -> Archive:
    archive = looked_at(LocalStore(directory))
    if archive.manifest.topic_id != plan.topic_id:
        raise ForeignArchive(directory, f"is not the archive that the run started with, of topic {plan.topic}")
    return archive


def _publish_positions(job: PipelineJob, name: str, plan: ReplayPlan, part: ReplayPart) -> None:
    positions = {(plan.topic, span.partition): span.end for span in part.spans}
    try:
        job.client.commit_group(group_of(NAME, name), positions, pending={})
    except TopicNotFound:
        return  # an archive may outlive its topic
