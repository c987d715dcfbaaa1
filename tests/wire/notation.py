"""The notation of docs/reference/protocol.md for structs, types and calls, made from the code.

    struct PublishAnswer
        first_offset: int
        duplicate: bool = false

    groups.describe(group: str) -> GroupInfo

`T?` is T or null, `[T]` an array, `{K: V}` a map, `(A, B)` an array with one value of each type, `any` whatever
msgpack holds. Defaults are written as in JSON.
"""

import inspect
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, NamedTuple, Union, get_args, get_origin

import msgspec

import goqueue
from goqueue.doors.native import calls
from goqueue.service.new_message import NewMessage
from goqueue.wire import (
    cluster_reports,
    reports,
    scan_reports,
    schema_reports,
    trace_reports,
    transaction_reports,
    verbs,
)

_MODULES = (verbs, reports, scan_reports, schema_reports, trace_reports, transaction_reports, cluster_reports)
_PLAIN = {int: "int", str: "str", bool: "bool", float: "float", bytes: "bytes", object: "any", NoneType: "null"}


class CallVerb(NamedTuple):
    """A verb that is called by name: its arguments, and the type of what it returns."""

    arguments: type[msgspec.Struct]
    result: Any


def call_verbs() -> dict[str, CallVerb]:
    """Every verb of CALL. The one place where the tests of the page take them from."""
    return {name: CallVerb(calls.arguments_of(verb), verb.result) for name, verb in calls.CALLS.items()}


def wire_structs() -> dict[str, type[msgspec.Struct]]:
    """Every struct of the wire by its name."""
    return {
        name: found
        for module in _MODULES
        for name, found in inspect.getmembers(module, inspect.isclass)
        if issubclass(found, msgspec.Struct) and found.__module__ == module.__name__ and not name.startswith("_")
    }


def own_headers() -> set[str]:
    """The name of every header of a record that GoQueue itself writes or reads."""
    sources = Path(goqueue.__file__).parent.rglob("*.py")
    return {name for source in sources for name in re.findall(r'Final = "(gq-\w[\w-]*)"', source.read_text())}


def type_name(kind: Any) -> str:
    """A type as the page writes it."""
    if kind in _PLAIN:
        return _PLAIN[kind]
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        (known,) = (one for one in inner if one is not NoneType)
        return f"{type_name(known)}?"
    if origin in (dict, Mapping):
        return f"{{{type_name(inner[0])}: {type_name(inner[1])}}}"
    if origin is tuple and inner[-1] is not Ellipsis:
        return f"({', '.join(map(type_name, inner))})"
    if origin in (list, tuple, Sequence):
        return f"[{type_name(inner[0])}]"
    if kind is NewMessage:
        return reports.RecurringMessage.__name__
    assert isinstance(kind, type), kind
    assert issubclass(kind, msgspec.Struct), kind
    return kind.__name__


def fields(struct: type[msgspec.Struct]) -> list[str]:
    """The fields of a struct in their order."""
    return [_field(field) for field in msgspec.structs.fields(struct)]


def signature(name: str, verb: CallVerb) -> str:
    """A verb of CALL in one line."""
    return f"{name}({', '.join(fields(verb.arguments))}) -> {type_name(verb.result)}"


def _field(field: msgspec.structs.FieldInfo) -> str:
    written = f"{field.name}: {type_name(field.type)}"
    if field.required:
        return written
    made = field.default_factory() if field.default is msgspec.NODEFAULT else field.default
    return f"{written} = {json.dumps(msgspec.to_builtins(made))}"
