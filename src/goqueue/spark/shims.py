"""Wrapper scripts that Spark runs instead of a program, and that change its arguments or environment.

A script is written to a temporary file and renamed, so that no process ever runs half of it. Its directory is named
after the hash of its text, so that several environments of one user do not overwrite each other's script:

    ~/.cache/goqueue/<kind>-<hash of the script>/bin/<kind>
"""

import hashlib
import os
import stat
import tempfile
from collections.abc import Mapping
from pathlib import Path


def made(kind: str, script: str, cache: Path) -> Path:
    """The directory of the script, which is written unless it is there with the same text."""
    home = cache / f"{kind}-{hashlib.sha256(script.encode()).hexdigest()[:16]}"
    place = home / "bin" / kind
    if not _is_same(place, script):
        place.parent.mkdir(parents=True, exist_ok=True)
        descriptor, draft = tempfile.mkstemp(dir=place.parent, prefix=f".{kind}-")
        with os.fdopen(descriptor, "w") as file:
            file.write(script)
        os.chmod(draft, 0o755)
        os.replace(draft, place)
    return home


def cache_of(environment: Mapping[str, str], temporary: str | None = None) -> Path:
    """The cache directory of the user; if it cannot be written, a directory of this user below `temporary`."""
    base = environment.get("XDG_CACHE_HOME") or os.path.join(environment.get("HOME") or "", ".cache")
    cache = Path(base) / "goqueue"
    try:
        if not cache.is_absolute():
            raise OSError
        cache.mkdir(parents=True, exist_ok=True)
        if not os.access(cache, os.W_OK | os.X_OK):
            raise OSError
    except OSError:
        return _own_place(Path(temporary or tempfile.gettempdir(), f"goqueue-{os.getuid()}"))
    return cache


def _own_place(place: Path) -> Path:
    """The directory if no other user can write to it, else a new one: its scripts are executed."""
    try:
        place.mkdir(mode=0o700, exist_ok=True)
        found = place.lstat()
        if stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077:
            return place
    except OSError:
        pass
    return Path(tempfile.mkdtemp(prefix="goqueue-shims-", dir=place.parent))


def _is_same(path: Path, script: str) -> bool:
    try:
        return path.read_text() == script and os.access(path, os.X_OK)
    except (OSError, ValueError):
        return False
