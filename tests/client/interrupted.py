"""A process that consumes until somebody presses Ctrl-C, and says how it ended.

python interrupted.py <address> <where it is interrupted: idle, working, batch>
"""

import sys
import threading

from goqueue import Client


def wait() -> None:
    """Wait for the signal; in pieces, for one that comes just before a thread falls asleep is noticed when it wakes."""
    while True:
        threading.Event().wait(0.05)


def main(address: str, where: str) -> int:
    with Client(address) as gq:
        try:
            for message in gq.consume("t", group="g", start="latest" if where == "idle" else "earliest"):
                with message:
                    if where == "working":
                        print("has", message.offset, flush=True)
                        wait()
                print("has", message.offset, flush=True)
                wait()
        except KeyboardInterrupt:
            print("left", flush=True)
            return 0
    return 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
