"""The partition of a key: a hash modulo the number of partitions.

Clients of all languages must agree on it, or the messages of a key end up in two partitions. So each topic has a
`partitioner`, which clients learn with its metadata and which never changes: `murmur3` (x86, 32 bits, seed 0,
unsigned), or `murmur2`, exactly as Kafka's default partitioner has it (seed 0x9747b28c, without the sign bit), for
topics that Kafka's clients write to as well. An empty key has a partition like any other.

Messages without a key may go anywhere; clients and doors distribute them, a batch at a time.
"""

from collections.abc import Callable
from typing import Final

from mmh3 import hash as murmur3

from goqueue.errors import InvalidConfig
from goqueue.record.kernel import murmur2

MURMUR3: Final = "murmur3"
MURMUR2: Final = "murmur2"
KeyHash = Callable[[bytes], int]

_HASHES: Final[dict[str, KeyHash]] = {
    MURMUR3: lambda key: murmur3(key, 0, False),
    MURMUR2: lambda key: murmur2(key) & 0x7FFF_FFFF,
}


def key_hash(partitioner: str) -> KeyHash:
    """What a partitioner takes modulo the number of partitions."""
    try:
        return _HASHES[partitioner]
    except KeyError:
        raise InvalidConfig("partitioner", partitioner, f"must be one of {', '.join(_HASHES)}") from None


def partition_of_key(key: bytes, partition_count: int, partitioner: str = MURMUR3) -> int:
    """The partition of a key: the same in every process and every version."""
    return key_hash(partitioner)(key) % partition_count
