"""Where replicas are placed: balanced, spread over racks, and so that the partitions of a dead broker spread too."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from goqueue.cluster.placement import ReplicaHost
from tests.cluster.mutations import ORIGINAL, Modules

place = ORIGINAL.placement.place


def hosts(count: int, racks: int = 0) -> list[ReplicaHost]:
    return [ReplicaHost(node, f"r{node % racks}" if racks else "", 0, 0) for node in range(1, count + 1)]


def test_leaders_and_replicas_are_balanced(modules: Modules) -> None:
    placed = modules.placement.place(hosts(5), partitions=50, replication_factor=3)

    assert set(Counter(replicas[0] for replicas in placed).values()) == {10}
    assert set(Counter(node for replicas in placed for node in replicas).values()) == {30}


def test_the_partitions_of_a_dead_broker_are_led_by_all_others() -> None:
    placed = place(hosts(4), partitions=48, replication_factor=3)

    for dead in range(1, 5):
        next_leaders = Counter(replicas[1] for replicas in placed if replicas[0] == dead)
        assert set(next_leaders) == {1, 2, 3, 4} - {dead}
        assert max(next_leaders.values()) - min(next_leaders.values()) <= 2


def test_replicas_are_in_different_racks(modules: Modules) -> None:
    candidates = hosts(6, racks=3)

    for replicas in modules.placement.place(candidates, partitions=20, replication_factor=3):
        assert len({node % 3 for node in replicas}) == 3


def test_a_rack_is_used_twice_only_when_all_are_used() -> None:
    for replicas in place(hosts(6, racks=2), partitions=20, replication_factor=3):
        assert sorted(Counter(node % 2 for node in replicas).values()) == [1, 2]


def test_a_broker_without_a_rack_is_a_rack_of_its_own() -> None:
    candidates = [ReplicaHost(node, rack, 0, 0) for node, rack in ((1, "a"), (2, "a"), (3, ""), (4, ""))]

    for replicas in place(candidates, partitions=20, replication_factor=3):
        assert not {1, 2} <= set(replicas)


def test_a_broker_that_has_less_gets_more() -> None:
    candidates = [ReplicaHost(1, "", 10, 10), ReplicaHost(2, "", 10, 10), ReplicaHost(3, "", 0, 0)]

    placed = place(candidates, partitions=9, replication_factor=1)

    assert placed == [(3,)] * 9


def test_topics_of_one_partition_do_not_pile_up(modules: Modules) -> None:
    preferred, total = Counter[int](), Counter[int]()
    for _ in range(30):
        candidates = [ReplicaHost(node, "", preferred[node], total[node]) for node in (1, 2, 3)]
        ((leader, *others),) = modules.placement.place(candidates, partitions=1, replication_factor=2)
        preferred[leader] += 1
        total.update((leader, *others))

    assert set(preferred.values()) == {10}
    assert set(total.values()) == {20}


@given(data=st.data(), count=st.integers(1, 8), partitions=st.integers(1, 40), racks=st.integers(0, 4))
def test_any_placement_is_balanced_and_spread(data: st.DataObject, count: int, partitions: int, racks: int) -> None:
    factor = data.draw(st.integers(1, count))
    candidates = hosts(count, racks)
    rack_of = {host.node: host.rack or str(host.node) for host in candidates}

    placed = place(candidates, partitions=partitions, replication_factor=factor)

    assert len(placed) == partitions
    leaders = Counter({host.node: 0 for host in candidates})
    for replicas in placed:
        assert len(set(replicas)) == len(replicas) == factor
        used = Counter(rack_of[node] for node in replicas)
        assert len(used) == min(factor, len(set(rack_of.values())))
        leaders[replicas[0]] += 1
    assert max(leaders.values()) - min(leaders.values()) <= 1
    if not racks:
        total = Counter({host.node: 0 for host in candidates})
        total.update(node for replicas in placed for node in replicas)
        assert max(total.values()) - min(total.values()) <= 2


@pytest.mark.parametrize("order", [1, -1])
def test_placement_does_not_depend_on_the_order_of_hosts(order: int) -> None:
    assert place(hosts(4, 2)[::order], partitions=7, replication_factor=2) == place(
        hosts(4, 2), partitions=7, replication_factor=2
    )
