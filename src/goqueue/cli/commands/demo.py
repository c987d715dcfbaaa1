"""`goqueue demo`: the main features, end to end, on a real broker in a process of its own.

Orders are published one by one, in batches and over HTTP, read by offset and by time, and followed. A group consumes
jobs; some fail, are dead-lettered and redriven. Reminders are delivered when they are due. Charges become receipts
exactly once. Spark archives a topic, groups failed shipments by cause, and redrives them. The broker is killed with
SIGKILL under load and started again. A bit is flipped on its disk. Every number that is shown is counted in this run,
and a check that fails ends the demo with an error.
"""

import json
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.request import Request, urlopen

from rich.panel import Panel

from goqueue.cli.output import console, say, size
from goqueue.clock import SECOND, SystemClock
from goqueue.record import kernel
from goqueue.storage.file import OsDisk
from goqueue.storage.inspection import inspect

if TYPE_CHECKING:
    from goqueue import Client, Handle
    from goqueue.spark.pipelines.archive import ArchiveConfig
    from goqueue.spark.pipelines.job import PipelineJob

ORDERS = 300_000
ORDERS_UNDER_FIRE = 150_000
CUSTOMERS = 97
KILLS = 2
JOBS = 2_000
SHIPMENTS = 20_000
MOST_KILOS = 100
_clock = SystemClock()


def demo() -> None:
    """Show what GoQueue does: publish, consume, redrive, archive, kill the broker, damage its disk."""
    from goqueue import Client

    console.print(Panel(f"GoQueue demo, with the {kernel.IMPLEMENTATION} record kernel"))
    with tempfile.TemporaryDirectory(prefix="goqueue-demo-") as temporary:
        directory = f"{temporary}/data"
        broker = _Broker(directory)
        with broker, Client(broker.native) as client:
            _publish(client)
            _read(client)
            _follow(client)
            _work(client)
            _delay(client)
            _transact(client)
            _http(client, broker.http)
            _spark(client, broker.native, temporary)
            _kill(client, broker)
        _damage(directory)
    console.print(Panel("[green]all checks passed[/]"))


class _Broker:
    """`goqueue serve` in a process of its own, on free ports that it keeps over restarts."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._process: subprocess.Popen[str] | None = None
        self.native = "127.0.0.1:0"
        self.http = "127.0.0.1:0"

    def start(self) -> None:
        command = [sys.executable, "-m", "goqueue.cli", "serve", "--data", self._directory]
        command += ["--native", self.native, "--http", self.http, "--log-level", "error"]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        ready = dict(word.split("=", 1) for word in self._process.stdout.readline().split() if "=" in word)
        self.native, self.http = ready["native"], ready["http"]

    def stop(self, how: signal.Signals) -> int:
        assert self._process is not None
        self._process.send_signal(how)
        self._process.communicate()
        return self._process.pid

    def __enter__(self) -> "_Broker":
        _step("start a broker: one process, one directory")
        self.start()
        _say(f"listening on {self.native} (native) and {self.http} (HTTP), data in {self._directory}")
        return self

    def __exit__(self, *_: object) -> None:
        self.stop(signal.SIGTERM)


def _publish(client: "Client") -> None:
    _step("publish: one message, several in one call, many with a producer")
    client.create_topic("orders", partitions=3, segment_bytes=8 * 1024 * 1024)
    done = client.publish("orders", {"id": 0, "total": 12}, key="customer-0", headers={"source": "demo"})
    _say(f"one order: {done.topic}-{done.partition} offset {done.offset}, on the disk at {done.timestamp:%H:%M:%S.%f}")
    many = client.publish_many("orders", [("customer-1", {"id": 1}), ("customer-2", {"id": 2}), b"any bytes"])
    _say(f"three more in one call: {', '.join(f'{one.topic}-{one.partition}@{one.offset}' for one in many)}")
    with _timed() as seconds, client.producer() as producer:
        for number in range(4, ORDERS):
            producer.send("orders", _order(number), key=_customer(number))
    _say(f"{ORDERS - 4:,} with keys by a producer, each synced to the disk: {(ORDERS - 4) / seconds():,.0f} a second")


def _read(client: "Client") -> None:
    _step("read: by offset, by time, all of it")
    (first,) = client.read("orders", partition=1, offset=100, limit=1)
    _say(f"orders-1 at offset 100: {first.text()} of {(first.key or b'').decode()}")
    halfway = first.timestamp + timedelta(seconds=0.2)
    later = next(iter(client.read("orders", partition=1, from_time=halfway, limit=1)))
    _say(f"the first one stored at {halfway:%H:%M:%S.%f} or later: offset {later.offset:,}")
    _check(later.timestamp >= halfway, "the order is older than asked for")
    with _timed() as seconds:
        messages = list(client.read("orders"))
    _say(f"all {len(messages):,} of 3 partitions read back in {seconds():.2f} s")
    _check(len(messages) == ORDERS, "orders are missing")
    in_order: dict[bytes, int] = {}
    for message in messages:
        if message.key and message.key != b"customer-0" and b"total" in message.value:
            number = message.json()["id"]
            _check(in_order.get(message.key, -1) < number, f"{message.key!r} is out of order")
            in_order[message.key] = number
    _say(f"the orders of each of {len(in_order)} customers are in the order in which they were sent")


def _follow(client: "Client") -> None:
    _step("follow: the broker pushes new messages")
    client.create_topic("ticks", partitions=1, flush="interval")
    seen: list[int] = []
    followed = client.follow("ticks", start="earliest", limit=20)

    def take() -> None:
        seen.extend(_clock.monotonic_ns() - message.json() for message in followed)

    follower = threading.Thread(target=take)
    follower.start()
    for _ in range(20):
        client.publish("ticks", _clock.monotonic_ns())
    follower.join()
    _say(f"20 ticks, from publish to receipt in {sorted(seen)[10] / 1e6:.2f} ms (median)")


def _work(client: "Client") -> None:
    _step("work: a group with acks, retries and dead letters")
    client.create_topic("jobs", partitions=3, max_deliveries=2, backoff_initial="100ms")
    client.publish_many("jobs", [("express", "ship it"), *((f"job-{number}", number) for number in range(JOBS))])
    client.publish("jobs", "first of all", priority="critical")
    done, failed = 0, 0
    for message in client.consume("jobs", group="workers", idle="1s"):
        with suppress(ValueError), message:
            if message.value.endswith(b"13"):
                failed += 1
                raise ValueError("unlucky number")
            done += 1
    _say(f"{done:,} jobs done; those that end in 13 failed {failed} times: {message.delivery_count} deliveries each")
    letters = client.describe_dead_letters("jobs")
    _say(f"jobs.dlq has {letters.messages} dead letters: {letters.by_error}")
    _check(letters.messages * 2 == failed, "dead letters are missing")
    redrive = client.redrive("jobs", where={"error_contains": "unlucky"})
    with client.consumer("jobs", group="workers") as consumer:
        again = 0
        while again < letters.messages:
            batch = consumer.poll(timeout="5s")
            _check(bool(batch), "redriven jobs are missing")
            consumer.ack(batch)
            again += len(batch)
    _say(f"redrive {redrive.id} returned {again} of them to jobs, and this time they were done")
    _check(not client.describe_dead_letters("jobs").messages, "there are dead letters left")
    lag = sum(position.lag for position in client.group_positions("workers"))
    _say(f"the lag of the group `workers` is {lag} messages")
    _check(not lag, "messages are stuck")


def _delay(client: "Client") -> None:
    _step("delay: a message is delivered when it is due, unless it is cancelled")
    client.create_topic("reminders", partitions=1)
    began = _clock.monotonic_ns()
    for delay in ("500ms", "100ms", "300ms"):
        client.publish("reminders", delay, delay=delay)
    never = client.publish("reminders", "never", delay="200ms")
    client.cancel(never)
    client.publish("reminders", "next year", delay="365d")
    came = []
    for message in client.consume("reminders", group="phone", limit=3):
        with message:
            came.append(f"{message.text()} after {(_clock.monotonic_ns() - began) / 1e6:.0f} ms")
    _say(", ".join(came))
    _check([text.split()[0] for text in came] == ["100ms", "300ms", "500ms"], "reminders came in another order")
    (waiting,) = client.delayed("reminders")
    _say(f"one was cancelled and never delivered; one at offset {waiting.offset} is due in a year")


def _transact(client: "Client") -> None:
    from goqueue import SchemaRejected

    _step("exactly once, from topic to topic: publish and acknowledge in one transaction")
    client.create_topic("charges", partitions=2)
    client.create_topic("receipts", partitions=2)
    schema = {"type": "object", "required": ["paid"], "properties": {"paid": {"type": "integer", "minimum": 1}}}
    client.register_schema("receipts-value", schema)
    for amount in range(1, 101):
        client.publish("charges", {"amount": amount}, key=f"customer-{amount % 7}")
    seen = 0
    with client.consumer("charges", group="receipts") as consumer:
        with suppress(_Stumbled), client.transaction("receipts-1") as transaction:
            batch = consumer.poll(max_messages=30, timeout="5s")
            for message in batch:
                transaction.send("receipts", {"paid": message.json()["amount"]}, key=message.key)
            transaction.ack(batch)
            raise _Stumbled
        _say(f"a worker failed in a batch of {len(batch)}: aborted, readers see {_count(client, 'receipts')} receipts")
        while seen < 100:
            batch = consumer.poll(max_messages=30, timeout="5s")
            with client.transaction("receipts-1") as transaction:
                for message in batch:
                    transaction.send("receipts", {"paid": message.json()["amount"]}, key=message.key)
                transaction.ack(batch)
            seen += len(batch)
    paid = sorted(message.json()["paid"] for message in client.read("receipts"))
    _say(f"then all are committed: {len(paid)} receipts, {len(set(paid))} different ones")
    _check(paid == list(range(1, 101)), "a receipt is missing, or there twice")
    try:
        client.publish("receipts", {"paid": -5})
    except SchemaRejected as error:
        _say(f"a value that does not fit the schema is refused: {error.path} {error.reason}")
    else:
        _check(False, "a value that does not fit was stored")
    spans = client.trace(batch[0]).spans
    _say("the trace of one charge: " + " -> ".join(span.event_type for span in spans))
    _check(spans[-1].event_type == "consume.acked", "the trace does not end with the ack")


class _Stumbled(Exception):
    """A worker fails halfway."""


def _count(client: "Client", topic: str) -> int:
    return sum(1 for _ in client.read(topic))


def _spark(client: "Client", address: str, directory: str) -> None:
    from goqueue.spark.pipelines.archive import ArchiveConfig
    from goqueue.spark.pipelines.job import JobConfig, running

    _step("the data pipeline: topics as tables in Spark")
    client.create_topic("shipments", partitions=3, max_deliveries=1)
    client.publish_many("shipments", ((_customer(number), _shipment(number)) for number in range(SHIPMENTS)))
    for message in client.consume("shipments", group="carriers", stop="empty", visibility="5m"):
        with suppress(ValueError), message:
            if message.json()["weight"] > MOST_KILOS:
                raise ValueError(f"parcel {message.json()['id']} is too heavy for van 'V-{message.offset % 7}'")
    with _timed() as starting, running("demo", JobConfig(server=address, log_path=f"{directory}/spark.log")) as job:
        _say(f"Spark {job.spark.version} is up, as {job.spark.sparkContext.master}")
        _archived(job, ArchiveConfig(topic="shipments", directory=f"{directory}/archive"))
        _redriven(job)
    _say(f"all of that in {starting():.0f} s, from the start of the JVM to its end")
    left = 0
    for message in client.consume("shipments", group="carriers", stop="empty"):
        with message:
            left += 1
    _say(f"the carriers processed the {left} redriven shipments")
    _check(left == _heavy() and not client.describe_dead_letters("shipments").messages, "shipments are missing")


def _archived(job: "PipelineJob", config: "ArchiveConfig") -> None:
    from goqueue.spark.pipelines import archive

    kept = archive.run(job, config)
    _say(f"{kept.messages:,} shipments archived as Parquet, {size(kept.size_bytes)} in {kept.files} file(s)")
    _check(kept.messages == SHIPMENTS, "shipments are missing in the archive")
    again = archive.run(job, config)
    _check(again.messages == 0, "what was archived was archived again")
    verdict = archive.verify(job, config)
    _check(verdict.is_good and not verdict.behind_count, "archive and topic are not the same")
    _say("a second run archives nothing, and `--verify` finds archive and topic equal, row by row")
    rows = archive.read(job.spark, config.directory).selectExpr("get_json_object(cast(value as string), '$.weight') kg")
    ((heaviest, count),) = rows.selectExpr("max(cast(kg as int))", "count(*)").collect()
    _say(f"SELECT max(weight), count(*) FROM archive -> {heaviest} kg, {count:,} rows")


def _redriven(job: "PipelineJob") -> None:
    from goqueue.spark.pipelines import dead_letters

    with dead_letters.report(job, "shipments", dead_letters.DeadLetterReportConfig()) as tables:
        (failure,) = tables["failures"].collect()
        _say(f"shipments.dlq, by cause: {failure['messages']} times {failure['fingerprint']!r}")
        _check(failure["messages"] == _heavy(), "dead letters are missing")
        redriven = dead_letters.redrive(tables["letters"], job, "shipments", dead_letters.RedriveConfig())
    _say(f"Spark chose {redriven.chosen} of them, the broker redrove {redriven.redriven}, each once")


def _http(client: "Client", address: str) -> None:
    _step("the same over HTTP")
    url = f"http://{address}/topics/orders"
    stored = _request("POST", f"{url}/messages", {"messages": [{"key": "curl", "value": "hello", "priority": "high"}]})
    (result,) = stored["results"]
    _say(f"POST /topics/orders/messages -> {json.dumps(result)}")
    query = f"partitions/{result['partition']}/messages?offset={result['offset']}"
    read = _request("GET", f"{url}/{query}")
    _say(f"GET  /topics/orders/{query} -> {read['messages'][0]['value']!r}")
    _check(read["messages"][0]["value"] == "hello", "another value came back")
    (message,) = client.read("orders", partition=result["partition"], offset=result["offset"])
    _say(f"and the Python client reads it as {message}")


def _kill(client: "Client", broker: _Broker) -> None:
    _step(f"kill -9 the broker {KILLS} times under load")
    client.create_topic("payments", partitions=3)
    handles: list[Handle] = []
    stopped = threading.Event()

    def fire() -> None:
        with client.producer() as producer:
            for number in range(ORDERS_UNDER_FIRE):
                handle = producer.send("payments", b"%d" % number, key=_customer(number))
                handles.append(handle)
        stopped.set()

    sender = threading.Thread(target=fire)
    sender.start()
    for kill in range(KILLS):
        # kill under load: some of the messages in flight are stored, others are not
        while sum(handle.is_done for handle in handles[-50_000:]) < 1_000 and not stopped.is_set():
            stopped.wait(0.05)
        pid = broker.stop(signal.SIGKILL)
        broker.start()
        _say(f"process {pid} killed, {'started again' if kill == 0 else 'and again'}; the producer retries by itself")
    sender.join()
    found: dict[bytes, list[int]] = {}
    for message in client.read("payments"):
        found.setdefault(message.key or b"", []).append(int(message.value))
    count = sum(map(len, found.values()))
    _say(f"{ORDERS_UNDER_FIRE:,} payments were sent, {count:,} are there")
    _check(count == ORDERS_UNDER_FIRE, "payments are missing, or there twice")
    _check(all(numbers == sorted(set(numbers)) for numbers in found.values()), "payments are out of order")
    _say("each exactly once, in order for each customer")


def _damage(directory: str) -> None:
    _step("flip one bit on the disk of the stopped broker, and verify")
    path = min(Path(directory, "topics", "orders", "0", "log").glob("*.log"))
    position = path.stat().st_size // 2
    with path.open("r+b") as file:
        file.seek(position)
        byte = file.read(1)[0]
        file.seek(position)
        file.write(bytes([byte ^ 0x10]))
    reports = list(inspect(OsDisk(), str(path.parent)))
    records, stored = sum(report.record_count for report in reports), sum(report.size for report in reports)
    _say(f"bit 4 of byte {position:,} of {path.name}; {records:,} records in {size(stored)} checked")
    (damage,) = (damage for report in reports for damage in report.damage)
    _check(damage.next_offset - damage.first_offset == 1, "more than one order is affected")
    _say(f"`goqueue log verify` finds offset {damage.first_offset:,} damaged, and nothing else")


def _request(method: str, url: str, body: object = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    with urlopen(Request(url, data, method=method)) as answer:
        return json.load(answer)


@contextmanager
def _timed() -> Iterator[Callable[[], float]]:
    started, ended = _clock.monotonic_ns(), 0  # the function is called after the block, when `ended` is set
    yield lambda: (ended - started) / SECOND
    ended = _clock.monotonic_ns()


def _order(number: int) -> bytes:
    return b'{"id": %d, "total": %d}' % (number, number * 7 % 1000)


def _shipment(number: int) -> bytes:
    return b'{"id": %d, "weight": %d}' % (number, number % 103)


def _heavy() -> int:
    return sum(number % 103 > MOST_KILOS for number in range(SHIPMENTS))


def _customer(number: int) -> str:
    return f"customer-{number % CUSTOMERS}"


def _check(holds: bool, otherwise: str) -> None:
    if not holds:
        raise AssertionError(otherwise)


def _step(title: str) -> None:
    console.print(f"\n[bold]{title}[/]")


def _say(text: str) -> None:
    say(f"  {text}")
