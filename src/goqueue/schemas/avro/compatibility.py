"""Whether data written with one Avro schema can be read with another: the rules of schema resolution, asked beforehand.

    writer      may be read as
    int         int, long, float, double
    long        long, float, double
    float       float, double
    string      string, bytes           and the other way round
    array, map  the same, if the items or values may
    enum        an enum of that name that has all its symbols, or a default for those that it does not have
    fixed       a fixed of that name and size
    record      a record of that name: each field is read from the one of its name or alias, or has a default
    union       whatever all of its branches may be read as

A reader's union takes the branch that is the same type, else the first one that may be read from it. Names count
without their namespace, as the specification has it, and a reader's aliases are names too. A logical type is its base
type, but two decimals must agree on precision and scale.

The question is asked of pairs of types, each pair once, from a list of pairs and not by recursion: two cycles of
records can pair up for a long time before they meet again.
"""

from collections import deque
from collections.abc import Iterator
from typing import Final

from goqueue.schemas.avro.types import (
    NO_DEFAULT,
    Array,
    AvroRecord,
    Enum,
    Fixed,
    Map,
    Named,
    Primitive,
    Type,
    Union,
    kind_of,
    unqualified,
)

PROMOTIONS: Final = {
    "int": ("long", "float", "double"),
    "long": ("float", "double"),
    "float": ("double",),
    "string": ("bytes",),
    "bytes": ("string",),
}
REASONS_MAX: Final = 100
"""Most reasons in one answer."""
STEPS_MAX: Final = 100_000
"""Fields, branches and symbols looked at. Far beyond what people write, and some 100 ms."""

_Pair = tuple[Type, Type, str]


def incompatibilities(reader: Type, writer: Type) -> list[str]:
    """Each reason why the reader cannot read all that the writer writes."""
    return _Resolution().run(reader, writer)


class _Resolution:
    def __init__(self) -> None:
        self._reasons: list[str] = []
        self._pending: deque[_Pair] = deque()
        self._seen: set[tuple[Type, Type]] = set()
        self._branches: dict[Union, _Branches] = {}
        self._steps = 0

    def run(self, reader: Type, writer: Type) -> list[str]:
        self._ask(reader, writer, "")
        while self._pending:
            self._resolve(*self._pending.popleft())
            if self._steps > STEPS_MAX:
                self._refuse("", "the schemas are too large to be compared")
                break
            if len(self._reasons) >= REASONS_MAX:
                break
        return self._reasons[:REASONS_MAX]

    def _ask(self, reader: Type, writer: Type, path: str) -> None:
        self._steps += 1
        if (reader, writer) not in self._seen:
            self._seen.add((reader, writer))
            self._pending.append((reader, writer, _clipped(path)))

    def _refuse(self, path: str, reason: str) -> None:
        self._reasons.append(f"{_clipped(path) or '/'}: {_clipped(reason)}")

    def _resolve(self, reader: Type, writer: Type, path: str) -> None:
        # The union of the writer first: all of its branches must be readable, while of the reader's one is enough.
        if isinstance(writer, Union):
            for branch in writer.branches:
                self._ask(reader, branch, path)
            return
        if isinstance(reader, Union):
            taking = self._branch(reader, writer)
            if taking is not None:
                self._ask(taking, writer, path)
            else:
                self._refuse(path, f"no type of the reader's union can be read from {_described(writer)}")
            return
        match reader, writer:
            case Array(), Array():
                self._ask(reader.items, writer.items, f"{path}/items")
            case Map(), Map():
                self._ask(reader.values, writer.values, f"{path}/values")
            case Primitive(), Primitive() if _is_read_as(reader.kind, writer.kind):
                self._decimals(reader, writer, path)
            case (Fixed() | Enum() | AvroRecord(), Fixed() | Enum() | AvroRecord()) if not _is_same_name(
                reader, writer
            ):
                self._refuse(path, f"{_described(reader)} is not {_described(writer)}, and has no alias for it")
            case Fixed(), Fixed():
                if reader.size != writer.size:
                    self._refuse(path, f"the size of {reader.name} is {reader.size}, and was {writer.size}")
                self._decimals(reader, writer, path)
            case Enum(), Enum():
                self._steps += len(writer.symbols)
                missing = [symbol for symbol in writer.symbols if symbol not in reader.known]
                if missing and reader.default is None:
                    names = ", ".join(missing[:10])
                    self._refuse(path, f"the enum {reader.name} has no default, and no longer {names}")
            case AvroRecord(), AvroRecord():
                for reason, at in self._fields(reader, writer, path):
                    self._refuse(at, reason)
            case _:
                self._refuse(path, f"{_described(reader)} cannot be read from {_described(writer)}")

    def _fields(self, reader: AvroRecord, writer: AvroRecord, path: str) -> Iterator[tuple[str, str]]:
        """Ask about the fields that are in both; tells the others that cannot be read."""
        self._steps += len(reader.fields) + len(writer.fields)
        written = {field.name: field for field in writer.fields}
        takers = {alias: field.name for field in reader.fields for alias in field.aliases}
        # A name goes before an alias: a field that has it takes it from a field that has it as an alias only.
        takers |= {field.name: field.name for field in reader.fields}
        for field in reader.fields:
            at = f"{path}/{field.name}"
            names = [name for name in sorted({field.name, *field.aliases}) if takers[name] == field.name]
            names = [name for name in names if name in written]
            if len(names) > 1:
                yield f"the field stands for {' and '.join(names)}, which are all there", at
            elif names:
                self._ask(field.type, written[names[0]].type, at)
            elif field.default is NO_DEFAULT:
                yield "the field has no default, and the writer no such field", at

    def _decimals(self, reader: Primitive | Fixed, writer: Primitive | Fixed, path: str) -> None:
        if reader.decimal and writer.decimal and reader.decimal != writer.decimal:
            now, before = reader.decimal, writer.decimal
            self._refuse(
                path, f"a decimal({now.precision}, {now.scale}) is no decimal({before.precision}, {before.scale})"
            )

    def _branch(self, reader: Union, writer: Type) -> Type | None:
        """The branch that takes the writer's type."""
        if reader not in self._branches:
            self._branches[reader] = _Branches(reader)
            self._steps += len(reader.branches)
        return self._branches[reader].taking(writer)


class _Branches:
    """The branches of a reader's union, by what they take."""

    def __init__(self, union: Union) -> None:
        self._same: dict[str, Type] = {}
        self._similar: dict[tuple[str, str], Type] = {}
        for branch in union.branches:
            if isinstance(branch, Named):
                self._same[branch.name] = branch
                self._similar.setdefault((kind_of(branch), unqualified(branch.name)), branch)
            else:
                self._same[kind_of(branch)] = branch
        for branch in union.branches:
            if isinstance(branch, Named):
                for alias in branch.aliases:
                    self._similar.setdefault((kind_of(branch), alias), branch)
        self._kinds = [branch.kind for branch in union.branches if isinstance(branch, Primitive)]

    def taking(self, writer: Type) -> Type | None:
        if isinstance(writer, Named):
            same = self._same.get(writer.name)
            if same and kind_of(same) == kind_of(writer):
                return same
            short = self._similar.get((kind_of(writer), unqualified(writer.name)))
            return short or self._similar.get((kind_of(writer), writer.name))
        kind = kind_of(writer)
        promoted = (self._same[other] for other in self._kinds if other in PROMOTIONS.get(kind, ()))
        return self._same.get(kind) or next(promoted, None)


def _is_read_as(reader: str, writer: str) -> bool:
    return reader == writer or reader in PROMOTIONS.get(writer, ())


def _is_same_name(reader: Named, writer: Named) -> bool:
    return unqualified(reader.name) == unqualified(writer.name) or writer.name in reader.aliases


def _described(type: Type) -> str:
    return f"{kind_of(type)} {type.name}" if isinstance(type, Named) else kind_of(type)


def _clipped(text: str) -> str:
    return text if len(text) <= 500 else f"{text[:497]}..."
