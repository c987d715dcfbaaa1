"""Publishing, the busiest route: storing one small message takes less time than Litestar's routing.

So `front.py` passes these requests to `Publishing` directly, which implements ASGI. The handler `publish` below only
declares the route to Litestar, for the OpenAPI document and for 405 answers. It is never called.

Every message has its own result, and a refused message does not affect the others. If all are refused, the answer has
the status and the fields of the first error in addition to the results.
"""

from collections.abc import Iterable, Sequence
from itertools import repeat
from typing import Any, Final

import msgspec
from litestar import post
from litestar.openapi import ResponseSpec
from litestar.params import FromPath, JSONBody
from litestar.types import Receive, Scope, Send

from goqueue.doors.http.bodies import BodyDecoder, check_braces
from goqueue.doors.http.config import HttpConfig
from goqueue.doors.http.context import Context, request_context
from goqueue.doors.http.large_values import LARGE_BYTES
from goqueue.doors.http.new_messages import MessageBody, PublishBody, base64_chars, decode_large, new_message
from goqueue.doors.http.refusals import RETRY_AFTER_STATUS, ErrorBody, body_of, encode, too_many
from goqueue.doors.http.shapes import PRIORITIES, time_text
from goqueue.doors.http.strictness import check_query
from goqueue.doors.http.trace_headers import continue_trace, trace_headers
from goqueue.errors import GoQueueError, InvalidRequest, RequestTooLarge
from goqueue.service.messages import ProducerEpoch, Stored
from goqueue.service.new_message import NewMessage
from goqueue.service.pending import Pending
from goqueue.service.service import Service
from goqueue.topics.config import Acks

UNSET: Final = msgspec.UNSET
ROUTE: Final = "/topics/{topic}/messages"
_MESSAGE_FIELDS: Final = tuple(name for name in MessageBody.__struct_fields__ if name != "sequence")
_CONTENT_TYPE: Final = (b"content-type", b"application/json")


class StoredResult(msgspec.Struct, gc=False):
    """Where a message is stored. A duplicate of a batch that the broker has forgotten has no offset and no time."""

    partition: int
    offset: int | msgspec.UnsetType
    timestamp: str | msgspec.UnsetType
    priority: str
    delayed: bool | msgspec.UnsetType = UNSET
    deliver_at_camel: str | msgspec.UnsetType = msgspec.field(default=UNSET, name="deliverAt")
    deliver_at: str | msgspec.UnsetType = UNSET
    duplicate: bool | msgspec.UnsetType = UNSET


class AcceptedResult(msgspec.Struct, gc=False):
    """A message that was published with acks none: the answer did not wait for the outcome."""

    accepted: bool


class RefusedResult(ErrorBody, kw_only=True):
    """The error of a message that was not stored, and the index of the message in the request."""

    index: int


Result = StoredResult | AcceptedResult | RefusedResult
RESULT_SHAPES = (StoredResult, AcceptedResult, RefusedResult)
Outcomes = Iterable[Stored | GoQueueError | None]


class ShownPublish(msgspec.Struct, kw_only=True):
    """A result per message, in order. The fields of an error are set if all messages failed."""

    results: list[Any]  # of `Result`
    failed: int
    error: str | msgspec.UnsetType = UNSET
    code: str | msgspec.UnsetType = UNSET
    status: int | msgspec.UnsetType = UNSET
    retryable: bool | msgspec.UnsetType = UNSET
    details: dict[str, Any] | msgspec.UnsetType = UNSET


class Publishing:
    """The ASGI handler of publish requests."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._config = context.config
        self._decoder: BodyDecoder[PublishBody] = BodyDecoder(PublishBody)

    async def __call__(self, topic: str, scope: Scope, receive: Receive, send: Send, request_id: bytes) -> int:
        """Handle one request; returns the status."""
        if scope["query_string"]:
            check_query(scope["query_string"], (), scope["headers"])
        raw = await self._context.bodies.read(scope, receive, limit=self._config.publish_bytes_max)
        body = self._decode(raw, scope["headers"])
        messages = [body] if body.messages is None else body.messages
        self._check(body, messages, len(raw))
        if len(raw) > LARGE_BYTES:
            await decode_large(messages)

        understood = understood_messages(messages, scope["headers"], now_ns=self._context.clock.wall_ns())
        service = request_context(scope).service
        pending = self._publish(service, topic, body, [one for one in understood if isinstance(one, NewMessage)])
        if not pending.is_done and body.acks != Acks.NONE:
            await self._context.answered(pending, "publish")

        outcomes: Outcomes = pending.result() if pending.is_done else repeat(None)
        results, failed = results_of(understood, outcomes, shows_stored=body.acks != Acks.NONE)
        answer = ShownPublish(results=results, failed=failed)
        status, headers = (200 if body.acks != Acks.NONE else 202), [_CONTENT_TYPE, (b"x-request-id", request_id)]
        if failed == len(results):
            status, more = fail_as_a_whole(answer)
            headers += [(name.encode(), value.encode()) for name, value in more.items()]
        content = encode(answer)
        headers.append((b"content-length", b"%d" % len(content)))
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": content, "more_body": False})
        return status

    def _decode(self, raw: bytes, headers: Iterable[tuple[bytes, bytes]]) -> PublishBody:
        check_braces(raw, limit=self._config.braces_max)
        return self._decoder.decode(raw, headers)

    def _check(self, body: PublishBody, messages: Sequence[MessageBody], size: int) -> None:
        """Refuse a request that is invalid as a whole."""
        if body.messages is not None and (extra := _beside_messages(body)):
            raise InvalidRequest(f"{extra} cannot be combined with messages; set it in a message", path=extra)
        check_messages(messages, size, self._config)
        if (body.producer_id is None) != (body.epoch is None):
            missing = "producer_id" if body.producer_id is None else "epoch"
            raise InvalidRequest(f"{missing} is required", path=missing)
        if body.producer_id is None and (body.sequence is not None or _any_sequence(messages)):
            raise InvalidRequest("producer_id is required with a sequence", path="producer_id")

    def _publish(
        self, service: Service, topic: str, body: PublishBody, messages: list[NewMessage]
    ) -> Pending[list[Stored | GoQueueError]]:
        producer = None
        if body.producer_id is not None and body.epoch is not None:
            producer = ProducerEpoch(body.producer_id, body.epoch)
        return service.messages.publish(
            topic,
            messages,
            acks=body.acks,
            producer=producer,
            sequence=None if body.messages is None else body.sequence,
            transaction_id=body.transaction_id,
        )


@post(
    [ROUTE.replace("}", ":str}"), f"{ROUTE}/batch".replace("}", ":str}")],
    status_code=200,
    tags=["messages"],
    summary="Publish messages",
    responses={202: ResponseSpec(ShownPublish, description="Accepted, for acks none", generate_examples=False)},
)
async def publish(topic: FromPath[str], data: JSONBody[PublishBody]) -> ShownPublish:
    """Store up to 10,000 messages; each has its own result."""
    raise AssertionError(f"{topic}, {data}: front.py handles these requests")


def check_messages(messages: Sequence[MessageBody], size: int, config: HttpConfig) -> None:
    """Refuse a request without messages, with too many, or over the size limit; `size` is that of its body."""
    if not messages:
        raise InvalidRequest("at least one message required", path="messages")
    if len(messages) > config.messages_max:
        raise too_many(len(messages), "messages", config.messages_max)
    limit = config.payload_bytes_max + config.payload_bytes_per_message * len(messages)
    if size > limit:
        size -= sum(map(base64_chars, messages)) // 4  # base64 counts decoded: 3 bytes per 4 characters
        if size > limit:
            raise RequestTooLarge(size, limit)


def _beside_messages(body: PublishBody) -> str:
    """The name of a message field that is set at the top level of the request; empty if there is none."""
    for name in _MESSAGE_FIELDS:
        if getattr(body, name) not in (None, msgspec.UNSET):
            return "deliverAt" if name == "deliver_at_camel" else name
    return ""


def _any_sequence(messages: Sequence[MessageBody]) -> bool:
    for message in messages:  # noqa: SIM110  # `any` is slow for one message, which is what most requests have
        if message.sequence is not None:
            return True
    return False


def understood_messages(
    messages: Sequence[MessageBody], headers: Iterable[tuple[bytes, bytes]], *, now_ns: int
) -> list[NewMessage | GoQueueError]:
    """Each message as a `NewMessage` that continues the trace of the request, or the error that it is refused with."""
    understood: list[NewMessage | GoQueueError] = []
    for index, message in enumerate(messages):
        try:
            understood.append(new_message(message, index, now_ns))
        except GoQueueError as error:
            understood.append(error)
    if trace := trace_headers(headers):
        return [continue_trace(one, trace) if isinstance(one, NewMessage) else one for one in understood]
    return understood


def results_of(
    understood: Sequence[NewMessage | GoQueueError], outcomes: Outcomes, *, shows_stored: bool = True
) -> tuple[list[Result], int]:
    """A result per message, and the number of errors. Without `shows_stored`, stored messages are only `accepted`.

    `outcomes` are those of the valid messages, in order.
    """
    outcomes = iter(outcomes)
    results: list[Result] = []
    failed = 0
    stored_ns, stored_at = -1, ""
    for index, message in enumerate(understood):
        if isinstance(message, GoQueueError):
            results.append(_refused(message, index))
            failed += 1
            continue
        outcome = next(outcomes)
        if isinstance(outcome, GoQueueError):
            results.append(_refused(outcome, index))
            failed += 1
        elif outcome is None or not shows_stored:
            results.append(AcceptedResult(True))
        else:
            if outcome.timestamp_ns != stored_ns:
                stored_ns, stored_at = outcome.timestamp_ns, time_text(outcome.timestamp_ns)
            result = StoredResult(outcome.partition, outcome.offset, stored_at, PRIORITIES[message.priority])
            if message.deliver_at_ns is not None or outcome.duplicate:
                _annotate(result, message, outcome)
            results.append(result)
    return results, failed


def _annotate(result: StoredResult, message: NewMessage, stored: Stored) -> None:
    if message.deliver_at_ns is not None:
        result.delayed = True
        result.deliver_at = result.deliver_at_camel = time_text(message.deliver_at_ns)
    if stored.duplicate:
        result.duplicate = True
        if stored.offset < 0:
            result.offset = result.timestamp = UNSET


def _refused(error: GoQueueError, index: int) -> RefusedResult:
    """The error, with the index that the message has in the request: the broker counts only the valid messages."""
    body = body_of(error)
    if isinstance(body.details, dict) and "index" in body.details:
        body.error = body.error.replace(f"message {body.details['index']}: ", f"message {index}: ", 1)
        body.details["index"] = index
    return RefusedResult(**msgspec.structs.asdict(body), index=index)


def fail_as_a_whole(answer: Any) -> tuple[int, dict[str, str]]:
    """Copy the first error to the top level of an answer whose results all failed; returns its status and headers."""
    first: ErrorBody = answer.results[0]
    answer.error, answer.code, answer.status = first.error, first.code, first.status
    answer.retryable, answer.details = first.retryable, first.details
    is_to_wait = first.retryable and first.status in RETRY_AFTER_STATUS
    return first.status, {"retry-after": "1"} if is_to_wait else {}
