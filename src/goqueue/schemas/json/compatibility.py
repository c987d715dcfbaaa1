"""Which documents a JSON Schema accepts that another one refuses, in words.

A reader's schema is compatible with a writer's iff it accepts every document that the writer's accepts: set inclusion,
nothing else. Whether that holds is decided by `emptiness.py`; why it does not is found here, by going through the
reader's schema part by part and asking the same about each with what the writer's schema says of that place.

The verdict does not depend on the words. What is compatible is so for certain; what cannot be decided is refused.

The policy LENIENT asks less, namely what holds between a careful writer and a tolerant reader, as in Avro or Protobuf:

- The writer writes only properties that its schema names. In an object that the writer's schema leaves open, every
  other name counts as absent. So the reader may name a new property: no old document has it with another type.
- The reader passes over properties that it does not know. `additionalProperties: false` in the reader's schema does
  not refuse a property that the writer's schema names and nowhere requires.

Only whole objects are closed like that, with all names of `allOf`, `anyOf`, `$ref` and so on together; a schema of a
map (`additionalProperties: {...}`, `propertyNames`, `minProperties`) stays as it is. The writer is narrowed by an
intersection, and the exact reader is tried after the tolerant one, so that LENIENT accepts all that STRICT accepts.
"""

import json
from collections.abc import Iterable, Iterator
from fractions import Fraction
from heapq import nsmallest
from itertools import islice
from typing import Final

from goqueue.schemas.format import SCHEMA_DEPTH_MAX
from goqueue.schemas.json import parts
from goqueue.schemas.json.arrays import ArrayShape, shorten
from goqueue.schemas.json.emptiness import Solver
from goqueue.schemas.json.normal_form import Resolve, Side, Table
from goqueue.schemas.json.objects import Properties
from goqueue.schemas.json.parts import KINDS, Goal, Literal, SchemaNode, TooComplex, Value, kinds_of

REASONS_MAX: Final = 50
"""More reasons than that do not help."""
EXAMPLES_MAX: Final = 3
WAYS_MAX: Final = 32
"""So many branches of what the writer accepts are kept while the parts of the reader are gone through."""
UNDECIDED: Final = "/: the schemas are too deep or too intricate to be compared"
SIZE_WORDS: Final = {
    "string": ("Length", "characters"),
    "array": ("Items", "items"),
    "object": ("Properties", "properties"),
}


def incompatibilities(
    reader: object, writer: object, *, resolve: Resolve | None = None, is_lenient: bool = False
) -> list[str]:
    """Why some documents that `writer` accepts are refused by `reader`; empty iff it is certain that there are none.

    Both are parsed JSON Schemas. A reason begins with the place in the reader's schema. `resolve` gives the document
    that an external `$ref` refers to; what it does not know counts as a schema that could accept anything or nothing.
    With `is_lenient` the writer is careful and the reader tolerant.
    """
    if _is_deep(reader) or _is_deep(writer):
        return [UNDECIDED]
    try:
        if json.dumps(reader, sort_keys=True) == json.dumps(writer, sort_keys=True):
            return []
        found = _JsonComparison(reader, writer, resolve, is_lenient=is_lenient, is_tolerant=is_lenient).reasons()
        if found and is_lenient and not _JsonComparison(reader, writer, resolve, is_lenient=True).reasons():
            return []
        return found
    except (TooComplex, RecursionError):  # how much stack is left is up to the caller
        return [UNDECIDED]


def _is_deep(document: object) -> bool:
    level = [document]
    for _ in range(SCHEMA_DEPTH_MAX + 1):
        if not level:
            return False
        inside: list[object] = []
        for node in level:
            inside.extend(node.values() if isinstance(node, dict) else node if isinstance(node, list) else ())
        level = inside
    return True


class _JsonComparison:
    """One reader's schema against one writer's."""

    def __init__(
        self,
        reader: object,
        writer: object,
        resolve: Resolve | None,
        *,
        is_lenient: bool = False,
        is_tolerant: bool = False,
    ) -> None:
        self._table = Table()
        self._solver = Solver(self._table)
        self._reader, self._writer = Side(reader, resolve, name="reader"), Side(writer, resolve, name="writer")
        self._closed_writer = self._writer.closed() if is_lenient else None
        if is_tolerant:
            self._reader = self._reader.ignoring(self._writer.optional_names())
        self._explained: set[tuple[Goal, SchemaNode, str]] = set()

    def reasons(self) -> list[str]:
        """All that was found, each once."""
        goal: Goal = frozenset((True, self._read(side)) for side in (self._writer, self._closed_writer) if side)
        reader = self._read(self._reader)
        if not self._differs(goal, reader):
            return []
        found: dict[str, None] = {}
        try:
            for reason in self._explain(goal, reader, ""):
                found[reason] = None
                if len(found) == REASONS_MAX:
                    break
        except (TooComplex, RecursionError):
            if not found:
                found[UNDECIDED] = None
        for text in self._writer.unresolved:
            found[f"/: the writer refers to {text!r}, which is not known here: it counts as anything"] = None
        return list(found)

    def _read(self, side: Side) -> SchemaNode:
        return self._table.read_value(side.root.root, side.root, side, 0)

    def _differs(self, writer: Goal, reader: SchemaNode, kinds: Iterable[str] = KINDS) -> bool:
        goal = writer | {(False, reader)}
        return any(self._solver.satisfiable_as(goal, kind) for kind in kinds)

    def _kinds(self, goal: Goal) -> list[str]:
        return [kind for kind in KINDS if self._solver.satisfiable_as(goal, kind)]

    def _with(self, goal: Goal, *wanted: parts.Part) -> Goal:
        return goal | {(True, self._table.node([part])) for part in wanted}

    def _explain(self, writer: Goal, reader: SchemaNode, path: str) -> Iterator[str]:
        """Why the reader refuses some of what the writer accepts; the caller knows that it does."""
        if (writer, reader, path) in self._explained:
            return
        self._explained.add((writer, reader, path))
        allowed, taken = self._kinds(writer), self._kinds(frozenset([(True, reader)]))
        both = [kind for kind in allowed if kind in taken]
        is_explained = both != allowed
        if is_explained:
            only = f"only {self._words(frozenset([(True, reader)]), taken)}" if taken else "nothing"
            yield f"{path or '/'}: the writer allows {self._words(writer, allowed)}, the reader {only}"
        for part in self._differing(writer, reader, both):
            is_explained = True
            yield from self._explain_part(writer, part, path, both)
        if not is_explained:
            yield f"{path or '/'}: the writer allows what the reader does not{self._examples(writer, reader)}"

    def _differing(self, writer: Goal, reader: SchemaNode, kinds: list[str]) -> Iterator[parts.Part]:
        """The parts of the reader that some of what the writer accepts does not fit."""
        ways = {kind: list(islice(self._solver.branches(writer, kind), WAYS_MAX + 1)) for kind in kinds}
        for part in reader.parts:
            for kind in kinds:
                if kind not in kinds_of(part):
                    continue
                if len(ways[kind]) > WAYS_MAX:
                    differs = self._differs(writer, self._table.node([part]), [kind])
                else:
                    differs = any(self._solver.can_break(branch, part, kind) for branch in ways[kind])
                if differs:
                    yield part
                    break

    def _words(self, goal: Goal, kinds: list[str]) -> str:
        broken = self._table.node([self._table.part(parts.Multiple, Fraction(1))])
        is_whole = "number" in kinds and not self._solver.satisfiable_as(goal | {(False, broken)}, "number")
        words = ["integer" if kind == "number" and is_whole else kind for kind in kinds]
        if len(kinds) == len(KINDS):
            return "values of every type"
        return " and ".join(filter(None, [", ".join(words[:-1]), words[-1]]))

    def _examples(self, writer: Goal, reader: SchemaNode) -> str:
        """Some values, where they are few."""
        found: list[str] = []
        for kind in KINDS:
            for branch in self._solver.branches(writer | {(False, reader)}, kind):
                if branch.values is not None:
                    some = nsmallest(EXAMPLES_MAX + 1, branch.values, key=_simplicity)
                    found.extend(map(_shown, some))
                if len(found) > EXAMPLES_MAX:
                    break
        more = " and more" if len(found) > EXAMPLES_MAX else ""
        return f": {', '.join(found[:EXAMPLES_MAX])}{more}" if found else ""

    def _explain_part(self, writer: Goal, part: parts.Part, path: str, kinds: list[str]) -> Iterator[str]:
        alone = self._table.node([part])
        match part:
            case parts.Kinds(written=written):
                note = " (in draft 4, 1.0 is no integer)" if written else ""
                yield f"{path or '/'}: the writer allows number, the reader only integer{note}"
            case parts.Every(keyword=keyword, nodes=nodes):
                for index, node in enumerate(nodes):
                    if self._differs(writer, node, kinds):
                        yield from self._explain(writer, node, f"{path}/{keyword}/{index}")
            case parts.Reference(place=place):
                yield from self._explain(writer, self._table.target(part), place)
            case parts.Some(nodes=nodes) | parts.One(nodes=nodes):
                yield from self._explain_choice(writer, part, nodes, path, kinds)
            case parts.Not(node=node):
                examples = self._examples(writer, alone)
                yield f"{path}/not: the writer allows some of what the reader excludes{examples}"
            case parts.Conditional(condition=condition, then=then, otherwise=otherwise):
                for sign, node, keyword in ((True, then, "then"), (False, otherwise, "else")):
                    if self._differs(writer | {(sign, condition)}, node, kinds):
                        yield from self._explain(writer | {(sign, condition)}, node, f"{path}/{keyword}")
            case parts.Among(keyword=keyword, values=values):
                examples = self._examples(writer, alone)
                if keyword == "const" and len(values) == 1:
                    (value,) = values
                    yield f"{path}/const: the writer allows other values than {_shown(value)}{examples}"
                else:
                    yield f"{path}/{keyword}: the writer allows values that the reader does not list{examples}"
            case parts.Opaque(keyword=keyword, why=why):
                place = f"{path}/{keyword}" if keyword else path or "/"
                yield f"{place}: this {why}, so it is not certain that the reader takes all that the writer allows"
            case parts.Least(limit=limit, excluded=excluded):
                place = f"{path}/{'exclusiveMinimum' if excluded else 'minimum'}"
                yield f"{place}: the writer allows numbers {_beyond('below', limit, excluded)}"
            case parts.Most(limit=limit, excluded=excluded):
                place = f"{path}/{'exclusiveMaximum' if excluded else 'maximum'}"
                yield f"{place}: the writer allows numbers {_beyond('above', limit, excluded)}"
            case parts.Multiple(of=of):
                yield f"{path}/multipleOf: the writer allows numbers that are no multiples of {_number(of)}"
            case parts.Matches(pattern=pattern):
                examples = self._examples(writer, alone)
                yield f"{path}/pattern: the writer allows strings that may not match {pattern!r}{examples}"
            case parts.SizeLeast(kind=kind, count=count):
                keyword, noun = SIZE_WORDS[kind]
                yield f"{path}/min{keyword}: the writer allows fewer than {count} {noun}"
            case parts.SizeMost(kind=kind, count=count):
                keyword, noun = SIZE_WORDS[kind]
                yield f"{path}/max{keyword}: the writer allows more than {count} {noun}"
            case parts.ItemAt() | parts.ItemsFrom() | parts.Contains() | parts.Unique():
                yield from self._explain_items(writer, part, path)
            case _:
                yield from self._explain_properties(writer, part, path)

    def _explain_choice(
        self, writer: Goal, part: parts.Part, nodes: tuple[SchemaNode, ...], path: str, kinds: list[str]
    ) -> Iterator[str]:
        keyword = "anyOf" if isinstance(part, parts.Some) else "oneOf"
        alone = self._table.node([part])
        none = writer | {(False, node) for node in nodes}
        for kind in kinds:
            if not self._differs(writer, alone, [kind]):
                continue
            narrowed = self._with(writer, self._table.part(parts.Kinds, frozenset([kind]), False, False))
            fitting = [
                index
                for index, node in enumerate(nodes)
                if self._solver.satisfiable_as(frozenset([(True, node)]), kind)
            ]
            if len(fitting) == 1:
                yield from self._explain(narrowed, nodes[fitting[0]], f"{path}/{keyword}/{fitting[0]}")
            elif self._solver.satisfiable_as(none, kind):
                examples = self._examples(narrowed, alone)
                yield f"{path}/{keyword}: the writer allows {kind} values that fit none of the alternatives{examples}"
            else:
                examples = self._examples(narrowed, alone)
                yield f"{path}/{keyword}: the writer allows {kind} values that fit more than one alternative{examples}"

    def _explain_items(self, writer: Goal, part: parts.Part, path: str) -> Iterator[str]:
        match part:
            case parts.ItemAt(keyword=keyword, index=index, node=node):
                place, start, many = f"{path}/{keyword}/{index}", index, False
            case parts.ItemsFrom(keyword=keyword, start=start, node=node):
                place, many = f"{path}/{keyword}", True
            case parts.Contains(least=least, most=most):
                bounds = f"{least} or more" if most is None else f"{least} to {most}"
                yield f"{path}/contains: the writer allows arrays in which not {bounds} items fit"
                return
            case _:
                yield f"{path}/uniqueItems: the writer allows items that are equal"
                return
        is_explained = False
        for literals in self._open_branches(writer, "array"):
            shape = ArrayShape.of(literals)
            if not shorten(shape, self._solver):
                continue
            last = max(start, shape.alike_from()) if many else start
            for at in range(start, int(min(shape.most, last + 1))):
                goal = shape.goal(at)
                if self._differs(goal, node):
                    is_explained = True
                    yield from self._explain(goal, node, place)
        if not is_explained:
            yield f"{place}: the writer allows items that the reader does not"

    def _open_branches(self, goal: Goal, kind: str) -> Iterator[frozenset[Literal]]:
        for branch in islice(self._solver.branches(goal, kind), WAYS_MAX):
            if branch.values is None and self._solver.inhabited(branch, kind):
                yield branch.literals

    def _explain_properties(self, writer: Goal, part: parts.Part, path: str) -> Iterator[str]:
        match part:
            case parts.Required(name=name):
                yield f"{path}/required: the reader requires {name!r}, the writer does not"
            case parts.Names():
                yield f"{path}/propertyNames: the writer allows names of properties that the reader does not"
            case parts.Dependent(keyword=keyword, name=name, node=node):
                place = f"{path}/{keyword}/{_escaped(name)}"
                present = self._with(writer, self._table.part(parts.Required, name))
                if all(isinstance(each, parts.Required) for each in node.parts):
                    missing = [each.name for each in node.parts if isinstance(each, parts.Required)]
                    needed = [each for each in missing if self._lacks(present, each)]
                    yield f"{place}: with {name!r} the reader requires {_listed(needed)}, the writer does not"
                else:
                    yield from self._explain(present, node, place)
            case parts.Property(name=name, node=node):
                place = f"{path}/properties/{_escaped(name)}"
                yield from self._explain_values(writer, part, node, place, [name])
            case parts.PatternProperties(pattern=pattern, node=node):
                place = f"{path}/patternProperties/{_escaped(pattern)}"
                yield from self._explain_values(writer, part, node, place, None)
            case parts.OtherProperties(keyword=keyword, node=node):
                yield from self._explain_values(writer, part, node, f"{path}/{keyword}", None)
            case _:
                raise AssertionError(part)

    def _lacks(self, writer: Goal, name: str) -> bool:
        return self._differs(writer, self._table.node([self._table.part(parts.Required, name)]), ["object"])

    def _explain_values(
        self, writer: Goal, part: parts.Part, node: SchemaNode, place: str, names: list[str] | None
    ) -> Iterator[str]:
        """For a part that speaks of the values of properties: of those of these names, or of all that it covers."""
        is_explained = False
        for literals in self._open_branches(writer, "object"):
            properties = self._solver.properties(literals | {(False, part)} if names is None else literals)
            for name in sorted(properties.known()) if names is None else names:
                if names is None and not self._covers(part, name):
                    continue
                goal = properties.goal(name)
                if properties.may_stand(name) and self._differs(goal, node):
                    is_explained = True
                    yield from self._explain_value(goal, node, place, name, is_named=names is not None)
            if names is None:
                for reason in self._explain_others(properties, part, node, place):
                    is_explained = True
                    yield reason
        if not is_explained:
            alone = self._table.node([part])
            yield f"{place}: the writer allows properties that the reader does not{self._examples(writer, alone)}"

    def _covers(self, part: parts.Part, name: str) -> bool:
        assert isinstance(part, parts.PatternProperties | parts.OtherProperties)
        return self._solver.judge.applies(part, name) is not False

    def _explain_value(self, goal: Goal, node: SchemaNode, place: str, name: str, *, is_named: bool) -> Iterator[str]:
        if not is_named and node is self._table.nothing:
            yield f"{place}: the writer allows the property {name!r}, the reader does not"
        elif goal:
            yield from self._explain(goal, node, place)
        else:
            advice = "let the reader accept anything, close the writer, or set compatibilityPolicy LENIENT"
            yield f"{place}: the writer is open and allows any value for {name!r}, the reader does not ({advice})"

    def _explain_others(self, properties: Properties, part: parts.Part, node: SchemaNode, place: str) -> Iterator[str]:
        assert isinstance(part, parts.PatternProperties | parts.OtherProperties)
        for sort in properties.sorts():
            if not sort.may_be_covered_by(part) or not self._differs(sort.goal, node):
                continue
            names = "names that match" if isinstance(part, parts.PatternProperties) else "other names"
            if node is self._table.nothing:
                yield f"{place}: the writer allows properties with {names}, the reader does not"
            elif not sort.goal:
                yield f"{place}: the writer allows any value for properties with {names}, the reader does not"
            else:
                yield from self._explain(sort.goal, node, place)


def _escaped(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")


def _listed(names: list[str]) -> str:
    return ", ".join(map(repr, names))


def _beyond(side: str, limit: Fraction, excluded: bool) -> str:
    return f"{side} {_number(limit)}" + (", or equal to it" if excluded else "")


def _number(number: Fraction) -> str:
    return str(number.numerator) if number.denominator == 1 else repr(float(number))


def _simplicity(value: Value) -> tuple[int, str]:
    text = str(value[1]) if isinstance(value[1], str | Fraction) else _shown(value)
    return len(text), text


def _shown(value: Value) -> str:
    """The value as JSON, not too long."""
    text = json.dumps(_thawed(value), ensure_ascii=False, sort_keys=True)
    return text if len(text) <= 40 else text[:37] + "..."


def _thawed(value: Value) -> object:
    match value:
        case (_, Fraction() as number):
            return number.numerator if number.denominator == 1 else float(number)
        case (_, tuple() as items):
            return [_thawed(item) for item in items]
        case (_, frozenset() as pairs):
            return {name: _thawed(item) for name, item in pairs}
        case (_, content):
            return content
