"""Source text of Protobuf, proto2 and proto3, to a `FileDescriptorProto` as protoc would make it.

A parser by recursive descent: one method for each thing that a file may contain. What the text means, beyond that names
resolve, is judged where files from any source are (`protobuf_files.py`).

Options that Protobuf itself defines are set. Options of others, in parentheses, are kept as they were written, as
`uninterpreted_option`. Services are skipped: nothing of them is in a message.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple

from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
)
from google.protobuf.message import Message

from goqueue.schemas.protobuf.tokens import Tokens, whole

Visible = Callable[[Sequence[str]], Iterable[FileDescriptorProto]]
"""Of the names that a file imports: the files whose names it may use. Raises `InvalidSchema`."""

NESTING_MAX: Final = 32
"""Of messages, as in protoc."""
NUMBER_MAX: Final = 2**29 - 1
INT32_MAX: Final = 2**31 - 1

LABELS: Final[dict[str, Any]] = {"optional": 1, "required": 2, "repeated": 3}
MESSAGE_TYPE: Final[Any] = 11
GROUP_TYPE: Final[Any] = 10
ENUM_TYPE: Final[Any] = 14
STRING_TYPE: Final[Any] = 9
BYTES_TYPE: Final[Any] = 12
SCALARS: Final[dict[str, Any]] = {
    "double": 1,
    "float": 2,
    "int64": 3,
    "uint64": 4,
    "int32": 5,
    "fixed64": 6,
    "fixed32": 7,
    "bool": 8,
    "string": STRING_TYPE,
    "bytes": BYTES_TYPE,
    "uint32": 13,
    "sfixed32": 15,
    "sfixed64": 16,
    "sint32": 17,
    "sint64": 18,
}
"""The numbers of `FieldDescriptorProto.Type`."""
MAP_KEYS: Final = SCALARS.keys() - {"double", "float", "bytes"}


def parse(text: str, visible: Visible) -> FileDescriptorProto:
    """The file that the text describes, without a name of its own. Raises `InvalidSchema`, with line and column."""
    parser = _Parser(text)
    parser.parse_file()
    parser.resolve(visible)
    return parser.file


class _Use(NamedTuple):
    """A name of a type that is still to be found, seen from a scope."""

    field: FieldDescriptorProto
    name: str
    scope: str
    start: int
    is_extendee: bool


class _Value(NamedTuple):
    """The value of an option, as it was written."""

    kind: str
    text: str
    raw: bytes = b""


class _Holder:
    """What takes the groups of an `extend` block, in the place of a message."""

    def __init__(self, nested_type: Any) -> None:
        self.nested_type = nested_type


class _Parser:
    def __init__(self, text: str) -> None:
        self._tokens = Tokens(text)
        self._uses: list[_Use] = []
        self._is_proto3 = False
        self.file = FileDescriptorProto()

    def parse_file(self) -> None:
        tokens = self._tokens
        self._syntax()
        while tokens.kind != "end":
            start = tokens.start
            if tokens.accept(";"):
                continue
            match tokens.identifier():
                case "import":
                    self._import()
                case "package":
                    if self.file.package:
                        raise tokens.invalid("the file has a package already", start)
                    self.file.package = tokens.full_identifier().removeprefix(".")
                    tokens.expect(";")
                case "option":
                    self._option_statement(self.file.options)
                case "message":
                    self._message(self.file.message_type.add(), self.file.package, 1)
                case "enum":
                    self._enum(self.file.enum_type.add())
                case "extend":
                    self._extend(self.file.extension, self.file.message_type, self.file.package, 1)
                case "service":
                    tokens.identifier()
                    tokens.skip_block()
                case word:
                    raise tokens.invalid(f"`{word[:50]}` cannot stand here", start)

    def resolve(self, visible: Visible) -> None:
        """Find what each name of a type stands for."""
        symbols: dict[str, Any] = {}
        for file in (*visible(self.file.dependency), self.file):
            _collect(file.message_type, file.enum_type, file.package, symbols)
        for use in self._uses:
            full = _lookup(use.name, use.scope, symbols)
            if full is None:
                raise self._tokens.invalid(f"there is no type `{use.name[:100]}`", use.start)
            if use.is_extendee:
                use.field.extendee = f".{full}"
                continue
            if not use.field.HasField("type"):
                use.field.type = symbols[full]
            use.field.type_name = f".{full}"

    def _syntax(self) -> None:
        tokens = self._tokens
        if tokens.is_next("edition"):
            raise tokens.invalid("editions are not supported; proto2 and proto3 are")
        if not tokens.accept("syntax"):
            return
        tokens.expect("=")
        start = tokens.start
        syntax = tokens.text()
        if syntax not in ("proto2", "proto3"):
            raise tokens.invalid(f"there is no syntax {syntax[:50]!r}; there are proto2 and proto3", start)
        tokens.expect(";")
        self._is_proto3 = syntax == "proto3"
        if self._is_proto3:
            self.file.syntax = syntax

    def _import(self) -> None:
        tokens = self._tokens
        index = len(self.file.dependency)
        if tokens.accept("public"):
            self.file.public_dependency.append(index)
        elif tokens.accept("weak"):
            self.file.weak_dependency.append(index)
        start = tokens.start
        name = tokens.text()
        if name in self.file.dependency:
            raise tokens.invalid(f"{name[:100]!r} is imported already", start)
        self.file.dependency.append(name)
        tokens.expect(";")

    def _message(self, message: DescriptorProto, scope: str, depth: int) -> None:
        message.name = self._tokens.identifier()
        self._message_body(message, _joined(scope, message.name), depth)

    def _message_body(self, message: DescriptorProto, scope: str, depth: int) -> None:
        tokens = self._tokens
        if depth > NESTING_MAX:
            raise tokens.invalid(f"messages nest more than {NESTING_MAX} deep")
        tokens.expect("{")
        while not tokens.accept("}"):
            if tokens.accept(";"):
                continue
            match tokens.value if tokens.kind == "identifier" else "":
                case "message":
                    tokens.advance()
                    self._message(message.nested_type.add(), scope, depth + 1)
                case "enum":
                    tokens.advance()
                    self._enum(message.enum_type.add())
                case "extend":
                    tokens.advance()
                    self._extend(message.extension, message.nested_type, scope, depth + 1)
                case "option":
                    tokens.advance()
                    self._option_statement(message.options)
                case "extensions":
                    tokens.advance()
                    self._extensions(message)
                case "reserved":
                    tokens.advance()
                    self._reserved(message, NUMBER_MAX, 1)
                case "oneof":
                    tokens.advance()
                    self._oneof(message, scope, depth)
                case _:
                    self._field(message.field.add(), message, scope, depth)
        _add_synthetic_oneofs(message)

    def _oneof(self, message: DescriptorProto, scope: str, depth: int) -> None:
        tokens = self._tokens
        index = len(message.oneof_decl)
        oneof = message.oneof_decl.add(name=tokens.identifier())
        tokens.expect("{")
        while not tokens.accept("}"):
            if tokens.accept(";"):
                continue
            if tokens.accept("option"):
                self._option_statement(oneof.options)
                continue
            if tokens.is_next(*LABELS):
                raise tokens.invalid("a field of a oneof has no label")
            field = message.field.add(oneof_index=index)
            self._field(field, message, scope, depth)

    def _extend(self, fields: Any, groups: Any, scope: str, depth: int) -> None:
        tokens = self._tokens
        start = tokens.start
        extendee = tokens.full_identifier()
        holder = _Holder(groups)
        tokens.expect("{")
        while not tokens.accept("}"):
            if tokens.accept(";"):
                continue
            field = fields.add()
            self._uses.append(_Use(field, extendee, scope, start, True))
            self._field(field, holder, scope, depth)
            if field.proto3_optional:
                field.ClearField("proto3_optional")

    def _field(self, field: FieldDescriptorProto, message: DescriptorProto | _Holder, scope: str, depth: int) -> None:
        tokens = self._tokens
        is_in_oneof = field.HasField("oneof_index")
        label = tokens.advance() if tokens.is_next(*LABELS) else ""
        start = tokens.start
        if not label and not is_in_oneof and not self._is_proto3 and not tokens.is_next("map"):
            raise tokens.unexpected("`optional`, `required` or `repeated`")
        if label == "required" and self._is_proto3:
            raise tokens.invalid("proto3 has no required fields", start)
        field.label = LABELS[label or "optional"]
        if label == "optional" and self._is_proto3:
            field.proto3_optional = True
        type = tokens.full_identifier()
        if type == "map" and tokens.is_next("<"):
            if label or is_in_oneof or isinstance(message, _Holder):
                raise tokens.invalid("a map has no label, and is in no oneof and no extension", start)
            self._map(field, message, scope)
            return
        if type == "group":
            self._group(field, message, scope, depth)
            return
        self._type(field, type, scope, start)
        field.name = tokens.identifier()
        self._number_and_options(field)
        tokens.expect(";")

    def _type(self, field: FieldDescriptorProto, type: str, scope: str, start: int) -> None:
        if type in SCALARS:
            field.type = SCALARS[type]
        else:
            self._uses.append(_Use(field, type, scope, start, False))

    def _number_and_options(self, field: FieldDescriptorProto) -> None:
        self._tokens.expect("=")
        field.number = self._tokens.integer(1, NUMBER_MAX)
        self._field_options(field)

    def _group(self, field: FieldDescriptorProto, message: DescriptorProto | _Holder, scope: str, depth: int) -> None:
        tokens = self._tokens
        start = tokens.start
        name = tokens.identifier()
        if self._is_proto3 or not name[0].isupper():
            raise tokens.invalid("a group belongs to proto2, and its name begins with a capital letter", start)
        field.name = name.lower()
        field.type = GROUP_TYPE
        field.type_name = f".{_joined(scope, name)}"
        self._number_and_options(field)
        group = message.nested_type.add(name=name)
        self._message_body(group, _joined(scope, name), depth + 1)

    def _map(self, field: FieldDescriptorProto, message: DescriptorProto, scope: str) -> None:
        tokens = self._tokens
        tokens.expect("<")
        if not tokens.is_next(*MAP_KEYS):
            raise tokens.invalid("the keys of a map are whole numbers, booleans or strings")
        key = tokens.identifier()
        tokens.expect(",")
        start = tokens.start
        value = tokens.full_identifier()
        tokens.expect(">")
        field.name = tokens.identifier()
        name = "".join(part[:1].upper() + part[1:] for part in field.name.split("_")) + "Entry"
        entry = message.nested_type.add(name=name)
        entry.options.map_entry = True
        optional = LABELS["optional"]
        entry.field.add(name="key", number=1, label=optional, type=SCALARS[key])
        value_field = entry.field.add(name="value", number=2, label=optional)
        self._type(value_field, value, scope, start)
        field.label = LABELS["repeated"]
        field.type = MESSAGE_TYPE
        field.type_name = f".{_joined(scope, name)}"
        self._number_and_options(field)
        tokens.expect(";")

    def _enum(self, enum: EnumDescriptorProto) -> None:
        tokens = self._tokens
        enum.name = tokens.identifier()
        tokens.expect("{")
        while not tokens.accept("}"):
            if tokens.accept(";"):
                continue
            if tokens.accept("option"):
                self._option_statement(enum.options)
            elif tokens.accept("reserved"):
                self._reserved(enum, INT32_MAX, 0)
            else:
                value = enum.value.add(name=tokens.identifier())
                tokens.expect("=")
                value.number = tokens.integer(-INT32_MAX - 1, INT32_MAX)
                self._options(value)
                tokens.expect(";")

    def _extensions(self, message: DescriptorProto) -> None:
        tokens = self._tokens
        first = len(message.extension_range)
        for start, end in self._ranges(1, NUMBER_MAX):
            message.extension_range.add(start=start, end=end + 1)
        if tokens.is_next("["):
            tokens.advance()
            for name, value, start in self._bracketed():
                for extension_range in message.extension_range[first:]:
                    self._set_option(extension_range.options, name, value, start)
        tokens.expect(";")

    def _reserved(self, holder: DescriptorProto | EnumDescriptorProto, high: int, beyond: int) -> None:
        tokens = self._tokens
        if tokens.kind == "string":
            holder.reserved_name.append(tokens.text())
            while tokens.accept(","):
                holder.reserved_name.append(tokens.text())
        else:
            for start, end in self._ranges(1 if beyond else -INT32_MAX - 1, high):
                holder.reserved_range.add(start=start, end=end + beyond)
        tokens.expect(";")

    def _ranges(self, low: int, high: int) -> list[tuple[int, int]]:
        tokens = self._tokens
        ranges = []
        while True:
            start = end = tokens.integer(low, high)
            if tokens.accept("to"):
                end = high if tokens.accept("max") else tokens.integer(start, high)
            ranges.append((start, end))
            if not tokens.accept(","):
                return ranges

    def _option_statement(self, options: Message) -> None:
        start = self._tokens.start
        name = self._option_name()
        self._tokens.expect("=")
        self._set_option(options, name, self._option_value(), start)
        self._tokens.expect(";")

    def _options(self, holder: Any) -> None:
        """The options in brackets after a declaration."""
        if self._tokens.accept("["):
            for name, value, start in self._bracketed():
                self._set_option(holder.options, name, value, start)

    def _field_options(self, field: FieldDescriptorProto) -> None:
        if not self._tokens.accept("["):
            return
        for name, value, start in self._bracketed():
            if name == [("default", False)]:
                if field.HasField("default_value"):
                    raise self._tokens.invalid("the field has a default already", start)
                field.default_value = self._default(field, value, start)
            elif name == [("json_name", False)]:
                if value.kind != "string":
                    raise self._tokens.invalid("a json_name is a string", start)
                field.json_name = value.text
            else:
                self._set_option(field.options, name, value, start)

    def _default(self, field: FieldDescriptorProto, value: _Value, start: int) -> str:
        if field.type == BYTES_TYPE and value.kind == "string":
            return "".join(
                chr(byte) if 32 <= byte < 127 and byte not in b"\\\"'" else f"\\{byte:03o}" for byte in value.raw
            )
        is_text = field.type in (STRING_TYPE, BYTES_TYPE)
        if is_text != (value.kind == "string") or value.kind == "aggregate":
            raise self._tokens.invalid("the default is of another type than the field", start)
        if value.kind == "integer":
            sign, digits = ("-", value.text[1:]) if value.text.startswith("-") else ("", value.text)
            return f"{sign}{whole(digits)}"
        return value.text

    def _bracketed(self) -> list[tuple[list[tuple[str, bool]], _Value, int]]:
        found = []
        while True:
            start = self._tokens.start
            name = self._option_name()
            self._tokens.expect("=")
            found.append((name, self._option_value(), start))
            if not self._tokens.accept(","):
                self._tokens.expect("]")
                return found

    def _option_name(self) -> list[tuple[str, bool]]:
        """The parts of a name, each with whether it is in parentheses."""
        tokens = self._tokens
        parts = []
        while True:
            if tokens.accept("("):
                parts.append((tokens.full_identifier(), True))
                tokens.expect(")")
            else:
                parts.append((tokens.identifier(), False))
            if not tokens.accept("."):
                return parts

    def _option_value(self) -> _Value:
        tokens = self._tokens
        start = tokens.start
        if tokens.kind == "string":
            raw = tokens.string()
            return _Value("string", raw.decode(errors="replace"), raw)
        if tokens.is_next("{"):
            return _Value("aggregate", tokens.skip_block())
        sign = "-" if tokens.accept("-") else ""
        if not sign:
            tokens.accept("+")
        kind = tokens.kind
        if kind not in ("identifier", "integer", "float") or len(tokens.value) > 1_000:
            raise tokens.unexpected("a value")
        assert kind
        if kind == "identifier" and sign and tokens.value not in ("inf", "nan", "infinity"):
            raise tokens.invalid("a name has no sign", start)
        return _Value(kind, sign + tokens.advance())

    def _set_option(self, options: Message, name: list[tuple[str, bool]], value: _Value, start: int) -> None:
        known = options.DESCRIPTOR.fields_by_name.get(name[0][0]) if not name[0][1] else None
        if known is None and not name[0][1]:
            raise self._tokens.invalid(f"there is no option `{name[0][0][:50]}`", start)
        if known and known.name in ("map_entry", "features", "uninterpreted_option"):
            raise self._tokens.invalid(f"the option `{known.name}` cannot be set", start)
        if known and known.message_type is None:
            try:
                if len(name) > 1:
                    raise ValueError
                converted = _converted(known.type, value, known.enum_type)
                if known.is_repeated:
                    getattr(options, known.name).append(converted)
                else:
                    setattr(options, known.name, converted)
            except (ValueError, TypeError, KeyError):
                raise self._tokens.invalid(f"the option `{known.name}` cannot be that", start) from None
            return
        _keep(options, name, value)


def _joined(scope: str, name: str) -> str:
    return f"{scope}.{name}" if scope else name


def _converted(type: int, value: _Value, enum: Any) -> object:
    if type == SCALARS["bool"]:
        return {"true": True, "false": False}[value.text if value.kind == "identifier" else ""]
    if type == ENUM_TYPE:
        if value.kind != "identifier":
            raise ValueError
        return enum.values_by_name[value.text].number
    if type == STRING_TYPE:
        if value.kind != "string":
            raise ValueError
        return value.text
    if value.kind != "integer":
        raise ValueError
    return whole(value.text)


def _keep(options: Any, name: list[tuple[str, bool]], value: _Value) -> None:
    kept = options.uninterpreted_option.add()
    for part, is_extension in name:
        kept.name.add(name_part=part, is_extension=is_extension)
    match value.kind:
        case "string":
            kept.string_value = value.raw
        case "aggregate":
            kept.aggregate_value = value.text
        case _:
            kept.identifier_value = value.text


def _add_synthetic_oneofs(message: DescriptorProto) -> None:
    """An `optional` of proto3 is a oneof of one field, after all others."""
    taken = {oneof.name for oneof in message.oneof_decl} | {field.name for field in message.field}
    for field in message.field:
        if field.proto3_optional:
            name = f"_{field.name}"
            while name in taken:
                name = f"X{name}"
            taken.add(name)
            field.oneof_index = len(message.oneof_decl)
            message.oneof_decl.add(name=name)


def _collect(
    messages: Iterable[DescriptorProto],
    enums: Iterable[EnumDescriptorProto],
    scope: str,
    symbols: dict[str, Any],
) -> None:
    for enum in enums:
        symbols[_joined(scope, enum.name)] = ENUM_TYPE
    for message in messages:
        name = _joined(scope, message.name)
        symbols[name] = MESSAGE_TYPE
        _collect(message.nested_type, message.enum_type, name, symbols)


def _lookup(name: str, scope: str, symbols: dict[str, Any]) -> str | None:
    """The full name, of the innermost type that fits."""
    if name.startswith("."):
        return name[1:] if name[1:] in symbols else None
    while True:
        full = _joined(scope, name)
        if full in symbols:
            return full
        if not scope:
            return None
        scope = scope.rpartition(".")[0]
