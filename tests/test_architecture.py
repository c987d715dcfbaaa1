"""The architecture, as far as a test can see it: who imports whom, and which calls are nobody's business."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

import goqueue

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "goqueue"
SOURCES = sorted(PACKAGE.rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("*.py"))

# A layer imports only lower ones; `|` means siblings that never import each other.
LAYERS = (
    "cli | testing",
    "spark | server",
    "client | doors",
    "cluster",
    "broker",
    "delivery | groups | transactions | schemas | security",
    "service",
    "topics",
    "storage | wire | tracing | metrics",
    "record | times",
    "errors | clock | names | events | backoff | runtime",
)
CLIENT_SEES = {"record", "times", "wire", "tracing.context", "errors", "clock", "names", "backoff", "runtime"}
SPARK_SEES = CLIENT_SEES | {"client", "schemas", "storage.layout"}  # typed values, and segments as files

# Pure packages take facts and `now`, and touch nothing.
PURE = {
    "delivery",
    "groups",
    "transactions",
    "schemas",
    "security",
    "service",
    "wire",
    "client.accumulator",
    "client.publish_engine",
    "cluster.administration",
    "cluster.controller",
    "cluster.drafts",
    "cluster.elections",
    "cluster.leadership",
    "cluster.metadata",
    "cluster.metadata_file_format",
    "cluster.metadata_log",
    "cluster.messages",
    "cluster.placement",
    "cluster.records",
    "cluster.reports",
    "cluster.registrations",
    "cluster.sessions",
    "cluster.timing",
    "spark.plan",
    "times",
    "storage.retention",
    "storage.walk",
    "storage.layout",
    "record.header",
    "record.headers",
    "record._kernel_py",
}

SYSTEM = {
    "storage.file",
    "record.kernel",
    "testing",
    "cli",
    "server",
    "doors",
    "spark",
    "client.environment",
    "client.forks",
    "runtime",
}
THREADS = {
    "storage.jobs",
    "testing",
    "client",
    "server",
    "doors",
    "cli",
    "spark.pipelines",
    "cluster.file_log",  # waits for the disk outside the event loop
}

# Which modules are whose. What is in no table is anyone's.
MODULES_ONLY_IN: dict[str, set[str]] = {
    **dict.fromkeys(("os", "posix", "io", "pathlib", "glob", "tempfile", "shutil", "mmap", "subprocess"), SYSTEM),
    **dict.fromkeys(("threading", "_thread", "concurrent"), THREADS),
    "multiprocessing": {"cli"},
    "time": {"clock"},  # everyone else is told the time
    "random": {"testing", "runtime.entropy"},  # a run that draws its own numbers cannot be replayed
    "secrets": {"runtime.entropy"},
    "fcntl": {"storage.file", "spark.pipelines.store"},  # a lock that ends with its holder
    "socket": {"doors", "client", "cluster.link", "server", "spark.daemon"},
    "grpc": {"cluster.etcd_client"},  # an extra: a single node, and a client, run without it
    "importlib": {"record.kernel", "spark.python", ""},  # this file sees only imports that are statements
    "builtins": set(),
    "goqueue": {"cli"},  # the package as a whole: it stands above all that it exports
}
IMPURE_MODULES = MODULES_ONLY_IN.keys() | {"asyncio", "logging"}

# The same for what needs no import.
BUILTINS_ONLY_IN: dict[str, set[str]] = {
    "open": SYSTEM,
    "__import__": {"record.kernel"},
    "eval": set(),
    "exec": set(),
}
WALL_CLOCK = {"now", "utcnow", "today"}  # of datetime and date
WALL_CLOCK_ONLY_IN = {"clock", "cli"}

# The tests of a module of these packages are in a file of its name, in the same place below tests/.
MIRRORED = {"broker", "client"}
TESTED_ELSEWHERE = {
    "client.sync_admin": "scripts/derive-client writes it along with sync.py; tests/client/test_sync.py checks both",
}

# What is larger says at its top why it has to be.
LINES_MAX = 800
METHODS_MAX = 40
WHY_SO_LONG = re.compile(r"\bOver 800 lines\b")
WHY_SO_MANY = re.compile(r"# .*\b\d+ methods\b")

# A test waits for a fact, not for a time; and it has the fakes of goqueue.testing.
NOT_IN_TESTS = ("sleep", "mock", "monkeypatch")


def module_name(path: Path) -> str:
    """The name below `goqueue`: `storage.log` for src/goqueue/storage/log.py."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__")


def imports(tree: ast.AST) -> Iterator[str]:
    """Every module that is imported, `from a import b` as `a.b`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def identifiers(tree: ast.AST) -> Iterator[str]:
    """Every name that is used or imported; where it is defined does not count."""
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name):
                yield name
            case ast.Import() | ast.ImportFrom():
                yield from ".".join(imports(node)).split(".")


def top_level(imported: str) -> str:
    """The package that the name is imported from; our own only if it is imported as a whole."""
    return "" if imported.startswith("goqueue.") else imported.partition(".")[0]


def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def own_imports(path: Path) -> Iterator[str]:
    return (name.removeprefix("goqueue.") for name in imports(parse(path)) if name.startswith("goqueue."))


def belongs(name: str, packages: set[str]) -> bool:
    return any(name == package or name.startswith(package + ".") for package in packages)


LAYER_OF = {package: (depth, package) for depth, layer in enumerate(reversed(LAYERS)) for package in layer.split(" | ")}


@pytest.mark.parametrize("path", SOURCES, ids=module_name)
def test_a_module_imports_only_what_lies_below_it(path: Path) -> None:
    package = module_name(path).partition(".")[0]
    if not package:
        return
    assert package in LAYER_OF, f"{package} is in no layer"
    for imported in own_imports(path):
        target = imported.partition(".")[0]
        if target in goqueue.__all__:
            assert package == "cli", f"{package} imports the public {imported}"
        elif target != package:
            assert target in LAYER_OF, f"{imported} is in no layer"
            assert LAYER_OF[target][0] < LAYER_OF[package][0], f"{package} imports {imported}"


def test_the_client_sees_no_broker_code() -> None:
    for path in SOURCES:
        if belongs(module_name(path), {"client"}):
            for imported in own_imports(path):
                assert belongs(imported, CLIENT_SEES | {"client"}), f"{path} imports {imported}"


def test_the_pipeline_sees_no_broker_code() -> None:
    for path in SOURCES:
        if belongs(module_name(path), {"spark"}):
            for imported in own_imports(path):
                assert belongs(imported, SPARK_SEES | {"spark"}), f"{path} imports {imported}"


def misplaced(name: str, tree: ast.AST) -> Iterator[str]:
    """What the module of that name uses though it is not its business."""
    modules = set(map(top_level, imports(tree)))
    if belongs(name, PURE):
        yield from modules & IMPURE_MODULES
    for module, homes in MODULES_ONLY_IN.items():
        if module in modules and not belongs(name, homes):
            yield module
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    for builtin, homes in BUILTINS_ONLY_IN.items():
        if builtin in names and (belongs(name, PURE) or not belongs(name, homes)):
            yield builtin
    if "datetime" in modules and not belongs(name, WALL_CLOCK_ONLY_IN):
        yield from WALL_CLOCK & set(identifiers(tree))


@pytest.mark.parametrize("path", SOURCES, ids=module_name)
def test_a_module_uses_only_what_is_its_business(path: Path) -> None:
    assert set(misplaced(module_name(path), parse(path))) == set()


@pytest.mark.parametrize(
    ("name", "source", "found"),
    [
        ("storage.log", "import pathlib", "pathlib"),
        ("storage.log", "from pathlib import Path", "pathlib"),
        ("storage.log", "import tempfile", "tempfile"),
        ("storage.log", "import shutil as s", "shutil"),
        ("storage.log", "import mmap", "mmap"),
        ("storage.log", "from posix import fsync", "posix"),
        ("storage.log", "from os.path import exists", "os"),
        ("storage.log", "def read():\n    import subprocess", "subprocess"),
        ("storage.log", "from random import Random", "random"),
        ("storage.log", "from threading import Lock", "threading"),
        ("storage.log", "open('x')", "open"),
        ("storage.log", "f = open", "open"),
        ("storage.log", "from builtins import open as o", "builtins"),
        ("storage.log", "__import__('os')", "__import__"),
        ("storage.log", "from importlib import import_module", "importlib"),
        ("storage.log", "import importlib.util", "importlib"),
        ("storage.log", "import goqueue", "goqueue"),
        ("storage.log", "import datetime\ndatetime.datetime.now()", "now"),
        ("record.message", "from datetime import datetime as d\nd.utcnow()", "utcnow"),
        ("record.message", "from datetime import date\nclock = date.today", "today"),
        ("record.message", "import random", "random"),
        ("delivery.retry", "import pathlib", "pathlib"),
        ("delivery.retry", "open('x')", "open"),
        ("spark.plan", "open('x')", "open"),
        ("spark.plan", "import pathlib", "pathlib"),
        ("broker.publish", "import time", "time"),
    ],
)
def test_what_is_misplaced_is_found(name: str, source: str, found: str) -> None:
    assert set(misplaced(name, ast.parse(source))) == {found}


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("storage.file", "import os, fcntl, mmap"),
        ("storage.jobs", "from threading import Lock"),
        ("storage.log", "from goqueue import events"),
        ("storage.log", "disk.open('x')\nclock.now()"),
        ("record.message", "from datetime import datetime\ndatetime(1970, 1, 1)"),
        ("testing.faulty_disk", "from random import Random"),
        ("cli.app", "import goqueue, pathlib, tempfile\nfrom datetime import datetime\ndatetime.now()"),
    ],
)
def test_what_is_in_its_place_is_not(name: str, source: str) -> None:
    assert list(misplaced(name, ast.parse(source))) == []


def test_no_import_goes_round_in_a_circle() -> None:
    names = {module_name(path): path for path in SOURCES}
    graph = {
        name: {
            target
            for imported in own_imports(path)
            for target in (imported, imported.rpartition(".")[0])
            if target in names and target not in ("", name)
        }
        for name, path in names.items()
    }
    done: set[str] = set()

    def visit(name: str, trail: tuple[str, ...]) -> None:
        assert name not in trail, " -> ".join((*trail, name))
        if name not in done:
            for target in graph[name]:
                visit(target, (*trail, name))
            done.add(name)

    for name in graph:
        visit(name, ())


def test_a_class_name_is_defined_in_one_module() -> None:
    homes: dict[str, set[str]] = defaultdict(set)
    for path in SOURCES:
        for node in ast.walk(parse(path)):
            if isinstance(node, ast.ClassDef):
                homes[node.name].add(module_name(path))
    assert {name: sorted(modules) for name, modules in homes.items() if len(modules) > 1} == {}


@pytest.mark.parametrize("path", SOURCES, ids=module_name)
def test_every_module_opens_with_its_theory(path: Path) -> None:
    assert ast.get_docstring(parse(path))


@pytest.mark.parametrize("path", [path for path in SOURCES if path.name == "__init__.py"], ids=module_name)
def test_inner_packages_hold_a_docstring_and_no_code(path: Path) -> None:
    if module_name(path) in ("", "testing", "spark", "spark.pipelines"):
        return
    assert len(parse(path).body) == 1


def file_of_tests(name: str) -> Path:
    """Where the tests of the module are: tests/storage/test_log.py for `storage.log`."""
    *folders, module = name.split(".")
    return ROOT.joinpath("tests", *folders, f"test_{module}.py")


@pytest.mark.parametrize(
    "name",
    [name for path in SOURCES if path.name != "__init__.py" and belongs(name := module_name(path), MIRRORED)],
)
def test_a_module_has_tests_of_its_name_in_the_same_place(name: str) -> None:
    path = file_of_tests(name)
    if name in TESTED_ELSEWHERE:
        assert not path.exists(), "it is no exception any more"
        return
    assert path in TESTS, f"{path} is missing"
    assert any(isinstance(node, ast.FunctionDef) and node.name.startswith("test_") for node in ast.walk(parse(path)))


def test_an_exception_is_a_module_that_exists() -> None:
    assert TESTED_ELSEWHERE.keys() <= {module_name(path) for path in SOURCES}


def is_too_long(source: str) -> bool:
    """Whether the file is long, and its first hundred lines do not say why."""
    lines = source.splitlines()
    return len(lines) > LINES_MAX and not WHY_SO_LONG.search("\n".join(lines[:100]))


def too_large_classes(source: str) -> Iterator[str]:
    """Classes with many methods, where no comment above or at the top of the class says why."""
    lines = source.splitlines()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ClassDef):
            methods = [one for one in node.body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)]
            if len(methods) > METHODS_MAX:
                above = lines[max(0, node.lineno - 4) : node.lineno - 1]
                if not WHY_SO_MANY.search("\n".join(above + lines[node.lineno : methods[0].lineno])):
                    yield node.name


@pytest.mark.parametrize("path", [*SOURCES, PACKAGE / "record" / "_kernel.c"], ids=lambda path: path.name)
def test_a_long_file_and_a_large_class_say_why_they_have_to_be(path: Path) -> None:
    source = path.read_text()

    assert not is_too_long(source)
    if path.suffix == ".py":
        assert list(too_large_classes(source)) == []


def test_a_file_or_a_class_that_does_not_say_why_it_is_large_is_found() -> None:
    methods = "".join(f"    def method_{number}(self): ...\n" for number in range(METHODS_MAX + 1))

    assert is_too_long("x = 1\n" * (LINES_MAX + 1))
    assert not is_too_long("# Over 800 lines, because\n" + "x = 1\n" * LINES_MAX)
    assert list(too_large_classes(f"class Large:\n{methods}")) == ["Large"]
    assert list(too_large_classes(f"class Large:\n    # More than 40 methods: because\n{methods}")) == []
    assert list(too_large_classes(f"# More than 40 methods: because\nclass Large:\n{methods}")) == []


def shortcuts(tree: ast.AST) -> list[str]:
    """What a test uses though no test should."""
    return [name for name in identifiers(tree) if any(word in name.lower() for word in NOT_IN_TESTS)]


@pytest.mark.parametrize("path", TESTS, ids=lambda path: path.name)
def test_tests_neither_sleep_nor_mock(path: Path) -> None:
    assert shortcuts(parse(path)) == []


@pytest.mark.parametrize(
    "source",
    [
        "time.sleep(1)",
        "import time as t\nt.sleep(1)",
        "from time import sleep",
        "from time import sleep as rest\nrest(1)",
        "import unittest.mock",
        "from unittest import mock as m",
        "from unittest.mock import patch",
        "def test_it(monkeypatch): ...",
        "def test_it(mocker): ...",
        "with pytest.MonkeyPatch.context() as patch: ...",
    ],
)
def test_a_test_that_sleeps_or_mocks_is_found(source: str) -> None:
    assert shortcuts(ast.parse(source))


def test_there_is_one_c_file() -> None:
    found = [
        path.relative_to(ROOT) for path in (ROOT / "src").rglob("*") if path.suffix in (".c", ".h", ".pyx", ".cpp")
    ]
    assert found == [Path("src/goqueue/record/_kernel.c")]
