"""The catalog: the durable list of topics, and how topics are created, altered and deleted.

    <data>/topics/<name>/topic.json                  the topic exists when this file does
    <data>/topics/<name>/<partition>/{log,ledger}    made when they are written to
    <data>/topics/<part of name>~deleted~<n>         a deleted topic that waits for its removal

A change has three steps, as all work that blocks: `begin_...` checks it and returns a job, the job runs in any thread,
and `complete` makes it take effect. After a crash at any point a topic exists completely or not at all. A directory
without topic.json is what a crash has left of a creation, and is removed when the catalog is opened. If such a
directory holds records, no crash explains it, and it is quarantined instead. A deletion renames the directory first, in
one step; the name is free again at once.

A topic whose files cannot be used (a damaged description, a log that cannot be opened) is quarantined: its files are
left as they are, it is not served, and no other topic can take its name. All other topics are served. Only if no topic
at all can be opened, the catalog does not open.

Like the logs, the catalog has one owner, which makes all calls, and no locks.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import cast

import msgspec

from goqueue import events
from goqueue.errors import (
    Conflict,
    DirectoryUnusable,
    ForeignFile,
    GoQueueError,
    InvalidTopic,
    PartitionNotFound,
    TopicExists,
    TopicNotFound,
    TopicQuarantined,
)
from goqueue.storage.delay_file import NAME as DELAYS
from goqueue.storage.delay_file import DelayFile
from goqueue.storage.directory import KINDS, STRAY, TOLERATED, DataDirectory, is_topic_name
from goqueue.storage.file import Disk, Entry, sync_ancestors, unusable
from goqueue.storage.jobs import CancellableJob
from goqueue.storage.layout import FOREIGN, LOG, NEW, sort_out
from goqueue.topics import description
from goqueue.topics.config import (
    TopicConfig,
    is_internal,
    log_configs,
    merge,
    refuse_internal,
    validate_alteration,
    validate_dead_letter_topic,
    validate_partition_count,
    validate_topic_name,
)
from goqueue.topics.description import DESCRIPTION, Description
from goqueue.topics.partition import Partition

_DELETED = "~deleted~"
_NAME_BYTES_KEPT = 200
"""How much of its name the directory of a deleted topic keeps; file systems allow 255 bytes in all."""


@dataclass(slots=True, eq=False)
class Topic:
    """A topic. `settings` are those that were set explicitly, in their public form. Of `partitions` this
    node has a replica: all, unless it is one node of several.
    """

    name: str
    id: str
    created_at_ns: int
    settings: dict[str, object]
    config: TopicConfig
    partition_count: int
    partitions: list[Partition]
    noted_epochs: dict[int, int]
    """By partition, the leader epoch that its replica had heard of when it was made, if there was one."""

    @property
    def is_internal(self) -> bool:
        return is_internal(self.name)


class CreateTopicJob:
    """Makes the directory of a new topic, and its description, which makes it a topic."""

    def __init__(self, disk: Disk, data_path: str, directory: str, described: Description) -> None:
        self._disk = disk
        self._data_path = data_path
        self._directory = directory
        self.described = described

    @property
    def topic(self) -> str:
        return self.described.name

    def run(self) -> None:
        _remove_remains(self._disk, self._directory)
        try:
            self._disk.make_directory(self._directory)
            description.store(self._disk, self._directory, self.described)
            sync_ancestors(self._disk, self._directory, within=self._data_path)
        except (OSError, GoQueueError):
            self.discard()
            raise

    def discard(self) -> None:
        """Remove what was created; what cannot be removed now goes at the next attempt, or the next start."""
        with suppress(OSError, GoQueueError):
            _remove_remains(self._disk, self._directory)


class HostReplicasJob:
    """Writes the description of a topic that names more replicas."""

    def __init__(self, disk: Disk, directory: str, described: Description, numbers: Sequence[int]) -> None:
        self._disk = disk
        self._directory = directory
        self.described = described
        self.numbers = numbers

    @property
    def topic(self) -> str:
        return self.described.name

    def run(self) -> None:
        for number in self.numbers:
            path = f"{self._directory}/{number}"
            if _entries(self._disk, path):  # left by a crash, and empty; records would not be those of this replica
                _check_empty(self._disk, path)
        description.store(self._disk, self._directory, self.described)


class AlterTopicJob(CancellableJob):
    """Writes the new description of a topic."""

    def __init__(self, disk: Disk, directory: str, described: Description, config: TopicConfig) -> None:
        super().__init__()
        self._disk = disk
        self._directory = directory
        self.described = described
        self.config = config

    @property
    def topic(self) -> str:
        return self.described.name

    def _work(self) -> None:
        description.store(self._disk, self._directory, self.described)


class DeleteTopicJob:
    """Makes the deletion of a topic durable, then removes its files."""

    def __init__(self, disk: Disk, topics_path: str, directory: str, deleted: Topic) -> None:
        self._disk = disk
        self._topics_path = topics_path
        self._directory = directory
        self.deleted = deleted

    @property
    def topic(self) -> str:
        return self.deleted.name

    def run(self) -> None:
        self._disk.sync_directory(self._topics_path)
        self._disk.remove_tree(self._directory)
        self._disk.sync_directory(self._topics_path)


TopicJob = CreateTopicJob | AlterTopicJob | HostReplicasJob | DeleteTopicJob


class Catalog:
    """All topics of a data directory. Made by `Catalog.open`; its logs are closed with the data directory."""

    def __init__(self, data: DataDirectory, disk: Disk, observe: events.Observer) -> None:
        self._data = data
        self._disk = disk
        self._observe = observe
        self._topics: dict[str, Topic] = {}
        self._creating: set[str] = set()
        self._altering: dict[str, AlterTopicJob | HostReplicasJob] = {}
        self._deleted_count = 0
        self.quarantined: dict[str, TopicQuarantined] = {}

    @classmethod
    def open(cls, data: DataDirectory, disk: Disk, *, observe: events.Observer = events.ignore) -> "Catalog":
        """Open all topics with their logs, and clear away what creations and deletions have left unfinished."""
        catalog = cls(data, disk, observe)
        try:
            catalog._open_all()
        except OSError as error:
            raise unusable(data.topics_path, error) from error
        return catalog

    def __len__(self) -> int:
        return len(self._topics)

    def __iter__(self) -> Iterator[Topic]:
        return iter(list(self._topics.values()))

    def __contains__(self, name: str) -> bool:
        return name in self._topics

    def names(self, *, internal: bool = False) -> list[str]:
        """The names of all topics, sorted; internal ones only with `internal`."""
        return sorted(name for name in self._topics if internal or not is_internal(name))

    def get(self, name: str) -> Topic:
        topic = self._topics.get(name)
        if topic is None:
            raise self.quarantined.get(name) or TopicNotFound(name)
        return topic

    def partition(self, name: str, number: int) -> Partition:
        for partition in self.get(name).partitions:
            if partition.number == number:
                return partition
        raise PartitionNotFound(name, number)

    def begin_create(
        self,
        name: str,
        *,
        partitions: int,
        settings: Mapping[str, object],
        topic_id: str,
        now_ns: int,
        replicas: Sequence[int] | None = None,
        epochs: Mapping[int, int] | None = None,
        internal_ok: bool = False,
    ) -> CreateTopicJob:
        """A job that creates the topic, with these `replicas` (all partitions) on this node, which have heard of these
        leader `epochs` from the beginning. The name is reserved until the job is completed.
        """
        explicit = self.check(name, partitions=partitions, settings=settings, internal_ok=internal_ok)
        described = Description(
            name=name,
            id=topic_id,
            created_at_ns=now_ns,
            partitions=partitions,
            replicas=msgspec.UNSET if replicas is None else sorted(replicas),
            leader_epochs=dict(epochs) if epochs else msgspec.UNSET,
            settings=_storable(explicit),
        )
        self._creating.add(name)
        return CreateTopicJob(self._disk, self._data.path, self.directory(name), described)

    def check(
        self, name: str, *, partitions: int, settings: Mapping[str, object], internal_ok: bool = False
    ) -> dict[str, object]:
        """The settings of a new topic that are not defaults. Raises if it cannot be created."""
        validate_topic_name(name, internal_ok=internal_ok)
        validate_partition_count(name, partitions)
        explicit = merge({}, settings, topic=name)
        config = TopicConfig.parse(explicit, topic=name)
        self._check_dead_letter_topic(name, config)
        if name in self.quarantined:
            raise self.quarantined[name]
        if name in self._topics or name in self._creating:
            raise TopicExists(name)
        return explicit

    def begin_alter(self, name: str, changes: Mapping[str, object | None]) -> AlterTopicJob:
        """A job that changes these settings; None resets one to its default. One job at a time per topic."""
        self.check_alter(name, changes)
        topic = self.get(name)
        return self._begin_alter(topic, merge(topic.settings, changes, topic=name))

    def begin_replace_settings(self, name: str, settings: Mapping[str, object]) -> AlterTopicJob:
        """A job that gives the topic exactly these settings, which were decided elsewhere."""
        return self._begin_alter(self.get(name), settings)

    def check_alter(self, name: str, changes: Mapping[str, object | None]) -> None:
        """Raise if the settings of the topic cannot be changed like this."""
        refuse_internal(name)
        topic = self.get(name)
        explicit = merge(topic.settings, changes, topic=name)
        config = TopicConfig.parse(explicit, topic=name)
        self._check_dead_letter_topic(name, config)
        validate_alteration(name, topic.config, config)
        self._check_free(name)

    def _begin_alter(self, topic: Topic, explicit: Mapping[str, object]) -> AlterTopicJob:
        self._check_free(topic.name)
        config = TopicConfig.parse(explicit, topic=topic.name)
        described = _described(topic, settings=explicit)
        job = AlterTopicJob(self._disk, self.directory(topic.name), described, config)
        self._altering[topic.name] = job
        return job

    def begin_host(self, name: str, numbers: Sequence[int], *, epochs: Mapping[int, int]) -> HostReplicasJob:
        """A job that makes replicas of these partitions of the topic, which this node has not had, and which have heard
        of these leader `epochs` from the beginning.
        """
        self._check_free(name)
        topic = self.get(name)
        hosted = {partition.number for partition in topic.partitions}
        assert not hosted & set(numbers)
        described = _described(topic, replicas=sorted(hosted | set(numbers)), epochs={**topic.noted_epochs, **epochs})
        job = HostReplicasJob(self._disk, self.directory(name), described, numbers)
        self._altering[name] = job
        return job

    def _check_free(self, name: str) -> None:
        if name in self._altering:
            raise Conflict(f"another change of the topic {name} is under way; retry when it is done")

    def begin_delete(self, name: str, *, internal_ok: bool = False) -> DeleteTopicJob:
        """Delete the topic at once and cancel its jobs; the job makes that durable and removes the files.

        Until the job has run, a power cut may bring the topic back, unchanged.
        """
        if not internal_ok:
            refuse_internal(name)
        topic = self.get(name)
        remains = f"{self._data.topics_path}/{name[:_NAME_BYTES_KEPT]}{_DELETED}{self._deleted_count}"
        self._deleted_count += 1
        try:
            self._disk.rename(self.directory(name), remains)
        except OSError as error:
            raise unusable(self.directory(name), error) from error
        del self._topics[name]
        altering = self._altering.pop(name, None)
        if isinstance(altering, AlterTopicJob):
            with suppress(OSError):
                altering.cancel()
        self._abandon(topic.partitions)
        return DeleteTopicJob(self._disk, self._data.topics_path, remains, topic)

    def set_aside(self, name: str) -> str:
        """Stop serving the topic, and move its directory to `stray/`, where nothing looks at it; its path there."""
        topic = self._topics.pop(name)
        self._abandon(topic.partitions)
        stray = f"{self._data.path}/{STRAY}"
        self._disk.make_directory(stray)
        taken = {entry.name for entry in self._disk.entries(stray)}
        numbered = (f"{name[:_NAME_BYTES_KEPT]}~{topic.id}~{number}" for number in range(len(taken) + 1))
        path = f"{stray}/{next(one for one in numbered if one not in taken)}"
        try:
            self._disk.rename(self.directory(name), path)
            for directory in (stray, self._data.topics_path):
                self._disk.sync_directory(directory)
        except OSError as error:
            raise unusable(path, error) from error
        return path

    def _check_dead_letter_topic(self, name: str, config: TopicConfig) -> None:
        topics = self._topics
        validate_dead_letter_topic(name, config, lambda other: topics[other].config if other in topics else None)

    def complete(self, job: TopicJob, error: Exception | None = None) -> Topic:
        """Let a job that has run take effect, and return the topic; `error` is what the job raised."""
        match job:
            case CreateTopicJob():
                return self._created(job, error)
            case AlterTopicJob():
                return self._altered(job, error)
            case HostReplicasJob():
                return self._hosts(job, error)
            case DeleteTopicJob():
                _check(error, self._data.topics_path)
                return job.deleted

    def _created(self, job: CreateTopicJob, error: Exception | None) -> Topic:
        self._creating.discard(job.topic)
        _check(error, self.directory(job.topic))
        try:
            return self._open_topic(job.described)
        except GoQueueError:
            job.discard()
            raise

    def _altered(self, job: AlterTopicJob, error: Exception | None) -> Topic:
        if self._altering.get(job.topic) is not job:
            raise TopicNotFound(job.topic)
        del self._altering[job.topic]
        _check(error, self.directory(job.topic))
        topic = self.get(job.topic)
        topic.settings = dict(job.described.settings)
        topic.config = job.config
        log_config, ledger_config = log_configs(job.config)
        for partition in topic.partitions:
            partition.configure(log_config, ledger_config)
        return topic

    def _hosts(self, job: HostReplicasJob, error: Exception | None) -> Topic:
        if self._altering.get(job.topic) is not job:
            raise TopicNotFound(job.topic)
        del self._altering[job.topic]
        _check(error, self.directory(job.topic))
        topic = self.get(job.topic)
        opened: list[Partition] = []
        self._open_partitions(topic, job.described, job.numbers, opened)
        topic.noted_epochs = job.described.noted_epochs()
        topic.partitions = sorted(topic.partitions + opened, key=lambda one: one.number)
        return topic

    def quarantine(self, name: str, error: Exception) -> None:
        """Stop serving the topic because of the error; its files are left as they are."""
        topic = self._topics.pop(name, None)
        if topic is not None:
            self._abandon(topic.partitions)
        directory = self.directory(name)
        reason = str(unusable(directory, error) if isinstance(error, OSError) else error)
        self.quarantined[name] = TopicQuarantined(name, directory, reason)
        self._observe(events.QuarantineStarted(log=directory, topic=name, reason=reason))

    def _open_all(self) -> None:
        first: Exception | None = None
        for name, _, is_directory in sorted(_entries(self._disk, self._data.topics_path)):
            path = f"{self._data.topics_path}/{name}"
            if is_directory and is_deleted(name):
                self._disk.remove_tree(path)
            elif is_directory and is_topic_name(name):
                try:
                    self._open_directory(name, path)
                except (OSError, GoQueueError) as error:
                    first = first or error
                    self.quarantine(name, error)
            elif name not in TOLERATED:
                raise ForeignFile(path, "not a topic of GoQueue; move it out of the data directory")
        if first is not None and not self._topics:
            raise first

    def _open_directory(self, name: str, path: str) -> None:
        try:
            described = description.load(self._disk, path)
        except FileNotFoundError:
            _remove_remains(self._disk, path)
            return
        if described.name != name:
            raise DirectoryUnusable(
                path, f"its {DESCRIPTION} describes the topic {described.name!r}; rename the directory back"
            )
        try:
            self._open_topic(described)
        except InvalidTopic as error:
            raise DirectoryUnusable(f"{path}/{DESCRIPTION}", str(error)) from error

    def _open_topic(self, described: Description) -> Topic:
        name = described.name
        settings: dict[str, object] = dict(described.settings)
        config = TopicConfig.parse(settings, topic=name)
        facts = (name, described.id, described.created_at_ns, settings, config, described.partitions)
        topic = Topic(*facts, partitions=[], noted_epochs=described.noted_epochs())
        self._open_partitions(topic, described, described.hosted(), topic.partitions)
        self._topics[name] = topic
        return topic

    def _open_partitions(
        self, topic: Topic, described: Description, numbers: Sequence[int], opened: list[Partition]
    ) -> None:
        """Add these partitions of the topic to `opened`."""
        name, noted_epochs = topic.name, described.noted_epochs()
        log_config, ledger_config = log_configs(topic.config)
        open_log, observe = self._data.open_log, self._observe
        try:
            for number in numbers:
                noted = noted_epochs.get(number, -1)
                log = open_log(name, number, log_config, noted_epoch=noted, observe=observe)
                open_ledger = partial(open_log, name, number, kind="ledger", observe=observe)
                directory = f"{self.directory(name)}/{number}"
                names = {entry.name for entry in _entries(self._disk, directory)}
                if "ledger" in names:  # it is opened on first use, so foreign files in it have to be found now
                    sort_out(f"{directory}/ledger", self._disk.entries(f"{directory}/ledger"))
                opened.append(
                    Partition(
                        name,
                        number,
                        log,
                        ledger_config,
                        open_ledger,
                        has_ledger="ledger" in names,
                        delay_file=DelayFile(self._disk, directory, exists=DELAYS in names),
                    )
                )
        except (OSError, GoQueueError):
            self._abandon(opened)
            raise

    def _abandon(self, partitions: list[Partition]) -> None:
        for partition in partitions:
            partition.abandon()
            for log in partition.open_logs:
                self._data.forget(log)

    def directory(self, name: str) -> str:
        """Where the files of the topic are."""
        return f"{self._data.topics_path}/{name}"


def is_deleted(name: str) -> bool:
    """Whether a directory of that name is a deleted topic."""
    return _DELETED in name


def _check(error: Exception | None, path: str) -> None:
    """Raise the error of a job, if it failed; an `OSError` as one of `goqueue.errors`."""
    if isinstance(error, OSError):
        raise unusable(path, error) from error
    if error:
        raise error


def _described(
    topic: Topic,
    *,
    settings: Mapping[str, object] | None = None,
    replicas: list[int] | None = None,
    epochs: dict[int, int] | None = None,
) -> Description:
    """The description of the topic, with other settings or replicas."""
    epochs = topic.noted_epochs if epochs is None else epochs
    hosted = [partition.number for partition in topic.partitions] if replicas is None else replicas
    return Description(
        name=topic.name,
        id=topic.id,
        created_at_ns=topic.created_at_ns,
        partitions=topic.partition_count,
        replicas=msgspec.UNSET if len(hosted) == topic.partition_count else hosted,
        leader_epochs=epochs or msgspec.UNSET,
        settings=_storable(topic.settings if settings is None else settings),
    )


def _storable(explicit: Mapping[str, object]) -> dict[str, str | int | float | bool]:
    """Settings that were parsed have no other types."""
    return cast("dict[str, str | int | float | bool]", dict(explicit))


def _remove_remains(disk: Disk, directory: str) -> None:
    """Remove the directory of a topic that does not exist, but never a record or a foreign file."""
    found = _entries(disk, directory)
    for name, _, is_directory in found:
        if is_directory and name.isdecimal():
            _check_empty(disk, f"{directory}/{name}")
        elif is_directory or name not in (DESCRIPTION, DESCRIPTION + NEW):
            raise ForeignFile(f"{directory}/{name}", FOREIGN)
    if any(entry.name == DESCRIPTION for entry in found):
        disk.remove(f"{directory}/{DESCRIPTION}")
        disk.sync_directory(directory)
    disk.remove_tree(directory)


def _check_empty(disk: Disk, partition: str) -> None:
    """Raise unless the directory of the partition holds only logs without records."""
    for kind, _, is_directory in disk.entries(partition):
        if not is_directory or kind not in KINDS:
            raise ForeignFile(f"{partition}/{kind}", FOREIGN)
        entries = disk.entries(f"{partition}/{kind}")
        sort_out(f"{partition}/{kind}", entries)
        for name, size, _ in entries:
            if LOG in name and size:
                reason = f"holds records, but its topic has no {DESCRIPTION}; restore it, or move the topic away"
                raise DirectoryUnusable(f"{partition}/{kind}/{name}", reason)


def _entries(disk: Disk, directory: str) -> list[Entry]:
    """The entries of the directory; none if it is missing."""
    try:
        return disk.entries(directory)
    except FileNotFoundError:
        return []
