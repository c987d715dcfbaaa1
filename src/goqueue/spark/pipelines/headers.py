"""The column `headers` in its two forms: pairs of a name and bytes, and a map of texts.

The source has pairs, and so do archives. A map comes from `headersFormat=map`, and from archives that were written when
there was nothing else. The functions here take rows with either.
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
    """The headers of the rows as a map<string,string>; of several with one name the last counts."""
    if isinstance(rows.schema[HEADERS].dataType, MapType):
        return F.col(HEADERS)
    return F.map_from_entries(_texts_of_pairs())


def comparable(*, is_text: bool) -> "Column":
    """What of headers, which are pairs, is compared: all, or only what a map of texts would have of them."""
    return F.array_sort(_texts_of_pairs()) if is_text else F.col(HEADERS)


def _texts_of_pairs() -> "Column":
    is_last = f"array_position(reverse({HEADERS}.key), x.key) = size({HEADERS}) - i"
    pair = "named_struct('key', x.key, 'value', make_valid_utf8(cast(x.value AS string)))"
    return F.expr(f"transform(filter({HEADERS}, (x, i) -> {is_last}), x -> {pair})")
