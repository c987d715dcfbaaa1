import subprocess
from pathlib import Path

import pytest

from goqueue.spark.java import DROPPED_ARGUMENT, Java, JavaNotFound, find_java, java_version, shim

SAYS = 'openjdk version "{}" 2025-04-15'


def fake_java(home: Path, version: str | None, *, answer: str = SAYS) -> Path:
    """A `java` that knows one thing: its version."""
    executable = home / "bin" / "java"
    executable.parent.mkdir(parents=True)
    said = "exit 1" if version is None else f"echo '{answer.format(version)}' >&2"
    executable.write_text(f"#!/bin/sh\n{said}\n")
    executable.chmod(0o755)
    return executable


def environment(tmp_path: Path, **more: str) -> dict[str, str]:
    return {"PATH": str(tmp_path / "nothing"), "XDG_CACHE_HOME": str(tmp_path / "cache"), **more}


def test_the_home_that_the_user_chose_is_taken(tmp_path: Path) -> None:
    chosen = fake_java(tmp_path / "chosen", "21.0.2")
    other = fake_java(tmp_path / "other", "25")

    found = find_java(environment(tmp_path, JAVA_HOME=str(tmp_path / "chosen"), PATH=str(other.parent)))

    assert found == Java(chosen, 21, tmp_path / "chosen")


@pytest.mark.parametrize(("version", "reason"), [("11.0.2", "that is Java 11"), (None, "does not run")])
def test_a_choice_that_does_not_work_is_not_passed_over(tmp_path: Path, version: str | None, reason: str) -> None:
    fake_java(tmp_path / "chosen", version)
    good = fake_java(tmp_path / "good", "21")

    with pytest.raises(JavaNotFound, match=reason) as caught:
        find_java(environment(tmp_path, JAVA_HOME=str(tmp_path / "chosen"), PATH=str(good.parent)))

    assert f"JAVA_HOME is {tmp_path / 'chosen'}" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_home_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(JavaNotFound, match="does not run"):
        find_java(environment(tmp_path, JAVA_HOME=str(tmp_path / "gone")))


def test_without_a_choice_it_is_the_one_on_the_path(tmp_path: Path) -> None:
    executable = fake_java(tmp_path / "usr", "17.0.15")

    found = find_java(environment(tmp_path, PATH=str(executable.parent)))

    assert found == Java(executable, 17, None)


@pytest.mark.parametrize("version", ["1.8.0_392", "11.0.2", "16", None])
def test_one_on_the_path_that_is_too_old_gives_way_to_the_one_of_pip(tmp_path: Path, version: str | None) -> None:
    executable = fake_java(tmp_path / "usr", version)

    found = find_java(environment(tmp_path, PATH=str(executable.parent)))

    assert found.home is not None
    assert found.home.parent == tmp_path / "cache" / "goqueue"
    assert found.version >= 17
    assert java_version(found.executable) == found.version


@pytest.mark.parametrize(
    ("said", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('java version "1.8.0_392"', 8),
        ('openjdk version "25-ea" 2025-09-16', 25),
        ('Picked up JAVA_TOOL_OPTIONS: -Dx\nopenjdk version "21" 2023-09-19', 21),
        ("I am no Java", None),
    ],
)
def test_versions_are_read_as_java_writes_them(tmp_path: Path, said: str, version: int | None) -> None:
    executable = fake_java(tmp_path, "", answer=said.replace("{", "{{"))

    assert java_version(executable) == version


def test_the_shim_drops_one_argument_and_nothing_else(tmp_path: Path) -> None:
    real = tmp_path / "it's a place" / "java"
    real.parent.mkdir()
    real.write_text('#!/bin/sh\nfor argument do echo "<$argument>"; done\n')
    real.chmod(0o755)
    given = ["-Xmx1g", DROPPED_ARGUMENT, "two words", "", "$HOME", "*", DROPPED_ARGUMENT, f"{DROPPED_ARGUMENT}x"]

    home = shim(real, tmp_path / "cache")
    said = subprocess.run([home / "bin" / "java", *given], capture_output=True, check=True, text=True).stdout

    kept = [argument for argument in given if argument != DROPPED_ARGUMENT]
    assert said.splitlines() == [f"<{argument}>" for argument in kept]


def test_whoever_has_no_home_gets_a_place_among_temporary_files(tmp_path: Path) -> None:
    found = find_java({"PATH": str(tmp_path), "XDG_CACHE_HOME": "/proc/nothing"})

    assert found.home is not None
    assert java_version(found.executable) == found.version
