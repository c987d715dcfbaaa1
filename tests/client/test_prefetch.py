"""Prefetching: when the next poll is sent early, and what becomes of it."""

from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from goqueue.client.blocking import BlockingConnections
from goqueue.client.consumer_core import ConsumerConfig, ConsumerCore, ConsumerRequest
from goqueue.client.prefetch import LARGE_BATCH, PREFETCHED_NS_MAX, QUICK_NS, Prefetch
from goqueue.clock import SECOND
from goqueue.errors import BrokerUnavailable
from goqueue.testing import ManualClock
from goqueue.wire import verbs
from goqueue.wire.frames import Frame
from goqueue.wire.reports import DeliveredBatch, PollAnswer
from goqueue.wire.verbs import PollRequest, Verb


@dataclass
class Session:
    """A session that remembers what was sent, and answers what it is given."""

    payload: bytes = b"records"
    is_lost: bool = False
    last_correlation: int = 0
    sent: list[PollRequest] = field(default_factory=list)
    forgotten: list[int] = field(default_factory=list)

    def send_request(self, verb: Verb, meta: PollRequest) -> int:
        if self.is_lost:
            raise BrokerUnavailable("lost")
        self.sent.append(meta)
        self.last_correlation += 1
        return self.last_correlation

    def receive_answer(self, verb: Verb, correlation: int) -> Frame:
        if self.is_lost:
            raise BrokerUnavailable("lost")
        meta = verbs.encode(PollAnswer([], 0, False, 0))
        return Frame(verb, 0, correlation, memoryview(meta), memoryview(self.payload))

    def forget_answer(self, correlation: int) -> None:
        self.forgotten.append(correlation)


class Connections:
    def __init__(self, session: Session) -> None:
        self._session = session

    async def any(self) -> Any:
        return self._session


class World:
    """A consumer that has polled before, a moment ago."""

    def __init__(self, *, mode: str = "partitioned") -> None:
        self.clock = ManualClock()
        self.session = Session()
        config = ConsumerConfig(topics=("t",), group="g", client_id="c", member_id="m", mode=mode)
        self.core = ConsumerCore(config, self.clock)
        self.core.is_member = True
        self.prefetch = Prefetch(self.core, cast("BlockingConnections", Connections(self.session)), self.clock)
        self.poll(LARGE_BATCH)
        self.prefetch.prefetched = None
        self.session.sent.clear()

    def poll(self, count: int, *, brought: int | None = None) -> None:
        batch = DeliveredBatch("t", 0, "nonce", brought or count, 0, 0, 0, 0, lease_ns=30 * SECOND)
        self.prefetch.prefetch_after_poll([batch], count)

    def request(self, count: int) -> ConsumerRequest:
        return ConsumerRequest(Verb.POLL, self.core._poll(count, 0))


def test_a_quick_application_with_large_batches_gets_the_next_one_while_it_decodes() -> None:
    world = World()

    world.poll(LARGE_BATCH)

    assert [one.max_messages for one in world.session.sent] == [LARGE_BATCH]
    frame = world.prefetch.take_prefetched(world.request(LARGE_BATCH))
    assert frame is not None
    assert world.prefetch.prefetched is None


def test_a_slow_application_gets_nothing_early() -> None:
    world = World()
    world.clock.advance_ns(QUICK_NS)

    world.poll(LARGE_BATCH)

    assert world.session.sent == []
    world.prefetch.begin_ack()
    assert world.prefetch.poll_along() is None


@pytest.mark.parametrize(("mode", "count"), [("partitioned", LARGE_BATCH - 1), ("shared", LARGE_BATCH)])
def test_small_batches_and_shared_groups_get_the_next_one_along_with_their_ack(mode: str, count: int) -> None:
    world = World(mode=mode)
    world.poll(count)
    assert world.session.sent == []
    assert world.prefetch.poll_along() is None  # this is no ack of the whole batch

    world.poll(count)
    world.prefetch.begin_ack()
    following = world.prefetch.poll_along()

    assert following is not None
    assert following.max_messages == count
    world.prefetch.sent_along(cast("Any", world.session), following)
    world.prefetch.end_ack()
    assert world.prefetch.take_prefetched(world.request(count)) is not None


def test_a_batch_that_is_not_full_is_the_last_for_now() -> None:
    world = World()

    world.poll(LARGE_BATCH, brought=LARGE_BATCH - 1)

    assert world.session.sent == []


def test_a_poll_of_another_size_drops_what_was_prefetched() -> None:
    world = World()
    world.poll(LARGE_BATCH)

    assert world.prefetch.take_prefetched(world.request(LARGE_BATCH + 1)) is None
    assert world.session.forgotten == [world.session.last_correlation]


def test_what_was_prefetched_too_long_ago_is_not_taken() -> None:
    world = World()
    world.poll(LARGE_BATCH)
    assert not world.prefetch.is_stale(PREFETCHED_NS_MAX)

    world.clock.advance_ns(PREFETCHED_NS_MAX + 1)

    assert world.prefetch.is_stale(PREFETCHED_NS_MAX)
    assert world.prefetch.take_prefetched(world.request(LARGE_BATCH)) is None


def test_after_a_prefetch_that_brought_nothing_the_next_ones_go_along_with_acks_for_a_while() -> None:
    world = World()
    world.session.payload = b""
    world.poll(LARGE_BATCH)
    assert world.prefetch.take_prefetched(world.request(LARGE_BATCH)) is None
    world.session.sent.clear()

    world.poll(LARGE_BATCH)

    assert world.session.sent == []
    world.prefetch.begin_ack()
    assert world.prefetch.poll_along() is not None


def test_a_lost_connection_prefetches_nothing_and_raises_nothing() -> None:
    world = World()
    world.session.is_lost = True

    world.poll(LARGE_BATCH)

    assert world.prefetch.prefetched is None
    assert world.prefetch.release_prefetched() is None


def test_what_is_released_is_handed_over_once() -> None:
    world = World()
    world.poll(LARGE_BATCH)

    assert world.prefetch.release_prefetched() is not None
    assert world.prefetch.release_prefetched() is None
