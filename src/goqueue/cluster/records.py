"""The records of the metadata log: what nodes agree on, one decision each.

A batch is a format number and a list of records. A record is a msgpack map from field names to values; its `type` is
the name of its class. Fields with their default are left out, so a default never changes, and a field that is added
later has a default that means what its absence has meant before.

A node that skipped what it does not know would build another state than its peers. So an unknown type, field or format
raises `MetadataTooNew`, and the node stops with that sentence. Before a new type is written, `FeatureLevelSet` says
that every node knows it.

`PartitionChanged` carries the whole partition, at its creation too, so the state of a partition is its last record.
Epochs in it: `leader_epoch` rises by one with every change of the leader, also to none; `partition_epoch` rises by one
with every record, and is the token of compare-and-set.
"""

from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Any, Final

import msgspec

from goqueue.errors import MetadataDamaged, MetadataTooNew

FORMAT: Final = 1
FEATURE_LEVEL: Final = 1
"""The highest feature level that this version knows."""
FEATURE_LEVEL_MIN: Final = 1
"""The lowest feature level that this version can work with."""

PartitionKey = tuple[str, int]
"""The id of a topic, and the number of a partition."""


class BrokerStatus(StrEnum):
    """What a registered broker may be: `online` ones lead and are in sync; `fenced` ones do neither."""

    ONLINE = "online"
    FENCED = "fenced"
    STOPPING = "stopping"  # follows, and leads only what nobody else can; see `ControlledShutdown`


class DocumentKind(StrEnum):
    """Whose document it is. The log stores documents and does not read them."""

    KEY = "key"
    ACL = "acl"
    TENANT = "tenant"
    QUOTA = "quota"
    CLUSTER_SETTING = "cluster_setting"


class BrokerAddresses(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Where a broker listens, as `host:port`; empty where it does not."""

    client: str
    peer: str
    http: str = ""
    grpc: str = ""


class MetadataRecord(
    msgspec.Struct, frozen=True, tag=True, tag_field="type", omit_defaults=True, forbid_unknown_fields=True
):
    """The base of all records."""


class ClusterCreated(MetadataRecord, frozen=True):
    """The first record of the log."""

    cluster_id: str
    feature_level: int
    created_at_ns: int


class ControllerElected(MetadataRecord, frozen=True):
    """The node is the controller of this epoch, which is one above the last."""

    epoch: int
    node: int
    incarnation: str


class FeatureLevelSet(MetadataRecord, frozen=True):
    """Every node knows what this level brings; from now on it may be written."""

    level: int


class BrokerRegistered(MetadataRecord, frozen=True):
    """A process begins to be this node; the index of the entry is its broker epoch. It is fenced at first."""

    node: int
    incarnation: str  # of the process: another one after every restart
    directories: tuple[str, ...]
    addresses: BrokerAddresses
    version: str
    feature_level_max: int
    registered_at_ns: int
    rack: str = ""


class BrokerChanged(MetadataRecord, frozen=True):
    """The broker of that epoch has another status; `is_leaving` once it is to be removed, until it is."""

    node: int
    broker_epoch: int
    status: BrokerStatus
    is_leaving: bool = False


class BrokerRemoved(MetadataRecord, frozen=True):
    """The node is no part of the cluster any more; it has no replica."""

    node: int
    broker_epoch: int


class TopicAdded(MetadataRecord, frozen=True):
    """A topic. Its partitions follow in the same entry. `settings` are those set explicitly, in their public form."""

    id: str
    name: str
    created_at_ns: int
    partition_count: int
    settings: dict[str, Any] = {}


class TopicAltered(MetadataRecord, frozen=True):
    """These are all explicit settings of the topic from now on."""

    id: str
    settings: dict[str, Any]


class TopicRemoved(MetadataRecord, frozen=True):
    """The topic is deleted, with all partitions."""

    id: str
    at_ns: int


class PartitionChanged(MetadataRecord, frozen=True, gc=False):
    """The whole partition from now on.

    `replicas` begin with the preferred leader. `isr` are in sync, `elr` (eligible leader replicas) left the ISR when it
    fell below `min_insync_replicas`, and hold everything below the high watermark as well. `adding` are replicas that
    are being filled, `removing` those that leave once that is done.
    """

    topic_id: str
    partition: int
    replicas: tuple[int, ...]
    leader: int | None
    leader_epoch: int
    partition_epoch: int
    isr: tuple[int, ...]
    elr: tuple[int, ...] = ()
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()
    is_unclean: bool = False  # the leader was chosen by an operator, and may lack records that were acknowledged

    @property
    def key(self) -> PartitionKey:
        return (self.topic_id, self.partition)


class ProducerIdsTaken(MetadataRecord, frozen=True):
    """The node may use these numbers for producer ids; nobody else ever will."""

    node: int
    first: int
    count: int


class RequestDone(MetadataRecord, frozen=True):
    """A request of an administrator was carried out by this entry, and this was its answer.

    Kept for a while, so that a retry after a lost answer is answered and not carried out again.
    """

    request_id: str
    answer: bytes
    at_ns: int


class DocumentPut(MetadataRecord, frozen=True):
    """The document has this value from now on; None removes it."""

    kind: DocumentKind
    name: str
    value: bytes | None


class Recovered(MetadataRecord, frozen=True):
    """An operator rebuilt the log from the copy of a node. Every epoch continues above `epoch_floor`."""

    generation: int
    epoch_floor: int


class LogSealed(MetadataRecord, frozen=True):
    """The last record: the metadata log goes on elsewhere."""

    moved_to: str


Record = (
    ClusterCreated
    | ControllerElected
    | FeatureLevelSet
    | BrokerRegistered
    | BrokerChanged
    | BrokerRemoved
    | TopicAdded
    | TopicAltered
    | TopicRemoved
    | PartitionChanged
    | ProducerIdsTaken
    | RequestDone
    | DocumentPut
    | Recovered
    | LogSealed
)

encode_record = msgspec.msgpack.Encoder(order="deterministic").encode
_decode_list = msgspec.msgpack.Decoder(list[Record]).decode

# A batch: | format 1 | 0xdd | count 4 | records ...; the last three are a msgpack array.
_HEAD_BYTES: Final = 6


def join_batch(encoded: Sequence[bytes]) -> bytes:
    """The batch of records that `encode_record` has encoded."""
    return b"".join((bytes((FORMAT, 0xDD)), len(encoded).to_bytes(4, "big"), *encoded))


def encode_batch(records: Iterable[Record]) -> bytes:
    """The bytes of a batch; equal records make equal bytes."""
    return join_batch([encode_record(record) for record in records])


def decode_batch(raw: bytes) -> list[Record]:
    """The records of a batch. Raises `MetadataTooNew`, and `MetadataDamaged` if it is no batch at all."""
    if len(raw) < _HEAD_BYTES:
        raise MetadataDamaged(f"a batch has {len(raw)} bytes; its head alone has {_HEAD_BYTES}")
    if raw[0] > FORMAT:
        raise MetadataTooNew(f"batch format {raw[0]}; this version reads {FORMAT}")
    if raw[0] != FORMAT:
        raise MetadataDamaged(f"batch format {raw[0]}")
    try:
        return _decode_list(memoryview(raw)[1:])
    except msgspec.ValidationError as error:  # well-formed, and the entry's checksum was right: other code wrote it
        raise MetadataTooNew(str(error)) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise MetadataDamaged(f"a batch of records is malformed: {error}") from error
