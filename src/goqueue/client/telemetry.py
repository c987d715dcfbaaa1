"""OpenTelemetry, in and out.

What is published while a span is current carries the context of that span, unless its headers name a trace already. And
inside `with message:` the context of the message is current, so that spans made there belong to its trace; a message
that came without one has the trace that the broker knows it by (`Message.trace`).

The client does not need OpenTelemetry and never imports it by itself: an application that has a span has imported the
API. All others pay for a lookup in `sys.modules`, once per batch of a producer.

`Client(telemetry=False)`, or `GOQUEUE_TELEMETRY=off`, switches both directions off.
"""

from collections.abc import Callable
from contextvars import ContextVar
from functools import cache
from sys import modules
from typing import TYPE_CHECKING, NamedTuple

from goqueue.client.received import Message
from goqueue.errors import CorruptRecord
from goqueue.record.headers import Headers
from goqueue.tracing.context import SAMPLED, TRACEPARENT, TRACESTATE, kept_tracestate

if TYPE_CHECKING:
    from opentelemetry.context import Context

_API = "opentelemetry.trace"


class Injector:
    """Puts the current context into headers.

    A context never changes. So what was found in the last one is kept; a producer compares `current` with the context
    that had no span in it, and skips the rest.
    """

    __slots__ = ("_last", "current")

    def __init__(self) -> None:
        self.current = _reader()
        self._last: tuple[Context | None, dict[str, str]] = (None, {})

    def fields(self, context: "Context") -> dict[str, str]:
        """The headers that hand the context on; none if there is no span in it."""
        last, fields = self._last
        if context is not last:
            fields = _fields(context)
            self._last = context, fields
        return fields

    def __call__(self, headers: Headers | None) -> Headers | None:
        """The headers with the context that is current, if it has a span and they name no trace."""
        fields = self.fields(self.current())
        if not fields or (headers is not None and TRACEPARENT in headers):
            return headers
        return fields if headers is None else {**headers, **fields}


class _Entered(NamedTuple):
    """A block of a message that was not left yet. Not the message itself: tasks begun in the block have this, too."""

    message_id: int
    before: "Context"
    outer: "_Entered | None"


_entered: ContextVar[_Entered | None] = ContextVar("goqueue_entered", default=None)


def is_in_use() -> bool:
    """Whether the application can have made a span."""
    return _API in modules


def injector() -> Injector | None:
    """What puts contexts into headers; None as long as the application cannot have made one."""
    return _the_injector() if is_in_use() else None


@cache
def _the_injector() -> Injector:
    return Injector()


def inject(headers: Headers | None) -> Headers | None:
    """The headers with the context that is current, if it has a span and they name no trace."""
    found = injector()
    return headers if found is None else found(headers)


def enter(message: Message) -> None:
    """Make the context of the message the current one, until the message is left."""
    from opentelemetry.context import attach, get_current

    before = get_current()
    attach(_context_of(message, before))
    _entered.set(_Entered(id(message), before, _entered.get()))


def leave(message: Message) -> None:
    """Make current what was so before; nothing if the message was entered elsewhere, or not at all."""
    entered = _entered.get()
    while entered is not None and entered.message_id != id(message):
        entered = entered.outer
    if entered is not None:
        from opentelemetry.context import attach

        attach(entered.before)  # not by a token: a block may be left in a copy of the context that it was entered in
        _entered.set(entered.outer)


def _reader() -> "Callable[[], Context]":
    """What tells the current context: the variable in which it is, where that is known, which is the fastest."""
    from opentelemetry import context

    runtime = getattr(context, "_RUNTIME_CONTEXT", None)
    variable = getattr(runtime, "_current_context", None)
    return variable.get if isinstance(variable, ContextVar) else context.get_current


def _fields(context: "Context") -> dict[str, str]:
    from opentelemetry.trace import get_current_span

    span = get_current_span(context).get_span_context()
    if not span.is_valid:
        return {}
    fields = {TRACEPARENT: f"00-{span.trace_id:032x}-{span.span_id:016x}-{span.trace_flags:02x}"}
    state = kept_tracestate(span.trace_state.to_header()) if span.trace_state else None
    return {**fields, TRACESTATE: state} if state else fields


def _context_of(message: Message, base: "Context") -> "Context":
    from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, TraceState, set_span_in_context

    trace = message.trace
    _, trace_id, span_id, _ = trace.traceparent.split("-")
    state = _state(message) if trace.span_id else ""
    span = SpanContext(
        int(trace_id, 16),
        int(span_id, 16),
        is_remote=True,
        trace_flags=TraceFlags(SAMPLED if trace.is_sampled else 0),
        trace_state=TraceState.from_header([state]) if state else None,
    )
    return set_span_in_context(NonRecordingSpan(span), base)


def _state(message: Message) -> str:
    try:
        return kept_tracestate(message.headers.get(TRACESTATE, "")) or ""
    except CorruptRecord:
        return ""
