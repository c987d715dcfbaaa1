"""Keyed facts in a partition of an internal topic; the last one of each key counts.

A coordinator writes its state here before it answers, and reads it here when it starts. The topic is compacted, so it
holds little more than the current state. A fact of None is a tombstone, and deletes its key.

The facts of one `put` are one batch, in their order. A crash before it is answered may keep none of them, all, or the
first few, so the fact that makes the others count comes last. Damaged records are skipped: their fact is lost, and an
older fact of the same key counts again. A fact that its owner cannot decode is skipped, too, and reported
(`unreadable.py`); it stays in the journal, for a version that can decode it.

Snapshots in the ledger make a start fast: all facts as of an offset, from which on the log is read. The last three are
kept, in three slots that are written in turn:

    key "journal" slot(1) piece(4)      one piece of the snapshot in that slot

Each piece names its snapshot and the number of pieces. If a piece of a snapshot is missing, damaged or older than the
others, the snapshot before it counts. A snapshot is written when all of its facts are durable. It is used only if the
log still has all records after its offset: compaction removes tombstones in the end, and the keys that they deleted
must not come back. A compacted log is short, so it is read instead.
"""

import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from goqueue.broker.partition.leader import PartitionLeader
from goqueue.broker.partition.ledger import Fact, facts_in
from goqueue.clock import SECOND
from goqueue.errors import StorageError
from goqueue.names import TopicPartition
from goqueue.record import kernel
from goqueue.record.message import StoredMessage
from goqueue.service.pending import Pending
from goqueue.storage.log import Log

LOAD_BYTES = 4 * 1024 * 1024
SNAPSHOT_RECORDS = 10_000
SNAPSHOT_INTERVAL_NS = 300 * SECOND
"""A snapshot is due after this many records, or after this time if there were any."""
RETRY_NS = 10 * SECOND
"""The wait before the retry of a snapshot that could not be written."""
SLOTS = 3
PIECE_BYTES_MAX = 8 * 1024 * 1024
"""The most bytes of a snapshot in one record of the ledger."""

_KEY = b"journal"
_PIECE_KEY = struct.Struct(">BI")
#                    version number next_offset pieces
_HEAD = struct.Struct(">B    Q      Q           I")
_VERSION = 1
_decode_facts = msgspec.msgpack.Decoder(list[tuple[bytes, bytes]]).decode


class _Snapshot(NamedTuple):
    """All facts as of an offset."""

    next_offset: int
    raw: bytes


class _Head(NamedTuple):
    """The header of a piece: its snapshot, and the number of pieces."""

    number: int
    next_offset: int
    piece_count: int


class _Slot:
    """One slot in the ledger: the pieces of its newest snapshot, and the highest number of pieces so far."""

    def __init__(self) -> None:
        self.head = _Head(0, 0, 0)
        self.pieces: dict[int, bytes] = {}
        self.keys_used = 0

    def note(self, piece: int, value: bytes) -> None:
        """Add a piece that was written after all others."""
        self.keys_used = max(self.keys_used, piece + 1)
        if len(value) < _HEAD.size or value[0] != _VERSION:
            return
        head = _Head(*_HEAD.unpack_from(value)[1:])
        if head != self.head:
            self.head, self.pieces = head, {}
        self.pieces[piece] = value[_HEAD.size :]

    def facts(self) -> dict[bytes, bytes] | None:
        """The snapshot, if it is complete."""
        if not self.pieces or self.pieces.keys() != set(range(self.head.piece_count)):
            return None
        try:
            return dict(_decode_facts(b"".join(self.pieces[piece] for piece in range(self.head.piece_count))))
        except msgspec.DecodeError:
            return None


class Journal:
    """The facts of one partition, in the hands of its leader: after the leader has ended, nothing can be written.

    There may be several journals of one partition; each reads what the others wrote.
    """

    def __init__(self, leader: PartitionLeader, *, piece_bytes_max: int = PIECE_BYTES_MAX) -> None:
        self.partition = leader.origin.partition
        self._live = leader
        self._piece_bytes_max = piece_bytes_max
        self._facts: dict[bytes, bytes] | None = None  # as of `_offset`; None before the first use
        self._offset = 0
        self._number = 0  # of the last snapshot
        self._keys_used = [0] * SLOTS
        self._snapshot_offset = 0  # the last snapshot has all facts before it
        self._snapshot: _Snapshot | None = None  # waits until all of its facts are durable
        self._due_ns: int | None = None
        self._not_before_ns: int | None = None  # the last one could not be written

    def load(self) -> dict[bytes, bytes]:
        """The last value of each key, in the order in which the keys last changed."""
        return dict(self._current())

    def pass_over(self, key: bytes, error: object) -> None:
        """Skip and report the fact of that key, which cannot be decoded; it stays in the journal."""
        self._live.unreadable.pass_over(key, error)

    def put(self, facts: Mapping[bytes, bytes | None], *, lazily: bool = False) -> Pending[None]:
        """Write the facts, None deletes; done when they may be acknowledged. If it raises, nothing was written."""
        if not facts:
            return Pending.of(None)
        appended = self._live.append(kernel.encode(list(facts.values()), keys=list(facts)), lazily=lazily)
        if self._facts is not None and appended.first_offset == self._offset:  # else they are read with what is missing
            self._offset = appended.last_offset + 1
            for key, value in facts.items():
                _note(self._facts, key, value)
        return self._live.when_stored(appended.last_offset + 1, None, lazily=lazily)

    def put_now(self, facts: Mapping[bytes, bytes | None]) -> None:
        """Write the facts, and return when they are durable."""
        if facts:
            self.put(facts, lazily=True)
            self._live.log.flush()

    def snapshot_if_due(self, now_ns: int) -> None:
        """Write a snapshot if it is due, so that a start need not read the history. `now_ns` is monotonic.

        A snapshot that cannot be written is not an error: it only saves time.
        """
        log = self._live.log
        if self._live.ended is not None or log.failure:
            return
        try:
            if self._snapshot is None and self._is_due(now_ns):
                raw = msgspec.msgpack.encode(list(self._current().items()))
                self._snapshot = _Snapshot(self._offset, raw)
            committed = min(log.durable_offset, self._live.high_watermark)  # what it says must never be truncated
            if self._snapshot and self._snapshot.next_offset <= committed:
                snapshot, self._snapshot = self._snapshot, None
                self._write(snapshot)
                self._due_ns = now_ns + SNAPSHOT_INTERVAL_NS
        except StorageError:
            self._not_before_ns = now_ns + RETRY_NS

    def _is_due(self, now_ns: int) -> bool:
        if self._due_ns is None:
            self._due_ns = now_ns + SNAPSHOT_INTERVAL_NS
        if self._not_before_ns is not None and now_ns < self._not_before_ns:
            return False
        facts = self._facts if self._facts is not None else self._current()
        news = self._live.log.next_offset - self._snapshot_offset
        # a snapshot of many facts costs more, and is due less often, so that its cost per record is constant
        return news >= max(SNAPSHOT_RECORDS, len(facts)) or (news > 0 and now_ns >= self._due_ns)

    def _write(self, snapshot: _Snapshot) -> None:
        ledger = self._live.ledger
        number = self._number + 1
        slot = number % SLOTS
        size = self._piece_bytes_max
        count = -(-len(snapshot.raw) // size)
        head = _HEAD.pack(_VERSION, number, snapshot.next_offset, count)
        self._number = number
        keys_used, self._keys_used[slot] = self._keys_used[slot], max(count, self._keys_used[slot])
        for piece in range(count):
            part = snapshot.raw[piece * size : (piece + 1) * size]
            ledger.write([(_key(slot, piece), head + part)], flush=False)
        if keys_used > count:
            ledger.write([(_key(slot, piece), None) for piece in range(count, keys_used)], flush=False)
        self._keys_used[slot] = count
        self._snapshot_offset = snapshot.next_offset
        self._live.wrote_ledger()
        ledger.flush()

    def _current(self) -> dict[bytes, bytes]:
        """All facts as of the end of the log."""
        log = self._live.log
        if self._facts is None:
            slots = _slots(self._live.ledger.facts() if self._live.partition.has_ledger else ())
            self._number = max(slot.head.number for slot in slots)
            self._keys_used = [slot.keys_used for slot in slots]
            self._facts, self._offset = _recalled(log, slots)
            self._snapshot_offset = self._offset
        if self._offset < log.next_offset:
            self._offset = _read_on(log, self._offset, self._live.origin, self._facts)
        return self._facts


def facts_of(log: Log, ledger: Log | None, origin: TopicPartition) -> dict[bytes, bytes]:
    """What a journal would load from these logs, which have no leader: while the data directory is converted."""
    facts, offset = _recalled(log, _slots(facts_in(ledger, origin) if ledger is not None else ()))
    _read_on(log, offset, origin, facts)
    return facts


def _slots(ledger: Iterable[Fact]) -> list[_Slot]:
    """The snapshots in a ledger."""
    slots = [_Slot() for _ in range(SLOTS)]
    for key, value in ledger:
        if not key.startswith(_KEY) or len(key) != len(_KEY) + _PIECE_KEY.size:
            continue
        slot, piece = _PIECE_KEY.unpack_from(key, len(_KEY))
        if slot < SLOTS and value is not None:
            slots[slot].note(piece, value)
    return slots


def _recalled(log: Log, slots: Sequence[_Slot]) -> tuple[dict[bytes, bytes], int]:
    """The facts of the newest valid snapshot, and the offset from which on the log has to be read."""
    for slot in sorted(slots, key=lambda slot: slot.head.number, reverse=True):
        next_offset = slot.head.next_offset
        if log.cleaned_offset <= next_offset <= log.next_offset and (facts := slot.facts()) is not None:
            return facts, next_offset
    return {}, log.start_offset


def _read_on(log: Log, offset: int, origin: TopicPartition, facts: dict[bytes, bytes]) -> int:
    """Add the facts in the log from the offset on; returns the offset after them."""
    reader = log.reader(max(offset, log.start_offset))
    while (chunk := reader.read(max_bytes=LOAD_BYTES)).record_count:
        for message in kernel.decode(chunk.records, origin, StoredMessage, verify=False):
            if message.key is not None:
                _note(facts, message.key, None if message.tombstone else message.value)
    return reader.offset


def _key(slot: int, piece: int) -> bytes:
    return _KEY + _PIECE_KEY.pack(slot, piece)


def _note(facts: dict[bytes, bytes], key: bytes, value: bytes | None) -> None:
    facts.pop(key, None)
    if value is not None:
        facts[key] = value
