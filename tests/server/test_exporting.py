"""Exporters run in threads of their own; one that is slow, fails or hangs costs rows and nothing else."""

import asyncio
import json
import logging
import socket
from collections.abc import Callable, Coroutine, Sequence
from functools import wraps
from pathlib import Path
from threading import Event
from typing import ParamSpec

import pytest

from goqueue.clock import SECOND, SystemClock
from goqueue.names import TopicPartition
from goqueue.server import exporting
from goqueue.server.exporting import ExporterThread, close_all
from goqueue.testing import ManualClock
from goqueue.tracing.export import Export
from goqueue.tracing.rows import EventRow, EventType
from tests.server.served import Peer, serving

PATIENCE_S = 20.0
P = ParamSpec("P")


def in_a_loop(test: Callable[P, Coroutine[None, None, None]]) -> Callable[P, None]:
    """A test that needs an event loop."""

    @wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        asyncio.run(test(*args, **kwargs))

    return run


class Gate:
    """An exporter that waits until it is let go."""

    name = "gate"
    needs_trace_ids = False

    def __init__(self, *, is_open: bool = True, error: Exception | None = None) -> None:
        self.gate = Event()
        self.begun = Event()
        self.error = error
        self.exported: list[int] = []
        self.is_closed = False
        if is_open:
            self.gate.set()

    def export(self, exports: Sequence[Export]) -> None:
        self.begun.set()
        self.gate.wait(PATIENCE_S)
        if self.error:
            raise self.error
        self.exported += [export.row.first for export in exports]

    def close(self) -> None:
        self.is_closed = True


def exports(*offsets: int, count: int = 1) -> list[Export]:
    source = TopicPartition("orders", 0)
    return [Export(EventRow(at, EventType.ACKED, 5, source, at, at + count, None, count), {}, {}) for at in offsets]


class Told:
    """What the broker was told, and a wait for it."""

    def __init__(self, thread: ExporterThread) -> None:
        self.told: list[tuple[str, int, str]] = []
        self._is_told = asyncio.Event()
        thread.tell = self._tell

    def _tell(self, name: str, count: int, error: Exception | None) -> None:
        self.told.append((name, count, str(error or "")))
        self._is_told.set()

    async def times(self, count: int) -> list[tuple[str, int, str]]:
        while len(self.told) < count:
            self._is_told.clear()
            await asyncio.wait_for(self._is_told.wait(), PATIENCE_S)
        return self.told


@in_a_loop
async def test_what_is_put_is_exported_in_order_and_told_in_the_loop() -> None:
    exporter, clock = Gate(), SystemClock()
    thread = ExporterThread(exporter, asyncio.get_running_loop(), clock)
    told = Told(thread)

    assert thread.put(exports(1, 2))
    assert thread.put(exports(3, count=10))

    assert await told.times(2) == [("gate", 2, ""), ("gate", 10, "")]
    assert exporter.exported == [1, 2, 3]
    close_all([thread], clock)
    assert exporter.is_closed


@in_a_loop
async def test_more_than_may_wait_is_refused_until_there_is_room() -> None:
    exporter, clock = Gate(is_open=False), SystemClock()
    thread = ExporterThread(exporter, asyncio.get_running_loop(), clock)
    told = Told(thread)
    most = exporting.WAITING_EVENTS_MAX

    assert thread.put(exports(1, count=most + 5))  # one is taken however large it is
    assert not thread.put(exports(2))
    exporter.gate.set()
    await told.times(1)
    assert thread.put(exports(3, count=most))
    await told.times(2)

    assert exporter.exported == [1, 3]
    close_all([thread], clock)


@in_a_loop
async def test_a_failure_is_told_each_time_and_logged_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    thread = ExporterThread(Gate(error=OSError("no room")), asyncio.get_running_loop(), clock)
    told = Told(thread)

    with caplog.at_level(logging.WARNING):
        for number in range(3):
            thread.put(exports(number))
        assert await told.times(3) == [("gate", 1, "no room")] * 3
        assert len(caplog.records) == 1
        clock.advance(61)
        thread.put(exports(4))
        await told.times(4)

    assert [(one.__dict__["exporter"], one.__dict__["reason"]) for one in caplog.records] == [("gate", "no room")] * 2
    close_all([thread], SystemClock())


@in_a_loop
async def test_an_exporter_that_hangs_is_left_behind(caplog: pytest.LogCaptureFixture) -> None:
    hanging, good, clock = Gate(is_open=False), Gate(), SystemClock()
    loop = asyncio.get_running_loop()
    threads = [ExporterThread(hanging, loop, clock), ExporterThread(good, loop, clock)]
    for thread in threads:
        assert thread.put(exports(1))
    assert hanging.begun.wait(PATIENCE_S)
    assert good.begun.wait(PATIENCE_S)

    began_ns = clock.monotonic_ns()
    close_all(threads, clock, timeout_s=0.05)

    assert clock.monotonic_ns() - began_ns < 5_000_000_000
    assert not hanging.is_closed
    assert good.exported == [1]
    assert any("does not stop" in one.message for one in caplog.records)
    hanging.gate.set()
    assert threads[0].join(PATIENCE_S)


def test_a_server_writes_traces_where_it_is_told_to(tmp_path: Path) -> None:
    env = {"GOQUEUE_TRACES_JSONL": str(tmp_path / "out" / "traces.jsonl"), "GOQUEUE_TRACES_STDOUT": "true"}
    with serving(tmp_path / "data", env=env) as served, Peer(served.address) as peer:
        peer.create_topic("orders")
        peer.send_batch("orders", [b"a", b"b"])
        assert peer.receive()

        code, output, errors = served.stop()

    in_file = (tmp_path / "out" / "traces.jsonl").read_text()
    assert [json.loads(line)["event_type"] for line in in_file.splitlines()] == [
        "publish.received",
        "publish.partitioned",
        "publish.persisted",
    ]
    assert output == in_file
    assert (code, "could not be exported" in errors) == (0, False)


def test_a_collector_that_never_answers_holds_up_neither_the_server_nor_its_end(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        env = {"GOQUEUE_TRACES_OTLP_ENDPOINT": f"http://127.0.0.1:{silent.getsockname()[1]}/v1/traces"}
        with serving(tmp_path / "data", env=env) as served, Peer(served.address) as peer:
            peer.create_topic("orders")
            peer.send_batch("orders", [b"a"])
            assert peer.receive()
            silent.accept()[0].close()  # the exporter has begun; the next connection is never taken
            peer.send_batch("orders", [b"b"])
            assert peer.receive()

            clock = SystemClock()
            began_ns = clock.monotonic_ns()
            code, _, errors = served.stop()

    assert code == 0
    assert clock.monotonic_ns() - began_ns < 15 * SECOND
    assert "Traceback" not in errors
