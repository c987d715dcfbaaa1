import pytest

from goqueue.errors import Conflict
from goqueue.storage.config import LogConfig
from goqueue.storage.delay_file import DelayFile
from goqueue.storage.directory import DataDirectory
from goqueue.storage.log import Log
from goqueue.testing import MemoryDisk
from goqueue.topics.partition import Partition
from tests.storage.logs import append, values_of

LEDGER = LogConfig(cleanup="compact")  # type: ignore[arg-type]


@pytest.fixture
def data(disk: MemoryDisk) -> DataDirectory:
    return DataDirectory.open(disk, "/data")


@pytest.fixture
def partition(disk: MemoryDisk, data: DataDirectory) -> Partition:
    def open_ledger(config: LogConfig) -> Log:
        return data.open_log("orders", 2, config, kind="ledger")

    return Partition(
        "orders",
        2,
        data.open_log("orders", 2),
        LEDGER,
        open_ledger,
        has_ledger=False,
        delay_file=DelayFile(disk, "/data/topics/orders/2", exists=False),
    )


def test_a_partition_is_called_after_its_topic_and_number(partition: Partition) -> None:
    assert partition.name == "orders-2"


def test_the_ledger_is_begun_on_first_use(partition: Partition, disk: MemoryDisk) -> None:
    assert not any("ledger" in path for path in disk.paths())
    assert partition.open_logs == (partition.log,)

    ledger = partition.ledger

    assert partition.ledger is ledger
    assert ledger.config is LEDGER
    assert ledger.directory == "/data/topics/orders/2/ledger"
    assert partition.open_logs == (partition.log, ledger)


def test_new_settings_reach_both_logs_whether_they_are_open_or_not(partition: Partition) -> None:
    log_config, early, late = LogConfig(segment_bytes=1), LogConfig(segment_bytes=2), LogConfig(segment_bytes=3)

    partition.configure(log_config, early)
    assert (partition.log.config, partition.ledger.config) == (log_config, early)
    partition.configure(log_config, late)

    assert partition.ledger.config is late


def test_an_abandoned_partition_makes_nothing_durable_and_takes_nothing(partition: Partition, disk: MemoryDisk) -> None:
    append(partition.log, [b"one"])
    append(partition.ledger, [b"floor"])
    steps = disk.steps

    partition.abandon()

    assert partition.is_closed
    assert (disk.steps, disk.open_files) == (steps, 0)
    for log in partition.open_logs:
        with pytest.raises(Conflict, match="is closed"):
            append(log, [b"two"])


def test_a_closed_partition_begins_no_ledger(partition: Partition, data: DataDirectory) -> None:
    data.close()

    with pytest.raises(Conflict, match="orders-2 is closed"):
        _ = partition.ledger


def test_a_ledger_is_closed_with_its_data_directory(
    partition: Partition, data: DataDirectory, disk: MemoryDisk
) -> None:
    append(partition.ledger, [b"floor"])

    data.close()

    again = DataDirectory.open(disk.crash(), "/data").open_log("orders", 2, kind="ledger")
    assert values_of(again) == [b"floor"]
