"""Settlements as an application asks for them: checked, and with reasons cut to a size that fits a ledger."""

from goqueue.client.consumer_core import EXTENDED_NS_MAX
from goqueue.client.messages import asked_duration_ns
from goqueue.client.options import Duration
from goqueue.errors import InvalidRequest
from goqueue.wire.reports import Settlement

REASON_CHARACTERS_MAX = 1_000


def settlement_of(error: BaseException | None) -> Settlement:
    """What leaving the block of a message means."""
    if error is None:
        return Settlement("ack")
    if not isinstance(error, Exception):
        return Settlement("release")  # Ctrl-C, cancellation, exit: the message is not to blame
    return Settlement("nack", None, f"{type(error).__name__}: {error}"[:REASON_CHARACTERS_MAX])


def nack_of(delay: Duration | None, reason: str) -> Settlement:
    """To deliver again, after a backoff or the delay."""
    delay_ns = None if delay is None else max(0, asked_duration_ns(delay, "delay"))
    return Settlement("nack", delay_ns, _checked(reason))


def reject_of(reason: str) -> Settlement:
    """A dead letter, at once."""
    return Settlement("reject", None, _checked(reason))


def extension_of(by: Duration) -> Settlement:
    """To keep for that long from now on."""
    by_ns = asked_duration_ns(by, "by")
    if not 0 < by_ns <= EXTENDED_NS_MAX:
        raise InvalidRequest(f"invalid by {by!r}: must be more than 0 and at most 12h", path="by")
    return Settlement("extend", by_ns)


def _checked(reason: object) -> str:
    if not isinstance(reason, str):
        raise InvalidRequest(f"invalid reason {reason!r:.100}: must be text", path="reason")
    return reason[:REASON_CHARACTERS_MAX]
