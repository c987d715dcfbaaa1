"""Records of the ledger: keys, values, and what does not belong to it."""

import msgspec
import pytest
from pyroaring import BitMap64

from goqueue.delivery import ledger
from goqueue.delivery.cursor import Cursor, OpenDelivery
from goqueue.delivery.index import PartitionIndex
from goqueue.delivery.lanes import LaneConfig

OFFSETS = ledger.blob(BitMap64([1, 5, 2**40]))
CHANGES: list[ledger.Change] = [
    ledger.Leased(2**62, "anna", 1, 2, OFFSETS),
    ledger.Leased(2**62, "anna", 1, 2, OFFSETS, 2**63 - 1),
    ledger.Acked([(1, OFFSETS), (2, OFFSETS)]),
    ledger.Retried(1, [(5, OFFSETS)]),
    ledger.Extended(1, 5, OFFSETS),
    ledger.Released(1, True, OFFSETS),
    ledger.DeadLettering(1, OFFSETS, "REJECTED", "bad", "anna", 4, 5),
    ledger.DeadLettering(0, OFFSETS, "REDRIVEN", "", "", 4, 5, "orders", 2),
    ledger.DeadLettering(
        1, OFFSETS, "REJECTED", "bad", "", -1, 5, batch=ledger.CopyBatch("orders.dlq", "1f", 2, 1, 7, 3)
    ),
    ledger.Finished(OFFSETS),
    ledger.Committed(OFFSETS, "half"),
]


def empty() -> Cursor:
    return Cursor(floor=0, lanes=LaneConfig(), split=PartitionIndex().split, now_ns=0)


def opened(delivery_id: int, offset: int) -> OpenDelivery:
    delivery = OpenDelivery(delivery_id, "anna", 1, 10 * delivery_id)
    delivery.lease(BitMap64([offset]), 2)
    return delivery


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: type(change).__name__)
@pytest.mark.parametrize("group", ["g", "a:b", "größe", "d" * 255])
def test_a_change_can_be_read_back(change: ledger.Change, group: str) -> None:
    for number in (0, 255, 256, 99_999):
        entry = ledger.decode(ledger.change_key(group, number), ledger.encode(change))

        assert entry == (group, change)


def test_a_snapshot_can_be_read_back_and_a_tombstone_is_the_end() -> None:
    saved = ledger.snapshot(empty(), salt=b"salt", dead_letterings=[], metadata="m", shift_ns=7)

    entry = ledger.decode(ledger.cursor_key("g"), ledger.encode(saved))

    assert entry == ("g", saved)
    assert ledger.decode(ledger.cursor_key("g"), None) == ("g", None)


def test_a_lease_from_before_polls_were_recorded_has_none() -> None:
    old = msgspec.msgpack.encode([1, 7, "anna", 1, 2, OFFSETS])

    entry = ledger.decode(ledger.change_key("g", 0), old)

    assert entry == ("g", ledger.Leased(7, "anna", 1, 2, OFFSETS, 0))


def test_the_polls_of_open_deliveries_are_in_a_snapshot() -> None:
    cursor, restored = empty(), empty()
    for number, offset in ((4, 1), (5, 2)):
        cursor.resume(opened(number, offset))

    saved = ledger.snapshot(cursor, salt=b"", dead_letterings=[], metadata="", shift_ns=0)
    ledger.restore(restored, saved, shift_ns=0)

    assert saved.polls == {4: 40, 5: 50}
    assert not restored.polled("anna", 40)
    assert [one.id for one in restored.polled("anna", 50)] == [5]


@pytest.mark.parametrize(
    ("key", "value"),
    [(b"", b""), (b"producers", b"x"), (b"dg", b"x"),
     (b"dg\0\0\0\0\0", None), (b"d", b""), (b"x12345678", b"\x91\xc0")],
)  # fmt: skip
def test_what_is_something_else_is_passed_over(key: bytes, value: bytes | None) -> None:
    assert ledger.decode(key, value) is None


@pytest.mark.parametrize(
    ("key", "value"),
    [(b"c", b"\xc1"), (b"cg", b"not msgpack"), (b"dg\0\0\0\0\0", b"\x91\x63"), (b"c\xff\xfe", b"\x90")],
)
def test_what_cannot_be_understood_is_an_error(key: bytes, value: bytes) -> None:
    with pytest.raises(ValueError, match=r".+"):
        ledger.decode(key, value)


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: type(change).__name__)
def test_a_change_may_be_replayed_twice(change: ledger.Change) -> None:
    once, twice = empty(), empty()
    for cursor, times in ((once, 1), (twice, 2)):
        ledger.replay(cursor, ledger.Leased(1, "anna", 1, 50, OFFSETS), shift_ns=0, now_ns=0)
        for _ in range(times):
            ledger.replay(cursor, change, shift_ns=0, now_ns=0)

    def told(cursor: Cursor) -> object:
        saved = ledger.snapshot(cursor, salt=b"", dead_letterings=[], metadata="", shift_ns=0)
        return saved, cursor.dead_lettering, cursor.in_flight

    assert told(once) == told(twice)
