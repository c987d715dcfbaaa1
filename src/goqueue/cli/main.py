"""Runs the `goqueue` command, and prints our errors as one readable line.

Exit codes: 0 success, 1 the request failed, 2 the command line is malformed, 3 damage was found, 130 interrupted by
Ctrl-C, 143 by SIGTERM.
`goqueue serve` has two more: 4 the data directory cannot be used, 5 an address cannot be listened on.
"""

import sys

from goqueue.cli.output import complain
from goqueue.errors import GoQueueError


def main() -> None:
    """Run the command line; exit with 1 after a `GoQueueError`."""
    try:
        from goqueue.cli.app import app  # in the block: an invalid GOQUEUE_KERNEL raises at import

        app(prog_name="goqueue")
    except GoQueueError as error:
        complain(str(error))
        sys.exit(1)
