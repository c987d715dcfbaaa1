"""Jobs run in threads; what comes of them is told in the loop's thread."""

import asyncio
import threading
from collections.abc import Callable

import pytest

from goqueue.server.workers import ThreadWorkers


class CallJob:
    """A job that is a function."""

    def __init__(self, call: Callable[[], object]) -> None:
        self._call = call

    def run(self) -> None:
        self._call()


async def run(workers: ThreadWorkers, call: Callable[[], object]) -> Exception | None:
    told: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
    workers.submit(CallJob(call), told.set_result)
    return await asyncio.wait_for(told, 30)


def in_a_loop(test: Callable[[ThreadWorkers], object], *, threads_max: int = 2) -> None:
    async def main() -> None:
        workers = ThreadWorkers(asyncio.get_running_loop(), threads_max=threads_max)
        try:
            await test(workers)  # type: ignore[misc]
        finally:
            workers.close()

    asyncio.run(main())


def test_a_job_runs_elsewhere_and_is_told_of_here() -> None:
    async def test(workers: ThreadWorkers) -> None:
        ran_in: list[int] = []
        told_in: list[int] = []
        done = asyncio.Event()

        def told(error: Exception | None) -> None:
            assert error is None
            told_in.append(threading.get_ident())
            done.set()

        workers.submit(CallJob(lambda: ran_in.append(threading.get_ident())), told)
        await asyncio.wait_for(done.wait(), 30)

        assert told_in == [threading.get_ident()]
        assert ran_in != told_in

    in_a_loop(test)


def test_what_a_job_raises_is_handed_over() -> None:
    async def test(workers: ThreadWorkers) -> None:
        def fail() -> None:
            raise OSError(28, "No space left on device")

        error = await run(workers, fail)

        assert isinstance(error, OSError)
        assert error.errno == 28
        assert await run(workers, lambda: None) is None

    in_a_loop(test)


def test_no_more_jobs_run_at_once_than_there_are_threads() -> None:
    async def test(workers: ThreadWorkers) -> None:
        gate, both_run = threading.Event(), threading.Barrier(3)
        third: list[str] = []
        for _ in range(2):
            workers.submit(CallJob(lambda: (both_run.wait(30), gate.wait(30))), lambda error: None)
        workers.submit(CallJob(lambda: third.append("ran")), lambda error: None)

        await asyncio.to_thread(both_run.wait, 30)
        assert third == []

        gate.set()
        await workers.idle(grace_s=30)
        assert third == ["ran"]

    in_a_loop(test)


def test_idle_returns_when_all_were_told_also_of_what_followed() -> None:
    async def test(workers: ThreadWorkers) -> None:
        told: list[str] = []

        def follow(error: Exception | None) -> None:
            told.append("first")
            workers.submit(CallJob(lambda: None), lambda error: told.append("second"))

        workers.submit(CallJob(lambda: None), follow)
        await workers.idle(grace_s=30)

        assert told == ["first", "second"]

    in_a_loop(test)


def test_idle_does_not_wait_for_ever() -> None:
    async def test(workers: ThreadWorkers) -> None:
        gate = threading.Event()
        told: list[object] = []
        workers.submit(CallJob(lambda: gate.wait(30)), told.append)

        await workers.idle(grace_s=0.01)

        assert told == []
        gate.set()

    in_a_loop(test)


def test_close_waits_for_what_runs_and_forgets_what_did_not_begin() -> None:
    ran: list[str] = []
    told: list[object] = []

    async def test(workers: ThreadWorkers) -> None:
        begun, gate = threading.Event(), threading.Event()
        workers.submit(CallJob(lambda: (begun.set(), gate.wait(30), ran.append("first"))), told.append)
        workers.submit(CallJob(lambda: ran.append("second")), told.append)
        await asyncio.to_thread(begun.wait, 30)
        threading.Timer(0.01, gate.set).start()

        workers.close()
        workers.submit(CallJob(lambda: ran.append("third")), told.append)
        await asyncio.to_thread(lambda: None)

        assert ran == ["first"]
        assert told == []

    in_a_loop(test, threads_max=1)


@pytest.mark.filterwarnings("error")
def test_a_job_that_outlives_the_loop_harms_nobody() -> None:
    gate, through = threading.Event(), threading.Event()

    async def begin() -> ThreadWorkers:
        workers = ThreadWorkers(asyncio.get_running_loop(), threads_max=1)
        workers.submit(CallJob(lambda: (gate.wait(30), through.set())), lambda error: None)
        return workers

    workers = asyncio.run(begin())
    gate.set()
    workers.close()

    assert through.is_set()
