"""What happens to all partitions of a broker when its status changes: decided in as few records as there are changes.

A broker is fenced last, when no partition is led by it or in sync with it any more; so the records before it may be in
earlier entries, and a controller that is lost half way leaves a state that is right. A broker is put online first, and
leads what nobody leads after it.
"""

from collections.abc import Iterable
from itertools import islice

from goqueue.cluster.drafts import Drafts
from goqueue.cluster.elections import ranks, revived, with_better_leader, without_broker, without_replica
from goqueue.cluster.metadata import BrokerState
from goqueue.cluster.records import BrokerChanged, BrokerStatus, PartitionKey


def fence(drafts: Drafts, broker: BrokerState) -> int:
    """The broker leads nothing and is in sync with nothing; returns the index of the entry that says that."""
    drafts.add_each(without_broker(drafts.state, broker.node))
    return drafts.add((_changed(broker, BrokerStatus.FENCED),))


def put_online(drafts: Drafts, broker: BrokerState) -> None:
    """The broker may lead, and leads what only it can."""
    drafts.add((_changed(broker, BrokerStatus.ONLINE),))
    drafts.add_each(revived(drafts.state, broker.node))


def stop(drafts: Drafts, broker: BrokerState) -> int:
    """The broker leads only what no other can; returns how many partitions have another leader now."""
    if broker.is_online:
        drafts.add((_changed(broker, BrokerStatus.STOPPING),))
    led = list(drafts.state.led_by(broker.node))
    return improve_leaders(drafts, led, limit=len(led))


def leave(drafts: Drafts, broker: BrokerState) -> None:
    """The broker is to be removed."""
    if not broker.is_leaving:
        drafts.add((BrokerChanged(broker.node, broker.broker_epoch, broker.status, is_leaving=True),))


def drain(drafts: Drafts, node: int, *, limit: int) -> int:
    """Take up to so many partitions from a leaving broker: its replica, if no commit depends on it, else the lead.

    Returns how many were taken.
    """
    ranked = ranks(drafts.state.brokers)
    taken = 0
    for key in list(drafts.state.replicas_on(node)):
        if taken == limit:
            break
        partition = drafts.state.partitions[key]
        after = without_replica(drafts.state, partition, node, ranked)
        if after is None and partition.leader == node:
            after = with_better_leader(drafts.state, partition, ranked)
        if after is not None:
            drafts.add((after,))
            taken += 1
    return taken


def improve_leaders(drafts: Drafts, keys: Iterable[PartitionKey], *, limit: int) -> int:
    """Let better leaders lead up to so many of the partitions; returns how many have another one."""
    ranked = ranks(drafts.state.brokers)
    better = (with_better_leader(drafts.state, drafts.state.partitions[key], ranked) for key in list(keys))
    count = 0
    for after in islice(filter(None, better), limit):
        drafts.add((after,))
        count += 1
    return count


def _changed(broker: BrokerState, status: BrokerStatus) -> BrokerChanged:
    return BrokerChanged(broker.node, broker.broker_epoch, status, broker.is_leaving)
