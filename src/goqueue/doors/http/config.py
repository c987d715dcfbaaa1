"""The limits of the HTTP door, each with its reason."""

from dataclasses import dataclass, fields

from goqueue.errors import InvalidConfig

KIB = 1024
MIB = 1024 * KIB


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpConfig:
    """Limits. Every resource that a client can use has a bound here."""

    cors_origins: tuple[str, ...] = ()  # origins whose pages may call the API (CORS)

    connections_max: int = 10_000  # further ones get 503: each costs a descriptor and a few KiB
    streams_max: int = 1_000  # open event streams; each holds a subscription per partition
    head_bytes_max: int = 64 * KIB  # request line and headers; the parser has no limit of its own
    arrival_s_max: float = 30.0  # to receive a request; slow senders occupy a connection
    keep_alive_s: float = 75.0  # idle time of a connection: longer than the common timeouts of proxies

    body_bytes_max: int = MIB
    publish_bytes_max: int = 32 * MIB  # raw; leaves room for base64 and escapes
    payload_bytes_max: int = 16 * MIB  # of a publish, base64 counted decoded ...
    payload_bytes_per_message: int = KIB  # ... plus this much per message, for JSON syntax
    bodies_bytes_max: int = 512 * MIB  # of all large bodies that are being received
    messages_max: int = 10_000  # per publish: one answer has all results
    braces_max: int = 1_000_000  # per publish: `{}` is 2 bytes in the body, but an object in memory once decoded

    read_limit_max: int = 10_000  # messages per answer: encoding blocks the event loop
    answer_s_max: float = 30.0  # then the answer is 504
    wait_s_max: float = 25.0  # of a long poll: clients commonly time out after 30 s ...
    wait_preferred_s_max: float = 60.0  # ... unless they send `Prefer: wait=N`
    stream_comment_s: float = 15.0  # proxies close idle connections, some after 30 s
    stream_chunk_bytes: int = 64 * KIB  # per write; then the stream waits for a slow reader

    def __post_init__(self) -> None:
        for name in (field.name for field in fields(self) if field.name != "cors_origins"):
            if getattr(self, name) <= 0:
                raise InvalidConfig(name, getattr(self, name), "must be positive")
