"""Defaults from environment variables, for what the application does not set."""

import os

from goqueue.clock import MS
from goqueue.errors import InvalidConfig
from goqueue.times import format_duration, parse_duration

BUSY_POLL_NS = MS // 2
BUSY_POLL_NS_MAX = 10 * MS


def default_server() -> str:
    """`GOQUEUE_SERVER`: the brokers to connect to."""
    return os.environ.get("GOQUEUE_SERVER") or "localhost:7000"


def default_telemetry() -> bool:
    """`GOQUEUE_TELEMETRY`: whether messages carry contexts of OpenTelemetry."""
    return (os.environ.get("GOQUEUE_TELEMETRY") or "on").lower() not in ("off", "false", "no", "0")


def default_busy_poll_ns() -> int:
    """`GOQUEUE_BUSY_POLL`: how long a thread busy-polls for an answer before it sleeps."""
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
    """`GOQUEUE_API_KEY`: the key that authenticates the client."""
    return os.environ.get("GOQUEUE_API_KEY") or ""
