"""The series about groups and deliveries: each moves with its event, and goes with its group or topic."""

import pytest

from goqueue import events
from goqueue.metrics.delivery import GroupProgress
from goqueue.metrics.registry import Metrics


@pytest.fixture
def metrics() -> Metrics:
    made = Metrics()
    made.observe(events.TopicCreated("t", 1, False))
    return made


def value(metrics: Metrics, series: str) -> float | None:
    """The value of a series as it is rendered, if it is there."""
    text = metrics.render(False)[0].decode()
    return next((float(line.rpartition(" ")[2]) for line in text.splitlines() if line.startswith(f"{series} ")), None)


GROUP = 'consumer_group="g"'
BOTH = f'{GROUP},topic="t"'
MOVES: list[tuple[events.Event, str, float]] = [
    (events.MessagesDelivered("t", 0, "g", 7, 700, 2), f"goqueue_broker_messages_consumed_total{{{BOTH}}}", 7),
    (events.MessagesDelivered("t", 0, "g", 7, 700, 2), f"goqueue_broker_bytes_consumed_total{{{BOTH}}}", 700),
    (events.MessagesDelivered("t", 0, "g", 7, 700, 2), f"goqueue_broker_messages_redelivered_total{{{BOTH}}}", 2),
    (events.MessagesSettled("t", 0, "g", "ack", 3), f"goqueue_broker_messages_acked_total{{{BOTH}}}", 3),
    (events.MessagesSettled("t", 0, "g", "nack", 3), f"goqueue_broker_messages_nacked_total{{{BOTH}}}", 3),
    (events.MessagesSettled("t", 0, "g", "reject", 3), f"goqueue_broker_messages_rejected_total{{{BOTH}}}", 3),
    (events.MessagesSettled("t", 0, "g", "extend", 3), f"goqueue_broker_visibility_extensions_total{{{BOTH}}}", 3),
    (events.LeasesExpired("t", 0, "g", 4), f"goqueue_broker_visibility_timeouts_total{{{BOTH}}}", 4),
    (events.MessagesExpired("t", 0, "g", 4), f"goqueue_broker_messages_expired_total{{{BOTH}}}", 4),
    (events.DelaysScheduled("t", 5), 'goqueue_broker_delayed_messages_scheduled_total{topic="t"}', 5),
    (events.DelaysFired("t", 5, 10**9), 'goqueue_broker_delayed_messages_fired_total{topic="t"}', 5),
    (events.DelaysFired("t", 5, 10**9), 'goqueue_broker_delay_lateness_seconds_sum{topic="t"}', 1),
    (events.DelaysCancelled("t", 5), 'goqueue_broker_delayed_messages_cancelled_total{topic="t"}', 5),
    (events.DelaysExpired("t", 5), 'goqueue_broker_delayed_messages_expired_total{topic="t"}', 5),
    (events.DeadLettered("t", "g", "REJECTED", 2), 'goqueue_broker_dlq_routed_total{reason="rejected",topic="t"}', 2),
    (events.LaneBoosted("t", 3), 'goqueue_broker_priority_boosts_total{priority="low",topic="t"}', 1),
    (events.DeadLettersRedriven("t", 2), 'goqueue_broker_dlq_redriven_total{topic="t"}', 2),
    (events.LedgerWritten("t", 0, 2, 99), 'goqueue_ledger_bytes_written_total{topic="t"}', 99),
    (events.PositionCommitted("t", 0, "g", 9), f"goqueue_consumer_offset_commits_total{{{BOTH}}}", 1),
    (events.PollAnswered("g", 0, 10**9), f"goqueue_consumer_polls_empty_total{{{GROUP}}}", 1),
    (events.PollAnswered("g", 3, 10**9), f"goqueue_consumer_poll_batch_size_sum{{{GROUP}}}", 3),
    (events.MemberJoined(group="g", member_id="m"), f"goqueue_consumer_group_joins_total{{{GROUP}}}", 1),
    (
        events.MemberLeft(group="g", member_id="m", reason="timeout"),
        f"goqueue_consumer_session_timeouts_total{{{GROUP}}}",
        1,
    ),
    (
        events.GroupChanged(group="g", generation=4, members=2, assigned_partitions=6),
        f"goqueue_consumer_assigned_partitions{{{GROUP}}}",
        6,
    ),
    (
        events.GroupStateChanged(group="g", state="Stable"),
        f'goqueue_consumer_group_state{{{GROUP},state="Stable"}}',
        1,
    ),
    (
        events.RebalanceStarted(group="g", trigger="join"),
        f'goqueue_consumer_rebalances_total{{{GROUP},trigger="join"}}',
        1,
    ),
    (
        events.RebalanceEnded(group="g", kind="eager", duration_ns=10**9, failed=False),
        f'goqueue_consumer_rebalance_latency_seconds_sum{{{GROUP},rebalance_type="eager"}}',
        1,
    ),
    (
        events.PartitionsRevoked(group="g", member_id="m", partitions=(("t", 0),), timed_out=False),
        f"goqueue_consumer_partitions_revoked_total{{{GROUP}}}",
        1,
    ),
    (
        events.PartitionsAssigned(group="g", member_id="m", partitions=(("t", 0), ("t", 1))),
        f"goqueue_consumer_partitions_assigned_total{{{GROUP}}}",
        2,
    ),
    (events.HeartbeatReceived(group="g", member_id="m"), f"goqueue_consumer_heartbeats_sent_total{{{GROUP}}}", 1),
    (events.HeartbeatLate(group="g", member_id="m"), f"goqueue_consumer_heartbeat_timeouts_total{{{GROUP}}}", 1),
]


@pytest.mark.parametrize(("event", "series", "expected"), MOVES, ids=lambda one: str(one)[:60])
def test_a_series_moves_with_its_event(metrics: Metrics, event: events.Event, series: str, expected: float) -> None:
    before = value(metrics, series) or 0
    metrics.observe(event)

    assert value(metrics, series) == before + expected
    assert value(metrics, series) == before + expected, "looking changes nothing"


def test_states_are_looked_up_when_somebody_asks(metrics: Metrics) -> None:
    standings = [GroupProgress("t", 0, "g", 5, 3, 2, 1), GroupProgress("t", 1, "g", 7, 4, 1, 2)]
    metrics.delivery.watch(lambda: standings, lambda: {"t": 9})

    assert value(metrics, 'goqueue_consumer_lag{consumer_group="g",partition="1",topic="t"}') == 4
    assert value(metrics, f"goqueue_broker_in_flight{{{BOTH}}}") == 3
    assert value(metrics, f"goqueue_ledger_acked_ranges{{{BOTH}}}") == 3
    assert value(metrics, 'goqueue_broker_delayed_messages_pending{topic="t"}') == 9
    standings.clear()
    assert value(metrics, f"goqueue_broker_in_flight{{{BOTH}}}") is None


def test_the_series_of_a_group_and_of_a_topic_go_with_it(metrics: Metrics) -> None:
    for event, _, _ in MOVES:
        metrics.observe(event)
    metrics.render(False)
    metrics.observe(events.MessagesDelivered("t", 0, "g", 7, 700, 2))  # nobody looked since
    metrics.observe(events.GroupStateChanged(group="g", state="Dead"))
    assert 'consumer_group="g"' not in metrics.render(False)[0].decode()

    metrics.observe(events.TopicDeleted("t", False))
    assert 'topic="t"' not in metrics.render(False)[0].decode()
