"""The trace that a request belongs to goes on in the messages that it publishes.

A message whose own headers name a trace keeps that one. What a request says that does not keep to W3C's rules counts as
not said, and so do two answers to one question.
"""

from collections.abc import Iterable, Mapping

from goqueue.service.new_message import NewMessage
from goqueue.tracing.context import TRACEPARENT, TRACESTATE, kept_tracestate, parse_traceparent

_PARENT = TRACEPARENT.encode()
_STATE = TRACESTATE.encode()


def trace_headers(headers: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    """What a message is told of the trace of its request; nothing if there is none."""
    parents = [value for name, value in headers if name == _PARENT]
    if len(parents) != 1:
        return {}
    context = parse_traceparent(parents[0].decode("latin-1").strip())
    if context is None:
        return {}
    states = [value.decode("latin-1") for name, value in headers if name == _STATE]
    state = kept_tracestate(",".join(states))
    continued = {TRACEPARENT: context.traceparent}
    return {**continued, TRACESTATE: state} if state else continued


def continue_trace(message: NewMessage, trace: Mapping[str, str]) -> NewMessage:
    """The message in the trace of its request, unless it has its own."""
    own = message.headers
    if own and TRACEPARENT in own:
        return message
    return message._replace(headers={**own, **trace} if own else trace)
