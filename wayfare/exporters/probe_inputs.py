"""Probe inputs: inputs that no traced run has seen, for comparing a file with the function."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from wayfare.core.callsite import Site
from wayfare.core.numpy_math import Array
from wayfare.core.spec import FLOAT_KINDS
from wayfare.exporters.examples import Examples, Sizes, shown
from wayfare.exporters.recover.size_queries import untried
from wayfare.exporters.recover.sizes import prime_unlike

if TYPE_CHECKING:
    from wayfare.exporters.traced import Traced

# Larger inputs than this (in elements) are not tried: it would take too long.
_LARGEST = 1 << 20
# The size of one axis alone when the others stay small, and how small those are.
_LONG, _SHORT = 257, 3
# How many mixtures of the examples are tried for a function that branches on values; more if the examples do not show
# every combination of its branches.
_MIXED, _MIXED_MORE = 16, 64
# How many calls are traced where the examples do not explain all sizes and branches.
_EXPLORED = 24


class ProbeInputs(NamedTuple):
    """Arrays for a call. `site` is the line of a size query, if they were made for its other answer."""

    arrays: list[Array]
    site: Site | None = None


def probe_inputs(traced: Traced) -> Iterator[ProbeInputs]:
    """Other numbers like the examples', other sizes (also 1, 2 and large ones), and mixtures of the examples."""
    rng = np.random.default_rng(0)
    examples = traced.examples
    seen = {n for run in traced.runs for n in examples.sizes_of(run.arrays).values()}
    tried = [examples.sizes_of(run.arrays) for run in traced.runs]
    for arrays in examples.arrays:
        for sizes in _other_sizes(examples.sizes_of(arrays), seen):
            if examples.elements(arrays, sizes) <= _LARGEST:
                tried.append(sizes)
                given = examples.resized(arrays, sizes)
                yield ProbeInputs([_others(rng, a, b) for a, b in zip(given, arrays, strict=True)])
    unlike = examples.sizes_of(traced.runs[0].arrays)
    calls = [run.arrays for run in traced.runs if examples.sizes_of(run.arrays) == unlike]
    first = examples.arrays[0]
    for others, site, by_user in untried(examples, tried, calls):
        small = [sizes for sizes in others if examples.elements(first, sizes) <= _LARGEST]
        for sizes in small:
            given = examples.resized(first, sizes)
            yield ProbeInputs([_others(rng, a, b) for a, b in zip(given, first, strict=True)], site)
        if by_user and not small:
            traced.program.notes.append(f"Python decides by a size at {site}, and goes another way with "
                                        f"{shown(others[0])}, which is too large to be tried")  # fmt: skip
    decides = any(node.kind == "if" or node.attrs.get("asks") for node in traced.program.block.walk())
    for _ in range(_MIXED_MORE if traced.program.notes else _MIXED if decides else 0):
        yield ProbeInputs(_mixed(rng, examples.arrays, examples.arrays))


def exploration_inputs(examples: Examples) -> Iterator[list[Array]]:
    """Mixtures of the examples at various small sizes, for more runs to trace."""
    rng = np.random.default_rng(1)
    for number in range(_EXPLORED):
        like = examples.arrays[number % len(examples.arrays)]
        have = examples.sizes_of(like)
        chosen = rng.permutation(np.arange(2, 2 + max(12, len(have))))
        sizes = {label: int(n) for label, n in zip(have, chosen, strict=False)}
        yield _mixed(rng, [like if number % 3 == 2 else examples.resized(like, sizes)], examples.arrays)


def _other_sizes(have: Sizes, seen: set[int]) -> Iterator[Sizes]:
    yield have
    if not have:
        return
    sizes: Sizes = {}
    for label in have:
        sizes[label] = prime_unlike(seen | set(sizes.values()), 7)
    yield sizes
    yield dict.fromkeys(have, 1)
    yield dict.fromkeys(have, 2)
    yield {label: prime_unlike(seen, 31 + 6 * number) for number, label in enumerate(have)}
    # One axis large, the others small: all of them large would take long.
    for label in have:
        yield {**{other: min(n, _SHORT) for other, n in have.items()}, label: _LONG}


def _others(rng: Any, array: Array, like: Array) -> Array:
    if like.size == 0 or array.size == 0:
        return array
    made = rng.choice(like.reshape(-1), size=array.shape)
    if like.dtype.kind in FLOAT_KINDS:
        made = made * (1 + 0.1 * rng.normal(size=array.shape))
    return np.asarray(made, like.dtype)


def _mixed(rng: Any, likes: list[list[Array]], calls: list[list[Array]]) -> list[Array]:
    """Arrays like one of `likes`, with numbers from all calls; floats scaled, and negated if they have both signs."""
    like = likes[rng.integers(len(likes))]
    made = []
    for number, array in enumerate(like):
        pool = np.concatenate([call[number].reshape(-1) for call in calls])
        mixed = _others(rng, array, pool)
        if array.dtype.kind in FLOAT_KINDS:
            sign = rng.choice([1, 1, -1]) if (pool < 0).any() and (pool > 0).any() else 1
            mixed = np.asarray(mixed * sign * rng.choice([0.1, 0.3, 1, 3]), array.dtype)
        made.append(mixed)
    return made
