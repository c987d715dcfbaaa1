"""The index of a partition against what is in its records."""

import random

from pyroaring import BitMap64

from goqueue.clock import MS, SECOND
from goqueue.delivery.index import PartitionIndex
from goqueue.delivery.lanes import NORMAL
from goqueue.record import kernel
from goqueue.record.header import FLAGS_KNOWN, Flags
from goqueue.record.headers import DELIVER_AT, EXPIRES_AT


def stamped(count: int, first_offset: int = 0, **given: object) -> bytearray:
    records = kernel.encode([b"v"] * count, **given)  # type: ignore[arg-type]
    kernel.stamp(records, first_offset=first_offset, timestamp=1_000, flags_allowed=FLAGS_KNOWN)
    return records


def covered(index: PartitionIndex, start: int, end: int, records: bytearray, *, ttl_ns: int | None = None) -> None:
    index.cover(start, end, kernel.outline(records), ttl_ns=ttl_ns)


def test_offsets_are_split_by_priority() -> None:
    index = PartitionIndex()
    rng = random.Random(3)
    priorities = [rng.randrange(5) for _ in range(200)]
    covered(index, 10, 210, stamped(200, 10, priorities=priorities))

    found = dict(index.split(BitMap64(range(10, 210))))

    for lane in range(5):
        assert list(found[lane]) == [10 + place for place, priority in enumerate(priorities) if priority == lane]
    assert dict(index.split(BitMap64())) == {}
    assert list(index.lanes[NORMAL]) == []


def test_control_records_and_holes_are_hidden() -> None:
    index = PartitionIndex()
    records = stamped(3, 5, flags=[Flags.CONTROL, 0, 0]) + stamped(1, 11)
    covered(index, 3, 14, records)

    assert list(index.hidden) == [3, 4, 5, 8, 9, 10, 12, 13]
    assert index.covered_until(3) == 14
    assert index.covered_until(0) == 0


def test_a_stretch_of_nothing_is_hidden_as_a_whole() -> None:
    index = PartitionIndex()
    covered(index, 3, 6, bytearray())

    assert list(index.hidden) == [3, 4, 5]


def test_messages_expire_at_their_time_and_once() -> None:
    index = PartitionIndex()
    times = [5 * SECOND, 2 * SECOND, 5 * SECOND]
    headers = [{EXPIRES_AT: str(time_ns)} for time_ns in times]
    covered(index, 0, 3, stamped(3, headers=headers))

    assert index.next_expiry_ns == 2 * SECOND
    assert not index.expire(2 * SECOND - 11 * MS)
    assert list(index.expire(2 * SECOND)) == [1]
    assert not index.expire(3 * SECOND)
    assert list(index.expire(9 * SECOND)) == [0, 2]
    assert list(index.expired) == [0, 1, 2]
    assert index.next_expiry_ns is None


def test_the_ttl_of_a_delayed_message_begins_when_it_is_due_unless_it_names_a_time() -> None:
    index = PartitionIndex()
    headers = [{DELIVER_AT: str(7 * SECOND)}, {DELIVER_AT: str(7 * SECOND), EXPIRES_AT: str(8 * SECOND)}]
    covered(index, 0, 2, stamped(2, headers=headers), ttl_ns=10 * SECOND)

    assert list(index.expire(8 * SECOND)) == [1]
    assert list(index.expire(17 * SECOND)) == [0]
    assert list(index.own_expiry) == [0, 1]


def test_what_lies_below_the_start_is_forgotten() -> None:
    index = PartitionIndex()
    covered(index, 0, 4, stamped(4, priorities=[0, 0, 4, 4]))
    index.cover_plain(4, 9)

    index.drop_below(3)

    assert [list(lane) for lane in index.lanes] == [[], [], [], [], [3]]
    assert index.covered_until(3) == 9
