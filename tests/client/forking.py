"""A process that forks while it has a client: the child is refused everything, the parent goes on.

python forking.py <address> <what the child tries>
"""

import os
import sys

from goqueue import Client, Conflict


def main(address: str, use: str) -> int:
    with Client(address) as gq:
        topic = f"fork-{use}"
        gq.create_topic(topic, partitions=1)
        with gq.producer(linger="1h") as producer:
            handle = producer.send(topic, b"parent")
            child = os.fork()
            if not child:
                uses = {
                    "send": lambda: producer.send(topic, b"child"),
                    "keyed": lambda: producer.send(topic, b"child", key=b"k"),
                    "flush": producer.flush,
                    "publish": lambda: gq.publish(topic, b"child"),
                    "topics": gq.topics,
                }
                os._exit(_refused(uses[use]) or _closes(producer.close) or _closes(gq.close))
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
            producer.send(topic, b"parent again")
        assert handle.result(timeout="10s").offset == 0
        assert gq.publish(topic, b"more").offset == 2
        assert [message.value for message in gq.read(topic)] == [b"parent", b"parent again", b"more"]
        gq.delete_topic(topic)
    return 0


def _refused(use: object) -> int:
    try:
        use()  # type: ignore[operator]
    except Conflict as error:
        return int("fork" not in str(error))
    return 2


def _closes(close: object) -> int:
    close()  # type: ignore[operator]
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
