"""An answer that may not be there yet.

The broker is synchronous and knows no event loop. What has to wait, for a disk or for a message, comes back as a
`Pending`; the caller leaves a callback, which is called once, at once if the answer is there. A shell turns that
into a future of its own.
"""

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

S = TypeVar("S")
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
        pending._value = value
        pending.is_done = True
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

    @property
    def error(self) -> Exception | None:
        """What was raised instead of an answer, if it is done and something was."""
        return self._error

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


def all_of(pendings: Sequence[Pending[None]]) -> Pending[None]:
    """Done when all of them are; fails as the first one that does."""
    gathered: Pending[None] = Pending()
    left = len(pendings)

    def one_is_done(done: "Pending[None]") -> None:
        nonlocal left
        left -= 1
        try:
            done.result()
        except Exception as error:
            gathered.fail(error)
        if not left:
            gathered.resolve(None)

    for pending in pendings:
        pending.then(one_is_done)
    if not pendings:
        gathered.resolve(None)
    return gathered


def when_all_are_done(pendings: Sequence[Pending[T]]) -> Pending[None]:
    """Done when all of them are, whatever came of them."""
    left = sum(not one.is_done for one in pendings)
    if not left:
        return Pending.of(None)
    gathered: Pending[None] = Pending()

    def one_is_done(_: "Pending[T]") -> None:
        nonlocal left
        left -= 1
        if not left:
            gathered.resolve(None)

    for pending in pendings:
        if not pending.is_done:
            pending.then(one_is_done)
    return gathered


def after(pending: Pending[S], make: Callable[[S], T]) -> Pending[T]:
    """What is made of the answer, once it is there."""
    if pending.is_done:
        try:
            return Pending.of(make(pending.result()))
        except Exception as error:
            return Pending.failed(error)
    made: Pending[T] = Pending()

    def make_it(done: "Pending[S]") -> None:
        try:
            value = make(done.result())
        except Exception as error:
            made.fail(error)
        else:
            made.resolve(value)

    pending.then(make_it)
    return made


def chained(pending: Pending[S], go_on: Callable[[S], Pending[T]]) -> Pending[T]:
    """The answer to what is asked once the first answer is there."""
    last: Pending[T] = Pending()

    def pass_on(done: "Pending[T]") -> None:
        try:
            last.resolve(done.result())
        except Exception as error:
            last.fail(error)

    def answered(done: "Pending[S]") -> None:
        try:
            following = go_on(done.result())
        except Exception as error:
            last.fail(error)
        else:
            following.then(pass_on)

    pending.then(answered)
    return last
