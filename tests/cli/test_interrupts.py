import os
import signal
import threading

import pytest

from goqueue.cli.interrupts import Terminated, interrupts_held_back, termination_raised


def press_ctrl_c() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def test_a_ctrl_c_takes_effect_behind_the_block() -> None:
    done: list[str] = []

    def work() -> None:
        with interrupts_held_back():
            press_ctrl_c()
            done.append("inside")
        done.append("behind")

    with pytest.raises(KeyboardInterrupt):
        work()
    assert done == ["inside"]


def test_a_second_ctrl_c_does_not_wait() -> None:
    done: list[str] = []

    def work() -> None:
        with interrupts_held_back():
            press_ctrl_c()
            done.append("one")
            press_ctrl_c()
            done.append("two")

    with pytest.raises(KeyboardInterrupt):
        work()
    assert done == ["one"]


def test_an_error_in_the_block_is_not_covered() -> None:
    def work() -> None:
        with interrupts_held_back():
            press_ctrl_c()
            raise ValueError("own")

    with pytest.raises(ValueError, match="own"):
        work()


def test_afterwards_all_is_as_before() -> None:
    before = signal.getsignal(signal.SIGINT)
    with interrupts_held_back():
        pass

    assert signal.getsignal(signal.SIGINT) is before


def test_other_threads_have_nothing_to_hold_back() -> None:
    done: list[str] = []

    def work() -> None:
        with interrupts_held_back():
            done.append("inside")

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()

    assert done == ["inside"]


def test_a_sigterm_takes_effect_after_the_block_too() -> None:
    done: list[str] = []

    def work() -> None:
        with termination_raised(), interrupts_held_back():
            os.kill(os.getpid(), signal.SIGTERM)
            done.append("inside")
        done.append("after")

    with pytest.raises(Terminated):
        work()
    assert done == ["inside"]
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_a_sigterm_that_has_a_handler_keeps_it() -> None:
    came: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: came.append(number))
    try:
        with termination_raised():
            os.kill(os.getpid(), signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)

    assert came == [signal.SIGTERM]
