"""What may be wrong with a data directory: each is told in one sentence that names the path, and nothing is changed."""

import json
import os
import signal
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import pytest

from goqueue.errors import (
    Conflict,
    DataDirectoryError,
    DirectoryLocked,
    DirectoryUnusable,
    ForeignFile,
    InvalidTopic,
    StorageError,
    StorageFailed,
    StorageFull,
    UnsupportedFormat,
)
from goqueue.record import kernel
from goqueue.storage import compaction
from goqueue.storage.checkpoint import SLOT_BYTES, SLOT_STRIDE_BYTES
from goqueue.storage.config import LogConfig
from goqueue.storage.directory import DataDirectory
from goqueue.storage.file import Disk, OsDisk
from goqueue.storage.log import Log
from goqueue.testing import FaultyDisk, MemoryDisk
from tests.storage.logs import NOW_NS, append, fill, values_of

CONFIG = LogConfig(segment_bytes=2_000)
LOG = "topics/orders/0/log"
ACTIVE = f"{LOG}/{42:020d}.log"
CHECKPOINT = f"{LOG}/checkpoint"
LEADER_EPOCHS = f"{LOG}/leader-epochs"
COMPACTION = f"{LOG}/compaction"


class Place(NamedTuple):
    """A data directory and the disk it is on."""

    disk: Disk
    root: str

    def open(self) -> Log:
        """The log of the one partition; its lock is taken and let go, as at a restart."""
        DataDirectory.open(self.disk, self.root).close()
        return Log.open(self.disk, f"{self.root}/{LOG}", CONFIG)

    def fill(self) -> list[bytes]:
        """Make a data directory with fifty records in four segments, all of it durable."""
        log = self.open()
        values = fill(log, 50)
        log.flush()
        log.epochs.assign(1, 0)
        log.close()
        compaction.store_state(self.disk, f"{self.root}/{LOG}", compaction.CompactionState(0))
        return values

    def path(self, name: str) -> str:
        return f"{self.root}/{name}" if name else self.root

    def read(self, name: str) -> bytes:
        if isinstance(self.disk, OsDisk):
            return Path(self.path(name)).read_bytes()  # needs no permission to write
        file = self.disk.open(self.path(name))
        return file.pread(0, file.size())

    def write(self, name: str, content: bytes) -> None:
        self.disk.make_directory(os.path.dirname(self.path(name)))
        file = self.disk.open(self.path(name), create=True)
        file.truncate(0)
        file.append(content)

    def contents(self, name: str = "") -> dict[str, bytes | None]:
        """Everything below the name: files with their bytes, directories with None."""
        found: dict[str, bytes | None] = {}
        for entry in self.disk.entries(self.path(name)):
            below = f"{name}/{entry.name}" if name else entry.name
            found[below] = None if entry.is_directory else self.read(below)
            if entry.is_directory:
                found |= self.contents(below)
        return found

    def logs(self) -> dict[str, bytes | None]:
        """The records only: indexes are hints, and may be on their way to be rebuilt."""
        return {name: content for name, content in self.contents(LOG).items() if name.endswith(".log")}


@pytest.fixture(params=["os", "memory"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if request.param == "os":
        return Place(OsDisk(), f"{tmp_path}/data")
    return Place(MemoryDisk(), "/data")


def check_refused(place: Place, error: type[DataDirectoryError], name: str, *, reason: str = "") -> None:
    """Opening the log raises this error, which names the path; nothing changes, and no lock is left behind."""
    before = place.contents()

    for _ in range(2):
        with pytest.raises(error) as caught:
            place.open()
        assert type(caught.value) is error
        assert caught.value.path == place.path(name)
        assert place.path(name) in str(caught.value)
        assert reason in str(caught.value)
        assert not caught.value.retryable

    assert place.contents() == before


def test_a_missing_directory_is_made_with_all_above_it(place: Place) -> None:
    deeper = place._replace(root=f"{place.root}/far/below")

    assert len(deeper.fill()) == 50

    assert deeper.read("format") == b"goqueue-data 2\n"


def test_a_directory_is_the_same_after_it_was_closed_and_opened(place: Place) -> None:
    values = place.fill()
    before = place.contents()

    log = place.open()

    assert values_of(log) == values
    log.close()
    assert place.contents().keys() == before.keys()


# --- a file where a directory should be, and the other way round ---------------------------------------------------


def test_a_file_is_no_data_directory(place: Place) -> None:
    parent = place._replace(root=os.path.dirname(place.root))
    parent.write("data", b"not a directory")
    before = parent.read("data")

    with pytest.raises(DirectoryUnusable, match=place.root):
        DataDirectory.open(place.disk, place.root)

    assert parent.read("data") == before


def test_a_data_directory_below_a_file_is_refused(place: Place) -> None:
    place.write("file", b"not a directory")

    with pytest.raises(DirectoryUnusable, match=place.path("file")):
        DataDirectory.open(place.disk, place.path("file/data"))

    assert place.contents() == {"file": b"not a directory"}


@pytest.mark.parametrize("name", ["topics", "topics/orders", "topics/orders/0", LOG])
def test_a_file_in_the_place_of_a_directory_is_refused(place: Place, name: str) -> None:
    DataDirectory.open(place.disk, place.root).close()
    place.write(name, b"not a directory")
    before = place.contents()

    with pytest.raises(DirectoryUnusable, match=place.path(name)):
        place.open()

    assert place.contents() == before


@pytest.mark.parametrize("name", ["format", "lock"])
def test_a_directory_in_the_place_of_a_file_is_refused(place: Place, name: str) -> None:
    place.write("lock" if name == "format" else "format", b"goqueue-data 1\n")
    place.disk.make_directory(place.path(name))

    check_refused(place, DirectoryUnusable, name)


# --- strangers -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["notes.txt", ".hidden", "topics.bak", "format.old"])
def test_a_foreign_file_in_the_data_directory_is_refused(place: Place, name: str) -> None:
    place.fill()
    place.write(name, b"mine")

    check_refused(place, ForeignFile, name)


def test_a_directory_of_something_else_is_not_taken_over(place: Place) -> None:
    place.write("var/lib/postgresql/base", b"precious")

    check_refused(place, ForeignFile, "var")


@pytest.mark.parametrize(
    "name",
    [
        "notes.txt",
        f"{0:019d}.log",
        f"{0:020d}.log.bak",
        f"{0:020d}.txt",
        "checkpoint.old",
        f"{0:020d}.log.new",
        "-1.log",
    ],
)
def test_a_foreign_file_in_a_log_is_refused(place: Place, name: str) -> None:
    values = place.fill()
    place.write(f"{LOG}/{name}", b"mine")

    check_refused(place, ForeignFile, f"{LOG}/{name}")

    place.disk.remove(place.path(f"{LOG}/{name}"))
    assert values_of(place.open()) == values


@pytest.mark.parametrize("name", ["backup", f"{99:020d}.log", "lost+found"])
def test_a_directory_in_a_log_is_refused(place: Place, name: str) -> None:
    place.fill()
    place.write(f"{LOG}/{name}/file", b"mine")

    check_refused(place, ForeignFile, f"{LOG}/{name}")


def test_what_the_file_system_puts_into_a_mount_point_is_tolerated(place: Place) -> None:
    place.disk.make_directory(place.path("lost+found"))

    values = place.fill()

    assert values_of(place.open()) == values


@pytest.mark.parametrize("name", ["ports.json", "ports.json.new"])
def test_the_file_with_the_ports_of_the_server_is_at_home(place: Place, name: str) -> None:
    values = place.fill()
    place.write(name, b"{}")

    assert values_of(place.open()) == values


def test_a_half_written_format_file_is_written_anew(place: Place) -> None:
    place.write("format.new", b"goqueue-d")

    place.open()

    assert place.read("format") == b"goqueue-data 2\n"
    assert "format.new" not in place.contents()


# --- newer formats -------------------------------------------------------------------------------------------------


def with_crc(data: bytes, position: int, *, crc: int) -> bytes:
    return data[:position] + crc.to_bytes(4, "big") + data[position + 4 :]


def newer_slot(slot: bytes) -> bytes:
    """A slot of the checkpoint that says version 2 and is whole."""
    slot = slot[:4] + struct.pack(">H", 2) + slot[6:]
    return with_crc(slot, SLOT_BYTES - 4, crc=kernel.crc32c(slot[:-4]))


def newer_small_file(data: bytes) -> bytes:
    """A small file that says version 2 and is whole."""
    data = data[:4] + struct.pack(">H", 2) + data[6:12] + bytes(4) + data[16:]
    return with_crc(data, 12, crc=kernel.crc32c(data))


def newer_record(offset: int) -> bytes:
    """A record that says version 2 and is whole."""
    record = kernel.encode([b"from the future"])
    kernel.stamp(record, first_offset=offset, timestamp=NOW_NS * 2)
    return newer(record)


def newer(record: bytearray) -> bytes:
    record[2] = 2
    return with_crc(bytes(record), 4, crc=kernel.crc32c(record[8:], kernel.crc32c(record[:4])))


@pytest.mark.parametrize(
    "content",
    [b"goqueue-data 3\n", b"goqueue-data 10", b"goqueue-data one\n", b"kafka 1\n", b"", b"\0" * 15, b"\xff" * 99],
)
def test_a_data_format_that_is_not_ours_is_refused(place: Place, content: bytes) -> None:
    values = place.fill()
    ours = place.read("format")
    place.write("format", content)

    check_refused(place, UnsupportedFormat, "format", reason="data format 10" if b"10" in content else "")

    place.write("format", ours)
    assert values_of(place.open()) == values


def test_a_newer_data_format_is_told_by_its_number(place: Place) -> None:
    place.fill()
    place.write("format", b"goqueue-data 3\n")

    check_refused(place, UnsupportedFormat, "format", reason="data format 3; this GoQueue knows 1 and 2")


def test_an_older_data_format_is_opened_as_it_is_until_its_owner_raises_it(place: Place) -> None:
    values = place.fill()
    place.write("format", b"goqueue-data 1\n")
    data = DataDirectory.open(place.disk, place.root)
    assert (data.format, place.read("format")) == (1, b"goqueue-data 1\n")

    data.set_format()

    assert (data.format, place.read("format")) == (2, b"goqueue-data 2\n")
    data.close()
    assert values_of(place.open()) == values


@pytest.mark.parametrize("position", [0, SLOT_STRIDE_BYTES])
def test_a_newer_checkpoint_is_refused(place: Place, position: int) -> None:
    values = place.fill()
    ours = place.read(CHECKPOINT)
    end = position + SLOT_BYTES
    place.write(CHECKPOINT, ours[:position] + newer_slot(ours[position:end]) + ours[end:])

    check_refused(place, UnsupportedFormat, CHECKPOINT, reason="version 2; this GoQueue knows 1")

    place.write(CHECKPOINT, ours)
    assert values_of(place.open()) == values


@pytest.mark.parametrize("name", [LEADER_EPOCHS, COMPACTION])
@pytest.mark.parametrize("checkpoint", ["there", "missing"])
def test_a_newer_small_file_is_refused(place: Place, name: str, checkpoint: str) -> None:
    values = place.fill()
    ours = place.read(name)
    place.write(name, newer_small_file(ours))
    if checkpoint == "missing":
        place.disk.remove(place.path(CHECKPOINT))

    check_refused(place, UnsupportedFormat, name, reason="version 2; this GoQueue knows 1")

    place.write(name, ours)
    assert values_of(place.open()) == values


def test_newer_records_behind_the_checkpoint_are_refused_and_not_cut_off(place: Place) -> None:
    values = place.fill()
    ours = place.read(ACTIVE)
    place.write(ACTIVE, ours + newer_record(50) + newer_record(51))

    check_refused(place, UnsupportedFormat, ACTIVE, reason="records of version 2; this GoQueue knows 1")

    place.write(ACTIVE, ours)
    assert values_of(place.open()) == values


def test_newer_records_before_the_checkpoint_are_refused(place: Place) -> None:
    place.fill()
    ours = place.read(ACTIVE)
    place.write(ACTIVE, ours[:-134] + newer(bytearray(ours[-134:])))

    check_refused(place, UnsupportedFormat, ACTIVE, reason="records of version 2")


def test_newer_records_are_refused_when_the_checkpoint_is_lost(place: Place) -> None:
    values = place.fill()
    ours = place.read(ACTIVE)
    place.write(ACTIVE, ours + newer_record(50))
    place.disk.remove(place.path(CHECKPOINT))
    before = place.logs()

    with pytest.raises(UnsupportedFormat, match="records of version 2"):
        place.open()

    assert place.logs() == before
    place.write(ACTIVE, ours)
    assert values_of(place.open()) == values


def test_a_torn_newer_record_is_a_torn_record(place: Place) -> None:
    values = place.fill()
    place.write(ACTIVE, place.read(ACTIVE) + newer_record(50)[:-1])

    assert values_of(place.open()) == values


# --- one process at a time -----------------------------------------------------------------------------------------

HOLDER = """
import sys
from goqueue.storage.directory import DataDirectory
from goqueue.storage.file import OsDisk

held = DataDirectory.open(OsDisk(), sys.argv[1])
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def holder(tmp_path: Path) -> Iterator["subprocess.Popen[str]"]:
    """Another process that has the data directory open until its stdin is closed."""
    command = [sys.executable, "-c", HOLDER, f"{tmp_path}/data"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def test_the_same_process_gets_the_directory_once(place: Place) -> None:
    directory = DataDirectory.open(place.disk, place.root)
    before = place.contents()

    with pytest.raises(DirectoryLocked, match=place.root):
        DataDirectory.open(place.disk, place.root)

    assert place.contents() == before
    directory.close()
    DataDirectory.open(place.disk, place.root).close()


def test_a_second_process_is_refused(holder: "subprocess.Popen[str]", tmp_path: Path) -> None:
    place = Place(OsDisk(), f"{tmp_path}/data")

    check_refused(place, DirectoryLocked, "", reason="another process")


def test_a_process_that_ends_gives_the_directory_back(holder: "subprocess.Popen[str]", tmp_path: Path) -> None:
    holder.communicate()

    assert len(Place(OsDisk(), f"{tmp_path}/data").fill()) == 50


def test_a_process_that_is_killed_gives_the_directory_back(holder: "subprocess.Popen[str]", tmp_path: Path) -> None:
    holder.send_signal(signal.SIGKILL)
    assert holder.wait() == -signal.SIGKILL

    assert len(Place(OsDisk(), f"{tmp_path}/data").fill()) == 50


# --- missing permissions -------------------------------------------------------------------------------------------

NOBODY = 65534
# Everything is imported before the privileges go: the interpreter may stand where nobody may look.
UNPRIVILEGED = f"""
import json, os, sys
from goqueue.errors import GoQueueError
from goqueue.storage.config import LogConfig
from goqueue.storage.directory import DataDirectory
from goqueue.storage.file import OsDisk
from tests.storage.logs import append, fill, values_of

if os.geteuid() == 0:
    os.setgroups([])
    os.setgid({NOBODY})
    os.setuid({NOBODY})
said = {{}}
try:
    log = DataDirectory.open(OsDisk(), sys.argv[1]).open_log("orders", 0, LogConfig(segment_bytes=2_000))
    said["count"] = len(values_of(log))
    fill(log, 50)
except GoQueueError as error:
    said |= {{"error": type(error).__name__, "path": error.path, "message": str(error)}}
print(json.dumps(said))
"""


def open_unprivileged(root: str) -> dict[str, str | int]:
    """Open the log, read it and append fifty records, as a user who is not root; what came of it."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(["src", "."])}
    ran = subprocess.run(
        [sys.executable, "-c", UNPRIVILEGED, root],
        env=environment,
        cwd=Path(__file__).parents[2],
        capture_output=True,
        check=True,
        text=True,
    )
    said: dict[str, str | int] = json.loads(ran.stdout)
    return said


@pytest.fixture
def shared() -> Iterator[Place]:
    """A data directory that other users can reach; pytest's own temporary directories are closed to them."""
    with TemporaryDirectory() as parent:
        os.chmod(parent, 0o755)
        yield Place(OsDisk(), f"{parent}/data")
        for directory, _, _ in os.walk(parent):  # a mode that keeps its owner out keeps rmtree out too
            os.chmod(directory, 0o755)


def give_away(root: str, *, files: int, directories: int) -> None:
    """Let everything below the root belong to nobody, with these modes."""
    for directory, _, names in os.walk(root, topdown=False):
        for name in names:
            os.chmod(f"{directory}/{name}", files)
        os.chmod(directory, directories)
        if os.geteuid() == 0:
            for name in names:
                os.chown(f"{directory}/{name}", NOBODY, NOBODY)
            os.chown(directory, NOBODY, NOBODY)


def check_unprivileged(place: Place, error: str, name: str, *, reason: str = "Permission denied") -> None:
    before = place.contents()

    said = open_unprivileged(place.root)

    assert (said.get("error"), said.get("path")) == (error, place.path(name)), said
    assert place.path(name) in str(said["message"])
    assert reason in str(said["message"])
    assert place.contents() == before


def test_a_directory_that_may_not_be_made_is_refused(shared: Place) -> None:
    os.chmod(os.path.dirname(shared.root), 0o555)

    said = open_unprivileged(shared.root)

    assert (said["error"], said["path"]) == ("DirectoryUnusable", shared.root)
    assert not os.path.exists(shared.root)


def test_an_empty_directory_that_may_not_be_written_is_refused(shared: Place) -> None:
    os.mkdir(shared.root, 0o555)

    check_unprivileged(shared, "DirectoryUnusable", "lock")


def test_a_directory_that_may_not_be_listed_is_refused(shared: Place) -> None:
    shared.fill()
    give_away(shared.root, files=0o644, directories=0o755)
    os.chmod(shared.root, 0o300)
    if os.geteuid():
        assert open_unprivileged(shared.root)["path"] == shared.root
    else:
        check_unprivileged(shared, "DirectoryUnusable", "")


def test_data_of_somebody_else_are_refused(shared: Place) -> None:
    shared.fill()
    give_away(shared.root, files=0o444, directories=0o555)

    check_unprivileged(shared, "DirectoryUnusable", "lock")


@pytest.mark.parametrize("name", [CHECKPOINT, ACTIVE, ACTIVE.replace(".log", ".index")])
def test_a_file_of_a_log_that_may_not_be_written_is_refused(shared: Place, name: str) -> None:
    shared.fill()
    give_away(shared.root, files=0o644, directories=0o755)
    os.chmod(shared.path(name), 0o444)

    check_unprivileged(shared, "DirectoryUnusable", name)


@pytest.mark.parametrize("name", ["topics", "topics/orders", "topics/orders/0"])
def test_a_log_that_may_not_be_begun_is_refused(shared: Place, name: str) -> None:
    DataDirectory.open(shared.disk, shared.root).close()
    os.makedirs(shared.path(name))
    give_away(shared.root, files=0o644, directories=0o755)
    os.chmod(shared.path(name), 0o555)
    before = shared.contents()

    said = open_unprivileged(shared.root)

    assert said["error"] == "StorageFailed"
    assert f"{shared.path(name)}/" in str(said["message"])
    assert shared.contents() == before


def test_a_log_whose_directory_may_not_be_written_can_be_read_and_says_what_it_cannot_do(shared: Place) -> None:
    values = shared.fill()
    give_away(shared.root, files=0o644, directories=0o755)
    os.chmod(shared.path(LOG), 0o555)

    said = open_unprivileged(shared.root)

    assert said["count"] == len(values)
    assert (said["error"], "Permission denied" in str(said["message"])) == ("StorageFailed", True)
    assert shared.path(LOG) in str(said["message"])
    assert values_of(shared.open())[:50] == values


# --- a real small disk ---------------------------------------------------------------------------------------------


def mount(path: str, options: str) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", path], check=True, capture_output=True)


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[str]:
    """A file system of 256 KiB and sixty-four names."""
    path = tmp_path / "mounted"
    path.mkdir()
    try:
        mount(str(path), "size=256k,nr_inodes=64")
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("may not mount a file system here")
    yield str(path)
    subprocess.run(["umount", "--lazy", str(path)], check=True)


def test_a_read_only_file_system_is_refused(mounted: str) -> None:
    place = Place(OsDisk(), f"{mounted}/data")
    values = place.fill()
    mount(mounted, "remount,ro")
    before = {path.name: path.read_bytes() for path in Path(mounted).rglob("*") if path.is_file()}

    with pytest.raises(DirectoryUnusable, match=f"{place.root}/lock: Read-only file system"):
        place.open()

    assert {path.name: path.read_bytes() for path in Path(mounted).rglob("*") if path.is_file()} == before
    mount(mounted, "remount,rw")
    assert values_of(place.open()) == values


class SmallDisk(NamedTuple):
    """A place whose room a test can take away and give back."""

    place: Place
    leave: Callable[[int], None]  # how many more bytes fit
    free: Callable[[], None]


def fill_up(mounted: str, free_bytes: int) -> None:
    """Let another file take all the room but this much, counted in pages."""
    with open(f"{mounted}/other", "wb", buffering=0) as other:
        try:
            while other.write(bytes(4096)):
                pass
        except OSError:
            other.truncate(other.tell() - -(-free_bytes // 4096) * 4096)


@pytest.fixture(params=["tmpfs", "memory"])
def small(request: pytest.FixtureRequest) -> SmallDisk:
    if request.param == "tmpfs":
        mounted: str = request.getfixturevalue("mounted")
        place = Place(OsDisk(), f"{mounted}/data")
        return SmallDisk(place, lambda size: fill_up(mounted, size), lambda: os.unlink(f"{mounted}/other"))
    disk = MemoryDisk()

    def leave(size: int | None) -> None:
        disk.capacity_bytes = None if size is None else disk.used_bytes + size

    return SmallDisk(Place(disk, "/data"), leave, lambda: leave(None))


def check_whole(place: Place, log: Log, values: list[bytes]) -> None:
    """The log holds these values, now and after it was closed and opened, and takes more."""
    assert values_of(log) == values
    log.close()
    log = place.open()
    assert values_of(log) == values
    assert not log.damage
    assert append(log, [b"next"]).first_offset == len(values)
    log.close()


def test_a_new_data_directory_on_a_full_disk_is_refused_until_there_is_room(small: SmallDisk) -> None:
    small.place.disk.make_directory(small.place.root)
    small.leave(0)

    for _ in range(2):
        with pytest.raises(StorageFull, match=small.place.root) as caught:
            small.place.open()
        assert caught.value.retryable

    assert not any(small.place.contents().values())
    small.free()
    assert len(small.place.fill()) == 50


def test_a_new_log_on_a_full_disk_is_refused_until_there_is_room(small: SmallDisk) -> None:
    DataDirectory.open(small.place.disk, small.place.root).close()
    small.leave(0)

    for _ in range(2):
        log = small.place.open()
        for _ in range(2):
            with pytest.raises(StorageFull, match=small.place.path("topics")):
                fill(log, 1)
        log.look_for_room()
        assert log.refusal is not None

    small.free()
    log.look_for_room()
    assert log.refusal is None
    check_whole(small.place, log, fill(log, 50))


def test_a_full_disk_is_opened_and_read(small: SmallDisk) -> None:
    values = small.place.fill()
    small.leave(0)
    before = small.place.contents()

    log = small.place.open()

    assert values_of(log) == values
    assert small.place.contents() == before


def test_a_log_that_was_not_closed_opens_on_a_full_disk(small: SmallDisk) -> None:
    log = small.place.open()
    values = fill(log, 50)
    small.leave(0)

    log = small.place.open()

    assert values_of(log) == values
    assert log.durable_offset == 50
    small.free()
    check_whole(small.place, log, values)


@pytest.mark.parametrize("room", [0, 1, 4096, 5000])
def test_a_batch_that_does_not_fit_leaves_nothing_behind(small: SmallDisk, room: int) -> None:
    values = small.place.fill()
    log = small.place.open()
    size = len(small.place.read(ACTIVE))
    small.leave(room)

    for _ in range(3):
        with pytest.raises(StorageFull, match=small.place.root) as caught:
            append(log, [b"x" * 400] * 30)
        assert caught.value.retryable
        assert log.failure is None
        assert values_of(log) == values
        assert log.next_offset == 50
        log.flush()

    assert len(small.place.read(ACTIVE)) == size
    small.free()
    assert append(log, [b"fits"] * 3).first_offset == 50
    check_whole(small.place, log, [*values, *[b"fits"] * 3])


def test_the_very_batch_that_did_not_fit_may_be_sent_again(small: SmallDisk) -> None:
    values = small.place.fill()
    log = small.place.open()
    batch = kernel.encode([b"again" * 100] * 30)
    small.leave(0)
    with pytest.raises(StorageFull):
        log.append(batch, now_ns=NOW_NS)

    small.free()
    log.append(batch, now_ns=NOW_NS)

    check_whole(small.place, log, [*values, *[b"again" * 100] * 30])


def test_a_log_is_filled_to_the_last_record_that_fits(small: SmallDisk) -> None:
    log = small.place.open()
    small.leave(40_000)
    values: list[bytes] = []
    refused = 0
    while refused < 20:
        try:
            values += fill(log, 7, batch=7, size=200)
            log.flush()
        except StorageFull:
            refused += 1

    assert len(values) > 20
    assert log.durable_offset == len(values)
    small.free()
    values += fill(log, 100, batch=10)
    check_whole(small.place, log, values)


def test_a_segment_that_finds_no_name_is_rolled_later(mounted: str) -> None:
    place = Place(OsDisk(), f"{mounted}/data")
    values = place.fill()
    log = place.open()
    taken = []
    try:
        for number in range(64):
            taken.append(f"{mounted}/{number}")
            open(taken[-1], "w").close()
    except OSError:
        taken.pop()
    with pytest.raises(StorageFull, match=place.path(LOG)):
        values += fill(log, 20)
    values = values_of(log)

    for path in taken:
        os.unlink(path)
    values += fill(log, 20)

    check_whole(place, log, values)


def test_a_segment_that_cannot_be_begun_for_want_of_room_is_rolled_later() -> None:
    disk = FaultyDisk(MemoryDisk(), seed=0)
    place = Place(disk, "/data")
    values = place.fill()
    log = place.open()
    disk.fail_next("open", 28, path_suffix=".log")
    with pytest.raises(StorageFull, match=place.path(LOG)):
        values += fill(log, 20)
    values = values_of(log)

    values += fill(log, 20)

    check_whole(place, log, values)


def test_an_index_that_finds_no_room_is_not_missed(small: SmallDisk) -> None:
    log = small.place.open()
    values = fill(log, 5)
    log.flush()
    small.leave(8 * 4096)
    for _ in range(6):  # each batch fills a segment of its own, whose index is still to be written
        values += fill(log, 30, batch=30)
    small.leave(0)

    log.flush()

    assert log.durable_offset == len(values)
    for offset in range(len(values)):
        assert log.read(offset, max_bytes=1).next_offset == offset + 1
    with pytest.raises(StorageFull):
        append(log, [b"x" * 5_000])
    small.free()
    check_whole(small.place, log, values)


def test_a_checkpoint_never_lacks_room(small: SmallDisk) -> None:
    log = small.place.open()
    values = fill(log, 5)
    small.leave(0)

    for count in range(3):
        log.flush()
        assert log.durable_offset == len(values), count
        small.free()
        values += fill(log, 5)
        small.leave(0)
    log.flush()

    small.free()
    check_whole(small.place, log, values)


def test_every_error_of_a_data_directory_says_that_it_is_one_of_the_storage() -> None:
    for error in (DirectoryUnusable, DirectoryLocked, ForeignFile, UnsupportedFormat):
        assert issubclass(error, StorageError)
        assert str(error("/data", "a reason")) == "/data: a reason"


# --- logs of one process -------------------------------------------------------------------------------------------


def test_a_log_is_opened_once_at_a_time(disk: MemoryDisk) -> None:
    data = DataDirectory.open(disk, "/data")
    log = data.open_log("orders", 0)

    with pytest.raises(DirectoryLocked, match="/data/topics/orders/0/log: this process has the log open already"):
        data.open_log("orders", 0)
    log.close()

    assert data.open_log("orders", 0).next_offset == 0


def test_closing_the_directory_closes_its_logs(disk: MemoryDisk) -> None:
    data = DataDirectory.open(disk, "/data")
    log = data.open_log("orders", 0)
    fill(log, 3)

    data.close()

    assert log.is_closed
    with pytest.raises(Conflict, match="the data directory /data is closed"):
        data.open_log("orders", 0)
    assert DataDirectory.open(disk, "/data").open_log("orders", 0).durable_offset == 3


@pytest.mark.parametrize("name", ["", ".", "..", "../../escaped", "a/b", "a\n", "a\0", "x" * 250, "größe"])
def test_a_topic_cannot_have_a_name_that_is_no_name(disk: MemoryDisk, name: str) -> None:
    data = DataDirectory.open(disk, "/data")

    with pytest.raises(InvalidTopic):
        data.open_log(name, 0)

    assert {path for path in disk.paths() if "topics" in path} == set()


# --- many logs -----------------------------------------------------------------------------------------------------


def test_internal_topics_have_logs_like_others(disk: MemoryDisk) -> None:
    data = DataDirectory.open(disk, "/data")

    assert data.open_log("__groups", 0).directory == f"{data.topics_path}/__groups/0/log"


def test_all_logs_of_a_directory_share_one_limit_of_open_files(disk: MemoryDisk) -> None:
    data = DataDirectory.open(disk, "/data", open_segments_max=4)
    for number in range(20):
        log = data.open_log("orders", number)
        fill(log, 3)
        log.flush()
    assert disk.open_files <= 3 * 4
    data.close()

    data = DataDirectory.open(disk, "/data", open_segments_max=4)
    logs = [data.open_log("orders", number) for number in range(20)]

    assert disk.open_files <= 3 * 4
    assert all(len(values_of(log)) == 3 for log in logs)


def test_all_logs_are_closed_even_if_one_cannot_be() -> None:
    memory = MemoryDisk()
    disk = FaultyDisk(memory, seed=0)
    data = DataDirectory.open(disk, "/data")
    logs = [data.open_log("orders", number) for number in range(3)]
    for log in logs:
        fill(log, 3)
    disk.fail_next("sync", path_suffix="orders/0/log/00000000000000000000.log")

    with pytest.raises(StorageFailed, match="orders/0/log"):
        data.close()

    assert all(log.is_closed for log in logs)
    after = DataDirectory.open(memory.crash(), "/data")
    assert [len(values_of(after.open_log("orders", number))) for number in range(3)] == [0, 3, 3]


def test_an_abandoned_log_is_not_closed_with_the_others(disk: MemoryDisk) -> None:
    data = DataDirectory.open(disk, "/data")
    log = data.open_log("orders", 0)
    fill(log, 3)
    log.abandon()
    data.forget(log)
    again = data.open_log("orders", 0)
    data.forget(log)  # which is not the one that is open there now

    with pytest.raises(DirectoryLocked, match="open already"):
        data.open_log("orders", 0)
    data.close()

    assert again.is_closed
