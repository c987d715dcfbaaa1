"""Sessions without an event loop: the thread that asks waits for its answer itself."""

from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from types import coroutine

import pytest

from goqueue import BrokerUnavailable, Client, RequestTimeout, RequestTooLarge, TopicNotFound
from goqueue.client.blocking import BlockingConnections, BlockingSession, run_now
from goqueue.client.connections import Connections
from goqueue.client.session import CannotConnect
from goqueue.clock import SECOND
from goqueue.testing import ManualClock
from goqueue.wire import verbs
from goqueue.wire.verbs import Verb

TIMEOUT_S = 20
EMPTY = verbs.Empty()
READ = verbs.ReadRequest("t", 0, wait_ms=30_000)  # is answered when there is a message in the topic


def connected(address: str) -> BlockingSession:
    return BlockingSession.connect(
        address, client_id="tests", api_key="", timeout_s=TIMEOUT_S, busy_poll_ns=0, connect_timeout_s=TIMEOUT_S
    )


@pytest.fixture
def session(gq: Client, address: str) -> Iterator[BlockingSession]:
    """A session, and an empty topic `t`."""
    gq.create_topic("t", partitions=1)
    made = connected(address)
    yield made
    made.close()


def ping(session: BlockingSession) -> None:
    assert session.exchange(Verb.PING, EMPTY, verbs.Empty) == EMPTY


# --- coroutines that wait for nothing ------------------------------------------------------------


def test_a_coroutine_that_waits_for_nothing_is_run_at_once() -> None:
    async def share(count: int) -> int:
        return 10 // count

    assert run_now(share(5)) == 2
    with pytest.raises(ZeroDivisionError):
        run_now(share(0))


def test_a_coroutine_that_waits_is_a_bug() -> None:
    @coroutine
    def suspended() -> Generator[None, None, None]:
        yield

    async def wait() -> None:
        await suspended()

    with pytest.raises(AssertionError, match="waits for something"):
        run_now(wait())


# --- sessions ------------------------------------------------------------------------------------


def test_an_error_of_the_broker_leaves_the_session_open(session: BlockingSession) -> None:
    with pytest.raises(TopicNotFound):
        session.exchange(Verb.DESCRIBE_TOPIC, verbs.TopicRequest("nowhere"), verbs.TopicState)

    ping(session)
    assert not session.is_closed


def test_an_answer_that_is_not_waited_for_is_there_when_it_is_asked_for(gq: Client, session: BlockingSession) -> None:
    reading = session.send_request(Verb.READ, READ)
    ping(session)
    gq.publish("t", b"v")
    ping(session)

    assert b"v" in bytes(session.receive_answer(Verb.READ, reading).payload)


def test_a_request_may_travel_along_with_another(gq: Client, session: BlockingSession) -> None:
    session.exchange_frame(Verb.PING, EMPTY, then=(Verb.READ, READ))
    reading = session.last_correlation

    gq.publish("t", b"v")

    assert b"v" in bytes(session.receive_answer(Verb.READ, reading).payload)


def test_an_answer_that_is_forgotten_is_not_taken_for_another(gq: Client, session: BlockingSession) -> None:
    session.forget_answer(session.send_request(Verb.READ, READ))
    gq.publish("t", b"v")

    state = session.exchange(Verb.DESCRIBE_TOPIC, verbs.TopicRequest("t"), verbs.TopicState)

    assert state.name == "t"
    ping(session)


def test_a_session_whose_answer_did_not_come_in_time_is_closed(session: BlockingSession) -> None:
    with pytest.raises(RequestTimeout, match="READ"):
        session.exchange_frame(Verb.READ, READ, timeout_s=0.01)

    assert session.is_closed
    with pytest.raises(BrokerUnavailable):
        ping(session)


def test_another_thread_may_end_the_wait(session: BlockingSession) -> None:
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(session.exchange_frame, Verb.READ, READ)
        session.interrupt()

        with pytest.raises(BrokerUnavailable, match="was lost"):
            waiting.result(timeout=TIMEOUT_S)
    assert session.is_closed


def test_a_request_that_is_too_large_is_not_sent(session: BlockingSession) -> None:
    with pytest.raises(RequestTooLarge):
        session.exchange_frame(Verb.PUBLISH, verbs.PublishRequest("t", 0), bytes(64 * 1024 * 1024))

    ping(session)


def test_an_address_where_nobody_listens_is_named() -> None:
    with pytest.raises(CannotConnect, match="cannot connect to 127.0.0.1:1"):
        connected("127.0.0.1:1")


# --- connections ---------------------------------------------------------------------------------


def connections_to(*addresses: str) -> BlockingConnections:
    return BlockingConnections(Connections(addresses, client_id="tests", api_key="", timeout_s=TIMEOUT_S))


def test_a_session_is_shared_until_it_ends_and_is_then_replaced(gq: Client, address: str) -> None:
    gq.create_topic("t", partitions=1)
    connections = connections_to("127.0.0.1:1", address)

    first = run_now(connections.any())
    assert run_now(connections.any()) is first
    assert run_now(connections.leader("t", 0)) is first
    first.close()
    second = run_now(connections.any())

    assert second is not first
    connections.hang_up()
    assert second.is_closed


class Failing:
    """An attempt that fails so often before it succeeds."""

    def __init__(self, times: int, error: Exception) -> None:
        self.calls = 0
        self._times = times
        self._error = error

    def __call__(self) -> str:
        self.calls += 1
        if self.calls <= self._times:
            raise self._error
        return "done"


def retried(attempt: Failing, clock: ManualClock, *, deadline_s: int = 10, may_repeat: bool = True) -> str:
    pause = Event()
    pause.set()  # the waits are over before they begin
    return connections_to("127.0.0.1:1").retrying_in_thread(
        attempt, clock=clock, pause=pause, deadline_ns=deadline_s * SECOND, may_repeat=lambda: may_repeat
    )


def test_what_may_pass_is_tried_again_until_it_succeeds(clock: ManualClock) -> None:
    attempt = Failing(5, BrokerUnavailable("away"))

    assert retried(attempt, clock) == "done"
    assert attempt.calls == 6


@pytest.mark.parametrize(
    ("error", "deadline_s", "may_repeat"),
    [(TopicNotFound("t"), 10, True), (BrokerUnavailable("away"), 0, True), (BrokerUnavailable("away"), 10, False)],
    ids=["an error that stays", "no time left", "a request that must not be repeated"],
)
def test_what_cannot_pass_is_raised_at_once(
    clock: ManualClock, error: Exception, deadline_s: int, may_repeat: bool
) -> None:
    attempt = Failing(1, error)

    with pytest.raises(type(error)):
        retried(attempt, clock, deadline_s=deadline_s, may_repeat=may_repeat)

    assert attempt.calls == 1
