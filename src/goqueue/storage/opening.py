"""Opening a log: from the files in its directory to the parts that a `Log` works with.

    1. sort the files; a foreign one stops here, before anything is changed
    2. finish a compaction that had decided to swap its copies in; remove leftovers
    3. recover the segments (`recovery.py`) from the durable checkpoint on
    4. a log without a checkpoint is new, or lost it: make room for one, and sync the names of the directories

Sealed segments are not read. So opening costs the same however large the log is, which is what lets a broker start with
thousands of partitions.
"""

from typing import NamedTuple

from goqueue import events
from goqueue.errors import CorruptRecord
from goqueue.record.header import RecordFault
from goqueue.storage import compaction
from goqueue.storage.checkpoint import Checkpoint, CheckpointFile
from goqueue.storage.compactor import Compactor
from goqueue.storage.epochs import LeaderEpochs
from goqueue.storage.file import Disk, Entry, sync_ancestors
from goqueue.storage.flush import Flusher
from goqueue.storage.layout import CHECKPOINT, COMPACTION, DELAYED, LEADER_EPOCHS, TRANSACTIONS, sort_out
from goqueue.storage.open_segments import OpenSegments
from goqueue.storage.recovery import LogRecovery
from goqueue.storage.segment import Segment
from goqueue.storage.segment_list import SegmentList
from goqueue.storage.txn_index import TxnIndexes
from goqueue.storage.walk import Damage


class LogParts(NamedTuple):
    """The parts of one log, and what opening it found out."""

    segments: SegmentList
    flusher: Flusher
    compactor: Compactor
    epochs: LeaderEpochs
    txn_indexes: TxnIndexes
    has_transactions: bool
    has_delays: bool
    last_timestamp: int
    recovered_offset: int
    rescanned: list[Segment]
    damage: list[Damage]
    must_flush: bool


def open_parts(disk: Disk, directory: str, open_segments: OpenSegments, observe: events.Observer) -> LogParts:
    """The parts of the log in the directory, which is made if it is missing. Raises `OSError` and `StorageError`."""
    listing = sort_out(directory, _entries(disk, directory))
    checkpoint_file = CheckpointFile(disk, f"{directory}/{CHECKPOINT}")
    checkpoint = checkpoint_file.load()
    # A missing file is known from the listing: with thousands of logs, opening them in vain would take long.
    has_epochs, has_state = (name in listing.small_files for name in (LEADER_EPOCHS, COMPACTION))
    epochs, damage = _load_epochs(disk, directory) if has_epochs else (LeaderEpochs(disk, directory, []), [])
    state = compaction.load_state(disk, directory) if has_state else compaction.CompactionState(0)
    if state.swap or listing.cleaned:
        compaction.finish_swap(disk, directory, state, listing.cleaned)
        listing = sort_out(directory, disk.entries(directory))
    for path in listing.leftovers:
        disk.remove(path)
    recovered = LogRecovery(disk, directory, listing, checkpoint, observe).run()
    recovered_from = checkpoint.next_offset if checkpoint else recovered.next_offset
    is_unsettled = checkpoint is not None and not checkpoint_file.is_settled
    if checkpoint is None:
        checkpoint = _first_checkpoint(disk, directory, checkpoint_file, recovered.segments[0].base_offset)
        if not any(listing.log_sizes.values()):  # otherwise it was lost, and is written again once all is synced
            checkpoint_file.write(checkpoint, sync=True)
    for segment in recovered.segments:
        segment.missing, segment.control_missing = state.gaps.get(segment.base_offset, compaction.NO_GAPS)
    segments = SegmentList(recovered.segments, recovered.next_offset, open_segments)
    bases = {segment.base_offset for segment in recovered.segments}
    txn_indexes = TxnIndexes(disk, directory, listing.txn_indexes & bases, next_offset=recovered.next_offset)
    is_unflushed = recovered.created or recovered.torn or recovered.next_offset > checkpoint.next_offset
    return LogParts(
        segments,
        Flusher(disk, directory, checkpoint_file, checkpoint),
        Compactor(disk, directory, segments, state.cleaned_offset, observe),
        epochs,
        txn_indexes,
        has_transactions=TRANSACTIONS in listing.small_files or txn_indexes.has_any,
        has_delays=DELAYED in listing.small_files,
        last_timestamp=recovered.last_timestamp,
        recovered_offset=min(recovered_from, recovered.next_offset),
        rescanned=recovered.rescanned,
        damage=[*damage, *recovered.damage],
        must_flush=bool(listing.log_sizes) and (is_unflushed or is_unsettled),
    )


def _first_checkpoint(disk: Disk, directory: str, file: CheckpointFile, start: int) -> Checkpoint:
    file.make_room()
    disk.sync_directory(directory)
    sync_ancestors(disk, directory)
    return Checkpoint(start, 0, start, 0)


def _entries(disk: Disk, directory: str) -> list[Entry]:
    try:
        return disk.entries(directory)
    except FileNotFoundError:
        disk.make_directory(directory)
        return []


def _load_epochs(disk: Disk, directory: str) -> tuple[LeaderEpochs, list[Damage]]:
    try:
        return LeaderEpochs.load(disk, directory), []
    except CorruptRecord:
        damage = Damage(f"{directory}/{LEADER_EPOCHS}", 0, 0, 0, 0, RecordFault.CRC)
        return LeaderEpochs(disk, directory, []), [damage]
