"""What a node keeps of the metadata, and what is left of it after crashes, damage and full disks."""

from collections.abc import Callable

import pytest

from goqueue.cluster.local_copy import LocalCopy, SnapshotPolicy
from goqueue.cluster.metadata import Metadata
from goqueue.cluster.metadata_log import EMPTY, MetadataEntry
from goqueue.cluster.records import LogSealed
from goqueue.errors import ClusterError, StorageFailed, StorageFull
from goqueue.runtime.entropy import SeededEntropy
from goqueue.storage.jobs import Job
from goqueue.testing import FaultyDisk, MemoryDisk, PowerLoss
from tests.cluster.history import CLUSTER_ID, History, partition, with_topic

PATH = "/data/metadata"


def open_copy(disk: MemoryDisk | FaultyDisk, node: int = 1, **more: object) -> LocalCopy:
    return LocalCopy.open(disk, PATH, node=node, entropy=SeededEntropy(1), **more)  # type: ignore[arg-type]


def keep(copy: LocalCopy, *entries: MetadataEntry) -> None:
    """Do what a follower does."""
    copy.append(entries).result()
    for entry in entries:
        copy.heard(copy.metadata.apply(entry))


def long_history(count: int = 20) -> History:
    history = with_topic()
    for epoch in range(1, count + 1):
        history.append(partition(leader_epoch=epoch + 1, partition_epoch=epoch, leader=1 + epoch % 3))
    return history


def flip(disk: MemoryDisk, name: str, position: int) -> None:
    raw = bytearray(disk.read(f"{PATH}/{name}"))
    raw[position] ^= 1
    disk.write(f"{PATH}/{name}", bytes(raw))


def test_a_new_copy_is_empty_and_has_an_id_of_its_own() -> None:
    disk = MemoryDisk()

    copy = open_copy(disk)

    assert (copy.node, copy.cluster_id, copy.clean_epoch, copy.forming) == (1, "", None, None)
    assert copy.floor == EMPTY
    assert len(copy.directory_id) == 32
    assert open_copy(disk).directory_id == copy.directory_id


def test_what_was_kept_is_there_again() -> None:
    disk, history = MemoryDisk(), long_history()
    copy = open_copy(disk)
    copy.join(CLUSTER_ID)
    keep(copy, *history.entries[:3])
    keep(copy, *history.entries[3:])
    copy.close()

    again = open_copy(disk)

    assert again.metadata.encode() == history.metadata.encode()
    assert again.floor == history.metadata.position
    assert (again.cluster_id, again.leader_epoch, again.damage) == (CLUSTER_ID, 21, "")


def test_entries_are_replaced_by_a_snapshot_when_they_are_many() -> None:
    disk, history = MemoryDisk(), long_history()
    copy = open_copy(disk, policy=SnapshotPolicy(entries=5))
    keep(copy, *history.entries[:4])
    assert not copy.wants_snapshot
    keep(copy, *history.entries[4:7])
    assert copy.wants_snapshot

    state = copy.store(copy.metadata).result()
    keep(copy, *history.entries[7:])

    assert state == copy_of(history, 7).encode()
    again = open_copy(disk)
    assert again.metadata.encode() == history.metadata.encode()
    assert again.leader_epoch == 21
    assert open_copy(disk, policy=SnapshotPolicy(entries=5)).wants_snapshot


def copy_of(history: History, count: int) -> Metadata:
    state = Metadata()
    for entry in history.entries[:count]:
        state.apply(entry)
    return state


def test_the_highest_leader_epoch_outlives_its_topic_and_snapshots() -> None:
    disk, history = MemoryDisk(), long_history()
    copy = open_copy(disk)
    keep(copy, *history.entries)
    copy.store(Metadata()).result()

    assert open_copy(disk).leader_epoch == 21


def test_a_snapshot_must_grow_before_it_is_replaced() -> None:
    policy = SnapshotPolicy(entries=100, bytes=1_000)

    assert not policy.is_due(99, 1_000, 0)
    assert policy.is_due(99, 1_001, 0)
    assert not policy.is_due(99, 5_000, 5_000)
    assert policy.is_due(100, 0, 5_000)


def test_after_a_crash_at_any_step_nothing_that_was_kept_is_lost() -> None:
    history = long_history(6)

    def work(disk: MemoryDisk, kept: list[int]) -> None:
        copy = open_copy(disk, policy=SnapshotPolicy(entries=4))
        copy.join(CLUSTER_ID)
        for first in range(0, len(history.entries), 3):
            keep(copy, *history.entries[first : first + 3])
            kept.append(copy.metadata.position.index)
            if copy.wants_snapshot:
                copy.store(copy.metadata).result()
        copy.mark_clean(7)

    whole = MemoryDisk()
    work(whole, [])
    for step in range(0, whole.steps, 7):
        disk, kept = MemoryDisk(power_off_after=step), [0]
        with pytest.raises(PowerLoss):
            work(disk, kept)
        for seed in range(3):
            again = open_copy(disk.crash(seed=seed))
            found = again.metadata.position.index
            assert not again.damage
            assert kept[-1] <= found
            assert again.metadata.encode() == copy_of(history, found).encode()
            assert again.cluster_id == CLUSTER_ID or not found
            keep(again, *history.entries[found:])
            assert again.metadata.encode() == history.metadata.encode()


def test_a_torn_entry_is_cut_off_and_written_again() -> None:
    disk, history = MemoryDisk(), long_history()
    keep(open_copy(disk), *history.entries)
    raw = disk.read(f"{PATH}/entries")
    disk.write(f"{PATH}/entries", raw[:-5])

    copy = open_copy(disk)
    assert copy.metadata.position == history.entries[-2].position
    keep(copy, history.entries[-1])

    assert disk.read(f"{PATH}/entries") == raw


@pytest.mark.parametrize("damaged", ["entries", "snapshot"])
def test_damage_leaves_the_position_and_the_state_is_read_again(damaged: str) -> None:
    disk, history = MemoryDisk(), long_history()
    copy = open_copy(disk)
    copy.join(CLUSTER_ID)
    keep(copy, *history.entries[:8])
    copy.store(copy.metadata).result()
    keep(copy, *history.entries[8:])
    flip(disk, damaged, 100)

    again = open_copy(disk)
    assert damaged in again.damage
    assert again.metadata.position == EMPTY
    assert again.floor == history.entries[-1].position
    again.begin_again()
    assert not again.damage
    keep(again, *history.entries[:3])

    third = open_copy(disk)
    assert (third.damage, third.metadata.position.index) == ("", 3)
    assert third.floor == history.entries[-1].position
    assert third.leader_epoch >= 1


@pytest.mark.parametrize("name", ["identity", "forming"])
def test_what_nothing_can_replace_has_to_be_whole(name: str) -> None:
    disk, history = MemoryDisk(), long_history()
    copy = open_copy(disk)
    copy.begin_forming(history.entries[0])
    flip(disk, name, 20)

    with pytest.raises(ClusterError, match=f"{name} is damaged.*empty data directory"):
        open_copy(disk)


def test_a_copy_without_identity_is_nobodys() -> None:
    disk, history = MemoryDisk(), long_history()
    keep(open_copy(disk), *history.entries)
    disk.remove(f"{PATH}/identity")

    with pytest.raises(ClusterError, match="no identity: nobody can tell which node it belongs to"):
        open_copy(disk)


def test_a_copy_knows_the_processes_that_may_be_registered_from_it() -> None:
    disk = MemoryDisk()
    copy = open_copy(disk)
    copy.begin_process("a")
    copy.begin_process("b")
    copy.begin_process("c", registered="b")

    again = open_copy(disk.crash())
    assert [again.has_been(process) for process in "abcd"] == [False, True, True, False]
    for number in range(100):
        again.begin_process(str(number), registered="d")
    assert [again.has_been(process) for process in ("c", "35", "36", "99")] == [False, False, True, True]


def test_a_copy_of_another_node_is_refused() -> None:
    disk = MemoryDisk()
    open_copy(disk, node=1)

    with pytest.raises(ClusterError, match="belongs to node 1, not to node 2: start it as node 1"):
        open_copy(disk, node=2)


def test_a_node_that_was_removed_does_not_come_back() -> None:
    disk = MemoryDisk()
    open_copy(disk).mark_removed()

    with pytest.raises(ClusterError, match="node 1 was removed from the cluster"):
        open_copy(disk)


def test_a_clean_stop_is_remembered_under_its_broker_epoch() -> None:
    disk = MemoryDisk()
    open_copy(disk).mark_clean(17)
    assert open_copy(disk).clean_epoch == 17

    flip(disk, "clean", 18)

    assert open_copy(disk).clean_epoch is None


def test_the_first_entry_of_a_cluster_is_remembered_until_it_is_formed() -> None:
    disk, history = MemoryDisk(), long_history()
    open_copy(disk).begin_forming(history.entries[0])
    copy = open_copy(disk)
    assert copy.forming == history.entries[0]

    copy.join(CLUSTER_ID)

    assert open_copy(disk).forming is None


def test_a_full_disk_is_tried_again() -> None:
    history = long_history()
    disk = FaultyDisk(MemoryDisk(), seed=1)
    copy = open_copy(disk)
    keep(copy, *history.entries[:2])
    disk.fail_next("append", 28)

    failed = copy.append(history.entries[2:])
    assert isinstance(failed.error, StorageFull)
    keep(copy, *history.entries[2:])

    assert open_copy(disk).metadata.encode() == history.metadata.encode()


def test_a_disk_that_fails_is_an_error() -> None:
    history = long_history()
    disk = FaultyDisk(MemoryDisk(), seed=1)
    copy = open_copy(disk)
    keep(copy, *history.entries[:2])
    disk.fail_next("sync")

    assert isinstance(copy.append(history.entries[2:]).error, StorageFailed)


class LaterWorkers:
    """A thread whose jobs run when the test says so."""

    def __init__(self) -> None:
        self.jobs: list[tuple[Job, Callable[[Exception | None], None]]] = []

    def submit(self, job: Job, done: Callable[[Exception | None], None]) -> None:
        self.jobs.append((job, done))

    def work(self) -> None:
        for job, done in self.jobs:
            job.run()
            done(None)
        self.jobs.clear()


def test_a_worker_writes_and_what_is_under_way_ends_before_the_file_is_closed() -> None:
    disk, history, workers = MemoryDisk(), long_history(), LaterWorkers()
    copy = open_copy(disk, workers=workers)
    kept = copy.append(history.entries)
    copy.close()
    assert not kept.is_done

    workers.work()

    kept.result()
    assert open_copy(disk).metadata.encode() == history.metadata.encode()


def test_a_sealed_log_ends_the_copy_as_well() -> None:
    disk, history = MemoryDisk(), long_history()
    history.append(LogSealed("etcd://host"))
    keep(open_copy(disk), *history.entries)

    assert open_copy(disk).metadata.sealed_to == "etcd://host"
