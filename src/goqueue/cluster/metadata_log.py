"""The metadata log: the one list of decisions that all nodes of a cluster apply in the same order.

Consensus is left to an engine that the field trusts. GoQueue needs one operation of it, compare-and-append: add an
entry if the log still ends where the author believes it does. So an author computes each decision on exactly the state
that the decision is appended to, and of two authors at the same position one loses and learns that it has.

    implementation       for                               compare-and-append by
    FileMetadataLog      the nodes of one machine          a locked file (file_log.py)
    EtcdMetadataLog      several machines                  one etcd transaction (etcd_log.py)
    SimulatedMetadataLog goqueue.testing, the simulator    memory; slow, unreachable or in doubt on request

A position is an index and the random id of the entry there. The id is new for every entry, so a position names one
history: two logs that have the same position are the same up to there. Each entry also names the position before it.

The outcome of an append is `EntryAppended`, `EntryLost` (another entry is at that index; nothing of this one was
written and nothing ever will be) or `EntryUnknown`. After `EntryUnknown` the entry may still appear: the author makes
no new decision until it has seen who occupies that index. The unit of a retry is the same entry with the same id, so
appending it again is harmless.

A log is trimmed below a snapshot of the state. `read` and `watch` raise `MetadataTrimmed` for an index that is gone:
load the snapshot, and go on after it. Payload of users never passes through this log.

An operator may `replace` a log by a snapshot: to move it to another engine, or to rebuild one that lost entries.
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from struct import Struct
from typing import Final, NamedTuple, Protocol

from goqueue.errors import MetadataDamaged
from goqueue.record.kernel import crc32c

ID_BYTES: Final = 16
NO_ID: Final = bytes(ID_BYTES)
FORMAT: Final = 1
BATCH_BYTES_MAX: Final = 1024 * 1024
"""Below etcd's limit of 1.5 MiB for a request."""
PAGE_BYTES_MAX: Final = 8 * 1024 * 1024
"""What the batches of one `read` have at most, together: a bound on the memory of a node that catches up."""

#  0       4       6      8       16      24     28    44            60     64
#  | magic | format| node | index | epoch | size | id  | previous id | crc  | batch ...
_HEADER: Final = Struct(">4sHHQQI16s16sI")
HEADER_BYTES: Final = 64
assert _HEADER.size == HEADER_BYTES
_MAGIC: Final = b"GQML"
_CRC_POSITION: Final = HEADER_BYTES - 4


@dataclass(frozen=True, slots=True)
class MetadataPosition:
    """A place in the log: the index of an entry and its id. Two equal positions have the same history."""

    index: int
    id: bytes


EMPTY: Final = MetadataPosition(0, NO_ID)
"""Where an empty log ends. The first entry has index 1."""


@dataclass(frozen=True, slots=True)
class MetadataEntry:
    """One batch of records in the log, with its author. `batch` is opaque here (`records.py`)."""

    index: int
    id: bytes
    previous_id: bytes
    epoch: int  # of the controller that wrote it; the epoch that it begins, for `ControllerElected`
    node: int
    batch: bytes

    @property
    def position(self) -> MetadataPosition:
        """Where the log ends if this is its last entry."""
        return MetadataPosition(self.index, self.id)

    @property
    def after(self) -> MetadataPosition:
        """Where the log ended before it."""
        return MetadataPosition(self.index - 1, self.previous_id)

    def encode(self) -> bytes:
        """The bytes that are stored, with a checksum over all of them."""
        head = bytearray(HEADER_BYTES)
        size = len(self.batch)
        assert size <= BATCH_BYTES_MAX
        _HEADER.pack_into(
            head, 0, _MAGIC, FORMAT, self.node, self.index, self.epoch, size, self.id, self.previous_id, 0
        )
        crc = crc32c(bytes(head[:_CRC_POSITION]) + self.batch)
        head[_CRC_POSITION:] = crc.to_bytes(4, "big")
        return bytes(head) + self.batch

    @classmethod
    def decode(cls, raw: bytes) -> "MetadataEntry":
        """The entry of these bytes. Raises `MetadataDamaged` if they are anything else."""
        if len(raw) < HEADER_BYTES:
            raise MetadataDamaged(f"an entry has {len(raw)} bytes; its header alone has {HEADER_BYTES}")
        magic, format, node, index, epoch, size, id, previous_id, crc = _HEADER.unpack_from(raw)
        if magic != _MAGIC:
            raise MetadataDamaged("an entry does not begin with GQML")
        batch = raw[HEADER_BYTES:]
        if size != len(batch) or crc32c(raw[:_CRC_POSITION] + batch) != crc:
            raise MetadataDamaged(f"the checksum of entry {index} is wrong")
        if format != FORMAT:
            raise MetadataDamaged(f"entry {index} has format {format}; this version reads {FORMAT}: update GoQueue")
        return cls(index, id, previous_id, epoch, node, batch)


class EntryAppended(NamedTuple):
    """The entry is in the log for good."""

    position: MetadataPosition


class EntryLost(NamedTuple):
    """Another entry is there; this one was not written and never will be. Read on from the position it came after."""


class EntryUnknown(NamedTuple):
    """The entry may be in the log, or may still come: decide nothing before its index is occupied."""

    position: MetadataPosition


AppendOutcome = EntryAppended | EntryLost | EntryUnknown


class MetadataSnapshot(NamedTuple):
    """The state after the entry at `position`, as `Metadata.encode` writes it."""

    position: MetadataPosition
    state: bytes


class MetadataLog(Protocol):
    """A shared log with compare-and-append. All calls raise `MetadataUnavailable` when the engine does not answer,
    except `append`, whose answer is `EntryUnknown` then. One event loop uses an instance.
    """

    async def append(self, entry: MetadataEntry) -> AppendOutcome:
        """Append the entry if the log ends at `entry.after`. To be repeated with the same entry only.

        An entry that was appended and then trimmed is `EntryUnknown`: nothing tells it from one that lost. Raises
        `MetadataUnavailable` only if this call wrote nothing: the log is closed, full or failed. A call that is
        cancelled may take effect, as after `EntryUnknown`.
        """

    async def tail(self) -> MetadataPosition:
        """Where the log ends now. Linearizable: it includes every append that was answered before this call."""

    async def read(self, first: int, limit: int) -> list[MetadataEntry]:
        """Up to `limit` entries from index `first`, in order; empty only at the end. Linearizable.

        Fewer than `limit` if their batches are large (`PAGE_BYTES_MAX`). Raises `MetadataTrimmed` if `first` is gone,
        and `MetadataDamaged` if its bytes are not what was written; entries before damaged ones are returned.
        """

    def watch(self, first: int) -> AsyncIterator[MetadataEntry]:
        """All entries from index `first`, in order and without a gap, until `close`: it reconnects by itself.

        Raises `MetadataTrimmed` if `first` is gone: at once, or after an outage in which the log was trimmed past it.
        Raises `MetadataDamaged` as `read` does.
        """

    async def load_snapshot(self) -> MetadataSnapshot | None:
        """The newest snapshot."""

    async def store_snapshot(self, snapshot: MetadataSnapshot) -> None:
        """Replace the snapshot, unless there is a newer one. All of it or nothing is stored."""

    async def trim(self, below: int) -> None:
        """Forget entries with a lower index. Never those that no snapshot covers, and never the last one.

        The oldest go first, so what is left has no gap. A log may keep more than it was asked to.
        """

    async def replace(self, snapshot: MetadataSnapshot) -> None:
        """Make the log consist of this snapshot alone, whatever it was before: for an operator, while no node runs.

        The log then ends at the position of the snapshot, and everything up to there counts as trimmed. After a crash
        it is either the old log or the new one. Handles that were opened before are of no use any more.
        """

    async def close(self) -> None:
        """End all watches and connections. Every other call then raises `MetadataUnavailable`."""
