"""Randomness, from one injected source: with a seed and a manual clock a whole run can be repeated to the byte."""

import random
import secrets
from typing import Protocol


class Entropy(Protocol):
    """A source of random numbers."""

    def bits(self, count: int) -> int:
        """A number of up to that many bits."""

    def bytes(self, count: int) -> bytes:
        """That many bytes."""

    def fraction(self) -> float:
        """A number in [0, 1)."""


class SystemEntropy:
    """The system's own. Ids and nonces made of it cannot be guessed."""

    def bits(self, count: int) -> int:
        """A number of up to that many bits."""
        return secrets.randbits(count)

    def bytes(self, count: int) -> bytes:
        """That many bytes."""
        return secrets.token_bytes(count)

    def fraction(self) -> float:
        """A number in [0, 1), for jitter: fast, and possibly predictable."""
        return random.random()


class SeededEntropy:
    """The same numbers for the same seed, for tests and simulations."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def bits(self, count: int) -> int:
        """A number of up to that many bits."""
        return self._random.getrandbits(count)

    def bytes(self, count: int) -> bytes:
        """That many bytes."""
        return self._random.randbytes(count)

    def fraction(self) -> float:
        """A number in [0, 1)."""
        return self._random.random()
