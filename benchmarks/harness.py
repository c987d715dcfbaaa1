"""What all benchmarks share: a result, the facts of the machine, a table, and a command line.

A benchmark is a module with `run(size) -> list[Result]`, where size is `small` (seconds; the tests run it) or
`full`. A result carries its target, so that a table says by itself what was promised and what was kept.
"""

import argparse
import json
import os
import platform
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

SIZES = ("small", "full")


@dataclass(frozen=True, slots=True)
class Result:
    """One measured number; `met` is None where there is no target."""

    name: str
    value: float
    unit: str
    target: str
    met: bool | None
    note: str = ""


def machine_facts() -> dict[str, str | int]:
    """What a reader needs to know to judge the numbers."""
    return {
        "cpu": _cpu_model(),
        "cores": os.cpu_count() or 0,
        "system": f"{platform.system()} {platform.release()}",
        "machine": platform.machine(),
        "python": platform.python_version(),
    }


def print_table(results: Sequence[Result]) -> None:
    """The results as a Markdown table that is also readable as it is."""
    rows: list[tuple[str, ...]] = [("benchmark", "measured", "target", "met", "note")]
    rows += [(result.name, _measured(result), result.target, _verdict(result), result.note) for result in results]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    rows.insert(1, tuple("-" * width for width in widths))
    for row in rows:
        print("| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |")


def to_json(results: Sequence[Result]) -> str:
    """The results with the facts of the machine."""
    return json.dumps({"machine": machine_facts(), "results": [asdict(result) for result in results]}, indent=2)


def main(run: Callable[[str], list[Result]]) -> None:
    """The command line of a benchmark."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--size", choices=SIZES, default="full")
    parser.add_argument("--json", type=Path, metavar="PATH", help="write the JSON there instead of after the table")
    options = parser.parse_args()

    results = run(options.size)
    print(", ".join(str(fact) for fact in machine_facts().values()), end="\n\n")
    print_table(results)
    if options.json:
        options.json.write_text(to_json(results) + "\n")
    else:
        print("\n" + to_json(results))


def _measured(result: Result) -> str:
    digits = 0 if result.value >= 1000 else 1 if result.value >= 10 else 2
    return f"{result.value:,.{digits}f} {result.unit}"


def _verdict(result: Result) -> str:
    return {None: "", True: "yes", False: "NO"}[result.met]


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(": ")[2] for line in lines if line.startswith("model name")), platform.processor())
