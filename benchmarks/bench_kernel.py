"""The record kernel on batches of 1,000 records with values of 100 bytes, in C and in Python.

Run as `python -m benchmarks.bench_kernel`. Each number is the best of many rounds: what the code costs when
nothing else disturbs the machine.
"""

import gc
import importlib
import time
from array import array
from collections.abc import Callable
from types import ModuleType
from typing import Any

from benchmarks.harness import Result, main
from goqueue.names import TopicPartition
from goqueue.record import _kernel_py
from goqueue.record.header import FLAGS_FROM_PRODUCERS, OFFSET_MAX, TIMESTAMP_MIN, VALUE_BYTES_MAX
from goqueue.record.kernel import COLUMN_BITS
from goqueue.record.message import StoredMessage

RECORDS = {"small": 50, "full": 1_000}
VALUE = bytes(100)
KEY = b"customer-4711"
TIME = 1_700_000_000_000_000_000
ORIGIN = TopicPartition("orders", 0)

ROUNDS = {"small": {"c": 20, "python": 1}, "full": {"c": 3_000, "python": 5}}
TARGET_NS = {"encode": 40, "stamp": 40, "scan": 40, "decode": 250, "columns": 60}
SPEEDUP_TARGET = 20
SPEEDUPS = ("encode", "stamp", "scan")


def run(size: str) -> list[Result]:
    c = _c_kernel()
    python = _measure(_kernel_py, ROUNDS[size]["python"], RECORDS[size])
    if c is None:
        return [_without_target(f"{name}, Python", ns) for name, ns in python.items()]
    fast = _measure(c, ROUNDS[size]["c"], RECORDS[size])
    results = [_result(name, ns) for name, ns in fast.items()]
    results += [_speedup(name, python[name] / fast[name]) for name in SPEEDUPS]
    results += [_without_target(f"{name}, Python", ns) for name, ns in python.items()]
    return [*results, _crc_throughput(c)]


def _c_kernel() -> ModuleType | None:
    try:
        return importlib.import_module("goqueue.record._kernel")
    except ImportError:
        return None


def _measure(kernel: Any, rounds: int, records: int) -> dict[str, float]:
    """Nanoseconds per record for each of the calls."""
    values = [VALUE] * records
    keys = [KEY] * records
    plain = kernel.encode(values, None, None, 2, TIME, 0)
    everything = sum(COLUMN_BITS.values())

    record_type = StoredMessage if issubclass(StoredMessage, kernel.Record) else kernel.Record

    def stamp() -> Any:
        return kernel.stamp(plain, 0, TIME, FLAGS_FROM_PRODUCERS, VALUE_BYTES_MAX, 0, 0)

    stamp()
    mixed = kernel.encode(values, None, None, [index % 5 for index in range(records)], TIME, 0)
    kernel.stamp(mixed, 0, TIME, FLAGS_FROM_PRODUCERS, VALUE_BYTES_MAX, 0, OFFSET_MAX)
    every, every_fifth = array("Q", range(records)), array("Q", range(0, records, 5))
    calls: dict[str, Callable[[], Any]] = {
        "encode": lambda: kernel.encode(values, None, None, 2, TIME, 0),
        "encode with keys": lambda: kernel.encode(values, keys, None, 2, TIME, 0),
        "stamp": stamp,
        "scan": lambda: kernel.scan(plain, 0, True, 0, OFFSET_MAX, 0, 0, False),
        "decode": lambda: kernel.decode(plain, ORIGIN, record_type, True),
        "columns": lambda: kernel.columns(plain, everything, True),
        "filter": lambda: kernel.filter(plain, 0, OFFSET_MAX, 0x08, b"", TIME, None, TIMESTAMP_MIN),
        "strip values": lambda: kernel.strip(plain, 5),
        "outline": lambda: kernel.outline(plain),
        "outline of mixed priorities": lambda: kernel.outline(mixed),
        "select all": lambda: kernel.select(plain, every, OFFSET_MAX),
        "select every fifth": lambda: kernel.select(plain, every_fifth, OFFSET_MAX),
    }
    return {name: _best_ns(call, rounds) / records for name, call in calls.items()}


def _best_ns(call: Callable[[], Any], rounds: int) -> int:
    """The fastest of the rounds. What a call returns is thrown away outside of the measured time."""
    best = None
    gc.collect()
    for _ in range(rounds):
        start = time.perf_counter_ns()
        result = call()
        took = time.perf_counter_ns() - start
        del result
        best = took if best is None else min(best, took)
    assert best is not None
    return best


def _crc_throughput(c: ModuleType) -> Result:
    data = bytes(1024 * 1024)
    gb_per_second = len(data) / _best_ns(lambda: c.crc32c(data, 0), 50)
    note = "hardware" if c.hardware_crc() else "table"
    return Result("crc32c of 1 MiB", gb_per_second, "GB/s", "", None, note)


def _result(name: str, ns: float) -> Result:
    target = TARGET_NS.get(name)
    if target is None:
        return _without_target(name, ns)
    return Result(name, ns, "ns/record", f"<= {target} ns", ns <= target)


def _speedup(name: str, factor: float) -> Result:
    return Result(f"{name}, C over Python", factor, "x", f">= {SPEEDUP_TARGET} x", factor >= SPEEDUP_TARGET)


def _without_target(name: str, ns: float) -> Result:
    return Result(name, ns, "ns/record", "", None)


if __name__ == "__main__":
    main(run)
