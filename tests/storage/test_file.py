"""The contract of `Disk` and `File`, held against the machine's own disk and against both fakes."""

import errno
import fcntl
import os
import subprocess
import sys
from array import array
from collections.abc import Callable
from pathlib import Path
from threading import Thread

import pytest

from goqueue.storage.file import Disk, Entry, File, OsDisk
from goqueue.testing import FaultyDisk, MemoryDisk

DISKS: dict[str, Callable[[], Disk]] = {
    "os": OsDisk,
    "memory": MemoryDisk,
    "faulty": lambda: FaultyDisk(MemoryDisk(), seed=0),
    "faulty-os": lambda: FaultyDisk(OsDisk(), seed=0),
}


@pytest.fixture(params=DISKS)
def disk(request: pytest.FixtureRequest) -> Disk:
    return DISKS[request.param]()


@pytest.fixture
def root(disk: Disk, tmp_path: Path) -> str:
    disk.make_directory(str(tmp_path))
    return str(tmp_path)


@pytest.fixture
def file(disk: Disk, root: str) -> File:
    return disk.open(f"{root}/file", create=True)


def content(file: File) -> bytes:
    return file.pread(0, file.size() + 1)


def names(disk: Disk, directory: str) -> list[str]:
    return sorted(entry.name for entry in disk.entries(directory))


def test_new_file_is_empty_and_knows_its_path(file: File, root: str) -> None:
    assert file.size() == 0
    assert file.path == f"{root}/file"
    assert file.pread(0, 10) == b""


def test_append_returns_the_position_of_its_first_byte(file: File) -> None:
    assert file.append(b"one") == 0
    assert file.append(b"two", bytearray(b"three"), memoryview(b"four")) == 3

    assert content(file) == b"onetwothreefour"


def test_append_of_nothing_returns_the_end(file: File) -> None:
    file.append(b"abc")

    assert file.append() == 3
    assert file.append(b"", b"") == 3
    assert file.size() == 3


def test_buffers_count_in_bytes_whatever_their_items_are(file: File) -> None:
    words = memoryview(array("I", [1, 2, 3]))

    assert file.append(words, b"end") == 0
    assert file.append(b"!") == words.nbytes + 3
    file.pwrite(0, words)

    assert content(file) == words.tobytes() + b"end!"


def test_pread_returns_less_only_where_the_file_ends(file: File) -> None:
    file.append(b"0123456789")

    assert file.pread(0, 4) == b"0123"
    assert file.pread(8, 4) == b"89"
    assert file.pread(10, 4) == b""
    assert file.pread(1000, 4) == b""
    assert file.pread(3, 0) == b""


def test_pwrite_overwrites_in_place(file: File) -> None:
    file.append(b"0123456789")

    file.pwrite(2, b"ab")

    assert content(file) == b"01ab456789"


def test_pwrite_extends_the_file_where_it_reaches_over_the_end(file: File) -> None:
    file.append(b"0123")

    file.pwrite(2, b"abcd")

    assert content(file) == b"01abcd"


def test_gap_before_a_pwrite_reads_as_zeros(file: File) -> None:
    file.append(b"ab")

    file.pwrite(5, b"c")

    assert content(file) == b"ab\0\0\0c"


def test_truncate_cuts_the_end_off_and_append_goes_on_there(file: File) -> None:
    file.append(b"0123456789")

    file.truncate(4)

    assert file.size() == 4
    assert file.append(b"x") == 4
    assert content(file) == b"0123x"


def test_truncate_beyond_the_end_extends_with_zeros(file: File) -> None:
    file.append(b"ab")

    file.truncate(4)

    assert content(file) == b"ab\0\0"


@pytest.mark.parametrize(
    "call",
    [
        lambda file: file.pread(-1, 1),
        lambda file: file.pread(0, -1),
        lambda file: file.pwrite(-1, b"x"),
        lambda file: file.truncate(-1),
    ],
)
def test_negative_positions_and_sizes_are_invalid(file: File, call: Callable[[File], object]) -> None:
    file.append(b"abc")

    with pytest.raises(OSError, match="Invalid") as caught:
        call(file)

    assert caught.value.errno == errno.EINVAL
    assert content(file) == b"abc"


def test_sync_changes_nothing_that_can_be_read(file: File) -> None:
    file.append(b"abc")

    file.sync()

    assert content(file) == b"abc"


def test_two_handles_see_the_same_file(disk: Disk, file: File) -> None:
    other = disk.open(file.path)

    file.append(b"abc")
    other.append(b"def")

    assert content(file) == content(other) == b"abcdef"


def test_open_without_create_needs_the_file(disk: Disk, root: str) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        disk.open(f"{root}/missing")

    assert caught.value.filename == f"{root}/missing"


def test_open_with_create_keeps_what_is_there(disk: Disk, file: File) -> None:
    file.append(b"abc")

    assert content(disk.open(file.path, create=True)) == b"abc"


def test_open_without_write_reads_what_others_write(disk: Disk, file: File) -> None:
    reader = disk.open(file.path, write=False)

    file.append(b"abc")

    assert content(reader) == b"abc"
    assert reader.path == file.path


@pytest.mark.parametrize(
    "call",
    [
        lambda file: file.pwrite(0, b"x"),
        lambda file: file.pwrite(0, b""),
        lambda file: file.append(b"x"),
        lambda file: file.append(),
        lambda file: file.truncate(0),
    ],
)
def test_file_opened_without_write_cannot_be_changed(disk: Disk, file: File, call: Callable[[File], object]) -> None:
    file.append(b"abc")
    reader = disk.open(file.path, write=False)

    with pytest.raises(OSError, match=r"\[Errno") as caught:
        call(reader)

    assert (caught.value.errno, caught.value.filename) == (errno.EBADF, file.path)
    assert content(file) == b"abc"


def test_open_without_write_needs_the_file(disk: Disk, root: str) -> None:
    with pytest.raises(FileNotFoundError):
        disk.open(f"{root}/missing", write=False)


def test_open_refuses_a_directory(disk: Disk, root: str) -> None:
    with pytest.raises(IsADirectoryError):
        disk.open(root)
    with pytest.raises(IsADirectoryError):
        disk.open(root, write=False)
    with pytest.raises(IsADirectoryError):
        disk.open(root, create=True)


def test_open_needs_the_directory(disk: Disk, file: File, root: str) -> None:
    with pytest.raises(FileNotFoundError):
        disk.open(f"{root}/missing/file", create=True)
    with pytest.raises(NotADirectoryError):
        disk.open(f"{file.path}/file", create=True)


@pytest.mark.parametrize(
    "call",
    [
        lambda file: file.size(),
        lambda file: file.pread(0, 1),
        lambda file: file.pwrite(0, b"x"),
        lambda file: file.append(b"x"),
        lambda file: file.truncate(0),
        lambda file: file.sync(),
        lambda file: file.fileno(),
    ],
)
def test_closed_file_refuses_everything(file: File, call: Callable[[File], object]) -> None:
    file.close()

    with pytest.raises(OSError, match=r"\[Errno"):
        call(file)


def test_closing_twice_is_fine(disk: Disk, file: File) -> None:
    file.append(b"abc")

    file.close()
    file.close()

    assert content(disk.open(file.path)) == b"abc"


def test_fileno_is_a_readable_descriptor_or_an_error(file: File) -> None:
    file.append(b"abc")

    try:
        fd = file.fileno()
    except OSError:
        return
    assert os.pread(fd, 3, 0) == b"abc"


def test_entries_tell_names_sizes_and_kinds(disk: Disk, file: File, root: str) -> None:
    file.append(b"abc")
    disk.make_directory(f"{root}/directory")

    assert sorted(disk.entries(root)) == [Entry("directory", 0, True), Entry("file", 3, False)]
    assert disk.entries(f"{root}/directory") == []


def test_entries_needs_a_directory(disk: Disk, file: File, root: str) -> None:
    with pytest.raises(FileNotFoundError):
        disk.entries(f"{root}/missing")
    with pytest.raises(NotADirectoryError):
        disk.entries(file.path)


def test_make_directory_makes_parents_and_may_be_repeated(disk: Disk, root: str) -> None:
    disk.make_directory(f"{root}/a/b/c")
    disk.make_directory(f"{root}/a/b/c")

    assert names(disk, f"{root}/a/b") == ["c"]


def test_make_directory_does_not_replace_a_file(disk: Disk, file: File) -> None:
    with pytest.raises(FileExistsError):
        disk.make_directory(file.path)
    with pytest.raises(NotADirectoryError):
        disk.make_directory(f"{file.path}/below")


def test_rename_replaces_what_had_the_name(disk: Disk, file: File, root: str) -> None:
    file.append(b"new")
    replaced = disk.open(f"{root}/target", create=True)
    replaced.append(b"old")

    disk.rename(file.path, f"{root}/target")

    assert names(disk, root) == ["target"]
    assert content(disk.open(f"{root}/target")) == b"new"
    assert content(replaced) == b"old"


def test_rename_does_not_disturb_an_open_file(disk: Disk, file: File, root: str) -> None:
    file.append(b"abc")

    disk.rename(file.path, f"{root}/renamed")
    file.append(b"def")

    assert content(disk.open(f"{root}/renamed")) == b"abcdef"


def test_rename_moves_between_directories(disk: Disk, file: File, root: str) -> None:
    disk.make_directory(f"{root}/a")

    disk.rename(file.path, f"{root}/a/file")

    assert names(disk, root) == ["a"]
    assert names(disk, f"{root}/a") == ["file"]


def test_rename_to_the_same_name_changes_nothing(disk: Disk, file: File, root: str) -> None:
    disk.rename(file.path, file.path)

    assert names(disk, root) == ["file"]


def test_rename_needs_its_source_and_both_directories(disk: Disk, file: File, root: str) -> None:
    with pytest.raises(FileNotFoundError):
        disk.rename(f"{root}/missing", f"{root}/target")
    with pytest.raises(FileNotFoundError):
        disk.rename(file.path, f"{root}/missing/target")

    assert names(disk, root) == ["file"]


def test_rename_does_not_replace_a_directory(disk: Disk, file: File, root: str) -> None:
    disk.make_directory(f"{root}/directory")

    with pytest.raises(IsADirectoryError):
        disk.rename(file.path, f"{root}/directory")


def test_removed_file_lives_on_for_who_has_it_open(disk: Disk, file: File, root: str) -> None:
    file.append(b"abc")

    disk.remove(file.path)
    file.append(b"def")
    successor = disk.open(file.path, create=True)

    assert content(file) == b"abcdef"
    assert content(successor) == b""


def test_removing_what_is_missing_is_fine(disk: Disk, root: str) -> None:
    disk.remove(f"{root}/missing")
    disk.remove(f"{root}/missing/file")

    assert names(disk, root) == []


def test_remove_refuses_a_directory(disk: Disk, root: str) -> None:
    disk.make_directory(f"{root}/directory")

    with pytest.raises(IsADirectoryError):
        disk.remove(f"{root}/directory")


def test_rename_takes_a_directory_with_all_below_it(disk: Disk, root: str) -> None:
    disk.make_directory(f"{root}/old/0/log")
    file = disk.open(f"{root}/old/0/log/file", create=True)
    file.append(b"abc")

    disk.rename(f"{root}/old", f"{root}/new")

    assert names(disk, root) == ["new"]
    assert content(disk.open(f"{root}/new/0/log/file")) == b"abc"
    assert content(file) == b"abc"


def test_remove_tree_takes_a_directory_with_all_below_it(disk: Disk, root: str) -> None:
    disk.make_directory(f"{root}/tree/0/log")
    disk.make_directory(f"{root}/other")
    for path in ("tree/file", "tree/0/file", "tree/0/log/file"):
        disk.open(f"{root}/{path}", create=True).append(b"abc")
    held = disk.open(f"{root}/tree/0/file")

    disk.remove_tree(f"{root}/tree")

    assert names(disk, root) == ["other"]
    assert content(held) == b"abc"


def test_removing_a_tree_that_is_missing_is_fine(disk: Disk, root: str) -> None:
    disk.remove_tree(f"{root}/missing")
    disk.remove_tree(f"{root}/missing/below")


def test_remove_tree_refuses_a_file(disk: Disk, file: File) -> None:
    with pytest.raises(NotADirectoryError):
        disk.remove_tree(file.path)

    assert content(disk.open(file.path)) == b""


def test_os_remove_tree_follows_no_links(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "file").write_bytes(b"abc")
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "link").symlink_to(tmp_path / "kept")

    OsDisk().remove_tree(f"{tmp_path}/tree")

    assert (tmp_path / "kept" / "file").read_bytes() == b"abc"


def test_sync_directory_needs_a_directory(disk: Disk, file: File, root: str) -> None:
    disk.sync_directory(root)

    with pytest.raises(FileNotFoundError):
        disk.sync_directory(f"{root}/missing")
    with pytest.raises(NotADirectoryError):
        disk.sync_directory(file.path)


def test_lock_is_refused_while_another_holds_it(disk: Disk, root: str) -> None:
    lock = disk.lock(f"{root}/lock")

    with pytest.raises(BlockingIOError):
        disk.lock(f"{root}/lock")

    lock.release()
    lock.release()
    disk.lock(f"{root}/lock").release()


def test_lock_goes_with_its_last_reference(disk: Disk, root: str) -> None:
    lock = disk.lock(f"{root}/lock")
    del lock

    disk.lock(f"{root}/lock").release()


def test_releasing_an_old_lock_twice_does_not_free_the_next_holder(disk: Disk, root: str) -> None:
    old = disk.lock(f"{root}/lock")
    old.release()
    held = disk.lock(f"{root}/lock")

    old.release()

    with pytest.raises(BlockingIOError):
        disk.lock(f"{root}/lock")
    held.release()


def test_locks_on_different_files_do_not_meet(disk: Disk, root: str) -> None:
    one, two = disk.lock(f"{root}/one"), disk.lock(f"{root}/two")

    assert names(disk, root) == ["one", "two"]
    one.release()
    two.release()


def test_one_thread_reads_and_syncs_while_the_owner_appends(file: File) -> None:
    torn: list[bytes] = []

    def read_and_sync() -> None:
        while (size := file.size()) < 64_000:
            data = file.pread(0, size)
            if data != bytes(range(64)) * (size // 64):
                torn.append(data)
            file.sync()

    reader = Thread(target=read_and_sync, daemon=True)
    reader.start()
    for _ in range(1_000):
        file.append(bytes(range(64)))
    reader.join()

    assert torn == []


def test_os_descriptor_is_given_back_with_the_last_reference(tmp_path: Path) -> None:
    file = OsDisk().open(str(tmp_path / "file"), create=True)
    fd = file.fileno()

    del file

    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)


def test_os_descriptor_opened_without_write_is_read_only(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"abc")

    file = OsDisk().open(str(tmp_path / "file"), write=False)

    assert fcntl.fcntl(file.fileno(), fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY


def test_os_lock_is_held_against_other_processes(tmp_path: Path) -> None:
    path = str(tmp_path / "lock")
    attempt = [sys.executable, "-c", f"from goqueue.storage.file import OsDisk; OsDisk().lock({path!r})"]

    lock = OsDisk().lock(path)
    refused = subprocess.run(attempt, capture_output=True, text=True, check=False)
    lock.release()
    granted = subprocess.run(attempt, capture_output=True, text=True, check=False)

    assert refused.returncode != 0
    assert "BlockingIOError" in refused.stderr
    assert granted.returncode == 0


def test_os_write_that_stops_short_goes_on_until_the_error(tmp_path: Path) -> None:
    path = str(tmp_path / "file")
    script = f"""
import resource
from goqueue.storage.file import OsDisk
resource.setrlimit(resource.RLIMIT_FSIZE, (10, 10))
try:
    OsDisk().open({path!r}, create=True).append(b"0123", b"456789abcdef")
except OSError as error:
    print(error.errno)
"""

    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)

    assert int(ran.stdout) == errno.EFBIG
    assert (tmp_path / "file").read_bytes() == b"0123456789"


def test_os_write_error_leaves_the_buffer_free_to_grow() -> None:
    full = OsDisk().open("/dev/full")
    buffer = bytearray(b"record")

    with pytest.raises(OSError, match="No space") as caught:
        full.append(buffer)
    buffer += b"more"

    assert caught.value.errno == errno.ENOSPC
    assert buffer == b"recordmore"


def test_os_entries_follow_links_and_show_dangling_ones_as_empty(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"0123456789")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    (tmp_path / "dangling").symlink_to(tmp_path / "missing")

    assert sorted(OsDisk().entries(str(tmp_path))) == [
        Entry("dangling", 0, False),
        Entry("file", 10, False),
        Entry("link", 10, False),
    ]


def test_os_entries_pass_over_files_that_vanish_meanwhile(tmp_path: Path) -> None:
    disk = OsDisk()
    stays = [f"{tmp_path}/stays-{number}" for number in range(20)]
    goes = [f"{tmp_path}/goes-{number}" for number in range(20)]
    for path in stays:
        disk.open(path, create=True).close()

    def come_and_go() -> None:
        for _ in range(50):
            for path in goes:
                disk.open(path, create=True).close()
            for path in goes:
                disk.remove(path)

    deleter = Thread(target=come_and_go, daemon=True)
    deleter.start()
    while deleter.is_alive():
        found = {f"{tmp_path}/{entry.name}" for entry in disk.entries(str(tmp_path))}
        assert found >= set(stays)
    deleter.join()
