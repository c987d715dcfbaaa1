"""Bugs that were seeded on purpose, and the test that catches each: proof that the tests look where it matters.

A row is a place in a module, what it is changed to, and the test that has to fail with it. The same test passes with
the modules as they are, in its own file.
"""

from collections.abc import Callable
from typing import NamedTuple

import pytest
from hypothesis import Phase

from goqueue.errors import GoQueueError
from tests.cluster import test_administration as administration
from tests.cluster import test_controller as controller
from tests.cluster import test_drafts as drafts
from tests.cluster import test_metadata as metadata
from tests.cluster import test_placement as placement
from tests.cluster.mutations import Modules, mutated
from tests.cluster.test_controller_machine import run_machine


class Bug(NamedTuple):
    """One seeded bug."""

    what: str
    module: str
    old: str
    new: str
    test: Callable[[Modules], None]


def any_history(modules: Modules) -> None:
    """`test_any_history_leaves_a_cluster_that_is_right`, which need not look for the shortest history."""
    run_machine(modules, examples=400, phases=[Phase.generate])


BUGS = [
    Bug(
        "an entry of a deposed controller takes effect",
        "metadata",
        "        if entry.epoch < self.epoch:\n            return []",
        "        if entry.epoch < self.epoch:\n            return decode_batch(entry.batch)",
        metadata.test_an_entry_of_a_deposed_controller_is_ignored,
    ),
    Bug(
        "an eligible replica stays eligible while records commit without it",
        "elections",
        "        if len(isr) < min_insync:\n",
        "        if len(isr) <= min_insync:\n",
        controller.test_replicas_that_leave_a_small_isr_stay_eligible_until_it_is_large_again,
    ),
    Bug(
        "the same, found without knowing where to look",
        "elections",
        "        if len(isr) < min_insync:\n",
        "        if len(isr) <= min_insync:\n",
        any_history,
    ),
    Bug(
        "any replica leads when nobody is in sync",
        "elections",
        "leader, isr = _choice(partition.replicas, isr, partition.elr, ranked)",
        "leader, isr = _choice(partition.replicas, isr, partition.replicas, ranked)",
        controller.test_only_an_operator_lets_a_replica_lead_that_may_lack_records,
    ),
    Bug(
        "a change of the leader begins no leader epoch",
        "elections",
        "leader_epoch=before.leader_epoch + (leader != before.leader)",
        "leader_epoch=before.leader_epoch + (leader is None)",
        controller.test_a_silent_broker_is_fenced_and_others_lead,
    ),
    Bug(
        "replicas stay eligible when the minimum in sync is lowered",
        "elections",
        "    if not partition.elr or len(partition.isr) < min_insync:\n",
        "    if partition.elr or len(partition.isr) < min_insync:\n",
        administration.test_nobody_is_eligible_once_fewer_in_sync_are_enough,
    ),
    Bug(
        "a leaving node takes a replica along that commits depend on",
        "elections",
        "    if len(partition.replicas) == 1 or not isr or len(isr) < min_insync:\n",
        "    if len(partition.replicas) == 1 or not isr:\n",
        controller.test_a_replica_that_commits_depend_on_stays_on_a_leaving_node,
    ),
    Bug(
        "a broker that comes back leads nothing",
        "leadership",
        "    drafts.add_each(revived(drafts.state, broker.node))\n",
        "",
        controller.test_a_partition_without_candidates_has_no_leader_until_one_comes_back,
    ),
    Bug(
        "a broker is fenced while it is in sync",
        "leadership",
        "    drafts.add_each(without_broker(drafts.state, broker.node))\n",
        "",
        controller.test_a_dead_process_is_fenced_at_once,
    ),
    Bug(
        "all replicas of a rack",
        "placement",
        "key=lambda node: (in_rack[racks[node]], replicas[node], left[node])",
        "key=lambda node: (replicas[node], left[node])",
        placement.test_replicas_are_in_different_racks,
    ),
    Bug(
        "the first broker is preferred by every small topic",
        "placement",
        "key=lambda node: (preferred[node], replicas[node], node)",
        "key=lambda node: node",
        administration.test_many_small_topics_are_balanced,
    ),
    Bug(
        "the old replicas of a replaced disk may lead",
        "registrations",
        "            if not has_disk or (is_unproven",
        "            if (is_unproven",
        controller.test_a_replica_on_a_replaced_disk_is_not_eligible,
    ),
    Bug(
        "a clean stop of any time proves the logs",
        "registrations",
        "asked.last_clean_epoch == before.broker_epoch",
        "asked.last_clean_epoch is not None",
        controller.test_a_clean_stop_of_another_time_proves_nothing,
    ),
    Bug(
        "what is not proven may lead",
        "registrations",
        "asked.unproven is None or number in",
        "asked.unproven is not None and number in",
        controller.test_a_replica_whose_log_is_not_known_is_not_eligible,
    ),
    Bug(
        "a cloned disk registers under another node",
        "registrations",
        "if other != asked.node and shared:",
        "if other == asked.node and shared and not may_live:",
        controller.test_a_data_directory_of_another_node_is_refused,
    ),
    Bug(
        "a process takes the id of one that lives",
        "controller",
        "return not (has_same_disk and self._sessions.is_doubtful(asked.node))",
        "return not has_same_disk",
        controller.test_a_node_id_is_taken_while_its_process_may_live,
    ),
    Bug(
        "a broker is online before it knows its registration",
        "controller",
        "if message.applied_index >= required:",
        "if message.applied_index + 1 >= required:",
        controller.test_a_broker_is_fenced_until_it_has_applied_its_registration,
    ),
    Bug(
        "an outdated process is heard",
        "controller",
        "if broker is not None and message.broker_epoch == broker.broker_epoch:",
        "if broker is not None and message.broker_epoch <= broker.broker_epoch:",
        controller.test_a_stale_broker_epoch_is_refused,
    ),
    Bug(
        "an ISR change is not compared with the partition epoch",
        "controller",
        "if change.partition_epoch != epoch:",
        "if change.partition_epoch > epoch:",
        controller.test_an_isr_change_is_compared_with_the_partition,
    ),
    Bug(
        "an outdated process joins an ISR",
        "controller",
        "if broker is None or broker.broker_epoch != member.broker_epoch:",
        "if broker is None:",
        controller.test_only_the_registered_process_on_its_disk_is_in_sync,
    ),
    Bug(
        "the same, found without knowing where to look",
        "controller",
        "if broker is None or broker.broker_epoch != member.broker_epoch:",
        "if broker is None:",
        any_history,
    ),
    Bug(
        "a controller that is cut off fences one broker after another",
        "controller",
        "if self._hears_half(self._timing.reset_ns, now):",
        "if True:",
        controller.test_a_controller_that_is_cut_off_does_not_fence_one_broker_after_another,
    ),
    Bug(
        "a new controller fences at once whom it has not heard",
        "sessions",
        "self._heard_ns.get(node, self._began_ns)",
        "self._heard_ns.get(node, 0)",
        controller.test_a_new_controller_gives_every_broker_a_full_session,
    ),
    Bug(
        "a controller that hears nobody stays",
        "sessions",
        "return 2 * (len(heard) + 1) >= len(met) + 1",
        "return 2 * (len(heard) + 1) >= len(met) - 1",
        controller.test_a_controller_that_hears_too_few_resigns_and_fences_nobody,
    ),
    Bug(
        "a request is carried out again after a takeover",
        "administration",
        "return Done(self._drafts.add([*records, done]), answer)",
        "return Done(self._drafts.add([*records]), answer)",
        administration.test_a_request_that_comes_again_has_the_same_answer,
    ),
    Bug(
        "two entries are in flight",
        "drafts",
        "        if self._is_in_flight or not self._drafts or self.is_broken:",
        "        if not self._drafts or self.is_broken:",
        drafts.test_decisions_gather_while_an_entry_is_in_flight,
    ),
    Bug(
        "an entry names the wrong entry before it",
        "drafts",
        "        self.state.reach(entry)\n",
        "        self.state.position = type(self.state.position)(entry.index, entry.previous_id)\n",
        drafts.test_decisions_gather_while_an_entry_is_in_flight,
    ),
]


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: f"{bug.module}-{bug.what}")
def test_a_seeded_bug_is_caught(bug: Bug) -> None:
    modules = mutated(bug.module, old=bug.old, new=bug.new)

    with pytest.raises((AssertionError, GoQueueError, pytest.fail.Exception)):
        bug.test(modules)
