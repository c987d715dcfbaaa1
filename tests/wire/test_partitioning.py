"""A key goes to the same partition in every process, for ever."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from goqueue.errors import InvalidConfig
from goqueue.record import _kernel_py, kernel
from goqueue.wire.partitioning import MURMUR2, MURMUR3, key_hash, partition_of_key


@pytest.mark.parametrize(
    ("key", "hashed"),
    [
        (b"", 0),
        (b"test", 0xBA6BD213),
        (b"Hello, world!", 0xC0363E43),
        (b"The quick brown fox jumps over the lazy dog", 0x2E4FF723),
    ],
)
def test_the_hash_is_murmur3_of_32_bits_without_a_sign(key: bytes, hashed: int) -> None:
    assert partition_of_key(key, 2**32) == hashed
    assert partition_of_key(key, 7) == hashed % 7


@pytest.mark.parametrize(
    ("key", "hashed"),  # of testMurmur2 in Kafka's UtilsTest
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_murmur2_is_that_of_kafka_without_its_sign(key: bytes, hashed: int) -> None:
    assert kernel.murmur2(key) == _kernel_py.murmur2(key) == hashed % 2**32
    assert key_hash(MURMUR2)(key) == hashed & 0x7FFF_FFFF


@pytest.mark.parametrize(
    ("key", "partition"),  # of the tests of Kafka's clients for Python, which compare with Java
    [(b"", 681), (b"a", 524), (b"ab", 434), (b"abc", 107), (b"123456789", 566), (b"\x00 ", 742)],
)
def test_a_key_goes_where_the_default_partitioner_of_kafka_sends_it(key: bytes, partition: int) -> None:
    assert partition_of_key(key, 1_000, MURMUR2) == partition


@given(st.binary(max_size=50))
def test_both_kernels_have_the_same_murmur2(key: bytes) -> None:
    assert kernel.murmur2(key) == _kernel_py.murmur2(key)


@pytest.mark.parametrize("key", ["text", None, bytearray(b"a")])
def test_only_bytes_have_a_murmur2(key: object) -> None:
    for murmur2 in (kernel.murmur2, _kernel_py.murmur2):
        with pytest.raises(TypeError):
            murmur2(key)  # type: ignore[arg-type]


def test_a_partitioner_that_is_not_known_is_refused() -> None:
    with pytest.raises(InvalidConfig, match="murmur3, murmur2"):
        key_hash("crc32")


@pytest.mark.parametrize("partitioner", [MURMUR3, MURMUR2])
def test_keys_are_spread_evenly(partitioner: str) -> None:
    counts = [0] * 6
    for number in range(6_000):
        counts[partition_of_key(f"customer-{number}".encode(), 6, partitioner)] += 1

    assert all(900 < count < 1_100 for count in counts)
