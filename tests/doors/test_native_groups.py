"""Groups over the native protocol, frame by frame: who breaks the rules is told, and what nobody saw is given back."""

import asyncio
from array import array
from typing import Any

import msgspec
import pytest

from goqueue.doors.native import calls
from goqueue.errors import GroupNotFound, InvalidRequest, NotGroupMember, StaleGeneration, TopicNotFound
from goqueue.wire import verbs
from goqueue.wire.frames import META_BYTES_MAX, Frame
from goqueue.wire.reports import HeartbeatAnswer, JoinAnswer, PartitionName, PollAnswer, SettledBatch, Settlement
from goqueue.wire.verbs import Verb
from tests.doors.native_peers import House, Peer, at_a_door, error_in, values_in

ANSWERS = list[tuple[SettledBatch | None, verbs.ErrorMeta | None]]


async def answered(peer: Peer, verb: int, meta: msgspec.Struct, payload: bytes = b"") -> Frame:
    number = peer.send(verb, meta, payload)
    while True:
        frame = await peer.receive()
        if frame.correlation == number:
            return frame


async def value(peer: Peer, verb: int, meta: msgspec.Struct, kind: Any, payload: bytes = b"") -> Any:
    frame = await answered(peer, verb, meta, payload)
    return msgspec.msgpack.decode(frame.payload, type=kind)


async def call(peer: Peer, name: str, **arguments: object) -> Frame:
    return await answered(peer, Verb.CALL, verbs.CallRequest(name), verbs.encode(arguments))


async def join(peer: Peer, member_id: str = "me", **fields: Any) -> JoinAnswer:
    joined: JoinAnswer = await value(
        peer, Verb.JOIN, verbs.JoinRequest("g", "c", ("t",), member_id, **fields), JoinAnswer
    )
    return joined


async def poll(peer: Peer, member_id: str = "me", **fields: Any) -> tuple[PollAnswer, list[bytes]]:
    frame = await answered(peer, Verb.POLL, verbs.PollRequest("g", member_id, **fields))
    polled = msgspec.msgpack.decode(frame.meta, type=PollAnswer)
    return polled, values_in(frame) if polled.batches else []


async def settle(peer: Peer, action: str, *parts: tuple[str, list[int]]) -> Any:
    asked = [verbs.SettlePart("t", 0, nonce, len(offsets)) for nonce, offsets in parts]
    payload = b"".join(array("Q", offsets).tobytes() for _, offsets in parts)
    return await value(peer, Verb.SETTLE, verbs.SettleRequest(Settlement(action), asked), ANSWERS, payload)


async def topic(house: House, *values: bytes, partitions: int = 1) -> Peer:
    peer = await house.peer()
    await peer.ask(Verb.CREATE_TOPIC, verbs.CreateTopicRequest("t", partitions), verbs.TopicState)
    if values:
        await peer.publish(*values, topic="t")
    return peer


def test_a_member_joins_polls_and_settles() -> None:
    async def test(house: House) -> None:
        peer = await topic(house, b"a", b"b", b"c")
        joined = await join(peer)
        assert (joined.member_id, joined.partitions) == ("me", [PartitionName("t", 0)])
        polled, values = await poll(peer)
        assert values == [b"a", b"b", b"c"]
        (batch,) = polled.batches
        assert (batch.count, batch.next_offset, batch.lease_ns) == (3, 3, 30 * 10**9)

        ((done, error),) = await settle(peer, "ack", (batch.nonce, [0, 1]))
        assert (done.settled, done.refused, done.committed_offset, error) == (2, [], 2, None)
        ((done, _),) = await settle(peer, "ack", (batch.nonce, []))
        assert (done.settled, done.committed_offset) == (1, 3)
        ((done, _),) = await settle(peer, "ack", (batch.nonce, [0, 2]))
        assert (done.settled, [one.facts["reason"] for one in done.refused]) == (0, ["settled", "settled"])

    at_a_door(test)


def test_each_part_of_a_settlement_has_its_answer() -> None:
    async def test(house: House) -> None:
        peer = await topic(house, b"a", b"b")
        await join(peer)
        first = (await poll(peer, max_messages=1))[0].batches[0].nonce
        second = (await poll(peer, max_messages=1))[0].batches[0].nonce

        forged = first[:-1] + ("0" if first[-1] != "0" else "1")
        parts = [(first, [0]), ("forged", [0]), (second, [1]), ("", []), (forged, [0]), ("0" * len(first), [0])]
        answers = await settle(peer, "ack", *parts)

        assert [done.settled if done else None for done, _ in answers] == [1, None, 1, None, None, None]
        codes_told = [told.code for _, told in answers if told]
        assert codes_told == ["RECEIPT_HANDLE_INVALID"] * 2 + ["RECEIPT_HANDLE_UNKNOWN"] * 2
        assert await settle(peer, "ack") == []

    at_a_door(test)


@pytest.mark.parametrize(
    ("counts", "payload"), [([1], b""), ([2], b"12345678"), ([0], b"12345678"), ([-1, 2], b"12345678"), ([1], b"1234")]
)
def test_offsets_that_do_not_fit_the_parts_settle_nothing(counts: list[int], payload: bytes) -> None:
    async def test(house: House) -> None:
        peer = await topic(house, b"a", b"b")
        await join(peer)
        nonce = (await poll(peer))[0].batches[0].nonce
        parts = [verbs.SettlePart("t", 0, nonce, count) for count in counts]

        frame = await answered(peer, Verb.SETTLE, verbs.SettleRequest(Settlement("ack"), parts), payload)

        assert isinstance(error_in(frame), InvalidRequest)
        ((done, _),) = await settle(peer, "ack", (nonce, [0, 1]))
        assert done.settled == 2

    at_a_door(test)


def test_a_poll_with_the_same_number_brings_what_the_lost_answer_brought() -> None:
    async def test(house: House) -> None:
        peer = await topic(house, b"a", b"b", b"c")
        await join(peer)
        assert (await poll(peer, number=1, max_messages=1))[1] == [b"a"]
        lost, values = await poll(peer, number=2, max_messages=1)
        assert values == [b"b"]

        again, values = await poll(await house.peer(), number=2)
        assert values == [b"b", b"c"]
        assert again.batches[0].counts == {}
        ((done, _),) = await settle(peer, "ack", (lost.batches[0].nonce, [1]))
        assert done.settled == 0
        assert (await poll(peer, number=3))[1] == []
        answers = await settle(peer, "ack", *((one.nonce, []) for one in again.batches))
        assert sum(done.settled for done, _ in answers) == 2

    at_a_door(test)


def test_polls_without_a_number_bring_what_is_next() -> None:
    async def test(house: House) -> None:
        peer = await topic(house, b"a", b"b")
        await join(peer)
        assert [(await poll(peer, max_messages=1))[1] for _ in range(3)] == [[b"a"], [b"b"], []]

    at_a_door(test)


def test_a_process_that_begins_under_the_same_id_takes_nothing_back() -> None:
    async def test(house: House) -> None:
        peer = await topic(house, b"a", b"b")
        await join(peer)
        assert (await poll(peer, number=1, max_messages=1))[1] == [b"a"]
        await join(peer)
        assert (await poll(peer, number=1))[1] == [b"b"]

    at_a_door(test)


def test_a_poll_that_waits_gives_way_to_the_same_one_over_another_connection() -> None:
    async def test(house: House) -> None:
        peer, other = await topic(house), await house.peer()
        await join(peer)
        waiting = peer.send(Verb.POLL, verbs.PollRequest("g", "me", wait_ms=20_000, number=1))
        second = asyncio.ensure_future(poll(other, wait_ms=20_000, number=1))

        frame = await peer.receive()
        assert frame.correlation == waiting
        assert error_in(frame).retryable
        await (await house.peer()).publish(b"a", topic="t")
        assert (await second)[1] == [b"a"]

    at_a_door(test)


def test_a_poll_whose_peer_is_gone_takes_nothing_with_it() -> None:
    async def test(house: House) -> None:
        peer, other = await topic(house), await house.peer()
        await join(peer)
        peer.send(Verb.POLL, verbs.PollRequest("g", "me", wait_ms=20_000))
        await peer.call(Verb.PING)
        await peer.close()
        await other.publish(b"a", topic="t")

        polled, values = await poll(other, wait_ms=20_000)
        assert (values, polled.batches[0].counts) == ([b"a"], {})

    at_a_door(test)


def test_a_heartbeat_asks_for_partitions_and_takes_them_back() -> None:
    async def test(house: House) -> None:
        peer = await topic(house, partitions=2)
        await join(peer, "a")
        await join(peer, "b")
        beat = await value(peer, Verb.HEARTBEAT, verbs.HeartbeatRequest("g", "a", 1), HeartbeatAnswer)
        (asked,) = beat.partitions_to_revoke
        assert beat.rebalance_required

        payload = verbs.encode([asked])
        beat = await value(
            peer, Verb.HEARTBEAT, verbs.HeartbeatRequest("g", "a", beat.generation), HeartbeatAnswer, payload
        )
        assert (beat.partitions_to_revoke, len(beat.partitions_assigned)) == ([], 1)
        beat = await value(peer, Verb.HEARTBEAT, verbs.HeartbeatRequest("g", "b"), HeartbeatAnswer)
        assert beat.partitions_assigned == [asked]

    at_a_door(test)


def test_a_member_that_is_to_give_something_back_does_not_wait_for_messages() -> None:
    async def test(house: House) -> None:
        peer, other = await topic(house, partitions=2), await house.peer()
        await join(peer, "a")
        waiting = asyncio.ensure_future(poll(peer, "a", wait_ms=20_000))
        await other.call(Verb.PING)
        await join(other, "b")
        assert (await waiting)[0].rebalance_required
        assert (await poll(peer, "a", wait_ms=20_000))[0].rebalance_required

    at_a_door(test)


def test_what_is_wrong_with_a_member_is_told() -> None:
    async def test(house: House) -> None:
        peer = await topic(house)
        assert isinstance(error_in(await answered(peer, Verb.POLL, verbs.PollRequest("g", "me"))), GroupNotFound)
        await join(peer)
        wrong = [
            (verbs.PollRequest("g", "you"), NotGroupMember),
            (verbs.PollRequest("g", "me", 99), StaleGeneration),
            (verbs.PollRequest("g", "me", max_messages=0), InvalidRequest),
            (verbs.PollRequest("g", "me", number=-1), InvalidRequest),
            (verbs.PollRequest("g", "me", max_messages=10_001), InvalidRequest),
        ]
        for asked, error in wrong:
            assert type(error_in(await answered(peer, Verb.POLL, asked))) is error
        frame = await answered(peer, Verb.JOIN, verbs.JoinRequest("g", "c", ("missing",)))
        assert type(error_in(frame)) is TopicNotFound

    at_a_door(test)


def test_a_poll_over_many_partitions_fits_its_frame() -> None:
    async def test(house: House) -> None:
        name = "n" * 249
        peer = await house.peer()
        await peer.ask(Verb.CREATE_TOPIC, verbs.CreateTopicRequest(name, 300), verbs.TopicState)
        for partition in range(300):
            await peer.publish(b"v", topic=name, partition=partition)
        joined = await value(peer, Verb.JOIN, verbs.JoinRequest("g", "c", (name,), "me"), JoinAnswer)
        assert len(joined.partitions) == 300
        assert len(verbs.encode(joined)) > META_BYTES_MAX
        beat = await value(peer, Verb.HEARTBEAT, verbs.HeartbeatRequest("g", "me"), HeartbeatAnswer)
        assert len(beat.partitions_assigned) == 300
        frame = await answered(peer, Verb.POLL, verbs.PollRequest("g", "me", 77))
        assert isinstance(error_in(frame), StaleGeneration)

        seen = 0
        while seen < 300:
            polled, values = await poll(peer, max_messages=1_000)
            assert values
            seen += len(values)
            parts = [verbs.SettlePart(one.topic, one.partition, one.nonce, 0) for one in polled.batches]
            assert len(parts) <= verbs.PARTS_MAX
            answers = await value(peer, Verb.SETTLE, verbs.SettleRequest(Settlement("ack"), parts), ANSWERS)
            assert {done.settled for done, _ in answers} == {1}

    at_a_door(test)


def test_a_poll_of_many_redelivered_messages_brings_what_fits_its_frame() -> None:
    async def test(house: House) -> None:
        name, partitions, each = "n" * 249, 80, 125
        peer = await house.peer()
        await peer.ask(Verb.CREATE_TOPIC, verbs.CreateTopicRequest(name, partitions), verbs.TopicState)
        for partition in range(partitions):
            await peer.publish(*[b"v"] * 300, topic=name, partition=partition)  # so that offsets take three bytes
        asked = verbs.JoinRequest("g", "c", (name,), "me", max_in_flight=10_000, start="latest")
        await value(peer, Verb.JOIN, asked, JoinAnswer)
        for partition in range(partitions):
            await peer.publish(*[b"v"] * each, topic=name, partition=partition)
        first, values = await poll(peer, max_messages=10_000, max_bytes=1 << 24)
        assert len(values) == partitions * each == first.in_flight
        parts = [verbs.SettlePart(one.topic, one.partition, one.nonce, 0) for one in first.batches]
        await value(peer, Verb.SETTLE, verbs.SettleRequest(Settlement("nack", 0), parts), ANSWERS)

        seen: dict[tuple[int, int], int] = {}
        while len(seen) < partitions * each:
            polled, values = await poll(peer, max_messages=10_000, max_bytes=1 << 24)
            assert (
                len(values)
                == sum(one.count for one in polled.batches)
                == sum(len(one.counts) for one in polled.batches)
            )
            again = {(one.partition, offset): count for one in polled.batches for offset, count in one.counts.items()}
            assert again
            assert not again.keys() & seen.keys()
            seen |= again
            assert polled.in_flight == len(seen), "nothing is leased that did not come"

        assert set(seen.values()) == {2}

    at_a_door(test)


# --- calls --------------------------------------------------------------------------------------


def test_every_call_takes_its_arguments_by_name_and_says_what_does_not_fit() -> None:
    async def test(house: House) -> None:
        peer = await topic(house)
        await join(peer)
        frame = await call(peer, "groups.names")
        assert msgspec.msgpack.decode(frame.payload) == ["g"]
        wrong: list[tuple[str, dict[str, object]]] = [
            ("groups.unknown", {}),
            ("groups.poll", {"group": "g", "member_id": "me"}),
            ("", {}),
            ("groups._private", {}),
            ("groups.describe", {}),
            ("groups.describe", {"group": 7}),
            ("groups.describe", {"group": "g", "more": 1}),
            ("delays.list", {"topic": "t", "limit": "many"}),
        ]
        for name, arguments in wrong:
            assert type(error_in(await call(peer, name, **arguments))) is InvalidRequest, name
        error = error_in(await call(peer, "dead_letters.redrive", topic="t", wanted=[], max_redrive=1))
        assert isinstance(error, InvalidRequest)
        assert (error.path, error.nearest) == ("max_redrive", "max_redrives")
        for payload in (b"", b"\xc0", b"\x93", b"[1]", verbs.encode([1, 2])):
            frame = await answered(peer, Verb.CALL, verbs.CallRequest("groups.names"), payload)
            assert type(error_in(frame)) is InvalidRequest
        assert isinstance(error_in(await call(peer, "groups.describe", group="missing")), GroupNotFound)

    at_a_door(test)


def test_every_verb_of_the_service_can_be_called_but_those_that_have_frames() -> None:
    assert set(calls.CALLS) == {
        "topics.truncate",
        *(f"groups.{name}" for name in ("heartbeat", "revoke", "leave", "names", "describe", "delete", "blocked")),
        *(
            f"groups.{name}"
            for name in ("rebalance_stats", "positions", "done_above", "commit", "reset", "reliability", "lanes")
        ),
        *(f"delays.{name}" for name in ("list", "get", "cancel", "reschedule", "stats")),
        *(f"schedules.{name}" for name in ("create", "list", "get", "alter", "delete", "pause", "resume", "run")),
        *(f"dead_letters.{name}" for name in ("queues", "describe", "list", "plan", "redrive")),
        *(f"dead_letters.{name}" for name in ("redrive_info", "stop_redrive")),
        *(f"traces.{name}" for name in ("recent", "search", "get", "stats")),
        *(f"scans.{name}" for name in ("pieces", "hidden", "rescheduled")),
        *(f"schemas.{name}" for name in ("by_guid", "by_id", "check", "compatibility", "delete_level")),
        "node.health",
        *(f"cluster.{name}" for name in ("state", "health", "nodes", "node", "partitions", "metadata")),
        *(f"cluster.{name}" for name in ("elect_leaders", "remove_node", "feature_level", "set_feature_level")),
        *(f"schemas.{name}" for name in ("delete_mode", "delete_subject", "delete_version", "find", "get")),
        *(f"schemas.{name}" for name in ("level", "lookup", "mode", "policy", "referenced_by", "register")),
        *(f"schemas.{name}" for name in ("rendered", "set_level", "set_mode", "set_policy", "stats", "subjects")),
        *(f"schemas.{name}" for name in ("uses", "versions", "with_metadata")),
        *(f"transactions.{name}" for name in ("abort", "abort_by_admin", "add_offsets", "add_partition", "begin")),
        *(f"transactions.{name}" for name in ("commit", "current", "describe", "heartbeat", "init")),
        *(f"transactions.{name}" for name in ("abort_job", "keep", "keep_job", "list", "stats")),
    }


def test_a_poll_with_the_same_number_brings_the_gaps_of_the_lost_answer_and_no_other_does() -> None:
    async def test(house: House) -> None:
        peer = await topic(house, b"first-value", b"second-value", b"third-value")
        await join(peer)
        for path in house.disk.paths():
            if path.endswith(".log") and b"second-value" in house.disk.read(path):
                house.disk.flip_bit(path, house.disk.read(path).index(b"second-value"))

        lost, values = await poll(peer, number=1)
        again, same = await poll(peer, number=1)
        after, _ = await poll(peer, number=2)

        assert values == same == [b"first-value", b"third-value"]
        assert [[(gap.first_offset, gap.next_offset) for gap in one.gaps] for one in (lost, again, after)] == [
            [(1, 2)],
            [(1, 2)],
            [],
        ]

    at_a_door(test)
