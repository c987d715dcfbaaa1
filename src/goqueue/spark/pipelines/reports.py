"""The common part of reports: read a topic once, make tables of it, write them.

A report is a set of named tables over the same rows. The rows are read from the broker once, and Spark keeps them while
the report is open, on disk if memory does not suffice. Tables are small, unless they hold a row per message.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow
from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from goqueue.errors import InvalidRequest
from goqueue.spark.pipelines.job import PipelineJob, reason_of

Tables = Mapping[str, DataFrame]
Rows = list[dict[str, Any]]


@contextmanager
def kept(job: PipelineJob, topic: str, frame: DataFrame) -> Iterator[DataFrame]:
    """The rows of a frame over a topic, read now and kept in Spark during the block."""
    known = job.client.describe_topic(topic).partitions
    total = sum(one.last_stable_offset - one.start_offset for one in known)
    job.report("reading", 0, total, pending=total)
    read = frame.persist()
    try:
        read.count()
        job.report("reading", total, total)
        yield read
    finally:
        read.unpersist()


def frame_of(spark: SparkSession, rows: Iterable[Sequence[object]], fields: str) -> DataFrame:
    """Rows of this process as a table; `fields` is DDL. No Python worker is needed to read it."""
    schema = StructType.fromDDL(fields)
    assert isinstance(schema, StructType)
    names = schema.fieldNames()
    named = [dict(zip(names, row, strict=True)) for row in rows]
    data: Any = pyarrow.Table.from_pylist(named, to_arrow_schema(schema, timezone="UTC"))
    made: DataFrame = spark.createDataFrame(data, schema)
    return made


def rows(frame: DataFrame) -> Rows:
    """The rows of a table by the names of its columns; times are in UTC."""
    found: Rows = frame.toArrow().to_pylist()
    return found


def write(tables: Tables, directory: str) -> None:
    """Write each table as Parquet to a folder of its name, and replace what is there."""
    for name, frame in tables.items():
        frame.write.mode("overwrite").parquet(f"{directory.rstrip('/')}/{name}")


def where(frame: DataFrame, condition: str) -> DataFrame:
    """The rows that match an SQL condition. Raises `InvalidRequest` if it is malformed."""
    try:
        return frame.where(condition)
    except (AnalysisException, ParseException) as error:
        raise InvalidRequest(f"invalid condition {condition!r}: {reason_of(str(error))}", path="where") from None
