"""The arithmetic of `minimum`, `maximum`, `multipleOf` and their negations, exact, in fractions."""

from collections.abc import Iterable
from fractions import Fraction
from math import ceil, floor, gcd, lcm
from typing import Final, NamedTuple

from goqueue.schemas.json.parts import Among, Least, Literal, Most, Multiple

NUMBERS_MAX: Final = 256
"""So many numbers between two bounds are looked at one by one, beside those that are excluded."""


class _Range(NamedTuple):
    low: tuple[Fraction, bool] | None
    high: tuple[Fraction, bool] | None
    step: Fraction | None
    avoided: list[Fraction]
    excluded: set[object]


def _range(literals: Iterable[Literal]) -> _Range:
    low = high = step = None
    avoided: list[Fraction] = []
    excluded: set[object] = set()
    for sign, item in literals:
        match item:
            case Least(limit=limit, excluded=is_excluded):
                low = max(low or (limit, is_excluded), (limit, is_excluded))
            case Most(limit=limit, excluded=is_excluded):
                high = min(high or (limit, not is_excluded), (limit, not is_excluded))
            case Multiple(of=of) if sign:
                step = of if step is None else _common_multiple(step, of)
            case Multiple(of=of):
                avoided.append(of)
            case Among(values=values):
                excluded.update(content for kind, content in values if kind == "number")
    return _Range(low, None if high is None else (high[0], not high[1]), step, avoided, excluded)


def _common_multiple(one: Fraction, other: Fraction) -> Fraction:
    return Fraction(lcm(one.numerator, other.numerator), gcd(one.denominator, other.denominator))


def _steps(found: _Range) -> range | None:
    """Which multiples of the step lie in the range, if they are finitely many."""
    if found.low is None or found.high is None or found.step is None:
        return None
    (low, is_low_excluded), (high, is_high_excluded), step = found.low, found.high, found.step
    first = floor(low / step) + 1 if is_low_excluded else ceil(low / step)
    last = ceil(high / step) - 1 if is_high_excluded else floor(high / step)
    return range(first, last + 1)


def has_number(literals: Iterable[Literal]) -> bool:
    """False only if no number satisfies all of the literals."""
    found = _range(literals)
    if found.step is not None and any((found.step / each).denominator == 1 for each in found.avoided):
        return False
    if found.low is not None and found.high is not None:
        if found.low[0] > found.high[0]:
            return False
        if found.low[0] == found.high[0]:
            number = found.low[0]
            is_multiple = found.step is None or (number / found.step).denominator == 1
            is_in = is_multiple and not found.low[1] and not found.high[1]
            return is_in and _is_left(number, found)
    steps = _steps(found)
    if steps is None:
        return True
    assert found.step is not None
    looked_at = steps[: NUMBERS_MAX + len(found.excluded)]
    is_more = looked_at.stop < steps.stop  # a range may be too long for len()
    return is_more or any(_is_left(step * found.step, found) for step in looked_at)


def _is_left(number: Fraction, found: _Range) -> bool:
    return number not in found.excluded and not any((number / each).denominator == 1 for each in found.avoided)


def few_numbers(literals: Iterable[Literal]) -> list[Fraction] | None:
    """All numbers in the range, if they are few."""
    found = _range(literals)
    if found.low is not None and found.high is not None and found.low[0] == found.high[0]:
        return [found.low[0]]
    steps = _steps(found)
    if steps is None or found.step is None or steps.stop - steps.start > NUMBERS_MAX:
        return None
    return [step * found.step for step in steps]
