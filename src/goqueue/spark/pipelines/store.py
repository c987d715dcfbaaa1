"""The storage of archives: the few operations that a manifest needs of a file system, and a local directory.

The driver and the executors see the directory under the same path: a local disk for a local session, a shared mount for
a cluster. Commits survive a power cut: files are synced before the commit that names them, and the commit is synced
before anything depends on it.
"""

import errno
import fcntl
import mmap
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Event, Thread
from typing import Protocol
from urllib.parse import unquote, urlsplit

from goqueue.errors import GoQueueError, InvalidConfig
from goqueue.record.kernel import crc32c

_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)
SYNC_PAUSE_S = 0.2
_DRAFT = ".draft"
_PATTERN = "*?[]{}"


class ArchiveError(GoQueueError):
    """An archive is not in the state that a job expects."""

    code = "ARCHIVE_ERROR"


class ForeignArchive(ArchiveError):
    """The directory holds something other than the archive of this topic."""

    code = "FOREIGN_ARCHIVE"

    def __init__(self, directory: str, reason: str) -> None:
        super().__init__(f"{directory} {reason}")
        self.directory = directory
        self.reason = reason


class ArchiveDamaged(ArchiveError):
    """The manifest or a file that it names is missing or has changed."""

    code = "ARCHIVE_DAMAGED"

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason


class ArchiveBusy(ArchiveError):
    """Another job is writing the archive."""

    code = "ARCHIVE_BUSY"
    retryable = True

    def __init__(self, directory: str) -> None:
        super().__init__(f"{directory} is being written by another job")
        self.directory = directory


class Store(Protocol):
    """A directory of an archive; paths are relative to it, with slashes."""

    directory: str

    def exists(self, path: str) -> bool: ...

    def files(self, folder: str) -> list[str]:
        """All files below the folder, without hidden ones; empty if there is no such folder."""
        ...

    def read(self, path: str) -> bytes: ...

    def publish(self, path: str, data: bytes) -> None:
        """Create a file atomically and durably. Raises `FileExistsError`."""
        ...

    def move(self, path: str, place: str) -> None: ...

    def remove(self, path: str) -> None:
        """Remove a file, or a folder with its content; no error if it does not exist."""
        ...

    @contextmanager
    def filling(self, folder: str) -> Iterator[None]:
        """Sync files below the folder in the background while others write them, so that the final syncs are short."""
        ...

    def summed(self, path: str) -> tuple[int, int]:
        """Sync the file, and return its size and CRC-32C."""
        ...

    def row_count(self, path: str) -> int:
        """The number of rows in the metadata of a Parquet file."""
        ...

    def url(self, path: str) -> str:
        """The path for Spark."""
        ...

    @contextmanager
    def locked(self, path: str) -> Iterator[None]:
        """Lock the directory for the block, at most until the process ends. Raises `ArchiveBusy`."""
        ...


class LocalStore:
    """A local directory, or one that is mounted on all machines."""

    def __init__(self, directory: str) -> None:
        self.directory = os.path.abspath(local_path(directory))

    def exists(self, path: str) -> bool:
        return os.path.exists(self._at(path))

    def files(self, folder: str) -> list[str]:
        found: list[str] = []
        for at, folders, names in os.walk(self._at(folder)):
            folders[:] = sorted(name for name in folders if not name.startswith("."))
            shown = (os.path.join(at, name) for name in names if not name.startswith("."))
            found += [os.path.relpath(path, self.directory) for path in shown]
        return sorted(found)

    def read(self, path: str) -> bytes:
        with open(self._at(path), "rb") as file:
            return file.read()

    def publish(self, path: str, data: bytes) -> None:
        place = self._at(path)
        folder = os.path.dirname(place)
        os.makedirs(folder, exist_ok=True)
        draft = os.path.join(folder, _DRAFT)
        with open(draft, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(draft, place)  # unlike a rename, a link fails if the file exists
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            if os.path.exists(place):
                raise FileExistsError(place) from None
            os.rename(draft, place)
        else:
            os.unlink(draft)
        _sync_folder(folder)

    def move(self, path: str, place: str) -> None:
        target = self._at(place)
        os.makedirs(os.path.dirname(target), exist_ok=True)
        os.replace(self._at(path), target)
        _sync_folder(os.path.dirname(target))

    def remove(self, path: str) -> None:
        at = self._at(path)
        if os.path.isdir(at):
            shutil.rmtree(at)
        elif os.path.exists(at):
            os.unlink(at)

    @contextmanager
    def filling(self, folder: str) -> Iterator[None]:
        is_full = Event()
        thread = Thread(target=_sync_until, args=(is_full, self._at(folder)), name="goqueue-archive", daemon=True)
        thread.start()
        try:
            yield
        finally:
            is_full.set()
            thread.join()

    def summed(self, path: str) -> tuple[int, int]:
        with open(self._at(path), "rb") as file:
            os.fsync(file.fileno())
            size_bytes = os.fstat(file.fileno()).st_size
            if not size_bytes:
                return 0, crc32c(b"")
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content, memoryview(content) as view:
                return size_bytes, crc32c(view)

    def row_count(self, path: str) -> int:
        import pyarrow as pa
        from pyarrow import parquet

        try:
            count: int = parquet.read_metadata(self._at(path)).num_rows
        except pa.ArrowInvalid as error:
            raise ArchiveDamaged(self.url(path), str(error).partition("\n")[0]) from None
        return count

    def url(self, path: str) -> str:
        return self._at(path)

    @contextmanager
    def locked(self, path: str) -> Iterator[None]:
        place = self._at(path)
        try:
            os.makedirs(os.path.dirname(place), exist_ok=True)
            opened = open(place, "ab")  # noqa: SIM115  # closed below; errors of the body must not be caught here
        except OSError as error:
            reason = f"cannot be written to: {error.strerror}"
            raise InvalidConfig("directory", self.directory, reason) from None
        with opened as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ArchiveBusy(self.directory) from None
            yield

    def _at(self, path: str) -> str:
        return os.path.join(self.directory, path) if path else self.directory


def local_path(directory: str) -> str:
    """The path of a directory that may be written as a URL."""
    if found := set(directory) & set(_PATTERN):
        raise InvalidConfig("directory", directory, f"must not contain {min(found)}, which Spark reads as a pattern")
    scheme, separator, _ = directory.partition("://")
    if not separator and not directory.startswith("file:"):
        return directory
    if separator and scheme != "file":
        raise InvalidConfig("directory", directory, "must be a directory that is mounted here and on the executors")
    return unquote(urlsplit(directory).path)


def _sync_until(is_full: Event, folder: str) -> None:
    """Sync the files below the folder repeatedly. Errors are ignored: the final sync in `summed` reports them."""
    while not is_full.wait(SYNC_PAUSE_S):
        for at, _, names in os.walk(folder):
            for name in names:
                with suppress(OSError), open(os.path.join(at, name), "rb") as file:
                    os.fdatasync(file.fileno())


def _sync_folder(folder: str) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
