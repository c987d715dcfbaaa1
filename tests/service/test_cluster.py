"""The words for a cluster and its partitions, which nodes of a cluster and a broker that is alone use alike."""

import pytest

from goqueue.errors import InvalidRequest
from goqueue.service.cluster import (
    NO_NODE,
    NODE_STATES,
    PartitionCounts,
    check_election,
    cluster_health,
    partition_status,
)
from goqueue.wire.cluster_reports import NodeLiveness

NO_PARTITIONS = PartitionCounts()


def status(*states: str, counts: PartitionCounts = NO_PARTITIONS, **changes: int | bool) -> str:
    nodes = [NodeLiveness(id=number, status=state, last_seen_ns=None) for number, state in enumerate(states)]
    known = {"controller_id": 0, "controller_epoch": 1, "is_metadata_available": True} | changes
    return cluster_health(nodes, counts, **known).status  # type: ignore[arg-type]


def test_a_cluster_is_ok_if_nothing_is_wrong() -> None:
    assert status("online", "online", counts=PartitionCounts(total=5)) == "ok"


@pytest.mark.parametrize("state", [state for state in NODE_STATES if state != "online"])
def test_a_node_that_is_not_online_degrades_it(state: str) -> None:
    assert status("online", state) == "degraded"


def test_what_stops_decisions_but_no_data_degrades_it() -> None:
    assert status("online", controller_id=NO_NODE) == "degraded"
    assert status("online", is_metadata_available=False) == "degraded"
    assert status("online", counts=PartitionCounts(total=1, under_replicated=1)) == "degraded"


def test_it_fails_without_a_leader_or_without_any_node() -> None:
    assert status("online", counts=PartitionCounts(total=2, offline=1, under_replicated=1)) == "fail"
    assert status("fenced", "fenced") == "fail"
    assert status() == "fail"


def test_a_partition_that_is_not_led_by_its_preferred_replica_is_well() -> None:
    assert status("online", counts=PartitionCounts(total=1, misplaced=1)) == "ok"


def test_a_partition_is_called_by_the_worst_that_it_has() -> None:
    assert partition_status(1, missing=0, in_sync=3, min_insync=2) == "online"
    assert partition_status(1, missing=1, in_sync=2, min_insync=2) == "under_replicated"
    assert partition_status(1, missing=2, in_sync=1, min_insync=2) == "under_min_isr"
    assert partition_status(NO_NODE, missing=3, in_sync=0, min_insync=2) == "offline"


def test_arguments_of_an_election_that_contradict_each_other_are_refused() -> None:
    check_election(None, None, is_unclean=True, replica=1)
    check_election("orders", [0], is_unclean=False, replica=None)
    with pytest.raises(InvalidRequest, match="without a topic"):
        check_election(None, [0], is_unclean=False, replica=None)
    with pytest.raises(InvalidRequest, match="only an unclean election"):
        check_election("orders", [0], is_unclean=False, replica=1)
