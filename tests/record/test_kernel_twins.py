"""The two kernels have one behaviour: on valid, damaged and hostile buffers, down to the arguments of exceptions."""

import array
from collections.abc import Callable
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from goqueue.record.header import FLAGS_FROM_PRODUCERS, FLAGS_KNOWN, HEADER, OFFSET_MAX, TIMESTAMP_MIN
from tests.record.batches import (
    any_batches,
    header_dicts,
    header_texts,
    hostile_batches,
    messages,
    needs_c,
    offsets,
    raw_kernels,
    stamped,
    tight,
    timestamps,
    valid_batches,
    with_fields,
)

pytestmark = needs_c

near_offsets = st.integers(-2, 60) | st.integers(TIMESTAMP_MIN, OFFSET_MAX)
positions = st.integers(0, 20_000) | st.just(OFFSET_MAX)
out_of_range = st.sampled_from([2**63, -(2**63) - 1, 2**100, 5, -1])
not_bytes = st.sampled_from([7, "text", 1.5, [b"a"], memoryview(b"abcdef")[::2]])

OVERFLOWING_LENGTHS = HEADER.pack(b"GQ", 1, 2, 0, 0, 0, 0, 0, 0xFFFF, 0xFFFFFFFF, 0xFFFF)
COUNT_THAT_LIES = stamped([b"v"], headers=[{"a": "b"}]).replace(b"\0\x01\0\x01a", b"\0\x02\0\x01a")
COUNT_OF_NONE = with_fields(stamped([b"v"], headers=[{"a": "b"}]).replace(b"\0\x01\0\x01a", b"\0\0\0\x01a"))
HEADERS_OF_ONE_BYTE = with_fields(stamped([b"vv"]), flags=2, vlen=1, hlen=1)
RESERVED_BYTE = with_fields(stamped([b"v"]), reserved=1)
UNKNOWN_VERSION = with_fields(stamped([b"v"]), version=2)
UNKNOWN_FLAGS = with_fields(stamped([b"v"]), flags=0x80)
KEY_THAT_IS_AND_IS_NOT_EMPTY = with_fields(stamped([b"v"], keys=[b"k"]), flags=0x40)
TOMBSTONE_WITH_VALUE = with_fields(stamped([b"v"]), flags=4)
COMMIT_WITHOUT_CONTROL = with_fields(stamped([b"v"]), flags=0x10)
FLAG_WITHOUT_HEADERS = with_fields(stamped([b"v"]), flags=2)
PRIORITY_5 = with_fields(stamped([b"v"]), priority=5)
OFFSET_OF_64_BITS = with_fields(stamped([b"v"], keys=[b"k"]), offset=2**63)


def outcome(function: Callable[..., Any], *arguments: Any) -> Any:
    """What the call returns or raises, in a form that can be compared."""
    try:
        return function(*arguments)
    except Exception as error:
        return type(error), error.args


def assert_equal(name: str, *arguments: Any) -> Any:
    c, python = raw_kernels()
    arguments = tuple(tight(given) if isinstance(given, bytes | bytearray) else given for given in arguments)
    got = outcome(getattr(c, name), *arguments)
    assert got == outcome(getattr(python, name), *arguments)
    return got


def hostile_examples(test: Any) -> Any:
    """Also runs the test on one buffer for each way in which a record can be wrong."""
    for buffer in (
        OVERFLOWING_LENGTHS,
        COUNT_THAT_LIES,
        COUNT_OF_NONE,
        HEADERS_OF_ONE_BYTE,
        RESERVED_BYTE,
        UNKNOWN_VERSION,
        UNKNOWN_FLAGS,
        KEY_THAT_IS_AND_IS_NOT_EMPTY,
        TOMBSTONE_WITH_VALUE,
        COMMIT_WITHOUT_CONTROL,
        FLAG_WITHOUT_HEADERS,
        PRIORITY_5,
        OFFSET_OF_64_BITS,
    ):
        test = example(bytearray(buffer))(test)
    return test


def damage(column: list[Any], at: int, wrong: Any) -> None:
    if column:
        column[at % len(column)] = wrong


@given(messages())
def test_encode_makes_the_same_records(given_messages):
    records = assert_equal("encode", *given_messages.values())

    assert isinstance(records, bytearray)


@given(
    messages(min_size=1),
    st.dictionaries(
        st.sampled_from(["values", "keys", "headers", "priorities", "timestamps", "flags"]),
        st.tuples(
            st.integers(0, 7), st.none() | out_of_range | not_bytes | st.binary(min_size=65_530, max_size=65_540)
        ),
        max_size=3,
    ),
)
def test_encode_refuses_the_same_messages(given_messages, faults):
    for name, (at, wrong) in faults.items():
        damage(given_messages[name], at, wrong)

    assert_equal("encode", *given_messages.values())


@given(
    st.dictionaries(
        header_texts | st.text(max_size=3) | st.binary(max_size=3) | st.none(),
        header_texts | st.text(max_size=3) | st.binary(max_size=3) | st.integers() | st.none(),
        max_size=3,
    )
)
def test_encode_takes_and_refuses_the_same_headers(headers):
    assert_equal("encode", [b""], None, [headers], 0, 0, 0)
    assert_equal("encode", [b""], None, [[*headers.items()] * 2], 0, 0, 0)


@given(st.lists(st.tuples(header_texts, header_texts | st.none()) | st.tuples(header_texts) | header_texts, max_size=3))
def test_encode_takes_and_refuses_the_same_pairs(pairs):
    assert_equal("encode", [b""], None, [pairs], 0, 0, 0)


@given(st.integers(65_520, 65_545), st.integers(0, 3), header_dicts)
def test_encode_draws_the_limit_of_headers_at_the_same_byte(size, others, headers):
    assert_equal("encode", [b""], None, [{str(n): "" for n in range(others)} | {"a": bytes(size)}], 0, 0, 0)
    assert_equal("encode", [b""], None, [{"é" * (size // 2): "", **headers}], 0, 0, 0)


@given(messages(), st.integers(0, 3), st.sampled_from(["keys", "headers", "priorities", "timestamps", "flags"]))
def test_encode_counts_the_same(given_messages, missing, column):
    given_messages[column] = given_messages[column][missing:]

    assert_equal("encode", *given_messages.values())


@given(messages(), out_of_range | st.integers(0, 4), out_of_range, out_of_range | st.just(0))
def test_encode_checks_single_numbers_the_same(given_messages, priority, timestamp, flags):
    given_messages |= {"priorities": priority, "timestamps": timestamp, "flags": flags}

    assert_equal("encode", *given_messages.values())


@hostile_examples
@given(any_batches)
def test_stamp_validates_the_same(batch):
    for allowed in (FLAGS_FROM_PRODUCERS, FLAGS_KNOWN):
        assert_stamped_equal(batch, 3, -5, allowed, 100, 0, 0)


@given(
    any_batches,
    st.tuples(
        offsets | st.integers(OFFSET_MAX - 3, OFFSET_MAX),
        timestamps,
        st.sampled_from([FLAGS_FROM_PRODUCERS, FLAGS_KNOWN, 0, 0xFF]),
        st.integers(0, 200),
        positions,
        positions,
    ),
)
def test_stamp_writes_the_same(batch, arguments):
    assert_stamped_equal(batch, *arguments)


def assert_stamped_equal(batch: bytearray, *arguments: Any) -> None:
    c, python = raw_kernels()
    copies = tight(batch), tight(batch)

    outcomes = outcome(c.stamp, copies[0], *arguments), outcome(python.stamp, copies[1], *arguments)

    assert outcomes[0] == outcomes[1]
    assert copies[0] == copies[1]


@hostile_examples
@given(any_batches)
def test_scan_validates_the_same(batch):
    assert_equal("scan", batch, 0, False, 0, OFFSET_MAX, 0, 0, True)


@given(
    any_batches,
    st.tuples(near_offsets, st.booleans(), near_offsets, near_offsets, positions, positions, st.booleans()),
)
def test_scan_sums_up_the_same(batch, arguments):
    assert_equal("scan", batch, *arguments)


@given(st.lists(st.integers(0, 3000), max_size=12), positions, positions)
def test_index_entries_are_the_same(sizes, position, next_index_at):
    batch = stamped([bytes(size) for size in sizes])

    assert_equal("scan", batch, 0, True, 0, OFFSET_MAX, position, next_index_at, True)


@hostile_examples
@given(any_batches)
def test_resync_finds_the_same_behind_each_byte(batch):
    for start in range(0, len(batch) + 2, 7):
        assert_equal("resync", batch, start, 0, OFFSET_MAX)


@given(st.lists(any_batches, max_size=4), st.integers(0, 200), near_offsets, near_offsets)
def test_resync_finds_the_same_between_pieces(pieces, start, min_offset, max_offset):
    assert_equal("resync", b"?".join(pieces), start, min_offset, max_offset)


@given(
    st.lists(st.tuples(st.integers(0, 60_000), st.integers(0, 60_000), st.sampled_from([0, 0, 0, 2])), max_size=30),
    valid_batches(),
)
@settings(max_examples=30, deadline=None)
def test_resync_gives_up_at_the_same_byte(fakes, good):
    headers = [HEADER.pack(b"GQ", 1, flags, 0, 7, 0, 2, 0, klen, vlen, flags) for klen, vlen, flags in fakes]
    batch = b"?" + b"".join(headers) * 3 + bytes(80_000) + good

    assert_equal("resync", batch, 0, 0, OFFSET_MAX)


@hostile_examples
@given(any_batches)
def test_decode_makes_the_same_records(batch):
    c, python = raw_kernels()
    fields = ("origin", "offset", "timestamp_ns", "priority_code", "flags", "key", "value", "encoded_headers")

    for verify in (True, False):
        (*ends, records), (*expected_ends, expected) = (
            kernel.decode(tight(batch), "here", kernel.Record, verify) for kernel in (c, python)
        )

        assert ends == expected_ends
        assert [[getattr(record, name) for name in fields] for record in records] == [
            [getattr(record, name) for name in fields] for record in expected
        ]


@hostile_examples
@given(any_batches)
def test_columns_are_the_same(batch):
    for verify in (True, False):
        assert_equal("columns", batch, 0x7F, verify)


@given(valid_batches(max_size=20), st.integers(-1, 300))
def test_any_choice_of_columns_is_the_same(batch, wanted):
    assert_equal("columns", batch, wanted, True)


@hostile_examples
@given(any_batches)
def test_filter_validates_the_same(batch):
    assert_equal("filter", batch, 0, OFFSET_MAX, 0, b"", 0, {b"k": 5}, 0)


@given(
    valid_batches() | hostile_batches,
    near_offsets,
    near_offsets,
    st.integers(0, 0xFF),
    st.lists(st.integers(-1, 60), max_size=8).map(sorted) | st.lists(near_offsets, max_size=4),
    timestamps | st.just(OFFSET_MAX),
    st.none() | st.dictionaries(st.sampled_from([b"", b"a", b"b"]), near_offsets | st.none()),
    timestamps,
)
def test_filter_hides_the_same(batch, from_offset, to_offset, hide_flags, bounds, due, latest, tombstones_before):
    hidden = array.array("q", bounds).tobytes()

    assert_equal("filter", batch, from_offset, to_offset, hide_flags, hidden, due, latest, tombstones_before)


@hostile_examples
@given(any_batches)
def test_strip_validates_the_same(batch):
    assert_equal("strip", batch, 5)


@given(valid_batches(), st.integers(-1, 9))
def test_strip_leaves_the_same(batch, keep):
    assert_equal("strip", batch, keep)


@hostile_examples
@given(any_batches)
def test_latest_notes_the_same(batch):
    c, python = raw_kernels()
    tables: tuple[dict[bytes, int], ...] = ({b"a": 1}, {b"a": 1})

    assert c.latest(tight(batch), tables[0]) == python.latest(batch, tables[1])

    assert tables[0] == tables[1]
    assert list(tables[0]) == list(tables[1])


@given(any_batches, st.integers(-(2**63), 2**63 - 1))
def test_waits_are_the_same(batch, now):
    assert_equal("waits", batch, now)


@hostile_examples
@given(any_batches)
def test_outline_notes_the_same(batch):
    assert_equal("outline", batch)


@hostile_examples
@given(any_batches)
def test_select_validates_the_same(batch):
    everything = array.array("Q", range(60)).tobytes() + b"\xff" * 8

    assert_equal("select", batch, everything, OFFSET_MAX)


@given(
    valid_batches(max_size=12) | hostile_batches,
    st.lists(st.integers(0, 60) | st.integers(0, 2**64 - 1), max_size=30).map(sorted)
    | st.lists(st.integers(0, 60), max_size=4),
    st.sampled_from([b"", b"", b"", b"1234567"]),
    st.integers(-1, 600) | st.just(OFFSET_MAX),
)
def test_select_copies_the_same(batch, wanted, rest, max_bytes):
    assert_equal("select", batch, array.array("Q", wanted).tobytes() + rest, max_bytes)
