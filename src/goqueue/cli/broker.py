"""How a command connects to its broker, and the error that it prints when it cannot."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from goqueue.cli.output import warn
from goqueue.errors import GoQueueError

if TYPE_CHECKING:
    from goqueue.client.sync import Client

DEFAULT_SERVER = "localhost:7000"

ServerOption = Annotated[
    str,
    typer.Option("--server", envvar="GOQUEUE_SERVER", metavar="HOST:PORT[,...]", help="The address of the broker."),
]


RETRY = "1s"  # at a terminal, an error soon is better than a long wait
DECISION = "15s"  # what the controller of a cluster decides may have to wait for an election


class BrokerNotReached(GoQueueError):
    """No broker answers at the address."""

    code = "BROKER_NOT_AVAILABLE"
    retryable = True

    def __init__(self, server: str, reason: str) -> None:
        super().__init__(f"cannot reach broker at {server} ({reason}); start one with `goqueue serve`")
        self.server = server
        self.reason = reason


@contextmanager
def connected(server: str, *, timeout: str = RETRY) -> Iterator["Client"]:
    """A client of the broker, for one command."""
    from goqueue.client.session import CannotConnect
    from goqueue.client.sync import Client

    try:
        with (
            Client(server, client_id="goqueue-cli", timeout=timeout, connect_timeout=RETRY) as client,
            _data_loss_on_stderr(),
        ):
            yield client
    except CannotConnect as error:
        raise BrokerNotReached(server, error.why.rpartition(": ")[2]) from error


@contextmanager
def _data_loss_on_stderr() -> Iterator[None]:
    """Print each warning about lost messages as a line on standard error."""
    from goqueue.client.damage import DataLossWarning

    with warnings.catch_warnings():
        warnings.simplefilter("always", DataLossWarning)
        shown = warnings.showwarning

        def show(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
            if isinstance(message, DataLossWarning):
                warn(str(message))
            else:
                shown(message, category, *where, **more)

        warnings.showwarning = show  # `catch_warnings` restores it at the end of the block
        yield
