"""Jobs for later: delay them, cancel them, reschedule them, repeat them by cron.

python examples/delayed_jobs.py
"""

from goqueue import Client

TOPIC = "example-jobs"


def main() -> None:
    """Schedule some jobs and run those that are due within a second."""
    with Client() as gq:
        gq.create_topic(TOPIC, exist_ok=True)
        gq.cancel(TOPIC, key="invoice")  # of an earlier run

        gq.publish(TOPIC, "now")
        gq.publish(TOPIC, "soon", delay="200ms")
        reminder = gq.publish(TOPIC, "in a month", key="invoice", delay="30d")
        gq.reschedule(reminder, delay="60d")
        mistake = gq.publish(TOPIC, "by mistake", delay="100ms")
        gq.cancel(mistake)

        gq.schedule(TOPIC, "report", name="daily", cron="0 9 * * MON-FRI", timezone="Europe/Berlin", exist_ok=True)
        gq.run_schedule(TOPIC, "daily")  # once now, out of turn

        done = []
        for message in gq.consume(TOPIC, group="example-runners", idle="1s"):
            with message:
                done.append(message.text())
        print("done:", ", ".join(sorted(done)))
        print("waiting:", [waiting.key for waiting in gq.delayed(TOPIC)])


if __name__ == "__main__":
    main()
