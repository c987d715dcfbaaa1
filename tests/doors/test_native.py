"""The native door answers what it is asked, hangs up on who breaks the protocol, and lets nobody else notice."""

import asyncio
import logging
import socket
from collections.abc import Callable
from contextlib import suppress
from random import Random

import msgspec
import pytest

from goqueue.doors.native.config import NativeConfig
from goqueue.errors import (
    BrokerUnavailable,
    GoQueueError,
    InvalidBatch,
    InvalidConfig,
    InvalidPartition,
    InvalidRequest,
    InvalidTopic,
    PartitionNotFound,
    TopicExists,
    TopicNotFound,
)
from goqueue.record import kernel
from goqueue.wire import verbs
from goqueue.wire.frames import HEADER, FrameFlags
from goqueue.wire.verbs import Verb
from tests.doors.native_peers import House, at_a_door, error_in, request, turn_of_the_loop, until, values_in


def warnings_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


# --- the beginning -------------------------------------------------------------------------------


def test_hello_says_what_both_ends_speak() -> None:
    async def test(house: House) -> None:
        peer = await house.peer(hello=False)
        hello = verbs.HelloRequest(1, ("read", "telepathy"), "tester")

        welcome = await peer.ask(Verb.HELLO, hello, verbs.HelloAnswer)

        assert (welcome.version, welcome.features, welcome.node_id) == (1, ("read",), 0)
        assert welcome.frame_bytes_max == house.door.config.frame_bytes_max

    at_a_door(test)


@pytest.mark.parametrize("verb", [Verb.PING, Verb.READ, 77])
def test_whoever_does_not_say_hello_first_is_told_and_sent_away(verb: int) -> None:
    async def test(house: House) -> None:
        peer = await house.peer(hello=False)
        number = peer.send(verb)
        peer.send(Verb.HELLO, verbs.HelloRequest())

        frame = await peer.receive()
        assert frame.correlation == number
        assert isinstance(error_in(frame), InvalidRequest)
        assert await peer.hung_up() is None

    at_a_door(test)


def test_a_version_that_is_not_spoken_is_refused() -> None:
    async def test(house: House) -> None:
        peer = await house.peer(hello=False)

        with pytest.raises(InvalidRequest):
            await peer.call(Verb.HELLO, verbs.HelloRequest(version=2))
        await peer.hung_up()

    at_a_door(test)


def test_a_peer_that_says_nothing_is_sent_away_after_a_while(caplog: pytest.LogCaptureFixture) -> None:
    async def test(house: House) -> None:
        silent = await house.peer(hello=False)
        polite = await house.peer()
        await until(lambda: len(house.door.connections) == 2)

        house.let_pass(10)
        assert len(house.door.connections) == 2
        house.let_pass(0.001)

        assert isinstance(await silent.hung_up(), InvalidRequest)
        await polite.call(Verb.PING)

    at_a_door(test)
    assert len(warnings_in(caplog)) == 1


def test_beyond_the_limit_of_connections_a_peer_is_told_so(caplog: pytest.LogCaptureFixture) -> None:
    async def test(house: House) -> None:
        first, _ = await house.peer(), await house.peer()

        refused = await house.peer(hello=False)
        assert isinstance(await refused.hung_up(), BrokerUnavailable)
        await first.call(Verb.PING)
        await first.close()
        await until(lambda: len(house.door.connections) == 1)
        await house.peer()

    at_a_door(test, NativeConfig(connections_max=2))
    assert len(warnings_in(caplog)) == 1


@pytest.mark.parametrize("name", NativeConfig.__dataclass_fields__)
def test_limits_are_positive(name: str) -> None:
    with pytest.raises(InvalidConfig):
        NativeConfig(**{name: 0})


# --- awake or asleep -----------------------------------------------------------------------------


async def looks_meanwhile(house: House) -> int:
    """How often the door looks at its clock while nobody asks it for anything."""
    before = house.clock.looks
    loop = asyncio.get_running_loop()
    for _ in range(20):
        turned = loop.create_future()
        loop.call_later(0.001, turned.set_result, None)
        await turned
    return house.clock.looks - before


def test_a_door_that_was_asked_looks_for_more_until_its_time_is_over() -> None:
    async def test(house: House) -> None:
        assert await looks_meanwhile(house) == 0
        peer = await house.peer()
        await peer.call(Verb.PING)
        assert await looks_meanwhile(house) >= 20
        await peer.call(Verb.PING)

        house.clock.advance_ns(500)
        await looks_meanwhile(house)
        assert await looks_meanwhile(house) == 0

    at_a_door(test, busy_poll_ns=500)


def test_a_door_that_is_to_sleep_at_once_does() -> None:
    async def test(house: House) -> None:
        peer = await house.peer()
        await peer.call(Verb.PING)
        assert await looks_meanwhile(house) == 0

    at_a_door(test)


# --- requests ------------------------------------------------------------------------------------


def test_every_verb_is_answered() -> None:
    async def test(house: House) -> None:
        peer = await house.peer()

        created = await peer.ask(
            Verb.CREATE_TOPIC, verbs.CreateTopicRequest("orders", 2, {"acks": "leader"}), verbs.TopicState
        )
        assert (created.name, len(created.partitions), created.settings["acks"]) == ("orders", 2, "leader")
        stored = await peer.publish(b"a", b"b", partition=1)
        assert (stored.first_offset, stored.record_count, stored.duplicate) == (0, 2, False)
        frame = await peer.call(Verb.READ, verbs.ReadRequest("orders", 1))
        answer = msgspec.msgpack.decode(frame.meta, type=verbs.ReadAnswer)
        assert (values_in(frame), answer.record_count, answer.next_offset) == ([b"a", b"b"], 2, 2)
        assert frame.flags == FrameFlags.RESPONSE | FrameFlags.SELF_CHECKED
        listed = await peer.call(Verb.LIST_TOPICS, verbs.ListTopicsRequest())
        assert msgspec.msgpack.decode(listed.payload) == ["orders"]
        assert (await peer.ask(Verb.OFFSETS, verbs.OffsetsRequest("orders"), verbs.OffsetsAnswer)).offsets == [0, 2]
        described = await peer.ask(Verb.DESCRIBE_TOPIC, verbs.TopicRequest("orders"), verbs.TopicState)
        assert described.partitions[1].end_offset == 2
        altered = await peer.ask(Verb.ALTER_TOPIC, verbs.AlterTopicRequest("orders", {"acks": None}), verbs.TopicState)
        assert altered.settings["acks"] == "all"
        known = await peer.ask(Verb.METADATA, verbs.MetadataRequest(["orders", "missing"]), verbs.MetadataAnswer)
        assert known.nodes == {0: ""}
        assert known.topics[0].leaders == [0, 0]
        assert known.topics[0].partitioner == "murmur3"
        assert known.topics[1].error is not None
        assert known.topics[1].error.code == "TOPIC_NOT_FOUND"
        one = await peer.ask(Verb.INIT_PRODUCER, verbs.Empty(), verbs.ProducerIdentity)
        assert one.producer_id > 0
        stats = await peer.ask(Verb.STATS, verbs.Empty(), verbs.Stats)
        assert stats.rss_bytes > 0
        assert (stats.topic_count, stats.size_bytes > 0) == (1, True)
        await peer.call(Verb.DELETE_TOPIC, verbs.TopicRequest("orders"))
        assert msgspec.msgpack.decode((await peer.call(Verb.LIST_TOPICS, verbs.ListTopicsRequest())).payload) == []

    at_a_door(test)


SETTINGS = b"\x82\xa4name\xa1a\xa8settings"
REFUSED: list[tuple[Verb, msgspec.Struct | bytes, bytes, type[GoQueueError]]] = [
    (Verb.PUBLISH, verbs.PublishRequest("missing", 0), bytes(kernel.encode([b"v"])), TopicNotFound),
    (Verb.PUBLISH, verbs.PublishRequest("orders", 1), bytes(kernel.encode([b"v"])), PartitionNotFound),
    (Verb.PUBLISH, verbs.PublishRequest("orders", -1), bytes(kernel.encode([b"v"])), InvalidPartition),
    (Verb.PUBLISH, verbs.PublishRequest("orders", 0, "some"), bytes(kernel.encode([b"v"])), InvalidRequest),
    (Verb.PUBLISH, verbs.PublishRequest("orders", 0), b"", InvalidBatch),
    (Verb.PUBLISH, verbs.PublishRequest("orders", 0), b"no records", InvalidBatch),
    (Verb.READ, verbs.ReadRequest("missing", 0), b"", TopicNotFound),
    (Verb.READ, verbs.ReadRequest("orders", 7), b"", PartitionNotFound),
    (Verb.READ, verbs.ReadRequest("orders", 0, -1), b"", InvalidRequest),
    (Verb.READ, verbs.ReadRequest("orders", 0, 2**63), b"", InvalidRequest),
    (Verb.READ, verbs.ReadRequest("orders", 0, 0, 1, 0), b"", InvalidRequest),
    (Verb.READ, verbs.ReadRequest("orders", 0, isolation="dirty"), b"", InvalidRequest),
    (Verb.SUBSCRIBE, verbs.SubscribeRequest("missing", 0, 0, 1), b"", TopicNotFound),
    (Verb.SUBSCRIBE, verbs.SubscribeRequest("orders", 0, -1, 1), b"", InvalidRequest),
    (Verb.CREATE_TOPIC, verbs.CreateTopicRequest("orders"), b"", TopicExists),
    (Verb.CREATE_TOPIC, verbs.CreateTopicRequest("a/b"), b"", InvalidTopic),
    (Verb.CREATE_TOPIC, verbs.CreateTopicRequest("new", 0), b"", InvalidTopic),
    (Verb.CREATE_TOPIC, verbs.CreateTopicRequest("new", 1, {"acks": ["x"]}), b"", InvalidTopic),
    (Verb.CREATE_TOPIC, verbs.CreateTopicRequest("new", 1, {"segment_bytes": 2**64 - 1}), b"", InvalidTopic),
    (Verb.ALTER_TOPIC, verbs.AlterTopicRequest("missing", {}), b"", TopicNotFound),
    (Verb.DELETE_TOPIC, verbs.TopicRequest("missing"), b"", TopicNotFound),
    (Verb.OFFSETS, verbs.OffsetsRequest("orders", None, "noon"), b"", InvalidRequest),
    (Verb.READ, b"", b"", InvalidRequest),
    (Verb.READ, b"\xc1", b"", InvalidRequest),
    (Verb.READ, b"\x90", b"", InvalidRequest),
    (Verb.READ, b"\x80", b"", InvalidRequest),
    (Verb.READ, b"\x82\xa5topic\x01\xa9partition\x02", b"", InvalidRequest),
    (Verb.READ, b"\x82\xa5topic\xa2\xff\xfe\xa9partition\x00", b"", InvalidRequest),
    (Verb.CREATE_TOPIC, SETTINGS + b"\x81\xa1b" + b"\x91" * 60_000 + b"\x01", b"", InvalidRequest),
    (Verb.CREATE_TOPIC, SETTINGS + b"\x81\xa1b\x81\x81\x01\x02\x03", b"", InvalidRequest),
]


def test_what_is_wrong_with_a_request_is_said_and_the_connection_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    async def test(house: House) -> None:
        await house.create()
        peer = await house.peer()
        for verb, meta, payload, error in REFUSED:
            with pytest.raises(error):
                await peer.call(verb, meta, payload)
        with pytest.raises(InvalidRequest, match="unknown verb 99"):
            await peer.answer_to(peer.send(99))
        assert (await peer.publish(b"fine")).first_offset == 0

    at_a_door(test)
    assert warnings_in(caplog) == []


def test_answers_come_as_soon_as_they_are_there_under_the_number_of_their_request() -> None:
    async def test(house: House) -> None:
        await house.create()
        peer = await house.peer()
        house.workers.held = True
        slow = peer.send(Verb.PUBLISH, verbs.PublishRequest("orders", 0), bytes(kernel.encode([b"v"])))
        poll = peer.send(Verb.READ, verbs.ReadRequest("orders", 0, wait_ms=10_000))
        fast = peer.send(Verb.PING)

        await peer.answer_to(fast)
        house.workers.release()

        assert {(await peer.receive()).correlation, (await peer.receive()).correlation} == {slow, poll}

    at_a_door(test)


def test_ten_thousand_requests_in_one_breath_are_all_answered_in_order() -> None:
    async def test(house: House) -> None:
        await house.create()
        peer = await house.peer()
        batch = bytes(kernel.encode([b"v"]))
        stream = [request(Verb.PUBLISH, verbs.PublishRequest("orders", 0), batch, correlation=n) for n in range(10_000)]
        peer.writer.write(b"".join(stream))

        offsets = [msgspec.msgpack.decode((await peer.receive()).meta)["first_offset"] for _ in range(10_000)]

        assert offsets == list(range(10_000))

    at_a_door(test)


# --- bytes that are no requests ------------------------------------------------------------------


def bad_checksum() -> bytes:
    frame = bytearray(request(Verb.PING, b"meta"))
    frame[-1] ^= 1
    return bytes(frame)


GARBAGE: dict[str, Callable[[], bytes]] = {
    "a bad checksum": bad_checksum,
    "a length of 4 GiB": lambda: HEADER.pack(0xFFFF_FFFF, Verb.PUBLISH, 0, 0, 1, 0),
    "a length of nothing": lambda: bytes(16),
    "another protocol": lambda: b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "random bytes": lambda: Random(3).randbytes(5_000),
}


@pytest.mark.parametrize("garbage", GARBAGE)
@pytest.mark.parametrize("hello", [True, False])
def test_garbage_is_answered_with_why_and_a_hang_up_and_nobody_else_notices(
    garbage: str, hello: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(house: House) -> None:
        await house.create()
        other, peer = await house.peer(), await house.peer(hello=hello)
        waiting = other.send(Verb.READ, verbs.ReadRequest("orders", 0, wait_ms=10_000))
        peer.send(Verb.PING if hello else Verb.HELLO, b"" if hello else verbs.HelloRequest())
        peer.writer.write(GARBAGE[garbage]())

        said = await peer.hung_up()

        assert isinstance(said, InvalidRequest)
        assert house.door.inbound_bytes == 0
        publisher = await house.peer()
        await publisher.publish(b"v")
        assert values_in(await other.answer_to(waiting)) == [b"v"]

    at_a_door(test)
    assert len(warnings_in(caplog)) == 1


def test_a_peer_that_vanishes_in_the_middle_of_a_frame_is_noted_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)

    async def test(house: House) -> None:
        await house.create()
        peer = await house.peer()
        whole = request(Verb.PUBLISH, verbs.PublishRequest("orders", 0), bytes(kernel.encode([b"v" * 300_000])))
        peer.writer.write(whole[: len(whole) // 2])
        await until(lambda: house.door.inbound_bytes > 0)
        peer.writer.transport.abort()
        await until(lambda: not house.door.connections)

        assert house.door.inbound_bytes == 0

    at_a_door(test)
    assert [record.message for record in caplog.records if "middle" in record.message] == [
        record.message for record in caplog.records if record.name == "goqueue.native"
    ]
    assert len([record for record in caplog.records if record.name == "goqueue.native"]) == 1


def test_a_frame_that_comes_byte_by_byte_is_a_frame() -> None:
    async def test(house: House) -> None:
        await house.create()
        peer = await house.peer()
        stream = request(Verb.PUBLISH, verbs.PublishRequest("orders", 0), bytes(kernel.encode([b"v"])), correlation=9)
        connection = house.connection_of(peer)

        for at in range(len(stream)):
            peer.writer.write(stream[at : at + 1])
            if at < len(stream) - 1:
                await until(lambda at=at: connection._reader.pending_bytes == at + 1)

        await peer.answer_to(9)

    at_a_door(test)


def test_a_frame_that_is_begun_and_never_finished_costs_its_connection_and_no_other(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)

    async def test(house: House) -> None:
        slow, other = await house.peer(), await house.peer()
        stream = request(Verb.PING, b"meta")
        connection = house.connection_of(slow)

        for at in range(3):  # a byte a while is not enough
            slow.writer.write(stream[at : at + 1])
            await until(lambda at=at: connection._reader.pending_bytes == at + 1)
            house.let_pass(10)
        house.let_pass(0.001)

        assert isinstance(await slow.hung_up(), InvalidRequest)
        await other.call(Verb.PING)

    at_a_door(test)
    assert len([record for record in caplog.records if record.name == "goqueue.native"]) == 1


def test_a_peer_whose_frames_keep_coming_is_never_taken_for_slow() -> None:
    async def test(house: House) -> None:
        peer = await house.peer()
        stream = b"".join(request(Verb.PING, correlation=n) for n in range(12))

        for number in range(10):  # each time the rest of one frame, and the begin of the next
            peer.writer.write(stream[number * 16 + 5 if number else 0 : number * 16 + 21])
            await peer.answer_to(number)
            house.let_pass(20)

        peer.writer.write(stream[9 * 16 + 21 : 11 * 16])
        await peer.answer_to(10)

    at_a_door(test)


def test_a_peer_that_we_do_not_read_from_is_not_taken_for_slow() -> None:
    async def test(house: House) -> None:
        await house.create()
        peer = await house.peer()
        stream = request(Verb.READ, verbs.ReadRequest("orders", 0, wait_ms=60_000), correlation=1)
        stream += request(Verb.READ, verbs.ReadRequest("orders", 0, wait_ms=60_000), correlation=2)
        last = request(Verb.PING, correlation=3)
        peer.writer.write(stream + last[:5])
        await until(lambda: house.connection_of(peer)._reader.pending_bytes == 5)

        house.let_pass(50)
        await (await house.peer()).publish(b"v")
        house.let_pass(20)
        await peer.answer_to(1)
        await peer.answer_to(2)
        peer.writer.write(last[5:])

        await peer.answer_to(3)

    at_a_door(test, NativeConfig(requests_max=1))


def test_mutated_requests_harm_nobody_and_are_no_bugs(caplog: pytest.LogCaptureFixture) -> None:
    random = Random(11)
    records = bytes(kernel.encode([b"v", b"w"], headers=[{"gq-producer": "7:0:0:2"}, None]))
    samples = [
        *[(verb, meta, payload) for verb, meta, payload, _ in REFUSED],
        (Verb.HELLO, verbs.HelloRequest(), b""),
        (Verb.PUBLISH, verbs.PublishRequest("orders", 0), records),
        (Verb.READ, verbs.ReadRequest("orders", 0, 0, 10, 10, 1, 5, 7), b""),
        (Verb.SUBSCRIBE, verbs.SubscribeRequest("orders", 0, 0, 1_000, 100, 5), b""),
        (Verb.CREDIT, verbs.CreditRequest(1, 10_000), b""),
        (Verb.UNSUBSCRIBE, verbs.UnsubscribeRequest(1), b""),
        (Verb.METADATA, verbs.MetadataRequest(["orders"]), b""),
        (Verb.ALTER_TOPIC, verbs.AlterTopicRequest("orders", {"retention": "1h"}), b""),
    ]

    def mutated(data: bytes) -> bytes:
        changed = bytearray(data)
        for _ in range(random.randrange(3)):
            at = random.randrange(len(changed) + 1)
            changed[at : at + random.randrange(3)] = random.randbytes(random.randrange(4))
        return bytes(changed)

    def stream() -> bytes:
        frames = [request(Verb.HELLO, verbs.HelloRequest())] if random.random() < 0.9 else []
        for _ in range(random.randrange(1, 8)):
            verb, meta, payload = random.choice(samples)
            raw = meta if isinstance(meta, bytes) else verbs.encode(meta)
            frame = request(verb, mutated(raw)[:60_000], mutated(payload), correlation=random.randrange(4))
            frames.append(mutated(frame) if random.random() < 0.2 else frame)
        return b"".join(frames)

    async def test(house: House) -> None:
        await house.create()
        for _ in range(200):
            peer = await house.peer(hello=False)
            peer.writer.write(stream())
            if random.random() < 0.5:
                peer.writer.write_eof()
                await peer.hung_up()
            else:
                peer.writer.transport.abort()
        await until(lambda: not house.door.connections)

        normal = await house.peer()
        offset = (await normal.publish(b"fine")).first_offset
        assert values_in(await normal.call(Verb.READ, verbs.ReadRequest("orders", 0, offset))) == [b"fine"]
        assert house.door.inbound_bytes == 0
        assert not house.broker._waits
        assert not house.broker.partitions.leader("orders", 0)._watchers

    at_a_door(test)
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


# --- stopping ------------------------------------------------------------------------------------


def test_stopping_answers_what_is_open_and_then_hangs_up() -> None:
    async def test(house: House) -> None:
        await house.create()
        peer = await house.peer()
        house.workers.held = True
        number = peer.send(Verb.PUBLISH, verbs.PublishRequest("orders", 0), bytes(kernel.encode([b"v"])))
        poll = peer.send(Verb.READ, verbs.ReadRequest("orders", 0, 5, wait_ms=60_000))
        await until(lambda: house.connection_of(peer).is_busy and len(house.broker._waits) == 1)
        drained = house.broker.drain()

        stopping = asyncio.ensure_future(house.door.stop(10))
        await peer.answer_to(poll)
        assert not drained.is_done
        house.workers.release()

        assert msgspec.msgpack.decode((await peer.answer_to(number)).meta)["first_offset"] == 0
        await stopping
        assert await peer.hung_up() is None
        with pytest.raises(OSError):  # noqa: PT011
            await house.peer(hello=False)

    at_a_door(test)


def test_stopping_does_not_wait_for_longer_than_its_grace() -> None:
    async def test(house: House) -> None:
        await house.create()
        peer = await house.peer()
        peer.send(Verb.READ, verbs.ReadRequest("orders", 0, wait_ms=60_000))
        await until(lambda: house.connection_of(peer).is_busy)

        await house.door.stop(0.01)

        assert await peer.hung_up() is None

    at_a_door(test)


@pytest.mark.parametrize("turns", range(4))
def test_stopping_hangs_up_on_who_came_just_before(turns: int) -> None:
    async def test(house: House) -> None:
        with socket.create_connection(house.address) as peer:
            for _ in range(turns):
                await turn_of_the_loop()
            await house.door.stop(0)
            for _ in range(3):
                await turn_of_the_loop()

            assert not house.door.connections
            peer.settimeout(10)
            with suppress(ConnectionResetError):
                assert peer.recv(1) == b""

    at_a_door(test)


def test_stopping_cuts_off_who_does_not_take_the_rest() -> None:
    async def test(house: House) -> None:
        await house.create()
        peer = await house.peer()
        await peer.publish(bytes(1024 * 1024))
        connection = house.connection_of(peer)
        connection._transport.set_write_buffer_limits(high=2**30)
        for _ in range(50):
            peer.send(Verb.READ, verbs.ReadRequest("orders", 0))
        await until(lambda: connection._transport.get_write_buffer_size() > 1024 * 1024)

        await house.door.stop(0)

        assert not house.door.connections

    at_a_door(test)
