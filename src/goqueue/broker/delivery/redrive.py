"""One redrive: its arguments, its progress and its rate.

A redrive has a share in each partition of the dead-letter topic. Its progress there is written to the ledger before
each batch, so a restart continues after the batches that were stored (`delivery/redrive_facts.py`). The rate is a token
bucket that never holds more than a tenth of a second's worth, so that an idle redrive does not save up for a burst.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec
from pyroaring import BitMap64

from goqueue.broker.delivery.dead_letter_partition import DeadLetterPartition, FoundDeadLetter
from goqueue.broker.timers import Timer
from goqueue.clock import SECOND
from goqueue.delivery.dead_letter_filter import DeadLetterMatcher, OriginTopics
from goqueue.delivery.offsets import between
from goqueue.delivery.redrive_facts import RedriveOrder, RedriveProgress, RedriveState
from goqueue.errors import GoQueueError
from goqueue.record.header import OFFSET_MAX
from goqueue.service.pending import Pending
from goqueue.wire import reports

BATCH_MAX = 500
WAIT_NS_MAX = 3600 * SECOND


class DeadLettersOf(NamedTuple):
    """The dead letters of a topic: where they are, and which of those there they are."""

    topic: str
    dlq_topic: str
    origins: OriginTopics


class RedriveTotals(NamedTuple):
    """The outcomes of the dead letters that a redrive has handled."""

    matched: int
    redriven: int
    skipped_loop: int
    failed: int


class RedriveShare:
    """A redrive in one partition of the dead-letter topic."""

    __slots__ = (
        "failed",
        "in_hand",
        "matched",
        "next_offset",
        "redriven",
        "skipped_loop",
        "source",
        "todo",
        "unhandled",
    )

    def __init__(self, source: DeadLetterPartition, todo: BitMap64) -> None:
        self.source = source
        self.todo = todo
        self.next_offset = 0  # all before it were handled
        self.in_hand = BitMap64()
        self.unhandled = BitMap64()  # of the batch before a restart, and still dead: the only ones before `next_offset`
        self.matched = self.redriven = self.skipped_loop = self.failed = 0

    def progress(self) -> RedriveProgress:
        """The fact with which a restart continues from here, whether or not the batch under way is stored."""
        matched = self.matched - len(self.in_hand)
        in_hand = (self.in_hand | self.unhandled).serialize()
        return RedriveProgress(self.next_offset, in_hand, matched, self.redriven, self.skipped_loop, self.failed)

    def handled(self, offset: int) -> None:
        """The dead letter was handled."""
        self.matched += 1
        self.unhandled.discard(offset)
        self.next_offset = max(self.next_offset, offset + 1)

    def resume(self, progress: RedriveProgress) -> None:
        """Continue from there. Dead letters of the last batch that are no longer dead were redriven."""
        in_hand = BitMap64.deserialize(progress.in_hand)
        left = self.unhandled = BitMap64([offset for offset in in_hand if self.source.is_dead(offset)])
        redriven = len(in_hand) - len(left)
        self.next_offset = progress.next_offset
        self.todo = between(self.todo, progress.next_offset, OFFSET_MAX) | left
        self.matched = progress.matched + redriven
        self.redriven = progress.redriven + redriven
        self.skipped_loop, self.failed = progress.skipped_loop, progress.failed


class Redrive:
    """One redrive, running or ended."""

    def __init__(
        self,
        queue: DeadLettersOf,
        order: RedriveOrder,
        sources: Sequence[DeadLetterPartition],
        *,
        now_ns: int,
    ) -> None:
        self.topic = queue.topic
        self.dlq_topic = queue.dlq_topic
        self.order = order
        self.id = order.id
        self.limit = order.limit
        self.target_topic = order.target_topic
        self.max_redrives = order.max_redrives
        self.state = order.state
        self.error = order.error
        self.finished_at_ns = order.finished_at_ns
        is_over = order.state != "running"
        chosen = () if is_over else zip(sources, order.ends, strict=False)
        self.shares = {source: RedriveShare(source, between(source.dead(), 0, end)) for source, end in chosen}
        wanted = DeadLetterMatcher(order.wanted, queue.origins)
        self.dead_letters: Iterator[FoundDeadLetter | None] = (
            found for share in self.shares.values() for found in share.source.find(wanted, share.todo)
        )
        self.ended: Pending[None] = Pending.of(None) if is_over else Pending()
        self.in_hand = 0  # batches that are under way
        self.is_stopping = False
        self.is_suspended = False  # a partition of the dead-letter topic has lost its leader
        self.timer: Timer | None = None
        self._burst = 1 + order.rate / 10  # what a late tick may catch up on
        self._tokens = 1.0
        self._tokens_ns = now_ns

    @property
    def rate(self) -> float:
        """How many dead letters it may redrive in a second; 0 is no limit."""
        return self.order.rate

    @property
    def totals(self) -> RedriveTotals:
        """The totals so far."""
        if self.state != "running":
            return RedriveTotals(*self.order.totals)
        shares = self.shares.values()
        return RedriveTotals(
            sum(share.matched for share in shares),
            sum(share.redriven for share in shares),
            sum(share.skipped_loop for share in shares),
            sum(share.failed for share in shares),
        )

    def info(self) -> reports.RedriveInfo:
        """The redrive as it is now."""
        totals = self.totals
        return reports.RedriveInfo(
            id=self.id,
            topic=self.topic,
            state=self.state,
            matched=totals.matched,
            redriven=totals.redriven,
            skipped_loop=totals.skipped_loop,
            failed=totals.failed,
            rate=self.order.rate,
            started_at_ns=self.order.started_at_ns,
            finished_at_ns=self.finished_at_ns,
            error=self.error,
            to=self.order.to,
        )

    def end(self, state: RedriveState, error: str, *, wall_ns: int) -> None:
        totals = self.totals
        self.order = msgspec.structs.replace(
            self.order, state=state, error=error, finished_at_ns=wall_ns, totals=tuple(totals)
        )
        self.state, self.error, self.finished_at_ns = state, error, wall_ns
        self.dead_letters = iter(())
        self.shares = {}

    def suspend(self, error: GoQueueError) -> None:
        """Do nothing more: the redrive is restored from the ledger, as after a restart."""
        self.is_suspended = True
        self.cancel_timer()
        self.dead_letters = iter(())
        self.ended.fail(error)

    def cancel_timer(self) -> None:
        """Wait for nothing more."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None

    @property
    def left(self) -> int:
        """How many dead letters the limit allows in the next batch."""
        return max(0, min(BATCH_MAX, self.limit - self.totals.redriven)) if self.limit else BATCH_MAX

    def allowed(self, now_ns: int) -> int:
        """How many dead letters the rate and the limit allow now."""
        if not self.rate:
            return self.left
        self._tokens = min(self._burst, self._tokens + (now_ns - self._tokens_ns) * self.rate / SECOND)
        self._tokens_ns = now_ns
        return min(self.left, int(self._tokens))

    def spend(self, count: int) -> None:
        """Spend tokens for dead letters that are being redriven."""
        self._tokens -= count

    @property
    def wait_ns(self) -> int:
        """How long until the rate allows another dead letter."""
        return int(min((1 - self._tokens) * SECOND / self.rate, WAIT_NS_MAX)) + 1 if self.rate else 1
