"""Publishing one message from a thread that waits for it, without an event loop in between.

Handing a request to another thread and its answer back costs more than the request itself. So a thread that publishes
one message talks to the broker itself, over a socket of its own client. What is not about waiting is the same as
everywhere: the frames, the sequences and retries of the accumulator, and the search for the leader, whose
coroutines run here over sessions that never suspend them.

Only one thread at a time does this. Others go the usual way, where their requests travel together.
"""

import socket
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from threading import Event, Lock
from typing import Any, Self, TypeVar

import msgspec

from goqueue.client import forks, messages, telemetry
from goqueue.client.accumulator import Batch, Message, PartitionQueue, Request, TopicQueues
from goqueue.client.connections import TOPICS_MAX, Connections, any_turn
from goqueue.client.handles import Handle, Published, published
from goqueue.client.messages import Duration, Time
from goqueue.client.retries import Retries, retry_wait_ns
from goqueue.client.session import (
    ANSWER_TIMEOUT_S,
    CannotConnect,
    check_size,
    decode,
    hung_up,
    split_address,
    told_error,
)
from goqueue.client.spin_wait import SpinWait
from goqueue.clock import SECOND, Clock
from goqueue.errors import (
    AvailabilityError,
    BrokerUnavailable,
    GoQueueError,
    MessageTooLarge,
    NotLeader,
    PartitionNotFound,
    RequestTimeout,
    TopicNotFound,
)
from goqueue.record.header import Priority
from goqueue.wire import frames, verbs
from goqueue.wire.frames import BadFrame, Frame, FrameFlags, FrameReader
from goqueue.wire.verbs import Verb

M = TypeVar("M", bound=msgspec.Struct)
T = TypeVar("T")
_ERROR = int(FrameFlags.ERROR)


def run_now(work: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that has nothing to wait for."""
    try:
        work.send(None)
    except StopIteration as finished:
        result: T = finished.value
        return result
    work.close()
    raise AssertionError("the coroutine waits for something")


class BlockingSession:
    """A connection that has said HELLO, for one thread at a time. Its coroutines block instead of being suspended."""

    def __init__(self, address: str, connection: socket.socket, busy_poll_ns: int) -> None:
        self.address = address
        self.is_closed = False
        self._socket = connection
        self._reader = FrameReader(trusts=True)
        self._lookout = SpinWait(connection, busy_poll_ns)
        self.last_correlation = 0
        self._ahead: dict[int, Frame | None] = {}  # requests whose answers are asked for later, and answers that came
        self._frame_bytes_max = frames.FRAME_BYTES_MAX

    @classmethod
    def connect(
        cls,
        address: str,
        *,
        client_id: str,
        api_key: str,
        timeout_s: float,
        busy_poll_ns: int,
        connect_timeout_s: float,
    ) -> Self:
        """Connect and say HELLO. No answer takes longer than the timeout."""
        host, port = split_address(address)
        try:
            connection = socket.create_connection((host, port), min(connect_timeout_s, timeout_s))
        except OSError as error:
            raise CannotConnect(address, error.strerror or str(error)) from error
        session = cls(address, connection, busy_poll_ns)
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            hello = verbs.HelloRequest(client_id=client_id, api_key=api_key)
            welcome = session.exchange(Verb.HELLO, hello, verbs.HelloAnswer)
            session._frame_bytes_max = welcome.frame_bytes_max
            connection.settimeout(min(ANSWER_TIMEOUT_S, timeout_s))
        except AvailabilityError as error:
            session.close()
            raise CannotConnect(address, str(error)) from error
        except BaseException:
            session.close()
            raise
        return session

    async def ask(self, verb: Verb, meta: msgspec.Struct, answer_type: type[M]) -> M:
        """The meta of the answer."""
        return self.exchange(verb, meta, answer_type)

    def exchange(self, verb: Verb, meta: msgspec.Struct, answer_type: type[M], payload: bytearray | None = None) -> M:
        """Send a request and wait for the meta of its answer."""
        return decode(self.exchange_frame(verb, meta, payload).meta, answer_type)

    def exchange_frame(
        self,
        verb: Verb,
        meta: msgspec.Struct,
        payload: bytes | bytearray | None = None,
        *,
        timeout_s: float | None = None,
        ahead: tuple[Verb, msgspec.Struct] | None = None,
    ) -> Frame:
        """Send a request and wait for its answer, for that long if not for as long as usual.

        `ahead` is sent right behind it. Its answer is asked for later, by `last_correlation`.
        """
        if timeout_s is not None and timeout_s != self._socket.gettimeout():
            self._socket.settimeout(timeout_s)
        frames_out = self._pack(verb, meta, payload)
        correlation = self.last_correlation
        if ahead is not None:
            frames_out += self._pack(*ahead, None)
            self._ahead[self.last_correlation] = None
        return self._answer(verb, correlation, frames_out, busy_polls=True)

    def send_ahead(self, verb: Verb, meta: msgspec.Struct) -> int:
        """Send a request. Its answer is asked for later, by the correlation that is returned."""
        frame = self._pack(verb, meta, None)
        try:
            self._socket.sendall(frame)
        except OSError as error:
            self.close()
            raise BrokerUnavailable(f"the connection to {self.address} was lost: {error}") from error
        self._ahead[self.last_correlation] = None
        return self.last_correlation

    def receive_ahead(self, verb: Verb, correlation: int) -> Frame:
        """The answer to a request that was sent ahead."""
        return self._answer(verb, correlation, b"")

    def forget_ahead(self, correlation: int) -> None:
        """Nobody asks for that answer any more."""
        self._ahead.pop(correlation, None)

    def _pack(self, verb: Verb, meta: msgspec.Struct, payload: bytes | bytearray | None) -> bytes:
        """The next frame; raises `RequestTooLarge`, and nothing is sent."""
        raw = verbs.encode(meta)
        if payload is not None or len(raw) > frames.META_BYTES_MAX:
            check_size(raw, payload or b"", self._frame_bytes_max)
        self.last_correlation = self.last_correlation % 0xFFFF_FFFF + 1
        if payload is None:
            return frames.pack(verb, self.last_correlation, raw)
        return b"".join((frames.pack_checked(verb, self.last_correlation, raw, payload), payload))

    def _answer(self, verb: Verb, correlation: int, frames_out: bytes, *, busy_polls: bool = False) -> Frame:
        frame: Frame | None = None
        try:
            if frames_out:
                self._socket.sendall(frames_out)
            if busy_polls:
                self._lookout.watch()
            frame = self._receive(correlation)
        except TimeoutError as error:
            raise RequestTimeout(verb.name, self._socket.gettimeout() or 0) from error
        except (OSError, BadFrame) as error:
            raise BrokerUnavailable(f"the connection to {self.address} was lost: {error}") from error
        finally:
            if frame is None:  # an answer may be under way that nobody will read
                self.close()
        if frame.flags & _ERROR:
            raise told_error(frame)
        return frame

    def close(self) -> None:
        """End the session."""
        self.is_closed = True
        self._socket.close()

    def interrupt(self) -> None:
        """Let another thread that waits for an answer wait no longer; it finds the connection lost."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def _receive(self, correlation: int) -> Frame:
        came = self._ahead.pop(correlation, None)
        while came is None:
            size = self._socket.recv_into(self._reader.get_buffer())
            if not size:
                raise ConnectionResetError("the broker hung up")
            for frame in self._reader.received(size):
                if frame.correlation == correlation:
                    came = frame
                elif frame.correlation in self._ahead:
                    self._ahead[frame.correlation] = frame
                elif not frame.correlation:
                    raise hung_up(self.address, frame)
        return came


class BlockingConnections(Connections):
    """The same search for brokers and leaders, over sessions that block."""

    def __init__(self, like: Connections) -> None:
        super().__init__(
            like.addresses,
            client_id=like.client_id,
            api_key=like.api_key,
            timeout_s=like.timeout_s,
            busy_poll_ns=like.busy_poll_ns,
        )
        self.reach = like.reach
        self._open: dict[str, BlockingSession] = {}

    async def _to(self, address: str) -> Any:
        session = self._open.get(address)
        if session is None or session.is_closed:
            try:
                session = self._open[address] = BlockingSession.connect(
                    address,
                    client_id=self.client_id,
                    api_key=self.api_key,
                    timeout_s=self.timeout_s,
                    busy_poll_ns=self.busy_poll_ns,
                    connect_timeout_s=self.reach.attempt_s,
                )
            except CannotConnect as error:
                self.reach.failed(error)
                raise
            if not self.reach.is_up:
                self.reach.reached(address)
        return session

    def interrupt(self) -> None:
        """Let another thread that waits for an answer wait no longer."""
        for session in list(self._open.values()):
            session.interrupt()

    def hang_up(self) -> None:
        """End all sessions."""
        for session in self._open.values():
            session.close()


class DirectPublisher:
    """Publishes one message at a time, in the thread that asks for it."""

    def __init__(self, connections: Connections, clock: Clock, *, telemetry: bool = True) -> None:
        self._connections = BlockingConnections(connections)
        self._clock = clock
        self._has_telemetry = telemetry
        self._lock = Lock()
        self._fork = forks.generation
        self._topics: dict[str, TopicQueues] = {}
        self._leaders: dict[PartitionQueue, BlockingSession] = {}
        self._epoch = 0  # where the queues of a topic begin
        self._identity: verbs.ProducerIdentity | None = None
        self._is_closed = False
        self._pause = Event()

    def publish(
        self,
        topic: str,
        value: Any,
        *,
        key: bytes | str | None = None,
        partition: int | None = None,
        priority: Priority | int | str | None = None,
        headers: Mapping[str, str | bytes] | None = None,
        delay: Duration | None = None,
        deliver_at: Time | None = None,
        ttl: Duration | None = None,
        tombstone: bool = False,
    ) -> Published | None:
        """Where the message is; None if another thread is at it, or this is of no use any more."""
        if self._fork != forks.generation or not self._lock.acquire(blocking=False):
            return None
        try:
            if self._is_closed:
                return None
            now_ns = self._clock.wall_ns()
            if self._has_telemetry:
                headers = telemetry.inject(headers)
            message = messages.message(value, key, priority, headers, delay, deliver_at, ttl, tombstone, now_ns=now_ns)
            return self._publish(topic, message, partition)
        finally:
            self._lock.release()

    def close(self) -> None:
        """Hang up."""
        self._is_closed = True
        self._pause.set()
        with self._lock:
            self._connections.hang_up()

    def _publish(self, topic: str, message: Message, partition: int | None) -> Published:
        deadline_ns = self._clock.monotonic_ns() + int(self._connections.timeout_s * SECOND)
        is_known = topic in self._topics
        try:
            return self._publish_once(topic, message, partition, deadline_ns)
        except (TopicNotFound, PartitionNotFound, MessageTooLarge):
            self._forget(topic)
            if not is_known:
                raise
        return self._publish_once(topic, message, partition, deadline_ns)  # it may be another topic by now

    def _publish_once(self, topic: str, message: Message, partition: int | None, deadline_ns: int) -> Published:
        queues = self._topics.get(topic) or self._retrying(lambda: self._learn(topic), deadline_ns)
        if message.value is not None and len(message.value) > queues.value_bytes_max:
            raise MessageTooLarge("value", len(message.value), queues.value_bytes_max)
        queue = queues.choose(message.key, partition) or queues.next_turn()
        batch = Batch(queue, self._clock.monotonic_ns())
        handle = Handle(batch, message)
        batch.add(handle, message)
        batch.seal()
        queue.ready.append(batch)
        try:
            while not batch.is_done:
                self._send(queues, queue, deadline_ns)
        except BaseException:  # Ctrl-C: nobody is left to care for it
            queue.give_up(BrokerUnavailable("interrupted"))
            raise
        finally:
            batch.held.clear()
        return published(handle)

    def _forget(self, topic: str) -> None:
        """What is known of the topic turned out wrong."""
        self._connections.forget_topic(topic)
        queues = self._topics.pop(topic, None)
        if queues:
            self._epoch = max(self._epoch, queues.next_epoch)
            self._leaders.clear()

    def _send(self, queues: TopicQueues, queue: PartitionQueue, deadline_ns: int) -> None:
        """Send what is next, and settle it or see to it that it is sent again."""
        now_ns = self._clock.monotonic_ns()
        if now_ns > deadline_ns or self._is_closed:
            queue.expire(now_ns + 1, int(self._connections.timeout_s * SECOND))
            return
        request = queue.take(now_ns=now_ns)
        if request is None:
            self._pause.wait((queue.wait_ns(now_ns) or 0) / SECOND)
            return
        try:
            answer = self._exchange(queues, queue, request)
        except GoQueueError as error:
            if isinstance(error, NotLeader):
                self._connections.forget_topic(queue.topic)
                self._leaders.clear()
            wait_ns = retry_wait_ns(queue.attempt + 1)
            queue.failed(request, error, now_ns=self._clock.monotonic_ns(), wait_ns=wait_ns)
        else:
            queue.stored(request, first_offset=answer.first_offset, timestamp_ns=answer.timestamp_ns)

    def _exchange(self, queues: TopicQueues, queue: PartitionQueue, request: Request) -> verbs.PublishAnswer:
        assert self._identity is not None
        session = self._leaders.get(queue)
        if session is None or session.is_closed:
            found: Any = run_now(self._connections.leader(queue.topic, queue.partition))
            session = self._leaders[queue] = found
        records = request.encode((self._identity.producer_id, self._identity.epoch + queue.epoch), queues.compression)
        meta = verbs.PublishRequest(queue.topic, queue.partition, queues.acks)
        return session.exchange(Verb.PUBLISH, meta, verbs.PublishAnswer, records)

    async def _learn(self, topic: str) -> TopicQueues:
        metadata = await self._connections.topic(topic)
        if self._identity is None:
            session = await self._connections.any()
            self._identity = await session.ask(Verb.INIT_PRODUCER, verbs.Empty(), verbs.ProducerIdentity)
        if len(self._topics) >= TOPICS_MAX:  # one message is sent at a time, so there is nothing left in its queues
            self._forget(next(iter(self._topics)))
        queues = self._topics[topic] = TopicQueues(
            topic,
            len(metadata.leaders),
            compression=metadata.compression,
            acks=metadata.acks,
            value_bytes_max=metadata.max_message_bytes,
            epoch=self._epoch,
        )
        queues.turn = any_turn(len(queues.partitions))
        return queues

    def _retrying(self, attempt: Callable[[], Coroutine[Any, Any, T]], deadline_ns: int) -> T:
        began_s = self._clock.monotonic_ns() / SECOND
        retries = Retries(self._connections.reach, began_s=began_s, deadline_s=deadline_ns / SECOND)
        while True:
            try:
                return run_now(attempt())
            except GoQueueError as error:
                now_s = self._clock.monotonic_ns() / SECOND
                self._pause.wait(retries.wait_s(error, now_s=now_s, may_repeat=not self._is_closed))
