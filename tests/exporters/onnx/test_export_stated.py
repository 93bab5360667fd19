"""Control flow that is stated (`wf.cond`, `wf.while_loop`, `wf.scan`): as plain Python, and in a file."""

import numpy as np
import pytest

import wayfare as wf
from tests.exporters.onnx.exporting import export, kinds, same
from wayfare import nn
from wayfare.errors import ArgumentError, ArgumentTypeError

LENGTH = {"x": {0: "length"}}


def test_cond_while_loop_and_scan_run_as_plain_python():
    x = wf.randn(3, requires_grad=True)
    assert wf.equal(wf.cond(True, lambda v: v + 1, lambda v: v, (x,)), x + 1)
    assert wf.equal(wf.cond(x.sum() > 1e9, lambda v: v + 1, lambda v: v * 2, (x,)), x * 2)
    n, total = wf.while_loop(lambda n, s: n < 4, lambda n, s: (n + 1, s + n), (wf.tensor(0), wf.tensor(0)))
    assert (n.item(), total.item()) == (4, 6)
    carry, ys = wf.scan(lambda c, v: (c + v, c * v), wf.tensor(0.0), x)
    assert np.allclose(carry.item(), x.sum().item())
    assert np.allclose(ys.detach(), [0, (x[0] * x[1]).item(), ((x[0] + x[1]) * x[2]).item()])
    carry.backward()
    assert wf.equal(x.grad, wf.ones(3))
    (a, _), ys = wf.scan(lambda c, v: ((c[0] + v["p"], c[1]), (c[0],)), (wf.zeros(2), wf.ones(2)),
                         {"p": wf.ones(2, 5)}, dim=1, reverse=True)  # fmt: skip
    assert a.tolist() == [5, 5] and ys[0].shape == (5, 2) and ys[0][:, 0].tolist() == [4, 3, 2, 1, 0]


@pytest.mark.parametrize(("call", "words"), [
    (lambda: wf.scan(lambda c, v: c, wf.ones(1), wf.ones(2)), "must return \\(carry, y\\)"),
    (lambda: wf.scan(lambda c, v: (c, v), wf.ones(1), wf.ones(0)), "nothing to go through"),
    (lambda: wf.scan(lambda c, v: (c.long(), v), wf.ones(1), wf.ones(2)), "the carry changes"),
    (lambda: wf.while_loop(lambda v: v < 3, lambda v: (v, v), (wf.zeros(()),)), "what is carried changes"),
    (lambda: wf.while_loop(3, lambda v: v, (wf.zeros(()),)), "takes functions, not int"),
    (lambda: wf.cond(True, lambda: 1, lambda: 2, 3), "operands must be a tuple, not int"),
])  # fmt: skip
def test_wrong_control_flow_is_named(call, words):
    with pytest.raises((ArgumentError, ArgumentTypeError), match=words):
        call()


def test_cond_becomes_an_if(path):
    lin = nn.Linear(4, 4)

    def f(x):
        return wf.cond(x.sum() > 0, lambda v: lin(v).relu(), lambda v: v * 3, (x,)) + 1

    export(f, (wf.randn(2, 4),), path, dynamic_axes={"x": {0: "batch"}})
    assert kinds(path).count("If") == 1
    for scale in (1, -1):
        same(path, f, wf.rand(3, 4) * scale)


def test_while_loop_becomes_a_loop(path):
    def f(x):
        return wf.while_loop(lambda v, n: v.norm() > 1, lambda v, n: (v / 2, n + 1), (x, wf.tensor(0)))

    export(f, (wf.randn(2, 4) * 50,), path, dynamic_axes={"x": {0: "batch"}})
    assert kinds(path).count("Loop") == 1
    for scale in (0.01, 7.0, 1e5):
        same(path, f, wf.randn(3, 4) * scale)


@pytest.mark.parametrize("reverse", [False, True])
def test_scan_becomes_a_loop(path, reverse):
    lstm = nn.LSTMCell(3, 4)

    def step(state, v):
        h, c = lstm(v, state)
        return (h, c), h.tanh()

    def f(x, h, c):
        (h, c), ys = wf.scan(step, (h, c), x, dim=1, reverse=reverse)
        return ys, h, c

    axes = {"x": {0: "batch", 1: "length"}, "h": {0: "batch"}, "c": {0: "batch"}}
    export(f, (wf.randn(2, 5, 3), wf.randn(2, 4), wf.randn(2, 4)), path, dynamic_axes=axes)
    assert kinds(path).count("Loop") == 1
    for length in (1, 2, 19):
        same(path, f, wf.randn(3, length, 3), wf.randn(3, 4), wf.randn(3, 4))


def test_decisions_inside_a_scan(path):
    def step(h, x):
        h = h + x
        if h.norm() > 2:
            h = h / h.norm()
        return h, wf.cond(h.sum() > 0, lambda v: v * 2, lambda v: v - 1, (h,))

    def f(x):
        return wf.scan(step, wf.zeros(3), x)

    examples = [(wf.randn(5, 3) * scale,) for scale in (0.1, 1.0, 5.0)]
    export(f, examples, path, dynamic_axes=LENGTH)
    assert kinds(path).count("If") == 2
    for scale in (0.1, 3.0):
        same(path, f, wf.randn(9, 3) * scale)
