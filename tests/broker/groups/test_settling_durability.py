"""What was answered about a message holds after a kill and after a power cut, wherever it strikes."""

from collections.abc import Callable
from contextlib import suppress
from random import Random

import pytest

from goqueue.delivery.dead_letter import ORIGIN, parse_origin
from goqueue.testing import ManualClock, MemoryDisk
from goqueue.testing.memory_disk import PowerLoss
from goqueue.wire import reports
from tests.broker.brokers import Node, decoded
from tests.broker.consumers import Consumer, Got, floor, offsets, outcomes, restarted

COUNT = 30
SESSION_MS = 300_000


class Told:
    """What the members were told."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.published = 0
        self.acked: set[int] = set()
        self.dead: set[int] = set()
        self.leases: dict[int, Got] = {}  # the last that is known of each
        self.waiting: dict[int, int] = {}  # not to be delivered before
        self.in_question: set[int] = set()  # asked for, and not answered


def work(disk: MemoryDisk, told: Told, seed: int) -> None:
    """Members poll, settle and fall silent, by chance; every answer is noted."""
    rng = Random(seed)
    node = Node(disk, told.clock)
    node.create(max_deliveries=2, visibility_timeout="20s", backoff_initial="4s")
    node.publish(*(b"%d" % number for number in range(COUNT)))
    told.published = COUNT
    members = [Consumer(node, mode="shared", session_timeout_ms=SESSION_MS) for _ in range(2)]
    held: list[Got] = []
    for _ in range(40):
        member = rng.choice(members)
        match rng.choice(("poll", "poll", "ack", "ack", "nack", "reject", "extend", "time")):
            case "poll":
                found = member.poll(rng.randrange(1, 8))
                held += found
                for message in found:
                    told.waiting.pop(message.offset, None)
                    told.leases[message.offset] = message
            case "time":
                node.pass_time(rng.choice((0.5, 3, 25)), step=1)
            case action if held:
                rng.shuffle(held)
                chosen, held = held[:4], held[4:]
                told.in_question |= set(offsets(chosen))
                asked_ns = node.clock.wall_ns()
                results = member.settle(action, chosen, delay=60 if action == "extend" else None)
                told.in_question -= set(offsets(chosen))
                for message, result in zip(chosen, results, strict=True):
                    if not isinstance(result, reports.SettledMessage):
                        continue
                    told.leases.pop(message.offset, None)
                    match result.action:
                        case "ack":
                            told.acked.add(message.offset)
                        case "rejected" | "dlq":
                            told.dead.add(message.offset)
                        case "requeued":
                            told.waiting[message.offset] = result.at_ns
                        case "extended":
                            assert result.at_ns == asked_ns + 60_000_000_000
                            told.leases[message.offset] = message._replace(deadline_ns=result.at_ns)
                            held.append(message)


def dead_letters(node: Node) -> list[int]:
    """Where the dead letters came from."""
    if not node.broker.partitions.has_topic("orders.dlq"):
        return []
    found = []
    for message in decoded(node.read("orders.dlq")):
        origin = parse_origin(message.headers[ORIGIN])
        assert origin is not None
        found.append(origin[2])
    return found


def drain(node: Node, delivered: list[int]) -> None:
    """Work until nothing is left; notes what was delivered."""
    member = Consumer(node, mode="shared", session_timeout_ms=SESSION_MS)
    for _ in range(8):
        messages = member.poll()
        delivered += offsets(messages)
        assert set(outcomes(member.ack(messages))) <= {"ack"}
        node.pass_time(25, step=5)


def check(disk: MemoryDisk, told: Told, *, leases_hold: bool) -> None:
    node = Node(disk, told.clock)
    if not told.published:
        return
    if leases_hold and node.broker.groups.names():
        _check_leases(node, told)
    delivered: list[int] = []
    drain(node, delivered)

    dead_lettered = dead_letters(node)
    assert len(dead_lettered) == len(set(dead_lettered)), "twice among the dead letters"
    assert told.dead <= set(dead_lettered), "lost on the way to the dead letters"
    assert not told.acked & set(dead_lettered)
    assert not told.acked & set(delivered), "delivered again after its ack was answered"
    assert not told.dead & set(delivered), "delivered again after its dead letter was answered"
    assert floor(node) == COUNT, "stuck"
    assert told.acked | told.in_question | set(dead_lettered) | set(delivered) == set(range(COUNT)), "lost"


def _check_leases(node: Node, told: Told) -> None:
    """Whoever had a message still has it, and what waits is not early."""
    now_ns = node.clock.wall_ns()
    sure = {one: got for one, got in told.leases.items() if got.deadline_ns > now_ns and one not in told.in_question}
    waits = {one for one, at_ns in told.waiting.items() if at_ns > now_ns and one not in told.in_question}
    member = Consumer(node, mode="shared")
    early = set(offsets(member.poll())) & (set(sure) | waits)
    assert not early, "delivered while it was leased or waited"
    for offset, message in sure.items():
        assert outcomes(member.ack([message])) == ["ack"], "a receipt was not good any more"
        told.acked.add(offset)
    member.leave()


@pytest.mark.parametrize("seed", range(6))
def test_what_was_answered_survives_a_power_cut_at_any_step(seed: int) -> None:
    whole = MemoryDisk()
    work(whole, Told(), seed)

    for steps in range(seed, whole.steps, max(1, whole.steps // 25)):
        _cut_and_check(seed, steps, lambda disk: disk.crash(keep="nothing"), leases_hold=False)
        _cut_and_check(seed, steps, lambda disk: disk.crash(0), leases_hold=False)


@pytest.mark.parametrize("seed", range(6, 12))
def test_what_was_answered_survives_a_kill_at_any_step_and_leases_do_too(seed: int) -> None:
    whole = MemoryDisk()
    work(whole, Told(), seed)

    for steps in range(seed, whole.steps, max(1, whole.steps // 40)):
        _cut_and_check(seed, steps, lambda disk: disk.crash(keep="everything"), leases_hold=True)


def _cut_and_check(seed: int, steps: int, crash: Callable[[MemoryDisk], MemoryDisk], *, leases_hold: bool) -> None:
    disk, told = MemoryDisk(power_off_after=steps), Told()
    with suppress(PowerLoss):  # where numbers are shorter than the last time, the end may come before
        work(disk, told, seed)
    check(crash(disk), told, leases_hold=leases_hold)


def test_a_kill_while_nothing_happens_changes_nothing(node: Node) -> None:
    node.create()
    node.publish(b"a", b"b", b"c", b"d")
    member = Consumer(node)
    first, second, third = member.poll(3)
    member.ack([second])
    member.settle("nack", [third], delay=10)

    again = restarted(node)
    same = member.moved_to(again)

    assert offsets(same.poll()) == [3]
    assert outcomes(same.ack([second])) == ["RECEIPT_HANDLE_UNKNOWN"]
    assert outcomes(same.ack([first])) == ["ack"]
    again.pass_time(9.9)
    assert same.poll() == []
    again.pass_time(0.2)
    assert [(message.offset, message.count) for message in same.poll()] == [(2, 2)]
