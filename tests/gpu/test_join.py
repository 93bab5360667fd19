"""Loops over time in compiled functions, whose products are joined, in orders other than that of the steps."""

import numpy as np
import pytest

import wayfare as wf
from wayfare.nn import functional as F

LENGTH = 6
ORDERS = {
    "one_reversed": (range(LENGTH), range(LENGTH - 1, -1, -1)),
    "both_reversed": (range(LENGTH - 1, -1, -1),) * 2,
    "from_the_end": ([-1, -2, -3, -4, -5, -6], [-6, -1, -2, -3, -4, -5]),
    "any": ([3, 1, 0, 2, 5, 4], [0, 2, 1, 5, 3, 4]),
    "some": ([0, 2, 3, 5], [1, 2, 3, 4]),
    "twice": ([0, 1, 2, 3, 4, 5, 0], [0, 0, 1, 2, 3, 4, 5]),
}


@pytest.mark.parametrize("first", [True, False], ids=["time_first", "batch_first"])
@pytest.mark.parametrize("product", ["matmul", "linear"])
@pytest.mark.parametrize("order", ORDERS)
def test_two_inputs_read_in_any_order(cuda, order, product, first):
    """What is added for the gradient of a weight belongs together, step by step, wherever the inputs are read."""
    rng = np.random.default_rng(0)
    made = [rng.standard_normal((LENGTH, 3, 5) if first else (3, LENGTH, 5)).astype(np.float32) for _ in range(2)]
    weights = [rng.standard_normal(shape).astype(np.float32) * 0.3 for shape in ((5, 4), (5, 4), (4, 4))]

    def trained(device, compiled):
        u, v, w = params = [wf.nn.Parameter(wf.tensor(a).to(device)) for a in weights]

        def step(x, y):
            state = wf.zeros(3, 4, device=device)
            for i, j in zip(*ORDERS[order], strict=True):
                a, b = (x[i], y[j]) if first else (x[:, i], y[:, j])
                new = a @ u + b @ v if product == "matmul" else F.linear(a, u.t()) + F.linear(b, v.t())
                state = (new + state @ w).tanh()
            loss = state.square().sum()
            loss.backward()
            return loss

        run = wf.compile(step, check=False) if compiled else step
        found = []
        for _ in range(4):
            loss = run(*[wf.tensor(a).to(device) for a in made])
            found.append([loss.item(), *[p.grad.cpu().numpy() for p in params]])
            for p in params:
                p.grad = None
        return found

    for mine, theirs in zip(trained("cuda", True), trained("cpu", False), strict=True):
        for one, other in zip(mine, theirs, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-5)
