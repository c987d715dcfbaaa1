"""A disk in memory that forgets, in a crash, whatever it was allowed to forget.

To a program it is a Unix file system: the same results, the same errors with the same numbers, and an
open file that outlives its name. To a test it is a machine whose plug can be pulled. `steps` counts
every byte written and every other operation that changes something (create, make a directory, rename,
remove, truncate, sync, sync a directory). With `power_off_after=n` the first n steps happen and the next one
never does: the write under way stops at that byte, the sync under way has no effect, and `PowerLoss` is raised
there and by every operation after it. So a test runs its workload once to learn the number of steps, then
once for each step, and recovers each time on what `crash` returns:

    for n in range(steps):
        disk = MemoryDisk(power_off_after=n)
        with pytest.raises(PowerLoss):
            workload(disk)
        recover(disk.crash(seed=n))

What may survive is told in `inode.py`. One lock covers all files, so a thread may read and sync while
the owner of a log appends.
"""

import os
import posixpath
from errno import EBADF, EEXIST, EINVAL, EISDIR, ENODEV, ENOENT, ENOSPC, ENOTDIR, ENOTEMPTY, ENOTSUP, EWOULDBLOCK
from random import Random
from threading import RLock

from goqueue.record.header import Buffer
from goqueue.storage.file import Entry, Space
from goqueue.testing.inode import DirectoryNode, FileNode, Keep, Node, survivor

UNLIMITED_BYTES = 2**40


class PowerLoss(BaseException):
    """The machine went dark. No handler of the program may outlive that, so it is not an `Exception`."""

    def __init__(self, steps: int) -> None:
        super().__init__(f"the power went off after {steps} steps")
        self.steps = steps


def _error(number: int, path: str, other: str | None = None) -> OSError:
    return OSError(number, os.strerror(number), path, None, other)


class _Machine:
    """What all files of a disk share: the power, the room, and one lock."""

    def __init__(self, *, capacity_bytes: int | None, power_off_after: int | None) -> None:
        self.steps = 0
        self.power_off_after = power_off_after
        self.capacity_bytes = capacity_bytes
        self.used_bytes = 0
        self.open_files = 0
        self._mutex = RLock()  # re-entrant: the collector may close a file while its thread is in here
        self._power_is_off = False
        self._crashed = False

    def _check(self, path: str) -> None:
        """Raise if the machine is gone."""
        if self._crashed:
            raise _error(ENODEV, path)
        if self._power_is_off:
            raise PowerLoss(self.steps)

    def _spend(self, steps: int) -> int:
        """How many of these steps happen. If not all, the power is off now."""
        granted = steps
        if self.power_off_after is not None:
            granted = max(0, min(steps, self.power_off_after - self.steps))
        self.steps += granted
        self._power_is_off = granted < steps
        return granted

    def _step(self, path: str) -> None:
        """Take one step, or raise `PowerLoss`."""
        self._spend(1)
        self._check(path)

    def _room(self) -> int | None:
        """How many more bytes fit; None is no limit."""
        return None if self.capacity_bytes is None else max(0, self.capacity_bytes - self.used_bytes)

    def _free(self, node: FileNode) -> None:
        """Free the space of a file that neither a name nor a handle leads to."""
        if node.names == node.handles == 0:
            self.used_bytes -= len(node.content)


class MemoryFile:
    """An open file of a `MemoryDisk`."""

    def __init__(self, machine: _Machine, node: FileNode, path: str, *, write: bool = True) -> None:
        self.path = path
        self._write_allowed = write
        self._machine = machine
        self._node = node
        self._closed = False
        node.handles += 1
        machine.open_files += 1

    def __del__(self) -> None:
        self.close()

    def size(self) -> int:
        with self._machine._mutex:
            return len(self._live().content)

    def pread(self, position: int, size: int) -> bytes:
        with self._machine._mutex:
            content = self._live().content
            if position < 0 or size < 0:
                raise _error(EINVAL, self.path)
            return bytes(memoryview(content)[position : position + size])

    def pwrite(self, position: int, data: Buffer) -> None:
        with self._machine._mutex:
            self._write(position, bytes(data))

    def append(self, *chunks: Buffer) -> int:
        with self._machine._mutex:
            position = len(self._writable().content)
            self._write(position, b"".join(chunks))
            return position

    def truncate(self, size: int) -> None:
        with self._machine._mutex:
            node = self._writable()
            if size < 0:
                raise _error(EINVAL, self.path)
            growth = size - len(node.content)
            room = self._machine._room()
            if room is not None and growth > room:
                raise _error(ENOSPC, self.path)
            self._machine._step(self.path)
            node.resize(size)
            self._machine.used_bytes += growth

    def sync(self) -> None:
        with self._machine._mutex:
            node = self._live()
            self._machine._step(self.path)
            node.sync()

    def lose_unsynced(self, *, keep: Keep = "nothing", seed: int | None = None) -> None:
        """Do to the file what a failed sync does on Linux: what is not kept is never written again.

        The content reads as before and later syncs succeed, but they only cover what is written later.
        """
        with self._machine._mutex:
            self._live().lose_unsynced(keep, _random(keep, seed))

    def fileno(self) -> int:
        raise _error(ENOTSUP, self.path)

    def close(self) -> None:
        with self._machine._mutex:
            if not self._closed:
                self._closed = True
                self._node.handles -= 1
                self._machine.open_files -= 1
                self._machine._free(self._node)

    def _live(self) -> FileNode:
        self._machine._check(self.path)
        if self._closed:
            raise _error(EBADF, self.path)
        return self._node

    def _writable(self) -> FileNode:
        node = self._live()
        if not self._write_allowed:
            raise _error(EBADF, self.path)
        return node

    def _write(self, position: int, data: bytes) -> None:
        """Write as much as there is room and power for, and raise if that is not all."""
        node = self._writable()
        if position < 0:
            raise _error(EINVAL, self.path)
        size = len(node.content)
        room = self._machine._room()
        fits = len(data) if room is None else max(0, min(len(data), size + room - position))
        granted = self._machine._spend(fits)
        if granted:
            node.write(position, data[:granted])
            self._machine.used_bytes += len(node.content) - size
        self._machine._check(self.path)
        if fits < len(data):
            raise _error(ENOSPC, self.path)


class MemoryLock:
    """A lock on a file of a `MemoryDisk`; gone with the last reference, as a descriptor is."""

    def __init__(self, machine: _Machine, node: FileNode) -> None:
        self._machine = machine
        self._node: FileNode | None = node
        node.locked = True

    def __del__(self) -> None:
        self.release()

    def release(self) -> None:
        with self._machine._mutex:
            node, self._node = self._node, None
            if node is not None:
                node.locked = False


class MemoryDisk(_Machine):
    """A `Disk` in memory. It starts empty, with nothing but the directory `/`.

    `power_off_after` and `capacity_bytes` may be set at any time. Room is taken by the length of every file
    that has a name or is open; a write that does not fit writes what does and raises `ENOSPC`.
    """

    def __init__(self, *, capacity_bytes: int | None = None, power_off_after: int | None = None) -> None:
        super().__init__(capacity_bytes=capacity_bytes, power_off_after=power_off_after)
        self._root = DirectoryNode()

    def open(self, path: str, *, create: bool = False, write: bool = True) -> MemoryFile:
        assert write or not create
        with self._mutex:
            return MemoryFile(self, self._file(path, create=create), path, write=write)

    def entries(self, directory: str) -> list[Entry]:
        with self._mutex:
            return [
                Entry(name, 0, True) if isinstance(node, DirectoryNode) else Entry(name, len(node.content), False)
                for name, node in self._directory(directory).names.items()
            ]

    def make_directory(self, path: str) -> None:
        with self._mutex:
            self._check(path)
            parts = _parts(path)
            here = self._root
            for depth, name in enumerate(parts, start=1):
                node = here.names.get(name)
                if isinstance(node, FileNode):
                    raise _error(EEXIST if depth == len(parts) else ENOTDIR, path)
                if node is None:
                    self._step(path)
                    node = DirectoryNode()
                    here.change((name, node))
                here = node

    def rename(self, source: str, target: str) -> None:
        with self._mutex:
            old_home, old_name, node = self._place(source)
            new_home, new_name, replaced = self._place(target)
            if node is None:
                raise _error(ENOENT, source, target)
            if node is replaced:
                return
            _check_rename(source, target, node, replaced)
            self._step(source)
            if old_home is new_home:
                old_home.change((old_name, None), (new_name, node))
            else:
                added = new_home.change((new_name, node))
                old_home.change((old_name, None), needs=added)
            self._unlink(replaced)

    def remove(self, path: str) -> None:
        with self._mutex:
            try:
                home, name, node = self._place(path)
            except FileNotFoundError:
                return
            if isinstance(node, DirectoryNode):
                raise _error(EISDIR, path)
            if node is not None:
                self._step(path)
                home.change((name, None))
                self._unlink(node)

    def remove_tree(self, path: str) -> None:
        with self._mutex:
            try:
                home, name, node = self._place(path)
            except FileNotFoundError:
                return
            if isinstance(node, FileNode):
                raise _error(ENOTDIR, path)
            if node is not None:
                self._remove_tree(home, name, node, path)

    def sync_directory(self, path: str) -> None:
        with self._mutex:
            directory = self._directory(path)
            self._step(path)
            directory.sync()

    def lock(self, path: str) -> MemoryLock:
        with self._mutex:
            node = self._file(path, create=True)
            if node.locked:
                raise _error(EWOULDBLOCK, path)
            return MemoryLock(self, node)

    def space(self, path: str) -> Space:
        """Without a limit it has a terabyte, all of it free."""
        room = self._room()
        return Space(UNLIMITED_BYTES, UNLIMITED_BYTES) if room is None else Space(room, self.capacity_bytes or 0)

    def crash(self, seed: int | None = None, *, keep: Keep | None = None) -> "MemoryDisk":
        """Pull the plug, and return the disk as the next start of the machine finds it.

        What was synced is on it. Of the rest it has nothing, or with a seed a random part, or what `keep`
        says. It has power, the same capacity, no locks and no open files. This disk and every file of it
        are dead: all they do is raise `ENODEV`. Only `crash` may be called again; each call is another
        outcome of the same accident, and the same arguments give the same outcome.
        """
        keep = keep or ("nothing" if seed is None else "random")
        rng = _random(keep, seed)
        with self._mutex:
            self._crashed = True
            disk = MemoryDisk(capacity_bytes=self.capacity_bytes)
            disk._root = survivor(self._root, keep, rng)
            disk.used_bytes = sum({node: len(node.content) for _, node in _walk(disk._root)}.values())
            return disk

    def paths(self) -> list[str]:
        """The paths of all files, sorted. Like the three below it is for the test and needs no power."""
        with self._mutex:
            return sorted(path for path, _ in _walk(self._root))

    def read(self, path: str) -> bytes:
        """The content of the file as its program sees it, synced or not."""
        with self._mutex:
            return bytes(self._existing(path).content)

    def write(self, path: str, content: bytes) -> None:
        """Plant a file, or replace its content, durably: it, its directory and those above are synced."""
        with self._mutex:
            here = self._root
            *above, name = _parts(path)
            for part in above:
                child = here.names.get(part)
                if isinstance(child, FileNode):
                    raise _error(ENOTDIR, path)
                if child is None:
                    child = DirectoryNode()
                    here.change((part, child))
                here.sync()
                here = child
            node = here.names.get(name)
            if isinstance(node, DirectoryNode):
                raise _error(EISDIR, path)
            if node is None:
                node = self._create(here, name)
            here.sync()
            self.used_bytes += len(content) - len(node.content)
            node.replace(content)

    def flip_bit(self, path: str, position: int, bit: int = 0) -> None:
        """Damage one bit of the file where it is stored. Bit 0 is the lowest."""
        with self._mutex:
            node = self._existing(path)
            if not (0 <= position < len(node.content) and 0 <= bit < 8):
                raise ValueError(f"{path} has {len(node.content)} bytes; there is no bit {bit} at {position}")
            node.flip_bit(position, bit)

    def _find(self, path: str, parts: list[str]) -> Node:
        node: Node = self._root
        for name in parts:
            if isinstance(node, FileNode):
                raise _error(ENOTDIR, path)
            child = node.names.get(name)
            if child is None:
                raise _error(ENOENT, path)
            node = child
        return node

    def _directory(self, path: str) -> DirectoryNode:
        self._check(path)
        node = self._find(path, _parts(path))
        if isinstance(node, FileNode):
            raise _error(ENOTDIR, path)
        return node

    def _place(self, path: str) -> tuple[DirectoryNode, str, Node | None]:
        """The directory that the path leads to, the name in it, and what has that name."""
        self._check(path)
        parts = _parts(path)
        if not parts:
            raise _error(EISDIR, path)
        home = self._find(path, parts[:-1])
        if isinstance(home, FileNode):
            raise _error(ENOTDIR, path)
        return home, parts[-1], home.names.get(parts[-1])

    def _file(self, path: str, *, create: bool) -> FileNode:
        home, name, node = self._place(path)
        if isinstance(node, DirectoryNode):
            raise _error(EISDIR, path)
        if node is None:
            if not create:
                raise _error(ENOENT, path)
            self._step(path)
            node = self._create(home, name)
        return node

    def _existing(self, path: str) -> FileNode:
        node = self._find(path, _parts(path))
        if isinstance(node, DirectoryNode):
            raise _error(EISDIR, path)
        return node

    @staticmethod
    def _create(home: DirectoryNode, name: str) -> FileNode:
        node = FileNode()
        node.names = 1
        home.change((name, node))
        return node

    def _remove_tree(self, home: DirectoryNode, name: str, node: Node, path: str) -> None:
        """One step for each name, that of a directory after those in it."""
        if isinstance(node, DirectoryNode):
            for below, child in list(node.names.items()):
                self._remove_tree(node, below, child, f"{path}/{below}")
        self._step(path)
        home.change((name, None))
        self._unlink(node)

    def _unlink(self, node: Node | None) -> None:
        if isinstance(node, FileNode):
            node.names -= 1
            self._free(node)


def _check_rename(source: str, target: str, node: Node, replaced: Node | None) -> None:
    """Raise what Linux raises where a file and a directory, or a directory and itself, get in each other's way."""
    old, new = _parts(source), _parts(target)
    if new[: len(old)] == old:
        raise _error(EINVAL, source, target)
    if old[: len(new)] == new or (isinstance(node, DirectoryNode) and _is_full(replaced)):
        raise _error(ENOTEMPTY, source, target)
    if isinstance(node, DirectoryNode) and isinstance(replaced, FileNode):
        raise _error(ENOTDIR, source, target)
    if isinstance(node, FileNode) and isinstance(replaced, DirectoryNode):
        raise _error(EISDIR, source, target)


def _is_full(node: Node | None) -> bool:
    return isinstance(node, DirectoryNode) and bool(node.names)


def _parts(path: str) -> list[str]:
    if not path.startswith("/"):
        raise ValueError(f"{path!r} is not an absolute path")
    return [part for part in posixpath.normpath(path).split("/") if part]


def _walk(directory: DirectoryNode, prefix: str = "") -> list[tuple[str, FileNode]]:
    """Every file below the directory, with its path."""
    found: list[tuple[str, FileNode]] = []
    for name, node in directory.names.items():
        path = f"{prefix}/{name}"
        if isinstance(node, FileNode):
            found.append((path, node))
        else:
            found += _walk(node, path)
    return found


def _random(keep: Keep, seed: int | None) -> Random:
    if seed is None and keep not in ("nothing", "everything"):
        raise ValueError(f"keep={keep!r} draws lots and needs a seed")
    return Random(seed or 0)
