"""The disk, as narrow as the log needs it; the only module of the storage engine that touches the operating system.

A `Disk` opens files and changes directories; a `File` is read anywhere and written at its end. A crash may lose or tear
a write until `File.sync` has returned, and may undo the creation, renaming or removal of a name until
`Disk.sync_directory` has returned. `goqueue.testing` has two more disks, which do exactly that: `MemoryDisk` and
`FaultyDisk`.

A file stays open as long as it is referenced: deleting or replacing it does not disturb a reader that holds it. The
descriptor is closed with the last reference, or by `close`.

Disks raise `OSError`; the log translates it into an error of `goqueue.errors`.
"""

import errno
import fcntl
import os
import posixpath
import shutil
import stat
from contextlib import suppress
from typing import NamedTuple, Protocol

from goqueue.errors import DirectoryUnusable, StorageFull
from goqueue.record.header import Buffer

NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE)
"""The errors that are temporary: the disk or the quota is full, or too many files are open."""


class File(Protocol):
    """One open file. Any thread may read; only the owner of the log writes."""

    @property
    def path(self) -> str: ...

    def size(self) -> int:
        """The length of the file in bytes."""
        ...

    def pread(self, position: int, size: int) -> bytes:
        """Up to `size` bytes from `position` on; fewer only at the end of the file."""
        ...

    def pwrite(self, position: int, data: Buffer) -> None:
        """Overwrite in place, extending the file if necessary."""
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
        """Return once all writes are on the disk."""
        ...

    def fileno(self) -> int:
        """The descriptor, for `os.sendfile`. Raises `OSError` if there is none."""
        ...

    def close(self) -> None:
        """Close the descriptor now. Closing twice is fine."""
        ...


class Entry(NamedTuple):
    """One name in a directory."""

    name: str
    size: int
    is_directory: bool


LOW_SPACE_BYTES = 64 * 1024 * 1024


class Space(NamedTuple):
    """The room on a file system: free for this process, and in total."""

    free_bytes: int
    total_bytes: int

    @property
    def is_low(self) -> bool:
        """Whether less than 1 % is free, or less than 64 MiB (on a small disk, 10 %)."""
        return self.free_bytes < max(self.total_bytes // 100, min(LOW_SPACE_BYTES, self.total_bytes // 10))


class Lock(Protocol):
    """A lock that is held until it is released, at the latest when the process ends."""

    def release(self) -> None: ...


class Disk(Protocol):
    """A file system, real or simulated. Paths are absolute strings."""

    def open(self, path: str, *, create: bool = False, write: bool = True) -> File:
        """Open for reading and writing. A missing file is created with `create`, and an error without.

        Without `write`, read permission is enough, and every change of the file raises `EBADF`.
        """
        ...

    def entries(self, directory: str) -> list[Entry]:
        """Everything in the directory, in no order."""
        ...

    def make_directory(self, path: str) -> None:
        """Create the directory and its parents; an existing one is fine."""
        ...

    def rename(self, source: str, target: str) -> None:
        """Rename the file or directory atomically, replacing what has that name."""
        ...

    def remove(self, path: str) -> None:
        """Remove the file. A missing one is fine."""
        ...

    def remove_tree(self, path: str) -> None:
        """Remove the directory and all below it. A missing one is fine; an error may leave a part of it."""
        ...

    def sync_directory(self, path: str) -> None:
        """Return once the names in the directory are on the disk."""
        ...

    def lock(self, path: str) -> Lock:
        """Take the lock file, or raise `BlockingIOError` if another holder has it."""
        ...

    def space(self, path: str) -> Space:
        """The room on the file system of the path."""
        ...


def sync_ancestors(disk: Disk, directory: str, *, within: str = "") -> None:
    """Make the names of the directory and of its parents durable, as far as this process may: those `within` another
    directory, or all of them.
    """
    while directory != within and directory != (parent := posixpath.dirname(directory)):
        with suppress(PermissionError):
            disk.sync_directory(parent or ".")
        directory = parent


def read_file(disk: Disk, path: str) -> bytes:
    """The content of a file; read permission is enough."""
    file = disk.open(path, write=False)
    content = file.pread(0, file.size())
    file.close()
    return content


def unusable(path: str, error: OSError) -> DirectoryUnusable | StorageFull:
    """The error to raise when a log, a topic or a data directory cannot be opened or made."""
    named = str(error.filename or path)
    if error.errno in NO_ROOM:
        return StorageFull(named, error.strerror or str(error))
    return DirectoryUnusable(named, error.strerror or str(error))


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
        os.fdatasync(
            self.fileno()
        )  # `fileno` raises OSError on a closed file, where fdatasync(-1) would raise ValueError

    def fileno(self) -> int:
        if self._fd < 0:
            raise OSError(errno.EBADF, "file is closed", self.path)
        return self._fd

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


class OsReadOnlyFile(OsFile):
    """A file of the operating system that is open for reading only."""

    __slots__ = ()

    def pwrite(self, position: int, data: Buffer) -> None:
        raise self._refusal()

    def append(self, *chunks: Buffer) -> int:
        raise self._refusal()

    def truncate(self, size: int) -> None:
        raise self._refusal()  # the system would raise EINVAL, as it does for a wrong size

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
        if stat.S_ISDIR(os.fstat(file.fileno()).st_mode):  # a directory can be opened for reading, but not read
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
        except FileNotFoundError:  # a dangling link, or a file removed since it was listed
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
