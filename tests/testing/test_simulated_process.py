"""Processes on one loop are stopped, resumed and killed; code in them needs to know nothing of it."""

import asyncio

import pytest

from goqueue.testing.simulated_process import ProcessLoop, SimulatedProcess, current_process
from goqueue.testing.virtual_time import VirtualTimeLoop
from tests.testing.in_virtual_time import after, in_virtual_time


def new_process(name: str = "one") -> SimulatedProcess:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, ProcessLoop)
    return SimulatedProcess(loop, name)


async def ticking(ticks: list[float], every_s: float = 1.0) -> None:
    while True:
        ticks.append(asyncio.get_running_loop().time())
        await after(every_s)


@in_virtual_time
async def test_a_stopped_process_does_nothing_and_then_goes_on() -> None:
    process = new_process()
    ticks: list[float] = []
    process.spawn(ticking(ticks))
    await after(2.5)

    process.stop()
    await after(10)
    process.resume()
    await after(1.5)

    assert ticks == [0.0, 1.0, 2.0, 12.5, 13.5]
    process.kill()


@in_virtual_time
async def test_the_other_processes_go_on_meanwhile() -> None:
    one, two = new_process("one"), new_process("two")
    ticks: list[float] = []
    two.spawn(ticking(ticks))

    one.stop()
    await after(2.5)

    assert ticks == [0.0, 1.0, 2.0]
    two.kill()


@in_virtual_time
async def test_what_comes_in_while_it_is_stopped_waits_in_order() -> None:
    process = new_process()
    seen: list[str] = []
    question: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def waiting_for_an_answer() -> None:
        try:
            async with asyncio.timeout(5):
                seen.append(await question)
        except TimeoutError:
            seen.append("timeout")

    process.spawn(waiting_for_an_answer())
    await after(1)

    process.stop()
    question.set_result("answer")
    await after(30)
    assert seen == []
    process.resume()
    await after(1)

    assert seen == ["answer"]


@in_virtual_time
async def test_a_timer_that_came_due_while_it_was_stopped_fires_when_it_is_resumed() -> None:
    process = new_process()
    fired: list[float] = []
    loop = asyncio.get_running_loop()

    async def sets_timers() -> None:
        loop.call_later(1, lambda: fired.append(loop.time()))
        loop.call_later(2, lambda: fired.append(loop.time())).cancel()

    process.spawn(sets_timers())
    await after(0.5)

    process.stop()
    await after(5)
    process.resume()
    await after(1)

    assert fired == [5.5]


@in_virtual_time
async def test_a_killed_process_ends_with_all_tasks_it_has_started() -> None:
    process = new_process()
    ticks: list[float] = []
    ended: list[str] = []

    async def parent() -> None:
        task = asyncio.get_running_loop().create_task(ticking(ticks))
        assert current_process() is process
        await task

    process.at_kill.append(lambda: ended.append("its connections"))
    process.spawn(parent())
    await after(1.5)

    process.kill()
    await after(5)

    assert process.has_ended
    assert ticks == [0.0, 1.0]
    assert ended == ["its connections"]


@in_virtual_time
async def test_a_stopped_process_can_be_killed() -> None:
    process = new_process()
    ticks: list[float] = []
    process.spawn(ticking(ticks))
    await after(0.5)

    process.stop()
    await after(5)
    process.kill()
    await after(5)

    assert process.has_ended
    assert ticks == [0.0]


@in_virtual_time
async def test_an_error_that_ends_a_task_is_kept() -> None:
    process = new_process()

    async def broken() -> None:
        raise ValueError("a bug")

    process.spawn(broken())
    await after(1)

    assert [str(error) for error in process.errors] == ["a bug"]


def test_a_loop_in_which_no_time_passes_is_a_bug() -> None:
    async def busy() -> None:
        loop = asyncio.get_running_loop()
        while True:
            turn = loop.create_future()
            loop.call_soon(turn.set_result, None)
            await turn

    with pytest.raises(RuntimeError, match="no time passes"), asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(busy())


def test_a_loop_in_which_nothing_will_ever_happen_is_a_bug() -> None:
    async def waits() -> None:
        await asyncio.get_running_loop().create_future()

    with pytest.raises(RuntimeError, match="no timer"), asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(waits())
