"""Polling: the next messages for a member of a group.

The messages of all partitions are one list, ordered by priority. The answer respects `max_bytes` with decompressed
values: messages beyond it are released, as if they had never been delivered. All messages are released if the client
has disconnected.
"""

import struct
from collections.abc import Iterable, Iterator
from typing import Annotated, NamedTuple

import msgspec
from litestar import get
from litestar.params import FromPath, FromQuery, QueryParameter

from goqueue.doors.http.context import Shared
from goqueue.doors.http.shapes import Client, duration_ms, one_of, time_text, wait_ms
from goqueue.doors.http.stored_messages import Encoding, ShownMessage, Values, show
from goqueue.errors import InvalidRequest
from goqueue.names import TopicPartition
from goqueue.record import kernel
from goqueue.record.message import StoredMessage
from goqueue.service.groups import POLL_BYTES, POLL_MESSAGES, POLL_MESSAGES_MAX, GroupVerbs, PollResult
from goqueue.service.messages import READ_BYTES_MAX
from goqueue.service.pending import Pending
from goqueue.wire import reports

UNSET = msgspec.UNSET
DEFAULT_WAIT = "30s"
RELEASE = reports.Settlement("release")

MaxMessages = Annotated[
    int | None, QueryParameter(ge=1, le=POLL_MESSAGES_MAX, description=f"maximum number of messages ({POLL_MESSAGES})")
]
MaxBytes = Annotated[int, QueryParameter(ge=1, description="maximum size in bytes; at least one message is returned")]
Wait = Annotated[str | None, QueryParameter(description=f"how long to wait for messages ({DEFAULT_WAIT})")]

Number = Annotated[
    int | None,
    QueryParameter(
        ge=1, le=2**63 - 1, description="number of the poll, counted by the member from 1; makes it repeatable"
    ),
]


class DeliveredMessage(ShownMessage, kw_only=True, gc=False):
    """A message with its receipt. Groups that commit offsets have no receipts."""

    receipt_handle: str | msgspec.UnsetType = UNSET
    delivery_count: int = 1
    deadline: str | msgspec.UnsetType = UNSET


class PolledGap(msgspec.Struct):
    """Offsets [first_offset, next_offset) whose records are damaged on disk and cannot be delivered."""

    topic: str
    partition: int
    first_offset: int
    next_offset: int
    reason: str


class PolledMessages(msgspec.Struct, kw_only=True):
    """Messages for a member; `reason` says why there are none."""

    messages: list[DeliveredMessage]
    next_offset: dict[str, int]
    generation: int
    rebalance_required: bool
    in_flight: int
    reason: str | msgspec.UnsetType = UNSET
    gaps: list[PolledGap] | msgspec.UnsetType = UNSET  # damaged records that were skipped


class Delivery(NamedTuple):
    """A message and the batch that it was delivered in."""

    message: StoredMessage
    batch: reports.DeliveredBatch

    @property
    def is_leased(self) -> bool:
        """Whether the message can be settled or released."""
        return self.batch.deadline_ns > 0

    @property
    def delivery_count(self) -> int:
        return self.batch.counts.get(self.message.offset, 1)

    @property
    def receipt(self) -> str:
        batch = self.batch
        return f"{batch.topic}:{batch.partition}:{self.message.offset}:{self.delivery_count}:{batch.nonce}"


@get("/groups/{group:str}/poll", tags=["groups"], summary="Poll for messages")
async def poll(
    context: Shared,
    request: Client,
    group: FromPath[str],
    member_id: FromQuery[str | None] = None,
    generation: FromQuery[int | None] = None,
    max_messages: MaxMessages = None,
    limit: MaxMessages = None,
    max_bytes: MaxBytes = POLL_BYTES,
    timeout: Wait = None,
    wait: Wait = None,
    visibility_timeout: FromQuery[str | None] = None,
    number: Number = None,
    encoding: FromQuery[Encoding] = Encoding.TEXT,
    values: FromQuery[Values] = Values.TEXT,
) -> PolledMessages:
    """Return messages as soon as there are any, or none after the timeout. Counts as a heartbeat.

    A client that did not receive an answer sends the poll again with the same `number`, and gets the messages of that
    answer, with new receipts.
    """
    if not member_id:
        raise InvalidRequest("member_id query param is required", path="member_id")
    groups = context.service.groups
    count = one_of(max_messages, limit, "max_messages and limit") or POLL_MESSAGES
    max_bytes = min(max_bytes, READ_BYTES_MAX)
    visibility_timeout_ms = duration_ms(visibility_timeout, "visibility_timeout")
    asked_wait = one_of(timeout, wait, "timeout and wait")
    hold_ms = wait_ms(
        DEFAULT_WAIT if asked_wait is None else asked_wait,
        request.headers.get("prefer"),
        context.config,
        name="wait" if timeout is None else "timeout",
    )

    def ask(wait_ms: int) -> Pending[PollResult]:
        return groups.poll(
            group,
            member_id,
            generation=generation,
            max_messages=count,
            max_bytes=max_bytes,
            wait_ms=wait_ms,
            visibility_timeout_ms=visibility_timeout_ms,
            number=number,
        )

    def give_back(result: PollResult) -> None:
        _release(groups, _deliveries(result))

    result = await context.held(ask, hold_ms, request, give_back=give_back)
    return _answer(groups, result, max_bytes, encoding, values)


def _answer(
    groups: GroupVerbs, result: PollResult, max_bytes: int, encoding: Encoding, values: Values
) -> PolledMessages:
    polled = result.polled
    deliveries = sorted(_deliveries(result), key=lambda delivery: delivery.message.priority_code)
    messages: list[DeliveredMessage] = []
    total = 0
    for delivery in deliveries:
        view, size = show(delivery.message, encoding, values, DeliveredMessage)
        total += size
        # Messages without a lease cannot be released: the group's position is already after them.
        if messages and total > max_bytes and delivery.is_leased:
            break
        view.delivery_count = delivery.delivery_count
        if delivery.is_leased:
            view.receipt_handle = delivery.receipt
            view.deadline = time_text(delivery.batch.deadline_ns)
        messages.append(view)
    next_offset = {f"{batch.topic}-{batch.partition}": batch.next_offset for batch in polled.batches}
    too_many = deliveries[len(messages) :]
    for delivery in too_many:
        name = f"{delivery.batch.topic}-{delivery.batch.partition}"
        next_offset[name] = min(next_offset[name], delivery.message.offset)  # a released message is delivered again
    _release(groups, too_many)
    return PolledMessages(
        messages=messages,
        next_offset=next_offset,
        generation=polled.generation,
        rebalance_required=polled.rebalance_required,
        in_flight=polled.in_flight - len(too_many),
        reason=polled.reason or UNSET,
        gaps=[PolledGap(**msgspec.structs.asdict(gap)) for gap in polled.gaps] or UNSET,
    )


def _deliveries(result: PollResult) -> Iterator[Delivery]:
    for batch, records in zip(result.polled.batches, result.records, strict=True):
        for message in kernel.decode(records, TopicPartition(batch.topic, batch.partition), StoredMessage):
            yield Delivery(message, batch)


def _release(groups: GroupVerbs, deliveries: Iterable[Delivery]) -> None:
    """Release the leases of the deliveries. Deliveries without a lease are skipped."""
    by_nonce: dict[str, list[Delivery]] = {}
    for delivery in deliveries:
        if delivery.is_leased:
            by_nonce.setdefault(delivery.batch.nonce, []).append(delivery)
    for nonce, released in by_nonce.items():
        offsets = struct.pack(f"<{len(released)}Q", *(delivery.message.offset for delivery in released))
        batch = released[0].batch
        # The result does not matter: if the release is refused, the leases expire.
        groups.settle_batch(batch.topic, batch.partition, nonce, offsets, RELEASE)
