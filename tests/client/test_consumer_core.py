"""What a consumer says, held against a broker that is a list of answers: no socket, no thread, no time that passes."""

import gc
from array import array
from collections.abc import Callable
from copy import copy
from typing import Any

import msgspec
import pytest

from goqueue import (
    BrokerUnavailable,
    Conflict,
    GoQueueError,
    GroupNotFound,
    InternalError,
    InvalidRequest,
    NotGroupMember,
    NotLeader,
    PartitionNotAssigned,
    ReceiptExpired,
    ReceiptUnknown,
    RequestTimeout,
    SessionExpired,
    StaleGeneration,
    StorageFull,
)
from goqueue.client.consumer_core import (
    EXTENDED_NS_MAX,
    REFUSALS_MAX,
    WAIT_MS_MAX,
    ConsumerConfig,
    ConsumerCore,
    ConsumerRequest,
    Settles,
    Steps,
)
from goqueue.client.delivered import AsyncDelivered, Delivered
from goqueue.client.session import CannotConnect
from goqueue.clock import MS, SECOND
from goqueue.record import kernel
from goqueue.testing import ManualClock
from goqueue.wire import verbs
from goqueue.wire.frames import Frame
from goqueue.wire.reports import (
    DeliveredBatch,
    HeartbeatAnswer,
    JoinAnswer,
    PartitionName,
    PollAnswer,
    Refusal,
    SettledBatch,
    Settlement,
)

LEASE_NS = 30 * SECOND
LINE = Settles()
Answer = Frame | GoQueueError | Callable[[ConsumerRequest], Frame]


def frame(meta: Any, payload: bytes = b"") -> Frame:
    return Frame(0, 0, 1, memoryview(verbs.encode(meta)), memoryview(payload))


def joined(*partitions: int, generation: int = 1, required: bool = False) -> Frame:
    names = [PartitionName("t", number) for number in partitions]
    told = JoinAnswer("me", generation, "me", ["me"], names, required, "partitioned", "cooperative", 30_000, 3_000)
    return frame(verbs.Empty(), verbs.encode(told))


def beat(*assigned: int, revoke: tuple[int, ...] = (), generation: int = 1, required: bool = False) -> Frame:
    told = HeartbeatAnswer(
        generation,
        required or bool(revoke),
        "Stable",
        "cooperative",
        "none",
        [PartitionName("t", number) for number in revoke],
        [PartitionName("t", number) for number in assigned],
    )
    return frame(verbs.Empty(), verbs.encode(told))


def polled(
    *batches: tuple[int, int, int], generation: int = 1, required: bool = False, nonce: str = "n", reason: str = ""
) -> Frame:
    """The answer to a poll; a batch is a partition, its first offset and how many messages."""
    told, records = [], []
    for partition, first, count in batches:
        raw = kernel.encode([b"v"] * count)
        kernel.stamp(raw, first_offset=first, timestamp=1)
        records.append(bytes(raw))
        name = f"{nonce}{partition}-{first}"
        told.append(DeliveredBatch("t", partition, name, count, len(raw), 0, 0, first + count, {}, LEASE_NS))
    return frame(PollAnswer(told, generation, required, 0, reason), b"".join(records))


def settled(*parts: SettledBatch | GoQueueError) -> Frame:
    answers = [(None, verbs.error_meta(part)) if isinstance(part, GoQueueError) else (part, None) for part in parts]
    return frame(verbs.Empty(), verbs.encode(answers))


def done(count: int, *refused: GoQueueError) -> SettledBatch:
    told = [Refusal(getattr(error, "offset", 0), error.code, str(error), error.facts()) for error in refused]
    return SettledBatch(count, told, 0, 0)


class Script:
    """Answers requests in order, and remembers them."""

    def __init__(self, *answers: Answer) -> None:
        self.answers = list(answers)
        self.asked: list[ConsumerRequest] = []

    def drive(self, steps: Steps[Any]) -> Any:
        try:
            request = next(steps)
            while True:
                try:
                    frame = self._ask(request)
                except GoQueueError as error:
                    request = steps.throw(error)
                else:
                    request = steps.send(frame)
        except StopIteration as finished:
            assert not self.answers
            return finished.value

    def _ask(self, request: ConsumerRequest) -> Frame:
        """As a driver does: what is refused for now is sent again, here for as long as there are answers."""
        while True:
            self.asked.append(copy(request))
            answer = self.answers.pop(0)
            if isinstance(answer, GoQueueError):
                raise answer
            frame = answer(request) if callable(answer) else answer
            try:
                request.take(frame)
            except GoQueueError:
                if not self.answers:
                    raise
            else:
                return frame

    @property
    def verbs(self) -> list[str]:
        return [
            asked.meta.name if isinstance(asked.meta, verbs.CallRequest) else asked.verb.name.lower()
            for asked in self.asked
        ]


def repeated(answer: Frame) -> Callable[[ConsumerRequest], Frame]:
    """An answer that came only when the request was sent again."""

    def say(request: ConsumerRequest) -> Frame:
        request.was_lost = True
        return answer

    return say


@pytest.fixture
def make(clock: ManualClock) -> Callable[..., ConsumerCore]:
    def made(**settings: Any) -> ConsumerCore:
        config = ConsumerConfig(**{"topics": ("t",), "group": "g", "client_id": "c", "member_id": "me", **settings})
        return ConsumerCore(config, clock)

    return made


def poll(core: ConsumerCore, *answers: Answer, timeout_ms: int = 0) -> tuple[list[Any], Script]:
    script = Script(*answers)
    batch = script.drive(core.poll(10, timeout_ms, LINE, Delivered))
    return batch.messages, script


def test_a_consumer_joins_once_and_polls_with_the_generation_it_was_told(make: Callable[..., ConsumerCore]) -> None:
    core = make()

    messages, script = poll(core, joined(0, generation=7), polled((0, 5, 2), generation=7))
    assert [message.offset for message in messages] == [5, 6]
    assert script.verbs == ["join", "poll"]
    assert script.asked[1].meta.generation == 7  # type: ignore[attr-defined]

    _, script = poll(core, polled(generation=7))
    assert script.verbs == ["poll"]


def test_polls_are_numbered_and_one_that_was_not_answered_keeps_its_number(make: Callable[..., ConsumerCore]) -> None:
    core = make()
    numbers = []
    poll(core, joined(0), polled())
    for answer in (polled(), RequestTimeout("POLL", 1), BrokerUnavailable("x"), InternalError("y"), polled(), polled()):
        script = Script(answer)
        try:
            script.drive(core.poll(10, 0, LINE, Delivered))
        except GoQueueError as error:
            assert error is answer
        numbers.append(script.asked[0].meta.number)  # type: ignore[attr-defined]

    assert numbers == [2, 3, 3, 3, 3, 4]


def test_a_long_poll_is_cut_into_slices(make: Callable[..., ConsumerCore], clock: ManualClock) -> None:
    core = make()

    def wait(request: ConsumerRequest) -> Frame:
        clock.advance_ns(request.wait_ms * MS)
        return polled()

    messages, script = poll(core, joined(0), wait, wait, wait, timeout_ms=50_000)

    assert messages == []
    assert [asked.wait_ms for asked in script.asked[1:]] == [WAIT_MS_MAX, WAIT_MS_MAX, 10_000]
    assert [asked.meta.wait_ms for asked in script.asked[1:]] == [20_000, 20_000, 10_000]  # type: ignore[attr-defined]


def test_an_answer_that_did_not_wait_means_that_something_has_changed(
    make: Callable[..., ConsumerCore], clock: ManualClock
) -> None:
    core = make()

    def wait(request: ConsumerRequest) -> Frame:
        clock.advance_ns(request.wait_ms * MS)
        return polled()

    _, script = poll(core, joined(), polled(reason="no_partitions"), beat(3), wait, timeout_ms=1_000)

    assert script.verbs == ["join", "poll", "heartbeat", "poll"]
    assert core.partitions == [PartitionName("t", 3)]


def test_what_a_heartbeat_asks_for_is_given_back_at_once(make: Callable[..., ConsumerCore]) -> None:
    core = make()
    poll(core, joined(0, 1), polled())
    script = Script(beat(0, revoke=(1,), generation=2), beat(0, generation=2))

    script.drive(core.heartbeat())

    assert script.asked[0].payload is None
    assert msgspec.msgpack.decode(script.asked[1].payload or b"") == [{"topic": "t", "partition": 1}]
    assert (core.generation, core.partitions, core.must_beat) == (2, [PartitionName("t", 0)], False)


def test_messages_are_handed_out_before_anything_else_is_asked(make: Callable[..., ConsumerCore]) -> None:
    core = make()

    messages, script = poll(core, joined(0), polled((0, 0, 1), required=True))
    assert (len(messages), script.verbs, core.must_beat) == (1, ["join", "poll"], True)

    _, script = poll(core, beat(0), polled())
    assert script.verbs == ["heartbeat", "poll"]


def test_a_consumer_that_is_to_have_more_asks_for_it_before_it_polls(make: Callable[..., ConsumerCore]) -> None:
    core = make()
    Script(joined(required=True)).drive(core.join())
    _, script = poll(core, beat(0, 1), polled())
    assert script.verbs == ["heartbeat", "poll"]
    assert len(core.partitions) == 2


def test_a_message_of_a_partition_that_is_news_makes_the_consumer_ask(make: Callable[..., ConsumerCore]) -> None:
    core = make()
    poll(core, joined(0), polled((1, 0, 1)))
    assert core.must_beat


@pytest.mark.parametrize("error", [NotGroupMember("g", "me"), SessionExpired("g", "me"), GroupNotFound("g")])
def test_whoever_was_put_out_joins_again_under_the_same_id(
    make: Callable[..., ConsumerCore], error: GoQueueError
) -> None:
    core = make()
    poll(core, joined(0), polled())

    messages, script = poll(core, error, joined(0, generation=5), polled((0, 0, 1), generation=5))
    assert len(messages) == 1
    assert script.asked[1].meta.member_id == "me"  # type: ignore[attr-defined]

    Script(error).drive(core.heartbeat())
    assert not core.is_member
    _, script = poll(core, joined(0), polled())
    assert script.verbs == ["join", "poll"]


def test_a_broker_that_puts_a_member_out_again_and_again_is_believed(make: Callable[..., ConsumerCore]) -> None:
    core = make()
    error = NotGroupMember("g", "me")

    with pytest.raises(NotGroupMember):
        poll(core, *[answer for _ in range(REFUSALS_MAX + 1) for answer in (joined(0), error)])


def test_a_member_that_was_too_slow_takes_the_new_generation(make: Callable[..., ConsumerCore]) -> None:
    core = make()
    poll(core, joined(0), polled())

    stale = StaleGeneration(1, 4, [])
    _, script = poll(core, stale, beat(0, generation=4), polled((0, 0, 1), generation=4))
    assert script.verbs == ["poll", "heartbeat", "poll"]
    assert script.asked[2].meta.generation == 4  # type: ignore[attr-defined]


def test_a_member_whose_own_id_was_taken_over_is_out_for_good(make: Callable[..., ConsumerCore]) -> None:
    core = make(is_static=True)
    poll(core, joined(0), polled())
    with pytest.raises(StaleGeneration):
        Script(StaleGeneration(1, 4, [])).drive(core.heartbeat())

    for _ in range(2):
        with pytest.raises(StaleGeneration):
            poll(core)
    Script().drive(core.leave())  # it is another's membership


def test_a_generation_never_falls(make: Callable[..., ConsumerCore]) -> None:
    core = make()
    poll(core, joined(0, generation=9), polled(generation=9))
    Script(beat(0, generation=8)).drive(core.heartbeat())
    assert core.generation == 9


def test_only_who_may_be_a_member_leaves(make: Callable[..., ConsumerCore]) -> None:
    core = make()
    Script().drive(core.leave())
    with pytest.raises(RequestTimeout):
        Script(RequestTimeout("JOIN", 1)).drive(core.join())
    script = Script(NotGroupMember("g", "me"))
    script.drive(core.leave())
    assert script.verbs == ["groups.leave"]
    Script().drive(core.leave())


# --- settling -----------------------------------------------------------------------------------


def test_messages_are_named_by_their_delivery_and_their_offsets(make: Callable[..., ConsumerCore]) -> None:
    core = make()
    first, _ = poll(core, joined(0, 1), polled((0, 0, 3), (1, 7, 2)))
    second, _ = poll(core, polled((0, 3, 2)))
    script = Script(settled(done(2), done(1), done(2)))

    script.drive(core.settle([first[0], second[1], first[2], first[4], second[0]], Settlement("ack")))

    asked = script.asked[0]
    parts = [(part.partition, part.nonce, part.count) for part in asked.meta.parts]  # type: ignore[attr-defined]
    assert parts == [(0, "n0-0", 2), (0, "n0-3", 2), (1, "n1-7", 1)]
    assert array("Q", asked.payload or b"").tolist() == [0, 2, 4, 3, 8]


def test_a_whole_batch_needs_no_offsets(make: Callable[..., ConsumerCore]) -> None:
    core = make()
    batch = Script(joined(0, 1), polled((0, 0, 3), (1, 7, 2))).drive(core.poll(10, 0, LINE, Delivered))
    assert batch.is_whole(list(batch.messages))
    assert not batch.is_whole(batch.messages[:4])
    assert not batch.is_whole(batch.messages[::-1])
    assert not batch.is_whole([])
    assert not batch.is_whole(None)
    script = Script(settled(done(3), done(2)))

    script.drive(core.ack_whole(batch))

    assert script.asked[0].payload == b""
    assert [part.count for part in script.asked[0].meta.parts] == [0, 0]  # type: ignore[attr-defined]
    assert core.lease_count == 0


def test_what_is_missing_of_a_whole_batch_is_asked_for_by_name(make: Callable[..., ConsumerCore]) -> None:
    core = make()
    batch = Script(joined(0, 1), polled((0, 0, 3), (1, 7, 2))).drive(core.poll(10, 0, LINE, Delivered))
    settled_before = ReceiptUnknown("t", 0, 0, "settled")

    script = Script(settled(done(2), done(2)), settled(done(0, settled_before, ReceiptExpired("t", 0, 1))))
    with pytest.raises(ReceiptExpired) as caught:
        script.drive(core.ack_whole(batch))

    assert caught.value.offset == 1
    assert array("Q", script.asked[1].payload or b"").tolist() == [0, 1, 2]


def test_a_batch_of_which_something_is_settled_is_spelled_out(make: Callable[..., ConsumerCore]) -> None:
    core = make()
    batch = Script(joined(0), polled((0, 0, 3))).drive(core.poll(10, 0, LINE, Delivered))
    Script(settled(done(1))).drive(core.settle(batch.messages[0], Settlement("ack")))
    script = Script(settled(done(2, ReceiptUnknown("t", 0, 0, "settled"))))

    with pytest.raises(ReceiptUnknown):
        script.drive(core.ack_whole(batch))
    assert array("Q", script.asked[0].payload or b"").tolist() == [0, 1, 2]


GONE = ReceiptUnknown("t", 0, 0, "settled")
OVER = ReceiptExpired("t", 0, 0)
FORGED = ReceiptUnknown("t", 0, 0)


@pytest.mark.parametrize(
    ("action", "error", "is_done"),
    [
        ("ack", GONE, True),
        ("ack", OVER, False),
        ("ack", FORGED, False),
        ("reject", GONE, True),
        ("reject", OVER, False),
        ("nack", OVER, True),
        ("nack", FORGED, True),
        ("release", OVER, True),
        ("extend", OVER, False),
    ],
)
def test_what_is_refused_is_done_if_it_was_asked_before(
    make: Callable[..., ConsumerCore], action: str, error: GoQueueError, is_done: bool
) -> None:
    core = make()
    messages, _ = poll(core, joined(0), polled((0, 0, 1)))
    settlement = Settlement(action, 1)

    with pytest.raises(type(error)):
        Script(settled(done(0, error))).drive(core.settle(messages, settlement))
    script = Script(repeated(settled(done(0, error))))
    if is_done:
        script.drive(core.settle(messages, settlement))
    else:
        with pytest.raises(type(error)):
            script.drive(core.settle(messages, settlement))


def test_the_first_failure_is_raised_and_all_answers_are_looked_at(make: Callable[..., ConsumerCore]) -> None:
    core = make()
    messages, _ = poll(core, joined(0, 1, 2), polled((0, 0, 1), (1, 0, 1), (2, 0, 1)))

    with pytest.raises(StorageFull):
        Script(settled(StorageFull("x"), done(0, OVER), done(1))).drive(core.settle(messages, Settlement("ack")))
    assert core.lease_count == 2


def test_what_is_refused_for_now_is_settled_again_without_the_rest(make: Callable[..., ConsumerCore]) -> None:
    core = make()
    messages, _ = poll(core, joined(0, 1, 2), polled((0, 0, 2), (1, 7, 2), (2, 3, 2)))
    chosen = [messages[0], messages[2], messages[3], messages[4]]
    script = Script(
        settled(done(1), NotLeader("t", 1), StorageFull("x")), settled(StorageFull("y"), done(1)), settled(done(2))
    )

    script.drive(core.settle(chosen, Settlement("ack")))

    told = [[(part.partition, part.count) for part in asked.meta.parts] for asked in script.asked]  # type: ignore[attr-defined]
    assert told == [[(0, 1), (1, 2), (2, 1)], [(1, 2), (2, 1)], [(1, 2)]]
    assert [array("Q", asked.payload or b"").tolist() for asked in script.asked] == [[0, 7, 8, 3], [7, 8, 3], [7, 8]]
    assert core.lease_count == 2


def test_what_is_refused_until_the_time_is_over_is_raised_and_the_rest_is_done(
    make: Callable[..., ConsumerCore],
) -> None:
    core = make()
    messages, _ = poll(core, joined(0, 1), polled((0, 0, 1), (1, 7, 1)))

    with pytest.raises(NotLeader):
        Script(settled(done(1), NotLeader("t", 1)), settled(NotLeader("t", 1))).drive(
            core.settle(messages, Settlement("ack"))
        )
    assert core.lease_count == 1
    with pytest.raises(BrokerUnavailable):
        Script(settled(NotLeader("t", 1)), BrokerUnavailable("cut")).drive(core.settle(messages[1], Settlement("ack")))


# --- leases -------------------------------------------------------------------------------------


def test_a_lease_that_cannot_be_extended_for_now_is_tried_again_soon(
    make: Callable[..., ConsumerCore], clock: ManualClock
) -> None:
    core = make()
    messages, _ = poll(core, joined(0), polled((0, 0, 1)))
    clock.advance_ns(LEASE_NS // 2)

    Script(settled(NotLeader("t", 0))).drive(core.extend_leases())

    assert core.next_extension_ns() == clock.monotonic_ns() + LEASE_NS // 8
    assert len(messages) == 1


def test_leases_are_extended_together_at_half_their_time(make: Callable[..., ConsumerCore], clock: ManualClock) -> None:
    core = make()
    first, _ = poll(core, joined(0, 1), polled((0, 0, 3), (1, 7, 2)))
    clock.advance_ns(SECOND)
    second, _ = poll(core, polled((0, 3, 2)))
    assert core.next_extension_ns() == clock.monotonic_ns() - SECOND + LEASE_NS // 2

    clock.advance_ns(LEASE_NS // 2 - SECOND)
    script = Script(settled(done(3), done(2)))
    script.drive(core.extend_leases())
    asked = script.asked[0].meta
    assert asked.settlement == Settlement("extend", LEASE_NS)  # type: ignore[attr-defined]
    assert {(part.nonce, part.count) for part in asked.parts} == {("n0-0", 0), ("n1-7", 0)}  # type: ignore[attr-defined]

    clock.advance_ns(SECOND)
    script = Script(settled(done(2)))
    script.drive(core.extend_leases())
    Script().drive(core.extend_leases())
    assert len(first + second) == 7


def test_a_delivery_of_which_nothing_is_left_is_not_extended_again(
    make: Callable[..., ConsumerCore], clock: ManualClock
) -> None:
    core = make()
    messages, _ = poll(core, joined(0, 1, 2), polled((0, 0, 3), (1, 7, 2), (2, 0, 1)))
    clock.advance_ns(LEASE_NS // 2)

    Script(settled(done(0), FORGED, StorageFull("for now"))).drive(core.extend_leases())

    assert core.lease_count == 1
    assert len(messages) == 6


def test_a_delivery_is_forgotten_with_its_messages(make: Callable[..., ConsumerCore]) -> None:
    core = make()
    poll(core, joined(0), polled((0, 0, 3)))
    for number in range(100):
        kept, _ = poll(core, polled((0, 3 * number, 3), nonce=str(number)))
    gc.collect()

    assert core.lease_count == 1
    one = kept[0]
    del kept
    assert core.lease_count == 1
    del one
    assert core.lease_count == 0
    assert core.next_extension_ns() is None


def test_without_extensions_nothing_is_kept(make: Callable[..., ConsumerCore], clock: ManualClock) -> None:
    core = make(auto_extend=False)
    messages, _ = poll(core, joined(0), polled((0, 0, 3)))
    clock.advance_ns(LEASE_NS)
    Script().drive(core.extend_leases())
    assert (core.lease_count, len(messages)) == (0, 3)


def test_what_is_never_settled_is_not_extended_for_ever(make: Callable[..., ConsumerCore], clock: ManualClock) -> None:
    core = make()
    messages, _ = poll(core, joined(0), polled((0, 0, 3)))
    clock.advance_ns(EXTENDED_NS_MAX + 1)
    Script().drive(core.extend_leases())
    assert (core.lease_count, len(messages)) == (0, 3)


@pytest.mark.parametrize(("by_ns", "next_ns"), [(2 * SECOND, SECOND), (1000 * SECOND, LEASE_NS // 2)])
def test_an_extension_by_hand_is_taken_into_account(
    make: Callable[..., ConsumerCore], clock: ManualClock, by_ns: int, next_ns: int
) -> None:
    core = make()
    messages, _ = poll(core, joined(0), polled((0, 0, 3)))
    Script(settled(done(1))).drive(core.settle(messages[0], Settlement("extend", by_ns)))

    assert core.next_extension_ns() == clock.monotonic_ns() + next_ns
    clock.advance_ns(next_ns)
    script = Script(settled(done(3)))
    script.drive(core.extend_leases())
    assert script.asked[0].meta.settlement.delay_ns == max(LEASE_NS, by_ns)  # type: ignore[attr-defined]


def test_an_answer_that_came_too_late_is_released(make: Callable[..., ConsumerCore]) -> None:
    core = make()
    script = Script(settled(done(3), done(2)))
    script.drive(core.release(polled((0, 0, 3), (1, 7, 2))))
    asked = script.asked[0].meta
    assert asked.settlement.action == "release"  # type: ignore[attr-defined]
    assert [(part.nonce, part.count) for part in asked.parts] == [("n0-0", 0), ("n1-7", 0)]  # type: ignore[attr-defined]
    Script().drive(core.release(polled()))


# --- positions ----------------------------------------------------------------------------------


def commits(request: ConsumerRequest) -> list[tuple[int, int]]:
    assert isinstance(request.meta, verbs.CallRequest)
    committed = msgspec.msgpack.decode(request.payload or b"")["commits"]
    return [(commit["partition"], commit["offset"]) for commit in committed]


def test_a_commit_is_that_of_everything_polled_and_only_once(make: Callable[..., ConsumerCore]) -> None:
    core = make(ack="offsets")
    poll(core, joined(0, 1), polled((0, 0, 3), (1, 7, 2)))
    poll(core, polled((0, 3, 2)))
    script = Script(frame(verbs.Empty()))
    script.drive(core.commit())
    assert commits(script.asked[0]) == [(0, 5), (1, 9)]
    Script().drive(core.commit())


def test_chosen_positions_are_committed_in_place_of_what_was_polled(make: Callable[..., ConsumerCore]) -> None:
    core = make(ack="offsets")
    poll(core, joined(0, 1), polled((0, 0, 3), (1, 7, 2)))
    script = Script(StaleGeneration(1, 2, []), frame(verbs.Empty()))

    script.drive(core.commit({("t", 0): 1}, allow_backwards=True))

    assert commits(script.asked[1]) == [(0, 1)]
    arguments = msgspec.msgpack.decode(script.asked[1].payload or b"")
    assert (arguments["allow_backwards"], arguments["generation"]) == (True, 2)
    script = Script(frame(verbs.Empty()))
    script.drive(core.commit())
    assert commits(script.asked[0]) == [(1, 9)]


@pytest.mark.parametrize(
    "positions", [{("t", 0): -1}, {("t", -1): 1}, {"t": 1}, {("t", 0): "1"}, {("t", "0"): 1}, {(1, 0): 1}, [1], 7]
)
def test_positions_that_cannot_be_are_refused(make: Callable[..., ConsumerCore], positions: Any) -> None:
    core = make(ack="offsets")
    poll(core, joined(0), polled((0, 0, 3)))

    with pytest.raises(InvalidRequest):
        Script().drive(core.commit(positions))


def test_chosen_positions_that_cannot_be_committed_are_refused(make: Callable[..., ConsumerCore]) -> None:
    core = make(ack="offsets")
    with pytest.raises(NotGroupMember):
        Script().drive(core.commit({("t", 0): 1}))
    poll(core, joined(0), polled())
    with pytest.raises(PartitionNotAssigned):
        Script(PartitionNotAssigned("t", 1, "me")).drive(core.commit({("t", 1): 1}))
    with pytest.raises(StaleGeneration):
        Script(*[StaleGeneration(1, 2, [])] * REFUSALS_MAX).drive(core.commit({("t", 0): 1}))
    with pytest.raises(InvalidRequest):
        Script().drive(core.commit(allow_backwards=True))
    with pytest.raises(SessionExpired):
        Script(SessionExpired("g", "me")).drive(core.commit({("t", 0): 1}))
    assert not core.is_member


def test_a_commit_that_fails_can_be_made_again(make: Callable[..., ConsumerCore]) -> None:
    core = make(ack="offsets")
    poll(core, joined(0), polled((0, 0, 3)))
    for error in (BrokerUnavailable("x"), RequestTimeout("CALL", 1)):
        with pytest.raises(type(error)):
            Script(error).drive(core.commit())
    script = Script(StaleGeneration(1, 2, []), frame(verbs.Empty()))
    script.drive(core.commit())
    assert commits(script.asked[1]) == [(0, 3)]


def test_what_others_have_by_now_is_left_out(make: Callable[..., ConsumerCore]) -> None:
    core = make(ack="offsets")
    poll(core, joined(0, 1), polled((0, 0, 3), (1, 7, 2)))
    script = Script(PartitionNotAssigned("t", 0, "me"), frame(verbs.Empty()))
    script.drive(core.commit())
    assert commits(script.asked[1]) == [(1, 9)]


def test_a_commit_of_one_that_was_put_out_says_so(make: Callable[..., ConsumerCore]) -> None:
    core = make(ack="offsets")
    poll(core, joined(0), polled((0, 0, 3)))
    Script(SessionExpired("g", "me")).drive(core.heartbeat())

    with pytest.raises(NotGroupMember):
        Script().drive(core.commit())
    Script().drive(core.commit())


@pytest.mark.parametrize("ack", ["each", "offsets", "auto"])
@pytest.mark.parametrize("error", [BrokerUnavailable("cut"), RequestTimeout("POLL", 1), CannotConnect("x", "refused")])
def test_a_poll_whose_answer_was_lost_is_the_brokers_to_mend(
    make: Callable[..., ConsumerCore], ack: str, error: GoQueueError
) -> None:
    core = make(ack=ack)
    poll(core, joined(0), polled())
    with pytest.raises(type(error)):
        poll(core, error)

    _, script = poll(core, polled())

    assert script.verbs == ["poll"]
    assert script.asked[0].meta.number == 2  # type: ignore[attr-defined]


@pytest.mark.parametrize("ack", ["each", "offsets", "auto"])
def test_a_poll_that_was_interrupted_is_repeated(make: Callable[..., ConsumerCore], ack: str) -> None:
    core = make(ack=ack)
    poll(core, joined(0), polled())
    steps = core.poll(10, 0, LINE, Delivered)
    next(steps)
    steps.close()

    _, script = poll(core, polled())

    assert script.verbs == ["poll"]
    assert script.asked[0].meta.number == 2  # type: ignore[attr-defined]


def test_a_consumer_that_closes_commits_nothing_of_an_answer_that_never_came(make: Callable[..., ConsumerCore]) -> None:
    core = make(ack="auto")
    poll(core, joined(0), polled((0, 0, 3)))
    with pytest.raises(BrokerUnavailable):
        poll(core, BrokerUnavailable("cut"))
    script = Script(frame(verbs.Empty()), joined(0), frame(verbs.Empty()))

    script.drive(core.close(None))

    assert script.verbs == ["groups.commit", "join", "groups.leave"]
    assert commits(script.asked[0]) == [(0, 3)]
    assert not script.asked[1].meta.auto_commit  # type: ignore[attr-defined]


def test_a_consumer_that_has_all_its_answers_just_leaves(make: Callable[..., ConsumerCore]) -> None:
    core = make(ack="auto")
    poll(core, joined(0), polled((0, 0, 3)))
    script = Script(frame(verbs.Empty()))

    script.drive(core.close(None))

    assert script.verbs == ["groups.leave"]


def test_what_was_polled_before_is_committed_before_it_is_given_back(make: Callable[..., ConsumerCore]) -> None:
    core = make(ack="auto")
    poll(core, joined(0, 1), polled((0, 0, 3), (1, 7, 2), required=True))
    _, script = poll(core, beat(0, revoke=(1,)), frame(verbs.Empty()), beat(0), polled())
    assert script.verbs == ["heartbeat", "groups.commit", "heartbeat", "poll"]
    assert commits(script.asked[1]) == [(1, 9)]


def test_what_is_being_worked_on_is_not_committed_by_a_heartbeat(make: Callable[..., ConsumerCore]) -> None:
    core = make(ack="auto")
    poll(core, joined(0, 1), polled((0, 0, 3), (1, 7, 2)))
    script = Script(beat(0, revoke=(1,)), beat(0))
    script.drive(core.heartbeat())
    assert script.verbs == ["heartbeat", "heartbeat"]


def test_who_commits_positions_does_not_settle_and_the_other_way_round(make: Callable[..., ConsumerCore]) -> None:
    core = make(ack="auto")
    messages, _ = poll(core, joined(0), polled((0, 0, 1)))
    with pytest.raises(Conflict):
        Script().drive(core.settle(messages, Settlement("ack")))
    with pytest.raises(Conflict):
        Script().drive(make().commit())


def test_messages_are_of_the_kind_that_was_asked_for(make: Callable[..., ConsumerCore]) -> None:
    core = make()
    batch = Script(joined(0), polled((0, 0, 1))).drive(core.poll(1, 0, LINE, AsyncDelivered))
    assert {type(message) for message in batch.messages} == {AsyncDelivered}
