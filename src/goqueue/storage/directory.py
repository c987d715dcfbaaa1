"""The data directory: one lock, one format, nothing foreign.

    <data>/format                                   goqueue-data 1
    <data>/lock                                     held by the one process that has the directory open
    <data>/topics/<topic>/<partition>/{log,ledger}  see layout.py

Whatever keeps the directory from being used is said in one sentence that names the path, before anything
in it is changed.
"""

import re

from goqueue import events
from goqueue.errors import (
    Conflict,
    DataDirectoryError,
    DirectoryLocked,
    DirectoryUnusable,
    ForeignFile,
    InvalidTopic,
    StorageFull,
    UnsupportedFormat,
)
from goqueue.storage.config import LogConfig
from goqueue.storage.file import NO_ROOM, Disk, Lock
from goqueue.storage.log import Log
from goqueue.storage.open_segments import OPEN_SEGMENTS_MAX, OpenSegments

FORMAT = 1
KINDS = ("log", "ledger")
_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}", re.ASCII)
_FORMAT_FILE = "format"
_FORMAT_TEXT = "goqueue-data "
_OWN_NAMES = frozenset({_FORMAT_FILE, _FORMAT_FILE + ".new", "lock", "topics"})
_TOLERATED = frozenset({"lost+found"})  # made by the file system where the directory is a mount point


class DataDirectory:
    """An open data directory. Made by `DataDirectory.open`; `close` gives it back."""

    def __init__(self, disk: Disk, path: str, lock: Lock, open_segments: OpenSegments) -> None:
        self._disk = disk
        self._lock = lock
        self._open_segments = open_segments
        self._logs: dict[str, Log] = {}
        self._closed = False
        self.path = path

    @classmethod
    def open(cls, disk: Disk, path: str, *, open_segments_max: int = OPEN_SEGMENTS_MAX) -> "DataDirectory":
        """Take the directory for this process, or say why that cannot be."""
        lock = None
        try:
            disk.make_directory(path)
            _refuse_foreign(disk, path)
            lock = disk.lock(f"{path}/lock")
            _check_format(disk, path)
        except BlockingIOError as error:
            raise DirectoryLocked(path, "another process has this data directory open") from error
        except OSError as error:
            if lock:
                lock.release()
            raise _unusable(path, error) from error
        except DataDirectoryError:
            if lock:
                lock.release()
            raise
        return cls(disk, path, lock, OpenSegments(open_segments_max))

    def open_log(
        self,
        topic: str,
        partition: int,
        config: LogConfig | None = None,
        *,
        kind: str = "log",
        observe: events.Observer = events.ignore,
    ) -> Log:
        """The log (or, as `kind`, the ledger) of a partition, which is not open yet."""
        if self._closed:
            raise Conflict(f"the data directory {self.path} is closed")
        if not _TOPIC.fullmatch(topic) or topic in (".", ".."):
            raise InvalidTopic(topic, "must be 1 to 249 of A-Z a-z 0-9 . _ -, and not . or ..")
        assert partition >= 0
        assert kind in KINDS
        directory = f"{self.path}/topics/{topic}/{partition}/{kind}"
        known = self._logs.get(directory)
        if known and not known.is_closed:
            raise DirectoryLocked(directory, "this process has the log open already")
        log = Log.open(self._disk, directory, config, open_segments=self._open_segments, observe=observe)
        self._logs[directory] = log
        return log

    def close(self) -> None:
        """Close all logs, and let another process have the directory."""
        self._closed = True
        try:
            for log in self._logs.values():
                log.close()
        finally:
            self._lock.release()


def _refuse_foreign(disk: Disk, path: str) -> None:
    for name, _, _ in disk.entries(path):
        if name not in _OWN_NAMES and name not in _TOLERATED:
            raise ForeignFile(f"{path}/{name}", "not a file of GoQueue; give it a data directory of its own")


def _check_format(disk: Disk, path: str) -> None:
    format_path = f"{path}/{_FORMAT_FILE}"
    try:
        file = disk.open(format_path)
    except FileNotFoundError:
        _write_format(disk, path)
        return
    text = file.pread(0, 64).decode("ascii", "replace").strip()
    file.close()
    if not text.startswith(_FORMAT_TEXT) or not text.removeprefix(_FORMAT_TEXT).isdigit():
        raise UnsupportedFormat(format_path, f"expected {_FORMAT_TEXT + str(FORMAT)!r}, found {text!r}")
    if int(text.removeprefix(_FORMAT_TEXT)) != FORMAT:
        raise UnsupportedFormat(
            format_path, f"data format {text.removeprefix(_FORMAT_TEXT)}; this GoQueue knows {FORMAT}"
        )


def _write_format(disk: Disk, path: str) -> None:
    new_path = f"{path}/{_FORMAT_FILE}.new"
    disk.remove(new_path)
    file = disk.open(new_path, create=True)
    file.append(f"{_FORMAT_TEXT}{FORMAT}\n".encode())
    file.sync()
    file.close()
    disk.rename(new_path, f"{path}/{_FORMAT_FILE}")
    disk.sync_directory(path)


def _unusable(path: str, error: OSError) -> DirectoryUnusable | StorageFull:
    named = str(error.filename or path)
    if error.errno in NO_ROOM:
        return StorageFull(named, error.strerror or str(error))
    return DirectoryUnusable(named, error.strerror or str(error))
