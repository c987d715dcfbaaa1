"""Who sent a batch: the header `gq-producer` of its first record.

Producer id, epoch, first sequence and record count, in decimal with colons between. A producer numbers its records per
partition, so a batch that is sent again says the same again, and the broker recognises it.
"""

from typing import NamedTuple

from goqueue.errors import InvalidBatch
from goqueue.record.header import HEADER, HEADER_BYTES, Flags
from goqueue.record.headers import PRODUCER, split_headers


class BatchIdentity(NamedTuple):
    """What a batch says of itself in `gq-producer`."""

    producer_id: int
    epoch: int
    first_sequence: int
    record_count: int

    def encode(self) -> bytes:
        """The value of the header."""
        return b"%d:%d:%d:%d" % self

    @classmethod
    def parse(cls, raw: bytes) -> "BatchIdentity":
        """The identity in a header; raises ValueError if it is none."""
        producer_id, epoch, sequence, count = (int(field) for field in raw.split(b":") if field.isdigit())
        if not (0 < producer_id < 2**63 and epoch < 2**31 and sequence < 2**62 and 0 < count < 2**31):
            raise ValueError(raw)
        return cls(producer_id, epoch, sequence, count)


def identity_of(records: bytes | bytearray | memoryview) -> BatchIdentity | None:
    """What the first record of a batch says; raises `InvalidBatch` if that makes no sense."""
    if len(records) < HEADER_BYTES:
        return None
    _, _, flags, _, _, _, _, _, key_size, value_size, headers_size = HEADER.unpack_from(records)
    if not flags & Flags.HAS_HEADERS:
        return None
    start = HEADER_BYTES + key_size + value_size
    raw = bytes(records[start : start + headers_size])
    if len(raw) != headers_size or PRODUCER.encode() not in raw:
        return None
    for name, value in split_headers(raw):
        if name == PRODUCER.encode():
            try:
                return BatchIdentity.parse(value)
            except ValueError:
                raise InvalidBatch(f"malformed header {PRODUCER}", 0) from None
    return None
