"""Timers call in the order of their times, once, and forget what was cancelled."""

from hypothesis import given
from hypothesis import strategies as st

from goqueue.broker.timers import Timers
from goqueue.clock import SECOND


def test_timers_call_in_the_order_of_their_times_and_once() -> None:
    timers, called = Timers(), list[int]()
    for number in (3, 1, 2, 1):
        timers.at(number * SECOND, lambda number=number: called.append(number))  # type: ignore[misc]

    timers.tick(SECOND - 1)
    assert called == []
    timers.tick(2 * SECOND)
    assert called == [1, 1, 2]
    timers.tick(10 * SECOND)
    timers.tick(20 * SECOND)
    assert called == [1, 1, 2, 3]


def test_a_timer_that_was_called_off_is_not_called_and_does_not_pile_up() -> None:
    timers, called = Timers(), list[int]()
    kept = [timers.at(SECOND, lambda: called.append(1)) for _ in range(100)]

    for _ in range(20_000):
        timers.at(10**15, lambda: called.append(2)).cancel()
        assert len(timers) <= 1_200
    kept[0].cancel()
    timers.tick(2 * SECOND)

    assert called == [1] * 99


def test_a_timer_may_set_another() -> None:
    timers, called = Timers(), list[int]()
    timers.at(1, lambda: called.extend([1] if timers.at(5, lambda: called.append(5)) is None else []))

    timers.tick(4)
    assert called == []
    timers.tick(5)
    assert called == [5]


@given(
    timers=st.lists(st.tuples(st.integers(0, 50), st.booleans()), max_size=200),
    ticks=st.lists(st.integers(0, 50), max_size=10),
)
def test_each_timer_is_called_at_the_first_tick_of_its_time_unless_it_was_cancelled(
    timers: list[tuple[int, bool]], ticks: list[int]
) -> None:
    made, called = Timers(), list[tuple[int, int]]()
    for number, (time_ns, is_cancelled) in enumerate(timers):
        timer = made.at(time_ns, lambda call=(time_ns, number): called.append(call))  # type: ignore[misc]
        if is_cancelled:
            timer.cancel()

    for now_ns in sorted(ticks):
        made.tick(now_ns)
        kept = ((time_ns, number) for number, (time_ns, is_cancelled) in enumerate(timers) if not is_cancelled)
        assert called == sorted(call for call in kept if call[0] <= now_ns)
