"""Whether this process is still the one that made a thing: a child has its parent's memory, but not its threads."""

import os
from collections.abc import Callable
from weakref import WeakMethod

generation = 0
"""Rises in the child at each fork."""

_told: list[WeakMethod[Callable[[], None]]] = []


def tell(method: Callable[[], None]) -> None:
    """Call the bound method in a child, right after the fork, for as long as its object lives."""
    _told[:] = [known for known in _told if known() is not None]
    _told.append(WeakMethod(method))


def _forked() -> None:
    global generation  # noqa: PLW0603 - the one fact about a process that has no owner
    generation += 1
    for known in _told:
        method = known()
        if method is not None:
            method()


os.register_at_fork(after_in_child=_forked)
