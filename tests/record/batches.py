"""Batches for the tests of the record kernels, and the kernels themselves."""

import importlib.util
import os
from array import array
from types import ModuleType
from typing import Any

import pytest
from hypothesis import strategies as st

from goqueue.record import _kernel_py
from goqueue.record.header import FLAGS_KNOWN, HEADER, OFFSET_MAX, TIMESTAMP_MIN, VALUE_BYTES_MAX, Flags

C_IS_BUILT = importlib.util.find_spec("goqueue.record._kernel") is not None
needs_c = pytest.mark.skipif(not C_IS_BUILT, reason="the C kernel is not built")

TIME = 1_700_000_000_000_000_000
HEADER_FIELDS = (
    "magic",
    "version",
    "flags",
    "crc",
    "offset",
    "timestamp",
    "priority",
    "reserved",
    "klen",
    "vlen",
    "hlen",
)


def load_kernel(name: str) -> ModuleType:
    """The facade `goqueue.record.kernel`, as it is where `GOQUEUE_KERNEL` has this value."""
    spec = importlib.util.find_spec("goqueue.record.kernel")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    before = dict(os.environ)
    os.environ["GOQUEUE_KERNEL"] = name
    try:
        spec.loader.exec_module(module)
    finally:
        os.environ.clear()
        os.environ.update(before)
    return module


KERNELS = [load_kernel("python"), *([load_kernel("c")] if C_IS_BUILT else [])]


def raw_kernels() -> tuple[Any, Any]:
    """The C kernel and its Python twin, without the facade."""
    from goqueue.record import _kernel

    return _kernel, _kernel_py


def stamped(
    values: Any, *, first_offset: int = 0, timestamp: int = TIME, flags_allowed: int = FLAGS_KNOWN, **fields: Any
) -> bytearray:
    """Records as they stand in a log, written by the oracle."""
    given = {"keys": None, "headers": None, "priorities": 2, "timestamps": 0, "flags": 0} | fields
    records = _kernel_py.encode(values, *given.values())
    outcome = _kernel_py.stamp(records, first_offset, timestamp, flags_allowed, VALUE_BYTES_MAX, 0, OFFSET_MAX)
    assert outcome[-4] == 0
    return records


def tight(data: bytes | bytearray) -> "array[int]":
    """The same bytes with no spare one behind them, so that a sanitizer sees each step over the end."""
    return array("B", data)[:]  # a slice is given exactly the room it needs


def fields_of(record: bytes | bytearray) -> dict[str, Any]:
    """The fixed header by name."""
    return dict(zip(HEADER_FIELDS, HEADER.unpack_from(record), strict=True))


def with_fields(record: bytes | bytearray, **changes: Any) -> bytearray:
    """A copy whose first record has these header fields, and a crc that is right for them if its lengths still hold."""
    copy = bytearray(record)
    header = fields_of(copy) | changes
    HEADER.pack_into(copy, 0, *header.values())
    if "crc" not in changes:
        end = HEADER.size + header["klen"] + header["vlen"] + header["hlen"]
        crc = _kernel_py.crc32c(bytes(copy[:4] + copy[8:end]), 0)
        copy[4:8] = crc.to_bytes(4)
    return copy


offsets = st.integers(0, OFFSET_MAX)
timestamps = st.integers(TIMESTAMP_MIN, OFFSET_MAX)
header_texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12) | st.binary(max_size=6).map(
    lambda raw: raw.decode("utf-8", "surrogateescape")
)
header_dicts = st.dictionaries(
    header_texts | st.sampled_from(["gq-deliver-at", "gq-expires-at", "gq-for-group", "gq-created"]),
    st.none() | header_texts | st.binary(max_size=12) | timestamps.map(str),
    max_size=4,
)
flag_sets = st.sampled_from(
    [0, 0, 0, Flags.COMPRESSED, Flags.TRANSACTIONAL, Flags.CONTROL, Flags.CONTROL | Flags.COMMIT, Flags.HAS_HEADERS]
).map(int)


@st.composite
def messages(draw: st.DrawFn, min_size: int = 0, max_size: int = 8) -> dict[str, list[Any]]:
    """Arguments for `encode`, by name."""
    count = draw(st.integers(min_size, max_size))

    def column(items: st.SearchStrategy[Any]) -> list[Any]:
        return draw(st.lists(items, min_size=count, max_size=count))

    return {
        "values": column(st.none() | st.binary(max_size=150)),
        "keys": column(st.none() | st.sampled_from([b"", b"a", b"b"]) | st.binary(max_size=20)),
        "headers": column(st.none() | header_dicts | header_dicts.map(lambda headers: [*headers.items()] * 2)),
        "priorities": column(st.integers(0, 4)),
        "timestamps": column(timestamps),
        "flags": column(flag_sets),
    }


@st.composite
def valid_batches(draw: st.DrawFn, min_size: int = 0, max_size: int = 8) -> bytearray:
    """Stamped records with rising offsets, some with gaps between them."""
    given = draw(messages(min_size, max_size))
    batch = bytearray()
    offset = draw(st.integers(0, 50))
    for message in zip(*given.values(), strict=True):
        columns = {name: [item] for name, item in zip(given, message, strict=True)}
        batch += stamped(**columns, first_offset=offset, timestamp=draw(timestamps))
        offset += draw(st.sampled_from([1, 1, 1, 2, 1000]))
    return batch


@st.composite
def damaged_batches(draw: st.DrawFn) -> bytearray:
    """Batches with a few bytes changed, cut out or put in, where it hurts more often than by chance."""
    batch = draw(valid_batches(min_size=1))
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(batch)) | st.integers(0, min(34, len(batch))))
        patch = draw(
            st.sampled_from([b"", b"\0", b"\xff", b"\xff\xff", b"\xff" * 4, b"\x80" + b"\0" * 7, b"GQ\x01", b"\0" * 34])
            | st.binary(max_size=4)
        )
        removed = draw(st.sampled_from([len(patch), len(patch), 0, 1, 40]))
        batch[at : at + removed] = patch
    return batch


hostile_batches = damaged_batches() | st.binary(max_size=120).map(bytearray)
any_batches = valid_batches() | hostile_batches
