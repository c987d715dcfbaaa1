"""A topic as Parquet files, by day, each message exactly once.

The job is a loop: compare the manifest with the end of the topic, read the next offsets as one batch, write them below
staging, commit. The manifest is the only state (see `manifest.py`), so a job that is killed at any point continues when
it is started again. The positions of the consumer group `pipeline-archive-<topic>` show the progress to users.

The rows are those of the source, headers included; their folder is their day in UTC. The files of several days are
written at the same time, without sorting first, because messages are in the order of time: a task sees one or two days.

To verify, both sides are reduced to a count and two checksums per partition, by the same Spark expression: the xor and
the sum of a hash over all columns of each row. The order of rows does not matter, and a row that is there twice does
not cancel itself out. If the checksums differ, rows are compared one by one: missing, changed, repeated, or only in the
archive. The last is no fault if the topic removes messages: by compaction, by cancelled delays, or by damage. Offsets
that are damaged in the topic and absent in the archive count as missing, although both sides agree.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StructType

from goqueue.clock import SECOND
from goqueue.errors import InvalidConfig
from goqueue.spark.columns import spark_schema
from goqueue.spark.pipelines.headers import comparable, with_pairs
from goqueue.spark.pipelines.job import PipelineJob, group_of
from goqueue.spark.pipelines.manifest import (
    MAP,
    Archive,
    ArchivedFile,
    ArchivePlan,
    OffsetsLost,
    PartitionSpan,
    ReadableOffsets,
    looked_at,
    opened,
    plan,
)
from goqueue.spark.pipelines.store import ForeignArchive, LocalStore, Store
from goqueue.times import format_time

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from goqueue.wire.verbs import TopicState

NAME = "archive"
DAY = "date"
COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "priority", "deliver_at", "headers")
_NULLABLE = ("key", "value", "deliver_at")
_DAY_MICROSECONDS = 86_400_000_000
_UNCHECKED = {  # without Hadoop's .crc files: the manifest has checksums
    "fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
    "fs.file.impl.disable.cache": "true",
}
_FAULTS = ("missing", "changed", "repeated", "unknown")


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveConfig:
    """The topic, the directory, and the sizes of batches, tasks and files."""

    topic: str
    directory: str
    is_continuous: bool = False
    pause_s: float = 10.0  # how long a continuous job waits between batches: each writes at least one file
    offsets_per_batch: int = 10_000_000
    bytes_per_batch: int = 4 * 1024**3  # the most work that is repeated after a kill
    bytes_per_task: int = 256 * 1024**2
    compression: str = "snappy"
    accept_loss: bool = False
    merge_below_bytes: int = 32 * 1024**2  # a file below this size is small
    merge_files_min: int = 10  # a run merges the small files of a day if there are this many
    file_bytes: int = 256 * 1024**2  # the target size of merged files

    def __post_init__(self) -> None:
        for name in ("offsets_per_batch", "bytes_per_batch", "bytes_per_task", "merge_files_min", "file_bytes"):
            if getattr(self, name) < 1:
                raise InvalidConfig(name, getattr(self, name), "must be positive")


class ArchiveSummary(NamedTuple):
    """The results of a run, and the totals of the archive."""

    topic: str
    directory: str
    messages: int  # of this run
    batches: int
    merged_files: int
    elapsed_ns: int
    archived_messages: int  # in the whole archive
    files: int
    size_bytes: int
    lost: list[PartitionSpan]  # of this run

    @property
    def rate(self) -> float:
        """Messages per second."""
        return self.messages * SECOND / self.elapsed_ns if self.elapsed_ns else 0.0


class PartitionVerdict(NamedTuple):
    """The differences between archive and topic in one partition, in numbers of messages."""

    partition: int
    start: int  # [start, end) was compared
    end: int
    archive_count: int
    topic_count: int
    missing_count: int = 0  # in the topic only
    changed_count: int = 0  # in both, and different
    repeated_count: int = 0  # more than once in the archive
    unknown_count: int = 0  # in the archive only, without an explanation
    forgotten_count: int = 0  # in the archive only, because the topic removed them: no fault
    first_fault: int | None = None  # the offset
    damaged_count: int = 0  # in neither: damaged in the topic, and not archived before that

    @property
    def is_good(self) -> bool:
        """Whether the archive holds all that the topic holds."""
        return self.first_fault is None


class Verification(NamedTuple):
    """The result of the comparison of archive and topic."""

    partitions: list[PartitionVerdict]
    damaged_files: list[str]  # missing, or with another checksum
    behind_count: int  # offsets of the topic that are not archived yet

    @property
    def is_good(self) -> bool:
        """Whether nothing is wrong with the archive."""
        return not self.damaged_files and all(one.is_good for one in self.partitions)


def archived(rows: "DataFrame", config: ArchiveConfig | None = None) -> "DataFrame":
    """The rows of a topic with their day in UTC, in any time zone of the session."""
    del config
    micros, length = "unix_micros(timestamp)", _DAY_MICROSECONDS
    day = F.expr(f"date_from_unix_date(int(({micros} - pmod({micros}, {length})) div {length}))")
    return rows.select(*COLUMNS, day.alias(DAY))


def schema(*, has_header_map: bool = False) -> StructType:
    """The columns of an archive, which are those of the source with headers."""
    return spark_schema(COLUMNS, include_headers=True, has_header_map=has_header_map)


def read(
    spark: "SparkSession", directory: str, *, first_day: str | None = None, last_day: str | None = None
) -> "DataFrame":
    """The committed rows of an archive, optionally only from the first to the last day, such as 2026-11-15."""
    return rows_of(spark, looked_at(LocalStore(directory)), first_day=first_day, last_day=last_day)


def rows_of(
    spark: "SparkSession", archive: Archive, *, first_day: str | None = None, last_day: str | None = None
) -> "DataFrame":
    """The committed rows of an open archive."""
    days = (first_day or "", last_day or "9999-12-31")
    files = [file for path, file in archive.manifest.files.items() if days[0] <= _day(path) <= days[1]]
    paths = [file.path for file in files if file.headers != MAP]
    older = [file.path for file in files if file.headers == MAP]
    if not older:
        return _parquet(spark, archive.urls(paths))
    rows = with_pairs(_parquet(spark, archive.urls(older), has_header_map=True))
    return rows.unionByName(_parquet(spark, archive.urls(paths))) if paths else rows


def run(job: PipelineJob, config: ArchiveConfig, *, store: Store | None = None) -> ArchiveSummary:
    """Archive what the topic holds when the job starts; a continuous job also archives what comes until it is ended."""
    store = store or LocalStore(config.directory)
    began_ns = job.clock.monotonic_ns()
    state = job.client.describe_topic(config.topic)
    with opened(store, topic=config.topic, topic_id=state.topic_id, is_compacted=False) as archive:
        run = _ArchiveRun(job, config, archive, state)
        while True:
            while run.step():
                pass
            if not config.is_continuous or not job.rest(config.pause_s):
                break
            run.look()
        manifest = archive.manifest
        return ArchiveSummary(
            config.topic,
            store.directory,
            run.messages,
            run.batches,
            run.merged_files,
            job.clock.monotonic_ns() - began_ns,
            manifest.record_count,
            len(manifest.files),
            manifest.size_bytes,
            run.lost,
        )


def merge(job: PipelineJob, config: ArchiveConfig, *, store: Store | None = None) -> int:
    """Merge the small files of each day that has several; returns the number of merged files."""
    store = store or LocalStore(config.directory)
    known = looked_at(store).manifest
    with opened(store, topic=config.topic, topic_id=known.topic_id, is_compacted=known.is_compacted) as archive:
        return _merge(job, config, archive, files_min=2)


def verify(job: PipelineJob, config: ArchiveConfig, *, store: Store | None = None) -> Verification:
    """Compare the archive with the topic, and its files with their checksums."""
    archive = looked_at(store or LocalStore(config.directory))
    manifest = archive.manifest
    state = job.client.describe_topic(config.topic)
    if (manifest.topic, manifest.topic_id) != (state.name, state.topic_id):
        name = f"{manifest.topic} ({manifest.topic_id})"
        raise ForeignArchive(archive.store.directory, f"holds the archive of topic {name}, not of {config.topic}")
    if manifest.is_compacted:
        reason = f"holds the last message of each key of {config.topic} only: there is nothing to compare it with"
        raise ForeignArchive(archive.store.directory, reason)
    damaged = list(damaged_files(archive))
    bounds = {one.partition: one for one in state.partitions}
    spans = [
        PartitionSpan(span.partition, max(span.start, bounds[span.partition].start_offset), span.end)
        for span in sorted(manifest.archived.values())
        if span.partition in bounds
    ]
    behind = sum(
        max(0, one.last_stable_offset - manifest.archived.get(one.partition, PartitionSpan(one.partition, 0, 0)).end)
        for one in state.partitions
    )
    is_forgetful = state.settings.get("cleanup") not in (None, "delete")
    verdicts = [] if damaged else _compared(job, archive, config, spans, is_forgetful=is_forgetful)
    return Verification(verdicts, damaged, behind)


def damaged_files(archive: Archive) -> Iterator[str]:
    """The files of an archive that are missing, or have another checksum, with the reason."""
    for file in archive.manifest.files.values():
        try:
            size_bytes, crc32c = archive.store.summed(archive.place(file.path))
        except FileNotFoundError:
            yield f"{file.path} is missing"
            continue
        if (size_bytes, crc32c) != (file.size_bytes, file.crc32c):
            yield f"{file.path} has changed: {size_bytes} bytes with CRC-32C {crc32c:08x}"


def checksums(rows: "DataFrame", *, is_text: bool = False) -> "DataFrame":
    """Count, xor and sum of the hashes of all rows, per partition: equal for equal rows in any order."""
    return (
        rows.select("partition", fingerprint(is_text=is_text).alias("hash"))
        .groupBy("partition")
        .agg(
            F.count(F.lit(1)).alias("count"),
            F.bit_xor("hash").alias("xor"),
            F.sum(F.shiftrightunsigned("hash", 32)).alias("sum"),  # the upper half: the sum must not overflow
        )
    )


def fingerprint(*, is_text: bool = False) -> "Column":
    """A hash over all columns of a row; with `is_text`, of headers only their texts. `xxhash64` ignores nulls, so the
    null columns are hashed, too. `deliver_at` is left out: a reschedule after the archiving changes it, and the headers
    have the original time.
    """
    plain = [F.col(name) for name in COLUMNS if name not in ("headers", "deliver_at")]
    return F.xxhash64(*plain, comparable(is_text=is_text), *(F.isnull(F.col(name)) for name in _NULLABLE))


class _ArchiveRun:
    """One run of the job: its totals, and the next step."""

    def __init__(self, job: PipelineJob, config: ArchiveConfig, archive: Archive, state: "TopicState") -> None:
        self._job = job
        self._config = config
        self._archive = archive
        self._state = state
        self.messages = 0
        self.batches = 0
        self.merged_files = 0
        self.lost: list[PartitionSpan] = []
        self._publish_positions()

    def look(self) -> None:
        """Update the end of the topic."""
        self._state = self._job.client.describe_topic(self._config.topic)

    def step(self) -> bool:
        """Archive the next batch; if there is none, merge small files and return False."""
        config, manifest = self._config, self._archive.manifest
        asked = self._plan()
        if asked.lost and not config.accept_loss:
            raise OffsetsLost(config.topic, asked.lost)
        if not asked.spans:
            self._merge()
            return False
        total = manifest.record_count + sum(
            max(0, one.last_stable_offset - manifest.archived.get(one.partition, _nothing(one)).end)
            for one in self._state.partitions
        )
        self._job.report(
            "archives", self.messages, total - manifest.record_count + self.messages, pending=asked.offset_count
        )
        before = manifest.record_count
        self._write(asked)
        self.batches += 1
        self.messages += manifest.record_count - before
        self.lost += asked.lost
        self._publish_positions()
        waiting = self._plan().offset_count
        self._job.report("archives", self.messages, self.messages + waiting)
        return True

    def _plan(self) -> ArchivePlan:
        manifest, config = self._archive.manifest, self._config
        bounds = [
            ReadableOffsets(one.partition, one.start_offset, one.last_stable_offset) for one in self._state.partitions
        ]
        logged = sum(one.end_offset - one.start_offset for one in self._state.partitions)
        size_bytes = sum(one.size_bytes for one in self._state.partitions)
        fitting = config.bytes_per_batch * logged // size_bytes if size_bytes else config.offsets_per_batch
        offsets_max = max(1, min(config.offsets_per_batch, fitting))
        return plan(manifest.archived, bounds, offsets_max=offsets_max, is_first=not manifest.sequence)

    def _write(self, asked: ArchivePlan) -> None:
        config, archive, job = self._config, self._archive, self._job
        archive.store.remove(archive.staging)
        spans = [span for span in asked.spans if span.end > span.start]
        if spans:
            rows = topic_rows(
                job, config.topic, spans, bytes_per_task=config.bytes_per_task, accept_loss=config.accept_loss
            )
            days = archived(rows, config).write.partitionBy(DAY).options(compression=config.compression, **_UNCHECKED)
            with archive.store.filling(archive.staging):
                days.mode("overwrite").parquet(archive.store.url(archive.staging))
        # before the commit: a topic that was created again meanwhile has other messages at the same offsets
        state = job.client.describe_topic(config.topic)
        if state.topic_id != self._state.topic_id:
            raise ForeignArchive(
                archive.store.directory, f"is the archive of {config.topic}, which was deleted during the run"
            )
        archive.commit(
            NAME,
            topic=config.topic,
            topic_id=state.topic_id,
            now=format_time(job.clock.wall_ns()),
            staged=staged_files(archive),
            archived=asked.spans,
            lost=asked.lost,
        )

    def _merge(self) -> None:
        self.merged_files += _merge(self._job, self._config, self._archive, files_min=self._config.merge_files_min)

    def _publish_positions(self) -> None:
        spans = self._archive.manifest.archived.values()
        positions = {(self._config.topic, span.partition): span.end for span in spans}
        if positions:
            self._job.client.commit_group(group_of(NAME, self._config.topic), positions, pending={})


def _nothing(partition: Any) -> PartitionSpan:
    return PartitionSpan(partition.partition, partition.start_offset, partition.start_offset)


def topic_rows(
    job: PipelineJob,
    topic: str,
    spans: Sequence[PartitionSpan],
    *,
    bytes_per_task: int | None = None,
    accept_loss: bool = False,
) -> "DataFrame":
    """The rows of a topic in the spans, none of which is empty, with the columns of an archive."""
    options: dict[str, object] = {} if bytes_per_task is None else {"maxBytesPerPartition": bytes_per_task}
    return job.topics(
        assign=_json({topic: [span.partition for span in spans]}),
        startingOffsets=_json({topic: {str(span.partition): span.start for span in spans}}),
        endingOffsets=_json({topic: {str(span.partition): span.end for span in spans}}),
        includeHeaders=True,
        failOnDataLoss=not accept_loss,
        **options,
    ).select(*COLUMNS)


def _json(data: object) -> str:
    return msgspec.json.encode(data).decode()


def _parquet(spark: "SparkSession", urls: Sequence[str], *, has_header_map: bool = False) -> "DataFrame":
    columns = schema(has_header_map=has_header_map)
    return spark.read.schema(columns).parquet(*urls) if urls else spark.createDataFrame([], columns)


def staged_files(archive: Archive) -> list[str]:
    """The files that Spark wrote for the next commit."""
    return [path for path in archive.store.files(archive.staging) if path.endswith(".parquet")]


def _day(path: str) -> str:
    return path.partition("/")[0].removeprefix(f"{DAY}=")


def small_files(
    files: Sequence[ArchivedFile], *, below_bytes: int, files_min: int
) -> dict[tuple[str, str], list[ArchivedFile]]:
    """The small files of each folder and form of headers, if there are at least `files_min`, and two."""
    found: dict[tuple[str, str], list[ArchivedFile]] = {}
    for file in files:
        if file.size_bytes < below_bytes:
            found.setdefault((file.path.rpartition("/")[0], file.headers), []).append(file)
    return {place: alike for place, alike in sorted(found.items()) if len(alike) >= max(2, files_min)}


def _merge(job: PipelineJob, config: ArchiveConfig, archive: Archive, *, files_min: int) -> int:
    """Merge small files, folder by folder, each in a commit of its own."""
    manifest = archive.manifest
    found = small_files(list(manifest.files.values()), below_bytes=config.merge_below_bytes, files_min=files_min)
    for (folder, headers), files in found.items():
        row_count = sum(file.record_count for file in files)
        job.report(f"merges {folder}", 0, row_count, pending=row_count)
        rows = _parquet(job.spark, archive.urls([file.path for file in files]), has_header_map=headers == MAP)
        count = -(-sum(file.size_bytes for file in files) // config.file_bytes)
        archive.store.remove(archive.staging)
        ordered = rows.coalesce(count).sortWithinPartitions("partition", "offset")
        ordered.write.option("compression", config.compression).parquet(
            archive.store.url(f"{archive.staging}/{folder}")
        )
        archive.commit(
            "merge",
            topic=manifest.topic,
            topic_id=manifest.topic_id,
            now=format_time(job.clock.wall_ns()),
            staged=staged_files(archive),
            removed=[file.path for file in files],
            record_count=row_count,
            headers=headers,
        )
        job.report(f"merges {folder}", row_count, row_count)
    return sum(map(len, found.values()))


def _compared(
    job: PipelineJob, archive: Archive, config: ArchiveConfig, spans: Sequence[PartitionSpan], *, is_forgetful: bool
) -> list[PartitionVerdict]:
    wanted = [span for span in spans if span.end > span.start]
    if not wanted:
        return []
    total = sum(span.end - span.start for span in wanted)
    job.report("compares", 0, total, pending=total)
    kept = rows_of(job.spark, archive).where(within(wanted))
    logged = topic_rows(job, config.topic, wanted, accept_loss=True)  # losses are part of the result
    is_text = any(file.headers == MAP for file in archive.manifest.files.values())  # older files have only texts
    mine, its = checksums(kept, is_text=is_text), checksums(logged, is_text=is_text)
    sides = mine.withColumn("side", F.lit(0)).unionByName(its.withColumn("side", F.lit(1)))
    sums: dict[tuple[int, int], tuple[int, int, int]] = {
        (row["side"], row["partition"]): (row["count"], row["xor"], row["sum"]) for row in sides.collect()
    }
    nothing = (0, 0, 0)
    pairs = {span: (sums.get((0, span.partition), nothing), sums.get((1, span.partition), nothing)) for span in wanted}
    verdicts = {
        span: PartitionVerdict(*span, archive_count=kept_sums[0], topic_count=logged_sums[0])
        for span, (kept_sums, logged_sums) in pairs.items()
    }
    damage = [
        gap
        for span, verdict in verdicts.items()
        if verdict.topic_count < span.end - span.start  # otherwise no offset is missing
        for gap in _damage(job, config.topic, span)
    ]
    doubted = [span for span, (kept_sums, logged_sums) in pairs.items() if kept_sums != logged_sums]
    if doubted:
        found = _differences(
            kept.where(within(doubted)),
            logged.where(within(doubted)),
            is_forgetful=is_forgetful,
            is_text=is_text,
            damage=damage,
        )
        by_partition = {row["partition"]: row for row in found.collect()}
        for span in doubted:
            row = by_partition[span.partition]
            names = [f"{name}_count" for name in (*_FAULTS, "forgotten")]
            counts = {name: row[name] for name in names}
            verdicts[span] = verdicts[span]._replace(**counts, first_fault=row["first_fault"])
    if damage:
        saved = kept.where(within(damage)).groupBy("partition").agg(F.collect_set("offset").alias("offsets"))
        archived = {row["partition"]: set(row["offsets"]) for row in saved.collect()}
        verdicts = {
            span: _with_damage(verdict, damage, archived.get(span.partition, set()))
            for span, verdict in verdicts.items()
        }
    job.report("compares", total, total)
    return list(verdicts.values())


def _damage(job: PipelineJob, topic: str, span: PartitionSpan) -> list[PartitionSpan]:
    """The offsets of the span that are damaged in the topic."""
    parts = job.client.scan(topic, *span, delayed="include", without=("key", "value", "headers"), on_damage="skip")
    return [PartitionSpan(span.partition, gap.first_offset, gap.next_offset) for part in parts for gap in part.gaps]


def _with_damage(verdict: PartitionVerdict, damage: Sequence[PartitionSpan], saved: set[int]) -> PartitionVerdict:
    """The verdict, with the offsets that are damaged in the topic and absent in the archive."""
    spans = [one for one in damage if one.partition == verdict.partition]
    count = sum(one.end - one.start for one in spans) - len(saved)
    if count <= 0:
        return verdict
    first = next(offset for one in spans for offset in range(one.start, one.end) if offset not in saved)
    known = verdict.first_fault
    return verdict._replace(damaged_count=count, first_fault=first if known is None else min(known, first))


def within(spans: Sequence[PartitionSpan]) -> "Column":
    """Whether a row is in one of the spans."""
    partition, offset = F.col("partition"), F.col("offset")
    chosen = F.lit(False)
    for span in spans:
        chosen = chosen | ((partition == span.partition) & (offset >= span.start) & (offset < span.end))
    return chosen


def _differences(
    kept: "DataFrame", logged: "DataFrame", *, is_forgetful: bool, is_text: bool, damage: Sequence[PartitionSpan]
) -> "DataFrame":
    """For each partition, how many messages are missing, changed, repeated, unknown and forgotten."""
    place = ["partition", "offset"]
    mine = kept.groupBy(*place).agg(
        F.count(F.lit(1)).alias("times"),
        F.max(fingerprint(is_text=is_text)).alias("archived"),
        F.max(F.isnotnull("deliver_at")).alias("delayed"),
    )
    both = mine.join(logged.select(*place, fingerprint(is_text=is_text).alias("logged")), place, "full_outer")
    is_only_here = F.isnull("logged")
    is_forgotten = is_only_here & (F.lit(is_forgetful) | F.col("delayed") | within(damage))
    judged = both.select(
        *place,
        F.isnull("archived").alias("missing"),
        (F.col("archived") != F.col("logged")).alias("changed"),
        (F.col("times") > 1).alias("repeated"),
        (is_only_here & ~is_forgotten).alias("unknown"),
        is_forgotten.alias("forgotten"),
    )
    is_fault = F.greatest(*(F.coalesce(F.col(name), F.lit(False)) for name in _FAULTS))
    counts = (F.count_if(F.col(name)).alias(f"{name}_count") for name in (*_FAULTS, "forgotten"))
    return judged.groupBy("partition").agg(*counts, F.min(F.when(is_fault, F.col("offset"))).alias("first_fault"))
