"""`goqueue schedule`, end to end."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from goqueue import Client
from goqueue.testing import EmbeddedBroker
from tests.cli.command_line import fail, succeed, tidied

CREATE = ("schedule", "create", "reports")


@pytest.fixture
def client(broker: EmbeddedBroker) -> Iterator[Client]:
    """A client of a broker with an empty topic `reports` of one partition."""
    with Client(broker.address) as client, tidied(client):
        client.create_topic("reports", partitions=1)
        yield client


def test_a_schedule_from_its_creation_to_its_end(server: str, client: Client) -> None:
    daily = ("--cron", "0 9 * * MON-FRI", "--timezone", "Europe/Berlin")
    created = succeed(*CREATE, "daily", *daily, "--value", "go", "--catch-up", "once", server=server)
    assert created.startswith("schedule daily of reports runs next at ")

    (listed,) = json.loads(succeed("schedule", "list", "reports", "-o", "json", server=server))
    assert (listed["name"], listed["cron"], listed["timezone"]) == ("daily", "0 9 * * MON-FRI", "Europe/Berlin")
    assert (listed["catch_up"], listed["paused"], listed["runs"]) == ("once", False, 0)
    assert "every" not in listed
    assert "0 9 * * MON-FRI" in succeed("schedule", "list", "reports", server=server)

    paused = succeed("schedule", "pause", "reports", "daily", server=server)
    assert paused == "schedule daily of reports is paused\n"
    assert "paused" in succeed("schedule", "list", "reports", server=server)
    resumed = succeed("schedule", "resume", "reports", "daily", server=server)
    assert resumed == created

    deleted = succeed("schedule", "delete", "reports", "daily", server=server)
    assert deleted == "schedule daily of reports is deleted\n"
    assert succeed("schedule", "list", "reports", server=server) == "reports has no schedules\n"


def test_a_run_out_of_turn_publishes_the_message_as_it_was_given(server: str, client: Client) -> None:
    message = ("--value", "go", "-k", "me", "-H", "source=cron", "--priority", "high", "--ttl", "1h")
    succeed(*CREATE, "daily", "--every", "15m", *message, server=server)
    assert "it has not run yet" in succeed("schedule", "describe", "reports", "daily", server=server)

    ran = succeed("schedule", "run", "reports", "daily", server=server)

    assert ran == "schedule daily of reports has published its message\n"
    (published,) = client.read("reports")
    assert (published.value, published.key, published.priority.name) == (b"go", b"me", "HIGH")
    assert published.headers == {"source": "cron"}
    assert published.expires_at is not None
    assert published.expires_at > published.timestamp
    described = yaml.safe_load(succeed("schedule", "describe", "reports", "daily", "-o", "yaml", server=server))
    (run,) = described["history"]
    assert (run["partition"], run["offset"], described["runs"]) == (0, 0, 1)
    assert run["published_at"].endswith("Z")
    assert described["every"] == "15m"
    assert "every 15m" in succeed("schedule", "describe", "reports", "daily", server=server)


def test_the_message_comes_from_a_file_or_a_pipe_as_it_is(server: str, client: Client, tmp_path: Path) -> None:
    (tmp_path / "message").write_bytes(b"\xff\x00 two\nlines\n")

    succeed(*CREATE, "file", "--every", "1h", "--value-file", f"{tmp_path}/message", server=server)
    succeed(*CREATE, "pipe", "--every", "1h", "--value-file", "-", server=server, stdin=b"piped\n")
    for name in ("file", "pipe"):
        succeed("schedule", "run", "reports", name, server=server)

    assert [message.value for message in client.read("reports")] == [b"\xff\x00 two\nlines\n", b"piped\n"]


def test_a_schedule_may_begin_paused(server: str) -> None:
    made = succeed(*CREATE, "daily", "--every", "1h", "--value", "x", "--paused", server=server)

    assert made == "schedule daily of reports is paused\n"
    assert json.loads(succeed("schedule", "list", "reports", "-o", "json", server=server))[0]["paused"] is True


def test_a_schedule_has_a_start_and_an_end(server: str) -> None:
    midnight = ("--cron", "0 0 * * *", "--start", "2199-12-31T23:30:00Z", "--value", "x", "-o", "json")
    once = json.loads(succeed(*CREATE, "once", *midnight, "--end", "2200-01-01T12:00:00Z", server=server))
    never = json.loads(succeed(*CREATE, "never", *midnight, "--end", "2199-12-31T23:45:00Z", server=server))

    assert once["next_at"] == "2200-01-01T00:00:00.000000000Z"
    assert never["next_at"] is None
    resumed = succeed("schedule", "resume", "reports", "never", server=server)
    assert resumed == "schedule never of reports will not run any more\n"


@pytest.mark.parametrize(
    ("arguments", "code", "complaint"),
    [
        (("list", "nothing"), 1, "error topic not found: nothing"),
        (("describe", "reports", "nothing"), 1, "error not found: schedule nothing"),
        (("pause", "reports", "nothing"), 1, "error not found: schedule nothing"),
        (("resume", "reports", "nothing"), 1, "error not found: schedule nothing"),
        (("run", "reports", "nothing"), 1, "error not found: schedule nothing"),
        (("delete", "reports", "nothing"), 1, "error not found: schedule nothing"),
        (("create", "nothing", "n", "--every", "1m", "--value", "x"), 1, "error topic not found: nothing"),
        (("create", "reports", "n", "--cron", "99 * * * *", "--value", "x"), 1, "error invalid cron '99 * * * *'"),
        (("create", "reports", "n", "--every", "1ns", "--value", "x"), 1, "error invalid every"),
        (
            ("create", "reports", "n", "--cron", "@daily", "--timezone", "Mars/X", "--value", "x"),
            1,
            "error invalid timezone 'Mars/X'",
        ),
        (("create", "reports", "n", "--every", "1m", "--value", "x", "--priority", "urgent"), 1, "error invalid prio"),
        (("create", "reports", "n", "--every", "1m", "--value", "x", "-p", "7"), 1, "error partition not found"),
        (("create", "reports", "n", "--every", "often", "--value", "x"), 2, "'often' is not a duration"),
        (("create", "reports", "n", "--value", "x"), 2, "give either --cron or --every"),
        (("create", "reports", "n", "--cron", "@daily", "--every", "1m", "--value", "x"), 2, "give either --cron or"),
        (("create", "reports", "n", "--every", "1m"), 2, "give either --value or --value-file"),
        (("create", "reports", "n", "--every", "1m", "--timezone", "UTC", "--value", "x"), 2, "only --cron has a time"),
        (("create", "reports", "n", "--every", "1m", "--value-file", "/no/such"), 2, "/no/such: No such file"),
        (("create", "reports", "n", "--cron", "@daily", "--catch-up", "some", "--value", "x"), 2, "'some' is not one"),
    ],
)
def test_what_goes_wrong_is_said_in_one_line(
    server: str, arguments: tuple[str, ...], code: int, complaint: str
) -> None:
    found_code, found = fail("schedule", *arguments, server=server)

    assert found_code == code
    assert complaint in found if code == 2 else found.startswith(complaint)


def test_a_name_is_taken_once(server: str) -> None:
    succeed(*CREATE, "daily", "--every", "1h", "--value", "x", server=server)

    code, complaint = fail(*CREATE, "daily", "--every", "2h", "--value", "y", server=server)

    assert (code, complaint) == (1, "error schedule already exists: daily")
