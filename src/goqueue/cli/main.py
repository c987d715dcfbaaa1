"""The `goqueue` command: builds the tree of commands and turns our errors into one readable line.

Exit codes: 0 all went well, 1 the request failed, 2 it was malformed, 3 damage was found.
"""

import platform
import sys

import typer

import goqueue
from goqueue.cli.commands import demo, log
from goqueue.cli.output import console, errors
from goqueue.errors import GoQueueError
from goqueue.record import kernel

app = typer.Typer(help="GoQueue: one durable log that is both a Kafka and an SQS.", no_args_is_help=True)
app.command("demo")(demo.demo)
app.add_typer(log.app, name="log")


@app.command()
def version() -> None:
    """Show the versions of GoQueue, of Python, and which record kernel runs."""
    console.print(f"goqueue {goqueue.__version__} (Python {platform.python_version()}, {kernel.IMPLEMENTATION} kernel)")


def main() -> None:
    """Run the command line."""
    try:
        app()
    except GoQueueError as error:
        errors.print(f"[bold red]error[/] {error}", highlight=False, soft_wrap=True)
        sys.exit(1)
