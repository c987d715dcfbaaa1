"""A data directory of the version before is converted when it is opened, wherever that is interrupted."""

from contextlib import suppress
from functools import cache

import pytest

from goqueue import events
from goqueue.broker.broker import Broker
from goqueue.broker.conversion import BATCH_FACTS, CONVERTED, UNCONVERTED, convert, partitions_of_fact
from goqueue.broker.coordination import (
    GROUPS_TOPIC,
    PARTITION_COUNTS,
    SCHEDULES_TOPIC,
    TRANSACTIONS_TOPIC,
    partition_of,
)
from goqueue.clock import SECOND
from goqueue.errors import StorageFull, TopicQuarantined, UnsupportedFormat
from goqueue.service.new_message import NewMessage
from goqueue.storage.directory import FORMAT, DataDirectory
from goqueue.storage.file import Disk
from goqueue.testing import FaultyDisk, ManualClock, MemoryDisk, PowerLoss
from goqueue.topics import description
from goqueue.transactions.decisions import DecisionPart
from goqueue.transactions.facts import VERSION, SavedDecision, encode
from goqueue.wire.schema_reports import NewSchema
from tests.broker.brokers import ROOT, ManualWorkers, Node
from tests.broker.consumers import Consumer
from tests.broker.older import FORMAT_BEFORE, journal_facts, make_older, opens_before, write_older
from tests.broker.transactional import Owner

TOPICS = f"{ROOT}/topics"
GROUPS = [f"group-{number}" for number in range(20)]
SCHEDULES = [f"schedule-{number}" for number in range(6)]


@cache
def older_files() -> dict[str, bytes]:
    """The files of a directory of the version before, with something of everything."""
    disk, clock = MemoryDisk(), ManualClock()
    node = Node(disk, clock)
    node.create(partitions=2)
    node.publish(*(b"%d" % number for number in range(10)))
    for group in GROUPS:
        consumer = Consumer(node, group)
        consumer.ack(consumer.poll(4)[:2])
    for name in SCHEDULES:
        node.done(node.broker.schedules.create("orders", name, NewMessage(b"tick"), every_ns=3600 * SECOND))
        node.done(node.broker.schedules.run("orders", name))
    node.done(node.broker.schemas.register("a-value", NewSchema('{"type": "object"}', "JSON")))
    owner = Owner(node, "committed")
    owner.begin(marker="once")
    owner.publish(b"in")
    owner.commit(marker="once")
    open_owner = Owner(node, "open")
    open_owner.begin()
    open_owner.publish(b"never")
    node.broker.close()
    make_older(disk, ROOT)
    return {path: disk.read(path) for path in disk.paths() if not path.endswith("/lock")}


def older() -> MemoryDisk:
    """A disk with that directory."""
    disk = MemoryDisk()
    for path, content in older_files().items():
        disk.write(path, content)
    return disk


@cache
def facts_before() -> dict[str, dict[bytes, bytes]]:
    return {topic: journal_facts(older(), ROOT, topic)[0] for topic in PARTITION_COUNTS}


def converted(disk: Disk, observe: events.Observer = events.ignore) -> None:
    """Open the directory, convert it, and close it."""
    data = DataDirectory.open(disk, ROOT)
    try:
        convert(data, disk, observe=observe)
    finally:
        data.close()


def check_whole(disk: MemoryDisk) -> None:
    """A broker finds everything that the version before had stored."""
    node = Node(disk, ManualClock())
    assert node.broker.groups.names() == sorted(GROUPS)
    for group in GROUPS:
        info = node.broker.groups.describe(group)
        assert (len(info.members), info.state) == (1, "Stable")
        assert {one.partition: one.offset for one in node.broker.groups.positions(group)} == {0: 2, 1: 0}
    assert [(one.name, one.runs) for one in node.broker.schedules.list("orders")] == [(name, 1) for name in SCHEDULES]
    assert node.broker.schemas.subjects() == ["a-value"]
    assert node.broker.transactions.stats().by_state["CompleteCommit"] == 1
    assert Owner(node, "other").begin(marker="once").already_committed
    assert b"never" not in node.values()
    assert not [path for path in disk.paths() if "~deleted~" in path]
    node.broker.close()


def check_placed(disk: Disk) -> None:
    """All facts are in the partitions where their coordinators look for them, and in no other."""
    for topic, before in facts_before().items():
        after = journal_facts(disk, ROOT, topic)
        assert len(after) == PARTITION_COUNTS[topic]
        assert {k: v for some in after.values() for k, v in some.items()} == before
        for number, some in after.items():
            assert some == {k: v for k, v in before.items() if number in partitions_of_fact(topic, k, v)}


# --- what becomes of the facts -------------------------------------------------------------------


def test_the_facts_of_a_name_go_where_its_coordinator_looks_for_them() -> None:
    assert partitions_of_fact(GROUPS_TOPIC, b"gbilling", b"") == (partition_of("billing", GROUPS_TOPIC),)
    for prefix in (b"definition/", b"state/", b"history/"):
        key = prefix + b"orders/daily"
        assert partitions_of_fact(SCHEDULES_TOPIC, key, b"") == (partition_of("orders/daily", SCHEDULES_TOPIC),)


def test_a_decision_goes_to_the_coordinator_of_each_of_its_transactions_and_a_marker_to_all() -> None:
    parts = [DecisionPart(name, 7, 1, 0, [], [], []) for name in ("job/0", "job/1", "other")]
    decision = encode(SavedDecision(VERSION, 0, None, parts))
    homes = {partition_of(name, TRANSACTIONS_TOPIC) for name in ("job/x", "other")}

    assert partitions_of_fact(TRANSACTIONS_TOPIC, b"t:job/0", b"") == {partition_of("job/1", TRANSACTIONS_TOPIC)}
    assert partitions_of_fact(TRANSACTIONS_TOPIC, b"d:job/0:1", decision) == homes
    assert partitions_of_fact(TRANSACTIONS_TOPIC, b"d:other:1", b"damaged") == {
        partition_of("other", TRANSACTIONS_TOPIC)
    }
    assert set(partitions_of_fact(TRANSACTIONS_TOPIC, b"m:once", b"")) == set(range(16))


@pytest.mark.parametrize("topic", PARTITION_COUNTS)
@pytest.mark.parametrize("key", [b"", b"evil", b"g\xff\xff", b"definition/\xff", b"\0"])
def test_a_fact_of_nobody_goes_to_the_first_partition(topic: str, key: bytes) -> None:
    assert partitions_of_fact(topic, key, b"") == (0,)


def test_everything_that_was_stored_is_there_after_the_conversion() -> None:
    disk = older()
    converted(disk)

    check_placed(disk)
    check_whole(disk)


def test_a_topic_of_many_facts_keeps_the_order_of_each_partition() -> None:
    disk = older()
    described = description.load(disk, f"{TOPICS}/{GROUPS_TOPIC}")
    disk.remove_tree(f"{TOPICS}/{GROUPS_TOPIC}")
    facts = {b"gname-%d" % number: b"%d" % number for number in range(PARTITION_COUNTS[GROUPS_TOPIC] * BATCH_FACTS * 2)}
    write_older(disk, f"{TOPICS}/{GROUPS_TOPIC}", described, facts)

    converted(disk)

    for number, some in journal_facts(disk, ROOT, GROUPS_TOPIC).items():
        assert list(some.items()) == [
            item for item in facts.items() if number in partitions_of_fact(GROUPS_TOPIC, *item)
        ]


def test_the_topics_keep_their_ids_and_settings() -> None:
    disk = older()
    before = {topic: description.load(disk, f"{TOPICS}/{topic}") for topic in PARTITION_COUNTS}

    converted(disk)

    for topic, old in before.items():
        new = description.load(disk, f"{TOPICS}/{topic}")
        assert (new.id, new.settings, new.created_at_ns) == (old.id, old.settings, old.created_at_ns)


def test_a_fact_that_cannot_be_decoded_is_carried_over_and_reported() -> None:
    disk = older()
    described = description.load(disk, f"{TOPICS}/{GROUPS_TOPIC}")
    facts = journal_facts(disk, ROOT, GROUPS_TOPIC)[0] | {b"gevil": b"\xc1\xff", b"nobody's": b"x"}
    disk.remove_tree(f"{TOPICS}/{GROUPS_TOPIC}")
    write_older(disk, f"{TOPICS}/{GROUPS_TOPIC}", described, facts)
    told: list[events.Event] = []

    broker = Broker.open(disk, ROOT, clock=ManualClock(), workers=ManualWorkers(), observe=told.append)

    assert broker.groups.names() == sorted(GROUPS)
    unreadable = {event.key: event.log for event in told if isinstance(event, events.FactUnreadable)}
    assert unreadable == {
        "b'gevil'": f"{TOPICS}/{GROUPS_TOPIC}/{partition_of('evil', GROUPS_TOPIC)}/log",
        '''b"nobody's"''': f"{TOPICS}/{GROUPS_TOPIC}/0/log",
    }
    broker.close()
    assert journal_facts(disk, ROOT, GROUPS_TOPIC)[partition_of("evil", GROUPS_TOPIC)][b"gevil"] == b"\xc1\xff"


def test_a_damaged_record_loses_its_fact_and_no_other() -> None:
    disk = older()
    path = f"{TOPICS}/{GROUPS_TOPIC}/0/log/{0:020d}.log"
    disk.flip_bit(path, disk.read(path).index(b"group-7") + 40)
    told: list[events.Event] = []

    converted(disk, told.append)

    node = Node(disk, ManualClock())
    assert set(GROUPS) - set(node.broker.groups.names()) <= {"group-7"}
    assert [event for event in told if isinstance(event, events.DamageFound)]


# --- interrupted ---------------------------------------------------------------------------------


@pytest.mark.parametrize("keep", ["nothing", "everything", "random"])
def test_wherever_the_power_fails_nothing_is_lost(keep: str) -> None:
    whole = older()
    begin = whole.steps
    converted(whole)
    took = whole.steps - begin
    swapping = 40  # the steps after all is built
    formats = set()

    for step in [*range(0, took - swapping, took // 15), *range(took - swapping, took)]:
        disk = older()
        disk.power_off_after = disk.steps + step
        with suppress(PowerLoss):
            converted(disk)
        crashed = disk.crash(seed=step, keep=keep)  # type: ignore[arg-type]
        if opens_before(crashed, ROOT):
            formats.add(FORMAT_BEFORE)
            for topic, facts in facts_before().items():  # the version before finds all of it, and may go on
                assert journal_facts(crashed, ROOT, topic) == {0: facts}
        else:
            formats.add(FORMAT)

        converted(crashed)

        check_placed(crashed)
        if step % 4 == 0:
            check_whole(crashed)
    assert formats == {FORMAT_BEFORE, FORMAT}


def test_a_conversion_that_is_interrupted_again_and_again_loses_nothing() -> None:
    disk = older()
    whole = older()
    begin = whole.steps
    converted(whole)
    for number in range(30):
        disk.power_off_after = disk.steps + (whole.steps - begin) * (number + 1) // 31
        with suppress(PowerLoss):
            converted(disk)
        disk = disk.crash(seed=number, keep="random")

    converted(disk)

    check_placed(disk)
    check_whole(disk)


def test_a_converted_directory_is_not_converted_again() -> None:
    disk = older()
    told: list[events.Event] = []
    converted(disk, told.append)
    converted_once = [event for event in told if isinstance(event, events.JournalsConverted)]
    facts = sum(len(some) for topic, some in facts_before().items() if PARTITION_COUNTS[topic] > 1)
    assert converted_once == [
        events.JournalsConverted(
            log=ROOT, topics=(GROUPS_TOPIC, SCHEDULES_TOPIC, TRANSACTIONS_TOPIC), facts=facts, data_format=FORMAT
        )
    ]
    told.clear()
    before = {path: disk.read(path) for path in disk.paths()}

    converted(disk, told.append)

    assert told == []
    assert {path: disk.read(path) for path in disk.paths()} == before


def test_a_new_directory_needs_no_conversion(disk: MemoryDisk) -> None:
    told: list[events.Event] = []

    converted(disk, told.append)

    assert told == []
    assert disk.read(f"{ROOT}/format") == b"goqueue-data %d\n" % FORMAT


# --- what stands in the way ----------------------------------------------------------------------


def test_a_full_disk_stops_the_start_and_changes_nothing() -> None:
    disk = older()
    before = {path: disk.read(path) for path in disk.paths()}
    disk.capacity_bytes = disk.used_bytes + 2_000

    with pytest.raises(StorageFull):
        converted(disk)

    assert {path: disk.read(path) for path in disk.paths() if not path.endswith("/lock")} == before
    disk.capacity_bytes = None
    converted(disk)
    check_whole(disk)


def test_a_topic_that_cannot_be_read_is_quarantined_and_converted_when_it_can() -> None:
    disk = older()
    path = f"{TOPICS}/{GROUPS_TOPIC}/topic.json"
    good = disk.read(path)
    disk.write(path, b"{}")
    node = Node(disk, ManualClock())
    with pytest.raises(TopicQuarantined):
        Consumer(node, "new")
    assert node.broker.schedules.get("orders", SCHEDULES[0]).runs == 1
    node.broker.close()
    assert not opens_before(disk, ROOT)

    disk.write(path, good)

    check_whole(disk)


def test_a_topic_that_the_disk_cannot_read_now_is_not_served_with_the_old_partitions() -> None:
    disk = older()
    faulty = FaultyDisk(disk, seed=1)
    faulty.fail_next("open", 13, path_suffix=f"{GROUPS_TOPIC}/0/log/{0:020d}.log")

    node = Node(faulty, ManualClock())

    assert node.broker.partitions.quarantined(GROUPS_TOPIC) is not None
    node.broker.close()
    check_whole(disk)


@pytest.mark.parametrize("leftover", [CONVERTED, UNCONVERTED])
def test_leftovers_of_an_interrupted_conversion_are_removed(leftover: str) -> None:
    disk = older()
    for path, content in older_files().items():
        if f"/{GROUPS_TOPIC}/" in path:
            disk.write(path.replace(GROUPS_TOPIC, GROUPS_TOPIC + leftover), content)

    converted(disk)

    check_placed(disk)
    check_whole(disk)


# --- versions ------------------------------------------------------------------------------------


def test_the_version_before_refuses_a_converted_directory_by_its_number() -> None:
    disk = older()
    assert opens_before(disk, ROOT)

    converted(disk)

    assert not opens_before(disk, ROOT)
    assert disk.read(f"{ROOT}/format") == b"goqueue-data 2\n"  # the version before opens only "goqueue-data 1"


def test_the_format_is_raised_before_anything_that_the_version_before_would_misread() -> None:
    """Between the two it would find a topic missing, and remove the converted one."""
    disk = older()
    seen: list[tuple[str, bytes]] = []

    class Watched(FaultyDisk):
        def rename(self, source: str, target: str) -> None:
            if target.rpartition("/")[0] == TOPICS:
                seen.append((target, disk.read(f"{ROOT}/format")))
            super().rename(source, target)

    converted(Watched(disk, seed=1))

    assert len(seen) == 6
    assert {content for _, content in seen} == {b"goqueue-data 2\n"}


def test_a_newer_directory_is_refused_by_its_number() -> None:
    disk = older()
    disk.write(f"{ROOT}/format", b"goqueue-data 3\n")

    with pytest.raises(UnsupportedFormat, match="data format 3; this GoQueue knows 1 and 2"):
        converted(disk)


def test_a_directory_whose_format_file_is_lost_is_converted_all_the_same() -> None:
    files = dict(older_files())
    del files[f"{ROOT}/format"]
    disk = MemoryDisk()
    for path, content in files.items():
        disk.write(path, content)

    check_whole(disk)
