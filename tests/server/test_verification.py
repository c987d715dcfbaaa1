"""`goqueue log verify`: whatever directory it is given, every file in it is checked and none is changed."""

from collections.abc import Callable

import pytest

from goqueue.clock import SECOND
from goqueue.server.verification import is_in_use, verify
from goqueue.service.new_message import NewMessage
from goqueue.testing import ManualClock, MemoryDisk
from tests.broker.brokers import ROOT, Node
from tests.broker.consumers import Consumer
from tests.broker.transactional import Owner

TOPIC = f"{ROOT}/topics/orders"


@pytest.fixture
def furnished(disk: MemoryDisk, clock: ManualClock) -> MemoryDisk:
    """The disk of a broker that was stopped, with every kind of file on it."""
    node = Node(disk, clock)
    node.create(cleanup="compact", segment_bytes=4096)
    node.publish(*(b"x" * 3000 for _ in range(8)))
    node.messages(NewMessage(b"later", key=b"k", deliver_at_ns=clock.wall_ns() + 60 * SECOND))
    consumer = Consumer(node)
    consumer.ack(consumer.poll(2))
    owner = Owner(node)
    owner.begin()
    owner.publish(b"never")
    owner.abort()
    node.workers.run_all()
    node.broker.close()
    return disk


def damaged(disk: MemoryDisk, path: str = ROOT) -> list[str]:
    return [report.path for report in verify(disk, path) if not report.is_sound]


def test_a_sound_data_directory_is_sound_file_by_file(furnished: MemoryDisk) -> None:
    before = {path: furnished.read(path) for path in furnished.paths()}

    reports = list(verify(furnished, ROOT))

    assert damaged(furnished) == []
    found = {report.path for report in reports}
    files = {path for path in before if path.rpartition("/")[2] != "lock"}
    assert files <= found
    assert {path: furnished.read(path) for path in furnished.paths()} == before


@pytest.mark.parametrize(
    "path", [TOPIC, f"{TOPIC}/0", f"{TOPIC}/0/log", f"{TOPIC}/0/ledger", f"{ROOT}/topics/__groups"]
)
def test_a_part_of_it_is_checked_likewise(furnished: MemoryDisk, path: str) -> None:
    reports = list(verify(furnished, path))

    assert reports
    assert damaged(furnished, path) == []
    assert all(report.path.startswith(path) for report in reports)


def test_a_bit_that_flips_in_any_file_is_found(furnished: MemoryDisk) -> None:
    for path in [
        path for path in furnished.paths() if path.rpartition("/")[2] not in ("lock", "transactions", "delayed")
    ]:
        content = furnished.read(path)
        if not content:
            continue
        position = 20 if path.endswith("checkpoint") else len(content) // 2
        furnished.write(path, _flipped(content, position))

        assert path in damaged(furnished), path

        furnished.write(path, content)


def _flipped(content: bytes, position: int) -> bytes:
    return content[:position] + bytes([content[position] ^ 4]) + content[position + 1 :]


@pytest.mark.parametrize(
    ("change", "path"),
    [
        (lambda disk: disk.remove(f"{TOPIC}/topic.json"), f"{TOPIC}/topic.json"),
        (lambda disk: disk.remove(f"{TOPIC}/0/log/checkpoint"), f"{TOPIC}/0/log/checkpoint"),
        (lambda disk: disk.remove_tree(f"{TOPIC}/0/log"), f"{TOPIC}/0/log"),
        (lambda disk: disk.remove(f"{ROOT}/format"), f"{ROOT}/format"),
        (lambda disk: disk.write(f"{ROOT}/notes.txt", b"x"), f"{ROOT}/notes.txt"),
        (lambda disk: disk.write(f"{ROOT}/topics/notes.txt", b"x"), f"{ROOT}/topics/notes.txt"),
        (lambda disk: disk.write(f"{TOPIC}/0/log/notes.txt", b"x"), f"{TOPIC}/0/log/notes.txt"),
        (lambda disk: disk.write(f"{TOPIC}/0/notes.txt", b"x"), f"{TOPIC}/0/notes.txt"),
        (lambda disk: disk.rename(TOPIC, f"{ROOT}/topics/other"), f"{ROOT}/topics/other/topic.json"),
    ],
)
def test_what_is_missing_or_foreign_is_named(
    furnished: MemoryDisk, change: Callable[[MemoryDisk], None], path: str
) -> None:
    change(furnished)

    assert path in damaged(furnished)


def test_a_partition_without_files_is_no_damage_and_is_said(disk: MemoryDisk, clock: ManualClock) -> None:
    node = Node(disk, clock)
    node.create(partitions=3)
    node.publish(b"a", partition=1)
    node.broker.close()

    assert damaged(disk) == []
    said = {report.path: report.content for report in verify(disk, ROOT)}
    assert said[f"{TOPIC}/0"].startswith("no files: nothing was ever written to it")
    assert said[f"{TOPIC}/0"].endswith("so for 2 of 3 partitions")


def test_a_broker_that_runs_is_noticed_from_any_directory_below(disk: MemoryDisk, clock: ManualClock) -> None:
    node = Node(disk, clock)
    node.create()
    node.publish(b"a")

    assert is_in_use(disk, ROOT)
    assert is_in_use(disk, f"{TOPIC}/0/log")

    node.broker.close()
    assert not is_in_use(disk, ROOT)
