"""The tree of commands."""

import platform

import typer

import goqueue
from goqueue.cli.commands import (
    bench,
    cluster,
    consume,
    delayed,
    demo,
    dlq,
    doctor,
    group,
    lanes,
    log,
    pipeline_reports,
    produce,
    schedule,
    schema,
    serve,
    topic,
    trace,
    transaction,
)
from goqueue.cli.output import console
from goqueue.record import kernel

app = typer.Typer(help="GoQueue: one durable log that is both a Kafka and an SQS.", no_args_is_help=True)
app.command("serve", epilog=serve.EXIT_CODES)(serve.serve)
app.add_typer(topic.app, name="topic")
app.command("produce")(produce.produce)
app.command("consume")(consume.consume)
app.add_typer(group.app, name="group")
app.add_typer(delayed.app, name="delayed")
app.add_typer(schedule.app, name="schedule")
app.add_typer(dlq.app, name="dlq")
app.command("lanes")(lanes.lanes)
app.add_typer(transaction.app, name="transaction")
app.add_typer(schema.app, name="schema")
app.add_typer(trace.app, name="trace")
app.add_typer(pipeline_reports.app, name="pipeline")
app.add_typer(cluster.app, name="cluster")
app.add_typer(bench.app, name="bench")
app.add_typer(log.app, name="log")
app.command("doctor")(doctor.doctor)
app.command("demo")(demo.demo)


@app.command()
def version() -> None:
    """Show the versions of GoQueue and Python, and the record kernel in use."""
    console.print(f"goqueue {goqueue.__version__} (Python {platform.python_version()}, {kernel.IMPLEMENTATION} kernel)")
