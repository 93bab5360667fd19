"""Padding as layers against numpy.pad, negative amounts, gradients and refusals."""

import numpy as np
import pytest

import wayfare as wf
from wayfare import nn
from wayfare.errors import ArgumentError, ArgumentTypeError, OperationError

MODES = {
    "Zero": {"mode": "constant"}, "Constant": {"mode": "constant", "constant_values": 2.5},
    "Reflection": {"mode": "reflect"}, "Replication": {"mode": "edge"}, "Circular": {"mode": "wrap"},
}  # fmt: skip


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("kind", MODES)
def test_against_numpy(kind, rank):
    x = np.random.default_rng(0).normal(size=(2, 3, *(4, 5, 3)[:rank]))
    amounts = (1, 2, 2, 0, 1, 1)[: 2 * rank]
    value = (2.5,) if kind == "Constant" else ()
    pairs = [(0, 0), (0, 0), *reversed(list(zip(amounts[::2], amounts[1::2], strict=True)))]
    layer = getattr(nn, f"{kind}Pad{rank}d")
    np.testing.assert_array_equal(layer(amounts, *value)(wf.from_numpy(x)).numpy(), np.pad(x, pairs, **MODES[kind]))
    everywhere = [(0, 0), (0, 0), *[(2, 2)] * rank]
    np.testing.assert_array_equal(layer(2, *value)(wf.from_numpy(x)).numpy(), np.pad(x, everywhere, **MODES[kind]))


def test_negative_amounts_cut():
    x = wf.arange(5.0).reshape(1, 5)
    assert nn.ZeroPad1d((-1, -2))(x).tolist() == [[1, 2]]
    assert nn.ConstantPad1d((1, -4), 7.0)(x).tolist() == [[7, 0]]


def test_what_is_repeated_adds_to_the_gradient():
    x = wf.ones(1, 1, 3, requires_grad=True)
    nn.ReplicationPad1d((2, 1))(x).sum().backward()
    assert x.grad.tolist() == [[[3, 1, 2]]]


REFUSED = {
    "amounts": (lambda: nn.ZeroPad2d((1, 2)), ArgumentTypeError, r"ZeroPad2d: padding must be an int or 4 of them"),
    "floats": (lambda: nn.ReflectionPad1d(1.5), ArgumentTypeError, "an int or 2 of them, not 1.5"),
    "reflection": (lambda: nn.ReflectionPad1d(4)(wf.ones(1, 1, 4)), OperationError, r"in ReflectionPad1d\(\(4, 4\)\)"),
    "circular": (lambda: nn.CircularPad1d(1)(wf.ones(4)), ArgumentError, r"3 dimensions, or 2 .* this is f32\[4\]"),
    "no tensor": (lambda: nn.ZeroPad1d(1)(3), ArgumentTypeError, "expected a tensor, not int"),
}  # fmt: skip


@pytest.mark.parametrize(("call", "error", "text"), REFUSED.values(), ids=REFUSED)
def test_refusals(call, error, text):
    with pytest.raises(error, match=text):
        call()
