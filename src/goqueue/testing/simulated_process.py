"""Processes on one event loop: each can be stopped, resumed and killed, as by the signals of those names.

A process is a context (`contextvars`) and everything that was started in it: tasks inherit the context of the task that
creates them, and so do callbacks and timers. `ProcessLoop` looks at the context of a callback before it runs it. So the
program in a process needs to know nothing of all this, and no wait of it can be forgotten:

    stopped   whatever would run in it is held, in order; its timers come due meanwhile. `resume` runs all of it, as a
              machine does after SIGSTOP and SIGCONT, or after a long pause of the interpreter
    killed    its tasks are cancelled. What they do in their last moments must reach nobody: disks, connections and the
              metadata log of a process that is not alive refuse all calls

What happens outside of processes (a message that travels, the metadata log itself) runs in a context of its own.
"""

import asyncio
import heapq
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from contextvars import Context, ContextVar, copy_context
from typing import Any, TypeVar

from goqueue.testing.virtual_time import VirtualTimeLoop

T = TypeVar("T")

_current: "ContextVar[SimulatedProcess | None]" = ContextVar("process", default=None)


class SimulatedProcess:
    """One process: its tasks, and whether they run."""

    def __init__(self, loop: "ProcessLoop", name: str) -> None:
        self.loop = loop
        self.name = name
        self.is_alive = True
        self.is_stopped = False
        self.context: Context = copy_context()
        self.context.run(_current.set, self)
        self.held: deque[asyncio.Handle] = deque()
        self.errors: list[BaseException] = []  # that ended a task which `spawn` started
        self.at_kill: list[Callable[[], None]] = []  # what else ends with it
        self._tasks: dict[asyncio.Task[Any], None] = {}

    def __repr__(self) -> str:
        return f"<{self.name}>"

    def spawn(self, coroutine: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        """Run it as a task of this process. An error of it that nobody awaits is in `errors`."""
        task = self.loop.create_task(coroutine, context=self.context.copy())
        task.add_done_callback(self._ended)
        return task

    def stop(self) -> None:
        """Let nothing run in it until `resume`."""
        self.is_stopped = True

    def resume(self) -> None:
        """Let it go on with all that has come in meanwhile."""
        self.is_stopped = False
        self.loop.run_all(self.held)
        self.held.clear()

    def kill(self) -> None:
        """End it at once. The tasks end in the next rounds of the loop, at the same time."""
        if not self.is_alive:
            return
        self.is_alive = False
        for end in self.at_kill:
            end()
        for task in list(self._tasks):
            task.cancel()
        self.resume()

    @property
    def has_ended(self) -> bool:
        """Whether it was killed and its last task is done."""
        return not self.is_alive and not self._tasks

    def started(self, task: "asyncio.Task[Any]") -> None:
        """Of the loop: the task belongs to this process."""
        self._tasks[task] = None
        task.add_done_callback(self._forget)
        if not self.is_alive:
            task.cancel()

    def _forget(self, task: "asyncio.Task[Any]") -> None:
        self._tasks.pop(task, None)

    def _ended(self, task: "asyncio.Task[Any]") -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None and self.is_alive:
            self.errors.append(error)


def current_process() -> SimulatedProcess | None:
    """The process whose code runs now."""
    return _current.get()


class _ProcessHandle(asyncio.Handle):
    """A callback of a process."""

    __slots__ = ("process",)
    process: SimulatedProcess

    def _run(self) -> None:
        if self.process.is_stopped:
            self.process.held.append(self)
        else:
            super()._run()


class _ProcessTimer(asyncio.TimerHandle):
    """A timer of a process."""

    __slots__ = ("process",)
    process: SimulatedProcess
    _scheduled: bool

    def _run(self) -> None:
        if self.process.is_stopped:
            self.process.held.append(self)
        else:
            super()._run()


class ProcessLoop(VirtualTimeLoop):
    """A loop with virtual time whose callbacks belong to processes."""

    _ready: deque[asyncio.Handle]
    _scheduled: list[asyncio.TimerHandle]

    def run_all(self, handles: deque[asyncio.Handle]) -> None:
        """Run what was held."""
        self._ready.extend(handle for handle in handles if not handle.cancelled())

    def create_task(
        self,
        coro: "Generator[Any, None, T] | Coroutine[Any, Any, T]",
        *,
        name: object = None,
        context: Context | None = None,
    ) -> "asyncio.Task[T]":
        """A task of the process in whose context it runs."""
        task: asyncio.Task[T] = super().create_task(coro, name=name, context=context)
        process = _current.get() if context is None else context.get(_current)
        if process is not None:
            process.started(task)
        return task

    def _call_soon(
        self, callback: Callable[..., object], args: tuple[Any, ...], context: Context | None
    ) -> asyncio.Handle:
        process = _current.get() if context is None else context.get(_current)
        if process is None:
            handle = asyncio.Handle(callback, args, self, context)
        else:
            handle = _ProcessHandle(callback, args, self, context)
            handle.process = process
        self._ready.append(handle)
        return handle

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """The timer; it is held while its process is stopped."""
        process = _current.get() if context is None else context.get(_current)
        if process is None:
            return super().call_at(when, callback, *args, context=context)
        timer = _ProcessTimer(when, callback, args, self, context)
        timer.process = process
        heapq.heappush(self._scheduled, timer)
        timer._scheduled = True
        return timer
