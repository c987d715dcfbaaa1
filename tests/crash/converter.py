"""Converts a data directory, and kills itself with SIGKILL before its n-th change of a directory or file."""

import os
import signal
import sys

from goqueue.broker.conversion import convert
from goqueue.storage.directory import DataDirectory
from goqueue.storage.file import OsDisk, OsFile


class Deadly(OsDisk):
    """A disk whose process dies before a change."""

    def __init__(self, changes: int) -> None:
        self._left = changes

    def _change(self) -> None:
        self._left -= 1
        if self._left < 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def open(self, path: str, *, create: bool = False, write: bool = True) -> OsFile:
        if create:
            self._change()
        return super().open(path, create=create, write=write)

    def rename(self, source: str, target: str) -> None:
        self._change()
        super().rename(source, target)

    def remove_tree(self, path: str) -> None:
        self._change()
        super().remove_tree(path)

    def sync_directory(self, path: str) -> None:
        self._change()
        super().sync_directory(path)


if __name__ == "__main__":
    disk = Deadly(int(sys.argv[2]))
    directory = DataDirectory.open(disk, sys.argv[1])
    convert(directory, disk)
    directory.close()
    sys.stdout.write(str(int(sys.argv[2]) - disk._left))
