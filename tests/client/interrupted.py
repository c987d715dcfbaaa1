"""A process that consumes until somebody presses Ctrl-C, and says how it ended.

python interrupted.py <address> <where it is interrupted: idle, working, batch>
"""

import signal
import sys

from goqueue import Client


def main(address: str, where: str) -> int:
    with Client(address) as gq:
        try:
            for message in gq.consume("t", group="g", start="latest" if where == "idle" else "earliest"):
                with message:
                    print("has", message.offset, flush=True)
                    if where == "working":
                        signal.pause()
                if where == "batch":
                    signal.pause()
        except KeyboardInterrupt:
            print("left", flush=True)
            return 0
    return 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
