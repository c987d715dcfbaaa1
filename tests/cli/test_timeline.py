"""The timeline of a message, drawn."""

import io
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from goqueue.cli.timeline import Scale, long_wait_ns, timeline
from goqueue.clock import MS, SECOND
from goqueue.wire.trace_reports import Span, Trace

START_NS = 1_704_067_200 * SECOND
HOUR = 3_600 * SECOND


def span(event_type: str, after_ns: int, **facts: object) -> Span:
    place = {"topic": "orders", "partition": 0, "offset": 42}
    return Span(span_id="a" * 16, event_type=event_type, time_ns=START_NS + after_ns, **{**place, **facts})  # type: ignore[arg-type]


def drawn(*spans: Span, width: int = 80, encoding: str = "utf-8", colours: bool = False) -> list[str]:
    trace = Trace("f" * 32, "orders", 0, 42, START_NS, spans[-1].time_ns, "completed", len(spans), list(spans))
    output = io.StringIO()
    console = Console(file=output, width=width, force_terminal=colours, color_system="standard" if colours else None)
    console.print(timeline(trace, width=width, encoding=encoding))
    return [line.rstrip() for line in output.getvalue().splitlines()]


STORY = (
    span("publish.received", 0),
    span("publish.partitioned", MS // 10),
    span("publish.persisted", MS, duration_ns=MS),
    span("delay.ready", 2 * HOUR, attributes={"deliver_at": "2024-01-01T02:00:00.123456789Z"}),
    span("consume.fetched", 2 * HOUR + MS, group="billing", consumer_id="worker-1", attributes={"attempt": "1"}),
    span(
        "consume.nacked", 2 * HOUR + 3 * MS, group="billing", consumer_id="worker-1", duration_ns=2 * MS, error="boom"
    ),
    span(
        "dlq.routed",
        2 * HOUR + 4 * MS,
        group="billing",
        attributes={"reason": "REJECTED", "dlq_topic": "orders.dlq", "dlq_partition": "0", "dlq_offset": "7"},
    ),
    span("consume.fetched", 2 * HOUR + 5 * MS, group="audit", consumer_id="worker-2"),
    span("consume.acked", 2 * HOUR + 5 * MS, topic="orders.dlq", offset=7, group="audit", consumer_id="worker-2"),
)


def test_a_story_of_hours_fits_into_80_columns() -> None:
    assert (
        "\n".join(drawn(*STORY))
        == """\
      +0s  ●                 publish.received     orders-0 @ 42
   +100us  ●                 publish.partitioned
     +1ms  ━━━               publish.persisted    took 1ms
             ┊               1h59m later
      +2h       ●            delay.ready          deliver_at
                                                  2024-01-01T02:00:00.123Z
+2h0.001s         ●          consume.fetched      billing / worker-1, attempt 1
+2h0.003s         ━━━━━      consume.nacked       billing, took 2ms, error: boom
+2h0.004s               ●    dlq.routed           billing, to orders.dlq-0 @ 7,
                                                  reason REJECTED
+2h0.005s                 ●  consume.fetched      audit / worker-2
+2h0.005s                 ●  consume.acked        orders.dlq-0 @ 7, audit"""
    )


def test_every_line_fits_however_narrow_the_terminal_is() -> None:
    for width in (60, 80, 120, 200):
        assert all(len(line) <= width for line in drawn(*STORY, width=width))


def test_what_happened_is_said_once_and_in_order() -> None:
    text = " ".join(" ".join(drawn(*STORY, width=200)).split())

    parts = (
        "publish.received orders-0 @ 42",
        "publish.partitioned",
        "publish.persisted took 1ms",
        "1h59m later",
        "delay.ready deliver_at 2024-01-01T02:00:00.123Z",
        "consume.fetched billing / worker-1, attempt 1",
        "consume.nacked billing, took 2ms, error: boom",
        "dlq.routed billing, to orders.dlq-0 @ 7, reason REJECTED",
        "consume.fetched audit / worker-2",
        "consume.acked orders.dlq-0 @ 7, audit",
    )
    places = [text.index(part) for part in parts]
    assert places == sorted(places)
    assert text.count("later") == 1


def test_what_took_its_time_reaches_back_to_where_it_began() -> None:
    lines = drawn(
        span("publish.received", 0), span("publish.persisted", 50 * MS, duration_ns=50 * MS), span("x", 100 * MS)
    )

    begin = lines[0].index("●")
    assert lines[1].index("━") == begin
    assert 8 <= lines[1].count("━") <= 9
    assert lines[2].index("●") == begin + 15


def test_no_bar_begins_before_the_trace() -> None:
    lines = drawn(span("publish.received", 0), span("x", MS, duration_ns=HOUR), span("y", 2 * MS, duration_ns=-5))

    assert [line.split()[1][0] for line in lines] == ["●", "━", "●"]


def test_a_terminal_that_knows_only_ascii_is_drawn_on_in_ascii() -> None:
    assert all(line.isascii() for line in drawn(*STORY, encoding="ascii"))
    assert any("===" in line for line in drawn(*STORY, encoding="ascii"))


def test_colours_say_nothing_that_words_do_not() -> None:
    coloured = drawn(*STORY, colours=True)

    assert any("\x1b[31m" in line for line in coloured)
    assert not any("\x1b" in line for line in drawn(*STORY))


def test_nothing_in_a_message_can_steer_the_terminal() -> None:
    hostile = "\x1b[2J\r\n[red]\ud800"
    lines = drawn(
        span(
            hostile,
            0,
            topic=hostile,
            group=hostile,
            consumer_id=hostile,
            error=hostile,
            attributes={hostile: hostile},
        ),
        width=300,
    )

    text = "".join(lines)
    assert "\x1b" not in text
    assert text.count("\\x1b[2J\\x0d\\n[red]") == 7


def test_a_trace_without_spans_is_an_empty_picture() -> None:
    trace = Trace("f" * 32, "orders", 0, 42, START_NS, START_NS, "in_progress", 0)

    assert timeline(trace, width=80).row_count == 0


@pytest.mark.parametrize(
    ("gaps", "long_ns"),
    [
        ([], None),
        ([0], None),
        ([MS, 900 * MS], None),  # nobody minds a second
        ([SECOND, 2 * SECOND, 4 * SECOND, 8 * SECOND], SECOND),
        ([MS, 5 * SECOND], 5 * SECOND),
        ([HOUR, MS, 2 * HOUR], HOUR),
        ([900 * MS, 2 * SECOND, 10 * SECOND], None),
        ([300 * MS] * 4 + [2 * SECOND], None),  # all shorter ones together count
    ],
)
def test_a_wait_is_long_by_comparison(gaps: list[int], long_ns: int | None) -> None:
    assert long_wait_ns(gaps) == long_ns


times = st.lists(
    st.one_of(st.integers(0, 1_000), st.integers(0, 10 * HOUR), st.integers(0, 2**62)), min_size=1, max_size=60
)


@given(times, st.integers(8, 40))
def test_a_scale_keeps_the_order_of_times_and_its_width(times: list[int], columns: int) -> None:
    scale = Scale(times, columns)

    places = [scale.column(time) for time in sorted(times)]

    assert places == sorted(places)
    assert places[0] == 0
    assert all(0 <= place < columns for place in places)
    if len(set(times)) > 1:
        assert places[-1] == columns - 1


@given(times, st.integers(8, 40))
def test_waits_that_are_not_long_are_drawn_to_scale(times: list[int], columns: int) -> None:
    scale = Scale(times, columns)
    gaps = [
        (later - earlier, scale.column(later) - scale.column(earlier))
        for earlier, later in pairwise(sorted(set(times)))
    ]

    short = [(gap, drawn) for gap, drawn in gaps if not scale.is_long(gap)]

    for gap, drawn in short:
        assert all(other_drawn <= drawn + 1 for other, other_drawn in short if other <= gap)
