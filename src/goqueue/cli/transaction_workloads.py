"""The workloads of `goqueue bench transactions`: publish in transactions, and commit them.

As in `workloads.py`, each makes a topic of its own and uses the public client, which takes the times. The latencies are
those of commits, from the end of the block to the answer.
"""

from itertools import repeat

from goqueue.cli.workloads import Measured, Workload, measure, producer_for
from goqueue.client.sync import Client
from goqueue.clock import SystemClock
from goqueue.runtime.entropy import SystemEntropy

_clock = SystemClock()


def publish(client: Client, asked: Workload, *, per_transaction: int) -> Measured:
    """One producer, one `send` per message, `per_transaction` messages in each transaction, without a rate limit."""
    value = bytes(asked.size)
    latencies: list[int] = []
    name = f"bench-{SystemEntropy().bytes(4).hex()}"

    def run(topic: str) -> None:
        left = asked.count
        while left:
            count = min(left, per_transaction)
            with client.transaction(name) as transaction:
                send = transaction.send
                for _ in repeat(None, count):
                    send(topic, value)
                began = _clock.monotonic_ns()
            latencies.append(_clock.monotonic_ns() - began)
            left -= count

    return measure(client, f"transactions of {per_transaction}", asked, run, latencies)


def publish_plainly(client: Client, asked: Workload, *, at_once: int) -> Measured:
    """The same without transactions: `at_once` messages, and the next ones when all of these are stored."""
    value = bytes(asked.size)
    latencies: list[int] = []

    def run(topic: str) -> None:
        left = asked.count
        with producer_for(client, asked) as producer:
            send = producer.send
            while left:
                count = min(left, at_once)
                for _ in repeat(None, count):
                    send(topic, value)
                began = _clock.monotonic_ns()
                producer.flush()
                latencies.append(_clock.monotonic_ns() - began)
                left -= count

    return measure(client, f"{at_once} at once", asked, run, latencies)


def commit(client: Client, asked: Workload) -> Measured:
    """Transactions one after the other, each with one stored message in every partition; only commits are timed."""
    value = bytes(asked.size)
    latencies: list[int] = []
    name = f"bench-{SystemEntropy().bytes(4).hex()}"

    def run(topic: str) -> None:
        for _ in repeat(None, asked.count // asked.partitions):
            with client.transaction(name) as transaction:
                handles = [transaction.send(topic, value, partition=number) for number in range(asked.partitions)]
                for handle in handles:
                    handle.result()
                began = _clock.monotonic_ns()
            latencies.append(_clock.monotonic_ns() - began)

    return measure(client, "commit", asked, run, latencies)
