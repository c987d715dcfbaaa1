"""The commit and the time of this build.

`setup.py` writes both into the package when it is built (`build.json`). A working copy has no such file: the commit is
then that of the checkout, read from its `.git`, and the time that of its newest module. A build from an archive without
a repository names its release instead.
"""

import json
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from goqueue.names import VERSION

PACKAGE = Path(__file__).resolve().parent.parent
BUILD_FILE = "build.json"
_PARENTS = 2  # src/goqueue stands in the checkout


class BuildFacts(NamedTuple):
    """A commit, and a time in RFC 3339."""

    git_commit: str
    build_time: str


def build_facts(package: Path = PACKAGE) -> BuildFacts:
    """The facts of the build of the package in that directory."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        told = json.loads((package / BUILD_FILE).read_text())
        return BuildFacts(str(told["git_commit"]), str(told["build_time"]))
    checkout = package.parents[_PARENTS - 1]
    commit = commit_of(checkout) if (checkout / "pyproject.toml").exists() else None
    return BuildFacts(commit or f"v{VERSION}", _newest(package))


def commit_of(checkout: Path) -> str | None:
    """The commit that is checked out there, if it is a git working copy."""
    with suppress(OSError, UnicodeDecodeError):
        git = checkout / ".git"
        if git.is_file():  # a linked worktree
            git = checkout / git.read_text().removeprefix("gitdir:").strip()
        head = (git / "HEAD").read_text().strip()
        if not head.startswith("ref:"):
            return head
        name = head.removeprefix("ref:").strip()
        common = git
        if (git / "commondir").exists():
            common = git / (git / "commondir").read_text().strip()
        for directory in (git, common):
            if (directory / name).exists():
                return (directory / name).read_text().strip()
        for line in (common / "packed-refs").read_text().splitlines():
            if line.endswith(f" {name}"):
                return line.split()[0]
    return None


def _newest(package: Path) -> str:
    newest = max((path.stat().st_mtime for path in package.rglob("*.py")), default=0)
    return datetime.fromtimestamp(int(newest), UTC).isoformat().replace("+00:00", "Z")
