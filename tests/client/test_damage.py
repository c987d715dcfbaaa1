"""What cannot be read costs exactly itself: readers and groups pass over it, say so, and go on."""

import asyncio
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from goqueue import AsyncClient, Client, CorruptRecord, DataLossWarning, InvalidMessage, InvalidRequest
from goqueue.record import compression
from goqueue.record.header import Flags
from goqueue.testing import EmbeddedBroker
from tests.client.damaged import flip, publish_raw, publish_with_broken_value


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(data=tmp_path / "data") as broker:
        yield broker


@pytest.fixture
def gq(broker: EmbeddedBroker) -> Iterator[Client]:
    with Client(broker.address, timeout="20s") as client:
        client.create_topic("t", partitions=1)
        yield client


@contextmanager
def losses() -> Iterator[list[Any]]:
    """The warnings of lost messages, of which there has to be one at least."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", DataLossWarning)
        found: list[Any] = []
        yield found
    found += [one.message for one in caught]
    assert found
    assert {type(one) for one in found} == {DataLossWarning}


def numbers(messages: Any) -> list[int]:
    return [int(message.value.removeprefix(b"value-")) for message in messages]


def fill(gq: Client, count: int = 20, *, first: int = 0) -> None:
    gq.publish_many("t", [b"value-%d" % number for number in range(first, first + count)])


def place(warning: Any) -> tuple[str, int, int, int]:
    return warning.topic, warning.partition, warning.first_offset, warning.next_offset


# --- values that cannot be decompressed --------------------------------------------------------


def test_a_value_that_cannot_be_decompressed_hides_no_other_message_from_a_reader(gq: Client) -> None:
    publish_with_broken_value(gq, "t", good=20, at=7)

    with losses() as caught:
        found = list(gq.read("t"))

    assert numbers(found) == list(range(20))
    assert [message.offset for message in found] == [*range(7), *range(8, 21)]
    assert [place(one) for one in caught] == [("t", 0, 7, 8)]
    assert "cannot be decompressed" in str(caught[0])


def test_a_follower_passes_over_it_too(gq: Client) -> None:
    publish_with_broken_value(gq, "t", good=1, at=0)

    with losses(), gq.follow("t", start="earliest", limit=1) as found:
        assert numbers(found.next_batch()) == [0]


def test_who_asks_to_be_stopped_by_it_gets_what_comes_before_and_then_the_error(gq: Client) -> None:
    publish_with_broken_value(gq, "t", good=20, at=7)
    before: list[int] = []

    with pytest.raises(CorruptRecord) as raised:
        before.extend(message.offset for message in gq.read("t", on_damage="raise"))

    assert before == list(range(7))
    facts = raised.value.facts()
    assert (facts["topic"], facts["partition"], facts["first_offset"], facts["next_offset"]) == ("t", 0, 7, 8)
    assert numbers(gq.read("t", offset=8, on_damage="raise")) == list(range(7, 20))


def test_who_asks_to_skip_it_hears_nothing(gq: Client) -> None:
    publish_with_broken_value(gq, "t", good=20, at=7)

    assert numbers(gq.read("t", on_damage="skip")) == list(range(20))


@pytest.mark.parametrize("ask", ["read", "follow"])
def test_there_are_three_things_to_do_about_damage(gq: Client, ask: str) -> None:
    with pytest.raises(InvalidRequest, match="must be warn, raise, skip"):
        getattr(gq, ask)("t", on_damage="ignore")


def test_a_group_dead_letters_the_broken_record_alone(gq: Client) -> None:
    publish_with_broken_value(gq, "t", good=20, at=7)

    with losses() as caught, gq.consumer("t", group="g") as consumer:
        batch = consumer.poll(timeout="20s")
        consumer.ack(batch)

    assert numbers(batch) == list(range(20))
    assert [place(one) for one in caught] == [("t", 0, 7, 8)]
    letters = gq.dead_letters("t")
    assert [(letter.origin_offset, letter.reason) for letter in letters] == [(7, "REJECTED")]
    assert "cannot be decompressed" in letters[0].error
    assert [one.lag for one in gq.group_positions("g")] == [0]


def test_a_poll_that_brings_nothing_but_broken_records_goes_on(gq: Client) -> None:
    publish_with_broken_value(gq, "t", good=0, at=0)

    with gq.consumer("t", group="g") as consumer:
        with losses():
            assert consumer.poll(timeout=0) == []
        fill(gq, 1)
        batch = consumer.poll(timeout="20s")
        consumer.ack(batch)

    assert numbers(batch) == [0]


def test_a_group_that_commits_positions_passes_over_it(gq: Client) -> None:
    publish_with_broken_value(gq, "t", good=20, at=7)

    with losses(), gq.consumer("t", group="g", ack="offsets") as consumer:
        batch = consumer.poll(timeout="20s")
        consumer.commit()

    assert numbers(batch) == list(range(20))
    assert [one.lag for one in gq.group_positions("g")] == [0]
    assert gq.dead_letters("t") == []


def test_an_asynchronous_reader_and_consumer_hear_the_same(gq: Client, broker: EmbeddedBroker) -> None:
    publish_with_broken_value(gq, "t", good=20, at=7)

    async def use() -> tuple[list[int], list[int]]:
        async with AsyncClient(broker.address) as client:
            read = numbers([message async for message in client.read("t")])
            async with client.consumer("t", group="g") as consumer:
                batch = await consumer.poll(timeout="20s")
                await consumer.ack(batch)
        return read, numbers(batch)

    with losses() as caught:
        assert asyncio.run(use()) == (list(range(20)), list(range(20)))
    assert [place(one) for one in caught] == [("t", 0, 7, 8)] * 2


@pytest.mark.parametrize("value", [b"no magic at all", compression.compress(b"x" * 2_000, "zstd"), b"\x04\x22\x4d\x18"])
def test_a_topic_can_verify_what_claims_to_be_compressed(gq: Client, value: bytes) -> None:
    gq.create_topic("verified", partitions=1, verify_compression="on", max_message_bytes=1_000)

    with pytest.raises(InvalidMessage, match="message 1: the value cannot be decompressed"):
        publish_raw(gq, "verified", [b"fine", value], [0, Flags.COMPRESSED])

    publish_raw(gq, "verified", [compression.compress(b"x" * 1_000, "lz4")], [Flags.COMPRESSED])
    assert [message.value for message in gq.read("verified")] == [b"x" * 1_000]


# --- damage on the disk ------------------------------------------------------------------------


def test_a_reader_is_warned_of_a_damaged_record_once(gq: Client, broker: EmbeddedBroker) -> None:
    fill(gq)
    flip(broker.data, "t", b"value-12")

    with losses() as caught:
        found = list(gq.read("t"))

    assert numbers(found) == [*range(12), *range(13, 20)]
    assert [place(one) for one in caught] == [("t", 0, 12, 13)]
    assert "goqueue log verify" in str(caught[0])


def test_a_reader_can_be_stopped_by_damage(gq: Client, broker: EmbeddedBroker) -> None:
    fill(gq)
    flip(broker.data, "t", b"value-12")
    before: list[int] = []

    with pytest.raises(CorruptRecord, match="offset 12 of t/0 cannot be read") as raised:
        before.extend(message.offset for message in gq.read("t", on_damage="raise"))

    assert before == list(range(12))
    assert raised.value.facts()["next_offset"] == 13


def test_damage_at_the_end_of_the_log_is_told_too(gq: Client, broker: EmbeddedBroker) -> None:
    fill(gq)
    flip(broker.data, "t", b"value-19")

    with losses() as caught:
        assert numbers(gq.read("t")) == list(range(19))
    assert [place(one) for one in caught] == [("t", 0, 19, 20)]


def test_a_follower_is_warned_of_damage(gq: Client, broker: EmbeddedBroker) -> None:
    fill(gq)
    flip(broker.data, "t", b"value-19")
    flip(broker.data, "t", b"value-12")

    with losses() as caught, gq.follow("t", start="earliest", limit=19) as found:
        batch: list[int] = []
        while len(batch) < 18:
            batch += numbers(found.next_batch())
        fill(gq, 1, first=20)
        batch += numbers(found.next_batch())

    assert batch == [*range(12), *range(13, 19), 20]
    assert [place(one) for one in caught] == [("t", 0, 12, 13), ("t", 0, 19, 20)]


def test_a_scan_tells_of_damage_in_its_parts(gq: Client, broker: EmbeddedBroker) -> None:
    fill(gq)
    flip(broker.data, "t", b"value-12")

    with losses():
        parts = list(gq.scan("t", 0, 0, 20))
    assert [(gap.first_offset, gap.next_offset) for part in parts for gap in part.gaps] == [(12, 13)]
    assert sum(part.record_count for part in parts) == 19

    assert [part.gaps for part in gq.scan("t", 0, 0, 20, on_damage="skip") if part.gaps]
    with pytest.raises(CorruptRecord, match="offset 12"):
        list(gq.scan("t", 0, 0, 20, on_damage="raise"))


def test_what_compaction_or_retention_took_is_no_damage(gq: Client) -> None:
    gq.create_topic("short", partitions=1, retention_bytes=1, segment_bytes=1_024)
    for number in range(100):
        gq.publish("short", b"value-%d" % number)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert list(gq.read("short"))[-1].offset == 99


@pytest.mark.parametrize("restart", [False, True])
def test_a_group_hears_of_damage_once_and_is_done_with_it(tmp_path: Path, restart: bool) -> None:
    with EmbeddedBroker(data=tmp_path, http=False) as broker, Client(broker.address) as gq:
        gq.create_topic("t", partitions=1)
        fill(gq)
        if not restart:
            flip(broker.data, "t", b"value-12")
            check_group(gq)
    if restart:
        flip(tmp_path, "t", b"value-12")
        with EmbeddedBroker(data=tmp_path, http=False) as broker, Client(broker.address) as gq:
            check_group(gq)


def check_group(gq: Client) -> None:
    with gq.consumer("t", group="g") as consumer, losses() as caught:
        got: list[int] = []
        while len(got) < 19:
            batch = consumer.poll(timeout="20s")
            got += numbers(batch)
            consumer.ack(batch)
        assert consumer.poll(timeout=0) == []
    assert got == [*range(12), *range(13, 20)]
    assert [place(one) for one in caught] == [("t", 0, 12, 13)]
    (position,) = gq.group_positions("g")
    assert (position.offset, position.lag) == (20, 0)


def test_a_consumer_that_finds_nothing_but_damage_hears_of_it_at_once(gq: Client, broker: EmbeddedBroker) -> None:
    fill(gq, 1)
    flip(broker.data, "t", b"value-0")

    with gq.consumer("t", group="g") as consumer, losses():
        assert consumer.poll(timeout=0) == []
    assert [one.lag for one in gq.group_positions("g")] == [0]
