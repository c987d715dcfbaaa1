"""Conversion of a data directory of an older version, when it is opened.

In data format 1 each journal had one partition. Now the facts of an internal topic are spread over its partitions by
name (`coordination.py`), and a topic with another number of partitions is rebuilt:

    1. build   <topic>~deleted~converted    a whole topic with all facts, durable; its topic.json is written last
    2. format  goqueue-data 2               from here on, older versions refuse the directory
    3. swap    <topic> -> <topic>~deleted~unconverted, then <topic>~deleted~converted -> <topic>

Each step is durable before the next one begins. Until step 3 the old topic is untouched, and a crash leaves only a
directory that every version removes at its start, because of its name. A crash in the middle of step 3 leaves no topic
of that name but a whole converted one, and the next start completes the swap before anything is removed. So a crash at
any point, even many times, loses nothing, and the conversion is complete when the broker serves its first request.

A fact is carried over as it is, whether it can be decoded or not. If its key has no name it goes to the first
partition, where its owner skips and reports it. A topic that cannot be read at all is left for the catalog, which
quarantines it; it is converted at the first start at which it can be read. A disk without room for the new files stops
the start, and nothing is changed: make room, or go on with the older version.
"""

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from itertools import islice

from goqueue import events
from goqueue.broker.coordination import (
    GROUPS_TOPIC,
    PARTITION_COUNTS,
    SCHEDULES_TOPIC,
    TRANSACTIONS_TOPIC,
    partition_of,
)
from goqueue.broker.delivery import schedules
from goqueue.broker.groups import groups
from goqueue.broker.partition.journal import facts_of
from goqueue.errors import GoQueueError, StorageFull
from goqueue.names import TopicPartition
from goqueue.record import kernel
from goqueue.storage.config import LogConfig
from goqueue.storage.directory import FORMAT, KINDS, DataDirectory
from goqueue.storage.file import Disk, unusable
from goqueue.storage.log import Log
from goqueue.topics import description
from goqueue.topics.config import TopicConfig, log_configs
from goqueue.topics.description import Description
from goqueue.transactions.facts import transactional_ids

CONVERTED = "~deleted~converted"
UNCONVERTED = "~deleted~unconverted"
BATCH_FACTS = 200
"""Facts in one batch: a few MiB at most, since facts are small."""

_PREFIXES: Mapping[str, Sequence[bytes]] = {
    GROUPS_TOPIC: (groups.KEY_PREFIX,),
    SCHEDULES_TOPIC: schedules.KEY_PREFIXES,
}
"""Of the keys of facts, before the name that decides about the partition."""

Facts = dict[bytes, bytes]


def convert(data: DataDirectory, disk: Disk, *, observe: events.Observer = events.ignore) -> None:
    """Convert what an older version has left, before the catalog is opened. Does nothing if there is nothing to do.

    Raises `StorageFull` or `DataDirectoryError`; the directory is then as it was.
    """
    try:
        counts = _build_all(data, disk, observe)
        is_older = data.format != FORMAT
        if is_older:
            data.set_format()
        for topic, count in counts.items():
            _swap(data, disk, topic, is_built=count is not None)
    except OSError as error:
        raise unusable(data.topics_path, error) from error
    built = {topic: count for topic, count in counts.items() if count is not None}
    if is_older or built:
        observe(
            events.JournalsConverted(
                log=data.path, topics=tuple(sorted(built)), facts=sum(built.values()), data_format=FORMAT
            )
        )


def partitions_of_fact(topic: str, key: bytes, value: bytes) -> Collection[int]:
    """The partitions of an internal topic in which a fact is needed.

    Usually that is one. A decision about several transactions belongs to the coordinator of each. A marker does not say
    who has committed it, so all coordinators know it.
    """
    if topic != TRANSACTIONS_TOPIC:
        return (_partition_of_fact(topic, key),)
    names = transactional_ids(key, value)
    if names is None:
        return range(PARTITION_COUNTS[topic])
    return {partition_of(name, topic) for name in names} or (0,)


def _partition_of_fact(topic: str, key: bytes) -> int:
    for prefix in _PREFIXES.get(topic, ()):
        if key.startswith(prefix):
            try:
                return partition_of(key.removeprefix(prefix).decode(), topic)
            except UnicodeDecodeError:
                return 0
    return 0


def _build_all(data: DataDirectory, disk: Disk, observe: events.Observer) -> dict[str, int | None]:
    """Build the converted topics beside the old ones; returns how many facts each has, None if there is none to build.

    If that fails, their room on the disk is free again.
    """
    counts: dict[str, int | None] = {}
    try:
        for topic in PARTITION_COUNTS:
            counts[topic] = _build(disk, f"{data.topics_path}/{topic}", topic, observe)
    except (OSError, GoQueueError):
        for topic in PARTITION_COUNTS:
            with suppress(OSError):
                disk.remove_tree(f"{data.topics_path}/{topic}{CONVERTED}")
        raise
    return counts


def _build(disk: Disk, directory: str, topic: str, observe: events.Observer) -> int | None:
    try:
        described = description.load(disk, directory)
        if described.name != topic or described.partitions == PARTITION_COUNTS[topic]:
            return None
        facts, now_ns = _facts(disk, directory, described, observe)
    except StorageFull:
        raise
    except (OSError, GoQueueError):  # no such topic; or the catalog will find the same, and quarantine it
        return None
    _store(disk, directory + CONVERTED, described, facts, now_ns=now_ns)
    return len(facts)


def _facts(disk: Disk, directory: str, described: Description, observe: events.Observer) -> tuple[Facts, int]:
    """The facts in all partitions of a topic, of one key that of the highest partition; and the time of the newest."""
    now_ns = 0
    found: Facts = {}
    for number in range(described.partitions):
        logs: list[Log] = []
        try:
            for kind, config in zip(KINDS, _log_configs(described), strict=True):
                logs.append(Log.open(disk, f"{directory}/{number}/{kind}", config, observe=observe))
            found |= facts_of(logs[0], logs[1], TopicPartition(described.name, number))
            now_ns = max(now_ns, logs[0].last_timestamp)
        finally:
            for log in logs:
                log.abandon()
    return found, now_ns


def _store(disk: Disk, directory: str, old: Description, facts: Facts, *, now_ns: int) -> None:
    """Make the new topic, whole and durable."""
    disk.remove_tree(directory)
    disk.make_directory(directory)
    count = PARTITION_COUNTS[old.name]
    spread: list[Facts] = [{} for _ in range(count)]
    for key, value in facts.items():
        for number in partitions_of_fact(old.name, key, value):
            spread[number][key] = value
    for number, some in enumerate(spread):
        for kind, config in zip(KINDS, _log_configs(old), strict=True):
            log = Log.open(disk, f"{directory}/{number}/{kind}", config)
            try:
                if kind == "log":
                    _append(log, some, now_ns=now_ns)
                log.close()
            except BaseException:
                log.abandon()
                raise
    new = Description(
        name=old.name, id=old.id, created_at_ns=old.created_at_ns, partitions=count, settings=old.settings
    )
    description.store(disk, directory, new)


def _append(log: Log, facts: Mapping[bytes, bytes], *, now_ns: int) -> None:
    items = iter(facts.items())
    while batch := list(islice(items, BATCH_FACTS)):
        log.append(kernel.encode([value for _, value in batch], keys=[key for key, _ in batch]), now_ns=now_ns)
    log.flush()


def _swap(data: DataDirectory, disk: Disk, topic: str, *, is_built: bool) -> None:
    """Put the converted topic into the place of the old one; also if a crash has interrupted that."""
    directory = f"{data.topics_path}/{topic}"
    if not is_built and not _is_interrupted(disk, directory):
        return
    if is_built:
        disk.remove_tree(directory + UNCONVERTED)
        disk.rename(directory, directory + UNCONVERTED)
        disk.sync_directory(data.topics_path)
    disk.rename(directory + CONVERTED, directory)
    disk.sync_directory(data.topics_path)


def _is_interrupted(disk: Disk, directory: str) -> bool:
    """Whether there is a whole converted topic, and none in its place."""
    try:
        disk.entries(directory)
    except FileNotFoundError:
        with suppress(FileNotFoundError, GoQueueError):
            description.load(disk, directory + CONVERTED)
            return True
    return False


def _log_configs(described: Description) -> tuple[LogConfig, LogConfig]:
    return log_configs(TopicConfig.parse(dict(described.settings), topic=described.name))
