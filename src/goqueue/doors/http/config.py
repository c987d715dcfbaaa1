"""The limits of the HTTP door; each has a reason."""

from dataclasses import dataclass, fields

from goqueue.errors import InvalidConfig

KIB = 1024
MIB = 1024 * KIB


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpConfig:
    """What the door allows. Everything that a client can make grow has a bound here."""

    cors_origins: tuple[str, ...] = ()  # pages of other origins that may call; none unless named

    connections_max: int = 10_000  # more are told so and closed: each costs a descriptor and a few KiB
    streams_max: int = 1_000  # event streams at once; each holds a place in every partition it reads
    head_bytes_max: int = 64 * KIB  # request line and headers, which the parser itself does not bound
    arrival_s_max: float = 30.0  # for a request to arrive as a whole; a client that trickles holds a connection
    keep_alive_s: float = 75.0  # for the next request on a connection: longer than proxies keep theirs

    body_bytes_max: int = MIB
    publish_bytes_max: int = 32 * MIB  # as it comes, which leaves room for base64 and escapes
    payload_bytes_max: int = 16 * MIB  # of a publish, base64 counted decoded ...
    payload_bytes_per_message: int = KIB  # ... and this much more for each message, for names and braces
    bodies_bytes_max: int = 512 * MIB  # of all large bodies that are arriving at once
    messages_max: int = 10_000  # per publish: they are answered together
    braces_max: int = 1_000_000  # in a publish: objects of two bytes each would fill the memory before they are counted

    read_limit_max: int = 10_000  # messages per answer; beyond that, an answer takes too long to make
    answer_s_max: float = 30.0  # what takes longer is answered 504
    wait_s_max: float = 25.0  # so that a client whose own limit is 30 s always gets an answer ...
    wait_preferred_s_max: float = 60.0  # ... unless it says with `Prefer: wait=N` that it waits longer
    stream_comment_s: float = 15.0  # proxies cut connections that are silent for a minute, some for half of one
    stream_chunk_bytes: int = 64 * KIB  # written at once; a slow reader is held back after this

    def __post_init__(self) -> None:
        for name in (field.name for field in fields(self) if field.name != "cors_origins"):
            if getattr(self, name) <= 0:
                raise InvalidConfig(name, getattr(self, name), "must be positive")
