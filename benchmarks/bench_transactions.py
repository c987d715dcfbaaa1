"""What transactions cost: publishing inside of them against outside, and the commit.

Run as `python -m benchmarks.bench_transactions`. The broker is a process of its own. The yardstick is an idempotent
producer that sends as many messages as are in a transaction and waits until they are stored, as a transaction does at
its end; the note has the rate of one that never waits. Rounds of all three alternate, so that what the machine does
meanwhile hits them alike, and a share is the median over the rounds. Of the commits the best run counts.
"""

import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median

from benchmarks.harness import Result, main
from goqueue.cli.transaction_workloads import commit, publish, publish_plainly
from goqueue.cli.workloads import Workload, produce
from goqueue.client.sync import Client

SIZES = {"small": (5_000, 20, 1), "full": (500_000, 2_000, 5)}  # messages, commits, rounds
PER_TRANSACTION = (1_000, 100)
TARGETS = {1_000: 70.0}
PARTITIONS = 10
COMMIT_MS_MAX = 15.0


def run(size: str) -> list[Result]:
    messages, commits, rounds = SIZES[size]
    results: list[Result] = []
    with _client() as client:
        results += [
            _share(client, messages, count, flush, rounds)
            for flush in ("interval", "group")
            for count in PER_TRANSACTION
        ]
        results += _commits(client, commits, rounds)
    return results


def _share(client: Client, messages: int, per_transaction: int, flush: str, rounds: int) -> Result:
    shares, rates = [], []
    asked = _asked(messages, flush=flush)
    for _ in range(rounds):
        waiting = publish_plainly(client, asked, at_once=per_transaction).messages_per_second
        ours = publish(client, asked, per_transaction=per_transaction).messages_per_second
        shares.append(100 * ours / waiting)
        rates.append((ours, waiting, produce(client, asked).messages_per_second))
    share, target = median(shares), TARGETS.get(per_transaction)
    return Result(
        f"publish in transactions of {per_transaction:,}, flush={flush}",
        share,
        "% of idempotent",
        "" if target is None else f">= {target:g}",
        None if target is None else share >= target,
        "{:,.0f} msg/s; {:,.0f} without; {:,.0f} without waiting".format(*max(rates)),
    )


def _commits(client: Client, commits: int, rounds: int) -> Iterator[Result]:
    asked = _asked(commits * PARTITIONS, flush="group", partitions=PARTITIONS)
    best = min((commit(client, asked) for _ in range(rounds)), key=lambda one: one.p99_ms)
    name = f"commit over {PARTITIONS} partitions, flush=group"
    yield Result(f"{name}, p50", best.p50_ms, "ms", "", None)
    yield Result(f"{name}, p99", best.p99_ms, "ms", f"<= {COMMIT_MS_MAX:g}", best.p99_ms <= COMMIT_MS_MAX)


def _asked(count: int, *, flush: str, partitions: int = 3) -> Workload:
    return Workload(
        size=100,
        count=count,
        batch=1_000,
        batch_bytes=1024 * 1024,
        linger="5ms",
        partitions=partitions,
        acks="leader",
        flush=flush,
        rate=0,
        compression=None,
    )


@contextmanager
def _client() -> Iterator[Client]:
    with tempfile.TemporaryDirectory(prefix="goqueue-bench-") as data:
        command = [sys.executable, "-m", "goqueue.cli", "serve", "--data", data, "--log-level", "error"]
        command += ["--native", "127.0.0.1:0", "--http", "off"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
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
