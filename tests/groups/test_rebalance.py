"""What rebalances come to, in one group and in several together."""

from goqueue.groups.rebalance import RebalanceStats, Trigger, summed

MS = 1_000_000


def test_the_average_is_over_those_that_succeeded() -> None:
    stats = RebalanceStats()
    assert stats.average_rebalance_duration_ms == 0

    for trigger, duration_ns in [(Trigger.JOIN, 10 * MS), (Trigger.JOIN, 25 * MS), (Trigger.TIMEOUT, 1 * MS)]:
        stats.started(trigger)
        stats.succeeded(duration_ns, wall_ns=7)

    assert stats.average_rebalance_duration_ms == 12
    assert stats.last_rebalance_duration_ms == 1
    assert stats.last_rebalance_at_ns == 7
    assert stats.rebalances_by_reason == {"join": 2, "timeout": 1}


def test_groups_together_count_everything_and_the_last_rebalance_is_the_last_of_all() -> None:
    first = RebalanceStats(3, 2, 1, 10, 20, 1, 4 * MS, 8 * MS, 500, {"join": 2, "leave": 1})
    second = RebalanceStats(1, 1, 0, 1, 2, 0, 2 * MS, 2 * MS, 400, {"join": 1})

    for order in ((first, second), (second, first)):
        assert summed(order) == RebalanceStats(4, 3, 1, 11, 22, 1, 4 * MS, 10 * MS, 500, {"join": 3, "leave": 1})
    assert summed(()) == summed((RebalanceStats(), RebalanceStats())) == RebalanceStats()
    assert first.rebalances_by_reason == {"join": 2, "leave": 1}
