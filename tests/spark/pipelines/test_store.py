import os
import threading
import time
from pathlib import Path

import pytest

from goqueue.errors import InvalidConfig
from goqueue.spark.pipelines import store as stores
from goqueue.spark.pipelines.store import LocalStore


def is_syncing() -> bool:
    return any(thread.name == "goqueue-archive" for thread in threading.enumerate())


def test_what_others_write_meanwhile_is_theirs_to_change_and_to_remove(tmp_path: Path) -> None:
    store = LocalStore(str(tmp_path))
    ends = time.monotonic() + 3 * stores.SYNC_PAUSE_S

    with store.filling("staging"):
        assert is_syncing()
        number = 0
        while time.monotonic() < ends:
            number += 1
            folder = tmp_path / "staging" / str(number % 3)
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f"{number}.parquet").write_bytes(b"x" * 1_000)
            if number % 2:
                os.unlink(folder / f"{number}.parquet")

    assert not is_syncing()
    assert len(store.files("staging")) == number // 2


def test_an_error_meanwhile_is_passed_on_and_nothing_goes_on(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no"), LocalStore(str(tmp_path)).filling("nowhere"):
        raise ValueError("no")

    assert not is_syncing()


def test_a_directory_that_cannot_be_written_to_is_said_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    store = LocalStore(str(tmp_path / "file"))
    with pytest.raises(InvalidConfig, match="cannot be written to: Not a directory"), store.locked("_goqueue/lock"):
        pass
