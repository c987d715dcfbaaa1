"""Fetches of followers on the wire: all partitions that one node follows on another one, in one request.

    follower ──> FetchRequest{session, the partitions whose position has changed since the last request}
    leader   ──> FetchReply{the partitions for which there is news}

What was said before in a session still holds, so a request and a reply are as small as what has happened since. A
follower whose leader has forgotten the session is told so, and begins another one, in which it says everything.

A request and a reply are msgpack; replicas are arrays, because there may be thousands. Records travel as the leader has
stored them, with their checksums.
"""

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from goqueue.broker.partition.fetching import (
    Diverging,
    Fetch,
    FetchAnswer,
    LogAnswer,
    LogPosition,
    OutOfRange,
    Records,
)
from goqueue.cluster.messages import NodeId, Number, ShortText
from goqueue.errors import InvalidRequest

REPLICAS_MAX: Final = 100_000
WAIT_MS_MAX: Final = 10_000
_NOTHING, _RECORDS, _DIVERGING, _OUT_OF_RANGE = range(4)

Offset = Annotated[int, Meta(ge=-1, le=(1 << 63) - 1)]
ReplicaKey = tuple[str, int]
"""The id of a topic, and the number of a partition."""


class AskedLog(msgspec.Struct, frozen=True, array_like=True):
    """A `LogPosition`."""

    offset: Number
    last_epoch: Offset
    durable_offset: Number
    high_watermark: Number


class AskedReplica(msgspec.Struct, frozen=True, array_like=True):
    """Where one follower is."""

    topic_id: ShortText
    partition: Number
    epoch: Number
    log: AskedLog
    ledger: AskedLog


class FetchRequest(msgspec.Struct, frozen=True):
    """What one node asks another one, as this process on this disk."""

    node: NodeId
    broker_epoch: Number
    directory: ShortText
    session: ShortText
    is_first: bool  # of its session: it says everything
    asked: Annotated[tuple[AskedReplica, ...], Meta(max_length=REPLICAS_MAX)] = ()
    dropped: Annotated[tuple[tuple[ShortText, Number], ...], Meta(max_length=REPLICAS_MAX)] = ()
    wait_ms: Annotated[int, Meta(ge=0, le=WAIT_MS_MAX)] = 0


class AnsweredLog(msgspec.Struct, frozen=True, array_like=True):
    """A `LogAnswer`."""

    asked: AskedLog
    high_watermark: Number
    log_start: Number
    kind: int = _NOTHING
    epoch: Number = 0
    offset: Number = 0  # where the epoch starts, or ended
    records: bytes = b""
    next_offset: Number = 0
    has_gaps: bool = False


class AnsweredReplica(msgspec.Struct, frozen=True, array_like=True):
    """What one follower is told."""

    topic_id: ShortText
    partition: Number
    epoch: Number
    log: AnsweredLog
    ledger: AnsweredLog
    ledger_speaks_below: Number


class FetchReply(msgspec.Struct, frozen=True):
    """The news. `is_known` says whether the session is."""

    is_known: bool
    answers: tuple[AnsweredReplica, ...] = ()


_encode = msgspec.msgpack.Encoder().encode
_decode_request = msgspec.msgpack.Decoder(FetchRequest).decode
_decode_reply = msgspec.msgpack.Decoder(FetchReply).decode


def encode(message: FetchRequest | FetchReply) -> bytes:
    """The bytes of a message."""
    return _encode(message)


def decode_request(raw: bytes) -> FetchRequest:
    """The request. Raises `InvalidRequest`."""
    try:
        return _decode_request(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequest(f"not a fetch: {error}") from error


def decode_reply(raw: bytes) -> FetchReply:
    """The reply. Raises `InvalidRequest`."""
    try:
        return _decode_reply(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequest(f"not the answer to a fetch: {error}") from error


def asked_replica(key: ReplicaKey, fetch: Fetch) -> AskedReplica:
    """The fetch of one partition as it travels."""
    return AskedReplica(*key, fetch.epoch, AskedLog(*fetch.log), AskedLog(*fetch.ledger))


def fetch_of(asked: AskedReplica) -> Fetch:
    """The fetch that `asked_replica` has put down."""
    return Fetch(asked.epoch, _position(asked.log), _position(asked.ledger))


def answered_replica(key: ReplicaKey, answer: FetchAnswer) -> AnsweredReplica:
    """The answer for one partition as it travels; a refusal does not."""
    assert answer.log is not None
    assert answer.ledger is not None
    log, ledger = _answered(answer.log), _answered(answer.ledger)
    return AnsweredReplica(*key, answer.epoch, log, ledger, answer.ledger_speaks_below)


def answer_of(answered: AnsweredReplica) -> FetchAnswer:
    """The answer that `answered_replica` has put down. Raises `InvalidRequest`."""
    log, ledger = _answer(answered.log), _answer(answered.ledger)
    return FetchAnswer(answered.epoch, None, log, ledger, answered.ledger_speaks_below)


def _position(asked: AskedLog) -> LogPosition:
    return LogPosition(asked.offset, asked.last_epoch, asked.durable_offset, asked.high_watermark)


def _answered(answer: LogAnswer) -> AnsweredLog:
    known = (AskedLog(*answer.asked), answer.high_watermark, answer.log_start)
    match answer.found:
        case Records(epoch, epoch_start, records, next_offset, has_gaps):
            return AnsweredLog(*known, _RECORDS, epoch, epoch_start, bytes(records), next_offset, has_gaps)
        case Diverging(epoch, end_offset):
            return AnsweredLog(*known, _DIVERGING, epoch, end_offset)
        case OutOfRange():
            return AnsweredLog(*known, _OUT_OF_RANGE)
        case None:
            return AnsweredLog(*known)


def _answer(answered: AnsweredLog) -> LogAnswer:
    found: Records | Diverging | OutOfRange | None
    match answered.kind:
        case 0:
            found = None
        case 1:
            found = Records(answered.epoch, answered.offset, answered.records, answered.next_offset, answered.has_gaps)
        case 2:
            found = Diverging(answered.epoch, answered.offset)
        case 3:
            found = OutOfRange()
        case _:
            raise InvalidRequest(f"not the answer to a fetch: kind {answered.kind}")
    return LogAnswer(_position(answered.asked), found, answered.high_watermark, answered.log_start)
