"""The checks of the simulator see what is wrong with a metadata log, with its authors and with what they say."""

from collections.abc import Iterator

import pytest

from goqueue.cluster.link import CallingNode
from goqueue.cluster.messages import (
    AlterPartitions,
    CreateTopic,
    IsrChange,
    IsrMember,
    IsrResult,
    PartitionsAltered,
    ProducerIdBlock,
    TakeProducerIds,
    TopicDecided,
    encode_answer,
    encode_message,
)
from goqueue.cluster.metadata import Metadata
from goqueue.cluster.metadata_log import EntryAppended, EntryLost, EntryUnknown, MetadataEntry, MetadataSnapshot
from goqueue.cluster.records import ControllerElected, Record, RequestDone, TopicAdded, encode_batch
from goqueue.runtime.entropy import SeededEntropy
from goqueue.testing import SimulatedEngine
from goqueue.testing.metadata_checks import MetadataAuthor, MetadataChecks
from goqueue.testing.simulated_process import ProcessLoop, SimulatedProcess
from goqueue.testing.simulation_transcript import SimulationTranscript
from tests.cluster.history import History, partition, with_topic


class CheckedLog:
    """A log that only `append` writes to, with the checks of it."""

    def __init__(self) -> None:
        self.loop = ProcessLoop()
        self.engine = SimulatedEngine(SeededEntropy(1))
        self.checks = MetadataChecks(self.engine, SimulationTranscript(self.loop, "a test"))
        self.history = History()
        self.authors = {node: self.author(node) for node in (1, 2, 3)}

    def author(self, node: int, incarnation: str = "a") -> MetadataAuthor:
        process = SimulatedProcess(self.loop, f"node {node}")
        return MetadataAuthor(node, f"{node}{incarnation}", process, applied=self.history.metadata)

    def append(self, entry: MetadataEntry, author: MetadataAuthor | None = None) -> None:
        """An append by this author, or the one that the entry names, that is answered."""
        author = author or self.authors[entry.node]
        self.checks.appending(author, entry)
        outcome = self.engine.append(entry)
        self.checks.outcome(author, entry, outcome)
        if isinstance(outcome, EntryAppended):
            self.history.take(entry)

    def write(self, *records: Record, **author: int) -> MetadataEntry:
        entry = self.history.entry(*records, **author)  # type: ignore[arg-type]
        self.append(entry)
        return entry

    def close(self) -> None:
        self.loop.close()


@pytest.fixture
def checked() -> Iterator[CheckedLog]:
    """A cluster of three brokers with a topic; node 1 is its controller."""
    checked = CheckedLog()
    for entry in with_topic().entries[:-1]:
        checked.append(entry)
    checked.write(TopicAdded("t1", "orders", 0, 1), partition(), RequestDone("r0", b"", 0))
    assert checked.checks.broken == []
    yield checked
    checked.close()


def elected(checked: CheckedLog, node: int) -> MetadataEntry:
    epoch = checked.history.metadata.epoch + 1
    return checked.history.entry(ControllerElected(epoch, node, f"{node}a"), epoch=epoch, node=node)


def rules(checked: CheckedLog) -> set[str]:
    checked.checks.follow()
    return {sentence.partition(":")[0] for sentence in checked.checks.broken}


def test_a_cluster_at_work_breaks_no_rule(checked: CheckedLog) -> None:
    checked.append(elected(checked, 2))
    checked.write(partition(leader=2, leader_epoch=2, partition_epoch=1))
    checked.checks.check_node(1, checked.history.metadata)
    checked.checks.check_snapshot(checked.checks.snapshot_at(4))

    assert rules(checked) == set()


def test_a_controller_that_was_deposed_must_not_append(checked: CheckedLog) -> None:
    checked.append(elected(checked, 2))

    late = checked.history.entry(partition(leader=2, leader_epoch=2, partition_epoch=1), epoch=1, node=1)
    checked.append(late)

    assert rules(checked) == {"M3"}


def test_an_entry_without_effect_had_an_author_who_was_wrong(checked: CheckedLog) -> None:
    stranger = checked.history.entry(partition(leader=2, leader_epoch=2, partition_epoch=1), node=3)

    checked.append(stranger)

    assert "M3" in rules(checked)


def test_another_process_of_the_node_is_not_the_controller(checked: CheckedLog) -> None:
    restarted = checked.author(1, "b")

    checked.append(checked.history.entry(partition(leader=2, leader_epoch=2, partition_epoch=1)), restarted)

    assert rules(checked) == {"M3"}


def test_an_election_names_the_process_that_appends_it(checked: CheckedLog) -> None:
    epoch = checked.history.metadata.epoch + 1

    checked.append(checked.history.entry(ControllerElected(epoch, 2, "2z"), epoch=epoch, node=2))

    assert rules(checked) == {"M6"}


def test_two_appends_at_a_time_are_one_too_many(checked: CheckedLog) -> None:
    author = checked.authors[1]
    checked.checks.appending(author, checked.history.entry(partition(partition_epoch=1, isr=(1, 2))))
    checked.checks.appending(author, checked.history.entry(partition(partition_epoch=1, isr=(1, 2))))

    assert rules(checked) == {"R4"}


@pytest.mark.parametrize("outcome", [EntryLost(), None])
def test_after_an_append_in_doubt_nothing_is_decided(checked: CheckedLog, outcome: EntryLost | None) -> None:
    author = checked.authors[1]
    entry = checked.history.entry(partition(partition_epoch=1, isr=(1, 2)))
    checked.checks.appending(author, entry)
    checked.checks.outcome(author, entry, outcome or EntryUnknown(entry.position))

    again = MetadataEntry(entry.index, b"x" * 16, entry.previous_id, entry.epoch, entry.node, entry.batch)
    checked.checks.appending(author, again)

    assert rules(checked) == {"R5"}


def test_the_same_entry_may_be_appended_again(checked: CheckedLog) -> None:
    author = checked.authors[1]
    entry = checked.history.entry(partition(partition_epoch=1, isr=(1, 2)))
    checked.checks.appending(author, entry)
    checked.checks.outcome(author, entry, EntryUnknown(entry.position))

    checked.append(entry)

    assert rules(checked) == set()


def test_a_decision_comes_after_what_it_was_computed_on(checked: CheckedLog) -> None:
    author = checked.authors[1]
    author.applied = Metadata()

    checked.append(checked.history.entry(partition(partition_epoch=1, isr=(1, 2))))

    assert rules(checked) == {"R3"}


def test_what_was_answered_as_appended_has_to_be_there(checked: CheckedLog) -> None:
    author = checked.authors[1]
    entry = checked.history.entry(partition(partition_epoch=1, isr=(1, 2)))
    checked.checks.appending(author, entry)

    checked.checks.outcome(author, entry, EntryAppended(entry.position))

    assert rules(checked) == {"M5"}


def test_what_was_answered_as_lost_must_not_be_there(checked: CheckedLog) -> None:
    author = checked.authors[1]
    entry = checked.history.entry(partition(partition_epoch=1, isr=(1, 2)))
    checked.checks.appending(author, entry)
    checked.checks.outcome(author, entry, EntryLost())

    checked.engine.append(entry)

    assert rules(checked) == {"M5"}


def test_a_node_with_another_state_is_found(checked: CheckedLog) -> None:
    other = with_topic(isr=(1, 2)).metadata

    checked.checks.check_node(2, other)

    assert rules(checked) == {"M2"}


def test_a_node_that_has_applied_what_is_not_in_the_log_is_found(checked: CheckedLog) -> None:
    ahead = with_topic()
    ahead.append(partition(partition_epoch=1, isr=(1, 2)))

    checked.checks.check_node(2, ahead.metadata)

    assert rules(checked) == {"M2"}


def test_a_snapshot_that_is_not_the_state_is_found(checked: CheckedLog) -> None:
    right = checked.checks.snapshot_at(4)
    wrong = Metadata.decode(right.state)
    wrong.next_producer_number = 7

    checked.checks.check_snapshot(MetadataSnapshot(right.position, wrong.encode()))

    assert rules(checked) == {"M4"}


def altered(checked: CheckedLog, *, broker_epoch: int, incarnation: str) -> None:
    """Node 1 takes node 3 out of the ISR, and is told that this was done."""
    brokers = checked.history.metadata.brokers
    members = tuple(IsrMember(node, brokers[node].broker_epoch, f"disk-{node}") for node in (1, 2))
    request = AlterPartitions(1, 1, broker_epoch, (IsrChange("t1", 0, 1, 0, members),))
    checked.write(partition(partition_epoch=1, isr=(1, 2)))
    answer = PartitionsAltered(1, (IsrResult(1),))
    checked.checks.answered(CallingNode(1, incarnation), encode_message(request), encode_message(answer))


def test_a_broker_acts_under_its_own_epoch(checked: CheckedLog) -> None:
    altered(checked, broker_epoch=checked.history.metadata.brokers[1].broker_epoch, incarnation="1a")

    assert rules(checked) == set()


def test_a_broker_must_not_act_under_an_old_epoch(checked: CheckedLog) -> None:
    altered(checked, broker_epoch=2, incarnation="1a")

    assert rules(checked) == {"M6"}


def test_another_process_must_not_act_under_the_epoch_of_the_broker(checked: CheckedLog) -> None:
    altered(checked, broker_epoch=checked.history.metadata.brokers[1].broker_epoch, incarnation="1z")

    assert rules(checked) == {"M6"}


def topic_created(checked: CheckedLog, *, request_id: str | None = "r1") -> TopicDecided:
    """The topic `t2` is created for this request."""
    answer = TopicDecided("t2")
    created: list[Record] = [TopicAdded("t2", "payments", 0, 1), partition(topic_id="t2")]
    if request_id is not None:
        created.append(RequestDone(request_id, encode_answer(answer), 0))
    checked.write(*created)
    return answer


def test_what_an_administrator_is_told_is_in_the_log(checked: CheckedLog) -> None:
    answer = topic_created(checked)

    checked.checks.carried_out(CreateTopic("r1", "payments"), answer, checked.history.metadata)

    assert rules(checked) == set()


@pytest.mark.parametrize("request_id", ["r2", None])
def test_a_request_that_was_not_carried_out_must_not_be_answered(checked: CheckedLog, request_id: str | None) -> None:
    answer = topic_created(checked, request_id=request_id)

    checked.checks.carried_out(CreateTopic("r1", "payments"), answer, checked.history.metadata)

    assert rules(checked) == {"A"}


def test_a_request_that_was_carried_out_must_not_be_refused(checked: CheckedLog) -> None:
    topic_created(checked)

    checked.checks.refused(CreateTopic("r1", "payments"))

    assert rules(checked) == {"A"}


def test_an_answer_is_given_by_a_node_that_has_applied_it(checked: CheckedLog) -> None:
    before = checked.history.metadata.copy()
    answer = topic_created(checked)

    checked.checks.carried_out(CreateTopic("r1", "payments"), answer, before)

    assert rules(checked) == {"A"}


def test_a_producer_number_is_given_once(checked: CheckedLog) -> None:
    state = Metadata()
    state.next_producer_number = 1000
    for _ in range(2):
        checked.checks.carried_out(TakeProducerIds(1), ProducerIdBlock(0, 1000), state)

    assert rules(checked) == {"A"}


def test_a_batch_that_is_no_batch_is_found(checked: CheckedLog) -> None:
    entry = checked.history.entry()
    checked.engine.append(
        MetadataEntry(entry.index, entry.id, entry.previous_id, entry.epoch, entry.node, encode_batch([])[:3])
    )

    assert "R1" in rules(checked)


def test_the_transcript_names_what_was_broken(checked: CheckedLog) -> None:
    checked.append(checked.history.entry(partition(partition_epoch=1, isr=(1, 2))), checked.author(1, "b"))

    assert "BROKEN M3: epoch 1 is of node 1 (1a)" in checked.checks._transcript.text


def test_a_transcript_of_another_run_has_another_digest() -> None:
    loop = ProcessLoop()
    one, other = (SimulationTranscript(loop, "a test") for _ in range(2))
    loop.close()

    one.absorb("request", 1, b"x")
    assert one.text != other.text
    other.absorb("request", 1, b"x")
    assert one.text == other.text
