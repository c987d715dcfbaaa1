"""The data pipeline on Spark: topics as tables and streams, and jobs over them.

Nothing of Spark is imported before one of these names is used.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from goqueue.spark.datasource import GoQueueDataSource
    from goqueue.spark.session import local_session

__all__ = ["GoQueueDataSource", "local_session"]


def __getattr__(name: str) -> Any:
    if name == "GoQueueDataSource":
        from goqueue.spark.datasource import GoQueueDataSource

        return GoQueueDataSource
    if name == "local_session":
        from goqueue.spark.session import local_session

        return local_session
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
