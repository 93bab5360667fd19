"""checkpoint: same gradients, less kept, same random numbers."""

import numpy as np
import pytest

import wayfare as wf
from wayfare.errors import GraphError
from wayfare.utils.checkpoint import checkpoint, checkpoint_sequential


def leaf(*shape, seed=0):
    return wf.tensor(np.random.default_rng(seed).normal(size=shape), requires_grad=True)


def block(x, w):
    return ((x * w).tanh() * x).exp()


def test_gradients_equal_the_plain_call_also_for_captured_weights():
    x, w, captured = leaf(4), leaf(4, seed=1), leaf(4, seed=2)

    def run(x, w):
        return block(x, w) * captured

    run(x, w).sum().backward()
    want = [t.grad.numpy().copy() for t in (x, w, captured)]
    x.grad = w.grad = captured.grad = None
    checkpoint(run, x, w, use_reentrant=False).sum().backward()
    for t, expected in zip((x, w, captured), want, strict=True):
        np.testing.assert_allclose(t.grad.numpy(), expected)


def test_it_runs_again_once_and_keeps_no_arrays():
    calls = []
    x, w = leaf(4), leaf(4, seed=1)

    def run(x, w):
        calls.append(1)
        return block(x, w)

    y = checkpoint(run, x, w)
    assert not any(isinstance(k, np.ndarray) for node in wf.graph(y) for k in node.kept)
    y.sum().backward()
    assert len(calls) == 2


def test_random_numbers_are_the_same_both_times():
    x = leaf(1000)

    def noisy(x):
        return x * x * (wf.rand(1000, dtype=x.dtype) > 0.5)

    wf.manual_seed(3)
    y = checkpoint(noisy, x)
    kept = y.detach().numpy() != 0
    after = wf.get_rng_state()
    y.sum().backward()
    np.testing.assert_array_equal(x.grad.numpy() != 0, kept)
    assert wf.get_rng_state().tolist() == after.tolist()


def test_second_derivative_through_a_checkpoint():
    x = leaf(3)
    (g,) = wf.autograd.grad(checkpoint(lambda t: t * t * t, x).sum(), x, create_graph=True)
    g.sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), 6 * x.detach().numpy())


def test_a_function_that_changes_is_refused():
    x = leaf(3)
    count = []

    def fickle(t):
        count.append(1)
        return t * t if len(count) == 1 else t * t * t * t

    y = checkpoint(fickle, x)
    with pytest.raises(GraphError, match="same each time"):
        y.sum().backward()


def test_nested_and_sequential():
    x = leaf(3)
    steps = [lambda t: t * 2, lambda t: t.tanh(), lambda t: checkpoint(lambda u: u * u, t), lambda t: t + 1]
    plain = x
    for step in steps:
        plain = step(plain)
    plain.sum().backward()
    want = x.grad.numpy().copy()
    x.grad = None
    checkpoint_sequential(steps, 2, x).sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), want)


def test_without_recording_it_is_a_plain_call():
    with wf.no_grad():
        assert checkpoint(lambda t: t * 2, leaf(3)).grad_fn is None
