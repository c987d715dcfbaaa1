"""How Spark comes to know the source, and that nobody else pays for it."""

import subprocess
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from pyspark.sql.datasource import DataSource

from goqueue.client.sync import Client
from goqueue.testing import EmbeddedBroker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with EmbeddedBroker(http=False) as broker, Client(broker.address) as gq:
        gq.create_topic("orders", partitions=2)
        gq.publish_many("orders", [(f"k{number}", str(number)) for number in range(10)])
        yield broker.address


def modules_after(statement: str) -> set[str]:
    script = f"{statement}\nimport sys\nprint(' '.join(sys.modules))"
    return set(
        subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    )


def test_spark_finds_it_by_the_name_of_its_package() -> None:
    import pyspark_goqueue
    from goqueue.spark import GoQueueDataSource

    assert pyspark_goqueue.DefaultSource is GoQueueDataSource
    assert issubclass(pyspark_goqueue.DefaultSource, DataSource)
    assert pyspark_goqueue.DefaultSource.name() == "goqueue"


@pytest.mark.parametrize("statement", ["import goqueue", "import goqueue.cli.main", "import goqueue.spark"])
def test_spark_is_not_imported_before_it_is_needed(statement: str) -> None:
    assert not modules_after(statement) & {"pyspark", "pyarrow", "py4j"}


def test_what_is_not_there_is_an_attribute_error() -> None:
    import goqueue.spark

    with pytest.raises(AttributeError, match="nothing"):
        goqueue.spark.nothing  # noqa: B018


def test_a_session_knows_it_without_being_told(spark: "SparkSession", address: str) -> None:
    frame = spark.read.format("goqueue").option("server", address).option("subscribe", "orders").load()
    assert frame.columns == [
        "key",
        "value",
        "topic",
        "partition",
        "offset",
        "timestamp",
        "priority",
        "deliver_at",
    ]
    assert frame.count() == 10


def test_a_topic_is_a_table_of_sql(spark: "SparkSession", address: str) -> None:
    spark.sql(
        f"CREATE OR REPLACE TEMP VIEW orders USING goqueue "
        f"OPTIONS (server '{address}', subscribe 'orders', startingTimestamp '2h ago', columns 'key,value')"
    )
    try:
        (row,) = spark.sql("SELECT count(*) AS n, max(cast(cast(value AS string) AS int)) AS top FROM orders").collect()
        assert (row.n, row.top) == (10, 9)
    finally:
        spark.catalog.dropTempView("orders")


def test_it_can_be_registered_by_hand(spark: "SparkSession", address: str) -> None:
    from goqueue.spark import GoQueueDataSource

    spark.dataSource.register(GoQueueDataSource)
    frame = spark.read.format("goqueue").option("server", address).option("assign", '{"orders": [0]}').load()
    assert {row.partition for row in frame.select("partition").collect()} == {0}
