"""Spark's DDL for schemas, read without a JVM.

Spark's own parser is in the JVM, and the Python processes that plan and read for a data source have none. So this
module parses schemas such as `id bigint, tags array<string>, place struct<lat: double, lon: double>`. All types are
nullable, since all columns of a value that does not fit are null.
"""

import json
import re
from typing import Final

from pyspark.sql import types

from goqueue.errors import InvalidConfig

SIMPLE: Final[dict[str, types.DataType]] = {
    "boolean": types.BooleanType(),
    **dict.fromkeys(("tinyint", "byte"), types.ByteType()),
    **dict.fromkeys(("smallint", "short"), types.ShortType()),
    **dict.fromkeys(("int", "integer"), types.IntegerType()),
    **dict.fromkeys(("bigint", "long"), types.LongType()),
    **dict.fromkeys(("float", "real"), types.FloatType()),
    "double": types.DoubleType(),
    "string": types.StringType(),
    "binary": types.BinaryType(),
    "date": types.DateType(),
    **dict.fromkeys(("timestamp", "timestamp_ltz"), types.TimestampType()),
    "timestamp_ntz": types.TimestampNTZType(),
}
PRECISION_MAX: Final = 38
"""The most digits of a decimal in Spark."""
_DECIMAL = ("decimal", "dec", "numeric")
_DEPTH_MAX = 50
_TOKEN = re.compile(r"\s*(?:(\w+)|`((?:[^`]|``)+)`|'((?:[^'\\]|\\.)*)'|\"((?:[^\"\\]|\\.)*)\"|([<>(),:]))", re.ASCII)


def parse_ddl(text: str) -> types.StructType:
    """The columns that the text describes, as DDL or as the JSON of a StructType. Raises `InvalidConfig`."""
    if text.lstrip().startswith("{"):
        return _from_json(text)
    return types.StructType(_DdlReader(text).fields(until=""))


def nullable(type: types.DataType) -> types.DataType:
    """The same type, with nulls allowed everywhere."""
    match type:
        case types.StructType():
            return types.StructType([types.StructField(field.name, nullable(field.dataType)) for field in type])
        case types.ArrayType():
            return types.ArrayType(nullable(type.elementType))
        case types.MapType():
            return types.MapType(nullable(type.keyType), nullable(type.valueType))
    return type


def _from_json(text: str) -> types.StructType:
    try:
        made = nullable(types.StructType.fromJson(json.loads(text)))
    except Exception as error:  # `fromJson` raises many kinds of errors for malformed JSON
        raise InvalidConfig("valueSchema", text[:200], f"is not the JSON of a StructType: {error}") from error
    assert isinstance(made, types.StructType)
    return made


class _DdlReader:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._depth = 0

    def wrong(self, reason: str) -> InvalidConfig:
        return InvalidConfig("valueSchema", self._text[:200], f"{reason}, at character {self._at}")

    def fields(self, *, until: str) -> list[types.StructField]:
        """Columns up to the token `until`, which is consumed; an empty token is the end of the text."""
        fields: list[types.StructField] = []
        while True:
            name = self._name()
            self._take(":")
            type = self._type()
            self._passed_over()
            fields.append(types.StructField(name, type))
            if self._take(","):
                continue
            if not self._ends(until):
                raise self.wrong(f"expected ',' or {until or 'the end'!r}")
            return fields

    def _ends(self, until: str) -> bool:
        return self._take(until) if until else not self._text[self._at :].strip()

    def _name(self) -> str:
        found = self._next()
        if found is None or (found[1] is None and found[2] is None):
            raise self.wrong("expected the name of a column")
        self._at = found.end()
        return str(found[1]) if found[2] is None else found[2].replace("``", "`")

    def _type(self) -> types.DataType:
        found = self._next()
        if found is None or found[1] is None:
            raise self.wrong("expected a type")
        word = found[1].lower()
        self._at = found.end()
        if word in SIMPLE:
            return SIMPLE[word]
        if word in _DECIMAL:
            return self._decimal()
        self._depth += 1
        if self._depth > _DEPTH_MAX:
            raise self.wrong("nests too deep")
        made: types.DataType
        match word:
            case "array":
                self._need("<")
                made = types.ArrayType(self._type())
                self._need(">")
            case "map":
                self._need("<")
                key = self._type()
                if key != types.StringType():
                    raise self.wrong("the keys of a map must be strings")
                self._need(",")
                made = types.MapType(key, self._type())
                self._need(">")
            case "struct":
                self._need("<")
                made = types.StructType(self.fields(until=">"))
            case _:
                raise self.wrong(f"{found[1]!r} is not a type that a value can be read as")
        self._depth -= 1
        return made

    def _decimal(self) -> types.DecimalType:
        precision, scale = 10, 0
        if self._take("("):
            precision = self._number()
            scale = self._number() if self._take(",") else 0
            self._need(")")
        if not 0 <= scale <= precision <= PRECISION_MAX or not precision:
            raise self.wrong(f"there is no decimal({precision},{scale})")
        return types.DecimalType(precision, scale)

    def _number(self) -> int:
        found = self._next()
        if found is None or found[1] is None or not found[1].isdecimal() or len(found[1]) > 3:
            raise self.wrong("expected a number")
        self._at = found.end()
        return int(found[1])

    def _passed_over(self) -> None:
        """Skip NOT NULL and COMMENT, which may follow a type and have no effect here."""
        while (found := self._next()) is not None and found[1] is not None:
            if found[1].lower() not in ("not", "null", "comment"):
                return
            self._at = found.end()
            if found[1].lower() == "comment":
                found = self._next()
                if found is None or (found[3] is None and found[4] is None):
                    raise self.wrong("expected a comment in quotes")
                self._at = found.end()

    def _take(self, token: str) -> bool:
        found = self._next()
        if found is None or found[5] != token:
            return False
        self._at = found.end()
        return True

    def _need(self, token: str) -> None:
        if not self._take(token):
            raise self.wrong(f"expected {token!r}")

    def _next(self) -> re.Match[str] | None:
        return _TOKEN.match(self._text, self._at)
