"""The Python that runs Spark's workers on this machine: this interpreter, started by a script.

Spark's workers import PySpark from a zip file, which holds no compiled modules. So each of the four kinds of workers
that a first query needs compiles all of PySpark again, for seconds. If pip has installed the same modules, the script
removes the zip files from PYTHONPATH, and the first query is seconds faster.

Java and these workers use Unix sockets, which make a scan a tenth faster than TCP on the loopback. The sockets are in a
directory of this user, which is removed when this process ends. Such workers need another parent process
(`daemon.py`). Spark has a setting for that, but the workers that plan a query ignore it; so the script starts it.
"""

import atexit
import os
import shlex
import shutil
import sys
import sysconfig
import tempfile
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

from goqueue.spark.shims import cache_of, made

SOCKETS = "spark.python.unix.domain.socket.dir"
_SOCKET = ".00000000-0000-0000-0000-000000000000.sock"  # as Spark names them
_LONGEST_ADDRESS = 104  # 108 on Linux


def worker_python(environment: Mapping[str, str] | None = None) -> str:
    """The interpreter for Spark's workers on this machine."""
    installed = Path(sysconfig.get_path("purelib"))
    for name in ("pyspark", "py4j"):
        found = find_spec(name)
        if found is None or not Path(found.origin or "").is_relative_to(installed):
            return sys.executable
    cache = cache_of(os.environ if environment is None else environment)
    chosen = shim(Path(sys.executable), cache)
    return str(chosen) if os.access(chosen, os.X_OK) else sys.executable  # the cache may be mounted noexec


def near_workers(temporary: str) -> dict[str, str]:
    """Spark's settings for workers on Unix sockets, in a new directory below `temporary`; empty if the path of a
    socket would be too long for the system.
    """
    longest = os.path.join(temporary, "goqueue-spark-12345678", _SOCKET)
    if not longest.isascii() or len(longest) >= _LONGEST_ADDRESS:  # Java may use an encoding without other characters
        return {}
    sockets = tempfile.mkdtemp(prefix="goqueue-spark-", dir=temporary)
    atexit.register(_remove, sockets, os.getpid())
    return {
        "spark.python.unix.domain.socket.enabled": "true",
        SOCKETS: sockets,
    }


def shim(executable: Path, cache: Path) -> Path:
    """A script that runs the interpreter without Spark's zip files, and starts workers by `goqueue.spark.daemon`."""
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
        'if [ "$1 $2" = "-m pyspark.daemon" ]; then\n'
        "  shift 2\n"
        '  set -- -m goqueue.spark.daemon "$@"\n'
        "fi\n"
        f'exec {shlex.quote(str(executable))} "$@"\n'
    )
    return made("python", script, cache) / "bin" / "python"


def _remove(directory: str, owner: int) -> None:
    """Remove the directory, unless this process is a fork of its owner: forks run the exit handlers, too."""
    if os.getpid() == owner:
        shutil.rmtree(directory, ignore_errors=True)
