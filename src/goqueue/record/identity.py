"""Who sent a batch: the header `gq-producer` of its first record.

Producer id, epoch, first sequence and record count, in decimal with colons between; in a transaction its number follows
as the fifth. A producer numbers its records per partition, so a batch that is sent again says the same again, and the
broker recognises it.
"""

import re
from typing import NamedTuple

from goqueue.errors import CorruptRecord, InvalidBatch
from goqueue.record.header import HEADER, HEADER_BYTES, Flags
from goqueue.record.headers import PRODUCER, split_headers

_PRODUCER = PRODUCER.encode()
_FIRST = len(_PRODUCER).to_bytes(2) + _PRODUCER
_FIRST_END = 2 + len(_FIRST) + 2
_HAS_HEADERS = int(Flags.HAS_HEADERS)
_IDENTITY = re.compile(rb"([0-9]{1,19}):([0-9]{1,10}):([0-9]{1,19}):([0-9]{1,10})(?::([0-9]{1,19}))?")
TRANSACTION_MAX = 2**62
"""The number of a transaction is below it, and above 0."""


class BatchIdentity(NamedTuple):
    """What a batch says of itself in `gq-producer`."""

    producer_id: int
    epoch: int
    first_sequence: int
    record_count: int
    transaction: int = 0  # its number, 0 outside of one

    def encode(self) -> bytes:
        """The value of the header."""
        return b"%d:%d:%d:%d:%d" % self if self.transaction else b"%d:%d:%d:%d" % self[:4]

    @classmethod
    def parse(cls, raw: bytes) -> "BatchIdentity":
        """The identity in a header; raises ValueError if it is none."""
        match = _IDENTITY.fullmatch(raw)
        if not match:
            raise ValueError(raw)
        *numbers, transaction = match.groups()
        producer_id, epoch, sequence, count = map(int, numbers)
        if not (0 < producer_id < 2**63 and epoch < 2**31 and sequence < 2**62 and 0 < count < 2**31):
            raise ValueError(raw)
        if transaction is None:
            return cls(producer_id, epoch, sequence, count)
        if not 0 < int(transaction) < TRANSACTION_MAX:
            raise ValueError(raw)
        return cls(producer_id, epoch, sequence, count, int(transaction))


def identity_of(records: bytes | bytearray | memoryview) -> BatchIdentity | None:
    """What the first record of a batch says; raises `InvalidBatch` if that makes no sense."""
    if len(records) < HEADER_BYTES:
        return None
    _, _, flags, _, _, _, _, _, key_size, value_size, headers_size = HEADER.unpack_from(records)
    if not flags & _HAS_HEADERS:
        return None
    start = HEADER_BYTES + key_size + value_size
    raw = bytes(records[start : start + headers_size])
    if len(raw) != headers_size or _PRODUCER not in raw:
        return None
    if raw.startswith(_FIRST, 2):  # where our own client puts it
        end = _FIRST_END + int.from_bytes(raw[_FIRST_END - 2 : _FIRST_END])
        return _parsed(raw[_FIRST_END:end])
    try:
        headers = split_headers(raw)
    except CorruptRecord as error:
        raise InvalidBatch(error.reason, 0) from None
    return next((_parsed(value) for name, value in headers if name == _PRODUCER), None)


def _parsed(raw: bytes) -> BatchIdentity:
    try:
        return BatchIdentity.parse(raw)
    except ValueError:
        raise InvalidBatch(f"malformed header {PRODUCER}", 0) from None
