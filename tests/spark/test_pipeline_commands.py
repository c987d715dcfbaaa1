"""The commands that need Spark, in the session that all tests share."""

import json
from pathlib import Path
from typing import Any

import pytest

from goqueue.client.sync import Client
from goqueue.testing import EmbeddedBroker
from tests.cli.command_line import run

pytestmark = pytest.mark.usefixtures("spark")


@pytest.fixture
def server(broker: EmbeddedBroker, client: Client) -> str:
    client.create_topic("orders", partitions=2)
    client.create_topic("again", partitions=2)
    client.publish_many("orders", [(f"key-{number % 5}", f"value {number}") for number in range(40)])
    return broker.address


def succeed(*arguments: str, server: str) -> str:
    outcome = run("pipeline", *arguments, server=server)
    assert outcome.code == 0, outcome.complaint
    return outcome.output.decode()


def data(*arguments: str, server: str) -> Any:
    return json.loads(succeed(*arguments, "-o", "json", server=server))


def test_a_topic_is_archived_verified_and_merged(server: str, client: Client, tmp_path: Path) -> None:
    directory = str(tmp_path / "archive")

    shown = succeed("archive", "orders", directory, server=server)
    client.publish("orders", "more")
    again = data("archive", "orders", directory, server=server)
    same = succeed("archive", "orders", directory, "--verify", server=server)
    merged = data("archive", "orders", directory, "--merge", server=server)
    (file,) = Path(directory).glob("date=*/*.parquet")
    file.unlink()
    bad = run("pipeline", "archive", "orders", directory, "--verify", server=server)

    assert "archived   40 messages in 1 commit" in shown
    assert (again["messages"], again["archived_messages"]) == (1, 41)
    assert "archive and topic are identical" in same
    assert merged == {"merged_files": 2}
    assert bad.code == 3
    assert "error the archive is damaged" in bad.complaint
    assert "Traceback" not in bad.complaint


def test_messages_are_replayed_after_they_were_counted(server: str, client: Client, tmp_path: Path) -> None:
    asked = ("replay", "again", "--topic", "orders", "--key", "key-1", "--key", "key-2", "--state", str(tmp_path))

    counted = succeed(*asked, "--dry-run", server=server)
    first = data(*asked, server=server)
    second = succeed(*asked, server=server)

    assert counted == "16 messages out of 40 offsets of orders would be published to again\n"
    assert first["messages"] == 16
    assert "0, and 16 in earlier runs" in second
    assert len(list(client.read("again"))) == 16


def test_a_topic_is_compacted(server: str, client: Client, tmp_path: Path) -> None:
    done = data("compact", "--topic", "orders", "--to", str(tmp_path / "now"), server=server)

    assert (done["messages"], done["looked_at"]) == (5, 40)


def test_the_same_command_does_its_work_again_where_there_is_other_work(
    server: str, client: Client, tmp_path: Path
) -> None:
    compact = ("compact", "--topic", "orders", "--to-topic", "again", "--state", str(tmp_path))
    assert data(*compact, server=server)["messages"] == 5
    assert "0, and 5 in earlier runs" in succeed(*compact, server=server)
    client.publish("orders", "more", key="another")
    assert data(*compact, server=server)["messages"] == 6

    replay = ("replay", "again", "--topic", "orders", "--state", str(tmp_path))
    assert data(*replay, server=server)["messages"] == 41
    client.delete_topic("again")
    client.create_topic("again", partitions=2)
    assert data(*replay, server=server)["messages"] == 41
    assert len(list(client.read("again"))) == 41


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("replay", "again", "--topic", "orders", "--where", "nothing = 1"), "error replay: "),
        (("replay", "again", "--topic", "orders", "--where", "SELECT FROM"), "error replay: "),
        (("archive", "orders", "{directory}", "--compression", "origami"), "error archive: "),
        (("archive", "orders", "{directory}", "--verify"), "holds no archive"),
        (("replay", "again", "--archive", "{directory}"), "holds no archive"),
        (("archive", "orders", "s3a://bucket/orders"), "error directory = 's3a://bucket/orders'"),
    ],
)
def test_what_goes_wrong_in_spark_is_said_in_one_line(
    server: str, tmp_path: Path, arguments: tuple[str, ...], reason: str
) -> None:
    given = [text.format(directory=tmp_path / "archive") for text in arguments]

    outcome = run("pipeline", *given, server=server)

    (line,) = [one for one in outcome.complaint.splitlines() if one.startswith("error ")]
    assert outcome.code == 1
    assert reason in line
    assert len(line) < 500
    assert "Traceback" not in outcome.complaint
