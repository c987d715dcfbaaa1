"""Markers: the records that say how a transaction ended; and the check of transactional batches.

A marker is a control record: no key, no value, and the header `gq-transaction` with producer id and number, in decimal
and separated by a colon. The flag COMMIT tells a commit from an abort. The broker writes a marker to every partition
that the transaction has touched. Clients cannot: producers may not set the flag CONTROL.

The claims of a transactional batch are trusted whenever the log is read again, so they are checked when the batch
arrives: either all of its records have the flag TRANSACTIONAL or none has, the flag and the number in `gq-producer` go
together, and only the first record names the producer.
"""

import re
from array import array
from bisect import bisect_right
from collections.abc import Iterator
from typing import Final, NamedTuple

from goqueue.errors import CorruptRecord, InvalidBatch
from goqueue.record import kernel
from goqueue.record.header import FLAGS_FROM_PRODUCERS, Buffer, Flags, first_record
from goqueue.record.headers import PRODUCER, split_headers
from goqueue.record.identity import TRANSACTION_MAX, BatchIdentity

TRANSACTION: Final = "gq-transaction"
"""The header of a marker: producer id and number of the transaction that ended."""
MARKER_FLAGS: Final = Flags.CONTROL | Flags.COMMIT | Flags.TRANSACTIONAL | Flags.HAS_HEADERS
"""The flags that `Log.append` has to allow for a marker."""
TRANSACTIONAL_FLAGS: Final = FLAGS_FROM_PRODUCERS | Flags.TRANSACTIONAL
"""The flags that `Log.append` has to allow for a batch of a transaction."""

_TRANSACTION = TRANSACTION.encode()
_PRODUCER = PRODUCER.encode()
_TEXT = re.compile(rb"([0-9]{1,19}):([0-9]{1,19})")


class Marker(NamedTuple):
    """The end of a transaction, at that offset of the partition."""

    offset: int
    producer_id: int
    number: int
    is_commit: bool


def marker(producer_id: int, number: int, *, commit: bool) -> bytearray:
    """The record that ends the transaction, as `Log.append` takes it with `MARKER_FLAGS`."""
    assert 0 < producer_id < 2**63
    assert 0 < number < TRANSACTION_MAX
    flags = Flags.CONTROL | Flags.TRANSACTIONAL | (Flags.COMMIT if commit else 0)
    return kernel.encode([b""], headers=[{TRANSACTION: b"%d:%d" % (producer_id, number)}], flags=flags)


def markers_in(records: Buffer) -> Iterator[Marker]:
    """The markers among stored records, which are complete and valid, in the order of their offsets."""
    if bytes(records).find(_TRANSACTION) < 0:
        return
    control = kernel.outline(records).control
    if not control:
        return
    found = kernel.select(records, array("Q", control), max_bytes=len(records))
    for record in kernel.decode(found.records, None, kernel.RecordBase, verify=False):
        transaction = _transaction_of(record.encoded_headers) if record.flags & Flags.TRANSACTIONAL else None
        if transaction:
            yield Marker(record.offset, *transaction, bool(record.flags & Flags.COMMIT))


def _transaction_of(encoded_headers: bytes | None) -> tuple[int, int] | None:
    for name, value in split_headers(encoded_headers or b""):
        if name == _TRANSACTION and (match := _TEXT.fullmatch(value or b"")):
            producer_id, number = map(int, match.groups())
            if 0 < producer_id < 2**63 and 0 < number < TRANSACTION_MAX:
                return producer_id, number
    return None


def check_batch(records: bytearray | memoryview, identity: BatchIdentity | None) -> int:
    """The flags that the records of a producer's batch may have; raises `InvalidBatch` for a mixed batch.

    `identity` is that of the first record. Two checks are left to others: `Log.append` compares the number of records
    with `record_count`, because it counts them anyway, and `check_later` looks at the headers of the other records,
    which is needed only if they have any.
    """
    if not identity or not identity.transaction:
        return FLAGS_FROM_PRODUCERS
    try:
        others = kernel.filter(records, hide_flags=Flags.TRANSACTIONAL)
    except CorruptRecord as error:
        raise InvalidBatch(error.reason, error.position) from None
    if others:
        raise InvalidBatch("not all records are transactional", 0)
    return TRANSACTIONAL_FLAGS


def check_later(records: bytearray | memoryview) -> None:
    """Raise `InvalidBatch` if a later record than the first names a producer. The records are complete and valid."""
    others = memoryview(records)[len(first_record(records)) :]
    columns = kernel.columns(others, "headers", verify=False)
    bounds = memoryview(columns.header_name_offsets).cast("i")
    names = bytes(columns.header_name_data)
    at = names.find(_PRODUCER)
    while at >= 0:
        index = bisect_right(bounds, at) - 1
        if bounds[index] == at and bounds[index + 1] == at + len(_PRODUCER):
            raise InvalidBatch(f"header {PRODUCER} in a record that is not the first", 0)
        at = names.find(_PRODUCER, at + 1)
