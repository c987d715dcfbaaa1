"""Producer sequences of one partition: how a batch that is sent twice is recognized.

The first record of a producer's batch names the producer and its sequence (`record/identity.py`). So the state kept
here is in the log itself, and after a crash it is read from there, from the last snapshot on.

A producer numbers its records per partition, from 0 on. A batch is

    new           if it continues where the last batch of its producer ended
    a duplicate   if it is one of the last five batches, whose offsets are remembered, or an older one
    out of order  if records before it are missing

A higher epoch starts at 0 again and fences the lower ones.

Producers whose id is derived are the broker's own: dead letters and redrives. They are never forgotten for being idle.
A batch of theirs may be under way for as long as its source is unavailable, and only its sequence says later whether it
was stored. There is one for each group and partition that messages come from.
"""

import struct
import sys
from array import array
from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from goqueue.errors import InvalidBatch, OutOfOrderSequence, ProducerFenced
from goqueue.record import kernel
from goqueue.record.header import HEADER
from goqueue.record.headers import PRODUCER
from goqueue.record.identity import DERIVED_FROM, BatchIdentity, identity_of

WINDOW = 5
"""How many batches of a producer are remembered with their offsets; so many may be in flight at once."""
PRODUCERS_MAX = 10_000
"""Per partition. Beyond it the least recently used producers are forgotten."""
YOUNG_NS = 600 * 10**9
YOUNG_FACTOR = 5
"""How many times more producers are remembered if all of them have published within the last ten minutes."""
EVICTED_PART = 10
"""One in so many is forgotten at once, so that the search for the oldest ones is rare."""
IDLE_NS_MAX = 7 * 86_400 * 10**9
SINGLE_IDLE_NS_MAX = 86_400 * 10**9
"""For producers that sent a single record only: scripts that publish once and exit, each with a new id."""
LOOK_NS = 60 * 10**9
"""The least time between two searches for idle producers."""

_BATCH = 4  # numbers per batch
_STATE_MAX = 1 + WINDOW * _BATCH
_FIRST = struct.Struct("=5q")  # the epoch and the first batch
_NEXT = struct.Struct("=4q")
_EPOCH = struct.Struct("=q")


class KnownBatch(NamedTuple):
    """A batch that is in the log; `first_offset` is -1 if it is no longer remembered."""

    first_sequence: int
    record_count: int
    first_offset: int
    timestamp_ns: int


class LastBatch(NamedTuple):
    """The last batch of a producer, in its highest epoch."""

    epoch: int
    first_sequence: int
    record_count: int
    first_offset: int

    @property
    def end_sequence(self) -> int:
        """The sequence after those of the batch."""
        return self.first_sequence + self.record_count


class SequenceSnapshot(msgspec.Struct, array_like=True, frozen=True):
    """All sequences of a partition, as of the record before `next_offset`.

    `states` are int64, little-endian: for each producer its id, how many numbers follow, and these numbers.
    """

    next_offset: int
    states: bytes


class Sequences:
    """Every producer that published to one partition lately.

    The state of a producer is a string of int64: its epoch, then the fields of `KnownBatch` of the last batches, oldest
    first. An id that is used once costs 140 bytes with its place in the dict. Short-lived producers come by the
    thousands, and an array for each takes 250 bytes.
    """

    def __init__(self, *, producers_max: int = PRODUCERS_MAX) -> None:
        self._producers: dict[int, bytes] = {}
        self._producers_max = producers_max
        self._evict_from = producers_max  # above this many producers, `_evict` looks for some to forget
        self._look_ns = 0  # no producer becomes idle before this time

    def __len__(self) -> int:
        return len(self._producers)

    def next_of(self, producer_id: int, epoch: int) -> int:
        """The next sequence of a producer that leaves the counting to the broker."""
        state = self._state(producer_id)
        return state[-4] + state[-3] if state and state[0] == epoch else 0

    def last_batch(self, producer_id: int) -> LastBatch | None:
        state = self._state(producer_id)
        return LastBatch(state[0], *state[-_BATCH:-1]) if state else None

    def check(self, batch: BatchIdentity) -> KnownBatch | None:
        """None if the batch is new, else where it is. Raises `OutOfOrderSequence` or `ProducerFenced`."""
        state = self._state(batch.producer_id)
        if state and batch.epoch < state[0]:
            raise ProducerFenced(batch.producer_id, batch.epoch, state[0])
        if not state or batch.epoch > state[0]:
            if batch.first_sequence > 1:  # some clients start at 1
                raise OutOfOrderSequence(batch.first_sequence, 0)
            return None
        next_sequence = state[-4] + state[-3]
        if batch.first_sequence == next_sequence:
            return None
        if batch.first_sequence > next_sequence:
            raise OutOfOrderSequence(batch.first_sequence, next_sequence)
        for at in range(1, len(state), _BATCH):
            if state[at] == batch.first_sequence and state[at + 1] == batch.record_count:
                return KnownBatch(*state[at : at + _BATCH])
        is_all_known = len(state) < _STATE_MAX
        if is_all_known or batch.first_sequence + batch.record_count > state[1]:
            raise OutOfOrderSequence(batch.first_sequence, next_sequence)  # no such batch was ever stored
        return KnownBatch(batch.first_sequence, batch.record_count, -1, 0)

    def note(self, batch: BatchIdentity, *, first_offset: int, timestamp_ns: int) -> None:
        """The batch was appended to the log."""
        producer_id, epoch, first_sequence, record_count, _ = batch
        raw = self._producers.get(producer_id)
        if raw is not None and _EPOCH.unpack_from(raw)[0] == epoch:
            raw += _NEXT.pack(first_sequence, record_count, first_offset, timestamp_ns)
            if len(raw) > _STATE_MAX * _EPOCH.size:
                raw = raw[: _EPOCH.size] + raw[_FIRST.size :]
            self._producers[producer_id] = raw
            return
        self._producers[producer_id] = _FIRST.pack(epoch, first_sequence, record_count, first_offset, timestamp_ns)
        if len(self._producers) > self._evict_from:
            self._evict(timestamp_ns)

    def _evict(self, now_ns: int) -> None:
        """Forget the producers that were silent for longest; the broker's own only when there are no others.

        One that published lately may still send a batch again, and is kept as long as there are no more than
        `YOUNG_FACTOR` times too many.
        """
        spare = self._producers_max // EVICTED_PART
        oldest = sorted(self._producers, key=lambda one: (one >= DERIVED_FROM, self._last_use(one)))
        excess = len(oldest) - self._producers_max
        for at, producer_id in enumerate(oldest[: excess + spare]):
            is_young = now_ns - self._last_use(producer_id)[0] < YOUNG_NS
            if is_young and len(oldest) - at <= YOUNG_FACTOR * self._producers_max:
                break
            del self._producers[producer_id]
        self._evict_from = max(self._producers_max, len(self._producers) + spare)
        self._evict_from = min(self._evict_from, YOUNG_FACTOR * self._producers_max)

    def _last_use(self, producer_id: int) -> tuple[int, int]:
        """When it last published, and to which offset."""
        state = _numbers(self._producers[producer_id])
        return state[-1], state[-2]

    def _state(self, producer_id: int) -> "memoryview[int] | None":
        raw = self._producers.get(producer_id)
        return None if raw is None else _numbers(raw)

    def note_records(self, records: memoryview) -> None:
        """Learn from stored records, which are complete and valid."""
        for first_offset, timestamp_ns, batch in identities(records):
            self.note(batch, first_offset=first_offset, timestamp_ns=timestamp_ns)

    def forget_idle(self, *, now_ns: int) -> None:
        """Drop producers that were silent for seven days, or for one day if they only sent a single record.

        If a forgotten producer sent its first batch again, it would be stored twice; no client retries for a day. Its
        next batch is out of order, unless it has sequence 1; our client then starts a new epoch.
        """
        if now_ns < self._look_ns:
            return
        self._look_ns = now_ns + LOOK_NS
        states = ((producer_id, _numbers(raw)) for producer_id, raw in self._producers.items())
        idle = [one for one, state in states if one < DERIVED_FROM and now_ns - state[-1] >= _idle_ns_max(state)]
        for producer_id in idle:
            del self._producers[producer_id]

    def snapshot(self, next_offset: int) -> bytes:
        """The encoded sequences, as of that offset."""
        states = array("q")
        for producer_id, raw in self._producers.items():
            states.append(producer_id)
            states.append(len(raw) // _EPOCH.size)
            states.frombytes(raw)
        if sys.byteorder == "big":
            states.byteswap()
        return msgspec.msgpack.encode(SequenceSnapshot(next_offset, states.tobytes()))

    def restore(self, raw: bytes) -> int:
        """Take the sequences from a snapshot; returns the offset from which the log has to be replayed."""
        snapshot = msgspec.msgpack.decode(raw, type=SequenceSnapshot)
        states = array("q")
        states.frombytes(snapshot.states)
        if sys.byteorder == "big":
            states.byteswap()
        found: dict[int, bytes] = {}
        at = 0
        while at < len(states):
            producer_id, size = states[at], states[at + 1]
            found[producer_id] = states[at + 2 : at + 2 + size].tobytes()
            at += 2 + size
        self._producers = found
        return snapshot.next_offset


def _numbers(raw: bytes) -> "memoryview[int]":
    return memoryview(raw).cast("q")


def _idle_ns_max(state: "memoryview[int]") -> int:
    is_single = len(state) == 1 + _BATCH and state[2] == 1 and state[0] == 0 and state[1] <= 1
    return SINGLE_IDLE_NS_MAX if is_single else IDLE_NS_MAX


def identities(records: memoryview) -> Iterable[tuple[int, int, BatchIdentity]]:
    """The offset, time and identity of the first record of each producer's batch."""
    wanted = PRODUCER.encode()
    raw = bytes(records)
    at = raw.find(wanted)
    if at < 0:
        return
    positions = memoryview(kernel.scan(records, positions=True).positions).cast("I")
    while at >= 0:
        index = _record_at(positions, at)
        start = positions[index]
        try:
            batch = identity_of(records[start:])
        except InvalidBatch:
            batch = None
        if batch:
            header = HEADER.unpack_from(records, start)
            yield header[4], header[5], batch
        if index + 1 == len(positions):
            return
        at = raw.find(wanted, positions[index + 1])


def _record_at(positions: memoryview, position: int) -> int:
    low, high = 0, len(positions)
    while low < high:
        middle = (low + high) // 2
        if positions[middle] <= position:
            low = middle + 1
        else:
            high = middle
    return low - 1
