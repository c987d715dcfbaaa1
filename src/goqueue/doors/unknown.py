"""Names that are not known: fields of a request, arguments of a call.

msgspec finds them while it decodes (`forbid_unknown_fields`) and says where. What is added here is which names that
place knows, so that the refusal can say which of them may have been meant.
"""

import re
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any, Final

import msgspec
from msgspec import inspect

from goqueue.errors import InvalidRequest
from goqueue.names import nearest, suggestion

SHOWN_MAX: Final = 200
_UNKNOWN = re.compile(r"Object contains unknown field `(?P<name>.*?)`(?: - at `\$(?P<place>[^`]*)`)?", re.DOTALL)
_STEP = re.compile(r"\.([^.\[\]]+)|\[(\d+|\.\.\.)\]")


def unknown_field(
    error: msgspec.ValidationError, shape: Any, *, what: str = "field", caller: str = ""
) -> InvalidRequest | None:
    """The refusal of an unknown field, if that is what was wrong with an object of the shape."""
    match = _UNKNOWN.fullmatch(str(error))
    if match is None:
        return None
    place = match["place"] or ""
    return unknown(match["name"], _names_at(shape, place), place.removeprefix("."), what=what, caller=caller)


def unknown(
    name: str, known: Sequence[str], place: str = "", *, what: str = "field", caller: str = ""
) -> InvalidRequest:
    """The refusal of a name that is not among those that are known at that place."""
    shown = name[:SHOWN_MAX]
    path = f"{place}.{shown}" if place else shown
    reason = f"{caller}unknown {what} {path}: {suggestion(shown, known)}"
    return InvalidRequest(reason, path=path, nearest=nearest(shown, known))


def without_unknown(node: Any, shape: Any) -> Any:
    """The decoded JSON without what the shape does not know."""
    return _known_part(node, _type(shape))


@cache
def _type(shape: Any) -> inspect.Type:
    return inspect.type_info(shape)


def _names_at(shape: Any, place: str) -> list[str]:
    """Which fields an object at that place of the shape may have."""
    types = list(_choices(_type(shape)))
    for field, index in _STEP.findall(place):
        types = [inner for outer in types for inner in _inside(outer, field, index)]
    return [field.encode_name for one in types if isinstance(one, inspect.StructType) for field in one.fields]


def _inside(outer: inspect.Type, field: str, index: str) -> Iterator[inspect.Type]:
    if field and isinstance(outer, inspect.StructType):
        for one in outer.fields:
            if one.encode_name == field:
                yield from _choices(one.type)
    elif index and isinstance(outer, inspect.ListType):
        yield from _choices(outer.item_type)
    elif index and isinstance(outer, inspect.DictType):
        yield from _choices(outer.value_type)


def _choices(one: inspect.Type) -> Iterator[inspect.Type]:
    if isinstance(one, inspect.UnionType):
        for choice in one.types:
            yield from _choices(choice)
    elif isinstance(one, inspect.Metadata):
        yield from _choices(one.type)
    else:
        yield one


def _known_part(node: Any, wanted: inspect.Type) -> Any:
    if isinstance(node, dict):
        for one in _choices(wanted):
            if isinstance(one, inspect.StructType):
                types = {field.encode_name: field.type for field in one.fields}
                return {name: _known_part(value, types[name]) for name, value in node.items() if name in types}
            if isinstance(one, inspect.DictType):
                return {name: _known_part(value, one.value_type) for name, value in node.items()}
    elif isinstance(node, list):
        for one in _choices(wanted):
            if isinstance(one, inspect.ListType):
                return [_known_part(item, one.item_type) for item in node]
    return node
