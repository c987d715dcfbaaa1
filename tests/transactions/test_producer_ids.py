"""A producer id names its coordinator, and JSON can carry it."""

import pytest

from goqueue.transactions.producer_ids import (
    NUMBER_BITS,
    ProducerNumbers,
    coordinator_of,
    has_coordinator,
    producer_id,
)


@pytest.mark.parametrize("number", [0, 1, 2**NUMBER_BITS - 1])
@pytest.mark.parametrize("partition", [0, 15, 254, None])
def test_an_id_names_its_coordinator_or_says_that_it_has_none(number: int, partition: int | None) -> None:
    id = producer_id(number, partition)

    assert 0 < id < 2**53
    assert coordinator_of(id) == partition
    assert has_coordinator(id) == (partition is not None)


def test_ids_of_different_numbers_or_partitions_are_different() -> None:
    ids = [producer_id(number, partition) for number in range(20) for partition in (*range(16), None)]

    assert len(set(ids)) == len(ids)


def test_any_coordinator_may_know_an_id_from_before_this_form() -> None:
    assert coordinator_of(2**52 - 1) is None
    assert has_coordinator(2**52 - 1)


def test_numbers_are_taken_block_by_block_and_each_once() -> None:
    blocks = iter([range(5, 7), range(100, 103)])
    numbers = ProducerNumbers(lambda: next(blocks))

    assert [numbers.take() for _ in range(5)] == [5, 6, 100, 101, 102]
