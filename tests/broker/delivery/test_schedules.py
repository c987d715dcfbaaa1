"""Recurring messages on a broker: each run is in the log once, whatever happens in between."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from zoneinfo import ZoneInfo, reset_tzpath

import pytest

from goqueue.broker.coordination import SCHEDULES_TOPIC, partition_of, schedule_key
from goqueue.broker.delivery.schedules import ScheduleConfig, Schedules, TopicFacts, load_zone
from goqueue.clock import SECOND
from goqueue.errors import (
    AlreadyExists,
    BrokerUnavailable,
    Conflict,
    GoQueueError,
    InvalidConfig,
    InvalidMessage,
    InvalidRequest,
    MessageTooLarge,
    NotFound,
    NotLeader,
    PartitionNotFound,
    ProducerFenced,
    StorageFull,
    TopicNotFound,
)
from goqueue.names import TopicPartition
from goqueue.record.header import Flags
from goqueue.record.headers import decode_headers
from goqueue.record.message import StoredMessage, decode_messages
from goqueue.service.messages import ProducerEpoch, Stored
from goqueue.service.new_message import NewMessage
from goqueue.service.pending import Pending
from goqueue.testing import ManualClock, MemoryDisk, PowerLoss
from goqueue.wire.partitioning import partition_of_key
from goqueue.wire.reports import ScheduleInfo
from tests.broker.brokers import Node

TICK = NewMessage(b"tick")


class Host:
    """A node with schedules, and a door between the two that can be shut."""

    def __init__(self, disk: MemoryDisk, clock: ManualClock, *, config: ScheduleConfig | None = None) -> None:
        self.disk = disk
        self.clock = clock
        self.node = Node(disk, clock)
        self.node.broker.schedules.stop()
        self.node.journal(SCHEDULES_TOPIC)
        if "reports" not in self.node.broker.topics.list():
            self.node.create("reports", partitions=3)
        self.refusal: GoQueueError | None = None
        self.attempts = 0
        journals = self.node.broker.coordinators.journals(SCHEDULES_TOPIC)
        journals.coordinator = self.schedules = Schedules(
            journals,
            publish=self._publish,
            topic_facts=self._facts,
            init_producer=self.node.broker.messages.init_producer,
            clock=clock,
            timers=self.node.broker._timers,
            config=config,
        )
        for journal in journals:
            self.schedules.attach(journal)

    def _publish(
        self,
        topic: str,
        messages: Sequence[NewMessage],
        *,
        acks: str | None = None,
        producer: ProducerEpoch | None = None,
        sequence: int | None = None,
    ) -> Pending[list[Stored | GoQueueError]]:
        self.attempts += 1
        if self.refusal:
            raise self.refusal
        return self.node.broker.messages.publish(topic, messages, acks=acks, producer=producer, sequence=sequence)

    def _facts(self, topic: str) -> TopicFacts:
        info = self.node.broker.topics.describe(topic)
        limit = info.settings["max_message_bytes"]
        assert isinstance(limit, int)
        return TopicFacts(info.topic_id, len(info.partitions), limit, str(info.settings["partitioner"]))

    def create(
        self, name: str = "beat", message: NewMessage = TICK, *, every: int = 10, **more: object
    ) -> ScheduleInfo:
        if "cron" not in more:
            more["every_ns"] = every * SECOND
        return self.node.done(self.schedules.create("reports", name, message, **more))  # type: ignore[arg-type]

    def pass_time(self, seconds: float, *, step: float = 0.5) -> None:
        self.node.pass_time(seconds, step=step)

    def get(self, name: str = "beat") -> ScheduleInfo:
        return self.schedules.get("reports", name)

    def messages(self, topic: str = "reports") -> list[StoredMessage]:
        """All messages of the topic."""
        found: list[StoredMessage] = []
        for number in range(len(self.node.broker.topics.describe(topic).partitions)):
            offset = 0
            while (result := self.node.read(topic, number, offset=offset, max_records=100_000)).record_count:
                found += decode_messages(result.records, TopicPartition(topic, number), flags=Flags.COMPRESSED)
                offset = result.next_offset
        return found

    def restarted(self) -> "Host":
        self.schedules.stop()
        self.node.broker.close()
        return Host(self.disk, self.clock)


@pytest.fixture
def host(disk: MemoryDisk, clock: ManualClock) -> Host:
    return Host(disk, clock)


# --- verbs -----------------------------------------------------------------------------------------


def test_a_schedule_publishes_its_message_whenever_it_is_due(host: Host) -> None:
    created = host.create(message=NewMessage(b"tick", b"k", {"a": "b", "c": b"\xff"}, None, 1))
    start_ns = created.created_at_ns

    host.pass_time(35)

    messages = host.messages()
    assert len(messages) == 3
    assert {(m.value, m.key, m.priority_code, m.headers["a"]) for m in messages} == {(b"tick", b"k", 1, "b")}
    assert {m.partition for m in messages} == {partition_of_key(b"k", 3)}
    info = host.get()
    assert (info.runs, info.missed) == (3, 0)
    assert (info.last_at_ns, info.next_at_ns) == (start_ns + 30 * SECOND, start_ns + 40 * SECOND)
    assert [run.due_at_ns - start_ns for run in info.history] == [10 * SECOND, 20 * SECOND, 30 * SECOND]
    assert [run.offset for run in info.history] == [m.offset for m in messages]
    assert [run.published_at_ns for run in info.history] == [m.timestamp_ns for m in messages]
    assert {(run.partition, run.error) for run in info.history} == {(messages[0].partition, "")}


def test_a_created_schedule_tells_what_it_is(host: Host) -> None:
    info = host.create(cron="0 9 * * MON-FRI", timezone="Europe/Berlin", catch_up="once", paused=True)

    assert (info.name, info.topic, info.cron, info.every_ns) == ("beat", "reports", "0 9 * * MON-FRI", None)
    assert (info.timezone, info.catch_up, info.paused, info.next_at_ns) == ("Europe/Berlin", "once", True, None)
    assert (info.runs, info.missed, info.last_at_ns, info.history) == (0, 0, None, [])
    assert info.created_at_ns == host.clock.wall_ns()


def test_a_schedule_is_not_answered_before_it_is_on_the_medium(host: Host) -> None:
    pending = host.schedules.create("reports", "beat", TICK, every_ns=SECOND)
    assert not pending.is_done

    assert host.node.done(pending).name == "beat"


def test_a_name_is_taken_once_per_topic(host: Host) -> None:
    host.create()
    host.node.create("others")

    with pytest.raises(AlreadyExists) as refused:
        host.schedules.create("reports", "beat", TICK, cron="@daily")

    assert (refused.value.what, refused.value.name) == ("schedule", "beat")
    host.node.done(host.schedules.create("others", "beat", TICK, cron="@daily"))


def test_schedules_are_listed_by_name_and_without_history(host: Host) -> None:
    for name in ("b", "c", "a"):
        host.create(name)
    host.pass_time(11)

    listed = host.schedules.list("reports")

    assert [info.name for info in listed] == ["a", "b", "c"]
    assert [info.history for info in listed] == [[], [], []]
    assert len(host.schedules) == 3


@pytest.mark.parametrize("verb", ["get", "pause", "resume", "run", "delete"])
def test_what_is_not_there_is_not_found(host: Host, verb: str) -> None:
    with pytest.raises(NotFound):
        getattr(host.schedules, verb)("reports", "nothing")
    with pytest.raises(TopicNotFound):
        getattr(host.schedules, verb)("nowhere", "beat")


def test_an_unknown_topic_has_no_schedules(host: Host) -> None:
    with pytest.raises(TopicNotFound):
        host.schedules.list("nowhere")
    with pytest.raises(TopicNotFound):
        host.schedules.create("nowhere", "beat", TICK, cron="@daily")
    with pytest.raises(NotFound):
        host.schedules.alter("reports", "beat", {})


@pytest.mark.parametrize(
    ("message", "more", "error"),
    [
        (TICK, {"cron": "61 * * * *"}, InvalidRequest),
        (TICK, {"cron": "@daily", "timezone": "Mars"}, InvalidRequest),
        (TICK, {}, InvalidRequest),
        (TICK, {"every_ns": 10}, InvalidRequest),
        (TICK, {"every_ns": SECOND, "ttl_ns": -1}, InvalidRequest),
        (NewMessage(b"v", deliver_at_ns=5), {"cron": "@daily"}, InvalidRequest),
        (NewMessage(b"v", expires_at_ns=5), {"cron": "@daily"}, InvalidRequest),
        (NewMessage(None), {"cron": "@daily"}, InvalidMessage),
        (NewMessage(b"v", headers={"gq-x": "y"}), {"cron": "@daily"}, InvalidMessage),
        (NewMessage(b"v", headers={"x": "\ud800"}), {"cron": "@daily"}, InvalidMessage),
        (NewMessage(b"v", partition=3), {"cron": "@daily"}, PartitionNotFound),
        (NewMessage(b"v" * 2_000_000), {"cron": "@daily"}, MessageTooLarge),
        (NewMessage(b"v", b"k" * 70_000), {"cron": "@daily"}, MessageTooLarge),
    ],
)
def test_what_is_refused_leaves_no_trace(
    host: Host, message: NewMessage, more: dict[str, object], error: type[GoQueueError]
) -> None:
    with pytest.raises(error):
        host.schedules.create("reports", "beat", message, **more)  # type: ignore[arg-type]

    assert host.schedules.list("reports") == []
    assert host.node.facts(SCHEDULES_TOPIC) == {}


def test_a_message_may_be_no_larger_than_its_topic_allows(host: Host) -> None:
    host.node.create("small", max_message_bytes=10)

    with pytest.raises(MessageTooLarge):
        host.schedules.create("small", "beat", NewMessage(b"v" * 11), cron="@daily")


def test_there_are_no_more_schedules_than_may_be(disk: MemoryDisk, clock: ManualClock) -> None:
    host = Host(disk, clock, config=ScheduleConfig(schedules_max=1))
    host.create()

    with pytest.raises(Conflict):
        host.create("another")
    with pytest.raises(InvalidConfig):
        ScheduleConfig(schedules_max=0)


def test_what_is_deleted_publishes_no_more(host: Host) -> None:
    host.create()
    host.pass_time(11)

    host.node.done(host.schedules.delete("reports", "beat"))
    host.pass_time(30)

    assert len(host.messages()) == 1
    assert len(host.schedules) == 0
    assert host.restarted().schedules.list("reports") == []


def test_what_is_created_again_begins_again(host: Host) -> None:
    host.create()
    host.pass_time(21)
    host.node.done(host.schedules.delete("reports", "beat"))

    host.create()
    host.pass_time(21)

    assert len(host.messages()) == 4
    assert host.get().runs == 2
    again = host.restarted()
    assert again.get().runs == 2
    assert len(again.get().history) == 2


def test_nothing_is_published_while_it_is_paused_nor_caught_up(host: Host) -> None:
    host.create(catch_up="all")
    host.pass_time(11)
    assert host.node.done(host.schedules.pause("reports", "beat")).next_at_ns is None
    host.pass_time(100)

    resumed = host.node.done(host.schedules.resume("reports", "beat"))

    assert len(host.messages()) == 1
    host.pass_time(10)
    assert len(host.messages()) == 2
    assert (resumed.missed, host.get().missed) == (0, 0)


def test_paused_is_paused_over_a_restart(host: Host) -> None:
    host.create(catch_up="all")
    host.node.done(host.schedules.pause("reports", "beat"))

    again = host.restarted()
    again.pass_time(100)
    again.node.done(again.schedules.resume("reports", "beat"))
    again.pass_time(10)

    assert len(again.messages()) == 1


def test_altered_times_count_from_now_on(host: Host) -> None:
    host.create()

    altered = host.node.done(host.schedules.alter("reports", "beat", {"cron": "@hourly", "timezone": "Asia/Tokyo"}))
    host.pass_time(60)

    assert (altered.cron, altered.every_ns, altered.timezone) == ("@hourly", None, "Asia/Tokyo")
    assert host.messages() == []
    back = host.node.done(host.schedules.alter("reports", "beat", {"every_ns": 5 * SECOND, "paused": False}))
    assert (back.cron, back.every_ns, back.timezone) == (None, 5 * SECOND, "Asia/Tokyo")
    host.pass_time(6)
    assert len(host.messages()) == 1


def test_an_altered_message_is_the_next_one_published(host: Host) -> None:
    host.create()
    host.pass_time(11)

    host.node.done(host.schedules.alter("reports", "beat", {"message": NewMessage(b"tock", partition=2)}))
    again = host.restarted()
    again.pass_time(10)

    assert sorted(message.value for message in again.messages()) == [b"tick", b"tock"]
    assert again.get().history[-1].partition == 2


@pytest.mark.parametrize(
    "changes",
    [
        {"cron": "bad"},
        {"every_ns": "soon"},
        {"every_ns": None},
        {"name": "other"},
        {"colour": "red"},
        {"paused": "yes"},
        {"message": NewMessage(b"v", partition=7)},
        {"catch_up": "twice", "message": NewMessage(b"other")},
    ],
)
def test_an_alteration_that_is_refused_changes_nothing(host: Host, changes: Mapping[str, object]) -> None:
    host.create()
    before = host.node.facts(SCHEDULES_TOPIC)

    with pytest.raises(GoQueueError):
        host.schedules.alter("reports", "beat", changes)

    assert host.node.facts(SCHEDULES_TOPIC) == before
    host.pass_time(11)
    assert [message.value for message in host.messages()] == [b"tick"]


def test_a_run_out_of_turn_is_published_now_even_if_paused(host: Host) -> None:
    host.create(paused=True)

    info = host.node.done(host.schedules.run("reports", "beat"))

    assert (info.runs, info.next_at_ns) == (1, None)
    assert [run.due_at_ns for run in info.history] == [host.clock.wall_ns()]
    assert len(host.messages()) == 1


def test_runs_out_of_turn_that_come_together_are_as_many_runs(host: Host) -> None:
    host.create(paused=True)

    pendings = [host.schedules.run("reports", "beat") for _ in range(5)]
    host.node.workers.run_all()

    assert [pending.result().runs for pending in pendings] == [1, 2, 3, 4, 5]
    assert len(host.messages()) == 5


def test_no_more_runs_wait_than_may(disk: MemoryDisk, clock: ManualClock) -> None:
    host = Host(disk, clock, config=ScheduleConfig(waiting_max=1))
    host.create(paused=True)
    host.schedules.run("reports", "beat")
    host.schedules.run("reports", "beat")

    with pytest.raises(Conflict):
        host.schedules.run("reports", "beat")


def test_who_asked_for_a_run_learns_that_the_schedule_was_deleted(host: Host) -> None:
    host.create(paused=True)
    pendings = [host.schedules.run("reports", "beat") for _ in range(2)]

    host.node.done(host.schedules.delete("reports", "beat"))

    for pending in pendings:
        with pytest.raises(NotFound):
            pending.result()
    assert host.messages() == []


def test_delay_and_ttl_count_from_each_run(host: Host) -> None:
    host.create(delay_ns=3 * SECOND, ttl_ns=60 * SECOND)

    host.pass_time(11)
    assert host.messages() == []
    host.pass_time(3)

    (message,) = host.messages()
    headers = decode_headers(message.encoded_headers or b"")
    assert int(headers["gq-deliver-at"]) == message.timestamp_ns + 3 * SECOND
    assert int(headers["gq-expires-at"]) == message.timestamp_ns + 60 * SECOND


def test_cron_goes_by_the_clocks_of_its_zone(host: Host) -> None:
    host.clock.set_wall_ns(1_774_738_800 * SECOND)  # 2026-03-29 00:00 in Berlin; at 02:00 it is 03:00
    host.create(cron="30 2 * * *", timezone="Europe/Berlin")

    assert host.get().next_at_ns == (1_774_738_800 + 2 * 3600) * SECOND


def test_time_zones_need_no_data_of_the_system() -> None:
    reset_tzpath(to=[])
    try:
        assert ZoneInfo.no_cache("Europe/Berlin").key == "Europe/Berlin"
    finally:
        reset_tzpath()
    assert load_zone("Europe/Berlin").key == "Europe/Berlin"


# --- catching up -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("catch_up", "published", "missed"), [("skip", 0, 6), ("once", 1, 5), ("all", 6, 0)])
def test_what_a_restart_missed_is_made_up_for_as_agreed(host: Host, catch_up: str, published: int, missed: int) -> None:
    host.create(catch_up=catch_up)
    host.schedules.stop()
    host.node.broker.close()
    host.clock.advance(66)

    again = Host(host.disk, host.clock)
    again.node.tick(0.1)
    again.node.workers.run_all()

    info = again.get()
    assert (len(again.messages()), info.runs, info.missed) == (published, published, missed)
    later = again.restarted()
    assert later.get() == info
    later.pass_time(4)
    assert later.get().runs == published + 1


def test_a_long_absence_is_caught_up_bit_by_bit(host: Host) -> None:
    host.create(every=1, catch_up="all")
    host.schedules.stop()
    host.node.broker.close()
    host.clock.advance(3_500)

    again = Host(host.disk, host.clock)
    again.pass_time(0.9, step=0.01)

    assert len(again.messages()) == 3_500
    assert again.get().runs == 3_500
    assert len(again.get().history) == 100


def test_a_clock_that_is_set_back_runs_nothing_twice(host: Host) -> None:
    created = host.create()
    host.pass_time(35)

    host.clock.set_wall_ns(created.created_at_ns)
    host.pass_time(39)
    assert len(host.messages()) == 3
    host.pass_time(2)

    assert len(host.messages()) == 4


def test_a_clock_that_is_set_forward_is_noticed(host: Host) -> None:
    created = host.create(every=3_600)
    host.pass_time(5)

    host.clock.set_wall_ns(created.created_at_ns + 3_600 * SECOND)
    host.pass_time(1.5)

    assert len(host.messages()) == 1


# --- refusals --------------------------------------------------------------------------------------


def test_a_run_that_is_refused_is_tried_again_and_not_skipped(host: Host) -> None:
    host.create(every=3_600)
    host.refusal = StorageFull("/data", "No space left on device")
    host.pass_time(3_602, step=1.0)
    refused = host.get()
    host.pass_time(100, step=1.0)
    assert host.attempts < 12  # it waits longer and longer

    host.refusal = None
    host.pass_time(61, step=1.0)

    assert [(run.published_at_ns, run.offset, run.error != "") for run in refused.history] == [(0, -1, True)]
    assert (refused.runs, refused.last_at_ns) == (0, None)
    assert len(host.messages()) == 1
    assert [(run.due_at_ns, run.error) for run in host.get().history] == [(refused.history[0].due_at_ns, "")]


def test_a_refusal_is_known_and_the_run_made_after_a_restart(host: Host) -> None:
    host.create(every=3_600)
    host.refusal = StorageFull("/data", "No space left on device")
    host.pass_time(3_602, step=1.0)

    again = host.restarted()
    assert "No space left" in again.get().history[0].error
    again.pass_time(0.1)

    assert len(again.messages()) == 1
    assert [run.error for run in again.get().history] == [""]


def test_a_run_that_can_never_be_stored_gives_way_to_the_next(host: Host) -> None:
    host.create(message=NewMessage(b"0123456789"))
    host.node.done(host.node.broker.topics.alter("reports", {"max_message_bytes": 5}))
    host.pass_time(11)
    host.node.done(host.node.broker.topics.alter("reports", {"max_message_bytes": 50}))
    host.pass_time(10)

    assert len(host.messages()) == 1
    assert host.get().runs == 1
    assert ["limit" in run.error for run in host.get().history] == [True, False]


def test_a_run_out_of_turn_that_is_refused_is_not_tried_again(host: Host) -> None:
    host.create(paused=True)
    host.refusal = StorageFull("/data", "No space left on device")

    with pytest.raises(StorageFull):
        host.node.done(host.schedules.run("reports", "beat"))
    host.refusal = None
    host.pass_time(100)

    assert host.messages() == []
    assert len(host.get().history) == 1


def test_a_run_out_of_turn_is_refused_while_another_is_tried_again(host: Host) -> None:
    host.create()
    host.refusal = StorageFull("/data", "No space left on device")
    host.pass_time(11)

    with pytest.raises(StorageFull):
        host.schedules.run("reports", "beat")


def test_a_journal_without_room_delays_runs_and_refuses_changes(host: Host) -> None:
    host.create()
    host.disk.capacity_bytes = host.disk.used_bytes
    with pytest.raises(StorageFull):
        host.schedules.create("reports", "other", TICK, cron="@daily")
    with pytest.raises(StorageFull):
        host.schedules.pause("reports", "beat")
    with pytest.raises(StorageFull):
        host.schedules.delete("reports", "beat")
    with pytest.raises(StorageFull):
        host.node.done(host.schedules.run("reports", "beat"))
    host.pass_time(11)
    assert not host.get().paused
    assert "No space" in host.get().history[-1].error or "room" in host.get().history[-1].error

    host.disk.capacity_bytes = None
    host.pass_time(5)

    assert len(host.messages()) == 1
    assert [info.name for info in host.schedules.list("reports")] == ["beat"]
    assert host.restarted().get().runs == 1


def test_a_claim_that_the_log_knows_to_be_old_is_not_published_again(host: Host) -> None:
    host.create()
    host.refusal = ProducerFenced(1, 0, 7)
    host.pass_time(11)

    host.refusal = None
    host.pass_time(10)

    assert len(host.messages()) == 1
    assert [run.offset for run in host.get().history] == [-1, 0]


def test_a_broker_that_stops_begins_nothing_and_forgets_nothing(host: Host) -> None:
    host.create(paused=True)
    pending = host.schedules.run("reports", "beat")
    host.schedules.stop()
    host.node.workers.run_all()
    host.pass_time(5)

    with pytest.raises(BrokerUnavailable):
        pending.result()
    assert host.messages() == []
    again = host.restarted()
    again.pass_time(1)
    assert len(again.messages()) == 1


# --- topics ----------------------------------------------------------------------------------------


def test_the_schedules_of_a_deleted_topic_go_with_it(host: Host) -> None:
    host.create()
    host.create("second")
    host.node.create("others")
    host.node.done(host.schedules.create("others", "stays", TICK, cron="@daily"))

    host.node.done(host.node.broker.topics.delete("reports"))
    host.schedules.topic_deleted("reports")
    host.node.create("reports")
    host.pass_time(30)

    assert host.schedules.list("reports") == []
    assert host.messages() == []
    again = host.restarted()
    assert again.schedules.list("reports") == []
    assert [info.name for info in again.schedules.list("others")] == ["stays"]


def test_a_topic_of_the_same_name_does_not_inherit_schedules(host: Host) -> None:
    host.create()
    host.schedules.stop()  # a crash before anybody heard of the deletion
    host.node.done(host.node.broker.topics.delete("reports"))
    host.node.create("reports")

    again = host.restarted()
    again.pass_time(30)

    assert again.schedules.list("reports") == []
    assert again.messages() == []
    assert again.node.facts(SCHEDULES_TOPIC) == {}


def test_a_topic_that_is_found_missing_takes_its_schedules_with_it(host: Host) -> None:
    host.create()
    host.create("second")
    asked = host.schedules.run("reports", "second")

    host.node.done(host.node.broker.topics.delete("reports"))
    host.pass_time(11)

    assert len(host.schedules) == 0
    with pytest.raises(NotFound):
        asked.result()
    assert host.node.facts(SCHEDULES_TOPIC) == {}


# --- crashes ---------------------------------------------------------------------------------------

RUNS = 4


def work(host: Host, catch_up: str) -> None:
    host.create(catch_up=catch_up)
    host.pass_time(RUNS * 10 + 1, step=10.25)
    host.node.done(host.schedules.run("reports", "beat"))


@pytest.mark.parametrize("catch_up", ["skip", "once", "all"])
@pytest.mark.parametrize("keep", ["nothing", "everything", "random"])
def test_each_run_is_in_the_log_once_wherever_the_power_fails(catch_up: str, keep: str) -> None:
    whole = MemoryDisk()
    host = Host(whole, ManualClock())
    begins = whole.steps
    work(host, catch_up)
    assert len(host.messages()) == RUNS + 1
    recognised = 0

    for step in range(begins, whole.steps, 41):
        disk, clock = MemoryDisk(power_off_after=step), ManualClock()
        with suppress(PowerLoss):
            work(Host(disk, clock), catch_up)
        clock.advance(32)
        again = Host(disk.crash(seed=step, keep=keep), clock)  # type: ignore[arg-type]
        stored_before = len(again.messages())
        noted_before = sum(info.runs for info in again.schedules.list("reports"))
        again.pass_time(1, step=0.25)
        if "beat" not in [info.name for info in again.schedules.list("reports")]:
            assert again.messages() == []
            continue
        info = again.get()
        due = {"skip": info.runs + info.missed, "once": info.runs + info.missed, "all": info.runs}[catch_up]
        manual = sum(run.due_at_ns % (10 * SECOND) != info.created_at_ns % (10 * SECOND) for run in info.history)

        assert len(again.messages()) == info.runs
        assert sorted(run.offset for run in info.history) == [message.offset for message in again.messages()]
        assert len({run.due_at_ns for run in info.history}) == len(info.history)
        assert due - manual == (clock.wall_ns() - info.created_at_ns) // (10 * SECOND)
        recognised += stored_before > noted_before
        again.pass_time(10)
        assert len(again.messages()) == info.runs + 1
    assert recognised


def test_a_run_that_was_stored_and_not_noted_is_recognised(host: Host) -> None:
    host.create(catch_up="skip")
    host.pass_time(9.5)
    host.node.tick(0.75)
    while not host.messages():
        host.node.workers.run_one()
    crashed = host.disk.crash(keep="nothing")
    host.clock.advance(3_606)

    again = Host(crashed, host.clock)
    assert (len(again.messages()), again.get().runs) == (1, 0)
    again.pass_time(2)

    assert len(again.messages()) == 1
    assert [run.offset for run in again.get().history] == [0]
    assert (again.get().runs, again.get().missed) == (1, 360)


def test_a_schedule_that_rests_for_longer_than_the_log_remembers_goes_on(host: Host) -> None:
    host.node.done(host.node.broker.topics.alter("reports", {"retention": "0s"}))
    host.create(every=3_600 * 24 * 30, catch_up="all")
    for month in range(1, 4):
        host.clock.advance(3_600 * 24 * 30)
        host.pass_time(11)  # with maintenance, in which the log forgets producers that were silent for long
        assert len(host.messages()) == month
    assert host.get().runs == 3


# --- many ------------------------------------------------------------------------------------------


def test_thousands_of_schedules_that_are_due_at_once_run_at_once(host: Host) -> None:
    count = 2_500
    for n in range(count):
        host.schedules.create("reports", f"s{n}", TICK, cron="* * * * *", timezone="Europe/Berlin")
    host.node.workers.run_all()
    assert len(host.schedules) == count

    host.pass_time(59.5)
    assert host.messages() == []
    host.pass_time(0.8, step=0.02)

    assert len(host.messages()) == count
    assert {info.runs for info in host.schedules.list("reports")} == {1}
    again = host.restarted()
    assert {info.runs for info in again.schedules.list("reports")} == {1}
    again.pass_time(1)
    assert len(again.messages()) == count


def test_changes_leave_no_heap_of_old_times_behind(host: Host) -> None:
    host.create()
    for n in range(5_000):
        host.schedules.alter("reports", "beat", {"every_ns": (100 + n) * SECOND})

    assert len(host.schedules._heap) < 2_000
    assert len(host.node.broker._timers) < 2_000


# --- coordinators that end and begin again -------------------------------------------------------


def change_coordinator(host: Host, name: str = "beat") -> None:
    """The coordinator of the schedule ends, and begins again."""
    partition = partition_of(schedule_key("reports", name), SCHEDULES_TOPIC)
    host.node.broker.partitions.resign(SCHEDULES_TOPIC, partition)
    host.node.broker.partitions.become_leader(SCHEDULES_TOPIC, partition)


def work_by_jobs(host: Host, catch_up: str, change_after: int | None) -> int:
    """Let schedules run, one job of a worker after the other; returns how many jobs that took."""
    host.create(catch_up=catch_up)
    jobs = 0
    for _ in range(RUNS * 2):
        host.node.tick(10.25)
        while host.node.workers.jobs:
            if jobs == change_after:
                change_coordinator(host)
            jobs += 1
            host.node.workers.run_one()
            host.node.tick()
    return jobs


@pytest.mark.parametrize("catch_up", ["skip", "all"])
def test_each_run_is_in_the_log_once_whenever_the_coordinator_changes(
    disk: MemoryDisk, clock: ManualClock, catch_up: str
) -> None:
    total = work_by_jobs(Host(disk, clock), catch_up, None)

    for change_after in range(total):
        host = Host(MemoryDisk(), ManualClock())
        work_by_jobs(host, catch_up, change_after)
        host.pass_time(2)

        info = host.get()
        assert len(host.messages()) == info.runs
        assert sorted(run.offset for run in info.history) == [message.offset for message in host.messages()]
        assert len({run.due_at_ns for run in info.history}) == len(info.history)
        since_ns = host.clock.wall_ns() - info.created_at_ns
        assert info.runs + info.missed == since_ns // (10 * SECOND), f"change after {change_after} jobs"
        runs = info.runs
        host.pass_time(10)
        assert (len(host.messages()), host.get().runs) == (runs + 1, runs + 1)


def test_a_schedule_that_is_coordinated_elsewhere_is_neither_shown_nor_run(host: Host) -> None:
    host.create()
    partition = partition_of(schedule_key("reports", "beat"), SCHEDULES_TOPIC)
    other = next(one for one in map(str, range(50)) if partition_of(f"reports/{one}", SCHEDULES_TOPIC) != partition)
    host.create(other)
    host.node.broker.partitions.resign(SCHEDULES_TOPIC, partition)
    host.node.workers.run_all()

    host.pass_time(35)

    assert [info.name for info in host.schedules.list("reports")] == [other]
    assert len(host.messages()) == host.get(other).runs == 3
    for call in (
        lambda: host.get(),
        lambda: host.schedules.pause("reports", "beat"),
        lambda: host.schedules.run("reports", "beat"),
        lambda: host.schedules.delete("reports", "beat"),
        lambda: host.create(),
    ):
        with pytest.raises(NotLeader, match=f"{SCHEDULES_TOPIC}-{partition}"):
            call()
    host.node.broker.partitions.become_leader(SCHEDULES_TOPIC, partition)
    host.node.workers.run_all()
    assert host.get().runs == 0
    host.pass_time(1)
    assert (host.get().runs, host.get().missed) == (0, 3)


def test_a_run_that_was_asked_for_fails_when_the_coordinator_ends_and_is_published_once(host: Host) -> None:
    host.create()
    asked = host.schedules.run("reports", "beat")
    waiting = host.schedules.run("reports", "beat")

    change_coordinator(host)

    for pending in (asked, waiting):
        with pytest.raises(NotLeader):
            pending.result()
    host.pass_time(2)
    assert (len(host.messages()), host.get().runs) == (1, 1)  # its claim was in the journal
    assert len(host.schedules) == 1


def test_schedules_of_a_topic_that_was_deleted_meanwhile_are_gone(host: Host) -> None:
    host.create()
    partition = partition_of(schedule_key("reports", "beat"), SCHEDULES_TOPIC)
    host.node.broker.partitions.resign(SCHEDULES_TOPIC, partition)
    host.node.done(host.node.broker.topics.delete("reports"))
    host.node.workers.run_all()

    host.node.broker.partitions.become_leader(SCHEDULES_TOPIC, partition)
    host.node.workers.run_all()

    assert len(host.schedules) == 0
    assert host.node.facts(SCHEDULES_TOPIC) == {}
