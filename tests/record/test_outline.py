"""What delivery has to know of a run of records: lanes, delays, expiries, holes; and nothing where all is plain."""

import struct
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from goqueue.errors import CorruptRecord
from goqueue.record.header import HEADER_BYTES, OFFSET_MAX, TIMESTAMP_MIN, Flags, Priority
from tests.record.batches import stamped, valid_batches, with_fields

NOTHING = (b"",) * 5


def offsets(raw: bytes) -> list[int]:
    return list(array("Q", raw))


def delayed(outline) -> list[tuple[int, ...]]:
    return list(struct.iter_unpack("=QqII", outline.delayed))


def expiring(outline) -> list[tuple[int, ...]]:
    return list(struct.iter_unpack("=Qq", outline.expiring))


def holes(outline) -> list[tuple[int, ...]]:
    return list(struct.iter_unpack("=QQ", outline.holes))


def at_offsets(*wanted: int, **fields) -> bytearray:
    return bytearray().join(stamped([b"v"], first_offset=offset, **fields) for offset in wanted)


def test_no_records_have_no_offsets(kernel):
    assert kernel.outline(b"") == (0, -1, -1, NOTHING, b"", b"", b"", b"", ())


def test_plain_records_take_no_bytes(kernel):
    outline = kernel.outline(stamped([b"a", None, b""], keys=[b"k", b"k", None], first_offset=7, flags=[1, 0, 0x20]))

    assert outline == (3, 7, 9, NOTHING, b"", b"", b"", b"", ())
    assert type(outline) is kernel.Outline


def test_the_log_may_begin_at_zero_and_end_at_the_last_offset(kernel):
    assert kernel.outline(stamped([b"a"]))[:3] == (1, 0, 0)
    assert kernel.outline(stamped([b"a"], first_offset=OFFSET_MAX))[:3] == (1, OFFSET_MAX, OFFSET_MAX)
    assert holes(kernel.outline(at_offsets(0, OFFSET_MAX))) == [(1, OFFSET_MAX)]


def test_each_lane_but_normal_lists_its_offsets(kernel):
    outline = kernel.outline(stamped([b"a"] * 12, priorities=[0, 1, 2, 3, 4, 2, 0, 0, 4, 3, 2, 1], first_offset=100))

    assert [offsets(lane) for lane in outline.lanes] == [[100, 106, 107], [101, 111], [], [103, 109], [104, 108]]


def test_control_records_are_in_no_lane_and_wait_for_nothing(kernel):
    times = {"gq-deliver-at": "5", "gq-expires-at": "6"}
    flags = [Flags.CONTROL, 0, Flags.CONTROL | Flags.COMMIT | Flags.TRANSACTIONAL]

    outline = kernel.outline(stamped([b"a"] * 3, flags=flags, priorities=0, headers=[times, None, None]))

    assert offsets(outline.control) == [0, 2]
    assert [offsets(lane) for lane in outline.lanes] == [[1], [], [], [], []]
    assert (outline.record_count, outline.delayed, outline.expiring) == (3, b"", b"")


def test_a_delayed_record_is_listed_with_its_time_the_crc_of_its_key_and_its_lane(kernel):
    headers = [{"gq-deliver-at": "1700000000000000001"}, {"x": "y"}, {"a": "b", "gq-deliver-at": "-7"}]

    outline = kernel.outline(
        stamped([b"a"] * 3, keys=[b"123456789", b"k", None], headers=headers, priorities=[1, 1, 2])
    )

    assert delayed(outline) == [
        (0, 1_700_000_000_000_000_001, 0xE3069283, Priority.HIGH),
        (2, -7, 0, Priority.NORMAL),
    ]
    assert offsets(outline.lanes[1]) == [0, 1]
    assert outline.expiring == b""


def test_an_expiring_record_is_listed_with_its_time(kernel):
    headers = [{"gq-expires-at": "5"}, None, {"gq-deliver-at": "1", "gq-expires-at": str(OFFSET_MAX)}]

    outline = kernel.outline(stamped([b"a"] * 3, headers=headers))

    assert expiring(outline) == [(0, 5), (2, OFFSET_MAX)]
    assert [entry[:2] for entry in delayed(outline)] == [(2, 1)]
    assert outline.lanes == NOTHING


@pytest.mark.parametrize("text", ["soon", "", "-", "1.5", " 1", "+1", "0x1", str(2**63), "0" * 20, str(-(2**63) - 1)])
def test_a_malformed_time_is_none(kernel, text):
    outline = kernel.outline(stamped([b"a"], headers=[{"gq-deliver-at": text, "gq-expires-at": text}]))

    assert (outline.delayed, outline.expiring) == (b"", b"")


@pytest.mark.parametrize("name", ["gq-deliver-by", "Gq-deliver-at", "gq-expires-in", "gq-deliver-a", "gq-expires-at2"])
def test_other_names_are_no_times(kernel, name):
    outline = kernel.outline(stamped([b"a"], headers=[{name: "5"}]))

    assert (outline.delayed, outline.expiring) == (b"", b"")


@pytest.mark.parametrize("time", [0, TIMESTAMP_MIN, OFFSET_MAX])
def test_every_time_of_64_bits_is_kept(kernel, time):
    outline = kernel.outline(stamped([b"a"], headers=[{"gq-deliver-at": str(time), "gq-expires-at": str(time)}]))

    assert (delayed(outline), expiring(outline)) == ([(0, time, 0, 2)], [(0, time)])


def test_a_record_for_one_group_is_listed_with_its_name(kernel):
    headers = [{"gq-for-group": "billing"}, None, {"a": "b", "gq-for-group": "größe", "c": ""}, {"gq-for-group": ""}]

    outline = kernel.outline(stamped([b"a"] * 4, keys=[b"k", None, None, b"k"], headers=headers, first_offset=5))

    assert outline.addressed == [(5, b"billing"), (7, "größe".encode())]
    assert (outline.lanes, outline.delayed, outline.expiring) == (NOTHING, b"", b"")


def test_of_two_groups_the_last_counts_and_control_records_have_none(kernel):
    assert kernel.outline(twice(b"gq-for-group", b"a", b"bc")).addressed == [(0, b"bc")]
    assert kernel.outline(stamped([b""], flags=Flags.CONTROL, headers=[{"gq-for-group": "a"}])).addressed == ()


def twice(name: bytes, first: bytes, second: bytes) -> bytearray:
    """A record with one header two times, which `encode` would not make."""
    record = stamped([b""], headers=[{name.decode(): first.decode(), "?" * len(name): second.decode()}])
    return with_fields(record.replace(b"?" * len(name), name))


def test_of_two_times_the_last_counts(kernel):
    assert delayed(kernel.outline(twice(b"gq-deliver-at", b"1", b"2"))) == [(0, 2, 0, 2)]
    assert expiring(kernel.outline(twice(b"gq-expires-at", b"1", b"2"))) == [(0, 2)]
    assert delayed(kernel.outline(twice(b"gq-deliver-at", b"1", b"soon"))) == []
    assert expiring(kernel.outline(twice(b"gq-expires-at", b"1", b"soon"))) == []


def test_missing_offsets_are_holes(kernel):
    outline = kernel.outline(at_offsets(5, 6, 9, 10, 12, 1000))

    assert (outline.record_count, outline.first_offset, outline.last_offset) == (6, 5, 1000)
    assert holes(outline) == [(7, 9), (11, 12), (13, 1000)]


@pytest.mark.parametrize("order", [(4, 4), (4, 3), (4, 5, 0)])
def test_offsets_must_rise(kernel, order):
    with pytest.raises(CorruptRecord) as caught:
        kernel.outline(at_offsets(*order))

    assert (caught.value.reason, caught.value.position) == (
        "offset out of order",
        (HEADER_BYTES + 1) * (len(order) - 1),
    )


def test_a_malformed_record_is_reported_with_its_position(kernel):
    with pytest.raises(CorruptRecord) as caught:
        kernel.outline(stamped([b"a", b"b"], priorities=0)[:-1])

    assert (caught.value.reason, caught.value.position) == ("the record is cut off", 35)


def test_checksums_are_not_looked_at(kernel):
    assert kernel.outline(with_fields(stamped([b"a"]), crc=0)).record_count == 1


def test_lists_of_any_length_grow_as_they_must(kernel):
    count = 300
    headers = {"gq-deliver-at": "7", "gq-expires-at": "8"}
    batch = at_offsets(*range(0, 2 * count, 2), priorities=3, headers=[headers])
    batch += at_offsets(*range(2 * count, 4 * count, 2), flags=Flags.CONTROL)

    outline = kernel.outline(batch)

    assert offsets(outline.lanes[3]) == list(range(0, 2 * count, 2))
    assert delayed(outline) == [(offset, 7, 0, 3) for offset in range(0, 2 * count, 2)]
    assert expiring(outline) == [(offset, 8) for offset in range(0, 2 * count, 2)]
    assert offsets(outline.control) == list(range(2 * count, 4 * count, 2))
    assert holes(outline) == [(offset, offset + 1) for offset in range(1, 4 * count - 1, 2)]


@given(valid_batches(max_size=20))
def test_lanes_control_and_holes_part_all_offsets_among_them(kernel, batch):
    """Against what `decode` says of each record."""
    outline = kernel.outline(batch)
    records = kernel.decode(batch, None, kernel.RecordBase)
    messages = [record for record in records if not record.flags & Flags.CONTROL]

    special = {offset for raw in (*outline.lanes, outline.control) for offset in offsets(raw)}
    missing = {offset for first, end in holes(outline) for offset in range(first, end)}
    normal = set(range(outline.first_offset, outline.last_offset + 1)) - special - missing if records else set()

    assert outline.record_count == len(records)
    assert normal == {record.offset for record in messages if record.priority_code == Priority.NORMAL}
    for lane in set(Priority) - {Priority.NORMAL}:
        assert offsets(outline.lanes[lane]) == [record.offset for record in messages if record.priority_code == lane]
    assert offsets(outline.control) == [record.offset for record in records if record.flags & Flags.CONTROL]
    assert missing.isdisjoint(record.offset for record in records)


@given(valid_batches(max_size=12), st.integers(TIMESTAMP_MIN, OFFSET_MAX - 1))
def test_what_is_delayed_is_what_filter_hides_before_it_is_due(kernel, batch, due):
    visible = {record.offset for record in kernel.decode(kernel.filter(batch, due=due), None, kernel.RecordBase)}
    messages = {
        record.offset for record in kernel.decode(batch, None, kernel.RecordBase) if not record.flags & Flags.CONTROL
    }

    assert {entry[0] for entry in delayed(kernel.outline(batch)) if entry[1] > due} == messages - visible
