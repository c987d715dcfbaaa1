"""The start of a log that was set by a request: records below it are deleted, though their segment may still be there.

Retention deletes whole segments, so the log starts where its first segment does. A deletion up to an offset may end
within a segment. The file `log-start` then says where the log starts; once the segments before that offset are gone, it
says nothing that the names of the files do not say.

With `flush=interval` a power failure may lose records that were stored when the file was written, and the log may end
before its stored start. New records get the lost offsets again and must not be hidden: the stored start is then lowered
when the log is opened.
"""

import struct

from goqueue.errors import CorruptRecord
from goqueue.storage import small_file
from goqueue.storage.file import Disk
from goqueue.storage.jobs import CancellableJob
from goqueue.storage.layout import LOG_START

_KIND = b"GQLS"
_PAYLOAD = struct.Struct(">Q")


def load(disk: Disk, directory: str) -> int:
    """The stored start. Raises `CorruptRecord` if the file is damaged, and `OSError`."""
    payload = small_file.load(disk, directory, LOG_START, _KIND)
    if len(payload) != _PAYLOAD.size:
        raise CorruptRecord("the file is cut off", len(payload), source=f"{directory}/{LOG_START}")
    offset: int = _PAYLOAD.unpack(payload)[0]
    return offset


def store(disk: Disk, directory: str, offset: int) -> None:
    """Store the start; durable when this returns."""
    small_file.replace(disk, directory, LOG_START, _KIND, _PAYLOAD.pack(offset))


class DeleteRecordsJob(CancellableJob):
    """Stores the new start of the log."""

    def __init__(self, disk: Disk, directory: str, offset: int) -> None:
        super().__init__()
        self._disk = disk
        self._directory = directory
        self.offset = offset

    def _work(self) -> None:
        store(self._disk, self._directory, self.offset)
