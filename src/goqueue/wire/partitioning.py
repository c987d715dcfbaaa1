"""The partition of a key: murmur3 (x86, 32 bits, seed 0, unsigned) modulo the number of partitions.

Clients of all languages must agree on it, or the messages of a key end up in two partitions. Messages without a key may
go anywhere; clients and doors distribute them, a batch at a time.
"""

from mmh3 import hash as murmur3


def partition_of_key(key: bytes, partition_count: int) -> int:
    """The partition of a key: the same in every process and every version."""
    return murmur3(key, 0, False) % partition_count
