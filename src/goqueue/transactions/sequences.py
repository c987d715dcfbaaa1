"""The sequences of one partition: who published what, so that a batch that is sent again is recognised.

The first record of a producer's batch says who sent it (`record/identity.py`). So all that is known here is in the log
itself, and after a crash it is read from there again, from the last snapshot on.

A producer numbers its records per partition, from 0 on. A batch is

    new          if it goes on where the last one of its producer ended;
    a duplicate  if it is one of the last five, and its offset is remembered; or if it is older, and it is not;
    out of order if anything is missing before it.

A higher epoch begins again at 0 and fences the lower ones.
"""

from collections import OrderedDict
from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from goqueue.errors import InvalidBatch, OutOfOrderSequence, ProducerFenced
from goqueue.record import kernel
from goqueue.record.header import HEADER
from goqueue.record.headers import PRODUCER
from goqueue.record.identity import BatchIdentity, identity_of

WINDOW = 5
"""How many batches of a producer are remembered with their offsets; so many may be under way at once."""
PRODUCERS_MAX = 10_000
"""Per partition. Beyond it the one that was silent for longest is forgotten."""
YOUNG_NS = 600 * 10**9
YOUNG_FACTOR = 5
"""So many times more are remembered if all of them were heard of within the last ten minutes."""
IDLE_NS_MAX = 7 * 86_400 * 10**9


class Known(NamedTuple):
    """A batch that is in the log; `first_offset` is -1 if that is no longer remembered."""

    first_sequence: int
    record_count: int
    first_offset: int
    timestamp_ns: int


class _Producer(msgspec.Struct, array_like=True):
    epoch: int
    next_sequence: int
    last_ns: int
    batches: list[Known]


class Snapshot(msgspec.Struct, array_like=True, frozen=True):
    """All sequences of a partition, as of the record before `next_offset`."""

    next_offset: int
    producers: list[tuple[int, _Producer]]


class Sequences:
    """Every producer that published to one partition lately."""

    def __init__(self, *, producers_max: int = PRODUCERS_MAX) -> None:
        self._producers: OrderedDict[int, _Producer] = OrderedDict()
        self._producers_max = producers_max

    def __len__(self) -> int:
        return len(self._producers)

    def next_of(self, producer_id: int, epoch: int) -> int:
        """The number with which a producer goes on that does not count by itself."""
        producer = self._producers.get(producer_id)
        return producer.next_sequence if producer and producer.epoch == epoch else 0

    def check(self, batch: BatchIdentity) -> Known | None:
        """None if the batch is new, else where it is. Raises `OutOfOrderSequence` or `ProducerFenced`."""
        producer = self._producers.get(batch.producer_id)
        if producer and batch.epoch < producer.epoch:
            raise ProducerFenced(batch.producer_id, batch.epoch, producer.epoch)
        if not producer or batch.epoch > producer.epoch:
            if batch.first_sequence > 1:  # a start at 1 is taken, too
                raise OutOfOrderSequence(batch.first_sequence, 0)
            return None
        if batch.first_sequence == producer.next_sequence:
            return None
        if batch.first_sequence > producer.next_sequence:
            raise OutOfOrderSequence(batch.first_sequence, producer.next_sequence)
        for known in producer.batches:
            if known.first_sequence == batch.first_sequence and known.record_count == batch.record_count:
                return known
        is_all_known = len(producer.batches) < WINDOW
        if is_all_known or batch.first_sequence + batch.record_count > producer.batches[0].first_sequence:
            raise OutOfOrderSequence(batch.first_sequence, producer.next_sequence)  # it was never sent like that
        return Known(batch.first_sequence, batch.record_count, -1, 0)

    def note(self, batch: BatchIdentity, *, first_offset: int, timestamp_ns: int) -> None:
        """The batch is in the log."""
        producer = self._producers.get(batch.producer_id)
        if not producer or batch.epoch != producer.epoch:
            producer = _Producer(batch.epoch, 0, 0, [])
            self._producers[batch.producer_id] = producer
        producer.next_sequence = batch.first_sequence + batch.record_count
        producer.last_ns = timestamp_ns
        producer.batches.append(Known(batch.first_sequence, batch.record_count, first_offset, timestamp_ns))
        del producer.batches[:-WINDOW]
        self._producers.move_to_end(batch.producer_id)
        if len(self._producers) > self._producers_max:
            self._evict(timestamp_ns)

    def _evict(self, now_ns: int) -> None:
        """Forget the one that was silent for longest, but not while it may still be sending again, if that can be."""
        oldest = next(iter(self._producers.values()))
        is_young = now_ns - oldest.last_ns < YOUNG_NS
        if not is_young or len(self._producers) > YOUNG_FACTOR * self._producers_max:
            self._producers.popitem(last=False)

    def note_records(self, records: memoryview) -> None:
        """Take in what stored records say. They are whole and valid."""
        for first_offset, timestamp_ns, batch in identities(records):
            self.note(batch, first_offset=first_offset, timestamp_ns=timestamp_ns)

    def forget_idle(self, *, now_ns: int) -> None:
        """Drop the producers that were silent for seven days."""
        while self._producers:
            producer_id, producer = next(iter(self._producers.items()))
            if now_ns - producer.last_ns < IDLE_NS_MAX:
                return
            del self._producers[producer_id]

    def snapshot(self, next_offset: int) -> bytes:
        """Everything, as of that offset."""
        return msgspec.msgpack.encode(Snapshot(next_offset, list(self._producers.items())))

    def restore(self, raw: bytes) -> int:
        """Everything as it was in a snapshot; returns the offset from which the log goes on to tell."""
        snapshot = msgspec.msgpack.decode(raw, type=Snapshot)
        self._producers = OrderedDict(snapshot.producers)
        return snapshot.next_offset


def identities(records: memoryview) -> Iterable[tuple[int, int, BatchIdentity]]:
    """The offset, time and identity of each record that begins a producer's batch."""
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
