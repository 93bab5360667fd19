"""repr of tensors (agreement with PyTorch's is checked by the referee tests)."""

import numpy as np

import wayfare as wf
from wayfare.core.config import settings


def test_small_tensors():
    assert repr(wf.tensor(3.0)) == "tensor(3.)"
    assert repr(wf.tensor([1, 20])) == "tensor([ 1, 20])"
    assert repr(wf.tensor([[True], [False]])) == "tensor([[ True],\n        [False]])"
    assert repr(wf.tensor([])) == "tensor([])"
    assert repr(wf.zeros(0, 3)) == "tensor([], size=(0, 3))"
    assert repr(wf.ones(2, dtype=wf.float64)) == "tensor([1., 1.], dtype=wayfare.float64)"
    assert repr(wf.tensor([float("nan"), 1.5, float("-inf")])) == "tensor([   nan, 1.5000,   -inf])"


def test_large_tensor_has_a_line_of_statistics():
    values = np.zeros((100, 20), np.float32)
    values[0, 0], values[1, 1], values[2, 2] = np.nan, -3, 7
    text = repr(wf.from_numpy(values))
    assert text.splitlines()[-1] == "# f32[100,20]: min -3, max 7, mean 0.002001, NaN 1"
    assert "..." in text and len(text.splitlines()) < 20
    assert repr(wf.ones(2000, dtype=wf.bool)).endswith("# bool[2000]: 2000 of 2000 are True")
    assert repr(wf.arange(2000)).endswith("# i64[2000]: min 0, max 1999, mean 999.5")


def test_options_are_respected():
    old = settings.printing.precision
    settings.printing.precision = 2
    try:
        assert repr(wf.tensor([1.23456])) == "tensor([1.23])"
    finally:
        settings.printing.precision = old


def test_repr_of_what_requires_a_gradient():
    x = wf.ones(1, requires_grad=True)
    assert repr(x) == "tensor([1.], requires_grad=True)"
    assert repr(x * 2) == "tensor([2.], grad_fn=<MulBackward0>)"
