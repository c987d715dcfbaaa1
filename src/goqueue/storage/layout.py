"""The names of the files in the directory of a log.

    00000000000000004200.log          records from offset 4200 on, up to the next segment
    00000000000000004200.index        sparse: offset -> position in the .log file
    00000000000000004200.timeindex    sparse: timestamp -> offset
    00000000000000004200.txnindex     which of its records were aborted, if any
    checkpoint                        the offset below which everything is known to be on the disk
    leader-epochs                     which leader wrote from which offset on
    highest-epoch                     the highest epoch that this replica has heard of
    compaction                        the offset below which the log is compacted, and a swap under way
    transactions                      empty; the log holds, or held, transactions
    delayed                           empty; the log holds, or held, delayed messages
    gaps                              empty; the log holds, or held, records of a compacted log: offsets may be missing
    log-start                         the offset below which a request deleted all records, if there was one

A name that ends with `.cleaned` is a copy of a compaction that is not in place yet, `.deleted` waits for its removal,
and `.new` is a small file that is about to replace its namesake. Recovery ignores them. Any other name was not written
by GoQueue. The log then does not open: if another program writes here, the other files cannot be trusted either.
"""

import re
from typing import NamedTuple

from goqueue.errors import ForeignFile
from goqueue.record.header import OFFSET_MAX
from goqueue.storage.file import Entry

CHECKPOINT = "checkpoint"
LEADER_EPOCHS = "leader-epochs"
HIGHEST_EPOCH = "highest-epoch"
COMPACTION = "compaction"
TRANSACTIONS = "transactions"
DELAYED = "delayed"
GAPS = "gaps"
LOG_START = "log-start"

LOG = ".log"
OFFSET_INDEX = ".index"
TIME_INDEX = ".timeindex"
TXN_INDEX = ".txnindex"
SPARSE_INDEXES = (OFFSET_INDEX, TIME_INDEX)
SEGMENT_SUFFIXES = (LOG, *SPARSE_INDEXES, TXN_INDEX)

CLEANED = ".cleaned"
DELETED = ".deleted"
NEW = ".new"

FOREIGN = "not a file of GoQueue; move it out of the data directory"
"""The reason in errors and reports about such a file."""

_SEGMENT_FILE = re.compile(
    r"(\d{20})(\.log|\.index|\.timeindex|\.txnindex)(\.cleaned|\.deleted|(?<=\.txnindex)\.new)?", re.ASCII
)
_SMALL_FILES = frozenset(
    name + suffix
    for name in (CHECKPOINT, LEADER_EPOCHS, HIGHEST_EPOCH, COMPACTION, TRANSACTIONS, DELAYED, GAPS, LOG_START)
    for suffix in ("", NEW)
)


def segment_path(directory: str, base_offset: int, suffix: str) -> str:
    """The path of one file of the segment that starts at `base_offset`."""
    return f"{directory}/{base_offset:020d}{suffix}"


class Listing(NamedTuple):
    """The files of a log by their kind."""

    log_sizes: dict[int, int]  # base offset -> bytes of the .log file
    cleaned: list[str]  # paths
    leftovers: list[str]  # paths to remove: deleted or half-written files, and indexes without a log
    indexed: frozenset[int]  # base offsets of the segments with a sparse index that is not empty
    txn_indexes: frozenset[int]  # base offsets of the segments with an index of aborted records
    small_files: frozenset[str]  # names


def sort_out(directory: str, entries: list[Entry]) -> Listing:
    """Sort the entries by kind. Raises `ForeignFile` for the first one that GoQueue did not write."""
    log_sizes: dict[int, int] = {}
    indexes: list[tuple[int, str]] = []
    cleaned: list[str] = []
    leftovers: list[str] = []
    indexed: set[int] = set()
    txn_indexes: set[int] = set()
    small_files: set[str] = set()
    for name, size, is_directory in entries:
        match = None if is_directory else _SEGMENT_FILE.fullmatch(name)
        if match is None or int(match[1]) > OFFSET_MAX:
            if is_directory or name not in _SMALL_FILES:
                raise ForeignFile(f"{directory}/{name}", FOREIGN)
            if name.endswith(NEW):
                leftovers.append(f"{directory}/{name}")
            else:
                small_files.add(name)
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
            elif size:
                indexed.add(base)
    leftovers.extend(path for base, path in indexes if base not in log_sizes)
    aborted = frozenset(txn_indexes & log_sizes.keys())
    return Listing(log_sizes, cleaned, leftovers, frozenset(indexed), aborted, frozenset(small_files))
