"""What members may do, are told and are refused; the transcripts in tests/scenarios tell the longer stories."""

import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from goqueue.clock import MS, SECOND
from goqueue.errors import (
    AlreadyExists,
    Conflict,
    GroupModeConflict,
    NotGroupMember,
    SessionExpired,
    StaleGeneration,
    TopicNotFound,
)
from goqueue.events import (
    GroupChanged,
    GroupStateChanged,
    HeartbeatLate,
    HeartbeatReceived,
    MemberJoined,
    PartitionsAssigned,
    RebalanceEnded,
    RebalanceStarted,
)
from goqueue.groups.config import GroupConfig
from goqueue.groups.group import TRANSITIONS, Group, GroupState, GroupTransition
from goqueue.groups.member import Member
from goqueue.names import TopicPartition
from goqueue.service.groups import Join

WALL_NS = 1_700_000_000 * SECOND
DOCS = Path(__file__).parent.parent.parent / "docs" / "guide" / "groups.md"


def new_group(**bounds: int) -> Group:
    return Group("billing", wall_ns=WALL_NS, config=GroupConfig(**bounds))


def join(
    group: Group,
    member_id: str | None,
    topics: tuple[str, ...] = ("orders",),
    *,
    now_ns: int = 0,
    counts: Mapping[str, int] = {"orders": 4, "returns": 2},
    **settings: object,
) -> Member:
    asked = Join("app", topics, member_id, confirms_revocations=True)._replace(**settings)
    return group.join(asked, suffix="7f3a", partition_counts=counts, now_ns=now_ns, wall_ns=WALL_NS + now_ns)


def orders(*numbers: int) -> tuple[TopicPartition, ...]:
    return tuple(TopicPartition("orders", number) for number in numbers)


def test_a_new_member_is_named_after_its_client() -> None:
    group = new_group()

    member = join(group, None)

    assert member.id == "app-7f3a"
    assert (member.joined_at_ns, member.last_heartbeat_ns) == (WALL_NS, WALL_NS)
    assert group.leader_id == "app-7f3a"
    assert group.owner_of(TopicPartition("orders", 3)) == "app-7f3a"
    assert group.owner_of(TopicPartition("orders", 4)) is None


def test_a_name_that_is_taken_is_not_given_twice() -> None:
    group = new_group()
    join(group, "app-7f3a")

    with pytest.raises(AlreadyExists):
        join(group, None)


def test_all_that_was_asked_for_is_kept_and_kept_up() -> None:
    group = new_group()
    join(
        group, "m", ("returns", "orders", "orders"), start="latest", auto_commit=False, visibility_timeout_ms=5,
        max_in_flight=9, session_timeout_ms=2_000, ack="offsets",
    )  # fmt: skip
    member = group.members["m"]
    assert member.topics == ("orders", "returns")
    assert (member.start, member.ack, member.auto_commit) == ("latest", "offsets", False)
    assert (member.visibility_timeout_ms, member.max_in_flight, member.session_timeout_ms) == (5, 9, 2_000)

    join(group, "m", ("returns",), now_ns=5, client_id="other", ack="offsets", confirms_revocations=False)

    assert group.members["m"] is member
    assert (member.client_id, member.topics, member.start) == ("other", ("returns",), "earliest")
    assert (member.visibility_timeout_ms, member.max_in_flight, member.session_timeout_ms) == (None, None, 30_000)
    assert (member.joined_at_ns, member.last_heartbeat_ns) == (WALL_NS, WALL_NS + 5)
    assert not member.confirms_revocations


@pytest.mark.parametrize(
    ("setting", "value"), [("mode", "shared"), ("protocol", "eager"), ("assignor", "range"), ("ack", "offsets")]
)
def test_what_the_first_member_chose_holds_until_the_last_one_left(setting: str, value: str) -> None:
    group = new_group()
    current = getattr(join(group, "a") and group, setting)
    before = group.snapshot()
    for member_id in ("a", "b"):
        with pytest.raises(GroupModeConflict) as refused:
            join(group, member_id, **{setting: value})
        facts = refused.value
        assert (facts.group, facts.setting, facts.asked, facts.current) == ("billing", setting, value, current)
    assert group.snapshot() == before

    group.leave("a", now_ns=0)
    join(group, "b", **{setting: value})

    assert getattr(group, setting) == value


def test_a_topic_that_is_not_there_is_named_and_nothing_changes() -> None:
    group = new_group()
    join(group, "a")
    before = group.snapshot()

    for member_id in ("a", "b"):
        with pytest.raises(TopicNotFound) as refused:
            join(group, member_id, ("orders", "refunds"))
        assert refused.value.topic == "refunds"

    assert group.snapshot() == before


def test_a_full_group_takes_nobody_but_who_is_in() -> None:
    group = new_group(members_max=2)
    join(group, "a")
    join(group, "b")

    with pytest.raises(Conflict):
        join(group, "c")

    join(group, "a")
    assert list(group.members) == ["a", "b"]


def test_a_refusal_says_where_the_member_can_go_on() -> None:
    group = new_group()
    join(group, "a", confirms_revocations=False)
    join(group, "b", confirms_revocations=False)

    with pytest.raises(StaleGeneration) as refused:
        group.check("a", 1)

    assert refused.value.given == 1
    assert refused.value.generation == 2
    assert refused.value.assigned_partitions == ["orders-0", "orders-1"]
    assert group.check("a", 2).assigned == orders(0, 1)
    assert group.check("a", None).assigned == orders(0, 1)


@pytest.mark.parametrize("confirms", [True, False])
@pytest.mark.parametrize("generation", [-1, 0, 2, 10**9])
def test_a_generation_that_never_was_is_refused(confirms: bool, generation: int) -> None:
    group = new_group()
    join(group, "a", confirms_revocations=confirms)

    with pytest.raises(StaleGeneration):
        group.check("a", generation)


def test_a_stranger_is_told_apart_from_one_who_was_too_late() -> None:
    group = new_group()
    join(group, "a", session_timeout_ms=1_000)
    group.tick(now_ns=SECOND)

    for call in (
        lambda member_id: group.check(member_id, None),
        lambda member_id: group.heartbeat(member_id, 1, now_ns=SECOND, wall_ns=0),
        lambda member_id: group.cooperative_heartbeat(member_id, None, now_ns=SECOND, wall_ns=0),
        lambda member_id: group.touch(member_id, now_ns=SECOND, wall_ns=0),
        lambda member_id: group.revoke(member_id, None, None, now_ns=SECOND),
        lambda member_id: group.leave(member_id, now_ns=SECOND),
        group.assigned,
        group.rebalance_required,
    ):
        with pytest.raises(SessionExpired):
            call("a")
        with pytest.raises(NotGroupMember) as refused:
            call("b")
        assert type(refused.value) is NotGroupMember


def test_only_so_many_who_were_too_late_are_remembered() -> None:
    group = new_group(expired_max=2)
    for number in range(3):
        join(group, f"m{number}", session_timeout_ms=1_000, now_ns=number)
    group.tick(now_ns=5 * SECOND)

    with pytest.raises(NotGroupMember) as forgotten:
        group.check("m0", None)
    assert type(forgotten.value) is NotGroupMember
    for member_id in ("m1", "m2"):
        with pytest.raises(SessionExpired):
            group.check(member_id, None)

    group = Group.restore(group.snapshot(), now_ns=0, wall_ns=0)
    with pytest.raises(SessionExpired):
        group.check("m2", None)


def test_one_who_leaves_and_was_once_too_late_is_a_stranger() -> None:
    group = new_group()
    join(group, "a", session_timeout_ms=1_000)
    group.tick(now_ns=SECOND)
    join(group, "a", now_ns=SECOND)
    group.leave("a", now_ns=SECOND)

    with pytest.raises(NotGroupMember) as refused:
        group.check("a", None)
    assert type(refused.value) is NotGroupMember


@pytest.mark.parametrize("sign", ["heartbeat", "cooperative_heartbeat", "touch"])
def test_a_sign_of_life_begins_the_session_anew(sign: str) -> None:
    group = new_group()
    join(group, "a")
    for second in (20, 40, 60):
        arguments = () if sign == "touch" else (1,)
        getattr(group, sign)("a", *arguments, now_ns=second * SECOND, wall_ns=WALL_NS + second * SECOND)
        group.tick(now_ns=second * SECOND)
    assert group.members["a"].last_heartbeat_ns == WALL_NS + 60 * SECOND

    group.tick(now_ns=90 * SECOND - 1)
    assert group.state is GroupState.STABLE
    group.tick(now_ns=90 * SECOND)
    assert group.state is GroupState.EMPTY


def test_what_is_refused_is_no_sign_of_life() -> None:
    group = new_group()
    join(group, "a")
    group.touch("a", now_ns=0, wall_ns=0)
    join(group, "a", now_ns=1)

    with pytest.raises(StaleGeneration):
        group.heartbeat("a", 1, now_ns=29 * SECOND, wall_ns=0)

    group.tick(now_ns=30 * SECOND + 1)
    assert group.state is GroupState.EMPTY


def test_a_silence_is_told_once_and_the_next_one_again() -> None:
    group = new_group()
    join(group, "a")
    late_ns = []

    for second in range(60):
        if second in (20, 21):
            group.touch("a", now_ns=second * SECOND, wall_ns=0)
        group.tick(now_ns=second * SECOND)
        late_ns += [second for event in group.take_events() if isinstance(event, HeartbeatLate)]

    assert late_ns == [6, 27]


def test_nothing_is_due_before_the_deadline_and_something_is_due_in_time() -> None:
    group = new_group()
    assert group.next_deadline_ns is None
    join(group, "a", session_timeout_ms=20_000)
    assert group.next_deadline_ns == 6 * SECOND
    group.tick(now_ns=6 * SECOND)
    assert group.next_deadline_ns == 20 * SECOND
    group.touch("a", now_ns=7 * SECOND, wall_ns=0)
    assert group.next_deadline_ns == 13 * SECOND

    join(group, "b", now_ns=8 * SECOND)
    group.touch("a", now_ns=27 * SECOND, wall_ns=0)
    group.touch("b", now_ns=27 * SECOND, wall_ns=0)
    group.tick(now_ns=27 * SECOND)
    assert group.next_deadline_ns == 28 * SECOND
    group.tick(now_ns=28 * SECOND - 1)
    assert group.members["a"].to_revoke == orders(2, 3)
    group.tick(now_ns=28 * SECOND)
    assert group.assigned("b") == orders(2, 3)

    group.leave("a", now_ns=28 * SECOND)
    group.leave("b", now_ns=28 * SECOND)
    assert group.next_deadline_ns is None


def test_several_who_fall_silent_together_are_one_change() -> None:
    group = new_group()
    for member_id in "abc":
        join(group, member_id, session_timeout_ms=60_000 if member_id == "c" else 5_000)
    generation = group.generation
    group.take_events()

    group.tick(now_ns=5 * SECOND)

    assert group.generation == generation + 1
    assert [event.trigger for event in group.take_events() if isinstance(event, RebalanceStarted)] == ["timeout"]
    assert group.assigned("c") == orders(0, 1, 2, 3)


def test_the_events_of_a_join_are_told_in_order() -> None:
    group = new_group()

    join(group, "a", now_ns=3)

    assert group.take_events() == [
        MemberJoined(group="billing", member_id="a"),
        GroupStateChanged(group="billing", state="Rebalancing"),
        RebalanceStarted(group="billing", trigger="join"),
        PartitionsAssigned(group="billing", member_id="a", partitions=orders(0, 1, 2, 3)),
        RebalanceEnded(group="billing", kind="cooperative", duration_ns=0, failed=False),
        GroupStateChanged(group="billing", state="Stable"),
        GroupChanged(group="billing", generation=1, members=1, assigned_partitions=4),
    ]
    assert group.take_events() == []


def test_a_heartbeat_is_told_and_changes_nothing() -> None:
    group = new_group()
    join(group, "a")
    group.take_events()
    version = group.version

    group.heartbeat("a", 1, now_ns=1, wall_ns=1)

    assert group.take_events() == [HeartbeatReceived(group="billing", member_id="a")]
    assert group.version == version


def test_a_change_is_told_even_if_somebody_is_late_at_the_same_moment() -> None:
    group = new_group()
    join(group, "a", session_timeout_ms=6_000)
    join(group, "b", session_timeout_ms=60_000)
    group.take_events()
    version = group.version

    group.tick(now_ns=6 * SECOND)

    events = group.take_events()
    assert HeartbeatLate(group="billing", member_id="b") in events
    assert events[-1] == GroupChanged(group="billing", generation=3, members=1, assigned_partitions=4)
    assert group.version == version + 1


def test_in_shared_mode_a_partition_is_counted_once() -> None:
    group = new_group()
    join(group, "a", mode="shared")
    join(group, "b", ("orders", "returns"), mode="shared")

    assert group.take_events()[-1] == GroupChanged(group="billing", generation=2, members=2, assigned_partitions=6)
    assert group.owner_of(TopicPartition("orders", 0)) is None
    assert group.topics == ("orders", "returns")


def test_a_topic_that_nobody_wants_any_more_is_counted_no_more() -> None:
    group = new_group()
    join(group, "a", mode="shared")
    join(group, "b", ("orders", "returns"), mode="shared")

    group.leave("b", now_ns=0)

    assert group.take_events()[-1] == GroupChanged(group="billing", generation=3, members=1, assigned_partitions=4)


def test_a_deadline_is_shown_as_the_calendar_has_it() -> None:
    group = new_group()
    join(group, "a", session_timeout_ms=12_000)
    join(group, "b", now_ns=2 * SECOND)

    answer = group.cooperative_heartbeat("a", 1, now_ns=5 * SECOND, wall_ns=WALL_NS + 100 * SECOND)

    assert answer.revocation_deadline_ns == WALL_NS + 109 * SECOND
    assert answer.rebalance_required
    assert answer.protocol == "cooperative"
    assert group.rebalance_required("a")
    assert group.rebalance_required("b")
    assert group.rebalance_state == "pending_revoke"


def test_new_changes_put_no_deadline_off() -> None:
    group = new_group()
    join(group, "a", session_timeout_ms=10_000)
    join(group, "b")
    for second in range(1, 10):
        group.touch("a", now_ns=second * SECOND, wall_ns=0)
        join(group, f"c{second}", now_ns=second * SECOND)

    group.touch("a", now_ns=10 * SECOND, wall_ns=0)
    group.tick(now_ns=10 * SECOND)

    assert not set(group.assigned("a")) & set(orders(2, 3))
    assert group.stats.total_revocation_timeouts == 1


def test_what_was_not_asked_for_cannot_be_given_back() -> None:
    group = new_group()
    join(group, "a")
    join(group, "b")

    answer = group.revoke("a", 1, [*orders(0, 9), TopicPartition("nothing", 0)], now_ns=0)

    assert answer == (2, "pending_revoke")
    assert group.assigned("a") == orders(0, 1, 2, 3)
    assert group.revoke("b", None, None, now_ns=0) == (0, "pending_assign")
    assert group.revoke("a", 2, iter(orders(2, 3)), now_ns=0) == (0, "complete")
    assert group.revoke("a", 2, orders(2, 3), now_ns=0) == (0, "complete")
    assert group.stats.total_partitions_revoked == 2


def test_what_was_asked_for_and_is_not_any_more_stays_even_if_it_is_given_back() -> None:
    group = new_group()
    join(group, "a")
    join(group, "b")
    group.leave("b", now_ns=0)

    assert group.revoke("a", 1, orders(2, 3), now_ns=0) == (0, "complete")
    assert group.assigned("a") == orders(0, 1, 2, 3)
    assert group.state is GroupState.STABLE


def test_a_member_that_starts_again_unasked_has_nothing_left_to_confirm() -> None:
    group = new_group()
    join(group, "a")
    join(group, "b")

    join(group, "a", confirms_revocations=False)

    assert group.assigned("a") == orders(0, 1)
    assert group.assigned("b") == orders(2, 3)
    assert group.state is GroupState.STABLE


def test_a_join_that_is_repeated_interrupts_no_member() -> None:
    group = new_group()
    join(group, "a", confirms_revocations=False)
    join(group, "b", confirms_revocations=False)
    group.take_events()

    again = join(group, "a", confirms_revocations=False, session_timeout_ms=9_000)

    assert (group.generation, again.generation, group.state) == (3, 3, GroupState.STABLE)
    assert again.session_timeout_ms == 9_000
    group.heartbeat("b", 2, now_ns=0, wall_ns=WALL_NS)
    with pytest.raises(StaleGeneration):
        group.heartbeat("a", 2, now_ns=0, wall_ns=WALL_NS)
    assert any(isinstance(event, GroupChanged) for event in group.take_events()), "the new timeout is written down"


@pytest.mark.parametrize("confirms", [True, False])
def test_a_join_that_is_repeated_before_anything_else_is_a_retry(confirms: bool) -> None:
    group = new_group()
    first = join(group, "a", confirms_revocations=confirms)
    before = group.version

    again = join(group, "a", now_ns=SECOND, confirms_revocations=confirms)

    assert again is first
    assert (group.generation, again.generation, group.version) == (1, 1, before)
    assert again.heard_ns == SECOND


def test_a_first_join_that_is_repeated_with_the_id_of_its_answer_is_a_retry() -> None:
    group = new_group()
    first = join(group, None)

    again = join(group, first.id)

    assert again is first
    assert group.generation == 1


def test_a_retried_join_leaves_the_member_the_generations_that_it_has() -> None:
    group = new_group()
    join(group, "a", topics=("returns",))
    join(group, "b")

    join(group, "a", topics=("returns",))

    assert group.generation == 2
    group.check("a", 1)


def test_a_member_that_did_something_since_it_joined_has_started_again() -> None:
    group = new_group()
    join(group, "a")
    group.heartbeat("a", 1, now_ns=0, wall_ns=WALL_NS)

    join(group, "a")

    assert group.generation == 2
    with pytest.raises(StaleGeneration):
        group.check("a", 1)


def test_a_refused_request_does_not_make_a_retry_a_start() -> None:
    group = new_group()
    join(group, "a")
    with pytest.raises(StaleGeneration):
        group.heartbeat("a", 0, now_ns=0, wall_ns=WALL_NS)

    join(group, "a")

    assert group.generation == 1


def test_a_cooperative_heartbeat_of_any_older_generation_is_told_the_new_one() -> None:
    group = new_group()
    join(group, "a")

    beat = group.cooperative_heartbeat("a", 0, now_ns=0, wall_ns=WALL_NS)

    assert (beat.generation, beat.state) == (1, "complete")
    with pytest.raises(StaleGeneration):
        group.heartbeat("a", 0, now_ns=0, wall_ns=WALL_NS)
    with pytest.raises(StaleGeneration):
        group.cooperative_heartbeat("a", 2, now_ns=0, wall_ns=WALL_NS)


def test_a_member_that_was_too_slow_is_refused_after_a_restart_too() -> None:
    group = new_group()
    join(group, "a", session_timeout_ms=10_000)
    join(group, "b", session_timeout_ms=60_000)
    group.touch("a", now_ns=9 * SECOND, wall_ns=WALL_NS)
    group.tick(now_ns=10 * SECOND)
    assert group.generation == 3

    for one in (group, Group.restore(group.snapshot(), now_ns=0, wall_ns=WALL_NS)):
        with pytest.raises(StaleGeneration):
            one.cooperative_heartbeat("a", 2, now_ns=10 * SECOND, wall_ns=WALL_NS)
        assert one.cooperative_heartbeat("a", 3, now_ns=10 * SECOND, wall_ns=WALL_NS).state == "none"


def test_a_topic_that_grew_unheard_is_noticed_when_somebody_joins_again() -> None:
    group = new_group()
    join(group, "a")

    join(group, "a", counts={"orders": 5})

    assert group.assigned("a") == orders(0, 1, 2, 3, 4)


def test_a_member_that_starts_again_when_it_may_keep_everything_is_asked_for_nothing() -> None:
    group = new_group()
    join(group, "a")
    join(group, "b")

    join(group, "a", counts={"orders": 8})

    assert group.assigned("a") == orders(0, 1, 2, 3)
    assert group.assigned("b") == orders(4, 5, 6, 7)
    assert group.members["a"].to_revoke == ()
    assert group.state is GroupState.STABLE


def test_a_topic_that_was_made_anew_is_dealt_out_anew() -> None:
    group = new_group()
    join(group, "a")
    group.topics_changed({}, now_ns=0)
    assert group.assigned("a") == ()
    assert group.topics == ("orders",)

    group.topics_changed({"orders": 2}, now_ns=0)

    assert group.assigned("a") == orders(0, 1)
    assert group.stats.rebalances_by_reason == {"join": 1, "topic_change": 2}


def test_who_left_is_returned_with_what_it_had() -> None:
    group = new_group()
    join(group, "a")

    assert group.leave("a", now_ns=0).assigned == orders(0, 1, 2, 3)
    assert group.owner_of(TopicPartition("orders", 0)) is None


def test_the_statistics_say_when_and_how_long() -> None:
    group = new_group()
    join(group, "a")
    join(group, "b", now_ns=SECOND)

    group.revoke("a", None, None, now_ns=SECOND + 250 * MS)

    stats = group.stats
    assert (stats.total_rebalances, stats.successful_rebalances, stats.failed_rebalances) == (2, 2, 0)
    assert (stats.total_partitions_assigned, stats.total_partitions_revoked) == (6, 2)
    assert stats.last_rebalance_duration_ms == 250
    assert stats.average_rebalance_duration_ms == 125
    assert stats.last_rebalance_at_ns == WALL_NS + SECOND + 250 * MS


def test_a_restored_group_gives_everybody_a_new_session_and_new_time_to_give_back() -> None:
    group = new_group()
    join(group, "a", session_timeout_ms=10_000)
    join(group, "b", now_ns=9 * SECOND)

    again = Group.restore(group.snapshot(), now_ns=SECOND, wall_ns=WALL_NS)

    assert again.members["a"].to_revoke == orders(2, 3)
    assert again.check("a", 1)
    again.tick(now_ns=11 * SECOND - 1)
    assert len(again.members) == 2
    again.tick(now_ns=11 * SECOND)
    assert list(again.members) == ["b"]
    assert again.assigned("b") == orders(0, 1, 2, 3)


def test_a_restored_group_still_fences_who_was_fenced() -> None:
    group = new_group()
    join(group, "a")
    group.touch("a", now_ns=0, wall_ns=0)
    join(group, "a")

    again = Group.restore(group.snapshot(), now_ns=0, wall_ns=0)

    with pytest.raises(StaleGeneration):
        again.check("a", 1)
    assert again.check("a", 2)


def test_every_state_is_in_the_table_and_dead_is_the_end() -> None:
    assert TRANSITIONS.keys() == set(GroupState)
    assert TRANSITIONS[GroupState.DEAD] == {}
    assert all(GroupTransition.DELETED in turns for state, turns in TRANSITIONS.items() if state is not GroupState.DEAD)


def diagram() -> str:
    """The table as Mermaid draws it."""
    arrows = [
        f"    {state.value} --> {following.value}: {turn.value}"
        for state, turns in TRANSITIONS.items()
        for turn, following in turns.items()
    ]
    return "\n".join(["stateDiagram-v2", f"    [*] --> {GroupState.EMPTY.value}", *arrows])


def test_the_diagram_in_the_docs_is_the_table() -> None:
    drawn = re.search(r"```mermaid\n(.*?)\n```", DOCS.read_text(), re.DOTALL)

    assert drawn
    assert drawn[1] == diagram()
