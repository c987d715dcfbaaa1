"""Settling leased messages: ack, nack, reject and extend.

A request has one receipt or a list. In a list each receipt has its own result, and a refused receipt does not affect
the others. If all are refused, the answer has the status and the fields of the first error in addition to the results.
"""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from litestar import get, post
from litestar.params import JSONBody

from goqueue.clock import SECOND
from goqueue.doors.http.answers import JsonResponse
from goqueue.doors.http.context import RequestContext, Shared
from goqueue.doors.http.new_messages import delay_ns
from goqueue.doors.http.refusals import ErrorBody, body_of, too_many
from goqueue.doors.http.routes.publish import fail_as_a_whole
from goqueue.doors.http.shapes import Text, duration_ns, one_of, time_text
from goqueue.doors.http.strictness import Body
from goqueue.errors import GoQueueError, InvalidRequest, TransactionNotFound
from goqueue.service.groups import EXTENSION_NS_MAX, RECEIPTS_MAX
from goqueue.times import format_duration
from goqueue.wire import reports

UNSET = msgspec.UNSET
REJECTED = "rejected by consumer"


class SettleBody(Body, kw_only=True):
    """The messages to settle, by their receipts."""

    receipt_handle: Text = None
    receipt_handles: list[str] | None = None
    consumer_id: Text = None
    transaction_id: Text = None


class AckBody(SettleBody, kw_only=True):
    """Messages to ack. With `transaction_id`, they are acked when the transaction commits."""


class NackBody(SettleBody, kw_only=True):
    """Messages to redeliver."""

    delay: Text = None
    reason: Text = None


class RejectBody(SettleBody, kw_only=True):
    """Messages to dead-letter."""

    reason: Text = None


class VisibilityBody(SettleBody, kw_only=True):
    """Messages to extend the lease of, and the new lease duration from now."""

    timeout: Text = None
    extension_seconds: int | None = None


class _Settled(msgspec.Struct, kw_only=True):
    receipt_handle: str | msgspec.UnsetType = UNSET
    success: bool = True


class ShownAck(_Settled, kw_only=True):
    """An acked message. `committed_offset` is the next offset to read: all messages below it are done."""

    acknowledged: bool = True
    topic: str
    partition: int
    offset: int
    committed_offset: int
    offset_advanced: bool
    in_flight_count: int


class ShownNack(_Settled, kw_only=True):
    """A nacked message: requeued, or dead-lettered after its last attempt."""

    requeued: bool
    action: str
    topic: str
    partition: int
    offset: int
    delivery_count: int | msgspec.UnsetType = UNSET
    next_visible_at: str | msgspec.UnsetType = UNSET
    dlq_topic: str | msgspec.UnsetType = UNSET


class ShownReject(_Settled, kw_only=True):
    """A message that was dead-lettered."""

    rejected: bool = True
    action: str = "rejected"
    topic: str
    partition: int
    offset: int
    dlq_topic: str
    dlq_partition: int
    dlq_offset: int
    reason: str


class ShownExtension(_Settled, kw_only=True):
    """A message whose lease was extended."""

    extended: bool = True
    new_deadline: str
    extended_by: str


class RefusedReceipt(ErrorBody, kw_only=True):
    """The error of a message that was not settled."""

    receipt_handle: str


Result = ShownAck | ShownNack | ShownReject | ShownExtension | RefusedReceipt
RECEIPT_SHAPES = (ShownAck, ShownNack, ShownReject, ShownExtension, RefusedReceipt)


class SettledMany(msgspec.Struct, kw_only=True):
    """A result per receipt, in order. The fields of an error are set if all receipts failed."""

    success: bool
    results: list[Any]  # of `Result`
    failed: int
    error: str | msgspec.UnsetType = UNSET
    code: str | msgspec.UnsetType = UNSET
    status: int | msgspec.UnsetType = UNSET
    retryable: bool | msgspec.UnsetType = UNSET
    details: dict[str, Any] | msgspec.UnsetType = UNSET


class AckCounts(msgspec.Struct, kw_only=True):
    """Counts of settled messages, and of those that wait to be redelivered."""

    total_acks: int
    total_nacks: int
    total_rejects: int
    total_expired: int
    total_retries: int
    total_dlq: int
    current_queued: int


class LeaseCounts(msgspec.Struct, kw_only=True):
    """Counts of leases by outcome."""

    total_tracked: int
    current_in_flight: int
    total_expired: int
    total_acked: int
    total_extended: int


class DeadLetterCounts(msgspec.Struct, kw_only=True):
    """Counts of dead-lettered messages."""

    total_routed: int
    routes_by_reason: dict[str, int]
    routes_by_topic: dict[str, int]
    create_errors: int
    publish_errors: int


class ReliabilityStats(msgspec.Struct, kw_only=True):
    """Counts since the broker started. `dlq_messages` is the current number of dead letters."""

    acks_total: int
    nacks_total: int
    rejects_total: int
    dlq_messages: int
    visibility_extensions: int
    ack_manager: AckCounts
    visibility_tracker: LeaseCounts
    dlq: DeadLetterCounts


@post(["/messages/ack", "/messages/ack/batch"], tags=["settling"], summary="Acknowledge messages", status_code=200)
async def ack(context: Shared, data: JSONBody[AckBody]) -> JsonResponse[ShownAck | SettledMany]:
    """Acked messages are not delivered to the group again. In a transaction, the acks take effect with its commit."""
    return await _settle(context, data, reports.Settlement("ack"), acked)


@post(["/messages/nack", "/messages/nack/batch"], tags=["settling"], summary="Nack messages", status_code=200)
async def nack(context: Shared, data: JSONBody[NackBody]) -> JsonResponse[ShownNack | SettledMany]:
    """Redeliver messages after `delay`, or after a backoff that grows with each attempt.

    After the last attempt they are dead-lettered.
    """
    delay = None if data.delay is None else delay_ns(data.delay)
    return await _settle(context, data, reports.Settlement("nack", delay, data.reason or ""), _nacked)


@post(["/messages/reject", "/messages/reject/batch"], tags=["settling"], summary="Reject messages", status_code=200)
async def reject(context: Shared, data: JSONBody[RejectBody]) -> JsonResponse[ShownReject | SettledMany]:
    """Dead-letter messages without further attempts."""
    reason = data.reason or REJECTED

    def rejected(settled: reports.SettledMessage) -> ShownReject:
        return ShownReject(
            topic=settled.topic,
            partition=settled.partition,
            offset=settled.offset,
            dlq_topic=settled.dlq_topic,
            dlq_partition=settled.dlq_partition,
            dlq_offset=settled.dlq_offset,
            reason=settled.reason or reason,
        )

    return await _settle(context, data, reports.Settlement("reject", None, reason), rejected)


@post(
    ["/messages/visibility", "/messages/visibility/batch"],
    tags=["settling"],
    summary="Extend leases",
    status_code=200,
)
async def extend(context: Shared, data: JSONBody[VisibilityBody]) -> JsonResponse[ShownExtension | SettledMany]:
    """Set the deadline of the leases to `timeout` from now."""
    extension_ns = _extension_ns(data)

    def extended(settled: reports.SettledMessage) -> ShownExtension:
        return ShownExtension(new_deadline=time_text(settled.at_ns), extended_by=format_duration(extension_ns))

    return await _settle(context, data, reports.Settlement("extend", extension_ns), extended)


@get("/reliability/stats", tags=["settling"], summary="Count deliveries by outcome")
async def reliability_stats(context: Shared) -> ReliabilityStats:
    """Totals since the broker started, and the current number of dead letters."""
    report = await context.answered(context.service.groups.reliability())
    return ReliabilityStats(
        acks_total=report.acks,
        nacks_total=report.nacks,
        rejects_total=report.rejects,
        dlq_messages=sum(queue.messages for queue in (await context.answered(context.service.dead_letters.queues()))),
        visibility_extensions=report.extensions,
        ack_manager=AckCounts(
            total_acks=report.acks,
            total_nacks=report.nacks,
            total_rejects=report.rejects,
            total_expired=report.expired,
            total_retries=report.retries,
            total_dlq=report.dead_lettered,
            current_queued=report.waiting,
        ),
        visibility_tracker=LeaseCounts(
            total_tracked=report.leased,
            current_in_flight=report.in_flight,
            total_expired=report.expired,
            total_acked=report.acks,
            total_extended=report.extensions,
        ),
        dlq=DeadLetterCounts(
            total_routed=report.dead_lettered,
            routes_by_reason=report.dead_by_reason,
            routes_by_topic=report.dead_by_topic,
            create_errors=report.dlq_create_errors,
            publish_errors=report.dlq_publish_errors,
        ),
    )


async def _settle(
    context: RequestContext,
    body: SettleBody,
    settlement: reports.Settlement,
    show: Callable[[reports.SettledMessage], _Settled],
) -> JsonResponse[Any]:
    receipts = _receipts(body)
    if body.transaction_id is not None:
        if not body.transaction_id:
            raise TransactionNotFound("")
        settlement.transaction_id = body.transaction_id
    outcomes = await context.answered(context.service.groups.settle(receipts, settlement), settlement.action)
    if body.receipt_handles is None:
        outcome = outcomes[0]
        if isinstance(outcome, GoQueueError):
            raise outcome
        return JsonResponse(show(outcome), status_code=200)
    results, failed = results_of(receipts, outcomes, show)
    return answer_many(SettledMany(success=not failed, results=results, failed=failed))


def _receipts(body: SettleBody) -> list[str]:
    if body.receipt_handles is None:
        if not body.receipt_handle:
            raise InvalidRequest("receipt_handle is required", path="receipt_handle")
        return [body.receipt_handle]
    if body.receipt_handle is not None:
        raise InvalidRequest("receipt_handle and receipt_handles exclude each other; give one", path="receipt_handle")
    check_receipts(body.receipt_handles)
    return body.receipt_handles


def check_receipts(receipts: Sequence[str]) -> None:
    """Refuse an empty list, or one that is too long."""
    if not receipts:
        raise InvalidRequest("at least one receipt handle required", path="receipt_handles")
    if len(receipts) > RECEIPTS_MAX:
        raise too_many(len(receipts), "receipts", RECEIPTS_MAX)


def results_of(
    receipts: Sequence[str],
    outcomes: Sequence[reports.SettledMessage | GoQueueError],
    show: Callable[[reports.SettledMessage], _Settled],
) -> tuple[list[Result], int]:
    """A result per receipt, and the number of errors."""
    results: list[Any] = []
    failed = 0
    for receipt, outcome in zip(receipts, outcomes, strict=True):
        if isinstance(outcome, GoQueueError):
            failed += 1
            results.append(RefusedReceipt(**msgspec.structs.asdict(body_of(outcome)), receipt_handle=receipt))
        else:
            result = show(outcome)
            result.receipt_handle = receipt
            results.append(result)
    return results, failed


def answer_many(answer: Any) -> JsonResponse[Any]:
    """The answer with all results; if all failed, with the status of the first error."""
    if answer.failed < len(answer.results):
        return JsonResponse(answer, status_code=200)
    status, headers = fail_as_a_whole(answer)
    return JsonResponse(answer, status_code=status, headers=headers)


def acked(settled: reports.SettledMessage) -> ShownAck:
    """The result of an ack."""
    return ShownAck(
        topic=settled.topic,
        partition=settled.partition,
        offset=settled.offset,
        committed_offset=settled.committed_offset,
        offset_advanced=settled.offset_advanced,
        in_flight_count=settled.in_flight_count,
    )


def _nacked(settled: reports.SettledMessage) -> ShownNack:
    is_requeued = settled.action == "requeued"
    nacked = ShownNack(
        requeued=is_requeued,
        action=settled.action,
        topic=settled.topic,
        partition=settled.partition,
        offset=settled.offset,
    )
    if is_requeued:
        nacked.delivery_count = settled.delivery_count
        nacked.next_visible_at = time_text(settled.at_ns)
    else:
        nacked.dlq_topic = settled.dlq_topic
    return nacked


def _extension_ns(body: VisibilityBody) -> int:
    one_of(body.timeout, body.extension_seconds, "timeout and extension_seconds")
    if body.timeout is not None:
        name, extension_ns = "timeout", duration_ns(body.timeout, "timeout")
    elif body.extension_seconds is not None:
        name, extension_ns = "extension_seconds", body.extension_seconds * SECOND
    else:
        raise InvalidRequest("timeout is required, or extension_seconds", path="timeout")
    if extension_ns <= 0:
        raise InvalidRequest(f"{name} must be positive", path=name)
    if extension_ns > EXTENSION_NS_MAX:
        raise InvalidRequest(f"{name} must be at most {format_duration(EXTENSION_NS_MAX)}", path=name)
    return extension_ns
