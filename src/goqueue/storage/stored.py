"""The check of records that a leader has stamped, before a follower writes them.

A leader sends what its log holds, so anything that a log cannot hold is a mistake of one of the two, or comes from
another history: offsets that do not continue the follower's log, or times before its last one. Times never fall in a
log. Every record has a checksum, but looking at the time of each would cost a Python statement per record: the times
that the time index relies on are compared, one per 4 KiB, and both ends.
"""

from itertools import pairwise

from goqueue.errors import InvalidBatch
from goqueue.record import kernel
from goqueue.storage.time_index import TimeIndex


def scan_stored(
    records: memoryview,
    *,
    next_offset: int,
    end_offset: int | None,
    last_timestamp: int,
    position: int,
    next_index_at: int,
) -> kernel.Summary:
    """The summary of records that continue a log at `next_offset`. Raises `InvalidBatch`.

    With `end_offset` offsets may be missing, and all are below it; without it they are dense, and there is at least one
    record.
    """
    found = kernel.scan(
        records,
        min_offset=next_offset,
        dense=end_offset is None,
        position=position,
        next_index_at=next_index_at,
    )
    if found.fault:
        raise InvalidBatch(kernel.describe(found.fault), found.fault_position)
    least = found.last_offset + 1 if found.record_count else next_offset + 1
    if end_offset is None and not found.record_count:
        raise InvalidBatch("no records", 0)
    if end_offset is not None and end_offset < least:
        raise InvalidBatch(f"the records end before offset {least}, not {end_offset}", 0)
    if found.record_count:
        indexed = [time for time, _ in TimeIndex.ENTRY.iter_unpack(found.time_entries)]
        times = [last_timestamp, found.first_timestamp, *indexed, found.last_timestamp]
        if any(later < earlier for earlier, later in pairwise(times)):
            raise InvalidBatch(f"the times of the records fall, or begin before {last_timestamp}", 0)
    return found
