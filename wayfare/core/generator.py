"""Generators and seeds: the keys of random draws.

A generator holds a seed and counts its draws; a draw is a pure function of its key (seed, count). So the state is two
numbers, and equal seeds give equal numbers in every process and on every machine.

Without a generator argument, the generator of the current mode is used, or the default one: so each example of a batch
can have random numbers of its own.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from wayfare.core.device import CPU, Device
from wayfare.core.errors import ArgumentError, ArgumentTypeError
from wayfare.core.mode import LOOPING, STATE, UNUSUAL, executor
from wayfare.core.tensor import Tensor, wrap

__all__ = [
    "Generator", "default_generator", "manual_seed", "seed", "initial_seed", "get_rng_state", "set_rng_state",
    "fork_rng",
]  # fmt: skip

_WORDS = 2**64
_MASK = _WORDS - 1
# 2**64 divided by the golden ratio, made odd: its multiples are spread evenly.
_SPREAD = 0x9E3779B97F4A7C15


def _fresh_seed() -> int:
    return int.from_bytes(os.urandom(8), "little")


class Generator:
    """A source of random numbers: a seed, and how many draws were made from it."""

    __slots__ = ("__weakref__", "_calls", "_device", "_lock", "_seed")

    def __init__(self, device: Any = "cpu") -> None:
        self._device = Device(device)
        executor().not_replayable("a Generator is made inside the function")
        # PyTorch's seed of a new generator: the same in every process.
        self._seed = 67280421310721
        self._calls = 0
        self._lock = threading.Lock()

    @property
    def device(self) -> Device:
        """Where it draws."""
        return self._device

    def next_key(self) -> tuple[int, int]:
        """The key of the next draw. Each key is given out once, also to several threads."""
        with self._lock:
            call = self._calls
            self._calls = call + 1
            key = self._seed, call
        if UNUSUAL:
            executor().draw(self, key)
        return key

    def manual_seed(self, seed: int) -> Generator:
        """Restart from a seed; negative ones count down from 2**64."""
        try:
            number = int(seed)
        except (TypeError, ValueError):
            raise ArgumentTypeError(f"manual_seed: a seed is an int, not {type(seed).__name__}") from None
        if not -(_WORDS // 2) <= number < _WORDS:
            raise ArgumentError(f"manual_seed: {number} does not fit into 64 bits")
        executor().not_replayable("manual_seed is called inside the function")
        with self._lock:
            self._seed = number % _WORDS
            self._calls = 0
        return self

    def seed(self) -> int:
        """Restart from a random seed of the operating system, and return it."""
        fresh = _fresh_seed()
        self.manual_seed(fresh)
        return fresh

    def initial_seed(self) -> int:
        """The seed it was started from."""
        return self._seed

    def get_state(self) -> Tensor:
        """Seed and count as a uint8 tensor, for `set_state`."""
        with self._lock:
            state = wrap(np.array([self._seed, self._calls], "<u8").view(np.uint8))
        executor().generator_state_read(state)
        return state

    def set_state(self, new_state: Tensor) -> Generator:
        """Continue from a state of `get_state`."""
        if not isinstance(new_state, Tensor) or new_state.dtype.name != "uint8" or new_state.shape != (16,):
            shown = new_state.spec if isinstance(new_state, Tensor) else type(new_state).__name__
            raise ArgumentTypeError(f"set_state: a state is u8[16] as get_state gives it, not {shown}")
        executor().generator_state_set(new_state)
        words = np.frombuffer(new_state._array.tobytes(), "<u8")
        with self._lock:
            self._seed, self._calls = int(words[0]), int(words[1])
        return self

    def clone_state(self) -> Generator:
        """Another generator with the same state."""
        return Generator(self._device).set_state(self.get_state())

    def __repr__(self) -> str:
        return f"Generator(seed={self._seed}, draws={self._calls})"


default_generator = Generator()
default_generator.seed()


def _renew_lock() -> None:
    default_generator._lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    # Another thread of the parent may hold the lock; in the child nobody would release it.
    os.register_at_fork(after_in_child=_renew_lock)


def generator_in_force() -> Generator:
    """The generator for a draw without a generator argument: the mode's, the running example's, or the default one."""
    mode = STATE.mode if UNUSUAL else None
    own: Generator | None = None if mode is None else mode.generator
    if own is None and LOOPING and STATE.example is not None:
        own = STATE.example.generator
    return default_generator if own is None else own


def example_generator(key: tuple[int, int], number: int) -> Generator:
    """The generator of example `number` (from 0) of a batch, derived from the batch's `key`.

    Examples of one key have different seeds, and the seeds of neighbours and of different keys are unrelated.
    """
    seed, call = key
    place = _mix(_mix(seed + _SPREAD) + (call + 1) * _SPREAD)
    own = Generator.__new__(Generator)
    own._seed = _mix(place + (number + 1) * _SPREAD)
    own._calls = 0
    own._device = CPU
    own._lock = threading.Lock()
    return own


def _mix(number: int) -> int:
    """A 64-bit hash of a 64-bit number (splitmix64's finaliser): a bijection in which every bit affects every other."""
    number &= _MASK
    number = ((number ^ (number >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    number = ((number ^ (number >> 27)) * 0x94D049BB133111EB) & _MASK
    return number ^ (number >> 31)


def key_for(generator: Generator | None) -> tuple[int, int]:
    """The next key of a generator, or of the current one if it is None."""
    if generator is None:
        return (generator_in_force() if UNUSUAL or LOOPING else default_generator).next_key()
    if not isinstance(generator, Generator):
        raise ArgumentTypeError(f"generator must be a wf.Generator, not {type(generator).__name__}")
    return generator.next_key()


def manual_seed(seed: int) -> Generator:
    """Seed the default generator: what is drawn next is the same in every run."""
    return generator_in_force().manual_seed(seed)


def seed() -> int:
    """Seed the default generator from the operating system, and return the seed."""
    return generator_in_force().seed()


def initial_seed() -> int:
    """The seed of the default generator."""
    return generator_in_force().initial_seed()


def get_rng_state() -> Tensor:
    """The state of the default generator."""
    return generator_in_force().get_state()


def set_rng_state(new_state: Tensor) -> None:
    """Continue the default generator from a state of `get_rng_state`."""
    generator_in_force().set_state(new_state)


@contextmanager
def fork_rng(devices: Any = None, enabled: bool = True) -> Iterator[None]:
    """Inside the block draw as usual; after it, the default generator goes on as if nothing was drawn."""
    if not enabled:
        yield
        return
    # Restore this one, whichever is current when the block ends.
    generator = generator_in_force()
    state = generator.get_state()
    try:
        yield
    finally:
        generator.set_state(state)
