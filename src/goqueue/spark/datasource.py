"""The Spark data source `goqueue`: it parses the options and makes the readers and writers."""

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
    deliver_at timestamp, and headers array<struct<key:string,value:binary>> with includeHeaders.

    Where the broker is:
        server                host:port[,host:port...]; GOQUEUE_SERVER, else localhost:7000
        apiKey                GOQUEUE_API_KEY
        tls                   false; the client does not speak TLS yet

    What is read, exactly one of:
        subscribe             names of topics, with commas between them
        subscribePattern      a regular expression for whole names; a stream also reads topics created later
        assign                {"orders": [0, 2]}

    From where to where:
        startingOffsets       earliest, latest, or {"orders": {"0": 5, "1": -2}} with every partition that is read;
                              -2 is earliest and -1 latest. By default the positions of `group`, if it has some in the
                              topic, else earliest for a batch and latest for a stream. A stream with a checkpoint
                              continues from there.
        startingTimestamp     RFC 3339 with a zone, epoch seconds, or an age like 2h ago; a partition without messages
                              at or after it starts at its end
        endingOffsets         latest, or offsets as above; for a batch, resolved once, when it is planned
        endingTimestamp       the first offset at or after it is the first that is not read
        group                 start at the positions of this consumer group. A stream commits what it has finished to
                              the group; a batch commits nothing, since Spark does not tell it that it finished.

    How much at once:
        maxOffsetsPerTrigger  most offsets per micro-batch, over all partitions, in proportion to their backlog
        maxBytesPerTrigger    the same in bytes; both limits hold if both are given. Sizes: 512k, 64m, 1g.
        minPartitions         the least number of tasks, if there are as many records
        maxBytesPerPartition  bytes per task, about; 64m for a batch. A stream reads each partition in one task, in
                              order, unless one of these two is given. Small ranges share a task.

    What is seen:
        isolation             read_committed, read_uncommitted
        delayed               include: delayed messages are read like others, with deliver_at set, unless cancelled;
                              due: only messages that are due when the range is planned. A batch skips the others; a
                              stream reads them when they are due.
        failOnDataLoss        true: it is an error if retention removed messages before they were read, if records
                              cannot be read, or if a topic was deleted or created again. false: the loss is logged
                              and skipped, and a new topic is read from its beginning.
        columns               names of the columns to read; the fewer, the faster
        includeHeaders        false
        headersFormat         array; map makes headers a map<string,string>, which mangles values that are not UTF-8
        valueSchema           registry, or columns as in SQL: `value` becomes typed columns, and values that do not
                              fit go to `_corrupt`
        filterPushdown        false; true turns filters on topic, partition, offset and timestamp into ranges, and needs
                              spark.sql.python.filterPushdown.enabled
        readFrom, dataDir     broker; files reads sealed segments from a data directory that all tasks can see
    """

    _parser: TypedValues | None = None

    @classmethod
    def name(cls) -> str:
        """The name for `format(...)`."""
        return "goqueue"

    def schema(self) -> StructType:
        """The columns that are read unless the user chooses others."""
        with readable_errors():
            schema, self._parser = columns_of(self._parsed)
            return schema

    def reader(self, schema: StructType) -> DataSourceReader:
        """A reader of fixed ranges of offsets."""
        with readable_errors():
            kind = PushdownReader if self._parsed.filter_pushdown else GoQueueReader
            return kind(self._parsed, schema, self._parser)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """A reader for a streaming query; one that raises, if the options are wrong: Spark loses errors raised here."""
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
