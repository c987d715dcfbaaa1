"""Who a process is as a node of a cluster."""

from dataclasses import dataclass

from goqueue.cluster.records import BrokerAddresses


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeIdentity:
    """What a process says about itself when it becomes a node."""

    node: int
    incarnation: str  # of the process: a new one after every start
    addresses: BrokerAddresses
    version: str
    rack: str = ""
