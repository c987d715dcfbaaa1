"""Whether a log takes writes, and why not.

closed    by its owner. Every call is refused with `Conflict`
held      until a truncation is carried out; reads of what remains go on
failed    a write or a sync failed. The log takes no more writes until it is opened again: after a failed fsync the
          content of the disk is unknown, and a second fsync that succeeds proves nothing
refused   there was no room. Nothing was written, and the next write may succeed. The refusal is remembered, because
          it makes the broker report a full disk and lets retention delete more
"""

import posixpath
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from goqueue import events
from goqueue.errors import Conflict, StorageError, StorageFailed, StorageFull
from goqueue.storage.file import NO_ROOM, Disk, Space


class LogHealth:
    """The health of the log in one directory."""

    __slots__ = ("_directory", "_disk", "_held", "_observe", "_refused", "failure", "is_blocked", "is_closed")

    def __init__(self, disk: Disk, directory: str, observe: events.Observer) -> None:
        self._disk = disk
        self._directory = directory
        self._observe = observe
        self._refused: tuple[int, str] | None = None  # the end of the log when there was no room, and the reason
        self._held = False
        self.failure: StorageFailed | None = None
        self.is_closed = False
        self.is_blocked = False  # closed, held or failed: one attribute to look at for each append

    def close(self) -> None:
        self.is_closed = self.is_blocked = True

    def hold(self) -> None:
        """Take no writes until `resume`: the log is being truncated."""
        self._held = self.is_blocked = True

    def resume(self) -> None:
        self._held = False
        self.is_blocked = self.is_closed or self.failure is not None

    def check_open(self) -> None:
        if self.is_closed:
            raise Conflict(f"the log in {self._directory} is closed")

    def check_writable(self) -> None:
        self.check_healthy()
        if self._held:
            raise Conflict(f"the log in {self._directory} is being truncated")

    def check_healthy(self) -> None:
        """Raise unless the log is open and has not failed; a truncation may be under way."""
        self.check_open()
        if self.failure:
            raise self.failure

    def fail(self, operation: str, error: Exception, *, path: str | None = None) -> StorageFailed:
        """Stop all writes. Only the first failure is kept and reported: later ones follow from it."""
        if self.failure is None:
            reason = getattr(error, "strerror", None) or str(error)
            path = getattr(error, "filename", None) or path or self._directory
            self.failure = StorageFailed(path, operation, reason)
            self.is_blocked = True
            self._observe(events.LogFailed(log=self._directory, operation=operation, reason=reason))
        return self.failure

    def write_failed(self, error: OSError, *, path: str, next_offset: int) -> StorageError:
        """The error to raise for an append that failed: a full disk refuses it, any other error stops the log."""
        if error.errno in NO_ROOM:
            reason = error.strerror or str(error)
            self._refused = (next_offset, reason)
            self._observe(events.WriteRefused(log=self._directory, reason=reason))
            return StorageFull(str(error.filename or path), reason)
        return self.fail("write", error, path=path)

    def refusal(self, next_offset: int) -> str | None:
        """Why the last append was refused, if there was no room and none has succeeded since."""
        if self._refused is None or self._refused[0] != next_offset:
            return None
        return self._refused[1]

    def look_for_room(self) -> None:
        """Forget the refusal if the disk has room again: on a quiet topic no append would ever clear it."""
        if self._refused is not None:
            with suppress(OSError):
                if not self._space().is_low:
                    self._refused = None

    def _space(self) -> Space:
        """The room where the directory is, or would be if there had been room for it."""
        path = self._directory
        while True:
            try:
                return self._disk.space(path)
            except FileNotFoundError:
                if path == (path := posixpath.dirname(path)):
                    raise

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Within it, a full disk becomes `StorageFull`, and any other error of the disk stops the log."""
        try:
            yield
        except OSError as error:
            if error.errno in NO_ROOM:
                raise StorageFull(str(error.filename), error.strerror or str(error)) from error
            raise self.fail("write", error) from error

    @contextmanager
    def failing(self, operation: str) -> Iterator[None]:
        """Within it, every error of the disk stops the log: the operation cannot be undone or repeated."""
        try:
            yield
        except OSError as error:
            raise self.fail(operation, error) from error
