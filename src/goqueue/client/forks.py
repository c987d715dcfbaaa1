"""Whether this process is the one that made an object: a forked child has the memory of its parent, not its threads."""

import os
from collections.abc import Callable
from weakref import WeakMethod

generation = 0
"""One more in the child after each fork. An object that has noted another number belongs to the parent."""

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
