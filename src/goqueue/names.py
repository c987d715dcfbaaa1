"""Names: the version of GoQueue, a partition of a topic, and the nearest known name to a mistyped one."""

from collections.abc import Iterable
from difflib import SequenceMatcher
from typing import NamedTuple

VERSION = "0.1.0"
_COMPARED_CHARS = 100
_ALIKE = 0.6


class TopicPartition(NamedTuple):
    """One partition of one topic: what positions and assignments are about."""

    topic: str
    partition: int


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that is most like the given one; None without known names."""
    return max(known, key=lambda other: _likeness(name, other), default=None)


def suggestion(name: str, known: Iterable[str]) -> str:
    """The end of an error about an unknown name: the nearest known name if it is similar, else all of them."""
    names = list(known)
    best = nearest(name, names)
    if best is None:
        return "there are none"
    return f"did you mean {best}?" if _likeness(name, best) >= _ALIKE else f"known are {', '.join(names)}"


def _likeness(name: str, other: str) -> float:
    return SequenceMatcher(None, name[:_COMPARED_CHARS].lower(), other.lower()).ratio()
