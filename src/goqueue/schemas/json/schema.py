"""JSON Schema, drafts 4, 6, 7, 2019-09 and 2020-12, on compiled validators.

`$schema` says which draft; without it a schema is draft 7, as Confluent's is. `format` is an annotation: it is not
checked. The record name of a schema is its `title`.

Nothing that a schema says may hang the broker. Patterns run on an engine whose time is linear in the text, so
lookaround and backreferences are refused. Nothing is ever fetched: a `$ref` leads into the schema itself or into one of
its references. And the size of a schema with all its refs written out is bounded, because that is what a
message can be held against.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final, NoReturn, cast

import jsonschema_rs
import msgspec

from goqueue.errors import InvalidSchema
from goqueue.schemas.format import SCHEMA_BYTES_MAX, SCHEMA_DEPTH_MAX, ParsedSchema, PayloadFault
from goqueue.schemas.json.compatibility import incompatibilities
from goqueue.schemas.json.faults import FaultFinder
from goqueue.schemas.json.references import MAIN, References, pointer_of

EXPANDED_NODES_MAX: Final = 1_000_000
"""Of a schema with its refs written out: about 20 ms for each value it is held against, at the very worst."""
PARTS_SIZE_MAX: Final = 200_000
"""Of schemas whose parts are compiled to find a fault: a second or so, once."""
REASON_CHARACTERS_MAX: Final = 300
DEFAULT_DRAFT: Final = "http://json-schema.org/draft-07/schema"
_DRAFTS: Final[Mapping[str, type[jsonschema_rs.Validator]]] = {
    "http://json-schema.org/draft-04/schema": jsonschema_rs.Draft4Validator,
    "http://json-schema.org/draft-06/schema": jsonschema_rs.Draft6Validator,
    DEFAULT_DRAFT: jsonschema_rs.Draft7Validator,
    "http://json-schema.org/draft/2019-09/schema": jsonschema_rs.Draft201909Validator,
    "http://json-schema.org/draft/2020-12/schema": jsonschema_rs.Draft202012Validator,
}
_PATTERNS: Final = jsonschema_rs.RegexOptions(size_limit=1024 * 1024, dfa_size_limit=1024 * 1024)
_decode: Final = msgspec.json.Decoder().decode
_UNREADABLE: Final = (msgspec.DecodeError, UnicodeError, RecursionError, ValueError)


class JsonSchema:
    """A JSON Schema that was read and found good."""

    __slots__ = ("_validator", "canonical", "document", "others", "references", "text")

    def __init__(self, text: str, document: Any, others: Mapping[str, Any]) -> None:
        self.text = text
        self.document = document
        self.others = others
        self.references = References(_explicit(document), others)
        if self.references.expanded_size(EXPANDED_NODES_MAX) >= EXPANDED_NODES_MAX:
            raise InvalidSchema(f"it has more than {EXPANDED_NODES_MAX:,} nodes when its refs are written out")
        self.canonical = msgspec.json.encode(document).decode()
        self._validator = _compiled(document, self.registry())

    @property
    def record_name(self) -> str | None:
        """Its title."""
        title = self.document.get("title") if isinstance(self.document, dict) else None
        return title if isinstance(title, str) and title else None

    def normalized(self) -> str:
        """With sorted keys."""
        return msgspec.json.encode(self.document, order="sorted").decode()

    def compile(self) -> "JsonValidator":
        """The validator that the schema was checked with."""
        return JsonValidator(self._validator, self)

    def registry(self) -> jsonschema_rs.Registry:
        """The documents that it refers to, under the addresses that lead to them."""
        resources = [(uri, self.others[name]) for uri, name in self.references.resources()]
        try:
            return jsonschema_rs.Registry(resources, retriever=_refuse)
        except (ValueError, jsonschema_rs.ReferencingError) as error:
            raise InvalidSchema(_shortened(str(error))) from None

    def fault_finder(self) -> FaultFinder | None:
        """What says where a value breaks the schema; not for schemas that it would be too dear for."""
        documents = {MAIN: self.document, **self.others}
        if sum(map(_parts_size, documents.values())) > PARTS_SIZE_MAX:
            return None
        registry = self.registry()
        return FaultFinder(
            self.references,
            {
                name: jsonschema_rs.validator_map_for(
                    _explicit(one),
                    registry=registry,
                    validate_formats=False,
                    pattern_options=_PATTERNS,
                    offline=True,
                )
                for name, one in documents.items()
                if isinstance(one, dict)
            },
            partial(_compiled_alone, _DRAFTS[_draft(self.document)]),
        )


class JsonValidator:
    """Holds JSON texts against a schema."""

    __slots__ = ("_finder", "_is_valid", "_schema")

    def __init__(self, validator: jsonschema_rs.Validator, schema: JsonSchema) -> None:
        self._is_valid = validator.is_valid
        self._schema = schema
        self._finder: FaultFinder | None = None

    def check(self, payload: bytes) -> PayloadFault | None:
        """What is wrong with the text; of several faults, one."""
        try:
            value = _decode(payload)
        except _UNREADABLE as error:
            return PayloadFault("", _shortened(f"not JSON: {_words(error)}"))
        try:
            return None if self._is_valid(value) else self._fault(value)
        except ValueError as error:
            return PayloadFault("", _shortened(str(error)))

    def _fault(self, value: Any) -> PayloadFault:
        self._finder = self._finder or self._schema.fault_finder()
        return (
            self._finder.find(value)
            if self._finder
            else PayloadFault("", "it breaks the schema, which is too large to say where")
        )

    def check_many(self, payloads: Sequence[bytes]) -> tuple[int, PayloadFault] | None:
        """Which is the first that does not fit, and why."""
        try:
            if all(map(self._is_valid, map(_decode, payloads))):
                return None
        except _UNREADABLE:
            pass  # each for itself, then: which is it?
        for index, payload in enumerate(payloads):
            fault = self.check(payload)
            if fault:
                return index, fault
        return None


class JsonFormat:
    """The format of that name. A lenient one compares schemas under the policy LENIENT."""

    name: Final = "JSON"

    def __init__(self, *, is_lenient: bool = False) -> None:
        self._is_lenient = is_lenient

    def parse(self, text: str, references: Mapping[str, ParsedSchema]) -> JsonSchema:
        """Read a schema and check it against the schema of its draft."""
        others = {name: _explicit(cast(JsonSchema, one).document) for name, one in references.items()}
        return JsonSchema(text, _document(text), others)

    def incompatibilities(self, reader: ParsedSchema, writer: ParsedSchema) -> list[str]:
        """Each kind of value that the writer's schema allows and the reader's does not."""
        return incompatibilities(
            cast(JsonSchema, reader).references.bundled(),
            cast(JsonSchema, writer).references.bundled(),
            is_lenient=self._is_lenient,
        )


JSON: Final = JsonFormat()
LENIENT_JSON: Final = JsonFormat(is_lenient=True)


def _document(text: str) -> Any:
    """The JSON of the text, which is not nested too deep."""
    try:
        encoded = text.encode()
        if len(encoded) > SCHEMA_BYTES_MAX:
            raise InvalidSchema(f"{len(encoded)} bytes are over the limit of {SCHEMA_BYTES_MAX}")
        document = _decode(encoded)
    except _UNREADABLE as error:
        raise InvalidSchema(f"not JSON: {_words(error)}") from None
    if not isinstance(document, dict | bool):
        raise InvalidSchema("a JSON Schema is an object or a boolean")
    level = [document]
    for _ in range(SCHEMA_DEPTH_MAX):
        level = [item for node in level for item in _inside(node)]
        if not level:
            return document
    raise InvalidSchema(f"nested deeper than {SCHEMA_DEPTH_MAX} levels")


def _inside(node: Any) -> list[Any]:
    items = node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
    return [item for item in items if isinstance(item, dict | list)]


def _compiled(document: Any, registry: jsonschema_rs.Registry) -> jsonschema_rs.Validator:
    draft = _DRAFTS[_draft(document)]
    try:
        return draft(document, registry=registry, validate_formats=False, pattern_options=_PATTERNS, offline=True)
    except jsonschema_rs.ValidationError as error:
        raise InvalidSchema(_what_is_wrong(error), path=pointer_of(error.instance_path)) from None
    except (ValueError, jsonschema_rs.ReferencingError) as error:
        raise InvalidSchema(_shortened(str(error))) from None


def _compiled_alone(draft: type[jsonschema_rs.Validator], schema: Any) -> jsonschema_rs.Validator:
    return draft(schema, validate_formats=False, pattern_options=_PATTERNS, offline=True)


def _parts_size(document: Any) -> int:
    """How many nodes all parts of the document have together: each one is in all that it is inside of."""
    size, depth, level = 0, 1, [document]
    while level:
        size += depth * len(level)
        depth, level = depth + 1, [item for node in level for item in _inside(node)]
    return size


def _draft(document: Any) -> str:
    """The draft that the schema is written in, as a key of the table."""
    named = document.get("$schema", DEFAULT_DRAFT) if isinstance(document, dict) else DEFAULT_DRAFT
    if not isinstance(named, str):
        raise InvalidSchema("must be a string", path="/$schema")
    draft = named.removesuffix("#").replace("https://", "http://", 1)
    if draft not in _DRAFTS:
        raise InvalidSchema(f"{_shortened(repr(named))} is none of {', '.join(_DRAFTS)}", path="/$schema")
    return draft


def _explicit(document: Any) -> Any:
    """The schema with its draft in it, whatever it is made a part of."""
    if not isinstance(document, dict):
        return document
    draft = _draft(document)
    if "/draft/" in draft:
        return {**document, "$schema": draft.replace("http://", "https://", 1)}
    return {**document, "$schema": f"{draft}#"}


def _refuse(uri: str) -> NoReturn:
    raise ValueError(f"nothing is fetched; {_shortened(uri)} is not among the references")


def _what_is_wrong(error: jsonschema_rs.ValidationError) -> str:
    keyword = error.instance_path[-1] if error.instance_path else ""
    if error.message.endswith('is not a "regex"'):
        return _shortened(error.message) + ": lookaround, backreferences and what grows beyond 1 MiB are not supported"
    if "Retrieval is disabled" in error.message or "retrieving it failed" in error.message:
        return _shortened(error.message.split(" is not present")[0]) + " is not among the references"
    return _shortened(f"{keyword}: {error.message}" if keyword else error.message)


def _words(error: Exception) -> str:
    return "nested too deep" if isinstance(error, RecursionError) else str(error)


def _shortened(text: str) -> str:
    """The text without its middle: it begins with what was sent, and ends with what is wrong with it."""
    if len(text) <= REASON_CHARACTERS_MAX:
        return text
    half = REASON_CHARACTERS_MAX // 2
    return f"{text[:half]} ... {text[-half:]}"
