"""Dead letters: why messages fail, since when and with which keys; and the redrive of selected ones.

    <topic>.dlq ──letters──> one row each ──┬──> failures, over_time, top_keys, samples
                                            └──where──> chosen ──> the broker's own redrive, by partition and offsets

Errors that differ only in numbers, ids or quoted text are one failure: its fingerprint is the text without these. The
tables count all dead letters that the topic still holds, also those that were redriven since.

Spark only selects; the broker redrives. For the broker, publishing a dead letter again and removing it are one step,
and it skips a message that is no longer dead-lettered. So a redrive that is killed and run again redrives no message
twice, and two redrives at the same time share the dead letters. Selected offsets are sent in chunks: if the driver is
killed, the broker still redrives the last chunk, which is a few seconds of work at the given rate.
"""

from collections import Counter
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal, NamedTuple

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as sql

from goqueue.client.sync import Client
from goqueue.clock import SECOND
from goqueue.errors import GoQueueError, InvalidConfig, NotFound
from goqueue.spark.pipelines.charts import Chart, Series
from goqueue.spark.pipelines.headers import texts
from goqueue.spark.pipelines.job import PipelineJob
from goqueue.spark.pipelines.reports import Rows, Tables, kept, where
from goqueue.wire.reports import RedriveInfo

DLQ_SUFFIX: Final = ".dlq"
FINGERPRINT_CHARACTERS_MAX = 200
CHUNK_MAX = 10_000
"""The most dead letters in one request to the broker."""
CHUNK_SECONDS = 5
"""The most work in one request, if there is a rate."""
LOOK_SECONDS = 0.1

_NORMAL_FORMS = (
    (r'"[^"]*"|`[^`]*`', "<text>"),
    (r"(?<![A-Za-z0-9])'.*?'(?![A-Za-z0-9])", "<text>"),  # an apostrophe within a word is not a quote
    (r"(<text>)+", "<text>"),
    (r"(?i)\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b", "<id>"),
    (r"(?i)\b0x[0-9a-f]+\b", "<id>"),
    (r"(?i)\b(?=[0-9a-f]*[0-9])(?=[0-9a-f]*[a-f])[0-9a-f]{8,}\b", "<id>"),
    (r"\b(?=[A-Za-z]*[0-9])(?=[0-9]*[A-Za-z])[A-Za-z0-9]{16,}\b", "<id>"),
    (r"[-+]?[0-9]+([.,:/T-][0-9]+)*Z?", "<n>"),
    (r"\s+", " "),
)
_PLACE = r"^([^:]+):([0-9]{1,19}):([0-9]{1,19})$"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterReportConfig:
    """The time windows and the sizes of the tables."""

    every_ns: int = 3600 * SECOND
    top: int = 20  # failures and keys, the most frequent first
    samples: int = 3  # dead letters shown of each failure
    sample_characters: int = 200

    def __post_init__(self) -> None:
        for name in ("every_ns", "top", "samples", "sample_characters"):
            if getattr(self, name) <= 0:
                raise InvalidConfig(name, getattr(self, name), "must be more than 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class RedriveConfig:
    """How dead letters are redriven, as the arguments of `Client.redrive`."""

    rate: float = 0  # per second; 0 is no limit
    limit: int = 0  # of all requests together; 0 is no limit
    target_topic: str | None = None  # instead of the topic that they come from
    max_redrives: int = 3  # messages redriven this often already are skipped
    to: Literal["group", "all"] | None = None  # which groups they are delivered to; None: the default of the broker

    @property
    def chunk_size(self) -> int:
        """The number of dead letters in one request."""
        return min(CHUNK_MAX, max(1, int(self.rate * CHUNK_SECONDS))) if self.rate else CHUNK_MAX


class RedriveResult(NamedTuple):
    """The outcome for the selected dead letters; `matched` are those that were still dead-lettered."""

    chosen: int  # by Spark
    matched: int = 0
    redriven: int = 0
    skipped_loop: int = 0
    failed: int = 0
    error: str = ""
    is_complete: bool = True  # False: a limit or an error ended it before all were handled


@contextmanager
def report(
    job: PipelineJob, topic: str, config: DeadLetterReportConfig, *, condition: str | None = None, **options: object
) -> Iterator[Tables]:
    """All tables of the dead letters of a topic, or of those that match an SQL condition over the columns of `letters`.
    The topic is read once; the last table is the dead letters themselves.
    """
    queue = job.client.describe_dead_letters(topic)
    found = letters(job.read(queue.dlq_topic, includeHeaders=True, **options))
    if queue.dlq_topic not in (queue.topic, queue.topic + DLQ_SUFFIX):  # other topics may have theirs there, too
        found = found.where(sql.col("origin_topic") == queue.topic)
    with kept(job, queue.dlq_topic, found if condition is None else where(found, condition)) as chosen:
        yield {
            "failures": failures(chosen, config),
            "over_time": over_time(chosen, config),
            "top_keys": top_keys(chosen, config),
            "samples": samples(chosen, config),
            "letters": chosen,
        }


# --- tables ------------------------------------------------------------------------------------


def letters(source: DataFrame) -> DataFrame:
    """One row per dead letter of a source with headers: its place, its content, and why it was dead-lettered."""
    source = source.withColumn("headers", texts(source))
    origin = _header("gq-origin")
    return source.select(
        sql.col("topic"),
        sql.col("partition"),
        sql.col("offset"),
        sql.make_valid_utf8(sql.col("key").cast("string")).alias("key"),
        sql.make_valid_utf8(sql.col("value").cast("string")).alias("value"),
        _header("gq-reason").alias("reason"),
        _header("gq-error").alias("error"),
        fingerprint(_header("gq-error")).alias("fingerprint"),
        _header("gq-group").alias("group"),
        _header("gq-member").alias("member"),
        sql.coalesce(_header("gq-attempts").try_cast("int"), sql.lit(0)).alias("attempts"),
        sql.coalesce(_header("gq-redrives").try_cast("int"), sql.lit(0)).alias("redrives"),
        sql.nullif(sql.regexp_extract(origin, _PLACE, 1), sql.lit("")).alias("origin_topic"),
        sql.regexp_extract(origin, _PLACE, 2).try_cast("int").alias("origin_partition"),
        sql.regexp_extract(origin, _PLACE, 3).try_cast("long").alias("origin_offset"),
        _header("gq-first-delivery").try_cast("timestamp").alias("first_delivery"),
        sql.coalesce(_header("gq-dead-at").try_cast("timestamp"), sql.col("timestamp")).alias("dead_at"),
        sql.col("headers"),
    )


def fingerprint(error: Column) -> Column:
    """The text of an error without quoted text, ids, hex and numbers: equal for errors of the same kind."""
    text = error
    for pattern, replacement in _NORMAL_FORMS:
        text = sql.regexp_replace(text, pattern, replacement)
    return sql.substring(sql.trim(text), 1, FINGERPRINT_CHARACTERS_MAX)


def failures(of_letters: DataFrame, config: DeadLetterReportConfig) -> DataFrame:
    """Each kind of failure: messages, keys, groups, first and last time, and the last error in full."""
    return (
        of_letters.groupBy("reason", "fingerprint")
        .agg(
            sql.count(sql.lit(1)).alias("messages"),
            sql.approx_count_distinct("key").alias("keys"),
            sql.array_sort(sql.collect_set("group")).alias("groups"),
            sql.min("dead_at").alias("first_at"),
            sql.max("dead_at").alias("last_at"),
            sql.max_by("error", "dead_at").alias("last_error"),
        )
        .orderBy(sql.desc("messages"), "reason", "fingerprint")
        .limit(config.top)
    )


def over_time(of_letters: DataFrame, config: DeadLetterReportConfig) -> DataFrame:
    """The number of messages by failure in each time window that has any."""
    stretch = sql.window("dead_at", f"{max(1, config.every_ns // 1_000)} microseconds")
    return (
        of_letters.groupBy(stretch.alias("stretch"), "reason", "fingerprint")
        .agg(sql.count(sql.lit(1)).alias("messages"))
        .select(sql.col("stretch.start").alias("from"), "reason", "fingerprint", "messages")
        .orderBy("from", sql.desc("messages"), "reason", "fingerprint")
    )


def top_keys(of_letters: DataFrame, config: DeadLetterReportConfig) -> DataFrame:
    """The keys with the most dead letters."""
    return (
        of_letters.where(sql.col("key").isNotNull())
        .groupBy("key")
        .agg(
            sql.count(sql.lit(1)).alias("messages"),
            sql.array_sort(sql.collect_set("reason")).alias("reasons"),
            sql.max("dead_at").alias("last_at"),
        )
        .orderBy(sql.desc("messages"), "key")
        .limit(config.top)
    )


def samples(of_letters: DataFrame, config: DeadLetterReportConfig) -> DataFrame:
    """The latest dead letters of each kind of failure."""
    latest = Window.partitionBy("reason", "fingerprint").orderBy(sql.desc("dead_at"), "partition", sql.desc("offset"))
    return (
        of_letters.withColumn("rank", sql.row_number().over(latest))
        .where(sql.col("rank") <= config.samples)
        .select(
            "reason",
            "fingerprint",
            "partition",
            "offset",
            "key",
            sql.substring("value", 1, config.sample_characters).alias("value"),
            "error",
            "dead_at",
        )
        .orderBy("reason", "fingerprint", sql.desc("dead_at"), "partition", sql.desc("offset"))
    )


def charts(topic: str, tables: Mapping[str, Rows]) -> list[Chart]:
    """A chart of dead letters over time by reason, from rows of the tables."""
    times = sorted({row["from"] for row in tables["over_time"]})
    counts = Counter[tuple[str, datetime]]()
    for row in tables["over_time"]:
        counts[row["reason"], row["from"]] += row["messages"]
    reasons = sorted({reason for reason, _ in counts})
    return [
        Chart(
            title=f"{topic}: dead letters by reason",
            x_label="time (UTC)",
            y_label="dead letters",
            places=times,
            series=[Series(reason or "-", [counts[reason, time] for time in times]) for reason in reasons],
            kind="stacked",
        )
    ]


# --- redriving ---------------------------------------------------------------------------------


def plan(chosen: DataFrame, client: Client, topic: str, config: RedriveConfig) -> RedriveResult:
    """What `redrive` would do now, without its limit."""
    total = RedriveResult(0)
    for partition, offsets in _chunks(chosen, CHUNK_MAX):
        found = client.plan_redrive(
            topic,
            where={"partition": partition, "offsets": offsets},
            target_topic=config.target_topic,
            max_redrives=config.max_redrives,
            to=config.to,
        )
        total = total._replace(
            chosen=total.chosen + len(offsets),
            matched=total.matched + found.matched,
            skipped_loop=total.skipped_loop + found.skipped_loop,
        )
    return total


def redrive(chosen: DataFrame, job: PipelineJob, topic: str, config: RedriveConfig) -> RedriveResult:
    """Redrive the selected dead letters, each exactly once however often this is run; stops at the first error.

    A broker that restarts meanwhile continues the redrive. If it has forgotten the redrive, which happens only after
    very many others, the redrive is requested again; what it did since the last look is not counted.
    """
    chunks = list(_chunks(chosen, config.chunk_size))
    total = RedriveResult(sum(len(offsets) for _, offsets in chunks))
    through = 0
    for partition, offsets in chunks:
        before = total
        limit = config.limit - before.redriven if config.limit else 0
        if config.limit and limit <= 0:
            break
        with closing(
            _progress_of_redrive(job, topic, {"partition": partition, "offsets": offsets}, config, limit)
        ) as looks:
            for seen in looks:
                total = _added(before, seen)
                if seen.matched < len(offsets):
                    job.report("redriving", through + seen.matched, total.chosen)
        through += len(offsets)
        job.report("redriving", through, total.chosen)
        if total.error:
            break
    is_limited = bool(config.limit) and total.redriven >= config.limit
    return total._replace(is_complete=through == total.chosen and not total.error and not is_limited)


def _progress_of_redrive(
    job: PipelineJob, topic: str, places: dict[str, object], config: RedriveConfig, limit: int
) -> Generator[RedriveResult, None, None]:
    """Run one redrive in the broker; yields its progress until it ends."""
    client = job.client
    before = RedriveResult(0)
    while True:
        info = client.redrive(
            topic,
            where=places,
            rate=config.rate,
            limit=limit - before.redriven if limit else 0,
            target_topic=config.target_topic,
            max_redrives=config.max_redrives,
            to=config.to,
        )
        try:
            while info.state == "running":
                yield _added(before, _seen(info))
                is_wanted = job.rest(LOOK_SECONDS)
                info = (client.describe_redrive if is_wanted else client.stop_redrive)(topic, info.id)
        except NotFound:  # the broker has forgotten the redrive: request the rest
            before = RedriveResult(0, before.redriven + info.redriven, before.redriven + info.redriven)
            if limit and before.redriven >= limit:
                yield before
                return
            continue
        except BaseException:
            with suppress(GoQueueError):
                client.stop_redrive(topic, info.id)
            raise
        yield _added(before, _seen(info))
        return


def _seen(info: RedriveInfo) -> RedriveResult:
    error = info.error or ("it was stopped" if info.state == "stopped" else "")
    return RedriveResult(0, info.matched, info.redriven, info.skipped_loop, info.failed, error)


def _added(one: RedriveResult, other: RedriveResult) -> RedriveResult:
    return RedriveResult(
        one.chosen + other.chosen,
        one.matched + other.matched,
        one.redriven + other.redriven,
        one.skipped_loop + other.skipped_loop,
        one.failed + other.failed,
        other.error,
    )


def _chunks(chosen: DataFrame, size: int) -> Iterator[tuple[int, list[int]]]:
    """The offsets of the dead letters by partition, in order, at most `size` at a time."""
    places = (
        chosen.select("partition", "offset").toArrow().sort_by([("partition", "ascending"), ("offset", "ascending")])
    )
    partitions: Sequence[int] = places.column("partition").to_pylist()
    offsets: Sequence[int] = places.column("offset").to_pylist()
    start = 0
    while start < len(offsets):
        partition = partitions[start]
        end = start
        while end < len(offsets) and end - start < size and partitions[end] == partition:
            end += 1
        yield partition, list(offsets[start:end])
        start = end


def _header(name: str) -> Column:
    return sql.coalesce(sql.col("headers")[name], sql.lit(""))
