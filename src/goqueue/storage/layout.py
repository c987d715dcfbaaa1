"""What the files in a log's directory are called.

    00000000000000004200.log          records from offset 4200 on, up to the next segment
    00000000000000004200.index        sparse: offset -> position in the .log file
    00000000000000004200.timeindex    sparse: timestamp -> offset
    00000000000000004200.txnindex     which of its records were aborted, if any
    checkpoint                        up to where everything is known to be on the disk
    leader-epochs                     which leader wrote from which offset on
    compaction                        up to where the log is compacted, and a swap under way
    transactions                      there were some in this log; empty
    delayed                           there were delayed messages in this log; empty

A name with `.cleaned` at its end is the work of a compaction that has not been put in place, `.deleted`
waits for its removal, `.new` is a small file that is about to replace its namesake. None of them counts.
Any other name was not written by GoQueue: the log does not open, because where one stranger writes,
nothing can be taken for granted.
"""

import re
from typing import NamedTuple

from goqueue.errors import ForeignFile
from goqueue.record.header import OFFSET_MAX
from goqueue.storage.file import Entry

CHECKPOINT = "checkpoint"
LEADER_EPOCHS = "leader-epochs"
COMPACTION = "compaction"
TRANSACTIONS = "transactions"
DELAYED = "delayed"

LOG = ".log"
OFFSET_INDEX = ".index"
TIME_INDEX = ".timeindex"
TXN_INDEX = ".txnindex"
SPARSE_INDEXES = (OFFSET_INDEX, TIME_INDEX)
SEGMENT_SUFFIXES = (LOG, *SPARSE_INDEXES, TXN_INDEX)

CLEANED = ".cleaned"
DELETED = ".deleted"
NEW = ".new"

_SEGMENT_FILE = re.compile(
    r"(\d{20})(\.log|\.index|\.timeindex|\.txnindex)(\.cleaned|\.deleted|(?<=\.txnindex)\.new)?", re.ASCII
)
_SMALL_FILES = frozenset(
    name + suffix for name in (CHECKPOINT, LEADER_EPOCHS, COMPACTION, TRANSACTIONS, DELAYED) for suffix in ("", NEW)
)


def segment_path(directory: str, base_offset: int, suffix: str) -> str:
    """The path of one file of the segment that starts at `base_offset`."""
    return f"{directory}/{base_offset:020d}{suffix}"


class Listing(NamedTuple):
    """A log's directory, sorted out."""

    log_sizes: dict[int, int]  # base offset -> bytes of the .log file
    cleaned: list[str]  # paths
    leftovers: list[str]  # paths that may go: deleted, half-written, and indexes without a log
    txn_indexes: frozenset[int]  # base offsets of the segments that have one
    has_transactions: bool
    has_delays: bool


def sort_out(directory: str, entries: list[Entry]) -> Listing:
    """Say what each entry is, or raise `ForeignFile` for the first that is none of ours."""
    log_sizes: dict[int, int] = {}
    indexes: list[tuple[int, str]] = []
    cleaned: list[str] = []
    leftovers: list[str] = []
    txn_indexes: set[int] = set()
    has_transactions = has_delays = False
    for name, size, is_directory in entries:
        match = None if is_directory else _SEGMENT_FILE.fullmatch(name)
        if match is None or int(match[1]) > OFFSET_MAX:
            if is_directory or name not in _SMALL_FILES:
                raise ForeignFile(f"{directory}/{name}", "not a file of GoQueue; move it out of the data directory")
            if name.endswith(NEW):
                leftovers.append(f"{directory}/{name}")
            has_transactions |= name == TRANSACTIONS
            has_delays |= name == DELAYED
            continue
        base, suffix, state = int(match[1]), match[2], match[3]
        if state == CLEANED:
            cleaned.append(f"{directory}/{name}")
        elif state in (DELETED, NEW):
            leftovers.append(f"{directory}/{name}")
        elif suffix == LOG:
            log_sizes[base] = size
        else:
            indexes.append((base, f"{directory}/{name}"))
            if suffix == TXN_INDEX:
                txn_indexes.add(base)
    leftovers.extend(path for base, path in indexes if base not in log_sizes)
    indexed = frozenset(txn_indexes & log_sizes.keys())
    return Listing(log_sizes, cleaned, leftovers, indexed, has_transactions, has_delays)
