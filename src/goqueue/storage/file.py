"""The disk, as narrow as the log needs it; the only module of the storage engine that touches the OS.

A `Disk` opens files and changes directories; a `File` is read anywhere and written at its end. What
is written may be lost or torn by a crash until `File.sync` has returned, and a name that was created,
renamed or removed is only sure after `Disk.sync_directory`. `goqueue.testing` has two more disks that
take these two sentences by their word: `MemoryDisk` and `FaultyDisk`.

A file stays open while anyone holds it: whoever deletes or replaces it does not disturb a reader that
has it in hand, and the descriptor is closed with the last reference (or by `close`).

Disks raise `OSError`; the log turns it into an error that says what follows from it.
"""

import errno
import fcntl
import os
import posixpath
import shutil
import stat
from contextlib import suppress
from typing import NamedTuple, Protocol

from goqueue.record.header import Buffer

NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE)
"""The errors that pass by themselves once someone has made room on the disk, or closed a file."""


class File(Protocol):
    """One open file. Reads may run in any thread; writes belong to the owner of the log."""

    @property
    def path(self) -> str: ...

    def size(self) -> int:
        """The length of the file in bytes."""
        ...

    def pread(self, position: int, size: int) -> bytes:
        """Up to `size` bytes from `position` on; fewer only where the file ends."""
        ...

    def pwrite(self, position: int, data: Buffer) -> None:
        """Overwrite in place, extending the file if need be."""
        ...

    def append(self, *chunks: Buffer) -> int:
        """Write all chunks at the end and return the position of the first byte.

        On an `OSError` some of them may have been written: the caller truncates.
        """
        ...

    def truncate(self, size: int) -> None:
        """Cut the file down to `size` bytes."""
        ...

    def sync(self) -> None:
        """Return once all that was written is on the medium."""
        ...

    def fileno(self) -> int:
        """The descriptor, for `os.sendfile`. Raises `OSError` where there is none."""
        ...

    def close(self) -> None:
        """Give the descriptor back now. Closing twice is fine."""
        ...


class Entry(NamedTuple):
    """One name in a directory."""

    name: str
    size: int
    is_directory: bool


LOW_SPACE_BYTES = 64 * 1024 * 1024


class Space(NamedTuple):
    """How much room a file system has: for this process, and in all."""

    free_bytes: int
    total_bytes: int

    @property
    def is_low(self) -> bool:
        """Whether less is left than a hundredth, or than 64 MiB of a disk that is not small itself."""
        return self.free_bytes < max(self.total_bytes // 100, min(LOW_SPACE_BYTES, self.total_bytes // 10))


class Lock(Protocol):
    """Held until released, at the latest when the process ends."""

    def release(self) -> None: ...


class Disk(Protocol):
    """A file system, or what plays one in a test. Paths are absolute strings."""

    def open(self, path: str, *, create: bool = False, write: bool = True) -> File:
        """Open for reading and writing. With `create` a missing file is made, without it is an error.

        Without `write` the permission to read is enough, and `EBADF` is the answer to all that would change the file.
        """
        ...

    def entries(self, directory: str) -> list[Entry]:
        """Everything in the directory, in no order."""
        ...

    def make_directory(self, path: str) -> None:
        """Make the directory and its parents; one that exists is fine."""
        ...

    def rename(self, source: str, target: str) -> None:
        """Give the file, or the directory with all below it, another name in one step, replacing what had that name."""
        ...

    def remove(self, path: str) -> None:
        """Remove the file. One that is missing already is fine."""
        ...

    def remove_tree(self, path: str) -> None:
        """Remove the directory and all below it. One that is missing already is fine; if it fails, a part is gone."""
        ...

    def sync_directory(self, path: str) -> None:
        """Return once the names in the directory are on the medium."""
        ...

    def lock(self, path: str) -> Lock:
        """Take the lock file, or raise `BlockingIOError` if another holder has it."""
        ...

    def space(self, path: str) -> Space:
        """How much room there is on the file system that the path is on."""
        ...


def sync_ancestors(disk: Disk, directory: str) -> None:
    """Bring the names of the directory and of all that it stands in to the medium, as far as that is ours to do."""
    while directory != (parent := posixpath.dirname(directory)):
        with suppress(PermissionError):
            disk.sync_directory(parent or ".")
        directory = parent


class OsFile:
    """A file of the operating system."""

    __slots__ = ("_fd", "path")

    def __init__(self, path: str, fd: int) -> None:
        self.path = path
        self._fd = fd

    def __del__(self) -> None:
        self.close()

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def pread(self, position: int, size: int) -> bytes:
        data = os.pread(self._fd, size, position)
        if len(data) == size or not data:
            return data
        chunks = [data]
        missing = size - len(data)
        while missing and (data := os.pread(self._fd, missing, position + size - missing)):
            chunks.append(data)
            missing -= len(data)
        return b"".join(chunks)

    def pwrite(self, position: int, data: Buffer) -> None:
        size = memoryview(data).nbytes
        written = os.pwrite(self._fd, data, position)
        while written < size:
            written += os.pwrite(self._fd, memoryview(data).cast("B")[written:], position + written)

    def append(self, *chunks: Buffer) -> int:
        start = position = self.size()
        for chunk in chunks:
            self.pwrite(position, chunk)
            position += memoryview(chunk).nbytes
        return start

    def truncate(self, size: int) -> None:
        os.ftruncate(self._fd, size)

    def sync(self) -> None:
        os.fdatasync(self.fileno())  # on a closed file OSError, as everywhere; fdatasync(-1) is a ValueError

    def fileno(self) -> int:
        if self._fd < 0:
            raise OSError(errno.EBADF, "file is closed", self.path)
        return self._fd

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


class OsReadOnlyFile(OsFile):
    """A file of the operating system that is not ours to change."""

    __slots__ = ()

    def pwrite(self, position: int, data: Buffer) -> None:
        raise self._refusal()

    def append(self, *chunks: Buffer) -> int:
        raise self._refusal()

    def truncate(self, size: int) -> None:
        raise self._refusal()  # the system would say EINVAL, which is also what it says of a wrong size

    def _refusal(self) -> OSError:
        return OSError(errno.EBADF, "file is open for reading only", self.path)


class OsLock:
    """An advisory lock (`flock`) that the kernel drops with the process."""

    __slots__ = ("_fd",)

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def __del__(self) -> None:
        self.release()

    def release(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


class OsDisk:
    """The file system of the machine."""

    def open(self, path: str, *, create: bool = False, write: bool = True) -> OsFile:
        if not write:
            assert not create
            return self._open_to_read(path)
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        return OsFile(path, os.open(path, flags, 0o644))

    @staticmethod
    def _open_to_read(path: str) -> OsFile:
        file = OsReadOnlyFile(path, os.open(path, os.O_RDONLY | os.O_CLOEXEC))
        if stat.S_ISDIR(os.fstat(file.fileno()).st_mode):  # a directory opens for reading, and only then refuses it
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        return file

    def entries(self, directory: str) -> list[Entry]:
        with os.scandir(directory) as found:
            return [entry for item in found if (entry := self._entry(item)) is not None]

    @staticmethod
    def _entry(item: "os.DirEntry[str]") -> Entry | None:
        if item.is_dir():
            return Entry(item.name, 0, True)
        try:
            return Entry(item.name, item.stat().st_size, False)
        except FileNotFoundError:  # a link to nowhere, or a file removed since it was listed
            return Entry(item.name, 0, False) if item.is_symlink() else None

    def make_directory(self, path: str) -> None:
        os.makedirs(path, exist_ok=True)

    def rename(self, source: str, target: str) -> None:
        os.replace(source, target)

    def remove(self, path: str) -> None:
        with suppress(FileNotFoundError):
            os.unlink(path)

    def remove_tree(self, path: str) -> None:
        with suppress(FileNotFoundError):
            shutil.rmtree(path)

    def sync_directory(self, path: str) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def lock(self, path: str) -> OsLock:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(fd)
            raise
        return OsLock(fd)

    def space(self, path: str) -> Space:
        found = os.statvfs(path)
        return Space(found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize)
