"""What is left of a metadata log in files after a crash, a fault of the disk, or damage."""

from dataclasses import replace
from errno import EDQUOT, EIO, ENOSPC

import pytest
from hypothesis import given
from hypothesis import strategies as st

from goqueue.cluster.metadata_file_format import MARK_BYTES, segment_name
from goqueue.cluster.metadata_files import LockHeld, MetadataFiles
from goqueue.cluster.metadata_log import (
    EMPTY,
    AppendOutcome,
    EntryAppended,
    EntryLost,
    EntryUnknown,
    MetadataEntry,
    MetadataPosition,
    MetadataSnapshot,
)
from goqueue.errors import (
    DirectoryUnusable,
    ForeignFile,
    MetadataDamaged,
    MetadataTrimmed,
    MetadataUnavailable,
    StorageFull,
    UnsupportedFormat,
)
from goqueue.record.kernel import crc32c
from goqueue.storage.file import Disk
from goqueue.testing import FaultyDisk, MemoryDisk, PowerLoss
from tests.cluster.metadata_files import entries_of, flip_bit, segment_paths
from tests.cluster.metadata_log_contract import check_chain, entry_after

LOG = "/cluster/log"
FIRST = f"{LOG}/{segment_name(1)}"
MARK = f"{LOG}/tail"
SMALL = 400


def opened(disk: Disk, *, segment_bytes: int = 1_000_000) -> MetadataFiles:
    files = MetadataFiles(disk, LOG, segment_bytes=segment_bytes)
    files.open()
    return files


def append(files: MetadataFiles, entry: MetadataEntry) -> AppendOutcome:
    return files.append(entry, entry.encode())


def append_next(files: MetadataFiles, batch: bytes = b"batch") -> MetadataEntry:
    entry = entry_after(files.tail(), batch)
    assert append(files, entry) == EntryAppended(entry.position)
    return entry


def numbered(files: MetadataFiles, count: int) -> list[MetadataEntry]:
    return [append_next(files, b"%d" % number) for number in range(1, count + 1)]


def read_all(files: MetadataFiles, first: int = 1) -> list[MetadataEntry]:
    entries: list[MetadataEntry] = []
    while page := files.read(first + len(entries), 3):
        entries += page
    return entries


# Power cuts and kills


class Workload:
    """Appends, snapshots and trims of two handles, and what was promised to them."""

    def __init__(self) -> None:
        self.answered: list[MetadataEntry] = []
        self.tried: set[bytes] = set()
        self.snapshot_index = 0
        self.trimmed_below = 1

    def run(self, disk: Disk) -> None:
        handles = [opened(disk, segment_bytes=SMALL) for _ in range(2)]
        for number in range(12):
            files = handles[number % 2]
            entry = entry_after(files.tail(), bytes(number * 13 % 90))
            self.tried.add(entry.id)
            if append(files, entry) == EntryAppended(entry.position):
                self.answered.append(entry)
            if number in (4, 9):
                handles[0].snapshot.store(MetadataSnapshot(entry.position, b"state %d" % entry.index))
                self.snapshot_index = entry.index
                handles[1].trim(entry.index)

    def check(self, disk: Disk) -> None:
        files = opened(disk, segment_bytes=SMALL)
        snapshot = files.snapshot.load()
        covered = snapshot.position.index if snapshot else 0
        assert covered >= self.snapshot_index
        try:
            entries = read_all(files)
        except MetadataTrimmed as trimmed:
            assert trimmed.first <= covered + 1
            entries = read_all(files, trimmed.first)
        check_chain(entries, entries[0].after if entries else EMPTY)
        assert {entry.id for entry in entries} <= self.tried
        start = entries[0].index if entries else 1
        kept = [entry for entry in self.answered if entry.index >= start]
        assert entries[: len(kept)] == kept
        assert len(entries) <= len(kept) + 1
        assert all(entry.index <= covered for entry in self.answered if entry.index < start)
        assert files.tail() == (entries[-1].position if entries else EMPTY)
        later = append_next(files)
        assert read_all(files, start) == [*entries, later]


def steps_of_workload() -> int:
    disk = MemoryDisk()
    Workload().run(disk)
    return disk.steps


@pytest.mark.parametrize("keep", ["nothing", "everything", "random"])
def test_what_was_answered_survives_a_power_cut_at_any_step(keep: str) -> None:
    steps = steps_of_workload()
    stride = 5  # the first step that is taken is another one for each way to crash
    for power_off_after in range(len(keep) % stride, steps, stride):
        disk = MemoryDisk(power_off_after=power_off_after)
        workload = Workload()
        with pytest.raises(PowerLoss):
            workload.run(disk)

        survived = disk.crash(seed=power_off_after) if keep == "random" else disk.crash(keep=keep)  # type: ignore[arg-type]

        workload.check(survived)


def test_a_power_cut_in_the_middle_of_recovery_changes_nothing() -> None:
    disk = MemoryDisk()
    entries = numbered(opened(disk), 3)
    disk.write(MARK, b"")
    disk.write(FIRST, disk.read(FIRST) + entry_after(entries[-1].position).encode()[:-1])
    survived = 0
    is_off = True
    while is_off:
        copy = MemoryDisk()
        for path in disk.paths():
            copy.write(path, disk.read(path))
        copy.power_off_after = copy.steps + survived
        try:
            opened(copy)
            is_off = False
        except PowerLoss:
            assert read_all(opened(copy.crash(seed=survived))) == entries
            survived += 1
    assert survived > MARK_BYTES


@pytest.mark.parametrize("keep", ["nothing", "everything", "random"])
def test_a_power_cut_while_the_log_is_replaced_leaves_the_old_or_the_new_one(keep: str) -> None:
    outcomes = set()
    power_off_after = 1_500  # while the last entries are appended
    while ("new", True) not in outcomes:
        power_off_after += 7
        disk = MemoryDisk(power_off_after=power_off_after)
        answered: list[MetadataEntry] = []
        snapshot: MetadataSnapshot | None = None
        is_replaced = False
        try:
            files = opened(disk, segment_bytes=SMALL)
            answered = numbered(files, 12)
            files.snapshot.store(MetadataSnapshot(answered[4].position, b"older"))
            snapshot = MetadataSnapshot(MetadataPosition(7, bytes(15) + b"7"), b"state of an operator")
            files.replace(snapshot)
            is_replaced = True
        except (PowerLoss, MetadataUnavailable, DirectoryUnusable):
            pass
        survived = disk.crash(seed=power_off_after) if keep == "random" else disk.crash(keep=keep)  # type: ignore[arg-type]

        found = opened(survived, segment_bytes=SMALL)

        outcome = "old" if found.snapshot.load() != snapshot or snapshot is None else "new"
        outcomes.add((outcome, is_replaced))
        if outcome == "old":
            assert read_all(found)[: len(answered)] == answered
            continue
        assert snapshot is not None
        assert found.tail() == snapshot.position
        assert segment_paths(survived, LOG) == []
        with pytest.raises(MetadataTrimmed):
            found.read(7, 1)
        later = append_next(found)
        survived.remove(MARK)
        assert read_all(opened(survived.crash(), segment_bytes=SMALL), 8) == [later]
    assert outcomes == {("old", False), ("new", False), ("new", True)}


def test_a_replaced_log_without_a_mark_ends_at_its_snapshot() -> None:
    disk = MemoryDisk()
    files = opened(disk)
    numbered(files, 3)
    snapshot = MetadataSnapshot(MetadataPosition(9, bytes(15) + b"9"), b"state")
    files.replace(snapshot)
    disk.remove(MARK)

    found = opened(disk)

    assert found.tail() == snapshot.position
    assert found.read(10, 1) == []


def test_a_damaged_log_is_opened_only_to_be_replaced() -> None:
    disk = MemoryDisk()
    numbered(opened(disk), 3)
    disk.write(FIRST, disk.read(FIRST)[:100])
    with pytest.raises(MetadataDamaged):
        opened(disk)
    files = MetadataFiles(disk, LOG)
    files.open(may_be_damaged=True)
    snapshot = MetadataSnapshot(MetadataPosition(2, bytes(15) + b"2"), b"state")

    files.replace(snapshot)

    assert opened(disk).tail() == snapshot.position


def test_an_entry_of_a_killed_author_is_seen_when_the_next_one_has_made_it_durable() -> None:
    disk = MemoryDisk()
    files = opened(disk)
    entries = numbered(files, 2)
    orphan = entry_after(entries[-1].position, b"written, and then the author was killed")
    disk.write(FIRST, disk.read(FIRST) + orphan.encode())

    assert files.tail() == entries[-1].position
    assert files.read(3, 1) == []
    assert append(files, entry_after(entries[-1].position)) == EntryLost()
    assert append(files, orphan) == EntryAppended(orphan.position)

    assert read_all(files) == [*entries, orphan]
    assert read_all(opened(disk.crash())) == [*entries, orphan]


def test_an_entry_whose_author_could_not_even_cut_it_off_is_written_again_by_the_next() -> None:
    memory = MemoryDisk()
    disk = FaultyDisk(memory, seed=1)
    files, other = opened(disk), opened(disk)
    entries = numbered(files, 2)
    entry = entry_after(entries[-1].position)
    disk.fail_next("sync")
    disk.fail_next("truncate")
    assert append(files, entry) == EntryUnknown(entry.position)

    assert append(other, entry) == EntryAppended(entry.position)

    assert read_all(opened(memory.crash())) == [*entries, entry]


def test_a_segment_of_a_killed_author_belongs_to_the_log() -> None:
    disk = MemoryDisk()
    files = opened(disk, segment_bytes=1)
    (entry,) = numbered(files, 1)
    mark = disk.read(MARK)
    (second,) = numbered(files, 1)
    disk.write(MARK, mark)

    assert files.tail() == entry.position
    assert append(files, entry_after(entry.position)) == EntryLost()

    assert read_all(files) == [entry, second]


def test_half_a_segment_is_removed() -> None:
    disk = MemoryDisk()
    files = opened(disk)
    entries = numbered(files, 2)
    disk.write(f"{LOG}/{segment_name(3)}.new", b"half")
    disk.write(FIRST, disk.read(FIRST) + b"torn")

    assert read_all(opened(disk)) == entries

    assert f"{LOG}/{segment_name(3)}.new" not in disk.paths()


# Torn ends

batches = st.lists(st.binary(max_size=60), min_size=1, max_size=6)


@given(batches=batches, extra=st.binary(max_size=200), with_mark=st.booleans(), data=st.data())
def test_a_torn_entry_is_cut_off(batches: list[bytes], extra: bytes, with_mark: bool, data: st.DataObject) -> None:
    disk = MemoryDisk()
    files = opened(disk)
    entries = [append_next(files, batch) for batch in batches]
    torn = entry_after(entries[-1].position, extra).encode()
    torn = torn[: data.draw(st.integers(0, len(torn) - 1))]
    whole = disk.read(FIRST)
    disk.write(FIRST, whole + torn)
    if not with_mark:
        disk.write(MARK, b"")

    assert files.read(len(entries) + 1, 1) == [] if with_mark else True
    next_author = opened(disk)

    assert disk.read(FIRST) == whole
    assert next_author.tail() == entries[-1].position
    later = append_next(files)
    assert read_all(next_author) == [*entries, later]


def test_without_a_mark_a_file_that_was_cut_at_any_byte_ends_with_its_last_whole_entry() -> None:
    disk = MemoryDisk()
    entries = numbered(opened(disk), 4)
    whole = disk.read(FIRST)
    ends = [entry.end for entry in entries_of(disk, FIRST)]

    for size in range(ends[0], len(whole)):
        disk.write(FIRST, whole[:size])
        disk.write(MARK, b"")

        assert read_all(opened(disk)) == [entry for entry, end in zip(entries, ends, strict=True) if end <= size]


@given(flips=st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 7)), min_size=1, max_size=5, unique=True))
def test_flipped_bits_in_what_was_not_answered_never_reach_a_reader(flips: list[tuple[int, int]]) -> None:
    disk = MemoryDisk()
    files = opened(disk)
    entries = numbered(files, 3)
    orphan = entry_after(entries[-1].position, bytes(100))
    whole = disk.read(FIRST)
    disk.write(FIRST, whole + orphan.encode())
    for position, bit in {(position % len(orphan.encode()), bit) for position, bit in flips}:
        flip_bit(disk, FIRST, len(whole) + position, bit)

    assert read_all(opened(disk)) == entries
    assert append(files, orphan) == EntryAppended(orphan.position)
    assert read_all(files) == [*entries, orphan]


@given(position=st.integers(0, MARK_BYTES - 1), bit=st.integers(0, 7), size=st.integers(0, MARK_BYTES))
def test_a_mark_that_is_damaged_or_cut_is_made_again(position: int, bit: int, size: int) -> None:
    disk = MemoryDisk()
    files = opened(disk, segment_bytes=SMALL)
    entries = numbered(files, 8)
    good = disk.read(MARK)
    disk.flip_bit(MARK, position, bit)

    assert files.tail() == entries[-1].position
    assert position >= MARK_BYTES - 4 or disk.read(MARK) == good
    disk.write(MARK, good[:size])
    assert read_all(files) == entries
    assert disk.read(MARK) == good


def test_an_old_mark_hides_nothing_that_was_answered() -> None:
    disk = MemoryDisk()
    files = opened(disk, segment_bytes=SMALL)
    marks = [disk.read(MARK)]
    entries = []
    for _ in range(12):
        entries.append(append_next(files))
        marks.append(disk.read(MARK))

    for mark in marks:
        disk.write(MARK, mark)
        reopened = opened(disk, segment_bytes=SMALL)

        assert reopened.tail() == entries[-1].position
        assert read_all(reopened) == entries


def test_an_old_mark_of_a_segment_that_was_trimmed_does_no_harm() -> None:
    disk = MemoryDisk()
    files = opened(disk, segment_bytes=1)
    entries = numbered(files, 3)
    mark = disk.read(MARK)
    entries += numbered(files, 3)
    files.snapshot.store(MetadataSnapshot(entries[-1].position, b""))
    files.trim(5)
    disk.write(MARK, mark)

    assert read_all(opened(disk), 5) == entries[4:]


# Damage


@given(data=st.data())
def test_damage_before_the_mark_is_named_and_never_cut_off(data: st.DataObject) -> None:
    disk = MemoryDisk()
    files = opened(disk, segment_bytes=data.draw(st.sampled_from((SMALL, 1_000_000))))
    entries = numbered(files, 8)
    (damaged, entry) = data.draw(
        st.sampled_from([(path, entry) for path in segment_paths(disk, LOG) for entry in entries_of(disk, path)])
    )
    disk.flip_bit(damaged, data.draw(st.integers(entry.position, entry.end - 1)), data.draw(st.integers(0, 7)))
    sizes = {path: len(disk.read(path)) for path in disk.paths()}

    reopened = opened(disk)

    assert reopened.tail() == entries[-1].position
    at = entry.index - 1
    for handle in (reopened, files):
        assert handle.read(1, 100) == entries[:at] if at else True
        with pytest.raises(MetadataDamaged, match=rf"entry {entry.index} .*goqueue cluster recover"):
            handle.read(entry.index, 1)
        assert handle.read(entry.index + 1, 100) == entries[at + 1 :]
    assert {path: len(disk.read(path)) for path in disk.paths()} == sizes


def test_damage_with_entries_after_it_is_not_cut_off_though_the_mark_is_lost() -> None:
    for position in range(80):
        disk = MemoryDisk()
        entries = numbered(opened(disk), 5)
        (damaged,) = (entry for entry in entries_of(disk, FIRST) if entry.index == 3)
        if damaged.position + position >= damaged.end:
            break
        disk.flip_bit(FIRST, damaged.position + position)
        disk.write(MARK, b"")

        files = opened(disk)

        assert files.tail() == entries[-1].position
        assert files.read(1, 10) == entries[:2]
        with pytest.raises(MetadataDamaged, match="entry 3 "):
            files.read(3, 10)
        assert files.read(4, 10) == entries[3:]
        assert append_next(files).index == 6


def test_a_file_that_ends_before_its_mark_is_refused() -> None:
    disk = MemoryDisk()
    files = opened(disk)
    numbered(files, 3)
    whole = disk.read(FIRST)
    disk.write(FIRST, whole[:-1])

    with pytest.raises(MetadataDamaged, match="a part of it is missing now; restore"):
        opened(disk)
    with pytest.raises(MetadataDamaged):
        append(files, entry_after(files.tail()))

    assert disk.read(FIRST) == whole[:-1]


def test_a_segment_that_is_missing_is_named() -> None:
    disk = MemoryDisk()
    files = opened(disk, segment_bytes=1)
    entries = numbered(files, 4)
    disk.remove(FIRST)
    disk.remove(f"{LOG}/{segment_name(3)}")

    reopened = opened(disk)

    with pytest.raises(MetadataDamaged, match=r"0001.entries is missing"):
        reopened.read(1, 1)
    assert reopened.read(2, 9) == entries[1:2]
    with pytest.raises(MetadataDamaged, match="entry 3 "):
        reopened.read(3, 1)
    disk.remove(f"{LOG}/{segment_name(4)}")
    with pytest.raises(MetadataDamaged):
        opened(disk)


def test_an_entry_of_another_history_is_refused() -> None:
    disk = MemoryDisk()
    entries = numbered(opened(disk), 2)
    stranger = replace(entry_after(entries[-1].position), previous_id=b"x" * 16)
    disk.write(FIRST, disk.read(FIRST) + stranger.encode())

    with pytest.raises(MetadataDamaged, match="entry 3 .* does not follow"):
        opened(disk)


def test_a_damaged_snapshot_is_named_and_replaced_by_the_next_one() -> None:
    disk = MemoryDisk()
    files = opened(disk)
    (entry,) = numbered(files, 1)
    snapshot = MetadataSnapshot(entry.position, b"state")
    files.snapshot.store(snapshot)
    flip_bit(disk, f"{LOG}/snapshot", 30)

    with pytest.raises(MetadataDamaged, match="snapshot"):
        files.snapshot.load()
    with pytest.raises(MetadataDamaged):
        files.trim(1)
    files.snapshot.store(snapshot)

    assert files.snapshot.load() == snapshot


# What is not ours


@pytest.mark.parametrize("name", ["notes.txt", "0001.entries", f"{segment_name(1)}.bak"])
def test_a_directory_with_other_files_is_refused(name: str) -> None:
    disk = MemoryDisk()
    disk.write(f"{LOG}/{name}", b"")

    with pytest.raises(ForeignFile, match=f"{name}: not a file of a metadata log; use an empty directory"):
        opened(disk)


def test_a_mount_point_is_no_stranger() -> None:
    disk = MemoryDisk()
    disk.make_directory(f"{LOG}/lost+found")

    assert opened(disk).tail() == EMPTY


@pytest.mark.parametrize(("path", "crc_position"), [(FIRST, 20), (MARK, 56)])
def test_a_newer_format_is_refused(path: str, crc_position: int) -> None:
    disk = MemoryDisk()
    numbered(opened(disk), 1)
    raw = bytearray(disk.read(path))
    raw[5] = 2
    raw[crc_position : crc_position + 4] = crc32c(bytes(raw[:crc_position])).to_bytes(4, "big")
    disk.write(path, raw)

    with pytest.raises(UnsupportedFormat, match="format 2; this GoQueue knows 1: update GoQueue"):
        opened(disk)


@pytest.mark.parametrize("content", [b"", b"something else entirely, longer than a head"])
def test_a_segment_that_is_none_is_refused(content: bytes) -> None:
    disk = MemoryDisk()
    disk.write(FIRST, content)

    with pytest.raises(MetadataDamaged, match="does not begin as a segment"):
        opened(disk)


def test_a_path_that_is_no_directory_is_refused() -> None:
    disk = MemoryDisk()
    disk.write(LOG, b"")

    with pytest.raises(DirectoryUnusable):
        opened(disk)


# Faults of the disk


def test_a_full_disk_takes_nothing_and_works_again_when_there_is_room() -> None:
    disk = MemoryDisk()
    files, other = opened(disk), opened(disk)
    entries = numbered(files, 2)
    entry = entry_after(entries[-1].position, bytes(200))
    for room in (0, 1, 100, 263):
        disk.capacity_bytes = disk.used_bytes + room

        with pytest.raises(MetadataUnavailable, match="retry when there is room"):
            append(files, entry)

        assert files.tail() == other.tail() == entries[-1].position
        assert len(disk.read(FIRST)) == entries_of(disk, FIRST)[-1].end

    disk.capacity_bytes = None
    assert append(files, entry) == EntryAppended(entry.position)
    assert read_all(other) == [*entries, entry]


@pytest.mark.parametrize("errno", [ENOSPC, EDQUOT])
def test_a_new_segment_that_does_not_fit_leaves_nothing(errno: int) -> None:
    memory = MemoryDisk()
    disk = FaultyDisk(memory, seed=1)
    files = opened(disk, segment_bytes=1)
    (entry,) = numbered(files, 1)
    paths = memory.paths()
    following = entry_after(entry.position)
    disk.fail_next("append", errno, path_suffix=".new", written=10)

    with pytest.raises(MetadataUnavailable, match="retry when there is room"):
        append(files, following)

    assert memory.paths() == paths
    assert append(files, following) == EntryAppended(following.position)


def test_a_failed_write_ends_the_appends_of_this_handle_and_of_no_other() -> None:
    disk = FaultyDisk(MemoryDisk(), seed=1)
    files, other = opened(disk), opened(disk)
    entries = numbered(files, 2)
    entry = entry_after(entries[-1].position)
    disk.fail_next("pwrite", EIO, path_suffix=".entries", written=20)

    with pytest.raises(MetadataUnavailable):
        append(files, entry)
    with pytest.raises(MetadataUnavailable, match="appends no more until it is restarted"):
        append(files, entry)
    with pytest.raises(MetadataUnavailable):
        files.trim(1)

    assert read_all(files) == entries
    later = append_next(other)
    assert read_all(files) == [*entries, later]


@pytest.mark.parametrize("segment_bytes", [1, 1_000_000])
@pytest.mark.parametrize("operation", ["sync", "sync_directory", "rename"])
def test_a_failed_sync_is_never_called_a_success(operation: str, segment_bytes: int) -> None:
    memory = MemoryDisk()
    disk = FaultyDisk(memory, seed=1)
    files, other = opened(disk, segment_bytes=segment_bytes), opened(disk, segment_bytes=segment_bytes)
    entries = numbered(files, 2)
    entry = entry_after(entries[-1].position)
    disk.fail_next(operation, EIO)  # type: ignore[arg-type]

    try:
        outcome = append(files, entry)
    except MetadataUnavailable:
        outcome = None
    if not disk.injected:
        return  # no directory is synced for an entry in the same segment

    assert outcome in (None, EntryUnknown(entry.position))
    with pytest.raises(MetadataUnavailable, match="until it is restarted"):
        append(files, entry)
    assert other.tail() == entries[-1].position
    assert append(other, entry) == EntryAppended(entry.position)
    assert read_all(opened(memory.crash())) == [*entries, entry]


def test_a_mark_that_cannot_be_moved_leaves_the_author_in_doubt_and_the_entry_in_the_log() -> None:
    disk = FaultyDisk(MemoryDisk(), seed=1)
    files, other = opened(disk), opened(disk)
    (entry,) = numbered(files, 1)
    following = entry_after(entry.position)
    disk.fail_next("pwrite", EIO, path_suffix="tail")

    assert append(files, following) == EntryUnknown(following.position)

    assert other.tail() == entry.position
    assert append(other, following) == EntryAppended(following.position)
    assert read_all(files) == [entry, following]


def test_what_cannot_be_read_is_unavailable() -> None:
    disk = FaultyDisk(MemoryDisk(), seed=1)
    files = opened(disk)
    (entry,) = numbered(files, 1)
    for call in (files.tail, lambda: files.read(1, 1), lambda: append(files, entry_after(entry.position))):
        disk.fail_next("pread")
        with pytest.raises(MetadataUnavailable):
            call()
    disk.fail_next("open", path_suffix="snapshot")
    with pytest.raises(MetadataUnavailable, match="cannot read"):
        files.snapshot.load()

    assert files.tail() == entry.position
    append_next(files)


def test_a_directory_that_cannot_be_made_is_named() -> None:
    disk = FaultyDisk(MemoryDisk(), seed=1)
    disk.fail_next("make_directory", EIO)
    with pytest.raises(DirectoryUnusable):
        opened(disk)
    disk.fail_next("make_directory", ENOSPC)
    with pytest.raises(StorageFull):
        opened(disk)


@pytest.mark.parametrize("operation", ["append", "sync", "rename"])
def test_a_snapshot_that_fails_leaves_the_one_before_it(operation: str) -> None:
    memory = MemoryDisk()
    disk = FaultyDisk(memory, seed=1)
    files = opened(disk)
    entries = numbered(files, 2)
    older, newer = (MetadataSnapshot(entry.position, bytes(100)) for entry in entries)
    files.snapshot.store(older)
    disk.fail_next(operation, path_suffix="" if operation == "rename" else ".new")  # type: ignore[arg-type]

    with pytest.raises(MetadataUnavailable, match="the snapshot before it is unchanged"):
        files.snapshot.store(newer)

    assert files.snapshot.load() == older
    files.snapshot.store(newer)
    assert opened(memory.crash()).snapshot.load() == newer


@pytest.mark.parametrize("seed", range(60))
def test_no_answer_is_taken_back_on_a_disk_that_fails_by_chance(seed: int) -> None:
    memory = MemoryDisk()
    disk = FaultyDisk(
        memory, seed=seed, write_error=0.03, short_write=0.03, no_space=0.03, sync_error=0.03, name_error=0.01
    )
    handles: list[MetadataFiles] = []
    answered: list[MetadataEntry] = []
    lost: set[bytes] = set()
    for number in range(80):
        try:
            if number % 7 == 0:
                handles = [*handles[-1:], opened(disk, segment_bytes=SMALL)]
            for files in handles:
                entry = entry_after(files.tail(), bytes(number))
                match append(files, entry):
                    case EntryAppended():
                        answered.append(entry)
                    case EntryLost():
                        lost.add(entry.id)
        except (MetadataUnavailable, DirectoryUnusable, StorageFull):
            pass
    assert disk.injected
    assert answered

    history = read_all(opened(memory.crash(seed=seed), segment_bytes=SMALL))

    check_chain(history)
    assert [entry for entry in history if entry in answered] == answered
    assert lost.isdisjoint(entry.id for entry in history)


# Trimming and locks


def test_trimming_removes_segments_and_what_an_earlier_trim_left() -> None:
    disk = MemoryDisk()
    files, other = opened(disk, segment_bytes=1), opened(disk, segment_bytes=1)
    entries = numbered(files, 6)
    assert read_all(other) == entries
    files.snapshot.store(MetadataSnapshot(entries[-1].position, b""))
    old = disk.read(FIRST)

    files.trim(3)
    assert segment_paths(disk, LOG) == [f"{LOG}/{segment_name(first)}" for first in range(3, 7)]
    disk.write(FIRST, old)  # as if the author of that trim was killed before it came so far
    other.trim(5)

    assert segment_paths(disk, LOG) == [f"{LOG}/{segment_name(first)}" for first in (5, 6)]
    assert read_all(other, 5) == read_all(files, 5) == entries[4:]


def test_a_reader_of_a_segment_that_is_being_trimmed_learns_so() -> None:
    disk = MemoryDisk()
    files, other = opened(disk, segment_bytes=1), opened(disk, segment_bytes=1)
    entries = numbered(files, 6)
    assert other.read(6, 1) == entries[-1:]
    files.snapshot.store(MetadataSnapshot(entries[-1].position, b""))
    files.trim(4)

    with pytest.raises(MetadataTrimmed):
        other.read(1, 1)
    assert other.read(4, 9) == entries[3:]


def test_one_handle_at_a_time_writes_and_all_read() -> None:
    disk = MemoryDisk()
    files = opened(disk)
    (entry,) = numbered(files, 1)
    lock = disk.lock(f"{LOG}/lock")

    for call in (lambda: append(files, entry), lambda: files.trim(1), lambda: opened(disk)):
        with pytest.raises(LockHeld):
            call()
    assert read_all(files) == [entry]
    files.snapshot.store(MetadataSnapshot(entry.position, b""))
    disk.write(MARK, b"")
    with pytest.raises(LockHeld):
        files.tail()

    lock.release()
    assert files.tail() == entry.position


def test_files_are_kept_open_up_to_a_bound() -> None:
    disk = MemoryDisk()
    files = opened(disk, segment_bytes=1)
    numbered(files, 20)
    read_all(files)

    assert disk.open_files <= 6
    files.close()
    assert disk.open_files == 0
