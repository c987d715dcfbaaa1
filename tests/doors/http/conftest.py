"""An open door for the tests of the HTTP door."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.doors.http.doors import OpenDoor


@pytest.fixture
def door(tmp_path: Path) -> Iterator[OpenDoor]:
    with OpenDoor(tmp_path / "data") as door:
        yield door
