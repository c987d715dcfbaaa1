"""Random programs on a `MemoryDisk`: it does what the machine's disk does, and its crashes keep their word."""

import tempfile
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from goqueue.storage.file import Disk, File, OsDisk
from goqueue.testing import MemoryDisk, PowerLoss
from goqueue.testing.inode import Keep

DIRECTORIES = ("/a", "/b")
PATHS = ("/a/1", "/a/2", "/b/1")
DATA = st.binary(min_size=1, max_size=40)
Step = tuple[Any, ...]

CHANGES_OF_FILES = st.one_of(
    st.tuples(st.just("append"), st.sampled_from(PATHS), DATA),
    st.tuples(st.just("pwrite"), st.sampled_from(PATHS), st.integers(0, 60), DATA),
    st.tuples(st.just("truncate"), st.sampled_from(PATHS), st.integers(0, 60)),
    st.tuples(st.just("sync"), st.sampled_from(PATHS)),
)
CHANGES_OF_NAMES = st.one_of(
    st.tuples(st.just("create"), st.sampled_from(PATHS)),
    st.tuples(st.just("rename"), st.sampled_from(PATHS[:2]), st.sampled_from(PATHS[:2])),
    st.tuples(st.just("remove"), st.sampled_from(PATHS)),
    st.tuples(st.just("sync_directory"), st.sampled_from(DIRECTORIES)),
)
BEGINNING: list[Step] = [("create", path) for path in PATHS]
PROGRAMS = st.lists(CHANGES_OF_FILES | CHANGES_OF_NAMES, max_size=25).map(lambda program: BEGINNING + program)
KEEPS: st.SearchStrategy[Keep] = st.sampled_from(("nothing", "everything", "prefix", "pages", "random"))


thorough = settings(max_examples=120, deadline=None)


class ModelFile:
    """Every version since the last sync, the durable one first."""

    def __init__(self) -> None:
        self.versions = [b""]

    def put(self, position: int, data: bytes) -> None:
        now = self.versions[-1].ljust(position, b"\0")
        self.versions.append(now[:position] + data + now[position + len(data) :])

    def cut(self, size: int) -> None:
        self.versions.append(self.versions[-1][:size].ljust(size, b"\0"))

    def allows(self, content: bytes) -> bool:
        """Whether each byte stood there in some version, or in a gap, and the size is between those seen."""
        sizes = [len(version) for version in self.versions]
        return min(sizes) <= len(content) <= max(sizes) and all(
            byte in {version[at] if at < len(version) else 0 for version in self.versions}
            for at, byte in enumerate(content)
        )


class ModelDisk:
    """Of each directory all states of its names since the last sync."""

    def __init__(self) -> None:
        self.states: dict[str, list[dict[str, ModelFile]]] = {directory: [{}] for directory in DIRECTORIES}

    def file(self, path: str) -> ModelFile | None:
        return self.states[path[:2]][-1].get(path)

    def change(self, directory: str, changes: dict[str, ModelFile | None]) -> None:
        state = self.states[directory][-1] | changes
        self.states[directory].append({path: file for path, file in state.items() if file is not None})

    def allows(self, directory: str, found: dict[str, bytes]) -> bool:
        """Whether the names are those of one moment, and each leads to a content that its file may have."""
        return any(
            state.keys() == found.keys() and all(state[path].allows(content) for path, content in found.items())
            for state in self.states[directory]
        )


def run(program: list[Step], disk: MemoryDisk, model: ModelDisk) -> None:
    for verb, path, *rest in program:
        if verb == "sync_directory":
            disk.sync_directory(path)
            model.states[path] = model.states[path][-1:]
            continue
        file = model.file(path)
        if verb == "create" and file is None:
            disk.open(path, create=True)
            model.change(path[:2], {path: ModelFile()})
        if file is None:
            continue
        match verb:
            case "append":
                disk.open(path).append(*rest)
                file.put(len(file.versions[-1]), *rest)
            case "pwrite":
                disk.open(path).pwrite(*rest)
                file.put(*rest)
            case "truncate":
                disk.open(path).truncate(*rest)
                file.cut(*rest)
            case "sync":
                disk.open(path).sync()
                file.versions = file.versions[-1:]
            case "remove":
                disk.remove(path)
                model.change(path[:2], {path: None})
            case "rename":
                (target,) = rest
                disk.rename(path, target)
                if target != path:
                    model.change(path[:2], {path: None, target: file})


def empty_disk() -> MemoryDisk:
    disk = MemoryDisk()
    for directory in DIRECTORIES:
        disk.make_directory(directory)
    disk.sync_directory("/")
    return disk


def contents(disk: MemoryDisk) -> dict[str, bytes]:
    return {path: disk.read(path) for path in disk.paths()}


@thorough
@given(PROGRAMS, KEEPS, st.integers(0, 2**32))
def test_crash_leaves_names_of_one_moment_and_bytes_that_were_written(
    program: list[Step], keep: Keep, seed: int
) -> None:
    disk, model = empty_disk(), ModelDisk()
    run(program, disk, model)

    after = disk.crash(seed, keep=keep)

    for directory in DIRECTORIES:
        found = {path: content for path, content in contents(after).items() if path.startswith(directory)}
        assert model.allows(directory, found)


@thorough
@given(PROGRAMS)
def test_everything_is_what_the_program_saw_and_nothing_is_what_it_synced(program: list[Step]) -> None:
    disk, model = empty_disk(), ModelDisk()
    run(program, disk, model)

    everything, nothing = disk.crash(keep="everything"), disk.crash(keep="nothing")

    now = {path: file for states in model.states.values() for path, file in states[-1].items()}
    synced = {path: file for states in model.states.values() for path, file in states[0].items()}
    assert contents(everything) == {path: file.versions[-1] for path, file in now.items()}
    assert contents(nothing) == {path: file.versions[0] for path, file in synced.items()}


@thorough
@given(PROGRAMS, KEEPS, st.integers(0, 2**32))
def test_what_survived_one_crash_survives_the_next(program: list[Step], keep: Keep, seed: int) -> None:
    disk = empty_disk()
    run(program, disk, ModelDisk())

    once = disk.crash(seed, keep=keep)
    twice = once.crash()

    assert contents(once) == contents(twice)
    assert once.used_bytes == twice.used_bytes


JOURNEYS = st.lists(
    st.tuples(st.just("move"), st.sampled_from(PATHS))
    | st.tuples(st.just("create"), st.sampled_from(("/a/noise", "/b/noise")))
    | st.tuples(st.just("sync_directory"), st.sampled_from(DIRECTORIES)),
    max_size=20,
)


@thorough
@given(JOURNEYS, KEEPS, st.integers(0, 2**32))
def test_file_on_a_journey_between_directories_is_always_somewhere(journey: list[Step], keep: Keep, seed: int) -> None:
    disk = empty_disk()
    disk.write("/a/1", b"traveller")
    here: str = "/a/1"
    synced: str | None = here
    for verb, path in journey:
        match verb:
            case "move":
                disk.rename(here, path)
                here, synced = path, synced if path == here else None
            case "create":
                disk.open(path, create=True)
            case _:
                disk.sync_directory(path)
                synced = here if here.startswith(path) else synced

    found = contents(disk.crash(seed, keep=keep))

    assert b"traveller" in found.values()
    if keep == "everything":
        assert [path for path in found if found[path]] == [here]
    if synced is not None:
        assert found[synced] == b"traveller"


@thorough
@given(PROGRAMS)
def test_room_in_use_is_the_length_of_all_files(program: list[Step]) -> None:
    disk = empty_disk()
    run(program, disk, ModelDisk())

    assert disk.used_bytes == sum(len(disk.read(path)) for path in disk.paths())
    assert disk.open_files == 0


@thorough
@given(PROGRAMS, st.integers(0, 400))
def test_power_loss_at_any_step_leaves_a_beginning_of_the_program(program: list[Step], limit: int) -> None:
    whole, cut = empty_disk(), empty_disk()
    run(program, whole, ModelDisk())
    limit += cut.steps
    cut.power_off_after = limit

    if whole.steps <= limit:
        run(program, cut, ModelDisk())
    else:
        with pytest.raises(PowerLoss):
            run(program, cut, ModelDisk())

    assert cut.steps == min(limit, whole.steps)


def test_records_that_were_synced_survive_a_crash_at_every_byte() -> None:
    def workload(disk: MemoryDisk, synced: list[bytes]) -> None:
        log = disk.open("/log", create=True)
        disk.sync_directory("/")
        for number in range(8):
            log.append(b"%d" % number, b"x" * number)
            if number % 3 == 2:
                log.sync()
                synced.append(disk.read("/log"))

    rehearsal = MemoryDisk()
    workload(rehearsal, [])
    for limit in range(rehearsal.steps):
        disk, synced = MemoryDisk(power_off_after=limit), [b""]
        with pytest.raises(PowerLoss):
            workload(disk, synced)
        written = disk.read("/log") if disk.paths() else b""

        for seed in range(20):
            after = disk.crash(seed)
            found = after.read("/log") if after.paths() else b""
            assert found.startswith(synced[-1])
            assert len(found) <= len(written)


NAMES = st.sampled_from(["/f", "/g", "/d", "/d/f", "/d/e", "/d/e/f", "/f/x"])
CALLS = st.lists(
    st.one_of(
        st.tuples(
            st.sampled_from(["entries", "make_directory", "remove", "remove_tree", "sync_directory", "lock"]), NAMES
        ),
        st.tuples(st.just("rename"), NAMES, NAMES),
        st.tuples(st.just("open"), NAMES, st.booleans()),
        st.tuples(st.sampled_from(["size", "sync", "close"]), st.integers(0, 3)),
        st.tuples(st.just("pread"), st.integers(0, 3), st.integers(-1, 50), st.integers(-1, 50)),
        st.tuples(st.just("append"), st.integers(0, 3), DATA, DATA),
        st.tuples(st.just("pwrite"), st.integers(0, 3), st.integers(-1, 50), DATA),
        st.tuples(st.just("truncate"), st.integers(0, 3), st.integers(-1, 50)),
    ),
    max_size=30,
)


class Session:
    """One program on one disk, with a table of open files, each call answered by its result or its errno."""

    def __init__(self, disk: Disk, root: str) -> None:
        self.disk = disk
        self.root = root
        self.files: list[File] = []

    def call(self, verb: str, first: str | int, *rest: Any) -> object:
        try:
            if isinstance(first, str):
                return self._on_disk(verb, self.root + first, *rest)
            return getattr(self.files[first], verb)(*rest) if first < len(self.files) else None
        except OSError as error:
            return error.errno

    def _on_disk(self, verb: str, path: str, *rest: Any) -> object:
        match verb:
            case "open":
                self.files.append(self.disk.open(path, create=rest[0]))
                return "opened"
            case "lock":
                self.disk.lock(path).release()
                return "locked"
            case "entries":
                return sorted(self.disk.entries(path))
            case "rename":
                self.disk.rename(path, self.root + rest[0])
                return "renamed"
            case _:
                call: Callable[[str], object] = getattr(self.disk, verb)
                return call(path)


@thorough
@example([("make_directory", "/d"), ("open", "/d/f", True), ("rename", "/d/f", "/d"), ("entries", "/d")])
@example([("make_directory", "/d/e"), ("rename", "/d", "/d/e"), ("rename", "/d/e", "/d"), ("entries", "/d")])
@example([("make_directory", "/d/e"), ("make_directory", "/g"), ("rename", "/g", "/d"), ("rename", "/g", "/d/e")])
@example([("make_directory", "/d"), ("open", "/f", True), ("rename", "/f", "/d"), ("rename", "/d", "/f")])
@given(CALLS)
def test_memory_disk_answers_every_call_as_the_machine_does(calls: list[Step]) -> None:
    with tempfile.TemporaryDirectory() as root:
        memory = MemoryDisk()
        memory.make_directory(root)
        real, fake = Session(OsDisk(), root), Session(memory, root)

        for call in calls:
            assert fake.call(*call) == real.call(*call), call
