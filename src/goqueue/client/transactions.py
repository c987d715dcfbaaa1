"""Transactions: messages, acks and positions that are committed together, or not at all.

    with gq.transaction("billing-1") as tx:         begin
        tx.publish("invoices", ...)                 stored, and hidden from readers
        tx.ack(message)                             noted, and the lease is held
                                                    commit; or abort, if an exception leaves the block

A client has one producer for each transactional id. Its first transaction initializes it, which fences the producer
that used the id before. It keeps its sequence numbers from one transaction to the next. After a failure it is unknown
which of them the broker has seen, so the next transaction starts with a new epoch. A fenced producer stays fenced:
another one has taken its place, and to take it back would fence that one in turn.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from contextlib import suppress
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar, Unpack

from goqueue.client.consumer import AsyncConsumer, Consumer, standing_of
from goqueue.client.delivered import AsyncDelivered, Delivered, by_connection
from goqueue.client.handles import AsyncHandle, Handle, Published
from goqueue.client.loop_publisher import LoopPublisher
from goqueue.client.messages import key_and_value, several
from goqueue.client.options import MessageOptions, same_parameters_as, shows
from goqueue.client.producer import AsyncProducer, Producer
from goqueue.errors import (
    AvailabilityError,
    GoQueueError,
    InvalidRequest,
    InvalidTransactionState,
    ProducerFenced,
    TransactionError,
)
from goqueue.wire.reports import PositionCommit, Settlement
from goqueue.wire.transaction_reports import (
    BegunTransaction,
    ProducerSession,
    TransactionOutcome,
    TransactionOwner,
)

COMMITTED = "CompleteCommit"
"""The state of a transactional id whose last transaction was committed."""
CLOSE_TIMEOUT_S = 5.0

T = TypeVar("T")
Positions = Mapping[tuple[str, int], int]
"""By topic and partition, the offset of the next message to read."""


class Calls(Protocol):
    """Calls a verb of the broker."""

    async def __call__(self, verb: str, answer_type: type[T] | None, **arguments: object) -> T: ...


class Sends(Protocol):
    """Calls a verb without waiting for its answer, after everything that the client has sent before."""

    def __call__(self, verb: str, answer_type: type[T], **arguments: object) -> "asyncio.Future[T] | None":
        """None if there is no connection, or if the broker of the verb may not be the leader of the partitions."""


class TransactionalProducer:
    """The producer of one transactional id.

    Begin, messages and commit are pipelined over one connection. The producer waits for answers only at the end, and
    before the first ack, which may take another connection. That is safe because the producer numbers its transactions
    itself, and the commit says how many records it has sent.
    """

    def __init__(self, transactional_id: str, publisher: LoopPublisher, call: Calls, send: Sends) -> None:
        self.transactional_id = transactional_id
        self.publisher = publisher
        self._call = call
        self._send = send
        self._session: ProducerSession | None = None
        self._timeout_ms = 0  # of the session
        self._number = 0
        self._beginning: asyncio.Future[BegunTransaction] | None = None
        self._fenced: ProducerFenced | None = None
        self._open: BegunTransaction | None = None
        self._ended: asyncio.Event | None = None  # set when the commit or abort that is running has ended
        self.is_busy = False  # one is open, or about to be, or about to end

    async def begin(
        self, marker: str | None, timeout_ms: int, *, job: str | None = None, run: str = ""
    ) -> BegunTransaction:
        """Begin the next transaction, which may be part of a run of a job."""
        if self._fenced is not None:
            raise self._fenced
        if self.is_busy:
            raise InvalidTransactionState("transaction already in progress", self.transactional_id, "Ongoing")
        self.is_busy = True
        try:
            begun = await self._begin(marker, timeout_ms, job, run)
        except BaseException:
            self.is_busy = False
            self._session = None  # if only the answer was lost, the broker has one open
            raise
        if begun.already_committed:
            self.is_busy = False
        else:
            self._open = begun
            self.publisher.engine.begin_transaction(begun.number)
        return begun

    async def _begin(self, marker: str | None, timeout_ms: int, job: str | None, run: str) -> BegunTransaction:
        session = self._session
        if session is None or timeout_ms != self._timeout_ms:
            session = await self._init(timeout_ms)
        number, self._number = self._number, self._number + 1
        arguments: dict[str, object] = {
            "transactional_id": self.transactional_id,
            "producer_id": session.producer_id,
            "epoch": session.epoch,
            "marker": marker,
            "number": number,
        }
        if job is not None:
            arguments |= {"job": job, "run": run}
        self._beginning = None
        if marker is None and job is None:
            self._beginning = self._send("transactions.begin", BegunTransaction, **arguments)
        if self._beginning is not None:
            self._beginning.add_done_callback(_look_at)
            return BegunTransaction(f"{self.transactional_id}:{number}", session.producer_id, session.epoch, number)
        try:
            return await self._fencing(self._call("transactions.begin", BegunTransaction, **arguments))
        except (AvailabilityError, asyncio.CancelledError):
            self._abandon(TransactionOwner(self.transactional_id, session.producer_id, session.epoch, number))
            raise

    async def begun(self) -> None:
        """Return when the broker knows the transaction; raises why it does not."""
        if self._beginning is not None:
            await self._fencing(asyncio.shield(self._beginning))

    async def end(self, begun: BegunTransaction, *, commit: bool, marker: str | None = None) -> TransactionOutcome:
        """Commit or abort. If a message is not stored, abort, and raise why."""
        owner = TransactionOwner(self.transactional_id, begun.producer_id, begun.epoch, begun.number)
        session, self._session = self._session, None  # for good, if this is cut short
        self._open = None
        ended = self._ended = asyncio.Event()
        try:
            outcome, is_whole = await (self._commit(owner, marker) if commit else self._abort(owner))
        except BaseException:  # an open transaction holds up readers: abort it if it is still open
            self._abandon(owner)
            raise
        finally:
            self._ended = None
            self.is_busy = False
            ended.set()
        if is_whole:
            self._session = session
        return outcome

    async def prepare(self, begun: BegunTransaction) -> TransactionOwner:
        """Store all of it and leave it open, to be committed by another client that names this owner. If a message
        cannot be stored, abort, and raise why.
        """
        owner = TransactionOwner(self.transactional_id, begun.producer_id, begun.epoch, begun.number)
        self._session = self._open = None
        ended = self._ended = asyncio.Event()
        try:
            self.publisher.seal_transaction()
            await self.publisher.flush()
            owner.record_count = self.publisher.engine.sent_count
            failure, _ = self.publisher.end_transaction()
            failure = await self._begin_failure() or failure
            if failure is not None:
                raise failure
        except BaseException:
            self._abandon(owner)
            raise
        finally:
            self._ended = None
            self.is_busy = False
            ended.set()
        return owner

    async def close(self) -> None:
        """Abort what is open; wait for a commit or an abort that is running."""
        if self._ended is not None:
            await self._ended.wait()
        if self._open is not None:
            with suppress(GoQueueError, TimeoutError):
                async with asyncio.timeout(CLOSE_TIMEOUT_S):
                    await self.end(self._open, commit=False)
        await self.publisher.close(flush=False)

    async def _commit(self, owner: TransactionOwner, marker: str | None) -> tuple[TransactionOutcome, bool]:
        self.publisher.seal_transaction()
        asked = self._commit_pipelined(owner, marker)
        await self.publisher.flush()
        failure, is_whole = self.publisher.end_transaction()
        failure = await self._begin_failure() or failure
        if asked is not None:
            try:
                return await self._fencing(asked), is_whole
            except (InvalidTransactionState, AvailabilityError):  # messages were sent again, or the outcome is unknown
                pass
            except GoQueueError:
                if failure is None:
                    raise
        if failure is not None:
            return await self._give_up(owner, failure), False
        arguments = {"owner": owner, "marker": marker}
        return await self._fencing(self._call("transactions.commit", TransactionOutcome, **arguments)), is_whole

    def _commit_pipelined(
        self, owner: TransactionOwner, marker: str | None
    ) -> "asyncio.Future[TransactionOutcome] | None":
        """Send the commit right after the last messages, if all of them were sent."""
        count = self.publisher.send_rest()
        if count is None:
            return None
        counted = TransactionOwner(owner.transactional_id, owner.producer_id, owner.epoch, owner.number, count)
        asked = self._send("transactions.commit", TransactionOutcome, owner=counted, marker=marker)
        if asked is not None:
            asked.add_done_callback(_look_at)
        return asked

    async def _begin_failure(self) -> GoQueueError | None:
        """Why the broker refused to begin, which is why the rest failed; None if it did not, or the answer is lost."""
        beginning, self._beginning = self._beginning, None
        if beginning is not None:
            try:
                await self._fencing(beginning)
            except AvailabilityError:
                return None
            except GoQueueError as error:
                return error
        return None

    async def _give_up(self, owner: TransactionOwner, failure: GoQueueError) -> TransactionOutcome:
        """Abort and raise the failure; unless a pipelined commit turns out to have been carried out."""
        if isinstance(failure, AvailabilityError):  # the broker cannot be reached, and the outcome is unknown
            raise failure
        try:
            await self._fencing(self._call("transactions.abort", TransactionOutcome, owner=owner))
        except InvalidTransactionState as refused:
            if refused.state == COMMITTED:
                return TransactionOutcome("committed", already=True)
        except AvailabilityError as error:
            if isinstance(failure, TransactionError):  # which may be so because it is committed
                raise error from failure
        except GoQueueError:
            pass
        raise failure

    async def _abort(self, owner: TransactionOwner) -> tuple[TransactionOutcome, bool]:
        _, is_whole = self.publisher.end_transaction()
        self._beginning = None
        return await self._fencing(self._call("transactions.abort", TransactionOutcome, owner=owner)), is_whole

    def _abandon(self, owner: TransactionOwner) -> None:
        """Abort without waiting. If the broker cannot be reached, the timeout of the transaction does it."""
        self.publisher.end_transaction()
        with suppress(GoQueueError):
            aborting = self._send("transactions.abort", TransactionOutcome, owner=owner)
            if aborting is not None:
                aborting.add_done_callback(_look_at)

    async def _init(self, timeout_ms: int) -> ProducerSession:
        arguments = {"transactional_id": self.transactional_id, "timeout_ms": timeout_ms}
        session = self._session = await self._call("transactions.init", ProducerSession, **arguments)
        self._timeout_ms = timeout_ms
        self._number = session.next_number
        self.publisher.engine.identify(session.producer_id, session.epoch)
        return session

    async def _fencing(self, asked: Awaitable[T]) -> T:
        try:
            return await asked
        except ProducerFenced as error:
            self._fenced = error
            raise


def _look_at(future: "asyncio.Future[Any]") -> None:
    """Retrieve the outcome: asyncio logs an exception that is never retrieved."""
    if not future.cancelled():
        future.exception()


class _Transaction:
    """The common part of `Transaction` and `AsyncTransaction`."""

    def __init__(self, producer: TransactionalProducer, timeout_ms: int, marker: str | None, call: Calls) -> None:
        self._producer = producer
        self._timeout_ms = timeout_ms
        self._marker = marker
        self._call = call
        self._begun: BegunTransaction | None = None
        self._is_over = False

    @property
    def id(self) -> str:
        """The id of the transaction at the broker."""
        return self._open().transaction_id

    @property
    def already_committed(self) -> bool:
        """Whether its marker was committed before; then there is nothing to do, and nothing can be added."""
        return self._begun is not None and self._begun.already_committed

    def _open(self) -> BegunTransaction:
        begun = self._begun
        if begun is None or begun.already_committed or self._is_over:
            raise InvalidTransactionState("no transaction open", self._producer.transactional_id, "Empty")
        return begun

    async def _settlement(self) -> Settlement:
        begun = self._open()
        await self._producer.begun()
        return Settlement("ack", transaction_id=begun.transaction_id)

    async def _do_begin(self) -> None:
        if self._begun is not None:
            raise InvalidTransactionState("transaction already in progress", self._producer.transactional_id, "Ongoing")
        self._begun = await self._producer.begin(self._marker, self._timeout_ms)

    async def _end(self, *, commit: bool) -> None:
        begun = self._open()
        self._is_over = True
        await self._producer.end(begun, commit=commit, marker=self._marker)

    async def _leave(self, error: BaseException | None) -> None:
        if self._is_over or self._begun is None or self._begun.already_committed:
            return
        try:
            await self._end(commit=error is None)
        except GoQueueError:
            if error is None:
                raise  # else the error that leaves the block goes first

    async def _add_positions(
        self,
        group: str | Consumer | AsyncConsumer,
        positions: Positions | None,
        member_id: str | None,
        generation: int | None,
    ) -> None:
        begun = self._open()
        if not isinstance(group, str):
            group, member_id, generation, polled = standing_of(group)
            positions = polled if positions is None else positions
        if positions is None:
            raise InvalidRequest("positions are required, or a consumer that has polled", path="positions")
        await self._producer.begun()
        commits = [PositionCommit(topic, partition, offset, "") for (topic, partition), offset in positions.items()]
        await self._call(
            "transactions.add_offsets",
            list[PositionCommit],
            producer_id=begun.producer_id,
            epoch=begun.epoch,
            group=group,
            commits=commits,
            member_id=member_id,
            generation=generation,
        )


class AsyncTransaction(_Transaction):
    """Messages, acks and positions that are committed together. Made by `AsyncClient.transaction`; leaving its block
    commits, or aborts if an exception leaves it.
    """

    @same_parameters_as(AsyncProducer.send)
    async def send(self, *arguments: Any, **options: Any) -> AsyncHandle:
        """Hand a message over, to be stored before the commit; the commit raises why one could not be stored."""
        self._open()
        return await AsyncProducer(self._producer.publisher).send(*arguments, **options)

    @shows(MessageOptions)
    async def publish(self, topic: str, value: Any, **options: Unpack[MessageOptions]) -> Published:
        """Publish one message and return where it is; readers see it when the transaction is committed."""
        handle = await self.send(topic, value, **options)
        self._producer.publisher.send_now()
        return await handle.result()

    async def publish_many(self, topic: str, items: Iterable[Any]) -> list[Published]:
        """Publish values, or (key, value) pairs."""
        handles = [await self.send(topic, value, key) for key, value in map(key_and_value, several(items))]
        self._producer.publisher.send_now()
        return [await handle.result() for handle in handles]

    async def ack(self, messages: AsyncDelivered | Iterable[AsyncDelivered]) -> None:
        """Acknowledge messages with the commit; after an abort they are delivered again."""
        settlement = await self._settlement()
        for connection, together in by_connection(messages):
            await connection.settle(together, settlement)

    async def positions(
        self,
        group: str | AsyncConsumer,
        positions: Positions | None = None,
        *,
        member_id: str | None = None,
        generation: int | None = None,
    ) -> None:
        """Commit positions of the group, by topic and partition, with the transaction.

        A consumer stands for its group, and for the positions after everything that it has polled.
        """
        await self._add_positions(group, positions, member_id, generation)

    async def commit(self) -> None:
        """Commit: readers see all of it."""
        await self._end(commit=True)

    async def abort(self) -> None:
        """Abort: readers see none of it."""
        await self._end(commit=False)

    async def __aenter__(self) -> Self:
        await self._do_begin()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._leave(error)

    def blocking(self, run: Callable[[Coroutine[Any, Any, Any]], Any]) -> "Transaction":
        """The same, for threads without an event loop."""
        return Transaction(self._producer, self._timeout_ms, self._marker, self._call, run)


class Transaction(_Transaction):
    """Messages, acks and positions that are committed together. Made by `Client.transaction`; leaving its block
    commits, or aborts if an exception leaves it.
    """

    def __init__(
        self,
        producer: TransactionalProducer,
        timeout_ms: int,
        marker: str | None,
        call: Calls,
        run: Callable[[Coroutine[Any, Any, Any]], Any],
    ) -> None:
        super().__init__(producer, timeout_ms, marker, call)
        self._run = run
        self._sender = Producer(producer.publisher, run)

    @same_parameters_as(Producer.send)
    def send(self, *arguments: Any, **options: Any) -> Handle:
        """Hand a message over, to be stored before the commit; the commit raises why one could not be stored."""
        self._open()
        return self._sender.send(*arguments, **options)

    @shows(MessageOptions)
    def publish(self, topic: str, value: Any, **options: Unpack[MessageOptions]) -> Published:
        """Publish one message and return where it is; readers see it when the transaction is committed."""
        handle = self.send(topic, value, **options)
        self._run(self._sent())
        return handle.result()

    def publish_many(self, topic: str, items: Iterable[Any]) -> list[Published]:
        """Publish values, or (key, value) pairs."""
        handles = [self.send(topic, value, key) for key, value in map(key_and_value, several(items))]
        self._run(self._sent())
        return [handle.result() for handle in handles]

    def ack(self, messages: Delivered | Iterable[Delivered]) -> None:
        """Acknowledge messages with the commit; after an abort they are delivered again."""
        settlement = self._run(self._settlement())
        for connection, together in by_connection(messages):
            connection.settle(together, settlement)

    def positions(
        self,
        group: str | Consumer,
        positions: Positions | None = None,
        *,
        member_id: str | None = None,
        generation: int | None = None,
    ) -> None:
        """Commit positions of the group, by topic and partition, with the transaction.

        A consumer stands for its group, and for the positions after everything that it has polled.
        """
        self._run(self._add_positions(group, positions, member_id, generation))

    def commit(self) -> None:
        """Commit: readers see all of it."""
        self._stop_sending()
        self._run(self._end(commit=True))

    def abort(self) -> None:
        """Abort: readers see none of it."""
        self._stop_sending()
        self._run(self._end(commit=False))

    def __enter__(self) -> Self:
        self._run(self._do_begin())
        if not self.already_committed:
            self.send = self._sender.send  # type: ignore[method-assign]  # as fast as that of a producer, while it may
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stop_sending()
        try:
            self._run(self._leave(error))
        except GoQueueError:
            if error is None:
                raise

    def _stop_sending(self) -> None:
        self.__dict__.pop("send", None)

    async def _sent(self) -> None:
        self._producer.publisher.send_now()
