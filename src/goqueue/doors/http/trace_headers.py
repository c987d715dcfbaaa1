"""Messages continue the trace of the request that publishes them.

A message whose own headers name a trace keeps that trace. A `traceparent` that is invalid by the W3C specification, or
that is sent twice, is ignored.
"""

from collections.abc import Iterable, Mapping

from goqueue.service.new_message import NewMessage
from goqueue.tracing.context import TRACEPARENT, TRACESTATE, kept_tracestate, parse_traceparent

_PARENT = TRACEPARENT.encode()
_STATE = TRACESTATE.encode()


def trace_headers(headers: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    """The headers that continue the trace of the request in a message; empty if the request has no trace."""
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
    """The message with the trace of its request, unless it names its own."""
    own = message.headers
    if own and TRACEPARENT in own:
        return message
    return message._replace(headers={**own, **trace} if own else trace)
