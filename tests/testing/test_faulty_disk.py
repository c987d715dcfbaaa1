import errno
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from goqueue.storage.file import File, OsDisk
from goqueue.testing import FaultyDisk, MemoryDisk
from goqueue.testing.faulty_disk import InjectedFault


def planted(content: bytes = b"") -> MemoryDisk:
    memory = MemoryDisk()
    memory.write("/file", content)
    return memory


def test_without_rates_or_requests_nothing_fails() -> None:
    disk = FaultyDisk(planted(), seed=0)
    file = disk.open("/file")

    for number in range(100):
        assert file.append(b"x") == number
        file.sync()

    assert disk.injected == []


def test_short_write_writes_a_beginning_and_then_fails() -> None:
    memory = planted()
    disk = FaultyDisk(memory, seed=1, short_write=1.0)
    file = disk.open("/file")

    for _ in range(100):
        memory.write("/file", b"")
        with pytest.raises(OSError, match=r"No space|Input/output"):
            file.append(b"01234", b"56789")
        assert memory.read("/file") == b"0123456789"[: disk.injected[-1].written]

    assert {fault.written for fault in disk.injected} == set(range(10))
    assert {fault.errno for fault in disk.injected} == {errno.EIO, errno.ENOSPC}


def test_short_pwrite_overwrites_a_beginning() -> None:
    memory = planted(b"----------")
    disk = FaultyDisk(memory, seed=1)
    disk.fail_next("pwrite", errno.EIO, written=3)

    with pytest.raises(OSError, match="Input/output"):
        disk.open("/file").pwrite(2, b"abcdef")

    assert memory.read("/file") == b"--abc-----"


@pytest.mark.parametrize(("rate", "number"), [("write_error", errno.EIO), ("no_space", errno.ENOSPC)])
def test_write_errors_write_nothing(rate: str, number: int) -> None:
    memory = planted()
    disk = FaultyDisk(memory, seed=0, **{rate: 1.0})  # type: ignore[arg-type]

    with pytest.raises(OSError, match="/file") as caught:
        disk.open("/file").append(b"abc")

    assert caught.value.errno == number
    assert memory.read("/file") == b""


def test_read_error_fails_the_read() -> None:
    disk = FaultyDisk(planted(b"abc"), seed=0, read_error=1.0)

    with pytest.raises(OSError, match="Input/output"):
        disk.open("/file").pread(0, 3)
    with pytest.raises(OSError, match="Input/output"):
        disk.entries("/")


def test_bit_flip_damages_one_bit_of_the_read_and_nothing_below() -> None:
    memory = planted(bytes(10))
    disk = FaultyDisk(memory, seed=0, bit_flip=1.0)
    file = disk.open("/file")

    for _ in range(100):
        assert int.from_bytes(file.pread(0, 10), "little") == 1 << (disk.injected[-1].drawn or 0)

    assert file.pread(10, 5) == b""
    assert memory.read("/file") == bytes(10)
    assert len(disk.injected) == 100


def test_name_error_changes_no_name() -> None:
    memory = planted()
    disk = FaultyDisk(memory, seed=0, name_error=1.0)

    for call in (
        lambda: disk.open("/new", create=True),
        lambda: disk.make_directory("/directory"),
        lambda: disk.rename("/file", "/renamed"),
        lambda: disk.remove("/file"),
    ):
        with pytest.raises(OSError, match="Input/output"):
            call()

    assert [entry.name for entry in memory.entries("/")] == ["file"]


def test_failed_sync_loses_the_dirty_data_for_later_syncs_too() -> None:
    memory = planted(b"abc")
    disk = FaultyDisk(memory, seed=0)
    file = disk.open("/file")
    file.append(b"lost")

    disk.fail_next("sync")
    with pytest.raises(OSError, match="Input/output"):
        file.sync()
    file.sync()

    assert file.pread(0, 10) == b"abclost"
    assert memory.crash(keep="everything").read("/file") == b"abc"


def test_sync_that_fails_by_chance_may_have_written_a_part() -> None:
    found = set()
    for seed in range(200):
        memory = planted()
        disk = FaultyDisk(memory, seed=seed, sync_error=1.0)
        file = disk.open("/file")
        file.append(b"abc")
        with pytest.raises(OSError, match="Input/output"):
            file.sync()
        found.add(memory.crash().read("/file"))

    assert found >= {b"", b"a", b"ab", b"abc"}


def test_failed_sync_of_a_directory_leaves_its_names_unsynced() -> None:
    memory = MemoryDisk()
    disk = FaultyDisk(memory, seed=0)
    disk.open("/file", create=True)

    disk.fail_next("sync_directory")
    with pytest.raises(OSError, match="Input/output"):
        disk.sync_directory("/")

    assert memory.crash().paths() == []


def test_failed_sync_over_another_disk_is_just_an_error(tmp_path: Path) -> None:
    disk = FaultyDisk(OsDisk(), seed=0, sync_error=1.0)
    file = disk.open(str(tmp_path / "file"), create=True)
    file.append(b"abc")

    with pytest.raises(OSError, match="Input/output"):
        file.sync()

    assert (tmp_path / "file").read_bytes() == b"abc"


@pytest.mark.parametrize(
    "call",
    [
        lambda disk, file: disk.open("/file"),
        lambda disk, file: disk.entries("/"),
        lambda disk, file: disk.make_directory("/directory"),
        lambda disk, file: disk.rename("/file", "/renamed"),
        lambda disk, file: disk.remove("/file"),
        lambda disk, file: disk.remove_tree("/tree"),
        lambda disk, file: disk.sync_directory("/"),
        lambda disk, file: disk.lock("/lock"),
        lambda disk, file: file.size(),
        lambda disk, file: file.pread(0, 1),
        lambda disk, file: file.pwrite(0, b"x"),
        lambda disk, file: file.append(b"x"),
        lambda disk, file: file.truncate(0),
        lambda disk, file: file.sync(),
    ],
    ids=[
        "open", "entries", "make_directory", "rename", "remove", "remove_tree", "sync_directory", "lock",
        "size", "pread", "pwrite", "append", "truncate", "sync",
    ],
)  # fmt: skip
def test_every_operation_can_be_made_to_fail_once(
    call: Callable[[FaultyDisk, File], object], request: pytest.FixtureRequest
) -> None:
    disk = FaultyDisk(planted(b"abc"), seed=0)
    file = disk.open("/file")
    operation = request.node.callspec.id

    disk.fail_next(operation, errno.EACCES)
    with pytest.raises(PermissionError):
        call(disk, file)
    call(disk, file)

    assert [(fault.operation, fault.kind, fault.errno) for fault in disk.injected] == [
        (operation, "requested", errno.EACCES)
    ]


def test_request_waits_for_its_path_and_skips_as_told() -> None:
    memory = MemoryDisk()
    disk = FaultyDisk(memory, seed=0)
    index, log = disk.open("/0.index", create=True), disk.open("/0.log", create=True)

    disk.fail_next("append", errno.ENOSPC, path_suffix=".log", skip=1, written=2)
    index.append(b"i")
    log.append(b"first")
    index.append(b"i")
    with pytest.raises(OSError, match="No space"):
        log.append(b"second")
    log.append(b"!")

    assert memory.read("/0.log") == b"firstse!"
    assert disk.injected == [InjectedFault("append", "/0.log", "requested", errno.ENOSPC, written=2)]


def test_request_on_a_rename_finds_either_name() -> None:
    disk = FaultyDisk(planted(), seed=0)

    disk.fail_next("rename", path_suffix="target")
    with pytest.raises(OSError, match="Input/output"):
        disk.rename("/file", "/target")
    disk.fail_next("rename", path_suffix="file")
    with pytest.raises(OSError, match="Input/output"):
        disk.rename("/file", "/target")

    disk.rename("/file", "/target")


def test_requests_are_served_in_the_order_they_were_made() -> None:
    disk = FaultyDisk(planted(), seed=0)
    file = disk.open("/file")
    disk.fail_next("sync", errno.EIO)
    disk.fail_next("sync", errno.ENOSPC)

    with pytest.raises(OSError, match="Input/output"):
        file.sync()
    with pytest.raises(OSError, match="No space"):
        file.sync()
    file.sync()


def test_unknown_operation_is_refused() -> None:
    with pytest.raises(ValueError, match="fsync"):
        FaultyDisk(MemoryDisk(), seed=0).fail_next("fsync")  # type: ignore[arg-type]


def test_only_spares_the_other_paths() -> None:
    disk = FaultyDisk(MemoryDisk(), seed=0, write_error=1.0, only=lambda path: path.endswith(".log"))
    index, log = disk.open("/0.index", create=True), disk.open("/0.log", create=True)

    index.append(b"fine")
    with pytest.raises(OSError, match="Input/output"):
        log.append(b"hurt")


def test_heal_ends_chance_and_requests() -> None:
    disk = FaultyDisk(planted(), seed=0, write_error=1.0, sync_error=1.0)
    disk.fail_next("pread")

    disk.heal()
    file = disk.open("/file")
    file.append(b"abc")
    file.sync()

    assert file.pread(0, 3) == b"abc"
    assert disk.injected == []


def test_rates_can_be_changed_under_way() -> None:
    disk = FaultyDisk(planted(), seed=0)
    file = disk.open("/file")
    file.append(b"healthy")

    disk.rates["no_space"] = 1.0
    with pytest.raises(OSError, match="No space"):
        file.append(b"full")


def battered(seed: int) -> list[InjectedFault]:
    disk = FaultyDisk(
        planted(), seed=seed, short_write=0.2, write_error=0.1, no_space=0.1, sync_error=0.3, bit_flip=0.3
    )
    file = disk.open("/file")
    for _ in range(200):
        for call in (lambda: file.append(b"0123456789"), file.sync, lambda: file.pread(0, 50)):
            with suppress(OSError):
                call()
    return disk.injected


def test_faults_repeat_with_the_seed() -> None:
    assert battered(seed=7) == battered(seed=7)
    assert battered(seed=7) != battered(seed=8)


def test_faults_come_about_as_often_as_asked() -> None:
    kinds = Counter(fault.kind for fault in battered(seed=3))

    assert 40 <= kinds["sync_error"] <= 80
    assert 40 <= kinds["bit_flip"] <= 80
    assert 10 <= kinds["no_space"] <= 35
