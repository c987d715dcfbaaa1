"""A log that has no files yet.

A topic with a thousand partitions costs nothing on the disk until they are written to: the directory of a log and its
files are made before its first write, which may be an append, an epoch or a mark. All names are durable before the
checkpoint is, and the checkpoint before there is a record: recovery tells torn writes from damage by it. That is a few
milliseconds of the owner's time, once in the life of a log.
"""

from goqueue.storage.checkpoint import Checkpoint, CheckpointFile
from goqueue.storage.file import Disk, sync_ancestors
from goqueue.storage.segment import Segment

START = Checkpoint(0, 0, 0, 0)


class NewLog:
    """What there is to be made. The name of `within`, a directory above, is durable; without it, none is."""

    def __init__(
        self, disk: Disk, directory: str, within: str, checkpoint_file: CheckpointFile, segment: Segment
    ) -> None:
        self._disk = disk
        self._directory = directory
        self._within = within
        self._checkpoint_file = checkpoint_file
        self._segment = segment

    def make(self) -> None:
        """Make the directory and the files, durably. What an error has left half made, the next call completes.

        Raises `OSError`.
        """
        self._disk.make_directory(self._directory)
        self._checkpoint_file.make_room()
        self._disk.sync_directory(self._directory)
        sync_ancestors(self._disk, self._directory, within=self._within)
        self._segment.make_file()
        self._checkpoint_file.write(START, sync=True)
