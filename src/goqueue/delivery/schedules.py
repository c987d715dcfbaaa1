"""Recurring messages: due times, missed runs, and the next run.

A `RunTimes` turns a cron expression or an interval into times. cronsim finds the local times that match; a time zone
maps them to UTC. When daylight saving time starts or ends:

    a local time that is skipped     runs at the first instant after the gap
    a local time that comes twice    runs the first time; a run of every hour runs in both hours

So a daily run is neither lost nor doubled, and a run of every five minutes does not stop for an hour. Zones are passed
in, since loading one reads a file.

A `Schedule` has run times, a message and its history. All due times up to `cursor_ns` are handled. Later ones are taken
as a `Claim`: these runs, with this number. The number is the epoch of the schedule's own producer id, and the runs of a
claim are one batch. If the caller stores the claim before it publishes, and publishes it again until it is settled,
each run is in the log once, because the log recognizes a batch that it has. There is one claim at a time.

The catch-up policy is for runs that were missed because no broker was running: `skip` counts them, `once` publishes one
run for all of them, `all` publishes each.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta, tzinfo
from enum import StrEnum
from itertools import takewhile
from typing import Annotated, Final, NamedTuple, Self

import msgspec
from cronsim import CronSim, CronSimError

from goqueue.errors import InvalidMessage, InvalidPartition, InvalidRequest, MessageTooLarge
from goqueue.record.header import Priority
from goqueue.record.headers import RESERVED_PREFIX
from goqueue.times import NS_MAX, format_duration

HISTORY_MAX: Final = 100
"""The number of past runs that are remembered."""
CLAIM_MAX: Final = 1_000
"""The most due times that are handled in one step; later ones wait for the next step."""
CLAIM_BYTES_MAX: Final = 4 * 1024 * 1024
"""A claim is one batch, of which memory has to hold a few copies."""
VALUE_BYTES_MAX: Final = 1024 * 1024
"""A schedule is stored with its message, which is written again with each change."""
EVERY_NS_MIN: Final = 1_000_000_000
NAME_MAX: Final = 255
CRON_TEXT_MAX: Final = 256

FIELDS: Final = ("minute", "hour", "day of month", "month", "day of week")
ALIASES: Final = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
ORIGIN: Final = "gq-origin"

_SECOND = 1_000_000_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LOCAL_EPOCH = datetime(1970, 1, 1)
_YEAR_MAX = 2261  # the last whole year of 64 bits of nanoseconds

Zones = Callable[[str], tzinfo]
"""The time zone of that name; raises LookupError, ValueError or OSError if there is none."""


class CatchUp(StrEnum):
    """The policy for runs that were missed because no broker was running."""

    SKIP = "skip"
    ONCE = "once"
    ALL = "all"


# --- when ------------------------------------------------------------------------------------------


class RunTimes:
    """The instants at which a schedule is due, in nanoseconds since 1970."""

    __slots__ = ("_anchor_ns", "_cron", "_end_ns", "_every_ns", "_is_hourly", "_start_ns", "_zone")

    def __init__(
        self,
        *,
        cron: str | None,
        every_ns: int | None,
        zone: tzinfo = UTC,
        anchor_ns: int = 0,
        start_ns: int | None = None,
        end_ns: int | None = None,
    ) -> None:
        assert (cron is None) != (every_ns is None)
        self._cron = cron
        self._every_ns = every_ns
        self._zone = zone
        self._is_hourly = cron is not None and len(CronSim(cron, _LOCAL_EPOCH).hours) == 24
        self._anchor_ns = anchor_ns if start_ns is None else start_ns
        self._start_ns = anchor_ns + 1 if start_ns is None and every_ns is not None else start_ns
        self._end_ns = NS_MAX if end_ns is None else min(end_ns, NS_MAX)

    @classmethod
    def never(cls) -> "RunTimes":
        """A plan that is never due."""
        return cls(cron=None, every_ns=EVERY_NS_MIN, end_ns=-1)

    def next_after(self, ns: int) -> int | None:
        """The first instant after that one, if there is one."""
        return next(self._instants(ns), None)

    def take(self, after_ns: int, through_ns: int, *, limit: int) -> tuple[list[int], int | None]:
        """The instants in (after_ns, through_ns], at most `limit`, and the next one after them."""
        taken: list[int] = []
        for ns in self._instants(after_ns):
            if ns > through_ns or len(taken) == limit:
                return taken, ns
            taken.append(ns)
        return taken, None

    def _instants(self, after_ns: int) -> Iterator[int]:
        if self._start_ns is not None:
            after_ns = max(after_ns, self._start_ns - 1)
        instants = self._of_cron(after_ns) if self._every_ns is None else self._of_interval(after_ns, self._every_ns)
        return takewhile(lambda ns: ns <= self._end_ns, instants)

    def _of_interval(self, after_ns: int, every_ns: int) -> Iterator[int]:
        steps = (after_ns - self._anchor_ns) // every_ns + 1
        return iter(range(self._anchor_ns + steps * every_ns, NS_MAX, every_ns))

    def _of_cron(self, after_ns: int) -> Iterator[int]:
        """Matching local times as instants; in a repeated hour, those of the second pass come last."""
        assert self._cron is not None
        last_ns = after_ns
        second_pass: list[int] = []
        for local in CronSim(self._cron, self._search_from(after_ns)):
            if local.year > _YEAR_MAX:
                break
            first_ns, again_ns = self._when(local)
            found = [first_ns]
            if again_ns is None:
                found = [*second_pass, first_ns]
                second_pass.clear()
            elif self._is_hourly:
                second_pass.append(again_ns)
            for ns in found:
                if ns > last_ns:
                    last_ns = ns
                    yield ns
        yield from (ns for ns in second_pass if ns > last_ns)

    def _search_from(self, after_ns: int) -> datetime:
        """The local time at the instant; early enough not to miss the second pass through a doubled hour."""
        local = (_EPOCH + timedelta(seconds=after_ns // _SECOND)).astimezone(self._zone)
        doubled = _offset(local.replace(fold=0)) - _offset(local.replace(fold=1))
        if local.fold == 0 and doubled > timedelta() and self._is_hourly:
            local -= doubled
        return local.replace(tzinfo=None, fold=0)

    def _when(self, local: datetime) -> tuple[int, int | None]:
        """The instant of a local time in the zone, and the second one if the hour is repeated."""
        before = _offset(local.replace(tzinfo=self._zone, fold=0))
        after = _offset(local.replace(tzinfo=self._zone, fold=1))
        ns = (local - _LOCAL_EPOCH) // timedelta(seconds=1) * _SECOND
        if before == after:
            return ns - _ns(before), None
        if before > after:
            return ns - _ns(before), ns - _ns(after)
        return self._change(ns - _ns(after), ns - _ns(before), after), None

    def _change(self, low_ns: int, high_ns: int, after: timedelta) -> int:
        """The first instant after a change of the clocks, to the second."""
        low, high = low_ns // _SECOND, high_ns // _SECOND
        while low < high:
            middle = (low + high) // 2
            if _offset((_EPOCH + timedelta(seconds=middle)).astimezone(self._zone)) == after:
                high = middle
            else:
                low = middle + 1
        return low * _SECOND


def _offset(moment: datetime) -> timedelta:
    offset = moment.utcoffset()
    assert offset is not None
    return offset


def _ns(delta: timedelta) -> int:
    return delta // timedelta(microseconds=1) * 1_000


# --- definitions -----------------------------------------------------------------------------------


class Definition(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A message that is published periodically. A value of None is a tombstone, an empty key is no key.

    `delay_ns` and `ttl_ns` count from the moment at which a run is published. `end_ns` is the last instant that counts.
    """

    name: str
    cron: str | None = None
    every_ns: int | None = None
    timezone: str = "UTC"
    catch_up: str = CatchUp.SKIP
    start_ns: int | None = None
    end_ns: int | None = None
    value: bytes | None
    key: bytes | None = None
    headers: dict[str, bytes | None] = {}  # text as UTF-8
    partition: int | None = None
    priority: int = Priority.NORMAL
    delay_ns: int | None = None
    ttl_ns: int | None = None

    def plan(self, zones: Zones, *, anchor_ns: int) -> RunTimes:
        """The run times; an interval counts from the start, else from the anchor. Raises `InvalidRequest`."""
        if self.cron is not None and self.every_ns is not None:
            raise InvalidRequest("cron and every exclude each other; give one", path="every")
        cron = None
        if self.cron is not None:
            cron = parse_cron(self.cron)
        elif self.every_ns is None:
            raise InvalidRequest("cron is required, or every", path="cron")
        elif not EVERY_NS_MIN <= self.every_ns <= NS_MAX:
            given, least = format_duration(self.every_ns), format_duration(EVERY_NS_MIN)
            raise InvalidRequest(f"invalid every {given}: must be at least {least}", path="every")
        if self.start_ns is not None and self.end_ns is not None and self.end_ns < self.start_ns:
            raise InvalidRequest("invalid end: it lies before the start", path="end")
        return RunTimes(
            cron=cron,
            every_ns=self.every_ns,
            zone=_zone(self.timezone, zones),
            anchor_ns=anchor_ns,
            start_ns=self.start_ns,
            end_ns=self.end_ns,
        )

    def validate(self) -> None:
        """Raise if a field is invalid, as far as that can be checked without a clock and a topic."""
        if not 1 <= len(self.name) <= NAME_MAX or not self.name.isprintable() or "/" in self.name:
            reason = f"invalid name: must be 1 to {NAME_MAX} printable characters without /"
            raise InvalidRequest(reason, path="name")
        if self.catch_up not in list(CatchUp):
            reason = f"invalid catch_up {_shown(self.catch_up)}: must be {', '.join(CatchUp)}"
            raise InvalidRequest(reason, path="catch_up")
        if self.value is None and self.key is None:
            raise InvalidMessage("a tombstone needs a key")
        if self.value is not None and len(self.value) > VALUE_BYTES_MAX:
            raise MessageTooLarge("value", len(self.value), VALUE_BYTES_MAX)
        if self.partition is not None and self.partition < 0:
            raise InvalidPartition(self.partition)
        if not 0 <= self.priority <= Priority.BACKGROUND:
            raise InvalidMessage(f"invalid priority {self.priority}: must be 0 to {int(Priority.BACKGROUND)}")
        if self.delay_ns is not None and not 0 <= self.delay_ns <= NS_MAX:
            raise InvalidRequest("invalid delay: must not be negative", path="delay")
        if self.ttl_ns is not None and not 0 < self.ttl_ns <= NS_MAX:
            raise InvalidRequest("invalid ttl: must be positive", path="ttl")
        for name in self.headers:
            if name.startswith(RESERVED_PREFIX) and name != ORIGIN:
                raise InvalidMessage(f"invalid header {_shown(name)}: {RESERVED_PREFIX} opens reserved names")
            if not _is_text(name):
                raise InvalidMessage(f"invalid header {_shown(name)}: not text that UTF-8 can hold")


def parse_cron(text: str) -> str:
    """The five fields of a cron text; raises `InvalidRequest` with the name of the invalid one."""
    if len(text) > CRON_TEXT_MAX:
        raise InvalidRequest(f"invalid cron: longer than {CRON_TEXT_MAX} characters", path="cron")
    stripped = text.strip()
    if stripped.startswith("@"):
        if stripped.lower() not in ALIASES:
            raise InvalidRequest(f"invalid cron {_shown(text)}: there are {' '.join(ALIASES)}", path="cron")
        return ALIASES[stripped.lower()]
    parts = stripped.split()
    if len(parts) != len(FIELDS):
        reason = f"invalid cron {_shown(text)}: needs {len(FIELDS)} fields ({', '.join(FIELDS)}), not {len(parts)}"
        raise InvalidRequest(reason, path="cron")
    cron = " ".join(parts)
    if not _is_cron(cron):
        raise InvalidRequest(f"invalid cron {_shown(text)}: {_fault(parts)}", path="cron")
    return cron


def _fault(parts: Sequence[str]) -> str:
    """What is wrong with the fields: one of them is invalid, or no month has such a day."""
    for place, part in enumerate(parts):
        alone = ["*"] * len(FIELDS)
        alone[place] = part
        if not _is_cron(" ".join(alone)):
            return f"bad {FIELDS[place]} {_shown(part)}"
    return f"bad {FIELDS[2]} {_shown(parts[2])}: there is none in month {_shown(parts[3])}"


def _is_cron(text: str) -> bool:
    try:
        CronSim(text, _LOCAL_EPOCH)
    except CronSimError:
        return False
    return True


def _zone(name: str, zones: Zones) -> tzinfo:
    try:
        return zones(name)
    except (LookupError, ValueError, OSError):
        raise InvalidRequest(f"invalid timezone {_shown(name)}: there is none of that name", path="timezone") from None


def _is_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _shown(text: str) -> str:
    return repr(text) if len(text) <= 100 else f"{text[:100]!r}..."


# --- runs ------------------------------------------------------------------------------------------


class PastRun(NamedTuple):
    """One run. While it has an `error` it is not published. `offset` is None, too, if the log no longer knows it."""

    number: int
    due_at_ns: int
    published_at_ns: int | None
    partition: int
    offset: int | None
    error: str | None = None


Whole = Annotated[int, msgspec.Meta(ge=0, le=NS_MAX)]
"""Bounds for numbers that come from a disk."""


class Claim(msgspec.Struct, frozen=True, array_like=True):
    """Runs to publish as one batch to that partition, with that epoch and sequences from 0 on."""

    number: Whole
    first_run: Whole
    due: Annotated[tuple[Whole, ...], msgspec.Meta(min_length=1, max_length=CLAIM_MAX)]
    partition: Whole
    is_manual: bool = False


class StoredRun(NamedTuple):
    """The place of one run of a claim; an offset below 0: the log no longer knows it."""

    offset: int
    timestamp_ns: int


class _SavedDefinition(msgspec.Struct, frozen=True, array_like=True):
    """A definition with the facts that never change: its producer id and its creation."""

    definition: Definition
    topic: str
    topic_id: str
    producer_id: Whole
    created_at_ns: Whole
    anchor_ns: Whole


class _SavedState(msgspec.Struct, frozen=True, array_like=True):
    """The state that changes with each run. It is valid only for the definition with the same producer id."""

    producer_id: Whole
    paused: bool
    cursor_ns: Whole
    claim_count: Whole
    run_count: Whole
    runs: Whole
    missed: Whole
    last_at_ns: Whole | None
    claim: Claim | None


class Schedule:
    """One recurring message, its claim and its history."""

    __slots__ = (
        "_claim_count",
        "_cursor_ns",
        "_plan",
        "_run_count",
        "anchor_ns",
        "claim",
        "created_at_ns",
        "definition",
        "history",
        "last_at_ns",
        "missed",
        "next_at_ns",
        "paused",
        "producer_id",
        "runs",
        "topic",
        "topic_id",
    )

    def __init__(
        self,
        definition: Definition,
        *,
        topic: str,
        topic_id: str,
        producer_id: int,
        zones: Zones,
        now_ns: int,
        paused: bool = False,
    ) -> None:
        definition.validate()
        self._plan = definition.plan(zones, anchor_ns=now_ns)
        self.definition = definition
        self.topic = topic
        self.topic_id = topic_id
        self.producer_id = producer_id
        self.created_at_ns = now_ns
        self.anchor_ns = now_ns
        self.paused = paused
        self._cursor_ns = now_ns
        self._claim_count = 0
        self._run_count = 0
        self.runs = 0
        self.missed = 0
        self.last_at_ns: int | None = None
        self.claim: Claim | None = None
        self.history: list[PastRun] = []
        self.next_at_ns: int | None = None
        self._look_ahead()

    @property
    def name(self) -> str:
        return self.definition.name

    # --- changes

    def alter(self, definition: Definition, *, zones: Zones, now_ns: int) -> None:
        """Use another definition; new run times count from now on. If it raises, nothing has changed."""
        assert definition.name == self.name
        definition.validate()
        keeps_times = _timing(definition) == _timing(self.definition)
        self._plan = definition.plan(zones, anchor_ns=self.anchor_ns if keeps_times else now_ns)
        self.definition = definition
        if not keeps_times:
            self.anchor_ns = self._cursor_ns = now_ns
        self._look_ahead()

    def pause(self) -> None:
        """No run is due until `resume`."""
        self.paused = True
        self._look_ahead()

    def resume(self, *, now_ns: int) -> None:
        """Continue from now on; runs that were due while it was paused are not caught up."""
        if self.paused:
            self.paused = False
            self._cursor_ns = max(self._cursor_ns, now_ns)
            self._look_ahead()

    # --- runs

    def begin_due(self, *, now_ns: int, partition: int, on_time_ns: int) -> Claim | None:
        """Handle due times, at most `CLAIM_MAX` at once; returns the runs to publish, if there are any."""
        assert self.claim is None
        if not self._is_due(now_ns):
            return None
        catch_up = self.definition.catch_up
        limit = self._batch_max() if catch_up == CatchUp.ALL else CLAIM_MAX
        due, self.next_at_ns = self._plan.take(self._cursor_ns, now_ns, limit=limit)
        self._cursor_ns = due[-1]
        late_count = bisect_left(due, now_ns - on_time_ns)
        chosen = due
        if catch_up == CatchUp.SKIP:
            chosen = due[late_count:]
        elif catch_up == CatchUp.ONCE and late_count:
            chosen = [] if self._is_due(now_ns) else due[-1:]
        self.missed += len(due) - len(chosen)
        return self._begin(chosen, partition, is_manual=False) if chosen else None

    def begin_now(self, *, now_ns: int, partition: int) -> Claim:
        """A claim for one run now, in addition to the due ones."""
        assert self.claim is None
        return self._begin([now_ns], partition, is_manual=True)

    def settle(self, stored: Sequence[StoredRun], *, now_ns: int) -> None:
        """The runs of the claim are in the log."""
        claim = self.claim
        assert claim
        assert len(stored) == len(claim.due)
        self._remember(
            PastRun(
                claim.first_run + index,
                due_ns,
                found.timestamp_ns if found.offset >= 0 else now_ns,
                claim.partition,
                found.offset if found.offset >= 0 else None,
            )
            for index, (due_ns, found) in enumerate(zip(claim.due, stored, strict=True))
        )
        self.runs += len(claim.due)
        self.last_at_ns = claim.due[-1]
        self._end_claim(claim)

    def settle_fenced(self, *, newest: int, now_ns: int) -> None:
        """The log has a later claim, so it has had this one; the next claim is later than all of them."""
        assert self.claim
        self.settle([StoredRun(-1, 0)] * len(self.claim.due), now_ns=now_ns)
        self._claim_count = max(self._claim_count, newest + 1)

    def note_error(self, error: str) -> None:
        """The runs of the claim are not in the log yet."""
        claim = self.claim
        assert claim
        self._remember(
            PastRun(claim.first_run + index, due_ns, None, claim.partition, None, error)
            for index, due_ns in enumerate(claim.due)
        )

    def fail(self, error: str) -> None:
        """The runs of the claim will never be in the log."""
        self.note_error(error)
        assert self.claim
        self._end_claim(self.claim)

    def _begin(self, due: Sequence[int], partition: int, *, is_manual: bool) -> Claim:
        self.claim = Claim(self._claim_count, self._run_count, tuple(due), partition, is_manual)
        return self.claim

    def _end_claim(self, claim: Claim) -> None:
        self._claim_count = claim.number + 1
        self._run_count = claim.first_run + len(claim.due)
        self.claim = None

    def _remember(self, runs: Iterator[PastRun]) -> None:
        new = list(runs)
        earlier = [run for run in self.history if run.number < new[0].number]
        self.history = (earlier + new)[-HISTORY_MAX:]

    def _is_due(self, now_ns: int) -> bool:
        return self.next_at_ns is not None and self.next_at_ns <= now_ns

    def _look_ahead(self) -> None:
        self.next_at_ns = None if self.paused else self._plan.next_after(self._cursor_ns)

    def _batch_max(self) -> int:
        size = len(self.definition.value or b"") + len(self.definition.key or b"") + 1
        return max(1, min(CLAIM_MAX, CLAIM_BYTES_MAX // size))

    # --- storage

    def kept_definition(self) -> bytes:
        """The bytes of the definition, which only `alter` changes."""
        kept = _SavedDefinition(
            self.definition, self.topic, self.topic_id, self.producer_id, self.created_at_ns, self.anchor_ns
        )
        return msgspec.msgpack.encode(kept)

    def kept_state(self) -> bytes:
        """The bytes of the state, which each run changes."""
        state = _SavedState(
            self.producer_id,
            self.paused,
            self._cursor_ns,
            self._claim_count,
            self._run_count,
            self.runs,
            self.missed,
            self.last_at_ns,
            self.claim,
        )
        return msgspec.msgpack.encode(state)

    def kept_history(self) -> bytes:
        """The bytes of the last runs."""
        return msgspec.msgpack.encode((self.producer_id, self.history))

    @classmethod
    def restore(cls, definition: bytes, state: bytes | None, history: bytes | None, *, zones: Zones) -> Self:
        """The stored schedule. State and history of an earlier schedule of the same name are ignored.

        Raises `msgspec.DecodeError` for bytes of another version, and other errors for damaged bytes.
        """
        kept = msgspec.msgpack.decode(definition, type=_SavedDefinition)
        kept.definition.validate()
        schedule = cls.__new__(cls)
        schedule.definition = kept.definition
        schedule.topic = kept.topic
        schedule.topic_id = kept.topic_id
        schedule.producer_id = kept.producer_id
        schedule.created_at_ns = kept.created_at_ns
        schedule.anchor_ns = kept.anchor_ns
        known = None if state is None else msgspec.msgpack.decode(state, type=_SavedState)
        if known is None or known.producer_id != kept.producer_id:
            known = _SavedState(kept.producer_id, False, kept.created_at_ns, 0, 0, 0, 0, None, None)
        schedule.paused = known.paused
        schedule._cursor_ns = known.cursor_ns
        schedule._claim_count = known.claim_count
        schedule._run_count = known.run_count
        schedule.runs = known.runs
        schedule.missed = known.missed
        schedule.last_at_ns = known.last_at_ns
        schedule.claim = known.claim
        schedule.history = []
        if history is not None:
            producer_id, runs = msgspec.msgpack.decode(history, type=tuple[int, list[PastRun]])
            if producer_id == kept.producer_id:
                schedule.history = runs
        try:
            schedule._plan = kept.definition.plan(zones, anchor_ns=kept.anchor_ns)
        except InvalidRequest:  # its time zone is no longer known here
            schedule._plan = RunTimes.never()
        schedule._look_ahead()
        return schedule


def _timing(definition: Definition) -> tuple[object, ...]:
    return definition.cron, definition.every_ns, definition.timezone, definition.start_ns
