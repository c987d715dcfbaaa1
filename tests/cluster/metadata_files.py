"""What tests do to the files of a metadata log."""

from dataclasses import replace

from goqueue.cluster.metadata_file_format import SEGMENT_HEAD_BYTES, SEGMENT_NAME, FoundEntry, walk
from goqueue.storage.file import Disk, read_file


def segment_paths(disk: Disk, directory: str) -> list[str]:
    """The segments, in order."""
    return sorted(f"{directory}/{name}" for name, _, _ in disk.entries(directory) if SEGMENT_NAME.fullmatch(name))


def entries_of(disk: Disk, path: str) -> list[FoundEntry]:
    """Where the whole entries of a segment are in its file."""
    raw = read_file(disk, path)[SEGMENT_HEAD_BYTES:]
    found = walk(raw, int(path.rpartition("/")[2].partition(".")[0]))
    return [
        replace(entry, position=entry.position + SEGMENT_HEAD_BYTES, end=entry.end + SEGMENT_HEAD_BYTES)
        for entry in found
    ]


def damage_entry(disk: Disk, directory: str, index: int) -> None:
    """Flip a bit in the last byte of the entry, where it is stored."""
    for path in segment_paths(disk, directory):
        for entry in entries_of(disk, path):
            if entry.index == index:
                flip_bit(disk, path, entry.end - 1)
                return
    raise AssertionError(f"entry {index} is not there")


def flip_bit(disk: Disk, path: str, position: int, bit: int = 0) -> None:
    file = disk.open(path)
    (byte,) = file.pread(position, 1)
    file.pwrite(position, bytes([byte ^ 1 << bit]))
    file.close()
