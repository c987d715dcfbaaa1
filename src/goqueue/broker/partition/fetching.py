"""What a follower asks its leader for, what the leader answers, and what the follower does with the answer.

Both logs of a partition are replicated in the same way, and travel in the same request. A follower asks for the records
after the end of its log, and names the epoch of its last record. From that the leader finds out whether the two logs
are the same up to there. If they are not, it answers where the epoch ended for it; the follower cuts off what it has
beyond, and asks again. It may take a few rounds, one for each leader that the follower has heard of and the leader has
not. The high watermark decides nothing here: a follower may know a low one, and cutting there would take back records
that are committed.

    log of the leader      epochs  1 1 1 3 3          asked with epoch 2: "epoch 1 ended at offset 3"
    log of the follower            1 1 1 2 2 2        cuts at 3, asks from 3 on, with epoch 1

Only equal epochs understand each other. A leader refuses a fetch of a lower epoch (`FENCED_EPOCH`: the follower has not
heard of it yet) and of a higher one (`UNKNOWN_EPOCH`: it is not the leader any more, or has not heard of it yet). A
durable offset counts only when the log of the follower is known to be the same up to the end.

Everything here is a decision on facts that are given; `followers.py` and `follower.py` carry it out. The first epoch is
0 and needs no entry: it begins with the log.
"""

from enum import StrEnum
from typing import NamedTuple

from goqueue.errors import CorruptRecord
from goqueue.record import kernel
from goqueue.storage.epochs import LeaderEpochs
from goqueue.storage.reader import Chunk, LogReader
from goqueue.transactions.sequences import identities

NO_RECORDS = -1
"""The epoch of the last record of a log that has none."""


class LogPosition(NamedTuple):
    """Where one log of a follower ends."""

    offset: int
    last_epoch: int  # of its last record, or NO_RECORDS
    durable_offset: int
    high_watermark: int  # that it knows; the leader answers at once if it knows a higher one


class Fetch(NamedTuple):
    """A request of a follower for what comes next in both logs of a partition."""

    epoch: int
    log: LogPosition
    ledger: LogPosition


class Records(NamedTuple):
    """All records of the leader from the requested offset to before `next_offset`, written in one epoch.

    Whole batches, as the leader stored them. Where its log is compacted, offsets may be missing, or all of them.
    """

    epoch: int
    epoch_start: int
    records: bytes | memoryview
    next_offset: int
    has_gaps: bool


class Diverging(NamedTuple):
    """The logs differ. For the leader this epoch, the last one that it has up to that of the follower, ended here."""

    epoch: int
    end_offset: int


class OutOfRange(NamedTuple):
    """The leader has deleted all that the follower could compare or continue."""


class LogAnswer(NamedTuple):
    """The answer about one log. It stays true for as long as the epoch lasts: the leader's log only grows."""

    asked: LogPosition
    found: Records | Diverging | OutOfRange | None  # None: the follower has everything
    high_watermark: int
    log_start: int


class FetchRefusal(StrEnum):
    """Why a fetch is not answered."""

    FENCED_EPOCH = "FENCED_EPOCH"
    UNKNOWN_EPOCH = "UNKNOWN_EPOCH"


class FetchAnswer(NamedTuple):
    """The answer of a leader, or of a node that believes to be one."""

    epoch: int
    refusal: FetchRefusal | None
    log: LogAnswer | None  # None: refused
    ledger: LogAnswer | None
    ledger_speaks_below: int = 0  # facts of the ledger speak of records of the log below this offset only

    def has_news(self, fetch: Fetch) -> bool:
        """Whether the follower should have it at once; otherwise it can wait until there is something new."""
        pairs = (self.log, fetch.log), (self.ledger, fetch.ledger)
        return self.refusal is not None or any(
            answer is not None and (answer.found is not None or answer.high_watermark > position.high_watermark)
            for answer, position in pairs
        )


class Truncate(NamedTuple):
    """The follower cuts its log off at the offset."""

    end_offset: int


class Restart(NamedTuple):
    """The follower drops all of its records, and goes on at the offset."""

    start_offset: int


# --- the leader --------------------------------------------------------------------------------


def refusal_of(asked: int, epoch: int) -> FetchRefusal | None:
    """Why a leader of that epoch does not answer a fetch of the other one."""
    if asked == epoch:
        return None
    return FetchRefusal.FENCED_EPOCH if asked < epoch else FetchRefusal.UNKNOWN_EPOCH


def compared(position: LogPosition, epochs: LeaderEpochs, *, start: int, end: int) -> Diverging | OutOfRange | None:
    """Whether the log of a follower is the same as that of the leader, which is [start, end); None if it is."""
    if position.offset < start:
        return OutOfRange()
    if position.last_epoch == NO_RECORDS:
        return None if position.offset <= end else OutOfRange()
    epoch, epoch_end = _end_of(epochs, position.last_epoch, end)
    if epoch == position.last_epoch and position.offset <= epoch_end:
        return None
    # Below its start the leader has nothing to compare: what the follower has there may be of any history.
    return Diverging(epoch, epoch_end) if epoch_end > start else OutOfRange()


class EpochRange(NamedTuple):
    """The offsets that the leader of an epoch has written: [start, end)."""

    epoch: int
    start: int
    end: int


def epoch_at(epochs: LeaderEpochs, offset: int, *, end: int) -> EpochRange:
    """The epoch in which the record at the offset was written; the log ends at `end`."""
    found = EpochRange(0, 0, end)
    for entry in epochs.entries:
        if entry.start_offset > offset:
            return found._replace(end=min(entry.start_offset, end))
        found = EpochRange(*entry, end)
    return found


def last_epoch(epochs: LeaderEpochs, *, start: int, end: int) -> int:
    """The epoch of the last record of a log that is [start, end), or NO_RECORDS."""
    return NO_RECORDS if start == end else max(epochs.epoch_of(end - 1), 0)


def _end_of(epochs: LeaderEpochs, epoch: int, log_end: int) -> tuple[int, int]:
    found = epochs.end_of(epoch, log_end=log_end)
    return max(found.epoch, 0), min(found.start_offset, log_end)


def read_batches(reader: LogReader, *, max_bytes: int, to_offset: int) -> tuple[bytes | memoryview, int, int]:
    """The next records below `to_offset`, how many, and the offset after them; at least one batch if there is one.

    A batch of a producer is not divided: a replica that has only the first half of one, and leads, would take it for
    stored when its producer sends it again. The reader may have gone further than the offset returned.

    Raises `CorruptRecord` if records are damaged: a follower must not take the gap for the log.
    """
    chunk = _read(reader, max_bytes, to_offset)
    batches = list(identities(chunk.records))
    if not batches:
        return chunk.records, chunk.record_count, chunk.next_offset
    first_offset, _, batch = batches[-1]
    batch_end = min(first_offset + batch.record_count, to_offset)
    if batch_end <= chunk.next_offset:
        return chunk.records, chunk.record_count, chunk.next_offset
    before = kernel.scan(chunk.records, to_offset=first_offset)
    if before.record_count:
        return chunk.records[: before.end], before.record_count, first_offset
    parts, record_count, next_offset = [chunk.records], chunk.record_count, chunk.next_offset
    while next_offset < batch_end:
        chunk = _read(reader, max_bytes, batch_end)
        parts.append(chunk.records)
        record_count += chunk.record_count
        next_offset = chunk.next_offset
    return b"".join(parts), record_count, next_offset


def _read(reader: LogReader, max_bytes: int, to_offset: int) -> Chunk:
    chunk = reader.read(max_bytes=max_bytes, to_offset=to_offset)
    if chunk.gaps:
        damage = chunk.gaps[0]
        raise CorruptRecord(kernel.describe(damage.fault), damage.position, source=damage.path)
    return chunk


# --- the follower ------------------------------------------------------------------------------


def is_about(answer: LogAnswer, epochs: LeaderEpochs, *, start: int, end: int) -> bool:
    """Whether the follower would ask the same now. An old answer may come late, after the log was cut and has grown
    again; then the end alone may be the same, but not the epoch of the last record.
    """
    return (answer.asked.offset, answer.asked.last_epoch) == (end, last_epoch(epochs, start=start, end=end))


def to_do(answer: LogAnswer, epochs: LeaderEpochs, *, start: int, end: int) -> Truncate | Restart | Records | None:
    """What a follower whose log is [start, end) does about the answer, which is about that log as it is."""
    match answer.found:
        case OutOfRange():
            return Restart(answer.log_start)
        case Diverging(epoch, end_offset):
            own_end = _end_of(epochs, epoch, end)[1]
            cut = min(end_offset, own_end)
            return Truncate(cut) if cut >= start else Restart(answer.log_start)
        case found:
            return found
