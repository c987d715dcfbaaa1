"""The kinds of values that settings have, seen at those of [traces]."""

import pytest

from goqueue.server.config import ConfigFile, InvalidServerConfig, TraceSettings, load

FILE = """
[traces]
enabled = false
ring = 500
topic = true
jsonl = "/var/log/traces.jsonl"
jsonl_max_bytes = "1MiB"
jsonl_keep = 0
stdout = true
otlp_endpoint = "https://collector.example.com:4318/v1/traces"
"""


def test_traces_are_recorded_and_go_nowhere_unless_told() -> None:
    assert load().traces == TraceSettings(
        enabled=True,
        ring=10_000,
        topic=False,
        jsonl=None,
        jsonl_max_bytes=10 * 1024 * 1024,
        jsonl_keep=10,
        stdout=False,
        otlp_endpoint=None,
    )


def test_all_of_it_can_stand_in_a_file() -> None:
    assert load(file=ConfigFile("goqueue.toml", FILE)).traces == TraceSettings(
        enabled=False,
        ring=500,
        topic=True,
        jsonl="/var/log/traces.jsonl",
        jsonl_max_bytes=1024 * 1024,
        jsonl_keep=0,
        stdout=True,
        otlp_endpoint="https://collector.example.com:4318/v1/traces",
    )


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("true", True),
        ("on", True),
        ("YES", True),
        ("1", True),
        ("false", False),
        ("off", False),
        ("no", False),
        ("0", False),
    ],
)
def test_a_switch_is_on_or_off(text: str, value: bool) -> None:
    assert load(env={"GOQUEUE_TRACES_TOPIC": text}).traces.topic is value


def test_off_is_off_also_where_a_path_or_a_url_could_stand() -> None:
    env = {"GOQUEUE_TRACES_JSONL": "off", "GOQUEUE_TRACES_OTLP_ENDPOINT": "off"}

    assert load(file=ConfigFile("goqueue.toml", FILE), env=env).traces.jsonl is None
    assert load(file=ConfigFile("goqueue.toml", FILE), env=env).traces.otlp_endpoint is None


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("TOPIC", "maybe"),
        ("STDOUT", "2"),
        ("RING", "99"),
        ("RING", "1000001"),
        ("JSONL", "/var/log/"),
        ("JSONL", "a\nb"),
        ("JSONL_MAX_BYTES", "1KiB"),
        ("JSONL_KEEP", "-1"),
        ("OTLP_ENDPOINT", "collector:4318"),
        ("OTLP_ENDPOINT", "ftp://collector"),
        ("OTLP_ENDPOINT", "http://"),
        ("OTLP_ENDPOINT", "http://a b"),
    ],
)
def test_what_makes_no_sense_is_refused(name: str, text: str) -> None:
    with pytest.raises(InvalidServerConfig, match=rf"traces\.{name.lower()} = "):
        load(env={f"GOQUEUE_TRACES_{name}": text})
