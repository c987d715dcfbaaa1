"""The formats by name. Their libraries are loaded when the first schema of a format is looked at."""

from typing import Final

from goqueue.errors import InvalidSchema
from goqueue.schemas.format import Format

AVRO_NAME: Final = "AVRO"
JSON_NAME: Final = "JSON"
PROTOBUF_NAME: Final = "PROTOBUF"
NAMES: Final = (JSON_NAME, PROTOBUF_NAME, AVRO_NAME)


def format_of(name: str) -> Format:
    """The format of that name, in any letter case."""
    match name.upper():
        case "JSON":
            from goqueue.schemas.json_schema import JSON

            return JSON
        case "AVRO":
            from goqueue.schemas.avro import AVRO

            return AVRO
        case "PROTOBUF":
            from goqueue.schemas.protobuf import PROTOBUF

            return PROTOBUF
    raise InvalidSchema(f"schemaType {name[:100]!r} is none of {', '.join(NAMES)}")
