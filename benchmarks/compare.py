"""Two commits, measured in turns: `python -m benchmarks.compare REV [bench_delivery ...] [--rounds 2] [--size full]`.

The machines of this project change their speed within the hour, so numbers of two days say nothing about two commits.
Here each benchmark runs at both commits in alternation (old, new, new, old), each side in processes of its own with
its own kernel, and the best value of each side counts. Which of two values is better follows from their unit.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parent.parent
BENCHMARKS = (
    "bench_kernel",
    "bench_log",
    "bench_broker",
    "bench_delivery",
    "bench_schemas",
    "bench_tracing",
    "bench_transactions",
    "bench_metadata",
    "bench_spark",
)
MORE_IS_BETTER = ("/s", "%")
Values = dict[str, tuple[float, str]]


def main() -> None:
    """Measure the work tree against a commit."""
    parser = argparse.ArgumentParser(description=__doc__.partition(":")[0])
    parser.add_argument("revision")
    parser.add_argument("benchmarks", nargs="*", default=BENCHMARKS, metavar="BENCHMARK")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--size", choices=("small", "full"), default="full")
    options = parser.parse_args()

    with checked_out(options.revision) as before:
        print("| benchmark | before | now | now / before, better above 100 % |\n|---|---|---|---|")
        for benchmark in options.benchmarks:
            old, new = in_turns(benchmark, before, options.rounds, options.size)
            for name, (value, unit) in new.items():
                if name in old:
                    print(row(name, old[name][0], value, unit), flush=True)


@contextmanager
def checked_out(revision: str) -> Iterator[Path]:
    """A work tree of the commit, with its kernel built."""
    with tempfile.TemporaryDirectory() as directory:
        tree = Path(directory) / "before"
        subprocess.run(["git", "worktree", "add", "--quiet", "--detach", tree, revision], cwd=ROOT, check=True)
        try:
            build = [sys.executable, "setup.py", "--quiet", "build_ext", "--inplace"]
            subprocess.run(build, cwd=tree, check=True, stdout=subprocess.DEVNULL)
            yield tree
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", tree], cwd=ROOT, check=True)


def in_turns(benchmark: str, before: Path, rounds: int, size: str) -> tuple[Values, Values]:
    """The best values of both trees."""
    old: Values = {}
    new: Values = {}
    for number in range(rounds):
        sides = [(before, old), (ROOT, new)]
        for tree, best in sides if number % 2 == 0 else reversed(sides):
            for name, (value, unit) in measure(benchmark, tree, size).items():
                known = best.get(name, (value, unit))[0]
                best[name] = (better(known, value, unit), unit)
    return old, new


def measure(benchmark: str, tree: Path, size: str) -> Values:
    """One run of a benchmark in a tree."""
    with tempfile.NamedTemporaryFile(suffix=".json") as output:
        command = [sys.executable, "-m", f"benchmarks.{benchmark}", "--size", size, "--json", output.name]
        environment = {**os.environ, "PYTHONPATH": str(tree / "src")}
        subprocess.run(command, cwd=tree, check=True, stdout=subprocess.DEVNULL, env=environment)
        results = json.loads(Path(output.name).read_text())["results"]
    return {result["name"]: (result["value"], result["unit"]) for result in results}


def better(one: float, other: float, unit: str) -> float:
    """The better one of two values."""
    return max(one, other) if is_more_better(unit) else min(one, other)


def is_more_better(unit: str) -> bool:
    return unit.endswith(MORE_IS_BETTER)


def row(name: str, old: float, new: float, unit: str) -> str:
    """A row of the table."""
    factor = new / old if is_more_better(unit) and old else old / new if new else 0
    ratio = f"{100 * factor:.0f} %" if old and new else ""
    return f"| {name} | {old:,.4g} {unit} | {new:,.4g} {unit} | {ratio} |"


if __name__ == "__main__":
    main()
