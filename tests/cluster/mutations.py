"""Bugs that are seeded on purpose: a module of the cluster with one place in its text changed.

`mutated` compiles the module from its changed text, and all modules that build on it anew, so that they use the bug.
A test takes the modules that it tests as an argument; `test_mutations.py` runs it with a bug, and it has to fail.
"""

import sys
from dataclasses import dataclass, fields, replace
from importlib import import_module
from pathlib import Path
from types import ModuleType

PACKAGE = "goqueue.cluster"


@dataclass(frozen=True)
class Modules:
    """The modules of the cluster that are tested; a module stands after those that it imports."""

    metadata: ModuleType
    drafts: ModuleType
    elections: ModuleType
    leadership: ModuleType
    placement: ModuleType
    registrations: ModuleType
    sessions: ModuleType
    administration: ModuleType
    controller: ModuleType


ORDER = tuple(field.name for field in fields(Modules))
ORIGINAL = Modules(**{name: import_module(f"{PACKAGE}.{name}") for name in ORDER})


def mutated(name: str, *, old: str, new: str) -> Modules:
    """The modules with `old` replaced by `new` in the module `name`; `old` has to occur once."""
    assert name in ORDER
    built = ORIGINAL
    try:
        for later in ORDER[ORDER.index(name) :]:
            source = Path(str(getattr(ORIGINAL, later).__file__)).read_text()
            if later == name:
                assert source.count(old) == 1, f"{old!r} occurs {source.count(old)} times in {name}"
                source = source.replace(old, new)
            module = ModuleType(f"{PACKAGE}.{later}")
            sys.modules[module.__name__] = module  # what is compiled after it imports this one
            exec(compile(source, f"<{later} with a bug>", "exec"), module.__dict__)
            built = replace(built, **{later: module})
    finally:
        for each in ORDER:
            sys.modules[f"{PACKAGE}.{each}"] = getattr(ORIGINAL, each)
    return built
