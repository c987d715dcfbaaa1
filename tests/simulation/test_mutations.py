"""Bugs that were seeded on purpose into nodes, and what catches each: proof that the simulator looks where it matters.

A row is a place in a module, what it is changed to, and how it is caught: by chance, with the rules that the first
seeds then report, or by a named fault. `tests/cluster/test_mutations.py` has the bugs that unit tests catch.
"""

from collections.abc import Callable
from typing import NamedTuple

import pytest

from goqueue.cluster.node import Node
from goqueue.testing import SimulatedCluster, SimulationFailed
from tests.cluster import test_node as nodes
from tests.simulation import test_cluster as faults
from tests.simulation.clusters import three_nodes
from tests.simulation.mutated_node import mutated_node
from tests.simulation.run import run_seed

SEEDS = 40
"""A bug that chance catches is caught by one of so many seeds."""

Fault = Callable[[SimulatedCluster], None]


class Bug(NamedTuple):
    """One seeded bug, and the named fault or the rule that reveals it."""

    what: str
    module: str
    old: str
    new: str
    caught: Fault | str


def cut_off_from_the_controller(cluster: SimulatedCluster) -> None:
    faults.test_a_broker_that_is_cut_off_from_the_controller_in_one_direction(cluster, True)


def stands_still(cluster: SimulatedCluster) -> None:
    faults.test_a_controller_that_stands_still(cluster, 30.0, 1)


BUGS = [
    Bug(
        "a retry has a new id",
        "metadata_writer",
        "                await self._time.sleep(RETRY_NS)\n",
        "                await self._time.sleep(RETRY_NS)\n"
        '                entry = __import__("dataclasses").replace(entry, id=entry.id[::-1])\n',
        "R5",
    ),
    Bug(
        "an append in doubt is taken for a lost one",
        "metadata_writer",
        '                self._tell("unknown", entry)\n',
        "                return False\n",
        "R5",
    ),
    Bug(
        "a controller decides before it knows what became of its election",
        "reign",
        "        await self._writer.settle()  # its own election, if the answer to that was lost\n",
        "",
        faults.test_an_election_that_takes_effect_when_its_author_has_given_it_up,
    ),
    Bug(
        "a candidate skips an epoch",
        "takeover",
        "position, epoch, node = self._metadata.position, self._metadata.epoch + 1,",
        "position, epoch, node = self._metadata.position, self._metadata.epoch + 2,",
        "M3",
    ),
    Bug(
        "the pre-vote of the peers is ignored",
        "candidate",
        "        if 2 * sum(reply.hears_controller for reply in replies) > len(replies):\n            return False\n",
        "",
        cut_off_from_the_controller,
    ),
    Bug(
        "a peer says that it hears no controller",
        "node",
        "hears = self.hears_controller and",
        "hears = not self.hears_controller and",
        cut_off_from_the_controller,
    ),
    Bug(
        "a controller that hears nobody does not resign",
        "controller",
        " or not self._hears_half(self._timing.silence_ns, now)\n",
        "\n",
        faults.test_a_controller_that_hears_nobody_resigns_and_fences_nobody,
    ),
    Bug(
        "a new controller fences whom it has not heard yet",
        "sessions",
        "self._heard_ns.get(node, self._began_ns)",
        "self._heard_ns.get(node, 0)",
        faults.test_a_new_controller_fences_only_the_dead,
    ),
    Bug(
        "a broker epoch is not compared",
        "controller",
        "if broker is not None and message.broker_epoch == broker.broker_epoch:",
        "if broker is not None and message.broker_epoch <= broker.broker_epoch:",
        faults.test_a_process_that_was_replaced_changes_no_isr,
    ),
    Bug(
        "an answer does not wait for its entry",
        "drafts",
        "        if not self._drafts:\n            return Pending.of(message)\n",
        "        return Pending.of(message)\n",
        "M5",
    ),
    Bug(
        "a request is carried out, and not remembered",
        "administration",
        "return Done(self._drafts.add([*records, done]), answer)",
        "return Done(self._drafts.add([*records]), answer)",
        "A",
    ),
    Bug(
        "an entry is applied twice",
        "log_follower",
        "        if entry.after == self._received:\n",
        "        if True:\n",
        "node",
    ),
    Bug(
        "an older copy of a disk is as good as the disk",
        "controller_link",
        "if is_same_disk and not self._copy.has_been(registered):",
        "if False:",
        nodes.test_an_older_copy_of_a_disk_is_refused_until_somebody_says_that_the_disk_is_lost,
    ),
    Bug(
        "a snapshot is of another position than it says",
        "node",
        "MetadataSnapshot(position, state)",
        "MetadataSnapshot(MetadataPosition(position.index - 1, position.id), state)",
        "M4",
    ),
]


def reported_by_chance(rule: str, node_type: type[Node]) -> bool:
    """Whether one of the seeds breaks this rule."""
    for seed in range(1, SEEDS + 1):
        try:
            run_seed(seed, node_type=node_type)
        except SimulationFailed as failed:
            if any(sentence.startswith(rule) for sentence in failed.broken):
                return True
    return False


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: f"{bug.module}-{bug.what}")
def test_a_seeded_bug_is_caught(bug: Bug) -> None:
    node_type = mutated_node(bug.module, bug.old, bug.new)

    if isinstance(bug.caught, str):
        assert reported_by_chance(bug.caught, node_type)
    else:
        with pytest.raises(AssertionError), three_nodes(node_type) as cluster:
            bug.caught(cluster)
