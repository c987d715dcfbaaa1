"""Benchmarks cannot rot: each runs here at its small size. What they measure is not judged, only that they do."""

import pytest

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
    soak_churn,
)
from benchmarks.harness import Result, machine_facts, print_table, to_json
from tests.spark.conftest import spark  # noqa: F401


@pytest.mark.parametrize(
    "benchmark",
    [
        bench_broker,
        bench_cluster,
        bench_delivery,
        bench_kernel,
        bench_log,
        bench_metadata,
        bench_schemas,
        bench_tracing,
        bench_transactions,
    ],
    ids=lambda module: module.__name__,
)
def test_a_benchmark_runs_at_its_small_size(benchmark) -> None:  # type: ignore[no-untyped-def]
    results = benchmark.run("small")

    assert results
    assert [result for result in results if result.value <= 0] == []


@pytest.mark.parametrize("kind", soak_churn.KINDS)
def test_a_broker_keeps_nothing_of_what_was_created_and_deleted(kind: str) -> None:
    assert soak_churn.growth(kind, **soak_churn.SMALL) == {}


@pytest.mark.usefixtures("spark")
def test_the_benchmark_of_spark_runs_at_its_small_size() -> None:
    results = bench_spark.run("small")

    assert [result for result in results if result.value <= 0] == []
    assert {"full scan, 100 B", "archive, 1 KB"} <= {result.name for result in results}


def test_results_come_as_a_table_and_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    results = [Result("append", 1234.5, "records/s", ">= 1000", True), Result("read", 2.0, "us", "< 1", False, "slow")]

    print_table(results)

    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split("|")[1].strip() == "benchmark"
    assert "yes" in lines[2]
    assert "NO" in lines[3]
    assert '"value": 1234.5' in to_json(results)
    assert machine_facts()["python"]
