"""The ledger: what a cursor has to remember, as records of a compacted log.

    key "c" group                      the whole cursor, a snapshot
    key "d" group 0x00 number          one change since then; numbers start again at 0 after each snapshot

Replaying the records in order restores a cursor. Compaction removes a change only when a later one has the same number,
and that one was written after a snapshot which includes the first. So nothing that counts is lost, and the ledger stays
as small as its cursors are.

Leases are recorded as well as acks: after a restart a message that is in flight is not delivered to another member, and
its receipt stays valid. A lease names the poll that it answers, so that a poll can be repeated after a restart, too.
Times in the ledger are wall clock, but never before that of an earlier record; `shift_ns` (ledger time minus monotonic
time) converts between the two.

On disk a record is an array that begins with its tag. Tags and the order of fields never change; new fields go last,
with a default.
"""

from collections.abc import Iterable
from typing import Annotated, NamedTuple

import msgspec
from pyroaring import BitMap64

from goqueue.delivery.cursor import Cursor, CursorState, Held, OpenDelivery

CURSOR_KEY = b"c"
CHANGE_KEY = b"d"


Whole = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
"""Bounds for numbers that come from a disk."""
Time = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]


class _CursorChange(msgspec.Struct, array_like=True, frozen=True):
    pass


class Leased(_CursorChange, frozen=True, tag=1):
    """Messages were leased to a member."""

    delivery_id: Whole
    member: str
    started_ns: Time
    deadline_ns: Time
    offsets: bytes
    poll: Whole = 0  # the number that the member gave its poll


class Acked(_CursorChange, frozen=True, tag=2):
    """Messages were acknowledged: deliveries and offsets."""

    parts: list[tuple[Whole, bytes]]


class Retried(_CursorChange, frozen=True, tag=3):
    """Messages of a delivery wait for their next one: times and offsets."""

    delivery_id: Whole
    parts: list[tuple[Time, bytes]]


class Extended(_CursorChange, frozen=True, tag=4):
    """Leases got a new deadline."""

    delivery_id: Whole
    deadline_ns: Time
    offsets: bytes


class Released(_CursorChange, frozen=True, tag=5):
    """Messages were released; without `counts` as if they had not been delivered."""

    delivery_id: Whole
    counts: bool
    offsets: bytes


class CopyBatch(msgspec.Struct, array_like=True, frozen=True):
    """The batch that holds the copies of messages: where it goes, and its epoch and sequences there."""

    topic: str
    topic_id: str
    partition: Whole
    epoch: Whole
    first_sequence: Whole
    record_count: Whole

    @property
    def end_sequence(self) -> int:
        """The sequence after those of the batch."""
        return self.first_sequence + self.record_count


class DeadLettering(_CursorChange, frozen=True, tag=6):
    """Messages are being copied to another topic: to the dead-letter topic or, with a `target`, redriven from it.

    From the time at which their copies may be in the target on, `batch` says which batch of the target they are in.
    """

    delivery_id: Whole  # 0: they were in no delivery
    offsets: bytes
    reason: str
    error: str
    member: str
    target_offset: int  # of an older version: copies may be in the target from here on; below 0 there are none
    dead_at_ns: Time
    target: str = ""
    target_partition: int = -1
    to_group: bool = False  # with a target: each copy is for the group that dead-lettered the message
    batch: CopyBatch | None = None

    def of(self, offsets: BitMap64) -> "DeadLettering":
        """The same for some of the messages."""
        return msgspec.structs.replace(self, offsets=blob(offsets))


class Finished(_CursorChange, frozen=True, tag=7):
    """Messages are done: dead-lettered, dropped or cancelled."""

    offsets: bytes


class Committed(_CursorChange, frozen=True, tag=8):
    """A position was committed: messages are done, in whatever state they were."""

    offsets: bytes
    metadata: str


class HeldBack(_CursorChange, frozen=True, tag=9):
    """A transaction has acknowledged messages of a delivery. They wait for its outcome: finished, or given back."""

    producer_id: Whole
    number: Whole
    delivery_id: Whole
    offsets: bytes


class GivenBack(_CursorChange, frozen=True, tag=10):
    """The transaction was aborted: what it held is leased again, by leases that have expired."""

    producer_id: Whole
    number: Whole


Change = Leased | Acked | Retried | Extended | Released | DeadLettering | Finished | Committed | HeldBack | GivenBack


class CursorSnapshot(msgspec.Struct, array_like=True, frozen=True):
    """A whole cursor."""

    floor: Whole
    salt: bytes
    acked: bytes
    counts: dict[Whole, bytes]
    first: dict[Time, bytes]
    deliveries: list[tuple[Whole, str, Time, list[tuple[Time, bytes]]]]
    waiting: list[tuple[Time, bytes]]
    dead_letterings: list[DeadLettering]
    metadata: str = ""
    released: bytes = b""
    left: dict[int, bytes] = {}  # per open delivery: what it no longer leases
    polls: dict[Whole, Whole] = {}  # per open delivery: the number of its poll
    held: list[tuple[Whole, Whole, Whole, str, Time, bytes]] = []  # as `cursor.Held`
    batches: list[CopyBatch] = []  # the last one for each target, done or not


encode = msgspec.msgpack.Encoder().encode
_decode_change = msgspec.msgpack.Decoder(Change).decode
_decode_snapshot = msgspec.msgpack.Decoder(CursorSnapshot).decode


def cursor_key(group: str) -> bytes:
    """The key of the group's snapshot."""
    return CURSOR_KEY + group.encode()


def change_key(group: str, number: int) -> bytes:
    """The key of the group's change of that number."""
    return b"%b%b\0%b" % (CHANGE_KEY, group.encode(), number.to_bytes(4))


def change_number(key: bytes) -> int:
    """The number in the key of a change."""
    return int.from_bytes(key[-4:])


class LedgerEntry(NamedTuple):
    """One record of the ledger that is about a cursor; without a value, the cursor was deleted."""

    group: str
    value: CursorSnapshot | Change | None


def decode(key: bytes, value: bytes | None) -> LedgerEntry | None:
    """The decoded record; None if it is not about a cursor. Raises `ValueError` if it cannot be decoded."""
    if key[:1] == CURSOR_KEY:
        return LedgerEntry(key[1:].decode(), _decode_snapshot(value) if value else None)
    if key[:1] == CHANGE_KEY and value and key[-5:-4] == b"\0":
        return LedgerEntry(key[1:-5].decode(), _decode_change(value))
    return None


def blob(offsets: BitMap64) -> bytes:
    """The offsets as the ledger stores them."""
    return offsets.serialize()


def offsets_of(raw: bytes) -> BitMap64:
    """The offsets of a `blob`. Raises `ValueError` for anything else."""
    if not raw:
        raise ValueError("no offsets")
    return BitMap64.deserialize(raw)


def snapshot(
    cursor: Cursor,
    *,
    salt: bytes,
    dead_letterings: Iterable[DeadLettering],
    metadata: str,
    shift_ns: int,
    batches: Iterable[CopyBatch] = (),
) -> CursorSnapshot:
    """The cursor as it is now."""
    state = cursor.state()
    state.acked.run_optimize()
    return CursorSnapshot(
        state.floor,
        salt,
        blob(state.acked),
        {count: blob(offsets) for count, offsets in state.counts.items()},
        {time_ns: blob(offsets) for time_ns, offsets in state.first.items()},
        [
            (one.id, one.member, one.started_ns, [(until + shift_ns, blob(offsets)) for until, offsets in one.parts])
            for one in state.deliveries
        ],
        [(at_ns + shift_ns, blob(offsets)) for at_ns, offsets in state.waiting],
        list(dead_letterings),
        metadata,
        blob(state.released) if state.released else b"",
        {one.id: blob(one.left) for one in state.deliveries if one.left},
        {one.id: one.poll for one in state.deliveries if one.poll},
        [(*one.transaction, one.delivery_id, one.member, one.started_ns, blob(one.offsets)) for one in state.held],
        list(batches),
    )


def restore(cursor: Cursor, saved: CursorSnapshot, *, shift_ns: int) -> None:
    """Restore a new cursor from the snapshot."""
    deliveries = []
    for delivery_id, member, started_ns, parts in saved.deliveries:
        delivery = OpenDelivery(delivery_id, member, started_ns, saved.polls.get(delivery_id, 0))
        for deadline_ns, raw in parts:
            delivery.lease(offsets_of(raw), deadline_ns - shift_ns)
        if delivery_id in saved.left:
            delivery.left = offsets_of(saved.left[delivery_id])
        deliveries.append(delivery)
    cursor.restore(
        CursorState(
            saved.floor,
            offsets_of(saved.acked),
            {count: offsets_of(raw) for count, raw in saved.counts.items()},
            {time_ns: offsets_of(raw) for time_ns, raw in saved.first.items()},
            deliveries,
            [(at_ns - shift_ns, offsets_of(raw)) for at_ns, raw in saved.waiting],
            offsets_of(saved.released) if saved.released else BitMap64(),
            [
                Held((producer_id, number), delivery_id, member, started_ns, offsets_of(raw))
                for producer_id, number, delivery_id, member, started_ns, raw in saved.held
            ],
        )
    )
    for dead_lettering in saved.dead_letterings:
        cursor.dead_letter(offsets_of(dead_lettering.offsets))


def replay(cursor: Cursor, change: Change, *, shift_ns: int, now_ns: int) -> None:
    """Apply a recorded change to the cursor; applying it twice does no harm."""
    match change:
        case Leased(delivery_id, member, started_ns, deadline_ns, raw, poll):
            delivery = OpenDelivery(delivery_id, member, started_ns, poll)
            delivery.lease(offsets_of(raw), deadline_ns - shift_ns)
            cursor.resume(delivery)
        case Acked(parts):
            for delivery_id, raw in parts:
                cursor.ack(delivery_id, offsets_of(raw))
        case Retried(delivery_id, parts):
            cursor.requeue(delivery_id, [(at_ns - shift_ns, offsets_of(raw)) for at_ns, raw in parts])
        case Extended(delivery_id, deadline_ns, raw):
            cursor.extend(delivery_id, offsets_of(raw), deadline_ns=deadline_ns - shift_ns)
        case Released(delivery_id, counts, raw):
            cursor.release(delivery_id, offsets_of(raw), now_ns=now_ns, counts=counts)
        case DeadLettering(delivery_id, raw):
            offsets = offsets_of(raw)
            cursor.reject(delivery_id, offsets)
            cursor.dead_letter(offsets)
        case Finished(raw) | Committed(raw):  # `commit`, as the ledger does not say which state they were in
            cursor.commit(offsets_of(raw))
        case HeldBack(producer_id, number, delivery_id, raw):
            cursor.hold((producer_id, number), delivery_id, offsets_of(raw))
        case GivenBack(producer_id, number):
            cursor.unhold((producer_id, number))
