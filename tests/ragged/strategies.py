"""Ragged tensors for property tests, and the comparison with the loop over rows."""

from itertools import pairwise

import numpy as np
from hypothesis import strategies as st

import wayfare as wf

FEATURES = [(), (1,), (3,), (2, 2)]


@st.composite
def raggeds(draw, features=None, shortest=0, fewest=0):
    """A float64 ragged tensor whose values want a gradient; empty rows and no rows at all included."""
    lengths = draw(st.lists(st.integers(shortest, 5), min_size=fewest, max_size=5))
    tail = draw(st.sampled_from(FEATURES)) if features is None else features
    seed = draw(st.integers(0, 2**16))
    return made(lengths, tail, seed)


def made(lengths, tail=(), seed=0):
    """A ragged tensor of these lengths."""
    numbers = np.random.default_rng(seed).normal(size=(sum(lengths), *tail))
    return wf.Ragged.from_lengths(wf.tensor(numbers, requires_grad=True), wf.tensor(lengths, dtype=wf.int64))


def rows_of(r):
    """The rows, cut with Python's slices: independent of Ragged's own ways."""
    offsets = r.offsets.tolist()
    return [r.values[a:b] for a, b in pairwise(offsets)]


def packed(outcome):
    """One tensor of a ragged tensor, a list of rows, or a tensor."""
    if isinstance(outcome, wf.Ragged):
        return outcome.values
    if isinstance(outcome, (list, tuple)):
        return wf.cat([row.reshape((-1, *row.shape[1:])) for row in outcome]) if outcome else None
    return outcome


def gradients(outcome, leaves):
    """The gradients of a sum with different weights for all results."""
    for leaf in leaves:
        leaf.grad = None
    if outcome is None or not outcome.requires_grad:
        return [None] * len(leaves)
    weights = wf.arange(outcome.numel(), dtype=wf.float64).cos().reshape(outcome.shape)
    (outcome * weights).sum().backward(retain_graph=True)
    return [leaf.grad.clone() if leaf.grad is not None else None for leaf in leaves]


def same(ours, loop, leaves):
    """Values and gradients of ours equal those of the loop."""
    ours, loop = packed(ours), packed(loop)
    if loop is None or loop.numel() == 0:
        assert ours is None or ours.numel() == 0
        return
    assert tuple(ours.shape) == tuple(loop.shape)
    np.testing.assert_allclose(ours.detach().numpy(), loop.detach().numpy(), rtol=1e-10, atol=1e-12)
    for mine, theirs in zip(gradients(ours, leaves), gradients(loop, leaves), strict=True):
        if theirs is None:
            assert mine is None or not np.any(np.nan_to_num(mine.numpy()))
        else:
            np.testing.assert_allclose(mine.numpy(), theirs.numpy(), rtol=1e-9, atol=1e-11)
