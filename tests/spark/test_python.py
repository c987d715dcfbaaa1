import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from goqueue.spark.python import near_workers, shim, worker_python

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


def test_workers_are_reached_over_sockets_that_nobody_else_may_use() -> None:
    with tempfile.TemporaryDirectory(prefix="gq-") as temporary:
        made = near_workers(temporary)

        sockets = Path(made["spark.python.unix.domain.socket.dir"])
        assert sockets.parent == Path(temporary)
        assert sockets.stat().st_mode & 0o777 == 0o700
        assert made["spark.python.unix.domain.socket.enabled"] == "true"


def test_a_socket_whose_name_would_be_too_long_is_not_tried(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 60)
    deep.mkdir()

    assert near_workers(str(deep)) == {}
    assert list(deep.iterdir()) == []


def test_a_socket_whose_name_java_may_not_be_able_to_write_is_not_tried() -> None:
    with tempfile.TemporaryDirectory(prefix="gq-\u00fc") as temporary:
        assert near_workers(temporary) == {}


def test_a_fork_that_ends_leaves_its_parent_the_sockets() -> None:
    program = (
        "import os, sys, tempfile\n"
        "from goqueue.spark.python import SOCKETS, near_workers\n"
        "sockets = near_workers(sys.argv[1])[SOCKETS]\n"
        "child = os.fork()\n"
        "if child == 0: sys.exit()\n"
        "os.waitpid(child, 0)\n"
        "print(os.path.isdir(sockets))\n"
    )
    with tempfile.TemporaryDirectory(prefix="gq-") as temporary:
        done = subprocess.run(
            [sys.executable, "-c", program, temporary], capture_output=True, check=True, text=True, timeout=60
        )
        assert done.stdout == "True\n"
        assert os.listdir(temporary) == []


def test_whoever_plans_a_query_has_our_parent_too(tmp_path: Path) -> None:
    """Spark's setting for it holds for tasks alone."""
    (tmp_path / "echo").write_text('#!/bin/sh\necho "$@"\n')
    (tmp_path / "echo").chmod(0o755)
    made = shim(tmp_path / "echo", tmp_path / "cache")

    for given, said in (
        (["-m", "pyspark.daemon", "pyspark.worker"], "-m goqueue.spark.daemon pyspark.worker\n"),
        (["-m", "pyspark.worker"], "-m pyspark.worker\n"),
    ):
        assert subprocess.run([made, *given], capture_output=True, check=True, text=True).stdout == said
