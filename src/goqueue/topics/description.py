"""The file `topic.json`: the description of a topic.

A topic exists when this file is in its directory; its logs are made when they are written to. The file is replaced as a
whole when a setting changes, so a crash leaves the old one or the new one. It has a checksum of its content, because a
flipped digit in the number of partitions would hide a log without any sign of damage. It is not meant to be edited.
"""

import msgspec

from goqueue.errors import DamagedFile, UnsupportedFormat
from goqueue.record.kernel import crc32c
from goqueue.storage.file import Disk
from goqueue.storage.small_file import replace_bytes

DESCRIPTION = "topic.json"
FORMAT = 1
_SIZE_MAX = 1024 * 1024


class Description(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is stored of a topic beside its logs."""

    format: int = FORMAT
    name: str
    id: str
    created_at_ns: int
    partitions: int
    replicas: list[int] | msgspec.UnsetType = msgspec.UNSET
    """The partitions that this node has a replica of; all of them if absent, as on a node that is alone."""
    leader_epochs: dict[int, int] | msgspec.UnsetType = msgspec.UNSET
    """By partition, the leader epoch that its replica on this node had heard of when it was made."""
    settings: dict[str, str | int | float | bool]
    crc: int = 0

    def noted_epochs(self) -> dict[int, int]:
        """The `leader_epochs`, if there are any."""
        return {} if isinstance(self.leader_epochs, msgspec.UnsetType) else self.leader_epochs

    def hosted(self) -> list[int]:
        """The partitions that this node has a replica of, in order."""
        return list(range(self.partitions)) if isinstance(self.replicas, msgspec.UnsetType) else sorted(self.replicas)


class _AnyFormat(msgspec.Struct):
    format: int


_decode = msgspec.json.Decoder(Description).decode
_decode_format = msgspec.json.Decoder(_AnyFormat).decode
_encode = msgspec.json.Encoder().encode


def store(disk: Disk, directory: str, description: Description) -> None:
    """Replace the description of the topic in the directory; durable when this returns."""
    sealed = msgspec.structs.replace(description, crc=_crc(description))
    replace_bytes(disk, directory, DESCRIPTION, _encode(sealed), b"\n")


def load(disk: Disk, directory: str) -> Description:
    """The stored description. Raises `FileNotFoundError` if there is no topic, and `DataDirectoryError`."""
    path = f"{directory}/{DESCRIPTION}"
    file = disk.open(path, write=False)
    data = file.pread(0, _SIZE_MAX)
    file.close()
    try:
        found = _decode_format(data).format
        if found != FORMAT:
            raise UnsupportedFormat(path, f"topic format {found}; this GoQueue knows {FORMAT}")
        description = _decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise DamagedFile(
            path, f"damaged, and not the description of a topic: {error}; restore it from a backup"
        ) from error
    if description.crc != _crc(description):
        raise DamagedFile(path, "damaged, or edited by hand: its checksum is wrong; restore it from a backup")
    return description


def _crc(description: Description) -> int:
    return crc32c(_encode(msgspec.structs.replace(description, crc=0)))
