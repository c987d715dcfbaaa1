"""A process that forks while it consumes: the child is refused everything, the parent goes on.

python forking_consumer.py <address> <what the child tries>
"""

import os
import sys

from goqueue import Client, Conflict


def main(address: str, use: str) -> int:
    with Client(address) as gq, gq.consumer("t", group="g") as consumer:
        batch = consumer.poll(5)
        child = os.fork()
        if not child:

            def leave_a_block() -> None:
                with batch[0]:
                    pass

            uses = {
                "poll": consumer.poll,
                "ack": batch[0].ack,
                "with": leave_a_block,
                "consume": lambda: next(iter(gq.consume("t", group="g"))),
                "close": lambda: consumer.close() or consumer.poll(),  # type: ignore[func-returns-value]
            }
            os._exit(_refused(uses[use]))
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        consumer.ack(batch)
        rest = consumer.poll()
        assert [message.offset for message in rest] == [5, 6, 7, 8, 9]
        for message in rest:
            with message:
                pass
    return 0


def _refused(use: object) -> int:
    try:
        use()  # type: ignore[operator]
    except Conflict as error:
        return int("fork" not in str(error))
    return 2


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
