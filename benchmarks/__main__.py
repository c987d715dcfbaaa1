"""All benchmarks, as a table and as JSON: `make bench`, or `python -m benchmarks --size small`."""

from benchmarks import (
    bench_broker,
    bench_cluster,
    bench_delivery,
    bench_kernel,
    bench_log,
    bench_metadata,
    bench_schemas,
    bench_spark,
    bench_tracing,
    bench_transactions,
)
from benchmarks.harness import Result, main

ALL = (
    bench_kernel,
    bench_log,
    bench_broker,
    bench_delivery,
    bench_schemas,
    bench_tracing,
    bench_transactions,
    bench_metadata,
    bench_cluster,
    bench_spark,
)


def run(size: str) -> list[Result]:
    return [result for benchmark in ALL for result in benchmark.run(size)]


main(run)
