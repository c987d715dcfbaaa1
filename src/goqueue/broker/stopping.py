"""Whether a broker is stopping. Its parts share one of these; writes are refused from then on."""

from goqueue.errors import BrokerUnavailable


class Stopping:
    """Set once, and never reset."""

    __slots__ = ("has_begun",)

    def __init__(self) -> None:
        self.has_begun = False

    def check(self) -> None:
        """Raise `BrokerUnavailable` if the broker is stopping."""
        if self.has_begun:
            raise BrokerUnavailable("it is stopping")
