"""Ticks come at their interval, whatever a tick does; a loop that was blocked is noticed."""

import asyncio
import logging
from collections.abc import Callable, Coroutine

import pytest

from goqueue.clock import MS, SECOND
from goqueue.server.ticker import Ticker
from goqueue.testing import ManualClock


def run(main: Callable[[], Coroutine[object, object, None]]) -> None:
    asyncio.run(asyncio.wait_for(main(), 30))


def test_it_ticks_until_it_is_stopped(clock: ManualClock) -> None:
    async def main() -> None:
        ticked = asyncio.Event()
        counted: list[int] = []

        def tick() -> None:
            counted.append(len(counted))
            if len(counted) == 3:
                ticker.stop()
                ticked.set()

        ticker = Ticker(asyncio.get_running_loop(), clock, tick, interval_ns=MS)
        await ticked.wait()
        later = asyncio.Event()
        asyncio.get_running_loop().call_later(0.01, later.set)
        await later.wait()

        assert counted == [0, 1, 2]

    run(main)


def test_a_tick_that_fails_is_logged_and_the_next_one_comes(
    clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        second = asyncio.Event()
        outcomes = iter(["fail", "go on"])

        def tick() -> None:
            if next(outcomes) == "fail":
                raise RuntimeError("a bug")
            ticker.stop()
            second.set()

        ticker = Ticker(asyncio.get_running_loop(), clock, tick, interval_ns=MS)
        await second.wait()

    run(main)

    (record,) = caplog.records
    assert record.message == "tick failed"
    assert record.exc_info


@pytest.mark.parametrize(("seconds", "warned"), [(0.9, []), (1.5, [1.5])])
def test_a_loop_that_was_blocked_for_a_second_is_warned_of(
    clock: ManualClock, caplog: pytest.LogCaptureFixture, seconds: float, warned: list[float]
) -> None:
    async def main() -> None:
        ticked = asyncio.Event()
        ticker = Ticker(asyncio.get_running_loop(), clock, ticked.set, interval_ns=MS)
        clock.advance(seconds + 0.001)
        await ticked.wait()
        ticker.stop()

    run(main)

    stalls = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert [record.seconds for record in stalls] == warned  # type: ignore[attr-defined]


def test_it_hurries_when_something_is_due_before_its_next_tick(clock: ManualClock) -> None:
    async def main() -> None:
        ticked = asyncio.Event()
        ticker = Ticker(asyncio.get_running_loop(), clock, ticked.set, interval_ns=3_600 * SECOND)

        ticker.wake_at(clock.monotonic_ns() + MS)
        await ticked.wait()
        ticker.stop()

    run(main)


@pytest.mark.parametrize(("blocked_s", "warned"), [(0.0, []), (3.0, [3.0])])
def test_a_time_that_is_over_is_no_sign_of_a_blocked_loop_and_hides_none(
    clock: ManualClock, caplog: pytest.LogCaptureFixture, blocked_s: float, warned: list[float]
) -> None:
    async def main() -> None:
        clock.advance(60)
        ticked = asyncio.Event()
        ticker = Ticker(asyncio.get_running_loop(), clock, ticked.set, interval_ns=SECOND)
        clock.advance(1 + blocked_s if blocked_s else 0)

        ticker.wake_at(clock.monotonic_ns() - 30 * SECOND)  # a delay whose time came while the broker was down
        await ticked.wait()
        ticker.stop()

    run(main)

    assert [record.seconds for record in caplog.records] == warned  # type: ignore[attr-defined]


def test_what_a_tick_asks_for_is_not_forgotten(clock: ManualClock) -> None:
    async def main() -> None:
        second = asyncio.Event()
        count = 0

        def tick() -> None:
            nonlocal count
            count += 1
            if count == 2:
                second.set()
            else:
                ticker.wake_at(clock.monotonic_ns() + MS)

        ticker = Ticker(asyncio.get_running_loop(), clock, tick, interval_ns=3_600 * SECOND)
        ticker.wake_at(clock.monotonic_ns())
        await second.wait()
        ticker.stop()

    run(main)


def test_a_time_behind_the_next_tick_changes_nothing_and_nothing_comes_after_stop(clock: ManualClock) -> None:
    async def main() -> None:
        ticked: list[int] = []
        ticker = Ticker(asyncio.get_running_loop(), clock, lambda: ticked.append(1), interval_ns=3_600 * SECOND)
        ticker.wake_at(clock.monotonic_ns() + 7_200 * SECOND)
        ticker.stop()
        ticker.wake_at(clock.monotonic_ns())
        later = asyncio.Event()
        asyncio.get_running_loop().call_later(0.02, later.set)
        await later.wait()

        assert ticked == []

    run(main)
