"""The requests of one connection: each frame becomes a verb of the service, and its result an answer frame.

A handler runs when its frame comes and never waits: what has to wait is a `Pending`, which answers later. Fields go
from frames to verbs and back by name, so that a field that is added in the middle of either moves nothing.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, TypeVar, cast

import msgspec

from goqueue.doors import process
from goqueue.doors.native import calls
from goqueue.doors.native.config import NativeConfig
from goqueue.doors.native.peer import Peer
from goqueue.doors.native.pushes import RESPONSE_OF_RECORDS, Pushes, send_records
from goqueue.errors import BrokerUnavailable, GoQueueError, InvalidRequest, TopicNotFound
from goqueue.names import VERSION
from goqueue.service.caller import Caller
from goqueue.service.groups import Join, PollResult
from goqueue.service.messages import ProducerEpoch, ReadResult, StoredBatch
from goqueue.service.pending import Pending, chained, when_all_are_done
from goqueue.service.service import Service
from goqueue.service.topics import TopicInfo
from goqueue.topics.config import TRACES_TOPIC, refuse_internal
from goqueue.wire import frames, verbs
from goqueue.wire.frames import Frame, FrameFlags
from goqueue.wire.reports import PartitionName, SettledBatch, Settlement
from goqueue.wire.verbs import Verb

OFFSET_BYTES: Final = 8
RESPONSE: Final = int(FrameFlags.RESPONSE)
_EMPTY: Final = verbs.encode(verbs.Empty())

M = TypeVar("M", bound=msgspec.Struct)
Handler = Callable[["Requests", int, memoryview, memoryview], None]


class Requests:
    """What one client asks for. It has to say HELLO first."""

    def __init__(self, peer: Peer, service: Service, *, limits: NativeConfig, node_id: int) -> None:
        self._peer = peer
        self._service = service  # called by this client, from its HELLO on
        self._frame_bytes_max = limits.frame_bytes_max
        self._node_id = node_id
        self._reads: set[Pending[Any]] = set()  # those that wait for a record
        self.pushes = Pushes(peer, subscriptions_max=limits.subscriptions_max)
        self.is_welcome = False

    def handle(self, kind: int, correlation: int, meta: memoryview, payload: memoryview) -> None:
        """Handle one frame. Raises what is wrong with it."""
        handler = _HANDLERS.get(kind)
        if handler is None:
            raise InvalidRequest(f"unknown verb {kind}")
        if not self.is_welcome and kind != Verb.HELLO:
            raise InvalidRequest("a connection begins with HELLO")
        handler(self, correlation, meta, payload)

    def end(self) -> None:
        """The connection is gone: end its subscriptions and its waiting reads."""
        self.pushes.close_all()
        for read in list(self._reads):
            read.fail(BrokerUnavailable("the connection was closed"))

    # --- the connection ------------------------------------------------------------------------

    def _hello(self, correlation: int, meta: memoryview, _: memoryview) -> None:
        hello = _decode_hello(meta)
        if hello.version != verbs.PROTOCOL_VERSION:
            raise InvalidRequest(f"protocol version {hello.version}; this broker speaks {verbs.PROTOCOL_VERSION}")
        self.is_welcome = True
        self._service = self._service.called_by(Caller("native", self._peer.peer, hello.client_id))
        welcome = verbs.HelloAnswer(
            version=verbs.PROTOCOL_VERSION,
            features=tuple(feature for feature in hello.features if feature in verbs.FEATURES),
            node_id=self._node_id,
            server=f"goqueue {VERSION}",
            frame_bytes_max=self._frame_bytes_max,
        )
        self._peer.answer(Verb.HELLO, correlation, welcome)

    def _ping(self, correlation: int, _meta: memoryview, _payload: memoryview) -> None:
        self._peer.answer(Verb.PING, correlation, verbs.Empty())

    def _stats(self, correlation: int, _meta: memoryview, _payload: memoryview) -> None:
        node = self._service.node.stats()
        stats = verbs.Stats(
            node_id=node.node_id,
            uptime_ns=node.uptime_ns,
            cpu_ns=process.cpu_ns(),
            rss_bytes=process.rss_bytes(),
            topic_count=node.topic_count,
            size_bytes=node.size_bytes,
        )
        self._peer.answer(Verb.STATS, correlation, stats)

    # --- topics --------------------------------------------------------------------------------

    def _metadata(self, correlation: int, meta: memoryview, _: memoryview) -> None:
        names = _decode_metadata(meta).topics
        described = [self._service.topics.describe(name) for name in names]
        nodes = self._service.cluster.nodes()  # every node knows them, so this is done at once

        def answer(_: None) -> None:
            topics = [_topic_metadata(name, done) for name, done in zip(names, described, strict=True)]
            # The client has reached this node by some address, which may not be the one that it advertises.
            addresses = {node.id: node.client_address for node in nodes.result()} | {self._node_id: ""}
            self._peer.answer(Verb.METADATA, correlation, verbs.MetadataAnswer(addresses, topics))

        self._peer.later(Verb.METADATA, correlation, when_all_are_done(described), answer)

    def _create_topic(self, correlation: int, meta: memoryview, _: memoryview) -> None:
        asked = _decode_create_topic(meta)
        created = self._service.topics.create(
            asked.name,
            partitions=asked.partitions,
            replication_factor=asked.replication_factor,
            settings=asked.settings,
        )
        self._peer.later(Verb.CREATE_TOPIC, correlation, created, partial(self._topic, Verb.CREATE_TOPIC, correlation))

    def _delete_topic(self, correlation: int, meta: memoryview, _: memoryview) -> None:
        deleted = self._service.topics.delete(_decode_topic_name(meta).name)
        self._peer.later(
            Verb.DELETE_TOPIC,
            correlation,
            deleted,
            lambda _: self._peer.answer(Verb.DELETE_TOPIC, correlation, verbs.Empty()),
        )

    def _list_topics(self, correlation: int, meta: memoryview, _: memoryview) -> None:
        names = self._service.topics.list(internal=_decode_list_topics(meta).internal)
        self._peer.later(Verb.LIST_TOPICS, correlation, names, partial(self._value, Verb.LIST_TOPICS, correlation))

    def _describe_topic(self, correlation: int, meta: memoryview, _: memoryview) -> None:
        info = self._service.topics.describe(_decode_topic_name(meta).name)
        self._peer.later(Verb.DESCRIBE_TOPIC, correlation, info, partial(self._topic, Verb.DESCRIBE_TOPIC, correlation))

    def _alter_topic(self, correlation: int, meta: memoryview, _: memoryview) -> None:
        asked = _decode_alter_topic(meta)
        altered = self._service.topics.alter(asked.name, asked.changes)
        self._peer.later(Verb.ALTER_TOPIC, correlation, altered, partial(self._topic, Verb.ALTER_TOPIC, correlation))

    def _offsets(self, correlation: int, meta: memoryview, _: memoryview) -> None:
        asked = _decode_offsets(meta)
        found = self._service.topics.offsets(asked.topic, time_ns=asked.time_ns, at=asked.at)

        def answer(offsets: Sequence[int]) -> None:
            self._peer.answer(Verb.OFFSETS, correlation, verbs.OffsetsAnswer(list(offsets)))

        self._peer.later(Verb.OFFSETS, correlation, found, answer)

    # --- publishing and reading ----------------------------------------------------------------

    def _init_producer(self, correlation: int, _meta: memoryview, _payload: memoryview) -> None:
        def answer(producer: ProducerEpoch) -> None:
            identity = verbs.ProducerIdentity(producer_id=producer.producer_id, epoch=producer.epoch)
            self._peer.answer(Verb.INIT_PRODUCER, correlation, identity)

        self._peer.later(Verb.INIT_PRODUCER, correlation, self._service.messages.init_producer(), answer)

    def _publish(self, correlation: int, meta: memoryview, payload: memoryview) -> None:
        asked = _decode_publish(meta)
        pending = self._service.messages.publish_records(asked.topic, asked.partition, payload, acks=asked.acks)
        if pending.is_done:  # without `later`, which costs a closure: most batches of flush=interval come here
            self._published(correlation, pending.result())
        else:
            self._peer.later(Verb.PUBLISH, correlation, pending, partial(self._published, correlation))

    def _published(self, correlation: int, stored: StoredBatch) -> None:
        answer = verbs.PublishAnswer(
            first_offset=stored.first_offset,
            record_count=stored.record_count,
            timestamp_ns=stored.timestamp_ns,
            duplicate=stored.duplicate,
        )
        self._peer.answer(Verb.PUBLISH, correlation, answer)

    def _read(self, correlation: int, meta: memoryview, payload: memoryview) -> None:
        asked = _decode_read(meta)
        pending = self._service.messages.read(
            asked.topic,
            asked.partition,
            offset=asked.offset,
            max_bytes=min(asked.max_bytes, self._peer.read_bytes_max),
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
            send_records(self._peer, Verb.READ, correlation, pending.result(), RESPONSE_OF_RECORDS)
            return
        self._reads.add(pending)
        pending.then(self._reads.discard)

        def answer(result: ReadResult) -> None:
            # Many reads may have waited for the same record: those of a peer that does not read wait on.
            if self._peer.is_congested and result.record_count:
                self._peer.handle_again(Frame(Verb.READ, 0, correlation, meta, payload))
            else:
                send_records(self._peer, Verb.READ, correlation, result, RESPONSE_OF_RECORDS)

        self._peer.later(Verb.READ, correlation, pending, answer)

    def _subscribe(self, correlation: int, meta: memoryview, _: memoryview) -> None:
        asked = _decode_subscribe(meta)
        self.pushes.check_room(correlation)
        subscription = self._service.messages.subscribe(
            asked.topic,
            asked.partition,
            offset=asked.offset,
            to_time_ns=asked.to_time_ns,
            isolation=asked.isolation,
        )
        self.pushes.begin(correlation, subscription.result(), asked.credit, asked.max_bytes)

    def _credit(self, _: int, meta: memoryview, _payload: memoryview) -> None:
        asked = _decode_credit(meta)
        self.pushes.add_credit(asked.subscription, asked.bytes)

    def _unsubscribe(self, _: int, meta: memoryview, _payload: memoryview) -> None:
        self.pushes.close(_decode_unsubscribe(meta).subscription)

    # --- groups --------------------------------------------------------------------------------

    def _join(self, correlation: int, meta: memoryview, _: memoryview) -> None:
        asked = _decode_join(meta)
        wanted = Join(
            client_id=asked.client_id,
            topics=asked.topics,
            member_id=asked.member_id,
            session_timeout_ms=asked.session_timeout_ms,
            mode=asked.mode,
            protocol=asked.protocol,
            assignor=asked.assignor,
            start=asked.start,
            ack=asked.ack,
            auto_commit=asked.auto_commit,
            visibility_timeout_ms=asked.visibility_timeout_ms,
            max_in_flight=asked.max_in_flight,
            auto_commit_interval_ms=asked.auto_commit_interval_ms,
            confirms_revocations=True,
        )
        joined = self._service.groups.join(asked.group, wanted)
        self._peer.later(Verb.JOIN, correlation, joined, partial(self._value, Verb.JOIN, correlation))

    def _heartbeat(self, correlation: int, meta: memoryview, payload: memoryview) -> None:
        asked = _decode_heartbeat(meta)
        groups = self._service.groups
        beat = partial(groups.heartbeat, asked.group, asked.member_id, asked.generation, is_cooperative=True)
        if payload:
            revoked = groups.revoke(asked.group, asked.member_id, asked.generation, _decode_partitions(payload))
            answered = chained(revoked, lambda _: beat())
        else:
            answered = beat()
        self._peer.later(Verb.HEARTBEAT, correlation, answered, partial(self._value, Verb.HEARTBEAT, correlation))

    def _poll(self, correlation: int, meta: memoryview, _: memoryview) -> None:
        asked = _decode_poll(meta)
        pending = self._service.groups.poll(
            asked.group,
            asked.member_id,
            generation=asked.generation,
            max_messages=asked.max_messages,
            max_bytes=min(asked.max_bytes, self._peer.read_bytes_max),
            wait_ms=asked.wait_ms,
            visibility_timeout_ms=asked.visibility_timeout_ms,
            number=asked.number or None,
        )
        if pending.is_done:
            self._polled(correlation, pending.result())
            return
        self._reads.add(pending)
        pending.then(self._reads.discard)
        self._peer.later(Verb.POLL, correlation, pending, partial(self._polled, correlation))

    def _polled(self, correlation: int, result: PollResult) -> None:
        if self._peer.is_closed:  # no client will see these; a release that is refused leaves them until the lease ends
            for batch in result.polled.batches:
                self._service.groups.settle_batch(batch.topic, batch.partition, batch.nonce, b"", Settlement("release"))
            return
        size = sum(map(len, result.records))
        head = frames.pack(Verb.POLL, correlation, verbs.encode(result.polled), size, flags=RESPONSE_OF_RECORDS)
        self._peer.write(head, *result.records)

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
            settling.append(
                self._service.groups.settle_batch(
                    part.topic, part.partition, part.nonce, payload[at:end], asked.settlement
                )
            )
            at = end
        all_done = when_all_are_done(settling)
        if all_done.is_done:
            self._settled(correlation, settling)
        else:
            self._peer.later(Verb.SETTLE, correlation, all_done, lambda _: self._settled(correlation, settling))

    def _settled(self, correlation: int, settled: Sequence[Pending[SettledBatch]]) -> None:
        answers: list[tuple[SettledBatch | None, verbs.ErrorMeta | None]] = []
        for done in settled:
            try:
                answers.append((done.result(), None))
            except GoQueueError as error:
                answers.append((None, verbs.error_meta(error)))
            except Exception:
                answers.append((None, verbs.error_meta(self._peer.bug(Verb.SETTLE))))
        self._value(Verb.SETTLE, correlation, answers)

    # --- all other verbs -----------------------------------------------------------------------

    def _call(self, correlation: int, meta: memoryview, payload: memoryview) -> None:
        asked = _decode_call(meta)
        arguments = _decode_arguments(payload)
        pending = calls.call(self._service, asked.name, arguments)
        self._peer.later(Verb.CALL, correlation, pending, partial(self._value, Verb.CALL, correlation))

    # --- answers -------------------------------------------------------------------------------

    def _value(self, kind: int, correlation: int, value: object) -> None:
        """Send an answer whose payload is a value."""
        if not self._peer.is_closed:
            payload = verbs.encode(value)
            head = frames.pack_checked(kind, correlation, _EMPTY, payload, flags=RESPONSE)
            self._peer.write(head, payload)

    def _topic(self, kind: int, correlation: int, info: TopicInfo) -> None:
        """Send a topic as it is."""
        state = verbs.TopicState(
            name=info.name,
            topic_id=info.topic_id,
            replication_factor=info.replication_factor,
            created_at_ns=info.created_at_ns,
            settings=dict(info.settings),
            defaults=list(info.defaults),
            partitions=[
                verbs.PartitionState(
                    partition=partition.partition,
                    start_offset=partition.start_offset,
                    end_offset=partition.end_offset,
                    high_watermark=partition.high_watermark,
                    last_stable_offset=partition.last_stable_offset,
                    size_bytes=partition.size_bytes,
                    leader=partition.leader,
                    message_count=partition.message_count,
                )
                for partition in info.partitions
            ],
        )
        self._peer.answer(kind, correlation, state)


def _topic_metadata(name: str, described: Pending[TopicInfo]) -> verbs.TopicMetadata:
    try:
        try:
            info = described.result()
        except TopicNotFound:
            if name != TRACES_TOPIC:  # clients that request metadata publish or read, which only __traces allows
                refuse_internal(name)
            raise
    except GoQueueError as error:
        return verbs.TopicMetadata(name, topic_id="", leaders=[], error=verbs.error_meta(error))
    return verbs.TopicMetadata(
        name,
        topic_id=info.topic_id,
        leaders=[partition.leader for partition in info.partitions],
        compression=str(info.settings["compression"]),
        max_message_bytes=cast("int", info.settings["max_message_bytes"]),
        acks=str(info.settings["acks"]),
        partitioner=str(info.settings["partitioner"]),
    )


_HANDLERS: Final[dict[int, Handler]] = {
    Verb.HELLO: Requests._hello,
    Verb.PING: Requests._ping,
    Verb.METADATA: Requests._metadata,
    Verb.CREATE_TOPIC: Requests._create_topic,
    Verb.DELETE_TOPIC: Requests._delete_topic,
    Verb.LIST_TOPICS: Requests._list_topics,
    Verb.DESCRIBE_TOPIC: Requests._describe_topic,
    Verb.ALTER_TOPIC: Requests._alter_topic,
    Verb.OFFSETS: Requests._offsets,
    Verb.INIT_PRODUCER: Requests._init_producer,
    Verb.PUBLISH: Requests._publish,
    Verb.READ: Requests._read,
    Verb.SUBSCRIBE: Requests._subscribe,
    Verb.CREDIT: Requests._credit,
    Verb.UNSUBSCRIBE: Requests._unsubscribe,
    Verb.STATS: Requests._stats,
    Verb.JOIN: Requests._join,
    Verb.HEARTBEAT: Requests._heartbeat,
    Verb.POLL: Requests._poll,
    Verb.SETTLE: Requests._settle,
    Verb.CALL: Requests._call,
}


def _decoder(meta_type: type[M]) -> Callable[[memoryview], M]:
    return msgspec.msgpack.Decoder(meta_type).decode


_decode_hello = _decoder(verbs.HelloRequest)
_decode_metadata = _decoder(verbs.MetadataRequest)
_decode_create_topic = _decoder(verbs.CreateTopicRequest)
_decode_topic_name = _decoder(verbs.TopicRequest)
_decode_list_topics = _decoder(verbs.ListTopicsRequest)
_decode_alter_topic = _decoder(verbs.AlterTopicRequest)
_decode_offsets = _decoder(verbs.OffsetsRequest)
_decode_publish = _decoder(verbs.PublishRequest)
_decode_read = _decoder(verbs.ReadRequest)
_decode_subscribe = _decoder(verbs.SubscribeRequest)
_decode_credit = _decoder(verbs.CreditRequest)
_decode_unsubscribe = _decoder(verbs.UnsubscribeRequest)
_decode_join = _decoder(verbs.JoinRequest)
_decode_heartbeat = _decoder(verbs.HeartbeatRequest)
_decode_poll = _decoder(verbs.PollRequest)
_decode_settle = _decoder(verbs.SettleRequest)
_decode_call = _decoder(verbs.CallRequest)
_decode_arguments = msgspec.msgpack.Decoder(dict[str, object]).decode
_decode_partitions = msgspec.msgpack.Decoder(list[PartitionName]).decode
