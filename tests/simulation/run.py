"""Run the simulator for any number of seeds: `make simulate SEEDS=1000`, or one seed with its transcript.

python -m tests.simulation.run --seeds 1000          # 1 to 1000
python -m tests.simulation.run --seeds 5000-6000
python -m tests.simulation.run --seeds 41,57 --transcript
"""

import argparse
import logging
import sys
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from time import perf_counter
from typing import Final

from goqueue.cluster.node import Node
from goqueue.testing import SimulatedCluster, SimulationFailed

STEPS: Final = 120
SIZES: Final = (3, 3, 5, 3, 2, 3, 4, 1)
"""How many nodes the cluster of a seed has."""


def nodes_of(seed: int) -> int:
    return SIZES[seed % len(SIZES)]


def run_seed(seed: int, steps: int = STEPS, *, node_type: type[Node] = Node) -> str:
    """The transcript of this seed. Raises `SimulationFailed`."""
    with SimulatedCluster(seed, nodes_of(seed), node_type=node_type) as cluster:
        return cluster.run(steps).transcript.text


def seeds_of(text: str) -> Iterator[int]:
    """`1000` are the seeds from 1 on; `5-9` and `3,7` are these. A single seed is `41-41` or `41,`."""
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        if last:
            yield from range(int(first), int(last) + 1)
        elif "," in text:
            yield int(first)
        else:
            yield from range(1, int(first) + 1)


def outcome_of(seed: int) -> tuple[int, str | None, str]:
    """The seed, why it failed, and its transcript."""
    try:
        return seed, None, run_seed(seed)
    except SimulationFailed as failed:
        return seed, "; ".join(failed.broken) or str(failed).splitlines()[1], failed.transcript
    except Exception as error:  # a bug of the simulator is an outcome of this seed, too
        return seed, repr(error), ""


def main(arguments: Iterable[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="200", help="how many, or which: 200, 41-60, 41,57")
    parser.add_argument("--transcript", action="store_true", help="print the transcripts of those that succeed, too")
    parser.add_argument("--processes", type=int, default=None, help="how many at a time; as many as there are cores")
    options = parser.parse_args(list(arguments))
    logging.disable(logging.WARNING)  # faults are what this is about
    began = perf_counter()
    count = 0
    failed: list[int] = []
    with ProcessPoolExecutor(options.processes) as pool:
        for seed, reason, transcript in pool.map(outcome_of, seeds_of(options.seeds), chunksize=4):
            count += 1
            if reason is not None:
                failed.append(seed)
                print(f"seed {seed}, {nodes_of(seed)} nodes FAILED: {reason}", flush=True)
            if options.transcript:
                print(transcript)
    print(f"{count} seeds in {perf_counter() - began:.1f} s, {len(failed)} failed")
    if failed:
        print(f"one of them, with its transcript: make simulate SEEDS={failed[0]}, TRANSCRIPT=1")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
