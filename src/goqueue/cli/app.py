"""The tree of commands."""

import platform

import typer

import goqueue
from goqueue.cli.commands import bench, consume, demo, log, produce, serve, topic
from goqueue.cli.output import console
from goqueue.record import kernel

app = typer.Typer(help="GoQueue: one durable log that is both a Kafka and an SQS.", no_args_is_help=True)
app.command("serve", epilog=serve.EXIT_CODES)(serve.serve)
app.add_typer(topic.app, name="topic")
app.command("produce")(produce.produce)
app.command("consume")(consume.consume)
app.add_typer(bench.app, name="bench")
app.add_typer(log.app, name="log")
app.command("demo")(demo.demo)


@app.command()
def version() -> None:
    """Show the versions of GoQueue, of Python, and which record kernel runs."""
    console.print(f"goqueue {goqueue.__version__} (Python {platform.python_version()}, {kernel.IMPLEMENTATION} kernel)")
