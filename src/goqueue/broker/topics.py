"""The verbs about topics: create, delete, alter, list, describe, truncate, offsets."""

from collections.abc import Mapping, Sequence
from functools import partial

from goqueue.broker.config import BrokerConfig
from goqueue.broker.local_partitions import LocalPartitions, LocalTopic
from goqueue.broker.partition.record_deletion import delete_records
from goqueue.broker.stopping import Stopping
from goqueue.broker.timers import Timers
from goqueue.clock import MS, SECOND, Clock
from goqueue.errors import GoQueueError, InvalidRequest, StorageFull
from goqueue.service.pending import Pending, after
from goqueue.service.topics import PartitionInfo, TopicInfo
from goqueue.topics.catalog import AlterTopicJob
from goqueue.topics.config import TopicConfig

MAKE_ROOM_NS = 5 * SECOND
"""How long a change of retention on a full disk is retried while segments are deleted."""
MAKE_ROOM_STEP_NS = 100 * MS


class Topics:
    """The verbs about topics."""

    def __init__(
        self, partitions: LocalPartitions, *, clock: Clock, timers: Timers, config: BrokerConfig, stopping: Stopping
    ) -> None:
        self._partitions = partitions
        self._clock = clock
        self._timers = timers
        self._config = config
        self._stopping = stopping

    def create(
        self,
        topic: str,
        *,
        partitions: int | None = None,
        replication_factor: int | None = None,
        settings: Mapping[str, object] | None = None,
    ) -> Pending[TopicInfo]:
        """A new topic, once it is durable."""
        self._stopping.check()
        created = self._partitions.create(
            topic,
            partitions=self._config.default_partitions if partitions is None else partitions,
            replication_factor=replication_factor,
            settings={**self._config.settings_for(topic), **(settings or {})},
        )
        return after(created, self._info)

    def delete(self, topic: str) -> Pending[None]:
        """Delete the topic: it is gone at once, its files are removed later."""
        self._stopping.check()
        return self._partitions.delete(topic)

    def alter(self, topic: str, changes: Mapping[str, object]) -> Pending[TopicInfo]:
        """Change settings; None resets one.

        On a full disk there may be no room to store the new settings. A shorter retention is applied before that,
        because it makes room.
        """
        self._stopping.check()
        altered: Pending[TopicInfo] = Pending()
        give_up_ns = self._clock.monotonic_ns() + MAKE_ROOM_NS

        if self._partitions.authority is not None:
            return after(self._partitions.alter_by_authority(topic, changes), self._info)

        def attempt() -> None:
            job = self._partitions.catalog.begin_alter(topic, changes)
            self._partitions.alter(job).then(partial(look, job))

        def again() -> None:
            try:
                attempt()
            except GoQueueError as error:
                altered.fail(error)

        def look(job: AlterTopicJob, done: Pending[LocalTopic]) -> None:
            try:
                altered.resolve(self._info(done.result()))
            except StorageFull as error:
                if self._clock.monotonic_ns() >= give_up_ns or not self._make_room(topic, job.config):
                    altered.fail(error)
                else:
                    self._timers.at(self._clock.monotonic_ns() + MAKE_ROOM_STEP_NS, again)
            except Exception as error:
                altered.fail(error)

        attempt()
        return altered

    def _make_room(self, name: str, wanted: TopicConfig) -> bool:
        """Delete what the new retention does not keep; returns whether it keeps less than the current one."""
        topic = self._partitions.find(name)
        if topic is None or self._stopping.has_begun:
            return False
        new, old = wanted.log_config(), topic.topic.config.log_config()
        if not _is_less(new.retention_ms, old.retention_ms) and not _is_less(new.retention_bytes, old.retention_bytes):
            return False
        for leader in topic.leaders:
            leader.log.config, leader.needs_room = new, True
            leader.configured()  # starts the jobs that delete; they use no other setting
            leader.log.config, leader.needs_room = old, False
        return True

    def list(self, *, internal: bool = False) -> list[str]:
        """The names, sorted."""
        return self._partitions.catalog.names(internal=internal)

    def describe(self, topic: str) -> TopicInfo:
        """The current state of the topic, which may be internal."""
        return self._info(self._partitions.any_topic(topic))

    def offsets(self, topic: str, *, time_ns: int | None = None, at: str = "latest") -> Sequence[int]:
        """By partition: the first offset at or after a time, or `earliest`, or `latest` (the high watermark)."""
        found = self._partitions.readable(topic)
        leaders = [found.replicas[number].leading for number in range(found.partition_count)]
        if time_ns is not None:
            return [min(leader.log.offset_at_time(time_ns), leader.high_watermark) for leader in leaders]
        if at not in ("earliest", "latest"):
            raise InvalidRequest(f"invalid time {at!r}: must be a time, earliest or latest", path="time")
        return [leader.log.start_offset if at == "earliest" else leader.high_watermark for leader in leaders]

    def truncate(self, topic: str, partition: int, before_offset: int) -> Pending[int]:
        """Delete the records of a partition below an offset; -1 deletes all. Returns the new start of the log."""
        self._stopping.check()
        return delete_records(self._partitions.leader(topic, partition), before_offset, clock=self._clock)

    def _info(self, found: LocalTopic) -> TopicInfo:
        topic = found.topic
        settings = topic.config.settings()
        partitions = [self._partition_info(found, number) for number in range(found.partition_count)]
        settings["dead_letter_topic"] = topic.config.dead_letter_topic_of(topic.name)
        return TopicInfo(
            name=topic.name,
            topic_id=topic.id,
            replication_factor=max(len(partition.replicas) for partition in partitions),
            created_at_ns=topic.created_at_ns,
            settings=settings,
            defaults=[name for name in settings if name not in topic.settings],
            partitions=partitions,
        )

    def _partition_info(self, found: LocalTopic, number: int) -> PartitionInfo:
        replica, roles = found.replicas.get(number), self._partitions.roles(found, number)
        if replica is None:  # its size is known where it is
            return PartitionInfo(number, 0, 0, 0, 0, 0, roles.leader, roles.leader_epoch, 0, *roles[2:])
        log, committed = replica.log, replica.high_watermark
        return PartitionInfo(
            partition=number,
            start_offset=log.start_offset,
            end_offset=log.next_offset,
            high_watermark=committed,
            last_stable_offset=replica.producers.stable_below(committed),
            size_bytes=log.size,
            leader=roles.leader,
            leader_epoch=roles.leader_epoch,
            message_count=replica.producers.message_count,
            version=roles.version,
            replicas=roles.replicas,
            isr=roles.isr,
            elr=roles.elr,
        )


def _is_less(new: int, old: int) -> bool:
    """Whether a retention keeps less than another; 0 is unlimited."""
    return bool(new) and (not old or new < old)
