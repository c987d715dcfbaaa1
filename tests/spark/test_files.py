"""Reading sealed segments from their files, while their owner goes on with his work."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from goqueue.client.sync import Client
from goqueue.errors import CorruptRecord, InvalidTopic, OffsetOutOfRange, ReadFailed
from goqueue.names import TopicPartition
from goqueue.record import kernel
from goqueue.record.header import Flags
from goqueue.record.message import StoredMessage
from goqueue.spark.files import read_files, sealed_end
from goqueue.storage.config import LogConfig
from goqueue.storage.layout import segment_path
from goqueue.storage.log import Log
from goqueue.testing import EmbeddedBroker, MemoryDisk
from goqueue.wire.scan_reports import HiddenRange

ORIGIN = TopicPartition("orders", 0)


def make_topic(data: Path, batches: list[list[bytes]], *, segment_bytes: int = 1, topic_id: str = "id-1") -> list[int]:
    """A topic with these batches of values in its partition 0; returns the base offsets of its segments."""
    disk = MemoryDisk()
    log = Log.open(disk, "/log", LogConfig(segment_bytes=segment_bytes))
    for number, values in enumerate(batches):
        log.append(kernel.encode(values, keys=[b"k%d" % (number % 3)] * len(values)), now_ns=1000 + number)
    log.close()
    directory = data / "topics" / "orders" / "0" / "log"
    directory.mkdir(parents=True, exist_ok=True)
    for path in disk.paths():
        (directory / path.removeprefix("/log/")).write_bytes(disk.read(path))
    (data / "topics" / "orders" / "topic.json").write_text(json.dumps({"id": topic_id, "name": "orders"}))
    return sorted(int(path.stem) for path in directory.glob("*.log"))


def log_path(data: Path, base: int, suffix: str = ".log") -> Path:
    return Path(segment_path(str(data / "topics/orders/0/log"), base, suffix))


def read(data: Path, start: int, end: int, **options: Any) -> list[StoredMessage]:
    found: list[StoredMessage] = []
    for records, _ in read_files(str(data), "orders", 0, start, end, **options):
        assert len(records)
        found += kernel.decode(records, ORIGIN, StoredMessage)
    return found


def offsets(messages: list[StoredMessage]) -> list[int]:
    return [message.offset for message in messages]


sizes = st.lists(st.integers(1, 12), min_size=2, max_size=12)


@given(sizes, st.integers(1, 3000), st.data())
def test_any_range_of_the_sealed_segments_is_read(tmp_path_factory, counts, segment_bytes, data):
    directory = tmp_path_factory.mktemp("data")
    batches = [[bytes([number]) * (number * 7 % 90) for _ in range(count)] for number, count in enumerate(counts)]
    make_topic(directory, batches, segment_bytes=segment_bytes)
    sealed = sealed_end(str(directory), "orders", 0)
    start = data.draw(st.integers(0, sealed))
    end = data.draw(st.integers(start, sealed))
    window = data.draw(st.integers(1, 500))

    found = read(directory, start, end, window_bytes=window)

    assert offsets(found) == list(range(start, end))
    values = [value for values in batches for value in values]
    assert [message.value for message in found] == values[start:end]


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(1, 5)), max_size=5))
def test_hidden_offsets_are_left_out(tmp_path_factory, found):
    directory = tmp_path_factory.mktemp("data")
    make_topic(directory, [[b"v"] * 6] * 8, segment_bytes=300)
    sealed = sealed_end(str(directory), "orders", 0)
    hidden, last = [], 0
    for first, size in sorted(found):
        if first >= last:
            hidden.append(HiddenRange(first, first + size))
            last = first + size

    seen = offsets(read(directory, 0, sealed, hidden=hidden, window_bytes=200))

    covered = {offset for each in hidden for offset in range(each.first_offset, each.end_offset)}
    assert seen == [offset for offset in range(sealed) if offset not in covered]


def test_the_last_segment_is_not_sealed(tmp_path):
    bases = make_topic(tmp_path, [[b"a"], [b"b"], [b"c"]])

    assert bases == [0, 1, 2]
    assert sealed_end(str(tmp_path), "orders", 0) == 2


def test_a_topic_that_is_not_there_has_nothing_sealed(tmp_path):
    assert sealed_end(str(tmp_path), "orders", 0) == 0


def test_a_topic_of_the_same_name_is_not_the_topic(tmp_path):
    make_topic(tmp_path, [[b"a"], [b"b"]], topic_id="id-2")

    assert sealed_end(str(tmp_path), "orders", 0, topic_id="id-1") == 0
    with pytest.raises(OffsetOutOfRange) as caught:
        read(tmp_path, 0, 1, topic_id="id-1")
    assert caught.value.offset == 0
    assert offsets(read(tmp_path, 0, 1, topic_id="id-2")) == [0]


def test_the_tail_is_the_brokers(tmp_path):
    make_topic(tmp_path, [[b"a"], [b"b"], [b"c"]])
    seen = []

    reading = read_files(str(tmp_path), "orders", 0, 0, 3)
    for _ in range(2):
        seen += kernel.decode(next(reading)[0], ORIGIN, StoredMessage)
    with pytest.raises(OffsetOutOfRange) as caught:
        next(reading)

    assert offsets(seen) == [0, 1]
    assert caught.value.offset == 2


def test_a_segment_that_retention_took_is_not_passed_over(tmp_path):
    make_topic(tmp_path, [[b"a"], [b"b"], [b"c"], [b"d"]])
    reading = read_files(str(tmp_path), "orders", 0, 0, 3)
    next(reading)
    for base in (0, 1):
        log_path(tmp_path, base).unlink()

    with pytest.raises(OffsetOutOfRange) as caught:
        list(reading)

    assert caught.value.offset == 1


def test_a_name_behind_which_there_is_no_file_is_said(tmp_path):
    make_topic(tmp_path, [[b"a"], [b"b"], [b"c"]])
    log_path(tmp_path, 1).unlink()
    log_path(tmp_path, 1).symlink_to("nowhere")

    with pytest.raises(ReadFailed, match="00000000000000000001.log: is listed, but cannot be opened"):
        read(tmp_path, 0, 2)


def test_a_file_that_is_open_is_read_to_its_end(tmp_path):
    make_topic(tmp_path, [[b"v" * 50] * 20, [b"w"]], segment_bytes=1000)
    reading = read_files(str(tmp_path), "orders", 0, 0, 20, window_bytes=200)
    seen = kernel.decode(next(reading)[0], ORIGIN, StoredMessage)
    log_path(tmp_path, 0).unlink()

    for records, _ in reading:
        seen += kernel.decode(records, ORIGIN, StoredMessage)

    assert offsets(seen) == list(range(20))


def test_segments_that_compaction_has_put_together_are_found_again(tmp_path):
    make_topic(tmp_path, [[b"a"], [b"b"], [b"c"], [b"d"]])
    whole = b"".join(log_path(tmp_path, base).read_bytes() for base in (0, 1, 2))
    reading = read_files(str(tmp_path), "orders", 0, 0, 3)
    seen = kernel.decode(next(reading)[0], ORIGIN, StoredMessage)
    log_path(tmp_path, 0).write_bytes(whole)
    for base in (1, 2):
        log_path(tmp_path, base).rename(log_path(tmp_path, base, ".log.deleted"))

    for records, _ in reading:
        seen += kernel.decode(records, ORIGIN, StoredMessage)

    assert offsets(seen) == [0, 1, 2]


def test_gaps_that_compaction_leaves_are_no_fault(tmp_path):
    make_topic(tmp_path, [[b"v"] * 10, [b"w"]], segment_bytes=100)
    kept = kernel.filter(log_path(tmp_path, 0).read_bytes(), hidden=bytes(HiddenBytes(2, 7)))
    log_path(tmp_path, 0).write_bytes(kept)

    assert offsets(read(tmp_path, 0, 10)) == [0, 1, 7, 8, 9]
    assert offsets(read(tmp_path, 4, 8)) == [7]


class HiddenBytes(bytes):
    """A range as the kernel takes it."""

    def __new__(cls, first: int, end: int) -> "HiddenBytes":
        return super().__new__(cls, first.to_bytes(8, "little") + end.to_bytes(8, "little"))


@pytest.mark.parametrize("damage", ["missing", "empty", "garbage", "of another file"])
def test_an_index_is_only_a_hint(tmp_path, damage):
    make_topic(tmp_path, [[bytes(900)] * 40, [b"w"]], segment_bytes=30_000)
    index = log_path(tmp_path, 0, ".index")
    entries = index.read_bytes()
    assert len(entries) > 64
    match damage:
        case "missing":
            index.unlink()
        case "empty":
            index.write_bytes(b"")
        case "garbage":
            index.write_bytes(os.urandom(160))
        case "of another file":
            index.write_bytes(entries[:8] + entries[24:])

    assert offsets(read(tmp_path, 33, 40)) == list(range(33, 40))


def test_an_index_entry_that_points_behind_its_offset_hides_nothing(tmp_path):
    make_topic(tmp_path, [[bytes(900)] * 40, [b"w"]], segment_bytes=30_000)
    record_bytes = log_path(tmp_path, 0).stat().st_size // 40
    entry = (10).to_bytes(8, "big") + (20 * record_bytes).to_bytes(8, "big")
    log_path(tmp_path, 0, ".index").write_bytes(entry)

    assert offsets(read(tmp_path, 12, 40)) == list(range(12, 40))


def test_an_index_spares_the_reader_what_stands_before(tmp_path):
    make_topic(tmp_path, [[bytes(900)] * 40, [b"w"]], segment_bytes=30_000)
    data = bytearray(log_path(tmp_path, 0).read_bytes())
    data[100] ^= 1
    log_path(tmp_path, 0).write_bytes(data)

    assert offsets(read(tmp_path, 33, 40)) == list(range(33, 40))


@pytest.mark.parametrize("window_bytes", [50, 4096])
def test_a_flipped_bit_is_found_and_named(tmp_path, window_bytes):
    make_topic(tmp_path, [[b"value"] * 10, [b"w"]], segment_bytes=100)
    data = bytearray(log_path(tmp_path, 0).read_bytes())
    record_bytes = len(data) // 10
    data[3 * record_bytes + 40] ^= 4
    log_path(tmp_path, 0).write_bytes(data)

    with pytest.raises(CorruptRecord) as caught:
        read(tmp_path, 0, 10, window_bytes=window_bytes)

    assert caught.value.position == 3 * record_bytes
    assert caught.value.source.endswith("/topics/orders/0/log/00000000000000000000.log")


def test_a_torn_end_is_found(tmp_path):
    make_topic(tmp_path, [[b"value"] * 3, [b"w"]], segment_bytes=100)
    data = log_path(tmp_path, 0).read_bytes()
    log_path(tmp_path, 0).write_bytes(data[:-4])
    reading = read_files(str(tmp_path), "orders", 0, 0, 3)

    with pytest.raises(CorruptRecord, match="cut off"):
        list(reading)


def test_control_records_are_left_out(tmp_path):
    make_topic(tmp_path, [[b"v"] * 3, [b"w"]], segment_bytes=100)
    first = kernel.encode([b"a", b"marker", b"b"], flags=[0, Flags.CONTROL | Flags.COMMIT, 0])
    kernel.stamp(first, first_offset=0, timestamp=5, flags_allowed=0x3F)
    log_path(tmp_path, 0).write_bytes(first)

    ((records, flags),) = read_files(str(tmp_path), "orders", 0, 0, 3)

    assert offsets(kernel.decode(records, ORIGIN, StoredMessage)) == [0, 2]
    assert not flags & Flags.CONTROL


def test_files_that_are_not_segments_do_not_matter(tmp_path):
    make_topic(tmp_path, [[b"a"], [b"b"]])
    for name in (".nfs0001", "00000000000000000009.log.cleaned", "9.log", "checkpoint.new"):
        (log_path(tmp_path, 0).parent / name).write_bytes(b"?")

    assert sealed_end(str(tmp_path), "orders", 0) == 1


@pytest.mark.parametrize("topic", ["..", "a/b", "", "."])
def test_a_topic_cannot_name_another_directory(tmp_path, topic):
    with pytest.raises(InvalidTopic):
        sealed_end(str(tmp_path), topic, 0)


def test_what_is_no_description_of_a_topic_is_said(tmp_path):
    make_topic(tmp_path, [[b"a"], [b"b"]])
    (tmp_path / "topics/orders/topic.json").write_text("[]")

    with pytest.raises(ReadFailed, match=r"topic\.json"):
        sealed_end(str(tmp_path), "orders", 0, topic_id="x")


def test_the_files_of_a_running_broker_hold_what_it_serves():
    with EmbeddedBroker() as broker, Client(broker.address) as client:
        client.create_topic("orders", partitions=1, segment_bytes=64 * 1024)
        for number in range(40):
            client.publish_many("orders", [b"%d-%d" % (number, each) + bytes(500) for each in range(10)])
        with client.transaction("t") as transaction:
            transaction.publish("orders", b"aborted")
            transaction.abort()
        for _ in range(30):
            client.publish_many("orders", [b"last" + bytes(500)] * 10)
        topic_id = client.describe_topic("orders").topic_id
        data_dir = broker.data
        end = sealed_end(data_dir, "orders", 0, topic_id=topic_id)
        hidden = client.hidden_ranges("orders", 0, 0, end, delayed="include")

        found = []
        for records, _ in read_files(data_dir, "orders", 0, 0, end, hidden=hidden, topic_id=topic_id):
            found += kernel.decode(records, ORIGIN, StoredMessage)

        assert end > 400
        assert hidden
        served = [message for message in client.read("orders", partition=0, offset=0) if message.offset < end]
        assert [(each.offset, each.value) for each in found] == [(each.offset, each.value) for each in served]
