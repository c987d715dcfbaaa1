"""The configuration of a server: its settings, where they come from, and their validation.

Each field below is a setting. All its names follow from one:

    drain_grace     GOQUEUE_DRAIN_GRACE    drain_grace = "10s"            outside of sections
    log.level       GOQUEUE_LOG_LEVEL      level = "info" under [log]     --log-level, where there is a flag

In rising precedence a value is the default, or comes from the file, the environment, or a flag. `load` uses only what
it is given, and reports all errors at once. An unknown setting in the file is an error. An unknown variable may belong
to another program: it causes a warning if it looks like a misspelled setting.
"""

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Annotated, Any, NamedTuple, get_type_hints

from goqueue.clock import MS, SECOND
from goqueue.errors import GoQueueError
from goqueue.server.settings import (
    Address,
    Directory,
    Duration,
    FilePath,
    HostPort,
    Kind,
    LogLocation,
    MetadataLocation,
    OneOf,
    Origins,
    Rack,
    Secret,
    Size,
    Switch,
    TopicSetting,
    Url,
    WholeNumber,
)
from goqueue.topics.config import PARTITIONS_MAX, TopicConfig
from goqueue.tracing.config import RING_MAX
from goqueue.wire.frames import FRAME_BYTES_MAX

NATIVE_ADDRESS = Address("127.0.0.1", 7000)
HTTP_ADDRESS = Address("127.0.0.1", 8080)
PEER_ADDRESS = Address("127.0.0.1", 7001)
ENVIRONMENT_PREFIX = "GOQUEUE_"
NOT_OURS = frozenset(
    {
        "GOQUEUE_API_KEY",
        "GOQUEUE_BUSY_POLL",
        "GOQUEUE_CONFIG",
        "GOQUEUE_KERNEL",
        "GOQUEUE_SERVER",
        "GOQUEUE_TELEMETRY",
    }
)
_DEFAULT = "default"
_ALIKE = 0.8
KIB = 1024
MIB = 1024 * KIB


class Problem(NamedTuple):
    """One error in the configuration."""

    setting: str
    value: object
    source: str
    reason: str

    def __str__(self) -> str:
        return f"{self.setting} = {self.value!r} ({self.source}): {self.reason}"


class InvalidServerConfig(GoQueueError):
    """The configuration is invalid; `problems` has all errors."""

    code = "INVALID_CONFIG"

    def __init__(self, problems: list[Problem]) -> None:
        count = "1 error" if len(problems) == 1 else f"{len(problems)} errors"
        super().__init__("\n  ".join([f"the configuration has {count}", *map(str, problems)]))
        self.problems = problems


class ConfigFile(NamedTuple):
    """A configuration file."""

    path: str
    text: str


class SettingRow(NamedTuple):
    """One setting with its value."""

    setting: str
    value: object
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicDefaults:
    """[topics]: the defaults of topics that do not set these explicitly."""

    partitions: Annotated[int, WholeNumber(1, PARTITIONS_MAX)] = 3
    settings: Mapping[str, object] = field(default_factory=dict)  # those of topics/config.py, by their names


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitSettings:
    """[limits]: bounds on the memory, the threads and the files of the process."""

    connections_max: Annotated[int, WholeNumber(1, 1_000_000)] = 10_000  # at each door
    requests_max: Annotated[int, WholeNumber(1, 1_000_000)] = 1_024  # in flight per native connection
    frame_bytes_max: Annotated[int, Size(64 * KIB, 1024 * MIB)] = FRAME_BYTES_MAX
    inbound_bytes_max: Annotated[int, Size(MIB, 1024**2 * MIB)] = 256 * MIB  # of native frames that are being received
    bodies_bytes_max: Annotated[int, Size(MIB, 1024**2 * MIB)] = 512 * MIB  # of HTTP bodies that are being received
    streams_max: Annotated[int, WholeNumber(1, 1_000_000)] = 1_000  # over HTTP
    waiting_max: Annotated[int, WholeNumber(1, 10_000_000)] = 100_000  # reads that long-poll
    compactions_max: Annotated[int, WholeNumber(1, 64)] = 1  # at once; each reads and writes whole segments
    threads_max: Annotated[int, WholeNumber(2, 256)] = 8  # for work that blocks; most of them wait for the disk


@dataclass(frozen=True, slots=True, kw_only=True)
class HousekeepingSettings:
    """[housekeeping]: how often the broker checks its timers, how often each partition checks its segments, and for how
    long the broker busy-polls its sockets before it sleeps.
    """

    tick_interval_ns: Annotated[int, Duration(MS, SECOND)] = 50 * MS
    maintenance_interval_ns: Annotated[int, Duration(100 * MS, 3600 * SECOND)] = 30 * SECOND
    busy_poll_ns: Annotated[int, Duration(0, 10 * MS)] = MS // 2  # 0 disables busy-polling


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSettings:
    """[log]: the log of the server. `auto` is text on a terminal and JSON elsewhere."""

    level: Annotated[str, OneOf("debug", "info", "warning", "error")] = "info"
    format: Annotated[str, OneOf("auto", "text", "json")] = "auto"


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceSettings:
    """[traces]: whether the life of messages is recorded, and where it is exported to."""

    enabled: Annotated[bool, Switch()] = True
    ring: Annotated[int, WholeNumber(100, RING_MAX)] = 10_000  # rows; one row describes a batch
    topic: Annotated[bool, Switch()] = False  # also write to `__traces`, which survives a restart
    jsonl: Annotated[str | None, FilePath()] = None
    jsonl_max_bytes: Annotated[int, Size(64 * KIB, 1024 * MIB)] = 10 * MIB  # then the next file begins
    jsonl_keep: Annotated[int, WholeNumber(0, 10_000)] = 10  # old files, without the current one
    stdout: Annotated[bool, Switch()] = False
    otlp_endpoint: Annotated[str | None, Url()] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSettings:
    """[cluster]: how this node and the other nodes of its cluster reach each other. Only with `metadata`.

    What is advertised is what others use; `off` is the address that the node listens on. With certificates, a node
    speaks only with nodes that have one of the same authority.
    """

    peer: Annotated[Address, HostPort()] = PEER_ADDRESS
    advertised_peer: Annotated[Address | None, HostPort(can_be_off=True)] = None
    advertised_native: Annotated[Address | None, HostPort(can_be_off=True)] = None
    advertised_http: Annotated[Address | None, HostPort(can_be_off=True)] = None
    rack: Annotated[str, Rack()] = ""
    replication_factor: Annotated[int, WholeNumber(1, 64)] = 1  # of topics that are created without one
    disk_replaced: Annotated[bool, Switch()] = False  # an operator says so, for one start
    ca_file: Annotated[str | None, FilePath()] = None
    cert_file: Annotated[str | None, FilePath()] = None
    key_file: Annotated[str | None, FilePath()] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EtcdSettings:
    """[etcd]: how to reach etcd, if that is where the metadata log is. With `ca_file` over TLS."""

    ca_file: Annotated[str | None, FilePath()] = None
    cert_file: Annotated[str | None, FilePath()] = None
    key_file: Annotated[str | None, FilePath()] = None
    user: Annotated[str, Secret()] = ""
    password: Annotated[str, Secret()] = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """All settings, and the source of each value."""

    data: Annotated[str, Directory()] = "./goqueue-data"
    native: Annotated[Address, HostPort()] = NATIVE_ADDRESS
    http: Annotated[Address | None, HostPort(can_be_off=True)] = HTTP_ADDRESS
    node_id: Annotated[int, WholeNumber(0, 65_535)] = 0
    cors_origins: Annotated[tuple[str, ...], Origins()] = ()
    drain_grace_ns: Annotated[int, Duration(0, 3600 * SECOND)] = 10 * SECOND  # then connections are cut
    metadata: Annotated[MetadataLocation | None, LogLocation()] = None  # off: this node is in no cluster
    topics: TopicDefaults = field(default_factory=TopicDefaults)
    limits: LimitSettings = field(default_factory=LimitSettings)
    housekeeping: HousekeepingSettings = field(default_factory=HousekeepingSettings)
    log: LogSettings = field(default_factory=LogSettings)
    traces: TraceSettings = field(default_factory=TraceSettings)
    cluster: ClusterSettings = field(default_factory=ClusterSettings)
    etcd: EtcdSettings = field(default_factory=EtcdSettings)

    sources: Mapping[str, str] = field(default_factory=dict, compare=False)
    warnings: tuple[str, ...] = field(default=(), compare=False)

    def describe(self) -> list[SettingRow]:
        """Every setting with its value and its source."""
        return [
            SettingRow(name, setting.kind.show(setting.value_in(self)), self.sources.get(name, _DEFAULT))
            for name, setting in SETTINGS.items()
        ]


SECTIONS = {
    "topics": TopicDefaults,
    "limits": LimitSettings,
    "housekeeping": HousekeepingSettings,
    "log": LogSettings,
    "traces": TraceSettings,
    "cluster": ClusterSettings,
    "etcd": EtcdSettings,
}


class _SettingField(NamedTuple):
    """The place of a setting in a `ServerConfig`."""

    section: str  # "": none
    field_name: str
    kind: Kind
    is_topic_setting: bool = False

    def value_in(self, config: ServerConfig) -> object:
        if self.is_topic_setting:
            return config.topics.settings.get(self.field_name, _TOPIC_DEFAULTS[self.field_name])
        return getattr(getattr(config, self.section) if self.section else config, self.field_name)


_TOPIC_DEFAULTS = TopicConfig().settings()


def _settings() -> Iterator[tuple[str, _SettingField]]:
    for section, owner in {"": ServerConfig, **SECTIONS}.items():
        for field_name, hint in get_type_hints(owner, include_extras=True).items():
            for kind in getattr(hint, "__metadata__", ()):
                name = field_name.removesuffix("_ns")  # the text of a duration has its unit
                yield f"{section}.{name}" if section else name, _SettingField(section, field_name, kind)
        if owner is TopicDefaults:
            for name in _TOPIC_DEFAULTS:
                yield f"{section}.{name}", _SettingField(section, name, TopicSetting(name), is_topic_setting=True)


SETTINGS: Mapping[str, _SettingField] = dict(_settings())
VARIABLES: Mapping[str, str] = {ENVIRONMENT_PREFIX + name.replace(".", "_").upper(): name for name in SETTINGS}
assert len(VARIABLES) == len(SETTINGS), "two settings share a variable"


def setting_of_keyword(name: str) -> str:
    """The name of a setting from a keyword, which cannot have a dot; an unknown one is returned as it is."""
    return VARIABLES.get(ENVIRONMENT_PREFIX + name.upper(), name)


class _RawSetting(NamedTuple):
    """A value that is not parsed yet."""

    raw: object
    source: str


def load(
    *,
    flags: Mapping[str, object] | None = None,
    env: Mapping[str, str] | None = None,
    file: ConfigFile | None = None,
) -> ServerConfig:
    """The configuration from these sources. Raises `InvalidServerConfig`. A flag of None was not given."""
    problems: list[Problem] = []
    given: dict[str, _RawSetting] = {}
    if file:
        given |= _from_file(file, problems)
    given |= _from_environment(env or {})
    given |= _from_flags(flags or {}, problems)
    values = _parse(given, problems)
    if problems:
        raise InvalidServerConfig(problems)
    config = _build(values, {name: given[name].source for name in values}, tuple(_slips(env or {})))
    if contradictions := list(_contradictions(config)):
        raise InvalidServerConfig(contradictions)
    return config


def _from_file(file: ConfigFile, problems: list[Problem]) -> dict[str, _RawSetting]:
    try:
        content = tomllib.loads(file.text)
    except tomllib.TOMLDecodeError as error:
        problems.append(Problem("file", file.path, "--config or GOQUEUE_CONFIG", f"is not TOML: {error}"))
        return {}
    given = {}
    for key, value in content.items():
        if key in SECTIONS and isinstance(value, dict):
            entries = {f"{key}.{inner}": inner_value for inner, inner_value in value.items()}
        else:
            entries = {key: value}
        for name, raw in entries.items():
            source = f"{file.path}: {name}"
            if name in SETTINGS:
                given[name] = _RawSetting(raw, source)
            else:
                problems.append(Problem(name, raw, source, _no_such_setting(name)))
    return given


def _from_environment(env: Mapping[str, str]) -> dict[str, _RawSetting]:
    """An empty variable counts as not set."""
    return {VARIABLES[name]: _RawSetting(value, name) for name, value in env.items() if name in VARIABLES and value}


def _from_flags(flags: Mapping[str, object], problems: list[Problem]) -> dict[str, _RawSetting]:
    given = {}
    for name, raw in flags.items():
        source = f"--{name.replace('.', '-').replace('_', '-')}"
        if raw is not None and name in SETTINGS:
            given[name] = _RawSetting(raw, source)
        elif raw is not None:
            problems.append(Problem(name, raw, source, _no_such_setting(name)))
    return given


def _parse(given: Mapping[str, _RawSetting], problems: list[Problem]) -> dict[str, object]:
    values = {}
    for name, (raw, source) in given.items():
        try:
            values[name] = SETTINGS[name].kind.parse(raw)
        except ValueError as error:
            problems.append(Problem(name, raw, source, str(error)))
    return values


def _build(values: Mapping[str, object], sources: Mapping[str, str], warnings: tuple[str, ...]) -> ServerConfig:
    sections: dict[str, dict[str, Any]] = {"": {}, **{name: {} for name in SECTIONS}}
    topic_settings = {}
    for name, value in values.items():
        setting = SETTINGS[name]
        if setting.is_topic_setting:
            topic_settings[setting.field_name] = value
        else:
            sections[setting.section][setting.field_name] = value
    sections["topics"]["settings"] = topic_settings
    owners = {name: owner(**sections[name]) for name, owner in SECTIONS.items()}
    return ServerConfig(**sections[""], **owners, sources=sources, warnings=warnings)


def _contradictions(config: ServerConfig) -> Iterator[Problem]:
    """Errors between settings that are valid by themselves."""

    def source(*names: str) -> str:
        return next(config.sources[name] for name in names if name in config.sources)

    if config.http == config.native and config.native.port:
        yield Problem("http", str(config.http), source("http", "native"), "must not be the address of native")
    for section, files in (("cluster", config.cluster), ("etcd", config.etcd)):
        if (files.cert_file is None) != (files.key_file is None):
            names = (f"{section}.cert_file", f"{section}.key_file")
            yield Problem(names[0], files.cert_file, source(*names), f"needs {names[1]}, and the other way round")
        elif files.cert_file and not files.ca_file:
            name = f"{section}.cert_file"
            yield Problem(name, files.cert_file, source(name), f"needs {section}.ca_file, to know the other side by")
    if config.limits.compactions_max >= config.limits.threads_max:
        name, other = "limits.compactions_max", "limits.threads_max"
        reason = f"must be below {other}, so that a flush always finds a thread"
        yield Problem(name, config.limits.compactions_max, source(name, other), reason)


def _slips(env: Mapping[str, str]) -> Iterator[str]:
    for name in sorted(env):
        is_unknown = name.startswith(ENVIRONMENT_PREFIX) and name not in NOT_OURS and name not in VARIABLES
        if is_unknown and (alike := get_close_matches(name, VARIABLES, n=1, cutoff=_ALIKE)):
            yield f"{name} is no setting of the server; did you mean {alike[0]}?"


def _no_such_setting(name: str) -> str:
    known = [*SETTINGS, *SECTIONS]
    key = name.rpartition(".")[2]
    alike = get_close_matches(name, known, n=1) or [other for other in known if other.rpartition(".")[2] == key]
    return f"there is no such setting{f'; did you mean {alike[0]}?' if alike else ''}"
