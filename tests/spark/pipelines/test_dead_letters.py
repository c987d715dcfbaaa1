from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from goqueue.client.sync import Client
from goqueue.delivery import dead_letter
from goqueue.errors import InvalidConfig, InvalidRequest, NotFound, TopicNotFound
from goqueue.spark.pipelines import dead_letters
from goqueue.spark.pipelines.dead_letters import DeadLetterReportConfig, RedriveConfig
from goqueue.spark.pipelines.job import JobConfig, JobProgress, PipelineJob, running
from goqueue.spark.pipelines.reports import frame_of, rows, where
from goqueue.testing import EmbeddedBroker
from goqueue.times import format_time
from goqueue.topics.config import DLQ_SUFFIX
from goqueue.wire.reports import RedriveInfo

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

START = datetime(2026, 11, 16, 8, 30, tzinfo=UTC)
START_NS = int(START.timestamp()) * 1_000_000_000
SOURCE = (
    "key binary, value binary, topic string, partition int, offset long, timestamp timestamp, "
    "headers map<string, string>"
)
CONFIG = DeadLetterReportConfig()


def death(
    offset: int,
    error: str,
    *,
    reason: str = "REJECTED",
    key: bytes | None = b"k",
    value: bytes = b"v",
    after_s: int = 0,
    headers: Mapping[str, str] | None = None,
) -> tuple[object, ...]:
    told = {
        "gq-reason": reason,
        "gq-error": error,
        "gq-group": "billing",
        "gq-member": "worker-1",
        "gq-attempts": "3",
        "gq-origin": f"orders:1:{100 + offset}",
        "gq-dead-at": format_time(START_NS + after_s * 1_000_000_000 + 123_456_789),
        "gq-redrives": "0",
    }
    return key, value, "orders.dlq", 1, offset, START + timedelta(hours=5), told if headers is None else dict(headers)


def letters(spark: "SparkSession", *deaths: tuple[object, ...]) -> "DataFrame":
    return dead_letters.letters(frame_of(spark, deaths, SOURCE))


# --- what a letter tells -----------------------------------------------------------------------


def test_a_letter_tells_where_it_comes_from_and_how_it_died(spark: "SparkSession") -> None:
    (row,) = rows(letters(spark, death(7, "db down", value=b'{"id": 1}')))

    assert {name: row[name] for name in ("topic", "partition", "offset", "key", "value")} == {
        "topic": "orders.dlq",
        "partition": 1,
        "offset": 7,
        "key": "k",
        "value": '{"id": 1}',
    }
    assert (row["reason"], row["error"], row["group"], row["member"]) == ("REJECTED", "db down", "billing", "worker-1")
    assert (row["origin_topic"], row["origin_partition"], row["origin_offset"]) == ("orders", 1, 107)
    assert (row["attempts"], row["redrives"]) == (3, 0)
    assert row["dead_at"] == START + timedelta(microseconds=123_456)
    assert row["first_delivery"] is None


def test_a_letter_whose_headers_tell_nothing_or_nonsense_is_a_letter_all_the_same(spark: "SparkSession") -> None:
    nonsense = {
        "gq-attempts": "many",
        "gq-origin": "orders",
        "gq-dead-at": "yesterday",
        "gq-redrives": "99999999999999999999",
        "gq-first-delivery": "",
    }
    found = rows(
        letters(
            spark,
            death(1, "", headers={}),
            death(2, "", headers=nonsense, key=None, value=b"\xff\xfe"),
            death(3, "", headers={"gq-origin": "orders:1:99999999999999999999999"}),
        )
    )

    for row in found:
        assert (row["reason"], row["attempts"], row["redrives"]) == ("", 0, 0)
        assert (row["origin_topic"], row["origin_partition"], row["origin_offset"]) == (None, None, None)
        assert row["dead_at"] == START + timedelta(hours=5)
    assert found[1]["key"] is None
    assert found[1]["value"] == "��"


def test_the_headers_are_those_that_the_broker_writes() -> None:
    source = Path(dead_letters.__file__).read_text()

    for name in (
        dead_letter.REASON,
        dead_letter.ERROR,
        dead_letter.GROUP,
        dead_letter.MEMBER,
        dead_letter.ATTEMPTS,
        dead_letter.ORIGIN,
        dead_letter.FIRST_DELIVERY,
        dead_letter.DEAD_AT,
        dead_letter.REDRIVES,
    ):
        assert f'_header("{name}")' in source
    assert dead_letters.DLQ_SUFFIX == DLQ_SUFFIX


# --- fingerprints ------------------------------------------------------------------------------

SAME = [
    ("timeout after 30 s", "timeout after 1.5 s"),
    ("balance is -5", "balance is 17"),
    ("no user 'alice'", "no user 'bob o''neil'"),
    ("no user 'bob o'neil' here", "no user '' here"),
    ('field "name" missing', 'field "street address" missing'),
    ("can't open 'a.txt'", "can't open 'b c.txt'"),
    ("order 0f8fad5b-d9cb-469f-a165-70867728950e", "order 7C9E6679-7425-40DE-944B-E07FC1F90AE7"),
    ("at 0x7f3a", "at 0xDEADBEEF00"),
    ("commit 9fceb02d0ae598e9", "commit 1a410efbd13591db"),
    ("token AbCd1234EfGh5678Ij", "token zz99yy88xx77ww66vv"),
    ("at 2026-11-16T08:30:00Z", "at 2025-01-01T00:00:00.250Z"),
    ("10.0.0.1:5432 refused", "192.168.1.77:80 refused"),
    ("order8812 failed", "order9 failed"),
    ("two  words\n", "two words"),
]
DIFFERENT = [
    ("db down", "db up"),
    ("cannot open file", "cannot close file"),
    ("deadbeef", "cafe"),
    ("don't know what's up", "don't know"),
    ("", "x"),
    ("missing 'a' in b", "missing in b"),
]


def test_errors_have_one_fingerprint_if_they_differ_only_in_numbers_ids_and_quotes(spark: "SparkSession") -> None:
    pairs = SAME + DIFFERENT
    found = rows(letters(spark, *(death(number, text) for number, text in enumerate(sum(pairs, ())))))
    prints = {row["offset"]: row["fingerprint"] for row in found}

    for number, pair in enumerate(pairs):
        is_same = prints[2 * number] == prints[2 * number + 1]
        assert is_same == (pair in SAME), (pair, prints[2 * number], prints[2 * number + 1])


def test_a_fingerprint_is_short_and_says_what_was_left_out(spark: "SparkSession") -> None:
    found = rows(
        letters(
            spark,
            death(0, "can't charge 'alice': code 402 at 0x1f in 0f8fad5b-d9cb-469f-a165-70867728950e"),
            death(1, "x" * 2_000),
        )
    )

    assert found[0]["fingerprint"] == "can't charge <text>: code <n> at <id> in <id>"
    assert found[1]["fingerprint"] == "x" * 200


# --- tables ------------------------------------------------------------------------------------


def test_failures_are_grouped_by_reason_and_fingerprint_the_most_frequent_first(spark: "SparkSession") -> None:
    found = letters(
        spark,
        death(0, "timeout after 1 s", reason="TIMEOUT", key=b"a", after_s=10),
        death(1, "timeout after 2 s", reason="TIMEOUT", key=b"a", after_s=30),
        death(2, "timeout after 3 s", reason="TIMEOUT", key=None, after_s=20),
        death(3, "timeout after 4 s", reason="REJECTED", key=b"b"),
    )

    first, second = rows(dead_letters.failures(found, CONFIG))

    assert (first["reason"], first["fingerprint"], first["messages"], first["keys"]) == (
        "TIMEOUT",
        "timeout after <n> s",
        3,
        1,
    )
    assert first["first_at"] == START + timedelta(seconds=10, microseconds=123_456)
    assert first["last_at"] == START + timedelta(seconds=30, microseconds=123_456)
    assert (first["last_error"], first["groups"]) == ("timeout after 2 s", ["billing"])
    assert (second["reason"], second["messages"]) == ("REJECTED", 1)
    assert len(rows(dead_letters.failures(found, DeadLetterReportConfig(top=1)))) == 1


def test_failures_over_time_are_counted_in_stretches_of_the_time_of_death(spark: "SparkSession") -> None:
    found = letters(
        spark,
        death(0, "x 1"),
        death(1, "x 2", after_s=1799),
        death(2, "x 3", after_s=1800),
        death(3, "y", after_s=1800),
        death(4, "y", after_s=1801),
    )

    counted = rows(dead_letters.over_time(found, CONFIG))

    assert [(row["from"].hour, row["fingerprint"], row["messages"]) for row in counted] == [
        (8, "x <n>", 2),
        (9, "y", 2),
        (9, "x <n>", 1),
    ]
    (chart,) = dead_letters.charts("orders", {"over_time": counted})
    assert chart.places == [counted[0]["from"], counted[1]["from"]]
    assert [(one.name, one.values) for one in chart.series] == [("REJECTED", [2, 3])]


def test_the_keys_that_fail_most_come_first_and_no_key_is_none(spark: "SparkSession") -> None:
    keys = [b"b", None, b"a", None, b"b", None, b"c"]
    found = letters(spark, *(death(number, "x", key=key) for number, key in enumerate(keys)))

    top = rows(dead_letters.top_keys(found, DeadLetterReportConfig(top=2)))

    assert [(row["key"], row["messages"], row["reasons"]) for row in top] == [
        ("b", 2, ["REJECTED"]),
        ("a", 1, ["REJECTED"]),
    ]


def test_of_each_failure_the_latest_letters_are_shown(spark: "SparkSession") -> None:
    found = letters(
        spark,
        *(death(number, f"x {number}", value=b"long" * 3, after_s=number) for number in range(5)),
        death(9, "y"),
    )

    shown = rows(dead_letters.samples(found, DeadLetterReportConfig(samples=2, sample_characters=5)))

    assert [(row["fingerprint"], row["offset"], row["value"]) for row in shown] == [
        ("x <n>", 4, "longl"),
        ("x <n>", 3, "longl"),
        ("y", 9, "v"),
    ]


def test_a_condition_that_is_no_sql_is_an_error_of_one_line(spark: "SparkSession") -> None:
    found = letters(spark, death(0, "x"))

    for condition in ("reason = ", "nosuch = 1", "attempts", "; drop table x", "sum(attempts) > 1"):
        with pytest.raises(InvalidRequest) as refused:
            where(found, condition)
        assert condition in str(refused.value)
        assert "\n" not in str(refused.value)


@pytest.mark.parametrize("setting", ["every_ns", "top", "samples", "sample_characters"])
def test_settings_that_make_no_sense_are_refused(setting: str) -> None:
    with pytest.raises(InvalidConfig):
        DeadLetterReportConfig(**{setting: 0})


def test_what_is_handed_over_at_once_is_some_seconds_of_work() -> None:
    assert RedriveConfig().chunk_size == dead_letters.CHUNK_MAX
    assert RedriveConfig(rate=100).chunk_size == 500
    assert RedriveConfig(rate=0.1).chunk_size == 1
    assert RedriveConfig(rate=10**9).chunk_size == dead_letters.CHUNK_MAX


class ForgetfulBroker:
    """Puts letters back, one at each look, and knows of no redrive any more after the second."""

    def __init__(self, letters: int) -> None:
        self.letters = letters
        self.asked: list[int] = []  # limits
        self.looks = 0

    def redrive(self, topic: str, *, limit: int, **_: object) -> RedriveInfo:
        self.asked.append(limit)
        return self._info(0, matched=0)

    def describe_redrive(self, topic: str, redrive_id: str) -> RedriveInfo:
        self.looks += 1
        if self.looks == 3:
            self.letters -= 1  # of which nobody is told
            raise NotFound("redrive x")
        self.letters -= 1
        redriven = self.looks if self.looks < 3 else self.looks - 3
        return self._info(redriven, matched=redriven)

    def _info(self, redriven: int, *, matched: int) -> RedriveInfo:
        state = "running" if self.letters else "done"
        return RedriveInfo("x", "orders", state, matched, redriven, 0, 0, 0, 0)


class Watch:
    """As much of a job as waiting needs."""

    def __init__(self, client: ForgetfulBroker) -> None:
        self.client = client

    def rest(self, seconds: float) -> bool:
        return True


@pytest.mark.parametrize(("limit", "asked"), [(0, [0, 0]), (100, [100, 98])])
def test_a_broker_that_forgot_a_redrive_is_asked_for_the_rest(limit: int, asked: list[int]) -> None:
    broker = ForgetfulBroker(5)

    looks = list(dead_letters._progress_of_redrive(Watch(broker), "orders", {}, RedriveConfig(), limit))  # type: ignore[arg-type]

    assert broker.asked == asked
    assert (looks[-1].redriven, looks[-1].matched, looks[-1].error) == (4, 4, "")


# --- with a broker -----------------------------------------------------------------------------


@pytest.fixture
def job(spark: "SparkSession", broker: EmbeddedBroker) -> Iterator[PipelineJob]:
    with running("dead-letters", JobConfig(server=broker.address), spark=spark) as made:
        yield made


def kill(client: Client, count: int, *, partitions: int = 2) -> None:
    """Messages of which each is rejected, the even ones because of the database."""
    client.create_topic("orders", partitions=partitions, exist_ok=True)
    client.publish_many("orders", [(f"k{number % 7}", f"order {number}") for number in range(count)])
    with client.consumer("orders", group="billing") as consumer:
        left = count
        while left:
            for message in consumer.poll(max_messages=500, timeout="5s"):
                number = int(message.value.split()[1])
                consumer.reject(message, reason=f"db {number} down" if number % 2 == 0 else "bad payload")
                left -= 1


def alive(client: Client) -> list[str]:
    """What was put back, and how often."""
    return sorted(message.text() for message in client.read("orders") if message.headers.get("gq-redrives", "0") != "0")


def test_letters_are_grouped_and_the_chosen_ones_are_put_back_once(job: PipelineJob, client: Client) -> None:
    kill(client, 40)

    with dead_letters.report(job, "orders", CONFIG) as tables:
        found = {name: rows(tables[name]) for name in ("failures", "letters")}
        chosen = where(tables["letters"], "fingerprint = 'db <n> down' and value != 'order 0'")
        planned = dead_letters.plan(chosen, client, "orders", RedriveConfig())
        first = dead_letters.redrive(chosen, job, "orders", RedriveConfig())
        again = dead_letters.redrive(chosen, job, "orders", RedriveConfig())

    assert [(row["reason"], row["fingerprint"], row["messages"]) for row in found["failures"]] == [
        ("REJECTED", "bad payload", 20),
        ("REJECTED", "db <n> down", 20),
    ]
    assert len(found["letters"]) == 40
    assert {(row["origin_topic"], row["origin_partition"]) for row in found["letters"]} == {
        ("orders", 0),
        ("orders", 1),
    }
    assert (planned.chosen, planned.matched, planned.redriven) == (19, 19, 0)
    assert (first.chosen, first.matched, first.redriven, first.error) == (19, 19, 19, "")
    assert (again.chosen, again.matched, again.redriven) == (19, 0, 0)
    assert alive(client) == sorted(f"order {number}" for number in range(2, 40, 2))

    client.redrive("orders")
    with client.consumer("orders", group="late") as consumer:
        seen: list[str] = []
        while len(seen) < 80:
            seen += [message.text() for message in consumer.poll(max_messages=500, timeout="5s")]
    assert len(seen) == 80
    assert all(seen.count(f"order {number}") == 2 for number in range(40))


def test_a_redrive_that_is_ended_goes_on_where_it_stood_beside_one_that_a_dead_driver_left_behind(
    spark: "SparkSession", broker: EmbeddedBroker, client: Client
) -> None:
    kill(client, 30, partitions=1)
    reports: list[JobProgress] = []

    def end_soon(progress: JobProgress) -> None:
        reports.append(progress)
        if progress.phase == "redriving":
            job.end()

    with (
        running("dead-letters", JobConfig(server=broker.address), spark=spark, reporter=end_soon) as job,
        dead_letters.report(job, "orders", CONFIG) as tables,
    ):
        stopped = dead_letters.redrive(tables["letters"], job, "orders", RedriveConfig(rate=20))
    with (
        running("dead-letters", JobConfig(server=broker.address), spark=spark) as again,
        dead_letters.report(again, "orders", CONFIG) as tables,
    ):
        orphan = client.redrive("orders", where={"partition": 0, "offsets": list(range(30))}, rate=10)
        done = dead_letters.redrive(tables["letters"], again, "orders", RedriveConfig())
        orphan = client.stop_redrive("orders", orphan.id)

    assert stopped.error
    assert not stopped.is_complete
    assert stopped.redriven < 30
    assert done.chosen == 30
    assert stopped.redriven + done.redriven + orphan.redriven == 30
    assert alive(client) == sorted(f"order {number}" for number in range(30))
    assert {progress.phase for progress in reports} == {"reading", "redriving"}


def test_a_limit_counts_over_all_that_is_handed_over_and_a_loop_is_passed_over(
    job: PipelineJob, client: Client
) -> None:
    kill(client, 12)

    with dead_letters.report(job, "orders", CONFIG) as tables:
        limited = dead_letters.redrive(tables["letters"], job, "orders", RedriveConfig(limit=7, rate=1_000))
        guarded = dead_letters.redrive(tables["letters"], job, "orders", RedriveConfig(max_redrives=0))
        with pytest.raises(TopicNotFound):
            dead_letters.redrive(tables["letters"], job, "orders", RedriveConfig(target_topic="nowhere"))

    assert (limited.redriven, limited.is_complete) == (7, False)
    assert (guarded.matched, guarded.skipped_loop, guarded.redriven, guarded.is_complete) == (5, 5, 0, True)
