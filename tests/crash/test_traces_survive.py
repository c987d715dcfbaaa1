"""A broker is killed and comes back, and the timelines that it had written down are there to the last span."""

import json
import os
import subprocess
import sys
from pathlib import Path

from goqueue.client.sync import Client
from goqueue.clock import SECOND, SystemClock
from goqueue.wire.trace_reports import Trace
from tests.crash.phoenix import Phoenix

ROUNDS = 3
PATIENCE_NS = 60 * SECOND
TRACE = "0af7651916cd43dd8448eb211c80319c"
LAST = {"consume.acked", "consume.nacked", "dlq.routed"}


class TracingPhoenix(Phoenix):
    """One that writes its traces down."""

    def _serve(self, address: str) -> str:
        command = [sys.executable, "-m", "goqueue.cli", "serve", "--data", str(self._data), "--native", address]
        with self._errors.open("ab") as errors:
            self._process = subprocess.Popen(
                [*command, "--http", "off", "--log-level", "error"],
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env={**os.environ, "GOQUEUE_TRACES_TOPIC": "true"},
            )
        assert self._process.stdout
        line = self._process.stdout.readline()
        assert line.startswith("goqueue ready "), self.complaints
        return dict(fact.split("=", 1) for fact in line.split()[2:])["native"]


def live(client: Client, number: int) -> list[int]:
    """Three messages: one is acknowledged, one given back, one rejected. Their offsets."""
    headers = {"traceparent": f"00-{int(TRACE, 16) + number:032x}-b7ad6b7169203331-01"}
    offsets = [client.publish("orders", f"{number}-{name}", headers=headers).offset for name in ("good", "late", "bad")]
    with client.consumer("orders", group=f"group-{number}") as consumer:
        left = set(offsets)
        while left:
            for message in consumer.poll(10):
                if message.offset not in offsets[1:]:
                    message.ack()
                elif message.offset == offsets[1]:
                    message.nack(delay="1h")
                else:
                    message.reject(reason="poison")
                left.discard(message.offset)
    return offsets


def written(client: Client, group: str) -> set[str]:
    """Which of the last things that happen to messages of the group are in `__traces`."""
    with client.read("__traces") as messages:
        rows = [json.loads(message.value) for batch in iter(messages.next_batch, []) for message in batch]
    return LAST & {row["event_type"] for row in rows if row["consumer_group"] == group}


def wait_until_written(client: Client, group: str) -> None:
    end_ns = SystemClock().monotonic_ns() + PATIENCE_NS
    while "__traces" not in client.topics(internal=True) or written(client, group) != LAST:
        assert SystemClock().monotonic_ns() < end_ns


def test_timelines_outlive_the_process(tmp_path: Path) -> None:
    broker = TracingPhoenix(tmp_path / "data")
    seen: dict[int, Trace] = {}
    try:
        with Client(broker.address, timeout="60s") as client:
            client.create_topic("orders", partitions=1)
            for number in range(ROUNDS):
                offsets = live(client, number)
                wait_until_written(client, f"group-{number}")
                seen |= {offset: client.trace(("orders", 0, offset)) for offset in offsets}

                broker.kill()
                broker.restart()

                for offset in offsets:
                    trace = client.trace(("orders", 0, offset))
                    assert trace == seen[offset]
                    assert trace.trace_id == f"{int(TRACE, 16) + number:032x}"
                events = [span.event_type for span in trace.spans]
                assert events.count("publish.received") == 4  # three messages and a dead letter
                assert trace.status == "failed"
        assert broker.stop() == 0
    finally:
        if broker.is_running:
            broker.kill()
    assert not broker.complaints
