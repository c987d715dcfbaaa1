"""The verbs about the cluster, on a node whose controller decides when the test says so."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from goqueue.clock import SECOND
from goqueue.cluster.cluster_view import ClusterView
from goqueue.cluster.messages import (
    AnyAdminAnswer,
    AnyAdminRequest,
    Carried,
    ElectLeaders,
    LeadersElected,
    NodeRemoval,
    RemoveNode,
    SetFeatureLevel,
)
from goqueue.cluster.metadata import Metadata
from goqueue.cluster.records import BrokerChanged, BrokerStatus, ControllerElected, FeatureLevelSet, Recovered
from goqueue.cluster.timing import ClusterTiming
from goqueue.errors import (
    Conflict,
    GoQueueError,
    InvalidRequest,
    MetadataUnavailable,
    NotFound,
    PartitionNotFound,
    TopicNotFound,
)
from goqueue.runtime.entropy import SystemEntropy
from goqueue.service.pending import Pending
from goqueue.service.table import VERBS
from goqueue.testing import ManualClock
from goqueue.wire.reports import NodeHealth
from tests.cluster.history import History, formed, partition, with_topic


@dataclass
class Hears:
    """A controller that has heard some nodes."""

    heard: dict[int, int] = field(default_factory=dict)

    def last_heard_ns(self, node: int) -> int | None:
        return self.heard.get(node)


class Member:
    """A node of which the test says everything."""

    def __init__(self, history: History) -> None:
        self.history = history
        self.controller: Hears | None = None
        self.is_metadata_available = True

    @property
    def metadata(self) -> Metadata:
        found: Metadata = self.history.metadata
        return found


class Viewed:
    """The view of a node, and what it asks of the controller."""

    def __init__(self, history: History, *, node: int = 1) -> None:
        self.clock = ManualClock()
        self.history = history
        self.member = Member(history)
        self.asked: list[AnyAdminRequest] = []
        self.waiting: list[Pending[AnyAdminAnswer]] = []
        self.view = ClusterView(
            self.member,
            self._decide,
            node=node,
            kind="file",
            endpoints=["/metadata"],
            own_health=lambda: NodeHealth("ok", node, "1", 0, {}),
            timing=ClusterTiming(),
            clock=self.clock,
            entropy=SystemEntropy(),
        )

    def _decide(self, request: AnyAdminRequest) -> Pending[AnyAdminAnswer]:
        pending: Pending[AnyAdminAnswer] = Pending()
        self.asked.append(request)
        self.waiting.append(pending)
        return pending


def misplaced() -> Viewed:
    """Node 2 is the preferred leader of the only partition, and node 1 leads it."""
    return Viewed(with_topic(replicas=(2, 1, 3)))


def test_it_has_every_verb_with_the_arguments_that_the_table_says() -> None:
    for verb in VERBS.values():
        if verb.noun == "cluster":
            declared = [(one.name, one.kind, one.default) for one, _ in verb.parameters()]
            parameters = list(inspect.signature(getattr(ClusterView, verb.method)).parameters.values())[1:]
            assert [(one.name, one.kind, one.default) for one in parameters] == declared


def test_it_answers_from_what_the_node_has_applied() -> None:
    viewed = Viewed(with_topic())

    assert viewed.view.state().version == len(viewed.history.entries)
    assert [node.id for node in viewed.view.nodes()] == [1, 2, 3]
    assert viewed.view.node(2).followers == ["orders-0"]
    assert viewed.view.partitions("orders")[0].isr == (1, 2, 3)
    assert viewed.view.metadata() == "\n".join(viewed.history.metadata.dump())
    assert viewed.asked == []


def test_the_controller_knows_who_is_silent() -> None:
    viewed = Viewed(with_topic())
    viewed.member.controller = Hears({2: viewed.clock.monotonic_ns(), 3: viewed.clock.monotonic_ns()})
    viewed.clock.advance(1)
    viewed.member.controller.heard[2] = viewed.clock.monotonic_ns()

    assert [node.status for node in viewed.view.health().nodes] == ["online", "online", "suspect"]
    assert viewed.view.gauges().is_controller


def test_an_election_is_decided_by_the_controller_and_its_results_are_what_was_applied() -> None:
    viewed = misplaced()

    elected = viewed.view.elect_leaders()

    (request,) = viewed.asked
    assert isinstance(request, ElectLeaders)
    assert (request.topic, request.partitions, request.is_unclean, request.replica) == (None, None, False, None)
    assert not elected.is_done
    viewed.history.append(partition(replicas=(2, 1, 3), leader=2, leader_epoch=2, partition_epoch=1))
    viewed.waiting[0].resolve(LeadersElected(1))
    (result,) = elected.result()
    assert (result.topic, result.partition, result.leader, result.changed, result.error) == ("orders", 0, 2, True, "")


def test_an_election_that_cannot_give_a_partition_its_preferred_leader_says_why() -> None:
    viewed = Viewed(with_topic(replicas=(2, 1, 3), isr=(1, 3)))

    elected = viewed.view.elect_leaders("orders", partitions=[0, 0])
    viewed.waiting[0].resolve(LeadersElected(0))

    (result,) = elected.result()
    assert (result.leader, result.changed, result.error) == (1, False, "node 2 is not in sync")


def test_an_unclean_election_is_about_partitions_without_a_leader() -> None:
    viewed = Viewed(with_topic(leader=None, isr=()))

    elected = viewed.view.elect_leaders(is_unclean=True, replica=3)
    leads = partition(leader=3, isr=(3,), leader_epoch=2, partition_epoch=1, is_unclean=True)
    viewed.history.append(leads)
    viewed.waiting[0].resolve(LeadersElected(1))

    (request,) = viewed.asked
    assert isinstance(request, ElectLeaders)
    assert (request.is_unclean, request.replica) == (True, 3)
    assert [(one.leader, one.changed, one.error) for one in elected.result()] == [(3, True, "")]


def test_an_election_says_nothing_of_partitions_that_it_could_not_have_changed() -> None:
    viewed = Viewed(with_topic())

    elected = viewed.view.elect_leaders("orders")
    viewed.waiting[0].resolve(LeadersElected(0))

    assert elected.result() == []


@pytest.mark.parametrize(
    ("ask", "error"),
    [
        (lambda view: view.elect_leaders("nothing"), TopicNotFound),
        (lambda view: view.elect_leaders("orders", partitions=[1]), PartitionNotFound),
        (lambda view: view.elect_leaders(partitions=[0]), InvalidRequest),
        (lambda view: view.elect_leaders(replica=1), InvalidRequest),
        (lambda view: view.elect_leaders(is_unclean=True, replica=9), NotFound),
        (lambda view: view.remove_node(9), NotFound),
        (lambda view: view.set_feature_level(0), Conflict),
        (lambda view: view.set_feature_level(2), Conflict),
        (lambda view: view.node(9), NotFound),
        (lambda view: view.partitions("nothing"), TopicNotFound),
    ],
)
def test_what_is_not_there_is_refused_before_the_controller_is_asked(
    ask: Callable[[ClusterView], object], error: type[GoQueueError]
) -> None:
    viewed = Viewed(with_topic())

    with pytest.raises(error):
        ask(viewed.view)

    assert viewed.asked == []


def test_a_node_is_removed_by_the_controller_step_by_step() -> None:
    viewed = Viewed(with_topic())

    first, second = viewed.view.remove_node(3), viewed.view.remove_node(3)
    viewed.waiting[0].resolve(NodeRemoval(1))
    viewed.waiting[1].resolve(NodeRemoval(0))

    assert [(one.result().id, one.result().partitions_left) for one in (first, second)] == [(3, 1), (3, 0)]
    requests = [request for request in viewed.asked if isinstance(request, RemoveNode)]
    assert [request.node for request in requests] == [3, 3]
    assert len({request.request_id for request in requests}) == 2


def test_the_only_node_cannot_be_removed() -> None:
    history = formed()
    history.register(1)

    with pytest.raises(Conflict, match="only node"):
        Viewed(history).view.remove_node(1)


def test_a_feature_level_is_set_by_the_controller_once_every_node_knows_it() -> None:
    history = formed()
    history.register(1, feature_level_max=2)
    history.register(2)
    viewed = Viewed(history)

    assert viewed.view.set_feature_level(1).result().level == 1
    with pytest.raises(Conflict, match="not known to node 2"):
        viewed.view.set_feature_level(2)


def test_a_feature_level_that_is_set_is_answered_as_it_was_applied() -> None:
    history = formed()
    history.metadata.feature_level = 0
    history.register(1)
    viewed = Viewed(history)

    done = viewed.view.set_feature_level(1)
    history.append(FeatureLevelSet(1))
    viewed.waiting[0].resolve(Carried())

    (request,) = viewed.asked
    assert isinstance(request, SetFeatureLevel)
    assert (request.level, done.result().level) == (1, 1)


def test_a_refusal_of_the_controller_comes_out_of_the_pending() -> None:
    viewed = misplaced()

    elected = viewed.view.elect_leaders()
    viewed.waiting[0].fail(MetadataUnavailable("no quorum"))

    with pytest.raises(MetadataUnavailable):
        elected.result()


def test_the_check_of_the_cluster_fails_while_the_node_may_not_lead() -> None:
    history = formed()
    viewed = Viewed(history)
    assert "not registered" in viewed.view.check().message
    epoch = history.register(1, online=False)
    assert (viewed.view.check().status, "fenced" in viewed.view.check().message) == ("fail", True)

    history.append(BrokerChanged(1, epoch, BrokerStatus.ONLINE))

    assert viewed.view.check().status == "pass"


def test_the_check_of_the_cluster_warns_when_nothing_can_be_decided() -> None:
    viewed = Viewed(with_topic())
    viewed.member.is_metadata_available = False
    assert viewed.view.check().status == "warn"
    assert "metadata log does not answer" in viewed.view.check().message
    viewed.member.is_metadata_available = True
    viewed.history.append(Recovered(1, 5), node=2)
    epoch = viewed.history.metadata.broker(1).broker_epoch
    viewed.history.elect(1)
    viewed.history.append(BrokerChanged(1, epoch, BrokerStatus.ONLINE))
    viewed.history.metadata.controller = None

    assert viewed.view.check().message == "the cluster has no controller"


def test_it_knows_when_the_metadata_changed_and_since_when_there_is_this_controller() -> None:
    viewed = Viewed(with_topic())
    viewed.clock.advance(10)
    viewed.view.applied([])
    assert viewed.view.state().updated_at_ns == viewed.clock.wall_ns() - 10 * SECOND

    viewed.history.elect(2)
    viewed.view.applied([ControllerElected(2, 2, "2a")])
    viewed.clock.advance(3)
    viewed.view.applied([BrokerChanged(1, 1, BrokerStatus.ONLINE)])

    assert viewed.view.state().updated_at_ns == viewed.clock.wall_ns()
    assert viewed.view.gauges().controller_age_ns == 3 * SECOND


def test_partitions_are_counted_again_when_the_metadata_have_changed() -> None:
    viewed = Viewed(with_topic())
    assert viewed.view.health().under_replicated_partitions == 0

    viewed.history.append(partition(isr=(1, 2), partition_epoch=1))

    assert viewed.view.health().under_replicated_partitions == 1
    assert viewed.view.gauges().under_replicated == 1
