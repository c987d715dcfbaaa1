"""The formats by name. Their libraries are loaded when the first schema of a format is looked at."""

from typing import Final

from goqueue.errors import InvalidSchema
from goqueue.schemas.format import SchemaFormat
from goqueue.schemas.subjects import Policy

AVRO_NAME: Final = "AVRO"
JSON_NAME: Final = "JSON"
PROTOBUF_NAME: Final = "PROTOBUF"
NAMES: Final = (JSON_NAME, PROTOBUF_NAME, AVRO_NAME)


def format_of(name: str, policy: Policy = Policy.STRICT) -> SchemaFormat:
    """The format of that name, in any letter case; the policy concerns how JSON Schemas are compared."""
    match name.upper():
        case "JSON":
            from goqueue.schemas.json.schema import JSON, LENIENT_JSON

            return LENIENT_JSON if policy is Policy.LENIENT else JSON
        case "AVRO":
            from goqueue.schemas.avro.schema import AVRO

            return AVRO
        case "PROTOBUF":
            from goqueue.schemas.protobuf.schema import PROTOBUF

            return PROTOBUF
    raise InvalidSchema(f"schemaType {name[:100]!r} is none of {', '.join(NAMES)}")
