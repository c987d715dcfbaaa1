"""A small file that is replaced as a whole: after a crash it is either the old one or the new one.

    0      4         6      8        12      16
    +------+---------+------+--------+-------+---------+
    | kind | version | 0    | length | crc   | payload |
    +------+---------+------+--------+-------+---------+

The crc is CRC-32C of kind, version, length and payload. The new content is written to a second file, synced, and
renamed over the old one; the directory is synced last. `replace_bytes` does that for files of any other format.
"""

import struct

from goqueue.errors import CorruptRecord, UnsupportedFormat
from goqueue.record.header import Buffer
from goqueue.record.kernel import crc32c
from goqueue.storage.file import Disk, read_file
from goqueue.storage.layout import NEW

_HEAD = struct.Struct(">4sHHII")
HEAD_BYTES = 16
VERSION = 1
assert _HEAD.size == HEAD_BYTES


def replace(disk: Disk, directory: str, name: str, kind: bytes, payload: bytes) -> None:
    """Replace the payload of the file; durable when this returns."""
    head = _HEAD.pack(kind, VERSION, 0, len(payload), _crc(kind, VERSION, payload))
    replace_bytes(disk, directory, name, head, payload)


def replace_bytes(disk: Disk, directory: str, name: str, *chunks: Buffer) -> None:
    """Replace the content of the file by the chunks; durable when this returns."""
    path = f"{directory}/{name}"
    disk.remove(path + NEW)
    file = disk.open(path + NEW, create=True)
    file.append(*chunks)
    file.sync()
    file.close()
    disk.rename(path + NEW, path)
    disk.sync_directory(directory)


def load(disk: Disk, directory: str, name: str, kind: bytes) -> bytes:
    """The payload. Raises `CorruptRecord` if the file is damaged, and `OSError`."""
    path = f"{directory}/{name}"
    data = read_file(disk, path)
    if len(data) < HEAD_BYTES:
        raise CorruptRecord("the file is cut off", len(data), source=path)
    found, version, _, length, crc = _HEAD.unpack_from(data)
    payload = data[HEAD_BYTES:]
    if found != kind or length != len(payload) or crc != _crc(kind, version, payload):
        raise CorruptRecord("checksum mismatch", 0, source=path)
    if version != VERSION:
        raise UnsupportedFormat(path, f"format version {version}; this GoQueue knows {VERSION}")
    return payload


def _crc(kind: bytes, version: int, payload: bytes) -> int:
    return crc32c(payload, crc32c(_HEAD.pack(kind, version, 0, len(payload), 0)))
