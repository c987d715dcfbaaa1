"""The ledger: what a cursor has to remember, as records of a compacted log.

    key "c" group                      the whole cursor, a snapshot
    key "d" group 0x00 number          one change since then; numbers start again at 0 after each snapshot

Replaying the records in their order brings a cursor back. Compaction may take a change only when a later one has its
number, and that one came after a snapshot which holds the first. So nothing that counts is lost, and the
ledger stays as small as its cursors are.

Leases are noted as well as acks: after a restart a message that is being worked on is not given to somebody else, and
its receipt is still good. Times in the ledger are wall clock, but never before that of an earlier record; `shift_ns`
(that minus monotonic) leads from one to the other.
"""

from collections.abc import Iterable
from typing import Annotated, NamedTuple

import msgspec
from pyroaring import BitMap64

from goqueue.delivery.cursor import Cursor, CursorState, Delivery

CURSOR_KEY = b"c"
CHANGE_KEY = b"d"


Whole = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
"""As a disk may tell it."""
Time = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]


class _Change(msgspec.Struct, array_like=True, frozen=True):
    pass


class Leased(_Change, frozen=True, tag=1):
    """Messages went to a member."""

    delivery_id: Whole
    member: str
    started_ns: Time
    deadline_ns: Time
    offsets: bytes


class Acked(_Change, frozen=True, tag=2):
    """Messages were acknowledged: deliveries and offsets."""

    parts: list[tuple[Whole, bytes]]


class Retried(_Change, frozen=True, tag=3):
    """Messages of a delivery wait for another one: times and offsets."""

    delivery_id: Whole
    parts: list[tuple[Time, bytes]]


class Extended(_Change, frozen=True, tag=4):
    """Leases got a new deadline."""

    delivery_id: Whole
    deadline_ns: Time
    offsets: bytes


class Released(_Change, frozen=True, tag=5):
    """Messages were given back; without `counts` as if they had not been delivered."""

    delivery_id: Whole
    counts: bool
    offsets: bytes


class Burial(_Change, frozen=True, tag=6):
    """Messages are on their way to another topic: to the dead letters or, with a `target`, back from there.

    Their copies are looked for from `target_offset` on; below 0 it was not noted yet.
    """

    delivery_id: Whole  # 0: they were in no delivery
    offsets: bytes
    reason: str
    error: str
    member: str
    target_offset: int
    dead_at_ns: Time
    target: str = ""
    target_partition: int = -1
    to_group: bool = False  # with a target: each copy is for the group that gave the message up


class Finished(_Change, frozen=True, tag=7):
    """Messages are done: buried, dropped or cancelled."""

    offsets: bytes


class Committed(_Change, frozen=True, tag=8):
    """A position was committed: messages are done, whoever had them."""

    offsets: bytes
    metadata: str


Change = Leased | Acked | Retried | Extended | Released | Burial | Finished | Committed


class Snapshot(msgspec.Struct, array_like=True, frozen=True):
    """All of a cursor."""

    floor: Whole
    salt: bytes
    acked: bytes
    counts: dict[Whole, bytes]
    first: dict[Time, bytes]
    deliveries: list[tuple[Whole, str, Time, list[tuple[Time, bytes]]]]
    waiting: list[tuple[Time, bytes]]
    burials: list[Burial]
    metadata: str = ""
    given_back: bytes = b""
    left: dict[int, bytes] = {}  # what came back from deliveries that are under way


encode = msgspec.msgpack.Encoder().encode
_decode_change = msgspec.msgpack.Decoder(Change).decode
_decode_snapshot = msgspec.msgpack.Decoder(Snapshot).decode


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
    value: Snapshot | Change | None


def decode(key: bytes, value: bytes | None) -> LedgerEntry | None:
    """What the record says; nothing if it is about something else. Raises `ValueError` if it cannot be understood."""
    if key[:1] == CURSOR_KEY:
        return LedgerEntry(key[1:].decode(), _decode_snapshot(value) if value else None)
    if key[:1] == CHANGE_KEY and value and key[-5:-4] == b"\0":
        return LedgerEntry(key[1:-5].decode(), _decode_change(value))
    return None


def blob(offsets: BitMap64) -> bytes:
    """The offsets as they stand in the ledger."""
    return offsets.serialize()


def offsets_of(raw: bytes) -> BitMap64:
    """The way back. Raises `ValueError` for anything else."""
    if not raw:
        raise ValueError("no offsets")
    return BitMap64.deserialize(raw)


def snapshot(cursor: Cursor, *, salt: bytes, burials: Iterable[Burial], metadata: str, shift_ns: int) -> Snapshot:
    """The cursor as it is."""
    state = cursor.state()
    state.acked.run_optimize()
    return Snapshot(
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
        list(burials),
        metadata,
        blob(state.given_back) if state.given_back else b"",
        {one.id: blob(one.left) for one in state.deliveries if one.left},
    )


def restore(cursor: Cursor, saved: Snapshot, *, shift_ns: int) -> None:
    """Make the new cursor what the snapshot says."""
    deliveries = []
    for delivery_id, member, started_ns, parts in saved.deliveries:
        delivery = Delivery(delivery_id, member, started_ns)
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
            offsets_of(saved.given_back) if saved.given_back else BitMap64(),
        )
    )
    for burial in saved.burials:
        cursor.doom(offsets_of(burial.offsets))


def replay(cursor: Cursor, change: Change, *, shift_ns: int, now_ns: int) -> None:
    """Do to the cursor what was done to it before; once more does no harm."""
    match change:
        case Leased(delivery_id, member, started_ns, deadline_ns, raw):
            delivery = Delivery(delivery_id, member, started_ns)
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
        case Burial(delivery_id, raw):
            offsets = offsets_of(raw)
            cursor.reject(delivery_id, offsets)
            cursor.doom(offsets)
        case Finished(raw) | Committed(raw):  # what waited was due by then, and that is not noted
            cursor.settle(offsets_of(raw))
