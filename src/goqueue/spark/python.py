"""Which Python runs Spark's workers on this machine: this one, without a detour.

Spark has its workers import PySpark out of a zip that lies beside it. Nothing in there is compiled, so each of the four
kinds of workers that a first query needs compiles all of PySpark once more, for seconds. Where pip has installed the
same modules, compiled, a script takes the zips off the path, and the first query comes seconds sooner.

Java and these workers talk over Unix sockets, which take a tenth less of a scan than the loopback. The sockets lie in a
directory of this user's own that is gone with this process. Such workers need a parent of their own (`daemon.py`).
Spark has a setting for that, which the workers that plan a query ignore; so the script starts them.
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
    return str(chosen) if os.access(chosen, os.X_OK) else sys.executable  # not where nothing may be executed


def near_workers(temporary: str) -> dict[str, str]:
    """Spark's settings for workers that are reached over Unix sockets, in a new directory among temporary files; none
    where a socket's name would be longer than the system takes.
    """
    longest = os.path.join(temporary, "goqueue-spark-12345678", _SOCKET)
    if not longest.isascii() or len(longest) >= _LONGEST_ADDRESS:  # Java may know no other letters
        return {}
    sockets = tempfile.mkdtemp(prefix="goqueue-spark-", dir=temporary)
    atexit.register(_remove, sockets, os.getpid())
    return {
        "spark.python.unix.domain.socket.enabled": "true",
        SOCKETS: sockets,
    }


def shim(executable: Path, cache: Path) -> Path:
    """That interpreter, which does not look for modules in Spark's zips, and whose workers have our parent."""
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
    """Remove it, unless this is a fork of the process whose it is."""
    if os.getpid() == owner:
        shutil.rmtree(directory, ignore_errors=True)
