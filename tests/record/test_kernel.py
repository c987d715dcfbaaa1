"""What the kernel does to valid batches, and the errors for invalid ones: the same in C and in Python."""

import array
import mmap
import struct
from itertools import pairwise

import pytest

from goqueue.errors import CorruptRecord, InvalidBatch, InvalidConfig, InvalidMessage, MessageTooLarge
from goqueue.record.header import (
    FLAGS_KNOWN,
    HEADER,
    HEADER_BYTES,
    OFFSET_MAX,
    TIMESTAMP_MIN,
    Flags,
    Priority,
    RecordFault,
)
from tests.record.batches import TIME, fields_of, load_kernel, needs_c, stamped, with_fields


def test_a_record_has_these_bytes_and_no_others(kernel):
    records = kernel.encode(
        [b"hello"],
        keys=[b"k"],
        headers=[{"name": "value"}],
        priorities=Priority.HIGH,
        timestamps=0x0102030405060708,
    )

    kernel.stamp(records, first_offset=0x1112131415161718, timestamp=0x2122232425262728)

    assert records == bytes.fromhex(
        "4751 01 02 cea74e5d 1112131415161718 2122232425262728 01 00 0001 00000005 000f"
        "6b 68656c6c6f 0001 0004 6e616d65 0005 76616c7565"
    )


class TestChoosing:
    def test_an_unknown_kernel_is_refused(self):
        with pytest.raises(InvalidConfig, match="GOQUEUE_KERNEL = 'rust': must be auto, c or python"):
            load_kernel("rust")

    def test_python_can_be_asked_for(self):
        assert load_kernel("python").IMPLEMENTATION == "python"

    @needs_c
    def test_c_is_the_default_where_it_is_built(self):
        assert load_kernel("auto").IMPLEMENTATION == "c"


class TestEncode:
    def test_offset_and_crc_are_left_to_stamp(self, kernel):
        record = kernel.encode([b"value"], timestamps=7)

        assert fields_of(record) == {
            "magic": b"GQ",
            "version": 1,
            "flags": 0,
            "crc": 0,
            "offset": 0,
            "timestamp": 7,
            "priority": Priority.NORMAL,
            "reserved": 0,
            "klen": 0,
            "vlen": 5,
            "hlen": 0,
        }

    def test_no_messages_make_no_records(self, kernel):
        assert kernel.encode([]) == b""

    def test_what_is_given_as_one_number_holds_for_all_messages(self, kernel):
        once = kernel.encode([b"a", b"b"], priorities=3, timestamps=9, flags=Flags.COMPRESSED)

        assert once == kernel.encode([b"a", b"b"], priorities=[3, 3], timestamps=(9, 9), flags=[1, 1])

    def test_a_flag_tells_an_empty_key_from_none(self, kernel):
        empty, absent, asked = (
            fields_of(kernel.encode([b"v"], keys=[key], flags=flags))
            for key, flags in ((b"", 0), (None, Flags.EMPTY_KEY), (b"k", Flags.EMPTY_KEY))
        )

        assert (empty["klen"], empty["flags"]) == (0, Flags.EMPTY_KEY)
        assert (absent["klen"], absent["flags"]) == (0, 0)  # the flag follows the key and not the caller
        assert (asked["klen"], asked["flags"]) == (1, 0)

    def test_empty_headers_are_no_headers(self, kernel):
        assert kernel.encode([b"v"] * 3, headers=[{}, [], None]) == kernel.encode([b"v"] * 3)

    def test_a_header_may_have_no_value(self, kernel):
        record = kernel.encode([b""], headers=[{"null": None, "empty": ""}])

        assert record[HEADER_BYTES:] == b"\0\x02" + b"\0\x04null\xff\xff" + b"\0\x05empty\0\0"

    def test_headers_may_be_pairs_that_repeat_a_name(self, kernel):
        record = kernel.encode([b""], headers=[[("a", "1"), ("a", None), ("a", b"2")]])

        assert record[HEADER_BYTES:] == b"\0\x03" + b"\0\x01a\0\x011" + b"\0\x01a\xff\xff" + b"\0\x01a\0\x012"

    def test_the_headers_flag_follows_the_headers_and_not_the_caller(self, kernel):
        asked = kernel.encode([b"v"], flags=Flags.HAS_HEADERS)
        unasked = kernel.encode([b"v"], headers=[{"a": "b"}])

        assert fields_of(asked)["flags"] == 0
        assert fields_of(unasked)["flags"] == Flags.HAS_HEADERS

    def test_no_value_makes_a_tombstone(self, kernel):
        absent = kernel.encode([None], keys=[b"k"])
        empty = kernel.encode([b""], keys=[b"k"])
        flagged = kernel.encode([b""], keys=[b"k"], flags=Flags.TOMBSTONE)

        assert fields_of(absent)["flags"] == Flags.TOMBSTONE
        assert fields_of(empty)["flags"] == 0
        assert flagged == absent

    def test_any_contiguous_buffer_is_a_value_or_a_key(self, kernel):
        data = bytes(range(8))
        plain = kernel.encode([data] * 4, keys=[data] * 4)
        forms = [bytearray(data), memoryview(data), memoryview(data).cast("I"), array.array("H", data)]

        assert kernel.encode(forms, keys=forms) == plain

    def test_any_iterable_gives_the_messages(self, kernel):
        made = kernel.encode((value for value in (b"a", b"b")), keys=iter([b"k", b"l"]), priorities=range(2))

        assert made == kernel.encode([b"a", b"b"], keys=[b"k", b"l"], priorities=[0, 1])

    def test_headers_are_utf8_and_surrogate_escapes_become_their_bytes(self, kernel):
        record = kernel.encode([b""], headers=[{"größe": "\udcff", "raw": b"\xfe"}])

        assert record[HEADER_BYTES:] == (
            b"\0\x02" + b"\0\x07" + "größe".encode() + b"\0\x01\xff" + b"\0\x03raw" + b"\0\x01\xfe"
        )

    def test_fields_at_their_limits_are_taken(self, kernel):
        record = kernel.encode(
            [b"v"],
            keys=[bytes(0xFFFF)],
            headers=[{"n": bytes(0xFFFF - 7)}],
            timestamps=[TIMESTAMP_MIN],
            priorities=[4],
            flags=[FLAGS_KNOWN & ~Flags.TOMBSTONE],
        )

        assert (fields_of(record)["klen"], fields_of(record)["hlen"]) == (0xFFFF, 0xFFFF)

    @pytest.mark.parametrize(
        ("fields", "field", "size"),
        [
            ({"keys": [None, bytes(0x10000)]}, "key", 0x10000),
            ({"headers": [None, {"n": bytes(0xFFFF - 6)}]}, "headers", 0x10000),
            ({"headers": [None, {"n": "é" * 40_000}]}, "headers", 80_007),
            ({"headers": [None, {"n": bytes(0xFFFF)}]}, "headers", 0xFFFF + 7),  # its length would say: no value
            ({"headers": [None, [("n", bytes(0xFFFF))]]}, "headers", 0xFFFF + 7),
            ({"headers": [None, {"n" * 0x10000: ""}]}, "headers", 0x10006),
            ({"headers": [None, {f"{n:05}": "" for n in range(0x10000)}]}, "headers", 2 + 9 * 0x10000),
        ],
    )
    def test_a_field_over_its_limit_is_refused_with_its_size(self, kernel, fields, field, size):
        with pytest.raises(MessageTooLarge) as caught:
            kernel.encode([b"", b""], **fields)

        error = caught.value
        assert (error.index, error.field, error.size, error.limit) == (1, field, size, 0xFFFF)

    def test_a_value_of_4_gib_is_refused_before_it_is_read(self, kernel):
        value = mmap.mmap(-1, 2**32, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, prot=mmap.PROT_READ)

        with pytest.raises(MessageTooLarge) as caught:
            kernel.encode([b"", value])

        assert (caught.value.index, caught.value.size, caught.value.limit) == (1, 2**32, 2**32 - 1)

    @pytest.mark.parametrize(
        ("fields", "reason"),
        [
            ({"values": [b"", "text"]}, "value must be bytes, got str"),
            ({"values": [b"", 7]}, "value must be bytes, got int"),
            ({"values": [b"", memoryview(b"abcd")[::2]]}, "value must be contiguous"),
            ({"keys": [None, "text"]}, "key must be bytes, got str"),
            ({"keys": [None, memoryview(b"abcd")[::-1]]}, "key must be contiguous"),
            ({"headers": [None, (("a", "b"),)]}, "headers must be a dict or a list of pairs"),
            ({"headers": [None, ["ab"]]}, "headers must be a dict or a list of pairs"),
            ({"headers": [None, [("a", "b", "c")]]}, "headers must be a dict or a list of pairs"),
            ({"headers": [None, [("a", 7)]]}, "header value must be str, bytes or None, got int"),
            ({"headers": [None, {b"a": "b"}]}, "header name must be str, got bytes"),
            ({"headers": [None, {"a": 7}]}, "header value must be str, bytes or None, got int"),
            ({"headers": [None, {"\ud800": "b"}]}, "headers must be text that UTF-8 can hold"),
            ({"headers": [None, {"a": "\ud800"}]}, "headers must be text that UTF-8 can hold"),
            ({"headers": [None, {"\udcff": "\ud800"}]}, "headers must be text that UTF-8 can hold"),
            ({"priorities": [0, 5]}, "priority must be 0 to 4"),
            ({"priorities": [0, -1]}, "priority must be 0 to 4"),
            ({"priorities": [0, 2**64]}, "priority must be 0 to 4"),
            ({"priorities": [0, "high"]}, "priority must be an int, got str"),
            ({"timestamps": [0, 2**63]}, "timestamp must fit in 64 bits"),
            ({"timestamps": [0, -(2**63) - 1]}, "timestamp must fit in 64 bits"),
            ({"timestamps": [0, 1.5]}, "timestamp must be an int, got float"),
            ({"flags": [0, 0x80]}, "unknown flags"),
            ({"flags": [0, -1]}, "unknown flags"),
            ({"flags": [0, None]}, "flags must be an int, got NoneType"),
            ({"flags": [0, Flags.COMMIT]}, "COMMIT without CONTROL"),
            ({"values": [b"", b"v"], "flags": [0, Flags.TOMBSTONE]}, "a tombstone has no value"),
        ],
    )
    def test_a_wrong_message_is_named_with_the_reason(self, kernel, fields, reason):
        with pytest.raises(InvalidMessage) as caught:
            kernel.encode(**({"values": [b"", b""]} | fields))

        assert str(caught.value) == f"message 1: {reason}"
        assert caught.value.index == 1

    @pytest.mark.parametrize("column", ["keys", "headers", "priorities", "timestamps", "flags"])
    def test_columns_of_different_lengths_are_refused(self, kernel, column):
        with pytest.raises(InvalidMessage, match=f"{column}: 2 given for 3 values"):
            kernel.encode([b"", b"", b""], **{column: [0, 0]})

    def test_one_number_for_all_is_checked_even_without_messages(self, kernel):
        with pytest.raises(InvalidMessage, match="priority must be 0 to 4"):
            kernel.encode([], priorities=5)

    def test_what_cannot_be_iterated_is_a_type_error(self, kernel):
        with pytest.raises(TypeError):
            kernel.encode(7)


class TestStamp:
    def test_offsets_time_and_checksums_are_written(self, kernel):
        records = kernel.encode([b"a", b"bb"], timestamps=3)

        summary = kernel.stamp(records, first_offset=41, timestamp=TIME)

        assert (summary.record_count, summary.start, summary.end) == (2, 0, len(records))
        assert (summary.first_offset, summary.last_offset) == (41, 42)
        assert (summary.first_timestamp, summary.last_timestamp) == (TIME, TIME)
        assert kernel.scan(records, min_offset=41, dense=True)[:9] == summary[:9]

    def test_what_the_producer_wrote_there_is_overwritten(self, kernel):
        clean = kernel.encode([b"a"])
        dirty = with_fields(clean, crc=0xDEADBEEF, offset=2**64 - 1, timestamp=-1)

        for records in (clean, dirty):
            kernel.stamp(records, first_offset=5, timestamp=TIME)

        assert clean == dirty

    def test_flags_and_priorities_are_summed_up(self, kernel):
        records = kernel.encode(
            [b"a", None, b"c"], priorities=[0, 4, 4], flags=[1, 0, 0], headers=[None, None, {"a": ""}]
        )

        summary = kernel.stamp(records, first_offset=0, timestamp=TIME)

        assert summary.flags == Flags.COMPRESSED | Flags.TOMBSTONE | Flags.HAS_HEADERS
        assert summary.priorities == 0b10001

    def test_a_part_of_a_larger_buffer_can_be_stamped(self, kernel):
        frame = bytearray(b"frame") + kernel.encode([b"a"])

        with memoryview(frame) as view:
            kernel.stamp(view[5:], first_offset=1, timestamp=TIME)

        assert frame == b"frame" + stamped([b"a"], first_offset=1)

    @pytest.mark.parametrize("flags", [Flags.CONTROL, Flags.CONTROL | Flags.COMMIT, Flags.TRANSACTIONAL])
    def test_a_producer_may_not_set_the_flags_of_the_broker(self, kernel, flags):
        records = kernel.encode([b"a", b"b"], flags=[0, flags])

        with pytest.raises(InvalidBatch) as caught:
            kernel.stamp(records, first_offset=0, timestamp=TIME)

        assert caught.value.position == HEADER_BYTES + 1
        kernel.stamp(records, first_offset=0, timestamp=TIME, flags_allowed=FLAGS_KNOWN)

    def test_a_flag_that_a_later_version_may_know_is_refused_as_unknown(self, kernel):
        records = stamped([b"a", b"b"])
        records[35:] = with_fields(records[35:], flags=0x80)

        with pytest.raises(InvalidBatch, match="flags that this version does not know in the record at byte 35"):
            kernel.stamp(bytearray(records), first_offset=0, timestamp=TIME, flags_allowed=0xFF)
        found = kernel.scan(records)
        assert (found.record_count, found.fault, found.fault_position) == (1, RecordFault.UNKNOWN_FLAGS, 35)

    def test_a_key_that_is_not_empty_contradicts_the_flag_of_an_empty_one(self, kernel):
        record = with_fields(stamped([b"a"], keys=[b"k"]), flags=Flags.EMPTY_KEY)

        with pytest.raises(InvalidBatch, match="contradicting the lengths in the record at byte 0"):
            kernel.stamp(bytearray(record), first_offset=0, timestamp=TIME)
        assert kernel.scan(record).fault == RecordFault.FLAGS

    def test_a_producer_may_send_empty_keys_and_headers_without_a_value(self, kernel):
        records = kernel.encode([b"a", None], keys=[b"", b""], headers=[{"n": None}, None])

        summary = kernel.stamp(records, first_offset=0, timestamp=TIME)

        assert summary.flags == Flags.EMPTY_KEY | Flags.HAS_HEADERS | Flags.TOMBSTONE
        assert kernel.scan(records).record_count == 2

    def test_a_value_over_the_limit_of_the_topic_is_refused(self, kernel):
        records = kernel.encode([b"12345", b"123456"])

        with pytest.raises(InvalidBatch, match="value over the limit in the record at byte 39"):
            kernel.stamp(records, first_offset=0, timestamp=TIME, value_bytes_max=5)

    def test_a_batch_without_records_is_refused(self, kernel):
        with pytest.raises(InvalidBatch, match="no records"):
            kernel.stamp(bytearray(), first_offset=0, timestamp=TIME)

    def test_the_last_offset_of_all_can_be_given_out_but_none_behind_it(self, kernel):
        kernel.stamp(kernel.encode([b"a"]), first_offset=OFFSET_MAX, timestamp=TIME)

        with pytest.raises(InvalidBatch, match="offset out of order in the record at byte 35"):
            kernel.stamp(kernel.encode([b"a", b"b"]), first_offset=OFFSET_MAX, timestamp=TIME)

    def test_a_fault_leaves_the_summary_of_what_came_before(self, kernel):
        records = kernel.encode([b"a", b"b"])
        records[-1:] = b""

        raw = kernel._impl.stamp(records, 7, TIME, FLAGS_KNOWN, 100, 0, OFFSET_MAX)

        assert raw == (1, 0, 35, 7, 7, TIME, TIME, 0, 0b100, b"", b"", OFFSET_MAX, RecordFault.TRUNCATED, 35, b"", 0)

    def test_it_tells_the_flags_of_all_but_the_first(self, kernel):
        records = kernel.encode([b"a", b"b", None], keys=[None, None, b"k"], headers=[{"a": "b"}, None, None])

        summary = kernel.stamp(records, first_offset=0, timestamp=TIME)

        assert summary.flags == Flags.HAS_HEADERS | Flags.TOMBSTONE
        assert summary.later_flags == Flags.TOMBSTONE
        assert kernel.scan(records, from_offset=1).later_flags == Flags.TOMBSTONE
        assert kernel.scan(records, from_offset=2).later_flags == 0

    def test_a_buffer_that_cannot_be_written_is_refused(self, kernel):
        for frozen in (b"", bytes(kernel.encode([b"a"])), memoryview(b"abc")):
            with pytest.raises((TypeError, BufferError)):
                kernel.stamp(frozen, first_offset=0, timestamp=TIME)

    @pytest.mark.parametrize(
        ("argument", "error"),
        [
            ({"first_offset": -1}, ValueError),
            ({"position": -1}, ValueError),
            ({"next_index_at": -1}, ValueError),
            ({"value_bytes_max": -1}, ValueError),
            ({"flags_allowed": -1}, ValueError),
            ({"first_offset": 2**63}, OverflowError),
            ({"timestamp": 2**63}, OverflowError),
            ({"timestamp": "now"}, TypeError),
        ],
    )
    def test_numbers_that_cannot_be_are_refused(self, kernel, argument, error):
        records = kernel.encode([b"a"])

        with pytest.raises(error):
            kernel.stamp(records, **({"first_offset": 0, "timestamp": TIME} | argument))

        assert records == kernel.encode([b"a"])


class TestScan:
    def test_nothing_is_a_run_of_no_records(self, kernel):
        assert kernel.scan(b"") == (0, 0, 0, -1, -1, -1, -1, 0, 0, b"", b"", OFFSET_MAX, RecordFault.NONE, 0, b"", 0)

    def test_it_ends_at_the_first_fault_and_says_where(self, kernel):
        records = stamped([b"a", b"b", b"c"])
        records[2 * 35 - 1] ^= 1

        summary = kernel.scan(records)

        assert (summary.record_count, summary.end) == (1, 35)
        assert (summary.fault, summary.fault_position) == (RecordFault.CRC, 35)

    def test_records_outside_the_asked_range_are_passed_over(self, kernel):
        records = stamped([b"a"] * 6, first_offset=10, priorities=[0, 1, 2, 3, 4, 0])

        summary = kernel.scan(records, from_offset=12, to_offset=14)

        assert (summary.record_count, summary.first_offset, summary.last_offset) == (2, 12, 13)
        assert (summary.start, summary.end) == (70, 140)
        assert (summary.fault, summary.fault_position) == (RecordFault.NONE, 140)
        assert summary.priorities == 0b01100

    def test_without_a_record_in_range_start_and_end_are_where_it_stopped(self, kernel):
        records = stamped([b"a"] * 3, first_offset=10)

        behind = kernel.scan(records, from_offset=20)
        before = kernel.scan(records, to_offset=11, from_offset=11)

        assert (behind.record_count, behind.start, behind.end, behind.first_offset) == (0, 105, 105, -1)
        assert (before.record_count, before.start, before.end, before.fault_position) == (0, 35, 35, 35)

    def test_the_record_at_the_end_of_the_range_is_validated_before_its_offset_is_believed(self, kernel):
        records = stamped([b"a", b"b"])
        records[-1] ^= 1

        assert kernel.scan(records, to_offset=1).fault == RecordFault.CRC

    def test_offsets_may_leave_gaps_unless_the_log_is_dense(self, kernel):
        records = stamped([b"a"], first_offset=5) + stamped([b"b"], first_offset=8)

        assert kernel.scan(records, min_offset=3).record_count == 2
        assert kernel.scan(records, min_offset=3, dense=True).fault_position == 0
        gap = kernel.scan(records, min_offset=5, dense=True)
        assert (gap.record_count, gap.fault, gap.fault_position) == (1, RecordFault.OFFSET, 35)

    def test_offsets_must_rise(self, kernel):
        twice = stamped([b"a"], first_offset=5) * 2

        assert kernel.scan(twice).fault == RecordFault.OFFSET
        assert kernel.scan(twice, min_offset=6).fault_position == 0

    def test_an_offset_of_2_to_the_63_is_a_fault(self, kernel):
        record = with_fields(stamped([b"a"]), offset=2**63)

        assert kernel.scan(record).fault == RecordFault.OFFSET

    def test_nothing_can_follow_the_last_offset_of_all(self, kernel):
        records = stamped([b"a"], first_offset=OFFSET_MAX) + stamped([b"a"], first_offset=0)

        summary = kernel.scan(records, to_offset=OFFSET_MAX)
        assert (summary.record_count, summary.fault, summary.fault_position) == (0, RecordFault.NONE, 0)

    def test_positions_tell_where_each_counted_record_begins(self, kernel):
        records = stamped([b"", b"a", b"bb", b"ccc"])

        summary = kernel.scan(records, from_offset=1, to_offset=3, positions=True)

        assert memoryview(summary.positions).cast("I").tolist() == [34, 69]

    def test_any_time_is_a_time(self, kernel):
        records = stamped([b"a"], timestamp=TIMESTAMP_MIN) + stamped([b"b"], first_offset=1, timestamp=OFFSET_MAX)

        summary = kernel.scan(records)

        assert (summary.first_timestamp, summary.last_timestamp) == (TIMESTAMP_MIN, OFFSET_MAX)

    @pytest.mark.parametrize(
        ("argument", "error"),
        [
            ({"min_offset": -1}, ValueError),
            ({"position": -1}, ValueError),
            ({"next_index_at": -1}, ValueError),
            ({"from_offset": 2**63}, OverflowError),
            ({"to_offset": None}, TypeError),
        ],
    )
    def test_numbers_that_cannot_be_are_refused(self, kernel, argument, error):
        with pytest.raises(error):
            kernel.scan(b"", **argument)


class TestIndexEntries:
    SIZE = 1034  # of each record: 4 of them are 40 bytes more than one interval

    def entries(self, summary):
        offset_entries = list(struct.iter_unpack(">QQ", summary.offset_entries))
        time_entries = list(struct.iter_unpack(">qQ", summary.time_entries))
        assert [offset for _, offset in time_entries] == [offset for offset, _ in offset_entries]
        return offset_entries

    def test_a_record_gets_an_entry_once_4096_bytes_have_passed(self, kernel):
        records = stamped([bytes(1000)] * 10, first_offset=100)

        summary = kernel.scan(records, min_offset=100, position=5000, next_index_at=5001)

        assert self.entries(summary) == [
            (101, 5000 + self.SIZE),
            (105, 5000 + 5 * self.SIZE),
            (109, 5000 + 9 * self.SIZE),
        ]
        assert struct.unpack(">q", summary.time_entries[:8]) == (TIME,)
        assert summary.next_index_at == 5000 + 9 * self.SIZE + 4096

    def test_stamp_and_scan_give_the_same_entries(self, kernel):
        records = kernel.encode([bytes(1000)] * 10)

        made = kernel.stamp(records, first_offset=7, timestamp=TIME, position=123, next_index_at=0)

        assert made == kernel.scan(records, min_offset=7, position=123, next_index_at=0)
        assert len(made.offset_entries) == 3 * 16

    def test_one_scan_and_many_small_ones_give_the_same_entries(self, kernel):
        records = stamped([bytes(size) for size in range(0, 3000, 100)])
        whole = kernel.scan(records, next_index_at=0)

        position, next_index_at, offset_entries, time_entries = 0, 0, b"", b""
        while position < len(records):
            part = kernel.scan(
                records[position:],
                to_offset=part_end(records, position),
                position=position,
                next_index_at=next_index_at,
            )
            offset_entries += part.offset_entries
            time_entries += part.time_entries
            position, next_index_at = position + part.end, part.next_index_at

        assert (offset_entries, time_entries) == (whole.offset_entries, whole.time_entries)

    def test_records_that_are_passed_over_get_entries_too(self, kernel):
        records = stamped([bytes(1000)] * 10)

        assert self.entries(kernel.scan(records, from_offset=8, next_index_at=0)) == [(0, 0), (4, 4136), (8, 8272)]

    def test_the_record_that_ends_the_scan_gets_none(self, kernel):
        records = stamped([bytes(1000)] * 10)

        assert self.entries(kernel.scan(records, to_offset=4, next_index_at=0)) == [(0, 0)]

    def test_never_means_none(self, kernel):
        summary = kernel.scan(stamped([bytes(1000)] * 10), position=2**40)

        assert (summary.offset_entries, summary.time_entries, summary.next_index_at) == (b"", b"", kernel.NEVER)


def part_end(records: bytearray, position: int) -> int:
    """The offset behind the record at `position`."""
    return fields_of(records[position:])["offset"] + 1


class TestDecode:
    def test_each_record_becomes_an_object_with_its_fields(self, kernel):
        records = stamped(
            [b"value", None],
            keys=[b"key", None],
            headers=[{"a": "b"}, None],
            priorities=[1, 4],
            first_offset=9,
        )
        origin = object()

        first, second = kernel.decode(records, origin, kernel.RecordBase)

        assert first.origin is origin
        assert (first.offset, first.timestamp_ns, first.priority_code) == (9, TIME, 1)
        assert (first.key, first.value, first.encoded_headers) == (b"key", b"value", b"\0\x01\0\x01a\0\x01b")
        assert first.flags == Flags.HAS_HEADERS
        assert (second.offset, second.flags, second.priority_code) == (10, Flags.TOMBSTONE, 4)
        assert (second.key, second.value, second.encoded_headers) == (None, b"", None)

    def test_a_damaged_record_is_reported_with_its_position(self, kernel):
        records = stamped([b"a", b"b"])
        records[-1] ^= 1

        with pytest.raises(CorruptRecord) as caught:
            kernel.decode(records, None, kernel.RecordBase)

        assert (caught.value.reason, caught.value.position) == ("checksum mismatch", 35)

    def test_an_empty_key_comes_back_as_it_was(self, kernel):
        records = kernel.decode(stamped([b"v"] * 3, keys=[b"", None, b"k"]), None, kernel.RecordBase)

        assert [record.key for record in records] == [b"", None, b"k"]

    def test_the_records_before_the_fault_are_there_in_the_raw_result(self, kernel):
        records = stamped([b"a", b"b"])[:-1]

        fault, position, decoded = kernel._impl.decode(records, None, kernel.RecordBase, True)

        assert (fault, position, [record.value for record in decoded]) == (RecordFault.TRUNCATED, 35, [b"a"])

    def test_records_that_a_producer_has_just_made_can_be_decoded_unverified(self, kernel):
        records = kernel.encode([b"a", b"b"])

        assert [record.value for record in kernel.decode(records, None, kernel.RecordBase, verify=False)] == [
            b"a",
            b"b",
        ]

    def test_a_subclass_is_made_without_its_constructor(self, kernel):
        class Picky(kernel.RecordBase):
            __slots__ = ()

            def __new__(cls):
                raise AssertionError

            def __init__(self):
                raise AssertionError

        (record,) = kernel.decode(stamped([b"a"]), None, Picky)

        assert type(record) is Picky
        assert record.value == b"a"

    def test_a_subclass_may_have_attributes_of_its_own(self, kernel):
        class Roomy(kernel.RecordBase):
            pass

        (record,) = kernel.decode(stamped([b"a"]), None, Roomy)
        record.note = record

        assert record.note.value == b"a"

    @pytest.mark.parametrize("wrong", [object, int, bytes, 7, None, "Record"])
    def test_other_types_are_refused(self, kernel, wrong):
        with pytest.raises(TypeError, match="record_type must be a subclass of Record"):
            kernel.decode(stamped([b"a"]), None, wrong)

    def test_a_record_is_no_origin(self, kernel):
        (record,) = kernel.decode(stamped([b"a"]), None, kernel.RecordBase)

        with pytest.raises(TypeError, match="origin must not be a record"):
            kernel.decode(stamped([b"a"]), record, kernel.RecordBase)


class TestRecord:
    FIELDS = ("origin", "offset", "timestamp_ns", "priority_code", "flags", "key", "value", "encoded_headers")

    def test_it_can_be_made_by_hand(self, kernel):
        given = ("here", 1, -2, 3, 4, b"key", b"value", None)

        by_place = kernel.RecordBase(*given)
        by_name = kernel.RecordBase(**dict(zip(self.FIELDS, given, strict=True)))

        for record in (by_place, by_name):
            assert tuple(getattr(record, name) for name in self.FIELDS) == given

    def test_it_cannot_be_changed(self, kernel):
        record = kernel.RecordBase(None, 1, 2, 3, 4, None, b"", None)

        for name in self.FIELDS:
            with pytest.raises(AttributeError):
                setattr(record, name, getattr(record, name))
            with pytest.raises(AttributeError):
                delattr(record, name)
        with pytest.raises(AttributeError):
            record.other = 1

    @pytest.mark.parametrize(
        ("field", "value", "error"),
        [
            ("offset", 2**63, OverflowError),
            ("offset", "1", TypeError),
            ("timestamp_ns", -(2**63) - 1, OverflowError),
            ("priority_code", 256, OverflowError),
            ("flags", -1, OverflowError),
            ("key", "text", TypeError),
            ("value", None, TypeError),
            ("value", bytearray(), TypeError),
            ("encoded_headers", {}, TypeError),
        ],
    )
    def test_fields_of_the_wrong_kind_are_refused(self, kernel, field, value, error):
        fields = dict(zip(self.FIELDS, (None, 1, 2, 3, 4, None, b"", None), strict=True))

        with pytest.raises(error):
            kernel.RecordBase(**(fields | {field: value}))

    def test_a_record_is_no_origin_so_that_no_chain_of_them_can_overflow_the_stack(self, kernel):
        class Mixin:
            __slots__ = ()

        class Derived(Mixin, kernel.RecordBase):
            __slots__ = ()

        class Roomy(Derived):
            pass

        rest = (1, 2, 3, 4, None, b"", None)
        for first in (kernel.RecordBase, Derived, Roomy):
            for second in (kernel.RecordBase, Derived, Roomy):
                with pytest.raises(TypeError, match="origin must not be a record"):
                    second(first(None, *rest), *rest)
        assert Roomy(kernel.RecordBase, *rest).origin is kernel.RecordBase

    def test_a_long_chain_through_other_objects_is_freed(self, kernel):
        chain = None
        for _ in range(100_000):
            chain = (kernel.RecordBase(chain, 1, 2, 3, 4, None, b"", None),)

        del chain

    def test_a_field_too_few_is_refused(self, kernel):
        with pytest.raises(TypeError):
            kernel.RecordBase(None, 1, 2, 3, 4, None, b"")


class TestColumns:
    def read(self, code, column):
        return memoryview(column).cast(code).tolist()

    def strings(self, offsets, data):
        bounds = self.read("i", offsets)
        return [bytes(data[start:end]) for start, end in pairwise(bounds)]

    def bits(self, bitmap, count):
        return [bool(bitmap[row // 8] >> row % 8 & 1) for row in range(count)]

    def test_every_column_of_a_mixed_batch(self, kernel):
        records = stamped(
            [b"one", None, b"", b"four"],
            keys=[b"k1", b"k2", None, b""],
            headers=[{"a": "1", "b": ""}, {"b": "2"}, {"gq-deliver-at": "1999999"}, {"": None}],
            priorities=[0, 1, 2, 4],
            first_offset=70,
        )

        columns = kernel.columns(records)

        assert columns.row_count == 4
        assert self.read("q", columns.offsets) == [70, 71, 72, 73]
        assert self.read("q", columns.timestamps_us) == [TIME // 1000] * 4
        assert self.read("i", columns.priorities) == [0, 1, 2, 4]
        assert self.bits(columns.key_validity, 4) == [True, True, False, True]
        assert self.strings(columns.key_offsets, columns.key_data) == [b"k1", b"k2", b"", b""]
        assert self.bits(columns.value_validity, 4) == [True, False, True, True]
        assert self.strings(columns.value_offsets, columns.value_data) == [b"one", b"", b"", b"four"]
        assert self.bits(columns.deliver_at_validity, 4) == [False, False, True, False]
        assert self.read("q", columns.deliver_at_us) == [0, 0, 1999, 0]
        assert self.read("i", columns.header_offsets) == [0, 2, 3, 4, 5]
        names = self.strings(columns.header_name_offsets, columns.header_name_data)
        values = self.strings(columns.header_value_offsets, columns.header_value_data)
        assert list(zip(names, values, strict=True)) == [
            (b"a", b"1"),
            (b"b", b""),
            (b"b", b"2"),
            (b"gq-deliver-at", b"1999999"),
            (b"", b""),
        ]
        assert self.bits(columns.header_value_validity, 5) == [True, True, True, True, False]

    def test_no_records_are_empty_columns(self, kernel):
        columns = kernel.columns(b"")

        assert columns.row_count == 0
        assert [len(column) for column in columns[1:]] == [0, 0, 0, 0, 4, 0, 0, 4, 0, 0, 0, 4, 4, 0, 0, 4, 0]

    @pytest.mark.parametrize(
        ("name", "filled"),
        [
            ("offset", ["offsets"]),
            ("timestamp", ["timestamps_us"]),
            ("priority", ["priorities"]),
            ("key", ["key_validity", "key_offsets", "key_data"]),
            ("value", ["value_validity", "value_offsets", "value_data"]),
            ("deliver_at", ["deliver_at_validity", "deliver_at_us"]),
            (
                "headers",
                [
                    "header_offsets",
                    "header_name_offsets",
                    "header_name_data",
                    "header_value_validity",
                    "header_value_offsets",
                    "header_value_data",
                ],
            ),
        ],
    )
    def test_a_column_that_was_not_asked_for_is_empty(self, kernel, name, filled):
        records = stamped([b"v"] * 9, keys=[b"k"] * 9, headers=[{"gq-deliver-at": "1"}] * 9)
        everything = kernel.columns(records)._asdict()

        columns = kernel.columns(records, name)._asdict()

        assert [field for field, column in columns.items() if field != "row_count" and column] == filled
        for field in filled:
            assert columns[field] == everything[field]

    def test_times_are_rounded_down_to_microseconds_on_both_sides_of_1970(self, kernel):
        times = [-1001, -1000, -999, -1, 0, 999, 1000, TIMESTAMP_MIN, OFFSET_MAX]
        records = b"".join(
            stamped([b""], first_offset=row, timestamp=time, headers=[{"gq-deliver-at": str(time)}])
            for row, time in enumerate(times)
        )

        columns = kernel.columns(records, "timestamp", "deliver_at")

        assert self.read("q", columns.timestamps_us) == [time // 1000 for time in times]
        assert columns.deliver_at_us == columns.timestamps_us

    @pytest.mark.parametrize(
        ("text", "valid"),
        [
            ("0", True),
            ("-0", True),
            ("0000000000000000012", True),
            ("9223372036854775807", True),
            ("-9223372036854775808", True),
            ("9223372036854775808", False),
            ("-9223372036854775809", False),
            ("9999999999999999999", False),
            ("00000000000000000000", False),
            ("", False),
            ("-", False),
            ("+1", False),
            (" 1", False),
            ("1_000", False),
            ("1e9", False),
            ("--1", False),
            ("1\n", False),
            ("１", False),
        ],
    )
    def test_only_decimal_numbers_of_64_bits_are_delivery_times(self, kernel, text, valid):
        columns = kernel.columns(stamped([b""], headers=[{"gq-deliver-at": text}]), "deliver_at")

        assert self.bits(columns.deliver_at_validity, 1) == [valid]
        assert self.read("q", columns.deliver_at_us) == [int(text) // 1000 if valid else 0]

    def test_the_last_of_several_delivery_times_counts(self, kernel):
        twice = stamped([b""], headers=[{"gq-deliver-at": "1000", "gq-deliver-by": "2000"}])
        twice = with_fields(twice.replace(b"gq-deliver-by", b"gq-deliver-at"))

        assert self.read("q", kernel.columns(twice, "deliver_at").deliver_at_us) == [2]

    def test_a_damaged_record_is_reported_with_its_position(self, kernel):
        records = stamped([b"a", b"b"])
        records[-1] ^= 1

        with pytest.raises(CorruptRecord) as caught:
            kernel.columns(records, "offset")

        assert (caught.value.reason, caught.value.position) == ("checksum mismatch", 35)
        assert kernel.columns(records, "offset", verify=False).row_count == 2

    def test_more_than_2_gib_in_one_column_is_refused_before_anything_is_copied(self, kernel):
        size = 2**30 + 7
        records = mmap.mmap(-1, 2 * (HEADER_BYTES + size), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        for row in range(2):
            HEADER.pack_into(records, row * (HEADER_BYTES + size), b"GQ", 1, 0, 0, row, TIME, 2, 0, 0, size, 0)

        with pytest.raises(ValueError, match=r"^values: more than 2\*\*31 - 1 bytes for one column$"):
            kernel.columns(records, "value", verify=False)

        assert kernel.columns(records, "offset", "key", verify=False).row_count == 2


class TestFilter:
    def offsets(self, kernel, records):
        return [record.offset for record in kernel.decode(records, None, kernel.RecordBase)]

    def test_everything_is_visible_unless_something_is_hidden(self, kernel):
        records = stamped([b"a", None, b"c"], keys=[b"k", b"k", None], flags=[Flags.CONTROL, 0, Flags.TRANSACTIONAL])

        assert kernel.filter(records) == records
        assert kernel.filter(b"") == b""

    def test_the_result_is_a_copy(self, kernel):
        records = stamped([b"a"])

        visible = kernel.filter(records)
        records[0] = 0

        assert visible == stamped([b"a"])

    def test_records_outside_the_range_are_hidden(self, kernel):
        records = stamped([b"a"] * 6, first_offset=10)

        assert self.offsets(kernel, kernel.filter(records, from_offset=12, to_offset=14)) == [12, 13]

    def test_records_with_any_of_the_flags_are_hidden(self, kernel):
        flags = [0, Flags.CONTROL, Flags.COMPRESSED, Flags.CONTROL | Flags.COMMIT, Flags.TRANSACTIONAL]
        records = stamped([b"a"] * 5, flags=flags)

        assert self.offsets(kernel, kernel.filter(records, hide_flags=Flags.CONTROL | Flags.TRANSACTIONAL)) == [0, 2]

    def test_hidden_ranges_end_before_their_end(self, kernel):
        records = stamped([b"a"] * 10)
        hidden = array.array("q", [-5, 1, 3, 3, 3, 5, 5, 6, 8, 100]).tobytes()

        assert self.offsets(kernel, kernel.filter(records, hidden=hidden)) == [1, 2, 6, 7]

    @pytest.mark.parametrize("bounds", [[5, 4], [5, 7, 6, 8], [5, 7, 1, 2]])
    def test_hidden_ranges_must_be_sorted_and_disjoint(self, kernel, bounds):
        with pytest.raises(ValueError, match=r"^hidden must be sorted and disjoint$"):
            kernel.filter(b"", hidden=array.array("q", bounds).tobytes())

    @pytest.mark.parametrize("size", [1, 8, 15, 17])
    def test_hidden_ranges_must_be_pairs(self, kernel, size):
        with pytest.raises(ValueError, match=r"^hidden must hold pairs of int64$"):
            kernel.filter(b"", hidden=bytes(size))

    def test_what_is_not_yet_due_is_hidden(self, kernel):
        times = [None, {"gq-deliver-at": "999"}, {"gq-deliver-at": "1000"}, {"gq-deliver-at": "1001"}, {"x": "1001"}]
        records = stamped([b"a"] * 5, headers=times)

        assert self.offsets(kernel, kernel.filter(records, due=1000)) == [0, 1, 2, 4]

    def test_a_malformed_delivery_time_hides_nothing(self, kernel):
        assert kernel.filter(stamped([b"a"], headers=[{"gq-deliver-at": "soon"}]), due=0)

    def test_only_the_last_record_of_a_key_stays(self, kernel):
        records = stamped([b"a"] * 6, keys=[b"x", b"y", None, b"x", b"y", None])
        table = {}

        kernel.latest(records, table)

        assert table == {b"x": 3, b"y": 4}
        assert self.offsets(kernel, kernel.filter(records, latest=table)) == [2, 3, 4, 5]

    def test_an_empty_key_is_a_key_and_has_its_last_record(self, kernel):
        records = stamped([b"a"] * 4, keys=[b"", None, b"", None])
        table = {}

        kernel.latest(records, table)

        assert table == {b"": 2}
        assert self.offsets(kernel, kernel.filter(records, latest=table)) == [1, 2, 3]

    def test_a_key_that_the_table_does_not_know_stays(self, kernel):
        assert kernel.filter(stamped([b"a"], keys=[b"x"]), latest={b"y": 9})

    def test_the_table_may_hold_any_int(self, kernel):
        records = stamped([b"a"] * 3, keys=[b"x", b"y", b"z"])

        visible = kernel.filter(records, latest={b"x": 2**70, b"y": -(2**70), b"z": True})

        assert self.offsets(kernel, visible) == [1, 2]

    def test_old_tombstones_are_hidden(self, kernel):
        records = stamped([None], keys=[b"x"], timestamp=99) + stamped([None], first_offset=1, timestamp=100)

        assert self.offsets(kernel, kernel.filter(records, tombstones_before=100)) == [1]

    def test_control_records_are_spared_by_compaction(self, kernel):
        records = stamped([None, b"a"], keys=[b"x", b"x"], flags=[Flags.CONTROL, Flags.CONTROL])
        table = {}

        kernel.latest(records, table)

        assert table == {}
        assert kernel.filter(records, latest={b"x": 9}, tombstones_before=OFFSET_MAX) == records

    def test_a_malformed_record_is_reported_with_its_position(self, kernel):
        records = stamped([b"a", b"b"])[:-1]

        for look in (kernel.filter, lambda buffer: kernel.latest(buffer, {})):
            with pytest.raises(CorruptRecord) as caught:
                look(records)
            assert (caught.value.reason, caught.value.position) == ("the record is cut off", 35)

    def test_checksums_are_not_looked_at(self, kernel):
        records = with_fields(stamped([b"a"], keys=[b"k"]), crc=0)
        table = {}

        kernel.latest(records, table)

        assert (kernel.filter(records), table) == (records, {b"k": 0})

    def test_what_is_not_a_dict_of_ints_is_refused(self, kernel):
        records = stamped([b"a"], keys=[b"k"])

        with pytest.raises(TypeError, match="the table must be a dict"):
            kernel.filter(records, latest=[])
        with pytest.raises(TypeError, match="the table must be a dict"):
            kernel.latest(records, None)
        with pytest.raises(TypeError, match="latest must map bytes to int"):
            kernel.filter(records, latest={b"k": None})
