"""Transactions over the native protocol, frame by frame: pipelined, numbered by their owner, repeated, and refused."""

from array import array
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

from goqueue.errors import (
    GoQueueError,
    InvalidBatch,
    InvalidRequest,
    InvalidTransactionState,
    OutOfOrderSequence,
    ProducerFenced,
    ProducerNotFound,
    TransactionAborted,
    TransactionNotFound,
)
from goqueue.record import kernel
from goqueue.record.header import Flags
from goqueue.record.headers import PRODUCER
from goqueue.record.identity import BatchIdentity
from goqueue.wire import verbs
from goqueue.wire.frames import FrameFlags
from goqueue.wire.reports import JoinAnswer, PollAnswer, PositionCommit, SettledBatch, Settlement
from goqueue.wire.transaction_reports import (
    BegunTransaction,
    ProducerSession,
    TransactionInfo,
    TransactionOutcome,
    TransactionOwner,
    TransactionStats,
)
from goqueue.wire.verbs import Verb
from tests.doors.native_peers import House, Peer, at_a_door, error_in, until, values_in

ANSWERS = list[tuple[SettledBatch | None, verbs.ErrorMeta | None]]


def records(session: ProducerSession, number: int, sequence: int, *values: bytes, **options: Any) -> bytes:
    """A batch of the producer, as part of the transaction of that number."""
    identity = BatchIdentity(session.producer_id, session.epoch, sequence, len(values), number)
    headers: list[Any] = [{PRODUCER: identity.encode()}, *[None] * (len(values) - 1)]
    return bytes(kernel.encode(values, headers=headers, **{"flags": Flags.TRANSACTIONAL, **options}))


class Producer:
    """A transactional producer that speaks frames."""

    def __init__(self, peer: Peer, session: ProducerSession, name: str) -> None:
        self.peer = peer
        self.session = session
        self.name = name
        self.number = session.next_number
        self.sequence = 0

    @classmethod
    async def init(cls, peer: Peer, name: str = "a", **arguments: object) -> "Producer":
        session = await call(peer, "init", ProducerSession, transactional_id=name, **arguments)
        return cls(peer, session, name)

    @property
    def who(self) -> dict[str, object]:
        return {"producer_id": self.session.producer_id, "epoch": self.session.epoch}

    def owner(self, number: int = 0, record_count: int | None = None) -> TransactionOwner:
        return TransactionOwner(self.name, self.session.producer_id, self.session.epoch, number, record_count)

    async def begin(self, **arguments: object) -> BegunTransaction:
        begun: BegunTransaction = await call(
            self.peer, "begin", BegunTransaction, transactional_id=self.name, **self.who, **arguments
        )
        self.number = begun.number or self.number
        return begun

    async def publish(self, *values: bytes, topic: str = "orders", partition: int = 0) -> verbs.PublishAnswer:
        payload = records(self.session, self.number, self.sequence, *values)
        frame = await self.peer.call(Verb.PUBLISH, verbs.PublishRequest(topic, partition), payload)
        self.sequence += len(values)
        return msgspec.msgpack.decode(frame.meta, type=verbs.PublishAnswer)

    async def commit(self, **arguments: Any) -> TransactionOutcome:
        outcome: TransactionOutcome = await call(
            self.peer, "commit", TransactionOutcome, **{"owner": self.owner(), **arguments}
        )
        return outcome

    async def abort(self, owner: TransactionOwner | None = None) -> TransactionOutcome:
        outcome: TransactionOutcome = await call(self.peer, "abort", TransactionOutcome, owner=owner or self.owner())
        return outcome


async def call(peer: Peer, verb: str, answer: Any, **arguments: object) -> Any:
    frame = await peer.call(Verb.CALL, verbs.CallRequest(f"transactions.{verb}"), verbs.encode(arguments))
    return msgspec.msgpack.decode(frame.payload, type=answer)


async def read(peer: Peer, isolation: str = "read_committed") -> list[bytes]:
    return values_in(await peer.call(Verb.READ, verbs.ReadRequest("orders", 0, 0, isolation=isolation)))


def at_the_door(test: Callable[[House, Peer], Awaitable[None]]) -> None:
    """With a topic of two partitions behind it."""

    async def with_a_peer(house: House) -> None:
        await house.create(partitions=2)
        await test(house, await house.peer())

    at_a_door(with_a_peer)


async def refused(kind: type[GoQueueError], doing: Awaitable[object]) -> Any:
    with pytest.raises(kind) as told:
        await doing
    return told.value


def test_begin_messages_and_commit_travel_one_behind_the_other() -> None:
    async def test(house: House, peer: Peer) -> None:
        producer = await Producer.init(peer)
        assert producer.session.next_number > 0
        number = producer.number
        begin = {"transactional_id": "a", **producer.who, "number": number}
        commit = {"owner": producer.owner(number, record_count=3)}
        sent = [
            peer.send(Verb.CALL, verbs.CallRequest("transactions.begin"), verbs.encode(begin)),
            peer.send(
                Verb.PUBLISH, verbs.PublishRequest("orders", 0), records(producer.session, number, 0, b"1", b"2")
            ),
            peer.send(Verb.PUBLISH, verbs.PublishRequest("orders", 1), records(producer.session, number, 0, b"3")),
            peer.send(Verb.CALL, verbs.CallRequest("transactions.commit"), verbs.encode(commit)),
        ]
        answered = [await peer.receive() for _ in sent]

        assert sorted(frame.correlation for frame in answered) == sent
        assert not any(frame.flags & FrameFlags.ERROR for frame in answered)
        assert await read(peer) == [b"1", b"2"]

    at_the_door(test)


def test_a_commit_that_counts_more_than_is_stored_is_none() -> None:
    async def test(house: House, peer: Peer) -> None:
        producer = await Producer.init(peer)
        begun = await producer.begin(number=producer.number)
        assert (begun.transaction_id, begun.number) == (f"a:{producer.number}", producer.number)
        await producer.publish(b"1", b"2")
        for count in (0, 1, 3):
            error = await refused(InvalidTransactionState, producer.commit(owner=producer.owner(begun.number, count)))
            assert f"2 of {count} records" in str(error)
        assert await read(peer) == []
        assert (await producer.commit(owner=producer.owner(begun.number, 2))).status == "committed"
        again = await producer.commit(owner=producer.owner(begun.number, 2))
        assert (again.status, again.already) == ("committed", True)
        assert await read(peer) == [b"1", b"2"]

    at_the_door(test)


def test_a_batch_that_is_sent_again_is_counted_once_and_a_gap_is_refused() -> None:
    async def test(house: House, peer: Peer) -> None:
        producer = await Producer.init(peer)
        await producer.begin()
        first = await producer.publish(b"1", b"2")
        producer.sequence = 0
        again = await producer.publish(b"1", b"2")
        assert (again.first_offset, again.duplicate, first.duplicate) == (first.first_offset, True, False)
        producer.sequence = 3
        error = await refused(OutOfOrderSequence, producer.publish(b"4"))
        assert (error.sequence, error.expected) == (3, 2)
        assert (await producer.commit(owner=producer.owner(producer.number, 2))).status == "committed"
        assert await read(peer) == [b"1", b"2"]

    at_the_door(test)


def test_a_number_names_one_transaction_for_ever() -> None:
    async def test(house: House, peer: Peer) -> None:
        producer = await Producer.init(peer)
        first = (await producer.begin()).number
        await producer.commit()
        second = (await producer.begin()).number
        assert second > first

        await refused(InvalidTransactionState, producer.commit(owner=producer.owner(first)))
        await refused(InvalidTransactionState, producer.abort(producer.owner(first)))
        assert [one.transaction_id for one in await call(peer, "list", list[TransactionInfo])] == [f"a:{second}"]
        producer.number = first
        await refused(InvalidTransactionState, producer.publish(b"late"))
        never = await producer.abort(producer.owner(second + 5))
        assert (never.status, never.already) == ("aborted", True)
        await refused(TransactionAborted, producer.commit(owner=producer.owner(second + 5)))
        assert (await producer.abort(producer.owner(second))).status == "aborted"
        for wrong in (first, second, -1, 2**62, second + 10**12):
            await refused(InvalidRequest, producer.begin(number=wrong))

    at_the_door(test)


def test_what_a_producer_may_not_do_is_refused() -> None:
    async def test(house: House, peer: Peer) -> None:
        nobody = Producer(peer, ProducerSession(7, 0, 1), "nobody")
        await refused(ProducerNotFound, nobody.begin())
        await refused(ProducerNotFound, nobody.publish(b"v"))
        await refused(ProducerNotFound, nobody.commit())
        await refused(ProducerNotFound, call(peer, "heartbeat", None, **nobody.who))
        await refused(ProducerNotFound, call(peer, "current", str, **nobody.who))

        old = await Producer.init(peer)
        assert "no transaction open" in str(await refused(InvalidTransactionState, old.commit()))
        await refused(InvalidTransactionState, call(peer, "current", str, **old.who))
        begun = await old.begin()
        assert await call(peer, "current", str, **old.who) == begun.transaction_id
        assert "already in progress" in str(await refused(InvalidTransactionState, old.begin()))
        await old.publish(b"gone")

        other = await house.peer()
        new = await Producer.init(other)
        assert new.session.epoch == old.session.epoch + 1
        for doing in (old.begin(), old.publish(b"v"), old.commit(), old.abort()):
            error = await refused(ProducerFenced, doing)
            assert (error.epoch, error.current_epoch) == (0, 1)
        assert await read(peer) == []
        await refused(TransactionNotFound, call(peer, "describe", TransactionInfo, transaction_id=begun.transaction_id))

    at_the_door(test)


def test_time_and_operators_abort() -> None:
    async def test(house: House, peer: Peer) -> None:
        producer = await Producer.init(peer, timeout_ms=5_000)
        await producer.begin()
        await producer.publish(b"gone")
        house.let_pass(4.9)
        await producer.publish(b"gone too")
        house.let_pass(0.2)
        for doing in (producer.publish(b"late"), producer.commit()):
            assert (await refused(TransactionAborted, doing)).reason == "timeout"
        producer.sequence = 2
        begun = await producer.begin()
        await producer.publish(b"gone as well")
        outcome = await call(peer, "abort_by_admin", TransactionOutcome, transaction_id=begun.transaction_id)
        assert (outcome.status, outcome.already) == ("aborted", False)
        assert (await refused(TransactionAborted, producer.commit())).reason == "admin"
        assert (await producer.abort()).status == "aborted"
        assert await read(peer) == []
        assert len(await read(peer, "read_uncommitted")) == 3
        stats = await call(peer, "stats", TransactionStats)
        assert (stats.active_transactions, stats.aborted_total, stats.committed_total) == (0, 2, 0)

    at_the_door(test)


def test_any_transactional_ids_can_be_committed_in_one_step() -> None:
    async def test(house: House, peer: Peer) -> None:
        producers = [await Producer.init(peer, name) for name in ("job/a", "other/a")]
        for producer in producers:
            await producer.begin()
            await producer.publish(b"x")
        assert await read(peer) == []

        await producers[0].commit(together=[producers[1].owner()])

        assert await read(peer) == [b"x", b"x"]

    at_the_door(test)


def test_the_last_outcome_can_be_asked_for_again_and_the_opposite_is_refused() -> None:
    async def test(house: House, peer: Peer) -> None:
        producer = await Producer.init(peer)
        await producer.begin()
        assert [(await producer.commit()).already for _ in range(3)] == [False, True, True]
        assert (await refused(InvalidTransactionState, producer.abort())).state == "CompleteCommit"
        await producer.begin()
        assert [(await producer.abort()).status for _ in range(2)] == ["aborted", "aborted"]
        await refused(InvalidTransactionState, producer.commit())

    at_the_door(test)


def test_several_owners_commit_in_one_step_and_once_per_marker() -> None:
    async def test(house: House, peer: Peer) -> None:
        producers = [await Producer.init(peer, f"job/{name}") for name in "abc"]
        for producer in producers:
            await producer.begin(marker="m")
            await producer.publish(producer.name[-1:].encode())
        first, *others = [producer.owner() for producer in producers]
        fenced = TransactionOwner("job/b", producers[1].session.producer_id, 7)
        await refused(ProducerFenced, producers[0].commit(together=[fenced]))
        assert await read(peer) == []

        outcome = await producers[0].commit(together=others, marker="m")
        assert (outcome.status, outcome.already) == ("committed", False)
        assert await read(peer) == [b"a", b"b", b"c"]
        assert (await producers[1].begin(marker="m")).already_committed
        await producers[2].begin()
        await producers[2].publish(b"again")
        again = await producers[2].commit(marker="m")
        assert (again.status, again.already) == ("committed", True)
        assert await read(peer) == [b"a", b"b", b"c"]
        assert first.transactional_id == "job/a"

    at_the_door(test)


def test_acks_and_positions_are_part_of_it() -> None:
    async def test(house: House, peer: Peer) -> None:
        await peer.publish(b"1", b"2", b"3")
        joined = await peer.call(Verb.JOIN, verbs.JoinRequest("g", "c", ("orders",), "me"))
        assert msgspec.msgpack.decode(joined.payload, type=JoinAnswer).member_id == "me"
        polled = msgspec.msgpack.decode(
            (await peer.call(Verb.POLL, verbs.PollRequest("g", "me"))).meta, type=PollAnswer
        )
        nonce = polled.batches[0].nonce
        producer = await Producer.init(peer)
        begun = await producer.begin()

        async def settle(action: str, *offsets: int, transaction_id: str = begun.transaction_id) -> SettledBatch:
            asked = verbs.SettleRequest(
                Settlement(action, transaction_id=transaction_id),
                [verbs.SettlePart("orders", 0, nonce, len(offsets))],
            )
            frame = await peer.call(Verb.SETTLE, asked, array("Q", offsets).tobytes())
            ((settled, error),) = msgspec.msgpack.decode(frame.payload, type=ANSWERS)
            if error is not None:
                raise error_in(frame._replace(meta=memoryview(verbs.encode(error))))
            assert settled
            return settled

        held = await settle("ack", 0, 1)
        assert (held.settled, held.refused, held.committed_offset) == (2, [], 0)
        again = await settle("ack", 0)
        assert (again.settled, [one.facts["reason"] for one in again.refused]) == (0, ["settled"])
        for action in ("nack", "reject", "extend", "release"):
            await refused(InvalidRequest, settle(action, 2))
        await refused(TransactionNotFound, settle("ack", 2, transaction_id="nobody:7"))
        commits = [PositionCommit("orders", 0, 2)]
        added = await call(
            peer, "add_offsets", list[PositionCommit], **producer.who, group="g", commits=commits, member_id="me"
        )
        assert added == commits
        house.let_pass(25)
        assert (await settle("ack", 2)).settled == 1
        house.let_pass(20)
        (info,) = await call(peer, "list", list[TransactionInfo])
        assert info.groups == ["g"]
        await producer.commit()
        (position,) = house.broker.groups.positions("g", "orders")[:1]
        assert (position.offset, position.lag) == (3, 0)

    at_the_door(test)


def test_what_a_batch_says_of_its_transaction_is_checked() -> None:
    async def test(house: House, peer: Peer) -> None:
        producer = await Producer.init(peer)
        await producer.begin()
        number, session = producer.number, producer.session

        async def publish(payload: bytes) -> None:
            await peer.call(Verb.PUBLISH, verbs.PublishRequest("orders", 0), payload)

        await refused(InvalidBatch, publish(records(session, number, 0, b"a", b"b", flags=0)))
        half = [int(Flags.TRANSACTIONAL), 0]
        await refused(InvalidBatch, publish(records(session, number, 0, b"a", b"b", flags=half)))
        await refused(InvalidBatch, publish(records(session, 0, 0, b"a")))
        await refused(InvalidBatch, publish(bytes(kernel.encode([b"a"], flags=Flags.TRANSACTIONAL))))
        control = Flags.TRANSACTIONAL | Flags.CONTROL
        await refused(InvalidBatch, publish(records(session, number, 0, b"a", flags=control)))
        await publish(records(session, number, 0, b"a", b"b"))
        assert (await producer.commit(owner=producer.owner(number, 2))).status == "committed"

    at_the_door(test)


def test_a_subscriber_waits_at_the_last_stable_offset() -> None:
    async def test(house: House, peer: Peer) -> None:
        reader = await house.peer()
        pushes = reader.send(Verb.SUBSCRIBE, verbs.SubscribeRequest("orders", 0, 0, 10**6))
        for value, ending in ((b"gone", "abort"), (b"kept", "commit")):
            producer = await Producer.init(peer)
            await producer.begin()
            await producer.publish(value)
            await peer.publish(b"behind " + value)
            number = reader.send(Verb.PING)
            while (frame := await reader.receive()).correlation != number:
                assert values_in(frame) == [b"behind gone"]
            await getattr(producer, ending)()
        found: list[bytes] = []
        while b"behind kept" not in found:
            frame = await reader.receive()
            assert frame.correlation == pushes
            found += values_in(frame)
        assert found[-2:] == [b"kept", b"behind kept"]
        assert b"gone" not in found

    at_the_door(test)


def test_a_peer_that_hangs_up_leaves_its_transaction_to_the_timeout() -> None:
    """Another connection of the same producer may go on with it."""

    async def test(house: House, peer: Peer) -> None:
        producer = await Producer.init(peer, timeout_ms=1_000)
        await producer.begin()
        await producer.publish(b"1")
        await peer.close()
        producer.peer = await house.peer()
        await producer.publish(b"2")
        await producer.commit()
        assert await read(producer.peer) == [b"1", b"2"]

        await producer.begin()
        await producer.publish(b"gone")
        await producer.peer.close()
        house.let_pass(1.1)
        await until(lambda: not house.broker.transactions.list())
        assert await read(await house.peer()) == [b"1", b"2"]

    at_the_door(test)


@pytest.mark.parametrize(
    ("verb", "arguments"),
    [
        ("begin", {}),
        ("begin", {"transactional_id": "a", "producer_id": "7", "epoch": 0}),
        ("begin", {"transactional_id": "a", "producer_id": 7, "epoch": 0, "more": 1}),
        ("init", {"timeout_ms": "60s"}),
        ("init", {"transactional_id": ""}),
        ("init", {"timeout_ms": 0}),
        ("commit", {"owner": ["a", 7]}),
        ("commit", {"owner": {"transactional_id": "a"}}),
        ("add_acks", {"producer_id": 7, "epoch": 0, "receipts": []}),
        ("add_ack_batch", {}),
        ("describe", {"transaction_id": 7}),
        ("open", {"transaction_id": "a:7"}),
        ("tick", {}),
    ],
)
def test_calls_that_make_no_sense_are_refused(verb: str, arguments: dict[str, object]) -> None:
    async def test(house: House, peer: Peer) -> None:
        await refused(InvalidRequest, call(peer, verb, None, **arguments))
        assert await read(peer) == []

    at_the_door(test)
