"""`goqueue serve`: run a broker."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from goqueue.cli.output import FormatOption, OutputFormat, complain, show, table, warn

if TYPE_CHECKING:
    from goqueue.server.config import ConfigFile, ServerConfig

BAD_CONFIGURATION_EXIT_CODE = 2
EXIT_CODES = (
    "Exit codes: 0 stopped, all data are on disk; 1 failed while running; 2 the configuration is wrong; "
    "3 stored data are damaged; 4 the data directory cannot be used, or another process has it; "
    "5 an address cannot be listened on; 6 the node cannot be a part of its cluster; "
    "130, 143 a second Ctrl-C or SIGTERM."
)


def serve(
    data: Annotated[
        str | None, typer.Option(metavar="DIR", help="The data directory; default: ./goqueue-data.")
    ] = None,
    native: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="Address of the native protocol; default: 127.0.0.1:7000. Port 0 picks a free one.",
        ),
    ] = None,
    http: Annotated[
        str | None, typer.Option(metavar="HOST:PORT|off", help="Address of the HTTP API; default: 127.0.0.1:8080.")
    ] = None,
    config: Annotated[
        Path | None, typer.Option(metavar="FILE", envvar="GOQUEUE_CONFIG", help="A TOML file with settings.")
    ] = None,
    node_id: Annotated[str | None, typer.Option(metavar="N", help="The id of this node; default: 0.")] = None,
    metadata: Annotated[
        str | None,
        typer.Option(
            metavar="LOCATION",
            help="The metadata log of a cluster: file:DIR, or etcd://HOST:PORT,.../PREFIX; default: off, no cluster.",
        ),
    ] = None,
    peer: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Address for the other nodes of the cluster; default: 127.0.0.1:7001."),
    ] = None,
    rack: Annotated[
        str | None, typer.Option(metavar="NAME", help="The rack or zone: replicas go to different ones.")
    ] = None,
    disk_replaced: Annotated[
        bool | None,
        typer.Option(
            "--disk-replaced",
            help="For one start: the disk that this node had is lost, this one is new or restored from a backup.",
        ),
    ] = None,
    log_level: Annotated[
        str | None, typer.Option(metavar="LEVEL", help="Lowest level to log: debug, info, warning or error.")
    ] = None,
    log_format: Annotated[
        str | None, typer.Option(metavar="FORMAT", help="text, json, or auto: text on a terminal, JSON elsewhere.")
    ] = None,
    show_config: Annotated[
        bool, typer.Option("--show-config", help="Show every setting and its source, and exit.")
    ] = False,
    output: FormatOption = OutputFormat.TABLE,
) -> None:
    """Run a broker until SIGTERM or Ctrl-C.

    Settings come from the file, then the environment (GOQUEUE_LOG_LEVEL), then flags; the later wins. Once the broker
    is ready, it prints its addresses in one line to standard output. The log goes to standard error.
    """
    flags: dict[str, object] = {
        "data": data,
        "native": native,
        "http": http,
        "node_id": node_id,
        "metadata": metadata,
        "cluster.peer": peer,
        "cluster.rack": rack,
        "cluster.disk_replaced": disk_replaced,
        "log.level": log_level,
        "log.format": log_format,
    }
    loaded = load_or_exit(flags, config)
    if show_config:
        _show(loaded, output)
        return
    from goqueue.server import runtime

    raise typer.Exit(runtime.serve(loaded))


def load_or_exit(flags: dict[str, object], config: Path | None) -> "ServerConfig":
    """The settings of a server; if they are wrong, complain and exit."""
    from goqueue.server.config import InvalidServerConfig, load

    try:
        return load(flags=flags, env=os.environ, file=_read(config) if config else None)
    except InvalidServerConfig as error:
        complain(str(error))
        raise typer.Exit(BAD_CONFIGURATION_EXIT_CODE) from None


def _show(config: "ServerConfig", output: OutputFormat) -> None:
    for warning in config.warnings:
        warn(warning)
    rows = config.describe()
    shown = table(("setting", "value", "from"), ((row.setting, _text(row.value), row.source) for row in rows))
    show([row._asdict() for row in rows], output, shown)


def _read(path: Path) -> "ConfigFile":
    from goqueue.server.config import ConfigFile, InvalidServerConfig, Problem

    try:
        return ConfigFile(str(path), path.read_text(encoding="utf-8"))
    except OSError as error:
        reason = error.strerror or str(error)
    except UnicodeDecodeError:
        reason = "is not UTF-8"
    raise InvalidServerConfig([Problem("file", str(path), "--config or GOQUEUE_CONFIG", reason)])


def _text(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
