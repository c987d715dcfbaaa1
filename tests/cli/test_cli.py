"""The command line, run as a user runs it."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from rich.text import Text

import goqueue
from goqueue.cli.app import app
from goqueue.record import kernel
from goqueue.storage.directory import DataDirectory
from goqueue.storage.file import OsDisk
from tests.storage.logs import fill


def run(
    *arguments: str, check: bool = True, env: dict[str, str] | None = None, timeout: float = 120
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "goqueue.cli", *arguments]
    environment = os.environ | {"COLUMNS": "80"} | (env or {})
    return subprocess.run(command, check=check, capture_output=True, text=True, timeout=timeout, env=environment)


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


@pytest.mark.spark
def test_the_demo_runs_to_its_end() -> None:
    output = run("demo", timeout=600).stdout

    assert "all checks passed" in output
    assert "each exactly once, in order for each customer" in output
    assert "damaged, and nothing else" in output


def test_verify_shows_what_a_log_holds(log_directory: Path) -> None:
    output = run("log", "verify", str(log_directory)).stdout

    assert "0 to 99" in output
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


def test_verify_of_an_empty_directory_finds_nothing(tmp_path: Path) -> None:
    assert run("log", "verify", str(tmp_path)).stdout == "0 records in 0 segments, 0 damaged places\n"


@pytest.mark.parametrize("name", ["a[/b]", "[red]x", "[bold", ":smile:", "x\\", os.fsdecode(b"\xff")])
def test_verify_prints_paths_as_they_are(log_directory: Path, name: str) -> None:
    place = log_directory.rename(log_directory.with_name(name.replace("/", "")))
    path = place / f"{0:020d}.log"
    path.write_bytes(path.read_bytes()[:-1])
    shown = [os.fsencode(path).decode(errors="backslashreplace") for path in (path, log_directory / name / "none")]

    damaged = run("log", "verify", str(place), check=False)
    missing = run("log", "verify", str(log_directory / name / "none"), check=False)

    assert f"damaged {shown[0]}: bytes [" in damaged.stdout.replace("\\udcff", "\\xff")
    assert f"error {shown[1]}: No such file" in missing.stderr.replace("\\udcff", "\\xff")
    assert (damaged.returncode, missing.returncode) == (3, 1)


def test_verify_cuts_no_number_in_80_columns(tmp_path: Path) -> None:
    first = 12_345_678_901_234
    records = kernel.encode([b""] * 1_000)
    kernel.stamp(records, first_offset=first, timestamp=1_800_000_000_000_000_000)
    (tmp_path / f"{first:020d}.log").write_bytes(records)

    output = run("log", "verify", str(tmp_path)).stdout

    assert max(map(len, output.splitlines())) <= 80
    assert "…" not in output
    (row,) = (line for line in output.splitlines() if "1,000 " in line and "KiB" in line)
    assert row.split() == [str(first), "1,000", str(first), "to", "33.2", "KiB", "2027-01-15", "2027-01-15", "-"]


def test_a_kernel_that_does_not_exist_is_one_readable_line() -> None:
    result = run("version", env={"GOQUEUE_KERNEL": "foo"}, check=False)

    assert result.returncode == 1
    assert result.stderr == "error GOQUEUE_KERNEL = 'foo': must be auto, c or python\n"


def test_usage_names_the_command_and_not_the_module() -> None:
    assert "Usage: goqueue log verify" in run("log", "verify", "--help").stdout


def test_a_command_that_does_not_exist_is_refused() -> None:
    result = run("frobnicate", check=False)

    assert result.returncode == 2
    assert "No such command" in result.stderr


def commands_of(command: Any, *names: str) -> Iterator[tuple[tuple[str, ...], Any]]:
    yield names, command
    for name, inner in getattr(command, "commands", {}).items():
        yield from commands_of(inner, *names, name)


def test_no_help_text_has_what_rich_takes_for_a_style_and_swallows() -> None:
    """A word in brackets is one: `[traces]` is shown as nothing at all."""
    found = list(commands_of(typer.main.get_command(app)))
    swallowed = {
        " ".join(names): text
        for names, command in found
        for text in (command.help or "", *(getattr(one, "help", "") or "" for one in command.params))
        if Text.from_markup(text).plain != text
    }
    assert len(found) > 40
    assert swallowed == {}
