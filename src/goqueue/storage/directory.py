"""The data directory: one lock, one format, no foreign files.

    <data>/format                                   goqueue-data 2
    <data>/lock                                     held by the one process that has the directory open
    <data>/ports.json                               the addresses of that process; written by the server
    <data>/topics/<topic>/<partition>/{log,ledger}  see layout.py
    <data>/metadata                                 of a node of a cluster: its copy of the metadata
    <data>/stray                                    topics that the cluster does not know

If the directory cannot be used, the error names the path and the reason, before anything in it is changed.

A directory of an older format that this version can read is opened as it is; its owner converts it, and calls
`set_format` before the first change that an older version would misread.
"""

import re

from goqueue import events
from goqueue.errors import (
    Conflict,
    DataDirectoryError,
    DirectoryLocked,
    ForeignFile,
    InvalidTopic,
    UnsupportedFormat,
)
from goqueue.storage.config import LogConfig
from goqueue.storage.file import Disk, Lock, Space, sync_ancestors, unusable
from goqueue.storage.layout import NEW
from goqueue.storage.log import Log
from goqueue.storage.open_segments import OPEN_SEGMENTS_MAX, OpenSegments
from goqueue.storage.small_file import replace_bytes

FORMAT = 2
FORMATS_READ = (1, FORMAT)
"""In format 1 internal topics with journals had one partition each (`broker/conversion.py`)."""
KINDS = ("log", "ledger")
TOPIC_NAME_RULE = "must be 1 to 249 of A-Z a-z 0-9 . _ -, and not . or .."
_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}", re.ASCII)
_FORMAT_FILE = "format"
_FORMAT_TEXT = "goqueue-data "
_PORTS_FILE = "ports.json"
STRAY = "stray"
"""The directory of topics that the cluster does not know."""
METADATA = "metadata"
"""The directory of what a node of a cluster keeps of its metadata."""
_OWN_NAMES = frozenset(
    {
        *(name + end for name in (_FORMAT_FILE, _PORTS_FILE) for end in ("", NEW)),
        "lock",
        "topics",
        STRAY,
        METADATA,
    }
)
TOLERATED = frozenset({"lost+found"})  # the file system makes it in a mount point


class DataDirectory:
    """An open data directory. Made by `DataDirectory.open`; `close` releases it."""

    def __init__(self, disk: Disk, path: str, lock: Lock, open_segments: OpenSegments, *, format: int) -> None:
        self._disk = disk
        self._lock = lock
        self._open_segments = open_segments
        self._logs: dict[str, Log] = {}
        self._closed = False
        self.path = path
        self.format = format

    @classmethod
    def open(cls, disk: Disk, path: str, *, open_segments_max: int = OPEN_SEGMENTS_MAX) -> "DataDirectory":
        """Lock the directory for this process. Raises `DataDirectoryError` or `StorageFull`."""
        lock = None
        try:
            disk.make_directory(path)
            _refuse_foreign(disk, path)
            lock = disk.lock(f"{path}/lock")
            found = _format_of(disk, path)
        except BlockingIOError as error:
            raise DirectoryLocked(
                path, "another process has this data directory open; stop it, or use another directory"
            ) from error
        except OSError as error:
            if lock:
                lock.release()
            raise unusable(path, error) from error
        except DataDirectoryError:
            if lock:
                lock.release()
            raise
        return cls(disk, path, lock, OpenSegments(open_segments_max), format=found)

    @property
    def topics_path(self) -> str:
        """The directory with one subdirectory per topic."""
        return f"{self.path}/topics"

    def space(self) -> Space:
        """The room on its file system. Raises `OSError`."""
        return self._disk.space(self.path)

    def set_format(self) -> None:
        """From now on, durably, only versions that know the current format open the directory. Raises `OSError`."""
        _write_format(self._disk, self.path)
        self.format = FORMAT

    def open_log(
        self,
        topic: str,
        partition: int,
        config: LogConfig | None = None,
        *,
        kind: str = "log",
        noted_epoch: int = -1,
        observe: events.Observer = events.ignore,
    ) -> Log:
        """Open the log of a partition or, as `kind` says, its ledger; the replica has heard of the leader epoch."""
        if self._closed:
            raise Conflict(f"the data directory {self.path} is closed")
        if not is_topic_name(topic):
            raise InvalidTopic(topic, TOPIC_NAME_RULE)
        assert partition >= 0
        assert kind in KINDS
        directory = f"{self.topics_path}/{topic}/{partition}/{kind}"
        known = self._logs.get(directory)
        if known and not known.is_closed:
            raise DirectoryLocked(directory, "this process has the log open already")
        log = Log.open(
            self._disk,
            directory,
            config,
            open_segments=self._open_segments,
            observe=observe,
            within=self.path,
            noted_epoch=noted_epoch,
        )
        self._logs[directory] = log
        return log

    def forget(self, log: Log) -> None:
        """Stop tracking a log that is closed or abandoned."""
        assert log.is_closed
        if self._logs.get(log.directory) is log:
            del self._logs[log.directory]

    def close(self) -> None:
        """Close all logs and release the lock; then raise the first error, if there was one."""
        self._closed = True
        errors: list[Exception] = []
        try:
            for log in self._logs.values():
                try:
                    log.close()
                except Exception as error:
                    errors.append(error)
        finally:
            self._lock.release()
        if errors:
            raise errors[0]


def is_topic_name(name: str) -> bool:
    """Whether a topic may have this name, which is also the name of its directory."""
    return _TOPIC.fullmatch(name) is not None and name not in (".", "..")


def is_own_name(name: str) -> bool:
    """Whether a file or directory of this name belongs in a data directory."""
    return name in _OWN_NAMES


def check_format(disk: Disk, path: str) -> int:
    """The format of the data directory. Raises `UnsupportedFormat` or `OSError`."""
    format_path = f"{path}/{_FORMAT_FILE}"
    file = disk.open(format_path, write=False)
    text = file.pread(0, 64).decode("ascii", "replace").strip()
    file.close()
    if not text.startswith(_FORMAT_TEXT) or not text.removeprefix(_FORMAT_TEXT).isdigit():
        raise UnsupportedFormat(format_path, f"expected {_FORMAT_TEXT + str(FORMAT)!r}, found {text!r}")
    found = int(text.removeprefix(_FORMAT_TEXT))
    if found not in FORMATS_READ:
        known = " and ".join(str(one) for one in FORMATS_READ)
        raise UnsupportedFormat(format_path, f"data format {found}; this GoQueue knows {known}")
    return found


def _refuse_foreign(disk: Disk, path: str) -> None:
    for name, _, _ in disk.entries(path):
        if name not in _OWN_NAMES and name not in TOLERATED:
            raise ForeignFile(f"{path}/{name}", "not a file of GoQueue; use an empty directory as data directory")


def _format_of(disk: Disk, path: str) -> int:
    try:
        return check_format(disk, path)
    except FileNotFoundError:
        _write_format(disk, path)
        sync_ancestors(disk, path)
        return FORMAT


def _write_format(disk: Disk, path: str) -> None:
    replace_bytes(disk, path, _FORMAT_FILE, f"{_FORMAT_TEXT}{FORMAT}\n".encode())
