"""Archives without Spark, and ones that break: what tests of the pipelines share."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyarrow import fs, parquet

from goqueue.client.sync import Client
from goqueue.spark.pipelines.store import LocalStore

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Row = tuple[Any, ...]


class Killed(BaseException):
    """The end of the process, as far as it can be had within it: nothing may catch it."""


class MortalStore(LocalStore):
    """A directory whose user is killed at the n-th change, just before it or just after."""

    def __init__(self, directory: str, *, change: int, is_after: bool) -> None:
        super().__init__(directory)
        self._left = change
        self._is_after = is_after

    def publish(self, path: str, data: bytes) -> None:
        with self._one():
            super().publish(path, data)

    def move(self, path: str, place: str) -> None:
        with self._one():
            super().move(path, place)

    def remove(self, path: str) -> None:
        if self.exists(path):
            with self._one():
                super().remove(path)

    @contextmanager
    def _one(self) -> Iterator[None]:
        self._left -= 1
        if not self._left and not self._is_after:
            raise Killed
        yield
        if not self._left:
            raise Killed


def killed(work: Callable[[], object]) -> bool:
    """Whether somebody was."""
    try:
        work()
    except Killed:
        return True
    return False


def write_offsets(store: LocalStore, path: str, offsets: list[int]) -> None:
    """A Parquet file as Spark would have left it."""
    place = f"{store.directory}/{path}"
    folder = place.rpartition("/")[0]
    fs.LocalFileSystem().create_dir(folder)
    parquet.write_table(pa.table({"offset": pa.array(offsets, pa.int64())}), place)


def read_offsets(store: LocalStore, paths: list[str]) -> list[int]:
    return [
        offset for path in paths for offset in parquet.read_table(f"{store.directory}/{path}")["offset"].to_pylist()
    ]


def rows_read(client: Client, topic: str) -> list[Row]:
    """What a topic holds, as Spark shows it, through the client that users have."""
    return sorted(
        (
            message.partition,
            message.offset,
            message.key,
            message.value,
            message.timestamp.replace(tzinfo=None),
            int(message.priority),
            message.headers,
        )
        for partition in range(len(client.describe_topic(topic).partitions))
        for message in client.read(topic, partition=partition)
    )


def rows_archived(rows: "DataFrame") -> list[Row]:
    """The same, of the rows of an archive."""
    return sorted(
        (
            row["partition"],
            row["offset"],
            None if row["key"] is None else bytes(row["key"]),
            None if row["value"] is None else bytes(row["value"]),
            row["timestamp"],
            row["priority"],
            {pair["key"]: bytes(pair["value"]).decode("utf-8", "surrogateescape") for pair in row["headers"]},
        )
        for row in rows.collect()
    )
