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
    """Let a Ctrl-C or SIGTERM that comes in the block take effect after it. A second one does not wait.

    A SIGTERM that has no handler ends the process at once, as ever.
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
    if came:
        raise came[0]
