"""Whether messages written with one Protobuf schema can be read with another.

Protobuf reads nearly anything: fields that one side does not know are passed over. What is asked here is whether what
both sides know still means the same, by the rules that Confluent's registry has and that hold on the wire:

    a message       must still be there, by its name without the package; which package it is in does not matter
    a field         is its number. It may be renamed, added and removed, but none that is required
    its type        may change within int32, uint32, int64, uint64, bool and enums; sint32, sint64; fixed32, sfixed32;
                    fixed64, sfixed64; string, bytes. A message or enum must keep its name, and a message is compared
    repeated or not may change for strings, bytes and messages; numbers are packed, so theirs may not
    maps            stay maps
    oneofs          may not take in fields that could be set together before, nor lose a field
    required        never changes: a field that the reader requires, the writer must have required

Messages are compared in pairs, each pair once. A path is `/Message/field(number)`.
"""

from collections import deque
from typing import Final

from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor, FileDescriptor

REASONS_MAX: Final = 100
"""Most reasons in one answer."""
STEPS_MAX: Final = 100_000
"""Fields looked at. Far beyond what people write."""

_WORDS: Final = {
    number: name.removeprefix("TYPE_").lower()
    for name, number in vars(FieldDescriptor).items()
    if name.startswith("TYPE_")
}
_GROUPS: Final = (
    ("int32", "uint32", "int64", "uint64", "bool", "enum"),
    ("sint32", "sint64"),
    ("fixed32", "sfixed32"),
    ("fixed64", "sfixed64"),
    ("string", "bytes"),
)
_GROUP_OF: Final = {word: group for group in _GROUPS for word in group}
_LABEL_IS_FREE: Final = ("string", "bytes", "message")


def incompatibilities(reader: FileDescriptor, writer: FileDescriptor) -> list[str]:
    """Each reason why the reader cannot read all that the writer writes."""
    return _ProtobufComparison(reader, writer).run()


class _ProtobufComparison:
    def __init__(self, reader: FileDescriptor, writer: FileDescriptor) -> None:
        self._reader = reader
        self._writer = writer
        self._reasons: list[str] = []
        self._pending: deque[tuple[Descriptor, Descriptor]] = deque()
        self._seen: set[tuple[str, str]] = set()
        self._steps = 0

    def run(self) -> list[str]:
        now, before = _messages(self._reader), _messages(self._writer)
        for name, message in before.items():
            if name in now:
                self._ask(now[name], message)
            else:
                self._refuse(f"/{name}", "the message is gone")
        while self._pending and len(self._reasons) < REASONS_MAX:
            self._compare(*self._pending.popleft())
            if self._steps > STEPS_MAX:
                self._refuse("/", "the schemas are too large to be compared")
                break
        return self._reasons[:REASONS_MAX]

    def _refuse(self, path: str, reason: str) -> None:
        self._reasons.append(f"{path[:500]}: {reason[:500]}")

    def _ask(self, reader: Descriptor, writer: Descriptor) -> None:
        pair = (reader.full_name, writer.full_name)
        if pair not in self._seen:
            self._seen.add(pair)
            self._pending.append((reader, writer))

    def _compare(self, reader: Descriptor, writer: Descriptor) -> None:
        now, before = _fields(reader), _fields(writer)
        self._steps += len(now) + len(before)
        path = f"/{_relative(writer)}"
        for number, field in before.items():
            if number in now:
                self._compare_field(now[number], field, f"{path}/{now[number].name}({number})")
            elif field.is_required:
                self._refuse(f"{path}/{field.name}({number})", "the field was required, and is gone")
        for number, field in now.items():
            if field.is_required and not (number in before and before[number].is_required):
                self._refuse(f"{path}/{field.name}({number})", "the field is required, and was not")
        self._compare_oneofs(reader, writer, path)

    def _compare_field(self, reader: FieldDescriptor, writer: FieldDescriptor, path: str) -> None:
        now, before = _WORDS[reader.type], _WORDS[writer.type]
        if _is_map(reader) != _is_map(writer):
            self._refuse(path, "a map field cannot change its kind, and no other field can become a map")
            return
        if now != before and before not in _GROUP_OF.get(now, ()):
            self._refuse(path, f"the type is {now}, and was {before}")
            return
        if reader.is_repeated != writer.is_repeated and not (now in _LABEL_IS_FREE and before in _LABEL_IS_FREE):
            states = ("repeated", "single") if reader.is_repeated else ("single", "repeated")
            self._refuse(path, f"the field is {states[0]}, and was {states[1]}; that goes only for text and messages")
        if reader.message_type and writer.message_type:
            if _is_map(reader) or self._is_same_type(reader.message_type, writer.message_type):
                self._ask(reader.message_type, writer.message_type)
            else:
                self._refuse(path, _renamed(reader.message_type, writer.message_type))
        elif reader.enum_type:
            if writer.enum_type and not self._is_same_type(reader.enum_type, writer.enum_type):
                self._refuse(path, _renamed(reader.enum_type, writer.enum_type))
            elif reader.is_required and reader.enum_type.is_closed:
                self._compare_required_enum(reader.enum_type, writer.enum_type, path)

    def _compare_required_enum(self, reader: EnumDescriptor, writer: EnumDescriptor | None, path: str) -> None:
        """A closed enum does not take a value that it does not know, so the field would be missing."""
        if writer is None:
            self._refuse(path, "the field is required, and its enum does not have all numbers that it could be")
            return
        self._steps += len(writer.values)
        missing = [value.name for value in writer.values if value.number not in reader.values_by_number]
        if missing:
            self._refuse(path, f"the field is required, and its enum no longer has {', '.join(missing[:10])}")

    def _compare_oneofs(self, reader: Descriptor, writer: Descriptor, path: str) -> None:
        homes = {field.number: field.containing_oneof.name for field in writer.fields if field.containing_oneof}
        written = {field.number: field.name for field in writer.fields}
        kept = {field.number for field in reader.fields}
        for oneof in reader.oneofs:
            numbers = [field.number for field in oneof.fields if field.number in written]
            self._steps += len(numbers)
            # A field that was in no oneof counts as a oneof of its own: it could be set together with any other.
            if len(numbers) > 1 and len({homes.get(number, f"({number})") for number in numbers}) > 1:
                names = ", ".join(f"{written[number]}({number})" for number in numbers)
                self._refuse(f"{path}/{oneof.name}", f"{names} may have been set together, and now only one can be")
            for number, home in homes.items():
                if home == oneof.name and number not in kept:
                    self._refuse(f"{path}/{oneof.name}", f"{written[number]}({number}) is gone from the oneof")

    def _is_same_type(self, reader: Descriptor | EnumDescriptor, writer: Descriptor | EnumDescriptor) -> bool:
        if reader.full_name == writer.full_name:
            return True
        # Types of imported files go by their full names. Only within its own file a schema may rename its package.
        is_own = reader.file.name == self._reader.name and writer.file.name == self._writer.name
        return is_own and _relative(reader) == _relative(writer)


def _messages(file: FileDescriptor) -> dict[str, Descriptor]:
    """All messages of a file, by their names without the package."""
    found = {}
    pending = list(file.message_types_by_name.values())
    while pending:
        message = pending.pop(0)
        if not message.GetOptions().map_entry:
            found[_relative(message)] = message
            pending += message.nested_types
    return found


def _fields(message: Descriptor) -> dict[int, FieldDescriptor]:
    """The fields and extensions of a message."""
    return {field.number: field for field in (*message.file.pool.FindAllExtensions(message), *message.fields)}


def _relative(type: Descriptor | EnumDescriptor) -> str:
    package = type.file.package
    name: str = type.full_name
    return name.removeprefix(f"{package}.") if package else name


def _is_map(field: FieldDescriptor) -> bool:
    return bool(field.message_type and field.message_type.GetOptions().map_entry)


def _renamed(reader: Descriptor | EnumDescriptor, writer: Descriptor | EnumDescriptor) -> str:
    return f"the type is {reader.full_name}, and was {writer.full_name}"
