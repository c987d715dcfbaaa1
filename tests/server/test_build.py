"""`/version` says which build runs: as it was noted at build time, as the checkout tells, or by its release."""

import json
import re
from pathlib import Path

from goqueue.names import VERSION
from goqueue.server.build import build_facts, commit_of

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def package(root: Path) -> Path:
    found = root / "src/goqueue"
    found.mkdir(parents=True)
    (found / "names.py").write_text("")
    (root / "pyproject.toml").write_text("")
    return found


def test_this_build_is_not_unknown() -> None:
    commit, time = build_facts()

    assert re.fullmatch(rf"[0-9a-f]{{40}}|v{re.escape(VERSION)}", commit)
    assert re.fullmatch(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ", time)


def test_what_the_build_noted_counts(tmp_path: Path) -> None:
    found = package(tmp_path)
    (found / "build.json").write_text(json.dumps({"git_commit": COMMIT, "build_time": "2026-01-01T00:00:00Z"}))

    assert build_facts(found) == (COMMIT, "2026-01-01T00:00:00Z")


def test_without_a_repository_it_is_the_release(tmp_path: Path) -> None:
    assert build_facts(package(tmp_path)).git_commit == f"v{VERSION}"


def test_a_checkout_tells_its_commit(tmp_path: Path) -> None:
    found = package(tmp_path)
    git = tmp_path / ".git"
    (git / "refs/heads").mkdir(parents=True)
    (git / "HEAD").write_text("ref: refs/heads/main\n")
    (git / "refs/heads/main").write_text(COMMIT + "\n")

    assert build_facts(found).git_commit == COMMIT

    (git / "HEAD").write_text(COMMIT[::-1] + "\n")
    assert commit_of(tmp_path) == COMMIT[::-1]


def test_packed_references_and_further_working_copies_are_read(tmp_path: Path) -> None:
    main, other = tmp_path / "main", tmp_path / "other"
    inner = main / ".git/worktrees/other"
    inner.mkdir(parents=True)
    other.mkdir()
    (other / ".git").write_text(f"gitdir: {inner}\n")
    (inner / "HEAD").write_text("ref: refs/heads/topic\n")
    (inner / "commondir").write_text("../..\n")
    (main / ".git/packed-refs").write_text(f"# pack-refs\n{COMMIT} refs/heads/topic\n")

    assert commit_of(other) == COMMIT
