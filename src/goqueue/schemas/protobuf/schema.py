"""Protobuf schemas: a .proto file, as source text or as a serialized `FileDescriptorProto` in base64.

Confluent's serializers for Python send the second, people write the first; either way the text is kept as it came. Two
schemas are the same if their descriptors are, whatever comments and white space their sources have: so a client finds
with its descriptor what was registered as a source. Services do not count, and neither does the name of the file.
Normalized, the order of imports, fields, enum values and reservations does not count either; messages keep theirs, for
payloads name them by their places.

A payload begins with which message of the file it is: a list of places, from the outermost message inwards, as a count
and so many numbers, all in zigzag varints. A single 0 stands for the first message. What follows is parsed by Protobuf
itself; fields that the schema does not know are allowed, as ever in Protobuf.
"""

import base64
import binascii
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from google.protobuf.descriptor import Descriptor, FileDescriptor
from google.protobuf.descriptor_pb2 import DescriptorProto, EnumDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError, Message
from google.protobuf.reflection import GeneratedProtocolMessageType

from goqueue.errors import InvalidSchema
from goqueue.schemas.format import SCHEMA_BYTES_MAX, ParsedSchema, PayloadFault
from goqueue.schemas.protobuf import text as proto_text
from goqueue.schemas.protobuf.compatibility import incompatibilities
from goqueue.schemas.protobuf.files import Library, check

PLACES_MAX: Final = 100
"""How deep messages nest in a file; Protobuf itself reads no deeper ones."""
_STEP = re.compile(r"\[\"((?:[^\"\\]|\\.)*)\"\]|\[(\w+)\]|\(([\w.]+)\)|(\w+)")
_BASE64 = re.compile(r"[A-Za-z0-9+/\s]*+={0,2}\s*+", re.ASCII)


@dataclass(frozen=True, slots=True, eq=False)
class ProtobufSchema:
    """A schema that was read and found good, built into a pool of its own."""

    text: str
    canonical: str
    file: FileDescriptorProto
    pool: DescriptorPool
    descriptor: FileDescriptor

    @property
    def record_name(self) -> str | None:
        """The full name of the first message."""
        return next((message.full_name for message in self.descriptor.message_types_by_name.values()), None)

    def serialized(self) -> str:
        """The `FileDescriptorProto` in base64, as Confluent's clients want it."""
        return _base64(self.file)

    def normalized(self) -> str:
        """The canonical text without what does not change the meaning."""
        file = FileDescriptorProto.FromString(base64.b64decode(self.canonical))
        _normalize(file)
        return _base64(file)

    def compile(self) -> "ProtobufValidator":
        """What holds payloads against it."""
        return ProtobufValidator(self.pool, self.descriptor)


class ProtobufFormat:
    """Protobuf, for the registry."""

    name = "PROTOBUF"

    def parse(self, text: str, references: Mapping[str, ParsedSchema]) -> ProtobufSchema:
        """Read a schema; raises `InvalidSchema`."""
        if len(text) > 2 * SCHEMA_BYTES_MAX:
            raise InvalidSchema(f"it has {len(text)} characters")
        files = {}
        for reference, schema in references.items():
            if not isinstance(schema, ProtobufSchema):
                raise InvalidSchema(f"the reference {reference!r} is no Protobuf schema")
            files[reference] = schema.file
        library = Library(files)
        try:
            file = _decoded(text) if _BASE64.fullmatch(text) else proto_text.parse(text, library.visible)
            check(file)
            pool, descriptor = library.build(file)
            return ProtobufSchema(text, _canonical(descriptor), file, pool, descriptor)
        except UnicodeError:
            raise InvalidSchema("it has names that are not UTF-8") from None

    def incompatibilities(self, reader: ParsedSchema, writer: ParsedSchema) -> list[str]:
        """Each reason why `reader` cannot read all that was written with `writer`."""
        assert isinstance(reader, ProtobufSchema)
        assert isinstance(writer, ProtobufSchema)
        return incompatibilities(reader.descriptor, writer.descriptor)


PROTOBUF: Final = ProtobufFormat()


class ProtobufValidator:
    """Holds payloads against the messages of one file."""

    __slots__ = ("_descriptor", "_messages", "_pool")

    def __init__(self, pool: DescriptorPool, descriptor: FileDescriptor) -> None:
        self._pool = pool  # the descriptors live as long as it does
        self._descriptor = descriptor
        self._messages: dict[bytes, _Message] = {}

    def check(self, payload: bytes) -> PayloadFault | None:
        """What is wrong with the payload."""
        try:
            at = _places_end(payload)
            places = payload[:at]
            message = self._messages.get(places) or self._find(places)
        except (IndexError, ValueError):
            return PayloadFault("", "does not begin with the place of a message in its file")
        if message is None:
            return PayloadFault("", f"the schema has no message at {_places(places)}")
        return message.fault(payload[at:])

    def check_many(self, payloads: Sequence[bytes]) -> tuple[int, PayloadFault] | None:
        """Which is the first that does not fit, and why."""
        # Nearly all payloads are of the first message, which a single 0 stands for: they are parsed without a lookup.
        # Whether required fields are there is not known after parsing, so with them each payload takes the long way.
        first = self._messages.get(b"\0") or self._find(b"\0")
        parse = first.parse if first and not first.has_required else None
        for index, payload in enumerate(payloads):
            if parse and payload[:1] == b"\0":
                try:
                    parse(payload[1:])
                    continue
                except DecodeError:
                    pass
            fault = self.check(payload)
            if fault:
                return index, fault
        return None

    def _find(self, places: bytes) -> "_Message | None":
        """The message at these places; remembered, and there are no more than the file has."""
        messages: Sequence[Descriptor] = list(self._descriptor.message_types_by_name.values())
        found = None
        for place in _places(places):
            if not 0 <= place < len(messages):
                return None
            found = messages[place]
            messages = found.nested_types
        if found is None or found.GetOptions().map_entry:
            return None
        message = _Message(found)
        if len(places) <= 2 * PLACES_MAX:
            self._messages[places] = message
        return message


class _Message:
    """One kind of message."""

    __slots__ = ("has_required", "name", "parse")

    def __init__(self, descriptor: Descriptor) -> None:
        self.name = descriptor.full_name
        # not through the message factory, which makes a class for each message below, by recursion
        parts = {"DESCRIPTOR": descriptor, "__module__": None}
        made: Any = GeneratedProtocolMessageType(descriptor.name, (Message,), parts)
        self.parse = made.FromString
        self.has_required = any(
            field.is_required for message in _reachable(descriptor) for field in _all_fields(message)
        )

    def fault(self, payload: bytes) -> PayloadFault | None:
        try:
            message = self.parse(payload)
        except DecodeError:
            return PayloadFault("", f"is no message {self.name}")
        if self.has_required and not message.IsInitialized():
            missing = message.FindInitializationErrors()[0]
            return PayloadFault(_pointer(missing), "is required, and missing")
        return None


def _decoded(text: str) -> FileDescriptorProto:
    try:
        file = FileDescriptorProto.FromString(base64.b64decode("".join(text.split()), validate=True))
    except (binascii.Error, DecodeError):
        raise InvalidSchema("it is neither a .proto file nor a FileDescriptorProto in base64") from None
    file.ClearField("source_code_info")
    return file


def _base64(file: FileDescriptorProto) -> str:
    return base64.b64encode(file.SerializeToString(deterministic=True)).decode()


def _canonical(descriptor: FileDescriptor) -> str:
    """The file as the pool has it: types are resolved, and what is implied is not there."""
    file = FileDescriptorProto()
    descriptor.CopyToProto(file)
    for part in ("name", "service", "source_code_info"):
        file.ClearField(part)
    messages = list(file.message_type)
    while messages:
        message = messages.pop()
        messages += message.nested_type
        for field in (*message.field, *message.extension):
            if field.json_name == _json_name(field.name):
                field.ClearField("json_name")
    return _base64(file)


def _json_name(name: str) -> str:
    """What a field is called in JSON if it does not say."""
    first, *others = name.split("_")
    return first + "".join(part[:1].upper() + part[1:] for part in others)


def _normalize(file: FileDescriptorProto) -> None:
    names = list(file.dependency)
    file.dependency.sort()
    for indexes in (file.public_dependency, file.weak_dependency):
        indexes[:] = sorted(list(file.dependency).index(names[index]) for index in indexes)
    pending = list(file.message_type)
    enums = list(file.enum_type)
    while pending:
        message = pending.pop()
        pending += message.nested_type
        enums += message.enum_type
        _normalize_message(message)
    for enum in enums:
        _normalize_enum(enum)


def _normalize_message(message: DescriptorProto) -> None:
    message.field.sort(key=lambda field: field.number)
    message.extension_range.sort(key=lambda each: each.start)
    message.reserved_range.sort(key=lambda each: each.start)
    message.reserved_name.sort()


def _normalize_enum(enum: EnumDescriptorProto) -> None:
    first = enum.value[0].name
    enum.value.sort(key=lambda value: (value.name != first, value.number, value.name))
    enum.reserved_range.sort(key=lambda each: each.start)
    enum.reserved_name.sort()


def _places_end(payload: bytes) -> int:
    """Where the list of places ends."""
    if payload[0] == 0:
        return 1
    count, at = _varint(payload, 0)
    if not 0 < count <= PLACES_MAX:
        raise ValueError
    for _ in range(count):
        _, at = _varint(payload, at)
    return at


def _places(prefix: bytes) -> list[int]:
    if prefix == b"\0":
        return [0]
    count, at = _varint(prefix, 0)
    places = []
    for _ in range(count):
        place, at = _varint(prefix, at)
        places.append(place)
    return places


def _varint(payload: bytes, at: int) -> tuple[int, int]:
    """A zigzag varint of at most 32 bits, and where the next one begins."""
    value = 0
    for shift in range(0, 35, 7):
        byte = payload[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return (value >> 1) ^ -(value & 1), at
    raise ValueError


def _reachable(descriptor: Descriptor) -> Iterable[Descriptor]:
    seen = {descriptor.full_name}
    pending = [descriptor]
    while pending:
        message = pending.pop()
        yield message
        for field in _all_fields(message):
            if field.message_type and field.message_type.full_name not in seen:
                seen.add(field.message_type.full_name)
                pending.append(field.message_type)


def _all_fields(message: Descriptor) -> list[Any]:
    return [*message.fields, *message.file.pool.FindAllExtensions(message)]


def _pointer(path: str) -> str:
    """`a["b"].(ext).c[2]` as a JSON Pointer."""
    steps = (next(step for step in found.groups() if step is not None) for found in _STEP.finditer(path))
    return "".join(f"/{step.replace('~', '~0').replace('/', '~1')}" for step in steps)
