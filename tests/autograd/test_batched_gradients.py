"""`autograd.grad(..., is_grads_batched=True)` and vmap over it: equal to one pass for each row."""

import numpy as np
import pytest

import wayfare as wf
from wayfare.errors import GraphError, ShapeError
from wayfare.nn import functional

rng = np.random.default_rng(0)


def leaf(*shape):
    return wf.tensor(rng.normal(size=shape), requires_grad=True)


@wf.fused
def fused(x):
    return wf.tanh(x) * x


compiled = wf.compile(lambda x: x.tanh() * x)

LSTM, NORM = wf.nn.LSTM(2, 2).double(), wf.nn.BatchNorm1d(2).double()

CASES = {
    "fused": (fused, (3, 2)),
    "compiled": (compiled, (3, 2)),
    "lstm": (lambda x: LSTM(x)[0], (3, 2)),
    "attention": (lambda x: functional.scaled_dot_product_attention(x, x, x), (1, 3, 2)),
    "batch norm": (NORM, (3, 2)),
    "pooling": (lambda x: functional.max_pool1d(x, 2), (1, 2, 4)),
    "embedding bag": (lambda x: functional.embedding_bag(wf.tensor([0, 1, 1]), x, wf.tensor([0, 2])), (3, 2)),
    "several outputs": (lambda x: x.split(1)[0] + x.unbind(0)[1], (3, 2)),
    "dropout": (lambda x: functional.dropout(x, 0.5), (3, 2)),
    "inverse": (wf.linalg.inv, (2, 2)),
}


@pytest.mark.parametrize("name", CASES)
def test_rows_of_a_jacobian(name):
    function, shape = CASES[name]
    for _ in range(3 if function is compiled else 1):
        x = leaf(*shape)
        y = function(x)
    seeds = wf.eye(y.numel(), dtype=wf.float64).reshape(-1, *y.shape)
    want = np.stack([wf.autograd.grad(y, x, seed, retain_graph=True)[0].numpy() for seed in seeds])
    by_vmap = wf.vmap(lambda v: wf.autograd.grad(y, x, v, retain_graph=True)[0])(seeds)
    (at_once,) = wf.autograd.grad(y, x, seeds, is_grads_batched=True, retain_graph=True)
    np.testing.assert_allclose(by_vmap.numpy(), want, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(at_once.numpy(), want, rtol=1e-12, atol=1e-14)
    assert not at_once.requires_grad
    (recorded,) = wf.autograd.grad(y, x, seeds, is_grads_batched=True, create_graph=True)
    np.testing.assert_allclose(recorded.detach().numpy(), want, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("randomness", ["same", "different", "error"])
def test_the_gradient_of_dropout_draws_nothing_anew(randomness):
    x = wf.ones(3, 2, dtype=wf.float64, requires_grad=True)
    y = functional.dropout(x, 0.5)
    seeds = wf.eye(6, dtype=wf.float64).reshape(6, 3, 2)
    rows = wf.vmap(lambda v: wf.autograd.grad(y, x, v, retain_graph=True)[0], randomness=randomness)(seeds)
    assert rows.sum(0).tolist() == y.tolist()


@pytest.mark.parametrize("randomness", ["same", "different"])
def test_per_example_gradients_through_dropout(randomness):
    def loss(x):
        y = functional.dropout(x, 0.5)
        return (y * x).sum(), y

    x = wf.ones(5, 8, dtype=wf.float64)
    gradients, masks = wf.vmap(wf.func.grad(loss, has_aux=True), randomness=randomness)(x)
    assert gradients.tolist() == (2 * masks).tolist()
    assert (len({tuple(mask) for mask in masks.tolist()}) > 1) is (randomness == "different")


def test_second_derivatives_of_a_batched_jacobian():
    def jacobian(x):
        y = (x.outer(x)).sin().sum(0)
        return wf.autograd.grad(y, x, wf.eye(3, dtype=wf.float64), is_grads_batched=True, create_graph=True)[0]

    assert wf.testing.gradcheck(jacobian, leaf(3))


def test_inside_a_compiled_function():
    def jacobian(x):
        y = x.sin() * x.sum()
        return wf.autograd.grad(y, x, wf.eye(3, dtype=wf.float64), is_grads_batched=True)[0]

    run = wf.compile(jacobian)
    for _ in range(4):
        x = leaf(3)
        wf.testing.assert_close(run(x), jacobian(x))


def test_what_an_example_sees_has_no_graph_of_its_own():
    x = leaf(3)
    with pytest.raises(GraphError, match=r"wf.func.grad"):
        wf.vmap(lambda v: wf.autograd.grad((x * v).sum(), x)[0])(wf.eye(3, dtype=wf.float64))
    y = x.sin()
    with pytest.raises(GraphError, match=r"wf.func.grad"):
        wf.vmap(lambda v: wf.autograd.grad(y.sum(), v)[0])(y)
    with pytest.raises(GraphError, match="a gradient each"):
        wf.vmap(lambda v: y.backward(v))(wf.eye(3, dtype=wf.float64))


def test_seeds_must_have_a_dimension_that_counts_them():
    x = leaf(3)
    for seeds in (None, wf.ones(3, dtype=wf.float64), wf.ones(3, 2, dtype=wf.float64)):
        with pytest.raises(ShapeError, match="is_grads_batched"):
            wf.autograd.grad(x.sin(), x, seeds, is_grads_batched=True)
