"""Errands: requests to partitions that are repeated until they are acknowledged.

    asked ──accepted──> acknowledged         raised, or failed, with NotLeader or StorageFull: asked again after a while
                                             TopicNotFound: the topic was deleted, so there is nothing to do
                                             any other error: given up; the next attach asks again

A request is accepted when it was made without an error: on this node it has taken effect then, and only has to become
durable. Acknowledged means that no crash and no change of leader takes it back. A leader that ends between the two
fails the request, and the next leader is asked.
"""

from collections.abc import Callable, Sequence

from goqueue.broker.timers import Timers
from goqueue.clock import SECOND, Clock
from goqueue.errors import GoQueueError, NotLeader, StorageError, StorageFailed, TopicNotFound, TopicQuarantined
from goqueue.service.pending import Pending, all_of

RETRY_NS = SECOND // 4
"""The wait before a request is repeated."""

Ask = Callable[[], Pending[None]]


class Errands:
    """Runs the errands of one coordinator, until it stops."""

    def __init__(self, timers: Timers, clock: Clock) -> None:
        self._timers = timers
        self._clock = clock
        self._waiting: dict[object, Callable[[], None]] = {}  # what is to be repeated
        self._is_stopped = False

    def run(self, asks: Sequence[Ask]) -> tuple[Pending[None], Pending[None]]:
        """Ask for all of these. Done when all are accepted or given up, and when all are acknowledged."""
        accepted: list[Pending[None]] = []
        acknowledged: list[Pending[None]] = []
        for ask in asks:
            accepted.append(Pending())
            acknowledged.append(Pending())
            self._try(ask, accepted[-1], acknowledged[-1])
        return all_of(accepted), all_of(acknowledged)

    def later(self, call: Callable[[], None]) -> None:
        """Call after a while, unless the coordinator has stopped by then."""
        token = object()
        self._waiting[token] = call
        self._timers.at(self._clock.monotonic_ns() + RETRY_NS, lambda: self._call(token))

    def repeat_now(self) -> None:
        """Repeat now what waits: a partition has a leader again."""
        for token in list(self._waiting):
            self._call(token)

    def stop(self) -> None:
        """Repeat nothing any more; what waits is never done."""
        self._is_stopped = True
        self._waiting.clear()

    def _call(self, token: object) -> None:
        call = self._waiting.pop(token, None)
        if call is not None:
            call()

    def _try(self, ask: Ask, accepted: Pending[None], acknowledged: Pending[None]) -> None:
        if self._is_stopped:
            return
        try:
            asked = ask()
        except GoQueueError as error:
            if _may_pass(error):
                self.later(lambda: self._try(ask, accepted, acknowledged))
                return
            asked = Pending.failed(error)
        accepted.resolve(None)

        def look(done: Pending[None]) -> None:
            error = done.error
            if error is None or isinstance(error, TopicNotFound):
                acknowledged.resolve(None)
            elif _may_pass(error):
                self.later(lambda: self._try(ask, accepted, acknowledged))
            else:
                acknowledged.fail(error)

        asked.then(look)


def _may_pass(error: Exception) -> bool:
    """Whether the request may succeed later: another leader may come, or the disk may get room."""
    if isinstance(error, (StorageFailed, TopicQuarantined)):
        return False
    return isinstance(error, (NotLeader, StorageError))
