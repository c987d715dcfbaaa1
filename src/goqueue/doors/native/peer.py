"""What the handlers of requests need of the connection that they answer."""

from collections.abc import Callable
from typing import Protocol, TypeVar

import msgspec

from goqueue.errors import GoQueueError, InternalError
from goqueue.service.pending import Pending
from goqueue.wire.frames import Frame

T = TypeVar("T")


class Peer(Protocol):
    """One client of the native door."""

    peer: str  # host:port
    is_closed: bool
    is_congested: bool  # it does not read its answers

    @property
    def read_bytes_max(self) -> int:
        """How much one answer may hold."""

    def answer(self, kind: int, correlation: int, meta: msgspec.Struct) -> None:
        """Send an answer without a payload."""

    def fail(self, kind: int, correlation: int, error: GoQueueError) -> None:
        """Send a refusal."""

    def write(self, *parts: bytes | bytearray | memoryview) -> None:
        """Send a frame that is packed already."""

    def later(self, kind: int, correlation: int, pending: Pending[T], answer: Callable[[T], None]) -> None:
        """Answer when the answer is there."""

    def bug(self, kind: int) -> InternalError:
        """The refusal of a request that failed for a reason of ours."""

    def push_soon(self, push: Callable[[], None]) -> None:
        """Push when the frames at hand are handled."""

    def handle_again(self, frame: Frame) -> None:
        """Handle a request once more, when the peer reads again."""
