"""What can be asked of a broker about itself. The rules are those of `service.py`."""

from typing import Protocol

from goqueue.wire.reports import NodeHealth


class NodeVerbs(Protocol):
    """The node itself."""

    def health(self) -> NodeHealth:
        """How it is, and how much room its disk has."""
