"""Arrow arrays of any Spark type from Python values.

Arrow's own conversion of nested values inspects each value to find its type. Here the type is known: a struct is split
into its fields, lists and maps into one long list of their items, and Arrow converts only the leaves, a whole column at
a time.

    struct          a tuple of its fields, or a msgspec.Struct with them; one kind in a column
    array, map      a list, a dict
    timestamp       a datetime, without a zone in UTC, or microseconds since 1970
    date            a date, or days since 1970
    decimal         a Decimal or an int; digits beyond the scale are rounded as Spark rounds them
    string          a str, or in the whole column msgspec.Raw: the JSON text of the value; null is None
    any type        None
"""

from collections.abc import Callable, Sequence
from decimal import ROUND_HALF_UP, Context, Decimal
from itertools import accumulate, chain
from operator import attrgetter, itemgetter
from typing import Any, Final

import msgspec
import pyarrow as pa

UNFIT: Final = (ValueError, TypeError, OverflowError, ArithmeticError, pa.ArrowException)
"""The errors for a value that its type cannot hold."""

_EXACT = Context(prec=100)


def typed_array(values: Sequence[Any], type: Any) -> Any:
    """The values as an array of the Arrow type; raises one of `UNFIT` for a value that the type cannot hold."""
    if pa.types.is_struct(type):
        return _structs(values, type)
    if pa.types.is_list(type):
        return _lists(values, type)
    if pa.types.is_map(type):
        return _maps(values, type)
    if pa.types.is_decimal(type):
        return pa.array(_rounded(values, type.scale), type=type)
    if pa.types.is_string(type) and isinstance(next((each for each in values if each is not None), None), msgspec.Raw):
        return pa.array(list(map(_text, values)), type=type)
    return pa.array(values, type=type)


def columns_of(rows: Sequence[Any], types: Sequence[Any]) -> list[Any]:
    """An array for each field of the rows, which are structs of one kind; a row of None is null in all of them."""
    sample = next((row for row in rows if row is not None), None)
    if sample is None:
        return [pa.nulls(len(rows), type=type) for type in types]
    blank: Any
    getters: list[Callable[[Any], Any]]
    if isinstance(sample, msgspec.Struct):
        blank = sample.__class__()
        getters = list(map(attrgetter, sample.__struct_fields__))
    else:
        blank = (None,) * len(types)
        getters = list(map(itemgetter, range(len(types))))
    filled = [blank if row is None else row for row in rows]
    return [typed_array(list(map(get, filled)), type) for get, type in zip(getters, types, strict=True)]


def _structs(values: Sequence[Any], type: Any) -> Any:
    fields = list(type)
    arrays = columns_of(values, [field.type for field in fields])
    return pa.StructArray.from_arrays(arrays, fields=fields, mask=_mask(values))


def _lists(values: Sequence[Any], type: Any) -> Any:
    items = list(chain.from_iterable(value for value in values if value is not None))
    return pa.ListArray.from_arrays(
        _offsets(values), typed_array(items, type.value_type), type=type, mask=_mask(values)
    )


def _maps(values: Sequence[Any], type: Any) -> Any:
    entries = list(chain.from_iterable(value.items() for value in values if value is not None))
    keys = typed_array([key for key, _ in entries], type.key_type)
    items = typed_array([item for _, item in entries], type.item_type)
    return pa.MapArray.from_arrays(_offsets(values), keys, items, type=type, mask=_mask(values))


def _offsets(values: Sequence[Any]) -> Any:
    ends = accumulate((0 if value is None else len(value) for value in values), initial=0)
    return pa.array(list(ends), type=pa.int32())


def _mask(values: Sequence[Any]) -> Any:
    is_null = [value is None for value in values]
    return pa.array(is_null, type=pa.bool_()) if any(is_null) else None


def _text(raw: msgspec.Raw | None) -> str | None:
    text = "null" if raw is None else bytes(raw).decode()
    return None if text == "null" else text


def _rounded(values: Sequence[Any], scale: int) -> list[Decimal | None]:
    step = Decimal(1).scaleb(-scale)
    return [
        None if value is None else Decimal(value).quantize(step, rounding=ROUND_HALF_UP, context=_EXACT)
        for value in values
    ]
