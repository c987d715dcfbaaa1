"""What tests of the catalog say often: a broker that starts, and jobs that run at once."""

from typing import NamedTuple

from goqueue.storage.directory import DataDirectory
from goqueue.storage.file import Disk
from goqueue.topics.catalog import AlterTopicJob, Catalog, CreateTopicJob, DeleteTopicJob, Topic
from tests.storage.logs import NOW_NS

ROOT = "/data"


class Opened(NamedTuple):
    """An open data directory and its catalog."""

    data: DataDirectory
    catalog: Catalog


def start(disk: Disk) -> Opened:
    data = DataDirectory.open(disk, ROOT)
    try:
        return Opened(data, Catalog.open(data, disk))
    except BaseException:
        data.close()
        raise


def run(catalog: Catalog, job: CreateTopicJob | AlterTopicJob | DeleteTopicJob) -> Topic:
    """Run the job and complete it, whatever comes of it."""
    error: Exception | None = None
    try:
        job.run()
    except Exception as raised:
        error = raised
    return catalog.complete(job, error)


def begin_create(
    catalog: Catalog,
    name: str = "orders",
    *,
    partitions: int = 2,
    topic_id: str = "1d",
    internal_ok: bool = False,
    **settings: object,
) -> CreateTopicJob:
    return catalog.begin_create(
        name, partitions=partitions, settings=settings, topic_id=topic_id, now_ns=NOW_NS, internal_ok=internal_ok
    )


def create(
    catalog: Catalog, name: str = "orders", *, partitions: int = 2, topic_id: str = "1d", **settings: object
) -> Topic:
    return run(catalog, begin_create(catalog, name, partitions=partitions, topic_id=topic_id, **settings))
