"""Every verb that needs no frame of its own, by name: `groups.describe`, `delays.cancel`, `schemas.register`.

The protocols of the service are the only list of them. Their signatures say which arguments there are and of
which types, and what comes over a wire is held against that before the verb is called.
"""

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, get_type_hints

import msgspec

from goqueue.doors.unknown import unknown_field
from goqueue.errors import InvalidRequest
from goqueue.service.groups import DeadLetterVerbs, DelayVerbs, GroupVerbs, ScheduleVerbs
from goqueue.service.new_message import NewMessage
from goqueue.service.node import NodeVerbs
from goqueue.service.pending import Pending
from goqueue.service.scans import ScanVerbs
from goqueue.service.schemas import SchemaVerbs
from goqueue.service.service import Service
from goqueue.service.traces import TraceVerbs
from goqueue.service.transactions import TransactionVerbs
from goqueue.wire.reports import RecurringMessage

_NOUNS: Final[Mapping[str, type]] = {
    "groups": GroupVerbs,
    "delays": DelayVerbs,
    "schedules": ScheduleVerbs,
    "dead_letters": DeadLetterVerbs,
    "schemas": SchemaVerbs,
    "traces": TraceVerbs,
    "transactions": TransactionVerbs,
    "scans": ScanVerbs,
    "node": NodeVerbs,
}
_HOT = frozenset(
    (
        "groups.join",
        "groups.poll",
        "groups.settle",
        "groups.settle_batch",
        "groups.has_member",
        "transactions.add_acks",
        "transactions.add_ack_batch",
    )
)
"""They have frames of their own, or only doors ask for them."""


class _Verb(NamedTuple):
    noun: str
    name: str
    arguments: type[msgspec.Struct]


def _verbs() -> dict[str, _Verb]:
    found = {}
    for noun, protocol in _NOUNS.items():
        for name, function in vars(protocol).items():
            if name.startswith("_") or not inspect.isfunction(function) or f"{noun}.{name}" in _HOT:
                continue
            hints = get_type_hints(function)
            fields: list[Any] = []
            for parameter in list(inspect.signature(function).parameters.values())[1:]:
                has_default = parameter.default is not inspect.Parameter.empty
                hint = hints[parameter.name]
                field = (parameter.name, RecurringMessage if hint is NewMessage else hint)
                fields.append((*field, parameter.default) if has_default else field)
            arguments = msgspec.defstruct(f"{noun}_{name}", fields, forbid_unknown_fields=True, kw_only=True)
            found[f"{noun}.{name}"] = _Verb(noun, name, arguments)
    return found


VERBS: Final = _verbs()


def call(service: Service, name: str, arguments: Mapping[str, object]) -> Pending[Any]:
    """Call the verb of that name; raises `InvalidRequest` for what does not fit."""
    verb = VERBS.get(name)
    if verb is None:
        raise InvalidRequest(f"unknown call {name!r}")
    try:
        checked = msgspec.convert(arguments, verb.arguments)
    except msgspec.ValidationError as error:
        if refusal := unknown_field(error, verb.arguments, what="argument", caller=f"{name}: "):
            raise refusal from None
        raise InvalidRequest(f"{name}: {error}") from None
    function: Callable[..., Any] = getattr(getattr(service, verb.noun), verb.name)
    values = {field: _taken(getattr(checked, field)) for field in verb.arguments.__struct_fields__}
    answer = function(**values)
    return answer if isinstance(answer, Pending) else Pending.of(answer)


def _taken(value: Any) -> Any:
    """The argument as the service takes it."""
    if isinstance(value, RecurringMessage):
        return NewMessage(value.value, value.key, dict(value.headers) or None, value.partition, value.priority)
    return value
