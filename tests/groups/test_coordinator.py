"""The set of groups: made by a first join, kept when empty, gone when deleted, and looked at in time."""

import pytest

from goqueue.clock import MS, SECOND
from goqueue.errors import Conflict, GroupNotFound, InvalidRequest, TopicNotFound
from goqueue.events import GroupChanged, GroupStateChanged, MemberJoined, MemberLeft
from goqueue.groups.config import GroupConfig
from goqueue.groups.coordinator import GroupCoordinator
from goqueue.groups.group import GroupState
from goqueue.groups.member import Member
from goqueue.names import TopicPartition
from goqueue.service.groups import Join

WALL_NS = 1_700_000_000 * SECOND
COUNTS = {"orders": 2, "returns": 1}


def join(
    coordinator: GroupCoordinator,
    group: str,
    client_id: str = "app",
    *,
    now_ns: int = 0,
    session_timeout_ms: int = 30_000,
) -> Member:
    asked = Join(client_id, ("orders",), session_timeout_ms=session_timeout_ms)
    return coordinator.join(group, asked, suffix="1", partition_counts=COUNTS, now_ns=now_ns, wall_ns=WALL_NS + now_ns)


def test_the_first_join_makes_the_group() -> None:
    coordinator = GroupCoordinator()
    assert coordinator.find("billing") is None

    member = join(coordinator, "billing")

    assert member.id == "app-1"
    assert coordinator.get("billing").members == {"app-1": member}
    assert coordinator.get("billing").created_at_ns == WALL_NS
    assert "billing" in coordinator
    assert [group.name for group in coordinator] == ["billing"]


def test_a_group_may_be_there_before_its_members() -> None:
    coordinator = GroupCoordinator(GroupConfig(groups_max=1))

    group = coordinator.create("billing", now_ns=0, wall_ns=WALL_NS)

    assert (group.state, group.generation, group.created_at_ns) == (GroupState.EMPTY, 0, WALL_NS)
    assert coordinator.create("billing", now_ns=9, wall_ns=WALL_NS + 9) is group
    with pytest.raises(Conflict):
        coordinator.create("other", now_ns=0, wall_ns=WALL_NS)
    with pytest.raises(InvalidRequest):
        coordinator.create("a/b", now_ns=0, wall_ns=WALL_NS)
    join(coordinator, "billing", now_ns=60 * SECOND, session_timeout_ms=1_000)
    coordinator.tick(now_ns=61 * SECOND)
    assert group.state is GroupState.EMPTY
    assert group.generation == 2


@pytest.mark.parametrize("group", ["", "a/b", "x" * 256, "a\tb"])
def test_a_group_with_a_name_that_cannot_be_is_not_made(group: str) -> None:
    coordinator = GroupCoordinator()

    with pytest.raises(InvalidRequest) as refused:
        join(coordinator, group)

    assert refused.value.path == "group"
    assert len(coordinator) == 0


def test_a_join_that_is_refused_makes_no_group() -> None:
    coordinator = GroupCoordinator()

    with pytest.raises(TopicNotFound):
        coordinator.join("g", Join("app", ("no",)), suffix="1", partition_counts=COUNTS, now_ns=0, wall_ns=0)

    assert len(coordinator) == 0
    assert coordinator.next_deadline_ns is None


def test_there_is_a_limit_to_groups_but_not_for_those_that_exist() -> None:
    coordinator = GroupCoordinator(GroupConfig(groups_max=1))
    join(coordinator, "a")

    with pytest.raises(Conflict):
        join(coordinator, "b")

    join(coordinator, "a", "other")
    coordinator.delete("a", now_ns=0)
    join(coordinator, "b")


def test_a_deleted_group_is_gone_and_its_members_are_told() -> None:
    coordinator = GroupCoordinator()
    join(coordinator, "billing")
    group = coordinator.get("billing")
    coordinator.take_events()

    assert coordinator.delete("billing", now_ns=5) is group

    assert group.state is GroupState.DEAD
    assert coordinator.take_events() == [
        MemberLeft(group="billing", member_id="app-1", reason="error"),
        GroupChanged(group="billing", generation=2, members=0, assigned_partitions=0),
        GroupStateChanged(group="billing", state="Dead"),
    ]
    for call in (
        lambda: coordinator.get("billing"),
        lambda: coordinator.delete("billing", now_ns=6),
        lambda: group.check("app-1", None),
        lambda: group.touch("app-1", now_ns=6, wall_ns=6),
        lambda: group.delete(now_ns=6),
        lambda: group.join(Join("app", ("orders",)), suffix="2", partition_counts=COUNTS, now_ns=6, wall_ns=6),
    ):
        with pytest.raises(GroupNotFound):
            call()


def test_what_deleted_groups_did_still_counts() -> None:
    coordinator = GroupCoordinator()
    join(coordinator, "a")
    join(coordinator, "b")
    coordinator.delete("a", now_ns=0)

    assert coordinator.stats.total_rebalances == 2
    assert coordinator.stats.total_partitions_assigned == 4


def test_every_group_is_ticked_in_time_whenever_it_was_made() -> None:
    coordinator = GroupCoordinator()
    join(coordinator, "long")
    now_ns = 0
    joined_ns = {"a": 0, "b": 500 * MS, "c": 2_100 * MS}
    lost_ns: dict[str, int] = {}
    ticks = 0
    waiting = dict(joined_ns)

    while now_ns < 5 * SECOND:
        for name in [name for name, at_ns in waiting.items() if at_ns <= now_ns]:
            del waiting[name]
            join(coordinator, name, now_ns=now_ns, session_timeout_ms=1_000)
        deadline_ns = coordinator.next_deadline_ns
        assert deadline_ns is not None
        now_ns = min([max(now_ns, deadline_ns), *waiting.values()])
        coordinator.tick(now_ns=now_ns)
        ticks += 1
        for event in coordinator.take_events():
            if isinstance(event, MemberLeft):
                lost_ns[event.group] = now_ns

    assert lost_ns == {name: at_ns + SECOND for name, at_ns in joined_ns.items()}
    assert ticks < 20


def test_an_empty_group_that_is_joined_again_is_ticked_again() -> None:
    coordinator = GroupCoordinator()
    join(coordinator, "a", session_timeout_ms=1_000)
    coordinator.get("a").leave("app-1", now_ns=0)
    coordinator.tick(now_ns=10 * SECOND)
    join(coordinator, "a", now_ns=10 * SECOND, session_timeout_ms=1_000)

    coordinator.tick(now_ns=11 * SECOND)

    assert coordinator.get("a").state is GroupState.EMPTY


def test_without_groups_there_is_nothing_to_wait_for() -> None:
    coordinator = GroupCoordinator()
    join(coordinator, "a")
    coordinator.delete("a", now_ns=0)
    coordinator.tick(now_ns=SECOND)

    assert coordinator.next_deadline_ns is None


def test_all_groups_hear_of_a_topic_that_grew() -> None:
    coordinator = GroupCoordinator()
    join(coordinator, "a")
    join(coordinator, "b")

    coordinator.topics_changed({"orders": 3}, now_ns=0)

    assert all(TopicPartition("orders", 2) in group.assigned("app-1") for group in coordinator)


def test_groups_come_back_from_their_snapshots() -> None:
    coordinator = GroupCoordinator()
    join(coordinator, "a")
    join(coordinator, "b")
    coordinator.get("b").leave("app-1", now_ns=0)
    saved = coordinator.snapshot()

    again = GroupCoordinator()
    for name, raw in saved.items():
        again.restore(name, raw, now_ns=7 * SECOND, wall_ns=WALL_NS + 99 * SECOND)
    again.restore("a", saved["a"], now_ns=7 * SECOND, wall_ns=WALL_NS + 99 * SECOND)

    assert again.snapshot() == saved
    assert again.stats == coordinator.stats
    assert MemberJoined not in map(type, again.take_events())
    again.tick(now_ns=37 * SECOND)
    assert again.get("a").state is GroupState.EMPTY


def test_a_log_that_is_replayed_can_take_a_group_away() -> None:
    coordinator = GroupCoordinator()
    join(coordinator, "a")

    coordinator.forget("a")
    coordinator.forget("never")

    assert coordinator.find("a") is None
