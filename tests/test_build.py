"""The package installs with a compiler and without one."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    copy = tmp_path / "goqueue"
    copy.mkdir()
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    shutil.copytree(ROOT / "src", copy / "src", ignore=shutil.ignore_patterns("*.so", "*.egg-info", "__pycache__"))
    return copy


def build(sources: Path, **environment: str) -> str:
    """Build in place and say which kernel the result runs on."""
    environment = os.environ | environment
    command = [sys.executable, "setup.py", "-q", "build_ext", "--inplace"]
    subprocess.run(command, cwd=sources, env=environment, check=True, capture_output=True)
    ask = "from goqueue.record import kernel; print(kernel.IMPLEMENTATION, kernel.crc32c(b'123456789'))"
    environment["PYTHONPATH"] = str(sources / "src")
    command = [sys.executable, "-c", ask]
    return subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout.strip()


def test_without_a_compiler_the_package_builds_and_runs_on_the_python_kernel(sources: Path) -> None:
    assert build(sources, CC="/bin/false") == f"python {0xE3069283}"


@pytest.mark.skipif(not shutil.which("gcc"), reason="there is no compiler")
def test_with_a_compiler_one_file_serves_all_versions_of_python(sources: Path) -> None:
    assert build(sources) == f"c {0xE3069283}"
    assert [path.name for path in (sources / "src").rglob("*.so")] == ["_kernel.abi3.so"]


def test_the_kernel_can_be_chosen_and_a_wrong_choice_is_named() -> None:
    ask = [sys.executable, "-c", "from goqueue.record import kernel; print(kernel.IMPLEMENTATION)"]

    chosen = subprocess.run(
        ask, env=os.environ | {"GOQUEUE_KERNEL": "python"}, capture_output=True, text=True, check=True
    )
    wrong = subprocess.run(
        ask, env=os.environ | {"GOQUEUE_KERNEL": "rust"}, capture_output=True, text=True, check=False
    )

    assert chosen.stdout == "python\n"
    assert "GOQUEUE_KERNEL = 'rust': must be auto, c or python" in wrong.stderr


needs_make = pytest.mark.skipif(not shutil.which("make"), reason="there is no make")


class Tree:
    """A copy of what `make` looks at, in a place with a space in its name, with an environment that is ready."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "scripts").mkdir(parents=True)
        (root / "src/goqueue/record").mkdir(parents=True)
        (root / "src/goqueue/__init__.py").touch()
        for name in (
            *("Makefile", "pyproject.toml", "setup.py", "requirements-dev.txt"),
            *("scripts/setup", "src/goqueue/record/_kernel.c"),
        ):
            shutil.copy(ROOT / name, root / name)
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", root / ".venv"], check=True)
        (self.site_packages / "goqueue.pth").write_text(f"{root}/src\n")
        self.note_ready("c /usr/bin/gcc")

    @property
    def site_packages(self) -> Path:
        (found,) = self.root.glob(".venv/lib/python*/site-packages")
        return found

    def note_ready(self, note: str) -> None:
        (self.root / ".venv/.ready").write_text(f"{note}\n")

    def make(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        environment = {"PATH": os.environ["PATH"]} | environment
        return subprocess.run(
            ["make", *arguments], cwd=self.root, env=environment, check=False, capture_output=True, text=True
        )

    def sets_up(self, **environment: str) -> bool:
        """Whether `make demo` would set up the environment before it does anything else."""
        *before, last = self.make("-n", "demo", **environment).stdout.splitlines()
        assert last == ".venv/bin/python -m goqueue.cli demo"
        return before == ["PYTHON='python3' scripts/setup .venv"]


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path / "a tree")


@needs_make
def test_make_trusts_an_environment_that_runs_and_has_the_package_of_this_tree(tree: Tree) -> None:
    assert not tree.sets_up()
    assert not tree.sets_up(PYTHONPATH="/elsewhere", GOQUEUE_KERNEL="foo")


@needs_make
def test_make_sets_up_again_when_the_interpreter_is_gone_or_broken(tree: Tree) -> None:
    python = tree.root / ".venv/bin/python"

    python.unlink()
    assert tree.sets_up()
    python.symlink_to("/nowhere/python")
    assert tree.sets_up()


@needs_make
def test_make_sets_up_again_when_the_tree_was_moved_or_copied(tree: Tree, tmp_path: Path) -> None:
    original = tree.root
    tree.root = shutil.copytree(original, tmp_path / "copy", symlinks=True)
    assert tree.sets_up()

    shutil.rmtree(original)
    assert tree.sets_up()


@needs_make
def test_make_sets_up_again_when_setting_up_was_interrupted(tree: Tree) -> None:
    (tree.root / ".venv/.ready").unlink()

    assert tree.sets_up()


@needs_make
def test_make_sets_up_again_when_a_source_of_the_kernel_changed(tree: Tree) -> None:
    later = (tree.root / ".venv/.ready").stat().st_mtime + 10
    os.utime(tree.root / "src/goqueue/record/_kernel.c", (later, later))

    assert tree.sets_up()


@needs_make
def test_make_sets_up_again_once_when_a_compiler_has_turned_up(tree: Tree, tmp_path: Path) -> None:
    compiler = tmp_path / "cc"
    tree.note_ready("python ")
    assert not tree.sets_up(CC=str(compiler))

    compiler.touch(0o755)
    assert tree.sets_up(CC=str(compiler))

    tree.note_ready(f"python {compiler}")  # it was there and of no use
    assert not tree.sets_up(CC=str(compiler))


@needs_make
def test_a_python_that_is_not_there_is_named(tree: Tree) -> None:
    shutil.rmtree(tree.root / ".venv")

    result = tree.make("test", PYTHON="python9")

    assert result.returncode != 0
    assert "python9: not found; set PYTHON to a Python 3.11 or later\n" in result.stderr
