"""Redrives: dead letters go back, each once, whatever happens in between."""

from contextlib import suppress
from datetime import UTC, datetime
from typing import Literal

import pytest

from goqueue.broker.config import BrokerConfig
from goqueue.broker.delivery.dead_letters import HISTORY_MAX
from goqueue.errors import (
    Forbidden,
    GoQueueError,
    InvalidRequest,
    TopicNotFound,
)
from goqueue.record import kernel
from goqueue.record.header import Priority
from goqueue.service.groups import Join
from goqueue.storage.checkpoint import SLOT_BYTES, SLOT_COUNT, SLOT_STRIDE_BYTES
from goqueue.testing import ManualClock, MemoryDisk, PowerLoss
from goqueue.tracing.context import is_trace_id
from goqueue.wire.reports import DeadLetterFilter, Settlement
from tests.broker.brokers import Node
from tests.broker.consumers import Consumer, outcomes
from tests.broker.dead_lettered import (
    ALL,
    answered,
    begun,
    create,
    dead_letter,
    ended,
    listed,
    message_of,
    messages_of,
    numbered,
    numbers,
    patient,
    redriven,
    values,
)


@pytest.fixture
def node(disk: MemoryDisk, clock: ManualClock) -> Node:
    node = Node(disk, clock)
    create(node)
    return node


# --- putting back ----------------------------------------------------------------------------------


def test_what_consumers_reject_comes_back_as_it_was(disk: MemoryDisk, clock: ManualClock) -> None:
    node = Node(disk, clock)
    node.create("orders", partitions=2)
    records = kernel.encode(
        [b"v", None],
        keys=[b"k", b""],
        headers=[[("color", "red"), ("b", None), ("b", b"\xff"), ("b", ""), ("gq-created", "1")], None],
        priorities=[Priority.HIGH, Priority.LOW],
    )
    node.done(node.broker.messages.publish_records("orders", 1, records))
    reject(node, 2)
    assert [letter.reason for letter in node.broker.dead_letters.list("orders", ALL)] == ["REJECTED"] * 2

    assert numbers(redriven(node)) == ("done", 2, 2, 0, 0)

    first, second = messages_of(node, partition=1)[2:]
    assert (first.key, first.value, first.priority) == (b"k", b"v", Priority.HIGH)
    headers = first.headers
    assert is_trace_id(headers.pop("gq-trace"))
    told = {"gq-origin": "orders.dlq:1:0", "gq-redrives": "1", "gq-for-group": "billing"}
    assert headers == {"color": "red", "b": "", **told}
    assert first.raw_headers[:4] == [("color", b"red"), ("b", None), ("b", b"\xff"), ("b", b"")]
    assert first.created_at == datetime(1970, 1, 1, tzinfo=UTC)
    assert (second.tombstone, second.key, second.priority) == (True, b"", Priority.LOW)
    assert node.broker.dead_letters.describe("orders").messages == 0


def reject(node: Node, count: int, group: str = "billing") -> None:
    """Take that many messages as a consumer, and want none of them."""
    member = node.done(node.broker.groups.join(group, Join("c", ("orders",)))).member_id
    for _ in range(count):
        polled = node.broker.groups.poll(group, member, max_messages=1).result().polled
        for batch in polled.batches:
            node.done(
                node.broker.groups.settle_batch(
                    batch.topic, batch.partition, batch.nonce, b"", Settlement("reject", reason="no")
                )
            )
    node.done(node.broker.groups.leave(group, member))


def test_a_message_that_dies_again_and_again_is_put_back_no_more(disk: MemoryDisk, clock: ManualClock) -> None:
    node = Node(disk, clock)
    node.create("orders")
    node.publish(b"poison")

    for turn in range(3):
        reject(node, 1)
        assert [letter.redrives for letter in node.broker.dead_letters.list("orders", ALL)] == [turn]
        assert numbers(redriven(node)) == ("done", 1, 1, 0, 0)
    reject(node, 1)

    plan = node.broker.dead_letters.plan("orders", ALL)
    assert (plan.matched, plan.skipped_loop, plan.sample) == (1, 1, [])
    assert numbers(redriven(node)) == ("done", 1, 0, 1, 0)
    assert node.values() == [b"poison"] * 4
    assert numbers(redriven(node, max_redrives=4)) == ("done", 1, 1, 0, 0)


def test_nothing_is_put_back_that_may_never_be(node: Node) -> None:
    dead_letter(node, b"a")

    assert numbers(redriven(node, max_redrives=0)) == ("done", 1, 0, 1, 0)
    assert listed(node) == [b"a"]


def test_a_limit_counts_what_is_put_back(node: Node) -> None:
    dead_letter(node, b"looped", headers={"gq-redrives": "3"})
    dead_letter(node, b"lost", origin="gone:0:1")
    dead_letter(node, *numbered(5))

    plan = node.broker.dead_letters.plan("orders", ALL, limit=2)
    assert (plan.matched, plan.skipped_loop) == (4, 1)
    assert [message_of(letter).value for letter in plan.sample] == [b"0", b"1"]
    assert numbers(redriven(node, limit=2)) == ("done", 4, 2, 1, 1)
    assert node.values() == [b"0", b"1"]


def test_a_plan_does_nothing(node: Node) -> None:
    dead_letter(node, *numbered(30))

    plan = node.broker.dead_letters.plan("orders", ALL)

    assert (plan.matched, plan.skipped_loop, len(plan.sample)) == (30, 0, 10)
    assert node.values() == []
    assert len(listed(node)) == 30
    assert node.broker.dead_letters.describe("orders").redrives == []


def test_many_letters_are_put_back_in_order_batch_by_batch(node: Node) -> None:
    dead_letter(node, *numbered(1_700))
    dead_letter(node, *numbered(3), partition=1)

    redrive = begun(node)
    assert redrive.state == "running"

    assert numbers(ended(node, redrive.id)) == ("done", 1_703, 1_703, 0, 0)
    assert node.values() == numbered(1_700)
    assert node.values(partition=1) == numbered(3)


def test_on_a_disk_that_answers_at_once_others_run_in_between(disk: MemoryDisk, clock: ManualClock) -> None:
    node = Node(disk, clock)
    create(node, flush="none")
    dead_letter(node, *numbered(5_000))

    redrive = begun(node)

    assert redrive.state == "running"
    assert 500 <= redrive.redriven <= 1_000
    assert numbers(ended(node, redrive.id)) == ("done", 5_000, 5_000, 0, 0)
    assert node.values() == numbered(5_000)


def test_letters_that_do_not_match_are_passed_over_while_others_run(node: Node) -> None:
    dead_letters = patient(node, stretch_bytes=1_000)
    dead_letter(node, *numbered(100))
    dead_letter(node, b"wanted", reason="TIMEOUT")

    redrive = answered(node, dead_letters.redrive("orders", DeadLetterFilter(reason="TIMEOUT")))
    assert (redrive.state, redrive.matched) == ("running", 0)
    node.pass_time(5)

    assert numbers(dead_letters.redrive_info("orders", redrive.id)) == ("done", 1, 1, 0, 0)
    assert node.values() == [b"wanted"]


def test_letters_that_die_after_it_began_are_not_for_a_redrive(node: Node) -> None:
    dead_letter(node, *numbered(3))
    redrive = begun(node, rate=1)
    dead_letter(node, b"late")

    assert ended(node, redrive.id).redriven == 3
    assert listed(node) == [b"late"]


def test_two_redrives_over_the_same_letters_put_each_back_once(node: Node) -> None:
    dead_letter(node, *numbered(1_200))

    redrives = [begun(node) for _ in range(3)]
    infos = [ended(node, one.id) for one in redrives]

    assert sum(info.redriven for info in infos) == 1_200
    assert all(info.state == "done" and info.matched == info.redriven for info in infos)
    assert sorted(node.values()) == sorted(numbered(1_200))


def test_letters_go_to_another_topic_when_that_is_asked_for(node: Node) -> None:
    node.create("parked", partitions=1)
    dead_letter(node, b"a", partition=1)
    dead_letter(node, b"b", origin="gone:3:1")

    assert numbers(redriven(node, target_topic="parked")) == ("done", 2, 2, 0, 0)

    assert sorted(node.values("parked")) == [b"a", b"b"]
    assert node.values() == node.values(partition=1) == []


def test_letters_whose_origin_is_gone_fail_and_stay(node: Node) -> None:
    dead_letter(node, b"a", b"b")
    node.done(node.broker.topics.delete("orders"))

    assert numbers(redriven(node)) == ("done", 2, 0, 0, 2)
    assert node.broker.dead_letters.describe("orders").messages == 2
    assert listed(node) == [b"a", b"b"]


def test_an_origin_with_fewer_partitions_takes_them_where_it_can(node: Node) -> None:
    dead_letter(node, b"a", origin="orders:5:1")

    assert redriven(node).redriven == 1
    assert node.values(partition=1) == [b"a"]


def test_what_died_among_the_dead_letters_goes_back_to_the_topic(node: Node) -> None:
    dead_letter(node, b"a", partition=1, origin="orders.dlq:1:0")

    assert redriven(node).redriven == 1
    assert node.values(partition=1) == [b"a"]


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"rate": -1}, InvalidRequest),
        ({"rate": float("nan")}, InvalidRequest),
        ({"rate": float("inf")}, InvalidRequest),
        ({"limit": -1}, InvalidRequest),
        ({"max_redrives": -1}, InvalidRequest),
        ({"to": "others"}, InvalidRequest),
        ({"to": ""}, InvalidRequest),
        ({"target_topic": "nowhere"}, TopicNotFound),
        ({"target_topic": "new.dlq"}, TopicNotFound),
        ({"target_topic": "orders.dlq"}, InvalidRequest),
        ({"target_topic": "__groups"}, Forbidden),
    ],
)
def test_a_redrive_that_cannot_be_is_refused(node: Node, options: dict[str, object], error: type[GoQueueError]) -> None:
    dead_letter(node, b"a")

    with pytest.raises(error):
        node.broker.dead_letters.redrive("orders", ALL, **options)  # type: ignore[arg-type]
    assert listed(node) == [b"a"]
    assert node.broker.dead_letters.describe("orders").redrives == []


def test_a_forged_origin_does_not_lead_into_internal_topics(node: Node) -> None:
    node.journal("__groups")
    dead_letter(node, b"evil", origin="__groups:0:0")

    assert numbers(redriven(node)) == ("done", 1, 0, 0, 1)
    assert node.leader("__groups").log.next_offset == 0


def test_letters_that_do_not_fit_any_more_fail_and_the_others_go(node: Node) -> None:
    dead_letter(node, b"small", b"x" * 5_000, b"little")
    huge = kernel.encode([b"h"], headers=[{"gq-origin": "orders:0:1", "x": "y" * 65_490}])
    node.done(node.broker.messages.publish_records("orders.dlq", 0, huge))
    node.done(node.broker.topics.alter("orders", {"max_message_bytes": 1_024}))

    assert numbers(redriven(node)) == ("done", 4, 2, 0, 2)
    assert node.values() == [b"small", b"little"]
    assert len(listed(node)) == 2


def test_a_target_that_goes_away_ends_the_redrive_and_the_letters_stay(node: Node) -> None:
    node.create("parked")
    dead_letter(node, *numbered(1_200))
    redrive = begun(node, target_topic="parked")
    node.done(node.broker.topics.delete("parked"))

    info = ended(node, redrive.id)

    assert info.state == "failed"
    assert "parked" in info.error
    assert node.broker.dead_letters.describe("orders").messages == 1_200 - info.redriven
    assert redriven(node).redriven == 1_200 - info.redriven


def test_a_queue_that_goes_away_ends_its_redrives(node: Node) -> None:
    dead_letter(node, *numbered(10))
    redrive = begun(node, rate=1)
    node.done(node.broker.topics.delete("orders.dlq"))
    node.pass_time(3)

    info = node.broker.dead_letters.redrive_info("orders", redrive.id)

    assert info.state == "failed"
    assert "orders.dlq" in info.error


def test_a_redrive_leaves_the_letters_of_another_queue_of_that_name_alone(node: Node) -> None:
    dead_letter(node, *numbered(10))
    redrive = begun(node, rate=1)
    node.done(node.broker.topics.delete("orders.dlq"))
    node.create("orders.dlq", partitions=2)
    dead_letter(node, *numbered(10))

    info = ended(node, redrive.id)
    assert (info.state, info.error) == ("failed", "topic not found: orders.dlq")
    assert len(listed(node)) == 10


def test_a_limit_holds_for_letters_that_go_to_several_places(node: Node) -> None:
    for number in range(12):
        dead_letter(node, b"%d" % number, origin=f"orders:{number % 2}:{number}")

    assert numbers(redriven(node, limit=4)) == ("done", 4, 4, 0, 0)
    assert len(node.values() + node.values(partition=1)) == 4


# --- crashes ---------------------------------------------------------------------------------------


def test_what_was_put_back_stays_put_back_after_a_restart(node: Node, disk: MemoryDisk, clock: ManualClock) -> None:
    dead_letter(node, *numbered(4))
    info = redriven(node, DeadLetterFilter(offsets=[1, 2]))
    node.workers.run_all()

    again = Node(disk.crash(keep="nothing"), clock)

    assert listed(again) == [b"0", b"3"]
    assert again.broker.dead_letters.describe("orders").by_reason == {"REJECTED": 2}
    assert again.broker.dead_letters.describe("orders").redrives == [info]
    assert again.values() == [b"1", b"2"]


def prepared(clock: ManualClock) -> MemoryDisk:
    disk = MemoryDisk()
    node = Node(disk, clock)
    create(node)
    dead_letter(node, b"0", b"1", b"2")
    dead_letter(node, b"3", partition=1, origin="orders:0:9")
    return disk.crash(keep="everything")


def put_back_in_two(node: Node) -> None:
    redriven(node, DeadLetterFilter(offsets=[1]))
    redriven(node)


def check_each_is_there_once(disk: MemoryDisk, clock: ManualClock, where: object) -> None:
    again = Node(disk, clock)
    again.pass_time(2, step=0.5)

    dead, alive = listed(again), again.values()
    assert sorted(dead + alive) == numbered(4), where
    assert again.broker.dead_letters.describe("orders").messages == len(dead), where
    assert redriven(again).redriven == len(dead), where
    assert sorted(again.values()) == numbered(4), where


@pytest.mark.parametrize(("keep", "first"), [("nothing", 0), ("random", 17), ("everything", 31)])
def test_a_crash_at_any_byte_of_a_redrive_loses_no_letter_and_puts_none_back_twice(
    clock: ManualClock, keep: Literal["nothing", "random", "everything"], first: int
) -> None:
    whole = prepared(clock)
    node = Node(whole, clock)
    opened = whole.steps
    put_back_in_two(node)
    assert whole.steps > opened + 500

    for step in range(opened + first, whole.steps, 53):
        disk = prepared(clock)
        disk.power_off_after = step
        with suppress(PowerLoss):
            put_back_in_two(Node(disk, clock))
        check_each_is_there_once(disk.crash(seed=step, keep=keep), clock, step)


@pytest.mark.parametrize("keep", ["nothing", "everything"])
def test_a_crash_between_any_two_jobs_of_the_disk_loses_no_letter_and_puts_none_back_twice(
    clock: ManualClock, keep: Literal["nothing", "everything"]
) -> None:
    jobs = 0
    while True:
        disk = prepared(clock)
        node = Node(disk, clock)
        redrive = begun(node)
        for _ in range(jobs):
            if node.workers.jobs:
                node.workers.run_one()
            node.tick(0.05)
        is_over = node.broker.dead_letters.redrive_info("orders", redrive.id).state == "done"
        check_each_is_there_once(disk.crash(keep=keep), clock, jobs)
        if is_over:
            break
        jobs += 1
    assert jobs > 4


def test_a_letter_in_hand_at_a_crash_is_put_back_without_being_asked_for(clock: ManualClock) -> None:
    disk = prepared(clock)
    node = Node(disk, clock)
    node.broker.dead_letters.redrive("orders", DeadLetterFilter(offsets=[2]))
    while node.workers.jobs and not node.values():
        node.workers.run_one()
        if node.leader("orders.dlq").ledger.is_clean:
            break

    again = Node(disk.crash(keep="nothing"), clock)
    again.pass_time(2)

    assert again.values() == [b"2"]


def test_a_full_disk_ends_a_redrive_and_what_it_had_in_hand_follows_later(clock: ManualClock) -> None:
    disk = prepared(clock)
    node = Node(disk, clock)
    new_ledger_bytes = (SLOT_COUNT - 1) * SLOT_STRIDE_BYTES + SLOT_BYTES  # it is the first fact about the dead letters
    disk.capacity_bytes = disk.used_bytes + new_ledger_bytes + 250
    redrive = node.broker.dead_letters.redrive("orders", ALL)
    node.workers.run_all()
    (info,) = node.broker.dead_letters.describe("orders").redrives
    assert (info.id, info.state) == (redrive.result().id, "failed")
    assert info.error

    disk.capacity_bytes = None
    node.pass_time(5)

    redriven(node)
    assert sorted(node.values()) == numbered(4)
    assert listed(node) == []


@pytest.mark.parametrize("keep", ["nothing", "random", "everything"])
def test_a_redrive_goes_on_after_any_number_of_crashes_and_keeps_its_numbers(
    clock: ManualClock, keep: Literal["nothing", "random", "everything"]
) -> None:
    """With its id, filter, rate, limit and counters; the limit counts what was put back before each crash."""
    disk = MemoryDisk()
    node = Node(disk, clock)
    create(node)
    dead_letter(node, *numbered(40), reason="TIMEOUT")
    dead_letter(node, *[b"other"] * 5)
    dead_letter(node, b"tired", reason="TIMEOUT", headers={"gq-redrives": "3"})
    dead_letter(node, *numbered(40), partition=1, reason="TIMEOUT")
    first = begun(node, DeadLetterFilter(reason="TIMEOUT"), rate=20, limit=70)

    for crash in range(12):
        for _ in range(crash % 5):
            node.tick(0.1)
            if node.workers.jobs:
                node.workers.run_one()
        disk = disk.crash(seed=crash, keep=keep)
        node = Node(disk, clock)
    (found,) = node.broker.dead_letters.describe("orders").redrives
    assert (found.id, found.state, found.rate, found.started_at_ns) == (first.id, "running", 20, first.started_at_ns)

    info = ended(node, first.id)

    assert numbers(info) == ("done", 71, 70, 1, 0)
    assert node.values() == numbered(40)
    assert node.values(partition=1) == numbered(30)
    node.workers.run_all()
    again = Node(disk.crash(keep="nothing"), clock)
    assert again.broker.dead_letters.describe("orders").redrives == [info]


def test_a_redrive_that_was_stopped_stays_stopped_after_a_restart(node: Node, disk: MemoryDisk) -> None:
    dead_letter(node, *numbered(5))
    redrive = begun(node, rate=0.001)
    node.workers.run_all()
    stopped = answered(node, node.broker.dead_letters.stop_redrive("orders", redrive.id))

    again = Node(disk.crash(keep="nothing"), node.clock)
    again.pass_time(3_000, step=500)

    assert again.broker.dead_letters.redrive_info("orders", redrive.id) == stopped
    assert again.values() == [b"0"]


def test_the_history_of_redrives_is_bounded_over_restarts(node: Node, disk: MemoryDisk) -> None:
    dead_letter(node, b"a")
    ids = [redriven(node, DeadLetterFilter(offsets=[7])).id for _ in range(HISTORY_MAX + 5)]
    node.workers.run_all()

    again = Node(disk.crash(keep="nothing"), node.clock)

    assert {one.id for one in again.broker.dead_letters.describe("orders").redrives} == set(ids[5:])


# --- for whom --------------------------------------------------------------------------------------


def given_up_by_billing(node: Node) -> tuple[Consumer, Consumer]:
    """Two groups that got three messages each: audit acknowledged all, billing rejected the second."""
    node.publish(b"a", b"b", b"c")
    billing, audit = Consumer(node, "billing"), Consumer(node, "audit")
    audit.ack(audit.poll())
    first, second, third = billing.poll()
    billing.ack([first, third])
    billing.settle("reject", [second])
    return billing, audit


def test_a_redriven_message_goes_only_to_the_group_that_gave_it_up(node: Node, disk: MemoryDisk) -> None:
    billing, audit = given_up_by_billing(node)

    assert redriven(node).to == "group"

    assert audit.poll() == []
    assert node.broker.groups.describe("audit").lag == 0
    assert node.broker.groups.describe("billing").lag == 1
    (report, _) = node.broker.groups.lanes("orders", "audit")
    assert (report.pending, report.ready) == ([0] * 5, [0] * 5)
    new = Consumer(node, "new")
    assert values(new.poll()) == [b"a", b"b", b"c"]
    again = Node(disk.crash(keep="everything"), node.clock)
    assert again.broker.groups.describe("audit").lag == 0
    assert audit.moved_to(again).poll() == []
    (message,) = billing.moved_to(again).poll()
    assert (message.value, message.count) == (b"b", 1)
    billing.moved_to(again).ack([message])
    assert again.broker.groups.describe("billing").lag == 0
    assert again.values() == [b"a", b"b", b"c", b"b"]  # plain reads see all


def test_a_redriven_message_goes_to_all_groups_when_that_is_asked_for(node: Node) -> None:
    billing, audit = given_up_by_billing(node)

    assert redriven(node, to="all").to == "all"

    assert values(audit.poll()) == values(billing.poll()) == [b"b"]


def test_the_group_that_gave_a_redriven_message_up_again_is_the_one_that_gets_it(node: Node) -> None:
    billing, audit = given_up_by_billing(node)
    redriven(node)
    billing.settle("reject", billing.poll())

    redriven(node)

    assert values(billing.poll()) == [b"b"]
    assert audit.poll() == []


def test_messages_of_several_groups_go_to_each_of_them(node: Node) -> None:
    node.publish(b"a", b"b", b"c")
    members = [Consumer(node, name) for name in ("one", "two")]
    for member, kept in zip(members, (0, 1), strict=True):
        messages = member.poll()
        member.ack([messages.pop(kept)])
        member.settle("reject", messages)

    redriven(node)

    assert [values(member.poll()) for member in members] == [[b"b", b"c"], [b"a", b"c"]]


def test_in_another_topic_a_redriven_message_is_for_all_unless_its_group_is_asked_for(node: Node) -> None:
    billing, _ = given_up_by_billing(node)
    node.create("parked")
    parked = [Consumer(node, name, topics=("parked",)) for name in ("audit of parked", "billing")]

    assert redriven(node, target_topic="parked").to == "all"
    first, second = (member.poll() for member in parked)
    assert values(first) == values(second) == [b"b"]

    node.publish(b"d")
    billing.settle("reject", billing.poll())
    assert redriven(node, target_topic="parked", to="group").to == "group"
    first, second = (member.poll() for member in parked)
    assert (values(first), values(second)) == ([], [b"d"])


def test_a_letter_that_names_no_group_of_the_topic_goes_to_all(node: Node) -> None:
    """Nobody gave it up, or a group that read the dead letters themselves."""
    _, audit = given_up_by_billing(node)
    undertaker = Consumer(node, "undertaker", topics=("orders.dlq",))
    undertaker.settle("reject", undertaker.poll())
    by_hand = kernel.encode([b"by hand"], headers=[{"gq-origin": "orders:0:1"}])
    node.done(node.broker.messages.publish_records("orders.dlq", 0, by_hand))

    redriven(node, DeadLetterFilter(offsets=[1, 2]))

    assert sorted(values(audit.poll())) == [b"b", b"by hand"]


def test_a_topic_with_a_time_to_live_gives_its_dead_letters_back_to_their_group(disk: MemoryDisk) -> None:
    node = Node(disk, ManualClock())
    node.create(ttl="10s", on_expire="dead_letter")
    node.publish(b"a")
    audit, late = Consumer(node, "audit"), Consumer(node, "late")
    audit.ack(audit.poll())
    node.pass_time(20, step=5)
    assert late.poll() == []
    node.pass_time(1)

    assert numbers(redriven(node)) == ("done", 1, 1, 0, 0)

    assert audit.poll() == []
    assert values(late.poll()) == [b"a"]


def test_a_redrive_goes_on_while_leaders_change(node: Node) -> None:
    for partition in (0, 1):
        dead_letter(node, *numbered(60), partition=partition, reason="TIMEOUT")
    redrive = begun(node, rate=200, limit=110)
    places = [(topic, partition) for topic in ("orders", "orders.dlq") for partition in (0, 1)]

    for turn in range(200):
        place = places[turn % 4] if turn % 3 else places[turn % 2 + 2]
        node.broker.partitions.resign(*place)
        for _ in range(turn % 3):
            if node.workers.jobs:
                node.workers.run_one()
        node.tick(0.05)
        node.broker.partitions.become_leader(*place)
        if turn % 5 == 0:
            node.workers.run_all()

    assert numbers(ended(node, redrive.id)) == ("done", 110, 110, 0, 0)
    found = [node.values(partition=partition) for partition in (0, 1)]
    assert [len(one) for one in found] == [len(set(one)) for one in found]
    assert sum(map(len, found)) == 110
    assert [one.id for one in node.broker.dead_letters.describe("orders").redrives] == [redrive.id]


# --- other dead-letter topics --------------------------------------------------------------------


def sharing(disk: MemoryDisk) -> Node:
    """Two topics that share a dead-letter topic, with dead letters of both."""
    node = Node(disk, ManualClock())
    for topic in ("orders", "payments"):
        node.create(topic, dead_letter_topic="graveyard")
        node.publish(*[f"{topic} {n}".encode() for n in range(3)], topic=topic)
        member = Consumer(node, "billing", topics=(topic,))
        member.settle("reject", member.poll())
        member.leave()
    return node


def test_dead_letters_go_to_the_topic_that_is_set(disk: MemoryDisk) -> None:
    node = Node(disk, ManualClock())
    node.create(partitions=2, dead_letter_topic="graveyard")
    node.publish(b"a", partition=1)
    member = Consumer(node)

    (settled,) = member.settle("reject", member.poll())

    assert not isinstance(settled, GoQueueError)
    assert (settled.dlq_topic, settled.dlq_partition, settled.dlq_offset) == ("graveyard", 1, 0)
    assert node.broker.topics.list() == ["graveyard", "orders"]
    (letter,) = node.broker.dead_letters.list("orders", ALL)
    assert letter.dlq_topic == "graveyard"
    assert node.broker.topics.describe("orders").settings["dead_letter_topic"] == "graveyard"
    assert node.broker.topics.describe("graveyard").settings["dead_letter_topic"] == "graveyard.dlq"
    assert [(one.topic, one.dlq_topic) for one in node.broker.dead_letters.queues()] == [("orders", "graveyard")]
    assert numbers(redriven(node)) == ("done", 1, 1, 0, 0)
    assert node.values(partition=1) == [b"a", b"a"]


def test_topics_that_share_a_dead_letter_topic_see_their_own_dead_letters_only(disk: MemoryDisk) -> None:
    node = sharing(disk)
    node.publish(b"by hand", topic="graveyard")

    for topic in ("orders", "payments"):
        queue = node.broker.dead_letters.describe(topic)
        assert (queue.topic, queue.dlq_topic, queue.messages) == (topic, "graveyard", 3)
        assert queue.by_reason == {"REJECTED": 3}
        assert {letter.origin_topic for letter in node.broker.dead_letters.list(topic, ALL)} == {topic}
        assert node.broker.dead_letters.plan(topic, ALL).matched == 3
    assert [(one.topic, one.messages) for one in node.broker.dead_letters.queues()] == [("orders", 3), ("payments", 3)]

    assert numbers(redriven(node, DeadLetterFilter(offsets=[0, 1, 4, 6]))) == ("done", 2, 2, 0, 0)

    assert node.values() == [b"orders 0", b"orders 1", b"orders 2", b"orders 0", b"orders 1"]
    assert len(node.values("payments")) == 3
    assert [node.broker.dead_letters.describe(topic).messages for topic in ("orders", "payments")] == [1, 3]


def test_a_topic_whose_dead_letter_topic_has_its_name_has_all_that_are_of_no_other_topic(disk: MemoryDisk) -> None:
    node = Node(disk, ManualClock())
    create(node)
    node.create("payments", dead_letter_topic="orders.dlq")
    node.publish(b"p", topic="payments")
    member = Consumer(node, topics=("payments",))
    member.settle("reject", member.poll())
    dead_letter(node, b"a")
    node.publish(b"by hand", topic="orders.dlq")

    assert listed(node) == [b"a", b"by hand"]
    assert node.broker.dead_letters.describe("orders").messages == 2
    assert node.broker.dead_letters.describe("payments").messages == 1
    assert node.broker.dead_letters.describe("orders.dlq").topic == "orders"


def test_dead_letters_that_were_left_in_the_old_topic_are_found_by_its_name(disk: MemoryDisk) -> None:
    node = Node(disk, ManualClock())
    create(node)
    node.publish(b"old", b"new")
    member = Consumer(node)
    old, new = member.poll()
    member.settle("reject", [old])

    node.done(node.broker.topics.alter("orders", {"dead_letter_topic": "graveyard"}))
    member.settle("reject", [new])

    assert listed(node) == [b"new"]
    queues = node.broker.dead_letters.queues()
    assert [(one.topic, one.dlq_topic, one.messages) for one in queues] == [
        ("orders", "graveyard", 1),
        ("orders.dlq", "orders.dlq", 1),
    ]
    info = answered(node, node.broker.dead_letters.redrive("orders.dlq", ALL))
    node.pass_time(1)
    assert node.broker.dead_letters.redrive_info("orders.dlq", info.id).redriven == 1
    assert node.values() == [b"old", b"new", b"old"]
    node.done(node.broker.topics.alter("orders", {"dead_letter_topic": None}))
    assert node.broker.dead_letters.describe("orders").dlq_topic == "orders.dlq"


def test_redrives_of_topics_that_share_a_dead_letter_topic_go_on_after_a_restart(disk: MemoryDisk) -> None:
    node = sharing(disk)
    redrives = {
        topic: answered(node, node.broker.dead_letters.redrive(topic, ALL, rate=1)).id
        for topic in ("orders", "payments")
    }

    again = Node(disk.crash(keep="everything"), node.clock)
    again.pass_time(10)

    for topic, redrive_id in redrives.items():
        assert [one.id for one in again.broker.dead_letters.describe(topic).redrives] == [redrive_id]
        assert numbers(again.broker.dead_letters.redrive_info(topic, redrive_id)) == ("done", 3, 3, 0, 0)
        assert len(again.values(topic)) == 6


def test_a_default_dead_letter_topic_is_not_for_itself(disk: MemoryDisk, clock: ManualClock) -> None:
    config = BrokerConfig(topic_defaults={"dead_letter_topic": "graveyard"}, maintenance_interval_ms=10_000)
    node = Node(disk, clock, config=config)
    node.create()
    node.publish(b"a")
    member = Consumer(node)
    assert outcomes(member.settle("reject", member.poll())) == ["rejected"]
    undertaker = Consumer(node, topics=("graveyard",))
    assert outcomes(undertaker.settle("reject", undertaker.poll())) == ["rejected"]

    assert node.broker.topics.list() == ["graveyard", "graveyard.dlq", "orders"]
