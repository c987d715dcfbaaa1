"""The file of a delay index: read once, appended to, and replaced when too much of it is dead.

What the bytes mean is the business of `delivery/delay_index.py`, which takes a file that was cut off or damaged for
what is left of it. It is a hint: appends are not synced, and a disk that does not take one is no error.

But there must be no gap between two appends that cannot be seen afterwards. So after the first one that failed,
nothing is appended until the file has been replaced; and neither before there is a file to append to.
"""

from goqueue.record.header import Buffer
from goqueue.storage.file import Disk, File
from goqueue.storage.small_file import replace_bytes

NAME = "delays"
SPARED_BYTES = 65_536
"""So much may be dead in any case."""


class DelayFile:
    """The index of one partition on the disk. Not thread-safe."""

    def __init__(self, disk: Disk, directory: str, name: str = NAME, *, exists: bool = True) -> None:
        self._disk = disk
        self._directory = directory
        self._name = name
        self.exists = exists  # else there is none to be loaded
        self._file: File | None = None
        self.size_bytes = 0
        """How long the file is, as far as it was written here or loaded."""

    @property
    def is_stale(self) -> bool:
        """Whether nothing is appended before the file is replaced: it is missing, or an append failed."""
        return self._file is None

    def is_wasteful(self, live_bytes: int) -> bool:
        """Whether the file should be replaced by one of that size: more than half of it is dead, or it is stale."""
        return self.is_stale or self.size_bytes > 2 * live_bytes + SPARED_BYTES

    def load(self) -> bytes:
        """The content of the file; nothing if there is none. Raises `OSError` if the disk does not give it."""
        self.close()
        try:
            file = self._disk.open(f"{self._directory}/{self._name}")
        except FileNotFoundError:
            return b""
        raw = file.pread(0, file.size())
        self._file = file
        self.size_bytes = len(raw)
        return raw

    def append(self, data: Buffer) -> bool:
        """Put the bytes at the end, to reach the medium some time; whether that was possible."""
        if self._file is None:
            return False
        try:
            self._file.append(data)
        except OSError:
            self.close()
            return False
        self.size_bytes += memoryview(data).nbytes
        return True

    def sync(self) -> bool:
        """Bring all that was appended to the medium; whether that was possible."""
        if self._file is None:
            return False
        try:
            self._file.sync()
        except OSError:
            self.close()
            return False
        return True

    def rewrite(self, data: Buffer) -> None:
        """Make these bytes, and nothing else, the content; on the medium when this returns, and else all as before.

        Raises `OSError`, and leaves the file stale.
        """
        self.close()
        replace_bytes(self._disk, self._directory, self._name, data)
        self._file = self._disk.open(f"{self._directory}/{self._name}")
        self.size_bytes = memoryview(data).nbytes

    def close(self) -> None:
        """Give the descriptor back; nothing is appended until the next load or rewrite."""
        if self._file:
            self._file.close()
            self._file = None
