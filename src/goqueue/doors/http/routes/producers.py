"""Producers: identities that make publishing idempotent and fence older instances of the same producer."""

import msgspec
from litestar import post
from litestar.params import FromPath, JSONBody

from goqueue.doors.http.context import Shared
from goqueue.doors.http.new_messages import Epoch
from goqueue.doors.http.shapes import Text
from goqueue.doors.http.strictness import Body
from goqueue.errors import InvalidRequest
from goqueue.service.transactions import TIMEOUT_MS

_DIGITS_MAX = 19


class InitBody(Body, kw_only=True):
    """A producer to initialize. Without a transactional id it is idempotent only."""

    transactional_id: Text = None
    transaction_timeout_ms: int | None = None


class ShownProducer(msgspec.Struct, kw_only=True):
    """The identity of a producer. The epoch is valid until the next init."""

    producer_id: int
    epoch: int


class ProducerHeartbeatBody(Body, kw_only=True):
    """The producer to keep."""

    epoch: Epoch
    transactional_id: Text = None


class ProducerInUse(msgspec.Struct, kw_only=True):
    """The producer is known and not fenced."""

    status: str = "ok"
    success: bool = True


@post("/producers/init", tags=["transactions"], summary="Initialize a producer", status_code=200)
async def init_producer(context: Shared, data: JSONBody[InitBody | None] = None) -> ShownProducer:
    """Return a new producer, or, for a known transactional id, the same producer with the next epoch.

    The next epoch fences older instances, and their open transaction is aborted.
    """
    body = data or InitBody()
    timeout_ms = TIMEOUT_MS if body.transaction_timeout_ms is None else body.transaction_timeout_ms
    pending = context.service.transactions.init(body.transactional_id, timeout_ms=timeout_ms)
    session = await context.answered(pending, "init")
    return ShownProducer(producer_id=session.producer_id, epoch=session.epoch)


@post("/producers/{producer_id:str}/heartbeat", tags=["transactions"], summary="Keep a producer", status_code=200)
async def heartbeat_of_producer(
    context: Shared, producer_id: FromPath[str], data: JSONBody[ProducerHeartbeatBody]
) -> ProducerInUse:
    """Mark the producer as in use. The broker forgets producers that are not used for seven days."""
    if not (producer_id.isascii() and producer_id.isdigit() and len(producer_id) <= _DIGITS_MAX):
        raise InvalidRequest(f"invalid producer ID {producer_id[:40]!r}: not a number", path="producer_id")
    await context.answered(
        context.service.transactions.heartbeat(int(producer_id), data.epoch, transactional_id=data.transactional_id)
    )
    return ProducerInUse()
