"""Which partition a message goes to.

A key always goes to the same partition: murmur3 (x86, 32 bit, seed 0, unsigned) modulo the number of partitions.
Messages without a key take turns, a batch's worth at a time: sticking to one partition until its batch is full
makes batches large, and moving on then makes the partitions even.
"""

from mmh3 import hash as murmur3


def partition_of_key(key: bytes, partition_count: int) -> int:
    """The partition of a key, the same in every process and for ever."""
    return murmur3(key, 0, False) % partition_count
