"""The reconciler: it makes the replicas of this node what the metadata says they are.

    records are applied ──> their topics are looked at ──> the next step of each: drop, place, alter, host, a role
                                    ▲                                                   │
                                    └────────── the step is done, or failed ────────────┘

It compares what should be with what is, and never replays what has changed: so it does not matter how many records came
in between, or that a step takes long, fails, or was cut short by a crash. A step that failed is tried again at a tick.

Roles come from applied records alone. A node that has just started finds its old roles in the metadata, as of before it
stopped; another node may lead by then. So it takes none until the metadata has its own registration: from then on the
controller knows which process it speaks of.

Nothing is deleted on a guess. A topic is dropped if a record says that it was removed. A topic of the data directory
that the metadata does not know at all was not removed by this cluster: at the start it is moved to `stray/`, where it
stays until an operator looks at it.
"""

import logging
from collections.abc import Callable, Container, Iterable
from functools import partial
from typing import Final

from goqueue.broker.local_partitions import LocalPartitions, LocalTopic
from goqueue.broker.partition.commit_gate import InSync
from goqueue.broker.partition.replica import Replica
from goqueue.clock import SECOND
from goqueue.cluster.metadata import Metadata
from goqueue.cluster.records import PartitionChanged, Record, TopicAdded, TopicAltered, TopicRemoved
from goqueue.errors import GoQueueError, NotLeader
from goqueue.service.pending import Pending

RETRY_NS: Final = SECOND // 2

_log = logging.getLogger(__name__)


class Reconciler:
    """Applies metadata to the partitions of one node."""

    def __init__(self, partitions: LocalPartitions, metadata: Metadata, *, node: int, incarnation: str) -> None:
        self._partitions = partitions
        self._metadata = metadata
        self._node = node
        self._incarnation = incarnation
        self._is_registered = False
        self._busy: set[str] = set()  # ids of topics with a step under way
        self._failed: dict[str, None] = {}  # ids of topics whose last step failed
        self._names: dict[str, str] = {}  # of the topics on this node, by id
        self._retry_ns = 0
        self._in_sync: dict[tuple[str, int], InSync] = {}  # of the partitions led here
        self.follows: dict[tuple[str, int], PartitionChanged] = {}
        """What this node follows, by topic id and partition."""
        self.leads: dict[tuple[str, int], Replica] = {}
        """What this node leads and others follow, likewise."""
        self._awaited: dict[str, list[Pending[None]]] = {}  # by the id of a topic
        self.changed: Callable[[], None] = lambda: None
        """Called when `follows` or `leads` has changed."""

    # --- what happens --------------------------------------------------------------------------

    def start(self, removed: Container[str] = ()) -> None:
        """Look at everything: once, after the log was read to its end. `removed` are the ids of topics that the cluster
        removed while this node was away.
        """
        for topic in list(self._partitions.catalog):
            if topic.id in removed:
                self._names[topic.id] = topic.name
                self._look(topic.id)
            elif self._metadata.topic(topic.id) is None:
                path = self._partitions.set_aside(topic.name)
                _log.error(
                    "the cluster does not know a topic of this data directory; it was moved away",
                    extra={"topic": topic.name, "topic_id": topic.id, "path": path},
                )
            else:
                self._names[topic.id] = topic.name
        for topic_id in list(self._metadata.topics):
            self._look(topic_id)

    def applied(self, records: Iterable[Record]) -> None:
        """These records took effect."""
        topics: dict[str, None] = {}
        for record in records:
            match record:
                case PartitionChanged(topic_id=topic_id):
                    topics[topic_id] = None
                case TopicAdded(id=topic_id) | TopicAltered(id=topic_id) | TopicRemoved(id=topic_id):
                    topics[topic_id] = None
        if not self._is_registered and self._knows_this_process():
            self._is_registered = True
            topics |= dict.fromkeys(self._names)
        for topic_id in topics:
            self._look(topic_id)

    def tick(self, now_ns: int) -> None:
        """Try again what has failed."""
        if self._failed and now_ns >= self._retry_ns:
            self._retry_ns = now_ns + RETRY_NS
            failed, self._failed = self._failed, {}
            for topic_id in failed:
                self._look(topic_id)

    def when_done(self, topic_id: str) -> Pending[None]:
        """Done when the topic is here what it should be. Fails with what keeps a step from being done, which is tried
        again.
        """
        if topic_id in self._failed:
            self._look(topic_id)
        done: Pending[None] = Pending()
        self._awaited.setdefault(topic_id, []).append(done)
        self._tell(topic_id)
        return done

    def _tell(self, topic_id: str, error: Exception | None = None) -> None:
        if topic_id in self._busy or topic_id not in self._awaited:
            return
        for waiting in self._awaited.pop(topic_id):
            if error is None:
                waiting.resolve(None)
            else:
                waiting.fail(error)

    def topic_name(self, topic_id: str) -> str | None:
        """The name of a topic that this node has."""
        return self._names.get(topic_id)

    def _knows_this_process(self) -> bool:
        broker = self._metadata.broker(self._node)
        return broker is not None and broker.registration.incarnation == self._incarnation

    # --- topics --------------------------------------------------------------------------------

    def _look(self, topic_id: str) -> None:
        """Take the next step towards what the topic should be, if there is one. Roles change at once, whatever else is
        under way: a leader that is none any more must not go on.
        """
        try:
            self._take_roles(topic_id)
            step = None if topic_id in self._busy else self._step(topic_id)
        except GoQueueError as error:
            self._fail(topic_id, error)
            return
        if step is not None:
            self._busy.add(topic_id)
            step.then(partial(self._done, topic_id))

    def _done(self, topic_id: str, step: Pending[LocalTopic] | Pending[None]) -> None:
        self._busy.discard(topic_id)
        if step.error is not None:
            self._fail(topic_id, step.error)
            return
        self._look(topic_id)
        self._tell(topic_id)

    def _fail(self, topic_id: str, error: Exception) -> None:
        self._failed[topic_id] = None
        self._tell(topic_id, error)
        _log.warning("cannot do what the metadata says; it is tried again", extra={"reason": str(error)})

    def _step(self, topic_id: str) -> Pending[LocalTopic] | Pending[None] | None:
        wanted = self._metadata.topic(topic_id)
        name = self._names.get(topic_id)
        if wanted is None:
            if name is None:
                return None
            return self._drop(topic_id, name)
        if name is None:
            return self._place(wanted)
        found = self._partitions.find(name)
        if found is None:
            return None  # quarantined: its files cannot be used, and its replicas have no role
        if found.topic.settings != wanted.settings:
            job = self._partitions.catalog.begin_replace_settings(name, wanted.settings)
            return self._partitions.alter(job)
        missing = [number for number in self._hosted(topic_id) if number not in found.replicas]
        return self._partitions.host(name, missing, epochs=self._leader_epochs(topic_id)) if missing else None

    def _drop(self, topic_id: str, name: str) -> Pending[None]:
        del self._names[topic_id]
        for key in [key for key in self.follows if key[0] == topic_id]:
            del self.follows[key]
        for key in [key for key in self._in_sync if key[0] == topic_id]:
            del self._in_sync[key]
        for key in [key for key in self.leads if key[0] == topic_id]:
            del self.leads[key]
        self.changed()
        return self._partitions.drop(name, internal_ok=True)

    def _place(self, wanted: TopicAdded) -> Pending[LocalTopic] | None:
        other = self._partitions.find(wanted.name)
        if other is not None:  # an earlier topic of the name, whose removal is on its way
            self._failed[wanted.id] = None
            return None
        placed = self._partitions.place(
            wanted.name,
            topic_id=wanted.id,
            created_at_ns=wanted.created_at_ns,
            partitions=wanted.partition_count,
            replicas=self._hosted(wanted.id),
            settings=wanted.settings,
            epochs=self._leader_epochs(wanted.id),
        )
        self._names[wanted.id] = wanted.name
        placed.then(partial(self._placed, wanted.id))
        return placed

    def _placed(self, topic_id: str, done: Pending[LocalTopic]) -> None:
        if done.error is not None:
            del self._names[topic_id]

    def _leader_epochs(self, topic_id: str) -> dict[int, int]:
        """The leader epochs of the partitions: new replicas have heard of them from the beginning, so the event loop
        does not wait for the disk when they take their first role.
        """
        return {one.partition: one.leader_epoch for one in self._metadata.partitions_of(topic_id)}

    def _hosted(self, topic_id: str) -> list[int]:
        partitions = self._metadata.partitions_of(topic_id)
        return [partition.partition for partition in partitions if self._node in partition.replicas]

    # --- roles ---------------------------------------------------------------------------------

    def _take_roles(self, topic_id: str) -> None:
        name = self._names.get(topic_id)
        found = None if name is None else self._partitions.find(name)
        if found is None or found.topic.id != topic_id:
            return
        for number, replica in found.replicas.items():
            self._take_role(topic_id, replica, self._metadata.partition(topic_id, number))

    def _take_role(self, topic_id: str, replica: Replica, wanted: PartitionChanged | None) -> None:
        """Lead, follow, or neither. Raises `StorageError` if the files of the replica do not allow that."""
        key = (topic_id, replica.origin.partition)
        topic, number = replica.origin
        if wanted is None or wanted.leader is None or self._node not in wanted.replicas or not self._is_registered:
            self._resign(key, replica)
            return
        role = replica.leader or replica.follower
        leads = wanted.leader == self._node
        if role is None or role.epoch != wanted.leader_epoch or leads != (replica.leader is not None):
            if wanted.leader_epoch < replica.epoch:
                raise NotLeader(topic, number)  # rule E4: this replica has heard of a later leader
            self._resign(key, replica)
            if leads:
                in_sync = self._in_sync_of(wanted)
                try:
                    self._partitions.become_leader(topic, number, wanted.leader_epoch, in_sync=in_sync)
                finally:  # it may lead although something that follows from it has failed
                    if in_sync is not None and replica.leader is not None:
                        self._in_sync[key] = in_sync
                        self.leads[key] = replica
                        self.changed()
            else:
                self._partitions.become_follower(topic, number, wanted.leader_epoch)
                self.follows[key] = wanted
                self.changed()
        elif leads and replica.followers is not None:
            in_sync = self._in_sync_of(wanted)
            before = self._in_sync.get(key)
            if in_sync is not None and in_sync != before:
                self._in_sync[key] = in_sync
                is_same = before is not None and before.replicas == in_sync.replicas  # it is not decided who joins
                joining = replica.followers.in_sync.joining if is_same else frozenset[int]()
                replica.followers.change(in_sync._replace(joining=joining))

    def _resign(self, key: tuple[str, int], replica: Replica) -> None:
        if replica.follower is not None and replica.follower.is_cutting:
            raise NotLeader(*replica.origin)  # first the truncation has to be on the disk
        self._in_sync.pop(key, None)
        if self.follows.pop(key, None) is not None or self.leads.pop(key, None) is not None:
            self.changed()
        if replica.leader is not None or replica.follower is not None:
            self._partitions.resign(*replica.origin)

    def _in_sync_of(self, wanted: PartitionChanged) -> InSync | None:
        if len(wanted.replicas) == 1:
            return None
        return InSync(frozenset(wanted.isr), at_least=self._metadata.min_insync(wanted))
