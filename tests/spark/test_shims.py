import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from goqueue.spark import shims

SCRIPT = "#!/bin/sh\nexec true\n"


def test_a_script_that_is_there_is_left_alone_and_a_broken_one_mended(tmp_path: Path) -> None:
    home = shims.made("tool", SCRIPT, tmp_path)
    place = home / "bin" / "tool"
    number = place.stat().st_ino

    assert shims.made("tool", SCRIPT, tmp_path) == home
    assert place.stat().st_ino == number
    place.write_text("#!/bin/sh\n")
    assert shims.made("tool", SCRIPT, tmp_path) == home
    assert place.read_text() == SCRIPT
    place.chmod(0o644)
    assert shims.made("tool", SCRIPT, tmp_path) == home
    assert os.access(place, os.X_OK)
    assert os.listdir(place.parent) == ["tool"]


def test_what_says_something_else_has_another_place(tmp_path: Path) -> None:
    assert shims.made("tool", SCRIPT, tmp_path) != shims.made("tool", SCRIPT + "#", tmp_path)


def test_many_can_make_one_at_once(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        (home,) = set(pool.map(lambda _: shims.made("tool", SCRIPT, tmp_path), range(32)))

    assert os.listdir(home / "bin") == ["tool"]


def test_whoever_has_no_home_has_a_place_all_the_same(tmp_path: Path) -> None:
    assert shims.cache_of({"HOME": str(tmp_path)}) == tmp_path / ".cache" / "goqueue"
    (tmp_path / "file").touch()

    for environment in ({}, {"HOME": str(tmp_path / "file")}, {"XDG_CACHE_HOME": "relative"}):
        place = shims.cache_of(environment, str(tmp_path))
        assert place == tmp_path / f"goqueue-{os.getuid()}"
        assert place.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("kind", ["open", "link", "file"])
def test_a_place_that_others_can_write_to_is_not_trusted(tmp_path: Path, kind: str) -> None:
    usual = tmp_path / f"goqueue-{os.getuid()}"
    if kind == "file":
        usual.touch()
    elif kind == "link":
        (tmp_path / "elsewhere").mkdir(mode=0o700)
        usual.symlink_to(tmp_path / "elsewhere")
    else:
        usual.mkdir()
        usual.chmod(0o777)

    place = shims.cache_of({}, str(tmp_path))

    assert place != usual
    assert place.parent == tmp_path
    assert place.stat().st_mode & 0o777 == 0o700
