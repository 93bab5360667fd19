"""What the tests of recorded paths share: a model that decides by values, examples for it, and what ran."""

import numpy as np

import wayfare as wf

F = wf.nn.functional


class Halting(wf.nn.Module):
    """It turns until what it adds up is large enough: a `while` on a value, with other counts for other examples."""

    def __init__(self, size=6):
        super().__init__()
        self.cell = wf.nn.GRUCell(size, size)
        self.halt = wf.nn.Linear(size, 1)
        self.head = wf.nn.Linear(size, 3)

    def forward(self, x, label):
        h, mean, total, turns = x, 0.0, 0.0, 0
        while total < 1 and turns < 12:
            h = self.cell(x, h)
            share = self.halt(h).sigmoid() * 0.4
            total = total + share
            mean = mean + share * h
            turns += 1
        return F.cross_entropy(self.head(mean), label)


def halting_examples(count=16, size=6, seed=0):
    numbers = np.random.default_rng(seed)
    xs = [wf.tensor(3 * numbers.standard_normal(size)) for _ in range(count)]
    return xs, [wf.tensor(int(numbers.integers(3))) for _ in range(count)]


def vectors(count=12, size=4, seed=1, **options):
    numbers = np.random.default_rng(seed)
    return [wf.tensor(numbers.standard_normal(size), **options) for _ in range(count)]


def paths():
    stats = wf.batching.last().paths
    assert stats is not None and stats.failed is None
    return stats


def mapped(function, *columns, times=5):
    """The results of the last of several maps, which must have run along recorded paths."""
    for _ in range(times):
        found = wf.map(function, *columns)
    while paths().checked:  # the examples that are compared with Python run as Python too
        found = wf.map(function, *columns)
    assert paths().examples == len(columns[0])
    return found


def close(one, other, tolerance=1e-12):
    np.testing.assert_allclose(one.detach().numpy(), other.detach().numpy(), tolerance, tolerance)
