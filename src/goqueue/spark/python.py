"""Which Python runs Spark's workers on this machine: this one, without a detour.

Spark has its workers import PySpark out of a zip that lies beside it. Nothing in there is compiled, so each of the four
kinds of workers that a first query needs compiles all of PySpark once more, for seconds. Where pip has installed the
same modules, compiled, a script takes the zips off the path, and the first query comes seconds sooner.
"""

import os
import shlex
import sys
import sysconfig
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

from goqueue.spark.shims import cache_of, made


def worker_python(environment: Mapping[str, str] | None = None) -> str:
    """The interpreter for Spark's workers on this machine."""
    installed = Path(sysconfig.get_path("purelib"))
    for name in ("pyspark", "py4j"):
        found = find_spec(name)
        if found is None or not Path(found.origin or "").is_relative_to(installed):
            return sys.executable
    cache = cache_of(os.environ if environment is None else environment)
    chosen = shim(Path(sys.executable), cache)
    return str(chosen) if os.access(chosen, os.X_OK) else sys.executable  # not where nothing may be executed


def shim(executable: Path, cache: Path) -> Path:
    """That interpreter, which does not look for modules in Spark's zips."""
    script = (
        "#!/bin/sh\n"
        "set -f\n"
        "IFS=:\n"
        "rest=\n"
        "for place in $PYTHONPATH; do\n"
        '  case "$place" in\n'
        "    */pyspark.zip | */py4j-*-src.zip) ;;\n"
        '    *) rest="$rest:$place" ;;\n'
        "  esac\n"
        "done\n"
        'PYTHONPATH="${rest#:}"\n'
        "export PYTHONPATH\n"
        f'exec {shlex.quote(str(executable))} "$@"\n'
    )
    return made("python", script, cache) / "bin" / "python"
