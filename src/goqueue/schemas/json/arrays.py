"""Whether there is an array that satisfies some literals: which items may stand where, how many, and how different.

What is said of an item is a goal of its own. Items are told apart by what else is asked of them: `contains` and the
negation of `items` ask for some that fit, wherever they stand. That is decided by counting; up to `COUNT_MAX`.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import product
from math import inf, prod
from typing import Final, Protocol

from goqueue.schemas.json.parts import (
    Among,
    Contains,
    Goal,
    ItemAt,
    ItemsFrom,
    Literal,
    SchemaNode,
    SizeLeast,
    SizeMost,
    Unique,
    Value,
)

COUNT_MAX: Final = 64
"""Items are counted up to here: a `minContains` beyond it is taken for possible."""
SORTS_MAX: Final = 5
"""So many conditions on how many items fit are combined in every way."""
ARRAYS_MAX: Final = 1024
"""So many arrays of few items are held against all conditions one by one."""


class Answers(Protocol):
    """What has to be known of items and properties."""

    def satisfiable(self, goal: Goal) -> bool:
        """False only if no value fits the goal."""

    def satisfiable_as(self, goal: Goal, kind: str) -> bool:
        """False only if no value of the kind fits the goal."""

    def values(self, goal: Goal, kinds: Iterable[str] = ...) -> frozenset[Value] | None:
        """All values that fit the goal, and perhaps some more, if they are few."""

    def step(self, count: int = 1) -> None:
        """Count the work; raises `TooComplex`."""


@dataclass(slots=True)
class ArrayShape:
    """What the literals say of an array."""

    least: int = 0
    most: float = inf
    at: dict[int, set[tuple[bool, SchemaNode]]] = field(default_factory=dict)
    onward: list[tuple[int, tuple[bool, SchemaNode]]] = field(default_factory=list)
    wanted: list[tuple[int, tuple[bool, SchemaNode], int]] = field(default_factory=list)  # from where, what, how many
    capped: list[tuple[SchemaNode, int]] = field(default_factory=list)
    unique: bool | None = None
    is_excluding: bool = False

    @classmethod
    def of(cls, literals: Iterable[Literal]) -> "ArrayShape":
        """The literals, sorted by what they speak of."""
        found = cls()
        for sign, item in literals:
            match item:
                case SizeLeast(count=count):
                    found.least = max(found.least, count)
                case SizeMost(count=count):
                    found.most = min(found.most, count)
                case ItemAt(index=index, node=node):
                    found.at.setdefault(index, set()).add((sign, node))
                    if not sign:
                        found.least = max(found.least, index + 1)
                case ItemsFrom(start=start, node=node) if sign:
                    found.onward.append((start, (True, node)))
                case ItemsFrom(start=start, node=node):
                    found.wanted.append((start, (False, node), 1))
                case Contains(node=node, least=least, most=most):
                    if least:
                        found.wanted.append((0, (True, node), least))
                    if most == 0:
                        found.onward.append((0, (False, node)))
                    elif most is not None:
                        found.capped.append((node, most))
                case Unique():
                    found.unique = sign
                case Among():
                    found.is_excluding = True
        return found

    @property
    def is_simple(self) -> bool:
        """Nothing is asked but of single items, and how many there are."""
        return not (self.wanted or self.capped or self.is_excluding) and self.unique is None

    def goal(self, index: int) -> Goal:
        """What is asked of the item at this index."""
        return frozenset(self.at.get(index, set()).union(literal for start, literal in self.onward if start <= index))

    def alike_from(self) -> int:
        """From this index on all items are under the same conditions."""
        starts = [start for start, _ in self.onward] + [start for start, *_ in self.wanted]
        return max((0, *(index + 1 for index in self.at), *starts))


def shorten(shape: ArrayShape, answers: Answers) -> bool:
    """Lower the maximum to where an item can no longer stand; False if that is too short."""
    if shape.least > shape.most:
        return False
    for index in range(int(min(shape.alike_from() + 1, shape.most))):
        if not answers.satisfiable(shape.goal(index)):
            shape.most = index
            break
    return shape.least <= shape.most


def has_array(shape: ArrayShape, answers: Answers) -> bool:
    """False only if there is no such array; what is excluded is not looked at."""
    if shape.unique and not _can_be_unique(shape, answers):
        return False
    if shape.unique is False:
        return _can_repeat(shape, answers)
    return _can_be_counted(shape, answers)


def _can_be_unique(shape: ArrayShape, answers: Answers) -> bool:
    """Whether the items that there must be can all be different."""
    alike_from = shape.alike_from()
    if alike_from == 0:
        for _, literal, count in shape.wanted:
            few = answers.values(shape.goal(0) | {literal})
            if few is not None and len(few) < count:
                return False
    sets: list[frozenset[Value]] = []
    for index in range(min(shape.least, alike_from + ARRAYS_MAX)):
        few = sets[-1] if index > alike_from else answers.values(shape.goal(index))
        if few is not None:
            sets.append(few)
        elif index >= alike_from:
            break
    return _have_representatives(sets)


def _have_representatives(sets: list[frozenset[Value]]) -> bool:
    """Whether a value can be taken from each set such that all are different (by augmenting paths)."""
    taken: dict[Value, int] = {}

    def take(index: int, tried: set[Value]) -> bool:
        for value in sets[index] - tried:
            tried.add(value)
            if value not in taken or take(taken[value], tried):
                taken[value] = index
                return True
        return False

    if len(sets) > len(frozenset[Value]().union(*sets)):
        return False
    return len(sets) > COUNT_MAX or all(take(index, set()) for index in range(len(sets)))


def _can_repeat(shape: ArrayShape, answers: Answers) -> bool:
    """Whether two of the items can be equal, beside all else."""
    alike_from = shape.alike_from()
    needs = sum(count for *_, count in shape.wanted)
    count = int(min(shape.most, alike_from + needs + 2))
    if count > COUNT_MAX:
        return True
    goals = [shape.goal(index) for index in range(count)]
    for high in range(count):
        for low in range(high):
            both = goals[low] | goals[high]
            if answers.satisfiable(both):
                with_both = {**shape.at, low: set(both), high: set(both)}
                if _can_be_counted(replace(shape, least=max(shape.least, high + 1), at=with_both), answers):
                    return True
    return False


def _can_be_counted(shape: ArrayShape, answers: Answers) -> bool:
    """Whether there can be as many items of each sort as there must, and no more than may.

    Each item either fits or misfits each node that is counted. So an array is a word over such sorts of items, and all
    that matters of its beginning is how much was counted, up to the limits.
    """
    nodes = list(dict.fromkeys([literal[1] for _, literal, _ in shape.wanted] + [node for node, _ in shape.capped]))
    needs, caps = [count for *_, count in shape.wanted], [most for _, most in shape.capped]
    alike_from = shape.alike_from()
    if not nodes or len(nodes) > SORTS_MAX or max(alike_from, sum(needs), sum(caps)) > COUNT_MAX:
        return True
    # Beyond this length there is an item that counts nowhere, which could as well be left out or stand again.
    enough = alike_from + sum(needs) + sum(caps) + 1
    least, most = min(shape.least, enough), min(shape.most, enough)
    reached = {(0,) * (len(needs) + len(caps))}
    sorts: list[tuple[bool, ...]] = []
    for length in range(int(most) + 1):
        if length >= least and any(list(counts[: len(needs)]) == needs for counts in reached):
            return True
        if length <= alike_from:
            goal = shape.goal(length)
            signs = product((True, False), repeat=len(nodes))
            sorts = [sort for sort in signs if answers.satisfiable(goal | set(zip(sort, nodes, strict=True)))]
        answers.step()
        following: set[tuple[int, ...]] = set()
        for sort in sorts:
            fits = dict(zip(nodes, sort, strict=True))
            found = [length >= start and fits[node] == sign for start, (sign, node), _ in shape.wanted]
            surplus = [fits[node] for node, _ in shape.capped]
            for counts in reached:
                needed = [min(*pair) for pair in zip(map(int.__add__, counts, found), needs, strict=False)]
                spent = list(map(int.__add__, counts[len(needs) :], surplus))
                if all(map(int.__le__, spent, caps)):
                    following.add((*needed, *spent))
        reached = following
    return False


def few_arrays(shape: ArrayShape, answers: Answers) -> list[Value] | None:
    """All arrays with such items and sizes, and perhaps some more, if they are few."""
    columns: list[frozenset[Value]] = []
    while len(columns) < shape.most:
        few = answers.values(shape.goal(len(columns)))
        if few is None or prod(map(len, columns)) * len(few) > ARRAYS_MAX or len(columns) > COUNT_MAX:
            return None
        if not few or (shape.unique and not _have_representatives([*columns, few])):
            break
        columns.append(few)
    found: list[Value] = []
    for length in range(shape.least, len(columns) + 1):
        if len(found) + prod(map(len, columns[:length])) > ARRAYS_MAX:
            return None
        found.extend(("array", items) for items in product(*columns[:length]))
    return found
