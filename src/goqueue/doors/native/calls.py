"""Verbs that are called by name, in a CALL frame: `groups.describe`, `delays.cancel`, `schemas.register`.

The table of verbs says which arguments there are and of which types, and what comes over the wire is held against that
before the verb is called.
"""

from collections.abc import Callable, Mapping
from functools import cache
from inspect import Parameter
from typing import Any, Final

import msgspec

from goqueue.doors.unknown import unknown_field
from goqueue.errors import InvalidRequest
from goqueue.service.new_message import NewMessage
from goqueue.service.pending import Pending
from goqueue.service.service import Service
from goqueue.service.table import VERBS, ServiceVerb
from goqueue.wire.reports import RecurringMessage

CALLS: Final = {name: verb for name, verb in VERBS.items() if verb.is_called_by_name}


@cache
def arguments_of(verb: ServiceVerb) -> type[msgspec.Struct]:
    """The arguments as they are on the wire."""
    fields: list[Any] = []
    for parameter, hint in verb.parameters():
        field = (parameter.name, RecurringMessage if hint is NewMessage else hint)
        fields.append(field if parameter.default is Parameter.empty else (*field, parameter.default))
    return msgspec.defstruct(f"{verb.noun}_{verb.method}", fields, forbid_unknown_fields=True, kw_only=True)


def call(service: Service, name: str, arguments: Mapping[str, object]) -> Pending[Any]:
    """Call the verb of that name; raises `InvalidRequest` for what does not fit."""
    verb = CALLS.get(name)
    if verb is None:
        raise InvalidRequest(f"unknown call {name!r}")
    shape = arguments_of(verb)
    try:
        checked = msgspec.convert(arguments, shape)
    except msgspec.ValidationError as error:
        if refusal := unknown_field(error, shape, what="argument", caller=f"{name}: "):
            raise refusal from None
        raise InvalidRequest(f"{name}: {error}") from None
    function: Callable[..., Any] = getattr(getattr(service, verb.noun), verb.method)
    answer = function(**{field: _taken(getattr(checked, field)) for field in shape.__struct_fields__})
    return answer if isinstance(answer, Pending) else Pending.of(answer)


def _taken(value: Any) -> Any:
    """The argument as the service takes it."""
    if isinstance(value, RecurringMessage):
        return NewMessage(
            value=value.value,
            key=value.key,
            headers=dict(value.headers) or None,
            partition=value.partition,
            priority=value.priority,
        )
    return value
