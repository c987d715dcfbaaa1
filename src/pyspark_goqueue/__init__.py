"""Where Spark looks for data sources: it imports every package whose name begins with `pyspark_`.

So `format("goqueue")` is known without being registered. The rest of GoQueue is not imported until Spark looks.
"""

from goqueue.spark.datasource import GoQueueDataSource as DefaultSource

__all__ = ["DefaultSource"]
