"""The health of a node, by aspect, for probes, operators and `goqueue doctor`.

    fail   a log has failed: after a disk error it refuses writes until the broker is started again; or this node is
           no part of its cluster at the moment
    warn   a problem that a restart does not solve, or that affects only some requests: the disk refuses writes
           or is nearly full, stored records are damaged, a topic is quarantined, stored facts cannot be decoded,
           the metadata log does not answer

Every message names the topics or partitions that it is about.
"""

from collections.abc import Callable, Sequence

from goqueue.broker.local_partitions import LocalPartitions
from goqueue.broker.stopping import Stopping
from goqueue.clock import Clock
from goqueue.names import VERSION
from goqueue.service.node import Check, NodeStats
from goqueue.storage.file import Space
from goqueue.wire.reports import HealthCheck, NodeHealth

NAMES_MAX = 5


class Health:
    """What keeps a broker from serving: disks, failed logs, refused writes, topics in quarantine."""

    def __init__(
        self,
        partitions: LocalPartitions,
        *,
        node_id: int,
        space: Callable[[], Space],
        cluster: Callable[[], Check],
        stopping: Stopping,
        clock: Clock,
    ) -> None:
        self._partitions = partitions
        self._node_id = node_id
        self._disk_space = space
        self._cluster = cluster
        self._stopping = stopping
        self._clock = clock
        self._started_ns = clock.monotonic_ns()

    def stats(self) -> NodeStats:
        """Statistics of the node."""
        return NodeStats(
            self._node_id,
            self._clock.monotonic_ns() - self._started_ns,
            len(self._partitions.catalog.names()),
            sum(replica.log.size for replica in self._partitions.all_replicas()),
        )

    def space(self) -> Space | None:
        """The free and total space of the data disk; None if it is not known."""
        try:
            return self._disk_space()
        except OSError:
            return None

    def checks(self) -> dict[str, Check]:
        broker = Check("fail", "stopping") if self._stopping.has_begun else Check("pass")
        return {"broker": broker, "storage": self._storage(), "cluster": self._cluster()}

    def health(self) -> NodeHealth:
        """The checks, quarantined topics, and the space on the disk."""
        checks = self.checks()
        found = {check.status for check in checks.values()}
        status = "fail" if "fail" in found else "degraded" if "warn" in found else "ok"
        space, stats = self.space(), self.stats()
        return NodeHealth(
            status,
            stats.node_id,
            VERSION,
            stats.uptime_ns,
            {name: HealthCheck(check.status, check.message) for name, check in checks.items()},
            None if space is None else space.free_bytes,
            None if space is None else space.total_bytes,
            {name: error.reason for name, error in sorted(self._partitions.catalog.quarantined.items())},
        )

    def _storage(self) -> Check:
        failed, refusing, damaged, unreadable = [], [], [], []
        unreadable_count = 0
        reason = ""
        space = self.space()
        for replica in self._partitions.all_replicas():
            for log in replica.partition.open_logs:
                if log.failure:
                    failed.append(f"{replica.partition.name} ({log.failure.operation}: {log.failure.reason})")
                elif log.refusal:
                    refusing.append(replica.partition.name)
                    reason = log.refusal
                if log.damage:
                    damaged.append(replica.partition.name)
            if replica.unreadable:
                unreadable.append(replica.partition.name)
                unreadable_count += replica.unreadable.count
        messages = []
        if failed:
            messages.append(f"a disk error stopped {_listed(failed)}; check the disk, then start the broker again")
        if refusing:
            messages.append(f"writes to {_listed(refusing)} are refused ({reason}); make room, reads continue")
        messages += _low_space(space)
        if damaged:
            messages.append(f"damaged records in {_listed(damaged)}")
        if unreadable:
            names = _listed(unreadable)
            messages.append(f"{unreadable_count} stored facts of {names} cannot be understood and are passed over")
        if self._partitions.catalog.quarantined:
            names = _listed(
                [f"{error.topic} ({error.reason})" for error in self._partitions.catalog.quarantined.values()]
            )
            messages.append(f"not served: {names}")
        if not messages:
            return Check("pass")
        return Check("fail" if failed else "warn", "; ".join(messages))


def _low_space(space: Space | None) -> list[str]:
    if space is None:
        return ["the disk does not tell how much room it has"]
    if not space.is_low:
        return []
    free, total = (count // (1024 * 1024) for count in space)
    return [f"the disk is nearly full: {free} MiB of {total} MiB are free"]


def _listed(names: Sequence[str]) -> str:
    names = list(dict.fromkeys(names))
    shown = ", ".join(names[:NAMES_MAX])
    return f"{shown} and {len(names) - NAMES_MAX} more" if len(names) > NAMES_MAX else shown
