"""Whether the brokers of a client can be reached. A client that never reached one gives up sooner.

An address that never worked is a mistake, or a broker that was not started: a request fails after `connect_timeout`. A
broker that answered before and does not now is an outage: requests are retried for as long as their own timeout
allows, and the log says when the outage began and ended.
"""

import logging
from collections.abc import Sequence
from typing import Final

from goqueue.client.session import CannotConnect
from goqueue.errors import GoQueueError

ATTEMPT_S_MIN: Final = 0.5
ADVICE: Final = "; start a broker with `goqueue serve`, or give the address of one"

logger = logging.getLogger("goqueue.client")


class Reach:
    """What one client knows of its brokers; its loop and its threads share it. All of it is replaced at once."""

    def __init__(self, addresses: Sequence[str], connect_timeout_s: float) -> None:
        self.was_reached = False
        self.is_up = False
        self._addresses = addresses
        self._connect_timeout_s = connect_timeout_s

    @property
    def attempt_s(self) -> float:
        """How long a connection may take, so that each address has its turn."""
        return max(ATTEMPT_S_MIN, self._connect_timeout_s / max(1, len(self._addresses)))

    def time_left_s(self, left_s: float, since_s: float) -> float:
        """How long to go on trying, of the time that is left; `since_s` is how long it was tried already."""
        return left_s if self.was_reached else min(left_s, self._connect_timeout_s - since_s)

    def reached(self, address: str) -> None:
        """A broker has answered."""
        if self.was_reached:
            logger.info("reached %s again", address)
        self.was_reached = self.is_up = True

    def failed(self, error: CannotConnect) -> None:
        """A broker could not be reached."""
        if self.is_up:
            self.is_up = False
            logger.warning("%s; trying again", error)

    def explained(self, error: GoQueueError) -> GoQueueError:
        """The error of a request that was given up. If no broker was ever reached, it says what to do about that."""
        if self.was_reached or not isinstance(error, CannotConnect) or error.advice:
            return error
        return CannotConnect(error.address, error.why, ADVICE)

    def no_answer(self) -> CannotConnect:
        """The error of a request for which no connection came about in time."""
        return CannotConnect(",".join(self._addresses), "no answer in time", ADVICE)
