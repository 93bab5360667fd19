"""Faults and bad input that a trustworthy framework survives."""

import sys
import threading

import numpy as np
import pytest

import wayfare as wf
from wayfare.errors import AnomalyError, ShapeError, WayfareError


def long_chain(length):
    x = wf.ones(2, requires_grad=True)
    y = x
    for _ in range(length):
        y = y * 1.0
    return x, y


def test_backward_and_freeing_of_a_chain_of_100k_nodes():
    x, y = long_chain(100_000)
    y.sum().backward()
    assert x.grad.tolist() == [1.0, 1.0]
    del y


def test_a_graph_of_a_million_nodes_dropped_without_backward():
    _, y = long_chain(1_000_000)
    node = y.grad_fn
    assert sys.getrefcount(node) < 10
    del y, node


def test_deep_graph_can_be_listed():
    _, y = long_chain(20_000)
    assert len(wf.graph(y)) == 20_000
    assert "more" in str(wf.graph(y))


def test_reentrant_backward_inside_a_custom_function():
    class Inner(wf.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            with wf.enable_grad():
                own = x.detach().requires_grad_()
                (own**2).sum().backward()
            return g * own.grad

    x = wf.tensor([1.0, 2.0, 3.0], requires_grad=True)
    (Inner.apply(x * 1) * 2).sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), [4.0, 8.0, 12.0])


def test_shape_mismatch_names_both_shapes_the_op_and_the_line():
    x, w = wf.ones(8, 3), wf.ones(4, 2)
    with pytest.raises(ShapeError, match=r"mul: shapes \[8, 3\] and \[4, 2\].*test_faults.py:\d+"):
        x * w
    with pytest.raises(ShapeError, match=r"matmul: inner sizes differ, f32\[8,3\] @ f32\[4,2\] \(test_faults.py:\d+\)"):
        x @ w
    with pytest.raises(ShapeError, match=r"Did you mean x @ w.T"):
        x @ wf.ones(5, 3)


@pytest.mark.parametrize("make, op", [
    (lambda x: (x - 1).log(), "log"),
    (lambda x: x / (x - x), "div"),
    (lambda x: (x * 1000).exp(), "exp"),
])  # fmt: skip
def test_anomaly_mode_names_the_forward_op_and_line(make, op):
    x = wf.tensor([0.5, 1.0], requires_grad=True)
    with wf.autograd.detect_anomaly(), pytest.raises(AnomalyError, match=rf"{op}: made .*test_faults.py:\d+"):
        make(x)


def test_anomaly_mode_names_the_forward_op_of_a_bad_gradient():
    x = wf.tensor([0.0, 1.0], requires_grad=True)
    with wf.autograd.detect_anomaly(), pytest.raises(AnomalyError, match=r"SqrtBackward0.*sqrt.*test_faults.py:\d+"):
        y = x.sqrt()
        y.sum().backward()


def test_numpy_never_swallows_a_tensor():
    x = wf.tensor([1.0, 2.0], requires_grad=True)
    array = np.array([10.0, 20.0], dtype=np.float32)
    for made in (array + x, array * x, np.sin(x), np.multiply(x, array), array - x, array / x):
        assert isinstance(made, wf.Tensor) and made.requires_grad
    (array * x).sum().backward()
    assert x.grad.tolist() == [10.0, 20.0]
    for taken in (np.add.reduce, np.mean, np.asarray):
        with pytest.raises(RuntimeError, match="detach"):
            taken(x)


def test_sizes_of_zero():
    x = wf.zeros(0, 3, requires_grad=True)
    w = wf.ones(3, 2, requires_grad=True)
    y = (x @ w).exp().sum()
    y.backward()
    assert y.item() == 0.0
    assert tuple(x.grad.shape) == (0, 3) and w.grad.tolist() == [[0.0, 0.0]] * 3
    assert wf.zeros(0).sum().item() == 0.0
    with pytest.raises(WayfareError, match="max"):
        wf.zeros(0).max()


def test_two_threads_two_graphs():
    results = {}

    def work(name, factor):
        x = wf.tensor([1.0, 2.0, 3.0], dtype=wf.float64, requires_grad=True)
        for _ in range(200):
            x.grad = None
            with wf.no_grad():
                assert not (x * 2).requires_grad
            y = x
            for _ in range(10):
                y = y * factor
            y.sum().backward()
        results[name] = x.grad.numpy().copy()

    threads = [threading.Thread(target=work, args=(i, 1.0 + i / 10)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    for i in range(4):
        np.testing.assert_allclose(results[i], (1.0 + i / 10) ** 10)


def test_no_grad_in_one_thread_does_not_reach_another():
    inside, go = threading.Event(), threading.Event()

    def hold():
        with wf.no_grad():
            inside.set()
            go.wait(5)

    thread = threading.Thread(target=hold)
    thread.start()
    assert inside.wait(5)
    x = wf.ones(2, requires_grad=True)
    recorded = (x * 2).requires_grad
    go.set()
    thread.join()
    assert recorded


def test_interrupt_in_the_middle_of_backward_leaves_a_working_engine():
    x = wf.ones(3, requires_grad=True)
    h = x * 2

    def interrupt(_g):
        raise KeyboardInterrupt

    handle = h.register_hook(interrupt)
    with pytest.raises(KeyboardInterrupt):
        (h * 3).sum().backward()
    handle.remove()
    x.grad = None
    (x * 2 * 3).sum().backward()
    assert x.grad.tolist() == [6.0, 6.0, 6.0]


def test_interrupt_inside_no_grad_restores_recording():
    x = wf.ones(3, requires_grad=True)
    with pytest.raises(KeyboardInterrupt), wf.no_grad():
        raise KeyboardInterrupt
    assert (x * 2).requires_grad
