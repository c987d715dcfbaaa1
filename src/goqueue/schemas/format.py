"""What the registry has to know of a kind of schema: how to read one, compare two, and hold messages against one.

A format is a table entry, not a base class: JSON Schema, Avro and Protobuf share no code. What they share are bounds.
Any client may send a schema, so a format refuses what is too long or nested too deep with `InvalidSchema` before it
costs anything, and fetches nothing: what a schema refers to is given to it.
"""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple, Protocol

SCHEMA_BYTES_MAX: Final = 1024 * 1024
"""Of a schema's text, as UTF-8."""
SCHEMA_DEPTH_MAX: Final = 100
"""Levels of nesting in a schema. People stay below 20; recursion in the libraries has to end somewhere."""


class PayloadFault(NamedTuple):
    """Why a payload does not fit: where in it, as a JSON Pointer (`""` is all of it), and what is wrong there."""

    path: str
    reason: str


class Validator(Protocol):
    """A schema, compiled. Payloads are what follows the registry's prefix of 5 bytes; nothing is raised."""

    def check(self, payload: bytes) -> PayloadFault | None:
        """What is wrong with the payload."""

    def check_many(self, payloads: Sequence[bytes]) -> tuple[int, PayloadFault] | None:
        """Which is the first that does not fit, and why."""


class ParsedSchema(Protocol):
    """A schema that was read and found good."""

    @property
    def text(self) -> str:
        """As it was registered."""

    @property
    def canonical(self) -> str:
        """Two schemas are the same if this text is."""

    @property
    def record_name(self) -> str | None:
        """The full name of its first record or message, for subjects that are named after it."""

    def normalized(self) -> str:
        """The canonical text under `normalize`, which passes over what does not change the meaning."""

    def compile(self) -> Validator:
        """What holds payloads against it; may be dear, and is kept by the caller."""


class SchemaFormat(Protocol):
    """A kind of schema."""

    @property
    def name(self) -> str:
        """`JSON`, `AVRO` or `PROTOBUF`."""

    def parse(self, text: str, references: Mapping[str, ParsedSchema]) -> ParsedSchema:
        """Read a schema; raises `InvalidSchema`.

        The references are all that it refers to, those of references too, by the name it is referred to;
        a schema comes after those that it refers to itself.
        """

    def incompatibilities(self, reader: ParsedSchema, writer: ParsedSchema) -> list[str]:
        """Each reason why `reader` cannot read all that was written with `writer`, a sentence that begins with a path.

        Both were parsed by this format.
        """
