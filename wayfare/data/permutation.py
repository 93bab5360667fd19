"""A random order of very many numbers that takes no memory: each place is computed when it is asked for.

The order is a Feistel network over pairs of halves of a number: a bijection of 0 … 4ᵏ - 1 whatever its round function
is. A value beyond the size is sent through again until one within it comes out, which keeps it a bijection.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

import wayfare as wf
from wayfare.core.errors import IndexRangeError
from wayfare.data.randomness import drawn_seed, mixed

__all__ = ["Permutation", "all_at_once", "random_order"]

# Up to this many numbers are drawn at once: as Python's ints they take a few hundred MB.
AT_ONCE = 1 << 23

_ROUNDS = 8
# Places that are computed at a time.
_CHUNK = 1 << 14


class Permutation(Sequence[int]):
    """The numbers 0 … size - 1 in a random order that the seed decides; a slice of it is a part of that order."""

    def __init__(self, size: int, seed: int, places: range | None = None) -> None:
        self.size = size
        self.seed = seed
        self.places = range(size) if places is None else places
        half = max(1, -(-(size - 1).bit_length() // 2))
        self._half = np.uint64(half)
        self._mask = np.uint64((1 << half) - 1)
        self._keys = [np.uint64(mixed(seed, number)) for number in range(_ROUNDS)]

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return Permutation(self.size, self.seed, self.places[index])
        try:
            place = self.places[index]
        except IndexError:
            raise IndexRangeError(f"there is no entry {index}, it has {len(self)}") from None
        return int(self._at(np.array([place], dtype=np.uint64))[0])

    def __iter__(self) -> Iterator[int]:
        for start in range(0, len(self.places), _CHUNK):
            part = self.places[start : start + _CHUNK]
            yield from self._at(np.arange(part.start, part.stop, part.step, dtype=np.uint64)).tolist()

    def __repr__(self) -> str:
        return f"<random order of {self.size} numbers, {len(self)} of them>"

    def _at(self, places: Any) -> Any:
        """What is at these places."""
        values = self._once(places)
        beyond = np.flatnonzero(values >= self.size)
        while len(beyond):
            values[beyond] = again = self._once(values[beyond])
            beyond = beyond[again >= self.size]
        return values

    def _once(self, values: Any) -> Any:
        left, right = values >> self._half, values & self._mask
        for key in self._keys:
            left, right = right, left ^ (_scattered(right + key) & self._mask)
        return left << self._half | right


def all_at_once(count: int) -> bool:
    """Are `count` numbers few enough to be drawn and held at once?"""
    return count <= AT_ONCE


def random_order(size: int, generator: wf.Generator | None) -> Sequence[int]:
    """The numbers 0 … size - 1 in an order drawn from a generator, or from the default one."""
    if all_at_once(size):
        return wf.randperm(size, generator=generator).tolist()  # type: ignore[no-any-return]
    return Permutation(size, drawn_seed(generator))


def _scattered(values: Any) -> Any:
    """Numbers of 64 bits whose every bit depends on all bits of the ones given (the last steps of splitmix64)."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
