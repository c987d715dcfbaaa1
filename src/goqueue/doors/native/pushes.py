"""Subscriptions of one connection: the broker pushes records for as long as the client gives credit.

A subscription takes records from the log only for credit that it has, and only while the socket takes them, so a client
that does not read costs no memory.
"""

from functools import partial

from goqueue.doors.native.peer import Peer
from goqueue.errors import GoQueueError, InvalidRequest
from goqueue.service.messages import ReadResult, Subscription
from goqueue.wire import frames, verbs
from goqueue.wire.frames import FrameFlags
from goqueue.wire.verbs import Verb

RESPONSE_OF_RECORDS = int(FrameFlags.RESPONSE | FrameFlags.SELF_CHECKED)
PUSHED_RECORDS = int(FrameFlags.RESPONSE | FrameFlags.SELF_CHECKED | FrameFlags.PUSH)


class Push:
    """One subscription, with the bytes that the client will still take."""

    __slots__ = ("correlation", "credit", "is_scheduled", "max_bytes", "subscription")

    def __init__(self, correlation: int, subscription: Subscription, credit: int, max_bytes: int) -> None:
        self.correlation = correlation
        self.subscription = subscription
        self.credit = credit
        self.max_bytes = max_bytes
        self.is_scheduled = False


class Pushes:
    """The subscriptions of one connection, by the correlation id of the request that opened each."""

    def __init__(self, peer: Peer, *, subscriptions_max: int) -> None:
        self._peer = peer
        self._subscriptions_max = subscriptions_max
        self._open: dict[int, Push] = {}

    def check_room(self, correlation: int) -> None:
        """Raise `InvalidRequest` unless a subscription of that number can be opened."""
        if correlation in self._open:
            raise InvalidRequest(f"subscription {correlation} is open already")
        if len(self._open) >= self._subscriptions_max:
            raise InvalidRequest(f"more than {self._subscriptions_max} subscriptions")

    def begin(self, correlation: int, subscription: Subscription, credit: int, max_bytes: int) -> None:
        """Push records of the subscription."""
        push = self._open[correlation] = Push(correlation, subscription, credit, max_bytes)
        self._schedule(push)

    def add_credit(self, correlation: int, credit: int) -> None:
        """So many bytes more may be pushed. The subscription may have ended while the credit was in flight."""
        push = self._open.get(correlation)
        if push:
            push.credit += credit
            self._schedule(push)

    def close(self, correlation: int) -> None:
        """Push no more."""
        push = self._open.pop(correlation, None)
        if push:
            push.subscription.close()

    def close_all(self) -> None:
        """The connection is gone."""
        for correlation in list(self._open):
            self.close(correlation)

    def schedule_all(self) -> None:
        """The peer reads again."""
        for push in list(self._open.values()):
            self._schedule(push)

    def _schedule(self, push: Push) -> None:
        """Push soon, together with all that comes until then."""
        if not push.is_scheduled and push.credit > 0 and not self._peer.is_congested and not self._peer.is_closed:
            push.is_scheduled = True
            self._peer.push_soon(partial(self._push, push))

    def _push(self, push: Push) -> None:
        push.is_scheduled = False
        is_open = self._open.get(push.correlation) is push  # and not another one of the same number
        if not is_open or self._peer.is_closed or self._peer.is_congested or push.credit <= 0:
            return
        try:
            result = push.subscription.read(max_bytes=min(push.max_bytes, push.credit, self._peer.read_bytes_max))
        except GoQueueError as error:
            self._end(push)
            self._peer.fail(Verb.SUBSCRIBE, push.correlation, error)
            return
        except Exception:
            self._end(push)
            self._peer.fail(Verb.SUBSCRIBE, push.correlation, self._peer.bug(Verb.SUBSCRIBE))
            return
        if result.record_count or result.gaps or result.end_of_range:
            push.credit -= len(result.records)
            send_records(self._peer, Verb.SUBSCRIBE, push.correlation, result, PUSHED_RECORDS)
        if result.end_of_range:
            self._end(push)
        else:
            push.subscription.when_ready(lambda: self._schedule(push))

    def _end(self, push: Push) -> None:
        self._open.pop(push.correlation, None)
        push.subscription.close()


def send_records(peer: Peer, kind: int, correlation: int, result: ReadResult, flags: int) -> None:
    """Send records as they were read from the disk, in a frame that leaves their checksums to the records."""
    if peer.is_closed:
        return
    meta = verbs.ReadAnswer(
        record_count=result.record_count,
        next_offset=result.next_offset,
        high_watermark=result.high_watermark,
        last_stable_offset=result.last_stable_offset,
        log_start_offset=result.log_start_offset,
        first_pending_offset=result.first_pending_offset,
        end_of_range=result.end_of_range,
        flags=result.flags,
        gaps=result.gaps,
    )
    head = frames.pack(kind, correlation, verbs.encode(meta), len(result.records), flags=flags)
    if result.record_count:
        peer.write(head, result.records)
    else:
        peer.write(head)
