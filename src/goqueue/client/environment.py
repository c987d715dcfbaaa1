"""What the environment says where the application does not."""

import os


def default_server() -> str:
    """The brokers to talk to."""
    return os.environ.get("GOQUEUE_SERVER") or "localhost:7000"


def default_telemetry() -> bool:
    """Whether contexts of OpenTelemetry go along with messages."""
    return (os.environ.get("GOQUEUE_TELEMETRY") or "on").lower() not in ("off", "false", "no", "0")


def default_api_key() -> str:
    """The key to show them."""
    return os.environ.get("GOQUEUE_API_KEY") or ""
