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
