"""Consumers that do all that consumers do, at random, until they are told to stop; and processes full of them.

    python -m tests.crash.crowd

is told on its standard input, line by line as JSON, to start a consumer as a process of its own (a fork, so that this
takes no time) or to kill one with `kill -9`; each line is answered with the pid. When its input ends, it waits for all
of them, and kills who does not come to an end.

Consumers are told what to do by files in their directory: when `calm` is there they only acknowledge, when `stop` is
there they leave.
"""

import asyncio
import json
import logging
import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from threading import Event
from time import monotonic
from typing import Any

from goqueue import AsyncClient, Client, Consumer, GoQueueError, Message
from goqueue.errors import ReceiptError
from goqueue.wire.reports import Settlement
from tests.crash.witness import Fact, Witness

ROOT = Path(__file__).parent.parent.parent
END_S = 20
"""How long consumers may take to stop."""
POISONED = 60
"""One message of so many can never be processed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Habits:
    """Which consumer it is, and how it lives. Chances are per message, but for `leave` and `hang`: per poll."""

    name: str
    seed: int
    address: str
    directory: str
    topic: str
    group: str
    mode: str = "partitioned"
    is_async: bool = False
    is_static: bool = False  # comes back with the same id
    batch_max: int = 100
    visibility_s: float = 1.0
    session_s: float = 2.0
    nack: float = 0.04
    reject: float = 0.02
    release: float = 0.02
    extend: float = 0.03
    hold: float = 0.03
    leave: float = 0.005
    hang: float = 0.002


def is_poisoned(message: Message) -> bool:
    """Whether nobody can process it."""
    return int(message.value) % POISONED == 0


class _Blocking:
    """A consumer without an event loop, with the face of one that has: its coroutines never wait."""

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer
        self.settle_soon = consumer.settle_soon

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        async def call(*args: object, **named: object) -> Any:
            return getattr(self._consumer, name)(*args, **named)

        return call


class Worker:
    """One consumer."""

    def __init__(
        self, habits: Habits, connect: Callable[[str | None], Any], pause: Callable[[float], Awaitable[object]]
    ) -> None:
        self._habits = habits
        self._connect = connect
        self._pause = pause
        self._rng = Random(habits.seed)
        self._witness = Witness(Path(habits.directory) / f"{habits.name}.rows")
        self._held: list[tuple[float, list[Message]]] = []

    async def run(self) -> None:
        """Live until `stop`."""
        consumer = self._join()
        try:
            while not self._is("stop"):
                if self._happens(self._habits.leave):
                    await consumer.close()
                    consumer = self._join()
                if self._happens(self._habits.hang):
                    await self._pause(self._habits.session_s * self._rng.uniform(0.5, 2))
                await self._work(consumer)
        finally:
            await consumer.close()
            self._witness.close()

    def _join(self) -> Any:
        return self._connect(self._habits.name if self._habits.is_static else None)

    async def _work(self, consumer: Any) -> None:
        habits, rng = self._habits, self._rng
        try:
            batch = await consumer.poll(rng.randint(1, habits.batch_max), timeout="100ms")
        except GoQueueError:
            return  # the next one finds out what is the matter
        self._witness.note(Fact.DELIVERED, batch)
        parts: dict[str, list[Message]] = {}
        for message in batch:
            parts.setdefault(self._fate(message), []).append(message)
        for fate in rng.sample(sorted(parts), len(parts)):
            await self._settle(consumer, fate, parts[fate])
        now_s = monotonic()
        due = [messages for at_s, messages in self._held if at_s <= now_s or self._is("calm")]
        self._held = [] if self._is("calm") else [one for one in self._held if one[0] > now_s]
        for messages in due:
            await self._settle(consumer, rng.choice(("ack", "ack", "nack", "reject", "forget")), messages)

    def _fate(self, message: Message) -> str:
        habits, drawn = self._habits, self._rng.random()
        if is_poisoned(message):
            return "nack" if self._is("calm") or drawn < 0.7 else "forget"
        if self._is("calm"):
            return "ack"
        for fate in ("nack", "reject", "release", "extend", "hold"):
            drawn -= getattr(habits, fate)
            if drawn < 0:
                return fate
        return "ack"

    async def _settle(self, consumer: Any, fate: str, messages: list[Message]) -> None:
        witness, rng = self._witness, self._rng
        fact = Fact.FAILED
        try:
            match fate:
                case "ack":
                    witness.note(Fact.ACKING, messages)
                    await consumer.ack(messages)
                    fact = Fact.ACKED
                case "reject":
                    witness.note(Fact.REJECTING, messages)
                    await consumer.reject(messages, reason="bad")
                    fact = Fact.REJECTED
                case "nack":
                    await consumer.nack(messages, delay=rng.choice((None, 0, 0.03)))
                    fact = Fact.NACKED
                case "extend":
                    await consumer.extend(messages, self._habits.visibility_s)
                    witness.note(Fact.EXTENDED, messages)
                    return await self._settle(consumer, "ack", messages)
                case "release":
                    for message in messages:
                        consumer.settle_soon(message, Settlement("release"))
                    fact = Fact.RELEASED
                case "hold":
                    self._held.append((monotonic() + rng.uniform(0, 1.5 * self._habits.visibility_s), messages))
                    return None
                case _:
                    return None
        except ReceiptError:
            fact = Fact.REFUSED if len(messages) == 1 else Fact.FAILED  # of many, we are not told which
        except GoQueueError:
            pass
        witness.note(fact, messages)
        return None

    def _happens(self, chance: float) -> bool:
        return self._rng.random() < chance and not self._is("calm")

    def _is(self, word: str) -> bool:
        return os.path.exists(f"{self._habits.directory}/{word}")


def live(habits: Habits, client: Client | None = None) -> None:
    """Be that consumer, in this thread, until it is over; what goes wrong is written down."""
    try:
        if habits.is_async:
            asyncio.run(_live_in_loop(habits))
            return
        with Client(habits.address) if client is None else _lent(client) as gq:
            wait = Event().wait

            async def pause(seconds: float) -> None:
                wait(seconds)

            worker = Worker(habits, lambda name: _Blocking(_consumer(gq, habits, name)), pause)
            with suppress(StopIteration):
                worker.run().send(None)
    except BaseException:
        (Path(habits.directory) / f"{habits.name}.error").write_text(traceback.format_exc())
        raise


async def _live_in_loop(habits: Habits) -> None:
    async with AsyncClient(habits.address) as gq:
        await Worker(habits, lambda name: _consumer(gq, habits, name), _pause_in_loop).run()


async def _pause_in_loop(seconds: float) -> None:
    with suppress(TimeoutError):
        await asyncio.wait_for(asyncio.Event().wait(), seconds)


@contextmanager
def _lent(client: Client) -> Iterator[Client]:
    yield client


def _consumer(gq: Any, habits: Habits, name: str | None) -> Any:
    return gq.consumer(
        habits.topic,
        group=habits.group,
        mode=habits.mode,
        visibility=habits.visibility_s,
        session_timeout=habits.session_s,
        auto_extend=False,
        member_id=name,
    )


class Crowd:
    """Consumers that are processes, and can be killed."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.crash.crowd"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.pids: dict[int, Habits] = {}

    def start(self, habits: Habits) -> int:
        """The pid of the new process."""
        pid = self._tell({"start": asdict(habits)})
        self.pids[pid] = habits
        return pid

    def kill(self, pid: int) -> Habits:
        """Kill it; who it was."""
        self._tell({"kill": pid})
        return self.pids.pop(pid)

    def scatter(self) -> None:
        """Kill all that are left."""
        for pid in list(self.pids):
            self.kill(pid)

    def close(self) -> None:
        """Wait until all are gone by themselves."""
        if self._process.returncode is None:
            self._process.communicate(timeout=2 * END_S)
            assert self._process.returncode == 0
        self.pids.clear()

    def _tell(self, order: dict[str, object]) -> int:
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())


@contextmanager
def crowd() -> Iterator[Crowd]:
    """A crowd that is gone at the end of the block."""
    gathered = Crowd()
    try:
        yield gathered
    except BaseException:
        gathered.scatter()
        raise
    finally:
        gathered.close()


def serve(orders: Iterable[str]) -> None:
    """Start and kill processes as told, then wait for the rest."""
    children: set[int] = set()
    for line in orders:
        order = json.loads(line)
        if "start" in order:
            pid = os.fork()
            if not pid:
                code = 1
                try:
                    live(Habits(**order["start"]))
                    code = 0
                finally:
                    os._exit(code)
            children.add(pid)
        else:
            pid = order["kill"]
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            children.discard(pid)
        print(pid, flush=True)

    def kill_all(*_: object) -> None:
        for child in children:
            os.kill(child, signal.SIGKILL)

    signal.signal(signal.SIGALRM, kill_all)
    signal.alarm(END_S)
    for pid in list(children):
        os.waitpid(pid, 0)
        children.discard(pid)


if __name__ == "__main__":
    logging.getLogger("goqueue").addHandler(logging.NullHandler())  # what is refused is what this is about
    serve(sys.stdin)
