"""Reading the runs that a cursor has taken out of its lanes: the records, in the room that an answer has.

Where not all fit, each run gets its part of the room, so that lanes keep their shares. In a key-shared group the order
of keys then decides which of the records may go to the member now.
"""

from collections.abc import Sequence
from operator import itemgetter
from typing import NamedTuple

from pyroaring import BitMap64

from goqueue.broker.partition.record_fetcher import RecordFetcher
from goqueue.delivery.key_order import KeyOrder
from goqueue.delivery.lanes import LaneRun
from goqueue.delivery.offsets import between
from goqueue.record import kernel
from goqueue.record.header import Buffer
from goqueue.record.message import StoredMessage


class ReadRuns(NamedTuple):
    """What was read of some runs: records and their offsets, what did not fit, and what the log no longer has."""

    records: Sequence[Buffer]
    flags: int
    offsets: BitMap64
    left: list[LaneRun]
    gone: BitMap64


def cut_redelivered(runs: list[LaneRun], delivered_before: BitMap64, most: int) -> tuple[list[LaneRun], list[LaneRun]]:
    """The runs up to so many messages that were delivered before, and the rest of them."""
    if sum(len(offsets) for _, offsets in runs) <= most:
        return runs, []
    kept, cut, left = [], [], most
    for lane, offsets in runs:
        again = offsets & delivered_before
        if len(again) <= left:
            kept.append(LaneRun(lane, offsets))
            left -= len(again)
            continue
        front = between(offsets, 0, again[left])
        if front:
            kept.append(LaneRun(lane, front))
        cut.append(LaneRun(lane, offsets - front))
        left = 0
    return kept, cut


def read_runs(fetcher: RecordFetcher, runs: Sequence[LaneRun], max_bytes: int) -> ReadRuns:
    """The records of the runs, as far as they fit; the first one comes however large it is."""
    records: list[Buffer] = []
    read, gone = BitMap64(), BitMap64()
    left: list[LaneRun] = []
    size = flags = seen = 0
    total = sum(len(offsets) for _, offsets in runs)
    for lane, offsets in runs:
        seen += len(offsets)
        room = max_bytes * seen // total
        wanted = offsets
        while wanted and (size < room or not records):
            found = fetcher.some(wanted, room - size)
            if records and size + len(found.records) > room:
                break
            if found.offsets:
                records.append(found.records)
                size += len(found.records)
                flags |= found.flags
                read |= found.offsets
            gone |= found.gone
            wanted = wanted - found.offsets - found.gone
        if wanted:
            left.append(LaneRun(lane, wanted))
    return ReadRuns(records, flags, read, left, gone)


def in_key_order(
    keys: KeyOrder, member: str, records: Sequence[Buffer], *, now_ns: int
) -> tuple[Sequence[Buffer], BitMap64]:
    """The records that may go to the member now, and their offsets; the others are parked."""
    allowed = BitMap64()
    kept: list[Buffer] = []
    for part in records:
        candidates = [
            (message.offset, message.key) for message in kernel.decode(part, None, StoredMessage, verify=False)
        ]
        chosen = keys.choose(candidates, member, now_ns=now_ns)
        if chosen.allowed:
            allowed |= chosen.allowed
            kept.append(
                kernel.select(part, chosen.allowed.to_array(), max_bytes=len(part)).records if chosen.parked else part
            )
    return kept, allowed


def first_of(parts: Sequence[tuple[int, BitMap64]], count: int) -> list[LaneRun]:
    """So many messages of the parts, the most urgent lane first."""
    runs: list[LaneRun] = []
    for lane, offsets in sorted(parts, key=itemgetter(0)):
        if count > 0:
            runs.append(LaneRun(lane, offsets if len(offsets) <= count else offsets[:count]))
            count -= len(offsets)
    return runs
