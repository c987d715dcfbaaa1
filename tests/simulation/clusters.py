"""Clusters that tests begin with."""

from collections.abc import Iterator
from contextlib import contextmanager

from goqueue.cluster.node import Node
from goqueue.testing import SimulatedCluster


@contextmanager
def three_nodes(node_type: type[Node] = Node) -> Iterator[SimulatedCluster]:
    """Three nodes that know each other, and two topics on all of them."""
    with SimulatedCluster(seed=1, nodes=3, node_type=node_type) as cluster:
        cluster.start()
        cluster.until_whole()
        cluster.create_topic("orders")
        cluster.create_topic("payments")
        cluster.advance(1)
        yield cluster
