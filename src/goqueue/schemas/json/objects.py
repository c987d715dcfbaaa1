"""Whether there is an object that satisfies some literals: which properties it must have, may have, and cannot have.

Names that occur in no schema are alike as far as they match the same patterns: they are looked at by such sorts. How
patterns overlap is not known, so any combination of them is taken for possible, if one name could match it.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import product
from math import inf, prod
from typing import Final, NamedTuple, TypeAlias

from goqueue.schemas.json.arrays import Answers
from goqueue.schemas.json.judgement import Judge, language
from goqueue.schemas.json.normal_form import Table
from goqueue.schemas.json.parts import (
    Among,
    Goal,
    Literal,
    Matches,
    Names,
    OtherProperties,
    PatternProperties,
    Property,
    Required,
    SchemaNode,
    SizeLeast,
    SizeMost,
    Value,
)

PATTERNS_MAX: Final = 4
"""So many patterns over names are combined in every way; of more only one each is looked at."""
OBJECTS_MAX: Final = 1024
"""So many objects of few properties are held against all conditions one by one."""

Covering: TypeAlias = PatternProperties | OtherProperties


@dataclass(slots=True)
class ObjectShape:
    """What the literals say of an object."""

    least: int = 0
    most: float = inf
    present: set[str] = field(default_factory=set)
    absent: set[str] = field(default_factory=set)
    named: dict[str, set[tuple[bool, SchemaNode]]] = field(default_factory=dict)
    covering: list[Covering] = field(default_factory=list)
    names: list[tuple[bool, SchemaNode]] = field(default_factory=list)
    wanted: list[Covering | Names] = field(default_factory=list)  # a property that breaks it
    is_excluding: bool = False

    @classmethod
    def of(cls, literals: Iterable[Literal]) -> "ObjectShape":
        """The literals, sorted by what they speak of."""
        found = cls()
        for sign, item in literals:
            match item:
                case Property(name=name, node=node):
                    found.named.setdefault(name, set()).add((sign, node))
                    if not sign:
                        found.present.add(name)
                case Required(name=name):
                    (found.present if sign else found.absent).add(name)
                case SizeLeast(count=count):
                    found.least = max(found.least, count)
                case SizeMost(count=count):
                    found.most = min(found.most, count)
                case PatternProperties() | OtherProperties() | Names() if not sign:
                    found.wanted.append(item)
                case PatternProperties() | OtherProperties():
                    found.covering.append(item)
                case Names(node=node):
                    found.names.append((True, node))
                case Among():
                    found.is_excluding = True
        return found


class Sort(NamedTuple):
    """The properties that no schema names, as far as they match the same patterns, or may do so (None)."""

    patterns: dict[str, bool | None]
    name: Goal
    goal: Goal

    def may_be_covered_by(self, part: Covering) -> bool:
        """False only if the part does not speak of them."""
        return _covers(part, self.patterns) is not False


class Properties:
    """Which properties an object of a shape could have."""

    def __init__(self, shape: ObjectShape, answers: Answers, judge: Judge, table: Table) -> None:
        self.shape, self._answers, self._judge, self._table = shape, answers, judge, table
        self._known: set[str] | None = None
        self._patterns: list[str] = []
        self._sorts: list[Sort] | None = None

    def goal(self, name: str) -> Goal:
        """What is asked of the property of that name, if there is one."""
        found = set(self.shape.named.get(name, ()))
        for part in self.shape.covering:
            if self._judge.applies(part, name):
                found.add((True, part.node))
        return frozenset(found)

    def may_stand(self, name: str) -> bool:
        """Whether there can be a property of that name."""
        shape = self.shape
        if name in shape.absent or not self._judge.may_fit(shape.names, ("string", name)):
            return False
        return self._answers.satisfiable(self.goal(name))

    def may_break(self, name: str, node: SchemaNode) -> bool:
        """Whether there can be a property of that name that the node refuses."""
        return self.may_stand(name) and self._answers.satisfiable(self.goal(name) | {(False, node)})

    def are_possible(self) -> bool:
        """Whether those that there must be can be there, and are not too many."""
        shape = self.shape
        if shape.least > shape.most or len(shape.present) > shape.most or shape.present & shape.absent:
            return False
        # What is negated is what is asked about, and most likely to fail.
        first = sorted(shape.present, key=lambda name: all(sign for sign, _ in shape.named.get(name, ())))
        return all(map(self.may_stand, first))

    def known(self) -> set[str]:
        """All names that occur somewhere."""
        if self._known is None:
            shape = self.shape
            self._known = shape.present | shape.absent | shape.named.keys()
            patterns: set[str] = set()
            for part in (*shape.covering, *shape.wanted):
                if isinstance(part, PatternProperties):
                    patterns.add(part.pattern)
                elif isinstance(part, OtherProperties):
                    patterns |= part.patterns
                    self._known |= part.names
            for pattern in patterns:
                self._known |= language(pattern) or set()
            few = self._answers.values(frozenset(shape.names), ["string"]) if shape.names else None
            self._known.update(str(text) for _, text in few or ())
            self._patterns = sorted(patterns)
        return self._known

    def sorts(self) -> list[Sort]:
        """The sorts of properties that occur nowhere and may stand."""
        if self._sorts is None:
            self._sorts = list(self._find_sorts())
        return self._sorts

    def _find_sorts(self) -> Iterator[Sort]:
        known = self._table.part(Among, "enum", frozenset(("string", name) for name in self.known()))
        for patterns in self._combinations():
            matching = {
                (sign, self._table.node([self._table.part(Matches, pattern)]))
                for pattern, sign in patterns.items()
                if sign is not None
            }
            name = frozenset((*self.shape.names, *matching, (False, self._table.node([known]))))
            goal = frozenset((True, part.node) for part in self.shape.covering if _covers(part, patterns))
            if self._answers.satisfiable_as(name, "string") and self._answers.satisfiable(goal):
                yield Sort(patterns, name, goal)

    def _combinations(self) -> Iterator[dict[str, bool | None]]:
        """Which patterns a name could match: every name is in one of them."""
        if len(self._patterns) <= PATTERNS_MAX:
            for signs in product((False, True), repeat=len(self._patterns)):
                yield dict(zip(self._patterns, signs, strict=True))
            return
        yield dict.fromkeys(self._patterns, False)
        for pattern in self._patterns:
            yield {**dict.fromkeys(self._patterns, None), pattern: True}

    def can_be_chosen(self) -> bool:
        """Whether all that is wanted can be there, and enough, and not too much."""
        shape = self.shape
        if not shape.wanted and len(shape.present) >= shape.least:
            return True
        return self._choose(shape.wanted, {}, [])

    def _choose(self, wanted: list[Covering | Names], chosen: dict[str, Goal], others: list[Sort]) -> bool:
        self._answers.step()
        shape = self.shape
        count = len(shape.present | chosen.keys()) + len(others)
        if count > shape.most:
            return False
        if not wanted:
            return count >= shape.least or bool(self.sorts()) or sum(map(self.may_stand, self.known())) >= shape.least
        part, rest = wanted[0], wanted[1:]
        for sort in self._narrowed(part, self.sorts()):
            if self._choose(rest, chosen, [*others, sort]):
                return True
        for index, other in enumerate(others):
            for sort in self._narrowed(part, [other]):
                if self._choose(rest, chosen, [*others[:index], sort, *others[index + 1 :]]):
                    return True
        for name in self.known():
            goal = self._narrowed_known(part, name, chosen.get(name))
            if goal is not None and self._choose(rest, {**chosen, name: goal}, others):
                return True
        return False

    def _narrowed(self, part: Covering | Names, sorts: list[Sort]) -> Iterator[Sort]:
        """Those of the properties that break the part."""
        for sort in sorts:
            if isinstance(part, Names):
                narrower = sort._replace(name=sort.name | {(False, part.node)})
            elif sort.may_be_covered_by(part):
                narrower = sort._replace(goal=sort.goal | {(False, part.node)})
            else:
                continue
            if self._answers.satisfiable_as(narrower.name, "string") and self._answers.satisfiable(narrower.goal):
                yield narrower

    def _narrowed_known(self, part: Covering | Names, name: str, chosen: Goal | None) -> Goal | None:
        """What is asked of the property if it has to break the part; None if it cannot."""
        goal = self.goal(name) if chosen is None else chosen
        if isinstance(part, Names):
            if self._judge.holds((False, part.node), ("string", name)) is False:
                return None
        elif self._judge.applies(part, name) is False:
            return None
        else:
            goal |= {(False, part.node)}
        return goal if self.may_stand(name) and self._answers.satisfiable(goal) else None

    def few_objects(self) -> list[Value] | None:
        """All objects with such properties, and perhaps some more, if they are few."""
        shape = self.shape
        if len(shape.present) < shape.most and self.sorts():
            return None
        columns: list[list[tuple[str, Value] | None]] = []
        for name in sorted(self.known()):
            is_present = name in shape.present
            if not is_present and (len(shape.present) >= shape.most or not self.may_stand(name)):
                continue
            few = self._answers.values(self.goal(name))
            if few is None:
                return None
            columns.append([*((name, value) for value in few), *([] if is_present else [None])])
            if prod(map(len, columns)) > OBJECTS_MAX:
                return None
        return [("object", frozenset(pair for pair in pairs if pair is not None)) for pairs in product(*columns)]


def _covers(part: Covering, patterns: dict[str, bool | None]) -> bool | None:
    """Whether the part speaks of properties that occur nowhere and match these patterns; None if that is unknown."""
    if isinstance(part, PatternProperties):
        return patterns[part.pattern]
    matching = [patterns[pattern] for pattern in part.patterns]
    return False if any(matching) else None if None in matching else True
