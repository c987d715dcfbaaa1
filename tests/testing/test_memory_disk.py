"""`MemoryDisk` while it runs: power, room, handles, and what tests may do to it. The rest is the contract."""

import errno
from collections.abc import Callable

import pytest

from goqueue.storage.file import Disk
from goqueue.testing import MemoryDisk, PowerLoss


def small_workload(disk: Disk) -> None:
    """20 steps: 2 directories, 2 files, 9 bytes, and 7 other changes."""
    disk.make_directory("/a/b")
    one = disk.open("/a/b/one", create=True)
    one.append(b"abc", b"def")
    one.sync()
    disk.lock("/a/b/lock").release()
    one.pwrite(1, b"xyz")
    one.truncate(2)
    disk.sync_directory("/a/b")
    disk.rename("/a/b/one", "/a/b/two")
    disk.remove("/a/b/two")
    disk.remove("/a/b/two")
    disk.open("/a/b/lock", create=True).sync()
    disk.make_directory("/a/b")
    disk.sync_directory("/a")


def test_steps_count_bytes_and_every_other_change() -> None:
    disk = MemoryDisk()

    small_workload(disk)

    assert disk.steps == 20


def test_power_goes_off_before_every_step_but_not_after_the_last() -> None:
    for limit in range(20):
        disk = MemoryDisk(power_off_after=limit)
        with pytest.raises(PowerLoss) as caught:
            small_workload(disk)
        assert disk.steps == caught.value.steps == limit

    small_workload(MemoryDisk(power_off_after=20))


@pytest.mark.parametrize("fitting", range(6))
def test_write_in_hand_stops_at_the_byte_where_the_power_goes(fitting: int) -> None:
    disk = MemoryDisk()
    file = disk.open("/file", create=True)
    file.append(b"--")
    disk.power_off_after = disk.steps + fitting

    with pytest.raises(PowerLoss):
        file.append(b"abc", b"def")

    assert disk.read("/file") == b"--" + b"abcdef"[:fitting]


def test_sync_at_the_limit_has_no_effect() -> None:
    disk = MemoryDisk()
    disk.write("/file", b"")
    file = disk.open("/file")
    file.append(b"abc")
    disk.power_off_after = disk.steps

    with pytest.raises(PowerLoss):
        file.sync()

    assert disk.crash().read("/file") == b""


@pytest.mark.parametrize(
    "call",
    [
        lambda disk, file: file.size(),
        lambda disk, file: file.pread(0, 1),
        lambda disk, file: file.append(b"x"),
        lambda disk, file: file.truncate(0),
        lambda disk, file: file.sync(),
        lambda disk, file: disk.open("/file"),
        lambda disk, file: disk.entries("/"),
        lambda disk, file: disk.make_directory("/"),
        lambda disk, file: disk.rename("/file", "/other"),
        lambda disk, file: disk.remove("/missing"),
        lambda disk, file: disk.remove_tree("/missing"),
        lambda disk, file: disk.sync_directory("/"),
        lambda disk, file: disk.lock("/file"),
    ],
)
def test_without_power_nothing_works_and_after_the_crash_no_device_is_there(
    call: Callable[[MemoryDisk, object], object],
) -> None:
    disk = MemoryDisk()
    file = disk.open("/file", create=True)
    disk.power_off_after = disk.steps
    with pytest.raises(PowerLoss):
        file.append(b"first victim")

    with pytest.raises(PowerLoss):
        call(disk, file)
    disk.crash()
    with pytest.raises(OSError, match="No such device") as caught:
        call(disk, file)

    assert caught.value.errno == errno.ENODEV


def test_power_loss_is_not_caught_as_an_error_of_the_program() -> None:
    disk = MemoryDisk(power_off_after=0)

    def careless() -> None:
        try:
            disk.open("/file", create=True)
        except Exception:
            return

    with pytest.raises(PowerLoss):
        careless()


def test_closing_and_releasing_need_no_power() -> None:
    disk = MemoryDisk()
    file = disk.open("/file", create=True)
    lock = disk.lock("/lock")
    disk.power_off_after = 0
    with pytest.raises(PowerLoss):
        file.sync()

    file.close()
    lock.release()

    assert disk.open_files == 0


def test_full_disk_takes_what_fits_and_says_so() -> None:
    disk = MemoryDisk(capacity_bytes=10)
    file = disk.open("/file", create=True)
    file.append(b"0123456")

    with pytest.raises(OSError, match="No space") as caught:
        file.append(b"789", b"abc")

    assert caught.value.errno == errno.ENOSPC
    assert disk.read("/file") == b"0123456789"
    assert disk.used_bytes == 10


def test_full_disk_still_reads_overwrites_and_truncates() -> None:
    disk = MemoryDisk(capacity_bytes=4)
    file = disk.open("/file", create=True)
    file.append(b"0123")

    file.pwrite(1, b"ab")
    assert file.pread(0, 4) == b"0ab3"
    with pytest.raises(OSError, match="No space"):
        file.truncate(5)
    with pytest.raises(OSError, match="No space"):
        file.pwrite(100, b"x")
    file.truncate(1)

    file.append(b"xyz")
    assert disk.read("/file") == b"0xyz"


def test_room_can_be_made_and_taken_at_any_time() -> None:
    disk = MemoryDisk()
    file = disk.open("/file", create=True)
    file.append(b"0123")

    disk.capacity_bytes = 2
    with pytest.raises(OSError, match="No space"):
        file.append(b"4")
    disk.capacity_bytes = 5
    file.append(b"4")

    assert disk.read("/file") == b"01234"


def test_removed_file_gives_its_room_back_when_nobody_has_it_open() -> None:
    disk = MemoryDisk()
    held = disk.open("/held", create=True)
    held.append(b"0123")
    disk.write("/other", b"abc")

    disk.remove("/other")
    assert disk.used_bytes == 4
    disk.remove("/held")
    held.append(b"45")
    assert disk.used_bytes == 6
    held.close()
    assert disk.used_bytes == 0


def test_file_replaced_by_a_rename_gives_its_room_back() -> None:
    disk = MemoryDisk()
    disk.write("/old", b"0123")
    disk.write("/new", b"ab")

    disk.rename("/new", "/old")

    assert disk.used_bytes == 2


def test_removed_tree_gives_the_room_of_all_its_files_back() -> None:
    disk = MemoryDisk()
    for path in ("/tree/a", "/tree/deep/b", "/kept"):
        disk.write(path, b"abc")

    disk.remove_tree("/tree")

    assert disk.used_bytes == 3


def test_capacity_outlives_a_crash_and_lost_bytes_are_free_again() -> None:
    disk = MemoryDisk(capacity_bytes=10)
    disk.write("/file", b"0123")
    disk.open("/file").append(b"456789")

    after = disk.crash()

    assert after.used_bytes == 4
    after.open("/file").append(b"456789")
    with pytest.raises(OSError, match="No space"):
        after.open("/file").append(b"x")


def test_open_files_counts_handles_until_closed_or_dropped() -> None:
    disk = MemoryDisk()
    first = disk.open("/file", create=True)
    second = disk.open("/file")
    assert disk.open_files == 2

    first.close()
    first.close()
    assert disk.open_files == 1
    del second
    assert disk.open_files == 0


def test_memory_file_has_no_descriptor() -> None:
    with pytest.raises(OSError, match="not supported"):
        MemoryDisk().open("/file", create=True).fileno()


def test_relative_paths_are_refused() -> None:
    with pytest.raises(ValueError, match="absolute"):
        MemoryDisk().open("file", create=True)


def test_paths_are_the_same_however_they_are_written() -> None:
    disk = MemoryDisk()
    disk.write("/a/b/file", b"abc")

    assert disk.read("//a/./b/../b/file") == b"abc"


def test_paths_lists_every_file_sorted() -> None:
    disk = MemoryDisk()
    disk.make_directory("/empty")
    disk.write("/b/two", b"")
    disk.write("/a/one", b"")

    assert disk.paths() == ["/a/one", "/b/two"]


def test_planted_file_is_durable_with_its_directories() -> None:
    disk = MemoryDisk()
    disk.make_directory("/a")

    disk.write("/a/b/file", b"abc")
    disk.open("/a/b/file").append(b"def")
    disk.write("/a/b/file", b"xyz")

    assert disk.crash().read("/a/b/file") == b"xyz"
    assert disk.used_bytes == 3


def test_planting_takes_no_steps_and_no_room_check() -> None:
    disk = MemoryDisk(power_off_after=0, capacity_bytes=1)

    disk.write("/file", b"abc")

    assert disk.steps == 0
    assert disk.read("/file") == b"abc"


def test_flipped_bit_is_in_the_file_and_on_the_medium() -> None:
    disk = MemoryDisk()
    disk.write("/file", b"\0\0\0")
    file = disk.open("/file")

    disk.flip_bit("/file", 1, bit=7)

    assert file.pread(0, 3) == b"\0\x80\0"
    assert disk.crash().read("/file") == b"\0\x80\0"


def test_flipping_a_bit_that_is_not_there_is_refused() -> None:
    disk = MemoryDisk()
    disk.write("/file", b"abc")

    for position, bit in [(3, 0), (-1, 0), (0, 8)]:
        with pytest.raises(ValueError, match="has 3 bytes"):
            disk.flip_bit("/file", position, bit)
