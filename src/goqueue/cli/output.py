"""Where commands write: tables and text to standard output, complaints to standard error.

What comes from outside, such as a path, is never taken for markup, and what no terminal can show is escaped.
"""

from rich.console import Console
from rich.text import Text

console = Console()
_errors = Console(stderr=True)

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def say(text: str) -> None:
    """One line, as it is."""
    console.print(_plain(text), soft_wrap=True)


def say_damaged(text: str) -> None:
    """One line about something that was found damaged."""
    console.print(Text.assemble(("damaged ", "red"), _plain(text)), soft_wrap=True)


def complain(text: str) -> None:
    """Why a command failed."""
    _errors.print(Text.assemble(("error ", "bold red"), _plain(text)), soft_wrap=True)


def _plain(text: str) -> Text:
    return Text(text.encode("utf-8", "backslashreplace").decode())


def size(count: float) -> str:
    """A number of bytes as people say it."""
    for unit in _UNITS[:-1]:
        if abs(count) < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} {_UNITS[-1]}"
