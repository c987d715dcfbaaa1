"""Data directories as the version before wrote them: format 1, in which every journal has one partition."""

from goqueue.broker.coordination import PARTITION_COUNTS
from goqueue.broker.partition.journal import facts_of
from goqueue.names import TopicPartition
from goqueue.record import kernel
from goqueue.storage.directory import KINDS, DataDirectory
from goqueue.storage.file import Disk
from goqueue.storage.log import Log
from goqueue.topics import description
from goqueue.topics.description import Description

FORMAT_BEFORE = 1
"""The only format that the version before opens: it refuses all others by their number."""


def journal_facts(disk: Disk, root: str, topic: str) -> dict[int, dict[bytes, bytes]]:
    """The facts of an internal topic that no broker has open, by partition."""
    found = {}
    directory = f"{root}/topics/{topic}"
    for number in range(description.load(disk, directory).partitions):
        log, ledger = (Log.open(disk, f"{directory}/{number}/{kind}") for kind in KINDS)
        found[number] = facts_of(log, ledger, TopicPartition(topic, number))
        log.abandon()
        ledger.abandon()
    return found


def make_older(disk: Disk, root: str) -> dict[str, dict[bytes, bytes]]:
    """Turn a directory that no broker has open into what the version before would have left; returns its facts."""
    facts = {}
    for topic in PARTITION_COUNTS:
        directory = f"{root}/topics/{topic}"
        try:
            described = description.load(disk, directory)
        except FileNotFoundError:
            continue
        facts[topic] = {k: v for some in journal_facts(disk, root, topic).values() for k, v in some.items()}
        disk.remove_tree(directory)
        write_older(disk, directory, described, facts[topic])
    file = disk.open(f"{root}/format")
    file.truncate(0)
    file.append(b"goqueue-data %d\n" % FORMAT_BEFORE)
    file.sync()
    file.close()
    return facts


def write_older(disk: Disk, directory: str, described: Description, facts: dict[bytes, bytes]) -> None:
    """A topic of one partition with these facts."""
    log, ledger = (Log.open(disk, f"{directory}/0/{kind}") for kind in KINDS)
    for key, value in facts.items():
        log.append(kernel.encode([b"outdated", value], keys=[key, key]), now_ns=described.created_at_ns)
    log.close()
    ledger.close()
    one = {name: getattr(described, name) for name in Description.__struct_fields__} | {"partitions": 1}
    description.store(disk, directory, Description(**one))


def opens_before(disk: Disk, root: str) -> bool:
    """Whether the version before opens the directory."""
    data = DataDirectory.open(disk, root)
    data.close()
    return data.format == FORMAT_BEFORE
