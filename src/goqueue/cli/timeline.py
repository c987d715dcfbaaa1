"""The timeline of a message as lines for a terminal.

        +0s  ●                publish.received     orders-0 @ 42
     +1.2ms  ━━━              publish.persisted    took 1.2ms
               ┊              2h later
    +2h0.5s     ●             consume.fetched      billing / worker-1, attempt 1

A bar ends at its event and starts where the event began. The scale is linear except for long waits, which would leave
no room for anything else: each of them takes the same few columns, and a line names its length.
"""

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise

from rich.table import Table
from rich.text import Text

from goqueue.cli.output import lasting, one_line, plain
from goqueue.clock import MS, SECOND
from goqueue.times import format_duration
from goqueue.wire.trace_reports import Span, Trace

BAR_COLUMNS_MIN = 8
BAR_COLUMNS_MAX = 40
OTHER_COLUMNS = 64
"""The width of everything but the bars; in 80 columns the bars have 16."""
LONG_NS = SECOND
LONG_FACTOR = 5
"""A wait is long if it exceeds this many times the sum of all shorter ones."""
LONG_COLUMNS = 3
_PLACE_OF_LETTER = ("dlq_topic", "dlq_partition", "dlq_offset")
_NANOSECONDS = re.compile(r"(?<=\.\d{3})\d{6}(?=Z$)")
_STYLES = {"publish": "blue", "consume": "cyan", "delay": "magenta", "visibility": "yellow", "dlq": "red"}
_FAILURES = frozenset(("consume.nacked", "consume.rejected", "visibility.timeout", "delay.expired", "dlq.routed"))


def timeline(trace: Trace, *, width: int, encoding: str = "utf-8") -> Table:
    """One line for each event of a message, `width` columns wide."""
    point, bar, pause = "●━┊" if encoding.lower().startswith("utf") else "*=:"
    bar_columns = max(BAR_COLUMNS_MIN, min(BAR_COLUMNS_MAX, width - OTHER_COLUMNS))
    scale = Scale([time for span in trace.spans for time in _reach(span, trace)], bar_columns)
    made = Table(box=None, show_header=False, pad_edge=False, padding=(0, 1))
    made.add_column(no_wrap=True, justify="right")
    made.add_column(no_wrap=True, width=bar_columns)
    made.add_column(no_wrap=True)
    made.add_column(overflow="fold", ratio=1)
    before: Span | None = None
    who = ("", "")  # the group and the consumer of the last line that named them
    for span in trace.spans:
        if before is not None and scale.is_long(span.time_ns - before.time_ns):
            waited = f"{lasting(span.time_ns - before.time_ns)} later"
            made.add_row("", Text(" " * scale.column(before.time_ns) + pause, "dim"), Text(waited, "dim"), "")
        began, ended = (scale.column(time) for time in _reach(span, trace))
        drawn = point if began == ended else bar * (ended - began + 1)
        style = _style(span)
        made.add_row(
            f"+{_since(span.time_ns - trace.start_ns)}",
            Text(" " * began + drawn, style),
            Text(_safe(span.event_type), style),
            plain(", ".join(_details(span, before, who))),
        )
        before, who = span, (span.group, span.consumer_id) if span.consumer_id else who
    return made


class Scale:
    """Maps times to columns, in the order of time."""

    def __init__(self, times: Sequence[int], columns: int) -> None:
        known = sorted(set(times))
        gaps = [later - earlier for earlier, later in pairwise(known)]
        self._long_ns = long_wait_ns(gaps)
        short_ns = sum(gap for gap in gaps if not self.is_long(gap))
        long_count = sum(map(self.is_long, gaps))
        room = float(columns - 1)
        long_room = min(LONG_COLUMNS * long_count, room / 2) if short_ns else room
        at = 0.0
        self._columns = dict.fromkeys(known[:1], 0)
        for time, gap in zip(known[1:], gaps, strict=True):
            at += long_room / long_count if self.is_long(gap) else gap / short_ns * (room - long_room)
            self._columns[time] = min(columns - 1, round(at))

    def is_long(self, gap_ns: int) -> bool:
        """Whether a wait is drawn shorter than to scale."""
        return self._long_ns is not None and gap_ns >= self._long_ns

    def column(self, time_ns: int) -> int:
        """The column of one of the times, from 0 on."""
        return self._columns[time_ns]


def long_wait_ns(gaps: Sequence[int]) -> int | None:
    """The shortest wait that is too long to be drawn to scale; None if there is none."""
    shorter_ns = 0
    for gap in sorted(gaps):
        if gap >= LONG_NS and gap > LONG_FACTOR * shorter_ns:
            return gap
        shorter_ns += gap
    return None


def _reach(span: Span, trace: Trace) -> tuple[int, int]:
    """The start and the end of an event; it never starts before the trace."""
    return max(min(trace.start_ns, span.time_ns), span.time_ns - max(0, span.duration_ns or 0)), span.time_ns


def _style(span: Span) -> str:
    if span.error or span.event_type in _FAILURES:
        return "red"
    return "green" if span.event_type == "consume.acked" else _STYLES.get(span.event_type.partition(".")[0], "")


def _since(duration_ns: int) -> str:
    """The time since the start of the trace, at least to the millisecond: events hours later must differ, too."""
    fineness = 1_000 if duration_ns < MS else MS // 10 if duration_ns < SECOND else MS
    return format_duration(duration_ns // fineness * fineness)


def _details(span: Span, before: Span | None, who: tuple[str, str]) -> Iterator[str]:
    place = span.topic, span.partition, span.offset
    if before is None or place != (before.topic, before.partition, before.offset):
        yield _safe(f"{span.topic}-{span.partition} @ {span.offset}")
    consumer = span.group, span.consumer_id
    if named := span.group if consumer == who else " / ".join(filter(None, consumer)):
        yield _safe(named)
    attributes = dict(span.attributes)
    if attributes.keys() >= set(_PLACE_OF_LETTER):
        yield _safe("to {}-{} @ {}".format(*map(attributes.pop, _PLACE_OF_LETTER)))
    for name, value in attributes.items():
        yield _safe(f"{name} {_NANOSECONDS.sub('', value)}")
    if span.duration_ns:
        yield f"took {lasting(span.duration_ns)}"
    if span.error:
        yield _safe(f"error: {span.error}")


def _safe(text: str) -> str:
    return one_line(text.encode("utf-8", "backslashreplace"))
