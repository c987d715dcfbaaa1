"""Internal topics with several partitions: who coordinates what, and what comes and goes with a leader."""

import pytest

from goqueue.broker.coordination import (
    CHECK_NS,
    GROUPS_TOPIC,
    PARTITION_COUNTS,
    SCHEDULES_TOPIC,
    TRANSACTIONS_TOPIC,
    Coordinators,
    Journals,
    partition_of,
    schedule_key,
)
from goqueue.broker.partition.journal import SNAPSHOT_INTERVAL_NS, Journal
from goqueue.clock import SECOND
from goqueue.errors import GoQueueError, NotLeader
from goqueue.testing import FaultyDisk, ManualClock, MemoryDisk
from tests.broker.brokers import Node


class Recorder:
    """A coordinator that notes what it is told."""

    def __init__(self) -> None:
        self.facts: dict[int, dict[bytes, bytes]] = {}
        self.told: list[str] = []

    def attach(self, journal: Journal) -> None:
        self.told.append(f"attach {journal.partition}")
        self.facts[journal.partition] = journal.load()

    def detach(self, partition: int, error: GoQueueError) -> None:
        self.told.append(f"detach {partition}: {error.code}")
        del self.facts[partition]


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


def observed(node: Node, recorder: Recorder, topic: str = SCHEDULES_TOPIC) -> Journals:
    """The journals of a topic, with the recorder in the place of its coordinator."""
    journals = node.broker.coordinators.journals(topic)
    journals.coordinator = recorder
    return journals


# --- names ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "topic", "partition"),
    [
        ("billing", GROUPS_TOPIC, 1),
        ("", GROUPS_TOPIC, 0),
        ("größe", GROUPS_TOPIC, 15),
        (schedule_key("orders", "daily"), SCHEDULES_TOPIC, 0),
        ("job/1", TRANSACTIONS_TOPIC, 0),
    ],
)
def test_a_name_belongs_to_the_same_partition_in_every_version(name: str, topic: str, partition: int) -> None:
    assert partition_of(name, topic) == partition


def test_names_are_spread_over_all_partitions() -> None:
    for topic, count in PARTITION_COUNTS.items():
        if topic != TRANSACTIONS_TOPIC:
            assert {partition_of(f"name-{number}", topic) for number in range(500)} == set(range(count))


def test_all_transactional_ids_have_one_coordinator() -> None:
    """Any of them may be committed in one step."""
    assert {partition_of(f"{job}/{number}", TRANSACTIONS_TOPIC) for job in ("a", "b") for number in range(50)} == {0}


# --- the first use -------------------------------------------------------------------------------


def test_all_who_ask_for_a_journal_while_its_topic_is_created_get_the_same_one(node: Node) -> None:
    journals = node.broker.coordinators.journals(GROUPS_TOPIC)
    asked = [journals.open("billing") for _ in range(3)]
    assert not any(pending.is_done for pending in asked)

    found = {id(node.done(pending)) for pending in asked}

    assert len(found) == 1
    assert journals.find("billing") is asked[0].result()
    assert node.broker.topics.list(internal=True) == [GROUPS_TOPIC]
    assert len(list(journals)) == len(node.broker.topics.describe(GROUPS_TOPIC).partitions) == 16


def test_nothing_is_stored_about_a_name_before_the_first_use(node: Node) -> None:
    for topic in PARTITION_COUNTS:
        assert node.broker.coordinators.journals(topic).find("name") is None
    assert node.broker.topics.list(internal=True) == []


def test_every_partition_is_attached_when_the_topic_is_created_and_at_each_start(
    node: Node, recorder: Recorder
) -> None:
    journals = observed(node, recorder)
    journal = node.done(journals.open("orders/daily"))
    node.done(journal.put({b"key": b"value"}))
    attached = [f"attach {number}" for number in range(PARTITION_COUNTS[SCHEDULES_TOPIC])]
    assert recorder.told == attached
    node.broker.close()

    again, recorder = Node(node.disk, node.clock), Recorder()
    observed(again, recorder)
    again.broker.coordinators.begin()

    assert recorder.told == attached
    assert recorder.facts[journal.partition] == {b"key": b"value"}


# --- leaders come and go -------------------------------------------------------------------------


def test_a_leader_that_ends_detaches_its_partition_and_no_other(node: Node, recorder: Recorder) -> None:
    journals = observed(node, recorder)
    journal = node.done(journals.open_at(2))
    recorder.told.clear()

    node.broker.partitions.resign(SCHEDULES_TOPIC, 2)

    assert recorder.told == ["detach 2: NOT_LEADER"]
    assert [one.partition for one in journals] == [0, 1, 3]
    with pytest.raises(NotLeader, match="__schedules-2"):
        journals.at(2)
    with pytest.raises(NotLeader, match="__schedules-2"):
        node.done(journals.open_at(2))
    with pytest.raises(NotLeader):
        journal.put({b"late": b""})
    assert node.done(journals.open_at(1)).partition == 1


def test_a_write_that_waits_when_the_leader_ends_fails_before_the_detach(node: Node, recorder: Recorder) -> None:
    journal = node.done(observed(node, recorder).open_at(0))
    pending = journal.put({b"key": b"value"})
    order: list[str] = []
    pending.then(lambda _: order.extend(recorder.told))
    recorder.told.clear()

    node.broker.partitions.resign(SCHEDULES_TOPIC, 0)

    assert pending.is_done
    assert order == []
    with pytest.raises(NotLeader):
        pending.result()


def test_the_next_leader_attaches_what_was_stored(node: Node, recorder: Recorder) -> None:
    journals = observed(node, recorder)
    journal = node.done(journals.open_at(3))
    node.done(journal.put({b"a": b"1", b"b": b"2"}))
    node.broker.partitions.resign(SCHEDULES_TOPIC, 3)
    node.workers.run_all()

    node.broker.partitions.become_leader(SCHEDULES_TOPIC, 3)

    assert recorder.facts[3] == {b"a": b"1", b"b": b"2"}
    assert recorder.told[-1] == "attach 3"
    again = journals.at(3)
    assert again is not None
    assert again is not journal
    node.done(again.put({b"a": None}))
    assert again.load() == {b"b": b"2"}


def test_a_partition_is_attached_when_all_records_of_its_earlier_leader_are_committed(
    node: Node, recorder: Recorder
) -> None:
    journals = observed(node, recorder)
    journal = node.done(journals.open_at(0))
    journal.put({b"key": b"value"})
    node.broker.partitions.resign(SCHEDULES_TOPIC, 0)
    recorder.told.clear()

    node.broker.partitions.become_leader(SCHEDULES_TOPIC, 0)

    assert recorder.told == []
    with pytest.raises(NotLeader):
        journals.at(0)
    node.workers.run_all()
    assert recorder.told == ["attach 0"]
    assert recorder.facts[0] == {b"key": b"value"}


def test_a_leader_that_ends_before_it_is_attached_is_never_attached(node: Node, recorder: Recorder) -> None:
    journal = node.done(observed(node, recorder).open_at(0))
    journal.put({b"key": b"value"})
    recorder.told.clear()
    node.broker.partitions.resign(SCHEDULES_TOPIC, 0)
    node.broker.partitions.become_leader(SCHEDULES_TOPIC, 0)
    node.broker.partitions.resign(SCHEDULES_TOPIC, 0)

    node.workers.run_all()

    assert recorder.told == ["detach 0: NOT_LEADER"]


def test_a_journal_that_the_disk_cannot_read_now_is_attached_when_it_can(
    disk: MemoryDisk, clock: ManualClock, recorder: Recorder
) -> None:
    faulty = FaultyDisk(disk, seed=1)
    node = Node(faulty, clock)
    journal = node.done(observed(node, recorder).open_at(0))
    node.done(journal.put({b"key": b"value"}))
    node.broker.partitions.resign(SCHEDULES_TOPIC, 0)
    node.workers.run_all()
    recorder.told.clear()
    faulty.fail_next("pread", 5, path_suffix="__schedules/0/log/00000000000000000000.log", skip=0)
    node.broker.partitions.become_leader(SCHEDULES_TOPIC, 0)

    node.pass_time(3 * CHECK_NS / SECOND)

    assert recorder.told == ["attach 0"]
    assert recorder.facts[0] == {b"key": b"value"}


def test_snapshots_of_all_attached_journals_are_written_when_due(node: Node) -> None:
    journals = [node.journal(SCHEDULES_TOPIC, number) for number in range(2)]
    for journal in journals:
        node.done(journal.put({b"a": b"1"}))

    node.pass_time(2 * SNAPSHOT_INTERVAL_NS / SECOND + 5, step=5)

    for number in range(2):
        assert [key for key, _ in node.leader(SCHEDULES_TOPIC, number).ledger.facts()]


def test_topics_without_a_coordinator_are_nobodys_business(node: Node) -> None:
    node.create()
    coordinators = Coordinators(node.broker.partitions)

    coordinators.leader_began(node.leader())
    coordinators.leader_ended(node.leader())
    coordinators.read("orders")

    assert not [journal for topic in PARTITION_COUNTS for journal in coordinators.journals(topic)]
