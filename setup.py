"""The one C file, and the note of what the package was built from.

Where the C file cannot be compiled the package still installs, and runs on the Python kernel.
"""

import json
import os
import subprocess
from datetime import UTC, datetime
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_py import build_py


def _git_commit() -> str | None:
    """The commit of this working copy; one that a packager names in GOQUEUE_GIT_COMMIT counts instead."""
    named = os.environ.get("GOQUEUE_GIT_COMMIT")
    if named:
        return named
    command = ["git", "-C", str(Path(__file__).resolve().parent), "rev-parse", "HEAD"]
    try:
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


class BuildWithFacts(build_py):
    """Also writes `goqueue/build.json`, which `/version` shows. SOURCE_DATE_EPOCH makes it the same every time."""

    def run(self) -> None:
        super().run()
        commit = _git_commit()
        if self.editable_mode or commit is None:
            return
        built = os.environ.get("SOURCE_DATE_EPOCH")
        time = datetime.fromtimestamp(int(built), UTC) if built else datetime.now(UTC)
        facts = {"git_commit": commit, "build_time": time.isoformat(timespec="seconds").replace("+00:00", "Z")}
        (Path(self.build_lib) / "goqueue" / "build.json").write_text(json.dumps(facts) + "\n")


setup(
    ext_modules=[
        Extension(
            "goqueue.record._kernel",
            ["src/goqueue/record/_kernel.c"],
            extra_compile_args=["-O3", "-std=c11", "-Wall", "-Wextra"],
            py_limited_api=True,
            optional=True,
        )
    ],
    cmdclass={"build_py": BuildWithFacts},
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
