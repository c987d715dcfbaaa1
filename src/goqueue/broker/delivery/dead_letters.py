"""The verbs about dead letters: counting them, listing them, and redriving them.

    dead letters of X.dlq ──matcher──> loop guard ──> target ──> GroupDelivery.redrive ──> DeadLetterWriter

A redrive only chooses, some dead letters at a time; `DeadLetterWriter` copies each batch in one step. A dead letter
that is being redriven no longer counts as dead, so of two redrives over the same dead letters only one can have it.

Topics may share a dead-letter topic. Each then has the dead letters that name it in `gq-origin`. A topic whose
dead-letter topic has its name, `X` of `X.dlq`, has all that are of no other topic. The name `X.dlq` means the dead
letters of `X`. If `X` has another dead-letter topic now, it means those that were left in `X.dlq`.

A redrive covers the dead letters that exist when it begins. It continues when its last batch is stored, at its rate,
and lets other work run in between. It is in the ledgers of the dead-letter topic (`delivery/redrive_facts.py`): after a
restart it continues where it was, and redrives that have ended stay in the list.
"""

import heapq
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import islice
from math import isfinite
from typing import TypeAlias

from pyroaring import BitMap64

from goqueue.broker.delivery.dead_letter_partition import DeadLetterPartition, FoundDeadLetter
from goqueue.broker.delivery.group_delivery import Copies
from goqueue.broker.delivery.redrive import DeadLettersOf, Redrive, RedriveShare
from goqueue.broker.local_partitions import LocalPartitions
from goqueue.broker.partition.leader import PartitionLeader
from goqueue.broker.partition.ledger import Fact
from goqueue.broker.timers import Timer, Timers
from goqueue.clock import SECOND, Clock
from goqueue.delivery import redrive_facts
from goqueue.delivery.dead_letter import GROUP, origin_of, redriven_headers
from goqueue.delivery.dead_letter_counts import DeadLetterTally
from goqueue.delivery.dead_letter_filter import DeadLetterMatcher, OriginTopics
from goqueue.delivery.redrive_facts import RedriveOrder, RedriveProgress, RedriveState
from goqueue.errors import (
    BrokerUnavailable,
    Conflict,
    GoQueueError,
    InvalidRequest,
    MessageTooLarge,
    NotFound,
    NotLeader,
    StorageError,
    TopicNotFound,
)
from goqueue.record import kernel
from goqueue.record.header import HEADERS_BYTES_MAX
from goqueue.record.headers import PRODUCER, encode_headers
from goqueue.record.message import StoredMessage
from goqueue.runtime.entropy import Entropy
from goqueue.service.dead_letters import DeadLetterList
from goqueue.service.messages import READ_BYTES_MAX
from goqueue.service.pending import Pending, after
from goqueue.topics.config import DLQ_SUFFIX, default_dead_letter_topic
from goqueue.wire import reports

REDRIVE_ID_BYTES = 8
ROUNDS_MAX = 2
"""How many batches, or stretches of the log without any, a redrive handles before it lets other work run."""
LIST_MAX = 10_000
SAMPLE_MAX = 10
RUNNING_MAX = 20
HISTORY_MAX = 100
"""How many ended redrives of a topic are remembered."""
TO_GROUP, TO_ALL = "group", "all"
_ROOM_FOR_HEADERS = 1_024
_LONGEST_IDENTITY = "9" * 60  # of a batch, in the headers of its first record

RESTORE_AGAIN_NS = SECOND // 10


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterLimits:
    """How much is done before other work may run."""

    counted_max: int = 10_000  # that one call may count; the others are counted in later ticks
    counted_step: int = 1_000
    stretch_bytes: int = 256 * 1024  # of the log, read in one go


RedriveBatches: TypeAlias = dict[tuple[DeadLetterPartition, str, int], list[int]]
"""Offsets of dead letters, by where they are and where they go."""


class DeadLetterQueues:
    """The dead letters of one broker."""

    def __init__(
        self,
        topics: LocalPartitions,
        *,
        clock: Clock,
        timers: Timers,
        entropy: Entropy,
        config: DeadLetterLimits | None = None,
    ) -> None:
        self._topics = topics
        self._clock = clock
        self._entropy = entropy
        self._timers = timers
        self._config = config or DeadLetterLimits()
        self._sources: dict[str, Sequence[DeadLetterPartition]] = {}
        self._redrives: dict[str, OrderedDict[str, Redrive]] = {}
        self._unrestored: set[str] = set()  # dead-letter topics with a leader that does not serve yet
        self._is_stopping = False

    def resume(self) -> None:
        """Finish what was under way when the broker stopped, and continue the redrives that were running."""
        for dlq_topic in sorted({self._dead_letters_of(topic).dlq_topic for topic in self._topics_with_queues()}):
            leaders = self._topics.leaders(dlq_topic)
            for leader in leaders:
                if leader.partition.has_ledger:
                    with suppress(StorageError):  # a caller that needs it gets the error
                        self._topics.delivery(leader)
            if any(leader.partition.has_ledger for leader in leaders):
                with suppress(StorageError):
                    self._restore(dlq_topic)

    def _restore(self, dlq_topic: str) -> None:
        """Restore the redrives from the ledgers of a dead-letter topic."""
        sources = self._partitions(dlq_topic)
        chosen = self._topics.chosen_dead_letter_topics()
        orders: list[RedriveOrder] = []
        progress: dict[tuple[str, DeadLetterPartition], RedriveProgress] = {}
        for source in sources:
            for redrive_id, value in source.redrive_facts():
                if isinstance(value, RedriveProgress):
                    progress[redrive_id, source] = value
                else:
                    orders.append(value)
        for order in sorted(orders, key=lambda order: order.started_at_ns):
            topic = order.topic or self._topic_of(dlq_topic)
            queue = DeadLettersOf(topic, dlq_topic, _origins(topic, dlq_topic, chosen))
            redrive = Redrive(queue, order, sources, now_ns=self._clock.monotonic_ns())
            for source, share in redrive.shares.items():
                if (redrive.id, source) in progress:
                    share.resume(progress[redrive.id, source])
            self._redrives.setdefault(topic, OrderedDict())[redrive.id] = redrive
            if redrive.state == "running":
                self._later(redrive)

    def leader_began(self, leader: PartitionLeader) -> None:
        """A partition has a leader again: redrives of its dead letters continue when all partitions have one."""
        if leader.origin.topic not in self._unrestored:
            self._restore_when_led(leader.origin.topic)

    def _restore_when_led(self, dlq_topic: str) -> None:
        self._unrestored.discard(dlq_topic)
        found = self._topics.find(dlq_topic)
        if found is None or found.topic.is_internal or len(found.leaders) < found.partition_count:
            return
        if any(one.partition.has_ledger for one in found.leaders):
            try:
                self._restore(dlq_topic)
            except NotLeader:  # a new leader serves only when its followers have what it has
                self._unrestored.add(dlq_topic)
                self._at(RESTORE_AGAIN_NS, lambda: self._restore_when_led(dlq_topic))
            except StorageError:
                pass  # a caller that needs it gets the error

    def leader_ended(self, leader: PartitionLeader) -> None:
        """A partition has lost its leader: the ledger has what is needed to continue redrives of its dead letters."""
        for redrives in self._redrives.values():
            for redrive in redrives.values():
                if redrive.dlq_topic == leader.origin.topic and redrive.state == "running":
                    redrive.suspend(NotLeader(*leader.origin))

    def stop(self) -> None:
        """Begin no redrive, and no further batch of those that run: the next start continues them."""
        self._is_stopping = True
        for redrives in self._redrives.values():
            for redrive in redrives.values():
                redrive.cancel_timer()

    # --- counting and listing -------------------------------------------------------------------------------

    def queues(self) -> list[reports.DeadLetterQueue]:
        """Every topic that has a dead-letter topic, by name."""
        chosen = self._topics.chosen_dead_letter_topics()
        found = [self._dead_letters_of(topic, chosen) for topic in self._topics_with_queues()]
        served = {queue.dlq_topic for queue in found}
        self._sources = {topic: sources for topic, sources in self._sources.items() if topic in served}
        return [self._report(queue) for queue in found]

    def describe(self, topic: str) -> reports.DeadLetterQueue:
        """The dead letters of a topic in numbers.

        `messages` is exact. If very many dead letters were never counted, the other numbers follow after some ticks.
        """
        found = self._dead_letters_of(topic)
        queue = self._report(found)
        queue.redrives = [redrive.info() for redrive in self._redrives.get(found.topic, {}).values()]
        return queue

    def list(self, topic: str, wanted: reports.DeadLetterFilter, *, skip: int = 0, limit: int = 100) -> DeadLetterList:
        """The dead letters that match, newest last; a page ends early where they are large."""
        if not 1 <= limit <= LIST_MAX:
            raise InvalidRequest(f"invalid limit {limit}: must be 1 to {LIST_MAX}", path="limit")
        if skip < 0:
            raise InvalidRequest(f"invalid skip {skip}: must be 0 or more", path="skip")
        queue = self._dead_letters_of(topic)
        chosen = DeadLetterMatcher(wanted, queue.origins)
        dead_letters = heapq.merge(
            *(_only(source.find(chosen, source.dead())) for source in self._existing_partitions(queue)),
            key=lambda found: (found.message.timestamp_ns, found.message.partition),
        )
        page: DeadLetterList = []
        size = 0
        for found in islice(dead_letters, skip, skip + limit):
            report = _report(found)
            size += len(report.record)
            if page and size > READ_BYTES_MAX:
                break
            page.append(report)
        return page

    # --- redriving --------------------------------------------------------------------------

    def plan(
        self,
        topic: str,
        wanted: reports.DeadLetterFilter,
        *,
        limit: int = 0,
        target_topic: str | None = None,
        max_redrives: int = 3,
        to: str | None = None,
    ) -> reports.RedrivePlan:
        """What a redrive would do now, without doing it."""
        redrive = self._begin(
            topic, wanted, rate=0, limit=limit, target_topic=target_topic, max_redrives=max_redrives, to=to
        )
        sample: list[reports.DeadLetter] = []
        count = 0
        for found in _only(redrive.dead_letters):
            if self._judge(redrive, found) is not None:
                count += 1
                if len(sample) < SAMPLE_MAX:
                    sample.append(_report(found))
                if count == limit:
                    break
        return reports.RedrivePlan(redrive.totals.matched, redrive.totals.skipped_loop, sample)

    def redrive(
        self,
        topic: str,
        wanted: reports.DeadLetterFilter,
        *,
        rate: float = 0,
        limit: int = 0,
        target_topic: str | None = None,
        max_redrives: int = 3,
        to: str | None = None,
    ) -> Pending[reports.RedriveInfo]:
        """Begin to redrive the dead letters that match, oldest first in each partition; answered when that is durable.

        `to` "group" delivers each message only to the group that dead-lettered it, "all" to all groups. The default is
        "group", or "all" where the target is another topic, whose groups have not had the messages.
        `limit` counts those that are redriven. `matched` is how many matched so far: each of them was redriven or
        skipped, or has failed because there is no partition that takes it.
        """
        if self._is_stopping:
            raise BrokerUnavailable("it is stopping")
        redrive = self._begin(
            topic, wanted, rate=rate, limit=limit, target_topic=target_topic, max_redrives=max_redrives, to=to
        )
        stored = self._remember(redrive)
        self._step(redrive)
        info = redrive.info()
        return after(stored, lambda _: info)

    def redrive_info(self, topic: str, redrive_id: str) -> reports.RedriveInfo:
        """The redrive as it is now."""
        return self._redrive(topic, redrive_id).info()

    def stop_redrive(self, topic: str, redrive_id: str) -> Pending[reports.RedriveInfo]:
        """Stop a redrive; answered when its last batch is stored. An ended redrive does not change."""
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
        to: str | None,
    ) -> Redrive:
        queue = self._dead_letters_of(topic)
        if not isfinite(rate) or rate < 0:
            raise InvalidRequest(f"invalid rate {rate}: must be 0 or more messages per second", path="rate")
        if limit < 0:
            raise InvalidRequest(f"invalid limit {limit}: must be 0 or more", path="limit")
        if max_redrives < 0:
            raise InvalidRequest(f"invalid max_redrives {max_redrives}: must be 0 or more", path="max_redrives")
        if to not in (None, TO_GROUP, TO_ALL):
            raise InvalidRequest(f'invalid to {to!r}: must be "group" or "all"', path="to")
        sources = self._existing_partitions(queue)
        if target_topic is not None:
            if target_topic == queue.dlq_topic:
                raise InvalidRequest("invalid target_topic: the dead letters are there already", path="target_topic")
            self._topics.topic(target_topic)
        order = RedriveOrder(
            self._entropy.bytes(REDRIVE_ID_BYTES).hex(),
            wanted,
            rate,
            limit,
            target_topic,
            max_redrives,
            to or (TO_GROUP if target_topic in (None, queue.topic) else TO_ALL),
            self._clock.wall_ns(),
            [source.leader.last_stable_offset for source in sources],
            topic=queue.topic,
        )
        return Redrive(queue, order, sources, now_ns=self._clock.monotonic_ns())

    def _remember(self, redrive: Redrive) -> Pending[None]:
        """Remember a redrive, and forget the oldest that have ended; done when that is durable."""
        served = self._topics.partition_counts()
        self._redrives = {
            topic: redrives
            for topic, redrives in self._redrives.items()
            if topic == redrive.topic or any(other.dlq_topic in served for other in redrives.values())
        }
        redrives = self._redrives.setdefault(redrive.topic, OrderedDict())
        running = [other for other in redrives.values() if other.state == "running"]
        if len(running) >= RUNNING_MAX:
            raise Conflict(f"{RUNNING_MAX} redrives of {redrive.topic} are running already")
        over = [other.id for other in redrives.values() if other.state != "running"]
        forgotten = over[: max(0, len(over) + 1 - HISTORY_MAX)]
        facts: list[Fact] = [(redrive_facts.order_key(redrive_id), None) for redrive_id in forgotten]
        stored: Pending[None] = Pending.of(None)
        if redrive.shares:  # without dead letters there is no ledger, and it ends at once
            facts.append((redrive_facts.order_key(redrive.id), redrive_facts.encode(redrive.order)))
            stored = next(iter(redrive.shares)).write(facts)
        for redrive_id in forgotten:
            del redrives[redrive_id]
        redrives[redrive.id] = redrive
        return stored

    def _step(self, redrive: Redrive) -> None:
        """Continue a redrive until it has to wait, or other work has to run."""
        redrive.timer = None
        if redrive.is_suspended:
            return
        if self._is_stopping and not redrive.is_stopping:
            return  # it continues after the restart
        try:
            for _ in range(ROUNDS_MAX):
                if not self._round(redrive):
                    return
        except GoQueueError as error:
            self._end(redrive, "failed", str(error))
            return
        self._later(redrive)

    def _round(self, redrive: Redrive) -> bool:
        """Redrive a batch; returns whether to continue at once."""
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
            return self._redrive_batches(redrive, batches)
        if is_over:
            self._end(redrive, "done")
        return not is_over

    def _choose(self, redrive: Redrive, allowed: int) -> tuple[RedriveBatches, bool]:
        """The next dead letters, by where they are and where they go; and whether there are no more at all."""
        batches: RedriveBatches = {}
        count = 0
        for found in redrive.dead_letters:
            if found is None:
                return batches, False
            if not found.source.is_dead(found.message.offset):  # another redrive has it
                continue
            target = self._judge(redrive, found)
            if target is not None:
                batches.setdefault((found.source, *target), []).append(found.message.offset)
                count += 1
                if count == allowed:
                    return batches, False
        return batches, True

    def _redrive_batches(self, redrive: Redrive, batches: RedriveBatches) -> bool:
        """Redrive the batches; returns whether that is done already."""
        is_waiting = False

        def copied(share: RedriveShare, offsets: BitMap64, done: Pending[Copies]) -> None:
            if isinstance(share.source.leader.ended, NotLeader):  # `leader_ended` comes later
                redrive.suspend(share.source.leader.ended)
            if redrive.is_suspended:
                return
            redrive.in_hand -= 1
            share.in_hand -= offsets
            self._note_copied(redrive, share, len(offsets), done)
            if is_waiting and not redrive.in_hand:
                self._step(redrive)

        key = redrive_facts.progress_key(redrive.id)
        for (source, _, _), offsets in batches.items():
            redrive.shares[source].in_hand.update(offsets)
        for source in {source: None for source, _, _ in batches}:  # before the batch itself is noted in the same ledger
            source.write([(key, redrive_facts.encode(redrive.shares[source].progress()))], flush=False)
        redrive.in_hand = len(batches)
        to_group = redrive.order.to == TO_GROUP
        for (source, target, partition), offsets in batches.items():
            redrive.spend(len(offsets))
            done = source.redrive(offsets, target, partition, to_group=to_group)
            done.then(partial(copied, redrive.shares[source], BitMap64(offsets)))
        is_waiting = True
        return not redrive.in_hand

    def _note_copied(self, redrive: Redrive, share: RedriveShare, count: int, done: Pending[Copies]) -> None:
        try:
            redriven = len(done.result())
        except TopicNotFound:  # the dead letters stay where they are
            redriven = 0
        except GoQueueError as error:
            redrive.error = str(error)
            redriven = 0
        share.redriven += redriven
        share.failed += count - redriven

    def _judge(self, redrive: Redrive, found: FoundDeadLetter) -> tuple[str, int] | None:
        """Where a dead letter that matches goes, if anywhere."""
        share = redrive.shares[found.source]
        share.handled(found.message.offset)
        if found.dead_letter.redrives >= redrive.max_redrives:
            share.skipped_loop += 1
            return None
        target = self._target(redrive, found)
        if target is None:
            share.failed += 1
        return target

    def _target(self, redrive: Redrive, found: FoundDeadLetter) -> tuple[str, int] | None:
        """The partition that the message comes from, or that of the same number elsewhere, if it takes the message."""
        topic, partition, _ = found.dead_letter.origin or ("", found.message.partition, 0)
        if topic == redrive.dlq_topic:  # a consumer of the dead-letter topic has rejected it
            topic = redrive.topic.removesuffix(DLQ_SUFFIX)
        topic = redrive.target_topic or topic
        if topic not in self._topics.partition_counts():
            return None
        target = self._topics.topic(topic)
        fits = _fits(found.message, target.topic.config.max_message_bytes)
        return (topic, partition % target.partition_count) if fits else None

    def _check_topics(self, redrive: Redrive) -> None:
        """Raise `TopicNotFound` unless the dead-letter topic and the wanted target exist."""
        for source in redrive.shares:
            if source.leader.ended:  # there may be another topic of that name
                raise source.leader.ended
        if redrive.target_topic is not None:
            self._topics.topic(redrive.target_topic)

    def _stop(self, redrive: Redrive) -> None:
        redrive.is_stopping = True
        if redrive.state == "running" and not redrive.in_hand:
            self._end(redrive, "stopped")

    def _end(self, redrive: Redrive, state: RedriveState, error: str = "") -> None:
        redrive.cancel_timer()
        sources = list(redrive.shares)
        redrive.end(state, error, wall_ns=self._clock.wall_ns())
        stored: Pending[None] = Pending.of(None)
        with suppress(GoQueueError):  # the ledger refuses it: the next start continues the redrive
            progress: list[Fact] = [(redrive_facts.progress_key(redrive.id), None)]
            for source in sources:
                source.write(progress, flush=False)
            if sources:
                order = redrive_facts.encode(redrive.order)
                stored = sources[0].write([(redrive_facts.order_key(redrive.id), order)])
        stored.then(lambda _: redrive.ended.resolve(None))

    def _later(self, redrive: Redrive) -> None:
        redrive.timer = self._at(redrive.wait_ns, lambda: self._step(redrive))

    def _at(self, wait_ns: int, callback: Callable[[], None]) -> Timer:
        return self._timers.at(self._clock.monotonic_ns() + max(1, wait_ns), callback)

    def _redrive(self, topic: str, redrive_id: str) -> Redrive:
        redrives = self._redrives.get(self._topic_of(topic))
        if redrives is None or redrive_id not in redrives:
            raise NotFound(f"redrive {redrive_id} of {topic}")
        return redrives[redrive_id]

    # --- inside --------------------------------------------------------------------------------

    def _topics_with_queues(self) -> Sequence[str]:
        """The topics that have a dead-letter topic that exists."""
        served = self._topics.dead_letter_topics()
        own = {self._topic_of(topic) for topic, dlq_topic in served.items() if topic == dlq_topic}
        others = {topic for topic, dlq_topic in served.items() if topic != dlq_topic and dlq_topic in served}
        return sorted(own | others)

    def _topic_of(self, name: str) -> str:
        """The topic whose dead letters are meant: the name of its dead-letter topic means the same."""
        topic = name.removesuffix(DLQ_SUFFIX)
        return topic if topic and self._topics.dead_letter_topic(topic) == name else name

    def _dead_letters_of(self, name: str, chosen: Mapping[str, set[str]] | None = None) -> DeadLettersOf:
        topic = self._topic_of(name)
        dlq_topic = self._topics.dead_letter_topic(topic)
        chosen = self._topics.chosen_dead_letter_topics() if chosen is None else chosen
        return DeadLettersOf(topic, dlq_topic, _origins(topic, dlq_topic, chosen))

    def _existing_partitions(self, queue: DeadLettersOf) -> Sequence[DeadLetterPartition]:
        """The dead letters of a topic, partition by partition; none if it never had any."""
        if not self._topics.has_topic(queue.dlq_topic):
            if not self._topics.has_topic(queue.topic):
                raise TopicNotFound(queue.topic)
            self._sources.pop(queue.dlq_topic, None)
            return ()
        return self._partitions(queue.dlq_topic)

    def _partitions(self, dlq_topic: str) -> Sequence[DeadLetterPartition]:
        leaders = self._topics.leaders(dlq_topic)
        sources = self._sources.get(dlq_topic, ())
        if [source.leader for source in sources] != list(leaders):
            known = {source.leader: source for source in sources}
            make = partial(DeadLetterPartition, topics=self._topics, stretch_bytes=self._config.stretch_bytes)
            sources = [known.get(leader) or make(leader) for leader in leaders]
            self._sources[dlq_topic] = sources
        return sources

    def _report(self, queue: DeadLettersOf) -> reports.DeadLetterQueue:
        messages = 0
        times_ns: list[int] = []
        tallies: list[DeadLetterTally] = []
        left = self._config.counted_max
        for source in self._existing_partitions(queue):
            left -= source.count(left) if left > 0 else 0
            self._count_later(source)
            dead = source.dead(queue.origins)
            messages += len(dead)
            times_ns += source.times(dead)
            tallies.append(source.tally(dead))
        return reports.DeadLetterQueue(
            queue.topic,
            queue.dlq_topic,
            messages,
            min(times_ns, default=None),
            max(times_ns, default=None),
            _summed([tally.by_reason for tally in tallies]),
            _summed([tally.by_group for tally in tallies]),
            _summed([tally.by_error for tally in tallies]),
        )

    def _count_later(self, source: DeadLetterPartition) -> None:
        """Count the rest, some at every tick."""
        if source.is_counted or source.is_counting or source.leader.ended:
            return
        source.is_counting = True

        def go_on() -> None:
            source.is_counting = False
            if source.leader.ended is None:
                with suppress(StorageError):  # the next call gets the error
                    source.count(self._config.counted_step)
                    self._count_later(source)

        self._at(1, go_on)


def _origins(topic: str, dlq_topic: str, chosen: Mapping[str, set[str]]) -> OriginTopics:
    """Which of the dead letters there are those of the topic."""
    if dlq_topic != default_dead_letter_topic(topic):
        return OriginTopics(only=topic)
    return OriginTopics(without=frozenset(chosen.get(dlq_topic, set()) - {topic}))


def _only(dead_letters: Iterator[FoundDeadLetter | None]) -> Iterator[FoundDeadLetter]:
    return (found for found in dead_letters if found is not None)


def _fits(message: StoredMessage, value_bytes_max: int) -> bool:
    """Whether a topic takes the message with the headers that a redrive adds."""
    if len(message.value) > value_bytes_max:
        return False
    if len(message.encoded_headers or b"") <= HEADERS_BYTES_MAX - _ROOM_FOR_HEADERS:
        return True
    place = origin_of(message.topic, message.partition, message.offset)
    try:
        redriven = redriven_headers(message.headers, place, for_group=message.headers.get(GROUP, ""))
        encode_headers({PRODUCER: _LONGEST_IDENTITY, **redriven})
    except MessageTooLarge:
        return False
    return True


def _report(found: FoundDeadLetter) -> reports.DeadLetter:
    message, dead_letter = found.message, found.dead_letter
    topic, partition, offset = dead_letter.origin or ("", -1, -1)
    record = kernel.select(found.records, BitMap64([message.offset]).to_array(), max_bytes=len(found.records)).records
    return reports.DeadLetter(
        message.partition,
        message.offset,
        dead_letter.reason,
        dead_letter.error,
        dead_letter.group,
        dead_letter.member,
        dead_letter.attempts,
        topic,
        partition,
        offset,
        dead_letter.dead_at_ns,
        dead_letter.redrives,
        bytes(record),
        message.topic,
    )


def _summed(counts: Sequence[Mapping[str, int]]) -> dict[str, int]:
    """One table out of those of the partitions, the most frequent first."""
    total: dict[str, int] = {}
    for table in counts:
        for text, count in table.items():
            total[text] = total.get(text, 0) + count
    return dict(sorted(total.items(), key=lambda item: (-item[1], item[0])))
