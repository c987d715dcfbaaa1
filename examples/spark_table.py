"""Read a topic as a Spark table. Needs `pip install 'goqueue[spark]'`.

python examples/spark_table.py [localhost:7000]
"""

import sys

from goqueue import Client
from goqueue.spark import local_session


def main(server: str = "localhost:7000") -> None:
    """Fill a topic and sum it up by customer."""
    with Client(server) as gq:
        gq.delete_topic("example-table", missing_ok=True)
        gq.create_topic("example-table", partitions=2)
        gq.publish_many("example-table", [(f"customer-{n % 3}", {"total": n}) for n in range(300)])

    spark = local_session()
    orders = (
        spark.read.format("goqueue")
        .option("server", server)
        .option("subscribe", "example-table")
        .option("valueSchema", "total long")
        .load()
    )
    rows = orders.selectExpr("cast(key as string) customer", "total").groupBy("customer").sum("total")
    for row in rows.orderBy("customer").collect():
        print(row["customer"], row["sum(total)"])


if __name__ == "__main__":
    main(*sys.argv[1:])
