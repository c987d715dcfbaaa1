"""Prefetching: the next poll of a consumer is sent before the application asks for it.

An application that polls again at once finds its messages already here. Where many messages come at a time, and no
other member could have them, the next poll is sent while the messages of this one are decoded. Otherwise it is sent
together with the ack of the whole batch, in the same packet.

Prefetched messages are leased. What a poll did not ask for after all, or not within
`PREFETCHED_NS_MAX`, is released: the broker delivers their messages as if for the first time.

Belongs to the thread that has the lock of the connection (`goqueue.client.consumer_connection`).
"""

from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple

from goqueue.client.blocking import BlockingConnections, BlockingSession, run_now
from goqueue.client.consumer_core import ConsumerCore, ConsumerRequest
from goqueue.client.session import decode
from goqueue.clock import MS, SECOND, Clock
from goqueue.errors import AvailabilityError, GoQueueError
from goqueue.wire.frames import Frame
from goqueue.wire.reports import DeliveredBatch, PollAnswer
from goqueue.wire.verbs import PollRequest, Verb

PREFETCHED_NS_MAX: Final = SECOND
"""Prefetched messages are released if the application does not poll for them within that time."""
QUICK_NS: Final = 50 * MS
"""An application that polled again within that time is likely to do so again."""
LARGE_BATCH: Final = 100
"""From so many messages on, decoding them takes about as long as the broker needs for the next ones."""


class PrefetchedPoll(NamedTuple):
    """A poll that was sent before the application asked for it."""

    session: BlockingSession
    correlation: int
    asked: PollRequest
    sent_ns: int

    def answer(self) -> Frame | None:
        """What came; None if nothing did. It may have come before the connection was lost."""
        try:
            return self.session.receive_answer(Verb.POLL, self.correlation)
        except GoQueueError:
            return None


class Prefetch:
    """At most one prefetched poll of one consumer, and when to send the next."""

    def __init__(self, core: ConsumerCore, connections: BlockingConnections, clock: Clock) -> None:
        self.prefetched: PrefetchedPoll | None = None
        self._core = core
        self._connections = connections
        self._clock = clock
        self._next_poll: PollRequest | None = None  # what may be sent along with an ack
        self._may_send_along = False
        self._polled_ns = 0
        self._only_along_until_ns = 0  # a poll that was sent during decoding brought nothing

    @property
    def _was_quick(self) -> bool:
        return self._clock.monotonic_ns() - self._polled_ns < QUICK_NS

    def prefetch_after_poll(self, batches: Sequence[DeliveredBatch], max_messages: int) -> None:
        """A poll has brought these batches, which are about to be decoded: send the next one, or plan to."""
        now_ns = self._clock.monotonic_ns()
        was_quick, self._polled_ns = now_ns - self._polled_ns < QUICK_NS, now_ns
        self._next_poll = self._core.next_poll(batches, max_messages) if was_quick else None
        is_large = max_messages >= LARGE_BATCH and self._core.config.mode == "partitioned"
        if self._next_poll is not None and is_large and now_ns >= self._only_along_until_ns:
            with suppress(AvailabilityError):  # the next request finds out
                session: Any = run_now(self._connections.any())
                correlation = session.send_request(Verb.POLL, self._next_poll)
                self.prefetched = PrefetchedPoll(session, correlation, self._next_poll, now_ns)
            self._next_poll = None

    def begin_ack(self) -> None:
        """The whole batch is being acknowledged: a poll may be sent along."""
        self._may_send_along = self._was_quick

    def end_ack(self) -> None:
        """The ack was sent, with a poll or without."""
        self._may_send_along = False
        self._next_poll = None

    def poll_along(self) -> PollRequest | None:
        """The poll to send right after the request that is about to be sent, if any."""
        following, self._next_poll = self._next_poll if self._may_send_along else None, None
        return following

    def sent_along(self, session: BlockingSession, asked: PollRequest) -> None:
        """The poll was the last request that the session has sent."""
        self.prefetched = PrefetchedPoll(session, session.last_correlation, asked, self._clock.monotonic_ns())

    def take_prefetched(self, request: ConsumerRequest) -> Frame | None:
        """What was prefetched, if it is what is asked for now and has brought something."""
        prefetched, self.prefetched = self.prefetched, None
        if prefetched is None:
            return None
        asked = request.meta
        is_same = isinstance(asked, PollRequest) and (asked.number, asked.max_messages) == (
            prefetched.asked.number,
            prefetched.asked.max_messages,
        )
        if not is_same or self._clock.monotonic_ns() - prefetched.sent_ns > PREFETCHED_NS_MAX:
            # The poll that follows has the same number: the broker delivers the messages again, as far as they fit it.
            prefetched.session.forget_answer(prefetched.correlation)
            return None
        frame = prefetched.answer()
        if frame is not None and (len(frame.payload) or decode(frame.meta, PollAnswer).gaps):
            return frame
        self._only_along_until_ns = self._clock.monotonic_ns() + PREFETCHED_NS_MAX
        return None

    def is_stale(self, older_than_ns: int) -> bool:
        """Whether a poll was prefetched, and is at least that old. Needs no lock."""
        prefetched = self.prefetched
        return prefetched is not None and self._clock.monotonic_ns() - prefetched.sent_ns >= older_than_ns

    def release_prefetched(self) -> Frame | None:
        """What was prefetched and is not wanted; the caller releases its messages."""
        prefetched, self.prefetched = self.prefetched, None
        return None if prefetched is None else prefetched.answer()
