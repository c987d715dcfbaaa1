"""What is asked before something is lost, and what is said where nobody can be asked."""

import sys
from typing import Annotated

import typer

YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


def check(yes: bool, consequence: str) -> None:
    """Refuse what nobody has agreed to and nobody can be asked about."""
    if not yes and not sys.stdin.isatty():
        raise typer.BadParameter(f"this {consequence}; say --yes where nobody can be asked")


def ask(question: str) -> None:
    """Go on only if the answer is yes. Standard output is left to what the command has to say."""
    typer.confirm(question, abort=True, err=True)
