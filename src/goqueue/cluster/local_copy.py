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

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Generic, NamedTuple, TypeVar

import msgspec

from goqueue.broker.partition.log_jobs import Workers
from goqueue.cluster.metadata import Metadata
from goqueue.cluster.metadata_log import EMPTY, HEADER_BYTES, MetadataEntry, MetadataPosition
from goqueue.cluster.records import PartitionChanged, Record, decode_batch
from goqueue.errors import ClusterError, CorruptRecord, MetadataDamaged, StorageFailed, StorageFull
from goqueue.runtime.entropy import Entropy
from goqueue.service.pending import Pending
from goqueue.storage import small_file
from goqueue.storage.file import NO_ROOM, Disk, File, read_file, sync_ancestors, unusable

T = TypeVar("T")


class _SmallFile(NamedTuple):
    name: str
    kind: bytes


_IDENTITY: Final = _SmallFile("identity", b"GQNI")
_FORMING: Final = _SmallFile("forming", b"GQNF")
_SNAPSHOT: Final = _SmallFile("snapshot", b"GQNS")
_CLEAN: Final = _SmallFile("clean", b"GQNC")
_ENTRIES: Final = "entries"
_MAGIC: Final = b"GQML"
_SIZE_AT: Final = slice(24, 28)  # the length of the batch, in the header of an entry
_EPOCH_BYTES: Final = 8
_PROCESSES_MAX: Final = 64
_CURE: Final = (
    "If other nodes have replicas of everything, or nothing of this node is needed, start it with an empty data "
    "directory; else restore the file from a backup"
)


class _Identity(msgspec.Struct, frozen=True):
    node: int
    directory_id: str
    cluster_id: str = ""
    floor_index: int = 0
    floor_id: bytes = EMPTY.id
    leader_epoch: int = 0
    is_removed: bool = False
    processes: tuple[str, ...] = ()  # incarnations


_encode_identity = msgspec.msgpack.Encoder().encode
_decode_identity = msgspec.msgpack.Decoder(_Identity).decode


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotPolicy:
    """When a node replaces the entries of its copy by a snapshot. The controller also gives that to the shared log."""

    entries: int = 4_096
    bytes: int = 4 * 1024 * 1024  # or more, if the last snapshot had more: so snapshots cost no more than entries
    entries_kept: int = 1_000  # in the shared log, before the snapshot: so that few nodes need it to catch up

    def is_due(self, entries: int, entry_bytes: int, snapshot_bytes: int) -> bool:
        """Whether so many entries call for a snapshot."""
        return entries >= self.entries or entry_bytes > max(self.bytes, snapshot_bytes)


DEFAULT_POLICY: Final = SnapshotPolicy()


class _CopyJob(Generic[T]):
    """A job of the copy, for a worker thread."""

    def __init__(self, work: Callable[[], T]) -> None:
        self._work = work
        self.result: T

    def run(self) -> None:
        self.result = self._work()


def removed_sentence(node: int) -> str:
    """Why a node that was removed does not start."""
    return (
        f"node {node} was removed from the cluster with this data directory: start it with an empty one to let it join "
        f"again"
    )


class LocalCopy:
    """The copy of one node. Made by `open`. One job at a time: `append` and `store` before the last one is done."""

    def __init__(self, disk: Disk, directory: str, workers: Workers | None, policy: SnapshotPolicy) -> None:
        self._disk = disk
        self._directory = directory
        self._workers = workers
        self._identity = _Identity(0, "")
        self._file: File | None = None
        self._running = 0
        self._is_closing = False
        self._snapshot_bytes = 0
        self._entries = 0
        self._entries_bytes = 0
        self.policy = policy
        self.metadata = Metadata()
        """The state after the last entry of the copy, when it was opened; its reader goes on with it."""
        self.forming: MetadataEntry | None = None
        """The first entry of the cluster that this node began to form."""
        self.has_formed = False
        """Whether this process has formed the cluster."""
        self.clean_epoch: int | None = None
        """The broker epoch under which the node was last stopped cleanly."""
        self.leader_epoch = 0
        """The highest leader epoch of any partition that this node has ever heard of."""
        self.damage = ""
        """What is wrong with the copy, if its state has to be read again."""

    @classmethod
    def open(
        cls,
        disk: Disk,
        directory: str,
        *,
        node: int,
        entropy: Entropy,
        workers: Workers | None = None,
        policy: SnapshotPolicy = DEFAULT_POLICY,
    ) -> "LocalCopy":
        """Read the copy, or begin one for this node. Blocks. Without `workers` everything else blocks as well.

        Raises `ClusterError` with a sentence if it is of another node or cannot be recognized, `MetadataTooNew`,
        `UnsupportedFormat`, and `DirectoryUnusable` or `StorageFull`.
        """
        copy = cls(disk, directory, workers, policy)
        try:
            disk.make_directory(directory)
            copy._open_identity(node, entropy)
            copy._load()
        except OSError as error:
            raise unusable(directory, error) from error
        return copy

    @classmethod
    def find(cls, disk: Disk, directory: str) -> "LocalCopy":
        """Read the copy that is in this directory, of whichever node. Nothing is changed.

        Raises as `open` does, and `ClusterError` if there is none.
        """
        copy = cls(disk, directory, None, DEFAULT_POLICY)
        try:
            copy._read_identity()
            if not copy.cluster_id:
                raise ClusterError(f"{directory} has no copy of the metadata of a cluster: it was never part of one")
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

    def join(self, cluster_id: str, *, has_formed: bool = False) -> None:
        """The node belongs to this cluster from now on."""
        self.has_formed = has_formed
        assert self.cluster_id in ("", cluster_id)
        if not self.cluster_id:
            self._put_identity(msgspec.structs.replace(self._identity, cluster_id=cluster_id))
        if self.forming is not None:
            self._disk.remove(f"{self._directory}/{_FORMING.name}")
            self.forming = None

    def begin_again(self) -> None:
        """Forget the damaged state; the floor stays."""
        floor = self.floor
        self._put_identity(
            msgspec.structs.replace(
                self._identity, floor_index=floor.index, floor_id=floor.id, leader_epoch=self.leader_epoch
            )
        )
        self._disk.remove(f"{self._directory}/{_SNAPSHOT.name}")
        self._entries_file().truncate(0)
        self._entries_file().sync()
        self._disk.sync_directory(self._directory)
        self._entries = self._entries_bytes = self._snapshot_bytes = 0
        self.damage = ""

    def begin_process(self, incarnation: str, registered: str = "") -> None:
        """A process is about to register the node from this directory; `registered` is the one that is registered now.

        Those before that one can be forgotten. Those after it may still be registered late.
        """
        known = self._identity.processes
        first = known.index(registered) if registered in known else 0
        processes = (*known[first:], incarnation)[-_PROCESSES_MAX:]
        self._put_identity(msgspec.structs.replace(self._identity, processes=processes))

    def has_been(self, incarnation: str) -> bool:
        """Whether this process has registered the node from this directory, or from one of which this is a copy."""
        return incarnation in self._identity.processes

    def mark_removed(self) -> None:
        """The node was removed from the cluster: it must not come back by a mere restart."""
        self._put_identity(msgspec.structs.replace(self._identity, is_removed=True))

    def mark_clean(self, broker_epoch: int) -> None:
        """The node stops now, and all logs of its directory are closed and synced."""
        self._replace(_CLEAN, broker_epoch.to_bytes(8, "big"))

    def close(self) -> None:
        """Close the files, after the job that may be under way."""
        self._is_closing = True
        if self._file is not None and not self._running:
            self._file.close()

    # --- while the node runs -------------------------------------------------------------------------

    def append(self, entries: Sequence[MetadataEntry]) -> Pending[None]:
        """Keep the next entries; done when they are on the disk.

        Fails with `StorageFull`, after which it may be tried again, or with `StorageFailed`.
        """
        raw = b"".join(entry.encode() for entry in entries)

        def write() -> None:
            file = self._entries_file()
            file.truncate(self._entries_bytes)  # nothing, unless the last write failed halfway
            file.append(raw)
            file.sync()
            self._entries_bytes += len(raw)
            self._entries += len(entries)

        return self._run(write)

    def store(self, metadata: Metadata) -> Pending[bytes]:
        """Replace the copy by a snapshot of this state, which must not change before it is done. The bytes of the state
        are returned. Fails as `append` does.
        """

        def write() -> bytes:
            state = metadata.encode()
            payload = self.leader_epoch.to_bytes(_EPOCH_BYTES, "big") + state
            self._replace(_SNAPSHOT, payload)
            # A crash here leaves entries that the snapshot covers; they are skipped.
            file = self._entries_file()
            file.truncate(0)
            file.sync()
            self._entries = self._entries_bytes = 0
            self._snapshot_bytes = len(payload)
            return state

        return self._run(write)

    def heard(self, records: Iterable[Record]) -> None:
        """These records took effect."""
        for record in records:
            if isinstance(record, PartitionChanged):
                self.leader_epoch = max(self.leader_epoch, record.leader_epoch)

    @property
    def wants_snapshot(self) -> bool:
        """Whether it is time to replace the entries by a snapshot."""
        return self.policy.is_due(self._entries, self._entries_bytes, self._snapshot_bytes)

    # --- reading it ----------------------------------------------------------------------------------

    def _open_identity(self, node: int, entropy: Entropy) -> None:
        if not self._read_identity():
            for name in (_SNAPSHOT.name, _FORMING.name, _CLEAN.name, _ENTRIES):
                if self._exists(name):
                    raise ClusterError(
                        f"{self._directory} has {name}, but no identity: nobody can tell which node it belongs to. "
                        f"{_CURE}"
                    )
            sync_ancestors(self._disk, self._directory)
            self._put_identity(_Identity(node, entropy.bytes(16).hex()))
            return
        if self._identity.node != node:
            raise ClusterError(
                f"{self._directory} belongs to node {self._identity.node}, not to node {node}: start it as node "
                f"{self._identity.node}, or give node {node} a directory of its own"
            )

    def _read_identity(self) -> bool:
        """Whether there is one. Raises `ClusterError` if it is damaged, or of a node that was removed."""
        raw = self._read_or_refuse(_IDENTITY)
        if raw is None:
            return False
        try:
            self._identity = _decode_identity(raw)
        except msgspec.DecodeError as error:
            raise ClusterError(f"{self._directory}/{_IDENTITY.name} cannot be read: {error}. {_CURE}") from error
        if self._identity.is_removed:
            raise ClusterError(removed_sentence(self._identity.node))
        return True

    def _load(self) -> None:
        self.leader_epoch = self._identity.leader_epoch
        forming = self._read_or_refuse(_FORMING)
        self.forming = MetadataEntry.decode(forming) if forming else None
        with suppress(CorruptRecord):  # nobody can tell that it was stopped cleanly
            clean = self._read(_CLEAN)
            self.clean_epoch = int.from_bytes(clean, "big") if clean else None
        entries, whole_bytes = self._read_entries()
        try:
            self._load_snapshot()
            if not self.damage:
                self._load_entries(entries)
        except (MetadataDamaged, CorruptRecord) as error:
            self.damage = self.damage or f"{self._directory}/{_SNAPSHOT.name}: {error}"
        self._entries, self._entries_bytes = len(entries), whole_bytes
        if self.damage:
            known = [self.metadata.position, *(entry.position for entry in entries)]
            newest = max(known, key=lambda position: position.index)
            self.metadata = Metadata()
            for entry in entries:
                with suppress(ClusterError):
                    self.heard(decode_batch(entry.batch))
            if newest.index > self._identity.floor_index:
                self._identity = msgspec.structs.replace(self._identity, floor_index=newest.index, floor_id=newest.id)

    def _load_snapshot(self) -> None:
        raw = self._read(_SNAPSHOT)
        if raw is None:
            return
        self.metadata = Metadata.decode(raw[_EPOCH_BYTES:])
        self.leader_epoch = max(self.leader_epoch, int.from_bytes(raw[:_EPOCH_BYTES], "big"))
        self._snapshot_bytes = len(raw)

    def _load_entries(self, entries: Iterable[MetadataEntry]) -> None:
        for entry in entries:
            if entry.index <= self.metadata.position.index:
                continue
            if entry.after != self.metadata.position:
                self.damage = f"{self._directory}/{_ENTRIES}: entry {entry.index} does not follow the one before it"
                return
            self.heard(self.metadata.apply(entry))

    def _read_entries(self) -> tuple[list[MetadataEntry], int]:
        """All entries that can be recognized, and how many bytes those before the first torn one have."""
        if not self._exists(_ENTRIES):
            return [], 0
        raw = read_file(self._disk, f"{self._directory}/{_ENTRIES}")
        entries, whole_bytes = _whole_entries(raw)
        later = _entries_after_damage(raw, whole_bytes)
        if later:
            self.damage = f"{self._directory}/{_ENTRIES} is damaged at byte {whole_bytes}"
        return entries + later, whole_bytes

    def _read(self, file: _SmallFile) -> bytes | None:
        """The payload of a small file; None if there is none. Raises `CorruptRecord`."""
        if not self._exists(file.name):
            return None
        return small_file.load(self._disk, self._directory, file.name, file.kind)

    def _read_or_refuse(self, file: _SmallFile) -> bytes | None:
        """The same for a file without which nothing can be done."""
        try:
            return self._read(file)
        except CorruptRecord as error:
            raise ClusterError(f"{self._directory}/{file.name} is damaged. {_CURE}") from error

    def _exists(self, name: str) -> bool:
        return any(entry.name == name for entry in self._disk.entries(self._directory))

    # --- writing it ----------------------------------------------------------------------------------

    def _put_identity(self, identity: _Identity) -> None:
        self._replace(_IDENTITY, _encode_identity(identity))
        self._identity = identity

    def _replace(self, file: _SmallFile, payload: bytes) -> None:
        small_file.replace(self._disk, self._directory, file.name, file.kind, payload)

    def _entries_file(self) -> File:
        if self._file is None:
            is_new = not self._exists(_ENTRIES)
            self._file = self._disk.open(f"{self._directory}/{_ENTRIES}", create=True)
            if is_new:
                self._disk.sync_directory(self._directory)
        return self._file

    def _run(self, work: Callable[[], T]) -> Pending[T]:
        pending: Pending[T] = Pending()
        job = _CopyJob(work)

        def done(error: Exception | None) -> None:
            self._running -= 1
            if self._is_closing:
                self.close()
            if isinstance(error, OSError):
                pending.fail(self._failure(error))
            elif error is not None:
                pending.fail(error)
            else:
                pending.resolve(job.result)

        self._running += 1
        if self._workers is not None:
            self._workers.submit(job, done)
            return pending
        try:
            job.run()
        except OSError as error:
            done(error)
        else:
            done(None)
        return pending

    def _failure(self, error: OSError) -> StorageFull | StorageFailed:
        reason = error.strerror or str(error)
        if error.errno in NO_ROOM:
            return StorageFull(self._directory, reason)
        return StorageFailed(self._directory, "writing", reason)


def _whole_entries(raw: bytes) -> tuple[list[MetadataEntry], int]:
    """The entries from the beginning, until one cannot be read."""
    entries: list[MetadataEntry] = []
    position = 0
    while position < len(raw):
        entry = _entry_at(raw, position)
        if entry is None:
            break
        entries.append(entry)
        position += HEADER_BYTES + len(entry.batch)
    return entries, position


def _entries_after_damage(raw: bytes, position: int) -> list[MetadataEntry]:
    """What can be recognized after the first entry that cannot be read: nothing if that is only torn."""
    entries: list[MetadataEntry] = []
    while (position := raw.find(_MAGIC, position + 1)) >= 0:
        entry = _entry_at(raw, position)
        if entry is not None:
            entries.append(entry)
            position += HEADER_BYTES + len(entry.batch) - 1
    return entries


def _entry_at(raw: bytes, position: int) -> MetadataEntry | None:
    head = raw[position : position + HEADER_BYTES]
    size = HEADER_BYTES + int.from_bytes(head[_SIZE_AT], "big")
    try:
        return MetadataEntry.decode(raw[position : position + size])
    except MetadataDamaged:
        return None
