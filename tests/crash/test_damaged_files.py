"""Every file of a data directory, damaged in every way: the broker starts, or names the file and says what to do.

A data directory with something of everything is built once, and what is true of it is written down: which records are
visible, which are hidden and why, where each partition ends. Then one file of a copy is damaged, a broker is started
on the copy, and whatever it shows is held against the truth. It may show less (records that were damaged, a topic that
is quarantined), but never

    - a record that is hidden: cancelled, not due yet, aborted, never committed, or a control record;
    - a wrong byte, or a record at an offset that is not its own;
    - an offset a second time;
    - less than all, if what is damaged is only a hint, or belongs to another topic.

`make test` takes a sample. `GOQUEUE_DAMAGE=all` flips bits all over each file, and cuts it at many lengths.
"""

import os
from collections.abc import Callable, Iterator
from functools import cache
from random import Random
from typing import NamedTuple

import pytest

from goqueue.clock import SECOND
from goqueue.errors import GoQueueError, TopicQuarantined
from goqueue.names import TopicPartition
from goqueue.record.header import Flags
from goqueue.record.message import decode_messages
from goqueue.service.messages import Stored
from goqueue.service.new_message import NewMessage
from goqueue.storage.layout import CHECKPOINT, COMPACTION, LEADER_EPOCHS, LOG, TRANSACTIONS
from goqueue.testing import ManualClock, MemoryDisk
from goqueue.wire.schema_reports import NewSchema
from tests.broker.brokers import ROOT, Node
from tests.broker.consumers import Consumer
from tests.broker.transactional import Owner

ALL = os.environ.get("GOQUEUE_DAMAGE") == "all"
DELAYS_SURVIVE_DAMAGE = True
"""Whether delayed messages stay hidden when the delay file or the ledger of their partition is damaged."""

TOPICS = ("orders", "latest", "orders.dlq")
UNUSED = ("lock",)
PLACES = (
    "data directory",
    *(f"{topic}{kind}" for topic in ("orders", "orders.dlq") for kind in ("", "/log", "/ledger")),
    *(
        f"{topic}{kind}"  # no group has done anything there, so there is no ledger
        for topic in ("latest", "__groups", "__schedules", "__schemas", "__transactions")
        for kind in ("", "/log")
    ),
)


class Truth(NamedTuple):
    """What there is: by topic the visible values by offset, the values that nobody may see, and where the log ends."""

    disk: MemoryDisk
    wall_ns: int
    visible: dict[str, dict[int, bytes]]
    delayed: dict[str, frozenset[int]]
    ends: dict[str, int]
    floors: dict[str, int]  # of the group "workers"


class Case(NamedTuple):
    """One file, and what becomes of it."""

    path: str
    way: str
    change: Callable[[bytes], bytes | None]


@cache
def truth() -> Truth:
    clock, disk = ManualClock(), MemoryDisk()
    node = Node(disk, clock)
    node.create("orders", segment_bytes=4096, max_deliveries=1)
    node.create("latest", segment_bytes=4096, cleanup="compact", dirty_ratio=0.01)
    for number in range(12):
        node.publish(*(b"plain %d/%d " % (number, one) + b"x" * 300 for one in range(3)))
        node.messages(
            *(NewMessage(b"%d" % number + b"y" * 500, key=b"key %d" % (number % 4)) for _ in range(2)), topic="latest"
        )
    hour = clock.wall_ns() + 3600 * SECOND
    pending = _offsets(node.messages(*(NewMessage(b"pending", key=b"p", deliver_at_ns=hour) for _ in range(3))))
    cancelled = _offsets(node.messages(*(NewMessage(b"cancelled", key=b"c", deliver_at_ns=hour) for _ in range(3))))
    node.done(node.broker.delays.cancel("orders", key=b"c"))
    committed, aborted = Owner(node, "committed"), Owner(node, "aborted")
    for owner in (committed, aborted):
        owner.begin()
    for number in range(3):
        committed.publish(b"committed %d" % number)
        aborted.publish(b"aborted %d" % number)
    committed.commit()
    aborted.abort()
    consumer = Consumer(node, "workers")
    got = consumer.poll(10)
    consumer.ack(got[:8])
    consumer.settle("reject", got[8:10])
    consumer.leave()
    node.done(node.broker.schedules.create("orders", "nightly", NewMessage(b"tick"), every_ns=24 * 3600 * SECOND))
    node.done(node.broker.schemas.register("other-value", NewSchema('{"type": "string"}', "JSON")))
    node.pass_time(60, step=5)
    unfinished = Owner(node, "open")
    unfinished.begin()
    unfinished.publish(b"uncommitted")
    node.publish(b"after it")
    node.workers.run_all()
    before = _shown(node)
    node.broker.close()
    assert node.leader("latest").log.cleaned_offset > 0
    node = Node(disk.crash(keep="everything"), clock)
    node.workers.run_all()
    visible = {topic: {**before[topic], **shown} for topic, shown in _shown(node).items()}
    assert b"after it" in visible["orders"].values()
    assert not any(
        value.startswith((b"aborted", b"uncommitted", b"pending", b"canc")) for value in visible["orders"].values()
    )
    ends = {topic: node.leader(topic).log.next_offset for topic in TOPICS}
    floors = {"orders": 10}
    node.broker.close()
    delayed = {"orders": frozenset(pending + cancelled)}
    return Truth(node.disk, clock.wall_ns(), visible, delayed, ends, floors)  # type: ignore[arg-type]


def _offsets(stored: list[Stored | GoQueueError]) -> list[int]:
    return [one.offset for one in stored if isinstance(one, Stored)]


def _shown(node: Node) -> dict[str, dict[int, bytes]]:
    """Everything that a reader sees, by topic and offset."""
    return {topic: dict(_read(node, topic)) for topic in TOPICS if topic in node.broker.topics.list()}


def _read(node: Node, topic: str) -> Iterator[tuple[int, bytes]]:
    offset = 0
    while (result := node.read(topic, offset=offset)).record_count or result.next_offset > offset:
        messages = decode_messages(result.records, TopicPartition(topic, 0), flags=Flags.COMPRESSED)
        yield from ((message.offset, message.value) for message in messages)
        if result.next_offset <= offset:
            return
        offset = result.next_offset


def _ways(path: str, content: bytes) -> Iterator[Case]:
    yield Case(path, "missing", lambda _: None)
    yield Case(path, "emptied", lambda _: b"")
    rng = Random(path)
    lengths = {len(content) // 2, max(0, len(content) - 1)} | (
        {rng.randrange(len(content) or 1) for _ in range(20)} if ALL else set()
    )
    for length in sorted(lengths):
        yield Case(path, f"cut at {length}", lambda raw, length=length: raw[:length])  # type: ignore[misc]
    if content:
        used = [position for position, byte in enumerate(content) if byte] or [0]
        count = 60 if ALL else 3
        for position in sorted({rng.choice(used) for _ in range(count)} | {used[0], used[-1]}):
            bit = 1 << rng.randrange(8)
            yield Case(path, f"bit flipped at {position}", lambda raw, at=position, bit=bit: _flipped(raw, at, bit))  # type: ignore[misc]
    yield Case(path, "random bytes", lambda raw: rng.randbytes(len(raw)))


def _flipped(raw: bytes, position: int, bit: int) -> bytes:
    return raw[:position] + bytes([raw[position] ^ bit]) + raw[position + 1 :]


def _paths() -> list[str]:
    disk = truth().disk
    return sorted(path for path in disk.paths() if path.rpartition("/")[2] not in UNUSED)


@pytest.mark.parametrize("place", PLACES)
def test_a_broker_starts_or_names_the_file(place: str) -> None:
    failed = []
    paths = [path for path in _paths() if _place_of(path) == place]
    assert paths
    for path in paths:
        for case in _ways(path, truth().disk.read(path)):
            try:
                check(case)
            except (AssertionError, GoQueueError) as error:
                failed.append(f"{case.path}, {case.way}: {str(error).splitlines()[0]}")
    assert not failed, "\n".join(failed)


def _place_of(path: str) -> str:
    """Which of the places the file stands in."""
    parts = path.removeprefix(f"{ROOT}/").removeprefix("topics/").split("/")
    return "/".join(part for part in parts[:-1] if not part.isdecimal()) or "data directory"


def test_every_file_stands_in_one_of_the_places() -> None:
    assert {_place_of(path) for path in _paths()} == set(PLACES)


def check(case: Case) -> None:
    known = truth()
    disk = known.disk.crash(keep="everything")
    changed = case.change(disk.read(case.path))
    if changed is None:
        disk.remove(case.path)
    else:
        disk.write(case.path, changed)
    try:
        node = Node(disk, ManualClock(known.wall_ns))
    except GoQueueError as error:
        assert _place_of(case.path) == "data directory", f"one topic kept all of them from being served: {error}"
        assert case.path in str(error), f"the start failed without naming the file: {error}"
        return
    node.workers.run_all()
    for topic in TOPICS:
        try:
            node.broker.topics.describe(topic)
        except TopicQuarantined as error:
            assert f"/{topic}/" in case.path, f"{topic} is out because of another file"
            assert "restart the broker" in str(error)
            continue
        check_topic(node, topic, case)
    check_journals(node, case)
    node.broker.node.checks()
    node.broker.close()


def check_journals(node: Node, case: Case) -> None:
    """What the journals tell is still known, unless it is the files of that journal that are damaged."""
    broker = node.broker
    if "/__schemas/" not in case.path:
        assert broker.schemas.subjects() == ["other-value"]
    if "/__schedules/" not in case.path and broker.partitions.quarantined("orders") is None:
        assert [one.name for one in broker.schedules.list("orders")] == ["nightly"]
    if "/__groups/" not in case.path:
        assert "workers" in broker.groups.names()


def check_topic(node: Node, topic: str, case: Case) -> None:
    known = truth()
    visible = known.visible[topic]
    is_own = case.path.startswith(f"{ROOT}/topics/{topic}/")
    may_miss = is_own and case.path.endswith(LOG) and "/log/" in case.path
    is_excused = is_own and not DELAYS_SURVIVE_DAMAGE and ("/ledger/" in case.path or case.path.endswith("/delays"))
    excused = known.delayed.get(topic, frozenset()) if is_excused else frozenset()

    shown = {offset: value for offset, value in _read(node, topic) if offset not in excused}
    wrong = {offset: value for offset, value in shown.items() if visible.get(offset) != value}
    assert not wrong, f"{topic} shows what it must not: {wrong}"
    missing = visible.keys() - shown.keys()
    assert may_miss or not missing, f"{topic} does not show {sorted(missing)}"

    stored = node.publish(b"new", topic=topic)
    assert stored.first_offset >= known.ends[topic], f"the offset {stored.first_offset} was used before"
    if node.broker.partitions.quarantined("__groups") is not None:
        return

    consumer = Consumer(node, "newcomers", topics=(topic,))
    delivered: dict[int, bytes] = {}
    while got := consumer.poll(1000):
        delivered.update(
            (message.offset, message.value)
            for message in got
            if message.offset not in excused and message.offset != stored.first_offset
        )
        consumer.ack(got)
    wrong = {offset: value for offset, value in delivered.items() if visible.get(offset) != value}
    assert not wrong, f"a group gets of {topic} what it must not: {wrong}"
    missing = visible.keys() - delivered.keys()
    assert may_miss or not missing, f"a group does not get {sorted(missing)} of {topic}"

    is_ledger = is_own and "/ledger/" in case.path
    if topic in known.floors and not is_ledger and "__groups" not in case.path:
        floor = next(one.offset for one in node.broker.groups.positions("workers") if one.topic == topic)
        assert floor == known.floors[topic] or may_miss, f"the group stands at {floor}"


def test_the_directory_has_every_kind_of_file() -> None:
    names = {path.rpartition("/")[2] for path in _paths()}

    assert {CHECKPOINT, COMPACTION, TRANSACTIONS, "topic.json", "delays", "format"} <= names
    assert LEADER_EPOCHS not in names  # there is one node, and it never had another leader
    assert {name.rpartition(".")[2] for name in names} >= {"log", "index", "timeindex", "txnindex"}
