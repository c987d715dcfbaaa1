"""Where settings come from, which value wins, and how everything that is wrong is said at once."""

import pytest

from goqueue.clock import MS, SECOND
from goqueue.server.config import (
    SETTINGS,
    VARIABLES,
    ConfigFile,
    InvalidServerConfig,
    ServerConfig,
    load,
    setting_of_keyword,
)
from goqueue.server.settings import Address

FILE = """
data = "/from/the/file"
drain_grace = "5s"
cors_origins = ["https://a.example", "https://b.example"]

[topics]
partitions = 12
retention = "48h"
max_deliveries = 5

[log]
level = "debug"
"""


def toml(text: str) -> ConfigFile:
    return ConfigFile("goqueue.toml", text)


def problems_of(
    *, flags: dict[str, object] | None = None, env: dict[str, str] | None = None, file: str = ""
) -> list[str]:
    with pytest.raises(InvalidServerConfig) as caught:
        load(flags=flags, env=env, file=toml(file))
    return [str(problem) for problem in caught.value.problems]


def test_without_any_source_everything_has_its_default() -> None:
    assert load() == ServerConfig()
    assert {row.source for row in load().describe()} == {"default"}


def test_a_file_sets_what_it_names_and_nothing_else() -> None:
    config = load(file=toml(FILE))

    assert config.data == "/from/the/file"
    assert config.drain_grace_ns == 5 * SECOND
    assert config.cors_origins == ("https://a.example", "https://b.example")
    assert config.topics.partitions == 12
    assert config.topics.settings == {"retention": "48h", "max_deliveries": 5}
    assert config.log.level == "debug"
    assert config.log.format == "auto"
    assert config.native == Address("127.0.0.1", 7000)


def test_a_later_source_wins() -> None:
    file, env, flags = toml('data = "file"\nnode_id = 1'), {"GOQUEUE_DATA": "env", "GOQUEUE_HTTP": "off"}, {"data": "f"}

    assert load(file=file).data == "file"
    assert load(file=file, env=env).data == "env"
    assert load(file=file, env=env, flags=flags).data == "f"
    assert load(file=file, env=env, flags={"data": None}).data == "env"
    assert load(file=file, env=env, flags=flags).node_id == 1
    assert load(file=file, env=env, flags=flags).http is None


def test_every_value_says_where_it_comes_from() -> None:
    config = load(
        file=toml("[limits]\nthreads_max = 4"),
        env={"GOQUEUE_LOG_FORMAT": "json", "GOQUEUE_TOPICS_FLUSH": "interval"},
        flags={"native": "[::1]:0"},
    )

    rows = {row.setting: row for row in config.describe()}

    assert rows["limits.threads_max"] == ("limits.threads_max", 4, "goqueue.toml: limits.threads_max")
    assert rows["log.format"] == ("log.format", "json", "GOQUEUE_LOG_FORMAT")
    assert rows["topics.flush"] == ("topics.flush", "interval", "GOQUEUE_TOPICS_FLUSH")
    assert rows["native"] == ("native", "[::1]:0", "--native")
    assert rows["topics.retention"] == ("topics.retention", "168h", "default")
    assert list(rows) == list(SETTINGS)


def test_what_is_described_can_be_set() -> None:
    described = {row.setting: row.value for row in load(file=toml(FILE)).describe()}

    assert {row.setting: row.value for row in load(flags=described).describe()} == described


@pytest.mark.parametrize(
    ("variable", "text", "setting", "value"),
    [
        ("GOQUEUE_DATA", "/var/lib/goqueue", "data", "/var/lib/goqueue"),
        ("GOQUEUE_NATIVE", "0.0.0.0:7001", "native", Address("0.0.0.0", 7001)),
        ("GOQUEUE_NATIVE", "[fe80::1%eth0]:7001", "native", Address("fe80::1%eth0", 7001)),
        ("GOQUEUE_NATIVE", "broker-1.example.com:0", "native", Address("broker-1.example.com", 0)),
        ("GOQUEUE_HTTP", "off", "http", None),
        ("GOQUEUE_NODE_ID", "3", "node_id", 3),
        (
            "GOQUEUE_CORS_ORIGINS",
            "https://a.example, http://b:8000",
            "cors_origins",
            ("https://a.example", "http://b:8000"),
        ),
        ("GOQUEUE_CORS_ORIGINS", "*", "cors_origins", ("*",)),
        ("GOQUEUE_DRAIN_GRACE", "1m30s", "drain_grace", 90 * SECOND),
        ("GOQUEUE_TOPICS_PARTITIONS", "6", "topics.partitions", 6),
        ("GOQUEUE_TOPICS_MAX_DELIVERIES", "9", "topics.max_deliveries", 9),
        ("GOQUEUE_TOPICS_DIRTY_RATIO", "0.25", "topics.dirty_ratio", 0.25),
        ("GOQUEUE_TOPICS_TTL", "none", "topics.ttl", "none"),
        ("GOQUEUE_LIMITS_CONNECTIONS_MAX", "10", "limits.connections_max", 10),
        ("GOQUEUE_LIMITS_FRAME_BYTES_MAX", "1MiB", "limits.frame_bytes_max", 2**20),
        ("GOQUEUE_LIMITS_FRAME_BYTES_MAX", "1048577", "limits.frame_bytes_max", 2**20 + 1),
        ("GOQUEUE_HOUSEKEEPING_TICK_INTERVAL", "20ms", "housekeeping.tick_interval", 20 * MS),
        ("GOQUEUE_LOG_LEVEL", "WARNING", "log.level", "warning"),
    ],
)
def test_a_variable_is_named_after_its_setting(variable: str, text: str, setting: str, value: object) -> None:
    assert VARIABLES[variable] == setting
    assert SETTINGS[setting].value_in(load(env={variable: text})) == value


def test_a_variable_that_is_empty_is_not_set() -> None:
    assert load(env={"GOQUEUE_HTTP": "", "GOQUEUE_NODE_ID": ""}) == ServerConfig()


def test_keywords_name_settings_with_underscores() -> None:
    assert setting_of_keyword("topics_partitions") == "topics.partitions"
    assert setting_of_keyword("node_id") == "node_id"
    assert setting_of_keyword("nonsense") == "nonsense"


@pytest.mark.parametrize(
    "text", ["7000", ":7000", "localhost", "localhost:", "a b:1", "::1:7000", "h:65536", "h:-1", "off"]
)
def test_what_is_no_address_is_refused(text: str) -> None:
    (problem,) = problems_of(flags={"native": text})

    assert problem == f"native = {text!r} (--native): must be HOST:PORT, such as 127.0.0.1:7000 or [::1]:7000"


@pytest.mark.parametrize(
    ("file", "problem"),
    [
        ("node_id = -1", "node_id = -1 (goqueue.toml: node_id): must be a whole number from 0 to 65535"),
        ("node_id = true", "node_id = True (goqueue.toml: node_id): must be a whole number from 0 to 65535"),
        ("node_id = 1.0", "node_id = 1.0 (goqueue.toml: node_id): must be a whole number from 0 to 65535"),
        (
            "drain_grace = 10",
            "drain_grace = 10 (goqueue.toml: drain_grace): must be a duration from 0s to 1h, such as ",
        ),
        ("drain_grace = '2h'", "drain_grace = '2h' (goqueue.toml: drain_grace): must be a duration from 0s to 1h"),
        (
            "cors_origins = ['example.com']",
            "cors_origins = ['example.com'] (goqueue.toml: cors_origins): must be origins",
        ),
        (
            "cors_origins = 3",
            "cors_origins = 3 (goqueue.toml: cors_origins): must be origins such as https://app.example",
        ),
        ("data = ''", "data = '' (goqueue.toml: data): must be the path of a directory"),
        (
            "[limits]\nframe_bytes_max = '1GB'",
            "limits.frame_bytes_max = '1GB' (goqueue.toml: limits.frame_bytes_max): must",
        ),
        (
            "[limits]\nframe_bytes_max = 1",
            "limits.frame_bytes_max = 1 (goqueue.toml: limits.frame_bytes_max): must be a s",
        ),
        ("[log]\nformat = 'xml'", "log.format = 'xml' (goqueue.toml: log.format): must be one of auto, text, json"),
        (
            "[topics]\nretention = 7",
            "topics.retention = 7 (goqueue.toml: topics.retention): must be text like 250ms, 30s",
        ),
        (
            "[topics]\nflush = 'often'",
            "topics.flush = 'often' (goqueue.toml: topics.flush): must be one of group interval",
        ),
        ("nodeid = 1", "nodeid = 1 (goqueue.toml: nodeid): there is no such setting; did you mean node_id?"),
        ("level = 'info'", "level = 'info' (goqueue.toml: level): there is no such setting; did you mean log.level?"),
        (
            "[log]\nlevl = 'x'",
            "log.levl = 'x' (goqueue.toml: log.levl): there is no such setting; did you mean log.level?",
        ),
        (
            "[logs]\nlevel = 'x'",
            "logs = {'level': 'x'} (goqueue.toml: logs): there is no such setting; did you mean log?",
        ),
        ("log = 'x'", "log = 'x' (goqueue.toml: log): there is no such setting"),
        ("zzz = 1", "zzz = 1 (goqueue.toml: zzz): there is no such setting"),
        (
            "data = ",
            "file = 'goqueue.toml' (--config or GOQUEUE_CONFIG): is not TOML: Invalid value (at end of document)",
        ),
    ],
)
def test_what_is_wrong_names_setting_value_source_and_what_is_allowed(file: str, problem: str) -> None:
    (found,) = problems_of(file=file)

    assert found.startswith(problem)


def test_everything_that_is_wrong_is_said_at_once() -> None:
    with pytest.raises(InvalidServerConfig) as caught:
        load(
            flags={"native": "off"},
            env={"GOQUEUE_NODE_ID": "one", "GOQUEUE_LIMITS_THREADS_MAX": "0"},
            file=toml('[log]\nlevel = "loud"\ncolour = "red"'),
        )

    first, *rest = str(caught.value).splitlines()
    assert first == "the configuration has 5 errors"
    assert [line.split(" = ")[0].strip() for line in rest] == [
        "log.colour",
        "log.level",
        "node_id",
        "limits.threads_max",
        "native",
    ]


def test_a_bad_value_that_another_one_replaces_does_no_harm() -> None:
    assert load(file=toml("node_id = -1"), env={"GOQUEUE_NODE_ID": "4"}).node_id == 4


def test_two_doors_do_not_share_an_address() -> None:
    assert problems_of(flags={"http": "127.0.0.1:7000"}) == [
        "http = '127.0.0.1:7000' (--http): must not be the address of native"
    ]
    assert problems_of(flags={"native": "127.0.0.1:8080"})[0].startswith("http = '127.0.0.1:8080' (--native)")
    assert load(flags={"native": "127.0.0.1:0", "http": "127.0.0.1:0"}).http == Address("127.0.0.1", 0)


def test_a_flush_never_waits_for_compactions_alone() -> None:
    (problem,) = problems_of(env={"GOQUEUE_LIMITS_COMPACTIONS_MAX": "8"})

    assert problem == (
        "limits.compactions_max = 8 (GOQUEUE_LIMITS_COMPACTIONS_MAX): "
        "must be below limits.threads_max, so that a flush always finds a thread"
    )
    assert load(env={"GOQUEUE_LIMITS_COMPACTIONS_MAX": "8", "GOQUEUE_LIMITS_THREADS_MAX": "9"})


def test_variables_that_look_like_a_slip_are_warned_of_and_all_others_left_alone() -> None:
    env = {
        "GOQUEUE_LOG_LEVL": "debug",
        "GOQUEUE_SERVER": "localhost:7000",
        "GOQUEUE_API_KEY": "gq_",
        "GOQUEUE_KERNEL": "python",
        "GOQUEUE_CONFIG": "x",
        "GOQUEUE_PORT": "tcp://10.0.0.1:7000",
        "GOQUEUE_SERVICE_HOST": "10.0.0.1",
        "GOQUEUE_PORT_7000_TCP_ADDR": "10.0.0.1",
        "PATH": "/bin",
    }

    config = load(env=env)

    assert config == ServerConfig()
    assert config.warnings == ("GOQUEUE_LOG_LEVL is no setting of the server; did you mean GOQUEUE_LOG_LEVEL?",)
