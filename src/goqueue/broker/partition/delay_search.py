"""Whether a log holds delayed messages that no delay file knows.

The first delayed message is appended just before a file beside the log notes that there are any (`Log.mark_delayed`).
So after a crash the end of the log is searched, from the last checkpoint on. If the delay file is missing although the
log should have one, the whole log has to be searched. Records before that checkpoint are searched when they are first
read: usually a log without a delay file has no delayed message, and to look at every record at each start is slow.

What was found stays known for as long as the partition is on this node, whichever leader comes and goes.
"""

from pyroaring import BitMap64

from goqueue.record import kernel
from goqueue.record.header import Buffer, Flags
from goqueue.storage.delay_file import DelayFile
from goqueue.storage.file import unusable
from goqueue.storage.log import Log

LOAD_BYTES = 4 * 1024 * 1024


class DelaySearch:
    """What is known about delayed messages in one log."""

    __slots__ = ("_file", "_log", "_looked_to", "_without", "has_delays", "known_from", "unfiled_from")

    def __init__(self, log: Log, file: DelayFile) -> None:
        self._log = log
        self._file = file
        self._looked_to: int | None = None  # the end of the log was searched up to here
        self._without: BitMap64 | None = None  # offsets before `known_from` that were searched
        self.has_delays = False
        self.unfiled_from: int | None = None  # from here on there may be delayed messages that are in no delay file
        self.known_from = 0  # before it, there may be delayed messages that only the log has

    def look_at_tail(self) -> bool:
        """Search what was appended since the last time, or since the last checkpoint; returns whether it has
        transactions.
        """
        log, has_file = self._log, self._file.exists
        self.has_delays = self.has_delays or has_file or log.has_delays
        if self.has_delays and not has_file:
            self.unfiled_from = log.start_offset
        has_transactions = log.transactions.has_any
        is_first = self._looked_to is None
        tail = max(log.recovered_offset if self._looked_to is None else self._looked_to, log.start_offset)
        reader = log.reader(min(tail, log.next_offset))
        while not (self.has_delays and has_transactions) and (chunk := reader.read(max_bytes=LOAD_BYTES)).record_count:
            if not self.has_delays and chunk.flags & Flags.HAS_HEADERS and kernel.outline(chunk.records).delayed:
                self.found()
            has_transactions = has_transactions or bool(chunk.flags & Flags.TRANSACTIONAL)
        if is_first:
            self.known_from = 0 if self.has_delays else tail
        self._looked_to = log.next_offset
        return has_transactions

    def found(self) -> None:
        """There are delayed messages, and the whole log has to be searched for them."""
        self.has_delays = True
        self.known_from = 0
        if not self._file.exists:
            self.unfiled_from = self._log.start_offset

    def looked_to(self, offset: int) -> None:
        """A leader has seen every record below the offset."""
        self._looked_to = offset

    def appended(self, end_offset: int, *, has_delayed: bool) -> None:
        """A follower has appended records of its leader, up to that offset."""
        if has_delayed and not self.has_delays:
            self.found()
        self._looked_to = end_offset

    def has_unknown(self, records: Buffer, start: int, end: int) -> bool:
        """Whether the records of [start, end) hold delayed messages that are not known yet.

        Usually that costs nothing: messages stored since the start are known, and the others are searched once.
        """
        end = min(end, self.known_from)
        if self._without is None:
            self._without = BitMap64()
        if start >= end or self._without.range_cardinality(start, end) == end - start:
            return False
        if kernel.outline(records).delayed:
            return True
        self._without.add_range(start, end)
        return False

    def discard_file(self) -> None:
        """Remove the delay file, because it may name what the log or the ledger has lost; the log has to be searched.

        Raises `StorageError` or `DirectoryUnusable`.
        """
        if not self._file.exists:
            return
        self._log.mark_delayed()
        try:
            self._file.discard()
        except OSError as error:
            raise unusable(self._log.directory, error) from error
        self.found()

    def truncated(self, offset: int) -> None:
        """The log ends at the offset now."""
        if self._looked_to is not None and self._looked_to > offset:
            self._looked_to = offset
        if self._without is not None:
            self._without.remove_range(offset, max(offset, self.known_from))
        self.known_from = min(self.known_from, offset)
