"""When recurring messages are due, over clock changes and leap years, and what is made of runs that were missed."""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta, tzinfo
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from goqueue.delivery.schedules import (
    CLAIM_MAX,
    HISTORY_MAX,
    VALUE_BYTES_MAX,
    Definition,
    PastRun,
    RunTimes,
    Schedule,
    StoredRun,
    parse_cron,
)
from goqueue.errors import GoQueueError, InvalidMessage, InvalidPartition, InvalidRequest, MessageTooLarge

SECOND = 1_000_000_000
MINUTE = 60 * SECOND
HOUR = 60 * MINUTE
DAY = 24 * HOUR
ON_TIME = 5 * SECOND
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def ns(text: str) -> int:
    """Nanoseconds of a time like 2026-03-29T01:00+01:00; without an offset it is UTC."""
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return int((moment - EPOCH).total_seconds()) * SECOND


def shown(instants: Iterable[int], zone: str) -> list[str]:
    """The instants as the clocks of the zone show them."""
    return [
        (EPOCH + timedelta(seconds=instant // SECOND)).astimezone(ZoneInfo(zone)).isoformat(timespec="minutes")
        for instant in instants
    ]


def due(cron: str, zone: str, after: str, through: str, *, limit: int = 10_000) -> list[str]:
    plan = RunTimes(cron=parse_cron(cron), every_ns=None, zone=ZoneInfo(zone))
    return shown(plan.take(ns(after), ns(through), limit=limit)[0], zone)


def definition(**changes: object) -> Definition:
    fields: dict[str, object] = {"name": "daily", "cron": "0 9 * * *", "value": b"v", **changes}
    return Definition(**fields)  # type: ignore[arg-type]


def schedule(*, now: str = "2026-01-01T00:00", paused: bool = False, **changes: object) -> Schedule:
    return Schedule(
        definition(**changes),
        topic="reports",
        topic_id="t1",
        producer_id=77,
        zones=ZoneInfo,
        now_ns=ns(now),
        paused=paused,
    )


def every(seconds: int, *, now: str = "2026-01-01T00:00", **changes: object) -> Schedule:
    return schedule(now=now, cron=None, every_ns=seconds * SECOND, **changes)


def begin(one: Schedule, now_ns: int) -> tuple[int, ...]:
    """The due times that are claimed."""
    claim = one.begin_due(now_ns=now_ns, partition=0, on_time_ns=ON_TIME)
    return claim.due if claim else ()


def settle(one: Schedule, *, offset: int = 0) -> None:
    assert one.claim
    one.settle([StoredRun(offset + n, 5) for n in range(len(one.claim.due))], now_ns=9)


def run_until(one: Schedule, now_ns: int) -> list[int]:
    """All that is published when somebody looks at that time and goes on until nothing is due."""
    published: list[int] = []
    while one.next_at_ns is not None and one.next_at_ns <= now_ns:
        published += begin(one, now_ns)
        if one.claim:
            settle(one)
    return published


# --- cron ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "after", "expected"),
    [
        ("* * * * *", "2026-01-01T00:00", ["2026-01-01T00:01+00:00", "2026-01-01T00:02+00:00"]),
        ("*/20 5 * * *", "2026-01-01T05:20", ["2026-01-01T05:40+00:00", "2026-01-02T05:00+00:00"]),
        ("@hourly", "2026-01-01T00:00", ["2026-01-01T01:00+00:00", "2026-01-01T02:00+00:00"]),
        ("@daily", "2026-01-01T00:00", ["2026-01-02T00:00+00:00", "2026-01-03T00:00+00:00"]),
        ("@midnight", "2026-01-01T00:00", ["2026-01-02T00:00+00:00", "2026-01-03T00:00+00:00"]),
        ("@weekly", "2026-01-01T00:00", ["2026-01-04T00:00+00:00", "2026-01-11T00:00+00:00"]),
        ("@monthly", "2026-01-01T00:00", ["2026-02-01T00:00+00:00", "2026-03-01T00:00+00:00"]),
        ("@yearly", "2026-01-01T00:00", ["2027-01-01T00:00+00:00", "2028-01-01T00:00+00:00"]),
        (" @Annually ", "2026-01-01T00:00", ["2027-01-01T00:00+00:00", "2028-01-01T00:00+00:00"]),
        ("0 9 * * MON-FRI", "2026-01-02T09:00", ["2026-01-05T09:00+00:00", "2026-01-06T09:00+00:00"]),
        ("0 9 * * sun", "2026-01-01T00:00", ["2026-01-04T09:00+00:00", "2026-01-11T09:00+00:00"]),
        ("0 9 * * 7", "2026-01-01T00:00", ["2026-01-04T09:00+00:00", "2026-01-11T09:00+00:00"]),
        ("0 0 1 JAN *", "2026-01-01T00:00", ["2027-01-01T00:00+00:00", "2028-01-01T00:00+00:00"]),
        ("0 0 29 2 *", "2026-01-01T00:00", ["2028-02-29T00:00+00:00", "2032-02-29T00:00+00:00"]),
        ("0 0 29 2 *", "2096-02-29T00:00", ["2104-02-29T00:00+00:00", "2108-02-29T00:00+00:00"]),
        ("0 0 L * *", "2028-02-01T00:00", ["2028-02-29T00:00+00:00", "2028-03-31T00:00+00:00"]),
        ("0 0 31 * *", "2026-01-31T00:00", ["2026-03-31T00:00+00:00", "2026-05-31T00:00+00:00"]),
        ("0 0 13 * FRI", "2026-02-01T00:00", ["2026-02-06T00:00+00:00", "2026-02-13T00:00+00:00"]),
    ],
)
def test_a_cron_text_means_what_cron_takes_it_for(text: str, after: str, expected: list[str]) -> None:
    assert due(text, "UTC", after, "2261-01-01T00:00", limit=2) == expected


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("60 * * * *", "bad minute '60'"),
        ("a * * * *", "bad minute 'a'"),
        ("*/0 * * * *", "bad minute '*/0'"),
        ("5- * * * *", "bad minute '5-'"),
        ("-1 * * * *", "bad minute '-1'"),
        ("٣ * * * *", "bad minute"),
        ("0 24 * * *", "bad hour '24'"),
        ("0 5-3 * * *", "bad hour '5-3'"),
        ("0 0 0 * *", "bad day of month '0'"),
        ("0 0 32 * *", "bad day of month '32'"),
        ("0 0 30 2 *", "bad day of month '30'"),
        ("0 0 31 4,6,9,11 *", "bad day of month '31'"),
        ("0 0 1 13 *", "bad month '13'"),
        ("0 0 1 JANUARY *", "bad month 'JANUARY'"),
        ("0 0 * * 8", "bad day of week '8'"),
        ("0 0 * * MON-", "bad day of week 'MON-'"),
        ("0 0 * * MON#6", "bad day of week 'MON#6'"),
        ("", "needs 5 fields (minute, hour, day of month, month, day of week), not 0"),
        ("* * * *", "not 4"),
        ("0 0 0 * * *", "not 6"),
        ("@reboot", "@hourly"),
        ("@", "@hourly"),
        ("9" * 5_000 + " * * * *", "longer than 256"),
        ("9" * 240 + " * * * *", "bad minute"),
    ],
)
def test_the_field_that_is_wrong_is_named(text: str, field: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        parse_cron(text)

    assert field in str(refused.value)
    assert str(refused.value).startswith("invalid cron")
    assert refused.value.path == "cron"


@given(text=st.text(alphabet="0123456789*/-,LW#@ MONFRIJAN?\n\t٣é", max_size=40))
@settings(max_examples=300)
def test_any_text_is_a_cron_text_or_is_refused(text: str) -> None:
    try:
        parsed = parse_cron(text)
    except InvalidRequest:
        return

    first = RunTimes(cron=parsed, every_ns=None).next_after(ns("2026-01-01T00:00"))
    assert first is None or first > ns("2026-01-01T00:00")


# --- time zones ------------------------------------------------------------------------------------

SPRING = ("Europe/Berlin", "2026-03-28T12:00", "2026-03-30T12:00")  # 02:00 +01:00 becomes 03:00 +02:00 on the 29th
AUTUMN = ("Europe/Berlin", "2026-10-24T12:00", "2026-10-26T12:00")  # 03:00 +02:00 becomes 02:00 +01:00 on the 25th


def test_a_skipped_time_runs_when_the_clocks_have_jumped() -> None:
    assert due("30 2 * * *", *SPRING) == ["2026-03-29T03:00+02:00", "2026-03-30T02:30+02:00"]


def test_a_doubled_time_runs_once() -> None:
    assert due("30 2 * * *", *AUTUMN) == ["2026-10-25T02:30+02:00", "2026-10-26T02:30+01:00"]


def test_a_doubled_time_does_not_run_again_for_who_asks_in_between() -> None:
    plan = RunTimes(cron="30 2 * * *", every_ns=None, zone=ZoneInfo("Europe/Berlin"))

    for asked in ("2026-10-25T02:30+02:00", "2026-10-25T02:10+01:00", "2026-10-25T02:45+01:00"):
        assert plan.next_after(ns(asked)) == ns("2026-10-26T02:30+01:00")


def test_several_skipped_times_run_as_one() -> None:
    assert due("0,20,40 2,3 * * *", "Europe/Berlin", "2026-03-29T00:00", "2026-03-29T12:00") == [
        "2026-03-29T03:00+02:00",
        "2026-03-29T03:20+02:00",
        "2026-03-29T03:40+02:00",
    ]


def test_new_york_changes_its_clocks_as_well() -> None:
    assert due("15 2 * * *", "America/New_York", "2026-03-08T00:00", "2026-03-09T12:00") == [
        "2026-03-08T03:00-04:00",
        "2026-03-09T02:15-04:00",
    ]
    assert due("15 1 * * *", "America/New_York", "2026-11-01T00:00", "2026-11-02T12:00") == [
        "2026-11-01T01:15-04:00",
        "2026-11-02T01:15-05:00",
    ]


def test_lord_howe_changes_its_clocks_by_half_an_hour() -> None:
    assert due("15 2 * * *", "Australia/Lord_Howe", "2026-10-02T12:00", "2026-10-04T16:00") == [
        "2026-10-03T02:15+10:30",
        "2026-10-04T02:30+11:00",
        "2026-10-05T02:15+11:00",
    ]
    assert due("45 1 * * *", "Australia/Lord_Howe", "2026-04-04T00:00", "2026-04-05T16:00") == [
        "2026-04-05T01:45+11:00",
        "2026-04-06T01:45+10:30",
    ]


def test_a_midnight_that_does_not_exist_is_no_reason_to_miss_the_first_hour() -> None:
    assert due("*/30 1 8 3 *", "America/Havana", "2026-03-07T12:00", "2026-03-08T12:00") == [
        "2026-03-08T01:00-04:00",
        "2026-03-08T01:30-04:00",
    ]
    assert due("0 0 * * *", "America/Havana", "2026-03-08T04:59", "2026-03-08T12:00") == ["2026-03-08T01:00-04:00"]


def test_a_day_that_does_not_exist_runs_when_the_next_one_begins() -> None:
    assert due("0 9 * * *", "Pacific/Apia", "2011-12-29T12:00", "2011-12-31T12:00") == [
        "2011-12-29T09:00-10:00",
        "2011-12-31T00:00+14:00",
        "2011-12-31T09:00+14:00",
    ]


def test_what_runs_in_every_hour_runs_in_both_of_a_doubled_one() -> None:
    hours = due("@hourly", "Europe/Berlin", "2026-10-25T00:00+02:00", "2026-10-25T04:00+01:00")

    assert [hour[11:] for hour in hours] == ["01:00+02:00", "02:00+02:00", "02:00+01:00", "03:00+01:00", "04:00+01:00"]


def test_who_asks_within_a_doubled_hour_is_told_what_is_next() -> None:
    plan = RunTimes(cron="*/20 * * * *", every_ns=None, zone=ZoneInfo("Europe/Berlin"))
    all_of_them = plan.take(ns("2026-10-25T01:30+02:00"), ns("2026-10-25T03:30+01:00"), limit=100)[0]

    assert len(all_of_them) == 9
    assert [plan.next_after(instant) for instant in all_of_them[:-1]] == all_of_them[1:]


ZONES = ["UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "America/Havana", "Asia/Kathmandu"]
CHANGES = ["2026-03-08T03:00", "2026-03-29T01:00", "2026-04-04T15:00", "2026-10-03T15:30", "2026-10-25T01:00"]


def by_looking_at_every_minute(minutes: set[int], hours: set[int], zone: tzinfo, first: int, last: int) -> list[int]:
    """When such a cron text is due, found by hand: look at the clocks in every minute, and at the time they show."""
    looks = [
        (at, (EPOCH + timedelta(seconds=at // SECOND)).astimezone(zone).replace(tzinfo=None, fold=0))
        for at in range(first - 2 * DAY, last + 1, MINUTE)
    ]
    found: set[int] = set()
    reached = looks[0][1]
    for at, local in looks:
        passed = reached  # every local time up to here was shown or skipped already
        while passed < local:
            passed += timedelta(minutes=1)
            if passed.minute in minutes and passed.hour in hours:
                found.add(at)
        if len(hours) == 24 and local.minute in minutes:
            found.add(at)
        reached = max(reached, local)
    return sorted(at for at in found if first < at <= last)


@given(
    minutes=st.sets(st.integers(0, 59), min_size=1, max_size=4),
    hours=st.one_of(st.just(set(range(24))), st.sets(st.integers(0, 4), min_size=1, max_size=3)),
    zone=st.sampled_from(ZONES),
    change=st.sampled_from(CHANGES),
    before=st.integers(0, 300),
)
@settings(max_examples=60)
def test_cron_agrees_with_somebody_who_watches_the_clock(
    minutes: set[int], hours: set[int], zone: str, change: str, before: int
) -> None:
    first = ns(change) - before * MINUTE
    last = ns(change) + 8 * HOUR
    hour_field = "*" if len(hours) == 24 else ",".join(map(str, hours))
    plan = RunTimes(cron=f"{','.join(map(str, minutes))} {hour_field} * * *", every_ns=None, zone=ZoneInfo(zone))

    expected = by_looking_at_every_minute(minutes, hours, ZoneInfo(zone), first, last)

    assert plan.take(first, last, limit=10_000)[0] == expected
    assert [plan.next_after(instant) for instant in [first, *expected][:-1]] == expected


# --- start, end and intervals ----------------------------------------------------------------------


def test_an_interval_counts_from_when_the_schedule_was_made() -> None:
    one = every(90, now="2026-01-01T00:00:07")

    assert one.next_at_ns == ns("2026-01-01T00:01:37")


def test_an_interval_with_a_start_begins_with_it() -> None:
    one = every(60, start_ns=ns("2026-01-01T06:00:30"))

    assert one.next_at_ns == ns("2026-01-01T06:00:30")
    assert run_until(one, ns("2026-01-01T06:01:30")) == [ns("2026-01-01T06:01:30")]


def test_a_start_in_the_past_sets_the_beat_and_is_not_caught_up() -> None:
    one = every(60, start_ns=ns("2025-06-01T00:00:30"), catch_up="all")

    assert one.next_at_ns == ns("2026-01-01T00:00:30")


def test_nothing_is_due_before_the_start_or_behind_the_end() -> None:
    one = schedule(cron="@hourly", start_ns=ns("2026-01-01T03:00"), end_ns=ns("2026-01-01T05:00"), catch_up="all")

    assert run_until(one, ns("2026-01-02T00:00")) == [ns(f"2026-01-01T0{hour}:00") for hour in (3, 4, 5)]
    assert one.next_at_ns is None


# --- what is asked for -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "error", "path"),
    [
        ({"cron": None}, InvalidRequest, "cron"),
        ({"every_ns": 60 * SECOND}, InvalidRequest, "every"),
        ({"cron": None, "every_ns": SECOND - 1}, InvalidRequest, "every"),
        ({"cron": None, "every_ns": -SECOND}, InvalidRequest, "every"),
        ({"cron": "61 * * * *"}, InvalidRequest, "cron"),
        ({"timezone": "Europe/Atlantis"}, InvalidRequest, "timezone"),
        ({"timezone": "Europe"}, InvalidRequest, "timezone"),
        ({"timezone": ""}, InvalidRequest, "timezone"),
        ({"timezone": "../../etc/passwd"}, InvalidRequest, "timezone"),
        ({"timezone": "/etc/localtime"}, InvalidRequest, "timezone"),
        ({"timezone": "a\0b"}, InvalidRequest, "timezone"),
        ({"timezone": "x" * 5_000}, InvalidRequest, "timezone"),
        ({"catch_up": "twice"}, InvalidRequest, "catch_up"),
        ({"start_ns": 2, "end_ns": 1}, InvalidRequest, "end"),
        ({"name": ""}, InvalidRequest, "name"),
        ({"name": "a/b"}, InvalidRequest, "name"),
        ({"name": "a\nb"}, InvalidRequest, "name"),
        ({"name": "n" * 256}, InvalidRequest, "name"),
        ({"name": "\ud800"}, InvalidRequest, "name"),
        ({"delay_ns": -1}, InvalidRequest, "delay"),
        ({"ttl_ns": 0}, InvalidRequest, "ttl"),
        ({"value": None}, InvalidMessage, None),
        ({"priority": 5}, InvalidMessage, None),
        ({"headers": {"gq-producer": b"1:1:1:1"}}, InvalidMessage, None),
        ({"headers": {"\udcff": b""}}, InvalidMessage, None),
        ({"partition": -1}, InvalidPartition, None),
        ({"value": b"v" * (VALUE_BYTES_MAX + 1)}, MessageTooLarge, None),
    ],
)
def test_what_cannot_be_is_refused(changes: dict[str, object], error: type[GoQueueError], path: str | None) -> None:
    with pytest.raises(error) as refused:
        schedule(**changes)

    assert getattr(refused.value, "path", None) == path


def test_a_tombstone_with_a_key_may_recur() -> None:
    assert schedule(value=None, key=b"k", headers={"gq-origin": b"here"}).definition.value is None


# --- catching up -----------------------------------------------------------------------------------


def test_runs_on_time_are_claimed_one_by_one() -> None:
    one = every(1)

    first = begin(one, ns("2026-01-01T00:00:01"))
    settle(one, offset=40)
    second = begin(one, ns("2026-01-01T00:00:02"))

    assert (first, second) == ((ns("2026-01-01T00:00:01"),), (ns("2026-01-01T00:00:02"),))
    assert (one.runs, one.missed, one.last_at_ns) == (1, 0, first[0])
    assert one.history == [PastRun(0, first[0], 5, 0, 40)]


def test_nothing_is_due_twice_or_too_early() -> None:
    one = every(10)

    assert begin(one, ns("2026-01-01T00:00:10") - 1) == ()
    assert begin(one, ns("2026-01-01T00:00:10"))
    settle(one)
    assert begin(one, ns("2026-01-01T00:00:10")) == ()
    assert begin(one, ns("2026-01-01T00:00:01")) == ()


def test_skip_counts_what_was_missed_and_runs_what_is_on_time() -> None:
    one = every(60)

    assert run_until(one, ns("2026-01-01T01:00:05")) == [ns("2026-01-01T01:00")]
    assert (one.runs, one.missed) == (1, 59)


def test_skip_publishes_nothing_that_is_late() -> None:
    one = every(60)

    assert run_until(one, ns("2026-01-01T01:00:06")) == []
    assert (one.runs, one.missed) == (0, 60)
    assert one.next_at_ns == ns("2026-01-01T01:01")


def test_once_makes_one_run_of_all_that_was_missed() -> None:
    one = every(60, catch_up="once")

    assert run_until(one, ns("2026-01-01T01:00:30")) == [ns("2026-01-01T01:00")]
    assert (one.runs, one.missed) == (1, 59)


def test_once_makes_one_run_however_long_it_was() -> None:
    one = every(1, catch_up="once")

    assert run_until(one, ns("2026-01-01T02:00:00")) == [ns("2026-01-01T02:00:00")]
    assert (one.runs, one.missed) == (1, 7_199)


def test_once_lets_each_run_that_is_on_time_be() -> None:
    assert len(run_until(every(1, catch_up="once"), ns("2026-01-01T00:00:04"))) == 4


def test_all_makes_up_for_each_a_bounded_number_at_a_time() -> None:
    one = every(1, catch_up="all")

    first = begin(one, ns("2026-01-01T02:00:00"))
    settle(one)

    assert len(first) == CLAIM_MAX
    assert [*first, *run_until(one, ns("2026-01-01T02:00:00"))] == [
        ns("2026-01-01T00:00:00") + n * SECOND for n in range(1, 7_201)
    ]
    assert (one.runs, one.missed) == (7_200, 0)


def test_all_makes_batches_of_large_messages_no_larger_than_memory_likes() -> None:
    one = every(1, catch_up="all", value=b"v" * VALUE_BYTES_MAX)

    assert len(begin(one, ns("2026-01-01T02:00:00"))) == 3


def test_paused_time_is_not_caught_up() -> None:
    one = every(60, catch_up="all")
    one.pause()
    assert one.next_at_ns is None
    assert begin(one, ns("2026-01-01T05:00:00")) == ()

    one.resume(now_ns=ns("2026-01-01T05:00:30"))

    assert run_until(one, ns("2026-01-01T05:02:00")) == [ns("2026-01-01T05:01:00"), ns("2026-01-01T05:02:00")]
    assert one.missed == 0


def test_to_resume_what_is_not_paused_changes_nothing() -> None:
    one = every(60, catch_up="all")

    one.resume(now_ns=ns("2026-01-01T05:00:30"))

    assert one.next_at_ns == ns("2026-01-01T00:01:00")


def test_to_resume_by_a_clock_that_went_back_runs_nothing_again() -> None:
    one = every(60)
    run_until(one, ns("2026-01-01T05:00:00"))
    one.pause()

    one.resume(now_ns=ns("2026-01-01T04:00:00"))

    assert one.next_at_ns == ns("2026-01-01T05:01:00")


def test_other_times_count_from_now_on() -> None:
    one = schedule(cron="@hourly", catch_up="all")

    one.alter(definition(cron=None, every_ns=60 * SECOND), zones=ZoneInfo, now_ns=ns("2026-01-01T04:00:07"))

    assert one.next_at_ns == ns("2026-01-01T04:01:07")


def test_another_message_leaves_the_times_alone() -> None:
    one = every(60, catch_up="all")
    changed = definition(cron=None, every_ns=60 * SECOND, value=b"other", catch_up="all", end_ns=ns("2026-01-01T00:03"))

    one.alter(changed, zones=ZoneInfo, now_ns=ns("2026-01-01T05:00:00"))

    assert run_until(one, ns("2026-01-01T06:00")) == [ns(f"2026-01-01T00:0{n}") for n in (1, 2, 3)]


def test_a_change_that_is_refused_changes_nothing() -> None:
    one = every(60)
    before = one.kept_definition(), one.kept_state(), one.next_at_ns

    for bad in (
        definition(cron="x"),
        definition(timezone="x"),
        definition(value=None),
        definition(start_ns=2, end_ns=1),
    ):
        with pytest.raises(GoQueueError):
            one.alter(bad, zones=ZoneInfo, now_ns=ns("2026-02-01T00:00"))

    assert (one.kept_definition(), one.kept_state(), one.next_at_ns) == before


# --- claims ----------------------------------------------------------------------------------------


def test_each_claim_has_a_number_of_its_own() -> None:
    one = every(1)
    numbers = []
    for second in range(1, 6):
        begin(one, ns(f"2026-01-01T00:00:0{second}"))
        assert one.claim
        numbers.append((one.claim.number, one.claim.first_run))
        settle(one)

    assert numbers == [(n, n) for n in range(5)]


def test_a_run_out_of_turn_leaves_the_others_where_they_are() -> None:
    one = every(60, paused=True)

    claim = one.begin_now(now_ns=ns("2026-01-01T00:00:17"), partition=3)
    settle(one)
    one.resume(now_ns=ns("2026-01-01T00:00:20"))

    assert (claim.due, claim.partition, claim.is_manual) == ((ns("2026-01-01T00:00:17"),), 3, True)
    assert (one.runs, one.last_at_ns, one.next_at_ns) == (1, claim.due[0], ns("2026-01-01T00:01:00"))


def test_an_error_is_remembered_until_the_run_is_stored() -> None:
    one = every(1)
    begin(one, ns("2026-01-01T00:00:01"))

    one.note_error("no room")
    one.note_error("still no room")
    refused = list(one.history)
    settle(one, offset=8)

    assert [(run.error, run.published_at_ns, run.offset) for run in refused] == [("still no room", None, None)]
    assert [(run.error, run.published_at_ns, run.offset) for run in one.history] == [(None, 5, 8)]
    assert one.runs == 1


def test_a_run_that_can_never_be_stored_is_given_up() -> None:
    one = every(1)
    begin(one, ns("2026-01-01T00:00:01"))

    one.fail("too large")

    assert one.claim is None
    assert (one.runs, one.last_at_ns) == (0, None)
    assert [run.error for run in one.history] == ["too large"]
    assert begin(one, ns("2026-01-01T00:00:02"))
    assert one.claim
    assert (one.claim.number, one.claim.first_run) == (1, 1)


def test_a_claim_older_than_what_the_log_has_counts_as_stored() -> None:
    one = every(1)
    begin(one, ns("2026-01-01T00:00:01"))

    one.settle_fenced(newest=41, now_ns=123)
    begin(one, ns("2026-01-01T00:00:02"))

    assert one.history == [PastRun(0, ns("2026-01-01T00:00:01"), 123, 0, None)]
    assert one.claim
    assert one.claim.number == 42


def test_only_the_last_runs_are_remembered() -> None:
    one = every(1, catch_up="all")

    run_until(one, ns("2026-01-01T00:09:30"))
    run_until(one, ns("2026-01-01T00:10:00"))

    assert len(one.history) == HISTORY_MAX
    assert [run.number for run in one.history] == list(range(500, 600))


# --- kept ------------------------------------------------------------------------------------------


def restored(one: Schedule) -> Schedule:
    return Schedule.restore(one.kept_definition(), one.kept_state(), one.kept_history(), zones=ZoneInfo)


def facts(one: Schedule) -> tuple[object, ...]:
    names = ("topic", "topic_id", "producer_id", "created_at_ns", "anchor_ns", "definition", "paused", "next_at_ns")
    more = ("runs", "missed", "last_at_ns", "claim", "history")
    return tuple(getattr(one, name) for name in (*names, *more))


@given(
    steps=st.lists(st.sampled_from(["due", "settle", "error", "fail", "now", "pause", "resume", "wait"]), max_size=30),
    catch_up=st.sampled_from(["skip", "once", "all"]),
)
@settings(max_examples=100)
def test_a_schedule_that_was_kept_goes_on_as_if_nothing_had_happened(steps: list[str], catch_up: str) -> None:
    one = every(
        7, catch_up=catch_up, key=b"k", headers={"a": b"text", "b": b"\xff"}, timezone="Europe/Berlin", ttl_ns=DAY
    )
    now_ns = ns("2026-01-01T00:00")
    for step in steps:
        match step:
            case "due" if not one.claim:
                begin(one, now_ns)
            case "now" if not one.claim:
                one.begin_now(now_ns=now_ns, partition=1)
            case "settle" if one.claim:
                settle(one)
            case "error" if one.claim:
                one.note_error("refused")
            case "fail" if one.claim:
                one.fail("refused")
            case "pause":
                one.pause()
            case "resume":
                one.resume(now_ns=now_ns)
            case "wait":
                now_ns += 9 * SECOND
        again = restored(one)
        assert facts(again) == facts(one)
        assert again.kept_state() == one.kept_state()
        one = again


def test_the_state_of_an_earlier_schedule_of_that_name_does_not_count() -> None:
    earlier = every(1, catch_up="all")
    run_until(earlier, ns("2026-01-01T00:10:00"))
    later = Schedule(
        definition(), topic="reports", topic_id="t1", producer_id=78, zones=ZoneInfo, now_ns=ns("2026-01-02T00:00")
    )

    again = Schedule.restore(later.kept_definition(), earlier.kept_state(), earlier.kept_history(), zones=ZoneInfo)

    assert facts(again) == facts(later)


def test_a_schedule_whose_zone_is_no_longer_known_waits() -> None:
    one = schedule(timezone="Europe/Berlin")

    def no_zones(name: str) -> tzinfo:
        raise KeyError(name)

    again = Schedule.restore(one.kept_definition(), one.kept_state(), one.kept_history(), zones=no_zones)

    assert again.next_at_ns is None
    assert again.definition == one.definition
