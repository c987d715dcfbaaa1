"""The identity of a batch: the header `gq-producer` of its first record.

    producer_id:epoch:first_sequence:record_count[:transaction]      in decimal, 81985529216486895:0:52:1:3

A producer numbers its records per partition. A batch that is sent again has the same identity, so the broker recognizes
it. The identity is a part of the record, not of the frame, so it is in the log as well: after a crash the broker learns
from the log which batches it has.

Ids of producers are 63 bits. The broker draws those that it hands out from 52 bits. Ids from `DERIVED_FROM` on are for
the broker itself, which derives them from what it does (`derived_producer_id`), and are refused from clients. So after
a restart, or on another node, the same work continues with the same id, and no client ever has it by chance.
"""

import hashlib
import re
from typing import NamedTuple

from goqueue.errors import CorruptRecord, InvalidBatch, InvalidRequest
from goqueue.record.header import HEADER, HEADER_BYTES, Flags
from goqueue.record.headers import PRODUCER, split_headers

_PRODUCER = PRODUCER.encode()
_FIRST = len(_PRODUCER).to_bytes(2) + _PRODUCER
_FIRST_END = 2 + len(_FIRST) + 2
_HAS_HEADERS = int(Flags.HAS_HEADERS)
_IDENTITY = re.compile(rb"([0-9]{1,19}):([0-9]{1,10}):([0-9]{1,19}):([0-9]{1,10})(?::([0-9]{1,19}))?")
TRANSACTION_MAX = 2**62
"""The number of a transaction is above 0 and below this."""
DERIVED_FROM = 2**62
"""The ids of producers from here on are derived by the broker."""
_DERIVED_BYTES = 8


class BatchIdentity(NamedTuple):
    """The value of `gq-producer`, taken apart."""

    producer_id: int
    epoch: int
    first_sequence: int
    record_count: int
    transaction: int = 0  # the number of the transaction, 0 outside of one

    def encode(self) -> bytes:
        """The value of the header."""
        return b"%d:%d:%d:%d:%d" % self if self.transaction else b"%d:%d:%d:%d" % self[:4]

    @classmethod
    def parse(cls, raw: bytes) -> "BatchIdentity":
        """The identity in a header; raises ValueError for any other text."""
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


def derived_producer_id(*names: bytes) -> int:
    """The id of the producer that these names make up: 62 bits of their hash."""
    digest = hashlib.blake2b(digest_size=_DERIVED_BYTES)
    for name in names:
        digest.update(len(name).to_bytes(_DERIVED_BYTES) + name)
    return DERIVED_FROM | int.from_bytes(digest.digest()) % DERIVED_FROM


def refuse_derived(producer_id: int) -> None:
    """Raise `InvalidRequest` if only the broker itself may publish with that id."""
    if producer_id >= DERIVED_FROM:
        reason = f"must be one that the broker has handed out, below {DERIVED_FROM}"
        raise InvalidRequest(f"invalid producer id {producer_id}: {reason}", path="producer_id")


def identity_of(records: bytes | bytearray | memoryview) -> BatchIdentity | None:
    """The identity of a batch, None without one; raises `InvalidBatch` if the header is malformed.

    Every publish comes through here before its records are validated, so nothing in them is trusted, and a batch
    without headers costs one unpack.
    """
    if len(records) < HEADER_BYTES:
        return None
    _, _, flags, _, _, _, _, _, key_size, value_size, headers_size = HEADER.unpack_from(records)
    if not flags & _HAS_HEADERS:
        return None
    start = HEADER_BYTES + key_size + value_size
    raw = bytes(records[start : start + headers_size])
    if len(raw) != headers_size or _PRODUCER not in raw:
        return None
    if raw.startswith(_FIRST, 2):  # the Python client writes it first, which saves splitting all headers
        end = _FIRST_END + int.from_bytes(raw[_FIRST_END - 2 : _FIRST_END])
        return _parsed(raw[_FIRST_END:end])
    try:
        headers = split_headers(raw)
    except CorruptRecord as error:
        raise InvalidBatch(error.reason, 0) from None
    return next((_parsed(value or b"") for name, value in headers if name == _PRODUCER), None)


def _parsed(raw: bytes) -> BatchIdentity:
    try:
        return BatchIdentity.parse(raw)
    except ValueError:
        raise InvalidBatch(f"malformed header {PRODUCER}", 0) from None
