"""The index comes back as far as it reached the disk, and never with a gap that nobody sees."""

from errno import EIO, ENOSPC

import pytest
from hypothesis import given
from hypothesis import strategies as st

from goqueue.storage.delay_file import SPARED_BYTES, DelayFile
from goqueue.storage.file import sync_ancestors
from goqueue.testing import FaultyDisk, MemoryDisk
from goqueue.testing.faulty_disk import Operation

DIRECTORY = "/data/orders/0"


@pytest.fixture
def disk() -> MemoryDisk:
    disk = MemoryDisk()
    disk.make_directory(DIRECTORY)
    sync_ancestors(disk, DIRECTORY)
    return disk


def content(disk: MemoryDisk) -> bytes:
    return DelayFile(disk, DIRECTORY).load()


def test_a_missing_file_is_empty_and_takes_nothing_before_it_is_written(disk: MemoryDisk) -> None:
    file = DelayFile(disk, DIRECTORY)

    assert file.load() == b""
    assert file.is_stale
    assert file.is_wasteful(0)
    assert not file.append(b"lost")
    assert not file.sync()
    assert content(disk) == b""


def test_a_file_that_was_not_loaded_takes_nothing(disk: MemoryDisk) -> None:
    DelayFile(disk, DIRECTORY).rewrite(b"old")

    file = DelayFile(disk, DIRECTORY)

    assert not file.append(b"new")
    assert content(disk) == b"old"


def test_what_is_appended_stands_behind_what_was_written(disk: MemoryDisk) -> None:
    file = DelayFile(disk, DIRECTORY)
    file.rewrite(b"head ")
    assert file.append(memoryview(b"one "))
    assert file.append(b"two ")

    again = DelayFile(disk, DIRECTORY)
    assert again.load() == b"head one two "
    assert again.size_bytes == file.size_bytes == len(b"head one two ")
    assert again.append(b"three")
    assert content(disk) == b"head one two three"


def test_it_is_wasteful_when_more_than_half_of_it_is_dead(disk: MemoryDisk) -> None:
    file = DelayFile(disk, DIRECTORY)
    file.rewrite(bytes(1_000 + SPARED_BYTES))

    assert not file.is_wasteful(500)
    assert file.is_wasteful(499)
    file.append(b"x")
    assert file.is_wasteful(500)
    file.rewrite(bytes(500))
    assert not file.is_wasteful(500)


def test_a_power_cut_costs_what_was_not_synced_at_most(disk: MemoryDisk) -> None:
    file = DelayFile(disk, DIRECTORY)
    file.rewrite(b"head ")
    file.append(b"synced ")
    assert file.sync()
    file.append(b"not synced")

    assert content(disk.crash(keep="nothing")) == b"head synced "


@pytest.mark.parametrize(
    ("operation", "suffix"),
    [("open", "delays.new"), ("append", ".new"), ("sync", ".new"), ("rename", "delays"), ("sync_directory", "/0")],
)
def test_a_power_cut_while_it_is_replaced_leaves_the_old_or_the_new(
    disk: MemoryDisk, operation: Operation, suffix: str
) -> None:
    faulty = FaultyDisk(disk, seed=1)
    file = DelayFile(faulty, DIRECTORY)
    file.rewrite(b"old")
    faulty.fail_next(operation, path_suffix=suffix)

    with pytest.raises(OSError, match="Input/output error"):
        file.rewrite(b"new")

    assert file.is_stale
    assert not file.append(b"more")
    assert content(disk) == (b"new" if operation == "sync_directory" else b"old")
    for seed in range(10):
        assert content(disk.crash(seed)) in (b"old", b"new")


@pytest.mark.parametrize("written", [0, 3])
@pytest.mark.parametrize("errno", [EIO, ENOSPC])
def test_after_an_append_that_failed_nothing_is_appended_until_the_file_is_replaced(
    disk: MemoryDisk, errno: int, written: int
) -> None:
    faulty = FaultyDisk(disk, seed=1)
    file = DelayFile(faulty, DIRECTORY)
    file.rewrite(b"head ")
    faulty.fail_next("append", errno, written=written)

    assert not file.append(b"lost ")
    assert file.is_stale
    assert not file.append(b"behind a gap")
    assert content(disk) == b"head " + b"lost "[:written]

    file.rewrite(b"all ")
    assert file.append(b"again")
    assert content(disk) == b"all again"


def test_after_a_sync_that_failed_too(disk: MemoryDisk) -> None:
    faulty = FaultyDisk(disk, seed=1)
    file = DelayFile(faulty, DIRECTORY)
    file.rewrite(b"head ")
    file.append(b"lost ")
    faulty.fail_next("sync")

    assert not file.sync()
    assert not file.append(b"behind a gap")
    assert content(disk.crash(keep="nothing")) == b"head "


@pytest.mark.parametrize("operation", ["open", "pread", "size"])
def test_a_disk_that_does_not_give_it_is_an_error(disk: MemoryDisk, operation: Operation) -> None:
    DelayFile(disk, DIRECTORY).rewrite(b"old")
    faulty = FaultyDisk(disk, seed=1)
    faulty.fail_next(operation)
    file = DelayFile(faulty, DIRECTORY)

    with pytest.raises(OSError, match="Input/output error"):
        file.load()
    assert file.is_stale
    assert file.load() == b"old"


def test_closing_twice_is_fine(disk: MemoryDisk) -> None:
    file = DelayFile(disk, DIRECTORY)
    file.rewrite(b"old")
    file.close()
    file.close()

    assert not file.append(b"new")
    assert file.load() == b"old"


@given(st.lists(st.sampled_from(["append", "rewrite", "sync", "restart"]), max_size=40), st.integers(0, 10_000))
def test_on_a_disk_that_fails_at_random_the_file_has_no_gap(steps: list[str], seed: int) -> None:
    """Every byte stands for the change with that number; a file that begins at one has all up to its end."""
    disk = MemoryDisk()
    disk.make_directory(DIRECTORY)
    faulty = FaultyDisk(
        disk, seed=seed, short_write=0.1, write_error=0.1, no_space=0.1, sync_error=0.1, name_error=0.1, read_error=0.1
    )
    file = DelayFile(faulty, DIRECTORY)
    changes = bytearray()
    for number, step in enumerate(steps):
        try:
            match step:
                case "append":
                    changes += bytes((3 * number, 3 * number + 1, 3 * number + 2))
                    file.append(changes[-3:])
                case "rewrite":
                    file.rewrite(bytes(changes))
                case "sync":
                    file.sync()
                case _:
                    file.load()
                    changes = bytearray(content(disk))
        except OSError:
            pass
        assert bytes(changes).startswith(content(disk))


def test_a_discarded_file_stays_gone_after_a_power_cut() -> None:
    disk = MemoryDisk()
    disk.make_directory(DIRECTORY)
    file = DelayFile(disk, DIRECTORY, exists=False)
    file.rewrite(b"of records that are about to be cut off")

    file.discard()

    assert not file.exists
    assert file.is_stale
    assert DelayFile(disk.crash(keep="nothing"), DIRECTORY).load() == b""
