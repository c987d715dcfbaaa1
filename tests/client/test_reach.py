"""Whether brokers can be reached, and what a request that is given up says of it."""

import logging

import pytest

from goqueue.client.reach import ADVICE, ATTEMPT_S_MIN, Reach
from goqueue.client.session import CannotConnect
from goqueue.errors import RequestTimeout

REFUSED = CannotConnect("a:1", "Connection refused")


def test_each_address_has_its_turn_within_the_connect_timeout() -> None:
    assert Reach(["a:1"], 3).attempt_s == 3
    assert Reach(["a:1", "b:2", "c:3"], 3).attempt_s == 1
    assert Reach(["a:1"] * 100, 3).attempt_s == ATTEMPT_S_MIN


def test_until_a_broker_was_reached_the_connect_timeout_limits_a_request() -> None:
    reach = Reach(["a:1"], 3)
    assert reach.time_left_s(30, since_s=1) == 2

    reach.reached("a:1")

    assert reach.time_left_s(30, since_s=1) == 30


def test_only_a_broker_that_was_never_reached_comes_with_advice() -> None:
    reach = Reach(["a:1"], 3)
    assert str(reach.explained(REFUSED)).endswith(ADVICE)
    assert ADVICE in str(reach.no_answer())
    other = RequestTimeout("a request", 1)
    assert reach.explained(other) is other

    reach.reached("a:1")

    assert reach.explained(REFUSED) is REFUSED


def test_the_log_says_once_when_an_outage_began_and_ended(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="goqueue.client")
    reach = Reach(["a:1"], 3)
    reach.failed(REFUSED)
    reach.reached("a:1")
    assert caplog.messages == []

    reach.failed(REFUSED)
    reach.failed(REFUSED)
    reach.reached("a:1")

    assert [message.split(";")[-1].strip() for message in caplog.messages] == ["trying again", "reached a:1 again"]
