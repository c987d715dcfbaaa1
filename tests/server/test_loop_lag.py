"""The timer that measures the lag of the event loop, on a loop and a clock that the test moves."""

import asyncio
from collections.abc import Callable
from typing import Any, cast

from goqueue.clock import MS, SECOND
from goqueue.server.loop_lag import INTERVAL_NS, LoopLag
from goqueue.server.ticker import SPACING_NS
from goqueue.testing import ManualClock


class Handle:
    """A timer that can be cancelled."""

    is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True


class TimerLoop:
    """Keeps the one timer until the test lets it run."""

    def __init__(self) -> None:
        self.timers: list[tuple[float, Callable[[], None], Handle]] = []

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Handle:
        self.timers.append((delay_s, callback, Handle()))
        return self.timers[-1][2]


def started() -> tuple[TimerLoop, ManualClock, list[int], LoopLag]:
    loop, clock = TimerLoop(), ManualClock()
    lags: list[int] = []
    lag = LoopLag(
        cast("asyncio.AbstractEventLoop", cast("Any", loop)), clock, lambda lag_ns, now_ns: lags.append(lag_ns)
    )
    return loop, clock, lags, lag


def run_after(loop: TimerLoop, clock: ManualClock, late_ns: int) -> None:
    delay_s, callback, _ = loop.timers.pop()
    assert 0 < delay_s <= (INTERVAL_NS + SPACING_NS) / SECOND
    clock.advance(delay_s + late_ns / SECOND)
    callback()


def test_a_timer_says_how_late_it_is() -> None:
    loop, clock, lags, _ = started()

    for late_ms in (0, 3, 2_900, 0):
        run_after(loop, clock, late_ms * MS)

    assert lags == [0, 3 * MS, 2_900 * MS, 0]


def test_a_timer_that_is_stopped_measures_no_more() -> None:
    loop, _, lags, lag = started()

    lag.stop()

    assert [handle.is_cancelled for _, _, handle in loop.timers] == [True]
    assert lags == []
