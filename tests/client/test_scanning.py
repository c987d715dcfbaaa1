"""A scan hands out encoded records of a range, part by part, through outages and retention."""

from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import pytest

from goqueue import Client, Conflict, InvalidRequest, TopicNotFound
from goqueue.client.scanning import ScannedPart
from goqueue.record import kernel
from goqueue.record.header import HEADER_BYTES
from goqueue.record.message import StoredMessage
from tests.client.test_connections import RestartingBroker

COUNT = 300


def values(part: ScannedPart) -> list[bytes]:
    return [message.value for message in kernel.decode(part.records, None, StoredMessage)]


def filled(gq: Client) -> list[bytes]:
    """A topic of many small segments."""
    gq.create_topic("t", partitions=1, segment_bytes=4_096)
    sent = [b"%06d" % number for number in range(COUNT)]
    for first in range(0, COUNT, 10):
        gq.publish_many("t", sent[first : first + 10])
    return sent


def test_a_range_is_read_whole_and_no_more(gq: Client) -> None:
    sent = filled(gq)

    parts = list(gq.scan("t", 0, 10, 250, read_bytes=1_000))

    assert [value for part in parts for value in values(part)] == sent[10:250]
    assert len(parts) > 5
    assert (parts[0].start_offset, parts[-1].next_offset) == (10, 250)
    assert all(one.next_offset == other.start_offset for one, other in pairwise(parts))
    assert sum(part.record_count for part in parts) == 240


def test_what_is_not_wanted_is_not_sent(gq: Client) -> None:
    gq.create_topic("t", partitions=1)
    with gq.producer() as producer:
        for number in range(20):
            producer.send("t", b"v" * 1_000, key=b"k%d" % number, headers={"n": "x"})

    (whole,) = gq.scan("t", 0, 0, 20)
    (keyed,) = gq.scan("t", 0, 0, 20, without=["value", "headers"])
    (bare,) = gq.scan("t", 0, 0, 20, without=["key", "value", "headers"])

    assert len(whole.records) > 20_000
    assert kernel.columns(keyed.records, "key", "offset") == kernel.columns(whole.records, "key", "offset")
    assert [message.value for message in kernel.decode(keyed.records, None, StoredMessage)] == [b""] * 20
    assert len(bare.records) == 20 * HEADER_BYTES
    assert (bare.record_count, bare.next_offset) == (20, 20)
    with pytest.raises(InvalidRequest, match="invalid part 'soul': must be of key, value, headers"):
        list(gq.scan("t", 0, 0, 20, without=["soul"]))


def test_a_range_beyond_the_end_gives_what_there_is(gq: Client) -> None:
    sent = filled(gq)

    assert [value for part in gq.scan("t", 0, 290, 10_000) for value in values(part)] == sent[290:]
    assert list(gq.scan("t", 0, 5_000, 10_000)) == []
    assert list(gq.scan("t", 0, 5, 5)) == []


def test_a_stretch_that_is_all_hidden_is_passed(gq: Client) -> None:
    gq.create_topic("t", partitions=1)
    gq.publish("t", b"first")
    with gq.transaction("writer") as tx:
        tx.publish_many("t", [b"never"] * 50)
        tx.abort()
    gq.publish("t", b"last")

    parts = list(gq.scan("t", 0, 0, 53, read_bytes=200))

    assert [value for part in parts for value in values(part)] == [b"first", b"last"]


def test_a_range_of_which_nothing_is_to_be_seen_is_passed_to_its_end(gq: Client) -> None:
    gq.create_topic("t", partitions=1)
    with gq.transaction("writer") as tx:
        tx.publish_many("t", [b"never"] * 50)
        tx.abort()
    gq.publish("t", b"last")

    assert [(part.record_count, part.next_offset) for part in gq.scan("t", 0, 0, 51)] == [(0, 51)]


def test_a_scan_that_is_left_halfway_leaves_the_client_usable(gq: Client) -> None:
    filled(gq)
    scan = gq.scan("t", 0, 0, COUNT, read_bytes=500)

    for _ in scan:
        break
    scan.close()

    assert gq.topics() == ["t"]


def test_a_topic_that_is_not_there_is_named(gq: Client) -> None:
    with pytest.raises(TopicNotFound, match="nowhere"):
        list(gq.scan("nowhere", 0, 0, 10))


def test_a_scan_goes_on_where_it_stood_when_the_broker_comes_back(tmp_path: Path) -> None:
    with RestartingBroker(tmp_path) as broker, Client(broker.address, timeout="20s") as gq:
        sent = filled(gq)
        scan = gq.scan("t", 0, 0, COUNT, read_bytes=500)
        first = scan.next_part()
        assert first is not None
        broker.restart()

        rest = [value for part in scan for value in values(part)]

        assert values(first) + rest == sent


def test_a_group_without_members_is_told_where_it_stands(gq: Client) -> None:
    filled(gq)

    gq.commit_group("reader", {("t", 0): 120})

    (position,) = gq.group_positions("reader")
    assert (position.offset, position.lag) == (120, COUNT - 120)


def test_scans_in_many_threads_do_not_get_in_each_others_way(gq: Client) -> None:
    sent = filled(gq)

    def scanned(start: int) -> list[bytes]:
        return [value for part in gq.scan("t", 0, start, COUNT, read_bytes=700) for value in values(part)]

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(scanned, range(0, 40))) == [sent[start:] for start in range(0, 40)]


def test_a_line_is_used_again_but_not_one_with_an_answer_that_nobody_read(gq: Client) -> None:
    sent = filled(gq)
    left = gq.scan("t", 0, 0, COUNT, read_bytes=500)
    assert left.next_part() is not None
    left.close()

    for _ in range(3):
        assert [value for part in gq.scan("t", 0, 0, COUNT, read_bytes=500) for value in values(part)] == sent


def test_a_scan_whose_client_is_closed_says_so(tmp_path: Path) -> None:
    with RestartingBroker(tmp_path) as broker:
        gq = Client(broker.address)
        filled(gq)
        scan = gq.scan("t", 0, 0, COUNT, read_bytes=500)
        assert scan.next_part() is not None
        gq.close()

        with pytest.raises(Conflict, match="after close"):
            list(scan)
        with pytest.raises(Conflict, match="after close"):
            list(gq.scan("t", 0, 0, COUNT))
