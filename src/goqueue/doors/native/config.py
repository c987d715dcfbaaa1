"""The limits of the native door; each says why."""

from dataclasses import dataclass

from goqueue.errors import InvalidConfig
from goqueue.wire import frames


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeConfig:
    """The limits of the native door."""

    connections_max: int = 10_000  # each costs a descriptor and some KiB
    frame_bytes_max: int = frames.FRAME_BYTES_MAX
    requests_max: int = 1_024  # under way per connection; more wait in the peer's socket
    subscriptions_max: int = 10_000  # per connection
    write_buffer_bytes: int = 64 * 1024  # unsent per connection, before it is not served any more
    inbound_bytes_max: int = 256 * 1024 * 1024  # in unfinished frames of all connections
    hello_timeout_ms: int = 10_000
    frame_timeout_ms: int = 30_000  # for a frame to come in whole, once it has begun

    def __post_init__(self) -> None:
        for name in self.__dataclass_fields__:
            if getattr(self, name) < 1:
                raise InvalidConfig(name, getattr(self, name), "must be positive")
