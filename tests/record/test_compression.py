"""What was compressed comes back as it was; what only claims to be is refused, and takes no memory with it."""

import lz4.frame
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from goqueue.errors import CorruptRecord, InvalidConfig
from goqueue.names import TopicPartition
from goqueue.record import kernel
from goqueue.record.compression import DECOMPRESSED_BYTES_MAX, compress, compress_all, decompress
from goqueue.record.header import Flags
from goqueue.record.message import decode_messages

ORIGIN = TopicPartition("orders", 0)
algorithms = st.sampled_from(["zstd", "lz4"])


@given(st.binary(max_size=2_000), algorithms)
def test_a_value_comes_back_as_it_was(value: bytes, algorithm: str) -> None:
    assert decompress(compress(value, algorithm)) == value


@given(st.lists(st.none() | st.binary(max_size=300) | st.just(b"a" * 500), max_size=8), algorithms)
def test_messages_come_back_as_they_were_whichever_got_smaller(values: list[bytes | None], algorithm: str) -> None:
    packed, flags = compress_all(values, algorithm)
    records = kernel.encode(packed, flags=flags, headers=[{"a": "b"}] * len(values))
    if values:
        kernel.stamp(records, first_offset=5, timestamp=9)

    messages = decode_messages(records, ORIGIN, flags=Flags.COMPRESSED)

    assert [message.value for message in messages] == [value or b"" for value in values]
    assert [message.tombstone for message in messages] == [value is None for value in values]
    assert not any(message.flags & Flags.COMPRESSED for message in messages)
    assert [message.offset for message in messages] == list(range(5, 5 + len(values)))
    assert all(
        len(small or b"") < len(value or b"") if flag else small == value
        for small, value, flag in zip(packed, values, flags, strict=True)
    )


@given(st.binary(max_size=200), algorithms, st.integers(0, 2**31), st.integers(1, 255))
def test_a_damaged_value_is_refused_or_read_but_nothing_else(
    value: bytes, algorithm: str, place: int, change: int
) -> None:
    packed = bytearray(compress(value, algorithm))
    packed[place % len(packed)] ^= change

    try:
        decompress(bytes(packed))
    except CorruptRecord:
        pass


@pytest.mark.parametrize("algorithm", ["zstd", "lz4"])
def test_a_value_that_is_cut_off_is_refused(algorithm: str) -> None:
    packed = compress(bytes(range(256)) * 10, algorithm)

    for size in (4, 6, len(packed) // 2, len(packed) - 1):
        with pytest.raises(CorruptRecord):
            decompress(packed[:size])


@pytest.mark.parametrize("value", [b"", b"\0", b"no magic at all", b"\x28\xb5\x2f", b"\x28\xb5\x2f\xfd"])
def test_a_value_of_no_known_algorithm_is_refused(value: bytes) -> None:
    with pytest.raises(CorruptRecord):
        decompress(value)


def test_a_few_bytes_that_claim_to_be_gigabytes_are_refused() -> None:
    size = DECOMPRESSED_BYTES_MAX + 1
    bombs = [
        zstandard.ZstdCompressor(level=1).compress(bytes(size)),
        lz4.frame.compress(bytes(size)),
        _zstd_of_unknown_size(size),
    ]

    for bomb in bombs:
        with pytest.raises(CorruptRecord):
            decompress(bomb)


def test_a_stream_that_does_not_say_its_size_is_read() -> None:
    assert decompress(_zstd_of_unknown_size(1_000)) == bytes(1_000)


def test_an_unknown_algorithm_is_refused() -> None:
    with pytest.raises(InvalidConfig):
        compress(b"v", "gzip")


def _zstd_of_unknown_size(size: int) -> bytes:
    stream = zstandard.ZstdCompressor(level=1).compressobj()
    packed: bytes = stream.compress(bytes(size)) + stream.flush()
    assert zstandard.frame_content_size(packed) == -1
    return packed
