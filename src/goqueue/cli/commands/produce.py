"""`goqueue produce`: publish one message, or every line of a file or of standard input, in a transaction or without.

In a transaction all lines become readable together after the last one is stored, or none of them if one fails.
Without one, Ctrl-C and SIGTERM store the lines that were read before the process ends.
"""

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO

import typer

from goqueue.cli import arguments
from goqueue.cli.broker import DEFAULT_SERVER, ServerOption, connected
from goqueue.cli.interrupts import EXIT_INTERRUPTED, EXIT_TERMINATED, Terminated, termination_raised
from goqueue.cli.output import FormatOption, OutputFormat, errors, plain, show, size, warn
from goqueue.clock import SECOND, SystemClock
from goqueue.errors import GoQueueError

if TYPE_CHECKING:
    from goqueue.client.producer import Producer
    from goqueue.client.transactions import Transaction

    Sender = Producer | Transaction

STANDARD_INPUT = Path("-")
PRIORITIES = ("critical", "high", "normal", "low", "background")


class _NoKey(GoQueueError):
    """A line has no separator."""

    code = "INVALID_MESSAGE"

    def __init__(self, line: int, separator: bytes, *, is_kept: bool) -> None:
        shown = separator.decode("utf-8", "backslashreplace")
        rest = f"{line - 1:,} lines before it are stored" if is_kept else "nothing is stored"
        super().__init__(f"line {line} has no {shown!r} between key and value; {rest}")


def produce(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="The topic.")],
    value: Annotated[str | None, typer.Argument(metavar="[VALUE]", help="The message.")] = None,
    file: Annotated[
        Path | None, typer.Option("--file", metavar="PATH", help="Publish every line of a file; - is standard input.")
    ] = None,
    key: Annotated[str | None, typer.Option("--key", "-k", help="The key of the message, or of all of them.")] = None,
    key_separator: Annotated[
        str | None, typer.Option(metavar="TEXT", help="The separator between key and value in each line.")
    ] = None,
    header: Annotated[
        list[str] | None, typer.Option("--header", "-H", metavar="NAME=VALUE", help="A header; repeatable.")
    ] = None,
    priority: Annotated[
        str | None, typer.Option(help=f"One of {', '.join(PRIORITIES)}.", autocompletion=lambda: list(PRIORITIES))
    ] = None,
    partition: Annotated[
        int | None, typer.Option("--partition", "-p", min=0, help="The partition; default: chosen by the key.")
    ] = None,
    acks: Annotated[
        str | None, typer.Option(help="none, leader or all; default: that of the topic.", metavar="ACKS")
    ] = None,
    delay: Annotated[
        str | None,
        typer.Option(metavar="DURATION", parser=arguments.delay, help="Deliver only after this, such as 30m."),
    ] = None,
    ttl: Annotated[
        str | None,
        typer.Option(metavar="DURATION", parser=arguments.ttl, help="Do not deliver after this, such as 1h."),
    ] = None,
    created_at: Annotated[
        str | None,
        typer.Option(metavar="TIME", parser=arguments.moment, help="When the message was made, such as 5m ago."),
    ] = None,
    compression: Annotated[
        str | None, typer.Option(help="none, zstd or lz4; default: that of the topic.", metavar="KIND")
    ] = None,
    transactional_id: Annotated[
        str | None,
        typer.Option(metavar="ID", help="Publish in one transaction under this id; it fences others."),
    ] = None,
    marker: Annotated[
        str | None, typer.Option(help="Do nothing if a transaction with this marker is committed.")
    ] = None,
    transaction_timeout: Annotated[
        str | None,
        typer.Option(metavar="DURATION", parser=arguments.duration, help="Timeout of the transaction; default: 60s."),
    ] = None,
    server: ServerOption = DEFAULT_SERVER,
    output: FormatOption = OutputFormat.TABLE,
) -> None:
    """Publish one message, or every line of a file or of standard input.

    goqueue produce orders '{"id": 1}' --key customer-42
    goqueue produce orders --file orders.jsonl --transactional-id import --marker orders-2026-01-31
    """
    if value is not None and file is not None:
        raise typer.BadParameter("give a value or a file, not both", param_hint="VALUE")
    if value is None and file is None and sys.stdin.isatty():
        raise typer.BadParameter("give a value, or --file, or pipe lines in", param_hint="VALUE")
    if key is not None and key_separator is not None:
        raise typer.BadParameter("give either --key or --key-separator", param_hint="--key")
    if transactional_id is None:
        _refuse_given({"marker": marker, "transaction_timeout": transaction_timeout}, "needs a --transactional-id")
    else:
        _refuse_given(
            {"acks": acks, "compression": compression}, "cannot be set in a transaction; the topic's value holds"
        )
    headers = arguments.pairs(header or (), option="--header")
    given = {
        "key": None if key is None else os.fsencode(key),
        "headers": {name: os.fsencode(text) for name, text in headers.items()} or None,
        "priority": priority,
        "partition": partition,
        "delay": delay,
        "ttl": ttl,
        "created_at": created_at,
    }
    message = {name: content for name, content in given.items() if content is not None}
    separator = None if key_separator is None else os.fsencode(key_separator)
    with termination_raised(), connected(server) as client:
        sender: Sender
        if transactional_id is None:
            sender = client.producer(**arguments.given({"acks": acks, "compression": compression}))
        else:
            chosen = arguments.given({"timeout": transaction_timeout, "marker": marker})
            sender = client.transaction(transactional_id, **chosen)
        if value is not None:
            _publish_one(sender, topic, os.fsencode(value), message, output)
        else:
            with _opened(file or STANDARD_INPUT) as lines:
                _publish_lines(sender, topic, lines, separator, message, output)


def _refuse_given(options: Mapping[str, object], reason: str) -> None:
    for name in arguments.given(options):
        raise typer.BadParameter(reason, param_hint=f"--{name.replace('_', '-')}")


def _publish_one(sender: "Sender", topic: str, value: bytes, message: dict[str, Any], output: OutputFormat) -> None:
    with sender as producer:
        if _was_committed(producer, output):
            return
        handle = producer.send(topic, value, **message)
    stored = handle.result()  # after the block: a producer is flushed, a transaction is committed
    data = {
        "topic": stored.topic,
        "partition": stored.partition,
        "offset": stored.offset,
        "timestamp": stored.timestamp.isoformat().replace("+00:00", "Z"),
    }
    show(data, output, plain(f"stored in {stored.topic}, partition {stored.partition}, offset {stored.offset}"))


def _publish_lines(
    sender: "Sender",
    topic: str,
    lines: BinaryIO,
    separator: bytes | None,
    message: dict[str, Any],
    output: OutputFormat,
) -> None:
    clock = SystemClock()
    started_ns = clock.monotonic_ns()
    count = byte_count = 0
    try:
        with sender as producer, _progress(lines) as advance:
            if _was_committed(producer, output):
                return
            for line in lines:
                value = line.removesuffix(b"\n").removesuffix(b"\r")
                if separator is not None:
                    key, found, value = value.partition(separator)
                    if not found:
                        raise _without_key(producer, count + 1, separator)
                    producer.send(topic, value, **message, key=key)
                else:
                    producer.send(topic, value, **message)
                count += 1
                byte_count += len(value)
                advance(len(line))
    except KeyboardInterrupt as interrupt:
        warn(f"interrupted after {count:,} messages to {topic}")
        raise typer.Exit(EXIT_TERMINATED if isinstance(interrupt, Terminated) else EXIT_INTERRUPTED) from None
    seconds = (clock.monotonic_ns() - started_ns) / SECOND
    data = {"topic": topic, "count": count, "bytes": byte_count, "seconds": round(seconds, 6)}
    rate = count / seconds if seconds else 0
    show(data, output, plain(f"{count:,} messages ({size(byte_count)}) stored in {topic}, {rate:,.0f} per second"))


def _was_committed(sender: "Sender", output: OutputFormat) -> bool:
    """Whether the marker is committed already; if so, print that."""
    from goqueue.client.transactions import Transaction

    if not isinstance(sender, Transaction) or not sender.already_committed:
        return False
    text = "a transaction with this marker is committed already; nothing is stored"
    show({"already_committed": True}, output, plain(text))
    return True


def _without_key(sender: "Sender", line: int, separator: bytes) -> _NoKey:
    """The error to raise. A producer stores the lines before it; a transaction stores nothing."""
    from goqueue.client.producer import Producer

    if isinstance(sender, Producer):
        sender.flush()
    return _NoKey(line, separator, is_kept=isinstance(sender, Producer))


@contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    if path == STANDARD_INPUT:
        yield sys.stdin.buffer
        return
    try:
        file = path.open("rb")
    except OSError as error:
        raise typer.BadParameter(f"{path}: {error.strerror}", param_hint="--file") from None
    with file:
        yield file


@contextmanager
def _progress(lines: BinaryIO) -> Iterator[Any]:
    """A progress bar on a terminal, with a total if the size of the file is known."""
    from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn

    if not errors.is_terminal:
        yield lambda size: None
        return
    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=errors, transient=True) as bar:
        task = bar.add_task("", total=_size_of(lines))
        yield lambda size: bar.advance(task, size)


def _size_of(lines: BinaryIO) -> int | None:
    from os import fstat
    from stat import S_ISREG

    found = fstat(lines.fileno())
    return found.st_size if S_ISREG(found.st_mode) else None
