"""When a request that failed is sent again."""

import pytest

from goqueue.client.reach import Reach
from goqueue.client.retries import ClientRetryPolicy, Retries
from goqueue.client.session import CannotConnect
from goqueue.errors import GoQueueError, InvalidRequest, RequestTimeout
from goqueue.runtime.entropy import SystemEntropy

ADDRESS = "127.0.0.1:7000"


def reach(*, was_reached: bool = True) -> Reach:
    made = Reach([ADDRESS], connect_timeout_s=3)
    if was_reached:
        made.reached(ADDRESS)
    return made


def attempts(retries: Retries, error: GoQueueError) -> list[float]:
    """When a request that always fails at once is sent again."""
    now_s, times = 0.0, []
    while True:
        try:
            now_s += retries.wait_s(error, now_s=now_s)
        except type(error):
            return times
        times.append(now_s)


@pytest.mark.parametrize("timeout_s", [0.1, 2, 30])
def test_a_request_is_tried_until_shortly_before_its_deadline(timeout_s: float) -> None:
    for _ in range(50):  # the waits are random
        times = attempts(
            Retries(ClientRetryPolicy(SystemEntropy()), reach(), began_s=0, deadline_s=timeout_s),
            RequestTimeout("a request", 1),
        )

        assert timeout_s - 0.03 <= times[-1] < timeout_s
        assert len(times) < 40


def test_waits_double_up_to_two_seconds() -> None:
    times = attempts(
        Retries(ClientRetryPolicy(SystemEntropy()), reach(), began_s=0, deadline_s=1_000),
        RequestTimeout("a request", 1),
    )

    waits = [after - before for before, after in zip([0.0, *times], times, strict=False)]
    assert 0.01 <= waits[0] <= 0.02
    assert 0.04 <= waits[2] <= 0.08
    assert max(waits) <= 2


def test_a_client_that_never_reached_a_broker_gives_up_after_its_connect_timeout() -> None:
    error = CannotConnect(ADDRESS, "Connection refused")

    times = attempts(
        Retries(ClientRetryPolicy(SystemEntropy()), reach(was_reached=False), began_s=0, deadline_s=30), error
    )

    assert 2.9 < times[-1] < 3


def test_what_no_attempt_can_cure_is_raised_at_once() -> None:
    retries = Retries(ClientRetryPolicy(SystemEntropy()), reach(), began_s=0, deadline_s=30)

    with pytest.raises(InvalidRequest):
        retries.wait_s(InvalidRequest("wrong"), now_s=0)
    with pytest.raises(RequestTimeout):
        retries.wait_s(RequestTimeout("a request", 1), now_s=0, may_repeat=False)
