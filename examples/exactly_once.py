"""Consume, process and produce exactly once: output and acks are one transaction.

Kill it at any moment and start it again: every order has one invoice.

python examples/exactly_once.py
"""

from goqueue import Client


def main() -> None:
    """Turn orders into invoices."""
    with Client() as gq:
        gq.create_topic("example-sales", partitions=2, exist_ok=True)
        gq.create_topic("example-invoices", partitions=2, exist_ok=True)
        gq.publish_many("example-sales", [(f"customer-{number}", {"id": number}) for number in range(500)])

        count = 0
        with gq.consumer("example-sales", group="example-invoicing") as consumer:
            while batch := consumer.poll(max_messages=100, timeout="1s"):
                with gq.transaction("example-invoicing-1") as tx:  # an exception aborts it
                    for order in batch:
                        tx.send("example-invoices", {"order": order.json()["id"]}, key=order.key)
                    tx.ack(batch)
                count += len(batch)
        print(f"{count} invoices written")


if __name__ == "__main__":
    main()
