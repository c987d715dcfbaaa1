"""One segment: hints that are wrong or lost cost time, never a record."""

import pytest

from goqueue.errors import StorageFailed
from goqueue.testing import FaultyDisk, MemoryDisk
from tests.storage.faulty import SETTINGS, check_reopened
from tests.storage.logs import NOW_NS, fill, open_log, values_of


@pytest.mark.parametrize("operation", ["open", "pwrite", "sync"])
@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_an_index_that_cannot_be_written_costs_no_record(
    disk: MemoryDisk, faulty: FaultyDisk, operation: str, suffix: str
) -> None:
    log = open_log(faulty, **SETTINGS)
    values = fill(log, 30)
    faulty.fail_next(operation, path_suffix=suffix, written=5)  # type: ignore[arg-type]

    try:
        log.flush()
    except StorageFailed:
        assert operation == "sync"
        assert values_of(log) == values
        return

    assert log.durable_offset == 30
    check_reopened(disk, values)


def test_a_time_that_was_looked_up_on_a_bad_day_of_the_disk_is_not_remembered() -> None:
    disk = MemoryDisk()
    log = open_log(disk, segment_bytes=20_000)
    fill(log, 400)
    log.close()
    for seed in range(20):
        faulty = FaultyDisk(disk, seed=seed)
        log = open_log(faulty, segment_bytes=20_000)
        faulty.rates["bit_flip"] = 0.9

        for offset in range(0, 400, 20):
            log.offset_at_time(NOW_NS + offset * 1_000_000)
        faulty.heal()

        found = [log.offset_at_time(NOW_NS + offset * 1_000_000) for offset in range(0, 400, 20)]
        assert found == list(range(0, 400, 20))
        log.close()
