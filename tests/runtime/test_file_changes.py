import asyncio
import os
import select
from pathlib import Path

import pytest

from goqueue.runtime.file_changes import FileChanges


def is_readable(changes: FileChanges) -> bool:
    return bool(select.select([changes], [], [], 0)[0])


def test_a_write_is_noticed_until_it_is_drained(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"before")
    changes = FileChanges(str(path))
    assert not is_readable(changes)

    with path.open("r+b") as file:
        file.write(b"after")
    assert is_readable(changes)
    changes.drain()

    assert not is_readable(changes)
    changes.drain()
    path.read_bytes()
    assert not is_readable(changes)
    changes.close()
    changes.close()


def test_an_event_loop_waits_for_it(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.touch()

    async def run() -> None:
        changes = FileChanges(str(path))
        noticed = asyncio.Event()
        asyncio.get_running_loop().add_reader(changes.fileno(), noticed.set)
        fd = os.open(path, os.O_WRONLY)
        os.pwrite(fd, b"x", 0)
        os.close(fd)
        await noticed.wait()
        asyncio.get_running_loop().remove_reader(changes.fileno())
        changes.close()

    asyncio.run(run())


def test_a_file_that_is_missing_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="missing"):
        FileChanges(f"{tmp_path}/missing")
