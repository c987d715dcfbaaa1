"""Transactions: messages, positions and acks that are committed together or aborted together.

A producer identifies itself by its id and epoch, and has at most one open transaction, so the routes here do not need
the id of the transaction. Routes outside of this module (publish, ack) and the administrative routes take that id.
"""

from collections.abc import Sequence
from typing import Any, Final

import msgspec
from litestar import get, post
from litestar.params import FromPath, JSONBody

from goqueue.doors.http.answers import PUBLISHES, JsonResponse
from goqueue.doors.http.context import RequestContext, Shared
from goqueue.doors.http.new_messages import Epoch, MessageBody, ProducerId, decode_large
from goqueue.doors.http.paths import decode_path
from goqueue.doors.http.routes.positions import CommitEntry, OffsetMap, commits_of, offset_map
from goqueue.doors.http.routes.publish import (
    ShownPublish,
    StoredResult,
    check_messages,
    fail_as_a_whole,
    results_of,
    understood_messages,
)
from goqueue.doors.http.routes.settle import acked, answer_many, check_receipts
from goqueue.doors.http.routes.settle import results_of as results_of_acks
from goqueue.doors.http.shapes import Client, Offset, ShownPartitionName, Text, shown_partitions, time_text
from goqueue.doors.http.strictness import Body
from goqueue.errors import GoQueueError, InvalidPartition, InvalidRequest
from goqueue.service.messages import ProducerEpoch, Stored
from goqueue.service.new_message import NewMessage
from goqueue.service.pending import Pending, after, all_of
from goqueue.times import format_duration
from goqueue.wire import transaction_reports as reports

UNSET: Final = msgspec.UNSET
ADDED: Final = "added"


class ProducerBody(Body, kw_only=True):
    """The producer that sends the request."""

    producer_id: ProducerId
    epoch: Epoch


class OwnerBody(ProducerBody, kw_only=True):
    """The producer, with its transactional id."""

    transactional_id: str


class BeginBody(OwnerBody, kw_only=True):
    """A transaction to begin, unless its marker was committed before."""

    marker: Text = None


class Begun(msgspec.Struct, kw_only=True):
    """The new transaction, or `already_committed` if its marker was committed before."""

    transaction_id: str | msgspec.UnsetType = UNSET
    producer_id: int | msgspec.UnsetType = UNSET
    epoch: int | msgspec.UnsetType = UNSET
    already_committed: bool | msgspec.UnsetType = UNSET


class AddressedMessage(MessageBody, kw_only=True, gc=False):
    """A message with its topic."""

    topic: Text = None


class TransactionalPublishBody(AddressedMessage, kw_only=True, gc=False):
    """Messages to publish, or the fields of a single message. `topic` is the default for messages without one."""

    producer_id: ProducerId
    epoch: Epoch
    transactional_id: Text = None
    messages: list[AddressedMessage] | None = None


class PublishedInTransaction(ShownPublish, kw_only=True):
    """A result per message, in order. The result of a single message is also at the top level."""

    partition: int | msgspec.UnsetType = UNSET
    offset: int | msgspec.UnsetType = UNSET
    timestamp: str | msgspec.UnsetType = UNSET
    duplicate: bool | msgspec.UnsetType = UNSET


class TransactionalOffsetsBody(ProducerBody, kw_only=True):
    """Positions of a group to commit with the transaction, as a map or as a list."""

    transactional_id: Text = None
    group: str
    member_id: Text = None
    generation: int | None = None
    offsets: dict[str, dict[str, Offset]] | list[CommitEntry] | None = None


class OffsetsAdded(msgspec.Struct, kw_only=True):
    """The positions that were added to the transaction."""

    status: str
    offsets: OffsetMap


class TransactionalAcksBody(ProducerBody, kw_only=True):
    """Messages to ack with the transaction."""

    transactional_id: Text = None
    receipt_handles: list[str]


class AcksAdded(msgspec.Struct, kw_only=True):
    """A result per receipt, in order. If all failed, the first error is also at the top level."""

    status: str | int = ADDED
    results: list[Any]  # of `routes_settle.Result`
    failed: int
    error: str | msgspec.UnsetType = UNSET
    code: str | msgspec.UnsetType = UNSET
    retryable: bool | msgspec.UnsetType = UNSET
    details: dict[str, Any] | msgspec.UnsetType = UNSET


class AddPartitionBody(OwnerBody, kw_only=True):
    """A partition to add to the transaction."""

    topic: str
    partition: int


class PartitionAdded(msgspec.Struct, kw_only=True):
    """The answer to an added partition."""

    status: str = ADDED


class EndBody(OwnerBody, kw_only=True):
    """The transaction to end."""


class CommitTransactionBody(EndBody, kw_only=True):
    """The transaction to commit, others to commit atomically with it, and a marker that is committed only once."""

    transactions: list[OwnerBody] | None = None
    marker: Text = None


class Outcome(msgspec.Struct, kw_only=True):
    """How the transaction ended. `already` is set if it had ended so before the request."""

    status: str
    already: bool | msgspec.UnsetType = UNSET


class ShownTransaction(msgspec.Struct, kw_only=True):
    """An open transaction."""

    transaction_id: str
    transactional_id: str
    producer_id: int
    epoch: int
    state: str
    start_time: str
    started_at: str
    timeout_ms: int
    partitions: list[ShownPartitionName]
    groups: list[str]


class TransactionList(msgspec.Struct, kw_only=True):
    """Open transactions, oldest first."""

    transactions: list[ShownTransaction]
    count: int


class ShownTransactionStats(msgspec.Struct, kw_only=True):
    """Statistics of transactions."""

    active_transactions: int
    committed_total: int
    aborted_total: int
    avg_duration: str
    by_state: dict[str, int]
    producers: int


@post("/transactions/begin", tags=["transactions"], summary="Begin a transaction", status_code=200)
async def begin_transaction(context: Shared, data: JSONBody[BeginBody]) -> Begun:
    """A producer has one open transaction at a time. If the marker was committed before, none is begun."""
    pending = context.service.transactions.begin(
        data.transactional_id, data.producer_id, data.epoch, marker=data.marker
    )
    begun = await context.answered(pending, "begin")
    if begun.already_committed:
        return Begun(already_committed=True)
    return Begun(transaction_id=begun.transaction_id, producer_id=begun.producer_id, epoch=begun.epoch)


@post(
    "/transactions/publish",
    tags=["transactions"],
    summary="Publish in a transaction",
    status_code=200,
    opt=PUBLISHES,
)
async def publish_in_transaction(
    context: Shared, request: Client, data: JSONBody[TransactionalPublishBody]
) -> JsonResponse[PublishedInTransaction]:
    """Store messages in one or several topics. Consumers see them after the commit."""
    messages = [data] if data.messages is None else data.messages
    check_messages(messages, len(await request.body()), context.config)
    await decode_large(messages)
    topics = [_topic(message, data, index) for index, message in enumerate(messages)]
    await _check_owner(context, data)
    transaction_id = await context.answered(context.service.transactions.current(data.producer_id, data.epoch))
    understood = understood_messages(messages, request.scope["headers"], now_ns=context.clock.wall_ns())
    pending = _publish(context, transaction_id, data, topics, understood)
    outcomes = await context.answered(pending, "publish")
    results, failed = results_of(understood, outcomes)
    answer = PublishedInTransaction(results=results, failed=failed)
    if failed == len(results):
        status, headers = fail_as_a_whole(answer)
        return JsonResponse(answer, status_code=status, headers=headers)
    if data.messages is None:
        stored = results[0]
        assert isinstance(stored, StoredResult)
        answer.partition, answer.offset, answer.timestamp = stored.partition, stored.offset, stored.timestamp
        answer.duplicate = stored.duplicate is True
    return JsonResponse(answer, status_code=200)


@post("/transactions/offsets", tags=["transactions"], summary="Add positions to a transaction", status_code=200)
async def add_offsets(context: Shared, data: JSONBody[TransactionalOffsetsBody]) -> OffsetsAdded:
    """Add all positions or none; they take effect with the commit. A group that does not exist is created."""
    if not data.offsets:
        raise InvalidRequest("offsets are required", path="offsets")
    await _check_owner(context, data)
    pending = context.service.transactions.add_offsets(
        data.producer_id,
        data.epoch,
        data.group,
        list(commits_of(data.offsets)),
        member_id=data.member_id,
        generation=data.generation,
    )
    added = await context.answered(pending, "add offsets")
    return OffsetsAdded(status=ADDED, offsets=offset_map(added))


@post("/transactions/acks", tags=["transactions"], summary="Add acks to a transaction", status_code=200)
async def add_acks(context: Shared, data: JSONBody[TransactionalAcksBody]) -> JsonResponse[AcksAdded]:
    """The acks take effect with the commit. Until the transaction ends, the messages stay leased."""
    receipts = data.receipt_handles
    check_receipts(receipts)
    await _check_owner(context, data)
    pending = context.service.transactions.add_acks(data.producer_id, data.epoch, receipts)
    outcomes = await context.answered(pending, "add acks")
    results, failed = results_of_acks(receipts, outcomes, acked)
    return answer_many(AcksAdded(results=results, failed=failed))


@post("/transactions/add-partition", tags=["transactions"], summary="Add a partition to a transaction", status_code=200)
async def add_partition(context: Shared, data: JSONBody[AddPartitionBody]) -> PartitionAdded:
    """Not required: publishing adds its partition."""
    if data.partition < 0:
        raise InvalidPartition(data.partition)
    pending = context.service.transactions.add_partition(
        data.transactional_id, data.producer_id, data.epoch, data.topic, data.partition
    )
    await context.answered(pending, "add partition")
    return PartitionAdded()


@post("/transactions/commit", tags=["transactions"], summary="Commit a transaction", status_code=200)
async def commit_transaction(context: Shared, data: JSONBody[CommitTransactionBody]) -> Outcome:
    """Commit the transaction, and those in `transactions`, atomically."""
    together = [_owner(one) for one in data.transactions or ()]
    pending = context.service.transactions.commit(_owner(data), together=together, marker=data.marker)
    outcome = await context.answered(pending, "commit")
    return Outcome(status=outcome.status, already=outcome.already or UNSET)


@post("/transactions/abort", tags=["transactions"], summary="Abort a transaction", status_code=200)
async def abort_transaction(context: Shared, data: JSONBody[EndBody]) -> Outcome:
    """Consumers never see the messages of the transaction, and messages that it acked are redelivered."""
    return await _aborted(context, context.service.transactions.abort(_owner(data)))


@get("/transactions", tags=["transactions"], summary="List open transactions")
async def list_transactions(context: Shared) -> TransactionList:
    """All open transactions, oldest first."""
    shown = [_shown(info) for info in (await context.answered(context.service.transactions.list()))]
    return TransactionList(transactions=shown, count=len(shown))


@get("/transactions/stats", tags=["transactions"], summary="Count transactions")
async def transaction_stats(context: Shared) -> ShownTransactionStats:
    """Totals since the broker started. A duration is the time from begin to commit."""
    report = await context.answered(context.service.transactions.stats())
    return ShownTransactionStats(
        active_transactions=report.active_transactions,
        committed_total=report.committed_total,
        aborted_total=report.aborted_total,
        avg_duration=format_duration(report.average_duration_ns),
        by_state=report.by_state,
        producers=report.producers,
    )


@get(
    "/transactions/{transaction_id:str}",
    tags=["transactions"],
    summary="Get an open transaction",
    before_request=decode_path,
)
async def show_transaction(context: Shared, transaction_id: FromPath[str]) -> ShownTransaction:
    """Its state, and the partitions and groups that are part of it."""
    return _shown(await context.answered(context.service.transactions.describe(transaction_id)))


@post(
    "/transactions/{transaction_id:str}/abort",
    tags=["transactions"],
    summary="Abort a transaction by its id",
    status_code=200,
    before_request=decode_path,
)
async def abort_by_admin(context: Shared, transaction_id: FromPath[str]) -> Outcome:
    """For operators: abort an abandoned transaction, which blocks readers. Its producer gets an error afterwards."""
    return await _aborted(context, context.service.transactions.abort_by_admin(transaction_id))


async def _aborted(context: RequestContext, pending: Pending[reports.TransactionOutcome]) -> Outcome:
    return Outcome(status=(await context.answered(pending, "abort")).status)


async def _check_owner(
    context: RequestContext, body: TransactionalPublishBody | TransactionalOffsetsBody | TransactionalAcksBody
) -> None:
    """Refuse a transactional id, which is optional here, that does not belong to the producer."""
    if body.transactional_id is not None:
        await context.answered(
            context.service.transactions.heartbeat(body.producer_id, body.epoch, transactional_id=body.transactional_id)
        )


def _topic(message: AddressedMessage, body: TransactionalPublishBody, index: int) -> str:
    topic = body.topic if message.topic is None else message.topic
    if not topic:
        path = "topic" if body.messages is None else f"messages[{index}].topic"
        raise InvalidRequest(f"{path} is required", path=path)
    return topic


def _publish(
    context: RequestContext,
    transaction_id: str,
    body: TransactionalPublishBody,
    topics: Sequence[str],
    understood: Sequence[NewMessage | GoQueueError],
) -> Pending[list[Stored | GoQueueError | None]]:
    """Store the valid messages, one publish per topic; returns their outcomes in the order of the request."""
    by_topic: dict[str, list[NewMessage]] = {}
    order: list[tuple[str, int]] = []
    for topic, message in zip(topics, understood, strict=True):
        if isinstance(message, NewMessage):
            together = by_topic.setdefault(topic, [])
            order.append((topic, len(together)))
            together.append(message)
    sequence = None if body.messages is None else body.sequence
    if sequence is not None and len(by_topic) > 1:
        raise InvalidRequest("a sequence for all messages needs one partition for all of them", path="sequence")
    outcomes: dict[str, list[Stored | GoQueueError]] = {}

    def store(topic: str, messages: list[NewMessage]) -> Pending[None]:
        def stored(found: list[Stored | GoQueueError]) -> None:
            outcomes[topic] = found

        pending = context.service.messages.publish(
            topic,
            messages,
            producer=ProducerEpoch(body.producer_id, body.epoch),
            sequence=sequence,
            transaction_id=transaction_id,
        )
        if isinstance(pending.error, GoQueueError):  # the publish was refused as a whole: so is each of its messages
            pending = Pending.of([pending.error] * len(messages))
        return after(pending, stored)

    waits = [store(topic, messages) for topic, messages in by_topic.items()]
    return after(all_of(waits), lambda _: [outcomes[topic][place] for topic, place in order])


def _owner(body: OwnerBody) -> reports.TransactionOwner:
    return reports.TransactionOwner(body.transactional_id, body.producer_id, body.epoch)


def _shown(info: reports.TransactionInfo) -> ShownTransaction:
    started_at = time_text(info.started_at_ns)
    return ShownTransaction(
        transaction_id=info.transaction_id,
        transactional_id=info.transactional_id,
        producer_id=info.producer_id,
        epoch=info.epoch,
        state=info.state,
        start_time=started_at,
        started_at=started_at,
        timeout_ms=info.timeout_ms,
        partitions=shown_partitions(info.partitions),
        groups=info.groups,
    )
