"""Avro schemas: text to types, and what two texts have in common.

Two schemas are the same if their JSON is, whatever white space they have; docs, aliases and defaults count. Normalized,
the order of attributes does not count either, nor how a name or a primitive type is written: names are full, primitives
are their names, attributes are in the order of the Parsing Canonical Form and the others after them by name.
Unlike in that form nothing is dropped, since defaults and aliases decide what a schema can read.

Payloads are checked by a decoder of our own (`avro_binary.py`). The libraries' decoders take the bytes' word for how
long an array is and how deep a record nests, and end the process.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

from goqueue.errors import InvalidSchema
from goqueue.schemas.avro.binary import BinaryValidator
from goqueue.schemas.avro.compatibility import incompatibilities
from goqueue.schemas.avro.text import Reader
from goqueue.schemas.avro.types import NAME, PRIMITIVES, Named, Type, first_record, qualified
from goqueue.schemas.format import SCHEMA_BYTES_MAX, SCHEMA_DEPTH_MAX, ParsedSchema, Validator

JSON_DEPTH_MAX: Final = 4 * SCHEMA_DEPTH_MAX
"""A type that nests is up to three levels of JSON."""

_ORDER = ("name", "type", "fields", "symbols", "items", "values", "size")


@dataclass(frozen=True, slots=True, eq=False)
class AvroSchema:
    """A schema that was read and found good.

    `names` has all types that another schema may refer to, and `sources` the canonical text that each one is from.
    """

    text: str
    canonical: str
    type: Type
    names: Mapping[str, Named]
    sources: Mapping[str, str]

    @property
    def record_name(self) -> str | None:
        """The full name of the type, or of the first record in a union."""
        return first_record(self.type)

    def normalized(self) -> str:
        """The canonical text without what does not change the meaning."""
        document = _normal(msgspec.json.decode(self.canonical), "", self.names)
        return msgspec.json.encode(document).decode()

    def compile(self) -> Validator:
        """What holds payloads against it."""
        return BinaryValidator(self.type)


class AvroFormat:
    """Avro, for the registry."""

    name = "AVRO"

    def parse(self, text: str, references: Mapping[str, ParsedSchema]) -> AvroSchema:
        """Read a schema; raises `InvalidSchema`."""
        document = _document(text)
        canonical = msgspec.json.encode(document).decode()
        names: dict[str, Named] = {}
        sources: dict[str, str] = {}
        for reference, schema in references.items():
            if not isinstance(schema, AvroSchema):
                raise InvalidSchema(f"the reference {reference!r} is no Avro schema")
            for name, source in schema.sources.items():
                if sources.setdefault(name, source) != source:
                    raise InvalidSchema(f"the references have more than one type {name}")
            names |= schema.names
        type = Reader(names).read(document)
        return AvroSchema(text, canonical, type, names, dict.fromkeys(names, canonical) | sources)

    def incompatibilities(self, reader: ParsedSchema, writer: ParsedSchema) -> list[str]:
        """Each reason why `reader` cannot read all that was written with `writer`."""
        assert isinstance(reader, AvroSchema)
        assert isinstance(writer, AvroSchema)
        return incompatibilities(reader.type, writer.type)


AVRO: Final = AvroFormat()


def _document(text: str) -> object:
    """The JSON of a schema; a name may stand without quotes."""
    bare = text.strip()
    if all(NAME.fullmatch(part) for part in bare.split(".")) and bare not in ("true", "false", "null"):
        return bare
    try:
        raw = text.encode()
        if len(raw) > SCHEMA_BYTES_MAX:
            raise InvalidSchema(f"it has {len(raw)} bytes, and {SCHEMA_BYTES_MAX} are the most")
        document = msgspec.json.decode(raw)
    except RecursionError:
        raise InvalidSchema(f"it nests more than {JSON_DEPTH_MAX} deep") from None
    except (msgspec.DecodeError, UnicodeError) as error:
        raise InvalidSchema(f"it is no JSON: {error}") from None
    _check_depth(document)
    return document


def _check_depth(document: object) -> None:
    level = [document]
    for _ in range(JSON_DEPTH_MAX):
        level = [
            part
            for value in level
            if isinstance(value, dict | list)
            for part in (value.values() if isinstance(value, dict) else value)
        ]
        if not level:
            return
    raise InvalidSchema(f"it nests more than {JSON_DEPTH_MAX} deep")


def _normal(document: object, namespace: str, names: Mapping[str, Named]) -> object:
    """The same type, written in the one way."""
    if isinstance(document, str):
        full = qualified(document, namespace)
        return full if document not in PRIMITIVES and full in names else document
    if isinstance(document, list):
        return [_normal(branch, namespace, names) for branch in document]
    assert isinstance(document, dict)
    attributes = dict(document)
    attributes.pop("namespace", None)
    kind = attributes["type"]
    if "name" in attributes and kind in ("record", "error", "enum", "fixed"):
        attributes["name"] = full = qualified(attributes["name"], document.get("namespace", namespace))
        namespace = full.rpartition(".")[0]
        if "aliases" in attributes:
            attributes["aliases"] = sorted(qualified(alias, namespace) for alias in attributes["aliases"])
    match kind:
        case "record" | "error":
            attributes["fields"] = [_normal_field(field, namespace, names) for field in attributes["fields"]]
        case "array":
            attributes["items"] = _normal(attributes["items"], namespace, names)
        case "map":
            attributes["values"] = _normal(attributes["values"], namespace, names)
        case "enum" | "fixed":
            pass
        case _:
            attributes["type"] = _normal(kind, namespace, names)
            if len(attributes) == 1:
                return attributes["type"]
    return _ordered(attributes)


def _normal_field(field: dict[str, object], namespace: str, names: Mapping[str, Named]) -> dict[str, object]:
    attributes = field | {"type": _normal(field["type"], namespace, names)}
    if attributes.get("order") == "ascending":
        del attributes["order"]
    return _ordered(attributes)


def _ordered(attributes: Mapping[str, object]) -> dict[str, object]:
    first = {name: attributes[name] for name in _ORDER if name in attributes}
    return first | {name: attributes[name] for name in sorted(attributes.keys() - first.keys())}
