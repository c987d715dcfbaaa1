"""What happened to messages since the broker started, in numbers."""

from typing import Any

from goqueue import events


class DeliveryCounters:
    """Counts of what happened to messages."""

    def __init__(self) -> None:
        self.acked = self.nacked = self.rejected = self.extended = 0
        self.delivered = self.redelivered = self.expired = 0
        self.create_errors = self.publish_errors = 0
        self.dead_by_reason: dict[str, int] = {}
        self.dead_by_topic: dict[str, int] = {}
        self.observe = events.Handlers(
            {
                events.MessagesDelivered: self._delivered,
                events.MessagesSettled: self._settled,
                events.LeasesExpired: self._lease_expired,
                events.DeadLettered: self._dead,
                events.DeadLetteringFailed: self._transfer_failed,
                events.TopicDeleted: self._topic_deleted,
            }
        )

    def _delivered(self, event: Any) -> None:
        self.delivered += event.count
        self.redelivered += event.redelivered

    def _settled(self, event: Any) -> None:
        match event.kind:
            case "ack":
                self.acked += event.count
            case "nack":
                self.nacked += event.count
            case "reject":
                self.rejected += event.count
            case _:
                self.extended += event.count

    def _lease_expired(self, event: Any) -> None:
        self.expired += event.count

    def _dead(self, event: Any) -> None:
        self.dead_by_reason[event.reason] = self.dead_by_reason.get(event.reason, 0) + event.count
        self.dead_by_topic[event.topic] = self.dead_by_topic.get(event.topic, 0) + event.count

    def _topic_deleted(self, event: Any) -> None:
        self.dead_by_topic.pop(event.topic, None)

    def _transfer_failed(self, event: Any) -> None:
        if event.in_creation:
            self.create_errors += 1
        else:
            self.publish_errors += 1
