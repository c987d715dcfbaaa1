"""The command line, run as a user runs it."""

import subprocess
import sys
from pathlib import Path

import pytest

import goqueue
from goqueue.storage.directory import DataDirectory
from goqueue.storage.file import OsDisk
from tests.storage.logs import fill


def run(*arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from goqueue.cli.main import main; main()", *arguments]
    return subprocess.run(command, check=check, capture_output=True, text=True, timeout=120)


@pytest.fixture
def log_directory(tmp_path: Path) -> Path:
    data = DataDirectory.open(OsDisk(), str(tmp_path / "data"))
    log = data.open_log("orders", 0)
    fill(log, 100)
    log.close()
    data.close()
    return tmp_path / "data" / "topics" / "orders" / "0" / "log"


def test_version_names_the_package_and_the_kernel() -> None:
    assert run("version").stdout.startswith(f"goqueue {goqueue.__version__} (Python 3.")


def test_the_demo_runs_to_its_end() -> None:
    output = run("demo").stdout

    assert "all of it held" in output
    assert "torn tail of" in output
    assert "none missing, none wrong" in output


def test_verify_shows_what_a_log_holds(log_directory: Path) -> None:
    output = run("log", "verify", str(log_directory)).stdout

    assert "0-99" in output
    assert "100 records in 1 segments, 0 damaged places" in output


def test_verify_finds_damage_and_says_so_with_its_exit_code(log_directory: Path) -> None:
    path = log_directory / f"{0:020d}.log"
    content = bytearray(path.read_bytes())
    content[134 * 40 + 50] ^= 1
    path.write_bytes(content)

    result = run("log", "verify", str(log_directory), check=False)

    assert result.returncode == 3
    assert "checksum mismatch" in result.stdout
    assert "offsets [40, 41)" in result.stdout
    assert path.read_bytes() == content


def test_verify_of_a_place_that_is_no_log_is_one_readable_line(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")

    for place, reason in ((tmp_path / "nowhere", "No such file or directory"), (tmp_path, "not a file of GoQueue")):
        result = run("log", "verify", str(place), check=False)

        assert result.returncode == 1
        assert result.stderr.startswith("error ")
        assert reason in result.stderr
        assert "Traceback" not in result.stderr


def test_a_command_that_does_not_exist_is_refused() -> None:
    result = run("frobnicate", check=False)

    assert result.returncode == 2
    assert "No such command" in result.stderr
