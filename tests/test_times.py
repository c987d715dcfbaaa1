from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from goqueue.times import NS_MAX, NS_MIN, format_duration, format_time, parse_duration, parse_time

US, MS, SECOND = 1_000, 1_000_000, 1_000_000_000
MINUTE, HOUR, DAY = 60 * SECOND, 3_600 * SECOND, 86_400 * SECOND
NOW_NS = 1_800_000_000_000_000_000
INT64 = st.integers(NS_MIN, NS_MAX)


@pytest.mark.parametrize(
    ("written", "ns"),
    [
        ("250ms", 250 * MS),
        ("30s", 30 * SECOND),
        ("1.5h", 90 * MINUTE),
        ("1h30m", 90 * MINUTE),
        ("7d", 7 * DAY),
        ("0s", 0),
        ("-0s", 0),
        ("-5s", -5 * SECOND),
        ("-1m30s", -90 * SECOND),
        ("3ns", 3),
        ("3us", 3 * US),
        ("3µs", 3 * US),
        ("3\u03bcs", 3 * US),
        (".5s", 500 * MS),
        ("0.1s", 100 * MS),
        ("0.000000001s", 1),
        ("1.7ns", 2),
        ("9223372036.854775807s", NS_MAX),
        ("-9223372036.854775808s", NS_MIN),
        (2, 2 * SECOND),
        (0.1, 100 * MS),
        (-1.5, -1_500 * MS),
        (1e-9, 1),
        (timedelta(days=1, microseconds=1), DAY + US),
        (timedelta(seconds=-1), -SECOND),
    ],
)
def test_a_duration_is_taken_to_the_nanosecond(written: Any, ns: int) -> None:
    assert parse_duration(written) == ns


@pytest.mark.parametrize(
    "written",
    [
        "", "0", "30", "1.5", "-", "s", "5 s", " 5s", "5s ", "5S", "5w", "1h-5m", "--5s", "+5s", "1e3s", "1.s", "1..5s",
        "1,5s",        "٣s", "5s\n", "nan", "inf", "1h30", "292y", "300000d", "9223372036.854775808s",
        pytest.param("9" * 5_000 + "s", id="long"),
    ],
)  # fmt: skip
def test_text_that_is_no_duration_is_refused_and_named(written: str) -> None:
    with pytest.raises(ValueError, match="is not a duration|is out of range") as caught:
        parse_duration(written)

    assert repr(written)[:100] in str(caught.value)


@pytest.mark.parametrize(
    "value",
    [
        True,
        False,
        float("nan"),
        float("inf"),
        float("-inf"),
        10**10,
        1e300,
        pytest.param(10**5_000, id="huge"),
        timedelta.max,
        None,
        [1],
    ],
)
def test_a_number_that_is_no_duration_is_refused(value: Any) -> None:
    with pytest.raises(ValueError, match="is not a number of seconds|is out of range"):
        parse_duration(value)


@pytest.mark.parametrize(
    ("ns", "text"),
    [
        (0, "0s"),
        (168 * HOUR, "168h"),
        (MINUTE, "1m"),
        (90 * SECOND, "1m30s"),
        (26 * HOUR + 3 * MINUTE + 500 * MS, "26h3m0.5s"),
        (HOUR + SECOND, "1h1s"),
        (250 * MS, "250ms"),
        (1_500 * US, "1.5ms"),
        (999_999_999, "999.999999ms"),
        (1_500, "1.5us"),
        (7, "7ns"),
        (SECOND + 1, "1.000000001s"),
        (-90 * MINUTE, "-1h30m"),
        (-1, "-1ns"),
        (NS_MAX, "2562047h47m16.854775807s"),
        (NS_MIN, "-2562047h47m16.854775808s"),
    ],
)
def test_a_duration_is_written_without_what_is_zero(ns: int, text: str) -> None:
    assert format_duration(ns) == text


@given(INT64)
@example(NS_MIN)
def test_a_duration_that_was_written_is_read_as_the_same(ns: int) -> None:
    assert parse_duration(format_duration(ns)) == ns


@given(st.integers(0, 10**6), st.integers(0, 10**9 - 1), st.sampled_from([("s", SECOND), ("m", MINUTE), ("h", HOUR)]))
def test_decimals_of_a_duration_are_exact(whole: int, billionths: int, unit: tuple[str, int]) -> None:
    name, unit_ns = unit

    assert parse_duration(f"{whole}.{billionths:09d}{name}") == whole * unit_ns + billionths * unit_ns // 10**9


@pytest.mark.parametrize(
    ("written", "ns"),
    [
        ("1970-01-01T00:00:00Z", 0),
        ("1969-12-31T23:59:59.999999999Z", -1),
        ("2023-11-14T22:13:20.123456789Z", 1_700_000_000_123_456_789),
        ("2023-11-14t22:13:20.5z", 1_700_000_000_500_000_000),
        ("2023-11-14 22:13:20+00:00", 1_700_000_000_000_000_000),
        ("2023-11-15T03:43:20+05:30", 1_700_000_000_000_000_000),
        ("2023-11-14T14:13:20-08:00", 1_700_000_000_000_000_000),
        ("1700000000", 1_700_000_000_000_000_000),
        ("1700000000.5", 1_700_000_000_500_000_000),
        ("1700000000.123456789", 1_700_000_000_123_456_789),
        ("-1", -SECOND),
        (1_700_000_000, 1_700_000_000_000_000_000),
        (1_700_000_000.123456, 1_700_000_000_123_456_000),
        (datetime(1970, 1, 1, 0, 0, 1, 5, tzinfo=UTC), SECOND + 5 * US),
        (datetime(1970, 1, 1, 2, tzinfo=timezone(timedelta(hours=2))), 0),
        ("now", NOW_NS),
        ("2h ago", NOW_NS - 2 * HOUR),
        ("1h30m ago", NOW_NS - 90 * MINUTE),
        ("0s ago", NOW_NS),
    ],
)
def test_a_time_is_taken_to_the_nanosecond(written: Any, ns: int) -> None:
    assert parse_time(written, now_ns=NOW_NS) == ns


@pytest.mark.parametrize(
    "written",
    [
        "", "soon", "2h", "ago", " ago", "2 ago", "-2h ago", "2h  before", "2023-11-14", "2023-11-14T22:13:20",
        "2023-11-14T22:13Z", "2023-11-14T22:13:20.Z",
        "2023-11-14T22:13:20.1234567890Z", "2023-13-14T22:13:20Z", "2023-02-29T22:13:20Z",
        "2023-11-14T24:13:20Z", "2023-11-14T22:13:20+24:00", "2023-11-14T22:13:20+05:60", "2023-11-14T22:13:20+0530",
        "0000-01-01T00:00:00Z", "9999-01-01T00:00:00Z", "1600-01-01T00:00:00Z", "1e9",
        pytest.param("9" * 5_000, id="long"), "1700000000.5Z", "300000d ago",
    ],
)  # fmt: skip
def test_text_that_is_no_time_is_refused_and_named(written: str) -> None:
    with pytest.raises(ValueError, match="is not a time|is out of range") as caught:
        parse_time(written, now_ns=0)

    assert repr(written)[:100] in str(caught.value)


@pytest.mark.parametrize("value", [True, float("nan"), float("inf"), 10**10, datetime(2023, 1, 1), datetime.max, None])
def test_a_value_that_is_no_time_is_refused(value: Any) -> None:
    with pytest.raises(ValueError, match="is not a number of seconds|is out of range|has no time zone"):
        parse_time(value, now_ns=NOW_NS)


@given(INT64)
@example(NS_MIN)
@example(NS_MAX)
def test_a_time_that_was_written_is_read_as_the_same(ns: int) -> None:
    text = format_time(ns)

    assert len(text) == len("1970-01-01T00:00:00.000000000Z")
    assert parse_time(text, now_ns=NOW_NS) == ns


def test_a_time_is_written_with_nine_digits_and_z() -> None:
    assert format_time(0) == "1970-01-01T00:00:00.000000000Z"
    assert format_time(1_700_000_000_500_000_000) == "2023-11-14T22:13:20.500000000Z"


@given(st.text(max_size=40))
def test_no_text_breaks_the_parsers(text: str) -> None:
    for parse in (parse_duration, lambda text: parse_time(text, now_ns=NOW_NS)):
        try:
            parse(text)
        except ValueError:
            pass
