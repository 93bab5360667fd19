"""Decisions of Python by the value of a tensor become If; a way that no example took is refused."""

import pytest

import wayfare as wf
from tests.exporters.onnx.exporting import export, kinds, same
from wayfare import nn
from wayfare.errors import ExportError


def branch(x):
    if x.sum() > 0:
        h = x * 2
    else:
        h = x.tanh() - 1
    return h.relu() + h


def test_a_decision_on_a_value_is_an_if(path):
    export(branch, [(wf.ones(2, 3),), (-wf.ones(2, 3),)], path, dynamic_axes={"x": {0: "batch"}})
    assert kinds(path).count("If") == 1
    for scale in (1, -1):
        same(path, branch, wf.rand(5, 3) * scale)


def test_a_way_that_was_never_seen_is_refused(path):
    with pytest.raises(ExportError, match="it was True in every example .*test_export_decisions.py") as caught:
        export(branch, (wf.ones(2, 3),), path)
    assert "Add an example for which it is False" in str(caught.value)


def test_a_decision_on_weights_is_none(path):
    scale = wf.tensor(2.0)

    def f(x):
        return x * scale if scale > 1 else x

    export(f, (wf.randn(3),), path)
    assert "If" not in kinds(path)


def test_decisions_one_inside_the_other(path):
    def f(x):
        if x.sum() > 0:
            return x + 1 if x[0] > 1 else x - 1
        return x * 0

    examples = [(wf.tensor(v),) for v in ([2.0, 1.0], [0.5, 1.0], [-1.0, -1.0])]
    export(f, examples, path)
    for v in ([3.0, 3.0], [0.1, 3.0], [-1.0, 0.5]):
        same(path, f, wf.tensor(v))


def test_ways_that_come_together_make_small_ifs(path):
    lin = nn.Linear(3, 3)
    with wf.no_grad():
        lin.weight.mul_(0.01)

    def f(x):
        scale, y = 2.0, x
        if x.sum() > 0:
            y = x / x.norm()
            scale = 3.0
        z = lin(y) * scale + x
        if z[0, 0] > 0.5:
            z = z - 1
        return z.tanh() + y, y

    # Of the four combinations only two are shown.
    examples = [(wf.tensor([[2.0, 1.0, 1.0]]),), (wf.tensor([[-2.0, -1.0, -1.0]]),)]
    assert {f(*e)[0].shape for e in examples} == {(1, 3)}
    export(f, examples, path, dynamic_axes={"x": {0: "batch"}})
    assert kinds(path).count("If") == 2 and kinds(path).count("Gemm") == 1
    for _ in range(10):
        same(path, f, wf.randn(4, 3) * 2)
