"""The check of every file of a data directory, a topic, a partition or a log, without changing any.

    data directory   format, lock, ports.json, topics/
    topic            topic.json, a directory for each partition
    partition        log/, ledger/, delays
    log, ledger      see storage/file_check.py

The kind of a directory is told by its content.
"""

from collections.abc import Iterator

from goqueue.delivery import delay_index
from goqueue.errors import GoQueueError
from goqueue.storage.delay_file import NAME as DELAYS
from goqueue.storage.directory import KINDS, TOLERATED, check_format, is_own_name, is_topic_name
from goqueue.storage.file import Disk, Entry, read_file
from goqueue.storage.file_check import FileReport, check_log
from goqueue.storage.layout import FOREIGN, NEW
from goqueue.topics import description
from goqueue.topics.catalog import is_deleted
from goqueue.topics.description import DESCRIPTION

NO_FILES = "no files: nothing was ever written to it, or they are lost"


def verify(disk: Disk, path: str) -> Iterator[FileReport]:
    """A report for each file below the path.

    Raises `OSError` if the path itself cannot be listed, and `ForeignFile` if it is not a directory of GoQueue.
    """
    entries = {entry.name: entry for entry in disk.entries(path)}
    if "topics" in entries or "format" in entries:
        return _data(disk, path, entries)
    partitions = [name for name, entry in entries.items() if entry.is_directory and name.isdecimal()]
    if DESCRIPTION in entries or partitions:
        return _topic(disk, path, entries)
    if any(kind in entries and entries[kind].is_directory for kind in KINDS):
        return _partition(disk, path, entries)
    return check_log(disk, path)


def is_in_use(disk: Disk, path: str) -> bool:
    """Whether a broker has the data directory open that the path is, or is in."""
    while path not in ("", "/"):
        try:
            if {"lock", "topics"} <= {entry.name for entry in disk.entries(path)}:
                disk.lock(f"{path}/lock").release()
                return False
        except BlockingIOError:
            return True
        except OSError:  # without permission to list or lock it, this is not known
            return False
        path = path.rpartition("/")[0]
    return False


def _data(disk: Disk, path: str, entries: dict[str, Entry]) -> Iterator[FileReport]:
    for name in sorted(entries):
        if not is_own_name(name) and name not in TOLERATED:
            yield FileReport(f"{path}/{name}", "", (FOREIGN,))
    if "format" in entries:
        try:
            yield FileReport(f"{path}/format", f"data format {check_format(disk, path)}")
        except GoQueueError as error:
            yield FileReport(f"{path}/format", "", (str(error),))
    else:
        yield FileReport(f"{path}/format", "", ("missing; the next start of the broker writes it",))
    if "topics" not in entries:
        return
    for name, _, is_directory in sorted(disk.entries(f"{path}/topics")):
        topic = f"{path}/topics/{name}"
        if is_directory and is_deleted(name):
            yield FileReport(topic, "deleted; the next start of the broker removes it")
        elif is_directory and is_topic_name(name):
            yield from _guarded(topic, verify_topic(disk, topic))
        elif name not in TOLERATED:
            yield FileReport(topic, "", (FOREIGN,))


def verify_topic(disk: Disk, path: str) -> Iterator[FileReport]:
    """A report for each file of a topic."""
    return _topic(disk, path, {entry.name: entry for entry in disk.entries(path)})


def _topic(disk: Disk, path: str, entries: dict[str, Entry]) -> Iterator[FileReport]:
    hosted: list[int] = []
    try:
        described = description.load(disk, path)
    except FileNotFoundError:
        yield FileReport(f"{path}/{DESCRIPTION}", "", ("missing; restore it from a backup",))
    except GoQueueError as error:
        yield FileReport(f"{path}/{DESCRIPTION}", "", (str(error),))
    else:
        hosted = described.hosted()
        name = path.rpartition("/")[2]
        damage = () if described.name == name else (f"it describes the topic {described.name}",)
        yield FileReport(f"{path}/{DESCRIPTION}", f"topic {described.name}, {described.partitions} partitions", damage)
    for name in sorted(entries, key=lambda name: (len(name), name)):
        if entries[name].is_directory and name.isdecimal():
            yield from _guarded(f"{path}/{name}", _listed_partition(disk, f"{path}/{name}"))
        elif name not in (DESCRIPTION, DESCRIPTION + NEW):
            yield FileReport(f"{path}/{name}", "", (FOREIGN,))
    if missing := [str(number) for number in hosted if str(number) not in entries]:
        yield FileReport(f"{path}/{missing[0]}", f"{NO_FILES}; so for {len(missing)} of {len(hosted)} partitions")


def _listed_partition(disk: Disk, path: str) -> Iterator[FileReport]:
    return _partition(disk, path, {entry.name: entry for entry in disk.entries(path)})


def _partition(disk: Disk, path: str, entries: dict[str, Entry]) -> Iterator[FileReport]:
    for kind in KINDS:
        if kind in entries:
            yield from _guarded(f"{path}/{kind}", check_log(disk, f"{path}/{kind}"))
    if "log" not in entries:
        damage = ("missing, though there were delayed messages; restore it from a backup",) if DELAYS in entries else ()
        yield FileReport(f"{path}/log", "" if damage else NO_FILES, damage)
    if DELAYS in entries:
        yield _delays(disk, f"{path}/{DELAYS}")
    for name in sorted(entries):
        if name not in (*KINDS, DELAYS, DELAYS + NEW):
            yield FileReport(f"{path}/{name}", "", (FOREIGN,))


def _delays(disk: Disk, path: str) -> FileReport:
    try:
        raw = read_file(disk, path)
    except OSError as error:
        return FileReport(path, "", (error.strerror or str(error),))
    decoded = delay_index.decode(raw)
    damage = () if decoded.is_whole else ("damaged or cut off; the broker reads the log instead",)
    return FileReport(path, f"covers the log below offset {decoded.covered_offset}", damage)


def _guarded(path: str, reports: Iterator[FileReport]) -> Iterator[FileReport]:
    """The reports; an error that stops them becomes the last one."""
    try:
        yield from reports
    except OSError as error:
        yield FileReport(str(error.filename or path), "", (error.strerror or str(error),))
    except GoQueueError as error:
        yield FileReport(str(getattr(error, "path", path)), "", (str(getattr(error, "reason", error)),))
