"""When a node tries to become the controller. Pure: it is told what happens, and says when.

    hears the controller ──silence, or its process has died──> suspects it ──rank and jitter──> due
            ▲                                                                                    │
            ├── an answer, or a new epoch                                      the peers are asked: pre-vote
            │                                                                                    │
            └──────────── most of them hear it: look again later <───────────────────────────────┤
                                                                                                 ▼
                                                                     append ControllerElected(epoch + 1)

Each node waits longer by its rank, so most elections have one candidate; if there are two, the log lets one win. None
of this is needed for safety: a candidate that is wrong costs an election.

A node that the others cannot reach may still reach the log. It would be elected, hear nobody, resign, and be elected
again. So elections that led to nothing are followed by pauses that double, and a reign that another node has ended by a
long one, unless enough peers have answered the pre-vote: then the next reign will be another one.
"""

from collections.abc import Collection, Sequence

from goqueue.backoff import backoff_ns
from goqueue.cluster.messages import PreVoteReply
from goqueue.cluster.metadata import Metadata
from goqueue.cluster.timing import ClusterTiming
from goqueue.runtime.entropy import Entropy


class Candidate:
    """One node, as a possible controller."""

    def __init__(self, node: int, *, timing: ClusterTiming, entropy: Entropy, now_ns: int) -> None:
        self._node = node
        self._timing = timing
        self._entropy = entropy
        self._heard_ns = now_ns  # or, before that, since when it may be silent
        self._has_heard = False
        self._died_ns: int | None = None
        self._not_before_ns = now_ns
        self._futile = 0
        self._futile_until_ns = now_ns
        self._jitter_ns = self._draw_jitter()

    # --- what happens ------------------------------------------------------------------------------

    def began(self, now_ns: int) -> None:
        """The node takes part from now on."""
        self._heard_ns = self._not_before_ns = now_ns

    def heard(self, now_ns: int) -> None:
        """The controller has answered."""
        self._heard_ns = now_ns
        self._has_heard = True
        self._died_ns = None

    def epoch_began(self, now_ns: int, *, is_here: bool) -> None:
        """There is a new controller, on this node or another; it has as long to be heard as any other."""
        self.heard(now_ns)
        if not is_here:
            if self._futile:  # it gave up because it heard nobody, and the others go on without it
                self.deposed(now_ns)
            self._futile = 0
        self._jitter_ns = self._draw_jitter()

    def deposed(self, now_ns: int) -> None:
        """This node was the controller, and another one was elected: so others live, and reach the log. If this node
        does not reach half of them either, it is the one that is cut off, and would only be deposed again.
        """
        self._futile_until_ns = now_ns + self._timing.futile_wait_ns_max

    def controller_died(self, now_ns: int) -> None:
        """The process that is the controller has ended."""
        if self._died_ns is None:
            self._died_ns = now_ns

    def held_back(self, now_ns: int) -> None:
        """An attempt did not lead to an election."""
        self._not_before_ns = now_ns + self._timing.heartbeat_ns
        self._jitter_ns = self._draw_jitter()

    def reign_ended(self, now_ns: int, *, was_futile: bool) -> None:
        """This node was the controller and is not any more; futile if it did not hear enough of the others."""
        self.heard(now_ns)
        self._has_heard = False
        if not was_futile:
            self._futile = 0
            return
        self._futile += 1
        timing = self._timing
        self._futile_until_ns = now_ns + backoff_ns(
            self._futile,
            initial_ns=timing.silence_ns,
            max_ns=timing.futile_wait_ns_max,
            jitter=self._entropy.fraction(),
        )

    # --- what follows ------------------------------------------------------------------------------

    def hears_controller(self, now_ns: int) -> bool:
        """Whether the controller has been heard lately."""
        return self._has_heard and self._died_ns is None and now_ns - self._heard_ns < self._timing.silence_ns

    def due_ns(self, metadata: Metadata) -> int:
        """When to ask the peers, if nothing happens until then."""
        suspected_ns = self._heard_ns + self._timing.silence_ns if self._died_ns is None else self._died_ns
        others = self._others(metadata)
        pause_ns = self._rank(metadata, others) * self._timing.rank_step_ns + self._jitter_ns if others else 0
        return max(suspected_ns + pause_ns, self._not_before_ns)

    def may_stand(self, metadata: Metadata, replies: Sequence[PreVoteReply], now_ns: int) -> bool:
        """Whether to stand, after the peers have answered, those who could."""
        if any(reply.epoch > metadata.epoch for reply in replies):
            return False  # there is another controller; this node has not applied that yet
        if 2 * sum(reply.hears_controller for reply in replies) > len(replies):
            return False
        return now_ns >= self._futile_until_ns or 2 * (len(replies) + 1) >= len(self._others(metadata)) + 1

    def _rank(self, metadata: Metadata, others: Collection[int]) -> int:
        """How many nodes come first: those that are online, in order; then all that are not."""
        broker = metadata.broker(self._node)
        if broker is None or broker.is_fenced or metadata.controller == self._node:
            return len(others)
        return sum(node < self._node for node in others if node != metadata.controller)

    def _others(self, metadata: Metadata) -> list[int]:
        return [node for node, broker in metadata.brokers.items() if node != self._node and not broker.is_fenced]

    def _draw_jitter(self) -> int:
        return int(self._entropy.fraction() * self._timing.jitter_ns)
