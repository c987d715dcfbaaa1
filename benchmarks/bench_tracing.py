"""What tracing costs: brokers that trace everything, one message in a hundred and nothing, in turns.

Run as `python -m benchmarks.bench_tracing`. Each broker is a process of its own. Each round produces to each of them
once, in an order that changes, so that what the machine does meanwhile hits all of them alike. A share is the median
over the rounds of one broker's rate against the untraced one's of the same round; the note has the time of the
processor that each spent.
"""

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from itertools import permutations
from statistics import median

from benchmarks.harness import Result, main
from goqueue.cli.workloads import Measured, Workload, produce
from goqueue.client.sync import Client

SIZES = {"small": (20_000, 1), "full": (1_000_000, 12)}  # messages, rounds
BROKERS: Mapping[str, Mapping[str, str]] = {
    "off": {"GOQUEUE_TRACES_ENABLED": "false"},
    "1 %": {"GOQUEUE_TOPICS_TRACE_SAMPLE_RATE": "0.01"},
    "100 %": {},
    "100 % and __traces": {"GOQUEUE_TRACES_TOPIC": "true"},
}
TARGETS: Mapping[str, float | None] = {"1 %": 98.0, "100 %": 90.0, "100 % and __traces": None}
BATCHES = {"100 / 64 KiB": (100, 64 * 1024), "10,000 / 1 MiB": (10_000, 1024 * 1024)}


def run(size: str) -> list[Result]:
    count, rounds = SIZES[size]
    results = []
    with ExitStack() as opened:
        clients = {name: opened.enter_context(_client(settings)) for name, settings in BROKERS.items()}
        for title, (batch, batch_bytes) in BATCHES.items():
            orders = list(permutations(clients))
            measured: list[dict[str, Measured]] = []
            for number in range(rounds):
                order = orders[number * 5 % len(orders)]
                measured.append({name: _produce(clients[name], count, batch, batch_bytes) for name in order})
            for name, target in TARGETS.items():
                results.append(_share(f"produce, batches of {title}, traced {name}", name, target, measured))
    return results


def _share(title: str, name: str, target: float | None, measured: list[dict[str, Measured]]) -> Result:
    share = 100 * median(one[name].messages_per_second / one["off"].messages_per_second for one in measured)
    cpu, untraced = (
        median(one[broker].broker_cpu_seconds * 1e6 / one[broker].messages for one in measured)
        for broker in (name, "off")
    )
    note = f"broker CPU per million {cpu:.2f} s, untraced {untraced:.2f} s"
    met = None if target is None else share >= target
    return Result(title, share, "% of untraced", "" if target is None else f">= {target:g}", met, note)


def _produce(client: Client, count: int, batch: int, batch_bytes: int) -> Measured:
    asked = Workload(
        size=100,
        count=count,
        batch=batch,
        batch_bytes=batch_bytes,
        linger="5ms",
        partitions=3,
        acks="leader",
        flush="interval",
        rate=0,
        compression=None,
    )
    return produce(client, asked)


@contextmanager
def _client(settings: Mapping[str, str]) -> Iterator[Client]:
    """A client of a broker with these settings."""
    with tempfile.TemporaryDirectory(prefix="goqueue-bench-") as data:
        command = [sys.executable, "-m", "goqueue.cli", "serve", "--data", data, "--log-level", "error"]
        command += ["--native", "127.0.0.1:0", "--http", "off"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, **settings})
        try:
            assert process.stdout is not None
            facts = dict(word.split("=", 1) for word in process.stdout.readline().split() if "=" in word)
            with Client(facts["native"], timeout="60s") as client:
                yield client
        finally:
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=60)


if __name__ == "__main__":
    main(run)
