"""A log with transactions, and an owner who does all that an owner has to do."""

from contextlib import suppress

from pyroaring import BitMap64

from goqueue.errors import StorageFull
from goqueue.record import kernel
from goqueue.record.header import Flags
from goqueue.record.headers import PRODUCER
from goqueue.record.identity import BatchIdentity
from goqueue.record.message import StoredMessage
from goqueue.storage import small_file
from goqueue.storage.config import LogConfig
from goqueue.storage.file import Disk
from goqueue.storage.log import Log
from goqueue.testing import FaultyDisk, MemoryDisk
from goqueue.transactions.markers import MARKER_FLAGS, TRANSACTIONAL_FLAGS, Marker, marker, markers_in
from goqueue.transactions.partition_transactions import PartitionTransactions
from goqueue.transactions.sequences import identities
from tests.storage.logs import DIRECTORY, NOW_NS, ORIGIN

CONFIG = LogConfig(segment_bytes=400)

SNAPSHOTS = "/data"
_KIND = b"TEST"


class Owner:
    """A partition: the log, what transactions did to it, and a snapshot of that beside it."""

    def __init__(self, disk: Disk, config: LogConfig) -> None:
        self.disk = disk
        self.log = Log.open(disk, DIRECTORY, config)
        self.transactions = PartitionTransactions()
        self.snapshot_offset = 0
        self.replayed_from: int | None = None
        self.load()

    def load(self) -> None:
        """Find out what is open and what was aborted."""
        known = self.log.transactions.aborted()
        self.transactions.aborted |= known.offsets
        snapshot = self._stored_snapshot()
        offset = self.log.start_offset
        if snapshot and (told := PartitionTransactions().restore(snapshot)) <= self.log.next_offset:
            offset = max(offset, told)
            self.snapshot_offset = told
        if known.replay_from is not None and known.replay_from < offset:
            self.replayed_from = known.replay_from
            self._replay(known.replay_from, offset)
        self.transactions.forget_open()
        if self.snapshot_offset and snapshot:
            self.transactions.restore(snapshot)
        self._replay(offset, self.log.next_offset)
        self.transactions.drop_below(max(self.log.start_offset, self.log.cleaned_offset))
        self.log.transactions.mend()

    def _stored_snapshot(self) -> bytes | None:
        try:
            return small_file.load(self.disk, SNAPSHOTS, "snapshot", _KIND)
        except FileNotFoundError:
            return None

    def _replay(self, offset: int, end: int) -> None:
        reader = self.log.reader(offset)
        while (chunk := reader.read(max_bytes=500, to_offset=end)).record_count:
            for decided in self.transactions.note_records(chunk.records):
                if not decided.is_commit:
                    for first, last in decided.ranges:
                        self.log.transactions.note_aborted(first, last, decided.marker_offset)

    @property
    def stable_offset(self) -> int:
        first_open = self.transactions.first_open_offset
        return self.log.durable_offset if first_open is None else min(first_open, self.log.durable_offset)

    def publish(
        self, producer_id: int, number: int, keys: list[bytes], *, now_ns: int = NOW_NS, delete: bool = False
    ) -> None:
        """A batch of the transaction; number 0 is none."""
        identity = BatchIdentity(producer_id, 0, 0, len(keys), number)
        headers: list[dict[str, str | bytes] | None] = [{PRODUCER: identity.encode()}, *[None] * (len(keys) - 1)]
        offset = self.log.next_offset
        values = [None if delete else b"%d" % (offset + index) for index in range(len(keys))]
        flags = Flags.TRANSACTIONAL if number else 0
        records = kernel.encode(values, keys=keys, headers=headers, flags=flags)
        self.log.append(records, now_ns=now_ns, flags_allowed=TRANSACTIONAL_FLAGS, record_count=len(keys))
        if number:
            self.transactions.appended(producer_id, number, offset, len(keys))

    def end(self, producer_id: int, number: int, *, commit: bool, now_ns: int = NOW_NS) -> None:
        appended = self.log.append(
            marker(producer_id, number, commit=commit), now_ns=now_ns, flags_allowed=MARKER_FLAGS
        )
        for first, end in self.transactions.ended(producer_id, number, commit=commit) or []:
            if not commit:
                self.log.transactions.note_aborted(first, end, appended.first_offset)

    def snapshot(self) -> None:
        """Write a snapshot, as soon as all that it tells is on the medium, and the indexes are."""
        self.log.flush()
        told, raw = self.log.next_offset, self.transactions.snapshot(self.log.next_offset)
        with suppress(StorageFull):
            self.log.transactions.sync()
        if self.log.transactions.synced_offset >= told:
            small_file.replace(self.disk, SNAPSHOTS, "snapshot", _KIND, raw)
            self.snapshot_offset = told

    def compact(self, *, now_ns: int = NOW_NS) -> None:
        self.log.flush()
        job = self.log.begin_compaction(
            now_ns=now_ns, stable_offset=self.stable_offset, markers_below=self.snapshot_offset
        )
        self.log._run(job)

    def expire(self, *, now_ns: int = NOW_NS) -> None:
        self.log.flush()
        self.log._run(self.log.expire(now_ns=now_ns))
        self.transactions.drop_below(self.log.start_offset)

    def visible(self) -> list[StoredMessage]:
        """What a reader of committed records sees."""
        return [
            message
            for message in records_of(self.log)
            if message.offset < self.stable_offset
            and not message.flags & Flags.CONTROL
            and message.offset not in self.transactions.aborted
        ]


def records_of(log: Log) -> list[StoredMessage]:
    """All records."""
    messages: list[StoredMessage] = []
    reader = log.reader(log.start_offset)
    while (chunk := reader.read(max_bytes=1 << 20)).record_count:
        messages += kernel.decode(chunk.records, ORIGIN, StoredMessage)
    return messages


def told_by(log: Log) -> tuple[BitMap64, dict[tuple[int, int], int]]:
    """What was aborted and what is open, as somebody finds who reads all of a log that was not compacted."""
    open_at: dict[tuple[int, int], list[int]] = {}
    aborted = BitMap64()
    for offset, what in batches(log):
        if isinstance(what, Marker):
            decided = open_at.pop((what.producer_id, what.number), [])
            aborted |= BitMap64([] if what.is_commit else decided)
        elif what.transaction:
            mine = open_at.setdefault((what.producer_id, what.transaction), [])
            mine += range(offset, offset + what.record_count)
    return aborted, {transaction: offsets[0] for transaction, offsets in open_at.items()}


def batches(log: Log) -> list[tuple[int, BatchIdentity | Marker]]:
    """All that producers and the broker wrote."""
    records = b""
    reader = log.reader(log.start_offset)
    while (chunk := reader.read(max_bytes=1 << 20)).record_count:
        records += chunk.records
    found: list[tuple[int, BatchIdentity | Marker]] = [(one.offset, one) for one in markers_in(records)]
    found += [(offset, batch) for offset, _, batch in identities(memoryview(records))]
    return sorted(found, key=lambda one: one[0])


def owner(disk: MemoryDisk | FaultyDisk, config: LogConfig = CONFIG) -> Owner:
    disk.make_directory(SNAPSHOTS)
    return Owner(disk, config)


def check(one: Owner) -> None:
    """What the owner knows is what the log tells; there is neither retention nor compaction."""
    aborted, open_at = told_by(one.log)
    assert one.transactions.aborted == aborted
    assert dict(one.transactions.open) == open_at


def paths(disk: MemoryDisk) -> list[str]:
    return [path for path in disk.paths() if ".txnindex" in path]


def some_aborts(one: Owner, count: int = 3) -> None:
    """Transactions over several segments, every second one aborted."""
    for number in range(1, count + 1):
        for key in (b"a", b"b", b"c"):
            one.publish(7, number, [key, key])
            one.publish(8, 0, [key])
        one.end(7, number, commit=number % 2 == 0)
