"""What the environment says where the application does not."""

import os

from goqueue.clock import MS
from goqueue.errors import InvalidConfig
from goqueue.times import format_duration, parse_duration

BUSY_POLL_NS = MS // 2
BUSY_POLL_NS_MAX = 10 * MS


def default_server() -> str:
    """The brokers to talk to."""
    return os.environ.get("GOQUEUE_SERVER") or "localhost:7000"


def default_telemetry() -> bool:
    """Whether contexts of OpenTelemetry go along with messages."""
    return (os.environ.get("GOQUEUE_TELEMETRY") or "on").lower() not in ("off", "false", "no", "0")


def default_busy_poll_ns() -> int:
    """How long a thread that waits for an answer looks for it before it falls asleep."""
    asked = os.environ.get("GOQUEUE_BUSY_POLL")
    if not asked:
        return BUSY_POLL_NS
    try:
        busy_poll_ns = parse_duration(asked)
    except ValueError as error:
        raise InvalidConfig("GOQUEUE_BUSY_POLL", asked, str(error)) from None
    if not 0 <= busy_poll_ns <= BUSY_POLL_NS_MAX:
        raise InvalidConfig("GOQUEUE_BUSY_POLL", asked, f"must be 0s to {format_duration(BUSY_POLL_NS_MAX)}")
    return busy_poll_ns


def default_api_key() -> str:
    """The key to show them."""
    return os.environ.get("GOQUEUE_API_KEY") or ""
