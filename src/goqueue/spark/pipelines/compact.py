"""The last message of each key, except for keys whose last message is a tombstone.

A broker does the same to a topic with `cleanup=compact`. This job handles more keys than the memory of one broker
holds, and also reads archives. Messages without a key are all kept, as in the broker. The last message of a key is the
one with the latest time, and of equal times the one with the highest offset; so it is also found if the key moved to
another partition because partitions were added.

The messages to keep are found by keys and offsets only. Then all messages are read again and joined with that list, so
values are not shuffled and sorted.

Into a directory, the result is an archive with a manifest, written in one commit; a later run replaces it in one
commit. Into a topic, messages are published in parts, by the hash of their key, each in one transaction (see
`runs.py`). The plan of a run fixes how far it reads. A restart continues the run until that is done; then, if the
source has grown, it starts the next run, which publishes the last messages of all keys again.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import msgspec
from pyspark.sql import Observation
from pyspark.sql import functions as F  # noqa: N812

from goqueue.clock import SECOND
from goqueue.errors import InvalidRequest
from goqueue.spark.pipelines.archive import DAY, archived, read, schema, staged_files, topic_rows, within
from goqueue.spark.pipelines.job import PipelineJob
from goqueue.spark.pipelines.manifest import COMPACT, PartitionSpan, looked_at, opened
from goqueue.spark.pipelines.replay import PART_MESSAGES, ReplayConfig, republished, write_part
from goqueue.spark.pipelines.runs import RunChanged, archive_identity, resumed, run_name
from goqueue.spark.pipelines.store import LocalStore
from goqueue.times import format_time

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

NAME = "compact"


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactConfig:
    """The source, a topic or an archive, and the target, a topic or a directory."""

    topic: str | None = None  # one of these two
    archive: str | None = None
    target_topic: str | None = None  # one of these two
    target_directory: str | None = None
    keep_tombstones: bool = False
    compression: str = "snappy"
    part_messages: int = PART_MESSAGES

    def __post_init__(self) -> None:
        if (self.topic is None) == (self.archive is None):
            raise InvalidRequest("compact either a topic or an archive")
        if (self.target_topic is None) == (self.target_directory is None):
            raise InvalidRequest("compact either into a topic or into a directory")
        if self.topic is not None and self.topic == self.target_topic:
            raise InvalidRequest("compact a topic into another topic: publishing to a log does not rewrite it")


class CompactPlan(msgspec.Struct, frozen=True):
    """What a run publishes, fixed at its first start."""

    arguments: str
    topic: str
    topic_id: str
    spans: list[PartitionSpan]
    part_count: int
    settled_at_ns: int
    target_id: str = ""  # empty in plans of earlier versions


class CompactSummary(NamedTuple):
    """The results of one start of a run."""

    target: str
    looked_at: int
    messages: int  # of this start
    elapsed_ns: int
    run_messages: int  # of the whole run
    run: str = ""

    @property
    def rate(self) -> float:
        """Messages looked at per second."""
        return self.looked_at * SECOND / self.elapsed_ns if self.elapsed_ns else 0.0


def latest(rows: "DataFrame", config: CompactConfig | None = None) -> "DataFrame":
    """The last row of each key, and all rows without a key. Tombstones are left out, unless `keep_tombstones`."""
    place = F.struct("timestamp", "offset", "partition")
    last = rows.where("key IS NOT NULL").groupBy("topic", "key").agg(F.max(place).alias("place"))
    chosen = last.select("topic", "place.partition", "place.offset")
    kept = rows.where("key IS NOT NULL").join(chosen, ["topic", "partition", "offset"], "left_semi")
    if config is None or not config.keep_tombstones:
        kept = kept.where("value IS NOT NULL")
    return kept.unionByName(rows.where("key IS NULL"))


def run(job: PipelineJob, config: CompactConfig, *, directory: str, name: str | None = None) -> CompactSummary:
    """Compact what the source holds when the run starts; a restart continues the run. Without a name, a source that has
    grown since the last run starts another one.
    """
    if config.target_directory is not None:
        return _into_directory(job, config, config.target_directory)
    assert config.target_topic is not None
    return _into_topic(job, config, config.target_topic, directory, name or _next_name(job, config, directory))


def _next_name(job: PipelineJob, config: CompactConfig, directory: str) -> str:
    """The unfinished run; else the last run if the source has not grown since; else the next run."""
    assert config.target_topic is not None
    _, topic_id, spans = _source(job, config)
    source = topic_id if config.archive is None else archive_identity(config.archive)
    base = run_name(NAME, source, job.client.describe_topic(config.target_topic).topic_id, config.keep_tombstones)
    ends = [(span.partition, span.end) for span in spans]
    number = 1
    while True:
        with resumed(directory, f"{base}-{number}", CompactPlan) as going:
            plan = going.plan()
            if plan is None or len(going.done()) < plan.part_count:
                return going.name
            if [(span.partition, span.end) for span in plan.spans] == ends:
                return going.name
        number += 1


def _into_directory(job: PipelineJob, config: CompactConfig, target: str) -> CompactSummary:
    began_ns = job.clock.monotonic_ns()
    topic, topic_id, spans = _source(job, config)
    store = LocalStore(target)
    if config.archive is not None and store.directory == LocalStore(config.archive).directory:
        raise InvalidRequest("compact an archive into another directory: this one is the source")
    with opened(store, topic=topic, topic_id=topic_id, is_compacted=True) as archive:
        total = sum(span.end - span.start for span in spans)
        job.report("compacts", 0, total, pending=total)
        rows = archived(latest(_rows(job, config, topic, spans), config))
        days = rows.repartition(DAY).sortWithinPartitions(DAY, "partition", "offset")
        writer = days.write.partitionBy(DAY).option("compression", config.compression)
        writer.mode("overwrite").parquet(store.url(archive.staging))
        commit = archive.commit(
            COMPACT,
            topic=topic,
            topic_id=topic_id,
            now=format_time(job.clock.wall_ns()),
            staged=staged_files(archive),
            removed=list(archive.manifest.files),
            archived=archive.manifest.onwards(spans),
        )
        job.report("compacts", total, total)
        count = sum(file.record_count for file in commit.files)
        return CompactSummary(store.directory, total, count, job.clock.monotonic_ns() - began_ns, count)


def _into_topic(job: PipelineJob, config: CompactConfig, target: str, directory: str, name: str) -> CompactSummary:
    began_ns = job.clock.monotonic_ns()
    target_id = job.client.describe_topic(target).topic_id
    messages = 0
    with resumed(directory, name, CompactPlan) as going:
        plan = going.plan()
        arguments = repr((config.topic, config.archive, target, config.keep_tombstones))
        topic, topic_id, spans = _source(job, config)
        if plan is None:
            total = sum(span.end - span.start for span in spans)
            part_count = -(-max(1, total) // config.part_messages)  # at most: as if every message had another key
            now_ns = job.clock.wall_ns()
            plan = going.settle(CompactPlan(arguments, topic, topic_id, spans, part_count, now_ns, target_id))
        elif (plan.arguments, plan.topic_id) != (arguments, topic_id) or plan.target_id not in ("", target_id):
            raise RunChanged(name)
        total = sum(span.end - span.start for span in plan.spans)
        counts = going.done()
        for part in range(plan.part_count):
            reached = total * part // plan.part_count
            job.report("compacts", reached, total, pending=total // plan.part_count)
            if part in counts:
                continue
            rows = _rows(job, config, plan.topic, plan.spans)
            spread = F.xxhash64("key", F.when(F.isnull("key"), F.col("offset")))
            mine = rows.where(F.pmod(spread, F.lit(plan.part_count)) == part) if plan.part_count > 1 else rows
            sent = republished(
                latest(mine, config), ReplayConfig(target=target, topic=plan.topic), now_ns=plan.settled_at_ns
            )
            counted = Observation()
            write_part(job, sent.observe(counted, F.count(F.lit(1)).alias("count")), target, run=name, part=part)
            counts[part] = counted.get["count"]
            going.note(part, counts[part])
            messages += counts[part]
        job.report("compacts", total, total)
        elapsed_ns = job.clock.monotonic_ns() - began_ns
        return CompactSummary(target, total, messages, elapsed_ns, sum(counts.values()), name)


def _source(job: PipelineJob, config: CompactConfig) -> tuple[str, str, list[PartitionSpan]]:
    """The topic, its id, and the offsets that it holds."""
    if config.archive is not None:
        manifest = looked_at(LocalStore(config.archive)).manifest
        return manifest.topic, manifest.topic_id, sorted(manifest.archived.values())
    assert config.topic is not None
    state = job.client.describe_topic(config.topic)
    spans = [PartitionSpan(one.partition, one.start_offset, one.last_stable_offset) for one in state.partitions]
    return state.name, state.topic_id, spans


def _rows(job: PipelineJob, config: CompactConfig, topic: str, spans: list[PartitionSpan]) -> "DataFrame":
    if config.archive is not None:
        return read(job.spark, config.archive).where(within(spans))
    full = [span for span in spans if span.end > span.start]
    return topic_rows(job, topic, full) if full else job.spark.createDataFrame([], schema())
