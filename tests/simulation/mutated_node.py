"""Nodes with a bug that is seeded on purpose: a module of the cluster with one place in its text changed.

The module is compiled from its changed text, and all modules of the cluster that build on it anew, up to the node, so
that they use the bug. `tests/cluster/mutations.py` does the same for the pure modules and their unit tests.
"""

import ast
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

import goqueue.cluster
from goqueue.cluster.node import Node

PACKAGE = "goqueue.cluster"
FOLDER = Path(str(goqueue.cluster.__file__)).parent


def imported_by(name: str) -> list[str]:
    """The modules of the cluster that this one imports."""
    tree = ast.parse((FOLDER / f"{name}.py").read_text())
    modules = [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    return [module.removeprefix(f"{PACKAGE}.") for module in modules if module.startswith(f"{PACKAGE}.")]


def in_order(name: str, done: dict[str, None]) -> dict[str, None]:
    """What the module is built of, and the module itself; each stands after those that it imports."""
    if name not in done:
        for other in imported_by(name):
            in_order(other, done)
        done[name] = None
    return done


def mutated_node(name: str, old: str, new: str) -> type[Node]:
    """The class of nodes with `old` replaced by `new` in the module `name`; `old` has to occur once."""
    changed: dict[str, ModuleType] = {}
    originals: dict[str, ModuleType] = {}
    try:
        for module_name in in_order("node", {}):
            if module_name != name and not changed.keys() & set(imported_by(module_name)):
                continue
            original = originals[module_name] = import_module(f"{PACKAGE}.{module_name}")
            source = (FOLDER / f"{module_name}.py").read_text()
            if module_name == name:
                assert source.count(old) == 1, f"{old!r} occurs {source.count(old)} times in {name}"
                source = source.replace(old, new)
            module = changed[module_name] = ModuleType(original.__name__)
            sys.modules[module.__name__] = module  # what is compiled after it imports this one
            exec(compile(source, f"<{module_name} with a bug>", "exec"), module.__dict__)
    finally:
        for original in originals.values():
            sys.modules[original.__name__] = original
    assert name in changed, f"no node uses {name}"
    mutated: type[Node] = changed["node"].Node
    return mutated
