"""A broker in a process of its own, measured through its doors: what `goqueue bench` measures, and HTTP, and starting.

Run as `python -m benchmarks.bench_broker`. Every workload is made several times, and the best run counts. HTTP is
loaded by `wrk`, and publishing one at a time is compared with Redis Streams in the same run; where `wrk`, or
`redis-server` and `redis`, are not installed, these rows are left out.
"""

import json
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from urllib.request import Request, urlopen

from benchmarks.harness import Result, main
from goqueue.cli.workloads import Measured, Workload, consume, end_to_end, latency, produce
from goqueue.client.sync import Client

# messages produced, consumed, published one by one (interval, group), seconds at a rate, runs, topics, seconds of HTTP
SIZES = {
    "small": (20_000, 20_000, 100, 20, 0.2, 1, 20, 0.3),
    "full": (1_000_000, 5_000_000, 5_000, 1_000, 5.0, 5, 1_000, 5.0),
}
BATCH = (100, 64 * 1024)  # messages, bytes
LARGE_BATCH = (10_000, 1024 * 1024)
ALONE = (1, 1024 * 1024)
HTTP_CONNECTIONS = 16
HTTP_BATCH = 1_000
IDLE_SECONDS = {"small": 0.2, "full": 10.0}


class Served(NamedTuple):
    process: subprocess.Popen[str]
    native: str
    http: str


def run(size: str) -> list[Result]:
    produced, consumed, singles, synced, seconds, runs, topics, http_seconds = SIZES[size]
    results: list[Result] = []
    with _broker() as served, Client(served.native, timeout="60s") as client:
        best = _best(runs, lambda: produce(client, _asked(produced, BATCH)))
        results.append(_rate("produce, batches of 100 / 5 ms / 64 KiB", best, 900_000))
        cpu = best.broker_cpu_seconds * 1e6 / best.messages
        results.append(Result("broker CPU per million of these", cpu, "s", "<= 0.4", cpu <= 0.4))
        large = _best(runs, lambda: produce(client, _asked(produced, LARGE_BATCH)))
        results.append(_rate("produce, batches of 10,000 / 1 MiB", large, 1_300_000))
        for name, batch, yardstick in (("100", BATCH, best), ("10,000", LARGE_BATCH, large)):
            group = _best(runs, partial(produce, client, _asked(produced, batch, flush="group")))
            share = 100 * group.messages_per_second / yardstick.messages_per_second
            note = f"{group.messages_per_second:,.0f} msg/s"
            results.append(Result(f"the same, batches of {name}, flush=group", share, "%", ">= 70", share >= 70, note))
        tenfold = produce(client, _asked(10 * produced, BATCH))
        share = 100 * tenfold.messages_per_second / best.messages_per_second
        results.append(Result("ten times as many messages, per message", share, "% of the speed", "flat", None))
        read = _best(runs, lambda: consume(client, _asked(consumed, LARGE_BATCH)))
        results.append(_rate("consume a backlog into messages", read, 2_000_000))
        results += _latencies(client, served, singles, synced, seconds, runs)
        results += _http(client, served.http, http_seconds, runs)
    results += _many_topics(topics, size)
    return results


def _latencies(
    client: Client, served: Served, singles: int, synced: int, seconds: float, runs: int
) -> Iterator[Result]:
    rounds = [(latency(client, _asked(singles, ALONE)), _redis(singles)) for _ in range(runs)]
    ours = min((one for one, _ in rounds), key=lambda one: one.p99_ms)
    theirs = min((other for _, other in rounds if other), key=lambda other: other[1], default=None)
    note = f"Redis XADD {theirs[0]:.2f} / {theirs[1]:.2f} ms" if theirs else "Redis is not here"
    for name, value, other in (("p50", ours.p50_ms, 0), ("p99", ours.p99_ms, 1)):
        met = value <= theirs[other] if theirs else None
        yield Result(f"publish one at a time, {name}", value, "ms", "<= Redis XADD", met, note)
    group = _best(runs, lambda: latency(client, _asked(synced, ALONE, flush="group")), by_p99=True)
    yield _wait("publish one at a time, flush=group, p99", group.p99_ms, 10)
    slow = _best(runs, lambda: _end_to_end(client, served, 1_000, seconds), by_p99=True)
    yield _wait("end to end, 1,000 msg/s, p50", slow.p50_ms, 0.25)
    yield _wait("end to end, 1,000 msg/s, p99", slow.p99_ms, 0.6)
    fast = _best(runs, lambda: _end_to_end(client, served, 10_000, seconds), by_p99=True)
    yield _wait("end to end, 10,000 msg/s, p99", fast.p99_ms, 5)


def _end_to_end(client: Client, served: Served, rate: int, seconds: float) -> Measured:
    return end_to_end(client, _asked(int(rate * seconds), ALONE, rate=rate), served.native)


def _http(client: Client, address: str, seconds: float, runs: int) -> Iterator[Result]:
    wrk = shutil.which("wrk")
    if wrk is None:
        return
    client.create_topic("http", flush="interval")
    url = f"http://{address}/topics/http/messages"
    single = {"value": "x" * 100, "key": "customer-42"}
    best = max((_wrk(wrk, url, single, seconds) for _ in range(runs)), key=lambda one: one[0])
    yield Result("HTTP publish, single messages, 16 connections", best[0], "req/s", ">= 6,000", best[0] >= 6_000)
    yield _wait("HTTP publish, p99", best[1], 10)
    batch = {"messages": [{"value": "x" * 100}] * HTTP_BATCH}
    many = max((_wrk(wrk, url, batch, seconds) for _ in range(runs)), key=lambda one: one[0])
    rate = many[0] * HTTP_BATCH
    yield Result("HTTP publish, batches of 1,000", rate, "msg/s", ">= 150,000", rate >= 150_000)
    with urlopen(Request(url, json.dumps(single).encode())) as answer:  # the requests above did what they were to do
        assert json.load(answer)["results"][0]["offset"] > 0


def _wrk(wrk: str, url: str, body: object, seconds: float) -> tuple[float, float]:
    """Requests per second, and their p99 in ms."""
    script = f"""
wrk.method = "POST"
wrk.body = [[{json.dumps(body)}]]
wrk.headers["Content-Type"] = "application/json"
done = function(summary, latency, requests)
  local facts = {{summary.requests, summary.duration, latency:percentile(99), summary.errors.status}}
  io.write("@" .. table.concat(facts, " "))
end
"""
    with tempfile.NamedTemporaryFile("w", suffix=".lua") as file:
        file.write(script)
        file.flush()
        command = [wrk, "-t1", f"-c{HTTP_CONNECTIONS}", f"-d{max(1, round(seconds))}s", "-s", file.name, url]
        output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    requests, duration_us, p99_us, errors = (int(float(fact)) for fact in output.rpartition("@")[2].split())
    assert not errors, output
    return requests * 1e6 / duration_us, p99_us / 1_000


def _redis(count: int) -> tuple[float, float] | None:
    """p50 and p99 in ms of XADD through redis-py, if both are here."""
    with redis_client() as client:
        if client is None:
            return None
        return timed(count, lambda: client.xadd("stream", {"value": bytes(100)}))


def timed(count: int, work: Callable[[], object]) -> tuple[float, float]:
    """p50 and p99 in ms of so many times that work."""
    waits = []
    for _ in range(count):
        began = time.perf_counter()
        work()
        waits.append(time.perf_counter() - began)
    waits.sort()
    return waits[count // 2] * 1e3, waits[int(count * 0.99)] * 1e3


@contextmanager
def redis_client() -> Iterator[Any]:
    """A client of a Redis without persistence, if both are here."""
    server = shutil.which("redis-server")
    try:
        import redis
    except ImportError:
        server = None
    if server is None:
        yield None
        return
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "redis.sock")
        port = 17_399
        command = [server, "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", directory]
        process = subprocess.Popen([*command, "--unixsocket", str(path)], stdout=subprocess.DEVNULL)
        try:
            while not path.exists():
                time.sleep(0.01)
            client: Any = redis.Redis(port=port)
            yield client
            client.close()
        finally:
            process.terminate()
            process.wait()


def _many_topics(count: int, size: str) -> Iterator[Result]:
    with tempfile.TemporaryDirectory(prefix="goqueue-bench-") as data:
        with _broker(data) as served, Client(served.native) as client:
            for number in range(count):
                client.create_topic(f"topic-{number}", partitions=3)
                client.publish(f"topic-{number}", b"x")
        began = time.perf_counter()
        with _broker(data) as served, Client(served.native) as client:
            started = time.perf_counter() - began
            before = client.stats()
            time.sleep(IDLE_SECONDS[size])
            after = client.stats()
    idle = 100 * (after.cpu_ns - before.cpu_ns) / (after.uptime_ns - before.uptime_ns)
    rss = after.rss_bytes / 1e6
    name = f"{count:,} topics x 3 partitions"
    yield Result(f"{name}: start", started, "s", "<= 3", started <= 3)
    yield Result(f"{name}: idle CPU", max(idle, 0.001), "%", "<= 2", idle <= 2)
    yield Result(f"{name}: memory", rss, "MB", "<= 300", rss <= 300)


@contextmanager
def _broker(data: str | None = None) -> Iterator[Served]:
    with tempfile.TemporaryDirectory(prefix="goqueue-bench-") as own:
        command = [sys.executable, "-m", "goqueue.cli", "serve", "--data", data or own, "--log-level", "error"]
        command += ["--native", "127.0.0.1:0", "--http", "127.0.0.1:0"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            assert process.stdout is not None
            facts = dict(word.split("=", 1) for word in process.stdout.readline().split() if "=" in word)
            yield Served(process, facts["native"], facts["http"])
        finally:
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=60)


def _asked(count: int, batch: tuple[int, int], *, flush: str = "interval", rate: int = 0) -> Workload:
    return Workload(
        size=100,
        count=count,
        batch=batch[0],
        batch_bytes=batch[1],
        linger="5ms",
        partitions=3,
        acks="leader",
        flush=flush,
        rate=rate,
        compression=None,
    )


def _best(runs: int, measure: Callable[[], Measured], *, by_p99: bool = False) -> Measured:
    return min((measure() for _ in range(runs)), key=lambda one: one.p99_ms if by_p99 else one.seconds)


def _rate(name: str, measured: Measured, target: int) -> Result:
    rate = measured.messages_per_second
    return Result(name, rate, "msg/s", f">= {target:,}", rate >= target)


def _wait(name: str, value_ms: float, target_ms: float) -> Result:
    return Result(name, value_ms, "ms", f"<= {target_ms:g} ms", value_ms <= target_ms)


if __name__ == "__main__":
    main(run)
