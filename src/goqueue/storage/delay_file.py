"""The file of a delay index: read once, appended to, and rewritten when too much of it is dead.

`delivery/delay_index.py` defines the bytes, and uses the valid prefix of a file that is cut off or damaged. The file is
a hint: appends are not synced, and a failed append is not an error.

But a gap between two appends could not be detected later. So after a failed append nothing is appended until the file
has been rewritten; nor is anything appended while there is no file.
"""

from goqueue.record.header import Buffer
from goqueue.storage.file import Disk, File
from goqueue.storage.small_file import replace_bytes

NAME = "delays"
SPARED_BYTES = 65_536
"""How much of the file may be dead before it is worth a rewrite."""


class DelayFile:
    """The index of one partition on the disk. Not thread-safe."""

    def __init__(self, disk: Disk, directory: str, name: str = NAME, *, exists: bool = True) -> None:
        self._disk = disk
        self._directory = directory
        self._name = name
        self.exists = exists  # whether there is a file to load
        self._file: File | None = None
        self.size_bytes = 0
        """The size of the file, as far as it was loaded or written here."""

    @property
    def is_stale(self) -> bool:
        """Whether the file has to be rewritten before the next append: it is missing, or an append failed."""
        return self._file is None

    def is_wasteful(self, live_bytes: int) -> bool:
        """Whether the file should be rewritten in `live_bytes`: more than half of it is dead, or it is stale."""
        return self.is_stale or self.size_bytes > 2 * live_bytes + SPARED_BYTES

    def load(self) -> bytes:
        """The content of the file; empty if there is none. Raises `OSError`."""
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
        """Append the bytes, unsynced; false if that failed."""
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
        """Make all appends durable; false if that failed."""
        if self._file is None:
            return False
        try:
            self._file.sync()
        except OSError:
            self.close()
            return False
        return True

    def rewrite(self, data: Buffer) -> None:
        """Replace the content durably.

        Raises `OSError`; the old content is then unchanged, and the file is stale.
        """
        self.close()
        replace_bytes(self._disk, self._directory, self._name, data)
        self._file = self._disk.open(f"{self._directory}/{self._name}")
        self.exists = True
        self.size_bytes = memoryview(data).nbytes

    def discard(self) -> None:
        """Remove the file durably: the log or the ledger is about to lose records that it may tell of.

        Raises `OSError`; it may then be there or not.
        """
        self.close()
        self._disk.remove(f"{self._directory}/{self._name}")
        self._disk.sync_directory(self._directory)
        self.exists = False
        self.size_bytes = 0

    def close(self) -> None:
        """Close the descriptor; nothing is appended until the next load or rewrite."""
        if self._file:
            self._file.close()
            self._file = None
