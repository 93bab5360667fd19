"""Seeds of epochs, batches and workers, and the three generators a dataset may draw from: wf, random and NumPy."""

from __future__ import annotations

import hashlib
import random
from typing import Any

import numpy as np

import wayfare as wf

# Room above for the numbers of the workers.
_SEEDS = 2**62


def mixed(*numbers: int) -> int:
    """One seed made of several numbers; neighbouring numbers give unrelated seeds."""
    text = ",".join(map(str, numbers)).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little") % _SEEDS


def drawn_seed(generator: wf.Generator | None) -> int:
    """A seed drawn from a generator, or from the default one."""
    return int(wf.randint(0, _SEEDS, (), generator=generator).item())


def seed_all(seed: int) -> None:
    """Seed wf, random and NumPy's global generator."""
    wf.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed % 2**32)


def _states() -> tuple[Any, ...]:
    return wf.get_rng_state(), random.getstate(), np.random.get_state()


def _restore(states: tuple[Any, ...]) -> None:
    wf.set_rng_state(states[0])
    random.setstate(states[1])
    np.random.set_state(states[2])


class OwnRandomness:
    """`with own:` — wf, random and NumPy draw from a stream of their own, and after the block go on as before it."""

    def __init__(self) -> None:
        self._seed: int | None = None
        self._inside: tuple[Any, ...] | None = None
        self._outside: tuple[Any, ...] = ()

    def seed(self, seed: int) -> None:
        """Start the stream again in the next block."""
        self._seed = seed

    def __enter__(self) -> None:
        self._outside = _states()
        if self._seed is not None:
            seed_all(self._seed)
            self._seed = None
        elif self._inside is not None:
            _restore(self._inside)

    def __exit__(self, *error: object) -> None:
        self._inside = _states()
        _restore(self._outside)
