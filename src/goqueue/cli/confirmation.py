"""The question before a command that loses data, and the error when there is no terminal to ask on."""

import sys
from typing import Annotated

import typer

YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]


def check(yes: bool, consequence: str) -> None:
    """Fail if the user has neither agreed nor can be asked."""
    if not yes and not sys.stdin.isatty():
        raise typer.BadParameter(f"this {consequence}; pass --yes when there is no terminal to confirm on")


def ask(question: str) -> None:
    """Abort unless the answer is yes. The question goes to standard error: standard output is for data."""
    typer.confirm(question, abort=True, err=True)
