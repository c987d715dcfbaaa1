"""Randomness: the same seed repeats itself, the system never does."""

import pytest

from goqueue.runtime.entropy import Entropy, SeededEntropy, SystemEntropy


def drawn(entropy: Entropy) -> list[object]:
    return [entropy.bits(64), entropy.bytes(16), entropy.fraction(), entropy.bits(1), entropy.bytes(3)]


def test_the_same_seed_yields_the_same_numbers() -> None:
    assert drawn(SeededEntropy(7)) == drawn(SeededEntropy(7))


def test_another_seed_yields_others() -> None:
    assert drawn(SeededEntropy(7)) != drawn(SeededEntropy(8))


def test_the_system_repeats_nothing() -> None:
    assert drawn(SystemEntropy()) != drawn(SystemEntropy())


@pytest.mark.parametrize("entropy", [SystemEntropy(), SeededEntropy(1)], ids=["system", "seeded"])
def test_every_source_keeps_its_bounds(entropy: Entropy) -> None:
    assert {entropy.bits(2) for _ in range(200)} == {0, 1, 2, 3}
    assert all(0 <= entropy.fraction() < 1 for _ in range(200))
    assert len(entropy.bytes(33)) == 33
    assert entropy.bits(0) == 0
