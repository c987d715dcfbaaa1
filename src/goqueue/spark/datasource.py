"""The data source that Spark knows as `goqueue`: it reads options, and hands them to source and sink."""

from functools import cached_property

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from goqueue.errors import GoQueueError
from goqueue.spark.columns import TypedValues
from goqueue.spark.link import readable_errors
from goqueue.spark.options import SourceOptions
from goqueue.spark.source import GoQueueReader, GoQueueStreamReader, PushdownReader, RefusedStream, columns_of


class GoQueueDataSource(DataSource):
    """Topics of GoQueue as tables and streams: `spark.read.format("goqueue")`, and likewise readStream and write.

    Columns: key binary, value binary, topic string, partition int, offset long, timestamp timestamp, priority int,
    deliver_at timestamp, and headers array<struct<key:string,value:binary>> if asked for.

    Where the broker is:
        server                host:port[,host:port...]; GOQUEUE_SERVER, else localhost:7000
        apiKey                GOQUEUE_API_KEY
        tls                   false; the client does not speak TLS yet

    What is read, exactly one of:
        subscribe             names of topics, with commas between them
        subscribePattern      a regular expression for whole names; a stream also reads topics that come later
        assign                {"orders": [0, 2]}

    From where to where:
        startingOffsets       earliest, latest, or {"orders": {"0": 5, "1": -2}} with every partition that is read;
                              -2 is earliest and -1 latest. By default the positions of `group`, if it has some in the
                              topic, else earliest for a batch and latest for a stream. A stream with a checkpoint goes
                              on from there.
        startingTimestamp     RFC 3339 with a zone, epoch seconds, or an age like 2h ago; the end of a partition that
                              holds nothing as late as that
        endingOffsets         latest, or offsets as above; for a batch, resolved once, when it is planned
        endingTimestamp       the first offset at or after it is the first that is not read
        group                 begin at the positions of this consumer group, and report as its progress what a stream
                              has finished. A batch reports nothing, since Spark does not tell it that it finished.

    How much at once:
        maxOffsetsPerTrigger  of a micro-batch, over all partitions, in proportion to what they have
        maxBytesPerTrigger    the same in bytes; with both, both hold. Sizes may be written 512k, 64m, 1g.
        minPartitions         so many tasks at least, if there are as many records
        maxBytesPerPartition  of a task, about; 64m for a batch. A stream reads each partition in one task, in order,
                              unless one of these two is given. What is small shares a task.

    What is seen:
        isolation             read_committed, read_uncommitted
        delayed               include: a delayed message stands in the log like any other, with deliver_at set, unless
                              cancelled; due: only what is due when the range is planned; what is not is never read
        failOnDataLoss        true: what retention took before it was read, records that cannot be read, a topic that
                              was deleted, or deleted and made again, is an error. false: it is logged and passed over,
                              and a new topic is read from its beginning.
        columns               names of the columns to read; the fewer, the faster
        includeHeaders        false
        headersFormat         array; map makes headers a map<string,string>, which mangles values that are not UTF-8
        valueSchema           registry, or columns as in SQL: `value` becomes typed columns, and what does not fit goes
                              to `_corrupt`
        filterPushdown        false; true turns filters on topic, partition, offset and timestamp into ranges, and needs
                              spark.sql.python.filterPushdown.enabled
        readFrom, dataDir     broker; files reads sealed segments from a data directory that all tasks can see
    """

    _parser: TypedValues | None = None

    @classmethod
    def name(cls) -> str:
        """What stands in `format(...)`."""
        return "goqueue"

    def schema(self) -> StructType:
        """The columns that are read if the user does not say which."""
        with readable_errors():
            schema, self._parser = columns_of(self._parsed)
            return schema

    def reader(self, schema: StructType) -> DataSourceReader:
        """A reader of ranges."""
        with readable_errors():
            kind = PushdownReader if self._parsed.filter_pushdown else GoQueueReader
            return kind(self._parsed, schema, self._parser)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """A reader without end."""
        try:
            return GoQueueStreamReader(self._parsed, schema, self._parser)
        except GoQueueError as error:
            return RefusedStream(error)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """A writer of batches."""
        from goqueue.spark.sink import GoQueueWriter

        with readable_errors():
            return GoQueueWriter(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        """A writer of micro-batches."""
        from goqueue.spark.sink import GoQueueStreamWriter

        with readable_errors():
            return GoQueueStreamWriter(self.options, schema)

    @cached_property
    def _parsed(self) -> SourceOptions:
        return SourceOptions.parse(self.options)
