"""A peer that asks for more than it takes slows only itself; a subscription gives what there is credit for."""

import logging

import msgspec
import pytest

from goqueue.doors.native.config import NativeConfig
from goqueue.errors import InvalidRequest, TopicNotFound
from goqueue.record import kernel
from goqueue.wire import verbs
from goqueue.wire.frames import Frame, FrameFlags
from goqueue.wire.verbs import Verb
from tests.doors.native_peers import House, Peer, at_a_door, error_in, request, until, values_in

RECORD_BYTES = 34 + 66  # of each record that is pushed here


def value(number: int) -> bytes:
    return str(number).encode().ljust(66, b".")


async def fill(house: House, count: int, *, first: int = 0, batch: int = 10) -> None:
    peer = await house.peer()
    for start in range(first, first + count, batch):
        await peer.publish(*[value(number) for number in range(start, min(start + batch, first + count))])
    await peer.close()


async def pushed_until_quiet(peer: Peer) -> list[Frame]:
    """What is pushed by the time a PING is answered."""
    found = []
    for _ in range(3):  # a push may be scheduled behind the answer
        number = peer.send(Verb.PING)
        while (frame := await peer.receive()).correlation != number:
            found.append(frame)
    return found


def numbers_in(pushed: list[Frame]) -> list[int]:
    return [int(text.rstrip(b".")) for frame in pushed for text in values_in(frame)]


# --- subscriptions -------------------------------------------------------------------------------


@pytest.mark.parametrize("credit", [1, RECORD_BYTES, RECORD_BYTES + 1, 7 * RECORD_BYTES, 2_345])
@pytest.mark.parametrize("live", [False, True])
def test_a_subscription_gives_what_there_is_credit_for_and_at_most_one_record_more(credit: int, live: bool) -> None:
    async def test(house: House) -> None:
        await house.create()
        peer = await house.peer()
        if not live:
            await fill(house, 100)
        number = peer.send(Verb.SUBSCRIBE, verbs.SubscribeRequest("orders", 0, 0, credit))
        if live:
            await pushed_until_quiet(peer)
            await fill(house, 100)

        pushed = await pushed_until_quiet(peer)

        assert all(frame.correlation == number for frame in pushed)
        assert all(frame.flags & FrameFlags.PUSH for frame in pushed)
        size = sum(len(frame.payload) for frame in pushed)
        assert credit <= size < credit + RECORD_BYTES
        assert numbers_in(pushed) == list(range(size // RECORD_BYTES))
        peer.send(Verb.CREDIT, verbs.CreditRequest(number, 10 * RECORD_BYTES))
        more = await pushed_until_quiet(peer)
        assert numbers_in(pushed + more) == list(range(len(numbers_in(pushed + more))))
        assert 9 <= len(numbers_in(more)) <= 11

    at_a_door(test)


def test_a_subscription_follows_through_rolled_segments_and_limits_of_a_push() -> None:
    async def test(house: House) -> None:
        await house.create(segment_bytes=1024)
        await fill(house, 30)
        peer = await house.peer()
        peer.send(Verb.SUBSCRIBE, verbs.SubscribeRequest("orders", 0, 5, 10**9, 250))
        seen = numbers_in(await pushed_until_quiet(peer))

        await fill(house, 70, first=30)
        while len(seen) < 95:
            pushed = await peer.receive()
            assert len(pushed.payload) <= 250
            seen += numbers_in([pushed])

        assert seen == list(range(5, 100))

    at_a_door(test)


def test_a_subscription_that_was_ended_pushes_no_more_and_its_number_is_free() -> None:
    async def test(house: House) -> None:
        await house.create()
        peer = await house.peer()
        number = peer.send(Verb.SUBSCRIBE, verbs.SubscribeRequest("orders", 0, 0, 10**6))
        with pytest.raises(InvalidRequest):
            await peer.answer_to(
                peer.send(Verb.SUBSCRIBE, verbs.SubscribeRequest("orders", 0, 0, 1), correlation=number)
            )

        peer.send(Verb.UNSUBSCRIBE, verbs.UnsubscribeRequest(number))
        peer.send(Verb.UNSUBSCRIBE, verbs.UnsubscribeRequest(number))
        peer.send(Verb.CREDIT, verbs.CreditRequest(number, 10**6))
        await fill(house, 10)

        assert await pushed_until_quiet(peer) == []
        peer.send(Verb.SUBSCRIBE, verbs.SubscribeRequest("orders", 0, 8, 10**6), correlation=number)
        assert numbers_in(await pushed_until_quiet(peer)) == [8, 9]

    at_a_door(test)


def test_a_number_that_is_used_again_at_once_gives_every_record_once() -> None:
    async def test(house: House) -> None:
        await house.create()
        await fill(house, 10)
        peer = await house.peer()

        peer.writer.write(
            request(Verb.SUBSCRIBE, verbs.SubscribeRequest("orders", 0, 0, 10**6), correlation=7)
            + request(Verb.UNSUBSCRIBE, verbs.UnsubscribeRequest(7))
            + request(Verb.SUBSCRIBE, verbs.SubscribeRequest("orders", 0, 4, 10**6), correlation=7)
        )

        assert numbers_in(await pushed_until_quiet(peer)) == list(range(4, 10))

    at_a_door(test)


def test_the_end_of_a_topic_is_the_end_of_its_subscriptions_with_an_error() -> None:
    async def test(house: House) -> None:
        await house.create()
        await house.create("others")
        peer, admin = await house.peer(), await house.peer()
        number = peer.send(Verb.SUBSCRIBE, verbs.SubscribeRequest("orders", 0, 0, 10**6))
        await pushed_until_quiet(peer)

        await admin.call(Verb.DELETE_TOPIC, verbs.TopicRequest("orders"))

        frame = await peer.receive()
        assert (frame.correlation, type(error_in(frame))) == (number, TopicNotFound)
        await peer.publish(b"v", topic="others")
        peer.send(Verb.SUBSCRIBE, verbs.SubscribeRequest("others", 0, 0, 10**6), correlation=number)
        assert values_in(await peer.answer_to(number)) == [b"v"]

    at_a_door(test)


def test_a_subscription_to_a_range_ends_with_its_end() -> None:
    async def test(house: House) -> None:
        await house.create()
        await fill(house, 5)
        house.clock.advance(1)
        peer = await house.peer()
        number = peer.send(
            Verb.SUBSCRIBE, verbs.SubscribeRequest("orders", 0, 0, 10**6, to_time_ns=house.clock.wall_ns())
        )

        frame = await peer.answer_to(number)

        assert numbers_in([frame]) == list(range(5))
        assert msgspec.msgpack.decode(frame.meta, type=verbs.ReadAnswer).end_of_range
        await fill(house, 5)
        assert await pushed_until_quiet(peer) == []
        assert not house.connection_of(peer).requests.pushes._open

    at_a_door(test)


def test_there_is_a_limit_of_subscriptions() -> None:
    async def test(house: House) -> None:
        await house.create()
        peer = await house.peer()
        for _ in range(3):
            peer.send(Verb.SUBSCRIBE, verbs.SubscribeRequest("orders", 0, 0, 1))

        with pytest.raises(InvalidRequest):
            await peer.answer_to(peer.send(Verb.SUBSCRIBE, verbs.SubscribeRequest("orders", 0, 0, 1)))

    at_a_door(test, NativeConfig(subscriptions_max=3))


# --- peers that vanish ---------------------------------------------------------------------------


def test_a_peer_that_vanishes_leaves_no_wait_and_no_watcher_behind() -> None:
    async def test(house: House) -> None:
        await house.create()
        peer = await house.peer()
        for _ in range(50):
            peer.send(Verb.READ, verbs.ReadRequest("orders", 0, wait_ms=60_000))
            peer.send(Verb.SUBSCRIBE, verbs.SubscribeRequest("orders", 0, 0, 10**6))
        await peer.call(Verb.PING)
        assert len(house.broker._waits) == 50

        await peer.close()
        await until(lambda: not house.door.connections)

        assert not house.broker._waits
        assert not house.broker.partitions.leader("orders", 0)._watchers

    at_a_door(test)


def test_many_connections_come_and_go_and_leave_nothing_behind(caplog: pytest.LogCaptureFixture) -> None:
    async def test(house: House) -> None:
        await house.create()
        steady = await house.peer()
        for _ in range(5):
            crowd = [await house.peer(hello=number % 2 == 0) for number in range(60)]
            await steady.call(Verb.PING)
            for peer in crowd:
                peer.writer.transport.abort()
        await until(lambda: len(house.door.connections) == 1)

        await steady.publish(b"v")

    at_a_door(test)
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


# --- peers that do not read ----------------------------------------------------------------------


def test_a_peer_with_too_many_open_requests_is_not_read_from_until_some_are_answered() -> None:
    async def test(house: House) -> None:
        await house.create()
        peer, other = await house.peer(), await house.peer()
        polls = [peer.send(Verb.READ, verbs.ReadRequest("orders", 0, wait_ms=60_000)) for _ in range(6)]
        ping = peer.send(Verb.PING)
        await until(lambda: house.connection_of(peer)._open_requests == 4)
        await other.call(Verb.PING)
        assert len(house.broker._waits) == 4
        assert not house.connection_of(peer)._is_reading

        await other.publish(b"v")

        answered = [(await peer.receive()).correlation for _ in range(7)]
        assert sorted(answered) == [*polls, ping]
        await peer.call(Verb.PING)

    at_a_door(test, NativeConfig(requests_max=4))


def test_a_peer_that_does_not_read_is_served_no_more_than_the_limits_and_others_go_on() -> None:
    async def test(house: House) -> None:
        await house.create()
        other = await house.peer()
        for _ in range(16):
            await other.publish(bytes(500_000))
        deaf = await house.peer(small_buffers=True)
        deaf.writer.transport.pause_reading()  # type: ignore[attr-defined]
        for _ in range(200):
            deaf.send(Verb.READ, verbs.ReadRequest("orders", 0, max_bytes=1_100_000))
        deaf.send(Verb.SUBSCRIBE, verbs.SubscribeRequest("orders", 0, 0, 10**9))
        connection = house.connection_of(deaf)
        await until(lambda: connection.is_congested)

        for _ in range(20):
            await other.call(Verb.READ, verbs.ReadRequest("orders", 0, max_bytes=1_100_000))
        assert connection._transport.get_write_buffer_size() < 3_000_000
        assert not connection._is_reading

        deaf.writer.transport.resume_reading()  # type: ignore[attr-defined]
        for _ in range(200):
            frame = await deaf.receive()
            assert len(frame.payload) > 1_000_000
        assert (await deaf.receive()).flags & FrameFlags.PUSH

    at_a_door(test)


def test_many_reads_that_waited_are_not_all_answered_to_a_peer_that_does_not_read() -> None:
    async def test(house: House) -> None:
        await house.create()
        deaf, other = await house.peer(small_buffers=True), await house.peer()
        polls = [deaf.send(Verb.READ, verbs.ReadRequest("orders", 0, wait_ms=60_000)) for _ in range(100)]
        await until(lambda: len(house.broker._waits) == 100)
        deaf.writer.transport.pause_reading()  # type: ignore[attr-defined]
        connection = house.connection_of(deaf)

        await other.publish(bytes(900_000))
        await other.call(Verb.PING)
        assert connection._transport.get_write_buffer_size() < 3_000_000

        deaf.writer.transport.resume_reading()  # type: ignore[attr-defined]
        answers = [await deaf.receive() for _ in polls]
        assert sorted(frame.correlation for frame in answers) == polls
        assert all(len(frame.payload) > 900_000 for frame in answers)

    at_a_door(test)


def test_a_peer_that_was_sent_away_and_does_not_even_read_why_is_cut_off() -> None:
    async def test(house: House) -> None:
        await house.create()
        other = await house.peer()
        for _ in range(4):
            await other.publish(bytes(4_000_000))
        deaf = await house.peer(small_buffers=True)
        deaf.writer.transport.pause_reading()  # type: ignore[attr-defined]
        deaf.send(Verb.READ, verbs.ReadRequest("orders", 0, max_bytes=16_000_000))
        connection = house.connection_of(deaf)
        await until(lambda: connection.is_congested)
        connection._refuse(InvalidRequest("go away"))

        house.let_pass(29)
        assert connection in house.door.connections
        house.let_pass(2)
        await until(lambda: connection not in house.door.connections)

    at_a_door(test)


# --- memory for what comes in --------------------------------------------------------------------


def test_when_unfinished_frames_hold_too_much_big_senders_take_turns_and_small_ones_go_on() -> None:
    async def test(house: House) -> None:
        await house.create()
        big = [await house.peer() for _ in range(6)]
        small = await house.peer()
        batch = bytes(kernel.encode([bytes(3_000_000)]))
        stream = request(Verb.PUBLISH, verbs.PublishRequest("orders", 0), batch, correlation=5)
        for peer in big:
            peer.writer.write(stream[:1_500_000])
        await until(lambda: house.door.inbound_bytes > house.door.config.inbound_bytes_max)
        await until(lambda: len(house.door._starved) >= 3)

        await small.publish(b"small")
        assert house.door.inbound_bytes < 10_000_000
        house.let_pass(20)
        for peer in big:
            peer.writer.write(stream[1_500_000:])

        for peer in big:
            await peer.answer_to(5)
        assert house.door.inbound_bytes == 0
        assert not house.door._starved

    at_a_door(test, NativeConfig(inbound_bytes_max=400_000))


def test_who_waits_because_others_hold_too_much_is_not_taken_for_slow() -> None:
    async def test(house: House) -> None:
        await house.create()
        hog, patient = await house.peer(), await house.peer()
        batch = bytes(kernel.encode([bytes(3_000_000)]))
        stream = request(Verb.PUBLISH, verbs.PublishRequest("orders", 0), batch, correlation=5)
        hog.writer.write(stream[:2_900_000])
        await until(lambda: house.connection_of(hog)._reader.pending_bytes == 2_900_000)
        patient.writer.write(stream[:1_000_000])
        await until(lambda: house.connection_of(patient) in house.door._starved)

        house.let_pass(20)
        house.let_pass(20)
        assert isinstance(await hog.hung_up(), InvalidRequest)
        patient.writer.write(stream[1_000_000:])

        await patient.answer_to(5)

    at_a_door(test, NativeConfig(inbound_bytes_max=2_000_000))


def test_a_length_that_is_only_claimed_costs_nothing() -> None:
    async def test(house: House) -> None:
        await house.create()
        liars = [await house.peer() for _ in range(50)]
        for peer in liars:
            peer.writer.write((33 * 1024 * 1024 - 100).to_bytes(4) + bytes([Verb.PUBLISH]) + bytes(50))
        await until(lambda: all(house.connection_of(peer)._reader.pending_bytes for peer in liars))

        assert sum(house.connection_of(peer)._reader.buffered_bytes for peer in liars) < 50 * 16_384

    at_a_door(test)
