"""Pumps the publish engine in the thread that publishes one message and waits for it, without an event loop.

To hand a request to another thread and its answer back costs more than the request itself. So a thread that publishes
one message talks to the broker itself, over a socket of its own. The engine sees batches of one message, and at most
one of them at a time.

One thread at a time does this. Others go over the event loop of the client, where their requests travel together.
"""

from threading import Event, Lock
from typing import Any, Unpack, cast

from goqueue.client import forks, messages, telemetry
from goqueue.client.accumulator import NO_BATCH, OutgoingMessage, OutgoingRequest, PartitionQueue, ProducerConfig
from goqueue.client.blocking import BlockingConnections, BlockingSession, run_now
from goqueue.client.connections import TOPICS_MAX, Connections
from goqueue.client.handles import Handle, Published, published
from goqueue.client.options import MessageContent, MessageOptions
from goqueue.client.publish_engine import PublishEngine
from goqueue.clock import SECOND, Clock
from goqueue.errors import (
    BrokerUnavailable,
    GoQueueError,
    MessageTooLarge,
    NotLeader,
    PartitionNotFound,
    RequestTimeout,
    TopicNotFound,
)
from goqueue.wire import verbs
from goqueue.wire.verbs import Verb


class BlockingPublisher:
    """Publishes one message at a time, in the thread that asks for it."""

    def __init__(self, connections: Connections, clock: Clock, *, telemetry: bool = True) -> None:
        self._connections = BlockingConnections(connections)
        self._timeout_ns = int(connections.timeout_s * SECOND)
        config = ProducerConfig(linger_ns=0, delivery_timeout_ns=max(1, self._timeout_ns))
        self._engine = PublishEngine(config, connections.entropy)
        self._clock = clock
        self._has_telemetry = telemetry
        self._lock = Lock()
        self._fork = forks.generation
        self._leaders: dict[PartitionQueue, BlockingSession] = {}
        self._is_closed = False
        self._pause = Event()

    def publish(self, topic: str, value: Any, **options: Unpack[MessageOptions]) -> Published | None:
        """Where the message is; None if another thread is publishing, or the publisher is closed or forked."""
        if self._fork != forks.generation or not self._lock.acquire(blocking=False):
            return None
        try:
            if self._is_closed:
                return None
            partition = options.pop("partition", None)
            if self._has_telemetry and telemetry.is_in_use():
                options["headers"] = telemetry.inject(options.get("headers"))
            content = cast("MessageContent", options)
            message = messages.message(value, **content, now_ns=self._clock.wall_ns())
            return self._publish(topic, message, partition)
        finally:
            self._lock.release()

    def close(self) -> None:
        """Hang up."""
        self._is_closed = True
        self._pause.set()
        with self._lock:
            self._connections.hang_up()

    def _publish(self, topic: str, message: OutgoingMessage, partition: int | None) -> Published:
        began_ns = self._clock.monotonic_ns()
        is_known = topic in self._engine.topics
        try:
            if not is_known:
                self._learn(topic, began_ns)
            return self._publish_once(topic, message, partition, began_ns)
        except (TopicNotFound, PartitionNotFound, MessageTooLarge):
            self._drop_topic(topic)
            if not is_known:
                raise
        # What is known of the topic may be old: it may have been replaced, or its limits raised.
        self._learn(topic, began_ns)
        return self._publish_once(topic, message, partition, began_ns)

    def _publish_once(self, topic: str, message: OutgoingMessage, partition: int | None, began_ns: int) -> Published:
        engine = self._engine
        handle = Handle(NO_BATCH, message)
        deadline_ns = began_ns + self._timeout_ns
        try:
            engine.add(topic, handle, partition, now_ns=began_ns)  # full with one message, so it is sealed
            engine.take_sealed()
            batch = handle.batch
            while not batch.is_done:
                self._pump(batch.queue, deadline_ns)
        except BaseException:  # Ctrl-C: the caller does not learn of the message, so it is not sent later either
            engine.seal_all()
            engine.take_sealed()
            engine.give_up((handle.batch.queue,), BrokerUnavailable("interrupted"))
            raise
        finally:
            if handle.batch.error is not None:  # a kept error keeps the frames of its traceback, and what they hold
                engine.forget_failures()
        return published(handle)

    def _pump(self, queue: PartitionQueue, deadline_ns: int) -> None:
        """Send what is next and wait for its answer; or wait until it is time to send it again."""
        engine = self._engine
        now_ns = self._clock.monotonic_ns()
        if self._is_closed:
            timeout = RequestTimeout(f"publish to {queue.topic}-{queue.partition}", self._timeout_ns / SECOND)
            engine.give_up((queue,), timeout)
            return
        if now_ns > deadline_ns:
            engine.expire(queue, now_ns)
            return
        request = engine.next_request(queue, now_ns)
        if request is None:
            self._pause.wait((queue.wait_ns(now_ns) or 0) / SECOND)
            return
        try:
            answer = self._exchange(queue, request)
        except GoQueueError as error:
            self._connections.forget_leader(error)
            if isinstance(error, NotLeader | BrokerUnavailable):  # a node that is gone may be named as the leader
                self._leaders.clear()
            engine.failed(queue, request, error, self._clock.monotonic_ns())
        else:
            engine.stored(queue, request, answer)

    def _exchange(self, queue: PartitionQueue, request: OutgoingRequest) -> verbs.PublishAnswer:
        session = self._leaders.get(queue)
        if session is None or session.is_closed:
            found: Any = run_now(self._connections.leader(queue.topic, queue.partition))
            session = self._leaders[queue] = found
        meta, records = self._engine.encode(queue, request)
        return session.exchange(Verb.PUBLISH, meta, verbs.PublishAnswer, records)

    def _learn(self, topic: str, began_ns: int) -> None:
        """Ask the broker what the engine has to know of the topic."""
        deadline_ns = began_ns + self._timeout_ns

        async def ask() -> verbs.TopicMetadata:
            metadata = await self._connections.topic(topic)
            if self._engine.needs_identity:
                session = await self._connections.any()
                self._engine.identified(await session.ask(Verb.INIT_PRODUCER, verbs.Empty(), verbs.ProducerIdentity))
            return metadata

        metadata = self._connections.retrying_in_thread(
            lambda: run_now(ask()),
            clock=self._clock,
            pause=self._pause,
            deadline_ns=deadline_ns,
            may_repeat=lambda: not self._is_closed,
        )
        topics = list(self._engine.topics)
        if len(topics) >= TOPICS_MAX:  # nothing waits in its queues: one message is sent at a time
            self._drop_topic(topics[0])
        self._engine.learned(topic, metadata)

    def _drop_topic(self, topic: str) -> None:
        """What is known of the topic is wrong, or takes too much room."""
        self._connections.forget_topic(topic)
        if self._engine.drop_topic(topic) is not None:
            self._leaders.clear()
