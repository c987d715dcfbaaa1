"""What a coordinator keeps across restarts: keyed facts in the compacted internal topic `__transactions`.

    t:<transactional id>   its producer id and epoch, and the state of its last transaction
    p:<producer id>        a producer without a transactional id
    d:<decision>           a commit that was decided, until all its effects are durable
    m:<marker>             a marker that was committed, and must not be committed again

Each value is a msgpack array that begins with the version of its format; a later version may append fields. A fact that
cannot be decoded is skipped and reported. If it was a decision, its transactions count as undecided and are aborted.
"""

from typing import TypeVar

import msgspec
from pyroaring import BitMap64

from goqueue.errors import UnsupportedFormat
from goqueue.transactions.decisions import DecisionPart, Epoch, ProducerId, Whole
from goqueue.transactions.states import AbortReason, TransactionState

VERSION = 1
TOPIC = "__transactions"

TRANSACTIONAL_KEY = b"t:"
PRODUCER_KEY = b"p:"
DECISION_KEY = b"d:"
MARKER_KEY = b"m:"
KIND_BYTES = 2


class SavedTransactional(msgspec.Struct, array_like=True, frozen=True):
    """The producer that holds a transactional id."""

    version: int
    producer_id: ProducerId
    epoch: Epoch
    number: Whole
    timeout_ms: Whole
    state: TransactionState
    started_at_ns: Whole
    reason: AbortReason | None
    decision_id: str
    used_at_ns: Whole


class SavedProducer(msgspec.Struct, array_like=True, frozen=True):
    """A producer without a transactional id."""

    version: int
    epoch: Epoch
    used_at_ns: Whole


class SavedDecision(msgspec.Struct, array_like=True, frozen=True):
    """A commit with all its effects, in one record."""

    version: int
    decided_at_ns: Whole
    marker: str | None
    parts: list[DecisionPart]


class SavedMarker(msgspec.Struct, array_like=True, frozen=True):
    """A marker that was committed."""

    version: int
    committed_at_ns: Whole
    used_at_ns: Whole


Fact = TypeVar("Fact", SavedTransactional, SavedProducer, SavedDecision, SavedMarker)


def _to_bytes(value: object) -> bytes:
    assert isinstance(value, BitMap64)
    raw: bytes = value.serialize()
    return raw


def _from_bytes(kind: type, raw: bytes) -> BitMap64:
    assert kind is BitMap64
    return BitMap64.deserialize(raw)


_ENCODER = msgspec.msgpack.Encoder(enc_hook=_to_bytes)
_DECODERS = {
    kind: msgspec.msgpack.Decoder(kind, dec_hook=_from_bytes)
    for kind in (SavedTransactional, SavedProducer, SavedDecision, SavedMarker)
}


def encode(fact: SavedTransactional | SavedProducer | SavedDecision | SavedMarker) -> bytes:
    return _ENCODER.encode(fact)


def decision_key(id: str) -> bytes:
    """The key under which a commit decision is stored."""
    return DECISION_KEY + id.encode()


def transactional_ids(key: bytes, raw: bytes) -> list[str] | None:
    """The transactional ids that a fact is about; None for a marker, which may be named with any."""
    kind, name = key[:KIND_BYTES], key[KIND_BYTES:].decode(errors="replace")
    if kind == MARKER_KEY:
        return None
    if kind == DECISION_KEY:
        try:
            return [part.transactional_id for part in decode(SavedDecision, key, raw).parts]
        except UnsupportedFormat:
            return [name.rpartition(":")[0]]
    return [name] if kind == TRANSACTIONAL_KEY else []


def decode(kind: type[Fact], key: bytes, raw: bytes) -> Fact:
    """The fact that was encoded. Raises `UnsupportedFormat` if the bytes are no fact of a known version."""
    try:
        fact = _DECODERS[kind].decode(raw)
    except (msgspec.MsgspecError, ValueError, IndexError) as error:  # a damaged bitmap raises the last two
        raise UnsupportedFormat(TOPIC, f"{key!r}: {error}") from None
    assert isinstance(fact, kind)
    if fact.version != VERSION:
        raise UnsupportedFormat(TOPIC, f"{key!r} has version {fact.version}; this GoQueue knows {VERSION}")
    return fact
