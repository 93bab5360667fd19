"""Gradients of some rows: what a step changes, what it costs, and what it leaves alone."""

import tracemalloc

import numpy as np
import pytest

import wayfare as wf
from wayfare.core.counters import counted

EXACT = [("SGD", {}), ("SGD", {"maximize": True}), ("Adagrad", {"lr_decay": 0.1}), ("Adagrad", {"eps": 1e-3})]
OTHERS = [
    ("SGD", {"momentum": 0.9}), ("SGD", {"weight_decay": 0.1}), ("Adagrad", {"weight_decay": 0.1}), ("Adam", {}),
    ("AdamW", {}), ("RMSprop", {}), ("Adadelta", {}), ("Adamax", {}), ("NAdam", {}), ("RAdam", {}),
]  # fmt: skip


def look_up(table, index, weights):
    (wf.nn.functional.embedding(wf.tensor(index), table) * wf.tensor(weights, dtype=table.dtype)).sum().backward()


def run(name, options, dense, shape=(50, 4), steps=6):
    rng = np.random.default_rng(0)
    table = wf.tensor(rng.normal(size=shape)).requires_grad_()
    optimizer = getattr(wf.optim, name)([table], lr=0.1, **options)
    for _ in range(steps):
        optimizer.zero_grad()
        for _ in range(2):  # two look-ups add up, and the first names a row twice
            look_up(table, rng.integers(0, shape[0], 5), rng.normal(size=(5, shape[1])))
        assert table.row_grad() is not None
        if dense:
            table.grad = table.grad.clone()
        optimizer.step()
    return table.detach().numpy(), optimizer


@pytest.mark.parametrize(("name", "options"), EXACT + OTHERS, ids=str)
def test_rows_give_what_the_whole_gradient_gives(name, options):
    np.testing.assert_allclose(run(name, options, False)[0], run(name, options, True)[0], rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("dense", [False, True])
def test_sparse_adam_leaves_untouched_rows_alone(dense):
    table = wf.ones(6, 2, requires_grad=True)
    optimizer = wf.optim.SparseAdam([table], lr=0.1)
    for rows in ([1, 4], [4]):
        optimizer.zero_grad()
        look_up(table, np.array(rows), np.ones((len(rows), 2)))
        if dense:
            assert table.grad is not None
        optimizer.step()
    state = optimizer.state[table]
    moved = (table.detach().numpy() != 1).any(1)
    assert moved.tolist() == [False, True, False, False, True, False]
    assert (state["exp_avg"].numpy() != 0).any(1).tolist() == moved.tolist()
    assert state["step"] == 2
    # Row 1 was touched once: its average is that of one gradient, without the fading of a second step.
    np.testing.assert_allclose(state["exp_avg"].numpy()[1], 0.1, rtol=1e-6)
    np.testing.assert_allclose(state["exp_avg"].numpy()[4], 0.1 + 0.9 * 0.1, rtol=1e-6)


def test_sparse_adam_takes_any_shape():
    params = [wf.ones(3, requires_grad=True), wf.tensor(1.0, requires_grad=True), wf.ones(2, 2, 2, requires_grad=True)]
    for p in params:
        p.grad = wf.ones_like(p.detach())
    params[0].grad[1] = 0.0
    params[2].grad[0] = 0.0
    wf.optim.SparseAdam(params, lr=0.5).step()
    np.testing.assert_allclose(params[0].detach().numpy(), [0.5, 1.0, 0.5], rtol=1e-6)
    np.testing.assert_allclose(params[1].item(), 0.5, rtol=1e-6)
    np.testing.assert_allclose(params[2].detach().numpy()[:, 0, 0], [1.0, 0.5], rtol=1e-6)


@pytest.mark.parametrize(("name", "options"), [*EXACT, ("SparseAdam", {})], ids=str)
def test_a_step_does_not_touch_the_whole_table(name, options):
    rows, width = 200_000, 16
    table = wf.zeros(rows, width, requires_grad=True)
    optimizer = getattr(wf.optim, name)([table], lr=0.1, **options)
    index = np.arange(0, 1000, 10)

    def step():
        optimizer.zero_grad()
        look_up(table, index, np.ones((index.size, width)))
        optimizer.step()

    step()  # makes the states
    tracemalloc.start()
    try:
        with counted() as counts:
            step()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert table.row_grad() is not None  # it was not made a whole
    assert counts.pool_made == counts.pool_reused == 0
    assert peak < rows * 8 / 4  # far less than one number for each row of the table
    changed = table.detach().numpy().any(1).nonzero()[0]
    np.testing.assert_array_equal(changed, index)


def test_rows_and_whole_gradients_side_by_side():
    rng = np.random.default_rng(3)
    table, weight = (wf.tensor(rng.normal(size=s)).requires_grad_() for s in ((10, 2), (2, 2)))
    before = table.detach().numpy().copy(), weight.detach().numpy().copy()
    loss = (wf.nn.functional.embedding(wf.tensor([1, 3]), table) @ weight).sum()
    loss.backward()
    optimizer = wf.optim.SGD([table, weight], lr=0.5)
    optimizer.step()
    np.testing.assert_allclose(table.detach().numpy(), before[0] - 0.5 * table.grad.numpy(), rtol=1e-12)
    np.testing.assert_allclose(weight.detach().numpy(), before[1] - 0.5 * weight.grad.numpy(), rtol=1e-12)
