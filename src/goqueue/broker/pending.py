"""An answer that may not be there yet.

The broker is synchronous and knows no event loop. What has to wait, for a disk or for a message, comes back as a
`Pending`; whoever asked leaves a callback and is called once, at once if the answer is there. A shell turns that
into a future of its own.
"""

from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Pending(Generic[T]):
    """One answer, now or later. Belongs to the thread of its broker."""

    __slots__ = ("_callbacks", "_error", "_value", "is_done")

    def __init__(self) -> None:
        self._value: T
        self._error: Exception | None = None
        self._callbacks: list[Callable[[Pending[T]], None]] = []
        self.is_done = False

    @classmethod
    def of(cls, value: T) -> "Pending[T]":
        """An answer that is there."""
        pending: Pending[T] = cls()
        pending.resolve(value)
        return pending

    @classmethod
    def failed(cls, error: Exception) -> "Pending[T]":
        """A refusal that is there."""
        pending: Pending[T] = cls()
        pending.fail(error)
        return pending

    def resolve(self, value: T) -> None:
        """The answer is there. Only the first one counts."""
        if not self.is_done:
            self._value = value
            self._settle()

    def fail(self, error: Exception) -> None:
        """There will be no answer."""
        if not self.is_done:
            self._error = error
            self._settle()

    def then(self, callback: "Callable[[Pending[T]], None]") -> None:
        """Call back once it is done."""
        if self.is_done:
            callback(self)
        else:
            self._callbacks.append(callback)

    def result(self) -> T:
        """The answer, or what was raised instead of it. Only when it is done."""
        assert self.is_done
        if self._error is not None:
            raise self._error
        return self._value

    def _settle(self) -> None:
        self.is_done = True
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback(self)
