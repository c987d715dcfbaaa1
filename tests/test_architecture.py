"""The architecture, as far as a test can see it: who imports whom, and which calls are nobody's business."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

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
    "delivery | groups | transactions | schemas | tenancy",
    "topics",
    "storage | wire | tracing | metrics",
    "record",
    "errors | clock | names | events | backoff",
)
CLIENT_SEES = {"record", "wire", "tracing.context", "errors", "clock", "names", "backoff"}

# Pure packages take facts and `now`, and touch nothing.
PURE = {
    "delivery",
    "groups",
    "transactions",
    "schemas",
    "tenancy",
    "cluster.consensus",
    "wire",
    "client.accumulator",
    "spark.plan",
    "storage.retention",
    "storage.walk",
    "storage.layout",
    "record.header",
    "record.headers",
    "record._kernel_py",
}
IMPURE_MODULES = {"os", "io", "time", "random", "socket", "asyncio", "threading", "logging", "subprocess"}

ONLY_IN = {
    "time": {"clock"},  # everyone else is told the time
    "fcntl": {"storage.file"},
    "socket": {"doors", "client", "cluster.link", "server"},
}
OS_IS_FOR = {"storage.file", "record.kernel", "testing", "cli", "server", "doors", "spark"}


def module_name(path: Path) -> str:
    """The name below `goqueue`: `storage.log` for src/goqueue/storage/log.py."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__")


def imports(path: Path) -> Iterator[str]:
    """Every module that a file imports, `from a import b` as `a.b`."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def own_imports(path: Path) -> Iterator[str]:
    return (name.removeprefix("goqueue.") for name in imports(path) if name.startswith("goqueue."))


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
        if target != package:
            assert target in LAYER_OF, f"{imported} is in no layer"
            assert LAYER_OF[target][0] < LAYER_OF[package][0], f"{package} imports {imported}"


def test_the_client_sees_no_broker_code() -> None:
    for path in SOURCES:
        if belongs(module_name(path), {"client"}):
            for imported in own_imports(path):
                assert belongs(imported, CLIENT_SEES | {"client"}), f"{path} imports {imported}"


@pytest.mark.parametrize("path", [path for path in SOURCES if belongs(module_name(path), PURE)], ids=module_name)
def test_pure_packages_touch_nothing(path: Path) -> None:
    touched = {name.partition(".")[0] for name in imports(path)} & IMPURE_MODULES
    assert not touched


@pytest.mark.parametrize("path", SOURCES, ids=module_name)
def test_time_locks_and_sockets_are_used_where_they_belong(path: Path) -> None:
    name = module_name(path)
    used = {imported.partition(".")[0] for imported in imports(path)}
    for module, homes in ONLY_IN.items():
        assert module not in used or belongs(name, homes), f"{name} uses {module}"
    assert "os" not in used or belongs(name, OS_IS_FOR), f"{name} uses os"


def test_no_import_goes_round_in_a_circle() -> None:
    names = {module_name(path): path for path in SOURCES}
    graph = {
        name: {
            target
            for imported in own_imports(path)
            for target in (imported, imported.rpartition(".")[0])
            if target in names and target != name
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


@pytest.mark.parametrize("path", SOURCES, ids=module_name)
def test_every_module_opens_with_its_theory(path: Path) -> None:
    assert ast.get_docstring(ast.parse(path.read_text()))


@pytest.mark.parametrize("path", [path for path in SOURCES if path.name == "__init__.py"], ids=module_name)
def test_inner_packages_hold_a_docstring_and_no_code(path: Path) -> None:
    if module_name(path) in ("", "testing", "spark"):
        return
    assert len(ast.parse(path.read_text()).body) == 1


@pytest.mark.parametrize("path", TESTS, ids=lambda path: path.name)
def test_tests_neither_sleep_nor_mock(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            assert called not in ("time.sleep", "sleep"), f"{path}:{node.lineno} sleeps"
            assert "mock" not in called.lower(), f"{path}:{node.lineno} mocks"
        if isinstance(node, ast.Import | ast.ImportFrom):
            assert "mock" not in ast.unparse(node), f"{path}:{node.lineno} mocks"


def test_there_is_one_c_file() -> None:
    found = [
        path.relative_to(ROOT) for path in (ROOT / "src").rglob("*") if path.suffix in (".c", ".h", ".pyx", ".cpp")
    ]
    assert found == [Path("src/goqueue/record/_kernel.c")]
