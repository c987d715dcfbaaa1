"""Recurring messages while the broker runs: the verbs, and a timer that publishes what is due.

    due ──> claim ──> journal ──> publish ──> settle ──> journal
                        ^  |__________|
                        |     refused: again, later
                     a restart continues here

A claim is in the journal before its runs are published, and is published under the schedule's own producer id until it
is settled. So a crash at any point leaves either no claim, and the runs are still due, or one that is published again;
then the log either has its batch and answers so, or stores it. Later writes to the journal only save work.

For each schedule there are three keys: `definition/`, `state/` and `history/`, then the topic and the name. A schedule
exists when its definition does, which is therefore written last and deleted first. The internal topic of the journals
is created with the first schedule. Its partitions are attached and detached (`coordination.py`): a schedule of a
partition that this node does not lead is not here, and its runs are published by the node that does.

Schedules wait in a heap, by the wall clock, which is read once in a while because it may be set. A wall clock that is
set back repeats no run: a run that was published stays so until the times of the schedule change.
"""

import heapq
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass
from itertools import count
from typing import Any, NamedTuple, Protocol, TypeAlias
from zoneinfo import ZoneInfo

import msgspec

from goqueue.backoff import backoff_ns
from goqueue.broker.coordination import SCHEDULES_TOPIC, Journals, partition_of, schedule_key
from goqueue.broker.partition.journal import Journal
from goqueue.broker.timers import Timer, Timers
from goqueue.clock import MS, Clock
from goqueue.delivery.schedules import CatchUp, Claim, Definition, PastRun, Schedule, StoredRun, Zones
from goqueue.errors import (
    AlreadyExists,
    BrokerUnavailable,
    Conflict,
    Forbidden,
    GoQueueError,
    InvalidConfig,
    InvalidRequest,
    MessageTooLarge,
    NotFound,
    PartitionNotFound,
    ProducerFenced,
    TopicNotFound,
    TopicQuarantined,
)
from goqueue.record import kernel
from goqueue.service.messages import ProducerEpoch, Stored
from goqueue.service.new_message import NewMessage
from goqueue.service.pending import Pending, chained, when_all_are_done
from goqueue.times import NS_MAX
from goqueue.wire.partitioning import partition_of_key
from goqueue.wire.reports import ScheduleInfo, ScheduleRun

_DEFINITION = b"definition/"
_STATE = b"state/"
_HISTORY = b"history/"
KEY_PREFIXES = (_DEFINITION, _STATE, _HISTORY)
"""Of the facts in `__schedules`; the key of a schedule follows."""
STALE_MAX = 64
"""How many outdated entries the heap may hold, beside two per schedule, before they are removed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleConfig:
    """How schedules are run."""

    schedules_max: int = 100_000  # all of them are in memory
    steps_per_tick_max: int = 250  # schedules handled in one tick, so that other work does not wait for long
    on_time_ms: int = 5_000  # a run that is at most this late was not missed: a restart takes as long
    wake_ms_max: int = 1_000  # how long a jump of the wall clock may go unnoticed
    retry_initial_ms: int = 1_000
    retry_max_ms: int = 60_000
    notes_max: int = 500  # schedules whose histories go to the journal in one batch
    waiting_max: int = 100  # runs out of turn that wait for one schedule

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if getattr(self, name) < 1:
                raise InvalidConfig(name, getattr(self, name), "must be positive")


class TopicFacts(NamedTuple):
    """What schedules need to know of a topic. A later topic of the same name has another id."""

    topic_id: str
    partition_count: int
    value_bytes_max: int
    partitioner: str


class PublishMessages(Protocol):
    """`Service.publish_messages`."""

    def __call__(
        self,
        topic: str,
        messages: Sequence[NewMessage],
        *,
        acks: str | None = None,
        producer: ProducerEpoch | None = None,
        sequence: int | None = None,
    ) -> Pending[list[Stored | GoQueueError]]: ...


class _ScheduleSlot:
    """A schedule and what is under way with it."""

    __slots__ = ("attempts", "claimed", "error", "journal", "manual", "retry", "schedule", "version", "waiting")

    def __init__(self, schedule: Schedule, journal: Journal) -> None:
        self.schedule = schedule
        self.journal = journal
        self.version = 0  # of its place in the heap
        self.claimed: Claim | None = schedule.claim  # the claim that is in the journal
        self.attempts = 0
        self.error: GoQueueError | None = None  # why the claim waits
        self.retry: Timer | None = None
        self.manual: Pending[ScheduleInfo] | None = None  # the answer to the run that is claimed
        self.waiting: deque[Pending[ScheduleInfo]] = deque()  # answers to runs that wait for the claim

    @property
    def key(self) -> bytes:
        return schedule_key(self.schedule.topic, self.schedule.name).encode()

    def give_up(self, error: GoQueueError) -> None:
        """Fail the runs that were asked for."""
        asked, self.manual = self.manual, None
        waiting, self.waiting = self.waiting, deque()
        for pending in (*([asked] if asked else []), *waiting):
            pending.fail(error)


_ScheduleSlots: TypeAlias = list[_ScheduleSlot]
_Results: TypeAlias = list[Stored | GoQueueError]
_Infos: TypeAlias = list[ScheduleInfo]


def load_zone(name: str) -> ZoneInfo:
    """The time zone of that name, from the system or from the package tzdata."""
    return ZoneInfo(name)


class Schedules:
    """All schedules of a node. Nothing is published before the first tick of the timers."""

    def __init__(
        self,
        journals: Journals,
        *,
        publish: PublishMessages,
        topic_facts: Callable[[str], TopicFacts],
        init_producer: Callable[[], ProducerEpoch],
        clock: Clock,
        timers: Timers,
        zones: Zones = load_zone,
        config: ScheduleConfig | None = None,
    ) -> None:
        self._journals = journals
        self._publish = publish
        self._topic_facts = topic_facts
        self._init_producer = init_producer
        self._clock = clock
        self._timers = timers
        self._zones = zones
        self._config = config or ScheduleConfig()
        self._topics: dict[str, dict[str, _ScheduleSlot]] = {}
        self._count = 0
        self._heap: list[tuple[int, int, int, _ScheduleSlot]] = []
        self._order = count()
        self._timer: Timer | None = None
        self._timer_ns = 0
        self._unfinished: _ScheduleSlots = []  # claims from before a restart
        self._unnoted: dict[_ScheduleSlot, None] = {}
        self._noting = False
        self._stopped = False

    def attach(self, journal: Journal) -> None:
        """Restore the schedules of a partition from its journal."""
        self._load(journal)
        self._arm()

    def detach(self, partition: int, error: GoQueueError) -> None:
        """Forget the schedules of a partition. A claim that is open is published by its next coordinator."""
        for slots in list(self._topics.values()):
            for slot in list(slots.values()):
                if slot.journal.partition == partition:
                    self._remove(slot, error)

    # --- verbs ---------------------------------------------------------------------------------

    def create(
        self,
        topic: str,
        name: str,
        message: NewMessage,
        *,
        cron: str | None = None,
        every_ns: int | None = None,
        timezone: str = "UTC",
        catch_up: str = CatchUp.SKIP,
        start_ns: int | None = None,
        end_ns: int | None = None,
        delay_ns: int | None = None,
        ttl_ns: int | None = None,
        paused: bool = False,
    ) -> Pending[ScheduleInfo]:
        """A new schedule, once it is durable. Delay and TTL count from the moment a run is published."""
        self._topic_facts(topic)
        definition = Definition(
            name=name,
            cron=cron,
            every_ns=every_ns,
            timezone=timezone,
            catch_up=catch_up,
            start_ns=start_ns,
            end_ns=end_ns,
            delay_ns=delay_ns,
            ttl_ns=ttl_ns,
            **_message_fields(message),
        )
        key = schedule_key(topic, name)
        journal = self._journals.find(key)
        if journal is not None:
            return self._create(journal, topic, definition, is_paused=paused)
        return chained(
            self._journals.open(key), lambda journal: self._create(journal, topic, definition, is_paused=paused)
        )

    def _create(
        self, journal: Journal, topic: str, definition: Definition, *, is_paused: bool
    ) -> Pending[ScheduleInfo]:
        facts, name = self._topic_facts(topic), definition.name
        schedule = Schedule(
            definition,
            topic=topic,
            topic_id=facts.topic_id,
            producer_id=self._init_producer().producer_id,
            zones=self._zones,
            now_ns=self._clock.wall_ns(),
            paused=is_paused,
        )
        _check_message(definition, topic, facts)
        if name in self._topics.get(topic, ()):
            raise AlreadyExists("schedule", name)
        if self._count >= self._config.schedules_max:
            raise Conflict(f"there are {self._count} schedules already, which is the most there may be")
        slot = _ScheduleSlot(schedule, journal)
        written = journal.put(
            {
                _HISTORY + slot.key: None,
                _STATE + slot.key: schedule.kept_state(),
                _DEFINITION + slot.key: schedule.kept_definition(),
            }
        )
        self._add(slot)
        self._push(slot)
        return _after(written, lambda: _info(schedule))

    def list(self, topic: str) -> _Infos:
        """All schedules of the topic, by name, without their histories."""
        self._topic_facts(topic)
        return [_info(slot.schedule, history=False) for _, slot in sorted(self._topics.get(topic, {}).items())]

    def get(self, topic: str, name: str) -> ScheduleInfo:
        """The schedule as it is now, with its last runs, the oldest first."""
        return _info(self._slot(topic, name).schedule)

    def alter(self, topic: str, name: str, changes: Mapping[str, object]) -> Pending[ScheduleInfo]:
        """Change any of the arguments of `create`; all of them or, if it raises, none.

        A cron text replaces an interval and the other way round. Where the times change, they count from now on.
        """
        slot = self._slot(topic, name)
        altered = _altered(slot.schedule.definition, changes)
        altered.validate()
        _check_message(altered, topic, self._topic_facts(topic))
        paused = changes.get("paused", slot.schedule.paused)
        if not isinstance(paused, bool):
            raise InvalidRequest("invalid paused: must be true or false", path="paused")
        now_ns = self._clock.wall_ns()

        def change(schedule: Schedule) -> None:
            schedule.alter(altered, zones=self._zones, now_ns=now_ns)
            if paused:
                schedule.pause()
            else:
                schedule.resume(now_ns=now_ns)

        return self._change(slot, change)

    def pause(self, topic: str, name: str) -> Pending[ScheduleInfo]:
        """Publish nothing until the schedule is resumed."""
        return self._change(self._slot(topic, name), Schedule.pause)

    def resume(self, topic: str, name: str) -> Pending[ScheduleInfo]:
        """Continue from now on; runs that were due while it was paused are not caught up."""
        now_ns = self._clock.wall_ns()
        return self._change(self._slot(topic, name), lambda schedule: schedule.resume(now_ns=now_ns))

    def delete(self, topic: str, name: str) -> Pending[None]:
        slot = self._slot(topic, name)
        written = slot.journal.put(_tombstones([slot]))
        self._remove(slot, NotFound(f"schedule {name}"))
        return written

    def run(self, topic: str, name: str) -> Pending[ScheduleInfo]:
        """Publish once now, paused or not; done when it is stored. A refused run is not tried again."""
        slot = self._slot(topic, name)
        if slot.error:
            raise slot.error
        pending: Pending[ScheduleInfo] = Pending()
        if slot.schedule.claim:
            if len(slot.waiting) >= self._config.waiting_max:
                raise Conflict(f"{len(slot.waiting)} runs of the schedule {name} are waiting already")
            slot.waiting.append(pending)
        else:
            self._run_now(slot, pending)
        return pending

    def topic_deleted(self, topic: str) -> None:
        """The topic was deleted, and its schedules with it. If the journal refuses that, the next attach finds out."""
        slots = [*self._topics.get(topic, {}).values()]
        for slot in slots:
            self._remove(slot, NotFound(f"schedule {slot.schedule.name}"))
        for journal, some in _by_journal(slots):
            with suppress(GoQueueError):
                journal.put(_tombstones(some))

    def stop(self) -> None:
        """Begin nothing more. Claims that are open are published after the next start."""
        self._stopped = True
        for slots in self._topics.values():
            for slot in slots.values():
                slot.give_up(BrokerUnavailable("it is stopping"))

    def __len__(self) -> int:
        return self._count

    # --- time ----------------------------------------------------------------------------------

    def _wake(self) -> None:
        self._timer = None
        if self._stopped:
            return
        unfinished, self._unfinished = self._unfinished, []
        now_ns = self._clock.wall_ns()
        begun: _ScheduleSlots = []
        for _ in range(self._config.steps_per_tick_max):
            if not self._heap or self._heap[0][0] > now_ns:
                break
            _, version, _, slot = heapq.heappop(self._heap)
            if version == slot.version and not slot.schedule.claim:
                self._look_at(slot, now_ns, begun)
        self._begin(unfinished)
        self._begin(begun)
        self._note()
        self._arm()

    def _look_at(self, slot: _ScheduleSlot, now_ns: int, begun: _ScheduleSlots) -> None:
        schedule = slot.schedule
        try:
            partition = self._partition(schedule)
        except TopicNotFound:
            self.topic_deleted(schedule.topic)
            return
        missed = schedule.missed
        if schedule.begin_due(now_ns=now_ns, partition=partition, on_time_ns=self._config.on_time_ms * MS):
            begun.append(slot)
        else:
            self._push(slot)
        if schedule.missed != missed:
            self._unnoted[slot] = None

    def _arm(self) -> None:
        """Set the timer for the next schedule that is due, but early enough to notice that the clock was set."""
        if self._stopped or not (self._heap or self._unfinished or self._unnoted):
            return
        wait_ns = self._config.wake_ms_max * MS
        if self._heap:
            wait_ns = min(wait_ns, self._heap[0][0] - self._clock.wall_ns())
        at_ns = self._clock.monotonic_ns() + (0 if self._unfinished else max(wait_ns, MS))
        if self._timer:
            if self._timer_ns <= at_ns:
                return
            self._timer.cancel()
        self._timer_ns = at_ns
        self._timer = self._timers.at(at_ns, self._wake)

    def _push(self, slot: _ScheduleSlot) -> None:
        """Put the schedule into the heap, for its next run."""
        slot.version += 1
        if slot.schedule.next_at_ns is not None and not slot.schedule.claim:
            heapq.heappush(self._heap, (slot.schedule.next_at_ns, slot.version, next(self._order), slot))
        if len(self._heap) > 2 * self._count + STALE_MAX:
            self._heap = [entry for entry in self._heap if entry[1] == entry[3].version]
            heapq.heapify(self._heap)
        self._arm()

    # --- runs ----------------------------------------------------------------------------------

    def _begin(self, slots: Sequence[_ScheduleSlot]) -> None:
        """Write the claims to the journal, then publish them."""
        if self._stopped:
            return
        unwritten = [slot for slot in slots if slot.claimed is not slot.schedule.claim]
        for slot in slots:
            if slot.claimed is slot.schedule.claim:
                self._publish_claim(slot)
        for journal, some in _by_journal(unwritten):
            self._claim(journal, some)

    def _claim(self, journal: Journal, slots: Sequence[_ScheduleSlot]) -> None:
        claims = [(slot, slot.schedule.claim) for slot in slots]
        try:
            written = journal.put({_STATE + slot.key: slot.schedule.kept_state() for slot in slots})
        except GoQueueError as error:
            for slot in slots:
                self._refused(slot, error)
            return

        def claimed(pending: Pending[None]) -> None:
            error = _error_of(pending)
            for slot, claim in claims:
                if slot.schedule.claim is not claim or self._is_gone(slot):
                    continue
                if error:
                    self._refused(slot, error)
                else:
                    slot.claimed = claim
                    self._publish_claim(slot)

        written.then(claimed)

    def _publish_claim(self, slot: _ScheduleSlot) -> None:
        schedule, claim = slot.schedule, slot.schedule.claim
        if self._is_gone(slot) or self._stopped:
            return
        assert claim
        message = _message(schedule.definition, claim.partition, self._clock.wall_ns())
        try:
            published = self._publish(
                schedule.topic,
                [message] * len(claim.due),
                acks="all",
                producer=ProducerEpoch(schedule.producer_id, claim.number),
                sequence=0,
            )
        except GoQueueError as error:
            self._refused(slot, error)
            return

        def stored(pending: Pending[_Results]) -> None:
            if schedule.claim is not claim or self._is_gone(slot):
                return
            error = _error_of(pending)
            results = [] if error else pending.result()
            found = [StoredRun(result.offset, result.timestamp_ns) for result in results if isinstance(result, Stored)]
            if not error and len(found) == len(claim.due):
                schedule.settle(found, now_ns=self._clock.wall_ns())
                self._settled(slot, None)
            else:
                self._refused(slot, error or next(one for one in results if isinstance(one, GoQueueError)))

        published.then(stored)

    def _refused(self, slot: _ScheduleSlot, error: GoQueueError) -> None:
        """The claim was refused: it is not in the log, or that is not known."""
        schedule, claim = slot.schedule, slot.schedule.claim
        assert claim
        if isinstance(error, TopicNotFound):
            self.topic_deleted(schedule.topic)
        elif isinstance(error, ProducerFenced):
            schedule.settle_fenced(newest=error.current_epoch, now_ns=self._clock.wall_ns())
            self._settled(slot, None)
        elif error.retryable and not claim.is_manual:
            schedule.note_error(str(error))
            slot.error = error
            slot.attempts += 1
            wait_ns = backoff_ns(
                slot.attempts,
                initial_ns=self._config.retry_initial_ms * MS,
                max_ns=self._config.retry_max_ms * MS,
                jitter=0.0,
            )
            slot.retry = self._timers.at(self._clock.monotonic_ns() + wait_ns, lambda: self._begin([slot]))
            self._unnoted[slot] = None
            self._arm()
        else:
            schedule.fail(str(error))
            self._settled(slot, error)

    def _settled(self, slot: _ScheduleSlot, error: GoQueueError | None) -> None:
        """The claim is settled; begin the next run that waits."""
        slot.claimed = slot.error = slot.retry = None
        slot.attempts = 0
        self._unnoted[slot] = None
        self._note()
        asked, slot.manual = slot.manual, None
        if slot.waiting:
            self._run_now(slot, slot.waiting.popleft())
        else:
            self._push(slot)
        if asked and error:
            asked.fail(error)
        elif asked:
            asked.resolve(_info(slot.schedule))

    def _run_now(self, slot: _ScheduleSlot, asked: Pending[ScheduleInfo]) -> None:
        schedule = slot.schedule
        try:
            partition = self._partition(schedule)
        except TopicNotFound as error:
            asked.fail(error)
            self.topic_deleted(schedule.topic)
            return
        schedule.begin_now(now_ns=self._clock.wall_ns(), partition=partition)
        slot.manual = asked
        self._begin([slot])

    def _note(self) -> None:
        """Write outcomes to the journal, many at a time; while one write is under way, the next ones gather."""
        if self._noting or not self._unnoted or self._stopped:
            return
        written: list[Pending[None]] = []
        for journal, slots in _by_journal(list(self._unnoted)[: self._config.notes_max]):
            facts: dict[bytes, bytes | None] = {}
            for slot in slots:
                facts[_HISTORY + slot.key] = slot.schedule.kept_history()
                facts[_STATE + slot.key] = slot.schedule.kept_state()
            try:
                written.append(journal.put(facts))
            except GoQueueError:
                continue  # the next tick tries again
            for slot in slots:
                del self._unnoted[slot]
        if not written:
            return
        self._noting = True

        def noted(_: Pending[None]) -> None:
            self._noting = False
            self._note()

        when_all_are_done(written).then(noted)

    # --- inside --------------------------------------------------------------------------------

    def _change(self, slot: _ScheduleSlot, change: Callable[[Schedule], None]) -> Pending[ScheduleInfo]:
        """Write a change and make it; if it cannot be made or written, it raises and nothing has changed."""
        changed = copy(slot.schedule)
        change(changed)
        written = slot.journal.put(
            {_STATE + slot.key: changed.kept_state(), _DEFINITION + slot.key: changed.kept_definition()}
        )
        change(slot.schedule)
        self._push(slot)
        return _after(written, lambda: _info(slot.schedule))

    def _slot(self, topic: str, name: str) -> _ScheduleSlot:
        self._topic_facts(topic)
        slot = self._topics.get(topic, {}).get(name)
        if slot is None:
            self._journals.find(schedule_key(topic, name))
            raise NotFound(f"schedule {name}")
        return slot

    def _partition(self, schedule: Schedule) -> int:
        """Where the runs go: as the definition says, else by the key, else by the name."""
        definition = schedule.definition
        facts = self._topic_facts(schedule.topic)
        if definition.partition is not None:
            return definition.partition
        key = definition.name.encode() if definition.key is None else definition.key
        return partition_of_key(key, facts.partition_count, facts.partitioner)

    def _is_gone(self, slot: _ScheduleSlot) -> bool:
        return self._topics.get(slot.schedule.topic, {}).get(slot.schedule.name) is not slot

    def _add(self, slot: _ScheduleSlot) -> None:
        self._topics.setdefault(slot.schedule.topic, {})[slot.schedule.name] = slot
        self._count += 1

    def _remove(self, slot: _ScheduleSlot, error: GoQueueError) -> None:
        schedule = slot.schedule
        del self._topics[schedule.topic][schedule.name]
        if not self._topics[schedule.topic]:
            del self._topics[schedule.topic]
        self._count -= 1
        slot.version += 1
        if slot.retry:
            slot.retry.cancel()
        self._unnoted.pop(slot, None)
        slot.give_up(error)

    def _load(self, journal: Journal) -> None:
        facts = journal.load()
        deleted: dict[bytes, bytes | None] = {}
        for key, definition in facts.items():
            if not key.startswith(_DEFINITION):
                if not key.startswith((_STATE, _HISTORY)):
                    journal.pass_over(key, "no such kind of fact")
                continue
            name = key.removeprefix(_DEFINITION)
            try:
                slot = _ScheduleSlot(self._restored(name, definition, facts, journal), journal)
                if slot.key != name:
                    raise ValueError(f"it is the schedule {slot.key!r}")
                if partition_of(name.decode(), SCHEDULES_TOPIC) != journal.partition:
                    raise ValueError("the schedule belongs to another partition")
            except (
                Exception
            ) as error:  # a damaged disk holds bytes of any kind; one bad schedule must not stop the others
                journal.pass_over(key, error)
                continue
            try:
                has_topic = self._has_topic(slot.schedule)
            except TopicQuarantined:  # the schedule is kept until a start finds its topic again
                continue
            if has_topic:
                self._add(slot)
                if slot.schedule.claim:
                    self._unfinished.append(slot)
                else:
                    self._push(slot)
            else:
                deleted |= _tombstones([slot])
        with suppress(GoQueueError):
            journal.put(deleted)

    def _restored(self, name: bytes, definition: bytes, facts: Mapping[bytes, bytes], journal: Journal) -> Schedule:
        """The schedule, without its history if that cannot be decoded. Without its state it would repeat runs, so a
        schedule without state is refused.
        """
        state, history = facts.get(_STATE + name), facts.get(_HISTORY + name)
        try:
            return Schedule.restore(definition, state, history, zones=self._zones)
        except msgspec.DecodeError as error:
            restored = Schedule.restore(definition, state, None, zones=self._zones)
            journal.pass_over(_HISTORY + name, error)
            return restored

    def _has_topic(self, schedule: Schedule) -> bool:
        try:
            return self._topic_facts(schedule.topic).topic_id == schedule.topic_id
        except (TopicNotFound, Forbidden):
            return False


def _info(schedule: Schedule, *, history: bool = True) -> ScheduleInfo:
    definition = schedule.definition
    return ScheduleInfo(
        name=schedule.name,
        topic=schedule.topic,
        cron=definition.cron,
        every_ns=definition.every_ns,
        timezone=definition.timezone,
        catch_up=definition.catch_up,
        paused=schedule.paused,
        next_at_ns=schedule.next_at_ns,
        last_at_ns=schedule.last_at_ns,
        runs=schedule.runs,
        missed=schedule.missed,
        created_at_ns=schedule.created_at_ns,
        history=[_run_info(run) for run in schedule.history] if history else [],
    )


def _run_info(run: PastRun) -> ScheduleRun:
    offset = -1 if run.offset is None else run.offset
    return ScheduleRun(run.due_at_ns, run.published_at_ns or 0, run.partition, offset, run.error or "")


def _message_fields(message: NewMessage) -> dict[str, Any]:
    """What a definition takes from a message. Its times do not recur."""
    if message.deliver_at_ns is not None:
        raise InvalidRequest("a recurring message has a delay, not a time of delivery", path="deliver_at")
    if message.expires_at_ns is not None:
        raise InvalidRequest("a recurring message has a ttl, not a time at which it expires", path="expires_at")
    if message.created_at_ns is not None:
        raise InvalidRequest("a recurring message is made anew for each run", path="created_at")
    kernel.encode([message.value], keys=[message.key], headers=[message.headers])
    return {
        "value": message.value,
        "key": message.key,
        "headers": {
            name: value.encode(errors="surrogateescape") if isinstance(value, str) else value
            for name, value in (message.headers or {}).items()
        },
        "partition": message.partition,
        "priority": message.priority,
    }


def _message(definition: Definition, partition: int, now_ns: int) -> NewMessage:
    delay_ns, ttl_ns = definition.delay_ns, definition.ttl_ns
    return NewMessage(
        definition.value,
        definition.key,
        definition.headers or None,
        partition,
        definition.priority,
        min(now_ns + delay_ns, NS_MAX) if delay_ns else None,
        None if ttl_ns is None else min(now_ns + ttl_ns, NS_MAX),
    )


def _check_message(definition: Definition, topic: str, facts: TopicFacts) -> None:
    """Raise what a publish of the message would be refused with."""
    if definition.partition is not None and definition.partition >= facts.partition_count:
        raise PartitionNotFound(topic, definition.partition)
    size = len(definition.value or b"")
    if size > facts.value_bytes_max:
        raise MessageTooLarge("value", size, facts.value_bytes_max)


def _altered(definition: Definition, changes: Mapping[str, object]) -> Definition:
    fields = {name: value for name, value in changes.items() if name not in ("paused", "message")}
    if fields.get("name", definition.name) != definition.name:
        raise InvalidRequest("invalid name: a schedule keeps its name", path="name")
    current = {name: getattr(definition, name) for name in Definition.__struct_fields__}
    unknown = fields.keys() - current.keys()
    if unknown:
        raise InvalidRequest(f"there is no field {min(unknown)}", path=min(unknown))
    if fields.get("cron") is not None:
        fields.setdefault("every_ns", None)
    elif fields.get("every_ns") is not None:
        fields.setdefault("cron", None)
    message = changes.get("message")
    if isinstance(message, NewMessage):
        fields |= _message_fields(message)
    try:
        return msgspec.convert({**current, **fields}, Definition)
    except msgspec.ValidationError as error:
        raise InvalidRequest(str(error)) from None


def _by_journal(slots: Iterable[_ScheduleSlot]) -> Iterable[tuple[Journal, _ScheduleSlots]]:
    found: dict[Journal, _ScheduleSlots] = {}
    for slot in slots:
        found.setdefault(slot.journal, []).append(slot)
    return found.items()


def _tombstones(slots: Iterable[_ScheduleSlot]) -> dict[bytes, bytes | None]:
    return {prefix + slot.key: None for slot in slots for prefix in (_DEFINITION, _STATE, _HISTORY)}


def _after(written: Pending[None], answer: Callable[[], ScheduleInfo]) -> Pending[ScheduleInfo]:
    pending: Pending[ScheduleInfo] = Pending()

    def done(outcome: Pending[None]) -> None:
        error = _error_of(outcome)
        if error:
            pending.fail(error)
        else:
            pending.resolve(answer())

    written.then(done)
    return pending


def _error_of(pending: Pending[Any]) -> GoQueueError | None:
    try:
        pending.result()
    except GoQueueError as error:
        return error
    return None
