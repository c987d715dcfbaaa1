"""Protobuf files, messages of them, and later versions of them, at random."""

from dataclasses import dataclass, replace
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message_factory import GetMessageClass
from hypothesis import strategies as st

NUMBERS = {
    "int32": (-(2**31), 2**31 - 1),
    "sint32": (-(2**31), 2**31 - 1),
    "sfixed32": (-(2**31), 2**31 - 1),
    "int64": (-(2**63), 2**63 - 1),
    "sint64": (-(2**63), 2**63 - 1),
    "sfixed64": (-(2**63), 2**63 - 1),
    "uint32": (0, 2**32 - 1),
    "fixed32": (0, 2**32 - 1),
    "uint64": (0, 2**64 - 1),
    "fixed64": (0, 2**64 - 1),
}
SCALARS = [*NUMBERS, "bool", "string", "bytes", "double", "float"]
TYPES = [*SCALARS, "E", "D", "A", "B", "A.C"]
MAPS = ["map<string, int32>", "map<int64, A>", "map<bool, E>"]
WORDS = {number: name[5:].lower() for name, number in vars(FieldDescriptor).items() if name.startswith("TYPE_")}


@dataclass(frozen=True)
class Field:
    """A field as it stands in a source; `oneof` is the name of the one it is in."""

    number: int
    type: str
    label: str = ""
    name: str = ""
    oneof: str = ""

    def source(self) -> str:
        return f"{'' if self.oneof else self.label} {self.type} {self.name or f'f{self.number}'} = {self.number};"


Messages = dict[str, list[Field]]


@dataclass(frozen=True)
class File:
    """A .proto file: messages A, B and A.C, enums E and D."""

    syntax: str
    messages: Messages
    values: dict[str, tuple[str, ...]]
    package: str = "p"

    def source(self) -> str:
        enums = "".join(
            f"enum {name} {{ {' '.join(f'{name}_{v} = {v};' for v in values)} }}\n"
            for name, values in self.values.items()
        )
        nested = f"message C {{ {_body(self.messages['A.C'])} }}"
        bodies = f"message A {{ {_body(self.messages['A'])} {nested} }}\nmessage B {{ {_body(self.messages['B'])} }}\n"
        return f'syntax = "{self.syntax}";\npackage {self.package};\n{enums}{bodies}'


def _body(fields: list[Field]) -> str:
    parts = [one.source() for one in fields if not one.oneof]
    oneofs = sorted({one.oneof for one in fields if one.oneof})
    parts += [f"oneof {name} {{ {' '.join(one.source() for one in fields if one.oneof == name)} }}" for name in oneofs]
    return " ".join(parts)


@st.composite
def files(draw: st.DrawFn) -> File:
    syntax = draw(st.sampled_from(["proto2", "proto3"]))
    values = {name: ("0", *draw(st.lists(st.sampled_from("1234"), unique=True))) for name in "ED"}
    return File(syntax, {name: draw(_fields(syntax)) for name in ("A", "B", "A.C")}, values)


@st.composite
def _fields(draw: st.DrawFn, syntax: str) -> list[Field]:
    numbers = draw(st.lists(st.integers(1, 20), max_size=5, unique=True))
    return [draw(_field(syntax, number)) for number in numbers]


@st.composite
def _field(draw: st.DrawFn, syntax: str, number: int) -> Field:
    if not draw(st.integers(0, 7)):
        return Field(number, draw(st.sampled_from(MAPS)))
    oneof = draw(st.sampled_from(["", "", "", "x", "y"]))
    type = draw(st.sampled_from(TYPES))
    labels = ["optional", "repeated"]
    if type in SCALARS:  # of messages, that could never be built
        labels.append("required" if syntax == "proto2" else "")
    return Field(number, type, "optional" if oneof else draw(st.sampled_from(labels)), oneof=oneof)


def later(draw: st.DrawFn, file: File) -> File:
    """A file that somebody may have made of this one, or just the same."""
    messages = {name: _later_fields(draw, fields, file.syntax) for name, fields in file.messages.items()}
    values = dict(file.values)
    if not draw(st.integers(0, 3)):
        values["E"] = values["E"][:1]
    return replace(file, messages=messages, values=values, package=draw(st.sampled_from(["p", "p", "q.r"])))


def _later_fields(draw: st.DrawFn, fields: list[Field], syntax: str) -> list[Field]:
    found = []
    for one in fields:
        is_map = one.type in MAPS
        match draw(st.integers(0, 14)):
            case 0:
                continue
            case 1:
                found.append(replace(one, name=f"g{one.number}"))
            case 2:
                found.append(draw(_field(syntax, one.number)))
            case 3 if not is_map:
                found.append(replace(one, type=draw(st.sampled_from(TYPES)), label=one.label or "optional"))
            case 4 if not is_map:
                found.append(replace(one, label=draw(st.sampled_from(["optional", "repeated"])), oneof=""))
            case 5 if not is_map:
                found.append(replace(one, label="optional", oneof=draw(st.sampled_from(["", "x", "y", "z"]))))
            case 6 if one.type in ("int32", "int64", "uint32", "uint64", "bool", "E"):
                found.append(replace(one, type=draw(st.sampled_from(["int32", "int64", "uint32", "bool", "E"]))))
            case _:
                found.append(one)
    taken = {one.number for one in found}
    added = set(draw(st.lists(st.integers(1, 20), max_size=2))) - taken
    return found + [replace(draw(_field(syntax, number)), name=f"h{number}") for number in sorted(added)]


def message(draw: st.DrawFn, descriptor: Descriptor, depth: int = 3) -> Any:
    """A message with values at random; what is required is there."""
    made = GetMessageClass(descriptor)()
    for field in descriptor.fields:
        if not field.is_required and (depth == 0 or not draw(st.booleans())):
            continue
        holder = getattr(made, field.name) if field.is_repeated or field.message_type else None
        if field.message_type and field.message_type.GetOptions().map_entry:
            key, value = field.message_type.fields_by_name["key"], field.message_type.fields_by_name["value"]
            if value.message_type:
                holder[_value(draw, key)].CopyFrom(message(draw, value.message_type, depth - 1))
            else:
                holder[_value(draw, key)] = _value(draw, value)
        elif field.message_type:
            inner = message(draw, field.message_type, depth - 1)
            holder.add().CopyFrom(inner) if field.is_repeated else holder.CopyFrom(inner)
        elif field.is_repeated:
            holder.extend(_value(draw, field) for _ in range(draw(st.integers(1, 3))))
        else:
            setattr(made, field.name, _value(draw, field))
    return made


def _value(draw: st.DrawFn, field: FieldDescriptor) -> Any:
    word = WORDS[field.type]
    match word:
        case "bool":
            return draw(st.booleans())
        case "string":
            return draw(st.text(max_size=5))
        case "bytes":
            return draw(st.text(max_size=5)).encode()  # it may be read as a string
        case "double":
            return draw(st.floats(allow_nan=False))
        case "float":
            return draw(st.floats(allow_nan=False, width=32))
        case "enum":
            return draw(st.sampled_from([value.number for value in field.enum_type.values]))
    return draw(st.integers(*NUMBERS[word]))


def assert_kept(written: Any, read: Any) -> None:
    """What is of the same number and type in both has the same value."""
    fields = {field.number: field for field in read.DESCRIPTOR.fields}
    for field, value in written.ListFields():
        other = fields.get(field.number)
        if other is None or other.type != field.type or other.is_repeated != field.is_repeated:
            continue
        found = getattr(read, other.name)
        if field.message_type and field.message_type.GetOptions().map_entry:
            value_field = field.message_type.fields_by_name["value"]
            assert set(value) == set(found) or value_field.enum_type
            if not value_field.message_type and not value_field.enum_type:
                assert dict(value) == dict(found)
        elif field.message_type:
            pairs = zip(value, found, strict=True) if field.is_repeated else [(value, found)]
            for one, another in pairs:
                assert_kept(one, another)
        elif field.enum_type and other.enum_type.is_closed:
            known = other.enum_type.values_by_number
            if field.is_repeated:
                assert [one for one in value if one in known] == list(found)
            else:
                assert value == found or value not in known
        else:
            assert value == found
