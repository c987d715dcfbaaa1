"""A replica's log under everything that may happen to it, against a model that knows every record.

The model is a table of records by offset. All that the log derives from its records must be what the table tells: the
offsets, the times, which records were aborted, the epochs, and after a crash all of it once more.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from goqueue.record import kernel
from goqueue.record.header import FLAGS_KNOWN, Flags
from goqueue.record.message import StoredMessage
from goqueue.storage.config import LogConfig
from goqueue.storage.epochs import EpochStart
from goqueue.storage.file_check import check_log
from goqueue.storage.flush import FlushJob
from goqueue.storage.jobs import Job
from goqueue.storage.log import Log
from goqueue.storage.truncation import TruncateJob
from goqueue.storage.walk import RecordRun
from goqueue.testing import MemoryDisk, PowerLoss
from goqueue.testing.inode import Keep
from goqueue.transactions.markers import marker
from tests.storage.logs import DIRECTORY, NOW_NS, ORIGIN, read_all

Transaction = tuple[int, int]
KEEPS: tuple[Keep, ...] = ("nothing", "everything", "prefix", "pages")


class Entry(NamedTuple):
    """A record of the model; a marker has a `decides`, a transactional record a `transaction`."""

    key: bytes
    value: bytes
    timestamp: int
    transaction: Transaction | None = None
    decides: Transaction | None = None
    is_commit: bool = False


@dataclass
class History:
    """What the log should hold: all records in [start, end), without those that compaction removed."""

    start: int = 0
    end: int = 0
    durable: int = 0  # at least
    entries: dict[int, Entry] = field(default_factory=dict)
    epochs: list[EpochStart] = field(default_factory=list)

    def cut(self, end: int) -> "History":
        entries = {offset: entry for offset, entry in self.entries.items() if offset < end}
        epochs = [epoch for epoch in self.epochs if epoch.start_offset < end]
        return History(self.start, end, min(self.durable, end), entries, epochs)

    def markers(self) -> dict[Transaction, tuple[int, bool]]:
        """Where each transaction was decided, and how."""
        return {entry.decides: (offset, entry.is_commit) for offset, entry in self.entries.items() if entry.decides}

    def aborted(self) -> set[int]:
        decided = self.markers()
        return {
            offset
            for offset, entry in self.entries.items()
            if entry.transaction in decided and not decided[entry.transaction][1]
        }

    def first_open(self, bound: int) -> int:
        """The first record of a transaction that no marker below the bound decides; else the bound."""
        decided = self.markers()
        undecided = (
            offset
            for offset, entry in self.entries.items()
            if entry.transaction and not (entry.transaction in decided and decided[entry.transaction][0] < bound)
        )
        return min(undecided, default=bound)


class Replica(RuleBasedStateMachine):
    """The log of a replica, and what it should hold."""

    @initialize(compacts=st.booleans(), retains=st.booleans())
    def open(self, compacts: bool, retains: bool) -> None:
        self.config = LogConfig(
            segment_bytes=500,
            cleanup="compact,delete" if compacts else "delete",  # type: ignore[arg-type]
            retention_bytes=3_000 if retains else 0,
            retention_ms=0,
            dirty_ratio=0.01,
        )
        self.disk = MemoryDisk()
        self.log = Log.open(self.disk, DIRECTORY, self.config)
        self.model = History()
        self.bound = 0  # the high watermark: nothing below it is ever cut off, and nothing above it is deleted
        self.now_ns = NOW_NS
        self.number = 0
        self.highest = -1
        self.epoch = 0
        self.synced = 0  # the aborts of markers below it are durable
        self.cutting: TruncateJob | None = None
        self.is_cut_on_disk = False
        self.before = self.model  # what the disk holds until the job has run
        self.flushing: FlushJob | None = None
        self.mended = True

    def writable(self) -> bool:
        return self.cutting is None

    # --- appends ---

    def _note(self, entries: list[Entry]) -> None:
        for offset, entry in enumerate(entries, start=self.model.end):
            self.model.entries[offset] = entry
        self.model.end += len(entries)

    def _batch(self, keys: list[int], transaction: Transaction | None) -> list[Entry]:
        self.number += 1
        self.now_ns += 1_000_000
        timestamp = max(self.now_ns, self.log.last_timestamp)
        return [Entry(b"%d" % key, b"%d" % (self.number * 9) * 9, timestamp, transaction) for key in keys]

    def _encoded(self, entries: list[Entry]) -> bytearray:
        flags = Flags.TRANSACTIONAL if entries[0].transaction else 0
        return kernel.encode([entry.value for entry in entries], keys=[entry.key for entry in entries], flags=flags)

    @precondition(writable)
    @rule(keys=st.lists(st.integers(0, 5), min_size=1, max_size=4), producer=st.integers(0, 2))
    def append(self, keys: list[int], producer: int) -> None:
        """As a leader; producer 0 has no transactions."""
        entries = self._batch(keys, self._transaction(producer))
        self.log.append(self._encoded(entries), now_ns=self.now_ns, flags_allowed=FLAGS_KNOWN)
        self._note(entries)

    @precondition(writable)
    @rule(keys=st.lists(st.integers(0, 5), min_size=1, max_size=4), producer=st.integers(0, 2))
    def append_stored(self, keys: list[int], producer: int) -> None:
        """As a follower."""
        entries = self._batch(keys, self._transaction(producer))
        records = self._encoded(entries)
        kernel.stamp(records, first_offset=self.model.end, timestamp=entries[0].timestamp, flags_allowed=FLAGS_KNOWN)
        self.log.append_stored(records)
        self._note(entries)

    @precondition(writable)
    @rule(gap=st.integers(0, 3), key=st.integers(0, 5), later=st.integers(0, 2), has_record=st.booleans())
    def append_with_gaps(self, gap: int, key: int, later: int, has_record: bool) -> None:
        """As a follower of a leader whose log is compacted."""
        first = self.model.end + gap
        records = bytearray()
        if has_record:
            [entry] = self._batch([key], None)
            records = self._encoded([entry])
            kernel.stamp(records, first_offset=first, timestamp=entry.timestamp)
            self.model.entries[first] = entry
        end = first + later + 1
        self.log.append_stored(records, end_offset=end)
        self.model.end = end

    def _transaction(self, producer: int) -> Transaction | None:
        """The open transaction of the producer, or a new one."""
        if not producer:
            return None
        decided = self.model.markers()
        mine = {entry.transaction for entry in self.model.entries.values() if entry.transaction}
        return next((one for one in mine if one[0] == producer and one not in decided), (producer, self.number + 1))

    @precondition(writable)
    @rule(producer=st.integers(1, 2), is_commit=st.booleans(), is_stored=st.booleans())
    def decide(self, producer: int, is_commit: bool, is_stored: bool) -> None:
        transaction = self._transaction(producer)
        assert transaction is not None
        self.number += 1
        self.now_ns += 1
        timestamp = max(self.now_ns, self.log.last_timestamp)
        records = marker(*transaction, commit=is_commit)
        if is_stored:
            kernel.stamp(records, first_offset=self.model.end, timestamp=timestamp, flags_allowed=FLAGS_KNOWN)
            self.log.append_stored(records)
        else:
            self.log.append(records, now_ns=self.now_ns, flags_allowed=FLAGS_KNOWN)
        [message] = kernel.decode(records, ORIGIN, StoredMessage)
        self._note([Entry(message.key or b"", message.value, timestamp, None, transaction, is_commit)])
        if not is_commit:
            self._note_aborted(self.model.end - 1, transaction)

    def _note_aborted(self, marker_offset: int, transaction: Transaction) -> None:
        for offset, entry in self.model.entries.items():
            if entry.transaction == transaction:
                self.log.transactions.note_aborted(offset, offset + 1, marker_offset)

    @precondition(writable)
    @rule(skip=st.integers(1, 3), copies=st.booleans())
    def new_epoch(self, skip: int, copies: bool) -> None:
        """The replica leads, or follows a leader that sends records of an older one."""
        epoch = self.highest + skip
        if copies and self.log.epochs.latest < self.highest:
            epoch = self.log.epochs.latest + 1
            self.log.copy_epoch(epoch, self.model.end)
        else:
            self.log.assign_epoch(epoch, self.model.end)
        kept = [one for one in self.model.epochs if one.start_offset < self.model.end]
        self.model.epochs = [*kept, EpochStart(epoch, self.model.end)]
        self.highest = max(self.highest, epoch)

    @rule(skip=st.integers(0, 2))
    def hear_of_an_epoch(self, skip: int) -> None:
        self.log.note_epoch(self.highest + skip)
        self.highest += skip

    # --- the disk ---

    @precondition(writable)
    @rule()
    def flush(self) -> None:
        self.log.flush()
        assert self.log.durable_offset == self.model.end

    @precondition(lambda self: self.flushing is None)
    @rule()
    def begin_flush(self) -> None:
        self.flushing = self.log.begin_flush(monotonic_ns=self.now_ns)

    @precondition(lambda self: self.flushing is not None)
    @rule()
    def end_flush(self) -> None:
        assert self.flushing is not None
        self.flushing.run()
        assert self.log.complete(self.flushing) is None
        self.flushing = None

    @precondition(writable)
    @rule()
    def sync_aborts(self) -> None:
        self.log.transactions.sync()
        self.synced = min(self.log.transactions.synced_offset, self.log.durable_offset)

    @rule(data=st.data())
    def raise_the_bound(self, data: st.DataObject) -> None:
        if self.bound < self.log.durable_offset:
            self.bound = data.draw(st.integers(self.bound, self.log.durable_offset))

    @precondition(writable)
    @rule()
    def expire(self) -> None:
        self._run(self.log.expire(now_ns=self.now_ns, to_offset=self.bound, is_full=True))
        assert self.log.start_offset <= max(self.bound, self.model.start)
        self._start_at(self.log.start_offset)

    @precondition(writable)
    @rule(data=st.data())
    def delete_records(self, data: st.DataObject) -> None:
        if self.model.start < self.bound and not self.config.compacts:
            before = data.draw(st.integers(self.model.start, self.bound))
            self._run(self.log.begin_delete_records(before))
            self._start_at(before)

    def _start_at(self, offset: int) -> None:
        assert self.log.start_offset == offset
        self.model.start = offset
        self.model.entries = {place: entry for place, entry in self.model.entries.items() if place >= offset}
        ended = [epoch for epoch in self.model.epochs if epoch.start_offset <= self.log.start_offset]
        if len(ended) > 1 and self.log.epochs.entries[:1] != (self.model.epochs[0],):
            self.model.epochs = [EpochStart(ended[-1].epoch, offset), *self.model.epochs[len(ended) :]]
        elif len(ended) == 1 and self.log.epochs.entries[:1] != (self.model.epochs[0],):
            self.model.epochs = [EpochStart(ended[0].epoch, offset), *self.model.epochs[1:]]

    @precondition(writable)
    @rule()
    def compact(self) -> None:
        if not self.mended:
            return
        stable = min(self.model.first_open(self.bound), self.log.durable_offset)
        self._run(self.log.begin_compaction(now_ns=self.now_ns, to_offset=self.bound, stable_offset=stable))
        cleaned = self.log.cleaned_offset
        assert cleaned <= self.bound
        found = {message.offset for message in read_all(self.log)[0]}
        aborted = self.model.aborted()
        missing = self.model.entries.keys() - found
        for offset in missing:
            entry = self.model.entries[offset]
            replaced_by = [
                later
                for later, other in self.model.entries.items()
                if offset < later < cleaned and other.key == entry.key and later not in aborted and not other.decides
            ]
            assert offset < cleaned
            assert offset in aborted or replaced_by
        assert not {offset for offset in aborted & found if offset < cleaned}
        for offset in missing:
            del self.model.entries[offset]

    def _run(self, job: Job | None) -> None:
        while job:
            job.run()
            job = self.log.complete(job)

    # --- truncation ---

    def _truncated(self, end: int) -> None:
        self.before = self.model
        self.model = self.model.cut(end)
        self.synced = min(self.synced, end)

    @precondition(writable)
    @rule(data=st.data())
    def truncate(self, data: st.DataObject) -> None:
        end = data.draw(st.integers(max(self.bound, self.model.start), self.model.end))
        self.log.truncate(end)
        self._truncated(end)
        assert end in (self.log.durable_offset, self.before.end)

    @precondition(writable)
    @rule(data=st.data())
    def begin_truncate(self, data: st.DataObject) -> None:
        end = data.draw(st.integers(max(self.bound, self.model.start), self.model.end))
        self.before = self.model
        self.before.durable = self.log.durable_offset
        self.cutting = self.log.begin_truncate(end)
        self.is_cut_on_disk = False
        if self.cutting:
            self._truncated(end)

    @precondition(writable)
    @rule(start=st.integers(0, 100))
    def begin_restart(self, start: int) -> None:
        self.model.durable = self.log.durable_offset
        self.cutting = self.log.begin_restart(start)
        self.is_cut_on_disk = False
        if self.cutting:
            self.before = self.model
            self.model = History(start, start)
            self.bound = start
            self.synced = 0

    @precondition(lambda self: self.cutting is not None and not self.is_cut_on_disk)
    @rule()
    def run_the_job(self) -> None:
        assert self.cutting is not None
        self.cutting.run()
        self.is_cut_on_disk = True

    @precondition(lambda self: self.is_cut_on_disk and self.cutting is not None)
    @rule()
    def complete_the_job(self) -> None:
        assert self.cutting is not None
        assert self.log.complete(self.cutting) is None
        assert not self.log.is_truncating
        self.cutting = None

    # --- crashes ---

    @rule(keep=st.sampled_from(KEEPS), seed=st.integers(0, 1_000))
    def crash(self, keep: Keep, seed: int) -> None:
        histories = [self.model if self.cutting is None or self.is_cut_on_disk else self.before]
        self._reopen(self.disk.crash(keep=keep, seed=seed), histories)

    @precondition(lambda self: self.cutting is not None and not self.is_cut_on_disk)
    @rule(steps=st.integers(0, 200), keep=st.sampled_from(KEEPS), seed=st.integers(0, 1_000))
    def crash_while_the_job_runs(self, steps: int, keep: Keep, seed: int) -> None:
        assert self.cutting is not None
        self.disk.power_off_after = self.disk.steps + steps
        try:
            self.cutting.run()
        except PowerLoss:
            pass
        self._reopen(self.disk.crash(keep=keep, seed=seed), [self.before, self.model])

    @rule()
    def close(self) -> None:
        history = self.model if self.cutting is None or self.is_cut_on_disk else self.before
        self.log.close()
        self._reopen(self.disk.crash(keep="nothing"), [history])

    def _reopen(self, disk: MemoryDisk, histories: list[History]) -> None:
        """The log is one of the histories, up to an end that is not below what was durable."""
        if histories[-1] is self.model and self.cutting is None:
            self.model.durable = self.log.durable_offset
        self.disk = disk
        self.cutting = self.flushing = None
        self.log = Log.open(disk, DIRECTORY, self.config)
        assert not self.log.damage
        found = next(history for history in histories if self._is(history))
        self.model = found.cut(self.log.next_offset)
        self.model.epochs = [epoch for epoch in found.epochs if epoch.start_offset <= self.log.next_offset]
        self.bound = max(min(self.bound, self.model.end), self.model.start)
        self._check_aborts_on_disk()
        for transaction, (offset, is_commit) in self.model.markers().items():
            if not is_commit:
                self._note_aborted(offset, transaction)
        self.log.transactions.mend()

    def _is(self, history: History) -> bool:
        if not history.durable <= self.log.next_offset <= history.end or self.log.start_offset != history.start:
            return False
        end = self.log.next_offset
        if list(self.log.epochs.entries) != [epoch for epoch in history.epochs if epoch.start_offset <= end]:
            return False
        found = {message.offset: message.value for message in read_all(self.log)[0]}
        return found == {offset: entry.value for offset, entry in history.entries.items() if offset < end}

    def _check_aborts_on_disk(self) -> None:
        """An index never lies; and what was synced is in it, unless it says that it is damaged."""
        known = self.log.transactions.aborted()
        aborted = self.model.aborted()
        present = self.model.entries.keys()
        assert set(known.offsets) & present <= aborted
        if known.replay_from is None:
            decided = self.model.markers()
            synced = {
                offset
                for offset in aborted
                if (one := self.model.entries[offset].transaction) and decided[one][0] < self.synced
            }
            assert synced <= set(known.offsets)

    # --- what must hold at any time ---

    @invariant()
    def the_log_holds_what_the_model_holds(self) -> None:
        log, model = self.log, self.model
        assert (log.start_offset, log.next_offset) == (model.start, model.end)
        assert log.durable_offset <= model.end
        messages, gaps = read_all(log)
        assert not gaps
        assert not log.damage
        assert {message.offset: (message.key or b"", message.value) for message in messages} == {
            offset: (entry.key, entry.value) for offset, entry in model.entries.items()
        }
        assert [message.timestamp_ns for message in messages] == [
            entry.timestamp for _, entry in sorted(model.entries.items())
        ]

    @invariant()
    def epochs_are_those_of_the_records(self) -> None:
        assert list(self.log.epochs.entries) == self.model.epochs
        assert self.log.highest_epoch == self.highest

    @invariant()
    def aborts_are_those_that_the_markers_tell(self) -> None:
        if self.cutting is None:
            known = set(self.log.transactions.aborted().offsets)
            assert known & self.model.entries.keys() == self.model.aborted()

    @invariant()
    def a_search_by_time_finds_the_first_record_of_that_time(self) -> None:
        times = sorted({entry.timestamp for entry in self.model.entries.values()})
        for time in times[:: max(1, len(times) // 4)]:
            offset = self.log.offset_at_time(time)
            older = [place for place, entry in self.model.entries.items() if entry.timestamp < time]
            newer = [place for place, entry in self.model.entries.items() if entry.timestamp >= time]
            assert max(older, default=-1) < offset <= min(newer)

    @invariant()
    def a_search_by_offset_finds_each_record(self) -> None:
        for offset in list(self.model.entries)[-3:]:
            segment, end_offset, _ = self.log.place_of(offset)
            spot = segment.seek(offset, end_offset=end_offset)
            run = next(segment.walk(spot, end_offset=end_offset))
            assert isinstance(run, RecordRun)
            assert run.summary.first_offset == offset

    def teardown(self) -> None:
        if hasattr(self, "log"):
            self.close()
            self.the_log_holds_what_the_model_holds()
            self.log.close()
            reports = check_log(self.disk, DIRECTORY) if self.log.has_files else ()
            damaged = [report for report in reports if not report.is_sound]
            assert not [
                report for report in damaged if not report.path.endswith("checkpoint")
            ]  # it may have torn slots


TestReplica = Replica.TestCase
TestReplica.settings = settings(stateful_step_count=40)
