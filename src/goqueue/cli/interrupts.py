"""Ctrl-C, where it must not come between two things."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def interrupts_held_back() -> Iterator[None]:
    """Let a Ctrl-C that comes in the block take effect behind it. A second one does not wait."""
    if threading.current_thread() is not threading.main_thread():  # signals are no business of others
        yield
        return
    has_come = False

    def note(_signal: int, _frame: object) -> None:
        nonlocal has_come
        if has_come:
            raise KeyboardInterrupt
        has_come = True

    before = signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if has_come:
        raise KeyboardInterrupt
