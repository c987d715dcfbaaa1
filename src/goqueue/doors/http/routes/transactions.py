"""Transactions: messages, positions and acks that count together, or not at all.

A producer names itself by its id and epoch, and has one transaction open at most, so requests of its own need not say
which. Routes that others have say it by the id of the transaction: publishing, acknowledging, and the look at it.
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
    PublishAnswer,
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
    """Who asks."""

    producer_id: ProducerId
    epoch: Epoch


class OwnerBody(ProducerBody, kw_only=True):
    """Whose transaction it is."""

    transactional_id: str


class BeginBody(OwnerBody, kw_only=True):
    """A transaction that is to be, unless the marker was committed before."""

    marker: Text = None


class Begun(msgspec.Struct, kw_only=True):
    """A transaction; or nothing was begun, because its marker was committed before."""

    transaction_id: str | msgspec.UnsetType = UNSET
    producer_id: int | msgspec.UnsetType = UNSET
    epoch: int | msgspec.UnsetType = UNSET
    already_committed: bool | msgspec.UnsetType = UNSET


class AddressedMessage(MessageBody, kw_only=True, gc=False):
    """A message, and where it goes."""

    topic: Text = None


class TransactionalPublishBody(AddressedMessage, kw_only=True, gc=False):
    """Messages to publish, or one without the list around it. What has no topic of its own goes to the common one."""

    producer_id: ProducerId
    epoch: Epoch
    transactional_id: Text = None
    messages: list[AddressedMessage] | None = None


class PublishedInTransaction(PublishAnswer, kw_only=True):
    """A result for each message, in their order; a single one that was stored stands at the top as well."""

    partition: int | msgspec.UnsetType = UNSET
    offset: int | msgspec.UnsetType = UNSET
    timestamp: str | msgspec.UnsetType = UNSET
    duplicate: bool | msgspec.UnsetType = UNSET


class TransactionalOffsetsBody(ProducerBody, kw_only=True):
    """Positions of a group that take effect with the commit, as a map or as a list."""

    transactional_id: Text = None
    group: str
    member_id: Text = None
    generation: int | None = None
    offsets: dict[str, dict[str, Offset]] | list[CommitEntry] | None = None


class OffsetsAdded(msgspec.Struct, kw_only=True):
    """Positions that are part of the transaction."""

    status: str
    offsets: OffsetMap


class TransactionalAcksBody(ProducerBody, kw_only=True):
    """Messages that are done when the transaction is committed."""

    transactional_id: Text = None
    receipt_handles: list[str]


class AcksAdded(msgspec.Struct, kw_only=True):
    """A result for each receipt, in their order. If all of them failed, the first error stands at the top."""

    status: str | int = ADDED
    results: list[Any]  # of `routes_settle.Result`
    failed: int
    error: str | msgspec.UnsetType = UNSET
    code: str | msgspec.UnsetType = UNSET
    retryable: bool | msgspec.UnsetType = UNSET
    details: dict[str, Any] | msgspec.UnsetType = UNSET


class AddPartitionBody(OwnerBody, kw_only=True):
    """A partition that the transaction is going to touch."""

    topic: str
    partition: int


class PartitionAdded(msgspec.Struct, kw_only=True):
    """The partition is part of the transaction."""

    status: str = ADDED


class EndBody(OwnerBody, kw_only=True):
    """A transaction that is over."""


class CommitTransactionBody(EndBody, kw_only=True):
    """A transaction to commit, with others in the same step, and once per marker."""

    transactions: list[OwnerBody] | None = None
    marker: Text = None


class Outcome(msgspec.Struct, kw_only=True):
    """How it ended, and whether that was so before."""

    status: str
    already: bool | msgspec.UnsetType = UNSET


class ShownTransaction(msgspec.Struct, kw_only=True):
    """A transaction that has not ended."""

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
    """Transactions that have not ended, the oldest first."""

    transactions: list[ShownTransaction]
    count: int


class ShownTransactionStats(msgspec.Struct, kw_only=True):
    """Transactions in numbers."""

    active_transactions: int
    committed_total: int
    aborted_total: int
    avg_duration: str
    by_state: dict[str, int]
    producers: int


@post("/transactions/begin", tags=["transactions"], summary="Begin a transaction", status_code=200)
async def begin_transaction(context: Shared, data: JSONBody[BeginBody]) -> Begun:
    """A producer has one at a time. Nothing is begun if the marker was committed before."""
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
    """Store messages, to one topic or to several; they are seen when the transaction is committed."""
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
    """All of them or none. The group is there as soon as the transaction is committed."""
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
    """They are done when the transaction is committed; until its outcome, nobody else gets them."""
    receipts = data.receipt_handles
    check_receipts(receipts)
    await _check_owner(context, data)
    pending = context.service.transactions.add_acks(data.producer_id, data.epoch, receipts)
    outcomes = await context.answered(pending, "add acks")
    results, failed = results_of_acks(receipts, outcomes, acked)
    return answer_many(AcksAdded(results=results, failed=failed))


@post("/transactions/add-partition", tags=["transactions"], summary="Add a partition to a transaction", status_code=200)
async def add_partition(context: Shared, data: JSONBody[AddPartitionBody]) -> PartitionAdded:
    """Publishing does it by itself."""
    if data.partition < 0:
        raise InvalidPartition(data.partition)
    pending = context.service.transactions.add_partition(
        data.transactional_id, data.producer_id, data.epoch, data.topic, data.partition
    )
    await context.answered(pending, "add partition")
    return PartitionAdded()


@post("/transactions/commit", tags=["transactions"], summary="Commit a transaction", status_code=200)
async def commit_transaction(context: Shared, data: JSONBody[CommitTransactionBody]) -> Outcome:
    """All of it counts from now on, and so does all of those that are committed together with it."""
    together = [_owner(one) for one in data.transactions or ()]
    pending = context.service.transactions.commit(_owner(data), together=together, marker=data.marker)
    outcome = await context.answered(pending, "commit")
    return Outcome(status=outcome.status, already=outcome.already or UNSET)


@post("/transactions/abort", tags=["transactions"], summary="Abort a transaction", status_code=200)
async def abort_transaction(context: Shared, data: JSONBody[EndBody]) -> Outcome:
    """Nothing of it is ever seen, and what it acknowledged is delivered again."""
    return await _aborted(context, context.service.transactions.abort(_owner(data)))


@get("/transactions", tags=["transactions"], summary="List open transactions")
async def list_transactions(context: Shared) -> TransactionList:
    """The oldest first."""
    shown = [_shown(info) for info in (await context.answered(context.service.transactions.list()))]
    return TransactionList(transactions=shown, count=len(shown))


@get("/transactions/stats", tags=["transactions"], summary="Count transactions")
async def transaction_stats(context: Shared) -> ShownTransactionStats:
    """Since the broker started; a duration is that of a commit, from the begin on."""
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
    summary="Look at an open transaction",
    before_request=decode_path,
)
async def show_transaction(context: Shared, transaction_id: FromPath[str]) -> ShownTransaction:
    """What it has touched so far."""
    return _shown(await context.answered(context.service.transactions.describe(transaction_id)))


@post(
    "/transactions/{transaction_id:str}/abort",
    tags=["transactions"],
    summary="Abort somebody else's transaction",
    status_code=200,
    before_request=decode_path,
)
async def abort_by_admin(context: Shared, transaction_id: FromPath[str]) -> Outcome:
    """For one that was abandoned and holds up readers; its owner is told when it comes back."""
    return await _aborted(context, context.service.transactions.abort_by_admin(transaction_id))


async def _aborted(context: RequestContext, pending: Pending[reports.TransactionOutcome]) -> Outcome:
    return Outcome(status=(await context.answered(pending, "abort")).status)


async def _check_owner(
    context: RequestContext, body: TransactionalPublishBody | TransactionalOffsetsBody | TransactionalAcksBody
) -> None:
    """Hold a transactional id that was not needed against the producer all the same."""
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
    """Store the messages that can be, topic by topic; the outcome of each of them, in their order."""
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
        if isinstance(pending.error, GoQueueError):  # refused as a whole: every message of the topic is
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
