"""The native door: frames over TCP.

    bytes ──> FrameReader ──> one handler per verb ──> Service ──> Pending ──> answer frame

A connection says HELLO first. Its requests are handled in the order in which they come and answered when their answers
are there, so a client may have many under way. Records go out as they were read from the disk, in frames that leave
their checksums to the records.

Everything is bounded. A connection with too many open requests, or whose peer does not read, is not read from until
that is over: it slows only itself. A subscription takes records from the log only for credit it has, and only while the
socket takes them. A length that is claimed costs no memory, a frame that does not get finished costs its
connection, and what all unfinished frames hold together has a limit, too.
"""

import asyncio
import logging
import socket
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, TypeVar, cast

import msgspec

from goqueue.clock import MS, Clock
from goqueue.doors import calls, process
from goqueue.errors import BrokerUnavailable, GoQueueError, InternalError, InvalidConfig, InvalidRequest
from goqueue.groups.member import Join
from goqueue.names import VERSION
from goqueue.runtime.adaptive_spin import AdaptiveSpin, yield_processor
from goqueue.service.groups import PollResult
from goqueue.service.pending import Pending, when_all_are_done
from goqueue.service.service import ReadResult, Service, StoredBatch, Subscription, TopicInfo
from goqueue.wire import frames, verbs
from goqueue.wire.frames import BadFrame, Frame, FrameFlags, FrameReader
from goqueue.wire.reports import PartitionGap, PartitionName, SettledBatch, Settlement
from goqueue.wire.verbs import Verb

logger = logging.getLogger("goqueue.native")

OFFSET_BYTES = 8
POLLS_MAX = 10_000
"""Of so many members it is known what their last poll brought. Of others, what is lost on the way runs out."""
POLLS_CHECKED = 1_000
"""Of so many it is checked every second whether they are still members."""
_EMPTY = verbs.encode(verbs.Empty())
RESPONSE = int(FrameFlags.RESPONSE)
RESPONSE_OF_RECORDS = int(FrameFlags.RESPONSE | FrameFlags.SELF_CHECKED)
PUSHED_RECORDS = int(FrameFlags.RESPONSE | FrameFlags.SELF_CHECKED | FrameFlags.PUSH)
ERROR = int(FrameFlags.RESPONSE | FrameFlags.ERROR)
LARGE_BYTES = 64 * 1024
SMALL_BYTES = 2 * 1024
BUSY_NAP_S = 0.005
HANG_UP_NAP_S = 0.001
HANG_UP_GRACE_S = 0.1
"""For what was written to go out, once the door is closed."""
OUTBOX_BYTES_MAX = 16 * 1024
"""To send costs a call of the system, and wakes the peer; so little things wait for one another."""

T = TypeVar("T")
M = TypeVar("M", bound=msgspec.Struct)


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeConfig:
    """The limits of the native door."""

    connections_max: int = 10_000  # each costs a descriptor and some KiB
    frame_bytes_max: int = frames.FRAME_BYTES_MAX
    requests_max: int = 1_024  # under way per connection; more wait in the peer's socket
    subscriptions_max: int = 10_000  # per connection
    write_buffer_bytes: int = 64 * 1024  # unsent per connection, before it is not served any more
    inbound_bytes_max: int = 256 * 1024 * 1024  # in unfinished frames of all connections
    hello_timeout_ms: int = 10_000
    frame_timeout_ms: int = 30_000  # for a frame to come in whole, once it has begun

    def __post_init__(self) -> None:
        for name in self.__dataclass_fields__:
            if getattr(self, name) < 1:
                raise InvalidConfig(name, getattr(self, name), "must be positive")


class NativeDoor:
    """Listens, and keeps what all connections share.

    `busy_poll_ns` is how long it looks for the next small request before it sleeps, where that pays off.
    """

    def __init__(
        self,
        service: Service,
        *,
        clock: Clock,
        config: NativeConfig | None = None,
        node_id: int = 0,
        busy_poll_ns: int = 0,
    ) -> None:
        self.service = service
        self.clock = clock
        self.config = config or NativeConfig()
        self.node_id = node_id
        self.connections: set[Connection] = set()
        self.congested: set[Connection] = set()  # whose peers do not read what they asked for
        self.polls: dict[tuple[str, str], LastPoll] = {}  # of each member of a group
        self.inbound_bytes = 0
        self._holders: dict[Connection, None] = {}  # of large unfinished frames, in the order in which these began
        self._starved: set[Connection] = set()
        self._server: asyncio.Server | None = None
        self._sweeper: asyncio.TimerHandle | None = None
        self._due: list[Callable[[], None]] = []  # pushes
        self._unsent: dict[Connection, None] = {}
        self._is_handling = False
        self._is_coming = False
        self.is_stopped = False
        self._vigil = AdaptiveSpin(busy_poll_ns)

    async def start(self, host: str, port: int) -> tuple[str, int]:
        """Listen; where, in case the port was left open."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: Connection(self, loop), host, port, backlog=4_096)
        self._sweep_regularly(loop)
        bound: tuple[str, int] = self._server.sockets[0].getsockname()[:2]
        return bound

    async def stop(self, grace_s: float) -> None:
        """Accept no more, let open requests be answered, then hang up; on those who do not take the rest, in the middle
        of it.
        """
        if self._server is None:
            return
        self._server.close()
        if self._sweeper:
            self._sweeper.cancel()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + grace_s
        await asyncio.sleep(0)  # who was accepted just before is told of by now
        while any(connection.is_busy for connection in self.connections) and loop.time() < deadline:
            await asyncio.sleep(BUSY_NAP_S)
        self.is_stopped = True
        for connection in list(self.connections):
            connection.hang_up(now=connection in self.congested)
        deadline = loop.time() + HANG_UP_GRACE_S
        while self.connections and loop.time() < deadline:
            await asyncio.sleep(HANG_UP_NAP_S)
        for connection in list(self.connections):
            connection.hang_up(now=True)
        await asyncio.sleep(0)

    def read_bytes_max(self) -> int:
        """How much one answer may hold: less when many peers do not read what they asked for."""
        congested = len(self.congested)
        if congested < 8:
            return 16 * 1024 * 1024
        return 1024 * 1024 if congested < 64 else 64 * 1024

    def account(self, connection: "Connection", size: int) -> None:
        """The connection now holds that much of an unfinished frame.

        When all hold too much, only the one whose frame began first goes on; so there is always one that gets finished.
        """
        self.inbound_bytes += size - connection.held_bytes
        connection.held_bytes = size
        if size:
            self._holders[connection] = None
        else:
            self._holders.pop(connection, None)
        first = next(iter(self._holders), None)
        if self.inbound_bytes <= self.config.inbound_bytes_max:
            starved, self._starved = self._starved, set()
            for waiting in starved:
                waiting.starve(False)
            return
        if size and connection is not first:
            self._starved.add(connection)
            connection.starve(True)
        if first in self._starved:
            self._starved.discard(first)
            first.starve(False)

    def forget(self, connection: "Connection") -> None:
        """The connection is gone."""
        self.connections.discard(connection)
        self.congested.discard(connection)
        self._starved.discard(connection)
        self.account(connection, 0)

    def handle(self, frames_handler: Callable[[], None]) -> None:
        """Handle frames, then push what came of them, then send all of it: one call of the system per connection."""
        self._is_handling = True
        try:
            frames_handler()
            due, self._due = self._due, []
            for push in due:
                push()
        finally:
            self._is_handling = False
            unsent, self._unsent = self._unsent, {}
            for connection in unsent:
                connection.flush()
            if self._due:
                self._come_back()

    def push_soon(self, push: Callable[[], None]) -> None:
        """Push when the frames at hand are handled, or, if there are none, when the loop comes round."""
        self._due.append(push)
        self._come_back()

    def flush_soon(self, connection: "Connection") -> None:
        """Likewise send what was written to the connection."""
        self._unsent[connection] = None
        self._come_back()

    def _come_back(self) -> None:
        if not self._is_handling and not self._is_coming:
            self._is_coming = True
            asyncio.get_running_loop().call_soon(self._came_back)

    def _came_back(self) -> None:
        self._is_coming = False
        self.handle(_nothing)

    def busy_poll(self) -> None:
        """A small request was answered, and who sent it may have waited for that to send the next one."""
        if self._vigil.start(self.clock.monotonic_ns()):
            asyncio.get_running_loop().call_soon(self._look_again)

    def _look_again(self) -> None:
        if self._vigil.should_spin(self.clock.monotonic_ns()):
            yield_processor()
            asyncio.get_running_loop().call_soon(self._look_again)

    def sweep(self) -> None:
        """Hang up on the peers that let us wait for too long."""
        now_ns = self.clock.monotonic_ns()
        for connection in list(self.connections):
            connection.check_time(now_ns)
        self.forget_polls()

    def forget_polls(self) -> None:
        """Forget the last polls of members that are gone; `POLLS_CHECKED` of them are looked at per call."""
        polls, groups = self.polls, self.service.groups
        for member in list(islice(polls, POLLS_CHECKED)):
            last = polls.pop(member)
            if groups.has_member(*member):
                polls[member] = last

    def _sweep_regularly(self, loop: asyncio.AbstractEventLoop) -> None:
        self.sweep()
        self._sweeper = loop.call_later(1, self._sweep_regularly, loop)


class LastPoll:
    """What is to be taken back if the answer to a poll is lost: whatever it brings, or has brought."""

    __slots__ = ("batches", "gaps", "number", "pending")

    def __init__(self, number: int) -> None:
        self.number = number
        self.pending: Pending[PollResult] | None = None
        self.batches: list[tuple[str, int, str]] = []  # topic, partition, nonce
        self.gaps: list[PartitionGap] = []  # which the group is told once


class Push:
    """One subscription of one connection."""

    __slots__ = ("correlation", "credit", "is_scheduled", "max_bytes", "subscription")

    def __init__(self, correlation: int, subscription: Subscription, credit: int, max_bytes: int) -> None:
        self.correlation = correlation
        self.subscription = subscription
        self.credit = credit
        self.max_bytes = max_bytes
        self.is_scheduled = False


class Connection(asyncio.BufferedProtocol):
    """One peer."""

    def __init__(self, door: NativeDoor, loop: asyncio.AbstractEventLoop) -> None:
        self._door = door
        self._loop = loop
        self._service = door.service
        self._reader = FrameReader(frame_bytes_max=door.config.frame_bytes_max)
        self._transport: asyncio.Transport
        self._peer = "?"
        self._client_id = ""
        self._frames: deque[Frame] = deque()
        self._pushes: dict[int, Push] = {}
        self._outbox: list[bytes | bytearray | memoryview] = []
        self._outbox_bytes = 0
        self._open_requests = 0
        self._reads: set[Pending[Any]] = set()  # those that wait for a record
        self._is_closed = False
        self._is_welcome = False
        self._is_congested = False
        self._is_starved = False
        self._is_reading = True
        self._connected_ns = door.clock.monotonic_ns()
        self._frame_since_ns: int | None = None
        self._hung_up_ns: int | None = None
        self.held_bytes = 0

    # --- the transport -------------------------------------------------------------------------

    @property
    def is_busy(self) -> bool:
        """Whether answers are still owed."""
        return self._open_requests > 0 or bool(self._frames)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A peer came."""
        self._transport = cast("asyncio.Transport", transport)
        if self._door.is_stopped:  # it was accepted just before
            self.hang_up(now=True)
            return
        peer = transport.get_extra_info("peername")
        self._peer = f"{peer[0]}:{peer[1]}" if peer else "?"
        raw = transport.get_extra_info("socket")
        if raw is not None:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self._transport.set_write_buffer_limits(high=self._door.config.write_buffer_bytes)
        if len(self._door.connections) >= self._door.config.connections_max:
            self._refuse(BrokerUnavailable(f"{len(self._door.connections)} connections are open, which is the limit"))
            return
        self._door.connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """The peer is gone."""
        if self._reader.pending_bytes and not self._is_closed:
            logger.info("%s hung up in the middle of a frame", self._peer, extra={"peer": self._peer})
        self._is_closed = True
        self._frames.clear()
        for push in self._pushes.values():
            push.subscription.close()
        self._pushes.clear()
        for read in list(self._reads):
            read.fail(BrokerUnavailable("nobody waits for the answer any more"))
        self._door.forget(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where to receive into."""
        return self._reader.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        """Bytes have come."""
        count = len(self._frames)
        try:
            self._frames.extend(self._reader.received(nbytes))
        except BadFrame as error:
            self._handle_frames()
            self._refuse(error)
            return
        held = self._reader.buffered_bytes
        if held > LARGE_BYTES or self.held_bytes:
            self._door.account(self, held if held > LARGE_BYTES and self._reader.pending_bytes else 0)
        if not self._reader.pending_bytes:
            self._frame_since_ns = None
        elif self._frame_since_ns is None or len(self._frames) > count:
            self._frame_since_ns = self._door.clock.monotonic_ns()
        self._door.handle(self._handle_frames)
        if nbytes <= SMALL_BYTES:
            self._door.busy_poll()

    def eof_received(self) -> bool:
        """The peer will send no more, and so wants no more."""
        return False

    def pause_writing(self) -> None:
        """The peer does not read."""
        self._is_congested = True
        self._door.congested.add(self)
        self._settle_reading()

    def resume_writing(self) -> None:
        """It reads again."""
        self._is_congested = False
        self._door.congested.discard(self)
        self._handle_frames()
        for push in list(self._pushes.values()):
            self._schedule(push)

    def starve(self, starved: bool) -> None:
        """All connections together hold too much (or no longer do)."""
        self._is_starved = starved
        self._settle_reading()

    def hang_up(self, *, now: bool = False) -> None:
        """Close, with what was written still going out, unless it is to be now."""
        self._is_closed = True
        if now:
            self._transport.abort()
        elif not self._transport.is_closing():
            self._hung_up_ns = self._door.clock.monotonic_ns()
            self.flush()
            self._transport.close()

    def check_time(self, now_ns: int) -> None:
        """Hang up on a peer that lets us wait."""
        config = self._door.config
        if self._hung_up_ns is not None:
            if now_ns - self._hung_up_ns > config.frame_timeout_ms * MS:
                self._transport.abort()  # it does not even read why
        elif not self._is_welcome and now_ns - self._connected_ns > config.hello_timeout_ms * MS:
            self._refuse(InvalidRequest("no HELLO came in time"))
        elif (
            self._is_reading
            and self._frame_since_ns is not None
            and now_ns - self._frame_since_ns > config.frame_timeout_ms * MS
        ):
            self._refuse(BadFrame("truncated", "a frame was begun and not finished in time"))

    # --- frames --------------------------------------------------------------------------------

    def _handle_frames(self) -> None:
        limit = self._door.config.requests_max
        while self._frames and not self._is_congested and not self._is_closed and self._open_requests < limit:
            self._handle(self._frames.popleft())
        self._settle_reading()

    def _settle_reading(self) -> None:
        """Read from the socket only while what is read can be handled."""
        if self._is_closed:
            return
        wanted = not (self._frames or self._is_congested or self._is_starved)
        if wanted != self._is_reading:
            self._is_reading = wanted
            if wanted:
                if self._frame_since_ns is not None:  # while we did not read, the peer could not finish it
                    self._frame_since_ns = self._door.clock.monotonic_ns()
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()

    def _handle(self, frame: Frame) -> None:
        kind, _, correlation, meta, payload = frame
        handler = _HANDLERS.get(kind)
        try:
            if handler is None:
                raise InvalidRequest(f"unknown verb {kind}")
            if not self._is_welcome and kind != Verb.HELLO:
                raise InvalidRequest("a connection begins with HELLO")
            handler(self, correlation, meta, payload)
        except GoQueueError as error:
            self._fail(kind, correlation, error)
            if not self._is_welcome:
                self._refuse(error, told=True)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            self._fail(kind, correlation, InvalidRequest(f"malformed meta: {error}"))
        except Exception:
            self._fail(kind, correlation, self._bug(kind))

    def _write(self, *parts: bytes | bytearray | memoryview) -> None:
        """Send soon, together with what else is for this peer; at once if it is much."""
        self._outbox += parts
        self._outbox_bytes += sum(map(len, parts))
        if self._outbox_bytes > OUTBOX_BYTES_MAX:
            self.flush()
        else:
            self._door.flush_soon(self)

    def flush(self) -> None:
        """Send what was written."""
        outbox, self._outbox, self._outbox_bytes = self._outbox, [], 0
        if outbox and not self._transport.is_closing():
            self._transport.writelines(outbox)

    def _answer(self, kind: int, correlation: int, meta: msgspec.Struct) -> None:
        if not self._is_closed:
            self._write(frames.pack(kind, correlation, verbs.encode(meta), flags=RESPONSE))

    def _fail(self, kind: int, correlation: int, error: GoQueueError) -> None:
        if not self._is_closed:
            self._write(frames.pack(kind, correlation, verbs.encode(verbs.error_meta(error)), flags=ERROR))

    def _later(self, kind: int, correlation: int, pending: Pending[T], answer: Callable[[T], None]) -> None:
        """Answer when it is time."""
        self._open_requests += 1

        def settle(done: "Pending[T]") -> None:
            self._open_requests -= 1
            try:
                answer(done.result())
            except GoQueueError as error:
                self._fail(kind, correlation, error)
            except Exception:
                self._fail(kind, correlation, self._bug(kind))
            if self._frames:
                self._loop.call_soon(self._handle_frames)

        pending.then(settle)

    def _bug(self, kind: int) -> InternalError:
        request_id = f"{self._peer}/{self._door.clock.monotonic_ns():x}"
        logger.exception("verb %d failed (%s)", kind, request_id, extra={"peer": self._peer})
        return InternalError(request_id)

    def _refuse(self, error: GoQueueError, *, told: bool = False) -> None:
        """Say why, then hang up."""
        if self._is_closed:
            return
        reason = getattr(error, "reason", error.code)
        logger.warning("%s: %s", self._peer.rpartition(":")[0], error, extra={"peer": self._peer, "reason": reason})
        if not told:
            self._fail(0, 0, error)
        self.hang_up()

    # --- verbs ---------------------------------------------------------------------------------

    def _hello(self, correlation: int, meta: memoryview, _: memoryview) -> None:
        hello = _decode_hello(meta)
        if hello.version != verbs.PROTOCOL_VERSION:
            raise InvalidRequest(f"protocol version {hello.version}; this broker speaks {verbs.PROTOCOL_VERSION}")
        self._is_welcome = True
        self._client_id = hello.client_id
        features = tuple(feature for feature in hello.features if feature in verbs.FEATURES)
        server = f"goqueue {VERSION}"
        limit = self._door.config.frame_bytes_max
        welcome = verbs.Welcome(verbs.PROTOCOL_VERSION, features, self._door.node_id, server, limit)
        self._answer(Verb.HELLO, correlation, welcome)

    def _ping(self, correlation: int, _meta: memoryview, _payload: memoryview) -> None:
        self._answer(Verb.PING, correlation, verbs.Empty())

    def _metadata(self, correlation: int, meta: memoryview, _: memoryview) -> None:
        topics = [self._topic_metadata(name) for name in _decode_metadata(meta).topics]
        self._answer(Verb.METADATA, correlation, verbs.MetadataAnswer({self._door.node_id: ""}, topics))

    def _topic_metadata(self, name: str) -> verbs.TopicMetadata:
        try:
            info = self._service.describe_topic(name)
        except GoQueueError as error:
            return verbs.TopicMetadata(name, "", [], error=verbs.error_meta(error))
        return verbs.TopicMetadata(
            name,
            info.topic_id,
            [partition.leader for partition in info.partitions],
            str(info.settings["compression"]),
            cast("int", info.settings["max_message_bytes"]),
            str(info.settings["acks"]),
        )

    def _create_topic(self, correlation: int, meta: memoryview, _: memoryview) -> None:
        asked = _decode_create_topic(meta)
        pending = self._service.create_topic(
            asked.name,
            partitions=asked.partitions,
            replication_factor=asked.replication_factor,
            settings=asked.settings,
        )
        self._later(
            Verb.CREATE_TOPIC,
            correlation,
            pending,
            lambda info: self._answer(Verb.CREATE_TOPIC, correlation, _topic_state(info)),
        )

    def _delete_topic(self, correlation: int, meta: memoryview, _: memoryview) -> None:
        pending = self._service.delete_topic(_decode_topic_name(meta).name)
        self._later(
            Verb.DELETE_TOPIC,
            correlation,
            pending,
            lambda _: self._answer(Verb.DELETE_TOPIC, correlation, verbs.Empty()),
        )

    def _list_topics(self, correlation: int, meta: memoryview, _: memoryview) -> None:
        names = self._service.list_topics(internal=_decode_list_topics(meta).internal)
        payload = verbs.encode(names)
        head = frames.pack_checked(Verb.LIST_TOPICS, correlation, verbs.encode(verbs.Empty()), payload, flags=RESPONSE)
        self._write(head, payload)

    def _describe_topic(self, correlation: int, meta: memoryview, _: memoryview) -> None:
        info = self._service.describe_topic(_decode_topic_name(meta).name)
        self._answer(Verb.DESCRIBE_TOPIC, correlation, _topic_state(info))

    def _alter_topic(self, correlation: int, meta: memoryview, _: memoryview) -> None:
        asked = _decode_alter_topic(meta)
        self._later(
            Verb.ALTER_TOPIC,
            correlation,
            self._service.alter_topic(asked.name, asked.changes),
            lambda info: self._answer(Verb.ALTER_TOPIC, correlation, _topic_state(info)),
        )

    def _offsets(self, correlation: int, meta: memoryview, _: memoryview) -> None:
        asked = _decode_offsets(meta)
        offsets = self._service.offsets(asked.topic, time_ns=asked.time_ns, at=asked.at)
        self._answer(Verb.OFFSETS, correlation, verbs.OffsetsAnswer(offsets))

    def _init_producer(self, correlation: int, _meta: memoryview, _payload: memoryview) -> None:
        one = self._service.init_producer()  # partitions know it by its batches; nothing else has to
        self._answer(Verb.INIT_PRODUCER, correlation, verbs.ProducerIdentity(one.producer_id, one.epoch))

    def _publish(self, correlation: int, meta: memoryview, payload: memoryview) -> None:
        asked = _decode_publish(meta)
        pending = self._service.publish_records(asked.topic, asked.partition, payload, acks=asked.acks)
        if pending.is_done:
            self._answer(Verb.PUBLISH, correlation, verbs.PublishAnswer(*pending.result()))
            return

        def answer(stored: StoredBatch) -> None:
            self._answer(Verb.PUBLISH, correlation, verbs.PublishAnswer(*stored))

        self._later(Verb.PUBLISH, correlation, pending, answer)

    def _read(self, correlation: int, meta: memoryview, payload: memoryview) -> None:
        asked = _decode_read(meta)
        pending = self._service.read(
            asked.topic,
            asked.partition,
            offset=asked.offset,
            max_bytes=min(asked.max_bytes, self._door.read_bytes_max()),
            max_records=asked.max_records,
            wait_ms=asked.wait_ms,
            from_time_ns=asked.from_time_ns,
            to_time_ns=asked.to_time_ns,
            end_offset=asked.end_offset,
            isolation=asked.isolation,
            delayed=asked.delayed,
            without=asked.without,
        )
        if pending.is_done:
            self._send_records(Verb.READ, correlation, pending.result(), RESPONSE_OF_RECORDS)
            return
        self._reads.add(pending)
        pending.then(self._reads.discard)

        def answer(result: ReadResult) -> None:
            if self._is_congested and result.record_count:  # many may have waited; read again when the peer reads
                self._frames.append(Frame(Verb.READ, 0, correlation, meta, payload))
            else:
                self._send_records(Verb.READ, correlation, result, RESPONSE_OF_RECORDS)

        self._later(Verb.READ, correlation, pending, answer)

    # --- groups --------------------------------------------------------------------------------

    def _join(self, correlation: int, meta: memoryview, _: memoryview) -> None:
        asked = _decode_join(meta)
        if asked.member_id is not None:
            self._door.polls.pop((asked.group, asked.member_id), None)
        wanted = Join(*msgspec.structs.astuple(asked)[1:])._replace(confirms_revocations=True)
        self._later(
            Verb.JOIN,
            correlation,
            self._service.groups.join(asked.group, wanted),
            lambda joined: self._send_value(Verb.JOIN, correlation, joined),
        )

    def _heartbeat(self, correlation: int, meta: memoryview, payload: memoryview) -> None:
        asked = _decode_heartbeat(meta)
        if payload:
            revoked = _decode_partitions(payload)
            self._service.groups.revoke(asked.group, asked.member_id, asked.generation, revoked)
        beat = self._service.groups.heartbeat(asked.group, asked.member_id, asked.generation, is_cooperative=True)
        self._send_value(Verb.HEARTBEAT, correlation, beat)

    def _poll(self, correlation: int, meta: memoryview, _: memoryview) -> None:
        asked = _decode_poll(meta)
        last = self._next_poll(asked) if asked.number else None
        pending = self._service.groups.poll(
            asked.group,
            asked.member_id,
            generation=asked.generation,
            max_messages=asked.max_messages,
            max_bytes=min(asked.max_bytes, self._door.read_bytes_max()),
            wait_ms=asked.wait_ms,
            visibility_timeout_ms=asked.visibility_timeout_ms,
        )
        if pending.is_done:
            self._send_polled(correlation, last, pending.result())
        else:
            if last:
                last.pending = pending
            self._reads.add(pending)
            pending.then(self._reads.discard)
            self._later(Verb.POLL, correlation, pending, partial(self._send_polled, correlation, last))

    def _next_poll(self, asked: verbs.Poll) -> LastPoll:
        """Remember the poll, after taking back what the answer to the same one has brought to nobody."""
        polls, member = self._door.polls, (asked.group, asked.member_id)
        last = polls.pop(member, None)
        if last and last.number == asked.number:
            if last.pending:
                last.pending.fail(BrokerUnavailable("another poll took its place"))
            self._give_back(last.batches)
        elif len(polls) >= POLLS_MAX:
            del polls[next(iter(polls))]
        polls[member] = following = LastPoll(asked.number)
        if last and last.number == asked.number:
            following.gaps = last.gaps
        return following

    def _send_polled(self, correlation: int, last: LastPoll | None, result: PollResult) -> None:
        batches = [(one.topic, one.partition, one.nonce) for one in result.polled.batches]
        if self._is_closed:  # nobody will ever see these
            self._give_back(batches)
            return
        if last:
            last.pending = None
            last.batches = batches
            if last.gaps:
                result.polled.gaps = last.gaps + result.polled.gaps
            last.gaps = result.polled.gaps
        size = sum(map(len, result.records))
        head = frames.pack(Verb.POLL, correlation, verbs.encode(result.polled), size, flags=RESPONSE_OF_RECORDS)
        self._write(head, *result.records)

    def _give_back(self, batches: Iterable[tuple[str, int, str]]) -> None:
        """Deliver them to others as if they had not been delivered; without leases that cannot be done."""
        for topic, partition, nonce in batches:
            with suppress(GoQueueError):
                self._service.groups.settle_batch(topic, partition, nonce, b"", Settlement("release"))

    def _settle(self, correlation: int, meta: memoryview, payload: memoryview) -> None:
        asked = _decode_settle(meta)
        counts = [part.count for part in asked.parts]
        if counts and min(counts) < 0:
            raise InvalidRequest("a part has less than no offsets")
        if sum(counts) * OFFSET_BYTES != len(payload):
            raise InvalidRequest("the payload has other offsets than the parts say")
        settling: list[Pending[SettledBatch]] = []
        at = 0
        for part in asked.parts:
            end = at + part.count * OFFSET_BYTES
            try:
                pending = self._service.groups.settle_batch(
                    part.topic, part.partition, part.nonce, payload[at:end], asked.settlement
                )
            except GoQueueError as error:
                pending = Pending.failed(error)
            at = end
            settling.append(pending)
        all_done = when_all_are_done(settling)
        if all_done.is_done:
            self._send_settled(correlation, settling)
        else:
            self._later(Verb.SETTLE, correlation, all_done, lambda _: self._send_settled(correlation, settling))

    def _send_settled(self, correlation: int, settled: Sequence[Pending[SettledBatch]]) -> None:
        answers: list[tuple[SettledBatch | None, verbs.ErrorMeta | None]] = []
        for done in settled:
            try:
                answers.append((done.result(), None))
            except GoQueueError as error:
                answers.append((None, verbs.error_meta(error)))
            except Exception:
                answers.append((None, verbs.error_meta(self._bug(Verb.SETTLE))))
        self._send_value(Verb.SETTLE, correlation, answers)

    def _call(self, correlation: int, meta: memoryview, payload: memoryview) -> None:
        asked = _decode_call(meta)
        arguments = _decode_arguments(payload)
        pending = calls.call(self._service, asked.name, arguments)
        if asked.name == "groups.leave":
            self._door.polls.pop((str(arguments["group"]), str(arguments["member_id"])), None)
        self._later(Verb.CALL, correlation, pending, lambda value: self._send_value(Verb.CALL, correlation, value))

    def _send_value(self, kind: int, correlation: int, value: object) -> None:
        if not self._is_closed:
            payload = verbs.encode(value)
            head = frames.pack_checked(kind, correlation, _EMPTY, payload, flags=RESPONSE)
            self._write(head, payload)

    def _stats(self, correlation: int, _meta: memoryview, _payload: memoryview) -> None:
        node = self._service.stats()
        stats = verbs.Stats(
            node.node_id,
            node.uptime_ns,
            process.cpu_ns(),
            process.rss_bytes(),
            node.topic_count,
            node.size_bytes,
        )
        self._answer(Verb.STATS, correlation, stats)

    def _send_records(self, kind: int, correlation: int, result: ReadResult, flags: int) -> None:
        if self._is_closed:
            return
        meta = verbs.encode(verbs.ReadAnswer(*result[1:]))
        head = frames.pack(kind, correlation, meta, len(result.records), flags=flags)
        if result.record_count:
            self._write(head, result.records)
        else:
            self._write(head)

    # --- subscriptions -------------------------------------------------------------------------

    def _subscribe(self, correlation: int, meta: memoryview, _: memoryview) -> None:
        asked = _decode_subscribe(meta)
        if correlation in self._pushes:
            raise InvalidRequest(f"subscription {correlation} is open already")
        if len(self._pushes) >= self._door.config.subscriptions_max:
            raise InvalidRequest(f"more than {self._door.config.subscriptions_max} subscriptions")
        subscription = self._service.subscribe(
            asked.topic,
            asked.partition,
            offset=asked.offset,
            to_time_ns=asked.to_time_ns,
            isolation=asked.isolation,
        )
        push = Push(correlation, subscription, asked.credit, asked.max_bytes)
        self._pushes[correlation] = push
        self._schedule(push)

    def _credit(self, _: int, meta: memoryview, _payload: memoryview) -> None:
        asked = _decode_credit(meta)
        push = self._pushes.get(asked.subscription)
        if push:  # else it ended while the credit was under way
            push.credit += asked.bytes
            self._schedule(push)

    def _unsubscribe(self, _: int, meta: memoryview, _payload: memoryview) -> None:
        push = self._pushes.pop(_decode_unsubscribe(meta).subscription, None)
        if push:
            push.subscription.close()

    def _schedule(self, push: Push) -> None:
        """Push soon, together with all that comes until then."""
        if not push.is_scheduled and push.credit > 0 and not self._is_congested and not self._is_closed:
            push.is_scheduled = True
            self._door.push_soon(partial(self._push, push))

    def _push(self, push: Push) -> None:
        push.is_scheduled = False
        is_open = self._pushes.get(push.correlation) is push  # and not another one of the same number
        if not is_open or self._is_closed or self._is_congested or push.credit <= 0:
            return
        try:
            result = push.subscription.read(max_bytes=min(push.max_bytes, push.credit, self._door.read_bytes_max()))
        except GoQueueError as error:
            self._end(push)
            self._fail(Verb.SUBSCRIBE, push.correlation, error)
            return
        except Exception:
            self._end(push)
            self._fail(Verb.SUBSCRIBE, push.correlation, self._bug(Verb.SUBSCRIBE))
            return
        if result.record_count or result.gaps or result.end_of_range:
            push.credit -= len(result.records)
            self._send_records(Verb.SUBSCRIBE, push.correlation, result, PUSHED_RECORDS)
        if result.end_of_range:
            self._end(push)
        else:
            push.subscription.when_ready(lambda: self._schedule(push))

    def _end(self, push: Push) -> None:
        self._pushes.pop(push.correlation, None)
        push.subscription.close()


_HANDLERS: dict[int, Callable[[Connection, int, memoryview, memoryview], None]] = {
    Verb.HELLO: Connection._hello,
    Verb.PING: Connection._ping,
    Verb.METADATA: Connection._metadata,
    Verb.CREATE_TOPIC: Connection._create_topic,
    Verb.DELETE_TOPIC: Connection._delete_topic,
    Verb.LIST_TOPICS: Connection._list_topics,
    Verb.DESCRIBE_TOPIC: Connection._describe_topic,
    Verb.ALTER_TOPIC: Connection._alter_topic,
    Verb.OFFSETS: Connection._offsets,
    Verb.INIT_PRODUCER: Connection._init_producer,
    Verb.PUBLISH: Connection._publish,
    Verb.READ: Connection._read,
    Verb.SUBSCRIBE: Connection._subscribe,
    Verb.CREDIT: Connection._credit,
    Verb.UNSUBSCRIBE: Connection._unsubscribe,
    Verb.STATS: Connection._stats,
    Verb.JOIN: Connection._join,
    Verb.HEARTBEAT: Connection._heartbeat,
    Verb.POLL: Connection._poll,
    Verb.SETTLE: Connection._settle,
    Verb.CALL: Connection._call,
}


def _nothing() -> None:
    pass


def _decoder(meta_type: type[M]) -> Callable[[memoryview], M]:
    return msgspec.msgpack.Decoder(meta_type).decode


_decode_hello = _decoder(verbs.Hello)
_decode_metadata = _decoder(verbs.Metadata)
_decode_create_topic = _decoder(verbs.CreateTopic)
_decode_topic_name = _decoder(verbs.TopicName)
_decode_list_topics = _decoder(verbs.ListTopics)
_decode_alter_topic = _decoder(verbs.AlterTopic)
_decode_offsets = _decoder(verbs.Offsets)
_decode_publish = _decoder(verbs.Publish)
_decode_read = _decoder(verbs.Read)
_decode_subscribe = _decoder(verbs.Subscribe)
_decode_credit = _decoder(verbs.Credit)
_decode_unsubscribe = _decoder(verbs.Unsubscribe)
_decode_join = _decoder(verbs.Join)
_decode_heartbeat = _decoder(verbs.MemberHeartbeat)
_decode_poll = _decoder(verbs.Poll)
_decode_settle = _decoder(verbs.Settle)
_decode_call = _decoder(verbs.Call)
_decode_arguments = msgspec.msgpack.Decoder(dict[str, object]).decode
_decode_partitions = msgspec.msgpack.Decoder(list[PartitionName]).decode


def _topic_state(info: TopicInfo) -> verbs.TopicState:
    return verbs.TopicState(
        info.name,
        info.topic_id,
        info.replication_factor,
        info.created_at_ns,
        dict(info.settings),
        list(info.defaults),
        [verbs.PartitionState(*partition[:7], partition.message_count) for partition in info.partitions],
    )
