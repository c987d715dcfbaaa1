import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from goqueue.spark.python import shim, worker_python

SAYS = "import json, sys; print(json.dumps([sys.executable, sys.path, sys.argv[1:]]))"


def asked(python: Path | str, path: str, *arguments: str) -> list[object]:
    environment = {**os.environ, "PYTHONPATH": path}
    said = subprocess.run([python, "-c", SAYS, *arguments], env=environment, capture_output=True, check=True, text=True)
    answer: list[object] = json.loads(said.stdout)
    return answer


def test_the_workers_do_not_look_into_the_zips_of_spark(tmp_path: Path) -> None:
    made = shim(Path(sys.executable), tmp_path / "cache")
    given = [
        "/own/first",
        "/spark/python/lib/pyspark.zip",
        "/a b/*",
        "/spark/python/lib/py4j-0.10-src.zip",
        "/last",
    ]

    executable, path, arguments = asked(made, ":".join(given), "-x", "two words", "", "$HOME")

    assert executable == sys.executable
    assert arguments == ["-x", "two words", "", "$HOME"]
    assert isinstance(path, list)
    assert [place for place in path if place in given] == ["/own/first", "/a b/*", "/last"]


@pytest.mark.parametrize("path", ["", "/spark/python/lib/pyspark.zip"])
def test_without_a_path_of_the_users_there_is_none(tmp_path: Path, path: str) -> None:
    made = shim(Path(sys.executable), tmp_path / "cache")

    assert asked(made, path)[1] == asked(sys.executable, "")[1]


def test_spark_as_pip_installed_it_is_imported_directly(tmp_path: Path) -> None:
    python = worker_python({"XDG_CACHE_HOME": str(tmp_path)})

    assert Path(python).is_relative_to(tmp_path / "goqueue")
    assert asked(python, "")[0] == sys.executable


def test_spark_from_elsewhere_is_left_where_it_is(tmp_path: Path) -> None:
    for name in ("pyspark", "py4j"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").touch()
    said = subprocess.run(
        [sys.executable, "-c", "from goqueue.spark.python import worker_python; print(worker_python())"],
        env={**os.environ, "PYTHONPATH": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache")},
        capture_output=True,
        check=True,
        text=True,
    )

    assert said.stdout.strip() == sys.executable
    assert not (tmp_path / "cache").exists()
