"""The look at a log's files that `goqueue log verify` prints."""

import pytest

from goqueue.storage.compaction import CompactionState, store_state
from goqueue.storage.inspection import Hole, SegmentReport, inspect
from goqueue.storage.layout import LOG, segment_path
from goqueue.storage.walk import Damage
from goqueue.testing import MemoryDisk
from goqueue.testing.memory_disk import MemoryFile
from tests.storage.logs import DIRECTORY, NOW_NS, append, fill, open_log

SEGMENT_RECORDS = 10


@pytest.fixture
def bases(disk: MemoryDisk) -> list[int]:
    """The base offsets of a log of five segments."""
    log = open_log(disk, segment_bytes=1340)
    fill(log, 5 * SEGMENT_RECORDS)
    log.close()
    return [report.base_offset for report in inspect(disk, DIRECTORY)]


def remove(disk: MemoryDisk, base_offset: int) -> None:
    disk.remove(segment_path(DIRECTORY, base_offset, LOG))


def damage_of(reports: list[SegmentReport]) -> list[Damage | Hole]:
    return [found for report in reports for found in report.damage]


def test_a_sound_log_is_reported_segment_by_segment(disk: MemoryDisk, bases: list[int]) -> None:
    reports = list(inspect(disk, DIRECTORY))

    assert bases == [0, 10, 20, 30, 40]
    assert [(report.first_offset, report.last_offset) for report in reports] == [(base, base + 9) for base in bases]
    assert [report.size for report in reports] == [1340] * 5
    assert damage_of(reports) == []


def test_an_empty_directory_has_no_segments(disk: MemoryDisk) -> None:
    disk.make_directory(DIRECTORY)

    assert list(inspect(disk, DIRECTORY)) == []


@pytest.mark.usefixtures("bases")
def test_a_missing_segment_is_a_hole(disk: MemoryDisk) -> None:
    remove(disk, 10)
    remove(disk, 20)

    reports = list(inspect(disk, DIRECTORY))

    hole = Hole(segment_path(DIRECTORY, 30, LOG), 10, 30)
    assert [report.damage for report in reports] == [[], [hole], []]
    assert str(hole) == f"{hole.path}: offsets [10, 30) are missing before this segment"


@pytest.mark.usefixtures("bases")
def test_a_segment_cut_between_two_records_leaves_a_hole(disk: MemoryDisk) -> None:
    disk.open(segment_path(DIRECTORY, 20, LOG)).truncate(134 * 4)

    assert damage_of(list(inspect(disk, DIRECTORY))) == [Hole(segment_path(DIRECTORY, 30, LOG), 24, 30)]


@pytest.mark.usefixtures("bases")
def test_a_segment_cut_within_a_record_is_reported_once(disk: MemoryDisk) -> None:
    disk.open(segment_path(DIRECTORY, 20, LOG)).truncate(134 * 4 + 7)

    (found,) = damage_of(list(inspect(disk, DIRECTORY)))

    assert isinstance(found, Damage)
    assert (found.first_offset, found.next_offset) == (24, 30)


@pytest.mark.usefixtures("bases")
def test_the_oldest_segments_may_be_gone(disk: MemoryDisk) -> None:
    remove(disk, 0)
    remove(disk, 10)

    reports = list(inspect(disk, DIRECTORY))

    assert [report.base_offset for report in reports] == [20, 30, 40]
    assert damage_of(reports) == []


@pytest.mark.parametrize(("cleaned_offset", "missing"), [(0, 10), (10, 10), (15, 15), (29, 29), (30, 30), (50, 30)])
@pytest.mark.usefixtures("bases")
def test_below_the_cleaned_offset_compaction_made_the_holes(
    disk: MemoryDisk, cleaned_offset: int, missing: int
) -> None:
    remove(disk, 10)
    remove(disk, 20)
    store_state(disk, DIRECTORY, CompactionState(cleaned_offset))

    found = damage_of(list(inspect(disk, DIRECTORY)))

    assert found == ([Hole(segment_path(DIRECTORY, 30, LOG), missing, 30)] if missing < 30 else [])


def test_a_compacted_log_is_sound(disk: MemoryDisk) -> None:
    log = open_log(disk, segment_bytes=1340, cleanup="compact", dirty_ratio=0.01)
    for number in range(100):
        append(log, [b"value" * 10], keys=[b"key-%d" % (number % 3)])
    log.maintain(now_ns=NOW_NS, monotonic_ns=0)
    log.close()

    reports = list(inspect(disk, DIRECTORY))

    assert sum(report.record_count for report in reports) < 100
    assert damage_of(reports) == []


class BusyDisk(MemoryDisk):
    """A disk on which a broker goes on working while we read: `before_read` is what it does."""

    def open(self, path: str, *, create: bool = False, write: bool = True) -> MemoryFile:
        if not write:
            self.before_read(path)
        return super().open(path, create=create, write=write)

    def before_read(self, path: str) -> None:
        """Nothing, until a test sets it."""


@pytest.fixture
def busy_disk() -> BusyDisk:
    disk = BusyDisk()
    log = open_log(disk, segment_bytes=1340)
    fill(log, 5 * SEGMENT_RECORDS)
    log.close()
    return disk


@pytest.mark.parametrize("first_read", [0, 10])
def test_segments_that_retention_takes_meanwhile_are_passed_over(busy_disk: BusyDisk, first_read: int) -> None:
    def retain(path: str) -> None:
        if path == segment_path(DIRECTORY, first_read, LOG):
            for base_offset in (0, 10, 20):
                remove(busy_disk, base_offset)

    busy_disk.before_read = retain  # type: ignore[method-assign]

    reports = list(inspect(busy_disk, DIRECTORY))

    assert [report.base_offset for report in reports] == [base for base in (0, 30, 40) if base or first_read]
    assert damage_of(reports) == []


def test_segments_that_compaction_joins_meanwhile_are_read_where_they_are_now(busy_disk: BusyDisk) -> None:
    joined = b"".join(busy_disk.read(segment_path(DIRECTORY, base_offset, LOG)) for base_offset in (0, 10))

    def compact(path: str) -> None:
        if path == segment_path(DIRECTORY, 0, LOG):
            copy = busy_disk.open(path + ".cleaned", create=True)
            copy.append(joined)
            busy_disk.rename(copy.path, path)
            remove(busy_disk, 10)

    busy_disk.before_read = compact  # type: ignore[method-assign]

    reports = list(inspect(busy_disk, DIRECTORY))

    assert [(report.first_offset, report.last_offset) for report in reports] == [(0, 19), (20, 29), (30, 39), (40, 49)]
    assert damage_of(reports) == []


class GuardedDisk(MemoryDisk):
    """A disk of which we may only read, once `guarded`."""

    guarded = False

    def open(self, path: str, *, create: bool = False, write: bool = True) -> MemoryFile:
        if self.guarded and write:
            raise PermissionError(13, "Permission denied", path)
        return super().open(path, create=create, write=write)


def test_the_permission_to_read_is_enough_for_a_compacted_log() -> None:
    disk = GuardedDisk()
    log = open_log(disk, segment_bytes=1340)
    fill(log, 5 * SEGMENT_RECORDS)
    log.close()
    remove(disk, 10)
    store_state(disk, DIRECTORY, CompactionState(20))
    disk.guarded = True

    assert damage_of(list(inspect(disk, DIRECTORY))) == []


def test_the_permission_to_read_is_enough() -> None:
    disk = GuardedDisk()
    log = open_log(disk, segment_bytes=1340)
    fill(log, 5 * SEGMENT_RECORDS)
    log.close()
    disk.guarded = True

    steps = disk.steps
    reports = list(inspect(disk, DIRECTORY))

    assert len(reports) == 5
    assert disk.steps == steps
