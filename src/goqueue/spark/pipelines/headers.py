"""The column `headers` in its two forms: pairs of a name and bytes, and a map of strings.

The source and archives have pairs. `headersFormat=map` and archives of earlier versions have a map. The functions here
accept rows with either.
"""

from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import MapType

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

HEADERS = "headers"


def with_pairs(rows: "DataFrame") -> "DataFrame":
    """The rows with their headers as pairs."""
    if not isinstance(rows.schema[HEADERS].dataType, MapType):
        return rows
    pairs = F.transform(
        F.map_entries(HEADERS),
        lambda entry: F.struct(entry["key"].alias("key"), entry["value"].cast("binary").alias("value")),
    )
    return rows.withColumn(HEADERS, pairs)


def texts(rows: "DataFrame") -> "Column":
    """The headers of the rows as a map<string,string>; of several headers with one name the last one counts."""
    if isinstance(rows.schema[HEADERS].dataType, MapType):
        return F.col(HEADERS)
    return F.map_from_entries(_texts_of_pairs())


def comparable(*, is_text: bool) -> "Column":
    """The part of headers, which are pairs, that is compared: all of it, or only what a map of strings would hold."""
    return F.array_sort(_texts_of_pairs()) if is_text else F.col(HEADERS)


def _texts_of_pairs() -> "Column":
    is_last = f"array_position(reverse({HEADERS}.key), x.key) = size({HEADERS}) - i"
    pair = "named_struct('key', x.key, 'value', make_valid_utf8(cast(x.value AS string)))"
    return F.expr(f"transform(filter({HEADERS}, (x, i) -> {is_last}), x -> {pair})")
