"""A work queue: failures are retried with backoff, and end as dead letters that can be redriven.

python examples/work_queue.py
"""

from collections import Counter

from goqueue import Client, Delivered

TOPIC = "example-mails"


def send_mail(message: Delivered, *, is_server_up: bool) -> None:
    """Stand-in for the work: some addresses are bad, and the mail server may be down."""
    address = message.text()
    if "@" not in address:
        raise ValueError(f"{address} is no address")
    if not is_server_up and address.endswith("@slow.example"):
        raise TimeoutError("mail server is down")


def work(gq: Client, *, is_server_up: bool) -> Counter[str]:
    """Process messages until none is left or waits for its retry."""
    outcomes: Counter[str] = Counter()
    for message in gq.consume(TOPIC, group="example-mailers", mode="shared", idle="1s"):
        try:
            with message:  # an exception is a nack: the message is delivered again after a backoff
                send_mail(message, is_server_up=is_server_up)
                outcomes["sent"] += 1
        except (ValueError, TimeoutError):
            outcomes["failed"] += 1
    return outcomes


def main() -> None:
    """Send mails while the server is down, then redrive those that failed for that reason."""
    with Client() as gq:
        gq.create_topic(TOPIC, partitions=1, max_deliveries=2, backoff_initial="50ms", exist_ok=True)
        gq.publish_many(TOPIC, ["ann@fast.example", "bob@slow.example", "nobody"])

        print("while the server is down:", dict(sorted(work(gq, is_server_up=False).items())))
        for letter in gq.dead_letters(TOPIC):
            print("dead letter:", letter.error)

        gq.redrive(TOPIC, where={"error_contains": "mail server"})
        print("when it is up again:", dict(sorted(work(gq, is_server_up=True).items())))


if __name__ == "__main__":
    main()
