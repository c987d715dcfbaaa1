"""A key goes to the same partition in every process, for ever."""

import pytest

from goqueue.wire.partitioning import partition_of_key


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


def test_keys_are_spread_evenly() -> None:
    counts = [0] * 6
    for number in range(6_000):
        counts[partition_of_key(f"customer-{number}".encode(), 6)] += 1

    assert all(900 < count < 1_100 for count in counts)
