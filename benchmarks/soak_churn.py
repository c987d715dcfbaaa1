"""Memory after many short-lived things: `python -m benchmarks.soak_churn [--size small|full] [--only KIND]`.

A round creates one thing, uses it, and deletes it. The kinds are in `KINDS`: groups, topics, producers, schedules,
transactional ids, delayed messages, HTTP requests. After `warm_up` rounds of each kind the broker has its caches, its
internal topics and its full rings. From there on nothing may grow with the number of rounds:

    small   the broker runs in this process, and its objects, the entries of its containers and the lines of
            `/metrics` are counted. The tests run it.
    full    the broker is a process of its own; its resident memory after 1,000 rounds of each kind is compared with
            that after 10,000. Run by hand; it takes a quarter of an hour.
"""

import argparse
import gc
import subprocess
import sys
import tempfile
import urllib.request
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from benchmarks.harness import SIZES, Result, machine_facts, print_table
from goqueue import Client
from goqueue.testing import EmbeddedBroker

TOPIC = "churned"
GROWTH_MB_MAX = 5
SMALL = {"warm_up": 110, "rounds": 60}
TRACE_ROWS = 100  # of the ring in the small run: it has to be full when the first count is taken
CONTAINERS = (dict, list, set, OrderedDict, deque)
SEQUENCES = {"entries of dict"}  # one entry per producer and partition
BOUNDED = {  # by number; what a producer or a transaction leaves behind is remembered for days
    "producers": SEQUENCES,
    "transactions": {*SEQUENCES, "goqueue.transactions.producers.ProducerEntry", "entries of OrderedDict"},
    "delays": {"goqueue.delivery.delays.DelayEntry", "entries of OrderedDict"},
}


def a_group(client: Client, number: int) -> None:
    with client.consumer(TOPIC, group=f"group-{number}") as consumer:
        for message in consumer.poll(10, timeout="0s"):
            message.ack()
    client.delete_group(f"group-{number}")


def a_topic(client: Client, number: int) -> None:
    topic = f"topic-{number}"
    client.create_topic(topic, partitions=1)
    client.publish(topic, b"value")
    client.delete_topic(topic)


def a_producer(client: Client, number: int) -> None:
    with client.producer(linger="0ms") as producer:
        producer.send(TOPIC, b"value")


def a_schedule(client: Client, number: int) -> None:
    client.schedule(TOPIC, b"value", name=f"schedule-{number}", every="1h")
    client.delete_schedule(TOPIC, f"schedule-{number}")


def a_transaction(client: Client, number: int) -> None:
    with client.transaction(f"transaction-{number}") as transaction:
        transaction.send(TOPIC, b"value")


def a_delay(client: Client, number: int) -> None:
    client.cancel(client.publish(TOPIC, b"value", delay="1h"))


def a_dead_letter(client: Client, number: int) -> None:
    topic = f"rejected-{number}"
    client.create_topic(topic, partitions=1)
    client.publish(topic, b"value")
    with client.consumer(topic, group=f"rejecting-{number}") as consumer:
        for message in consumer.poll(1):
            message.reject(reason="broken")
    client.delete_group(f"rejecting-{number}")
    for name in (topic, f"{topic}.dlq"):
        client.delete_topic(name)


KINDS: dict[str, Callable[[Client, int], None]] = {
    "groups": a_group,
    "topics": a_topic,
    "producers": a_producer,
    "schedules": a_schedule,
    "transactions": a_transaction,
    "delays": a_delay,
    "dead letters": a_dead_letter,
}

DELETED = ("groups", "topics", "producers", "schedules")
"""Of these nothing is to be left, but for 140 bytes for each producer id. The others are remembered, as is promised:
transactional ids for seven days, the last 10,000 delayed messages of a partition.
"""


def churn(client: Client, kind: str, numbers: range) -> None:
    """So many rounds of one kind."""
    for number in numbers:
        KINDS[kind](client, number)


def prepare(client: Client) -> None:
    """The topic that all kinds use."""
    client.create_topic(TOPIC, partitions=1, retention_bytes=1_000_000, segment_bytes=1_000_000)
    client.publish_many(TOPIC, [b"value"] * 10)


# --- counting, in this process ---------------------------------------------------------------------


def count_objects(http: str) -> Counter[str]:
    """How many objects of each type there are, entries in containers, and lines of `/metrics`."""
    counts: Counter[str] = Counter()
    counts["lines of /metrics"] = metrics_lines(http)
    gc.collect()
    for one in gc.get_objects():
        counts[f"{type(one).__module__}.{type(one).__qualname__}"] += 1
        if type(one) in CONTAINERS:
            counts[f"entries of {type(one).__qualname__}"] += len(one)
    return counts


def metrics_lines(http: str) -> int:
    """How many series `GET /metrics` has."""
    with urllib.request.urlopen(f"{http}/metrics") as answer:
        return sum(1 for line in answer.read().splitlines() if not line.startswith(b"#"))


def growth(kind: str, *, warm_up: int, rounds: int) -> dict[str, int]:
    """What of the broker grew nearly with every round, and by how much; without what is bounded."""
    with EmbeddedBroker(traces_ring=TRACE_ROWS) as broker:
        with Client(broker.address) as client:
            prepare(client)
            churn(client, kind, range(warm_up))
        count_objects(broker.http_address)  # what the first look at /metrics makes is no growth
        before = count_objects(broker.http_address)
        with Client(broker.address) as client:
            churn(client, kind, range(warm_up, warm_up + rounds))
        after = count_objects(broker.http_address)
    grown = {name: count - before[name] for name, count in after.items() if count - before[name] >= rounds * 9 // 10}
    return {name: count for name, count in grown.items() if name not in BOUNDED.get(kind, ())}


# --- resident memory of a process ------------------------------------------------------------------


@contextmanager
def broker_process(data: Path) -> Iterator[tuple[int, str, str]]:
    """A `goqueue serve`: its pid, its address and the URL of its HTTP door."""
    command = [sys.executable, "-m", "goqueue.cli", "serve", "--data", str(data)]
    command += ["--native", "127.0.0.1:0", "--http", "127.0.0.1:0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert process.stdout is not None
        facts = dict(fact.split("=", 1) for fact in process.stdout.readline().split()[2:])
        yield process.pid, facts["native"], f"http://{facts['http']}"
    finally:
        process.terminate()
        process.communicate()


def resident_mb(pid: int) -> float:
    """The resident memory of a process."""
    status = Path(f"/proc/{pid}/status").read_text()
    kilobytes = next(line.split()[1] for line in status.splitlines() if line.startswith("VmRSS:"))
    return int(kilobytes) / 1000


def measured(kinds: list[str], *, warm_up: int, rounds: int) -> Iterator[Result]:
    """The resident memory after the first and after all rounds, kind by kind in one broker, and in all."""
    with ExitStack() as opened:
        directory = opened.enter_context(tempfile.TemporaryDirectory())
        pid, address, http = opened.enter_context(broker_process(Path(directory)))
        with Client(address) as client:
            prepare(client)
            for kind in kinds:
                churn(client, kind, range(warm_up))
            metrics_lines(http)
            first = before = resident_mb(pid)
            lines = metrics_lines(http)
            for kind in kinds:
                churn(client, kind, range(warm_up, rounds))
                after = resident_mb(pid)
                yield Result(f"{kind}: growth", after - before, "MB", "", None, f"{before:.1f} -> {after:.1f} MB")
                before = after
                if kind == DELETED[-1]:
                    name = f"{', '.join(DELETED)}: growth"
                    grown = after - first
                    yield Result(name, grown, "MB", f"<= {GROWTH_MB_MAX}", grown <= GROWTH_MB_MAX)
            yield Result("series of /metrics more", metrics_lines(http) - lines, "lines", "0", None)


def run(size: str, kinds: list[str]) -> list[Result]:
    if size == "full":
        return list(measured(kinds, warm_up=1_000, rounds=10_000))
    return [
        Result(f"{kind}: kinds of objects that grow", len(grown), "", "0", not grown, str(grown or ""))
        for kind in kinds
        for grown in [growth(kind, **SMALL)]
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description="See whether a broker keeps anything of what was deleted.")
    parser.add_argument("--size", choices=SIZES, default="full")
    parser.add_argument("--only", choices=KINDS)
    asked = parser.parse_args()
    results = run(asked.size, [asked.only] if asked.only else list(KINDS))
    print(", ".join(str(fact) for fact in machine_facts().values()), end="\n\n")
    print_table(results)
    return int(any(result.met is False for result in results))


if __name__ == "__main__":
    sys.exit(main())
