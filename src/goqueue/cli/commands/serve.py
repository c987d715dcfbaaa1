"""`goqueue serve`: run a broker."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from goqueue.cli.output import Format, FormatOption, complain, show, table, warn

if TYPE_CHECKING:
    from goqueue.server.config import ConfigFile, ServerConfig

BAD_CONFIGURATION_EXIT_CODE = 2
EXIT_CODES = (
    "Exit codes: 0 stopped, everything is on the medium; 1 failed while running; 2 the configuration is wrong; "
    "3 stored data are damaged; 4 the data directory cannot be used, or another process has it; "
    "5 an address cannot be listened on; 130, 143 a second Ctrl-C or SIGTERM."
)


def serve(
    data: Annotated[
        str | None, typer.Option(metavar="DIR", help="Where the data are; ./goqueue-data unless set.")
    ] = None,
    native: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Where clients connect; 127.0.0.1:7000 unless set. Port 0 is any."),
    ] = None,
    http: Annotated[
        str | None, typer.Option(metavar="HOST:PORT|off", help="Where HTTP is served; 127.0.0.1:8080 unless set.")
    ] = None,
    config: Annotated[
        Path | None, typer.Option(metavar="FILE", envvar="GOQUEUE_CONFIG", help="A TOML file with settings.")
    ] = None,
    node_id: Annotated[str | None, typer.Option(metavar="N", help="The number of this node; 0 unless set.")] = None,
    log_level: Annotated[
        str | None, typer.Option(metavar="LEVEL", help="The least that is logged: debug, info, warning or error.")
    ] = None,
    log_format: Annotated[
        str | None, typer.Option(metavar="FORMAT", help="text, json, or auto: text on a terminal, JSON elsewhere.")
    ] = None,
    show_config: Annotated[
        bool, typer.Option("--show-config", help="Show every setting and where it comes from, and run nothing.")
    ] = False,
    output: FormatOption = Format.TABLE,
) -> None:
    """Run a broker until SIGTERM or Ctrl-C.

    Every setting can stand in the file, in the environment (GOQUEUE_LOG_LEVEL) or, where there is one, in a flag;
    the later wins. When requests are served, one line on standard output says where; the log goes to standard error.
    """
    from goqueue.server.config import InvalidServerConfig, load

    flags = {
        "data": data,
        "native": native,
        "http": http,
        "node_id": node_id,
        "log.level": log_level,
        "log.format": log_format,
    }
    try:
        loaded = load(flags=flags, env=os.environ, file=_read(config) if config else None)
    except InvalidServerConfig as error:
        complain(str(error))
        raise typer.Exit(BAD_CONFIGURATION_EXIT_CODE) from None
    if show_config:
        _show(loaded, output)
        return
    from goqueue.server import runtime

    raise typer.Exit(runtime.serve(loaded))


def _show(config: "ServerConfig", output: Format) -> None:
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
