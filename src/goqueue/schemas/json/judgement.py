"""Whether one value fits a schema. Three answers: yes, no, and unknown (None), which opaque parts lead to.

Patterns are tried by the library that validates messages, so both agree on what a pattern means.
"""

from collections.abc import Callable, Iterable
from fractions import Fraction
from re import compile as compile_pattern
from typing import Final

from goqueue.schemas.json import parts
from goqueue.schemas.json.normal_form import Table
from goqueue.schemas.json.parts import DEPTH_MAX, Literal, SchemaNode, TooComplex, Value

_LISTING: Final = compile_pattern(r"\^(?:\((?:\?:)?(?P<inner>[\w :@/-]+(?:\|[\w :@/-]+)*)\)|(?P<bare>[\w :@/-]+))\$")

_PREFIX: Final = compile_pattern(r"\^(?P<prefix>(?:[A-Za-z0-9_ :@/-](?![*?+{]))*)")


class Judge:
    """Holds single values against nodes and parts of one table."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self._under_way: set[tuple[SchemaNode, Value]] = set()
        self._patterns: dict[str, Callable[[str], bool] | None] = {}

    def may_fit(self, literals: Iterable[Literal], value: Value) -> bool:
        """False only if one of the literals does not hold for the value."""
        return all(self.holds(literal, value) is not False for literal in literals)

    def holds(self, literal: Literal, value: Value) -> bool | None:
        """Whether the literal holds for the value; None if that is unknown."""
        sign, item = literal
        held = self._fits(item, value) if isinstance(item, SchemaNode) else self._holds(item, value)
        return held if held is None or sign else not held

    def _fits(self, node: SchemaNode, value: Value) -> bool | None:
        key = (node, value)
        if key in self._under_way:
            return None
        self._under_way.add(key)
        try:
            if len(self._under_way) > 4 * DEPTH_MAX:
                raise TooComplex
            return _all(self._holds(part, value) for part in node.by_kind[value[0]])
        finally:
            self._under_way.discard(key)

    def _holds(self, part: parts.Part, value: Value) -> bool | None:
        kind, content = value
        match part:
            case parts.Kinds(kinds=kinds, integer=integer, written=written):
                if kind != "number" or not integer or kind not in kinds:
                    return kind in kinds
                assert isinstance(content, Fraction)
                return False if content.denominator != 1 else (None if written else True)
            case parts.Among(values=values):
                return value in values
            case parts.Every(nodes=nodes):
                return _all(self._fits(node, value) for node in nodes)
            case parts.Some(nodes=nodes):
                return _any(self._fits(node, value) for node in nodes)
            case parts.One(nodes=nodes):
                fitting = [self._fits(node, value) for node in nodes]
                if None in fitting:
                    return False if fitting.count(True) > 1 else None
                return fitting.count(True) == 1
            case parts.Not(node=node):
                fits = self._fits(node, value)
                return None if fits is None else not fits
            case parts.Conditional(condition=condition, then=then, otherwise=otherwise):
                fits = self._fits(condition, value)
                if fits is None:
                    return _same(self._fits(then, value), self._fits(otherwise, value))
                return self._fits(then if fits else otherwise, value)
            case parts.Reference():
                return self._fits(self._table.target(part), value)
        if isinstance(content, Fraction):
            return _number_holds(part, content)
        if isinstance(content, str):
            return self._string_holds(part, content)
        if isinstance(content, tuple):
            return self._array_holds(part, content)
        if isinstance(content, frozenset):
            return self._object_holds(part, content, value)
        return None if isinstance(part, parts.Opaque) else True

    def _string_holds(self, part: parts.Part, text: str) -> bool | None:
        match part:
            case parts.SizeLeast(kind="string", count=count):
                return len(text) >= count
            case parts.SizeMost(kind="string", count=count):
                return len(text) <= count
            case parts.Matches(pattern=pattern):
                return self.matches(pattern, text)
        return None if isinstance(part, parts.Opaque) else True

    def _array_holds(self, part: parts.Part, items: tuple[Value, ...]) -> bool | None:
        match part:
            case parts.SizeLeast(kind="array", count=count):
                return len(items) >= count
            case parts.SizeMost(kind="array", count=count):
                return len(items) <= count
            case parts.ItemAt(index=index, node=node):
                return index >= len(items) or self._fits(node, items[index])
            case parts.ItemsFrom(start=start, node=node):
                return _all(self._fits(node, item) for item in items[start:])
            case parts.Contains(node=node, least=least, most=most):
                fitting = [self._fits(node, item) for item in items]
                sure, possible = fitting.count(True), len(fitting) - fitting.count(False)
                if possible < least or (most is not None and sure > most):
                    return False
                return True if sure >= least and (most is None or possible <= most) else None
            case parts.Unique():
                return len(set(items)) == len(items)
        return None if isinstance(part, parts.Opaque) else True

    def _object_holds(self, part: parts.Part, pairs: frozenset[tuple[str, Value]], value: Value) -> bool | None:
        match part:
            case parts.SizeLeast(kind="object", count=count):
                return len(pairs) >= count
            case parts.SizeMost(kind="object", count=count):
                return len(pairs) <= count
            case parts.Required(name=name):
                return any(each == name for each, _ in pairs)
            case parts.Property(name=name, node=node):
                return _all(self._fits(node, each) for own, each in pairs if own == name)
            case parts.PatternProperties() | parts.OtherProperties():
                return _all(self._covered(part, name, each) for name, each in pairs)
            case parts.Names(node=node):
                return _all(self._fits(node, ("string", name)) for name, _ in pairs)
            case parts.Dependent(name=name, node=node):
                return not any(each == name for each, _ in pairs) or self._fits(node, value)
        return None if isinstance(part, parts.Opaque) else True

    def _covered(self, part: parts.PatternProperties | parts.OtherProperties, name: str, value: Value) -> bool | None:
        applies = self.applies(part, name)
        if applies is False:
            return True
        fits = self._fits(part.node, value)
        return fits if applies or fits else None

    def applies(self, part: parts.PatternProperties | parts.OtherProperties, name: str) -> bool | None:
        """Whether the part speaks of a property of that name."""
        if isinstance(part, parts.PatternProperties):
            return self.matches(part.pattern, name)
        if name in part.names:
            return False
        found = _any(self.matches(pattern, name) for pattern in part.patterns)
        return None if found is None else not found

    def matches(self, pattern: str, text: str) -> bool | None:
        """Whether the validator finds the pattern in the text; None if it cannot read the pattern."""
        if pattern not in self._patterns:
            import jsonschema_rs

            linear = jsonschema_rs.RegexOptions()  # its time is linear in the text; it knows no lookaround
            try:
                self._patterns[pattern] = jsonschema_rs.validator_for(
                    {"pattern": pattern}, pattern_options=linear
                ).is_valid
            except ValueError:
                self._patterns[pattern] = None
        matcher = self._patterns[pattern]
        try:
            return None if matcher is None else matcher(text)
        except ValueError:  # half a surrogate pair is no text for it
            return None


def language(pattern: str) -> frozenset[str] | None:
    """All texts that match the pattern, if it only lists them."""
    found = _LISTING.fullmatch(pattern)
    return None if found is None else frozenset((found["inner"] or found["bare"]).split("|"))


def prefix(pattern: str) -> str:
    """What every text that matches the pattern begins with; not all that is certain is found."""
    if "|" in pattern:
        return ""
    found = _PREFIX.match(pattern)
    return "" if found is None else found["prefix"]


def is_prefix(pattern: str) -> bool:
    """Whether the pattern asks for nothing but how a text begins."""
    return pattern == f"^{prefix(pattern)}"


def _all(answers: Iterable[bool | None]) -> bool | None:
    found: bool | None = True
    for answer in answers:
        if answer is False:
            return False
        if answer is None:
            found = None
    return found


def _any(answers: Iterable[bool | None]) -> bool | None:
    found: bool | None = False
    for answer in answers:
        if answer:
            return True
        if answer is None:
            found = None
    return found


def _same(one: bool | None, other: bool | None) -> bool | None:
    return one if one == other else None


def _number_holds(part: parts.Part, number: Fraction) -> bool | None:
    match part:
        case parts.Least(limit=limit, excluded=excluded):
            return number > limit or (number == limit and not excluded)
        case parts.Most(limit=limit, excluded=excluded):
            return number < limit or (number == limit and not excluded)
        case parts.Multiple(of=of):
            return (number / of).denominator == 1
        case parts.Written():
            return None if number.denominator == 1 else False
    return None if isinstance(part, parts.Opaque) else True
