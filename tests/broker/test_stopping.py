"""A broker that is stopping refuses every write, with an error that says to try again."""

import pytest

from goqueue.broker.stopping import Stopping
from goqueue.errors import BrokerUnavailable


def test_all_is_taken_until_it_begins_and_nothing_from_then_on() -> None:
    stopping = Stopping()
    stopping.check()

    stopping.has_begun = True

    for _ in range(2):
        with pytest.raises(BrokerUnavailable, match="it is stopping") as refused:
            stopping.check()
        assert refused.value.retryable
