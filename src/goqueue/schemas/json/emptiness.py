"""Whether any JSON value fits some schemas and misfits others.

A `Goal` is a set of nodes with signs, and the question is if there is a value that all those with True accept and all
those with False refuse. `writer` is contained in `reader` iff nothing fits the goal {(True, writer), (False, reader)}.

A goal is asked for each kind of value on its own. Its nodes are taken apart into literals: a part that must hold, or
must not. What leaves a choice (`anyOf`, or a negated conjunction) is put off until nothing else is left, thinned out,
and then tried branch by branch. A branch is a set of literals that speak directly of a number, a string, an array or
an object; there the arithmetic is done, and what is said of items and properties is again a goal. Where values are
few (`enum`, booleans), each is simply held against everything.

Recursive schemas lead back to goals that are still being asked. A document is finite, so it cannot rest on itself: the
answer to a goal inside itself is no. Such a no holds for good only once the outermost of these goals is answered no.

A no is always right: there is no such value. A yes may be wrong where something could not be decided (patterns, opaque
parts, sets of items that are too intricate): then it is a compatible schema that is refused, never the other way round.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from math import inf
from typing import Final, NamedTuple, TypeAlias

from goqueue.schemas.json import parts
from goqueue.schemas.json.arrays import ArrayShape, few_arrays, has_array, shorten
from goqueue.schemas.json.judgement import Judge, is_prefix, language, prefix
from goqueue.schemas.json.normal_form import Table
from goqueue.schemas.json.numbers import few_numbers, has_number
from goqueue.schemas.json.objects import ObjectShape, Properties
from goqueue.schemas.json.parts import DEPTH_MAX, KINDS, Goal, Literal, SchemaNode, TooComplex, Value

STEPS_MAX: Final = 30_000
"""Work on goals and branches: at worst about a second. What people write takes some hundred."""
VALUES_MAX: Final = 256
"""So many values of a small schema are held against the others one by one."""
PLAIN: Final = frozenset(
    (
        parts.Among,
        parts.ItemAt,
        parts.ItemsFrom,
        parts.Matches,
        parts.Multiple,
        parts.Names,
        parts.Opaque,
        parts.OtherProperties,
        parts.PatternProperties,
        parts.Property,
    )
) | {parts.Required, parts.Unique, parts.Written}
"""Parts that speak directly of the value, whether they hold or not."""
FEW: Final[dict[str, frozenset[Value]]] = {
    "null": frozenset([("null", None)]),
    "boolean": frozenset([("boolean", True), ("boolean", False)]),
}

Alternatives: TypeAlias = list[list[Literal]]

_FREE: Final = 1 << 30  # deeper than any goal


class Branch(NamedTuple):
    """One way to fit a goal: the literals to satisfy, or the values that do."""

    literals: frozenset[Literal]
    values: frozenset[Value] | None


@dataclass(slots=True)
class _BranchState:
    kind: str
    pending: list[Literal]
    seen: set[Literal] = field(default_factory=set)
    literals: list[Literal] = field(default_factory=list)
    deferred: list[tuple[Literal, Alternatives]] = field(default_factory=list)
    values: frozenset[Value] | None = None

    def with_more(self, more: list[Literal]) -> "_BranchState":
        return _BranchState(
            self.kind, list(more), set(self.seen), list(self.literals), list(self.deferred), self.values
        )


class Solver:
    """Answers goals about the nodes of one table, and remembers the answers."""

    def __init__(self, table: Table) -> None:
        self.table = table
        self.judge = Judge(table)
        self._steps = 0
        self._known: dict[tuple[Goal, str], bool] = {}
        self._open: dict[tuple[Goal, str], int] = {}
        self._tentative: dict[tuple[Goal, str], int] = {}  # no, as long as an open goal at this depth is no
        self._lowest = _FREE  # the outermost open goal on which the answers since then rest
        self._being_listed: set[Goal] = set()
        self._properties: dict[frozenset[Literal], Properties] = {}

    def satisfiable(self, goal: Goal) -> bool:
        """False only if there is no such value."""
        return any(self.satisfiable_as(goal, kind) for kind in KINDS)

    def satisfiable_as(self, goal: Goal, kind: str) -> bool:
        """False only if there is no such value of the kind."""
        if not goal:
            return True
        key = (goal, kind)
        known = self._known.get(key)
        if known is not None:
            return known
        if any(sign and kind not in node.kinds for sign, node in goal):
            return False
        rests_on = self._tentative.get(key, self._open.get(key))
        if rests_on is not None:
            self._lowest = min(self._lowest, rests_on)
            return False
        depth, tentative_count = len(self._open), len(self._tentative)
        if depth > DEPTH_MAX:
            raise TooComplex
        self._open[key] = depth
        outside, self._lowest = self._lowest, _FREE
        found = any(self.inhabited(branch, kind) for branch in self.branches(goal, kind))
        del self._open[key]
        inside, self._lowest = self._lowest, outside
        if not found and inside < depth:
            self._tentative[key] = inside
            self._lowest = min(outside, inside)
            return False
        while len(self._tentative) > tentative_count:
            settled, _ = self._tentative.popitem()
            if not found:
                self._known[settled] = False
        self._known[key] = found
        return found

    def step(self, count: int = 1) -> None:
        """Count the work; raises `TooComplex`."""
        self._steps += count
        if self._steps > STEPS_MAX:
            raise TooComplex

    def branches(self, goal: Goal, kind: str) -> Iterator[Branch]:
        """Together they are what fits the goal."""
        return self._search(_BranchState(kind, list(goal), values=FEW.get(kind)), 0)

    def _search(self, state: _BranchState, depth: int) -> Iterator[Branch]:
        self.step()
        if depth > DEPTH_MAX:
            raise TooComplex
        while True:
            if not self._propagate(state):
                return
            if state.values is not None:
                fitting = self._fitting(state.values, [*state.literals, *(literal for literal, _ in state.deferred)])
                if fitting:
                    yield Branch(frozenset(state.literals), fitting)
                return
            if not state.deferred:
                yield Branch(frozenset(state.literals), None)
                return
            if not self._thin(state):
                return
            if not state.pending:
                break
        if not self.inhabited(Branch(frozenset(state.literals), None), state.kind):
            return
        if len(state.deferred) > 1:
            state.deferred = [
                (literal, alternatives)
                for literal, alternatives in state.deferred
                if literal[0] or not self._is_implied(state, literal, depth)
            ]
        if not state.deferred:
            yield Branch(frozenset(state.literals), None)
            return
        chosen = min(state.deferred, key=lambda choice: len(choice[1]))
        state.deferred.remove(chosen)
        for alternative in chosen[1]:
            yield from self._search(state.with_more(alternative), depth + 1)

    def _thin(self, state: _BranchState) -> bool:
        """Drop the alternatives that are closed at once, and leave pending what is no choice. False if none is left."""
        deferred: list[tuple[Literal, Alternatives]] = []
        certain: list[Literal] = []
        for literal, alternatives in state.deferred:
            left = [each for each in alternatives if self._is_open(state, each)]
            if not left:
                return False
            if len(left) == 1:
                certain += left[0]
            elif not any(self._is_certain(state, each) for each in left):
                deferred.append((literal, left))
        state.deferred, state.pending = deferred, certain
        return True

    def _is_certain(self, state: _BranchState, alternative: list[Literal]) -> bool:
        """Whether it is plain that whatever fits the rest fits this alternative; not all that is certain is plain."""
        match alternative:
            case []:
                return True
            case [(False, parts.Property(name=name, node=node))]:
                properties = self.properties(frozenset(state.literals))
                if name not in properties.shape.present:
                    return False
                goal = properties.goal(name) | {(True, node)}
                return all(self._is_surely_empty(goal, kind) for kind in KINDS)
            case _:
                return False

    def _is_surely_empty(self, goal: Goal, kind: str) -> bool:
        """Whether the answer is no, and does not rest on a goal that is still open."""
        outside, self._lowest = self._lowest, _FREE
        found = self.satisfiable_as(goal, kind)
        is_final = self._lowest == _FREE
        self._lowest = outside
        return is_final and not found

    def _fitting(self, values: frozenset[Value], literals: list[Literal]) -> frozenset[Value]:
        others: list[Literal] = []
        for literal in literals:
            sign, item = literal
            if isinstance(item, parts.Among):
                values = values & item.values if sign else values - item.values
            else:
                others.append(literal)
        return frozenset(value for value in values if self.judge.may_fit(others, value)) if others else values

    def _is_open(self, state: _BranchState, more: list[Literal]) -> bool:
        if any(_opposite(literal) in state.seen for literal in more):
            return False
        if len(more) == 1:
            match more[0]:
                case (False, parts.Property(name=name, node=node)):
                    return self.properties(frozenset(state.literals)).may_break(name, node)
                case (False, parts.Required() | parts.Among()):
                    return True
        trial = _BranchState(state.kind, list(more), set(state.seen), list(state.literals), [], state.values)
        return self._propagate(trial)

    def _is_implied(self, state: _BranchState, literal: Literal, depth: int) -> bool:
        """Nothing that fits the rest breaks the literal."""
        opposite = _BranchState(state.kind, [_opposite(literal)], set(), list(state.literals))
        opposite.seen.update(state.literals)
        outside, self._lowest = self._lowest, _FREE
        found = any(self.inhabited(branch, state.kind) for branch in self._search(opposite, depth + 1))
        is_final = self._lowest == _FREE
        self._lowest = outside
        return is_final and not found

    def _propagate(self, state: _BranchState) -> bool:
        """Take apart what leaves no choice. False if that is a contradiction."""
        seen, pending = state.seen, state.pending
        while pending:
            literal = pending.pop()
            if literal in seen:
                continue
            if _opposite(literal) in seen:
                return False
            seen.add(literal)
            alternatives = None if type(literal[1]) in PLAIN else self._expand(literal, state.kind)
            if alternatives is None:
                self._take(literal, state)
                if state.values is not None and not state.values:
                    return False
            elif not alternatives:
                return False
            elif len(alternatives) == 1:
                pending.extend(alternatives[0])
            else:
                state.deferred.append((literal, alternatives))
        return True

    def _take(self, literal: Literal, state: _BranchState) -> None:
        state.literals.append(literal)
        match literal:
            case (True, parts.Among(values=values)):
                few = frozenset(value for value in values if value[0] == state.kind)
            case (True, parts.Matches(pattern=pattern)) if (texts := language(pattern)) is not None:
                few = frozenset(("string", text) for text in texts)
            case _:
                return
        state.values = few if state.values is None else state.values & few

    def _expand(self, literal: Literal, kind: str) -> Alternatives | None:
        """The ways to satisfy the literal; None if it speaks directly of the value."""
        sign, item = literal
        make = self.table.part
        match item:
            case SchemaNode():
                said = item.by_kind[kind]
                return [[(True, part) for part in said]] if sign else [[(False, part)] for part in said]
            case parts.Kinds():
                return self._expand_kinds(sign, item, kind)
            case parts.Every(nodes=nodes) | parts.Some(nodes=nodes):
                together = isinstance(item, parts.Every) == sign
                return [[(sign, node) for node in nodes]] if together else [[(sign, node)] for node in nodes]
            case parts.One(nodes=nodes):
                return self._expand_one(sign, nodes, kind)
            case parts.Not(node=node):
                return [[(not sign, node)]]
            case parts.Conditional(condition=condition, then=then, otherwise=otherwise):
                return [[(True, condition), (sign, then)], [(False, condition), (sign, otherwise)]]
            case parts.Reference():
                return [[(sign, self.table.target(item))]]
            case parts.Least(limit=limit, excluded=excluded) if not sign:
                return [[(True, make(parts.Most, limit, not excluded))]]
            case parts.Most(limit=limit, excluded=excluded) if not sign:
                return [[(True, make(parts.Least, limit, not excluded))]]
            case parts.SizeLeast(count=count) if not sign:
                return [[(True, make(parts.SizeMost, kind, count - 1))]] if count else []
            case parts.SizeMost(count=count) if not sign:
                return [[(True, make(parts.SizeLeast, kind, count + 1))]]
            case parts.Contains(node=node, least=least, most=most) if not sign:
                fewer: list[list[Literal]] = [[(True, make(parts.Contains, node, 0, least - 1))]] if least else []
                more: list[list[Literal]] = []
                if most is not None:
                    more = [[(True, make(parts.Contains, node, most + 1, None))]]
                return fewer + more
            case parts.Dependent(name=name, node=node):
                present = make(parts.Required, name)
                if not sign:
                    return [[(True, present), (False, node)]]
                return [[(False, present)], [(True, present), (True, node)]]
            case _:
                return None

    def _expand_kinds(self, sign: bool, part: parts.Kinds, kind: str) -> Alternatives:
        if kind not in part.kinds:
            return [] if sign else [[]]
        if kind != "number" or not part.integer:
            return [[]] if sign else []
        literals: list[Literal] = [(sign, self.table.part(parts.Multiple, Fraction(1)))]
        if part.written:
            literals.append((sign, self.table.part(parts.Written)))
        return [literals] if sign else [[literal] for literal in literals]

    def _expand_one(self, sign: bool, nodes: tuple[SchemaNode, ...], kind: str) -> Alternatives:
        """Most often the nodes exclude each other; then there is no need to say so again."""
        possible = [node for node in nodes if self.satisfiable_as(frozenset([(True, node)]), kind)]
        overlapping = [
            (low, high)
            for high in range(len(possible))
            for low in range(high)
            if not self._is_surely_empty(frozenset([(True, possible[low]), (True, possible[high])]), kind)
        ]
        found: Alternatives
        if not sign:
            found = [[(False, node) for node in nodes]]
            found += [[(True, possible[low]), (True, possible[high])] for low, high in overlapping]
            return found
        found = [[(True, node)] for node in possible]
        for low, high in overlapping:
            found[low].append((False, possible[high]))
            found[high].append((False, possible[low]))
        return found

    def values(self, goal: Goal, kinds: Iterable[str] = KINDS) -> frozenset[Value] | None:
        """All values that fit, and perhaps some more, if they are few; else None."""
        if goal in self._being_listed:
            return None
        self._being_listed.add(goal)
        try:
            found: frozenset[Value] = frozenset()
            for kind in kinds:
                for branch in self.branches(goal, kind):
                    few = branch.values if branch.values is not None else self._listed(branch.literals, kind)
                    if few is None or len(few) + len(found) > VALUES_MAX:
                        return None
                    found |= few
            return found
        finally:
            self._being_listed.discard(goal)

    def _listed(self, literals: frozenset[Literal], kind: str) -> frozenset[Value] | None:
        candidates: list[Value] | None = None
        if kind == "number":
            numbers = few_numbers(literals)
            candidates = None if numbers is None else [("number", number) for number in numbers]
        elif kind == "string":
            candidates = [("string", "")] if _sizes(literals)[1] <= 0 else None
        elif kind == "array":
            candidates = few_arrays(ArrayShape.of(literals), self)
        elif kind == "object":
            candidates = self.properties(literals).few_objects()
        if candidates is None:
            return None
        self.step(len(candidates) // 16)
        return frozenset(value for value in candidates if self.judge.may_fit(literals, value))

    def properties(self, literals: frozenset[Literal]) -> Properties:
        """What the literals say of the properties of an object."""
        found = self._properties.get(literals)
        if found is None:
            self.step(2 + len(literals) // 16)
            shape = ObjectShape.of(literals)
            found = self._properties[literals] = Properties(shape, self, self.judge, self.table)
        return found

    def can_break(self, branch: Branch, part: parts.Part, kind: str) -> bool:
        """False only if the part holds for all values that satisfy the branch."""
        literals, values = branch
        if (True, part) in literals:
            return False
        if values is not None:
            return any(self.judge.holds((False, part), value) is not False for value in values)
        if isinstance(part, parts.Property) and not self.properties(literals).may_break(part.name, part.node):
            return False
        broken = _BranchState(kind, [(False, part)], set(literals), list(literals))
        return any(self.inhabited(each, kind) for each in self._search(broken, 0))

    def inhabited(self, branch: Branch, kind: str) -> bool:
        """False only if no value of the kind satisfies all literals of the branch."""
        literals, values = branch
        if values is not None:
            return bool(values)
        if kind == "number":
            return has_number(literals)
        if kind == "string":
            return self._has_string(literals)
        if kind == "array":
            return self._has_array(literals)
        return self._has_object(literals)

    def _has_string(self, literals: frozenset[Literal]) -> bool:
        least, most = _sizes(literals)
        if most <= 0:
            return least <= most and self.judge.may_fit(literals, ("string", ""))
        patterns = [(sign, item.pattern) for sign, item in literals if isinstance(item, parts.Matches)]
        start = ""
        for other in sorted(prefix(pattern) for sign, pattern in patterns if sign):
            if not other.startswith(start):
                return False
            start = other
        # `start` begins every such string, so a pattern that asks for less than that does match.
        is_refused = any(
            not sign and is_prefix(pattern) and start.startswith(pattern[1:]) for sign, pattern in patterns
        )
        return least <= most and len(start) <= most and not is_refused

    def _has_array(self, literals: frozenset[Literal]) -> bool:
        shape = ArrayShape.of(literals)
        if not shorten(shape, self):
            return False
        if shape.is_simple:
            return True
        few = self._listed(literals, "array")
        return has_array(shape, self) if few is None else bool(few)

    def _has_object(self, literals: frozenset[Literal]) -> bool:
        properties = self.properties(literals)
        if not properties.are_possible():
            return False
        few = self._listed(literals, "object") if properties.shape.is_excluding else None
        return properties.can_be_chosen() if few is None else bool(few)


def _opposite(literal: Literal) -> Literal:
    return (not literal[0], literal[1])


def _sizes(literals: Iterable[Literal]) -> tuple[int, float]:
    least, most = 0, inf
    for _, item in literals:
        if isinstance(item, parts.SizeLeast):
            least = max(least, item.count)
        elif isinstance(item, parts.SizeMost):
            most = min(most, item.count)
    return least, most
