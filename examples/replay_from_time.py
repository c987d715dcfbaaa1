"""Process the past again: read from a time, and reset a group to a time.

python examples/replay_from_time.py
"""

from goqueue import Client

TOPIC = "example-events"
GROUP = "example-analytics"


def count(gq: Client) -> int:
    """How many messages are left for the group."""
    total = 0
    for message in gq.consume(TOPIC, group=GROUP, stop="empty"):
        with message:
            total += 1
    return total


def main() -> None:
    """Consume everything, then go back to the time of one message."""
    with Client() as gq:
        gq.create_topic(TOPIC, partitions=1, exist_ok=True)
        gq.publish_many(TOPIC, [f"before {number}" for number in range(10)])
        count(gq)

        first = gq.publish(TOPIC, "after 0")
        gq.publish_many(TOPIC, [f"after {number}" for number in range(1, 5)])
        print("processed:", count(gq))

        since = first.timestamp
        print("read again:", [message.text() for message in gq.read(TOPIC, from_time=since, limit=2)])
        gq.reset_group(GROUP, to=since, topic=TOPIC)
        print("processed again:", count(gq))


if __name__ == "__main__":
    main()
