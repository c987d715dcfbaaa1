import socket
import threading
from collections.abc import Iterator

import pytest

from goqueue.client import spin_wait
from goqueue.client.spin_wait import SpinWait
from goqueue.clock import MS, SECOND, SystemClock

LONG_NS = 60 * SECOND


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    mine, theirs = socket.socketpair()
    with mine, theirs:
        yield mine, theirs


def test_what_is_there_is_found_at_once(ends: tuple[socket.socket, socket.socket]) -> None:
    mine, theirs = ends
    watching = SpinWait(mine, LONG_NS)
    theirs.sendall(b"x")

    watching.watch()

    assert mine.recv(1) == b"x"


def test_what_comes_while_somebody_looks_ends_the_watch(ends: tuple[socket.socket, socket.socket]) -> None:
    mine, theirs = ends
    sender = threading.Thread(target=theirs.sendall, args=(b"x",))
    sender.start()

    SpinWait(mine, LONG_NS).watch()

    sender.join()
    assert mine.recv(1) == b"x"


def test_a_peer_that_hangs_up_ends_the_watch(ends: tuple[socket.socket, socket.socket]) -> None:
    mine, theirs = ends
    theirs.close()

    SpinWait(mine, LONG_NS).watch()

    assert mine.recv(1) == b""


def test_when_nothing_comes_it_is_time_to_fall_asleep(ends: tuple[socket.socket, socket.socket]) -> None:
    watching, clock = SpinWait(ends[0], 20 * MS), SystemClock()
    began = clock.monotonic_ns()
    watching.watch()
    first_ns = clock.monotonic_ns() - began

    assert first_ns >= 20 * MS
    assert not watching._spin.is_spinning


def test_after_a_watch_in_vain_the_next_one_is_left_out(ends: tuple[socket.socket, socket.socket]) -> None:
    watching = SpinWait(ends[0], MS)
    watching.watch()

    assert not watching._spin.start(0)
    assert watching._spin.start(0)


def test_only_one_thread_of_a_process_stays_awake(ends: tuple[socket.socket, socket.socket]) -> None:
    with spin_wait._turn:
        SpinWait(ends[0], LONG_NS).watch()  # returns, though nothing comes

    assert spin_wait._turn.acquire(blocking=False)
    spin_wait._turn.release()


def test_a_watch_of_no_length_never_looks(ends: tuple[socket.socket, socket.socket]) -> None:
    watching = SpinWait(ends[0], 0)

    watching.watch()

    assert not watching._spin.is_spinning
