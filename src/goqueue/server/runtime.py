"""The server process: from a configuration to an exit code.

Standard output gets one line, when the server accepts requests:

    goqueue ready native=127.0.0.1:7000 http=127.0.0.1:8080 data=/var/lib/goqueue pid=4711

and `<data>/ports.json` has the same for programs until the server stops. Everything else goes to standard error.

SIGTERM or SIGINT stops the server: it accepts no more connections, answers the requests that it has received, and seals
the logs. A second signal ends the process at once, as does one before the server is ready; stored data is safe either
way.

    0   stopped, everything is on the disk
    1   failed while running
    2   the configuration is invalid
    3   stored data is damaged, and no topic can be served
    4   the data directory cannot be used, or another process has it open
    5   an address cannot be listened on
    6   the node cannot be a part of its cluster, or not any more; the last line of the log says why
    130, 143   a second SIGINT or SIGTERM
"""

import asyncio
import gc
import ipaddress
import json
import logging
import os
import resource
import shlex
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from enum import IntEnum
from pathlib import Path

import uvloop

from goqueue.clock import SECOND, Clock, SystemClock
from goqueue.errors import (
    ClusterError,
    CorruptRecord,
    DamagedFile,
    DataDirectoryError,
    GoQueueError,
    InvalidConfig,
    MetadataUnavailable,
    StorageFull,
)
from goqueue.runtime.memory import retain_freed_memory
from goqueue.server import event_log, logs
from goqueue.server.assemble import CannotListen, Server, running
from goqueue.server.config import ServerConfig
from goqueue.server.settings import Address
from goqueue.server.ticker import Ticker

PORTS_FILE = "ports.json"
_OTHER_FILES = 512  # segments, indexes, and those of the interpreter

_log = logging.getLogger(__name__)


class ExitCode(IntEnum):
    """The exit code of a server."""

    STOPPED = 0
    FAILED = 1
    BAD_CONFIGURATION = 2
    DAMAGED = 3
    DATA_UNUSABLE = 4
    CANNOT_LISTEN = 5
    CLUSTER = 6


def serve(config: ServerConfig) -> ExitCode:
    """Run a server until it is told to stop."""
    clock = SystemClock()
    handler = logs.configure(
        sys.stderr, clock, level=config.log.level, format=config.log.format, no_color="NO_COLOR" in os.environ
    )
    for warning in config.warnings:
        _log.warning(warning)
    handled = [number for number in (signal.SIGINT, signal.SIGTERM) if signal.getsignal(number) != signal.SIG_IGN]
    for number in handled:
        signal.signal(number, signal.SIG_DFL)
    retain_freed_memory()
    files_max = _raise_file_limit()
    if files_max < config.limits.connections_max + _OTHER_FILES:
        _log.warning(
            "the limit of open files is too low for connections_max; raise it with ulimit -n",
            extra={"files_max": files_max},
        )
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_serve(config, clock, handler, handled))
    except GoQueueError as error:
        _log.critical(str(error))
        return _exit_code(error)
    except Exception:
        _log.critical("server failed", exc_info=True)
        return ExitCode.FAILED
    finally:
        handler.sum_up(everything=True)
    return ExitCode.STOPPED


def _exit_code(error: GoQueueError) -> ExitCode:
    match error:
        case DamagedFile():
            return ExitCode.DAMAGED
        case DataDirectoryError() | StorageFull():
            return ExitCode.DATA_UNUSABLE
        case CorruptRecord():
            return ExitCode.DAMAGED
        case CannotListen():
            return ExitCode.CANNOT_LISTEN
        case ClusterError() | MetadataUnavailable():
            return ExitCode.CLUSTER
        case InvalidConfig():
            return ExitCode.BAD_CONFIGURATION
        case _:
            return ExitCode.FAILED


async def _serve(
    config: ServerConfig, clock: Clock, handler: logs.ServerLogHandler, handled: list[signal.Signals]
) -> None:
    loop = asyncio.get_running_loop()
    summaries = Ticker(loop, clock, handler.sum_up, interval_ns=SECOND, warns=False)
    started_ns = clock.monotonic_ns()
    _log.info("opening the data directory", extra={"data": config.data})
    # With thousands of partitions the collector visits the growing heap again and again, and finds nothing: without it,
    # 3,000 partitions are opened in 0.26 instead of 0.70 s of CPU.
    gc.disable()
    async with running(config, clock=clock, observe=event_log.write_line) as server:
        elapsed_s = round((clock.monotonic_ns() - started_ns) / SECOND, 3)
        stop = _stop_on(handled)
        with _ports_file(server):
            _warn_if_public(server)
            gc.collect()
            gc.freeze()  # the objects of the start stay for good: later collections skip them
            gc.enable()
            _announce(server)
            _log.info("ready", extra={"seconds": elapsed_s, "pid": os.getpid()})
            await _until_stopped(server, stop)
    summaries.stop()
    _log.info("stopped")


async def _until_stopped(server: Server, stop: asyncio.Event) -> None:
    """Wait for a signal. Raises why the node must not go on, if that comes first."""
    if server.cluster is None:
        await stop.wait()
        return
    stopping = asyncio.ensure_future(stop.wait())
    await asyncio.wait((stopping, server.cluster.halted), return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if server.cluster.halted.done():
        raise server.cluster.halted.result()


def _announce(server: Server) -> None:
    http = server.http or "off"
    peer = f"peer={server.cluster.peer} " if server.cluster is not None else ""
    with suppress(OSError):  # standard output may be closed
        data = shlex.quote(str(server.data))
        print(f"goqueue ready native={server.native} http={http} {peer}data={data} pid={os.getpid()}", flush=True)


@contextmanager
def _ports_file(server: Server) -> Iterator[None]:
    """Write the addresses to `ports.json` while the block runs. A full disk does not keep the server from serving."""
    path = server.data / PORTS_FILE
    content = {"native": _ports(server.native), "http": _ports(server.http), "pid": os.getpid()}
    try:
        new = Path(f"{path}.new")
        new.write_text(json.dumps(content) + "\n")
        new.replace(path)
    except OSError as error:
        _log.warning("cannot write the ports file", extra={"path": str(path), "reason": error.strerror})
    try:
        yield
    finally:
        with suppress(OSError):
            path.unlink()


def _ports(address: Address | None) -> dict[str, object] | None:
    return {"host": address.host, "port": address.port} if address else None


def _stop_on(signals: list[signal.Signals]) -> asyncio.Event:
    """An event that the first signal sets; the second signal ends the process."""
    stop = asyncio.Event()

    def received(number: signal.Signals) -> None:
        if stop.is_set():
            os._exit(128 + number)
        _log.info("stopping", extra={"signal": number.name})
        stop.set()

    loop = asyncio.get_running_loop()
    for number in signals:
        loop.add_signal_handler(number, received, number)
    return stop


def _raise_file_limit() -> int:
    """Raise the limit of open files to what this process may have; returns the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
    return soft if soft != resource.RLIM_INFINITY else sys.maxsize


def _warn_if_public(server: Server) -> None:
    for door, address in (("native", server.native), ("http", server.http)):
        if address and not _is_loopback(address.host):
            _log.warning(
                "listening on a public address without authentication: every client can read and write everything",
                extra={"door": door, "address": str(address)},
            )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return host == "localhost"
