"""Staging: messages that are stored, hidden from readers, and committed by another client.

    a task      with gq.stage("job/7", marker="job/2026-11-15") as staging:      begin, or find it committed before
                    staging.add("orders", values, keys=keys)                     many at once, stored and hidden
                    owner = staging.prepare()                                    all are stored; small, can be sent

    its driver  gq.commit_staged(owners, marker="job/2026-11-15")                all become visible at once, or none

What was prepared outlives the client that staged it. It ends when its owner is passed to `commit_staged` or
`abort_staged`, when another client stages under the same transactional id, which fences the one before, or when its
timeout is over; until then it holds up read-committed readers of the same partitions. What is left unprepared is
aborted. So the timeout is short, and heartbeats extend it: while the block of a staging is open, the timeout restarts
every third of it, and once more with `prepare`. From then on it is the time that is left for the commit.

Tasks of one job that take longer than that keep each other alive: a heartbeat of a task that names a `job` and a `run`
(one attempt at the job) restarts the timeouts of the whole run. `keep_staged` does the same without staging anything.
The first task of a new run aborts the open transactions of earlier runs of the job. `abort_staged_job` does so at any
time, without knowing the owners.

Nothing is certain to be on the disk of the broker before the commit, which waits for that. So staging does not wait:
messages are sent as fast as the broker accepts them. The owner names the number of records that were sent; if the
broker has fewer, because it lost some in a crash, the commit is refused.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

from goqueue.client.accumulator import NORMAL, MessageColumns
from goqueue.client.transactions import Calls, TransactionalProducer
from goqueue.errors import (
    AvailabilityError,
    GoQueueError,
    InvalidMessage,
    InvalidRequest,
    InvalidTransactionState,
    MessageTooLarge,
)
from goqueue.record.header import KEY_BYTES_MAX, Priority
from goqueue.record.headers import CREATED, DELIVER_AT, RESERVED_PREFIX, Headers
from goqueue.times import NS_MAX, NS_MIN
from goqueue.wire.transaction_reports import BegunTransaction, TransactionOwner

PACE_S = 0.1
"""Messages that are staged at a rate are sent in portions for this long."""
STAGED_TIMEOUT = "60s"
"""How long what is staged outlives the last heartbeat of its tasks, by default."""
BEATS_PER_TIMEOUT = 3
"""So that one heartbeat may be lost, or late."""
_ORIGIN = "gq-origin"
_SHOWN = {DELIVER_AT: "deliver_at", CREATED: "created_at"}
_PRIORITIES = frozenset(int(priority) for priority in Priority)


class AsyncKeeping:
    """Sends heartbeats that restart the timeout of what is staged, while its block is open.

    A heartbeat that fails with a retryable error is followed by the next one; any other error ends the heartbeats.
    """

    def __init__(self, beat: Callable[[], Awaitable[object]], timeout_ms: int) -> None:
        self._beat = beat
        self._interval_s = timeout_ms / 1_000 / BEATS_PER_TIMEOUT
        self._task: asyncio.Task[None] | None = None
        self._beaten_at_s = 0.0  # of the loop's clock

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        self._beaten_at_s = loop.time()
        self._task = loop.create_task(self._keep())
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Send no more heartbeats: from now on the timeout counts."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    async def beat(self) -> None:
        """Restart the timeout now, unless a heartbeat was just sent."""
        now_s = asyncio.get_running_loop().time()
        if now_s - self._beaten_at_s >= self._interval_s / 2:
            with suppress(AvailabilityError, TimeoutError):
                await self._beat_once(now_s)

    def blocking(self, run: Callable[[Coroutine[Any, Any, Any]], Any]) -> "Keeping":
        """The same, for threads without an event loop."""
        return Keeping(self, run)

    async def _keep(self) -> None:
        while True:
            await asyncio.sleep(self._interval_s)
            try:
                await self._beat_once(asyncio.get_running_loop().time())
            except (AvailabilityError, TimeoutError):
                continue
            except GoQueueError:  # the transaction has ended; the next call of its owner raises why
                return

    async def _beat_once(self, now_s: float) -> None:
        async with asyncio.timeout(self._interval_s):
            await self._beat()
        self._beaten_at_s = now_s


class Keeping:
    """Sends heartbeats that restart the timeout of what is staged, while its block is open."""

    def __init__(self, keeping: AsyncKeeping, run: Callable[[Coroutine[Any, Any, Any]], Any]) -> None:
        self._keeping = keeping
        self._run = run

    def __enter__(self) -> Self:
        self._run(self._keeping.__aenter__())
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Send no more heartbeats: from now on the timeout counts."""
        self._run(self._keeping.close())


class AsyncStaging:
    """Messages that another client commits. Made by `AsyncClient.stage`; leaving its block without `prepare` aborts."""

    def __init__(
        self,
        producer: TransactionalProducer,
        call: Calls,
        *,
        timeout_ms: int,
        marker: str | None,
        rate: float | None,
        job: str | None = None,
        run: str = "",
    ) -> None:
        if rate is not None and not rate > 0:
            raise InvalidRequest(f"invalid rate {rate!r}: must be more than 0", path="rate")
        self._producer = producer
        self._timeout_ms = timeout_ms
        self._marker = marker
        self._rate = rate
        self._call = call
        self._job = job
        self._run = run
        self._keeping = AsyncKeeping(self._beat, timeout_ms)
        self._begun: BegunTransaction | None = None
        self._is_over = False
        self._next_at_s = 0.0  # of the loop's clock, when the next message may be sent

    @property
    def already_committed(self) -> bool:
        """Whether its marker was committed before; then there is nothing to do, and nothing can be added."""
        return self._begun is not None and self._begun.already_committed

    async def add(
        self,
        topic: str,
        values: Sequence[bytes | None],
        *,
        keys: Sequence[bytes | None] | None = None,
        headers: Sequence[Headers | None] | None = None,
        priorities: int | Sequence[int] = NORMAL,
        deliver_at_ns: Sequence[int | None] | None = None,
        created_at_ns: Sequence[int | None] | None = None,
        partitions: Sequence[int | None] | None = None,
    ) -> None:
        """Hand over messages, one for each value, in their order; a value of None is a tombstone.

        Waits only while the buffer is full. Raises why an earlier message was not stored, as soon as that is known;
        else `prepare` does. If one of the messages is invalid, none is added.
        """
        self._open()
        publisher = self._producer.publisher
        for name, column in (
            ("keys", keys),
            ("headers", headers),
            ("priorities", priorities),
            ("deliver_at_ns", deliver_at_ns),
            ("created_at_ns", created_at_ns),
            ("partitions", partitions),
        ):
            if column is not None and not isinstance(column, int) and len(column) != len(values):
                raise InvalidRequest(f"{len(column)} {name} for {len(values)} values", path=name)
        columns = _checked(MessageColumns(values, keys, headers, priorities))
        if deliver_at_ns is not None:
            now_ns = publisher.wall_ns()
            due_ns = [due_ns if due_ns is not None and due_ns > now_ns else None for due_ns in deliver_at_ns]
            columns = columns._replace(headers=_with_times(columns, DELIVER_AT, due_ns))
        if created_at_ns is not None:
            columns = columns._replace(headers=_with_times(columns, CREATED, created_at_ns))
        if not values:
            return
        if not publisher.engine.is_ready_for(topic, max(filter(None, values), key=len, default=b"")):
            await publisher.learn(topic)
        if self._rate is None:
            await self._send(topic, columns, partitions)
            return
        step = max(1, round(self._rate * PACE_S))
        for start in range(0, len(values), step):
            part = columns.slice(start, start + step)
            await self._pace(self._rate, len(part.values))
            await self._send(topic, part, partitions and partitions[start : start + step])

    async def prepare(self) -> TransactionOwner:
        """Wait until all that was added is stored; the owner for `commit_staged`. Otherwise abort, and raise why."""
        begun = self._open()
        self._is_over = True
        owner = await self._producer.prepare(begun)
        await self._keeping.close()
        await self._keeping.beat()
        return owner

    async def close(self) -> None:
        """Abort it, unless it was prepared."""
        self._is_over = True
        await self._keeping.close()
        await self._producer.close()

    async def __aenter__(self) -> Self:
        if self._begun is not None:
            raise InvalidTransactionState("staged already", self._producer.transactional_id, "Ongoing")
        try:
            self._begun = await self._begin()
        except AvailabilityError:  # if only the answer was lost, the next attempt fences what it began
            self._begun = await self._begin()
        if not self._begun.already_committed:
            await self._keeping.__aenter__()
        return self

    async def _begin(self) -> BegunTransaction:
        return await self._producer.begin(self._marker, self._timeout_ms, job=self._job, run=self._run)

    async def _beat(self) -> None:
        if self._job is not None:
            await self._call("transactions.keep_job", int, job=self._job, run=self._run)
        elif self._begun is not None:
            begun = self._begun
            owner = TransactionOwner(self._producer.transactional_id, begun.producer_id, begun.epoch, begun.number)
            await self._call("transactions.keep", None, owners=[owner])

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    def blocking(self, run: Callable[[Coroutine[Any, Any, Any]], Any]) -> "Staging":
        """The same, for threads without an event loop."""
        return Staging(self, run)

    def _open(self) -> BegunTransaction:
        begun = self._begun
        if begun is None or begun.already_committed or self._is_over:
            raise InvalidTransactionState("no transaction open", self._producer.transactional_id, "Empty")
        return begun

    async def _send(self, topic: str, columns: MessageColumns, partitions: Sequence[int | None] | None) -> None:
        publisher = self._producer.publisher
        await publisher.room()
        if (failure := publisher.engine.failure) is not None:
            raise failure
        publisher.add_bulk(topic, columns, partitions)

    async def _pace(self, rate: float, count: int) -> None:
        """Wait until so many more may be sent."""
        loop = asyncio.get_running_loop()
        now_s = loop.time()
        self._next_at_s = max(self._next_at_s, now_s)
        if self._next_at_s > now_s:
            await asyncio.sleep(self._next_at_s - now_s)
        self._next_at_s += count / rate


class Staging:
    """Messages that another client commits. Made by `Client.stage`; leaving its block without `prepare` aborts."""

    def __init__(self, staging: AsyncStaging, run: Callable[[Coroutine[Any, Any, Any]], Any]) -> None:
        self._staging = staging
        self._run = run

    @property
    def already_committed(self) -> bool:
        """Whether its marker was committed before; then there is nothing to do, and nothing can be added."""
        return self._staging.already_committed

    def add(
        self,
        topic: str,
        values: Sequence[bytes | None],
        *,
        keys: Sequence[bytes | None] | None = None,
        headers: Sequence[Headers | None] | None = None,
        priorities: int | Sequence[int] = NORMAL,
        deliver_at_ns: Sequence[int | None] | None = None,
        created_at_ns: Sequence[int | None] | None = None,
        partitions: Sequence[int | None] | None = None,
    ) -> None:
        """Hand over messages, one for each value, in their order; a value of None is a tombstone.

        Waits only while the buffer is full. Raises why an earlier message was not stored, as soon as that is known;
        else `prepare` does. If one of the messages is invalid, none is added.
        """
        self._run(
            self._staging.add(
                topic,
                values,
                keys=keys,
                headers=headers,
                priorities=priorities,
                deliver_at_ns=deliver_at_ns,
                created_at_ns=created_at_ns,
                partitions=partitions,
            )
        )

    def prepare(self) -> TransactionOwner:
        """Wait until all that was added is stored; the owner for `commit_staged`. Otherwise abort, and raise why."""
        owner: TransactionOwner = self._run(self._staging.prepare())
        return owner

    def close(self) -> None:
        """Abort it, unless it was prepared."""
        self._run(self._staging.close())

    def __enter__(self) -> Self:
        self._run(self._staging.__aenter__())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def _checked(columns: MessageColumns) -> MessageColumns:
    """The messages, if all of them may be published."""
    values, keys, headers, priorities = columns
    if keys is not None:
        longest = max((len(key) for key in keys if key), default=0)
        if longest > KEY_BYTES_MAX:
            index = next(index for index, key in enumerate(keys) if key and len(key) == longest)
            raise MessageTooLarge("key", longest, KEY_BYTES_MAX, index=index)
    if None in values:
        for index, value in enumerate(values):
            if value is None and (keys is None or keys[index] is None):
                raise InvalidMessage(f"message {index}: a tombstone needs the key that it deletes", index=index)
    if headers is not None:
        names: set[str] = set().union(*filter(None, headers))
        for name in names:
            if str(name).startswith(RESERVED_PREFIX) and name != _ORIGIN:
                reserved = f"names that start with {RESERVED_PREFIX} are the broker's own"
                raise InvalidMessage(f"header name {name!r}: {reserved}")
        kinds = {type(text) for one in headers if one for text in one.values()} - {str, bytes, type(None)}
        if kinds:
            raise InvalidMessage(f"header value must be str, bytes or None, got {kinds.pop().__name__}")
    wrong = {priorities} - _PRIORITIES if isinstance(priorities, int) else set(priorities) - _PRIORITIES
    if wrong:
        raise InvalidMessage(f"invalid priority {next(iter(wrong))!r}: must be 0 to 4")
    return columns


def _with_times(columns: MessageColumns, name: str, times_ns: Sequence[int | None]) -> list[Headers | None]:
    """The headers, with the time of that name in those of the messages that have one."""
    for index, time_ns in enumerate(times_ns):
        if time_ns is not None and not NS_MIN <= time_ns <= NS_MAX:
            shown = _SHOWN[name]
            raise InvalidMessage(f"message {index}: invalid {shown}: before the year 1677 or after 2262", index=index)
    headers = columns.headers or [None] * len(columns.values)
    return [
        own if time_ns is None else {name: str(time_ns), **(own or {})}
        for time_ns, own in zip(times_ns, headers, strict=True)
    ]
