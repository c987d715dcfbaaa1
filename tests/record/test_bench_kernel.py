import json

from benchmarks import bench_kernel
from benchmarks.harness import print_table, to_json
from tests.record.batches import needs_c


@needs_c
def test_the_benchmark_of_the_kernel_runs_and_reports(capsys):
    results = bench_kernel.run("small")

    print_table(results)

    names = [result.name for result in results]
    assert {"encode", "stamp", "scan", "decode", "columns", "filter", "scan, C over Python"} <= set(names)
    assert all(result.value > 0 for result in results)
    assert [entry["name"] for entry in json.loads(to_json(results))["results"]] == names
    table = capsys.readouterr().out.splitlines()
    assert len(table) == len(results) + 2
    assert len({len(line) for line in table}) == 1
