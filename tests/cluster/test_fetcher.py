"""A node that follows another one: the two ends of fetches, joined by a wire that the test holds in its hands."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial

import pytest

from goqueue.broker.partition.commit_gate import InSync
from goqueue.clock import SystemClock
from goqueue.cluster.fetch_messages import FetchReply, FetchRequest, ReplicaKey, decode_reply, decode_request, encode
from goqueue.cluster.fetch_server import FetchServer
from goqueue.cluster.fetcher import Fetcher
from goqueue.cluster.link import CallingNode, PeerUnreachable
from goqueue.cluster.node_time import SystemTime
from goqueue.errors import InvalidRequest
from goqueue.runtime.entropy import SeededEntropy
from goqueue.testing import ManualClock
from tests.broker.partition.replicated import Member
from tests.cluster.history import with_topic
from tests.cluster.test_link import run

KEY: ReplicaKey = ("t1", 0)
PATIENCE_S = 20.0


class Scene:
    """Node 1 leads, node 2 follows; the scene is the wire between them."""

    def __init__(self) -> None:
        clock = ManualClock()
        self.leader, self.follower = Member(1, clock), Member(2, clock)
        self.leader.lead(1, InSync(frozenset([1, 2]), at_least=2))
        self.follower.follow(1)
        self.metadata = with_topic().metadata
        self.requests: list[FetchRequest] = []
        self.lose_answers = 0
        self.is_down = False
        self.fetcher = Fetcher(1, self, self.speaker, time=SystemTime(SystemClock()), entropy=SeededEntropy(1))
        self.begin_to_answer()

    def begin_to_answer(self) -> None:
        """The process of the leader knows no session."""
        self.server = FetchServer(
            self.metadata, lambda key: self.leader.replica.followers if key == KEY else None, took=lambda _: None
        )
        assert self.leader.replica.leader is not None
        self.leader.replica.leader.tell_followers(lambda: self.server.sessions.has_news(KEY))

    def speaker(self) -> tuple[int, int, str]:
        broker = self.metadata.broker(2)
        assert broker is not None
        return 2, broker.broker_epoch, broker.registration.directories[0]

    def follow(self) -> None:
        follower = self.follower.replica.follower
        assert follower is not None
        self.fetcher.follow({KEY: follower})

    async def until(self, fact: Callable[[], object]) -> None:
        """Let both nodes work until it is so."""
        async with asyncio.timeout(PATIENCE_S):
            while not fact():
                self.leader.settle()
                self.follower.settle()
                turn = asyncio.Event()
                asyncio.get_running_loop().call_soon(turn.set)
                await turn.wait()

    # --- the wire --------------------------------------------------------------------------------

    async def call(self, node: int, request: bytes, *, timeout_s: float) -> bytes:
        self.requests.append(decode_request(request))
        if self.is_down:
            raise PeerUnreachable(node, "the test says so")
        answer = await self.server.answer(CallingNode(2, "process-2"), request)
        if self.lose_answers and decode_reply(answer).answers:
            self.lose_answers -= 1
            raise PeerUnreachable(node, "the answer is lost")
        return answer

    def set_address(self, node: int, host: str, port: int) -> None: ...

    def forget(self, node: int) -> None: ...

    async def close(self) -> None: ...


@asynccontextmanager
async def fetching() -> AsyncIterator[Scene]:
    scene = Scene()
    scene.fetcher.start()
    scene.follow()
    try:
        yield scene
    finally:
        scene.fetcher.close()


@run
async def test_what_is_published_is_copied_and_acknowledged_by_what_the_follower_has_synced() -> None:
    async with fetching() as scene:
        for value in (b"a", b"b", b"c"):
            acked = scene.leader.send(None, value, early=True)
            await scene.until(partial(getattr, acked, "is_done"))

        assert scene.follower.log.durable_offset == scene.leader.log.next_offset == 3
        await scene.until(lambda: scene.follower.replica.high_watermark == 3)


@run
async def test_a_follower_says_only_what_has_changed() -> None:
    async with fetching() as scene:
        acked = scene.leader.send(None, b"a", early=True)
        await scene.until(lambda: acked.is_done and scene.follower.replica.high_watermark == 1)
        first = scene.requests[0]
        before = len(scene.requests)
        await scene.until(lambda: len(scene.requests) >= before + 2)

    assert first.is_first
    assert [asked.partition for asked in first.asked] == [0]
    assert all(request.asked == () and not request.is_first for request in scene.requests[before + 1 :])


@run
async def test_an_answer_that_is_lost_is_asked_for_again_in_another_session() -> None:
    async with fetching() as scene:
        scene.lose_answers = 2
        acked = scene.leader.send(None, b"a", b"b", early=True)
        await scene.until(lambda: acked.is_done)

    assert len({request.session for request in scene.requests}) == 3
    assert scene.follower.log.next_offset == 2


@run
async def test_a_leader_that_cannot_be_reached_is_asked_again() -> None:
    async with fetching() as scene:
        scene.is_down = True
        await scene.until(lambda: len(scene.requests) >= 3)
        acked = scene.leader.send(None, b"a", early=True)
        scene.is_down = False

        await scene.until(lambda: acked.is_done)


@run
async def test_a_leader_that_was_started_again_hears_everything_again() -> None:
    async with fetching() as scene:
        acked = scene.leader.send(None, b"a", early=True)
        await scene.until(lambda: acked.is_done)
        scene.begin_to_answer()

        again = scene.leader.send(None, b"b", early=True)
        await scene.until(lambda: again.is_done)

    assert [request.is_first for request in scene.requests].count(True) == 2


@run
async def test_a_follower_of_a_later_epoch_takes_its_place() -> None:
    async with fetching() as scene:
        acked = scene.leader.send(None, b"a", early=True)
        await scene.until(lambda: acked.is_done)

        scene.follower.follow(2)
        scene.follow()
        scene.leader.lead(2, InSync(frozenset([1, 2]), at_least=2))
        scene.begin_to_answer()

        again = scene.leader.send(None, b"b", early=True)
        await scene.until(lambda: again.is_done)
        assert scene.follower.log.next_offset == 2


@run
async def test_what_is_followed_no_longer_is_not_asked_for() -> None:
    async with fetching() as scene:
        await scene.until(lambda: scene.requests)
        scene.fetcher.follow({})
        scene.leader.send(None, b"a", early=True)
        await scene.until(lambda: not scene.fetcher.is_asking)

    assert scene.follower.log.next_offset == 0


@run
async def test_only_the_registered_process_on_its_disk_is_answered() -> None:
    scene = Scene()
    node, epoch, directory = scene.speaker()
    for broker_epoch, disk in ((epoch + 1, directory), (epoch - 1, directory), (epoch, "another")):
        request = FetchRequest(node, broker_epoch, disk, "session", is_first=True)
        reply = decode_reply(await scene.server.answer(CallingNode(2, "process-2"), encode(request)))
        assert reply == FetchReply(is_known=False)


@run
async def test_a_node_does_not_speak_for_another_one() -> None:
    scene = Scene()
    with pytest.raises(InvalidRequest, match="node 3 speaks for node 2"):
        await scene.server.answer(
            CallingNode(3, "process-3"), encode(FetchRequest(*scene.speaker(), "session", is_first=True))
        )
