"""`goqueue serve --show-config` and `--help`; the server itself is tested in tests/server."""

import json

import yaml

from tests.cli.command_line import fail, goqueue, succeed


def test_show_config_lists_every_setting_with_its_value_and_source() -> None:
    result = goqueue("serve", "--show-config", "--data", "/var/lib/gq", env={"GOQUEUE_LOG_LEVEL": "debug"})

    rows = [line.split() for line in result.stdout.decode().splitlines()]
    assert ["data", "/var/lib/gq", "--data"] in rows
    assert ["log.level", "debug", "GOQUEUE_LOG_LEVEL"] in rows
    assert ["native", "127.0.0.1:7000", "default"] in rows
    assert ["topics.retention", "168h", "default"] in rows


def test_show_config_speaks_json_and_yaml() -> None:
    from_json = json.loads(succeed("serve", "--show-config", "-o", "json", "--http", "off"))
    from_yaml = yaml.safe_load(succeed("serve", "--show-config", "-o", "yaml", "--http", "off"))

    assert from_json == from_yaml
    assert {"setting": "http", "value": "off", "source": "--http"} in from_json


def test_help_lists_the_exit_codes() -> None:
    help_text = " ".join(succeed("serve", "--help").split())

    for code in (
        "0 stopped",
        "1 failed",
        "2 the configuration",
        "3 stored data",
        "4 the data directory",
        "5 an address",
    ):
        assert code in help_text


def test_a_flag_that_does_not_exist_is_refused() -> None:
    code, complaint = fail("serve", "--prot", "1")

    assert code == 2
    assert "No such option" in complaint
