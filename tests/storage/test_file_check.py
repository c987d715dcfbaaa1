"""The check of every file of a log: sound files say what they hold, damaged ones what is wrong."""

import pytest

from goqueue.errors import ForeignFile
from goqueue.storage.file_check import FileReport, check_log
from goqueue.storage.layout import OFFSET_INDEX, TIME_INDEX, segment_path
from goqueue.testing import MemoryDisk
from tests.storage.logs import DIRECTORY, FIRST, fill, open_log


def filled(disk: MemoryDisk) -> None:
    log = open_log(disk)
    fill(log, 100)
    log.assign_epoch(1, 0)
    log.close()


def reports(disk: MemoryDisk) -> dict[str, FileReport]:
    return {report.path.rpartition("/")[2]: report for report in check_log(disk, DIRECTORY)}


def damage_at(disk: MemoryDisk, path: str, position: int) -> None:
    file = disk.open(path)
    byte = file.pread(position, 1)[0]
    file.pwrite(position, bytes([byte ^ 0x40]))


def test_a_sound_log_says_what_each_file_holds(disk: MemoryDisk) -> None:
    filled(disk)

    found = reports(disk)

    assert all(report.is_sound for report in found.values())
    assert found["00000000000000000000.log"].content == "100 records, offsets 0 to 99"
    assert found["checkpoint"].content == "all below offset 100 is durable"
    assert found["leader-epochs"].content == "1 epochs"
    assert found["highest-epoch"].content == "epoch 1"


@pytest.mark.parametrize(
    ("path", "position", "reason"),
    [
        (FIRST, 1_000, "are damaged"),
        (segment_path(DIRECTORY, 0, OFFSET_INDEX), 20, "point at no such record"),
        (segment_path(DIRECTORY, 0, TIME_INDEX), 20, "point at no such record"),
        (f"{DIRECTORY}/checkpoint", 20, "fails its checksum"),
        (f"{DIRECTORY}/leader-epochs", 20, "checksum mismatch"),
        (f"{DIRECTORY}/highest-epoch", 20, "checksum mismatch"),
    ],
)
def test_a_damaged_file_is_named(disk: MemoryDisk, path: str, position: int, reason: str) -> None:
    filled(disk)
    damage_at(disk, path, position)

    damaged = [report for report in check_log(disk, DIRECTORY) if not report.is_sound]

    assert [report.path for report in damaged] == [path]
    assert reason in damaged[0].damage[0]


def test_a_log_without_its_checkpoint_is_not_sound(disk: MemoryDisk) -> None:
    filled(disk)
    disk.remove(f"{DIRECTORY}/checkpoint")

    assert reports(disk)["checkpoint"].damage == ("missing: a start cannot tell a torn tail from damage",)


def test_a_foreign_file_is_refused(disk: MemoryDisk) -> None:
    filled(disk)
    disk.open(f"{DIRECTORY}/notes.txt", create=True)

    with pytest.raises(ForeignFile, match=r"notes\.txt"):
        list(check_log(disk, DIRECTORY))
