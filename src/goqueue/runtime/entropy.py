"""Randomness as a dependency: ids, nonces and jitter come from an `Entropy` that the caller injects.

Code that draws its own random numbers cannot be replayed. So only this module draws them from the system; all other
code takes an `Entropy`. A test or a simulation injects a `SeededEntropy`, and the same seed yields the same run, to
the byte. `SeededEntropy` is predictable by design: it never serves a process that faces a network.
"""

import random
import secrets
from typing import Protocol

Bytes = bytes  # in a class with a method of that name, `bytes` is the method
_FRACTION_BITS = 53  # what the mantissa of a float holds


class Entropy(Protocol):
    """A source of random numbers."""

    def bits(self, count: int) -> int:
        """An integer in [0, 2**count)."""

    def bytes(self, count: int) -> Bytes:
        """So many bytes."""

    def fraction(self) -> float:
        """A number in [0, 1)."""


class SystemEntropy:
    """The randomness of the operating system."""

    def bits(self, count: int) -> int:
        """An integer in [0, 2**count)."""
        return secrets.randbits(count)

    def bytes(self, count: int) -> Bytes:
        """Unpredictable bytes."""
        return secrets.token_bytes(count)

    def fraction(self) -> float:
        """A number in [0, 1)."""
        return secrets.randbits(_FRACTION_BITS) / (1 << _FRACTION_BITS)


class SeededEntropy:
    """The sequence that follows from a seed: the same one in every run."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def bits(self, count: int) -> int:
        """An integer in [0, 2**count)."""
        return self._random.getrandbits(count) if count else 0

    def bytes(self, count: int) -> Bytes:
        """The next bytes of the sequence."""
        return self._random.randbytes(count)

    def fraction(self) -> float:
        """A number in [0, 1)."""
        return self._random.random()
