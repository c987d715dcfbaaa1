import pytest

from goqueue.storage.epochs import EpochStart, LeaderEpochs
from goqueue.testing import MemoryDisk
from tests.storage.logs import DIRECTORY, fill, open_log


@pytest.fixture
def epochs(disk: MemoryDisk) -> LeaderEpochs:
    disk.make_directory("/epochs")
    disk.sync_directory("/")
    epochs = LeaderEpochs.load(disk, "/epochs")
    for epoch, start in ((1, 0), (4, 10), (7, 25)):
        epochs.assign(epoch, start)
    return epochs


def test_a_new_log_has_no_epochs(disk: MemoryDisk) -> None:
    epochs = LeaderEpochs.load(disk, "/epochs")

    assert (epochs.latest, epochs.entries, epochs.epoch_of(5)) == (-1, (), -1)


def test_epochs_are_durable_when_assign_returns(epochs: LeaderEpochs, disk: MemoryDisk) -> None:
    survived = LeaderEpochs.load(disk.crash(keep="nothing"), "/epochs")

    assert survived.entries == epochs.entries == (EpochStart(1, 0), EpochStart(4, 10), EpochStart(7, 25))


def test_an_offset_belongs_to_the_last_epoch_that_started_before_it(epochs: LeaderEpochs) -> None:
    assert [epochs.epoch_of(offset) for offset in (0, 9, 10, 24, 25, 999)] == [1, 1, 4, 4, 7, 7]


def test_an_epoch_ends_where_the_next_one_starts(epochs: LeaderEpochs) -> None:
    assert epochs.end_of(1, log_end=40) == (1, 10)
    assert epochs.end_of(4, log_end=40) == (4, 25)
    assert epochs.end_of(7, log_end=40) == (7, 40)
    assert epochs.end_of(5, log_end=40) == (4, 25)
    assert epochs.end_of(0, log_end=40) == (-1, 0)


def test_the_same_note_again_changes_nothing(epochs: LeaderEpochs, disk: MemoryDisk) -> None:
    steps = disk.steps

    epochs.assign(7, 25)

    assert disk.steps == steps


def test_an_older_epoch_is_refused(epochs: LeaderEpochs) -> None:
    with pytest.raises(ValueError, match="epoch 5 does not follow epoch 7"):
        epochs.assign(5, 30)


def test_an_epoch_whose_leader_wrote_nothing_is_forgotten(epochs: LeaderEpochs) -> None:
    epochs.assign(8, 25)

    assert epochs.entries[-1] == (8, 25)
    assert epochs.end_of(7, log_end=40) == (4, 25)


def test_the_highest_epoch_is_durable_and_never_falls(disk: MemoryDisk) -> None:
    log = open_log(disk)
    assert log.highest_epoch == -1
    log.note_epoch(5)
    steps = disk.steps

    log.note_epoch(5)
    log.note_epoch(3)

    assert (log.highest_epoch, log.epochs.latest, disk.steps) == (5, -1, steps)
    assert open_log(disk.crash(keep="nothing")).highest_epoch == 5


def test_a_truncation_and_a_restart_leave_the_highest_epoch(disk: MemoryDisk) -> None:
    log = open_log(disk)
    fill(log, 10)
    log.assign_epoch(2, 0)
    log.assign_epoch(7, 5)

    log.truncate(3)
    assert (log.epochs.latest, log.highest_epoch) == (2, 7)
    log.restart(90)

    assert (log.epochs.latest, log.highest_epoch) == (-1, 7)
    assert open_log(disk.crash(keep="nothing")).highest_epoch == 7


def test_epochs_of_an_early_version_have_no_file_for_the_highest_one(disk: MemoryDisk) -> None:
    log = open_log(disk)
    fill(log, 10)
    log.assign_epoch(2, 0)
    log.assign_epoch(7, 5)
    log.close()
    disk.remove(f"{DIRECTORY}/highest-epoch")

    log = open_log(disk)
    assert (log.highest_epoch, log.epochs.latest) == (7, 7)
    log.truncate(3)

    assert open_log(disk.crash(keep="nothing")).highest_epoch == 7


def test_nobody_leads_in_an_epoch_below_the_highest_but_a_follower_copies_older_ones(disk: MemoryDisk) -> None:
    log = open_log(disk)
    log.note_epoch(5)

    with pytest.raises(ValueError, match="epoch 4 is below epoch 5"):
        log.assign_epoch(4, 0)
    log.copy_epoch(3, 0)
    log.copy_epoch(4, 0)
    log.assign_epoch(5, 0)

    assert (log.epochs.entries, log.highest_epoch) == ((EpochStart(5, 0),), 5)


def test_a_higher_epoch_is_noted_while_the_log_is_truncated(disk: MemoryDisk) -> None:
    log = open_log(disk)
    fill(log, 10)
    job = log.begin_truncate(5)
    assert job is not None

    log.note_epoch(9)
    job.run()
    log.complete(job)

    assert open_log(disk.crash(keep="nothing")).highest_epoch == 9


def test_the_epoch_of_records_that_a_crash_has_taken_is_forgotten(disk: MemoryDisk) -> None:
    log = open_log(disk)
    fill(log, 5)
    log.assign_epoch(1, 0)
    log.flush()
    fill(log, 5)
    log.assign_epoch(2, 10)

    disk = disk.crash(keep="nothing")
    log = open_log(disk)

    assert (log.next_offset, log.epochs.entries, log.highest_epoch) == (5, (EpochStart(1, 0),), 2)
    fill(log, 10)
    log.close()
    assert open_log(disk.crash(keep="nothing")).epochs.entries == (EpochStart(1, 0),)


@pytest.mark.parametrize("name", ["leader-epochs", "highest-epoch"])
def test_a_damaged_file_of_epochs_is_reported_and_the_other_one_counts(disk: MemoryDisk, name: str) -> None:
    log = open_log(disk)
    fill(log, 5)
    log.assign_epoch(1, 0)
    log.note_epoch(3)
    log.close()
    disk.flip_bit(f"{DIRECTORY}/{name}", 18)

    log = open_log(disk)

    assert [damage.path for damage in log.damage] == [f"{DIRECTORY}/{name}"]
    assert (log.epochs.latest, log.highest_epoch) == ((-1, 3) if name == "leader-epochs" else (1, 1))


def test_truncating_the_log_forgets_epochs_that_it_no_longer_holds(disk: MemoryDisk) -> None:
    log = open_log(disk)
    fill(log, 30)
    for epoch, start in ((1, 0), (2, 10), (3, 20)):
        log.epochs.assign(epoch, start)

    log.truncate(20)

    assert LeaderEpochs.load(disk, DIRECTORY).entries == (EpochStart(1, 0), EpochStart(2, 10))


def test_retention_moves_the_first_epoch_to_the_start_of_the_log(disk: MemoryDisk) -> None:
    log = open_log(disk, segment_bytes=1000, retention_ms=1)
    fill(log, 30)
    log.flush()
    log.epochs.assign(1, 0)
    log.epochs.assign(2, 10)

    log.maintain(now_ns=2 * 10**18, monotonic_ns=0)

    assert log.epochs.entries == (EpochStart(2, log.start_offset),)
