"""The power goes off at every step of a creation, a change and a deletion; each is done as a whole or not at all."""

from collections.abc import Callable
from typing import NamedTuple

import pytest

from goqueue.testing import MemoryDisk, PowerLoss
from goqueue.topics.catalog import Catalog
from tests.storage.logs import append, values_of
from tests.topics.catalogs import begin_create, create, run, start

SEEDS = 3


class Found(NamedTuple):
    """What a start finds of the topic `orders`."""

    id: str
    settings: dict[str, object]
    values: list[list[bytes]]
    floors: list[bytes]


OLD = Found("1d", {"retention": "1h"}, [[b"one"], [b"two"]], [b"floor"])
ALTERED = OLD._replace(settings={"acks": "leader"})
NEW = Found("2d", {}, [[]], [])


def populated(disk: MemoryDisk) -> Catalog:
    """A catalog with the topic `orders`, as `OLD` says, and a neighbour."""
    catalog = start(disk).catalog
    topic = create(catalog, topic_id="1d", retention="1h")
    for partition, value in zip(topic.partitions, (b"one", b"two"), strict=True):
        append(partition.log, [value])
        partition.log.flush()
    append(topic.partitions[0].ledger, [b"floor"])
    topic.partitions[0].ledger.flush()
    create(catalog, "neighbour", partitions=1)
    return catalog


def find(disk: MemoryDisk) -> Found | None:
    """Start on what the crash has left: whatever it is, it opens and is sound."""
    data, catalog = start(disk)
    found = found_in(catalog)
    data.close()
    return found


def found_in(catalog: Catalog) -> Found | None:
    assert set(catalog.names()) - {"orders"} <= {"neighbour"}
    found = None
    if "orders" in catalog:
        topic = catalog.get("orders")
        found = Found(
            topic.id,
            topic.settings,
            [values_of(partition.log) for partition in topic.partitions],
            values_of(topic.partitions[0].ledger),
        )
        assert not any(log.damage for partition in topic.partitions for log in partition.open_logs)
    return found


def find_and_go_on(disk: MemoryDisk) -> Found | None:
    """What was found can be deleted, and a topic of its name be created and written."""
    data, catalog = start(disk)
    found = found_in(catalog)
    if found:
        run(catalog, catalog.begin_delete("orders"))
    append(create(catalog, topic_id="3d").partitions[0].log, [b"three"])
    data.close()
    assert values_of(start(disk).catalog.partition("orders", 0).log) == [b"three"]
    return found


def do_create(catalog: Catalog) -> None:
    create(catalog, partitions=1, topic_id="2d")


def do_alter(catalog: Catalog) -> None:
    run(catalog, catalog.begin_alter("orders", {"retention": None, "acks": "leader"}))


def do_delete(catalog: Catalog) -> None:
    run(catalog, catalog.begin_delete("orders"))


def replace_then_remove(catalog: Catalog) -> None:
    deletion = catalog.begin_delete("orders")
    create(catalog, partitions=1, topic_id="2d")
    run(catalog, deletion)


def remove_while_replacing(catalog: Catalog) -> None:
    deletion = catalog.begin_delete("orders")
    creation = begin_create(catalog, partitions=1, topic_id="2d")
    deletion.run()
    creation.run()
    catalog.complete(creation)
    catalog.complete(deletion)


WORKLOADS: dict[str, tuple[Callable[[MemoryDisk], Catalog], Callable[[Catalog], None], list[Found | None]]] = {
    "create": (lambda disk: start(disk).catalog, do_create, [None, NEW]),
    "alter": (populated, do_alter, [OLD, ALTERED]),
    "delete": (populated, do_delete, [OLD, None]),
    "delete and create, then remove": (populated, replace_then_remove, [OLD, None, NEW]),
    "delete and create, removing first": (populated, remove_while_replacing, [OLD, None, NEW]),
}


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_crash_at_any_step_leaves_the_topic_whole_or_gone(name: str) -> None:
    prepare, workload, possible = WORKLOADS[name]
    rehearsal = MemoryDisk()
    catalog = prepare(rehearsal)
    begun = rehearsal.steps
    workload(catalog)
    seen = []

    for power_off_after in range(begun, rehearsal.steps):
        disk = MemoryDisk()
        catalog = prepare(disk)
        disk.power_off_after = power_off_after
        with pytest.raises(PowerLoss):
            workload(catalog)
        outcomes = [find(disk.crash()), find(disk.crash(keep="everything")), find(disk.crash(seed=1))]
        outcomes.append(find_and_go_on(disk.crash(seed=2)))
        for found in outcomes:
            assert found in possible, f"power off after {power_off_after}: {found}"
            seen.append(found)

    assert all(outcome in seen for outcome in possible)


@pytest.mark.parametrize("name", WORKLOADS)
def test_what_was_completed_outlives_a_crash(name: str) -> None:
    prepare, workload, possible = WORKLOADS[name]
    disk = MemoryDisk()

    workload(prepare(disk))

    for after in (disk.crash(), disk.crash(keep="everything"), *(disk.crash(seed=seed) for seed in range(SEEDS))):
        assert find_and_go_on(after) == possible[-1]


def test_a_crash_while_remains_are_cleared_away_leaves_nothing_of_them() -> None:
    disk = MemoryDisk()
    catalog = populated(disk)
    catalog.begin_delete("orders")
    disk = disk.crash(keep="everything")
    rehearsal = disk.crash()
    begun = rehearsal.steps
    start(rehearsal)

    for power_off_after in range(begun, rehearsal.steps):
        again = disk.crash()
        again.power_off_after = power_off_after
        with pytest.raises(PowerLoss):
            start(again)
        for seed in range(SEEDS):
            assert find_and_go_on(again.crash(seed=seed)) is None
