"""How a node comes to belong to a cluster: it forms one, joins one, or goes on in its own.

    its copy      the shared log    the node
    no cluster    empty             forms a cluster: the first append creates the cluster id, so exactly one node wins
    no cluster    has a cluster     joins it; with topics of its own it refuses
    a cluster     empty             refuses: the log went back (R11)
    a cluster     has its history   goes on
    a cluster     anything else     refuses: it went back, or it is the log of another cluster

A node whose data directory has topics, but no cluster, was alone until now. It forms the cluster with its own topics in
the first entry, under their ids: so nothing of it is lost, and nothing is there twice.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnTopic:
    """A topic of a node that was alone."""

    id: str
    name: str
    created_at_ns: int
    leader_epochs: Sequence[int]  # of its partitions: the highest that their logs have ever had
    settings: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnData:
    """What a node brings into the cluster that it forms."""

    topics: Sequence[OwnTopic] = ()
    producer_numbers: int = 0  # numbers below this were given to producers already


NOTHING = OwnData()
