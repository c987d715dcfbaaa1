"""Notice that a file was written to, by this process or another one, without asking for it again and again.

This is inotify, through the C library: Python has no module for it. The descriptor becomes readable when something was
written, so an event loop waits for it as for a socket, and a process in which nothing happens uses no CPU. Each
`FileChanges` is one inotify instance; Linux allows 128 of them per user by default.
"""

import ctypes
import errno
import os
from contextlib import suppress
from typing import Final

_IN_MODIFY: Final = 0x2  # sys/inotify.h
_DRAIN_BYTES: Final = 64 * 1024


class FileChanges:
    """The changes of one file, from now on. Raises `OSError` if the system cannot watch it."""

    def __init__(self, path: str) -> None:
        try:
            libc = ctypes.CDLL(None, use_errno=True)
            inotify_init, inotify_add_watch = libc.inotify_init1, libc.inotify_add_watch
        except (AttributeError, TypeError):
            raise OSError(errno.ENOSYS, "no inotify on this system", path) from None
        self._fd: int = inotify_init(os.O_NONBLOCK | os.O_CLOEXEC)
        if self._fd < 0:
            raise self._error(path)
        if inotify_add_watch(self._fd, os.fsencode(path), _IN_MODIFY) < 0:
            error = self._error(path)
            self.close()
            raise error

    def __del__(self) -> None:
        if hasattr(self, "_fd"):
            self.close()

    def fileno(self) -> int:
        """Readable as soon as the file was written to."""
        return self._fd

    def drain(self) -> None:
        """Forget the changes until now."""
        with suppress(BlockingIOError):
            while os.read(self._fd, _DRAIN_BYTES):
                pass

    def close(self) -> None:
        """End it. Closing twice is fine."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    @staticmethod
    def _error(path: str) -> OSError:
        number = ctypes.get_errno()
        return OSError(number, os.strerror(number), path)
