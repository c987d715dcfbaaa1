"""`goqueue doctor`: check a running broker, and the files on its disk."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from goqueue.cli.broker import DEFAULT_SERVER, BrokerNotReached, ServerOption, connected
from goqueue.cli.output import FormatOption, OutputFormat, lasting, show, size, table
from goqueue.errors import DirectoryUnusable, GoQueueError
from goqueue.server.verification import is_in_use, verify
from goqueue.storage.file import OsDisk, Space

FAILED_EXIT_CODE = 1
DAMAGED_EXIT_CODE = 3


class Finding(NamedTuple):
    """One check and its result: `pass`, `warn` or `fail`."""

    check: str
    status: str
    message: str


def doctor(
    directory: Annotated[
        Path | None, typer.Argument(help="Also check the files in this data directory, without changing them.")
    ] = None,
    server: ServerOption = DEFAULT_SERVER,
    output: FormatOption = OutputFormat.TABLE,
) -> None:
    """Check a running broker and, with a directory, the files on its disk.

    Exit code 0 if no check fails, 1 if a check fails or a topic is not served, 3 if files are damaged.
    With a directory that no broker has open, only the files are checked.
    """
    path = None if directory is None else str(directory.absolute())
    is_running = path is None or is_in_use(OsDisk(), path)
    findings = list(_broker(server)) if is_running else [Finding("broker", "warn", "no broker has this directory open")]
    damaged = False
    if path is not None:
        for finding in _files(path):
            damaged |= finding.status == "fail"
            findings.append(finding)
    data = [finding._asdict() for finding in findings]
    show(data, output, table(("check", "status", "message"), findings, whole=("check", "status")))
    if damaged:
        raise typer.Exit(DAMAGED_EXIT_CODE)
    if any(finding.status == "fail" for finding in findings):
        raise typer.Exit(FAILED_EXIT_CODE)


def _broker(server: str) -> Iterator[Finding]:
    try:
        with connected(server) as client:
            health = client.health()
    except BrokerNotReached as error:
        yield Finding("broker", "fail", str(error))
        return
    except GoQueueError as error:
        yield Finding("broker", "fail", f"{server} does not report its health: {error}")
        return
    about = f"node {health.node_id}, goqueue {health.version}, up for {lasting(health.uptime_ns)}"
    for name, check in health.checks.items():
        yield Finding(name, check.status, check.message or (about if name == "broker" else "-"))
    for topic, reason in health.quarantined.items():
        yield Finding(f"topic {topic}", "fail", f"not served: {reason}")
    if health.disk_free_bytes is not None and health.disk_total_bytes is not None:
        space = Space(health.disk_free_bytes, health.disk_total_bytes)
        room = f"{size(health.disk_free_bytes)} of {size(health.disk_total_bytes)} free"
        yield Finding("disk", "warn" if space.is_low else "pass", room)


def _files(path: str) -> Iterator[Finding]:
    disk = OsDisk()
    count = 0
    try:
        for report in verify(disk, path):
            count += 1
            for found in report.damage:
                yield Finding("files", "fail", found if found.startswith(report.path) else f"{report.path}: {found}")
    except OSError as error:
        raise DirectoryUnusable(str(error.filename or path), error.strerror or str(error)) from error
    yield Finding("files", "pass", f"{count:,} files checked")
