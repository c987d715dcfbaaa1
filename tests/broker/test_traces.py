"""Traces: for any message, what happened to it, all of it and in order."""

import json
from collections import Counter
from errno import EIO, ENOSPC

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from goqueue.broker.traces import LINES_MAX
from goqueue.clock import SECOND
from goqueue.errors import InvalidRequest, NotFound
from goqueue.record import kernel
from goqueue.record.header import HEADERS_BYTES_MAX, Flags
from goqueue.record.message import StoredMessage, decode_messages
from goqueue.service.new_message import NewMessage
from goqueue.testing import FaultyDisk, ManualClock, MemoryDisk
from goqueue.tracing.context import derived_trace_id, trace_id_of
from goqueue.wire.reports import DeadLetterFilter, PositionCommit, Settlement
from goqueue.wire.trace_reports import OUTCOMES, STATUSES, Trace
from tests.broker.consumers import Consumer, Got
from tests.broker.traced import ListSink, TracedNode, events_of

PUBLISH = ["publish.received", "publish.partitioned", "publish.persisted"]
TRACE = "0af7651916cd43dd8448eb211c80319c"
SPAN = "b7ad6b7169203331"
ALL = DeadLetterFilter()


@pytest.fixture
def node(disk: MemoryDisk, clock: ManualClock) -> TracedNode:
    made = TracedNode(disk, clock)
    made.create("orders")
    return made


def traceparent(number: int = 0, *, flags: str = "01") -> str:
    trace_id = f"{int(TRACE, 16) + number:032x}"
    return f"00-{trace_id}-{SPAN}-{flags}"


def publish_named(node: TracedNode, *headers: dict[str, str | bytes] | None, topic: str = "orders") -> None:
    records = kernel.encode([b"v"] * len(headers), headers=list(headers))
    node.done(node.broker.messages.publish_records(topic, 0, records))


def patient(node: TracedNode, group: str = "workers") -> Consumer:
    """A member that may be silent for long."""
    return Consumer(node, group, session_timeout_ms=3_600_000)


def redrive(node: TracedNode) -> None:
    node.done(node.broker.dead_letters.redrive("orders", ALL))
    node.tick(0.1)
    node.workers.run_all()


def rows_in_topic(node: TracedNode) -> list[dict[str, object]]:
    result = node.read("__traces", 0, max_bytes=1 << 24, max_records=1_000_000)
    messages = decode_messages(result.records, node.leader("__traces").origin, flags=Flags.COMPRESSED)
    return [json.loads(message.value) for message in messages]


# --- what is recorded -------------------------------------------------------------------------------


def test_a_message_that_is_acknowledged_has_a_whole_life(node: TracedNode) -> None:
    node.publish(b"a")
    node.clock.advance(2)
    consumer = Consumer(node)
    got = consumer.poll()
    node.clock.advance(3)
    consumer.ack(got)

    trace = node.trace()

    assert events_of(trace) == [*PUBLISH, "consume.fetched", "consume.acked"]
    assert (trace.status, trace.outcome, trace.topic, trace.partition, trace.offset) == (
        "completed",
        "completed",
        "orders",
        0,
        0,
    )
    assert trace.end_ns - trace.start_ns == 5 * SECOND
    assert trace.span_count == 5
    fetched, acked = trace.spans[3:]
    assert (fetched.group, fetched.consumer_id, fetched.attributes) == ("workers", consumer.id, {"attempt": "1"})
    assert (acked.duration_ns, acked.error, acked.consumer_id) == (3 * SECOND, "", consumer.id)


def test_persisted_is_when_the_disk_has_it_and_took_as_long_as_that(node: TracedNode) -> None:
    pending = node.send([b"a"])
    node.clock.advance(1)

    assert node.events() == PUBLISH[:2]
    node.done(pending)
    persisted = node.trace().spans[2]
    assert (persisted.event_type, persisted.duration_ns) == ("publish.persisted", SECOND)


def test_what_came_after_a_flush_had_begun_waits_for_the_next_one(node: TracedNode) -> None:
    node.send([b"a"])
    node.send([b"b"])
    node.workers.run_one()

    assert (node.events(0), node.events(1)) == (PUBLISH, PUBLISH[:2])


def test_a_row_keeps_what_happened_when_its_messages_move_on(node: TracedNode) -> None:
    node.publish(b"a", b"b", b"c")
    consumer = Consumer(node)
    first, second, third = consumer.poll()
    consumer.ack([second])
    consumer.settle("nack", [first, third])
    node.tick(5)
    consumer.ack(consumer.poll()[:1])

    for offset in (0, 2):
        assert node.events(offset)[3:6] == ["consume.fetched", "consume.nacked", "consume.fetched"]


@pytest.mark.parametrize("flush", ["none", "interval", "group"])
def test_every_flush_mode_tells_of_all_three_steps_in_order(disk: MemoryDisk, clock: ManualClock, flush: str) -> None:
    node = TracedNode(disk, clock)
    node.create("orders", flush=flush)
    consumer = Consumer(node)
    waiting = consumer.wait(wait_ms=1_000)

    node.publish(b"a")

    node.workers.run_all()
    assert waiting.is_done
    assert node.events() == [*PUBLISH, "consume.fetched"]


def test_a_batch_is_one_row_and_each_message_has_its_own_trace(node: TracedNode) -> None:
    node.publish(*[b"x"] * 1_000)

    assert len(node.broker.traces.recorder.ring) == 1
    found = node.broker.traces.recent(limit=1_000)
    assert len({trace.trace_id for trace in found}) == 1_000
    assert [trace.offset for trace in found] == list(reversed(range(1_000)))


def test_a_nack_is_retried_and_says_why(node: TracedNode) -> None:
    node.publish(b"a")
    consumer = Consumer(node)
    consumer.settle("nack", consumer.poll(), reason="the database is away")

    trace = node.trace()
    assert events_of(trace)[-1] == "consume.nacked"
    assert trace.spans[-1].error == "the database is away"
    assert (trace.status, trace.outcome) == ("retrying", "pending")

    node.tick(5)
    consumer.ack(consumer.poll())
    assert node.events()[4:] == ["consume.nacked", "consume.fetched", "consume.acked"]
    assert node.trace().spans[5].attributes == {"attempt": "2"}
    assert node.trace().status == "completed"


def test_what_a_consumer_complains_of_at_length_is_cut(node: TracedNode) -> None:
    node.publish(b"a")
    consumer = Consumer(node)
    consumer.settle("nack", consumer.poll(), reason="x" * 100_000)

    assert node.trace().spans[-1].error == "x" * 1_000


def test_a_lease_that_runs_out_and_one_that_is_extended_are_told(node: TracedNode) -> None:
    node.publish(b"a")
    consumer = patient(node)
    consumer.settle("extend", consumer.poll(), delay=60)
    node.tick(31)
    assert node.events()[4:] == ["visibility.extended"]

    node.tick(30)

    trace = node.trace()
    assert events_of(trace)[4:] == ["visibility.extended", "visibility.timeout"]
    assert (trace.status, trace.spans[-1].error) == ("retrying", "the lease expired")
    assert trace.spans[-1].consumer_id == consumer.id


def test_a_consumer_that_is_lost_ends_its_leases(node: TracedNode) -> None:
    node.publish(b"a")
    consumer = Consumer(node, session_timeout_ms=6_000)
    consumer.poll(visibility_timeout_ms=3_600_000)

    node.pass_time(10, step=1)

    assert node.trace().spans[-1].event_type == "visibility.timeout"
    assert node.trace().spans[-1].error == "the consumer was lost"


def test_positions_that_are_committed_are_acks(node: TracedNode) -> None:
    node.publish(b"a", b"b")
    consumer = Consumer(node, ack="offsets")
    consumer.poll()
    node.done(node.broker.groups.commit("workers", [PositionCommit("orders", 0, 1)], member_id=consumer.id))

    assert node.events(0)[3:] == ["consume.fetched", "consume.acked"]
    assert node.trace(0).spans[-1].attributes == {"reason": "committed"}
    assert node.events(1)[3:] == ["consume.fetched"]
    assert node.trace(0).status == "completed"


def test_what_is_handed_over_is_acknowledged_by_itself(node: TracedNode) -> None:
    node.publish(b"a")
    consumer = Consumer(node, ack="offsets", auto_commit=True)
    consumer.poll()
    node.publish(b"b")
    consumer.poll()
    node.pass_time(6, step=1)

    assert node.events()[3:] == ["consume.fetched", "consume.acked"]


def test_a_message_is_complete_when_every_group_that_got_it_has_acknowledged_it(node: TracedNode) -> None:
    node.publish(b"a")
    first, second = Consumer(node, "first"), Consumer(node, "second")
    one, other = first.poll(), second.poll()
    first.ack(one)
    assert node.trace().status == "in_progress"

    second.ack(other)

    assert node.trace().status == "completed"
    assert [trace.trace_id for trace in node.find(group="first")] == [node.trace().trace_id]
    assert node.find(group="third") == []


def test_a_delayed_message_waits_is_ready_and_goes_on(node: TracedNode) -> None:
    at_ns = node.clock.wall_ns() + 3_600 * SECOND
    node.messages(NewMessage(b"later", deliver_at_ns=at_ns))
    trace = node.trace()
    assert events_of(trace) == [*PUBLISH, "delay.scheduled"] or events_of(trace)[2:] == [
        "delay.scheduled",
        "publish.persisted",
    ]
    assert trace.status == "delayed"

    node.tick(3_601)
    consumer = Consumer(node)
    consumer.ack(consumer.poll())

    assert node.events()[4:] == ["delay.ready", "consume.fetched", "consume.acked"]
    assert node.trace().status == "completed"


def test_a_delay_of_the_past_is_none(node: TracedNode) -> None:
    node.messages(NewMessage(b"now", deliver_at_ns=node.clock.wall_ns() - SECOND))

    assert node.events() == PUBLISH


def test_a_delay_that_is_changed_or_cancelled_says_so(node: TracedNode) -> None:
    node.messages(NewMessage(b"later", deliver_at_ns=node.clock.wall_ns() + 60 * SECOND))
    node.clock.advance(1)
    node.done(node.broker.delays.reschedule("orders", node.clock.wall_ns() + 90 * SECOND, partition=0, offset=0))
    node.clock.advance(1)
    node.done(node.broker.delays.cancel("orders", partition=0, offset=0))

    trace = node.trace()

    assert events_of(trace)[3:] == ["delay.scheduled", "delay.scheduled", "delay.cancelled"]
    first, second = (span.attributes["deliver_at"] for span in trace.spans[3:5])
    assert first == "2024-01-01T00:01:00.000000000Z"
    assert second == "2024-01-01T00:01:31.000000000Z"
    assert (trace.status, trace.outcome) == ("completed", "completed")


def test_delays_are_not_scheduled_again_by_a_restart(node: TracedNode) -> None:
    node.messages(NewMessage(b"later", deliver_at_ns=node.clock.wall_ns() + 60 * SECOND))

    after = node.restarted(topic=False)

    assert after.broker.traces.recent() == []


@pytest.mark.parametrize("on_expire", ["drop", "dead_letter"])
def test_a_message_whose_time_is_over_expires(disk: MemoryDisk, clock: ManualClock, on_expire: str) -> None:
    node = TracedNode(disk, clock)
    node.create("orders", ttl="10s", on_expire=on_expire)
    node.publish(b"a")
    consumer = Consumer(node)
    node.tick(11)
    consumer.poll()
    node.workers.run_all()

    trace = node.trace()

    expired = next(span for span in trace.spans if span.event_type == "delay.expired")
    assert (expired.group, expired.error, expired.attributes) == (
        "workers",
        "the time to live ended",
        {"reason": "ttl"},
    )
    assert trace.status == ("expired" if on_expire == "drop" else "failed")
    assert trace.outcome == "error"


# --- dead letters -----------------------------------------------------------------------------------


def test_a_dead_letter_and_its_way_back_are_one_trace(node: TracedNode) -> None:
    node.publish(b"a")
    consumer = Consumer(node)
    consumer.settle("reject", consumer.poll(), reason="poison")
    dead = node.trace()
    assert events_of(dead)[3:] == ["consume.fetched", "consume.rejected", *PUBLISH, "dlq.routed"]
    assert (dead.status, dead.outcome, dead.topic) == ("failed", "error", "orders")
    routed = dead.spans[-1]
    assert (routed.topic, routed.offset, routed.error, routed.group) == ("orders", 0, "poison", "workers")
    where = {"dlq_topic": "orders.dlq", "dlq_partition": "0", "dlq_offset": "0"}
    assert routed.attributes == {"reason": "REJECTED", **where}

    node.clock.advance(1)
    redrive(node)
    node.clock.advance(1)
    again = consumer.poll()
    assert [message.offset for message in again] == [1]
    consumer.ack(again)

    trace = node.trace()
    assert trace.trace_id == dead.trace_id
    assert events_of(trace) == [*events_of(dead), *PUBLISH, "consume.fetched", "consume.acked"]
    assert trace.status == "completed"
    assert [(span.topic, span.offset) for span in trace.spans if span.event_type == PUBLISH[0]] == [
        ("orders", 0),
        ("orders.dlq", 0),
        ("orders", 1),
    ]
    assert trace.spans[9].attributes == {"copied_from": "orders.dlq:0:0"}
    for offset, topic in ((0, "orders"), (0, "orders.dlq"), (1, "orders")):
        assert node.trace(offset, topic=topic).trace_id == trace.trace_id
    assert len(node.broker.traces.recent()) == 1


def test_a_message_that_dies_twice_stays_one_trace(node: TracedNode) -> None:
    node.publish(b"a")
    consumer = Consumer(node)
    for _ in range(2):
        consumer.settle("reject", consumer.poll())
        redrive(node)
    consumer.settle("reject", consumer.poll())

    trace = node.trace()

    assert trace.status == "failed"
    assert events_of(trace).count("dlq.routed") == 3
    assert len(node.broker.traces.recent()) == 1
    assert trace.trace_id == node.trace(2).trace_id


def test_who_reads_the_letters_does_not_bring_the_message_back_to_life(node: TracedNode) -> None:
    node.publish(b"a")
    consumer = Consumer(node)
    consumer.settle("reject", consumer.poll())
    reader = Consumer(node, "readers", topics=("orders.dlq",))
    reader.ack(reader.poll())

    assert node.trace().status == "failed"
    assert node.events()[-2:] == ["consume.fetched", "consume.acked"]


def test_a_message_that_names_its_trace_keeps_it_as_a_letter(node: TracedNode) -> None:
    publish_named(node, {"traceparent": traceparent()})
    consumer = Consumer(node)
    consumer.settle("reject", consumer.poll())

    (letter,) = decode_messages(
        node.read("orders.dlq").records, node.leader("orders.dlq").origin, flags=Flags.COMPRESSED
    )
    assert "gq-trace" not in letter.headers
    assert letter.headers["traceparent"] == traceparent()
    assert node.broker.traces.get(TRACE).status == "failed"
    assert node.trace(0, topic="orders.dlq").trace_id == TRACE


def test_headers_that_fill_a_message_are_not_driven_out_by_ours(node: TracedNode) -> None:
    least = sum(4 + len(text) for text in ("gq-reasonREJECTED", "gq-originorders:0:0", "gq-groupworkers"))
    room = HEADERS_BYTES_MAX - 100 - least - len("gq-redrives0") - 4 - 2
    fills = room - (4 + len("owny")) - (4 + len("large")) - 20  # a trace id needs more than these 20
    publish_named(node, {"large": "x" * fills, "own": "y"})
    consumer = Consumer(node)
    consumer.settle("reject", consumer.poll())

    (letter,) = decode_messages(
        node.read("orders.dlq").records, node.leader("orders.dlq").origin, flags=Flags.COMPRESSED
    )
    assert letter.headers["own"] == "y"
    assert "gq-trace" not in letter.headers


# --- ids --------------------------------------------------------------------------------------------


def test_client_and_broker_derive_the_same_id(node: TracedNode) -> None:
    stored = node.publish(b"a")

    assert node.trace().trace_id == derived_trace_id("orders", 0, 0, stored.timestamp_ns)


def test_a_named_trace_is_found_by_its_id_and_begins_at_its_parent(node: TracedNode) -> None:
    publish_named(node, None, {"traceparent": traceparent()}, {"other": "header"})

    trace = node.broker.traces.get(TRACE)

    assert (trace.offset, trace.span_count) == (1, 3)
    assert trace.spans[0].parent_span_id == SPAN
    assert {span.parent_span_id for span in trace.spans[1:]} == {trace.spans[0].span_id}
    assert node.trace(0).spans[0].parent_span_id == ""


def test_messages_of_one_named_trace_are_told_together(node: TracedNode) -> None:
    publish_named(node, {"traceparent": traceparent()}, {"traceparent": traceparent()})
    consumer = Consumer(node)
    first, second = consumer.poll()
    consumer.ack([first])
    assert node.broker.traces.get(TRACE).status == "in_progress"
    consumer.ack([second])

    trace = node.broker.traces.get(TRACE)

    assert (trace.status, trace.span_count) == ("completed", 10)
    assert len({span.span_id for span in trace.spans}) == 10
    assert len(node.broker.traces.recent()) == 1


@pytest.mark.parametrize("text", [f"00-{TRACE.upper()}-{SPAN}-01", "nonsense", "", f"00-{'0' * 32}-{SPAN}-01"])
def test_a_malformed_traceparent_names_nothing(node: TracedNode, text: str) -> None:
    publish_named(node, {"traceparent": text})

    (trace,) = node.broker.traces.recent()
    assert trace.trace_id == derived_trace_id("orders", 0, 0, node.clock.wall_ns())
    assert node.broker.traces.get(trace.trace_id).span_count == 3


def test_a_traceparent_in_a_value_names_nothing(node: TracedNode) -> None:
    node.publish(b"\x00\x0btraceparent\x00\x37" + traceparent().encode())

    with pytest.raises(NotFound):
        node.broker.traces.get(TRACE)


def test_ten_thousand_names_in_one_batch_are_all_found(node: TracedNode) -> None:
    publish_named(node, *({"traceparent": traceparent(number)} for number in range(10_000)))

    for number in (0, 1, 5_000, 9_999):
        assert node.broker.traces.get(f"{int(TRACE, 16) + number:032x}").offset == number
    assert node.broker.traces.stats().traces_indexed == 10_000


def test_names_beyond_the_limit_are_still_in_their_records(disk: MemoryDisk, clock: ManualClock) -> None:
    node = TracedNode(disk, clock, ids_max=10)
    node.create("orders")
    publish_named(node, *({"traceparent": traceparent(number)} for number in range(100)))

    assert node.broker.traces.stats().traces_indexed == 10
    assert node.find(topic="orders", offset=0)[0].trace_id == TRACE
    with pytest.raises(NotFound):
        node.broker.traces.get(TRACE)
    assert node.broker.traces.get(f"{int(TRACE, 16) + 99:032x}").offset == 99


@pytest.mark.parametrize("text", ["", "abc", TRACE.upper(), "0" * 32, TRACE + "0", "../../etc/passwd"])
def test_what_is_no_id_is_refused(node: TracedNode, text: str) -> None:
    with pytest.raises(InvalidRequest, match="invalid trace ID format"):
        node.broker.traces.get(text)


def test_an_id_of_nobody_is_not_found(node: TracedNode) -> None:
    node.publish(b"a")

    with pytest.raises(NotFound):
        node.broker.traces.get("1" * 32)
    with pytest.raises(NotFound):  # the right place at another time
        node.broker.traces.get(derived_trace_id("orders", 0, 0, node.clock.wall_ns() + 1))


def test_a_topic_that_is_made_anew_has_no_past(node: TracedNode) -> None:
    publish_named(node, {"traceparent": traceparent()}, None)
    old = node.trace(1).trace_id
    node.done(node.broker.topics.delete("orders"))
    node.clock.advance(1)
    node.create("orders")
    node.publish(b"new", b"new")

    assert node.events(0) == PUBLISH
    for trace_id in (old, TRACE):
        with pytest.raises(NotFound):
            node.broker.traces.get(trace_id)


# --- sampling ---------------------------------------------------------------------------------------


def test_a_topic_can_be_switched_off_and_on(node: TracedNode) -> None:
    node.done(node.broker.topics.alter("orders", {"trace_sample_rate": 0}))
    node.publish(b"a")
    consumer = Consumer(node)
    consumer.settle("nack", consumer.poll())
    assert node.find(topic="orders") == []

    node.done(node.broker.topics.alter("orders", {"trace_sample_rate": None}))
    node.publish(b"b")
    assert [trace.offset for trace in node.find(topic="orders")] == [1]


def test_half_of_the_stretches_are_traced_whole_and_every_event_agrees(disk: MemoryDisk, clock: ManualClock) -> None:
    node = TracedNode(disk, clock)
    node.create("orders", trace_sample_rate=0.5)
    for _ in range(64):
        node.publish(*[b"x"] * 512)
    consumer = Consumer(node)
    for _ in range(64):
        (batch,) = consumer.polled(512, max_bytes=1 << 20).polled.batches
        node.done(node.broker.groups.settle_batch("orders", 0, batch.nonce, b"", Settlement("ack")))

    rows = [row for row in node.broker.traces.recorder.ring if row.count]
    published, fetched, acked = (
        {offset for row in rows if row.kind == kind for offset in row.offset_set()}
        for kind in ("publish", "consume.fetched", "consume.acked")
    )
    assert published == fetched == acked
    stretches = {offset >> 10 for offset in published}
    assert len(published) == 1_024 * len(stretches)
    assert 4 < len(stretches) < 28
    assert node.broker.traces.recorder.tallies.dropped["sampled"] == 5 * (64 * 512 - len(published))


def test_every_error_is_kept_and_what_comes_after_it(disk: MemoryDisk, clock: ManualClock) -> None:
    node = TracedNode(disk, clock)
    node.create("orders", trace_sample_rate=0.000001)
    node.publish(b"good", b"bad")
    consumer = Consumer(node)
    good, bad = consumer.poll()
    node.clock.advance(1)
    consumer.ack([good])
    consumer.settle("nack", [bad], reason="oops")
    node.tick(5)
    consumer.ack(consumer.poll())

    assert node.find(offset=0) == []
    trace = node.trace(1)
    assert events_of(trace) == ["publish.received", "consume.nacked", "consume.fetched", "consume.acked"]
    assert trace.spans[0].attributes == {"source": "log"}
    assert trace.spans[0].time_ns == trace.spans[1].time_ns - SECOND
    assert trace.status == "completed"


@pytest.mark.parametrize("headers", [None, {"traceparent": traceparent(flags="00")}])
def test_a_message_that_was_put_back_is_traced_whatever_the_rate_is(
    disk: MemoryDisk, clock: ManualClock, headers: dict[str, str | bytes] | None
) -> None:
    node = TracedNode(disk, clock)
    node.create("orders", trace_sample_rate=0.000001)
    publish_named(node, headers)
    consumer = Consumer(node)
    consumer.settle("reject", consumer.poll())
    redrive(node)
    consumer.ack(consumer.poll())

    trace = node.trace(1)
    assert events_of(trace)[-5:] == [*PUBLISH, "consume.fetched", "consume.acked"]
    assert trace.status == "completed"
    assert trace.trace_id == node.trace(0).trace_id


@pytest.mark.parametrize(("rate", "flags", "is_traced"), [(0.000001, "01", True), (1.0, "00", False)])
def test_the_sampled_flag_decides(
    disk: MemoryDisk, clock: ManualClock, rate: float, flags: str, is_traced: bool
) -> None:
    node = TracedNode(disk, clock)
    node.create("orders", trace_sample_rate=rate)
    publish_named(node, {"traceparent": traceparent(flags=flags)}, None)
    consumer = Consumer(node)
    consumer.ack(consumer.poll())

    assert [trace.offset for trace in node.find(topic="orders")] == ([0] if is_traced else [1])


def test_what_was_left_out_is_taken_in_when_it_fails(node: TracedNode) -> None:
    publish_named(node, {"traceparent": traceparent(flags="00")})
    consumer = Consumer(node)
    consumer.settle("reject", consumer.poll())

    trace = node.broker.traces.get(TRACE)
    assert (trace.status, events_of(trace)[:2]) == ("failed", ["publish.received", "consume.rejected"])
    assert "dlq.routed" in events_of(trace)


def test_internal_topics_are_never_traced(disk: MemoryDisk, clock: ManualClock) -> None:
    node = TracedNode(disk, clock, topic=True)
    node.create("orders")
    Consumer(node)
    node.publish(b"a")
    node.written()

    assert {row.source.topic for row in node.broker.traces.recorder.ring if row.count} == {"orders"}


def test_a_broker_that_does_not_trace_knows_nothing(disk: MemoryDisk, clock: ManualClock) -> None:
    node = TracedNode(disk, clock, enabled=False)
    node.create("orders")
    node.publish(b"a")

    assert node.broker.traces.recent() == []
    assert not node.broker.traces.stats().enabled


# --- bounds and clocks ------------------------------------------------------------------------------


def test_the_ring_forgets_the_oldest_and_counts_it(disk: MemoryDisk, clock: ManualClock) -> None:
    node = TracedNode(disk, clock, ring=10)
    node.create("orders")
    for _ in range(25):
        node.publish(b"a")

    traces = node.broker.traces
    assert [trace.offset for trace in traces.recent()] == list(range(24, 14, -1))
    assert traces.recorder.tallies.dropped["ring"] == 45
    assert traces.stats().spans_in_buffer == 30
    assert traces.stats().buffer_capacity == 10


def test_a_message_whose_publish_was_forgotten_begins_with_what_the_log_says(
    disk: MemoryDisk, clock: ManualClock
) -> None:
    node = TracedNode(disk, clock, ring=1)
    node.create("orders")
    node.publish(b"a")
    node.clock.advance(1)
    Consumer(node).poll()

    trace = node.trace()
    assert events_of(trace) == ["publish.received", "consume.fetched"]
    assert trace.trace_id == derived_trace_id("orders", 0, 0, trace.start_ns)


def test_events_stay_in_order_when_the_clock_goes_back(node: TracedNode) -> None:
    node.publish(b"a")
    consumer = Consumer(node)
    node.clock.set_wall_ns(node.clock.wall_ns() - 3_600 * SECOND)
    got = consumer.poll()
    node.clock.set_wall_ns(node.clock.wall_ns() - 3_600 * SECOND)
    consumer.ack(got)

    trace = node.trace()
    assert events_of(trace) == [*PUBLISH, "consume.fetched", "consume.acked"]
    assert sorted(span.time_ns for span in trace.spans) == [span.time_ns for span in trace.spans]
    assert all((span.duration_ns or 0) >= 0 for span in trace.spans)


def test_a_copy_comes_after_its_original_whatever_the_clock_says(node: TracedNode) -> None:
    node.publish(b"a")
    consumer = Consumer(node)
    node.clock.advance(10)
    got = consumer.poll()
    node.clock.set_wall_ns(node.clock.wall_ns() - 3_600 * SECOND)
    consumer.settle("reject", got)

    assert node.events()[3:] == ["consume.fetched", "consume.rejected", *PUBLISH, "dlq.routed"]


# --- asking -----------------------------------------------------------------------------------------


def test_the_newest_by_its_last_event_comes_first(node: TracedNode) -> None:
    for value in (b"a", b"b", b"c"):
        node.publish(value)
        node.clock.advance(1)
    consumer = Consumer(node)
    got = consumer.poll()
    node.clock.advance(1)
    consumer.ack(got[:1])

    assert [trace.offset for trace in node.broker.traces.recent()] == [0, 2, 1]
    assert [trace.offset for trace in node.broker.traces.recent(limit=1)] == [0]
    assert node.broker.traces.recent(limit=1)[0].spans == []


def test_a_search_takes_everything_that_is_asked_for_together(disk: MemoryDisk, clock: ManualClock) -> None:
    node = TracedNode(disk, clock)
    node.create("orders", partitions=2)
    node.create("other")
    start_ns = clock.wall_ns()
    node.publish(b"a", partition=0)
    clock.advance(10)
    node.publish(b"b", partition=1)
    node.publish(b"c", topic="other")
    consumer = Consumer(node, "billing")
    got = consumer.poll(1) + consumer.poll(1)
    clock.advance(10)
    consumer.ack([message for message in got if message.value == b"a"])

    def found(**query: object) -> list[tuple[str, int, int]]:
        return sorted((trace.topic, trace.partition, trace.offset) for trace in node.find(**query))

    first, second, third = ("orders", 0, 0), ("orders", 1, 0), ("other", 0, 0)
    assert found() == [first, second, third]
    assert found(topic="orders") == [first, second]
    assert found(topic="orders", partition=1) == [second]
    assert found(partition=0) == [first, third]
    assert found(offset=0) == [first, second, third]
    assert found(offset=1) == []
    assert found(group="billing") == [first, second]
    assert found(status="completed") == [first]
    assert found(status="in_progress") == [second, third]
    assert found(status="pending") == [second, third]
    assert found(status="error") == []
    assert found(slower_than_ns=15 * SECOND) == [first]
    assert found(slower_than_ns=20 * SECOND) == []
    assert found(end_ns=start_ns + 5 * SECOND) == [first]
    assert found(start_ns=start_ns + 15 * SECOND) == [first]
    assert found(start_ns=start_ns + 5 * SECOND) == [first, second, third]
    assert found(topic="orders", group="billing", status="in_progress", partition=1) == [second]
    assert found(topic="nobody") == []
    assert len(found(limit=1)) == 1


def test_a_search_finds_keys(node: TracedNode) -> None:
    node.messages(
        NewMessage(b"1", key=b"k"), NewMessage(b"2", key=b"other"), NewMessage(b"3"), NewMessage(b"4", key=b"k")
    )

    assert sorted(trace.offset for trace in node.find(key=b"k")) == [0, 3]
    assert node.find(key=b"nobody") == []


@pytest.mark.parametrize("limit", [0, -1, 1_001])
def test_a_limit_out_of_range_is_refused(node: TracedNode, limit: int) -> None:
    with pytest.raises(InvalidRequest, match="invalid limit"):
        node.broker.traces.recent(limit=limit)


def test_a_status_that_is_none_is_refused(node: TracedNode) -> None:
    with pytest.raises(InvalidRequest, match="invalid status 'done'.*in_progress.*pending"):
        node.find(status="done")
    for status in (*STATUSES, *OUTCOMES):
        assert node.find(status=status) == []


def test_traces_in_numbers(node: TracedNode) -> None:
    node.publish(*[b"x"] * 10)
    consumer = Consumer(node)
    got = consumer.poll()
    node.clock.advance(2)
    consumer.ack(got[:3])
    node.clock.advance(2)
    consumer.ack(got[3:5])
    consumer.settle("reject", got[5:6])
    consumer.settle("nack", got[6:7])

    stats = node.broker.traces.stats()

    assert (stats.traces_total, stats.traces_completed, stats.traces_error, stats.traces_pending) == (10, 5, 1, 4)
    assert stats.average_latency_ns == (3 * 2 + 2 * 4) * SECOND // 5
    assert stats.by_topic == {"orders": 10}
    assert stats.exporters_enabled == []
    assert stats.sampling_rate == 1.0


def check_numbers(node: TracedNode) -> None:
    """The statistics tell what a search finds."""
    found = node.find(limit=1_000)
    stats = node.broker.traces.stats()
    outcomes = Counter(trace.outcome for trace in found)
    assert {
        "total": stats.traces_total,
        "completed": stats.traces_completed,
        "error": stats.traces_error,
        "pending": stats.traces_pending,
    } == {"total": len(found), **{outcome: outcomes[outcome] for outcome in OUTCOMES}}
    assert stats.by_topic == Counter(trace.topic for trace in found)
    done = [trace.end_ns - trace.start_ns for trace in found if trace.outcome == "completed"]
    assert stats.average_latency_ns == (sum(done) // len(done) if done else 0)


def test_the_numbers_are_those_of_the_traces_that_a_search_finds(node: TracedNode) -> None:
    node.publish(*[b"x"] * 10)
    publish_named(node, *[{"traceparent": traceparent()}] * 3, {"traceparent": traceparent(1)})
    node.messages(NewMessage(b"later", deliver_at_ns=node.clock.wall_ns() + 60 * SECOND))
    node.messages(NewMessage(b"never", deliver_at_ns=node.clock.wall_ns() + 60 * SECOND))
    node.messages(NewMessage(b"short", expires_at_ns=node.clock.wall_ns() + 90 * SECOND))
    node.done(node.broker.delays.cancel("orders", partition=0, offset=15))
    check_numbers(node)

    consumer, other = patient(node), patient(node, "other")
    got = consumer.poll()
    node.clock.advance(1)
    consumer.ack(got[:3])
    other.settle("nack", other.poll(3))
    consumer.settle("reject", got[3:5])
    consumer.ack(got[10:12])  # two of the three that name one trace
    node.written()
    check_numbers(node)

    node.clock.advance(1)
    redrive(node)
    check_numbers(node)

    node.clock.advance(2)
    consumer.ack(consumer.poll(1))
    check_numbers(node)
    node.clock.advance(100)
    node.tick()
    consumer.poll()
    check_numbers(node)


def test_a_message_that_recovers_is_counted_once(node: TracedNode) -> None:
    node.publish(b"x")
    consumer = Consumer(node)
    consumer.settle("nack", consumer.poll())
    node.tick(5)
    other = Consumer(node, "other")
    consumer.ack(consumer.poll())
    other.settle("reject", other.poll())

    stats = node.broker.traces.stats()
    assert (stats.traces_total, stats.traces_completed, stats.traces_error, stats.traces_pending) == (1, 0, 1, 0)


# --- __traces ---------------------------------------------------------------------------------------


@pytest.fixture
def kept(disk: MemoryDisk, clock: ManualClock) -> TracedNode:
    made = TracedNode(disk, clock, topic=True)
    made.create("orders")
    return made


COLUMNS = {
    "event_type": str,
    "time_ns": int,
    "sequence": int,
    "topic": str,
    "partition": int,
    "first_offset": int,
    "last_offset": int,
    "count": int,
    "trace_id": str,
    "parent_span_id": str,
    "consumer_group": str,
    "consumer_id": str,
    "attempt": int,
    "duration_ns": int,
    "error": str,
    "reason": str,
    "record_time_ns": int,
    "deliver_at_ns": int,
    "dlq_topic": str,
    "dlq_partition": int,
    "dlq_offset": int,
    "origin_topic": str,
    "origin_partition": int,
    "origin_offset": int,
}


def test_the_rows_of_the_topic_are_flat_and_typed(kept: TracedNode) -> None:
    consumer = Consumer(kept)
    kept.publish(*[b"x"] * 5)
    publish_named(kept, {"traceparent": traceparent()})
    kept.messages(NewMessage(b"later", deliver_at_ns=kept.clock.wall_ns() + 60 * SECOND))
    got = consumer.poll()
    consumer.ack(got[:3])
    consumer.settle("reject", got[3:4], reason="poison")
    kept.written()

    rows = rows_in_topic(kept)

    for row in rows:
        assert list(row) == list(COLUMNS)
        for name, kind in COLUMNS.items():
            assert isinstance(row[name], kind) or (kind is int and row[name] is None), (name, row)
    received = [row for row in rows if row["event_type"] == "publish.received" and row["topic"] == "orders"]
    assert [(row["first_offset"], row["last_offset"], row["count"], row["trace_id"]) for row in received] == [
        (0, 4, 5, ""),
        (5, 5, 1, TRACE),
        (6, 6, 1, ""),
    ]
    assert received[1]["parent_span_id"] == SPAN
    (routed,) = [row for row in rows if row["event_type"] == "dlq.routed"]
    assert (routed["dlq_topic"], routed["dlq_partition"], routed["dlq_offset"], routed["reason"]) == (
        "orders.dlq",
        0,
        0,
        "REJECTED",
    )
    assert {row["event_type"] for row in rows} >= {"rebalance.started", "rebalance.ended", "rebalance.assigned"}
    assert kept.broker.traces.stats().exporters_enabled == ["__traces"]


def test_rows_are_written_a_few_times_a_second_and_not_at_every_event(kept: TracedNode) -> None:
    kept.publish(b"a")
    assert "__traces" not in kept.broker.topics.list(internal=True)

    kept.tick(0.1)
    kept.workers.run_all()
    kept.tick(0.1)
    kept.workers.run_all()
    end = kept.leader("__traces").log.next_offset
    kept.publish(b"b")
    kept.tick(0.05)
    assert kept.leader("__traces").log.next_offset == end
    kept.tick(0.05)
    assert kept.leader("__traces").log.next_offset > end


def life(node: TracedNode) -> None:
    """A message that is delayed, fails, dies, comes back and is acknowledged at last."""
    consumer = patient(node)
    node.messages(NewMessage(b"v", key=b"k", deliver_at_ns=node.clock.wall_ns() + 60 * SECOND))
    node.tick(61)
    consumer.settle("nack", consumer.poll(), reason="not yet")
    node.tick(5)
    consumer.settle("reject", consumer.poll(), reason="never")
    redrive(node)
    node.tick(1)
    consumer.ack(consumer.poll())
    node.written()


LIFE = [
    *PUBLISH,
    "delay.scheduled",
    "delay.ready",
    "consume.fetched",
    "consume.nacked",
    "consume.fetched",
    "consume.rejected",
    *PUBLISH,
    "dlq.routed",
    *PUBLISH,
    "consume.fetched",
    "consume.acked",
]


def test_a_timeline_survives_a_restart_to_the_last_field(kept: TracedNode) -> None:
    life(kept)
    before = kept.trace()
    assert events_of(before) == LIFE

    after = kept.restarted()

    assert len(after.broker.traces.recorder.ring) <= 10
    assert after.broker.traces.get(before.trace_id) == before
    assert after.trace(0).trace_id == before.trace_id
    assert [trace.trace_id for trace in after.find(key=b"k")] == [before.trace_id]
    assert [trace.trace_id for trace in after.find(status="completed")] == [before.trace_id]


def test_a_timeline_goes_on_after_a_restart(kept: TracedNode) -> None:
    consumer = Consumer(kept)
    kept.publish(b"a")
    publish_named(kept, {"traceparent": traceparent()})
    got = consumer.poll()
    kept.written()

    after = kept.restarted()
    moved = consumer.moved_to(after)
    after.clock.advance(1)
    moved.ack(got)

    after.written()  # what happened since is in the ring, and in the topic as well
    for offset in (0, 1):
        assert after.events(offset) == [*PUBLISH, "consume.fetched", "consume.acked"]
    assert after.broker.traces.get(TRACE).status == "completed"
    assert len(after.broker.traces.recent()) == 2


def test_what_the_ring_forgot_is_in_the_topic(disk: MemoryDisk, clock: ManualClock) -> None:
    node = TracedNode(disk, clock, topic=True, ring=4)
    node.create("orders")
    life(node)
    for _ in range(10):
        node.publish(b"more")

    assert node.events(0) == LIFE
    assert len(node.broker.traces.recent()) == 11


def test_a_stop_in_order_loses_no_row(kept: TracedNode) -> None:
    kept.publish(b"first")
    kept.written()
    kept.publish(b"last")
    kept.broker.close()

    assert TracedNode(kept.disk, kept.clock, topic=True).events(1) == PUBLISH


def test_who_is_about_to_stop_writes_down_what_was_recorded(kept: TracedNode) -> None:
    kept.publish(b"first")
    kept.written()
    kept.publish(b"last")
    kept.broker.drain()
    kept.workers.run_all()

    assert kept.restarted().events(1) == PUBLISH


def test_only_so_many_lines_are_written_at_once_and_the_others_are_counted(
    disk: MemoryDisk, clock: ManualClock
) -> None:
    node = TracedNode(disk, clock, topic=True)
    node.create("orders")
    node.publish(b"x")
    node.written()
    for _ in range(2_000):
        node.publish(b"x")
    node.tick(0.1)

    kept_rows = -(-LINES_MAX // 3)
    assert len(rows_in_topic(node)) == 3 * (1 + kept_rows)
    assert node.broker.traces.recorder.tallies.dropped["exporter"] == 3 * (2_000 - kept_rows)


def test_a_timeline_is_whole_though_the_first_record_is_gone(disk: MemoryDisk, clock: ManualClock) -> None:
    node = TracedNode(disk, clock, topic=True, ring=6)
    node.create("orders", segment_bytes=1_024, retention="60s")
    node.create("other")
    node.publish(b"a" * 600)
    consumer = Consumer(node)
    consumer.settle("reject", consumer.poll())
    trace_id = node.trace().trace_id
    for _ in range(3):
        node.publish(b"b" * 600)
    node.pass_time(90, step=5)
    node.written()
    node.done(node.broker.dead_letters.redrive("orders", ALL, target_topic="other"))
    node.written()

    assert node.leader().log.start_offset > 0
    trace = node.broker.traces.get(trace_id)
    assert events_of(trace) == [
        *PUBLISH,
        "consume.fetched",
        "consume.rejected",
        *PUBLISH,
        "dlq.routed",
        *PUBLISH,
    ]
    assert trace.status == "in_progress"


def test_a_topic_that_is_made_anew_has_no_past_in_the_topic_either(kept: TracedNode) -> None:
    kept.publish(b"old")
    kept.written()
    kept.done(kept.broker.topics.delete("orders"))
    kept.clock.advance(1)
    kept.create("orders")
    kept.publish(b"new")
    kept.written()

    assert kept.restarted().events(0) == PUBLISH


def test_lines_that_make_no_sense_are_passed_over(kept: TracedNode) -> None:
    kept.publish(b"a")
    kept.written()
    kept.write_directly("__traces", b"nonsense", b"{}", b"[1]", b'{"event_type": 7}', b"\xff")

    after = kept.restarted()

    assert after.events(0) == PUBLISH


@pytest.mark.parametrize("error", [ENOSPC, EIO])
def test_a_disk_that_takes_no_rows_costs_rows_and_nothing_else(
    disk: MemoryDisk, clock: ManualClock, error: int
) -> None:
    faulty = FaultyDisk(disk, seed=1)
    node = TracedNode(faulty, clock, topic=True)
    node.create("orders")
    node.publish(b"a")
    node.written()
    faulty.fail_next("pwrite", error, path_suffix="__traces/0/log/00000000000000000000.log")

    node.publish(b"b", b"c")
    node.written()
    node.publish(b"d")
    node.written()

    assert node.events(1) == PUBLISH
    is_stopped = error == EIO  # what is full may have room again, what failed stays so
    tallies = node.broker.traces.recorder.tallies
    assert tallies.dropped["exporter"] == (9 if is_stopped else 6)
    assert tallies.exports["__traces", "failure"] == (2 if is_stopped else 1)
    assert tallies.exports["__traces", "success"] == (1 if is_stopped else 2)
    assert len(rows_in_topic(node)) == (3 if is_stopped else 6)


# --- sinks ------------------------------------------------------------------------------------------


def test_a_sink_gets_rows_once_they_are_complete(disk: MemoryDisk, clock: ManualClock) -> None:
    sink = ListSink(needs_trace_ids=True)
    node = TracedNode(disk, clock, sinks=[sink])
    node.create("orders")
    pending = node.send([b"a", b"b"])
    node.tick(0.2)
    assert sink.exports == []

    node.done(pending)
    consumer = Consumer(node)
    consumer.ack(consumer.poll())
    node.tick(0.2)

    kinds = [export.row.kind for export in sink.exports if export.row.count]
    assert kinds == ["publish", "consume.fetched", "consume.acked", "consume.acked"]
    ids = {offset: node.trace(offset).trace_id for offset in (0, 1)}
    told = [export.trace_ids for export in sink.exports if export.row.count]
    assert told == [ids, ids, {0: ids[0]}, {1: ids[1]}]
    assert node.broker.traces.stats().exporters_enabled == ["list"]


def test_ids_for_a_sink_come_from_the_log_when_nothing_else_knows_them(disk: MemoryDisk, clock: ManualClock) -> None:
    node = TracedNode(disk, clock)
    node.create("orders")
    publish_named(node, {"traceparent": traceparent()}, None)
    sink = ListSink(needs_trace_ids=True)
    after = TracedNode(disk.crash(keep="everything"), clock, sinks=[sink])
    Consumer(after).poll()
    after.tick(0.2)

    (fetched,) = [export for export in sink.exports if export.row.count]
    messages = decode_messages(after.read().records, after.leader().origin, flags=Flags.COMPRESSED)
    assert fetched.trace_ids == {message.offset: id_of(message) for message in messages}
    assert fetched.trace_ids[0] == TRACE


def test_only_so_many_messages_are_identified_at_once_and_the_others_are_counted(
    disk: MemoryDisk, clock: ManualClock
) -> None:
    sink = ListSink(needs_trace_ids=True)
    node = TracedNode(disk, clock, sinks=[sink])
    node.create("orders")
    for _ in range(3):
        node.publish(*[b"x"] * 4_000)
    node.tick(0.2)

    assert [len(export.trace_ids) for export in sink.exports] == [4_000, 4_000, 2_000]
    assert node.broker.traces.recorder.tallies.dropped["exporter"] == 3 * 2_000


def id_of(message: StoredMessage) -> str:
    return trace_id_of("orders", 0, message.offset, message.timestamp_ns, message.encoded_headers)


def test_a_sink_that_refuses_costs_rows_and_they_are_counted(disk: MemoryDisk, clock: ManualClock) -> None:
    full, good = ListSink("full"), ListSink("good")
    full.is_full = True
    node = TracedNode(disk, clock, sinks=[full, good])
    node.create("orders")
    node.publish(*[b"x"] * 7)
    node.tick(0.2)

    assert len(good.exports) == 1
    assert node.broker.traces.recorder.tallies.dropped["exporter"] == 21
    assert node.events() == PUBLISH


def test_what_waits_for_sinks_is_bounded(disk: MemoryDisk, clock: ManualClock) -> None:
    sink = ListSink()
    node = TracedNode(disk, clock, sinks=[sink], outbox_max=5)
    node.create("orders")
    for _ in range(8):
        node.publish(b"x")
    node.tick(0.2)

    assert len(sink.exports) == 5
    assert node.broker.traces.recorder.tallies.dropped["exporter"] == 9


def test_exports_are_counted_by_their_result(disk: MemoryDisk, clock: ManualClock) -> None:
    node = TracedNode(disk, clock, sinks=[ListSink("jsonl")])
    traces = node.broker.traces
    traces.exported("jsonl", 5, None)
    traces.exported("jsonl", 7, OSError("full"))

    assert traces.recorder.tallies.exports == {("jsonl", "success"): 1, ("jsonl", "failure"): 1}
    assert traces.recorder.tallies.dropped["exporter"] == 7


# --- a model ----------------------------------------------------------------------------------------


class Life:
    """What should be known of one message: what happened to it by itself, and to whom else."""

    def __init__(self) -> None:
        self.own: list[str] = []
        self.of_group: dict[str, list[str]] = {}
        self.deaths = 0


class Model:
    """Two groups, and messages that are told from one another by their values."""

    def __init__(self, node: TracedNode) -> None:
        self.node = node
        self.leaders: dict[bytes, Life] = {}
        self.consumers = [patient(node, group) for group in ("first", "second")]
        self.held: dict[str, dict[bytes, Got]] = {"first": {}, "second": {}}
        self.waiting: dict[bytes, int] = {}

    def publish(self, count: int, delay: int) -> None:
        due_ns = self.node.clock.wall_ns() + delay * SECOND if delay else None
        values = [f"{len(self.leaders) + number}".encode() for number in range(count)]
        self.node.messages(*(NewMessage(value, deliver_at_ns=due_ns) for value in values))
        for value in values:
            life = self.leaders[value] = Life()
            life.own = [*PUBLISH, *(["delay.scheduled"] if due_ns else [])]
            if due_ns:
                self.waiting[value] = due_ns

    def poll(self, who: int, count: int) -> None:
        consumer = self.consumers[who]
        for message in consumer.poll(count):
            self.note(consumer.group, message.value, f"consume.fetched {message.count}")
            self.held[consumer.group][message.value] = message

    def settle(self, who: int, action: str, pick: int) -> None:
        consumer = self.consumers[who]
        held = self.held[consumer.group]
        if not held:
            return
        value = sorted(held)[pick % len(held)]
        message = held[value] if action == "extend" else held.pop(value)
        consumer.settle(action, [message], delay=3_600 if action == "extend" else None)
        if action == "extend":
            self.note(consumer.group, value, "visibility.extended")
            held[value] = message._replace(deadline_ns=self.node.clock.wall_ns() + 3_600 * SECOND)
            return
        self.note(
            consumer.group, value, {"ack": "consume.acked", "nack": "consume.nacked"}.get(action, "consume.rejected")
        )
        if action == "reject" or (action == "nack" and message.count >= 3):
            self.dies(consumer.group, value)

    def tick(self, seconds: int) -> None:
        self.node.tick(seconds)
        self.node.workers.run_all()
        now_ns = self.node.clock.wall_ns()
        for value in [value for value, due_ns in self.waiting.items() if due_ns <= now_ns]:
            del self.waiting[value]
            self.leaders[value].own.append("delay.ready")
        for group, held in self.held.items():
            for value, message in list(held.items()):
                if message.deadline_ns <= now_ns:
                    del held[value]
                    self.note(group, value, "visibility.timeout")
                    if message.count >= 3:
                        self.dies(group, value)

    def redrive(self) -> None:
        if not self.node.broker.partitions.has_topic("orders.dlq"):
            return
        before = self.node.leader().log.next_offset
        redrive(self.node)
        result = self.node.read(offset=before)
        for message in decode_messages(result.records, self.node.leader().origin, flags=Flags.COMPRESSED):
            self.leaders[message.value].own += PUBLISH

    def dies(self, group: str, value: bytes) -> None:
        self.note(group, value, "dlq.routed")
        self.leaders[value].own += PUBLISH  # of the letter

    def note(self, group: str, value: bytes, what: str) -> None:
        self.leaders[value].of_group.setdefault(group, []).append(what)

    def check(self) -> None:
        messages = decode_messages(self.node.read().records, self.node.leader().origin, flags=Flags.COMPRESSED)
        ids = {message.value: id_of(message) for message in messages}
        assert ids.keys() <= self.leaders.keys()
        for value, trace_id in ids.items():
            trace = self.node.broker.traces.get(trace_id)
            life = self.leaders[value]
            spans = trace.spans
            assert [span.time_ns for span in spans] == sorted(span.time_ns for span in spans)
            own = [span.event_type for span in spans if not span.group]
            assert sorted(own) == sorted(life.own), value
            groups: dict[str, list[str]] = {}
            for span in spans:
                if span.group:
                    attempt = f" {span.attributes['attempt']}" if span.event_type == "consume.fetched" else ""
                    groups.setdefault(span.group, []).append(span.event_type + attempt)
            assert groups == life.of_group, value
            check_places(trace)


def check_places(trace: Trace) -> None:
    """At each place a message is received first, and a dead letter is there before it is said to be."""
    first: dict[tuple[str, int], str] = {}
    for span in trace.spans:
        place = (span.topic, span.offset)
        assert first.setdefault(place, span.event_type) == "publish.received"
        if span.event_type == "dlq.routed":
            assert (span.attributes["dlq_topic"], int(span.attributes["dlq_offset"])) in first


WHO = st.integers(0, 1)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("publish"), st.integers(1, 3), st.sampled_from([0, 0, 20, 50])),
        st.tuples(st.just("poll"), WHO, st.integers(1, 4)),
        st.tuples(
            st.just("settle"), WHO, st.sampled_from(["ack", "nack", "nack", "reject", "extend"]), st.integers(0, 5)
        ),
        st.tuples(st.just("tick"), st.sampled_from([1, 3, 12, 31])),
        st.tuples(st.just("redrive")),
    ),
    max_size=25,
)


def model_of(disk: MemoryDisk, *, topic: bool) -> Model:
    node = TracedNode(disk, ManualClock(), topic=topic)
    node.create("orders", backoff_initial="1s", backoff_max="2s")
    return Model(node)


@settings(max_examples=60)
@given(STEPS)
def test_whatever_happens_to_messages_their_timelines_tell_it(steps: list[tuple[object, ...]]) -> None:
    model = model_of(MemoryDisk(), topic=False)
    for name, *arguments in steps:
        getattr(model, str(name))(*arguments)
        model.node.clock.advance(0.001)
    model.check()
    check_numbers(model.node)


@settings(max_examples=30)
@given(STEPS)
def test_and_they_tell_it_after_a_restart(steps: list[tuple[object, ...]]) -> None:
    model = model_of(MemoryDisk(), topic=True)
    for name, *arguments in steps:
        getattr(model, str(name))(*arguments)
        model.node.clock.advance(0.001)
    model.node.written()
    model.node = model.node.restarted()
    model.check()
