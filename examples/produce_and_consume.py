"""Publish messages and consume them as a group.

python examples/produce_and_consume.py
"""

from goqueue import Client


def main() -> None:
    """Publish one message, then a thousand, and consume all of them."""
    with Client() as gq:
        gq.create_topic("example-orders", partitions=3, exist_ok=True)

        stored = gq.publish("example-orders", {"id": 0}, key="customer-0")
        print(f"stored at partition {stored.partition}, offset {stored.offset}")

        with gq.producer() as producer:  # batches in the background; leaving the block flushes
            for number in range(1, 1_001):
                producer.send("example-orders", {"id": number}, key=f"customer-{number % 50}")

        total = 0
        for message in gq.consume("example-orders", group="example-billing", stop="empty"):
            with message:  # acknowledged at the end of the block
                total += message.json()["id"]
        print(f"the ids add up to {total}")


if __name__ == "__main__":
    main()
