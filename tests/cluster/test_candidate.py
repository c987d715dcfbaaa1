"""When a node tries to become the controller."""

from collections.abc import Sequence

from goqueue.clock import MS
from goqueue.cluster.candidate import Candidate
from goqueue.cluster.messages import PreVoteReply
from goqueue.cluster.metadata import Metadata
from goqueue.cluster.records import BrokerChanged, BrokerStatus
from goqueue.cluster.timing import ClusterTiming
from goqueue.runtime.entropy import SeededEntropy
from tests.cluster.history import History, formed

TIMING = ClusterTiming()
SILENCE = TIMING.silence_ns
STEP = TIMING.rank_step_ns


def cluster(nodes: Sequence[int] = (1, 2, 3, 4), controller: int = 1) -> History:
    """All online; the controller is one of them."""
    history = formed()
    for node in nodes:
        history.register(node)
    history.elect(controller)
    return history


def candidate(node: int, now_ns: int = 0) -> Candidate:
    made = Candidate(node, timing=TIMING, entropy=SeededEntropy(node), now_ns=now_ns)
    made.began(now_ns)
    return made


def due(node: int, metadata: Metadata, heard_ns: int = 0) -> int:
    made = candidate(node)
    made.heard(heard_ns)
    return made.due_ns(metadata)


def reply(node: int, *, hears: bool, epoch: int = 2) -> PreVoteReply:
    return PreVoteReply(node, epoch, hears)


def test_a_silent_controller_is_replaced_by_the_first_of_the_others() -> None:
    metadata = cluster().metadata

    times = [due(node, metadata, heard_ns=5_000 * MS) - 5_000 * MS for node in (2, 3, 4)]

    for rank, time in enumerate(times):
        assert SILENCE + rank * STEP <= time < SILENCE + rank * STEP + TIMING.jitter_ns


def test_nodes_that_are_fenced_or_unknown_come_last() -> None:
    history = cluster()
    history.append(BrokerChanged(2, history.metadata.brokers[2].broker_epoch, BrokerStatus.FENCED))

    fenced, stranger = due(2, history.metadata), due(9, history.metadata)

    assert SILENCE + 3 * STEP <= fenced < SILENCE + 4 * STEP
    assert SILENCE + 3 * STEP <= stranger < SILENCE + 5 * STEP


def test_a_node_that_is_alone_waits_for_nobody() -> None:
    metadata = cluster([1]).metadata
    alone = candidate(1)

    assert alone.due_ns(metadata) == SILENCE
    alone.controller_died(7)
    assert alone.due_ns(metadata) == 7


def test_a_controller_whose_process_has_died_is_replaced_at_once() -> None:
    metadata = cluster().metadata
    made = candidate(2)
    made.heard(1_000 * MS)
    assert made.hears_controller(1_001 * MS)

    made.controller_died(1_001 * MS)

    assert not made.hears_controller(1_001 * MS)
    assert 1_001 * MS <= made.due_ns(metadata) < 1_001 * MS + TIMING.jitter_ns
    made.heard(1_002 * MS)
    assert made.hears_controller(1_002 * MS)


def test_it_hears_the_controller_until_that_is_silent() -> None:
    made = candidate(2)
    assert not made.hears_controller(0), "it has just started"

    made.epoch_began(0, is_here=False)

    assert made.hears_controller(SILENCE - 1)
    assert not made.hears_controller(SILENCE)


def test_it_does_not_stand_if_most_peers_hear_the_controller() -> None:
    metadata = cluster().metadata
    made = candidate(2)

    assert made.may_stand(metadata, [], SILENCE)
    assert made.may_stand(metadata, [reply(3, hears=False), reply(4, hears=False)], SILENCE)
    assert made.may_stand(metadata, [reply(3, hears=True), reply(4, hears=False)], SILENCE)
    assert not made.may_stand(metadata, [reply(3, hears=True)], SILENCE)
    assert not made.may_stand(metadata, [reply(1, hears=True), reply(3, hears=True), reply(4, hears=False)], SILENCE)


def test_it_does_not_stand_if_a_peer_knows_a_later_epoch() -> None:
    metadata = cluster().metadata

    assert not candidate(2).may_stand(metadata, [reply(3, hears=False, epoch=3)], SILENCE)


def test_an_attempt_that_led_to_nothing_is_followed_by_a_pause() -> None:
    metadata = cluster().metadata
    made = candidate(2)

    made.held_back(SILENCE)

    assert made.due_ns(metadata) == SILENCE + TIMING.heartbeat_ns


def test_elections_that_lead_to_nothing_become_rarer() -> None:
    metadata = cluster().metadata
    made = candidate(2)
    pauses = []
    now = 0
    for _ in range(10):
        made.epoch_began(now, is_here=True)
        made.reign_ended(now, was_futile=True)
        began = now
        while not made.may_stand(metadata, [], now):
            now += 10 * MS
        pauses.append(now - began)

    assert SILENCE // 2 <= pauses[0] <= SILENCE + 10 * MS
    assert max(pauses) > 8 * SILENCE
    assert max(pauses) <= TIMING.futile_wait_ns_max
    made.reign_ended(now, was_futile=True)
    assert made.may_stand(metadata, [reply(3, hears=False)], now), "half of the cluster can hear it now"
    made.epoch_began(now, is_here=False)
    made.reign_ended(now, was_futile=True)
    assert made.may_stand(metadata, [], now + SILENCE)
