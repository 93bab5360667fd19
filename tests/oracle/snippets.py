"""What the side-by-side snippets about autograd share: leaves, weighted sums, and the collection of cases."""

from __future__ import annotations


def leaf(m, *values):
    """A leaf of doubles, 1 2 3 4 unless values are given."""
    return m.tensor(list(values) or [1.0, 2.0, 3.0, 4.0], dtype=m.float64, requires_grad=True)


def gradient(m, x, y):
    """The gradient of a weighted sum of y, so that no two elements of y count the same."""
    weights = m.arange(1, y.numel() + 1, dtype=m.float64).reshape(y.shape)
    (y * weights).sum().backward()
    return x.grad


class Cases(dict):
    """Snippets by name; used as a decorator, it takes a function in under its own name."""

    def __call__(self, function):
        self[function.__name__.replace("_", " ")] = function
        return function
