"""Where the replicas of a new topic are: balanced over brokers, and spread over racks.

The first replica of a partition is its preferred leader: the broker that is preferred by the fewest partitions. Each
further replica is in a rack that has the fewest replicas of this partition, so that the loss of a rack costs as few of
them as possible, and among those on the broker that has the fewest replicas. What is still equal is rotated by one
with every partition of the same leader: so when a broker dies, its partitions are not all led by the same other one.

A broker without a rack counts as a rack of its own.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

Rack = tuple[str, int]
"""Its name, and the node if the rack has no name."""


class ReplicaHost(NamedTuple):
    """A broker that can take replicas, and what it has."""

    node: int
    rack: str
    preferred_count: int  # how many partitions prefer it as their leader
    replica_count: int


def place(hosts: Sequence[ReplicaHost], *, partitions: int, replication_factor: int) -> list[tuple[int, ...]]:
    """The replicas of each new partition, the preferred leader first."""
    assert 1 <= replication_factor <= len(hosts)
    nodes = [host.node for host in sorted(hosts)]
    racks = {host.node: (host.rack, 0 if host.rack else host.node) for host in hosts}
    preferred = {host.node: host.preferred_count for host in hosts}
    replicas = {host.node: host.replica_count for host in hosts}
    placed = []
    for _ in range(partitions):
        leader = min(nodes, key=lambda node: (preferred[node], replicas[node], node))
        others = _rotated(nodes, leader, preferred[leader])
        chosen = (leader, *_followers(others, racks, racks[leader], replicas, replication_factor - 1))
        preferred[leader] += 1
        for node in chosen:
            replicas[node] += 1
        placed.append(chosen)
    return placed


def _rotated(nodes: Sequence[int], leader: int, by: int) -> list[int]:
    """The other nodes in the order of the ring after the leader, rotated."""
    place = nodes.index(leader)
    others = [*nodes[place + 1 :], *nodes[:place]]
    by %= len(others) or 1
    return others[by:] + others[:by]


def _followers(
    others: Sequence[int], racks: Mapping[int, Rack], leader_rack: Rack, replicas: Mapping[int, int], count: int
) -> list[int]:
    in_rack = Counter((leader_rack,))
    left = {node: order for order, node in enumerate(others)}
    chosen = []
    for _ in range(count):
        node = min(left, key=lambda node: (in_rack[racks[node]], replicas[node], left[node]))
        del left[node]
        in_rack[racks[node]] += 1
        chosen.append(node)
    # The rotation alone says which of them leads next: by the number of replicas it would be the same one for long.
    return sorted(chosen, key=others.index)
