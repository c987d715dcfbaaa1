"""Opening a log: from the files in its directory to the parts that a `Log` works with.

    0. no directory, or nothing in it: the log is new, and has no files before its first write (`new_log.py`)
    1. sort the files; a foreign one stops here, before anything is changed
    2. finish a compaction that had decided to swap its copies in, then a truncation (`truncation.py`); remove leftovers
    3. recover the segments (`recovery.py`) from the durable checkpoint on
    4. a log without a checkpoint was never flushed, or lost it: make room for one, and sync the names above it

Sealed segments are not read. So opening costs the same however large the log is, which is what lets a broker start with
thousands of partitions.
"""

from contextlib import suppress
from typing import NamedTuple

from goqueue import events
from goqueue.errors import CorruptRecord
from goqueue.record.header import RecordFault
from goqueue.storage import compaction, log_start
from goqueue.storage.checkpoint import Checkpoint, CheckpointFile, Cut
from goqueue.storage.compactor import Compactor
from goqueue.storage.epochs import EpochStart, LeaderEpochs, before, load_entries, load_highest
from goqueue.storage.file import Disk, sync_ancestors
from goqueue.storage.flush import Flusher
from goqueue.storage.layout import (
    CHECKPOINT,
    COMPACTION,
    DELAYED,
    GAPS,
    HIGHEST_EPOCH,
    LEADER_EPOCHS,
    LOG_START,
    TRANSACTIONS,
    Listing,
    sort_out,
)
from goqueue.storage.new_log import START, NewLog
from goqueue.storage.open_segments import OpenSegments
from goqueue.storage.recovery import LogRecovery
from goqueue.storage.segment import Segment
from goqueue.storage.segment_list import SegmentList
from goqueue.storage.truncation import Removal, carry_out
from goqueue.storage.txn_index import TxnIndexes
from goqueue.storage.walk import Damage


class LogParts(NamedTuple):
    """The parts of one log, and what opening it found out."""

    segments: SegmentList
    checkpoint_file: CheckpointFile
    flusher: Flusher
    compactor: Compactor
    epochs: LeaderEpochs
    txn_indexes: TxnIndexes
    has_transactions: bool
    has_delays: bool
    has_gaps: bool
    last_timestamp: int
    recovered_offset: int
    rescanned: list[Segment]
    damage: list[Damage]
    must_flush: bool
    new: NewLog | None = None  # while it has no files


def open_parts(
    disk: Disk,
    directory: str,
    open_segments: OpenSegments,
    observe: events.Observer,
    *,
    within: str = "",
    noted_epoch: int = -1,
) -> LogParts:
    """The parts of the log in the directory; see `Log.open`. Raises `OSError` and `StorageError`."""
    try:
        entries = disk.entries(directory)
    except FileNotFoundError:
        return _new_parts(disk, directory, open_segments, observe, within, noted_epoch)
    listing = sort_out(directory, entries)
    checkpoint_file = CheckpointFile(disk, f"{directory}/{CHECKPOINT}")
    checkpoint = checkpoint_file.load()
    if checkpoint is None and _is_empty(listing):
        return _new_parts(disk, directory, open_segments, observe, within, noted_epoch)
    # A missing file is known from the listing: with thousands of logs, an open of each that fails would take long.
    has_state = COMPACTION in listing.small_files
    state = compaction.load_state(disk, directory) if has_state else compaction.CompactionState(0)
    if state.swap or listing.cleaned:
        compaction.finish_swap(disk, directory, state, listing.cleaned)
        listing = sort_out(directory, disk.entries(directory))
    if checkpoint and checkpoint.cut:
        if checkpoint.cut is Cut.ALL:
            state = compaction.CompactionState(0)
        _finish_cut(disk, directory, checkpoint, listing)
        checkpoint = checkpoint.settled
        checkpoint_file.write(checkpoint, sync=True)
        listing = sort_out(directory, disk.entries(directory))
    epochs, damage = _load_epochs(disk, directory, listing, noted_epoch)
    for path in listing.leftovers:
        disk.remove(path)
    recovered = LogRecovery(disk, directory, listing, checkpoint, observe).run()
    recovered_from = checkpoint.next_offset if checkpoint else recovered.next_offset
    is_unsettled = checkpoint is not None and not checkpoint_file.is_settled
    if checkpoint is None:
        checkpoint = _first_checkpoint(disk, directory, checkpoint_file, recovered.segments[0].base_offset)
        sync_ancestors(disk, directory, within=within)
        if not any(listing.log_sizes.values()):  # otherwise it was lost, and is written again once all is synced
            checkpoint_file.write(checkpoint, sync=True)
    for segment in recovered.segments:
        segment.missing, segment.control_missing = state.gaps.get(segment.base_offset, compaction.NO_GAPS)
    deleted_below = 0
    if LOG_START in listing.small_files:
        deleted_below, start_damage = _load_start(disk, directory, recovered.next_offset)
        damage += start_damage
    segments = SegmentList(recovered.segments, recovered.next_offset, open_segments, deleted_below=deleted_below)
    bases = {segment.base_offset for segment in recovered.segments}
    txn_indexes = TxnIndexes(disk, directory, listing.txn_indexes & bases, next_offset=recovered.next_offset)
    # A crash may have taken the records before the start of an epoch; it must not get those that follow them.
    epochs.truncate(recovered.next_offset + 1)
    is_unflushed = recovered.created or recovered.torn or recovered.next_offset > checkpoint.next_offset
    return LogParts(
        segments,
        checkpoint_file,
        Flusher(disk, directory, checkpoint_file, checkpoint),
        Compactor(disk, directory, segments, state.cleaned_offset, observe),
        epochs,
        txn_indexes,
        has_transactions=TRANSACTIONS in listing.small_files or txn_indexes.has_any,
        has_delays=DELAYED in listing.small_files,
        has_gaps=GAPS in listing.small_files,
        last_timestamp=recovered.last_timestamp,
        recovered_offset=min(recovered_from, recovered.next_offset),
        rescanned=recovered.rescanned,
        damage=[*damage, *recovered.damage],
        must_flush=bool(listing.log_sizes) and (is_unflushed or is_unsettled),
    )


def _is_empty(listing: Listing) -> bool:
    """Whether nothing was ever written to the log: a first write may have failed before its files were complete."""
    has_records = any(listing.log_sizes.values()) or any(listing.log_sizes)  # a base above 0 is a fact, too
    return not has_records and not listing.cleaned and listing.small_files <= {CHECKPOINT}


def _new_parts(
    disk: Disk, directory: str, open_segments: OpenSegments, observe: events.Observer, within: str, noted_epoch: int
) -> LogParts:
    """The parts of a log without files."""
    segment = Segment.planned(disk, directory, 0, observe)
    segments = SegmentList([segment], 0, open_segments)
    checkpoint_file = CheckpointFile(disk, f"{directory}/{CHECKPOINT}")
    return LogParts(
        segments,
        checkpoint_file,
        Flusher(disk, directory, checkpoint_file, START),
        Compactor(disk, directory, segments, 0, observe),
        LeaderEpochs(disk, directory, [], noted=noted_epoch),
        TxnIndexes(disk, directory, frozenset(), next_offset=0),
        has_transactions=False,
        has_delays=False,
        has_gaps=False,
        last_timestamp=0,
        recovered_offset=0,
        rescanned=[],
        damage=[],
        must_flush=False,
        new=NewLog(disk, directory, within, checkpoint_file, segment),
    )


def _first_checkpoint(disk: Disk, directory: str, file: CheckpointFile, start: int) -> Checkpoint:
    file.make_room()
    disk.sync_directory(directory)
    return Checkpoint(start, 0, start, 0)


def _finish_cut(disk: Disk, directory: str, end: Checkpoint, listing: Listing) -> None:
    """Carry out a truncation that a crash interrupted."""
    is_whole = end.cut is Cut.ALL
    removed = tuple(base for base in listing.log_sizes if is_whole or base > end.base_offset)
    kept_epochs: list[EpochStart] | None = None
    with suppress(CorruptRecord):  # nothing is left of it; opening the log reports that
        entries = load_entries(disk, directory)
        kept = before(entries, 0 if is_whole else end.next_offset)
        kept_epochs = kept if len(kept) < len(entries) else None
    indexed = tuple(sorted(listing.txn_indexes.difference(removed)))
    carry_out(disk, directory, Removal(end, removed, indexed, kept_epochs), [])


def _load_epochs(disk: Disk, directory: str, listing: Listing, noted: int) -> tuple[LeaderEpochs, list[Damage]]:
    entries: list[EpochStart] = []
    damaged: list[str] = []
    if LEADER_EPOCHS in listing.small_files:
        try:
            entries = load_entries(disk, directory)
        except CorruptRecord:
            damaged.append(LEADER_EPOCHS)
    if HIGHEST_EPOCH in listing.small_files:
        try:
            noted = max(noted, load_highest(disk, directory))
        except CorruptRecord:
            damaged.append(HIGHEST_EPOCH)
    damage = [Damage(f"{directory}/{name}", 0, 0, 0, 0, RecordFault.CRC) for name in damaged]
    return LeaderEpochs(disk, directory, entries, noted=noted), damage


def _load_start(disk: Disk, directory: str, next_offset: int) -> tuple[int, list[Damage]]:
    """The stored start of the log, which is lowered if the log lost its end."""
    try:
        offset = log_start.load(disk, directory)
    except CorruptRecord:
        return 0, [Damage(f"{directory}/{LOG_START}", 0, 0, 0, 0, RecordFault.CRC)]
    if offset > next_offset:
        offset = next_offset
        log_start.store(disk, directory, offset)
    return offset, []
