"""The series about the cluster, computed when the metrics are scraped, from the metadata that the node has applied.

Every node exports all of them as it sees the metadata, so queries take `max()`. Only `cluster_is_controller` is about
the node itself.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from goqueue.clock import SECOND


class ClusterGauges(NamedTuple):
    """The cluster in numbers, as one node sees it."""

    node_id: int
    states: Sequence[str]  # all that a node can be in
    nodes: Mapping[int, str]  # the state of each
    nodes_healthy: int
    leaders: Mapping[int, int]  # how many partitions each leads
    followers: Mapping[int, int]
    partitions: int
    offline: int
    under_replicated: int
    under_min_isr: int
    misplaced: int  # not led by their preferred replica
    is_controller: bool
    controller_age_ns: int | None  # None without a controller
    controller_epoch: int
    applied_index: int
    is_metadata_available: bool


class ClusterMetrics(Collector):
    """Reads the numbers that `watch` names."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._look: Callable[[], ClusterGauges] | None = None
        registry.register(self)

    def watch(self, look: Callable[[], ClusterGauges]) -> None:
        """Read these numbers at each scrape."""
        self._look = look

    def collect(self) -> Iterator[Metric]:
        """The series with their current values."""
        if self._look is None:
            return
        seen = self._look()
        plain: dict[str, tuple[str, float]] = {
            "cluster_nodes_total": ("Registered nodes", len(seen.nodes)),
            "cluster_nodes_healthy": ("Nodes that are online", seen.nodes_healthy),
            "cluster_partition_count": ("Partitions, internal ones included", seen.partitions),
            "cluster_offline_partitions": ("Partitions without a leader", seen.offline),
            "cluster_under_replicated_partitions": (
                "Partitions with replicas that are not in sync",
                seen.under_replicated,
            ),
            "cluster_under_min_isr_partitions": (
                "Partitions with less replicas in sync than writes need",
                seen.under_min_isr,
            ),
            "cluster_preferred_leader_imbalance": (
                "Partitions that are not led by their preferred replica",
                seen.misplaced,
            ),
            "metadata_controller_epoch": ("The epoch of the controller", seen.controller_epoch),
            "metadata_applied_index": ("The last entry of the metadata log that was applied", seen.applied_index),
            "metadata_available": ("1 while the metadata log answers", seen.is_metadata_available),
        }
        if seen.controller_age_ns is not None:
            plain["cluster_controller_age_seconds"] = (
                "How long this controller has been known",
                seen.controller_age_ns / SECOND,
            )
        for name, (text, value) in plain.items():
            yield GaugeMetricFamily(f"goqueue_{name}", text, value=value)
        yield _by_node("cluster_is_controller", "1 if this node is the controller", {seen.node_id: seen.is_controller})
        yield _by_node("cluster_leaders_per_node", "Partitions that a node leads", seen.leaders)
        yield _by_node("cluster_followers_per_node", "Partitions that a node follows", seen.followers)
        states = GaugeMetricFamily(
            "goqueue_cluster_node_state", "1 for the state that a node is in", labels=["node_id", "state"]
        )
        for node, current in seen.nodes.items():
            for state in seen.states:
                states.add_metric([str(node), state], state == current)
        yield states


def _by_node(name: str, text: str, values: Mapping[int, float]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(f"goqueue_{name}", text, labels=["node_id"])
    for node, value in values.items():
        family.add_metric([str(node)], value)
    return family
