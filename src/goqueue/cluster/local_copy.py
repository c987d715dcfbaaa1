"""What a node keeps of the metadata on its own disk: who it is, and its own copy of snapshot and log.

    <directory>/identity   node, id of this directory, cluster; the floor (below)
    <directory>/forming    the first entry of a cluster, while this node tries to form it
    <directory>/snapshot   the state after some entry
    <directory>/entries    the entries after it, one after the other as `MetadataEntry.encode` writes them
    <directory>/clean      the broker epoch under which the node was stopped cleanly

The copy is what rule R11 rests on: a node that knows which entry it has applied last notices that the shared log went
back, and `goqueue cluster recover` can rebuild the log from a copy. So an entry is synced here before it is applied:
the state of a node, and with it the roles that it takes, never runs ahead of its copy. The sync blocks for as long as a
disk likes, so it runs in a worker thread and the event loop, with all publishes and polls, goes on. Entries that arrive
meanwhile are written by the next sync together.

After a crash the last entries may be torn: they were not applied, and are cut off. Damage anywhere else makes the copy
useless, but not its position: the state is read again from the shared log, which has to go at least as far as any entry
that can still be recognized here. That position is the floor. Without its identity a node cannot know whose copy it is,
and refuses to start.
"""

import posixpath
from collections.abc import Callable, Iterable, Sequence
from errno import ENOENT
from typing import Final

import msgspec

from goqueue.broker.partition.log_jobs import Workers
from goqueue.cluster.metadata import Metadata
from goqueue.cluster.metadata_log import (
    EMPTY,
    HEADER_BYTES,
    MetadataEntry,
    MetadataPosition,
)
from goqueue.cluster.records import PartitionChanged, Record
from goqueue.errors import ClusterError, CorruptRecord, MetadataDamaged, StorageFailed, StorageFull
from goqueue.runtime.entropy import Entropy
from goqueue.service.pending import Pending
from goqueue.storage import small_file
from goqueue.storage.file import NO_ROOM, Disk, File, read_file, sync_ancestors, unusable

SNAPSHOT_BYTES_MIN: Final = 4 * 1024 * 1024
"""Entries are replaced by a snapshot when they take more than that, and more than the last snapshot did."""

_IDENTITY: Final = ("identity", b"GQNI")
_FORMING: Final = ("forming", b"GQNF")
_SNAPSHOT: Final = ("snapshot", b"GQNS")
_CLEAN: Final = ("clean", b"GQNC")
_ENTRIES: Final = "entries"
_MAGIC: Final = b"GQML"
_SIZE_AT: Final = slice(24, 28)  # the length of the batch, in the header of an entry


class _Identity(msgspec.Struct, frozen=True):
    node: int
    directory_id: str
    cluster_id: str = ""
    floor_index: int = 0
    floor_id: bytes = EMPTY.id
    leader_epoch: int = 0


_encode_identity = msgspec.msgpack.Encoder().encode
_decode_identity = msgspec.msgpack.Decoder(_Identity).decode


class _Work:
    """A job of the copy, for a worker thread."""

    def __init__(self, run: Callable[[], None]) -> None:
        self.run = run


class LocalCopy:
    """The copy of one node. Made by `open`. One job at a time: `append` and `store` before the last one is done."""

    def __init__(self, disk: Disk, directory: str, workers: Workers | None) -> None:
        self._disk = disk
        self._directory = directory
        self._workers = workers
        self._identity = _Identity(0, "")
        self._file: File | None = None
        self._snapshot_bytes = 0
        self.entries_bytes = 0
        """Of the entries after the snapshot."""
        self.metadata = Metadata()
        """The state after the last entry of the copy, when it was opened; its reader goes on with it."""
        self.forming: MetadataEntry | None = None
        """The first entry of the cluster that this node began to form."""
        self.clean_epoch: int | None = None
        """The broker epoch under which the node was last stopped cleanly."""
        self.leader_epoch = 0
        """The highest leader epoch of any partition that this node has ever heard of."""
        self.damage = ""
        """What is wrong with the copy, if its state has to be read again."""

    @classmethod
    def open(
        cls, disk: Disk, directory: str, *, node: int, entropy: Entropy, workers: Workers | None = None
    ) -> "LocalCopy":
        """Read the copy, or begin one for this node. Blocks. Without `workers` everything else blocks as well.

        Raises `ClusterError` with a sentence if it is of another node or cannot be recognized, `MetadataTooNew`,
        `UnsupportedFormat`, and `DirectoryUnusable` or `StorageFull`.
        """
        copy = cls(disk, directory, workers)
        try:
            disk.make_directory(directory)
            copy._open_identity(node, entropy)
            copy._load()
        except OSError as error:
            raise unusable(directory, error) from error
        return copy

    @property
    def node(self) -> int:
        """The node that the copy belongs to."""
        return self._identity.node

    @property
    def directory_id(self) -> str:
        """The id of the data directory: two directories never have the same, unless one is a clone of the other."""
        return self._identity.directory_id

    @property
    def cluster_id(self) -> str:
        """The cluster; empty as long as the node belongs to none."""
        return self._identity.cluster_id

    @property
    def floor(self) -> MetadataPosition:
        """The highest position that this node is known to have applied when the copy was opened: the shared log may
        not end before it.
        """
        kept = MetadataPosition(self._identity.floor_index, self._identity.floor_id)
        return max(kept, self.metadata.position, key=lambda position: position.index)

    # --- what changes it at the start and at the end: these block ------------------------------------

    def begin_forming(self, entry: MetadataEntry) -> None:
        """Remember the entry, durably, before it is appended: after a crash it is this one that is tried again."""
        self._replace(_FORMING, entry.encode())
        self.forming = entry

    def join(self, cluster_id: str) -> None:
        """The node belongs to this cluster from now on."""
        assert self.cluster_id in ("", cluster_id)
        if not self.cluster_id:
            self._put_identity(msgspec.structs.replace(self._identity, cluster_id=cluster_id))
        if self.forming is not None:
            self._disk.remove(f"{self._directory}/{_FORMING[0]}")
            self.forming = None

    def begin_again(self) -> None:
        """Forget the damaged state; the floor stays."""
        floor = self.floor
        self._put_identity(
            msgspec.structs.replace(
                self._identity, floor_index=floor.index, floor_id=floor.id, leader_epoch=self.leader_epoch
            )
        )
        self._disk.remove(f"{self._directory}/{_SNAPSHOT[0]}")
        self._entries_file().truncate(0)
        self._entries_file().sync()
        self._disk.sync_directory(self._directory)
        self.entries_bytes = self._snapshot_bytes = 0
        self.metadata, self.damage = Metadata(), ""

    def mark_clean(self, broker_epoch: int) -> None:
        """The node stops now, and all logs of its directory are closed and synced."""
        self._replace(_CLEAN, broker_epoch.to_bytes(8, "big"))

    def close(self) -> None:
        """Close the files."""
        if self._file is not None:
            self._file.close()

    # --- while the node runs -------------------------------------------------------------------------

    def append(self, entries: Sequence[MetadataEntry]) -> Pending[None]:
        """Keep the next entries; done when they are on the disk.

        Fails with `StorageFull`, after which it may be tried again, or with `StorageFailed`.
        """
        raise NotImplementedError

    def store(self, metadata: Metadata) -> Pending[None]:
        """Replace the copy by a snapshot of this state, which must not change before it is done."""
        raise NotImplementedError

    def heard(self, records: Iterable[Record]) -> None:
        """These records took effect."""
        for record in records:
            if isinstance(record, PartitionChanged):
                self.leader_epoch = max(self.leader_epoch, record.leader_epoch)

    @property
    def wants_snapshot(self) -> bool:
        """Whether the entries have become so many that a snapshot is smaller."""
        return self.entries_bytes > max(SNAPSHOT_BYTES_MIN, self._snapshot_bytes)
