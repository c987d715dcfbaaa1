"""Times of the cluster that fit together."""

import pytest

from goqueue.clock import MS
from goqueue.cluster.timing import ClusterTiming
from goqueue.errors import InvalidConfig


def test_a_controller_that_nobody_hears_is_replaced_before_it_fences_anybody() -> None:
    timing = ClusterTiming()

    assert timing.silence_ns + timing.rank_step_ns + timing.jitter_ns + timing.pre_vote_ns < timing.session_ns
    assert timing.reset_ns == 2 * timing.heartbeat_ns


@pytest.mark.parametrize(
    "wrong",
    [
        {"heartbeat_ns": 0},
        {"rank_step_ns": 0},
        {"jitter_ns": -1},
        {"pre_vote_ns": 0},
        {"heartbeat_ns": 700 * MS},
        {"session_ns": 1_200 * MS},
        {"futile_wait_ns_max": 1_000 * MS},
    ],
)
def test_times_that_do_not_fit_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(InvalidConfig, match="must be"):
        ClusterTiming(**wrong)
