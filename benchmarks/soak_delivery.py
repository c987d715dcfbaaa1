"""The promises of delivery, kept for long and at full size: `python -m benchmarks.soak_delivery [soak|kills|pending]`.

    soak      20 consumers over 200,000 messages for 60 s, some of them killed, in each mode of groups
    kills     the same with 50,000 messages, while the broker is killed ten times, for both ways to flush
    pending   the broker is killed with 100,000 delays, 50,000 leases and 1,000 retries pending, for both ways to flush

Whatever does not hold ends it with what was seen. The tests run the same at a smaller size.
"""

import argparse
import logging
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from tests.crash.pending import PendingConfig, PendingReport, kill_while_pending
from tests.crash.soak import SoakConfig, SoakReport, soak

FLUSHES = ("group", "interval")

Run = tuple[str, Callable[[Path], SoakReport | PendingReport]]
"""What it is called, and what runs it in a directory."""


def soaks(seed: int) -> Iterator[Run]:
    for mode in ("partitioned", "shared", "key-shared"):
        config = SoakConfig(
            messages=200_000,
            seconds=60,
            calm_s=120,
            partitions=24 if mode == "partitioned" else 6,
            mode=mode,
            keys=1_000 if mode == "key-shared" else 0,
            worker_kills=60,
            batch_max=500,
            seed=seed,
        )
        yield f"soak, {mode}", partial(soak, config)


def kills(seed: int) -> Iterator[Run]:
    for flush in FLUSHES:
        for mode in ("partitioned", "shared", "key-shared"):
            config = SoakConfig(
                messages=50_000,
                seconds=60,
                calm_s=120,
                partitions=24 if mode == "partitioned" else 6,
                mode=mode,
                keys=500 if mode == "key-shared" else 0,
                flush=flush,
                broker_kills=10,
                worker_kills=30,
                seed=seed,
            )
            yield f"kills, {mode}, flush={flush}", partial(soak, config)


def pendings(seed: int) -> Iterator[Run]:
    for flush in FLUSHES:
        config = PendingConfig(
            delays=100_000,
            in_flight=50_000,
            retries=1_000,
            kills=6,
            flush=flush,
            short_s=10,
            collected_s=5,
            window_s=30,
            timeout_s=120,
            seed=seed,
        )
        yield f"pending, flush={flush}", partial(kill_while_pending, config)


PARTS = {"soak": soaks, "kills": kills, "pending": pendings}


def main() -> int:
    parser = argparse.ArgumentParser(description="Prove at full size that no message is lost, stuck or done twice.")
    parser.add_argument("part", nargs="?", choices=PARTS, help="what to run; all if nothing is said")
    parser.add_argument("--only", default="", help="a word that must be in the name")
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    logging.getLogger("goqueue").addHandler(logging.NullHandler())  # what is refused is what this is about
    for part in [asked.part] if asked.part else PARTS:
        for name, run in PARTS[part](asked.seed):
            if asked.only in name:
                with tempfile.TemporaryDirectory() as directory:
                    print(f"--- {name}", flush=True)
                    print(run(Path(directory)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
