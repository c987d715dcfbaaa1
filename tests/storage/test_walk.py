"""Damage on the disk: found wherever it is, never returned, never in the way of what lies behind it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from goqueue.record import kernel
from goqueue.record.header import HEADER, HEADER_BYTES, RecordFault
from goqueue.testing import MemoryDisk
from tests.storage.logs import DIRECTORY, FIRST, NOW_NS, RECORD_BYTES, append, fill, open_log, read_all


def test_every_single_flipped_bit_of_a_stored_record_is_detected(disk: MemoryDisk) -> None:
    log = open_log(disk)
    log.append(
        kernel.encode([b"before", b"v" * 20, b"behind"], keys=[b"a", b"key", b"c"], headers=[None, {"h": "x"}, None]),
        now_ns=NOW_NS,
    )
    log.flush()
    first, second, third = read_all(log)[0]
    start, end = HEADER_BYTES + 1 + 6, disk.open(FIRST).size() - (HEADER_BYTES + 1 + 6)

    for position in range(start, end):
        for bit in range(8):
            disk.flip_bit(FIRST, position, bit)

            messages, gaps = read_all(log)

            assert messages == [first, third], f"bit {bit} of byte {position}"
            assert [(gap.first_offset, gap.next_offset) for gap in gaps] == [(1, 2)]
            assert kernel.decode(log.read(2).records, third.origin, type(third)) == [third]
            disk.flip_bit(FIRST, position, bit)
    assert read_all(log)[0] == [first, second, third]


@pytest.mark.parametrize("damaged", [0, 1, 57, 149])
def test_reading_goes_on_behind_a_damaged_record_wherever_it_stands(disk: MemoryDisk, damaged: int) -> None:
    log = open_log(disk, segment_bytes=RECORD_BYTES * 40)
    values = fill(log, 150)
    base = damaged // 40 * 40
    disk.flip_bit(f"{DIRECTORY}/{base:020d}.log", (damaged - base) * RECORD_BYTES + 70, 1)

    messages, gaps = read_all(log)

    assert [message.value for message in messages] == [v for offset, v in enumerate(values) if offset != damaged]
    assert [(gap.first_offset, gap.next_offset, gap.fault) for gap in gaps] == [(damaged, damaged + 1, RecordFault.CRC)]


def test_a_hole_of_zeros_is_passed_over(disk: MemoryDisk) -> None:
    log = open_log(disk)
    values = fill(log, 100)
    disk.write(
        FIRST, disk.read(FIRST)[: 20 * RECORD_BYTES] + bytes(4096) + disk.read(FIRST)[20 * RECORD_BYTES + 4096 :]
    )

    messages, gaps = read_all(log)

    assert [message.value for message in messages] == values[:20] + values[51:]
    assert [(gap.first_offset, gap.next_offset) for gap in gaps] == [(20, 51)]


def test_a_record_stored_inside_a_value_is_not_taken_for_one_of_the_log(disk: MemoryDisk) -> None:
    log = open_log(disk)
    forged = kernel.encode([b"forged"] * 3)
    kernel.stamp(forged, first_offset=2, timestamp=NOW_NS)
    append(log, [b"a", b"x" * 50 + bytes(forged), b"b", b"c"])
    disk.flip_bit(FIRST, HEADER_BYTES + 1 + 30, 3)  # the value length of the second record

    messages, gaps = read_all(log)

    assert [(message.offset, message.value) for message in messages] == [(0, b"a"), (2, b"b"), (3, b"c")]
    assert [(gap.first_offset, gap.next_offset) for gap in gaps] == [(1, 2)]


def test_the_end_of_a_damaged_segment_leads_to_the_next_one(disk: MemoryDisk) -> None:
    log = open_log(disk, segment_bytes=RECORD_BYTES * 5)
    values = fill(log, 12)
    log.flush()
    disk.write(FIRST, disk.read(FIRST)[: RECORD_BYTES * 3 + 10])

    log = open_log(disk, segment_bytes=RECORD_BYTES * 5)
    messages, gaps = read_all(log)

    assert [message.value for message in messages] == values[:3] + values[5:]
    assert [(gap.first_offset, gap.next_offset) for gap in gaps] == [(3, 5)]


@given(
    damage=st.lists(
        st.tuples(st.integers(0, 8_000), st.integers(1, 300), st.binary(min_size=1, max_size=4)), max_size=6
    )
)
def test_whatever_is_overwritten_no_wrong_byte_is_returned_and_nothing_valid_is_hidden(
    damage: list[tuple[int, int, bytes]],
) -> None:
    disk = MemoryDisk()
    log = open_log(disk, segment_bytes=5_000)
    values = fill(log, 60)
    log.flush()
    touched: set[int] = set()
    for position, size, pattern in damage:
        base = 0 if position < 37 * RECORD_BYTES else 37
        path = f"{DIRECTORY}/{base:020d}.log"
        content = disk.read(path)
        start = (position - base * RECORD_BYTES) % len(content)
        end = min(len(content), start + size)
        disk.write(path, content[:start] + (pattern * size)[: end - start] + content[end:])
        touched |= {base + byte // RECORD_BYTES for byte in range(start, end)}

    messages, gaps = read_all(log)

    for message in messages:
        assert message.value == values[message.offset]
    found = {message.offset for message in messages}
    assert found >= set(range(60)) - touched
    missing = {offset for gap in gaps for offset in range(gap.first_offset, gap.next_offset)}
    assert found | missing == set(range(60))
    assert not found & missing


def test_hostile_bytes_in_a_damaged_value_hide_little_even_without_an_index(disk: MemoryDisk) -> None:
    fake = HEADER.pack(b"GQ", 1, 0, 0, 50, 0, 2, 0, 0, 1_000_000, 0)
    log = open_log(disk)
    append(log, [fake * 2000])
    fill(log, 1500, size=2000, batch=100)
    log.close()
    disk.flip_bit(FIRST, 20)

    with_index = len(read_all(open_log(disk))[0])
    disk.remove(FIRST.replace(".log", ".index"))
    disk.remove(FIRST.replace(".log", ".timeindex"))
    without_index = len(read_all(open_log(disk))[0])

    assert with_index == 1500
    assert without_index > 1400


def test_reading_much_damage_looks_at_each_index_entry_once(disk: MemoryDisk) -> None:
    log = open_log(disk)
    fill(log, 2000)
    log.flush()
    content = bytearray(disk.read(FIRST))
    for offset in range(2000):
        content[offset * RECORD_BYTES + 50] ^= 1
    disk.write(FIRST, bytes(content))

    messages, gaps = read_all(log)

    assert not messages
    assert [(gap.first_offset, gap.next_offset) for gap in gaps] == [(0, 2000)]
    assert len(log.damage) == 1
