"""A real broker process that is killed, and comes back on the same port with the same data."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

TIMEOUT_S = 60


class Phoenix:
    """A broker that can be killed at any moment; whoever talks to it sees the connection break, and no more."""

    def __init__(self, data: Path) -> None:
        self._data = data
        self._errors = data.with_suffix(".stderr")
        self.address = self._serve("127.0.0.1:0")

    def kill(self) -> None:
        """As `kill -9` does."""
        self._process.kill()
        self._process.communicate()

    def restart(self) -> None:
        """Come back; ready when it returns."""
        assert self._serve(self.address) == self.address

    def stop(self) -> int:
        """End it in order: its exit code."""
        self._process.terminate()
        self._process.communicate(timeout=TIMEOUT_S)
        return self._process.returncode

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    @property
    def complaints(self) -> str:
        """What it wrote to its standard error, in all of its lives."""
        return self._errors.read_text()

    def _serve(self, address: str) -> str:
        command = [sys.executable, "-m", "goqueue.cli", "serve", "--data", str(self._data), "--native", address]
        with self._errors.open("ab") as errors:
            self._process = subprocess.Popen(
                [*command, "--http", "off", "--log-level", "error"], stdout=subprocess.PIPE, stderr=errors, text=True
            )
        assert self._process.stdout
        line = self._process.stdout.readline()
        assert line.startswith("goqueue ready "), self.complaints
        return dict(fact.split("=", 1) for fact in line.split()[2:])["native"]


@contextmanager
def phoenix(data: Path) -> Iterator[Phoenix]:
    """A broker which is gone at the end of the block, and had nothing to complain about."""
    broker = Phoenix(data)
    try:
        yield broker
        assert broker.stop() == 0
    finally:
        if broker.is_running:
            broker.kill()
    assert not broker.complaints, broker.complaints
