"""Keyed facts in a partition of an internal topic, of which the last one for each key counts.

What a coordinator knows it writes here before it says so, and reads here when it starts. The topic is compacted, so
it holds not much more than what is true now; a fact of None is a tombstone, and takes its key away.

The facts of one `put` are one batch, in their order. A crash before it is answered may keep none of them, all, or the
first few, so what makes the others count comes last. Damaged records are passed over: what they said is lost,
and an older fact of the same key counts again. A fact that its owner cannot understand is passed over, too, and told of
(`unreadable.py`); it stays in the journal, for a version that knows better.

Snapshots in the ledger spare a start the reading of the history: all facts as of an offset, from which the log goes on
to tell. The last three are kept, in three slots that are written in turn:

    key "journal" slot(1) piece(4)      one piece of the snapshot in that slot

Each piece says to which snapshot it belongs and how many there are; a snapshot of which a piece is missing, damaged or
older than the others does not count, and the one before it does. One is written when all that it tells is on the
medium, and believed only if the log still has all records behind it: compaction takes tombstones in the end, and what
they deleted must not come back. What was compacted is short, so it is read instead.
"""

import struct
from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from goqueue.broker.partition.leader import PartitionLeader
from goqueue.clock import SECOND
from goqueue.errors import StorageError
from goqueue.record import kernel
from goqueue.record.message import Message
from goqueue.service.pending import Pending

LOAD_BYTES = 4 * 1024 * 1024
SNAPSHOT_RECORDS = 10_000
SNAPSHOT_INTERVAL_NS = 300 * SECOND
"""A snapshot is due after so many records, or after so long if there were any."""
RETRY_NS = 10 * SECOND
"""How long a snapshot that could not be written is not tried again."""
SLOTS = 3
PIECE_BYTES_MAX = 8 * 1024 * 1024
"""What of a snapshot stands in one record of the ledger, at most."""

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
    """To which snapshot a piece belongs."""

    number: int
    next_offset: int
    piece_count: int


class _Slot:
    """What the ledger has of one slot: the pieces of its newest snapshot, and how many pieces there ever were."""

    def __init__(self) -> None:
        self.head = _Head(0, 0, 0)
        self.pieces: dict[int, bytes] = {}
        self.keys_used = 0

    def note(self, piece: int, value: bytes) -> None:
        """A piece that was written behind all others."""
        self.keys_used = max(self.keys_used, piece + 1)
        if len(value) < _HEAD.size or value[0] != _VERSION:
            return
        head = _Head(*_HEAD.unpack_from(value)[1:])
        if head != self.head:
            self.head, self.pieces = head, {}
        self.pieces[piece] = value[_HEAD.size :]

    def facts(self) -> dict[bytes, bytes] | None:
        """The snapshot, if it is there as a whole."""
        if not self.pieces or self.pieces.keys() != set(range(self.head.piece_count)):
            return None
        try:
            return dict(_decode_facts(b"".join(self.pieces[piece] for piece in range(self.head.piece_count))))
        except msgspec.DecodeError:
            return None


class Journal:
    """The facts of one partition. There may be several of the same; each takes in what the others wrote."""

    def __init__(self, leader: PartitionLeader, *, piece_bytes_max: int = PIECE_BYTES_MAX) -> None:
        self._live = leader
        self._piece_bytes_max = piece_bytes_max
        self._facts: dict[bytes, bytes] | None = None  # as of `_offset`; None: nobody has asked yet
        self._offset = 0
        self._number = 0  # of the last snapshot
        self._keys_used = [0] * SLOTS
        self._snapshot_offset = 0  # what the last snapshot does not tell begins there
        self._snapshot: _Snapshot | None = None  # waits until all that it tells is on the medium
        self._due_ns: int | None = None
        self._not_before_ns: int | None = None  # the last one could not be written

    def load(self) -> dict[bytes, bytes]:
        """The last value of each key, in the order in which the keys last changed."""
        return dict(self._current())

    def pass_over(self, key: bytes, error: object) -> None:
        """What the journal says under that key cannot be understood; it stays there, and counts for nothing."""
        self._live.unreadable.pass_over(key, error)

    def put(self, facts: Mapping[bytes, bytes | None], *, lazily: bool = False) -> Pending[None]:
        """Write the facts, None deletes; done when the log vouches for them. If it raises, nothing was written."""
        if not facts:
            return Pending.of(None)
        appended = self._live.append(kernel.encode(list(facts.values()), keys=list(facts)), lazily=lazily)
        if self._facts is not None and appended.first_offset == self._offset:  # else they are read with what is missing
            self._offset = appended.last_offset + 1
            for key, value in facts.items():
                _note(self._facts, key, value)
        return self._live.when_stored(appended.last_offset + 1, None, lazily=lazily)

    def put_now(self, facts: Mapping[bytes, bytes | None]) -> None:
        """Write the facts, and return when they are on the medium."""
        if facts:
            self.put(facts, lazily=True)
            self._live.log.flush()

    def snapshot_if_due(self, now_ns: int) -> None:
        """Write a snapshot now and then, so that a start need not read the history. `now_ns` is monotonic.

        One that cannot be written is no failure: it only saves time.
        """
        log = self._live.log
        if log.is_closed or log.failure:
            return
        try:
            if self._snapshot is None and self._is_due(now_ns):
                raw = msgspec.msgpack.encode(list(self._current().items()))
                self._snapshot = _Snapshot(self._offset, raw)
            if self._snapshot and self._snapshot.next_offset <= log.durable_offset:
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
        # of many facts a snapshot costs more, and is taken less often, so that it costs the same for each record
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
            self._facts, self._offset = self._recalled()
        if self._offset < log.next_offset:
            reader = log.reader(max(self._offset, log.start_offset))
            while (chunk := reader.read(max_bytes=LOAD_BYTES)).record_count:
                for message in kernel.decode(chunk.records, self._live.origin, Message, verify=False):
                    if message.key is not None:
                        _note(self._facts, message.key, None if message.tombstone else message.value)
            self._offset = reader.offset
        return self._facts

    def _recalled(self) -> tuple[dict[bytes, bytes], int]:
        """The facts of the newest snapshot that can be believed, and the offset from which the log goes on to tell."""
        log = self._live.log
        self._snapshot_offset = log.start_offset
        slots = self._slots()
        self._number = max(slot.head.number for slot in slots)
        self._keys_used = [slot.keys_used for slot in slots]
        for slot in sorted(slots, key=lambda slot: slot.head.number, reverse=True):
            next_offset = slot.head.next_offset
            if log.cleaned_offset <= next_offset <= log.next_offset and (facts := slot.facts()) is not None:
                self._snapshot_offset = next_offset
                return facts, next_offset
        return {}, log.start_offset

    def _slots(self) -> list[_Slot]:
        slots = [_Slot() for _ in range(SLOTS)]
        if self._live.partition.has_ledger:
            for key, value in self._live.ledger.facts():
                if not key.startswith(_KEY) or len(key) != len(_KEY) + _PIECE_KEY.size:
                    continue
                slot, piece = _PIECE_KEY.unpack_from(key, len(_KEY))
                if slot < SLOTS and value is not None:
                    slots[slot].note(piece, value)
        return slots


def _key(slot: int, piece: int) -> bytes:
    return _KEY + _PIECE_KEY.pack(slot, piece)


def _note(facts: dict[bytes, bytes], key: bytes, value: bytes | None) -> None:
    facts.pop(key, None)
    if value is not None:
        facts[key] = value
