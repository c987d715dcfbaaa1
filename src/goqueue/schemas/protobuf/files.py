"""Files of Protobuf that belong together: a schema, what it imports, and what that imports.

A schema may import its references, by their names, and the well-known files: Google's (`google/protobuf/`,
`google/type/`) and Confluent's (`confluent/`), which its serializers never send along. All files of one schema are
built into a descriptor pool of their own, so schemas cannot disturb each other.

The pool checks most of what a file may not say. What it lets pass is checked here before: numbers that are reserved or
Protobuf's own, aliases in enums, maps that are none, and files too large to be written by hand.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

from google.protobuf.descriptor import FileDescriptor
from google.protobuf.descriptor_pb2 import DescriptorProto, EnumDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool

from goqueue.errors import InvalidSchema
from goqueue.schemas.protobuf import text as proto_text

DECLARATIONS_MAX: Final = 20_000
"""Messages, fields, enum values and ranges in one file."""
OWN_NUMBERS: Final = range(19_000, 20_000)
"""Of Protobuf's implementations."""
ROOT: Final = "schema.proto"

_CONFLUENT: Final = {
    "confluent/meta.proto": """
        syntax = "proto3";
        package confluent;
        import "google/protobuf/descriptor.proto";
        option go_package = "../confluent";
        message Meta {
            string doc = 1;
            map<string, string> params = 2;
            repeated string tags = 3;
            repeated Rule rules = 4;
        }
        message Rule {
            string name = 1;
            string doc = 2;
            string expr = 3;
            string sql = 4;
        }
        extend google.protobuf.FileOptions { Meta file_meta = 1088; }
        extend google.protobuf.MessageOptions { Meta message_meta = 1088; }
        extend google.protobuf.FieldOptions { Meta field_meta = 1088; }
        extend google.protobuf.EnumOptions { Meta enum_meta = 1088; }
        extend google.protobuf.EnumValueOptions { Meta enum_value_meta = 1088; }
    """,
    "confluent/type/decimal.proto": """
        syntax = "proto3";
        package confluent.type;
        message Decimal {
            bytes value = 1;
            uint32 precision = 2;
            int32 scale = 3;
        }
    """,
    "confluent/type/variant.proto": """
        syntax = "proto3";
        package confluent.type;
        message Variant {
            bytes metadata = 1;
            bytes value = 2;
        }
    """,
    "confluent/types/decimal.proto": """
        syntax = "proto3";
        import public "confluent/type/decimal.proto";
    """,
}


class Library:
    """The files that a schema may import."""

    def __init__(self, references: Mapping[str, FileDescriptorProto]) -> None:
        self._files = dict(references)
        self._references = references

    def file(self, name: str) -> FileDescriptorProto:
        """The file of that name. Raises `InvalidSchema`."""
        if name not in self._files:
            known = self._known(name)
            if known is None:
                raise InvalidSchema(f"it imports {name[:200]!r}, which is not among its references")
            self._files[name] = known
        return self._files[name]

    def visible(self, dependencies: Sequence[str]) -> Iterator[FileDescriptorProto]:
        """The files whose names may be used by one that imports these."""
        pending = list(dependencies)
        seen = set()
        while pending:
            name = pending.pop()
            if name not in seen:
                seen.add(name)
                file = self.file(name)
                yield file
                pending += [file.dependency[index] for index in file.public_dependency]

    def build(self, root: FileDescriptorProto) -> tuple[DescriptorPool, FileDescriptor]:
        """A pool with the file and all that it imports, and the file in it. Raises `InvalidSchema`."""
        pool = DescriptorPool()
        name = ROOT
        while name in self._references or name in root.dependency:
            name = f"_{name}"
        for each in self._in_order(root):
            _add(pool, self.file(each), each)
        _add(pool, root, name)
        return pool, pool.FindFileByName(name)

    def _in_order(self, root: FileDescriptorProto) -> list[str]:
        """The names of all that is imported, each after those that it imports itself."""
        done: dict[str, None] = {}
        stack = [iter(root.dependency)]
        path: list[str] = []
        while stack:
            name = next(stack[-1], None)
            if name is None:
                stack.pop()
                if path:
                    done[path.pop()] = None
            elif name in path:
                raise InvalidSchema(f"{name[:200]!r} imports itself")
            elif name not in done:
                path.append(name)
                stack.append(iter(self.file(name).dependency))
        return list(done)

    def _known(self, name: str) -> FileDescriptorProto | None:
        if name in _CONFLUENT:
            return proto_text.parse(_CONFLUENT[name], self.visible)
        if name.startswith("google/protobuf/"):
            return _found(name, _protobuf_modules())
        if name.startswith("google/type/"):
            return _found(name, _type_modules())
        return None


def check(file: FileDescriptorProto) -> None:
    """Refuse what the pool would let pass."""
    if file.syntax not in ("", "proto2", "proto3"):
        raise InvalidSchema(f"the syntax {file.syntax[:50]!r} is not supported; proto2 and proto3 are")
    _check_text(*file.dependency[:DECLARATIONS_MAX], file.package)
    count = len(file.message_type) + len(file.enum_type) + len(file.extension) + len(file.dependency)
    _check_count(count)
    pending = [(message, message.name) for message in file.message_type]
    enums = list(file.enum_type)
    fields = [("", field) for field in file.extension]
    while pending:
        message, path = pending.pop()
        count += len(message.field) + len(message.extension) + len(message.oneof_decl) + len(message.nested_type)
        count += len(message.reserved_range) + len(message.reserved_name) + len(message.extension_range)
        count += len(message.enum_type)
        _check_count(count)
        pending += [(nested, f"{path}.{nested.name}") for nested in message.nested_type]
        enums += message.enum_type
        fields += [(path, field) for field in (*message.field, *message.extension)]
        _check_reserved(message, message.field, path, 0)
        if message.options.map_entry:
            _check_map_entry(message, path)
    _check_count(count + sum(len(enum.value) + len(enum.reserved_range) + len(enum.reserved_name) for enum in enums))
    for path, field in fields:
        _check_field(field, path, file.syntax)
    for enum in enums:
        _check_reserved(enum, enum.value, enum.name, 1)
        _check_aliases(enum)


def _check_count(count: int) -> None:
    if count > DECLARATIONS_MAX:
        raise InvalidSchema(f"it declares more than {DECLARATIONS_MAX} things")


def _check_text(*values: object) -> None:
    """Protobuf gives bytes for what is not UTF-8."""
    if not all(isinstance(value, str) for value in values):
        raise InvalidSchema("it has names that are not UTF-8")


def _check_field(field: Any, path: str, syntax: str) -> None:
    if not field.HasField("type") and not field.type_name:
        raise InvalidSchema(f"the field {path}.{field.name} has no type")
    if field.number in OWN_NUMBERS:
        raise InvalidSchema(f"the number {field.number} of {path}.{field.name} belongs to Protobuf itself")
    if field.type == proto_text.GROUP_TYPE and syntax == "proto3":
        raise InvalidSchema(f"the group {path}.{field.name} is in a file of proto3")


def _check_reserved(holder: Any, members: Iterable[Any], path: str, inclusive: int) -> None:
    ranges = sorted((each.start, each.end + inclusive) for each in holder.reserved_range)
    _check_text(*holder.reserved_name)
    names = set(holder.reserved_name)
    if not ranges and not names:
        return
    for before, after in pairwise(ranges):
        if after[0] < before[1]:
            raise InvalidSchema(f"{path} reserves the number {after[0]} twice")
    starts = [start for start, _ in ranges]
    for member in members:
        if member.name in names:
            raise InvalidSchema(f"the name of {path}.{member.name} is reserved")
        index = bisect_right(starts, member.number) - 1
        if index >= 0 and member.number < ranges[index][1]:
            raise InvalidSchema(f"the number {member.number} of {path}.{member.name} is reserved")


def _check_map_entry(entry: DescriptorProto, path: str) -> None:
    shape = [(field.name, field.number, field.label) for field in entry.field]
    optional = proto_text.LABELS["optional"]
    key_types = {proto_text.SCALARS[name] for name in proto_text.MAP_KEYS}
    is_map = shape == [("key", 1, optional), ("value", 2, optional)] and entry.field[0].type in key_types
    is_bare = not (entry.nested_type or entry.enum_type or entry.oneof_decl or entry.extension or entry.extension_range)
    if not is_map or not is_bare or entry.field[1].type == proto_text.GROUP_TYPE:
        raise InvalidSchema(f"{path} says that it is the entry of a map, and is not")


def _check_aliases(enum: EnumDescriptorProto) -> None:
    if enum.options.allow_alias:
        return
    names: dict[int, str] = {}
    for value in enum.value:
        if value.number in names:
            both = f"{names[value.number]} and {value.name}"
            raise InvalidSchema(f"{both} of {enum.name} have the same number, and the enum no allow_alias")
        names[value.number] = value.name


def _add(pool: DescriptorPool, file: FileDescriptorProto, name: str) -> None:
    named = FileDescriptorProto()
    named.CopyFrom(file)
    named.name = name
    try:
        pool.AddSerializedFile(named.SerializeToString())
    except (TypeError, ValueError) as error:
        reason = str(error).removeprefix("Couldn't build proto file into descriptor pool: ")
        raise InvalidSchema(reason[:500]) from None


def _found(name: str, modules: Iterable[Any]) -> FileDescriptorProto | None:
    for module in modules:
        if module.DESCRIPTOR.name == name:
            return FileDescriptorProto.FromString(module.DESCRIPTOR.serialized_pb)
    return None


def _protobuf_modules() -> Iterable[Any]:
    from google.protobuf import (
        any_pb2,
        api_pb2,
        descriptor_pb2,
        duration_pb2,
        empty_pb2,
        field_mask_pb2,
        source_context_pb2,
        struct_pb2,
        timestamp_pb2,
        type_pb2,
        wrappers_pb2,
    )

    well_known = (any_pb2, api_pb2, duration_pb2, empty_pb2, field_mask_pb2, source_context_pb2, struct_pb2)
    return (*well_known, timestamp_pb2, type_pb2, wrappers_pb2, descriptor_pb2)


def _type_modules() -> Iterable[Any]:
    from google.type import (  # type: ignore[import-untyped]
        calendar_period_pb2,
        color_pb2,
        date_pb2,
        datetime_pb2,
        dayofweek_pb2,
        expr_pb2,
        fraction_pb2,
        latlng_pb2,
        money_pb2,
        month_pb2,
        postal_address_pb2,
        quaternion_pb2,
        timeofday_pb2,
    )

    dates = (calendar_period_pb2, date_pb2, datetime_pb2, dayofweek_pb2, month_pb2, timeofday_pb2)
    others = (color_pb2, expr_pb2, fraction_pb2, latlng_pb2, money_pb2, postal_address_pb2, quaternion_pb2)
    return (*dates, *others)
