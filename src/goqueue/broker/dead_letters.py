"""The verbs about dead letters: counting them, looking at them, and putting them back.

    letters of X.dlq ──filter──> loop guard ──> target ──> PartitionDelivery.move_to ──> Transfers

A redrive only chooses, some letters at a time, and hands them to `Transfers`, which moves them in one step. A letter
that is under way is not dead any more, so of two redrives over the same letters only one can have it.

A redrive looks at the letters that are there when it begins. It goes on when its last batch is stored, at its rate, and
lets others run in between. It lives in memory: after a restart what it had in hand is finished, and the rest of its
letters are dead as before, for another redrive.
"""

import heapq
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import islice
from math import isfinite
from secrets import token_hex
from typing import TypeAlias

from pyroaring import BitMap64

from goqueue.broker import consumer_service
from goqueue.broker.letter_partition import Found, LetterPartition, LetterTopics
from goqueue.broker.live_partition import LivePartition
from goqueue.broker.partition_delivery import Graves
from goqueue.broker.pending import Pending, after
from goqueue.broker.service import READ_BYTES_MAX
from goqueue.broker.timers import Timer, Timers
from goqueue.clock import SECOND, Clock
from goqueue.delivery.dead_letter import DLQ_SUFFIX, dead_letter_topic, origin_of, redriven_headers
from goqueue.delivery.dead_letter_counts import Tally
from goqueue.delivery.dead_letter_filter import LetterFilter
from goqueue.errors import (
    BrokerUnavailable,
    Conflict,
    GoQueueError,
    InvalidRequest,
    MessageTooLarge,
    NotFound,
    StorageError,
    TopicNotFound,
)
from goqueue.record import kernel
from goqueue.record.header import HEADERS_BYTES_MAX
from goqueue.record.headers import encode_headers
from goqueue.record.message import Message
from goqueue.wire import reports

BATCH_MAX = 500
ROUNDS_MAX = 2
"""How many batches, or stretches of the log without any, one redrive may have before it lets others run."""
LIST_MAX = 10_000
SAMPLE_MAX = 10
RUNNING_MAX = 20
HISTORY_MAX = 100
"""How many redrives of a topic are remembered when they are over."""
WAIT_NS_MAX = 3600 * SECOND
_ROOM_FOR_HEADERS = 1_024


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterConfig:
    """How much is done before others may run."""

    counted_max: int = 10_000  # letters that one question may count; those that are left are counted by and by
    counted_step: int = 1_000
    stretch_bytes: int = 256 * 1024  # of the log, read in one go


class Redrive:
    """One redrive, running or over."""

    def __init__(
        self,
        topic: str,
        sources: Sequence[LetterPartition],
        wanted: LetterFilter,
        *,
        rate: float = 0,
        limit: int,
        target_topic: str | None,
        max_redrives: int,
        now_ns: int,
        wall_ns: int,
    ) -> None:
        self.id = token_hex(8)
        self.topic = topic
        self.dlq_topic = dead_letter_topic(topic)
        self.sources = sources
        dead = [source.dead() for source in sources]
        self.letters: Iterator[Found | None] = (
            found for source, offsets in zip(sources, dead, strict=True) for found in source.find(wanted, offsets)
        )
        self.rate = rate
        self.limit = limit
        self.target_topic = target_topic
        self.max_redrives = max_redrives
        self.matched = self.redriven = self.skipped_loop = self.failed = 0
        self.state = "running"
        self.error = ""
        self.started_at_ns = wall_ns
        self.finished_at_ns: int | None = None
        self.ended: Pending[None] = Pending()
        self.in_hand = 0  # moves that are under way
        self.is_stopping = False
        self.timer: Timer | None = None
        self._burst = 1 + rate / 10  # what a tick that comes late may catch up on
        self._tokens = 1.0
        self._tokens_ns = now_ns

    def info(self) -> reports.RedriveInfo:
        """The redrive as it is now."""
        return reports.RedriveInfo(
            self.id,
            self.topic,
            self.state,
            self.matched,
            self.redriven,
            self.skipped_loop,
            self.failed,
            self.rate,
            self.started_at_ns,
            self.finished_at_ns,
            self.error,
        )

    @property
    def left(self) -> int:
        """How many more letters the limit allows in one batch."""
        return min(BATCH_MAX, self.limit - self.redriven) if self.limit else BATCH_MAX

    def allowed(self, now_ns: int) -> int:
        """How many letters may be put back now."""
        if not self.rate:
            return self.left
        self._tokens = min(self._burst, self._tokens + (now_ns - self._tokens_ns) * self.rate / SECOND)
        self._tokens_ns = now_ns
        return min(self.left, int(self._tokens))

    def spend(self, count: int) -> None:
        """So many are being put back."""
        self._tokens -= count

    @property
    def wait_ns(self) -> int:
        """How long it takes until another letter may be put back."""
        return int(min((1 - self._tokens) * SECOND / self.rate, WAIT_NS_MAX)) + 1 if self.rate else 1


Batches: TypeAlias = dict[tuple[LetterPartition, str, int], list[int]]
"""Offsets of letters, by where they are and where they go."""


class DeadLetters:
    """The dead letters of one broker."""

    def __init__(
        self, topics: LetterTopics, *, clock: Clock, timers: Timers, config: DeadLetterConfig | None = None
    ) -> None:
        self._topics = topics
        self._clock = clock
        self._timers = timers
        self._config = config or DeadLetterConfig()
        self._sources: dict[str, Sequence[LetterPartition]] = {}
        self._redrives: dict[str, OrderedDict[str, Redrive]] = {}
        self._is_stopping = False

    def resume(self) -> None:
        """Finish what was in hand when the broker stopped."""
        for dlq_topic in self._dlq_topics():
            for live in self._topics.lives(dlq_topic):
                if live.partition.has_ledger:
                    with suppress(StorageError):  # whoever asks for it is told why
                        self._topics.delivery(live)

    def stop(self) -> None:
        """End all redrives after what they have in hand, and begin none."""
        self._is_stopping = True
        for redrives in self._redrives.values():
            for redrive in redrives.values():
                self._stop(redrive)

    # --- looking -------------------------------------------------------------------------------

    def queues(self) -> list[reports.DeadLetterQueue]:
        """Every topic that has a dead-letter topic, by name."""
        topics = self._dlq_topics()
        self._sources = {topic: self._sources[topic] for topic in topics if topic in self._sources}
        return [self._queue(topic.removesuffix(DLQ_SUFFIX)) for topic in topics]

    def describe(self, topic: str) -> reports.DeadLetterQueue:
        """The dead letters of a topic in numbers.

        `messages` is exact. Where very many letters were never counted, the other numbers take some time to follow.
        """
        topic = _base(topic)
        queue = self._queue(topic)
        queue.redrives = [redrive.info() for redrive in self._redrives.get(topic, {}).values()]
        return queue

    def list(
        self, topic: str, wanted: reports.DeadLetterFilter, *, skip: int = 0, limit: int = 100
    ) -> consumer_service.DeadLetters:
        """The dead letters that match, newest last; a page ends early where they are large."""
        if not 1 <= limit <= LIST_MAX:
            raise InvalidRequest(f"invalid limit {limit}: must be 1 to {LIST_MAX}", path="limit")
        if skip < 0:
            raise InvalidRequest(f"invalid skip {skip}: must be 0 or more", path="skip")
        chosen = LetterFilter(wanted)
        letters = heapq.merge(
            *(_only(source.find(chosen, source.dead())) for source in self._letters(_base(topic))),
            key=lambda found: (found.message.timestamp_ns, found.message.partition),
        )
        page: consumer_service.DeadLetters = []
        size = 0
        for found in islice(letters, skip, skip + limit):
            report = _report(found)
            size += len(report.record)
            if page and size > READ_BYTES_MAX:
                break
            page.append(report)
        return page

    # --- putting back --------------------------------------------------------------------------

    def plan(
        self,
        topic: str,
        wanted: reports.DeadLetterFilter,
        *,
        limit: int = 0,
        target_topic: str | None = None,
        max_redrives: int = 3,
    ) -> reports.RedrivePlan:
        """What a redrive would do now, letter by letter, without doing it."""
        redrive = self._begin(topic, wanted, rate=0, limit=limit, target_topic=target_topic, max_redrives=max_redrives)
        sample: list[reports.DeadLetter] = []
        count = 0
        for found in _only(redrive.letters):
            if self._judge(redrive, found) is not None:
                count += 1
                if len(sample) < SAMPLE_MAX:
                    sample.append(_report(found))
                if count == limit:
                    break
        return reports.RedrivePlan(redrive.matched, redrive.skipped_loop, sample)

    def redrive(
        self,
        topic: str,
        wanted: reports.DeadLetterFilter,
        *,
        rate: float = 0,
        limit: int = 0,
        target_topic: str | None = None,
        max_redrives: int = 3,
    ) -> Pending[reports.RedriveInfo]:
        """Begin to put back the letters that match, oldest first in each partition; how it stands.

        `limit` counts those that are put back. `matched` is how many were met so far: each of them was put back, or
        skipped, or has failed because there is nowhere to put it.
        """
        if self._is_stopping:
            raise BrokerUnavailable("it is stopping")
        redrive = self._begin(
            topic, wanted, rate=rate, limit=limit, target_topic=target_topic, max_redrives=max_redrives
        )
        self._remember(redrive)
        self._step(redrive)
        return Pending.of(redrive.info())

    def redrive_info(self, topic: str, redrive_id: str) -> reports.RedriveInfo:
        """How a redrive stands."""
        return self._redrive(topic, redrive_id).info()

    def stop_redrive(self, topic: str, redrive_id: str) -> Pending[reports.RedriveInfo]:
        """End a redrive; how it stands when what it had in hand is done. One that is over stays what it is."""
        redrive = self._redrive(topic, redrive_id)
        self._stop(redrive)
        return after(redrive.ended, lambda _: redrive.info())

    def _begin(
        self,
        topic: str,
        wanted: reports.DeadLetterFilter,
        *,
        rate: float,
        limit: int,
        target_topic: str | None,
        max_redrives: int,
    ) -> Redrive:
        topic = _base(topic)
        if not isfinite(rate) or rate < 0:
            raise InvalidRequest(f"invalid rate {rate}: must be 0 or more messages per second", path="rate")
        if limit < 0:
            raise InvalidRequest(f"invalid limit {limit}: must be 0 or more", path="limit")
        if max_redrives < 0:
            raise InvalidRequest(f"invalid max_redrives {max_redrives}: must be 0 or more", path="max_redrives")
        sources = self._letters(topic)
        if target_topic is not None:
            if target_topic == dead_letter_topic(topic):
                raise InvalidRequest("invalid target_topic: the letters are there already", path="target_topic")
            self._topics.lives(target_topic)
        return Redrive(
            topic,
            sources,
            LetterFilter(wanted),
            rate=rate,
            limit=limit,
            target_topic=target_topic,
            max_redrives=max_redrives,
            now_ns=self._clock.monotonic_ns(),
            wall_ns=self._clock.wall_ns(),
        )

    def _remember(self, redrive: Redrive) -> None:
        """Keep a redrive among those of its topic, and forget what nobody can ask for, or will."""
        self._redrives = {
            topic: redrives
            for topic, redrives in self._redrives.items()
            if topic == redrive.topic or dead_letter_topic(topic) in self._topics.partition_counts()
        }
        redrives = self._redrives.setdefault(redrive.topic, OrderedDict())
        running = [other for other in redrives.values() if other.state == "running"]
        if len(running) >= RUNNING_MAX:
            raise Conflict(f"{RUNNING_MAX} redrives of {redrive.topic} are running already")
        over = [other.id for other in redrives.values() if other.state != "running"]
        for redrive_id in over[: max(0, len(over) + 1 - HISTORY_MAX)]:
            del redrives[redrive_id]
        redrives[redrive.id] = redrive

    def _step(self, redrive: Redrive) -> None:
        """Go on with a redrive until it has to wait, or others want to run."""
        redrive.timer = None
        try:
            for _ in range(ROUNDS_MAX):
                if not self._round(redrive):
                    return
        except GoQueueError as error:
            self._end(redrive, "failed", str(error))
            return
        self._later(redrive)

    def _round(self, redrive: Redrive) -> bool:
        """Put back a batch; whether to go on at once."""
        if redrive.error:
            self._end(redrive, "failed", redrive.error)
        elif redrive.is_stopping:
            self._end(redrive, "stopped")
        elif not redrive.left:
            self._end(redrive, "done")
        if redrive.state != "running":
            return False
        self._check_topics(redrive)
        allowed = redrive.allowed(self._clock.monotonic_ns())
        if not allowed:
            self._later(redrive)
            return False
        batches, is_over = self._choose(redrive, allowed)
        if batches:
            return self._put_back(redrive, batches)
        if is_over:
            self._end(redrive, "done")
        return not is_over

    def _choose(self, redrive: Redrive, allowed: int) -> tuple[Batches, bool]:
        """The next letters, by where they are and where they go; and whether there are no more at all."""
        batches: Batches = {}
        count = 0
        for found in redrive.letters:
            if found is None:
                return batches, False
            if not found.source.is_dead(found.message.offset):  # somebody was faster
                continue
            target = self._judge(redrive, found)
            if target is not None:
                batches.setdefault((found.source, *target), []).append(found.message.offset)
                count += 1
                if count == allowed:
                    return batches, False
        return batches, True

    def _put_back(self, redrive: Redrive, batches: Batches) -> bool:
        """Move the batches; whether that is done already."""
        is_waiting = False

        def moved(count: int, done: Pending[Graves]) -> None:
            redrive.in_hand -= 1
            self._note_moved(redrive, count, done)
            if is_waiting and not redrive.in_hand:
                self._step(redrive)

        redrive.in_hand = len(batches)
        for (source, target, partition), offsets in batches.items():
            redrive.spend(len(offsets))
            source.put_back(offsets, target, partition).then(partial(moved, len(offsets)))
        is_waiting = True
        return not redrive.in_hand

    def _note_moved(self, redrive: Redrive, count: int, done: Pending[Graves]) -> None:
        try:
            moved = len(done.result())
        except TopicNotFound:  # the letters stay where they are
            moved = 0
        except GoQueueError as error:
            redrive.error = str(error)
            moved = 0
        redrive.redriven += moved
        redrive.failed += count - moved

    def _judge(self, redrive: Redrive, found: Found) -> tuple[str, int] | None:
        """Where a letter that matches goes, if anywhere."""
        redrive.matched += 1
        if found.letter.redrives >= redrive.max_redrives:
            redrive.skipped_loop += 1
            return None
        target = self._target(redrive, found)
        if target is None:
            redrive.failed += 1
        return target

    def _target(self, redrive: Redrive, found: Found) -> tuple[str, int] | None:
        """The partition that the letter comes from, or that of the same number elsewhere, if it takes the message."""
        topic, partition, _ = found.letter.origin or ("", found.message.partition, 0)
        if topic == redrive.dlq_topic:  # it died a second time, where it was read as a dead letter
            topic = redrive.topic
        topic = redrive.target_topic or topic
        if topic not in self._topics.partition_counts():
            return None
        lives = self._topics.lives(topic)
        live = lives[partition % len(lives)]
        return (topic, live.origin.partition) if _fits(found.message, live) else None

    def _check_topics(self, redrive: Redrive) -> None:
        """Raise `TopicNotFound` unless the letters, and the target that was asked for, are there."""
        if redrive.sources:
            lives = self._topics.lives(redrive.dlq_topic)
            if lives[0] is not redrive.sources[0].live:  # another topic of that name
                raise TopicNotFound(redrive.dlq_topic)
        if redrive.target_topic is not None:
            self._topics.lives(redrive.target_topic)

    def _stop(self, redrive: Redrive) -> None:
        redrive.is_stopping = True
        if redrive.state == "running" and not redrive.in_hand:
            self._end(redrive, "stopped")

    def _end(self, redrive: Redrive, state: str, error: str = "") -> None:
        if redrive.timer is not None:
            redrive.timer.cancel()
            redrive.timer = None
        redrive.state = state
        redrive.error = error
        redrive.finished_at_ns = self._clock.wall_ns()
        redrive.letters = iter(())
        redrive.ended.resolve(None)

    def _later(self, redrive: Redrive) -> None:
        redrive.timer = self._at(redrive.wait_ns, lambda: self._step(redrive))

    def _at(self, wait_ns: int, callback: Callable[[], None]) -> Timer:
        return self._timers.at(self._clock.monotonic_ns() + max(1, wait_ns), callback)

    def _redrive(self, topic: str, redrive_id: str) -> Redrive:
        redrives = self._redrives.get(_base(topic))
        if redrives is None or redrive_id not in redrives:
            raise NotFound(f"redrive {redrive_id} of {topic}")
        return redrives[redrive_id]

    # --- inside --------------------------------------------------------------------------------

    def _dlq_topics(self) -> Sequence[str]:
        return sorted(topic for topic in self._topics.partition_counts() if _base(topic) != topic)

    def _letters(self, topic: str) -> Sequence[LetterPartition]:
        """The letters of a topic, partition by partition; none if it never had any."""
        dlq_topic = dead_letter_topic(topic)
        if not self._topics.has_topic(dlq_topic):
            if not self._topics.has_topic(topic):
                raise TopicNotFound(topic)
            self._sources.pop(dlq_topic, None)
            return ()
        lives = self._topics.lives(dlq_topic)
        sources = self._sources.get(dlq_topic, ())
        if [source.live for source in sources] != list(lives):
            known = {source.live: source for source in sources}
            make = partial(LetterPartition, topics=self._topics, stretch_bytes=self._config.stretch_bytes)
            sources = [known.get(live) or make(live) for live in lives]
            self._sources[dlq_topic] = sources
        return sources

    def _queue(self, topic: str) -> reports.DeadLetterQueue:
        messages = 0
        times_ns: list[int] = []
        tallies: list[Tally] = []
        left = self._config.counted_max
        for source in self._letters(topic):
            left -= source.count(left) if left > 0 else 0
            self._count_later(source)
            dead = source.dead()
            messages += len(dead)
            times_ns += source.times(dead)
            tallies.append(source.tally(dead))
        return reports.DeadLetterQueue(
            topic,
            dead_letter_topic(topic),
            messages,
            min(times_ns, default=None),
            max(times_ns, default=None),
            _summed([tally.by_reason for tally in tallies]),
            _summed([tally.by_group for tally in tallies]),
            _summed([tally.by_error for tally in tallies]),
        )

    def _count_later(self, source: LetterPartition) -> None:
        """Count what is left, some at every tick."""
        if source.is_counted or source.is_counting or source.live.log.is_closed:
            return
        source.is_counting = True

        def go_on() -> None:
            source.is_counting = False
            if not source.live.log.is_closed:
                with suppress(StorageError):  # who asks next is told
                    source.count(self._config.counted_step)
                    self._count_later(source)

        self._at(1, go_on)


def _base(topic: str) -> str:
    """The topic whose dead letters are meant; a dead-letter topic stands for the one it belongs to."""
    return topic.removesuffix(DLQ_SUFFIX) or topic


def _only(letters: Iterator[Found | None]) -> Iterator[Found]:
    return (found for found in letters if found is not None)


def _fits(message: Message, live: LivePartition) -> bool:
    """Whether the partition takes the message as it will be when it is put back."""
    if len(message.value) > live.log.config.value_bytes_max:
        return False
    if len(message.raw_headers or b"") <= HEADERS_BYTES_MAX - _ROOM_FOR_HEADERS:
        return True
    place = origin_of(message.topic, message.partition, message.offset)
    try:
        encode_headers(redriven_headers(message.headers, place))
    except MessageTooLarge:
        return False
    return True


def _report(found: Found) -> reports.DeadLetter:
    message, letter = found.message, found.letter
    topic, partition, offset = letter.origin or ("", -1, -1)
    record = kernel.select(found.records, BitMap64([message.offset]).to_array(), max_bytes=len(found.records)).records
    return reports.DeadLetter(
        message.partition,
        message.offset,
        letter.reason,
        letter.error,
        letter.group,
        letter.member,
        letter.attempts,
        topic,
        partition,
        offset,
        letter.dead_at_ns,
        letter.redrives,
        bytes(record),
    )


def _summed(counts: Sequence[Mapping[str, int]]) -> dict[str, int]:
    """One table out of those of the partitions, the most frequent first."""
    total: dict[str, int] = {}
    for table in counts:
        for text, count in table.items():
            total[text] = total.get(text, 0) + count
    return dict(sorted(total.items(), key=lambda item: (-item[1], item[0])))
