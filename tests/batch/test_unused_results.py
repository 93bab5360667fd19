"""A call with several results of which some are not used: what only those depend on has no gradient, as in the loop."""

import numpy as np
import pytest

import wayfare as wf
import wayfare.nn as nn
from wayfare.batch.run import row_plan


class Two(nn.Module):
    """Two results that have nothing in common, of two inputs and two layers."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(3, 3, dtype=wf.float64), nn.Linear(3, 3, dtype=wf.float64)

    def forward(self, x, y):
        left, right = self.a(x).tanh(), self.b(y)
        return left.sigmoid() * 2, (right + right.sin()).tanh()


USED = {
    "the first": lambda rows: sum(a.sum() for a, _ in rows),
    "the second": lambda rows: sum(b.sum() for _, b in rows),
    "both": lambda rows: sum(a.sum() + b.sum() for a, b in rows),
    "one of one example, the other of another": lambda rows: rows[1][0].sum() + rows[2][1].sum(),
    "one of one example": lambda rows: rows[3][0].sum(),
}


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("used", USED)
def test_what_only_unused_results_depend_on_has_no_gradient(used, native, monkeypatch):
    monkeypatch.setattr(row_plan, "AFTER_GROUPS", 0 if native else 10**9)
    wf.manual_seed(0)
    two, found = Two(), []
    xs, ys = ([wf.randn(3, dtype=wf.float64, requires_grad=True) for _ in range(4)] for _ in range(2))
    for run in (lambda f, *rows: [f(*row) for row in zip(*rows, strict=True)], wf.map):
        for nested in (False, True):

            def work(x, y, nested=nested):
                return two(two(x * 1, y * 1)[0], y * 2) if nested else two(x * 1, y * 2)

            for t in [*two.parameters(), *xs, *ys]:
                t.grad = None
            USED[used](run(work, xs, ys)).backward()
            found.append([None if t.grad is None else t.grad.numpy().copy() for t in [*two.parameters(), *xs, *ys]])
    for mine, its in zip(found[2:], found[:2], strict=True):
        assert [g is None for g in mine] == [g is None for g in its]
        for g, expected in zip(mine, its, strict=True):
            if g is not None:
                np.testing.assert_allclose(g, expected, rtol=1e-11, atol=1e-12)
