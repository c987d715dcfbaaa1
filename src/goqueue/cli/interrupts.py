"""Ctrl-C and SIGTERM: held back between two steps that belong together, or raised so that a command cleans up."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

EXIT_INTERRUPTED = 128 + signal.SIGINT
EXIT_TERMINATED = 128 + signal.SIGTERM


class Terminated(KeyboardInterrupt):
    """SIGTERM, as an exception: a command cleans up as it does after Ctrl-C."""


@contextmanager
def termination_raised() -> Iterator[None]:
    """Have SIGTERM raise `Terminated` in the block instead of ending the process at once."""
    is_main = threading.current_thread() is threading.main_thread()
    # a process that handles or ignores SIGTERM itself, such as a test runner, keeps its choice
    if not is_main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return

    def raise_terminated(_signal: int, _frame: object) -> None:
        raise Terminated

    signal.signal(signal.SIGTERM, raise_terminated)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


@contextmanager
def interrupts_held_back() -> Iterator[None]:
    """Delay a Ctrl-C or SIGTERM in the block until the end of the block. A second one takes effect at once.

    A SIGTERM without a handler still ends the process at once.
    """
    if threading.current_thread() is not threading.main_thread():  # signals are handled by the main thread only
        yield
        return
    came: list[KeyboardInterrupt] = []

    def note(number: int, _frame: object) -> None:
        interrupt = KeyboardInterrupt() if number == signal.SIGINT else Terminated()
        if came:
            raise interrupt
        came.append(interrupt)

    held = [signal.SIGINT, *([signal.SIGTERM] if callable(signal.getsignal(signal.SIGTERM)) else [])]
    before = [(number, signal.signal(number, note)) for number in held]
    try:
        yield
    finally:
        for number, handler in before:
            signal.signal(number, handler)
    if came:  # only after the handlers are restored: another signal may interrupt the cleanup
        raise came[0]
