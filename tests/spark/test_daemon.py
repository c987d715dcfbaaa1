import socket

import pytest

from goqueue.spark.daemon import GONE, quiet


def test_a_worker_that_has_done_its_task_takes_another() -> None:
    with socket.socket() as sock:
        assert quiet(lambda sock, authenticated: 0)(sock, True) == 0


@pytest.mark.parametrize("error", [BrokenPipeError, ConnectionResetError])
def test_a_worker_whose_driver_is_gone_takes_no_other(error: type[Exception]) -> None:
    def work(sock: socket.socket, authenticated: bool) -> int:
        raise error

    with socket.socket() as sock:
        assert quiet(work)(sock, True) == GONE


def test_any_other_error_is_a_workers_own() -> None:
    def work(sock: socket.socket, authenticated: bool) -> int:
        raise ValueError("a bug")

    with socket.socket() as sock, pytest.raises(ValueError, match="a bug"):
        quiet(work)(sock, True)
