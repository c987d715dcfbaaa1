"""The dead letters of one partition of a dead-letter topic: which are still dead, how many, and what they hold.

Which of them were redriven is in the cursor of a group of its own, `__redrive`: a dead letter counts unless that cursor
is done with it. One that is being redriven is done with, too.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from pyroaring import BitMap64

from goqueue.broker.delivery.group_delivery import Copies
from goqueue.broker.delivery.partition_delivery import PartitionDelivery
from goqueue.broker.local_partitions import LocalPartitions
from goqueue.broker.partition.leader import PartitionLeader
from goqueue.broker.partition.ledger import Fact
from goqueue.delivery import redrive_facts
from goqueue.delivery.cursor import Cursor
from goqueue.delivery.dead_letter_counts import DeadLetterTallies, DeadLetterTally
from goqueue.delivery.dead_letter_filter import (
    ALL_TOPICS,
    DeadLetterHeaders,
    DeadLetterMatcher,
    OriginTopics,
    read_dead_letter,
)
from goqueue.delivery.offsets import between, span
from goqueue.delivery.redrive_facts import RedriveFact
from goqueue.errors import OffsetOutOfRange
from goqueue.record import kernel
from goqueue.record.header import Buffer, Flags
from goqueue.record.message import StoredMessage
from goqueue.service.pending import Pending

REDRIVE_GROUP = "__redrive"


class FoundDeadLetter(NamedTuple):
    """A dead letter that matches, and the records it was found in."""

    source: "DeadLetterPartition"
    message: StoredMessage
    dead_letter: DeadLetterHeaders
    records: Buffer


class DeadLetterStretch(NamedTuple):
    """Some dead letters of a partition, and the offset after them."""

    records: Buffer
    messages: Sequence[StoredMessage]
    end: int


class DeadLetterPartition:
    """The dead letters of one partition of a dead-letter topic."""

    def __init__(self, leader: PartitionLeader, *, topics: LocalPartitions, stretch_bytes: int) -> None:
        self.leader = leader
        self._topics = topics
        self._stretch_bytes = stretch_bytes
        self._counts = DeadLetterTallies(leader.log.start_offset)
        self._times: dict[int, int | None] = {}
        self.is_counting = False

    @property
    def is_counted(self) -> bool:
        """Whether all dead letters were counted."""
        return self._counts.end >= self.leader.last_stable_offset

    def dead(self, origins: OriginTopics = ALL_TOPICS) -> BitMap64:
        """The dead letters that were not redriven. Of one topic that shares the dead-letter topic, those counted."""
        cursor = self._cursor()
        start = self.leader.log.start_offset
        if cursor is None:
            return self._counts.dead_letters(start, self.leader.last_stable_offset, origins)
        found = self._counts.dead_letters(max(start, cursor.floor), self.leader.last_stable_offset, origins)
        found -= cursor.acked
        found -= cursor.dead_lettering
        return found

    def is_dead(self, offset: int) -> bool:
        """Whether the message exists and was not redriven."""
        cursor = self._cursor()
        return offset >= self.leader.log.start_offset and (cursor is None or not cursor.is_done(offset))

    def count(self, most: int) -> int:
        """Count some more; returns how many."""
        cursor = self._cursor()
        start = self.leader.log.start_offset
        self._counts.forget_below(start if cursor is None else max(start, cursor.floor))
        limit = self.leader.last_stable_offset
        counted = 0
        for stretch in self.read(span(self._counts.end, limit)):
            counted_now = [(message.offset, message.headers) for message in stretch.messages]
            self._counts.note(counted_now, end=stretch.end)
            counted += len(counted_now)
            if counted >= most:
                return counted
        self._counts.note((), end=max(limit, self._counts.end))
        return counted

    def tally(self, dead: BitMap64) -> DeadLetterTally:
        """Counts of what these have in their headers."""
        return self._counts.tally(dead)

    def times(self, dead: BitMap64) -> list[int]:
        """When the first and the last of them were dead-lettered."""
        wanted = (dead.min(), dead.max()) if dead else ()
        self._times = {offset: self._times.get(offset) or self._time_of(offset) for offset in wanted}
        return [time_ns for time_ns in self._times.values() if time_ns is not None]

    def find(self, wanted: DeadLetterMatcher, offsets: BitMap64) -> Iterator[FoundDeadLetter | None]:
        """Those that match, in order; None after each stretch of the log, so that the caller can pause."""
        for stretch in self.read(wanted.among(self.leader.origin.partition, offsets)):
            for message in stretch.messages:
                if wanted.may_match(message.key, message.encoded_headers):
                    headers = message.headers
                    dead_letter = read_dead_letter(headers, timestamp_ns=message.timestamp_ns)
                    if wanted.matches(message.key, headers, dead_letter):
                        yield FoundDeadLetter(self, message, dead_letter, stretch.records)
            yield None

    def read(self, wanted: BitMap64) -> Iterator[DeadLetterStretch]:
        """The dead letters of the offsets, a stretch of the log at a time, without those that no longer exist."""
        left = wanted
        while left:
            start, end = left.min(), left.max() + 1
            reader = self.leader.reader(start)
            try:
                chunk = reader.read(max_bytes=self._stretch_bytes, to_offset=end)
            except OffsetOutOfRange as error:
                if error.start <= start:
                    return
                left = between(left, error.start, end)
                continue
            self.leader.keep(reader)
            next_offset = max(chunk.next_offset, start + 1)
            asked = between(left, start, next_offset)
            records: Buffer = chunk.records
            if chunk.record_count != len(asked):
                records = kernel.select(records, asked.to_array(), max_bytes=len(records)).records
            messages = kernel.decode(records, self.leader.origin, StoredMessage, verify=False)
            yield DeadLetterStretch(
                records, [message for message in messages if not message.flags & Flags.CONTROL], next_offset
            )
            left = between(left, next_offset, end)

    def redrive(self, offsets: Sequence[int], target: str, partition: int, *, to_group: bool) -> Pending[Copies]:
        """Copy dead letters to that partition; with `to_group` each for the group that dead-lettered it."""
        group_delivery = self._topics.delivery(self.leader).group(REDRIVE_GROUP)
        return group_delivery.redrive(BitMap64(offsets), target, partition, to_group=to_group)

    def redrive_facts(self) -> Iterator[RedriveFact]:
        """What the ledger says about redrives."""
        if self.leader.partition.has_ledger:
            for key, value in self._topics.delivery(self.leader).redrive_facts.items():
                try:
                    yield redrive_facts.decode(key, value)
                except ValueError as error:
                    self.leader.unreadable.pass_over(key, error)

    def write(self, facts: Sequence[Fact], *, flush: bool = True) -> Pending[None]:
        """Write facts about redrives; done when they are durable. Raises `StorageError`."""
        end = self._topics.delivery(self.leader).write_redrive_facts(facts, flush=flush)
        return self.leader.ledger.when_stored(end) if flush else Pending.of(None)

    def _cursor(self) -> Cursor | None:
        delivery = self.leader.delivery
        if not isinstance(delivery, PartitionDelivery):
            if not self.leader.partition.has_ledger:  # nothing was ever redriven
                return None
            delivery = self._topics.delivery(self.leader)
        group_delivery = delivery.groups.get(REDRIVE_GROUP)
        return None if group_delivery is None else group_delivery.cursor

    def _time_of(self, offset: int) -> int | None:
        for stretch in self.read(span(offset, offset + 1)):
            for message in stretch.messages:
                return read_dead_letter(message.headers, timestamp_ns=message.timestamp_ns).dead_at_ns
        return None
