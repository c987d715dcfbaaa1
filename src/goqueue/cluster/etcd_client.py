"""A client of etcd: one attempt of a call at a time, and watch streams. `etcd_log.py` decides what an error means.

`EtcdClient.call` sends a request to one endpoint, with a deadline. After `EtcdUnreachable` the next call goes to the
next endpoint, so a loop around `call` is a failover. Errors come as one of

    MetadataUnavailable
    ├── EtcdUnreachable     no answer, or one that leaves open whether the request was carried out
    ├── EtcdFull            the space quota is reached; see `etcd_log.py` for what that leaves open
    ├── EtcdRefused         the request was refused before it was carried out, and always will be
    └── EtcdAnswerTooLarge  a read matched more than fits in memory

each with a sentence that says what to do. One table tells them by the text of etcd; a text that is not in it is
`EtcdUnreachable`, so a mistake there costs a repetition and never an entry.

A user's token expires after some minutes without use, at each member on its own, and all tokens may be gone after a
restart. A call that is refused for its token gets a new one and is sent again, unchanged.

A watch has a connection of its own: a large answer on the other one would delay its events. A member that hangs keeps
its connections open, and gRPC alone takes a minute to notice; so the reader of a stream asks for progress now and then
(`EtcdStream.ask_progress`), which a member that works answers at once.

This is the only module that imports grpcio, and it does so when a client is made: a single node runs without it.
"""

import asyncio
import re
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from goqueue.cluster import etcd_messages as messages
from goqueue.cluster.etcd_messages import Message
from goqueue.errors import GoQueueError, InvalidConfig, MetadataUnavailable
from goqueue.runtime.entropy import Entropy

if TYPE_CHECKING:
    from grpc import aio

T = TypeVar("T")

AUTHENTICATE_S: Final = 1.0
"""etcd takes a tenth of a second to check a password, by design."""
ANSWER_BYTES_MAX: Final = 16 * 1024 * 1024 + 64 * 1024
_PAUSE_S: Final = (0.02, 0.1)

_CHANNEL_OPTIONS: Final = (
    ("grpc.max_receive_message_length", ANSWER_BYTES_MAX),
    ("grpc.max_send_message_length", -1),
    ("grpc.use_local_subchannel_pool", 1),  # or channels to one address share one connection
    ("grpc.enable_retries", 0),  # the callers repeat calls, and know which they may repeat
    ("grpc.enable_http_proxy", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 1_000),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    # Of a host that vanished. etcd ends connections that are pinged more often than every 5 s.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 2_000),
    ("grpc.http2.ping_timeout_ms", 2_000),
)


class EtcdNotInstalled(GoQueueError):
    """The extra `goqueue[etcd]` is not installed."""

    code = "ETCD_NOT_INSTALLED"

    def __init__(self, missing: str) -> None:
        super().__init__(f"metadata in etcd needs {missing}; install it with: pip install 'goqueue[etcd]'")
        self.missing = missing


class EtcdUnreachable(MetadataUnavailable):
    """No member has answered; whether the request was carried out is unknown."""


class EtcdFull(MetadataUnavailable):
    """The space quota of etcd is reached."""


class EtcdRefused(MetadataUnavailable):
    """etcd has refused the request, without carrying it out. It will do so again until its settings are changed."""

    retryable = False


class EtcdAnswerTooLarge(MetadataUnavailable):
    """The answer is larger than `ANSWER_BYTES_MAX`: ask for less."""


class EtcdTls(NamedTuple):
    """Who is trusted, and who we are; as the text of PEM files."""

    authority: bytes
    certificate: bytes | None = None
    key: bytes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EtcdOptions:
    """Where etcd is, and how to talk to it."""

    endpoints: tuple[str, ...]  # host:port of every member
    tls: EtcdTls | None = None
    user: str = ""
    password: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        if not self.endpoints:
            raise InvalidConfig("endpoints", self.endpoints, "must name at least one member")
        for endpoint in self.endpoints:
            if not re.fullmatch(r"[^\s/@]+:\d+", endpoint):
                raise InvalidConfig("endpoints", endpoint, "must be host:port")
        if self.tls is not None and (self.tls.certificate is None) != (self.tls.key is None):
            raise InvalidConfig("tls", "certificate, key", "must be given both or not at all")


class EtcdMember(NamedTuple):
    """What one member says of itself."""

    endpoint: str
    version: str
    is_leader: bool
    db_bytes: int
    db_used_bytes: int  # the rest is freed by a defragmentation
    quota_bytes: int  # 0 if the member is older than 3.6 and does not tell
    errors: tuple[str, ...]  # alarms, or that there is no leader

    @property
    def is_full(self) -> bool:
        """An alarm is set because the quota was reached; it stays until an operator takes it back."""
        return any("NOSPACE" in error for error in self.errors)


class EtcdMethod(NamedTuple):
    """A unary method of etcd."""

    path: str
    answer: Message  # the class of it


TXN: Final = EtcdMethod("/etcdserverpb.KV/Txn", messages.TxnResponse)
PUT: Final = EtcdMethod("/etcdserverpb.KV/Put", messages.PutResponse)
_AUTHENTICATE: Final = EtcdMethod("/etcdserverpb.Auth/Authenticate", messages.AuthenticateResponse)
_STATUS: Final = EtcdMethod("/etcdserverpb.Maintenance/Status", messages.StatusResponse)
_WATCH: Final = "/etcdserverpb.Watch/Watch"


class _TokenRefused(EtcdUnreachable):
    """The token has expired, or was never valid at this member."""


def explain(endpoint: str, code: str, text: str) -> MetadataUnavailable:
    """What the status of a call means, with a sentence for the operator."""
    lower = text.lower()
    for pattern, error, sentence in _STATUSES:
        if re.search(pattern, lower):
            return error(sentence.format(endpoint=endpoint))
    if code == "DEADLINE_EXCEEDED":
        return EtcdUnreachable(f"etcd at {endpoint} does not answer; check that a majority of its members is up")
    return EtcdUnreachable(f"etcd at {endpoint} answers {code}: {text}")


_STATUSES: Final[Sequence[tuple[str, type[MetadataUnavailable], str]]] = (
    ("invalid auth token|revision of auth store is old", _TokenRefused, "etcd at {endpoint} refuses the token"),
    (
        "database space exceeded",
        EtcdFull,
        "etcd is full (alarm NOSPACE): compact its history and defragment every member, or raise"
        " --quota-backend-bytes; then run `etcdctl alarm disarm`",
    ),
    (
        "request is too large",
        EtcdRefused,
        "etcd at {endpoint} refuses a request for its size: start its members with --max-request-bytes 1572864"
        " (the default) or more",
    ),
    ("received message larger than max", EtcdAnswerTooLarge, "an answer of etcd at {endpoint} is too large"),
    (
        "permission denied",
        EtcdRefused,
        "etcd at {endpoint} denies the request: grant the user a role with the right readwrite on the prefix",
    ),
    (
        "authentication failed",
        EtcdRefused,
        "etcd at {endpoint} refuses the user or the password: check both",
    ),
    (
        "authentication is not enabled",
        EtcdRefused,
        "etcd at {endpoint} has no users: run `etcdctl auth enable`, or connect without a user",
    ),
    ("user name is empty", EtcdRefused, "etcd at {endpoint} asks for a user: set a user and a password"),
    (
        "certificate_verify_failed|certificate verify failed",
        EtcdUnreachable,
        "the certificate of etcd at {endpoint} was not signed by the given authority: check the CA file",
    ),
    (
        "hostname verification|peer name|no match found for server name",
        EtcdUnreachable,
        "the certificate of etcd at {endpoint} is for another host: use a name or an address that it contains",
    ),
    (
        "unwrap failed|ssl.*alert|certificate required|bad certificate",  # TLS 1.3 tells of it after the handshake
        EtcdUnreachable,
        "etcd at {endpoint} refuses the client certificate: give one that was signed by its --trusted-ca-file",
    ),
    (
        "handshake read failed|wrong_version_number",
        EtcdUnreachable,
        "etcd at {endpoint} does not speak TLS: start it with --cert-file, or connect without a CA file",
    ),
    (
        "connection refused",
        EtcdUnreachable,
        "etcd at {endpoint} cannot be reached (connection refused): check that it runs and that the address is right",
    ),
    (
        "socket closed|connection reset|end of tcp stream|endpoint closing|frame",
        EtcdUnreachable,
        "etcd at {endpoint} has ended the connection: check that it runs; if it speaks TLS, give its CA file",
    ),
)


def _grpc_aio() -> ModuleType:
    """The package grpcio. Raises `EtcdNotInstalled`."""
    try:
        from grpc import aio
    except ImportError as error:
        raise EtcdNotInstalled((error.name or "grpc").partition(".")[0].replace("grpc", "grpcio")) from None
    return aio


class EtcdClient:
    """Connections to the members of one etcd cluster. One event loop uses it."""

    def __init__(self, options: EtcdOptions, *, entropy: Entropy) -> None:
        self._aio: Any = _grpc_aio()
        self._options = options
        self._entropy = entropy
        # Nodes with the same list of members begin at different ones.
        self._current = entropy.bits(16) % len(options.endpoints)
        self._channels: dict[str, aio.Channel] = {}
        self._token = ""
        self._authenticating = asyncio.Lock()
        self._streams: set[EtcdStream] = set()
        self._closing: set[asyncio.Task[None]] = set()
        self._is_closed = False

    @property
    def endpoint(self) -> str:
        """Where the next call goes."""
        return self._options.endpoints[self._current]

    def rotate(self, endpoint: str) -> None:
        """Go to the one after this endpoint from now on, unless another call has moved on already."""
        if endpoint == self.endpoint:
            self._current = (self._current + 1) % len(self._options.endpoints)

    def is_open(self) -> bool:
        """Whether `close` has not been called."""
        return not self._is_closed

    async def call(self, method: EtcdMethod, request: Message, *, timeout_s: float) -> Message:
        """The answer of one endpoint. After `EtcdUnreachable` the next call goes to the next one."""
        endpoint = self.endpoint
        try:
            return await self._call_at(endpoint, method, request, timeout_s)
        except EtcdUnreachable:
            self.rotate(endpoint)
            raise

    async def ask(self, method: EtcdMethod, request: Message, *, timeout_s: float, deadline_s: float) -> Message:
        """The answer of any endpoint, for requests that may be repeated. Each attempt has `timeout_s`."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + deadline_s
        while True:
            try:
                return await self.call(method, request, timeout_s=timeout_s)
            except EtcdUnreachable:
                if loop.time() >= deadline:
                    raise
            await self.pause()

    async def pause(self) -> None:
        """Wait between attempts, at random: many nodes have failed at the same time."""
        low, high = _PAUSE_S
        await asyncio.sleep(low + (high - low) * self._entropy.fraction())

    async def status(self, endpoint: str, *, timeout_s: float) -> EtcdMember:
        """What the member at that endpoint says of itself."""
        answer = await self._call_at(endpoint, _STATUS, messages.StatusRequest(), timeout_s)
        return EtcdMember(
            endpoint,
            answer.version,
            answer.leader == answer.header.member_id,
            answer.db_size,
            answer.db_size_in_use,
            answer.db_size_quota,
            tuple(answer.errors),
        )

    async def statuses(self, *, timeout_s: float) -> list[EtcdMember | MetadataUnavailable]:
        """What each member says of itself, or why it does not; in the order of the endpoints."""
        found = await asyncio.gather(
            *(self.status(endpoint, timeout_s=timeout_s) for endpoint in self._options.endpoints),
            return_exceptions=True,
        )
        statuses: list[EtcdMember | MetadataUnavailable] = []
        for each in found:
            if isinstance(each, BaseException) and not isinstance(each, MetadataUnavailable):
                raise each
            statuses.append(each)
        return statuses

    async def watch(self, request: Message, *, timeout_s: float) -> "EtcdStream":
        """A stream of the events that the request asks for, from the current endpoint, which has confirmed it."""
        endpoint = self.endpoint
        metadata = (*await self._credentials(endpoint), ("hasleader", "true"))
        channel = self._connect(endpoint)
        method = channel.stream_stream(
            _WATCH,
            request_serializer=messages.WatchRequest.SerializeToString,
            response_deserializer=messages.WatchResponse.FromString,
        )
        stream = EtcdStream(self, endpoint, channel, method(metadata=metadata))
        self._streams.add(stream)
        try:
            await stream.write(messages.WatchRequest(create=request), timeout_s=timeout_s)
            created = await stream.read(timeout_s=timeout_s)
            if created is None:
                raise EtcdUnreachable(f"etcd at {endpoint} does not answer")
        except _TokenRefused:
            self._forget_token(metadata)
            stream.end()
            raise
        except BaseException:
            stream.end()
            raise
        return stream

    def end_streams(self) -> None:
        """End all streams."""
        for stream in list(self._streams):
            stream.end()

    async def close(self) -> None:
        """End all calls and streams."""
        self._is_closed = True
        self.end_streams()
        channels = list(self._channels.values())
        self._channels.clear()
        for channel in channels:
            await channel.close()
        while self._closing:
            await asyncio.wait(self._closing)

    # Calls

    async def _call_at(self, endpoint: str, method: EtcdMethod, request: Message, timeout_s: float) -> Message:
        """The answer of the endpoint; with a new token if that is what was wrong."""
        metadata = await self._credentials(endpoint)
        try:
            return await self._send(endpoint, method, request, metadata, timeout_s)
        except _TokenRefused:
            self._forget_token(metadata)
        metadata = await self._credentials(endpoint)
        return await self._send(endpoint, method, request, metadata, timeout_s)

    async def _send(
        self,
        endpoint: str,
        method: EtcdMethod,
        request: Message,
        metadata: tuple[tuple[str, str], ...],
        timeout_s: float,
    ) -> Message:
        if self._is_closed:
            raise MetadataUnavailable("this connection to the metadata log is closed")
        channel = self._channels.get(endpoint)
        if channel is None:
            channel = self._channels[endpoint] = self._connect(endpoint)
        method_of_channel = channel.unary_unary(
            method.path,
            request_serializer=type(request).SerializeToString,
            response_deserializer=method.answer.FromString,
        )
        try:
            return await method_of_channel(request, timeout=timeout_s, metadata=metadata)
        except self._aio.AioRpcError as error:
            raise self._explain(endpoint, error) from None
        except asyncio.CancelledError:
            self.check_cancelled_by_caller()
            raise EtcdUnreachable("this connection to the metadata log was closed during a request") from None

    def _explain(self, endpoint: str, error: "aio.AioRpcError") -> MetadataUnavailable:
        return explain(endpoint, error.code().name, error.details() or "")

    @staticmethod
    def check_cancelled_by_caller() -> None:
        """Raise `CancelledError` again if somebody cancels this task: gRPC raises it too when its channel is closed."""
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise asyncio.CancelledError

    def _connect(self, endpoint: str) -> "aio.Channel":
        tls = self._options.tls
        if tls is None:
            channel: aio.Channel = self._aio.insecure_channel(endpoint, options=_CHANNEL_OPTIONS)
            return channel
        import grpc

        credentials = grpc.ssl_channel_credentials(tls.authority, tls.key, tls.certificate)
        return grpc.aio.secure_channel(endpoint, credentials, options=_CHANNEL_OPTIONS)

    # Tokens

    async def _credentials(self, endpoint: str) -> tuple[tuple[str, str], ...]:
        """The metadata of a call. Gets a token if there is a user, and none yet."""
        if not self._options.user:
            return ()
        async with self._authenticating:
            if not self._token:
                request = messages.AuthenticateRequest(name=self._options.user, password=self._options.password)
                answer = await self._send(endpoint, _AUTHENTICATE, request, (), AUTHENTICATE_S)
                self._token = answer.token
        return (("token", self._token),)

    def _forget_token(self, metadata: tuple[tuple[str, str], ...]) -> None:
        """Get a new token at the next call, unless another call has got one meanwhile."""
        if ("token", self._token) in metadata:
            self._token = ""

    def forget_stream(self, stream: "EtcdStream", channel: "aio.Channel") -> None:
        """Close the connection of a stream that has ended."""
        self._streams.discard(stream)
        task = asyncio.get_running_loop().create_task(channel.close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)


class EtcdStream:
    """A watch on one connection. Any error ends it; whoever reads from it makes another one."""

    def __init__(self, client: EtcdClient, endpoint: str, channel: "aio.Channel", call: Any) -> None:
        self.endpoint = endpoint
        self._client = client
        self._channel = channel
        self._call = call
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._reading: asyncio.Future[Message] | None = None

    async def read(self, *, timeout_s: float) -> Message | None:
        """The next answer; None if there is none so far. Raises `MetadataUnavailable` at the end of the stream."""
        if self._reading is None:
            self._reading = asyncio.ensure_future(self._call.read())
        answer = await self._finish(self._reading, timeout_s)
        if answer is None:
            return None
        self._reading = None
        if answer is self._client._aio.EOF:
            raise EtcdUnreachable(f"etcd at {self.endpoint} has ended a watch")
        if answer.canceled:
            reason = answer.cancel_reason or f"history compacted up to revision {answer.compact_revision}"
            raise explain(self.endpoint, "CANCELLED", reason)
        return answer

    async def write(self, request: Message, *, timeout_s: float) -> None:
        """Send a request. Raises `MetadataUnavailable` if the stream does not take it in time."""
        writing: asyncio.Future[bool] = asyncio.ensure_future(self._written(request))
        if not await self._finish(writing, timeout_s):
            self.end()
            raise EtcdUnreachable(f"etcd at {self.endpoint} does not answer")

    async def _written(self, request: Message) -> bool:
        await self._call.write(request)
        return True

    async def ask_progress(self, *, timeout_s: float) -> None:
        """Ask for an answer even if there are no events."""
        await self.write(messages.WatchRequest(progress=messages.WatchProgressRequest()), timeout_s=timeout_s)

    def end(self) -> None:
        """Make every reader stop, now."""
        if not self._ended.done():
            self._ended.set_result(None)
            self._call.cancel()
            if self._reading is not None:
                self._reading.add_done_callback(_retrieved)
            self._client.forget_stream(self, self._channel)

    async def _finish(self, future: "asyncio.Future[T]", timeout_s: float) -> T | None:
        """What the future has in time. A task of its own: gRPC raises `CancelledError` when the stream is ended."""
        waiting: set[Awaitable[object]] = {future, self._ended}
        await asyncio.wait(waiting, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)  # type: ignore[type-var]
        if self._ended.done():
            future.cancel()
            future.add_done_callback(_retrieved)
            raise EtcdUnreachable(f"the watch at {self.endpoint} was ended")
        if not future.done():
            return None
        try:
            return future.result()
        except self._client._aio.AioRpcError as error:
            raise self._client._explain(self.endpoint, error) from None
        except asyncio.CancelledError:
            raise EtcdUnreachable(f"etcd at {self.endpoint} has ended a watch") from None


def _retrieved(future: "asyncio.Future[Any]") -> None:
    """Nobody waits for this one any more; its error is no news."""
    if not future.cancelled():
        future.exception()
