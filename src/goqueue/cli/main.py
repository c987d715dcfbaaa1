"""Runs the `goqueue` command, and prints our errors as one readable line.

Exit codes: 0 all went well, 1 the request failed, 2 it was malformed, 3 damage was found, 130 it was interrupted by
Ctrl-C, 143 by SIGTERM.
`goqueue serve` has two more: 4 the data directory cannot be used, 5 an address cannot be listened on.
"""

import sys

from goqueue.cli.output import complain
from goqueue.errors import GoQueueError


def main() -> None:
    """Run the command line."""
    try:
        from goqueue.cli.app import app  # here, because a wrong GOQUEUE_KERNEL makes itself known at import

        app(prog_name="goqueue")
    except GoQueueError as error:
        complain(str(error))
        sys.exit(1)
