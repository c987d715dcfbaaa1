"""The clocks of a machine run, jump and are wrong as they are told."""

import asyncio

from goqueue.clock import SECOND
from goqueue.testing.clock import START_WALL_NS
from goqueue.testing.simulated_time import SimulatedTime
from tests.testing.in_virtual_time import after, in_virtual_time


@in_virtual_time
async def test_a_fast_clock_sees_more_time_pass() -> None:
    loop = asyncio.get_running_loop()
    time = SimulatedTime(loop, rate=2.0)

    await after(3)

    assert time.now() == (6 * SECOND, START_WALL_NS + 6 * SECOND)


@in_virtual_time
async def test_a_second_of_a_slow_clock_is_long() -> None:
    slow = SimulatedTime(asyncio.get_running_loop(), rate=0.5)

    assert slow.real_s(1) == 2


@in_virtual_time
async def test_the_monotonic_clock_neither_jumps_nor_goes_back() -> None:
    loop = asyncio.get_running_loop()
    time = SimulatedTime(loop)
    await after(2)

    time.jump(-3600 * SECOND)
    time.set_rate(0.5)

    assert time.now() == (2 * SECOND, START_WALL_NS - 3598 * SECOND)
    await after(2)
    assert time.now().monotonic_ns == 3 * SECOND
