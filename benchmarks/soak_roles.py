"""Clients on partitions that change their leaders all the time: `python -m benchmarks.soak_roles [--seconds 60]`.

Every partition, those of coordinators and of dead letters included, loses its leader at random after 50 to 500 ms and
has another one a moment later. Meanwhile producers, transactions, delays, a schedule, schemas, a follower, and groups
in each mode work on them.
Whatever is lost, doubled, early or stuck, or any error that a client sees, ends it with what was seen. The tests run
the same for a few seconds.
"""

import argparse
import logging
import sys

from tests.crash.role_flapping import FlappingConfig, flap

FLUSHES = ("group", "interval")


def main() -> int:
    parser = argparse.ArgumentParser(description="Prove that clients do not notice changes of leaders.")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long leaders change")
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    logging.getLogger("goqueue").addHandler(logging.NullHandler())  # refused requests are what this is about
    for flush in FLUSHES:
        print(f"--- flush={flush}", flush=True)
        print(flap(FlappingConfig(seconds=asked.seconds, flush=flush, seed=asked.seed)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
