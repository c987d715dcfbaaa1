import errno
import json
from collections.abc import Callable

import pytest

from goqueue import events
from goqueue.errors import (
    Conflict,
    DirectoryUnusable,
    Forbidden,
    ForeignFile,
    InvalidTopic,
    PartitionNotFound,
    StorageFull,
    TopicExists,
    TopicNotFound,
    UnsupportedFormat,
)
from goqueue.storage.directory import DataDirectory
from goqueue.storage.file import OsDisk
from goqueue.storage.log import Log
from goqueue.testing import FaultyDisk, MemoryDisk
from goqueue.topics.catalog import Catalog
from tests.storage.logs import NOW_NS, append, values_of
from tests.topics.catalogs import ROOT, begin_create, create, run, start

DESCRIPTION = f"{ROOT}/topics/orders/topic.json"


@pytest.fixture
def catalog(disk: MemoryDisk) -> Catalog:
    return start(disk).catalog


def test_a_new_catalog_is_empty(catalog: Catalog) -> None:
    assert len(catalog) == 0
    assert catalog.names(internal=True) == []
    with pytest.raises(TopicNotFound, match="topic not found: orders"):
        catalog.get("orders")


def test_a_topic_is_there_once_its_creation_is_completed(catalog: Catalog) -> None:
    job = begin_create(catalog, retention="1h")
    assert "orders" not in catalog

    topic = run(catalog, job)

    assert catalog.get("orders") is topic
    assert (topic.name, topic.id, topic.created_at_ns) == ("orders", "1d", NOW_NS)
    assert topic.settings == {"retention": "1h"}
    assert topic.config.retention_ms == 3_600_000
    assert [partition.name for partition in topic.partitions] == ["orders-0", "orders-1"]
    assert topic.partitions[1].log.config.retention_ms == 3_600_000
    assert catalog.partition("orders", 1) is topic.partitions[1]
    assert list(catalog) == [topic]


@pytest.mark.parametrize("number", [2, -1])
def test_a_partition_that_the_topic_does_not_have_is_not_found(catalog: Catalog, number: int) -> None:
    create(catalog)

    with pytest.raises(PartitionNotFound):
        catalog.partition("orders", number)


def test_topics_are_the_same_after_a_restart(disk: MemoryDisk) -> None:
    data, catalog = start(disk)
    create(catalog, retention="1h", trace_sample_rate=0.1)
    create(catalog, "payments", partitions=1, topic_id="2d")
    append(catalog.partition("orders", 1).log, [b"one"])
    append(catalog.partition("orders", 1).ledger, [b"floor"])
    data.close()

    again = start(disk).catalog

    topic = again.get("orders")
    assert again.names() == ["orders", "payments"]
    assert (topic.id, topic.created_at_ns) == ("1d", NOW_NS)
    assert topic.settings == {"retention": "1h", "trace_sample_rate": 0.1}
    assert topic.config.trace_sample_rate == 0.1
    assert values_of(topic.partitions[1].log) == [b"one"]
    assert values_of(topic.partitions[1].ledger) == [b"floor"]


def test_names_are_sorted_and_show_internal_topics_only_when_asked(catalog: Catalog) -> None:
    for name in ("b", "a"):
        create(catalog, name)
    run(catalog, begin_create(catalog, "__groups", internal_ok=True))

    assert catalog.names() == ["a", "b"]
    assert catalog.names(internal=True) == ["__groups", "a", "b"]
    assert catalog.get("__groups").is_internal
    assert len(catalog) == 3


def test_internal_topics_are_neither_made_nor_deleted_by_users(catalog: Catalog) -> None:
    with pytest.raises(Forbidden, match="internal"):
        begin_create(catalog, "__groups")
    run(catalog, begin_create(catalog, "__groups", internal_ok=True))

    with pytest.raises(Forbidden, match="internal"):
        catalog.begin_delete("__groups")
    with pytest.raises(Forbidden, match="internal"):
        catalog.begin_alter("__groups", {"retention": "1h"})
    run(catalog, catalog.begin_delete("__groups", internal_ok=True))

    assert len(catalog) == 0


@pytest.mark.parametrize("partitions", [0, -1, 1001, True, 1.5])
def test_a_topic_has_from_one_to_a_thousand_partitions(catalog: Catalog, partitions: int) -> None:
    with pytest.raises(InvalidTopic, match="from 1 to 1000") as caught:
        begin_create(catalog, partitions=partitions)

    assert caught.value.facts()["setting"] == "num_partitions"
    create(catalog)


def test_what_is_wrong_with_a_new_topic_is_said_before_anything_is_made(catalog: Catalog, disk: MemoryDisk) -> None:
    steps = disk.steps

    with pytest.raises(InvalidTopic, match="must be 1 to 249"):
        begin_create(catalog, "a/b")
    with pytest.raises(InvalidTopic, match="no such setting"):
        begin_create(catalog, colour="red")
    with pytest.raises(InvalidTopic, match="flush"):
        begin_create(catalog, flush="always")

    assert disk.steps == steps


def test_dead_letters_cannot_come_back_to_their_topic(catalog: Catalog) -> None:
    create(catalog, name="a", dead_letter_topic="b")  # a topic that does not exist yet
    create(catalog, name="b", dead_letter_topic="c")

    for name, target, why in (("c", "c", "another topic"), ("c", "a", "c -> a -> b -> c")):
        with pytest.raises(InvalidTopic, match=why) as told:
            begin_create(catalog, name=name, dead_letter_topic=target)
        assert told.value.setting == "dead_letter_topic"
    create(catalog, name="c")
    create(catalog, name="c.dlq")
    for name, target in (("c", "a"), ("c.dlq", "a"), ("b", "b")):
        with pytest.raises(InvalidTopic):
            catalog.begin_alter(name, {"dead_letter_topic": target})
    run(catalog, catalog.begin_alter("a", {"dead_letter_topic": "c"}))
    run(catalog, catalog.begin_alter("b", {"dead_letter_topic": "a"}))


def test_settings_that_are_null_are_left_at_their_defaults(catalog: Catalog) -> None:
    assert create(catalog, retention=None, ttl=None, acks="leader").settings == {"acks": "leader"}


def test_a_name_is_taken_from_the_moment_its_creation_begins(catalog: Catalog) -> None:
    job = begin_create(catalog)
    with pytest.raises(TopicExists, match="orders"):
        begin_create(catalog)

    run(catalog, job)

    with pytest.raises(TopicExists, match="orders"):
        begin_create(catalog)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize(
    ("operation", "suffix"),
    [
        ("make_directory", "/orders"),
        ("open", "topic.json.new"),
        ("sync_directory", "/topics"),
        ("append", "topic.json.new"),
        ("sync", "topic.json.new"),
        ("rename", "topic.json"),
        ("sync_directory", "/orders"),
    ],
)
def test_a_creation_that_failed_leaves_nothing_in_the_way_of_the_next(operation: str, suffix: str, number: int) -> None:
    memory = MemoryDisk()
    disk = FaultyDisk(memory, seed=0)
    catalog = start(disk).catalog
    disk.fail_next(operation, number, path_suffix=suffix)  # type: ignore[arg-type]

    with pytest.raises(StorageFull if number == errno.ENOSPC else DirectoryUnusable, match=ROOT):
        create(catalog)

    assert "orders" not in catalog
    assert not any("orders" in path for path in memory.paths())
    assert create(catalog, topic_id="2d").id == "2d"
    assert start(memory.crash()).catalog.get("orders").id == "2d"


def test_a_creation_whose_remains_could_not_be_removed_can_be_tried_again() -> None:
    memory = MemoryDisk()
    disk = FaultyDisk(memory, seed=0)
    catalog = start(disk).catalog
    disk.fail_next("sync_directory", path_suffix="/orders")
    disk.fail_next("remove", path_suffix="topic.json")
    with pytest.raises(DirectoryUnusable):
        create(catalog)
    assert DESCRIPTION in memory.paths()

    create(catalog, partitions=1, topic_id="2d")

    assert start(memory.crash()).catalog.get("orders").id == "2d"


def test_a_topic_whose_logs_do_not_open_is_not_there() -> None:
    memory = MemoryDisk()
    disk = FaultyDisk(memory, seed=0)
    catalog = start(disk).catalog
    job = begin_create(catalog)
    job.run()
    disk.fail_next("entries", path_suffix="/1/log")

    with pytest.raises(DirectoryUnusable):
        catalog.complete(job)

    assert "orders" not in catalog
    create(catalog, topic_id="2d")
    assert start(memory.crash()).catalog.names() == ["orders"]


def test_settings_are_changed_durably_and_reach_the_logs(disk: MemoryDisk) -> None:
    catalog = start(disk).catalog
    topic = create(catalog, retention="1h", acks="leader")
    ledger = topic.partitions[0].ledger

    changed = run(catalog, catalog.begin_alter("orders", {"retention": "2h", "acks": None, "flush": "none"}))

    assert changed is topic
    assert topic.settings == {"retention": "2h", "flush": "none"}
    assert topic.config.acks == "all"
    assert [partition.log.config.retention_ms for partition in topic.partitions] == [7_200_000, 7_200_000]
    assert ledger.config.flush == "none"
    assert topic.partitions[1].ledger.config.flush == "none"
    assert start(disk.crash()).catalog.get("orders").settings == topic.settings


def test_settings_stay_as_they_are_until_the_change_is_completed(catalog: Catalog) -> None:
    topic = create(catalog)
    job = catalog.begin_alter("orders", {"retention": "2h"})
    job.run()

    assert topic.settings == {}
    assert topic.partitions[0].log.config.retention_ms == 168 * 3_600_000


def test_a_change_that_cannot_be_is_refused_and_changes_nothing(catalog: Catalog) -> None:
    create(catalog, retention="1h")

    for changes in ({"retention": 5}, {"colour": None}, {"acks": "leader", "flush": "always"}):
        with pytest.raises(InvalidTopic):
            catalog.begin_alter("orders", changes)
    with pytest.raises(TopicNotFound):
        catalog.begin_alter("payments", {})

    assert catalog.get("orders").settings == {"retention": "1h"}


@pytest.mark.parametrize(("before", "after"), [("murmur3", "murmur2"), ("murmur2", "murmur3"), ("murmur2", None)])
def test_a_partitioner_is_for_ever(catalog: Catalog, before: str, after: str | None) -> None:
    create(catalog, partitioner=before)

    with pytest.raises(InvalidTopic, match="cannot be changed") as caught:
        catalog.begin_alter("orders", {"partitioner": after})

    assert caught.value.facts()["setting"] == "partitioner"
    run(catalog, catalog.begin_alter("orders", {"partitioner": before, "retention": "1h"}))
    assert catalog.get("orders").config.partitioner == before


def test_one_change_at_a_time(catalog: Catalog) -> None:
    create(catalog)
    first = catalog.begin_alter("orders", {"retention": "1h"})

    with pytest.raises(Conflict, match="under way"):
        catalog.begin_alter("orders", {"acks": "leader"})
    run(catalog, first)
    run(catalog, catalog.begin_alter("orders", {"acks": "leader"}))

    assert catalog.get("orders").settings == {"retention": "1h", "acks": "leader"}


def test_a_change_that_failed_changes_nothing_and_may_be_tried_again() -> None:
    disk = FaultyDisk(MemoryDisk(), seed=0)
    catalog = start(disk).catalog
    topic = create(catalog)
    disk.fail_next("append", errno.ENOSPC, path_suffix="topic.json.new")

    with pytest.raises(StorageFull, match=ROOT):
        run(catalog, catalog.begin_alter("orders", {"retention": "1h"}))
    assert topic.settings == {}

    run(catalog, catalog.begin_alter("orders", {"retention": "1h"}))
    assert topic.settings == {"retention": "1h"}


def test_a_deleted_topic_is_gone_at_once_and_its_files_with_the_job(disk: MemoryDisk) -> None:
    catalog = start(disk).catalog
    topic = create(catalog)
    append(topic.partitions[0].log, [b"one"])
    append(topic.partitions[0].ledger, [b"floor"])

    job = catalog.begin_delete("orders")

    assert catalog.names() == []
    assert all(partition.is_closed for partition in topic.partitions)
    with pytest.raises(Conflict, match="is closed"):
        append(topic.partitions[0].log, [b"two"])
    assert run(catalog, job) is topic
    assert not any("orders" in path for path in disk.paths())
    assert disk.open_files == 0
    assert start(disk.crash()).catalog.names() == []


def test_deleting_a_topic_that_is_not_there_is_refused(catalog: Catalog) -> None:
    with pytest.raises(TopicNotFound):
        catalog.begin_delete("orders")


def test_a_name_is_free_again_before_the_files_of_its_old_topic_are_gone(disk: MemoryDisk) -> None:
    data, catalog = start(disk)
    old = create(catalog)
    append(old.partitions[0].log, [b"old"])
    reader = old.partitions[0].log.reader(0)

    deletion = catalog.begin_delete("orders")
    new = create(catalog, topic_id="2d")
    append(new.partitions[0].log, [b"new"])
    run(catalog, deletion)

    assert values_of(new.partitions[0].log) == [b"new"]
    with pytest.raises(Conflict, match="is closed"):
        reader.read(max_bytes=100)
    data.close()
    assert values_of(start(disk).catalog.partition("orders", 0).log) == [b"new"]


def test_jobs_of_a_deleted_topic_do_not_touch_the_next_of_its_name(disk: MemoryDisk) -> None:
    catalog = start(disk).catalog
    log = create(catalog).partitions[0].log
    append(log, [b"old"])
    flush = log.begin_flush(monotonic_ns=0)
    alteration = catalog.begin_alter("orders", {"retention": "1h"})
    assert flush

    catalog.begin_delete("orders").run()
    new = create(catalog, topic_id="2d")
    flush.run()
    alteration.run()

    assert log.complete(flush) is None
    with pytest.raises(TopicNotFound):
        catalog.complete(alteration)
    assert new.settings == {}
    assert start(disk.crash()).catalog.get("orders").id == "2d"


def test_topics_of_the_longest_name_are_deleted_as_often_as_one_likes(catalog: Catalog) -> None:
    for _ in range(3):
        create(catalog, "x" * 249)
        catalog.begin_delete("x" * 249)

    assert len(catalog) == 0


def test_a_topic_that_cannot_be_renamed_stays_in_use() -> None:
    disk = FaultyDisk(MemoryDisk(), seed=0)
    catalog = start(disk).catalog
    topic = create(catalog)
    disk.fail_next("rename", path_suffix="/orders")

    with pytest.raises(DirectoryUnusable):
        catalog.begin_delete("orders")

    append(catalog.get("orders").partitions[0].log, [b"one"])
    assert values_of(topic.partitions[0].log) == [b"one"]


def test_a_deletion_that_cannot_be_made_durable_says_so() -> None:
    disk = FaultyDisk(MemoryDisk(), seed=0)
    catalog = start(disk).catalog
    create(catalog)
    disk.fail_next("sync_directory", path_suffix="/topics")

    with pytest.raises(DirectoryUnusable, match="topics"):
        run(catalog, catalog.begin_delete("orders"))

    assert "orders" not in catalog


def test_what_deletions_have_left_goes_when_the_catalog_is_opened(disk: MemoryDisk) -> None:
    data, catalog = start(disk)
    append(create(catalog).partitions[0].log, [b"one"])
    catalog.begin_delete("orders")
    data.close()
    assert any("~deleted~" in path for path in disk.paths())

    assert start(disk).catalog.names() == []

    assert not any("orders" in path for path in disk.paths())


def test_what_a_creation_has_left_goes_when_the_catalog_is_opened(disk: MemoryDisk) -> None:
    data, catalog = start(disk)
    create(catalog)
    data.close()
    disk.rename(DESCRIPTION, DESCRIPTION + ".new")

    assert start(disk).catalog.names() == []

    assert not any("orders" in path for path in disk.paths())


@pytest.mark.parametrize("kind", ["log", "ledger"])
def test_records_without_a_topic_are_never_removed(disk: MemoryDisk, kind: str) -> None:
    data, catalog = start(disk)
    partition = create(catalog).partitions[1]
    append(partition.log if kind == "log" else partition.ledger, [b"precious"])
    data.close()
    description = disk.read(DESCRIPTION)
    disk.remove(DESCRIPTION)
    before = disk.paths()

    for _ in range(2):
        with pytest.raises(DirectoryUnusable, match=f"{ROOT}/topics/orders/1/{kind}/.*holds records"):
            start(disk)

    assert disk.paths() == before
    disk.write(DESCRIPTION, description)
    found = start(disk).catalog.partition("orders", 1)
    assert values_of(found.log if kind == "log" else found.ledger) == [b"precious"]


@pytest.mark.parametrize(
    "path",
    ["topics/notes.txt", "topics/a b/x", "topics/orders/notes.txt", "topics/orders/0/x", "topics/orders/x/log/y"],
)
def test_a_stranger_among_the_topics_is_refused_and_left_alone(disk: MemoryDisk, path: str) -> None:
    start(disk).data.close()
    disk.write(f"{ROOT}/{path}", b"mine")

    with pytest.raises(ForeignFile, match=ROOT):
        start(disk)

    assert disk.read(f"{ROOT}/{path}") == b"mine"


def change(field: str, value: object) -> Callable[[bytes], bytes]:
    return lambda content: json.dumps({**json.loads(content), field: value}).encode()


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: b"",
        lambda content: content[:-10],
        lambda content: content.replace(b'"partitions":2', b'"partitions":1'),
        lambda content: content + b"x",
        lambda content: b"\xff" * 40,
        lambda content: b"[1]",
        change("partitions", "2"),
        change("settings", {"retention": "1h"}),
        change("owner", "me"),
    ],
)
def test_a_damaged_description_is_refused_and_named(disk: MemoryDisk, damage: Callable[[bytes], bytes]) -> None:
    data, catalog = start(disk)
    create(catalog)
    data.close()
    disk.write(DESCRIPTION, damage(disk.read(DESCRIPTION)))
    before = disk.paths()

    with pytest.raises(DirectoryUnusable, match=DESCRIPTION):
        start(disk)

    assert disk.paths() == before


def test_a_description_of_a_later_format_is_refused(disk: MemoryDisk) -> None:
    data, catalog = start(disk)
    create(catalog)
    data.close()
    disk.write(DESCRIPTION, b'{"format":2,"topic":"orders"}')

    with pytest.raises(UnsupportedFormat, match="topic format 2; this GoQueue knows 1"):
        start(disk)


def test_a_directory_with_the_description_of_another_topic_is_refused(disk: MemoryDisk) -> None:
    data, catalog = start(disk)
    create(catalog)
    data.close()
    disk.rename(f"{ROOT}/topics/orders", f"{ROOT}/topics/payments")

    with pytest.raises(DirectoryUnusable, match="payments.*describes the topic 'orders'"):
        start(disk)


def test_an_error_of_the_disk_keeps_the_catalog_from_opening() -> None:
    disk = FaultyDisk(MemoryDisk(), seed=0)
    data, catalog = start(disk)
    create(catalog)
    data.close()
    disk.fail_next("pread", path_suffix="topic.json")

    with pytest.raises(DirectoryUnusable, match="Input/output error"):
        start(disk)


def test_events_of_all_logs_reach_the_observer(disk: MemoryDisk) -> None:
    seen: list[events.Event] = []
    catalog = Catalog.open(DataDirectory.open(disk, ROOT), disk, observe=seen.append)
    partition = create(catalog).partitions[0]

    for log in (partition.log, partition.ledger):
        append(log, [b"one"])
        log.flush()

    assert {event.log for event in seen} == {f"{ROOT}/topics/orders/0/{kind}" for kind in ("log", "ledger")}


def test_few_files_are_open_however_many_topics_there_are(disk: MemoryDisk) -> None:
    data, catalog = start(disk)
    for number in range(100):
        log: Log = create(catalog, f"topic-{number}", partitions=1).partitions[0].log
        append(log, [b"one"])
        log.flush()
    assert disk.open_files <= 3 * 64
    data.close()

    catalog = start(disk).catalog

    assert len(catalog) == 100
    assert disk.open_files <= 3 * 64


def test_a_catalog_lives_on_the_disk_of_the_machine(tmp_path: object) -> None:
    disk, root = OsDisk(), f"{tmp_path}/data"
    data = DataDirectory.open(disk, root)
    catalog = Catalog.open(data, disk)
    append(create(catalog).partitions[1].log, [b"one"])
    run(catalog, catalog.begin_alter("orders", {"retention": "1h"}))
    create(catalog, "payments")
    run(catalog, catalog.begin_delete("payments"))
    data.close()

    again = Catalog.open(DataDirectory.open(disk, root), disk)

    assert again.names() == ["orders"]
    assert again.get("orders").settings == {"retention": "1h"}
    assert values_of(again.partition("orders", 1).log) == [b"one"]
